"""What the plan shows is what runs: stages are asked as they were planned, one request after the other."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest

from colonnade.errors import RunError, UnsafeRequest
from colonnade.federation.coordinator import Federation
from colonnade.federation.plan import Plan
from colonnade.federation.policy import plan_of_steps
from colonnade.federation.stage import (
    Later,
    Stage,
    checked_by_step,
    counted,
    fields_of,
    flag,
    integer,
    number,
    numbers,
    one_of,
    stage,
)
from colonnade.federation.wire import Written, decode, encode
from colonnade.privacy.cost import Laplace
from colonnade.statistics.describe import Describe
from support import steps
from support.plans import plan_of_stages
from support.small import three_parties

PARTIES = ("clinic", "court", "bank")


def asking(federation: Federation, requests: dict[str, list[dict[str, Any]]], **more: Any) -> Stage:
    return stage(
        "noise",
        steps.noisy_zero,
        requests,
        facts=federation.facts,
        roster=federation.roster,
        discloses="random bytes",
        **more,
    )


def asked(federation: Federation, party: str) -> list[str]:
    """The marks of the requests that reached a party, as its ledger's costs tell them apart."""
    rows = federation.transport[party].ledger.chain.rows(kind="debit")  # type: ignore[index]
    return [row.body["cost"]["parameters"]["epsilon"] for row in rows]


def test_a_second_ask_takes_the_next_request(tmp_path: Path) -> None:
    with three_parties(tmp_path) as federation:
        planned = asking(
            federation, {"clinic": [{"epsilon": 0.1}, {"epsilon": 0.2}], "court": [{"epsilon": 0.3}], "bank": []}
        )
        assert planned.parties == ("clinic", "court"), "a party without requests takes no part"
        assert planned.rounds == 2
        with federation.open(plan_of_steps([planned])) as job:
            assert set(job.ask(planned)) == {"clinic", "court"}
            assert set(job.ask(planned)) == {"clinic"}, "only a party that has a request left"
            with pytest.raises(RunError, match="has no request left; the plan reserved 2 of them"):
                job.ask(planned)
        assert asked(federation, "clinic") == [0.1, 0.2]
        assert asked(federation, "court") == [0.3]


def test_too_many_asks_are_refused(tmp_path: Path) -> None:
    with three_parties(tmp_path) as federation:
        planned = asking(federation, {"clinic": [{"epsilon": 0.1}]})
        with federation.open(plan_of_steps([planned])) as job:
            job.ask(planned, parties=["clinic"])
            with pytest.raises(RunError, match="has 1 requests for 'clinic'; there is no further one"):
                job.ask(planned, parties=["clinic"])
        assert asked(federation, "clinic") == [0.1]


def test_only_what_is_named_later_may_differ(tmp_path: Path) -> None:
    with three_parties(tmp_path) as federation:
        planned = asking(
            federation,
            {party: [{"epsilon": 0.1, "mark": ""}] * 2 for party in PARTIES},
            later={"mark": Later("an empty text or the name of a file", lambda value, _: value != "*")},
        )
        assert planned.to_dict()["later"] == {"mark": "an empty text or the name of a file"}
        with federation.open(plan_of_stages("describe", [planned])) as job:
            with pytest.raises(RunError, match="fixes epsilon in its plan; only what is named later may differ"):
                job.ask(planned, epsilon=0.05)
            job.ask(planned, mark="a")
            with pytest.raises(UnsafeRequest):
                job.ask(planned, mark="*", parties=["clinic"])
            job._seq["clinic"] -= 1
            job._asked[planned.name]["clinic"] -= 1
            job.ask_each(planned, {party: {"mark": party} for party in PARTIES})
        assert asked(federation, "bank") == [0.1, 0.1]


def test_a_stage_prices_equal_requests_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    prices: list[float] = []

    def price(public: Any, *, epsilon: float, mark: str = "") -> Any:
        prices.append(epsilon)
        return Laplace(epsilon)

    with three_parties(tmp_path) as federation:
        monkeypatch.setitem(steps.noisy_zero.__dict__, "cost", price)
        same = {"epsilon": 0.1}
        planned = asking(federation, {"clinic": [same] * 50})
        assert prices == [0.1]
        assert planned.costs["clinic"] == Laplace(0.1).times(50)


def test_every_round_of_a_joint_release_counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rounds that repeat one request are so many releases, whoever makes them together. (Chunks of one release are
    different requests with equal costs, and count once.)"""
    joint = Laplace(0.1, joint="(this job) rounds")
    with three_parties(tmp_path) as federation:
        monkeypatch.setitem(steps.noisy_zero.__dict__, "cost", joint)
        for each in ([{"epsilon": 0.1}] * 50, [{"epsilon": 0.1} for _ in range(50)]):
            assert asking(federation, {"clinic": each}).costs["clinic"] == joint.times(50)
        chunks = asking(federation, {"clinic": [{"epsilon": 0.1, "mark": str(number)} for number in range(50)]})
        assert chunks.costs["clinic"] == joint


def test_a_stage_without_a_cost_for_each_count_is_refused() -> None:
    with pytest.raises(RunError, match="a count and a cost for the same parties"):
        Stage(name="s", step="x", counts={"a": 1}, costs={}, audience="", discloses="")
    with pytest.raises(RunError, match="in integers"):
        Stage(name="s", step="x", counts={"a": True}, costs={"a": Laplace(1.0)}, audience="", discloses="")


def test_the_plan_that_was_confirmed_is_the_object_that_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[Plan] = []
    plan_of = Describe.plan

    def counted(self: Describe, *arguments: Any) -> Plan:
        made.append(plan_of(self, *arguments))
        return made[-1]

    with three_parties(tmp_path, seed=1) as federation:
        monkeypatch.setattr(Describe, "plan", counted)
        plan = federation.plan(Describe(epsilon=1.0))
        result, run = federation.run(plan)
        coordinators, parties = made
        assert coordinators is plan, "the coordinator planned nothing again"
        assert parties.fingerprint == plan.fingerprint, "the parties did, themselves"
        assert run.plan().fingerprint == plan.fingerprint
        assert result.presence.keys() == set(PARTIES)
        stored = run.plan()
        assert stored.run is None
        with pytest.raises(RunError, match="read from a file cannot run"):
            federation.run(stored)


def test_a_stage_to_data_and_back(tmp_path: Path) -> None:
    with three_parties(tmp_path) as federation:
        planned = asking(
            federation, {"clinic": [{"epsilon": 0.1}]}, later={"mark": checked_by_step("a file")}, reply_bytes=8
        )
        read = Stage.from_dict(planned.to_dict())
        assert read.to_dict() == planned.to_dict()
        with pytest.raises(RunError, match="has 0 requests"):
            read.arguments("clinic", 0, {})


def test_a_later_table_is_written_as_it_is_each_time(tmp_path: Path) -> None:
    """Planned tables are written once for a job; a later one may be one object with other contents in each round."""
    with three_parties(tmp_path) as federation:
        planned = asking(federation, {"clinic": [{"epsilon": 0.1}]})
        fixed: dict[str, Any] = {"columns": ["age"]}
        later: dict[str, Any] = {"coefficients": {"age": 0.0}}
        with federation.open(plan_of_steps([planned])) as job:
            for value in (1.0, 2.0):
                later["coefficients"]["age"] = value
                written = job._written({"layout": fixed, **later}, later)
                assert isinstance(written["layout"], Written)
                assert decode(encode(written)) == {"layout": fixed, "coefficients": {"age": value}}
            job.ask(planned)


# --- the rules for arguments that only the running job knows -------------------------------------------------------


@pytest.mark.parametrize(
    ("rule", "planned", "allowed", "refused"),
    [
        (counted("rounds"), 2, [2], [0, 3, -1, 2.0, True, None, "2"]),
        (integer("a size", 0, 3), 0, [0, 3], [-1, 4, 1.0, True, None, "1"]),
        (number("a length", 0.5, 2.0), 1.0, [0.5, 1, 2.0], [0.0, 3, math.nan, math.inf, 10**400, True, None, "1"]),
        (number("any"), 1.0, [-1e300, 0], [math.nan, -math.inf, 10**400, None]),
        (
            numbers("weights", 2.0),
            [0.0, 0.0],
            [[1.0, -2]],
            [[1.0], [1.0, 3.0], [1.0, math.nan], [True, 1.0], (1, 1), None],
        ),
        (one_of("a mode", ["em", None]), "em", ["em", None], ["EM", 1, True, []]),
        (flag("whether"), True, [True, False], [0, 1, None, "true"]),
    ],
    ids=["counted", "integer", "number", "any number", "numbers", "one of", "flag"],
)
def test_a_rule_allows_what_it_says_and_nothing_else(
    rule: Later, planned: Any, allowed: list[Any], refused: list[Any]
) -> None:
    assert all(rule.allows(value, planned) for value in allowed)
    assert not any(rule.allows(value, planned) for value in refused)


def test_a_layout_may_differ_in_the_named_fields_only() -> None:
    planned = {"mu": 8, "names": ["a"], "ranges": {}}
    rule = fields_of("but for its ranges", ranges=lambda ranges: ranges["a"] < 1)
    assert rule.allows({**planned, "ranges": {"a": 0}}, planned)
    for other in ({"mu": 0}, {"mu": 8.0}, {"names": ["b"]}, {"ranges": {"a": 1}}, {"ranges": None}, {"more": 1}):
        assert not rule.allows({**planned, "ranges": {"a": 0}, **other}, planned)
    assert not rule.allows({"mu": 8, "ranges": {"a": 0}}, planned)
    assert not rule.allows(None, planned)


def test_a_request_states_the_number_that_its_stage_counts() -> None:
    planned = Stage(
        name="rounds",
        step="a step",
        counts={"clinic": 3},
        costs={"clinic": Laplace(0.3)},
        audience="coordinator",
        discloses="nothing",
        requests={"clinic": [{"epsilon": 0.1, "mark": 0}] * 3},
        later={"mark": counted("the rounds")},
    )
    assert [planned.arguments("clinic", place, {})["mark"] for place in range(3)] == [0, 1, 2]
    planned.bind("clinic", 1, {"epsilon": 0.1, "mark": 1})
    with pytest.raises(UnsafeRequest, match=r"mark of stage .* is not what the plan allows: the rounds"):
        planned.bind("clinic", 1, {"epsilon": 0.1, "mark": 0})
