"""What clipping and missing blocks do to a private regression: the procedure simulated from what it released.

The releases define a law of the rows. Covariates have the released marginals, point masses included, and the
correlations of a Gaussian copula; the response has its released marginal and rises with a linear index of the
covariates plus Gaussian noise (where the marginal is that of the index, this is the linear model). A block is there
with a chance that is logistic in the response holder's columns. Correlations, index and chances are those at which the
simulated rows, clipped as the parties clip, have the moments that were released.

On the simulated rows both are known: what the procedure estimates, and the least squares coefficients of whole rows
that were never clipped. Their difference is the bias. The sampling variance of the estimate is the variance of its
influence function over the simulated rows, so it needs no normality either. All of it is post-processing, with fixed
draws: the same release gives the same estimate.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray
from scipy.special import expit, ndtr

from colonnade.models.linear.factored import FactoredMoments, Factors, factors, influences
from colonnade.models.matrix import consecutive
from colonnade.models.private_scales import Clipping
from colonnade.statistics.gaussian_em import Matrix, Vector, correlation_of
from colonnade.statistics.marginals import Marginal

DRAWS = 60_000
STEPS = 6
"""Of the search for the law: the moments are then matched up to Monte Carlo error."""
FLOOR = 0.02
"""Smallest eigenvalue of the copula's correlations."""
LEAST_NOISE = 0.05
"""Of the response's variance: the smallest residual variance of the index."""
ALWAYS = 0.995
"""A block that so many records have counts as never missing."""


@dataclass(frozen=True, eq=False)
class Simulated:
    """What the simulation says of the estimate, in the features' units.

    bias : of the intercept and slopes. response : how the estimated slopes move with the true ones.
    sampling : their covariance without noise. unmatched : the largest difference of a correlation that is left.
    """

    bias: Vector
    response: Matrix
    sampling: Matrix
    unmatched: float


def simulate(
    data: FactoredMoments,
    clipping: Clipping,
    marginals: Sequence[Marginal],
    target: int,
    *,
    draws: int = DRAWS,
) -> Simulated:
    """`marginals` are those of the features in the order of the data, in the features' units."""
    wanted = factors(data)
    width = len(marginals)
    others = np.delete(np.arange(width), target)
    rng = np.random.default_rng(0)  # post-processing: it protects nobody
    normal = rng.standard_normal((draws, width))
    uniform = rng.random((draws, len(data.widths)))
    slopes = _slopes(wanted.sigma, target)
    latent = correlation_of(_positive(correlation_of(wanted.sigma)[np.ix_(others, others)]))
    goal = correlation_of(wanted.sigma)
    block = np.repeat(np.arange(-1, len(data.widths)), (data.n_own, *data.widths))
    present = np.ones((draws, len(data.widths)), dtype=bool)
    for step in range(STEPS):
        rows = _rows(normal, latent, slopes, marginals, target, others, block, present)
        clipped = clipping(rows, consecutive((data.n_own, *data.widths)))
        present = _presence(data, clipped[:, : data.n_own], uniform)
        law = factors(_moments(data, clipped, present))
        reached = correlation_of(law.sigma)
        off = goal - reached
        if step + 1 < STEPS:
            latent = correlation_of(_positive(latent + off[np.ix_(others, others)]))
            slopes = slopes + _slopes(wanted.sigma, target) - _slopes(law.sigma, target)
    simulated = _moments(data, clipped, present)
    estimated = _coefficients(law.mu, law.sigma, target)
    true = _coefficients(rows.mean(axis=0), np.cov(rows.T, ddof=0), target)
    return Simulated(
        bias=estimated - true,
        response=_response(rows, clipped, target, others),
        sampling=_sampling(simulated, clipped, present, target, wanted.count),
        unmatched=float(np.abs(off).max()),
    )


def _slopes(sigma: Matrix, target: int) -> Vector:
    others = np.delete(np.arange(len(sigma)), target)
    return np.asarray(np.linalg.solve(sigma[np.ix_(others, others)], sigma[others, target]))


def _coefficients(mu: Vector, sigma: Matrix, target: int) -> Vector:
    slopes = _slopes(sigma, target)
    return np.concatenate([[mu[target] - np.delete(mu, target) @ slopes], slopes])


def _positive(matrix: Matrix) -> Matrix:
    values, vectors = np.linalg.eigh(matrix)
    return np.asarray((vectors * np.maximum(values, FLOOR)) @ vectors.T)


def _rows(
    normal: Matrix,
    latent: Matrix,
    slopes: Vector,
    marginals: Sequence[Marginal],
    target: int,
    others: NDArray[np.intp],
    block: NDArray[np.intp],
    present: NDArray[np.bool_],
) -> Matrix:
    """Rows whose marginals are the released ones among the rows that have the block: the level of a score is its rank
    among those that had the block with the law before."""
    rows = np.empty_like(normal)
    scores = ndtr(normal[:, others] @ np.linalg.cholesky(latent).T)
    for score, place in zip(scores.T, others, strict=True):
        if block[place] >= 0 and not present[:, block[place]].all():
            shown = np.sort(score[present[:, block[place]]])
            score = np.interp(score, shown, (np.arange(len(shown)) + 0.5) / len(shown))
        rows[:, place] = marginals[place].quantile(score)
    ranks = (np.arange(len(rows)) + 0.5) / len(rows)
    response = marginals[target].quantile(ranks)
    index = (rows[:, others] - rows[:, others].mean(axis=0)) @ slopes
    variance = response.var()
    index += np.sqrt(max(variance - index.var(), LEAST_NOISE * variance)) * normal[:, target]
    rows[np.argsort(index, kind="stable"), target] = response
    return rows


def _presence(data: FactoredMoments, own: Matrix, uniform: Matrix) -> NDArray[np.bool_]:
    """Chances logistic in the holder's columns, with the released sums of these over the records that have a block."""
    total = data.total()
    design = np.column_stack([np.ones(len(own)), own])
    present = np.ones((len(own), len(data.widths)), dtype=bool)
    pairs = data.pairs()
    for block in range(len(data.widths)):
        wanted = pairs[block, block][0] / total[0, 0]
        if wanted[0] > ALWAYS:
            continue
        weights = np.zeros(design.shape[1])
        weights[0] = np.log(wanted[0] / (1 - wanted[0]))
        for _ in range(12):
            chance = expit(design @ weights)
            slope = (design * (chance * (1 - chance))[:, None]).T @ design / len(design)
            change = np.linalg.solve(slope + 1e-6 * np.eye(len(slope)), wanted - chance @ design / len(design))
            weights += np.clip(change, -1.0, 1.0)
        present[:, block] = uniform[:, block] < expit(design @ weights)
    return present


def _moments(data: FactoredMoments, rows: Matrix, present: NDArray[np.bool_]) -> FactoredMoments:
    """Those of these rows, without noise."""
    shown = np.column_stack([np.ones((len(rows), data.head), dtype=bool), np.repeat(present, data.widths, axis=1)])
    extended = np.column_stack([np.ones(len(rows)), rows]) * shown
    number = present @ (2 ** np.arange(present.shape[1])[::-1])
    own = []
    for mask in data.masks:
        chosen = extended[number == np.array(mask) @ (2 ** np.arange(len(mask))[::-1]), : data.head]
        own.append(chosen.T @ chosen)
    return replace(data, gram=extended.T @ extended, own=tuple(own))


def _response(rows: Matrix, clipped: Matrix, target: int, others: NDArray[np.intp]) -> Matrix:
    """How the estimated slopes move with the true ones: the regression of whole covariates on clipped ones, times the
    part of the response's covariance with its index that clipping leaves."""
    whole, cut = (matrix - matrix.mean(axis=0) for matrix in (rows, clipped))
    inner = np.linalg.solve(cut[:, others].T @ cut[:, others], cut[:, others].T @ whole[:, others])
    return np.asarray(inner * float(cut[:, target] @ whole[:, target]) / float(whole[:, target] @ whole[:, target]))


def _sampling(
    simulated: FactoredMoments, clipped: Matrix, present: NDArray[np.bool_], target: int, count: float
) -> Matrix:
    values = influences(simulated, clipped, present, target)
    return np.asarray(np.cov(values.T) * len(values) ** 2 / count)
