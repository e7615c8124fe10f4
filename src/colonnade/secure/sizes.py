"""That integers are small, on their shares: what is shared modulo several primes is one small integer at all of them.

A claim that is proven modulo each prime (`claims`) holds for integers only if nothing in it wraps around. A number that
is 1 modulo one prime and 0 modulo another is a bit at both, and huge: a share of it lifts the records of others above
all noise. So a dealer also shows, for each column, that **random sums** of its entries are small.

- *Sums.* c_r is 0 with a chance of 1/2, 1 or -1 with 1/4 each, drawn after the rows were fixed. Y = sum_r c_r x_r is
  within S for honest entries (Hoeffding). If some x_r is above 2S in size modulo Q, its sum with c_r = 0 and those with
  c_r = 1 or -1 are not both within S. So Y is with a chance of at most 1/2, all `SUMS` sums of a column with 2^-SUMS.
- *That Y is within S.* Beside its rows the dealer has dealt random bits. Y + S, written with bits of the weights 1, 2,
  4, ..., and one that makes the largest number 2S, is told to the holders with each bit added modulo 2 to a random one.
  From that they compute shares of Y + S minus these bits, and open it: it must be 0.
- *That the random bits are bits.* That each is 0 or 1 modulo each prime is proven with the rows. That they are small
  integers is shown by `SUMS` sums of them, opened with masks that are uniform within T + S. The dealer has dealt `SETS`
  sets of masks, and names the first with which all sums are within T. Each set is good with the same chance, above 1/2,
  whatever the bits are, and what is opened is then uniform within T: neither tells anything.

Proofs of soundness and of zero knowledge are in `claim.md`.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from colonnade.errors import ModulusTooSmall, SecureError
from colonnade.privacy.randomness import Randomness
from colonnade.secure.field import BATCH_ROWS, Field, Residues
from colonnade.secure.openings import culprits
from colonnade.secure.shamir import interpolate

SUMS = 47
SETS = 50
"""Sets of masks: all fail with a chance below 2^-SETS, and choosing one of them gains a liar a factor of `SETS`."""
TAIL = math.sqrt(65 * math.log(2))
"""A sum of n entries up to x is beyond TAIL sqrt(n) x with a chance of at most 2 exp(-TAIL^2) = 2^-64: the variance
factor of c is 1/2, since it is half the sum of two signs."""


def sum_bound(records: int, largest: int) -> int:
    """S: within which an honest sum of so many entries up to `largest` is."""
    return largest * min(records, math.isqrt(math.ceil(TAIL**2 * records)) + 1)


@cache
def smallest_mixture(primes: tuple[int, ...], unit: int = 1) -> int:
    """The smallest size, centred modulo Q, of a number that is 0 or `unit` modulo each prime and neither 0 nor that."""
    modulus, mixtures = math.prod(primes), [0]
    for p in primes:
        rest = modulus // p
        mixtures += [mixture + unit * rest * pow(rest, -1, p) for mixture in mixtures]
    sizes = (
        min(mixture % modulus, -mixture % modulus) for mixture in mixtures[1:-1]
    )  # the first is 0, the last the unit
    return min(sizes, default=0)


@dataclass(frozen=True)
class Sizes:
    """The public shape of the argument: so many records, and the `largest` honest entry of each column."""

    field: Field
    records: int
    largest: tuple[int, ...]

    def __post_init__(self) -> None:
        if 2 * self.limit >= smallest_mixture(self.field.primes) or 2 * max(self.bounds) >= self.field.bound:
            raise ModulusTooSmall(
                "sums of the rows do not fit the modulus: take more primes, or a coarser quantisation."
            )

    @cached_property
    def bounds(self) -> list[int]:
        """S of each column. What is shown is that no entry is above 2S in size."""
        return [sum_bound(self.records, largest) for largest in self.largest]

    @cached_property
    def weights(self) -> list[list[int]]:
        """Of the bits of a number from 0 to 2S, for each column."""
        return [[1 << place for place in range(bits)] + [2 * s + 1 - (1 << bits)] for s, bits in self._places]

    @property
    def _places(self) -> Iterable[tuple[int, int]]:
        return ((bound, (2 * bound).bit_length() - 1) for bound in self.bounds)

    @cached_property
    def bits(self) -> int:
        """Random bits that the dealer deals."""
        return SUMS * sum(map(len, self.weights))

    @property
    def limit(self) -> int:
        """T: (T / (T + S))^SUMS >= 1/2."""
        return math.ceil(sum_bound(self.bits, 1) * SUMS / math.log(2))

    @property
    def dealt(self) -> int:
        """Numbers that the dealer deals beside its rows."""
        return self.bits + SETS * SUMS

    @property
    def answers(self) -> int:
        """Residues that a holder opens."""
        return SUMS * (len(self.largest) + 1)

    @property
    def letter_bytes(self) -> int:
        """Of what the dealer tells each holder."""
        return -(-self.bits // 8)

    # --- the dealer -----------------------------------------------------------------------------------------------

    def draw(self, randomness: Randomness) -> NDArray[np.int64]:
        """Bits and masks, to be dealt before the sums are known."""
        bits = np.unpackbits(np.frombuffer(randomness.bytes(self.letter_bytes), dtype=np.uint8), count=self.bits)
        reach = self.limit + sum_bound(self.bits, 1)
        masks = randomness.below(2 * reach + 1, SETS * SUMS) - reach
        return np.concatenate([bits.astype(np.int64), masks])

    def letter(self, sums: Residues, dealt: NDArray[np.int64], *, seed: bytes, label: str) -> tuple[bytes, int]:
        """What the dealer tells the holders of its `sums`: each bit added to a random one, and which masks are good."""
        random, masks = dealt[: self.bits], dealt[self.bits :].reshape(SETS, SUMS)
        columns = self.field.decode(sums).T
        bits = [_bits(own + s, weights) for own, s, weights in zip(columns, self.bounds, self.weights, strict=True)]
        flips = np.concatenate([own.reshape(-1) for own in bits]) ^ random
        opened = masks + self.field.decode(self.bit_sums(self.field.encode(random), seed=seed, label=label))
        good = np.flatnonzero((np.abs(opened) <= self.limit).all(axis=1))
        return np.packbits(flips.astype(np.uint8)).tobytes(), int(good[0]) if good.size else 0

    # --- the holders, and the dealer --------------------------------------------------------------------------------

    def sums(self, blocks: Iterable[Residues], *, seed: bytes, label: str) -> Residues:
        """The random sums of rows, or of shares of them: (primes, SUMS, columns), from blocks of records."""
        total, records = _sums(self.field, blocks, len(self.largest), seed=seed, label=label)
        if records != self.records:
            raise SecureError(f"sums of {self.records} records cannot be made of {records}.")
        return total

    def bit_sums(self, random: Residues, *, seed: bytes, label: str) -> Residues:
        """The random sums of the random bits, (primes, SUMS)."""
        pieces = (random[:, start : start + BATCH_ROWS, None] for start in range(0, self.bits, BATCH_ROWS))
        return _sums(self.field, pieces, 1, seed=seed, label=f"{label}: bits")[0][:, :, 0]

    def read(self, letter: Any) -> tuple[NDArray[np.bool_], int]:
        """A dealer's letter: which bits are turned, and the number of its masks."""
        match letter:
            case [bytes(flips), int(number)] if len(flips) == self.letter_bytes and 0 <= number < SETS:
                return np.unpackbits(np.frombuffer(flips, dtype=np.uint8), count=self.bits).astype(bool), number
        raise SecureError("a dealer sent no bits of its sums, and no number of masks.")

    def answer(self, sums: Residues, dealt: Residues, letter: Any, *, seed: bytes, label: str) -> Residues:
        """What a holder opens, (primes, answers): Y + S minus its bits, for each column, and sums of random bits."""
        field, (flips, number) = self.field, self.read(letter)
        random, masks = dealt[:, : self.bits], dealt[:, self.bits :].reshape(len(dealt), SETS, SUMS)[:, number]
        bits = np.where(flips, field.sub(np.ones_like(random), random), random)
        factors, starts, bounds = self._written
        written = field.reduced(np.add.reduceat(field.mul(bits, factors), starts, axis=1, dtype=np.int64))
        columns = field.add(sums.transpose(0, 2, 1).reshape(len(dealt), -1), bounds)
        small = field.add(self.bit_sums(random, seed=seed, label=label), masks)
        return np.concatenate([field.sub(columns, written), small], axis=1)

    @cached_property
    def _written(self) -> tuple[Residues, NDArray[np.intp], Residues]:
        """The weight of each bit, where the bits of each sum begin, and S of each sum; column by column."""
        weights = [own for own in self.weights for _ in range(SUMS)]
        factors = self.field.encode(np.array([weight for own in weights for weight in own]))
        starts = np.cumsum([0, *map(len, weights[:-1])])
        return factors, starts, self.field.encode(np.repeat(np.array(self.bounds), SUMS))

    def false(self, answers: Mapping[int, Residues], *, threshold: int) -> tuple[tuple[int, ...] | None, bool]:
        """Which holders answered falsely (None: some that cannot be named), and whether the dealer's claim is false."""
        field = self.field
        for elements in answers.values():
            if elements.shape != (len(field.primes), self.answers):
                raise SecureError(f"sums of rows were answered with the shape {elements.shape}.")
            field.check(elements)
        liars = culprits(field, answers, degree=threshold, threshold=threshold)
        if liars is None:
            return None, False
        others = {holder: elements for holder, elements in answers.items() if holder not in liars}
        opened = interpolate(field, others, degree=threshold)
        small = np.abs(field.decode(opened[:, -SUMS:])) <= self.limit
        return liars, bool(opened[:, :-SUMS].any() or not small.all())


def _bits(numbers: NDArray[Any], weights: Sequence[int]) -> NDArray[np.int64]:
    """Each number as bits of these weights, (numbers, bits). Those of a liar are whatever they are."""
    numbers = (numbers % (1 << 62)).astype(np.int64)
    high = numbers >= 1 << (len(weights) - 1)
    rest = numbers - np.where(high, weights[-1], 0)
    low = (rest[:, None] >> np.arange(len(weights) - 1)) & 1
    return np.column_stack([low, high.astype(np.int64)])


def _sums(field: Field, blocks: Iterable[Residues], width: int, *, seed: bytes, label: str) -> tuple[Residues, int]:
    """(primes, SUMS, width), and of how many records. A sum over a block is below 2^21 times its records in size, so
    that float64 holds it exactly."""
    total, first = np.zeros((len(field.primes), SUMS, width), dtype=np.int64), 0
    for rows in blocks:
        if rows.shape[2:] != (width,):
            raise SecureError(f"sums of {width} columns cannot be made of rows {rows.shape}.")
        signs = _coefficients(seed, label, first, rows.shape[1]).astype(np.float64)
        total += np.matmul(signs, rows.astype(np.float64)).astype(np.int64)
        first += rows.shape[1]
    return field.reduced(total), first


def _coefficients(seed: bytes, label: str, first: int, count: int) -> NDArray[np.int8]:
    """(SUMS, count): 0, 1 or -1, from the record `first` on."""
    length = -(-count // 8)
    text = b"colonnade sums v1\0" + seed + f"{label}, from {first}".encode()
    stream = np.frombuffer(hashlib.shake_128(text).digest(2 * SUMS * length), dtype=np.uint8)
    coins = np.unpackbits(stream.reshape(2, SUMS, length), axis=2, count=count).view(np.int8)
    return np.asarray(coins[0] - coins[1])
