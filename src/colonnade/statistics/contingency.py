"""Contingency tables over the columns of several parties: one secure computation, noise once, no trusted party.

A record is a one-hot row at each party, and a table is a sum over records of products of such rows. What lies within
one party is combined there: a table within a party is a sum, a table of two parties has degree 2 however many columns
it has, and a table of three parties has degree 3. The last kind costs one more round and, for each record, the
product of its two smaller sides in shares. Rows travel in chunks, so memory does not grow with n.

One-hot rows are whole numbers already: gamma is 1, nothing is rounded. A record whose block or cell is missing is a
row of zeros: it counts in no table that involves it, and nobody learns that it is missing. The proofs are in
`contingency.claim.md`.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar, Self

import numpy as np
from numpy.typing import NDArray

from colonnade.data.aggregation import Values
from colonnade.errors import BadArguments, BadPrivacyParameter
from colonnade.federation.facts import PublicFacts
from colonnade.federation.job import Job
from colonnade.federation.party import Party
from colonnade.federation.plan import Plan
from colonnade.federation.roster import Roster
from colonnade.federation.run_folder import RunFolder
from colonnade.federation.step import Public, Release, step
from colonnade.privacy.cost import Cost, Relation
from colonnade.secure.bgw import lift, open_product
from colonnade.statistics.cells import Cells
from colonnade.statistics.circuit import held, multiply_level, put_away, term_sums
from colonnade.statistics.circuit_job import CircuitJob, multiply_cost, open_cost, share_cost
from colonnade.statistics.cohort_rows import CohortRows
from colonnade.statistics.contingency_layout import Layout, Names, Part, table_noise
from colonnade.statistics.joint import (
    View,
    account_notes,
    check_budget,
    check_view,
    colluders,
    deal,
    deal_drawn,
    noise_part,
    once,
)

if TYPE_CHECKING:
    from colonnade.federation.coordinator import Federation

# --- the coordinator's procedure --------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Contingency:
    """Noisy contingency tables.

    Parameters
    ----------
    tables : tuples of column names, for example [("age",), ("age", "sector")]: of any number of columns, and of at
        most three parties each.
    bins : cells of a numeric column, for all or as {column: number}; discrete columns have one for each category.
    epsilon, delta : a person's total over all tables. `epsilon=None` counts exactly, which is an unbounded release
        that every party must allow by name ("exact-tables").
    split : each table's share of the budget, in proportion: a table with twice the share has half the noise variance.
        Equal by default.
    view, relation : what the noise is calibrated for; see `docs/threat-model.md`.
    memory : bytes of one share in one round; less memory, more rounds.

    Returns
    -------
    `fit(federation)` gives `Tables`: `tables["scale", "removed"]` is an array of noisy counts, `noise_sd` their noise.

    Example
    -------
    >>> tables = co.Contingency(tables=(("scale", "removed"),), epsilon=1.0).fit(federation)
    >>> tables["scale", "removed"].shape
    (3, 2)
    """

    name: ClassVar[str] = "contingency"

    tables: tuple[Names, ...]
    bins: int | Mapping[str, int] = 10
    epsilon: float | None = 1.0
    delta: float = 1e-6
    split: tuple[float, ...] | None = None
    view: View = "client"
    relation: Relation = "zero-out"
    memory: int = 1 << 23

    def __post_init__(self) -> None:
        if any(isinstance(names, str) for names in self.tables):
            raise BadArguments("each table is a tuple of column names; write ('age',) for a table of one column.")
        object.__setattr__(self, "tables", tuple(tuple(names) for names in self.tables))
        check_budget(self.epsilon, self.delta)
        check_view(self.view)
        if self.split is not None:
            object.__setattr__(self, "split", tuple(float(one) for one in self.split))
            if len(self.split) != len(self.tables) or not all(0 < one < math.inf for one in self.split):
                raise BadPrivacyParameter(f"split must give each table a positive share, not {self.split!r}.")

    def options(self) -> dict[str, Any]:
        return {
            "tables": [list(names) for names in self.tables],
            "bins": dict(self.bins) if isinstance(self.bins, Mapping) else self.bins,
            "epsilon": self.epsilon,
            "delta": self.delta,
            "split": None if self.split is None else list(self.split),
            "view": self.view,
            "relation": self.relation,
            "memory": self.memory,
        }

    @classmethod
    def from_options(cls, options: Mapping[str, Any]) -> Self:
        return cls(**options)

    def fit(self, federation: Federation) -> Tables:
        """Run it; the run folder is in `federation.runs`."""
        return federation.run(self)[0]  # type: ignore[no-any-return]

    def layout(self, facts: PublicFacts, roster: Roster) -> Layout:
        """The public shape, with the noise that (epsilon, delta) needs."""
        roster.require_committee()
        numeric = dict.fromkeys(name for names in self.tables for name in names if not facts.column(name).discrete)
        absent = [name for name in numeric if isinstance(self.bins, Mapping) and name not in self.bins]
        if absent:
            raise BadArguments(f"bins does not say how many cells {', '.join(absent)} should have.")
        bins = {name: self.bins[name] if isinstance(self.bins, Mapping) else self.bins for name in numeric}
        mus: tuple[int, ...] = (0,) * len(self.tables)
        silent = Layout(facts=facts, roster=roster, tables=self.tables, bins=bins, mus=mus, memory=self.memory)
        silent.check()
        if self.epsilon is None:
            return silent
        mus = table_noise(
            self.split or (1.0,) * len(self.tables),
            epsilon=self.epsilon,
            delta=self.delta,
            parties=len(roster.names),
            colluders=colluders(roster, self.view),
            relation=self.relation,
        )
        return replace(silent, mus=mus)

    def plan(self, facts: PublicFacts, roster: Roster) -> Plan:
        layout = self.layout(facts, roster)
        return Plan(
            method=self.name,
            options=self.options(),
            stages=tuple(table_job(layout, self.view).phases()),
            notes=table_notes(layout, self.view, self.delta),
            delta=self.delta,
        )

    def execute(self, job: Job) -> Tables:
        return compute_tables(job, self.layout(job.facts, job.roster), self.view)


def table_job(layout: Layout, view: View) -> CircuitJob:
    return CircuitJob(
        layout,
        view,
        share=share_rows,
        multiply=multiply_rows,
        open_step=open_tables,
        rows="one-hot rows",
        results="counts",
    )


def table_notes(layout: Layout, view: View, delta: float) -> tuple[str, ...]:
    """The forecast of a plan: noise, account, bytes."""
    one, circuit = 4 * len(layout.field.primes) * layout.facts.n, layout.circuit
    sent = ", ".join(f"{party} {one * width:,}" for party, width in circuit.widths.items())
    size = [f"Bytes of one-hot rows that each holder receives: {sent}."] if sent else []
    if circuit.levels:
        size.append(f"Tables of three parties: each holder deals {one * circuit.level_width:,} bytes to each holder.")
    if not any(layout.mus):
        return ("Exact: no noise is added, and no privacy is claimed for the result.", *size)
    noise = [
        f"A cell of the table of {' x '.join(names)} carries noise with standard deviation {math.sqrt(2 * mu):.4g}."
        for names, mu in zip(layout.tables, layout.mus, strict=True)
    ]
    if len(set(layout.mus)) == 1:
        noise = [f"Each cell carries integer noise with standard deviation {math.sqrt(2 * layout.mus[0]):.4g}."]
    return (*noise, *account_notes(layout.roster, view=view, delta=delta, releases=layout.releases), *size)


def compute_tables(job: Job, layout: Layout, view: View) -> Tables:
    """All tables from one opening, each with its axes in the order in which its columns were named."""
    joined = table_job(layout, view).opened(job).astype(np.float64)
    ends = list(itertools.accumulate(layout.sizes))
    counts = {}
    for names, parts, end, size in zip(layout.tables, layout.parts, ends, layout.sizes, strict=True):
        order = [name for part in parts for name in part.columns]
        shape = [length for part in parts for length in part.shape]
        counts[names] = joined[end - size : end].reshape(shape).transpose([order.index(name) for name in names])
    return Tables(
        n=layout.facts.n,
        counts=counts,
        labels={name: one.labels for name, one in layout.cells.items()},
        noise_sd={names: math.sqrt(2 * mu) for names, mu in zip(layout.tables, layout.mus, strict=True)},
        simulated=job.simulated,
    )


@dataclass(frozen=True, kw_only=True)
class Tables:
    """Counts by table, axes in the order in which its columns were named, cells as in `labels`.

    `noise_sd` is the standard deviation of the noise on one cell (0 if exact); all noises are independent, so tables
    that share columns do not agree exactly, and a count may be negative.
    """

    n: int
    counts: Mapping[Names, NDArray[np.float64]]
    labels: Mapping[str, tuple[str, ...]]
    noise_sd: Mapping[Names, float]
    simulated: bool

    def __getitem__(self, names: Names) -> NDArray[np.float64]:
        return self.counts[names]

    def write(self, run: RunFolder) -> None:
        run.write_json(
            "result.json",
            {
                "kind": "tables",
                "n": self.n,
                "labels": {name: list(labels) for name, labels in self.labels.items()},
                "tables": [
                    {"columns": list(names), "counts": counts.tolist(), "noise_sd": self.noise_sd[names]}
                    for names, counts in self.counts.items()
                ],
                "simulated": self.simulated,
            },
        )


# --- the members' steps -----------------------------------------------------------------------------------


def _layout(public: Public | Party, plain: Mapping[str, Any]) -> Layout:
    return Layout.from_dict(public.facts, public.roster, plain)


def _share_cost(public: Public, *, layout: dict[str, Any], view: View, number: int) -> Cost:
    return share_cost(public, _layout(public, layout), view, number)


@step(cost=_share_cost)
def share_rows(me: Party, *, layout: dict[str, Any], view: View, number: int) -> Release:
    """Share one chunk of one-hot rows; with the first also the counts of one's own tables, and the noise."""
    known = _layout(me, layout)
    start, stop = known.circuit.chunk(number)
    if number == 0:
        deal_drawn(me, f"{known.tag}: noise", known.field, _noise(me, known))
        if me.name in known.local:
            parts = tuple(known.local[me.name])
            counts = me.aggregate(_names(parts), PartCounts(parts, known.cells))
            deal(me, f"{known.tag}: sums", known.field, counts)
    elif me.name in me.roster.committee:
        put_away(me, known.circuit, number - 1, len(known.circuit.levels))
    if me.name in known.circuit.widths:
        one_hot = np.zeros((stop - start, known.circuit.widths[me.name]), dtype=np.int8)
        mine = [factor for part, factor in known.factors.items() if part.party == me.name]
        for factor, codes in zip(mine, _shared_codes(me, known, number).T, strict=True):
            rows = np.flatnonzero(codes >= 0)
            one_hot[rows, factor.start + codes[rows]] = 1
        deal(me, f"{known.tag}: rows {number}", known.field, one_hot)
    return Release(None, "nothing: the shares travel sealed")


def _noise(me: Party, known: Layout) -> NDArray[np.int64]:
    """This member's part of the noise of all cells, table after table."""
    levels = itertools.groupby(zip(known.mus, known.sizes, strict=True), key=lambda one: one[0])
    return np.concatenate([noise_part(me, mu=mu, size=sum(size for _, size in same)) for mu, same in levels])


def _names(parts: Sequence[Part]) -> list[str]:
    return list(dict.fromkeys(name for part in parts for name in part.columns))


def _shared_codes(me: Party, known: Layout, number: int) -> NDArray[np.integer[Any]]:
    """For one chunk of the cohort each record's cell in each part that is shared; -1 where something is missing."""
    parts = tuple(part for part in known.factors if part.party == me.name)
    wanted = CohortRows(
        label=f"{known.tag}: codes", ranges=known.circuit.chunks, width=len(parts), dtype=np.int32, fill=-1
    )
    return wanted.range(me, number, lambda: me.mapped(_names(parts), PartCodes(parts, known.cells)))


@dataclass(frozen=True, eq=False)
class PartCodes:
    """Each record's cell in each part; -1 where one of the cells is empty."""

    parts: tuple[Part, ...]
    cells: Mapping[str, Cells]

    def __call__(self, at: NDArray[np.int64], values: Values) -> tuple[NDArray[np.int64], NDArray[np.int32]]:
        found = np.empty((len(at), len(self.parts)), dtype=np.int32)
        cell = {name: self.cells[name].codes(values[name]) for name in _names(self.parts)}
        for position, part in enumerate(self.parts):
            joint = np.ravel_multi_index([np.maximum(cell[name], 0) for name in part.columns], part.shape)
            here = np.all([cell[name] >= 0 for name in part.columns], axis=0)
            found[:, position] = np.where(here, joint, -1)
        return at, found


@dataclass(frozen=True, eq=False)
class PartCounts:
    """How many records are in each cell of each part, part after part."""

    parts: tuple[Part, ...]
    cells: Mapping[str, Cells]

    def of(self, at: NDArray[np.int64], values: Values) -> NDArray[np.int64]:
        codes = PartCodes(self.parts, self.cells)(at, values)[1]
        return np.concatenate(
            [np.bincount(one[one >= 0], minlength=part.size) for one, part in zip(codes.T, self.parts, strict=True)]
        )

    def merge(self, one: NDArray[np.int64], other: NDArray[np.int64]) -> NDArray[np.int64]:
        return one + other


@step(cost=multiply_cost)
def multiply_rows(me: Party, *, layout: dict[str, Any], view: View, number: int, level: int) -> Release:
    """For tables of three parties: products of two parties' one-hot rows, dealt again to return to degree t."""
    multiply_level(me, _layout(me, layout).circuit, number, level)
    return Release(None, "nothing: the shares travel sealed")


@step(cost=open_cost)
def open_tables(me: Party, *, layout: dict[str, Any], view: View) -> Release:
    """This holder's share of all tables: sums of products of its shares, plus every member's noise."""
    known = _layout(me, layout)
    once(me, known.label)
    noise, counts = held(me, known.circuit, "noise"), held(me, known.circuit, "sums")
    products = iter(term_sums(me, known.circuit))
    used = dict.fromkeys(known.local, 0)
    out = np.empty((len(known.field.primes), known.size), dtype=np.int32)
    start = 0
    for parts, size in zip(known.parts, known.sizes, strict=True):
        if len(parts) > 1:
            product = next(products)
        else:
            party = parts[0].party
            product = lift(known.field, counts[party][:, used[party] : used[party] + size])
            used[party] += size
        here = slice(start, start + size)
        shaped = {member: one[:, here].reshape(-1, *product.shape) for member, one in noise.items()}
        out[:, here] = open_product(product, noise=shaped, parties=me.roster.names).reshape(len(out), -1)
        start += size
    return Release(out, "a share of noisy counts")
