"""`colonnade synthesize`: a synthetic table of all parties' columns."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, Literal

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
    parts,
    party_norms,
    run,
)
from colonnade.cli.output import Output, Quiet
from colonnade.errors import BadArguments

if TYPE_CHECKING:
    from colonnade.federation.method import Method

MethodName = Literal["copula-sqm", "vertimrf", "vcds", "evcds", "ievcds"]
RANKS = ("vcds", "evcds", "ievcds")

# Which methods know an option, in the words of the command line.
KNOWN_BY: dict[str, tuple[str, ...]] = {
    "presence": ("copula-sqm",),
    "clip": ("copula-sqm",),
    "expected": ("copula-sqm", *RANKS),
    "view": ("copula-sqm", "vertimrf"),
    "relation": ("copula-sqm", "vertimrf"),
    "encoder": ("vertimrf",),
    "cells": ("vertimrf",),
    "cuts": ("vertimrf",),
    "max_clique": ("vertimrf",),
    "accounting": RANKS,
    "split": RANKS,
    "noise": RANKS,
}


def synthesize(
    federation: FederationFile,
    epsilon: Annotated[
        float,
        typer.Option("--epsilon", help="A person's total epsilon over all parties.", show_default=False),
    ],
    method: Annotated[
        MethodName,
        typer.Option("--method", "-m", help="copula-sqm for numbers, vertimrf for categories, or the paper's methods."),
    ] = "copula-sqm",
    delta: Delta = 1e-6,
    rows: Annotated[
        int | None, typer.Option("--rows", help="Rows to write; as many as the cohort by default. They cost nothing.")
    ] = None,
    columns: ColumnNames = None,
    format: Annotated[Literal["parquet", "csv"], typer.Option("--format", help="Of the synthetic file.")] = "parquet",
    presence: Annotated[
        Literal["secret", "known"] | None,
        typer.Option("--presence", help="copula-sqm: share the mask like data, or show it to the share holders."),
    ] = None,
    clip: Clip = None,
    expected: Annotated[
        list[str] | None,
        typer.Option(
            "--expected",
            help="PARTY=PART or A+B=PART: expected parts of the records, for the plan's forecast (may be repeated).",
        ),
    ] = None,
    encoder: Annotated[
        Literal["sqm", "fm", "fo"] | None, typer.Option("--encoder", help="vertimrf: how cross-party tables are made.")
    ] = None,
    cells: Annotated[
        int | None, typer.Option("--cells", help="vertimrf: cells of a number without declared cuts; 16 by default.")
    ] = None,
    cuts: Annotated[
        Literal["declared", "quantiles"] | None,
        typer.Option("--cuts", help="vertimrf: these cells have equal width, or edges at private quantiles."),
    ] = None,
    max_clique: Annotated[
        int | None,
        typer.Option(
            "--max-clique", help="vertimrf: most cells of the field: its time and memory; by the number of records."
        ),
    ] = None,
    accounting: Annotated[
        Literal["record", "nominal"] | None,
        typer.Option("--accounting", help="vcds, evcds, ievcds: what epsilon means; nominal is not private."),
    ] = None,
    split: Annotated[
        Literal["theorem", "none"] | None,
        typer.Option("--split", help="vcds, evcds, ievcds: how a nominal epsilon is divided over columns."),
    ] = None,
    noise: Annotated[
        Literal["exact", "skellam"] | None,
        typer.Option("--noise", help="vcds, evcds, ievcds: flip comparisons, or add noise to ranks (faster)."),
    ] = None,
    view: ViewOption = "client",
    relation: RelationOption = "zero-out",
    name: Name = None,
    plan_only: PlanOnly = False,
    yes: Yes = False,
    quiet: Quiet = False,
) -> None:
    """Write one complete synthetic table of all parties' columns, from records that lack whole blocks.

    Shows the plan, asks on a terminal, runs, and writes a run folder with the table and the report.
    """
    special = {
        "presence": presence,
        "clip": party_norms(clip),
        "expected": parts(expected),
        "encoder": encoder,
        "cells": cells,
        "cuts": cuts,
        "max_clique": max_clique,
        "accounting": accounting,
        "split": split,
        "noise": noise,
        "view": None if view == "client" else view,
        "relation": None if relation == "zero-out" else relation,
    }
    made = chosen(
        method,
        {"epsilon": epsilon, "delta": delta, "rows": rows, "columns": names_of(columns), "format": format},
        {option: value for option, value in special.items() if value is not None},
    )
    run(federation, made, Output(quiet=quiet), name=name, yes=yes, plan_only=plan_only)


def chosen(method: str, common: dict[str, Any], special: dict[str, Any]) -> Method:
    """The method with its options; an option that it does not know is refused by name."""
    for option in special:
        if method not in KNOWN_BY[option]:
            name, known = option.replace("_", "-"), ", ".join(KNOWN_BY[option])
            raise BadArguments(f"--{name} has no meaning for --method {method}; it belongs to {known}: leave it out.")
    from colonnade.federation.method import method_class

    made: Method = method_class(method)(**common, **special)
    return made
