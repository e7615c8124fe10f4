"""Many rows for one person become one, by rules that the columns declare; the person stays the unit of privacy.

The rows stream: what stays in memory is one number for each person and column that is asked for, however many rows
there are. A column's domain is that of the person's value, so a row may lie outside it: a sum of small amounts may be
large. An empty cell says nothing: the mean is that of the filled ones, the last is the last filled one. Persons come in
the order of their first rows.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from colonnade.data.cluster import OnCluster
from colonnade.data.column import Column, Columns
from colonnade.data.columns_toml import key_text
from colonnade.data.dates import read_dates
from colonnade.data.encoding import EMPTY, Faults, read_numbers
from colonnade.data.keys import check_keys, join_keys, read_keys
from colonnade.data.sources import ROWS, DerivedSource, Source, positions
from colonnade.errors import KeyProblem, SchemaError

Reals = NDArray[np.float64]


class OneRow(DerivedSource):
    """A source with one row for each key, made of one that may have several."""

    def __init__(self, source: Source, key: str, columns: Columns) -> None:
        super().__init__(source)
        self._key, self._columns = key, columns
        self.faults: dict[str, Faults] = {}
        """Of the latest reading: cells of rows that could not be read, which no person's value shows."""

    def chunks(self, names: Sequence[str], *, rows: int = ROWS) -> Iterator[pd.DataFrame]:
        positions(self.names(), names, self.description)
        wanted = {name: self._columns[name] for name in names if name != self._key}
        orders = dict.fromkeys(column.order_by for column in wanted.values() if column.order_by is not None)
        asked = list(dict.fromkeys([self._key, *wanted, *orders]))
        persons: dict[object, int] = {}
        parts: list[NDArray[Any]] = []
        values = {name: _Folded(column) for name, column in wanted.items()}
        self.faults = {name: Faults() for name in wanted}
        count = 0
        for frame in self.source.chunks(asked, rows=rows):
            person, new = self._persons(frame[self._key], persons)
            parts.append(new)
            ordered = {name: self._order(name, frame[name]) for name in orders}
            row_numbers = np.arange(count, count + len(frame), dtype=np.float64)
            for name, column in wanted.items():
                order = row_numbers if column.order_by is None else ordered[column.order_by]
                numbers, faults = _row_numbers(column, frame[name])
                self.faults[name] += faults
                values[name].add(person, numbers, order, len(persons))
            count += len(frame)
        if count > len(persons):
            self._check_rules(wanted, count - len(persons))
        keys = join_keys(parts, where=f"key {self._key!r}")
        folded = {name: value.result() for name, value in values.items()}
        for start in range(0, len(keys), rows):
            cut = slice(start, start + rows)
            cells = {name: _cells(column, folded[name][cut]) for name, column in wanted.items()}
            yield pd.DataFrame({self._key: keys[cut], **cells})[list(names)]

    def _persons(self, cells: pd.Series[Any], persons: dict[object, int]) -> tuple[NDArray[np.int64], NDArray[Any]]:
        """The person of each row, counted from 0 by first rows, and the keys that are new."""
        where = f"key {self._key!r}"
        keys, missing = read_keys(cells, where=where)
        check_keys(keys[:0], missing, where=where)
        index, distinct = pd.factorize(keys)
        known = len(persons)
        numbers = np.array([persons.setdefault(key, len(persons)) for key in distinct.tolist()], dtype=np.int64)
        return numbers[index], np.asarray(distinct)[numbers >= known]

    def _order(self, name: str, cells: pd.Series[Any]) -> Reals:
        """What first and last go by: a declared column's own reading, or numbers, or dates."""
        declared = self._columns.get(name)
        if declared is not None and not declared.discrete:
            numbers: Reals = declared.numbers(cells)[0]
            return numbers
        numbers, unreadable = read_numbers(cells)
        if unreadable.any():
            moments, unreadable = read_dates(cells, step="second", date_format=None)
            numbers = np.where(np.isnat(moments), np.nan, moments.astype(np.int64))
        if unreadable.any():
            raise SchemaError(
                f"order_by names {name!r}, whose cells are neither numbers nor clear dates; declare it with "
                'kind = "date" and a date_format in columns.toml.'
            )
        return numbers

    def _check_rules(self, wanted: Mapping[str, Column], repeated: int) -> None:
        without = [name for name, column in wanted.items() if column.one_row is None]
        if without:
            raise KeyProblem(
                f"key {self._key!r}: {repeated} record(s) repeat the key of an earlier one, and "
                f"{', '.join(map(repr, without))} does not say how a person's rows become one; add for example "
                f'`one_row = "last"` under [columns.{key_text(without[0])}] in columns.toml, or keep one record for '
                "each key."
            )


def _row_numbers(column: Column, cells: pd.Series[Any]) -> tuple[Reals, Faults]:
    """The rows' numbers or codes with NaN for an empty cell, in the domain or not, and what could not be read."""
    if column.one_row == "count":
        filled = cells.notna() & (cells.astype(object) != "")
        return np.where(filled.to_numpy(dtype=bool), 1.0, np.nan), Faults()
    if column.discrete:
        codes, faults = column.read(cells)
        kept = Faults(outside=faults.outside, example=faults.example, other=faults.other)
        return np.where(codes == EMPTY, np.nan, codes.astype(np.float64)), kept
    numbers, unreadable, limited = column.numbers(cells)
    unread = np.flatnonzero(unreadable)
    example = cells.iloc[unread[0]] if unread.size else None
    return numbers, Faults(unreadable=int(unread.size), unread=example, limited=limited)


def _cells(column: Column, numbers: Reals) -> pd.Series[Any]:
    """A person's values as cells that the column reads as these very values."""
    if column.discrete:
        return column.decode(np.where(np.isnan(numbers), EMPTY, numbers).astype(np.int32))
    return column.decode(numbers) if column.kind == "date" else pd.Series(numbers)


@dataclass(eq=False)
class _Folded:
    """One column's value for each person, from the rows so far."""

    column: Column

    def __post_init__(self) -> None:
        self._values: Reals = np.empty(0)
        self._weights: Reals = np.empty(0)
        """Rows behind a mean, or the order of the row that a first or last value is from."""

    def add(self, person: NDArray[np.int64], numbers: Reals, order: Reals, persons: int) -> None:
        more = persons - len(self._values)
        self._values = np.concatenate([self._values, np.full(more, np.nan)])
        self._weights = np.concatenate([self._weights, np.full(more, np.nan)])
        filled = ~np.isnan(numbers)
        person, numbers, order = person[filled], numbers[filled], order[filled]
        match self.column.one_row:
            case "min":
                np.fmin.at(self._values, person, numbers)
            case "max" | "any":
                np.fmax.at(self._values, person, numbers)
            case "sum" | "count" | "mean":
                touched = np.bincount(person, minlength=persons)
                totals = np.bincount(person, weights=numbers, minlength=persons)
                self._values = np.where(touched > 0, np.nan_to_num(self._values) + totals, self._values)
                self._weights = np.where(touched > 0, np.nan_to_num(self._weights) + touched, self._weights)
            case "last":
                self._latest(person, numbers, order)
            case _:
                self._latest(person[::-1], numbers[::-1], -order[::-1])

    def _latest(self, person: NDArray[np.int64], numbers: Reals, order: Reals) -> None:
        """The value of the row with the largest order; of equal ones the one that comes later. A row without an order
        counts only where no other does."""
        order = np.where(np.isnan(order), -np.inf, order)
        rising = np.argsort(order, kind="stable")[::-1]
        chosen, places = np.unique(person[rising], return_index=True)
        best = rising[places]
        newer = ~(self._weights[chosen] > order[best])
        self._values[chosen[newer]] = numbers[best[newer]]
        self._weights[chosen[newer]] = order[best[newer]]

    def result(self) -> Reals:
        if self.column.one_row == "mean":
            mean: Reals = self._values / self._weights
            return np.rint(mean) if self.column.whole else mean
        if self.column.one_row == "count":
            return np.nan_to_num(self._values)
        return self._values


def with_one_row(source: Source, key: str, columns: Columns) -> Source:
    """The source as a block reads it: one row for each key, if a column says how."""
    if all(column.one_row is None for column in columns.values()):
        return source
    if isinstance(source, OnCluster):
        return OnCluster(OneRow(source.source, key, columns), source.cluster)
    return OneRow(source, key, columns)
