"""The smooth density behind noisy counts of equal bins. All of it is post-processing.

Noise leaves a few records' worth of mass in every bin, also where nobody is: on bounds much wider than the column that
mass lies far out, and a spread computed from it is far too large. A density with few parameters cannot follow it.

    log f = sum_k theta_k B_k, cubic B-splines on equal knots;   c_b = n p_b + noise,   p_b the mass of f in bin b
    minimise  sum_b (c_b - n p_b)^2 / (2 v_b) + lambda |D^3 theta|^2 / 2,   v_b = noise variance + n p_b (1 - p_b)

by Gauss-Newton steps, v taken from the step before. Third differences cost nothing for a parabola, so that the limit of
a large lambda is a normal density (Silverman 1982; the splines are Eilers and Marx's, 1996). Lambda, and whether to
smooth at all, is chosen by AIC: the bins as they are have one parameter each and no residual.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from scipy.interpolate import BSpline
from scipy.linalg import cho_factor, cho_solve

Reals = NDArray[np.float64]

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
    """Probabilities of equal cells, a whole number of them in each bin; None if the bins explain themselves better.

    `variance` is that of the noise of one count; n, the number of records, is public.
    """
    bins = len(counts)
    if bins < 4 or n < 1:
        return None
    fit = _Fit(counts, n, variance)
    theta, best, found = fit.normal_start(), np.inf, None
    for penalty in PENALTIES:
        theta = fit.minimised(theta, penalty)
        criterion = fit.criterion(theta, penalty)
        if criterion < best:
            best, found = criterion, fit.cells(theta)
        elif criterion > best + _HOPELESS:
            break
    shares = np.maximum(counts, 0.0) / max(float(np.maximum(counts, 0.0).sum()), 1.0)
    as_they_are = float(np.log(variance + n * shares * (1 - shares)).sum()) + 2 * (bins - 1)
    return found if best < as_they_are else None


class _Fit:
    """The penalised fit to one column's counts."""

    def __init__(self, counts: Reals, n: int, variance: float) -> None:
        self.counts, self.n, self.variance = counts, n, variance
        self.bins = len(counts)
        self.each = max(1, min(16, CELLS // self.bins))
        size = min(self.bins + 3, SPLINES)
        knots = np.concatenate([np.zeros(3), np.linspace(0, 1, size - 2), np.ones(3)])
        self.at = (np.arange(self.bins * self.each) + 0.5) / (self.bins * self.each)
        self.basis: Reals = BSpline.design_matrix(self.at, knots, 3).toarray()
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
        parabola = -0.5 * ((self.at - middle) / deviation) ** 2
        return np.asarray(np.linalg.lstsq(self.basis, parabola, rcond=None)[0])

    def cells(self, theta: Reals) -> Reals:
        height = self.basis @ theta
        mass = np.exp(height - height.max())
        return np.asarray(mass / mass.sum())

    def binned(self, cells: Reals) -> Reals:
        return np.asarray(cells.reshape(self.bins, self.each, *cells.shape[1:]).sum(axis=1))

    def spread(self, shares: Reals) -> Reals:
        return np.asarray(self.variance + self.n * shares * (1 - shares))

    def slopes(self, cells: Reals) -> Reals:
        """Of the expected counts in theta."""
        return self.n * self.binned(cells[:, None] * (self.basis - cells @ self.basis))

    def curvature(self, cells: Reals, penalty: float) -> tuple[Reals, Reals, Reals]:
        """(Slopes, their weighted products, the same with the penalty)."""
        slopes = self.slopes(cells)
        plain = (slopes / self.spread(self.binned(cells))[:, None]).T @ slopes
        ridge = 1e-8 * max(float(np.trace(plain)) / len(plain), 1.0)
        return slopes, plain, plain + penalty * self.rough + ridge * np.eye(len(plain))

    def minimised(self, theta: Reals, penalty: float) -> Reals:
        for _ in range(_STEPS):
            cells = self.cells(theta)
            spread = self.spread(self.binned(cells))

            def objective(at: Reals, spread: Reals = spread) -> float:
                residual = self.counts - self.n * self.binned(self.cells(at))
                return float(residual**2 @ (1 / spread) + penalty * at @ self.rough @ at)

            slopes, _, whole = self.curvature(cells, penalty)
            residual = self.counts - self.n * self.binned(cells)
            step = cho_solve(cho_factor(whole), slopes.T @ (residual / spread) - penalty * (self.rough @ theta))
            step *= min(1.0, _LONGEST / max(float(np.abs(self.basis @ step).max()), 1e-12))
            here, share = objective(theta), 1.0
            while share > _SETTLED and objective(theta + share * step) > here:
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
        spread = self.spread(shares)
        _, plain, whole = self.curvature(cells, penalty)
        parameters = float(np.trace(cho_solve(cho_factor(whole), plain)))
        return float(((self.counts - self.n * shares) ** 2 / spread + np.log(spread)).sum()) + 2 * parameters
