"""Drafts. Oracles: the drafted domain must admit the data it came from, and every data-derived one must be marked."""

from __future__ import annotations

import math
from decimal import Decimal

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from colonnade.data import Block, Columns, FrameSource, draft_columns, draft_toml
from colonnade.data.draft import round_outwards
from colonnade.errors import DomainError, DraftDomain, DuplicateColumn, EmptyParty, KeyProblem

IDS = pd.Series([1, 2, 3, 4], name="id")


def drafted(values: object) -> dict:
    frame = pd.DataFrame({"id": IDS, "x": values})
    columns = draft_columns(frame, key="id")
    columns["x"].encode(frame["x"])  # the draft admits the data
    return {field: value for field, value in columns["x"].to_dict().items() if field != "name"}


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ([True, False, True, True], {"kind": "binary", "categories": [False, True]}),
        (
            pd.Series([True, True, True, True], dtype="boolean"),
            {"kind": "binary", "categories": [False, True], "missing": True},
        ),
        (
            pd.Series([True, None, True, True], dtype=object),
            {"kind": "binary", "categories": [False, True], "missing": True, "draft": True},
        ),
        (["true", "False", "true", "true"], {"kind": "binary", "categories": [False, True], "draft": True}),
        ([0, 1, 1, 0], {"kind": "binary", "categories": [0, 1], "draft": True}),
        ([17, 45, 90, 33], {"kind": "count", "lower": 10.0, "upper": 90.0, "draft": True}),
        ([5, 5, 5, 5], {"kind": "count", "lower": 5.0, "upper": 6.0, "draft": True}),
        ([1.0, 3.0, np.nan, 9.0], {"kind": "count", "lower": 1.0, "upper": 9.0, "missing": True, "draft": True}),
        ([1.0, 3.0, 2.0, 9.0], {"kind": "continuous", "lower": 1.0, "upper": 9.0, "draft": True}),
        ([-0.31, 0.77, 0.0, 0.1], {"kind": "continuous", "lower": -1.0, "upper": 1.0, "draft": True}),
        (["1", "12", "3", "4"], {"kind": "count", "lower": 0.0, "upper": 20.0, "draft": True}),
        (["1", "1.5", "", "2"], {"kind": "continuous", "lower": 1.0, "upper": 2.0, "missing": True, "draft": True}),
        (
            ["007", "100", "101", "102"],
            {"kind": "categorical", "categories": ["007", "100", "101", "102"], "draft": True},
        ),
        (["b", "a", "b", "b"], {"kind": "binary", "categories": ["a", "b"], "draft": True}),
        (["b", "a", None, "c"], {"kind": "categorical", "categories": ["a", "b", "c"], "missing": True, "draft": True}),
        ([Decimal("1.5"), Decimal(2), 3, 4.5], {"kind": "continuous", "lower": 1.0, "upper": 5.0, "draft": True}),
        (
            pd.Categorical(["low", "high", "low", "low"], categories=["low", "mid", "high"], ordered=True),
            {"kind": "ordinal", "categories": ["low", "mid", "high"], "draft": True},
        ),
        (pd.Categorical([2, 1, 1, None]), {"kind": "binary", "categories": [1, 2], "missing": True, "draft": True}),
    ],
)
def test_what_is_drafted(values: object, expected: dict) -> None:
    assert drafted(values) == expected


@given(st.lists(st.floats(-1e300, 1e300), min_size=1), st.booleans())
@settings(deadline=None)
def test_bounds_lie_around_the_data_on_round_numbers(values: list[float], whole: bool) -> None:
    if whole:
        values = [float(int(math.remainder(value, 1e12))) for value in values]
    smallest, largest = min(values), max(values)
    lower, upper = round_outwards(smallest, largest, integers=whole)
    assert lower <= smallest <= largest <= upper
    assert lower < upper
    spread = largest - smallest
    if spread > 0:
        assert upper - lower <= 3 * spread + 2 * whole
    if whole:
        assert lower == int(lower)
        assert upper == int(upper)


def mixed_frame() -> pd.DataFrame:
    return pd.DataFrame(
        {
            "id": IDS,
            "a.b": [0.5, 1.5, -2.0, 3.0],
            "flag": [True, False, True, True],
            'the "sector"': ["é", "b", "c", "é"],
        }
    )


def test_the_toml_says_what_to_confirm_and_loads_once_confirmed() -> None:
    frame = mixed_frame()
    text = draft_toml(frame, key="id")
    assert Columns.from_toml_text(text) == draft_columns(frame, key="id")
    comment = "# read off the data: confirm or replace, then delete the line `draft = true`"
    assert text.count(comment) == text.count("\ndraft = true\n") == 2
    assert "draft" not in text.partition("[columns.flag]")[2].partition("[columns")[0]
    with pytest.raises(DraftDomain, match=r"'a\.b'"):
        Block.load("p", FrameSource(frame), key="id", columns=Columns.from_toml_text(text))
    confirmed = Columns.from_toml_text(text.replace("draft = true\n", ""))
    assert Block.load("p", FrameSource(frame), key="id", columns=confirmed).n_records == 4


def test_a_key_in_the_index_and_no_other_column() -> None:
    assert list(draft_columns(mixed_frame().set_index("id"), key="id")) == ["a.b", "flag", 'the "sector"']
    assert len(draft_columns(mixed_frame()[["id"]], key="id")) == 0


def test_what_cannot_be_drafted() -> None:
    frame = mixed_frame()
    with pytest.raises(KeyProblem, match="exactly one key column 'firm'"):
        draft_columns(frame, key="firm")
    with pytest.raises(EmptyParty, match="no records"):
        draft_columns(frame.iloc[:0], key="id")
    with pytest.raises(DuplicateColumn, match=r"a\.b"):
        draft_columns(pd.concat([frame, frame[["a.b"]]], axis=1), key="id")
    for values, words in [
        ([None] * 4, "only empty cells"),
        ([1.0, np.inf, 2.0, 3.0], "infinite"),
        (pd.to_datetime(["2020-01-01"] * 4), "cells of type Timestamp"),
        ([[1], [2], [3], [4]], "cells of type list"),
    ]:
        with pytest.raises(DomainError, match=f"'x' has .*{words}"):
            draft_columns(frame.assign(x=values), key="id")


def test_names_of_people_are_not_listed_as_categories() -> None:
    frame = pd.DataFrame({"id": range(300), "name": [f"person {i}" for i in range(300)]})
    with pytest.raises(DomainError, match="'name' has 300 different values, more than 200") as caught:
        draft_columns(frame, key="id")
    assert "person" not in str(caught.value).replace("people", "")
    assert len(draft_columns(frame, key="id", max_categories=300)["name"].categories) == 300
