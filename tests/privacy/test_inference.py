"""Attacks on many people: valid where the claim holds, and they refute claims that do not."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy import stats

from colonnade.audit.inference import (
    allowed_success,
    attribute_inference,
    one_run_audit,
    one_run_p_value,
)
from colonnade.errors import BadPrivacyParameter


def answers(included: np.ndarray, epsilon: float, rng: np.random.Generator, *, open_share: float = 0.0) -> np.ndarray:
    """Randomized response on each coin: exactly epsilon-DP, and the worst mechanism that is. `open_share` of the
    records are shown openly, which is (epsilon, open_share)-DP; they get the highest and lowest scores."""
    kept = rng.random(len(included)) < 1 / (1 + math.exp(-epsilon))
    told = np.where(kept, included, ~included).astype(float) + 0.1 * rng.random(len(included))
    shown = rng.random(len(included)) < open_share
    return np.where(shown, np.where(included, 10.0, -10.0), told)


def test_the_p_value_is_the_theorems() -> None:
    # Without delta: the binomial tail. With it: the paper's sum, written out.
    assert one_run_p_value(100, 60, 45, epsilon=0.5, delta=0.0) == pytest.approx(
        stats.binom.sf(44, 60, math.exp(0.5) / (1 + math.exp(0.5)))
    )
    q = math.exp(0.5) / (1 + math.exp(0.5))
    pmf = [stats.binom.pmf(k, 60, q) for k in range(61)]
    worst = max(sum(pmf[45 - i : 45]) / i for i in range(1, 46))
    expected = sum(pmf[45:]) + 2 * 100 * 1e-4 * worst
    assert one_run_p_value(100, 60, 45, epsilon=0.5, delta=1e-4) == pytest.approx(expected)
    with pytest.raises(BadPrivacyParameter):
        one_run_p_value(10, 12, 5, epsilon=1.0, delta=0.0)


def test_one_run_of_randomized_response_is_close_and_below() -> None:
    rng = np.random.default_rng(1)
    coins = rng.random(4000) < 0.5
    result = one_run_audit(answers(coins, 1.0, rng), coins, claimed_epsilon=1.0, delta=0.0, guesses=4000)
    assert not result.refuted
    assert 0.85 < result.epsilon_lower_bound < 1.0
    assert "not refuted" in str(result)


def test_one_run_refutes_an_epsilon_that_is_claimed_too_low() -> None:
    rng = np.random.default_rng(2)
    coins = rng.random(4000) < 0.5
    scores = answers(coins, 1.4, rng)
    assert one_run_audit(scores, coins, claimed_epsilon=1.0, delta=1e-6, guesses=4000).refuted


def test_one_run_keeps_its_false_alarm() -> None:
    # 400 audits of a true claim at confidence 0.9: at most 40 alarms expected; 60 would be 3.3 sd above.
    rng = np.random.default_rng(3)
    alarms, bounds = 0, 0
    for _ in range(400):
        coins = rng.random(200) < 0.5
        scores = answers(coins, 0.5, rng, open_share=1e-3)
        result = one_run_audit(scores, coins, claimed_epsilon=0.5, delta=1e-3, guesses=100, confidence=0.9)
        alarms += result.refuted
        bounds += result.epsilon_lower_bound > 0.5
    assert alarms <= 60
    assert bounds <= 60


def test_delta_is_paid_for() -> None:
    """Planted: 5 % of the records are shown openly, and the claim says delta 0. A true delta is not refuted."""
    rng = np.random.default_rng(4)
    coins = rng.random(2000) < 0.5
    scores = answers(coins, 0.1, rng, open_share=0.05)
    assert one_run_audit(scores, coins, claimed_epsilon=0.1, delta=0.0, guesses=80).refuted
    assert not one_run_audit(scores, coins, claimed_epsilon=0.1, delta=0.05, guesses=80).refuted


@pytest.mark.parametrize("values", [2, 5])
def test_the_allowed_success_is_reached_by_randomized_response(values: int) -> None:
    # Closed form: answering truly with e^eps / (e^eps + k - 1) is eps-DP and right as often. The audit is tight.
    rng = np.random.default_rng(5)
    odds = math.exp(1.0)
    assert allowed_success(values, epsilon=1.0, delta=0.0) == pytest.approx(odds / (odds + values - 1))
    right = int(rng.binomial(20_000, odds / (odds + values - 1)))
    result = attribute_inference(right, 20_000, values=values, claimed_epsilon=1.0, delta=0.0)
    assert not result.refuted
    assert 0.9 < result.epsilon_lower_bound < 1.0
    assert attribute_inference(right, 20_000, values=values, claimed_epsilon=0.8, delta=0.0).refuted


def test_a_blind_guess_proves_nothing() -> None:
    result = attribute_inference(50, 100, values=2, claimed_epsilon=0.5, delta=1e-6)
    assert result.epsilon_lower_bound == 0.0
    assert not result.refuted


def test_nonsense_is_refused() -> None:
    with pytest.raises(BadPrivacyParameter):
        attribute_inference(5, 4, values=2, claimed_epsilon=1.0, delta=0.0)
    with pytest.raises(BadPrivacyParameter):
        allowed_success(1, epsilon=1.0, delta=0.0)
    with pytest.raises(BadPrivacyParameter):
        one_run_audit(np.zeros(5), np.zeros(4, dtype=bool), claimed_epsilon=1.0, delta=0.0, guesses=2)
    with pytest.raises(BadPrivacyParameter):
        one_run_audit(np.zeros(4), np.zeros(4, dtype=bool), claimed_epsilon=1.0, delta=0.0, guesses=9)
