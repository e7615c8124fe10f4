"""The worst-case neighbours of perturbed ranks: they defeat the paper's nominal claim, and not ours.

A record that is below everybody in all columns becomes one that is above everybody. It changes all of its N - 1
comparisons in every column, and its own released ranks are their sums. Seeds are fixed; whatever the seed, a true
claim is refuted with probability at most 1e-6.
"""

from __future__ import annotations

import math
from collections import Counter
from functools import cache

import numpy as np
import pytest

from colonnade.audit.bounds import (
    PrivacyProfile,
    power,
    profile_from_function,
    profile_from_point,
    profile_from_rdp,
)
from colonnade.audit.mechanism import Audit
from colonnade.papers.vcds.ranks import (
    Noise,
    binomial_profile,
    comparison_budget,
    doubled_mid_ranks,
    perturbed_ranks,
    rank_cost,
)
from colonnade.privacy.accounting import ORDERS, rdp_sum
from colonnade.privacy.cost import Cost
from colonnade.privacy.randomness import Randomness, SimulatedRandomness
from support.adversaries import membership_attack

Reals = np.ndarray

N, COLUMNS, RUNS = 1000, 20, 120
NOMINAL = 0.5
EPSILON_0 = comparison_budget(NOMINAL, parties=5, total_columns=101)


@cache
def scores(noise: Noise, own_value: float, seed: int) -> Reals:
    """The sum of the victim's released ranks over one party's 20 columns, in each of RUNS runs of the mechanism."""
    column = np.arange(float(N))
    column[0] = own_value
    randomness = SimulatedRandomness(seed)
    return np.array(
        [
            sum(
                int(perturbed_ranks(column, epsilon_0=EPSILON_0, noise=noise, randomness=randomness).released[0])
                for _ in range(COLUMNS)
            )
            for _ in range(RUNS)
        ],
        dtype=np.float64,
    )


def test_the_nominal_claim_falls() -> None:
    """A true epsilon of 0.5 allows 1.65 % at 1 % false positives; Binomial(999 x 20, theta) gives 88 %."""
    members, others = scores("response", 1e9, 1), scores("response", -1.0, 2)
    found = membership_attack(members, others, fpr=0.01, claim=profile_from_point(NOMINAL, 0.0))
    assert found.allowed == pytest.approx(0.0165, abs=1e-4)
    assert found.refuted
    assert found.tpr > 0.6


def test_the_exact_block_claim_stands() -> None:
    claim = profile_from_function(binomial_profile(N, COLUMNS, EPSILON_0).delta, name="block of ranks")
    members, others = scores("response", 1e9, 1), scores("response", -1.0, 2)
    assert not membership_attack(members, others, fpr=0.01, claim=claim).refuted
    assert not membership_attack(members, others, fpr=0.2, claim=claim).refuted


def test_skellam_ranks_fall_to_the_same_nominal_claim_and_stand_by_their_own() -> None:
    """The same two moments leak as much."""
    members, others = scores("skellam", 1e9, 3), scores("skellam", -1.0, 4)
    assert membership_attack(members, others, fpr=0.01, claim=profile_from_point(NOMINAL, 0.0)).refuted
    claim = renyi_claim(rank_cost(N, COLUMNS, EPSILON_0, noise="skellam"))
    assert not membership_attack(members, others, fpr=0.01, claim=claim).refuted


# --- an audit with a stated power ------------------------------------------------------------------------

FEW, RUNS_OF_AUDIT = 12, 6_000
HONEST = 0.25


def renyi_claim(cost: Cost) -> PrivacyProfile:
    curve = rdp_sum(Counter({cost.times(1): 1})) * cost.count
    return profile_from_rdp(ORDERS.tolist(), curve.tolist(), name="perturbed ranks")


def audit_of(epsilon_0: float) -> Audit[Reals]:
    """Skellam ranks drawn at `epsilon_0` against the claim of HONEST, in the direction of the difference."""
    low, high = np.arange(float(FEW)), np.append(1e9, np.arange(1.0, FEW))
    direction = (doubled_mid_ranks(high) - doubled_mid_ranks(low)).astype(np.float64)
    cost = rank_cost(FEW, 1, HONEST, noise="skellam")
    length = float(np.linalg.norm(direction))
    claim = renyi_claim(cost)
    sd = math.sqrt(2 * cost.number("mu"))
    stated = power(claim, shift=length, sd=sd, factor=2.0, runs=RUNS_OF_AUDIT)

    def run_many(column: Reals, runs: int, randomness: Randomness) -> Reals:
        return np.array(
            [
                perturbed_ranks(column, epsilon_0=epsilon_0, noise="skellam", randomness=randomness).released
                @ direction
                / length
                for _ in range(runs)
            ]
        )

    return Audit(
        neighbours=(high, low), run_many=run_many, claim=claim, delta=1e-5, runs=RUNS_OF_AUDIT, stated_power=stated
    )


def test_the_auditor_accepts_the_skellam_cost_and_rejects_too_little_noise() -> None:
    honest = audit_of(HONEST)
    assert honest.stated_power is not None
    assert honest.stated_power.probability > 0.999
    assert not honest.run(SimulatedRandomness(5)).refuted
    # The planted bug is noise for ranks on doubled ranks. s is nearly 1 / eps0, so 2 eps0 draws half of the noise.
    assert audit_of(2 * HONEST).run(SimulatedRandomness(6)).refuted
