"""What noisy or exact moments become before a path is traced: standard units, without the bias of clipping.

Least squares needs means and covariances only. They come from the pattern moments: of complete records directly; with
missing blocks as the maximum likelihood covariance (`gaussian_em.py`), which is right if records are missing at random;
with `epsilon` from noisy available-case moments, after a clipping-bias correction. No vector over records is ever shown
to anyone. A binomial response goes through the second-order surrogate, whose slopes `log_odds` scales.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import brentq
from scipy.special import expit
from scipy.stats import norm

from colonnade.errors import NotEstimable
from colonnade.models.matrix import SecondMoments, second_moments
from colonnade.models.private_scales import Clipping
from colonnade.statistics.features import constant_response
from colonnade.statistics.gaussian_em import fit_gaussian
from colonnade.statistics.moments import MomentsResult

Vector = NDArray[np.float64]
Matrix = NDArray[np.float64]

UNRELIABLE = "Selection is unreliable"
"""What the note begins with that makes a selection unusable."""
COARSE = 2500.0
"""Smallest variance of a feature, in steps of 1/gamma squared: then rounding adds at most 1e-4 of it."""
BELOW_NOISE = 4.0
"""A feature whose variance is below this many standard deviations of the noise on it is left out."""
LARGEST_EM = 120
"""Most features whose covariance with missing blocks is estimated: its information matrix has their fourth power."""


@dataclass(frozen=True, kw_only=True, eq=False)
class StandardMoments:
    """Correlations of the covariates, their covariances with the response (per standard deviation of a covariate), the
    response's variance; means and standard deviations in feature units. `n` records carry them.

    `noise` is the standard deviation of the noise on a correlation (root mean square), 0 if exact. A feature that does
    not vary has scale 0 and no relation to anything.
    """

    correlation: Matrix
    cross: Vector
    variance: float
    mean: Vector
    scale: Vector
    response_mean: float
    n: float
    noise: float
    notes: tuple[str, ...] = ()

    @property
    def inverse(self) -> Vector:
        """One over the scale; 0 for a feature that does not vary."""
        return inverse_scale(self.scale)

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


def standard_moments(
    moments: MomentsResult, response: str, *, gamma: int, clipped: Clipped | None = None, gaps: Sequence[str] = ()
) -> StandardMoments:
    """From whichever moments were computed; refused, with the reason, where they cannot carry a regression.

    `clipped` is what was done to the rows of noisy moments, `gaps` are covariates that may have empty cells.
    """
    names = [feature.name for feature in moments.features]
    target = names.index(response)
    if moments.noise_sd:
        return _noisy(moments, target, clipped)
    if moments.presence == "known":
        law = observed_law(moments, response, gamma)
    else:
        second = second_moments(moments)
        mean = second.matrix[0, 1:]
        law = Law(mean, second.matrix[1:, 1:] - np.outer(mean, mean), float(moments.n))
    varies = np.diag(law.covariance) > COARSE / gamma**2
    if not varies[target]:
        raise NotEstimable(constant_response(response, gaps))
    return _standard(law.mean, law.covariance, varies, target, law.n, 0.0, law.notes)


@dataclass(frozen=True, eq=False)
class Law:
    """Means and covariances of all features, the response among them."""

    mean: Vector
    covariance: Matrix
    n: float
    notes: tuple[str, ...] = ()


def observed_law(moments: MomentsResult, response: str, gamma: int) -> Law:
    """Of exact moments by pattern: of complete records directly, else by maximum likelihood."""
    data = moments.sufficient()
    if not data.patterns:
        raise NotEstimable("no record has the response; check that the parties' keys overlap.")
    if len(data.patterns) == 1 and len(data.patterns[0].observed) == len(data.names):
        (only,) = data.patterns
        mean = only.sums / only.count
        return Law(mean, only.about(mean)[1] / only.count, only.count)
    _together(moments)
    centre, variance = data.available()
    varying = np.flatnonzero(variance > COARSE / gamma**2)
    if len(varying) > LARGEST_EM:
        raise NotEstimable(
            f"blocks are missing and {len(varying)} features are too many for their joint covariance (at most"
            f" {LARGEST_EM}); choose columns=, or solver='newton' on the complete records."
        )
    columns = [moments.features[place].column for place in varying]
    fit = fit_gaussian(data.only(varying), columns=columns, keep=response)
    mean, covariance = centre.copy(), np.zeros((len(data.names), len(data.names)))
    mean[varying] = fit.mu
    covariance[np.ix_(varying, varying)] = fit.sigma
    note = (
        f"Blocks are missing: the covariance is the maximum likelihood one over {len(data.patterns)} patterns, right if"
        " records are missing at random and the columns are jointly Gaussian."
    )
    return Law(mean, covariance, data.n, (note,))


# --- cross-validation ---------------------------------------------------------------------------------------------


def joined(folds: Sequence[MomentsResult]) -> MomentsResult:
    """The moments of several folds as one."""
    return replace(folds[0], grams=tuple(sum(grams) for grams in zip(*(fold.grams for fold in folds), strict=True)))


def held_out_loss(fold: MomentsResult, training: Law, direction: Vector, intercept: float) -> float:
    """The mean of (z'd - a)^2 / 2 over a fold's records z, d being 1 for the response and less the slopes else.

    What a record lacks is replaced by its mean given what it shows under the law of the training records, and its
    variance is added: the expected loss, as in the E-step of EM.
    """
    names = [feature.name for feature in fold.features]
    total, count = 0.0, 0.0
    for entries, gram in zip(fold.entries, fold.grams, strict=True):
        seen = np.array([names.index(name) for name in entries[1:]], dtype=np.intp)
        lost = np.setdiff1d(np.arange(len(names)), seen)
        between = training.covariance[np.ix_(seen, lost)]
        toward = np.linalg.lstsq(training.covariance[np.ix_(seen, seen)], between, rcond=None)[0]
        left = training.covariance[np.ix_(lost, lost)] - between.T @ toward
        constant = direction[lost] @ (training.mean[lost] - training.mean[seen] @ toward) - intercept
        form = np.append(constant, direction[seen] + toward @ direction[lost])
        total += float(form @ gram @ form + gram[0, 0] * (direction[lost] @ left @ direction[lost]))
        count += float(gram[0, 0])
    return total / (2.0 * max(count, 1.0))


def _together(moments: MomentsResult) -> None:
    """Every pair of parties must be observed together: their covariance appears in no other term."""
    counts = moments.counts
    for first, second in itertools.combinations(range(len(moments.parties)), 2):
        if not counts[[mask[first] and mask[second] for mask in moments.patterns]].sum() > 0.5:
            pair = f"{moments.parties[first]!r} and {moments.parties[second]!r}"
            raise NotEstimable(
                f"no record with the response is at {pair} together, so nothing tells how their columns are related;"
                " leave one of them out with columns=."
            )


def _noisy(moments: MomentsResult, target: int, clipped: Clipped | None) -> StandardMoments:
    """Noise makes a covariance indefinite. Variances below it are left out. Noise alone would have eigenvalues up to
    2 noise sqrt(p); those of the correlation are raised to half of that (a ridge where it matters, nothing elsewhere).
    """
    second = second_moments(moments)
    if clipped is not None:
        second = unclipped(second, clipped)
    mean = second.matrix[0, 1:]
    covariance = second.matrix[1:, 1:] - np.outer(mean, mean)
    above = np.diag(covariance) > BELOW_NOISE * second.noise_sd
    if not above[target] or above.sum() < 2:
        raise NotEstimable(
            "the noise is larger than the variance of the response or of every covariate; take a larger epsilon, more"
            " records, or fewer columns."
        )
    noise = second.noise_sd / float(np.median(np.diag(covariance)[above]))
    scale = np.sqrt(np.where(above, np.diag(covariance), 1.0))
    place = np.flatnonzero(above)
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
        notes.append(
            f"{UNRELIABLE}: privacy noise moves a correlation by {noise:.2g}, and above 0.01 columns are chosen for the"
            " noise in them; take a larger epsilon, more records, or fewer columns."
        )
    if not above.all():
        lost = [moments.features[index].name for index in np.flatnonzero(~above)]
        notes.append(f"Left out, since their variance is below the noise: {', '.join(lost)}.")
    return _standard(mean, fixed, above, target, float(moments.n), noise, tuple(notes))


def inverse_scale(scale: Vector) -> Vector:
    """1 / scale, and 0 where the scale is 0."""
    return np.where(scale > 0, 1.0 / np.where(scale > 0, scale, 1.0), 0.0)


def _standard(
    mean: Vector,
    covariance: Matrix,
    varies: NDArray[np.bool_],
    target: int,
    n: float,
    noise: float,
    notes: tuple[str, ...],
) -> StandardMoments:
    others = np.delete(np.arange(len(mean)), target)
    scale = np.where(varies, np.sqrt(np.maximum(np.diag(covariance), 0.0)), 0.0)[others]
    inverse = inverse_scale(scale)
    return StandardMoments(
        correlation=covariance[np.ix_(others, others)] * np.outer(inverse, inverse),
        cross=covariance[others, target] * inverse,
        variance=float(covariance[target, target]),
        mean=mean[others],
        scale=scale,
        response_mean=float(mean[target]),
        n=n,
        noise=noise,
        notes=notes,
    )


# --- the clipping-bias correction ---------------------------------------------------------------------------------
#
# The law of a row is taken as Gaussian, and binary columns as its coordinates cut at a threshold: where a column is
# long, its part of a binary response is not, so taking the response for Gaussian as well would correct too much. What
# clipping took is simulated with fixed draws and added to the released moments, and the law is fitted again. All of it
# is post-processing.

DRAWS, ROUNDS = 40_000, 3
"""The simulation's own error is then a fifth of the noise where that is 0.003 a correlation."""
ENTRIES = 8_000_000
"""Numbers drawn at once, at most, for memory: with more than 200 features there are fewer draws."""
RAREST = 1e-3
"""Share of the rarer value of a binary column, at least, in the simulated law."""


@dataclass(frozen=True, eq=False)
class Clipped:
    """What the parties did to their rows. `blocks` are the features of each party; `values` the two values of a binary
    column, as a feature, or None."""

    clipping: Clipping
    blocks: tuple[slice, ...]
    values: tuple[tuple[float, float] | None, ...]


def unclipped(second: SecondMoments, clipped: Clipped) -> SecondMoments:
    """Second moments of (1, features) as they would be, in expectation, had no row been clipped."""
    width = len(clipped.values)
    draws = min(DRAWS, max(ENTRIES // width, 4 * width))
    normal = np.random.default_rng(0).standard_normal((draws, width))  # it protects nobody
    corrected = second.matrix
    for _ in range(ROUNDS):
        rows = _law(corrected, clipped.values, normal)
        corrected = second.matrix + _products(rows) - _products(clipped.clipping(rows, clipped.blocks))
    return replace(second, matrix=corrected)


def _law(second: Matrix, values: tuple[tuple[float, float] | None, ...], normal: Matrix) -> Matrix:
    """Rows with these second moments, nearly. A Gaussian cut at the quantile of 1 - q keeps
    phi(quantile) / sqrt(q (1 - q)) of its correlations, which are raised by that before the cut."""
    mean = second[0, 1:]
    covariance = second[1:, 1:] - np.outer(mean, mean)
    remaining, cuts = np.ones(len(mean)), np.zeros(len(mean))
    for place, two in enumerate(values):
        if two is not None:
            q = float(np.clip((mean[place] - two[0]) / (two[1] - two[0]), RAREST, 1.0 - RAREST))
            cuts[place] = norm.isf(q)
            remaining[place] = norm.pdf(cuts[place]) / np.sqrt(q * (1.0 - q))
    scale = np.sqrt(np.maximum(np.diag(covariance), 1e-12))
    correlation = covariance / np.outer(scale * remaining, scale * remaining)
    np.fill_diagonal(correlation, 1.0)
    roots, vectors = np.linalg.eigh(correlation)
    half = vectors * np.sqrt(np.maximum(roots, 0.0))
    rows = normal @ (half / np.sqrt(np.maximum((half**2).sum(axis=1), 1e-12))[:, None]).T
    for place, two in enumerate(values):
        if two is None:
            rows[:, place] = mean[place] + scale[place] * rows[:, place]
        else:
            rows[:, place] = np.where(rows[:, place] > cuts[place], two[1], two[0])
    return np.asarray(rows)


def _products(rows: Matrix) -> Matrix:
    with_one = np.column_stack([np.ones(len(rows)), rows])
    return np.asarray(with_one.T @ with_one / len(rows))


# --- from the second-order surrogate of logistic regression back to log-odds --------------------------------------
#
# Least squares of y on x has slopes S^-1 cov(x, y). If x is Gaussian (or only E[x | eta] linear in eta = a + x'b, and
# eta Gaussian), Stein's lemma gives cov(x, y) = S b E[psi'(eta)], so the surrogate's slopes are t = 4 E[psi'(eta)] b:
# the right direction, too short by one factor. It follows from the length of t and the mean of y, which are known: with
# eta ~ N(a, s^2) solve
#
#     4 s E[psi'(eta)] = sqrt(t'S t),        E[psi(eta)] = mean of y.

WIDEST = 12.0
"""Largest standard deviation of eta that is looked for: the classes are nearly separated beyond."""
NODES = np.linspace(-8.5, 8.5, 1361)
"""For the trapezoid rule, which converges geometrically for such integrands once its steps, at most WIDEST / 80 of eta,
are small beside the width of psi'."""
WEIGHTS = np.exp(-(NODES**2) / 2.0)
WEIGHTS = WEIGHTS / WEIGHTS.sum()
MEAN_EDGE = 1e-6


def log_odds(length: float, mean: float) -> tuple[float, float]:
    """(factor, a): b is the surrogate's slopes times the factor, and eta has mean a; `length` is sqrt(t'S t)."""
    mean = min(max(mean, MEAN_EDGE), 1.0 - MEAN_EDGE)
    if length <= 0.0:
        return 1.0, float(np.log(mean / (1.0 - mean)))

    def short(s: float) -> float:
        mu = expit(_centre(s, mean) + s * NODES)
        return float(4.0 * s * (WEIGHTS @ (mu * (1.0 - mu)))) - length

    s = WIDEST if short(WIDEST) <= 0.0 else float(brentq(short, 0.0, WIDEST, xtol=1e-12))
    return s / length, _centre(s, mean)


def _centre(s: float, mean: float) -> float:
    """a with E[psi(a + s Z)] = mean; the expectation rises with a, and lies between psi(a - 9 s) and psi(a + 9 s)."""
    middle, reach = float(np.log(mean / (1.0 - mean))), 12.0 * s + 1e-9

    def above(a: float) -> float:
        expected: NDArray[np.float64] = expit(a + s * NODES)
        return float(WEIGHTS @ expected) - mean

    return float(brentq(above, middle - reach, middle + reach, xtol=1e-13))
