"""A job that is never closed ends by itself, and an operator can end one: rows and shares are then gone."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import colonnade as co
from colonnade.errors import NotApproved, SchemaError
from colonnade.federation import party as border
from colonnade.federation.coordinator import Federation
from colonnade.federation.party import Party
from colonnade.federation.policy import Policy, operator
from colonnade.privacy.ledger import DAY
from support import steps
from support.small import three_parties

SECRET = b"a share that must not stay"


def job_with_rows(federation: Federation) -> str:
    """A job under way: something kept in the database, something in a file of its own, and rows in scratch."""
    plan = federation.plan(co.Describe(epsilon=1.0))
    context = federation.open(plan)
    job = context.__enter__()  # never left: a coordinator that forgets its job
    job.ask(plan.stages[0])
    clinic: Party = federation.transport["clinic"]  # type: ignore[index]
    with clinic.database.transaction():
        clinic.store.keep(job.id, "small", SECRET * 10)
        clinic.store.keep(job.id, "large", np.arange(100_000))
    folder = clinic.store.scratch(job.id)
    folder.mkdir(parents=True)
    (folder / "0.rows").write_bytes(SECRET)
    return str(job.id)


def traces(home: Path) -> list[str]:
    """Files of a party's folder that still hold what the job left."""
    wanted = (SECRET, np.arange(1_000, 1_100).tobytes())
    return [
        str(path.relative_to(home))
        for path in home.rglob("*")
        if path.is_file() and any(piece in path.read_bytes() for piece in wanted)
    ]


def clock(monkeypatch: pytest.MonkeyPatch, days: float) -> None:
    now = time.time()
    monkeypatch.setattr(time, "time", lambda: now + DAY * days)


def test_a_job_ends_when_it_is_too_old(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with three_parties(tmp_path) as federation:
        job = job_with_rows(federation)
        clinic: Party = federation.transport["clinic"]  # type: ignore[index]
        reserved = clinic.ledger.costs()
        clock(monkeypatch, 29.9)
        federation._greeted = False
        federation.handshake()
        assert clinic.store.state(job) == "approved"
        assert len(traces(tmp_path / "home" / "clinic")) >= 3
        clock(monkeypatch, 30.1)
        federation._greeted = False
        federation.handshake()  # the next request, of whatever kind
        assert clinic.store.state(job) == "ended"
        assert traces(tmp_path / "home" / "clinic") == []
        assert clinic.ledger.costs() == reserved  # nothing is refunded
        (run,) = (tmp_path / "runs").iterdir()
        with pytest.raises(NotApproved):
            federation.resume(run)
        assert "job_days = 30" in (tmp_path / "home" / "clinic" / "log.txt").read_text()


def test_an_old_job_ends_when_the_party_starts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with three_parties(tmp_path) as federation:
        job = job_with_rows(federation)
    clock(monkeypatch, 31)
    with three_parties(tmp_path) as federation:
        assert federation.transport["clinic"].store.state(job) == "ended"  # type: ignore[index]
    assert traces(tmp_path / "home" / "clinic") == []


def test_an_old_job_ends_while_nothing_is_asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with three_parties(tmp_path) as federation:
        job = job_with_rows(federation)
        clinic: Party = federation.transport["clinic"]  # type: ignore[index]
        monkeypatch.setattr(border, "HOUR", 0.05)
        clock(monkeypatch, 31)
        clinic.end_old_jobs_hourly()
        for _ in range(200):
            if clinic.store.state(job) == "ended":
                break
            time.sleep(0.02)
        assert clinic.store.state(job) == "ended"


def test_never_is_never(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with three_parties(tmp_path) as federation:
        job = job_with_rows(federation)
        clinic: Party = federation.transport["clinic"]  # type: ignore[index]
        clinic.policy = Policy(approve="auto", job_days="never")
        clock(monkeypatch, 10_000)
        federation._greeted = False
        federation.handshake()
        assert clinic.store.state(job) == "approved"
    for days in (0, -1.0, float("nan"), float("inf")):
        with pytest.raises(SchemaError, match="job_days"):
            Policy(job_days=days)
    assert Policy.from_dict(Policy(job_days="never").to_dict()).job_days == "never"
    assert Policy.from_dict({"approve": "auto"}).job_days == 30.0


def test_an_operator_ends_a_job_while_the_party_serves(tmp_path: Path) -> None:
    """From another connection, as the command line and the console do."""
    with three_parties(tmp_path) as federation:
        job, other = job_with_rows(federation), job_with_rows(federation)
        home = tmp_path / "home" / "clinic"
        with operator(home) as approvals:
            approvals.end(job)
            with pytest.raises(NotApproved, match="not under way"):
                approvals.end(job)
            with pytest.raises(NotApproved, match="not under way"):
                approvals.end("no such job")
        clinic: Party = federation.transport["clinic"]  # type: ignore[index]
        assert clinic.store.state(job) == "ended"
        assert not clinic.store.scratch(job).exists()
        assert clinic.store.state(other) == "approved"
        assert clinic.store.recall(other, "large").size == 100_000  # the same bytes, kept by a job that goes on
        with operator(home) as approvals:
            approvals.end(other)
        assert traces(home) == []
        assert clinic.store.ended(job)[0] == "operator"  # type: ignore[index]


def test_what_a_running_step_made_is_dropped_if_its_job_was_ended(tmp_path: Path) -> None:
    """A variant: the operator ends the job in the middle of a request, whose answer must not be kept."""
    with three_parties(tmp_path) as federation:
        clinic: Party = federation.transport["clinic"]  # type: ignore[index]
        home = tmp_path / "home" / "clinic"
        original = clinic._commit

        def ended_first(request: Any, *rest: Any) -> bytes:
            with operator(home) as approvals:
                approvals.end(request.job)
            return original(request, *rest)

        clinic._commit = ended_first  # type: ignore[method-assign]
        with pytest.raises(NotApproved):
            federation.ask(steps.noisy_zero, parties=["clinic"], epsilon=1.0)
        (job,) = clinic.store.jobs()
        assert job.state == "ended"
        assert clinic.store.reply(job.job, 1) is None


def test_an_ended_job_can_still_be_closed(tmp_path: Path) -> None:
    """The coordinator has its result, and one operator was impatient: the head is told, the job stays ended."""
    with three_parties(tmp_path) as federation:
        plan = federation.plan(co.Describe(epsilon=1.0))
        assert plan.run is not None
        with federation.open(plan, name="run") as job:
            plan.run(job).write(job.run)
            federation.transport["clinic"].end(job.id)  # type: ignore[index]
        assert job.run.job["state"] == "done"
        assert federation.transport["clinic"].store.state(job.id) == "ended"  # type: ignore[index]


def test_jobs_of_a_home_without_times_begin_when_it_is_opened(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with three_parties(tmp_path) as federation:
        job = job_with_rows(federation)
        federation.transport["clinic"].database.execute("DROP TABLE begun")  # type: ignore[index]
    clock(monkeypatch, 100)
    with three_parties(tmp_path) as federation:
        assert federation.transport["clinic"].store.state(job) == "approved"  # type: ignore[index]
        assert federation.transport["court"].store.state(job) == "ended"  # type: ignore[index]
