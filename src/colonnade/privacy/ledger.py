"""How much a party is willing to spend, and its durable record of what it has spent.

Three kinds of rows. A **reservation** is made when a job is approved: one per stage, with the most requests the
stage may make and its total cost as one composed event; this is what counts against the budget. A **debit** is made for
each request, before the step sees any data, and must fit into its reservation; it is on the disk before anything of the
answer leaves (see `federation.party`). A debit is bound to (job, sequence number, hash of the request): the same
request is debited once, however often it comes back. A reservation is **withdrawn** when its job is over and nothing
was ever asked under it, since another party refused the job, say. After the first debit nothing is refunded.

In a row the name of a stage stands under "phase", as it has from the first version on: a chain is never rewritten.
"""

from __future__ import annotations

import math
import time
from collections import Counter, OrderedDict
from collections.abc import Callable, Collection, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from colonnade.durable import GENESIS, Chain, Database, Head, Row
from colonnade.errors import (
    BadPrivacyParameter,
    BeyondReservation,
    BudgetExceeded,
    CorruptRecord,
    ReplayMismatch,
    UnboundedNotAllowed,
)
from colonnade.formatting import timestamp
from colonnade.privacy.accounting import Guarantee, check_delta, check_epsilon, dominated, guarantee, kinds_of, rdp_sum
from colonnade.privacy.cost import Cost, Relation, Unit, compose
from colonnade.view.blocks import Figure, Table, View
from colonnade.view.render import Viewed

DAY = 86_400.0
DEFAULT_DELTA = 1e-6
DRIFT = 300.0
"""Seconds by which a clock may be corrected while a party runs."""
MOST_POINTS = 48
"""Of a history."""


@dataclass(frozen=True, kw_only=True)
class Budget:
    """At most (epsilon, delta) per record; with `period_days`, within any window of that length.

    A period's budget renews itself, a person's loss does not: a page that shows a period also shows the lifetime total.

    Parameters
    ----------
    epsilon, delta : the most that one party may spend.
    relation : "zero-out" or "replace".
    period_days : the length of the window; None for ever.

    Returns
    -------
    A value that a party's ledger checks before it debits anything.

    Example
    -------
    >>> co.Budget(epsilon=3.0, delta=1e-6, period_days=365).epsilon
    3.0
    """

    epsilon: float
    delta: float = 0.0
    relation: Relation = "zero-out"
    period_days: float | None = None

    def __post_init__(self) -> None:
        check_epsilon(self.epsilon)
        check_delta(self.delta)
        if self.period_days is not None and not self.period_days > 0:
            raise BadPrivacyParameter(f"period_days must be positive, not {self.period_days!r}.")

    def since(self, now: float) -> float | None:
        """When the window that ends now began; None: what was ever spent counts."""
        return None if self.period_days is None else now - DAY * self.period_days

    def to_dict(self) -> dict[str, Any]:
        """Plain values."""
        return asdict(self)


@dataclass(frozen=True, kw_only=True)
class Reservation:
    """What one stage of an approved plan may spend at this party."""

    stage: str
    step: str
    count: int
    cost: Cost


@dataclass
class _Tally:
    """One job's rows, added up as far as row `read`: a chain only grows, so nothing is ever read twice."""

    rollbacks: int
    read: int = 0
    requests: dict[int, str] = field(default_factory=dict)
    """{sequence number: hash of the request} of the debits."""
    reserved: dict[str, Reservation] = field(default_factory=dict)
    spent: dict[str, Counter[Cost]] = field(default_factory=dict)
    """{stage: equal costs, counted}."""
    numbers: dict[int, int] = field(default_factory=dict)
    """{sequence number: how many requests of its stage came before it}."""


_TALLIES = 16
"""Jobs whose tallies stay in memory."""


class Ledger(Viewed):
    """Append-only and hash-chained (see `colonnade.durable`)."""

    def __init__(
        self,
        database: Database,
        *,
        budget: Budget | None = None,
        clock: Callable[[], float] = time.time,
        create: bool = True,
        steady: Callable[[], float] | None = None,
    ) -> None:
        """`steady` is a clock that nobody can set. With it, a `clock` that is set ahead while this object lives does
        not bring a budget's period to an end."""
        self.database = database
        self.budget = budget
        self.chain = Chain(database, "ledger", indexed=("kind", "job", "seq"), create=create)
        self._clock = clock
        self._steady = steady
        self._opened = (clock(), steady()) if steady is not None else (0.0, 0.0)
        self._tallies: OrderedDict[str, _Tally] = OrderedDict()

    def _now(self) -> float:
        """The clock, but never earlier than the newest row, and never further on than the steady clock allows: a budget
        is renewed neither by a clock set back nor by one set ahead."""
        newest = self.database.execute("SELECT json_extract(body, '$.time') FROM ledger ORDER BY number DESC LIMIT 1")
        now = float(self._clock())
        if self._steady is not None:
            now = min(now, self._opened[0] + (self._steady() - self._opened[1]) + DRIFT)
        return max(now, float(newest[0][0]) if newest else 0.0)

    def check(self, wanted: Sequence[Cost], *, allow: Collection[str] = ()) -> None:
        """Refuse what may not be spent: an unbounded release that is not allowed by name, or more than the budget; and
        what no accountant can read, with or without a budget: a row stays for ever, and no total would include it."""
        leaves = [leaf for cost in wanted for leaf in cost.leaves() if leaf.mechanism == "unbounded"]
        lacking = {str(leaf["name"]): str(leaf["discloses"]) for leaf in leaves if leaf["name"] not in allow}
        if lacking:
            shown = "; ".join(f"{name} ({discloses})" for name, discloses in lacking.items())
            names = ", ".join(f'"{name}"' for name in lacking)
            raise UnboundedNotAllowed(
                f"the job would disclose without a bound: {shown}. Allow it by name (allow = [{names}] in this party's"
                " policy) or choose a private method.",
                disclosed=f"not allowed here: {names}.",
            )
        rdp_sum(kinds_of(_bounded(wanted)))
        self._check_budget(wanted, self._now())

    def reserve(self, job: str, reservations: Sequence[Reservation], *, allow: Collection[str] = ()) -> None:
        """Reserve a whole plan, or nothing."""
        with self.database.transaction():
            if self.chain.rows(job=job, kind="reserve"):
                return
            self.check([reservation.cost for reservation in reservations], allow=allow)
            now = self._now()
            self.chain.append(
                *(
                    {
                        "kind": "reserve",
                        "time": now,
                        "job": job,
                        "phase": reservation.stage,
                        "step": reservation.step,
                        "count": reservation.count,
                        "cost": reservation.cost.to_dict(),
                    }
                    for reservation in reservations
                )
            )

    def withdraw(self, job: str) -> None:
        """Take off what is reserved for a job that is over, if nothing of it was debited: then nothing has left."""
        with self.database.transaction():
            kinds = {row.body["kind"] for row in self.chain.rows(job=job)}
            if kinds == {"reserve"}:
                body = {"kind": "withdraw", "time": self._now(), "job": job, "phase": "", "step": ""}
                self.chain.append({**body, "cost": compose([]).to_dict()})

    def counted(self) -> list[Row]:
        """The reservations that count: all that were not withdrawn."""
        withdrawn = {row.body["job"] for row in self.chain.rows(kind="withdraw")}
        return [row for row in self.chain.rows(kind="reserve") if row.body["job"] not in withdrawn]

    def reserved(self, job: str) -> Head:
        """The head that a job's reservation left; the empty chain's where nothing is reserved yet."""
        rows = self.chain.rows(kind="reserve", job=job)
        return Head(rows[-1].number, rows[-1].hash) if rows else Head(0, GENESIS)

    def contains(self, head: Head) -> bool:
        """Whether this is still the ledger that handed out `head`, or one that answers for having lost it."""
        if head.rows == 0:
            return True
        if self.database.execute("SELECT 1 FROM ledger WHERE number = ? AND hash = ?", (head.rows, head.hash)):
            return True
        return bool(
            self.database.execute(
                "SELECT 1 FROM ledger WHERE kind = 'reserve' AND json_extract(body, '$.lost.rows') = ?"
                " AND json_extract(body, '$.lost.hash') = ?",
                (head.rows, head.hash),
            )
        )

    def make_up(self, job: str, reservations: Sequence[Reservation], *, lost: Head | None) -> None:
        """Count what was spent after the copy that this ledger was restored from: whatever the budget says, since it
        is spent. No request can be made under it. `lost` is the head that the ledger had handed out by then."""
        with self.database.transaction():
            now = self._now()
            counted = [(f"recovered: {reserved.stage}", reserved.step, reserved.cost) for reserved in reservations]
            for stage, step, cost in counted or [("recovered", "", compose([]))]:
                body = {"kind": "reserve", "time": now, "job": job, "phase": stage, "step": step, "count": 0}
                noted = {} if lost is None else {"lost": {"rows": lost.rows, "hash": lost.hash}}
                self.chain.append({**body, "cost": cost.to_dict(), **noted})

    def _check_budget(self, wanted: Sequence[Cost], now: float) -> None:
        if self.budget is None:
            return
        total = against(self.budget, self.costs(since=self.budget.since(now)), wanted)
        if total.epsilon > self.budget.epsilon * (1 + 1e-9):
            if math.isinf(total.epsilon):
                why = "is too small for what this job would release"
                raise BudgetExceeded(
                    f"the budget's delta, {self.budget.delta:.3g}, {why}; state one that is larger than those of all"
                    " its jobs together (delta = 1e-5, say).",
                    disclosed=f"the delta of its budget {why}; ask its operator for a larger one.",
                )
            spent = against(self.budget, self.costs(since=self.budget.since(now)), [])
            left = max(self.budget.epsilon - spent.epsilon, 0.0)
            raise BudgetExceeded(
                f"the job would bring this party's spending to epsilon {total.epsilon:.4g} at delta"
                f" {self.budget.delta:.3g}, above the budget of {self.budget.epsilon:.4g}, of which {left:.4g} is left;"
                " ask for less, or wait for the party's operator to raise the budget.",
                disclosed=f"less than epsilon {rounded_up(left):g} is left of the budget; ask for less, or ask its"
                " operator to raise it.",
            )

    def number(self, job: str, seq: int, stage: str) -> int:
        """How many requests of a stage came before the one with this sequence number, which is one that was debited, or
        the next: requests are numbered 1, 2, 3, ... without a gap, so that their order is that of the plan."""
        tally = self._tally(job)
        if seq in tally.numbers:
            return tally.numbers[seq]
        if seq != len(tally.numbers) + 1:
            raise BeyondReservation(
                f"request {seq} of job {job} is out of order; request {len(tally.numbers) + 1} is next."
            )
        return tally.spent.get(stage, Counter()).total()

    def begun(self, job: str) -> set[str]:
        """The stages of a job of which something was asked."""
        return set(self._tally(job).spent)

    def debit(self, *, job: str, seq: int, request: str, stage: str, step: str, cost: Cost) -> bool:
        """Debit one request. False when this same request had been debited before."""
        with self.database.transaction():
            tally = self._tally(job)
            if seq in tally.requests:
                if tally.requests[seq] != request:
                    raise ReplayMismatch(
                        f"request {seq} of job {job} was debited before for other content; use a new sequence number."
                    )
                return False
            reserved = tally.reserved.get(stage)
            if reserved is None or reserved.step != step:
                raise BeyondReservation(f"stage {stage!r} with step {step!r} is not in the approved plan of job {job}.")
            spent = tally.spent.get(stage, Counter())
            if spent.total() >= reserved.count:
                raise BeyondReservation(
                    f"stage {stage!r} of job {job} has made all of its {reserved.count} approved requests."
                )
            if not dominated([*(equal.times(count) for equal, count in spent.items()), cost], [reserved.cost]):
                raise BeyondReservation(
                    f"request {seq} would spend more than stage {stage!r} of job {job} has reserved; approve a plan"
                    " that covers it."
                )
            self.chain.append(
                {
                    "kind": "debit",
                    "time": self._now(),
                    "job": job,
                    "seq": seq,
                    "request": request,
                    "phase": stage,
                    "step": step,
                    "cost": cost.to_dict(),
                }
            )
            return True

    def _tally(self, job: str) -> _Tally:
        """The job's rows up to now. Another process may have written some (the operator's approval)."""
        tally = self._tallies.get(job)
        if tally is None or tally.rollbacks != self.database.rollbacks:
            tally = self._tallies[job] = _Tally(self.database.rollbacks)
            while len(self._tallies) > _TALLIES:
                self._tallies.popitem(last=False)
        self._tallies.move_to_end(job)
        for row in self.chain.rows(after=tally.read, job=job):
            tally.read, body = row.number, row.body
            cost = Cost.from_dict(body["cost"])
            if body["kind"] == "reserve":
                reserved = Reservation(stage=body["phase"], step=body["step"], count=body["count"], cost=cost)
                tally.reserved.setdefault(reserved.stage, reserved)
            elif body["kind"] == "withdraw":
                tally.reserved.clear()
            else:
                spent = tally.spent.setdefault(body["phase"], Counter())
                tally.requests[body["seq"]] = body["request"]
                tally.numbers[body["seq"]] = spent.total()
                spent[cost] += 1
        return tally

    def costs(self, *, job: str | None = None, since: float | None = None) -> list[Cost]:
        """What counts as spent: everything that was reserved and not withdrawn. Joint ids are dropped: inside one
        party's ledger every release counts, whatever name it was given."""
        rows = [row for row in self.counted() if job is None or row.body["job"] == job]
        costs = [Cost.from_dict(row.body["cost"]) for row in rows if since is None or row.body["time"] >= since]
        return [_alone(cost) for cost in costs]

    def debited(self, job: str) -> Cost:
        """All debits of one job, composed; each counts, also those of one joint release."""
        counts: Counter[Cost] = Counter()
        for row in self.chain.rows(kind="debit", job=job):
            cost = Cost.from_dict(row.body["cost"])
            counts[replace(cost, count=1)] += cost.count
        return compose(replace(cost, count=count) for cost, count in counts.items())

    def spent(
        self,
        *,
        delta: float = DEFAULT_DELTA,
        unit: Unit = "record",
        relation: Relation = "zero-out",
        since: float | None = None,
    ) -> Guarantee:
        """This party's releases only: a person's total also composes over the other parties' releases."""
        return guarantee(self.costs(since=since), delta=delta, unit=unit, relation=relation)

    def __repr__(self) -> str:
        budget = "" if self.budget is None else f" of a budget of epsilon {self.budget.epsilon:g}"
        return f"<Ledger: {self.spent()} reserved{budget}, {self.chain.head().rows:,} rows>"

    def view(self) -> View:
        """What was spent over time, and each job's part."""
        rows, now = self.counted(), self._now()
        scale = self.budget or Budget(epsilon=1.0, delta=DEFAULT_DELTA)
        by_job: dict[str, list[Row]] = {}
        for row in rows:
            by_job.setdefault(row.body["job"], []).append(row)
        listed = tuple(
            (job, timestamp(own[0].body["time"]), str(guarantee(self.costs(job=job), delta=scale.delta)))
            for job, own in by_job.items()
        )
        stated = None if self.budget is None else self.budget.epsilon
        points = history_of(scale, rows, now)
        return View(
            title=f"Ledger of {len(by_job)} job{'' if len(by_job) == 1 else 's'}",
            quality=f"In all {self.spent(delta=scale.delta)}, of this party's releases alone.",
            answer=(
                *((spending_figure(points, stated, now),) if points else ()),
                Table(title="Jobs", head=("job", "approved", "reserved"), rows=listed, terminal=True),
            ),
        )

    def verify(self, *, expect: Head | None = None) -> Head:
        """Chain intact, every debit inside a reservation that precedes it, and none in a job that was withdrawn."""
        head = self.chain.verify(expect=expect)
        reserved: dict[tuple[str, str], int] = {}
        withdrawn = {row.body["job"] for row in self.chain.rows(kind="withdraw")}
        for row in self.chain.rows():
            where = (row.body["job"], row.body["phase"])
            if row.body["kind"] == "withdraw":
                continue
            if row.body["kind"] == "reserve":
                reserved[where] = 0 if row.body["job"] in withdrawn else row.body["count"]
            elif reserved.get(where, 0) <= 0:
                raise CorruptRecord(f"ledger row {row.number} debits more than was reserved; restore a back-up.")
            else:
                reserved[where] -= 1
        return head


def rounded_up(left: float) -> float:
    """To one digit: what is told of a budget says little about what else was spent."""
    if left <= 0:
        return 0.0
    unit = 10.0 ** math.floor(math.log10(left))
    return math.floor(left / unit + 1) * unit


def against(budget: Budget, spent: Sequence[Cost], wanted: Sequence[Cost] = ()) -> Guarantee:
    """What counts against a budget: every bounded release. One without a bound is a matter of `allow`."""
    return guarantee(_bounded([*spent, *wanted]), delta=budget.delta, relation=budget.relation)


def within(budget: Budget, rows: Sequence[Row], now: float) -> list[Cost]:
    """What counts at a time: the reservations up to then, of the budget's period."""
    since = budget.since(now)
    return [
        Cost.from_dict(row.body["cost"])
        for row in rows
        if row.body["time"] <= now and (since is None or row.body["time"] >= since)
    ]


def history_of(budget: Budget, rows: Sequence[Row], now: float) -> tuple[tuple[float, float], ...]:
    """What counted against the budget after each reservation, and after each one that left the period."""
    changes = {row.body["time"] for row in rows}
    if budget.period_days is not None:
        period = DAY * budget.period_days
        changes |= {when + period + 1.0 for when in changes if when + period < now}
    points = []
    for when in sorted(changes)[-MOST_POINTS:]:
        epsilon = against(budget, within(budget, rows, when)).epsilon
        points.append((when, epsilon if math.isfinite(epsilon) else 0.0))
    return tuple(points)


def spending_figure(points: Sequence[tuple[float, float]], budget: float | None, now: float) -> Figure:
    """What counted against the budget, over time."""
    first, last = points[0][0], points[-1][1]
    return Figure(
        name="spending",
        chart="stair",
        data={
            "times": [when for when, _ in points],
            "values": [epsilon for _, epsilon in points],
            "now": now,
            **({} if budget is None else {"budget": budget}),
        },
        label=f"Epsilon spent since {time.strftime('%d %B %Y', time.gmtime(first))}, now {last:.3g}",
        x="time of approval (UTC)",
        y="epsilon",
        caption="Epsilon after each approval." + (" The dashed line is the budget." if budget is not None else ""),
    )


def budget_figure(spent: float, what: str, after: float | None, budget: float) -> Figure:
    """A budget in parts: spent, `what` would be spent with it (`after` in all), and left."""
    added = {} if after is None else {what: after - spent}
    more = "" if after is None else f"; {after:.3g} with {what}"
    return Figure(
        name="budget",
        chart="parts",
        data={"parts": {"spent": spent, **added}, "budget": budget},
        label=f"Spent {spent:.3g} of epsilon {budget:g}{more}",
        x="epsilon",
    )


def _bounded(costs: Sequence[Cost]) -> list[Cost]:
    return [leaf for cost in costs for leaf in _alone(cost).leaves() if not leaf.unbounded]


def since_boot() -> float:
    """Seconds that nobody can set, also while the machine sleeps where the system counts those."""
    return time.clock_gettime(getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC))


def _alone(cost: Cost) -> Cost:
    """The cost without its joint ids."""
    return replace(cost, joint=None, parts=tuple(_alone(part) for part in cost.parts))
