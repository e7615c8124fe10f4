"""VFL-ADMM-DP (Hu et al. 2020, as the copula paper compares with it): ADMM with noise on local coefficients.

Party k holds X_k. Minimised is sum_i loss(y_i, sum_k x_ik'b_k) / N + SCAD(b), by ADMM in the sharing form (Boyd et al.
2011, 7.3). Each round, party k fits X_k b_k to what is left for it (a lasso with SCAD's weights), **adds Gaussian noise
to its coefficients** and sends X_k b_k; the response holder updates the common predictor and the multiplier. (The
paper's equations 4.4 to 4.6 let all parties correct the whole residual at once: with five parties that diverged here.)

The sensitivity is the rival's own claim, repeated and not proved: a record of norm at most `clip` moves the minimum of
a party's update by at most 2 clip / (N kappa), kappa the smallest eigenvalue of its Gram matrix (a fact of the data,
taken as public). The rounds are Gaussian mechanisms, so together they cost what one with the noise / sqrt(rounds) does;
with `per_round` each round spends all of epsilon. Simulated on pooled rows: it is only compared with.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray
from scipy.special import expit

from benchmarks.rivals.central_dp import analytic_gaussian

Reals = NDArray[np.float64]
Family = Literal["gaussian", "binomial"]
SCAD = 3.7


@dataclass(frozen=True, kw_only=True)
class AdmmFit:
    """Coefficients in the units of the given columns, after the last round's noise; `sigma` is the noise's sd."""

    coefficients: Reals
    intercept: float
    sigma: float


def vfl_admm_dp(
    rows: Reals,
    response: Reals,
    blocks: Sequence[slice],
    *,
    epsilon: float | None,
    delta: float = 1e-5,
    family: Family = "gaussian",
    penalty: float = 0.05,
    phi: float = 1.0,
    rounds: int = 40,
    per_round: bool = False,
    clip: float | None = None,
    rng: np.random.Generator,
) -> AdmmFit:
    """`epsilon=None` adds no noise: then it is the paper's VFL-GLM-VS at one lambda, which a test can check."""
    n, width = rows.shape
    mean, sd = rows.mean(axis=0), rows.std(axis=0)
    unit = np.where(sd > 0, sd, 1.0)
    scaled = (rows - mean) / unit
    centre = float(response.mean()) if family == "gaussian" else 0.0
    y = response - centre
    grams = [scaled[:, block].T @ scaled[:, block] / n for block in blocks]
    sigma = 0.0
    if epsilon is not None:
        bound = math.sqrt(max(block.stop - block.start for block in blocks)) if clip is None else clip
        kappa = min(float(np.linalg.eigvalsh(gram)[0]) for gram in grams)
        sigma = 2 * bound / (n * kappa) * analytic_gaussian(epsilon, delta) * (1 if per_round else math.sqrt(rounds))

    beta = np.zeros(width)
    parts = np.zeros((len(blocks), n))
    shared, multiplier, intercept = np.zeros(n), np.zeros(n), 0.0
    for number in range(rounds):
        weights = scad_weights(beta, penalty) if number else np.full(width, penalty)
        gap = shared - parts.mean(axis=0) - multiplier
        for k, block in enumerate(blocks):
            covariance = scaled[:, block].T @ (parts[k] + gap) / n
            beta[block] = weighted_lasso(grams[k], covariance, weights[block] / phi, beta[block])
        # Only what carries noise leaves, and the next round goes on from it.
        beta = beta + sigma * rng.standard_normal(width)
        parts = np.array([scaled[:, block] @ beta[block] for block in blocks])
        average = parts.mean(axis=0)
        shared, intercept = _shared(y, average + multiplier, phi, len(blocks), intercept, family)
        multiplier = multiplier + average - shared
    coefficients = beta / unit
    return AdmmFit(coefficients=coefficients, intercept=centre + intercept - float(mean @ coefficients), sigma=sigma)


def _shared(y: Reals, pull: Reals, phi: float, parties: int, intercept: float, family: Family) -> tuple[Reals, float]:
    """z with sum_i loss(y_i, K z_i) + K phi / 2 |z - pull|^2 least: each record on its own."""
    if family == "gaussian":
        return np.asarray((y + phi * pull) / (parties + phi)), 0.0
    z = pull.copy()
    for _ in range(20):
        chance = expit(parties * z + intercept)
        z = z - (chance - y + phi * (z - pull)) / (parties * chance * (1 - chance) + phi)
    chance = expit(parties * z + intercept)
    return z, intercept + float((y - chance).sum() / max((chance * (1 - chance)).sum(), 1e-9))


def scad_weights(beta: Reals, penalty: float) -> Reals:
    """The derivative of SCAD at |beta| (a = 3.7): the weights of the next lasso."""
    size = np.abs(beta)
    return np.where(size <= penalty, penalty, np.maximum(SCAD * penalty - size, 0.0) / (SCAD - 1))


def weighted_lasso(gram: Reals, covariance: Reals, weights: Reals, start: Reals, sweeps: int = 50) -> Reals:
    """min b'Gb/2 - c'b + sum w |b|, by coordinate descent."""
    beta = start.copy()
    for _ in range(sweeps):
        before = beta.copy()
        for j in range(beta.size):
            if gram[j, j] <= 1e-12:
                continue
            left = covariance[j] - gram[j] @ beta + gram[j, j] * beta[j]
            beta[j] = math.copysign(max(abs(left) - weights[j], 0.0), left) / gram[j, j]
        if np.abs(beta - before).max() < 1e-8:
            break
    return beta
