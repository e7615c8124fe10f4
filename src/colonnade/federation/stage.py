"""A stage of a job: what is asked of whom, how often, seen by whom, disclosing what, at what cost.

A method's procedure makes its stages once. The plan collects them, parties approve and reserve them, and the job asks
**the same objects**, so what runs is what was confirmed.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from colonnade.errors import BeyondReservation, ColonnadeError, RunError, UnsafeRequest
from colonnade.federation import wire
from colonnade.federation.facts import PublicFacts
from colonnade.federation.roster import Roster
from colonnade.federation.step import Public, Step
from colonnade.privacy.cost import Cost, compose

JOB = "(this job)"
"""Stands for the job's id in the joint release ids of a plan, which is made before the job exists."""

SEALED = "share holders (sealed; any t of them learn nothing)"
"""The audience of secret shares, as plans have it."""

Requests = Mapping[str, Sequence[Mapping[str, Any]]]
"""{party: [arguments of each request]}"""


def audience_words(audience: str) -> str:
    """For a reader who does not know what t is."""
    return audience.replace("any t of them learn nothing", "none learns anything alone")


# --- arguments that only the running job knows --------------------------------------------------------------


@dataclass(frozen=True)
class Later:
    """What bounds an argument that is known only when the job runs: the rule in words, for the plan, and `accepts`, by
    which every party checks what it is asked: `accepts(value, planned)`, where `planned` is the plan's example.

    If it `counts`, `planned` is the number of the request within its stage, and the job states that number itself.
    """

    rule: str
    accepts: Callable[[Any, Any], bool] = field(compare=False, repr=False)
    counts: bool = field(default=False, compare=False, repr=False)

    def allows(self, value: Any, planned: Any) -> bool:
        """Whether the rule accepts a stranger's value, whatever its type."""
        try:
            return bool(self.accepts(value, planned))
        except (ColonnadeError, TypeError, ValueError, LookupError, AttributeError, ArithmeticError):
            return False


def fields_of(rule: str, **accepts: Callable[[Any], bool]) -> Later:
    """A layout that differs from the planned one in these fields at most, each of which is accepted."""

    def differs_there(value: Any, planned: Any) -> bool:
        if not isinstance(value, dict) or set(value) != set(planned):
            return False
        same = _digest({**value, **dict.fromkeys(accepts)}) == _digest({**planned, **dict.fromkeys(accepts)})
        return same and all(accepted(value[name]) for name, accepted in accepts.items())

    return Later(rule, differs_there)


def counted(rule: str) -> Later:
    """The number of the request within its stage, from 0: so that what is bound to it (a pad, a mask) serves once."""
    return Later(rule, lambda value, number: type(value) is int and value == number, counts=True)


def one_of(rule: str, values: Collection[Any]) -> Later:
    allowed = {_digest(value) for value in values}
    return Later(rule, lambda value, _: _digest(value) in allowed)


def integer(rule: str, least: int, most: int) -> Later:
    return Later(rule, lambda value, _: type(value) is int and least <= value <= most)


def number(rule: str, least: float = -math.inf, most: float = math.inf) -> Later:
    """A finite number within bounds."""
    return Later(rule, lambda value, _: is_number(value, least, most))


def numbers(rule: str, most: float) -> Later:
    """A list as long as the plan's example, of finite numbers of size at most `most`."""
    return Later(
        rule,
        lambda value, planned: (
            isinstance(value, list) and len(value) == len(planned) and all(is_number(x, -most, most) for x in value)
        ),
    )


def is_number(value: Any, least: float = -math.inf, most: float = math.inf) -> bool:
    """Whether a value is a finite number within bounds (True and False are none)."""
    return type(value) in (int, float) and least <= value <= most and math.isfinite(value)


def flag(rule: str) -> Later:
    return Later(rule, lambda value, _: isinstance(value, bool))


def checked_by_step(rule: str) -> Later:
    """For what depends on the party's own records of the job: the step itself refuses what the rule forbids."""
    return Later(rule, lambda value, _: True)


def _never(value: Any, planned: Any) -> bool:
    return False


def _digest(value: Any) -> str:
    return wire.digest(wire.encode(value))


# --- stages ---------------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True, eq=False)
class Stage:
    """At most `counts[party]` requests of one step at each party, which together cost `costs[party]`.

    `discloses` is one sentence; `audience` says who sees the release; `recipients` are the members to which the step
    may send mail; `reply_bytes` is the forecast size of one reply with its peer messages (a function of public facts).
    `requests` are the arguments of each request, and `later` names those that can be known only when the job runs, each
    with the rule that bounds it: their values in `requests` are examples. A stage that was read from a stored plan has
    no requests and can only be shown; a party compares it with the one that it makes itself (`policy.own_plan`), and
    answers the requests of that one, in their order.
    """

    name: str
    step: str
    counts: Mapping[str, int]
    costs: Mapping[str, Cost]
    audience: str
    discloses: str
    reply_bytes: int = 0
    recipients: tuple[str, ...] = ()
    requests: Requests = field(default_factory=dict, repr=False)
    later: Mapping[str, Later] = field(default_factory=dict)
    _digests: dict[int, str] = field(default_factory=dict, repr=False)
    """Of the planned arguments of a request, without the later ones, by the identity of these arguments."""

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

    @property
    def border_bytes(self) -> int:
        """The forecast of what one request takes across the coordinator's border: mail comes in and goes out again."""
        return self.reply_bytes * (2 if self.recipients else 1)

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
        counted = {name: number for name, rule in self.later.items() if rule.counts}
        return {**requests[number], **counted, **later}

    def bind(self, party: str, number: int, arguments: Mapping[str, Any]) -> None:
        """Refuse a request that is not the one with this number in the plan, or that breaks the rule of an argument."""
        requests = self.requests.get(party, ())
        if number >= len(requests):
            raise BeyondReservation(
                f"stage {self.name!r} has {len(requests)} requests here, all of which were made; the plan has no more."
            )
        planned = requests[number]
        if id(planned) not in self._digests:
            self._digests[id(planned)] = _digest(self._fixed(planned))
        if _digest(self._fixed(arguments)) != self._digests[id(planned)]:
            raise UnsafeRequest(
                f"request {number + 1} of stage {self.name!r} asks for something else than the approved plan says."
            )
        for name, later in self.later.items():
            expected = number if later.counts else planned.get(name)
            # Left out, an argument would be the step's default, which no rule has seen.
            absent = name in planned and name not in arguments
            if absent or (name in arguments and not later.allows(arguments[name], expected)):
                raise UnsafeRequest(f"{name} of stage {self.name!r} is not what the plan allows: {later.rule}.")

    def _fixed(self, arguments: Mapping[str, Any]) -> dict[str, Any]:
        return {name: value for name, value in arguments.items() if name not in self.later}

    def to_dict(self) -> dict[str, Any]:
        return {
            "name": self.name,
            "step": self.step,
            "counts": dict(self.counts),
            "costs": {party: cost.to_dict() for party, cost in self.costs.items()},
            "audience": self.audience,
            "discloses": self.discloses,
            "reply_bytes": self.reply_bytes,
            "recipients": list(self.recipients),
            "later": {name: later.rule for name, later in self.later.items()},
        }

    @classmethod
    def from_dict(cls, plain: Mapping[str, Any]) -> Stage:
        costs = {party: Cost.from_dict(cost) for party, cost in plain["costs"].items()}
        later = {name: Later(str(rule), _never) for name, rule in plain.get("later", {}).items()}
        recipients = tuple(plain.get("recipients", ()))
        return cls(**{**plain, "costs": costs, "later": later, "recipients": recipients})


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
    recipients: Iterable[str] | None = None,
    later: Mapping[str, Later] | None = None,
) -> Stage:
    """A stage with its costs, from the arguments of all its requests: {party: [arguments of each request]}.

    Mail goes to `recipients`: to the committee if the audience is `SEALED`, and to no member otherwise, unless they are
    named. A party without requests takes no part. Equal requests repeat a release: its price counts as often, also if
    it is a joint one. (Different requests with equal joint costs are parts of one release, which counts once.)
    """
    asked = {party: listed for party, listed in requests.items() if listed}
    costs = {}
    # Thousands of rounds, and all parties, ask with one and the same object: contents are compared once for each.
    objects = {id(arguments): arguments for listed in asked.values() for arguments in listed}
    contents = {place: _digest(dict(arguments)) for place, arguments in objects.items()}
    checked = {contents[place]: step.check(arguments) for place, arguments in objects.items()}
    for party, listed in asked.items():
        public = Public(job=JOB, party=party, facts=facts, roster=roster)
        seen = Counter(map(id, listed))
        repeats: Counter[str] = Counter()
        for place, count in seen.items():
            repeats[contents[place]] += count
        costs[party] = compose(step.price(public, checked[content]).times(count) for content, count in repeats.items())
    return Stage(
        name=name,
        step=step.name,
        counts={party: len(listed) for party, listed in asked.items()},
        costs=costs,
        audience=audience,
        discloses=discloses,
        reply_bytes=reply_bytes,
        recipients=tuple(recipients) if recipients is not None else roster.committee if audience == SEALED else (),
        requests=asked,
        later=dict(later or {}),
    )


def audience_of(costs: Iterable[Cost]) -> str:
    """Who sees a stage's releases, as its costs name them; what costs nothing goes to the coordinator too."""
    named = dict.fromkeys(leaf.audience for cost in costs for leaf in cost.leaves() if leaf.mechanism != "free")
    each = dict.fromkeys(word for audience in named for word in audience.split(", "))
    return ", ".join(each) or "coordinator"
