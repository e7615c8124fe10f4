"""Mean and covariance of the scores from noisy moments: over available pairs of records, or by EM over the patterns."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy import linalg

from colonnade.statistics.gaussian_em import Pattern, PatternStatistics, em_step
from colonnade.statistics.moments import Moments

Reals = NDArray[np.float64]

VISIBLE = 5.0
"""Standard deviations of noise that a pattern's count must reach to be used."""
EM_STEPS = 300
LARGEST_FLOOR = 0.05
"""Of the eigenvalues of a correlation matrix that noise has made indefinite."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Available:
    """Available-case moments of the scores, and for each pair of parties the records that both have (`shared`), out of
    `terms` noisy counts."""

    mean: Reals
    covariance: Reals
    shared: Reals
    terms: Reals


def visible_patterns(moments: Moments) -> list[int]:
    """Patterns whose noisy count is beyond doubt. The others hold less than that many records each, if any."""
    if moments.presence == "secret":
        return [0]
    return [k for k, one in enumerate(moments.counts) if one > max(VISIBLE * moments.noise_sd, 0.5)]


def available(moments: Moments, used: list[int], owner: NDArray[np.intp]) -> Available:
    """Each product averaged over the records that have both blocks, less the means over the same records."""
    names = [feature.name for feature in moments.features]
    size, blocks = len(names), len(moments.parties)
    products, counts, terms = np.zeros((size, size)), np.zeros((blocks, blocks)), np.zeros((blocks, blocks))
    sums = np.zeros((blocks, size))  # of a column over the records that a party has
    if moments.presence == "secret":
        (gram,), (entries,) = moments.grams, moments.entries
        masks = [entries.index(f"present at {party}") for party in moments.parties]
        place = [entries.index(name) for name in names]
        counts, products, sums = gram[np.ix_(masks, masks)], gram[np.ix_(place, place)], gram[np.ix_(masks, place)]
        terms[:] = 1.0
    else:
        for k in used:
            here = np.array([names.index(name) for name in moments.entries[k][1:]], dtype=np.intp)
            pattern = np.array(moments.patterns[k])
            gram = moments.grams[k]
            products[np.ix_(here, here)] += gram[1:, 1:]
            sums[np.ix_(np.flatnonzero(pattern), here)] += gram[0, 1:]
            counts += np.outer(pattern, pattern) * gram[0, 0]
            terms += np.outer(pattern, pattern)
    shared = np.maximum(counts, np.maximum(2 * moments.noise_sd * np.sqrt(terms), 1.0))
    together = shared[np.ix_(owner, owner)]
    means = sums[owner].T / together  # means[j, k]: of column j over the records at both
    covariance = products / together - means * means.T
    own = shared[owner, owner]
    return Available(
        mean=sums[owner, np.arange(size)] / own, covariance=covariance, shared=np.maximum(counts, 0.0), terms=terms
    )


def gaussian_moments(moments: Moments, used: list[int], found: Available) -> tuple[Reals, Reals]:
    """Mean and covariance of the scores of the whole cohort, by EM from available pairs on.

    With noise a Gram matrix may be indefinite, and the likelihood then has no top: eigenvalues are kept above a floor
    in each step, which the noise of a correlation decides.
    """
    names = tuple(feature.name for feature in moments.features)
    patterns = tuple(
        Pattern(
            np.array([names.index(name) for name in moments.entries[k][1:]], dtype=np.intp),
            float(moments.counts[k]),
            moments.grams[k][0, 1:],
            moments.grams[k][1:, 1:],
        )
        for k in used
    )
    data = PatternStatistics(names, patterns)
    mean, covariance = found.mean, found.covariance
    typical = max(float(np.median(np.diag(covariance))), 1e-6)
    floor = typical * (LARGEST_FLOOR if moments.noise_sd else 1e-6)
    covariance = floored(covariance, floor)
    for _ in range(EM_STEPS):
        _, mean, onward = em_step(data, mean, covariance)
        onward = floored(onward, floor)
        change = float(np.abs(onward - covariance).max())
        covariance = onward
        if change < 1e-6 * typical:
            break
    return mean, covariance


def floored(matrix: Reals, floor: float) -> Reals:
    values, vectors = linalg.eigh((matrix + matrix.T) / 2)
    if values[0] >= floor:
        return np.asarray((matrix + matrix.T) / 2)
    return np.asarray((vectors * np.maximum(values, floor)) @ vectors.T)
