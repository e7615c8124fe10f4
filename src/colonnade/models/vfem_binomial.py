"""`VFEM(family="binomial")`: a binary response, by the normal discriminant model, exactly, from the same moments.

    x | y ~ N(a + d y, Omega),  y in {0, 1}  =>  logit P(y = 1 | x) = logit(pi) + d'Omega^-1 (x - a - d/2),

a logistic regression with beta = Omega^-1 d (the general location model of Olkin and Tate). If y is always observed and
blocks of x are missing at random, the likelihood of (a, d, Omega) needs of each pattern the count, sums and products
of (1, x, y) alone: y is 0 or 1, so sums within the classes are products with y. And it is the likelihood of x given y
in a Gaussian (x, y), whose other factor, that of y, has parameters of its own. So the maximum of `fit_gaussian` gives
(a, d, Omega), its observed information their covariance, and neither quadrature nor another round is needed.

With Gaussian covariates this is the maximum likelihood estimate, and more precise than logistic regression (Efron
1975). With others it is not consistent for the logistic coefficients: the summary says so.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, fields, replace

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from scipy.linalg import LinAlgError, cho_factor, cho_solve
from scipy.special import expit

from colonnade.errors import NotEstimable
from colonnade.models.gaussian_regression import Regression
from colonnade.models.vfem_result import VFEMResult
from colonnade.statistics.gaussian_em import GaussianFit, Matrix, PatternStatistics, Vector, derivatives

SMALLEST_CLASS = 10
"""Records that each class must have for each covariate."""


def discriminant(data: PatternStatistics, fit: GaussianFit, target: int) -> Regression:
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
    standard = data.standardised(centre, scale)
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
    _, information = derivatives(standard, mu, sigma)
    try:
        cov = jacobian @ cho_solve(cho_factor(information), jacobian.T)
    except LinAlgError as error:
        raise NotEstimable(
            "the records do not determine the coefficients (the information matrix is singular); leave out the party"
            " with the fewest records."
        ) from error
    cov[0, 0] += 1 / (n * pi * (1 - pi))  # of logit(pi), which the records' x say nothing about
    back = np.eye(1 + len(others))
    back[0, 1:] = -centre[others] / scale[others]
    back[1:, 1:] = np.diag(1 / scale[others])
    params = np.concatenate([[math.log(pi / (1 - pi)) - float(beta @ middle)], beta])
    return Regression(
        names=tuple(data.names[place] for place in others),
        params=back @ params,
        cov=back @ cov @ back.T,
        sigma2=1.0,
        rsquared=float(c @ np.linalg.solve(sigma[np.ix_(others, others)], c)) / s2,
    )


def conditional(mu: Vector, sigma: Matrix, target: int) -> tuple[Vector, Vector, Matrix]:
    """(a, d, Omega) of the others given a response of 0 or 1."""
    others = np.delete(np.arange(len(mu)), target)
    d = sigma[others, target] / sigma[target, target]
    omega = sigma[np.ix_(others, others)] - np.outer(d, d) * sigma[target, target]
    return mu[others] - d * mu[target], d, omega


def _applied(vector: Vector, i: NDArray[np.intp], j: NDArray[np.intp]) -> Matrix:
    """dS @ vector for each coordinate (i, j) of the triangle of a symmetric S."""
    out = np.zeros((len(vector), len(i)))
    at = np.arange(len(i))
    np.add.at(out, (i, at), vector[j])
    np.add.at(out, (j, at), np.where(i == j, 0.0, vector[i]))
    return out


@dataclass(frozen=True, kw_only=True, eq=False)
class VFEMLogitResult(VFEMResult):
    """A logistic regression fitted to incomplete records: `params` are log-odds of the response's second category.

    `sigma2` is 1, as statsmodels has it; `rsquared` is that of the linear discriminant.
    """

    def predict(self, frame: pd.DataFrame) -> pd.Series[float]:
        """P(response = its second category | what each row shows). A column may be empty, or not be there at all."""
        place = [feature.name for feature in self.features].index(self.response)
        a, d, omega = conditional(self.mu, self.sigma, place)
        pi = float(self.mu[place])
        values = np.delete(self._encoded(frame), place, axis=1)
        score = np.full(len(frame), math.log(pi / (1 - pi)))
        shown, index = np.unique(~np.isnan(values), axis=0, return_inverse=True)
        for number, mask in enumerate(shown):
            rows, seen = index.reshape(-1) == number, np.flatnonzero(mask)
            if seen.size:
                beta = np.linalg.solve(omega[np.ix_(seen, seen)], d[seen])
                score[rows] += (values[np.ix_(rows, seen)] - a[seen] - d[seen] / 2) @ beta
        return pd.Series(expit(score), index=frame.index, name=self.response)


def as_logit(made: VFEMResult, found: Regression) -> VFEMLogitResult:
    """The discriminant model in the columns' own units, from the Gaussian one."""
    target = [feature.name for feature in made.features].index(made.response)
    others = [feature for feature in made.features if feature.name != made.response]
    back = np.eye(1 + len(others))
    back[0, 1:] = [-feature.centre / feature.half for feature in others]
    back[1:, 1:] = np.diag([1 / feature.half for feature in others])
    names = list(made.params.index)
    pi, s2, n = float(made.mu[target]), float(made.sigma[target, target]), made.nobs
    # The response is Bernoulli, not Gaussian: its factor of the likelihood is exchanged.
    moved = n * (pi * math.log(pi) + (1 - pi) * math.log(1 - pi)) + n / 2 * (math.log(2 * math.pi * s2) + 1)
    plain = replace(
        made,
        params=pd.Series(back @ found.params, index=names, name="coef"),
        cov=pd.DataFrame(back @ found.cov @ back.T, index=names, columns=names),
        sigma2=found.sigma2,
        rsquared=found.rsquared,
        loglik=made.loglik + moved,
        trace=tuple(value + moved for value in made.trace),
    )
    return VFEMLogitResult(**{field.name: getattr(plain, field.name) for field in fields(VFEMResult)})
