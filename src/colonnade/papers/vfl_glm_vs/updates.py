"""The mathematics of one round of ADMM for sparse GLMs, at a party and at the response holder; no network.

The equations are those of the copula paper, section 4; `method.py` says where they differ.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.special import expit, wrightomega

from colonnade.models.sparse.path import Family
from colonnade.models.sparse.penalties import weighted_lasso

Vector = NDArray[np.float64]
Matrix = NDArray[np.float64]


def block_update(
    values: Matrix,
    gram: Matrix,
    before: Vector,
    push: Vector,
    weights: Vector,
    *,
    rho: float,
    many: int,
    tolerance: float,
) -> Vector:
    """(4.4) for one block, with phi = rho / n: `push` is v and `many` is K."""
    n = len(values)
    return weighted_lasso(gram * (rho * many / n), rho / n * (values.T @ push), before, weights, tolerance=tolerance)


@dataclass(frozen=True, eq=False)
class Turn:
    """What the response holder has after a round; `push` is what it sends."""

    eta: Vector
    u: Vector
    push: Vector
    rho: float
    primal: float
    dual: float
    done: bool


def holder_update(
    family: Family,
    total: Vector,
    y: Vector,
    train: NDArray[np.bool_],
    eta_before: Vector,
    u: Vector,
    *,
    rho: float,
    width: int,
    adapt: bool,
    tolerance: float,
) -> Turn:
    """(4.5), (4.6), the stopping rule, and the balance of phi = rho / n."""
    eta = proximal(family, total + u, y, rho * float(train.mean()), train)
    h = total - eta
    u = u + h
    primal, dual = float(np.linalg.norm(h)), rho * float(np.linalg.norm(eta - eta_before))
    scale = max(float(np.linalg.norm(total)), float(np.linalg.norm(eta)))
    primal_limit = tolerance * (math.sqrt(len(y)) + scale)
    dual_limit = tolerance * (math.sqrt(width) + rho * float(np.linalg.norm(u)))
    done = primal <= primal_limit and dual <= dual_limit
    factor = 1.0
    if adapt and not done:
        ratio = (primal / primal_limit) / max(dual / dual_limit, 1e-300)
        factor = 2.0 if ratio > 10.0 else (0.5 if ratio < 0.1 else 1.0)
    u = u / factor
    return Turn(eta, u, h + u, rho * factor, primal, dual, done)


def proximal(family: Family, centre: Vector, y: Vector, rho: float, train: NDArray[np.bool_]) -> Vector:
    """argmin over eta of psi(eta) - y eta + rho (eta - centre)^2 / 2, record by record; `centre` where one is left out.

    Poisson: e^eta + rho eta = c has eta = c / rho - omega(c / rho - log rho), with Wright's omega. Binomial: the root
    of an increasing function between centre + (y - 1) / rho and centre + y / rho, by Newton steps that bisection keeps
    inside.
    """
    if family == "gaussian":
        eta = (y + rho * centre) / (1.0 + rho)
    elif family == "poisson":
        c = y / rho + centre
        eta = c - np.real(wrightomega(c - math.log(rho)))
    else:
        low, high = centre + (y - 1.0) / rho, centre + y / rho
        eta, last = centre.copy(), high - low
        for _ in range(100):
            mu = expit(eta)
            slope = mu - y + rho * (eta - centre)
            low, high = np.where(slope < 0, eta, low), np.where(slope > 0, eta, high)
            step = -slope / (mu * (1.0 - mu) + rho)
            # Where a Newton step leaves the bracket or does not halve the last one, halve the bracket.
            bad = (eta + step < low) | (eta + step > high) | (np.abs(step) > 0.5 * np.abs(last))
            bad &= np.abs(step) > 1e-12 * (1.0 + np.abs(eta))  # what is smaller is rounding, at the root
            step = np.where(bad, (low + high) / 2 - eta, step)
            eta, last = eta + step, step
            if float(np.abs(step).max(initial=0.0)) <= 1e-15 * max(1.0, float(np.abs(eta).max(initial=0.0))):
                break
    return np.where(train, eta, centre)
