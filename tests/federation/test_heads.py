"""All members keep all members' signed ledger heads: a roll-back that a party and the coordinator agree on is shown by
any third member's record."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

import colonnade as co
from colonnade.cli.main import app
from colonnade.cli.output import RECORD
from colonnade.durable import Database, Head
from colonnade.errors import CorruptRecord, PartyLost, ReplayMismatch, SealBroken, UnsafeRequest
from colonnade.federation.coordinator import Federation
from colonnade.federation.heads import FILE, Heads, PresentLedger, compared, export, of_run, sign_head
from colonnade.federation.messages import Reply, Request
from colonnade.federation.party import Party
from colonnade.federation.requester import Signer
from support import steps
from support.small import three_parties

PARTIES = ("clinic", "court", "bank")


def describe(federation: Federation, **options: Any) -> Path:
    _, run = federation.run(co.Describe(epsilon=0.5), **options)
    return run.path


def others(path: Path, *more: str) -> tuple[int, str]:
    done = CliRunner().invoke(app, ["ledger", "verify", str(path), "--others", *more])
    return done.exit_code, done.output


def kept(home: Path) -> dict[str, list[str]]:
    """{party: the jobs of which a member keeps its head}."""
    database = Database(home / "party.db", read_only=True)
    entries = Heads(database, create=False).by_party()
    database.close()
    return {party: [job for job, _, _ in each] for party, each in entries.items()}


@pytest.mark.parametrize("transport", ["embedded", "processes", "network"])
def test_every_member_keeps_every_head(tmp_path: Path, transport: str) -> None:
    with three_parties(tmp_path, transport=transport) as federation:
        run = describe(federation, name="run")
        keys = {member.name: member.signing_key for member in federation.roster.members}
    assert len(set(keys.values())) == 3
    job = json.loads((run / "job.json").read_text())["job"]
    for party in PARTIES:
        assert kept(tmp_path / "home" / party) == {name: [job] for name in PARTIES}
    stored = json.loads((run / FILE).read_text())
    assert set(stored["countersigned"]) == set(PARTIES)
    assert all(len(signature) == 128 for signature in stored["countersigned"].values())
    assert stored["doubts"] == {}
    entries, stated = of_run(run)
    assert stated == keys
    present = {party: PresentLedger.read(tmp_path / "home" / party) for party in PARTIES}
    assert all(verdict.well and verdict.ledger and verdict.signed for verdict in compared(entries, keys, present))


def rolled_back(tmp_path: Path, *, longer: bool = False) -> tuple[Path, Path]:
    """A party that is restored from an older copy, with a coordinator that hides it: the run folders of what was spent
    since are gone, and no head is told when the party is greeted. Both go on working. Returns an export of the party's
    ledger, and the coordinator's newest run folder. `longer`: the new branch has no head as long as the hidden one."""
    home, copy = tmp_path / "home" / "court", tmp_path / "older.db"
    with three_parties(tmp_path) as federation:
        describe(federation, name="first")
    shutil.copy(home / "party.db", copy)
    with three_parties(tmp_path) as federation:
        describe(federation, name="hidden")
    for ending in ("", "-wal", "-shm"):
        (home / f"party.db{ending}").unlink(missing_ok=True)
    shutil.copy(copy, home / "party.db")
    (home / "party.db").chmod(0o600)
    shutil.rmtree(tmp_path / "runs" / "hidden")
    with three_parties(tmp_path) as federation:
        if longer:
            federation.ask(steps.noisy_zero, epsilon=0.1)
        newest = describe(federation, name="newest")
    export(home, tmp_path / "court.json")
    return tmp_path / "court.json", newest


@pytest.mark.parametrize("longer", [False, True])
def test_a_roll_back_is_shown_by_any_other_member(tmp_path: Path, longer: bool) -> None:
    exported, newest = rolled_back(tmp_path, longer=longer)
    # The party and the coordinator agree with each other: their own records say nothing.
    assert CliRunner().invoke(app, ["ledger", "verify", str(tmp_path / "home" / "court")]).exit_code == 0
    assert others(newest, "--ledger", f"court={exported}")[0] == 0
    for witness in ("clinic", "bank"):
        home = tmp_path / "home" / witness
        code, said = others(home, "--ledger", f"court={exported}")
        assert code == RECORD, said
        assert "no longer contains" in said
        assert ("two ledgers" in said) == (not longer)
        # Another honest member's ledger is what it signed.
        other = "bank" if witness == "clinic" else "clinic"
        export(tmp_path / "home" / other, tmp_path / f"{other}-{witness}.json")
        _, said = others(home, "--ledger", f"{other}={tmp_path / f'{other}-{witness}.json'}")
        assert "no longer contains" not in said


def test_two_heads_of_one_length_need_no_ledger(tmp_path: Path) -> None:
    """The rolled-back ledger has grown to the length that it had: two signatures contradict each other by themselves,
    and a member says so at once."""
    _, newest = rolled_back(tmp_path)
    code, said = others(tmp_path / "home" / "clinic")
    assert code == RECORD
    assert "two ledgers" in said
    doubts = json.loads((newest / FILE).read_text())["doubts"]
    assert doubts["clinic"] == doubts["bank"] == ["court"]
    assert "contradict" in (tmp_path / "home" / "bank" / "log.txt").read_text()


def test_a_ledger_that_answers_for_what_it_lost_is_well(tmp_path: Path) -> None:
    """Restored and recovered in the open, as an honest operator does."""
    home, copy = tmp_path / "home" / "court", tmp_path / "older.db"
    with three_parties(tmp_path) as federation:
        describe(federation, name="first")
    assert CliRunner().invoke(app, ["ledger", "backup", str(home), "--out", str(copy)]).exit_code == 0
    with three_parties(tmp_path) as federation:
        describe(federation, name="second")
    assert CliRunner().invoke(app, ["ledger", "restore", str(copy), str(home)]).exit_code == 0
    assert others(tmp_path / "home" / "clinic", "--ledger", f"court={home}")[0] == RECORD
    runs = str(tmp_path / "runs")
    # A head is known by what the run folders say: the one that was handed out when the run ended.
    assert CliRunner().invoke(app, ["ledger", "recover", str(home), "--runs", runs]).exit_code == 0
    code, said = others(tmp_path / "home" / "clinic", "--ledger", f"court={home}")
    assert code == 0, said


def test_an_export_that_was_edited_is_refused(tmp_path: Path) -> None:
    with three_parties(tmp_path) as federation:
        describe(federation)
    exported = tmp_path / "court.json"
    done = CliRunner().invoke(app, ["ledger", "export", str(tmp_path / "home" / "court"), "--out", str(exported)])
    assert done.exit_code == 0
    exported.write_text(exported.read_text().replace('\\"count\\":1', '\\"count\\":0', 1))
    code, said = others(tmp_path / "home" / "clinic", "--ledger", f"court={exported}")
    assert code == RECORD
    assert "does not follow" in said
    assert others(tmp_path / "home" / "clinic", "--ledger", "court")[0] == 2


def test_a_coordinator_that_keeps_heads_back_is_noticed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("colonnade.federation.job.Job._countersign", lambda *_: None)
    with three_parties(tmp_path) as federation:
        run = describe(federation)
    job = json.loads((run / "job.json").read_text())["job"]
    code, said = others(tmp_path / "home" / "clinic")
    assert code == 0
    assert f"Closed without the heads of the other members: {job}" in said


def test_an_interrupted_closing_is_finished_later(tmp_path: Path) -> None:
    """Lost between the two halves of closing; resumed from a new federation, with the heads that were signed first."""
    with three_parties(tmp_path) as federation:
        court: Party = federation.transport["court"]  # type: ignore[index]
        original = court.handle
        court.handle = lambda data: (  # type: ignore[method-assign]
            Reply(error=PartyLost.code).encode() if Request.decode(data).kind == "heads" else original(data)
        )
        with pytest.raises(PartyLost):
            describe(federation, name="run")
        first = court.heads.of(court.store.jobs()[0].job)["court"]
        court.handle = original  # type: ignore[method-assign]
        other = describe(federation, name="other")  # its ledger grows meanwhile
    assert (other / FILE).is_file()
    with three_parties(tmp_path) as federation:
        _, run = federation.resume(tmp_path / "runs" / "run")
        assert run.job["state"] == "done"
    entries, _ = of_run(run.path)
    assert entries["court"][0][2] == first
    for party in PARTIES:
        assert all(len(jobs) == 2 for jobs in kept(tmp_path / "home" / party).values())
    assert others(tmp_path / "home" / "clinic")[0] == 0


def test_heads_that_are_not_all_and_only_the_members_own_are_refused(tmp_path: Path) -> None:
    with three_parties(tmp_path) as federation:
        run = describe(federation)
        clinic: Party = federation.transport["clinic"]  # type: ignore[index]
        stored = json.loads((run / FILE).read_text())
        job, heads = stored["job"], stored["heads"]

        def told(heads: Any, job: str = job) -> str:
            return Reply.decode(
                clinic.handle(Request(kind="heads", job=job, arguments={"heads": heads}).encode())
            ).error

        before = clinic.heads.chain.head()
        assert told(heads) == ""  # again: the same
        assert told(heads[:2]) == UnsafeRequest.code
        assert told([*heads, heads[0]]) == UnsafeRequest.code
        assert told([heads[0], heads[1], {**heads[2], "party": heads[0]["party"]}]) == UnsafeRequest.code
        assert told("heads") == UnsafeRequest.code
        assert told([{**each, "rows": each["rows"] - 1} for each in heads]) == SealBroken.code
        assert told([{**each, "signature": ""} for each in heads]) == SealBroken.code
        assert told([heads[0], heads[1], {**heads[2], "signature": heads[1]["signature"]}]) == SealBroken.code
        assert told(heads, job="another") == "not-approved"
        assert clinic.heads.chain.head() == before
        # A second head of one member for one job is refused, though its owner signed it.
        court: Party = federation.transport["court"]  # type: ignore[index]
        forged = sign_head(court._identity, court.roster, job, stored["plan"], "court", Head(1, "0" * 64)).to_dict()
        assert told([forged if each["party"] == "court" else each for each in heads]) == ReplayMismatch.code


def test_heads_of_a_job_that_is_under_way_are_refused(tmp_path: Path) -> None:
    with three_parties(tmp_path) as federation:
        plan = federation.plan(co.Describe(epsilon=0.5))
        with federation.open(plan) as job:
            clinic: Party = federation.transport["clinic"]  # type: ignore[index]
            asked = Request(kind="heads", job=job.id, arguments={"heads": []}).encode()
            assert Reply.decode(clinic.handle(asked)).error == UnsafeRequest.code


def test_other_members_remember_where_run_folders_are_lost(tmp_path: Path) -> None:
    """An honest coordinator on a new machine: a restored ledger is refused by what the others keep."""
    home, copy = tmp_path / "home" / "court", tmp_path / "older.db"
    with three_parties(tmp_path) as federation:
        describe(federation, name="first")
    assert CliRunner().invoke(app, ["ledger", "backup", str(home), "--out", str(copy)]).exit_code == 0
    with three_parties(tmp_path) as federation:
        describe(federation, name="second")
        federation._signer, federation._greeted = Signer(tmp_path), False
        federation.handshake()
    assert CliRunner().invoke(app, ["ledger", "restore", str(copy), str(home)]).exit_code == 0
    shutil.rmtree(tmp_path / "runs")
    with three_parties(tmp_path) as federation:
        federation._signer = Signer(tmp_path)
        with pytest.raises(CorruptRecord):
            federation.handshake()


def test_a_member_cannot_blame_another_with_a_head_that_it_did_not_sign(tmp_path: Path) -> None:
    with three_parties(tmp_path) as federation:
        describe(federation)
        federation._signer = Signer(tmp_path)
        clinic: Party = federation.transport["clinic"]  # type: ignore[index]
        forged = [{**told, "rows": told["rows"] + 1} for told in clinic.heads.longest()]
        clinic.heads.longest = lambda: forged  # type: ignore[method-assign]
        federation._greeted = False
        with pytest.raises(SealBroken):
            federation.handshake()
