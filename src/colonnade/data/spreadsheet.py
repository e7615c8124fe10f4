"""CSV that a spreadsheet program reads as text and numbers, never as a formula.

A text cell that begins with =, +, -, @ (also in their wide East Asian forms), a tab or the end of a line would be
computed when the file is opened, whatever wrote it: a category, a column's name. So would one behind blanks where the
program takes these away, and the rest of a cell after a semicolon, a tab or the end of a line, where the program takes
these for the end of a cell, as in many countries. Such a text gets an apostrophe in front, which these programs take as
"text" and `restored` takes away. Numbers are left as they are, also where they are written as text. Texts with a
carriage return are quoted, which Python's csv forgets.
"""

from __future__ import annotations

import csv
import io
import itertools
import re
from pathlib import Path
from typing import Any, TextIO

import pandas as pd

FORMULA = "=+\\-@\t\r\n\uff1d\uff0b\uff0d\uff20"
BLANK = " \u00a0\u200b\u3000\ufeff"
_UNSAFE = re.compile(f"(^|[;\t\r\n])('*)(?=[{BLANK}]*[{FORMULA}])")
_ESCAPED = re.compile(f"(^|[;\t\r\n])'('*)(?=[{BLANK}]*[{FORMULA}])")
_NUMBER = re.compile(rf"[{BLANK}]*[+-]?(\d+([.,]\d*)?|[.,]\d+)([eE][+-]?\d+)?\s*")


def safe_cell(cell: Any) -> Any:
    if not isinstance(cell, str) or _NUMBER.fullmatch(cell):
        return cell
    return _UNSAFE.sub(r"\1'\2", cell)  # apostrophes that are there get another, so that `restored` is the inverse


def restored(cell: Any) -> Any:
    """What `safe_cell` was given."""
    return _ESCAPED.sub(r"\1\2", cell) if isinstance(cell, str) else cell


def csv_text(table: pd.DataFrame | pd.Series[Any], **options: Any) -> str:
    """A table as the text of a CSV file; `options` are those of pandas' `to_csv`."""
    text = io.StringIO()
    write_csv(table.to_frame() if isinstance(table, pd.Series) else table, text, **options)
    return text.getvalue()


def write_csv(table: pd.DataFrame, target: Path | TextIO, **options: Any) -> None:
    frame = safe_frame(table)
    words = [frame[name] for name in frame.columns if not pd.api.types.is_numeric_dtype(frame[name].dtype)]
    texts = itertools.chain(frame.columns, frame.index, *words)
    returns = any(isinstance(text, str) and "\r" in text for text in texts)
    frame.to_csv(target, quoting=csv.QUOTE_NONNUMERIC if returns else csv.QUOTE_MINIMAL, **options)


def safe_frame(table: pd.DataFrame) -> pd.DataFrame:
    """The same table with safe texts, in its cells, its index and its names."""
    safe = {name: _safe_column(table[name]) for name in table.columns}
    frame = pd.DataFrame(safe, index=table.index.map(safe_cell))
    frame.columns = frame.columns.map(safe_cell)
    return frame


def _safe_column(cells: pd.Series[Any]) -> list[Any] | pd.Series[Any]:
    if pd.api.types.is_numeric_dtype(cells.dtype):
        return cells.set_axis(cells.index.map(safe_cell))
    return [safe_cell(cell) for cell in cells.tolist()]
