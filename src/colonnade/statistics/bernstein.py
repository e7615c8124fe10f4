"""Bernstein's operator and the iterated one of order h (Micchelli 1973): polynomials from values at l + 1 nodes."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy import special

from colonnade.errors import BadPrivacyParameter

Reals = NDArray[np.float64]

LARGEST_DEGREE = 200


def bernstein_basis(degree: int, x: ArrayLike) -> Reals:
    """b_(v,l)(x) = C(l, v) x^v (1 - x)^(l - v): one row for each x, one column for each v."""
    at, v = np.atleast_1d(np.asarray(x, dtype=np.float64))[:, None], np.arange(degree + 1)
    log_choose = special.gammaln(degree + 1) - special.gammaln(v + 1) - special.gammaln(degree - v + 1)
    return np.asarray(np.exp(log_choose + special.xlogy(v, at) + special.xlog1py(degree - v, -at)))


def iterated_basis(degree: int, order: int, x: ArrayLike) -> Reals:
    """b^(h)_(v,l)(x) = sum_(i=1..h) C(h, i) (-1)^(i-1) B_l^(i-1)(b_(v,l); x), equation (2.4). Order 1 is Bernstein's.

    B_l maps a function to its values at the nodes u/l, so B_l^(i-1) multiplies by the basis at the nodes i - 1 times.
    """
    if degree < 1 or order < 1:
        raise BadPrivacyParameter(
            f"a Bernstein operator needs a degree and an order of at least 1, not {degree, order}."
        )
    at_nodes = bernstein_basis(degree, np.arange(degree + 1) / degree)
    power, mixed = np.eye(degree + 1), np.zeros((degree + 1, degree + 1))
    for i in range(1, order + 1):
        mixed += math.comb(order, i) * (-1) ** (i - 1) * power
        power = power @ at_nodes
    return np.asarray(bernstein_basis(degree, x) @ mixed)


def bernstein_degree(n: int, epsilon: float, order: int) -> int:
    """The paper's l = max(1, (epsilon n)^(1/(h + 1))) (Corollary 1, without its log term), at most 200."""
    return int(min(max(1, round((epsilon * n) ** (1 / (order + 1)))), LARGEST_DEGREE))
