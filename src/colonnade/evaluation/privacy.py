"""What a run's costs mean for one person: bounds by audience, and what an attacker may believe afterwards.

Everything here is computed from costs, which are public. Nothing looks at data, so nothing here can spend budget.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import get_args

from colonnade.errors import BadPrivacyParameter
from colonnade.privacy.accounting import Guarantee, advantage, guarantee
from colonnade.privacy.cost import Cost, Relation, Unit

LEAST_EVENT = 1e-3
"""Beliefs are bounded for conclusions that are drawn at least this often; rarer ones fall under delta."""


def belief(prior: float, *, epsilon: float, delta: float = 0.0, event: float = LEAST_EVENT) -> float:
    """The most that an attacker may believe afterwards who held something for true with probability `prior` before.

    For a set S of outputs with probability q >= `event` under one neighbour, (epsilon, delta)-DP gives at most
    e^epsilon q + delta under the other. So the odds grow by at most e^epsilon + delta / event.

        belief(0.5, epsilon=1.0)  # 0.731
    """
    if not 0 <= prior <= 1 or epsilon < 0 or not 0 <= delta < 1 or not 0 < event <= 1:
        raise BadPrivacyParameter("belief needs prior, delta and event as probabilities and epsilon of at least 0.")
    if prior in (0.0, 1.0):
        return prior
    if epsilon > 700:
        return 1.0
    odds = prior / (1 - prior) * (math.exp(epsilon) + delta / event)
    return odds / (1 + odds)


def right_guesses(costs: Iterable[Cost], *, unit: Unit = "record", relation: Relation = "zero-out") -> float:
    """The largest share of right guesses between two neighbours that were equally likely before; 0.5 is a coin."""
    return (1 + advantage(costs, unit=unit, relation=relation)) / 2


PRESENCE = frozenset({"presence", "presence-to-coordinator", "alignment"})
"""Releases that show who holds which pseudonymous record, and no value of a column."""


def presence_fixed(costs: Iterable[Cost]) -> list[Cost] | None:
    """The costs with who is present held fixed: what is claimed about values beside a mask that was shown.

    None if nothing like that was shown, or if something else has no bound.
    """
    every = list(costs)
    names = {str(leaf["name"]) for cost in every for leaf in cost.leaves() if leaf.mechanism == "unbounded"}
    if not names or not names <= PRESENCE:
        return None
    return [kept for cost in every if (kept := _bounded(cost)) is not None]


def _bounded(cost: Cost) -> Cost | None:
    if cost.mechanism == "unbounded":
        return None
    if cost.mechanism != "composed":
        return cost
    return replace(cost, parts=tuple(kept for part in cost.parts if (kept := _bounded(part)) is not None))


@dataclass(frozen=True, kw_only=True)
class AudienceCost:
    """What one audience may learn about one unit, under each relation."""

    audience: str
    unit: Unit
    bounds: Mapping[Relation, Guarantee]


def costs_by_audience(costs: Sequence[Cost], *, delta: float) -> list[AudienceCost]:
    """The bound of what each audience sees, for each unit that a cost speaks of; a joint release counts once.

    Audiences may combine what they saw; the person's total covers that and is not in this list.
    """
    relations: tuple[Relation, ...] = get_args(Relation)
    found = []
    for audience, unit in _audiences(costs):
        seen = [kept for cost in costs for kept in _seen_by(cost, audience, unit)]
        bounds = {one: guarantee(seen, delta=delta, unit=unit, relation=one) for one in relations}
        found.append(AudienceCost(audience=audience, unit=unit, bounds=bounds))
    return found


def _audiences(costs: Sequence[Cost]) -> list[tuple[str, Unit]]:
    leaves = (leaf for cost in costs for leaf in cost.leaves() if leaf.mechanism != "free")
    return list(dict.fromkeys((leaf.audience, leaf.unit) for leaf in leaves))


def _seen_by(cost: Cost, audience: str, unit: Unit) -> list[Cost]:
    """The parts for one audience. A joint composed cost stays whole: its id stands for all of its parts."""
    leaves = cost.leaves()
    if all((leaf.audience, leaf.unit) == (audience, unit) or leaf.mechanism == "free" for leaf in leaves):
        return [cost] if leaves else []
    if cost.mechanism != "composed":
        return []
    return [kept.times(cost.count) for part in cost.parts for kept in _seen_by(part, audience, unit)]
