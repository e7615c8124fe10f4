"""`colonnade report`: write the report of a run again, or one page for all runs of a folder."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from colonnade.cli.output import Output


def report(
    path: Annotated[Path, typer.Argument(help="A run folder, or a folder of run folders.", show_default=False)],
) -> None:
    """Write report.html again from what a run folder holds; for a folder of runs, index.html with their total cost.

    Nothing is asked of any party and nothing is spent.
    """
    from colonnade.errors import RunError
    from colonnade.evaluation.report import write_report
    from colonnade.evaluation.report_index import write_index
    from colonnade.federation.run_folder import RunFolder

    out = Output()
    if (path / "job.json").is_file():
        out.result(f"Open: {write_report(RunFolder.open(path)).absolute()}")
        return
    found = sorted(one.parent for one in path.glob("*/job.json")) if path.is_dir() else []
    if not found:
        raise RunError(f"{path} is neither a run folder nor a folder of run folders; name what a run printed.")
    runs = sorted((RunFolder.open(one) for one in found), key=lambda run: float(run.job["started"]))
    out.result(f"Open: {write_index(path / 'index.html', runs, title=f'Runs in {path.name}').absolute()}")
