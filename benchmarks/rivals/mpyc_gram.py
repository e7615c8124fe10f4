"""The Gram matrix of three parties' columns in MPyC: `python -m benchmarks.rivals.mpyc_gram -M3 RECORDS COLUMNS`.

Each of the three processes inputs its own third of the columns as Shamir shares over a 61-bit prime field; the
product is one secure matrix product on MPyC's arrays, its own fastest way; the result is opened. There is no noise,
no ledger and no sealed relay. Party 0 prints the seconds, and its own CPU seconds, from the first input to the result.
"""

from __future__ import annotations

import sys
import time

import numpy as np
from mpyc.runtime import mpc

PRIME = 2**61 - 1


async def main(records: int, columns: int) -> None:
    field = mpc.SecFld(PRIME)
    own = columns // 3
    rng = np.random.default_rng(mpc.pid)
    values = rng.integers(-(2**12), 2**12 + 1, size=(records, own))
    await mpc.start()
    started, cpu = time.perf_counter(), time.process_time()
    blocks = mpc.input(field.array(values.astype(object)))
    rows = mpc.np_hstack(tuple(blocks))
    opened = await mpc.output(rows.T @ rows)
    if mpc.pid == 0:
        print(f"seconds {time.perf_counter() - started:.3f} cpu {time.process_time() - cpu:.3f}", flush=True)
        signed = np.array([[int(v) if int(v) <= PRIME // 2 else int(v) - PRIME for v in row] for row in opened])
        assert np.array_equal(signed[:own, :own], values.T @ values), "MPyC's product is not the product"
    await mpc.shutdown()


if __name__ == "__main__":
    mpc.run(main(int(sys.argv[1]), int(sys.argv[2])))
