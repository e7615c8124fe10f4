"""`colonnade demo`: five simulated institutions, from aligned records to a synthetic table and a regression."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from colonnade.cli.output import Output, Quiet
from colonnade.cli.running import execute, say_total

if TYPE_CHECKING:
    from colonnade.data.simulated.example import Example
    from colonnade.evaluation.report import Shown
    from colonnade.federation.coordinator import Federation
    from colonnade.federation.local import Spec
    from colonnade.federation.run_folder import RunFolder

RESPONSE = "profit_growth"
REGRESSED = ("roa", "sales_growth", "liability_ratio", "capital", "investors", "changes", RESPONSE)
"""Of the two institutions with most records: the response holder and the credit agency."""
MOST_ROWS = 8
AGAIN = "see RUN, or just run `colonnade demo` once more"


def demo(
    out: Annotated[Path, typer.Option("--out", help="Folder for the parties' ledgers and the runs.")] = Path(
        "colonnade-demo"
    ),
    n: Annotated[int, typer.Option("--n", help="Number of simulated firms.")] = 40_000,
    seed: Annotated[
        int | None,
        typer.Option("--seed", help="Make the noise repeatable, which protects nobody.", show_default=False),
    ] = None,
    write: Annotated[
        Path | None,
        typer.Option("--write", help="Only write the example's files here, to try the verbs on.", show_default=False),
    ] = None,
    quiet: Quiet = False,
) -> None:
    """Tell the whole story on five simulated institutions: align, describe, plan, synthesize, regress, report.

    The firms are simulated; border, ledgers, noise, secret shares and transcript are the real ones.
    """
    from colonnade.data.simulated import five_institutions
    from colonnade.data.simulated.files import write_example
    from colonnade.evaluation.report_index import write_index
    from colonnade.federation.coordinator import Federation
    from colonnade.federation.local import Spec

    output = Output(quiet=quiet)
    with output.busy(f"simulating {n:,} firms"):
        example = five_institutions(n, seed=0)
    if write is not None:
        output.result(f"Try: colonnade describe -f {shlex.quote(str(write_example(example, write)))} --epsilon 1")
        return
    output.say(example.description)
    spec = Spec(
        blocks=dict(example.blocks),
        key=example.key,
        columns=example.columns,
        organisations=example.organisations,
        home=out / "home",
        allow=("alignment", "presence"),
        seed=seed,
    )
    runs = [_align(spec, out / "runs", output)]
    with Federation.from_spec(spec, runs=out / "runs") as federation:
        described = _describe(federation, output)
        runs += [described, _synthesize(federation, example, described, output)]
        runs.append(_regress(federation, example, output))
    output.say()
    output.say(
        "What each institution wrote down: colonnade ledger show"
        f" {shlex.quote(str(out / 'home' / example.parties[0]))} (and the folders beside it)"
    )
    index = write_index(out / "index.html", runs, title=f"{n:,} simulated firms at {len(example.parties)} institutions")
    output.result(str(index.absolute()) if quiet else f"Open: {index.absolute()}")


def _align(spec: Spec, runs: Path, output: Output) -> RunFolder:
    from colonnade.alignment.session import align
    from colonnade.evaluation import report_alignment as told
    from colonnade.evaluation.report import write_report

    output.say()
    output.say("1. Align: the institutions line their firms up, without showing who is not shared.")
    with output.progress() as progress:
        result, run = align(spec, runs=runs, progress=progress)
    write_report(run)
    plain = run.read_json("result.json")
    largest = sorted(plain["patterns"], key=lambda one: -one["count"])
    shown = told.pattern_rows({**plain, "patterns": largest[:MOST_ROWS]})
    output.table(f"{result.n:,} firms; the {len(shown)} largest patterns", told.PATTERN_HEAD, shown, numeric=(1,))
    return run


def _describe(federation: Federation, output: Output) -> RunFolder:
    from colonnade.evaluation import report_description as told
    from colonnade.evaluation.report import write_report
    from colonnade.statistics.describe import Describe

    output.say()
    output.say("2. Describe: each institution says how much it holds, with noise.")
    method = Describe(epsilon=0.5, delta=1e-6)
    say_total(federation.plan(method), output)
    run = execute(federation, method, output, name=None, again=AGAIN)
    result = run.read_json("result.json")
    title = f"{result['n']:,} firms; ± is two standard deviations of the noise"
    output.table(title, told.PARTY_HEAD, told.party_rows(result), numeric=(1, 2, 3))
    write_report(run, remarks=federation.remarks)
    return run


def _synthesize(federation: Federation, example: Example, described: RunFolder, output: Output) -> RunFolder:
    from colonnade.evaluation.comparison import compare_with_truth
    from colonnade.evaluation.report import COMPARISON, write_report
    from colonnade.synthesis.copula.procedure import CopulaSQM
    from colonnade.synthesis.table import read_table

    # The noisy counts of step 2 are known by now: they say how much noise to expect between two institutions.
    presence = described.read_json("result.json")["presence"]
    expected = {party: min(max(count / federation.facts.n, 1e-3), 1.0) for party, count in presence.items()}
    method = CopulaSQM(epsilon=4.0, delta=1e-6, expected=expected)
    plan = federation.plan(method)
    output.say()
    output.say("3. Plan: what a synthetic table will ask, show and cost, before any data is touched.")
    for one in plan.stages:
        output.say(f"    {one.name}: {one.discloses}; seen by {one.audience}")
    for note in plan.notes:
        if note.startswith(("Forecast by pair", "WARNING")):
            output.say(f"    {note}")
    say_total(plan, output)
    output.say()
    output.say("4. Synthesize: noisy moments on secret shares; a complete table is drawn from them.")
    run = execute(federation, method, output, name=None, again=AGAIN)
    with output.busy("fitting a regression to the synthetic table, and to the truth"):
        owners = {name: party for party, columns in federation.facts.columns.items() for name in columns}
        found = compare_with_truth(read_table(run), example, RESPONSE, owners=owners)
    run.write_json(COMPARISON, found)
    output.say(
        f"A regression of {RESPONSE} on the synthetic table: its effects correlate {found['agreement']:.2f} with the"
        " true ones, which only a simulation knows. The report has them side by side."
    )
    write_report(run, remarks=federation.remarks)
    return run


def _regress(federation: Federation, example: Example, output: Output) -> RunFolder:
    from colonnade.evaluation.report import kind_of, write_report
    from colonnade.models.linear.regress import VFEM

    output.say()
    output.say(f"5. Regress: {RESPONSE} on columns of two institutions, with noise, from firms that lack whole blocks.")
    method = VFEM(response=RESPONSE, columns=REGRESSED, epsilon=4.0, delta=1e-6)
    say_total(federation.plan(method), output)
    run = execute(federation, method, output, name=None, again=AGAIN)
    result = run.read_json("result.json")
    shown: Shown
    for shown in kind_of(run, result).terminal(result):
        output.table(shown.title, shown.head, shown.rows, numeric=shown.numeric)
    write_report(run, remarks=federation.remarks)
    return run
