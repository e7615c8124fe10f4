"""The auditor on the rounds of tables and on VertiMRF's encoders: rounds and reports keep their claims, planted bugs
are found, and the theorems of the paper are refuted.

Neighbours under zero-out: a record that is there with rare values, or nothing.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from colonnade.audit.attack import Setting, as_expected, audit_method
from colonnade.audit.bounds import PrivacyProfile, profile_from_pld
from colonnade.audit.claims import claimed_curve
from colonnade.audit.mechanism import Audit
from colonnade.audit.planted import NOTHING, Planted
from colonnade.papers.vertimrf.attacks import reports_audit, sketches_audit
from colonnade.papers.vertimrf.frequency_oracle import proved_epsilon
from colonnade.privacy.accounting import guarantee
from colonnade.privacy.mechanisms import mechanism_of
from colonnade.privacy.randomness import SimulatedRandomness
from colonnade.statistics.attacks import tables_audit
from colonnade.synthesis.field.attacks import field_attacks
from colonnade.synthesis.field.fit import Measurement
from colonnade.synthesis.field.procedure import FieldSynthesis
from colonnade.synthesis.field.rounds import TableRounds, unit_cost
from colonnade.synthesis.field.schema import TableQuery
from colonnade.synthesis.method import Synthesize
from support.small import three_parties

DELTA = 1e-4
METHOD = Synthesize(model="field", epsilon=2.0, delta=DELTA, view="server", n_tables=8, cuts="declared")


# --- three rounds -------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def three(tmp_path_factory: pytest.TempPathFactory) -> tuple[TableRounds, PrivacyProfile]:
    with three_parties(tmp_path_factory.mktemp("audit")) as federation:
        rounds = FieldSynthesis(METHOD, federation.facts, federation.roster).rounds
        composed = None
        for mu, units in zip(rounds.mus, rounds.units, strict=True):
            leaf = unit_cost(mu, federation.roster, "server")
            pld = mechanism_of(leaf).pld(leaf)
            assert pld is not None
            many = pld.self_compose(units)
            composed = many if composed is None else composed.compose(many)
    return rounds, profile_from_pld(composed, name="three rounds of tables, server view")


def rounds_audit(three: tuple[TableRounds, PrivacyProfile], planted: Planted = NOTHING) -> Audit[bool]:
    rounds, claim = three
    return tables_audit(claim, rounds.mus, units=rounds.units, delta=DELTA, runs=40_000, planted=planted)


def test_the_rounds_keep_their_claim(three: tuple[TableRounds, PrivacyProfile]) -> None:
    """A false alarm has probability at most 1e-6."""
    result = rounds_audit(three).run(SimulatedRandomness(31))
    assert not result.refuted, str(result)
    assert 1.9 < result.claimed_epsilon <= 2.0


@pytest.mark.parametrize("bug", ["silent-member", "forgotten-split"])
def test_planted_bugs_in_the_rounds_are_found(three: tuple[TableRounds, PrivacyProfile], bug: str) -> None:
    assert rounds_audit(three, Planted.parse(bug)).run(SimulatedRandomness(32)).refuted


def test_the_plan_states_the_cost_that_is_audited(tmp_path: Path, three: tuple[TableRounds, PrivacyProfile]) -> None:
    with three_parties(tmp_path) as federation:
        plan = federation.plan(METHOD)
        costs = [
            unit_cost(mu, federation.roster, "server").times(units)
            for mu, units in zip(three[0].mus, three[0].units, strict=True)
        ]
        assert plan.total().epsilon == pytest.approx(guarantee(costs, delta=DELTA).epsilon, rel=1e-9)


def test_the_third_round_is_chosen_from_what_was_opened(tmp_path: Path) -> None:
    """What was opened shows that a pair depends of which the records know nothing, and hides all others. A choice that
    looked at the records would ask for another table: their own pairs depend strongly."""
    with three_parties(tmp_path) as federation:
        procedure = FieldSynthesis(replace(METHOD, bins=3), federation.facts, federation.roster)
    schema, n = procedure.schema, procedure.facts.n
    pair = ("sued", "rating")
    asked: list[TableQuery] = []

    def opened(number: int, queries: Sequence[TableQuery]) -> list[Measurement]:
        asked[:] = queries
        made = []
        for query in queries:
            shape = [
                schema.sizes[name] if bins is None else max(bins) + 1
                for name, bins in zip(query.columns, query.bins, strict=True)
            ]
            counts = np.full(shape, n / math.prod(shape))
            if query.columns == pair:  # two levels by three, the margins uniform as all the others
                counts *= np.array([[1.8, 1.0, 0.2], [0.2, 1.0, 1.8]])
            made.append(Measurement(query.columns, counts, 0.1, query.maps()))
        return made

    measured = procedure.measure(schema, opened)
    assert [set(table) for table in measured.chosen] == [set(pair)]
    assert sum(query.units for query in asked) == procedure.rounds.units[2], "and no more than the round has"


@pytest.mark.parametrize("place", [0, 1])
@pytest.mark.parametrize(("bug", "refuted"), [("nothing", False), ("silent-member", True)])
def test_the_attacks_of_synthesize_are_on_these_rounds_and_on_moments(place: int, bug: str, refuted: bool) -> None:
    """A silent member leaves two thirds of the noise. With half of the budget for moments the second attack sees that
    of both: moments without noise of their own cost would be found as well."""
    attack = field_attacks()[place]
    planted = NOTHING if bug == "nothing" else Planted.parse(bug)
    assert attack.takes(planted)
    assert attack.run(Setting(planted=planted, effort=0.5, seed=36)).refuted == refuted


def test_moments_that_nobody_pays_for_are_found(tmp_path: Path) -> None:
    """The claim of the rounds alone, where second moments with half of the budget are opened beside them."""
    method = replace(METHOD, moment_share=0.5)
    with three_parties(tmp_path) as federation:
        procedure = FieldSynthesis(method, federation.facts, federation.roster)
        rounds, moments = procedure.rounds, procedure.moments
        assert moments is not None
        tables = zip(rounds.mus, rounds.units, strict=True)
        paid = [unit_cost(mu, federation.roster, "server").times(units) for mu, units in tables]
        assert federation.plan(method).total().epsilon == pytest.approx(2.0, rel=0.01)
    common = {"units": rounds.units, "moments": moments.layout, "delta": DELTA, "runs": 60_000}
    short, whole = claimed_curve(paid, name="rounds"), claimed_curve([*paid, *moments.layout.releases(0)], name="all")
    assert tables_audit(short, rounds.mus, **common).run(SimulatedRandomness(38)).refuted  # type: ignore[arg-type]
    assert not tables_audit(whole, rounds.mus, **common).run(SimulatedRandomness(38)).refuted  # type: ignore[arg-type]


def test_an_audit_of_vertimrf_refutes_both_theorems_and_not_our_own_claim() -> None:
    findings = list(audit_method("vertimrf", effort=0.5, seed=37))
    assert as_expected(findings)
    assert [finding.refuted for finding in findings] == [False, True, True]


# --- fo ------------------------------------------------------------------------------------------------------------


SIZES = (5, 4, 3)


def reports(epsilon: float) -> Audit[tuple[int, ...]]:
    return reports_audit(epsilon, claimed=1.0, delta=DELTA, sizes=SIZES, runs=200_000)


def test_the_reports_of_the_oracle_keep_their_claim() -> None:
    result = reports(proved_epsilon(1.0, DELTA, SIZES)).run(SimulatedRandomness(33))
    assert not result.refuted, str(result)
    assert result.epsilon_lower_bound > 0.6, "and the audit is sharp"


def test_theorem_3_as_printed_is_refuted() -> None:
    """eps' = 2 epsilon / d, claimed as epsilon for all d reports: they cost d eps' = 2 epsilon."""
    assert reports(2 * 1.0 / len(SIZES)).run(SimulatedRandomness(34)).refuted


# --- fm ------------------------------------------------------------------------------------------------------------


COLUMNS, SKETCHES, CLAIMED = 15, 200, 0.288


def test_theorem_4_is_refuted_by_ties() -> None:
    """Fifteen columns in which the record's values are its own: the sketches of one record tie, and give it away."""
    audit = sketches_audit(claimed=CLAIMED, delta=DELTA, columns=COLUMNS, sketches=SKETCHES, runs=5000)
    result = audit.run(SimulatedRandomness(35))
    assert result.refuted, str(result)
    assert result.delta_lower_bound > 10 * DELTA
