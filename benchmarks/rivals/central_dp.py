"""Central DP: a trusted curator adds Gaussian noise to the pooled Gram matrix (Dwork, Talwar, Thakurta, Zhang 2014)."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import brentq
from scipy.special import log_ndtr, ndtr


def analytic_gaussian(epsilon: float, delta: float) -> float:
    """The smallest sigma at sensitivity 1 (Balle and Wang 2018, Theorem 8)."""

    def excess(log_sigma: float) -> float:
        sigma = math.exp(log_sigma)
        upper = ndtr(1 / (2 * sigma) - epsilon * sigma)
        lower = math.exp(epsilon + log_ndtr(-1 / (2 * sigma) - epsilon * sigma))
        return float(upper - lower - delta)

    return math.exp(brentq(excess, -12.0, 12.0, xtol=1e-12))


def gram_sensitivity(norm: float, entry: float = 1.0) -> float:
    """L2 sensitivity of the upper triangle of X'X to one record: |upper(xx')|^2 = (|x|^4 + sum x_i^4) / 2.

    The same bound as for SQM, in real numbers."""
    return math.sqrt((norm**4 + entry**2 * norm**2) / 2)


def noisy_gram(
    gram: NDArray[np.float64], *, sensitivity: float, epsilon: float, delta: float, rng: np.random.Generator
) -> NDArray[np.float64]:
    """Independent noise on the upper triangle, copied below."""
    upper = np.triu(rng.normal(scale=sensitivity * analytic_gaussian(epsilon, delta), size=gram.shape))
    return gram + upper + np.triu(upper, 1).T
