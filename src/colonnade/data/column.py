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
import re
import tomllib
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, fields
from functools import cached_property
from pathlib import Path
from typing import Any, Literal, NoReturn, get_args

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from colonnade.codec import nearest
from colonnade.data import encoding
from colonnade.data.encoding import Category, Faults, as_float
from colonnade.errors import (
    ColumnConflict,
    DomainError,
    DraftDomain,
    DuplicateColumn,
    SchemaError,
    SourceError,
    UnknownColumn,
)

__all__ = ["Category", "Column", "Columns", "Kind", "KINDS"]


@dataclass(frozen=True, kw_only=True)
class Column:
    """One declared column.

    `lower` and `upper` bound a continuous or count column; `categories` lists a discrete one (in order for
    ordinal; first 0, then 1 for binary). `missing`: may a present record have this cell empty? `draft`: the domain
    was read off the data and nobody confirmed it. `cuts`: public inner cut points for histograms.

    Parameters
    ----------
    name, kind : its name, and one of "continuous", "count", "ordinal", "binary", "categorical".
    lower, upper, categories, missing, draft, cuts : as above.
    description : what it is, for people.

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
    description: str = ""

    def __post_init__(self) -> None:
        if not is_text(self.name):
            raise SchemaError(f"a column's name must be a text that is not empty, not {self.name!r}; rename it.")
        if self.kind not in KINDS:
            refuse(self.name, "kind", f"is {self.kind!r}", f"choose one of {', '.join(KINDS)}")
        for field in ("missing", "draft"):
            if not isinstance(getattr(self, field), bool):
                fault = f"is {getattr(self, field)!r}"
                refuse(self.name, field, fault, "write true or false, without quotes")
        if self.description != "" and not is_text(self.description):
            refuse(self.name, "description", "is not a text", "write a text in quotes")
        for field in ("lower", "upper", "cuts") if self.discrete else ("categories",):
            if getattr(self, field) is not None:
                fault = f"does not belong to the kind {self.kind!r}"
                refuse(self.name, field, fault, "delete it, or change the kind")
        if self.discrete:
            object.__setattr__(self, "categories", checked_categories(self.name, self.kind, self.categories))
            return
        lower, upper = checked_bounds(self.name, self.kind, self.lower, self.upper)
        object.__setattr__(self, "lower", lower)
        object.__setattr__(self, "upper", upper)
        if self.cuts is not None:
            object.__setattr__(self, "cuts", checked_cuts(self.name, self.cuts, lower, upper))

    @property
    def discrete(self) -> bool:
        """Has the column categories (ordinal, binary, categorical) rather than bounds?"""
        return self.kind not in ("continuous", "count")

    def encode(self, values: pd.Series[Any]) -> NDArray[Any]:
        """float64 with NaN for an empty cell (continuous, count) or int32 codes with -1 (discrete).

        A cell outside the domain, or an empty one where `missing` is False, is a `DomainError`.
        """
        codes, faults = self.read(values)
        if faults:
            raise DomainError(self.complaint(faults))
        return codes

    def clip(self, values: pd.Series[Any]) -> NDArray[Any]:
        """As `encode`, but never refuses: a number is clipped into the bounds, anything else counts as empty."""
        return self.read(values)[0]

    def read(self, values: pd.Series[Any]) -> tuple[NDArray[Any], Faults]:
        """The clipped codes, and what `encode` would refuse. `colonnade.data.encoding` has the rules."""
        unreadable = np.zeros(len(values), dtype=np.bool_)
        codes: NDArray[Any]
        if self.categories is not None:
            codes, empty, outside = encoding.read_codes(values, self.categories)
        else:
            numbers, unreadable = encoding.read_numbers(values)
            empty = np.isnan(numbers) & ~unreadable
            codes = np.clip(np.rint(numbers) if self.kind == "count" else numbers, self.lower, self.upper)
            outside = ~np.isnan(numbers) & (codes != numbers)
        refused = np.flatnonzero(unreadable | outside)
        return codes, Faults(
            empty=0 if self.missing else int(empty.sum()),
            unreadable=int(unreadable.sum()),
            outside=int(outside.sum()),
            example=encoding.quoted(values.iloc[refused[0]]) if refused.size else None,
        )

    def complaint(self, faults: Faults) -> str:
        """The sentence for cells that were refused: column, number of cells, cure, and at most one cell."""
        sample = "" if faults.example is None else f" (one is {faults.example})"
        if faults.unreadable:
            cause = f"{_cells(faults.unreadable)} not a number{sample}"
            cure = "write decimal numbers with a point, leave unknown cells empty, or declare a kind with categories"
        elif faults.outside and self.discrete:
            cause = f"{_cells(faults.outside)} none of the declared categories{sample}"
            cure = "correct the cells, or add what is missing to `categories` in columns.toml"
        elif faults.outside:
            number = "an integer" if self.kind == "count" else "a number"
            cause = f"{_cells(faults.outside)} not {number} in [{self.lower!r}, {self.upper!r}]{sample}"
            cure = "correct the cells, or change `lower` and `upper` in columns.toml"
        else:
            cause = f"{_cells(faults.empty)} empty"
            cure = "fill them, or add the line `missing = true` to the column in columns.toml"
        return f"column {self.name!r}: {cause}; {cure}."

    def decode(self, codes: NDArray[Any]) -> pd.Series[Any]:
        """The inverse of `encode`: float64, Int64 (a count, rounded) or a categorical, ordered for ordinal."""
        if self.categories is not None:
            try:
                index: Any = pd.Index(list(self.categories))
                cells = pd.Categorical.from_codes(np.asarray(codes), index, ordered=self.kind == "ordinal")
            except ValueError:
                last = len(self.categories) - 1
                raise DomainError(f"column {self.name!r} has the codes -1 to {last}; decode only those.") from None
            return pd.Series(cells, name=self.name)
        numbers = np.asarray(codes, dtype=np.float64)
        if self.kind == "continuous":
            return pd.Series(numbers, name=self.name)
        if np.any(np.abs(numbers) > EXACT):
            raise DomainError(f"column {self.name!r} is a count; decode only finite numbers up to 2^53.")
        return pd.Series(np.rint(numbers), name=self.name).astype("Int64")

    def to_dict(self) -> dict[str, Any]:
        """The fields that differ from their defaults, as plain values; `from_dict` is its inverse."""
        stated = {field.name: getattr(self, field.name) for field in fields(self)}
        defaults = {field.name: field.default for field in fields(self)}
        return {
            name: list(value) if isinstance(value, tuple) else value
            for name, value in stated.items()
            if value != defaults[name]
        }

    @classmethod
    def from_dict(cls, plain: Mapping[str, Any]) -> Column:
        """A column from plain values; an unknown or missing field is an error that says what to write."""
        values: dict[str, Any] = {
            field: tuple(value) if isinstance(value, list) else value for field, value in plain.items()
        }
        if "name" not in values:
            raise SchemaError("a column needs a name; add the field 'name'.")
        name, known = values["name"], [field.name for field in fields(cls)]
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
        return cls(**values)


class Columns(Mapping[str, Column]):
    """Declared columns by name, in their declared order. Immutable.

    Parameters
    ----------
    columns : `Column` values, in order; or read a file with `from_toml`.

    Returns
    -------
    A mapping from names to `Column`, with `select`, `to_toml` and `from_toml`.

    Example
    -------
    >>> list(co.Columns([co.Column(name="age", kind="count", lower=0, upper=120)]))
    ['age']
    """

    def __init__(self, columns: Iterable[Column]) -> None:
        self._by_name: dict[str, Column] = {}
        for column in columns:
            if column.name in self._by_name:
                raise DuplicateColumn(f"column {column.name!r} is declared twice; delete one of the two.")
            self._by_name[column.name] = column

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
        """These columns, in the order of `names`."""
        return Columns(self[name] for name in names)

    def merge(self, other: Columns) -> Columns:
        """The columns of two parties, these first. A column has one owner, so a common name is a conflict."""
        common = [name for name in other if name in self]
        if common:
            raise ColumnConflict(
                f"two parties claim the same column: {', '.join(map(repr, common))}; "
                "rename it at one of them or leave it out there."
            )
        return Columns([*self.values(), *other.values()])

    def confirmed(self) -> None:
        """Refuse a domain that was read off the data, until a person confirms it."""
        drafts = [column.name for column in self.values() if column.draft]
        if drafts:
            raise DraftDomain(
                f"the domain of {', '.join(map(repr, drafts))} was read off the data and nobody confirmed it; "
                "replace it by what is publicly known, then delete the line `draft = true` in columns.toml."
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
        """Columns from plain values, checked."""
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
        return columns_text(self.to_dict()["columns"])

    @classmethod
    def from_toml_text(cls, text: str, *, where: str = "columns.toml") -> Columns:
        """The text of a columns.toml; `where` names it in errors."""
        return cls(Column.from_dict(stated) for stated in parse_columns(text, where=where))

    @classmethod
    def from_toml(cls, path: str | Path) -> Columns:
        """A columns.toml, which docs/how-to/declare-columns.md explains."""
        try:
            text = Path(path).read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise SourceError(f"{path} cannot be read ({error}); give the path of a columns.toml in UTF-8.") from error
        return cls.from_toml_text(text, where=str(path))


def _cells(count: int) -> str:
    return "1 cell is" if count == 1 else f"{count} cells are"


# --- is a declared domain sound? Every refusal names the column, the field and the cure, down to the line to add


Kind = Literal["continuous", "count", "ordinal", "binary", "categorical"]
KINDS: tuple[str, ...] = get_args(Kind)

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


def checked_cuts(name: str, given: object, lower: float, upper: float) -> tuple[float, ...]:
    """Inner cut points: increasing, strictly inside the bounds."""
    if not isinstance(given, tuple):
        refuse(name, "cuts", "is not a list of numbers", "write for example `cuts = [0.0, 0.5]`")
    inner = tuple(_number(name, "cuts", cut) for cut in given)
    if not inner or any(left >= right for left, right in itertools.pairwise((lower, *inner, upper))):
        cure = f"list increasing numbers strictly between {lower:g} and {upper:g}, or delete the line"
        refuse(name, "cuts", "is not increasing inside the bounds", cure, DomainError)
    return inner


def checked_categories(name: str, kind: str, given: object) -> tuple[Category, ...]:
    """Distinct categories of one type; exactly two for a binary column."""
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
    if len(set(plain)) < len(plain):
        refuse(name, "categories", "names a category twice", "delete the repetition", DomainError)
    if kind == "binary" and len(plain) != 2:
        refuse(name, "categories", f"has {len(plain)} entries", "list exactly two: first 0, then 1", DomainError)
    holds: dict[type, Callable[[Any], bool]] = {str: is_text, float: math.isfinite}
    if not all(holds.get(type(value), _fits)(value) for value in plain):
        cure = "leave out empty texts (`missing = true` allows empty cells), infinity and integers beyond 64 bits"
        refuse(name, "categories", "has an entry that no cell can hold", cure, DomainError)
    return plain


def is_text(value: object) -> bool:
    """A text that is not empty and is valid Unicode: a lone surrogate cannot be written to a file."""
    if not isinstance(value, str):
        return False
    try:
        return bool(value.encode())
    except UnicodeEncodeError:
        return False


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


# --- columns.toml: plain values from text and back; what the values mean is the business of `Column` -------
#
# ```toml
# [columns.roa]
# kind = "continuous"
# lower = -1.0
# upper = 1.0
# ```


_BARE = re.compile(r"[A-Za-z0-9_-]+")


def parse_columns(text: str, *, where: str = "columns.toml") -> list[dict[str, Any]]:
    """The columns of a columns.toml in their order, each as its fields and its name."""
    try:
        document = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        twice = re.search(r"Cannot declare \('columns', (.*)\) twice", str(error))
        if twice:
            name = twice[1].rstrip(",")
            raise DuplicateColumn(f"{where} has the column {name} twice; delete one of the two. ({error})") from None
        raise SchemaError(f"{where} is not valid TOML; correct it where the parser stopped: {error}.") from None
    for name in document:
        if name != "columns":
            raise SchemaError(f"{where} has an unknown section {name!r}; every section is called [columns.<name>].")
    columns = document.get("columns", {})
    if not isinstance(columns, dict) or not columns:
        raise SchemaError(f"{where} declares no column; add a section [columns.<name>] for each.")
    for name, stated in columns.items():
        if not isinstance(stated, dict):
            raise SchemaError(
                f"{where}: {name!r} is a value under [columns]; make it a section [columns.{key_text(name)}]."
            )
        if "name" in stated:
            raise SchemaError(
                f"{where}: column {name!r} has a field 'name'; delete it, the section's title is the name."
            )
    return [{"name": name, **stated} for name, stated in columns.items()]


def columns_text(columns: Iterable[Mapping[str, Any]], *, comments: Mapping[str, str] | None = None) -> str:
    """The text of a columns.toml, with an optional comment under a column's title."""
    sections = []
    for column in columns:
        lines = [f"[columns.{key_text(column['name'])}]"]
        if comments and column["name"] in comments:
            lines.append(f"# {comments[column['name']]}")
        for field, value in column.items():
            if column["kind"] == "count" and field in ("lower", "upper"):
                value = int(value)
            if field != "name":
                lines.append(f"{field} = {_value_text(value)}")
        sections.append("\n".join(lines) + "\n")
    return "\n".join(sections)


def key_text(name: str) -> str:
    """A name as a TOML key: bare where TOML allows it, else quoted."""
    return name if _BARE.fullmatch(name) else _value_text(name)


def _value_text(value: object) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        # A JSON string is a TOML basic string, but for DEL, which TOML wants escaped too.
        return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
    if isinstance(value, list):
        return f"[{', '.join(_value_text(item) for item in value)}]"
    return repr(value)
