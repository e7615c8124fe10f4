"""A run of each kind of result, small and quick: for the tests of reports in a browser, and for pictures of them."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from typer.testing import CliRunner

import colonnade as co
from colonnade import papers
from colonnade.cli.main import app
from colonnade.data.column import Columns
from colonnade.data.simulated import five_institutions
from colonnade.federation.coordinator import Federation
from colonnade.formatting import with_unit
from colonnade.view.blocks import SCALES, Figure

NUMBERS = ("capital", "roa", "inspections", "profit_growth")
FEW = ("capital", "profit_growth")
SQUARE = co.Polynomial.of([(0.5, {"roa": 2}), (-1.0, {"roa": 1, "capital": 1})])
ALLOWED = ("presence", "exact-moments", "presence-to-coordinator", "split-training", "completion-quality")
CASES: dict[str, Any] = {
    "describe": lambda: co.Describe(
        epsilon=1.0, delta=1e-6, columns=("capital", "fines", "region", "scale", "removed")
    ),
    "copula": lambda: co.Synthesize(model="copula", epsilon=3.0, delta=1e-6, columns=NUMBERS),
    "field": lambda: co.Synthesize(model="field", epsilon=4.0, columns=("scale", "removed", "penalty_1")),
    "vcds": lambda: papers.VCDS(epsilon=1.0, accounting="nominal", columns=("capital", "roa")),
    "regress": lambda: co.Regress(response="profit_growth", columns=NUMBERS),
    "regress private": lambda: co.Regress(response="profit_growth", columns=FEW, epsilon=10.0),
    "select": lambda: co.Select(response="profit_growth", columns=NUMBERS),
    "complete": lambda: co.Complete(imputer="mean", parties=("market",)),
    "pca": lambda: co.PCA(n_components=2, epsilon=4.0, delta=1e-6, columns=("capital", "roa", "fines")),
    "classify": lambda: co.Classify(response="failed", epsilon=4.0, columns=("capital", "roa"), solver="moments"),
    "moments": lambda: co.Moments(epsilon=4.0, columns=("capital", "roa", "scale")),
    "tables": lambda: co.Tables(tables=(("region",), ("inspections",), ("scale", "removed")), epsilon=2.0),
    "polynomial": lambda: co.PolynomialSum(polynomial=SQUARE, epsilon=8.0),
    "coverage": lambda: co.PresenceTotal(epsilon=1.0),
}
"""{what: the method that is run}."""
UNITS = {"capital": "million yuan", "fines": "yuan", "profit_growth": "%", "inspections": "visits"}


def unlabelled(figure: Figure, declared: Mapping[str, Columns]) -> list[str]:
    """Axes that are scales and do not say of what, and values of a column without its name and unit.

    An axis of names may do without a label, unless it has a column's numbers or ranges of them.
    """
    wrong = [axis for axis in SCALES[figure.chart] if not getattr(figure, axis)]
    owners = [columns for columns in declared.values() if figure.name in columns]
    if owners and figure.chart in ("bars", "histogram") and not (column := owners[0][figure.name]).discrete:
        shown = figure.x if figure.chart == "histogram" else figure.y
        wrong += [] if shown == with_unit(column.name, column.unit) else [f"unit of {column.name}: {shown!r}"]
    return wrong


def drafted(root: Path, records: int) -> Path:
    """What `init` shows of three tables."""
    tables = five_institutions(records, seed=3).blocks
    sources = [root / f"{name}.csv" for name in ("credit", "commerce", "market")]
    for source in sources:
        tables[source.stem].to_csv(source, index=False)
    with contextlib.chdir(root):
        done = CliRunner().invoke(app, ["init", *map(str, sources), "--key", "firm", "--yes"])
    assert done.exit_code == 0, done.output
    return root / "init.html"


@contextlib.contextmanager
def firms(folder: Path) -> Iterator[Federation]:
    """Five institutions that allow what these methods ask for."""
    example = five_institutions(3000, seed=5)
    columns = Columns(replace(column, unit=UNITS.get(name)) for name, column in example.columns.items())
    with Federation.local(
        example.blocks,
        key=example.key,
        columns=columns,
        organisations=example.organisations,
        home=folder / "home",
        runs=folder / "runs",
        allow=ALLOWED,
        seed=1,
    ) as federation:
        yield federation
