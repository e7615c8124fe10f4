"""What clipping and missing blocks do to a private regression: the procedure simulated from what it released.

The releases define a law of the rows. Covariates have the released marginals, point masses included, and the
correlations of a Gaussian copula; the response has its released marginal and rises with a linear index of the
covariates plus Gaussian noise (where the marginal is that of the index, this is the linear model). A block is there
with the chance that was released, which is logistic in functions of the response holder's columns, and counts by the
weights that follow from it (`selection.py`). Correlations and index are those at which the simulated rows, clipped as
the parties clip, have the moments that were released.

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
from scipy.special import ndtr, ndtri

from colonnade.models.linear.factored import FactoredMoments, Factors, factors, influences
from colonnade.models.linear.gaussian import Coefficients
from colonnade.models.linear.result import NOT_VALID
from colonnade.models.linear.selection import Weighing
from colonnade.models.matrix import consecutive
from colonnade.models.private_scales import Clipping
from colonnade.statistics.gaussian_em import Matrix, Vector, correlation_of
from colonnade.statistics.marginals import Marginal

DRAWS = 30_000
REDRAWN, FEWER = 6, 4
"""Times that the released distributions get other noise, and how many times fewer rows each of these has."""
STEPS, STEPS_NEAR = 6, 3
"""Of the search for the law, from afar and from near: the moments are then matched up to Monte Carlo error."""
FLOOR = 0.02
"""Smallest eigenvalue of the copula's correlations."""
LEAST_NOISE = 0.05
"""Of the response's variance: the smallest residual variance of the index."""
RARE = 1e-4
"""Shares of a level below it count as this."""
CLIPPING_ERROR, MISSING_ERROR = 0.25, 0.5
"""The part of a simulated bias that counts as its standard error."""
UNMATCHED = 0.1
"""The largest difference in a correlation at which the simulation is believed."""
UNTRUSTED, LOST, CUT = 1.0, 1.5, 5.0
"""Standard errors of a bias in any coefficient beyond which intervals are withheld: of a simulation that is not
believed, of missing blocks, of clipping."""


@dataclass(frozen=True, eq=False)
class Simulated:
    """What the simulation says of the estimate, in the features' units; intercept and slopes.

    clipping, missing : the bias of clipping alone, and what missing blocks add to it.
    response : how the estimated slopes move with the true ones.
    sampling : the covariance without noise.
    mu, sigma, sigma2 : what clipping and missing blocks took from the means, covariances and residual variance.
    unmatched : the largest difference of a correlation that is left.
    noise : the covariance of the bias that the noise of the released distributions makes.
    """

    clipping: Vector
    missing: Vector
    response: Matrix
    sampling: Matrix
    mu: Vector
    sigma: Matrix
    sigma2: float
    unmatched: float
    noise: Matrix

    @classmethod
    def unknown(cls, law: Factors, estimate: Coefficients, target: int) -> Simulated:
        """Where no rows can be simulated: no bias is known, and the sampling variance is that of least squares."""
        size, others = len(law.mu), np.delete(np.arange(len(law.mu)), target)
        inverse, mean = np.linalg.inv(law.sigma[np.ix_(others, others)]), law.mu[others]
        sampling = np.zeros((size, size))
        sampling[1:, 1:], sampling[0, 1:] = inverse, -mean @ inverse
        sampling[1:, 0], sampling[0, 0] = sampling[0, 1:], 1 + mean @ inverse @ mean
        nothing, square = np.zeros(size), np.zeros((size, size))
        spread = np.asarray(sampling * estimate.sigma2 / law.count)
        return cls(nothing, nothing, np.eye(size - 1), spread, nothing, square, 0.0, np.inf, square)

    @property
    def trusted(self) -> bool:
        return self.unmatched <= UNMATCHED

    def corrected(self, estimate: Coefficients, mean: Vector) -> Coefficients:
        """Without the bias, with standard errors that know of it. The estimate's covariance is that of the noise alone,
        `mean` is that of the covariates.

        What the copula says of the bias is believed up to a part (`CLIPPING_ERROR`, `MISSING_ERROR`), which adds to the
        variance. A bias b whose noise has variance v is taken away by the part (1 - v / b^2)+, its size without noise;
        the rest of b, and the noise of what was taken, add to the variance. Where the simulated rows do not have the
        released moments, nothing is corrected.
        """
        cov = estimate.cov + self.sampling
        if not self.trusted:
            return replace(estimate, cov=cov)
        back = np.eye(len(cov))
        back[1:, 1:] = np.linalg.inv(self.response)
        back[0, 1:] = mean @ (np.eye(len(mean)) - back[1:, 1:])
        cov = back @ cov @ back.T
        cov += np.diag((CLIPPING_ERROR * self.clipping) ** 2 + (MISSING_ERROR * self.missing) ** 2)
        bias = self.clipping + self.missing
        believed = np.maximum(1 - np.diag(self.noise) / np.maximum(bias**2, np.finfo(float).tiny), 0.0)
        cov += self.noise * np.outer(believed, believed) + np.diag(((1 - believed) * bias) ** 2)
        return replace(
            estimate,
            params=estimate.params - believed * bias,
            cov=cov,
            sigma2=max(estimate.sigma2 + self.sigma2, LEAST_NOISE * estimate.sigma2),
        )

    def verdict(self, estimate: Coefficients) -> str:
        """The first line of a summary where the intervals may not be relied on, else nothing."""
        error = np.sqrt(np.diag(estimate.cov + self.sampling))[1:]
        cut, lost = (float(np.abs(bias[1:] / error).max(initial=0.0)) for bias in (self.clipping, self.missing))
        out = []
        if np.isinf(self.unmatched):
            out.append(
                "no columns could be simulated from the released distributions, so the bias of clipping and missing"
                " blocks is not known"
            )
        elif not self.trusted and max(cut, lost) > UNTRUSTED:
            out.append(
                f"simulated columns with the released distributions have other correlations than the released ones (off"
                f" by {self.unmatched:.2f}), so the bias of clipping and missing blocks is not known"
            )
        elif lost > LOST:
            out.append(
                f"missing blocks move a coefficient by {lost:.1f} standard errors, if the columns are as simulated from"
                " their released distributions; the rest rests on that simulation"
            )
        if self.trusted and cut > CUT:
            out.append(f"clipping moves a coefficient by {cut:.1f} standard errors; a larger clip_quantile helps")
        return f"{NOT_VALID}: {'; '.join(out)}." if out else ""


@dataclass(frozen=True, eq=False)
class Law:
    """Of the rows: correlations of the latent scores, the index of the response, and what is added to the scores of a
    categorical column's levels, the largest of which is the level (the first level has 0)."""

    latent: Matrix
    slopes: Vector
    added: Vector


def simulate(
    data: FactoredMoments,
    clipping: Clipping,
    weighing: Weighing,
    released: Sequence[Marginal],
    target: int,
    *,
    redrawn: Sequence[Sequence[Marginal]] = (),
    draws: int = DRAWS,
) -> Simulated:
    """`released` are the distributions of the features in the order of the data, in the features' units; `redrawn` are
    the same as they might be with other noise, from which the noise of the bias is known."""
    estimated, law = _simulated(data, clipping, weighing, released, target, draws)
    if len(redrawn) < 2:
        return estimated
    others = [_simulated(data, clipping, weighing, laws, target, draws // FEWER, near=law)[0] for laws in redrawn]
    return replace(estimated, noise=np.cov(np.array([other.clipping + other.missing for other in others]).T))


def _simulated(
    data: FactoredMoments,
    clipping: Clipping,
    weighing: Weighing,
    marginals: Sequence[Marginal],
    target: int,
    draws: int,
    near: Law | None = None,
) -> tuple[Simulated, Law]:
    """The search for the law is shorter from one `near` it."""
    real, first = data.real, data.n_own - data.products
    within = np.ix_(real, real)
    wanted = factors(data)
    others = np.delete(np.arange(len(marginals)), target)
    inner = np.ix_(others, others)
    blocks = consecutive((first, *data.widths))
    # The constant, the holder's columns, and those of its products that are used.
    used = [*range(first + 1), *(first + 1 + weighing.names.index(name) for name in data.names[first : data.n_own])]
    rng = np.random.default_rng(0)  # post-processing: it protects nobody
    normal = rng.standard_normal((draws, len(marginals)))
    uniform = rng.random((draws, len(data.widths)))
    present = np.ones((draws, len(data.widths)), dtype=bool)
    goal, slopes = correlation_of(wanted.sigma[within]), _slopes(wanted.sigma[within], target)
    levels = _levels(data, target)
    free = np.ones(goal.shape, dtype=bool)
    for places in levels:
        free[np.ix_(places, places)] = False
    far = Law(correlation_of(_positive(np.where(free, goal, np.eye(len(goal)))[inner])), slopes, np.zeros(len(goal)))
    law, steps = (far, STEPS) if near is None else (near, STEPS_NEAR)
    for step in range(steps):
        shown = np.column_stack([np.ones((draws, first), dtype=bool), np.repeat(present, data.widths, axis=1)])
        rows, law = _rows(law, normal, marginals, target, levels, shown)
        clipped = clipping(rows, blocks)
        own = weighing.extended(clipped[:, :first])
        chances, weights = weighing.chances(own), weighing.weights(own)
        present = uniform < chances
        joined = np.column_stack([own[:, used], clipped[:, first:]])
        moments = _moments(data, joined, chances, weights)
        reached = factors(moments)
        covariance = reached.sigma[within]
        off = goal - correlation_of(covariance)
        if step + 1 < steps:
            law = replace(
                law,
                latent=correlation_of(_positive(law.latent + (off * free)[inner])),
                slopes=law.slopes + slopes - _slopes(covariance, target),
            )
    mu, sigma = rows.mean(axis=0), np.cov(rows.T, ddof=0)
    true, cut = (
        _coefficients(*law_of, target) for law_of in ((mu, sigma), (clipped.mean(axis=0), np.cov(clipped.T, ddof=0)))
    )
    # A part of the rows is enough for a variance, and the noise of the bias needs none.
    sample = slice(0, draws // FEWER if near is None else 2)
    values = influences(moments, joined[sample, 1:], present[sample], weights[sample], target)
    simulated = Simulated(
        clipping=cut - true,
        missing=_coefficients(reached.mu[real], covariance, target) - cut,
        response=_response(rows, clipped, target, others),
        sampling=np.asarray(np.cov(values.T) * draws**2 / wanted.count),
        mu=mu - reached.mu[real],
        sigma=sigma - covariance,
        sigma2=_residual(sigma, target) - _residual(covariance, target),
        unmatched=float(np.abs(off).max()),
        noise=np.zeros((len(true), len(true))),
    )
    return simulated, law


def _levels(data: FactoredMoments, target: int) -> list[NDArray[np.intp]]:
    """The features of each categorical column."""
    columns = np.array(data.columns or data.names)[data.real]
    groups = [np.flatnonzero(columns == name) for name in dict.fromkeys(columns.tolist())]
    return [places for places in groups if len(places) > 1 and target not in places]


def _slopes(sigma: Matrix, target: int) -> Vector:
    others = np.delete(np.arange(len(sigma)), target)
    return np.asarray(np.linalg.solve(sigma[np.ix_(others, others)], sigma[others, target]))


def _residual(sigma: Matrix, target: int) -> float:
    return float(sigma[target, target] - np.delete(sigma[target], target) @ _slopes(sigma, target))


def _coefficients(mu: Vector, sigma: Matrix, target: int) -> Vector:
    slopes = _slopes(sigma, target)
    return np.concatenate([[mu[target] - np.delete(mu, target) @ slopes], slopes])


def _positive(matrix: Matrix) -> Matrix:
    values, vectors = np.linalg.eigh(matrix)
    return np.asarray((vectors * np.maximum(values, FLOOR)) @ vectors.T)


def _rows(
    law: Law,
    normal: Matrix,
    marginals: Sequence[Marginal],
    target: int,
    levels: Sequence[NDArray[np.intp]],
    shown: NDArray[np.bool_],
) -> tuple[Matrix, Law]:
    """Rows whose marginals are the released ones among the rows that show the column: the level of a score is its rank
    among those that did with the law before. The law comes back with what its levels needed."""
    others = np.delete(np.arange(len(marginals)), target)
    rows, scores = np.empty_like(normal), np.empty_like(normal)
    scores[:, others] = normal[:, others] @ np.linalg.cholesky(law.latent).T
    added = law.added.copy()
    for places in levels:
        share = np.array([marginals[place].probabilities[-1] for place in places]).clip(RARE, 1 - RARE)
        seen = shown[:, places[0]]
        for _ in range(5):
            utility = np.column_stack([np.zeros(len(rows)), scores[:, places] + added[places]])
            choice = utility.argmax(axis=1)
            reached = np.bincount(choice[seen], minlength=len(places) + 1)[1:] / seen.sum()
            added[places] += ndtri(share) - ndtri(reached.clip(RARE, 1 - RARE))
        for number, place in enumerate(places, start=1):
            rows[:, place] = marginals[place].points[(choice == number).astype(np.intp)]
    for place in np.setdiff1d(others, np.concatenate([*levels, np.array([], dtype=np.intp)])):
        if shown[:, place].all():
            rank = ndtr(scores[:, place])
        else:
            known = np.sort(scores[shown[:, place], place])
            rank = np.interp(scores[:, place], known, (np.arange(len(known)) + 0.5) / len(known))
        rows[:, place] = marginals[place].quantile(rank)
    response = marginals[target].quantile((np.arange(len(rows)) + 0.5) / len(rows))
    index = (rows[:, others] - rows[:, others].mean(axis=0)) @ law.slopes
    variance = response.var()
    index += np.sqrt(max(variance - index.var(), LEAST_NOISE * variance)) * normal[:, target]
    rows[np.argsort(index, kind="stable"), target] = response
    return rows, replace(law, added=added)


def _moments(data: FactoredMoments, rows: Matrix, chances: Matrix, weights: Matrix) -> FactoredMoments:
    """Those of these rows of (1, w, x) without noise, in expectation over presence: it leaves less Monte Carlo error
    than a draw."""
    own, counted = rows[:, : data.head], chances * weights
    places = consecutive((data.head, *data.widths))
    gram, weighted = np.zeros_like(data.gram), []
    for a, place in enumerate(places[1:]):
        heavy = rows * counted[:, [a]]
        gram[: data.head, place] = heavy[:, : data.head].T @ rows[:, place]
        gram[place, : data.head] = gram[: data.head, place].T
        gram[place, place] = heavy[:, place].T @ rows[:, place]
        weighted.append(heavy[:, : data.head].T @ own)
        for b, other in enumerate(places[a + 2 :], start=a + 1):
            gram[place, other] = (rows[:, place] * (chances[:, a] * chances[:, b])[:, None]).T @ rows[:, other]
            gram[other, place] = gram[place, other].T
    patterns = []
    for mask in data.masks:
        chance = np.where(np.array(mask, dtype=bool), chances, 1 - chances).prod(axis=1)
        patterns.append((own * chance[:, None]).T @ own)
    return replace(
        data,
        gram=gram,
        own=tuple(patterns),
        weighted=tuple(weighted),
        gram_sd=0.0,
        own_sd=0.0,
        weighted_sd=0.0,
    )


def _response(rows: Matrix, clipped: Matrix, target: int, others: NDArray[np.intp]) -> Matrix:
    """How the estimated slopes move with the true ones: the regression of whole covariates on clipped ones, times the
    part of the response's covariance with its index that clipping leaves."""
    whole, cut = (matrix - matrix.mean(axis=0) for matrix in (rows, clipped))
    inner = np.linalg.solve(cut[:, others].T @ cut[:, others], cut[:, others].T @ whole[:, others])
    return np.asarray(inner * float(cut[:, target] @ whole[:, target]) / float(whole[:, target] @ whole[:, target]))
