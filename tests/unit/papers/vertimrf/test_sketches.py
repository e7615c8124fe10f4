"""Flajolet-Martin sketches. Oracles: a plain loop over ids, known cardinalities, the law of the geometric maximum."""

from __future__ import annotations

import hashlib
import math

import numpy as np
import pytest
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes

from colonnade.errors import BadArguments
from colonnade.papers.vertimrf.sketches import (
    KEY_BYTES,
    Sketches,
    cardinality,
    complements,
    floor_level,
    phantoms,
    private_levels,
    sketch_epsilon,
    smallest_hashes,
)
from colonnade.privacy.randomness import SimulatedRandomness
from colonnade.synthesis.field.schema import TableQuery

KEY = bytes(range(32))


def levels_of(codes: np.ndarray, values: int, *, t: int, epsilon: float = math.inf, seed: int = 0) -> np.ndarray:
    smallest = smallest_hashes(codes[None], values, key=KEY, sketches=t)[:, 0]
    return private_levels(smallest, epsilon=epsilon, randomness=SimulatedRandomness(seed, "phantoms"))


def test_the_kernel_gives_the_sketch_of_a_plain_loop() -> None:
    """Every id hashed on its own: half of its AES-256 block; geometric by counting zeros."""
    rng = np.random.default_rng(1)
    n, values, t = 57, 4, 5
    codes = rng.integers(0, values, n)
    plain = np.zeros((t, values), dtype=int)
    for number in range(t):
        own = hashlib.sha256(KEY + (number // 2).to_bytes(8, "big")).digest()
        for record in range(n):
            block = Cipher(algorithms.AES(own), modes.ECB()).encryptor().update(record.to_bytes(16, "little"))
            word = int.from_bytes(block[8 * (number % 2) : 8 * (number % 2) + 8], "little")
            leading = 64 - word.bit_length()  # P(leading >= m) = 2^-m, so 1 + leading is geometric from 1 on
            plain[number, codes[record]] = max(plain[number, codes[record]], leading + 1)
    np.testing.assert_array_equal(levels_of(codes, values, t=t), plain)


def test_keys_are_long_enough() -> None:
    assert 8 * KEY_BYTES >= 128


def test_sketches_of_pieces_in_any_order_merge_to_the_sketch_of_the_whole() -> None:
    rng = np.random.default_rng(3)
    codes, order = rng.integers(0, 4, size=(2, 100)), rng.permutation(100)
    whole = smallest_hashes(codes, 4, key=KEY, sketches=7)
    pieces = (order[:30], order[30:31], order[31:])
    parts = [smallest_hashes(codes[:, ids], 4, key=KEY, sketches=7, ids=ids) for ids in pieces]
    np.testing.assert_array_equal(np.minimum.reduce(parts), whole)


def test_hashes_depend_on_the_key() -> None:
    codes = np.zeros((1, 40), dtype=np.int64)
    one = smallest_hashes(codes, 1, key=KEY, sketches=3)
    two = smallest_hashes(codes, 1, key=bytes(32), sketches=3)
    assert not np.any(one == two)


def test_algorithm_1_by_hand() -> None:
    """eps' = log 1.25: e^eps' - 1 = 1/4, so 4 phantoms; 1 - e^-eps' = 1/5, so ceil(log2 5) = 3."""
    assert phantoms(math.log(1.25)) in (4, 5), "rounding may fall on either side of 4"
    assert phantoms(math.log(1.26)) == 4
    assert floor_level(math.log(1.26)) == 3
    assert phantoms(math.inf) == floor_level(math.inf) == 0
    # Adult at epsilon .288 for the sketches, delta 1/(2n), 15 columns, t = 2000.
    assert sketch_epsilon(0.288, 0.5 / 45222, 15, 2000) == pytest.approx(
        0.288 / (4 * math.sqrt(30_000 * 11.41)), rel=1e-3
    )


def test_phantoms_follow_the_maximum_of_k_geometric_variables() -> None:
    """An empty set with k_p = 4 phantoms: P(max <= m) = (1 - 2^-m)^4, over 20,000 sketches."""
    t = 20_000
    empty = np.full((t, 1), 2**64 - 1, dtype=np.uint64)
    epsilon = math.log(1.26)
    drawn = private_levels(empty, epsilon=epsilon, randomness=SimulatedRandomness(3))[:, 0]
    assert drawn.min() == floor_level(epsilon)
    for m in range(3, 9):
        chance = (1 - 2.0**-m) ** 4
        # 5.2 standard deviations on each of 6 shares: false alarm below 2e-6 x 6 / 6, with a fixed seed besides.
        assert abs(np.mean(drawn <= m) - chance) < 5.2 * math.sqrt(chance * (1 - chance) / t)


def test_complements_are_maxima_of_the_others() -> None:
    rng = np.random.default_rng(5)
    levels = rng.integers(0, 6, (200, 4)).astype(np.uint8)
    brute = np.stack([np.delete(levels, v, axis=1).max(axis=1) for v in range(4)], axis=1)
    np.testing.assert_array_equal(complements(levels), brute)
    assert complements(levels[:, :1]).max() == 0


@pytest.mark.parametrize("floor", [0, 8])
def test_cardinalities_are_estimated_without_bias(floor: int) -> None:
    """The mean of 2^-level, inverted: within 5 / sqrt(t) of the truth (its relative sd is about 1 / sqrt(t))."""
    t = 4000
    for truth in (300, 5000):
        levels = np.maximum(levels_of(np.zeros(truth, dtype=np.int64), 1, t=t), floor)
        found = float(cardinality(levels[:, 0], floor=floor))
        assert abs(found / truth - 1) < 5 / math.sqrt(t)


def test_the_harmonic_mean_of_levels_would_be_biased() -> None:
    """Why line 7 of Algorithm 4 is not followed: 2 to the harmonic mean of the levels is far below the truth."""
    levels = levels_of(np.zeros(5000, dtype=np.int64), 1, t=2000)[:, 0].astype(float)
    assert abs(2 ** (1 / np.mean(1 / levels)) / 5000 - 1) > 0.15


def test_known_intersections_within_the_papers_error() -> None:
    """Two columns with known counts, large t and no floor: Theorem 5 with gamma as the relative error of a union.

    A union of about n elements has a relative error of about 1 / sqrt(t): 5 of these of n.
    """
    n, t = 6000, 4000
    rng = np.random.default_rng(7)
    a = rng.integers(0, 3, n)
    b = np.where(rng.random(n) < 0.7, a % 2, rng.integers(0, 2, n))
    made = smallest_hashes(np.stack([a, b]), 3, key=KEY, sketches=t)
    silent = {"epsilon": math.inf, "randomness": SimulatedRandomness(1)}
    levels = {"a": private_levels(made[:, 0], **silent), "b": private_levels(made[:, 1, :2], **silent)}
    bins = {"a": np.arange(3), "b": np.arange(2)}
    sketches = Sketches(levels, bins, math.inf)
    (table,) = sketches.tables([TableQuery.of(("a", "b"))], records=n)
    truth = np.zeros((3, 2))
    np.add.at(truth, (a, b), 1)
    assert np.abs(table.counts - truth).max() < 5 * n / math.sqrt(t)
    assert table.sd == pytest.approx(n / math.sqrt(t), rel=0.5)
    with pytest.raises(BadArguments, match="bins"):
        sketches.tables([TableQuery.of(("a",), {"a": np.array([0, 0, 1])})], records=n)
