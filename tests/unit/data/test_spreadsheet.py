from __future__ import annotations

import io
import re

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from colonnade.data.spreadsheet import BLANK, csv_text, restored, safe_cell

STARTS = ("=", "+", "-", "@", "\t", "\r", "\n", "\uff1d", "\uff0b", "\uff0d", "\uff20")


@given(st.text(alphabet="=+-@'\t\r\n;\uff1d5.eab \u00a0", max_size=8))
def test_a_safe_cell_is_no_formula_and_can_be_restored(cell: str) -> None:
    safe = safe_cell(cell)
    assert restored(safe) == cell
    if safe == cell and safe.lstrip(BLANK).startswith(STARTS):
        float(safe.strip().replace(",", "."))
        return
    # Where a semicolon, a tab or the end of a line ends a cell, no part of it is a formula either; nor where the
    # blanks at its beginning are taken away.
    assert not any(part.lstrip(BLANK).startswith(STARTS) for part in re.split("[;\t\r\n]", safe))


@pytest.mark.parametrize(
    "cell",
    ["=1+1", "+cmd|' /C calc'!A0", "-2+3", "@SUM(A1)", "\r", "-", "+", "\uff1d1+1", "'=1+1", "  =1+1", "\ufeff@x"],
)
def test_formulas_get_an_apostrophe(cell: str) -> None:
    assert safe_cell(cell) == f"'{cell}"


@pytest.mark.parametrize(
    ("cell", "safe"),
    [("\t=1", "'\t'=1"), ("north;=1+1;south", "north;'=1+1;south"), ("two\n@lines", "two\n'@lines"), ("a;b", "a;b")],
)
def test_a_formula_behind_another_separator_gets_one_too(cell: str, safe: str) -> None:
    assert safe_cell(cell) == safe


@pytest.mark.parametrize("cell", [-5, -5.5, "-5", " -5", "+1e3", "-,5", "north", "", None, "a=b"])
def test_numbers_and_plain_text_stay(cell: object) -> None:
    assert safe_cell(cell) == cell


def test_names_index_and_categories_are_safe_and_numbers_stay() -> None:
    table = pd.DataFrame(
        {"=x": [-1.5, 2.0], "label": pd.Categorical(["=HYPERLINK(1)", "plain"])}, index=["-region", "age"]
    )
    text = csv_text(table, index_label="name")
    read = pd.read_csv(io.StringIO(text), index_col="name")
    assert list(read.columns) == ["'=x", "label"]
    assert list(read.index) == ["'-region", "age"]
    np.testing.assert_array_equal(read["'=x"], [-1.5, 2.0])
    assert read["label"].tolist() == ["'=HYPERLINK(1)", "plain"]
    assert csv_text(pd.Series([1.0], index=["@x"], name="coef"), index_label="name").splitlines()[1] == "'@x,1.0"
