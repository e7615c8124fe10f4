"""Blocks. Oracle: the frame encoded column by column, whatever the source and the chunk size."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import duckdb
import numpy as np
import pandas as pd
import pytest

from colonnade.data import Block, Column, Columns, FrameSource, Source, open_source
from colonnade.errors import (
    DomainError,
    DraftDomain,
    DuplicateColumn,
    EmptyParty,
    KeyProblem,
    SchemaError,
    SourceError,
    UnknownColumn,
)

COLUMNS = Columns(
    [
        Column(name="elsewhere", kind="continuous", lower=0, upper=1),
        Column(name="sector", kind="categorical", categories=("farming", "trade", "other"), missing=True),
        Column(name="roa", kind="continuous", lower=-1, upper=1, missing=True),
        Column(name="staff", kind="count", lower=0, upper=1000),
        Column(name="listed", kind="binary", categories=(False, True)),
    ]
)


def firms(n: int = 500) -> pd.DataFrame:
    """One party's table with gaps, its columns in another order than declared."""
    rng = np.random.default_rng(7)
    return pd.DataFrame(
        {
            "listed": rng.integers(0, 2, n).astype(bool),
            "staff": rng.integers(0, 1001, n),
            "firm": [f"F{i:05d}" for i in rng.permutation(n)],
            "roa": np.where(rng.random(n) < 0.2, np.nan, rng.uniform(-1, 1, n)),
            "sector": pd.Series(rng.choice(["farming", "trade", "other"], n), dtype="str").mask(rng.random(n) < 0.1),
        }
    )


def load(frame: pd.DataFrame, **options: object) -> Block:
    return Block.load("credit", FrameSource(frame), **{"key": "firm", "columns": COLUMNS, **options})


def source_of(sort: str, frame: pd.DataFrame, folder: Path) -> Source:
    if sort == "csv":
        frame.to_csv(folder / "t.csv", index=False)
        return open_source(folder / "t.csv")
    if sort == "parquet":
        frame.to_parquet(folder / "t.parquet", row_group_size=150)
        return open_source(folder / "t.parquet")
    if sort == "duckdb":
        with duckdb.connect(str(folder / "t.duckdb")) as connection:
            connection.register("given", frame)
            connection.execute("CREATE TABLE t AS SELECT * FROM given")
        return open_source({"duckdb": str(folder / "t.duckdb"), "query": "SELECT * FROM t"})
    return open_source(frame)


@pytest.mark.parametrize("sort", ["frame", "csv", "parquet", "duckdb"])
def test_a_block_streams_the_encoded_table(sort: str, tmp_path: Path) -> None:
    frame = firms()
    block = Block.load("credit", source_of(sort, frame, tmp_path), key="firm", columns=COLUMNS, rows=64)
    assert block.n_records == len(frame)
    assert list(block.columns) == ["sector", "roa", "staff", "listed"]  # declared order; "elsewhere" is not here
    assert block.keys.tolist() == frame["firm"].tolist()
    expected = {name: COLUMNS[name].encode(frame[name]) for name in block.columns}
    seen = 0
    for cut, arrays in block.chunks(rows=64):
        assert cut.start == seen
        assert 0 < cut.stop - cut.start <= 64
        assert list(arrays) == list(block.columns)
        for name, values in arrays.items():
            assert values.dtype == expected[name].dtype
            np.testing.assert_array_equal(values, expected[name][cut])
        seen = cut.stop
    assert seen == len(frame)
    for name in block.columns:
        np.testing.assert_array_equal(block.encoded(name), expected[name])
    assert {tuple(arrays) for _, arrays in block.chunks(["staff", "roa"])} == {("staff", "roa")}


def test_keys_of_whole_numbers() -> None:
    frame = firms(5).assign(firm=[5, 3, 2**60, -1, 0])
    for keys in (
        frame["firm"],
        frame["firm"].astype("Int64"),
        frame["firm"].astype(object),
        frame["firm"].astype("category"),
    ):
        block = load(frame.assign(firm=keys), rows=2)
        assert block.keys.dtype == np.int64
        assert block.keys.tolist() == [5, 3, 2**60, -1, 0]
        assert [cut.stop for cut, _ in block.chunks(rows=2)] == [2, 4, 5]
    with pytest.raises(ValueError, match="read-only"):
        block.keys[0] = 7
    assert load(frame.set_index("firm")).keys.tolist() == [5, 3, 2**60, -1, 0]


# --- what load refuses -----------------------------------------------------------------------------------


def test_an_undeclared_column() -> None:
    frame = firms().rename(columns={"roa": "roaa"})
    with pytest.raises(UnknownColumn, match=r"'credit'.*'roaa' is not declared; declare it.*did you mean 'roa'\?"):
        load(frame)
    assert "roaa" not in load(frame, ignore=["roaa"]).columns
    block = load(firms())
    with pytest.raises(UnknownColumn, match="elsewhere"):
        block.encoded("elsewhere")


def test_a_column_twice() -> None:
    frame = firms()
    frame.columns = ["listed", "staff", "firm", "roa", "roa"]
    with pytest.raises(DuplicateColumn, match="'roa' more than once"):
        load(frame)


def test_a_key_that_is_not_there_or_is_a_column() -> None:
    with pytest.raises(KeyProblem, match="no key column 'company'; it has 'listed', 'staff'"):
        load(firms(), key="company")
    with pytest.raises(SchemaError, match="'roa' is declared as a column"):
        load(firms(), key="roa")


@pytest.mark.parametrize("gap", [None, np.nan, pd.NA, ""])
def test_missing_keys_are_counted_and_not_quoted(gap: object) -> None:
    frame = firms(9)
    frame["firm"] = [gap if i in (2, 3, 8) else f"secret{i}" for i in range(9)]
    with pytest.raises(KeyProblem, match=r"3 record.s. have no key") as caught:
        load(frame, rows=2)
    assert "secret" not in str(caught.value)
    with pytest.raises(KeyProblem, match=r"9 record.s. have no key"):
        load(frame.assign(firm=pd.Series([gap] * 9, dtype=object)))


def test_blanks_at_the_ends_of_keys_and_of_their_name() -> None:
    frame = firms(3).assign(firm=["a ", " b", "c"])
    assert load(frame).keys.tolist() == ["a", "b", "c"]
    with pytest.raises(KeyProblem, match=r"1 record.s. repeat the key"):
        load(frame.assign(firm=["a ", "a", "c"]))
    with pytest.raises(KeyProblem, match=r"1 record.s. have no key"):
        load(frame.assign(firm=["a", " ", "c"]))
    with pytest.raises(KeyProblem, match=r"has no key column 'firm'; it has .*'firm ', "):
        load(frame.rename(columns={"firm": "firm "}))


def test_missing_whole_number_keys() -> None:
    keys = pd.Series([1, None, 3], dtype="Int64")
    with pytest.raises(KeyProblem, match=r"1 record.s. have no key"):
        load(firms(3).assign(firm=keys))


def test_repeated_keys_are_counted_over_chunks_and_not_quoted() -> None:
    frame = firms(9).assign(firm=["secret", "b", "c", "secret", "e", "secret", "g", "b", "i"])
    with pytest.raises(KeyProblem, match=r"3 record.s. repeat the key") as caught:
        load(frame, rows=2)
    assert "secret" not in str(caught.value)


@pytest.mark.parametrize(
    ("keys", "words"),
    [
        ([1.5, 2.5, 3.5], "neither integers nor text"),
        ([1.0, 2.0, 3.0], "neither integers nor text"),
        ([1, "2", 3], "mix several types"),
        ([True, False, True], "neither"),
        (pd.to_datetime(["2020-01-01", "2020-01-02", "2020-01-03"]), "neither"),
        ([2**63, 1, 2], "64 bits"),
    ],
)
def test_keys_of_other_types(keys: Sequence, words: str) -> None:
    with pytest.raises(KeyProblem, match=f"{words}.*; convert the keys"):
        load(firms(3).assign(firm=keys))


def test_keys_that_change_type_between_chunks() -> None:
    with pytest.raises(KeyProblem, match="some keys are integers and some are text"):
        load(firms(4).assign(firm=pd.Series([1, 2, "3", "4"], dtype=object)), rows=2)


def test_values_outside_are_counted_over_all_chunks() -> None:
    frame = firms(100)
    frame.loc[[1, 50, 99], "sector"] = "mining"
    frame.loc[[2, 60], "staff"] = -5
    with pytest.raises(
        DomainError, match=r"'credit', column 'sector': 3 cells are .*'mining'.* too: 'staff' \(2\)"
    ) as caught:
        load(frame, rows=10)
    assert "-5" not in str(caught.value)


def test_an_empty_cell_where_none_may_be() -> None:
    frame = firms(10).astype({"staff": "Int64"})
    frame.loc[3, "staff"] = pd.NA
    with pytest.raises(DomainError, match="'staff': 1 cell is empty"):
        load(frame)


def test_a_draft_is_not_loaded() -> None:
    drafts = Columns(
        [Column(**{**one.to_dict(), "draft": True}) if one.name == "roa" else one for one in COLUMNS.values()]
    )
    with pytest.raises(DraftDomain, match="'roa'"):
        load(firms(), columns=drafts)
    # A draft of a column that another party holds is that party's to confirm.
    assert load(firms().drop(columns="roa"), columns=drafts).n_records == 500


def test_a_party_without_records(tmp_path: Path) -> None:
    with pytest.raises(EmptyParty, match="'credit': a data frame has no records"):
        load(firms().iloc[:0])
    (tmp_path / "t.csv").write_text("firm,roa\n")
    with pytest.raises(EmptyParty, match=r"t\.csv has no records"):
        Block.load("credit", open_source(tmp_path / "t.csv"), key="firm", columns=COLUMNS)


def test_an_unreadable_file(tmp_path: Path) -> None:
    with pytest.raises(SourceError, match="cannot be read"):
        Block.load("credit", open_source(tmp_path / "absent.csv"), key="firm", columns=COLUMNS)


# --- a source that changes after it was loaded -----------------------------------------------------------


class ChangingSource:
    """A table that somebody writes to."""

    description = "a changing table"

    def __init__(self, frame: pd.DataFrame) -> None:
        self.frame = frame

    def names(self) -> list[str]:
        return FrameSource(self.frame).names()

    def chunks(self, names: Sequence[str], *, rows: int = 65536) -> Iterator[pd.DataFrame]:
        return FrameSource(self.frame).chunks(names, rows=rows)


def test_changed_values_are_clipped_and_never_refused() -> None:
    frame = firms(6)
    source = ChangingSource(frame)
    block = Block.load("credit", source, key="firm", columns=COLUMNS)
    source.frame = frame.assign(
        roa=[5.0, -5.0, np.inf, -np.inf, 0.5, np.nan],
        staff=["7", "many", "2000", "1.6", "-1", ""],
        sector=["mining", "trade", None, "", "farming", "Trade"],
        listed=["yes", "true", None, 0, 2, True],
    )
    np.testing.assert_array_equal(block.encoded("roa"), [1, -1, 1, -1, 0.5, np.nan])
    np.testing.assert_array_equal(block.encoded("staff"), [7, np.nan, 1000, 2, 0, np.nan])
    assert block.encoded("sector").tolist() == [-1, 1, -1, -1, 0, -1]
    assert block.encoded("listed").tolist() == [-1, 1, -1, 0, -1, 1]


@pytest.mark.parametrize(
    "change",
    [
        lambda frame: frame.iloc[:-1],
        lambda frame: pd.concat([frame, firms(501).iloc[[-1]].assign(firm="new")]),
        lambda frame: frame.iloc[:0],
        lambda frame: frame.iloc[::-1],
        lambda frame: frame.assign(firm=frame["firm"].where(frame.index != 250)),
        lambda frame: frame.assign(firm=range(len(frame))),
        lambda frame: frame.assign(firm=np.arange(len(frame)) / 2),
    ],
    ids=["fewer", "more", "none", "reordered", "key gone", "other type", "no key"],
)
def test_changed_records_are_noticed(change) -> None:
    source = ChangingSource(firms())
    block = Block.load("credit", source, key="firm", columns=COLUMNS)
    source.frame = change(source.frame)
    with pytest.raises(SourceError, match="no longer gives the records"):
        list(block.chunks(["roa"], rows=100))


# --- what is held in memory ---------------------------------------------------------------------------------


def unreadable(self: object, names: Sequence[str], *, rows: int = 0) -> Iterator[pd.DataFrame]:
    raise AssertionError("the file was read again")


@pytest.mark.parametrize("sort", ["csv", "parquet"])
def test_a_small_file_is_read_once_until_it_changes(sort: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    frame = firms()
    block = Block.load("credit", source_of(sort, frame, tmp_path), key="firm", columns=COLUMNS, rows=64)
    read = list(replace(block, held=None).chunks(["roa", "sector"], rows=70))
    with monkeypatch.context() as patch:
        patch.setattr(type(block.source), "chunks", unreadable)
        held = list(block.chunks(["roa", "sector"], rows=70))
    assert [cut for cut, _ in held] == [cut for cut, _ in read]
    for (_, kept), (_, anew) in zip(held, read, strict=True):
        for name, values in kept.items():
            assert values.dtype == anew[name].dtype
            np.testing.assert_array_equal(values, anew[name])
            with pytest.raises(ValueError, match="read-only"):
                values[0] = 0
    source_of(sort, frame.assign(staff=1000 - frame["staff"]), tmp_path)
    np.testing.assert_array_equal(block.encoded("staff"), 1000 - frame["staff"])
    source_of(sort, frame.iloc[::-1], tmp_path)
    with pytest.raises(SourceError, match="no longer gives the records"):
        block.encoded("staff")
    (tmp_path / f"t.{sort}").unlink()
    with pytest.raises(SourceError, match="cannot be read"):
        block.encoded("staff")


def test_what_is_not_held(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A source that cannot tell whether it has changed, a folder, which may give shorter chunks, and what is large."""
    frame = firms()
    assert load(frame).held is None
    (tmp_path / "parts").mkdir()
    for number, part in enumerate(np.array_split(np.arange(len(frame)), 2)):
        frame.iloc[part].to_parquet(tmp_path / "parts" / f"{number}.parquet")
    options = {"key": "firm", "columns": COLUMNS}
    assert Block.load("credit", open_source(tmp_path / "parts"), **options).held is None
    source = source_of("csv", frame, tmp_path)
    held = Block.load("credit", source, **options)
    with monkeypatch.context() as patch:
        patch.setattr(type(source), "chunks", unreadable)
        held.encoded("staff")
        held.let_go()
        with pytest.raises(AssertionError, match="read again"):
            held.encoded("staff")
    monkeypatch.setattr("colonnade.data.block.MOST_HELD", 8 * 4 * len(frame) - 1)
    assert Block.load("credit", source, **options).held is None


def test_what_a_block_prints_holds_no_data() -> None:
    assert repr(load(firms())) == "Block(party='credit', key='firm', columns=[sector, roa, staff, listed])"
