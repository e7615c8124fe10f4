"""`colonnade demo`: five simulated institutions, from aligned records to a synthetic table and a regression."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

import colonnade as co
from colonnade.cli.output import Output, Quiet
from colonnade.cli.running import execute, say_total, show
from colonnade.formatting import number

if TYPE_CHECKING:
    from colonnade.data.simulated.example import Example
    from colonnade.federation.config import Spec
    from colonnade.federation.coordinator import Federation
    from colonnade.federation.plan import Plan
    from colonnade.federation.run_folder import RunFolder

RESPONSE = "profit_growth"
REGRESSED = ("roa", "sales_growth", "liability_ratio", "capital", "investors", "changes", RESPONSE)
"""Of the two institutions with most records: the response party and the credit agency."""
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
    from colonnade.data.simulated.example import write_example
    from colonnade.evaluation.story import write_story
    from colonnade.federation.config import Spec
    from colonnade.federation.coordinator import Federation

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
    runs = {"align": _align(spec, out / "runs", output)}
    with Federation.from_spec(spec, runs=out / "runs") as federation:
        runs["describe"] = _describe(federation, output)
        runs["synthesize"] = _synthesize(federation, example, runs["describe"], output)
        runs["regress"] = _regress(federation, output)
    output.say()
    output.say(
        "What each institution wrote down: colonnade ledger show"
        f" {shlex.quote(str(out / 'home' / example.parties[0]))} (and the folders beside it)"
    )
    with output.busy("fitting the same regression to the truth"):
        index = write_story(out / "index.html", example, runs, response=RESPONSE)
    output.result(str(index.absolute()) if quiet else f"Open: {index.absolute()}")


def _align(spec: Spec, runs: Path, output: Output) -> RunFolder:
    from colonnade.alignment.session import align
    from colonnade.evaluation.report import write_report

    output.say()
    output.say("1. Align: the institutions line their firms up, without showing who is not shared.")
    with output.progress() as progress:
        result, run = align(spec, runs=runs, progress=progress)
    write_report(run)
    largest = sorted(result.rows(), key=lambda pattern: -pattern[1])[:MOST_ROWS]
    title = f"{result.n:,} firms; the {len(largest)} largest patterns"
    rows = [(" + ".join(parties), number(count)) for parties, count in largest]
    output.table(title, ("firms that exactly these hold", "noisy number"), rows, numeric=(1,))
    return run


def _describe(federation: Federation, output: Output) -> RunFolder:
    from colonnade.evaluation.report import view_of

    output.say()
    output.say("2. Describe: each institution says how much it holds, with noise.")
    run = _run(federation, federation.plan(co.Describe(epsilon=0.5, delta=1e-6)), output)
    show(view_of(run), output, most_tables=1)
    return run


def _synthesize(federation: Federation, example: Example, described: RunFolder, output: Output) -> RunFolder:
    from colonnade.evaluation.comparison import compare_with_truth
    from colonnade.evaluation.report import COMPARISON, write_report
    from colonnade.synthesis.table import read_table

    # The noisy counts of step 2 are known by now: they say how much noise to expect between two institutions.
    presence = described.read_json("result.json")["presence"]
    expected = {party: min(max(count / federation.facts.n, 1e-3), 1.0) for party, count in presence.items()}
    plan = federation.plan(co.Synthesize(model="copula", epsilon=4.0, delta=1e-6, expected=expected))
    output.say()
    output.say("3. Plan: what a synthetic table will ask, show and cost, before any data is touched.")
    for stage in plan.stages:
        output.say(f"    {stage.name}: {stage.discloses}; seen by {stage.audience}")
    for note in plan.notes:
        if note.startswith(("Forecast by pair", "WARNING")):
            output.say(f"    {note}")
    say_total(plan, output)
    output.say()
    output.say("4. Synthesize: noisy moments on secret shares; a complete table is drawn from them.")
    run = execute(federation, plan, output, name=None, again=AGAIN)
    with output.busy("fitting a regression to the synthetic table, and to the truth"):
        owners = {name: party for party, columns in federation.facts.columns.items() for name in columns}
        comparison = compare_with_truth(read_table(run), example, RESPONSE, owners=owners)
    run.write_json(COMPARISON, comparison)
    output.say(
        f"A regression of {RESPONSE} on the synthetic table: its effects correlate {comparison['agreement']:.2f} with"
        " the true ones, which only a simulation knows. The report has them side by side."
    )
    write_report(run, remarks=federation.remarks)
    return run


def _regress(federation: Federation, output: Output) -> RunFolder:
    from colonnade.evaluation.report import view_of

    output.say()
    output.say(f"5. Regress: {RESPONSE} on columns of two institutions, with noise, from firms that lack whole blocks.")
    method = co.Regress(response=RESPONSE, columns=REGRESSED, epsilon=4.0, delta=1e-6)
    run = _run(federation, federation.plan(method), output)
    show(view_of(run), output)
    return run


def _run(federation: Federation, plan: Plan, output: Output) -> RunFolder:
    from colonnade.evaluation.report import write_report

    say_total(plan, output)
    run = execute(federation, plan, output, name=None, again=AGAIN)
    write_report(run, remarks=federation.remarks)
    return run
