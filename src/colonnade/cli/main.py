"""The command line: `colonnade VERB ...`. The verbs have a file each; docs/command-line.md describes them."""

from __future__ import annotations

import io
import sys
from typing import Annotated

import typer

import colonnade
from colonnade.cli import authority, columns, ledger, party, plan, transcript
from colonnade.cli.align import align
from colonnade.cli.audit import audit
from colonnade.cli.classify import classify
from colonnade.cli.compare import compare
from colonnade.cli.complete import complete
from colonnade.cli.demo import demo
from colonnade.cli.describe import describe
from colonnade.cli.doctor import doctor
from colonnade.cli.output import Verbs
from colonnade.cli.pca import pca
from colonnade.cli.regress import regress
from colonnade.cli.report import report
from colonnade.cli.resume import resume
from colonnade.cli.run import run
from colonnade.cli.select import select
from colonnade.cli.synthesize import synthesize

app = typer.Typer(
    name="colonnade",
    cls=Verbs,
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"colonnade {colonnade.__version__}")
        raise typer.Exit


@app.callback()
def main(
    version: Annotated[
        bool, typer.Option("--version", help="Print the version.", callback=_print_version, is_eager=True)
    ] = False,
    debug: Annotated[bool, typer.Option("--debug", help="Print the traceback of an error too.")] = False,
) -> None:
    """Statistics across institutions that hold different columns about the same people or firms."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")  # an old terminal shows "?" instead of ending in an error


app.command()(demo)
app.command()(align)
app.command()(describe)
app.command()(synthesize)
app.command()(regress)
app.command()(select)
app.command()(pca)
app.command()(classify)
app.command()(complete)
app.command()(compare)
app.command()(report)
app.command()(run)
app.command()(audit)
app.add_typer(plan.app, name="plan")
app.command()(resume)
app.command()(doctor)
app.add_typer(ledger.app, name="ledger")
app.add_typer(transcript.app, name="transcript")
app.add_typer(columns.app, name="columns")
app.add_typer(authority.app, name="authority")
app.add_typer(party.app, name="party")
app.add_typer(party.coordinator, name="coordinator")

if __name__ == "__main__":
    app()
