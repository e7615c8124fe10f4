"""Latent rows that agree with perturbed ranks: the adjustment of EVCDS and IEVCDS (Algorithm 2, lines 8 to 15).

Everything here is post-processing of released ranks and costs nothing.

A draw Z ~ N(0, R) is reordered, one column after the other, by the column's perturbed ranks; then each present
entry is drawn again from its conditional law given the record's other columns, kept between its neighbours in rank
(2.8). Records of the same category do not constrain each other; `in_categories` finds them again in noisy ranks. Absent
entries are drawn given what the record has. The
marginal that follows from such a Z' is

    F~(x) = Phi(max {Z'_i : rank_i <= rank(x)})     (2.6), read on the sorted values (2.7).

Z' is sorted like the ranks, so the maximum over the first r records is the r-th smallest Z'. Hence F~ = A(F), where F
is the distribution of the **present** values and A(r/m) = Phi(Z'_(r)) depends on released ranks alone. This is what
makes EVCDS private with a known constant: noise on F (a count moves by 1) is enough, and A is post-processing.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy import linalg, special

from colonnade.statistics.marginals import Marginal

Reals = NDArray[np.float64]


def adjusted_latent(
    correlation: ArrayLike,
    ranks: ArrayLike,
    draw: np.random.Generator,
    *,
    present: NDArray[np.bool_] | None = None,
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
    here = np.flatnonzero(~np.isnan(ranks))
    order = here[np.argsort(ranks[here], kind="stable")]
    return order, np.cumsum(np.diff(ranks[order], prepend=ranks[order[:1]]) > 0).astype(np.intp)


def _between_neighbours(
    placed: Reals, group: NDArray[np.intp], mean: Reals, sd: float, draw: np.random.Generator
) -> Reals:
    """Each value drawn again from N(mean, sd^2) between the groups below and above it (2.8).

    The paper draws one record after the other; here all even groups, then all odd ones: a Gibbs sampler of the same
    law in another order, without a loop over records.
    """
    found = placed.copy()
    starts = np.flatnonzero(np.diff(group, prepend=-1))
    for parity in (0, 1):
        below = np.concatenate([[-np.inf], np.maximum.reduceat(found, starts)[:-1]])
        above = np.concatenate([np.minimum.reduceat(found, starts)[1:], [np.inf]])
        at = np.flatnonzero(group % 2 == parity)
        found[at] = truncated_normal(mean[at], sd, below[group[at]], above[group[at]], draw)
    return found


def in_categories(ranks: ArrayLike, marginal: Marginal) -> Reals:
    """Perturbed ranks of a column with ties, each moved to the nearest mid-rank that a category can have.

    A category between F and F + p has the mid-rank m F + (m p + 1) / 2 of m present records.
    """
    given = np.asarray(ranks, dtype=np.float64)
    here = ~np.isnan(given)
    chances = marginal.probabilities[marginal.probabilities > 0]
    size = np.count_nonzero(here)
    mids = size * (np.cumsum(chances) - chances / 2) + 0.5
    found = np.full(given.shape, np.nan)
    found[here] = np.searchsorted((mids[1:] + mids[:-1]) / 2, given[here])
    return found


def truncated_normal(mean: Reals, sd: float, low: Reals, high: Reals, draw: np.random.Generator) -> Reals:
    """N(mean, sd^2) between `low` and `high`, by inversion in the lower tail, where probabilities keep their digits.

    An interval so far out that both its ends have probability 0 is drawn from uniformly (or left at its finite end).
    """
    a, b = (low - mean) / sd, (high - mean) / sd
    flip = a > -b  # the interval lies more to the right: use its mirror image
    a, b = np.where(flip, -b, a), np.where(flip, -a, b)
    first, last = special.ndtr(a), special.ndtr(b)
    u = draw.random(mean.shape)
    found = special.ndtri(first + u * (last - first))
    lost = ~np.isfinite(found) | (last <= first)
    if lost.any():
        left, right = np.where(np.isfinite(a), a, b), np.where(np.isfinite(b), b, a)
        found = np.where(lost, left + u * (right - left), found)
    found = np.clip(found, a, b)
    return np.asarray(np.clip(mean + sd * np.where(flip, -found, found), low, high), dtype=np.float64)


def _absent_redrawn(latent: Reals, present: NDArray[np.bool_], omega: Reals, draw: np.random.Generator) -> Reals:
    """Absent entries given everything that the record has, pattern by pattern."""
    patterns, which = np.unique(present, axis=0, return_inverse=True)
    for number, pattern in enumerate(patterns):
        if pattern.all():
            continue
        rows, seen, unseen = np.flatnonzero(which.ravel() == number), np.flatnonzero(pattern), np.flatnonzero(~pattern)
        weights = linalg.solve(omega[np.ix_(seen, seen)], omega[np.ix_(seen, unseen)], assume_a="pos")
        rest = omega[np.ix_(unseen, unseen)] - omega[np.ix_(unseen, seen)] @ weights
        root = linalg.cholesky((rest + rest.T) / 2, lower=True)
        noise = draw.standard_normal((rows.size, unseen.size)) @ root.T
        latent[np.ix_(rows, unseen)] = latent[np.ix_(rows, seen)] @ weights + noise
    return latent


def adjusted_marginal(marginal: Marginal, latent: ArrayLike) -> Marginal:
    """A(F): the marginal of the present records, moved to where their latent values lie among all records."""
    heights = special.ndtr(np.sort(np.asarray(latent, dtype=np.float64)))
    # Nothing is known beyond the largest present value, so all that is left of the probability ends there: A(1) = 1.
    heights[-1] = 1.0
    shares = np.arange(heights.size + 1) / heights.size
    moved = np.interp(marginal.cumulative, shares, np.concatenate([[0.0], heights]))
    return Marginal(marginal.points, np.maximum.accumulate(moved), marginal.discrete)
