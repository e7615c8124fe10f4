"""A stage of a job: what is asked of whom, how often, seen by whom, disclosing what, at what cost.

A method's procedure makes its stages once. The plan collects them, parties approve and reserve them, and the job asks
**the same objects**, so what runs is what was confirmed.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from colonnade.errors import RunError
from colonnade.federation import wire
from colonnade.federation.facts import PublicFacts
from colonnade.federation.roster import Roster
from colonnade.federation.step import Public, Step
from colonnade.privacy.cost import Cost, compose

JOB = "(this job)"
"""Stands for the job's id in the joint release ids of a plan, which is made before the job exists."""

SEALED = "share holders (sealed; any t of them learn nothing)"
"""The audience of secret shares."""

Requests = Mapping[str, Sequence[Mapping[str, Any]]]
"""{party: [arguments of each request]}"""


@dataclass(frozen=True, kw_only=True, eq=False)
class Stage:
    """At most `counts[party]` requests of one step at each party, which together cost `costs[party]`.

    `discloses` is one sentence; `audience` says who sees the release; `reply_bytes` is the forecast size of one
    reply with its peer messages (a function of public facts). `requests` are the arguments of each request, and
    `later` names those that can be known only when the job runs, each with the rule that bounds it: their values in
    `requests` are examples. A stage that was read from a stored plan has no requests and can only be shown.
    """

    name: str
    step: str
    counts: Mapping[str, int]
    costs: Mapping[str, Cost]
    audience: str
    discloses: str
    reply_bytes: int = 0
    requests: Requests = field(default_factory=dict, repr=False)
    later: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if set(self.counts) != set(self.costs):
            raise RunError(f"stage {self.name!r} must state a count and a cost for the same parties.")
        if any(isinstance(count, bool) or not isinstance(count, int) or count < 0 for count in self.counts.values()):
            raise RunError(f"stage {self.name!r} must count its requests in integers.")

    @property
    def parties(self) -> tuple[str, ...]:
        return tuple(self.costs)

    @property
    def rounds(self) -> int:
        return max(self.counts.values(), default=0)

    def arguments(self, party: str, number: int, later: Mapping[str, Any]) -> dict[str, Any]:
        """Of the request with this number at a party; refused if the plan does not have it."""
        requests = self.requests.get(party, ())
        if number >= len(requests):
            raise RunError(f"stage {self.name!r} has {len(requests)} requests for {party!r}; there is no further one.")
        undeclared = sorted(set(later) - set(self.later))
        if undeclared:
            raise RunError(
                f"stage {self.name!r} fixes {', '.join(undeclared)} in its plan; only what is named later may differ."
            )
        return {**requests[number], **later}

    def to_dict(self) -> dict[str, Any]:
        return {
            "name": self.name,
            "step": self.step,
            "counts": dict(self.counts),
            "costs": {party: cost.to_dict() for party, cost in self.costs.items()},
            "audience": self.audience,
            "discloses": self.discloses,
            "reply_bytes": self.reply_bytes,
            "later": dict(self.later),
        }

    @classmethod
    def from_dict(cls, plain: Mapping[str, Any]) -> Stage:
        costs = {party: Cost.from_dict(cost) for party, cost in plain["costs"].items()}
        return cls(**{**plain, "costs": costs})


def stage(
    name: str,
    step: Step,
    requests: Requests,
    *,
    facts: PublicFacts,
    roster: Roster,
    discloses: str,
    audience: str = "coordinator",
    reply_bytes: int = 0,
    later: Mapping[str, str] | None = None,
) -> Stage:
    """A stage with its costs, from the arguments of all its requests: {party: [arguments of each request]}.

    A party without requests takes no part. Equal requests repeat a release: its price counts as often, also if it is a
    joint one. (Different requests with equal joint costs are parts of one release, which counts once.)
    """
    asked = {party: each for party, each in requests.items() if each}
    costs = {}
    for party, each in asked.items():
        public = Public(job=JOB, party=party, facts=facts, roster=roster)
        objects = {id(arguments): arguments for arguments in each}
        contents = {place: wire.digest(wire.encode(dict(arguments))) for place, arguments in objects.items()}
        repeats = Counter(contents[id(arguments)] for arguments in each)
        distinct = {contents[place]: arguments for place, arguments in objects.items()}
        costs[party] = compose(
            step.price(public, step.check(arguments)).times(repeats[content]) for content, arguments in distinct.items()
        )
    return Stage(
        name=name,
        step=step.name,
        counts={party: len(each) for party, each in asked.items()},
        costs=costs,
        audience=audience,
        discloses=discloses,
        reply_bytes=reply_bytes,
        requests=asked,
        later=later or {},
    )


def audience_of(costs: Iterable[Cost]) -> str:
    """Who sees a stage's releases, as its costs name them; what costs nothing goes to the coordinator too."""
    named = dict.fromkeys(leaf.audience for cost in costs for leaf in cost.leaves() if leaf.mechanism != "free")
    each = dict.fromkeys(word for audience in named for word in audience.split(", "))
    return ", ".join(each) or "coordinator"
