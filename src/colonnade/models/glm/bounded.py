"""Mean functions with values from 0 to a cap, as series: what noisy scores (`private.py`) have for a mean.

A binary response has the logistic function. A count y is cut at a cap c, and what is subtracted from min(y, c) is its
mean where y is Poisson with log mean eta,

    m(eta) = E min(Y, c) = sum over j = 1 .. c of P(Y >= j),

so that cutting brings no bias where the model holds, and hardly any where counts beyond c are few. Either is c times
the distribution function F of some probability density f on the line of predictors: the logistic density; or, as
Y >= j if the j-th arrival comes before exp(eta), that of the logarithm of a Gamma(j) variable, j at random from 1 to c.
With L the distance of copies of f of alternating sign (`expansion.py`), o_k = k pi / L and f^ its transform,

    F(t) - 1/2 = Re sum over odd k of c_k exp(i o_k t),   c_k = 2 f^(o_k) / (i L o_k),   |c_k| <= 2 / (pi k),

up to the copies, and its derivative has i o_k c_k. The whole sum is half a square wave convolved with f: it is never
larger than 1/2 in size, for any t. F^2 is the distribution function of the larger of two draws, and has such a series
too, of coefficients q_k. `private.claim.md` has the bounds.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from functools import cached_property, lru_cache
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray
from scipy.special import expit, gammainc, gammaincc

from colonnade.models.glm.expansion import Expansion
from colonnade.models.glm.newton import Family
from colonnade.statistics.gaussian_em import Matrix, Vector

Terms = NDArray[np.complex128]
TOLERANCE = 1e-3
"""Of the logistic function on shares: far below the noise, and part of the sensitivity."""
REACH = 32.0
"""Log-odds up to which it is within the tolerance, beyond which it is 0 or 1 to 13 digits; each party's part of them is
clipped to it. The series is the same in all rounds, so that sizes of messages follow from public facts."""
SERIES = Expansion("binomial", -REACH, REACH, TOLERANCE)
LARGEST_CAP = 64
"""A count that is larger counts as this: the edge of m is 1 / sqrt(c) wide, and a sharper one takes more terms."""
COUNT_TOLERANCE = 1e-5
"""Of m / c: small, since means of a few hundredths of the cap are to be told apart."""
HALF_PERIOD, COUNT_REACH = 18.0, 14.0
"""Log means from -15 to 6 beyond log c are within the tolerance; each party's part is clipped to 14 in size, that of
the response holder about log c."""
POINTS = 1 << 12
"""Of a period: coefficients are exact to 12 digits where they matter."""
NEAR_EDGE = np.linspace(-3.0, 1.0, 4001)
NODES, WEIGHTS = np.polynomial.hermite_e.hermegauss(31)


class BoundedMean(ABC):
    """`caps` are those that may be chosen; `step` is how far a rounded complex factor may be from its value, in steps
    of its bits. Everything is in units of the cap."""

    family: ClassVar[Family]
    step: ClassVar[float]
    at_random: ClassVar[bool]
    """Whether factors are rounded at random, without bias, or to the nearest step."""
    reach: ClassVar[float]
    longest: ClassVar[float]
    """Of a step of a round, for a feature in units of its deviation: where noise is all there is."""
    left_out: ClassVar[float]
    """At most the sum of |c_k| of the terms left out, for every cap."""
    caps: tuple[int, ...]
    frequencies: Vector

    @abstractmethod
    def mean(self, cap: int) -> Terms:
        """c_k."""

    @abstractmethod
    def slope(self, cap: int) -> Terms:
        """i o_k c_k."""

    @abstractmethod
    def largest_slope(self, others: float, last: float) -> float:
        """|F'| on shares, for every cap: `others` is the size of a product of rounded factors, `last` what rounding
        the response holder's may add."""

    @abstractmethod
    def start(self, mean: float, variance: float) -> float:
        """The centre of a normal predictor of this variance at which the response has this mean."""

    @abstractmethod
    def mean_slope(self, centre: float, variance: float, cap: int) -> float:
        """E of the derivative of the mean, in units of the response, for a normal predictor."""

    def shift(self, cap: int) -> float:
        """Where on the line of predictors the series has its origin."""
        return 0.0

    def steepest(self, cap: int) -> float:
        """The predictor at which the mean rises most."""
        return 0.0

    def turned(self, part: Vector) -> Matrix:
        """exp(i o_k t): cosines, then sines."""
        angle = part[:, None] * self.frequencies
        return np.concatenate([np.cos(angle), np.sin(angle)], axis=1)

    def last(self, part: Vector, terms: Terms) -> Matrix:
        """Whose products with the others' joint cosines and sines add up to Re sum c_k exp(i o_k (t + s))."""
        cosine, sine = np.split(self.turned(part), 2, axis=1)
        real, imaginary = terms.real, terms.imag
        return np.concatenate([real * cosine - imaginary * sine, -(real * sine + imaginary * cosine)], axis=1)

    @cached_property
    def amplitudes(self) -> float:
        """At least the sum of |c_k|."""
        return 2 / math.pi * math.fsum(1 / k for k in range(1, 2 * len(self.frequencies), 2))


class LogisticMean(BoundedMean):
    family = "binomial"
    step = math.sqrt(0.5)
    at_random = False
    reach = REACH
    longest = math.inf
    left_out = TOLERANCE / 2
    caps = (1,)
    frequencies = SERIES.frequencies

    def mean(self, cap: int) -> Terms:
        return np.asarray(-1j * SERIES.amplitudes, dtype=np.complex128)

    def slope(self, cap: int) -> Terms:
        return np.asarray(SERIES.amplitudes * SERIES.frequencies, dtype=np.complex128)

    def largest_slope(self, others: float, last: float) -> float:
        """All coefficients are positive and add up to 1/4 at most."""
        return float(others * (0.25 + last) * (1 + 1e-12))

    def start(self, mean: float, variance: float) -> float:
        return math.log(mean / (1 - mean)) * math.sqrt(1 + math.pi / 8 * variance)

    def mean_slope(self, centre: float, variance: float, cap: int) -> float:
        """The mean of mu is about mu(k b), b the mean of the predictor and 1 / k^2 = 1 + pi / 8 times its variance."""
        narrower = 1 / math.sqrt(1 + math.pi / 8 * variance)
        event = float(expit(narrower * centre))
        return max(narrower * event * (1 - event), 1e-4)


class CountMean(BoundedMean):
    """Of counts up to `largest`."""

    family = "poisson"
    step = math.sqrt(2.0)
    at_random = True
    reach = COUNT_REACH
    longest = 2.0
    left_out = COUNT_TOLERANCE

    def __init__(self, largest: int) -> None:
        self.caps = (*(edge for edge in edges(largest) if 0 < edge < largest), largest)
        self._all = {cap: _coefficients(cap) for cap in self.caps}
        frequency: Vector = np.arange(1, POINTS // 2, 2, dtype=np.float64) * (math.pi / HALF_PERIOD)
        beyond = np.max([_left_out(terms / frequency) for terms, _ in self._all.values()], axis=0)
        count = 1 + int(np.argmax(beyond < COUNT_TOLERANCE))
        self.frequencies = frequency[:count]
        self._slopes = max(float(np.abs(terms[:count]).sum()) for terms, _ in self._all.values())
        self._slope_left_out = max(float(_left_out(terms)[count - 1]) for terms, _ in self._all.values())
        self._square_left_out = max(float(_left_out(terms / frequency)[count - 1]) for _, terms in self._all.values())

    def shift(self, cap: int) -> float:
        return math.log(cap)

    def steepest(self, cap: int) -> float:
        """Where mu P(Y < c), which rises and then falls, does neither."""
        return math.log(cap) + float(NEAR_EDGE[np.argmax(density(NEAR_EDGE, cap))])

    def slope(self, cap: int) -> Terms:
        return self._all[cap][0][: len(self.frequencies)]

    def mean(self, cap: int) -> Terms:
        return self.slope(cap) / (1j * self.frequencies)

    def square(self, cap: int) -> Terms:
        """q_k."""
        return self._all[cap][1][: len(self.frequencies)] / (1j * self.frequencies)

    @cached_property
    def peak(self) -> float:
        """The largest F' of any cap."""
        largest = max(float(density(NEAR_EDGE, cap).max()) for cap in self.caps)
        return largest + 4e-3  # between two points of the grid: |F''| <= 1 + sqrt(c) < 10

    def largest_slope(self, others: float, last: float) -> float:
        return (self.peak + self._slope_left_out + self._slopes * (others - 1) + last * others) * (1 + 1e-12)

    def largest_variation(self, others: float, last: float, finest: float) -> float:
        """|y^2 - 2 y F + F^2| on shares, of y in [0, 1]: at most 1 by the whole series; what is left out and rounded of
        2 c_k + q_k; and a step of the response holder's."""
        left_out = 2 * self.left_out + self._square_left_out
        return (1 + left_out + 3 * self.amplitudes * (others - 1) + last * others + finest) * (1 + 1e-12)

    def start(self, mean: float, variance: float) -> float:
        return math.log(max(mean, 1e-6)) - variance / 2

    def mean_slope(self, centre: float, variance: float, cap: int) -> float:
        points = np.clip(centre + math.sqrt(variance) * NODES - math.log(cap), -REACH, REACH)
        return max(float(cap * density(points, cap) @ WEIGHTS / WEIGHTS.sum()), 1e-3 * cap)


@lru_cache(maxsize=16)
def bounded_mean(family: Family, largest: int) -> BoundedMean:
    """`largest` is that of the declared response."""
    return LOGISTIC if family == "binomial" else CountMean(min(max(largest, 1), LARGEST_CAP))


def edges(largest: int) -> list[int]:
    """0, 1, ..., 8, and from there on four to a doubling."""
    starts = [value for value in range(9) if value <= largest]
    value, step = 8, 2
    while value + step <= largest:
        for _ in range(4):
            value += step
            starts += [value] if value <= largest else []
        step *= 2
    return starts


def density(point: Vector, cap: int) -> Vector:
    """F' at log c + point: mu P(Y < c) / c."""
    ratio = np.exp(point)
    return np.asarray(ratio * gammaincc(cap, cap * ratio))


def distribution(point: Vector, cap: int) -> Vector:
    """F at log c + point: (mu P(Y < c - 1) + c P(Y >= c)) / c."""
    ratio = np.exp(point)
    below = gammaincc(cap - 1, cap * ratio) if cap > 1 else 0.0
    return np.asarray(ratio * below + gammainc(cap, cap * ratio))


@lru_cache(maxsize=64)
def _coefficients(cap: int) -> tuple[Terms, Terms]:
    """2 f^(o_k) / L of all odd k, of F and of F^2: by a discrete transform of one period, 2 L, of the copies of their
    densities."""
    grid: Vector = np.arange(POINTS, dtype=np.float64) * (2 * HALF_PERIOD / POINTS)
    first, second = np.zeros(POINTS), np.zeros(POINTS)
    for copy in range(5):
        point = np.asarray(grid - copy * HALF_PERIOD)
        signed = (-1) ** copy * density(point, cap)
        first += signed
        second += 2 * signed * distribution(point, cap)
    return tuple(2 * np.fft.fft(each)[1 : POINTS // 2 : 2] / POINTS for each in (first, second))  # type: ignore[return-value]


def _left_out(terms: Terms) -> Vector:
    """The sum of |terms| after each."""
    size = np.abs(terms)
    return np.asarray(np.cumsum(size[::-1])[::-1] - size)


LOGISTIC = LogisticMean()
