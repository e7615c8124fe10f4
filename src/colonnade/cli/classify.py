"""`colonnade classify`: logistic regression of a binary column on all parties' columns."""

from __future__ import annotations

from typing import Annotated, Literal

import typer

from colonnade.cli.describe import ColumnNames, Epsilon, FederationFile
from colonnade.cli.models import (
    Clip,
    Delta,
    Gamma,
    Name,
    PlanOnly,
    PresenceOption,
    RelationOption,
    ViewOption,
    Yes,
    names_of,
    norms,
    run,
)
from colonnade.cli.output import Output, Quiet


def classify(
    federation: FederationFile,
    response: Annotated[str, typer.Option("--response", help="The binary column to explain.", show_default=False)],
    epsilon: Epsilon,
    delta: Delta = 1e-6,
    solver: Annotated[
        Literal["moments", "minibatch"],
        typer.Option("--solver", help="One release of moments, or the paper's rounds of noisy gradients."),
    ] = "moments",
    gamma: Gamma = 2**12,
    columns: ColumnNames = None,
    clip: Clip = None,
    presence: PresenceOption = "ignore",
    view: ViewOption = "client",
    relation: RelationOption = "zero-out",
    sampling: Annotated[float, typer.Option("--sampling", help="minibatch: share of records in a batch.")] = 0.01,
    rounds: Annotated[int, typer.Option("--rounds", help="minibatch: number of batches.")] = 200,
    name: Name = None,
    plan_only: PlanOnly = False,
    yes: Yes = False,
    quiet: Quiet = False,
) -> None:
    """Predict a binary column from the columns of all parties, with differential privacy.

    Shows the plan, asks on a terminal, runs, and writes a run folder with the report.
    """
    from colonnade.models.classify import SQMLogistic

    method = SQMLogistic(
        response=response,
        solver=solver,
        epsilon=epsilon,
        delta=delta,
        gamma=gamma,
        columns=names_of(columns),
        clip=norms(clip),
        presence=presence,
        view=view,
        relation=relation,
        sampling=sampling,
        rounds=rounds,
    )
    run(federation, method, Output(quiet=quiet), name=name, yes=yes, plan_only=plan_only)
