"""The rounds of tables by parties in pairs: all products between two parties' indicators once, then only sums.

Shares of the counts of every cell of one party's columns with every cell of another's are computed with the first
round and kept. Coarse and fine tables of two columns are sums of these counts, which each party takes of its own
shares; a table within a party it counts alone. A table of three columns needs products with the joint indicators of
two columns of one party, which its own round computes.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from colonnade.federation.party import Party
from colonnade.secure.bfv import DEGREE
from colonnade.statistics.pair import Paired, Words, bits_for, drawn
from colonnade.synthesis.field.graph import Names
from colonnade.synthesis.field.schema import TableQuery, cell_codes

if TYPE_CHECKING:
    from colonnade.synthesis.field.rounds import Round

ROWS = 2 * DEGREE
"""Records of a chunk: columns are chosen later than the number of requests."""


class PairedRound(Paired):
    """One round, of which the first computes what all of them need."""

    layout: Round

    @cached_property
    def _indicators(self) -> dict[str, dict[Names, tuple[int, int]]]:
        """Where the cells of each column stand in a party's one-hot row."""
        schema = self.layout.schema
        return {party: {(name,): cells for name, cells in schema.starts(party).items()} for party in schema.parties}

    @cached_property
    def _places(self) -> dict[tuple[str, str], dict[Names, tuple[int, int]]]:
        """What each party brings to this round's products with each other: indicators of columns, and of two columns
        as one."""
        layout, schema = self.layout, self.layout.schema
        places = {
            (party, other): dict(self._indicators[party]) if layout.number == 0 else {}
            for party, other in itertools.permutations(schema.parties, 2)
        }
        for table in layout.tables:
            if self._between(table) and len(table.columns) == 3:
                (one, other), (first, second) = self._owners(table), self._sides(table)
                for side, own in ((first, places[one, other]), (second, places[other, one])):
                    start = self._width(own)
                    own.setdefault(side, (start, start + math.prod(schema.sizes[name] for name in side)))
        return places

    def _sides(self, table: TableQuery) -> tuple[Names, Names]:
        """What is multiplied: two columns, or one and a joint pair."""
        axes = self.layout.axes(table)
        return axes[:1], axes[1:]

    def _owners(self, table: TableQuery) -> tuple[str, ...]:
        """The parties of a table's sides."""
        return tuple(dict.fromkeys(self.layout.facts.owner(name) for name in self.layout.axes(table)))

    def _between(self, table: TableQuery) -> bool:
        """Whether a table has columns of two parties."""
        return len(self._owners(table)) == 2

    def width(self, party: str, other: str) -> int:
        return self._width(self._places.get((party, other), {}))

    def _first_roles(self, one: str, other: str) -> tuple[str, str]:
        """Who encrypts in the first round: by the columns alone, which all rounds know."""
        return self.fewer_first({name: self._width(self._indicators.get(name, {})) for name in (one, other)})

    def roles(self, one: str, other: str) -> tuple[str, str]:
        return super().roles(one, other) if self.layout.number else self._first_roles(one, other)

    @staticmethod
    def _width(places: Mapping[Names, tuple[int, int]]) -> int:
        return max((stop for _, stop in places.values()), default=0)

    def bound(self, party: str) -> int:
        return 1

    @cached_property
    def bits(self) -> int:
        return bits_for(self.layout.facts.n, self.layout.largest_mu, self.layout.roster)

    @cached_property
    def chunks(self) -> list[tuple[int, int]]:
        n = self.layout.facts.n
        return [(start, min(start + ROWS, n)) for start in range(0, n, ROWS)]

    def share_name(self, other: str) -> str:
        return super().share_name(other) if self.layout.number else self._counts_name(other)

    def _counts_name(self, other: str) -> str:
        return f"{self.layout.rows_tag}: share with {other}"

    def rows(self, me: Party, number: int, other: str) -> NDArray[np.int8]:
        start, stop = self.chunks[number]
        places = self._places[me.name, other]
        codes = self._codes(me, [name for side in places for name in side])
        rows = np.zeros((stop - start, self._width(places)), dtype=np.int8)
        for side, (first, _) in places.items():
            cells = self._joint(codes, side)[start:stop]
            present = np.flatnonzero(cells >= 0)
            rows[present, first + cells[present]] = 1
        return rows

    def _codes(self, me: Party, names: Sequence[str]) -> dict[str, NDArray[np.int32]]:
        return cell_codes(me, self.layout.schema, list(dict.fromkeys(names)))

    def _joint(self, codes: Mapping[str, NDArray[np.int32]], side: Names) -> NDArray[np.int64]:
        """Each record's cell in several columns as one; -1 where one of them is missing."""
        shape = tuple(self.layout.schema.sizes[name] for name in side)
        joint = np.ravel_multi_index([np.maximum(codes[name], 0) for name in side], shape)
        return np.where(np.all([codes[name] >= 0 for name in side], axis=0), joint, -1).astype(np.int64)

    # --- what a party adds to an opening ------------------------------------------------------------------

    def addends(self, me: Party, number: int, cross: Mapping[str, Words]) -> Words:
        layout = self.layout
        own = [name for table in layout.tables if not self._between(table) for name in table.columns]
        codes = self._codes(me, [name for name in own if layout.facts.owner(name) == me.name])
        words = []
        for table in layout.tables:
            cells = np.zeros(layout.shape(table), dtype=np.uint64)
            if me.name in self._owners(table):
                within = not self._between(table)
                full = self._counted(codes, layout.axes(table)) if within else self._share_of(me, cross, table)
                cells = self._coarse(full, table)
            words += [cells.reshape(-1)] * table.units
        return np.concatenate(words)

    def _counted(self, codes: Mapping[str, NDArray[np.int32]], axes: Names) -> Words:
        """The counts of a table within this party."""
        cells = self._joint(codes, axes)
        size = math.prod(self.layout.schema.sizes[name] for name in axes)
        return np.bincount(cells[cells >= 0], minlength=size).astype(np.uint64)

    def _share_of(self, me: Party, cross: Mapping[str, Words], table: TableQuery) -> Words:
        """This party's shares of the counts of a table's two sides: of this round's products, or of the first's."""
        one, other = self._owners(table)
        first, second = self._sides(table)
        partner = other if me.name == one else one
        if len(table.columns) == 3:
            shares, encrypter = cross[partner], self.roles(one, other)[0]
            places = self._places[one, other][first], self._places[other, one][second]
        else:
            shares, encrypter = me.recall(self._counts_name(partner)), self._first_roles(one, other)[0]
            places = self._indicators[one][first], self._indicators[other][second]
        left, right = (slice(*place) for place in places)
        block: Words = shares[left, right] if encrypter == one else shares[right, left].T
        return block

    def _coarse(self, full: Words, table: TableQuery) -> Words:
        """Cells summed to bins, along each axis."""
        bins = dict(zip(table.columns, table.bins, strict=True))
        axes = self.layout.axes(table)
        cells: Any = full.reshape([self.layout.schema.sizes[name] for name in axes])
        for axis, name in enumerate(axes):
            if bins[name] is not None:
                bin_of = np.array(bins[name])
                sums = [
                    cells.compress(bin_of == number, axis=axis).sum(axis=axis) for number in range(bin_of.max() + 1)
                ]
                cells = np.stack(sums, axis=axis)
        return np.asarray(cells, dtype=np.uint64)

    def noise(self, me: Party, number: int) -> Words:
        return drawn(me, mu=self.layout.mu, size=sum(self.layout.opened))

    def opened_size(self, number: int) -> int:
        return sum(self.layout.opened)
