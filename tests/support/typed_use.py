"""What a type checker says of a user's program. `make types` reads it: a line marked with an error must have that
error, since mypy also refuses a mark that is not needed."""

from __future__ import annotations

import pandas as pd

import colonnade as co
from colonnade import papers
from colonnade.federation.plan import Plan
from colonnade.models.linear.result import Regression
from colonnade.synthesis.table import SyntheticTable


def right(blocks: dict[str, pd.DataFrame]) -> pd.DataFrame:
    """Lists pass for options that take several values, and every result has its own type."""
    columns = co.draft(blocks, key="id").confirmed()
    with co.Federation.local(blocks, key="id", columns=columns, allow=["presence"]) as federation:
        method = co.Regress(response="y", columns=["a", "b", "y"], epsilon=3)
        plan: Plan = federation.plan(method)
        fit: Regression = method.fit(federation)
        table: SyntheticTable = co.Synthesize(epsilon=1.0, constraints=["a <= b"]).fit(federation)
        co.Tables(tables=[("a", "b"), ["b"]], epsilon=1.0).fit(federation)
        co.Select(response="y", lambdas=[0.1, 0.2]).fit(federation)
        co.Complete(parties=["clinic"]).fit(federation)
        papers.VCDS(epsilon=1.0).fit(federation)
        said: str = plan.text() + fit.summary() + repr(fit.wald_test("a = 0"))
        intervals: pd.DataFrame = fit.conf_int(alpha=0.1)
        assert len(intervals) == len(fit.params)
        assert said
        return table.sample(10, seed=1, where={"a": (30, 40)})


def wrong(federation: co.Federation, table: SyntheticTable) -> None:
    co.Federation.local({}, key="id", columns="columns.toml", alow=["presence"])  # type: ignore[call-arg]
    co.Federation.local({}, key="id", columns="columns.toml", transport="proceses")  # type: ignore[arg-type]
    co.Regress(response="y", epsilom=1.0)  # type: ignore[call-arg]
    co.Regress.from_formula("y ~ a", eps=1.0)  # type: ignore[call-arg]
    co.Align(capacity={"a": 10}, epsilom=1.0)  # type: ignore[call-arg]
    co.Synthesize(epsilon="1")  # type: ignore[arg-type]
    co.Synthesize(model="fild")  # type: ignore[arg-type]
    co.Select(penalty="scad")  # type: ignore[call-arg]
    co.Describe(epsilon=1.0).fit(federation, surely=True)  # type: ignore[call-arg]
    co.Describe(epsilon=1.0).fit({})  # type: ignore[arg-type]
    co.Column(name="a", kind="continous")  # type: ignore[arg-type]
    co.Budget(epsilon=1.0, dela=1e-6)  # type: ignore[call-arg]
    co.Regres(response="y")  # type: ignore[attr-defined]
    papers.VFEM(response="y", solvr="rounds")  # type: ignore[call-arg]
    papers.VFEN(response="y")  # type: ignore[attr-defined]
    table.sample(10, wher={"a": 1})  # type: ignore[call-arg]
