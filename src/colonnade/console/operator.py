"""What one party's operator may see and decide.

Everything is read from the party's folder, with a connection of its own for each question, so that it works beside a
party that serves. A decision is the one transaction that `colonnade party approve` makes too: the party finds it when
the coordinator asks again.
"""

from __future__ import annotations

import contextlib
import functools
import json
import threading
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from colonnade.catalogue import CATALOGUE
from colonnade.console.operators import Operators, send_notice
from colonnade.durable import Database, Row
from colonnade.errors import ColonnadeError, CorruptRecord, NotApproved, PrivacyError, RunError
from colonnade.federation.config import PartyFile
from colonnade.federation.home import Home
from colonnade.federation.messages import Transcript, stored_proposal
from colonnade.federation.plan import Plan
from colonnade.federation.policy import ASK, columns_of, operator, own_plan, reservations
from colonnade.federation.requester import named
from colonnade.federation.store import JobState, Maker
from colonnade.privacy.accounting import Guarantee
from colonnade.privacy.ledger import Budget, Ledger, against, history_of, within

Record = Literal["ledger", "transcript"]


@dataclass(frozen=True, kw_only=True)
class MethodSummary:
    """What this party's own installation says about a method with these options: the coordinator's words are not asked.

    `options` has every option with its value here. `unknown`: why this installation cannot say more.
    """

    purpose: str
    missing_data: str = ""
    options: Mapping[str, Any]
    unknown: str = ""


@dataclass(frozen=True, kw_only=True)
class Traffic:
    """What the transcript has of one job."""

    first: float | None = None
    last: float | None = None
    messages: int = 0
    bytes: int = 0

    def with_message(self, when: float, size: int) -> Traffic:
        first = when if self.first is None else self.first
        return Traffic(first=first, last=when, messages=self.messages + 1, bytes=self.bytes + size)


@dataclass(frozen=True, kw_only=True)
class JobSummary:
    """One job at this party. `requester` is the organisation that signed it; None: it is unsigned, since all parties
    share a machine."""

    name: str
    state: JobState
    plan: Plan
    requester: str | None
    seeded: bool
    decision: tuple[Maker, float] | None
    traffic: Traffic
    approved_by: tuple[str, ...] = ()
    """The operators who have approved it by name."""
    stages: tuple[tuple[str, int, int], ...] = ()
    """(stage, requests answered, requests that the plan may make) at this party."""

    @property
    def proposed(self) -> float | None:
        """When."""
        return self.traffic.first

    @property
    def answered(self) -> int:
        return sum(done for _, done, _ in self.stages)

    @property
    def most(self) -> int:
        return sum(most for _, _, most in self.stages)

    @property
    def remaining(self) -> float | None:
        """Seconds, if all requests of the plan come, at the pace since the decision."""
        if self.decision is None or self.traffic.last is None or not self.answered:
            return None
        return (self.traffic.last - self.decision[1]) / self.answered * (self.most - self.answered)


@dataclass(frozen=True, kw_only=True)
class Forecast:
    """What approving a job would mean. `refused` is the sentence of a rule that forbids it; `before` and `after` are
    what counts against the budget, while the job waits."""

    own: Guarantee
    person: Guarantee
    unbounded: tuple[tuple[str, str, bool], ...]
    """(name, what it discloses, whether the policy allows it) of each release here that has no bound."""
    before: Guarantee | None
    after: Guarantee | None
    refused: str | None
    columns: tuple[str, ...]
    genuine: bool | None
    """Whether this installation makes the same plan; None once it is decided, since the facts may have changed."""
    doubt: str


@dataclass(frozen=True, kw_only=True)
class Spending:
    """The budget, what counts against it now, and how that came about: (time, epsilon)."""

    budget: Budget | None
    window: Guarantee | None
    lifetime: Guarantee
    history: tuple[tuple[float, float], ...] = ()
    waiting: float | None = None
    """Epsilon if every job that waits were approved."""


@dataclass(frozen=True)
class OperatorService:
    """For the operator of the party that a party.toml describes."""

    file: Path
    _cache: dict[Any, Any] = field(default_factory=dict, compare=False)
    _lock: threading.Lock = field(default_factory=threading.Lock, compare=False)

    @functools.cached_property
    def party(self) -> PartyFile:
        return PartyFile.from_toml(self.file)

    def now(self) -> PartyFile:
        """party.toml as it is now: its policy may have been edited."""
        return PartyFile.from_toml(self.file)

    @property
    def name(self) -> str:
        return self.party.name

    @property
    def home(self) -> Path:
        return self.party.home

    @property
    def served(self) -> bool:
        return (self.home / "party.db").is_file()

    @contextlib.contextmanager
    def _reading(self) -> Iterator[Database]:
        if not self.served:
            raise RunError(f"{self.name} has not served yet: run `colonnade party serve {self.file.name}` first.")
        with contextlib.closing(Database(self.home / "party.db", read_only=True)) as database:
            yield database

    # --- jobs ---------------------------------------------------------------------------------------------

    def jobs(self) -> list[JobSummary]:
        """Newest first."""
        if not self.served:
            return []
        with self._reading() as database:
            tables = {name for (name,) in database.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}
            if not {"jobs", "ledger", "transcript"} <= tables:
                return []
            stored = database.execute("SELECT job, proposal, state FROM jobs")
            proposals = {hashed: self._proposal(database, job, hashed) for job, hashed, _ in stored}
            decisions: dict[str, tuple[Maker, float]] = {}
            if "decisions" in tables:
                rows = database.execute("SELECT job, maker, time FROM decisions")
                decisions = {job: (maker, when) for job, maker, when in rows}
            if "ended" in tables:
                decisions |= {
                    job: (maker, when) for job, maker, when in database.execute("SELECT job, maker, time FROM ended")
                }
            votes: dict[str, tuple[str, ...]] = {}
            if "votes" in tables:
                for job, operator_name in database.execute("SELECT job, operator FROM votes ORDER BY time"):
                    votes[job] = (*votes.get(job, ()), operator_name)
            traffic = self._traffic(database)
            stages = self._stages(database)
        jobs = [
            JobSummary(
                name=job,
                state=state,
                **proposals[hashed],
                decision=decisions.get(job),
                approved_by=votes.get(job, ()),
                traffic=traffic.get(job, Traffic()),
                stages=stages.get(job, ()),
            )
            for job, hashed, state in stored
        ]
        return sorted(jobs, key=lambda job: job.proposed or 0.0, reverse=True)

    def _proposal(self, database: Database, job: str, hashed: str) -> dict[str, Any]:
        """What was proposed; it never changes, so it is read once."""
        key = ("proposal", hashed)
        if key not in self._cache:
            [(content,)] = database.execute("SELECT content FROM jobs WHERE job = ?", (job,))
            arguments = stored_proposal(content)
            requester = arguments.get("requester")
            self._cache[key] = {
                "plan": Plan.from_dict(arguments["plan"]),
                "requester": None if requester is None else named(requester).organisation,
                "seeded": arguments.get("seed") is not None,
            }
        proposal: dict[str, Any] = self._cache[key]
        return proposal

    def _traffic(self, database: Database) -> dict[str, Traffic]:
        """The transcript only grows, so each row is added up once; a file that was exchanged is read anew."""
        with self._lock:
            last, hashed, sums = self._cache.get("traffic", (0, "", {}))
            if last and not database.execute("SELECT 1 FROM transcript WHERE number = ? AND hash = ?", (last, hashed)):
                last, sums = 0, {}
            sums = dict(sums)
            for job, when, size in database.execute(
                "SELECT job, json_extract(body, '$.time'), json_extract(body, '$.bytes') FROM transcript"
                " WHERE number > ? ORDER BY number",
                (last,),
            ):
                sums[job] = sums.get(job, Traffic()).with_message(when, size)
            newest = database.execute("SELECT number, hash FROM transcript ORDER BY number DESC LIMIT 1")
            self._cache["traffic"] = (*(newest[0] if newest else (0, "")), sums)
            return sums

    def _stages(self, database: Database) -> dict[str, tuple[tuple[str, int, int], ...]]:
        """A row of the ledger has its stage as "phase"."""
        debits = {
            (job, stage): count
            for job, stage, count in database.execute(
                "SELECT job, json_extract(body, '$.phase'), COUNT(*) FROM ledger WHERE kind = 'debit' GROUP BY 1, 2"
            )
        }
        stages: dict[str, tuple[tuple[str, int, int], ...]] = {}
        for job, stage, most in database.execute(
            "SELECT job, json_extract(body, '$.phase'), json_extract(body, '$.count') FROM ledger"
            " WHERE kind = 'reserve' ORDER BY number"
        ):
            stages[job] = (*stages.get(job, ()), (stage, debits.get((job, stage), 0), most))
        return stages

    def job(self, name: str) -> JobSummary:
        jobs = {job.name: job for job in self.jobs()}
        if name not in jobs:
            raise RunError(f"this party knows no job {name!r}.")
        return jobs[name]

    def waiting(self) -> list[JobSummary]:
        """Raises `RunError` where the party has not served yet, since nothing could wait."""
        with self._reading():
            pass
        return [job for job in self.jobs() if job.state == "waiting"]

    def decide(self, job: str, *, approve: bool, by: str = "") -> int:
        """An operator's answer, under the policy that party.toml has now; how many more must approve."""
        self._check(by)
        now = self.now()
        with operator(self.home, policy=now.policy) as approvals:
            lacking = approvals.decide(job, approve=approve, operator=by)
        if lacking:
            send_notice(now.notice, f"{self.name}: {by} has approved job {job}; {lacking} more must.")
        return lacking

    @property
    def operators(self) -> Operators:
        return Operators(self.home)

    def _check(self, by: str) -> None:
        if self.operators.names and by not in self.operators.names:
            raise NotApproved("this party has operators with passwords; say who you are with --operator, or sign in.")

    def end(self, job: str, *, by: str = "") -> None:
        """End a job that waits or is under way."""
        self._check(by)
        with operator(self.home, policy=self.now().policy) as approvals:
            approvals.end(job)

    # --- what a decision means ----------------------------------------------------------------------------

    def summary(self, plan: Plan) -> MethodSummary:
        """What the job is for, in the words of this party's own catalogue, so that what is approved is what this
        installation would do."""
        if plan.method == ASK:
            steps = ", ".join(dict.fromkeys(stage.step for stage in plan.stages))
            return MethodSummary(purpose=f"One step by itself: {steps}.", options=plan.options)
        packages = self.now().packages
        key = ("summary", plan.fingerprint, packages)
        if key not in self._cache:
            try:
                entry = CATALOGUE.permit(plan.method, packages)
                method = entry.load().from_options(plan.options)
                self._cache[key] = MethodSummary(
                    purpose=method.purpose(), missing_data=method.missing_data(), options=method.options()
                )
            except Exception as error:  # options are a stranger's: whatever they break, nothing is known about them
                known = not isinstance(error, ColonnadeError)
                what = "Options that this installation cannot read" if known else "Unknown to this installation"
                purpose = f"{what}: {plan.method}"
                self._cache[key] = MethodSummary(purpose=purpose, options=plan.options, unknown=str(error))
        summary: MethodSummary = self._cache[key]
        return summary

    def forecast(self, job: JobSummary) -> Forecast:
        policy = self.now().policy
        roster, facts = Home(path=self.home).pinned()
        before = after = refused = None
        with self._reading() as database:
            ledger = Ledger(database, budget=policy.budget, create=False)
            wanted = [reservation.cost for reservation in reservations(self.name, job.name, job.plan, roster)]
            if job.state == "waiting":
                if policy.budget is not None:
                    spent = ledger.costs(since=policy.budget.since(time.time()))
                    before, after = against(policy.budget, spent), against(policy.budget, spent, wanted)
                try:
                    ledger.check(wanted, allow=policy.allow)
                except PrivacyError as error:
                    refused = str(error)
        unbounded = {
            leaf["name"]: (str(leaf["name"]), str(leaf["discloses"]), leaf["name"] in policy.allow)
            for cost in wanted
            for leaf in cost.leaves()
            if leaf.mechanism == "unbounded"
        }
        genuine, doubt = self._genuine(job.plan) if job.state == "waiting" else (None, "")
        own_columns: Mapping[str, Any] = facts.columns.get(self.name, {})
        return Forecast(
            own=job.plan.total(party=self.name),
            person=job.plan.total(),
            unbounded=tuple(unbounded.values()),
            before=before,
            after=after,
            refused=refused,
            columns=columns_of(job.plan, tuple(own_columns)),
            genuine=genuine,
            doubt=doubt,
        )

    def _genuine(self, plan: Plan) -> tuple[bool, str]:
        """Whether the plan is, word for word, the one that this installation makes: then its sentences are ours."""
        if self.summary(plan).unknown:
            return False, self.summary(plan).unknown
        roster, facts = Home(path=self.home).pinned()
        key = ("genuine", plan.fingerprint, facts.fingerprint, roster.fingerprint)
        if key not in self._cache:
            try:
                same = own_plan(plan, facts, roster).fingerprint == plan.fingerprint
                doubt = "" if same else f"This installation makes another plan for {plan.method} with these options."
                self._cache[key] = (same, doubt)
            except ColonnadeError as error:
                self._cache[key] = (False, str(error))
        verdict: tuple[bool, str] = self._cache[key]
        return verdict

    # --- the budget ---------------------------------------------------------------------------------------

    def spending(self, *, delta: float, history: bool = False) -> Spending:
        budget = self.now().policy.budget
        scale = budget or Budget(epsilon=1.0, delta=delta)
        if not self.served:
            nothing = against(scale, [])
            return Spending(budget=budget, window=None if budget is None else nothing, lifetime=nothing)
        wanted = [cost for job in self.waiting() for cost in job.plan.costs(self.name)]
        with self._reading() as database:
            ledger = Ledger(database, budget=budget, create=False)
            rows = ledger.counted()
            lifetime = ledger.spent(delta=scale.delta or delta)
        now = time.time()
        points = history_of(scale, rows, now) if history else ()
        if budget is None:
            return Spending(budget=None, window=None, lifetime=lifetime, history=points)
        spent = within(budget, rows, now)
        return Spending(
            budget=budget,
            window=against(budget, spent),
            lifetime=lifetime,
            history=points,
            waiting=against(budget, spent, wanted).epsilon if wanted else None,
        )

    # --- the records --------------------------------------------------------------------------------------

    def rows(self, record: Record, *, job: str | None = None, before: int | None = None, most: int = 50) -> list[Row]:
        """The newest rows of a chain, or those before row `before`."""
        if not self.served:
            return []
        given = {"job = ?": job, "number < ?": before}
        stated = {condition: value for condition, value in given.items() if value is not None}
        with self._reading() as database:
            rows = database.execute(
                f"SELECT number, body, previous, hash FROM {record} WHERE {' AND '.join(['1', *stated])}"
                " ORDER BY number DESC LIMIT ?",
                (*stated.values(), most),
            )
        return [Row(number, json.loads(body), previous, hashed) for number, body, previous, hashed in rows]

    def verified(self, record: Record) -> tuple[bool, str]:
        """Whether a chain is intact, in a sentence; computed again when it has grown or ends otherwise."""
        if not self.served:
            return True, "There are no rows yet."
        with self._reading() as database:
            chain: Ledger | Transcript
            chain = Ledger(database, create=False) if record == "ledger" else Transcript(database, create=False)
            head = chain.chain.head()
            with self._lock:
                last = self._cache.get(("verified", record))
                if last is None or (last[0] != head and (head.rows <= last[0].rows or time.monotonic() > last[3])):
                    begun = time.monotonic()
                    try:
                        if not chain.chain.guarded():
                            raise CorruptRecord(f"What keeps the {record} append-only is gone: the file was changed.")
                        chain.verify()
                        outcome = (True, f"Intact: {head.rows:,} rows, ending in {head.hash[:16]}.")
                    except ColonnadeError as error:
                        outcome = (False, str(error))
                    # A long chain that grows is not verified all the time: one part in twenty of it at most. One that
                    # does not grow and ends otherwise was changed.
                    last = (head, *outcome, time.monotonic() + 20 * (time.monotonic() - begun))
                    self._cache["verified", record] = last
        return last[1], last[2]
