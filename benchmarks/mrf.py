"""Speed and memory of VertiMRF on Adult with two parties, t = 2000 (the paper's section 7.3 and Table 2).

Limits are compared with CPU seconds, all threads together: what a run takes on a machine that others use too says
nothing. Compilation is included. `coordinator` is what it does after the last answer of a party: graph, fit,
sampling, files.
"""

from __future__ import annotations

import resource
import tempfile
import time

import numpy as np

from benchmarks.common import Page, quick
from benchmarks.mrf_common import CELLS, Data, adult, cells_of, field_method, tvd
from colonnade.federation.job import Progress
from colonnade.federation.method import Method
from colonnade.papers import VertiMRF
from colonnade.papers.vertimrf.frequency_oracle import column_bins
from colonnade.papers.vertimrf.sketches import smallest_hashes
from colonnade.synthesis.field.sample import FieldSampler
from colonnade.synthesis.field.schema import Schema
from colonnade.synthesis.table import SyntheticTable

SKETCHES = 2000
LIMITS = {
    "fm encoding of a party, CPU-s": 10.0,
    "fm coordinator, CPU-s": 180.0,
    "sqm coordinator, CPU-s": 180.0,
    "sqm end to end, CPU-s": 180.0,
    "memory, MB": 2000.0,
}
PAPER = {"fm encoding of a party, CPU-s": "23.1 min", "fm coordinator, CPU-s": "67 min"}


def encoding_seconds(data: Data, sketches: int) -> float:
    """CPU seconds in which one party sketches its columns: the larger of two parties."""
    maps = column_bins(data.schema, 4)
    codes = np.stack([maps[name][data.codes[name]] for name in data.parties(2)["p00"]])
    smallest_hashes(codes[:, :100], 5, key=bytes(32), sketches=2)  # the kernel is compiled
    started = time.process_time()
    smallest_hashes(codes, 5, key=bytes(32), sketches=sketches)
    return time.process_time() - started


class LastAnswer:
    """When the parties had answered for the last time."""

    def __init__(self) -> None:
        self.at = 0.0

    def __call__(self, progress: Progress) -> None:
        self.at = time.process_time()


def end_to_end(data: Data, name: str, method: Method[SyntheticTable], found: dict[str, float]) -> FieldSampler:
    """One embedded federation: seconds, and how near its rows are."""
    last = LastAnswer()
    with (
        tempfile.TemporaryDirectory() as folder,
        data.federation(2, folder, seed=1, timeout=3600.0, allow=("fm-sketches",)) as federation,
    ):
        started, used = time.monotonic(), time.process_time()
        table, _ = federation.run(method, progress=last, sure=True)
        found[f"{name} end to end, CPU-s"] = time.process_time() - used
        found[f"{name} end to end, s on this machine today"] = time.monotonic() - started
        found[f"{name} coordinator, CPU-s"] = time.process_time() - last.at
        made = cells_of(table.sample(), Schema.declared(federation.facts, bins=CELLS))
        found[f"{name} 3-way TVD"] = tvd(data.codes, made, data.schema.sizes, ways=3)
    assert isinstance(table.model, FieldSampler)
    return table.model


def main() -> int:
    page = Page("mrf", "VertiMRF: speed and memory")
    data = adult()
    page.say(f"Adult, {data.n:,} records, {len(data.columns)} columns, two parties, embedded, epsilon 0.8, delta 1/n.")
    found = {"fm encoding of a party, CPU-s": encoding_seconds(data, SKETCHES)}
    model = end_to_end(data, "sqm", field_method(data, epsilon=0.8, view="server"), found)
    started = time.process_time()
    for _ in model.batches(1_000_000, 1):
        pass
    found["a million rows, CPU-s"] = time.process_time() - started
    if not quick():
        fm = VertiMRF(encoder="fm", epsilon=0.8, delta=1 / data.n, cells=CELLS, complete=True, sketches=SKETCHES)
        end_to_end(data, "fm", fm, found)
    found["memory, MB"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1000
    rows = [
        [name, f"{value:.3g}", f"{LIMITS[name]:g}" if name in LIMITS else "", PAPER.get(name, "")]
        for name, value in found.items()
    ]
    page.table(["what", "measured", "limit", "the paper"], rows)
    good = all(found[name] <= limit for name, limit in LIMITS.items() if name in found)
    return page.finish(
        good,
        fm_encoding=f"{found['fm encoding of a party, CPU-s']:.1f}",
        sqm=f"{found['sqm end to end, CPU-s']:.0f}",
        memory=f"{found['memory, MB']:.0f}",
    )


if __name__ == "__main__":
    raise SystemExit(main())
