"""Real rows as whole numbers whose size is certain: round at random, then clip **in integers**.

Stochastic rounding alone breaks the SQM paper's sensitivity: a row of norm c, scaled by gamma and rounded, can
reach gamma c + sqrt(columns). So the bound is enforced after rounding, on the integers themselves.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from colonnade.privacy.randomness import Randomness

_FRACTION_BITS = 53


def stochastic_round(values: NDArray[np.float64], randomness: Randomness) -> NDArray[np.int64]:
    """A whole number next to each value, its expectation the value (up to 2^-53)."""
    low = np.floor(values)
    threshold = np.floor((values - low) * 2.0**_FRACTION_BITS).astype(np.uint64)
    drawn = randomness.words(values.size).reshape(values.shape) >> np.uint64(64 - _FRACTION_BITS)
    return low.astype(np.int64) + (drawn < threshold)


def integer_bounds(gamma: int, clip: float, entry: float) -> tuple[int, int]:
    """(largest squared norm of a row, largest entry) in integers; never above the declared bounds."""
    return math.floor(gamma * gamma * clip * clip + 1e-9), math.floor(gamma * entry + 1e-9)


def quantize(
    rows: NDArray[np.float64], *, gamma: int, clip: float, entry: float, randomness: Randomness
) -> NDArray[np.int64]:
    """gamma * rows, rounded at random and clipped: every entry within gamma * entry, every row within gamma * clip."""
    square, largest = integer_bounds(gamma, clip, entry)
    out = np.clip(stochastic_round(rows * gamma, randomness), -largest, largest)
    for _ in range(3):
        norms = np.einsum("ij,ij->i", out, out)
        long = np.flatnonzero(norms > square)
        if not long.size:
            return out
        # Toward zero: each pass shortens a row; floating point may leave it one unit too long, the next pass does not.
        shrink = np.sqrt(square / norms[long])[:, None] * (1 - 1e-12)
        out[long] = np.trunc(out[long] * shrink).astype(np.int64)
    out[np.einsum("ij,ij->i", out, out) > square] = 0
    return out
