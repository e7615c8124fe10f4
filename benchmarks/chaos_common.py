"""Three party processes and a coordinator over mutual TLS, to which anything can happen: the machinery of `chaos`.

The parties dial small proxies, so that a connection can be cut, held up or made silent. The coordinator is a process
too; it says when a chosen request is about to leave, and the fault strikes at that moment or a little later. Processes
come from a fork server that has imported everything, so that one which was killed is soon back; the product itself
never forks. Everything is a simulation under one seed, so that every run of a job must end in the same result.
"""

from __future__ import annotations

import asyncio
import contextlib
import multiprocessing
import os
import shutil
import signal
import socket
import threading
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from colonnade.data.column import Column, Columns
from colonnade.durable import Database
from colonnade.errors import ColonnadeError
from colonnade.federation.coordinator import Federation
from colonnade.federation.home import Home, open_party
from colonnade.federation.messages import Transcript
from colonnade.federation.method import Method
from colonnade.federation.run_folder import RunFolder
from colonnade.federation.stage import JOB
from colonnade.federation.transports import certificates
from colonnade.federation.transports.certificates import AUTHORITY, CERTIFICATE, REQUEST
from colonnade.papers.vfem.method import VFEM
from colonnade.privacy.cost import Cost, compose
from colonnade.privacy.ledger import Ledger
from colonnade.statistics.describe import Describe
from colonnade.statistics.moments import Moments

PARTIES = ("industry", "credit", "market")
SEED = 11
TIMEOUT, PATIENCE, PING = 4.0, 4.0, 1.0
SLACK = 2.0
"""For a machine that others use too: no request may take longer than its time-out and this."""
LIMIT = TIMEOUT + PATIENCE + 20.0
"""No attempt may take longer, whatever happens: every request ends in time, and a job of this size takes seconds."""
ALLOW = ("presence", "exact-moments", "predictor-sums", "residuals", "block-moments")
JOBS: dict[str, Method] = {
    "describe": Describe(epsilon=2.0),
    "moments": Moments(epsilon=5.0),
    "vfem": VFEM(response="y", init="mean", rounds=60, tolerance=1e-2),
}
FAULTS = ("kill party", "kill coordinator", "pause", "cut", "silence", "delay")


def columns() -> Columns:
    names = [f"{party}_{at}" for party in PARTIES for at in range(2)]
    return Columns([Column(name=name, kind="continuous", lower=-6.0, upper=6.0) for name in [*names, "y"]])


def write_blocks(root: Path, n: int = 300) -> dict[str, Path]:
    rng = np.random.default_rng(4)
    keys = [f"F{at:04d}" for at in range(n)]
    y, paths = rng.normal(size=n), {}
    for party in PARTIES:
        x = rng.normal(size=(n, 2))
        y += x @ np.array([0.5, -0.3])
        frame = pd.DataFrame(x.clip(-6, 6), columns=[f"{party}_{at}" for at in range(2)]).assign(firm=keys)
        here = np.ones(n, dtype=bool) if party == "industry" else rng.random(n) < 0.8
        paths[party] = root / f"{party}.csv"
        frame[here].to_csv(paths[party], index=False)
    pd.read_csv(paths["industry"]).assign(y=y.clip(-6, 6)).to_csv(paths["industry"], index=False)
    return paths


def embedded(root: Path, blocks: dict[str, Path]) -> Federation:
    return Federation.local(
        blocks, key="firm", columns=columns(), allow=ALLOW, seed=SEED, home=root / "home", runs=root / "runs"
    )


# --- what runs in the processes ---------------------------------------------------------------------------


def _leave_with_the_study() -> None:
    """End this process when the study has ended, however that was."""

    def wait() -> None:
        parent = multiprocessing.parent_process()
        assert parent is not None
        parent.join()
        os._exit(1)

    threading.Thread(target=wait, daemon=True).start()


def attend(home: Path, port: int, credentials: Path) -> None:
    """A party's process, as `colonnade party serve` runs it, with pings that suit a short study."""
    from colonnade.federation.transports.attend import attend as dial

    _leave_with_the_study()
    party = open_party(home)
    asyncio.run(dial(party.handle, coordinator=f"127.0.0.1:{port}", folder=credentials, ping=PING))


def coordinate(pipe: Connection, root: Path, port: int) -> None:
    """The coordinator's process: runs and resumes jobs, and says "now" before the request that was chosen."""
    from colonnade.federation.transports.network import Network

    _leave_with_the_study()

    class Telling(Network):
        left = 0
        target = ""
        longest = 0.0

        def exchange(self, party: str, data: bytes, *, timeout: float) -> bytes:
            if party == self.target:
                self.left -= 1
                if self.left == 0:
                    pipe.send(("now",))
                    pipe.recv()
            started = time.monotonic()
            try:
                return super().exchange(party, data, timeout=timeout)
            finally:
                self.longest = max(self.longest, time.monotonic() - started)

    network = Telling(PARTIES, address=f"127.0.0.1:{port}", folder=root / "coordinator", patience=PATIENCE, ping=PING)
    roster, facts = Home(path=root / "home" / PARTIES[0]).pinned()
    federation = Federation(
        transport=network, facts=facts, roster=roster, runs=root / "runs", seed=SEED, timeout=TIMEOUT
    )
    while True:
        verb, name, job, target, at = pipe.recv()
        network.target, network.left, network.longest = target, at, 0.0
        try:
            if verb == "run":
                federation.run(JOBS[job], name=name, sure=True)
            else:
                federation.resume(root / "runs" / name)
            pipe.send(("done", network.longest))
        except ColonnadeError as error:
            pipe.send(("error", network.longest, f"{type(error).__name__}: {error}"))


class Proxy:
    """Between one party and the coordinator."""

    def __init__(self, target: int) -> None:
        self._target = target
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self._pairs: list[tuple[socket.socket, socket.socket]] = []
        self._held = 0.0
        self._silent = False
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                near, _ = self._listener.accept()
                try:
                    far = socket.create_connection(("127.0.0.1", self._target), timeout=5)
                    far.settimeout(None)
                except OSError:
                    near.close()
                    continue
                self._pairs.append((near, far))
                for one, other in ((near, far), (far, near)):
                    threading.Thread(target=self._pump, args=(one, other), daemon=True).start()

    def _pump(self, source: socket.socket, sink: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(65536):
                while time.monotonic() < self._held:
                    time.sleep(0.01)
                if not self._silent:
                    sink.sendall(data)
        for one in (source, sink):
            with contextlib.suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)

    def hold(self, seconds: float) -> None:
        """Nothing passes for a while, then everything does."""
        self._held = time.monotonic() + seconds

    def silence(self, seconds: float) -> None:
        """Bytes vanish and nobody is told, as over a half-open connection; at the end it is cut."""
        self._silent = True
        time.sleep(seconds)
        self.cut()
        self._silent = False

    def cut(self) -> None:
        pairs, self._pairs = self._pairs, []
        for pair in pairs:
            for one in pair:
                with contextlib.suppress(OSError):
                    one.shutdown(socket.SHUT_RDWR)
                one.close()

    def close(self) -> None:
        self._listener.close()
        self.cut()


# --- the stage --------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Fault:
    """What happens to whom, when the party's request number `at` is about to leave, or `late` seconds later; `lasts` is
    how long a pause, a delay or a silence takes, or how long a killed process stays away."""

    kind: str
    job: str
    target: str
    at: int
    late: float
    lasts: float


@dataclass(kw_only=True)
class Outcome:
    fault: Fault
    struck: bool = False
    attempts: int = 0
    seconds: float = 0.0
    slowest: float = 0.0
    longest: float = 0.0
    """Seconds of the slowest attempt, and of the slowest request."""
    errors: list[str] = field(default_factory=list)
    wrong: list[str] = field(default_factory=list)
    """What must not happen; empty if all is well."""


class Stage:
    """The processes, the proxies, and the results of undisturbed runs."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self._strikes: list[threading.Thread] = []
        self._context = multiprocessing.get_context("forkserver")
        self._context.set_forkserver_preload(["benchmarks.chaos_common"])
        blocks = write_blocks(root)
        self.reference: dict[str, dict[str, Any]] = {}
        self.requests: dict[str, Counter[str]] = {}
        with embedded(root / "reference", blocks) as undisturbed:
            for name, method in JOBS.items():
                _, run = undisturbed.run(method, name=name, sure=True)
                self.reference[name] = run.read_json("result.json")
                crossed = Transcript(Database(run.path / "transcript.db", read_only=True), create=False).rows()
                self.requests[name] = Counter(row.body["peer"] for row in crossed if row.body["direction"] == "out")
        embedded(root, blocks).close()  # writes the parties' folders
        self._issue()
        with socket.create_server(("127.0.0.1", 0)) as free:
            self._port = int(free.getsockname()[1])
        self.proxies = {party: Proxy(self._port) for party in PARTIES}
        self.parties: dict[str, multiprocessing.process.BaseProcess] = {}
        self._coordinator: multiprocessing.process.BaseProcess | None = None
        for party in PARTIES:
            self._start_party(party)
        self._start_coordinator()

    def _issue(self) -> None:
        """Certificates for everybody."""
        certificates.make_authority(self.root / "authority", name="chaos")
        for name in ("coordinator", *PARTIES):
            party = name in PARTIES
            key = Home(path=self.root / "home" / name).identity().public if party else None
            folder = self.root / (f"credentials-{name}" if party else name)
            hosts = () if party else ("127.0.0.1",)
            certificates.make_request(folder, name=name, organisation=name, sealing_key=key, hosts=hosts)
            role: certificates.Role = "party" if party else "coordinator"
            certificates.sign(self.root / "authority", folder / REQUEST, folder / CERTIFICATE, role=role)
            shutil.copy(self.root / "authority" / AUTHORITY, folder / AUTHORITY)

    def _start_party(self, party: str) -> None:
        arguments = (self.root / "home" / party, self.proxies[party].port, self.root / f"credentials-{party}")
        process = self._context.Process(target=attend, args=arguments, daemon=True)
        process.start()
        self.parties[party] = process

    def _start_coordinator(self) -> None:
        self._pipe, theirs = self._context.Pipe()
        self._coordinator = self._context.Process(target=coordinate, args=(theirs, self.root, self._port), daemon=True)
        self._coordinator.start()
        theirs.close()

    def close(self) -> None:
        for process in (*self.parties.values(), self._coordinator):
            if process is not None and process.is_alive():
                with contextlib.suppress(ProcessLookupError):
                    os.kill(process.pid or 0, signal.SIGCONT)
                process.kill()
                process.join(timeout=10)
        for proxy in self.proxies.values():
            proxy.close()

    # one run

    def run(self, name: str, fault: Fault) -> Outcome:
        """The job until it is done, with the fault in its first attempt."""
        outcome, started = Outcome(fault=fault), time.monotonic()
        verb, at = "run", fault.at
        while outcome.attempts < 8:
            outcome.attempts += 1
            begun = time.monotonic()
            end = self._attempt((verb, name, fault.job, fault.target, at), fault, outcome)
            outcome.slowest = max(outcome.slowest, time.monotonic() - begun)
            self._mend()
            if end in ("done", "hang"):
                break
            verb, at = "resume" if (self.root / "runs" / name / "job.json").is_file() else "run", 0
        else:
            outcome.wrong.append("never done")
        outcome.seconds = time.monotonic() - started
        if not outcome.wrong:
            outcome.wrong += self._check(name, fault.job)
        return outcome

    def _attempt(self, command: tuple[Any, ...], fault: Fault, outcome: Outcome) -> str:
        deadline = time.monotonic() + LIMIT
        try:
            self._pipe.send(command)
            while self._pipe.poll(max(deadline - time.monotonic(), 0)):
                told = self._pipe.recv()
                if told[0] == "now":
                    outcome.struck = True
                    strike = threading.Thread(target=self._strike, args=(fault,))
                    strike.start()
                    if fault.late == 0:
                        strike.join(timeout=0.05)
                    self._pipe.send("go on")
                    self._strikes.append(strike)
                    continue
                outcome.longest = max(outcome.longest, told[1])
                if told[1] > TIMEOUT + SLACK:
                    outcome.wrong.append(f"a request took {told[1]:.1f} s, beyond its time-out of {TIMEOUT:g} s")
                if told[0] == "error":
                    outcome.errors.append(told[2])
                return str(told[0])
        except (EOFError, OSError):
            outcome.errors.append("the coordinator was killed")
            assert self._coordinator is not None
            self._coordinator.join(timeout=10)
            return "killed"
        outcome.wrong.append(f"an attempt took more than {LIMIT:g} s")
        return "hang"

    def _strike(self, fault: Fault) -> None:
        time.sleep(fault.late)
        process, proxy = self.parties[fault.target], self.proxies[fault.target]
        if fault.kind == "kill party":
            process.kill()
            process.join()
            time.sleep(fault.lasts)
            self._start_party(fault.target)
        elif fault.kind == "kill coordinator":
            assert self._coordinator is not None
            self._coordinator.kill()
        elif fault.kind == "pause":
            os.kill(process.pid or 0, signal.SIGSTOP)
            time.sleep(fault.lasts)
            os.kill(process.pid or 0, signal.SIGCONT)
        elif fault.kind == "cut":
            proxy.cut()
        elif fault.kind == "silence":
            proxy.silence(fault.lasts)
        else:
            proxy.hold(fault.lasts)

    def _mend(self) -> None:
        """What an operator does before resuming: wait for the fault to pass, and start again what is dead."""
        for strike in self._strikes:
            strike.join()
        self._strikes.clear()
        for party, process in self.parties.items():
            if not process.is_alive():
                self._start_party(party)
        assert self._coordinator is not None
        if not self._coordinator.is_alive():
            self._pipe.close()
            self._start_coordinator()

    # afterwards

    def _check(self, name: str, job: str) -> list[str]:
        """Everything that is wrong with a finished run."""
        run = RunFolder.open(self.root / "runs" / name)
        wrong = []
        if run.job["state"] != "done" or run.read_json("result.json") != self.reference[job]:
            wrong.append("another result than without the fault")
        identity = run.job["job"]
        for party in PARTIES:
            with contextlib.closing(Database(self.root / "home" / party / "party.db", read_only=True)) as database:
                wrong += [f"{party}: {one}" for one in _record(database, party, identity, run)]
        return wrong


def _record(database: Database, party: str, job: str, run: RunFolder) -> Iterator[str]:
    """What is wrong with a party's own record of a job."""
    ledger, transcript = Ledger(database), Transcript(database, create=False)
    try:
        ledger.verify()
        transcript.verify()
    except ColonnadeError as error:
        yield str(error)
    debits = Counter(row.body["seq"] for row in ledger.chain.rows(job=job, kind="debit"))
    releases = Counter(row.body["seq"] for row in transcript.rows(job=job) if row.body["kind"] == "release")
    if max([*debits.values(), *releases.values()], default=0) > 1:
        yield "a request was debited or released twice"
    if set(debits) != set(releases):
        yield "a release without a debit, or a debit without a release"
    reserved = compose(Cost.from_dict(row.body["cost"]) for row in ledger.chain.rows(job=job, kind="reserve"))
    planned = compose(cost.with_joint(lambda joint: joint.replace(JOB, job)) for cost in run.plan().costs(party))
    if reserved != planned:
        yield "something else was reserved than the plan says"
