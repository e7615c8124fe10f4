"""`colonnade init`: from the parties' tables to a folder in which every verb works."""

from __future__ import annotations

import os
import re
import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from colonnade.cli.output import Output
from colonnade.errors import BadArguments, SchemaError

TABLE = (
    "A CSV or Parquet file, a table of a DuckDB file as FILE.duckdb:TABLE, or a .toml file with a field `source`, such"
    " as a party.toml (`colonnade docs sources`)."
)


def init(
    files: Annotated[
        list[str],
        typer.Argument(
            metavar="[NAME=]FILE", help=f"One table for each party, named by its file. {TABLE}", show_default=False
        ),
    ],
    key: Annotated[
        list[str],
        typer.Option("--key", help="The column that identifies a record; repeated for several.", show_default=False),
    ],
    out: Annotated[Path, typer.Option("--out", metavar="FOLDER", help="Where to write.")] = Path(),
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Confirm every domain as it is read off the data.")] = False,
) -> None:
    """Draft the columns of one or several parties' tables, and a federation of them.

    Writes columns.toml, init.html (what was found, column by column, for the owner alone) and with several tables
    federation.toml. Every domain is a draft, which private methods refuse, until a person has put a public fact in its
    place, or --yes confirms all of them as they are. In that folder every verb works then.
    """
    from colonnade.catalogue import WITHOUT_BOUND
    from colonnade.data.draft import SAID_YES, draft
    from colonnade.federation.config import federation_text
    from colonnade.view.render import view_page

    output = Output()
    sources = tables(files)
    targets = ["columns.toml", "init.html", *(["federation.toml"] if len(sources) > 1 else [])]
    taken = [name for name in targets if (out / name).exists()]
    if taken:
        raise BadArguments(f"{out / taken[0]} exists already; name another folder with --out, or move the file away.")
    identifier: str | tuple[str, ...] = key[0] if len(key) == 1 else tuple(key)
    with output.busy("reading the tables"):
        drafted = draft(sources, key=identifier)
    for table in drafted.view().tables():
        output.table(table.title, table.head, table.rows)
    output.say()
    for sentence in drafted.warnings():
        output.say(sentence)
    if not yes and output.terminal and sys.stdin.isatty():
        yes = typer.confirm("Confirm every domain as it was read off the data? (No leaves drafts for you to edit.)")
    out.mkdir(parents=True, exist_ok=True)
    (out / "columns.toml").write_text(drafted.to_toml(confirmed=yes), encoding="utf-8")
    (out / "init.html").write_text(view_page(drafted.view(confirmed=yes)), encoding="utf-8")
    if len(sources) > 1:
        withheld = {party: drafted.withheld(party) for party in sources}
        keyless = {table.party for table in drafted.tables if table.keyless}
        beside = {
            party: relative(requiring(source, key) if party in keyless else source, out)
            for party, source in sources.items()
        }
        text = federation_text(
            key=identifier, sources=beside, ignore=withheld, without_bound=WITHOUT_BOUND, allowed=yes
        )
        (out / "federation.toml").write_text(text, encoding="utf-8")
    output.say(
        SAID_YES if yes else "Nothing runs yet: in columns.toml put what is publicly known in place of each bound"
    )
    if not yes:
        output.say("and list, and delete its line `draft = true`. init.html says what was guessed, and why.")
    if yes and len(sources) > 1:
        where = "" if out == Path() else f"cd {out}; "
        output.say(f"Next: {where}colonnade describe --epsilon 1")
    output.result(f"Look at: {(out / 'init.html').absolute()}")


def tables(files: list[str]) -> dict[str, Any]:
    """{party: source} of the arguments."""
    sources: dict[str, Any] = {}
    for argument in files:
        stated, _, file = argument.rpartition("=")
        path = Path(file)
        name = stated or re.sub(r"(\.(csv|tsv|parquet|pq|duckdb|toml|gz|bz2|zst))+(:\w+)?$", "", path.name)
        if not name or name in sources:
            raise BadArguments(f"two tables are called {name!r}; name the parties, as in bank={file}.")
        sources[name] = table_source(file)
    return sources


def table_source(file: str) -> Any:
    """A source by its path; a table of a database by its name; or what a .toml file names as source."""
    from colonnade.data.sources import sniffed
    from colonnade.federation.config import located, read_toml

    database = re.fullmatch(r"(.+\.(?:duckdb|db)):([\w.]+)", file)
    if database is not None:
        return {"duckdb": database[1], "query": f"SELECT * FROM {database[2]}"}
    path = Path(file)
    if path.suffix.lower() != ".toml":
        return sniffed(path)
    settings = read_toml(path, guide="sources")
    if "source" not in settings:
        raise SchemaError(f'{path} has no field source; add for example source = {{ duckdb = "...", query = "..." }}.')
    return located(settings["source"], path.parent)


def requiring(source: Any, names: list[str]) -> dict[str, Any]:
    """The same source without the rows that lack a key."""
    from colonnade.data.sources import named_source

    return {**(source if isinstance(source, dict) else named_source(Path(source))), "require": names}


def relative(source: Any, folder: Path) -> Any:
    """The same source with its files as seen from `folder`, where the federation.toml lies."""
    files = ("csv", "parquet", "duckdb", "dask_ca", "dask_certificate", "dask_key")
    if isinstance(source, dict):
        paths = {field: os.path.relpath(source[field], folder) for field in files if field in source}
        return {**source, **paths}
    return os.path.relpath(source, folder)
