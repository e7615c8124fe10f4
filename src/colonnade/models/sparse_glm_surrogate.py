"""From the second-order surrogate of logistic regression back to log-odds.

Least squares of y on x has slopes S^-1 cov(x, y). If x is Gaussian (or only E[x | eta] linear in eta = a + x'b, and eta
Gaussian), Stein's lemma gives cov(x, y) = S b E[psi'(eta)], so the surrogate's slopes are t = 4 E[psi'(eta)] b: the
right direction, too short by one factor. It follows from the length of t and the mean of y, which are known: with
eta ~ N(a, s^2) solve

    4 s E[psi'(eta)] = sqrt(t'S t),        E[psi(eta)] = mean of y.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import brentq
from scipy.special import expit

WIDEST = 12.0
"""Largest standard deviation of eta that is looked for: the classes are nearly separated beyond."""
NODES = np.linspace(-8.5, 8.5, 1361)
"""For the trapezoid rule, which converges geometrically for such integrands once its steps, at most WIDEST / 80 of eta,
are small beside the width of psi'."""
WEIGHTS = np.exp(-(NODES**2) / 2.0)
WEIGHTS = WEIGHTS / WEIGHTS.sum()
MEAN_EDGE = 1e-6


def log_odds(length: float, mean: float) -> tuple[float, float]:
    """(factor, a): b is the surrogate's slopes times the factor, and eta has mean a; `length` is sqrt(t'S t)."""
    mean = min(max(mean, MEAN_EDGE), 1.0 - MEAN_EDGE)
    if length <= 0.0:
        return 1.0, float(np.log(mean / (1.0 - mean)))

    def short(s: float) -> float:
        mu = expit(_centre(s, mean) + s * NODES)
        return float(4.0 * s * (WEIGHTS @ (mu * (1.0 - mu)))) - length

    s = WIDEST if short(WIDEST) <= 0.0 else float(brentq(short, 0.0, WIDEST, xtol=1e-12))
    return s / length, _centre(s, mean)


def _centre(s: float, mean: float) -> float:
    """a with E[psi(a + s Z)] = mean; the expectation rises with a, and lies between psi(a - 9 s) and psi(a + 9 s)."""
    middle, reach = float(np.log(mean / (1.0 - mean))), 12.0 * s + 1e-9

    def above(a: float) -> float:
        expected: NDArray[np.float64] = expit(a + s * NODES)
        return float(WEIGHTS @ expected) - mean

    return float(brentq(above, middle - reach, middle + reach, xtol=1e-13))
