"""What one party's operator may see and decide.

Everything is read from the party's folder, with a connection of its own for each question, so that it works beside a
party that serves. A decision is the one transaction that `colonnade party approve` makes too: the party finds it when
the coordinator asks again.
"""

from __future__ import annotations

import contextlib
import functools
import json
import math
import threading
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from colonnade.durable import Database, Row
from colonnade.errors import ColonnadeError, CorruptRecord, PrivacyError, RunError
from colonnade.federation.approvals import operator, reservations
from colonnade.federation.consortium import PartyFile
from colonnade.federation.home import Home
from colonnade.federation.messages import stored_proposal
from colonnade.federation.plan import Plan
from colonnade.federation.policy import columns_of, own_plan
from colonnade.federation.requester import named
from colonnade.federation.store import JobState, Maker
from colonnade.federation.transcript import Transcript
from colonnade.privacy.accounting import Guarantee
from colonnade.privacy.budget import DAY, Budget
from colonnade.privacy.cost import Cost
from colonnade.privacy.ledger import Ledger, against

Record = Literal["ledger", "transcript"]
MOST_POINTS = 48
"""A chart of spending shows no more changes than this, the newest."""


@dataclass(frozen=True, kw_only=True)
class Asked:
    """A proposal. `asker` is the organisation that signed it; None: nobody did, since all parties share a machine."""

    plan: Plan
    asker: str | None
    seeded: bool


@dataclass(frozen=True, kw_only=True)
class Traffic:
    """What the transcript has of one job."""

    first: float | None = None
    last: float | None = None
    messages: int = 0
    bytes: int = 0

    def and_one(self, when: float, size: int) -> Traffic:
        first = when if self.first is None else self.first
        return Traffic(first=first, last=when, messages=self.messages + 1, bytes=self.bytes + size)


@dataclass(frozen=True, kw_only=True)
class JobCard:
    """One job at this party."""

    job: str
    state: JobState
    asked: Asked
    decided: tuple[Maker, float] | None
    traffic: Traffic
    phases: tuple[tuple[str, int, int], ...] = ()
    """(phase, requests answered, requests that the plan may make) at this party."""

    @property
    def plan(self) -> Plan:
        return self.asked.plan

    @property
    def asker(self) -> str | None:
        return self.asked.asker

    @property
    def first(self) -> float | None:
        """When it was proposed."""
        return self.traffic.first

    @property
    def answered(self) -> int:
        return sum(done for _, done, _ in self.phases)

    @property
    def most(self) -> int:
        return sum(most for _, _, most in self.phases)


@dataclass(frozen=True, kw_only=True)
class Forecast:
    """What approving a job would mean. `refused` is the sentence of a rule that forbids it; `before` and `after` are
    what counts against the budget, while the job waits."""

    here: Guarantee
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
    history: tuple[tuple[float, float], ...]
    waiting: float | None
    """Epsilon if every job that waits were approved."""


@dataclass(frozen=True)
class Desk:
    """The operator of the party that a party.toml describes."""

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

    def jobs(self) -> list[JobCard]:
        """Newest first."""
        if not self.served:
            return []
        with self._reading() as database:
            tables = {name for (name,) in database.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}
            if not {"jobs", "ledger", "transcript"} <= tables:
                return []
            stored = database.execute("SELECT job, proposal, state FROM jobs")
            asked = {proposal: self._asked(database, job, proposal) for job, proposal, _ in stored}
            decided: dict[str, tuple[Maker, float]] = {}
            if "decisions" in tables:
                rows = database.execute("SELECT job, maker, time FROM decisions")
                decided = {job: (maker, when) for job, maker, when in rows}
            traffic = self._traffic(database)
            phases = self._phases(database)
        cards = [
            JobCard(
                job=job,
                state=state,
                asked=asked[proposal],
                decided=decided.get(job),
                traffic=traffic.get(job, Traffic()),
                phases=phases.get(job, ()),
            )
            for job, proposal, state in stored
        ]
        return sorted(cards, key=lambda card: card.first or 0.0, reverse=True)

    def _asked(self, database: Database, job: str, proposal: str) -> Asked:
        """A proposal never changes, so it is read once."""
        key = ("asked", proposal)
        if key not in self._cache:
            [(content,)] = database.execute("SELECT content FROM jobs WHERE job = ?", (job,))
            arguments = stored_proposal(content)
            asker = arguments.get("requester")
            self._cache[key] = Asked(
                plan=Plan.from_dict(arguments["plan"]),
                asker=None if asker is None else named(asker).organisation,
                seeded=arguments.get("seed") is not None,
            )
        found: Asked = self._cache[key]
        return found

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
                sums[job] = sums.get(job, Traffic()).and_one(when, size)
            newest = database.execute("SELECT number, hash FROM transcript ORDER BY number DESC LIMIT 1")
            self._cache["traffic"] = (*(newest[0] if newest else (0, "")), sums)
            return sums

    def _phases(self, database: Database) -> dict[str, tuple[tuple[str, int, int], ...]]:
        debits = {
            (job, phase): count
            for job, phase, count in database.execute(
                "SELECT job, json_extract(body, '$.phase'), COUNT(*) FROM ledger WHERE kind = 'debit' GROUP BY 1, 2"
            )
        }
        found: dict[str, tuple[tuple[str, int, int], ...]] = {}
        for job, phase, most in database.execute(
            "SELECT job, json_extract(body, '$.phase'), json_extract(body, '$.count') FROM ledger"
            " WHERE kind = 'reserve' ORDER BY number"
        ):
            found[job] = (*found.get(job, ()), (phase, debits.get((job, phase), 0), most))
        return found

    def job(self, name: str) -> JobCard:
        for card in self.jobs():
            if card.job == name:
                return card
        raise RunError(f"this party knows no job {name!r}.")

    def waiting(self) -> list[JobCard]:
        """Raises `RunError` where the party has not served yet, since nothing could wait."""
        with self._reading():
            pass
        return [card for card in self.jobs() if card.state == "waiting"]

    def decide(self, job: str, *, approve: bool) -> None:
        """The operator's answer, under the policy that party.toml has now."""
        with operator(self.home, policy=self.now().policy) as approvals:
            approvals.decide(job, approve=approve)

    # --- what a decision means ----------------------------------------------------------------------------

    def forecast(self, card: JobCard) -> Forecast:
        policy = self.now().policy
        with self._reading() as database:
            ledger = Ledger(database, budget=policy.budget, create=False)
            roster, _ = Home(path=self.home).pinned()
            wanted = [one.cost for one in reservations(self.name, card.job, card.plan, roster)]
            before = after = None
            if policy.budget is not None and card.state == "waiting":
                spent = ledger.costs(since=policy.budget.since(time.time()))
                before, after = against(policy.budget, spent), against(policy.budget, spent, wanted)
            refused = None
            if card.state == "waiting":
                try:
                    ledger.check(wanted, allow=policy.allow)
                except PrivacyError as error:
                    refused = str(error)
        open_ended = {
            leaf["name"]: (str(leaf["name"]), str(leaf["discloses"]), leaf["name"] in policy.allow)
            for cost in wanted
            for leaf in cost.leaves()
            if leaf.mechanism == "unbounded"
        }
        genuine, doubt = self._genuine(card) if card.state == "waiting" else (None, "")
        mine: Mapping[str, Any] = Home(path=self.home).pinned()[1].columns.get(self.name, {})
        return Forecast(
            here=card.plan.total(party=self.name),
            person=card.plan.total(),
            unbounded=tuple(open_ended.values()),
            before=before,
            after=after,
            refused=refused,
            columns=columns_of(card.plan, tuple(mine)),
            genuine=genuine,
            doubt=doubt,
        )

    def _genuine(self, card: JobCard) -> tuple[bool, str]:
        """Whether the plan is, word for word, the one that this installation makes: then its sentences are ours."""
        roster, facts = Home(path=self.home).pinned()
        key = ("genuine", card.plan.fingerprint, facts.fingerprint, roster.fingerprint)
        if key not in self._cache:
            try:
                same = own_plan(card.plan, facts, roster).fingerprint == card.plan.fingerprint
                doubt = (
                    "" if same else f"This installation makes another plan for {card.plan.method} with these options."
                )
                self._cache[key] = (same, doubt)
            except ColonnadeError as error:
                self._cache[key] = (False, str(error))
        found: tuple[bool, str] = self._cache[key]
        return found

    # --- the budget ---------------------------------------------------------------------------------------

    def spending(self, *, delta: float, history: bool = False) -> Spending:
        budget = self.now().policy.budget
        if not self.served:
            nothing = against(budget or Budget(epsilon=1.0, delta=delta), [])
            return Spending(
                budget=budget, window=None if budget is None else nothing, lifetime=nothing, history=(), waiting=None
            )
        waiting = self.waiting()
        with self._reading() as database:
            ledger = Ledger(database, budget=budget, create=False)
            rows = ledger.chain.rows(kind="reserve")
            lifetime = ledger.spent(delta=(budget.delta if budget is not None else 0.0) or delta)
        scale = budget or Budget(epsilon=1.0, delta=delta)
        now = time.time()
        if budget is None:
            return Spending(
                budget=None,
                window=None,
                lifetime=lifetime,
                history=_history(scale, rows, now) if history else (),
                waiting=None,
            )
        spent = _within(scale, rows, now)
        wanted = [cost for card in waiting for cost in card.plan.costs(self.name)]
        return Spending(
            budget=budget,
            window=against(scale, spent),
            lifetime=lifetime,
            history=_history(scale, rows, now) if history else (),
            waiting=against(scale, spent, wanted).epsilon if wanted else None,
        )

    # --- the records --------------------------------------------------------------------------------------

    def rows(self, record: Record, *, job: str | None = None, before: int | None = None, most: int = 50) -> list[Row]:
        """The newest rows of a chain, or those before row `before`."""
        if not self.served:
            return []
        conditions, values = ["1"], []
        for condition, value in (("job = ?", job), ("number < ?", before)):
            if value is not None:
                conditions.append(condition)
                values.append(value)
        with self._reading() as database:
            found = database.execute(
                f"SELECT number, body, previous, hash FROM {record} WHERE {' AND '.join(conditions)}"
                " ORDER BY number DESC LIMIT ?",
                (*values, most),
            )
        return [Row(number, json.loads(body), previous, hashed) for number, body, previous, hashed in found]

    def verified(self, record: Record) -> tuple[bool, str]:
        """Whether a chain is intact, in a sentence; computed again when it has grown or ends otherwise."""
        if not self.served:
            return True, "There are no rows yet."
        with self._reading() as database:
            chain: Ledger | Transcript
            chain = Ledger(database, create=False) if record == "ledger" else Transcript(database, create=False)
            head = chain.chain.head()
            with self._lock:
                known = self._cache.get(("verified", record))
                if known is None or (known[0] != head and (head.rows <= known[0].rows or time.monotonic() > known[3])):
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
                    known = (head, *outcome, time.monotonic() + 20 * (time.monotonic() - begun))
                    self._cache["verified", record] = known
        return known[1], known[2]


def _within(budget: Budget, rows: list[Row], now: float) -> list[Cost]:
    since = budget.since(now)
    return [
        Cost.from_dict(row.body["cost"])
        for row in rows
        if row.body["time"] <= now and (since is None or row.body["time"] >= since)
    ]


def _history(budget: Budget, rows: list[Row], now: float) -> tuple[tuple[float, float], ...]:
    """What counted against the budget after each reservation, and after each one that left the period."""
    changes = {row.body["time"] for row in rows}
    if budget.period_days is not None:
        changes |= {at + DAY * budget.period_days + 1.0 for at in changes if at + DAY * budget.period_days < now}
    points = []
    for at in sorted(changes)[-MOST_POINTS:]:
        epsilon = against(budget, _within(budget, rows, at)).epsilon
        points.append((at, epsilon if math.isfinite(epsilon) else 0.0))
    return tuple(points)
