"""Exact integer noise (the discrete Laplace and the discrete Gaussian), and randomized response.

Noise that protects people is drawn by opendp: the exact samplers of Canonne, Kamath and Steinke (2020) on big
rationals, fed by OpenSSL's generator, which the operating system seeds. The `scale` that you pass is a double; opendp
converts it to a rational without rounding, so the distribution is exactly the one named here. A scale that you
*compute* (sensitivity / epsilon, say) is rounded by your division: round it up.

With a simulated source the same distributions are drawn from its words in floating point. That repeats a
simulation; it protects nobody.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from decimal import ROUND_FLOOR, Context, Decimal
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from colonnade.errors import BadPrivacyParameter, DomainError
from colonnade.privacy.randomness import Randomness

# Below the smallest scale a draw other than 0 has a chance under e^-1000000, so there is no noise. At the largest, a
# draw reaches 2^62 with a chance under e^-128 (Laplace; less for the Gaussian): values up to 2^62 can be added in
# 64 bits, and opendp's saturation at 2^63 never shows.
SMALLEST_SCALE = 2.0**-20
LARGEST_SCALE = 2.0**55
_LARGEST_DRAW = 2**62


def discrete_laplace(randomness: Randomness, scale: float, size: int) -> NDArray[np.int64]:
    """`size` draws with P(x) proportional to exp(-|x| / scale) on the integers.

    On integer values of L1 sensitivity d it is (d / scale)-DP.
    """
    _check(scale, size)
    if randomness.simulated:
        return _simulated_laplace(randomness, scale, size)
    return _draw(_opendp_laplace(float(scale)), size)


def discrete_gaussian(randomness: Randomness, sigma: float, size: int) -> NDArray[np.int64]:
    """`size` draws with P(x) proportional to exp(-x^2 / (2 sigma^2)) on the integers.

    On integer values of L2 sensitivity d it is d^2 / (2 sigma^2)-zCDP. Its variance is at most sigma^2.
    """
    _check(sigma, size)
    if randomness.simulated:
        return _simulated_gaussian(randomness, sigma, size)
    return _draw(_opendp_gaussian(float(sigma)), size)


def _check(scale: float, size: int) -> None:
    if not SMALLEST_SCALE <= scale <= LARGEST_SCALE:
        raise BadPrivacyParameter(
            f"the noise scale must lie in [2^-20, 2^55], not {scale!r}; measure the values in coarser or finer units."
        )
    if size < 0:
        raise BadPrivacyParameter(f"the number of draws must be at least 0, not {size!r}.")


# --- noise that protects people --------------------------------------------------------------------------


@lru_cache(maxsize=128)
def _opendp_laplace(scale: float) -> Callable[[list[int]], list[int]]:
    measurements, space = _opendp("l1_distance")
    measurement: Callable[[list[int]], list[int]] = measurements.make_laplace(*space, scale=scale)
    return measurement


@lru_cache(maxsize=128)
def _opendp_gaussian(sigma: float) -> Callable[[list[int]], list[int]]:
    measurements, space = _opendp("l2_distance")
    measurement: Callable[[list[int]], list[int]] = measurements.make_gaussian(*space, scale=sigma)
    return measurement


def _opendp(metric: str) -> tuple[Any, tuple[Any, Any]]:
    # Its submodules, when first needed: opendp.prelude takes seconds to import.
    from opendp import domains, measurements, metrics, mod

    mod.enable_features("contrib")
    return measurements, (domains.vector_domain(domains.atom_domain(T="i64")), getattr(metrics, metric)(T="i64"))


def _draw(measurement: Callable[[list[int]], list[int]], size: int) -> NDArray[np.int64]:
    drawn = np.array(measurement([0] * size) if size else [], dtype=np.int64)
    if size and int(np.abs(drawn).max()) >= _LARGEST_DRAW:
        raise BadPrivacyParameter("a noise draw does not fit into 62 bits; choose a smaller scale.")
    return drawn


# --- simulation ------------------------------------------------------------------------------------------


def _uniform(randomness: Randomness, size: int) -> NDArray[np.float64]:
    """Doubles in the open interval (0, 1)."""
    return ((randomness.words(size) >> np.uint64(11)).astype(np.float64) + 0.5) * 2.0**-53


def _simulated_laplace(randomness: Randomness, scale: float, size: int) -> NDArray[np.int64]:
    """The difference of two geometrics; floor(scale * E) with E exponential is one: P(at least k) = e^(-k / scale)."""
    first, second = np.floor(-scale * np.log(_uniform(randomness, 2 * size))).astype(np.int64).reshape(2, size)
    return np.asarray(first - second)


def _simulated_gaussian(randomness: Randomness, sigma: float, size: int) -> NDArray[np.int64]:
    """Rejection from the discrete Laplace of scale t = floor(sigma) + 1 (Canonne, Kamath, Steinke 2020, Algorithm 3).

    exp(-x^2 / 2 sigma^2) = exp(-|x| / t) exp(-(|x| - sigma^2 / t)^2 / 2 sigma^2) times a constant.
    """
    drawn = np.empty(size, dtype=np.int64)
    open_places = np.arange(size)
    t = math.floor(sigma) + 1.0
    while open_places.size:
        candidate = _simulated_laplace(randomness, t, open_places.size)
        distance = (np.abs(candidate) - sigma**2 / t) / sigma
        accepted = _uniform(randomness, open_places.size) < np.exp(-(distance**2) / 2)
        drawn[open_places[accepted]] = candidate[accepted]
        open_places = open_places[~accepted]
    return drawn


# --- randomized response: a true answer is kept with a known chance, or another one is given instead ------
#
# All decisions are made with integers. An answer of k possible ones is kept if a uniform 64-bit word lies below
# T = floor(2^64 e^epsilon / (e^epsilon + k - 1)), and is otherwise one of the k - 1 others, exactly uniformly. T is
# rounded down, so the odds T (k - 1) / (2^64 - T) of the mechanism that really runs are never above e^epsilon.
# The words that are drawn do not depend on the answers, nor does the order of the operations.


WORDS = 2**64
# Within these limits the kept answer stays the most likely one after rounding: e^epsilon / (e^epsilon + k - 1) is above
# 1 / k by about epsilon / k > 2^-64. Above 700 the exponent would be of no use to anyone.
SMALLEST_EPSILON, LARGEST_EPSILON = 1e-9, 700.0
MOST_CATEGORIES = 2**20


@lru_cache(maxsize=1024)
def keep_threshold(epsilon: float, categories: int = 2) -> int:
    """T: of the 2^64 words, how many keep the answer."""
    if not SMALLEST_EPSILON <= epsilon <= LARGEST_EPSILON:
        raise BadPrivacyParameter(f"epsilon must lie in [1e-9, 700] for randomized response, not {epsilon!r}.")
    if not 2 <= categories <= MOST_CATEGORIES:
        raise BadPrivacyParameter(f"categories must lie in [2, 2^20], not {categories!r}; group the rare ones.")
    context = Context(prec=400)
    odds = context.exp(Decimal(epsilon))
    keep = context.divide(context.multiply(odds, Decimal(WORDS)), context.add(odds, Decimal(categories - 1)))
    # 400 digits leave an error far below 1e-300; subtracting that much makes the floor safe.
    below = context.subtract(keep, Decimal("1e-300"))
    return int(below.to_integral_value(rounding=ROUND_FLOOR, context=context))


def generalized_randomized_response(
    codes: ArrayLike, *, categories: int, epsilon: float, randomness: Randomness
) -> NDArray[np.int64]:
    """Each code in 0 ... categories - 1, kept or else another one: epsilon-DP for each code, `replace`.

    Codes outside are clipped, never refused: an error would tell about the data.
    """
    given = np.asarray(codes)
    if given.dtype.kind not in "biu":
        raise DomainError(f"randomized response needs integer codes, not {given.dtype}; encode the column first.")
    threshold = keep_threshold(float(epsilon), int(categories))
    true = np.clip(given.astype(np.int64), 0, categories - 1)
    keep = randomness.words(true.size).reshape(true.shape) < np.uint64(threshold)
    # The others in order, the true one left out: uniform in 0 ... k - 2, moved up by one from the true code on.
    other = randomness.below(categories - 1, true.size).reshape(true.shape)
    other += other >= true
    return np.where(keep, true, other)
