"""Attacks on many people at once: membership in one run (Steinke, Nasr and Jagielski 2023) and a hidden attribute.

Both count right guesses and turn them into a lower bound on epsilon that holds with the stated confidence, to be put
beside the epsilon that is claimed. Proofs and limits are in `claim.md`.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import optimize, stats

from colonnade.audit.bounds import PrivacyProfile
from colonnade.errors import BadPrivacyParameter

Reals = NDArray[np.float64]
LARGEST_EPSILON = 50.0
POINTS = 64
"""Points of a claimed curve that guesses are held against."""


@dataclass(frozen=True, kw_only=True)
class InferenceResult:
    """Right guesses, one a run, and the lower bound on epsilon that they prove beside the claim."""

    attack: str
    runs: int
    right: int
    claimed_epsilon: float
    delta: float
    epsilon_lower_bound: float
    p_value: float
    confidence: float
    power: float | None = None
    """The chance to refute the claim if the attack is right as often as a stated bug lets it be."""

    @property
    def refuted(self) -> bool:
        """Would the claim produce so many right guesses with a probability of at most 1 - confidence?"""
        return self.p_value <= 1 - self.confidence

    def __str__(self) -> str:
        verdict = "REFUTED" if self.refuted else "not refuted"
        return (
            f"{self.attack}: {verdict}; {self.right} of {self.runs} guesses are right; epsilon >="
            f" {self.epsilon_lower_bound:.3g} (claimed {self.claimed_epsilon:.3g}) at delta {self.delta:g}, confidence"
            f" {self.confidence:g}"
        )


# --- membership, in one run --------------------------------------------------------------------------------


def one_run_p_value(examples: int, guesses: int, right: int, *, epsilon: float, delta: float) -> float:
    """The largest probability of so many right guesses under (epsilon, delta)-DP (their Theorem 5.2).

    Each of `examples` records was in or out by a fair coin of its own. Without delta the number right is at most
    Bin(guesses, e^epsilon / (1 + e^epsilon)); delta adds 2 m delta max_i P(v - i <= Bin < v) / i.
    """
    if not 0 <= right <= guesses <= examples:
        raise BadPrivacyParameter("right guesses cannot outnumber guesses, nor guesses the examples.")
    q = 1 / (1 + math.exp(-min(epsilon, 700.0)))
    tail = float(stats.binom.sf(right - 1, guesses, q))
    if delta == 0 or right == 0:
        return min(tail, 1.0)
    below = stats.binom.pmf(np.arange(right - 1, -1, -1), guesses, q)
    alpha = float(np.max(np.cumsum(below) / np.arange(1, right + 1)))
    return min(tail + 2 * examples * delta * alpha, 1.0)


def one_run_audit(
    scores: Reals,
    included: NDArray[np.bool_],
    *,
    claimed_epsilon: float,
    delta: float,
    guesses: int,
    confidence: float = 0.95,
) -> InferenceResult:
    """Guess membership from one run: the `guesses` / 2 highest scores "in", as many lowest "out".

    `scores` has one number for each example, high for "in"; `included` are the coins, independent and fair, which the
    mechanism saw and the scores must not. Relation: zero-out, since a record that is out holds nothing. `guesses` must
    be fixed before the run is seen.
    """
    values, coins = np.asarray(scores, dtype=np.float64), np.asarray(included, dtype=bool)
    if values.shape != coins.shape or values.ndim != 1 or np.isnan(values).any():
        raise BadPrivacyParameter("one_run_audit needs one score, never NaN, for each coin.")
    if not 2 <= guesses <= len(values) or not 0 < confidence < 1:
        raise BadPrivacyParameter(f"guesses must lie between 2 and the {len(values)} examples; confidence in (0, 1).")
    half = guesses // 2
    order = np.argsort(values, kind="stable")
    right = int((~coins[order[:half]]).sum() + coins[order[len(order) - half :]].sum())
    guessed = 2 * half

    def p_value(epsilon: float) -> float:
        return one_run_p_value(len(values), guessed, right, epsilon=epsilon, delta=delta)

    stated = {"attack": "membership in one run", "runs": guessed, "right": right, "delta": delta}
    return _result(p_value, claimed_epsilon, confidence, **stated)


# --- a hidden attribute ------------------------------------------------------------------------------------


def allowed_success(values: int, *, epsilon: float, delta: float) -> float:
    """The largest share of right guesses of an attribute drawn evenly from `values`, by (epsilon, delta)-DP, replace.

    With S the sum of P(guess j | truth j): (k - 1) S <= e^epsilon (k - S) + k (k - 1) delta.
    """
    if values < 2:
        raise BadPrivacyParameter("an attribute needs at least two possible values.")
    odds = math.exp(min(epsilon, 700.0))
    return min((odds + (values - 1) * delta) / (odds + values - 1), 1.0)


def allowed_by_curve(values: int, claim: PrivacyProfile, *, delta: float) -> float:
    """The same for a whole claim: the least that any of its points allows, from epsilon 0 to that at `delta`."""
    epsilons = np.linspace(0.0, min(claim.epsilon(delta), LARGEST_EPSILON), POINTS)
    points = zip(epsilons, claim.delta(epsilons), strict=True)
    return min(allowed_success(values, epsilon=float(e), delta=float(d)) for e, d in points)


def attribute_inference(
    right: int,
    trials: int,
    *,
    values: int,
    claimed_epsilon: float,
    delta: float,
    confidence: float = 0.95,
    claim: PrivacyProfile | None = None,
    success: float | None = None,
) -> InferenceResult:
    """An attacker who knows all but one attribute of one person guessed it right in `right` of `trials` runs.

    Every run is fresh: the attribute is drawn evenly from its `values` possibilities, the mechanism runs, the attacker
    guesses. The claim is that of the relation `replace`; with `claim` its whole curve is tested, not the one point
    (claimed_epsilon, delta). `success` is how often a bug would let the attacker be right: then the power is stated.
    """
    if not 0 <= right <= trials or trials < 1 or not 0 < confidence < 1:
        raise BadPrivacyParameter("attribute_inference needs 0 <= right <= trials, and confidence in (0, 1).")

    def p_value(epsilon: float) -> float:
        return float(stats.binom.sf(right - 1, trials, allowed_success(values, epsilon=epsilon, delta=delta)))

    stated = {"attack": "a hidden attribute", "runs": trials, "right": right, "delta": delta}
    result = _result(p_value, claimed_epsilon, confidence, **stated)
    if claim is None:
        return result
    allowed = allowed_by_curve(values, claim, delta=delta)
    critical = float(stats.binom.isf(1 - confidence, trials, allowed))  # more right guesses than this refute
    return replace(
        result,
        p_value=float(stats.binom.sf(right - 1, trials, allowed)),
        power=None if success is None else float(stats.binom.sf(critical, trials, success)),
    )


def _result(p_value: Callable[[float], float], claimed: float, confidence: float, **stated: Any) -> InferenceResult:
    """`p_value` grows with epsilon; the bound is the largest epsilon that the guesses exclude."""
    alpha = 1 - confidence
    bound = 0.0
    if p_value(0.0) < alpha:
        top = LARGEST_EPSILON
        bound = top if p_value(top) < alpha else float(optimize.brentq(lambda e: p_value(e) - alpha, 0.0, top))
    return InferenceResult(
        **stated,
        claimed_epsilon=claimed,
        epsilon_lower_bound=bound,
        p_value=p_value(min(claimed, LARGEST_EPSILON)) if math.isfinite(claimed) else 1.0,
        confidence=confidence,
    )
