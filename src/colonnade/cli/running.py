"""How every verb that runs a method does it: plan, progress, result, report."""

from __future__ import annotations

import contextlib
import secrets
import shlex
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, get_args

import typer

from colonnade.cli.output import Output
from colonnade.errors import AwaitingApproval, NotApproved, PartyLost, StorageError

if TYPE_CHECKING:
    from colonnade.federation.coordinator import Federation
    from colonnade.federation.method import Method
    from colonnade.federation.plan import Plan
    from colonnade.federation.run_folder import RunFolder


RESUME = "resume it with `colonnade resume RUN`"


def open_federation(path: Path, out: Output, *, aligned: bool = True) -> Federation:
    from colonnade.federation.coordinator import Federation

    with out.busy("loading the blocks" + " and joining their keys" * aligned):
        return Federation.from_toml(path, aligned=aligned)


def agreed(out: Output, *, yes: bool, spent: str = "spent") -> None:
    """Ask on a terminal, unless `yes` or --quiet has answered."""
    if out.terminal and sys.stdin.isatty() and not (yes or out.quiet) and not typer.confirm("Run it?"):
        raise NotApproved(f"not run: you said no; nothing was {spent}.")


def conduct(federation: Federation, method: Method, out: Output, *, name: str | None, again: str = RESUME) -> None:
    """Run a method on a federation and say what came out."""
    finish(federation, execute(federation, method, out, name=name, again=again), out)


def execute(federation: Federation, method: Method, out: Output, *, name: str | None, again: str = RESUME) -> RunFolder:
    """Run a method with a progress bar. `again` says how to go on after an interruption, with RUN for the folder."""
    name = name or f"{method.name}-{time.strftime('%Y%m%d-%H%M%S')}-{secrets.token_hex(2)}"
    run = federation.runs / name
    with _resumable(run, again), out.progress() as progress:
        _, folder = federation.run(method, name=name, progress=progress)
    return folder


def go_on(federation: Federation, path: Path, out: Output) -> None:
    """Continue an interrupted run; one that lacks nothing but its report gets that."""
    from colonnade.federation.run_folder import RunFolder

    done = RunFolder.open(path)
    if done.job["state"] == "done" and not (path / "report.html").exists():
        finish(federation, done, out)
        return
    with _resumable(path, RESUME), out.progress() as progress:
        _, folder = federation.resume(path, progress=progress)
    finish(federation, folder, out)


def say_total(plan: Plan, out: Output) -> None:
    """What the plan costs a person, under both relations."""
    from colonnade.evaluation.privacy import presence_fixed
    from colonnade.privacy.accounting import guarantee
    from colonnade.privacy.cost import Relation

    out.say("A person's total over all parties' releases of this run, (epsilon, delta):")
    values = presence_fixed(plan.costs(None))
    if values is None:
        for relation in get_args(Relation):
            out.say(f"    {plan.total(relation=relation)}")
        return
    out.say(f"    {plan.total()} (who holds which pseudonymous record is shown)")
    for relation in get_args(Relation):
        if values:
            out.say(f"    {guarantee(values, delta=plan.delta, relation=relation)}, who is present held fixed")


def finish(federation: Federation, run: RunFolder, out: Output) -> None:
    """Write the report and say what came out; the report's path is the last line."""
    from colonnade.evaluation.report import SIMULATED, kind_of, write_report

    result = run.read_json("result.json")
    report = write_report(run, remarks=federation.remarks)
    for shown in kind_of(run, result).terminal(result):
        out.table(shown.title, shown.head, shown.rows, numeric=shown.numeric)
    out.say()
    for remark in federation.remarks:
        out.say(remark)
    if federation.seed is not None:
        out.say(SIMULATED)
    out.result(str(report.absolute()) if out.quiet else f"Report: {report.absolute()}")


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
