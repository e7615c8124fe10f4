"""Tries to refute the claim of `models/glm/private.claim.md`, and shows that it would notice a broken mechanism.

The attack is `models/glm/attacks.py`: one record at the corner of its domain, in the units and at the coefficients that
show most of it. (That the protocol on shares computes exactly this is `tests/oracle/test_private_scores.py`.)
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from colonnade.audit.attack import DELTA, audit_method
from colonnade.audit.claims import claimed_curve
from colonnade.audit.planted import NOTHING, Planted
from colonnade.models.glm.attacks import (
    EPSILON,
    corner_matrix,
    corner_score,
    fit_audit,
    logistic_for_audit,
    poisson_for_audit,
    scores_audit,
    scores_for_audit,
)
from colonnade.models.glm.private import PrivateScores
from colonnade.privacy.accounting import guarantee
from colonnade.privacy.randomness import SimulatedRandomness

RUNS = 60_000


def refuted(planted: Planted, seed: int) -> bool:
    made = scores_for_audit()
    audit = scores_audit(made, claimed_curve(made.releases(0), name="scores"), runs=RUNS, planted=planted)
    assert audit.stated_power is not None
    assert audit.stated_power.probability > 0.99
    return audit.run(SimulatedRandomness(seed)).refuted


def test_the_corner_record_reaches_the_sensitivity() -> None:
    """So the audit looks at the worst record: what is missing is what rounding might add, 1.7 %, and steps of rows."""
    layout = scores_for_audit().layout
    assert 0.97 * layout.delta_2 < np.linalg.norm(corner_score(layout).astype(float)) <= layout.delta_2


def test_the_claim_is_not_refuted_and_broken_noise_is() -> None:
    """A false alarm has probability at most 1e-6. One member's noise missing, or all of it divided by 1.4."""
    made = scores_for_audit()
    assert 0.99 * EPSILON < guarantee(made.releases(0), delta=DELTA, relation="zero-out").epsilon <= EPSILON
    assert not refuted(NOTHING, 31)
    assert refuted(Planted(factor=1.4), 32)
    assert refuted(Planted(silent=1), 33)


def test_rounds_accounted_as_one_are_refuted() -> None:
    """A planted fault of the account: noise for one round of three."""
    made = scores_for_audit()
    single = PrivateScores.__new__(PrivateScores)
    single.__dict__.update(made.__dict__)
    single.layout = replace(made.layout, mu=made.layout.mu // made.layout.rounds)
    audit = scores_audit(single, claimed_curve(made.releases(0), name="scores"), runs=RUNS)
    assert audit.run(SimulatedRandomness(34)).refuted


def test_the_information_is_audited_too() -> None:
    """With scores and units, as `Regress(family="binomial")` releases them: the corner record is near the sensitivity,
    the claim stands, and noise without one member falls."""
    made = logistic_for_audit()
    layout = made.information.layout
    assert 0.9 * layout.delta_2 < np.linalg.norm(corner_matrix(layout).astype(float)) <= layout.delta_2
    claim = claimed_curve(made.releases(0), name="logistic")
    assert not fit_audit(made, claim, runs=RUNS).run(SimulatedRandomness(36)).refuted
    broken = fit_audit(made, claim, runs=RUNS, planted=Planted(factor=1.4))
    assert broken.stated_power is not None
    assert broken.stated_power.probability > 0.99
    assert broken.run(SimulatedRandomness(37)).refuted
    assert fit_audit(made, claim, runs=RUNS, planted=Planted(silent=1)).run(SimulatedRandomness(38)).refuted


def test_counts_are_audited_too() -> None:
    """As `Regress(family="poisson")` releases them: the corner record is near each sensitivity, the claim stands, and
    noise divided by 1.4, noise without one member, and a count that was not cut (twice the cap) fall."""
    made = poisson_for_audit()
    assert made.variation is not None
    for layout in (made.first.layout, made.last.layout):
        assert 0.93 * layout.delta_2 < np.linalg.norm(corner_score(layout).astype(float)) <= layout.delta_2
    for matrix in (made.information.layout, made.variation.layout):
        assert 0.8 * matrix.delta_2 < np.linalg.norm(corner_matrix(matrix).astype(float)) <= matrix.delta_2
    claim = claimed_curve(made.releases(0), name="poisson")
    assert not fit_audit(made, claim, runs=RUNS).run(SimulatedRandomness(39)).refuted
    broken = fit_audit(made, claim, runs=RUNS, planted=Planted(factor=1.4))
    assert broken.stated_power is not None
    assert broken.stated_power.probability > 0.99
    assert broken.run(SimulatedRandomness(40)).refuted
    assert fit_audit(made, claim, runs=RUNS, planted=Planted(silent=1)).run(SimulatedRandomness(41)).refuted
    assert fit_audit(made, claim, runs=RUNS, event=3.0).run(SimulatedRandomness(42)).refuted


def test_the_methods_own_attacks_are_these() -> None:
    """As `colonnade audit classify` runs them; moments have their own."""
    (finding,) = audit_method("classify", seed=35)
    assert finding.verdict == "not refuted"
    assert finding.power is not None
    assert finding.power > 0.99
