"""All the costs and messages of a job, computed before any data is touched.

A plan is a list of phases. Each phase names a step, who runs it, how often at most, and the total cost of all
of its requests at each party, as one composed event. Approval reserves exactly this.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, get_args

from colonnade.durable import canonical
from colonnade.errors import RunError
from colonnade.federation.facts import PublicFacts
from colonnade.federation.roster import Roster
from colonnade.federation.step import Public, Step
from colonnade.privacy.accounting import Guarantee, guarantee
from colonnade.privacy.cost import Cost, Relation, Unit, compose

JOB = "(this job)"
"""Stands for the job's id in the joint release ids of a plan, which is made before the job exists."""


@dataclass(frozen=True, kw_only=True)
class Phase:
    """At most `counts[party]` requests of one step at each party, which together cost `costs[party]`.

    `discloses` is one sentence; `audience` says who sees the release; `reply_bytes` is the forecast size of one
    reply with its peer messages (a function of public facts).
    """

    name: str
    step: str
    counts: Mapping[str, int]
    costs: Mapping[str, Cost]
    audience: str
    discloses: str
    reply_bytes: int = 0

    def __post_init__(self) -> None:
        if set(self.counts) != set(self.costs):
            raise RunError(f"phase {self.name!r} must state a count and a cost for the same parties.")
        if any(isinstance(one, bool) or not isinstance(one, int) or one < 0 for one in self.counts.values()):
            raise RunError(f"phase {self.name!r} must count its requests in whole numbers.")

    @property
    def parties(self) -> tuple[str, ...]:
        return tuple(self.costs)

    @property
    def rounds(self) -> int:
        return max(self.counts.values(), default=0)

    def to_dict(self) -> dict[str, Any]:
        return {
            "name": self.name,
            "step": self.step,
            "counts": dict(self.counts),
            "costs": {party: cost.to_dict() for party, cost in self.costs.items()},
            "audience": self.audience,
            "discloses": self.discloses,
            "reply_bytes": self.reply_bytes,
        }

    @classmethod
    def from_dict(cls, plain: Mapping[str, Any]) -> Phase:
        costs = {party: Cost.from_dict(cost) for party, cost in plain["costs"].items()}
        return cls(**{**plain, "costs": costs})


def phase(
    name: str,
    step: Step,
    requests: Mapping[str, Sequence[Mapping[str, Any]]],
    *,
    facts: PublicFacts,
    roster: Roster,
    discloses: str,
    audience: str = "coordinator",
    reply_bytes: int = 0,
) -> Phase:
    """A phase whose requests are known in advance: {party: [arguments of each request]}."""
    costs = {
        party: compose(
            step.price(Public(job=JOB, party=party, facts=facts, roster=roster), step.check(arguments))
            for arguments in each
        )
        for party, each in requests.items()
        if each
    }
    return Phase(
        name=name,
        step=step.name,
        counts={party: len(each) for party, each in requests.items() if each},
        costs=costs,
        audience=audience,
        discloses=discloses,
        reply_bytes=reply_bytes,
    )


def audience_of(costs: Iterable[Cost]) -> str:
    """Who sees a phase's releases, as its costs name them; what costs nothing goes to the coordinator too."""
    named = dict.fromkeys(leaf.audience for cost in costs for leaf in cost.leaves() if leaf.mechanism != "free")
    each = dict.fromkeys(word for audience in named for word in audience.split(", "))
    return ", ".join(each) or "coordinator"


@dataclass(frozen=True, kw_only=True)
class Plan:
    """What a method is going to do. `notes` are forecasts and warnings in plain words."""

    method: str
    options: Mapping[str, Any]
    phases: tuple[Phase, ...]
    notes: tuple[str, ...] = ()
    delta: float = 1e-6

    def __post_init__(self) -> None:
        names = [one.name for one in self.phases]
        if len(set(names)) != len(names):
            raise RunError("two phases of a plan have the same name; give each its own.")

    def phase(self, name: str) -> Phase:
        for one in self.phases:
            if one.name == name:
                return one
        raise RunError(f"the plan of {self.method!r} has no phase {name!r}.")

    def costs(self, party: str | None = None) -> list[Cost]:
        """Every cost at one party, or at all of them."""
        return [cost for one in self.phases for owner, cost in one.costs.items() if party in (None, owner)]

    def rounds(self) -> int:
        return sum(one.rounds for one in self.phases)

    def total(
        self,
        *,
        party: str | None = None,
        unit: Unit = "record",
        relation: Relation = "zero-out",
        transform: Callable[[Cost], Cost] | None = None,
    ) -> Guarantee:
        """A person's total over all parties' releases (joint ones once), or one party's part of it."""
        costs: Iterable[Cost] = self.costs(party)
        if transform is not None:
            costs = [transform(cost) for cost in costs]
        return guarantee(list(costs), delta=self.delta, unit=unit, relation=relation)

    def to_dict(self) -> dict[str, Any]:
        return {
            "method": self.method,
            "options": dict(self.options),
            "phases": [one.to_dict() for one in self.phases],
            "notes": list(self.notes),
            "delta": self.delta,
        }

    @classmethod
    def from_dict(cls, plain: Mapping[str, Any]) -> Plan:
        return cls(
            method=plain["method"],
            options=plain["options"],
            phases=tuple(Phase.from_dict(one) for one in plain["phases"]),
            notes=tuple(plain["notes"]),
            delta=plain["delta"],
        )

    @property
    def fingerprint(self) -> str:
        return hashlib.sha256(canonical(self.to_dict()).encode()).hexdigest()

    def text(self) -> str:
        """The plan in plain words, for a terminal, a log or an operator who must decide."""
        lines = [f"Plan of {self.method}: {self.rounds()} rounds in {len(self.phases)} phases", ""]
        for one in self.phases:
            lines.append(f"{one.name} (step {one.step}), seen by {one.audience}: {one.discloses}")
            for party, cost in one.costs.items():
                requests = f"{one.counts[party]} request{'s' if one.counts[party] != 1 else ''}"
                lines.append(f"    {party}: {requests}, {guarantee([cost], delta=self.delta)}")
        lines += ["", "A person's total over all parties' releases of this job:"]
        lines += [f"    {self.total(relation=relation)}" for relation in get_args(Relation)]
        if self.notes:
            lines += ["", *self.notes]
        return "\n".join(lines)
