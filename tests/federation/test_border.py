"""The six checks of the border, in their order, and what crosses it when one of them fails: a code, nothing else."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from colonnade.data.column import Column, Columns
from colonnade.errors import (
    AwaitingApproval,
    BadArguments,
    BeyondReservation,
    BudgetExceeded,
    DraftDomain,
    NotApproved,
    NotARelease,
    ReplayMismatch,
    RosterError,
    RunError,
    SealBroken,
    SeedRefused,
    StepFailed,
    UnboundedNotAllowed,
    UnknownStep,
    UnsafeRequest,
    codes,
)
from colonnade.federation.coordinator import Federation
from colonnade.federation.job import proposal
from colonnade.federation.messages import Reply, Request
from colonnade.federation.party import Party
from colonnade.federation.plan import Plan
from colonnade.federation.policy import plan_of_steps
from colonnade.federation.stage import stage
from colonnade.federation.step import Step
from colonnade.federation.transports.embedded import Embedded
from colonnade.privacy.ledger import Budget
from support import steps
from support.small import COLUMNS, three_parties


@pytest.fixture
def federation(tmp_path: Path) -> Iterator[Federation]:
    with three_parties(tmp_path) as made:
        yield made


def party(federation: Federation, name: str = "clinic") -> Party:
    assert isinstance(federation.transport, Embedded)
    return federation.transport[name]


def one_stage(federation: Federation, step: Step, requests: int = 2, **arguments: Any) -> Plan:
    wanted = {name: [arguments] * requests for name in federation.facts.parties}
    made = stage("stage", step, wanted, facts=federation.facts, roster=federation.roster, discloses="a test")
    return plan_of_steps([made])


def propose(federation: Federation, plan: Plan, job: str = "job", to: str = "clinic", seed: int | None = None) -> Reply:
    arguments = proposal(plan, federation.roster, federation.facts, seed)
    return say(party(federation, to), Request(kind="propose", job=job, arguments=arguments))


def ask(at: Party, step: str, *, job: str = "job", seq: int = 1, name: str = "stage", **arguments: Any) -> Reply:
    return say(at, Request(kind="ask", job=job, seq=seq, stage=name, step=step, arguments=arguments))


def say(at: Party, request: Request) -> Reply:
    return Reply.decode(at.handle(request.encode()))


def nothing_crossed(at: Party, reply: Reply, code: str) -> None:
    """Only the code left, no step ran to a release, and the transcript knows of the refusal."""
    assert reply.error == code
    assert reply.value is None
    assert not reply.mail
    assert not [row for row in at.transcript.rows(direction="out") if row.body["kind"] in ("release", "mail")]
    assert at.transcript.rows(direction="out")[-1].body["discloses"] == f"error code {code}"


def test_unregistered_step(federation: Federation) -> None:
    propose(federation, one_stage(federation, steps.noisy_zero, epsilon=0.1))
    nothing_crossed(party(federation), ask(party(federation), "os.system", epsilon=0.1), UnknownStep.code)
    assert not party(federation).ledger.chain.rows(kind="debit")


@pytest.mark.parametrize(
    "arguments", [{}, {"epsilon": "0.1"}, {"epsilon": 0.1, "extra": 1}, {"epsilon": True}, {"epsilon": None}]
)
def test_arguments_that_do_not_match(federation: Federation, arguments: dict[str, Any]) -> None:
    propose(federation, one_stage(federation, steps.noisy_zero, epsilon=0.1))
    reply = ask(party(federation), steps.noisy_zero.name, **arguments)
    nothing_crossed(party(federation), reply, BadArguments.code)
    assert not party(federation).ledger.chain.rows(kind="debit")


def test_a_proposal_names_its_job(federation: Federation) -> None:
    """A signed `check` names none; its signature must not do for a job."""
    plan = one_stage(federation, steps.noisy_zero, epsilon=0.1)
    nothing_crossed(party(federation), propose(federation, plan, job=""), UnsafeRequest.code)
    assert not party(federation).ledger.chain.rows()


@pytest.mark.parametrize("count", [-1, 1.5, "1", True, None])
def test_a_plan_counts_in_whole_numbers(federation: Federation, count: Any) -> None:
    """A count that cannot be compared would be in the ledger for good, and spoil its verification."""
    plan = one_stage(federation, steps.noisy_zero, epsilon=0.1)
    arguments = proposal(plan, federation.roster, federation.facts, None)
    arguments["plan"]["stages"][0]["counts"]["clinic"] = count
    reply = say(party(federation), Request(kind="propose", job="job", arguments=arguments))
    nothing_crossed(party(federation), reply, RunError.code)
    assert not party(federation).ledger.chain.rows()


def test_unapproved_job(federation: Federation) -> None:
    reply = ask(party(federation), steps.noisy_zero.name, job="never proposed", epsilon=0.1)
    nothing_crossed(party(federation), reply, NotApproved.code)


def test_a_job_waits_for_its_operator_and_can_be_denied(tmp_path: Path) -> None:
    with three_parties(tmp_path, approve="ask") as federation:
        plan = one_stage(federation, steps.noisy_zero, epsilon=0.1)
        here = party(federation)
        assert propose(federation, plan).value["state"] == "waiting"
        nothing_crossed(here, ask(here, steps.noisy_zero.name, epsilon=0.1), AwaitingApproval.code)
        assert not here.ledger.chain.rows()
        assert list(here.waiting()) == ["job"]
        here.decide("job", approve=True)
        assert not ask(here, steps.noisy_zero.name, epsilon=0.1).error
        propose(federation, plan, job="second")
        here.decide("second", approve=False)
        assert ask(here, steps.noisy_zero.name, job="second", epsilon=0.1).error == NotApproved.code
        assert propose(federation, plan, job="second").error == NotApproved.code


def test_a_replayed_request_gets_the_same_bytes_and_no_second_debit(federation: Federation) -> None:
    here = party(federation)
    propose(federation, one_stage(federation, steps.noisy_zero, epsilon=0.1))
    request = Request(
        kind="ask", job="job", seq=1, stage="stage", step=steps.noisy_zero.name, arguments={"epsilon": 0.1}
    ).encode()
    first, second = here.handle(request), here.handle(request)
    assert first == second
    assert len(here.ledger.chain.rows(kind="debit")) == 1
    assert [row.body["kind"] for row in here.transcript.rows(direction="out")][-1] == "replay"
    # The same number for another request is refused: a party never answers twice under one number.
    reply = ask(here, steps.noisy_zero.name, seq=1, epsilon=0.05)
    assert (reply.error, reply.value) == (ReplayMismatch.code, None)


def test_a_request_beyond_the_reservation(federation: Federation) -> None:
    here = party(federation)
    propose(federation, one_stage(federation, steps.noisy_zero, requests=2, epsilon=0.1))
    assert ask(here, steps.noisy_zero.name, seq=1, epsilon=0.1).error == ""
    for epsilon in (0.11, 0.09):
        assert ask(here, steps.noisy_zero.name, seq=2, epsilon=epsilon).error == UnsafeRequest.code, "not as planned"
    assert ask(here, steps.noisy_zero.name, seq=3, epsilon=0.1).error == BeyondReservation.code, "2 comes before 3"
    assert ask(here, steps.noisy_zero.name, seq=2, epsilon=0.1).error == ""
    assert ask(here, steps.noisy_zero.name, seq=3, epsilon=0.1).error == BeyondReservation.code
    assert ask(here, steps.bare_array.name, seq=3, epsilon=0.1).error == BeyondReservation.code
    assert ask(here, steps.noisy_zero.name, seq=3, name="other", epsilon=0.1).error == BeyondReservation.code
    assert len(here.ledger.chain.rows(kind="debit")) == 2


def test_the_budget_is_checked_for_the_whole_plan(tmp_path: Path) -> None:
    with three_parties(tmp_path, budget=Budget(epsilon=0.5)) as federation:
        here = party(federation)
        assert not propose(federation, one_stage(federation, steps.noisy_zero, epsilon=0.2)).error
        reply = propose(federation, one_stage(federation, steps.noisy_zero, epsilon=0.1), job="second")
        assert reply.error == BudgetExceeded.code
        assert here.store.job("second") is None
        assert len(here.ledger.chain.rows(kind="reserve")) == 1
        # Nothing is refunded: the first job's reservation counts although no request of it was ever made.
        assert here.ledger.spent(delta=0).epsilon == pytest.approx(0.4)


def test_no_party_reserves_when_another_refuses(tmp_path: Path) -> None:
    with three_parties(tmp_path, budget=Budget(epsilon=0.5)) as federation:
        # Use up one party's budget behind the coordinator's back.
        propose(federation, one_stage(federation, steps.noisy_zero, epsilon=0.2), to="bank")
        with pytest.raises(BudgetExceeded, match="bank"):
            federation.ask(steps.noisy_zero, epsilon=0.2)
        assert not party(federation, "clinic").ledger.chain.rows()
        assert not list((tmp_path / "runs").glob("*")), "a refused job leaves no run folder"


def test_an_unbounded_release_must_be_allowed_by_name(tmp_path: Path) -> None:
    with three_parties(tmp_path) as federation, pytest.raises(UnboundedNotAllowed):
        federation.ask(steps.exact_sum)
    with three_parties(tmp_path / "allowed", allow=("raw-sum",)) as federation:
        assert set(federation.ask(steps.exact_sum)) == {"clinic", "court", "bank"}
        assert "unbounded" in str(party(federation).ledger.spent())


def test_what_is_not_a_release_never_leaves(federation: Federation) -> None:
    propose(federation, one_stage(federation, steps.bare_array, epsilon=0.1))
    reply = ask(party(federation), steps.bare_array.name, epsilon=0.1)
    nothing_crossed(party(federation), reply, NotARelease.code)
    assert len(party(federation).ledger.chain.rows(kind="debit")) == 1, "debited before the step saw data"


def test_an_error_crosses_as_a_code_and_stays_in_the_log(federation: Federation) -> None:
    here = party(federation)
    propose(federation, one_stage(federation, steps.raises_with_data, epsilon=0.1))
    request = Request(
        kind="ask", job="job", seq=1, stage="stage", step=steps.raises_with_data.name, arguments={"epsilon": 0.1}
    )
    answer = here.handle(request.encode())
    assert Reply.decode(answer).error == StepFailed.code
    assert b"424242" not in answer
    assert "424242" in (here.home / "log.txt").read_text()


def test_every_code_comes_from_the_fixed_list(federation: Federation) -> None:
    for data in (b"", b"garbage", Request(kind="ask", job="x", arguments={}).encode(), b"\x80\x04pickle."):
        reply = Reply.decode(party(federation).handle(data))
        assert reply.error in codes()


def test_a_seed_is_accepted_only_in_simulation(tmp_path: Path) -> None:
    with three_parties(tmp_path / "real") as federation:
        reply = propose(federation, one_stage(federation, steps.noisy_zero, epsilon=0.1), seed=7)
        assert reply.error == SeedRefused.code
        assert federation.ask(steps.noisy_zero, epsilon=0.1) != federation.ask(steps.noisy_zero, epsilon=0.1)
    answers = []
    for name in "ab":
        with three_parties(tmp_path / name, seed=7) as federation:
            answers.append(federation.ask(steps.noisy_zero, epsilon=0.1)["clinic"])
    assert len(set(answers)) == 1, "a simulation can be repeated"


def test_a_proposal_on_another_roster_or_other_facts_is_refused(federation: Federation) -> None:
    plan = one_stage(federation, steps.noisy_zero, epsilon=0.1)
    arguments = proposal(plan, federation.roster, federation.facts, None)
    for field in ("roster", "facts"):
        request = Request(kind="propose", job=field, arguments={**arguments, field: "0" * 64})
        assert say(party(federation), request).error == RosterError.code


def test_draft_bounds_are_refused(tmp_path: Path) -> None:
    age = Column(name="age", kind="continuous", lower=0.0, upper=100.0, draft=True)
    drafted = Columns([age, *(COLUMNS[name] for name in COLUMNS if name != "age")])
    with pytest.raises(DraftDomain, match="age"):
        three_parties(tmp_path, columns=drafted)
    assert not list(tmp_path.iterdir()), "nothing was written"


def test_sealed_mail_reaches_its_recipient_and_nobody_else(federation: Federation) -> None:
    here: dict[str, Any] = {"facts": federation.facts, "roster": federation.roster}
    everybody = {name: [{}] for name in federation.roster.names}
    plan = plan_of_steps(
        (
            stage(
                "send",
                steps.send_greeting,
                everybody,
                discloses="sealed mail",
                recipients=federation.roster.names,
                **here,
            ),
            stage("read", steps.read_greetings, everybody, discloses="a sum", **here),
        ),
    )
    with federation.open(plan) as job:
        job.ask(plan.stage("send"))
        pending = {name: list(mail) for name, mail in job._pending.items()}
        answers = job.ask(plan.stage("read"))
    assert answers == {name: dict.fromkeys(federation.roster.names, 6) for name in federation.roster.names}
    for name, mail in pending.items():
        assert {one.recipient for one in mail} == {name}
        assert all(b"greeting" not in one.sealed for one in mail), "the coordinator cannot read it"


def test_tampered_or_redirected_mail_is_refused(federation: Federation) -> None:
    here: dict[str, Any] = {"facts": federation.facts, "roster": federation.roster}
    everybody = {name: [{}] for name in federation.roster.names}
    plan = plan_of_steps(
        (
            stage(
                "send",
                steps.send_greeting,
                everybody,
                discloses="sealed mail",
                recipients=federation.roster.names,
                **here,
            ),
            stage("read", steps.read_greetings, {n: [{}] * 4 for n in everybody}, discloses="a sum", **here),
        ),
    )
    with federation.open(plan) as job:
        job.ask(plan.stage("send"))
        good, letter = job._pending["clinic"]
        changed = replace(letter, sealed=letter.sealed[:-1] + bytes([letter.sealed[-1] ^ 1]))
        stolen = replace(job._pending["bank"][0], recipient="clinic")
        renamed = replace(letter, sender=good.sender)
        for mail in ([good, changed], [stolen], [renamed], [good, good]):
            job._pending["clinic"] = mail
            with pytest.raises(SealBroken):
                job.ask(plan.stage("read"), parties=["clinic"])


def test_mail_that_was_read_is_not_read_again(federation: Federation) -> None:
    """Genuine letters of round 1 (the seal is right) cannot stand for those of round 2."""
    here: dict[str, Any] = {"facts": federation.facts, "roster": federation.roster}
    rounds = {name: [{"tag": "first"}, {"tag": "second"}] for name in federation.roster.names}
    reading = {name: [{"tag": tag} for tag in ("first", "first", "second")] for name in federation.roster.names}
    plan = plan_of_steps(
        (
            stage(
                "send", steps.send_greeting, rounds, discloses="sealed mail", recipients=federation.roster.names, **here
            ),
            stage("read", steps.read_greetings, reading, discloses="a sum", **here),
        ),
    )
    with federation.open(plan) as job:
        job.ask(plan.stage("send"))
        first = {name: list(mail) for name, mail in job._pending.items()}
        job.ask(plan.stage("read"))
        job.ask(plan.stage("send"))
        second, job._pending = job._pending, first
        with pytest.raises(SealBroken):
            job.ask(plan.stage("read"))
        job._pending = second
        assert set(job.ask(plan.stage("read"))) == set(federation.roster.names)
