"""Several operators: passwords, the two-person rule, and the notice that something waits."""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlencode

import pytest
from typer.testing import CliRunner

from colonnade.cli.main import app
from colonnade.console import server
from colonnade.console.operators import Operators, send_notice
from colonnade.errors import BadArguments, NotApproved, SchemaError
from colonnade.federation.config import PartyFile
from colonnade.federation.policy import Policy
from colonnade.statistics.describe import Describe
from support.operators import Operated, Visitor, served

ALICE, BOB = "correct horse battery", "staple a paper swan"


@pytest.fixture
def operated(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Operated]:
    monkeypatch.setattr(server, "WRONG", 0.0)
    party = Operated(tmp_path, n=200)
    notices = tmp_path / "notices.txt"
    text = party.file.read_text().replace('approve = "ask"', 'approve = "ask"\napprovals = 2')
    party.file.write_text(f'notice = ["tee", "-a", "{notices}"]\n{text}')
    with contextlib.closing(party):
        yield party


def signed_in(visitor: Visitor, name: str, password: str) -> int:
    console = visitor.console
    fields = urlencode({"name": name, "password": password})
    answer, _ = visitor.send("POST", f"{console.base}sign-in", fields, Origin=console.origin)
    if answer.status == 303:
        visitor.cookie = answer.headers["Set-Cookie"].partition(";")[0]
    return answer.status


def test_two_operators_must_approve(operated: Operated, tmp_path: Path) -> None:
    service = operated.service
    run = operated.ask(Describe(epsilon=1.0), "asked")
    job = run.job["job"]
    with pytest.raises(NotApproved, match="operators must approve"):
        service.decide(job, approve=True)
    service.operators.add("alice", ALICE)
    service.operators.add("bob", BOB)
    with pytest.raises(NotApproved, match="say who you are"):
        service.decide(job, approve=True)
    with pytest.raises(NotApproved, match="say who you are"):
        service.end(job, by="mallory")
    with served(service) as (console, link):
        assert "token" not in link
        visitor = Visitor(console, inside=False)
        assert visitor.get(f"{console.base}requests").status == 401
        assert visitor.get(f"{console.base}enter?token={console._entrance}").status == 401
        for name, password in (("alice", BOB), ("mallory", ALICE), ("", "")):
            assert signed_in(visitor, name, password) == 401
        fields = urlencode({"name": "alice", "password": ALICE})
        assert visitor.send("POST", f"{console.base}sign-in", fields)[0].status == 403
        assert signed_in(visitor, "alice", ALICE) == 303
        assert visitor.decide(job, "approve")[0] == 303
        assert visitor.decide(job, "approve")[0] == 303  # the same person twice is one person
        assert service.job(job).state == "waiting"
        assert service.job(job).approved_by == ("alice",)
        assert "approved by alice; waits for another" in visitor.page(f"requests/{job}")
    prompted = CliRunner().invoke(
        app, ["party", "approve", str(operated.file), job, "--operator", "bob"], input=f"{BOB}\n"
    )
    assert prompted.exit_code == 0, prompted.output
    decided = service.job(job)
    assert decided.state == "approved"
    assert decided.approved_by == ("alice", "bob")
    notices = tmp_path / "notices.txt"
    deadline = time.monotonic() + 10
    while not (notices.is_file() and "1 more must" in notices.read_text()) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert "alice has approved" in notices.read_text()


def test_one_operator_is_enough_to_deny(operated: Operated) -> None:
    job = operated.ask(Describe(epsilon=1.0), "asked").job["job"]
    operated.service.operators.add("alice", ALICE)
    assert operated.service.decide(job, approve=False, by="alice") == 0
    assert operated.service.job(job).state == "denied"


def test_passwords_are_kept_as_argon2id_alone(tmp_path: Path) -> None:
    operators = Operators(tmp_path)
    assert operators.names == ()
    with pytest.raises(BadArguments, match="at least 12"):
        operators.add("alice", "short")
    with pytest.raises(BadArguments):
        operators.add("../alice", ALICE)
    operators.add("alice", ALICE)
    stored = json.loads(operators.path.read_text())
    assert stored["alice"].startswith("$argon2id$v=19$m=65536,t=3,p=4$")
    assert ALICE not in operators.path.read_text()
    assert operators.path.stat().st_mode & 0o077 == 0
    assert operators.signed_in("alice", ALICE) == "alice"
    for name, password in (("alice", BOB), ("bob", ALICE)):
        with pytest.raises(NotApproved, match="do not belong together"):
            operators.signed_in(name, password)
    operators.remove("alice")
    with pytest.raises(BadArguments, match="no operator"):
        operators.remove("alice")


def test_a_party_notifies_when_a_job_waits(operated: Operated) -> None:
    heard: list[str] = []
    operated.parties["credit"].notice = heard.append
    operated.ask(Describe(epsilon=1.0), "asked")
    assert len(heard) == 1
    assert "waits for a decision (describe)" in heard[0]


def test_a_notice_that_cannot_be_sent_is_said(tmp_path: Path) -> None:
    lines: list[str] = []
    for command in (["/nonexistent/mail"], ["false"]):
        send_notice(command, "text; rm -rf $HOME", said=lines.append)
    send_notice([], "text")
    deadline = time.monotonic() + 10
    while len(lines) < 2 and time.monotonic() < deadline:
        time.sleep(0.02)
    assert all("check `notice` in party.toml" in line for line in lines)
    assert len(lines) == 2


def test_lines_of_the_policy(operated: Operated) -> None:
    settings = PartyFile.from_toml(operated.file)
    assert settings.policy.approvals == 2
    assert settings.notice[0] == "tee"
    with pytest.raises(SchemaError, match="approvals"):
        Policy(approvals=0)
