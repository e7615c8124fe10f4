"""What the loss of power can take away: the newest transactions, and never a debit whose answer has left.

A flush cannot be watched from here, but its order can: every commit is traced with the mode that it was made in. And a
write-ahead log that was cut anywhere must open as an earlier state of the party.
"""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from colonnade.durable import Database
from colonnade.federation.coordinator import Federation
from colonnade.federation.job import proposal
from colonnade.federation.messages import Reply, Request, Transcript
from colonnade.federation.party import Party
from colonnade.federation.policy import plan_of_steps
from colonnade.federation.stage import stage
from colonnade.federation.step import Step
from colonnade.privacy.ledger import Ledger
from support import steps
from support.small import three_parties


def proposed(federation: Federation, step: Step) -> Party:
    wanted = {name: [{"epsilon": 0.01}] * 9 for name in federation.facts.parties}
    made = stage("stage", step, wanted, facts=federation.facts, roster=federation.roster, discloses="a test")
    arguments = proposal(plan_of_steps([made]), federation.roster, federation.facts, federation.seed)
    here: Party = federation.transport["clinic"]  # type: ignore[index]
    assert not Reply.decode(here.handle(Request(kind="propose", job="job", arguments=arguments).encode())).error
    return here


def ask(here: Party, step: Step, seq: int) -> Reply:
    request = Request(kind="ask", job="job", seq=seq, stage="stage", step=step.name, arguments={"epsilon": 0.01})
    return Reply.decode(here.handle(request.encode()))


def commits(here: Party, step: Step, seq: int) -> list[tuple[str, bool]]:
    """(what was written, whether its commit was flushed) of each transaction of one request, in order."""
    found: list[tuple[str, bool]] = []
    mode, wrote = here.database.execute("PRAGMA synchronous")[0][0] == 2, ""

    def trace(statement: str) -> None:
        nonlocal mode, wrote
        if statement.startswith("PRAGMA synchronous ="):
            mode = statement.endswith("FULL")
        elif statement.startswith("INSERT INTO"):
            wrote += f"{statement.split()[2]} "
        elif statement == "COMMIT":
            found.append((wrote.strip(), mode))
            wrote = ""

    here.database._connection.set_trace_callback(trace)
    try:
        ask(here, step, seq)
    finally:
        here.database._connection.set_trace_callback(None)
    return found


@pytest.mark.parametrize(
    ("step", "answer"),
    [
        (steps.noisy_zero, "replies transcript transcript"),
        (steps.raises_with_data, "transcript transcript"),
        (steps.bare_array, "transcript transcript"),
    ],
    ids=["release", "step that raises", "not a release"],
)
def test_nothing_leaves_before_its_debit_is_flushed(tmp_path: Path, step: Step, answer: str) -> None:
    with three_parties(tmp_path) as federation:
        here = proposed(federation, step)
        assert commits(here, step, 1) == [("ledger", False), (answer, True)]


def test_a_simulation_waits_for_no_disk(tmp_path: Path) -> None:
    with three_parties(tmp_path, seed=1) as federation:
        here = proposed(federation, steps.noisy_zero)
        assert not any(flushed for _, flushed in commits(here, steps.noisy_zero, 1))


def test_a_log_cut_anywhere_is_an_earlier_state(tmp_path: Path) -> None:
    """Every reply that is left has its debit; ledger and transcript verify; a later cut never shows less."""
    with three_parties(tmp_path) as federation:
        here = proposed(federation, steps.noisy_zero)
        here.database.flush()
        for seq in range(1, 6):
            assert not ask(here, steps.noisy_zero, seq).error
        for name in ("party.db", "party.db-wal"):
            shutil.copy(here.home / name, tmp_path / name)
    log = (tmp_path / "party.db-wal").read_bytes()
    seen: list[tuple[int, int]] = []
    for cut in [*range(0, len(log), 2999), len(log)]:
        folder = tmp_path / f"cut-{cut}"
        folder.mkdir()
        shutil.copy(tmp_path / "party.db", folder / "party.db")
        (folder / "party.db-wal").write_bytes(log[:cut])
        database = Database(folder / "party.db", flushed=False)
        Transcript(database).verify()
        Ledger(database).verify()
        debits = {row.body["seq"] for row in Ledger(database).chain.rows(kind="debit")}
        replies = {seq for (seq,) in database.execute("SELECT seq FROM replies")}
        database.close()
        assert replies <= debits
        assert len(debits) - len(replies) in (0, 1)
        seen.append((len(debits), len(replies)))
    assert seen == sorted(seen)
    assert {(0, 0), (5, 4), (5, 5)} <= set(seen)


def test_a_refusal_that_cannot_be_recorded_says_only_that(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from colonnade.errors import StorageError

    with three_parties(tmp_path) as federation:
        here = proposed(federation, steps.raises_with_data)

        def full(*_: object) -> None:
            raise StorageError("the disk is full.")

        monkeypatch.setattr(here.transcript, "record", full)
        assert ask(here, steps.raises_with_data, 1).error == StorageError.code
        assert ask(here, steps.noisy_zero, 2).error == StorageError.code
