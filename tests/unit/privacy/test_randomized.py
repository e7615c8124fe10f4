"""Randomized response against exact arithmetic, scripted words and enumeration."""

from __future__ import annotations

import itertools

import mpmath
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from colonnade.errors import BadPrivacyParameter, DomainError
from colonnade.privacy.noise import (
    WORDS,
    debias_bits,
    debias_bits_variance,
    debias_codes,
    debias_codes_variance,
    generalized_randomized_response,
    keep_threshold,
    randomized_response,
)
from colonnade.privacy.randomness import SimulatedRandomness, SystemRandomness


@given(st.floats(1e-9, 700.0), st.integers(2, 2**20))
def test_the_mechanism_that_runs_never_exceeds_epsilon(epsilon: float, categories: int) -> None:
    # Oracle: 500 digits of mpmath.
    kept = keep_threshold(epsilon, categories)
    with mpmath.workdps(500):
        odds = mpmath.exp(mpmath.mpf(epsilon))
        share = odds / (odds + categories - 1) * WORDS
        assert kept <= share < kept + 1
        assert mpmath.mpf(kept) * (categories - 1) / (WORDS - kept) <= odds
    assert kept * (categories - 1) >= WORDS - kept  # the truth stays the most likely answer
    assert 0 < kept < WORDS


@pytest.mark.parametrize(("epsilon", "categories"), [(0.0, 2), (701.0, 2), (float("nan"), 2), (1.0, 1), (1.0, 2**21)])
def test_parameters_out_of_range(epsilon: float, categories: int) -> None:
    with pytest.raises(BadPrivacyParameter):
        generalized_randomized_response([0], categories=categories, epsilon=epsilon, randomness=SystemRandomness())


class Scripted:
    """Words that the test chooses: the oracle of a single decision."""

    simulated = True

    def __init__(self, word: int, other: int) -> None:
        self.word, self.other = word, other

    def bytes(self, count: int) -> bytes:
        raise AssertionError("randomized response draws words only")

    def words(self, count: int) -> np.ndarray:
        return np.full(count, self.word, dtype=np.uint64)

    def below(self, bound: int, count: int) -> np.ndarray:
        assert 0 <= self.other < bound
        return np.full(count, self.other, dtype=np.int64)


def test_the_threshold_decides_word_by_word() -> None:
    kept = keep_threshold(1.3, 4)
    every = np.arange(4)
    below = generalized_randomized_response(every, categories=4, epsilon=1.3, randomness=Scripted(kept - 1, 0))
    np.testing.assert_array_equal(below, every)
    # The k - 1 draws reach each other code once, whatever the true one.
    reached = [
        generalized_randomized_response(every, categories=4, epsilon=1.3, randomness=Scripted(kept, other))
        for other in range(3)
    ]
    for true in every:
        assert sorted(answers[true] for answers in reached) == [code for code in range(4) if code != true]


@pytest.mark.parametrize("categories", [2, 5])
def test_answers_have_the_claimed_chances(categories: int) -> None:
    # Oracle: the closed form, by chi-square; the seed is fixed.
    epsilon, size = 0.8, 50_000
    right = np.exp(epsilon) / (np.exp(epsilon) + categories - 1)
    for true in range(categories):
        given_codes = np.full(size, true)
        source = SimulatedRandomness(5, f"{categories}-{true}")
        answers = (
            randomized_response(given_codes, epsilon=epsilon, randomness=source)
            if categories == 2
            else generalized_randomized_response(given_codes, categories=5, epsilon=epsilon, randomness=source)
        )
        chances = np.full(categories, (1 - right) / (categories - 1))
        chances[true] = right
        counts = np.bincount(answers, minlength=categories)
        assert stats.chisquare(counts, size * chances).pvalue > 1e-3
        assert stats.chisquare(counts, size * np.roll(chances, 1)).pvalue < 1e-9


def test_shapes_kinds_and_codes_outside() -> None:
    source = SystemRandomness()
    bits = randomized_response(np.zeros((3, 4), dtype=bool), epsilon=1.0, randomness=source)
    assert bits.shape == (3, 4)
    assert bits.dtype == np.uint8
    assert randomized_response(np.array([], dtype=int), epsilon=1.0, randomness=source).size == 0
    # At epsilon 100 the truth is given up with probability 2^-64: codes outside are clipped, not refused.
    answers = generalized_randomized_response(
        np.array([-3, 0, 2, 300], dtype=np.int16), categories=300, epsilon=100.0, randomness=source
    )
    np.testing.assert_array_equal(answers, [0, 0, 2, 299])
    small = generalized_randomized_response(
        np.array([7], dtype=np.uint8), categories=1000, epsilon=100.0, randomness=source
    )
    assert small[0] == 7
    with pytest.raises(DomainError, match="encode"):
        randomized_response(np.array([0.0, 1.0]), epsilon=1.0, randomness=source)


# --- estimators: by enumeration of all answers of three records -------------------------------------------


def distribution(truth: list[int], categories: int, epsilon: float) -> list[tuple[np.ndarray, float]]:
    """All vectors of reported counts with their exact chances."""
    kept = keep_threshold(epsilon, categories) / WORDS
    found = []
    for answers in itertools.product(range(categories), repeat=len(truth)):
        chances = [kept if a == t else (1 - kept) / (categories - 1) for a, t in zip(answers, truth, strict=True)]
        found.append((np.bincount(answers, minlength=categories), float(np.prod(chances))))
    return found


@pytest.mark.parametrize("truth", [[0, 0, 0], [0, 1, 1], [2, 1, 1]])
@pytest.mark.parametrize("epsilon", [0.2, 2.0])
def test_debiased_codes_are_unbiased_with_the_stated_variance(truth: list[int], epsilon: float) -> None:
    counts = np.bincount(truth, minlength=3)
    cases = [(debias_codes(reported, epsilon=epsilon), chance) for reported, chance in distribution(truth, 3, epsilon)]
    mean = sum(chance * estimate for estimate, chance in cases)
    variance = sum(chance * (estimate - counts) ** 2 for estimate, chance in cases)
    np.testing.assert_allclose(mean, counts, atol=1e-9)
    np.testing.assert_allclose(variance, debias_codes_variance(counts, epsilon=epsilon), rtol=1e-9)
    assert all(estimate.sum() == pytest.approx(3) for estimate, _ in cases)


@pytest.mark.parametrize("truth", [[0, 0, 0], [0, 1, 1]])
def test_debiased_bits_are_unbiased_with_the_stated_variance(truth: list[int]) -> None:
    cases = [
        (debias_bits(reported[1], total=3, epsilon=0.7), chance) for reported, chance in distribution(truth, 2, 0.7)
    ]
    assert sum(chance * estimate for estimate, chance in cases) == pytest.approx(sum(truth), abs=1e-9)
    variance = sum(chance * (estimate - sum(truth)) ** 2 for estimate, chance in cases)
    assert variance == pytest.approx(debias_bits_variance(total=3, epsilon=0.7))
