"""Attacks on VertiMRF's encoders: reports as we prove them, and the paper's Theorems 3 and 4, which do not hold."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from colonnade.audit.attack import NEIGHBOURS, Attack, Setting
from colonnade.audit.bounds import profile_from_point
from colonnade.audit.mechanism import Audit, AuditResult
from colonnade.papers.vertimrf.frequency_oracle import paper_epsilon, proved_epsilon
from colonnade.papers.vertimrf.sketches import floor_level, phantoms, private_levels, sketch_epsilon
from colonnade.privacy.noise import generalized_randomized_response
from colonnade.privacy.randomness import Randomness
from colonnade.synthesis.field.schema import Reals

SIZES = (5, 4, 3)
"""What the columns of the attacked record can report."""
DELTA = 1e-4


def vertimrf_attacks() -> tuple[Attack, ...]:
    return (
        Attack(NEIGHBOURS, "all reports of a record, as we prove it", _proved),
        Attack(NEIGHBOURS, "all reports of a record, Theorem 3 as printed", _theorem_3, ours=False, plantable=False),
        Attack("ties of sketches", "all sketches of a record, Theorem 4", _theorem_4, ours=False, plantable=False),
    )


def _proved(setting: Setting) -> AuditResult:
    return _reports(setting, proved_epsilon(1.0, DELTA, SIZES) * setting.planted.factor)


def _theorem_3(setting: Setting) -> AuditResult:
    return _reports(setting, paper_epsilon(1.0, DELTA, len(SIZES)))


def _reports(setting: Setting, reported: float) -> AuditResult:
    audit = reports_audit(reported, claimed=1.0, delta=DELTA, sizes=SIZES, runs=setting.runs(200_000))
    return audit.run(setting.randomness)


def _theorem_4(setting: Setting) -> AuditResult:
    audit = sketches_audit(claimed=0.288, delta=DELTA, columns=15, sketches=200, runs=setting.runs(4000))
    return audit.run(setting.randomness)


# --- the frequency oracle ---------------------------------------------------------------------------------------


def reports_audit(
    reported: float, *, claimed: float, delta: float, sizes: Sequence[int], runs: int
) -> Audit[tuple[int, ...]]:
    """All reports of one record, each at epsilon `reported`, against those of one that differs in every column."""
    weight = proved_epsilon(claimed, delta, tuple(sizes))

    def run_many(record: tuple[int, ...], runs: int, randomness: Randomness) -> Reals:
        score = np.zeros(runs)
        for value, size in zip(record, sizes, strict=True):
            reports = generalized_randomized_response(
                np.full(runs, value), categories=size, epsilon=reported, randomness=randomness
            )
            score += weight * ((reports == 0).astype(float) - (reports == 1))
        return score

    zeros, ones = (0,) * len(sizes), (1,) * len(sizes)
    claim = profile_from_point(claimed, delta)
    return Audit(neighbours=(zeros, ones), run_many=run_many, claim=claim, delta=delta, runs=runs)


# --- the sketches -----------------------------------------------------------------------------------------------


def tie_scores(levels: NDArray[np.uint8], epsilon: float) -> Reals:
    """For each run the largest log likelihood ratio among its t hashes (levels: runs x t x columns).

    With the record, all columns' levels are at least its hash. The ratio at minimum m, attained s times, is
    P(H < m) + P(H = m) (F(m) / f(m))^s, with F and f of the maximum of k_p phantoms and the floor.
    """
    count, floor = phantoms(epsilon), floor_level(epsilon)
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
            levels = private_levels(smallest, epsilon=epsilon, randomness=randomness)
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
