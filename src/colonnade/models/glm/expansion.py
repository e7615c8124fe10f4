"""A mean function of a sum, as a sum of products of functions of the summands: so that no one needs the sum.

The predictor of a record is eta = eta_1 + ... + eta_K, one part at each party. For the log link

    exp(eta) = exp(eta_1) ... exp(eta_K).

For the logit link, let w = sigma' be the logistic density. Its copies at distances L with alternating signs add up to
a function of period 2L, whose Fourier series follows from the transform pi o / sinh(pi o) of w (Poisson's summation):

    sum_m (-1)^m w(eta - m L) = sum_k b_k o_k cos(o_k eta),   o_k = k pi / L,  b_k = 2 pi / (L sinh(pi o_k)),  k odd.

Integrated from 0, sigma(eta) - 1/2 = sum_k b_k sin(o_k eta) up to the other copies. And exp(i o eta) is a product of
exp(i o eta_1), ..., exp(i o eta_K), of size 1 each. Within |eta| <= R the error is at most

    4 exp(-(L - R))                                       of the other copies, since w(t) <= exp(-|t|), and
    sum of b_k over the k left out                        of cutting the series,

each half of the tolerance; for the derivative, sigma'(eta), of the same order.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from colonnade.models.glm.newton import Family
from colonnade.statistics.gaussian_em import Matrix, Vector

TOLERANCE = 1e-8
LARGEST_LOG_ODDS = 100.0
"""Beyond it a record's probability is 0 or 1 to 40 digits: coefficients grow without end."""


@dataclass(frozen=True)
class Expansion:
    """`low` and `high` bound the predictor of every record."""

    family: Family
    low: float
    high: float
    tolerance: float = TOLERANCE

    @cached_property
    def half_period(self) -> float:
        return max(-self.low, self.high, 1.0) + math.log(8 / self.tolerance)

    @cached_property
    def frequencies(self) -> Vector:
        """o_k for odd k, as many as the tolerance needs; each b_k is exp(-2 pi^2 / L) of the one before it."""
        count = 1
        while self._tail(count) > self.tolerance / 2:
            count += 1
        return np.asarray(np.arange(1, 2 * count, 2) * (math.pi / self.half_period), dtype=np.float64)

    def _tail(self, count: int) -> float:
        """At least the sum of b_k beyond the first `count`: sinh(x) >= exp(x) (1 - exp(-2 x)) / 2."""
        rate = math.pi**2 / self.half_period
        first = rate * (2 * count + 1)
        ratio = math.exp(-2 * rate)
        return 4 * math.pi / self.half_period * math.exp(-first) / (1 - math.exp(-2 * first)) / (1 - ratio)

    @property
    def amplitudes(self) -> Vector:
        """b_k."""
        return np.asarray(2 * math.pi / (self.half_period * np.sinh(math.pi * self.frequencies)))

    @property
    def width(self) -> int:
        """Columns of a factor: cosines and then sines, or one exponential."""
        return 1 if self.family == "poisson" else 2 * len(self.frequencies)

    @property
    def unit(self) -> float:
        """What products of factors are in units of: the power of 2 above exp(high), as no factor exceeds 1."""
        return 2.0 ** math.ceil(self.high / math.log(2)) if self.family == "poisson" else 1.0

    def factor(self, part: Vector, top: float) -> Matrix:
        """Of a party's part of the predictor, which is at most `top`: entries of size at most 1."""
        if self.family == "poisson":
            return np.asarray(np.exp(part - top)[:, None])
        angle = part[:, None] * self.frequencies
        return np.concatenate([np.cos(angle), np.sin(angle)], axis=1)

    def last_factors(self, part: Vector, top: float) -> tuple[Matrix, Matrix]:
        """Of the response holder's part: whose row products with the others' joint factor (cosines, sines) add up to
        sigma(eta) - 1/2 and to sigma'(eta); or both to exp(eta)."""
        own = self.factor(part, top)
        if self.family == "poisson":
            own = own * (math.exp(self.high) / self.unit)
            return own, own
        cosine, sine = np.split(own, 2, axis=1)
        b, slope = self.amplitudes, self.amplitudes * self.frequencies
        # exp(i o (t + s)) = (cos t cos s - sin t sin s) + i (cos t sin s + sin t cos s)
        return np.concatenate([b * sine, b * cosine], axis=1), np.concatenate([slope * cosine, -slope * sine], axis=1)
