"""Back-up of a ledger; and an older copy that is restored is noticed before anything is spent twice."""

from __future__ import annotations

import json
import sqlite3
import threading
from pathlib import Path

import pytest
from typer.testing import CliRunner

from colonnade.cli.main import app
from colonnade.errors import BeyondReservation, CorruptRecord, NotApproved, RunError, StorageError
from colonnade.federation.coordinator import Federation
from colonnade.federation.job import proposal
from colonnade.federation.messages import Reply, Request
from colonnade.federation.policy import Policy
from colonnade.federation.recovery import backup, recover, restore, verify
from colonnade.federation.requester import Signer
from colonnade.federation.run_folder import RunFolder, newest_heads
from colonnade.federation.transports.embedded import Embedded
from colonnade.statistics.describe import Describe
from support.operators import credentials
from support.small import three_parties


@pytest.fixture
def watched(tmp_path: Path) -> Federation:
    """A federation whose coordinator remembers heads, as one on the network does."""
    made = three_parties(tmp_path)
    made._signer = credentials(tmp_path / "keys")
    return made


def reopened(tmp_path: Path) -> Federation:
    made = three_parties(tmp_path)
    made._signer = Signer(tmp_path / "keys" / "university")
    return made


def spent(federation: Federation) -> float:
    assert isinstance(federation.transport, Embedded)
    return federation.transport["clinic"].ledger.spent().epsilon


def test_a_copy_made_while_the_party_works_is_intact(watched: Federation, tmp_path: Path) -> None:
    home = tmp_path / "home" / "clinic"
    with watched as federation:
        federation.run(Describe(epsilon=0.1))
        copies = []

        def copy() -> None:
            for at in range(5):
                copies.append(backup(home, tmp_path / f"copy-{at}.db"))

        worker = threading.Thread(target=copy)
        worker.start()
        for at in range(3):
            federation.run(Describe(epsilon=0.1), name=f"run {at}")
        worker.join()
        assert len(copies) == 5
        for at, head in enumerate(copies):
            assert verify(tmp_path / f"copy-{at}.db")[0] == head
            assert (tmp_path / f"copy-{at}.db").stat().st_mode & 0o077 == 0
        with pytest.raises(StorageError, match="not overwritten"):
            backup(home, tmp_path / "copy-0.db")
    with pytest.raises(RunError, match="has not served"):
        backup(tmp_path, tmp_path / "none.db")


def test_an_older_copy_is_noticed_and_made_up_for(watched: Federation, tmp_path: Path) -> None:
    home = tmp_path / "home" / "clinic"
    copy = tmp_path / "copy.db"
    with watched as federation:
        federation.run(Describe(epsilon=0.2), name="before")
        backup(home, copy)
        federation.run(Describe(epsilon=0.3), name="after")
        before = spent(federation)
        with pytest.raises(RunError, match="in use"):
            restore(copy, home)
    assert newest_heads(tmp_path / "runs")["clinic"] == RunFolder.open(tmp_path / "runs" / "after").heads()["clinic"]

    _, kept = restore(copy, home)
    assert kept is not None
    assert verify(kept)
    with reopened(tmp_path) as federation:
        assert spent(federation) < before
        with pytest.raises(CorruptRecord, match="clinic"):
            federation.run(Describe(epsilon=0.1), name="too early")
        assert not (tmp_path / "runs" / "too early").exists()
        assert "colonnade ledger recover" in (home / "log.txt").read_text()

    done = CliRunner().invoke(app, ["ledger", "recover", str(home), "--runs", str(tmp_path / "runs")])
    assert done.exit_code == 0, done.output
    assert "1 runs were missing" in done.output
    assert recover(home, "clinic", tmp_path / "runs") == [], "once is enough"
    lost = RunFolder.open(tmp_path / "runs" / "after")
    with reopened(tmp_path) as federation:
        assert spent(federation) == pytest.approx(before)
        assert isinstance(federation.transport, Embedded)
        party = federation.transport["clinic"]
        party.ledger.verify()
        # The lost job cannot spend again under what was made up for it.
        request = Request(
            kind="propose",
            job=lost.job["job"],
            arguments={
                "plan": lost.read_json("plan.json"),
                "roster": federation.roster.fingerprint,
                "facts": federation.facts.fingerprint,
                "seed": None,
            },
        )
        assert Reply.decode(party.handle(request.encode())).value["state"] == "approved"
        planned = federation.plan(Describe(epsilon=0.3)).stage("presence")
        ask = Request(
            kind="ask",
            job=lost.job["job"],
            seq=1,
            stage="presence",
            step="statistics.describe.presence_count",
            arguments=planned.requests["clinic"][0],
        )
        assert Reply.decode(party.handle(ask.encode())).error == BeyondReservation.code
        federation.run(Describe(epsilon=0.1), name="later")


def test_a_run_that_did_not_end_counts_in_full(watched: Federation, tmp_path: Path) -> None:
    home = tmp_path / "home" / "clinic"
    with watched as federation:
        federation.run(Describe(epsilon=0.2), name="before")
        backup(home, tmp_path / "copy.db")
        plan = federation.plan(Describe(epsilon=0.4))
        with pytest.raises(KeyboardInterrupt), federation.open(plan, name="broken off"):
            raise KeyboardInterrupt
        before = spent(federation)
    restore(tmp_path / "copy.db", home)
    assert [one.run.name for one in recover(home, "clinic", tmp_path / "runs")] == ["broken off"]
    with three_parties(tmp_path) as federation:
        assert spent(federation) == pytest.approx(before)


def test_a_restored_copy_answers_nothing_of_a_job_that_was_under_way(tmp_path: Path) -> None:
    """The request was answered after the copy was made; answered again, there are two releases for one reservation."""
    home, described = tmp_path / "home" / "clinic", Describe(epsilon=0.3)
    with three_parties(tmp_path) as federation:
        assert isinstance(federation.transport, Embedded)
        party = federation.transport["clinic"]
        stated = proposal(federation.plan(described), federation.roster, federation.facts, None)
        assert not Reply.decode(party.handle(Request(kind="propose", job="job", arguments=stated).encode())).error
        backup(home, tmp_path / "copy.db")
        ask = Request(
            kind="ask",
            job="job",
            seq=1,
            stage="presence",
            step="statistics.describe.presence_count",
            arguments=federation.plan(described).stage("presence").requests["clinic"][0],
        ).encode()
        assert not Reply.decode(party.handle(ask)).error
    restore(tmp_path / "copy.db", home)
    with three_parties(tmp_path) as federation:
        assert isinstance(federation.transport, Embedded)
        party = federation.transport["clinic"]
        assert Reply.decode(party.handle(ask)).error == NotApproved.code
        assert party.ledger.spent(delta=1e-6).epsilon > 0, "what was reserved still counts"
        party.ledger.verify()


def test_an_older_copy_is_noticed_though_no_run_has_ended_since(watched: Federation, tmp_path: Path) -> None:
    """The only run since the copy was broken off: its resumption would reserve and answer a second time."""
    home = tmp_path / "home" / "clinic"
    with watched as federation:
        federation.run(Describe(epsilon=0.2), name="before")
        backup(home, tmp_path / "copy.db")
        with pytest.raises(KeyboardInterrupt), federation.open(federation.plan(Describe(epsilon=0.4)), name="broken"):
            raise KeyboardInterrupt
        before = spent(federation)
    restore(tmp_path / "copy.db", home)
    with reopened(tmp_path) as federation, pytest.raises(CorruptRecord, match="clinic"):
        federation.resume(tmp_path / "runs" / "broken")
    assert [one.run.name for one in recover(home, "clinic", tmp_path / "runs")] == ["broken"]
    with reopened(tmp_path) as federation:
        with pytest.raises(BeyondReservation):
            federation.resume(tmp_path / "runs" / "broken")
        assert spent(federation) == pytest.approx(before)
        federation.run(Describe(epsilon=0.1), name="later")


def test_a_damaged_copy_is_refused(watched: Federation, tmp_path: Path) -> None:
    home = tmp_path / "home" / "clinic"
    with watched as federation:
        federation.run(Describe(epsilon=0.2))
        backup(home, tmp_path / "copy.db")
    raw = sqlite3.connect(tmp_path / "copy.db")
    raw.executescript("DROP TRIGGER ledger_no_update; UPDATE ledger SET body = replace(body, 'clinic', 'klinik');")
    raw.close()
    before = (home / "party.db").read_bytes()
    with pytest.raises(CorruptRecord):
        restore(tmp_path / "copy.db", home)
    assert (home / "party.db").read_bytes() == before
    done = CliRunner().invoke(app, ["ledger", "backup", str(home), "--out", str(tmp_path / "good.db")])
    assert done.exit_code == 0, done.output
    done = CliRunner().invoke(app, ["ledger", "restore", str(tmp_path / "good.db"), str(home)])
    assert done.exit_code == 0, done.output
    assert json.loads((home / "party.json").read_text())["name"] == "clinic"


def test_a_policy_that_the_first_version_stored_is_read() -> None:
    """party.json of 0.1 says `askers`; without this its ledger could not be shown."""
    stored = Policy(requesters=("agency",)).to_dict()
    old = {"askers" if name == "requesters" else name: value for name, value in stored.items()}
    assert Policy.from_dict(old) == Policy(requesters=("agency",))
