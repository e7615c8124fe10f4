"""How cells are written: numbers, limits, units, empty texts, spaces, other levels. Every offered cure is followed."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from colonnade.data import Block, Column, Columns, FrameSource, open_source
from colonnade.data.encoding import form_of
from colonnade.errors import ColonnadeError, DomainError, SchemaError, SourceError, UnknownColumn

NUMBER = '[columns.x]\nkind = "continuous"\nlower = -10\nupper = 2000000\n'


def text(*cells: str | None) -> pd.Series:
    return pd.Series(cells, dtype="str")


def followed(toml: str, cells: pd.Series) -> list:
    """Refuse, paste the lines that the sentence offers, and read again."""
    with pytest.raises(ColonnadeError) as caught:
        Columns.from_toml_text(toml)["x"].encode(cells)
    lines = re.findall(r"`(\w+ = [^`]+)`", str(caught.value))
    assert lines, caught.value
    return Columns.from_toml_text(toml + "\n".join(lines) + "\n")["x"].encode(cells).tolist()


@pytest.mark.parametrize(
    ("cells", "numbers"),
    [
        (("20680,02 €",), [20680.02]),
        (("1.234,5", "12"), [1234.5, 12]),
        (("1.234.567,25 €", "-3 €"), [1234567.25, -3]),
        (("1,234.50",), [1234.5]),
        (("1,234",), [1234]),
        (("1 234,5", "1 234"), [1234.5, 1234]),
        (("5 mg/L", "0.5mg/L"), [5, 0.5]),
        (("<0.1", "0.2"), [0.1, 0.2]),
        (("< 0,1 mg/L",), [0.1]),
        ((">500",), [500]),
        (("€ 12",), [12]),
        (("EUR 12",), [12]),
        (("12%",), [12]),
        (("NA", "3"), [np.nan, 3]),
        (("-", "3"), [np.nan, 3]),
    ],
)
def test_numbers_as_tables_write_them(cells: tuple[str, ...], numbers: list[float]) -> None:
    np.testing.assert_array_equal(followed(NUMBER, text(*cells)), numbers)


def test_a_sentence_shows_a_cells_form_and_not_the_cell() -> None:
    with pytest.raises(DomainError, match=r"one has the form '99999,99 €'") as caught:
        Columns.from_toml_text(NUMBER)["x"].encode(text("20680,02 €"))
    assert "20680" not in str(caught.value)
    assert form_of("a very long text about somebody") == "a text of 31 letters"


def test_a_thousands_separator_only_separates_thousands() -> None:
    """With thousands = ".", "1.5" is no number: fifteen would be wrong and 1.5 is written 1,5."""
    column = Column(name="x", kind="continuous", lower=0, upper=1e9, decimal=",", thousands=".", missing=True)
    codes, faults = column.read(text("1.5", "1.500", "1.500.000,5", "15,5", "1500"))
    np.testing.assert_array_equal(codes, [np.nan, 1500, 1500000.5, 15.5, 1500])
    assert faults.unreadable == 1


def test_numbers_that_are_no_text_are_read_as_they_are() -> None:
    column = Column(name="x", kind="continuous", lower=0, upper=10, decimal=",", empty=("-99",), missing=True)
    np.testing.assert_array_equal(column.encode(pd.Series([1.5, np.nan, -99.0])), [1.5, np.nan, np.nan])
    np.testing.assert_array_equal(column.encode(pd.Series([1.5, "2,5", None], dtype=object)), [1.5, 2.5, np.nan])


def test_clip_is_offered_and_works_and_is_counted() -> None:
    toml = '[columns.x]\nkind = "count"\nlower = 60\nupper = 220\n'
    assert followed(toml, text("58", "100", "300")) == [60, 100, 220]
    column = Columns.from_toml_text(toml + "clip = true\n")["x"]
    assert column.notes(column.read(text("58", "100"))[1]) == (
        "column 'x': 1 cell is outside the declared bounds, taken as the nearest bound.",
    )
    with pytest.raises(DomainError, match="not a number"):  # what is no number is not clipped
        column.encode(text("many"))


def test_missing_lists_texts_that_mean_an_empty_cell() -> None:
    for values in (text("NA", "-99", ".", "7"), pd.Series(["NA", -99, ".", 7], dtype=object)):
        column = Columns.from_toml_text(NUMBER + 'missing = ["NA", "-99", "."]\n')["x"]
        np.testing.assert_array_equal(column.encode(values), [np.nan, np.nan, np.nan, 7])
    assert column.missing is True
    assert Columns.from_toml_text(Columns([column]).to_toml())["x"] == column
    category = Column(name="x", kind="categorical", categories=("a", "b"), missing=True, empty=("?",))
    assert category.encode(text("a", "?", "b")).tolist() == [0, -1, 1]
    with pytest.raises(SchemaError, match=r'`missing = \["NA", "-99"\]`'):
        Columns.from_toml_text(NUMBER + "missing = [1]\n")


CATEGORY = '[columns.x]\nkind = "categorical"\ncategories = ["north", "south"]\n'


def test_spaces_and_capitals_count_unless_the_column_says_otherwise() -> None:
    assert followed(CATEGORY, text(" North", "south ")) == [0, 1]
    with pytest.raises(SchemaError, match="names a category twice"):
        Column(name="x", kind="categorical", categories=("a", "A"), ignore_case=True)


def test_values_that_are_not_listed_become_the_other_level() -> None:
    assert followed(CATEGORY, text("east", "south", "north")) == [2, 1, 0]
    column = Columns.from_toml_text(CATEGORY + 'other = "other"\n')["x"]
    assert column.categories == ("north", "south", "other")
    assert Columns.from_toml_text(Columns([column]).to_toml())["x"] == column
    assert column.notes(column.read(text("east", "west"))[1]) == (
        "column 'x': 2 cells are none of the listed categories, taken as 'other'.",
    )


@pytest.mark.parametrize(
    ("categories", "cells"),
    [
        ('["N", "Y"]', ("N", "Y")),
        ('["no", "yes"]', ("no", "yes")),
        ("[false, true]", ("False", "true")),
        ("[0, 1]", ("0", "1")),
        ('["n", "y"]\ntrim = true\nignore_case = true', (" N", "Y ")),
    ],
)
def test_truth_values_in_any_dress(categories: str, cells: tuple[str, ...]) -> None:
    column = Columns.from_toml_text(f'[columns.x]\nkind = "binary"\ncategories = {categories}\n')["x"]
    assert column.encode(text(*cells)).tolist() == [0, 1]


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"decimal": ";"}, "'decimal' is ';'; choose one of"),
        ({"thousands": "."}, "is the decimal sign too"),
        ({"unit": 3}, "'unit' is 3; write a text"),
        ({"below": "half"}, "'below' is 'half'; write \"limit\""),
        ({"one_row": "any"}, "a continuous column takes one of mean, sum, min, max, first, last"),
        ({"order_by": "day"}, 'add `one_row = "last"`'),
        ({"trim": True}, "'trim' does not belong to the kind"),
        ({"empty": ("a",)}, "say missing=True"),
    ],
)
def test_rules_that_contradict_are_refused(fields: dict[str, object], words: str) -> None:
    with pytest.raises(SchemaError, match=words):
        Column(**{"name": "x", "kind": "continuous", "lower": 0, "upper": 1, **fields})


def test_new_fields_do_not_move_the_fingerprint_of_columns_that_lack_them() -> None:
    """Stored homes and approved plans hold it."""
    columns = Columns(
        [
            Column(name="roa", kind="continuous", lower=-1, upper=1, missing=True),
            Column(name="region", kind="categorical", categories=("n", "s")),
        ]
    )
    assert columns.fingerprint == "4079187271edbd7d9642512ae75a32113ff7ae482c122fd2992e3cc489f94b5b"
    assert columns.ignoring(["note"]).fingerprint == columns.fingerprint


def test_a_domain_has_none_of_the_owners_rules() -> None:
    column = Column(name="x", kind="continuous", lower=0, upper=9, decimal=",", clip=True, missing=True, empty=("NA",))
    assert column.domain == Column(name="x", kind="continuous", lower=0, upper=9, missing=True)
    assert column.domain.encode(column.decode(np.array([1.5])).astype(str)).tolist() == [1.5]


# --- columns.toml: both forms, ignore, unknown keys -----------------------------------------------------------


def test_columns_may_be_a_list_of_sections() -> None:
    listed = '[[columns]]\nname = "x"\nkind = "count"\nlower = 0\nupper = 9\n'
    assert Columns.from_toml_text(listed) == Columns([Column(name="x", kind="count", lower=0, upper=9)])
    with pytest.raises(SchemaError, match="has no name"):
        Columns.from_toml_text("[[columns]]\nkind = 'count'\n")


X = '[columns.x]\nkind = "count"\nlower = 0\nupper = 9\n'
FRAME = pd.DataFrame({"id": [1, 2], "x": [3, 4], "note": ["a", "b"], "born": [1, 2]})


@pytest.mark.parametrize("ignore", ['ignore = ["note", "born"]\n', '[ignore]\nnote = "free text"\nborn = ""\n'])
def test_ignore_in_columns_toml(ignore: str) -> None:
    columns = Columns.from_toml_text(ignore + X)
    assert Columns.from_toml_text(columns.to_toml()).ignore == columns.ignore
    block = Block.load("p", FrameSource(FRAME), key="id", columns=columns)
    assert list(block.columns) == ["x"]
    assert block.columns.ignore.keys() == {"note", "born"}


def test_the_line_that_the_sentence_offers_works() -> None:
    toml = X
    for _ in range(2):
        with pytest.raises(UnknownColumn) as caught:
            Block.load("p", FrameSource(FRAME), key="id", columns=Columns.from_toml_text(toml))
        (name,) = re.findall(r'`ignore = \["(\w+)"\]`', str(caught.value))
        names = [*Columns.from_toml_text(toml).ignore, name]
        toml = f"ignore = {names}\n{X}".replace("'", '"')
    assert Block.load("p", FrameSource(FRAME), key="id", columns=Columns.from_toml_text(toml)).n_records == 2


def test_ignore_in_a_source_and_in_pieces(tmp_path: Path) -> None:
    FRAME.to_parquet(tmp_path / "t.parquet")
    FRAME.to_csv(tmp_path / "t.csv", index=False)
    for spec in ({"csv": str(tmp_path / "t.csv")}, {"parquet": str(tmp_path / "t.parquet")}):
        source = open_source({**spec, "ignore": ["note", "born", "absent"]})
        assert source.names() == ["id", "x"]
        assert Block.load("p", source, key="id", columns=Columns.from_toml_text(X)).n_records == 2
    (piece,) = source.pieces(10)
    assert piece[1].names() == ["id", "x"]
    with pytest.raises(SourceError, match="ignore in a source is a list"):
        open_source({**spec, "ignore": "note"})
    with pytest.raises(SourceError, match="Did you mean 'separator'"):
        open_source({"csv": "t.csv", "seperator": ";"})


def test_a_column_is_not_both_declared_and_ignored() -> None:
    with pytest.raises(SchemaError, match="declares 'x' and ignores it"):
        Columns.from_toml_text('ignore = ["x"]\n' + X)
    with pytest.raises(SchemaError, match="ignore is a list of names"):
        Columns.from_toml_text("ignore = 3\n" + X)
