"""`colonnade columns draft|check`: the declared public domains."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from colonnade.cli.output import Output

app = typer.Typer(no_args_is_help=True, help="Declare the columns' public domains.")

Key = Annotated[str | None, typer.Option("--key", help="The column that identifies a record.", show_default=False)]


@app.command()
def draft(
    file: Annotated[Path, typer.Argument(help="CSV or Parquet file of one party.", show_default=False)],
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
    from colonnade.data.sources import open_source

    if out is not None and out.exists():
        raise typer.BadParameter(f"{out} exists already; name a new file.", param_hint="--out")
    source = open_source(file)
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
        Path | None, typer.Option("--source", help="A party's table to check against it.", show_default=False)
    ] = None,
    key: Key = None,
) -> None:
    """Check a columns.toml, and with --source and --key that a table agrees with it."""
    from colonnade.data.block import Block
    from colonnade.data.column import Columns
    from colonnade.data.sources import open_source

    if (source is None) != (key is None):
        raise typer.BadParameter("give --source and --key together, or neither.")
    out = Output()
    columns = Columns.from_toml(file)
    columns.confirmed()
    out.result(f"{file}: {len(columns)} columns, all declared and confirmed.")
    if source is not None and key is not None:
        block = Block.load(source.stem, open_source(source), key=key, columns=columns)
        out.result(f"{source}: {block.n_records:,} records agree with the {len(block.columns)} columns that it has.")
