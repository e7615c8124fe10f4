"""What the verbs share: plain or rich printing, progress, and errors as one line with an exit code.

Colours and progress bars appear only on a terminal. Libraries that take long to import are imported by the verb that
needs them, so that `--help` and `--version` answer at once.
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
import traceback
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.table import Table
from typer.core import TyperGroup

from colonnade import errors
from colonnade.errors import ColonnadeError

if TYPE_CHECKING:
    from colonnade.federation.job import Progress

Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="Print only the path of the report.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON for a program to read.")]

UNEXPECTED, USAGE, DATA, PRIVACY, BORDER, LOST, RECORD, UNWELL, INTERRUPTED = 1, 2, 3, 4, 5, 6, 7, 8, 130

EXIT_CODES: tuple[tuple[type[ColonnadeError], int], ...] = (
    (errors.BadArguments, USAGE),
    (errors.UnknownMethod, USAGE),
    (errors.SchemaError, DATA),
    (errors.NotEstimable, DATA),
    (errors.PrivacyError, PRIVACY),
    (errors.BorderError, BORDER),
    (errors.SecureError, BORDER),
    (errors.PartyLost, LOST),
    (errors.VersionMismatch, LOST),
    (errors.WireError, LOST),
    (errors.CorruptRecord, RECORD),
    (errors.StorageError, RECORD),
    (errors.RunError, RECORD),
)
"""The first family that an error belongs to decides; docs/command-line.md has the same list for people."""


def exit_code(error: ColonnadeError) -> int:
    return next((code for family, code in EXIT_CODES if isinstance(error, family)), UNEXPECTED)


COLUMNS = "columns= is the option --columns: 'a,b' are the columns to use, '!a,!b' all but these."


class Verbs(TyperGroup):
    """All verbs. Whatever one of them raises ends here, as one line on standard error."""

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except (KeyboardInterrupt, Exception) as error:
            if hasattr(error, "exit_code") or isinstance(error, (typer.Abort, BrokenPipeError)):
                raise  # usage errors and deliberate exits: typer's own business
            if ctx.find_root().params.get("debug"):
                traceback.print_exception(error, file=sys.stderr)
            sentence, code = _verdict(error)
            notes = " ".join(getattr(error, "__notes__", ()))
            typer.echo(one_line(f"colonnade: {sentence} {notes}".rstrip()), err=True)
            if "columns=" in sentence:
                typer.echo(COLUMNS, err=True)
            if isinstance(error, KeyboardInterrupt):
                # What was answered is durable. A thread that the interruption has cut off from its pool would keep the
                # interpreter from ending.
                sys.stdout.flush()
                sys.stderr.flush()
                os._exit(code)
            raise typer.Exit(code) from None


def _verdict(error: BaseException) -> tuple[str, int]:
    if isinstance(error, ColonnadeError):
        return str(error), exit_code(error)
    if isinstance(error, KeyboardInterrupt):
        return "interrupted.", INTERRUPTED
    if isinstance(error, OSError):
        return f"{error}; check the path, its permissions and the free disk space.", RECORD
    return (
        f"unexpected {type(error).__name__}: {error}. This is a bug; `colonnade --debug ...` prints the traceback too.",
        UNEXPECTED,
    )


def one_line(text: str) -> str:
    """Text that cannot steer a terminal, whatever a column or a party is called."""
    return "".join(sign if sign.isprintable() else " " for sign in text)


class Output:
    """Standard output: `say` and `table` keep silent with `--quiet`, `result` never does."""

    def __init__(self, *, quiet: bool = False) -> None:
        self.quiet = quiet
        self.terminal = sys.stdout.isatty()
        self._console = Console(
            markup=False, highlight=False, emoji=False, soft_wrap=True, width=None if self.terminal else 1_000
        )

    def say(self, text: str = "") -> None:
        if not self.quiet:
            for line in text.split("\n"):
                self._console.print(one_line(line))

    def result(self, text: str) -> None:
        typer.echo(one_line(text))

    def json(self, plain: Any) -> None:
        typer.echo(json.dumps(plain, indent=2, ensure_ascii=False, allow_nan=False))

    def table(
        self, title: str, head: Sequence[str], rows: Iterable[Sequence[str]], *, numeric: Collection[int] = ()
    ) -> None:
        if self.quiet:
            return
        table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold")
        for column, name in enumerate(head):
            table.add_column(name, justify="right" if column in numeric else "left", overflow="fold")
        for row in rows:
            table.add_row(*map(one_line, row))
        self._console.print()
        self._console.print(title, style="bold")
        self._console.print(table, soft_wrap=False)

    @contextlib.contextmanager
    def busy(self, what: str) -> Iterator[None]:
        """A sign of life on a terminal."""
        if self.quiet or not self.terminal:
            yield
            return
        with self._console.status(what):
            yield

    @contextlib.contextmanager
    def progress(self) -> Iterator[Callable[[Progress], None] | None]:
        """A bar with stage, rounds, bytes and remaining time on a terminal; nothing elsewhere."""
        if self.quiet or not self.terminal:
            yield None
            return
        from rich import progress as bars

        from colonnade.formatting import duration, size

        layout = (
            bars.TextColumn("{task.description}", markup=False),
            bars.BarColumn(),
            bars.TextColumn("round {task.completed:.0f} of {task.total:.0f}, {task.fields[sent]}, {task.fields[left]}"),
        )
        with bars.Progress(*layout, console=self._console) as bar:
            task = bar.add_task("proposing the plan", total=1, sent="0 B", left="")

            def show(now: Progress) -> None:
                left = (
                    "" if now.remaining is None else f"{size(now.bytes_left)} and about {duration(now.remaining)} left"
                )
                bar.update(
                    task, description=now.stage, completed=now.rounds, total=now.of, sent=size(now.bytes), left=left
                )

            yield show
