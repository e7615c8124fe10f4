"""Two institutions alone beside three share holders: clock, CPU, bytes and memory of the same job in one run.

`Moments` with noise over 195,666 records of 58 + 59 columns, one process a party: by a pair under lattice encryption,
and by three parties who share the same 117 columns to each other (`benchmarks.sqm`), in turns. Then tables of 120 x 120
indicators over 200,000 records by a pair. Both are checked against numpy without noise, exactly. QUICK=1 takes a tenth
of the records, has no limit and writes no page.
"""

from __future__ import annotations

import os
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from benchmarks.common import Page, machine, quick
from benchmarks.sqm import COLUMNS, GAMMA, RECORDS, Bench, Taken, Watched, whole_multiples
from colonnade.data.column import Column, Columns
from colonnade.durable import Database
from colonnade.federation.coordinator import Federation
from colonnade.federation.messages import Transcript
from colonnade.statistics.moments import Moments
from colonnade.statistics.tables import Tables

LIMIT = 4.0
LEVELS, TABLE_RECORDS = 6, 200_000


def method(epsilon: float | None = 1.0, *, verify: bool = True) -> Moments:
    return Moments(epsilon=epsilon, presence="ignore", constant=False, gamma=GAMMA, verify=verify)


def sent(runs: Path) -> dict[str, int]:
    """Bytes that each party has sent in the newest run, mail to the others included."""
    newest = max(runs.glob("*/transcript.db"), key=lambda path: path.stat().st_mtime)
    rows = Transcript(Database(newest, read_only=True), create=False).rows(direction="in")
    parties: dict[str, int] = {}
    for row in rows:
        parties[row.body["peer"]] = parties.get(row.body["peer"], 0) + int(row.body["bytes"])
    return parties


def main() -> int:
    records, repetitions = (RECORDS // 10, 1) if quick() else (RECORDS, 3)
    page = Page("pair", "Two institutions alone", command="make bench NAME=pair")
    page.say(f"{machine()}. Load average at the start {os.getloadavg()[0]:.1f}.")
    rows = whole_multiples(records, COLUMNS)
    exact, ratio = moments(page, rows, repetitions)
    counted = tables(page, TABLE_RECORDS // 10 if quick() else TABLE_RECORDS)
    good = exact and counted and (quick() or ratio <= LIMIT)
    return page.finish(good, ratio=f"{ratio:.2f}", exact="yes" if exact and counted else "no")


def moments(page: Page, rows: NDArray[np.float64], repetitions: int) -> tuple[bool, float]:
    with tempfile.TemporaryDirectory() as folder:
        two, three = Path(folder) / "two", Path(folder) / "three"
        two.mkdir()
        three.mkdir()
        allowed: dict[str, Any] = {"allow": ("exact-moments",)}
        with (
            Bench(two, rows, parties=2, committee="pair", **allowed) as pair,
            Bench(three, rows, parties=3, **allowed) as holders,
        ):
            unverified = method(verify=False)
            result = method(epsilon=None).fit(pair.federation)  # also loads modules and compiled kernels
            exact = bool(np.array_equal(result.grams[0], rows.T @ rows))
            holders.job(unverified)
            taken: dict[str, list[Taken]] = {"pair": [], "holders": [], "verified": []}
            for _ in range(repetitions):
                taken["pair"].append(pair.job(method()))
                taken["holders"].append(holders.job(unverified))
                taken["verified"].append(holders.job(method()))
            bytes_pair, bytes_holders = sent(two / "runs"), sent(three / "runs")
    labels = {
        "pair": ("two institutions alone", bytes_pair),
        "holders": ("three share holders, not verified", {}),
        "verified": ("three share holders, verified", bytes_holders),
    }
    page.say(
        f"## {len(rows):,} x ({COLUMNS // 2} + {COLUMNS - COLUMNS // 2}), gamma {GAMMA}, with noise\n\nSmallest of"
        f" {repetitions} runs, in turns, after one that loads modules and kernels."
    )
    page.table(
        ["", "clock s", "CPU s, all processes", "MB sent by each party", "peak MB, a party", "peak MB, coordinator"],
        [
            [
                words,
                f"{min(job.wall for job in taken[kind]):.2f}",
                f"{min(job.cpu for job in taken[kind]):.2f}",
                " / ".join(f"{size / 1e6:.0f}" for size in sizes.values()) or "-",
                f"{max(job.party_bytes for job in taken[kind]) / 1e6:.0f}",
                f"{max(job.coordinator_bytes for job in taken[kind]) / 1e6:.0f}",
            ]
            for kind, (words, sizes) in labels.items()
        ],
    )
    clocks = {kind: min(job.wall for job in jobs) for kind, jobs in taken.items()}
    ratio = clocks["pair"] / clocks["holders"]
    page.say(
        f"On the clock {ratio:.2f} x three share holders without verification, which a pair does not have either (limit"
        f" {LIMIT:g} x), and {clocks['pair'] / clocks['verified']:.2f} x with it. Without noise the result equals"
        f" numpy's: {'yes' if exact else 'no'}."
    )
    return exact, ratio


def tables(page: Page, records: int) -> bool:
    """20 columns of 6 levels at each party: all 400 tables between them are one product of 120 x 120 indicators."""
    rng = np.random.default_rng(1)
    codes = {party: rng.integers(0, LEVELS, (records, 20)) for party in "ab"}
    levels = tuple(map(str, range(LEVELS)))
    names = {party: [f"{party}{k}" for k in range(20)] for party in codes}
    columns = Columns(
        [Column(name=name, kind="categorical", categories=levels) for own in names.values() for name in own]
    )
    wanted = tuple((left, right) for left in names["a"] for right in names["b"])
    with tempfile.TemporaryDirectory() as folder:
        blocks = {}
        for party, values in codes.items():
            frame = pd.DataFrame(values.astype(str), columns=names[party])
            frame.insert(0, "id", np.arange(records))
            blocks[party] = Path(folder) / f"{party}.parquet"
            frame.to_parquet(blocks[party], index=False)
        options: dict[str, Any] = {
            "transport": "processes",
            "home": Path(folder) / "home",
            "runs": Path(folder) / "runs",
        }
        with Federation.local(
            blocks, key="id", columns=columns, committee="pair", allow=("exact-tables",), **options
        ) as federation:
            result, taken = Watched(federation).measured(lambda: Tables(tables=wanted, epsilon=None).fit(federation))
            sizes = sent(Path(folder) / "runs")
    hot = {party: np.eye(LEVELS, dtype=np.int64)[values].reshape(records, -1) for party, values in codes.items()}
    truth = hot["a"].astype(float).T @ hot["b"].astype(float)
    exact = all(
        np.array_equal(
            result[left, right],
            truth[LEVELS * i : LEVELS * (i + 1), LEVELS * j : LEVELS * (j + 1)],
        )
        for i, left in enumerate(names["a"])
        for j, right in enumerate(names["b"])
    )
    page.say(
        f"## Tables of 120 x 120 indicators, {records:,} records\n\nAll {len(wanted)} tables of 20 x 20 columns of"
        f" {LEVELS} levels, exact: {'equal to' if exact else 'different from'} numpy's; {taken.wall:.2f} s,"
        f" {taken.cpu:.2f} CPU-s, {' / '.join(f'{size / 1e6:.0f}' for size in sizes.values())} MB sent by each"
        f" party, peak {taken.party_bytes / 1e6:.0f} MB at a party. Three indicators are digits of one number."
    )
    return exact


if __name__ == "__main__":
    sys.exit(main())
