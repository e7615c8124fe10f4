"""The score of a column as a function of its latent normal variable, in closed form.

A party's score map comes from the marginal F of the records that the party has. In the whole cohort the latent
variable may have another mean and deviation (records missing at random); the score is the same function of it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy import optimize, special

from colonnade.statistics.marginals import Marginal
from colonnade.statistics.rank_correlation import TERMS, step_coefficients
from colonnade.synthesis.copula.model import shifted

Reals = NDArray[np.float64]

FURTHEST = 3.0
"""Latent standard deviations that a marginal is moved by at most."""


@dataclass(frozen=True, eq=False)
class LatentScore:
    """a (2 F(x) - 1) of x = F^-1(Phi(mean + deviation Z)), with Z standard normal and F the `marginal`."""

    marginal: Marginal
    factor: float
    mean: float
    deviation: float

    @property
    def coefficients(self) -> Reals:
        """In normalised Hermite polynomials h_1, h_2, ...

        Continuous: with t^2 = 1 + s^2, E d^k/dz^k Phi(m + s Z) = s^k d^(k-1)/dm^(k-1) (phi(m / t) / t), so that
        c_k = (s / t)^k (-1)^(k-1) h_(k-1)(m / t) phi(m / t) / sqrt(k).
        """
        if self.marginal.discrete:
            at = (special.ndtri(self.marginal.cumulative[:-1]) - self.mean) / self.deviation
            return step_coefficients(at, self._levels)
        t = math.hypot(1.0, self.deviation)
        where, ratio = self.mean / t, -self.deviation / t
        found = np.zeros(TERMS)
        before, now = 0.0, math.exp(-where * where / 2) / math.sqrt(2 * math.pi)
        power = -2.0
        for k in range(1, TERMS + 1):
            power *= ratio
            found[k - 1] = power * now / math.sqrt(k)
            before, now = now, (where * now - math.sqrt(k - 1) * before) / math.sqrt(k)
        return found

    @property
    def variance(self) -> float:
        """From the probabilities where F jumps: the coefficients of a jump fall so slowly that a sum of their squares
        would miss some per cent."""
        if not self.marginal.discrete:
            return float((self.coefficients**2).sum())
        return float(self._chances @ (self._levels - self.expectation) ** 2)

    @property
    def expectation(self) -> float:
        if not self.marginal.discrete:
            return 2 * float(special.ndtr(self.mean / math.hypot(1.0, self.deviation))) - 1
        return float(self._chances @ self._levels)

    @property
    def _chances(self) -> Reals:
        return shifted(self.marginal, self.mean, self.deviation).probabilities

    @property
    def _levels(self) -> Reals:
        return np.asarray(self.factor * (2 * self.marginal.scores(self.marginal.points) - 1), dtype=np.float64)


def matched(one: LatentScore, shift: float, stretch: float) -> LatentScore:
    """The latent mean (and deviation) at which the score has this mean and `stretch` times its variance."""

    def at_deviation(deviation: float) -> LatentScore:
        def gap(mean: float) -> float:
            return LatentScore(one.marginal, one.factor, mean, deviation).expectation - one.expectation - shift

        if gap(-FURTHEST) > 0 or gap(FURTHEST) < 0:  # further than any score can say
            return LatentScore(one.marginal, one.factor, math.copysign(FURTHEST, shift), deviation)
        return LatentScore(
            one.marginal, one.factor, float(optimize.brentq(gap, -FURTHEST, FURTHEST, xtol=1e-6)), deviation
        )

    if one.marginal.discrete:
        return at_deviation(1.0)

    def spread(deviation: float) -> float:
        return at_deviation(deviation).variance - stretch * one.variance

    if spread(0.5) > 0 or spread(2.0) < 0:
        return at_deviation(1.0)
    return at_deviation(float(optimize.brentq(spread, 0.5, 2.0, xtol=1e-4)))
