"""What costs mean for one person, against definitions and the best tests."""

from __future__ import annotations

import math

import pytest
from scipy import special

from colonnade.errors import BadPrivacyParameter
from colonnade.privacy.cost import Gaussian, RandomizedResponse, Unbounded
from colonnade.privacy.person import PersonTotal, belief, person_figures, right_guesses


def test_beliefs_are_those_of_the_definition() -> None:
    """Oracle: from even odds e^epsilon / (1 + e^epsilon) where delta is 0."""
    assert belief(0.5, epsilon=1.0) == pytest.approx(math.e / (1 + math.e))
    assert belief(0.01, epsilon=2.0) == pytest.approx(0.01 * math.exp(2) / (0.99 + 0.01 * math.exp(2)))
    assert belief(0.0, epsilon=2.0) == 0.0
    assert belief(0.5, epsilon=1e9) == 1.0
    with pytest.raises(BadPrivacyParameter):
        belief(1.5, epsilon=1.0)


@pytest.mark.parametrize("multiplier", [1.0, 5.0])
def test_right_guesses_bound_the_best_test(multiplier: float) -> None:
    """Oracle: the best test between N(0, s^2) and N(1, s^2) is right with probability Phi(1 / 2s); randomized
    response."""
    best = special.ndtr(0.5 / multiplier)
    assert best <= right_guesses([Gaussian(noise_multiplier=multiplier)]) <= best + 0.1
    pure = right_guesses([RandomizedResponse(epsilon=1.0, unit="record")])
    assert pure == pytest.approx(math.e / (1 + math.e), abs=1e-6)
    assert right_guesses([]) == 0.5
    assert right_guesses([Unbounded("x", "y")]) == 1.0


def test_the_figures_show_these_numbers() -> None:
    person = PersonTotal.of([Gaussian(noise_multiplier=2.0)], delta=1e-6)
    guesses, beliefs = person_figures(person).figures
    right = int(person.right("zero-out"))
    assert list(guesses.data["counts"].values()) == [50, right - 50, 100 - right]
    (across, up), _ = beliefs.data["lines"].values()
    bound = person.total["zero-out"]
    assert up[25] == belief(across[25], epsilon=bound.epsilon, delta=bound.delta)
    assert (across[25], up[0], up[-1]) == (0.5, 0.0, 1.0)
