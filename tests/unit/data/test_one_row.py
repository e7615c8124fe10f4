"""Many rows for one person. Oracle: pandas' groupby on the parsed cells."""

from __future__ import annotations

import tracemalloc
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from colonnade.data import Block, Column, Columns, FrameSource, open_source
from colonnade.data.one_row import OneRow
from colonnade.errors import DomainError, KeyProblem, SchemaError


def visits(rows: int = 400, persons: int = 50, seed: int = 0) -> pd.DataFrame:
    rng = np.random.default_rng(seed)
    when = pd.Timestamp("2020-01-01") + pd.to_timedelta(rng.permutation(rows), unit="D")
    return pd.DataFrame(
        {
            "id": rng.integers(0, persons, rows),
            "when": when.strftime("%Y-%m-%d"),
            "amount": np.where(rng.random(rows) < 0.1, np.nan, rng.normal(100, 20, rows).round(2)),
            "level": rng.choice(["low", "mid", "high"], rows),
            "smoker": rng.choice(["no", "yes"], rows, p=[0.9, 0.1]),
        }
    )


def amount(rule: str, **fields: object) -> Column:
    return Column(name="amount", kind="continuous", lower=-1e6, upper=1e6, missing=True, one_row=rule, **fields)


@pytest.mark.parametrize("rule", ["mean", "sum", "min", "max", "first", "last"])
@pytest.mark.parametrize("rows", [7, 10_000])
def test_numbers_agree_with_groupby(rule: str, rows: int) -> None:
    frame = visits()
    source = OneRow(FrameSource(frame), "id", Columns([amount(rule)]))
    table = pd.concat(list(source.chunks(["id", "amount"], rows=rows)), ignore_index=True)
    groups = frame.groupby("id", sort=False)["amount"]
    expected = groups.sum(min_count=1) if rule == "sum" else getattr(groups, rule)()
    assert table["id"].tolist() == expected.index.tolist()
    np.testing.assert_allclose(table["amount"], expected.to_numpy())


@pytest.mark.parametrize("rule", ["first", "last"])
@pytest.mark.parametrize("declared", [True, False])
def test_first_and_last_go_by_another_column(rule: str, declared: bool) -> None:
    frame = visits()
    when = Column(name="when", kind="date", from_="2020-01-01", to="2022-01-01", one_row="max")
    columns = Columns(
        [amount(rule, order_by="when"), *([when] if declared else [])], ignore=() if declared else ("when",)
    )
    block = Block.load("p", FrameSource(frame[["id", "when", "amount"]]), key="id", columns=columns, rows=13)
    ordered = frame.dropna(subset="amount").sort_values("when").groupby("id")["amount"]
    expected = getattr(ordered, rule)().reindex(block.keys)
    np.testing.assert_allclose(block.encoded("amount"), expected)


def test_categories_counts_and_whether_any() -> None:
    frame = visits()
    columns = Columns(
        [
            Column(name="level", kind="ordinal", categories=("low", "mid", "high"), one_row="max"),
            Column(name="smoker", kind="binary", categories=("no", "yes"), one_row="any"),
            Column(name="amount", kind="count", lower=0, upper=50, one_row="count"),
            Column(name="when", kind="date", from_="2020-01-01", to="2022-01-01", one_row="min"),
        ]
    )
    block = Block.load("p", FrameSource(frame), key="id", columns=columns)
    by = frame.groupby("id")
    codes = frame["level"].map({"low": 0, "mid": 1, "high": 2}).groupby(frame["id"]).max()
    assert block.encoded("level").tolist() == codes[block.keys].tolist()
    any_yes = (frame["smoker"] == "yes").groupby(frame["id"]).any()
    assert block.encoded("smoker").tolist() == any_yes[block.keys].astype(int).tolist()
    assert block.encoded("amount").tolist() == by["amount"].count()[block.keys].tolist()
    days = (pd.to_datetime(by["when"].min()[block.keys]) - pd.Timestamp("2020-01-01")).dt.days
    assert block.encoded("when").tolist() == days.tolist()


def test_a_person_is_bounded_and_a_row_need_not_be() -> None:
    frame = pd.DataFrame({"id": ["a", "a", "b"], "amount": [7.0, 8.0, 9.0]})
    total = Column(name="amount", kind="continuous", lower=0, upper=20, one_row="sum")
    assert Block.load("p", FrameSource(frame), key="id", columns=Columns([total])).encoded("amount").tolist() == [15, 9]
    tight = Column(name="amount", kind="continuous", lower=0, upper=10, one_row="sum")
    with pytest.raises(DomainError, match=r"1 cell is not a number in \[0.0, 10.0\].*15"):
        Block.load("p", FrameSource(frame), key="id", columns=Columns([tight]))
    mean = Column(name="amount", kind="continuous", lower=0, upper=8, one_row="mean", clip=True)
    block = Block.load("p", FrameSource(frame), key="id", columns=Columns([mean]))
    assert block.encoded("amount").tolist() == [7.5, 8]
    assert len(block.notes) == 1


@pytest.mark.parametrize("rule", ["mean", "sum", "min", "max", "first", "last"])
def test_one_persons_rows_change_that_persons_row_alone(rule: str) -> None:
    """The relation that sensitivities are stated for: all rows of one person are one record."""
    frame = visits()[["id", "amount"]]
    column = Column(name="amount", kind="continuous", lower=0, upper=1000, missing=True, one_row=rule, clip=True)

    def values(table: pd.DataFrame) -> dict[int, float]:
        block = Block.load("p", FrameSource(table), key="id", columns=Columns([column]), rows=97)
        return dict(zip(block.keys.tolist(), block.encoded("amount").tolist(), strict=True))

    before = values(frame)
    person = int(frame["id"].iloc[0])
    # Anywhere among the other rows, whose own order stays.
    places = np.random.default_rng(1).uniform(0, len(frame), 3000)
    extra = pd.DataFrame({"id": person, "amount": np.linspace(-1e9, 1e9, 3000)}, index=places)
    scattered = pd.concat([frame.set_index(np.arange(len(frame)) * 1.0), extra]).sort_index(kind="stable")
    scattered = scattered.reset_index(drop=True)
    after, without = values(scattered), values(frame[frame["id"] != person])
    assert 0 <= after[person] <= 1000
    assert person not in without
    others = {key: value for key, value in before.items() if key != person}
    np.testing.assert_equal({key: after[key] for key in others}, others)
    np.testing.assert_equal(without, others)


def test_blanks_at_the_ends_of_keys_make_no_second_person() -> None:
    frame = visits().assign(id=lambda table: "P" + table["id"].astype(str))
    blanks = np.random.default_rng(1).choice(["", " ", "\t"], len(frame))
    columns = Columns([amount("mean")])
    tidy, typed = (
        Block.load("p", FrameSource(table[["id", "amount"]]), key="id", columns=columns)
        for table in (frame, frame.assign(id=frame["id"] + blanks))
    )
    assert typed.keys.tolist() == tidy.keys.tolist()
    np.testing.assert_allclose(typed.encoded("amount"), tidy.encoded("amount"))


def test_repeated_keys_without_a_rule_are_refused_with_a_cure_that_works() -> None:
    frame = visits()[["id", "level", "smoker"]]
    plain = [
        Column(name="level", kind="ordinal", categories=("low", "mid", "high")),
        Column(name="smoker", kind="binary", categories=("no", "yes")),
    ]
    with pytest.raises(KeyProblem, match=r"350 record.s. repeat the key .* `one_row = "):
        Block.load("p", FrameSource(frame), key="id", columns=Columns(plain))
    text = Columns(plain).to_toml().replace('kind = "binary"', 'kind = "binary"\none_row = "any"')
    with pytest.raises(KeyProblem, match=r"and 'level' does not say .*`one_row = \"last\"` under \[columns.level\]"):
        Block.load("p", FrameSource(frame), key="id", columns=Columns.from_toml_text(text))
    text = text.replace('kind = "ordinal"', 'kind = "ordinal"\none_row = "last"')
    assert Block.load("p", FrameSource(frame), key="id", columns=Columns.from_toml_text(text)).n_records == 50


def test_rows_that_cannot_be_read_are_refused_although_no_person_shows_them() -> None:
    frame = pd.DataFrame({"id": ["a", "a", "b"], "amount": ["7", "many", "9"]})
    with pytest.raises(DomainError, match="1 cell is not a number"):
        Block.load("p", FrameSource(frame), key="id", columns=Columns([amount("max")]))
    frame = pd.DataFrame({"id": ["a", "a", "b"], "amount": [1, 2, 3], "when": ["x", "y", "z"]})
    with pytest.raises(SchemaError, match=r"order_by names 'when'.*kind = .date."):
        Block.load(
            "p", FrameSource(frame), key="id", columns=Columns([amount("last", order_by="when")], ignore=["when"])
        )
    with pytest.raises(KeyProblem, match=r"1 record.s. have no key"):
        lost = pd.DataFrame({"id": ["a", None], "amount": [1.0, 2.0]})
        Block.load("p", FrameSource(lost), key="id", columns=Columns([amount("max")]))


def test_rows_stream_and_only_persons_stay_in_memory(tmp_path: Path) -> None:
    rows = 400_000
    frame = pd.DataFrame({"id": np.arange(rows) % 100, "amount": np.ones(rows)})
    frame.to_parquet(tmp_path / "t.parquet", row_group_size=20_000)
    source = OneRow(open_source(tmp_path / "t.parquet"), "id", Columns([amount("sum")]))
    del frame
    tracemalloc.start()
    (table,) = source.chunks(["id", "amount"], rows=10_000)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert table["amount"].tolist() == [4000.0] * 100
    assert peak < 3e6  # all rows are 6.4 MB
