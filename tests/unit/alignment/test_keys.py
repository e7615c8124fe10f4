"""Normal forms of keys, and composite keys."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from colonnade.alignment.keys import check_rules, normal_form, normal_forms
from colonnade.data.block import Block
from colonnade.data.column import Column, Columns
from colonnade.data.keys import SEPARATOR, CompositeKey, key_name, with_key
from colonnade.data.sources import open_source
from colonnade.errors import BadArguments, KeyProblem

ALL = ("case", "spaces", "accents", "dates")


@pytest.mark.parametrize(
    ("one", "other", "needed"),
    [
        ("MÜLLER", "müller", ("case",)),
        ("STRASSE", "straße", ("case",)),
        (" Ann  Lee ", "Ann Lee", ("spaces",)),
        ("José", "Jose", ("accents",)),
        ("Jos\u0065\u0301", "José", ()),  # two encodings of one letter: always equal
        (7, "7", ()),
        (" ÉVA\u00a0nagy", "eva  Nagy", ALL[:3]),
        (f"A b{SEPARATOR}C ", f"a B{SEPARATOR}c", ("case", "spaces")),
        ("31.12.1999", "1999-12-31", ("dates",)),
        (19991231, "1999/12/31", ("dates",)),
        (f"ANN{SEPARATOR}1/2/2003", f"ann{SEPARATOR}2003-02-01", ("case", "dates")),
    ],
)
def test_equal_exactly_under_the_rules_that_are_needed(
    one: int | str, other: int | str, needed: tuple[str, ...]
) -> None:
    assert normal_form(one, needed) == normal_form(other, needed)
    for rule in needed:
        fewer = tuple(name for name in needed if name != rule)
        assert normal_form(one, fewer) != normal_form(other, fewer)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("007", 7),
        ("o", "0"),
        ("ab", "a b"),
        ("12/31/1999", "1999-12-31"),
        ("31.2.1999", "1999-02-31"),
        (f"a{SEPARATOR}b", "a b"),
    ],
)
def test_different_under_all_rules(one: int | str, other: int | str) -> None:
    assert normal_form(one, ALL) != normal_form(other, ALL)


def test_records_that_become_equal_are_counted_not_named() -> None:
    keys = np.array(["Ann", "ANN", "ann", "Bob", "bob"], dtype=object)
    assert len(normal_forms(keys, (), where="clinic")) == 5
    with pytest.raises(KeyProblem, match=r"clinic: 3 record\(s\) repeat") as caught:
        normal_forms(keys, ("case",), where="clinic")
    assert "ann" not in str(caught.value).lower()


def test_keys_that_become_empty_are_counted() -> None:
    with pytest.raises(KeyProblem, match=r"2 key\(s\) are empty"):
        normal_forms(np.array(["  ", f" {SEPARATOR} ", "x"], dtype=object), ("spaces",), where="clinic")


def test_unknown_rules() -> None:
    assert check_rules(["accents", "case", "case"]) == ("case", "accents")
    with pytest.raises(BadArguments, match="punctuation"):
        check_rules(["punctuation"])


# --- composite keys ---------------------------------------------------------------------------------------

PEOPLE = pd.DataFrame({"name": ["Lee", "Lee", "Ng"], "born": [1970, 1971, 1970], "age": [55.0, 54.0, 55.0]})
AGE = Columns([Column(name="age", kind="continuous", lower=0.0, upper=100.0)])


def test_a_composite_key_is_one_column_of_the_block(tmp_path: Path) -> None:
    PEOPLE.to_csv(tmp_path / "people.csv", index=False)
    PEOPLE.to_parquet(tmp_path / "people.parquet", index=False)
    for source in (PEOPLE, str(tmp_path / "people.csv"), str(tmp_path / "people.parquet")):
        opened = with_key(open_source(source), ["name", "born"])
        block = Block.load("clinic", opened, key=key_name(["name", "born"]), columns=AGE)
        assert block.keys.tolist() == ["Lee\x1f1970", "Lee\x1f1971", "Ng\x1f1970"]
        assert block.encoded("age").tolist() == [55.0, 54.0, 55.0]


def test_parts_do_not_run_together() -> None:
    frame = pd.DataFrame({"a": ["x", "xy"], "b": ["yz", "z"]})
    (chunk,) = CompositeKey(open_source(frame), ["a", "b"]).chunks(["a + b"])
    assert chunk["a + b"].nunique() == 2


@pytest.mark.parametrize("gap", [None, "", " "])
def test_a_record_without_a_part_has_no_key(gap: str | None) -> None:
    frame = PEOPLE.assign(name=["Lee", gap, "Ng"])
    with pytest.raises(KeyProblem, match=r"1 record\(s\) have no key"):
        Block.load("clinic", with_key(open_source(frame), ["name", "born"]), key="name + born", columns=AGE)


@pytest.mark.parametrize(
    ("parts", "frame", "reason"),
    [
        (["name"], PEOPLE, "at least two"),
        (["name", "name"], PEOPLE, "at least two"),
        (["name", "city"], PEOPLE, "no key column 'city'"),
        (["name", "born"], PEOPLE.assign(name="a\x1fb"), "U\\+001F"),
        (["name", "born"], PEOPLE.assign(born=[1.5, 2.5, 3.5]), "neither integers nor text"),
    ],
)
def test_parts_that_cannot_be(parts: list[str], frame: pd.DataFrame, reason: str) -> None:
    with pytest.raises(KeyProblem, match=reason):
        Block.load("clinic", with_key(open_source(frame), parts), key=key_name(parts), columns=AGE)
