"""What is done with runs and methods besides the methods' own verbs: run a job file, resume, report, compare, audit."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from colonnade.cli.output import PRIVACY, AsJson, Output, Quiet
from colonnade.cli.verbs import FederationFile, Name, PlanJson, PlanOnly, Sure, Yes, run_verb
from colonnade.errors import BadArguments, RunError

if TYPE_CHECKING:
    import pandas as pd

    from colonnade.audit.attack import Finding
    from colonnade.federation.run_folder import RunFolder

RunPath = Annotated[Path, typer.Argument(help="The run folder.", show_default=False)]


def run(
    job: Annotated[Path, typer.Argument(help="The job.toml: method, and [options] as the method's class takes them.")],
    federation: FederationFile = None,
    name: Name = None,
    plan_only: PlanOnly = False,
    as_json: PlanJson = False,
    yes: Yes = False,
    sure: Sure = False,
    quiet: Quiet = False,
) -> None:
    """Run the job that a file describes, with any method that this installation has.

    Shows the plan, asks on a terminal, runs, and writes a run folder with the report.
    """
    from colonnade.federation.config import JobFile

    file = JobFile.from_toml(job)
    common: dict[str, Any] = {"plan_only": plan_only, "as_json": as_json, "yes": yes, "sure": sure, "quiet": quiet}
    run_verb(
        type(file.method()), file.options, federation=federation, name=file.name if name is None else name, **common
    )


def resume(
    run: RunPath,
    federation: Annotated[
        Path | None,
        typer.Option("--federation", "-f", help="Its federation.toml, if that has moved.", show_default=False),
    ] = None,
    quiet: Quiet = False,
) -> None:
    """Continue an interrupted run from its last answered request.

    What was answered comes back byte for byte, and nothing is debited twice.
    """
    from colonnade.catalogue import CATALOGUE
    from colonnade.cli.running import go_on, handed_back, open_federation
    from colonnade.federation.run_folder import RunFolder

    out = Output(quiet=quiet)
    job = RunFolder.open(run).job
    origin = federation or job["federation"]
    if origin is None:
        raise RunError(
            f"{run} was started from Python, without a federation.toml; resume it there with federation.resume(...),"
            " or name a federation.toml of the same parties with --federation."
        )
    if handed_back(run, job, Path(origin), out):
        return
    aligned = not CATALOGUE.load(job["method"]).makes_cohort
    with open_federation(Path(origin), out, aligned=aligned) as opened:
        go_on(opened, run, out)


def report(
    path: Annotated[Path, typer.Argument(help="A run folder, or a folder of run folders.", show_default=False)],
) -> None:
    """Write report.html again from what a run folder holds; for a folder of runs, index.html with their total cost.

    Nothing is asked of any party and nothing is spent.
    """
    from colonnade.evaluation.report import write_index, write_report
    from colonnade.federation.run_folder import RunFolder

    out = Output()
    if (path / "job.json").is_file():
        out.result(f"Open: {write_report(RunFolder.open(path)).absolute()}")
        return
    folders = sorted(job.parent for job in path.glob("*/job.json")) if path.is_dir() else []
    if not folders:
        raise RunError(f"{path} is neither a run folder nor a folder of run folders; name what a run printed.")
    runs = sorted((RunFolder.open(folder) for folder in folders), key=lambda run: float(run.job["started"]))
    out.result(f"Open: {write_index(path / 'index.html', runs, title=f'Runs in {path.name}').absolute()}")


def release(
    run: RunPath,
    out: Annotated[Path, typer.Option("--out", metavar="FOLDER", help="A new folder.", show_default=False)],
    threshold: Annotated[int, typer.Option("--threshold", help="Records that a figure must rest on.")] = 10,
    dominance: Annotated[
        float, typer.Option("--dominance", help="The largest part of a figure that one record may be.")
    ] = 0.5,
) -> None:
    """Bundle a run for an output checker: outputs, records behind each figure, rules, costs, plan, hashes.

    Nothing is asked of any party and nothing is spent.
    """
    from colonnade.evaluation.release import Rules, write_release
    from colonnade.federation.run_folder import RunFolder

    rules = Rules(threshold=threshold, dominance=dominance)
    Output().result(f"Open: {write_release(RunFolder.open(run), out, rules=rules).absolute()}")


# --- a synthetic table beside real records ------------------------------------------------------------------------


def compare(
    run: Annotated[Path, typer.Argument(help="The run folder of a synthetic table.", show_default=False)],
    block: Annotated[
        Path | None,
        typer.Option("--block", help="A party's own CSV or Parquet file: exact, nothing is sent.", show_default=False),
    ] = None,
    federation: Annotated[
        Path | None, typer.Option("--federation", "-f", help="With --joint: the federation.toml.", show_default=False)
    ] = None,
    joint: Annotated[
        list[str] | None,
        typer.Option("--joint", help="A table of columns of several parties, a,b say: a release that costs --epsilon."),
    ] = None,
    epsilon: Annotated[
        float | None, typer.Option("--epsilon", help="What the joint comparison may cost a person.")
    ] = None,
    delta: Annotated[float, typer.Option("--delta", help="Its delta.")] = 1e-6,
    yes: Yes = False,
    sure: Sure = False,
    as_json: AsJson = False,
) -> None:
    """Say how near a synthetic table is to real records.

    `--block` compares one party's own columns, at home, exactly; its output is as sensitive as the block. `--joint`
    asks the parties for noisy tables across them, which costs `--epsilon`.
    """
    from colonnade.federation.run_folder import RunFolder
    from colonnade.synthesis.table import read_table

    folder = RunFolder.open(run)
    if folder.read_json("result.json").get("kind") != "synthetic-table":
        raise BadArguments(f"{run} holds no synthetic table; name the run folder of `colonnade synthesize`.")
    if (block is None) == (joint is None):
        raise BadArguments("say either --block FILE (at home) or --joint a,b with --epsilon (a release).")
    table, out = read_table(folder), Output(quiet=as_json)
    if block is not None:
        _locally(folder, table, block, out)
        return
    if epsilon is None:
        raise BadArguments("--joint is a release: say --epsilon, what it may cost a person.")
    from colonnade.cli.running import federation_here

    tables = [names.split(",") for names in joint or ()]
    _jointly(table, tables, federation_here(federation), epsilon, delta, out, yes=yes, sure=sure)


def _locally(folder: RunFolder, table: pd.DataFrame, block: Path, out: Output) -> None:
    import pandas as pd

    from colonnade.data.column import Columns
    from colonnade.data.sources import open_source
    from colonnade.evaluation.comparison import compare_locally

    columns = Columns.from_dict({"columns": folder.read_json("result.json")["columns"]})
    source = open_source(block)
    names = [name for name in source.names() if name in columns]
    cells = pd.concat(list(source.chunks(names)), ignore_index=True) if names else pd.DataFrame()
    real = pd.DataFrame({name: columns[name].decode(columns[name].encode(cells[name])) for name in names})
    comparison = compare_locally(real, table, columns)
    if out.quiet:
        out.json(comparison)
        return
    out.table(
        f"{comparison['records']:,} records of the block, {comparison['rows']:,} synthetic rows",
        ("column", "distance", "categories kept", "empty in the block"),
        [
            (row["name"], f"{row['distance']:.3f}", f"{100 * row['coverage']:.0f} %", f"{100 * row['empty']:.1f} %")
            for row in comparison["columns"]
        ],
        numeric=(1, 2, 3),
    )
    averages = ", ".join(f"{ways} columns {value:.3f}" for ways, value in comparison["average"].items())
    out.say(f"Mean distance (total variation) of tables of {averages}.")
    if comparison["correlations"]:
        out.table(
            "Rank correlations that differ most",
            ("column", "and", "block", "synthetic"),
            [
                (*row["columns"], f"{row['block']:+.3f}", f"{row['synthetic']:+.3f}")
                for row in comparison["correlations"][:8]
            ],
            numeric=(2, 3),
        )
    if comparison["efficacy"]:
        out.table(
            "Predicting each column of unseen records from the others",
            ("column", "score", "trained on synthetic", "trained on the block"),
            [
                (row["response"], row["score"], f"{row['synthetic']:.3f}", f"{row['real']:.3f}")
                for row in comparison["efficacy"]
            ],
            numeric=(2, 3),
        )
    out.say()
    out.say("These figures are exact: keep them where the block may be seen. Nothing was sent or spent.")


def _jointly(
    table: pd.DataFrame,
    tables: list[list[str]],
    path: Path,
    epsilon: float,
    delta: float,
    out: Output,
    *,
    yes: bool,
    sure: bool,
) -> None:
    from colonnade.cli.running import agreed, open_federation, say_total
    from colonnade.data.column import Columns
    from colonnade.evaluation.comparison import joint_distances, joint_release

    with open_federation(path, out) as federation:
        plan = federation.plan(joint_release(tables, epsilon=epsilon, delta=delta))
        say_total(plan, out)
        agreed(plan, out, yes=yes, sure=sure)
        released, _ = federation.run(plan)
        names = dict.fromkeys(name for columns in tables for name in columns)
        compared = joint_distances(released, table, Columns(map(federation.facts.column, names)))
    if out.quiet:
        out.json({"tables": compared, "epsilon": epsilon, "delta": delta})
        return

    def number(value: float | None) -> str:
        return "-" if value is None else f"{value:.3f}"

    out.table(
        "Distance of the synthetic table from noisy tables across parties",
        ("columns", "distance", "noise alone shows"),
        [(" x ".join(row["columns"]), number(row["distance"]), number(row["noise"])) for row in compared],
        numeric=(1, 2),
    )
    out.say("A distance near what noise alone shows: no difference can be seen at this cost.")


# --- attacks ------------------------------------------------------------------------------------------------------


def audit(
    method: Annotated[str, typer.Argument(help="A method as `colonnade run` names it, or `all`.", show_default=False)],
    planted: Annotated[
        str | None,
        typer.Option("--planted", help="Plant a bug that must be found: noise/1.4, silent-member, forgotten-split."),
    ] = None,
    effort: Annotated[float, typer.Option("--effort", help="Times the usual runs: more runs, more power.")] = 1.0,
    seed: Annotated[int, typer.Option("--seed", help="Of the simulation; another seed is another audit.")] = 1,
    as_json: AsJson = False,
) -> None:
    """Attack a method on simulated data, and print claimed epsilons beside what the attacks prove.

    An audit can refute a claim, never prove it. Exits with 4 if a claim of ours falls or a planted bug is missed.
    """
    from colonnade.audit.attack import as_expected, attacked, audit_method
    from colonnade.audit.planted import NOTHING, Planted

    out = Output(quiet=as_json)
    bug = NOTHING if planted is None else Planted.parse(planted)
    findings: list[Finding] = []
    for name in attacked(bug) if method == "all" else (method,):
        with out.busy(f"attacking {name}"):
            findings += audit_method(name, planted=bug, effort=effort, seed=seed)
    fine = as_expected(findings)
    if as_json:
        out.json({"planted": str(bug), "as_expected": fine, "findings": [finding.to_dict() for finding in findings]})
    else:
        _show(findings, fine, out, planted=None if planted is None else str(bug))
    if not fine:
        raise typer.Exit(PRIVACY)


def _show(findings: list[Finding], fine: bool, out: Output, *, planted: str | None) -> None:
    out.table(
        "Attacks on simulated data" + (f"; planted: {planted}" if planted else ""),
        ("method", "attack", "claim", "epsilon claimed", "proved at least", "delta", "confidence", "power", "verdict"),
        [
            (
                finding.method,
                finding.attack,
                finding.claim if finding.ours else f"{finding.claim} (a paper's)",
                f"{finding.claimed_epsilon:.3g}",
                f"{finding.epsilon_lower_bound:.3g}",
                f"{finding.delta:g}",
                f"1 - {1 - finding.confidence:.0e}",
                "-" if finding.power is None else f"{finding.power:.3f}",
                finding.verdict,
            )
            for finding in findings
        ],
        numeric=(3, 4, 5, 6, 7),
    )
    out.say()
    out.say("Claimed: an upper bound on what a person loses. Proved: a lower bound, from the attack's hits.")
    out.say(f"Power: the chance to notice {planted or 'noise / 1.4'}.")
    out.say("A claim is tested on its whole curve, so it may fall though the bound at this delta stays below it.")
    out.say("One that is not refuted is not thereby proved.")
    if planted:
        out.result("The planted bug was found." if fine else "The planted bug was NOT found; try --effort 10.")
        return
    ours, papers = ([finding for finding in findings if finding.ours is own] for own in (True, False))
    verdicts = []
    if ours:
        verdicts.append(f"{sum(not finding.refuted for finding in ours)} of {len(ours)} claims of ours stand.")
    if papers:
        fallen = sum(finding.refuted for finding in papers)
        verdicts.append(f"{fallen} of {len(papers)} claims of papers fall, as documented.")
    out.result(" ".join(verdicts))
