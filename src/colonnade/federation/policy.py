"""What a party agrees to without asking its operator."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from colonnade.codec import nearest
from colonnade.errors import ColonnadeError, SchemaError, UnsafeRequest
from colonnade.federation.catalogue import CATALOGUE
from colonnade.federation.facts import PublicFacts
from colonnade.federation.plan import Plan
from colonnade.federation.roster import Roster
from colonnade.privacy.budget import Budget

Decision = Literal["approved", "waiting"]
_LISTS = ("methods", "columns", "requesters", "allow")


@dataclass(frozen=True, kw_only=True)
class Policy:
    """`approve = "auto"` accepts a job by itself if its method is one of `methods`, it reads no columns but `columns`
    and the cohort has `minimum_cohort` records (None: any method, any declared column). Every other job waits for the
    operator.

    Three rules bind the operator too: `allow` names the releases without a bound that are acceptable, `requesters`
    the organisations that may ask (None: every coordinator that the authority has certified), and `budget` is never
    exceeded.
    """

    approve: Literal["auto", "ask"] = "ask"
    methods: tuple[str, ...] | None = None
    columns: tuple[str, ...] | None = None
    requesters: tuple[str, ...] | None = None
    allow: tuple[str, ...] = ()
    budget: Budget | None = None
    minimum_cohort: int = 1

    def __post_init__(self) -> None:
        if self.approve not in ("auto", "ask"):
            raise SchemaError(f'approve in [policy] is "auto" or "ask", not {self.approve!r}.')
        if isinstance(self.minimum_cohort, bool) or not isinstance(self.minimum_cohort, int) or self.minimum_cohort < 1:
            raise SchemaError(f"minimum_cohort in [policy] is a number from 1, not {self.minimum_cohort!r}.")
        unknown = [name for name in self.methods or () if name not in CATALOGUE.names]
        if unknown:
            raise SchemaError(
                f"methods in [policy] names {unknown[0]!r}, which this installation does not have; it has"
                f" {', '.join(CATALOGUE.names)}.{nearest(unknown[0], CATALOGUE.names)}"
            )

    @classmethod
    def stated(cls, plain: Mapping[str, Any]) -> Policy:
        """From the fields of a TOML file or of party.json."""
        values = dict(plain)
        for name in _LISTS:
            listed = values.get(name)
            if listed is None:
                values.pop(name, None)
            elif isinstance(listed, str) or not all(isinstance(one, str) for one in listed):
                raise SchemaError(f'{name} in [policy] is a list of names, such as {name} = ["a", "b"].')
            else:
                values[name] = tuple(listed)
        return cls(**values)

    def decide(self, plan: Plan, facts: PublicFacts, roster: Roster, *, party: str) -> Decision:
        """Approved by the policy itself, or waiting for the operator."""
        if self.approve != "auto" or facts.n < self.minimum_cohort:
            return "waiting"
        if self.methods is not None:
            if plan.method not in self.methods:
                return "waiting"
            check_genuine(plan, facts, roster, party=party)
        mine = tuple(facts.columns.get(party, ()))
        if self.columns is not None and not set(columns_of(plan, mine)) <= set(self.columns):
            return "waiting"
        return "approved"

    def to_dict(self) -> dict[str, Any]:
        lists = {name: None if getattr(self, name) is None else list(getattr(self, name)) for name in _LISTS}
        return {
            **lists,
            "approve": self.approve,
            "budget": None if self.budget is None else self.budget.to_dict(),
            "minimum_cohort": self.minimum_cohort,
        }

    @classmethod
    def from_dict(cls, plain: Mapping[str, Any]) -> Policy:
        budget = plain.get("budget")
        return cls.stated({**plain, "budget": None if budget is None else Budget.from_dict(budget)})


def columns_of(plan: Plan, mine: Sequence[str]) -> tuple[str, ...]:
    """Which of a party's columns a job reads, by the options that its method declares to name columns; all of them if
    it leaves the choice open, or if this installation cannot read the options.

    Only a forecast: a job that the policy approved and that reads another column after all is refused at the border
    (`Party.chunks`).
    """
    try:
        named = CATALOGUE.make(plan.method, plan.options).reads()  # TRANSITION: old methods have none
    except (ColonnadeError, AttributeError):
        named = None
    return tuple(mine) if named is None else tuple(name for name in mine if name in named)


def own_plan(plan: Plan, facts: PublicFacts, roster: Roster) -> Plan:
    """The plan that this installation itself makes for the method and the options that a plan states."""
    try:
        return CATALOGUE.make(plan.method, plan.options).plan(facts, roster)
    except ColonnadeError:
        raise
    except Exception as error:  # options are a stranger's: whatever they break, the plan is not genuine
        raise UnsafeRequest(f"the options of the proposed {plan.method!r} cannot be read ({error}).") from error


def check_genuine(plan: Plan, facts: PublicFacts, roster: Roster, *, party: str) -> None:
    """Refuse a plan that carries a method's name and does something else here. Its costs are the budget's affair."""
    known = {(stage.name, stage.step): stage.counts.get(party, 0) for stage in own_plan(plan, facts, roster).stages}
    for stage in plan.stages:
        if stage.counts.get(party, 0) > known.get((stage.name, stage.step), 0):
            raise UnsafeRequest(
                f"the proposed plan is called {plan.method!r}, but its stage {stage.name!r} asks more of step"
                f" {stage.step} than that method does; the coordinator's installation differs, or its request was"
                " forged."
            )
