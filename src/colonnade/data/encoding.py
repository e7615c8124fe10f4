"""Cells and codes: how the values of a source become the numbers that a method computes with.

One principle: a data frame and the CSV file that pandas writes of it encode alike. A CSV cell has no type, so
text is read as what its column declares:

| declared        | text cell                       | number cell                      | truth cell         |
|-----------------|---------------------------------|----------------------------------|--------------------|
| a numeric kind  | the decimal number it spells    | itself                           | refused            |
| number category | that number; true/false are 1/0 | itself (1 and 1.0 are the same)  | 1 / 0              |
| truth category  | true/false in any case; 1/0     | 1 / 0                            | itself             |
| text category   | the same text, nothing trimmed  | its text; for 1.0 "1.0" or "1"   | "True" / "False"   |

An **empty** cell is None, NaN, NA, NaT or the empty text. The words "NA" and "nan" are text like any other:
Namibia is a country. Infinity lies outside every domain.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

Category = str | int | float | bool

EMPTY = -1
_OUTSIDE = -2
_NUMBER = r"[ \t]*[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?[ \t]*"
_WHOLE = re.compile(r"[ \t]*[+-]?[0-9]{1,30}[ \t]*")


@dataclass(frozen=True, kw_only=True)
class Faults:
    """How many cells a declaration does not allow. Mergeable over chunks; quotes at most one cell."""

    empty: int = 0
    unreadable: int = 0
    outside: int = 0
    example: str | None = None

    def __bool__(self) -> bool:
        return self.total > 0

    @property
    def total(self) -> int:
        return self.empty + self.unreadable + self.outside

    def __add__(self, other: Faults) -> Faults:
        return Faults(
            empty=self.empty + other.empty,
            unreadable=self.unreadable + other.unreadable,
            outside=self.outside + other.outside,
            example=self.example if self.example is not None else other.example,
        )


def spelled_number(text: str) -> int | float | None:
    """The decimal number that a text spells, or None. No infinity, no underscores, no other digits."""
    if not re.fullmatch(_NUMBER, text):
        return None
    return int(text) if _WHOLE.fullmatch(text) else float(text)


def read_numbers(values: pd.Series[Any]) -> tuple[NDArray[np.float64], NDArray[np.bool_]]:
    """Cells as float64 with NaN where there is no number, and where that is because the cell is not one."""
    dtype = values.dtype
    if isinstance(dtype, pd.CategoricalDtype):
        numbers, unreadable = read_numbers(pd.Series(dtype.categories))
        codes = values.cat.codes.to_numpy()  # -1, an empty cell, picks the NaN that is appended
        return np.append(numbers, np.nan)[codes], np.append(unreadable, False)[codes]
    if isinstance(dtype, pd.StringDtype):
        return _read_text(pa.array(values, from_pandas=True))
    numeric = pd.api.types.is_numeric_dtype(dtype) and not pd.api.types.is_bool_dtype(dtype)
    if numeric and not pd.api.types.is_complex_dtype(dtype):
        return values.to_numpy(dtype=np.float64, na_value=np.nan), np.zeros(len(values), dtype=np.bool_)
    cells = [_read_number(cell) for cell in values.to_numpy(dtype=object)]
    unreadable = np.array([number is None for number in cells], dtype=np.bool_) & ~values.isna().to_numpy(dtype=bool)
    return np.array([np.nan if number is None else number for number in cells], dtype=np.float64), unreadable


def _read_text(text: pa.Array | pa.ChunkedArray) -> tuple[NDArray[np.float64], NDArray[np.bool_]]:
    spells = pc.fill_null(pc.match_substring_regex(text, f"^{_NUMBER}$"), False)
    filled = pc.fill_null(pc.not_equal(text, ""), False)
    # Arrow rounds correctly, but would also take "inf" and "nan", and no spaces: hence the pattern first.
    trimmed = pc.utf8_rtrim(pc.utf8_ltrim(text, characters=" \t+"), characters=" \t")
    numbers = pc.cast(pc.if_else(spells, trimmed, None), pa.float64())
    return _array(pc.fill_null(numbers, np.nan), np.float64), _array(pc.and_not(filled, spells), np.bool_)


def _array(values: pa.Array | pa.ChunkedArray, dtype: type[np.generic]) -> NDArray[Any]:
    return np.array(values.to_numpy(zero_copy_only=False), dtype=dtype)


def _read_number(cell: object) -> float | None:
    if isinstance(cell, str):
        number = spelled_number(cell) if cell else np.nan
        return None if number is None else as_float(number)
    if isinstance(cell, bool | np.bool_):
        return None
    if isinstance(cell, int | float | Decimal | np.integer | np.floating):
        return as_float(cell)
    return None


def as_float(number: Any) -> float:
    try:
        return float(number)
    except OverflowError:  # a Python integer beyond 1.8e308
        return np.inf if number > 0 else -np.inf


def read_codes(
    values: pd.Series[Any], categories: tuple[Category, ...]
) -> tuple[NDArray[np.int32], NDArray[np.bool_], NDArray[np.bool_]]:
    """Codes of the categories with -1 where there is none, which cells are empty, and which are no category."""
    code_of = category_matcher(categories)
    if values.dtype == object:
        codes = _codes_of_objects(values.to_numpy(dtype=object), code_of)
    else:
        # Few values, many cells: match each distinct value once. Index -1, an empty cell, picks the EMPTY appended.
        index, distinct = pd.factorize(values)
        table = [code_of(value) for value in distinct.tolist()]
        codes = np.array([*table, EMPTY], dtype=np.int32)[index]
    return np.maximum(codes, EMPTY), codes == EMPTY, codes == _OUTSIDE


def _codes_of_objects(cells: NDArray[Any], code_of: Callable[[object], int]) -> NDArray[np.int32]:
    """As for other arrays, but 1, 1.0 and True are kept apart, and a cell may be anything."""
    code_by_cell: dict[tuple[type, object], int] = {}
    empty = np.asarray(pd.isna(cells), dtype=np.bool_)
    codes = np.full(len(cells), EMPTY, dtype=np.int32)
    for row in np.flatnonzero(~empty):
        cell = cells[row]
        if not isinstance(cell, Hashable):
            codes[row] = _OUTSIDE
            continue
        key = (type(cell), cell)
        if key not in code_by_cell:
            code_by_cell[key] = code_of(cell)
        codes[row] = code_by_cell[key]
    return codes


def category_matcher(categories: tuple[Category, ...]) -> Callable[[object], int]:
    """The function from a cell to its code, EMPTY for the empty text, or _OUTSIDE.

    A Python dictionary holds 1, 1.0, True and Decimal(1) to be one key and compares large integers with floats
    exactly, which is the rule for numbers and truth values.
    """
    codes: dict[object, int] = {category: code for code, category in enumerate(categories)}
    spellings = _as_text if isinstance(categories[0], str) else _as_value

    def code_of(cell: object) -> int:
        if isinstance(cell, np.generic):
            cell = cell.item()
        if isinstance(cell, str) and cell == "":
            return EMPTY
        return next((codes[spelling] for spelling in spellings(cell) if spelling in codes), _OUTSIDE)

    return code_of


def _as_text(cell: object) -> list[object]:
    if isinstance(cell, float) and cell.is_integer():
        return [str(cell), str(int(cell))]
    return [str(cell)] if isinstance(cell, str | int | float | Decimal) else []


def _as_value(cell: object) -> list[object]:
    if isinstance(cell, str):
        truth = {"true": True, "false": False}.get(cell.strip().lower())
        return [spelled_number(cell) if truth is None else truth]
    return [cell] if isinstance(cell, int | float | Decimal) else []


def quoted(cell: object) -> str:
    """One offending cell for a message, cut short."""
    text = repr(cell.item() if isinstance(cell, np.generic) else cell)
    return text if len(text) <= 40 else f"{text[:37]}..."
