"""The public cells of a field's columns, where they may be coarser, and which tables of them are asked for.

Cells follow from declared domains alone (`Schema.declared`), or from noisy quantiles that are released first
(`PrivateCuts`). A table in coarse bins has fewer cells, so each holds more records against the same noise:
`equal_width` looks at the domain only, `equal_mass` at a noisy one-way table that was released before.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from colonnade.codec import plain, record
from colonnade.data.aggregation import records
from colonnade.data.column import Column, Columns
from colonnade.errors import BadArguments, BadPrivacyParameter
from colonnade.federation.facts import PublicFacts
from colonnade.federation.job import Job
from colonnade.federation.party import Party
from colonnade.federation.roster import Roster
from colonnade.federation.stage import Later, Stage, fields_of, is_number, stage
from colonnade.privacy.calibration import Calibration, Gaussians
from colonnade.privacy.cost import Cost, Gaussian
from colonnade.statistics.adaptive import AdaptiveMarginal, Axis, Forecast, most_counts
from colonnade.statistics.cells import Cells, cells, gapless
from colonnade.statistics.describe import ROUNDS, adaptive_marginal, adaptive_rounds, marginal
from colonnade.synthesis.field.graph import Names

Reals = NDArray[np.float64]
Integers = NDArray[np.int64]
Cuts = Literal["declared", "quantiles"]

MAXIMUM_CELLS = 1 << 16
"""Cells of one column."""
CUTS_SHARE = 0.05
"""Share of the budget that private cuts take first, if there is a column that needs them."""
CUTS_RULE = (
    "the planned cells of the columns, but for rising edges within the declared bounds, at the noisy quantiles that the"
    " job released first, and for no more cells than planned"
)
"""What bounds a schema that is known only after private cuts."""


# --- the cells of the columns -----------------------------------------------------------------------------------


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
        names = tuple(name for own in facts.wanted(columns).values() for name in own)
        public = {name: cells(facts.column(name), bins=bins) for name in names}
        edges = {name: tuple(map(float, cut.edges)) for name, cut in public.items() if cut.edges is not None}
        return cls(facts, edges, names)

    @classmethod
    def from_dict(cls, facts: PublicFacts, stated: Mapping[str, Any]) -> Schema:
        return record(cls, {**stated, "facts": facts}, "the cells of a request")

    def to_dict(self) -> dict[str, Any]:
        return {"names": plain(self.names), "edges": plain(self.edges)}

    def __post_init__(self) -> None:
        if not self.names or len(set(self.names)) != len(self.names):
            raise BadArguments("a field needs at least one column, and each once.")
        for name in self.names:
            column, edges = self.facts.column(name), self.edges.get(name)
            if column.discrete != (edges is None):
                raise BadArguments(f"column {name!r} needs edges if it is numeric, and only then.")
            if edges is not None and (len(edges) < 2 or not np.isfinite(edges).all() or not (np.diff(edges) > 0).all()):
                raise BadArguments(f"the edges of column {name!r} must be at least two rising numbers.")
            if len(self.cells[name]) > MAXIMUM_CELLS:
                raise BadArguments(f"column {name!r} has {len(self.cells[name]):,} cells; declare cuts or group them.")

    @cached_property
    def cells(self) -> dict[str, Cells]:
        return {name: column_cells(column, self.edges.get(name)) for name, column in self.columns.items()}

    @cached_property
    def sizes(self) -> dict[str, int]:
        return {name: len(public) for name, public in self.cells.items()}

    @property
    def columns(self) -> Columns:
        """As they are in the field: one whose records with empty cells count as absent has none."""
        declared = {name: self.facts.column(name) for name in self.names}
        return Columns(gapless(column) if name in self.filled else column for name, column in declared.items())

    @cached_property
    def filled(self) -> Names:
        """The columns in which an empty cell makes its party's record count as absent; of any other column it is a
        value of its own."""
        every = ((name, self.facts.column(name)) for name in self.names)
        return tuple(name for name, column in every if column.rule_for_empty("level", "drop") == "drop")

    @property
    def parties(self) -> Names:
        """The data parties that have a column of the field."""
        return tuple(party for party in self.facts.parties if self.of(party))

    def of(self, party: str) -> Names:
        return tuple(name for name in self.names if name in self.facts.columns[party])

    def owners(self, columns: Sequence[str]) -> frozenset[str]:
        """The parties of some columns."""
        return frozenset(self.facts.owner(name) for name in columns)

    def joint_pair(self, columns: Sequence[str]) -> Names | None:
        """Of three columns, the two of one party with the fewest joint cells: it can share them as one one-hot row, and
        the table is a product of two shares. None if the columns belong to three parties."""
        own = self.facts.owner
        pairs = [pair for pair in itertools.combinations(columns, 2) if own(pair[0]) == own(pair[1])]
        return min(pairs, key=lambda pair: self.sizes[pair[0]] * self.sizes[pair[1]]) if pairs else None

    def starts(self, party: str) -> dict[str, tuple[int, int]]:
        """Where each column's cells stand in the party's one-hot row."""
        names = self.of(party)
        ends = itertools.accumulate((self.sizes[name] for name in names), initial=0)
        return dict(zip(names, itertools.pairwise(ends), strict=True))


def column_cells(column: Column, edges: Sequence[float] | None) -> Cells:
    if edges is None:
        return cells(column, bins=1)
    extra = ("missing",) if column.missing else ()
    labels = tuple(f"{low:.6g} to {high:.6g}" for low, high in itertools.pairwise(edges))
    return Cells((*labels, *extra), np.array(edges), column.missing)


def cut_into_cells(columns: Columns, public: Mapping[str, Cells], names: Sequence[str]) -> list[str]:
    """Those of the named columns that vary within their cells; a cell for each integer loses nothing."""
    numeric = {name: edges for name in names if (edges := public[name].edges) is not None}
    return [name for name, edges in numeric.items() if not columns[name].whole or np.diff(edges).max() > 1]


def cell_codes(me: Party, schema: Schema, names: Sequence[str]) -> dict[str, NDArray[np.int32]]:
    """Each record's cell in each column, over the whole cohort; -1 where this party lacks the record.

    An empty cell of a present record is the cell "missing" of a column that may be empty.
    """
    codes = {name: np.full(me.facts.n, -1, dtype=np.int32) for name in names}
    complete = [name for name in schema.of(me.name) if name in schema.filled]
    for rows, values in me.mapped(list(names), records, filled=complete):
        for name in names:
            codes[name][rows] = schema.cells[name].codes(values[name])
    return codes


# --- coarse bins --------------------------------------------------------------------------------------------------


def equal_width(cells: int, bins: int) -> Integers:
    """The bin of each cell: floor(cells / bins) cells a bin, the rest in the last one. A column with no more cells than
    bins stays as it is (the VertiMRF paper's width would be 0)."""
    if bins < 1:
        raise BadArguments(f"bins must be an integer of at least 1, not {bins!r}.")
    if cells <= bins:
        return np.arange(cells, dtype=np.int64)
    return np.minimum(np.arange(cells, dtype=np.int64) // (cells // bins), bins - 1)


def equal_mass(chances: Reals, bins: int) -> Integers:
    """The bin of each cell: neighbouring cells that hold about 1 / bins of the mass together."""
    mass = np.maximum(chances, 0.0)
    total = float(mass.sum())
    if chances.size <= bins or bins < 1 or total <= 0:
        return equal_width(chances.size, bins)
    middle = (np.cumsum(mass) - mass / 2) / total
    raw = np.minimum((middle * bins).astype(np.int64), bins - 1)
    return np.unique(raw, return_inverse=True)[1].astype(np.int64)


# --- which table --------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class TableQuery:
    """One table: its columns, the bin of each cell (None: cell by cell), and how many units of the budget it gets."""

    columns: Names
    bins: tuple[tuple[int, ...] | None, ...]
    units: int = 1

    @classmethod
    def of(cls, columns: Sequence[str], bins: Mapping[str, Integers] | None = None, *, units: int = 1) -> TableQuery:
        """`bins` that keep every cell apart are left out."""
        coarse = {name: bin_of for name, bin_of in (bins or {}).items() if int(bin_of.max()) + 1 < bin_of.size}
        kept = tuple(tuple(coarse[name].tolist()) if name in coarse else None for name in columns)
        return cls(tuple(columns), kept, units)

    def maps(self) -> tuple[Integers | None, ...]:
        return tuple(None if bins is None else np.array(bins, dtype=np.int64) for bins in self.bins)


# --- edges at private quantiles -----------------------------------------------------------------------------------


class PrivateCuts:
    """Edges from private marginals, for numeric columns without declared cuts: a cell for each large point mass, the
    others of about equal mass.

    Each party counts cells between the declared bounds, with discrete Gaussian noise (the step of `describe`).
    With `cuts="declared"`, or without such columns, nothing is asked. `share` of (epsilon, delta) in zCDP is spent.
    """

    def __init__(
        self,
        schema: Schema,
        roster: Roster,
        cuts: Cuts,
        *,
        cells: int,
        epsilon: float | None,
        delta: float,
        share: float,
    ) -> None:
        self.schema, self.cells = schema, cells
        cut = {name: schema.facts.column(name) for name in schema.edges} if cuts == "quantiles" else {}
        # Where there is a cell for each integer, quantiles have nothing to say.
        wanted = [name for name, column in cut.items() if column.cuts is None and not _listed(column, cells)]
        self.columns = {party: [name for name in schema.of(party) if name in wanted] for party in schema.parties}
        self.costs: tuple[Cost, ...] = ()
        self.stages: tuple[Stage, ...] = ()
        if not wanted:
            return
        if epsilon is None:
            raise BadPrivacyParameter("private quantiles need an epsilon; take cuts='declared'.")
        scale = Calibration({"all of it": Gaussians()}, epsilon=epsilon, delta=delta).scale
        multiplier = Gaussians(count=len(wanted), share=share).level(scale)
        self.costs = (Gaussian(multiplier, replace_factor=2**0.5).times(len(wanted)),)
        self.level = multiplier
        shape = {"shape": "adaptive", "bins": cells, "noise": "gaussian", "level": multiplier}
        self.stage = stage(
            "private cuts",
            marginal,
            {party: [{"column": name, **shape} for name in names] for party, names in self.columns.items()},
            facts=schema.facts,
            roster=roster,
            discloses="noisy counts of cells between one column's bounds, round by round",
            reply_bytes=8 * most_counts(ROUNDS["gaussian"]),
        )
        self.stages = (self.stage,)

    def forecast(self, name: str) -> str | None:
        """What the marginal of a column that is cut here will be worth; None if it is not."""
        if not self.stages or not any(name in names for names in self.columns.values()):
            return None
        column, rounds = self.schema.facts.column(name), adaptive_rounds("gaussian", self.level)
        return Forecast.of(Axis.of(column), n=self.schema.facts.n, rounds=rounds).in_words()

    @property
    def later(self) -> dict[str, Later]:
        """What a stage after this one names as known later: the schema, if edges are still to come."""
        return {"schema": fields_of(CUTS_RULE, edges=self.accepts)} if self.stages else {}

    def accepts(self, edges: Any) -> bool:
        """Edges that the released quantiles may give, and the planned ones of all other columns."""
        cut = {name for names in self.columns.values() for name in names}
        return set(edges) == set(self.schema.edges) and all(
            self._rising(name, each) if name in cut else list(each) == list(self.schema.edges[name])
            for name, each in edges.items()
        )

    def _rising(self, name: str, edges: Any) -> bool:
        column = self.schema.facts.column(name)
        lower, top = _ends(column)
        return (
            2 <= len(edges) <= self.cells + 1
            and all(is_number(edge, lower, top) for edge in edges)
            and (edges[0], edges[-1]) == (lower, top)
            and all(low < high for low, high in itertools.pairwise(edges))
        )

    def run(self, job: Job) -> tuple[Schema, dict[str, AdaptiveMarginal]]:
        """The schema with these edges, and the marginals that they are from; the declared one if nothing is asked."""
        marginals: dict[str, AdaptiveMarginal] = {}
        if not self.stages:
            return self.schema, marginals
        edges = dict(self.schema.edges)
        for turn in range(self.stage.rounds):
            for party, counts in job.ask(self.stage).items():
                column = job.facts.column(self.columns[party][turn])
                fitted = adaptive_marginal(column, counts, n=job.facts.n, noise="gaussian", level=self.level)
                edges[column.name] = fitted.cuts(self.cells)
                marginals[column.name] = fitted
        return replace(self.schema, edges=edges), marginals


def given_schema(asked: Stage, schema: Schema) -> dict[str, Any]:
    """The later argument of a stage that waits for private cuts; nothing where the plan has the schema."""
    return {"schema": schema.to_dict()} if "schema" in asked.later else {}


def _listed(column: Column, cells: int) -> bool:
    """Has each integer of the column a cell of its own?"""
    lower, top = _ends(column)
    return column.whole and top - lower <= cells


def _ends(column: Column) -> tuple[float, float]:
    """The first and the last edge of a numeric column; of integers the cells are [a, b)."""
    assert column.lower is not None
    assert column.upper is not None
    return float(column.lower), float(column.upper + 1 if column.whole else column.upper)
