"""Rows of a PostgreSQL query, streamed through a server-side cursor.

How to connect is a secret of the party's operator: a source names an environment variable or an entry of libpq's
service file, and never holds a connection string. So none can reach a configuration, a log or a run folder; what
libpq says about a failed connection is not repeated either, only its cause.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import pandas as pd

from colonnade.data.sources import ROWS, positions
from colonnade.errors import SourceError

if TYPE_CHECKING:
    import psycopg

PATIENCE = 10
"""Seconds to wait for a connection, unless the connection string says otherwise."""

_WHOLE, _REAL, _TRUTH = {20, 21, 23}, {700, 701}, {16}  # int8, int2, int4; float4, float8; bool
_NUMERIC = 1700
_DATES = {1082, 1114, 1184}  # date, timestamp, timestamptz
_TEXT = {18, 19, 25, 1042, 1043, 2950}  # "char", name, text, bpchar, varchar, uuid
_CAUSES = {
    r"could not translate host name|name or service not known": "the host is not known",
    r"connection refused": "nothing listens at that host and port",
    r"timeout": "the server did not answer in time",
    r"no such file or directory": "there is no socket or file with that name",
    r"password|authentication": "the server did not accept user and password",
    r"role .* does not exist": "the server does not know that user",
    r"database .* does not exist": "the server has no such database",
    r"service .* not found|definition of service": "the service file has no such service",
    r"ssl|certificate": "the encrypted connection failed",
}


class PostgreSQLSource:
    """The rows of a query. `connect` is "env:NAME" (an environment variable with the connection string) or
    "service:NAME" (an entry of pg_service.conf).

    A block reads its source more than once and expects one order of rows: end the query with ORDER BY. Each reading is
    one read-only transaction, so it sees one state of the database.
    """

    def __init__(self, connect: str, query: str) -> None:
        kind, _, name = connect.partition(":")
        if kind not in ("env", "service") or not re.fullmatch(r"\w[\w.-]*", name):
            # The value itself may be a connection string with a password: it is not repeated.
            raise SourceError(
                'a PostgreSQL source names where the connection string is, as "env:VARIABLE" or "service:NAME" (an '
                "entry of pg_service.conf); it never holds the connection string itself."
            )
        self._kind, self._name = kind, name
        self._query = query.strip().rstrip(";")
        self.description = f"a query on PostgreSQL ({connect})"

    def _conninfo(self) -> dict[str, str]:
        if self._kind == "service":
            return {"conninfo": "", "service": self._name}
        stated = os.environ.get(self._name, "")
        if not stated:
            raise SourceError(
                f"{self.description}: the environment variable {self._name} is not set; set it to a connection string "
                'such as "host=... dbname=... user=..." where this party runs.'
            )
        return {"conninfo": stated}

    @contextmanager
    def _session(self) -> Iterator[psycopg.Connection[Any]]:
        try:
            import psycopg
        except ImportError:
            raise SourceError(
                f"{self.description} needs the package psycopg; install it with `pip install colonnade[postgresql]`."
            ) from None
        settings: dict[str, Any] = dict(self._conninfo())
        try:
            if "connect_timeout" not in psycopg.conninfo.conninfo_to_dict(settings["conninfo"]):
                settings["connect_timeout"] = PATIENCE
        except psycopg.Error:  # its sentence quotes the string, perhaps the password
            raise SourceError(
                f"{self.description}: the connection string cannot be read; write it as "
                '"host=... dbname=... user=..." or "postgresql://user@host/database".'
            ) from None
        try:
            connection = psycopg.connect(**settings, application_name="colonnade")
        except psycopg.Error as error:
            raise SourceError(f"{self.description} cannot be opened: {_cause(str(error))}; see its server.") from None
        try:
            with connection:
                connection.read_only = True
                connection.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ
                # Otherwise a scan of a large table may begin where another's is, and the order of rows changes.
                connection.execute("SET LOCAL synchronize_seqscans TO off")
                yield connection
        except psycopg.Error as error:
            raise SourceError(f"{self.description} cannot be read ({_complaint(error)}); correct the query.") from None

    def _described(self, connection: psycopg.Connection[Any]) -> list[tuple[str, int]]:
        """(name, type) of each column of the result; nothing is computed."""
        described = connection.execute(f"SELECT * FROM ({self._query}\n) AS asked LIMIT 0".encode()).description
        return [(column.name, column.type_code) for column in described or ()]

    def names(self) -> list[str]:
        with self._session() as connection:
            return [name for name, _ in self._described(connection)]

    def unfit(self) -> dict[str, str]:
        """Columns of a type that is neither number, text nor truth value, with the name of the type."""
        readable = _WHOLE | _REAL | _TRUTH | _TEXT | {_NUMERIC}
        with self._session() as connection:
            types = connection.adapters.types
            described = self._described(connection)
        other = {name: types.get(code) for name, code in described if code not in readable}
        # An enumeration has a type of its own, which arrives as text.
        return {name: kind.name for name, kind in other.items() if kind is not None}

    def chunks(self, names: Sequence[str], *, rows: int = ROWS) -> Iterator[pd.DataFrame]:
        with self._session() as connection:
            described = self._described(connection)
            positions([name for name, _ in described], names, self.description)
            types = dict(described)
            selected = ", ".join('"' + name.replace('"', '""') + '"' for name in names)
            query = f"SELECT {selected} FROM ({self._query}\n) AS asked"
            # A named cursor stays at the server; with it PostgreSQL takes no parallel plan, which would mix the order.
            with connection.cursor(name="colonnade_rows", binary=True) as cursor:
                cursor.execute(query.encode())
                while batch := cursor.fetchmany(rows):
                    yield pd.DataFrame(
                        {
                            name: _series(cells, types[name])
                            for name, cells in zip(names, zip(*batch, strict=True), strict=True)
                        }
                    )


def _series(cells: Sequence[Any], code: int) -> pd.Series[Any]:
    """Integers and truth values stay exact beside gaps; text and exact decimals stay objects."""
    if code in _WHOLE:
        return pd.Series(cells, dtype="Int64")
    if code in _REAL:
        return pd.Series(cells, dtype="float64")
    if code in _TRUTH:
        return pd.Series(cells, dtype="boolean")
    if code == _NUMERIC:
        return pd.Series(cells, dtype=object)
    if code in _DATES:
        return pd.Series(cells, dtype=object)
    return pd.Series([None if cell is None else str(cell) for cell in cells], dtype="str")


def _cause(message: str) -> str:
    """Why a connection failed. libpq's own sentence names host, user and database: it is not repeated."""
    for pattern, cause in _CAUSES.items():
        if re.search(pattern, message, re.IGNORECASE):
            return cause
    return "the connection failed"


def _complaint(error: psycopg.Error) -> str:
    """What the server says of the query. Only class 42 (names, syntax, rights) speaks of the query alone; the sentence
    of any other error may quote a value."""
    if (error.sqlstate or "").startswith("42"):
        return (error.diag.message_primary or "the query is wrong").rstrip(".")
    return f"{type(error).__name__}, SQLSTATE {error.sqlstate or 'unknown'}"
