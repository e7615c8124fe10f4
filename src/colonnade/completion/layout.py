"""How a table becomes the matrix that networks and imputers work on, and back.

A continuous, count or ordinal column is one number, its **declared** range mapped to [0, 1] (an ordinal column by its
position in the declared order); a binary or categorical column is one indicator for each category. Nothing is learned
from the data, so the scale is a public fact: an error on this matrix, such as the RMSE of a completion, means the same
at every party. A missing cell is NaN in all its places.

The matrix is float32, as networks want it. A count comes back exactly as long as its range is below 2^23.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from colonnade.data.column import Column, Columns
from colonnade.errors import BadArguments

Matrix = NDArray[np.float32]

COHORT_ROW = "cohort row"
"""The column of a completed table that says which record of the cohort a row is."""
DRAW = "draw"
"""The column of a table with several draws that says which one a row is of."""
GENERATED = " (generated)"
"""Ends the name of the column that flags the generated entries of another."""


@dataclass(frozen=True)
class Layout:
    """Where each column stands in the matrix: `slices`, in the order of `columns`."""

    columns: Columns

    @cached_property
    def slices(self) -> dict[str, slice]:
        slices, start = {}, 0
        for name, column in self.columns.items():
            slices[name] = slice(start, start + width_of(column))
            start = slices[name].stop
        return slices

    @cached_property
    def width(self) -> int:
        return sum(width_of(column) for column in self.columns.values())

    @cached_property
    def numeric_mask(self) -> NDArray[np.bool_]:
        """Which places of a row hold a scaled number rather than an indicator."""
        mask = np.zeros(self.width, dtype=np.bool_)
        for name, column in self.columns.items():
            mask[self.slices[name]] = is_numeric(column)
        return mask

    @property
    def numeric(self) -> list[str]:
        """The columns that are one number."""
        return [name for name, column in self.columns.items() if is_numeric(column)]

    @property
    def one_hot(self) -> list[str]:
        """The columns that are indicators."""
        return [name for name, column in self.columns.items() if not is_numeric(column)]

    def places(self, names: Iterable[str]) -> NDArray[np.intp]:
        """The places of these columns in a row, in the order of `names`."""
        places: list[int] = []
        for name in names:
            place = self.slices[self.columns[name].name]
            places.extend(range(place.start, place.stop))
        return np.array(places, dtype=np.intp)

    # --- there and back ------------------------------------------------------------------------------------------

    def encode(self, values: Mapping[str, NDArray[Any]]) -> Matrix:
        """From encoded columns (`Column.encode`: NaN or code -1 is missing) to the matrix.

        Values are clipped into the declared bounds, so that every number lies in [0, 1].
        """
        lacking = [name for name in self.columns if name not in values]
        if lacking:
            raise BadArguments(f"the layout needs the columns {', '.join(map(repr, lacking))} too; give all of them.")
        sizes = {len(values[name]) for name in self.columns}
        if len(sizes) > 1:
            raise BadArguments(f"columns of one table have one length, not {sorted(sizes)}; give the same records.")
        matrix = np.full((sizes.pop() if sizes else 0, self.width), np.nan, dtype=np.float32)
        for name, column, place in self._each():
            given = np.asarray(values[name], dtype=np.float64)
            known = given >= 0 if column.discrete else ~np.isnan(given)
            if is_numeric(column):
                lower, span = range_of(column)
                matrix[known, place.start] = np.clip((given[known] - lower) / span, 0.0, 1.0)
            else:
                codes = np.clip(given[known], 0, width_of(column) - 1)
                matrix[known, place] = codes[:, None] == np.arange(width_of(column))
        return matrix

    def decode(self, matrix: NDArray[Any]) -> dict[str, NDArray[Any]]:
        """Back to encoded columns: the likeliest category, numbers clipped, counts and positions rounded.

        A NaN is missing again: NaN, or the code -1. Of equal categories the first is taken.
        """
        rows = self.checked(matrix)
        codes: dict[str, NDArray[Any]] = {}
        for name, column, place in self._each():
            if not is_numeric(column):
                lost = np.isnan(rows[:, place]).any(axis=1)
                best = np.argmax(np.nan_to_num(rows[:, place], nan=-np.inf), axis=1)
                codes[name] = np.where(lost, -1, best).astype(np.int32)
                continue
            lower, span = range_of(column)
            numbers = lower + span * np.clip(rows[:, place.start].astype(np.float64), 0.0, 1.0)
            if column.kind == "continuous":
                codes[name] = np.clip(numbers, column.lower, column.upper)
            elif column.whole:
                codes[name] = np.clip(np.rint(numbers), column.lower, column.upper)
            else:
                codes[name] = np.where(np.isnan(numbers), -1, np.rint(np.nan_to_num(numbers))).astype(np.int32)
        return codes

    def legal(self, matrix: NDArray[Any]) -> Matrix:
        """The nearest rows that records could have: one category each, numbers in range, counts whole."""
        return self.encode(self.decode(matrix))

    def expectable(self, matrix: NDArray[Any]) -> Matrix:
        """The nearest rows that could be expected values: numbers in range, frequencies that are not negative and add
        up to 1. Every legal row is among these, so none is further from the truth than before."""
        rows = self.checked(matrix).astype(np.float64)
        expected = np.clip(rows, 0.0, 1.0)
        for name in self.one_hot:
            expected[:, self.slices[name]] = _frequencies(rows[:, self.slices[name]])
        return expected.astype(np.float32)

    def observed(self, matrix: NDArray[Any]) -> NDArray[np.bool_]:
        """Which entries are known."""
        return np.asarray(~np.isnan(self.checked(matrix)), dtype=np.bool_)

    def checked(self, matrix: NDArray[Any]) -> NDArray[Any]:
        """The matrix, if it has this layout's width."""
        rows = np.asarray(matrix)
        if rows.ndim != 2 or rows.shape[1] != self.width:
            raise BadArguments(f"a matrix of this layout is records x {self.width}, not {rows.shape}; encode it first.")
        return rows

    def _each(self) -> Iterator[tuple[str, Column, slice]]:
        for name, column in self.columns.items():
            yield name, column, self.slices[name]


def _frequencies(rows: NDArray[np.float64]) -> NDArray[np.float64]:
    """The nearest points of the simplex: what is above a threshold, less it (Held, Wolfe and Crowder 1974)."""
    falling = -np.sort(-rows, axis=1)
    each = (np.cumsum(falling, axis=1) - 1) / np.arange(1, rows.shape[1] + 1)
    last = np.maximum((falling > each).sum(axis=1) - 1, 0)
    return np.asarray(np.maximum(rows - each[np.arange(len(rows)), last][:, None], 0.0))


def is_numeric(column: Column) -> bool:
    """Is the column one scaled number, rather than indicators?"""
    return not column.discrete or column.kind == "ordinal"


def width_of(column: Column) -> int:
    """How many places the column takes in a row."""
    if is_numeric(column):
        return 1
    assert column.categories is not None
    return len(column.categories)


def range_of(column: Column) -> tuple[float, float]:
    """(least value, width of the declared range) of a numeric column; an ordinal one counts its positions."""
    if column.categories is not None:
        return 0.0, float(max(len(column.categories) - 1, 1))
    assert column.lower is not None
    assert column.upper is not None
    return column.lower, column.upper - column.lower
