"""Randomized response against exact arithmetic and scripted words."""

from __future__ import annotations

import mpmath
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from colonnade.errors import BadPrivacyParameter, DomainError
from colonnade.privacy.noise import (
    WORDS,
    generalized_randomized_response,
    keep_threshold,
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
        answers = generalized_randomized_response(
            given_codes, categories=categories, epsilon=epsilon, randomness=source
        )
        chances = np.full(categories, (1 - right) / (categories - 1))
        chances[true] = right
        counts = np.bincount(answers, minlength=categories)
        assert stats.chisquare(counts, size * chances).pvalue > 1e-3
        assert stats.chisquare(counts, size * np.roll(chances, 1)).pvalue < 1e-9


def test_shapes_kinds_and_codes_outside() -> None:
    source = SystemRandomness()
    options = {"categories": 2, "epsilon": 1.0, "randomness": source}
    bits = generalized_randomized_response(np.zeros((3, 4), dtype=bool), **options)
    assert bits.shape == (3, 4)
    assert set(bits.ravel().tolist()) <= {0, 1}
    assert generalized_randomized_response(np.array([], dtype=int), **options).size == 0
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
        generalized_randomized_response(np.array([0.0, 1.0]), **options)
