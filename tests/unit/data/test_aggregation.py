"""Mergeable statistics over chunks, and sources in pieces. Oracle: numpy on the whole table."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas as pd

from colonnade.data import Block, Column, Columns, ParquetSource, open_source
from colonnade.data.aggregation import Values, aggregate, inside, mapped
from colonnade.data.keys import with_key
from colonnade.data.sources import CELLS, ROWS, Divisible, chunk_rows

COLUMNS = Columns([Column(name="x", kind="continuous", lower=0.0, upper=1.0)])


@dataclass(frozen=True)
class Total:
    def of(self, at: np.ndarray, values: Values) -> tuple[int, float]:
        return len(at), float(values["x"].sum())

    def merge(self, one: tuple[int, float], other: tuple[int, float]) -> tuple[int, float]:
        return one[0] + other[0], one[1] + other[1]


def test_a_statistic_of_chunks_is_that_of_the_records_in_the_cohort() -> None:
    frame = pd.DataFrame({"id": range(100_000), "x": np.arange(100_000) % 64 / 64})
    block = Block.load("court", open_source(frame), key="id", columns=COLUMNS)
    positions = np.where(np.arange(100_000) % 3 == 0, np.arange(100_000), -1)
    there = frame["x"][positions >= 0]
    assert aggregate(block, positions, ["x"], Total()) == (len(there), there.sum())
    chunks = list(mapped(block, positions, ["x"], Total().of))
    assert len(chunks) == 2
    rows = np.concatenate([at for at, _ in inside(block, positions, ["x"])])
    assert np.array_equal(rows, np.flatnonzero(positions >= 0))


def test_a_wide_chunk_has_fewer_rows() -> None:
    assert chunk_rows(1) == chunk_rows(0) == ROWS
    assert chunk_rows(64) * 64 == CELLS
    assert chunk_rows(10**6) == 1024


def test_pieces_of_a_folder_are_the_folder(tmp_path: Path) -> None:
    frame = pd.DataFrame({"id": range(1000), "part": "a", "x": np.arange(1000) / 1000})
    frame[:350].to_parquet(tmp_path / "0.parquet", row_group_size=100, index=False)
    frame[350:].to_parquet(tmp_path / "1.parquet", row_group_size=100, index=False)
    source = ParquetSource(tmp_path)
    pieces = list(source.pieces(250))
    assert [rows for rows, _ in pieces] == [200, 150, 200, 200, 250]
    read = pd.concat([chunk for _, piece in pieces for chunk in piece.chunks(["id", "x"], rows=64)])
    assert read["id"].tolist() == frame["id"].tolist()
    keyed = with_key(source, ["part", "id"])
    assert isinstance(keyed, Divisible)
    names = [
        name for _, piece in keyed.pieces(250) for chunk in piece.chunks(["part + id"]) for name in chunk.iloc[:, 0]
    ]
    assert names == [f"a\x1f{number}" for number in range(1000)]
    assert not isinstance(with_key(open_source(frame), ["part", "id"]), Divisible)
