"""Records of an older version: a run folder is refused in one sentence, and no ledger is lost."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from colonnade.cli.main import app
from colonnade.errors import NotApproved, RunError
from colonnade.federation import wire
from colonnade.federation.coordinator import Federation
from colonnade.federation.job import proposal
from colonnade.federation.messages import Request, of_first_protocol, stored_proposal
from colonnade.federation.party import Party
from colonnade.federation.policy import operator
from colonnade.federation.recovery import recover
from colonnade.federation.run_folder import FORMAT, RunFolder, newest_heads
from colonnade.privacy.ledger import Ledger
from colonnade.statistics.describe import Describe
from support.small import three_parties


def without_later(stage: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in stage.items() if name != "later"}


def aged(run: RunFolder) -> RunFolder:
    """The folder as the first version wrote it: no format, phases in the plan, no view."""
    described = {name: value for name, value in run.job.items() if name != "format"}
    run.write_json("job.json", {**described, "version": "0.1.0"})
    plan = run.read_json("plan.json")
    phases = [without_later(stage) for stage in plan.pop("stages")]
    del plan["missing_data"]
    run.write_json("plan.json", {**plan, "phases": phases})
    (run.path / "view.json").unlink(missing_ok=True)
    return run


def test_a_run_folder_states_its_format(tmp_path: Path) -> None:
    with three_parties(tmp_path) as federation:
        _, run = federation.run(Describe())
        assert run.read_json("job.json")["format"] == FORMAT
        assert RunFolder.open(run.path).plan().to_dict() == run.read_json("plan.json")


def test_an_older_run_folder_is_refused_with_what_to_do(tmp_path: Path) -> None:
    with three_parties(tmp_path) as federation:
        run = aged(federation.run(Describe())[1])
        told = r"a run folder of Colonnade 0\.1\.0 in another format \(1, here 2\): read the report\.html .* resume it"
        with pytest.raises(RunError, match=told):
            RunFolder.open(run.path)
        run.update(state="failed")
        with pytest.raises(RunError, match=told):
            federation.resume(run.path)
        run.write_json("job.json", {**run.job, "format": 99})
        with pytest.raises(RunError, match=r"\(99, here 2\)"):
            RunFolder.open(run.path)


def test_the_command_line_refuses_it_in_one_sentence(tmp_path: Path) -> None:
    """Report, index and resume alike; nothing is written."""
    with three_parties(tmp_path) as federation:
        _, new = federation.run(Describe(), name="new")
        run = aged(federation.run(Describe(), name="old")[1])
    before = sorted(path.name for path in tmp_path.rglob("*"))
    for command in (["report", run.path], ["report", tmp_path / "runs"], ["resume", run.path]):
        done = CliRunner().invoke(app, [str(word) for word in command])
        assert done.exit_code != 0
        assert "in another format (1, here 2)" in " ".join(done.stderr.split()), command
        assert "Traceback" not in done.output
    assert sorted(path.name for path in tmp_path.rglob("*")) == before
    assert CliRunner().invoke(app, ["report", str(new.path)]).exit_code == 0


def test_what_an_older_run_has_cost_is_still_read(tmp_path: Path) -> None:
    """The head that its ledger handed out, and what a restored ledger must count again."""
    with three_parties(tmp_path) as federation:
        _, run = federation.run(Describe(epsilon=1.0))
        planned, heads = run.plan(), newest_heads(federation.runs)
        aged(run)
        assert newest_heads(federation.runs) == heads
        older = RunFolder.open(run.path, older=True).plan()
        assert older.costs() == planned.costs()
        home = tmp_path / "home" / "clinic"
        clinic(federation).close()
    (home / "party.db").unlink()  # a ledger that has forgotten everything
    [counted] = recover(home, "clinic", federation.runs)
    assert counted.stages == len(planned.stages)
    with operator(home) as desk:
        total = desk.ledger.spent()
        assert total.epsilon == pytest.approx(planned.total(party="clinic").epsilon)
        assert desk.ledger.contains(heads["clinic"])


def clinic(federation: Federation) -> Party:
    party: Party = federation.transport["clinic"]  # type: ignore[index]
    return party


def first_proposal(federation: Federation) -> bytes:
    """A proposal as the first version sent it."""
    plan = federation.plan(Describe(epsilon=0.5))
    arguments = proposal(plan, federation.roster, federation.facts, None)
    phases = [without_later(stage) for stage in arguments["plan"]["stages"]]
    older = {name: value for name, value in arguments["plan"].items() if name not in ("stages", "missing_data")}
    body = {
        "kind": "propose",
        "job": "old",
        "seq": 0,
        "phase": "",
        "step": "",
        "arguments": {**arguments, "plan": {**older, "phases": phases}, "asker": {"certificate": "", "signature": ""}},
        "mail": [],
    }
    return wire.MAGIC + b"\x01" + wire.encode(body)[len(wire.MAGIC) + 1 :]


def test_jobs_that_an_older_version_stored_are_shown_and_can_be_denied(tmp_path: Path) -> None:
    with three_parties(tmp_path, approve="ask") as federation:
        content = first_proposal(federation)
        assert of_first_protocol(content)
        party = clinic(federation)
        party.store.add_job("old", wire.digest(content), content, "waiting")
        arguments: dict[str, Any] = dict(stored_proposal(content))
        assert "requester" in arguments
        assert party.waiting()["old"].total() == federation.plan(Describe(epsilon=0.5)).total()
        with pytest.raises(NotApproved, match="proposed by an older version and cannot run any more; deny it"):
            party.decide("old", approve=True)
        assert party.ledger.chain.head().rows == 0
        party.decide("old", approve=False)
        assert party.store.state("old") == "denied"
        asked = Request(kind="ask", job="old", seq=1, stage="presence", step="x", arguments={}).encode()
        assert wire.decode(party.handle(asked))["error"]


def test_a_message_of_another_protocol_is_refused(tmp_path: Path) -> None:
    with three_parties(tmp_path) as federation:
        answer = wire.decode(clinic(federation).handle(first_proposal(federation)))
        assert answer["error"] == "version-mismatch"


def test_a_ledger_of_an_older_version_opens_and_goes_on(tmp_path: Path) -> None:
    """Its rows name a stage as they always did, so old and new ones stand in one chain."""
    with three_parties(tmp_path) as federation:
        federation.run(Describe(epsilon=0.5))
        ledger: Ledger = clinic(federation).ledger
        row = ledger.chain.rows(kind="reserve")[0].body
        assert set(row) == {"kind", "time", "job", "phase", "step", "count", "cost"}
        debit = ledger.chain.rows(kind="debit")[0].body
        assert set(debit) == {"kind", "time", "job", "seq", "request", "phase", "step", "cost"}
        assert json.dumps(row)
        ledger.verify()
