"""Penalties and the weighted lasso. Oracles: numerical derivatives, closed forms, scipy on split variables."""

from __future__ import annotations

import itertools
from typing import get_args

import numpy as np
import pytest
from scipy.optimize import brentq, minimize
from scipy.special import expit

from colonnade.errors import NotEstimable
from colonnade.models.sparse.path import (
    Family,
    curvature_of,
    link,
    mean_response,
    moment_solver,
    saturated_loss,
    trace_path,
    unit_loss,
)
from colonnade.models.sparse.penalties import (
    Penalty,
    penalty_slope,
    penalty_value,
    violations,
    weighted_lasso,
)
from colonnade.papers.vfl_glm_vs.updates import proximal


@pytest.mark.parametrize("penalty", get_args(Penalty))
def test_slopes_are_derivatives_of_values(penalty: Penalty) -> None:
    lam, h = 0.7, 1e-6
    for t in (0.1, 0.5, 0.69, 0.71, 1.5, 2.0, 2.2, 2.5, 2.6, 4.0):
        numeric = (penalty_value(penalty, np.array([t + h]), lam) - penalty_value(penalty, np.array([t - h]), lam)) / (
            2 * h
        )
        assert penalty_slope(penalty, np.array([-t]), lam)[0] == pytest.approx(numeric, abs=1e-6), t


def test_the_papers_constants() -> None:
    """P'(0+) = lambda; SCAD is flat from 3.7 lambda and constant slope up to lambda; MCP is flat from 3 lambda."""
    lam = 0.5
    for penalty in ("scad", "mcp"):
        assert penalty_slope(penalty, np.zeros(1), lam)[0] == lam
    scad = penalty_slope("scad", lam * np.array([1.0, 2.0, 3.7, 9.0]), lam)
    np.testing.assert_allclose(scad, lam * np.array([1.0, 1.7 / 2.7, 0.0, 0.0]), atol=1e-15)
    np.testing.assert_allclose(penalty_slope("mcp", lam * np.array([1.5, 3.0]), lam), [lam / 2, 0.0], atol=1e-15)
    assert penalty_value("scad", np.array([100.0]), lam) == pytest.approx(lam**2 * 4.7 / 2)
    assert penalty_value("mcp", np.array([100.0]), lam) == pytest.approx(1.5 * lam**2)


def test_one_coordinate_is_soft_thresholding() -> None:
    for z in (-2.0, -0.5, 0.2, 1.4):
        found = weighted_lasso(np.eye(1), np.array([-z]), np.zeros(1), np.array([0.6]), tolerance=1e-14)
        assert found[0] == pytest.approx(np.sign(z) * max(abs(z) - 0.6, 0), abs=1e-14)


def test_weighted_lasso_against_scipy_with_unpenalised_and_flat_coordinates() -> None:
    """b = b+ - b-, both at least 0: a smooth problem with bounds, for L-BFGS-B."""
    rng = np.random.default_rng(1)
    root = rng.normal(size=(12, 8))
    root[:, 5] = 0.0
    curvature = root.T @ root / 12
    gradient = rng.normal(size=8)
    gradient[5] = 0.0
    start = np.where(np.arange(8) == 5, 0.0, rng.normal(size=8))
    weights = np.array([0.0, 0.3, 0.3, 0.1, 5.0, 0.3, 0.3, 0.2])

    def objective(split: np.ndarray) -> tuple[float, np.ndarray]:
        b = split[:8] - split[8:]
        slope = gradient + curvature @ (b - start)
        value = gradient @ (b - start) + (b - start) @ curvature @ (b - start) / 2 + weights @ (split[:8] + split[8:])
        return value, np.concatenate([slope + weights, -slope + weights])

    tight = {"ftol": 1e-16, "gtol": 1e-12, "maxiter": 10_000}
    oracle = minimize(objective, np.zeros(16), jac=True, method="L-BFGS-B", bounds=[(0, None)] * 16, options=tight)
    found = weighted_lasso(curvature, gradient, start, weights, tolerance=1e-13)
    np.testing.assert_allclose(found, oracle.x[:8] - oracle.x[8:], atol=1e-6)
    assert found[5] == 0.0
    assert found[4] == 0.0
    assert violations(gradient + curvature @ (found - start), found, weights).max() < 1e-12
    moved = found + np.array([0, 0.01, 0, 0, 0, 0, 0, 0])
    assert violations(gradient + curvature @ (moved - start), moved, weights).max() > 1e-3


@pytest.mark.parametrize("family", ["gaussian", "binomial", "poisson"])
def test_families_are_consistent(family: Family) -> None:
    """psi' and psi'' by finite differences; the null model's intercept has a mean residual of zero."""
    eta, h = np.array([-3.0, -0.4, 0.0, 1.7]), 1e-5
    y = np.array([0.0, 1.0, 1.0, 0.0])
    slope = (unit_loss(family, eta + h, y) - unit_loss(family, eta - h, y)) / (2 * h)
    np.testing.assert_allclose(slope, mean_response(family, eta) - y, atol=1e-8)
    bend = (mean_response(family, eta + h) - mean_response(family, eta - h)) / (2 * h)
    np.testing.assert_allclose(bend, curvature_of(family, eta), atol=1e-8)
    assert mean_response(family, np.array([link(family, 0.3)]))[0] == pytest.approx(0.3)
    best = mean_response(family, np.array([40.0]))[0]
    assert best > 0
    if family == "poisson":
        counts = np.array([0.0, 1.0, 4.0])
        shares = np.array([0.5, 0.3, 0.2])
        assert saturated_loss(family, counts, shares) == pytest.approx(0.3 + 0.2 * (4.0 - 4 * np.log(4.0)))
        with pytest.raises(NotEstimable):
            link(family, 0.0)


@pytest.mark.parametrize("family", ["gaussian", "binomial", "poisson"])
@pytest.mark.parametrize("rho", [1e-3, 0.3, 40.0])
def test_the_proximal_step_solves_its_equation(family: Family, rho: float) -> None:
    """psi'(eta) - y + rho (eta - at) = 0, by Brent's method record by record."""
    at = np.array([-8.0, -1.0, 0.0, 2.0, 6.0])
    y = np.array([1.0, 0.0, 1.0, 0.0, 1.0])
    found = proximal(family, at, y, rho, np.array([True, True, True, True, False]))
    for k in range(4):

        def slope(eta: float, k: int = k) -> float:
            mean = {"gaussian": eta, "binomial": expit(eta), "poisson": np.exp(min(eta, 700.0))}[family]
            return float(mean - y[k] + rho * (eta - at[k]))

        assert found[k] == pytest.approx(brentq(slope, -3000.0, 3000.0, xtol=1e-13, rtol=1e-14), abs=1e-8)
    assert found[4] == at[4]  # left out: no loss


def test_lla_starts_at_the_lasso_and_never_raises_the_objective() -> None:
    rng = np.random.default_rng(4)
    x = rng.normal(size=(80, 6))
    x = (x - x.mean(axis=0)) / x.std(axis=0)
    y = x @ np.array([1.5, -1.0, 0.3, 0.0, 0.0, 0.0]) + 0.5 * rng.normal(size=80)
    y -= y.mean()
    s, c, v = x.T @ x / 80, x.T @ y / 80, float(y @ y / 80)
    lams = [0.4, 0.2, 0.1]
    lasso, *steps = (
        trace_path(moment_solver(s, c, v, tolerance=1e-10), lams, penalty=penalty, lla_steps=k).points  # type: ignore[arg-type]
        for penalty, k in [("lasso", 1), ("scad", 1), ("scad", 2), ("scad", 30)]
    )
    for at, lam in enumerate(lams):
        start = lasso[at].loss + penalty_value("scad", lasso[at].coefficients, lam)
        values = [start, *(points[at].objective for points in steps)]
        assert all(after <= before + 1e-12 for before, after in itertools.pairwise(values))
        assert steps[-1][at].residual < 1e-5  # a stationary point of the SCAD objective
    # By hand: one LLA step is a lasso with weights P'(|b_lasso|).
    weights = penalty_slope("scad", lasso[1].coefficients, lams[1])
    expected = weighted_lasso(s, -c, np.zeros(6), weights, tolerance=1e-13)
    np.testing.assert_allclose(steps[0][1].coefficients, expected, atol=1e-8)


def test_a_saturated_path_ends_with_a_reason() -> None:
    """y is a sum of columns without error: the deviance is explained before lambda is small."""
    rng = np.random.default_rng(5)
    x = rng.normal(size=(50, 3))
    x = (x - x.mean(axis=0)) / x.std(axis=0)
    y = x @ np.array([1.0, 1.0, 0.0])
    s, c, v = x.T @ x / 50, x.T @ y / 50, float(y @ y / 50)
    solver = moment_solver(s, c, v, tolerance=1e-8)
    traced = trace_path(solver, np.geomspace(solver.largest, 1e-6, 40).tolist(), penalty="mcp", lla_steps=5)
    points, ended = traced.points, traced.ended
    assert len(points) < 40
    assert "99.9%" in ended
