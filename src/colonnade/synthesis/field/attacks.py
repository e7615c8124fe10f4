"""Attacks on the rounds of tables behind a Markov random field."""

from __future__ import annotations

from importlib.util import find_spec

from colonnade.audit.attack import NEIGHBOURS, Attack, Setting
from colonnade.audit.claims import claimed_curve, small_consortium
from colonnade.audit.mechanism import AuditResult
from colonnade.statistics.attacks import tables_audit
from colonnade.synthesis.field.fit import NEEDS
from colonnade.synthesis.field.procedure import FieldSynthesis
from colonnade.synthesis.method import Synthesize

DELTA = 1e-4


def field_attacks() -> tuple[Attack, ...]:
    """None where inference is not installed: no such job can be planned there."""
    if not all(find_spec(package) for package in NEEDS):
        return ()
    return (Attack(NEIGHBOURS, "three rounds of tables, composed", _three_rounds, joint=True),)


def _three_rounds(setting: Setting) -> AuditResult:
    """A record that is in one cell of every table that the rounds open, or nothing."""
    method = Synthesize(model="field", epsilon=2.0, delta=DELTA, view="server", tables=8, cuts="declared")
    with small_consortium() as federation:
        rounds = FieldSynthesis(method, federation.facts, federation.roster).rounds
        claim = claimed_curve(federation.plan(method).costs(), name="three rounds of tables")
    audit = tables_audit(
        claim, rounds.mus, units=rounds.units, delta=DELTA, runs=setting.runs(80_000), planted=setting.planted
    )
    return audit.run(setting.randomness)
