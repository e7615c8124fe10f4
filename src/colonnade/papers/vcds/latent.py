"""What the coordinator computes from released ranks. All of it is post-processing and costs nothing.

**The latent correlation.** `rank_covariance` are covariances of debiased ranks over the records that two columns share.
The noise of two columns is independent, so only the diagonal carries it; the variance of true ranks is known instead.
Continuous columns: Spearman's rho, then r = 2 sin(pi rho / 6). (sin(pi tau / 2) on noisy ranks attenuates.) Columns
with ties: the Hermite bridge of `statistics.latent_correlation`.

**Latent rows that agree with perturbed ranks**: the adjustment of EVCDS and IEVCDS (Algorithm 2, lines 8 to 15). A draw
Z ~ N(0, R) is reordered, one column after the other, by the column's perturbed ranks; then each present entry is drawn
again from its conditional law given the record's other columns, kept between its neighbours in rank (2.8). Records of
the same category do not constrain each other; `in_categories` finds them again in noisy ranks. Absent entries are drawn
given what the record has. The marginal that follows from such a Z' is

    F~(x) = Phi(max {Z'_i : rank_i <= rank(x)})     (2.6), read on the sorted values (2.7).

Z' is sorted like the ranks, so the maximum over the first r records is the r-th smallest Z'. Hence F~ = A(F), where F
is the distribution of the **present** values and A(r/m) = Phi(Z'_(r)) depends on released ranks alone. This is what
makes EVCDS private with a known constant: noise on F (a count moves by 1) is enough, and A is post-processing.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy import linalg, special

from colonnade.data.column import Column, Columns
from colonnade.errors import DomainError
from colonnade.statistics.latent_correlation import (
    LARGEST_CORRELATION,
    category_coefficients,
    complete,
    invert_bridge,
    uniform_coefficients,
)
from colonnade.statistics.marginals import Marginal
from colonnade.synthesis.copula.model import stepwise

Reals = NDArray[np.float64]
Mask = NDArray[np.bool_]

MINIMUM_SHARED = 10
"""Records that two columns must share for their correlation to be estimated at all."""
SCARCE, LEAVE = 0.1, 0.05
"""Of a pair that less than this share of the cohort has: the largest sampling error (sd) with which it is believed."""


# --- the latent correlation ------------------------------------------------------------------------------


def rank_covariance(ranks: ArrayLike) -> tuple[Reals, NDArray[np.int64]]:
    """(covariances of uniform scores (R - 1/2) / n over shared records, how many records each pair shares).

    From debiased ranks, records x columns, NaN where a record is absent; each column is ranked on its own. A pair that
    shares fewer than two records gets 0. The diagonal still holds the noise.
    """
    given = np.asarray(ranks, dtype=np.float64)
    if given.ndim != 2:
        raise DomainError(f"ranks come as records x columns, not as an array of shape {given.shape}.")
    present = ~np.isnan(given)
    sizes = present.sum(axis=0)
    scores = np.where(present, given - (sizes + 1) / 2, 0.0) / np.maximum(sizes, 1)
    mask = present.astype(np.float64)
    shared = mask.T @ mask
    sums = scores.T @ mask
    products = scores.T @ scores
    divisor = np.maximum(shared, 1.0)
    covariance = np.where(shared >= 2, products / divisor - sums * sums.T / divisor**2, 0.0)
    return covariance, np.rint(shared).astype(np.int64)


def latent_from_spearman(rho: ArrayLike) -> Reals:
    """2 sin(pi rho / 6), for continuous columns."""
    return np.asarray(2 * np.sin(np.pi / 6 * np.clip(np.asarray(rho, dtype=np.float64), -1, 1)), dtype=np.float64)


def hermite_coefficients(marginals: Mapping[str, Marginal]) -> Reals:
    """Of each column's uniform score F (mid-distribution where F jumps), for the bridge."""
    continuous = uniform_coefficients()
    return np.array(
        [
            category_coefficients(marginal.probabilities) if marginal.discrete else continuous
            for marginal in marginals.values()
        ]
    )


def sampling_error(coefficients: Reals, shared: NDArray[np.int64]) -> Reals:
    """The sd of each latent correlation near 0, from so many records: that of a score covariance over the bridge's
    slope.

    For two continuous columns it is 1 / sqrt(shared), nearly; for a rare category it is much larger.
    """
    deviation, slope = np.sqrt((coefficients**2).sum(axis=1)), np.maximum(np.abs(coefficients[:, 0]), 1e-6)
    factor = deviation / slope
    return np.asarray(np.outer(factor, factor) / np.sqrt(np.maximum(shared, 1)), dtype=np.float64)


@dataclass(frozen=True, eq=False)
class LatentCorrelation:
    """A proper correlation matrix, and the pairs of columns (by place) that nobody could measure."""

    matrix: Reals
    unmeasured: tuple[tuple[int, int], ...]


def latent_correlation(ranks: Reals, marginals: Mapping[str, Marginal]) -> LatentCorrelation:
    """From debiased ranks over the records that two columns share.

    The noise of two columns is independent, so it biases no covariance, and the variance of n true ranks without ties
    is known, (n^2 - 1) / 12: the noisy diagonal is not used. Two continuous columns: 2 sin(pi rho / 6); otherwise the
    Hermite bridge. Pairs that share fewer than `MINIMUM_SHARED` records, or a small part of the cohort that leaves an
    error above `LEAVE`, get the entries of the largest determinant: their errors would spoil the repair of all others.
    """
    covariance, shared = rank_covariance(ranks)
    coefficients = hermite_coefficients(marginals)
    latent = invert_bridge(covariance, coefficients)
    smooth = np.flatnonzero([not marginal.discrete for marginal in marginals.values()])
    sizes = np.diag(shared)[smooth]
    deviation = np.sqrt((sizes * sizes - 1) / 12 / sizes**2)
    both = np.ix_(smooth, smooth)
    rho = covariance[both] / np.outer(deviation, deviation)
    limit = LARGEST_CORRELATION
    latent[both] = np.clip(latent_from_spearman(rho), -limit, limit)
    np.fill_diagonal(latent, 1.0)
    scarce = (shared < SCARCE * len(ranks)) & (sampling_error(coefficients, shared) > LEAVE)
    measured = (shared >= MINIMUM_SHARED) & ~scarce
    np.fill_diagonal(measured, True)
    matrix, _ = complete(latent, measured)
    largest = float(np.abs(matrix - np.eye(len(matrix))).max(initial=0.0))
    if largest > limit:
        matrix = matrix * (limit / largest)
        np.fill_diagonal(matrix, 1.0)
    pairs = zip(*np.nonzero(np.triu(~measured, 1)), strict=True)
    return LatentCorrelation(matrix, tuple((int(a), int(b)) for a, b in pairs))


# --- latent rows that agree with the ranks -----------------------------------------------------------------


def adjusted_latent(
    correlation: ArrayLike,
    ranks: ArrayLike,
    draw: np.random.Generator,
    *,
    present: Mask | None = None,
    sweeps: int = 1,
) -> Reals:
    """Z' for `ranks` (records x columns, NaN where absent; equal ranks do not constrain each other).

    First the sequential pass of Algorithm 2: with R = L L', the earlier columns of a record whitened are e, and the
    next one has the mean L_j e and the sd L_jj. Then `sweeps` passes in which every column is drawn given **all** the
    others (the conditional law before the paper's "in practice"), which ties need: where in its category a record
    lies, later columns know too. Entries that are not `present` (by default: have no rank) are drawn last, given the
    record's others.
    """
    omega, given = np.asarray(correlation, dtype=np.float64), np.asarray(ranks, dtype=np.float64)
    n, width = given.shape
    root = linalg.cholesky(omega, lower=True)
    latent = draw.standard_normal((n, width)) @ root.T
    orders = [_ordered(column) for column in given.T]
    white = np.zeros((n, width))
    for j, (order, group) in enumerate(orders):
        mean, sd = white[:, :j] @ root[j, :j], float(root[j, j])
        placed = np.sort(latent[order, j])
        latent[:, j] = mean + sd * draw.standard_normal(n)
        latent[order, j] = _between_neighbours(placed, group, mean[order], sd, draw) if j else placed
        white[:, j] = (latent[:, j] - mean) / sd
    precision = linalg.inv(omega)
    for _ in range(sweeps):
        for j, (order, group) in enumerate(orders):
            sd = 1 / math.sqrt(precision[j, j])
            mean = latent[:, j] - latent @ precision[:, j] * sd**2
            placed = latent[order, j]
            latent[:, j] = mean + sd * draw.standard_normal(n)
            latent[order, j] = _between_neighbours(placed, group, mean[order], sd, draw)
    return _absent_redrawn(latent, ~np.isnan(given) if present is None else present, omega, draw)


def _ordered(ranks: Reals) -> tuple[NDArray[np.intp], NDArray[np.intp]]:
    """The present records in the order of their ranks, and the number of each one's group of equal ranks."""
    present = np.flatnonzero(~np.isnan(ranks))
    order = present[np.argsort(ranks[present], kind="stable")]
    return order, np.cumsum(np.diff(ranks[order], prepend=ranks[order[:1]]) > 0).astype(np.intp)


def _between_neighbours(
    placed: Reals, group: NDArray[np.intp], mean: Reals, sd: float, draw: np.random.Generator
) -> Reals:
    """Each value drawn again from N(mean, sd^2) between the groups below and above it (2.8).

    The paper draws one record after the other; here all even groups, then all odd ones: a Gibbs sampler of the same
    law in another order, without a loop over records.
    """
    drawn = placed.copy()
    starts = np.flatnonzero(np.diff(group, prepend=-1))
    for parity in (0, 1):
        below = np.concatenate([[-np.inf], np.maximum.reduceat(drawn, starts)[:-1]])
        above = np.concatenate([np.minimum.reduceat(drawn, starts)[1:], [np.inf]])
        index = np.flatnonzero(group % 2 == parity)
        drawn[index] = truncated_normal(mean[index], sd, below[group[index]], above[group[index]], draw)
    return drawn


def latent_order(ranks: Reals, marginals: Mapping[str, Marginal]) -> Reals:
    """The ranks that latent rows follow: of a column with categories, the category."""
    columns = zip(ranks.T, marginals.values(), strict=True)
    return np.column_stack(
        [in_categories(values, marginal) if marginal.discrete else values for values, marginal in columns]
    )


def in_categories(ranks: ArrayLike, marginal: Marginal) -> Reals:
    """Perturbed ranks of a column with ties, each moved to the nearest mid-rank that a category can have.

    A category between F and F + p has the mid-rank m F + (m p + 1) / 2 of m present records.
    """
    given = np.asarray(ranks, dtype=np.float64)
    present = ~np.isnan(given)
    chances = marginal.probabilities[marginal.probabilities > 0]
    size = np.count_nonzero(present)
    mids = size * (np.cumsum(chances) - chances / 2) + 0.5
    categories = np.full(given.shape, np.nan)
    categories[present] = np.searchsorted((mids[1:] + mids[:-1]) / 2, given[present])
    return categories


def truncated_normal(mean: Reals, sd: float, low: Reals, high: Reals, draw: np.random.Generator) -> Reals:
    """N(mean, sd^2) between `low` and `high`, by inversion in the lower tail, where probabilities keep their digits.

    An interval so far out that both its ends have probability 0 is drawn from uniformly (or left at its finite end).
    """
    a, b = (low - mean) / sd, (high - mean) / sd
    flip = a > -b  # the interval lies more to the right: use its mirror image
    a, b = np.where(flip, -b, a), np.where(flip, -a, b)
    first, last = special.ndtr(a), special.ndtr(b)
    u = draw.random(mean.shape)
    drawn = special.ndtri(first + u * (last - first))
    lost = ~np.isfinite(drawn) | (last <= first)
    if lost.any():
        left, right = np.where(np.isfinite(a), a, b), np.where(np.isfinite(b), b, a)
        drawn = np.where(lost, left + u * (right - left), drawn)
    drawn = np.clip(drawn, a, b)
    return np.asarray(np.clip(mean + sd * np.where(flip, -drawn, drawn), low, high), dtype=np.float64)


def _absent_redrawn(latent: Reals, present: Mask, omega: Reals, draw: np.random.Generator) -> Reals:
    """Absent entries given everything that the record has, pattern by pattern."""
    patterns, pattern_of = np.unique(present, axis=0, return_inverse=True)
    for number, pattern in enumerate(patterns):
        if pattern.all():
            continue
        rows, seen, unseen = (
            np.flatnonzero(pattern_of.ravel() == number),
            np.flatnonzero(pattern),
            np.flatnonzero(~pattern),
        )
        weights = linalg.solve(omega[np.ix_(seen, seen)], omega[np.ix_(seen, unseen)], assume_a="pos")
        rest = omega[np.ix_(unseen, unseen)] - omega[np.ix_(unseen, seen)] @ weights
        root = linalg.cholesky((rest + rest.T) / 2, lower=True)
        noise = draw.standard_normal((rows.size, unseen.size)) @ root.T
        latent[np.ix_(rows, unseen)] = latent[np.ix_(rows, seen)] @ weights + noise
    return latent


# --- marginals and values that follow from them --------------------------------------------------------------


def adjusted_marginal(marginal: Marginal, latent: ArrayLike) -> Marginal:
    """A(F): the marginal of the present records, moved to where their latent values lie among all records."""
    heights = special.ndtr(np.sort(np.asarray(latent, dtype=np.float64)))
    # Nothing is known beyond the largest present value, so all that is left of the probability ends there: A(1) = 1.
    heights[-1] = 1.0
    shares = np.arange(heights.size + 1) / heights.size
    moved = np.interp(marginal.cumulative, shares, np.concatenate([[0.0], heights]))
    return Marginal(marginal.points, np.maximum.accumulate(moved), marginal.discrete)


def moved_marginals(observed: Mapping[str, Marginal], latent: Reals, present: Mask) -> dict[str, Marginal]:
    """A(F) of each column, from the latent values of the records that have it."""
    return {
        name: adjusted_marginal(marginal, latent[present[:, place], place])
        for place, (name, marginal) in enumerate(observed.items())
    }


def imputed_values(
    columns: Columns, marginals: Mapping[str, Marginal], latent: Reals, present: Mask
) -> dict[str, Reals]:
    """{column: encoded values of the absent records, NaN for the present ones}, where some are absent."""
    imputed = {}
    for place, (name, column) in enumerate(columns.items()):
        absent = ~present[:, place]
        if absent.any():
            values = np.full(absent.size, np.nan)
            values[absent] = _encoded_quantile(column, marginals[name], special.ndtr(latent[absent, place]))
            imputed[name] = values
    return imputed


def _encoded_quantile(column: Column, marginal: Marginal, u: Reals) -> Reals:
    """As parties encode the column: a category's code, an integer of a count."""
    values = marginal.quantile(u)
    return np.floor(values) if column.whole and not stepwise(column) else values
