"""What a column says about its empty cells, and which records of a chunk are used."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
import pytest

from colonnade.data.aggregation import OfFilled, is_empty, records
from colonnade.data.column import Column, Columns
from colonnade.errors import DomainError, SchemaError


def column(**stated: Any) -> Column:
    return Column(**{"name": "debt", "kind": "continuous", "lower": 0, "upper": 1, **stated})


def test_a_rule_is_for_a_column_that_may_have_empty_cells() -> None:
    with pytest.raises(SchemaError, match='choose one of "mask", "drop", "level"'):
        column(missing=True, if_empty="leave")
    with pytest.raises(SchemaError, match="add `missing = true`, or delete it"):
        column(if_empty="drop")
    # What the two sentences advise.
    assert column(missing=True, if_empty="drop").if_empty == "drop"
    assert column(missing=True).if_empty is None


def test_a_method_takes_the_rule_that_it_offers_or_its_default() -> None:
    assert column().rule_for_empty("drop") is None
    assert column(missing=True).rule_for_empty("mask", "drop") == "mask"
    assert column(missing=True, if_empty="drop").rule_for_empty("mask", "drop") == "drop"
    assert column(missing=True, if_empty="level").rule_for_empty("mask", "drop") == "mask"


def test_a_rule_is_written_and_read_and_changes_no_other_declaration() -> None:
    said = Columns([column(missing=True, if_empty="drop")])
    assert 'if_empty = "drop"' in said.to_toml()
    assert Columns.from_toml_text(said.to_toml()) == said
    assert "if_empty" not in Columns([column(missing=True)]).to_toml()
    assert said["debt"].domain.if_empty is None


def test_records_with_an_empty_cell_are_left_out() -> None:
    values = {"a": np.array([1.0, np.nan, 3.0, 4.0]), "b": np.array([0, 1, -1, 2], dtype=np.int32)}
    rows, kept = OfFilled(records, ("a", "b"))(np.array([7, 3, 5, 1]), values)
    assert rows.tolist() == [7, 1]
    assert kept["b"].tolist() == [0, 2]
    assert is_empty(values["a"]).tolist() == [False, True, False, False]


def test_the_sentence_about_undeclared_empty_cells_names_a_line_that_works() -> None:
    cells = pd.Series([0.5, None])
    with pytest.raises(DomainError, match="add the line `missing = true`"):
        column().encode(cells)
    declared = Columns.from_toml_text(Columns([column()]).to_toml() + "missing = true\n")
    assert np.isnan(declared["debt"].encode(cells)[1])
    assert declared["debt"].notes(declared["debt"].read(cells)[1]) == ("column 'debt': 1 cell is empty.",)
