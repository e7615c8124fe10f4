"""Tries to refute the claim of `papers/sqm/logistic.claim.md`, and shows that it would notice a broken mechanism.

The attack is `papers/sqm/attacks.py`: one record at the corner of its domain, in both views. (That the protocol on
shares computes exactly what it runs is `tests/oracle/test_sqm_logistic.py`.)
"""

from __future__ import annotations

from typing import get_args

import numpy as np
import pytest

from colonnade.audit.attack import Setting, audit_method
from colonnade.audit.planted import MEMBERS, NOTHING, Planted
from colonnade.federation.options import View
from colonnade.papers.sqm.attacks import (
    EPSILON,
    GradientRounds,
    corner_gradient,
    gradient_attacks,
    gradient_audit,
    gradient_layout_for,
)
from colonnade.privacy.randomness import SimulatedRandomness

RUNS = 200_000
VIEWS = get_args(View)


def refuted(broken: GradientRounds, view: View, seed: int) -> bool:
    """The audit's verdict; its power against this fault was at least 99 %."""
    audit = gradient_audit(broken, broken, view, runs=RUNS)
    assert audit.stated_power is not None
    assert audit.stated_power.probability > 0.99
    return audit.run(SimulatedRandomness(seed)).refuted


@pytest.mark.parametrize("view", VIEWS)
def test_the_corner_record_reaches_the_sensitivity(view: View) -> None:
    """So the audit looks at the worst record: |gradient| is within 2 % of delta_2 and not above it."""
    layout = gradient_layout_for(view)
    assert 0.98 * layout.delta_2 < np.linalg.norm(corner_gradient(layout)) <= layout.delta_2


@pytest.mark.parametrize("view", VIEWS)
def test_the_claim_is_not_refuted(view: View) -> None:
    """At the threshold that is best against noise / 1.4. A false alarm has probability at most 1e-6."""
    layout = gradient_layout_for(view)
    aimed = GradientRounds.planted(layout, view, Planted(factor=1.4))
    honest = GradientRounds.planted(layout, view, NOTHING)
    result = gradient_audit(honest, aimed, view, runs=RUNS).run(SimulatedRandomness(21))
    assert not result.refuted, str(result)
    assert 0.3 * EPSILON < result.claimed_epsilon <= EPSILON * (1 + 1e-6)


@pytest.mark.parametrize("view", VIEWS)
def test_noise_divided_by_one_point_four_is_refuted(view: View) -> None:
    assert refuted(GradientRounds.planted(gradient_layout_for(view), view, Planted(factor=1.4)), view, 22)


def test_a_members_missing_noise_is_refuted() -> None:
    """Client view, where it halves the noise variance that is left. (In the server view a third is missing; the Renyi
    bound of a sampled batch leaves more room than that, and the audit would have no power.)"""
    assert refuted(GradientRounds.planted(gradient_layout_for("client"), "client", Planted(silent=1)), "client", 23)


def test_amplification_without_sampling_is_refuted() -> None:
    """The server view's noise, and the record in every batch: that is how a party that knows the batches sees it."""
    honest = GradientRounds.planted(gradient_layout_for("server"), "server", NOTHING)
    assert refuted(GradientRounds(honest.layout, honest.mu, MEMBERS, 1.0), "server", 24)


def test_the_methods_own_attacks_are_these() -> None:
    """As `colonnade audit sqm-logistic` runs them: none refutes the claim, and each finds the bug that it takes."""
    findings = list(audit_method("sqm-logistic", seed=25))
    assert [finding.verdict for finding in findings] == ["not refuted", "not refuted"]
    assert all(finding.power is not None and finding.power > 0.99 for finding in findings)
    silent = Planted(silent=1)
    taking = [attack for attack in gradient_attacks() if attack.takes(silent)]
    assert len(taking) == 1
    assert taking[0].run(Setting(planted=silent, effort=1.0, seed=26)).refuted
