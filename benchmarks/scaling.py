"""How the whole job grows: linear in the records, quadratic in the columns, and with more parties.

`Moments` in the `processes` transport, as in the benchmark `sqm`. CPU seconds of all processes together, the
smallest of a few runs, so that other work on the machine disturbs little; clock seconds beside them. Then two real
tables of thousands of columns, within a memory limit. QUICK=1 takes smaller sizes.
"""

from __future__ import annotations

import sys
import tempfile
from concurrent.futures import ProcessPoolExecutor
from itertools import pairwise
from multiprocessing import get_context
from pathlib import Path

import numpy as np

import benchmarks.scaling
from benchmarks.common import Page, load, machine, quick
from benchmarks.sqm import Bench, Taken, method, whole_multiples
from colonnade.models.pca import PCA

REPETITIONS = 3


def measured(*, records: int, columns: int, parties: int) -> Taken:
    """The smallest times of a few jobs, after one that loads the compiled kernels."""
    with (
        tempfile.TemporaryDirectory() as folder,
        Bench(Path(folder), whole_multiples(records, columns), parties=parties) as bench,
    ):
        taken = [bench.job(method()) for _ in range(REPETITIONS + 1)][1:]
    return Taken(
        wall=min(one.wall for one in taken),
        cpu=min(one.cpu for one in taken),
        party_bytes=max(one.party_bytes for one in taken),
        coordinator_bytes=max(one.coordinator_bytes for one in taken),
        coordinator_growth=max(one.coordinator_growth for one in taken),
    )


def doublings(taken: list[Taken]) -> list[float]:
    """How many times the CPU seconds grow each time the size doubles; a fixed part makes it less."""
    return [after.cpu / before.cpu for before, after in pairwise(taken)]


def main() -> int:
    page = Page("scaling", "How the whole SQM job grows")
    page.say(f"{machine()}. Largest resident memory includes interpreter and libraries (about 250 MB).")
    shrink = 8 if quick() else 1
    records = [50_000 // shrink, 100_000 // shrink, 200_000 // shrink]
    columns = [120, 240, 480] if quick() else [240, 480, 960]
    rows = []
    by_records = [measured(records=n, columns=60, parties=3) for n in records]
    rows += [_line(n, 60, 3, one) for n, one in zip(records, by_records, strict=True)]
    by_columns = [measured(records=10_000 // shrink, columns=p, parties=3) for p in columns]
    rows += [_line(10_000 // shrink, p, 3, one) for p, one in zip(columns, by_columns, strict=True)]
    for parties in (3, 5, 8):
        rows.append(_line(records[0], 120, parties, measured(records=records[0], columns=120, parties=parties)))
    page.table(
        ["records", "columns", "parties", "CPU s, all", "clock s", "a party, MB", "coordinator, grown by MB"], rows
    )
    in_records, in_columns = doublings(by_records), doublings(by_columns)
    told = [", ".join(f"{one:.2f}" for one in many) for many in (in_records, in_columns)]
    good = max(in_records) <= 1.15 * 2 and max(in_columns) <= 1.15 * 4
    page.say(
        f"When the records double, CPU seconds grow {told[0]} times (linear: 2); when the columns double, {told[1]}"
        " times (quadratic: 4; sharing is linear in the columns, products and openings are quadratic). No faster than"
        f" that, within 15 %: {'ok' if good else 'short'}. With more parties the same columns are shared by more"
        " processes to a committee of three, and every member adds noise."
    )
    within, largest = wide_tables(page)
    return page.finish(
        good and within,
        rows_doubled=f"{max(in_records):.2f}",
        columns_doubled=f"{max(in_columns):.2f}",
        largest_share_of_memory=f"{largest:.2f}",
    )


# --- wide tables within a limit --------------------------------------------------------------------------------

WIDE = {"citeseer": ("topic", 800), "nci60": ("cancer_type", 1000)}
"""{data set: (its label, the memory in MB that a user might allow)}."""


def wide_tables(page: Page) -> tuple[bool, float]:
    """Real tables of thousands of columns, in tiles: no process may take more memory than the user allows."""
    lines, largest = [], 0.0
    for name, (label, allowed) in WIDE.items():
        if quick() and name != "citeseer":
            continue
        # A coordinator of its own for each: memory that an earlier job has freed would count otherwise.
        with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as fresh:
            shape, tiles, taken = fresh.submit(benchmarks.scaling.wide_table, name, label, allowed).result()
        largest = max(largest, max(taken.party_bytes, taken.coordinator_bytes) / (allowed << 20))
        memory = [f"{one / 2**20:.0f}" for one in (taken.party_bytes, taken.coordinator_bytes)]
        lines.append([name, shape, f"{allowed}", *memory, tiles, f"{taken.cpu:.0f}", f"{taken.wall:.0f}"])
    page.say("## Wide tables within a memory limit")
    page.say(
        "Four parties, `PCA(centre=False, memory=...)` with noise, five components, the first job of each process."
    )
    page.table(["data", "size", "allowed MB", "a party", "coordinator", "rounds", "CPU s, all", "clock s"], lines)
    page.say(f"Every process stayed within what the user allowed: {'ok' if largest <= 1 else 'short'}.")
    return largest <= 1, largest


def wide_table(name: str, label: str, allowed: int) -> tuple[str, str, Taken]:
    """(size, tiles, what the job took) of one data set."""
    rows = load(name).drop(columns=label).to_numpy(dtype=np.float64, copy=True)
    low, high = rows.min(axis=0), rows.max(axis=0)  # observed bounds: a benchmark of speed, not of privacy
    rows -= (low + high) / 2
    rows /= np.maximum((high - low) / 2, 1e-9)
    limited = PCA(epsilon=1.0, gamma=2**12, memory=allowed, centre=False, presence="ignore")
    with tempfile.TemporaryDirectory() as folder, Bench(Path(folder), rows, parties=4) as bench:
        layout = limited.procedure(bench.federation.facts, bench.federation.roster).layout
        fitted, taken = bench.measured(lambda: limited.fit(bench.federation))
        unit = fitted.components_ @ fitted.components_.T
        assert np.allclose(unit, np.eye(len(unit)), atol=1e-6), "components must be orthonormal"
    return f"{rows.shape[0]:,} x {rows.shape[1]:,}", f"{len(layout.rounds)} of tiles {layout.tile} wide", taken


def _line(records: int, columns: int, parties: int, taken: Taken) -> list[str]:
    return [
        f"{records:,}",
        f"{columns}",
        f"{parties}",
        f"{taken.cpu:.2f}",
        f"{taken.wall:.2f}",
        f"{taken.party_bytes / 2**20:.0f}",
        f"{taken.coordinator_growth / 2**20:.0f}",
    ]


if __name__ == "__main__":
    sys.exit(main())
