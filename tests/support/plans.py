"""Plans of stages that no method of the catalogue has, for tests of these stages alone.

A party answers only what it plans itself from a method and its options. Here the parties are embedded, so the plan that
they make is the very object that the test has made.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from colonnade.federation import policy, wire
from colonnade.federation.catalogue import CATALOGUE
from colonnade.federation.plan import Plan
from colonnade.federation.stage import Stage


def own_methods() -> set[str]:
    """Colonnade's own and its papers', without what a test has plugged in."""
    return {name for name in CATALOGUE.names if CATALOGUE.entry(name).package in ("", *CATALOGUE.optional)}


_plans: dict[str, Plan] = {}
_own_plan = policy._own_plan


def plan_of_stages(method: str, stages: Sequence[Stage], *, delta: float = 1e-6) -> Plan:
    """A plan of these stages, as single steps; the class of the method that is named loads them. Its options, on which
    a simulation's noise depends, are the same for the same stages."""
    CATALOGUE.permit(method, CATALOGUE.optional).load()
    key = wire.digest(wire.encode([stage.to_dict() for stage in stages]))
    _plans[key] = Plan(method=policy.ASK, options={"of a test": key}, stages=tuple(stages), delta=delta)
    policy._own_plan = _own  # type: ignore[assignment]
    return _plans[key]


def _own(method: str, options: str, pinned: Any) -> Plan:
    key = json.loads(options).get("of a test")
    return _own_plan(method, options, pinned) if key is None else _plans[key]
