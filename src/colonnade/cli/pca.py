"""`colonnade pca`: principal components of all parties' columns."""

from __future__ import annotations

from typing import Annotated

import typer

from colonnade.cli.describe import ColumnNames, Epsilon, FederationFile
from colonnade.cli.models import (
    Clip,
    Delta,
    Gamma,
    Memory,
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


def pca(
    federation: FederationFile,
    epsilon: Epsilon,
    delta: Delta = 1e-6,
    components: Annotated[int, typer.Option("--components", "-k", help="How many components.")] = 5,
    gamma: Gamma = 2**12,
    columns: ColumnNames = None,
    clip: Clip = None,
    centre: Annotated[bool, typer.Option("--centre", help="Subtract the means, which are then released too.")] = False,
    presence: PresenceOption = "ignore",
    view: ViewOption = "client",
    relation: RelationOption = "zero-out",
    memory: Memory = None,
    name: Name = None,
    plan_only: PlanOnly = False,
    yes: Yes = False,
    quiet: Quiet = False,
) -> None:
    """Find the directions in which the records of all parties vary most, with differential privacy.

    Shows the plan, asks on a terminal, runs, and writes a run folder with the report.
    """
    from colonnade.models.pca import SQMPCA

    method = SQMPCA(
        n_components=components,
        epsilon=epsilon,
        delta=delta,
        gamma=gamma,
        columns=names_of(columns),
        clip=norms(clip),
        centre=centre,
        presence=presence,
        view=view,
        relation=relation,
        memory=memory,
    )
    run(federation, method, Output(quiet=quiet), name=name, yes=yes, plan_only=plan_only)
