"""Accounting against dp_accounting's own accountants, closed forms and sums over exact distributions."""

from __future__ import annotations

import math
import time

import dp_accounting
import mpmath
import numpy as np
import pytest
from dp_accounting.pld import PLDAccountant
from dp_accounting.rdp import RdpAccountant
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from scipy import stats
from scipy.optimize import brentq
from scipy.special import logsumexp

from colonnade.errors import BadPrivacyParameter, CannotAccount
from colonnade.privacy import mechanisms
from colonnade.privacy.accounting import (
    ORDERS,
    Guarantee,
    calibrate,
    check_delta,
    check_epsilon,
    dominated,
    guarantee,
    keeps_within,
    register,
    under,
)
from colonnade.privacy.cost import (
    Cost,
    Free,
    Gaussian,
    GaussianCell,
    Laplace,
    RandomizedResponse,
    Relation,
    Unbounded,
    ZeroConcentrated,
    compose,
)
from colonnade.privacy.mechanisms import mechanism_of, randomized_response_rdp
from colonnade.privacy.skellam import Skellam


def curve(cost: Cost) -> np.ndarray:
    return mechanism_of(cost).rdp(cost, ORDERS)


def renyi(log_p: np.ndarray, log_q: np.ndarray, order: float) -> float:
    """From the definition."""
    return float(logsumexp(order * log_p + (1 - order) * log_q) / (order - 1))


def hockey_stick(p: np.ndarray, q: np.ndarray, epsilon: float) -> float:
    return float(np.maximum(p - math.exp(epsilon) * q, 0).sum())


def shifted_pair(log_weight: np.ndarray, shift: int) -> tuple[np.ndarray, np.ndarray]:
    """The logarithms of a pmf and of its shift."""
    log_pmf = log_weight - logsumexp(log_weight)
    return log_pmf[shift:], log_pmf[:-shift]


# --- single mechanisms -----------------------------------------------------------------------------------


@pytest.mark.parametrize("epsilon", [1e-7, 0.02, 0.7, 5.0, 40.0, 900.0])
@pytest.mark.parametrize("categories", [2, 3, 1000])
def test_randomized_response_divergence_is_the_definition(epsilon: float, categories: int) -> None:
    # Oracle: the definition in 60 digits.
    with mpmath.workdps(60):
        e, k = mpmath.e ** mpmath.mpf(epsilon), categories
        p, q = e / (e + k - 1), 1 / (e + k - 1)
        for order, found in list(zip(ORDERS, randomized_response_rdp(epsilon, k, ORDERS), strict=True))[::9]:
            a = mpmath.mpf(float(order))
            want = mpmath.log(p**a * q ** (1 - a) + q**a * p ** (1 - a) + (k - 2) * q) / (a - 1)
            assert found == pytest.approx(float(want), rel=1e-9)


@pytest.mark.parametrize("epsilon", [0.1, 1.0, 3.0])
def test_laplace_cost_bounds_discrete_and_continuous_laplace(epsilon: float) -> None:
    # Oracles: sums over the discrete Laplace pmf at sensitivities 1 and 4; Mironov's closed form for the continuous.
    ours = curve(Laplace(epsilon))
    for sensitivity in (1, 4):
        x = np.arange(-3000, 3001)
        p, q = shifted_pair(-epsilon / sensitivity * np.abs(x), sensitivity)
        for index in range(0, 120, 7):
            exact = renyi(p, q, ORDERS[index])
            assert exact <= ours[index] * (1 + 1e-9)
            if sensitivity == 1:  # then it is randomized response: the bound is attained
                assert exact == pytest.approx(ours[index], rel=1e-6)
    a = ORDERS[:120]
    continuous = np.log(a / (2 * a - 1) * np.exp((a - 1) * epsilon) + (a - 1) / (2 * a - 1) * np.exp(-a * epsilon)) / (
        a - 1
    )
    assert np.all(continuous < ours[:120])  # the continuous curve would be too small for integers


@pytest.mark.parametrize(("sigma", "shift"), [(0.4, 1), (1.0, 1), (3.0, 2), (5.0, 9)])
def test_gaussian_cost_bounds_the_discrete_gaussian(sigma: float, shift: int) -> None:
    # Oracle: sums over the discrete Gaussian pmf (Canonne, Kamath, Steinke, Theorem 4 says <=).
    x = np.arange(-200.0, 201.0)
    log_p, log_q = shifted_pair(-(x**2) / (2 * sigma**2), shift)
    ours = curve(Gaussian(sigma / shift))
    for index in range(0, 80, 5):
        assert renyi(log_p, log_q, ORDERS[index]) <= ours[index] * (1 + 1e-9)


# --- composition -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("multiplier", [0.5, 2.0, 30.0])
@pytest.mark.parametrize("count", [1, 40])
def test_gaussians_agree_with_the_rdp_accountant(multiplier: float, count: int) -> None:
    other = RdpAccountant(orders=ORDERS)
    other.compose(dp_accounting.GaussianDpEvent(multiplier), count)
    found = guarantee([Gaussian(multiplier)] * count, delta=1e-6)
    assert found.accountant == "rdp"
    assert found.epsilon == pytest.approx(other.get_epsilon(1e-6), rel=1e-9)


@pytest.mark.parametrize("multiplier", [0.5, 1.0, 2.0, 5.0, 20.0])
def test_gaussian_lies_above_the_analytic_gaussian_and_near_it(multiplier: float) -> None:
    # Oracle: Balle and Wang 2018, exact for the continuous Gaussian. What RDP loses in its conversion is known: 6-9 %.
    def delta(epsilon: float) -> float:
        shift = 1 / multiplier
        return float(
            stats.norm.cdf(shift / 2 - epsilon / shift)
            - math.exp(epsilon) * stats.norm.cdf(-shift / 2 - epsilon / shift)
        )

    exact = brentq(lambda epsilon: delta(epsilon) - 1e-6, 0.0, 50.0)
    assert exact <= guarantee([Gaussian(multiplier)], delta=1e-6).epsilon <= 1.10 * exact


def test_orders_are_dense_enough() -> None:
    # Oracle: the same conversion minimised over a continuum of orders. The grid may cost 0.5 %.
    def converted(order: float, rho: float) -> float:
        return order * rho + math.log1p(-1 / order) - math.log(1e-6 * order) / (order - 1)

    for multiplier in np.geomspace(0.1, 300, 25):
        rho = 1 / (2 * multiplier**2)
        best = min(converted(1 + off, rho) for off in np.geomspace(0.011, 2e5, 4_000))
        assert best * (1 - 1e-4) <= guarantee([Gaussian(multiplier)], delta=1e-6).epsilon <= 1.005 * best


def composed_response_delta(one: float, count: int, epsilon: float) -> float:
    """Kairouz, Oh, Viswanath: `count` binary randomized responses, exactly."""
    wrong = np.arange(count + 1)
    p = stats.binom.pmf(wrong, count, 1 / (1 + math.exp(one)))
    q = stats.binom.pmf(wrong, count, 1 / (1 + math.exp(-one)))
    return hockey_stick(p, q, epsilon)


@pytest.mark.parametrize("make", [Laplace, RandomizedResponse])
@pytest.mark.parametrize(("one", "count"), [(0.1, 50), (0.5, 8), (1.0, 3)])
def test_pure_mechanisms_compose_like_randomized_responses(make: type, one: float, count: int) -> None:
    found = guarantee([make(one)] * count, delta=1e-5)
    assert composed_response_delta(one, count, found.epsilon) <= 1e-5  # true
    assert composed_response_delta(one, count, 0.98 * found.epsilon) > 1e-5  # and tight


def test_categorical_responses_agree_with_the_pld_accountant_and_the_exact_sum() -> None:
    other = PLDAccountant(dp_accounting.NeighboringRelation.REPLACE_ONE)
    for _ in range(20):  # one by one: dp_accounting 0.6.0 ignores the count of a RandomizedResponseDpEvent
        other.compose(dp_accounting.RandomizedResponseDpEvent(7 / (math.exp(0.3) + 6), 7))
    found = guarantee([RandomizedResponse(0.3, 7)] * 20, delta=1e-6)
    assert found.accountant == "pld"
    assert found.epsilon == pytest.approx(other.get_epsilon(1e-6), rel=1e-5)
    # Exactly: the sum of 20 losses in {-0.3, 0, 0.3}, by convolution of their three chances.
    wrong = 1 / (math.exp(0.3) + 6)
    total = np.ones(1)
    for _ in range(20):
        total = np.convolve(total, [wrong, 5 * wrong, 1 - 6 * wrong])
    losses = 0.3 * np.arange(-20, 21)

    def delta(epsilon: float) -> float:
        return float(np.sum(total * np.maximum(-np.expm1(epsilon - losses), 0)))

    assert delta(found.epsilon) <= 1e-6 < delta(0.99 * found.epsilon)


@pytest.mark.parametrize(("sigma", "sensitivity"), [(2.0, 1), (9.0, 4)])
def test_two_gaussian_cells_against_the_exact_two_dimensional_sum(sigma: float, sensitivity: int) -> None:
    # Oracle: the hockey-stick divergence of the product of two discrete Gaussians, summed over the square.
    x = np.arange(-150, 151)
    p, q = shifted_pair(-(x.astype(float) ** 2) / (2 * sigma**2), sensitivity)
    pp, qq = np.exp(np.add.outer(p, p)), np.exp(np.add.outer(q, q))
    found = guarantee([GaussianCell(sigma, sensitivity)] * 2, delta=1e-5)
    assert found.accountant == "pld"
    assert hockey_stick(pp, qq, found.epsilon) <= 1e-5 < hockey_stick(pp, qq, 0.995 * found.epsilon)
    assert found.epsilon < guarantee([Gaussian(sigma / sensitivity)] * 2, delta=1e-5).epsilon


def test_the_minimum_over_accountants_is_reported() -> None:
    assert guarantee([Laplace(0.25), Laplace(0.5)], delta=0.0) == Guarantee(
        epsilon=0.75, delta=0.0, unit="record", relation="zero-out", accountant="pure"
    )
    assert guarantee([Laplace(2.0), Gaussian(3.0)], delta=1e-6).accountant == "rdp"
    assert guarantee([], delta=1e-6).epsilon == 0.0
    assert math.isinf(guarantee([Gaussian(3.0)], delta=0.0).epsilon)


def test_a_mechanism_with_integer_orders_only_can_be_registered(monkeypatch: pytest.MonkeyPatch) -> None:
    class Whole:
        def pure(self, cost: Cost) -> float:
            return math.inf

        def rdp(self, cost: Cost, orders: np.ndarray) -> np.ndarray:
            return np.where(orders == np.round(orders), orders * cost.number("rho"), np.inf)

        def pld(self, cost: Cost) -> None:
            return None

        def scaled(self, cost: Cost, factor: float) -> Cost:
            return Cost(mechanism="whole", parameters=(("rho", cost.number("rho") * factor**2),))

    monkeypatch.setitem(mechanisms._MECHANISMS, "whole", Whole())
    cost = Cost(mechanism="whole", parameters=(("rho", 1 / 50),))
    assert guarantee([cost], delta=1e-6).epsilon == pytest.approx(
        guarantee([Gaussian(5.0)], delta=1e-6).epsilon, rel=5e-3
    )
    assert guarantee([cost], delta=1e-6, relation="replace").epsilon == pytest.approx(
        guarantee([Gaussian(2.5)], delta=1e-6).epsilon, rel=5e-3
    )


def test_fifty_different_gaussians_are_quick() -> None:
    costs = [Gaussian(20.0 + i) for i in range(50)]
    guarantee(costs, delta=1e-6)  # imports
    taken = []
    for _ in range(10):
        start = time.perf_counter()
        guarantee(costs, delta=1e-6)
        taken.append(time.perf_counter() - start)
    assert min(taken) < 0.05  # about 1 ms on an idle machine


# --- relations, units, joint releases --------------------------------------------------------------------


def test_relations_scale_the_sensitivity() -> None:
    assert under(Gaussian(2.0, replace_factor=math.sqrt(2)), "replace").number("noise_multiplier") == pytest.approx(
        math.sqrt(2)
    )
    assert under(Laplace(0.5), "replace").number("epsilon") == 1.0
    assert under(RandomizedResponse(0.5, 4), "replace")["epsilon"] == 0.5
    assert under(RandomizedResponse(0.5, 4, replace_factor=2.0), "replace") == Laplace(
        1.0, relation="replace", replace_factor=1.0
    )
    assert dict(under(GaussianCell(4.0, 2), "replace").parameters) == {"noise_multiplier": 1.0}
    assert under(GaussianCell(4.0, 2, replace_factor=1.0), "replace")["sigma"] == 4.0


def test_a_replace_bound_serves_zero_out_and_comes_back_unchanged() -> None:
    bound = Gaussian(2.0, relation="replace")
    weaker = under(bound, "zero-out")
    assert weaker.number("noise_multiplier") == 2.0
    assert under(weaker, "replace").parameters == bound.parameters


def test_relations_reach_into_composed_costs() -> None:
    nested = compose([Laplace(0.5), compose([Gaussian(4.0), Free("public")])]).times(3)
    assert guarantee([nested], delta=1e-6, relation="replace").epsilon == pytest.approx(
        guarantee([Laplace(1.0).times(3), Gaussian(2.0).times(3)], delta=1e-6).epsilon
    )
    assert {leaf.relation for leaf in under(nested, "replace").leaves()} == {"replace"}


def test_joint_releases_count_once() -> None:
    ours, theirs = Gaussian(3.0, joint="gram-1", audience="court"), Gaussian(3.0, joint="gram-1", audience="tax")
    once = guarantee([Gaussian(3.0)], delta=1e-6)
    assert guarantee([ours, theirs], delta=1e-6) == once
    assert guarantee([compose([ours, Free("x")]), theirs], delta=1e-6) == once
    assert guarantee([ours, Gaussian(3.0, joint="gram-2")], delta=1e-6).epsilon > once.epsilon
    # the same release, seen three times by one party and twice by another
    assert guarantee([ours.times(3), theirs.times(2)], delta=1e-6) == guarantee([Gaussian(3.0)] * 3, delta=1e-6)
    phase = compose([Gaussian(3.0), Laplace(0.1)], joint="phase-1")
    assert guarantee([phase, phase], delta=1e-6) == guarantee([Gaussian(3.0), Laplace(0.1)], delta=1e-6)


@pytest.mark.parametrize(
    "other",
    [
        Gaussian(4.0, joint="gram-1"),
        Laplace(1.0, joint="gram-1"),
        Gaussian(3.0, joint="gram-1", relation="replace"),
        Gaussian(3.0, joint="gram-1", replace_factor=1.0),
    ],
)
def test_one_joint_id_for_two_costs_is_refused(other: Cost) -> None:
    with pytest.raises(CannotAccount, match="gram-1"):
        guarantee([Gaussian(3.0, joint="gram-1"), other], delta=1e-6)


def test_units_are_never_mixed() -> None:
    for unit in ("block", "comparison"):
        with pytest.raises(CannotAccount, match=unit):
            guarantee([Laplace(1.0), Laplace(1.0, unit=unit)], delta=1e-6)
    with pytest.raises(CannotAccount):
        guarantee([Laplace(1.0)], delta=1e-6, unit="comparison")
    assert guarantee([Laplace(0.1, unit="comparison")] * 2, delta=0, unit="comparison").epsilon == pytest.approx(0.2)
    assert guarantee([Laplace(1.0), Free("public", unit="block")], delta=0).epsilon == 1.0


def test_record_costs_bound_a_block_as_a_replacement() -> None:
    # Why not as zero-out: f = +1 with both blocks, -1 with one, 0 with none. Zeroing the record moves f by 1,
    # zeroing a block by 2.
    assert guarantee([Laplace(1.0), Laplace(1.0, unit="block")], delta=0, unit="block").epsilon == 3.0
    assert guarantee([Laplace(1.0, relation="replace")], delta=0, unit="block").epsilon == 1.0


def test_unbounded_is_named_whatever_else_there_is() -> None:
    found = guarantee(
        [Laplace(1.0), compose([Unbounded("presence", "who"), Unbounded("alignment", "order", unit="block")])],
        delta=1e-6,
    )
    assert math.isinf(found.epsilon)
    assert found.unbounded == ("alignment", "presence")
    assert str(found) == "unbounded: alignment, presence"


def test_guarantees_print_plainly_and_round_upwards() -> None:
    assert str(guarantee([Laplace(0.98)], delta=1e-6)) == "(0.98, 1e-06) per record, zero-out"
    assert str(guarantee([Laplace(0.98001, unit="block", relation="replace")], delta=0, unit="block")) == (
        "(0.981, 0) per block, zero-out"
    )
    assert str(guarantee([Gaussian(1.0)], delta=0)) == "no finite epsilon at delta 0 per record, zero-out"


@pytest.mark.parametrize(
    "cost",
    [
        Cost(mechanism="magic"),
        Cost(mechanism="laplace"),
        Cost(mechanism="laplace", parameters=(("epsilon", -1.0),)),
        Cost(mechanism="laplace", parameters=(("epsilon", math.nan),)),
        Cost(mechanism="laplace", parameters=(("epsilon", "0.1"),)),
        Cost(mechanism="gaussian", parameters=(("noise_multiplier", 0.0),)),
        Cost(
            mechanism="gaussian", parameters=(("noise_multiplier", 9.0), ("sensitivity", 1), ("sigma", 1.0))
        ),  # contradicts itself
        Cost(mechanism="gaussian", parameters=(("noise_multiplier", 2.0), ("sensitivity", 0.5), ("sigma", 1.0))),
        Cost(mechanism="randomized-response", parameters=(("categories", 1), ("epsilon", 1.0))),
    ],
)
def test_what_nobody_can_account_is_refused(cost: Cost) -> None:
    with pytest.raises(CannotAccount):
        guarantee([cost], delta=1e-6)
    with pytest.raises(CannotAccount):
        dominated([cost], [Laplace(1.0)])


def test_a_mechanism_has_one_meaning() -> None:
    register("laplace", mechanism_of(Laplace(1.0)))  # the same again is fine
    with pytest.raises(ValueError, match="laplace"):
        register("laplace", mechanism_of(Gaussian(1.0)))


# --- dominated -------------------------------------------------------------------------------------------

SMALL_COSTS = st.lists(
    st.one_of(
        st.builds(Laplace, st.sampled_from([0.05, 0.1, 0.3]), count=st.integers(1, 3)),
        st.builds(Gaussian, st.sampled_from([3.0, 10.0, 20.0]), replace_factor=st.sampled_from([1.0, 2.0])),
        st.builds(GaussianCell, st.sampled_from([10.0, 20.0]), st.sampled_from([1, 2])),
        st.builds(RandomizedResponse, st.sampled_from([0.1, 0.3]), st.sampled_from([2, 5])),
        st.builds(Laplace, st.just(0.1), unit=st.just("block")),
        st.builds(Unbounded, st.sampled_from(["presence", "predictor"]), st.just("what")),
    ),
    max_size=4,
)


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(SMALL_COSTS, SMALL_COSTS)
def test_a_reservation_covers_itself_and_less_but_not_more(spent: list[Cost], more: list[Cost]) -> None:
    assert dominated(spent, spent)
    assert dominated(spent, [*spent, *more])
    assert dominated([*spent, Free("public")], spent)
    if more:
        assert not dominated([*spent, *more], spent)


# (spent, reserved) for one release: some cover, some only seem to (their multiplier, epsilon or zero-out bound does).
PAIRS: list[tuple[Cost, Cost]] = [
    (Laplace(0.05), Laplace(0.1)),
    (RandomizedResponse(0.1, 5), Laplace(0.1)),
    (Laplace(0.1), RandomizedResponse(0.1, 5)),
    (Gaussian(20.0), Gaussian(10.0)),
    (Gaussian(20.0).times(4), Gaussian(10.0)),
    (GaussianCell(20.0), Gaussian(20.0)),
    (Gaussian(20.0), GaussianCell(20.0)),
    (GaussianCell(20.0, 2), GaussianCell(10.0)),
    (GaussianCell(20.0), GaussianCell(10.0)),
    (Gaussian(10.0, replace_factor=1.0), Gaussian(10.0)),
    (Gaussian(10.0), Gaussian(10.0, replace_factor=1.0)),
    (Laplace(0.1), Gaussian(5.0)),
]
RECORD_COSTS = SMALL_COSTS.map(lambda costs: [cost for cost in costs if cost.unit == "record" and not cost.unbounded])


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.lists(st.sampled_from(PAIRS), min_size=1, max_size=3), RECORD_COSTS, st.sampled_from(["zero-out", "replace"]))
def test_no_accountant_tells_a_covered_debit_from_its_reservation(
    pairs: list[tuple[Cost, Cost]], rest: list[Cost], relation: str
) -> None:
    # Oracle: the meaning of "covered". Whatever else is spent, the total of the reservation bounds the truth. PLDs are
    # rounded up by at most 1e-4 a release, which `true` may show and the truth does not.
    spent, reserved = [pair[0] for pair in pairs], [pair[1] for pair in pairs]
    if dominated(spent, reserved):
        for delta in (0.0, 1e-6, 1e-2):
            true = guarantee([*spent, *rest], delta=delta, relation=relation).epsilon  # type: ignore[arg-type]
            told = guarantee([*reserved, *rest], delta=delta, relation=relation).epsilon  # type: ignore[arg-type]
            assert true <= told * (1 + 1e-9) + 1e-4 * sum(cost.count for cost in [*spent, *rest])


def test_dominated_compares_every_kind_of_bound() -> None:
    assert dominated([Laplace(0.05)] * 2, [Laplace(0.1)])
    assert dominated([Laplace(0.2), Laplace(0.3), Laplace(0.5), RandomizedResponse(0.9, 4)], [Laplace(1.0)] * 2)
    assert not dominated([Laplace(0.1)], [Laplace(0.05)] * 2)  # the pure sums agree, the curves do not
    assert dominated([GaussianCell(20.0)] * 3, [GaussianCell(10.0)] * 3)
    assert not dominated([GaussianCell(10.0)], [GaussianCell(20.0)])
    assert dominated([Gaussian(10.0)] * 4, [Gaussian(5.0)])
    assert not dominated([Gaussian(10.0)] * 5, [Gaussian(5.0)])
    assert not dominated([Gaussian(100.0)], [Laplace(0.5)])  # no pure bound
    # A cell is accounted more tightly than a vector of the same multiplier: it may not stand in for it.
    assert dominated([GaussianCell(10.0)], [Gaussian(10.0)])
    assert not dominated([Gaussian(10.0)], [GaussianCell(10.0)])
    # Equal under zero-out, not under replace.
    assert dominated([Gaussian(5.0, replace_factor=1.0)], [Gaussian(5.0)])
    assert not dominated([Gaussian(5.0)], [Gaussian(5.0, replace_factor=1.0)])


def test_dominated_keeps_units_relations_and_names_apart() -> None:
    assert not dominated([Laplace(0.1, unit="block")], [Laplace(9.0)])
    assert not dominated([Laplace(0.1, relation="replace")], [Laplace(9.0)])
    presence = Unbounded("presence", "who", audience="holders")
    assert dominated([presence, Laplace(0.1)], [compose([presence, Laplace(0.1)])])
    assert not dominated([presence.times(2)], [presence])
    assert not dominated([presence], [Unbounded("predictor", "values", audience="holders")])
    assert not dominated([presence], [Unbounded("presence", "who", audience="everybody")])
    assert not dominated([Laplace(0.1)], [presence])  # an allowed disclosure does not pay for another release


def test_debits_with_one_joint_id_are_counted_one_by_one() -> None:
    round_ = Gaussian(5.0, joint="gradient")
    assert dominated([round_] * 3, [round_.times(3)])
    assert not dominated([round_] * 4, [round_.times(3)])


# --- calibration and checks ------------------------------------------------------------------------------


@pytest.mark.parametrize("relation", ["zero-out", "replace"])
@pytest.mark.parametrize(
    ("make", "delta"),
    [
        (lambda x: [Gaussian(x)] * 7, 1e-6),
        (lambda x: [Laplace(1 / x), Gaussian(2 * x)], 1e-8),
        (lambda x: [Laplace(1 / x)] * 3, 0.0),
        (lambda x: [GaussianCell(x, 3)], 1e-5),
    ],
)
def test_calibration_meets_its_target_and_not_by_much(make: object, delta: float, relation: str) -> None:
    for epsilon in (0.1, 1.0, 8.0):
        scale = calibrate(make, epsilon=epsilon, delta=delta, relation=relation)  # type: ignore[arg-type]

        def spent(x: float) -> float:
            return guarantee(make(x), delta=delta, relation=relation).epsilon  # type: ignore[arg-type, operator]

        assert spent(scale) <= epsilon < spent(scale * (1 - 2e-4))


def test_calibration_of_one_laplace_is_the_closed_form() -> None:
    assert calibrate(lambda x: [Laplace(1 / x)], epsilon=0.3, delta=0.0) == pytest.approx(1 / 0.3, rel=1e-4)


def test_calibration_that_cannot_succeed_says_so() -> None:
    with pytest.raises(BadPrivacyParameter, match="delta above 0"):
        calibrate(lambda x: [Gaussian(x)], epsilon=1.0, delta=0.0)
    with pytest.raises(BadPrivacyParameter, match="up to 2"):
        calibrate(lambda x: [Gaussian(x)], epsilon=0.1, delta=1e-6, bracket=(0.1, 2.0))
    assert calibrate(lambda x: [Free("nothing")], epsilon=1.0, delta=0.0, bracket=(0.5, 2.0)) == 0.5


@pytest.mark.parametrize("value", [0, -1.0, math.inf, math.nan, "1", True, None])
def test_epsilons_out_of_range(value: float) -> None:
    with pytest.raises(BadPrivacyParameter, match="epsilon"):
        check_epsilon(value)


@pytest.mark.parametrize("value", [-1e-9, 1, 1.5, math.nan, "0", False])
def test_deltas_out_of_range(value: float) -> None:
    with pytest.raises(BadPrivacyParameter, match="1/n"):
        check_delta(value)


def test_numbers_of_any_kind_are_taken() -> None:
    assert check_epsilon(np.float32(0.5)) == 0.5
    assert check_epsilon(3) == 3.0
    assert check_delta(0) == 0.0


def test_zero_concentrated_costs_compose_and_convert_as_bun_and_steinke_say() -> None:
    """rho-zCDP gives (rho + 2 sqrt(rho log(1/delta)), delta); Renyi is never worse. rho scales by the square."""
    rho, delta = 0.02, 1e-6
    total = guarantee([ZeroConcentrated(rho / 4).times(4)], delta=delta)
    assert total.epsilon <= rho + 2 * math.sqrt(rho * math.log(1 / delta))
    assert total.epsilon == pytest.approx(guarantee([Gaussian(1 / math.sqrt(2 * rho))], delta=delta).epsilon)
    assert under(ZeroConcentrated(rho), "replace")["rho"] == pytest.approx(4 * rho)


@pytest.mark.parametrize("delta", [0.0, 1e-12, 1e-6])
@pytest.mark.parametrize("relation", ["zero-out", "replace"])
def test_whether_costs_keep_within_a_budget_is_what_their_guarantee_says(delta: float, relation: Relation) -> None:
    """By whichever accountant: pure, Renyi, privacy loss; and where there is no bound."""
    cell = Skellam(400, delta_1=1, delta_2=1, parties=3, colluders=1, shift="single")
    for costs in (
        [Laplace(0.3)],
        [Laplace(0.1).times(50)],
        [cell.times(4)],
        [Laplace(0.2), cell],
        [Unbounded("x", "y")],
    ):
        stated = guarantee(costs, delta=delta, relation=relation).epsilon
        for factor in (0.5, 0.9999, 1.0001, 2.0):
            epsilon = stated * factor if stated < math.inf else factor
            assert keeps_within(costs, epsilon=epsilon, delta=delta, relation=relation) == (stated <= epsilon)
