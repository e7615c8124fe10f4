"""Messages that come twice or too late, a disk that is really full, a clock that jumps: nothing is wrong afterwards."""

from __future__ import annotations

import contextlib
import os
import random
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from colonnade.durable import Database
from colonnade.errors import PartyLost, RunError, StorageError
from colonnade.federation.messages import Request
from colonnade.federation.stage import JOB
from colonnade.federation.transports import Transport
from colonnade.privacy.cost import compose
from colonnade.privacy.ledger import Ledger
from colonnade.statistics.describe import Describe
from colonnade.statistics.moments import Moments
from support.small import three_parties

PARTIES = ("clinic", "court", "bank")


def undisturbed(tmp_path: Path, method: Any) -> dict[str, Any]:
    with three_parties(tmp_path / "undisturbed", seed=3, allow=("presence",)) as federation:
        return federation.run(method)[1].read_json("result.json")


def all_is_well(tmp_path: Path, run: Any) -> None:
    """Ledgers verify, every request was debited once and released once, and the debits are the plan's."""
    job = run.job["job"]
    for party in PARTIES:
        with contextlib.closing(Database(tmp_path / "home" / party / "party.db", read_only=True)) as database:
            ledger = Ledger(database)
            ledger.verify()
            planned = compose(run.plan().costs(party))
            assert ledger.debited(job) == planned.with_joint(lambda joint: joint.replace(JOB, job))
            seen = [row.body["seq"] for row in ledger.chain.rows(job=job, kind="debit")]
            assert len(seen) == len(set(seen))


class Unruly:
    """Delivers every question twice, and after it a random earlier one once more; the answers must not change."""

    def __init__(self, inner: Transport) -> None:
        self.inner, self.parties = inner, inner.parties
        self.earlier: dict[str, list[tuple[bytes, bytes]]] = {party: [] for party in inner.parties}
        self._random = random.Random(1)
        self.repeated = 0

    def exchange(self, party: str, data: bytes, *, timeout: float) -> bytes:
        before = self.earlier[party]
        answer = self.inner.exchange(party, data, timeout=timeout)
        if Request.decode(data).kind not in ("propose", "ask"):
            return answer
        assert self.inner.exchange(party, data, timeout=timeout) == answer
        if before:
            late, told = self._random.choice(before)
            assert self.inner.exchange(party, late, timeout=timeout) == told
            self.repeated += 1
        before.append((data, answer))
        return answer

    def where(self, party: str) -> str:
        return self.inner.where(party)

    def close(self) -> None:
        self.inner.close()


@pytest.mark.parametrize("method", [Describe(epsilon=1.0), Moments(epsilon=5.0)], ids=["describe", "moments"])
def test_duplicate_and_reordered_messages(tmp_path: Path, method: Any) -> None:
    expected = undisturbed(tmp_path, method)
    with three_parties(tmp_path, seed=3, allow=("presence",)) as federation:
        federation.handshake()
        unruly = Unruly(federation.transport)
        federation.transport = unruly
        _, run = federation.run(method)
        assert unruly.repeated > 3
    assert run.read_json("result.json") == expected
    all_is_well(tmp_path, run)


@contextlib.contextmanager
def small_disk(path: Path, size: str) -> Iterator[None]:
    path.mkdir(parents=True)
    made = subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", path], capture_output=True, text=True)
    if made.returncode:
        pytest.skip(f"a small disk needs the right to mount one ({made.stderr.strip()})")
    try:
        yield
    finally:
        subprocess.run(["umount", "--lazy", path], check=True)


@pytest.mark.skipif(os.geteuid() != 0, reason="a small disk needs root")
@pytest.mark.parametrize("full", ["party", "coordinator"])
def test_a_disk_that_is_really_full(tmp_path: Path, full: str) -> None:
    """The run stops and says whose disk; when there is room again it resumes, and nothing was debited twice."""
    method = Moments(epsilon=5.0)
    expected = undisturbed(tmp_path, method)
    disk = tmp_path / "home" / "court" if full == "party" else tmp_path / "runs"
    with small_disk(disk, "2m"), three_parties(tmp_path, seed=3, allow=("presence",)) as federation:
        federation.handshake()

        def fill(progress: Any) -> None:
            if progress.rounds == 1:
                _fill(disk)

        with pytest.raises(StorageError, match=r"court|free disk space"):
            federation.run(method, name="run", progress=fill)
        (disk / "filler").unlink()
        _, run = federation.resume(tmp_path / "runs" / "run")
        assert run.read_json("result.json") == expected
        all_is_well(tmp_path, run)


def _fill(disk: Path) -> None:
    with contextlib.suppress(OSError), (disk / "filler").open("wb", buffering=0) as file:
        while True:
            file.write(bytes(512))


def test_a_clock_that_jumps(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Days ahead and back at every look: no time-out, the same result, times in the ledger never run backwards."""
    method = Moments(epsilon=5.0)
    expected = undisturbed(tmp_path, method)
    now, jump = time.time, random.Random(2)
    with three_parties(tmp_path, seed=3, allow=("presence",), timeout=60.0) as federation:
        monkeypatch.setattr(time, "time", lambda: now() + jump.uniform(-1e6, 1e6))
        _, run = federation.run(method)
    assert run.read_json("result.json") == expected
    all_is_well(tmp_path, run)
    for party in PARTIES:
        with contextlib.closing(Database(tmp_path / "home" / party / "party.db", read_only=True)) as database:
            times = [row.body["time"] for row in Ledger(database).chain.rows()]
            assert times == sorted(times)


def test_an_answer_that_came_too_late_is_not_lost(tmp_path: Path) -> None:
    """The party worked, debited and answered; nobody waited any more. The resumed run gets those bytes."""
    method = Describe(epsilon=1.0)
    expected = undisturbed(tmp_path, method)
    with three_parties(tmp_path, seed=3) as federation:
        federation.handshake()
        inner = federation.transport
        federation.transport = TooLate(inner)
        with pytest.raises(PartyLost, match="court"):
            federation.run(method, name="run")
        federation.transport = inner
        _, run = federation.resume(tmp_path / "runs" / "run")
    assert run.read_json("result.json") == expected
    all_is_well(tmp_path, run)


class TooLate(Unruly):
    """What `court` answers to a question reaches nobody."""

    def exchange(self, party: str, data: bytes, *, timeout: float) -> bytes:
        answer = self.inner.exchange(party, data, timeout=timeout)
        if party == "court" and Request.decode(data).kind == "ask":
            raise PartyLost(f"party {party!r} did not answer within {timeout:g} s.")
        return answer


class LostAtTheEnd(Unruly):
    """One party is lost when it is told to close; another has closed and forgotten its replies by then."""

    def exchange(self, party: str, data: bytes, *, timeout: float) -> bytes:
        if party == "court" and Request.decode(data).kind == "close":
            raise PartyLost(f"party {party!r} ended before it answered.")
        return self.inner.exchange(party, data, timeout=timeout)


def test_a_loss_while_the_job_is_being_closed(tmp_path: Path) -> None:
    method = Describe(epsilon=1.0)
    expected = undisturbed(tmp_path, method)
    with three_parties(tmp_path, seed=3) as federation:
        inner = federation.transport
        federation.transport = LostAtTheEnd(inner)
        for _ in range(2):  # again while it is still away
            with pytest.raises(PartyLost, match="court"):
                if (tmp_path / "runs" / "run").exists():
                    federation.resume(tmp_path / "runs" / "run")
                else:
                    federation.run(method, name="run")
        federation.transport = inner
        _, run = federation.resume(tmp_path / "runs" / "run")
        assert run.job["state"] == "done"
        assert run.read_json("result.json") == expected
        assert set(run.read_json("costs.json")["heads"]) == set(PARTIES)
        all_is_well(tmp_path, run)
        with pytest.raises(RunError, match="is finished"):
            federation.resume(tmp_path / "runs" / "run")


def test_a_coordinator_killed_before_it_proposed_anything(tmp_path: Path) -> None:
    """Its folder has no job.json, so there is nothing to resume, and the name is free; anything else is kept."""
    with three_parties(tmp_path, seed=3) as federation:
        begun = tmp_path / "runs" / "run"
        begun.mkdir(parents=True)
        (begun / "plan.json").write_text("{}")
        (begun / "job.json.partial").write_text("{")
        _, run = federation.run(Describe(epsilon=1.0), name="run")
        assert run.job["state"] == "done"
        (tmp_path / "runs" / "other").mkdir()
        (tmp_path / "runs" / "other" / "notes.txt").write_text("mine")
        with pytest.raises(RunError, match="exists already"):
            federation.run(Describe(epsilon=1.0), name="other")
