"""What a party agrees to: its policy without asking anyone, its operator for the rest, and what approval reserves."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from colonnade.codec import nearest, plain, record
from colonnade.durable import Database
from colonnade.errors import ColonnadeError, NotApproved, RunError, SchemaError, UnsafeRequest
from colonnade.federation.catalogue import CATALOGUE
from colonnade.federation.facts import PublicFacts
from colonnade.federation.messages import of_first_protocol, stored_proposal
from colonnade.federation.plan import Plan
from colonnade.federation.roster import Roster
from colonnade.federation.stage import JOB
from colonnade.federation.store import Store, StoredJob
from colonnade.privacy.cost import Cost, against_colluders
from colonnade.privacy.ledger import Budget, Ledger, Reservation

Decision = Literal["approved", "waiting"]


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
        if self.minimum_cohort < 1:
            raise SchemaError(f"minimum_cohort in [policy] is a number from 1, not {self.minimum_cohort!r}.")
        unknown = [name for name in self.methods or () if name not in CATALOGUE.names]
        if unknown:
            raise SchemaError(
                f"methods in [policy] names {unknown[0]!r}, which this installation does not have; it has"
                f" {', '.join(CATALOGUE.names)}.{nearest(unknown[0], CATALOGUE.names)}"
            )

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
        stated: dict[str, Any] = plain(self)
        return stated

    @classmethod
    def from_dict(cls, stated: Mapping[str, Any]) -> Policy:
        """From party.json. A home that 0.1 wrote says `askers`; its ledger stays readable."""
        renamed = {"requesters" if name == "askers" else name: value for name, value in stated.items()}
        return record(cls, renamed, "the policy in party.json")


def columns_of(plan: Plan, mine: Sequence[str]) -> tuple[str, ...]:
    """Which of a party's columns a job reads, by the options that its method declares to name columns; all of them if
    it leaves the choice open, or if this installation cannot read the options.

    Only a forecast: a job that the policy approved and that reads another column after all is refused at the border
    (`Party.chunks`).
    """
    try:
        named = CATALOGUE.make(plan.method, plan.options).reads()
    except Exception:  # options are a stranger's: what cannot be read may read everything
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
    own = {(stage.name, stage.step): stage.counts.get(party, 0) for stage in own_plan(plan, facts, roster).stages}
    for stage in plan.stages:
        if stage.counts.get(party, 0) > own.get((stage.name, stage.step), 0):
            raise UnsafeRequest(
                f"the proposed plan is called {plan.method!r}, but its stage {stage.name!r} asks more of step"
                f" {stage.step} than that method does; the coordinator's installation differs, or its request was"
                " forged."
            )


# --- jobs that wait for the operator, and what approving one reserves -------------------------------------
#
# The party itself uses it, and so does the operator's command line, from another process: every decision is one
# transaction on the party's database.


@dataclass(frozen=True, kw_only=True)
class Approvals:
    """The decisions of the party `name`."""

    name: str
    database: Database
    ledger: Ledger
    store: Store
    policy: Policy
    roster: Roster

    def reservations(self, job: str, plan: Plan) -> list[Reservation]:
        """This party's part of a plan."""
        return reservations(self.name, job, plan, self.roster)

    def reserve(self, job: str, plan: Plan) -> None:
        self.ledger.reserve(job, self.reservations(job, plan), allow=self.policy.allow)

    def decide(self, job: str, *, approve: bool) -> None:
        """The operator's answer to a job that waits. Approval reserves its plan."""
        with self.database.transaction():
            stored = self.store.job(job)
            if stored is None or stored.state != "waiting":
                waiting = ", ".join(self.waiting()) or "none"
                raise NotApproved(f"no job {job} is waiting here; those that wait: {waiting}.")
            if approve and of_first_protocol(stored.content):
                raise NotApproved(
                    f"job {job} was proposed by an older version and cannot run any more; deny it, and have the"
                    " coordinator propose it again."
                )
            if approve:
                self.reserve(job, plan_of(stored))
            self.store.set_state(job, "approved" if approve else "denied")
            self.store.decided(job, "operator", None)

    def waiting(self) -> dict[str, Plan]:
        """Jobs that the operator must decide."""
        return {stored.job: plan_of(stored) for stored in self.store.jobs() if stored.state == "waiting"}


def pinned(cost: Cost, roster: Roster) -> Cost:
    """A cost as a ledger counts it: the pinned roster says who may pool noise; no request says less by its `view`."""
    return against_colluders(cost, members=len(roster.names), pooled=roster.pooled)


def reservations(party: str, job: str, plan: Plan, roster: Roster) -> list[Reservation]:
    """One party's part of a plan, as its ledger counts it."""
    return [
        Reservation(
            stage=stage.name,
            step=stage.step,
            count=stage.counts[party],
            cost=pinned(stage.costs[party], roster).with_joint(lambda joint: joint.replace(JOB, job)),
        )
        for stage in plan.stages
        if party in stage.costs
    ]


def plan_of(stored: StoredJob) -> Plan:
    return Plan.from_dict(stored_proposal(stored.content)["plan"])


@contextmanager
def operator(home: Path, *, policy: Policy | None = None) -> Iterator[Approvals]:
    """The decisions of the party whose folder this is, without its block; the party may be serving meanwhile.

    `policy` is the one in party.toml now; without it, the one with which the party serves.
    """
    if not (home / "party.db").is_file():
        raise RunError(f"{home} has no party.db: this party has not served yet; run `colonnade party serve` first.")
    try:
        settings = json.loads((home / "party.json").read_text(encoding="utf-8"))
        roster = Roster.from_dict(json.loads((home / "pinned.json").read_text(encoding="utf-8"))["roster"])
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise RunError(f"party.json or pinned.json in {home} cannot be read ({error}); set this party up again.") from (
            error
        )
    policy = policy or Policy.from_dict(settings["policy"])
    with closing(Database(home / "party.db")) as database:
        yield Approvals(
            name=settings["name"],
            database=database,
            ledger=Ledger(database, budget=policy.budget),
            store=Store(database, home / "spool"),
            policy=policy,
            roster=roster,
        )
