"""The Gaussian with missing blocks against record-level computation, finite differences and ordinary least squares."""

from __future__ import annotations

import numpy as np
import pytest
import statsmodels.api as sm
from numpy.typing import NDArray
from scipy.stats import multivariate_normal

from colonnade.errors import BadArguments
from colonnade.models.linear.gaussian import regression
from colonnade.statistics.gaussian_em import (
    PatternStatistics,
    derivatives,
    em_step,
    fit_gaussian,
    log_likelihood,
    redundant,
)

Array = NDArray[np.float64]
NAMES = ("a", "b", "c", "d", "y")


def correlated_rows_with_missing_blocks(n: int = 400, seed: int = 0, *, rate: float = 0.4) -> Array:
    """Blocks (a, b), (c), (d) and a complete y in different units; y and a make c and d go missing (MAR)."""
    rng = np.random.default_rng(seed)
    mix = rng.normal(size=(5, 5)) + 2 * np.eye(5)
    rows = rng.normal(size=(n, 5)) @ mix * np.array([1.0, 10.0, 0.1, 3.0, 2.0]) + np.array([0.0, 50.0, 1.0, -4.0, 7.0])
    score = (rows[:, 4] - rows[:, 4].mean()) / rows[:, 4].std()
    shift = np.log(rate / (1 - rate))
    rows[rng.random(n) < rate / 2, 0:2] = np.nan
    rows[rng.logistic(size=n) < shift + score, 2] = np.nan
    rows[rng.logistic(size=n) < shift - score, 3] = np.nan
    return rows


def record_likelihood(rows: Array, mu: Array, sigma: Array) -> float:
    """The sum of each record's marginal log-density, by scipy."""
    total = 0.0
    for row in rows:
        seen = ~np.isnan(row)
        total += multivariate_normal.logpdf(row[seen], mu[seen], sigma[np.ix_(seen, seen)])
    return total


def record_em(rows: Array, *, tolerance: float = 1e-12) -> tuple[Array, Array]:
    """Plain EM, one record at a time: an implementation that shares nothing with the product's."""
    mu, sigma = np.nanmean(rows, axis=0), np.diag(np.nanvar(rows, axis=0))
    for _ in range(20_000):
        filled, extra = np.empty_like(rows), np.zeros_like(sigma)
        for place, row in enumerate(rows):
            o, m = np.flatnonzero(~np.isnan(row)), np.flatnonzero(np.isnan(row))
            slope = np.linalg.solve(sigma[np.ix_(o, o)], sigma[np.ix_(o, m)])
            filled[place, o] = row[o]
            filled[place, m] = mu[m] + (row[o] - mu[o]) @ slope
            extra[np.ix_(m, m)] += sigma[np.ix_(m, m)] - sigma[np.ix_(m, o)] @ slope
        before, mu = mu, filled.mean(axis=0)
        centred = filled - mu
        covariance = (centred.T @ centred + extra) / len(rows)
        scale = np.sqrt(np.diag(covariance))
        moved = max(np.abs((mu - before) / scale).max(), np.abs((covariance - sigma) / np.outer(scale, scale)).max())
        sigma = covariance
        if moved < tolerance:
            return mu, sigma
    raise AssertionError("record-level EM did not converge")


def positive_definite(seed: int, width: int) -> Array:
    root = np.random.default_rng(seed).normal(size=(width, width))
    return root @ root.T + np.eye(width)


def test_likelihood_and_em_step_equal_the_record_level() -> None:
    rows = correlated_rows_with_missing_blocks(120)
    data = PatternStatistics.of_rows(rows, NAMES)
    mu, sigma = np.array([1.0, 45.0, 0.9, -3.0, 8.0]), positive_definite(1, 5)
    assert log_likelihood(data, mu, sigma) == pytest.approx(record_likelihood(rows, mu, sigma), rel=1e-11)
    value, mu_next, sigma_next = em_step(data, mu, sigma)
    assert value == pytest.approx(record_likelihood(rows, mu, sigma), rel=1e-11)
    filled, extra = np.empty_like(rows), np.zeros((5, 5))
    for place, row in enumerate(rows):
        o, m = np.flatnonzero(~np.isnan(row)), np.flatnonzero(np.isnan(row))
        inverse = np.linalg.inv(sigma[np.ix_(o, o)])
        filled[place] = row
        filled[place, m] = mu[m] + sigma[np.ix_(m, o)] @ inverse @ (row[o] - mu[o])
        extra[np.ix_(m, m)] += sigma[np.ix_(m, m)] - sigma[np.ix_(m, o)] @ inverse @ sigma[np.ix_(o, m)]
    np.testing.assert_allclose(mu_next, filled.mean(axis=0), rtol=1e-10)
    np.testing.assert_allclose(sigma_next, np.cov(filled.T, bias=True) + extra / len(rows), rtol=1e-8)


def test_derivatives_equal_finite_differences() -> None:
    """Central differences of the likelihood, and of the score: error O(h^2) with h = 1e-4."""
    data = PatternStatistics.of_rows(correlated_rows_with_missing_blocks(150), NAMES)
    data = data.standardised(*(lambda mean, variance: (mean, np.sqrt(variance)))(*data.available()))
    mu, sigma = np.linspace(-0.3, 0.3, 5), positive_definite(2, 5) / 4
    score, information = derivatives(data, mu, sigma)
    upper = np.triu_indices(5)

    def at(theta: Array) -> tuple[Array, Array]:
        moved = np.zeros((5, 5))
        moved[upper] = theta[5:]
        return theta[:5], moved + np.triu(moved, 1).T

    theta, h = np.concatenate([mu, sigma[upper]]), 1e-4
    for place in range(len(theta)):
        step = h * np.eye(len(theta))[place]
        slope = (log_likelihood(data, *at(theta + step)) - log_likelihood(data, *at(theta - step))) / (2 * h)
        assert slope == pytest.approx(score[place], rel=1e-5, abs=1e-3)
        curvature = (derivatives(data, *at(theta + step))[0] - derivatives(data, *at(theta - step))[0]) / (2 * h)
        np.testing.assert_allclose(-curvature, information[place], rtol=1e-5, atol=1e-5 * np.abs(information).max())


@pytest.mark.parametrize("rate", [0.2, 0.5])
def test_the_maximum_equals_record_level_em_and_the_trace_never_falls(rate: float) -> None:
    rows = correlated_rows_with_missing_blocks(150, seed=3, rate=rate)
    data = PatternStatistics.of_rows(rows, NAMES)
    fit = fit_gaussian(data)
    mu, sigma = record_em(rows)
    scale = np.sqrt(np.diag(sigma))
    np.testing.assert_allclose(fit.mu / scale, mu / scale, atol=1e-7)
    np.testing.assert_allclose(fit.sigma / np.outer(scale, scale), sigma / np.outer(scale, scale), atol=1e-7)
    assert fit.loglik == pytest.approx(record_likelihood(rows, mu, sigma), rel=1e-10)
    assert min(np.diff(fit.trace)) >= 0
    assert len(fit.trace) == 1 + fit.em_steps + fit.newton_steps


def test_two_starts_reach_the_same_top() -> None:
    """Also the standard errors: the paper's two starting values gave errors that differ by a factor of three."""
    rows = correlated_rows_with_missing_blocks()
    data = PatternStatistics.of_rows(rows, NAMES)
    complete = rows[~np.isnan(rows).any(axis=1)]
    one = fit_gaussian(data)
    two = fit_gaussian(data, start=(complete.mean(axis=0), np.cov(complete.T)))
    np.testing.assert_allclose(one.sigma, two.sigma, rtol=1e-8)
    np.testing.assert_allclose(regression(data, one, 4).cov, regression(data, two, 4).cov, rtol=1e-6)


@pytest.mark.parametrize("target", [0, 2, 4])
def test_complete_records_give_ordinary_least_squares(target: int) -> None:
    rows = correlated_rows_with_missing_blocks(200)
    rows = rows[~np.isnan(rows).any(axis=1)]
    data = PatternStatistics.of_rows(rows, NAMES)
    got = regression(data, fit_gaussian(data), target)
    others = np.delete(np.arange(5), target)
    ols = sm.OLS(rows[:, target], sm.add_constant(rows[:, others])).fit()
    np.testing.assert_allclose(got.params, ols.params, rtol=1e-8)
    np.testing.assert_allclose(got.cov, ols.cov_params(), rtol=1e-7, atol=1e-12)
    assert got.sigma2 == pytest.approx(ols.scale)
    assert got.rsquared == pytest.approx(ols.rsquared)
    assert got.names == tuple(NAMES[place] for place in others)


def test_units_do_not_matter() -> None:
    rows = correlated_rows_with_missing_blocks()
    unit, shift = np.array([1e3, 1e-3, 5.0, 1.0, 100.0]), np.array([10.0, -3.0, 0.0, 1e3, 5.0])
    data, other = (PatternStatistics.of_rows(values, NAMES) for values in (rows, rows * unit + shift))
    one, two = (regression(each, fit_gaussian(each), 4) for each in (data, other))
    np.testing.assert_allclose(two.params[1:] * unit[:4] / unit[4], one.params[1:], rtol=1e-6)
    slope = unit[:4] / unit[4]
    np.testing.assert_allclose(two.cov[1:, 1:] * np.outer(slope, slope), one.cov[1:, 1:], rtol=1e-6)


def test_refusals_say_why() -> None:
    rows = correlated_rows_with_missing_blocks()
    flat = rows.copy()
    flat[:, 1] = 3.0
    with pytest.raises(BadArguments, match="'b' does not vary"):
        fit_gaussian(PatternStatistics.of_rows(flat, NAMES))
    twins = np.column_stack([rows[:, 0], rows[:, 1], rows[:, 1] * 2 + 1, rows[:, 3:]])
    with pytest.raises(BadArguments, match="determine one another") as caught:
        fit_gaussian(PatternStatistics.of_rows(twins, NAMES))
    assert "'b'" in str(caught.value)
    assert "'c'" in str(caught.value)
    apart = rows.copy()
    half = np.arange(len(rows)) < len(rows) // 2
    apart[half, 2], apart[~half, 3] = np.nan, np.nan
    with pytest.raises(BadArguments):  # c and d never together: the likelihood is flat or the climb never settles
        data = PatternStatistics.of_rows(apart, NAMES)
        regression(data, fit_gaussian(data), 4)
    whole = rows[~np.isnan(rows).any(axis=1)]
    with pytest.raises(BadArguments, match=r"determine one another|cannot determine"):
        few = PatternStatistics.of_rows(whole[:5], NAMES)
        regression(few, fit_gaussian(few), 4)


def test_few_joint_records_do_not_lead_newton_into_the_edge_of_the_covariances() -> None:
    """88 % of four blocks missing: Newton's first steps are far too long, and a step that ends beside a singular Sigma
    stays there. The oracle is optimality: a zero score (in standard errors), and more likelihood than EM reaches."""
    rng = np.random.default_rng([4, 15])
    rows = np.sqrt(0.3) * rng.normal(size=(4000, 1)) + np.sqrt(0.7) * rng.normal(size=(4000, 9))
    rows[:, 8] += rows[:, :8] @ np.linspace(-1, 1, 8)
    for block in range(4):
        rows[rng.random(4000) < 0.88, 2 * block : 2 * block + 2] = np.nan
    data = PatternStatistics.of_rows(rows, [f"v{j}" for j in range(9)])
    fit = fit_gaussian(data)
    score, information = derivatives(data, fit.mu, fit.sigma)
    assert score @ np.linalg.solve(information, score) < 1e-12
    assert np.linalg.eigvalsh(information)[0] > 0
    mu, sigma = np.zeros(9), np.eye(9)
    for _ in range(200):
        value, mu, sigma = em_step(data, mu, sigma)
    assert value <= fit.loglik < value + 20
    assert min(np.diff(fit.trace)) >= 0


@pytest.mark.parametrize("keep", ["", "a", "twin", "sum"])
def test_what_is_advised_to_be_left_out_is_enough_and_never_the_response(keep: str) -> None:
    a, b, other = np.random.default_rng(1).normal(size=(3, 500))
    columns = ["a", "b", "other", "twin", "sum"]
    table = np.column_stack([a, b, other, 2 * a + 1, a + b])
    out = redundant(np.corrcoef(table.T), columns, floor=1e-3, keep=keep)
    assert len(out) == 2
    assert keep not in out
    left = [place for place, column in enumerate(columns) if column not in out]
    assert np.linalg.eigvalsh(np.corrcoef(table[:, left].T))[0] > 1e-3


def test_a_column_of_many_categories_is_left_out_with_all_of_them() -> None:
    indicators = np.eye(3)[np.arange(300) % 3]
    out = redundant(np.corrcoef(indicators.T), ["group"] * 3, floor=1e-3)
    assert out == ["group"]
