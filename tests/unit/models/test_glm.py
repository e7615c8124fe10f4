"""Logistic and Poisson regression from sums: the series on shares, the weights, the covariance, the refusals."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy.special import expit

from colonnade.data.column import Column, Columns
from colonnade.errors import NotEstimable, UnsafeRequest
from colonnade.federation.facts import PublicFacts
from colonnade.federation.roster import Member, Roster
from colonnade.models.glm.expansion import TOLERANCE, Expansion
from colonnade.models.glm.fit import verdict
from colonnade.models.glm.newton import Evaluation, Family, robust_covariance, solve
from colonnade.models.glm.scores import LARGEST_WEIGHT, WEIGHT, Remarks, ScoreLayout, later_round, score_layouts
from colonnade.models.glm.weights import CompleteWeights, complete_weights, equal_weights

Array = NDArray[np.float64]


# --- the mean of a sum from functions of its parts ------------------------------------------------------------


def joint_factor(expansion: Expansion, parts: list[Array], tops: list[float]) -> Array:
    """As share holders multiply them: complex numbers, cosines first."""
    product = np.ones((len(parts[0]), 1), dtype=complex)
    for part, top in zip(parts, tops, strict=True):
        factor = expansion.factor(part, top)
        half = factor.shape[1] // 2
        product = product * (factor if expansion.family == "poisson" else factor[:, :half] + 1j * factor[:, half:])
    return product.real if expansion.family == "poisson" else np.concatenate([product.real, product.imag], axis=1)


@pytest.mark.parametrize("reach", [0.5, 6.0, 30.0, 100.0])
def test_the_logistic_function_of_a_sum_of_three_parts(reach: float) -> None:
    rng = np.random.default_rng(1)
    predictor = np.linspace(-reach, reach, 2001)
    first, second = rng.normal(size=(2, len(predictor)))
    expansion = Expansion("binomial", -reach, reach)
    factor = joint_factor(expansion, [first, second], [0.0, 0.0])
    mean, slope = expansion.last_factors(predictor - first - second, 0.0)
    assert np.abs((factor * mean).sum(axis=1) - (expit(predictor) - 0.5)).max() < TOLERANCE
    derivative = expit(predictor) * expit(-predictor)
    assert np.abs((factor * slope).sum(axis=1) - derivative).max() < 10 * TOLERANCE
    assert max(np.abs(factor).max(), np.abs(mean).max(), np.abs(slope).max()) <= 1.0 + 1e-12


def test_beyond_its_range_the_series_is_wrong() -> None:
    """So the range that parties tell is needed."""
    expansion = Expansion("binomial", -3.0, 3.0)
    far = np.array([40.0])
    mean, _ = expansion.last_factors(far, 0.0)
    one = joint_factor(expansion, [np.zeros(1)], [0.0])
    assert abs((one * mean).sum() - (expit(40.0) - 0.5)) > 0.1


def test_the_exponential_of_a_sum() -> None:
    rng = np.random.default_rng(2)
    parts = list(rng.normal(size=(3, 50)))
    tops = [float(part.max()) for part in parts]
    expansion = Expansion("poisson", -9.0, sum(tops))
    factor = joint_factor(expansion, parts[1:], tops[1:])
    mean, slope = expansion.last_factors(parts[0], tops[0])
    np.testing.assert_allclose(expansion.unit * (factor * mean)[:, 0], np.exp(sum(parts)))
    assert mean is slope
    assert factor.max() <= 1.0


# --- weights ----------------------------------------------------------------------------------------------------


def selected(n: int, seed: int, blocks: int = 2) -> tuple[Array, Array, Array, NDArray[np.bool_]]:
    """(design, response, the holder's columns with the response last, presence of the other blocks)."""
    rng = np.random.default_rng(seed)
    z, x = rng.normal(size=n), rng.normal(size=(n, blocks))
    y = (rng.random(n) < expit(0.3 + 0.7 * z + x @ np.full(blocks, 0.5))).astype(float)
    present = rng.random((n, blocks)) < expit(0.8 + 0.9 * y + 0.6 * z)[:, None]
    return np.column_stack([np.ones(n), z, x]), y, np.column_stack([z, y]), present


def test_weights_of_cells_are_their_counts() -> None:
    """With a binary column and a binary response the logits are saturated: a cell's complete records stand for it."""
    rng = np.random.default_rng(3)
    n = 40_000
    z = (rng.random(n) < 0.4).astype(float)
    y = (rng.random(n) < 0.2 + 0.4 * z).astype(float)
    present = rng.random((n, 2)) < (0.3 + 0.4 * y - 0.2 * z * y)[:, None]
    fitted = complete_weights(np.column_stack([z, y]), 1, present, family="binomial")
    complete = present.all(axis=1)
    for cell in ((0, 0), (0, 1), (1, 0), (1, 1)):
        within = (z == cell[0]) & (y == cell[1])
        share = fitted.weights[within].sum() / fitted.weights.sum()
        assert share == pytest.approx(within.mean(), rel=0.02)
    given = complete_weights(np.column_stack([z, y]), 1, present, family="binomial", conditional=True)
    for level in (0, 1):
        among = [complete & (z == level) & (y == event) for event in (0, 1)]
        shares = [given.weights[cell].sum() / given.weights[z == level].sum() for cell in among]
        assert shares[1] == pytest.approx(y[z == level].mean(), rel=0.02)
        assert given.weights[z == level].sum() == pytest.approx((complete & (z == level)).sum(), rel=0.02)
    assert fitted.complete == given.complete == complete.sum()
    assert not fitted.weights[~complete].any()
    np.testing.assert_allclose(fitted.scores.T @ fitted.scores, np.eye(fitted.scores.shape[1]), atol=1e-9)


def test_calibrated_weights_balance_what_own_columns_tell_of_the_score() -> None:
    """Weighted sums over complete records of (y - m)(1, z) are those of all records, m the least squares of y on z; of
    counts they are not."""
    _, y, own, present = selected(2000, 7)
    line = np.column_stack([np.ones(2000), own[:, 0]])
    line[:, 1] = np.clip(line[:, 1], *(own[:, 0].mean() + 3 * own[:, 0].std() * np.array([-1, 1])))
    told = line * (y - line @ np.linalg.lstsq(line, y, rcond=None)[0])[:, None]
    apart = {}
    for family in ("binomial", "poisson"):
        weights = complete_weights(own, 1, present, family=family).weights
        apart[family] = np.abs(weights @ told / weights.sum() - told.mean(axis=0)).max()
    assert apart["binomial"] < 1e-4 < apart["poisson"]


def test_nobody_is_like_those_who_are_missing() -> None:
    """Where no weights meet the target they stay finite, and few records count."""
    _, y, own, present = selected(2000, 8)
    present &= ((y == 0) | (own[:, 0] < 0))[:, None]
    fitted = complete_weights(own, 1, present, family="binomial")
    assert np.isfinite(fitted.weights).all()
    assert fitted.effective < 0.8 * complete_weights(own, 1, present, family="poisson").effective


def test_records_with_large_counts_have_the_larger_leverage() -> None:
    rng = np.random.default_rng(9)
    counts = rng.poisson(np.exp(rng.normal(size=500))).astype(float)
    present = rng.random((500, 2)) < 0.6
    own = np.column_stack([rng.normal(size=500), counts])
    fitted = complete_weights(own, 1, present, family="poisson")
    apart = fitted.inflation(5)[present.all(axis=1)]
    assert np.corrcoef(apart, counts[present.all(axis=1)])[0, 1] > 0.5


def test_nothing_missing_has_equal_weights_and_hc1() -> None:
    _, _, own, present = selected(300, 4)
    fitted = complete_weights(own, 1, np.ones_like(present), family="binomial")
    assert (fitted.weights == 1).all()
    np.testing.assert_allclose(fitted.inflation(4) ** 2, 300 / 296)


# --- the estimate and its covariance -----------------------------------------------------------------------------


def estimate(family: Family, design: Array, response: Array, fitted: CompleteWeights) -> tuple[Array, Array, Array]:
    """(params, covariance, a record's influence), from pooled records."""
    weights = fitted.weights

    def mean(point: Array) -> Array:
        return expit(design @ point) if family == "binomial" else np.exp(np.minimum(design @ point, 30.0))

    def evaluate(point: Array, limit: float) -> Evaluation:
        fitted_mean = mean(point)
        slope = fitted_mean * (1 - fitted_mean) if family == "binomial" else fitted_mean
        return Evaluation(
            design.T @ (weights * (response - fitted_mean)), (design * (weights * slope)[:, None]).T @ design, 0.0
        )

    solution = solve(family, evaluate, design.shape[1])
    score = design * (weights * (response - mean(solution.params)))[:, None]
    explained = score.T @ fitted.scores
    heavy = score * fitted.inflation(design.shape[1])[:, None]
    influence = (score - fitted.scores @ explained.T) @ np.linalg.inv(solution.bread)
    return solution.params, robust_covariance(solution.bread, heavy.T @ heavy, explained), influence


def test_the_influence_of_a_record_is_that_of_leaving_it_out() -> None:
    """The weights are fitted again without it: what they explain is in the influence."""
    design, y, own, present = selected(1500, 5)
    params, cov, influence = estimate("binomial", design, y, complete_weights(own, 1, present, family="binomial"))
    places = np.random.default_rng(6).choice(len(y), size=40, replace=False)
    moved = []
    for place in places:
        rest = np.delete(np.arange(len(y)), place)
        fitted = complete_weights(own[rest], 1, present[rest], family="binomial")
        moved.append(params - estimate("binomial", design[rest], y[rest], fitted)[0])
    apart = np.array(moved) - influence[places]
    assert np.linalg.norm(apart) < 0.2 * np.linalg.norm(moved)
    ratio = np.diag(cov) / (influence**2).sum(axis=0)
    # What own columns tell of their slopes is taken off after `inflation`, so these have the largest ratio.
    assert ratio.min() > 0.98
    assert ratio.max() < 1.15


def test_complete_cases_are_biased_where_the_weights_are_not() -> None:
    """Selection on response and column together: 30 tables, the mean error of a slope in its standard errors."""
    truth = np.array([0.3, 0.7, 0.5, 0.5])
    errors: dict[str, list[Array]] = {"weighted": [], "complete": []}
    for seed in range(30):
        design, y, own, present = selected(3000, 100 + seed)
        present &= np.random.default_rng(seed).random((3000, 1)) < expit(1 - 1.5 * y * (own[:, 0] > 0))[:, None]
        errors["weighted"].append(
            estimate("binomial", design, y, complete_weights(own, 1, present, family="binomial"))[0] - truth
        )
        errors["complete"].append(estimate("binomial", design, y, equal_weights(present))[0] - truth)
    ratio = {
        name: np.abs(np.mean(each, axis=0) / (np.std(each, axis=0) / np.sqrt(30))) for name, each in errors.items()
    }
    assert ratio["weighted"].max() < 3.5
    assert ratio["complete"][1] > 6


# --- refusals ----------------------------------------------------------------------------------------------------


def test_separated_classes_are_refused() -> None:
    rng = np.random.default_rng(8)
    x = rng.normal(size=200)
    design, y = np.column_stack([np.ones(200), x]), (x > 0).astype(float)
    weights = equal_weights(np.ones((200, 1), dtype=bool))

    def evaluate(point: Array, limit: float) -> Evaluation | None:
        predictor = design @ point
        if np.abs(predictor).max() > 100:
            return None
        mean = expit(predictor)
        slope = (mean * (1 - mean) * weights.weights)[:, None]
        return Evaluation(design.T @ (y - mean), (design * slope).T @ design, 0.0)

    with pytest.raises(NotEstimable, match=r"separate|determine"):
        solve("binomial", evaluate, 2)


@pytest.mark.parametrize(
    ("spoil", "said"),
    [
        (lambda x, y: x[:, 1] * 0, "columns 'b' do not vary"),
        (lambda x, y: x[:, 0] * 2, "leave out '[ab]' with columns="),
        (lambda x, y: y * 2 - 1, "leave out 'b' with columns="),
    ],
    ids=["constant", "twin", "the response itself"],
)
def test_a_refusal_names_the_column_to_leave_out(spoil: Callable[[Array, Array], Array], said: str) -> None:
    rng = np.random.default_rng(8)
    x = rng.normal(size=(400, 3))
    y = (x[:, 0] + rng.normal(size=400) > 0).astype(float)
    x[:, 1] = spoil(x, y)
    design = np.column_stack([np.ones(400), x])

    def evaluate(point: Array, limit: float) -> Evaluation:
        mean = expit(np.clip(design @ point, -60, 60))
        return Evaluation(design.T @ (y - mean), (design * (mean * (1 - mean))[:, None]).T @ design, 0.0)

    with pytest.raises(NotEstimable, match=said):
        solve("binomial", evaluate, 4, columns=["a", "b", "c"])


def logistic(design: Array, y: Array) -> Callable[[Array, float], Evaluation]:
    def evaluate(point: Array, limit: float) -> Evaluation:
        mean = expit(np.clip(design @ point, -60, 60))
        return Evaluation(design.T @ (y - mean), (design * (mean * (1 - mean))[:, None]).T @ design, 0.0)

    return evaluate


def test_all_columns_that_separate_are_named_at_once_and_the_others_can_be_fitted() -> None:
    rng = np.random.default_rng(8)
    x = rng.normal(size=(600, 2))
    y = (x[:, 0] + rng.normal(size=600) > 0).astype(float)
    ones = np.flatnonzero(y)
    rare = -np.ones((600, 3))  # each varies in a few records only, all of one class
    for column, records in enumerate((ones[:5], ones[40:52], ones[90:93])):
        rare[records, column] = rng.uniform(-0.9, 1, len(records))
    columns = ["a", "b", "rare", "rarer", "rarest"]
    design = np.column_stack([np.ones(600), x, rare])
    with pytest.raises(NotEstimable, match="leave out 'rare', 'rarer', 'rarest' with columns="):
        solve("binomial", logistic(design, y), 6, columns=columns)
    kept = design[:, :3]
    assert np.abs(kept.T @ (y - expit(kept @ solve("binomial", logistic(kept, y), 3).params))).max() < 1e-3
    with pytest.raises(NotEstimable, match="choose another response"):
        solve("binomial", logistic(design, y), 6, columns=columns, joint=["rarer", "rarest"])


def test_a_step_that_goes_too_far_is_shortened() -> None:
    """A rare response with covariates far out: Newton's method itself leaves for infinity."""
    rng = np.random.default_rng(1)
    y = (np.arange(2000) < 5).astype(float)
    shift = 10 * y[:, None] * rng.random((2000, 2)) ** (4, 1) * (1, -1)
    design = np.column_stack([np.ones(2000), rng.normal(size=(2000, 2)) + shift])
    design[-1] = (1, 10, -10)
    params = solve("binomial", logistic(design, y), 3).params
    assert np.abs(design.T @ (y - expit(design @ params))).max() < 1e-3


def test_a_category_in_which_the_response_is_always_the_same_is_named() -> None:
    rng = np.random.default_rng(8)
    x = np.column_stack([rng.normal(size=400), 50 + rng.normal(size=400), np.arange(400) < 6])
    y = (x[:, 0] + rng.normal(size=400) > 0).astype(float)
    y[:6] = 1.0
    design, asked = np.column_stack([np.ones(400), x]), []

    def evaluate(point: Array, limit: float) -> Evaluation:
        asked.append(point)
        mean = expit(np.clip(design @ point, -60, 60))
        return Evaluation(design.T @ (y - mean), (design * (mean * (1 - mean))[:, None]).T @ design, 0.0)

    with pytest.raises(NotEstimable, match=r"always the same in some category of 'town', .*; leave out 'town' with"):
        solve("binomial", evaluate, 4, columns=["a", "b", "town"], indicators=[False, False, True])
    assert len(asked) < 20, "few rounds for a coefficient that grows without end"


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({}, "Valid if whether a record has all blocks"),
        ({"effective": 20.0}, "too few for 4 coefficients"),
        ({"fewest": 5}, "too few for 4 coefficients"),
        ({"unlikely": 300}, "hardly ever complete"),
        ({"capped": 30}, "weight beyond 20"),
    ],
)
def test_the_first_line(changed: dict[str, float], words: str) -> None:
    usual = {"effective": 500.0, "capped": 0, "unlikely": 10, "rare": 0, "fewest": 200}
    said = verdict(Remarks(counts=(1000, 600), **{**usual, **changed}), 4, weighed=True)  # type: ignore[arg-type]
    assert words in said
    assert said.startswith("Not valid for inference") == bool(changed)


# --- the public layout of a round --------------------------------------------------------------------------------

ROSTER = Roster(
    members=tuple(Member(name=name, organisation=name, public_key=name.encode() * 32) for name in "abc"),
    committee=("a", "b", "c"),
)
HELD = {"a": ["x0", "x1"], "b": ["w"], "c": ["z"]}


def layouts(family: Family) -> tuple[ScoreLayout, ScoreLayout]:
    """Party b holds the response; a has two columns and c one."""
    columns = {
        party: [Column(name=name, kind="continuous", lower=-1.0, upper=1.0) for name in own]
        for party, own in HELD.items()
    }
    columns["b"] += [
        Column(name="event", kind="binary", categories=("no", "yes")),
        Column(name="count", kind="count", lower=0, upper=1000),
    ]
    facts = PublicFacts(n=5000, columns={party: Columns(own) for party, own in columns.items()})
    names = ("x0", "x1", "w", "z", "event" if family == "binomial" else "count")
    return score_layouts(facts, ROSTER, family=family, names=names, offset=None, weighting="presence", gamma=2**20)


@pytest.mark.parametrize("family", ["binomial", "poisson"])
def test_what_a_coordinator_may_choose_for_a_round(family: Family) -> None:
    layout, _ = layouts(family)
    rule = later_round(layout)
    planned = {name: getattr(layout, name) for name in layout.adaptive}
    sound = {"turn": 3, "coefficients": [0.5, 1.0, -2.0, 0.0, 4.0], "low": [-1.0, -2.0, 0.0], "high": [1.0, 2.0, 0.0]}
    assert rule.allows(sound, planned)
    for name, value in (
        ("turn", -1),
        ("turn", layout.turns),
        ("turn", 1.0),
        ("coefficients", sound["coefficients"][1:]),
        ("coefficients", [np.nan, 1.0, -2.0, 0.0, 4.0]),
        ("coefficients", [2.0**21, 1.0, -2.0, 0.0, 4.0]),
        ("low", [-1.0, -2.0]),
        ("high", "wide"),
    ):
        assert not rule.allows({**sound, name: value}, planned), (name, value)
    assert not rule.allows({**sound, "gamma": 1}, planned)
    tuples = {name: tuple(value) if isinstance(value, list) else value for name, value in sound.items()}
    assert layout.with_chosen(**tuples).tag != layout.with_chosen(**{**tuples, "turn": 4}).tag
    for wrong in ({"high": (200.0, 2.0, 0.0)}, {"low": (2.0, -2.0, 0.0)}):
        with pytest.raises(UnsafeRequest):
            layout.with_chosen(**{**tuples, **wrong})


@pytest.mark.parametrize("family", ["binomial", "poisson"])
def test_no_sum_of_the_largest_records_wraps(family: Family) -> None:
    """Every record with the largest weight, residual and column, in integers."""
    for layout in layouts(family):
        part = (-3.0, -3.0, -3.5) if family == "poisson" else (-2.0, -2.0, -2.0)
        chosen = layout.with_chosen(coefficients=(0.0,) * 5, low=part, high=part)
        response = LARGEST_WEIGHT * WEIGHT * (1 if family == "binomial" else 1000) * chosen.response_factor
        residual = response + LARGEST_WEIGHT * chosen.scale
        column = layout.gamma
        largest = (residual * column) ** 2 if layout.errors else residual * column * column
        assert 5000 * largest <= layout.field.bound
