"""The latent correlation of a Gaussian copula from the covariances of scores. All of it is post-processing.

1. The Hermite bridge. If column j shows g_j(Z_j) and g_j has the coefficients c_jm in normalised Hermite polynomials,
   then cov(g_j(Z_j), g_k(Z_k)) = sum_m c_jm c_km r^m (Mehler). It grows with r; it is inverted.
2. `repair`: an eigenvalue floor, rescaled to a correlation matrix. `complete`: pairs that nobody measured well get
   the entries of the largest determinant, which make them independent given all the others.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy import linalg, special

from colonnade.errors import DomainError

Reals = NDArray[np.float64]

TERMS = 256
"""Terms of the bridge: at |r| = 0.95 the rest is below 1e-8 of the variance of two coins, at 0.99 below 0.1 %."""
LARGEST_CORRELATION = 0.999
EIGENVALUE_FLOOR = 1e-3
_PAIRS = 1 << 13  # pairs of columns inverted at once: their products of coefficients stay in the cache


# --- from scores to the latent scale ---------------------------------------------------------------------


def uniform_coefficients() -> Reals:
    """c_1 ... c_TERMS of g = Phi, the score of a continuous column.

    By parts c_m = int phi^2 h_(m-1) / sqrt(m) = E h_(m-1)(Z / sqrt 2) / (2 sqrt(pi m)), and E He_k(Z / sqrt 2) =
    (-1/2)^(k/2) (k - 1)!! for even k. The quotient of two such terms is a short product, so nothing overflows.
    """
    coefficients = np.zeros(TERMS)
    expected = 1.0
    for m in range(1, TERMS + 1, 2):
        coefficients[m - 1] = expected / (2 * math.sqrt(math.pi * m))
        expected *= -0.5 * math.sqrt(m / (m + 1))  # from k = m - 1 to k + 2: (k + 1) / sqrt((k + 1)(k + 2))
    return coefficients


def category_coefficients(probabilities: ArrayLike) -> Reals:
    """The same for an ordered column: g is the mid-distribution score P(below) + P(equal) / 2 of its category."""
    chances = np.asarray(probabilities, dtype=np.float64)
    if chances.ndim != 1 or not chances.size or np.any(chances < 0) or not math.isclose(chances.sum(), 1, abs_tol=1e-6):
        raise DomainError("category probabilities must be at least 0 and sum to 1; normalise them first.")
    edges = np.cumsum(chances)
    return step_coefficients(special.ndtri(np.clip(edges[:-1], 0, 1)), edges - chances / 2)


def step_coefficients(thresholds: ArrayLike, levels: ArrayLike) -> Reals:
    """The same for a step function of Z: levels[i] between thresholds[i - 1] and thresholds[i].

    int_a^b h_m phi = (h_(m-1)(a) phi(a) - h_(m-1)(b) phi(b)) / sqrt(m), so a jump at t adds its height times
    h_(m-1)(t) phi(t) / sqrt(m).
    """
    t, jumps = np.asarray(thresholds, dtype=np.float64), np.diff(np.asarray(levels, dtype=np.float64))
    inside = np.isfinite(t)
    t, jumps = t[inside], jumps[inside]
    coefficients = np.zeros(TERMS)
    before, now = np.zeros(t.size), np.exp(-t * t / 2) / math.sqrt(2 * math.pi)
    for m in range(1, TERMS + 1):
        coefficients[m - 1] = float(jumps @ now) / math.sqrt(m)
        before, now = now, (t * now - math.sqrt(m - 1) * before) / math.sqrt(m)
    return coefficients


def flat_coefficients(low: Reals, high: Reals, twice: Reals, *, mean: float = 0.0, deviation: float = 1.0) -> Reals:
    """c_1 ... c_TERMS of what becomes of a continuous score where a column has point masses: the sum over them of
    d(z) = 2 Phi(m + s z) - `twice` for z from `low` to `high`, and 0 elsewhere.

    By parts int d h_k phi = [-d h_(k-1) phi] / sqrt(k) + 2 s J_(k-1) / sqrt(k) with J_j the integral of
    h_j(z) phi(z) phi(m + s z). With t^2 = 1 + s^2 the derivative of phi(z) phi(m + s z) is -(t^2 z + s m) times it, so
    that sqrt(j + 1) J_(j+1) = -[h_j phi phi] / t^2 + sqrt(j) (1 / t^2 - 1) J_(j-1) - (s m / t^2) J_j.
    """
    coefficients = np.zeros(TERMS)
    if not low.size:
        return coefficients
    t = math.hypot(1.0, deviation)
    ends = np.stack([low, high])
    z = np.where(np.isfinite(ends), ends, 0.0)
    density = np.where(np.isfinite(ends), np.exp(-z * z / 2) / math.sqrt(2 * math.pi), 0.0)
    other = np.exp(-((mean + deviation * z) ** 2) / 2) / math.sqrt(2 * math.pi)
    d = 2 * special.ndtr(mean + deviation * z) - twice
    at_peak = math.exp(-((mean / t) ** 2) / 2) / math.sqrt(2 * math.pi)
    integral = at_peak / t * np.diff(special.ndtr(t * ends + deviation * mean / t), axis=0)[0]
    earlier, before, now = np.zeros_like(integral), np.zeros_like(z), density
    for k in range(1, TERMS + 1):
        # Here `now` is h_(k-1) phi at both ends, `integral` is J_(k-1) and `earlier` J_(k-2).
        boundary = -np.diff(d * now, axis=0)[0]
        coefficients[k - 1] = float((boundary + 2 * deviation * integral).sum()) / math.sqrt(k)
        onward = (
            -np.diff(now * other, axis=0)[0] / t**2
            + math.sqrt(k - 1) * (1 / t**2 - 1) * earlier
            - deviation * mean / t**2 * integral
        ) / math.sqrt(k)
        earlier, integral = integral, onward
        before, now = now, (z * now - math.sqrt(k - 1) * before) / math.sqrt(k)
    return coefficients


def invert_bridge(covariance: ArrayLike, coefficients: ArrayLike) -> Reals:
    """The latent correlations r with sum_m c_jm c_km r^m = `covariance`, within +-0.999; the diagonal is 1.

    A column without variance (one category) is correlated with nothing. Bisection, as the bridge is monotone.
    """
    wanted, c = np.asarray(covariance, dtype=np.float64), np.asarray(coefficients, dtype=np.float64)
    first, second = np.triu_indices(len(c), 1)
    latent = np.eye(len(c))
    for start in range(0, first.size, _PAIRS):
        j, k = first[start : start + _PAIRS], second[start : start + _PAIRS]
        latent[j, k] = latent[k, j] = _bisect(wanted[j, k], np.ascontiguousarray((c[j] * c[k]).T))
    constant = (c * c).sum(axis=1) < 1e-18
    latent[constant[:, None] | constant[None, :]] = 0.0
    np.fill_diagonal(latent, 1.0)
    return latent


def _bisect(wanted: Reals, products: Reals) -> Reals:
    """Of pairs: the r with sum_m products[m] r^m = wanted."""
    low, high = np.full(wanted.shape, -LARGEST_CORRELATION), np.full(wanted.shape, LARGEST_CORRELATION)
    for _ in range(36):
        middle = (low + high) / 2
        total = np.zeros(wanted.shape)
        for row in products[::-1]:
            total += row
            total *= middle
        short = total < wanted
        low, high = np.where(short, middle, low), np.where(short, high, middle)
    return np.asarray((low + high) / 2)


# --- a proper correlation matrix -------------------------------------------------------------------------


def floored(matrix: Reals, floor: float) -> Reals:
    """The symmetric part, with eigenvalues of at least `floor`."""
    given = (matrix + matrix.T) / 2
    values, vectors = linalg.eigh(given)
    return np.asarray(given if values[0] >= floor else (vectors * np.maximum(values, floor)) @ vectors.T)


def repair(matrix: ArrayLike, *, floor: float = EIGENVALUE_FLOOR) -> Reals:
    """Eigenvalues raised to `floor`, then rescaled to ones on the diagonal; a matrix that has them is unchanged."""
    given = floored(np.asarray(matrix, dtype=np.float64), floor)
    scale = 1 / np.sqrt(np.diag(given))
    repaired = given * np.outer(scale, scale)
    np.fill_diagonal(repaired, 1.0)
    return np.asarray((repaired + repaired.T) / 2)


def complete(matrix: ArrayLike, measured: ArrayLike, *, floor: float = EIGENVALUE_FLOOR) -> tuple[Reals, float]:
    """The correlation matrix of largest determinant with the `measured` entries (Dempster 1972), and 1.

    Its inverse is 0 at every other entry. Noisy entries may have no positive completion: then they shrink
    together by the largest of a few factors at which one is found, which is returned instead of 1.
    """
    given, fixed = np.asarray(matrix, dtype=np.float64), np.array(measured, dtype=bool)
    if given.ndim != 2 or given.shape[0] != given.shape[1] or fixed.shape != given.shape or (fixed != fixed.T).any():
        raise DomainError("a completion needs a square matrix and a symmetric mask of its measured entries.")
    np.fill_diagonal(fixed, True)
    stated = np.where(fixed, (given + given.T) / 2, 0.0)
    np.fill_diagonal(stated, 1.0)
    if fixed.all():
        return repair(stated, floor=floor), 1.0
    for factor in (1.0, 0.99, 0.98, 0.95, 0.9, 0.8, 0.7, 0.5, 0.3, 0.1, 0.0):
        target = factor * stated + (1 - factor) * np.eye(len(given))
        start = _positive_completion(target, fixed, floor)
        if start is not None:
            return _raise_determinant(start, fixed), factor
    raise AssertionError("the identity is a completion")  # pragma: no cover - factor = 0 always has one


def _positive_completion(target: Reals, fixed: NDArray[np.bool_], floor: float) -> Reals | None:
    """Some completion with eigenvalues of at least floor / 2, by alternating projections; None if none shows up."""
    completion = target
    for _ in range(200):
        values, vectors = linalg.eigh(completion)
        if values[0] >= floor / 2:
            return completion
        completion = np.where(fixed, target, (vectors * np.maximum(values, floor)) @ vectors.T)
    return None


def _raise_determinant(start: Reals, fixed: NDArray[np.bool_]) -> Reals:
    """One group of columns after the other: their free entries become their regression on the other fixed ones.

    This is Algorithm 17.1 of Hastie, Tibshirani and Friedman with all columns of one mask at once (a party's, as a
    rule). Given the other entries it is the largest determinant, so a positive matrix stays positive.
    """
    raised = start.copy()
    masks, group_of = np.unique(fixed, axis=0, return_inverse=True)
    groups = [(np.flatnonzero(group_of == i), mask) for i, mask in enumerate(masks) if not mask.all()]
    for _ in range(1000):
        moved = 0.0
        for group, mask in groups:
            others, free = np.setdiff1d(np.flatnonzero(mask), group), np.flatnonzero(~mask)
            weights = linalg.solve(raised[np.ix_(others, others)], raised[np.ix_(others, group)], assume_a="pos")
            entries = raised[np.ix_(free, others)] @ weights
            moved = max(moved, float(np.abs(raised[np.ix_(free, group)] - entries).max()))
            raised[np.ix_(free, group)] = entries
            raised[np.ix_(group, free)] = entries.T
        if moved < 1e-10:
            break
    return raised
