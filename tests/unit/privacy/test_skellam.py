"""The cost of Skellam noise, against brute force on the law itself and against dp_accounting's Gaussian."""

from __future__ import annotations

import itertools
import json
import math
from dataclasses import replace
from fractions import Fraction
from typing import Any

import mpmath
import msgpack
import numpy as np
import pytest
from dp_accounting import dp_event
from dp_accounting.pld import privacy_loss_distribution
from dp_accounting.rdp import rdp_privacy_accountant
from scipy import special
from scipy.special import logsumexp

from colonnade.errors import BadPrivacyParameter, CannotAccount, UnsafeRequest
from colonnade.privacy.accounting import guarantee
from colonnade.privacy.calibration import Calibration, SkellamMus
from colonnade.privacy.cost import Cost, Relation
from colonnade.privacy.mechanisms import mechanism_of, under
from colonnade.privacy.skellam import Skellam, delta_1_bound

ORDERS = np.array([2.0, 3, 5, 10, 30])


def mu_for(*, epsilon: float, delta: float, steps: int = 1, relation: Relation = "zero-out", **stated: Any) -> int:
    """The mu at which so many releases cost (epsilon, delta)."""
    releases = {"x": SkellamMus(Skellam(1, **stated), steps)}
    return int(Calibration(releases, epsilon=epsilon, delta=delta, relation=relation)["x"])


def skellam(mu: float, size: int = 1, **options) -> Cost:
    return Skellam(mu, delta_1=size, delta_2=size, parties=4, **options)


def rdp(cost: Cost, orders: np.ndarray = ORDERS) -> np.ndarray:
    return mechanism_of(cost).rdp(cost, orders)


def lemma_2(mu: float, delta_1: float, delta_2: float, orders: np.ndarray) -> np.ndarray:
    """The bound of the SQM paper and of Agarwal, Kairouz and Liu 2021 (who write mu for the variance)."""
    excess = np.minimum(((2 * orders - 1) * delta_2**2 + 6 * delta_1) / (16 * mu**2), 3 * delta_1 / (4 * mu))
    return orders * delta_2**2 / (4 * mu) + excess


def log_law(mu: float, shifts: tuple[int, ...]) -> list[np.ndarray]:
    """log P(Sk(mu) + shift = k), by scipy, on outcomes wide enough for every order below."""
    width = int(22 * math.sqrt(2 * mu) + 30) + max(abs(shift) for shift in shifts)
    outcomes = np.arange(-width, width + 1)
    with np.errstate(divide="ignore"):
        laws = [np.log(special.ive(np.abs(outcomes - shift), 2 * mu)) for shift in shifts]
    assert all(abs(logsumexp(law)) < 1e-9 for law in laws)
    return laws


def mixture(q: float, log_out: np.ndarray, log_in: np.ndarray) -> np.ndarray:
    return np.logaddexp(math.log1p(-q) + log_out, math.log(q) + log_in)


def renyi(log_a: np.ndarray, log_b: np.ndarray, order: float) -> float:
    """D_order(A || B). An outcome that scipy's doubles lose is left out, which lowers this: safe for an oracle of
    lower bounds, and the widths above keep it below 1e-9."""
    seen = np.isfinite(log_a) & np.isfinite(log_b)
    return float(logsumexp(order * log_a[seen] + (1 - order) * log_b[seen]) / (order - 1))


def hockey_stick(log_a: np.ndarray, log_b: np.ndarray, epsilon: float) -> float:
    return float(np.maximum(np.exp(log_a) - math.exp(epsilon) * np.exp(log_b), 0).sum())


def epsilon_of(log_a: np.ndarray, log_b: np.ndarray, delta: float) -> float:
    low, high = 0.0, 50.0
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (low, middle) if hockey_stick(log_a, log_b, middle) <= delta else (middle, high)
    return high


# --- Renyi divergences ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("mu", [0.5, 1, 3, 10, 50, 1000, 2**14])
@pytest.mark.parametrize("shift", [1, 2, 5])
def test_the_bound_is_above_the_divergence_and_near(mu, shift):
    orders = np.array([order for order in (1.05, 1.5, 2, 2.7, 3, 5, 10, 30) if order * shift <= 8 * math.sqrt(mu) + 4])
    law, moved = log_law(mu, (0, shift))
    exact = np.array([renyi(moved, law, order) for order in orders])
    bound = rdp(skellam(mu, shift), orders)
    assert np.all(bound >= exact * (1 - 1e-9))
    whole = orders == np.round(orders)
    if shift < 2 * mu:
        assert np.all(bound[whole] <= lemma_2(mu, shift, shift, orders[whole]) * (1 + 1e-9))
    # Beyond alpha D = mu / 5 the tails are Poisson's, not Gauss's.
    tight = whole & (orders * shift <= mu / 5)
    assert np.all(bound[tight] <= exact[tight] * (1.002 + 0.6 / mu))
    assert tight.any() or mu < 10 * shift


def test_second_differences_are_smallest_in_the_middle():
    """What the bound rests on: I_(k+1) I_(k-1) / I_k^2 grows with k."""
    with mpmath.workprec(300):
        for x in (0.02, 1.0, 30.0, 400.0):
            bessel = [mpmath.besseli(k, x) for k in range(80)]
            quotients = [bessel[k + 1] * bessel[abs(k - 1)] / bessel[k] ** 2 for k in range(79)]
            assert all(one < other for one, other in itertools.pairwise(quotients))


def test_the_decay_is_an_upper_bound_and_has_no_step():
    """log(I_0/I_1), by mpmath, on both sides of the change of formula at 2 mu = 1000."""
    with mpmath.workprec(200):
        for x in (1e-3, 0.5, 18.0, 999.9, 1000.1, 5000.0):
            truth = float(mpmath.log(mpmath.besseli(0, x) / mpmath.besseli(1, x)))
            cost = Skellam(x / 2, delta_1=1, delta_2=1, parties=1)
            assert truth <= rdp(cost, np.array([2.0]))[0] / 2 <= truth * (1 + 1e-7)


def test_the_constant_is_the_gaussian_one_of_variance_two_mu():
    """alpha D2^2 / (2 * 2 mu), as the noise grows beside D1: nothing is lost to the discrete noise."""
    for mu in (2.0**20, 2.0**40, 2.0**63, 2.0**90):
        delta_2 = math.sqrt(mu / 8)
        cost = Skellam(mu, delta_1=delta_2, delta_2=delta_2, parties=3)
        overhead = rdp(cost) / (ORDERS * delta_2**2 / (4 * mu)) - 1
        assert np.all(overhead > 0)
        assert np.all(overhead < 1 / mu + 1e-11)


def test_several_coordinates_add_up():
    """D1 = 3, D2 = sqrt 5: the shift (2, 1). The divergence of a product is the sum."""
    mu = 100.0
    exact = [sum(renyi(*reversed(log_law(mu, (0, part))), order) for part in (2, 1)) for order in ORDERS[:4]]
    bound = rdp(Skellam(mu, delta_1=3, delta_2=math.sqrt(5), parties=2), ORDERS[:4])
    assert np.all(bound >= exact)
    assert np.all(bound <= np.array(exact) * 1.01)


def test_extremes():
    assert math.isinf(mechanism_of(skellam(2)).pure(skellam(2)))
    assert np.all(np.isinf(rdp(skellam(1e-320))))
    assert np.all(rdp(skellam(1e-9, 50)) <= lemma_2(1e-9, 50, 50, ORDERS))


def test_colluders_take_their_noise_away():
    whole = Skellam(30, delta_1=1, delta_2=1, parties=3, colluders=1)
    assert np.allclose(rdp(whole), rdp(Skellam(20, delta_1=1, delta_2=1, parties=3)), rtol=1e-12)


@pytest.mark.parametrize("shift", [1, 3])
def test_replace_covers_two_coordinates_and_the_other_side(shift):
    """A record leaves one cell of a table and enters another: D2 grows by sqrt 2 (and D1 by 2)."""
    mu = 60.0
    table = under(skellam(mu, shift, replace_factor=math.sqrt(2)), "replace")
    stated = Skellam(mu, delta_1=2 * shift, delta_2=math.sqrt(2) * shift, parties=4, relation="replace")
    assert np.allclose(rdp(table), rdp(stated), rtol=1e-12)
    assert table["delta_1"] == 2 * shift
    law, moved = log_law(mu, (0, shift))
    assert np.all(rdp(table) >= [2 * renyi(moved, law, order) for order in ORDERS])
    gradient = under(skellam(mu, shift), "replace")
    one, other = log_law(mu, (shift, -shift))
    assert np.all(rdp(gradient) >= [renyi(one, other, order) for order in ORDERS])


def test_replace_is_derived_once():
    cost = under(skellam(60), "replace")
    with pytest.raises(CannotAccount):
        mechanism_of(cost).scaled(cost, 2.0)
    with pytest.raises(CannotAccount):
        mechanism_of(cost).scaled(skellam(60), 3.0)


# --- sampling ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("q", [0.001, 0.1, 0.5, 0.9])
@pytest.mark.parametrize(("mu", "shift"), [(2.0, 1), (50.0, 3), (2000.0, 20)])
def test_the_amplified_bound_is_above_both_directions(q, mu, shift):
    law, moved = log_law(mu, (0, shift))
    batch = mixture(q, law, moved)
    orders = ORDERS if mu > 10 else ORDERS[:3]
    bound = rdp(skellam(mu, shift, sampling=q), orders)
    there = np.array([renyi(batch, law, order) for order in orders])
    back = np.array([renyi(law, batch, order) for order in orders])
    assert np.all(bound >= there * (1 - 1e-7))  # doubles leave 1e-7 of a divergence of 1e-9
    assert np.all(bound >= back * (1 - 1e-7))
    assert np.all(bound <= rdp(skellam(mu, shift), orders))
    if mu == 2000.0:
        assert np.all(bound <= there * 1.01 + 1e-12)


@pytest.mark.parametrize("q", [0.01, 0.3])
def test_the_amplified_replace_bound_is_above_all_pairs_of_mixtures(q):
    mu, shift = 50.0, 3
    bound = rdp(under(skellam(mu, shift, sampling=q), "replace"))
    law, *moved = log_law(mu, (0, shift, -shift, 1))
    batches = [mixture(q, law, one) for one in (*moved, law)]
    for a in batches:
        for b in batches:
            assert np.all(bound >= [renyi(a, b, order) - 1e-12 for order in ORDERS])
    assert np.all(bound <= rdp(under(skellam(mu, shift), "replace")))


def test_a_block_of_a_sampled_record_is_a_replacement():
    """Zeroing one block leaves a record in the batch: the pair of mixtures counts, not mixture against nothing."""
    cost = skellam(50.0, 3, sampling=0.1)
    of_block = guarantee([cost], delta=1e-6, unit="block").epsilon
    assert of_block == guarantee([cost], delta=1e-6, relation="replace").epsilon
    assert of_block > guarantee([cost], delta=1e-6).epsilon


@pytest.mark.parametrize("q", [0.001, 0.05])
def test_amplification_is_the_gaussian_one_for_large_noise(q):
    """dp_accounting's sampled Gaussian is exact at integer orders."""
    delta_2, multiplier = 2.0**30, 1.5
    mu = (multiplier * delta_2) ** 2 / 2
    cost = Skellam(mu, delta_1=2.0**34, delta_2=delta_2, parties=3, sampling=q)
    orders = np.array([2.0, 3, 8, 32, 200])
    accountant = rdp_privacy_accountant.RdpAccountant(orders)
    accountant.compose(dp_event.PoissonSampledDpEvent(q, dp_event.GaussianDpEvent(multiplier)))
    assert rdp(cost, orders) == pytest.approx(accountant._rdp, rel=1e-6)


def test_beyond_the_last_amplified_order_sampling_is_ignored():
    plain, sampled = (rdp(skellam(10.0, sampling=q), np.array([4096.0, 5000.0])) for q in (1.0, 0.5))
    assert sampled[0] < plain[0]
    assert sampled[1] == plain[1]


def test_sampling_does_not_protect_against_colluders():
    with pytest.raises(UnsafeRequest):
        skellam(10.0, colluders=1, sampling=0.1)


# --- privacy loss distributions ---------------------------------------------------------------------------------

EPSILONS = np.array([-1.0, 0.0, 0.01, 0.1, 0.3, 1.0, 2.0, 4.0])


@pytest.mark.parametrize(("mu", "shift"), [(0.3, 1), (5.0, 1), (5.0, 3), (300.0, 7)])
def test_the_pld_is_above_the_hockey_stick_and_near(mu, shift):
    found = mechanism_of(skellam(1)).pld(skellam(mu, shift, shift="single"))
    law, moved, less = log_law(mu, (0, shift, shift - 1))
    for epsilon in EPSILONS:
        bound, exact = found.get_delta_for_epsilon(epsilon), hockey_stick(moved, law, epsilon)
        assert bound >= exact * (1 - 1e-9)
        assert bound <= exact + 1.1e-4 * math.exp(max(0.0, -epsilon)) * (exact + 1)
        assert bound >= hockey_stick(less, law, epsilon) * (1 - 1e-9)  # a smaller shift is covered


def test_the_pld_is_the_one_that_dp_accounting_builds_from_two_laws():
    law, moved = log_law(5.0, (0, 2))
    seen = np.isfinite(law) & np.isfinite(moved)
    low, high = (dict(enumerate(one[seen].tolist())) for one in (law, moved))
    theirs = privacy_loss_distribution.from_two_probability_mass_functions(low, high)
    ours = mechanism_of(skellam(1)).pld(skellam(5.0, 2, shift="single"))
    assert ours.get_delta_for_epsilon(EPSILONS) == pytest.approx(theirs.get_delta_for_epsilon(EPSILONS), abs=1e-12)


@pytest.mark.parametrize("q", [0.02, 0.4])
def test_the_sampled_pld_is_above_both_directions(q):
    mu, shift = 5.0, 2
    law, moved = log_law(mu, (0, shift))
    batch = mixture(q, law, moved)
    found = mechanism_of(skellam(1)).pld(skellam(mu, shift, sampling=q, shift="single"))
    for epsilon in EPSILONS[1:]:
        bound = found.get_delta_for_epsilon(epsilon)
        exact = max(hockey_stick(batch, law, epsilon), hockey_stick(law, batch, epsilon))
        assert exact * (1 - 1e-9) <= bound <= exact + 1.1e-4


@pytest.mark.parametrize("relation", ["zero-out", "replace"])
def test_several_tables_are_a_composition(relation):
    """Two tables, or one under replace, are two cells: brute force on their product; and rdp >= pld >= the truth."""
    mu, delta, tables = 8.0, 1e-5, 2 if relation == "zero-out" else 1
    law, moved = (one[25:-25] for one in log_law(mu, (0, 1)))
    assert np.exp(moved).sum() > 1 - 1e-12
    truth = epsilon_of(np.add.outer(moved, moved), np.add.outer(law, law), delta)
    cost = skellam(mu, shift="single").times(tables)
    found = guarantee([cost], delta=delta, relation=relation)
    assert found.accountant == "pld"
    assert truth - 1e-6 <= found.epsilon <= truth + 3e-4
    by_rdp = guarantee([skellam(mu, replace_factor=math.sqrt(2)).times(tables)], delta=delta, relation=relation)
    assert by_rdp.accountant == "rdp"
    assert by_rdp.epsilon >= found.epsilon


@pytest.mark.parametrize("mu", [1.0, 10.0, 200.0])
@pytest.mark.parametrize("count", [1, 20])
def test_renyi_is_above_the_exact_pld(mu, count):
    for delta in (1e-3, 1e-6, 1e-9):
        by_rdp = guarantee([skellam(mu).times(count)], delta=delta)
        by_pld = guarantee([skellam(mu, shift="single").times(count)], delta=delta)
        assert by_rdp.epsilon >= by_pld.epsilon
        if mu == 200.0:
            assert by_rdp.epsilon <= by_pld.epsilon * 1.3


def test_where_no_pld_is_offered():
    mechanism = mechanism_of(skellam(1))
    assert mechanism.pld(skellam(5.0)) is None
    assert mechanism.pld(skellam(2.0**25, shift="single")) is None
    assert mechanism.pld(skellam(1.0, 50, shift="single")) is None
    assert mechanism.pld(under(skellam(5.0, shift="single", sampling=0.1), "replace")) is None


# --- calibration ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "task",
    [
        {"delta_1": 1, "delta_2": 1, "shift": "single"},
        {"delta_1": 1, "delta_2": 1, "shift": "single", "steps": 30, "colluders": 1, "relation": "replace"},
        {"delta_1": 40.0, "delta_2": 9.0, "colluders": 2},
        {"delta_1": 2.0**33, "delta_2": 2.0**28, "colluders": 1, "relation": "replace", "replace_factor": 1.5},
        {"delta_1": 2.0**44, "delta_2": 2.0**40, "sampling": 0.01, "steps": 200},
    ],
)
def test_the_calibrated_mu_is_enough_and_hardly_less_is(task):
    epsilon, delta = 0.8, 1e-6
    mu = mu_for(epsilon=epsilon, delta=delta, parties=5, **task)
    assert isinstance(mu, int)
    stated = {key: value for key, value in task.items() if key not in ("steps", "relation")}

    def spent(scale: int) -> float:
        cost = Skellam(scale, parties=5, **stated).times(task.get("steps", 1))
        return guarantee([cost], delta=delta, relation=task.get("relation", "zero-out")).epsilon

    assert spent(mu) <= epsilon
    assert spent(min(mu - 1, math.floor(mu * (1 - 2.5e-4)))) > epsilon


def test_calibration_ends_at_the_largest_noise_and_at_one():
    assert mu_for(epsilon=50.0, delta=1e-5, delta_1=1, delta_2=1, parties=2) == 1
    with pytest.raises(BadPrivacyParameter):
        mu_for(epsilon=0.01, delta=1e-6, delta_1=2.0**50, delta_2=2.0**44, parties=2)


def test_the_l1_bound_of_integers():
    """Attained by a vector of ones, and by equal large entries; never below an integer vector's own norm."""
    assert delta_1_bound(2.0, 100) == 4.0
    assert delta_1_bound(30.0, 9) == 90.0
    vectors = np.random.default_rng(3).integers(-3, 4, size=(200, 6))
    for vector in vectors:
        assert np.abs(vector).sum() <= delta_1_bound(float(np.linalg.norm(vector)), 6) + 1e-9


# --- costs as data ----------------------------------------------------------------------------------------------


def test_a_cost_survives_the_wire_at_any_scale():
    cost = Skellam(2**90 - 1, delta_1=2**70 + 1, delta_2=2**60 + 1, parties=3, colluders=1, joint="gram")
    plain = cost.to_dict()
    assert Cost.from_dict(json.loads(json.dumps(plain))) == cost
    assert Cost.from_dict(msgpack.unpackb(msgpack.packb(plain))) == cost
    assert cost["mu"] < 2**90 - 1  # doubles, rounded to the side that costs more
    assert cost["delta_1"] > 2**70 + 1
    assert cost["delta_2"] > 2**60 + 1
    assert Skellam(Fraction(1, 3), delta_1=1, delta_2=1, parties=1)["mu"] <= Fraction(1, 3)


@pytest.mark.parametrize(
    "wrong",
    [
        {"mu": 0},
        {"mu": math.nan},
        {"mu": 2**90 + 2**40},
        {"delta_1": -1},
        {"delta_1": 0.5},
        {"delta_2": math.inf},
        {"parties": 0},
        {"parties": 2.5},
        {"colluders": 3},
        {"colluders": -1},
        {"sampling": 0},
        {"sampling": 1.1},
        {"shift": "double"},
        {"shift": "single", "delta_2": 1.5},
        {"shift": "single", "relation": "replace"},
    ],
)
def test_what_makes_no_sense_is_refused(wrong):
    with pytest.raises(BadPrivacyParameter):
        Skellam(**{"mu": 4, "delta_1": 1, "delta_2": 1, "parties": 3} | wrong)


@pytest.mark.parametrize(
    "forged",
    [
        {"mu": 0.0},
        {"colluders": 4},
        {"colluders": -1},
        {"parties": 3.5},
        {"sampling": 0.5, "colluders": 1},
        {"delta_2": 0.0},
        {"delta_2": 1.5},
        {"replaced": 0.5},
        {"mu": "much"},
        {"delta_2": 1.5, "shift": "single"},
    ],
)
def test_a_forged_cost_is_refused(forged):
    cost = skellam(4.0)
    forgery = replace(cost, parameters=tuple(sorted((dict(cost.parameters) | forged).items())))
    with pytest.raises(CannotAccount):
        guarantee([forgery], delta=1e-6)
    lacking = replace(cost, parameters=tuple(pair for pair in cost.parameters if pair[0] != "colluders"))
    with pytest.raises(CannotAccount):
        guarantee([lacking], delta=1e-6)
