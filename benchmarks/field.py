"""The share product against plain float64, in the same run: exact, and at most 4 times the cost.

A holder's product of shares, 195,666 x 117 modulo three primes, over numpy's float64 `X.T @ X` of the same shape.
One thread, as in a party's process. Both are timed in turns, in CPU seconds, and the smallest of each is taken, so
that other work on the machine disturbs the ratio little. QUICK=1 repeats less.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable

import numpy as np
from threadpoolctl import threadpool_limits

from benchmarks.common import Page, quick
from colonnade.privacy.randomness import SystemRandomness
from colonnade.secure.field import Field, primes_for
from colonnade.secure.shamir import share

RECORDS, COLUMNS, LIMIT = 195_666, 117, 4.0


def cpu_seconds(work: Callable[[], object]) -> float:
    start = time.process_time()
    work()
    return time.process_time() - start


def main() -> int:
    repetitions = 5 if quick() else 25
    field = Field(primes_for(61))
    values = np.random.default_rng(0).integers(-(2**14), 2**14 + 1, size=(RECORDS, COLUMNS))
    exact = (field.decode(field.gram(field.encode(values))) == values.T @ values).all()

    randomness = SystemRandomness()
    sharing = min(
        cpu_seconds(lambda: share(field, values, holders=3, threshold=1, randomness=randomness)) for _ in range(2)
    )
    mine = share(field, values, holders=3, threshold=1, randomness=randomness)[0]
    plain = values.astype(np.float64)
    ours, numpys = [], []
    for _ in range(repetitions):
        numpys.append(cpu_seconds(lambda: plain.T @ plain))
        ours.append(cpu_seconds(lambda: field.gram(mine)))
    ratio = min(ours) / min(numpys)
    page = Page("field", "The share product beside float64")
    page.say(f"{RECORDS} x {COLUMNS}, {len(field.primes)} primes, {repetitions} repetitions, one thread, CPU seconds.")
    page.say(f"Sharing all columns to 3 holders {sharing:.3f}, product {min(ours):.3f}, float64 {min(numpys):.3f}.")
    page.say(f"Median ratio {np.median(np.array(ours) / np.array(numpys)):.2f}. Exact against int64: {bool(exact)}.")
    return page.finish(bool(exact) and ratio <= LIMIT, ratio=f"{ratio:.2f}", limit=LIMIT)


if __name__ == "__main__":
    with threadpool_limits(limits=1):
        sys.exit(main())
