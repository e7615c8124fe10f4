"""What a party agrees to without asking its operator."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from colonnade.federation.plan import Plan
from colonnade.privacy.budget import Budget

Decision = Literal["approved", "waiting"]


@dataclass(frozen=True, kw_only=True)
class Policy:
    """`approve = "auto"` accepts any job of the named `methods` (all if None) within the budget; everything else
    waits for the operator. `allow` names the unbounded releases that are acceptable at all, whoever approves."""

    approve: Literal["auto", "ask"] = "ask"
    methods: tuple[str, ...] | None = None
    allow: tuple[str, ...] = ()
    budget: Budget | None = None
    minimum_cohort: int = 1

    def decide(self, plan: Plan, n: int) -> Decision:
        if self.approve != "auto" or n < self.minimum_cohort:
            return "waiting"
        return "approved" if self.methods is None or plan.method in self.methods else "waiting"

    def to_dict(self) -> dict[str, Any]:
        return {
            "approve": self.approve,
            "methods": None if self.methods is None else list(self.methods),
            "allow": list(self.allow),
            "budget": None if self.budget is None else self.budget.to_dict(),
            "minimum_cohort": self.minimum_cohort,
        }

    @classmethod
    def from_dict(cls, plain: Mapping[str, Any]) -> Policy:
        values = dict(plain)
        if values.get("methods") is not None:
            values["methods"] = tuple(values["methods"])
        if values.get("budget") is not None:
            values["budget"] = Budget.from_dict(values["budget"])
        return cls(**{**values, "allow": tuple(values.get("allow", ()))})
