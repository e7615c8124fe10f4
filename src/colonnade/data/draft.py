"""A first columns.toml, read off a table, for a person to correct.

What is read off the data is a **draft**: nothing runs on it until a person has put public facts in its place and
deleted the line `draft = true`. Bounds are rounded outwards, because the smallest and the largest value are two
people's own; a text with very many values is refused, because it names people rather than categories.
"""

from __future__ import annotations

import math
import re
from decimal import ROUND_CEILING, ROUND_FLOOR, Decimal
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from colonnade.data.column import EXACT, Column, Columns, Kind, columns_text
from colonnade.data.encoding import read_numbers
from colonnade.data.sources import FrameSource
from colonnade.errors import DomainError, EmptyParty, KeyProblem

COMMENT = "read off the data: confirm or replace, then delete the line `draft = true`"

_CODE = re.compile(r"[+-]?0[0-9]+")  # "007" is a code, not a number
_FRACTION = re.compile(r"[.eE]")


def draft_columns(frame: pd.DataFrame, *, key: str, max_categories: int = 200) -> Columns:
    """A column for each of the frame's but the key. All that depends on the data has `draft=True`."""
    source = FrameSource(frame)
    names = [name for name in source.names() if name != key]
    if len(names) != len(source.names()) - 1:
        raise KeyProblem(f"the table needs exactly one key column {key!r}; it has {', '.join(source.names())}.")
    if len(frame) == 0:
        raise EmptyParty("the table has no records to draft from; declare its columns by hand.")
    if not names:
        return Columns([])
    (table,) = source.chunks(names, rows=len(frame))
    return Columns(_draft(name, table[name], max_categories) for name in names)


def draft_toml(frame: pd.DataFrame, *, key: str, max_categories: int = 200) -> str:
    """The text of a columns.toml, with a comment wherever a person has to decide."""
    columns = draft_columns(frame, key=key, max_categories=max_categories)
    comments = {name: COMMENT for name, column in columns.items() if column.draft}
    return columns_text(columns.to_dict()["columns"], comments=comments)


def _draft(name: str, values: pd.Series[Any], max_categories: int) -> Column:
    if pd.api.types.is_bool_dtype(values.dtype) and not isinstance(values.dtype, pd.CategoricalDtype):
        # The type alone says what may occur; a nullable type allows empty cells whether or not there are any.
        nullable = values.dtype != np.dtype(bool)
        return Column(name=name, kind="binary", categories=(False, True), missing=nullable)
    if isinstance(values.dtype, pd.CategoricalDtype):
        listed = values.dtype.categories.tolist()
        ordinal = bool(values.dtype.ordered)
        return _discrete(
            name, listed, missing=bool(values.isna().any()), ordinal=ordinal, max_categories=max_categories
        )
    numbers, unreadable = read_numbers(values)
    filled = ~np.isnan(numbers) | unreadable
    if not filled.any():
        raise DomainError(f"column {name!r} has only empty cells; declare it by hand, or leave it out of the draft.")
    missing = not filled.all()
    cells = values.to_numpy(dtype=object)[filled]
    texts = [cell for cell in cells if isinstance(cell, str)]
    if not unreadable.any() and not any(_CODE.fullmatch(text.strip()) for text in texts):
        spelled_whole = not any(_FRACTION.search(text) for text in texts)
        # pandas stores integers with gaps as floats; floats without gaps are meant as such.
        integers = spelled_whole and (missing or values.dtype.kind != "f")
        return _numeric(name, numbers[filled], integers=integers, missing=missing)
    distinct = {cell.lower() if isinstance(cell, str) else cell for cell in cells.tolist() if _plain(name, cell)}
    if distinct <= {"true", "false", True, False}:
        return Column(name=name, kind="binary", categories=(False, True), missing=missing, draft=True)
    listed = sorted({str(cell) for cell in cells})
    return _discrete(name, listed, missing=missing, ordinal=False, max_categories=max_categories)


def _plain(name: str, cell: object) -> bool:
    if isinstance(cell, str | int | float | bool | Decimal):
        return True
    raise DomainError(
        f"column {name!r} has cells of type {type(cell).__name__}; convert them to text, numbers or truth values."
    )


def _discrete(name: str, listed: list[Any], *, missing: bool, ordinal: bool, max_categories: int) -> Column:
    if len(listed) > max_categories:
        raise DomainError(
            f"column {name!r} has {len(listed)} different values, more than {max_categories}; if it names people leave "
            "it out, else declare it by hand or raise max_categories."
        )
    kind: Kind = "ordinal" if ordinal else "binary" if len(listed) == 2 else "categorical"
    return Column(name=name, kind=kind, categories=tuple(listed), missing=missing, draft=True)


def _numeric(name: str, numbers: NDArray[np.float64], *, integers: bool, missing: bool) -> Column:
    if not np.isfinite(numbers).all():
        raise DomainError(f"column {name!r} has infinite cells; leave them empty, infinity is in no domain.")
    if set(np.unique(numbers)) == {0.0, 1.0}:
        return Column(name=name, kind="binary", categories=(0, 1), missing=missing, draft=True)
    count = integers and bool(np.all(numbers == np.rint(numbers))) and float(np.abs(numbers).max()) < EXACT / 16
    lower, upper = round_outwards(float(numbers.min()), float(numbers.max()), integers=count)
    kind: Kind = "count" if count else "continuous"
    return Column(name=name, kind=kind, lower=lower, upper=upper, missing=missing, draft=True)


def round_outwards(smallest: float, largest: float, *, integers: bool = False) -> tuple[float, float]:
    """Bounds around the data at multiples of the power of ten below its range; at least one step apart."""
    spread = largest - smallest or abs(largest) or 1.0
    if not math.isfinite(spread):
        return smallest, largest
    step = Decimal(10) ** math.floor(math.log10(spread))
    if integers:
        step = max(step, Decimal(1))
    lower = (Decimal(repr(smallest)) / step).to_integral_value(ROUND_FLOOR) * step
    upper = (Decimal(repr(largest)) / step).to_integral_value(ROUND_CEILING) * step
    return float(lower), float(upper if upper > lower else lower + step)
