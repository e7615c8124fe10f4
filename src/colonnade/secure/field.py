"""Exact arithmetic on integers, modulo several primes below 2^21 at once.

An array of shape s becomes residues of shape (L, *s): one layer for each of the L primes, int32, each in
[0, p). Adding, multiplying and sharing work layer by layer; `decode` joins the layers by the Chinese
remainder theorem into integers of either sign.

Matrix products go through BLAS. A centred residue r has |r| <= (p - 1) / 2 < 2^20, so a product is below 2^40
and a sum of 4096 products below 2^52: float64 holds every partial sum exactly, in whatever order BLAS adds.
After each batch of rows the sum is reduced modulo p, which keeps it exact for any number of rows.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from typing import Any, NamedTuple

import numba
import numpy as np
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from numpy.typing import ArrayLike, NDArray

from colonnade.errors import ModulusTooSmall, SecureError
from colonnade.privacy.randomness import Randomness

Residues = NDArray[np.int32]

#: Rows in one BLAS call: 4096 * 2^40 = 2^52, one bit below what float64 holds exactly.
BATCH_ROWS = 4096
#: Columns of a Gram matrix that are computed at a time.
TILE = 1024
#: Words of a stream at a time: they stay in the nearest cache.
_WORDS = 1 << 12
_ZEROS = bytes(8 * _WORDS)
_GROUP = 64


# --- the public primes, and how many of them a job needs ---------------------------------------------------
#
# An integer v with |v| <= (M - 1) / 2 is represented by its residues modulo several primes whose product
# is M (a residue number system). All primes lie just below 2^21: a centred residue is at most 2^20 in size,
# so float64 adds 4096 products of two of them without rounding.

PRIME_BITS = 21

#: The 16 largest primes below 2^21, largest first. Public and fixed: every holder uses the same prefix.
PRIMES: tuple[int, ...] = (
    *(2097143, 2097133, 2097131, 2097097, 2097091, 2097083, 2097047, 2097041),
    *(2097031, 2097023, 2097013, 2096993, 2096987, 2096971, 2096959, 2096957),
)


def primes_for(bits: int) -> tuple[int, ...]:
    """The fewest primes that represent every integer of size at most 2^bits, of either sign.

    M is odd, so M > 2^(bits + 1) gives (M - 1) / 2 >= 2^bits.
    """
    if bits < 0:
        raise SecureError(f"bits must be at least 0, not {bits}; give the bit length of the largest result.")
    for count in range(1, len(PRIMES) + 1):
        if math.prod(PRIMES[:count]) > 2 ** (bits + 1):
            return PRIMES[:count]
    raise ModulusTooSmall(
        f"the result needs {bits} bits and a sign, and the {len(PRIMES)} public primes hold "
        f"{math.prod(PRIMES).bit_length() - 2}: use a coarser quantisation or a polynomial of lower degree."
    )


@cache
def is_prime(number: int) -> bool:
    """Trial division: enough for numbers below 2^21."""
    return number >= 2 and all(number % divisor for divisor in range(2, math.isqrt(number) + 1))


@cache
def mixed_radix_inverses(primes: tuple[int, ...]) -> tuple[tuple[int, ...], ...]:
    """Row k: the inverses of p_0, ..., p_(k-1) modulo p_k, for Garner's form of the Chinese remainder theorem."""
    return tuple(tuple(pow(primes[j], -1, p) for j in range(k)) for k, p in enumerate(primes))


# --- arithmetic ---------------------------------------------------------------------------------------------


class Tile(NamedTuple):
    """One tile of a Gram matrix: residues[:, i, j] is entry (rows.start + i, columns.start + j)."""

    rows: slice
    columns: slice
    residues: Residues


@dataclass(frozen=True)
class Field:
    """Integers modulo the product of `primes` (from `primes_for`), as arrays of residues."""

    primes: tuple[int, ...]

    def __post_init__(self) -> None:
        distinct = len(set(self.primes)) == len(self.primes)
        if not self.primes or not distinct or any(not 2 < p < 1 << PRIME_BITS or not is_prime(p) for p in self.primes):
            raise SecureError(f"{self.primes} are not distinct odd primes below 2^{PRIME_BITS}: take primes_for(bits).")

    @cached_property
    def modulus(self) -> int:
        return math.prod(self.primes)

    @property
    def bound(self) -> int:
        """The largest size that is represented; both signs are."""
        return (self.modulus - 1) // 2

    # --- integers in and out ------------------------------------------------------------------------

    def encode(self, values: ArrayLike) -> Residues:
        """The residues of integers of either sign (an integer array, or Python ints of any size)."""
        array = np.asarray(values)
        if array.dtype == np.uint64:
            array = array.astype(object)
        wide = array.dtype == object
        if array.size == 0:
            return self.zeros(array.shape)
        if not (np.issubdtype(array.dtype, np.integer) or (wide and all(isinstance(v, int) for v in array.flat))):
            raise SecureError(f"the field holds integers, not {array.dtype}: quantise the values first.")
        low, high = int(array.min()), int(array.max())
        if max(-low, high) > self.bound:
            raise ModulusTooSmall(
                f"a value is larger than {self.bound.bit_length()} bits and a sign: take primes_for its bit length."
            )
        flat = np.ascontiguousarray(array if wide else array.astype(np.int64, copy=False)).reshape(-1)
        out = np.empty((len(self.primes), array.size), dtype=np.int32)
        for p, layer in zip(self.primes, out, strict=True):
            if wide:
                layer[:] = flat % p
            else:
                _residues(flat, p, layer)
        return out.reshape(len(self.primes), *array.shape)

    def decode(self, residues: Residues) -> NDArray[Any]:
        """The integers, centred on 0: int64 if the modulus is below 2^63, otherwise Python ints."""
        self.check(residues)
        digits = self._mixed_radix(residues)
        shape = residues.shape[1:]
        if self.modulus < 1 << 63:
            small: NDArray[np.int64] = _join(digits, np.array(self.primes, dtype=np.int64))
            small[small > self.bound] -= self.modulus
            return small.reshape(shape)
        total = np.zeros(digits.shape[1], dtype=object)
        weight = 1
        for start in range(0, len(self.primes), 3):  # three digits fit an int64: the fewest operations on Python ints
            group = self.primes[start : start + 3]
            joined = _join(digits[start : start + 3], np.array(group, dtype=np.int64)).astype(object)
            total = total + joined * weight
            weight *= math.prod(group)
        return np.where(total > self.bound, total - self.modulus, total).reshape(shape)

    def _mixed_radix(self, residues: Residues) -> NDArray[np.int64]:
        """Garner: v = d_0 + d_1 p_0 + d_2 p_0 p_1 + ..., each digit in [0, p_k)."""
        flat = residues.reshape(len(self.primes), -1).astype(np.int64)
        for k, (p, inverses) in enumerate(zip(self.primes, mixed_radix_inverses(self.primes), strict=True)):
            for j, inverse in enumerate(inverses):
                flat[k] = (flat[k] - flat[j]) % p * inverse % p
        return flat

    def zeros(self, shape: tuple[int, ...]) -> Residues:
        return np.zeros((len(self.primes), *shape), dtype=np.int32)

    def check(self, residues: Residues) -> None:
        """Refuse an array that is not residues of this field: one from elsewhere would make sums inexact."""
        if residues.dtype != np.int32 or residues.ndim < 1 or residues.shape[0] != len(self.primes):
            raise SecureError(
                f"expected int32 residues with {len(self.primes)} layers, not {residues.dtype} {residues.shape}: "
                "both sides must use the same primes."
            )
        for p, layer in zip(self.primes, residues, strict=True):
            if layer.size and (int(layer.min()) < 0 or int(layer.max()) >= p):
                raise _out_of_range(p)

    # --- uniform elements --------------------------------------------------------------------------------

    def uniform(self, shape: tuple[int, ...], randomness: Randomness) -> Residues:
        """Exactly uniform residues, each layer on its own."""
        out = np.empty((len(self.primes), math.prod(shape)), dtype=np.int32)
        for p, layer in zip(self.primes, out, strict=True):
            fill_uniform(layer, p, randomness)
        return out.reshape(len(self.primes), *shape)

    # --- element by element ------------------------------------------------------------------------------

    def add(self, a: Residues, b: Residues) -> Residues:
        self._aligned(a, b)
        total = a.view(np.uint32) + b.view(np.uint32)
        # unsigned: total - p wraps to a huge number exactly when total < p
        return np.minimum(total, total - self._layers(total.ndim).view(np.uint32)).view(np.int32)

    def sub(self, a: Residues, b: Residues) -> Residues:
        self._aligned(a, b)
        difference = a.view(np.uint32) - b.view(np.uint32)
        return np.minimum(difference, difference + self._layers(difference.ndim).view(np.uint32)).view(np.int32)

    def neg(self, a: Residues) -> Residues:
        return self.sub(np.zeros_like(a), a)

    def mul(self, a: Residues, b: Residues) -> Residues:
        self._aligned(a, b)
        product: Residues = _multiply(a, b, self._layers(a.ndim))
        return product

    def scale(self, a: Residues, factor: int) -> Residues:
        """`factor` is a public integer of any size and sign."""
        constants = np.array([factor % p for p in self.primes], dtype=np.int32)
        return self.mul(a, constants.reshape(-1, *[1] * (a.ndim - 1)))

    def sum(self, a: Residues, *, axis: int = 0) -> Residues:
        """The sum along an axis of the values (0: over records)."""
        return self.reduced(a.sum(axis=axis + 1, dtype=np.int64))

    def reduced(self, integers: NDArray[np.int64]) -> Residues:
        """Of integers (primes, ...), each of its own prime."""
        return np.asarray(integers % self._layers(integers.ndim)).astype(np.int32)

    def _aligned(self, a: Residues, b: Residues) -> None:
        if a.ndim != b.ndim or a.shape[0] != len(self.primes) or b.shape[0] != len(self.primes):
            raise SecureError(f"residues {a.shape} and {b.shape} do not line up with {len(self.primes)} primes.")

    def _layers(self, ndim: int) -> Residues:
        return _prime_layers(self.primes, ndim)

    # --- matrices ----------------------------------------------------------------------------------------

    def matmul(self, a: Residues, b: Residues) -> Residues:
        """A B, for residues (L, r, k) and (L, k, c), or (L, k) for a vector; pass `transpose(a)` for A^T B."""
        if b.ndim == 2:
            return self.matmul(a, b[..., None])[..., 0]
        if a.ndim != 3 or b.ndim != 3 or a.shape[0] != b.shape[0] or a.shape[2] != b.shape[1]:
            raise SecureError(f"cannot multiply residues {a.shape} by {b.shape}: the inner sizes must agree.")
        out = np.empty((len(self.primes), a.shape[1], b.shape[2]), dtype=np.int32)
        for p, left, right, target in zip(self.primes, a, b, out, strict=True):
            _contract(left.T, right, p, target)
        return out

    def segments(self, a: Residues, b: Residues, cuts: NDArray[np.intp]) -> Residues:
        """A^T B within each run of records: (L, S, r, c) for residues (L, k, r), (L, k, c) and S + 1 increasing `cuts`.

        For many short runs, of at most `BATCH_ROWS` records each: one call for all of them."""
        if a.shape[:2] != b.shape[:2] or (np.diff(cuts) > BATCH_ROWS).any() or cuts[0] < 0 or cuts[-1] > a.shape[1]:
            raise SecureError(f"cannot multiply residues {a.shape} by {b.shape} within runs of records.")
        out = np.empty((len(self.primes), len(cuts) - 1, a.shape[2], b.shape[2]), dtype=np.int32)
        space = np.empty(a.shape[1] * a.shape[2]), np.empty(0 if b is a else b.shape[1] * b.shape[2])
        for p, left, right, target in zip(self.primes, a, b, out, strict=True):
            first = np.ascontiguousarray(_centred(left, p, space[0]))
            second = first if b is a else np.ascontiguousarray(_centred(right, p, space[1]))
            _segments(first, second, cuts, p, target)
        return out

    def gram(self, a: Residues, *, tile: int = TILE) -> Residues:
        """A^T A for residues (L, n, d). Beside the result, memory is that of tiles `tile` columns wide."""
        width = a.shape[-1]
        out = np.empty((len(self.primes), width, width), dtype=np.int32)
        for rows, columns, residues in self.gram_tiles(a, tile=tile):
            out[:, rows, columns] = residues
            if rows != columns:
                out[:, columns, rows] = residues.transpose(0, 2, 1)
        return out

    def gram_of(self, parts: Sequence[Residues]) -> Residues:
        """A^T A of at most `BATCH_ROWS` records whose columns come in parts (L, n, d). Unless they are very many, these
        are not put side by side as residues first: all layers together are more than a core keeps near."""
        records, width = parts[0].shape[1], sum(part.shape[2] for part in parts)
        if records > BATCH_ROWS or any(part.shape[:2] != (len(self.primes), records) for part in parts):
            raise SecureError(f"cannot put residues {[part.shape for part in parts]} side by side.")
        if width > TILE:
            return self.gram(np.concatenate(parts, axis=2))
        out = np.empty((len(self.primes), width, width), dtype=np.int32)
        rows, product = np.empty((records, width)), np.empty((width, width))
        for k, (p, target) in enumerate(zip(self.primes, out, strict=True)):
            first = 0
            for part in parts:
                if not _centre(np.ascontiguousarray(part[k]), p, rows, first):
                    raise _out_of_range(p)
                first += part.shape[2]
            np.matmul(rows.T, rows, out=product)
            total = np.zeros(product.shape)
            _fold(product, p, total)
            _canonical(total, p, target)
        return out

    def gram_tiles(self, a: Residues, *, tile: int = TILE) -> Iterator[Tile]:
        """The tiles of A^T A on and above the diagonal, one at a time: for a result larger than memory."""
        if a.ndim != 3 or a.shape[0] != len(self.primes):
            raise SecureError(f"a Gram matrix needs residues (primes, records, columns), not {a.shape}.")
        width = a.shape[2]
        edges = [slice(start, min(start + tile, width)) for start in range(0, width, tile)]
        for i, rows in enumerate(edges):
            for columns in edges[i:]:
                out = np.empty((len(self.primes), rows.stop - rows.start, columns.stop - columns.start), np.int32)
                for p, layer, target in zip(self.primes, a, out, strict=True):
                    left = layer[:, rows]
                    _contract(left, left if columns == rows else layer[:, columns], p, target)
                yield Tile(rows, columns, out)


@cache
def _prime_layers(primes: tuple[int, ...], ndim: int) -> Residues:
    """The primes, to go with arrays of so many axes."""
    layers = np.array(primes, dtype=np.int32).reshape(-1, *[1] * (ndim - 1))
    layers.flags.writeable = False
    return layers


def transpose(a: Residues) -> Residues:
    """A^T, as a view."""
    return a.transpose(0, 2, 1)


def _out_of_range(p: int) -> SecureError:
    return SecureError(f"a residue modulo {p} is out of range: the sender used other primes, or the array is damaged.")


def _contract(left: Residues, right: Residues, p: int, out: Residues) -> None:
    """out = left^T right modulo p, for (k, r) and (k, c); with `right is left` BLAS computes one triangle only."""
    symmetric = right is left
    total = np.zeros(out.shape)
    product = np.empty(out.shape)
    rows = min(BATCH_ROWS, len(left))
    space = [np.empty(rows * left.shape[1]), np.empty(0 if symmetric else rows * right.shape[1])]
    for start in range(0, len(left), BATCH_ROWS):
        stop = min(start + BATCH_ROWS, len(left))
        a = _centred(left[start:stop], p, space[0])
        b = a if symmetric else _centred(right[start:stop], p, space[1])
        np.matmul(a.T, b, out=product)
        _fold(product, p, total)
    _canonical(total, p, out)


def _centred(block: Residues, p: int, space: NDArray[np.float64]) -> NDArray[np.float64]:
    """The block as centred float64 in `space`, in the block's own memory order."""
    if block.strides[0] < block.strides[1]:
        return _centred(block.T, p, space).T
    out = space[: block.size].reshape(block.shape)
    if not _centre(block, p, out, 0):
        raise _out_of_range(p)
    return out


def fill_uniform(out: Residues, p: int, randomness: Randomness) -> None:
    """Fill a flat array with exactly uniform residues modulo p: a stream under 32 fresh bytes from `randomness`."""
    keyed_uniform(out, p, key=randomness.bytes(32))


def keyed_uniform(out: Residues, p: int, *, key: bytes, start: bytes = bytes(16)) -> None:
    """Fill a flat array with residues modulo p that are uniform to anyone without the key.

    The key and the first counter block `start` give an AES-256 counter stream. Chunks of 21 bits are cut to the bit
    length of p and rejected from p on: for primes just below 2^21, one chunk in thousands.
    """
    stream = Cipher(algorithms.AES(key), modes.CTR(start)).encryptor()
    buffer = bytearray(8 * min(_WORDS, out.size // 3 + 64) + 15)
    words = np.frombuffer(buffer, dtype=np.uint64, count=len(buffer) // 8 - 1)
    zeros, filled = memoryview(_ZEROS)[: 8 * words.size], 0
    while filled < out.size:
        stream.update_into(zeros, buffer)
        filled = _accept(words, p, p.bit_length(), out, filled)


# --- kernels: every sum and product below is an integer that its type holds exactly -----------------------


@numba.njit(cache=True)
def _accept(words: Any, p: int, bits: int, out: Any, filled: int) -> int:
    """Three chunks a word. A group of words without a rejected chunk is written at once, by vector instructions."""
    mask = np.uint64((1 << bits) - 1)
    for start in range(0, words.size, _GROUP):
        group = words[start : start + _GROUP]
        if filled + 3 * _GROUP <= out.size and group.size == _GROUP:
            target, rejected = out[filled : filled + 3 * _GROUP], np.int64(0)
            for i in range(_GROUP):
                word = group[i]
                a, b, c = (
                    np.int32(word & mask),
                    np.int32((word >> np.uint64(21)) & mask),
                    np.int32((word >> np.uint64(42)) & mask),
                )
                rejected += (a >= p) | (b >= p) | (c >= p)
                target[3 * i], target[3 * i + 1], target[3 * i + 2] = a, b, c
            if not rejected:
                filled += 3 * _GROUP
                continue
        for i in range(group.size):
            for shift in (0, 21, 42):
                chunk = np.int64((group[i] >> np.uint64(shift)) & mask)
                if chunk < p:
                    if filled == out.size:
                        return filled
                    out[filled] = chunk
                    filled += 1
    return filled


@numba.njit(cache=True)
def _residues(values: Any, p: int, out: Any) -> None:
    for i in range(values.size):
        v = values[i]
        if -p < v < p:  # nearly all quantised data: no division
            out[i] = v + p if v < 0 else v
        else:
            out[i] = v % p


@numba.njit(cache=True)
def _join(digits: Any, primes: Any) -> Any:
    """Mixed-radix digits to numbers; at most three digits, so below 2^63."""
    out = np.zeros(digits.shape[1], dtype=np.int64)
    for k in range(primes.size - 1, -1, -1):
        for i in range(out.size):
            out[i] = out[i] * primes[k] + digits[k, i]
    return out


@numba.vectorize(["int32(int32, int32, int32)"], cache=True)  # type: ignore[no-untyped-call]
def _multiply(a: int, b: int, p: int) -> int:
    # The product is below 2^42. Its quotient by p is below 2^21 and at least 1/p > 2^-21 short of the next whole
    # number unless it is one; float64 rounds it by at most 2^-33, so the floor is right.
    product = float(a) * float(b)
    return int(product - math.floor(product / p) * p)


@numba.njit(cache=True)
def _centre(block: Any, p: int, out: Any, first: int) -> bool:
    """Residues in [0, p) to float64 in [-(p-1)/2, (p-1)/2], from the column `first` on; False if one was out of
    range."""
    half, prime = float(p // 2), float(p)
    bad = False
    for i in range(block.shape[0]):
        target = out[i, first : first + block.shape[1]]
        for j in range(block.shape[1]):
            v = float(block[i, j])
            bad |= (v < 0.0) | (v >= prime)
            target[j] = v - prime if v > half else v
    return not bad


@numba.njit(cache=True)
def _fold(product: Any, p: int, total: Any) -> None:
    """total += product, reduced to about [-p/2, p/2]: the quotient may be off by one, the remainder stays exact."""
    inverse = 1.0 / p
    for i in range(product.shape[0]):
        for j in range(product.shape[1]):
            v = product[i, j]
            total[i, j] += v - np.rint(v * inverse) * p


@numba.njit(cache=True)
def _segments(left: Any, right: Any, cuts: Any, p: int, out: Any) -> None:
    """Products of at most 4096 records, reduced as in `_fold` and `_canonical`."""
    inverse, prime = 1.0 / p, float(p)
    for s in range(cuts.size - 1):
        product = np.dot(left[cuts[s] : cuts[s + 1]].T, right[cuts[s] : cuts[s + 1]])
        for i in range(product.shape[0]):
            for j in range(product.shape[1]):
                v = product[i, j]
                v -= np.rint(v * inverse) * p
                out[s, i, j] = v - math.floor(v / prime) * prime


@numba.njit(cache=True)
def _canonical(total: Any, p: int, out: Any) -> None:
    """Sums of fewer than 2^20 folded blocks to [0, p); the floor is right for the reason given in `_multiply`."""
    prime = float(p)
    for i in range(total.shape[0]):
        for j in range(total.shape[1]):
            v = total[i, j]
            out[i, j] = v - math.floor(v / prime) * prime
