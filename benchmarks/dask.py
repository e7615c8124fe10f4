"""A party's own Dask cluster with 1, 2 and 4 workers: what it does in parallel, and what stays in the party's process.

One party, a folder of Parquet files, workers of one thread and a scheduler in processes of their own. Two jobs of the
party: the counts of six columns' cells, as `describe` takes them (merged at the workers), and the rows of moments as
clipped integers, which come back to the party in its cohort's order. CPU seconds are read of every process; those of
the party's process, and of the scheduler, are what no further worker makes less. With w workers on cores of their own
a job takes max(party, scheduler, workers / w) seconds: with the clock of two shared cores beside it. Criterion, set on
2026-11-17 before the first run: by that projection 4 workers have at least 3 times the throughput of one for the
counts, and at least twice for the rows; workers' CPU time grows by at most a quarter from 1 to 4 workers; results are
equal. Dealing, which the party's process does, is measured beside it; so is, since 2026-11-17 and without a criterion,
what it would take if the workers dealt: each returns its rows and a packed share of them. QUICK=1 takes a fifth of the
records. (The first run had 200,000 records and was short: connecting took as long as counting. The size was raised,
not the limits.)
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import distributed
import numpy as np
import pandas as pd
from numpy.typing import NDArray

from benchmarks.common import Page, machine, quick
from colonnade.data.aggregation import aggregate, mapped
from colonnade.data.block import Block
from colonnade.data.cluster import Cluster, OnCluster
from colonnade.data.column import Column, Columns
from colonnade.data.sources import open_source
from colonnade.federation.facts import PublicFacts
from colonnade.privacy.randomness import SystemRandomness
from colonnade.secure.field import Field, primes_for
from colonnade.secure.seeded import deal_seeded
from colonnade.statistics.cells import cells
from colonnade.statistics.describe import CellCounts
from colonnade.statistics.features import Design, IntegerDesign, IntegerRows, features

RECORDS, WIDTH, GROUP, GAMMA = 3_000_000, 24, 65_536, 1024
WORKERS = (1, 2, 4)
COUNTED = 6
COUNTS, ROWS, GROWTH = 3.0, 2.0, 1.25
COLUMNS = Columns([Column(name=f"c{j:02d}", kind="continuous", lower=-1.0, upper=1.0) for j in range(WIDTH)])


def make(folder: Path, records: int) -> Path:
    """Parquet files of numbers on the grid of gamma, so that rounding has nothing to decide."""
    folder.mkdir()
    rng = np.random.default_rng(1)
    for number in range(4):
        ids = np.array_split(np.arange(records), 4)[number]
        rows = rng.integers(-GAMMA, GAMMA + 1, (len(ids), WIDTH)) / GAMMA
        frame = pd.DataFrame({"id": ids, **{name: rows[:, j] for j, name in enumerate(COLUMNS)}})
        frame.to_parquet(folder / f"{number}.parquet", index=False, row_group_size=GROUP)
    return folder


@dataclass(frozen=True, eq=False)
class DealtDesign:
    """At a worker: the rows, and the share of them that travels whole, under a seed of the worker's own. (The party's
    process would still have to put both into its cohort's order, seal, hash and keep them.)"""

    design: IntegerDesign
    field: Field

    def __call__(self, rows: NDArray[np.int64], values: Mapping[str, NDArray[Any]]) -> tuple[Any, Any, Any]:
        places, integers = self.design(rows, values)
        return places, integers, _packed(self.field, integers)


def _packed(field: Field, rows: NDArray[np.integer[Any]]) -> list[NDArray[np.uint64]]:
    dealing = deal_seeded(field, rows, holders=3, threshold=1, randomness=SystemRandomness())
    return list(dealing.packed([2])[0].words)


def _cpu(pid: int) -> float:
    after_name = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()
    return (int(after_name[11]) + int(after_name[12])) / os.sysconf("SC_CLK_TCK")


@contextlib.contextmanager
def cluster(folder: Path, workers: int) -> Iterator[tuple[str, int, list[int]]]:
    """A scheduler and workers as processes of their own: address, process of the scheduler, those of the workers."""
    place = folder / f"scheduler-{workers}.json"
    quiet: dict[str, Any] = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    start = [sys.executable, "-m", "dask"]
    common = ["--scheduler-file", str(place), "--no-dashboard"]
    scheduler = ["scheduler", "--host", "127.0.0.1", "--port", "0"]
    worker = ["worker", "--nthreads", "1", "--no-nanny", "--host", "127.0.0.1", "--memory-limit", "0"]
    started = [subprocess.Popen([*start, *scheduler, *common], **quiet)]
    try:
        while not place.is_file():
            time.sleep(0.2)
        started += [
            subprocess.Popen([*start, *worker, *common, "--local-directory", str(folder)], **quiet)
            for _ in range(workers)
        ]
        with distributed.Client(scheduler_file=str(place), set_as_default=False) as client:
            client.wait_for_workers(workers, timeout=120)
            address = client.scheduler.address
        yield address, started[0].pid, [process.pid for process in started[1:]]
    finally:
        for process in reversed(started):
            process.terminate()
            process.wait()


@dataclass(frozen=True, kw_only=True)
class Spent:
    clock: float
    party: float
    scheduler: float = 0.0
    workers: float = 0.0

    def projected(self, workers: int) -> float:
        """Seconds where every worker, the scheduler and the party have a core of their own."""
        return max(self.party, self.scheduler, self.workers / workers)


def measured(work: Callable[[], Any], scheduler: int | None = None, workers: list[int] | None = None) -> Spent:
    def now() -> NDArray[np.float64]:
        others = [0.0 if scheduler is None else _cpu(scheduler), sum(_cpu(pid) for pid in workers or [])]
        return np.array([time.perf_counter(), time.process_time(), *others])

    before = now()
    work()
    clock, party, *others = (now() - before).tolist()
    return Spent(clock=clock, party=party, scheduler=others[0], workers=others[1])


def main() -> int:
    records = RECORDS // 5 if quick() else RECORDS
    page = Page("dask", "A party's own cluster", command="make bench NAME=dask")
    page.say(f"{machine()}. Load average at the start {os.getloadavg()[0]:.1f}. {records:,} records, {WIDTH} columns.")
    facts = PublicFacts(n=records, columns={"tax": COLUMNS})
    integers = IntegerRows(gamma=GAMMA, clip=float(np.sqrt(WIDTH)), masks=None)
    design = IntegerDesign(Design(tuple(features(facts))), integers, np.int16)
    positions = np.random.default_rng(2).permutation(records)
    names = list(COLUMNS)
    public = {name: cells(COLUMNS[name], bins=32) for name in names}

    def counts(block: Block) -> list[NDArray[np.int64]]:
        return [aggregate(block, positions, [name], CellCounts(name, public[name])) for name in names[:COUNTED]]

    def rows(block: Block) -> NDArray[np.int16]:
        out = np.zeros((records, WIDTH), dtype=np.int16)
        for places, values in mapped(block, positions, names, design):
            integers.check(values)
            out[places] = values
        return out

    field = Field(primes_for((records * GAMMA**2).bit_length()))
    dealt_design = DealtDesign(design, field)

    def dealt(block: Block) -> NDArray[np.int16]:
        out = np.zeros((records, WIDTH), dtype=np.int16)
        received = 0
        for places, values, words in mapped(block, positions, names, dealt_design):
            integers.check(values)
            out[places] = values
            received += sum(layer.nbytes for layer in words)
        share_bytes.append(received)
        return out

    share_bytes: list[int] = []
    jobs: dict[str, Callable[[Block], Any]] = {"counts": counts, "rows": rows, "dealt rows": dealt}
    good = True
    spent: dict[tuple[str, int], Spent] = {}
    with tempfile.TemporaryDirectory(prefix="dask-") as name:
        folder = Path(name)
        block = Block.load(
            "tax", open_source({"parquet": str(make(folder / "table", records))}), key="id", columns=COLUMNS
        )
        expected = {job: work(block) for job, work in jobs.items()}  # compiles, too
        for job, work in jobs.items():
            spent[job, 0] = measured(partial(work, block))
        for workers in WORKERS:
            with cluster(folder, workers) as (address, scheduler, pids):
                there = replace(block, source=OnCluster(block.source, Cluster(address=address)))
                for job, work in jobs.items():
                    good &= bool(np.array_equal(np.array(work(there)), np.array(expected[job])))  # warm, and equal
                    spent[job, workers] = measured(partial(work, there), scheduler, pids)
    table = []
    for (job, workers), taken in spent.items():
        cpu = [f"{seconds:.2f}" for seconds in (taken.party, taken.scheduler, taken.workers)]
        projected = f"{taken.projected(workers):.2f}" if workers else ""
        table.append([job, str(workers or "none"), f"{taken.clock:.1f}", *cpu, projected])
    page.table(["job", "workers", "clock s", "party CPU-s", "scheduler CPU-s", "workers CPU-s", "projected s"], table)
    judged = ("counts", "rows")
    faster = {job: spent[job, 1].projected(1) / spent[job, 4].projected(4) for job in judged}
    growth = max(spent[job, 4].workers / spent[job, 1].workers for job in judged)

    def deal() -> None:
        for part in np.array_split(expected["rows"], 12):
            _packed(field, part)

    dealing = measured(deal)
    page.say(
        f"Rows come back as {2 * WIDTH + 8} bytes a record, once, from the worker that made them. Dealing them to three"
        f" holders takes {dealing.party:.2f} CPU-s in the party's process, which draws shares and noise; it is not done"
        f" by workers. If they dealt, {share_bytes[-1] / records:.0f} bytes of shares a record would come back beside"
        f" the rows, which the party keeps for its own share: with 4 workers the party's process then takes"
        f" {spent['dealt rows', 4].party:.2f} CPU-s to receive them, and with dealing in the process"
        f" {spent['rows', 4].party + dealing.party:.2f} (rows and dealing)."
    )
    page.say(
        f"Projected: the largest of the party's, the scheduler's and each worker's CPU time, as on cores of their own."
        f" Limits: {COUNTS:g} and {ROWS:g} times the throughput with 4 workers, {GROWTH:g} times the workers' CPU time."
        " The first run had 200,000 records and was short: connecting took as long as counting. The size was raised,"
        " not the limits."
    )
    good &= faster["counts"] >= COUNTS and faster["rows"] >= ROWS and growth <= GROWTH
    figures = {f"{job}_4_over_1": f"{ratio:.1f}" for job, ratio in faster.items()}
    return page.finish(good, **figures, growth=f"{growth:.2f}", dealing_s=f"{dealing.party:.2f}")


if __name__ == "__main__":
    sys.exit(main())
