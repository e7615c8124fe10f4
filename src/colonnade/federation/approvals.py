"""Jobs that wait for a party's operator, and what approving one reserves.

The party itself uses it, and so does the operator's command line, from another process: every decision is one
transaction on the party's database.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path

from colonnade.durable import Database
from colonnade.errors import NotApproved, RunError
from colonnade.federation.messages import of_first_protocol, stored_proposal
from colonnade.federation.plan import Plan
from colonnade.federation.policy import Policy
from colonnade.federation.roster import Roster
from colonnade.federation.stage import JOB
from colonnade.federation.store import Store, StoredJob
from colonnade.privacy.cost import Cost, against_colluders
from colonnade.privacy.ledger import Ledger, Reservation


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
