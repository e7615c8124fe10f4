"""What a privacy claim allows an attacker, and what counted guesses prove about it.

A claim is a `PrivacyProfile`: for two neighbours with output distributions P and Q and **every** event S,
P(S) <= e^epsilon Q(S) + delta(epsilon) at every epsilon >= 0, and the same with P and Q exchanged. Read as a
trade-off curve: a test with false positive rate `fpr` = Q(S) has at most the true positive rate `tpr(fpr)`.
One event therefore tests both directions: S bounds P by Q, and its complement bounds Q by P.

Why a whole curve: an (epsilon, delta) point with delta = 1e-5 speaks about events that some thousand runs never
show. The noise multiplier, PLD or RDP behind the point also speaks about frequent events, and there too little
noise shows quickly. Every profile here is an upper bound, so breaking it refutes the claim behind it.

Confidence comes from Clopper-Pearson bounds, which hold for every sample size. `choose` picks the event to test
from runs that the test does not see again. `power` says in advance how surely an audit catches too little noise.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy import special, stats

from colonnade.errors import BadPrivacyParameter
from colonnade.privacy.randomness import SimulatedRandomness, simulated_generator

Reals = NDArray[np.float64]
Curve = Callable[[Reals], Reals]
Aim = Literal["curve", "epsilon", "delta"]

CONFIDENCE = 1 - 1e-6
AIMS: tuple[Aim, ...] = ("curve", "epsilon", "delta")
_EPSILONS = 512
_THRESHOLDS = 256
_BISECTIONS = 40
_LARGEST_EPSILON = 700.0  # e^700 is still a float64


# --- what counts prove -----------------------------------------------------------------------------------


def clopper_pearson(hits: ArrayLike, trials: int, alpha: float) -> tuple[Reals, Reals]:
    """One-sided lower and upper bounds on a probability; **each** fails with probability at most `alpha`."""
    k = np.asarray(hits, dtype=np.float64)
    lower = np.where(k > 0, special.betaincinv(np.maximum(k, 1), trials - k + 1, alpha), 0.0)
    upper = np.where(k < trials, special.betainccinv(k + 1, np.maximum(trials - k, 1), alpha), 1.0)
    return lower, upper


def epsilon_lower_bound(tpr: ArrayLike, fpr: ArrayLike, delta: float) -> Reals:
    """The least epsilon that allows this point at `delta`: from P(S) <= e^eps Q(S) + delta, and from the
    complement, Q(not S) <= e^eps P(not S) + delta. `tpr` may be a lower and `fpr` an upper bound."""
    p, q = np.asarray(tpr, dtype=np.float64), np.asarray(fpr, dtype=np.float64)
    with np.errstate(divide="ignore", invalid="ignore"):
        forward = np.where(p > delta, np.log(np.maximum(p - delta, 0)) - np.log(q), 0.0)
        backward = np.where(1 - q > delta, np.log(np.maximum(1 - q - delta, 0)) - np.log1p(-p), 0.0)
    return np.maximum(np.maximum(forward, backward), 0.0)


def delta_lower_bound(tpr: ArrayLike, fpr: ArrayLike, epsilon: float) -> Reals:
    """The least delta that allows this point at `epsilon`, over S and its complement."""
    return np.maximum(_hockey_stick(tpr, fpr, epsilon), 0.0)


def _hockey_stick(tpr: ArrayLike, fpr: ArrayLike, epsilon: float) -> Reals:
    p, q = np.asarray(tpr, dtype=np.float64), np.asarray(fpr, dtype=np.float64)
    growth = float(np.exp(min(epsilon, _LARGEST_EPSILON)))
    return np.maximum(p - growth * q, (1 - q) - growth * (1 - p))


def mu_lower_bound(tpr: ArrayLike, fpr: ArrayLike) -> Reals:
    """The least mu for which mu-Gaussian DP allows this point: its curve is Phi(Phi^-1(fpr) + mu)."""
    p, q = np.asarray(tpr, dtype=np.float64), np.asarray(fpr, dtype=np.float64)
    safe = (p > 0) & (q < 1)  # a bound of 0 or 1 proves nothing
    return np.maximum(np.where(safe, special.ndtri(np.where(safe, p, 0.5)) - special.ndtri(q), 0.0), 0.0)


# --- what a claim allows ---------------------------------------------------------------------------------


@dataclass(frozen=True)
class PrivacyProfile:
    """A claim: `delta(epsilon)` and `tpr(fpr)`, both vectorised upper bounds that hold in both directions."""

    name: str
    delta: Curve
    tpr: Curve

    def epsilon(self, delta: float) -> float:
        """The least epsilon with delta(epsilon) <= delta, rounded up; infinite if there is none."""
        return _inverse(self.delta, delta)


def _inverse(curve: Curve, delta: float) -> float:
    def covers(epsilon: float) -> bool:
        return float(curve(np.array([epsilon]))[0]) <= delta

    if covers(0.0):
        return 0.0
    high = 1.0
    while not covers(high):
        if high >= _LARGEST_EPSILON:
            return float("inf")
        high = min(2 * high, _LARGEST_EPSILON)
    low = 0.0
    for _ in range(_BISECTIONS):
        middle = (low + high) / 2
        low, high = (low, middle) if covers(middle) else (middle, high)
    return high


def profile_from_function(delta: Curve, *, name: str = "privacy profile") -> PrivacyProfile:
    """A claim given as delta(epsilon), for an array of epsilons >= 0, as an accountant states it.

    The curve is the envelope of its lines, tpr <= e^eps fpr + delta(eps) and 1-fpr <= e^eps (1-tpr) + delta(eps).
    The lines of a finite grid of epsilons are a few of them, so the envelope is never too low.
    """
    # Beyond `furthest` only the mass of infinite loss is left, up to what no affordable number of runs sees.
    remaining = float(delta(np.array([_LARGEST_EPSILON]))[0])
    furthest = min(_inverse(delta, remaining + 1e-9), 60.0)
    grid = np.linspace(0.0, max(furthest, 1e-6), _EPSILONS)
    deltas = np.clip(np.asarray(delta(grid), dtype=np.float64), 0.0, 1.0)

    def tpr(fpr: Reals) -> Reals:
        q = np.asarray(fpr, dtype=np.float64)[..., None]
        forward = np.exp(grid) * q + deltas
        backward = 1 - np.exp(-grid) * (1 - q - deltas)
        return np.asarray(np.minimum(np.minimum(forward, backward).min(axis=-1), 1.0))

    return PrivacyProfile(name, delta, tpr)


def profile_from_point(epsilon: float, delta: float) -> PrivacyProfile:
    """A bare (epsilon, delta) claim. Other epsilons follow from its two lines, which cross at
    fpr = (1-delta)/(1+e^epsilon): below epsilon, delta' = 1 - (1-delta)(1+e^epsilon')/(1+e^epsilon)."""
    if not (0 <= epsilon < _LARGEST_EPSILON and 0 <= delta <= 1):
        raise BadPrivacyParameter(f"a claim needs a finite epsilon >= 0 and delta in [0, 1], not {epsilon}, {delta}.")

    def deltas(epsilons: Reals) -> Reals:
        e = np.minimum(np.asarray(epsilons, dtype=np.float64), epsilon)
        return np.where(epsilons >= epsilon, delta, 1 - (1 - delta) * (1 + np.exp(e)) / (1 + np.exp(epsilon)))

    def tpr(fpr: Reals) -> Reals:
        q = np.asarray(fpr, dtype=np.float64)
        lines = np.minimum(np.exp(epsilon) * q + delta, 1 - np.exp(-epsilon) * (1 - q - delta))
        return np.asarray(np.minimum(lines, 1.0))

    return PrivacyProfile(f"({epsilon:g}, {delta:g})-DP", deltas, tpr)


def profile_from_gaussian(noise_multiplier: float) -> PrivacyProfile:
    """The exact curve of Gaussian noise with sd = `noise_multiplier` times the L2 sensitivity (Balle and Wang)."""
    if not 0 < noise_multiplier < float("inf"):
        raise BadPrivacyParameter(f"noise_multiplier must be positive and finite, not {noise_multiplier!r}.")
    mu = 1 / noise_multiplier

    def delta(epsilon: Reals) -> Reals:
        e = np.asarray(epsilon, dtype=np.float64)
        return np.asarray(special.ndtr(mu / 2 - e / mu) - np.exp(e + special.log_ndtr(-mu / 2 - e / mu)))

    def tpr(fpr: Reals) -> Reals:
        return np.asarray(special.ndtr(special.ndtri(np.asarray(fpr, dtype=np.float64)) + mu))

    return PrivacyProfile(f"Gaussian, noise multiplier {noise_multiplier:g}", delta, tpr)


def profile_from_pld(pld: Any, *, name: str = "PLD") -> PrivacyProfile:
    """From a dp_accounting `PrivacyLossDistribution`; its delta already is the larger of both directions."""

    def delta(epsilon: Reals) -> Reals:
        e = np.atleast_1d(np.asarray(epsilon, dtype=np.float64))
        if e.size == 1:  # dp_accounting is a hundred times faster on a number than on a list of one
            return np.array([pld.get_delta_for_epsilon(float(e[0]))])
        order = np.argsort(e, kind="stable")  # and wants a list in increasing order
        deltas = np.empty(e.shape)
        deltas[order] = pld.get_delta_for_epsilon(e[order])
        return deltas

    return profile_from_function(delta, name=name)


def profile_from_rdp(orders: Sequence[float], rdp: Sequence[float], *, name: str = "RDP") -> PrivacyProfile:
    """From Renyi bounds D_a(P|Q), D_a(Q|P) <= rdp at orders a >= 1 (order 1 is the Kullback-Leibler divergence).

    `tpr` is tighter than any conversion: an event is post-processing, so the Renyi divergence of the two coins
    (tpr, fpr) obeys the same bounds (Balle et al. 2020). delta(epsilon) is the usual conversion (Canonne, Kamath
    and Steinke 2020, proposition 12), with Bretagnolle and Huber's bound on the total variation.
    """
    a, r = np.asarray(orders, dtype=np.float64), np.asarray(rdp, dtype=np.float64)
    if a.shape != r.shape or a.ndim != 1 or not a.size or bool((a < 1).any()) or not bool((r >= 0).all()):
        raise BadPrivacyParameter("rdp needs one bound >= 0 for each order >= 1; pass two lists of one length.")

    def delta(epsilon: Reals) -> Reals:
        e = np.asarray(epsilon, dtype=np.float64)[..., None]
        above, bound = a[a > 1.01], r[a > 1.01]
        logs = (above - 1) * (bound - e + np.log1p(-1 / above)) - np.log(above)
        variation = np.sqrt(-np.expm1(-r.min()))
        return np.asarray(np.exp(np.minimum(logs.min(axis=-1, initial=0.0), 0.0))).clip(max=variation)

    # D_a(p|q) and D_a(q|p) grow in p >= q (quasi-convex, 0 at p = q): bisect, and keep the upper end.
    q = np.concatenate([[0.0], special.ndtr(np.linspace(-7, 7, _EPSILONS)), [1.0]])
    low, high = q.copy(), np.ones_like(q)
    for _ in range(_BISECTIONS):
        middle = (low + high) / 2
        inside = (np.maximum(_coin_divergence(middle, q, a), _coin_divergence(q, middle, a)) <= r).all(axis=-1)
        low, high = np.where(inside, middle, low), np.where(inside, high, middle)
    return PrivacyProfile(name, delta, _above_concave(q, high))


def _above_concave(x: Reals, y: Reals) -> Curve:
    """A bound from above on a concave function known at `x`: between two points, the chords next to them, prolonged.

    The Renyi divergence is jointly quasi-convex (van Erven and Harremoes 2014), so the allowed (fpr, tpr) are a
    convex set and their upper edge is concave.
    """
    slopes = np.concatenate([[1e300], np.diff(y) / np.diff(x), [0.0]])  # at the ends there is no chord beyond

    def tpr(fpr: Reals) -> Reals:
        q = np.asarray(fpr, dtype=np.float64)
        i = np.clip(np.searchsorted(x, q, side="right") - 1, 0, x.size - 2)
        from_left = y[i] + slopes[i] * (q - x[i])
        from_right = y[i + 1] - slopes[i + 2] * (x[i + 1] - q)
        return np.asarray(np.minimum(np.minimum(from_left, from_right) + 1e-10, 1.0))

    return tpr


def _coin_divergence(p: Reals, q: Reals, orders: Reals) -> Reals:
    """D_a of a coin with probability p from one with probability q, for all orders (last axis), in logarithms."""
    p, q = p[..., None], q[..., None]
    with np.errstate(divide="ignore", invalid="ignore"):
        heads = orders * np.log(p) + (1 - orders) * np.log(q)
        tails = orders * np.log1p(-p) + (1 - orders) * np.log1p(-q)
        renyi = np.logaddexp(heads, tails) / (orders - 1)
    divergence = np.where(orders == 1, special.rel_entr(p, q) + special.rel_entr(1 - p, 1 - q), renyi)
    # 0 log 0: a NaN can only come from two equal certain coins, whose divergence is 0.
    return np.where(np.isnan(divergence), 0.0, divergence)


# --- the event that is tested ----------------------------------------------------------------------------


@dataclass(frozen=True)
class Event:
    """`statistic >= threshold` (side `upper`) or `statistic < threshold` (side `lower`): the guess "it was P"."""

    threshold: float
    side: Literal["upper", "lower"] = "upper"

    def hits(self, scores: Reals) -> int:
        above = int(np.count_nonzero(scores >= self.threshold))
        return above if self.side == "upper" else scores.size - above


def choose(
    p: Reals, q: Reals, claim: PrivacyProfile, *, delta: float, epsilon: float, alpha: float
) -> dict[Aim, Event]:
    """For each aim the event that these runs would prove most with.

    `curve`: the largest excess over the claimed curve, in half-widths of its own confidence interval (above 1
    means: these runs alone would refute). `epsilon`, `delta`: the largest lower bound.
    """
    runs = p.size
    thresholds = _candidates(np.concatenate([p, q]))
    above_p = runs - np.searchsorted(np.sort(p), thresholds, side="left")
    above_q = runs - np.searchsorted(np.sort(q), thresholds, side="left")
    # The complement of an event that favours Q favours P.
    upper = above_p >= above_q
    hits_p = np.where(upper, above_p, runs - above_p)
    hits_q = np.where(upper, above_q, runs - above_q)
    tpr, fpr = clopper_pearson(hits_p, runs, alpha)[0], clopper_pearson(hits_q, runs, alpha)[1]
    allowed = claim.tpr(hits_q / runs)
    width = (hits_p / runs - tpr) + (claim.tpr(fpr) - allowed)
    value: dict[Aim, Reals] = {
        "curve": (hits_p / runs - allowed) / np.maximum(width, 1e-300),
        "epsilon": epsilon_lower_bound(tpr, fpr, delta),
        "delta": _hockey_stick(tpr, fpr, epsilon),
    }
    best = {aim: int(np.argmax(score)) for aim, score in value.items()}
    return {aim: Event(float(thresholds[i]), "upper" if upper[i] else "lower") for aim, i in best.items()}


def _candidates(pooled: Reals) -> Reals:
    """Thresholds at evenly spaced ranks, and at geometric ones in both tails; all values if they are few."""
    values = np.unique(pooled)
    values = values[1:] if values.size > 1 else values  # every run is above the least value
    if values.size <= 2 * _THRESHOLDS:
        return values
    tail = np.geomspace(1, values.size - 1, _THRESHOLDS // 2).astype(np.int64)
    middle = np.linspace(0, values.size - 1, _THRESHOLDS).astype(np.int64)
    return np.asarray(values[np.unique(np.concatenate([tail, values.size - 1 - tail, middle]))])


def refutation_probability(claim: PrivacyProfile, *, tpr: float, fpr: float, trials: int, alpha: float) -> float:
    """The exact probability that `trials` runs on each neighbour refute `claim` with an event of these true rates.

    The hits are two independent binomials. With b false hits the true hits must exceed a bound: the lower
    Clopper-Pearson bound of a hits is above t exactly if P(Bin(trials, t) >= a) < alpha.
    """
    false_hits = np.arange(stats.binom.ppf(1e-12, trials, fpr), stats.binom.isf(1e-12, trials, fpr) + 1)
    allowed = np.minimum(claim.tpr(clopper_pearson(false_hits, trials, alpha)[1]), 1.0)
    needed = stats.binom.isf(alpha, trials, allowed) + 1
    weights = stats.binom.pmf(false_hits, trials, fpr)
    return float(np.sum(weights * stats.binom.sf(needed - 1, trials, tpr)))


# --- how surely an audit catches too little noise --------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Power:
    """The probability that an audit of `runs` refutes `claim` when the noise is divided by `factor`."""

    probability: float
    claim: str
    factor: float
    runs: int
    confidence: float
    threshold: float | None


def power(
    claim: PrivacyProfile,
    *,
    shift: float,
    sd: float,
    factor: float,
    runs: int,
    confidence: float = CONFIDENCE,
    threshold: float | None = None,
    selections: int = 100,
) -> Power:
    """The power of an `Audit` whose statistic is normal noise of standard deviation `sd / factor`, moved by `shift` for
    the first neighbour.

    With a declared threshold the probability is exact. Otherwise the choice of the event is simulated `selections`
    times, the probability given each choice is exact, and their mean less two standard errors is stated: a few
    unlucky choices carry most of what is missing to 1. Only the event chosen for the claimed curve is counted.
    """
    check_audit(runs=runs, confidence=confidence)
    if not (sd > 0 and factor > 0 and np.isfinite(shift)):
        raise BadPrivacyParameter("power needs sd > 0, factor > 0 and a finite shift; state those of the statistic.")
    noise = sd / factor

    def refuted_by(event: Event, trials: int, alpha: float) -> float:
        above = special.ndtr((shift - event.threshold) / noise), special.ndtr(-event.threshold / noise)
        tpr, fpr = (float(rate if event.side == "upper" else 1 - rate) for rate in above)
        return refutation_probability(claim, tpr=tpr, fpr=fpr, trials=trials, alpha=alpha)

    if threshold is not None:
        probability = refuted_by(Event(threshold), runs, (1 - confidence) / 2)
    else:
        generator = simulated_generator(SimulatedRandomness(runs, "power of an audit"))
        alpha, first = bonferroni(confidence), runs // 2
        probabilities = []
        for _ in range(selections):
            p, q = generator.normal(0.0, noise, (2, first))
            event = choose(p + shift, q, claim, delta=0.0, epsilon=0.0, alpha=alpha)["curve"]
            probabilities.append(refuted_by(event, runs - first, alpha))
        probability = max(float(np.mean(probabilities) - 2 * np.std(probabilities) / np.sqrt(selections)), 0.0)
    return Power(
        probability=probability,
        claim=claim.name,
        factor=factor,
        runs=runs,
        confidence=confidence,
        threshold=threshold,
    )


def bonferroni(confidence: float) -> float:
    """Bonferroni: each aim's event needs a lower bound on its true and an upper bound on its false positive rate."""
    return (1 - confidence) / (2 * len(AIMS))


def check_audit(*, runs: int, confidence: float) -> None:
    if runs < 4:
        raise BadPrivacyParameter(f"an audit needs at least 4 runs on each neighbour, not {runs}.")
    if not 0 < confidence < 1:
        raise BadPrivacyParameter(f"confidence must lie between 0 and 1, not {confidence!r}.")
