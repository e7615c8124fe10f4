"""Contingency tables over the columns of several parties: one secure computation, noise once, no trusted party.

A record is a one-hot row at each party, and a table is a sum over records of products of such rows. What lies within
one party is combined there: a table within a party is a sum, a table of two parties has degree 2 however many columns
it has, and a table of three parties has degree 3. The last kind costs one more round and, for each record, the
product of its two smaller sides in shares. Rows travel in chunks, so memory does not grow with n.

One-hot rows are integers already: gamma is 1, nothing is rounded. A record whose block or cell is missing is a row of
zeros: it counts in no table that involves it, and no one learns that it is missing. A column's `if_empty` may give an
empty cell a cell of its own ("level"), or take the record's block as missing ("drop"). The proofs are in
`tables.claim.md`.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, Annotated, Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from colonnade.codec import ListOf
from colonnade.data.aggregation import Values
from colonnade.data.column import EmptyRule
from colonnade.errors import BadArguments, BadPrivacyParameter
from colonnade.federation.facts import PublicFacts
from colonnade.federation.job import Job
from colonnade.federation.method import Counted, Method, Procedure, Result, method_class
from colonnade.federation.options import (
    Delta,
    Memory,
    Option,
    OptionalEpsilon,
    RelationOption,
    Verify,
    View,
    ViewOption,
)
from colonnade.federation.party import Party
from colonnade.federation.roster import Roster
from colonnade.federation.step import Public
from colonnade.formatting import counted, noise_width, number, with_noise, with_unit
from colonnade.privacy.calibration import Calibration, SkellamMus
from colonnade.privacy.cost import Cost, Relation, compose
from colonnade.privacy.skellam import LARGEST_MU
from colonnade.secure.bfv import MOST_BITS
from colonnade.secure.bgw import lift
from colonnade.secure.claims import Factors, cross_weights
from colonnade.secure.extension import Extension
from colonnade.secure.field import Field, Residues
from colonnade.statistics import forecast
from colonnade.statistics.cells import Cells, cells, gapless
from colonnade.statistics.circuit import (
    Circuit,
    CircuitStages,
    CircuitStatistic,
    Factor,
    PairedCircuit,
    consecutive,
    node_size,
    pairings,
    within_memory,
)
from colonnade.statistics.features import CohortRows, empty_notes
from colonnade.statistics.joint import EXACT, account_notes, check_budget, colluders, field_for
from colonnade.statistics.pair import Words, bits_for
from colonnade.statistics.shares import noise_part
from colonnade.statistics.verified import one_hot_claim
from colonnade.view.blocks import Block, Figure, Section, Table, Text
from colonnade.view.blocks import View as Shown

if TYPE_CHECKING:
    from colonnade.audit.attack import Attack

Names = tuple[str, ...]
MAXIMUM_CELLS = 1 << 22
"""Cells of all tables of one job together."""
CELL: dict[str, Any] = {"delta_1": 1, "delta_2": 1, "shift": "single"}
"""The sensitivity of a table: a record adds 1 to one cell or to none, a single shift of 1."""
MOST_ROWS, MOST_ACROSS = 500, 12
"""A table in the report shows no more rows than this; result.json has all."""


@method_class
class Tables(Method["TablesResult"]):
    """Count records in the cells of contingency tables across parties, with noise unless epsilon is none.

    Returns
    -------
    `fit(federation)` gives `TablesResult`: `result["scale", "removed"]` is an array of noisy counts, `noise_sd` their
    noise.

    Example
    -------
    >>> tables = co.Tables(tables=(("scale", "removed"),), epsilon=1.0).fit(federation)
    >>> tables["scale", "removed"].shape
    (3, 2)
    """

    name: ClassVar[str] = "tables"

    tables: Annotated[
        ListOf[ListOf[str]],
        Option("The columns of each table: any number of columns, and of at most three parties each.", reads="named"),
    ]
    bins: Annotated[
        int | Mapping[str, int],
        Option("Cells of a numeric column, for all or for each; a column with categories has one for each."),
    ] = 10
    epsilon: OptionalEpsilon = 1.0
    delta: Delta = 1e-6
    split: Annotated[
        ListOf[float] | None,
        Option(
            "Each table's share of the budget: one with twice the share has half the noise variance. Equal by default."
        ),
    ] = None
    view: ViewOption = "client"
    relation: RelationOption = "zero-out"
    memory: Memory = None
    verify: Verify = True

    def check(self) -> None:
        check_budget(self.epsilon, self.delta)
        if self.split is not None and (
            len(self.split) != len(self.tables) or not all(0 < share < math.inf for share in self.split)
        ):
            raise BadPrivacyParameter(f"split must give each table a positive share, not {self.split!r}.")

    def missing_data(self) -> str:
        return (
            "A table counts the records that all its parties have, without empty cells in its columns: its shares are"
            " right if records are missing completely at random."
        )

    def procedure(self, facts: PublicFacts, roster: Roster) -> TableComputation:
        return TableComputation(self.layout(facts, roster), self.view, delta=self.delta, epsilon=self.epsilon)

    def layout(self, facts: PublicFacts, roster: Roster) -> TablesLayout:
        """The public shape, with the noise that (epsilon, delta) needs."""
        roster.require_committee()
        numeric = dict.fromkeys(name for names in self.tables for name in names if not facts.column(name).discrete)
        absent = [name for name in numeric if isinstance(self.bins, Mapping) and name not in self.bins]
        if absent:
            raise BadArguments(f"bins does not say how many cells {', '.join(absent)} should have.")
        bins = {name: self.bins[name] if isinstance(self.bins, Mapping) else self.bins for name in numeric}
        mus = (0,) * len(self.tables)
        layout = TablesLayout(facts=facts, roster=roster, tables=tuple(map(tuple, self.tables)), bins=bins, mus=mus)
        layout.check()
        if self.epsilon is not None:
            budget = {"epsilon": self.epsilon, "delta": self.delta}
            mus = layout.shared_noise(self.split or (1.0,) * len(mus), view=self.view, relation=self.relation, **budget)
            layout = replace(layout, mus=mus)
        layout = replace(layout, verify=self.verify)
        return layout if self.memory is None else within_memory(layout, self.memory)

    @classmethod
    def attacks(cls) -> tuple[Attack, ...]:
        from colonnade.statistics.attacks import tables_attacks

        return tables_attacks()


# --- the public shape -------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Part:
    """The columns of a table that one party holds, as one joint one-hot row of `shape`."""

    party: str
    columns: Names
    shape: tuple[int, ...]

    @property
    def size(self) -> int:
        return math.prod(self.shape)


@dataclass(frozen=True, kw_only=True)
class TablesLayout(CircuitStatistic):
    """The public shape of tables: cells, one-hot parts, products, noise.

    `bins` gives the number of cells of each numeric column; `mus` has one entry a table, and all zeros means exact
    counts.
    """

    kind: ClassVar[str] = "tables"
    exact: ClassVar[tuple[str, str]] = ("exact-tables", "exact counts of all cells of the tables")
    rows: ClassVar[str] = "one-hot rows"

    tables: tuple[Names, ...]
    bins: Mapping[str, int]
    mus: tuple[int, ...]
    label: str = "tables"

    @property
    def results(self) -> str:
        return f"{'noisy' if any(self.mus) else 'exact'} counts"

    def check(self) -> None:
        if not self.tables or len({frozenset(names) for names in self.tables}) != len(self.tables):
            raise BadArguments("name at least one table, and each set of columns once.")
        for names in self.tables:
            if not names or len(set(names)) != len(names):
                raise BadArguments(f"a table names each of its columns once, not {names!r}.")
            if len({self.facts.owner(name) for name in names}) > 3:
                raise BadArguments(f"table {names!r} has columns of more than three parties; leave some out.")
        numeric = {name for names in self.tables for name in names if not self.facts.column(name).discrete}
        if any(not 1 <= many <= MAXIMUM_CELLS for many in self.bins.values()) or not set(self.bins) >= numeric:
            raise BadArguments(f"every numeric column needs a number of bins from 1 to {MAXIMUM_CELLS}.")
        if self.records < 0:
            raise BadArguments(f"records must be at least 0, not {self.records}.")
        if len(self.mus) != len(self.tables) or not (all(0 < mu <= LARGEST_MU for mu in self.mus) or not any(self.mus)):
            raise BadArguments("mus must give every table noise from 1 to 2^90, or every table 0.")
        if self.size > MAXIMUM_CELLS:
            raise BadArguments(f"the tables have {self.size} cells, above {MAXIMUM_CELLS}; use fewer bins or tables.")

    @cached_property
    def cells(self) -> dict[str, Cells]:
        """The public cells of each column; an empty cell of a record has none, unless it is a level."""
        columns = {name: self.facts.column(name) for names in self.tables for name in names}
        return {
            name: cells(column if self.rules.get(name) == "level" else gapless(column), bins=self.bins.get(name, 1))
            for name, column in columns.items()
        }

    @cached_property
    def rules(self) -> dict[str, EmptyRule]:
        """What becomes of empty cells: they are in no cell of a table, unless their column says otherwise."""
        columns = {name: self.facts.column(name) for names in self.tables for name in names}
        rules = {name: column.rule_for_empty("mask", "level", "drop") for name, column in columns.items()}
        return {name: rule for name, rule in rules.items() if rule is not None}

    def filled(self, party: str) -> list[str]:
        """A party's columns in which an empty cell makes its record count as absent."""
        return [name for name, rule in self.rules.items() if rule == "drop" and self.facts.owner(name) == party]

    @cached_property
    def parts(self) -> list[list[Part]]:
        """Each table's parts, the smallest first: the first two of three are the pair that is multiplied first."""
        tables = []
        for names in self.tables:
            own: dict[str, list[str]] = {}
            for name in names:
                own.setdefault(self.facts.owner(name), []).append(name)
            parts = [
                Part(party, tuple(sorted(mine)), tuple(len(self.cells[name]) for name in sorted(mine)))
                for party, mine in own.items()
            ]
            tables.append(sorted(parts, key=lambda part: (part.size, part.party)))
        return tables

    @cached_property
    def factors(self) -> dict[Part, Factor]:
        """Where each part stands in the rows that its party shares: once, for all tables of several parties."""
        placed: dict[Part, Factor] = {}
        ends: dict[str, int] = {}
        for part in (part for parts in self.parts if len(parts) > 1 for part in parts):
            if part not in placed:
                start = ends.get(part.party, 0)
                ends[part.party] = start + part.size
                placed[part] = Factor(part.party, start, start + part.size)
        return placed

    @cached_property
    def local(self) -> dict[str, list[Part]]:
        """For each party, the tables that lie within it, in their order: it shares their counts, not its rows."""
        within: dict[str, list[Part]] = {}
        for parts in self.parts:
            if len(parts) == 1:
                within.setdefault(parts[0].party, []).append(parts[0])
        return within

    @cached_property
    def circuit(self) -> Circuit:
        """The products that make the tables of several parties, in their order."""
        terms = [tuple(self.factors[part] for part in parts) for parts in self.parts if len(parts) > 1]
        return Circuit(terms=tuple(terms), n=self.facts.n, field=self.field, records=self.records)

    @cached_property
    def parties(self) -> tuple[str, ...]:
        owners = {part.party for parts in self.parts for part in parts}
        return tuple(party for party in self.facts.parties if party in owners)

    @cached_property
    def sizes(self) -> list[int]:
        """Cells of each table."""
        return [math.prod(part.size for part in parts) for parts in self.parts]

    @property
    def size(self) -> int:
        return sum(self.sizes)

    @cached_property
    def field(self) -> Field:
        """Holds every count with all noise: a cell has at most n records."""
        return field_for(self.facts.n, max(self.mus), self.roster)

    # --- noise and cost -----------------------------------------------------------------------------------

    @property
    def sensitivity(self) -> dict[str, Any]:
        return CELL

    def cost(self, public: Public, view: View) -> Cost:
        """All tables that involve a party. Those of the same parties with the same noise are one joint release."""
        groups: dict[tuple[tuple[str, ...], int], int] = {}
        for parts, mu in zip(self.parts, self.mus, strict=True):
            owners = tuple(sorted(part.party for part in parts))
            if public.party in owners:
                groups[owners, mu] = groups.get((owners, mu), 0) + 1
        pooled = colluders(self.roster, view)
        return compose(
            self.release(mu, colluders=pooled, joint=f"{public.job} {self.label} {owners} {mu}").times(count)
            for (owners, mu), count in groups.items()
        )

    def releases(self, colluders: int) -> list[Cost]:
        return [self.release(mu, colluders=colluders) for mu in self.mus]

    def shared_noise(
        self, shares: Sequence[float], *, epsilon: float, delta: float, view: View, relation: Relation
    ) -> tuple[int, ...]:
        """The mu of each table: inversely as its share of the budget, and all together at most epsilon."""
        if len(set(shares)) == 1:
            mu = self.calibrated(epsilon=epsilon, delta=delta, view=view, relation=relation, count=len(shares))
            return (mu,) * len(shares)
        table, most = self.release(1, colluders=colluders(self.roster, view)), max(shares)
        budget = Calibration(
            {str(place): SkellamMus(table, ratio=most / share) for place, share in enumerate(shares)},
            epsilon=epsilon,
            delta=delta,
            relation=relation,
            bracket=(1.0, LARGEST_MU * min(shares) / most),
        )
        return tuple(budget.values())

    # --- what members do ----------------------------------------------------------------------------------

    def noise(self, me: Party) -> NDArray[np.int64]:
        """Table after table."""
        levels = itertools.groupby(zip(self.mus, self.sizes, strict=True), key=lambda table: table[0])
        return np.concatenate([noise_part(me, mu=mu, size=sum(size for _, size in equal)) for mu, equal in levels])

    def local_sums(self, me: Party) -> NDArray[np.int64]:
        """The counts of the tables that lie within this party."""
        parts = tuple(self.local[me.name])
        return me.aggregate(_columns(parts), PartCounts(parts, self.cells), filled=self.filled(me.name))

    def shared_rows(self, me: Party, number: int) -> NDArray[np.int8]:
        """One-hot rows of one chunk of the cohort; zeros where something is missing."""
        parts = tuple(part for part in self.factors if part.party == me.name)
        wanted = CohortRows(
            label=f"{self.tag}: codes",
            ranges=self.chunks,
            width=len(parts),
            dtype=np.int32,
            fill=-1,
            in_files=self.in_little_memory,
        )
        work, complete = PartCodes(parts, self.cells), self.filled(me.name)
        chunk = wanted.range(me, number, lambda: me.mapped(_columns(parts), work, filled=complete))
        one_hot = np.zeros((len(chunk), self.circuit.widths[me.name]), dtype=np.int8)
        for part, codes in zip(parts, chunk.T, strict=True):
            rows = np.flatnonzero(codes >= 0)
            one_hot[rows, self.factors[part].start + codes[rows]] = 1
        return one_hot

    def combine(self, me: Party, number: int) -> Residues:
        """Sums of products of this holder's shares, and shares of counts, plus every member's noise."""
        counts, products = self.held(me, "sums"), iter(self.term_sums(me))
        used, tables = dict.fromkeys(self.local, 0), []
        for parts, size in zip(self.parts, self.sizes, strict=True):
            if len(parts) > 1:
                tables.append(next(products))
                continue
            party = parts[0].party
            tables.append(lift(self.field, counts[party][:, used[party] : used[party] + size]))
            used[party] += size
        return self.with_noise(me, number, tables, self.held_noise(me))

    @cached_property
    def paired(self) -> PairedTables:
        return PairedTables(self)

    # --- what is verified ---------------------------------------------------------------------------------

    def term_vectors(self, extension: Extension, seed: bytes, side: int) -> list[Residues]:
        return [
            extension.uniform((node_size(pairings(term)[1][side]),), seed=seed, label=f"term {number} {side}")
            for number, term in enumerate(self.circuit.terms)
        ]

    def _local_weights(self, extension: Extension, seed: bytes, table: int) -> Residues:
        return extension.uniform((self.sizes[table],), seed=seed, label=f"table {table}")

    def opening_weights(self, extension: Extension, seed: bytes, number: int) -> Residues:
        """Of a table of several parties u' T v, of one within a party any weights."""
        left, right = (iter(self.term_vectors(extension, seed, side)) for side in (0, 1))
        weights = [
            cross_weights(extension, next(left), next(right))
            if len(parts) > 1
            else self._local_weights(extension, seed, table)
            for table, parts in enumerate(self.parts)
        ]
        return np.concatenate(weights, axis=1)

    def sum_weights(self, extension: Extension, seed: bytes) -> dict[str, Residues]:
        weights: dict[str, list[Residues]] = {}
        for table, parts in enumerate(self.parts):
            if len(parts) == 1:
                weights.setdefault(parts[0].party, []).append(self._local_weights(extension, seed, table))
        return {party: np.concatenate(own, axis=1) for party, own in weights.items()}

    def _own_factors(self, dealer: str) -> list[Factor]:
        """The one-hot groups among the columns of a party's rows."""
        return [factor for part, factor in self.factors.items() if part.party == dealer]

    def input_length(self, dealer: str) -> int:
        """One product for each record and one-hot group."""
        return self.facts.n * len(self._own_factors(dealer))

    def _dealt_rows(self, me: Party, dealer: str, *, own: bool) -> Iterator[Residues]:
        """The dealer's own rows, or a holder's shares of them, chunk by chunk."""
        place = list(self.circuit.widths).index(dealer)
        for chunk in range(len(self.chunks)):
            yield self.field.encode(self.shared_rows(me, chunk)) if own else self._held_chunk(me, chunk, 0)[place]

    def sized_columns(self, dealer: str) -> tuple[int, ...]:
        return (1,) * self.circuit.widths.get(dealer, 0)

    def sized_blocks(self, me: Party, dealer: str, *, own: bool) -> Iterator[Residues]:
        return self._dealt_rows(me, dealer, own=own)

    def input_claims(
        self, me: Party, dealer: str, extension: Extension, seed: bytes, *, own: bool
    ) -> Iterator[tuple[Factors, Residues]]:
        groups = [slice(factor.start, factor.stop) for factor in self._own_factors(dealer)]
        for (start, _), rows in zip(self.chunks, self._dealt_rows(me, dealer, own=own), strict=True):
            yield one_hot_claim(extension, rows, groups, seed=seed, label=f"rows of {dealer}", start=start)


class PairedTables(PairedCircuit):
    """Counts are small, so several of the encrypter's indicators are digits of one number, and as many counts with
    their noise are digits of one word: every digit holds n and all noise."""

    layout: TablesLayout

    @cached_property
    def _digit_bits(self) -> int:
        return bits_for(self.layout.facts.n, max(self.layout.mus), self.layout.roster)

    @cached_property
    def _digits(self) -> int:
        return max(1, MOST_BITS // self._digit_bits)

    @property
    def bits(self) -> int:
        return self._digits * self._digit_bits

    def bound(self, party: str) -> int:
        return 1

    @cached_property
    def _words(self) -> dict[tuple[str, str], dict[Factor, slice]]:
        """Where factors stand in words, of which each has columns of one part."""
        return {
            two: consecutive({factor: -(-(factor.stop - factor.start) // self._digits) for factor in places})
            for two, places in self.places.items()
        }

    def encrypted_places(self, encrypter: str, multiplier: str) -> dict[Factor, slice]:
        return self._words[encrypter, multiplier]

    def encrypted(self, encrypter: str, multiplier: str) -> int:
        return max(int(place.stop) for place in self._words[encrypter, multiplier].values())

    def _packed(self, columns: NDArray[Any]) -> NDArray[Any]:
        """Columns of one part as words: sum_k column_k 2^(k bits), along the last axis."""
        padding = [(0, 0)] * (columns.ndim - 1) + [(0, -columns.shape[-1] % self._digits)]
        digits = np.pad(columns, padding).reshape(*columns.shape[:-1], -1, self._digits).astype(np.int64)
        return np.asarray((digits << (self._digit_bits * np.arange(self._digits))).sum(axis=-1))

    def rows(self, me: Party, number: int, other: str) -> NDArray[Any]:
        rows = super().rows(me, number, other)
        if me.name != self.roles(me.name, other)[0]:
            return rows
        return np.concatenate([self._packed(rows[:, place]) for place in self.places[me.name, other].values()], axis=1)

    # --- what is opened: a table within a party cell by cell, one between two parties in words ---------------

    def _cross(self, parts: Sequence[Part]) -> tuple[int, int, bool]:
        """(Cells of the encrypter's part, of the other's, whether the encrypter's part is the first)."""
        first = parts[0].party == self.roles(parts[0].party, parts[1].party)[0]
        return (parts[0].size, parts[1].size, True) if first else (parts[1].size, parts[0].size, False)

    @cached_property
    def _sizes(self) -> list[int]:
        """Words of each table."""
        sizes = []
        for parts in self.layout.parts:
            left, right, _ = (parts[0].size, 1, True) if len(parts) == 1 else self._cross(parts)
            sizes.append(left if len(parts) == 1 else -(-left // self._digits) * right)
        return sizes

    def opened_size(self, number: int) -> int:
        return sum(self._sizes)

    def addends(self, me: Party, number: int, cross: Mapping[str, Words]) -> Words:
        sums, words = self.own_sums(me).astype(np.int64).view(np.uint64), []
        for parts, size in zip(self.layout.parts, self._sizes, strict=True):
            share: Words | None = None
            if len(parts) == 2:
                share = self.share_of(me, cross, tuple(self.layout.factors[part] for part in parts))
            elif parts[0].party == me.name:
                share, sums = sums[:size], sums[size:]
            words.append(np.zeros(size, dtype=np.uint64) if share is None else share.reshape(-1))
        return np.concatenate(words)

    def noise(self, me: Party, number: int) -> Words:
        drawn, words = self.layout.noise(me), []
        for parts, size in zip(self.layout.parts, self.layout.sizes, strict=True):
            cells, drawn = drawn[:size], drawn[size:]
            if len(parts) == 2:
                left, right, first = self._cross(parts)
                table = cells.reshape(left, right).T if first else cells.reshape(right, left)
                cells = self._packed(table).T.reshape(-1)
            words.append(cells)
        return np.concatenate(words).view(np.uint64)

    def results(self, number: int, words: NDArray[np.int64]) -> NDArray[np.int64]:
        """Each word's digits, the lowest first: of size below half their base, so that they are unique."""
        base, cells = 1 << self._digit_bits, []
        for parts, size in zip(self.layout.parts, self._sizes, strict=True):
            table, words = words[:size], words[size:]
            if len(parts) == 2:
                left, right, first = self._cross(parts)
                digits = []
                for _ in range(self._digits):
                    digit = (table + base // 2) % base - base // 2
                    digits.append(digit.reshape(-1, right))
                    table = (table - digit) // base
                counts = np.stack(digits, axis=1).reshape(-1, right)[:left]
                table = (counts if first else counts.T).reshape(-1)
            cells.append(table)
        return np.concatenate(cells)


def _columns(parts: Sequence[Part]) -> list[str]:
    return list(dict.fromkeys(name for part in parts for name in part.columns))


@dataclass(frozen=True, eq=False)
class PartCodes:
    """Each record's cell in each part; -1 where one of the cells is empty."""

    parts: tuple[Part, ...]
    cells: Mapping[str, Cells]

    def __call__(self, rows: NDArray[np.int64], values: Values) -> tuple[NDArray[np.int64], NDArray[np.int32]]:
        codes = np.empty((len(rows), len(self.parts)), dtype=np.int32)
        cell = {name: self.cells[name].codes(values[name]) for name in _columns(self.parts)}
        for position, part in enumerate(self.parts):
            joint = np.ravel_multi_index([np.maximum(cell[name], 0) for name in part.columns], part.shape)
            complete = np.all([cell[name] >= 0 for name in part.columns], axis=0)
            codes[:, position] = np.where(complete, joint, -1)
        return rows, codes


@dataclass(frozen=True, eq=False)
class PartCounts:
    """How many records are in each cell of each part, part after part."""

    parts: tuple[Part, ...]
    cells: Mapping[str, Cells]

    def of(self, rows: NDArray[np.int64], values: Values) -> NDArray[np.int64]:
        codes = PartCodes(self.parts, self.cells)(rows, values)[1]
        return np.concatenate(
            [
                np.bincount(column[column >= 0], minlength=part.size)
                for column, part in zip(codes.T, self.parts, strict=True)
            ]
        )

    def merge(self, left: NDArray[np.int64], right: NDArray[np.int64]) -> NDArray[np.int64]:
        return left + right


# --- the coordinator's procedure --------------------------------------------------------------------------


class TableComputation(CircuitStages, Procedure["TablesResult"]):
    """One computation of tables. Other methods put its stages into their own plans."""

    layout: TablesLayout

    def __init__(self, layout: TablesLayout, view: View, *, delta: float, epsilon: float | None = None) -> None:
        super().__init__(layout, view)
        explicit = {name: rule for name, rule in layout.rules.items() if rule != "mask"}
        self.notes = (*_notes(layout, view, delta, epsilon), *self.verification_notes, *empty_notes(explicit))

    def run(self, job: Job) -> TablesResult:
        """All tables from one opening, each with its axes in the order in which its columns were named."""
        layout = self.layout
        opened = self.compute(job).astype(np.float64)
        ends = list(itertools.accumulate(layout.sizes))
        counts = {}
        for names, parts, end, size in zip(layout.tables, layout.parts, ends, layout.sizes, strict=True):
            order = [name for part in parts for name in part.columns]
            shape = [length for part in parts for length in part.shape]
            counts[names] = opened[end - size : end].reshape(shape).transpose([order.index(name) for name in names])
        return TablesResult(
            n=layout.facts.n,
            counts=counts,
            labels={name: public.labels for name, public in layout.cells.items()},
            ranges={
                name: with_unit(name, layout.facts.column(name).unit)
                for name, public in layout.cells.items()
                if public.edges is not None
            },
            noise_sd={names: math.sqrt(2 * mu) for names, mu in zip(layout.tables, layout.mus, strict=True)},
            simulated=job.simulated,
        )


def _notes(layout: TablesLayout, view: View, delta: float, epsilon: float | None) -> tuple[str, ...]:
    """The forecast of a plan: noise, account, bytes."""
    column, circuit = 4 * len(layout.field.primes) * layout.facts.n, layout.circuit
    sent = ", ".join(f"{party} {column * width:,}" for party, width in circuit.widths.items())
    size = [f"Bytes of one-hot rows that each holder receives: {sent}."] if sent and not layout.roster.pair else []
    if circuit.levels:
        size.append(
            f"Tables of three parties: each holder deals {column * max(circuit.level_widths):,} bytes to each holder."
        )
    if not any(layout.mus):
        return (EXACT, *size)
    noise = [
        f"A cell of the table of {' x '.join(names)} carries noise with standard deviation {math.sqrt(2 * mu):.4g}."
        for names, mu in zip(layout.tables, layout.mus, strict=True)
    ]
    if len(set(layout.mus)) == 1:
        noise = [f"Each cell carries integer noise with standard deviation {math.sqrt(2 * layout.mus[0]):.4g}."]
    largest = max(layout.sizes)
    expected = forecast.cells(
        noise_sd=math.sqrt(2 * max(layout.mus)),
        n=layout.facts.n,
        largest=largest,
        ways=len(layout.tables[layout.sizes.index(largest)]),
        epsilon=epsilon,
    )
    return (*expected, *noise, *account_notes(layout.roster, view=view, delta=delta, releases=layout.releases), *size)


# --- the result -------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class TablesResult(Result):
    """Counts by table, axes in the order in which its columns were named, cells as in `labels`.

    `noise_sd` is the standard deviation of the noise on one cell (0 if exact); all noises are independent, so tables
    that share columns do not agree exactly, and a count may be negative.
    """

    kind: ClassVar[str] = "tables"

    n: int
    counts: Mapping[Names, NDArray[np.float64]]
    labels: Mapping[str, tuple[str, ...]]
    noise_sd: Mapping[Names, float]
    simulated: bool
    ranges: Mapping[str, str] = field(default_factory=dict)
    """The columns whose cells are ranges of numbers, with their units."""

    def __getitem__(self, names: Names) -> NDArray[np.float64]:
        return self.counts[names]

    def to_dict(self) -> dict[str, Any]:
        return {
            "n": self.n,
            "labels": {name: list(labels) for name, labels in self.labels.items()},
            "tables": [
                {"columns": list(names), "counts": counts.tolist(), "noise_sd": self.noise_sd[names]}
                for names, counts in self.counts.items()
            ],
            "simulated": self.simulated,
        }

    @classmethod
    def records_behind(cls, stated: Mapping[str, Any]) -> Iterator[Counted]:
        for table in stated["tables"]:
            names, counts = table["columns"], np.array(table["counts"], dtype=np.float64)
            labels = itertools.product(*(stated["labels"][name] for name in names))
            for cell, count in zip(labels, counts.flat, strict=True):
                where = (f"{name} = {label}" for name, label in zip(names, cell, strict=True))
                yield ", ".join(where), float(count), table["noise_sd"]

    def view(self) -> Shown:
        many = len(self.counts)
        shown = {names: self._cells(names) for names in self.counts}
        return Shown(
            title=f"{counted(many, 'contingency table')} of a cohort of {number(self.n)} records",
            quality=self._quality(),
            answer=tuple(block for names, table in shown.items() for block in self._blocks(names, table)),
            sections=(
                Section(
                    title="How to read the tables",
                    blocks=(
                        Text(
                            text="A cell counts the records that are in it and that every party of the table has. Each"
                            " cell has noise of its own: tables that share columns do not add up to the same totals,"
                            " and a count may be below zero."
                        ),
                    ),
                ),
            ),
            terminal=tuple(
                replace(_narrow(table), title=f"{' x '.join(names)}: {self._total(names)}", shown=50)
                for names, table in shown.items()
            ),
        )

    def _total(self, names: Names) -> str:
        """How many records have all of its cells, of how many there are."""
        counts, sd = self.counts[names], self.noise_sd[names]
        return f"{with_noise(float(counts.sum()), sd * math.sqrt(counts.size))} records"

    def _cells(self, names: Names) -> Table:
        """One table: the last of two or more columns lies across."""
        counts, labels = self.counts[names], [self.labels[name] for name in names]
        if len(names) == 1:
            head: tuple[str, ...] = (names[0], "records")
            rows: list[tuple[str, ...]] = [
                (label, number(value)) for label, value in zip(labels[0], counts.tolist(), strict=True)
            ]
        else:
            head = (f"{' / '.join(names[:-1])}, by {names[-1]}", *labels[-1])
            lines = counts.reshape(-1, counts.shape[-1]).tolist()
            rows = [
                (" / ".join(down), *(number(value) for value in line))
                for down, line in zip(itertools.product(*labels[:-1]), lines, strict=True)
            ]
        numeric = tuple(range(1, len(head)))
        return Table(title=f"Counts of {' x '.join(names)}", head=head, rows=tuple(rows), numeric=numeric)

    def _blocks(self, names: Names, table: Table) -> list[Block]:
        sd = self.noise_sd[names]
        caption = f"{noise_width(sd)} is two standard deviations of a cell's noise." if sd else "Exact counts."
        caption = f"{self._total(names)} in all. {caption}"
        rest = len(table.rows) - MOST_ROWS
        note = f"The other {rest:,} rows are in result.json." if rest > 0 else ""
        shown = replace(table, rows=table.rows[:MOST_ROWS])
        if len(names) > 1:
            return [shown, Text(text=f"{caption} {note}".strip(), style="soft")]
        return [
            Figure(
                chart="bars",
                data={"labels": list(self.labels[names[0]]), "values": self.counts[names].tolist(), "noise": sd},
                label=f"Bar chart of {names[0]}; the numbers are in the table below",
                name=names[0],
                x="noisy count of records" if sd else "records",
                y=self.ranges.get(names[0], ""),
                title=names[0],
                caption=caption,
                numbers=shown,
                note=note,
            )
        ]

    def _quality(self) -> str:
        """Which cells say more than noise."""
        largest = max(self.noise_sd.values())
        if not largest:
            return "Exact counts: no noise was added."
        clear = sum(int((counts > 2 * self.noise_sd[names]).sum()) for names, counts in self.counts.items())
        every = sum(counts.size for counts in self.counts.values())
        return (
            f"A cell is {noise_width(largest)} in 95 of 100 cases. {clear:,} of {every:,} cells are larger than that;"
            " the others may be noise alone."
        )


def _narrow(table: Table) -> Table:
    """The first columns, for a terminal."""
    more = len(table.head) - 1 - MOST_ACROSS
    if more <= 0:
        return table
    rows = tuple((*row[: MOST_ACROSS + 1], "") for row in table.rows)
    head = (*table.head[: MOST_ACROSS + 1], f"and {more:,} more in result.json")
    return replace(table, head=head, rows=rows)
