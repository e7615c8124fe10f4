"""How every verb that runs a method does it: plan, question, progress, result, report."""

from __future__ import annotations

import contextlib
import re
import secrets
import shlex
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_args

import typer

from colonnade.cli.output import Output
from colonnade.errors import (
    AwaitingApproval,
    BadArguments,
    NotApproved,
    NotEstimable,
    PartyLost,
    RunError,
    StorageError,
)

if TYPE_CHECKING:
    from colonnade.federation.coordinator import Federation
    from colonnade.federation.method import Method
    from colonnade.federation.plan import Plan
    from colonnade.federation.run_folder import RunFolder
    from colonnade.federation.service import Queue
    from colonnade.view.blocks import View

RESUME = "resume it with `colonnade resume RUN`"
UNTOUCHED = "nothing was asked of any party, and nothing was spent"


def open_federation(path: Path, out: Output, *, aligned: bool = True) -> Federation:
    from colonnade.federation.coordinator import Federation

    with out.busy("loading the blocks" + " and joining their keys" * aligned):
        return Federation.from_toml(path, aligned=aligned)


def federation_here(path: Path | None) -> Path:
    """The file that was named, or the one in this folder."""
    if path is not None:
        return path
    here = [Path(name) for name in ("federation.toml", "coordinator.toml") if Path(name).is_file()]
    if not here:
        raise BadArguments(
            "there is no federation.toml in this folder; go to one that has it, name it with --federation, or make one "
            "with `colonnade init FILE... --key COLUMN`."
        )
    return here[0]


def prepared(
    method: type[Method[Any]], options: Mapping[str, Any], path: Path, out: Output, *, plan_only: bool = False
) -> tuple[Federation, Method[Any]]:
    """The federation that a file describes, and the method with its options, which are checked first."""
    if method.makes_cohort:
        return _before_the_cohort(method, options, path, out, plan_only=plan_only)
    ready = method.from_options(options)
    return open_federation(path, out), ready


def _before_the_cohort(
    method: type[Method[Any]], options: Mapping[str, Any], path: Path, out: Output, *, plan_only: bool
) -> tuple[Federation, Method[Any]]:
    """The federation and the method of an alignment, which runs before there is a cohort.

    Capacities are public. On one machine they are found out from the parties' keys; across the network every member
    states its own in consortium.toml, and adopts the cohort when the job is closed.
    """
    from colonnade.alignment.session import prepare
    from colonnade.federation.config import Consortium, CoordinatorFile, Spec
    from colonnade.federation.coordinator import Federation
    from colonnade.federation.transports.certificates import AUTHORITY

    if CoordinatorFile.is_one(path):
        file = CoordinatorFile.from_toml(path)
        capacity = Consortium.from_toml(file.consortium, authority=file.credentials / AUTHORITY).capacities()
        alignment = method.from_options({**options, "capacity": capacity})
        return Federation.from_toml(path), alignment
    spec, runs = Spec.from_toml(path)
    with out.busy("reading the parties' keys"):
        capacity = prepare(spec, normalise=options.get("normalise", ()), capacity=options.get("capacity"))
    alignment = method.from_options({"include": spec.include, **options, "capacity": capacity})
    if plan_only:
        spec = replace(spec, home=None)  # a plan leaves nothing at the parties: not even that an alignment has begun
    return Federation.from_spec(spec, runs=runs, origin=str(path.absolute()), aligned=False), alignment


@dataclass(frozen=True, kw_only=True)
class Wanted:
    """What a verb was told beside its options: to answer yes, to run also what will not work, only to show the plan."""

    yes: bool = False
    sure: bool = False
    plan_only: bool = False
    as_json: bool = False


def confirmed(plan: Plan, out: Output, wanted: Wanted) -> bool:
    """Show the plan, and ask on a terminal unless it was only to be shown."""
    if wanted.as_json:
        out.json(plan_dict(plan))
    elif wanted.plan_only:
        out.say(plan.text())
        out.say()
        say_total(plan, out)
    else:
        say_total(plan, out)
        for note in together(plan.notes):
            out.say(note)
        agreed(plan, out, yes=wanted.yes, sure=wanted.sure)
        return True
    return False


def together(notes: Sequence[str]) -> Iterator[str]:
    """The plan's notes, with one line for neighbouring columns of which the same is to be expected."""
    parted = [re.fullmatch(r"Column ('.*?'|\".*?\"): (.*)", note, re.DOTALL) for note in notes]
    for words, group in groupby(zip(notes, parted, strict=True), lambda pair: pair[1] and pair[1].group(2)):
        lines = list(group)
        names = [match.group(1) for _, match in lines if match]
        if words is None or len(names) == 1:
            yield from (note for note, _ in lines)
        else:
            yield f"Columns {', '.join(names)}: {words}"


def hand_over(
    method: type[Method[Any]],
    options: Mapping[str, Any],
    path: Path,
    out: Output,
    *,
    name: str | None,
    wanted: Wanted,
) -> bool:
    """Ask the coordinator that serves this coordinator.toml, if one does, and follow the job to its end."""
    from colonnade.federation.config import CoordinatorFile
    from colonnade.federation.service import Queue, planned

    if not CoordinatorFile.is_one(path):
        return False
    file = CoordinatorFile.from_toml(path)
    queue = Queue(file.queue)
    if not queue.served:
        return False
    ready, plan = planned(file, method, options)
    if plan is not None:
        if not confirmed(plan, out, wanted):
            return True
    elif wanted.plan_only or wanted.as_json:
        raise RunError("a plan needs members that are connected and records that are lined up; wait for them.")
    else:
        out.say("The plan is made when all members are connected and their records are lined up.")
    follow(queue, queue.ask(ready, name=name, sure=wanted.sure or plan is not None), file.runs, out)
    return True


def handed_back(run: Path, job: Mapping[str, Any], path: Path, out: Output) -> bool:
    """Let the coordinator that serves this coordinator.toml, if one does, go on with a run."""
    from colonnade.federation.config import CoordinatorFile
    from colonnade.federation.service import Queue

    if not CoordinatorFile.is_one(path):
        return False
    file = CoordinatorFile.from_toml(path)
    queue = Queue(file.queue)
    if not queue.served or run.absolute().parent != file.runs.absolute():
        return False
    if run.name not in queue.waiting():
        queue.put(job["method"], job["options"], name=run.name, again=True)
    follow(queue, run.name, file.runs, out)
    return True


def follow(queue: Queue, name: str, runs: Path, out: Output) -> None:
    """Say what the service does with a job until it has ended."""
    from colonnade.federation.job import Progress
    from colonnade.federation.run_folder import RunFolder

    out.say(f"{name} is in the queue of the coordinator, which goes on with it by itself.")
    sentence = ""
    try:
        with out.progress() as progress:
            while (state := queue.state(name)).state not in ("done", "failed"):
                if state.sentence and state.sentence != sentence:
                    sentence = state.sentence
                    out.say(f"{name} {sentence}")
                if state.progress is not None and progress is not None:
                    progress(Progress(**state.progress))
                if not queue.served:
                    raise PartyLost(f"the coordinator has stopped; start it again, and it goes on with {name}.")
                time.sleep(0.5)
    except KeyboardInterrupt as error:
        error.add_note(f"The job stays in the queue; its run folder is {runs / name}.")
        raise
    if state.state == "failed":
        raise RunError(state.sentence)
    say_result(RunFolder.open(runs / name), out)


def run(
    federation: Federation,
    method: Method[Any],
    out: Output,
    *,
    name: str | None,
    wanted: Wanted,
) -> None:
    """Show the plan, ask on a terminal, and run the very plan that was shown."""
    plan = federation.plan(method)
    if not confirmed(plan, out, wanted):
        return
    finish(federation, execute(federation, plan, out, name=name), out)


def plan_dict(plan: Plan) -> dict[str, Any]:
    """A plan and what it costs a person, for a program to read."""
    from colonnade.privacy.cost import Relation
    from colonnade.privacy.wording import guarantee_dict

    totals = {relation: guarantee_dict(plan.total(relation=relation)) for relation in get_args(Relation)}
    return {"plan": plan.to_dict(), "person_total": totals}


def say_total(plan: Plan, out: Output) -> None:
    """What the plan costs a person, under both relations."""
    from colonnade.privacy.person import PersonTotal

    out.say("A person's total over all parties' releases of this run, (epsilon, delta):")
    person = PersonTotal.of(plan.costs(), delta=plan.delta)
    fixed = ", who is present held fixed" if person.shown else ""
    if fixed:
        out.say(f"    {plan.total()} (who holds which pseudonymous record is shown)")
    for bound in dict.fromkeys(map(str, person.total.values())):
        if not fixed or person.counted:
            out.say(f"    {bound}{fixed}")


def agreed(plan: Plan, out: Output, *, yes: bool, sure: bool) -> None:
    """Ask on a terminal, unless `yes` or --quiet has answered; where no one is asked, a plan that will not work is run
    only by who is `sure`."""
    if out.terminal and sys.stdin.isatty() and not out.quiet and not yes:
        if not typer.confirm("Run it?"):
            raise NotApproved(f"not run: you said no; {UNTOUCHED}.")
        return
    if plan.hopeless and not sure:
        raise NotEstimable(f"{plan.hopeless} Not run: {UNTOUCHED}; --sure runs it all the same.")


def execute(federation: Federation, plan: Plan, out: Output, *, name: str | None, again: str = RESUME) -> RunFolder:
    """Run a plan with a progress bar. `again` says how to go on after an interruption, with RUN for the folder."""
    name = name or f"{plan.method}-{time.strftime('%Y%m%d-%H%M%S')}-{secrets.token_hex(2)}"
    with _resumable(federation.runs / name, again), out.progress() as progress:
        return federation.run(plan, name=name, progress=progress)[1]


def go_on(federation: Federation, path: Path, out: Output) -> None:
    """Continue an interrupted run; one that lacks nothing but its report gets that."""
    from colonnade.federation.run_folder import RunFolder

    folder = RunFolder.open(path)
    if folder.job["state"] != "done" or (path / "report.html").exists():
        with _resumable(path, RESUME), out.progress() as progress:
            _, folder = federation.resume(path, progress=progress)
    finish(federation, folder, out)


def finish(federation: Federation, run: RunFolder, out: Output) -> None:
    """Write the report and say what came out; the report's path is the last line."""
    from colonnade.evaluation.report import write_report

    write_report(run, remarks=federation.remarks)
    say_result(run, out, remarks=federation.remarks)


def say_result(run: RunFolder, out: Output, *, remarks: Sequence[str] = ()) -> None:
    """What came out of a run that has its report."""
    from colonnade.evaluation.report import SIMULATED, view_of

    report = run.path / "report.html"
    show(view_of(run), out)
    out.say()
    for remark in remarks:
        out.say(remark)
    if run.job["seed"] is not None:
        out.say(SIMULATED)
    out.result(str(report.absolute()) if out.quiet else f"Report: {report.absolute()}")


def show(view: View, out: Output, *, most_tables: int | None = None) -> None:
    """A result on the terminal: what makes it unusable first, then its tables."""
    for warning in view.warnings:
        out.say(f"WARNING: {warning}")
    for table in view.tables()[:most_tables]:
        out.table(table.title, table.head, table.rows[: table.shown], numeric=table.numeric)


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
