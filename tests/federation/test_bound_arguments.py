"""What a plan leaves open is bounded: a party refuses any request that is not the planned one, or breaks a rule.

Plans are those of the frozen option sets. For each argument that is known only when a job runs there is a list of what
a hostile coordinator would like to put there.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Iterator, Mapping
from functools import cache
from typing import Any

import numpy as np
import pytest

from colonnade.catalogue import CATALOGUE
from colonnade.errors import BeyondReservation, UnsafeRequest
from colonnade.federation import wire
from colonnade.federation.facts import PublicFacts
from colonnade.federation.plan import Plan
from colonnade.federation.stage import Stage
from colonnade.statistics.features import features
from frozen.test_frozen_plans import _cases, _file, planned

OPEN = (
    "classify-minibatch-rounds-three",
    "vfem-rounds-three",
    "vfem-private-small-three",
    "sparse-glm-newton-cv-three",
    "sparse-glm-admm-cv-five",
    "sparse-glm-private-known-three",
    "ievcds-nominal-three",
    "vertimrf-cuts-three",
    "vertimrf-exact-three",
    "vertimrf-fm-cuts-three",
    "vertimrf-fo-cuts-two-alone",
    "fedpsg-default-three",
    "fedpsg-ckks-three",
    "fedpsg-cgain-three",
    "fedpsg-copula-mean-three",
    "fedpsg-mice-three",
    "fedpsg-private-gain-three",
)
"""Option sets whose plans leave arguments open, one at least of each family."""
FIXED = (
    "align-union-three",
    "align-blind-rsa-three",
    "describe-laplace-three",
    "moments-exact-three",
    "pca-exact-three",
    "classify-exact-three",
    "contingency-exact-three",
    "polynomial-exact-three",
    "presence-total-exact-two-alone",
    "vcds-nominal-five",
    "evcds-nominal-three",
    "copula-sqm-exact-three",
    "vfem-default-five",
)
"""One option set of every other method: its plan fixes every argument."""
NAN, INF, HUGE = math.nan, math.inf, 10**5


@cache
def plan_of(case: str) -> Plan:
    return planned(_cases()[case])


def facts_of(case: str) -> PublicFacts:
    return PublicFacts.from_dict(_file()["rosters"][_cases()[case]["roster"]]["facts"])


def first_requests(case: str) -> Iterator[tuple[Stage, str, dict[str, Any]]]:
    """(stage, party, arguments) of the first request of a stage of every step, at its last party, as it arrives."""
    stages = {stage.step: stage for stage in plan_of(case).stages}
    for stage in stages.values():
        *_, party = stage.requests
        yield stage, party, wire.decode(wire.encode(stage.arguments(party, 0, {})))


def test_every_method_has_an_option_set_here() -> None:
    assert {plan_of(case).method for case in (*OPEN, *FIXED)} == set(CATALOGUE.names)


# --- what is fixed ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("case", [*OPEN, *FIXED])
def test_an_argument_that_the_plan_fixes_cannot_be_changed(case: str) -> None:
    for stage, party, arguments in first_requests(case):
        fixed = {name: value for name, value in arguments.items() if name not in stage.later}
        stage.bind(party, 0, fixed)
        for name, value in fixed.items():
            for other in moved(value):
                with pytest.raises(UnsafeRequest, match="asks for something else"):
                    stage.bind(party, 0, {**fixed, name: other})
        with pytest.raises(UnsafeRequest, match="asks for something else"):
            stage.bind(party, 0, {**fixed, "further": 1})
        with pytest.raises(BeyondReservation):
            stage.bind(party, len(stage.requests[party]), fixed)


def moved(value: Any) -> list[Any]:
    """Other values in place of a planned one; in a layout, of each field by itself."""
    if isinstance(value, dict):
        inside = [{**value, name: other} for name, field in value.items() for other in moved(field)]
        return [*inside, {**value, "further": 1}]
    if isinstance(value, bool):
        return [not value, int(value)]
    if isinstance(value, (int, float)):
        return [value + 1, -1 - value, 0 if value else 7, str(value)]
    if isinstance(value, list):
        return [[*value, "further"], value[1:] if value else [1]]
    return ["something else", 1]


# --- what is known later ---------------------------------------------------------------------------------------------

NUMBERS = (-1, 1, HUGE, 0.0, True, None, "0", NAN)
"""In place of the number of the first request, 0."""
FLAGS = (0, 1, None, "true", [])
WORDS = ("whatever", "", None, 1, ["em"])
SIZES = (-1.0, NAN, INF, -INF, 1e300, None, "1", True, [1.0])
"""In place of a positive number of moderate size."""


def ranges_moved(declared: dict[str, list[float]]) -> list[dict[str, Any]]:
    """Ranges in place of sound ones."""
    name, (lower, upper) = next(iter(declared.items()))
    width, rest = upper - lower, {other: ends for other, ends in declared.items() if other != name}
    wrong = [
        [lower, lower],
        [upper, lower],
        [NAN, upper],
        [lower, INF],
        [lower - 2 * width, upper - 2 * width],
        [lower - 1e3 * width, upper + 1e3 * width],
        [lower, lower + 1e-9 * width],
        [lower, upper, upper],
        ["a", "b"],
        None,
    ]
    return [*({**declared, name: ends} for ends in wrong), rest, {**declared, "other": [lower, upper]}, {}]


def tables_moved(tables: list[dict[str, Any]]) -> list[Any]:
    """Tables in place of those of a round, which uses all of its units."""
    (table,) = tables
    return [
        [table, table],
        [{**table, "units": table["units"] + 1}],
        [{**table, "units": 10**9}, {**table, "units": -(10**9)}],
        [table] * HUGE,
        None,
    ]


def edges_moved(edges: dict[str, list[float]], name: str) -> list[dict[str, Any]]:
    """Edges of a column in place of sound ones."""
    own = edges[name]
    wrong: list[Any] = [
        own[::-1],
        [own[0], own[0], *own[2:]],
        [own[0] - 1, *own[1:]],
        [*own[:-1], own[-1] + 1e3],
        [own[0], NAN, own[-1]],
        own[:1],
        np.linspace(own[0], own[-1], HUGE).tolist(),
        None,
    ]
    rest = {other: cut for other, cut in edges.items() if other != name}
    return [*({**edges, name: cut} for cut in wrong), rest, {**edges, "other": own}]


def matrices_moved(value: Mapping[str, Any]) -> list[Any]:
    """Something else in place of one array of a tree of arrays."""
    out: list[Any] = [{}, None, {**value, "other": 1}]
    for name, part in value.items():
        if isinstance(part, dict):
            out += [{**value, name: other} for other in matrices_moved(part)]
        elif isinstance(part, np.ndarray) and part.size:
            wrong = [
                part + NAN,
                part + INF,
                part + 1e200,
                part.astype(object),
                part.tolist(),
                np.zeros((3, HUGE)),
                None,
            ]
            out += [{**value, name: other} for other in wrong]
    return out


def with_marginals(names: Mapping[str, Any]) -> dict[str, Any]:
    return {
        name: {"points": np.array([0.0, 1.0]), "cumulative": np.array([0.0, 1.0]), "discrete": False} for name in names
    }


def marginals_moved(names: Mapping[str, Any]) -> list[Any]:
    sound = with_marginals(names)
    if not sound:
        return [{"other": None}, None]
    name, marginal = next(iter(sound.items()))
    rising = np.linspace(0.0, 1.0, 2 * HUGE)
    wrong = [
        {**marginal, "cumulative": np.array([1.0, 0.0])},
        {**marginal, "points": np.array([NAN, 1.0])},
        {**marginal, "points": np.array([0.0, INF])},
        {**marginal, "points": rising, "cumulative": rising},
        {**marginal, "discrete": 1},
        {**marginal, "other": 1},
        {},
        None,
    ]
    return [*({**sound, name: other} for other in wrong), {}, {**sound, "other": marginal}, None]


def sound_and_hostile(case: str, stage: Stage, name: str, example: Any) -> tuple[Any, list[Any]]:
    """(a value that the rule accepts, values that it must refuse) for an argument of the first request."""
    facts = facts_of(case)
    if name in ("number", "round_number"):
        return 0, [
            other for other in NUMBERS if not (stage.later[name].counts is False and other == 1 and other is not True)
        ]
    if name in ("better", "retreat", "adapt", "start"):
        return True, list(FLAGS)
    if name in ("mode", "since", "weights"):
        return example, list(WORDS)
    if name in ("eta", "rho"):
        return 1.0, [0.0, *SIZES, *([50.0] if name == "eta" else [])]
    if name == "lam":
        return 0.5, list(SIZES)
    if name == "fold":
        return 0 if stage.later[name].allows(0, None) else None, [-1, HUGE, 0.5, True, "0", [0]]
    if name == "intercept":
        return 0.5, [NAN, INF, 1e300, "0", True, [0.0]]
    if name == "key":
        return None, [-1, 2**31, 1.5, True, "1"]
    if name == "total":
        wrong = [np.zeros(3), np.zeros((2, 2), dtype=np.uint64), [1, 2], [b"a", "b"], "x", {}, 0]
        return np.zeros(3, dtype=np.uint64), wrong
    if name == "coefficients":
        wide = len(example)
        wrong = [[0.0] * (wide + 1), [0.0] * HUGE, None, "0" * wide if wide else "0"]
        return example, wrong + ([[NAN] * wide, [1e300] * wide, [True] * wide, ["0"] * wide] if wide else [])
    if name == "active":
        many = len(example)
        return [True] * many, [[1] * many, [True] * (many + 1), [], [True] * HUGE, None, "1" * many]
    if name == "path":
        wide = len(example[0])
        return example, [example * HUGE, [[NAN] * wide], [[0.0] * (wide + 1)], [0.0], None, {}]
    if name == "imputed":
        column, n = next(iter(facts.columns[next(iter(stage.requests))])), facts.n
        sound = np.full(n, NAN)
        wrong = [sound[:-1], np.full(n, INF), sound.tolist(), np.zeros((n, 2)), "x", np.full(n, "a", dtype=object)]
        return {column: sound}, [{"other": sound}, *({column: other} for other in wrong), 1]
    if name == "maps":
        return example, matrices_moved(example)
    if name == "marginals":
        return with_marginals(example), marginals_moved(example)
    if name == "linear":
        sound = {**example, "marginals": with_marginals(example["marginals"])}
        trees = matrices_moved({**sound, "marginals": 0})
        return sound, [
            *({**sound, **tree, "marginals": sound["marginals"]} for tree in trees if tree and len(tree) > 3)
        ] + [{**sound, "marginals": other} for other in marginals_moved(example["marginals"])]
    return layout_and_hostile(case, stage, name, example)


def layout_and_hostile(case: str, stage: Stage, name: str, example: dict[str, Any]) -> tuple[Any, list[Any]]:
    """For `layout`, `chosen`, `schema` and `training`: the fields that may differ, and all others moved."""
    facts, free = facts_of(case), dict[str, list[Any]]()
    sound = dict(example)
    if "ranges" in example:
        names = (
            [column for column in facts.wanted(None).values() for column in column]
            if "names" not in example
            else example["names"]
        )
        declared = {f.name: [f.centre - f.half, f.centre + f.half] for f in features(facts, names)}
        if not stage.later[name].allows({**sound, "ranges": declared}, example):
            names = _cases()[case]["options"].get("columns")
            response = _cases()[case]["options"]["response"]
            declared = {f.name: [f.centre - f.half, f.centre + f.half] for f in features(facts, [*names, response])}
        sound["ranges"] = declared
        free["ranges"] = [*ranges_moved(declared), {f"c{k}": [0.0, 1.0] for k in range(HUGE)}]
    if "tables" in example:
        free["tables"] = tables_moved(example["tables"])
        free["edges"] = [{}, None]
    if "edges" in example:
        cut = [column for column in example["edges"] if facts.column(column).cuts is None]
        fixed = "quantiles" not in str(_cases()[case]["options"].get("cuts"))
        free["edges"] = edges_moved(example["edges"], cut[0]) + (
            [{**example["edges"], cut[0]: [*example["edges"][cut[0]][:1], *example["edges"][cut[0]][2:]]}]
            if fixed
            else []
        )
    if name == "chosen" and "weights" in example:
        many = next(k for k in range(1, 50) if stage.later[name].allows({**sound, "weights": [0] * k}, example))
        sound["weights"] = [0] * many
        free["weights"] = [[2**40] * many, [0] * (many + 1), [0.0] * many, [True] * many, [0] * HUGE, None]
    if name == "training":
        party = next(iter(example["context"]))
        free["given"] = [{"nobody": []}, {party: ["no such column"]}, {party: [*facts.columns[party]] * HUGE}, None, 1]
        free["context"] = [{"nobody": 1}, {party: example["context"][party] + 1}, {party: True}, {party: -1}, None, 1]
    hostile = [{**sound, field: other} for field, others in free.items() for other in others]
    rest = {field: value for field, value in sound.items() if field not in free}
    hostile += [{**sound, field: other} for field, value in rest.items() for other in moved(value)]
    without = {field: value for field, value in sound.items() if field != next(iter(sound))}
    return sound, [*hostile, {**sound, "further": 1}, without, {}, None, "x", 1]


def refused(stage: Stage, party: str, arguments: dict[str, Any]) -> bool:
    try:
        stage.bind(party, 0, arguments)
    except UnsafeRequest as error:
        return "is not what the plan allows" in str(error)
    return False


@pytest.mark.parametrize("case", OPEN)
def test_an_argument_that_breaks_its_rule_is_refused(case: str) -> None:
    tried = 0
    for stage, party, arguments in first_requests(case):
        fixed = {name: value for name, value in arguments.items() if name not in stage.later}
        for name in stage.later:
            sound, hostile = sound_and_hostile(case, stage, name, copy.deepcopy(arguments.get(name)))
            stage.bind(party, 0, {**fixed, name: sound})
            for value in hostile:
                assert refused(stage, party, {**fixed, name: value}), (stage.name, name, value)
                tried += 1
    assert tried > 5


@pytest.mark.parametrize("case", FIXED)
def test_other_plans_leave_nothing_open(case: str) -> None:
    assert not any(stage.later for stage in plan_of(case).stages)
