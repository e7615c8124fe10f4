"""`colonnade complete`: fill in the records that parties lack."""

from __future__ import annotations

from typing import Annotated, Literal

import typer

from colonnade.cli.describe import FederationFile
from colonnade.cli.models import Delta, Name, PlanOnly, Yes, names_of, run
from colonnade.cli.output import Output, Quiet


def complete(
    federation: FederationFile,
    parties: Annotated[
        list[str] | None,
        typer.Option("--complete", help="A party to complete (may be repeated); all that lack records by default."),
    ] = None,
    imputer: Annotated[
        Literal["regression", "gain", "vgain", "cgain", "copula-mean", "copula-draw", "mice", "mean"],
        typer.Option("--imputer", help="What fills in the columns."),
    ] = "regression",
    correlated: Annotated[
        int, typer.Option("--correlated", help="Columns that a local generator draws before the rest is filled in.")
    ] = 0,
    generator: Annotated[
        Literal["tabddpm", "tvae", "copula"], typer.Option("--generator", help="Of the correlated columns.")
    ] = "tabddpm",
    condition: Annotated[
        Literal["aligned", "none"],
        typer.Option("--condition", help="Condition generated columns on what other parties know, or on nothing."),
    ] = "aligned",
    protect: Annotated[
        Literal["masks", "ckks"], typer.Option("--protect", help="How hidden vectors travel: pads, or encryption.")
    ] = "masks",
    label: Annotated[
        str | None, typer.Option("--label", help="A column to condition on (cgain), or to classify afterwards.")
    ] = None,
    iterations: Annotated[int, typer.Option("--iterations", help="Of a network's training, at most.")] = 10_000,
    rate: Annotated[float, typer.Option("--rate", help="The networks' learning rate.")] = 1e-3,
    batch: Annotated[int, typer.Option("--batch", help="Records in one iteration.")] = 128,
    local: Annotated[int, typer.Option("--local", help="Iterations between two exchanges.")] = 25,
    validation: Annotated[
        float, typer.Option("--validation", help="The share of records that is hidden to measure the error.")
    ] = 0.1,
    epsilon: Annotated[
        float | None,
        typer.Option(
            "--epsilon", help="A person's total of the trained weights; trains with noise (regression and GANs)."
        ),
    ] = None,
    delta: Delta = 1e-6,
    epochs: Annotated[int, typer.Option("--epochs", help="Of training with noise: passes over the records.")] = 10,
    clip: Annotated[
        float, typer.Option("--clip", help="Of training with noise: the most that a record may move a sum.")
    ] = 1.0,
    seed: Annotated[
        int, typer.Option("--seed", help="Of batches and hidden records, which are public; another one, other records.")
    ] = 0,
    file_format: Annotated[
        Literal["parquet", "csv"], typer.Option("--format", help="Of the completed tables.")
    ] = "parquet",
    name: Name = None,
    plan_only: PlanOnly = False,
    yes: Yes = False,
    quiet: Quiet = False,
) -> None:
    """Fill in the records that parties lack, from what the others know about them.

    Completed tables are written in each party's own folder, with generated entries flagged; the run folder gets how
    near to the truth they are, on records that were hidden to find out.
    """
    from colonnade.completion.method import FedPSG

    method = FedPSG(
        complete=names_of(parties),
        imputer=imputer,
        n_correlated=correlated,
        generator=generator,
        condition=condition,
        protect=protect,
        label=label,
        iterations=iterations,
        rate=rate,
        batch=batch,
        local=local,
        validation=validation,
        epsilon=epsilon,
        delta=delta,
        epochs=epochs,
        clip=clip,
        seed=seed,
        format=file_format,
    )
    run(federation, method, Output(quiet=quiet), name=name, yes=yes, plan_only=plan_only)
