"""How every verb that runs a method does it: plan, progress, result, report."""

from __future__ import annotations

import contextlib
import secrets
import shlex
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_args

from colonnade.cli.output import Output
from colonnade.errors import AwaitingApproval, PartyLost, StorageError

if TYPE_CHECKING:
    from colonnade.federation.coordinator import Federation
    from colonnade.federation.method import Method
    from colonnade.federation.plan import Plan
    from colonnade.federation.run_folder import RunFolder


def open_federation(path: Path, out: Output) -> Federation:
    from colonnade.federation.coordinator import Federation

    with out.busy("loading the blocks and joining their keys"):
        return Federation.from_toml(path)


def conduct(federation: Federation, method: Method, out: Output, *, name: str | None, again: str) -> None:
    """Run a method on a federation and say what came out. `again` says how to go on after an interruption, with
    RUN for the run folder."""
    name = name or f"{method.name}-{time.strftime('%Y%m%d-%H%M%S')}-{secrets.token_hex(2)}"
    run = federation.runs / name
    with _resumable(run, again), out.progress() as progress:
        _, folder = federation.run(method, name=name, progress=progress)
    finish(federation, folder, out)


def go_on(federation: Federation, path: Path, out: Output) -> None:
    """Continue an interrupted run."""
    with _resumable(path, "resume it with `colonnade resume RUN`"), out.progress() as progress:
        _, folder = federation.resume(path, progress=progress)
    finish(federation, folder, out)


def say_total(plan: Plan, out: Output) -> None:
    """What the plan costs a person, under both relations."""
    from colonnade.privacy.cost import Relation

    out.say("A person's total over all parties' releases of this run, (epsilon, delta):")
    for relation in get_args(Relation):
        out.say(f"    {plan.total(relation=relation)}")


def finish(federation: Federation, run: RunFolder, out: Output) -> None:
    """Write the report and say what came out; the report's path is the last line."""
    from colonnade.evaluation.report import SIMULATED, write_report

    report = write_report(run, remarks=federation.remarks)
    result = run.read_json("result.json")
    _say_result(result, out)
    out.say()
    for remark in federation.remarks:
        out.say(remark)
    if federation.seed is not None:
        out.say(SIMULATED)
    out.result(str(report.absolute()) if out.quiet else f"Report: {report.absolute()}")


def _say_result(result: Mapping[str, Any], out: Output) -> None:
    from colonnade.evaluation import report_description as told

    if result["kind"] == "description":
        cohort = f"{result['n']:,} records in the cohort; ± is two standard deviations of the noise"
        out.table(cohort, told.PARTY_HEAD, told.party_rows(result), numeric=(1, 2, 3))
        out.table("Columns", told.COLUMN_HEAD, told.column_rows(result))
    if result["kind"] == "pca":
        from colonnade.evaluation import report_models as models

        out.table(models.pca_title(result), models.COMPONENT_HEAD, models.component_rows(result), numeric=(1,))
    if result["kind"] == "classifier":
        from colonnade.evaluation import report_models as models

        rows = models.coefficient_rows(result)[: models.MOST_SHOWN]
        out.table(models.classifier_title(result), models.COEFFICIENT_HEAD, rows, numeric=(1,))


@contextlib.contextmanager
def _resumable(run: Path, again: str) -> Iterator[None]:
    """Errors that leave a run behind which can go on say how."""
    try:
        yield
    except (KeyboardInterrupt, PartyLost, StorageError, AwaitingApproval) as error:
        if (run / "job.json").is_file():
            error.add_note(f"The run is kept: {again.replace('RUN', shlex.quote(str(run)))}.")
        else:
            error.add_note("Nothing was started.")
        raise
