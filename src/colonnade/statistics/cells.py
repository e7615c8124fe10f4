"""The public cells of a column's histogram: from its declared domain alone, never from data."""

from __future__ import annotations

import itertools
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from colonnade.data.column import Column
from colonnade.errors import BadPrivacyParameter, DomainError


@dataclass(frozen=True)
class Cells:
    """`edges` cut a numeric column into half-open cells (the last one closed); None for categories.

    If the column may be empty, the last cell counts the empty cells of present records.
    """

    labels: tuple[str, ...]
    edges: NDArray[np.float64] | None
    missing: bool

    def __len__(self) -> int:
        return len(self.labels)

    def codes(self, encoded: NDArray[Any]) -> NDArray[np.int32]:
        """The cell of each encoded value (see `Column.encode`); -1 where it is empty and has no cell."""
        if self.edges is None:
            empty, code = encoded < 0, encoded.astype(np.int32)
        else:
            empty = np.isnan(encoded)
            code = np.searchsorted(self.edges[1:-1], encoded, side="right").astype(np.int32)
        return np.where(empty, np.int32(len(self) - 1 if self.missing else -1), code)

    def count(self, encoded: NDArray[Any]) -> NDArray[np.int64]:
        """Exact counts of encoded values."""
        code = self.codes(encoded)
        return np.bincount(code[code >= 0], minlength=len(self)).astype(np.int64)


def cells(column: Column, *, bins: int) -> Cells:
    """One cell per category, per integer of a short count, or `bins` cells between the declared bounds."""
    if bins < 1:
        raise BadPrivacyParameter(f"bins must be at least 1, not {bins}.")
    extra = ("missing",) if column.missing else ()
    if column.discrete:
        assert column.categories is not None
        return Cells((*(str(value) for value in column.categories), *extra), None, column.missing)
    edges = _edges(column, bins)
    if column.whole:
        labels = [_whole(column, a, b) for a, b in itertools.pairwise(edges)]
    else:
        labels = [f"{column.label(a)} to {column.label(b)}" for a, b in itertools.pairwise(edges)]
    return Cells((*labels, *extra), edges, column.missing)


def gapless(column: Column) -> Column:
    """The same column without empty cells, so that it has no cell for them."""
    return replace(column, missing=False, empty=None, if_empty=None)


def _edges(column: Column, bins: int) -> NDArray[np.float64]:
    if column.lower is None or column.upper is None:
        raise DomainError(f"column {column.name!r} has no bounds; declare lower and upper in columns.toml.")
    if column.cuts is not None:
        return np.array([column.lower, *column.cuts, column.upper])
    if column.whole:
        # Cells of integers: [a, b) with integer a and b; the top value needs an edge above it.
        values = int(column.upper - column.lower) + 1
        return np.unique(np.floor(np.linspace(column.lower, column.upper + 1, min(bins, values) + 1)))
    return np.linspace(column.lower, column.upper, bins + 1)


def _whole(column: Column, low: float, above: float) -> str:
    return column.label(low) if above - low <= 1 else f"{column.label(low)} to {column.label(above - 1)}"
