"""Speed of VertiMRF on Adult with two parties: `fm` encoding, and `sqm` end to end; the limits of issue 6 beside."""

from __future__ import annotations

import resource
import tempfile
import time

import numpy as np

from benchmarks.common import machine
from benchmarks.mrf_common import CELLS, adult, cells_of, tvd
from colonnade.synthesis.mrf.encoders import Schema
from colonnade.synthesis.mrf.fm import smallest_hashes
from colonnade.synthesis.mrf.fo import column_bins
from colonnade.synthesis.mrf.sample import FieldSampler
from colonnade.synthesis.mrf.vertimrf import VertiMRF

SKETCHES = 2000
LIMITS = {"fm encoding of a party, CPU-s": 10.0, "sqm end to end, s": 180.0, "memory, MB": 2000.0}


def encoding_seconds(sketches: int) -> float:
    """CPU seconds in which one party sketches its columns: the larger of two parties."""
    data = adult()
    maps = column_bins(data.schema, 4)
    codes = np.stack([maps[name][data.codes[name]] for name in data.parties(2)["p00"]])
    smallest_hashes(codes[:, :100], 5, key=bytes(32), sketches=2)  # the kernel is compiled
    started = time.process_time()
    smallest_hashes(codes, 5, key=bytes(32), sketches=sketches)
    return time.process_time() - started


def main() -> int:
    print(machine())
    found = {"fm encoding of a party, CPU-s": encoding_seconds(SKETCHES)}
    data = adult()
    method = VertiMRF(epsilon=0.8, delta=1 / data.n, cells=CELLS, view="server")
    with tempfile.TemporaryDirectory() as folder, data.federation(2, folder, seed=1, timeout=3600.0) as federation:
        started, used = time.monotonic(), time.process_time()
        table = method.fit(federation)
        found["sqm end to end, s"] = time.monotonic() - started
        found["sqm end to end, CPU-s"] = time.process_time() - used
        made = cells_of(table.sample(), Schema.declared(federation.facts, bins=CELLS))
        found["sqm 3-way TVD"] = tvd(data.codes, made, data.schema.sizes, ways=3)
    assert isinstance(table.model, FieldSampler)
    started = time.monotonic()
    for _ in table.model.batches(1_000_000, 1):
        pass
    found["a million rows, s"] = time.monotonic() - started
    found["memory, MB"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1000
    for name, value in found.items():
        print(f"{name}: {value:.4g}" + (f" (limit {LIMITS[name]:g})" if name in LIMITS else ""))
    good = all(found[name] <= limit for name, limit in LIMITS.items())
    print(f"mrf: {'ok' if good else 'short'}")
    return 0 if good else 1


if __name__ == "__main__":
    raise SystemExit(main())
