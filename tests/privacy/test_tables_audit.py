"""Tries to refute the claim of `statistics/tables.claim.md`, and shows that it would notice a broken mechanism.

Worst-case neighbours under zero-out: a record that is in one cell of each of two tables, or nothing. Each member draws
its own Skellam share, as the product does. The statistic is the exact log likelihood ratio of the two cells. The claim
is the cost that the plan states, as the PLD that the accountant uses; sharp, because the shift is known.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from colonnade.audit.bounds import PrivacyProfile, profile_from_pld
from colonnade.audit.claims import claimed_curve
from colonnade.audit.mechanism import Audit
from colonnade.audit.planted import NOTHING, Planted
from colonnade.federation.step import Public
from colonnade.privacy.mechanisms import mechanism_of
from colonnade.privacy.randomness import SimulatedRandomness
from colonnade.statistics.attacks import tables_audit
from colonnade.statistics.tables import Tables, TablesLayout
from support.small import three_parties

RUNS = 200_000
DELTA = 1e-5
EPSILON = 2.0


@pytest.fixture(scope="module")
def layout(tmp_path_factory: pytest.TempPathFactory) -> TablesLayout:
    with three_parties(tmp_path_factory.mktemp("audit")) as federation:
        method = Tables(tables=(("sued", "rating"), ("sector",)), epsilon=EPSILON, delta=DELTA, view="server")
        return method.layout(federation.facts, federation.roster)


def claim(layout: TablesLayout) -> PrivacyProfile:
    """The composition of the two tables' losses."""
    public = Public(job="audit", party="bank", facts=layout.facts, roster=layout.roster)
    cost = layout.cost(public, "server")
    assert sum(leaf.count for leaf in cost.leaves()) == len(layout.mus) == 2
    return claimed_curve([cost], name="two contingency tables, server view")


def audit(layout: TablesLayout, planted: Planted = NOTHING) -> Audit[bool]:
    return tables_audit(claim(layout), layout.mus, delta=DELTA, runs=RUNS, planted=planted)


def test_the_claim_is_not_refuted(layout: TablesLayout) -> None:
    """A false alarm has probability at most 1e-6."""
    result = audit(layout).run(SimulatedRandomness(21))
    assert not result.refuted, str(result)
    assert 0.9 * EPSILON < result.claimed_epsilon <= EPSILON * (1 + 1e-6), "mu is a whole number, so not exactly"


@pytest.mark.parametrize("bug", ["noise/1.4", "silent-member"])
def test_planted_bugs_are_refuted(layout: TablesLayout, bug: str) -> None:
    made = audit(layout, Planted.parse(bug))
    assert made.stated_power is not None
    assert made.stated_power.probability > 0.99
    assert made.run(SimulatedRandomness(22)).refuted


def test_a_forgotten_composition_is_refuted(layout: TablesLayout) -> None:
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
    )
    assert planted.run(SimulatedRandomness(23)).refuted


def claim_leaf(layout: TablesLayout):  # type: ignore[no-untyped-def]
    public = Public(job="audit", party="bank", facts=layout.facts, roster=layout.roster)
    return layout.cost(public, "server").leaves()[0]


def test_the_cost_of_the_plan_is_the_one_audited(tmp_path: Path) -> None:
    with three_parties(tmp_path) as federation:
        method = Tables(tables=(("sued", "rating"), ("sector",)), epsilon=EPSILON, delta=DELTA, view="server")
        assert 0.9 * EPSILON < federation.plan(method).total().epsilon <= EPSILON * (1 + 1e-6)
