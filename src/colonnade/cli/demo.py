"""`colonnade demo`: five simulated institutions describe their firms together."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Annotated

import typer

from colonnade.cli.output import Output, Quiet
from colonnade.cli.running import conduct, say_total


def demo(
    out: Annotated[Path, typer.Option("--out", help="Folder for the parties' ledgers and the runs.")] = Path(
        "colonnade-demo"
    ),
    n: Annotated[int, typer.Option("--n", help="Number of simulated firms.")] = 20_000,
    seed: Annotated[
        int | None,
        typer.Option("--seed", help="Make the noise repeatable, which protects nobody.", show_default=False),
    ] = None,
    quiet: Quiet = False,
) -> None:
    """Run `describe` on five simulated institutions and write a report.

    The firms are simulated; border, ledgers, noise and transcript are the real ones.
    """
    from colonnade.data.simulated import five_institutions
    from colonnade.federation.coordinator import Federation
    from colonnade.statistics.describe import Describe

    output = Output(quiet=quiet)
    example = five_institutions(n, seed=0)
    output.say(example.description)
    method = Describe(epsilon=1.0, delta=1e-6)
    with Federation.local(
        example.blocks,
        key=example.key,
        columns=example.columns,
        organisations=example.organisations,
        home=out / "home",
        runs=out / "runs",
        seed=seed,
    ) as federation:
        plan = federation.plan(method)
        say_total(plan, output)
        output.say(
            "What each institution wrote down: colonnade ledger show"
            f" {shlex.quote(str(out / 'home' / example.parties[0]))} (and the folders beside it)"
        )
        conduct(federation, method, output, name=None, again="see RUN, or just run `colonnade demo` once more")
