"""What a party agrees to: its policy without asking anyone, its operator for the rest, and what approval reserves."""

from __future__ import annotations

import json
import math
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any, Literal

from colonnade.codec import nearest, plain, record
from colonnade.durable import Database, canonical
from colonnade.errors import ColonnadeError, NotApproved, RunError, SchemaError, UnsafeRequest
from colonnade.federation.catalogue import CATALOGUE
from colonnade.federation.facts import PublicFacts
from colonnade.federation.messages import of_first_protocol, stored_proposal
from colonnade.federation.plan import Plan
from colonnade.federation.roster import Roster
from colonnade.federation.stage import JOB, Stage, stage
from colonnade.federation.step import Step, registered
from colonnade.federation.store import Maker, Store, StoredJob
from colonnade.privacy.cost import Cost, against_colluders
from colonnade.privacy.ledger import Budget, Ledger, Reservation

Decision = Literal["approved", "waiting"]


@dataclass(frozen=True, kw_only=True)
class Policy:
    """`approve = "auto"` accepts a job by itself if its method is one of `methods`, it reads no columns but `columns`
    and the cohort has `minimum_cohort` records (None: any method, any declared column). Every other job waits for the
    operator.

    Three rules bind the operator too: `allow` names the releases without a bound that are acceptable, `requesters`
    the organisations that may ask (None: the coordinator's), and `budget` is never exceeded. A job that its coordinator
    has not closed after `job_days` is ended here. With `tells = "names"` a refusal tells the coordinator which names
    are not allowed and, rounded up, what is left of the budget; with "code" it does not.
    `approvals` operators must approve a job that waits; one is enough to deny it.
    """

    approve: Literal["auto", "ask"] = "ask"
    approvals: int = 1
    methods: tuple[str, ...] | None = None
    columns: tuple[str, ...] | None = None
    requesters: tuple[str, ...] | None = None
    allow: tuple[str, ...] = ()
    budget: Budget | None = None
    minimum_cohort: int = 1
    job_days: float | Literal["never"] = 30.0
    tells: Literal["names", "code"] = "names"

    def __post_init__(self) -> None:
        if self.job_days != "never" and not 0 < self.job_days < math.inf:
            raise SchemaError(f'job_days in [policy] is a positive number of days or "never", not {self.job_days!r}.')
        if self.minimum_cohort < 1:
            raise SchemaError(f"minimum_cohort in [policy] is a number from 1, not {self.minimum_cohort!r}.")
        if self.approvals < 1:
            raise SchemaError(f"approvals in [policy] is a number from 1, not {self.approvals!r}.")
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
        if self.methods is not None and plan.method not in self.methods:
            return "waiting"
        own = tuple(facts.columns.get(party, ()))
        if self.columns is not None and not set(columns_of(plan, own)) <= set(self.columns):
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


def columns_of(plan: Plan, own: Sequence[str]) -> tuple[str, ...]:
    """Which of a party's columns a job may read, by the options that its method declares to name columns; all of them
    if it leaves the choice open. A job that reads another column after all is refused at the border
    (`Workplace.chunks`), also where an operator approved it."""
    try:
        method = CATALOGUE.make(plan.method, plan.options)
        named, out = method.reads(), method.left_out()
    except Exception:  # options are a stranger's: what cannot be read may read everything
        named, out = None, ()
    return tuple(name for name in own if name not in out and (named is None or name in named))


# --- the plan that a party makes itself ----------------------------------------------------------------------

ASK = "ask"
"""The method of a job that asks single steps, which its options state; it loads nothing."""


def plan_of_steps(stages: Sequence[Stage]) -> Plan:
    """A job of single steps. Its options have all that the stages are made of, so that each party makes them itself."""
    described = [
        {
            "name": planned.name,
            "step": planned.step,
            "requests": {
                party: [dict(request) for request in requests] for party, requests in planned.requests.items()
            },
            "audience": planned.audience,
            "discloses": planned.discloses,
            "recipients": list(planned.recipients),
        }
        for planned in stages
    ]
    return Plan(method=ASK, options={"stages": described}, stages=tuple(stages))


def _asked_alone(name: str) -> Step:
    """A step that a job of single steps may ask. Its arguments and recipients are the coordinator's choice, so it is
    none of a method, which protects people only by all that the method's plan fixes."""
    step = registered(name)
    if CATALOGUE.package_of(step.module) in ("", *CATALOGUE.optional):
        raise UnsafeRequest(f"step {name} is one of Colonnade's own and not asked by itself; propose its method.")
    return step


def _steps_again(options: Mapping[str, Any], facts: PublicFacts, roster: Roster) -> Plan:
    public: dict[str, Any] = {"facts": facts, "roster": roster}
    described = [dict(stated) for stated in options["stages"]]
    stages = [
        stage(stated.pop("name"), _asked_alone(stated.pop("step")), stated.pop("requests"), **stated, **public)
        for stated in described
    ]
    return Plan(method=ASK, options=options, stages=tuple(stages))


_planning = threading.RLock()


def own_plan(plan: Plan, facts: PublicFacts, roster: Roster) -> Plan:
    """The plan that this installation itself makes for the method and the options that a plan states."""
    try:
        with _planning:  # parties in one process are asked side by side, and one of them makes the plan
            return _own_plan(plan.method, canonical(plan.options), Pinned(facts, roster))
    except ColonnadeError:
        raise
    except Exception as error:  # options are a stranger's: whatever they break, the plan is not genuine
        raise UnsafeRequest(f"the options of the proposed {plan.method!r} cannot be read ({error}).") from error


@dataclass(frozen=True)
class Pinned:
    """Facts and roster, compared by their fingerprints."""

    facts: PublicFacts = field(compare=False)
    roster: Roster = field(compare=False)
    fingerprints: tuple[str, str] = ("", "")

    def __post_init__(self) -> None:
        object.__setattr__(self, "fingerprints", (self.facts.fingerprint, self.roster.fingerprint))


@lru_cache(maxsize=8)
def _own_plan(method: str, options: str, pinned: Pinned) -> Plan:
    """Made once, and then for every check of the same job, and for every party in this process."""
    stated = json.loads(options)
    if method == ASK:
        return _steps_again(stated, pinned.facts, pinned.roster)
    return CATALOGUE.make(method, stated).plan(pinned.facts, pinned.roster)


def check_genuine(plan: Plan, own: Plan, *, party: str) -> None:
    """Refuse a plan that asks of this party anything but what this installation plans for its method and options, or
    that says something else about it: an operator decides by its words, and by its total over all parties at its
    delta."""
    if plan.fingerprint == own.fingerprint:
        return
    proposed = {stage.name: stage.to_dict() for stage in plan.stages if party in stage.costs}
    expected = {stage.name: stage.to_dict() for stage in own.stages if party in stage.costs}
    for name in (*proposed, *expected):
        if name not in expected or name not in proposed or not _same(proposed[name], expected[name], party):
            raise UnsafeRequest(
                f"the proposed plan is called {plan.method!r}, but its stage {name!r} is not what this installation"
                " plans for these options; the coordinator's installation differs, or its request was forged."
            )
    if list(proposed) != list(expected):
        raise UnsafeRequest(f"the stages of the proposed {plan.method!r} stand in another order than they are asked.")
    raise UnsafeRequest(
        f"the proposed {plan.method!r} is described in other words or with other totals than this installation uses"
        " for these options; the coordinator's installation differs, or its request was forged."
    )


def _same(proposed: Mapping[str, Any], expected: Mapping[str, Any], party: str) -> bool:
    """Whether two descriptions of a stage ask the same of a party."""

    def compared(described: Mapping[str, Any]) -> str:
        own = {name: described[name][party] for name in ("counts", "costs")}
        return canonical({**own, **{name: described[name] for name in ("step", "audience", "recipients", "later")}})

    return compared(proposed) == compared(expected)


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
    columns: tuple[str, ...]
    """This party's own."""

    def reservations(self, job: str, plan: Plan) -> list[Reservation]:
        """This party's part of a plan."""
        return reservations(self.name, job, plan, self.roster)

    def reserve(self, job: str, plan: Plan) -> None:
        self.ledger.reserve(job, self.reservations(job, plan), allow=self.policy.allow)

    def decide(self, job: str, *, approve: bool, operator: str = "") -> int:
        """The answer of an operator to a job that waits; how many more must approve it. Approval reserves its plan."""
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
            if approve and self.policy.approvals > 1:
                if not operator:
                    raise NotApproved(
                        f"{self.policy.approvals} operators must approve a job here, each by name; add them with"
                        " `colonnade party operator add`, and approve with --operator or in the console."
                    )
                lacking = self.policy.approvals - self.store.vote(job, operator)
                if lacking > 0:
                    return lacking
            if approve:
                self.reserve(job, plan_of(stored))
            self.store.set_state(job, "approved" if approve else "denied")
            self.store.decided(job, "operator", columns_of(plan_of(stored), self.columns))
            return 0

    def end(self, job: str, maker: Maker = "operator") -> None:
        """End a job that waits or is under way: what was kept for it goes. What is reserved for it stays reserved if
        anything of it was asked."""
        self.store.end_job(job, maker)
        self.ledger.withdraw(job)

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
        agreed = json.loads((home / "pinned.json").read_text(encoding="utf-8"))
        roster, facts = Roster.from_dict(agreed["roster"]), PublicFacts.from_dict(agreed["facts"])
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
            columns=tuple(facts.columns.get(settings["name"], ())),
        )
