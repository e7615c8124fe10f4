"""Ten million records of 117 columns at five parties: moments with noise in one job, then a regression.

One process a party, over Parquet files of 32-bit numbers that are made here a piece at a time (5 GB, deleted at the
end). The data are whole multiples of 1/gamma, so that the moments without noise are known exactly from the pieces; one
column of the last party is a response with known coefficients. Criterion, set on 2026-11-17 before the first run, for
two cores without other work: the moments of 10,000,000 records take at most 10 minutes on the clock, no process more
than 4 GB; CPU seconds and peak memory for each record are at most 10 % above those of 1,000,000 records (memory beyond
that of the interpreter). Then `Regress` with standard errors on the same records, all columns, without noise: its
estimates are within 5 standard errors of the truth. QUICK=1 takes 200,000 and 2,000,000 records, and writes no page.

One argument, a number of records, runs that size alone: `python -m benchmarks.nation 1000000`.
"""

from __future__ import annotations

import os
import sys
import tempfile
import threading
import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from benchmarks.common import Page, machine, quick
from benchmarks.sqm import COLUMNS, GAMMA, Taken, Watched, method
from colonnade.data.column import Column, Columns
from colonnade.federation.coordinator import Federation
from colonnade.models.linear.regress import Regress

PARTIES = 5
MINUTES, GIGABYTES, GROWTH = 10.0, 4.0, 1.10
PIECE = 1 << 17
NAMES = [f"c{column:04d}" for column in range(COLUMNS)]
EXPLAINED = NAMES[-1]
COEFFICIENTS = {NAMES[0]: 0.4, NAMES[30]: -0.3, NAMES[60]: 0.2}


def make(folder: Path, records: int) -> tuple[dict[str, Path], NDArray[np.float64]]:
    """A Parquet file for each party, and X'X of all columns."""
    owned = dict(enumerate(np.array_split(np.arange(COLUMNS), PARTIES)))
    paths = {f"party{party}": folder / f"party{party}.parquet" for party in owned}
    schemas = {
        party: pa.schema([("id", pa.int64()), *((NAMES[column], pa.float32()) for column in own)])
        for party, own in owned.items()
    }
    writers = {party: pq.ParquetWriter(paths[f"party{party}"], schema) for party, schema in schemas.items()}
    rng, gram = np.random.default_rng(0), np.zeros((COLUMNS, COLUMNS))
    for start in range(0, records, PIECE):
        size = min(PIECE, records - start)
        whole = rng.integers(-GAMMA, GAMMA + 1, size=(size, COLUMNS), dtype=np.int16).astype(np.float64)
        explained = sum(value * whole[:, NAMES.index(name)] for name, value in COEFFICIENTS.items())
        whole[:, -1] = np.rint(np.clip(explained + GAMMA * rng.normal(0, 0.1, size), -GAMMA, GAMMA))
        rows = whole / GAMMA
        gram += rows.T @ rows
        for party, own in owned.items():
            columns = [
                pa.array(np.arange(start, start + size)),
                *(pa.array(rows[:, j].astype(np.float32)) for j in own),
            ]
            writers[party].write_table(pa.table(columns, schema=schemas[party]))
    for writer in writers.values():
        writer.close()
    return paths, gram


class Spool(threading.Thread):
    """The largest size of a folder, looked at twice a second."""

    def __init__(self, folder: Path) -> None:
        super().__init__(daemon=True)
        self._folder, self._ended, self.largest = folder, threading.Event(), 0

    def run(self) -> None:
        while not self._ended.wait(0.5):
            size = 0
            for path in self._folder.rglob("*"):
                try:
                    size += path.stat().st_size
                except OSError:  # deleted meanwhile
                    continue
            self.largest = max(self.largest, size)

    def __enter__(self) -> Spool:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self.join()


@dataclass(frozen=True, kw_only=True)
class Size:
    """What one size took: the moments, the disk beyond the data, the regression, and how far it is from the truth."""

    records: int
    start_up: float
    idle_bytes: int
    moments: Taken
    disk: int
    regression: Taken
    largest_z: float

    @property
    def peak(self) -> int:
        return max(taken.party_bytes for taken in (self.moments, self.regression))

    def row(self) -> list[str]:
        return [
            f"{self.records:,}",
            f"{self.start_up:.0f}",
            f"{self.moments.wall / 60:.2f}",
            f"{self.moments.cpu:.0f}",
            f"{1e6 * self.moments.cpu / self.records:.1f}",
            f"{self.moments.party_bytes / 2**30:.2f}",
            f"{self.moments.coordinator_bytes / 2**30:.2f}",
            f"{self.disk / 1e9:.1f}",
            f"{self.regression.wall / 60:.2f}",
            f"{self.largest_z:.1f}",
        ]


HEAD = ["records", "start s", "minutes", "CPU s", "CPU us a record", "party GB", "coordinator GB", "disk GB"]
HEAD += ["regress, minutes", "largest |z|"]


def measure(records: int) -> Size:
    with tempfile.TemporaryDirectory(prefix="nation-") as name:
        folder = Path(name)
        paths, gram = make(folder, records)
        columns = Columns([Column(name=name, kind="continuous", lower=-1.0, upper=1.0) for name in NAMES])
        started = time.perf_counter()
        with (
            Federation.local(
                paths,
                key="id",
                columns=columns,
                transport="processes",
                home=folder / "home",
                runs=folder / "runs",
                allow=("presence", "exact-moments"),
                timeout=3600.0,
            ) as federation,
            Spool(folder / "home") as spool,
        ):
            federation.handshake()
            start_up = time.perf_counter() - started
            watched = Watched(federation)
            _, idle = watched.measured(federation.handshake)
            result, moments = watched.measured(lambda: method().fit(federation))
            upper = np.triu_indices(COLUMNS)
            errors = (result.grams[0] - gram)[upper] / result.noise_sd
            # 6,903 entries: one beyond 7 sd with probability below 2e-8.
            assert np.abs(errors).max() < 7, "the result is further from the truth than its noise can take it"
            assert errors.std() > 0.5, "the result has less noise than it states"
            disk = spool.largest
            explain = Regress(response=EXPLAINED, missing="em")
            fit, regression = watched.measured(lambda: explain.fit(federation))
            truth = pd.Series(COEFFICIENTS)
            z = ((fit.params[truth.index] - truth) / fit.bse[truth.index]).abs().max()
    return Size(
        records=records,
        start_up=start_up,
        idle_bytes=idle.party_bytes,
        moments=moments,
        disk=disk,
        regression=regression,
        largest_z=float(z),
    )


def main() -> int:
    page = Page("nation", "Ten million records on two cores", command="make bench NAME=nation")
    page.say(f"{machine()}. Load average at the start {os.getloadavg()[0]:.1f}. {COLUMNS} columns, {PARTIES} parties.")
    small, large = (measure(records) for records in ((200_000, 2_000_000) if quick() else (1_000_000, 10_000_000)))
    page.table(HEAD, [small.row(), large.row()])
    minutes, peak = large.moments.wall / 60, max(large.peak, large.moments.coordinator_bytes) / 2**30
    per_record = [
        (size.moments.cpu / size.records, (size.peak - size.idle_bytes) / size.records) for size in (small, large)
    ]
    growth = max(after / before for before, after in zip(*per_record, strict=True))
    good = minutes <= MINUTES and peak <= GIGABYTES and growth <= GROWTH and large.largest_z < 5
    page.say(
        "Moments with noise (epsilon 1, verified): from plan to closing. Start: opening files, joining keys, checking"
        " every value. Memory is the largest resident size of a process; disk is what all parties keep during the job"
        " beyond the data, which holders need for proofs and all need to resume."
    )
    page.say(
        f"Limits: {MINUTES:g} minutes, {GIGABYTES:g} GB a process, {GROWTH:g} times the CPU time and the memory (beyond"
        f" that before the job) for each record. Found: {minutes:.1f} minutes, {peak:.2f} GB, {growth:.2f}."
    )
    return page.finish(
        good, records=large.records, minutes=f"{minutes:.1f}", peak_gb=f"{peak:.2f}", growth=f"{growth:.2f}"
    )


if __name__ == "__main__":
    if len(sys.argv) > 1 and sys.argv[1].isdecimal():
        for word, value in zip(HEAD, measure(int(sys.argv[1])).row(), strict=True):
            print(f"{word}: {value}")
        sys.exit(0)
    sys.exit(main())
