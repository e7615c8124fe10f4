"""One budget over several releases. Oracles: the accountant, and the single calibration of each mechanism."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import pytest

from colonnade.errors import BadPrivacyParameter
from colonnade.privacy.accounting import calibrate, guarantee
from colonnade.privacy.calibration import Calibration, Gaussians, SkellamMus, Skellams
from colonnade.privacy.cost import Cost, Gaussian, Laplace
from colonnade.privacy.skellam import LARGEST_MU, Skellam, delta_1_bound

STATED = {"delta_1": delta_1_bound(5e6, 40), "delta_2": 5e6, "parties": 5, "colluders": 2, "dimension": 40}
MATRIX = Skellam(1, **STATED)  # type: ignore[arg-type]
CELL = Skellam(1, delta_1=1, delta_2=1, parties=3, colluders=1, shift="single")


@pytest.mark.parametrize("relation", ["zero-out", "replace"])
@pytest.mark.parametrize(("epsilon", "delta"), [(0.1, 1e-9), (1.0, 1e-6), (20.0, 1e-4)])
def test_the_whole_budget_is_spent_and_no_more(epsilon: float, delta: float, relation: str) -> None:
    budget = Calibration(
        {
            "marginals": Gaussians(count=9, share=0.2, replace_factor=math.sqrt(2)),
            "lengths": Gaussians(share=0.1),
            "matrix": Skellams(MATRIX, share=0.7),
        },
        epsilon=epsilon,
        delta=delta,
        relation=relation,  # type: ignore[arg-type]
    )
    total = guarantee(budget.costs(), delta=delta, relation=relation)  # type: ignore[arg-type]
    assert 0.998 * epsilon < total.epsilon <= epsilon
    assert isinstance(budget["matrix"], int)


def test_shares_are_of_the_inverse_square_of_the_noise() -> None:
    """In the normal limit a release of multiplier s costs 1 / s^2: these add up, and each group has its share."""
    budget = Calibration(
        {"few": Gaussians(count=2, share=0.25), "many": Gaussians(count=30, share=0.75)}, epsilon=1.0, delta=1e-6
    )
    spent = {"few": 2 / budget["few"] ** 2, "many": 30 / budget["many"] ** 2}
    assert spent["few"] / sum(spent.values()) == pytest.approx(0.25)
    assert sum(spent.values()) == pytest.approx(1 / budget.scale**2)


def test_one_group_is_the_calibration_of_its_mechanism() -> None:
    for count in (1, 7):
        gaussian = calibrate(lambda level, count=count: [Gaussian(level).times(count)], epsilon=0.7, delta=1e-6)
        budget = Calibration({"x": Gaussians(count=count, share=count)}, epsilon=0.7, delta=1e-6)
        assert budget["x"] == budget.scale == gaussian


@pytest.mark.parametrize("relation", ["zero-out", "replace"])
@pytest.mark.parametrize("count", [1, 7])
def test_one_mu_is_the_smallest_that_is_enough(count: int, relation: Any) -> None:
    """Integers below 2^13 exactly, larger ones to 1e-4."""
    for statistic in (MATRIX, CELL):
        releases = SkellamMus(statistic, count)
        mu = Calibration({"x": releases}, epsilon=0.7, delta=1e-6, relation=relation)["x"]

        def spent(mu: int, releases: SkellamMus = releases) -> float:
            return guarantee([releases.cost(mu)], delta=1e-6, relation=relation).epsilon

        assert spent(mu) <= 0.7 < spent(min(mu - 1, math.floor(mu * (1 - 2.5e-4))))


def test_mus_keep_their_ratios_and_are_integers() -> None:
    """Up to rounding: each mu is the smallest integer above ratio times scale."""
    ratios = {"fine": 4.0, "coarse": 1.0, "other": 2.5}
    releases = {name: SkellamMus(CELL, 2, ratio) for name, ratio in ratios.items()}
    budget = Calibration(releases, epsilon=1.0, delta=1e-6)
    assert all(isinstance(mu, int) for mu in budget.values())
    for name, ratio in ratios.items():
        assert budget[name] == math.ceil(budget.scale * ratio)
    assert 0.97 < guarantee(budget.costs(), delta=1e-6).epsilon <= 1.0


def test_releases_of_fixed_noise_leave_less_for_the_others() -> None:
    others = (Laplace(0.4), Gaussian(12.0))
    free = Calibration({"x": Gaussians()}, epsilon=1.0, delta=1e-6)
    beside = Calibration({"x": Gaussians()}, epsilon=1.0, delta=1e-6, others=others)
    assert beside["x"] > free["x"]
    assert beside.costs()[1:] == list(others)
    assert 0.998 < guarantee(beside.costs(), delta=1e-6).epsilon <= 1.0
    with pytest.raises(BadPrivacyParameter):
        Calibration({"x": Gaussians()}, epsilon=0.3, delta=1e-6, others=others)


def test_colluders_change_the_account_and_not_the_noise() -> None:
    budget = Calibration({"x": Skellams(MATRIX)}, epsilon=1.0, delta=1e-6)
    totals = [guarantee(budget.costs(colluders), delta=1e-6).epsilon for colluders in (0, 2, 4)]
    assert totals[0] < totals[1] <= 1.0 < totals[2]
    assert guarantee(budget.costs(), delta=1e-6).epsilon == totals[1]


def test_other_releases_bring_their_own_level_and_cost() -> None:
    @dataclass(frozen=True)
    class Pure:
        share: float

        def level(self, scale: float) -> float:
            return self.share / scale

        def cost(self, level: float, *, colluders: int | None = None) -> Cost:
            return Laplace(level)

    budget = Calibration({"a": Pure(1.0), "b": Pure(3.0)}, epsilon=2.0, delta=0.0)
    assert budget["b"] == pytest.approx(3 * budget["a"])
    assert budget["a"] + budget["b"] == pytest.approx(2.0, rel=2e-4)


def test_noise_ends_and_the_budget_is_refused() -> None:
    with pytest.raises(BadPrivacyParameter, match="no noise scale"):
        Calibration(
            {"x": SkellamMus(Skellam(1, delta_1=2.0**50, delta_2=2.0**44, parties=2))}, epsilon=0.01, delta=1e-6
        )
    assert Calibration({"x": SkellamMus(CELL)}, epsilon=60.0, delta=1e-3)["x"] == 1
    assert Skellams(MATRIX).level(1e30) == LARGEST_MU
