"""The command line: `colonnade VERB ...`; docs/command-line.md describes it.

verbs     a verb for every method of the catalogue, from its own declarations
start     init: from the parties' tables to a folder in which every verb works
runs      run a job file, resume, report, release, compare, audit
operate   one institution's end: provision, party, coordinator, authority, doctor, columns
records   ledger and transcript
guides    docs: the guides of this installation
demo      the whole story on simulated institutions
running   how a method is run: plan, question, progress, report
output    printing, progress, errors as one line with an exit code
"""

from __future__ import annotations

import io
import sys
from typing import Annotated

import typer

import colonnade
from colonnade.cli import operate, records, runs
from colonnade.cli.demo import demo
from colonnade.cli.guides import docs
from colonnade.cli.start import init
from colonnade.cli.verbs import MethodVerbs, papers

app = typer.Typer(
    name="colonnade",
    cls=MethodVerbs,
    no_args_is_help=True,
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


app.command()(init)
app.command()(demo)
app.command()(docs)
app.add_typer(papers, name="papers")
for command in (
    runs.run,
    runs.resume,
    runs.report,
    runs.release,
    runs.compare,
    runs.audit,
    operate.provision,
    operate.doctor,
):
    app.command()(command)
app.add_typer(records.ledger, name="ledger")
app.add_typer(records.transcript, name="transcript")
app.add_typer(operate.columns, name="columns")
app.add_typer(operate.party, name="party")
app.add_typer(operate.coordinator, name="coordinator")
app.add_typer(operate.authority, name="authority")

if __name__ == "__main__":
    app()
