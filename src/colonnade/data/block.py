"""A block: one party's table, checked once against the declared columns and streamed from then on.

Only the keys stay in memory. Domains are checked when the block loads; later reads clip and never refuse, because
a refusal inside a private step would itself be a message about a person's data.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Hashable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from colonnade.data.cluster import OnCluster
from colonnade.data.column import Columns
from colonnade.data.encoding import Faults, quoted_text
from colonnade.data.keys import check_keys, join_keys, key_name, no_key, read_keys, with_key
from colonnade.data.one_row import OneRow, with_one_row
from colonnade.data.sources import Dated, Source, Typed, chunk_rows, is_date_type, open_source, without
from colonnade.errors import (
    DomainError,
    DuplicateColumn,
    EmptyParty,
    KeyProblem,
    SchemaError,
    SourceError,
    UnknownColumn,
)

MOST_HELD = 1 << 26
"""Bytes of a block that stays in memory as it was read when it was loaded."""


@dataclass(frozen=True, eq=False)
class Held:
    """Encoded columns of a whole block, and the state of the file that they were read from."""

    state: Hashable
    columns: dict[str, NDArray[Any]]


@dataclass(frozen=True, eq=False, repr=False)
class Block:
    """One party's records. `keys` are int64, or an object array of str, in the order of the source's rows."""

    party: str
    key: str
    columns: Columns
    source: Source
    keys: NDArray[Any]
    notes: tuple[str, ...] = ()
    """What the columns' own rules have put right, cells counted: for this party's log."""
    held: Held | None = None
    """Of a small file: reading takes longer than most that is computed of it."""

    @property
    def n_records(self) -> int:
        return len(self.keys)

    def __repr__(self) -> str:
        return f"Block(party={self.party!r}, key={self.key!r}, columns=[{', '.join(self.columns)}])"

    @classmethod
    def open(
        cls, party: str, source: Any, *, key: str | Sequence[str], columns: Columns, ignore: Collection[str] = ()
    ) -> Block:
        """Load what a configuration names: any source that `open_source` takes, and a key of one or several columns."""
        return cls.load(party, with_key(open_source(source), key), key=key_name(key), columns=columns, ignore=ignore)

    @classmethod
    def load(
        cls,
        party: str,
        source: Source,
        *,
        key: str,
        columns: Columns,
        rows: int | None = None,
        ignore: Collection[str] = (),
    ) -> Block:
        """Stream a source once and check everything: names, domains, keys and values.

        The block has the declared columns that the source has, in declared order; a declared column that is not
        there belongs to another party. A source column that is not declared is an error, unless `ignore` or the
        columns' own `ignore` names it. Several rows of one key become one where the columns say how.
        """
        source = without(source, {*ignore, *columns.ignore})
        own = _own_columns(party, source, key=key, columns=columns).ignoring(ignore)
        own.confirmed()
        source = with_one_row(source, key, own)
        where = f"party {party!r}, key {key!r}"
        parts: list[NDArray[Any]] = []
        missing, records = 0, 0
        faults = {name: Faults() for name in own}
        state = source.state() if isinstance(source, Dated) else None  # before it is read
        held: dict[str, list[NDArray[Any]]] = {name: [] for name in own}
        for frame in source.chunks([key, *own], rows=rows or chunk_rows(1 + len(own))):
            part, keyless = read_keys(frame[key], where=where)
            parts.append(part)
            missing, records = missing + keyless, records + len(frame)
            if state is None or 8 * records * len(own) > MOST_HELD:
                held.clear()
            for name, column in own.items():
                values, read_faults = column.read(frame[name])
                faults[name] += read_faults
                if held:
                    held[name].append(values)
        if records == 0:
            raise EmptyParty(f"party {party!r}: {source.description} has no records; load at least one.")
        keys = join_keys(parts, where=where)
        check_keys(keys, missing, where=where)
        inner = source.source if isinstance(source, OnCluster) else source
        for name, rows_faults in inner.faults.items() if isinstance(inner, OneRow) else ():
            faults[name] += rows_faults
        _refuse_faults(party, own, faults)
        notes = tuple(note for name, column in own.items() for note in column.notes(faults[name]))
        whole = {name: _frozen(np.concatenate(read)) for name, read in held.items()}
        return cls(party, key, own, source, keys, notes, Held(state, whole) if whole else None)

    def chunks(
        self, names: Sequence[str] | None = None, *, rows: int | None = None
    ) -> Iterator[tuple[slice, dict[str, NDArray[Any]]]]:
        """Slices of block rows with the encoded columns, clipped into their domains.

        If the source changed since it was loaded, a number outside its bounds is clipped and anything else that is
        not in the domain counts as empty. Other records, or another order of records, is a `SourceError`: rows
        would be taken for another record's.
        """
        wanted = self.columns if names is None else self.columns.select(names)
        size, start = rows or chunk_rows(1 + len(wanted)), 0
        held = self._unchanged()
        if held is not None:
            for start in range(0, self.n_records, size):
                cut = slice(start, min(start + size, self.n_records))
                yield cut, {name: held.columns[name][cut] for name in wanted}
            return
        for frame in self.source.chunks([self.key, *wanted], rows=size):
            cut = slice(start, start + len(frame))
            if not self._same_records(frame[self.key], cut):
                raise self.changed()
            yield cut, {name: _frozen(column.clipped(frame[name])) for name, column in wanted.items()}
            start = cut.stop
        if start != self.n_records:
            raise self.changed()

    def _unchanged(self) -> Held | None:
        """What is held, if the file is still the one that it was read from."""
        if self.held is None or not self.held.columns or not isinstance(self.source, Dated):
            return None
        return self.held if self.source.state() == self.held.state else None

    def let_go(self) -> None:
        """Hold nothing from now on: a job has said how much memory there is."""
        if self.held is not None:
            self.held.columns.clear()

    def check_schema(self) -> None:
        """That the source can be reached and still has the key and the columns, of types that fit. No row is read."""
        if self._unchanged() is not None:
            return
        available = Counter(self.source.names())
        for name in (self.key, *self.columns):
            if available[name] != 1:
                lost = "no longer has" if not available[name] else "has more than one"
                raise UnknownColumn(
                    f"party {self.party!r}: {self.source.description} {lost} column {name!r}; put it right, or "
                    "load the block again."
                )
        _refuse_types(self.party, self.source, self.columns)

    def release(self) -> None:
        """Close the connection to this party's own cluster, if it has one; the next statistic makes another."""
        if isinstance(self.source, OnCluster):
            self.source.cluster.release()

    def piece(self, source: Source, rows: slice, names: Sequence[str]) -> Block:
        """Some of this block's rows, as another source gives them; they are held to the same keys."""
        return Block(self.party, self.key, self.columns.select(names), source, self.keys[rows])

    def encoded(self, name: str) -> NDArray[Any]:
        """One whole column, as `chunks` gives it."""
        return np.concatenate([arrays[name] for _, arrays in self.chunks([name])])

    def _same_records(self, values: pd.Series[Any], cut: slice) -> bool:
        try:
            keys, missing = read_keys(values, where=self.party)
        except KeyProblem:
            return False
        return missing == 0 and bool(np.array_equal(keys, self.keys[cut]))

    def changed(self) -> SourceError:
        """What to raise if the source gives other records than it did."""
        return SourceError(
            f"party {self.party!r}: {self.source.description} no longer gives the records that were loaded, in that "
            "order; load the block again, and end a query with ORDER BY."
        )


def _frozen(values: NDArray[Any]) -> NDArray[Any]:
    """Not to be written to, since others may be given the same."""
    values.flags.writeable = False
    return values


def _own_columns(party: str, source: Source, *, key: str, columns: Columns) -> Columns:
    """The declared columns that this source has, or what is wrong with its names."""
    available = source.names()
    if key not in available:
        raise no_key(f"party {party!r}: {source.description}", key, available)
    if key in columns:
        raise SchemaError(f"the key {key!r} is declared as a column; delete [columns.{key}] from columns.toml.")
    repeated = [name for name, count in Counter(available).items() if count > 1]
    if repeated:
        named = ", ".join(map(repr, repeated))
        raise DuplicateColumn(f"party {party!r}: {source.description} has {named} more than once; rename or drop one.")
    for name in available:
        if name != key and name not in columns:
            raise UnknownColumn(
                f"party {party!r}: the column {name!r} is not declared; declare it in columns.toml, or leave it out "
                f"with the line `ignore = [{quoted_text(name)}]` at its top; {columns.suggestion(name)}"
            )
    own = columns.select(name for name in columns if name in set(available))
    _refuse_types(party, source, own)
    return own


def _refuse_types(party: str, source: Source, columns: Columns) -> None:
    for name, kind in source.unfit().items() if isinstance(source, Typed) else ():
        if name in columns and not (columns[name].kind == "date" and is_date_type(kind)):
            raise SchemaError(
                f"party {party!r}: the column {name!r} of {source.description} is of type {kind}, which a "
                f"{columns[name].kind} column cannot have; "
                + (
                    'declare it with kind = "date", `from` and `to`, or leave it out with `ignore`.'
                    if is_date_type(kind)
                    else "convert it to a number or to text, or leave it out with `ignore`."
                )
            )


def _refuse_faults(party: str, columns: Columns, faults: dict[str, Faults]) -> None:
    faulty = {name: fault for name, fault in faults.items() if fault}
    if not faulty:
        return
    first, *others = faulty
    also = ", ".join(f"{name!r} ({faulty[name].total})" for name in others)
    more = f" Cells were refused in these columns too: {also}." if also else ""
    raise DomainError(f"party {party!r}, {columns[first].complaint(faulty[first])}{more}")
