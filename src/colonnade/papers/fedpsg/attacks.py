"""The attack on a GAN's private training: one epsilon for its weights and those of its regression."""

from __future__ import annotations

from colonnade.audit.attack import DELTA, NEIGHBOURS, Attack, Setting
from colonnade.audit.mechanism import AuditResult
from colonnade.completion.attacks import SMALL, WEIGHTS, audit_weights
from colonnade.papers.fedpsg.method import FedPSG


def fedpsg_attacks() -> tuple[Attack, ...]:
    return (Attack(NEIGHBOURS, WEIGHTS, _gan),)


def _gan(setting: Setting) -> AuditResult:
    method = FedPSG(imputer="gain", n_correlated=0, epsilon=4.0, delta=DELTA, parties=("bank",), **SMALL)
    return audit_weights(method, setting)
