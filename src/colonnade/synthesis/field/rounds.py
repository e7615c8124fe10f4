"""Contingency tables on secret shares, in several rounds that depend on each other.

Each party shares its one-hot rows **once**. Coarse and fine tables are linear in the products of these shares, so the
shareholders compute every round from what they keep: bins are sums of shares, a pair is one product. What a round opens
is decided after the round before it; only its number of tables and its noise are fixed in the plan. A table that gets
several units of the budget is opened as many times with independent noise, and the coordinator averages.

The proofs are in `claim.md`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from colonnade.codec import plain
from colonnade.errors import BadArguments
from colonnade.federation.job import Job
from colonnade.federation.options import View
from colonnade.federation.party import Party
from colonnade.federation.roster import Roster
from colonnade.federation.stage import SEALED, Later, Stage, stage
from colonnade.federation.step import Public
from colonnade.privacy.cost import Cost, Unbounded
from colonnade.privacy.skellam import Skellam
from colonnade.secure.bgw import Product, cross, lift, open_product
from colonnade.secure.field import Field, Residues
from colonnade.secure.seeded import Shape, Share, materialize
from colonnade.statistics.joint import (
    COMPARING,
    EXACT,
    SharedStatistic,
    account_notes,
    binding,
    colluders,
    compare_shares,
    field_for,
    open_shares,
    share_rows,
)
from colonnade.statistics.shares import deal_large, deal_large_noise, dealt_large, join, messages, shares_of
from colonnade.statistics.tables import CELL, TablesLayout
from colonnade.synthesis.field.fit import Measurement
from colonnade.synthesis.field.graph import Names
from colonnade.synthesis.field.schema import CUTS_RULE, PrivateCuts, Schema, TableQuery, cell_codes

LABEL = "sqm tables"
MAXIMUM_OPENED = 1 << 23
"""Cells that one round opens, each unit counted."""
EXACT_SD = 0.5
"""Weight of an exact count in a fit: far below any noise."""
OPENED = ("one-way tables", "coarse pairs", "selected tables")


# --- the public shape of one round ----------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Round(SharedStatistic):
    """The public shape of one round: its tables, and the mu of each cell (0: exact).

    `names` and `edges` are those of the schema; `label` follows from the number. The first round shares the rows of all
    rounds; a later one shares its noise, and the joint one-hot rows that its tables of three columns need.
    """

    kind: ClassVar[str] = "field round"
    exact: ClassVar[tuple[str, str]] = TablesLayout.exact
    rows: ClassVar[str] = "one-hot rows"
    results: ClassVar[str] = "noisy counts"
    adaptive: ClassVar[tuple[str, ...]] = ("tables", "edges")

    names: Names
    edges: Mapping[str, tuple[float, ...]]
    number: int
    tables: tuple[TableQuery, ...]
    mu: int
    largest_mu: int

    def check(self) -> None:
        if min(self.number, self.mu, self.largest_mu) < 0 or self.label != round_label(self.number):
            raise BadArguments(
                "the numbers of a round of tables must not be negative, and its label follows from them."
            )
        if self.mu > self.largest_mu or not self.tables or any(table.units < 1 for table in self.tables):
            raise BadArguments("a round opens at least one table, each at least once, with mu up to the largest.")
        for table in self.tables:
            if not 1 <= len(set(table.columns)) == len(table.columns) == len(table.bins) <= 3:
                raise BadArguments("a table has one to three columns, each once, and bins for each.")
            for name, bins in zip(table.columns, table.bins, strict=True):
                if name not in self.schema.sizes:
                    raise BadArguments(f"column {name!r} is not in the schema of this job.")
                if bins is not None and (
                    len(bins) != self.schema.sizes[name] or set(bins) != set(range(max(bins) + 1))
                ):
                    raise BadArguments(f"the bins of {name!r} must give each of its cells one of 0, 1, 2, ...")
            binned = any(bins is not None for bins in table.bins)
            if len(table.columns) == 3 and (binned or self.schema.joint_pair(table.columns) is None):
                raise BadArguments("a table of three columns has two of them at one party, and no bins.")
        if sum(self.opened) > MAXIMUM_OPENED:
            raise BadArguments(f"a round opens at most {MAXIMUM_OPENED:,} counts; ask for coarser tables.")

    @cached_property
    def schema(self) -> Schema:
        return Schema(self.facts, self.edges, self.names)

    @property
    def parties(self) -> Names:
        return self.schema.parties

    @property
    def sensitivity(self) -> dict[str, Any]:
        """One table opened once: a record adds 1 to one cell or to none."""
        return CELL

    def cost(self, public: Public, view: View) -> Cost:
        """Every unit of every table."""
        pooled = colluders(self.roster, view)
        unit = self.release(self.mu, colluders=pooled, joint=f"{public.job} {self.label}")
        return unit.times(sum(table.units for table in self.tables))

    def releases(self, colluders: int) -> list[Cost]:
        return [self.release(self.mu, colluders=colluders).times(table.units) for table in self.tables]

    @property
    def chunks(self) -> list[tuple[int, int]]:
        return [(0, self.facts.n)]

    @property
    def openings(self) -> list[int]:
        return [sum(self.opened)]

    def axes(self, table: TableQuery) -> Names:
        """The order in which a table's axes are opened: of three columns, the joint pair last."""
        if len(table.columns) < 3:
            return table.columns
        pair = self.schema.joint_pair(table.columns) or ()
        return (*(name for name in table.columns if name not in pair), *pair)

    def shape(self, table: TableQuery) -> tuple[int, ...]:
        """Of the table as it is opened."""
        bins = dict(zip(table.columns, table.bins, strict=True))
        sizes = ((self.schema.sizes[name], bins[name]) for name in self.axes(table))
        return tuple(size if coarse is None else max(coarse) + 1 for size, coarse in sizes)

    @cached_property
    def opened(self) -> list[int]:
        """Counts opened for each table, units included."""
        return [math.prod(self.shape(table)) * table.units for table in self.tables]

    @cached_property
    def joints(self) -> list[Names]:
        """The joint one-hot rows that tables of three columns need, each once: two columns that one party has."""
        return list(dict.fromkeys(self.axes(table)[1:] for table in self.tables if len(table.columns) == 3))

    @cached_property
    def field(self) -> Field:
        """One field for the rows of all rounds: it holds n and the largest noise."""
        return field_for(self.facts.n, self.largest_mu, self.roster)

    @cached_property
    def rows_tag(self) -> str:
        """Of the rows, which all rounds share."""
        return binding(f"{LABEL} rows", {"schema": self.schema.to_dict(), "largest_mu": self.largest_mu})

    @property
    def mail_tags(self) -> tuple[str, ...]:
        return (self.tag, self.rows_tag)

    def joint_tag(self, pair: Names) -> str:
        return f"{self.tag}: joint {' x '.join(pair)}"

    # --- what members do ----------------------------------------------------------------------------------

    def share(self, me: Party, number: int) -> None:
        """One's rows, with the first round; and the joint rows that this round's tables need."""
        if self.number == 0:
            starts = self.schema.starts(me.name)
            codes = cell_codes(me, self.schema, list(starts))
            rows = np.zeros((me.facts.n, sum(stop - start for start, stop in starts.values())), dtype=np.int8)
            for name, (start, _) in starts.items():
                present = np.flatnonzero(codes[name] >= 0)
                rows[present, start + codes[name][present]] = 1
            deal_large(me, self.rows_tag, self.field, rows)
        for pair in self.joints:
            if self.facts.owner(pair[0]) == me.name:
                deal_large(me, self.joint_tag(pair), self.field, self._joint_rows(me, pair))

    def _joint_rows(self, me: Party, pair: Names) -> NDArray[np.int8]:
        codes = cell_codes(me, self.schema, pair)
        shape = tuple(self.schema.sizes[name] for name in pair)
        rows = np.zeros((me.facts.n, math.prod(shape)), dtype=np.int8)
        present = np.flatnonzero(np.all([codes[name] >= 0 for name in pair], axis=0))
        rows[present, np.ravel_multi_index([codes[name][present] for name in pair], shape)] = 1
        return rows

    def share_noise(self, me: Party, number: int) -> None:
        deal_large_noise(me, f"{self.tag}: noise", self.field, mu=self.mu, size=sum(self.opened))

    def combine(self, me: Party, number: int) -> Residues:
        """Products of the rows that this holder keeps, plus every member's noise, for each unit of each table."""
        layers = len(self.field.primes)
        rows = messages(me, self.rows_tag, self.parties, layers=layers, keep=True)
        shapes: dict[str, tuple[int, ...]] = {
            party: (self.facts.n, sum(self.schema.sizes[name] for name in self.schema.of(party)))
            for party in self.parties
        }
        products = self._products(me, shares_of(me, rows, self.field, shapes))
        size = sum(self.opened)
        dealt = dealt_large(me, f"{self.tag}: noise", me.roster.names, self.field, lengths=(size,))
        noise = {member: materialize(share) for member, share in dealt.items()}
        opened = np.empty((layers, size), dtype=np.int32)
        start = 0
        for table, product in zip(self.tables, products, strict=True):
            cells = math.prod(product.shape)
            for _ in range(table.units):
                unit = slice(start, start + cells)
                shaped = {member: drawn[:, unit].reshape(layers, *product.shape) for member, drawn in noise.items()}
                opened[:, unit] = open_product(product, noise=shaped, parties=me.roster.names).reshape(layers, -1)
                start += cells
        return opened

    def _products(self, me: Party, shares: Mapping[str, Share]) -> list[Product]:
        """This holder's share of each table, summed over blocks of records."""
        schema, field = self.schema, self.field
        joints: dict[Names, Share] = {}
        for pair in self.joints:
            owner, width = self.facts.owner(pair[0]), math.prod(schema.sizes[name] for name in pair)
            joints[pair] = dealt_large(me, self.joint_tag(pair), [owner], field, lengths=(self.facts.n, width))[owner]
        place = {name: cells for party in shares for name, cells in schema.starts(party).items()}
        needed = {key for table in self.tables for key in zip(table.columns, table.bins, strict=True)}
        totals: list[Product] = []
        for block in range(Shape((self.facts.n,)).blocks):
            rows = {party: share.block(block) for party, share in shares.items()}
            joint = {pair: share.block(block) for pair, share in joints.items()}
            columns: dict[tuple[str, tuple[int, ...] | None], Residues] = {}
            for name, bins in needed:
                own = rows[self.facts.owner(name)][:, :, slice(*place[name])]
                columns[name, bins] = own if bins is None else _summed(field, own, bins)
            for position, table in enumerate(self.tables):
                keys = list(zip(table.columns, table.bins, strict=True))
                if len(keys) == 1:
                    product = lift(field, field.sum(columns[keys[0]]))
                elif len(keys) == 2:
                    product = cross(field, columns[keys[0]], columns[keys[1]])
                else:
                    other, *rest = self.axes(table)
                    product = cross(field, columns[other, None], joint[tuple(rest)])
                if block:
                    totals[position] = totals[position] + product
                else:
                    totals.append(product)
        return totals


def _summed(field: Field, rows: Residues, bins: Sequence[int]) -> Residues:
    """Shares of coarse one-hot rows: the sum of a bin's cells is linear, so each shareholder takes it alone."""
    bin_of: NDArray[np.int64] = np.array(bins)
    return np.stack([field.sum(rows[:, :, bin_of == number], axis=1) for number in range(max(bins) + 1)], axis=2)


def round_label(number: int) -> str:
    return f"{LABEL} {number}"


def unit_cost(mu: int, roster: Roster, view: View, *, colluding: int | None = None) -> Cost:
    """One unit: one table opened once."""
    if not mu:
        return Unbounded(*TablesLayout.exact)
    pooled = colluders(roster, view) if colluding is None else colluding
    return Skellam(mu, parties=len(roster.names), colluders=pooled, **CELL)


# --- the coordinator's procedure --------------------------------------------------------------------------------


class TableRounds:
    """All rounds: round k opens at most `units[k]` tables, with noise mus[k] (0: exact).

    Every data party is charged for every table, whether or not it has a column in it: which tables are measured is
    decided by what was released before, and a person's total counts each joint release once.
    """

    def __init__(
        self,
        schema: Schema,
        roster: Roster,
        view: View,
        *,
        units: Sequence[int],
        mus: Sequence[int],
        cuts: PrivateCuts | None = None,
    ) -> None:
        roster.require_committee()
        self.roster, self.view, self.units, self.mus = roster, view, tuple(units), tuple(mus)
        self.schema, self.cuts = schema, cuts
        sizes = sorted(schema.sizes.values(), reverse=True)
        largest = math.prod(sizes[:2])
        cells = max(min(count * largest, sum(sizes) ** 2) for count in units)
        layers = len(field_for(schema.facts.n, max(mus), roster).primes)
        widths = [sum(schema.sizes[name] for name in schema.of(party)) for party in schema.parties]
        smallest = min(schema.sizes, key=schema.sizes.__getitem__)
        layouts = [self.layout(schema, k, [TableQuery.of((smallest,), units=count)]) for k, count in enumerate(units)]
        examples = [
            {"layout": layout.to_dict(), "view": view, "number": 0, "chosen": chosen_for(layout)} for layout in layouts
        ]
        rules = [f"round {k}: at most {units[k]} tables, each count with mu {mus[k]}" for k in range(len(units))]
        cut = CUTS_RULE if cuts is not None and cuts.stages else "the cells of the columns"
        chosen = f"tables of {cut}, chosen from what was released before"

        def within(rules: Sequence[str]) -> Later:
            return Later("; ".join([chosen, *rules]), self._allowed)

        public: dict[str, Any] = {"facts": schema.facts, "roster": roster}
        self.share_rows = stage(
            f"{LABEL}: share rows",
            share_rows,
            dict.fromkeys(roster.names, examples[:1]),
            audience=SEALED,
            discloses="secret shares of one-hot rows and of noise",
            reply_bytes=3 * layers * schema.facts.n * max(widths),
            later={"chosen": within(rules[:1])},
            **public,
        )
        self.share_noise = _free_once(
            stage(
                f"{LABEL}: share noise",
                share_rows,
                dict.fromkeys(roster.names, examples[1:]),
                audience=SEALED,
                discloses="secret shares of noise, and of joint one-hot rows for tables of three columns",
                reply_bytes=3 * layers * cells,
                later={"chosen": within(rules[1:])},
                **public,
            )
        )
        self.compare = _free_once(
            stage(
                f"{LABEL}: compare",
                compare_shares,
                dict.fromkeys(roster.committee, examples),
                later={"chosen": within(rules)},
                **COMPARING,
                **public,
            )
        )
        self.open = _free_once(
            stage(
                f"{LABEL}: open",
                open_shares,
                dict.fromkeys(roster.committee, examples),
                discloses="shares of the noisy counts, which the coordinator joins",
                reply_bytes=4 * layers * cells,
                later={"chosen": within(rules)},
                **public,
            )
        )
        self.stages = tuple(
            asked for asked in (self.share_rows, self.compare, self.open, self.share_noise) if asked.costs
        )

    def _allowed(self, chosen: Any, planned: Any) -> bool:
        """No more units than the round has, of tables of these columns, and other edges only from private cuts."""
        units = [table["units"] for table in chosen["tables"]]
        (most,) = (table["units"] for table in planned["tables"])
        fitting = all(type(each) is int and each >= 1 for each in units) and sum(units) <= most
        known = all(set(table["columns"]) <= set(self.schema.names) for table in chosen["tables"])
        edges = self.cuts.accepts(chosen["edges"]) if self.cuts is not None else chosen["edges"] == planned["edges"]
        return set(chosen) == set(planned) and fitting and known and edges

    def layout(self, schema: Schema, number: int, tables: Sequence[TableQuery]) -> Round:
        return Round(
            facts=schema.facts,
            roster=self.roster,
            label=round_label(number),
            names=schema.names,
            edges=schema.edges,
            number=number,
            tables=tuple(tables),
            mu=self.mus[number],
            largest_mu=max(self.mus),
        )

    def notes(self, delta: float) -> tuple[str, ...]:
        """The noise of a count in each round, and a person's total under both views and both relations."""
        if not any(self.mus):
            return (EXACT,)
        noise = (
            f"A count of the {words} carries noise with standard deviation {math.sqrt(2 * mu):.4g} ({count} tables)."
            for words, mu, count in zip(OPENED, self.mus, self.units, strict=False)
        )

        def releases(colluding: int) -> list[Cost]:
            pairs = zip(self.mus, self.units, strict=True)
            return [unit_cost(mu, self.roster, self.view, colluding=colluding).times(count) for mu, count in pairs]

        return (*noise, *account_notes(self.roster, view=self.view, delta=delta, releases=releases))

    def tables(self, job: Job, schema: Schema, number: int, queries: Sequence[TableQuery]) -> list[Measurement]:
        """Share (rows with the first round, noise with each), open, join, average the units of each table."""
        layout = self.layout(schema, number, queries)
        chosen = chosen_for(layout)
        job.ask(self.share_noise if number else self.share_rows, chosen=chosen)
        job.ask(self.compare, chosen=chosen)
        job.roll_call(self.roster.committee)
        opened = job.ask(self.open, chosen=chosen)
        counts = join(opened, layout.field, self.roster).astype(np.float64)
        ends = np.cumsum(layout.opened)[:-1]
        measured = []
        for query, units in zip(queries, np.split(counts, ends), strict=True):
            mean = units.reshape(query.units, *layout.shape(query)).mean(axis=0)
            mean = mean.transpose([layout.axes(query).index(name) for name in query.columns])
            sd = math.sqrt(2 * layout.mu / query.units) if layout.mu else EXACT_SD
            measured.append(Measurement(query.columns, mean, sd, query.maps()))
        return measured


def chosen_for(layout: Round) -> dict[str, Any]:
    """What a round's request chooses: tables, in cells whose edges may have been released before."""
    return {"tables": plain(layout.tables), "edges": plain(layout.edges)}


def _free_once(rounds: Stage) -> Stage:
    """What is free is stated once, however many rounds ask for it."""
    costs = {
        member: replace(cost, count=1) if cost.mechanism == "free" else cost for member, cost in rounds.costs.items()
    }
    return replace(rounds, costs=costs)
