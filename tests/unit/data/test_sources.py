"""Sources. Oracle: the frame that was written; every sort of source must give it back, chunk by chunk."""

from __future__ import annotations

import gzip
import sys
from collections.abc import Callable
from pathlib import Path

import duckdb
import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from colonnade.data import (
    Block,
    Column,
    Columns,
    CSVSource,
    DuckDBSource,
    FrameSource,
    ParquetSource,
    Source,
    open_source,
)
from colonnade.data.sources import Typed, sniffed
from colonnade.errors import DuplicateColumn, SchemaError, SourceError, UnknownColumn


def awkward_frame(n: int = 1000) -> pd.DataFrame:
    """Keys with leading zeros, numbers with gaps above 2^53, text with commas, quotes and line breaks, odd names."""
    numbers = np.arange(n)
    return pd.DataFrame(
        {
            "firm": [f"{i:06d}" for i in numbers],
            "a.b": pd.Series(2**53 + numbers, dtype="Int64").mask(numbers % 7 == 0),
            "a": numbers / 3,
            'say "hi"': pd.Series([["plain", 'a,"b"', "line\nbreak", "größe"][i % 4] for i in numbers], dtype="str"),
            "flag": pd.Series(numbers % 2 == 0).astype("boolean").mask(numbers % 5 == 0),
        }
    )


def frame_source(frame: pd.DataFrame, folder: Path) -> Source:
    return FrameSource(frame)


def csv_source(frame: pd.DataFrame, folder: Path) -> Source:
    frame.to_csv(folder / "t.csv", index=False)
    return open_source(folder / "t.csv")


def gzip_source(frame: pd.DataFrame, folder: Path) -> Source:
    frame.to_csv(folder / "t.csv.gz", index=False)
    return open_source(str(folder / "t.csv.gz"))


def parquet_source(frame: pd.DataFrame, folder: Path) -> Source:
    frame.to_parquet(folder / "t.parquet", row_group_size=300)
    return open_source({"parquet": str(folder / "t.parquet")})


def parquet_folder(frame: pd.DataFrame, folder: Path) -> Source:
    (folder / "t").mkdir()
    frame.iloc[:400].to_parquet(folder / "t" / "part-0.parquet")
    frame.iloc[400:].to_parquet(folder / "t" / "part-1.parquet")  # with pandas' own column for the index
    (folder / "t" / "_SUCCESS").touch()
    return open_source(folder / "t")


def duckdb_source(frame: pd.DataFrame, folder: Path) -> Source:
    with duckdb.connect(str(folder / "t.duckdb")) as connection:
        connection.register("given", frame)
        connection.execute("CREATE TABLE t AS SELECT * FROM given")
    query = 'SELECT * FROM t -- all of it\nORDER BY "firm";'
    return open_source({"duckdb": str(folder / "t.duckdb"), "query": query})


MAKERS = [frame_source, csv_source, gzip_source, parquet_source, parquet_folder, duckdb_source]


@pytest.mark.parametrize("make", MAKERS)
def test_every_source_gives_the_table_back(make: Callable, tmp_path: Path) -> None:
    frame = awkward_frame()
    source = make(frame, tmp_path)
    assert isinstance(source, Source)
    assert source.names() == list(frame.columns)
    wanted = ["flag", "a.b", "firm", 'say "hi"', "a"]
    for _ in range(2):  # a source can be read again
        chunks = list(source.chunks(wanted, rows=256))
        assert [len(chunk) for chunk in chunks] in ([256] * 3 + [232], [256, 144, 256, 256, 88])  # a folder: by file
        assert all(list(chunk.columns) == wanted for chunk in chunks)
        read = pd.concat(chunks, ignore_index=True)
        assert len(read) == len(frame)
        for name in wanted:
            expected = frame[name]
            assert read[name].isna().tolist() == expected.isna().tolist()
            filled = read[name].dropna().tolist()
            if isinstance(source, CSVSource):
                assert filled == expected.dropna().astype(str).tolist()
            else:
                assert filled == expected.dropna().tolist()
    assert [len(chunk) for chunk in source.chunks(["a"])] in ([1000], [400, 600])


@pytest.mark.parametrize("make", MAKERS)
def test_every_source_refuses_names_that_are_not_there(make: Callable, tmp_path: Path) -> None:
    source = make(awkward_frame(), tmp_path)
    with pytest.raises(UnknownColumn, match="no column 'b'"):
        next(source.chunks(["b"]))
    with pytest.raises(DuplicateColumn, match="more than once"):
        next(source.chunks(["a", "a"]))
    with pytest.raises(SchemaError, match="at least one"):
        next(source.chunks([]))


def duplicated_names(sort: str, folder: Path) -> Source:
    if sort == "frame":
        return FrameSource(pd.DataFrame([[1, 2, 3]], columns=["id", "x", "x"]))
    if sort == "csv":
        (folder / "t.csv").write_text("id,x,x\n1,2,3\n")
        return CSVSource(folder / "t.csv")
    if sort == "parquet":
        columns = [pa.array([value]) for value in (1, 2, 3)]
        pq.write_table(pa.Table.from_arrays(columns, names=["id", "x", "x"]), folder / "t.parquet")
        return ParquetSource(folder / "t.parquet")
    return DuckDBSource(":memory:", "SELECT 1 AS id, 2 AS x, 3 AS x")


@pytest.mark.parametrize("sort", ["frame", "csv", "parquet", "duckdb"])
def test_duplicate_names_are_kept_and_refused_when_read(sort: str, tmp_path: Path) -> None:
    source = duplicated_names(sort, tmp_path)
    assert source.names() == ["id", "x", "x"]
    with pytest.raises(DuplicateColumn, match="'x'"):
        next(source.chunks(["id", "x"]))


def test_a_csv_cell_is_text_and_only_an_empty_one_is_missing(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text('\ufeffid,x\n007,NA\n1e5,""\n"a\n b",\nTrue, nan \n', encoding="utf-8")
    (chunk,) = CSVSource(tmp_path / "t.csv").chunks(["id", "x"])
    assert chunk["id"].tolist() == ["007", "1e5", "a\n b", "True"]
    assert chunk["x"].isna().tolist() == [False, True, True, False]
    assert chunk["x"].dropna().tolist() == ["NA", " nan "]


def test_csv_separator_and_encoding(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_bytes("id;größe\n1;2,5\n".encode("latin-1"))
    with pytest.raises(SourceError, match="cannot be read"):
        list(CSVSource(tmp_path / "t.csv").chunks(["id;größe"]))
    source = open_source({"csv": str(tmp_path / "t.csv"), "separator": ";", "encoding": "latin-1"})
    assert next(source.chunks(["größe"])).iloc[0, 0] == "2,5"
    (tmp_path / "t.tsv").write_text("id\tx\n1\t2\n")
    assert open_source(tmp_path / "t.tsv").names() == ["id", "x"]


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "cp1252"])
def test_the_names_of_a_csv_file_are_those_that_arrow_reads(tmp_path: Path, encoding: str) -> None:
    """They are read without it, which would look at every cell to find out types."""
    file = tmp_path / "t.csv"
    file.write_bytes('\r\n" id ";größe;"a ""b"";\nc";;größe\r\n1;2;3;4;5\r\n'.encode(encoding))
    stated = "cp1252" if encoding == "cp1252" else "utf-8"
    read = pa.csv.ReadOptions(encoding=stated.replace("utf-8", "utf8"))
    parse = pa.csv.ParseOptions(delimiter=";", newlines_in_values=True)
    with pa.csv.open_csv(file, read_options=read, parse_options=parse) as reader:
        assert CSVSource(file, separator=";", encoding=stated).names() == reader.schema.names
    file.write_text("")
    with pytest.raises(SourceError, match="cannot be read"):
        CSVSource(file).names()


def test_what_a_spreadsheet_saves_as_unicode_text_is_read(tmp_path: Path) -> None:
    (tmp_path / "t.tsv").write_bytes("id\tgröße\r\n1\t2\r\n2\t5\r\n".encode("utf-16"))
    source = open_source(sniffed(tmp_path / "t.tsv"))
    assert source.names() == ["id", "größe"]
    (frame,) = source.chunks(["größe", "id"])
    assert frame.to_numpy().tolist() == [["2", "1"], ["5", "2"]]


def test_a_ragged_csv_row_is_refused_and_not_quoted(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text("id,x\n1,2\nsecret\n")
    with pytest.raises(SourceError, match="Row #3: Expected 2 columns, got 1") as caught:
        list(CSVSource(tmp_path / "t.csv").chunks(["id"]))
    assert "secret" not in str(caught.value)
    assert caught.value.__cause__ is None


def test_a_header_alone_has_no_rows(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text("id,x\n")
    assert list(CSVSource(tmp_path / "t.csv").chunks(["id"])) == []
    assert list(FrameSource(pd.DataFrame({"id": []})).chunks(["id"])) == []


@pytest.mark.parametrize("name", ["absent.csv", "absent.parquet", "empty.csv", "garbage.parquet", "broken.csv.gz"])
def test_an_unreadable_file(name: str, tmp_path: Path) -> None:
    if not name.startswith("absent"):
        (tmp_path / name).write_bytes(b"" if name.startswith("empty") else b"this is no table")
    source = open_source(tmp_path / name)
    with pytest.raises(SourceError, match=f"{name} cannot be read"):
        source.names()
    with pytest.raises(SourceError, match="cannot be read"):
        next(source.chunks(["id"]))


def test_a_truncated_file_fails_while_it_is_read(tmp_path: Path) -> None:
    whole = gzip.compress(b"id\n" + b"12345678901234\n" * 2_000_000, 1)
    (tmp_path / "t.csv.gz").write_bytes(whole[: len(whole) * 3 // 4])
    # The reader decodes ahead, so the fault may show at the first chunk or at a later one; it must always show.
    with pytest.raises(SourceError, match="cannot be read"):
        list(CSVSource(tmp_path / "t.csv.gz").chunks(["id"]))


def test_folders_of_parquet_files_must_agree(tmp_path: Path) -> None:
    with pytest.raises(SourceError, match=r"no file \*.parquet"):
        open_source(tmp_path).names()
    pd.DataFrame({"id": [1], "x": [1]}).to_parquet(tmp_path / "a.parquet")
    pd.DataFrame({"id": [2], "y": [1]}).to_parquet(tmp_path / "b.parquet")
    with pytest.raises(SourceError, match=r"b\.parquet has other columns"):
        open_source(tmp_path).names()


def test_categoricals_with_other_dictionaries_in_each_row_group(tmp_path: Path) -> None:
    words = ["a", "b", "c", "d", "e", "f", "g"]
    schema = pa.schema([("x", pa.dictionary(pa.int32(), pa.string()))])
    with pq.ParquetWriter(tmp_path / "t.parquet", schema) as writer:
        for part in (words[:2], words[2:5], words[5:]):
            writer.write_table(pa.table({"x": pa.array(part).dictionary_encode()}))
    chunks = ParquetSource(tmp_path / "t.parquet").chunks(["x"], rows=3)
    assert [chunk["x"].tolist() for chunk in chunks] == [words[:3], words[3:6], words[6:]]


def test_a_parquet_index_with_a_name_is_a_column(tmp_path: Path) -> None:
    frame = pd.DataFrame({"x": [1.0, 2.0]}, index=pd.Index([7, 8], name="firm"))
    frame.to_parquet(tmp_path / "t.parquet")
    for source in (ParquetSource(tmp_path / "t.parquet"), FrameSource(frame)):
        assert sorted(source.names()) == ["firm", "x"]
        assert next(source.chunks(["firm"]))["firm"].tolist() == [7, 8]


def test_a_frame_source_keeps_what_it_was_given() -> None:
    frame = pd.DataFrame({"id": [1, 2], 3: [1.0, 2.0]}, index=[5, 5])
    source = FrameSource(frame)
    frame.loc[5, 3] = 99.0
    assert source.names() == ["id", "3"]
    assert next(source.chunks(["3"]))["3"].tolist() == [1.0, 2.0]


def test_duckdb_only_reads(tmp_path: Path) -> None:
    path = tmp_path / "t.duckdb"
    with pytest.raises(SourceError, match="cannot be read"):
        DuckDBSource(path, "SELECT 1").names()
    assert not path.exists()
    with duckdb.connect(str(path)) as connection:
        connection.execute("CREATE TABLE t AS SELECT 1 AS id, 'secret' AS word")
    for query in [
        "DROP TABLE t",
        "SELECT * FROM t; SELECT 1",
        "SELECT nothing FROM t",
        "SELECT * FROM wanted",
        "SELEC",
    ]:
        with pytest.raises(SourceError, match="cannot be read"):
            DuckDBSource(path, query).names()
    wrong = DuckDBSource(path, "SELECT id, CAST(word AS INTEGER) AS word FROM t")
    with pytest.raises(SourceError, match=r"cannot be read \(Conversion Error\);") as caught:
        list(wrong.chunks(["id", "word"]))
    assert "secret" not in str(caught.value)
    assert DuckDBSource(path, "SELECT * FROM t").names() == ["id", "word"]


def test_duckdb_is_an_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "duckdb", None)  # an import of it fails now
    with pytest.raises(SourceError, match=r"pip install colonnade\[duckdb\]"):
        DuckDBSource(":memory:", "SELECT 1").names()


@pytest.mark.parametrize(
    ("spec", "words"),
    [
        ("table.xlsx", "suffix"),
        ("table.duckdb", '"query": sql'),
        ({"excel": "t"}, "names one of csv, parquet, duckdb"),
        ({"duckdb": "t.duckdb"}, "has the fields duckdb, query"),
        ({"csv": "t.csv", "query": "SELECT 1"}, "has the fields csv and may have encoding, separator"),
        ({"parquet": "t", "query": "SELECT 1"}, "has the fields parquet, not parquet, query"),
        ({"postgresql": "env:X"}, "has the fields postgresql, query, not postgresql"),
        ({"csv": 1}, "are text"),
        (3, "not int"),
    ],
)
def test_a_spec_that_is_no_source(spec: object, words: str) -> None:
    with pytest.raises(SourceError, match=words):
        open_source(spec)


def test_a_source_is_its_own_spec() -> None:
    source = FrameSource(pd.DataFrame({"id": [1]}))
    assert open_source(source) is source
    assert isinstance(open_source(pd.DataFrame({"id": [1]})), FrameSource)
    assert "data frame" in source.description


def test_a_wide_csv_row_is_longer_than_a_block(tmp_path: Path) -> None:
    """Blocks are small, because Arrow reads many ahead; a header of 200 kB makes them larger."""
    names = [f"column_{number:06d}" for number in range(15_000)]
    with (tmp_path / "t.csv").open("w") as file:
        file.write(",".join(names) + "\n")
        for _ in range(3):
            file.write(",".join(["1.2345678901234567e-100"] * len(names)) + "\n")
    (chunk,) = CSVSource(tmp_path / "t.csv").chunks(names[:2])
    assert chunk.shape == (3, 2)


def test_duckdb_keeps_to_its_own_memory_limit() -> None:
    query = "SELECT hash(i) AS id FROM range(3000000) t(i) ORDER BY 1"
    roomy = DuckDBSource(":memory:", query)
    assert sum(len(chunk) for chunk in roomy.chunks(["id"])) == 3_000_000
    tight = open_source({"duckdb": ":memory:", "query": query, "memory_limit": "4MB"})
    with pytest.raises(SourceError, match="cannot be read"):
        list(tight.chunks(["id"]))


def dated_source(sort: str, folder: Path) -> Source:
    """A key, a day, a number, and a list, which no declaration fits."""
    if sort == "duckdb":
        return DuckDBSource(
            ":memory:", "SELECT 1 AS id, DATE '2026-01-01' AS day, 2.5::DECIMAL(4, 1) AS x, [1] AS many"
        )
    pq.write_table(
        pa.table({"id": [1], "day": pa.array([0], pa.date32()), "x": [2.5], "many": [[1]]}), folder / "t.parquet"
    )
    return ParquetSource(folder / "t.parquet")


@pytest.mark.parametrize("sort", ["duckdb", "parquet"])
def test_types_that_no_column_has_are_known_before_a_row_is_read(sort: str, tmp_path: Path) -> None:
    source = dated_source(sort, tmp_path)
    assert isinstance(source, Typed)
    assert set(source.unfit()) == {"day", "many"}
    columns = Columns([Column(name=name, kind="continuous", lower=0, upper=9) for name in ("day", "x", "many")])
    with pytest.raises(SchemaError, match=r"the column 'day' of .* is of type (?i:date).*; declare it"):
        Block.load("court", source, key="id", columns=columns)
    declared = columns.select(["x"])
    assert Block.load("court", source, key="id", columns=declared, ignore=["day", "many"]).n_records == 1
