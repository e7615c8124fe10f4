"""Contingency tables on secret shares, in several rounds that depend on each other.

Each party shares its one-hot rows **once**. Coarse and fine tables are linear in the products of these shares, so the
shareholders compute every round from what they keep: bins are sums of shares, a pair is one product. What a round opens
is decided after the round before it; only its number of tables and its noise are fixed in the plan. A table that gets
several units of the budget is opened as many times with independent noise, and the coordinator averages.

The proofs are in `claim.md`.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from colonnade.codec import plain
from colonnade.errors import BadArguments
from colonnade.federation.job import Job
from colonnade.federation.options import Verification, View
from colonnade.federation.party import Party
from colonnade.federation.roster import Roster
from colonnade.federation.stage import SEALED, Later, Stage, stage
from colonnade.federation.step import Public
from colonnade.privacy.cost import Cost, Unbounded
from colonnade.privacy.skellam import Skellam
from colonnade.secure.bgw import Product, cross, lift
from colonnade.secure.claims import Factors, cross_weights
from colonnade.secure.extension import Extension
from colonnade.secure.field import Field, Residues
from colonnade.secure.seeded import Shape, Share
from colonnade.statistics.joint import (
    COMPARING,
    EXACT,
    LargeNoise,
    account_notes,
    binding,
    colluders,
    compare_shares,
    field_for,
    open_shares,
    share_rows,
)
from colonnade.statistics.pair import audience, exchange_rows, open_sum, opened_pair
from colonnade.statistics.shares import (
    deal_large,
    dealt_large,
    messages,
    shares_of,
)
from colonnade.statistics.tables import CELL, TablesLayout
from colonnade.statistics.verified import (
    NOT_VERIFIED,
    one_hot_claim,
    opened_once,
    verification_stages,
)
from colonnade.synthesis.field.fit import Measurement
from colonnade.synthesis.field.graph import Names
from colonnade.synthesis.field.paired import ROWS, PairedRound
from colonnade.synthesis.field.schema import CUTS_RULE, PrivateCuts, Schema, TableQuery, cell_codes

LABEL = "sqm tables"
MAXIMUM_OPENED = 1 << 23
"""Cells that one round opens, each unit counted."""
EXACT_SD = 0.5
"""Weight of an exact count in a fit: far below any noise."""
OPENED = ("one-way tables", "coarse pairs", "selected tables")


# --- the public shape of one round ----------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Round(LargeNoise):
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
                    len(bins) != self.schema.sizes[name] or sorted(set(bins)) != list(range(len(set(bins))))
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

    @cached_property
    def paired(self) -> PairedRound:
        return PairedRound(self)

    # --- what members do ----------------------------------------------------------------------------------

    def share(self, me: Party, number: int) -> None:
        """One's rows, with the first round; and the joint rows that this round's tables need."""
        if self.number == 0:
            deal_large(me, self.rows_tag, self.field, self._own_rows(me))
        for pair in self._own_joints(me.name):
            deal_large(me, self.joint_tag(pair), self.field, self._joint_rows(me, pair))

    def _own_rows(self, me: Party) -> NDArray[np.int8]:
        starts = self.schema.starts(me.name)
        codes = cell_codes(me, self.schema, list(starts))
        rows = np.zeros((me.facts.n, sum(stop - start for start, stop in starts.values())), dtype=np.int8)
        for name, (start, _) in starts.items():
            present = np.flatnonzero(codes[name] >= 0)
            rows[present, start + codes[name][present]] = 1
        return rows

    def _own_joints(self, party: str) -> list[Names]:
        return [pair for pair in self.joints if self.facts.owner(pair[0]) == party]

    def _joint_rows(self, me: Party, pair: Names) -> NDArray[np.int8]:
        codes = cell_codes(me, self.schema, pair)
        shape = tuple(self.schema.sizes[name] for name in pair)
        rows = np.zeros((me.facts.n, math.prod(shape)), dtype=np.int8)
        present = np.flatnonzero(np.all([codes[name] >= 0 for name in pair], axis=0))
        rows[present, np.ravel_multi_index([codes[name][present] for name in pair], shape)] = 1
        return rows

    def hold(self, me: Party, number: int) -> None:
        """Keep rows, joint rows and noise."""
        layers = len(self.field.primes)
        messages(me, self.rows_tag, self.parties, layers=layers, keep=True, remember=self.remembers(0))
        for pair in self.joints:
            messages(me, self.joint_tag(pair), [self.facts.owner(pair[0])], layers=layers, keep=True)
        self.keep_noise(me, number)

    def combine(self, me: Party, number: int) -> Residues:
        """Products of the rows that this holder keeps, plus every member's noise, for each unit of each table."""
        products = zip(self.tables, self._products(me), strict=True)
        units = (product for table, product in products for _ in range(table.units))
        return self.with_noise(me, number, units, self.held_noise(me))

    def _sides(self, table: TableQuery) -> tuple[Side, Side | None]:
        """What is multiplied for a table: the indicators of two columns, or of a column and a joint pair. A table of
        one column is a sum."""
        keys = list(zip(table.columns, table.bins, strict=True))
        if len(keys) == 3:
            other, first, second = self.axes(table)
            return (other, None), (first, second)
        return keys[0], keys[1] if len(keys) == 2 else None

    def _blocks(self, me: Party, keys: Sequence[str | Names] | None = None) -> Iterator[dict[str | Names, Residues]]:
        """This holder's shares of all rows and joint rows, or of some of them, a block of records at a time."""
        n, layers, shares = self.facts.n, len(self.field.primes), dict[str | Names, Share]()
        rows = messages(me, self.rows_tag, self.parties, layers=layers, keep=True, remember=self.remembers(0))
        for party in self.parties:
            width = sum(self.schema.sizes[name] for name in self.schema.of(party))
            shares[party] = shares_of(me, {party: rows[party]}, self.field, {party: (n, width)})[party]
        for pair in self.joints:
            owner, width = self.facts.owner(pair[0]), math.prod(self.schema.sizes[name] for name in pair)
            shares[pair] = dealt_large(me, self.joint_tag(pair), [owner], self.field, lengths=(n, width))[owner]
        for block in range(Shape((n,)).blocks):
            yield {key: shares[key].block(block) for key in (shares if keys is None else keys)}

    def _all_blocks(
        self, me: Party, keys: Sequence[str | Names] | None = None
    ) -> Iterable[dict[str | Names, Residues]]:
        """All blocks; for a verification they are remembered, if there is room, since it needs them again."""
        widths = [
            *self.schema.sizes.values(),
            *(math.prod(self.schema.sizes[name] for name in pair) for pair in self.joints),
        ]
        size = 4 * len(self.field.primes) * self.facts.n * sum(widths)
        if not self.remembers(size):
            return self._blocks(me, keys)
        return me.remembered(f"{self.tag}: blocks", size, lambda: list(self._blocks(me)))

    def _indicators(self, block: Mapping[str | Names, Residues], side: Side) -> Residues:
        """Shares of the indicators of one side of a product, coarse ones as sums."""
        own = self._cells_of(block, side)
        return own if side[1] is None or isinstance(side[1], str) else _summed(self.field, own, side[1])

    def _cells_of(self, block: Mapping[str | Names, Residues], side: Side) -> Residues:
        """The same without bins."""
        name, bins = side
        if isinstance(bins, str):
            return block[name, bins]
        return block[self.facts.owner(name)][:, :, slice(*self._places[name])]

    @cached_property
    def _places(self) -> dict[str, tuple[int, int]]:
        """Where each column stands in its party's rows."""
        return {name: cells for party in self.parties for name, cells in self.schema.starts(party).items()}

    def _products(self, me: Party) -> list[Product]:
        """This holder's share of each table, summed over blocks of records."""
        totals: list[Product] = []
        sides = [self._sides(table) for table in self.tables]
        needed = dict.fromkeys(side for both in sides for side in both if side is not None)
        for number, block in enumerate(self._all_blocks(me)):
            columns = {side: self._indicators(block, side) for side in needed}
            for position, (left, right) in enumerate(sides):
                product = (
                    lift(self.field, self.field.sum(columns[left]))
                    if right is None
                    else cross(self.field, columns[left], columns[right])
                )
                if number:
                    totals[position] = totals[position] + product
                else:
                    totals.append(product)
        return totals

    # --- what is verified ---------------------------------------------------------------------------------

    @cached_property
    def _left_sides(self) -> list[Side]:
        """Each once: all tables with the same left side are one product, of it and of a sum over their right sides."""
        both = (self._sides(table) for table in self.tables)
        return list(dict.fromkeys(left for left, right in both if right is not None))

    def _width(self, side: Side) -> int:
        name, bins = side
        if isinstance(bins, str):
            return math.prod(self.schema.sizes[part] for part in (name, bins))
        return self.schema.sizes[name] if bins is None else max(bins) + 1

    @property
    def claim_length(self) -> int:
        return max(1, self.facts.n * len(self._left_sides))

    def _left_vector(self, extension: Extension, seed: bytes, side: Side) -> Residues:
        label = f"left {self._left_sides.index(side)}"
        return extension.uniform((self._width(side),), seed=seed, label=label)

    def _cell_weights(self, extension: Extension, seed: bytes, position: int) -> tuple[Residues, Residues]:
        """Of a table: weights of the cells of its right side, or of its only one; and weights of its units."""
        left, right = self._sides(self.tables[position])
        width = self._width(left if right is None else right)
        cells = extension.uniform((width,), seed=seed, label=f"table {position}")
        return cells, extension.uniform((self.tables[position].units,), seed=seed, label=f"units {position}")

    def opening_weights(self, extension: Extension, seed: bytes, number: int) -> Residues:
        weights = []
        for position, table in enumerate(self.tables):
            left, right = self._sides(table)
            cells, units = self._cell_weights(extension, seed, position)
            if right is not None:
                cells = cross_weights(extension, self._left_vector(extension, seed, left), cells)
            weights += [extension.scale(cells, units[:, unit]) for unit in range(table.units)]
        return np.concatenate(weights, axis=1)

    def claim_factors(self, me: Party, extension: Extension, seed: bytes) -> Iterator[Factors]:
        """For each left side A: u' A' (sum over tables of B v times the sum of its units' weights)."""
        if not self._left_sides:
            yield Factors(extension.zeros((1,)), extension.zeros((1,)))
            return
        # The weight of a coarse cell is that of each of its cells, so that tables with the same columns are one sum.
        scaled: dict[Side, dict[Side, Residues]] = {}
        for position, table in enumerate(self.tables):
            left, right = self._sides(table)
            if right is not None:
                cells, units = self._cell_weights(extension, seed, position)
                fine, own = _fine(right, extension.scale(cells, extension.sum(units)))
                rights = scaled.setdefault(left, {})
                rights[fine] = extension.add(rights[fine], own) if fine in rights else own
        factors: dict[Factor, Mapping[Side, Residues]] = {}
        for left, rights in scaled.items():
            factors[left, 0] = dict([_fine(left, self._left_vector(extension, seed, left))])
            factors[left, 1] = rights
        weights = {key: (list(own), np.stack(list(own.values()), axis=2)) for key, own in self._by_array(factors)}
        for block in self._all_blocks(me):
            sums = {factor: list[Residues]() for factor in factors}
            for key, (sides, vectors) in weights.items():
                projected = extension.project(block[key], vectors)
                for place, factor in enumerate(sides):
                    sums[factor].append(projected[:, :, place])
            for left in scaled:
                yield Factors(*(functools.reduce(extension.add, sums[left, number]) for number in (0, 1)))

    def _by_array(
        self, factors: Mapping[Factor, Mapping[Side, Residues]]
    ) -> Iterable[tuple[str | Names, dict[Factor, Residues]]]:
        """The weights of the cells of some sides, for each factor, as weights of all columns of each array: one product
        then serves all factors."""
        arrays: dict[str | Names, dict[Factor, Residues]] = {}
        for factor, sides in factors.items():
            for (name, bins), cells in sides.items():
                if isinstance(bins, str):
                    arrays.setdefault((name, bins), {})[factor] = cells
                else:
                    party, place = self.facts.owner(name), slice(*self._places[name])
                    width = sum(self.schema.sizes[column] for column in self.schema.of(party))
                    zeros = np.zeros((len(cells), width, cells.shape[2]), dtype=np.int32)
                    arrays.setdefault(party, {}).setdefault(factor, zeros)[:, place] = cells
        return arrays.items()

    def claim_sums(self, me: Party, extension: Extension, seed: bytes) -> Residues:
        total, single = extension.zeros(), list[tuple[Side, Residues]]()
        for position, table in enumerate(self.tables):
            left, right = self._sides(table)
            if right is None:
                cells, units = self._cell_weights(extension, seed, position)
                single.append(_fine(left, extension.scale(cells, extension.sum(units))))
        parties = list(dict.fromkeys(self.facts.owner(side[0]) for side, _ in single))
        for block in self._all_blocks(me, parties) if parties else ():
            counts: dict[str | Names, Residues] = {party: self.field.sum(block[party])[:, None] for party in parties}
            for side, cells in single:
                total = extension.add(total, extension.combine(self._cells_of(counts, side)[:, 0], cells))
        return total

    def _groups(self, dealer: str) -> list[tuple[str | Names, int, int]]:
        """The one-hot groups that a party deals in this round: which array, and its columns."""
        rows: list[tuple[str | Names, int, int]] = [(dealer, *place) for place in self.schema.starts(dealer).values()]
        joints = self._own_joints(dealer)
        return (rows if self.number == 0 else []) + [
            (pair, 0, math.prod(self.schema.sizes[name] for name in pair)) for pair in joints
        ]

    def input_length(self, dealer: str) -> int:
        return self.facts.n * len(self._groups(dealer))

    def _own_blocks(self, me: Party) -> Iterator[dict[str | Names, Residues]]:
        dealt: dict[str | Names, NDArray[np.int8]] = {me.name: self._own_rows(me)} if self.number == 0 else {}
        dealt |= {pair: self._joint_rows(me, pair) for pair in self._own_joints(me.name)}
        shape = Shape((self.facts.n,))
        for block in range(shape.blocks):
            yield {key: self.field.encode(rows[shape.rows(block)]) for key, rows in dealt.items()}

    def _dealt_blocks(self, me: Party, dealer: str, *, own: bool) -> Iterable[dict[str | Names, Residues]]:
        """What a party deals in this round, or a holder's shares of it."""
        dealt = list(dict.fromkeys(key for key, _, _ in self._groups(dealer)))
        return self._own_blocks(me) if own else self._all_blocks(me, dealt)

    def sized_columns(self, dealer: str) -> tuple[int, ...]:
        return (1,) * sum(stop - start for _, start, stop in self._groups(dealer))

    def sized_blocks(self, me: Party, dealer: str, *, own: bool) -> Iterator[Residues]:
        groups = self._groups(dealer)
        for block in self._dealt_blocks(me, dealer, own=own):
            yield np.concatenate([block[key][:, :, start:stop] for key, start, stop in groups], axis=2)

    def input_claims(
        self, me: Party, dealer: str, extension: Extension, seed: bytes, *, own: bool
    ) -> Iterator[tuple[Factors, Residues]]:
        start, groups = 0, dict[str | Names, list[slice]]()
        for key, first, last in self._groups(dealer):
            groups.setdefault(key, []).append(slice(first, last))
        for block in self._dealt_blocks(me, dealer, own=own):
            for array, (key, columns) in enumerate(groups.items()):
                label = f"array {array} of {dealer}"
                yield one_hot_claim(extension, block[key], columns, seed=seed, label=label, start=start)
            start += block[key].shape[1]


Side = tuple[str, Any]
"""A column in bins (None: all of its cells), or two columns of one party as one."""
Factor = tuple[Side, int]
"""Of a product that is proven: a left side (0), or the sum over its right sides (1)."""


def _fine(side: Side, cells: Residues) -> tuple[Side, Residues]:
    """Weights of a side's cells without bins: those of a bin go to each of its cells."""
    name, bins = side
    return (side, cells) if bins is None or isinstance(bins, str) else ((name, None), cells[:, list(bins)])


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
        verify: Verification = False,
    ) -> None:
        roster.require_committee()
        self.roster, self.view, self.units, self.mus = roster, view, tuple(units), tuple(mus)
        self.schema, self.cuts, self.verify = schema, cuts, bool(verify) and not roster.pair
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
        if roster.pair:
            self._plan_pair(layouts, examples, within(rules), cells, public)
            return
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
        self.verification: tuple[Stage, ...] = ()
        if self.verify:
            planned = verification_stages(
                layouts[0],
                examples,
                schema.parties,
                {"chosen": within(rules)},
                label=LABEL,
                # A product for each record and left side of a table; those of the second round are in bins.
                products=schema.facts.n * min(max(units), 2 * len(sizes)),
                inputs={party: schema.facts.n * len(schema.of(party)) for party in schema.parties},
            )
            self.verification = tuple(map(_free_once, planned))
        stages = (self.share_rows, self.compare, *self.verification, self.open, self.share_noise)
        self.stages = tuple(asked for asked in stages if asked.costs)

    def _plan_pair(
        self,
        layouts: Sequence[Round],
        examples: Sequence[Mapping[str, Any]],
        later: Later,
        cells: int,
        public: Mapping[str, Any],
    ) -> None:
        """Parties in pairs: exchange rows with each round, and open."""
        names, paired = self.roster.names, layouts[0].paired
        requests = [{**example, "number": number} for example in examples for number in range(len(paired.chunks) + 1)]
        self.exchange = stage(
            f"{LABEL}: exchange rows",
            exchange_rows,
            dict.fromkeys(names, requests),
            audience=audience(self.roster),
            recipients=names,
            discloses="encrypted one-hot rows, and masked products of them",
            reply_bytes=paired.encrypted_bytes(ROWS),
            later={"chosen": later},
            **public,
        )
        self.open = _free_once(
            stage(
                f"{LABEL}: open",
                open_sum,
                dict.fromkeys(names, examples),
                discloses="masked parts of the noisy counts, of which the coordinator reads the sum",
                reply_bytes=8 * cells,
                later={"chosen": later},
                **public,
            )
        )
        self.stages = (self.exchange, self.open)
        self.trust = paired.trust

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
            verify=self.verify,
        )

    def notes(self, delta: float, beside: Callable[[int], Sequence[Cost]] = lambda colluding: ()) -> tuple[str, ...]:
        """The noise of a count in each round, and a person's total under both views and both relations, with what the
        job releases beside the rounds."""
        if not any(self.mus):
            return (EXACT, self.trust) if self.roster.pair else (EXACT,)
        checked = (self.trust,) if self.roster.pair else () if self.verify else (NOT_VERIFIED,)
        noise = (
            f"A count of the {words} carries noise with standard deviation {math.sqrt(2 * mu):.4g} ({count} tables)."
            for words, mu, count in zip(OPENED, self.mus, self.units, strict=False)
        )

        def releases(colluding: int) -> list[Cost]:
            pairs = zip(self.mus, self.units, strict=True)
            units = [unit_cost(mu, self.roster, self.view, colluding=colluding).times(count) for mu, count in pairs]
            return [*units, *beside(colluding)]

        return (*noise, *account_notes(self.roster, view=self.view, delta=delta, releases=releases), *checked)

    def tables(self, job: Job, schema: Schema, number: int, queries: Sequence[TableQuery]) -> list[Measurement]:
        """Share (rows with the first round, noise with each), open, join, average the units of each table."""
        layout = self.layout(schema, number, queries)
        chosen = chosen_for(layout)
        if self.roster.pair:
            for _ in range(len(layout.paired.chunks) + 1):
                job.ask(self.exchange, chosen=chosen)
            integers = opened_pair(job, self.open, layout, 0, chosen=chosen)
            return self._measured(layout, queries, integers)
        job.ask(self.share_noise if number else self.share_rows, chosen=chosen)
        integers = opened_once(job, self.compare, self.verification, self.open, layout, chosen=chosen)
        return self._measured(layout, queries, integers)

    @staticmethod
    def _measured(layout: Round, queries: Sequence[TableQuery], integers: NDArray[Any]) -> list[Measurement]:
        counts = integers.astype(np.float64)
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
