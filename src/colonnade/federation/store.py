"""What a party must remember: approved jobs, the replies it has given, and what its steps keep between requests.

A step's reply, its peer messages and everything it keeps are committed in **one** transaction before the first
byte is sent. So a reply that left is on disk, and a reply that is not on disk never left: the request can be
answered again, with new noise, without releasing anything twice.

Large payloads are spooled to files named by a checksum; closing a job forgets its replies. The transcript has their
hashes.
"""

from __future__ import annotations

import errno
import hashlib
import json
import math
import mmap
import os
import shutil
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from colonnade.durable import Database, private_file, private_folder
from colonnade.errors import CorruptRecord, NotApproved, StorageError
from colonnade.federation import wire

SPOOL_ABOVE = 1 << 18
"""Larger payloads are files of their own. In the database they would be written twice, to its log and from there, and
leave it as large as all of a job's replies together when these are forgotten: hundreds of megabytes of a training."""

BUFFER = 1 << 21
"""Bytes that go to the disk at a time where they are not copied to the system's cache."""

JobState = Literal["waiting", "approved", "denied", "closed", "ended"]
"""Closed by the coordinator, or ended by this party itself before that: both are over."""
OVER: tuple[JobState, ...] = ("closed", "ended")
NOT_OVER = "state NOT IN ('closed', 'ended')"
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


@dataclass(frozen=True)
class _Names:
    rollbacks: int
    kept: set[str]
    sent: set[tuple[str, str]]


class Store:
    """Tables beside the ledger and the transcript, in the same database."""

    def __init__(self, database: Database, spool: Path) -> None:
        self.database = database
        self._spool = spool
        self._names: dict[str, _Names] = {}
        """{job: what is under way here}; a step asks for many names, and most are not there."""
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
                "CREATE TABLE IF NOT EXISTS votes (job TEXT, operator TEXT, time REAL NOT NULL,"
                " PRIMARY KEY (job, operator))"
            )
            database.execute("CREATE INDEX IF NOT EXISTS jobs_state ON jobs (state)")
            database.execute("CREATE TABLE IF NOT EXISTS begun (job TEXT PRIMARY KEY, time REAL NOT NULL)")
            # Jobs of a version that noted no time begin now.
            database.execute("INSERT OR IGNORE INTO begun SELECT job, ? FROM jobs", (time.time(),))
            database.execute(
                "CREATE TABLE IF NOT EXISTS ended (job TEXT PRIMARY KEY, maker TEXT NOT NULL, time REAL NOT NULL)"
            )
            database.execute(
                "CREATE TABLE IF NOT EXISTS letters (job TEXT, sender TEXT, seq INTEGER NOT NULL,"
                " PRIMARY KEY (job, sender))"
            )
            database.execute(
                "CREATE TABLE IF NOT EXISTS sent (job TEXT, recipient TEXT, tag TEXT,"
                " PRIMARY KEY (job, recipient, tag)) WITHOUT ROWID"
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
        self.database.execute("INSERT OR REPLACE INTO begun VALUES (?, ?)", (job, time.time()))

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

    def vote(self, job: str, operator: str) -> int:
        """Note that an operator approves a job; how many do."""
        self.database.execute("INSERT OR IGNORE INTO votes VALUES (?, ?, ?)", (job, operator, time.time()))
        return int(self.database.execute("SELECT COUNT(*) FROM votes WHERE job = ?", (job,))[0][0])

    def offered(self, job: str) -> tuple[str, ...] | None:
        rows = self.database.execute("SELECT offered FROM decisions WHERE job = ?", (job,))
        return None if not rows or rows[0][0] is None else tuple(json.loads(rows[0][0]))

    # replies

    def reply(self, job: str, seq: int) -> StoredReply | None:
        rows = self.database.execute("SELECT request, hash, inline FROM replies WHERE job = ? AND seq = ?", (job, seq))
        if not rows:
            return None
        request, hashed, inline = rows[0]
        return StoredReply(request, None if self.state(job) in OVER else self._fetch(hashed, inline))

    def add_reply(self, job: str, seq: int, request: str, reply: bytes) -> None:
        checksum, inline = self._put(reply, cached=False)
        self.database.execute("INSERT INTO replies VALUES (?, ?, ?, ?, ?)", (job, seq, request, checksum, inline))

    # what steps keep

    def keep(self, job: str, name: str, value: Any, *, cached: bool = True) -> None:
        """`cached`: whether it is likely to be read again while this process lives."""
        hashed, inline = self._put(wire.encode(value), cached=cached)
        self.database.execute("INSERT OR REPLACE INTO kept VALUES (?, ?, ?, ?)", (job, name, hashed, inline))
        self._named(job).kept.add(name)

    def recall(self, job: str, name: str) -> Any:
        rows = self.database.execute("SELECT hash, inline FROM kept WHERE job = ? AND name = ?", (job, name))
        if not rows:
            raise KeyError(name)
        return wire.decode(self._fetch(*rows[0]))

    def keeps(self, job: str, name: str) -> bool:
        return name in self._named(job).kept

    # mail that was read

    def letters(self, job: str) -> dict[str, int]:
        """{sender: the request in which it wrote the newest of its letters that were read here}."""
        return dict(self.database.execute("SELECT sender, seq FROM letters WHERE job = ?", (job,)))

    def add_letters(self, job: str, newest: Mapping[str, int]) -> None:
        rows = [(job, sender, seq) for sender, seq in newest.items()]
        self.database.execute_each("INSERT OR REPLACE INTO letters VALUES (?, ?, ?)", rows)

    # mail that was sent

    def sent(self, job: str, recipient: str, tag: str) -> bool:
        """Whether a request of this job that was answered sent something to this member under this tag."""
        return (recipient, tag) in self._named(job).sent

    def add_sent(self, job: str, messages: Iterable[tuple[str, str]]) -> None:
        """{(recipient, tag)} of one request."""
        self._named(job).sent.update(messages := list(messages))
        self.database.execute_each("INSERT INTO sent VALUES (?, ?, ?)", [(job, *message) for message in messages])

    # names, in memory

    def _named(self, job: str) -> _Names:
        """Read once, and again after a transaction that failed: what it had added is not there."""
        known = self._names.get(job)
        if known is None or known.rollbacks != self.database.rollbacks:
            kept = self.database.execute("SELECT name FROM kept WHERE job = ?", (job,))
            sent = self.database.execute("SELECT recipient, tag FROM sent WHERE job = ?", (job,))
            known = self._names[job] = _Names(self.database.rollbacks, {name for (name,) in kept}, set(sent))
        return known

    # closing

    def forget(self, job: str) -> None:
        """The first half of closing a job, which may be part of a transaction: payloads go, hashes stay. What steps
        kept (shares, say) is overwritten. Replies are not: they are what left anyway, or sealed, and overwriting takes
        as long as writing did."""
        self._forget([job], "ended" if self.state(job) == "ended" else "closed")

    def clear(self, job: str) -> None:
        """The second half, once that is committed: what was kept is overwritten in the database's log too; spooled
        files are deleted, and what steps left in their scratch folder."""
        self.database.flush()
        self.sweep()
        shutil.rmtree(self.scratch(job), ignore_errors=True)

    def end_job(self, job: str, maker: Maker) -> None:
        """Close a job by this party itself; the party may be serving in another process."""
        with self.database.transaction():
            if self.state(job) not in ("waiting", "approved"):
                raise NotApproved(f"job {job} is not under way here; those that are: {', '.join(self.open_jobs())}.")
            spooled = self._spooled("job = ?", (job,))
            self.database.execute("INSERT OR REPLACE INTO ended VALUES (?, ?, ?)", (job, maker, time.time()))
            self._forget([job], "ended")
        self.database.flush()
        for name in spooled - self._spooled(NOT_OVER):
            (self._spool / name).unlink(missing_ok=True)
        shutil.rmtree(self.scratch(job), ignore_errors=True)

    def ended(self, job: str) -> tuple[Maker, float] | None:
        """Who ended a job before it was closed, and when."""
        rows = self.database.execute("SELECT maker, time FROM ended WHERE job = ?", (job,))
        return (rows[0][0], float(rows[0][1])) if rows else None

    def begun(self, job: str) -> float:
        """When a job was proposed here."""
        rows = self.database.execute("SELECT time FROM begun WHERE job = ?", (job,))
        return float(rows[0][0]) if rows else 0.0

    def open_jobs(self, *, before: float | None = None) -> list[str]:
        """Jobs that are not over: all, or those that began before a time."""
        latest = math.inf if before is None else before
        rows = self.database.execute(
            "SELECT job FROM jobs JOIN begun USING (job) WHERE state IN ('waiting', 'approved') AND time < ?", (latest,)
        )
        return [job for (job,) in rows]

    def scratch(self, job: str) -> Path:
        """The folder for what steps of a job can make again."""
        return self._spool.parent / "scratch" / hashlib.sha256(job.encode()).hexdigest()[:32]

    def close_open_jobs(self) -> list[str]:
        """Close every job that is not over, in a copy of the records: it cannot know what was answered since."""
        open_jobs = self.open_jobs()
        self._forget(open_jobs, "closed")
        self.database.flush()
        return open_jobs

    def _forget(self, jobs: Sequence[str], state: JobState) -> None:
        with self.database.transaction():
            for job in jobs:
                self._names.pop(job, None)
                self.set_state(job, state)
                self.database.execute("PRAGMA secure_delete = FAST")
                self.database.execute("UPDATE replies SET inline = NULL WHERE job = ?", (job,))
                self.database.execute("PRAGMA secure_delete = ON")
                self.database.execute("DELETE FROM kept WHERE job = ?", (job,))
                self.database.execute("DELETE FROM letters WHERE job = ?", (job,))
                self.database.execute("DELETE FROM sent WHERE job = ?", (job,))

    def sweep(self) -> None:
        """Delete spooled files that no open job refers to (also those of a step that was killed)."""
        if not self._spool.is_dir():
            return
        wanted = self._spooled(NOT_OVER)
        for path in self._spool.iterdir():
            if path.name not in wanted:
                path.unlink()

    def _spooled(self, condition: str, values: tuple[Any, ...] = ()) -> set[str]:
        """The files that replies and kept values of these jobs are in."""
        return {
            hashed
            for table in ("replies", "kept")
            for (hashed,) in self.database.execute(
                f"SELECT hash FROM {table} JOIN jobs USING (job) WHERE inline IS NULL AND {condition}", values
            )
        }

    # payloads

    @cached_property
    def _aligned(self) -> mmap.mmap:
        return mmap.mmap(-1, BUFFER)

    def _put(self, payload: bytes, *, cached: bool) -> tuple[str, bytes | None]:
        hashed = _checksum(payload)
        if len(payload) <= SPOOL_ABOVE:
            return hashed, payload
        path = self._spool / hashed
        try:
            private_folder(self._spool)
            partial = path.with_suffix(".partial")
            direct = (
                self.database.flushed and not cached and _write_directly(private_file(partial), payload, self._aligned)
            )
            if not direct:
                with private_file(partial).open("wb") as file:
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
        if _checksum(payload, hashed) != hashed:
            raise CorruptRecord(f"a stored payload in {self.database.path} was changed; restore it from a back-up.")
        return payload


def _checksum(payload: bytes, earlier: str = "") -> str:
    """A fresh key (or that of an earlier checksum) and the payload's AES-GMAC under it: it finds damage nine times as
    fast as a hash. What others may hold against this party is hashed in the transcript."""
    key = bytes.fromhex(earlier[:64]) or os.urandom(32)
    return (key + AESGCM(key).encrypt(bytes(12), b"", payload)).hex()


def _write_directly(path: Path, payload: bytes, buffer: mmap.mmap) -> bool:
    """Write a file without a copy in the system's cache, and flush it; False if this system or its disk cannot. Fresh
    memory for a copy that is read only after a failure costs more than the writing: 16 MB took 3 ms of CPU time
    directly, and 5 to 40 ms through the cache (measured). `buffer` begins at a page, as such a write must."""
    if not hasattr(os, "O_DIRECT"):
        return False
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_DIRECT)
    except OSError:
        return False
    try:
        with memoryview(payload) as rest:
            for start in range(0, len(rest), len(buffer)):
                piece = rest[start : start + len(buffer)]
                buffer[: len(piece)] = piece
                pages = -(-len(piece) // mmap.PAGESIZE) * mmap.PAGESIZE
                buffer[len(piece) : pages] = bytes(pages - len(piece))  # nothing older behind the end of the file
                with memoryview(buffer) as aligned:
                    if os.write(descriptor, aligned[:pages]) < pages:
                        return False
        os.ftruncate(descriptor, len(payload))
        os.fsync(descriptor)
    except OSError as error:
        if error.errno == errno.EINVAL:
            return False
        raise
    finally:
        os.close(descriptor)
    return True


def _flush_folder(path: Path) -> None:
    """A new name in a folder is on the disk only when the folder is."""
    folder = os.open(path, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)
