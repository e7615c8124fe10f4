"""Real rows as whole numbers whose size is certain: round at random, then clip **in integers**.

Stochastic rounding alone breaks the SQM paper's sensitivity: a row of norm c, scaled by gamma and rounded, can
reach gamma c + sqrt(columns). So the bound is enforced after rounding, on the integers themselves.
"""

from __future__ import annotations

import math
from typing import Any

import numba
import numpy as np
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from numpy.typing import NDArray

from colonnade.errors import ModulusTooSmall
from colonnade.privacy.randomness import Randomness

_PIECE = 1 << 16


def stochastic_round(values: NDArray[np.float64], randomness: Randomness) -> NDArray[np.int64]:
    """A whole number next to each value, its expectation the value (up to 2^-53).

    Rounding protects nobody: the bounds that the noise rests on are enforced after it. So a stream under one fresh
    key decides, which is faster than the operating system's generator.
    """
    stream = Cipher(algorithms.AES(randomness.bytes(32)), modes.CTR(bytes(16))).encryptor()
    out = np.empty(values.shape, dtype=np.int64)
    flat, target = np.ascontiguousarray(values).reshape(-1), out.reshape(-1)
    for start in range(0, flat.size, _PIECE):
        part = slice(start, min(start + _PIECE, flat.size))
        words = np.frombuffer(stream.update(bytes(8 * (part.stop - start))), dtype=np.uint64)
        _round(flat[part], words, target[part])
    return out


@numba.njit(cache=True)
def _round(values: Any, words: Any, out: Any) -> None:
    """Up with probability value - floor(value): a uniform number of 53 bits is below it."""
    for i in range(values.size):
        low = math.floor(values[i])
        drawn = np.float64(words[i] >> np.uint64(11)) * 2.0**-53
        out[i] = np.int64(low) + (drawn < values[i] - low)


def integer_bounds(gamma: int, clip: float, entry: float) -> tuple[int, int]:
    """(largest squared norm of a row, largest entry) in integers; never above the declared bounds."""
    return math.floor(gamma * gamma * clip * clip + 1e-9), math.floor(gamma * entry + 1e-9)


def check_row(width: int, largest: int) -> None:
    """Refuse rows whose squared norm may pass 63 bits: it would wrap, and too long a row would not be clipped."""
    if width * largest**2 >= 2**63:
        raise ModulusTooSmall(
            f"{width} features of size {largest} have a squared norm beyond 63 bits; take a smaller gamma."
        )


def quantize(
    rows: NDArray[np.float64], *, gamma: int, clip: float, entry: float, randomness: Randomness
) -> NDArray[np.int64]:
    """gamma * rows, rounded at random and clipped: every entry within gamma * entry, every row within gamma * clip."""
    square, largest = integer_bounds(gamma, clip, entry)
    check_row(rows.shape[1], largest)
    out = stochastic_round(rows * gamma, randomness)
    np.clip(out, -largest, largest, out=out)
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
