"""Durable records: private and complete files, one SQLite file, and append-only tables whose rows are chained.

The ledger and the transcript are chains. A chain row is a JSON body with the hash of the row before it, so an
edit, a deletion or a swap inside it is found by `verify`. Triggers refuse UPDATE and DELETE. The owner of the
file can still cut off its newest rows or write a new chain: closing a job hands the head of the chain to the
coordinator's run folder, and `verify(expect=...)` compares the two.

Write-ahead logging: a committed transaction survives `kill -9` and, once it is flushed, the loss of power; an
uncommitted one leaves no trace. `transaction()` flushes when it commits. `transaction(flush=False)` leaves that to the
next one that does: there is one log, its records are chained by checksums, and one flush makes all of it durable, so
what comes later can never be on the disk without what came before.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import sqlite3
import stat
import threading
import unicodedata
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from colonnade.errors import ColonnadeError, CorruptRecord, RunError, SchemaError, StorageError

GENESIS = "0" * 64


def canonical(body: Mapping[str, Any]) -> str:
    """One spelling for one value, so that a hash of it means something."""
    return json.dumps(body, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False)


# --- names that become files --------------------------------------------------------------------------------

LONGEST_NAME = 64
_PUNCTUATION = " .,_-+&'()"
_RESERVED = {"con", "prn", "aux", "nul", *(f"{port}{number}" for port in ("com", "lpt") for number in range(10))}
"""Devices of Windows, whatever follows a dot."""


def check_name(name: str, what: str, *, error: type[ColonnadeError] = SchemaError, longest: int = LONGEST_NAME) -> str:
    """The name of a party, a job or a run, if a file or a folder can be called so on every system and nowhere else than
    in the folder that it is meant for. Letters are those of any script."""
    fits = (
        0 < len(name) <= longest
        and len(name.encode("utf-8", "replace")) <= 3 * longest
        and name[0].isalnum()
        and name[-1] not in " ."
        and all(unicodedata.category(sign)[0] in "LMN" or sign in _PUNCTUATION for sign in name)
        and unicodedata.is_normalized("NFC", name)
        and name.partition(".")[0].rstrip().casefold() not in _RESERVED
    )
    if not fits:
        shown = name if len(name) <= longest else f"{name[:longest]}..."
        raise error(
            f"{what} cannot be called {shown!r}: a name has 1 to {longest} letters, digits, spaces or any of"
            f" {_PUNCTUATION.strip()}, begins with a letter or a digit, does not end with a dot or a space, and is no"
            " device of Windows such as CON."
        )
    return name


# --- private and complete files -----------------------------------------------------------------------------


def private_folder(path: Path) -> Path:
    """A folder that only its owner may enter, whatever the umask; so are those above it that are missing. One that
    exists is left as it is (`tighten` is for those)."""
    if path.is_dir():
        return path
    for folder in (*reversed(path.parents), path):
        if not folder.is_dir():
            folder.mkdir(mode=0o700, exist_ok=True)
    return path


def private_file(path: Path) -> Path:
    """A file that only its owner may read, whatever the umask; made empty if it is missing, for others to write to."""
    with contextlib.suppress(FileExistsError):
        os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600))
    _only_for_the_owner(path)
    return path


def tighten(folder: Path) -> None:
    """Make a folder and all that is in it private, as an older version or a copy may not have left it."""
    _only_for_the_owner(folder)
    for place, folders, files in os.walk(folder):
        for name in (*folders, *files):
            _only_for_the_owner(Path(place, name))


def _only_for_the_owner(path: Path) -> None:
    with contextlib.suppress(PermissionError, FileNotFoundError):  # another account's file, or gone meanwhile
        mode = path.lstat().st_mode
        if mode & 0o077 and not stat.S_ISLNK(mode):
            path.chmod(stat.S_IMODE(mode) & 0o700)


def json_object(path: Path, *, cure: str) -> dict[str, Any]:
    """What this program has written there."""
    try:
        plain = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise RunError(f"{path} cannot be read ({error}); {cure}.") from error
    if not isinstance(plain, dict):
        raise RunError(f"{path} is not a JSON object; {cure}.")
    return plain


@contextlib.contextmanager
def whole_file(path: Path, *, cure: str = "free disk space.") -> Iterator[Path]:
    """Gives the path of a private file to write to; it is then at `path` complete or not at all, also if the process
    dies. Its folder is made if it is missing."""
    partial = path.with_name(path.name + ".partial")
    try:
        private_folder(path.parent)
        yield private_file(partial)
        with partial.open("rb") as file:
            os.fsync(file.fileno())
        partial.replace(path)
    except OSError as error:
        raise StorageError(f"writing {path} failed ({error}); {cure}") from error


class Database:
    """One SQLite file with one connection, used by one thread at a time.

    With `flushed=False` no transaction is flushed: after the loss of power the newest ones may be missing. For records
    on which nobody's privacy rests.
    """

    def __init__(self, path: Path, *, read_only: bool = False, flushed: bool = True) -> None:
        self.path = path
        self.lock = threading.RLock()
        self.rollbacks = 0
        """A reader that keeps in memory what it has read inside a transaction reads again when this number changes."""
        self.flushed = flushed
        self._flushes: bool | None = None
        """What the connection was told last."""
        try:
            if read_only:
                if not path.is_file():
                    raise StorageError(f"{path} does not exist; check the path.")
                self._connection = sqlite3.connect(
                    f"{path.absolute().as_uri()}?mode=ro", uri=True, check_same_thread=False, isolation_level=None
                )
            else:
                private_folder(path.parent)
                private_file(path)  # its log and its index get the same mode
                self._connection = sqlite3.connect(path, check_same_thread=False, isolation_level=None)
                self._connection.execute("PRAGMA journal_mode = WAL")
                self._flush_at_commit(flushed)
                self._connection.execute("PRAGMA secure_delete = ON")
            self._connection.execute("PRAGMA schema_version")
        except (sqlite3.Error, OSError) as error:
            raise self._translated(error) from error

    def _translated(self, error: sqlite3.Error | OSError) -> StorageError | CorruptRecord:
        text = str(error)
        if "malformed" in text or "not a database" in text:
            return CorruptRecord(f"{self.path} is damaged ({text}); restore it from a back-up.")
        return StorageError(
            f"writing or reading {self.path} failed ({text}); free disk space or check its permissions."
        )

    @contextlib.contextmanager
    def transaction(self, *, flush: bool = True) -> Iterator[None]:
        """All or nothing when the block ends, and on the disk unless `flush=False`. Nested uses join the outer one."""
        with self.lock:
            if self._under_way():
                yield
                return
            try:
                self._flush_at_commit(flush and self.flushed)
                self._connection.execute("BEGIN IMMEDIATE")
                yield
                self._connection.execute("COMMIT")
            except BaseException as error:
                self.rollbacks += 1
                if self._under_way():
                    with contextlib.suppress(sqlite3.Error):
                        self._connection.execute("ROLLBACK")
                if isinstance(error, sqlite3.Error):
                    raise self._translated(error) from error
                raise
            finally:
                if not flush:
                    with contextlib.suppress(sqlite3.Error):  # the next transaction sets it before it begins
                        self._flush_at_commit(self.flushed)

    def _flush_at_commit(self, wanted: bool) -> None:
        """In write-ahead mode FULL flushes the log at every commit, NORMAL only before it is written back."""
        if wanted != self._flushes:
            self._connection.execute(f"PRAGMA synchronous = {'FULL' if wanted else 'NORMAL'}")
            self._flushes = wanted

    def _under_way(self) -> bool:
        return self._connection.in_transaction

    def execute(self, sql: str, values: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
        with self.lock:
            try:
                return self._connection.execute(sql, values).fetchall()
            except sqlite3.Error as error:
                raise self._translated(error) from error

    def execute_each(self, sql: str, rows: Iterable[tuple[Any, ...]]) -> None:
        """One statement that gives nothing, for each row of values."""
        with self.lock:
            try:
                self._connection.executemany(sql, rows)
            except sqlite3.Error as error:
                raise self._translated(error) from error

    def flush(self) -> None:
        """Everything that was committed, on the disk and out of the log, unless another connection reads just now."""
        self.execute("PRAGMA wal_checkpoint(TRUNCATE)")

    def close(self) -> None:
        self._connection.close()


@dataclass(frozen=True)
class Row:
    """One row of a chain."""

    number: int
    body: dict[str, Any]
    previous: str
    hash: str


@dataclass(frozen=True)
class Head:
    """How long a chain is, and the hash of its last row."""

    rows: int
    hash: str


class Chain:
    """An append-only table in a database; `indexed` body fields can be looked up quickly."""

    def __init__(self, database: Database, table: str, *, indexed: tuple[str, ...] = (), create: bool = True) -> None:
        self.database = database
        self.table = table
        self._indexed = indexed
        if create:
            self._create()

    def _create(self) -> None:
        fields = "".join(
            f", {name} GENERATED ALWAYS AS (json_extract(body, '$.{name}')) VIRTUAL" for name in self._indexed
        )
        with self.database.transaction():
            self.database.execute(
                f"CREATE TABLE IF NOT EXISTS {self.table} (number INTEGER PRIMARY KEY, body TEXT NOT NULL,"
                f" previous TEXT NOT NULL, hash TEXT NOT NULL UNIQUE{fields})"
            )
            for name in self._indexed:
                self.database.execute(f"CREATE INDEX IF NOT EXISTS {self.table}_{name} ON {self.table} ({name})")
            for verb in ("UPDATE", "DELETE"):
                self.database.execute(
                    f"CREATE TRIGGER IF NOT EXISTS {self.table}_no_{verb.lower()} BEFORE {verb} ON {self.table}"
                    f" BEGIN SELECT RAISE(ABORT, '{self.table} is append-only'); END"
                )

    def head(self) -> Head:
        rows = self.database.execute(f"SELECT number, hash FROM {self.table} ORDER BY number DESC LIMIT 1")
        return Head(rows[0][0], rows[0][1]) if rows else Head(0, GENESIS)

    def append(self, *bodies: Mapping[str, Any]) -> Head:
        """New rows, all or none; returns the head that they leave."""
        with self.database.transaction():
            head, rows = self.head(), []
            for body in bodies:
                text, number = canonical(body), head.rows + 1
                hashed = _link(number, head.hash, text)
                rows.append((number, text, head.hash, hashed))
                head = Head(number, hashed)
            self.database.execute_each(
                f"INSERT INTO {self.table} (number, body, previous, hash) VALUES (?, ?, ?, ?)", rows
            )
            return head

    def rows(self, *, after: int = 0, **where: Any) -> list[Row]:
        """Rows in order, those `after` a number, restricted to indexed fields that equal the given values."""
        condition = " AND ".join(["number > ?", *(f"{name} = ?" for name in where)])
        rows = self.database.execute(
            f"SELECT number, body, previous, hash FROM {self.table} WHERE {condition} ORDER BY number",
            (after, *where.values()),
        )
        return [Row(number, json.loads(body), previous, hashed) for number, body, previous, hashed in rows]

    def texts(self) -> list[tuple[int, str, str, str]]:
        """All rows as they are stored: number, body, hash of the row before, own hash."""
        stored = self.database.execute(f"SELECT number, body, previous, hash FROM {self.table} ORDER BY number")
        return [(number, body, previous, hashed) for number, body, previous, hashed in stored]

    def guarded(self) -> bool:
        """Whether the triggers that keep the table append-only are there."""
        names = {name for (name,) in self.database.execute("SELECT name FROM sqlite_master WHERE type = 'trigger'")}
        return {f"{self.table}_no_update", f"{self.table}_no_delete"} <= names

    def verify(self, *, expect: Head | None = None) -> Head:
        """Recompute every link; with `expect`, the chain must still contain that head."""
        hashes = linked(self.texts(), f"{self.table} in {self.database.path}")
        if expect is not None and expect.rows and hashes.get(expect.rows) != expect.hash:
            raise CorruptRecord(
                f"{self.table} in {self.database.path} no longer contains the head that was handed out earlier: rows"
                " were cut off or rewritten; restore the file from a back-up."
            )
        return Head(len(hashes), hashes.get(len(hashes), GENESIS))


def linked(rows: Iterable[tuple[int, str, str, str]], where: str) -> dict[int, str]:
    """{number: hash} of the rows of a chain (`Chain.texts`), if each follows from the one before it."""
    hashes: dict[int, str] = {}
    for number, text, stated, hashed in rows:
        previous = hashes.get(len(hashes), GENESIS)
        if number != len(hashes) + 1 or stated != previous or hashed != _link(number, previous, text):
            raise CorruptRecord(
                f"row {len(hashes) + 1} of {where} does not follow from the row before it: the file was changed;"
                " restore it from a back-up and compare."
            )
        hashes[number] = hashed
    return hashes


def _link(number: int, previous: str, text: str) -> str:
    return hashlib.sha256(f"{number}\n{previous}\n{text}".encode()).hexdigest()
