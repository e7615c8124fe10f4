"""The regression of one coordinate of a fitted Gaussian on the others, with its covariance by the delta method."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from scipy.linalg import LinAlgError, cho_factor, cho_solve

from colonnade.errors import BadArguments
from colonnade.statistics.gaussian_em import GaussianFit, Matrix, PatternStatistics, Vector, correlation_of, derivatives


@dataclass(frozen=True, eq=False)
class Regression:
    """y = params[0] + x'params[1:] + error. `sigma2` and `cov` carry n / (n - p - 1), as in ordinary least squares."""

    names: tuple[str, ...]
    params: Vector
    cov: Matrix
    sigma2: float
    rsquared: float


def regression(data: PatternStatistics, fit: GaussianFit, target: int) -> Regression:
    """Coefficients of `target` on all other coordinates, with their covariance by the delta method.

    beta = S_xx^-1 S_xy, alpha = mu_y - beta'mu_x. With w = (-beta, 1):  d beta = S_xx^-1 (dS w)_x and
    d alpha = w'd mu - mu_x'd beta. Where nothing is missing, this is the covariance of ordinary least squares.
    """
    width = len(data.names)
    others = np.delete(np.arange(width), target)
    n, p = data.n, len(others)
    if n <= p + 1:
        raise BadArguments(f"{n:.0f} records cannot determine {p + 1} coefficients; leave columns out.")
    deviations, correlation = np.sqrt(np.diag(fit.sigma)), correlation_of(fit.sigma)
    _, information = derivatives(data.standardised(fit.mu, deviations), np.zeros(width), correlation)
    inside = cho_factor(correlation[np.ix_(others, others)])
    beta = cho_solve(inside, correlation[others, target])
    w = np.zeros(width)
    w[others], w[target] = -beta, 1.0

    # In standard units mu = 0, so d alpha = w'd mu.
    i, j = np.triu_indices(width)
    moved = np.zeros((width, len(i)))  # dS w for each coordinate of the triangle
    np.add.at(moved, (i, np.arange(len(i))), w[j])
    np.add.at(moved, (j, np.arange(len(i))), np.where(i == j, 0.0, w[i]))
    jacobian = np.zeros((1 + p, width + len(i)))
    jacobian[0, :width] = w
    jacobian[1:, width:] = cho_solve(inside, moved[others])
    try:
        standard = jacobian @ cho_solve(cho_factor(information), jacobian.T)
    except LinAlgError as error:
        raise BadArguments(
            "the records do not determine the coefficients (the information matrix is singular): too few of them show"
            " the columns together; leave out the party with the fewest records."
        ) from error

    # Back to the given units: y = mu_y + s_y (alpha + sum beta_j (x_j - mu_j) / s_j).
    slope = deviations[target] / deviations[others]
    back = np.zeros((1 + p, 1 + p))
    back[0, 0] = deviations[target]
    back[0, 1:] = -slope * fit.mu[others]
    back[1:, 1:] = np.diag(slope)
    params = back @ np.concatenate([[0.0], beta])
    params[0] += fit.mu[target]
    residual = float(w @ correlation @ w)
    correction = n / (n - p - 1)
    return Regression(
        names=tuple(data.names[place] for place in others),
        params=params,
        cov=correction * back @ standard @ back.T,
        sigma2=correction * residual * float(fit.sigma[target, target]),
        rsquared=1.0 - residual,
    )
