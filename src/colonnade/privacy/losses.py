"""Privacy loss distributions of many releases, each any number of times, convolved in one Fourier transform.

dp-accounting makes the single distributions and reads epsilons and deltas off the result. Its own composition is by
pairs, and looks for the ends of every power with forty sums of exponentials: a calibration needs a dozen compositions,
and took seconds.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from scipy import fft

if TYPE_CHECKING:
    from dp_accounting.pld.privacy_loss_distribution import PrivacyLossDistribution

_TAIL = 1e-15  # the mass beyond the ends, as in dp-accounting; it counts as an infinite loss
_DOUBLINGS = 9


def composition(counted: Sequence[tuple[PrivacyLossDistribution, int]]) -> PrivacyLossDistribution:
    """The losses of all distributions together, each as often as it is counted; on one grid."""
    from dp_accounting.pld.privacy_loss_distribution import PrivacyLossDistribution as Losses

    parts: list[tuple[Any, int]] = list(counted)
    if len(parts) == 1 and parts[0][1] == 1:
        return parts[0][0]
    removed = _convolved([(losses._pmf_remove.to_dense_pmf(), count) for losses, count in parts])
    if all(losses._symmetric for losses, _ in parts):
        return Losses(removed)
    return Losses(removed, _convolved([(losses._pmf_add.to_dense_pmf(), count) for losses, count in parts]))


def _convolved(parts: Sequence[tuple[Any, int]]) -> Any:
    from dp_accounting.pld.pld_pmf import DensePLDPmf

    grid, pessimistic = {(pmf._discretization, pmf._pessimistic_estimate) for pmf, _ in parts}.pop()
    masses = [(np.asarray(pmf._probs, dtype=np.float64), count) for pmf, count in parts]
    first, last = _ends(masses)
    length = fft.next_fast_len(max(last - first + 1, *(mass.size for mass, _ in masses)), real=True)
    spectrum = np.ones(length // 2 + 1, dtype=np.complex128)
    for mass, count in masses:
        spectrum *= fft.rfft(mass, length) ** count
    # The transform is cyclic: what lies beyond the ends, at most _TAIL, is added inside.
    mass = np.roll(fft.irfft(spectrum, length), -first)[: last - first + 1]
    lowest = sum(count * pmf._lower_loss for pmf, count in parts) + first
    infinite = -math.expm1(sum(count * math.log1p(-pmf._infinity_mass) for pmf, count in parts)) + _TAIL
    return DensePLDPmf(grid, lowest, mass, infinite, pessimistic)


def _ends(masses: Sequence[tuple[np.ndarray, int]]) -> tuple[int, int]:
    """Between which sums of indices all but _TAIL of the mass lies, by Chernoff: for t > 0
    P(S >= s) <= exp(sum count log E e^(t i) - t s), and likewise below; t = 2^k / 4L, L the longest array."""
    longest = max(mass.size for mass, _ in masses)
    first, last = 0, sum(count * (mass.size - 1) for mass, count in masses)
    room = math.log(2 / _TAIL)
    for sign in (1, -1):
        growths = [np.exp(sign * np.arange(mass.size) / (4 * longest)) for mass, _ in masses]
        order = 1 / (4 * longest)
        for _ in range(_DOUBLINGS):
            cumulants = zip(masses, growths, strict=True)
            # Not `@`: threads that wait for each other on a busy machine made it three times the work.
            total = sum(count * math.log(np.einsum("i,i->", growth, mass)) for (mass, count), growth in cumulants)
            if sign > 0:
                last = min(last, math.ceil((total + room) / order))
            else:
                first = max(first, math.floor(-(total + room) / order))
            for growth in growths:
                growth *= growth
            order *= 2
    return first, max(first, last)
