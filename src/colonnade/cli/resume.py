"""`colonnade resume`: continue an interrupted run."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from colonnade.cli.output import Output, Quiet
from colonnade.cli.running import go_on, open_federation
from colonnade.errors import RunError


def resume(
    run: Annotated[Path, typer.Argument(help="The run folder.", show_default=False)],
    federation: Annotated[
        Path | None,
        typer.Option("--federation", "-f", help="Its federation.toml, if that has moved.", show_default=False),
    ] = None,
    quiet: Quiet = False,
) -> None:
    """Continue an interrupted run from its last answered request.

    What was answered comes back byte for byte, and nothing is debited twice.
    """
    from colonnade.federation.run_folder import RunFolder

    out = Output(quiet=quiet)
    job = RunFolder.open(run).job
    origin = federation or job["federation"]
    if origin is None:
        raise RunError(
            f"{run} was started from Python, without a federation.toml; resume it there with federation.resume(...),"
            " or name a federation.toml of the same parties with --federation."
        )
    with open_federation(Path(origin), out, aligned=job["method"] != "align") as opened:
        go_on(opened, run, out)
