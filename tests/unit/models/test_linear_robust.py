"""Presence weights, weighted moments, group errors, their combination and its checks, on pooled rows."""

from __future__ import annotations

import numpy as np
import pytest
import statsmodels.api as sm
from benchmarks.influences_common import group_covariance, group_influences, group_moments, patterns_of
from numpy.typing import NDArray
from scipy.special import expit

from colonnade.models.linear.augmented import (
    AugmentedRegression,
    augmented_regression,
    own_coordinates,
    pair_coordinates,
)
from colonnade.models.linear.gaussian import regression
from colonnade.models.linear.propensity import CAP, PresenceWeights, presence_weights
from colonnade.models.linear.robust import combined, hausman, influence_forms, no_smaller
from colonnade.models.linear.validity import Selection, verdict
from colonnade.statistics.gaussian_em import Pattern, PatternStatistics, fit_gaussian

Array = NDArray[np.float64]
BLOCKS = [np.array([1, 2]), np.array([3])]
"""Columns: own, two of the first block, one of the second, the response."""
NAMES = ("own", "first", "second", "third", "response")
TRUTH = np.array([1.0, 0.5, -1.0, 1.0, 2.0])


def selected(n: int, seed: int, *, skewed: bool = False) -> tuple[Array, NDArray[np.bool_]]:
    """Rows with NaN and the mask; blocks go missing by the response. `skewed`: the covariates' common part is
    lognormal, so that their covariance given the response changes."""
    rng = np.random.default_rng(seed)
    own = rng.normal(size=n)
    common = rng.normal(size=n)
    if skewed:
        common = np.exp(common) - np.exp(0.5)
    x = np.column_stack([own + common, common + rng.normal(size=n), 0.5 * own - common + rng.normal(size=n)])
    y = TRUTH[0] + TRUTH[1] * own + x @ TRUTH[2:] + rng.normal(size=n)
    z = np.clip((y - y.mean()) / y.std(), -3, 3)
    present = np.column_stack([rng.random(n) < expit(0.3 + z), rng.random(n) < expit(0.2 - z)])
    rows = np.column_stack([own, x, y])
    for block, mask in zip(BLOCKS, present.T, strict=True):
        rows[np.ix_(~mask, block)] = np.nan
    return rows, present


def augmented(rows: Array, weights: PresenceWeights) -> AugmentedRegression:
    data = PatternStatistics.of_rows(rows, NAMES)
    own, filled = own_coordinates(5, BLOCKS), np.nan_to_num(rows)
    grams = {}
    for pair, v in zip(weights.pairs, weights.weights.T, strict=True):
        part = np.column_stack([np.ones(len(rows)), filled[:, pair_coordinates(own, BLOCKS, pair)]])
        grams[pair] = (part * v[:, None]).T @ part
    return augmented_regression(data, fit_gaussian(data), 4, BLOCKS, grams)


def test_weights_make_each_pair_of_blocks_like_all_records() -> None:
    rows, present = selected(20_000, 1)
    fitted = presence_weights(rows[:, [0, 4]], 1, present)
    assert fitted.pairs == ((0, 0), (0, 1), (1, 1))
    for (a, b), v in zip(fitted.pairs, fitted.weights.T, strict=True):
        both = present[:, a] & present[:, b]
        assert not v[~both].any()
        assert v.sum() == pytest.approx(len(rows))
        response = rows[:, 4]
        unweighted = abs(response[both].mean() - response.mean()) / response.std()
        weighted = abs(np.average(response, weights=v) - response.mean()) / response.std()
        assert weighted < 0.05
        assert a != b or unweighted > 0.2
    everything = presence_weights(rows[:, [0, 4]], 1, np.ones_like(present))
    np.testing.assert_allclose(everything.weights, 1.0)
    assert (everything.capped, everything.unlikely) == (0, 0)


def test_weights_are_capped_and_rare_levels_merged() -> None:
    rng = np.random.default_rng(2)
    y = rng.normal(size=5000)
    level = (np.arange(5000) < 20).astype(float)
    present = (rng.random(5000) < expit(-4 + 3 * y))[:, None]
    fitted = presence_weights(np.column_stack([level, y]), 1, present)
    assert fitted.rare == 1
    assert fitted.capped > 0
    assert fitted.unlikely > 1000
    assert fitted.weights.max() * present.mean() < 2 * CAP


def test_where_nothing_is_missing_both_estimates_are_least_squares() -> None:
    rows, present = selected(400, 3)
    rng = np.random.default_rng(4)
    rows = np.where(np.isnan(rows), rng.normal(size=rows.shape), rows)
    ols = sm.OLS(rows[:, 4], sm.add_constant(rows[:, :4])).fit()
    weights = presence_weights(rows[:, [0, 4]], 1, np.ones_like(present))
    np.testing.assert_allclose(augmented(rows, weights).params, ols.params, rtol=1e-8)


def test_weighted_moments_are_right_if_the_weights_are_or_the_fit_is() -> None:
    """Right weights where the Gaussian fit is wrong, and useless weights where it is right: with 40,000 records the
    truth is within 0.04; in the first case the Gaussian fit is more than 0.06 off."""
    rows, present = selected(40_000, 5, skewed=True)
    data = PatternStatistics.of_rows(rows, NAMES)
    wrong = regression(data, fit_gaussian(data), 4).params
    right = augmented(rows, presence_weights(rows[:, [0, 4]], 1, present)).params
    assert np.abs(wrong - TRUTH).max() > 0.06
    assert np.abs(right - TRUTH).max() < 0.04
    rows, present = selected(40_000, 6)
    rng = np.random.default_rng(7)
    useless = presence_weights(rng.normal(size=(len(rows), 2)), 1, present)
    assert np.abs(augmented(rows, useless).params - TRUTH).max() < 0.04


def weighted_statistics(rows: Array, weights: Array) -> PatternStatistics:
    """Pattern moments of pooled records with NaN where a value is missing, each record counted with its weight."""
    patterns = []
    for observed, places in patterns_of(rows):
        part = rows[np.ix_(places, observed)]
        heavy = part * weights[places, None]
        patterns.append(Pattern(observed, float(weights[places].sum()), heavy.sum(axis=0), heavy.T @ part))
    return PatternStatistics(NAMES, tuple(patterns))


def test_influences_are_derivatives_in_the_weight_of_a_record() -> None:
    """Central differences of the Gaussian fit, one group heavier and lighter by a thousandth."""
    rows, _ = selected(300, 8)
    data = PatternStatistics.of_rows(rows, NAMES)
    law = fit_gaussian(data)
    groups = np.arange(300) // 30
    forms = influence_forms(data, law, 4)
    influences = group_influences(forms, group_moments(rows, np.ones(300), groups, 10))
    assert np.abs(influences.sum(axis=0)).max() < 1e-8
    moved = []
    for change in (-1e-3, 1e-3):
        heavier = weighted_statistics(rows, np.where(groups == 4, 1 + change, 1.0))
        moved.append(regression(heavier, fit_gaussian(heavier, start=(law.mu, law.sigma)), 4).params)
    np.testing.assert_allclose(influences[4], (moved[1] - moved[0]) / 2e-3, rtol=1e-4, atol=1e-7)


def test_the_combination_is_the_first_near_equality_and_the_second_far_from_it() -> None:
    rng = np.random.default_rng(9)
    influences = rng.normal(size=(200, 8)) @ np.diag(np.repeat([0.01, 0.02], 4))
    covariance = group_covariance(influences)
    first = np.zeros(4)
    near = combined(first, np.full(4, 0.01), covariance, 200)
    assert near.share == 0
    assert near.test.pvalue > 0.5
    np.testing.assert_allclose(near.params, first)
    np.testing.assert_allclose(near.cov, covariance[:4, :4], atol=1e-12)
    far = combined(first, np.full(4, 10.0), covariance, 200)
    assert far.share > 0.999
    assert far.test.pvalue < 1e-6
    between = combined(first, np.full(4, 1.0), covariance, 200)
    assert 0.5 < between.share < 1
    # What is left of the difference is in the variance.
    assert (np.diag(between.cov) >= (1.0 - between.params) ** 2).all()


@pytest.mark.parametrize("noisy", [False, True])
def test_shares_follow_where_the_bias_is(noisy: bool) -> None:
    """Two halves of 10 coefficients: the weighted estimate of the first is near, that of the second ten times as noisy.
    Where all biases are alike, the first half takes nearly all of the weighted estimate and the second less than half;
    where the noisy half is biased beyond its noise, and the other is not, it is not left to the Gaussian one."""
    rng = np.random.default_rng(11)
    own = rng.normal(size=(200, 20)) * 0.01
    spread = np.repeat([1.0, 0.1, 1.0], [1, 10, 9])
    covariance = group_covariance(np.column_stack([own, own + 0.05 * rng.normal(size=(200, 20)) * spread]))
    errors = np.sqrt(np.diag(covariance)[20:])
    bias = np.where(spread < 1, 0.0, 4 * errors) if noisy else np.full(20, 0.3)
    bias *= np.where(np.arange(20) % 2, 1.0, -1.0)
    joined = combined(np.zeros(20), bias + 0.5 * errors * rng.normal(size=20), covariance, 200)
    share = np.abs(joined.params[1:] / np.where(bias == 0, 1.0, bias)[1:])
    if noisy:
        assert share[10:].mean() > 0.8
    else:
        assert share[:10].mean() > 0.85
        assert share[10:].mean() < 0.5


def test_the_combination_does_not_depend_on_units_or_coding() -> None:
    rng = np.random.default_rng(12)
    influences = rng.normal(size=(200, 8)) * np.repeat([0.01, 0.03], 4)
    first, second = rng.normal(size=4), rng.normal(size=4)
    there = combined(first, second, group_covariance(influences), 200)
    change = rng.normal(size=(4, 4)) + 3 * np.eye(4)
    change[1:, 0] = 0.0  # slopes stay slopes
    both = np.kron(np.eye(2), change)
    here = combined(change @ first, change @ second, group_covariance(influences @ both.T), 200)
    np.testing.assert_allclose(here.params, change @ there.params, rtol=1e-5)


def test_hausmans_test_has_its_level() -> None:
    """Normal influences: 400 tests at 5 % reject 20 times, sd 4.4; the seed is fixed."""
    rng = np.random.default_rng(10)
    root = np.linalg.cholesky(0.5 + 0.5 * np.eye(6))
    rejected = 0
    for _ in range(400):
        draws = rng.normal(size=(60, 6)) @ root.T
        rejected += hausman(draws.sum(axis=0), group_covariance(draws), 60).pvalue < 0.05
    assert 7 <= rejected <= 34
    assert hausman(np.zeros(3), np.zeros((3, 3)), 60).pvalue == 1


FINE = {
    "records": 1000,
    "capped": 0,
    "unlikely": 0,
    "drawn": 0.0,
    "pvalue": 0.5,
    "share": 0.0,
    "difference": 0.5,
    "left": 0.5,
}


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({}, "Valid if presence depends on nothing but"),
        ({"unlikely": 101}, "Not valid for inference: 10% of the records are of a kind"),
        ({"capped": 11}, "Not valid for inference: 1.1% of the records have a weight beyond 20"),
        ({"drawn": 0.6}, "Not valid for inference: the presence-weighted moments are too noisy"),
        (
            {"difference": 5.0, "share": 0.5, "left": 2.5},
            "Not valid for inference: the Gaussian fit and the presence-weighted",
        ),
        ({"difference": 5.0, "share": 0.9, "left": 0.5}, "Valid if presence"),
        ({"tested": False}, "Not valid for inference: there are too few groups"),
        ({"rare": ("sector[mining]",)}, "But fewer than 1% of the records have sector[mining]"),
    ],
)
def test_each_check_has_a_threshold_and_a_sentence(changed: dict[str, object], words: str) -> None:
    assert words in verdict(Selection(**{**FINE, **changed}))  # type: ignore[arg-type]


def test_variances_are_raised_to_a_floor_and_correlations_stay() -> None:
    covariance, floor = np.array([[4.0, 1.0], [1.0, 1.0]]), np.diag([1.0, 9.0])
    raised = no_smaller(covariance, floor)
    assert np.diag(raised) == pytest.approx([4.0, 9.0])
    assert raised[0, 1] / np.sqrt(raised[0, 0] * raised[1, 1]) == pytest.approx(0.5)
