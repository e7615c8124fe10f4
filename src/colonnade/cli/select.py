"""`colonnade select`: which columns explain a response, by a sparse generalized linear model."""

from __future__ import annotations

from typing import Annotated, Literal

import typer

from colonnade.cli.describe import ColumnNames, FederationFile
from colonnade.cli.models import (
    Clip,
    Delta,
    Name,
    PlanOnly,
    RelationOption,
    ViewOption,
    Yes,
    names_of,
    party_norms,
    run,
)
from colonnade.cli.output import Output, Quiet


def select(
    federation: FederationFile,
    response: Annotated[str, typer.Option("--response", "-r", help="The column to explain.", show_default=False)],
    columns: ColumnNames = None,
    family: Annotated[
        Literal["gaussian", "binomial", "poisson"], typer.Option("--family", help="Of the response.")
    ] = "gaussian",
    penalty: Annotated[
        Literal["scad", "mcp", "lasso"], typer.Option("--penalty", help="On the size of the coefficients.")
    ] = "scad",
    criterion: Annotated[
        Literal["bic", "cv"], typer.Option("--criterion", help="How lambda is chosen: BIC, or cross-validation.")
    ] = "bic",
    lambdas: Annotated[int, typer.Option("--lambdas", help="Values of lambda on the path.")] = 50,
    epsilon: Annotated[
        float | None,
        typer.Option("--epsilon", help="A person's total. Without it sums are exact, which parties must allow."),
    ] = None,
    delta: Delta = 1e-6,
    clip: Clip = None,
    view: ViewOption = "client",
    relation: RelationOption = "zero-out",
    name: Name = None,
    plan_only: PlanOnly = False,
    yes: Yes = False,
    quiet: Quiet = False,
) -> None:
    """Choose the columns that explain a response, and estimate their effects.

    Shows the plan, asks on a terminal, runs, and writes a run folder with the path of models and the report.
    """
    from colonnade.models.sparse.select import SparseGLM

    method = SparseGLM(
        response=response,
        columns=names_of(columns),
        family=family,
        penalty=penalty,
        criterion=criterion,
        n_lambdas=lambdas,
        epsilon=epsilon,
        delta=delta,
        clip=party_norms(clip),
        view=view,
        relation=relation,
    )
    run(federation, method, Output(quiet=quiet), name=name, yes=yes, plan_only=plan_only)
