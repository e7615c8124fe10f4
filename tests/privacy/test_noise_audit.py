"""Tries to refute the claims of privacy/claim.md: noise 1.4 times too small is caught, the true noise is not.

A threshold test. For neighbours that move a value from 0 to `shift`, an (epsilon, delta) claim says
P1(S) <= e^epsilon P0(S) + delta for every set S. One set is fixed in advance, both probabilities are estimated
from fresh draws of the system's generator, and Clopper-Pearson bounds at 5e-7 each refute the claim only if the lower
bound of P1(S) exceeds what the upper bound of P0(S) allows: a true claim is refuted with probability <= 1e-6,
whatever S. The power is stated beside each set.
"""

from __future__ import annotations

import numpy as np
import pytest
from scipy import stats

from colonnade.privacy.accounting import guarantee
from colonnade.privacy.cost import GaussianCell, Laplace, RandomizedResponse
from colonnade.privacy.noise import (
    discrete_gaussian,
    discrete_laplace,
    generalized_randomized_response,
)
from colonnade.privacy.randomness import SystemRandomness

TOO_SMALL = 1.4
LEVEL = 5e-7
SYSTEM = SystemRandomness()


def refuted(in_one: np.ndarray, in_zero: np.ndarray, *, epsilon: float, delta: float = 0.0) -> bool:
    """`in_one` and `in_zero` say which outputs on each neighbour lie in S."""
    hits, draws = int(in_one.sum()), in_one.size
    lower = stats.beta.ppf(LEVEL, hits, draws - hits + 1) if hits else 0.0
    hits, draws = int(in_zero.sum()), in_zero.size
    upper = stats.beta.ppf(1 - LEVEL, hits + 1, draws - hits) if hits < draws else 1.0
    return bool(lower > np.exp(epsilon) * upper + delta)


def test_discrete_laplace() -> None:
    # Epsilon 1 at sensitivity 1, S = {at least 1}. At the wrong scale P1(S) = 0.802 and P0(S) = 0.198; with 4000
    # draws that is missed with probability below 1e-7.
    claim = guarantee([Laplace(1.0)], delta=0.0).epsilon

    def attack(scale: float) -> bool:
        zero, one = discrete_laplace(SYSTEM, scale, 8000).reshape(2, -1)
        return refuted(one + 1 >= 1, zero >= 1, epsilon=claim)

    assert not attack(1.0)
    assert attack(1.0 / TOO_SMALL)


def test_discrete_gaussian() -> None:
    # Sigma 3, one coordinate moves by 3, delta 0.127 (epsilon about 1), S = {at least 4}. At the wrong scale P1(S) =
    # 0.41, P0(S) = 0.05, so P1 - e P0 - delta = 0.14; with 8000 draws that is missed with probability below 1e-9.
    claim = guarantee([GaussianCell(3.0, 3)], delta=0.127)
    assert claim.accountant == "pld"
    assert claim.epsilon == pytest.approx(1.0, abs=0.02)

    def attack(sigma: float) -> bool:
        zero, one = discrete_gaussian(SYSTEM, sigma, 16_000).reshape(2, -1)
        return refuted(one + 3 >= 4, zero >= 4, epsilon=claim.epsilon, delta=claim.delta)

    assert not attack(3.0)
    assert attack(3.0 / TOO_SMALL)


@pytest.mark.parametrize("categories", [2, 5])
def test_randomized_response(categories: int) -> None:
    # Epsilon 1, S = {answer 1}. For 5 categories at 1.4 epsilon: P1(S) = 0.503, P0(S) = 0.124, P1 - e P0 = 0.166; with
    # 40 000 draws that is missed with probability below 1e-11, and less often for bits.
    claim = guarantee([RandomizedResponse(1.0, categories)], delta=0.0).epsilon

    def attack(epsilon: float) -> bool:
        truth = np.repeat([0, 1], 40_000)
        answers = generalized_randomized_response(truth, categories=categories, epsilon=epsilon, randomness=SYSTEM)
        zero, one = answers.reshape(2, -1)
        return refuted(one == 1, zero == 1, epsilon=claim)

    assert not attack(1.0)
    assert attack(TOO_SMALL)
