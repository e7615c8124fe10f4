"""`colonnade describe`: noisy counts and marginals of every party's columns."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from colonnade.cli.output import Output, Quiet
from colonnade.cli.running import conduct, open_federation, say_total
from colonnade.errors import NotApproved

if TYPE_CHECKING:
    from colonnade.statistics.describe import Describe

FederationFile = Annotated[
    Path, typer.Option("--federation", "-f", help="The federation.toml (docs/federation-toml.md).", show_default=False)
]
Epsilon = Annotated[
    float, typer.Option("--epsilon", help="A person's total epsilon over all parties.", show_default=False)
]
Delta = Annotated[float, typer.Option("--delta", help="Its delta; 0 takes Laplace noise, otherwise Gaussian.")]
Marginals = Annotated[
    Literal["histogram", "quantiles"],
    typer.Option("--marginals", help="Counts in cells, or quantiles of numeric columns (better if skewed)."),
]
Bins = Annotated[int, typer.Option("--bins", help="Cells of a continuous or long count column.")]
ColumnNames = Annotated[
    list[str] | None,
    typer.Option("--columns", help="Which columns, with commas between; all by default. May be repeated."),
]


def describe(
    federation: FederationFile,
    epsilon: Epsilon,
    delta: Delta = 1e-6,
    marginals: Marginals = "histogram",
    bins: Bins = 20,
    columns: ColumnNames = None,
    name: Annotated[str | None, typer.Option("--name", help="Name of the run folder; made up by default.")] = None,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="On a terminal: run without asking.")] = False,
    quiet: Quiet = False,
) -> None:
    """Count each party's records and describe each column, with differential privacy.

    Shows the plan, asks on a terminal, runs, and writes a run folder with the report.
    """
    out = Output(quiet=quiet)
    method = chosen(epsilon, delta, marginals, bins, columns)
    with open_federation(federation, out) as opened:
        plan = opened.plan(method)
        say_total(plan, out)
        for note in plan.notes:
            out.say(note)
        if out.terminal and sys.stdin.isatty() and not (yes or quiet) and not typer.confirm("Run it?"):
            raise NotApproved("not run: you said no; nothing was spent.")
        conduct(opened, method, out, name=name, again="resume it with `colonnade resume RUN`")


def chosen(
    epsilon: float,
    delta: float,
    marginals: Literal["histogram", "quantiles"],
    bins: int,
    columns: list[str] | None,
) -> Describe:
    """The method that the options ask for."""
    from colonnade.statistics.describe import Describe

    names = None if columns is None else tuple(name.strip() for each in columns for name in each.split(","))
    return Describe(epsilon=epsilon, delta=delta, marginals=marginals, bins=bins, columns=names)
