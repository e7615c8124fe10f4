"""All the costs and messages of a job, computed before any data is touched.

A plan is a list of stages, and the procedure that asks them: the plan that is confirmed is the object that runs.
Approval reserves, for each stage, at most so many requests and their total cost at each party as one composed event.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any, get_args

from colonnade.durable import canonical
from colonnade.errors import RunError
from colonnade.federation.stage import Stage
from colonnade.privacy.accounting import Guarantee, guarantee
from colonnade.privacy.cost import Cost, Relation, Unit
from colonnade.privacy.person import PersonTotal, person_figures
from colonnade.view.blocks import Items, Table, Text, View
from colonnade.view.render import Viewed

if TYPE_CHECKING:
    from colonnade.federation.job import Job
    from colonnade.federation.method import Result

HOPELESS = "This will not work"
"""What a note begins with that says so, and what would work."""


@dataclass(frozen=True, kw_only=True, repr=False)
class Plan(Viewed):
    """What a method is going to do. `notes` are forecasts and warnings in plain words, `missing_data` says what it
    assumes about records that lack a block."""

    method: str
    options: Mapping[str, Any]
    stages: tuple[Stage, ...]
    notes: tuple[str, ...] = ()
    missing_data: str = ""
    delta: float = 1e-6
    run: Callable[[Job], Result] | None = field(default=None, compare=False, repr=False)
    """The coordinator's procedure, which asks these stages; a plan that was read from a file has none."""

    def __post_init__(self) -> None:
        names = [stage.name for stage in self.stages]
        if len(set(names)) != len(names):
            raise RunError("two stages of a plan have the same name; give each its own.")

    def stage(self, name: str) -> Stage:
        """The stage of this name."""
        for stage in self.stages:
            if stage.name == name:
                return stage
        raise RunError(f"the plan of {self.method!r} has no stage {name!r}.")

    def costs(self, party: str | None = None) -> list[Cost]:
        """Every cost at one party, or at all of them.

        Parameters
        ----------
        party : its name; None for all parties.

        Returns
        -------
        The costs, in the order of the stages.
        """
        return [cost for stage in self.stages for owner, cost in stage.costs.items() if party in (None, owner)]

    def unbounded(self) -> tuple[str, ...]:
        """The releases without a bound, a sentence each."""
        leaves = (leaf for cost in self.costs() for leaf in cost.leaves() if leaf.unbounded)
        return tuple(dict.fromkeys(f"{leaf['name']}: {leaf['discloses']}; seen by: {leaf.audience}" for leaf in leaves))

    @property
    def hopeless(self) -> str:
        """Why it will not work, and what would; empty if nothing is known to be in its way."""
        return " ".join(note for note in self.notes if note.startswith(HOPELESS))

    def rounds(self) -> int:
        """How many times the parties are asked, one after the other."""
        return sum(stage.rounds for stage in self.stages)

    def bytes(self) -> int:
        """The forecast of what crosses the coordinator's border."""
        return sum(sum(stage.counts.values()) * stage.border_bytes for stage in self.stages)

    def total(
        self,
        *,
        party: str | None = None,
        unit: Unit = "record",
        relation: Relation = "zero-out",
        transform: Callable[[Cost], Cost] | None = None,
    ) -> Guarantee:
        """A person's total over all parties' releases (joint ones once), or one party's part of it.

        Parameters
        ----------
        party : its part alone; None for the person's total.
        unit : 'record', 'block' or 'comparison'.
        relation : 'zero-out' or 'replace'.
        transform : changes each cost first; None leaves them.

        Returns
        -------
        A `Guarantee` with `epsilon` and `delta`, which prints as people read it.
        """
        costs: Iterable[Cost] = self.costs(party)
        if transform is not None:
            costs = [transform(cost) for cost in costs]
        return guarantee(list(costs), delta=self.delta, unit=unit, relation=relation)

    def totals(self) -> list[str]:
        """A person's total under each relation; said once where it has no bound under either."""
        return list(dict.fromkeys(str(self.total(relation=relation)) for relation in get_args(Relation)))

    def to_dict(self) -> dict[str, Any]:
        """Plain data, for plan.json."""
        return {
            "method": self.method,
            "options": dict(self.options),
            "stages": [stage.to_dict() for stage in self.stages],
            "notes": list(self.notes),
            "missing_data": self.missing_data,
            "delta": self.delta,
        }

    @classmethod
    def from_dict(cls, plain: Mapping[str, Any]) -> Plan:
        """A plan to read; it cannot be run.

        Parameters
        ----------
        plain : as `to_dict` returns it.

        Returns
        -------
        The plan.
        """
        return cls(
            method=plain["method"],
            options=plain["options"],
            stages=tuple(Stage.from_dict(stage) for stage in plain["stages"]),
            notes=tuple(plain["notes"]),
            missing_data=plain["missing_data"],
            delta=plain["delta"],
        )

    @cached_property
    def fingerprint(self) -> str:
        """SHA-256 of the plan: equal if and only if all that it asks is."""
        return hashlib.sha256(canonical(self.to_dict()).encode()).hexdigest()

    def __repr__(self) -> str:
        return f"<Plan of {self.method}: {self.rounds()} rounds in {len(self.stages)} stages, {self.total()}>"

    def __str__(self) -> str:
        return self.text()

    def view(self) -> View:
        """What leaves whom, who sees it, what it costs and what that means for one person, for a notebook."""
        person = PersonTotal.of(self.costs(), delta=self.delta)
        rows = tuple(
            (
                f"{stage.discloses[:1].upper()}{stage.discloses[1:]}",
                ", ".join(stage.costs),
                str(max(stage.counts.values(), default=0)),
                stage.audience,
                str(guarantee(list(stage.costs.values()), delta=self.delta)),
            )
            for stage in self.stages
        )
        return View(
            title=f"Plan of {self.method}: {self.rounds()} rounds in {len(self.stages)} stages",
            quality="Computed from public facts; no data was touched.",
            answer=(
                Text(text=f"A person's total: {'; '.join(self.totals())}.", style="lead"),
                Table(
                    title="What leaves",
                    head=("what leaves", "from", "requests", "seen by", "cost of it alone"),
                    rows=rows,
                    numeric=(2,),
                ),
                *((person_figures(person),) if person.bounded else ()),
                Items(items=self.notes),
            ),
        )

    def text(self) -> str:
        """The plan in plain words, for a terminal, a log or an operator who must decide."""
        lines = [f"Plan of {self.method}: {self.rounds()} rounds in {len(self.stages)} stages", ""]
        for stage in self.stages:
            lines.append(f"{stage.name} (step {stage.step}), seen by {stage.audience}: {stage.discloses}")
            for party, cost in stage.costs.items():
                requests = f"{stage.counts[party]} request{'s' if stage.counts[party] != 1 else ''}"
                lines.append(f"    {party}: {requests}, {guarantee([cost], delta=self.delta)}")
        lines += ["", "A person's total over all parties' releases of this job:"]
        lines += [f"    {total}" for total in self.totals()]
        if self.notes:
            lines += ["", *self.notes]
        return "\n".join(lines)


def of_first_format(plain: Mapping[str, Any]) -> dict[str, Any]:
    """A plan that the first version wrote, whose stages were phases: for records of what was spent."""
    others = {name: value for name, value in plain.items() if name != "phases"}
    return {"missing_data": "", **others, "stages": plain["phases"]}
