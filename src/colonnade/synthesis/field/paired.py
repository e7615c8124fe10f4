"""The rounds of tables by two institutions alone: all products between their indicators once, then only sums.

Shares of the counts of every cell of one party's columns with every cell of the other's are computed with the first
round and kept. Coarse and fine tables of two columns are sums of these counts, which each party takes of its own
shares; a table within a party it counts alone. A table of three columns needs products with the joint indicators of
two columns of one party, which its own round computes.
"""

from __future__ import annotations

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
    def _places(self) -> dict[str, dict[Names, tuple[int, int]]]:
        """What each party brings to this round's products: indicators of columns, and of two columns as one."""
        layout, schema = self.layout, self.layout.schema
        places = {party: dict(own) if layout.number == 0 else {} for party, own in self._indicators.items()}
        for table in layout.tables:
            for side in self._sides(table) if self._between(table) and len(table.columns) == 3 else ():
                own = places[layout.facts.owner(side[0])]
                start = self._width(own)
                own.setdefault(side, (start, start + math.prod(schema.sizes[name] for name in side)))
        return places

    def _sides(self, table: TableQuery) -> tuple[Names, Names]:
        """What is multiplied: two columns, or one and a joint pair."""
        axes = self.layout.axes(table)
        return axes[:1], axes[1:]

    def _between(self, table: TableQuery) -> bool:
        """Whether a table has columns of both parties."""
        return len({self.layout.facts.owner(name) for name in table.columns}) == 2

    @cached_property
    def widths(self) -> dict[str, int]:
        return {party: self._width(own) for party, own in self._places.items()}

    @cached_property
    def _first_roles(self) -> tuple[str, str]:
        """Who encrypts in the first round: by the columns alone, which all rounds know."""
        names = sorted(self.layout.roster.names, key=lambda name: self._width(self._indicators.get(name, {})))
        return names[0], names[1]

    @cached_property
    def roles(self) -> tuple[str, str] | None:
        if self.layout.number:
            return super().roles
        return self._first_roles if all(self.widths.get(name) for name in self._first_roles) else None

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

    @property
    def share_name(self) -> str:
        return super().share_name if self.layout.number else self._counts_name

    @property
    def _counts_name(self) -> str:
        return f"{self.layout.rows_tag}: share"

    def rows(self, me: Party, number: int) -> NDArray[np.int8]:
        start, stop = self.chunks[number]
        codes = self._codes(me, [name for side in self._places[me.name] for name in side])
        rows = np.zeros((stop - start, self.widths[me.name]), dtype=np.int8)
        for side, (first, _) in self._places[me.name].items():
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

    def addends(self, me: Party, number: int, cross: Words) -> Words:
        layout = self.layout
        counts = me.recall(self._counts_name) if me.kept(self._counts_name) else cross
        own = [name for table in layout.tables if not self._between(table) for name in table.columns]
        codes = self._codes(me, [name for name in own if layout.facts.owner(name) == me.name])
        words = []
        for table in layout.tables:
            if not self._between(table):
                mine = layout.facts.owner(table.columns[0]) == me.name
                full = self._counted(codes, layout.axes(table)) if mine else None
            elif len(table.columns) == 3:
                full = self._block(cross, self._places, self.roles or self._first_roles, *self._sides(table))
            else:
                full = self._block(counts, self._indicators, self._first_roles, *self._sides(table))
            cells = np.zeros(layout.shape(table), dtype=np.uint64) if full is None else self._coarse(full, table)
            words += [cells.reshape(-1)] * table.units
        return np.concatenate(words)

    def _counted(self, codes: Mapping[str, NDArray[np.int32]], axes: Names) -> Words:
        """The counts of a table within this party."""
        cells = self._joint(codes, axes)
        size = math.prod(self.layout.schema.sizes[name] for name in axes)
        return np.bincount(cells[cells >= 0], minlength=size).astype(np.uint64)

    def _block(
        self,
        shares: Words,
        places: Mapping[str, Mapping[Names, tuple[int, int]]],
        roles: tuple[str, str],
        first: Names,
        second: Names,
    ) -> Words:
        """Shares of the counts of two sides, as (first, second)."""
        owner = self.layout.facts.owner
        spans = {owner(side[0]): slice(*places[owner(side[0])][side]) for side in (first, second)}
        block = shares[spans[roles[0]], spans[roles[1]]]
        return block if owner(first[0]) == roles[0] else block.T

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
