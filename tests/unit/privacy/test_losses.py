"""Compositions of privacy losses against dp-accounting's own, pair by pair."""

from __future__ import annotations

import math
from functools import reduce

import numpy as np
import pytest
from dp_accounting.pld import privacy_loss_distribution as pld

from colonnade.privacy import losses

GRID = 1e-4
EPSILONS = np.linspace(0, 3, 13)


def gaussian(multiplier: float, *, sampled: float = 1.0) -> pld.PrivacyLossDistribution:
    return pld.from_gaussian_mechanism(multiplier, value_discretization_interval=GRID, sampling_prob=sampled)


def laplace(scale: float) -> pld.PrivacyLossDistribution:
    return pld.from_laplace_mechanism(scale, value_discretization_interval=GRID)


@pytest.mark.parametrize(
    "counted",
    [
        [(gaussian(8.0), 14)],
        [(laplace(30.0), 37), (laplace(9.0), 1)],
        [(gaussian(20.0), 25), (laplace(40.0), 3), (gaussian(11.0), 1)],
        [(gaussian(3.0, sampled=0.05), 13), (gaussian(15.0), 4)],
    ],
    ids=["one kind", "two points", "three kinds", "other when added"],
)
def test_deltas_are_those_of_the_library(counted: list[tuple[pld.PrivacyLossDistribution, int]]) -> None:
    ours = losses.composition(counted)
    theirs = reduce(lambda total, power: total.compose(power), [loss.self_compose(count) for loss, count in counted])
    np.testing.assert_allclose(
        ours.get_delta_for_epsilon(EPSILONS), theirs.get_delta_for_epsilon(EPSILONS), rtol=0, atol=2e-14
    )


def test_no_mass_is_lost_beyond_the_ends() -> None:
    counted = [(gaussian(6.0), 9), (laplace(12.0), 5)]
    composed = losses.composition(counted)._pmf_remove
    # The library rounds a continuous loss so that its mass is 1 to nine digits only.
    expected = math.prod(float(np.sum(loss._pmf_remove.to_dense_pmf()._probs)) ** count for loss, count in counted)
    assert float(np.sum(composed._probs)) == pytest.approx(expected, abs=1e-13)
    assert composed._infinity_mass >= losses._TAIL


def test_a_single_release_is_itself() -> None:
    single = gaussian(2.0)
    assert losses.composition([(single, 1)]) is single
