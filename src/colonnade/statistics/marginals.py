"""The marginal distribution of one column, with public bounds only: made private with a pure epsilon, and inverted.

A `Marginal` is a monotone distribution function on the declared domain with its inverse.
- `binned_marginal`: noisy counts of equal bins, and the smooth density behind them.
- `bernstein_marginal`: the copula paper's iterated Bernstein operator on noisy values of F (its equation 2.4).
- `category_marginal`: noisy counts of the declared categories of a column with listed values.

Noise is integers on integer counts, discrete Laplace. The relation is `replace`. `marginals.claim.md` has the
sensitivities, and the measurements that chose the default.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy import optimize, special
from scipy.interpolate import BSpline
from scipy.linalg import cho_factor, cho_solve

from colonnade.errors import BadPrivacyParameter, DomainError, EmptyParty
from colonnade.privacy.accounting import check_epsilon
from colonnade.privacy.noise import discrete_laplace
from colonnade.privacy.randomness import Randomness

Reals = NDArray[np.float64]
Integers = NDArray[np.int64]

GRID = 512
"""Intervals of the grid on which a polynomial is evaluated and inverted."""


# --- a distribution function and its inverse -------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Marginal:
    """A distribution on a public domain.

    Continuous: `points` rise from the lower to the upper bound, `cumulative` is F there, from 0 to 1, and F is linear
    between; where two points are equal F jumps, and the column has a point mass. Discrete: `points` are the codes or
    numbers of the categories, and F jumps at each.
    """

    points: Reals
    cumulative: Reals
    discrete: bool = False

    def __post_init__(self) -> None:
        steps = np.diff(self.points)
        grows = np.all(steps > 0 if self.discrete else steps >= 0) and np.all(np.diff(self.cumulative) >= 0)
        sound = self.points.size == self.cumulative.size >= 1 and grows and self.cumulative[-1] == 1
        if not sound or self.cumulative[0] < 0 or (not self.discrete and (self.points.size < 2 or self.cumulative[0])):
            raise DomainError("a marginal needs increasing points and a distribution function that ends at 1.")

    @property
    def probabilities(self) -> Reals:
        """Of the categories, or of the intervals between points."""
        return np.diff(self.cumulative, prepend=0.0) if self.discrete else np.diff(self.cumulative)

    def cdf(self, values: ArrayLike) -> Reals:
        """P(X <= value)."""
        return self._distribution(values, side="right")

    def below(self, values: ArrayLike) -> Reals:
        """P(X < value)."""
        return self._distribution(values, side="left")

    def _distribution(self, values: ArrayLike, *, side: Literal["left", "right"]) -> Reals:
        x = np.asarray(values, dtype=np.float64)
        after = np.searchsorted(self.points, x, side=side)
        if self.discrete:
            return np.concatenate([[0.0], self.cumulative])[after]
        last = self.points.size - 1
        left, right = np.clip(after - 1, 0, last), np.clip(after, 0, last)
        width = self.points[right] - self.points[left]
        share = np.divide(x - self.points[left], width, out=np.zeros(x.shape), where=width > 0)
        inside = self.cumulative[left] + share * (self.cumulative[right] - self.cumulative[left])
        return np.where(after == 0, 0.0, np.where(after > last, 1.0, inside))

    def scores(self, values: ArrayLike) -> Reals:
        """Uniform scores in [0, 1]: F, and at a jump P(below) + P(equal) / 2. Their mean is 1/2 under F."""
        return np.asarray((self.below(values) + self.cdf(values)) / 2)

    @property
    def jumps(self) -> tuple[Reals, Reals]:
        """F before and after each jump of a continuous marginal."""
        jump = (np.diff(self.points) == 0) & (np.diff(self.cumulative) > 0)
        return self.cumulative[:-1][jump], self.cumulative[1:][jump]

    def quantile(self, u: ArrayLike) -> Reals:
        """The inverse: monotone in u, always inside the domain, and for categories always one of positive chance."""
        level = np.clip(np.asarray(u, dtype=np.float64), 0.0, 1.0)
        if self.discrete:
            first = int(np.argmax(self.cumulative > 0))
            return self.points[np.maximum(np.searchsorted(self.cumulative, level, side="left"), first)]
        # Where F is flat no record was seen: keep the ends of each flat piece, and u between them has measure 0.
        jumps = np.flatnonzero(np.diff(self.cumulative) > 0)
        interval = jumps[np.searchsorted(self.cumulative[jumps + 1], level, side="left").clip(max=jumps.size - 1)]
        low, high = self.cumulative[interval], self.cumulative[interval + 1]
        share = np.clip((level - low) / (high - low), 0.0, 1.0)
        value = self.points[interval] + share * (self.points[interval + 1] - self.points[interval])
        return np.asarray(np.clip(value, self.points[interval], self.points[interval + 1]), dtype=np.float64)


def from_curve(points: Reals, curve: Reals) -> Marginal:
    """The nearest distribution function to a noisy curve, in least squares; its ends are 0 and 1."""
    fitted = np.clip(optimize.isotonic_regression(curve).x, 0.0, 1.0)
    fitted[0], fitted[-1] = 0.0, 1.0
    return Marginal(points, fitted)


def from_shares(points: Reals, shares: Reals) -> Marginal:
    """The nearest distribution of categories to noisy shares of them."""
    cumulative = np.minimum(np.cumsum(on_simplex(shares)), 1.0)
    cumulative[-1] = 1.0
    return Marginal(points, cumulative, discrete=True)


# --- noisy estimates --------------------------------------------------------------------------------------


def noisy_counts(counts: Integers, *, l1: int, epsilon: float, randomness: Randomness) -> Integers:
    """Integer counts plus noise for this L1 sensitivity; a computed scale is rounded up."""
    return counts + discrete_laplace(randomness, math.nextafter(l1 / check_epsilon(epsilon), math.inf), counts.size)


def bernstein_marginal(
    values: ArrayLike,
    *,
    lower: float,
    upper: float,
    epsilon: float,
    order: int = 2,
    degree: int | None = None,
    randomness: Randomness,
) -> Marginal:
    """The paper's private marginal: noise of scale (l + 1) / epsilon on the counts below l + 1 public nodes.

    A replaced record moves each count by at most 1.
    """
    inside = _clipped(values, lower, upper)
    size = 1 + (bernstein_degree(inside.size, epsilon, order) if degree is None else degree)
    counts = np.searchsorted(np.sort(inside), np.linspace(lower, upper, size), side="right").astype(np.int64)
    noisy = noisy_counts(counts, l1=size, epsilon=epsilon, randomness=randomness)
    basis = iterated_basis(size - 1, order, np.linspace(0.0, 1.0, GRID + 1))
    return from_curve(np.linspace(lower, upper, GRID + 1), basis @ (noisy / inside.size))


def binned_marginal(
    values: ArrayLike,
    *,
    lower: float,
    upper: float,
    epsilon: float,
    smooth: bool = True,
    randomness: Randomness,
) -> Marginal:
    """Noisy counts of equal bins (L1 2), and the density that explains them if that is `smooth` (`smooth_density`).

    n is public, so the total is known: the running sum is tied to n at its end.
    """
    inside = _clipped(values, lower, upper)
    n = inside.size
    exact = equal_bins(inside, lower, upper, histogram_bins(n, epsilon))
    counts = noisy_counts(exact, l1=2, epsilon=epsilon, randomness=randomness).astype(np.float64)
    density = smooth_density(counts, n=n, variance=_bin_sd(epsilon) ** 2) if smooth else None
    running = np.concatenate([[0.0], np.cumsum(counts if density is None else n * density)])
    running += np.linspace(0.0, 1.0, running.size) * (n - running[-1])
    return from_curve(np.linspace(lower, upper, running.size), running / n)


def _bin_sd(epsilon: float) -> float:
    """The standard deviation of the noise of one bin, nearly."""
    return math.sqrt(2) * 2 / epsilon


def histogram_bins(n: int, epsilon: float) -> int:
    """From public facts: an error of about 1 / bins within bins balances noise of about sd sqrt(bins) / n."""
    return int(np.clip(round(0.7 * (n / _bin_sd(epsilon)) ** (2 / 3)), 4, 512))


def category_marginal(codes: ArrayLike, *, categories: int, epsilon: float, randomness: Randomness) -> Marginal:
    """Noisy counts of the declared categories 0 ... categories - 1, projected onto the probabilities.

    One declared category is known without looking: the budget buys nothing there, and nothing is drawn.
    """
    if categories < 1:
        raise DomainError("a discrete column needs at least one declared category.")
    given = _present(codes)
    if categories == 1:
        return Marginal(np.zeros(1), np.ones(1), discrete=True)
    clipped = np.clip(np.rint(given), 0, categories - 1).astype(np.int64)
    counts = np.bincount(clipped, minlength=categories).astype(np.int64)
    noisy = noisy_counts(counts, l1=2, epsilon=epsilon, randomness=randomness)
    return from_shares(np.arange(categories, dtype=np.float64), noisy / given.size)


def on_simplex(shares: ArrayLike) -> Reals:
    """The nearest probabilities to noisy shares (Euclidean projection)."""
    given = np.asarray(shares, dtype=np.float64)
    falling = np.sort(given)[::-1]
    excess = (np.cumsum(falling) - 1) / np.arange(1, given.size + 1)
    return np.asarray(np.maximum(given - excess[np.flatnonzero(falling > excess)[-1]], 0.0), dtype=np.float64)


def equal_bins(values: Reals, lower: float, upper: float, size: int) -> Integers:
    """Counts of [lower, ...), ..., [..., upper]: the edges are public and every value lies in exactly one bin."""
    cell = np.floor((values - lower) / (upper - lower) * size).astype(np.int64)
    return np.bincount(np.clip(cell, 0, size - 1), minlength=size).astype(np.int64)


def _clipped(values: ArrayLike, lower: float, upper: float) -> Reals:
    if not -math.inf < lower < upper < math.inf:
        raise DomainError(
            f"bounds must be finite and in order, not {lower!r} and {upper!r}; declare them in the schema."
        )
    return np.clip(_present(values), lower, upper)


def _present(values: ArrayLike) -> Reals:
    given = np.asarray(values, dtype=np.float64).ravel()
    if not given.size:
        raise EmptyParty("no record is present, so the column has no marginal; leave it out.")
    if np.isnan(given).any():
        raise DomainError("a missing value has no place in a marginal; give the values of the present records only.")
    return given


# --- Bernstein's operator, and the iterated one of order h (Micchelli 1973) -------------------------------

LARGEST_DEGREE = 200


def bernstein_basis(degree: int, x: ArrayLike) -> Reals:
    """b_(v,l)(x) = C(l, v) x^v (1 - x)^(l - v): one row for each x, one column for each v."""
    points, v = np.atleast_1d(np.asarray(x, dtype=np.float64))[:, None], np.arange(degree + 1)
    log_choose = special.gammaln(degree + 1) - special.gammaln(v + 1) - special.gammaln(degree - v + 1)
    return np.asarray(np.exp(log_choose + special.xlogy(v, points) + special.xlog1py(degree - v, -points)))


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


# --- the smooth density behind noisy counts of equal bins ------------------------------------------------
#
# Noise leaves a few records' worth of mass in every bin, also where nobody is: on bounds much wider than the column
# that mass lies far out, and a deviation computed from it is far too large. A density with few parameters cannot follow
# it.
#
#     log f = sum_k theta_k B_k, cubic B-splines on equal knots;   c_b = n p_b + noise,   p_b the mass of f in bin b
#     minimise  sum_b (c_b - n p_b)^2 / (2 v_b) + lambda |D^3 theta|^2 / 2,   v_b = noise variance + n p_b (1 - p_b)
#
# by Gauss-Newton steps, v taken from the step before. Third differences cost nothing for a parabola, so that the limit
# of a large lambda is a normal density (Silverman 1982; the splines are Eilers and Marx's, 1996). Lambda, and whether
# to smooth at all, is chosen by AIC: the bins as they are have one parameter each and no residual. All of it is
# post-processing.

SPLINES = 48
"""Most B-splines: finer features of a column need so many records that its bins need no smoothing."""
CELLS = 256
"""About as many cells as the density is stated in."""
PENALTIES = np.geomspace(1e4, 1e-3, 15)
_STEPS = 30
_LONGEST = 3.0  # of a step, in log f
_SETTLED = 1e-3
_HOPELESS = 20.0  # AIC above the best at which smaller penalties are not tried


def smooth_density(counts: Reals, *, n: int, variance: float) -> Reals | None:
    """Probabilities of equal cells, equally many in each bin; None if the bins explain themselves better.

    `variance` is that of the noise of one count; n, the number of records, is public.
    """
    bins = len(counts)
    if bins < 4 or n < 1:
        return None
    fit = _Fit(counts, n, variance)
    theta, best, smoothed = fit.normal_start(), np.inf, None
    for penalty in PENALTIES:
        theta = fit.minimised(theta, penalty)
        criterion = fit.criterion(theta, penalty)
        if criterion < best:
            best, smoothed = criterion, fit.cells(theta)
        elif criterion > best + _HOPELESS:
            break
    shares = np.maximum(counts, 0.0) / max(float(np.maximum(counts, 0.0).sum()), 1.0)
    as_they_are = float(np.log(variance + n * shares * (1 - shares)).sum()) + 2 * (bins - 1)
    return smoothed if best < as_they_are else None


class _Fit:
    """The penalised fit to one column's counts."""

    def __init__(self, counts: Reals, n: int, variance: float) -> None:
        self.counts, self.n, self.variance = counts, n, variance
        self.bins = len(counts)
        self.each = max(1, min(16, CELLS // self.bins))
        size = min(self.bins + 3, SPLINES)
        knots = np.concatenate([np.zeros(3), np.linspace(0, 1, size - 2), np.ones(3)])
        self.middles = (np.arange(self.bins * self.each) + 0.5) / (self.bins * self.each)
        self.basis: Reals = BSpline.design_matrix(self.middles, knots, 3).toarray()
        # In units of 20 splines, so that a penalty means about the same for any number of them.
        rough = np.diff(np.eye(size), 3, axis=0) * (size / 20) ** 2.5
        self.rough: Reals = rough.T @ rough

    def normal_start(self) -> Reals:
        """A normal density by the quartiles of what rises above the noise."""
        above = np.maximum(self.counts - 0.5 * np.sqrt(self.variance), 0.0)
        running = np.concatenate([[0.0], np.cumsum(above)])
        low, middle, high = 0.25, 0.5, 0.75
        if running[-1] > 0:
            low, middle, high = np.interp([0.25, 0.5, 0.75], running / running[-1], np.linspace(0, 1, self.bins + 1))
        deviation = max((high - low) / 1.35, 1 / self.bins)
        parabola = -0.5 * ((self.middles - middle) / deviation) ** 2
        return np.asarray(np.linalg.lstsq(self.basis, parabola, rcond=None)[0])

    def cells(self, theta: Reals) -> Reals:
        height = self.basis @ theta
        mass = np.exp(height - height.max())
        return np.asarray(mass / mass.sum())

    def binned(self, cells: Reals) -> Reals:
        return np.asarray(cells.reshape(self.bins, self.each, *cells.shape[1:]).sum(axis=1))

    def variances(self, shares: Reals) -> Reals:
        return np.asarray(self.variance + self.n * shares * (1 - shares))

    def curvature(self, cells: Reals, penalty: float) -> tuple[Reals, Reals, Reals]:
        """(Slopes of the expected counts in theta, their weighted products, the same with the penalty)."""
        slopes = self.n * self.binned(cells[:, None] * (self.basis - cells @ self.basis))
        plain = (slopes / self.variances(self.binned(cells))[:, None]).T @ slopes
        ridge = 1e-8 * max(float(np.trace(plain)) / len(plain), 1.0)
        return slopes, plain, plain + penalty * self.rough + ridge * np.eye(len(plain))

    def minimised(self, theta: Reals, penalty: float) -> Reals:
        for _ in range(_STEPS):
            cells = self.cells(theta)
            variances = self.variances(self.binned(cells))

            def objective(candidate: Reals, variances: Reals = variances) -> float:
                residual = self.counts - self.n * self.binned(self.cells(candidate))
                return float(residual**2 @ (1 / variances) + penalty * candidate @ self.rough @ candidate)

            slopes, _, penalised = self.curvature(cells, penalty)
            residual = self.counts - self.n * self.binned(cells)
            step = cho_solve(cho_factor(penalised), slopes.T @ (residual / variances) - penalty * (self.rough @ theta))
            step *= min(1.0, _LONGEST / max(float(np.abs(self.basis @ step).max()), 1e-12))
            current, share = objective(theta), 1.0
            while share > _SETTLED and objective(theta + share * step) > current:
                share /= 2
            if share <= _SETTLED:
                break
            theta = theta + share * step
            if float(np.abs(self.basis @ step).max()) * share < _SETTLED:
                break
        return theta

    def criterion(self, theta: Reals, penalty: float) -> float:
        """AIC: -2 log-likelihood, and twice the effective number of parameters."""
        cells = self.cells(theta)
        shares = self.binned(cells)
        variances = self.variances(shares)
        _, plain, penalised = self.curvature(cells, penalty)
        parameters = float(np.trace(cho_solve(cho_factor(penalised), plain)))
        return float(((self.counts - self.n * shares) ** 2 / variances + np.log(variances)).sum()) + 2 * parameters
