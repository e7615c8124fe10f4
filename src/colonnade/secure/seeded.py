"""Shamir sharings of large arrays in which most of what travels is a 32-byte seed.

A uniform polynomial of degree at most d with a given value at 0 is fixed by its values at any d of the holders'
points, and these values are uniform and independent of the secret. So the dealer draws them as streams of d seeds;
those d holders get their seed and expand it themselves. Only the other m - d holders need a whole share, which
follows by interpolation and is packed, three 21-bit residues in a word.

Everything works on blocks of records, so that neither dealer nor holder ever needs a whole array of residues.
The proof is in `claim.md`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple, Protocol

import numba
import numpy as np
from numpy.typing import NDArray

from colonnade.errors import ModulusTooSmall, SecureError, TooFewHolders
from colonnade.privacy.randomness import Randomness
from colonnade.secure.field import BATCH_ROWS, Field, Residues, keyed_uniform
from colonnade.secure.shamir import check_holders, lagrange_weights

SEED_BYTES = 32
_PIECE = 256

Words = NDArray[np.uint64]


@dataclass(frozen=True)
class Shape:
    """The public shape of what is shared: the first axis counts records, the rest is the width of a record."""

    lengths: tuple[int, ...]

    def __post_init__(self) -> None:
        valid = all(isinstance(length, int) and not isinstance(length, bool) and length >= 0 for length in self.lengths)
        if not self.lengths or not valid or math.prod(max(length, 1) for length in self.lengths) >= 2**40:
            raise SecureError(f"{self.lengths!r} is not the shape of an array of shares.")

    @property
    def records(self) -> int:
        return self.lengths[0]

    @property
    def width(self) -> int:
        return math.prod(self.lengths[1:])

    @property
    def blocks(self) -> int:
        return -(-self.records // BATCH_ROWS)

    def rows(self, block: int) -> slice:
        """The records of a block."""
        return slice(block * BATCH_ROWS, min((block + 1) * BATCH_ROWS, self.records))

    def words(self, block: int) -> slice:
        """Where a block lies in a layer of packed residues: every block begins a new word."""
        words_of_block = -(-BATCH_ROWS * self.width // 3)
        rows = self.rows(block)
        return slice(block * words_of_block, block * words_of_block - (-(rows.stop - rows.start) * self.width // 3))

    @property
    def total_words(self) -> int:
        return self.words(self.blocks - 1).stop if self.blocks else 0


class Share(Protocol):
    """One holder's share of an array, a block of records at a time."""

    @property
    def field(self) -> Field: ...

    @property
    def shape(self) -> Shape: ...

    def block(self, number: int) -> Residues:
        """Residues (primes, records of the block, width)."""


def materialize(share: Share) -> Residues:
    """All blocks of a share as one array (primes, *shape)."""
    out = np.empty((len(share.field.primes), share.shape.records, share.shape.width), dtype=np.int32)
    for number in range(share.shape.blocks):
        out[:, share.shape.rows(number)] = share.block(number)
    return out.reshape(len(share.field.primes), *share.shape.lengths)


@dataclass(frozen=True)
class SeedShare:
    """A share that is the stream of a seed: for each prime and block an AES-256 counter stream of its own."""

    field: Field
    shape: Shape
    seed: bytes

    def __post_init__(self) -> None:
        if not isinstance(self.seed, bytes) or len(self.seed) != SEED_BYTES:
            raise SecureError(f"the seed of a share has {SEED_BYTES} bytes; ask its dealer again.")

    def block(self, number: int) -> Residues:
        rows = self.shape.rows(number)
        out = np.empty((len(self.field.primes), (rows.stop - rows.start) * self.shape.width), dtype=np.int32)
        self.fill(number, out)
        return out.reshape(len(self.field.primes), -1, self.shape.width)

    def fill(self, number: int, out: Residues) -> None:
        """One block in its place, (primes, records times width)."""
        for layer, (p, target) in enumerate(zip(self.field.primes, out, strict=True)):
            start = layer.to_bytes(4, "big") + number.to_bytes(4, "big") + bytes(8)  # the last 8 bytes count
            keyed_uniform(target, p, key=self.seed, start=start)


@dataclass(frozen=True, eq=False)
class PackedShare:
    """A whole share, as it travels: for each prime its words, three residues in each."""

    field: Field
    shape: Shape
    words: Sequence[Words]

    def __post_init__(self) -> None:
        wanted = (self.shape.total_words,)
        good = [
            isinstance(layer, np.ndarray) and layer.dtype == np.uint64 and layer.shape == wanted for layer in self.words
        ]
        if len(good) != len(self.field.primes) or not all(good):
            raise SecureError("a packed share does not have the words of its shape; ask its dealer again.")

    def block(self, number: int) -> Residues:
        rows = self.shape.rows(number)
        out = np.empty((len(self.field.primes), (rows.stop - rows.start) * self.shape.width), dtype=np.int32)
        for p, layer, target in zip(self.field.primes, self.words, out, strict=True):
            if not _unpack(layer[self.shape.words(number)], p, target):
                raise SecureError(f"a packed residue modulo {p} is out of range: the share is damaged.")
        return out.reshape(len(self.field.primes), -1, self.shape.width)


@dataclass(frozen=True, eq=False)
class Dealing:
    """A sharing as its dealer knows it: the integers, and the seeds of `degree` holders (counted from 0)."""

    field: Field
    values: NDArray[np.integer[Any]]
    seeds: Mapping[int, bytes]

    def __post_init__(self) -> None:
        if self.values.size and max(-int(self.values.min()), int(self.values.max())) > self.field.bound:
            raise ModulusTooSmall(
                f"a value is larger than {self.field.bound.bit_length()} bits and a sign: take primes_for its length."
            )

    @cached_property
    def shape(self) -> Shape:
        return Shape(self.values.shape)

    def share(self, holder: int) -> Share:
        """What the holder will have; computed when it is asked for."""
        seed = self.seeds.get(holder)
        return DealtShare(self, holder) if seed is None else SeedShare(self.field, self.shape, seed)

    def packed(self, holders: Sequence[int]) -> list[PackedShare]:
        return _packed(self, holders)

    def blocks(self, number: int, holders: Sequence[int]) -> list[Residues]:
        """One block of several holders' shares: the polynomial through 0 and the seeds' points, at theirs."""
        return _blocks(self, number, holders, secret=self.values[self.shape.rows(number)].reshape(-1))


@dataclass(frozen=True, eq=False)
class ResidueDealing:
    """A sharing of field elements that are residues already (a holder's own share, when it is shared again)."""

    field: Field
    residues: Residues
    seeds: Mapping[int, bytes]

    @cached_property
    def shape(self) -> Shape:
        return Shape(self.residues.shape[1:])

    def packed(self, holders: Sequence[int]) -> list[PackedShare]:
        return _packed(self, holders)

    def blocks(self, number: int, holders: Sequence[int]) -> list[Residues]:
        """One block of several holders' shares."""
        secret = self.residues[:, self.shape.rows(number)].reshape(len(self.residues), -1)
        return _blocks(self, number, holders, secret=secret)


@dataclass(frozen=True, eq=False)
class DealtShare:
    """The dealer's own share, or any other without a seed, from what the dealer knows."""

    dealing: Dealing
    holder: int

    @property
    def field(self) -> Field:
        return self.dealing.field

    @property
    def shape(self) -> Shape:
        return self.dealing.shape

    def block(self, number: int) -> Residues:
        return self.dealing.blocks(number, [self.holder])[0]


class Term(NamedTuple):
    """Residues (primes, records, width), or integers of 16 bits (1, records, width), with a factor for each prime."""

    factors: Sequence[int]
    rows: NDArray[np.integer[Any]]


def terms(share: Share, number: int) -> list[Term]:
    """Terms whose sum is one block of a share. A dealer's own is made of its integers and of streams: where only a few
    combinations of the columns are wanted, those of the terms are found sooner than every entry of the share."""
    if isinstance(share, DealtShare) and share.dealing.values.itemsize <= 2:
        field, shape, seeds = share.field, share.shape, share.dealing.seeds
        seeded = sorted(seeds)
        points = [0, *(holder + 1 for holder in seeded)]
        factors = [lagrange_weights(p, points, point=share.holder + 1) for p in field.primes]
        secret = share.dealing.values[shape.rows(number)].reshape(1, -1, shape.width)
        streams = (SeedShare(field, shape, seeds[holder]).block(number) for holder in seeded)
        return [Term(part, rows) for part, rows in zip(zip(*factors, strict=True), (secret, *streams), strict=True)]
    return [Term([1] * len(share.field.primes), share.block(number))]


def deal_seeded(
    field: Field,
    values: NDArray[np.integer[Any]],
    *,
    holders: int,
    threshold: int,
    randomness: Randomness,
    degree: int | None = None,
    first: int = 0,
) -> Dealing:
    """A fresh sharing of degree `threshold` (noise: 2t) in which the holders first, first + 1, ... get the seeds."""
    degree = threshold if degree is None else degree
    check_holders(holders, threshold)
    if not threshold <= degree < holders < min(field.primes):
        raise TooFewHolders(
            f"a sharing of degree {degree} among {holders} holders is impossible or unsafe: the degree must be at "
            f"least the threshold {threshold} and below the number of holders."
        )
    return Dealing(field, values, _seeds(holders, degree, first, randomness))


def deal_residues(
    field: Field, residues: Residues, *, holders: int, threshold: int, randomness: Randomness, first: int = 0
) -> ResidueDealing:
    """A fresh sharing of degree t of residues (primes, records, width), with seeds as in `deal_seeded`."""
    check_holders(holders, threshold)
    return ResidueDealing(field, np.ascontiguousarray(residues), _seeds(holders, threshold, first, randomness))


def _seeds(holders: int, count: int, first: int, randomness: Randomness) -> dict[int, bytes]:
    return {(first + number) % holders: randomness.bytes(SEED_BYTES) for number in range(count)}


def _packed(dealing: Dealing | ResidueDealing, holders: Sequence[int]) -> list[PackedShare]:
    """The whole shares of holders that have no seed, each stream expanded once for all of them."""
    field, shape = dealing.field, dealing.shape
    out = [[np.empty(shape.total_words, dtype=np.uint64) for _ in field.primes] for _ in holders]
    for number in range(shape.blocks):
        for words, residues in zip(out, dealing.blocks(number, holders), strict=True):
            for layer, target in zip(residues, words, strict=True):
                _pack(layer.reshape(-1), target[shape.words(number)])
    return [PackedShare(field, shape, words) for words in out]


def _blocks(
    dealing: Dealing | ResidueDealing,
    number: int,
    holders: Sequence[int],
    *,
    secret: NDArray[np.integer[Any]],
) -> list[Residues]:
    """One block of several holders' shares, from the seeds' streams and the secret at 0: integers, or residues with a
    layer for each prime."""
    field, shape, seeded = dealing.field, dealing.shape, sorted(dealing.seeds)
    rows = shape.rows(number)
    streams = np.empty((len(seeded), len(field.primes), (rows.stop - rows.start) * shape.width), dtype=np.int32)
    for holder, stream in zip(seeded, streams, strict=True):
        SeedShare(field, shape, dealing.seeds[holder]).fill(number, stream)
    points = [holder + 1 for holder in seeded]
    out = [np.empty((len(field.primes), streams.shape[2]), dtype=np.int32) for _ in holders]
    for k, p in enumerate(field.primes):
        for holder, target in zip(holders, out, strict=True):
            weights = lagrange_weights(p, [0, *points], point=holder + 1)
            values = secret[k] if secret.ndim == 2 else secret
            _interpolate(values, streams[:, k], np.array(weights, dtype=np.float64), p, target[k])
    return [share.reshape(len(field.primes), -1, shape.width) for share in out]


# --- kernels ---------------------------------------------------------------------------------------------------
# A product of residues is below 2^42 and a sum of 2t + 1 of them far below 2^53, so float64 holds it exactly. The
# quotient by p is at least 1/p > 2^-21 short of the next integer unless it is one, so its floor is right.


@numba.njit(cache=True)
def _interpolate(secret: Any, streams: Any, weights: Any, p: int, out: Any) -> None:
    """out = weights[0] secret + sum_j weights[j + 1] streams[j] modulo p; in short pieces, which stay in the cache.

    Loops over whole pieces without branches become vector instructions. A sum s is an integer, so (s + 1/2) / p is at
    least 1/(2p) > 2^-22 from every integer, and a product with the rounded 1/p has the right floor.
    """
    prime, inverse, first = float(p), 1.0 / p, weights[0]
    space = np.empty(_PIECE)
    for start in range(0, secret.size, _PIECE):
        values, target = secret[start : start + _PIECE], out[start : start + _PIECE]
        total = space[: values.size]
        beyond = np.int64(0)
        for i in range(values.size):
            v = np.int64(values[i])
            beyond += (v <= -p) | (v >= p)
            total[i] = first * np.float64(v)
        if beyond:  # noise; quantised data needs no division
            for i in range(values.size):
                total[i] = first * (np.int64(values[i]) % p)
        for j in range(streams.shape[0]):
            weight, stream = weights[j + 1], streams[j, start : start + _PIECE]
            for i in range(values.size):
                total[i] += weight * stream[i]
        for i in range(values.size):
            target[i] = np.int32(total[i] - np.floor((total[i] + 0.5) * inverse) * prime)


@numba.njit(cache=True)
def _pack(flat: Any, words: Any) -> None:
    whole_words = flat.size // 3
    for i in range(whole_words):
        words[i] = np.uint64(flat[3 * i]) | (np.uint64(flat[3 * i + 1]) << 21) | (np.uint64(flat[3 * i + 2]) << 42)
    if whole_words < words.size:
        rest = np.uint64(0)
        for j in range(3 * whole_words, flat.size):
            rest |= np.uint64(flat[j]) << np.uint64(21 * (j - 3 * whole_words))
        words[whole_words] = rest


@numba.njit(cache=True)
def _unpack(words: Any, p: int, flat: Any) -> bool:
    """False if a residue is out of range."""
    mask = np.uint64((1 << 21) - 1)
    largest = np.uint64(0)
    for i in range(flat.size // 3):
        word = words[i]
        a, b, c = word & mask, (word >> np.uint64(21)) & mask, word >> np.uint64(42)
        flat[3 * i], flat[3 * i + 1], flat[3 * i + 2] = a, b, c
        largest = max(largest, max(a, max(b, c)))
    start = flat.size - flat.size % 3
    for j in range(start, flat.size):
        v = (words[start // 3] >> np.uint64(21 * (j - start))) & mask
        flat[j] = v
        largest = max(largest, v)
    return bool(largest < np.uint64(p))
