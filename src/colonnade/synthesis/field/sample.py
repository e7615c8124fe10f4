"""Sampling: fresh rows from a fitted field, a block at a time, and the synthetic table that is made of them.

Columns are drawn in the reverse of the elimination order, each given its parents in the field. Within a block, rows
with the same parents share out the conditional distribution by systematic sampling: uniform points one row apart, so a
block follows the field more closely than independent rows would, and each row is still a draw of it.

A number in a cell is drawn so that the association goes on within the cell. Ordered columns are taken as steps of a
latent normal vector whose correlation the field's own cells imply (`latent_correlation`); given the cells of a row the
vector lies in a box, and its place there is the place of the numbers in their cells. The distribution within a cell is
that of the private marginal which the cells were cut by, or uniform where edges were declared.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from scipy import special

from colonnade.data.column import Column, Columns
from colonnade.federation.job import Job
from colonnade.statistics.cells import Cells
from colonnade.statistics.latent_correlation import invert_bridge, repair, step_coefficients
from colonnade.statistics.marginals import Marginal
from colonnade.synthesis.field.fit import MarkovField, conditional
from colonnade.synthesis.field.graph import Triangulation
from colonnade.synthesis.field.schema import Schema, column_cells, cut_into_cells
from colonnade.synthesis.latent import rows_in_boxes
from colonnade.synthesis.restrictions import Condition
from colonnade.synthesis.table import BATCH, Format, Source, SyntheticTable, generator, recut

Integers = NDArray[np.int64]
Reals = NDArray[np.float64]
_NEARLY_ONE = 1 - 2.0**-40


def sample_cells(
    field: MarkovField, rows: int, source: np.random.Generator, *, independent: bool = False
) -> dict[str, Integers]:
    """One block: the cell of each row in each column. `independent` rows are those of a simulated cohort."""
    drawn: dict[str, Integers] = {}
    for name, parents in field.graph.drawing_order():
        chances = conditional(field, name, parents)
        group = np.zeros(rows, dtype=np.int64)
        for parent in parents:
            group = group * field.graph.sizes[parent] + drawn[parent]
        drawn[name] = _cells_of(chances.reshape(-1, chances.shape[-1]), group, source, independent)
    return {name: drawn[name] for name in field.graph.sizes}


def _cells_of(chances: Reals, group: Integers, source: np.random.Generator, independent: bool) -> Integers:
    """A cell for each row: rows of one group, in random order, take points (rank + u) / size of its distribution."""
    shuffled = source.permutation(group.size)
    order = shuffled[np.argsort(group[shuffled], kind="stable")]
    groups, first, size = np.unique(group[order], return_index=True, return_counts=True)
    place = np.repeat(np.arange(groups.size), size)
    points = source.random(group.size)
    if not independent:
        points = (np.arange(group.size) - first[place] + points) / size[place]
    cumulative = np.cumsum(chances[groups], axis=1)
    # The last cell that has any chance ends at 1, so that rounding never reaches one that has none.
    last = chances.shape[1] - 1 - np.argmax(chances[groups][:, ::-1] > 0, axis=1)
    cumulative[np.arange(chances.shape[1]) >= last[:, None]] = 1.0
    flat = (cumulative + np.arange(groups.size)[:, None]).ravel()
    reached = np.searchsorted(flat, np.minimum(points, _NEARLY_ONE) + place, side="right")
    cells = np.empty(group.size, dtype=np.int64)
    cells[order] = np.clip(reached - place * chances.shape[1], 0, last[place])
    return cells


# --- numbers within cells ---------------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Ordered:
    """A column as steps of a latent normal variable: cell k is u in [ends[k], ends[k + 1]], and of a numeric column the
    value at u is `marginal.quantile(u)`. A last cell "missing" says nothing about the variable."""

    ends: Reals
    marginal: Marginal | None
    edges: Reals

    @classmethod
    def of(cls, column: Column, public: Cells, chances: Reals, shape: Marginal | None) -> Ordered:
        held = np.maximum(chances[: len(public) - public.missing], 0.0)
        total = float(held.sum())
        shares = held / total if total > 0 else np.full(held.size, 1 / held.size)
        ends = np.concatenate([[0.0], np.cumsum(shares)])
        ends[-1] = 1.0
        if public.edges is None:
            return cls(ends, None, np.arange(held.size + 1, dtype=np.float64))
        edges = public.edges
        if (
            column.whole
        ):  # a cell holds the integers from its lower edge to below its upper one; the last, the bound too
            assert column.upper is not None
            edges = np.append(np.ceil(edges[:-1]), column.upper + 1)
        return cls(ends, _distribution(edges, ends, shape, whole=column.whole), edges)

    def box(self, cells: Integers, low: float, high: float) -> tuple[Reals, Reals]:
        """The ends of u for each row's cell, within those of a condition."""
        inside = np.minimum(cells, self.ends.size - 2)
        missing = cells > self.ends.size - 2
        left, right = np.maximum(self.ends[inside], low), np.minimum(self.ends[inside + 1], high)
        return np.where(missing, 0.0, left), np.where(missing, 1.0, np.maximum(left, right))


def _distribution(edges: Reals, ends: Reals, shape: Marginal | None, *, whole: bool) -> Marginal:
    """The cells' masses, spread within each cell as `shape` says, or evenly. A point mass has a cell that no third
    double fits into: its value is the inner edge."""
    points, cumulative = [], []
    for place, (low, high) in enumerate(itertools.pairwise(edges)):
        start, mass = ends[place], ends[place + 1] - ends[place]
        knots, shares = np.array([low, high]), np.array([0.0, 1.0])
        if not whole and np.nextafter(low, np.inf) >= high:
            knots = np.full(2, high if place == edges.size - 2 else low)
        elif shape is not None:
            below, upto = shape.below([low, high])
            upto = 1.0 if place == edges.size - 2 else upto
            inner = (shape.points >= low) & (shape.points < high) & (shape.cumulative >= below)
            if upto - below > 1e-12:
                knots = np.concatenate([[low], shape.points[inner], [high]])
                shares = (np.concatenate([[below], shape.cumulative[inner], [upto]]) - below) / (upto - below)
        points.append(knots)
        cumulative.append(start + mass * np.clip(shares, 0.0, 1.0))
    joined = np.maximum.accumulate(np.concatenate(cumulative))
    joined[0], joined[-1] = 0.0, 1.0
    return Marginal(np.maximum.accumulate(np.concatenate(points)), np.minimum(joined, 1.0))


UNFINISHED = 0.1
"""Of the misfit; an excess below it is not worth a sentence."""
LOOKED_AT = 20_000
"""Rows of the field from which the latent correlation is computed, once; they come from the released tables only."""


def latent_correlation(field: MarkovField, ordered: Mapping[str, Ordered]) -> Reals:
    """Of the normal vector whose steps the ordered columns are, pair by pair, as the field's cells go together.

    A column shows the mean of the latent variable in its cell, a step function of it, and the covariance of two such
    steps grows with the correlation (Mehler): it is inverted.
    """
    cells = sample_cells(field, LOOKED_AT, np.random.default_rng(0))
    scores, coefficients = [], []
    for name, column in ordered.items():
        heights = np.exp(-(special.ndtri(column.ends) ** 2) / 2) / math.sqrt(2 * math.pi)
        chances = np.diff(column.ends)
        means = np.divide(-np.diff(heights), chances, out=np.zeros(chances.size), where=chances > 0)
        scores.append(np.append(means, 0.0)[np.minimum(cells[name], means.size)])
        coefficients.append(step_coefficients(special.ndtri(column.ends[1:-1]), means))
    covariance = np.cov(np.array(scores), ddof=0).reshape(len(scores), -1)
    return repair(invert_bridge(covariance, np.array(coefficients)), floor=LEAST_EIGENVALUE)


LEAST_EIGENVALUE = 0.05
"""Of the latent correlation: within a cell no column is a function of the others."""


@dataclass(frozen=True, eq=False)
class FieldSampler:
    """A field with the public cells of its columns: what `SyntheticTable` draws rows from.

    shapes : marginals of numeric columns, for the distribution within their cells. where : conditions that the field
    was given already, for the numbers within cells.
    """

    columns: Columns
    cells: dict[str, Cells]
    field: MarkovField
    shapes: Mapping[str, Marginal] = dataclasses.field(default_factory=dict)
    where: Mapping[str, Condition] = dataclasses.field(default_factory=dict)
    free: MarkovField | None = None

    @cached_property
    def ordered(self) -> dict[str, Ordered]:
        """The columns with an order, as they are in the field without conditions."""
        free = self.free or self.field
        return {
            name: Ordered.of(column, self.cells[name], free.marginal((name,)), self.shapes.get(name))
            for name, column in self.columns.items()
            if column.kind != "categorical"
        }

    @cached_property
    def correlation(self) -> Reals:
        return latent_correlation(self.free or self.field, self.ordered)

    def given(self, where: Mapping[str, Condition]) -> FieldSampler:
        """The field conditioned on these values, exactly; a number that is no point mass stands for its cell."""
        evidence = {name: self._weights(name, condition) for name, condition in where.items()}
        return replace(
            self, field=self.field.given(evidence), where={**self.where, **where}, free=self.free or self.field
        )

    def _weights(self, name: str, condition: Condition) -> Reals:
        """The share of each cell's mass that the condition leaves."""
        public = self.cells[name]
        weights = np.zeros(len(public))
        if condition.codes is not None:
            weights[condition.codes] = 1.0
            return weights
        ordered, (low, high) = self.ordered[name], self._ends(name, condition)
        left = np.maximum(ordered.ends[:-1], low)
        inside = np.maximum(np.minimum(ordered.ends[1:], high) - left, 0.0)
        mass = np.diff(ordered.ends)
        weights[: mass.size] = np.divide(inside, mass, out=np.zeros(mass.size), where=mass > 0)
        if low == high and not weights.any():  # a number without a mass of its own
            weights[public.codes(np.array([condition.low]))] = 1.0
        return weights

    def _ends(self, name: str, condition: Condition) -> tuple[float, float]:
        """The ends of u that the condition leaves of a numeric column."""
        marginal = self.ordered[name].marginal
        assert marginal is not None
        if self.columns[name].whole:
            low, after = np.ceil(condition.low), np.floor(condition.high) + 1
            return float(marginal.below(low)), float(marginal.below(after))
        return float(marginal.below(condition.low)), float(marginal.cdf(condition.high))

    # --- rows -------------------------------------------------------------------------------------------------------

    def batches(self, rows: int, source: Source, *, size: int = BATCH) -> Iterator[pd.DataFrame]:
        """Rows are drawn in blocks of `BATCH`, whatever the size asked for: the same source gives the same rows."""
        drawn = generator(source)
        return recut((self._block(min(BATCH, rows - start), drawn) for start in range(0, rows, BATCH)), size)

    def _block(self, rows: int, source: np.random.Generator) -> pd.DataFrame:
        cells = sample_cells(self.field, rows, source)
        order = source.permutation(rows)
        cells = {name: codes[order] for name, codes in cells.items()}
        levels = self._levels(cells, source)
        return pd.DataFrame({name: self._values(name, cells[name], levels.get(name)) for name in self.columns})

    def _levels(self, cells: Mapping[str, Integers], source: np.random.Generator) -> dict[str, Reals]:
        """u of each numeric column, given the cells of all ordered ones."""
        names = list(self.ordered)
        if all(self.ordered[name].marginal is None for name in names):
            return {}
        boxes = []
        for name in names:
            condition = self.where.get(name)
            numeric = condition is not None and condition.codes is None
            ends = self._ends(name, condition) if condition is not None and numeric else (0.0, 1.0)
            boxes.append(self.ordered[name].box(cells[name], *((0.0, 1.0) if ends[0] == ends[1] else ends)))
        low, high = (special.ndtri(np.stack([box[side] for box in boxes], axis=1)) for side in (0, 1))
        latent = rows_in_boxes(self.correlation, low, high, source)
        return {name: special.ndtr(latent[:, place]) for place, name in enumerate(names)}

    def _values(self, name: str, cells: Integers, levels: Reals | None) -> pd.Series[Any]:
        """The category, or the number at this place of its distribution; empty for the cell "missing"."""
        column, public = self.columns[name], self.cells[name]
        empty = cells == len(public) - 1 if public.missing else np.zeros(cells.size, dtype=bool)
        if public.edges is None:
            return column.decode(np.where(empty, -1, cells).astype(np.int32))
        ordered, inside = self.ordered[name], np.where(empty, 0, cells)
        assert ordered.marginal is not None
        assert levels is not None
        numbers = ordered.marginal.quantile(levels)
        low, high = ordered.edges[inside], ordered.edges[inside + 1]
        numbers = (
            np.clip(np.floor(numbers), low, np.maximum(high - 1, low)) if column.whole else numbers.clip(low, high)
        )
        condition = self.where.get(name)
        if condition is not None:
            numbers = np.clip(numbers, condition.low, condition.high)
        numbers = np.clip(numbers, column.lower, column.upper)
        if column.whole:
            return column.decode(np.where(empty, np.asarray(column.lower), numbers)).mask(pd.Series(empty))
        return column.decode(np.where(empty, np.nan, numbers))

    def left_out(self, columns: Sequence[str]) -> str:
        """What the model lacks of the dependence of these columns, in a sentence."""
        if self.field.graph.home(columns) is None:
            return (
                f"No table of the field has all of {', '.join(columns)}: it takes some of them as independent given the"
                " others, and what is estimated from them together may be off by more than its interval."
            )
        cut = cut_into_cells(self.columns, self.cells, columns)
        if not cut:
            return ""
        return (
            f"The field has {', '.join(cut)} in cells, and no interval knows what is lost within these: intervals of"
            " means and coefficients covered too little in trials."
        )

    def to_arrays(self) -> dict[str, NDArray[Any]]:
        """The table of each clique, named by its columns, and each column's cells; `from_arrays` is its inverse."""
        field = self.free or self.field
        arrays: dict[str, NDArray[Any]] = {"order": np.array(field.graph.order), "total": np.array(field.total)}
        for place, name in enumerate(self.columns):
            edges, shape = self.cells[name].edges, self.shapes.get(name)
            if edges is not None:
                arrays[f"edges_{place}"] = edges
            if shape is not None:
                arrays[f"shape_{place}"] = np.stack([shape.points, shape.cumulative])
        for number, (clique, table) in enumerate(field.tables.items()):
            arrays[f"clique_{number}_columns"] = np.array(clique)
            arrays[f"clique_{number}"] = table
        return arrays

    @classmethod
    def from_arrays(cls, columns: Columns, arrays: Mapping[str, NDArray[Any]]) -> FieldSampler:
        public: dict[str, Cells] = {}
        shapes: dict[str, Marginal] = {}
        for place, (name, column) in enumerate(columns.items()):
            edges = arrays.get(f"edges_{place}")
            public[name] = column_cells(column, None if edges is None else edges.tolist())
            if f"shape_{place}" in arrays:
                shapes[name] = Marginal(*arrays[f"shape_{place}"])
        tables: dict[tuple[str, ...], Reals] = {}
        while (clique := arrays.get(f"clique_{len(tables)}_columns")) is not None:
            tables[tuple(map(str, clique))] = np.asarray(arrays[f"clique_{len(tables)}"])
        sizes = {name: len(own) for name, own in public.items()}
        graph = Triangulation(tuple(tables), tuple(map(str, arrays["order"])), sizes)
        return cls(columns, public, MarkovField(graph, tables, float(arrays["total"]), loss=0.0), shapes)


def synthetic_table(
    job: Job,
    schema: Schema,
    field: MarkovField,
    *,
    method: str,
    rows: int | None,
    file_format: Format,
    cost: str,
    notes: Sequence[str],
    details: Mapping[str, Any],
    shapes: Mapping[str, Marginal] | None = None,
) -> SyntheticTable:
    """What a job returns whose tables this field was fitted to; as many rows as the cohort unless it says otherwise."""
    return SyntheticTable(
        method=method,
        cohort=job.facts.n,
        model=FieldSampler(schema.columns, schema.cells, field, shapes or {}),
        drawn_from="a Markov random field",
        rows=job.facts.n if rows is None else rows,
        seed=int(job.generator("vertimrf: rows").integers(2**62)),
        cost=cost,
        simulated=job.simulated,
        file_format=file_format,
        released=job.plan.unbounded(),
        notes=(*notes, *unfinished(field)),
        details={**details, "cells": field.graph.cells, "loss": field.loss, "loss too large by at most": field.excess},
    )


def unfinished(field: MarkovField) -> tuple[str, ...]:
    """What the reader should know of a fit that ran out of steps far from its end."""
    share = field.excess / field.loss if field.loss else 0.0
    if share <= UNFINISHED:
        return ()
    return (
        f"The fit ran out of steps: its misfit to the noisy tables may be up to {math.ceil(100 * share)} % too large."
        " The rows are of the best field that was found; more `iterations` might have found a better one.",
    )
