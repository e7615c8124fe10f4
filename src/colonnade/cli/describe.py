"""`colonnade describe`: noisy counts and marginals of every party's columns."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from colonnade.cli.models import Name, Yes, names_of, run
from colonnade.cli.output import Output, Quiet

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
    name: Name = None,
    yes: Yes = False,
    quiet: Quiet = False,
) -> None:
    """Count each party's records and describe each column, with differential privacy.

    Shows the plan, asks on a terminal, runs, and writes a run folder with the report.
    """
    run(federation, chosen(epsilon, delta, marginals, bins, columns), Output(quiet=quiet), name=name, yes=yes)


def chosen(
    epsilon: float,
    delta: float,
    marginals: Literal["histogram", "quantiles"],
    bins: int,
    columns: list[str] | None,
) -> Describe:
    """The method that the options ask for."""
    from colonnade.statistics.describe import Describe

    return Describe(epsilon=epsilon, delta=delta, marginals=marginals, bins=bins, columns=names_of(columns))
