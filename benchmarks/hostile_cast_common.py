"""The cast of the hostile study: parties on one of the transports, which play one case after another.

Their processes are started once, and put back to their first state before each case. On the network proposals are
signed, and the parties verify the signature, as those of a consortium do.
"""

from __future__ import annotations

import contextlib
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, Literal

from benchmarks.common import REPOSITORY
from benchmarks.hostile_party_common import MARK, watching
from colonnade.federation import local, wire
from colonnade.federation.coordinator import Federation
from colonnade.federation.requester import Signer
from colonnade.federation.transports import loopback
from colonnade.federation.transports.certificates import AUTHORITY
from colonnade.federation.transports.loopback import Loopback
from colonnade.federation.transports.processes import Processes

TransportName = Literal["embedded", "processes", "network"]
TRANSPORTS: tuple[TransportName, ...] = ("embedded", "processes", "network")
SEED = 11
SECONDS = 120.0
"""For one answer."""
START = "start"
FORGED = "2026-11-18 00:00:00,000 WARNING forged"
"""What a coordinator would like to write into a party's log: a line of its own."""


@dataclass(frozen=True)
class Look:
    """A party as the study sees it between two messages (`hostile_party_common`)."""

    records: Any
    process: int
    peak: int
    broken: str


class Cast:
    """`federation` makes the parties in a folder; `prepare` plants a bug in their processes, for tests."""

    def __init__(
        self, federation: Callable[..., Federation], transport: TransportName = "embedded", *, prepare: str = ""
    ) -> None:
        self.transport_name = transport
        self._opened = contextlib.ExitStack()
        root = Path(self._opened.enter_context(tempfile.TemporaryDirectory(prefix="hostile-")))
        self.home, self._runs, self._run = root / "home", root / "runs", 0
        if transport == "embedded":
            self._opened.enter_context(watching())
        options = {"coordinator": "loopback"} if transport == "network" else {}
        with _watched_processes(prepare):
            self.federation = federation(root, seed=SEED, transport=transport, **options)
        self._opened.callback(self.federation.close)
        self.transport = self.federation.transport
        self.parties = tuple(self.transport.parties)
        self._authority = ""
        if transport == "network":
            self._authority = str(self.home / "network" / "authority" / AUTHORITY)
            self.federation._signer = Signer(self.home / "network" / "coordinator")
        self.save(START)
        self.processes = {name: self.look(name).process for name in self.parties}

    def close(self) -> None:
        if self.transport_name == "embedded":  # the copies are in this process
            self.each("forget")
        self._opened.close()

    def say(self, name: str, data: bytes) -> bytes:
        return self.transport.exchange(name, data, timeout=SECONDS)

    def control(self, name: str, do: str, **stated: Any) -> Any:
        answer = wire.decode(self.say(name, MARK + wire.encode({"do": do, **stated})))
        if "failed" in answer:
            raise RuntimeError(f"the study could not {do} {name}: {answer['failed']}")
        return answer["done"]

    def each(self, do: str, *names: str, **stated: Any) -> dict[str, Any]:
        return {name: self.control(name, do, **stated) for name in names or self.parties}

    def save(self, slot: str, *names: str) -> None:
        self.each("save", *names, slot=slot)

    def restore(self, slot: str, *names: str) -> None:
        self.each("restore", *names, slot=slot)

    def look(self, name: str, since: int = -1) -> Look:
        """`since`: the ledger's rows at an earlier look; it is verified if it has others now."""
        return Look(**self.control(name, "look", since=since))

    def allow(self, names: tuple[str, ...]) -> None:
        self.each("rule", allow=list(names), authority=self._authority)

    def fresh_runs(self) -> None:
        """The next run begins without the heads of ledgers that were put back since."""
        self._run += 1
        self.federation.runs, self.federation._greeted = self._runs / str(self._run), False

    def forged(self) -> list[str]:
        """Parties in whose logs a message has written a line of its own."""
        logs = {name: self.home / name / "log.txt" for name in self.parties}
        return [name for name, log in logs.items() if f"\n{FORGED}" in log.read_text(encoding="utf-8")]


@contextlib.contextmanager
def _watched_processes(prepare: str) -> Iterator[None]:
    """Federations that are made now start their parties as watched ones."""

    def command(transport: str) -> list[str]:
        return [sys.executable, "-m", "benchmarks.hostile_party_common", transport, prepare]

    def beside(environment: Mapping[str, str]) -> dict[str, str]:
        return {**environment, "PYTHONPATH": f"{REPOSITORY}:{environment.get('PYTHONPATH', '')}"}

    class WatchedProcesses(Processes):
        def __init__(self, homes: Mapping[str, Path]) -> None:
            super().__init__(homes, command=command("processes"))

        def _launch(self, party: str, *, log: IO[bytes], environment: Mapping[str, str]) -> subprocess.Popen[bytes]:
            return super()._launch(party, log=log, environment=beside(environment))

    class WatchedLoopback(Loopback):
        def _launch(self, party: str, *, log: IO[bytes], environment: Mapping[str, str]) -> subprocess.Popen[bytes]:
            dialled = [str(self._homes[party]), "--coordinator", f"127.0.0.1:{self.dialled(party)}"]
            own = ["--credentials", str(self._folder / f"party-{party}")]
            return subprocess.Popen(
                [*command("network"), *dialled, *own],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=beside(environment),
            )

    processes, network = local.Processes, loopback.Loopback
    local.Processes, loopback.Loopback = WatchedProcesses, WatchedLoopback  # type: ignore[attr-defined, misc]
    try:
        yield
    finally:
        local.Processes, loopback.Loopback = processes, network  # type: ignore[attr-defined, misc]
