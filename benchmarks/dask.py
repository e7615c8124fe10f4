"""A party's own Dask cluster with 1, 2 and 4 workers: what it does in parallel, and what stays in the party's process.

One party, a folder of Parquet files, workers of one thread and a scheduler in processes of their own. Two jobs of the
party: the counts of six columns' cells, as `describe` takes them (merged at the workers), and the rows of moments as
clipped integers, which come back to the party in its cohort's order. CPU seconds are read of every process; those of
the party's process, and of the scheduler, are what no further worker makes less. With w workers on cores of their own
a job takes max(party, scheduler, workers / w) seconds: with the clock of two shared cores beside it. Criterion, set on
2026-11-17 before the first run: by that projection 4 workers have at least 3 times the throughput of one for the
counts, and at least twice for the rows; workers' CPU time grows by at most a quarter from 1 to 4 workers; results are
equal. What it would take if the workers dealt is measured without a criterion: each returns its rows and a packed share
of them. QUICK=1 takes a fifth of the records. (The first run had 200,000 records and was short: connecting took as long
as counting. The size was raised, not the limits.)

Since 2026-11-18 a third job: moments of this party and two others through a federation, of which the party's request
"share rows" is profiled, everything that its process does from the first byte to the committed answer, by part. Others
wait while it works, so that the process's CPU time is its own. Criterion, set before the first run: the party's own CPU
time grows by at most a quarter from 1 to 4 workers, so that nothing of ours gets slower by having more of them.

Changed on 2026-11-18 after a result: the page of the day before was short (2.9 times, growth 1.36) at a load of 8.5. A
Dask process that has nothing to do takes a few hundredths of a core, so that on a busy clock four idle workers counted
for a third of the work. What the same cluster takes in five seconds of rest is now taken off by the clock of each job.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any
from unittest import mock

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
from colonnade.federation import wire, workplace
from colonnade.federation.coordinator import Federation
from colonnade.federation.facts import PublicFacts
from colonnade.federation.messages import Request
from colonnade.federation.party import Party
from colonnade.federation.transports.embedded import Embedded
from colonnade.privacy.randomness import SystemRandomness
from colonnade.secure.field import Field, primes_for
from colonnade.secure.seeded import Dealing, deal_seeded
from colonnade.statistics.cells import cells
from colonnade.statistics.describe import CellCounts
from colonnade.statistics.features import CohortRows, Design, IntegerDesign, IntegerRows, features
from colonnade.statistics.moments import Moments

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


REST = 5.0
"""Seconds in which a cluster with nothing to do is watched."""


@dataclass(frozen=True, eq=False)
class Running:
    """A cluster: its address, the processes of its scheduler and workers, and what they take a second at rest."""

    address: str
    scheduler: int
    workers: list[int]
    rest: NDArray[np.float64]

    @classmethod
    def at_rest(cls, address: str, scheduler: int, workers: list[int]) -> Running:
        running = cls(address, scheduler, workers, np.zeros(2))
        time.sleep(2.0)  # what starting left to do
        before, start = running.cpu(), time.perf_counter()
        time.sleep(REST)
        return replace(running, rest=(running.cpu() - before) / (time.perf_counter() - start))

    def cpu(self) -> NDArray[np.float64]:
        """CPU seconds of the scheduler and of all workers so far."""
        return np.array([_cpu(self.scheduler), sum(map(_cpu, self.workers))])


@contextlib.contextmanager
def cluster(folder: Path, workers: int) -> Iterator[Running]:
    """A scheduler and workers as processes of their own."""
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
        yield Running.at_rest(address, started[0].pid, [process.pid for process in started[1:]])
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


def measured(work: Callable[[], Any], running: Running | None = None) -> Spent:
    def now() -> NDArray[np.float64]:
        others = np.zeros(2) if running is None else running.cpu()
        return np.array([time.perf_counter(), time.process_time(), *others])

    before = now()
    work()
    taken = now() - before
    if running is not None:
        taken[2:] -= running.rest * taken[0]
    clock, party, scheduler, workers = taken.tolist()
    return Spent(clock=clock, party=party, scheduler=scheduler, workers=workers)


class Profile:
    """CPU seconds of this process by part, each without the parts inside it, while one party's request is answered."""

    def __init__(self, party: str, stages: str) -> None:
        """`stages` is what the names of its stages begin with."""
        self.spent: Counter[str] = Counter()
        self.workers = 0.0
        self._party, self._stages = party, stages
        self._parts: list[str] = []
        self._since = 0.0
        self._thread: int | None = None
        self._lock = threading.Lock()

    @contextlib.contextmanager
    def _part(self, name: str) -> Iterator[None]:
        self._turn()
        self._parts.append(name)
        try:
            yield
        finally:
            self._turn()
            self._parts.pop()

    def _turn(self) -> None:
        now = time.process_time()
        if self._parts:
            self.spent[self._parts[-1]] += now - self._since
        self._since = now

    def _timed(self, name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        def timed(*arguments: Any, **options: Any) -> Any:
            if threading.get_ident() != self._thread:
                return function(*arguments, **options)
            with self._part(name):
                return function(*arguments, **options)

        return timed

    def _streamed(self, name: str, function: Callable[..., Iterator[Any]]) -> Callable[..., Iterator[Any]]:
        """What comes out of a generator is asked for within the part, and used outside of it."""

        def streamed(*arguments: Any, **options: Any) -> Iterator[Any]:
            results = function(*arguments, **options)
            while (result := self._timed(name, lambda: next(results, None))()) is not None:
                yield result

        return streamed

    @contextlib.contextmanager
    def watching(self, running: Running) -> Iterator[None]:
        exchange = Embedded.exchange

        def alone(transport: Embedded, party: str, data: bytes, *, timeout: float) -> bytes:
            with self._lock:
                if party != self._party or not Request.decode(data).stage.startswith(self._stages):
                    return exchange(transport, party, data, timeout=timeout)
                self._thread = threading.get_ident()
                answers: list[bytes] = []
                answer = self._timed("all else", partial(exchange, transport, party, data, timeout=timeout))
                self.workers += measured(lambda: answers.append(answer()), running).workers
                self._thread = None
                return answers[0]

        with contextlib.ExitStack() as patches:
            for owner, name, part in (
                (IntegerRows, "check", "checking sizes"),
                (CohortRows, "range", "the cohort's order"),
                (Dealing, "packed", "dealing"),
                (workplace, "seal", "writing and sealing"),
                (wire, "encode", "writing and sealing"),
                (Party, "_commit", "keeping and recording"),
            ):
                patches.enter_context(mock.patch.object(owner, name, self._timed(part, getattr(owner, name))))
            run = self._streamed("rows from workers", Cluster.run)
            patches.enter_context(mock.patch.object(Cluster, "run", run))
            patches.enter_context(mock.patch.object(Embedded, "exchange", alone))
            yield


def shared(table: Path, records: int, running: Running) -> Profile:
    """What a party's process spends on its requests to share rows: moments with noise, and two other parties."""
    rng = np.random.default_rng(3)
    others = Columns([Column(name=name, kind="binary", categories=("no", "yes")) for name in ("bank", "court")])
    blocks: dict[str, Any] = {
        name: pd.DataFrame({"id": np.arange(records), name: rng.choice(["no", "yes"], records)}) for name in others
    }
    blocks["tax"] = {"parquet": str(table), "dask": running.address}
    profile = Profile("tax", "moments: share")
    with (
        tempfile.TemporaryDirectory(prefix="dask-") as home,
        Federation.local(
            blocks,
            key="id",
            columns=Columns([*others.values(), *COLUMNS.values()]),
            home=Path(home) / "home",
            runs=Path(home) / "runs",
        ) as federation,
        profile.watching(running),
    ):
        Moments(epsilon=1.0, presence="ignore", gamma=GAMMA, verify=False).fit(federation)
    return profile


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
    profiles: dict[int, Profile] = {}
    spent: dict[tuple[str, int], Spent] = {}
    with tempfile.TemporaryDirectory(prefix="dask-") as name:
        folder = Path(name)
        block = Block.load(
            "tax", open_source({"parquet": str(make(folder / "table", records))}), key="id", columns=COLUMNS
        )
        smaller = make(folder / "smaller", records // 3)
        expected = {job: work(block) for job, work in jobs.items()}  # compiles, too
        for job, work in jobs.items():
            spent[job, 0] = measured(partial(work, block))
        for workers in WORKERS:
            with cluster(folder, workers) as running:
                there = replace(block, source=OnCluster(block.source, Cluster(address=running.address)))
                for job, work in jobs.items():
                    good &= bool(np.array_equal(np.array(work(there)), np.array(expected[job])))  # warm, and equal
                    spent[job, workers] = measured(partial(work, there), running)
                there.release()
                profiles[workers] = shared(smaller, records // 3, running)
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
    own = {workers: sum(profile.spent.values()) for workers, profile in profiles.items()}
    parts = [name for name, _ in profiles[1].spent.most_common()]
    page.say(
        f"One party's part of moments with noise, {records // 3:,} records (its {WIDTH} columns, and two other"
        " parties): CPU seconds of its process from the first byte of its requests to share rows to the committed"
        " answers, by part, and how many workers keep it busy."
    )
    page.table(
        ["workers", *parts, "party's process", "workers CPU-s", "workers that keep it busy"],
        [
            [
                str(workers),
                *(f"{profile.spent[part]:.2f}" for part in parts),
                f"{own[workers]:.2f}",
                f"{profile.workers:.2f}",
                f"{profile.workers / own[workers]:.1f}",
            ]
            for workers, profile in profiles.items()
        ],
    )
    steady = own[4] / own[1]
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
        " not the limits. What the cluster takes at rest is taken off by the clock; until 2026-11-18 it was not, and"
        " the page was short at a load of 8.5, where four workers that waited counted as working."
    )
    page.say(
        "Sorting into the cohort's order, dealing, sealing and keeping stay in the party's process, which is the limit"
        " from as many workers on as the last column says. Of what it does, dealing is the part that workers could"
        " take over."
    )
    good &= faster["counts"] >= COUNTS and faster["rows"] >= ROWS and max(growth, steady) <= GROWTH
    figures = {f"{job}_4_over_1": f"{ratio:.1f}" for job, ratio in faster.items()}
    return page.finish(good, **figures, growth=f"{growth:.2f}", party=f"{steady:.2f}", dealing_s=f"{dealing.party:.2f}")


if __name__ == "__main__":
    sys.exit(main())
