"""A coordinator that stays: parties keep their connection, jobs wait in a queue, and a run goes on by itself.

queue/NAME.json          a job that was asked for: method and options; it stays until the job has ended
queue/ended/NAME.json    one that has ended, with why if it has failed; its run folder is runs/NAME
queue/status.json        what the service does, for those who look; queue/lock is held while it runs

One job runs at a time. One that waits for an operator or for a party does not hold up the others.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import secrets
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from colonnade.codec import plain
from colonnade.durable import check_name, private_folder, whole_file
from colonnade.errors import AwaitingApproval, ColonnadeError, PartyLost, RosterError, RunError, SchemaError
from colonnade.federation.catalogue import CATALOGUE
from colonnade.federation.config import Consortium, ConsortiumFile, CoordinatorFile
from colonnade.federation.coordinator import Federation
from colonnade.federation.job import CURED_BY_RESUMING, Progress
from colonnade.federation.method import Method
from colonnade.federation.plan import Plan
from colonnade.federation.run_folder import RunFolder
from colonnade.federation.transports.certificates import AUTHORITY, AUTHORITY_KEY, CERTIFICATE, Revoked, renew
from colonnade.federation.transports.network import Network

FIRST_PAUSE, LONGEST_PAUSE = 2.0, 30.0
"""Seconds until a job that waits is tried again; they double."""


@dataclass(frozen=True, kw_only=True)
class State:
    """What a job in the queue does: queued, running, waiting, failed or done, and a sentence on it."""

    state: str
    sentence: str = ""
    progress: Mapping[str, Any] | None = None


class Queue:
    """The folder through which jobs reach the service; who can write there may ask.

    Example
    -------
    `Queue.of("coordinator.toml").ask(Describe(epsilon=1.0))`
    """

    def __init__(self, path: Path) -> None:
        self.path = path

    def __repr__(self) -> str:
        served = "served" if self.served else "not served now"
        return f"<Queue in {self.path}: {len(self.waiting())} jobs, {served}>"

    @classmethod
    def of(cls, file: str | Path) -> Queue:
        """That of a coordinator.toml.

        Parameters
        ----------
        file : a coordinator.toml.

        Returns
        -------
        Its queue.
        """
        return cls(CoordinatorFile.from_toml(Path(file)).queue)

    @property
    def served(self) -> bool:
        """Whether a service works on it now."""
        if not (self.path / "lock").is_file():
            return False
        with (self.path / "lock").open("ab") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
            except BlockingIOError:
                return True
        return False

    @contextlib.contextmanager
    def locked(self) -> Iterator[None]:
        """Serve it: no other process can meanwhile."""
        private_folder(self.path / "ended")
        with (self.path / "lock").open("ab") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise RunError(f"another coordinator already serves {self.path}; stop it first.") from None
            yield

    def ask(self, method: Method[Any], *, name: str | None = None, sure: bool = False) -> str:
        """Put a job into the queue; the name of its run folder. If its plan says that it will not work, it is not run,
        unless one is `sure`.

        Parameters
        ----------
        method : with its options.
        name : of the run folder; one is made of the method and the time by default.
        sure : run it also if its plan says that it will not work.

        Returns
        -------
        The name of the job's run folder, by which `state` and `end` know it.
        """
        return self.put(method.name, method.options(), name=name, sure=sure)

    def put(
        self,
        method: str,
        options: Mapping[str, Any],
        *,
        name: str | None = None,
        sure: bool = False,
        again: bool = False,
    ) -> str:
        """`again`: a run that has failed, or was begun without the service."""
        name = name or f"{method}-{time.strftime('%Y%m%d-%H%M%S')}-{secrets.token_hex(2)}"
        check_name(name, "a run", error=RunError)
        private_folder(self.path / "ended")
        ended = self.path / "ended" / f"{name}.json"
        if again:
            ended.unlink(missing_ok=True)
        if self._file(name).exists() or ended.exists():
            raise RunError(f"a job called {name} was already asked for; choose another name.")
        stated = {"method": method, "options": plain(options), "sure": sure, "asked": time.time()}
        self._write(self._file(name), stated)
        return name

    def waiting(self) -> list[str]:
        """The jobs that have not ended, the oldest first."""
        asked = {path.stem: self._read(path)["asked"] for path in self.path.glob("*.json") if path.stem != "status"}
        return sorted(asked, key=lambda name: (asked[name], name))

    def job(self, name: str) -> dict[str, Any]:
        """One that has not ended."""
        return self._read(self._file(name))

    def ended(self, most: int = 20) -> list[str]:
        """The jobs that ended last, the newest first.

        Parameters
        ----------
        most : how many.

        Returns
        -------
        Their names.
        """
        files = sorted((self.path / "ended").glob("*.json"), key=lambda path: path.stat().st_mtime, reverse=True)
        return [path.stem for path in files[:most]]

    def end(self, name: str, *, failed: str = "") -> None:
        """Take a job out of the queue.

        Parameters
        ----------
        name : what `ask` has returned.
        failed : why, if it has failed.
        """
        if not self._file(name).is_file():
            raise RunError(f"no job called {name} is in the queue; `colonnade coordinator jobs` lists them.")
        self._write(self.path / "ended" / f"{name}.json", {**self.job(name), "failed": failed, "ended": time.time()})
        self._file(name).unlink()

    def state(self, name: str) -> State:
        """As the service last said, or as the job has ended.

        Parameters
        ----------
        name : what `ask` has returned.

        Returns
        -------
        `state` in a word and a `sentence`: whom or what the job waits for.
        """
        ended = self.path / "ended" / f"{name}.json"
        if ended.is_file():
            failed = str(self._read(ended)["failed"])
            return State(state="failed" if failed else "done", sentence=failed)
        stated = self.status().get("jobs", {}).get(name)
        return State(state="queued") if stated is None else State(**stated)

    def status(self) -> dict[str, Any]:
        """What the service last said of each job."""
        path = self.path / "status.json"
        return self._read(path) if path.is_file() else {}

    def tell(self, status: Mapping[str, Any]) -> None:
        """What the service says of its jobs."""
        self._write(self.path / "status.json", status)

    def _file(self, name: str) -> Path:
        return self.path / f"{name}.json"

    def _read(self, path: Path) -> dict[str, Any]:
        try:
            stated = json.loads(path.read_text(encoding="utf-8"))
        except (OSError, ValueError) as error:
            raise RunError(f"{path} cannot be read ({error}); take it away.") from error
        if not isinstance(stated, dict):
            raise RunError(f"{path} is not a JSON object; take it away.")
        return stated

    def _write(self, path: Path, stated: Mapping[str, Any]) -> None:
        with whole_file(path) as partial:
            partial.write_text(json.dumps(stated, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")


def planned(
    file: CoordinatorFile, method: type[Method[Any]], options: Mapping[str, Any]
) -> tuple[Method[Any], Plan | None]:
    """A method for the consortium of a coordinator.toml, and its plan, which needs members that are connected and
    records that are lined up (None: they are not yet)."""
    consortium = Consortium.from_toml(file.consortium, authority=file.credentials / AUTHORITY)
    stated = {**options, "capacity": consortium.capacities()} if method.makes_cohort else options
    ready = method.from_options(stated)
    n = Queue(file.queue).status().get("n")
    if n is None or (n == 1 and not method.makes_cohort):
        return ready, None
    return ready, ready.plan(consortium.facts(n), consortium.roster)


class CoordinatorService:
    """Serves the consortium of a coordinator.toml until it is interrupted.

    finished: what is done with a run that has ended, a report say. said: gets a line whenever something changes.
    """

    def __init__(
        self,
        path: Path,
        *,
        finished: Callable[[RunFolder, Sequence[str]], object] = lambda run, remarks: None,
        said: Callable[[str], None] = lambda line: None,
    ) -> None:
        self.path, self.file = path, CoordinatorFile.from_toml(path)
        self.queue = Queue(self.file.queue)
        self._finished, self._said = finished, said
        self._states: dict[str, State] = {}
        self._due: dict[str, tuple[float, float, str]] = {}
        """{job: (when it is tried again, the pause before that, what it waits for)}"""
        self._connected: tuple[str, ...] | None = None
        self._n: int | None = None
        self._last_trouble = ""
        self._status: dict[str, Any] = {}

    def serve(self, *, every: float = 1.0) -> None:
        """Until KeyboardInterrupt; what was under way then goes on at the next start."""
        with self.queue.locked():
            self._renewed()
            network = self._network()
            try:
                self._said(f"serving at {self.file.address}; ask with `colonnade VERB -f {self.path}`")
                while True:
                    try:
                        self.once(network)
                        if self._renewed():
                            network.close()
                            network = self._network()
                    except ColonnadeError as error:  # an expired certificate, a damaged file: someone mends it
                        self._trouble(str(error))
                    time.sleep(every)
            finally:
                network.close()

    def _trouble(self, sentence: str) -> None:
        if sentence != self._last_trouble:
            self._last_trouble = sentence
            self._said(f"this must be mended: {sentence}")

    def once(self, network: Network) -> None:
        """Try every job that is due."""
        agreed = self._agreed()
        lacking = [party for party in agreed.roster.names if party not in network.connected]
        self._look_around(network, lacking)
        for name in self.queue.waiting():
            if name in self._due and time.monotonic() < self._due[name][0]:
                continue
            if lacking:
                self._tell(name, State(state="waiting", sentence=f"waits for {', '.join(lacking)} to connect"))
            else:
                self._attempt(name, network, agreed)
        for name in set(self._states) - set(self.queue.waiting()):
            del self._states[name]
        self._write()

    # --- a job ------------------------------------------------------------------------------------------------

    def _attempt(self, name: str, network: Network, agreed: Consortium) -> None:
        try:
            federation = Federation.over(network, self.file, agreed, origin=str(self.path.absolute()))
        except (PartyLost, RosterError) as error:  # a party may still be adopting the cohort of an alignment
            self._later(name, f"is tried again: {error}")
            return
        self._n = federation.facts.n
        try:
            method = self._method(name, agreed)
            if federation.facts.n == 1 and not method.makes_cohort:
                self._later(name, "waits until the records are lined up: ask for `colonnade align`")
                return
            if name not in self._due:  # else it is only looked at again, and says what it waits for until it goes on
                self._tell(name, State(state="running"))
            run = self._run(name, federation, method)
            self._finished(run, federation.remarks)
        except AwaitingApproval as error:
            self._later(name, str(error).partition(";")[0])
        except CURED_BY_RESUMING as error:
            self._later(name, f"is tried again: {error}")
        except ColonnadeError as error:
            self._end(name, str(error))
        except Exception as error:  # a mistake in one method must not end the service of the others
            self._end(name, f"unexpected {type(error).__name__}: {error}. This is a bug.")
        else:
            self._end(name, "")

    def _run(self, name: str, federation: Federation, method: Method[Any]) -> RunFolder:
        """Begun, or gone on with; a run that only lacks its report is only returned."""
        folder = self.file.runs / name
        if not (folder / "job.json").is_file():
            sure = bool(self.queue.job(name).get("sure"))
            return federation.run(method, name=name, progress=self._progress(name), sure=sure)[1]
        run = RunFolder.open(folder)
        if run.job["state"] == "done":
            return run
        return federation.resume(folder, progress=self._progress(name))[1]

    def _method(self, name: str, agreed: Consortium) -> Method[Any]:
        job = self.queue.job(name)
        if job["method"] not in CATALOGUE.names:
            raise SchemaError(f"{name} names method {job['method']!r}, which this installation does not have.")
        options = dict(job["options"])
        if CATALOGUE.load(job["method"]).makes_cohort:
            options["capacity"] = agreed.capacities()
        return CATALOGUE.make(job["method"], options)

    def _progress(self, name: str) -> Callable[[Progress], None]:
        def show(now: Progress) -> None:
            self._states[name] = State(state="running", progress=asdict(now))
            self._write()

        return show

    def _later(self, name: str, sentence: str) -> None:
        _, earlier, waited_for = self._due.get(name, (0.0, 0.0, ""))
        pause = min(2 * earlier, LONGEST_PAUSE) if sentence == waited_for else FIRST_PAUSE
        self._due[name] = (time.monotonic() + pause, pause, sentence)
        self._tell(name, State(state="waiting", sentence=sentence), again=sentence == waited_for)

    def _end(self, name: str, failed: str) -> None:
        # Another job may have waited for this one, for a cohort say: all are due now.
        self._due.pop(name, None)
        self._due = {job: (0.0, pause, what) for job, (_, pause, what) in self._due.items()}
        with contextlib.suppress(RunError):  # it was taken out meanwhile
            self.queue.end(name, failed=failed)
        self._states.pop(name, None)
        self._said(f"{name} has failed: {failed}" if failed else f"{name} is done: {self.file.runs / name}")

    def _tell(self, name: str, state: State, *, again: bool = False) -> None:
        earlier = self._states.get(name)
        if earlier is None or (earlier.state, earlier.sentence) != (state.state, state.sentence):
            if (state.state == "waiting" and not again) or earlier is None:
                self._said(f"{name} {state.sentence or state.state}")
            self._states[name] = state
            self._write()

    # --- the network ------------------------------------------------------------------------------------------

    def _agreed(self) -> Consortium:
        return Consortium.from_toml(self.file.consortium, authority=self.file.credentials / AUTHORITY)

    def _network(self) -> Network:
        members = self._agreed().roster.names
        return Network(
            members,
            address=self.file.address,
            folder=self.file.credentials,
            revoked=self.file.revoked,
            members=ConsortiumFile.from_toml(self.file.consortium).certificates,
        )

    def _look_around(self, network: Network, lacking: Sequence[str]) -> None:
        connected = network.connected
        if connected != self._connected:
            self._connected = connected
            there = f"connected: {', '.join(connected) or 'none'}"
            self._said(f"{there}; not connected: {', '.join(lacking)}" if lacking else there)
            if not lacking:
                self._due.clear()
        if self._n is None and not lacking:
            with contextlib.suppress(PartyLost, RosterError):
                self._n = Federation.over(network, self.file, self._agreed()).facts.n

    def _write(self) -> None:
        status = {
            "process": os.getpid(),
            "n": self._n,
            "connected": list(self._connected or ()),
            "jobs": {name: asdict(state) for name, state in self._states.items()},
        }
        if status != self._status:
            self._status = status
            self.queue.tell({**status, "time": time.time()})

    def _renewed(self) -> bool:
        """Whether the coordinator's own certificate was renewed, which needs the authority's folder on this machine;
        the members' are then renewed too, for them to fetch."""
        if self.file.authority is None or not (self.file.authority / AUTHORITY_KEY).is_file():
            return False
        own = self.file.credentials / CERTIFICATE
        revoked = Revoked(self.file.revoked)
        renewed = []
        for path in (*ConsortiumFile.from_toml(self.file.consortium).certificates.values(), own):
            owner = renew(self.file.authority, path, revoked)
            if owner is not None:
                renewed.append(path)
                self._said(f"the certificate of {owner.name} is renewed; it ends {owner.expires:%Y-%m-%d %H:%M} UTC")
        return own in renewed
