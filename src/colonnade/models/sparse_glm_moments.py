"""Sparse least squares from moments: one secure computation, then the whole path without asking any party again.

Least squares needs means and covariances only. They come from the pattern moments: of complete records directly; with
missing blocks as the maximum likelihood covariance (`gaussian_em.py`), which is right if records are missing at random;
with `epsilon` from noisy available-case moments, what clipping took given back. No vector over records is ever shown to
anybody.
"""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from colonnade.errors import NotEstimable
from colonnade.models.matrix import second_moments
from colonnade.models.sparse_glm_clipping import Clipped, unclipped
from colonnade.statistics.gaussian_em import Pattern, PatternStatistics, fit_gaussian
from colonnade.statistics.moments import Moments

Vector = NDArray[np.float64]
Matrix = NDArray[np.float64]

COARSE = 2500.0
"""Smallest variance of a feature, in steps of 1/gamma squared: then rounding adds at most 1e-4 of it."""
DROWNED = 4.0
"""A feature whose variance is below so many standard deviations of the noise on it is left out."""
LARGEST_EM = 120
"""Most features whose covariance with missing blocks is estimated: its information matrix has their fourth power."""


@dataclass(frozen=True, kw_only=True, eq=False)
class StandardMoments:
    """Correlations of the covariates, their covariances with the response (per standard deviation of a covariate), the
    response's variance; means and standard deviations in feature units. `n` records carry them.

    `noise` is the standard deviation of the noise on a correlation (root mean square), 0 if exact. A feature that does
    not vary has spread 0 and no relation to anything.
    """

    correlation: Matrix
    cross: Vector
    variance: float
    mean: Vector
    spread: Vector
    response_mean: float
    n: float
    noise: float
    notes: tuple[str, ...] = ()

    @property
    def inverse(self) -> Vector:
        """One over the spread; 0 for a feature that does not vary."""
        return np.where(self.spread > 0, 1.0 / np.where(self.spread > 0, self.spread, 1.0), 0.0)

    def responding(self, shift: float, factor: float) -> StandardMoments:
        """The same for shift + factor * response."""
        return replace(
            self,
            cross=factor * self.cross,
            variance=factor**2 * self.variance,
            response_mean=shift + factor * self.response_mean,
        )

    def spanned(self, coefficients: Vector) -> float:
        """The variance of the linear predictor."""
        return float(coefficients @ self.correlation @ coefficients)

    def effective(self, coefficients: Vector, loss: float) -> float:
        """The number of exact records that would be as informative about a coefficient.

        An entry of the score varies by sigma^2 / n between samples, and by tau^2 (s_yy + |b|^2) through the noise.
        """
        sampling = 2.0 * loss / self.n
        through_noise = self.noise**2 * (self.variance + float(coefficients @ coefficients))
        return self.n * sampling / (sampling + through_noise) if self.noise else self.n


def standard_moments(moments: Moments, response: str, *, gamma: int, clipped: Clipped | None = None) -> StandardMoments:
    """From whichever moments were computed; refused, with the reason, where they cannot carry a regression.

    `clipped` is what was done to the rows of noisy moments.
    """
    names = [feature.name for feature in moments.features]
    target = names.index(response)
    if moments.noise_sd:
        return _noisy(moments, target, clipped)
    if moments.presence == "known":
        mean, covariance, n, notes = _exact(moments, gamma)
    else:
        second = second_moments(moments)
        mean = second.matrix[0, 1:]
        covariance = second.matrix[1:, 1:] - np.outer(mean, mean)
        n, notes = float(moments.n), ()
    variance = np.diag(covariance)
    return _standard(mean, covariance, variance > COARSE / gamma**2, target, n, 0.0, notes)


def _exact(moments: Moments, gamma: int) -> tuple[Vector, Matrix, float, tuple[str, ...]]:
    names = [feature.name for feature in moments.features]
    patterns = []
    for entries, gram in zip(moments.entries, moments.grams, strict=True):
        if gram[0, 0] > 0.5:
            observed = np.array([names.index(name) for name in entries[1:]], dtype=np.intp)
            patterns.append(Pattern(observed, float(gram[0, 0]), gram[0, 1:], gram[1:, 1:]))
    if not patterns:
        raise NotEstimable("no record has the response; check that the parties' keys overlap.")
    data = PatternStatistics(tuple(names), tuple(patterns))
    if len(patterns) == 1 and len(patterns[0].observed) == len(names):
        (only,) = patterns
        mean = only.sums / only.count
        return mean, only.about(mean)[1] / only.count, only.count, ()
    _together(moments)
    centre, variance = data.available()
    kept = np.flatnonzero(variance > COARSE / gamma**2)
    if len(kept) > LARGEST_EM:
        raise NotEstimable(
            f"blocks are missing and {len(kept)} features are too many for their joint covariance (at most"
            f" {LARGEST_EM}); choose columns=, or via='newton' on the complete records."
        )
    fit = fit_gaussian(data.only(kept))
    mean, covariance = centre.copy(), np.zeros((len(names), len(names)))
    mean[kept] = fit.mu
    covariance[np.ix_(kept, kept)] = fit.sigma
    note = (
        f"Blocks are missing: the covariance is the maximum likelihood one over {len(patterns)} patterns, right if"
        " records are missing at random and the columns are jointly Gaussian."
    )
    return mean, covariance, data.n, (note,)


def _together(moments: Moments) -> None:
    """Every pair of parties must be observed together: their covariance appears in no other term."""
    counts = moments.counts
    for first, second in itertools.combinations(range(len(moments.parties)), 2):
        if not counts[[mask[first] and mask[second] for mask in moments.patterns]].sum() > 0.5:
            pair = f"{moments.parties[first]!r} and {moments.parties[second]!r}"
            raise NotEstimable(
                f"no record with the response is at {pair} together, so nothing tells how their columns are related;"
                " leave one of them out with columns=."
            )


def _noisy(moments: Moments, target: int, clipped: Clipped | None) -> StandardMoments:
    """Noise makes a covariance indefinite. Variances that drown in it are left out. Noise alone would have eigenvalues
    up to 2 noise sqrt(p); those of the correlation are raised to half of that (a ridge where it matters, nothing
    elsewhere)."""
    second = second_moments(moments)
    if clipped is not None:
        second = unclipped(second, clipped)
    mean = second.matrix[0, 1:]
    covariance = second.matrix[1:, 1:] - np.outer(mean, mean)
    kept = np.diag(covariance) > DROWNED * second.noise_sd
    if not kept[target] or kept.sum() < 2:
        raise NotEstimable(
            "the noise is larger than the variance of the response or of every covariate; take a larger epsilon, more"
            " records, or fewer columns."
        )
    noise = second.noise_sd / float(np.median(np.diag(covariance)[kept]))
    scale = np.sqrt(np.where(kept, np.diag(covariance), 1.0))
    place = np.flatnonzero(kept)
    values, vectors = np.linalg.eigh((covariance / np.outer(scale, scale))[np.ix_(place, place)])
    floor = max(1e-6, noise * math.sqrt(len(place)))
    repaired = (vectors * np.maximum(values, floor)) @ vectors.T
    unit = np.sqrt(np.diag(repaired))
    fixed = np.zeros_like(covariance)
    fixed[np.ix_(place, place)] = repaired / np.outer(unit, unit) * np.outer(scale[place], scale[place])
    notes = [
        f"Noise with standard deviation {noise:.2g} is on each correlation; coefficients and the choice of lambda carry"
        f" it, and {int((values < floor).sum())} of {len(place)} eigenvalues were raised to {floor:.2g}."
    ]
    if noise > 0.01:
        notes.append("Above 0.01 selection is unreliable: take a larger epsilon, more records, or fewer columns.")
    if not kept.all():
        lost = [moments.features[at].name for at in np.flatnonzero(~kept)]
        notes.append(f"Left out, since their variance drowns in the noise: {', '.join(lost)}.")
    return _standard(mean, fixed, kept, target, float(moments.n), noise, tuple(notes))


def _standard(
    mean: Vector,
    covariance: Matrix,
    varies: NDArray[np.bool_],
    target: int,
    n: float,
    noise: float,
    notes: tuple[str, ...],
) -> StandardMoments:
    if not varies[target]:
        raise NotEstimable(
            "the response does not vary in the records used, or its declared range is far too wide; check it."
        )
    others = np.delete(np.arange(len(mean)), target)
    spread = np.where(varies, np.sqrt(np.maximum(np.diag(covariance), 0.0)), 0.0)[others]
    inverse = np.where(spread > 0, 1.0 / np.where(spread > 0, spread, 1.0), 0.0)
    return StandardMoments(
        correlation=covariance[np.ix_(others, others)] * np.outer(inverse, inverse),
        cross=covariance[others, target] * inverse,
        variance=float(covariance[target, target]),
        mean=mean[others],
        spread=spread,
        response_mean=float(mean[target]),
        n=n,
        noise=noise,
        notes=notes,
    )
