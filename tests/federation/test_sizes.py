"""Sizes in arguments and options are bounded before memory is taken, and before anything is debited."""

from __future__ import annotations

import copy
import inspect
import resource
import tracemalloc
import typing
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import colonnade as co
from colonnade.alignment.align import blind
from colonnade.alignment.lists import MOST_RECORDS
from colonnade.errors import BadArguments, ColonnadeError
from colonnade.federation import step as steps
from colonnade.federation.catalogue import CATALOGUE
from colonnade.federation.facts import PublicFacts
from colonnade.federation.job import proposal
from colonnade.federation.messages import Reply, Request
from colonnade.federation.party import Party
from colonnade.federation.roster import Roster
from colonnade.federation.step import Size
from colonnade.statistics.describe import marginal
from frozen.mapping import translate
from frozen.test_frozen_plans import _cases, _file
from support.small import three_parties

MOST = 200 * 2**20
"""Bytes that no refusal may take."""
HUGE = (10**9, 2**62, 10**30)


def peak(work: Callable[[], object]) -> int:
    tracemalloc.start()
    try:
        work()
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


def places(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Where whole numbers stand in arguments, the first few of a list."""
    if isinstance(value, int) and not isinstance(value, bool):
        yield path
    elif isinstance(value, dict):
        for name, part in value.items():
            yield from places(part, (*path, name))
    elif isinstance(value, list | tuple):
        for number, part in enumerate(value[:2]):
            yield from places(part, (*path, number))


def put(value: Any, path: tuple[Any, ...], new: int) -> Any:
    changed = copy.deepcopy(value)
    inner = changed
    for name in path[:-1]:
        inner = inner[name]
    inner[path[-1]] = new
    return changed


METHODS: dict[str, Any] = {
    "describe": lambda: co.Describe(epsilon=1.0),
    "tables": lambda: co.Tables(tables=(("age", "sued"), ("rating", "sector")), epsilon=1.0, delta=1e-6),
    "moments": lambda: co.Moments(columns=("age", "visits", "rating"), epsilon=1.0, delta=1e-6, presence="ignore"),
    "align": lambda: co.Align(capacity=dict.fromkeys(("clinic", "court", "bank"), 60)),
    "select": lambda: co.Select(response="sued", family="binomial", n_lambdas=2, rounds=3),
}


@pytest.mark.parametrize("name", METHODS)
def test_no_request_with_a_huge_number_is_answered_or_debited(tmp_path: Path, name: str) -> None:
    """Every whole number in the first request of every stage of an approved job, made huge."""
    allow = ("alignment", "presence", "record-count", "total-predictor", "loss", "response-residuals", "gradients")
    with three_parties(tmp_path, allow=(*allow, "coefficients"), seed=1) as federation:
        plan = METHODS[name]().plan(federation.facts, federation.roster)
        proposed = Request(
            kind="propose", job="j", arguments=proposal(plan, federation.roster, federation.facts, 1)
        ).encode()
        for party in federation.transport.parties:
            assert not Reply.decode(federation.transport[party].handle(proposed)).error  # type: ignore[index]
        tried = 0
        for stage in plan.stages:
            party, requests = next(iter(stage.requests.items()))
            border: Party = federation.transport[party]  # type: ignore[index]
            rows = border.ledger.chain.head()
            for place in places(dict(requests[0])):
                for huge in HUGE:
                    tried += 1
                    asked = Request(
                        kind="ask",
                        job="j",
                        seq=tried,
                        stage=stage.name,
                        step=stage.step,
                        arguments=put(dict(requests[0]), place, huge),
                    ).encode()
                    replies: list[bytes] = []
                    used = peak(
                        lambda border=border, asked=asked, replies=replies: replies.append(border.handle(asked))
                    )
                    assert Reply.decode(replies[0]).error, (stage.name, place, huge)
                    assert used < MOST, (stage.name, place, huge, used)
            assert border.ledger.chain.head() == rows
        assert tried


def test_a_step_has_bounds_of_its_own(tmp_path: Path) -> None:
    """A variant: whatever plans it, a step is checked before it is priced."""
    arguments: dict[str, Any] = {"column": "age", "shape": "histogram", "noise": "gaussian", "level": 1.0}
    assert marginal.check({**arguments, "bins": 10_000})["bins"] == 10_000
    for bins in (0, -1, 10_001, *HUGE):
        with pytest.raises(BadArguments, match="bins"):
            marginal.check({**arguments, "bins": bins})
    with three_parties(tmp_path) as federation, pytest.raises(BadArguments, match="bins"):
        federation.ask(marginal, parties=["clinic"], bins=10**9, **arguments)


COUNTERS = {"number", "part", "hop", "round_number", "level", "fold", "seed", "key", "mu", "gamma"}
"""Whole numbers that are compared with a list, or that are parameters of noise and scale: none of them is a size."""


def test_every_whole_number_of_a_step_is_a_counter_or_has_bounds() -> None:
    for name in CATALOGUE.names:
        CATALOGUE.load(name)
    bounded = 0
    for name, step in steps._registry.items():
        if name.startswith(("support.", "test_")):
            continue
        hints = typing.get_type_hints(step.function, include_extras=True)
        for argument, hint in hints.items():
            if argument not in inspect.signature(step.function).parameters or not holds_integers(hint):
                continue
            sizes = [extra for extra in getattr(hint, "__metadata__", ()) if isinstance(extra, Size)]
            assert sizes or argument in COUNTERS, f"{name} takes {argument} without a Size"
            for size in sizes:
                bounded += 1
                example: Any = {"clinic": size.most + 1} if "dict" in str(hint) else size.most + 1
                with pytest.raises(BadArguments):
                    size.check(example, argument)
    assert bounded > 10


@pytest.mark.parametrize("capacity", [0, -1, MOST_RECORDS + 1, 1.5, True])
def test_the_capacities_of_an_alignment_have_bounds(capacity: Any) -> None:
    """They come in one argument with the other terms, as a dataclass."""
    terms = {"include": "union", "matcher": "a", "capacity": {"a": 9, "b": 9}, "normalise": [], "epsilon": None}
    assert blind.check({"terms": terms})["terms"].digest
    with pytest.raises(BadArguments, match="capacity"):
        blind.check({"terms": {**terms, "capacity": {"a": 9, "b": capacity}}})
    with pytest.raises(BadArguments, match="further"):
        blind.check({"terms": {**terms, "further": 1}})


def holds_integers(hint: Any) -> bool:
    inner = typing.get_args(hint)[0] if hasattr(hint, "__metadata__") else hint
    return inner is int or int in typing.get_args(inner)


SCALES = {"gamma", "seed", "minimum_joint"}
"""Whole numbers that options state and that nothing is counted by."""


def _one_case_of_each_method() -> dict[str, dict[str, Any]]:
    chosen: dict[str, dict[str, Any]] = {}
    for case in _cases().values():
        name, _ = translate(case["method"], copy.deepcopy(case["options"]))
        if "error" not in case and case["roster"] != "large" and case["options"].get("protect") != "ckks":
            chosen.setdefault(name, case)
    return chosen


@pytest.mark.parametrize("name", _one_case_of_each_method())
def test_a_plan_with_a_huge_option_takes_no_memory(name: str) -> None:
    """A party plans what it is proposed before anyone has approved it."""
    case = _one_case_of_each_method()[name]
    stored = _file()["rosters"][case["roster"]]
    facts, roster = PublicFacts.from_dict(stored["facts"]), Roster.from_dict(stored["roster"])
    _, options = translate(case["method"], copy.deepcopy(case["options"]))
    declared = CATALOGUE.load(name).declared()
    whole = {option for option, each in declared.items() if "int" in str(each.hint) and "Literal" not in str(each.hint)}

    def planned(stated: dict[str, Any]) -> None:
        try:
            CATALOGUE.make(name, stated).plan(facts, roster)
        except ColonnadeError:
            pass

    for option in whole - SCALES:
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        planned({**options, option: 10**9})
        assert 1024 * (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) < MOST, option
