"""A release is debited at every party whose records it is about, also where another member computes it."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

import colonnade as co
from colonnade.alignment.method import Align
from colonnade.alignment.session import align
from colonnade.durable import Database
from colonnade.errors import BudgetExceeded, SealBroken, UnsafeRequest
from colonnade.federation.config import Spec
from colonnade.federation.coordinator import Federation
from colonnade.federation.plan import Plan
from colonnade.models.linear import private
from colonnade.privacy.accounting import guarantee
from colonnade.privacy.cost import Cost
from colonnade.privacy.ledger import Budget, Ledger
from support.asking import asking
from support.small import COLUMNS, three_overlapping_blocks

PARTIES = ("clinic", "court", "bank")
EPSILON = 20.0


def spec(tmp_path: Path, **options: Any) -> Spec:
    return Spec(
        blocks=three_overlapping_blocks(),
        key="id",
        columns=COLUMNS,
        home=tmp_path / "home",
        allow=("alignment",),
        holder="Notary",
        **options,
    )


def bounded(costs: list[Cost]) -> float:
    """Epsilon of what has a bound; joint releases count once."""
    leaves = [leaf for cost in costs for leaf in cost.leaves() if not leaf.unbounded]
    return guarantee(leaves, delta=1e-6).epsilon


def spent(home: Path) -> float:
    with closing(Database(home / "party.db", read_only=True)) as database:
        return bounded(Ledger(database, create=False).costs())


def test_pattern_counts_are_paid_by_every_party_that_they_count(tmp_path: Path) -> None:
    """The matcher is a member without data: its ledger has nothing to protect, and theirs have."""
    result, run = align(spec(tmp_path), runs=tmp_path / "runs", epsilon=EPSILON)
    assert result.matcher == "holder"
    assert result.patterns is not None
    assert {party: spent(tmp_path / "home" / party) for party in PARTIES} == dict.fromkeys(PARTIES, EPSILON)
    assert spent(tmp_path / "home" / "holder") == 0.0
    assert bounded(run.plan().costs()) == EPSILON  # one release: over all parties a person loses it once


def test_pattern_counts_count_against_the_budget_of_a_data_party(tmp_path: Path) -> None:
    """A variant: the noise of the counts is above what the data parties may spend, whatever the matcher may."""
    with pytest.raises(BudgetExceeded):
        align(spec(tmp_path, budget=Budget(epsilon=1.0)), runs=tmp_path / "runs", epsilon=EPSILON)


def test_the_matcher_cannot_be_asked_for_less_noise_than_was_paid(tmp_path: Path) -> None:
    """A variant: the parties were asked with epsilon 0.5, the matcher is asked with 20. Nothing arrives under its
    terms, even where the border of the matcher is bypassed."""
    described = spec(tmp_path)
    method = Align(capacity=dict.fromkeys(described.blocks, 60), epsilon=0.5)
    with Federation.from_spec(described, aligned=False) as federation:
        plan = federation.plan(method)
        with federation.open(plan) as job:
            job.ask(plan.stage("blind"))
            raising = plan.stage("raise")
            for _ in range(raising.rounds):
                job.ask(raising)
            terms = plan.stage("number").requests["holder"][0]["terms"]
            number = asking(plan.stage("number"), holder={"terms": {**terms, "epsilon": EPSILON}})
            with pytest.raises(UnsafeRequest):
                job.ask(number, parties=["holder"])
        with federation.open(plan) as job:
            job.ask(plan.stage("blind"))
            for _ in range(raising.rounds):
                job.ask(raising)
            matcher = federation.transport["holder"]  # type: ignore[index]
            matcher._bound = lambda _: (plan.stage("number"), 0)
            with pytest.raises(SealBroken):
                job.ask(number, parties=["holder"])


def _leaves(plan: Plan, party: str, mechanism: str) -> list[Cost]:
    return [leaf for cost in plan.costs(party) for leaf in cost.leaves() if leaf.mechanism == mechanism]


def test_moments_by_pattern_are_paid_by_the_parties_of_the_patterns(tmp_path: Path) -> None:
    """The response holder computes them; the patterns are those of the others' records."""
    with Federation.from_spec(spec(tmp_path)) as federation:
        plan = federation.plan(co.Regress(response="sued", columns=("age", "rating"), epsilon=3.0, delta=1e-6))
        stages = {stage.step: stage for stage in plan.stages}
        own, told = stages[private.own_moments.name], stages[private.tell_presence.name]
        again = stages[private.weighted_moments.name]
        computed = [leaf for stage in (own, again) for cost in stage.costs.values() for leaf in cost.leaves()]
        assert [leaf.mechanism for leaf in computed] == ["gaussian"] * 3
        assert set(own.costs) == set(again.costs) == {"court"}
        assert set(told.costs) == {"clinic", "bank", "court"}
        for party in ("clinic", "bank"):
            assert all(leaf in told.costs[party].parts for leaf in computed)
        # What one party pays is below the whole, what a person pays is the whole, and neither counts it twice.
        assert bounded(plan.costs("clinic")) < 3.0 * 1.001
        assert bounded(plan.costs()) == pytest.approx(3.0, rel=0.02)


def test_weights_of_private_training_are_paid_by_all_parties_of_the_training(tmp_path: Path) -> None:
    with Federation.from_spec(spec(tmp_path)) as federation:
        plan = federation.plan(co.Complete(epsilon=4.0, delta=1e-6, epochs=2, batch=8, local=5))
        joint = {party: {leaf.joint for leaf in _leaves(plan, party, "skellam")} for party in PARTIES}
        assert joint["clinic"] == joint["court"] == joint["bank"]
        assert len(joint["clinic"]) == 9  # three trainings, of three parties each
        for party in PARTIES:
            assert bounded(plan.costs(party)) == pytest.approx(4.0, rel=0.05)


def test_releases_without_a_bound_name_all_who_learn_of_them(tmp_path: Path) -> None:
    """What one party computes of another's predictors or vectors goes on to the coordinator: the owner's ledger says
    so, and not only the ledger of the party that computes it."""
    with Federation.from_spec(spec(tmp_path)) as federation:
        methods: dict[str, Any] = {
            "total-predictor": co.Select(response="sued", family="binomial"),
            "exact-scores": co.Regress(response="sued", family="binomial"),
            "split-training": co.Complete(),
            "linear-predictors": co.Complete(imputer="mice"),
        }
        for name, method in methods.items():
            plan = federation.plan(method)
            audiences = {
                leaf.audience for party in PARTIES for leaf in _leaves(plan, party, "unbounded") if leaf["name"] == name
            }
            assert audiences
            assert all("coordinator" in audience for audience in audiences), (name, audiences)
