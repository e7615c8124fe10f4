"""Binning of large domains, and the way back (the paper's 6.1, Algorithm 5).

A table in coarse bins has fewer cells, so each holds more records against the same noise. `equal_width` looks at the
domain only and is the paper's; `equal_mass` looks at a noisy one-way table that was released before, and is ours.
`recover` spreads a coarse table over the cells of its bins: by the columns' own histograms, or evenly (the baseline).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from colonnade.errors import BadArguments

Reals = NDArray[np.float64]
Integers = NDArray[np.int64]
Recover = Literal["histogram", "uniform"]


def equal_width(cells: int, bins: int) -> Integers:
    """The bin of each cell: floor(cells / bins) cells a bin, the rest in the last one. A column with no more cells than
    bins stays as it is (the paper's width would be 0)."""
    _check(bins)
    if cells <= bins:
        return np.arange(cells, dtype=np.int64)
    return np.minimum(np.arange(cells, dtype=np.int64) // (cells // bins), bins - 1)


def equal_mass(chances: Reals, bins: int) -> Integers:
    """The bin of each cell: neighbouring cells that hold about 1 / bins of the mass together."""
    _check(bins)
    if chances.size <= bins:
        return np.arange(chances.size, dtype=np.int64)
    kept = np.maximum(chances, 0.0)
    total = float(kept.sum())
    if total <= 0:
        return equal_width(chances.size, bins)
    middle = (np.cumsum(kept) - kept / 2) / total
    raw = np.minimum((middle * bins).astype(np.int64), bins - 1)
    return np.unique(raw, return_inverse=True)[1].astype(np.int64)


def _check(bins: int) -> None:
    if isinstance(bins, bool) or not isinstance(bins, int) or bins < 1:
        raise BadArguments(f"bins must be a whole number of at least 1, not {bins!r}.")


def summed(table: NDArray[np.generic], bins: Sequence[Integers]) -> NDArray[np.generic]:
    """A table of cells, summed into the bins of each axis."""
    for axis, one in enumerate(bins):
        moved = np.moveaxis(table, axis, 0)
        coarse = np.zeros((int(one.max()) + 1, *moved.shape[1:]), dtype=table.dtype)
        np.add.at(coarse, one, moved)
        table = np.moveaxis(coarse, 0, axis)
    return table


def recover(
    coarse: Reals, bins: Sequence[Integers], histograms: Sequence[Reals], *, by: Recover = "histogram"
) -> Reals:
    """HisRec: each bin's count spread over its cells, independently along the axes.

    `histograms` are noisy counts of each column's cells. A bin in which they are all zero is spread evenly.
    """
    if by not in ("histogram", "uniform"):
        raise BadArguments(f"recover must be 'histogram' or 'uniform', not {by!r}.")
    table = coarse
    for axis, (one, histogram) in enumerate(zip(bins, histograms, strict=True)):
        weights = np.maximum(histogram, 0.0) if by == "histogram" else np.ones(one.size)
        mass = np.bincount(one, weights)
        width = np.bincount(one)
        share = np.where(mass[one] > 0, weights / np.where(mass[one] > 0, mass[one], 1.0), 1 / width[one])
        shape = [1] * table.ndim
        shape[axis] = -1
        table = np.take(table, one, axis=axis) * share.reshape(shape)
    return np.asarray(table, dtype=np.float64)
