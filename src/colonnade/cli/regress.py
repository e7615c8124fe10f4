"""`colonnade regress`: linear regression over parties that each lack whole blocks of records."""

from __future__ import annotations

from typing import Annotated, Literal

import typer

from colonnade.cli.describe import ColumnNames, FederationFile
from colonnade.cli.models import Delta, Name, PlanOnly, Yes, names_of, run
from colonnade.cli.output import Output, Quiet


def regress(
    federation: FederationFile,
    response: Annotated[str, typer.Option("--response", "-r", help="The column to explain.", show_default=False)],
    columns: ColumnNames = None,
    epsilon: Annotated[
        float | None,
        typer.Option("--epsilon", help="A person's total. Without it moments are exact, which parties must allow."),
    ] = None,
    delta: Delta = 1e-6,
    cross_party: Annotated[
        Literal["full", "independent"],
        typer.Option("--cross-party", help="independent: the paper's model, columns of two parties uncorrelated."),
    ] = "full",
    missing: Annotated[
        Literal["em", "complete-case", "mean", "single"],
        typer.Option("--missing", help="em uses every record; the others are baselines to compare with."),
    ] = "em",
    step: Annotated[
        Literal["gradient", "exact"], typer.Option("--step", help="independent: the paper's rounds, or closed form.")
    ] = "exact",
    exchange: Annotated[
        Literal["masked", "plain"], typer.Option("--exchange", help="The rounds: sums of predictors, or each of them.")
    ] = "masked",
    minimum_joint: Annotated[
        int, typer.Option("--minimum-joint", help="Records per feature that a pair of parties must share.")
    ] = 10,
    name: Name = None,
    plan_only: PlanOnly = False,
    yes: Yes = False,
    quiet: Quiet = False,
) -> None:
    """Regress one column on the others, with standard errors that know about missing blocks and noise.

    Shows the plan, asks on a terminal, runs, and writes a run folder with the summary table and the report.
    """
    from colonnade.models.linear.regress import VFEM

    method = VFEM(
        response=response,
        columns=names_of(columns),
        epsilon=epsilon,
        delta=delta,
        cross_party=cross_party,
        missing=missing,
        step=step,
        exchange=exchange,
        minimum_joint=minimum_joint,
    )
    run(federation, method, Output(quiet=quiet), name=name, yes=yes, plan_only=plan_only)
