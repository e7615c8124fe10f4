"""Attacks on the rounds of tables and the second moments behind a Markov random field."""

from __future__ import annotations

from functools import partial

from colonnade.audit.attack import NEIGHBOURS, Attack, Setting
from colonnade.audit.claims import claimed_curve, small_consortium
from colonnade.audit.mechanism import AuditResult
from colonnade.statistics.attacks import tables_audit
from colonnade.synthesis.field.procedure import FieldSynthesis
from colonnade.synthesis.method import Synthesize

DELTA = 1e-4


def field_attacks() -> tuple[Attack, ...]:
    return (
        Attack(NEIGHBOURS, "three rounds of tables, composed", partial(_composed, 0.0), joint=True),
        Attack(NEIGHBOURS, "the rounds and second moments, composed", partial(_composed, 0.5), joint=True),
    )


def _composed(moment_share: float, setting: Setting) -> AuditResult:
    """A record that is in one cell of every table that the rounds open, and at the corner of its domain; or nothing."""
    common = {"model": "field", "epsilon": 2.0, "delta": DELTA, "view": "server", "n_tables": 8, "cuts": "declared"}
    method = Synthesize(**common, moment_share=moment_share)  # type: ignore[arg-type]
    with small_consortium() as federation:
        procedure = FieldSynthesis(method, federation.facts, federation.roster)
        claim = claimed_curve(federation.plan(method).costs(), name="the rounds of a field")
    rounds, moments = procedure.rounds, procedure.moments
    audit = tables_audit(
        claim,
        rounds.mus,
        units=rounds.units,
        moments=None if moments is None else moments.layout,
        delta=DELTA,
        runs=setting.runs(80_000),
        planted=setting.planted,
    )
    return audit.run(setting.randomness)
