"""`colonnade demo`: five simulated institutions describe their firms and write one synthetic table together."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from colonnade.cli.output import Output, Quiet
from colonnade.cli.running import execute, finish, say_total

if TYPE_CHECKING:
    from colonnade.data.simulated.example import Example
    from colonnade.federation.coordinator import Federation

RESPONSE = "profit_growth"
AGAIN = "see RUN, or just run `colonnade demo` once more"


def demo(
    out: Annotated[Path, typer.Option("--out", help="Folder for the parties' ledgers and the runs.")] = Path(
        "colonnade-demo"
    ),
    n: Annotated[int, typer.Option("--n", help="Number of simulated firms.")] = 100_000,
    seed: Annotated[
        int | None,
        typer.Option("--seed", help="Make the noise repeatable, which protects nobody.", show_default=False),
    ] = None,
    quiet: Quiet = False,
) -> None:
    """Run `describe` and `synthesize` on five simulated institutions, and compare with the truth.

    The firms are simulated; border, ledgers, noise, secret shares and transcript are the real ones.
    """
    from colonnade.data.simulated import five_institutions
    from colonnade.federation.coordinator import Federation

    output = Output(quiet=quiet)
    with output.busy(f"simulating {n:,} firms"):
        example = five_institutions(n, seed=0)
    output.say(example.description)
    with Federation.local(
        example.blocks,
        key=example.key,
        columns=example.columns,
        organisations=example.organisations,
        home=out / "home",
        runs=out / "runs",
        seed=seed,
    ) as federation:
        _describe(federation, output)
        output.say(
            "What each institution wrote down: colonnade ledger show"
            f" {shlex.quote(str(out / 'home' / example.parties[0]))} (and the folders beside it)"
        )
        _synthesize(federation, example, output)


def _describe(federation: Federation, output: Output) -> None:
    from colonnade.evaluation import report_description as told
    from colonnade.evaluation.report import write_report
    from colonnade.statistics.describe import Describe

    output.say()
    output.say("1. Each institution says how much it holds, with noise.")
    method = Describe(epsilon=0.5, delta=1e-6)
    say_total(federation.plan(method), output)
    run = execute(federation, method, output, name=None, again=AGAIN)
    result = run.read_json("result.json")
    title = f"{result['n']:,} firms; ± is two standard deviations of the noise"
    output.table(title, told.PARTY_HEAD, told.party_rows(result), numeric=(1, 2, 3))
    output.say(f"More: {write_report(run, remarks=federation.remarks).absolute()}")


def _synthesize(federation: Federation, example: Example, output: Output) -> None:
    from colonnade.evaluation.comparison import compare
    from colonnade.evaluation.report import COMPARISON
    from colonnade.synthesis.copula.sqm import CopulaSQM
    from colonnade.synthesis.table import read_table

    output.say()
    output.say("2. All five compute noisy moments on secret shares; a complete synthetic table is drawn from them.")
    method = CopulaSQM(epsilon=2.5, delta=1e-6)
    plan = federation.plan(method)
    say_total(plan, output)
    run = execute(federation, method, output, name=None, again=AGAIN)

    with output.busy("fitting a regression to the synthetic table, and to the truth"):
        owners = {name: party for party, columns in federation.facts.columns.items() for name in columns}
        found = compare(read_table(run), example, RESPONSE, owners=owners)
    run.write_json(COMPARISON, found)
    output.say(
        f"A regression of {RESPONSE} on the synthetic table: its effects correlate {found['agreement']:.2f} with the"
        " true ones, which only a simulation knows. The report has them side by side."
    )
    finish(federation, run, output)
