"""`colonnade columns draft|check`: the declared public domains."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from colonnade.cli.output import Output
from colonnade.errors import SchemaError

if TYPE_CHECKING:
    from colonnade.data.sources import Source

app = typer.Typer(no_args_is_help=True, help="Declare the columns' public domains.")

TABLE = "A CSV or Parquet file of one party, or a .toml file with a field `source`, such as its party.toml."
Key = Annotated[str | None, typer.Option("--key", help="The column that identifies a record.", show_default=False)]


@app.command()
def draft(
    file: Annotated[Path, typer.Argument(help=TABLE, show_default=False)],
    key: Annotated[str, typer.Option("--key", help="The column that identifies a record.", show_default=False)],
    out: Annotated[
        Path | None, typer.Option("--out", help="Write here; standard output by default.", show_default=False)
    ] = None,
) -> None:
    """Draft a columns.toml from a table, for a person to correct.

    Everything that was read off the data is marked `draft = true` and refused by private methods until somebody has
    put a public fact in its place and deleted that line.
    """
    import pandas as pd

    from colonnade.data.draft import draft_toml

    if out is not None and out.exists():
        raise typer.BadParameter(f"{out} exists already; name a new file.", param_hint="--out")
    source = _source(file)
    text = draft_toml(pd.concat(list(source.chunks(source.names())), ignore_index=True), key=key)
    if out is None:
        typer.echo(text, nl=False)
        return
    out.write_text(text, encoding="utf-8")
    Output().result(f"Drafted {out}: confirm or replace every bound, then delete its line `draft = true`.")


@app.command()
def check(
    file: Annotated[Path, typer.Argument(metavar="COLUMNS.TOML", help="The declaration.", show_default=False)],
    source: Annotated[
        Path | None, typer.Option("--source", help=f"What to check against it. {TABLE}", show_default=False)
    ] = None,
    key: Key = None,
) -> None:
    """Check a columns.toml, and with --source and --key that a table agrees with it."""
    from colonnade.data.block import Block
    from colonnade.data.column import Columns

    if (source is None) != (key is None):
        raise typer.BadParameter("give --source and --key together, or neither.")
    out = Output()
    columns = Columns.from_toml(file)
    columns.confirmed()
    out.result(f"{file}: {len(columns)} columns, all declared and confirmed.")
    if source is not None and key is not None:
        block = Block.load(source.stem, _source(source), key=key, columns=columns)
        out.result(f"{source}: {block.n_records:,} records agree with the {len(block.columns)} columns that it has.")


def _source(path: Path) -> Source:
    """A table by its path, or the source that a .toml file names: a database, say."""
    from colonnade.data.sources import open_source
    from colonnade.federation.local import located

    if path.suffix.lower() != ".toml":
        return open_source(path)
    try:
        plain = tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, tomllib.TOMLDecodeError) as error:
        raise SchemaError(f"{path} cannot be read ({error}); see docs/sources.md for an example.") from error
    if "source" not in plain:
        raise SchemaError(f'{path} has no field source; add for example source = {{ duckdb = "...", query = "..." }}.')
    return open_source(located(plain["source"], path.parent))
