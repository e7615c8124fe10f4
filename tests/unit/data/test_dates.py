"""Dates. Oracles: Python's own calendar, numpy's, and texts written out by hand."""

from __future__ import annotations

import datetime as dt
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from colonnade.data import Block, Column, Columns, open_source
from colonnade.data.dates import STEPS, likely_formats, parse_date
from colonnade.errors import DomainError, SchemaError


def day(**fields: object) -> Column:
    return Column(**{"name": "x", "kind": "date", "from_": "2020-01-01", "to": "2020-12-31", **fields})


@pytest.mark.parametrize(
    ("text", "moment"),
    [
        ("2024-03-09", dt.datetime(2024, 3, 9)),
        ("2024/3/9", dt.datetime(2024, 3, 9)),
        ("2024.03.09", dt.datetime(2024, 3, 9)),
        ("20240309", dt.datetime(2024, 3, 9)),
        (" 2024-03-09T14:30 ", dt.datetime(2024, 3, 9, 14, 30)),
        ("2024-03-09 14:30:05.25Z", dt.datetime(2024, 3, 9, 14, 30, 5)),
        ("2024-03-09T00:30:00+02:00", dt.datetime(2024, 3, 8, 22, 30)),
        ("9 Mar 2024", dt.datetime(2024, 3, 9)),
        ("9-March-2024", dt.datetime(2024, 3, 9)),
        ("March 9, 2024", dt.datetime(2024, 3, 9)),
        ("09/03/2024", None),
        ("9.3.24", None),
        ("2024-02-30", None),
        ("2024-03", None),
        ("202403", None),
        ("2024-3-9x", None),
        ("soon", None),
    ],
)
def test_a_text_is_a_date_if_it_can_be_read_in_one_way_alone(text: str, moment: dt.datetime | None) -> None:
    assert parse_date(text) == moment


@given(st.dates(dt.date(1900, 1, 1), dt.date(2100, 12, 31)), st.sampled_from(STEPS))
@settings(max_examples=60, deadline=None)
def test_cells_of_every_type_count_the_same_steps_and_come_back(date: dt.date, step: str) -> None:
    column = Column(name="x", kind="date", from_="1900-01-01", to="2100-12-31", step=step)
    cells = [
        pd.Series([date.isoformat()], dtype="str"),
        pd.Series([date.isoformat()], dtype="category"),
        pd.Series([date], dtype=object),
        pd.Series([int(date.strftime("%Y%m%d"))]),
        pd.Series(pd.to_datetime([date.isoformat()])),
        pd.Series(pd.to_datetime([date.isoformat()]).tz_localize("UTC")),
    ]
    days = (date - dt.date(1900, 1, 1)).days
    months = 12 * (date.year - 1900) + date.month - 1
    expected = {"year": date.year - 1900, "month": months}.get(step)
    if expected is None:
        expected = days * {"day": 1, "hour": 24, "minute": 1440, "second": 86400}[step]
    for series in cells:
        assert column.encode(series).tolist() == [expected]
    first = {"year": date.replace(month=1, day=1), "month": date.replace(day=1)}.get(step, date)
    decoded = column.decode(np.array([expected, np.nan]))
    assert decoded.tolist()[0] == pd.Timestamp(first)
    assert decoded.isna().tolist() == [False, True]
    assert column.encode(decoded.iloc[:1].astype(str)).tolist() == [expected]  # as a CSV file has them


def test_a_time_falls_into_its_step() -> None:
    moments = pd.Series(["2020-03-09 23:59:59"], dtype="str")
    assert day().encode(moments).tolist() == [68]
    assert day(step="month").encode(moments).tolist() == [2]
    assert day(step="hour").encode(moments).tolist() == [68 * 24 + 23]


@pytest.mark.parametrize(
    ("cell", "lines"),
    [
        ("09/03/2020", ('date_format = "%d/%m/%Y"', 'date_format = "%m/%d/%Y"')),
        ("09.03.20 14:30", ('date_format = "%d.%m.%y %H:%M"', 'date_format = "%m.%d.%y %H:%M"')),
        ("NA", ('missing = ["NA"]',)),
    ],
)
def test_an_unclear_date_gets_a_sentence_whose_cure_works(cell: str, lines: tuple[str, ...]) -> None:
    cells = pd.Series([cell], dtype="str")
    with pytest.raises(DomainError, match="1 cell is not a date") as caught:
        day().encode(cells)
    assert "2020" not in str(caught.value)
    for line in lines:
        assert f"`{line}`" in str(caught.value)
        text = f'[columns.x]\nkind = "date"\nfrom = 2020-01-01\nto = 2020-12-31\n{line}\n'
        Columns.from_toml_text(text)["x"].encode(cells)
    assert not lines[0].startswith("date") or likely_formats(cell)[0] in lines[0]


def test_dates_outside_are_refused_or_clipped() -> None:
    cells = pd.Series(["2019-12-31", "2020-06-01", "2021-01-01"], dtype="str")
    with pytest.raises(DomainError, match=r"2 cells are not a date in \[2020-01-01, 2020-12-31\].*`clip = true`"):
        day().encode(cells)
    clipped = Columns.from_toml_text(day().domain and Columns([day()]).to_toml() + "clip = true\n")["x"]
    assert clipped.encode(cells).tolist() == [0, 152, 365]
    assert "2 cells are outside" in clipped.notes(clipped.read(cells)[1])[0]


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"from_": None}, "no 'from'; add the line `from = "),
        ({"to": "2019-01-01"}, "not after from"),
        ({"to": "09/03/2020"}, "write a date as"),
        ({"step": "week"}, "choose one of day"),
        ({"decimal": ","}, "'decimal' does not belong"),
        ({"lower": 3.0, "categories": ("a",)}, "'categories' does not belong"),
    ],
)
def test_a_bad_range_is_refused(fields: dict[str, object], words: str) -> None:
    with pytest.raises(SchemaError, match=words):
        day(**fields)


def test_a_declared_range_survives_toml_and_toml_dates_are_taken() -> None:
    written = Columns.from_toml_text('[columns.x]\nkind = "date"\nfrom = 2020-01-01\nto = 2020-12-31T10:00:00\n')
    assert written == Columns([day(step="day")])
    assert Columns.from_toml_text(written.to_toml()) == written
    for step in STEPS:
        columns = Columns([day(step=step, to="2021-12-31")])
        assert Columns.from_toml_text(columns.to_toml())["x"] == columns["x"]
    with pytest.raises(SchemaError, match="write `from` and `to`"):
        Columns.from_toml_text('[columns.x]\nkind = "date"\nlower = 0\nupper = 3\n')


def test_typed_sources_give_the_same_dates(tmp_path: Path) -> None:
    duckdb = pytest.importorskip("duckdb")
    dates = pd.to_datetime(["2020-01-05", None, "2020-12-31"])
    frame = pd.DataFrame({"id": [1, 2, 3], "x": dates, "y": dates.to_series(index=range(3)).dt.date})
    frame.to_parquet(tmp_path / "t.parquet")
    frame[["id", "x"]].to_csv(tmp_path / "t.csv", index=False)
    with duckdb.connect(str(tmp_path / "t.duckdb")) as connection:
        connection.execute("CREATE TABLE t AS SELECT id, x::TIMESTAMP AS x, y::DATE AS y FROM frame")
    columns = Columns([day(missing=True), day(name="y", missing=True)])
    for source in (
        frame,
        tmp_path / "t.parquet",
        tmp_path / "t.csv",
        {"duckdb": str(tmp_path / "t.duckdb"), "query": "SELECT * FROM t ORDER BY id"},
    ):
        block = Block.load("p", open_source(source), key="id", columns=columns)
        for name in block.columns:
            np.testing.assert_array_equal(block.encoded(name), [4, np.nan, 365])
