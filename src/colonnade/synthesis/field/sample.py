"""Sampling: fresh rows from a fitted field, a block at a time, and the synthetic table that is made of them.

Columns are drawn in the reverse of the elimination order, each given its parents in the field. Within a block, rows
with the same parents share out the conditional distribution by systematic sampling: uniform points one row apart, so a
block follows the field more closely than independent rows would, and each row is still a draw of it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from colonnade.data.column import Columns
from colonnade.federation.job import Job
from colonnade.statistics.cells import Cells
from colonnade.synthesis.field.fit import MarkovField, conditional
from colonnade.synthesis.field.schema import Schema
from colonnade.synthesis.table import BATCH, Format, Source, SyntheticTable, generator

Integers = NDArray[np.int64]
_NEARLY_ONE = 1 - 2.0**-40


def sample_cells(field: MarkovField, rows: int, source: np.random.Generator) -> dict[str, Integers]:
    """One block: the cell of each row in each column."""
    drawn: dict[str, Integers] = {}
    for name, parents in field.graph.drawing_order():
        chances = conditional(field, name, parents)
        group = np.zeros(rows, dtype=np.int64)
        for parent in parents:
            group = group * field.graph.sizes[parent] + drawn[parent]
        drawn[name] = _systematic(chances.reshape(-1, chances.shape[-1]), group, source)
    return {name: drawn[name] for name in field.graph.sizes}


def _systematic(chances: NDArray[np.float64], group: Integers, source: np.random.Generator) -> Integers:
    """A cell for each row: rows of one group, in random order, take points (rank + u) / size of its distribution."""
    shuffled = source.permutation(group.size)
    order = shuffled[np.argsort(group[shuffled], kind="stable")]
    groups, first, size = np.unique(group[order], return_index=True, return_counts=True)
    place = np.repeat(np.arange(groups.size), size)
    points = (np.arange(group.size) - first[place] + source.random(group.size)) / size[place]
    cumulative = np.cumsum(chances[groups], axis=1)
    # The last cell that has any chance ends at 1, so that rounding never reaches one that has none.
    last = chances.shape[1] - 1 - np.argmax(chances[groups][:, ::-1] > 0, axis=1)
    cumulative[np.arange(chances.shape[1]) >= last[:, None]] = 1.0
    flat = (cumulative + np.arange(groups.size)[:, None]).ravel()
    reached = np.searchsorted(flat, np.minimum(points, _NEARLY_ONE) + place, side="right")
    cells = np.empty(group.size, dtype=np.int64)
    cells[order] = np.clip(reached - place * chances.shape[1], 0, last[place])
    return cells


@dataclass(frozen=True, eq=False)
class FieldSampler:
    """A field with the public cells of its columns: what `SyntheticTable` draws rows from."""

    columns: Columns
    cells: dict[str, Cells]
    field: MarkovField

    def batches(self, rows: int, source: Source, *, size: int = BATCH) -> Iterator[pd.DataFrame]:
        """Rows are drawn in blocks of `BATCH`, whatever the size asked for: the same source gives the same rows."""
        drawn = generator(source)
        waiting = pd.DataFrame()
        for start in range(0, rows, BATCH):
            block = self._block(min(BATCH, rows - start), drawn)
            waiting = block if waiting.empty else pd.concat([waiting, block], ignore_index=True)
            last = start + BATCH >= rows
            while len(waiting) >= size or (last and len(waiting)):
                yield waiting.iloc[:size].reset_index(drop=True)
                waiting = waiting.iloc[size:].reset_index(drop=True)

    def _block(self, rows: int, source: np.random.Generator) -> pd.DataFrame:
        cells = sample_cells(self.field, rows, source)
        order = source.permutation(rows)
        return pd.DataFrame({name: self._values(name, cells[name][order], source) for name in self.columns})

    def _values(self, name: str, cells: Integers, source: np.random.Generator) -> pd.Series[Any]:
        """A value in each cell: the category, or a number that is uniform in the cell; empty for the cell "missing"."""
        column, public = self.columns[name], self.cells[name]
        empty = cells == len(public) - 1 if public.missing else np.zeros(cells.size, dtype=bool)
        if public.edges is None:
            return column.decode(np.where(empty, -1, cells).astype(np.int32))
        inside = np.where(empty, 0, cells)
        low, high = public.edges[inside], public.edges[inside + 1]
        if column.kind == "continuous":
            numbers = np.clip(low + source.random(cells.size) * (high - low), column.lower, column.upper)
            # A point mass has a cell that no third double fits into: its value is the inner edge.
            single = np.nextafter(low, np.inf) >= high
            numbers = np.where(single, np.where(high == column.upper, high, low), numbers)
            return column.decode(np.where(empty, np.nan, numbers))
        # A cell holds the integers from its lower edge to below its upper one; the last holds the bound too.
        assert column.upper is not None
        first = np.ceil(low)
        after = np.where(inside == len(public.edges) - 2, column.upper + 1, np.ceil(high))
        counts = first + np.floor(source.random(cells.size) * np.maximum(after - first, 1))
        return column.decode(np.clip(counts, column.lower, column.upper)).mask(pd.Series(empty))

    def to_arrays(self) -> dict[str, NDArray[Any]]:
        """The table of each clique, named by its columns."""
        arrays: dict[str, NDArray[Any]] = {}
        for number, (clique, table) in enumerate(self.field.tables.items()):
            arrays[f"clique_{number}_columns"] = np.array(clique)
            arrays[f"clique_{number}"] = table
        return arrays


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
) -> SyntheticTable:
    """What a job returns whose tables this field was fitted to; as many rows as the cohort unless it says otherwise."""
    return SyntheticTable(
        method=method,
        cohort=job.facts.n,
        model=FieldSampler(schema.columns, schema.cells, field),
        drawn_from="a Markov random field",
        rows=job.facts.n if rows is None else rows,
        seed=int(job.generator("vertimrf: rows").integers(2**62)),
        cost=cost,
        simulated=job.simulated,
        file_format=file_format,
        released=job.plan.unbounded(),
        notes=tuple(notes),
        details={**details, "cells": field.graph.cells, "loss": field.loss},
    )
