"""A regression from moments of pairs of blocks, weighted by presence and augmented by the Gaussian fit.

Let w = (1, the holder's columns), always there, x_a the columns of block a, A_a the Gaussian fit's coefficients of x_a
on w, and e_a = x_a - A_a w. With the weights v_ab of `propensity.py`, and W the products of w over all records,

    sum x_a w'   = A_a W + D_a,                                   D_a = sum v_aa e_a w',
    sum x_a x_b' = A_a W A_b' + D_a A_b' + A_a D_b' + S_ab,       S_ab = sum v_ab e_a e_b',

are the moments M of all records, and the regression solves the normal equations that they make. If the weights are
right they are consistent whatever the columns' law; if the fit is right (x given w linear with one covariance)
whatever the weights. They need no joint record of three blocks. Where few records carry large weights M is too noisy to
be inverted: it is drawn towards the fit's own moments, as far as its smallest eigenvalue relative to them requires.

Everything is linear in a record's weighted products, so its influence is a public quadratic form, as in `robust.py`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from colonnade.models.linear.gaussian import standard_regression
from colonnade.models.linear.propensity import Pair
from colonnade.models.linear.robust import influence_forms
from colonnade.statistics.gaussian_em import GaussianFit, Matrix, PatternStatistics, Vector

SMALLEST = 0.6
"""The least that the weighted moments may have, in any direction, of what the Gaussian fit has there."""

Forms = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class AugmentedRegression:
    """Coefficients (intercept first), and the quadratic forms of a record's influence on them.

    `patterns` are forms of (1, z_O) for each pattern, `pairs` of (1, own columns, x_a, x_b) with the weights v_ab,
    `own` of (1, own columns) by the records' own weights: zero where they have none. `drawn` is how far the moments
    were drawn towards the fit's: 0 not at all, 1 entirely. `residual` is the mean squared residual, `total` the
    response's variance.
    """

    params: Vector
    patterns: list[Forms]
    pairs: dict[Pair, Forms]
    own: Forms
    drawn: float
    residual: float
    total: float


def pair_coordinates(own: NDArray[np.intp], blocks: Sequence[NDArray[np.intp]], pair: Pair) -> NDArray[np.intp]:
    """The coordinates of a pair's products: the holder's, then the blocks'; the constant goes before them."""
    return np.concatenate([own, *(blocks[block] for block in dict.fromkeys(pair))])


def own_coordinates(width: int, blocks: Sequence[NDArray[np.intp]]) -> NDArray[np.intp]:
    return np.setdiff1d(np.arange(width), np.concatenate(blocks))


def augmented_regression(
    data: PatternStatistics,
    fit: GaussianFit,
    target: int,
    blocks: Sequence[NDArray[np.intp]],
    grams: Mapping[Pair, Matrix],
    weighted_own: Matrix | None = None,
) -> AugmentedRegression:
    """`blocks` are the coordinates of each party that lacks records; `grams` the weighted products of each pair over
    (1, own columns, x_a, x_b). Where records have weights of their own, these are in `grams`, and `weighted_own` has
    the products of (1, own columns) by them, instead of the patterns'."""
    standard = standard_regression(data, fit, target)
    width, n = len(data.names), data.n
    own = own_coordinates(width, blocks)
    shift, scale = np.concatenate([[0.0], fit.mu]), np.concatenate([[1.0], standard.deviations])
    joint = np.eye(1 + width)
    joint[1:, 1:] = standard.correlation  # the fit's second moments per record, in standard units
    constant_own = np.concatenate([[0], 1 + own])
    # B: the conditional mean of (1, z) given w.
    lift = np.linalg.solve(joint[np.ix_(constant_own, constant_own)], joint[constant_own]).T

    def to_standard(places: NDArray[np.intp]) -> Matrix:
        """(1, values in standard units) = T (1, values in the data's units); `places` begin with the constant."""
        matrix = np.diag(1 / scale[places])
        matrix[1:, 0] = -(shift / scale)[places[1:]]
        return matrix

    own_products = np.zeros((len(constant_own), len(constant_own)))
    for pattern in data.patterns:
        within = np.searchsorted(pattern.observed, own)
        extended = np.zeros_like(own_products)
        extended[0, 0] = pattern.count
        extended[0, 1:] = extended[1:, 0] = pattern.sums[within]
        extended[1:, 1:] = pattern.gram[np.ix_(within, within)]
        own_products += extended
    matrix = to_standard(constant_own)
    own_products = matrix @ (own_products if weighted_own is None else weighted_own) @ matrix.T

    moments = lift @ own_products @ lift.T
    residuals: dict[Pair, tuple[NDArray[np.intp], Matrix, dict[int, Matrix]]] = {}
    for pair in grams:
        places = np.concatenate([[0], 1 + pair_coordinates(own, blocks, pair)])
        matrix = to_standard(places)
        products = matrix @ grams[pair] @ matrix.T
        maps = {}
        for block in dict.fromkeys(pair):
            # R_a takes a pair's row to (1, z) with e_a in its place and zeros elsewhere.
            rows = 1 + blocks[block]
            maps[block] = np.zeros((1 + width, len(places)))
            maps[block][rows] = (places == rows[:, None]).astype(np.float64)
            maps[block][rows, : len(constant_own)] -= lift[rows]
        residuals[pair] = places, products, maps
        a, b = pair
        if a == b:
            left = maps[a] @ products[:, : len(constant_own)] @ lift.T
            moments += left + left.T + maps[a] @ products @ maps[a].T
        else:
            across = maps[a] @ products @ maps[b].T
            moments += across + across.T

    covariates = np.concatenate([[0], 1 + standard.others])
    fitted = n * joint[np.ix_(covariates, covariates)]
    lower = np.linalg.inv(np.linalg.cholesky(fitted))
    least = float(np.linalg.eigvalsh(lower @ moments[np.ix_(covariates, covariates)] @ lower.T)[0])
    drawn = max(0.0, 1.0 - (1.0 - SMALLEST) / max(1.0 - least, 1e-12))
    mixed = (1 - drawn) * moments + drawn * n * joint
    inverse = np.linalg.inv(mixed[np.ix_(covariates, covariates)])
    beta = inverse @ mixed[covariates, 1 + target]

    # u = L'(products of a record) r with L the rows of the inverse and r = y - z'beta as a vector of (1, z).
    directions = np.zeros((len(covariates), 1 + width))
    directions[:, covariates] = (1 - drawn) * standard.to_units @ inverse
    residual = np.zeros(1 + width)
    residual[covariates], residual[1 + target] = -beta, 1.0
    own_forms = _symmetric(directions @ lift, np.broadcast_to(lift.T @ residual, (len(covariates), lift.shape[1])))
    pair_forms = {}
    for pair, (places, products, maps) in residuals.items():
        a, b = pair
        before = {block: directions @ maps[block] for block in maps}
        after = {block: np.broadcast_to(maps[block].T @ residual, before[block].shape) for block in maps}
        if a == b:
            around = np.zeros_like(before[a])
            around[:, : lift.shape[1]] = directions @ lift
            outer = np.zeros_like(before[a])
            outer[:, : lift.shape[1]] = lift.T @ residual
            forms = _symmetric(before[a], outer) + _symmetric(around, after[a]) + _symmetric(before[a], after[a])
        else:
            forms = _symmetric(before[a], after[b]) + _symmetric(before[b], after[a])
        # Weights are normalised to n: a group with more weight than records does not move the estimate by that.
        mean = np.einsum("cij,ij->c", forms, products) / n
        forms[:, 0, 0] -= mean
        own_forms[:, 0, 0] += mean
        matrix = to_standard(places)
        pair_forms[pair] = matrix.T @ forms @ matrix

    matrix = to_standard(constant_own)
    own_forms = matrix.T @ own_forms @ matrix
    pattern_forms = []
    for pattern, forms in zip(data.patterns, influence_forms(data, fit, target), strict=True):
        within = np.concatenate([[0], 1 + np.searchsorted(pattern.observed, own)])
        mixed_forms = drawn * forms
        if weighted_own is None:
            mixed_forms[:, within[:, None], within] += own_forms
        pattern_forms.append(mixed_forms)
    params = standard.to_units @ beta
    params[0] += fit.mu[target]
    unit = float(standard.deviations[target] ** 2) / n
    response = mixed[[0, 1 + target]][:, [0, 1 + target]]
    return AugmentedRegression(
        params=params,
        patterns=pattern_forms,
        pairs=pair_forms,
        own=np.zeros_like(own_forms) if weighted_own is None else own_forms,
        drawn=drawn,
        residual=float(residual @ mixed @ residual) * unit,
        total=float(response[1, 1] - response[0, 1] ** 2 / response[0, 0]) * unit,
    )


def _symmetric(left: Matrix, right: Matrix) -> Forms:
    """(l r' + r l') / 2 for each row: the symmetric form whose value is l'G r for a symmetric G."""
    outer = left[:, :, None] * right[:, None, :]
    return (outer + np.swapaxes(outer, 1, 2)) / 2
