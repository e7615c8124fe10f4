"""Drafts. Oracles: the drafted domain must admit the data it came from, and every data-derived one must be marked."""

from __future__ import annotations

import math
import weakref
from collections.abc import Iterator, Sequence
from decimal import Decimal
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from colonnade.data import Block, Column, Columns, FrameSource
from colonnade.data.draft import Draft, draft, round_outwards
from colonnade.errors import DraftDomain, EmptyParty, KeyProblem
from colonnade.view.render import view_page

IDS = pd.Series([1, 2, 3, 4], name="id")


def drafted(values: object) -> dict:
    frame = pd.DataFrame({"id": IDS, "x": values})
    columns = draft(frame, key="id").columns
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
            pd.Series([True, None, False, True], dtype=object),
            {"kind": "binary", "categories": [False, True], "missing": True, "draft": True},
        ),
        (["true", "False", "true", "true"], {"kind": "binary", "categories": [False, True], "draft": True}),
        ([0, 1, 1, 0], {"kind": "binary", "categories": [0, 1], "draft": True}),
        ([17, 45, 90, 33], {"kind": "count", "lower": 10.0, "upper": 90.0, "draft": True}),
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
    drafted = draft({"p": frame}, key="id")
    text = drafted.to_toml()
    assert Columns.from_toml_text(text) == drafted.columns
    comment = "; read off the data: confirm or replace, then delete the line `draft = true`"
    assert text.count(comment) == text.count("\ndraft = true\n") == 2
    assert "draft" not in text.partition("[columns.flag]")[2].partition("[columns")[0]
    with pytest.raises(DraftDomain, match=r"'a\.b'"):
        Block.load("p", FrameSource(frame), key="id", columns=Columns.from_toml_text(text))
    for confirmed in (text.replace("draft = true\n", ""), drafted.to_toml(confirmed=True)):
        assert Columns.from_toml_text(confirmed) == drafted.confirmed()
        assert Block.load("p", FrameSource(frame), key="id", columns=Columns.from_toml_text(confirmed)).n_records == 4


def test_a_key_in_the_index_and_no_other_column() -> None:
    assert list(draft(mixed_frame().set_index("id"), key="id").columns) == ["a.b", "flag", 'the "sector"']
    assert len(draft(mixed_frame()[["id"]], key="id").columns) == 0


def test_what_cannot_be_drafted() -> None:
    frame = mixed_frame()
    with pytest.raises(KeyProblem, match="no key column 'firm'"):
        draft(frame, key="firm")
    with pytest.raises(EmptyParty, match="no records"):
        draft(frame.iloc[:0], key="id")
    with pytest.raises(KeyProblem, match="the key column 'id' more than once"):
        draft(pd.concat([frame, frame[["id"]]], axis=1), key="id")


def test_a_name_that_comes_twice_is_left_out_and_the_rest_loads(tmp_path: Path) -> None:
    pd.concat([mixed_frame(), mixed_frame()[["a.b"]]], axis=1).to_csv(tmp_path / "twice.csv", index=False)
    columns = draft({"p": tmp_path / "twice.csv"}, key="id").confirmed()
    assert list(columns) == ["flag", 'the "sector"']
    assert "more than once; rename all but one" in columns.ignore["a.b"]
    assert len(Block.open("p", tmp_path / "twice.csv", key="id", columns=columns).keys) == 4


# --- messy tables: nothing stops a draft, and what it drafts admits the table -----------------------------------


def messy(rows: int = 600) -> pd.DataFrame:
    """One column of each shape that tables have; its name says which."""
    rng = np.random.default_rng(0)
    amounts = rng.lognormal(9, 1, rows)
    days = pd.date_range("2001-01-05", periods=rows, freq="3D")
    return pd.DataFrame(
        {
            "id": [f"P{row:05d}" for row in range(rows)],
            "iso dates": days.strftime("%Y-%m-%d"),
            "day first": days.strftime("%d/%m/%Y"),
            "month first": days.strftime("%m/%d/%Y"),
            "times": days.strftime("%Y-%m-%d 14:%d"),
            "firsts of months": days.strftime("%Y-%m-01"),
            "compact dates": days.strftime("%Y%m%d"),
            "euros": [f"{amount:,.2f} €".translate(str.maketrans(",.", ".,")) for amount in amounts],
            "thousands": [f"{amount:,.2f}" for amount in amounts],
            "limits": ["<0.1" if amount < 3000 else f"{amount:.1f}" for amount in amounts],
            "with NA": ["NA" if row % 7 == 0 else str(row % 400) for row in range(rows)],
            "Île-de-France 东部": rng.choice(["Süd", "东部", "Nord"], rows),
            "Y/N": rng.choice(["Y", "N"], rows),
            "capitals": rng.choice(["North", "north ", "South", "East"], rows),
            "200 levels": [f"L{row % 200:03d}" for row in range(rows)],
            "250 levels": [f"L{row % 250}" for row in range(rows)],
            "zip": [f"{row % 90:05d}" for row in range(rows)],
            "numbered": [f"job {row % 30}" for row in range(rows)],
            "row number": np.arange(rows),
            "few whole": rng.integers(1, 6, rows),
            "whole floats": rng.choice([9.0, 12.0, 14.0, 16.0, 17.0, 20.0], rows),
            "mostly zero": np.where(rng.random(rows) < 0.6, 0, np.exp(rng.normal(12, 3, rows))),
            "all empty": None,
            "constant": "x",
            "name": [f"{row * 7919:x}-{row:x}" for row in range(rows)],
            "remark": [f"said {row} and then {row * 7}" for row in range(rows)],
            "lists": [[1]] * rows,
            "infinite": np.where(np.arange(rows) == 3, np.inf, 1.5),
        }
    )


EXPECTED = {
    "iso dates": {"kind": "date", "from": "2001-01-01", "to": "2005-12-31", "step": "day"},
    "day first": {"date_format": "%d/%m/%Y"},
    "month first": {"date_format": "%m/%d/%Y"},
    "times": {"step": "minute", "to": "2005-12-31 23:59"},
    "firsts of months": {"step": "month"},
    "compact dates": {"kind": "date", "from": "2001-01-01"},
    "euros": {"kind": "continuous", "decimal": ",", "thousands": ".", "unit": "€"},
    "thousands": {"kind": "continuous", "thousands": ","},
    "limits": {"kind": "continuous", "below": "limit"},
    "with NA": {"kind": "count", "missing": ["NA"]},
    "Île-de-France 东部": {"kind": "categorical", "categories": ["Nord", "Süd", "东部"]},
    "Y/N": {"kind": "binary", "categories": ["N", "Y"]},
    "capitals": {"categories": ["East", "North", "South"], "trim": True, "ignore_case": True},
    "200 levels": {"kind": "categorical", "other": "other"},
    "250 levels": {"kind": "categorical", "other": "other"},
    "zip": {"kind": "categorical"},
    "numbered": {"kind": "categorical", "other": None},
    "row number": {"kind": "count", "lower": 0.0, "upper": 600.0},
    "few whole": {"kind": "count", "lower": 1.0, "upper": 5.0},
    "whole floats": {"kind": "count", "lower": 9.0, "upper": 20.0},
    "mostly zero": {"kind": "continuous"},
}
LEFT_OUT = {
    "all empty": "every cell is empty",
    "constant": "every filled cell is the same",
    "name": "an identifier: nearly every record has its own text",
    "remark": "free text",
    "lists": "its cells are of type list, which is neither number, text, truth value nor date",
    "infinite": "it has infinite cells, and infinity is in no domain",
}


def stated(drafted: Draft) -> dict[str, dict]:
    columns = drafted.columns
    for name, fields in EXPECTED.items():
        plain = columns[name].to_dict()
        assert {field: plain.get(field) for field in fields} == fields
        assert plain["draft"] is True
    return {name: column.to_dict() for name, column in columns.items()}


def test_messy_columns_are_drafted_or_left_out_with_the_reason() -> None:
    frame = messy()
    drafted = draft({"p": frame}, key="id")
    assert set(stated(drafted)) == set(EXPECTED)
    assert {finding.name: finding.why for finding in drafted.findings if finding.column is None} == LEFT_OUT
    assert drafted.columns.ignore == LEFT_OUT
    assert len(drafted.columns["250 levels"].categories) == 200
    Block.load("p", FrameSource(frame), key="id", columns=drafted.confirmed())
    page = view_page(drafted.view())
    assert page.count("<svg") == len(EXPECTED)
    for text in (*EXPECTED, *LEFT_OUT.values()):
        assert text in page


def test_a_csv_file_is_drafted_as_its_frame_is(tmp_path: Path) -> None:
    frame = messy().drop(columns=["lists", "infinite"])
    frame.to_csv(tmp_path / "p.csv", index=False)
    drafted = draft({"p": tmp_path / "p.csv"}, key="id")
    assert stated(drafted) == stated(draft({"p": frame}, key="id"))
    Block.open("p", tmp_path / "p.csv", key="id", columns=Columns.from_toml_text(drafted.to_toml(confirmed=True)))


def test_the_number_of_rows_of_a_chunk_does_not_matter(monkeypatch: pytest.MonkeyPatch) -> None:
    frame = messy()
    once = stated(draft({"p": frame}, key="id"))
    monkeypatch.setattr("colonnade.data.draft.ROWS", 150)
    assert stated(draft({"p": frame}, key="id")) == once


def test_a_date_whose_day_and_month_cannot_be_told_apart_is_drafted_with_a_doubt() -> None:
    frame = pd.DataFrame({"id": IDS, "x": ["01/02/2020", "03/04/2020", "05/06/2020", "07/08/2020"]})
    (finding,) = draft(frame, key="id").findings
    assert finding.column.date_format == "%d/%m/%Y"
    assert "could also be month first" in finding.confirm


@pytest.mark.parametrize("rows", [4, 2])
@pytest.mark.parametrize(
    ("cells", "form"),
    [
        (["13.02.2020", "03/04/2020", "05.06.2020", "2020-08-07"], "%d.%m.%Y | %d/%m/%Y | %Y-%m-%d"),
        (["2020-02-13 10:20", "2020-02-14 11:00", "05.06.2020", "n/a"], "%Y-%m-%d %H:%M | %d.%m.%Y"),
        (["12/31/2020", "2020-02-13", "05/06/2020", "07/08/2020"], "%m/%d/%Y | %Y-%m-%d"),
    ],
)
def test_dates_in_several_formats(
    cells: list[str], form: str, rows: int, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr("colonnade.data.draft.ROWS", rows)
    frame = pd.DataFrame({"id": IDS, "x": cells})
    (finding,) = draft(frame, key="id").findings
    assert finding.column is not None
    assert finding.column.date_format == form
    assert f"written as {form}" in finding.why
    again = Columns.from_toml_text(draft(frame, key="id").to_toml(confirmed=True))["x"]
    days = again.decode(again.encode(frame["x"]))
    assert str(days.iloc[2]).startswith("2020-05-06" if form.startswith("%m") else "2020-06-05")


def test_a_wide_table_has_pictures_of_its_first_columns(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("colonnade.data.draft.PICTURES", 6)
    frames = {party: pd.DataFrame({"id": IDS, **{f"{party}{k}": [1, 0, 1, 0] for k in range(5)}}) for party in "ab"}
    page = view_page(draft(frames, key="id").view())
    assert page.count("Pictures of the first 3 of 5 columns.") == 2
    assert page.count("<svg") == 6
    assert "b4" in page


def test_cells_that_mean_empty_count_as_empty() -> None:
    frame = pd.DataFrame({"id": IDS, "x": ["n/a", "1", "", "30"], "y": ["nein", "ja", "-", "ja"]})
    numbers, words = draft(frame, key="id").findings
    assert (numbers.empty, words.empty) == (2, 1)
    assert words.column is not None
    assert words.column.categories == ("nein", "ja"), "the second is the event"


@pytest.mark.parametrize(
    ("cells", "meaning", "bounds"),
    [
        (["12", "-999", "40", "-999.0"], ("-999",), (10, 40)),
        ([0.5, -99.9, -1.5, 2.5], ("-99.9",), (-2, 3)),
        ([3.5, -9.0, 1.0, -9.0], ("-9",), (1, 4)),
        (["3,5", "-99,0", "1,25", "-99"], ("-99",), (1, 4)),
        ([1990, 2010, 9999, 9999], ("9999",), (1990, 2010)),
        ([-4.5, 3.0, -888, -888], ("-888",), (-5, 3)),
        ([30, 120, 400, 999], None, (0, 1000)),  # may be a price
        ([-9.0, 3.0, -3.0, -9.0], None, (-10, 10)),
        (["2020-01-31", "9999-12-31", "2021-07-01", "2020-02-01"], ("9999-12-31",), (0, 730)),
    ],
)
def test_numbers_that_mark_an_empty_cell_are_none(
    cells: list[object], meaning: tuple[str, ...] | None, bounds: tuple[float, float]
) -> None:
    """They would be in every mean; and a claim that is read so is said where the draft ends."""
    frame = pd.DataFrame({"id": IDS, "x": cells})
    found = draft(frame, key="id")
    column = found.confirmed()["x"]
    assert (column.empty, column.lower, column.upper) == (meaning, *bounds)
    read = column.encode(frame["x"])
    assert (
        np.isnan(read).sum() == found.findings[0].empty == (0 if meaning is None else len(cells) - (read >= -5).sum())
    )
    said = f"Taken as empty cells, by `missing` in columns.toml: {meaning[0]} of x. Are they?" if meaning else ""
    assert "".join(found.warnings()) == said


def test_a_binary_column_of_floats_with_a_mark() -> None:
    frame = pd.DataFrame({"id": IDS, "x": ["1.0", "0.0", "-9.0", "-9.0"]})
    column = draft(frame, key="id").confirmed()["x"]
    assert (column.kind, column.categories) == ("binary", (0, 1))
    assert column.encode(frame["x"]).tolist() == [1, 0, -1, -1]


def test_a_few_words_among_numbers_are_empty_cells() -> None:
    frame = pd.DataFrame({"id": range(40), "x": [*map(str, range(36)), "refused", "inf", "refused", "k.A."]})
    found = draft(frame, key="id")
    assert found.columns["x"].empty == ("inf", "k.A.", "refused")
    assert found.findings[0].empty == 4
    assert found.warnings() == ["Taken as empty cells, by `missing` in columns.toml: inf, refused of x. Are they?"]


@pytest.mark.parametrize(
    ("cells", "numbers"),
    [
        (["0,125", "1,250", "12,375", "3,500"], [0.125, 1.25, 12.375, 3.5]),  # 1,250 alone would be 1250
        (["\u22125", "3", "\u22122", "7"], [-5, 3, -2, 7]),
        (["\u22125,5 €", "3,0 €", "2,1 €", "7,5 €"], [-5.5, 3, 2.1, 7.5]),
    ],
)
def test_signs_and_decimals_are_not_lost(cells: list[str], numbers: list[float]) -> None:
    frame = pd.DataFrame({"id": IDS, "x": cells})
    assert draft(frame, key="id").confirmed()["x"].encode(frame["x"]).tolist() == numbers


def test_a_sign_behind_a_number_is_no_unit() -> None:
    """As some ledgers write it: 300- would be read as 300."""
    frame = pd.DataFrame({"id": range(40), "x": [f"{k}-" if k % 3 else f"{k}" for k in range(40)]})
    assert not draft(frame, key="id").columns


def test_points_that_may_separate_thousands_are_asked_about() -> None:
    frame = pd.DataFrame({"id": IDS, "x": ["560", "1.234", "12.500", "999"], "y": ["560", "1.2", "12.500", "999"]})
    (said,) = draft(frame, key="id").warnings()
    assert said.startswith("x: Every point stands before exactly three digits: if it separates thousands")


def test_what_only_a_few_of_many_cells_need_is_found() -> None:
    """Five amounts of 3,000 have a separator of thousands: they are not among the first cells that are looked at."""
    amounts = [f"{k % 900},50 €" for k in range(3000)] + [f"{k}.234,50 €" for k in range(1, 6)]
    frame = pd.DataFrame({"id": range(len(amounts)), "x": amounts})
    column = draft(frame, key="id").columns["x"]
    assert (column.decimal, column.thousands, column.unit) == (",", ".", "€")


def test_cells_that_no_declaration_can_hold_are_left_out() -> None:
    arrays = pd.Series([np.arange(2)] * 4)
    frame = pd.DataFrame({"id": IDS, "tags": arrays, "length": pd.to_timedelta([1, 2, 3, 4], unit="s")})
    for finding in draft(frame, key="id").findings:
        assert finding.column is None
        assert finding.why.endswith("which is neither number, text, truth value nor date")


@pytest.mark.parametrize(
    ("keys", "said"),
    [
        (["1", "2", "3", "4"], ""),
        (["3", "4", "5", "6"], ""),
        (["0001", "0002", "0003", "4"], "a and b share 1 key, and 4 if leading zeros, a final .0, capitals and spaces"),
        (["1.0", "2.0", "3.0", "4.0"], "a and b share 0 keys, and 4 if"),
        (["5", "6", "7", "8"], "a and b share no key, so that nothing tells how their columns go together"),
    ],
)
def test_keys_that_are_not_written_alike_are_told(keys: list[str], said: str) -> None:
    """Or every record would be at one party alone, and no one would say so."""
    other = pd.DataFrame({"id": keys, "y": [3, 1, 2, 1]})
    warned = draft({"a": pd.DataFrame({"id": IDS, "x": [1, 2, 5, 9]}), "b": other}, key="id").warnings()
    assert len(warned) == bool(said)
    assert "".join(warned).startswith(said)


def test_two_parties_with_one_name_have_one_owner() -> None:
    clinic = pd.DataFrame({"id": IDS, "age": [30, 41, 52, 63], "note": ["a b", "c d", "e f", "g h"]})
    drafted = draft({"clinic": clinic, "bank": clinic.rename(columns={"note": "score"})}, key="id")
    assert drafted.withheld("bank") == ("age",)
    assert drafted.withheld("clinic") == ()
    assert list(drafted.columns) == ["age", "note", "score"]
    Columns.from_toml_text(drafted.to_toml())


def test_rows_of_one_person_get_a_rule_that_works() -> None:
    rng = np.random.default_rng(0)
    frame = pd.DataFrame({"id": np.repeat(np.arange(100), 3)})
    frame["born"] = np.repeat(rng.integers(1930, 2000, 100), 3)
    frame["visit"] = pd.date_range("2020-01-01", periods=300).strftime("%Y-%m-%d")
    frame["amount"] = rng.normal(100, 10, 300)
    frame["town"] = rng.choice(["Ulm", "Bonn", "Köln"], 300)
    frame["ill"] = rng.choice(["no", "yes"], 300)
    drafted = draft({"p": frame}, key="id")
    rules = {name: (column.one_row, column.order_by) for name, column in drafted.columns.items()}
    assert rules == {
        "born": ("first", None),
        "visit": ("max", None),
        "amount": ("mean", None),
        "town": ("last", "visit"),
        "ill": ("any", None),
    }
    assert drafted.tables[0].persons == 100
    (said,) = drafted.warnings()
    assert said.startswith("p has 300 rows of 100 records, which become one each, by `one_row` in columns.toml: born (")
    assert "amount (mean), town (last), ill (any). Is that what you mean?" in said
    assert draft({"p": frame.drop_duplicates("id")}, key="id").warnings() == []
    assert Block.load("p", FrameSource(frame), key="id", columns=drafted.confirmed()).n_records == 100


class Endless:
    """A source of many chunks that watches how many of them are still held by the reader."""

    description = "many chunks"

    def __init__(self, chunks: int) -> None:
        self._chunks = chunks
        self._held: list[weakref.ref[pd.DataFrame]] = []
        self.most = 0

    def names(self) -> list[str]:
        return ["id", "x", "name"]

    def chunks(self, names: Sequence[str], *, rows: int = 0) -> Iterator[pd.DataFrame]:
        for number in range(self._chunks):
            keys = np.arange(100) + 100 * number
            frame = pd.DataFrame({"id": keys, "x": keys % 37, "name": [f"p{key}" for key in keys]})[list(names)]
            self._held.append(weakref.ref(frame))
            self.most = max(self.most, sum(held() is not None for held in self._held))
            yield frame


def test_a_large_table_is_drafted_chunk_by_chunk(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("colonnade.data.summary.MOST_VALUES", 300)
    source = Endless(60)
    drafted = draft({"p": source}, key="id")
    assert source.most <= 3
    assert drafted.tables[0].persons == 6000
    assert {finding.name: finding.why for finding in drafted.findings}["name"].startswith("an identifier")
    assert drafted.columns["x"] == Column(name="x", kind="count", lower=0, upper=40, draft=True)


def test_a_control_character_in_a_cell_does_not_stop_the_page() -> None:
    frame = pd.DataFrame({"id": IDS, "x": ["a\x00b", "c", "c", "d"], "1": [1, 2, 3, 9]})
    drafted = draft(frame, key="id")
    assert "a\ufffdb" in view_page(drafted.view()) or "a\x00b" in view_page(drafted.view())
    assert "rename it" in drafted.columns.ignore["1"]
