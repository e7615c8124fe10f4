"""`colonnade transcript show|verify`: every message that crossed a border."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from colonnade.cli.output import AsJson, Output
from colonnade.cli.records import Run, handed_out, opened

app = typer.Typer(no_args_is_help=True, help="Every message that crossed a border.")

Where = Annotated[Path, typer.Argument(metavar="PATH", help="A party's folder or a run folder.", show_default=False)]


@app.command()
def show(
    path: Where,
    job: Annotated[str | None, typer.Option("--job", help="Only this job's messages.", show_default=False)] = None,
    as_json: AsJson = False,
) -> None:
    """Print the messages: direction, peer, step, bytes, cost and what each discloses."""
    from colonnade.federation.transcript import Transcript
    from colonnade.formatting import size, timestamp
    from colonnade.privacy.cost import Cost
    from colonnade.privacy.wording import cost_text

    out = Output(quiet=as_json)
    with opened(path, "transcript") as database:
        found = Transcript(database, create=False).rows(**({} if job is None else {"job": job}))
    rows = [{"number": row.number, **row.body, "hash": row.hash} for row in found]
    if as_json:
        out.json(rows)
        return
    out.table(
        f"{len(rows)} messages, {size(sum(row['bytes'] for row in rows))}",
        ("row", "time", "message", "kind", "request", "step", "bytes", "cost", "discloses"),
        [
            (
                str(row["number"]),
                timestamp(row["time"]),
                f"{'to' if row['direction'] == 'out' else 'from'} {row['peer']}",
                row["kind"],
                str(row["seq"]),
                row["step"],
                str(row["bytes"]),
                "" if row["cost"] is None else cost_text(Cost.from_dict(row["cost"])),
                row["discloses"],
            )
            for row in rows
        ],
        numeric=(0, 4, 6),
    )


@app.command()
def verify(path: Where, run: Run = None) -> None:
    """Check that no message was changed, removed or inserted."""
    from colonnade.federation.transcript import Transcript

    out = Output()
    expect = handed_out(path, "transcript", run)
    with opened(path, "transcript") as database:
        head = Transcript(database, create=False).verify(expect=expect)
    out.result(f"The transcript in {path} is intact: {head.rows} messages, ending in {head.hash[:16]}.")
    if expect is not None:
        out.result(f"It still contains what it told {run}.")
