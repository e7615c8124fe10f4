"""The presence weights of a private regression: what undoes that records with a block are not like all others.

The response holder knows its own columns w and who has which record. Its rows are extended by products of its columns,

    h(w) = (1, w, products),   |h| <= sqrt(1 + c^2 + PRODUCTS^2),

which are bounded functions of one record alone. `noisy_logits` fits the chance of a block, expit(h'l), from sums with
noise, so l is a release like any other. A record with the block then counts

    u = min(P / expit(h'l), V) / V,   between 0 and 1,

with P the share of records that have the block. u is a function of released numbers and of this record: nothing that
another record does can move it. The sensitivity of sums that are weighted by u is that of unweighted ones, whatever V.
A larger cap V undoes more of the selection and leaves less of the sums beside the noise; `caps` weighs one against the
other, from releases, and weighs no records where columns are near normal.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.special import expit, ndtri

from colonnade.data.column import Column
from colonnade.privacy.noise import discrete_gaussian
from colonnade.privacy.randomness import Randomness
from colonnade.statistics.features import Feature, integer_bounds, quantize
from colonnade.statistics.gaussian_em import Matrix, Vector
from colonnade.statistics.marginals import Marginal

PRODUCTS, STRETCH = 0.8, 3.0
"""The norm to which the products of a record's columns are shortened, and by what they are multiplied before: columns
are small, and products of them more so."""
STEPS = 8
"""Of the fit of a logit: what is left of an error falls by half and more in each, if no chance is below .1."""
LARGEST_CHANGE = 1.5
"""In the log-odds of a record, on average over the records, in one of these steps."""
CAPS = (1.5, 2.0, 3.0, 5.0, 8.0, 12.0)
LEAST_CAP = 0
"""The place among `CAPS` of the one that is taken wherever records are weighted."""
AS_NOISY, DROWNED = 0.5, 3.0
"""The noise of a correlation, over its sampling error, up to which the cap grows; and that without weights, in the
median over blocks, beyond which nothing is weighted."""
NEGLIGIBLE = 0.02
"""Of the weights of all records with a block: a cap that cuts no more than this leaves nothing worth noise."""
NORMAL, CENTRAL = 0.98, 0.95
"""The squared correlation of a column's quantiles with those of a normal one, over this central part of the ranks, from
which on it counts as normal."""
NOTICED = 0.15
"""The standard deviation of the log-odds of presence from which on records are weighted."""
ALWAYS = 0.995
"""A block that so many records have counts as never missing."""

Pair = tuple[int, int]


def product_pairs(features: Sequence[Feature], columns: Sequence[Column], response: str) -> tuple[Pair, ...]:
    """Whose products extend the holder's rows: the squares of its numbers, and all its columns with the response."""
    target = next(place for place, feature in enumerate(features) if feature.column == response)
    discrete = {column.name: column.discrete for column in columns}
    squares = [(place, place) for place, feature in enumerate(features) if not discrete[feature.column]]
    return (*squares, *((place, target) for place in range(len(features)) if place != target))


def extended(own: Matrix, pairs: Sequence[Pair]) -> Matrix:
    """h(w) for each clipped row w."""
    products = np.column_stack([np.ones((len(own), 0)), *(STRETCH * own[:, i] * own[:, j] for i, j in pairs)])
    length = np.sqrt(np.einsum("ij,ij->i", products, products))
    products *= np.minimum(1.0, PRODUCTS / np.maximum(length, 1e-300))[:, None]
    return np.column_stack([np.ones(len(own)), own, products])


def extended_norm(norm: float, pairs: Sequence[Pair]) -> float:
    """The largest |h| where |w| is at most `norm`."""
    return math.sqrt(1 + norm**2 + (PRODUCTS**2 if pairs else 0.0))


def score_sensitivity(gamma: int, norm: float, blocks: int) -> float:
    """How far one record moves the scores of all blocks in one step, in integers: each is h (r - p), |r - p| <= 1."""
    return math.sqrt(blocks * integer_bounds(gamma, norm, norm)[0])


def noisy_logits(
    rows: Matrix, present: NDArray[np.bool_], total: Matrix, *, gamma: int, norm: float, sigma: float, rand: Randomness
) -> Matrix:
    """The log-odds l of each block (rows) in h: Boehning's steps (M / 4)^-1 sum h (r - p), with noise in the sums.

    `total` is a release of M = sum h h', and `sigma` the noise of each integer sum. Each step is a release of its own,
    and the next is a function of it and of the data.
    """
    blocks, width = present.shape[1], rows.shape[1]
    values, vectors = np.linalg.eigh(total / 4)
    # Directions that the noise hides have no log-odds of their own.
    inverse = (vectors / np.maximum(values, max(4 * sigma * math.sqrt(width) / gamma, 1.0))) @ vectors.T
    logits = np.zeros((blocks, width))
    for _ in range(STEPS):
        for block in range(blocks):
            residual = present[:, block] - expit(rows @ logits[block])
            scores = quantize(rows * residual[:, None], gamma=gamma, clip=norm, entry=norm, randomness=rand)
            noisy = scores.sum(axis=0) + discrete_gaussian(rand, sigma, width)
            change = inverse @ (noisy / gamma)
            size = math.sqrt(max(float(change @ total @ change) / max(float(total[0, 0]), 1.0), 0.0))
            logits[block] += change * min(1.0, LARGEST_CHANGE / max(size, 1e-300))
    return logits


@dataclass(frozen=True, eq=False)
class Weighing:
    """How records are weighted, block by block: log-odds in h, the share of records with the block, the cap."""

    pairs: tuple[Pair, ...]
    names: tuple[str, ...]
    """Of the products."""
    logits: Matrix
    shares: Vector
    caps: Vector

    def extended(self, own: Matrix) -> Matrix:
        return extended(own, self.pairs)

    def chances(self, rows: Matrix) -> Matrix:
        return np.where(self.shares > ALWAYS, 1.0, expit(rows @ self.logits.T))

    def weights(self, rows: Matrix) -> Matrix:
        """u of each block, for extended rows."""
        each = zip(self.logits, self.shares.tolist(), self.caps.tolist(), strict=True)
        return np.column_stack([np.ones((len(rows), 0)), *(weights(rows, *own) for own in each)])


def weights(rows: Matrix, logits: Vector, share: float, cap: float) -> Vector:
    """u for each extended row; 1 where the cap is 1: nothing is weighted."""
    if cap == 1.0:
        return np.ones(len(rows))
    return np.minimum(share / np.maximum(expit(rows @ logits), 1e-12), cap) / cap


def near_normal(law: Marginal) -> bool:
    """By its central quantiles: tails are noisy, and clipped anyway."""
    ranks = 0.5 + CENTRAL * (np.arange(1, 200) / 200 - 0.5)
    values = law.quantile(ranks)
    return bool(np.ptp(values) > 0 and np.corrcoef(values, ndtri(ranks))[0, 1] ** 2 >= NORMAL)


def caps(
    total: Matrix,
    counts: Sequence[float],
    logits: Matrix,
    *,
    logit_sd: float,
    noise: Sequence[float],
    straight: Sequence[bool],
) -> list[float]:
    """V for each block, from releases alone; 1 if nothing is weighted.

    A weight undoes selection where E[x | w] is not linear or cov(x | w) not constant. Columns that are jointly normal
    with w have both, so that weights would only cost noise: `straight` says that a block's columns and the holder's
    are near normal, each by its released distribution.

    The log-odds h'l have the mean and the variance that the moments of h say, less the variance that noise (`logit_sd`
    in each score) gives them, and are taken as normal: this gives the mean m(V) of u over the records with the block,
    and the part of the weights 1 - V m(V) / (mean of P / chance) that a cap cuts. `noise` is that of a correlation
    within the block without weights; with them it is 1 / m(V) times as large. V is the smallest cap that cuts no more
    than `NEGLIGIBLE`, or the largest with noise up to `AS_NOISY` / sqrt(records), and at least the first. Where even
    unweighted noise is `DROWNED` times the sampling error, what selection does is small beside it.
    """
    n = float(total[0, 0])
    mean = total[0] / n
    spread = total / n - np.outer(mean, mean)
    solved = np.linalg.pinv(total / 4) * logit_sd
    noisy = float(np.trace(spread @ solved @ solved.T))
    points, masses = np.polynomial.hermite_e.hermegauss(41)
    drowned = np.median(np.array(noise) * np.sqrt(counts)) > DROWNED
    chosen = []
    for own, count, unweighted, normal in zip(logits, counts, noise, straight, strict=True):
        variance = max(float(own @ spread @ own) - noisy, 0.0)
        share, sampling = min(max(count / n, 1e-6), 1.0), 1 / math.sqrt(max(count, 1.0))
        if drowned or normal or share > ALWAYS or math.sqrt(variance) < NOTICED:
            chosen.append(1.0)
            continue
        chance = np.maximum(expit(float(own @ mean) + math.sqrt(variance) * points), 1e-12)
        among = masses * chance / float(masses @ chance)
        weight = share / chance
        left = {cap: float(among @ np.minimum(weight, cap)) for cap in CAPS}  # V m(V)
        bearable = [cap for cap in CAPS if unweighted * cap / left[cap] <= AS_NOISY * sampling]
        enough = [cap for cap in bearable if left[cap] >= (1 - NEGLIGIBLE) * float(among @ weight)]
        chosen.append(min(enough, default=max([CAPS[LEAST_CAP], *bearable])))
    return chosen
