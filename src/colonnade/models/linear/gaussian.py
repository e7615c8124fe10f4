"""The regression of one coordinate of a fitted Gaussian on the others, with its covariance by the delta method."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import LinAlgError, cho_factor, cho_solve

from colonnade.errors import BadArguments
from colonnade.statistics.gaussian_em import GaussianFit, Matrix, PatternStatistics, Vector, correlation_of, derivatives


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
        back = to_units(centre, scale, response[1])
        params = back @ self.params
        params[0] += response[0]
        return replace(self, params=params, cov=back @ self.cov @ back.T, sigma2=self.sigma2 * response[1] ** 2)


def to_units(centre: Vector, scale: Vector, response: float) -> Matrix:
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
        to_units=to_units(fit.mu[others], deviations[others], deviations[target]),
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


def _delta_method(information: Matrix, jacobian: Matrix) -> Matrix:
    try:
        return np.asarray(jacobian @ cho_solve(cho_factor(information), jacobian.T))
    except LinAlgError as error:
        raise BadArguments(
            "the records do not determine the coefficients (the information matrix is singular): too few of them show"
            " the columns together; leave out the party with the fewest records."
        ) from error


def _applied(vector: Vector, i: NDArray[np.intp], j: NDArray[np.intp]) -> Matrix:
    """dS @ vector for each coordinate (i, j) of the triangle of a symmetric S."""
    out = np.zeros((len(vector), len(i)))
    coordinate = np.arange(len(i))
    np.add.at(out, (i, coordinate), vector[j])
    np.add.at(out, (j, coordinate), np.where(i == j, 0.0, vector[i]))
    return out
