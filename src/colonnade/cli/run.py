"""`colonnade run job.toml`: any method, from a file that can be kept with its results."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from colonnade.cli import models
from colonnade.cli.describe import FederationFile
from colonnade.cli.models import Name, PlanOnly, Yes
from colonnade.cli.output import Output, Quiet
from colonnade.errors import BadArguments


def run(
    job: Annotated[Path, typer.Argument(help="The job.toml: method, and [options] as the method's class takes them.")],
    federation: FederationFile,
    name: Name = None,
    plan_only: PlanOnly = False,
    yes: Yes = False,
    quiet: Quiet = False,
) -> None:
    """Run the job that a file describes, with any method that this installation has.

    Shows the plan, asks on a terminal, runs, and writes a run folder with the report.
    """
    from colonnade.federation.job_file import JobFile

    file = JobFile.from_toml(job)
    if file.wanted == "align":
        raise BadArguments("records are lined up before there is a cohort to work on; run `colonnade align` for that.")
    out = Output(quiet=quiet)
    models.run(federation, file.method(), out, name=name or file.name, yes=yes, plan_only=plan_only)
