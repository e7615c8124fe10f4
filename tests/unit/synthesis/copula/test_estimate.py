"""From moments of scores to a copula. Oracles: quadrature, pandas, another EM, closed forms."""

from __future__ import annotations

import itertools
import json
import math

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import special

from colonnade.errors import NotEstimable
from colonnade.statistics.features import Feature
from colonnade.statistics.gaussian_em import PatternStatistics, fit_gaussian
from colonnade.statistics.marginals import Marginal
from colonnade.statistics.moments import MomentsResult
from colonnade.synthesis.copula.estimate import (
    SLOPE,
    LatentScore,
    available,
    drawn_together,
    estimate,
    forecast,
    gaussian_moments,
    matched,
    shrink,
    visible_patterns,
)
from colonnade.synthesis.copula.scores import score_factor

PARTIES = ("a", "b", "c")
OWNER = np.array([0, 0, 1, 1, 2])
UNIFORM = Marginal(np.linspace(0, 1, 257), np.linspace(0, 1, 257))
THREE = Marginal(np.arange(3.0), np.array([0.2, 0.7, 1.0]), discrete=True)
COIN = Marginal(np.arange(2.0), np.array([0.9, 1.0]), discrete=True)


def latent_rows(n: int, *, seed: int = 1) -> np.ndarray:
    """Five correlated normal columns: two at a, two at b, one at c."""
    rng = np.random.default_rng(seed)
    return rng.standard_normal((n, 5)) @ np.linalg.cholesky(0.5 + 0.5 * np.eye(5)).T


def uniform_scores(latent: np.ndarray) -> np.ndarray:
    return 2 * special.ndtr(latent) - 1


def moments_of(
    scores: np.ndarray, present: np.ndarray, *, presence: str = "known", noise: float = 0.0
) -> MomentsResult:
    """What Moments would open: records x 5 scores, records x 3 parties."""
    rng = np.random.default_rng(9)
    names = [f"x{j}" for j in range(5)]
    features = tuple(Feature(name, PARTIES[k], name, None, 0.0, 1.0) for name, k in zip(names, OWNER, strict=True))
    rows = np.where(present[:, OWNER], scores, 0.0)
    if presence == "secret":
        parts = [np.column_stack([present[:, k], rows[:, k == OWNER]]) for k in range(3)]
        masks = [(True,) * 3]
        entries = [["present at a", "x0", "x1", "present at b", "x2", "x3", "present at c", "x4"]]
        blocks = [np.concatenate(parts, axis=1)]
    else:
        masks = [one for one in itertools.product((False, True), repeat=3) if any(one)]
        entries = [["1", *(n for n, k in zip(names, OWNER, strict=True) if mask[k])] for mask in masks]
        blocks = []
        for mask in masks:
            here = rows[(present == np.array(mask)).all(axis=1)][:, np.array(mask)[OWNER]]
            blocks.append(np.column_stack([np.ones(len(here)), here]))
    grams = []
    for block in blocks:
        upper = np.triu(rng.normal(0, noise, (block.shape[1],) * 2)) if noise else np.zeros((block.shape[1],) * 2)
        grams.append(block.T @ block + upper + np.triu(upper, 1).T)
    return MomentsResult(
        n=len(scores),
        parties=PARTIES,
        presence=presence,  # type: ignore[arg-type]
        features=features,
        patterns=tuple(masks),
        entries=tuple(map(tuple, entries)),
        grams=tuple(grams),
        noise_sd=noise,
        simulated=True,
    )


def missing_at_random(latent: np.ndarray, *, seed: int = 2) -> np.ndarray:
    """a has every record; b lacks those whose first column at a is large; c lacks a fifth, at random."""
    rng = np.random.default_rng(seed)
    chance = np.column_stack([np.ones(len(latent)), special.expit(1 - 1.5 * latent[:, 0]), np.full(len(latent), 0.8)])
    return rng.random(chance.shape) < chance


# --- the latent law of a score -----------------------------------------------------------------------------------


@settings(max_examples=25, deadline=None)
@given(mean=st.floats(-1.5, 1.5), deviation=st.floats(0.6, 1.6), which=st.sampled_from([UNIFORM, THREE, COIN]))
def test_hermite_coefficients_are_those_of_quadrature(mean: float, deviation: float, which: Marginal) -> None:
    """c_m = int g h_m phi, on a grid that puts a point on every jump's side."""
    one = LatentScore(which, score_factor(which), mean, deviation)
    z = np.linspace(-9, 9, 360_001)
    weight = np.exp(-z * z / 2) / math.sqrt(2 * math.pi) * (z[1] - z[0])
    values = one.factor * (2 * which.scores(which.quantile(special.ndtr(mean + deviation * z))) - 1)
    if not which.discrete:
        values = 2 * special.ndtr(mean + deviation * z) - 1
    assert one.expectation == pytest.approx(float(weight @ values), abs=1e-4)
    before, now = np.zeros_like(z), np.ones_like(z)
    for m in range(1, 7):
        before, now = now, (z * now - math.sqrt(m - 1) * before) / math.sqrt(m)
        assert one.coefficients[m - 1] == pytest.approx(float(weight @ (values * now)), abs=2e-4)
    spread = float(weight @ (values - weight @ values) ** 2)
    assert one.variance == pytest.approx(spread, abs=1e-4)


@settings(max_examples=25, deadline=None)
@given(mean=st.floats(-1.5, 1.5), deviation=st.floats(0.7, 1.4), which=st.sampled_from([UNIFORM, THREE, COIN]))
def test_matching_finds_the_latent_law_back(mean: float, deviation: float, which: Marginal) -> None:
    still = LatentScore(which, score_factor(which), 0.0, 1.0)
    moved = LatentScore(which, score_factor(which), mean, 1.0 if which.discrete else deviation)
    found = matched(still, moved.expectation - still.expectation, moved.variance / still.variance)
    assert found.mean == pytest.approx(moved.mean, abs=2e-3)
    assert found.deviation == pytest.approx(moved.deviation, abs=2e-3)


# --- moments -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("presence", ["known", "secret"])
def test_available_moments_are_those_of_pandas(presence: str) -> None:
    latent = latent_rows(800)
    scores, present = uniform_scores(latent), missing_at_random(latent)
    moments = moments_of(scores, present, presence=presence)
    found = available(moments, visible_patterns(moments))
    table = pd.DataFrame(np.where(present[:, OWNER], scores, np.nan))
    together = present.T.astype(float) @ present
    share = ((together - 1) / together)[np.ix_(OWNER, OWNER)]  # pandas divides by one record less
    assert np.allclose(found.covariance, table.cov() * share, atol=1e-10)
    assert np.allclose(found.mean, table.mean(), atol=1e-12)
    assert np.allclose(found.shared, together)


def test_em_finds_the_maximum_that_newton_finds() -> None:
    latent = latent_rows(3000)
    scores, present = uniform_scores(latent), missing_at_random(latent)
    moments = moments_of(scores, present)
    kept = visible_patterns(moments)
    mean, covariance = gaussian_moments(moments, kept, available(moments, kept))
    pooled = np.where(present[:, OWNER], scores, np.nan)
    best = fit_gaussian(PatternStatistics.of_rows(pooled[present.any(axis=1)], [f"x{j}" for j in range(5)]))
    assert np.allclose(mean, best.mu, atol=2e-4)
    assert np.allclose(covariance, best.sigma, atol=2e-4)


def test_patterns_that_drown_in_noise_are_left_out() -> None:
    """8,000 records of one pattern and noise of 50: the six empty patterns pass 5 sd with probability below 2e-6."""
    scores = uniform_scores(latent_rows(8000))
    moments = moments_of(scores, np.ones((8000, 3), dtype=bool), noise=50.0)
    assert [moments.patterns[k] for k in visible_patterns(moments)] == [(True, True, True)]


def test_pairs_are_summed_over_all_patterns_where_few_records_are_visible() -> None:
    """Seven patterns of 571 records each and noise of 150: none stands out, but two parties share 1,143."""
    rng = np.random.default_rng(8)
    n = 4000
    pattern = rng.integers(1, 8, n)
    present = np.column_stack([(pattern >> k) % 2 == 1 for k in range(3)])
    moments = moments_of(uniform_scores(latent_rows(n)), present, noise=150.0)
    assert len(visible_patterns(moments)) <= 2
    found = estimate(moments, dict.fromkeys([f"x{j}" for j in range(5)], UNIFORM))
    assert found.mode == "pairs"
    assert found.patterns == 7
    assert "hold too few of the records" in found.reason
    hopeless = moments_of(uniform_scores(latent_rows(n)), present, noise=1e5)
    with pytest.raises(NotEstimable, match="nothing to start from"):
        estimate(hopeless, dict.fromkeys([f"x{j}" for j in range(5)], UNIFORM), correlation="em")
    blind = estimate(hopeless, dict.fromkeys([f"x{j}" for j in range(5)], UNIFORM))
    assert len(blind.completed) == 3
    assert np.linalg.eigvalsh(blind.correlation)[0] > 0
    assert "without limit" in " ".join(blind.notes())
    json.dumps(blind.to_dict(), allow_nan=False)


# --- the whole ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("presence", ["known", "secret"])
def test_the_correlation_comes_back(presence: str) -> None:
    """Complete records of a true copula, no noise: within 6 sd of a correlation of 20,000 records."""
    latent = latent_rows(20_000)
    moments = moments_of(uniform_scores(latent), np.ones((20_000, 3), dtype=bool), presence=presence)
    found = estimate(moments, dict.fromkeys([f"x{j}" for j in range(5)], UNIFORM))
    assert np.abs(found.correlation - (0.5 + 0.5 * np.eye(5))).max() < 6 * 0.75 / math.sqrt(20_000)
    assert found.mode == "pairs"
    assert found.completed == ()
    assert found.shrinkage == 1
    assert found.moved == ()


def test_em_puts_correlations_and_marginals_right_where_records_are_missing_at_random() -> None:
    """b lacks the records with a large x0, so what b has is too small, and its correlations too weak.

    The marginals of b are those of the records that it has: uniform scores there, in truth Phi(z) is moved.
    """
    n = 40_000
    latent = latent_rows(n)
    present = missing_at_random(latent)
    at_b = present[:, 1]
    knots = np.linspace(-5, 5, 513)
    marginals, scores = {}, np.zeros((n, 5))
    for j in range(5):
        seen = np.sort(latent[present[:, OWNER[j]], j])
        curve = np.searchsorted(seen, knots) / seen.size
        curve[0], curve[-1] = 0.0, 1.0
        marginals[f"x{j}"] = Marginal(knots, curve)
        scores[:, j] = 2 * np.interp(latent[:, j], knots, curve) - 1
    moments = moments_of(scores, present)
    by = {mode: estimate(moments, marginals, correlation=mode) for mode in ("em", "pairs")}  # type: ignore[arg-type]
    truth = 0.5 + 0.5 * np.eye(5)
    error = {mode: np.abs(one.correlation - truth).max() for mode, one in by.items()}
    assert error["em"] < 0.035
    assert error["em"] < error["pairs"] / 1.5
    assert by["em"].moved == ("x2", "x3", "x4")
    assert latent[at_b, 2].mean() < -0.15, "what b has is too small by more than 0.15 standard deviations"
    for mode, bound in (("em", 0.02), ("pairs", 0.3)):
        mean = float(by[mode].marginals["x2"].quantile((np.arange(20_000) + 0.5) / 20_000).mean())
        assert abs(mean) < bound
        assert (mode == "em") or abs(mean) > 0.15
    assert "moved" in " ".join(by["em"].notes())
    auto = estimate(moments, marginals)
    assert auto.mode == "em"


@pytest.mark.parametrize(("noise", "mode"), [(0.0, "em"), (40.0, "pairs")])
def test_noise_and_a_scarce_party_rule_em_out(noise: float, mode: str) -> None:
    """b has an eighth of 40,000 records: a noise of 40 on a product is 0.008 of 5,000, above 0.01 as a correlation."""
    n = 40_000
    latent = latent_rows(n)
    present = np.ones((n, 3), dtype=bool)
    present[n // 8 :, 1] = False
    moments = moments_of(uniform_scores(latent), present, noise=noise, presence="known")
    found = estimate(moments, dict.fromkeys([f"x{j}" for j in range(5)], UNIFORM))
    assert found.mode == mode
    assert ("amplify" in found.reason) == (mode == "pairs")


def test_parties_that_share_too_few_records_are_completed_and_marked() -> None:
    """b and c never meet: their entries make b and c independent given a (largest determinant)."""
    n = 20_000
    latent = latent_rows(n)
    present = np.ones((n, 3), dtype=bool)
    present[: n // 2, 1] = False
    present[n // 2 :, 2] = False
    for presence in ("known", "secret"):
        moments = moments_of(uniform_scores(latent), present, noise=1.0, presence=presence)
        found = estimate(moments, dict.fromkeys([f"x{j}" for j in range(5)], UNIFORM))
        assert found.completed == (("b", "c"),)
        assert "'b' with 'c'" in " ".join(found.notes())
        inverse = np.linalg.inv(found.correlation)
        assert np.abs(inverse[2:4, 4]).max() < 1e-6
        assert [one["completed"] for one in found.to_dict()["pairs of parties"]].count(True) == 1


def test_noise_that_dominates_is_shrunk_away() -> None:
    """Independent columns under heavy noise: the estimate is nearer to the truth than the raw correlations are."""
    n = 5000
    rng = np.random.default_rng(4)
    scores = rng.uniform(-1, 1, (n, 5))
    found = estimate(
        moments_of(scores, np.ones((n, 3), dtype=bool), noise=70.0), dict.fromkeys([f"x{j}" for j in range(5)], UNIFORM)
    )
    noise = float(forecast(70.0, n))
    assert found.shrinkage < 0.9
    off = ~np.eye(5, dtype=bool)
    assert np.sqrt(np.mean(found.correlation[off] ** 2)) < noise
    assert any("above 0.01" in note for note in found.notes())


def test_the_forecast_is_the_noise_over_the_slope_of_the_bridge() -> None:
    """d/dr of the covariance 2 asin(r / 2) / pi of two uniform scores on [-1, 1], at 0: 1 / pi."""
    step = 1e-6
    assert pytest.approx(2 * math.asin(step / 2) / math.pi / step) == SLOPE
    assert forecast(50.0, 10_000) == pytest.approx(math.pi * 50 / 10_000)


# --- shrinkage ---------------------------------------------------------------------------------------------------


def test_drawing_together_is_the_posterior_mean() -> None:
    """Many numbers of variance tau^2 with errors of sd s: weight tau^2 / (tau^2 + s^2), within 6 sd of 20,000."""
    rng = np.random.default_rng(5)
    truth = rng.normal(0.3, 0.2, 20_000)
    seen = truth + rng.normal(0, 0.4, 20_000)
    values, weight = drawn_together(seen, np.full(20_000, 0.4))
    assert weight[0] == pytest.approx(0.04 / 0.20, abs=0.012)
    assert np.mean((values - truth) ** 2) < 1.02 * 0.2 * 0.16
    same, whole = drawn_together(seen[:3], np.zeros(3))
    assert np.array_equal(same, seen[:3])
    assert whole.tolist() == [1, 1, 1]


def test_shrinking_keeps_symmetry_and_ones() -> None:
    rng = np.random.default_rng(6)
    raw = np.clip(rng.normal(0, 0.3, (5, 5)), -0.9, 0.9)
    raw = (raw + raw.T) / 2
    np.fill_diagonal(raw, 1.0)
    found, _ = shrink(raw, np.full((5, 5), 0.2), OWNER)
    assert np.array_equal(found, found.T)
    assert np.all(np.diag(found) == 1)


@pytest.mark.parametrize(("mean", "deviation"), [(0.0, 1.0), (0.4, 1.3)])
def test_the_score_of_a_column_with_point_masses(mean: float, deviation: float) -> None:
    """Oracle: sums over a fine grid of Z. 60 % at 0, 10 % at 10, the rest between and above."""
    marginal = Marginal(np.array([0.0, 0.0, 10.0, 10.0, 20.0]), np.array([0.0, 0.6, 0.8, 0.9, 1.0]))
    score = LatentScore(marginal, 1.1, mean, deviation)
    z = np.linspace(-9, 9, 200_001)
    weight = np.exp(-z * z / 2) / math.sqrt(2 * math.pi) * (z[1] - z[0])
    shown = 1.1 * (2 * marginal.scores(marginal.quantile(special.ndtr(mean + deviation * z))) - 1)
    expected = [
        float((shown * special.eval_hermitenorm(k, z) * weight).sum()) / math.sqrt(math.factorial(k))
        for k in range(1, 10)
    ]
    assert np.allclose(score.coefficients[:9], expected, atol=1e-4)
    assert score.expectation == pytest.approx(float(shown @ weight), abs=1e-3)
    assert score.variance == pytest.approx(float((shown - shown @ weight) ** 2 @ weight), abs=2e-3)
