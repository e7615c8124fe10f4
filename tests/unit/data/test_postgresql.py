"""PostgreSQL queries as sources, against a real server. Oracle: the frame that was copied into its table."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from decimal import Decimal
from pathlib import Path

import numpy as np
import pandas as pd
import psycopg
import pytest

import colonnade as co
from colonnade.data import Block, Column, Columns, Source, open_source
from colonnade.errors import DuplicateColumn, SchemaError, SourceError, UnknownColumn
from colonnade.federation.config import Spec
from support import postgresql

SECRET = "not-for-logs"
QUERY = "SELECT * FROM firms ORDER BY firm; "


def firms(n: int = 1000) -> pd.DataFrame:
    """Keys above 2^53 with gaps elsewhere, text with quotes, truth values, exact decimals."""
    numbers = np.arange(n)
    return pd.DataFrame(
        {
            "firm": 2**53 + numbers,
            "staff": pd.Series(numbers % 40, dtype="Int64").mask(numbers % 7 == 0),
            "Growth %": numbers / 3 - 100,
            "branch": [["retail", 'a "b"', "größe"][i % 3] for i in numbers],
            "listed": pd.Series(numbers % 2 == 0).astype("boolean").mask(numbers % 5 == 0),
            "paid": [Decimal(i) / 100 for i in numbers.tolist()],
        }
    )


def fill(connection: psycopg.Connection, frame: pd.DataFrame) -> None:
    connection.execute(
        'CREATE TABLE firms (firm bigint, staff integer, "Growth %" double precision, branch text, listed boolean,'
        " paid numeric(12, 2))"
    )
    with connection.cursor().copy("COPY firms FROM STDIN") as copy:
        for row in frame.astype(object).where(frame.notna(), None).itertuples(index=False):
            copy.write_row(row)


@pytest.fixture(scope="module")
def database() -> Iterator[str]:
    with postgresql.server() as conninfo:
        with psycopg.connect(conninfo, password=SECRET) as connection:
            fill(connection, firms())
            connection.execute("CREATE SEQUENCE counter")
            connection.execute("CREATE TABLE visits (firm bigint, at date, place point, sort text)")
            connection.execute("INSERT INTO visits VALUES (1, '2026-01-01', '(1,2)', 'a')")
        yield f"{conninfo} password={SECRET}"


@pytest.fixture
def source(database: str, monkeypatch: pytest.MonkeyPatch) -> Source:
    monkeypatch.setenv("FIRMS_DATABASE", database)
    return open_source({"postgresql": "env:FIRMS_DATABASE", "query": QUERY})


COLUMNS = Columns(
    [
        Column(name="staff", kind="count", lower=0, upper=40, missing=True),
        Column(name="Growth %", kind="continuous", lower=-100, upper=400),
        Column(name="branch", kind="categorical", categories=("retail", 'a "b"', "größe")),
        Column(name="listed", kind="binary", categories=(False, True), missing=True),
        Column(name="paid", kind="continuous", lower=0, upper=100),
    ]
)


def test_a_query_gives_the_table_back_in_chunks(source: Source) -> None:
    frame = firms()
    assert source.names() == list(frame.columns)
    wanted = ["branch", "paid", "firm", "staff", "Growth %", "listed"]
    for _ in range(2):
        chunks = list(source.chunks(wanted, rows=300))
        assert [len(chunk) for chunk in chunks] == [300, 300, 300, 100]
        read = pd.concat(chunks, ignore_index=True)
        for name in wanted:
            assert read[name].isna().tolist() == frame[name].isna().tolist()
            assert read[name].dropna().tolist() == frame[name].dropna().tolist()
    with pytest.raises(UnknownColumn, match="no column 'b'"):
        next(source.chunks(["b"]))
    with pytest.raises(DuplicateColumn, match="more than once"):
        next(source.chunks(["paid", "paid"]))


def test_a_block_from_postgresql_equals_the_block_from_the_frame(source: Source) -> None:
    there = Block.load("tax", source, key="firm", columns=COLUMNS)
    here = Block.load("tax", open_source(firms()), key="firm", columns=COLUMNS)
    assert np.array_equal(there.keys, here.keys)
    for name in COLUMNS:
        assert np.array_equal(there.encoded(name), here.encoded(name), equal_nan=True)


def test_rows_stay_at_the_server_until_they_are_asked_for(database: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """60 MB of text in a quarter of that memory."""
    monkeypatch.setenv("FIRMS_DATABASE", database)
    code = """
import resource, colonnade.data as d
query = "SELECT i AS firm, repeat('x', 400) AS long FROM generate_series(1, 150000) AS i"
source = d.open_source({"postgresql": "env:FIRMS_DATABASE", "query": query})
def peak(): return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
source.names()
next(source.chunks(["firm", "long"], rows=4096))
before = peak()
rows = sum(len(chunk) for chunk in source.chunks(["firm", "long"], rows=4096))
print(rows, peak() - before)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    rows, grown = done.stdout.split()
    assert int(rows) == 150_000
    assert float(grown) < 15


def test_a_type_that_no_column_has_is_refused_before_a_row_is_read(
    database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FIRMS_DATABASE", database)
    columns = Columns([Column(name="at", kind="continuous", lower=0, upper=1)])
    visits = open_source({"postgresql": "env:FIRMS_DATABASE", "query": "SELECT firm, at FROM visits"})
    with pytest.raises(SchemaError, match=r"column 'at' .* is of type date, .*; declare it with kind"):
        Block.load("tax", visits, key="firm", columns=columns)


@pytest.mark.parametrize(
    ("query", "cause"),
    [
        ("SELECT firm FROM nowhere", 'relation "nowhere" does not exist'),
        ("SELECT nothing FROM firms", 'column "nothing" does not exist'),
        ("SELECT firm FROM firms; DROP TABLE firms", "syntax error"),
        ("DELETE FROM firms RETURNING firm", "syntax error"),
        ("SELECT branch::integer AS firm FROM firms", "InvalidTextRepresentation, SQLSTATE 22P02"),
        ("SELECT nextval('counter') AS firm", "ReadOnlySqlTransaction, SQLSTATE 25006"),
    ],
)
def test_a_wrong_query_is_one_sentence_that_quotes_no_value(
    query: str, cause: str, database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FIRMS_DATABASE", database)
    wrong = open_source({"postgresql": "env:FIRMS_DATABASE", "query": query})
    with pytest.raises(SourceError, match=cause) as caught:
        list(wrong.chunks(["firm"]))
    assert "retail" not in str(caught.value)
    assert "\n" not in str(caught.value)


def test_the_connection_string_is_never_repeated(database: str, monkeypatch: pytest.MonkeyPatch) -> None:
    query = "SELECT 1 AS firm"
    strings = {
        "did not accept": database.replace(SECRET, "wrong-secret"),
        "cannot be read": f"host=/tmp {SECRET}",
        "no socket": f"host=/nowhere-at-all user=owner password={SECRET}",
        "nothing listens": f"host=127.0.0.1 port=1 password={SECRET}",
        "no such database": database.replace("dbname=postgres", "dbname=secretbase"),
    }
    for cause, conninfo in strings.items():
        monkeypatch.setenv("FIRMS_DATABASE", conninfo)
        with pytest.raises(SourceError, match=cause) as caught:
            open_source({"postgresql": "env:FIRMS_DATABASE", "query": query}).names()
        assert "secret" not in str(caught.value)
        assert SECRET not in str(caught.value)
        assert "owner" not in str(caught.value)
    monkeypatch.delenv("FIRMS_DATABASE")
    with pytest.raises(SourceError, match="the environment variable FIRMS_DATABASE is not set"):
        open_source({"postgresql": "env:FIRMS_DATABASE", "query": query}).names()
    for written in (database, f"postgresql://owner:{SECRET}@localhost/postgres", "env:", "service:"):
        with pytest.raises(SourceError, match="never holds the connection string") as caught:
            open_source({"postgresql": written, "query": query})
        assert SECRET not in str(caught.value)


def test_a_service_file_names_the_connection(database: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "pg_service.conf").write_text("[tax]\n" + database.replace(" ", "\n") + "\n")
    monkeypatch.setenv("PGSERVICEFILE", str(tmp_path / "pg_service.conf"))
    assert open_source({"postgresql": "service:tax", "query": QUERY}).names() == list(firms().columns)
    with pytest.raises(SourceError, match="no such service"):
        open_source({"postgresql": "service:court", "query": QUERY}).names()


def test_a_job_on_postgresql_leaves_no_connection_string_on_disk(
    database: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """describe over one party in PostgreSQL and one frame, in processes of their own, equals two frames."""
    monkeypatch.setenv("FIRMS_DATABASE", database)
    frame = firms()
    court = pd.DataFrame({"firm": frame["firm"][::2], "sued": "no"})
    columns = Columns([*COLUMNS.values(), Column(name="sued", kind="binary", categories=("no", "yes"))])
    found = {}
    for sort, tax in (("frame", frame), ("server", {"postgresql": "env:FIRMS_DATABASE", "query": QUERY})):
        spec = Spec(
            blocks={"tax": tax, "court": court},
            key="firm",
            columns=columns,
            home=tmp_path / sort,
            seed=5,
            transport="embedded" if sort == "frame" else "processes",
        )
        with co.Federation.from_spec(spec, runs=tmp_path / sort / "runs") as federation:
            found[sort] = co.Describe(epsilon=1.0).fit(federation)
    assert found["frame"] == found["server"]
    written = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert len(written) > 10
    assert not [path for path in written if SECRET.encode() in path.read_bytes()]
