"""What the encoders have in common: the cells of the columns, the question, the answer.

An encoder is the paper's pair LocEnc and CarEst. `phases` states what its parties will do and what that costs;
`encode` makes the parties encode their columns; the `Encoded` that comes back estimates contingency tables. With `fm`
and `fo` any table may be asked for once the columns are encoded. With `sqm` each table is a release of its own.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar, Protocol

import numpy as np
from numpy.typing import NDArray

from colonnade.data.column import Column, Columns
from colonnade.errors import BadArguments
from colonnade.federation.facts import PublicFacts
from colonnade.federation.job import Job
from colonnade.federation.party import Party
from colonnade.federation.plan import Phase
from colonnade.federation.roster import Roster
from colonnade.statistics.cells import Cells, cells
from colonnade.synthesis.mrf.fit import Measurement
from colonnade.synthesis.mrf.graph import Names

Integers = NDArray[np.int64]
MAXIMUM_CELLS = 1 << 16
"""Cells of one column."""


# --- the cells of the columns ----------------------------------------------------------------------------------


@dataclass(frozen=True)
class Schema:
    """The columns of a field and their public cells. `edges` cut numeric columns: from their declared domain, or from
    noisy quantiles that were released before."""

    facts: PublicFacts
    edges: Mapping[str, tuple[float, ...]]
    names: Names

    @classmethod
    def declared(cls, facts: PublicFacts, *, bins: int, columns: Sequence[str] | None = None) -> Schema:
        """Declared cuts where a column has them, else `bins` cells of equal width between its bounds."""
        everything = [name for own in facts.columns.values() for name in own]
        for name in columns or ():
            facts.owner(name)
        names = tuple(name for name in everything if columns is None or name in columns)
        edges = {}
        for name in names:
            public = cells(facts.column(name), bins=bins)
            if public.edges is not None:
                edges[name] = tuple(float(one) for one in public.edges)
        return cls(facts, edges, names).checked()

    @classmethod
    def from_dict(cls, facts: PublicFacts, plain: Mapping[str, Any]) -> Schema:
        try:
            names = tuple(str(name) for name in plain["names"])
            edges = {str(name): tuple(float(one) for one in cut) for name, cut in plain["edges"].items()}
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise BadArguments(f"the cells of a request cannot be read ({error}).") from error
        return cls(facts, edges, names).checked()

    def to_dict(self) -> dict[str, Any]:
        return {"names": list(self.names), "edges": {name: list(cut) for name, cut in self.edges.items()}}

    def checked(self) -> Schema:
        if not self.names or len(set(self.names)) != len(self.names):
            raise BadArguments("a field needs at least one column, and each once.")
        for name in self.names:
            column = self.facts.column(name)
            if column.discrete != (name not in self.edges):
                raise BadArguments(f"column {name!r} needs edges if it is numeric, and only then.")
            if name in self.edges:
                _check_edges(column, self.edges[name])
            if len(self.cells[name]) > MAXIMUM_CELLS:
                raise BadArguments(f"column {name!r} has {len(self.cells[name]):,} cells; declare cuts or group them.")
        return self

    @cached_property
    def cells(self) -> dict[str, Cells]:
        return {name: _cells(self.facts.column(name), self.edges.get(name)) for name in self.names}

    @cached_property
    def sizes(self) -> dict[str, int]:
        return {name: len(public) for name, public in self.cells.items()}

    @property
    def columns(self) -> Columns:
        return Columns(self.facts.column(name) for name in self.names)

    @property
    def parties(self) -> Names:
        """The data parties that have a column here."""
        return tuple(party for party in self.facts.parties if self.of(party))

    def of(self, party: str) -> Names:
        return tuple(name for name in self.names if name in self.facts.columns[party])

    def joint_pair(self, columns: Sequence[str]) -> Names | None:
        """Of three columns, the two of one party with the fewest joint cells: it can share them as one one-hot row, and
        the table is a product of two shares. None if the columns belong to three parties."""
        own = self.facts.owner
        pairs = [pair for pair in itertools.combinations(columns, 2) if own(pair[0]) == own(pair[1])]
        return min(pairs, key=lambda pair: self.sizes[pair[0]] * self.sizes[pair[1]]) if pairs else None

    def starts(self, party: str) -> dict[str, tuple[int, int]]:
        """Where each column's cells stand in the party's one-hot row."""
        found, at = {}, 0
        for name in self.of(party):
            found[name] = (at, at + self.sizes[name])
            at += self.sizes[name]
        return found


def _check_edges(column: Column, edges: Sequence[float]) -> None:
    if len(edges) < 2 or not all(math.isfinite(one) for one in edges) or not np.all(np.diff(edges) > 0):
        raise BadArguments(f"the edges of column {column.name!r} must be at least two rising numbers.")


def _cells(column: Column, edges: Sequence[float] | None) -> Cells:
    if edges is None:
        return cells(column, bins=1)
    extra = ("missing",) if column.missing else ()
    labels = tuple(f"{low:.6g} to {high:.6g}" for low, high in itertools.pairwise(edges))
    return Cells((*labels, *extra), np.array(edges), column.missing)


def cell_codes(me: Party, schema: Schema, names: Sequence[str]) -> dict[str, NDArray[np.int32]]:
    """Each record's cell in each column, over the whole cohort; -1 where this party lacks the record.

    An empty cell of a present record is the cell "missing" of a column that may be empty.
    """
    found = {name: np.full(me.facts.n, -1, dtype=np.int32) for name in names}
    for at, values in me.chunks(list(names)):
        for name in names:
            found[name][at] = schema.cells[name].codes(values[name])
    return found


# --- the question and the answer -------------------------------------------------------------------------------


@dataclass(frozen=True)
class Wanted:
    """One table: its columns, the bin of each cell (None: cell by cell), and how many units of the budget it gets."""

    columns: Names
    bins: tuple[tuple[int, ...] | None, ...]
    units: int = 1

    @classmethod
    def of(cls, columns: Sequence[str], bins: Mapping[str, Integers] | None = None, *, units: int = 1) -> Wanted:
        """`bins` that keep every cell apart are left out."""
        coarse: list[tuple[int, ...] | None] = []
        for name in columns:
            one = None if bins is None else bins[name]
            apart = one is None or int(one.max()) + 1 == one.size
            coarse.append(None if apart or one is None else tuple(one.tolist()))
        return cls(tuple(columns), tuple(coarse), units)

    def maps(self) -> tuple[Integers | None, ...]:
        return tuple(None if one is None else np.array(one, dtype=np.int64) for one in self.bins)


class Encoded(Protocol):
    """The encoded columns: CarEst."""

    def tables(self, wanted: Sequence[Wanted]) -> list[Measurement]:
        """The estimated counts of each table, with the standard deviation of one count."""
        ...


class Encoder(Protocol):
    """LocEnc, as the coordinator sees it."""

    name: ClassVar[str]

    def phases(self, schema: Schema, roster: Roster) -> list[Phase]:
        """What the parties do, and what it costs."""
        ...

    def notes(self, schema: Schema, roster: Roster) -> tuple[str, ...]:
        """What a plan should say about it."""
        ...

    def encode(self, job: Job, schema: Schema) -> Encoded:
        """Have the parties encode their columns."""
        ...
