"""Tries to refute the claim of `statistics/contingency.claim.md`, and shows that it would notice a broken mechanism.

Worst-case neighbours under zero-out: a record that is in one cell of each of two tables, or nothing. Each member draws
its own Skellam share, as the product does. The statistic is the exact log likelihood ratio of the two cells. The claim
is the cost that the plan states, as the PLD that the accountant uses; sharp, because the shift is known.
"""

from __future__ import annotations

import math
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy import stats

from colonnade.evaluation.audit import Audit
from colonnade.evaluation.bounds import PrivacyProfile, power, profile_from_pld
from colonnade.federation.step import Public
from colonnade.privacy.mechanisms import mechanism_of
from colonnade.privacy.randomness import Randomness, SimulatedRandomness
from colonnade.privacy.skellam_sampler import skellam
from colonnade.statistics.contingency import Contingency
from colonnade.statistics.contingency_layout import Layout
from support.small import three_parties

RUNS = 200_000
DELTA = 1e-5
EPSILON = 2.0
CONFIDENCE = 1 - 1e-6


@pytest.fixture(scope="module")
def layout(tmp_path_factory: pytest.TempPathFactory) -> Layout:
    with three_parties(tmp_path_factory.mktemp("audit")) as federation:
        method = Contingency(tables=(("sued", "rating"), ("sector",)), epsilon=EPSILON, delta=DELTA, view="server")
        return method.layout(federation.facts, federation.roster)


def claim(layout: Layout) -> PrivacyProfile:
    """The composition of the two tables' losses."""
    public = Public(job="audit", party="bank", facts=layout.facts, roster=layout.roster)
    leaves = layout.cost(public, "server").leaves()
    assert sum(leaf.count for leaf in leaves) == len(layout.mus) == 2
    whole = None
    for leaf in leaves:
        one = mechanism_of(leaf).pld(leaf)
        assert one is not None
        for _ in range(leaf.count):
            whole = one if whole is None else whole.compose(one)
    return profile_from_pld(whole, name="two contingency tables, server view")


def audit(layout: Layout, *, factor: float = 1.0, members: int = 3) -> Audit[bool]:
    mus = [Fraction(mu) / Fraction(factor).limit_denominator(10_000) ** 2 for mu in layout.mus]

    def run_many(present: bool, runs: int, randomness: Randomness) -> NDArray[np.float64]:
        score = np.zeros(runs)
        for mu, claimed in zip(mus, layout.mus, strict=True):
            cell = int(present) + sum(skellam(randomness, mu / 3, runs) for _ in range(members))
            values, where = np.unique(cell, return_inverse=True)
            ratio = stats.skellam.logpmf(values - 1, claimed, claimed) - stats.skellam.logpmf(values, claimed, claimed)
            score += ratio[where]
        return score

    # The score is nearly normal: in units of one table's noise the two neighbours differ by sqrt(sum 1 / (2 mu)).
    shift = math.sqrt(sum(1 / (2 * mu) for mu in layout.mus))
    effective = math.sqrt(factor**2 * 3 / members)
    stated = power(claim(layout), shift=shift, sd=1.0, factor=effective, runs=RUNS, confidence=CONFIDENCE)
    return Audit(
        neighbours=(True, False),
        run_many=run_many,
        claim=claim(layout),
        delta=DELTA,
        runs=RUNS,
        confidence=CONFIDENCE,
        stated_power=stated,
    )


def test_the_claim_is_not_refuted(layout: Layout) -> None:
    """A false alarm has probability at most 1e-6."""
    result = audit(layout).run(SimulatedRandomness(21))
    assert not result.refuted, str(result)
    assert 0.9 * EPSILON < result.claimed_epsilon <= EPSILON * (1 + 1e-6), "mu is a whole number, so not exactly"


@pytest.mark.parametrize(
    ("factor", "members"), [(1.4, 3), (1.0, 2)], ids=["noise over 1.4", "a member's noise missing"]
)
def test_planted_bugs_are_refuted(layout: Layout, factor: float, members: int) -> None:
    made = audit(layout, factor=factor, members=members)
    assert made.stated_power is not None
    assert made.stated_power.probability > 0.99
    assert made.run(SimulatedRandomness(22)).refuted


def test_a_forgotten_composition_is_refuted(layout: Layout) -> None:
    """Two tables that each spend the whole budget, claimed as one."""
    single = mechanism_of(leaf := claim_leaf(layout)).pld(leaf)
    assert single is not None
    made = audit(layout)
    planted = Audit(
        neighbours=made.neighbours,
        run_many=made.run_many,
        claim=profile_from_pld(single, name="one table"),
        delta=DELTA,
        runs=RUNS,
        confidence=CONFIDENCE,
    )
    assert planted.run(SimulatedRandomness(23)).refuted


def claim_leaf(layout: Layout):  # type: ignore[no-untyped-def]
    public = Public(job="audit", party="bank", facts=layout.facts, roster=layout.roster)
    return layout.cost(public, "server").leaves()[0]


def test_the_cost_of_the_plan_is_the_one_audited(tmp_path: Path) -> None:
    with three_parties(tmp_path) as federation:
        method = Contingency(tables=(("sued", "rating"), ("sector",)), epsilon=EPSILON, delta=DELTA, view="server")
        assert 0.9 * EPSILON < federation.plan(method).total().epsilon <= EPSILON * (1 + 1e-6)
