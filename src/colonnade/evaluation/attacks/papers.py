"""Attacks on claims that papers print and that do not hold as printed: nominal ranks, reports, sketches."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray
from scipy import stats

from colonnade.audit.bounds import CONFIDENCE, profile_from_point
from colonnade.audit.inference import InferenceResult, attribute_inference
from colonnade.audit.mechanism import Audit
from colonnade.privacy.randomized import generalized_randomized_response
from colonnade.privacy.randomness import Randomness
from colonnade.papers.vcds.ranks import perturbed_ranks
from colonnade.papers.vertimrf.sketches import floor_level, phantoms, private_levels, sketch_epsilon
from colonnade.papers.vertimrf.frequency_oracle import proved_epsilon

Reals = NDArray[np.float64]


# --- perturbed ranks (the copula paper) -----------------------------------------------------------------------


def nominal_ranks(
    *, records: int, columns: int, epsilon_0: float, nominal: float, guesses: int, randomness: Randomness
) -> InferenceResult:
    """A record that is below everybody in all of a party's columns, or above everybody; the coordinator adds up its
    debiased ranks and says which. With a true pure epsilon a guess is right with at most e^epsilon / (1 + e^epsilon).
    """
    right = 0
    for turn in range(guesses):
        highest = turn % 2 == 0
        column = np.arange(float(records))
        column[0] = 2.0 * records if highest else -1.0
        ranks = [
            perturbed_ranks(column, epsilon_0=epsilon_0, randomness=randomness).debiased[0] for _ in range(columns)
        ]
        right += bool(sum(ranks) > columns * (records + 1) / 2) == highest
    return attribute_inference(right, guesses, values=2, claimed_epsilon=nominal, delta=0.0, confidence=CONFIDENCE)


# --- VertiMRF's frequency oracle ------------------------------------------------------------------------------


def reports_audit(
    reported: float, *, claimed: float, delta: float, sizes: Sequence[int], runs: int
) -> Audit[tuple[int, ...]]:
    """All reports of one record, each at epsilon `reported`, against those of one that differs in every column."""
    weight = proved_epsilon(claimed, delta, tuple(sizes))

    def run_many(record: tuple[int, ...], runs: int, randomness: Randomness) -> Reals:
        score = np.zeros(runs)
        for value, size in zip(record, sizes, strict=True):
            said = generalized_randomized_response(
                np.full(runs, value), categories=size, epsilon=reported, randomness=randomness
            )
            score += weight * ((said == 0).astype(float) - (said == 1))
        return score

    zeros, ones = (0,) * len(sizes), (1,) * len(sizes)
    claim = profile_from_point(claimed, delta)
    return Audit(neighbours=(zeros, ones), run_many=run_many, claim=claim, delta=delta, runs=runs)


# --- VertiMRF's sketches --------------------------------------------------------------------------------------


def tie_scores(levels: NDArray[np.uint8], epsilon: float) -> Reals:
    """For each run the largest log likelihood ratio among its t hashes (levels: runs x t x columns).

    With the record, all columns' levels are at least its hash. The ratio at minimum m, attained s times, is
    P(H < m) + P(H = m) (F(m) / f(m))^s, with F and f of the maximum of k_p phantoms and the floor.
    """
    count, floor = phantoms(epsilon), floor_level(epsilon, 1.0)
    m = levels.min(axis=2).astype(np.float64)
    s = (levels == levels.min(axis=2, keepdims=True)).sum(axis=2)
    above = np.exp(count * np.log1p(-(2.0**-m)))
    below = np.where(m > floor, np.exp(count * np.log1p(-(2.0 ** -(m - 1)))), 0.0)
    log_ratio = np.logaddexp(
        np.log1p(-(2.0 ** -(m - 1)), where=m > 1, out=np.full_like(m, -np.inf)),
        -m * math.log(2) + s * (np.log(above) - np.log(above - below)),
    )
    return np.asarray(log_ratio.max(axis=1))


def sketches_audit(*, claimed: float, delta: float, columns: int, sketches: int, runs: int) -> Audit[bool]:
    """Columns in which a record's values are its own: its sketches tie, and give it away (Theorem 4)."""
    epsilon = sketch_epsilon(claimed, delta, columns, sketches)

    def run_many(present: bool, runs: int, randomness: Randomness) -> Reals:
        scores = []
        for start in range(0, runs, 500):
            batch = min(500, runs - start)
            smallest = np.full((batch, sketches, columns), 2**64 - 1, dtype=np.uint64)
            if present:  # one hash of the record under each key, in every column
                smallest[:] = randomness.words(batch * sketches).reshape(batch, sketches, 1)
            levels = private_levels(smallest, epsilon=epsilon, gamma=1.0, randomness=randomness)
            scores.append(tie_scores(levels, epsilon))
        return np.concatenate(scores)

    return Audit(
        neighbours=(True, False),
        run_many=run_many,
        claim=profile_from_point(claimed, delta),
        delta=delta,
        runs=runs,
        confidence=1 - 1e-4,
    )


def right_rank_guesses(records: int, columns: int, epsilon_0: float) -> float:
    """How often the guess on perturbed ranks is right: it errs if Bin(M, 1 / (1 + e^eps0)) exceeds M / 2."""
    comparisons = (records - 1) * columns
    return float(stats.binom.cdf(comparisons // 2, comparisons, 1 / (1 + math.exp(epsilon_0))))
