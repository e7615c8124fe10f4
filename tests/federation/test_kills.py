"""Processes that die at the worst moments. Afterwards every ledger verifies, the job resumes, and the total debited
is exactly the plan's."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import pytest

from colonnade.durable import Database
from colonnade.errors import PartyLost, StorageError
from colonnade.federation.coordinator import Federation
from colonnade.federation.plan import Plan
from colonnade.federation.policy import plan_of_steps
from colonnade.federation.stage import checked_by_step, stage
from colonnade.federation.step import Step
from colonnade.federation.transports.processes import Processes
from colonnade.privacy.cost import Laplace, compose
from colonnade.privacy.ledger import Ledger
from colonnade.statistics.describe import Describe
from support import steps
from support.plans import plan_of_stages
from support.small import COLUMNS, three_overlapping_blocks, three_parties

TESTS = Path(__file__).parents[1]


@pytest.fixture(autouse=True)
def _steps_are_importable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", str(TESTS))


def processes(tmp_path: Path, **options: Any) -> Federation:
    return three_parties(tmp_path, transport="processes", packages=("support.steps",), **options)


def ledgers(tmp_path: Path) -> dict[str, Ledger]:
    return {name: Ledger(Database(tmp_path / "home" / name / "party.db")) for name in ("clinic", "court", "bank")}


def two_rounds(federation: Federation, step: Step, mark: Path, *, marked: bool = False) -> Plan:
    """`marked`: the mark may be any text, which only an embedded party can plan."""
    arguments = {"epsilon": 0.25, "mark": str(mark)}
    planned = stage(
        "stage",
        step,
        {name: [arguments] * 2 for name in federation.facts.parties},
        facts=federation.facts,
        roster=federation.roster,
        discloses="a test",
        later={"mark": checked_by_step("a file, or any text")} if marked else {},
    )
    return plan_of_stages("describe", [planned]) if marked else plan_of_steps([planned])


@pytest.mark.parametrize("step", [steps.dies_before_debit, steps.dies_once], ids=["before-debit", "after-debit"])
def test_a_party_killed_around_its_debit(tmp_path: Path, step: Step) -> None:
    mark = tmp_path / "mark"
    with processes(tmp_path) as federation:
        plan = two_rounds(federation, step, mark)
        mark.touch()
        with federation.open(plan, name="run") as job:
            first = job.ask(plan.stage("stage"))
            mark.unlink()
            with pytest.raises(PartyLost, match="nothing is debited twice"):
                job.ask(plan.stage("stage"))
            # The coordinator starts the round over: the parties that had answered send the same bytes again.
            job._seq = dict.fromkeys(job._seq, 0)
            job._asked.clear()
            again = job.ask(plan.stage("stage"))
            second = job.ask(plan.stage("stage"))
        assert first == again
        assert set(second.values()).isdisjoint(first.values())
    for ledger in ledgers(tmp_path).values():
        ledger.verify()
        assert ledger.debited(job.id) == compose([Laplace(0.25).times(2)])


def test_a_party_killed_after_its_reply_is_durable(tmp_path: Path) -> None:
    """The reply was committed and never sent: the resumed run gets those bytes, with no second debit."""
    with processes(tmp_path) as federation:
        federation.transport.close()
        for name in [*federation.transport.parties][1:]:  # one party dies, the others have done so
            (tmp_path / "home" / name / "died-once").touch()
        faulty = (sys.executable, str(TESTS / "federation" / "faulty_party.py"))
        federation.transport = Processes(
            {name: tmp_path / "home" / name for name in federation.transport.parties}, command=faulty
        )
        with pytest.raises(PartyLost):
            federation.run(Describe(epsilon=1.0), name="run")
        _, run = _resumed_until_done(federation, tmp_path / "runs" / "run")
    assert run.job["state"] == "done"
    for name, ledger in ledgers(tmp_path).items():
        ledger.verify()
        assert ledger.debited(run.job["job"]) == compose(run.plan().costs(name))
        assert (tmp_path / "home" / name / "died-once").exists()


def _resumed_until_done(federation: Federation, path: Path) -> tuple[Any, Any]:
    for _ in range(6):
        try:
            return federation.resume(path)
        except PartyLost:
            continue
    raise AssertionError("the run did not finish")


def test_the_coordinator_killed(tmp_path: Path) -> None:
    script = textwrap.dedent(
        """
        import os, signal, sys
        from pathlib import Path
        sys.path.insert(0, {tests!r})
        from support.small import three_parties
        from colonnade.statistics.describe import Describe
        def die(progress):
            if progress.rounds == 2:
                os.kill(os.getpid(), signal.SIGKILL)
        if __name__ == "__main__":
            with three_parties(Path({path!r}), transport="processes") as federation:
                federation.run(Describe(epsilon=1.0), name="run", progress=die)
        """
    ).format(tests=str(TESTS), path=str(tmp_path))
    ended = subprocess.run([sys.executable, "-c", script], check=False, timeout=120)
    assert ended.returncode == -signal.SIGKILL
    before = {name: len(ledger.chain.rows(kind="debit")) for name, ledger in ledgers(tmp_path).items()}
    assert sum(before.values()) > 0
    with processes(tmp_path) as federation:
        result, run = federation.resume(tmp_path / "runs" / "run")
    assert set(result.marginals) == set(COLUMNS)
    for name, ledger in ledgers(tmp_path).items():
        ledger.verify()
        assert ledger.debited(run.job["job"]) == compose(run.plan().costs(name))


def test_a_party_that_stays_silent_is_given_up(tmp_path: Path) -> None:
    with processes(tmp_path, timeout=60) as federation:
        federation.handshake()
        plan = two_rounds(federation, steps.sleeps, tmp_path)
        federation.timeout = 3
        with pytest.raises(PartyLost, match="did not answer within 3 s"), federation.open(plan) as job:
            job.ask(plan.stage("stage"))


def test_the_disk_is_full_while_the_ledger_is_written(tmp_path: Path) -> None:
    """SQLite's page limit gives the same error as a full disk. The step must not run, and nothing may be half there."""
    with three_parties(tmp_path) as federation:
        here = federation.transport["clinic"]  # type: ignore[index]
        plan = two_rounds(federation, steps.noisy_zero, tmp_path, marked=True)
        with pytest.raises(StorageError, match="clinic"):
            _ask_until_the_disk_is_full(federation, plan)
        here.ledger.verify()
        here.transcript.verify()
        assert not [row for row in here.transcript.rows() if row.body["kind"] == "release" and row.body["seq"] == 2]
        here.database.execute("PRAGMA max_page_count = 1073741823")
        here.database.execute("DROP TABLE filler")
        job = _reopened(federation, plan, tmp_path / "runs" / "run")
        job.ask(plan.stage("stage"), mark="x" * 1000)
        job.ask(plan.stage("stage"), mark="")
        job.finish()
        job.release()
        assert here.ledger.verify()
        assert len(here.ledger.chain.rows(kind="debit")) == 2


def _ask_until_the_disk_is_full(federation: Federation, plan: Plan) -> None:
    with federation.open(plan, name="run") as job:
        job.ask(plan.stage("stage"), mark="x" * 1000)
        _fill(federation.transport["clinic"].database)  # type: ignore[index]
        job.ask(plan.stage("stage"), mark="")


def _fill(database: Database) -> None:
    """Use up the pages that are left."""
    database.execute("PRAGMA max_page_count = 1073741823")
    database.execute("CREATE TABLE filler (x BLOB)")
    database.execute(f"PRAGMA max_page_count = {database.execute('PRAGMA page_count')[0][0]}")
    for size in (4000, 400, 40, 1):
        with contextlib.suppress(StorageError):
            for _ in range(10_000):
                database.execute("INSERT INTO filler VALUES (?)", (bytes(size),))


def _reopened(federation: Federation, plan: Plan, path: Path) -> Any:
    from colonnade.federation.job import Job
    from colonnade.federation.run_folder import RunFolder

    job = Job(
        plan=plan,
        run=RunFolder.open(path),
        transport=federation.transport,
        facts=federation.facts,
        roster=federation.roster,
        timeout=60,
    )
    job.propose()
    return job


def test_blocks_are_read_by_the_party_itself(tmp_path: Path) -> None:
    """In the processes transport a party reads its block from its own folder, in its own process."""
    blocks = three_overlapping_blocks()
    with processes(tmp_path, blocks=blocks) as federation:
        federation.handshake()
        pids = {federation.transport.pid(name) for name in federation.transport.parties}  # type: ignore[attr-defined]
        assert len(pids | {os.getpid()}) == 4
    assert (tmp_path / "home" / "clinic" / "block.parquet").exists()
