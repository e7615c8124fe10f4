"""Local statistics that are **mergeable**: a value for each chunk of rows, and how two such values become one.

Sums, counts and minima are. So they stream over a block larger than memory, and the same code runs on the party's own
Dask cluster (`data.cluster`): `of` at the workers, `merge` wherever two values meet. Both must be pure functions of
their arguments: no noise, no secret of the party's, no place for a random number.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Generic, Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

from colonnade.data.block import Block
from colonnade.data.cluster import OnCluster
from colonnade.data.sources import CELLS, Divisible, chunk_rows

T = TypeVar("T")

Values = Mapping[str, NDArray[Any]]
"""Encoded columns of a chunk of rows."""
Work = Callable[[NDArray[np.int64], Values], T]
"""A function of (cohort rows, values) of a chunk."""
PIECE_ROWS = 1 << 18
"""Rows of one task, if the source can be cut so finely."""


def is_empty(encoded: NDArray[Any]) -> NDArray[np.bool_]:
    """Which cells of an encoded column are empty: NaN, or the code -1."""
    return np.asarray(np.isnan(encoded) if encoded.dtype.kind == "f" else encoded < 0)


@dataclass(frozen=True, eq=False)
class OfFilled(Generic[T]):
    """`work` of the records of a chunk that have no empty cell in some columns; the others count as absent."""

    work: Work[T]
    filled: tuple[str, ...]

    def __call__(self, rows: NDArray[np.int64], values: Values) -> T:
        usable = np.ones(len(rows), dtype=np.bool_)
        for name in self.filled:
            usable &= ~is_empty(values[name])
        return self.work(rows[usable], {name: column[usable] for name, column in values.items()})


class Aggregation(Protocol[T]):
    """`merge` is associative, and the order of the chunks does not matter."""

    def of(self, rows: NDArray[np.int64], values: Values, /) -> T:
        """The statistic of one chunk: cohort rows and encoded values."""
        ...

    def merge(self, left: T, right: T, /) -> T: ...


def mapped(
    block: Block,
    positions: NDArray[np.int64],
    names: Sequence[str],
    work: Work[T],
    *,
    filled: Sequence[str] = (),
    merge: Callable[[T, T], T] | None = None,
    cells: int = CELLS,
) -> Iterator[T]:
    """`work` of every chunk of a block's records in the cohort; `positions` are the cohort rows of the block's rows.

    Records with an empty cell in one of the `filled` columns count as absent.
    With `merge`, values of neighbouring chunks may come merged. On a cluster the workers read a source that can be cut
    (Parquet) themselves; rows of any other source are read here and sent to them.
    """
    if filled:
        names, work = list(dict.fromkeys([*names, *filled])), OfFilled(work, tuple(filled))
    source = block.source
    if not isinstance(source, OnCluster):
        for rows, values in inside(block, positions, names, rows=chunk_rows(1 + len(names), cells)):
            yield work(rows, values)
        return
    if isinstance(source.source, Divisible):
        for results in source.cluster.run(_of_piece, _pieces(block, source.source, positions, names, work, merge)):
            yield from results
        return
    chunks = ((work, rows, values) for rows, values in inside(block, positions, names))
    yield from source.cluster.run(_of_chunk, chunks)


def aggregate(
    block: Block,
    positions: NDArray[np.int64],
    names: Sequence[str],
    aggregation: Aggregation[T],
    *,
    filled: Sequence[str] = (),
) -> T:
    """The statistic of all records in the cohort, those with an empty cell in `filled` columns left out."""
    parts = mapped(block, positions, names, aggregation.of, filled=filled, merge=aggregation.merge)
    return functools.reduce(aggregation.merge, parts)


def records(rows: NDArray[np.int64], values: Values) -> tuple[NDArray[np.int64], Values]:
    """A chunk as it is."""
    return rows, values


def cohort_rows(rows: NDArray[np.int64], _: Values) -> NDArray[np.int64]:
    """Which records a chunk holds."""
    return rows


def inside(
    block: Block, positions: NDArray[np.int64], names: Sequence[str] | None, *, rows: int | None = None
) -> Iterator[tuple[NDArray[np.int64], dict[str, NDArray[Any]]]]:
    """(cohort rows, encoded values) of the records that are in the cohort, a chunk at a time."""
    for where, values in block.chunks(names, rows=rows):
        cohort_rows = positions[where]
        present = cohort_rows >= 0
        if present.all():
            yield cohort_rows, values
            continue
        yield cohort_rows[present], {name: column[present] for name, column in values.items()}


def _pieces(
    block: Block,
    source: Divisible,
    positions: NDArray[np.int64],
    names: Sequence[str],
    work: Work[T],
    merge: Callable[[T, T], T] | None,
) -> Iterator[tuple[Any, ...]]:
    start = 0
    # Values that are not merged come back as large as they are: a piece then holds a few chunks.
    wanted = PIECE_ROWS if merge is not None else min(PIECE_ROWS, 4 * chunk_rows(1 + len(names)))
    for rows, piece in source.pieces(wanted):
        cut = slice(start, start + rows)
        start = cut.stop
        yield block.piece(piece, cut, names), positions[cut], work, merge
    if start != block.n_records:
        raise block.changed()


def _of_piece(piece: Block, positions: NDArray[np.int64], work: Work[T], merge: Callable[[T, T], T] | None) -> list[T]:
    """At a worker: read a piece, check that it holds the records that were loaded, and work on its chunks."""
    results = (work(rows, values) for rows, values in inside(piece, positions, None))
    return list(results) if merge is None else [functools.reduce(merge, results)]


def _of_chunk(work: Work[T], rows: NDArray[np.int64], values: Values) -> T:
    return work(rows, values)
