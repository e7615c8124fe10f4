"""Sums that show how large shared integers are: honest ones pass, huge ones and bits that differ from prime to prime do
not, and what is opened is the same whatever the bits are."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
import pytest

from colonnade.errors import ModulusTooSmall, SecureError
from colonnade.privacy.randomness import SimulatedRandomness
from colonnade.secure import sizes
from colonnade.secure.field import PRIMES, Field, Residues
from colonnade.secure.shamir import share_residues
from colonnade.secure.sizes import Sizes, sum_bound

FIELD = Field(PRIMES[:2])
SEED = bytes(range(32))
RECORDS, LARGEST = 40, (5, 100)


def dealing(residues: Residues, number: int) -> list[Residues]:
    return share_residues(FIELD, residues, holders=3, threshold=1, randomness=SimulatedRandomness(number, "shares"))


def concluded(rows: Residues, number: int = 0, lie: Any = None) -> tuple[tuple[int, ...] | None, bool]:
    """What the holders conclude of rows (primes, records, columns); `lie` changes the answers."""
    shape = Sizes(FIELD, rows.shape[1], LARGEST[: rows.shape[2]])
    drawn = shape.draw(SimulatedRandomness(number, "dealer"))
    label = {"seed": SEED, "label": f"rows {number}"}
    letter = list(shape.letter(shape.sums([rows], **label), drawn, **label))
    answers = {
        holder: shape.answer(shape.sums([own], **label), beside, letter, **label)
        for holder, (own, beside) in enumerate(
            zip(dealing(rows, number), dealing(FIELD.encode(drawn), number + 1), strict=True)
        )
    }
    if lie is not None:
        lie(answers)
    return shape.false(answers, threshold=1)


def honest(generator: np.random.Generator) -> np.ndarray[Any, Any]:
    return np.column_stack([generator.integers(-size, size + 1, RECORDS) for size in LARGEST])


def test_honest_rows_pass_and_huge_ones_do_not() -> None:
    generator = np.random.default_rng(1)
    idempotent = PRIMES[1] * pow(PRIMES[1], -1, PRIMES[0])  # 1 modulo the first prime, 0 modulo the second
    for number in range(10):
        rows = FIELD.encode(honest(generator))
        assert concluded(rows, number) == ((), False)
        place = generator.integers(RECORDS), generator.integers(2)
        for huge in (idempotent, FIELD.modulus // 2, FIELD.modulus // 3, 2 * sum_bound(RECORDS, 100) + 1):
            rows[(slice(None), *place)] = [huge % p for p in FIELD.primes]
            assert concluded(rows, number) == ((), True), huge


def test_random_bits_that_are_no_small_integers_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """A dealer that may choose its random bits modulo each prime could write any sum with them."""
    rows = FIELD.encode(honest(np.random.default_rng(2)))
    encode, shape = Field.encode, Sizes(FIELD, RECORDS, LARGEST)

    def another(self: Field, values: Any) -> Residues:
        residues = encode(self, values)
        if residues.shape == (2, shape.dealt):
            residues[1, 7] = 1 - residues[1, 7]
        return residues

    monkeypatch.setattr(Field, "encode", another)
    assert concluded(rows) == ((), True)


def test_a_false_answer_is_seen_and_is_not_the_dealers() -> None:
    def lie(answers: dict[int, Residues]) -> None:
        answers[1][0, 3] = (answers[1][0, 3] + 1) % PRIMES[0]

    assert concluded(FIELD.encode(honest(np.random.default_rng(3))), lie=lie) == (None, False)
    with pytest.raises(SecureError):
        Sizes(FIELD, RECORDS, LARGEST).read([b"", 0])


def test_a_sum_catches_with_one_half(monkeypatch: pytest.MonkeyPatch) -> None:
    """The best lie, a number whose double is small: with one sum it passes every second time, and never less often."""
    monkeypatch.setattr(sizes, "SUMS", 1)
    rows = FIELD.encode(np.zeros((RECORDS, 1), dtype=np.int64))
    rows[:, 5, 0] = [(p + 1) // 2 for p in FIELD.primes]
    passed = sum(not concluded(rows, number)[1] for number in range(400))
    assert 150 < passed < 250


def test_what_is_opened_tells_nothing_of_the_bits(monkeypatch: pytest.MonkeyPatch) -> None:
    """The number of the masks and the opened sums have one distribution: with all bits 0 and with all bits 1."""
    monkeypatch.setattr(sizes, "SUMS", 1)
    monkeypatch.setattr(sizes, "SETS", 6)
    shape, seed = Sizes(FIELD, 4, (1,)), SEED
    reach = shape.limit + sum_bound(shape.bits, 1)
    counts = []
    for bit in (0, 1):
        random = np.full(shape.bits, bit)
        generator, seen = np.random.default_rng(bit), Counter[tuple[int, int]]()
        total = int(FIELD.decode(shape.bit_sums(FIELD.encode(random), seed=seed, label="rows"))[0])
        for _ in range(4000):
            masks = generator.integers(-reach, reach + 1, 6)
            sums = shape.sums([FIELD.encode(np.zeros((4, 1), dtype=np.int64))], seed=seed, label="rows")
            _, number = shape.letter(sums, np.concatenate([random, masks]), seed=seed, label="rows")
            opened = int(masks[number]) + total
            if abs(opened) <= shape.limit:
                seen[number, min(3, 4 * (opened + shape.limit) // (2 * shape.limit + 1))] += 1
        counts.append(seen)
    cells = set(counts[0]) | set(counts[1])
    chi = sum((counts[0][cell] - counts[1][cell]) ** 2 / (counts[0][cell] + counts[1][cell]) for cell in cells)
    assert chi < len(cells) + 5 * np.sqrt(2 * len(cells))


def test_the_smallest_number_that_is_a_bit_at_each_prime_only() -> None:
    assert sizes.smallest_mixture((3, 5)) == 5  # 6 and 10, which is -5
    assert sizes.smallest_mixture((3, 5), unit=7) == 3  # 7 times these: -3 and -5
    assert [sizes.smallest_mixture(PRIMES[:count]).bit_length() for count in (2, 3, 4)] == [41, 61, 81]


def test_a_modulus_that_is_too_small_is_refused() -> None:
    with pytest.raises(ModulusTooSmall):
        Sizes(Field(PRIMES[:1]), RECORDS, LARGEST)
