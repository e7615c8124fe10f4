"""The whole job against plain float64 and against MPyC: share, multiply, add noise, open, in one process a party.

`Moments` over 195,666 records and 117 columns of three parties, three primes, in the `processes` transport:
ledger, transcript, sealed mail and durable replies included. Beside it, in the same run and in turns, numpy's float64
`X.T @ X` of the same matrix on one thread (as in a party's process) and on all threads; and at 20,000 records MPyC.
Starting the processes and loading and checking the blocks come before the job and are stated apart. Since 2026-11-18 a
party holds a file of up to 64 MB in memory when it has loaded it, so that the job does not read it again; MPyC's
numbers, and numpy's, are in memory too.

Data are made here: whole multiples of 1/gamma, so that the result without noise is known exactly. Its error is checked
against the stated noise. After a product numpy's threads wait for another one busily, on cores that the job needs: the
true result is computed once, before all jobs, and after a yardstick its threads are given the time to go to sleep.

Limits since 2026-11-17, before a run met them: 20 times float64 (before: 60), 300 times MPyC (before: 50). One more job
is timed stage by stage. QUICK=1 takes fewer repetitions and writes no page.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self, TypeVar

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from threadpoolctl import threadpool_limits

from benchmarks.common import REPOSITORY, Page, machine, quick
from colonnade.data.column import Column, Columns
from colonnade.federation.coordinator import Federation
from colonnade.federation.transports.processes import Processes
from colonnade.statistics.moments import Moments

Made = TypeVar("Made")
RECORDS, COLUMNS, PARTIES, GAMMA = 195_666, 117, 3, 2**14
MPYC_RECORDS = 20_000
ASLEEP = 0.5
"""Seconds after which numpy's threads wait no more."""
LIMIT_FLOAT64, LIMIT_MPYC, LIMIT_MEMORY = 20.0, 300.0, 4.0


# --- a federation of any size, and what it takes ---------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Taken:
    """One job: seconds on the clock, CPU seconds of all processes together, largest resident memory of a party's
    process and of the coordinator's, and by how much the job made the latter grow."""

    wall: float
    cpu: float
    party_bytes: int
    coordinator_bytes: int
    coordinator_growth: int


class Watched:
    """A federation of one process a party, and what work with it takes."""

    def __init__(self, federation: Federation) -> None:
        self.federation = federation
        transport = federation.transport
        assert isinstance(transport, Processes)
        self._pids = [transport.pid(party) for party in transport.parties]

    def measured(self, work: Callable[[], Made]) -> tuple[Made, Taken]:
        """What some work with the federation gives, and what it takes."""
        for pid in (*self._pids, os.getpid()):
            Path(f"/proc/{pid}/clear_refs").write_text("5")  # forget the peak so far
        before, resident = self.cpu(), _peak(os.getpid())
        started = time.perf_counter()
        result = work()
        wall, cpu = time.perf_counter() - started, self.cpu() - before
        peaks, own = [_peak(pid) for pid in self._pids], _peak(os.getpid())
        return result, Taken(
            wall=wall, cpu=cpu, party_bytes=max(peaks), coordinator_bytes=own, coordinator_growth=own - resident
        )

    def cpu(self) -> float:
        """CPU seconds of all processes so far."""
        ticks = os.sysconf("SC_CLK_TCK")
        parties = 0.0
        for pid in self._pids:
            fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
            parties += (int(fields[11]) + int(fields[12])) / ticks
        return parties + time.process_time()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.federation.close()


class Bench(Watched):
    """One process a party over Parquet files; `rows` are numbers in [-1, 1], the columns split evenly in order."""

    def __init__(self, folder: Path, rows: NDArray[np.float64], *, parties: int, **options: Any) -> None:
        self.rows, self.truth = rows, rows.T @ rows
        folder.mkdir(exist_ok=True)
        names = [f"c{j:04d}" for j in range(rows.shape[1])]
        blocks = {}
        for k, part in enumerate(np.array_split(np.arange(rows.shape[1]), parties)):
            frame = pd.DataFrame(rows[:, part], columns=[names[j] for j in part])
            frame.insert(0, "id", np.arange(len(rows)))
            blocks[f"party{k}"] = folder / f"party{k}.parquet"
            frame.to_parquet(blocks[f"party{k}"], index=False)
        declared = Columns([Column(name=name, kind="continuous", lower=-1.0, upper=1.0) for name in names])
        started = time.perf_counter()
        federation = Federation.local(
            blocks,
            key="id",
            columns=declared,
            transport="processes",
            home=folder / "home",
            runs=folder / "runs",
            **options,
        )
        federation.handshake()
        self.start_up = time.perf_counter() - started
        super().__init__(federation)

    def job(self, method: Moments) -> Taken:
        """One run from plan to closing; the error of the result must be that of the stated noise."""
        return self.noisy_job(method)[0]

    def noisy_job(self, method: Moments) -> tuple[Taken, float]:
        """The same, and the standard deviation of the errors over the stated one."""
        result, taken = self.measured(lambda: method.fit(self.federation))
        errors = (result.grams[0] - self.truth)[np.triu_indices(len(result.grams[0]))] / result.noise_sd
        # 6,903 entries for 117 columns: one beyond 7 sd with probability below 2e-8.
        assert np.abs(errors).max() < 7, "the result is further from the truth than its noise can take it"
        assert errors.std() > 0.5, "the result has less noise than it states"
        return taken, float(errors.std())


def whole_multiples(records: int, columns: int) -> NDArray[np.float64]:
    """Uniform multiples of 1/gamma in [-1, 1]: quantising them changes nothing."""
    return np.random.default_rng(0).integers(-GAMMA, GAMMA + 1, size=(records, columns)) / GAMMA


def _peak(pid: int) -> int:
    found = re.search(r"VmHWM:\s+(\d+) kB", Path(f"/proc/{pid}/status").read_text())
    assert found is not None
    return int(found[1]) * 1024


def method() -> Moments:
    return Moments(epsilon=1.0, presence="ignore", constant=False, gamma=GAMMA)


def float64(rows: NDArray[np.float64], *, threads: int | None) -> tuple[float, float]:
    """(clock seconds, CPU seconds) of X.T @ X, the smallest of five."""
    with threadpool_limits(limits=threads):
        taken = [_timed(lambda: rows.T @ rows) for _ in range(5)]
    return min(wall for wall, _ in taken), min(cpu for _, cpu in taken)


def _timed(work: Callable[[], object]) -> tuple[float, float]:
    wall, cpu = time.perf_counter(), time.process_time()
    work()
    return time.perf_counter() - wall, time.process_time() - cpu


# --- MPyC ------------------------------------------------------------------------------------------------------


def mpyc(records: int) -> tuple[float, float]:
    """(clock seconds from input to result, CPU seconds of its three processes)."""
    ended = subprocess.run(
        [sys.executable, "-m", "benchmarks.rivals.mpyc_gram", "-M3", str(records), str(COLUMNS)],
        cwd=REPOSITORY,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=True,
    )
    found = re.search(r"seconds ([0-9.]+) cpu ([0-9.]+)", ended.stdout + ended.stderr)
    assert found is not None, ended.stderr
    return float(found[1]), PARTIES * float(found[2])


# --- the page --------------------------------------------------------------------------------------------------


def main() -> int:
    repetitions, sample = (2, 100) if quick() else (5, 500)
    page = Page("sqm", "The whole SQM job: speed and memory")
    page.say(f"{machine()}. Load average at the start {os.getloadavg()[0]:.1f}.")
    page.say(
        "Limits changed on 2026-11-17, before a run met them: 20 times float64 (before: 60), 300 times MPyC (before:"
        " 50)."
    )
    ratios = [page.draws.get(("noise", MPYC_RECORDS), draw, small_job)["noise ratio"] for draw in range(3)]
    page.say(
        f"Errors of {len(ratios)} jobs of {MPYC_RECORDS:,} records have "
        + ", ".join(f"{ratio:.4f}" for ratio in ratios)
        + " of the stated standard deviation."
    )
    job_good, over_float64 = whole_job(page, RECORDS, repetitions)
    mpyc_good, over_mpyc = against_mpyc(page, sample)
    return page.finish(job_good and mpyc_good, over_float64=f"{over_float64:.0f}", faster_than_mpyc=f"{over_mpyc:.0f}")


def whole_job(page: Page, records: int, repetitions: int) -> tuple[bool, float]:
    with (
        tempfile.TemporaryDirectory() as folder,
        Bench(Path(folder), whole_multiples(records, COLUMNS), parties=PARTIES) as bench,
    ):
        first = bench.job(method())
        taken, one, all_threads = [], [], []
        for _ in range(repetitions):
            one.append(float64(bench.rows, threads=1))
            all_threads.append(float64(bench.rows, threads=None))
            time.sleep(ASLEEP)
            taken.append(bench.job(method()))
        stages = by_stage(bench)
        size, start_up = bench.rows.nbytes, bench.start_up
        primes = len(method().layout(bench.federation.facts, bench.federation.roster).field.primes)
    wall, cpu = min(t.wall for t in taken), min(t.cpu for t in taken)
    walls = [wall / min(w for w, _ in runs) for runs in (one, all_threads)]
    cpus = cpu / min(c for _, c in one)
    party = max(t.party_bytes for t in (first, *taken)) / size
    coordinator = max(t.coordinator_growth for t in (first, *taken)) / size
    page.say(
        f"## {records:,} x {COLUMNS}, {PARTIES} parties, {primes} primes, gamma {GAMMA}\n\n"
        f"Smallest of {repetitions} runs, in turns with numpy. The first job of fresh processes took"
        f" {first.wall:.2f} s and {first.cpu:.2f} CPU-s (modules and compiled kernels are loaded); before it, starting"
        f" the processes, aligning, and reading and checking every value twice took {start_up:.1f} s. Neither counts. A"
        " party holds a file of this size in memory from then on, as numpy and MPyC do."
    )
    page.table(
        ["", "clock s", "CPU s, all processes"],
        [
            ["the job", f"{wall:.2f}", f"{cpu:.2f}"],
            ["float64 `X.T @ X`, one thread", f"{min(w for w, _ in one):.3f}", f"{min(c for _, c in one):.3f}"],
            [
                "float64 `X.T @ X`, all threads",
                f"{min(w for w, _ in all_threads):.3f}",
                f"{min(c for _, c in all_threads):.3f}",
            ],
        ],
    )
    page.say("Where the time goes: one more job, from each stage's first request to its last answer relayed.")
    page.table(["stage", "clock s", "CPU s, all processes", "of it the coordinator's"], stages)
    good = walls[0] <= LIMIT_FLOAT64 and max(party, coordinator) <= LIMIT_MEMORY
    page.say(
        f"On the clock {walls[0]:.0f} x one thread (limit {LIMIT_FLOAT64:.0f} x), {walls[1]:.0f} x all threads; in CPU"
        f" seconds {cpus:.0f} x. With {os.cpu_count()} cores that no other work uses the clock would show about"
        f" {cpus / (os.cpu_count() or 1):.0f} x. Largest resident memory: a party"
        f" {party:.2f} x the {size / 2**20:.0f} MB of the whole float64 matrix, interpreter and libraries included; the"
        f" coordinator, whose process is the benchmark's, grew by {coordinator:.2f} x (limit {LIMIT_MEMORY:.0f} x):"
        f" {'ok' if good else 'short'}."
    )
    return good, walls[0]


def by_stage(bench: Bench) -> list[list[str]]:
    """What each stage of one job takes; the first row also has the plan, the last one closing."""
    rows: list[tuple[str, list[float]]] = []
    last = [time.perf_counter(), bench.cpu(), time.process_time()]

    def note(stage: str) -> None:
        now = [time.perf_counter(), bench.cpu(), time.process_time()]
        rows.append((stage, [after - before for after, before in zip(now, last, strict=True)]))
        last[:] = now

    bench.federation.run(method(), progress=lambda progress: note(progress.stage))
    note("closing")
    names = dict.fromkeys(stage for stage, _ in rows)
    return [
        [name, *(f"{sum(taken[part] for stage, taken in rows if stage == name):.2f}" for part in range(3))]
        for name in names
    ]


def small_job() -> dict[str, float]:
    """The noise of one job, over the stated standard deviation."""
    with (
        tempfile.TemporaryDirectory() as folder,
        Bench(Path(folder), whole_multiples(MPYC_RECORDS, COLUMNS), parties=PARTIES) as bench,
    ):
        return {"noise ratio": bench.noisy_job(method())[1]}


def against_mpyc(page: Page, sample: int) -> tuple[bool, float]:
    with (
        tempfile.TemporaryDirectory() as folder,
        Bench(Path(folder), whole_multiples(MPYC_RECORDS, COLUMNS), parties=PARTIES) as bench,
    ):
        taken = [bench.job(method()) for _ in range(4)][1:]
    wall, cpu = min(t.wall for t in taken), min(t.cpu for t in taken)
    factor = MPYC_RECORDS / sample
    theirs, their_cpu = (seconds * factor for seconds in mpyc(sample))
    good = theirs / wall >= LIMIT_MPYC
    page.say(f"## {MPYC_RECORDS:,} x {COLUMNS} beside MPyC")
    page.table(
        ["", "clock s", "CPU s, all processes"],
        [
            ["the job, with noise, ledger and sealed mail", f"{wall:.2f}", f"{cpu:.2f}"],
            [f"MPyC, measured at {sample} records, times {factor:.0f}", f"{theirs:.0f}", f"{their_cpu:.0f}"],
        ],
    )
    page.say(
        f"{theirs / wall:.0f} x faster on the clock, {their_cpu / cpu:.0f} x in CPU seconds (limit {LIMIT_MPYC:.0f} x):"
        f" {'ok' if good else 'short'}. MPyC shares the three parties' columns over a 61-bit prime and opens one secure"
        " matrix product, on numpy arrays of Python integers (gmpy2 is not installed), without noise. Its work is"
        " linear in the records, and its three processes do the same: CPU seconds are three times those of one."
    )
    return good, theirs / wall


if __name__ == "__main__":
    sys.exit(main())
