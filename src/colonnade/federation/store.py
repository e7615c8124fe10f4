"""What a party must remember: approved jobs, the replies it has given, and what its steps keep between requests.

A step's reply, its peer messages and everything it keeps are committed in **one** transaction before the first
byte is sent. So a reply that left is on disk, and a reply that is not on disk never left: the request can be
answered again, with new noise, without releasing anything twice.

Large payloads are spooled to files named by their hash; closing a job shrinks its replies to their hashes.
"""

from __future__ import annotations

import hashlib
import json
import os
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from colonnade.durable import Database
from colonnade.errors import CorruptRecord, StorageError
from colonnade.federation import wire

SPOOL_ABOVE = 1 << 18
"""Larger payloads are files of their own. In the database they would be written twice, to its log and from there, and
leave it as large as all of a job's replies together when these are forgotten: hundreds of megabytes of a training."""

JobState = Literal["waiting", "approved", "denied", "closed"]
Maker = Literal["policy", "operator"]


@dataclass(frozen=True)
class StoredJob:
    job: str
    proposal: str
    content: bytes
    state: JobState


@dataclass(frozen=True)
class StoredReply:
    request: str
    reply: bytes | None
    """None after the job was closed: only the hash is left."""


class Store:
    """Tables beside the ledger and the transcript, in the same database."""

    def __init__(self, database: Database, spool: Path) -> None:
        self.database = database
        self._spool = spool
        with database.transaction():
            database.execute(
                "CREATE TABLE IF NOT EXISTS jobs (job TEXT PRIMARY KEY, proposal TEXT NOT NULL, content BLOB NOT NULL,"
                " state TEXT NOT NULL)"
            )
            database.execute(
                "CREATE TABLE IF NOT EXISTS replies (job TEXT, seq INTEGER, request TEXT NOT NULL, hash TEXT NOT NULL,"
                " inline BLOB, PRIMARY KEY (job, seq))"
            )
            database.execute(
                "CREATE TABLE IF NOT EXISTS kept (job TEXT, name TEXT, hash TEXT NOT NULL, inline BLOB,"
                " PRIMARY KEY (job, name))"
            )
            database.execute(
                "CREATE TABLE IF NOT EXISTS decisions (job TEXT PRIMARY KEY, maker TEXT NOT NULL, time REAL NOT NULL,"
                " offered TEXT)"
            )
            database.execute(
                "CREATE TABLE IF NOT EXISTS letters (job TEXT, sender TEXT, seq INTEGER NOT NULL,"
                " PRIMARY KEY (job, sender))"
            )

    # jobs

    def job(self, job: str) -> StoredJob | None:
        rows = self.database.execute("SELECT job, proposal, content, state FROM jobs WHERE job = ?", (job,))
        return StoredJob(*rows[0]) if rows else None

    def state(self, job: str) -> JobState | None:
        rows = self.database.execute("SELECT state FROM jobs WHERE job = ?", (job,))
        return rows[0][0] if rows else None

    def jobs(self) -> list[StoredJob]:
        return [StoredJob(*row) for row in self.database.execute("SELECT job, proposal, content, state FROM jobs")]

    def add_job(self, job: str, proposal: str, content: bytes, state: JobState) -> None:
        self.database.execute("INSERT INTO jobs VALUES (?, ?, ?, ?)", (job, proposal, content, state))

    def set_state(self, job: str, state: JobState) -> None:
        self.database.execute("UPDATE jobs SET state = ? WHERE job = ?", (state, job))

    def decided(self, job: str, maker: Maker, offered: Sequence[str] | None) -> None:
        """Note who decided a job, and the columns that it may read (None: all declared ones)."""
        listed = None if offered is None else json.dumps(list(offered))
        self.database.execute("INSERT INTO decisions VALUES (?, ?, ?, ?)", (job, maker, time.time(), listed))

    def decision(self, job: str) -> tuple[Maker, float] | None:
        """Who decided a job, and when."""
        rows = self.database.execute("SELECT maker, time FROM decisions WHERE job = ?", (job,))
        return (rows[0][0], float(rows[0][1])) if rows else None

    def offered(self, job: str) -> tuple[str, ...] | None:
        rows = self.database.execute("SELECT offered FROM decisions WHERE job = ?", (job,))
        return None if not rows or rows[0][0] is None else tuple(json.loads(rows[0][0]))

    # replies

    def reply(self, job: str, seq: int) -> StoredReply | None:
        rows = self.database.execute("SELECT request, hash, inline FROM replies WHERE job = ? AND seq = ?", (job, seq))
        if not rows:
            return None
        request, hashed, inline = rows[0]
        return StoredReply(request, None if self.state(job) == "closed" else self._fetch(hashed, inline))

    def add_reply(self, job: str, seq: int, request: str, reply: bytes) -> str:
        """Returns the hash of the reply."""
        hashed, inline = self._put(reply)
        self.database.execute("INSERT INTO replies VALUES (?, ?, ?, ?, ?)", (job, seq, request, hashed, inline))
        return hashed

    # what steps keep

    def keep(self, job: str, name: str, value: Any) -> None:
        hashed, inline = self._put(wire.encode(value))
        self.database.execute("INSERT OR REPLACE INTO kept VALUES (?, ?, ?, ?)", (job, name, hashed, inline))

    def recall(self, job: str, name: str) -> Any:
        rows = self.database.execute("SELECT hash, inline FROM kept WHERE job = ? AND name = ?", (job, name))
        if not rows:
            raise KeyError(name)
        return wire.decode(self._fetch(*rows[0]))

    def kept_names(self, job: str) -> list[str]:
        return [name for (name,) in self.database.execute("SELECT name FROM kept WHERE job = ? ORDER BY name", (job,))]

    # mail that was read

    def letters(self, job: str) -> dict[str, int]:
        """{sender: the request in which it wrote the newest of its letters that were read here}."""
        return dict(self.database.execute("SELECT sender, seq FROM letters WHERE job = ?", (job,)))

    def add_letters(self, job: str, newest: Mapping[str, int]) -> None:
        for sender, seq in newest.items():
            self.database.execute("INSERT OR REPLACE INTO letters VALUES (?, ?, ?)", (job, sender, seq))

    # closing

    def close_job(self, job: str) -> None:
        """Forget payloads, keep hashes. What steps kept (shares, say) is overwritten in the database and its log.

        Replies are not: they are what left anyway, or sealed, and overwriting takes as long as writing did. Spooled
        files are deleted.
        """
        self._forget([job])
        self.sweep()

    def close_open_jobs(self) -> list[str]:
        """Close every job that is not over, in a copy of the records: it cannot know what was answered since."""
        open_jobs = [stored.job for stored in self.jobs() if stored.state in ("waiting", "approved")]
        self._forget(open_jobs)
        return open_jobs

    def _forget(self, jobs: Sequence[str]) -> None:
        with self.database.transaction():
            for job in jobs:
                self.set_state(job, "closed")
                self.database.execute("PRAGMA secure_delete = FAST")
                self.database.execute("UPDATE replies SET inline = NULL WHERE job = ?", (job,))
                self.database.execute("PRAGMA secure_delete = ON")
                self.database.execute("DELETE FROM kept WHERE job = ?", (job,))
                self.database.execute("DELETE FROM letters WHERE job = ?", (job,))
        self.database.flush()  # the log holds copies of what was kept

    def sweep(self) -> None:
        """Delete spooled files that no open job refers to (also those of a step that was killed)."""
        if not self._spool.is_dir():
            return
        wanted = {
            hashed
            for table in ("replies", "kept")
            for (hashed,) in self.database.execute(
                f"SELECT hash FROM {table} JOIN jobs USING (job) WHERE jobs.state != 'closed' AND inline IS NULL"
            )
        }
        for path in self._spool.iterdir():
            if path.name not in wanted:
                path.unlink()

    # payloads

    def _put(self, payload: bytes) -> tuple[str, bytes | None]:
        hashed = hashlib.sha256(payload).hexdigest()
        if len(payload) <= SPOOL_ABOVE:
            return hashed, payload
        path = self._spool / hashed
        try:
            self._spool.mkdir(parents=True, exist_ok=True)
            partial = path.with_suffix(".partial")
            with partial.open("wb") as file:
                file.write(payload)
                file.flush()
                if self.database.flushed:
                    os.fsync(file.fileno())
            partial.rename(path)
            if self.database.flushed:
                _flush_folder(self._spool)
        except OSError as error:
            raise StorageError(
                f"spooling {len(payload)} bytes to {self._spool} failed ({error}); free disk space."
            ) from error
        return hashed, None

    def _fetch(self, hashed: str, inline: bytes | None) -> bytes:
        try:
            payload = inline if inline is not None else (self._spool / hashed).read_bytes()
        except OSError as error:
            raise CorruptRecord(
                f"a spooled payload is gone from {self._spool} ({error}); restore it from a back-up."
            ) from error
        if hashlib.sha256(payload).hexdigest() != hashed:
            raise CorruptRecord(f"a stored payload in {self.database.path} was changed; restore it from a back-up.")
        return payload


def _flush_folder(path: Path) -> None:
    """A new name in a folder is on the disk only when the folder is."""
    folder = os.open(path, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)
