"""The audit's own arithmetic, each part against a closed form, brute force or an independent package."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from dp_accounting.pld import privacy_loss_distribution
from dp_accounting.rdp import rdp_privacy_accountant
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from scipy import special, stats

from colonnade.audit.bounds import (
    Event,
    PrivacyProfile,
    choose,
    clopper_pearson,
    delta_lower_bound,
    epsilon_lower_bound,
    mu_lower_bound,
    power,
    profile_from_function,
    profile_from_gaussian,
    profile_from_pld,
    profile_from_point,
    profile_from_rdp,
    refutation_probability,
)
from colonnade.audit.mechanism import Audit
from colonnade.errors import BadPrivacyParameter
from colonnade.privacy.randomness import Randomness, SimulatedRandomness, SystemRandomness, simulated_generator
from support.adversaries import membership_attack, sensitivity_search

Reals = NDArray[np.float64]

FPRS = np.array([1e-6, 1e-3, 0.01, 0.1, 0.3, 0.5, 0.8, 0.99, 0.9999])
ORDERS = [1.0, 1.5, 2.0, 3.0, 4.0, 8.0, 16.0, 32.0, 64.0]


def gaussian_rdp(mu: float, orders: list[float] = ORDERS) -> list[float]:
    return [order * mu**2 / 2 for order in orders]


def normal_scores(noise: float) -> Callable[[float, int, Randomness], Reals]:
    """A scalar with normal noise: fine for testing the auditor, never for protecting anybody."""

    def run_many(value: float, runs: int, randomness: Randomness) -> Reals:
        return simulated_generator(randomness).normal(value, noise, runs)

    return run_many


def audit_of_normal(noise: float, claim: PrivacyProfile, **options: Any) -> Audit[float]:
    defaults: dict[str, Any] = {"delta": 1e-5, "runs": 8000}
    return Audit(neighbours=(1.0, 0.0), run_many=normal_scores(noise), claim=claim, **{**defaults, **options})


# --- confidence bounds -----------------------------------------------------------------------------------


@pytest.mark.parametrize(("hits", "trials"), [(0, 10), (1, 10), (10, 10), (300, 1000), (25_000, 50_000)])
def test_clopper_pearson_is_scipys(hits: int, trials: int) -> None:
    lower, upper = clopper_pearson(hits, trials, 0.005)
    exact = stats.binomtest(hits, trials).proportion_ci(0.99, method="exact")
    assert float(lower) == pytest.approx(exact.low, abs=1e-10)
    assert float(upper) == pytest.approx(exact.high, abs=1e-10)


def test_lower_bounds_of_a_point_are_tight_for_randomized_response() -> None:
    # Closed form: a true answer kept with odds e^eps has tpr = e^eps fpr, and is exactly (eps, 0)-DP.
    epsilon = 0.7
    fpr = 1 / (1 + math.exp(epsilon))
    assert float(epsilon_lower_bound(1 - fpr, fpr, 0.0)) == pytest.approx(epsilon)
    assert float(delta_lower_bound(1 - fpr, fpr, epsilon)) == pytest.approx(0.0, abs=1e-12)
    # Its total variation.
    assert float(delta_lower_bound(1 - fpr, fpr, 0.0)) == pytest.approx(math.tanh(epsilon / 2))


def test_lower_bounds_see_both_directions() -> None:
    # Q(not S) = 0.5 and P(not S) = 0: unbounded epsilon, although P(S)/Q(S) is only 2.
    assert float(epsilon_lower_bound(1.0, 0.5, 1e-5)) == math.inf
    assert float(delta_lower_bound(1.0, 0.5, 10.0)) == pytest.approx(0.5)


def test_the_mu_bound_inverts_the_gaussian_curve_and_ignores_empty_bounds() -> None:
    assert mu_lower_bound(profile_from_gaussian(2.0).tpr(FPRS), FPRS) == pytest.approx(0.5)
    assert mu_lower_bound([0.0, 0.3], [0.2, 1.0]).tolist() == [0.0, 0.0]


# --- profiles --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("noise_multiplier", [0.7, 3.73, 20.0])
def test_the_gaussian_profile_agrees_with_dp_accounting(noise_multiplier: float) -> None:
    epsilons = np.array([0.0, 0.1, 0.5, 1.0, 2.0])
    pld = privacy_loss_distribution.from_gaussian_mechanism(noise_multiplier, value_discretization_interval=1e-3)
    ours, theirs = profile_from_gaussian(noise_multiplier), profile_from_pld(pld)
    assert ours.delta(epsilons) == pytest.approx(theirs.delta(epsilons), abs=1e-3)
    assert ours.epsilon(1e-5) == pytest.approx(pld.get_epsilon_for_delta(1e-5), rel=5e-3)
    assert theirs.epsilon(1e-5) == pytest.approx(pld.get_epsilon_for_delta(1e-5), rel=1e-6)
    # The envelope of a grid of lines lies above the exact curve, closely.
    excess = theirs.tpr(FPRS) - ours.tpr(FPRS)
    assert (excess >= -1e-12).all()
    assert (excess < 2e-3).all()


def test_the_envelope_of_lines_is_the_gaussian_curve() -> None:
    # Oracle: the trade-off curve Phi(Phi^-1(fpr) + mu) (Dong, Roth and Su).
    for noise_multiplier in (0.4, 1.0, 5.0, 50.0):
        exact = profile_from_gaussian(noise_multiplier)
        lines = profile_from_function(exact.delta)
        truth = special.ndtr(special.ndtri(FPRS) + 1 / noise_multiplier)
        assert exact.tpr(FPRS) == pytest.approx(truth)
        assert (lines.tpr(FPRS) >= truth - 1e-12).all()
        assert (lines.tpr(FPRS) - truth < 3e-4).all()


def test_a_pld_with_infinite_loss_keeps_a_fine_envelope() -> None:
    # 1e-4 of the outputs give everything away: tpr at fpr 0 is that mass, and elsewhere Gaussian plus at most it.
    pld = privacy_loss_distribution.from_privacy_parameters(
        privacy_loss_distribution.common.DifferentialPrivacyParameters(0.5, 1e-4)
    )
    point = profile_from_point(0.5, 1e-4)
    found = profile_from_pld(pld)
    assert found.tpr(FPRS) == pytest.approx(point.tpr(FPRS), abs=2e-3)
    assert (found.tpr(FPRS) >= point.tpr(FPRS) - 1e-12).all()


@given(st.floats(0.0, 5.0), st.floats(0.0, 0.2), st.floats(0.0, 6.0))
@settings(max_examples=60, deadline=None)
def test_a_points_profile_is_the_hockey_stick_of_its_curve(epsilon: float, delta: float, at: float) -> None:
    claim = profile_from_point(epsilon, delta)
    # Brute force: delta(at) = max over fpr of tpr(fpr) - e^at fpr; the kink is added to the grid.
    fprs = np.append(np.linspace(0, 1, 2001), (1 - delta) / (1 + math.exp(epsilon)))
    brute = float(np.max(claim.tpr(fprs) - math.exp(at) * fprs))
    assert float(claim.delta(np.array([at]))[0]) == pytest.approx(brute, abs=1e-9)


def test_the_epsilon_of_a_point_claim_is_the_claim() -> None:
    assert profile_from_point(1.3, 1e-6).epsilon(1e-6) == pytest.approx(1.3)
    assert profile_from_point(1.3, 1e-6).epsilon(1e-7) == math.inf


def test_the_rdp_delta_is_dp_accountings() -> None:
    mu = 0.6
    claim = profile_from_rdp(ORDERS, gaussian_rdp(mu))
    for epsilon in (0.0, 0.3, 1.0, 3.0):
        theirs, _ = rdp_privacy_accountant.compute_delta(ORDERS, gaussian_rdp(mu), epsilon)
        assert float(claim.delta(np.array([epsilon]))[0]) == pytest.approx(theirs, rel=1e-9)


def test_the_rdp_curve_of_order_two_is_the_chi_square_ball() -> None:
    # Closed form: D_2 <= rho both ways is (p-q)^2 <= (e^rho - 1) min(q(1-q), p(1-p)); the second is a quadratic in p.
    rho = 0.4
    k = math.expm1(rho)
    fprs = np.array([0.0001, 0.004, 0.05, 0.2, 0.5, 0.7, 0.95, 0.999])
    forward = fprs + np.sqrt(k * fprs * (1 - fprs))
    backward = (2 * fprs + k + np.sqrt((2 * fprs + k) ** 2 - 4 * (1 + k) * fprs**2)) / (2 * (1 + k))
    truth = np.minimum(np.minimum(forward, backward), 1.0)
    found = profile_from_rdp([2.0], [rho]).tpr(fprs)
    assert (found >= truth - 1e-12).all()
    assert found == pytest.approx(truth, abs=5e-5)


@pytest.mark.parametrize("mu", [0.1, 0.5, 2.0])
def test_the_rdp_curve_covers_the_mechanism_and_beats_the_conversion(mu: float) -> None:
    claim = profile_from_rdp(ORDERS, gaussian_rdp(mu))
    fprs = np.linspace(0, 1, 5003)
    assert (claim.tpr(fprs) >= special.ndtr(special.ndtri(fprs) + mu)).all()
    assert (claim.tpr(fprs) <= profile_from_function(claim.delta).tpr(fprs) + 1e-4).all()


def test_profiles_refuse_nonsense() -> None:
    for bad in (
        lambda: profile_from_gaussian(0.0),
        lambda: profile_from_point(-1.0, 0.1),
        lambda: profile_from_rdp([2.0], [1.0, 2.0]),
        lambda: profile_from_rdp([0.5], [1.0]),
        lambda: profile_from_rdp([2.0], [-1.0]),
    ):
        with pytest.raises(BadPrivacyParameter):
            bad()


# --- the audit -------------------------------------------------------------------------------------------


def kept_answer(epsilon: float) -> Callable[[int, int, Randomness], Reals]:
    odds = 1 / (1 + math.exp(-epsilon))

    def run_many(answer: int, runs: int, randomness: Randomness) -> Reals:
        kept = simulated_generator(randomness).random(runs) < odds
        return np.where(kept, answer, 1 - answer).astype(np.float64)

    return run_many


def test_the_epsilon_bound_of_randomized_response_is_close_and_below() -> None:
    # Closed form: exactly (1, 0)-DP. With 100,000 test runs the widths are about 5.1 sd: 0.03 in log odds.
    audit = Audit(
        neighbours=(1, 0), run_many=kept_answer(1.0), claim=profile_from_point(1.0, 0.0), delta=0.0, runs=200_000
    )
    result = audit.run(SimulatedRandomness(3))
    assert not result.refuted
    assert 0.95 < result.epsilon_lower_bound <= 1.0
    assert result.delta_lower_bound == 0.0
    assert result.threshold == 1.0


def test_a_pure_claim_that_is_too_low_is_refuted() -> None:
    claim = profile_from_point(0.9, 0.0)
    audit = Audit(neighbours=(1, 0), run_many=kept_answer(1.0), claim=claim, delta=0.0, runs=200_000)
    result = audit.run(SimulatedRandomness(3))
    assert result.refuted
    assert result.epsilon_lower_bound > 0.9
    assert result.delta_lower_bound > 0.0
    assert "REFUTED" in str(result)
    assert "no power was stated" in str(result)


@pytest.mark.parametrize("sign", [1, -1])
def test_either_sign_of_the_statistic_serves(sign: int) -> None:
    def run_many(value: float, runs: int, randomness: Randomness) -> Reals:
        return sign * normal_scores(0.5)(value, runs, randomness)

    claim = profile_from_gaussian(1.0)
    result = Audit(neighbours=(1.0, 0.0), run_many=run_many, claim=claim, delta=1e-5, runs=8000).run(
        SimulatedRandomness(4)
    )
    assert result.refuted
    assert {f.event.side for f in result.findings} == {"upper" if sign == 1 else "lower"}


def test_the_test_never_sees_the_runs_that_chose_the_event() -> None:
    # Oracle: by construction the two halves disagree. The first says P is high; the second, that both are alike.
    high, low = np.ones(500), np.zeros(500)

    def run_many(person: str, runs: int, randomness: Randomness) -> Reals:
        return np.concatenate([high if person == "in" else low, low])

    result = Audit(
        neighbours=("in", "out"), run_many=run_many, claim=profile_from_point(0.1, 0.0), delta=0.0, runs=1000
    ).run(SimulatedRandomness(0))
    assert not result.refuted
    assert all(f.hits == (0, 0) and f.trials == 500 for f in result.findings)
    assert result.epsilon_lower_bound == 0.0


def test_the_choice_never_sees_the_runs_that_test_it() -> None:
    # The second half alone tells the two apart by a score of -5, better than anything in the first half.
    def run_many(person: str, runs: int, randomness: Randomness) -> Reals:
        ones = 300 if person == "in" else 200
        return np.concatenate([np.ones(ones), np.zeros(500 - ones), np.full(500, -5.0 if person == "in" else 0.0)])

    result = Audit(
        neighbours=("in", "out"), run_many=run_many, claim=profile_from_point(0.1, 0.0), delta=0.0, runs=1000
    ).run(SimulatedRandomness(0))
    assert {f.event for f in result.findings} == {Event(1.0)}


def test_a_declared_threshold_uses_every_run() -> None:
    claim = profile_from_gaussian(1.0)
    result = audit_of_normal(1.0, claim, threshold=0.5).run(SimulatedRandomness(5))
    (finding,) = result.findings
    assert finding.trials == 8000
    assert finding.event == Event(0.5)
    # Both bounds at 5e-7, by scipy's two-sided interval at 1 - 1e-6.
    exact = stats.binomtest(finding.hits[0], 8000).proportion_ci(1 - 1e-6, method="exact")
    assert finding.tpr == pytest.approx(exact.low, rel=1e-6)


def test_a_chosen_event_pays_for_all_six_bounds() -> None:
    # Three events with two bounds each share 1e-6: scipy's two-sided interval at 1 - 2/6 of 1e-6.
    result = audit_of_normal(1.0, profile_from_gaussian(1.0)).run(SimulatedRandomness(5))
    assert [f.aim for f in result.findings] == ["curve", "epsilon", "delta"]
    for finding in result.findings:
        level = 1 - 2e-6 / 6
        exact = [stats.binomtest(hits, 4000).proportion_ci(level, method="exact") for hits in finding.hits]
        assert (finding.tpr, finding.fpr) == pytest.approx((exact[0].low, exact[1].high), rel=1e-6)


def test_infinite_scores_are_events_and_nan_is_refused() -> None:
    # A mechanism that fails openly for one neighbour: an infinite score in 2 % of its runs only.
    def leaks(person: int, runs: int, randomness: Randomness) -> Reals:
        scores = simulated_generator(randomness).normal(size=runs)
        scores[:: 50 if person else runs + 1] = np.inf if person else scores[0]
        return scores

    audit = Audit(neighbours=(1, 0), run_many=leaks, claim=profile_from_point(1.0, 1e-5), delta=1e-5, runs=20_000)
    result = audit.run(SimulatedRandomness(6))
    assert result.refuted
    # No other score is that high in 10,000 normal draws (probability 2e-3 for 5.1 sd), and the seed is fixed.
    assert result.threshold is not None
    assert result.threshold > 3

    def broken(person: int, runs: int, randomness: Randomness) -> Reals:
        return np.full(runs, np.nan)

    with pytest.raises(BadPrivacyParameter, match="never NaN"):
        Audit(neighbours=(1, 0), run_many=broken, claim=profile_from_point(1.0, 0), delta=0, runs=100).run(
            SimulatedRandomness(0)
        )


def test_a_power_of_another_audit_is_refused() -> None:
    claim = profile_from_gaussian(1.0)
    stated = power(claim, shift=1.0, sd=1.0, factor=1.4, runs=1000, selections=2)
    with pytest.raises(BadPrivacyParameter, match="another audit"):
        audit_of_normal(1.0, claim, runs=2000, stated_power=stated)
    assert "against noise / 1.4" in str(
        audit_of_normal(1.0, claim, runs=1000, stated_power=stated).run(SimulatedRandomness(1))
    )


def test_audits_refuse_nonsense() -> None:
    claim = profile_from_gaussian(1.0)
    with pytest.raises(BadPrivacyParameter, match="at least 4"):
        audit_of_normal(1.0, claim, runs=3)
    with pytest.raises(BadPrivacyParameter, match="confidence"):
        audit_of_normal(1.0, claim, confidence=1.0)
    with pytest.raises(BadPrivacyParameter, match="delta must lie"):
        audit_of_normal(1.0, claim, delta=1.0)
    with pytest.raises(BadPrivacyParameter, match="sd > 0"):
        power(claim, shift=1.0, sd=0.0, factor=1.4, runs=100)


def test_the_refutation_probability_is_the_sum_over_all_counts() -> None:
    # Brute force over every pair of counts of a small audit.
    claim, trials, alpha, tpr, fpr = profile_from_point(0.5, 0.01), 40, 0.01, 0.8, 0.2
    total = 0.0
    for a in range(trials + 1):
        for b in range(trials + 1):
            low, high = clopper_pearson(a, trials, alpha)[0], clopper_pearson(b, trials, alpha)[1]
            if float(low) > float(claim.tpr(np.array([high]))[0]):
                total += float(stats.binom.pmf(a, trials, tpr) * stats.binom.pmf(b, trials, fpr))
    assert refutation_probability(claim, tpr=tpr, fpr=fpr, trials=trials, alpha=alpha) == pytest.approx(total)
    assert 0.2 < total < 0.999


def test_the_chosen_event_for_the_curve_is_near_the_best_one() -> None:
    # Closed form: against a Gaussian claim the midpoint maximises P(S) - Q(S), and the excess is flat around it.
    generator = simulated_generator(SimulatedRandomness(9))
    p, q = generator.normal(1.0, 1 / 1.4, 20_000), generator.normal(0.0, 1 / 1.4, 20_000)
    event = choose(p, q, profile_from_gaussian(1.0), delta=1e-5, epsilon=1.0, alpha=1e-7)["curve"]
    assert event.side == "upper"
    assert 0.0 < event.threshold < 1.0


def test_no_difference_gives_no_bound() -> None:
    audit = Audit(
        neighbours=(0.0, 0.0), run_many=normal_scores(1.0), claim=profile_from_gaussian(1.0), delta=1e-5, runs=2000
    )
    result = audit.run(SimulatedRandomness(0))
    assert (result.refuted, result.epsilon_lower_bound, result.mu_lower_bound) == (False, 0.0, 0.0)


def test_a_constant_that_tells_neighbours_apart_is_refuted() -> None:
    def constant(value: float, runs: int, randomness: Randomness) -> Reals:
        return np.full(runs, value)

    audit = Audit(neighbours=(1.0, 0.0), run_many=constant, claim=profile_from_gaussian(1.0), delta=1e-5, runs=100)
    assert audit.run(SimulatedRandomness(0)).refuted


# --- membership ------------------------------------------------------------------------------------------


def test_the_copula_papers_nominal_epsilon_is_refuted_by_membership() -> None:
    # Reading of the copula paper: N = 1,000, a block of 20 columns, per-comparison budget eps1 K/(p+1) with
    # eps1 = 0.5, K = 5, p+1 = 101. Moving a record from lowest to highest turns Bin(M, theta) into Bin(M, 1-theta),
    # M = 999 x 20. At 1 % false positives it is found 89 % of the time; a true epsilon of 0.5 allows 1.65 %.
    pairs, budget = 999 * 20, 0.5 * 5 / 101
    theta = 1 / (1 + math.exp(budget))
    generator = simulated_generator(SimulatedRandomness(12))
    members = generator.binomial(pairs, 1 - theta, 40_000).astype(np.float64)
    others = generator.binomial(pairs, theta, 40_000).astype(np.float64)
    found = membership_attack(members, others, fpr=0.01, claim=profile_from_point(0.5, 0.0))
    assert found.allowed == pytest.approx(0.0165, abs=5e-5)
    assert found.refuted
    # The exact power of the test at that threshold is the oracle; 6 binomial sd.
    truth = float(stats.binom.sf(math.ceil(found.threshold) - 1, pairs, 1 - theta))
    assert abs(found.tpr - truth) < 6 * math.sqrt(truth * (1 - truth) / 40_000)
    assert truth == pytest.approx(0.89, abs=0.015)
    assert found.tpr_interval[0] < truth < found.tpr_interval[1]
    assert found.fpr_interval[0] < 0.01 < found.fpr_interval[1]


def test_an_attack_within_the_claim_is_not_a_refutation() -> None:
    generator = simulated_generator(SimulatedRandomness(13))
    members, others = generator.normal(1.0, 1.0, 20_000), generator.normal(0.0, 1.0, 20_000)
    found = membership_attack(members, others, fpr=0.05, claim=profile_from_gaussian(1.0))
    assert found.allowed == pytest.approx(float(special.ndtr(special.ndtri(0.05) + 1.0)))
    assert not found.refuted


def test_ties_do_not_raise_the_false_positive_rate() -> None:
    # All scores equal: the only threshold with a rate of at most 1 % accepts nobody.
    found = membership_attack(np.zeros(100), np.zeros(100), fpr=0.01, claim=profile_from_point(1.0, 0.0))
    assert (found.fpr, found.tpr, found.refuted) == (0.0, 0.0, False)


def test_the_threshold_of_an_attack_comes_from_runs_that_are_not_counted() -> None:
    # The counted non-members all score above the others: their rate is 1, although the threshold was set for 10 %.
    others = np.concatenate([np.arange(100.0), np.full(100, 1000.0)])
    found = membership_attack(np.full(50, 1000.0), others, fpr=0.1, claim=profile_from_point(0.1, 0.0))
    assert (found.fpr, found.tpr, found.refuted) == (1.0, 1.0, False)
    # 10 of the first hundred lie above 89.
    assert 89 < found.threshold < 90


def test_membership_refuses_nonsense() -> None:
    for fpr, scores in ((0.0, np.zeros(10)), (0.1, np.full(10, np.nan))):
        with pytest.raises(BadPrivacyParameter):
            membership_attack(scores, scores, fpr=fpr, claim=profile_from_point(1.0, 0.0))


# --- sensitivity -----------------------------------------------------------------------------------------

WIDTH = 4


def in_ball(coins: Reals, radius: float) -> Reals:
    """Any point of the cube, as a record inside the ball."""
    record = 2 * coins - 1
    norm = float(np.linalg.norm(record))
    return radius * record / max(norm, 1.0)


def zero_out(coins: Reals) -> tuple[Reals, Reals]:
    other, record = in_ball(coins[:WIDTH], 3.0), in_ball(coins[WIDTH:], 3.0)
    return np.stack([other, record]), np.stack([other, np.zeros(WIDTH)])


def replaced(coins: Reals) -> tuple[Reals, Reals]:
    other, one, two = (in_ball(part, 3.0) for part in np.split(coins, 3))
    return np.stack([other, one]), np.stack([other, two])


def total(rows: Reals) -> Reals:
    return np.asarray(rows.sum(axis=0))


def upper_triangle(rows: NDArray[Any]) -> NDArray[Any]:
    return np.asarray((rows.T @ rows)[np.triu_indices(rows.shape[1])])


@pytest.mark.parametrize(
    ("f", "neighbours", "coins", "norm", "truth"),
    [
        (total, zero_out, 2 * WIDTH, "l2", 3.0),
        (total, zero_out, 2 * WIDTH, "l1", 3.0 * math.sqrt(WIDTH)),
        (total, zero_out, 2 * WIDTH, "linf", 3.0),
        (total, replaced, 3 * WIDTH, "l2", 6.0),
        # |triu(xx')|^2 = (|x|^4 + sum x_i^4)/2 <= c^4, reached on an axis; two axes are orthogonal: sqrt(2).
        (upper_triangle, zero_out, 2 * WIDTH, "l2", 9.0),
        (upper_triangle, replaced, 3 * WIDTH, "l2", 9.0 * math.sqrt(2)),
    ],
)
def test_the_search_finds_the_true_sensitivity(
    f: Callable[[Reals], Reals],
    neighbours: Callable[[Reals], tuple[Reals, Reals]],
    coins: int,
    norm: Any,
    truth: float,
) -> None:
    found = sensitivity_search(
        f, neighbours, coins=coins, claimed=truth, norm=norm, runs=4000, randomness=SimulatedRandomness(1)
    )
    assert found.best == pytest.approx(truth, rel=1e-3)
    assert not found.refuted
    assert found.evaluations <= 4000
    one, other = found.witnesses
    order = {"l1": 1, "l2": 2, "linf": np.inf}[norm]
    assert np.linalg.norm(f(one) - f(other), order) == found.best
    too_low = sensitivity_search(
        f, neighbours, coins=coins, claimed=0.99 * truth, norm=norm, runs=4000, randomness=SimulatedRandomness(1)
    )
    assert too_low.refuted


GAMMA, COLUMNS = 64, 5


def stochastically_rounded(coins: Reals) -> NDArray[np.int64]:
    scaled = GAMMA * in_ball(coins[:COLUMNS], 1.0)
    down = np.floor(scaled)
    return (down + (coins[COLUMNS:] < scaled - down)).astype(np.int64)


def clipped_after_rounding(record: NDArray[np.int64]) -> NDArray[np.int64]:
    """Toward zero, in integers, until |x|^2 <= gamma^2."""
    while int(record @ record) > GAMMA**2:
        largest = int(np.argmax(np.abs(record)))
        record = record.copy()
        record[largest] -= np.sign(record[largest])
    return record


def gram(rows: NDArray[np.int64]) -> NDArray[np.int64]:
    return np.asarray(rows.T @ rows)


def test_the_sqm_papers_sensitivity_is_refuted_under_stochastic_rounding() -> None:
    # SQM claims Delta_2 = gamma^2 c^2 + n for the Gram matrix. Rounding up every entry of a unit vector reaches
    # almost (gamma c + sqrt(n))^2, the true bound.
    def neighbours(coins: Reals) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        return stochastically_rounded(coins)[None], np.zeros((1, COLUMNS), dtype=np.int64)

    papers = GAMMA**2 + COLUMNS
    found = sensitivity_search(
        gram, neighbours, coins=2 * COLUMNS, claimed=papers, runs=8000, randomness=SimulatedRandomness(2)
    )
    assert found.refuted
    true_bound = (GAMMA + math.sqrt(COLUMNS)) ** 2
    assert papers + 10 * COLUMNS < found.best <= true_bound


def test_clipping_after_rounding_restores_the_sensitivity() -> None:
    def neighbours(coins: Reals) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        return clipped_after_rounding(stochastically_rounded(coins))[None], np.zeros((1, COLUMNS), dtype=np.int64)

    found = sensitivity_search(
        gram, neighbours, coins=2 * COLUMNS, claimed=GAMMA**2, runs=8000, randomness=SimulatedRandomness(2)
    )
    assert not found.refuted
    # The bound is exact: an axis reaches it.
    assert found.best == GAMMA**2


def test_a_norm_of_ones_own_and_a_simulated_source() -> None:
    found = sensitivity_search(
        total,
        zero_out,
        coins=2 * WIDTH,
        claimed=3.0,
        norm=lambda difference: float(difference[0]),
        runs=2000,
        randomness=SimulatedRandomness(1),
    )
    assert found.best == pytest.approx(3.0, rel=1e-3)
    with pytest.raises(ValueError, match="does not protect"):
        sensitivity_search(total, zero_out, coins=2 * WIDTH, claimed=3.0, randomness=SystemRandomness())
