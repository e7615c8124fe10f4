"""What a coordinator proposes is what a party itself plans; no proposal, check, seed or order of requests gets it more.

Each test says what a hostile coordinator wants and which code it gets instead.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from colonnade.federation import policy
from colonnade.federation.job import proposal
from colonnade.federation.messages import Request
from colonnade.federation.plan import Plan
from colonnade.federation.policy import plan_of_steps
from colonnade.federation.stage import Stage, number, stage
from colonnade.federation.step import registered
from colonnade.papers.fedpsg.gan import share_labels
from colonnade.papers.sqm.logistic import SQMLogistic
from colonnade.papers.vfem.method import VFEM
from colonnade.privacy.cost import Laplace
from colonnade.privacy.ledger import Budget
from colonnade.statistics.describe import Describe, marginal
from colonnade.statistics.tables import Tables
from support.hostile import Hostile, Refused, disarm, letters
from support.small import three_parties

DESCRIBE = Describe(epsilon=0.5, columns=("age", "sued"), marginals="histogram")
TABLES = Tables(tables=(("sector", "sued"),), epsilon=0.5)


@pytest.fixture
def hostile(tmp_path: Path) -> Iterator[Hostile]:
    with three_parties(tmp_path, budget=Budget(epsilon=1.0, delta=1e-6), allow=("presence", "labels")) as federation:
        yield Hostile(federation)


def plan_of(hostile: Hostile, method: Any = DESCRIBE) -> Plan:
    made: Plan = method.plan(hostile.facts, hostile.roster)
    return made


def releases(hostile: Hostile) -> int:
    return sum(
        row.body["kind"] == "release"
        for name in hostile.roster.names
        for row in hostile.party(name).transcript.rows(direction="out")
    )


# --- plans that are not what they seem ------------------------------------------------------------------------------


def _cheaper(planned: Stage) -> Stage:
    return replace(planned, costs={party: Laplace(1e-6) for party in planned.costs})


def _first(change: Callable[[Stage], Stage]) -> Callable[[Plan], Plan]:
    return lambda plan: replace(plan, stages=(change(plan.stages[0]), *plan.stages[1:]))


FORGED: dict[str, Callable[[Plan], Plan]] = {
    "other audience": _first(lambda planned: replace(planned, audience="the parties themselves")),
    "other recipients": _first(lambda planned: replace(planned, recipients=("clinic", "court", "bank"))),
    "other step": _first(lambda planned: replace(planned, step=marginal.name)),
    "other name": _first(lambda planned: replace(planned, name="a further stage")),
    "more requests": _first(lambda planned: replace(planned, counts=dict.fromkeys(planned.counts, 9))),
    "lower cost": _first(_cheaper),
    "other rules": _first(lambda planned: replace(planned, later={"column": number("any column")})),
    "mild words": _first(lambda planned: replace(planned, discloses="nothing of note")),
    "other sizes": _first(lambda planned: replace(planned, reply_bytes=1)),
    "mild notes": lambda plan: replace(plan, notes=("Nothing leaves.",)),
    "mild assumption": lambda plan: replace(plan, missing_data="All records are complete."),
    "large delta": lambda plan: replace(plan, delta=0.9),
    "one stage more": lambda plan: replace(plan, stages=(*plan.stages, replace(plan.stages[-1], name="again"))),
    "one stage less": lambda plan: replace(plan, stages=plan.stages[1:]),
    "other order": lambda plan: replace(plan, stages=plan.stages[::-1]),
    "other method": lambda plan: replace(plan, method="moments"),
    "no method": lambda plan: replace(plan, method="ask"),
    "other options": lambda plan: replace(plan, options={**plan.options, "columns": ["visits"]}),
    "further options": lambda plan: replace(plan, options={**plan.options, "method": "moments"}),
    "a plan in the options": lambda plan: replace(plan, options={**plan.options, "stages": plan.to_dict()["stages"]}),
}


def test_a_forged_plan_is_refused(hostile: Hostile) -> None:
    """By a check and by a proposal; the honest plan is approved by both."""
    for name, forge in {**FORGED, "honest": lambda plan: plan}.items():
        arguments = proposal(forge(plan_of(hostile)), hostile.roster, hostile.facts, None)
        for kind, job in (("check", ""), ("propose", "job")):
            reply = hostile.say("clinic", Request(kind=kind, job=job, arguments=arguments))
            assert bool(reply.error) == (name != "honest"), (name, kind)
        assert bool(hostile.party("clinic").ledger.chain.rows()) == (name == "honest")


@pytest.mark.parametrize("words", ["mild words", "mild notes", "large delta"])
def test_an_operator_reads_the_words_of_its_own_installation(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, words: str
) -> None:
    """What waits is shown as it was proposed; without the check an operator would read the coordinator's words."""
    with three_parties(tmp_path, approve="ask") as federation:
        hostile = Hostile(federation)
        forged = FORGED[words](plan_of(hostile))
        with pytest.raises(Refused, match="unsafe-request"):
            hostile.propose(forged)
        assert not hostile.party("clinic").waiting()
        disarm(monkeypatch, "genuine plan")
        hostile.propose(forged)
        shown = hostile.party("clinic").waiting()["job"]
        assert shown.text() != plan_of(hostile).text()


def test_other_parties_costs_cannot_be_understated(hostile: Hostile) -> None:
    """A person's total over all parties is part of what an operator reads."""
    plan = plan_of(hostile)
    first = plan.stages[0]
    forged = replace(plan, stages=(replace(first, costs={**first.costs, "bank": Laplace(1e-6)}), *plan.stages[1:]))
    with pytest.raises(Refused, match="unsafe-request"):
        hostile.propose(forged, to=["clinic"])


@pytest.mark.parametrize(
    ("step", "arguments", "recipients"),
    [
        (share_labels, {"label": "age", "members": ["bank"]}, ("bank",)),
        (marginal, {"column": "age", "shape": "histogram", "bins": 9, "noise": "laplace", "level": 0.1}, ()),
    ],
)
def test_steps_of_methods_are_not_asked_by_themselves(
    hostile: Hostile, monkeypatch: pytest.MonkeyPatch, step: Any, arguments: dict[str, Any], recipients: tuple[str, ...]
) -> None:
    """A job of single steps states all of its arguments itself. Whoever composes it chooses what is asked, of whom, for
    whom, whatever a method would bind."""
    single = stage(
        "single",
        step,
        {"clinic": [arguments]},
        facts=hostile.facts,
        roster=hostile.roster,
        discloses="nothing",
        recipients=recipients,
    )
    with pytest.raises(Refused, match="unsafe-request"):
        hostile.propose(plan_of_steps([single]))
    monkeypatch.setattr(policy, "_asked_alone", registered)
    hostile.propose(plan_of_steps([single]), job="then")
    answer = hostile.ask("clinic", single, job="then")
    assert answer.value is not None or answer.mail


def test_a_job_has_one_proposal(hostile: Hostile) -> None:
    hostile.propose(plan_of(hostile))
    for method in (TABLES, Describe(epsilon=0.4, columns=("age",))):
        with pytest.raises(Refused, match="replay-mismatch"):
            hostile.propose(plan_of(hostile, method))
    hostile.propose(plan_of(hostile))  # the same once more reserves nothing
    assert len(hostile.party("court").ledger.chain.rows(kind="reserve")) == 2


def test_seed_facts_and_roster_are_the_pinned_ones(hostile: Hostile) -> None:
    plan = plan_of(hostile)
    for changed, code in (
        ({"seed": 1}, "seed-refused"),
        ({"facts": "0" * 64}, "roster"),
        ({"roster": "0" * 64}, "roster"),
        ({"view": "server"}, "unsafe-request"),
    ):
        with pytest.raises(Refused, match=code):
            hostile.propose(plan, **changed)
    assert releases(hostile) == 0


def test_a_plan_for_other_facts_is_not_genuine(hostile: Hostile) -> None:
    """Planned for ten times as many records, with the pinned fingerprint: its noise would be for another cohort."""
    other = replace(hostile.facts, n=10 * hostile.facts.n)
    plan = TABLES.plan(other, hostile.roster)
    with pytest.raises(Refused, match="unsafe-request"):
        hostile.propose(plan, job="other facts")


def test_a_check_reserves_and_shows_nothing(hostile: Hostile) -> None:
    """It says no more than that a plan would be approved, wait or be refused, with one digit of what is left of the
    budget if the policy tells it; a thousand of them cost nothing."""
    clinic = hostile.party("clinic")
    clinic.policy = replace(clinic.policy, tells="code")
    seen = set()
    for epsilon in np.linspace(0.1, 3.0, 8):
        plan = plan_of(hostile, replace(DESCRIBE, epsilon=float(epsilon)))
        arguments = proposal(plan, hostile.roster, hostile.facts, None)
        for job in ("", "job"):
            reply = hostile.say("clinic", Request(kind="check", job=job, arguments=arguments))
            seen.add((reply.error, None if reply.value is None else tuple(reply.value)))
    assert seen == {("", ("state",)), ("budget-exceeded", None)}
    assert not clinic.ledger.chain.rows()
    assert clinic.store.job("job") is None
    with pytest.raises(Refused, match="not-approved"):
        hostile.ask("clinic", plan_of(hostile).stages[0])


# --- order, repetition, resumption ----------------------------------------------------------------------------------


def test_requests_come_in_the_order_of_the_plan(hostile: Hostile) -> None:
    stages = TABLES.procedure(hostile.facts, hostile.roster)
    hostile.propose(plan_of(hostile, TABLES))
    with pytest.raises(Refused):
        hostile.ask("clinic", stages.open)
    with pytest.raises(Refused):  # the refused request was debited: the stages before it are over
        hostile.ask("clinic", stages.share)
    assert releases(hostile) == 0


def test_a_resumed_job_cannot_ask_in_another_order(hostile: Hostile) -> None:
    """What was answered is replayed as it was; under its number nothing else is asked, and no number is left out."""
    plan = plan_of(hostile)
    hostile.propose(plan)
    presence, marginals = plan.stages
    first = hostile.ask("clinic", presence)
    again = Request(
        kind="ask", job="job", seq=1, stage=presence.name, step=presence.step, arguments=presence.requests["clinic"][0]
    )
    assert hostile.say("clinic", again) == first
    other = replace(again, stage=marginals.name, step=marginals.step, arguments=marginals.requests["clinic"][0])
    assert hostile.say("clinic", other).error == "replay-mismatch"
    assert hostile.say("clinic", replace(other, seq=3)).error == "beyond-reservation"
    assert hostile.say("clinic", replace(again, seq=2)).error == "beyond-reservation"
    assert not hostile.say("clinic", replace(other, seq=2)).error
    assert releases(hostile) == 2


def test_a_closed_job_answers_nothing(hostile: Hostile) -> None:
    plan = plan_of(hostile)
    hostile.propose(plan)
    hostile.ask("clinic", plan.stages[0])
    assert not hostile.say("clinic", Request(kind="close", job="job", arguments={})).error
    with pytest.raises(Refused, match="not-approved"):
        hostile.ask("clinic", plan.stages[1])
    arguments = proposal(plan, hostile.roster, hostile.facts, None)
    reply = hostile.say("clinic", Request(kind="propose", job="job", arguments=arguments))
    assert reply.error or reply.value["state"] == "closed"
    with pytest.raises(Refused, match="not-approved"):
        hostile.ask("clinic", plan.stages[1])


def test_a_failed_request_is_spent(hostile: Hostile) -> None:
    """Selective abort: an opening that fails for want of mail is debited all the same, and is not made again."""
    stages = TABLES.procedure(hostile.facts, hostile.roster)
    hostile.propose(plan_of(hostile, TABLES))
    dealt = letters(hostile.ask_all(stages.share))
    before = hostile.debited("court")
    with pytest.raises(Refused, match=r"party-lost|secure"):
        hostile.ask("court", stages.compare, mail=[letter for letter in dealt if letter.sender != "bank"])
    assert hostile.debited("court") == before + 1
    with pytest.raises(Refused, match="beyond-reservation"):
        hostile.ask("court", stages.compare, mail=dealt)


# --- rounds ---------------------------------------------------------------------------------------------------------


def test_the_weights_of_one_round_are_not_those_of_another(tmp_path: Path) -> None:
    """What was dealt for some weights is opened with these, by no holder with others, also if all are told the same."""
    with three_parties(tmp_path) as federation:
        hostile = Hostile(federation)
        method = SQMLogistic(response="sued", columns=("age", "visits", "rating"), rounds=2, sampling=0.5, epsilon=5.0)
        stages = method.procedure(hostile.facts, hostile.roster)
        hostile.propose(plan_of(hostile, method))
        width = stages.layout.width
        weights = [{"number": number, "chosen": {"weights": [number] * width}} for number in (0, 1)]
        dealt = letters(hostile.ask_all(stages.share, changed=weights[0], mail=letters(hostile.ask_all(stages.agree))))
        for changed in ({**weights[1], "number": 0}, weights[1], {**weights[0], "number": 1}):
            with pytest.raises(Refused):
                hostile.ask("court", stages.compare, changed=changed, mail=dealt)
            with pytest.raises(Refused):
                hostile.ask("court", stages.open, changed=changed)


def test_a_round_of_masked_sums_serves_once(tmp_path: Path) -> None:
    """Two masked vectors under one pad would differ by data alone."""
    allow = ("presence", "predictor-sums", "residuals", "block-moments", "exact-moments")
    with three_parties(tmp_path, allow=allow) as federation:
        hostile = Hostile(federation)
        method = VFEM(response="age", columns=("age", "visits", "sued", "rating"), rounds=10)
        plan = plan_of(hostile, method)
        hostile.propose(plan)
        mail: list[Any] = []
        predictors = next(each for each in plan.stages if each.step.endswith("vfem.steps.predictors"))
        for planned in plan.stages[: plan.stages.index(predictors)]:
            mail = letters({name: hostile.ask(name, planned, mail=mail) for name in planned.costs})
        sender = next(iter(predictors.costs))
        first = hostile.ask(sender, predictors, mail=mail)
        assert first.mail
        for number in (0, 2, -1):
            with pytest.raises(Refused, match="unsafe-request"):
                hostile.ask(sender, predictors, 1, changed={"round_number": number})


def test_a_seed_is_refused_also_while_a_job_runs(tmp_path: Path) -> None:
    """A party that stops being a simulation answers nothing of a job that was proposed with a seed."""
    with three_parties(tmp_path, seed=5) as federation:
        hostile = Hostile(federation)
        plan = plan_of(hostile)
        hostile.propose(plan)
        hostile.party("clinic").simulation = False
        with pytest.raises(Refused, match="seed-refused"):
            hostile.ask("clinic", plan.stages[0])


def test_replies_are_the_same_bytes(hostile: Hostile) -> None:
    """A repeated request is answered from the records, so its noise cannot be averaged away."""
    plan = plan_of(hostile)
    hostile.propose(plan)
    values = [hostile.ask("court", plan.stages[0]).value]
    again = Request(
        kind="ask",
        job="job",
        seq=1,
        stage=plan.stages[0].name,
        step=plan.stages[0].step,
        arguments=plan.stages[0].requests["court"][0],
    )
    values += [hostile.say("court", again).value for _ in range(20)]
    assert len(set(values)) == 1
