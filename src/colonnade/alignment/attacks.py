"""The attack on an alignment's one release with a bound: the noisy counts of who shares which records.

Worst-case neighbours under zero-out: a record in one pattern, or in none. The noise is the product's own
(`noisy_counts`). The event is declared: the count is above that of the other records. No event has a larger ratio of
probabilities, e^epsilon, and both are known, so that the power is exact.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from colonnade.alignment.align import noisy_counts
from colonnade.audit.attack import DELTA, NEIGHBOURS, Attack, Setting
from colonnade.audit.bounds import CONFIDENCE, Power, refutation_probability
from colonnade.audit.claims import claimed_curve
from colonnade.audit.mechanism import Audit, AuditResult
from colonnade.privacy.cost import Laplace
from colonnade.privacy.randomness import Randomness

EPSILON = 1.0


def alignment_attacks() -> tuple[Attack, ...]:
    return (Attack(NEIGHBOURS, "noisy counts of the patterns of presence", _pattern_counts),)


def _pattern_counts(setting: Setting) -> AuditResult:
    claim = claimed_curve([Laplace(EPSILON)], name="noisy counts of the patterns of presence")
    runs, planted = setting.runs(20_000), setting.planted

    def run_many(present: bool, runs: int, randomness: Randomness) -> NDArray[np.float64]:
        counts = np.full(runs, int(present))
        return noisy_counts(counts, EPSILON * planted.factor, randomness).astype(np.float64)

    # P(noise >= 1) = q / (1 + q) and P(noise >= 0) = 1 / (1 + q) with q = e^-epsilon.
    q = math.exp(-EPSILON * planted.looked_for)
    found = refutation_probability(claim, tpr=1 / (1 + q), fpr=q / (1 + q), trials=runs, alpha=(1 - CONFIDENCE) / 2)
    stated = Power(
        probability=found,
        claim=claim.name,
        factor=planted.looked_for,
        runs=runs,
        confidence=CONFIDENCE,
        threshold=1.0,
    )
    return Audit(
        neighbours=(True, False),
        run_many=run_many,
        claim=claim,
        delta=DELTA,
        runs=runs,
        threshold=1.0,
        stated_power=stated,
    ).run(setting.randomness)
