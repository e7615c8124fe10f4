"""DP-SGD (Abadi et al. 2016) for logistic regression on pooled rows."""

from __future__ import annotations

import math
from functools import lru_cache

import dp_accounting
import numpy as np
from dp_accounting.pld import PLDAccountant
from numpy.typing import NDArray
from scipy.special import expit


@lru_cache(maxsize=256)
def noise_multiplier(epsilon: float, delta: float, sampling: float, rounds: int, before: float = 0.0) -> float:
    """The smallest, by privacy loss distributions. Adding or removing a record is what `zero-out` is for a sum.

    `before` is the share of the budget, as 1 / noise multiplier squared, of a Gaussian release made before."""
    spent = []
    if before:
        alone = dp_accounting.calibrate_dp_mechanism(
            lambda: PLDAccountant(value_discretization_interval=1e-3),
            dp_accounting.GaussianDpEvent,
            epsilon,
            delta,
            bracket_interval=dp_accounting.ExplicitBracketInterval(0.3, 100.0),
            tol=1e-3,
        )
        spent = [dp_accounting.GaussianDpEvent(float(alone) / math.sqrt(before))]

    def event(multiplier: float) -> dp_accounting.DpEvent:
        one = dp_accounting.PoissonSampledDpEvent(sampling, dp_accounting.GaussianDpEvent(multiplier))
        return dp_accounting.ComposedDpEvent([*spent, dp_accounting.SelfComposedDpEvent(one, rounds)])

    return float(
        dp_accounting.calibrate_dp_mechanism(
            lambda: PLDAccountant(value_discretization_interval=1e-3),
            event,
            epsilon,
            delta,
            bracket_interval=dp_accounting.ExplicitBracketInterval(0.3, 100.0),
            tol=1e-3,
        )
    )


def dp_sgd(
    rows: NDArray[np.float64],
    sign: NDArray[np.float64],
    *,
    epsilon: float,
    delta: float,
    sampling: float,
    rounds: int,
    learning_rate: float,
    rng: np.random.Generator,
    clip: float = 1.0,
    before: float = 0.0,
) -> NDArray[np.float64]:
    """Weights for rows of norm at most 1 (a constant among the columns); the second half of the rounds averaged.
    `before` is the share of the budget that was spent on the units of the rows."""
    deviation = clip * noise_multiplier(epsilon, delta, sampling, rounds, before)
    weights, total, kept = np.zeros(rows.shape[1]), np.zeros(rows.shape[1]), 0
    sizes = rng.binomial(len(rows), sampling, size=rounds)
    for number in range(rounds):
        batch = rng.choice(len(rows), sizes[number], replace=False)
        z, s = rows[batch], sign[batch]
        slope = -s * expit(-s * (z @ weights))
        norms = np.abs(slope) * np.sqrt(np.einsum("ij,ij->i", z, z))
        slope *= np.minimum(1.0, clip / np.maximum(norms, 1e-300))
        gradient = slope @ z + rng.normal(scale=deviation, size=len(weights))
        weights = weights - learning_rate * gradient / (sampling * len(rows))
        if number >= rounds // 2:
            total += weights
            kept += 1
    return total / kept
