"""Exact integer noise: the discrete Laplace and the discrete Gaussian.

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
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from colonnade.errors import BadPrivacyParameter
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
    made: Callable[[list[int]], list[int]] = measurements.make_laplace(*space, scale=scale)
    return made


@lru_cache(maxsize=128)
def _opendp_gaussian(sigma: float) -> Callable[[list[int]], list[int]]:
    measurements, space = _opendp("l2_distance")
    made: Callable[[list[int]], list[int]] = measurements.make_gaussian(*space, scale=sigma)
    return made


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
