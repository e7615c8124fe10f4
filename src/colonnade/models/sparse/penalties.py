"""Lasso, SCAD and MCP, their local linear approximation, and the weighted lasso that it leads to.

    lasso  P'(t) = lambda
    SCAD   P'(t) = lambda [ t <= lambda ] + (a lambda - t)_+ / (a - 1) [ t > lambda ],    a = 3.7
    MCP    P'(t) = (lambda - t / gamma)_+,                                               gamma = 3

for t >= 0. The local linear approximation (LLA; Zou and Li 2008) replaces P(|b|) by P'(|b_0|) |b| around a point b_0.
A step is a lasso whose weights are P'(|b_0|); since P is concave, a step never raises the penalised loss.
"""

from __future__ import annotations

from typing import Any, Literal

import numba
import numpy as np
from numpy.typing import NDArray

Vector = NDArray[np.float64]
Matrix = NDArray[np.float64]
Penalty = Literal["lasso", "scad", "mcp"]

SCAD_A = 3.7
MCP_GAMMA = 3.0
MOST_SWEEPS = 10_000
FLAT = 1e-12
"""A coordinate whose curvature is below this share of the largest does not vary: its coefficient stays where it is."""


def penalty_value(penalty: Penalty, coefficients: Vector, lam: float) -> float:
    """The sum of P(|b_j|)."""
    t = np.abs(coefficients)
    if penalty == "lasso":
        return float(lam * t.sum())
    if penalty == "scad":
        a = SCAD_A
        middle = (2 * a * lam * t - t**2 - lam**2) / (2 * (a - 1))
        each = np.where(t <= lam, lam * t, np.where(t <= a * lam, middle, lam**2 * (a + 1) / 2))
    else:
        each = np.where(t <= MCP_GAMMA * lam, lam * t - t**2 / (2 * MCP_GAMMA), MCP_GAMMA * lam**2 / 2)
    return float(each.sum())


def penalty_slope(penalty: Penalty, coefficients: Vector, lam: float) -> Vector:
    """P'(|b_j|), with P'(0) = P'(0+) = lambda: the weights of an LLA step."""
    t = np.abs(coefficients)
    if penalty == "lasso":
        return np.full(t.shape, lam)
    if penalty == "scad":
        return np.where(t <= lam, lam, np.maximum(SCAD_A * lam - t, 0.0) / (SCAD_A - 1))
    return np.maximum(lam - t / MCP_GAMMA, 0.0)


def violations(gradient: Vector, coefficients: Vector, weights: Vector) -> Vector:
    """How far each coordinate is from optimal for the weighted lasso: the smallest subgradient in absolute value."""
    moving = np.abs(gradient + weights * np.sign(coefficients))
    return np.where(coefficients != 0, moving, np.maximum(np.abs(gradient) - weights, 0.0))


def weighted_lasso(curvature: Matrix, gradient: Vector, start: Vector, weights: Vector, *, tolerance: float) -> Vector:
    """argmin over b of  g'(b - start) + (b - start)' H (b - start) / 2 + sum_j w_j |b_j|,  by coordinate descent.

    H is symmetric and at least semidefinite. Stops when no coordinate's gradient moved by more than `tolerance` in a
    sweep. Sweeps over the nonzero coordinates alternate with sweeps over all.
    """
    diagonal = np.diag(curvature)
    least = FLAT * max(float(diagonal.max(initial=0.0)), 1e-300)
    solution: Vector = _descend(
        np.ascontiguousarray(curvature), gradient.copy(), start.copy(), weights, least, tolerance
    )
    return solution


@numba.njit(cache=True)
def _descend(h: Any, slope: Any, b: Any, w: Any, least: float, tolerance: float) -> Any:
    """`slope` is the gradient of the quadratic at b, kept up to date."""
    p = b.size
    everything = True
    for _ in range(MOST_SWEEPS):
        moved = 0.0
        for j in range(p):
            if h[j, j] <= least or (not everything and b[j] == 0.0):
                continue
            target = b[j] - slope[j] / h[j, j]
            shrink = w[j] / h[j, j]
            new = target - shrink if target > shrink else (target + shrink if target < -shrink else 0.0)
            step = new - b[j]
            if step != 0.0:
                b[j] = new
                for i in range(p):
                    slope[i] += step * h[j, i]
                moved = max(moved, abs(step) * h[j, j])
        if moved <= tolerance:
            if everything:
                break
            everything = True
        else:
            everything = False
    return b
