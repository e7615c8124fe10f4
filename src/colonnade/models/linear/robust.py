"""Standard errors from random groups of records, and a test and a combination of two estimates of one regression.

An estimate from pattern moments solves sum_i s_i = 0, s_i the score of record i, which is a quadratic form of its row
z_O. To first order record i moves the coefficients by u_i = J I^-1 s_i, with J the derivative of the coefficients and I
the observed information: a *public* quadratic form of (1, z_O) once the estimate is public (`influence_forms`). So the
influence of a group of records is a public linear map of the group's pattern moments, and

    V = G / (G - 1) sum_g (u_g - u)(u_g - u)'

estimates the covariance of the coefficients without any assumption on the columns' law. With weights the same holds of
weighted moments, and the influences of two estimates of the same records give the covariance of their difference.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import cho_factor, cho_solve, eigh
from scipy.stats import chi2
from scipy.stats import f as f_distribution

from colonnade.models.linear.gaussian import standard_regression
from colonnade.statistics.gaussian_em import GaussianFit, Matrix, PatternStatistics, Vector

REJECTED = 0.05
"""The level at which the two estimates are said to differ."""
GROUPS = 200
"""Random groups of records: the relative error of a standard error is then 5 %."""
NORMAL_EXCESS = 0.05
"""`excess_error` beyond which columns count as not normal: the Gaussian fit's bias is then bounded by the two
estimates' difference, not by the law."""
DOUBT = 0.1
"""The chance with which a bias is larger than the bound."""
RATIOS = np.concatenate([[0.0], np.geomspace(0.02, 2e4, 61)])
"""Of the variance of a bias to that of the sampling error: those of which the likeliest is taken."""
UNSEEN = 1e-6
"""The relative variance below which a difference has none."""


def influence_forms(data: PatternStatistics, fit: GaussianFit, target: int) -> list[NDArray[np.float64]]:
    """For each pattern the quadratic forms (coefficient, 1 + |O|, 1 + |O|) of (1, z_O) that are a record's influence.

    In standard units a record's score in the direction (m, A) is r'm + (r'A r - tr(K A)) / 2 with K = Sigma_OO^-1 and
    r = K z_O. The directions are the rows of J I^-1, then of the coefficients in the units of the data.
    """
    standard = standard_regression(data, fit, target)
    width = len(data.names)
    i, j = np.triu_indices(width)
    directions = standard.to_units @ cho_solve(cho_factor(standard.information), standard.jacobian.T).T
    matrices = np.zeros((len(directions), width, width))
    matrices[:, i, j] = matrices[:, j, i] = directions[:, width:]
    forms = []
    for pattern in data.patterns:
        seen = pattern.observed
        k = np.linalg.inv(standard.correlation[np.ix_(seen, seen)])
        part = matrices[:, seen[:, None], seen]
        form = np.zeros((len(directions), 1 + len(seen), 1 + len(seen)))
        form[:, 0, 0] = -0.5 * np.einsum("ij,cij->c", k, part)
        form[:, 0, 1:] = form[:, 1:, 0] = 0.5 * directions[:, seen] @ k
        form[:, 1:, 1:] = 0.5 * k @ part @ k
        to_standard = np.eye(1 + len(seen))
        to_standard[1:, 1:] /= standard.deviations[seen]
        to_standard[1:, 0] = -(fit.mu / standard.deviations)[seen]
        forms.append(to_standard.T @ form @ to_standard)
    return forms


def no_smaller(covariance: Matrix, floor: Matrix) -> Matrix:
    """With few groups, variances at least those of the likelihood; correlations stay.

    From G groups a standard error has a relative error of (2 G)^-1/2, and records with high leverage pull it down: the
    residuals that they leave are too small. The likelihood's errors have neither fault, and others.
    """
    scale = np.sqrt(np.maximum(1.0, np.diag(floor) / np.diag(covariance)))
    return np.asarray(covariance * np.outer(scale, scale))


@dataclass(frozen=True)
class Difference:
    """Hausman's test of two estimates of the same coefficients: are they equal but for sampling error?

    Hotelling's T^2 = d' V_d^-1 d with V_d from G groups, referred to its F distribution.
    """

    statistic: float
    pvalue: float
    size: int


def hausman(difference: Vector, covariance: Matrix, groups: int) -> Difference:
    """The test on the directions in which the two estimates can differ: others have no variance."""
    scale = np.sqrt(np.maximum(np.diag(covariance), 0.0))
    varies = scale > 1e-7 * max(scale.max(), 1e-300)
    if not varies.any():
        return Difference(0.0, 1.0, 0)
    standard = difference[varies] / scale[varies]
    values, vectors = np.linalg.eigh(covariance[np.ix_(varies, varies)] / np.outer(scale[varies], scale[varies]))
    inside = values > UNSEEN * values[-1]
    statistic = float(np.sum((vectors[:, inside].T @ standard) ** 2 / values[inside]))
    size = int(inside.sum())
    pvalue = float(f_distribution.sf(statistic * (groups - size) / (size * (groups - 1)), size, groups - size))
    return Difference(statistic, pvalue, size)


@dataclass(frozen=True, eq=False)
class Combination:
    """Two estimates of the same coefficients as one: the first is efficient if its model holds, the second holds more
    widely. `share` is how much of the second is in it, on average over the coefficients."""

    params: Vector
    cov: Matrix
    share: float
    test: Difference
    excess: float = 0.0
    """`excess_error` of the first."""


def excess_error(covariance: Matrix, likelihood: Matrix) -> float:
    """The mean over the slopes of log(error by groups / error by the likelihood), both of the Gaussian fit.

    0 but for chance, about (2 G slopes)^-1/2, where columns are jointly normal; it grows with the tails of the columns,
    and with what records of one group have in common."""
    ratio = np.diag(covariance)[1:] / np.maximum(np.diag(likelihood)[1:], 1e-300)
    return 0.5 * float(np.mean(np.log(np.maximum(ratio, 1e-300)))) if len(ratio) else 0.0


def shares_of_second(difference: Vector, apart: Matrix, first: Matrix, inflation: float) -> tuple[Matrix, Vector]:
    """M = B (B + V)^-1, with which first + M d is the best estimate if the first one's bias has the covariance B.

    V (`apart`) is that of the sampling error of d, E (`first`) that of the first estimate. B = s V + t E, with s and t
    of the largest likelihood of d ~ N(0, B + V): in some tables coefficients whose weighted estimate is noisy are the
    biased ones (s), in others all are, in units of their error (t). With t = 0 all have one share, as in Stein's rule;
    with s = 0 the second counts most where it is least noisy. Nothing depends on the units of the columns, nor on how
    levels are coded. `inflation` is by how much V^-1 is too large, being estimated from groups.

    Also, for each coefficient, the largest variance of (1 - M) bias over all s and t that d does not rule out: whose
    likelihood ratio to the best is within the quantile of `DOUBT` on one side.
    """
    width, scale = len(difference), np.sqrt(np.diag(first))
    correlation = first / np.outer(scale, scale) + 1e-9 * np.eye(width)
    values, vectors = eigh(apart / np.outer(scale, scale), correlation)  # U'EU = 1, U'VU diagonal
    inside = values > max(UNSEEN * values[-1], 1e-300)
    if not inside.any():
        return np.zeros((width, width)), np.zeros(width)
    seen, noise = (vectors[:, inside].T @ (difference / scale)) ** 2, inflation * values[inside]
    alike, even = (own.reshape(-1, 1) for own in np.meshgrid(RATIOS, RATIOS * noise.mean()))
    bias = alike * noise + even
    deviance = np.sum(np.log(bias + noise) + seen / (bias + noise), axis=1)
    likeliest = bias[np.argmin(deviance)]
    share = likeliest / (likeliest + noise)
    directions = scale[:, None] * (correlation @ vectors[:, inside])
    allowed = bias[deviance <= deviance.min() + chi2.isf(2 * DOUBT, 1)]
    left = ((1 - share) ** 2 * allowed) @ directions.T**2
    return np.asarray((directions * share) @ vectors[:, inside].T / scale), left.max(axis=0)


def combined(
    first: Vector, second: Vector, covariance: Matrix, groups: int, likelihood: Matrix | None = None
) -> Combination:
    """first + M (second - first), with M of `shares_of_second`.

    Near equality it is the efficient estimate, far from it the other. What is left of the first one's bias is
    (1 - M) d with d = second - first. Its square is added to the variance, so that an interval covers on the way
    between the two: all of it where the test rejects, what exceeds the variance of (1 - M) d where it does not.
    `covariance` is that of (first, second), `likelihood` that of the first by its own law.

    One d is as noisy as the bias that it shows: where it is small by chance, so is what is added. Where the first one's
    errors show that its law does not hold (`NORMAL_EXCESS`), the square that is added is at least the largest variance
    that all coefficients together allow.
    """
    width = len(first)
    e, c, w = covariance[:width, :width], covariance[:width, width:], covariance[width:, width:]
    difference = second - first
    apart = e + w - c - c.T
    test = hausman(difference[1:], apart[1:, 1:], groups)
    shares, largest = shares_of_second(difference, apart, e, (groups - 1) / (groups - test.size - 1))
    rest = np.eye(width) - shares
    both = np.hstack([rest, shares])
    noise = np.diag(rest @ apart @ rest.T)
    bias = np.maximum(0.0, (rest @ difference) ** 2 - (0.0 if test.pvalue < REJECTED else noise))
    excess = 0.0 if likelihood is None else excess_error(e, likelihood)
    if excess > NORMAL_EXCESS:
        bias = np.maximum(bias, largest)
    return Combination(
        first + shares @ difference,
        both @ covariance @ both.T + np.diag(bias),
        float(np.trace(shares)) / width,
        test,
        excess,
    )
