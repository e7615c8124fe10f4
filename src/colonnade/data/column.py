"""A column: its name, its kind and its **public** domain; and the ordered set of columns that a consortium declares.

A domain is declared, never learned from the data: bounds and categories fix sensitivities, so they must be facts
that anyone may know. A declaration is checked when it is made; a value is checked against it when a block loads.
"""

from __future__ import annotations

import difflib
import hashlib
import itertools
import json
import math
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, fields, replace
from datetime import date
from functools import cached_property
from pathlib import Path
from typing import Any, Literal, NoReturn, get_args

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from colonnade.codec import nearest
from colonnade.data import encoding
from colonnade.data.columns_toml import columns_text, key_text, parse_columns, value_text
from colonnade.data.dates import (
    STEPS,
    Step,
    after_steps,
    date_text,
    iso_text,
    likely_formats,
    read_dates,
    steps_between,
)
from colonnade.data.encoding import Category, Faults, Spelling, as_float, is_text, quoted_text
from colonnade.errors import (
    ColumnConflict,
    DomainError,
    DraftDomain,
    DuplicateColumn,
    SchemaError,
    SourceError,
    UnknownColumn,
)

__all__ = ["Category", "Column", "Columns", "Kind", "KINDS", "value_text"]


@dataclass(frozen=True, kw_only=True)
class Column:
    """One declared column: its public domain, and how its owner's cells are read.

    `lower` and `upper` bound a continuous or count column; `from_` and `to` (in columns.toml `from`) a date, which is
    counted in `step`s; `categories` lists a discrete one (in order for ordinal; first 0, then 1 for binary). `missing`:
    may a present record have this cell empty? `draft`: the domain was read off the data and nobody confirmed it.
    `cuts`: public inner cut points for histograms. `scale`: "log" if its values spread over decades.

    Parameters
    ----------
    name, kind : its name, and one of "continuous", "count", "date", "ordinal", "binary", "categorical".
    lower, upper, categories, missing, draft, cuts, scale : as above.
    description : what it is, for people.
    from_, to, step, date_format : of a date: its range as ISO text, the step ("day" by default, "month", "year",
        "hour", "minute", "second"), and how the cells are written where that is not clear ("%d/%m/%Y", or several
        formats with " | " between them).
    decimal, thousands, unit : how numbers are written, where not as 1234.5.
    below, above : "limit" to take a cell such as "<0.1" or ">500" as that limit of detection.
    other : the category that a value which is not listed becomes.
    trim, ignore_case : whether a category's spaces at its ends and its capitals count.
    clip : whether a value outside the bounds is taken as the nearest bound, instead of refused.
    empty : texts that mean an empty cell; in columns.toml `missing = ["NA", "-99"]`.
    if_empty : what methods do with an empty cell, where they have the choice: "mask" uses the record without the cell,
        "drop" takes the record as one that its owner lacks, "level" takes the empty cell as a category of its own. By
        default each method's own choice, which its plan says.
    one_row, order_by : how a person's several rows become one: "mean", "sum", "min", "max", "count", "any", "first" or
        "last"; and the column that first and last go by.

    Returns
    -------
    A value with `encode` and `decode` between cells and numbers.

    Example
    -------
    >>> co.Column(name="age", kind="count", lower=0, upper=120).kind
    'count'
    """

    name: str
    kind: Kind
    lower: float | None = None
    upper: float | None = None
    categories: tuple[Category, ...] | None = None
    missing: bool = False
    draft: bool = False
    cuts: tuple[float, ...] | None = None
    scale: Literal["log"] | None = None
    description: str = ""
    from_: str | None = None
    to: str | None = None
    step: Step | None = None
    date_format: str | None = None
    decimal: str | None = None
    thousands: str | None = None
    unit: str | None = None
    below: Literal["limit"] | None = None
    above: Literal["limit"] | None = None
    other: str | None = None
    trim: bool = False
    ignore_case: bool = False
    clip: bool = False
    empty: tuple[str, ...] | None = None
    if_empty: EmptyRule | None = None
    one_row: OneRowRule | None = None
    order_by: str | None = None

    def __post_init__(self) -> None:
        if not is_text(self.name):
            raise SchemaError(f"a column's name must be a text that is not empty, not {self.name!r}; rename it.")
        if self.name in RESERVED or self.name.startswith(RESERVED_STARTS):
            raise SchemaError(f"a column cannot be called {self.name!r}: results have something else by it; rename it.")
        if self.kind not in KINDS:
            refuse(self.name, "kind", f"is {self.kind!r}", f"choose one of {', '.join(KINDS)}")
        for field in ("missing", "draft", *FLAGS):
            if not isinstance(getattr(self, field), bool):
                fault = f"is {getattr(self, field)!r}"
                listed = ", or list the texts that mean an empty cell" if field == "missing" else ""
                refuse(self.name, field, fault, f"write true or false, without quotes{listed}")
        if self.description != "" and not is_text(self.description):
            refuse(self.name, "description", "is not a text", "write a text in quotes")
        for field, kinds in BELONGS.items():
            stated = getattr(self, field) is not None and getattr(self, field) is not False
            if stated and self.kind not in kinds:
                fault = f"does not belong to the kind {self.kind!r}"
                refuse(self.name, plain_name(field), fault, "delete it, or change the kind")
        check_reading(self)
        if self.discrete:
            object.__setattr__(self, "categories", checked_categories(self))
            return
        if self.kind == "date":
            for field, value in checked_range(self).items():
                object.__setattr__(self, field, value)
            return
        lower, upper = checked_bounds(self.name, self.kind, self.lower, self.upper)
        object.__setattr__(self, "lower", lower)
        object.__setattr__(self, "upper", upper)
        if self.cuts is not None:
            object.__setattr__(self, "cuts", checked_cuts(self.name, self.cuts, lower, upper))
        if self.scale is not None and (self.scale != "log" or lower < 0):
            fault = 'is not "log"' if self.scale != "log" else f'is "log", and lower is {lower:g}'
            refuse(self.name, "scale", fault, 'write scale = "log" for values of at least 0, or delete the line')

    @property
    def discrete(self) -> bool:
        """Has the column categories (ordinal, binary, categorical) rather than bounds?"""
        return self.kind not in ("continuous", "count", "date")

    @property
    def whole(self) -> bool:
        """Are its numbers integers: a count, or a date's steps?"""
        return self.kind in ("count", "date")

    def rule_for_empty(self, *offered: EmptyRule) -> EmptyRule | None:
        """What a method that offers these rules, its default first, does with empty cells; None if there are none."""
        if not self.missing:
            return None
        return self.if_empty if self.if_empty in offered else offered[0]

    def encode(self, values: pd.Series[Any]) -> NDArray[Any]:
        """float64 with NaN for an empty cell (continuous, count) or int32 codes with -1 (discrete).

        A cell outside the domain, or an empty one where `missing` is False, is a `DomainError`.

        Parameters
        ----------
        values : the cells of a table.

        Returns
        -------
        An array of as many numbers.
        """
        codes, faults = self.read(values)
        if faults:
            raise DomainError(self.complaint(faults))
        return codes

    def clipped(self, values: pd.Series[Any]) -> NDArray[Any]:
        """As `encode`, but never refuses: a number is clipped into the bounds, anything else counts as empty.

        Parameters
        ----------
        values : the cells of a table.

        Returns
        -------
        An array of as many numbers.
        """
        return self._codes(values)[0] if self.discrete else self._within(self.numbers(values)[0])

    def read(self, values: pd.Series[Any]) -> tuple[NDArray[Any], Faults]:
        """The clipped codes, and what `encode` would refuse. `colonnade.data.encoding` has the rules."""
        codes, empty, unreadable, outside, mended = self._codes(values) if self.discrete else self._numbers(values)
        return codes, Faults(
            empty=0 if self.missing else int(empty.sum()),
            blank=int(empty.sum()) if self.missing else 0,
            unreadable=int(unreadable.sum()),
            outside=int(outside.sum()),
            example=_first(values, outside),
            unread=_first(values, unreadable),
            **mended,
        )

    def _codes(self, values: pd.Series[Any]) -> Reading:
        assert self.categories is not None
        if self.empty:
            values = encoding.emptied(values, self.empty, numeric=not isinstance(self.categories[0], str))
        matched = encoding.read_codes(values, self.categories, trim=self.trim, ignore_case=self.ignore_case)
        codes, empty, outside = matched
        nowhere = np.zeros(len(values), dtype=np.bool_)
        if self.other is None:
            return codes, empty, nowhere, outside, {}
        codes = np.where(outside, np.int32(self.categories.index(self.other)), codes)
        return codes, empty, nowhere, nowhere, {"other": int(outside.sum())}

    def _numbers(self, values: pd.Series[Any]) -> Reading:
        numbers, unreadable, limited = self.numbers(values)
        codes = self._within(numbers)
        outside = ~np.isnan(numbers) & (codes != numbers)
        mended = {"limited": limited}
        if self.clip:
            mended["clipped"] = int(outside.sum())
            outside = np.zeros(len(values), dtype=np.bool_)
        return codes, np.isnan(numbers) & ~unreadable, unreadable, outside, mended

    def _within(self, numbers: NDArray[np.float64]) -> NDArray[np.float64]:
        return np.clip(np.rint(numbers) if self.kind == "count" else numbers, self.lower, self.upper)

    def numbers(self, values: pd.Series[Any]) -> tuple[NDArray[np.float64], NDArray[np.bool_], int]:
        """What the cells say, in the bounds or not: numbers, or steps since `from`; which are filled and say none; and
        how many stand for a limit of detection."""
        if self.empty:
            values = encoding.emptied(values, self.empty)
        if self.kind == "date":
            assert self.from_ is not None
            assert self.step is not None
            moments, unreadable = read_dates(values, step=self.step, date_format=self.date_format)
            return steps_between(self.from_, moments, self.step), unreadable, 0
        if self._spelling is None:
            numbers, unreadable = encoding.read_numbers(values)
            limited = np.zeros(0, dtype=np.bool_)
        else:
            numbers, unreadable, limited = encoding.read_spelled(values, self._spelling)
        marks = [mark for mark in map(encoding.spelled_number, self.empty or ()) if mark is not None]
        if marks:  # "-999" also means -999.0 and -999,00
            numbers = np.where(np.isin(numbers, marks), np.nan, numbers)
        return numbers, unreadable, int(limited.sum())

    @property
    def _spelling(self) -> Spelling | None:
        if not any((self.decimal, self.thousands, self.unit, self.below, self.above)):
            return None
        return Spelling(
            decimal=self.decimal or ".",
            thousands=self.thousands,
            unit=self.unit,
            below=self.below is not None,
            above=self.above is not None,
        )

    def complaint(self, faults: Faults) -> str:
        """The sentence for cells that were refused: column, number of cells, cure, and at most one cell's form."""
        place = f"[columns.{key_text(self.name)}] in columns.toml"
        if faults.unreadable:
            what = "a date" if self.kind == "date" else "a number"
            cause = f"{_cells(faults.unreadable)} not {what}"
            if isinstance(faults.unread, str):
                cause += f" (one has the form {encoding.form_of(faults.unread)})"
            cure = self._reading_cure(faults.unread, place)
        elif faults.outside and self.discrete:
            cause = (
                f"{_cells(faults.outside)} none of the declared categories (one is {encoding.quoted(faults.example)})"
            )
            cure = (
                f"correct the cells, or add what is missing to `categories` in columns.toml{self._other_cure(faults)}"
            )
        elif faults.outside:
            number = {"count": "an integer", "date": "a date"}.get(self.kind, "a number")
            lower, upper = (self.from_, self.to) if self.kind == "date" else (repr(self.lower), repr(self.upper))
            bounds = "`from` and `to`" if self.kind == "date" else "`lower` and `upper`"
            sample = f" (one is {encoding.quoted(faults.example)})"
            cause = f"{_cells(faults.outside)} not {number} in [{lower}, {upper}]{sample}"
            cure = (
                f"correct the cells, change {bounds} in columns.toml if other bounds are publicly known, or add the "
                f"line `clip = true` under {place} to take such cells as the nearest bound"
            )
        else:
            cause = f"{_cells(faults.empty)} empty"
            cure = "fill them, or add the line `missing = true` to the column in columns.toml"
        return f"column {self.name!r}: {cause}; {cure}."

    def _reading_cure(self, cell: object, place: str) -> str:
        """What to declare so that a cell like this one is read."""
        if isinstance(cell, date | np.datetime64):
            return f'declare it as a date: kind = "date", from = "<first>" and to = "<last>" under {place}'
        text = cell if isinstance(cell, str) else ""
        lines = [line for line in encoding.likely_lines(text) if not line.startswith("missing") or not self.empty]
        if text.strip().casefold() in encoding.MARKERS:
            lines = [f"missing = [{', '.join(map(quoted_text, (*(self.empty or ()), text.strip())))}]"]
        elif self.kind == "date":
            formats = likely_formats(text)
            if formats:
                day, month = (f"`date_format = {quoted_text(form)}`" for form in formats)
                return f"say which number is the day: add the line {day} or {month} under {place}"
            return (
                "write dates as 2024-03-09, or say how they are written: add a line such as "
                f'`date_format = "%d.%m.%Y"` under {place}'
            )
        if lines:
            several = "the line" if len(lines) == 1 else "the lines"
            return f"add {several} {', '.join(f'`{line}`' for line in lines)} under {place}"
        return (
            "write decimal numbers with a point, leave unknown cells empty (or list the texts that mean empty, "
            '`missing = ["NA"]`), or declare a kind with categories'
        )

    def _other_cure(self, faults: Faults) -> str:
        assert self.categories is not None
        if not isinstance(self.categories[0], str) or self.kind == "binary":
            return ""
        relaxed = encoding.category_matcher(self.categories, trim=True, ignore_case=True)
        if isinstance(faults.example, str) and relaxed(faults.example) >= 0:
            return "; where only spaces or capitals differ, add the lines `trim = true` and `ignore_case = true`"
        return ', or add the line `other = "other"`, which takes every other value as that category'

    def notes(self, faults: Faults) -> tuple[str, ...]:
        """What was put right by the column's own rules, for its owner's log."""
        counts = {
            "outside the declared bounds, taken as the nearest bound": faults.clipped,
            "beyond a limit of detection, taken as the limit": faults.limited,
            f"none of the listed categories, taken as {self.other!r}": faults.other,
            "empty": faults.blank,
        }
        return tuple(f"column {self.name!r}: {_cells(count)} {what}." for what, count in counts.items() if count)

    def decode(self, codes: NDArray[Any]) -> pd.Series[Any]:
        """The inverse of `encode`: float64, Int64 (a count, rounded), dates, or a categorical, ordered for ordinal.

        Parameters
        ----------
        codes : what `encode` returns.

        Returns
        -------
        A series.
        """
        if self.categories is not None:
            try:
                index: Any = pd.Index(list(self.categories))
                cells = pd.Categorical.from_codes(np.asarray(codes), index, ordered=self.kind == "ordinal")
            except ValueError:
                last = len(self.categories) - 1
                raise DomainError(f"column {self.name!r} has the codes -1 to {last}; decode only those.") from None
            return pd.Series(cells, name=self.name)
        numbers = np.asarray(codes, dtype=np.float64)
        if self.kind == "date":
            assert self.from_ is not None
            assert self.step is not None
            return pd.Series(after_steps(self.from_, numbers, self.step), name=self.name)
        if self.kind == "continuous":
            return pd.Series(numbers, name=self.name)
        if np.any(np.abs(numbers) > EXACT):
            raise DomainError(f"column {self.name!r} is a count; decode only finite numbers up to 2^53.")
        return pd.Series(np.rint(numbers), name=self.name).astype("Int64")

    @property
    def domain(self) -> Column:
        """The declared domain alone, without the rules by which its owner's cells are read: that of a table which this
        software wrote."""
        without: dict[str, Any] = dict.fromkeys(READING) | dict.fromkeys(FLAGS, False)
        return replace(self, **without)

    def label(self, code: float) -> str:
        """An encoded number as people read it: a date, an integer, or four digits.

        Parameters
        ----------
        code : a number, as `encode` returns it.

        Returns
        -------
        A text.
        """
        if self.kind == "date":
            assert self.from_ is not None
            assert self.step is not None
            return date_text(after_steps(self.from_, np.array([code]), self.step)[0], self.step)
        return f"{code:g}" if self.kind == "count" else f"{code:.4g}"

    def to_dict(self) -> dict[str, Any]:
        """The fields that differ from their defaults, as plain values; `from_dict` is its inverse."""
        stated = {field.name: getattr(self, field.name) for field in fields(self)}
        defaults = {field.name: field.default for field in fields(self)}
        if self.kind == "date":
            stated |= {"lower": None, "upper": None}  # they follow from the range
        if stated.pop("empty"):
            stated["missing"] = self.empty
        return {
            plain_name(name): list(value) if isinstance(value, tuple) else value
            for name, value in stated.items()
            if value != defaults[name]
        }

    @classmethod
    def from_dict(cls, plain: Mapping[str, Any]) -> Column:
        """A column from plain values; an unknown or missing field is an error that says what to write.

        Parameters
        ----------
        plain : as `to_dict` returns it.

        Returns
        -------
        The column.
        """
        values: dict[str, Any] = {
            field: tuple(value) if isinstance(value, list) else value for field, value in plain.items()
        }
        if "name" not in values:
            raise SchemaError("a column needs a name; add the field 'name'.")
        name, known = values["name"], [plain_name(field.name) for field in fields(cls) if field.name != "empty"]
        for field, value in values.items():
            if field not in known:
                dotted = (
                    f' or, if the name has a dot, write [columns."{name}.{field}"]' if isinstance(value, dict) else ""
                )
                meant = nearest(field, known).partition("mean ")[2].rstrip("?")
                cure = f"{f'write {meant}' if meant else 'delete it'}{dotted}; the fields are {', '.join(known[1:])}"
                refuse(name, field, "is unknown", cure)
        if "kind" not in values:
            choice = " or ".join(f'"{kind}"' for kind in KINDS)
            undeclared(str(name), "kind", f"kind = {choice}")
        if values["kind"] == "date" and {"lower", "upper"} & set(values):
            refuse(str(name), "lower", "does not belong to the kind 'date'", "write `from` and `to` instead")
        if isinstance(values.get("missing"), tuple):
            values |= {"missing": True, "empty": values["missing"]}
        return cls(**{"from_" if field == "from" else field: value for field, value in values.items()})


Reading = tuple[NDArray[Any], NDArray[np.bool_], NDArray[np.bool_], NDArray[np.bool_], dict[str, int]]
"""Codes; which cells are empty, filled and unreadable, and outside the domain; how many were put right."""


def plain_name(field: str) -> str:
    """A field as columns.toml writes it; `from` is a word of Python's own."""
    return field.rstrip("_")


def _first(values: pd.Series[Any], chosen: NDArray[np.bool_]) -> object:
    rows = np.flatnonzero(chosen)
    return values.iloc[rows[0]] if rows.size else None


class Columns(Mapping[str, Column]):
    """Declared columns by name, in their declared order. Immutable.

    Parameters
    ----------
    columns : `Column` values, in order; or read a file with `from_toml`.
    ignore : names of columns that tables may have and no one uses, each with the reason; it is public to no one.

    Returns
    -------
    A mapping from names to `Column`, with `select`, `to_toml` and `from_toml`.

    Example
    -------
    >>> list(co.Columns([co.Column(name="age", kind="count", lower=0, upper=120)]))
    ['age']
    """

    def __init__(self, columns: Iterable[Column], *, ignore: Collection[str] | Mapping[str, str] = ()) -> None:
        self._by_name: dict[str, Column] = {}
        for column in columns:
            if not isinstance(column, Column):
                raise SchemaError(
                    f"Columns takes a list of Column values, not {column!r}; write [Column(name=...), ...]."
                )
            if column.name in self._by_name:
                raise DuplicateColumn(f"column {column.name!r} is declared twice; delete one of the two.")
            self._by_name[column.name] = column
        self.ignore: Mapping[str, str] = dict(ignore) if isinstance(ignore, Mapping) else dict.fromkeys(ignore, "")

    def __getitem__(self, name: str) -> Column:
        if name not in self._by_name:
            raise UnknownColumn(f"no column is called {name!r}; {self.suggestion(name)}")
        return self._by_name[name]

    def __contains__(self, name: object) -> bool:
        return name in self._by_name

    def __iter__(self) -> Iterator[str]:
        return iter(self._by_name)

    def __len__(self) -> int:
        return len(self._by_name)

    def __eq__(self, other: object) -> bool:
        # By fingerprint, since Python holds (0, 1) and (False, True) to be equal.
        return isinstance(other, Columns) and self.fingerprint == other.fingerprint

    def __hash__(self) -> int:
        return hash(self.fingerprint)

    def __repr__(self) -> str:
        return f"Columns({', '.join(self)})"

    def get(self, name: str, default: Any = None) -> Any:
        return self._by_name.get(name, default)

    def suggestion(self, name: str) -> str:
        """What a person may have meant by a name that is not declared."""
        close = difflib.get_close_matches(str(name), self._by_name, n=3)
        if close:
            return f"did you mean {' or '.join(map(repr, close))}?"
        return f"the columns are {', '.join(self._by_name)}." if self._by_name else "no column is declared at all."

    def select(self, names: Iterable[str]) -> Columns:
        """These columns, in the order of `names`.

        Parameters
        ----------
        names : which, in order.

        Returns
        -------
        New `Columns`.
        """
        return Columns((self[name] for name in names), ignore=self.ignore)

    def ignoring(self, names: Collection[str]) -> Columns:
        """The same columns, with more names that tables may have and no one uses.

        Parameters
        ----------
        names : of columns in tables.

        Returns
        -------
        New `Columns`.
        """
        return Columns(self.values(), ignore={**self.ignore, **dict.fromkeys(names, "")})

    def merge(self, other: Columns) -> Columns:
        """The columns of two parties, these first. A column has one owner, so a common name is a conflict.

        Parameters
        ----------
        other : the other party's columns.

        Returns
        -------
        New `Columns`.
        """
        common = [name for name in other if name in self]
        if common:
            raise ColumnConflict(
                f"two parties claim the same column: {', '.join(map(repr, common))}; "
                "rename it at one of them or leave it out there."
            )
        return Columns([*self.values(), *other.values()], ignore={**self.ignore, **other.ignore})

    def confirmed(self) -> None:
        """Refuse a domain that was read off the data, until a person confirms it."""
        drafts = [column.name for column in self.values() if column.draft]
        if drafts:
            raise DraftDomain(
                f"the domain of {', '.join(map(repr, drafts))} was read off the data and nobody confirmed it; replace "
                "it by what is publicly known and delete the line `draft = true` in columns.toml, or take all domains "
                "as they are: in Python draft.confirmed(), with `colonnade init` the option --yes."
            )

    @cached_property
    def fingerprint(self) -> str:
        """SHA-256 of the canonical JSON: equal if and only if the declarations are, order included."""
        canonical = json.dumps(self.to_dict(), sort_keys=True, separators=(",", ":"), allow_nan=False)
        return hashlib.sha256(canonical.encode()).hexdigest()

    def to_dict(self) -> dict[str, Any]:
        """Plain values for the wire; `from_dict` is its inverse."""
        return {"columns": [column.to_dict() for column in self.values()]}

    @classmethod
    def from_dict(cls, plain: Mapping[str, Any]) -> Columns:
        """Columns from plain values, checked.

        Parameters
        ----------
        plain : as `to_dict` returns it.

        Returns
        -------
        The columns.
        """
        listed = plain.get("columns")
        if (
            set(plain) != {"columns"}
            or not isinstance(listed, list)
            or not all(isinstance(stated, dict) for stated in listed)
        ):
            raise SchemaError("columns as plain values are {'columns': [{'name': ..., 'kind': ...}, ...]}; send that.")
        return cls(Column.from_dict(stated) for stated in listed)

    def to_toml(self) -> str:
        """The text of a columns.toml that declares these columns."""
        return columns_text(self.to_dict()["columns"], ignore=self.ignore)

    @classmethod
    def from_toml_text(cls, text: str, *, where: str = "columns.toml") -> Columns:
        """The text of a columns.toml; `where` names it in errors.

        Parameters
        ----------
        text : of a columns.toml.
        where : what errors call it.

        Returns
        -------
        The columns.
        """
        stated, ignore = parse_columns(text, where=where)
        return cls(map(Column.from_dict, stated), ignore=ignore)

    @classmethod
    def from_toml(cls, path: str | Path) -> Columns:
        """A columns.toml, which docs/how-to/declare-columns.md explains.

        Parameters
        ----------
        path : the file.

        Returns
        -------
        The columns, in the order of the file.
        """
        try:
            text = Path(path).read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            why = getattr(error, "strerror", None) or error
            raise SourceError(f"{path} cannot be read ({why}); give the path of a columns.toml in UTF-8.") from error
        return cls.from_toml_text(text, where=str(path))


def _cells(count: int) -> str:
    return "1 cell is" if count == 1 else f"{count} cells are"


# --- is a declared domain sound? Every refusal names the column, the field and the cure, down to the line to add


Kind = Literal["continuous", "count", "date", "ordinal", "binary", "categorical"]
KINDS: tuple[str, ...] = get_args(Kind)

RESERVED = ("1", "const")
"""The constant, among products and among coefficients."""
RESERVED_STARTS = ("present at ", "filled ")
"""The masks of a block and of a column."""

OneRowRule = Literal["mean", "sum", "min", "max", "count", "any", "first", "last"]
EmptyRule = Literal["mask", "drop", "level"]

_NUMBERS, _DISCRETE = ("continuous", "count"), ("ordinal", "binary", "categorical")
BELONGS: Mapping[str, Collection[str]] = {
    **dict.fromkeys(("lower", "upper"), (*_NUMBERS, "date")),
    **dict.fromkeys(("cuts", "decimal", "thousands", "unit", "below", "above"), _NUMBERS),
    "scale": ("continuous",),
    **dict.fromkeys(("from_", "to", "step", "date_format"), ("date",)),
    **dict.fromkeys(("categories", "other", "trim", "ignore_case"), _DISCRETE),
    "clip": (*_NUMBERS, "date"),
}
"""The kinds that a field may be declared for."""
READING = (
    "date_format",
    "decimal",
    "thousands",
    "unit",
    "below",
    "above",
    "other",
    "empty",
    "if_empty",
    "one_row",
    "order_by",
)
FLAGS = ("trim", "ignore_case", "clip")
"""Fields that say how the owner's cells are read, and nothing of the domain."""
ONE_ROW: Mapping[str, Collection[str]] = {
    "mean": ("continuous", "date"),
    "sum": _NUMBERS,
    **dict.fromkeys(("min", "max"), (*_NUMBERS, "date", "ordinal", "binary")),
    "count": ("count",),
    "any": ("binary",),
    **dict.fromkeys(("first", "last"), KINDS),
}
"""The kinds that each rule for a person's several rows may be declared for."""

EXACT = 2**53  # integers up to here are exact in float64


def refuse(name: str, field: str, fault: str, cure: str, error: type[SchemaError] = SchemaError) -> NoReturn:
    raise error(f"column {name!r}: the field {field!r} {fault}; {cure}.")


def undeclared(name: str, what: str, line: str) -> NoReturn:
    """A part of the declaration is not there: say which line to add, and where."""
    place = f"[columns.{key_text(name)}] in columns.toml"
    raise DomainError(f"column {name!r} has no {what}; add the line `{line}` under {place}.")


def checked_bounds(name: str, kind: str, lower: object, upper: object) -> tuple[float, float]:
    """Both bounds as numbers: finite, increasing, and whole for a count."""
    if lower is None:
        undeclared(name, "bound 'lower'", "lower = <the smallest value that is possible>")
    if upper is None:
        undeclared(name, "bound 'upper'", "upper = <the largest value that is possible>")
    low, high = _number(name, "lower", lower), _number(name, "upper", upper)
    for field, value, number in (("lower", lower, low), ("upper", upper, high)):
        if kind == "count" and (number != value or not number.is_integer() or abs(number) > EXACT):
            refuse(name, field, f"is {value!r}", "a count needs an integer, at most 2^53 in size", DomainError)
    if not low < high:
        refuse(name, "lower", f"is {low:g}, not below upper = {high:g}", "widen the bounds", DomainError)
    if not math.isfinite(high - low):
        refuse(name, "upper", "is so far from lower that the range overflows", "narrow the bounds", DomainError)
    return low, high


def checked_cuts(name: str, stated: object, lower: float, upper: float) -> tuple[float, ...]:
    """Inner cut points: increasing, strictly inside the bounds."""
    if not isinstance(stated, tuple):
        refuse(name, "cuts", "is not a list of numbers", "write for example `cuts = [0.0, 0.5]`")
    inner = tuple(_number(name, "cuts", cut) for cut in stated)
    if not inner or any(left >= right for left, right in itertools.pairwise((lower, *inner, upper))):
        cure = f"list increasing numbers strictly between {lower:g} and {upper:g}, or delete the line"
        refuse(name, "cuts", "is not increasing inside the bounds", cure, DomainError)
    return inner


def checked_range(column: Column) -> dict[str, Any]:
    """A date's range as ISO text of its step, and as numbers of steps from its first one."""
    step = column.step or "day"
    if step not in STEPS:
        refuse(column.name, "step", f"is {step!r}", f"choose one of {', '.join(STEPS)}")
    ends: dict[str, str] = {}
    for field, what in (("from_", "first"), ("to", "last")):
        stated = getattr(column, field)
        if stated is None:
            undeclared(column.name, f"{plain_name(field)!r}", f'{plain_name(field)} = "<the {what} date possible>"')
        # The last day of a range in hours or minutes counts to its end.
        whole_day = field == "to" and STEPS.index(step) > STEPS.index("year") and len(str(stated)) <= len("2024-03-09")
        ends[field] = iso_text(f"{stated} 23:59:59" if whole_day else stated, step) or refuse(
            column.name, plain_name(field), f"is {stated!r}", 'write a date as "2024-03-09"', DomainError
        )
    last = float(steps_between(ends["from_"], np.array([ends["to"]], dtype="datetime64[s]"), step)[0])
    if not last > 0:
        refuse(column.name, "to", f"is not after from = {ends['from_']}", "widen the range", DomainError)
    if last > EXACT:
        refuse(column.name, "step", "is too fine for the range", "choose a longer one", DomainError)
    return {**ends, "step": step, "lower": 0.0, "upper": last}


def check_reading(column: Column) -> None:
    """The rules by which a column's cells are read: texts, one sign each, and no contradiction between them."""
    texts = ("decimal", "thousands", "unit", "date_format", "other", "order_by")
    for field in texts:
        value = getattr(column, field)
        if value is not None and not is_text(value):
            refuse(column.name, field, f"is {value!r}", "write a text in quotes")
    for field, signs in (("decimal", ".,"), ("thousands", ".,' ")):
        value = getattr(column, field)
        if value is not None and value not in tuple(signs):
            refuse(column.name, field, f"is {value!r}", f"choose one of {' '.join(map(quoted_text, signs))}")
    if column.thousands is not None and column.thousands == (column.decimal or "."):
        refuse(column.name, "thousands", "is the decimal sign too", 'declare the other one, such as `decimal = ","`')
    for field in ("below", "above"):
        if getattr(column, field) not in (None, "limit"):
            refuse(column.name, field, f"is {getattr(column, field)!r}", 'write "limit", or delete the line')
    if column.empty is not None and not (column.empty and all(isinstance(text, str) for text in column.empty)):
        refuse(column.name, "missing", "is not a list of texts", 'write for example `missing = ["NA", "-99"]`')
    if column.empty is not None and not column.missing:
        refuse(column.name, "missing", "is false, and texts mean an empty cell", "say missing=True beside empty=")
    if column.if_empty is not None and column.if_empty not in get_args(EmptyRule):
        rules = ", ".join(f'"{rule}"' for rule in get_args(EmptyRule))
        refuse(column.name, "if_empty", f"is {column.if_empty!r}", f"choose one of {rules}, or delete the line")
    if column.if_empty is not None and not column.missing:
        refuse(column.name, "if_empty", "is for empty cells, and it has none", "add `missing = true`, or delete it")
    if column.one_row is not None and column.kind not in ONE_ROW.get(column.one_row, ()):
        fitting = ", ".join(rule for rule, kinds in ONE_ROW.items() if column.kind in kinds)
        refuse(column.name, "one_row", f"is {column.one_row!r}", f"a {column.kind} column takes one of {fitting}")
    if column.order_by is not None and column.one_row not in ("first", "last"):
        refuse(column.name, "order_by", "says what first and last go by", 'add `one_row = "last"`, or delete it')


def checked_categories(column: Column) -> tuple[Category, ...]:
    """Distinct categories of one type, with `other` as the last; exactly two for a binary column."""
    name, kind, given = column.name, column.kind, column.categories
    if given is None:
        example = "[<what counts as 0>, <what counts as 1>]" if kind == "binary" else '["<first>", "<second>"]'
        undeclared(name, "categories", f"categories = {example}")
    if not isinstance(given, tuple):
        refuse(name, "categories", "is not a list", 'write for example `categories = ["no", "yes"]`')
    if not given:
        refuse(name, "categories", "is empty", "list at least one category", DomainError)
    plain = tuple(value.item() if isinstance(value, np.generic) else value for value in given)
    types = {type(value) for value in plain}
    if types == {int, float} or types == {float}:
        plain = tuple(as_float(value) + 0.0 for value in plain)  # -0.0 becomes 0.0: equal domains, equal fingerprints
    elif len(types) > 1 or not types <= {str, int, bool}:
        cure = "write only texts, only numbers, or only true and false"
        refuse(name, "categories", "does not hold values of one plain type", cure)
    if column.other is not None and column.other not in plain:
        if types != {str}:
            refuse(name, "other", "is a text, and the categories are none", "delete it, or list them as texts")
        plain = (*plain, column.other)
    compared = {
        encoding.normal_text(value, trim=column.trim, ignore_case=column.ignore_case)
        if isinstance(value, str)
        else value
        for value in plain
    }
    if len(compared) < len(plain):
        refuse(name, "categories", "names a category twice", "delete the repetition", DomainError)
    if kind == "binary" and len(plain) != 2:
        refuse(name, "categories", f"has {len(plain)} entries", "list exactly two: first 0, then 1", DomainError)
    holds: dict[type, Callable[[Any], bool]] = {str: is_text, float: math.isfinite}
    if not all(holds.get(type(value), _fits)(value) for value in plain):
        cure = "leave out empty texts (`missing = true` allows empty cells), infinity and integers beyond 64 bits"
        refuse(name, "categories", "has an entry that no cell can hold", cure, DomainError)
    return plain


def _fits(number: int) -> bool:
    return -(2**63) <= number < 2**63


def _number(name: str, field: str, value: object) -> float:
    if isinstance(value, np.generic):
        value = value.item()
    if isinstance(value, bool) or not isinstance(value, int | float):
        refuse(name, field, f"is {value!r}", "write a number, without quotes")
    number = as_float(value) + 0.0  # -0.0 becomes 0.0
    if not math.isfinite(number):
        refuse(name, field, f"is {value!r}", "write a finite number", DomainError)
    return number
