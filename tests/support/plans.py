"""Plans of stages that no method of the catalogue has, for tests of these stages alone.

A party answers only what it plans itself from a method and its options. Here the parties are embedded, so the plan that
they make is the very object that the test has made.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from colonnade.federation import policy
from colonnade.federation.catalogue import CATALOGUE
from colonnade.federation.plan import Plan
from colonnade.federation.stage import Stage

_plans: list[Plan] = []
_own_plan = policy._own_plan


def plan_of_stages(method: str, stages: Sequence[Stage], *, delta: float = 1e-6) -> Plan:
    """A plan of these stages, as single steps; the class of the method that is named loads them."""
    CATALOGUE.permit(method, CATALOGUE.optional).load()
    _plans.append(Plan(method=policy.ASK, options={"of a test": len(_plans)}, stages=tuple(stages), delta=delta))
    policy._own_plan = _own  # type: ignore[assignment]
    return _plans[-1]


def _own(method: str, options: str, pinned: Any) -> Plan:
    number = json.loads(options).get("of a test")
    return _own_plan(method, options, pinned) if number is None else _plans[number]
