"""All pairwise comparisons of one column, randomized: exact, bit-packed, and nothing quadratic is stored.

64 comparisons share a machine word. A flip of chance theta is the event that a uniform 64-bit number lies below a
whole threshold; its bits are compared from the most significant one on, for all 64 comparisons at once. Sums over
rows count bits; sums over columns are bit-sliced binary counters. The flips do not depend on the data but for ties.
"""

from __future__ import annotations

from typing import Any

import numba
import numpy as np
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from numpy.typing import NDArray

from colonnade.privacy.randomness import Randomness, _Words

Integers = NDArray[np.int64]

# One row of a block: 32 words are 2048 comparisons at a time; eight bits of each decide all but 1 in 256 of them.
_LANES, _LEVELS = 32, 8
_BUFFER = 1 << 17  # random words drawn at once, at most: a megabyte


class Expanded(_Words):
    """A stream keyed by 32 bytes of a source: AES-256 in counter mode."""

    def __init__(self, source: Randomness) -> None:
        self.simulated = source.simulated
        self._stream = Cipher(algorithms.AES(source.bytes(32)), modes.CTR(bytes(16))).encryptor()

    def bytes(self, count: int) -> bytes:
        return self._stream.update(bytes(count))

    def fill(self, zeros: bytearray, out: bytearray) -> None:
        self._stream.update_into(zeros, out)


def flips(tie_end: Integers, threshold: int, stream: Expanded) -> tuple[Integers, Integers]:
    """The row and column sums of the flips above the diagonal, for records in sorted order.

    Pair (a, b), a < b, is flipped if a uniform 64-bit number lies below `threshold`, or, within a tie (b < tie_end[a]),
    by a fair coin. Nothing quadratic is stored: a block of columns keeps bit-sliced counters.
    """
    n = tie_end.size
    rows, columns = np.zeros(n, dtype=np.int64), np.zeros(n, dtype=np.int64)
    size = min(_BUFFER, (64 + (_LEVELS + 4) * n) * _LANES)
    zeros, raw = bytearray(8 * size), bytearray(8 * size + 16)
    bits = np.frombuffer(raw, dtype=np.uint64, count=size)
    for base in range(0, n, 64 * _LANES):
        width = min(64 * _LANES, n - base)
        sums = np.zeros((2, n.bit_length() + 1, _LANES), dtype=np.uint64)
        row = 0
        while row < base + width:
            stream.fill(zeros, raw)
            row = _flip_rows(bits, np.uint64(threshold), tie_end, base, width, row, rows, sums)
        _add_columns(sums, base + width, columns[base : base + width])
    return rows, columns


@numba.njit(inline="always")
def _ones(x: Any) -> Any:
    """The number of set bits; the compiler knows this form."""
    x = x - ((x >> np.uint64(1)) & np.uint64(0x5555555555555555))
    x = (x & np.uint64(0x3333333333333333)) + ((x >> np.uint64(2)) & np.uint64(0x3333333333333333))
    x = (x + (x >> np.uint64(4))) & np.uint64(0x0F0F0F0F0F0F0F0F)
    return np.int64((x * np.uint64(0x0101010101010101)) >> np.uint64(56))


@numba.njit(inline="always")
def _before(limit: Any, lane: Any) -> Any:
    """The bits of a lane that stand for columns of the block before `limit`."""
    left = limit - 64 * lane
    if left <= 0:
        return np.uint64(0)
    if left >= 64:
        return ~np.uint64(0)
    return (np.uint64(1) << np.uint64(left)) - np.uint64(1)


@numba.njit(cache=True)
def _flip_rows(
    bits: Any, threshold: Any, tie_end: Any, base: int, width: int, row: int, rows: Any, sums: Any
) -> int:  # pragma: no cover - compiled
    """Rows from `row` on, until the block or the random words end; the next row.

    u < threshold is decided for 64 comparisons at once, from the most significant bit on. With r the inverted bits of
    u, from the last level to the first: less = r | less where the threshold's bit is 1, r & less where it is 0.
    The comparisons whose first bits all equal the threshold's go on with further words, one lane at a time; a row
    starts only if the words are enough for the worst case, so no decision depends on where a buffer ends.
    Column sums: sums[0] are settled bits of weight 2^k, sums[1] one addend that waits for its partner.
    """
    less, undecided = np.empty(_LANES, np.uint64), np.empty(_LANES, np.uint64)
    at = 0
    while row < base + width and at + 64 * _LANES <= bits.size:
        less[:] = np.uint64(0)
        undecided[:] = ~np.uint64(0)
        for level in range(_LEVELS - 1, -1, -1):
            drawn = bits[at + level * _LANES : at + (level + 1) * _LANES]
            if (threshold >> np.uint64(63 - level)) & np.uint64(1):
                for lane in range(_LANES):
                    less[lane] |= drawn[lane]
                    undecided[lane] &= ~drawn[lane]
            else:
                for lane in range(_LANES):
                    less[lane] &= drawn[lane]
                    undecided[lane] &= drawn[lane]
        coins = bits[at : at + _LANES]
        at += _LEVELS * _LANES
        for lane in range(_LANES):
            still = undecided[lane]
            level = _LEVELS
            while still and level < 64:
                if (threshold >> np.uint64(63 - level)) & np.uint64(1):
                    less[lane] |= still & bits[at]
                    still &= ~bits[at]
                else:
                    still &= bits[at]
                at += 1
                level += 1
        if row >= base or tie_end[row] > base or width < 64 * _LANES:
            for lane in range(_LANES):
                tied = _before(tie_end[row] - base, lane)
                pairs = _before(width, lane) & ~_before(row + 1 - base, lane)
                less[lane] = ((less[lane] & ~tied) | (coins[lane] & tied)) & pairs
        total = 0
        for lane in range(_LANES):
            total += _ones(less[lane])
        rows[row] += total
        # As in a binary counter, the addend of row r meets a waiting one at each low bit of r that is set.
        weight = 0
        while (row >> weight) & 1:
            settled, waiting = sums[0, weight], sums[1, weight]
            for lane in range(_LANES):
                x, y, z = settled[lane], waiting[lane], less[lane]
                settled[lane] = x ^ y ^ z
                less[lane] = (x & y) | (z & (x ^ y))
            weight += 1
        sums[1, weight, :] = less
        row += 1
    return row


@numba.njit(cache=True)
def _add_columns(sums: Any, count: int, columns: Any) -> None:  # pragma: no cover - compiled
    """Add the bit-sliced sums of `count` rows; an addend waits at each set bit of `count`."""
    for weight in range(sums.shape[1]):
        waits = (count >> weight) & 1
        for i in range(columns.size):
            lane, bit = i // 64, np.uint64(i % 64)
            columns[i] += np.int64((sums[0, weight, lane] >> bit) & np.uint64(1)) << weight
            if waits:
                columns[i] += np.int64((sums[1, weight, lane] >> bit) & np.uint64(1)) << weight
