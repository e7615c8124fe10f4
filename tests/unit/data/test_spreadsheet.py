from __future__ import annotations

import io

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from colonnade.data.spreadsheet import FORMULA, csv_text, restored, safe_cell


@given(st.text(alphabet="=+-@'\t\r5.eab ", max_size=8))
def test_a_safe_cell_is_no_formula_and_can_be_restored(cell: str) -> None:
    safe = safe_cell(cell)
    assert restored(safe) == cell
    if safe.startswith(FORMULA):
        float(safe.strip().replace(",", "."))


@pytest.mark.parametrize("cell", ["=1+1", "+cmd|' /C calc'!A0", "-2+3", "@SUM(A1)", "\t=1", "\r=1", "-", "+"])
def test_formulas_get_an_apostrophe(cell: str) -> None:
    assert safe_cell(cell) == f"'{cell}"


@pytest.mark.parametrize("cell", [-5, -5.5, "-5", "+1e3", "-,5", "north", "", None, "a=b"])
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
