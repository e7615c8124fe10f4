"""Where a party or a run keeps its records, opened for reading only."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Literal

import typer

from colonnade.durable import Chain, Database, Head
from colonnade.errors import CorruptRecord, RunError, StorageError

Record = Literal["ledger", "transcript"]
Run = Annotated[
    Path | None,
    typer.Option(
        "--run", help="Also compare with what this party told that run when the run ended.", show_default=False
    ),
]


@contextlib.contextmanager
def opened(path: Path, record: Record) -> Iterator[Database]:
    """The database of a party's folder or a run folder, or a database file itself."""
    file = next((path / name for name in ("party.db", "transcript.db") if (path / name).is_file()), path)
    if not file.is_file():
        raise StorageError(f"{path} holds no {record}; name a party's folder, a run folder or a database file.")
    with contextlib.closing(Database(file, read_only=True)) as database:
        names = {name for (name,) in database.execute("SELECT name FROM sqlite_master")}
        if record not in names:
            raise StorageError(f"{file} holds no {record}; name the party's own folder.")
        if not Chain(database, record, create=False).guarded():
            raise CorruptRecord(
                f"{file} was changed: what keeps its {record} append-only is gone; restore it from a back-up."
            )
        yield database


def home_of(path: Path) -> Path:
    """The party's folder."""
    return path if path.is_dir() else path.parent


def party_of(path: Path) -> str:
    """Whose records these are."""
    from colonnade.federation.home import Home

    return str(Home(path=home_of(path)).settings()["name"])


def handed_out(path: Path, record: Record, run: Path | None) -> Head | None:
    """The head of the chain that the party handed to a run when the run ended."""
    if run is None:
        return None
    from colonnade.federation.run_folder import RunFolder

    party = party_of(path)
    heads = RunFolder.open(run).read_json("costs.json")["heads"]
    if party not in heads:
        raise RunError(f"party {party!r} took no part in {run}; name a run of this party.")
    return Head(**heads[party][record])
