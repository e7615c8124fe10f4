"""What a plan leaves open is bounded: a party refuses any request that is not the planned one, or breaks a rule.

Plans are those of the frozen option sets. For each argument that is known only when a job runs there is a list of what
a hostile coordinator would like to put there.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import colonnade as co
from colonnade.errors import BeyondReservation, UnsafeRequest
from colonnade.federation import wire
from colonnade.federation.facts import PublicFacts
from colonnade.federation.job import Job
from colonnade.federation.plan import Plan
from colonnade.federation.stage import Stage
from colonnade.models.sparse.select import Select
from colonnade.papers.vfem.method import VFEM
from colonnade.papers.vfl_glm_vs.method import VFLGLMVS
from colonnade.statistics.features import features
from federation.test_verified_regress import families
from frozen.test_frozen_plans import _cases, _file, planned
from support.plans import own_methods
from support.selection import COVARIATES, related_table, selection_federation
from support.split import ALLOW as COMPLETING
from support.split import curved_pair
from support.vfem_blocks import simulated

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
BY_STEPS = ("coins", "stated")
"""Arguments that no rule can check: what the share holders show of a proof, which each of them compares with what the
others bound themselves to before (`statistics.shares.true_coins`)."""
NAN, INF, HUGE = math.nan, math.inf, 10**5
MANY_RANGES = {f"c{k}": [0.0, 1.0] for k in range(HUGE)}


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
    assert {plan_of(case).method for case in (*OPEN, *FIXED)} == own_methods()


# --- what is fixed ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("case", [*OPEN, *FIXED])
def test_an_argument_that_the_plan_fixes_cannot_be_changed(case: str) -> None:
    for stage, party, arguments in first_requests(case):
        fixed = {name: value for name, value in arguments.items() if name not in stage.later}
        later = sound_later(case, stage, arguments)
        stage.bind(party, 0, {**fixed, **later})
        for name, value in fixed.items():
            for other in moved(value):
                with pytest.raises(UnsafeRequest, match="asks for something else"):
                    stage.bind(party, 0, {**fixed, **later, name: other})
        with pytest.raises(UnsafeRequest, match="asks for something else"):
            stage.bind(party, 0, {**fixed, **later, "further": 1})
        with pytest.raises(BeyondReservation):
            stage.bind(party, len(stage.requests[party]), {**fixed, **later})


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

NUMBERS = (-1, HUGE, 0.0, True, None, "0", NAN)
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


def sound_and_hostile(case: str, stage: Stage, name: str, arguments: Mapping[str, Any]) -> tuple[Any, list[Any]]:
    """(a value that the rule accepts, values that it must refuse) for an argument of the first request."""
    facts, example = facts_of(case), arguments.get(name)
    if name in ("number", "round_number"):
        return 0, [*NUMBERS, *([1] if stage.later[name].counts else [])]
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
    if name == "folds":
        both = [0, 1] if stage.later[name].allows([0, 1], None) else [None]
        return both, [[], [0, 0], [None, 0], [-1], [HUGE], [0.5], [True], ["0"], [*range(HUGE)], [None] * 2, 0, None]
    if name == "intercepts":
        return [0.5], [[NAN], [INF], [1e300], ["0"], [True], [None], [0.0] * HUGE, [[0.0]], 0.5]
    if name == "key":
        return None, [-1, 2**31, 1.5, True, "1"]
    if name == "total":
        wrong = [np.zeros(3), np.zeros((2, 2), dtype=np.uint64), [1, 2], [b"a", "b"], "x", {}, 0]
        return np.zeros(3, dtype=np.uint64), wrong
    if name == "coefficients":
        wide = len(example[0])
        wrong = [[0.0] * (wide + 1), [0.0] * HUGE, None, "0" * wide if wide else "0"]
        wrong += [[NAN] * wide, [1e300] * wide, [True] * wide, ["0"] * wide] if wide else []
        return example, [[], example * HUGE, *([row] for row in wrong)]
    if name == "active":
        many = len(example[0])
        wrong = [[1] * many, [True] * (many + 1), [], [True] * HUGE, None, "1" * many]
        return [[True] * many], [[], [[True] * many] * HUGE, *([row] for row in wrong)]
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
        marginals = with_marginals(example["marginals"])
        trees = [tree for part in ("target", "start") for tree in matrices_moved({part: example[part]}) if tree]
        sound = {**example, "marginals": marginals}
        return sound, [*({**sound, **tree} for tree in trees if set(tree) <= set(sound))] + [
            {**sound, "marginals": other} for other in marginals_moved(example["marginals"])
        ]
    return layout_and_hostile(case, stage, name, arguments)


def layout_and_hostile(case: str, stage: Stage, name: str, arguments: Mapping[str, Any]) -> tuple[Any, list[Any]]:
    """For `layout`, `chosen`, `schema` and `training`: the fields that may differ, and all others moved."""
    facts, example = facts_of(case), arguments[name]
    sound, free = dict(example), dict[str, list[Any]]()
    if "ranges" in example:
        declared = features(facts, arguments["layout"]["names"])
        sound["ranges"] = {each.name: [each.centre - each.half, each.centre + each.half] for each in declared}
        free["ranges"] = [*ranges_moved(sound["ranges"]), MANY_RANGES, None]
    if "tables" in example:
        free["tables"] = tables_moved(example["tables"])
    if "edges" in example:
        cut = next(column for column in example["edges"] if facts.column(column).cuts is None)
        coarser = {**example["edges"], cut: example["edges"][cut][::2]}
        private = _cases()[case]["options"]["cuts"] == "quantiles"
        free["edges"] = [*edges_moved(example["edges"], cut), *([] if private else [coarser]), {}, None]
    if name == "chosen" and "weights" in example:
        many = next(k for k in range(1, 50) if stage.later[name].allows({**sound, "weights": [0] * k}, example))
        sound["weights"] = [0] * many
        free["weights"] = [[2**40] * many, [0] * (many + 1), [0.0] * many, [True] * many, [0] * HUGE, None]
    if "caps" in example:
        sizes = itertools.product(range(1, 9), range(1, 60))
        made = ({**sound, "logits": [[0.0] * h] * k, "shares": [0.5] * k, "caps": [1.0] * k} for k, h in sizes)
        if weighed := next((each for each in made if stage.later[name].allows(each, example)), None):
            sound, many = weighed, len(weighed["caps"])
            free["logits"] = [[[NAN] * len(own) for own in weighed["logits"]], weighed["logits"] * HUGE, [[]] * many]
            free["shares"] = [[share] * many for share in (0.0, -0.5, 1.5, NAN, "0.5", True)] + [[0.5] * HUGE]
            free["caps"] = [[cap] * many for cap in (0.5, 1e6, NAN, "1")] + [[1.0] * (many + 1), []]
    if name == "training":
        party, width = next(iter(example["context"].items()))
        free["given"] = [{"nobody": []}, {party: ["no such column"]}, {party: [*facts.columns[party]] * HUGE}, None, 1]
        free["context"] = [{"nobody": 1}, {party: width + 1}, {party: True}, {party: -1}, None, 1]
    rest = {field: moved(value) for field, value in sound.items() if field not in free}
    hostile = [{**sound, field: other} for field, others in {**free, **rest}.items() for other in others]
    return sound, [*hostile, {**sound, "further": 1}, {}, None, "x", 1]


def sound_later(case: str, stage: Stage, arguments: Mapping[str, Any]) -> dict[str, Any]:
    """A value that its rule accepts for every argument that the plan leaves open."""
    return {
        name: arguments[name] if name in BY_STEPS else sound_and_hostile(case, stage, name, arguments)[0]
        for name in stage.later
    }


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
        later = sound_later(case, stage, arguments)
        for name in set(stage.later) - set(BY_STEPS):
            sound, hostile = sound_and_hostile(case, stage, name, arguments)
            stage.bind(party, 0, {**fixed, **later, name: sound})
            for value in hostile:
                assert refused(stage, party, {**fixed, **later, name: value}), (stage.name, name, value)
                tried += 1
    assert tried > 5


@pytest.mark.parametrize("case", OPEN)
def test_an_argument_that_is_left_out_is_refused(case: str) -> None:
    """It would be the step's default, which its rule has not seen."""
    for stage, party, arguments in first_requests(case):
        sound = {**arguments, **sound_later(case, stage, arguments)}
        for name in set(stage.later) & set(stage.requests[party][0]):
            assert refused(stage, party, {other: value for other, value in sound.items() if other != name}), name


@pytest.mark.parametrize("case", FIXED)
def test_other_plans_leave_nothing_open(case: str) -> None:
    assert {name for stage in plan_of(case).stages for name in stage.later} <= set(BY_STEPS)


# --- what an honest coordinator asks ---------------------------------------------------------------------------------

SELECTED = {
    "family": "binomial",
    "penalty": "lasso",
    "response": "event",
    "columns": COVARIATES,
    "n_lambdas": 2,
    "ratio": 0.3,
}


def test_the_values_of_honest_runs_are_accepted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every argument that these plans leave open is asked, and nothing is refused."""
    asked: set[tuple[str, str]] = set()
    bind = Stage.bind

    def noted(stage: Stage, party: str, number: int, arguments: Mapping[str, Any]) -> None:
        asked.update((stage.step, name) for name in stage.later if name in arguments)
        bind(stage, party, number, arguments)

    monkeypatch.setattr(Stage, "bind", noted)
    left_open: set[tuple[str, str]] = set()

    def fit(federation: co.Federation, method: Any) -> None:
        left_open.update((stage.step, name) for stage in federation.plan(method).stages for name in stage.later)
        method.fit(federation)

    with selection_federation(tmp_path / "selection", related_table(80), seed=1) as federation:
        fit(federation, Select(**SELECTED, criterion="cv", folds=2, tolerance=1e-3))
        fit(federation, VFLGLMVS(**SELECTED, tolerance=0.05))
    with selection_federation(tmp_path / "private", related_table(3000), seed=2) as federation:
        fit(federation, Select(response="wage", columns=COVARIATES, epsilon=3.0, n_lambdas=2))
    with simulated(120, (2, 2, 2), (1.0, 0.9, 0.9), seed=1).federation(tmp_path / "rounds") as federation:
        fit(federation, VFEM(response="y", tolerance=1e-2))
    blocks, columns = curved_pair(80)
    with co.Federation.local(
        blocks, key="id", columns=columns, allow=COMPLETING, holder="notary", seed=3
    ) as federation:
        fit(federation, co.Complete(imputer="copula-mean", parties=("right",)))
    assert asked == left_open


# --- what only the step can check ------------------------------------------------------------------------------------


def begun(job: Job, *names: str) -> None:
    for name in names:
        job.ask(job.plan.stage(name))


def test_a_total_that_shows_one_party_is_refused_by_every_member(tmp_path: Path) -> None:
    """The coordinator wants a column of the bank, alone in a total, shown to the response holder."""
    active = [name == "x2" for name in COVARIATES]
    with selection_federation(tmp_path, related_table(60), seed=1) as federation:
        method = Select(**SELECTED)
        for party in ("bank", "clinic", "employer"):
            with federation.open(federation.plan(method)) as job:
                begun(job, "presence", "records", "weights", "residuals", "gradients")
                coefficients = [1.0, 0.0, 0.0] if party == "bank" else [0.0] * (2 if party == "employer" else 4)
                with pytest.raises(UnsafeRequest):
                    own = {"active": [active], "coefficients": [coefficients]}
                    job.ask_each(job.plan.stage("predictors"), {party: own})


def test_a_row_for_a_fold_that_shows_one_party_is_refused_too(tmp_path: Path) -> None:
    """Two folds in one request: the first total is covered, the second has a column of the bank alone."""
    covered, alone = [name in ("x2", "x5") for name in COVARIATES], [name == "x2" for name in COVARIATES]
    own = {"bank": [1.0, 0.0, 0.0], "clinic": [1.0, 0.0, 0.0, 0.0], "employer": [0.0, 0.0]}
    with selection_federation(tmp_path, related_table(60), seed=1) as federation:
        method = Select(**SELECTED, criterion="cv", folds=2)
        for party, width in (("bank", 3), ("clinic", 4), ("employer", 2)):
            for second, allowed in ((covered, True), (alone, False)):
                row = own[party] if allowed or party == "bank" else [0.0] * width
                with federation.open(federation.plan(method)) as job:
                    begun(job, "presence", "records", "weights", "residuals", "gradients")
                    asked = {party: {"active": [covered, second], "coefficients": [own[party], row]}}
                    if allowed:
                        job.ask_each(job.plan.stage("predictors"), asked)
                        continue
                    with pytest.raises(UnsafeRequest):
                        job.ask_each(job.plan.stage("predictors"), asked)


def test_members_that_were_told_different_columns_make_noise(tmp_path: Path) -> None:
    """Told that the clinic takes part too, the bank sends its predictor; the clinic, told the truth about itself, does
    too: but their pads do not cancel, and the response holder's loss is that of 64-bit noise."""
    together = [name in ("x2", "x5") for name in COVARIATES]
    with selection_federation(tmp_path, related_table(60), seed=1) as federation:
        losses = []
        for told in (together, [False] * 9):
            with federation.open(federation.plan(Select(**SELECTED))) as job:
                begun(job, "presence", "records", "weights", "residuals", "gradients")
                own = {
                    "employer": {"active": [together], "coefficients": [[0.0, 0.0]]},
                    "bank": {"active": [together], "coefficients": [[1.0, 0.0, 0.0]]},
                    "clinic": {"active": [told], "coefficients": [[float(told[5]), 0.0, 0.0, 0.0]]},
                }
                job.ask_each(job.plan.stage("predictors"), own)
                losses.append(job.ask(job.plan.stage("residuals"), intercepts=[0.0])["employer"]["loss"][0])
        honest, noise = losses
        assert honest < 10
        assert noise > 100
        with federation.open(federation.plan(Select(**SELECTED))) as job:
            begun(job, "presence", "records", "weights", "residuals", "gradients")
            with pytest.raises(UnsafeRequest):  # the clinic's own columns are not what it is told
                lie = {"active": [together], "coefficients": [[0.0] * 4]}
                job.ask_each(job.plan.stage("predictors"), {"clinic": lie})


def test_coefficients_are_shown_at_solutions_only(tmp_path: Path) -> None:
    """Between two rounds of ADMM the response holder gives no residuals, without which no party shows coefficients."""
    asked = VFLGLMVS(**SELECTED, tolerance=1e-6)
    with (
        selection_federation(tmp_path, related_table(60), seed=1) as federation,
        federation.open(federation.plan(asked)) as job,
    ):
        begun(job, "presence", "records", "start", "solutions")
        updated = job.ask(job.plan.stage("blocks"), lam=1e-3)
        active = [bool(column) for party in ("employer", "bank", "clinic") for column in updated[party]["selected"]]
        job.ask(job.plan.stage("predictors"), active=[active])
        assert not job.ask(job.plan.stage("multipliers"))["employer"]["done"]
        with pytest.raises(UnsafeRequest):
            job.ask(job.plan.stage("residuals"))


@pytest.mark.parametrize("asked", ["A", "B", "C"])
@pytest.mark.parametrize("about", ["A", "B", "C"])
def test_a_range_that_no_party_told_is_refused_by_every_party(tmp_path: Path, asked: str, about: str) -> None:
    """The size of what a party deals in a logistic round follows from the ranges of all parties' predictors, which the
    coordinator passes on: each party has them from the others too."""
    method = co.Regress(response="sick", family="binomial", columns=("x", "v", "w"))
    with families(tmp_path, seed=4) as federation, federation.open(federation.plan(method)) as job:
        begun(job, "scores: presence", "scores: weights")
        ranges, share = (job.plan.stage(f"scores: {name}") for name in ("ranges", "share rows"))
        parties = ("A", "B", "C")
        nothing = [0.0] * len(parties)
        chosen = {"turn": 0, "coefficients": [0.1, 0.5, -0.3, 0.4], "low": nothing, "high": nothing}
        told = job.ask(ranges, chosen=chosen)
        low, high = ([told[party][end] for party in parties] for end in (0, 1))
        wider = [each + 8 * (party == about) for party, each in zip(parties, high, strict=True)]
        with pytest.raises(UnsafeRequest, match=f"predictor at '{about}' is not the one that it told"):
            job.ask_each(share, {asked: {"chosen": {**chosen, "low": low, "high": wider}}})


def test_the_ranges_that_the_parties_told_are_taken(tmp_path: Path) -> None:
    """The same requests as above, with nothing changed."""
    method = co.Regress(response="sick", family="binomial", columns=("x", "v", "w"))
    with families(tmp_path, seed=4) as federation, federation.open(federation.plan(method)) as job:
        begun(job, "scores: presence", "scores: weights")
        chosen = {"turn": 0, "coefficients": [0.1, 0.5, -0.3, 0.4], "low": [0.0] * 3, "high": [0.0] * 3}
        told = job.ask(job.plan.stage("scores: ranges"), chosen=chosen)
        low, high = ([told[party][end] for party in ("A", "B", "C")] for end in (0, 1))
        job.ask(job.plan.stage("scores: share rows"), chosen={**chosen, "low": low, "high": high})
