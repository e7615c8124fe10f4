"""Back-up of a party's records, and what an older copy of them must make up for.

A ledger that was restored from a back-up has forgotten what was spent since: the budget would be spent again. So the
coordinator tells each party, when it greets it, the head of the ledger that the party handed to its newest run, when
that was proposed and again when it ended (`run_folder.newest_heads`). A party whose ledger does not contain it refuses
to work. `recover` then reserves again what the run folders say was planned, and notes the head that it answers for.
"""

from __future__ import annotations

import contextlib
import os
import sqlite3
import time
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

from colonnade.durable import Database, Head, private_file, private_folder
from colonnade.errors import CorruptRecord, RunError, StorageError
from colonnade.federation.home import Home
from colonnade.federation.messages import Transcript
from colonnade.federation.policy import reservations
from colonnade.federation.run_folder import RunFolder
from colonnade.federation.store import Store
from colonnade.privacy.ledger import Ledger

DATABASE = "party.db"


@contextlib.contextmanager
def _translated(what: str) -> Iterator[None]:
    try:
        yield
    except (sqlite3.Error, OSError) as error:
        raise StorageError(f"{what} failed ({error}); check paths, permissions and disk space.") from error


def verify(path: Path) -> tuple[Head, Head]:
    """The heads of ledger and transcript of a database whose chains are intact."""
    with closing(Database(path, read_only=True)) as database:
        ledger, transcript = Ledger(database, create=False), Transcript(database, create=False)
        for chain in (ledger.chain, transcript.chain):
            if not chain.guarded():
                raise CorruptRecord(f"{path} is not a party's record, or it was changed; take another back-up.")
        return ledger.verify(), transcript.verify()


def backup(home: Path, out: Path) -> Head:
    """A copy of the party's records as of one moment, while the party may be serving; verified before it counts."""
    source = home / DATABASE
    if not source.is_file():
        raise RunError(f"{home} has no {DATABASE}: this party has not served yet.")
    if out.exists():
        raise StorageError(f"{out} exists already and is not overwritten; name a new file.")
    partial = out.with_name(out.name + ".partial")
    with _translated(f"backing {source} up to {out}"):
        out.parent.mkdir(parents=True, exist_ok=True)
        partial.unlink(missing_ok=True)
        private_file(partial)
        with (
            closing(sqlite3.connect(f"{source.absolute().as_uri()}?mode=ro", uri=True)) as live,
            closing(sqlite3.connect(partial)) as copy,
        ):
            live.backup(copy)
            copy.execute("PRAGMA journal_mode = DELETE")  # one file, with nothing left beside it
    head, _ = verify(partial)
    with _translated(f"writing {out}"):
        with partial.open("rb") as file:
            os.fsync(file.fileno())
        partial.rename(out)
    return head


def restore(copy: Path, home: Path) -> tuple[Head, Path | None]:
    """Put a verified copy in the place of the party's records, which are kept beside it under another name.

    Jobs that were under way when the copy was made are closed in it: it has forgotten what it answered since, and would
    answer again, with new noise, under a reservation that counts once.
    """
    head, _ = verify(copy)
    target = home / DATABASE
    replaced: Path | None = None
    with _translated(f"restoring {copy} to {target}"):
        private_folder(home)
        if target.exists():
            _check_idle(target)
            replaced = home / f"{DATABASE}.replaced-{time.strftime('%Y%m%d-%H%M%S')}"
            target.rename(replaced)
            for ending in ("-wal", "-shm"):  # they belong to the file that goes
                beside = target.with_name(target.name + ending)
                if beside.exists():
                    beside.rename(replaced.with_name(replaced.name + ending))
        partial = home / f"{DATABASE}.partial"
        private_file(partial).write_bytes(copy.read_bytes())
        with closing(Database(partial)) as database:
            Store(database, home / "spool").close_open_jobs()
        with partial.open("rb") as file:
            os.fsync(file.fileno())
        partial.rename(target)
    return head, replaced


def _check_idle(database: Path) -> None:
    """Refuse while another process has the records open."""
    with contextlib.closing(sqlite3.connect(database, timeout=1.0, isolation_level=None)) as probe:
        try:
            probe.execute("PRAGMA locking_mode = EXCLUSIVE")
            probe.execute("BEGIN EXCLUSIVE")
            probe.execute("COMMIT")
        except sqlite3.OperationalError as error:
            raise RunError(f"{database} is in use ({error}); stop `colonnade party serve` first.") from error
        except sqlite3.DatabaseError:
            return  # damaged: that is why it is restored


@dataclass(frozen=True)
class Recovered:
    job: str
    run: Path
    stages: int


def recover(home: Path, party: str, runs: Path) -> list[Recovered]:
    """Reserve again, from the coordinator's run folders, what this ledger has forgotten.

    A run that did not end counts in full too, even where it was never approved here: too much rather than too little.
    """
    recovered: list[Recovered] = []
    roster, _ = Home(path=home).pinned()
    with closing(Database(home / DATABASE)) as database:
        ledger = Ledger(database)
        ledger.verify()
        for folder in sorted(path for path in runs.iterdir() if (path / "job.json").is_file()):
            run = RunFolder.open(folder, older=True)
            plan = run.plan()
            mine = reservations(party, run.job["job"], plan, roster)
            if not mine:
                continue
            head = run.heads().get(party)
            counted = bool(ledger.chain.rows(kind="reserve", job=run.job["job"]))
            if counted and (head is None or ledger.contains(head)):
                continue
            ledger.make_up(run.job["job"], [] if counted else mine, lost=head)
            recovered.append(Recovered(run.job["job"], folder, 0 if counted else len(mine)))
    return recovered
