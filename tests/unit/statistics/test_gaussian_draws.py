"""Draws of a Gaussian's parameters from pattern moments: what they must have, by theory and by brute force."""

from __future__ import annotations

import numpy as np
import pytest

from colonnade.statistics import gaussian_draws
from colonnade.statistics.gaussian_draws import _residual_products, posterior_draws
from colonnade.statistics.gaussian_em import PatternStatistics, derivatives, fit_gaussian


def gappy_rows(n: int = 400) -> np.ndarray:
    """Four correlated columns; the third and fourth, and the first, are missing for some."""
    rng = np.random.default_rng(5)
    rows = rng.multivariate_normal([0.0, 1.0, 2.0, 3.0], 0.5 * np.eye(4) + 0.5, n)
    rows[np.ix_(rng.random(n) < 0.4, [2, 3])] = np.nan
    rows[rng.random(n) < 0.3, 0] = np.nan
    return rows


def test_draws_have_the_mean_and_the_spread_of_the_likelihood(monkeypatch: pytest.MonkeyPatch) -> None:
    """With 400 records the posterior is nearly normal about the maximum, with the inverse information."""
    monkeypatch.setattr(gaussian_draws, "THIN", 2)
    monkeypatch.setattr(gaussian_draws, "BURN", 10)
    data = PatternStatistics.of_rows(gappy_rows(), "abcd")
    fit = fit_gaussian(data)
    draws = posterior_draws(data, (fit.mu, fit.sigma), 200, np.random.default_rng(1))
    spread = np.sqrt(np.diag(np.linalg.inv(derivatives(data, fit.mu, fit.sigma)[1])))
    means, covariances = (np.array(part) for part in zip(*draws, strict=True))
    upper = covariances[:, *np.triu_indices(4)]
    drawn = np.column_stack([means, upper])
    estimate = np.concatenate([fit.mu, fit.sigma[np.triu_indices(4)]])
    assert np.abs((drawn.mean(axis=0) - estimate) / spread).max() < 0.5  # the mean of an inverse Wishart is above
    assert drawn.std(axis=0) == pytest.approx(spread, rel=0.25)


@pytest.mark.parametrize("n", [3, 40])
def test_products_of_residuals_are_those_of_residuals_drawn_one_by_one(n: int) -> None:
    """Also where there are fewer records than columns that they show."""
    rng = np.random.default_rng(2)
    shown = rng.normal(size=(n, 4))
    root = np.array([[1.0, 0.0], [0.5, 2.0]])
    with_constant = np.column_stack([np.ones(n), shown])
    ours, brute = [], []
    for _ in range(2000):
        cross, square = _residual_products(n, shown.sum(axis=0), shown.T @ shown, root, rng)
        ours.append(np.concatenate([cross.ravel(), square.ravel()]))
        residuals = rng.standard_normal((n, 2)) @ root.T
        brute.append(np.concatenate([(residuals.T @ with_constant).ravel(), (residuals.T @ residuals).ravel()]))
    ours_drawn, brute_drawn = np.array(ours), np.array(brute)
    scale = brute_drawn.std(axis=0)
    assert np.abs((ours_drawn.mean(axis=0) - brute_drawn.mean(axis=0)) / scale).max() < 0.15
    correlation = [np.cov(each.T) / np.outer(scale, scale) for each in (ours_drawn, brute_drawn)]
    assert np.abs(correlation[0] - correlation[1]).max() < 0.15


def test_a_category_that_never_occurs_does_not_stop_the_draws() -> None:
    rows = np.column_stack([gappy_rows(60), np.zeros(60)])
    data = PatternStatistics.of_rows(rows, "abcde")
    start = np.zeros(5), np.diag([1.0, 1.0, 1.0, 1.0, 1e-6])
    (mean, covariance), *_ = posterior_draws(data, start, 1, np.random.default_rng(1))
    assert np.isfinite(mean).all()
    assert 0 < covariance[4, 4] < 1e-4
