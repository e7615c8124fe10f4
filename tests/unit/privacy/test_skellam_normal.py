"""The comparison of Skellam with normal noise, against exact probabilities and the analytic Gaussian mechanism."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from scipy.optimize import brentq
from scipy.special import ive
from scipy.stats import norm

from colonnade.errors import BadPrivacyParameter
from colonnade.privacy.accounting import guarantee
from colonnade.privacy.calibration import Calibration, SkellamMus
from colonnade.privacy.cost import Relation
from colonnade.privacy.mechanisms import mechanism_of, under
from colonnade.privacy.skellam import Skellam, delta_1_bound, normal_losses, oscillation


@pytest.mark.parametrize("variance", [40.0, 1e3, 1e5])
@pytest.mark.parametrize("reach", [1.0, 3.0, 6.0])
def test_the_oscillation_bound_holds(variance: float, reach: float) -> None:
    """Exact: Bessel functions and normal tails, k by k."""
    sd = math.sqrt(variance)
    k = np.arange(math.floor(reach * sd) + 1)
    rounded = norm.logsf((k - 0.5) / sd) + np.log(-np.expm1(norm.logsf((k + 0.5) / sd) - norm.logsf((k - 0.5) / sd)))
    ratio = np.log(ive(k, variance)) - rounded
    assert 0 < np.ptp(ratio) <= oscillation(variance, reach)


@pytest.mark.parametrize("multiplier", [0.7, 1.5, 4.0])
def test_the_losses_dominate_the_exact_ones_and_hardly_exceed_them(multiplier: float) -> None:
    """delta(epsilon) of Skellam noise on one coordinate, summed over all outcomes within 12 standard deviations."""
    variance = 1e8
    sd = math.sqrt(variance)
    shift = round(sd / multiplier)
    k = np.arange(-round(13 * sd), round(13 * sd) + 1)
    with_record, without = ive(np.abs(k - shift), variance), ive(np.abs(k), variance)
    losses = normal_losses(variance=variance, delta_2=shift, coordinates=1)
    assert losses is not None
    for epsilon in (0.0, 0.3, 1.0, 2.0):
        exact = float(np.sum(np.maximum(with_record - math.exp(epsilon) * without, 0)))
        if exact > 1e-9:
            assert exact <= losses.get_delta_for_epsilon(epsilon) <= exact * 1.01 + 1e-12


def mu_for(*, epsilon: float, delta: float, steps: int = 1, relation: Relation = "zero-out", **stated: Any) -> int:
    """The mu at which so many releases cost (epsilon, delta)."""
    releases = {"x": SkellamMus(Skellam(1, **stated), steps)}
    return int(Calibration(releases, epsilon=epsilon, delta=delta, relation=relation)["x"])


def test_calibration_comes_close_to_the_analytic_gaussian() -> None:
    """Balle and Wang's exact condition for the Gaussian mechanism, solved here on its own."""

    def excess(sigma: float) -> float:
        return float(norm.cdf(0.5 / sigma - sigma) - math.e * norm.cdf(-0.5 / sigma - sigma) - 1e-5)

    needed = brentq(excess, 0.5, 50)
    delta_2, dimension = 2.0**26, 10**6
    stated = {"delta_1": delta_1_bound(delta_2, dimension), "delta_2": delta_2, "parties": 3}
    mu = mu_for(epsilon=1.0, delta=1e-5, dimension=dimension, **stated)
    sigma = math.sqrt(2 * mu) / delta_2
    assert needed <= sigma <= 1.002 * needed
    assert sigma < 0.95 * math.sqrt(2 * mu_for(epsilon=1.0, delta=1e-5, **stated)) / delta_2
    cost = Skellam(mu, dimension=dimension, **stated)
    assert guarantee([cost], delta=1e-5).accountant == "pld"
    assert guarantee([cost], delta=1e-5).epsilon < guarantee([cost], delta=1e-5, relation="replace").epsilon


def test_small_noise_is_not_taken_for_normal() -> None:
    assert normal_losses(variance=50.0, delta_2=1.0, coordinates=1) is None
    assert normal_losses(variance=1e9, delta_2=1e4, coordinates=10**7) is None
    cost = Skellam(25, delta_1=1, delta_2=1, parties=3, dimension=10)
    assert guarantee([cost], delta=1e-5).accountant == "rdp"
    for wrong in (0, -1, 1.5, True):
        with pytest.raises(BadPrivacyParameter, match="dimension"):
            Skellam(25, delta_1=1, delta_2=1, parties=3, dimension=wrong)  # type: ignore[arg-type]


@pytest.mark.parametrize("factor", [1.0, math.sqrt(2), 2.0])
def test_a_replaced_record_costs_what_normal_noise_of_the_larger_sensitivity_does(factor: float) -> None:
    """Gram matrices, polynomials and gradients are accounted so. Oracle: the analytic Gaussian, solved here."""
    delta_2, dimension, multiplier = 2.0**26, 400, 3.0
    mu = round((multiplier * delta_2) ** 2 / 2)
    stated = {"delta_1": delta_1_bound(delta_2, dimension), "delta_2": delta_2, "parties": 3}
    cost = Skellam(mu, dimension=dimension, replace_factor=factor, **stated)

    def exactly(ratio: float) -> float:
        def excess(epsilon: float) -> float:
            lower = math.exp(epsilon) * float(norm.cdf(-ratio / 2 - epsilon / ratio))
            return float(norm.cdf(ratio / 2 - epsilon / ratio)) - lower - 1e-6

        return float(brentq(excess, 0.01, 50))

    for relation, ratio in (("zero-out", 1 / multiplier), ("replace", factor / multiplier)):
        found = guarantee([cost], delta=1e-6, relation=relation)  # type: ignore[arg-type]
        assert found.accountant == "pld"
        assert exactly(ratio) <= found.epsilon <= 1.005 * exactly(ratio)


def test_a_replaced_record_moves_the_coordinates_of_two() -> None:
    """So the comparison is refused for it where it only just holds for one."""
    delta_2 = 2.0**12
    variance = 2.0 * 2**26
    most = math.floor(1e-3 / oscillation(variance, 14 + math.sqrt(2) * delta_2 / math.sqrt(variance)))
    cost = Skellam(
        2**26, delta_1=most * delta_2, delta_2=delta_2, parties=1, dimension=most, replace_factor=math.sqrt(2)
    )
    assert mechanism_of(cost).pld(cost) is not None
    replaced = under(cost, "replace")
    assert mechanism_of(replaced).pld(replaced) is None
