"""`colonnade plan ...`: every cost and message of a method, and nothing else."""

from __future__ import annotations

from typing import get_args

import typer

from colonnade.cli.describe import Bins, ColumnNames, Delta, Epsilon, FederationFile, Marginals, chosen
from colonnade.cli.output import AsJson, Output
from colonnade.cli.running import open_federation

app = typer.Typer(no_args_is_help=True, help="Print the plan of a method and run nothing.")


@app.command()
def describe(
    federation: FederationFile,
    epsilon: Epsilon,
    delta: Delta = 1e-6,
    marginals: Marginals = "histogram",
    bins: Bins = 20,
    columns: ColumnNames = None,
    as_json: AsJson = False,
) -> None:
    """Print what `colonnade describe` with the same options would ask, disclose and cost."""
    from colonnade.privacy.cost import Relation
    from colonnade.privacy.wording import guarantee_dict

    out = Output(quiet=as_json)
    method = chosen(epsilon, delta, marginals, bins, columns)
    with open_federation(federation, out) as opened:
        plan = opened.plan(method)
        out.say(plan.text())
        if as_json:
            totals = {relation: guarantee_dict(plan.total(relation=relation)) for relation in get_args(Relation)}
            out.json({"plan": plan.to_dict(), "person_total": totals})
