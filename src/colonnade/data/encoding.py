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

What a table writes otherwise is read by rules that the column declares, never by a guess: texts that mean an empty
cell, spaces and capitals of categories, and of numbers the decimal sign, the thousands separator, a unit, and "<0.1"
for what lies below a limit of detection.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, fields
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
_MINUS = "\u2212"
"""As typesetters write it; a hyphen is what is read."""
_NUMBER = r"[ \t]*[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?[ \t]*"
_SPACES = frozenset(" \u00a0\u202f")  # the second and third do not break a line
_WHOLE = re.compile(r"[ \t]*[+-]?[0-9]{1,30}[ \t]*")


@dataclass(frozen=True, kw_only=True)
class Faults:
    """How many cells a declaration does not allow, and how many it has put right. Mergeable over chunks."""

    empty: int = 0
    unreadable: int = 0
    outside: int = 0
    example: object = None
    """A cell outside the domain."""
    unread: object = None
    """A cell that could not be read; a message shows its form alone."""
    clipped: int = 0
    limited: int = 0
    """Cells below or above a limit of detection, taken as the limit."""
    other: int = 0
    blank: int = 0
    """Empty cells of a column that may have them."""

    def __bool__(self) -> bool:
        return self.total > 0

    @property
    def total(self) -> int:
        return self.empty + self.unreadable + self.outside

    def __add__(self, more: Faults) -> Faults:
        shown = ("example", "unread")
        cells = {name: getattr(more if getattr(self, name) is None else self, name) for name in shown}
        counts = [field.name for field in fields(self) if field.name not in shown]
        return Faults(**cells, **{name: getattr(self, name) + getattr(more, name) for name in counts})


@dataclass(frozen=True, kw_only=True)
class Spelling:
    """How a column's numbers are written. `below`, `above`: whether "<0.1" and ">500" stand for the limit itself."""

    decimal: str = "."
    thousands: str | None = None
    unit: str | None = None
    below: bool = False
    above: bool = False

    def pattern(self) -> str:
        """A number in groups: sign of a limit, unit, sign, whole part, fraction, exponent, unit."""
        point = re.escape(self.decimal)
        whole = "[0-9]+"
        if self.thousands is not None:
            # Groups of three, or "1.5" would be fifteen; a space may be one that does not break.
            separator = "[ \u00a0\u202f]" if self.thousands == " " else re.escape(self.thousands)
            whole = f"[0-9]{{1,3}}(?:{separator}[0-9]{{3}})+|[0-9]+"
        unit = "" if self.unit is None else f"(?:{re.escape(self.unit)})?"
        limit = f"[{'<≤' * self.below}{'>≥' * self.above}]?" if self.below or self.above else ""
        space = "[ \t\u00a0\u202f]*"
        number = f"([+-]?)((?:{whole})?)(?:{point}([0-9]*))?([eE][+-]?[0-9]+)?"
        return f"^{space}({limit}){space}{unit}{space}{number}{space}{unit}{space}$"


def read_spelled(
    values: pd.Series[Any], spelling: Spelling
) -> tuple[NDArray[np.float64], NDArray[np.bool_], NDArray[np.bool_]]:
    """As `read_numbers` for numbers in another spelling, and which cells gave a limit instead of a value."""
    pattern = re.compile(spelling.pattern())

    def number_of(cell: object) -> tuple[float | None, bool]:
        if not isinstance(cell, str) or cell == "":
            return _read_number(cell), False
        shape = pattern.match(cell.replace(_MINUS, "-"))
        if shape is None or not (shape[3] or shape[4]):
            return None, False
        whole = re.sub("[^0-9]", "", shape[3])
        return float(f"{shape[2]}{whole}.{shape[4] or ''}{shape[5] or ''}"), bool(shape[1])

    index, distinct = pd.factorize(values.to_numpy(dtype=object))
    read = [*map(number_of, distinct), (np.nan, False)]  # index -1, an empty cell, picks the last
    numbers = np.array([np.nan if number is None else number for number, _ in read], dtype=np.float64)
    unreadable = np.array([number is None for number, _ in read], dtype=np.bool_)
    return numbers[index], unreadable[index], np.array([limit for _, limit in read], dtype=np.bool_)[index]


def emptied(values: pd.Series[Any], texts: Sequence[str], *, numeric: bool = False) -> pd.Series[Any]:
    """The cells, with those that a column's texts declare to mean "empty" made empty; with `numeric`, "-9" also means
    -9.0."""
    if isinstance(values.dtype, pd.CategoricalDtype):
        values = values.astype(object)
    numbers = {number for number in map(spelled_number, texts) if number is not None}
    if pd.api.types.is_numeric_dtype(values.dtype):
        return values.mask(values.isin(list(numbers))) if numbers else values
    meaning = {text.strip() for text in texts}

    def means_empty(cell: object) -> bool:
        if isinstance(cell, str):
            return cell.strip() in meaning or (numeric and spelled_number(cell.strip()) in numbers)
        return isinstance(cell, int | float) and cell in numbers

    return values.mask(values.map(means_empty).astype(bool))


def spelled_number(text: str) -> int | float | None:
    """The decimal number that a text spells, or None. No infinity, no underscores, no other digits."""
    text = text.replace(_MINUS, "-")
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
    if isinstance(dtype, np.dtype) and dtype.kind in "fiu":
        return values.to_numpy(dtype=np.float64), np.zeros(len(values), dtype=np.bool_)
    if numeric and not pd.api.types.is_complex_dtype(dtype):
        return values.to_numpy(dtype=np.float64, na_value=np.nan), np.zeros(len(values), dtype=np.bool_)
    cells = [_read_number(cell) for cell in values.to_numpy(dtype=object)]
    unreadable = np.array([number is None for number in cells], dtype=np.bool_) & ~values.isna().to_numpy(dtype=bool)
    return np.array([np.nan if number is None else number for number in cells], dtype=np.float64), unreadable


def _read_text(text: pa.Array | pa.ChunkedArray) -> tuple[NDArray[np.float64], NDArray[np.bool_]]:
    text = pc.replace_substring(text, _MINUS, "-")
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
    values: pd.Series[Any], categories: tuple[Category, ...], *, trim: bool = False, ignore_case: bool = False
) -> tuple[NDArray[np.int32], NDArray[np.bool_], NDArray[np.bool_]]:
    """Codes of the categories with -1 where there is none, which cells are empty, and which are no category."""
    code_of = category_matcher(categories, trim=trim, ignore_case=ignore_case)
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


def normal_text(text: str, *, trim: bool, ignore_case: bool) -> str:
    """A text as a column compares it."""
    stripped = text.strip() if trim else text
    return stripped.casefold() if ignore_case else stripped


def category_matcher(
    categories: tuple[Category, ...], *, trim: bool = False, ignore_case: bool = False
) -> Callable[[object], int]:
    """The function from a cell to its code, EMPTY for the empty text, or _OUTSIDE.

    A Python dictionary holds 1, 1.0, True and Decimal(1) to be one key and compares large integers with floats
    exactly, which is the rule for numbers and truth values.
    """

    def normal(value: object) -> object:
        return normal_text(value, trim=trim, ignore_case=ignore_case) if isinstance(value, str) else value

    codes: dict[object, int] = {normal(category): code for code, category in enumerate(categories)}
    spellings = _as_text if isinstance(categories[0], str) else _as_value

    def code_of(cell: object) -> int:
        if isinstance(cell, np.generic):
            cell = cell.item()
        if isinstance(cell, str) and (cell.strip() if trim else cell) == "":
            return EMPTY
        return next((codes[normal(spelling)] for spelling in spellings(cell) if normal(spelling) in codes), _OUTSIDE)

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


def form_of(text: str) -> str:
    """The shape of a cell: every digit as 9. The letters of a unit stay; a text without digits is not shown."""
    if not re.search("[0-9]", text):
        return f"a text of {len(text)} letters" if len(text) > 12 else repr(text)
    shape = re.sub("[0-9]", "9", text)
    return repr(shape if len(shape) <= 40 else f"{shape[:37]}...")


def likely_lines(text: str) -> tuple[str, ...]:
    """The lines of a declaration under which a text that is no plain number would be one; empty if none is likely."""
    if text.strip().casefold() in MARKERS:
        return (f"missing = [{quoted_text(text.strip())}]",)
    # Before the number a sign (€) or a short code (EUR) is a unit; "job 17" is a name.
    # A sign is no unit: in "300-" it says that the number is negative.
    shape = re.fullmatch(
        r"\s*([<≤>≥]?)\s*([^\w\s.,+-]+|[A-Z]{2,3}(?=\s))?\s*[+-]?"
        r"(\d[\d.,' \u00a0\u202f]*?)\s*([^\d\s.,+-][^\d+-]*)?\s*",
        text.replace(_MINUS, "-"),
    )
    if shape is None:
        return ()
    limit, before, digits, after = shape.groups()
    lines: list[str] = []
    signs = [sign for sign in digits if not sign.isdigit()]
    last = signs[-1] if signs else ""
    # A sign that comes once, and not before exactly three digits, is a decimal sign; one that is repeated separates.
    decimal = last if signs and (signs.count(last) == 1 and last in ".,") else ""
    if decimal and len(set(signs)) == 1 and re.fullmatch(r"[1-9]\d{0,2}[.,]\d{3}", digits) and decimal == ",":
        decimal = ""
    separators = {sign for sign in signs if sign != decimal}
    if decimal == ",":
        lines.append('decimal = ","')
    if separators:
        lines.append(f"thousands = {quoted_text(' ' if separators & _SPACES else separators.pop())}")
    if before or after:
        lines.append(f"unit = {quoted_text((before or after).strip())}")
    if limit:
        lines.append('below = "limit"' if limit in "<≤" else 'above = "limit"')
    return tuple(lines)


MARKERS = frozenset(
    {
        "na",
        "n/a",
        "n.a.",
        "nan",
        "nat",
        "<na>",
        "null",
        "none",
        "nil",
        ".",
        "-",
        "--",
        "?",
        "missing",
        "unknown",
        "k.a.",
    }
    | {"#n/a", "#na", "#null!", "#value!", "#div/0!", "0000-00-00", "0000-00-00 00:00:00", "00.00.0000"}
)
"""What tables write into a cell that is empty."""


def is_text(value: object) -> bool:
    """A text that is not empty and is valid Unicode: a lone surrogate cannot be written to a file."""
    if not isinstance(value, str):
        return False
    try:
        return bool(value.encode())
    except UnicodeEncodeError:
        return False


def quoted_text(text: str) -> str:
    """A text as TOML writes it."""
    # A JSON string is a TOML basic string, but for DEL, which TOML wants escaped too.
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")
