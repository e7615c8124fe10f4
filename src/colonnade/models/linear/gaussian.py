"""The regression of one coordinate of a fitted Gaussian on the others, with its covariance by the delta method.

`regression` is for a response that is a number; `discriminant` for one of two codes, by the normal discriminant model:

    x | y ~ N(a + d y, Omega),  y in {0, 1}  =>  logit P(y = 1 | x) = logit(pi) + d'Omega^-1 (x - a - d/2),

a logistic regression with beta = Omega^-1 d (the general location model of Olkin and Tate). If y is always observed and
blocks of x are missing at random, the likelihood of (a, d, Omega) needs of each pattern the count, sums and products
of (1, x, y) alone: y is 0 or 1, so sums within the classes are products with y. And it is the likelihood of x given y
in a Gaussian (x, y), whose other factor, that of y, has parameters of its own. So the maximum of `fit_gaussian` gives
(a, d, Omega), its observed information their covariance, and neither quadrature nor another round is needed. With
Gaussian covariates this is the maximum likelihood estimate, and more precise than logistic regression (Efron 1975).
With others it is not consistent for the logistic coefficients.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import LinAlgError, cho_factor, cho_solve

from colonnade.errors import BadArguments, NotEstimable
from colonnade.statistics.gaussian_em import GaussianFit, Matrix, PatternStatistics, Vector, correlation_of, derivatives

SMALLEST_CLASS = 10
"""Records that each class must have for each covariate."""


@dataclass(frozen=True, eq=False)
class Coefficients:
    """y = params[0] + x'params[1:] + error. `sigma2` and `cov` carry n / (n - p - 1), as in ordinary least squares."""

    names: tuple[str, ...]
    params: Vector
    cov: Matrix
    sigma2: float
    rsquared: float

    def in_units(self, centre: Vector, scale: Vector, response: tuple[float, float] = (0.0, 1.0)) -> Coefficients:
        """The same of other values, value = centre + scale * value here, of the covariates and of the `response`.

        y = c_y + s_y (alpha + sum beta_j (x_j - c_j) / s_j) is affine, so nothing is approximate.
        """
        back = _to_units(centre, scale, response[1])
        params = back @ self.params
        params[0] += response[0]
        return replace(self, params=params, cov=back @ self.cov @ back.T, sigma2=self.sigma2 * response[1] ** 2)


def _to_units(centre: Vector, scale: Vector, response: float) -> Matrix:
    """What takes (alpha, beta) of standard covariates and response to their own units, but for the response's mean."""
    slope = response / scale
    back = np.diag(np.concatenate([[response], slope]))
    back[0, 1:] = -slope * centre
    return back


@dataclass(frozen=True, eq=False)
class StandardRegression:
    """The regression in standard units (mean 0, variance 1): what its covariance is made of.

    `jacobian` is the derivative of (alpha, beta) in (mu, upper triangle of Sigma); `to_units` takes the coefficients'
    changes to the units of the data.
    """

    others: NDArray[np.intp]
    beta: Vector
    residual: float
    correlation: Matrix
    deviations: Vector
    information: Matrix
    jacobian: Matrix
    to_units: Matrix


def standard_regression(data: PatternStatistics, fit: GaussianFit, target: int) -> StandardRegression:
    """beta = S_xx^-1 S_xy, alpha = mu_y - beta'mu_x. With w = (-beta, 1):  d beta = S_xx^-1 (dS w)_x and
    d alpha = w'd mu - mu_x'd beta, where mu_x = 0 in standard units."""
    width = len(data.names)
    others = np.delete(np.arange(width), target)
    deviations, correlation = np.sqrt(np.diag(fit.sigma)), correlation_of(fit.sigma)
    _, information = derivatives(data.standardised(fit.mu, deviations), np.zeros(width), correlation)
    inside = cho_factor(correlation[np.ix_(others, others)])
    beta = cho_solve(inside, correlation[others, target])
    w = np.zeros(width)
    w[others], w[target] = -beta, 1.0
    i, j = np.triu_indices(width)
    jacobian = np.zeros((width, width + len(i)))
    jacobian[0, :width] = w
    jacobian[1:, width:] = cho_solve(inside, _applied(w, i, j)[others])
    return StandardRegression(
        others=others,
        beta=beta,
        residual=float(w @ correlation @ w),
        correlation=correlation,
        deviations=deviations,
        information=information,
        jacobian=jacobian,
        to_units=_to_units(fit.mu[others], deviations[others], deviations[target]),
    )


def regression(data: PatternStatistics, fit: GaussianFit, target: int) -> Coefficients:
    """Coefficients of `target` on all other coordinates, with their covariance by the delta method.

    Where nothing is missing, this is the covariance of ordinary least squares.
    """
    n, p = data.n, len(data.names) - 1
    if n <= p + 1:
        raise BadArguments(f"{n:.0f} records cannot determine {p + 1} coefficients; leave columns out.")
    own = standard_regression(data, fit, target)
    correction = n / (n - p - 1)
    standard = Coefficients(
        names=tuple(data.names[place] for place in own.others),
        params=np.concatenate([[0.0], own.beta]),
        cov=correction * _delta_method(own.information, own.jacobian),
        sigma2=correction * own.residual,
        rsquared=1.0 - own.residual,
    )
    return standard.in_units(fit.mu[own.others], own.deviations[own.others], (fit.mu[target], own.deviations[target]))


def discriminant(data: PatternStatistics, fit: GaussianFit, target: int) -> Coefficients:
    """Log-odds of the response's upper code, per unit of the other coordinates, with its covariance.

    The response is a feature of -1 and 1. No correction for degrees of freedom, as in logistic regression.
    """
    width = len(data.names)
    others = np.delete(np.arange(width), target)
    n = data.n
    centre, scale = fit.mu.copy(), np.sqrt(np.diag(fit.sigma))
    centre[target], scale[target] = -1.0, 2.0  # so that the response is 0 or 1
    mu, sigma = (fit.mu - centre) / scale, fit.sigma / np.outer(scale, scale)
    pi = float(mu[target])
    if min(pi, 1 - pi) * n < SMALLEST_CLASS * len(others):
        raise NotEstimable(
            f"one of the two classes has {min(pi, 1 - pi) * n:.0f} records, too few for {len(others)} covariates; leave"
            " columns out."
        )
    a, d, omega = conditional(mu, sigma, target)
    beta = np.linalg.solve(omega, d)
    middle = a + d / 2

    # Directions of (mu, triangle of Sigma), and with them d(d), d(Omega) beta, d(beta), d(-beta'(a + d/2)).
    i, j = np.triu_indices(width)
    s2, c = float(sigma[target, target]), sigma[others, target]
    along = np.zeros(width)
    along[others] = beta
    turned, picked = _applied(along, i, j), _applied(np.eye(width)[target], i, j)
    dc, ds2, kappa = picked[others], picked[target], float(c @ beta)
    dd = dc / s2 - np.outer(c, ds2) / s2**2
    dbent = turned[others] - (kappa * dc + np.outer(c, beta @ dc)) / s2 + kappa * np.outer(c, ds2) / s2**2
    dbeta = np.linalg.solve(omega, dd - dbent)
    jacobian = np.zeros((1 + len(others), width + len(i)))
    jacobian[0, others], jacobian[0, target] = -beta, float(beta @ d)
    jacobian[0, width:] = -middle @ dbeta - (0.5 - pi) * (beta @ dd)
    jacobian[1:, width:] = dbeta
    _, information = derivatives(data.standardised(centre, scale), mu, sigma)
    cov = _delta_method(information, jacobian)
    cov[0, 0] += 1 / (n * pi * (1 - pi))  # of logit(pi), which the records' x say nothing about
    standard = Coefficients(
        names=tuple(data.names[place] for place in others),
        params=np.concatenate([[math.log(pi / (1 - pi)) - float(beta @ middle)], beta]),
        cov=cov,
        sigma2=1.0,
        rsquared=float(c @ np.linalg.solve(sigma[np.ix_(others, others)], c)) / s2,
    )
    return standard.in_units(centre[others], scale[others])


def _delta_method(information: Matrix, jacobian: Matrix) -> Matrix:
    try:
        return np.asarray(jacobian @ cho_solve(cho_factor(information), jacobian.T))
    except LinAlgError as error:
        raise BadArguments(
            "the records do not determine the coefficients (the information matrix is singular): too few of them show"
            " the columns together; leave out the party with the fewest records."
        ) from error


def conditional(mu: Vector, sigma: Matrix, target: int) -> tuple[Vector, Vector, Matrix]:
    """(a, d, Omega) of the others given a response of 0 or 1."""
    others = np.delete(np.arange(len(mu)), target)
    d = sigma[others, target] / sigma[target, target]
    omega = sigma[np.ix_(others, others)] - np.outer(d, d) * sigma[target, target]
    return mu[others] - d * mu[target], d, omega


def _applied(vector: Vector, i: NDArray[np.intp], j: NDArray[np.intp]) -> Matrix:
    """dS @ vector for each coordinate (i, j) of the triangle of a symmetric S."""
    out = np.zeros((len(vector), len(i)))
    coordinate = np.arange(len(i))
    np.add.at(out, (i, coordinate), vector[j])
    np.add.at(out, (j, coordinate), np.where(i == j, 0.0, vector[i]))
    return out
