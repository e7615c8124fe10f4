"""CSV that a spreadsheet program reads as text and numbers, never as a formula.

A text cell that begins with =, +, -, @, a tab or a carriage return would be computed when the file is opened, whatever
wrote it: a category, a column's name. Such a cell gets an apostrophe in front, which these programs take as "text" and
`restored` takes away. Numbers are left as they are, also where they are written as text.
"""

from __future__ import annotations

import re
from typing import Any

import pandas as pd

FORMULA = ("=", "+", "-", "@", "\t", "\r")
_NUMBER = re.compile(r"[+-]?(\d+([.,]\d*)?|[.,]\d+)([eE][+-]?\d+)?\s*")


def safe_cell(cell: Any) -> Any:
    if not isinstance(cell, str):
        return cell
    escaped = cell.startswith("'") and cell[1:].lstrip("'").startswith(FORMULA)  # so that `restored` is its inverse
    return f"'{cell}" if escaped or (cell.startswith(FORMULA) and not _NUMBER.fullmatch(cell)) else cell


def restored(cell: Any) -> Any:
    """What `safe_cell` was given."""
    if isinstance(cell, str) and cell.startswith("'") and cell[1:].lstrip("'").startswith(FORMULA):
        return cell[1:]
    return cell


def csv_text(table: pd.DataFrame | pd.Series[Any], **options: Any) -> str:
    """A table as the text of a CSV file; `options` are those of pandas' `to_csv`."""
    return str(safe_frame(table.to_frame() if isinstance(table, pd.Series) else table).to_csv(**options))


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
