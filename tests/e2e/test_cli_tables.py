"""`colonnade synthesize`, `regress` and `select` from CSV files to the report."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pandas as pd
import pytest
from typer.testing import CliRunner

from colonnade.cli.main import app
from colonnade.data.column import Columns
from colonnade.data.simulated import five_institutions
from colonnade.federation.run_folder import RunFolder
from colonnade.synthesis.table import read_table

COLUMNS = "capital,roa,inspections,region,profit_growth"


@pytest.fixture(scope="module")
def federation(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Five institutions as CSV files with a federation.toml that allows exact moments."""
    folder = tmp_path_factory.mktemp("firms")
    example = five_institutions(4000, seed=3)
    lines = ['key = "firm"', 'columns = "columns.toml"']
    allowed = ("exact-moments", "presence", "presence-to-coordinator")
    lines.append(f"allow = {json.dumps(allowed)}")
    for party, frame in example.blocks.items():
        frame.to_csv(folder / f"{party}.csv", index=False)
        lines += [f"[parties.{party}]", f'source = "{party}.csv"']
    (folder / "columns.toml").write_text(example.columns.to_toml())
    (folder / "federation.toml").write_text("\n".join(lines))
    return folder / "federation.toml"


def run(federation: Path, *arguments: str, code: int = 0) -> str:
    done = CliRunner().invoke(app, [*arguments, "-f", str(federation), "--columns", COLUMNS])
    assert done.exit_code == code, (done.output, done.exception)
    return done.output if code == 0 else done.stderr


def report_of(said: str) -> tuple[str, RunFolder]:
    path = Path(said.strip().splitlines()[-1].removeprefix("Report: "))
    text = path.read_text(encoding="utf-8")
    assert "<script" not in text
    return text, RunFolder.open(path.parent)


@pytest.mark.parametrize(
    "verb",
    [
        ["synthesize"],
        ["synthesize", "--presence", "known", "--format", "csv"],
        ["papers", "vcds", "--accounting", "nominal", "--noise", "skellam"],
    ],
    ids=["default", "known", "vcds"],
)
def test_synthesize_writes_a_table_in_the_declared_domains(federation: Path, verb: list[str]) -> None:
    said = run(federation, *verb, "--epsilon", "5", "--rows", "500")
    text, folder = report_of(said)
    assert "A synthetic table of 500 rows and 5 columns" in text
    table = read_table(folder)
    assert list(table.columns) == COLUMNS.split(",") or set(table.columns) == set(COLUMNS.split(","))
    assert len(table) == 500
    assert not table.isna().any(axis=None)
    result = folder.read_json("result.json")
    for one in result["marginals"].values():
        assert sum(one["counts"]) == 500
    assert "profit_growth" in said  # the terminal has a line for each column


def test_the_random_field_has_the_cells_and_cuts_that_were_asked_for(federation: Path) -> None:
    """--cells bounds the distinct cells of a number, --cuts quantiles moves their edges, --max-clique bounds the field;
    rows lie in the declared domains, and the plan's options are those of the command."""
    asked = ["--epsilon", "5", "--rows", "300", "--cells", "5", "--cuts", "quantiles", "--max-clique", "400"]
    text, folder = report_of(run(federation, "synthesize", "--model", "field", *asked))
    assert "A synthetic table of 300 rows and 5 columns" in text
    result, plan = folder.read_json("result.json"), folder.read_json("plan.json")
    assert {name: plan["options"][name] for name in ("cells", "cuts", "max_clique")} == {
        "cells": 5,
        "cuts": "quantiles",
        "max_clique": 400,
    }
    assert any(stage["name"] == "private cuts" for stage in plan["stages"])
    assert result["details"]["cells"] <= 400
    declared = Columns.from_toml(federation.parent / "columns.toml")
    table = read_table(folder)
    assert not table.isna().any(axis=None)
    for name in table:
        declared[name].encode(table[name])


def test_the_plan_of_a_field_says_how_many_cells_there_are(federation: Path) -> None:
    """Four cells of a number without declared cuts, and one a category."""
    asked = ("--plan", "--cells", "4", "--cuts", "declared")
    said = run(federation, "synthesize", "--model", "field", "--epsilon", "5", *asked)
    declared = Columns.from_toml(federation.parent / "columns.toml")
    known = [declared[name].categories for name in COLUMNS.split(",")]
    cells = sum(4 if one is None else len(one) for one in known)
    assert f"5 columns with {cells} cells" in " ".join(said.split())
    assert "private cuts" not in said


@pytest.mark.parametrize(
    ("option", "value", "code", "cause"),
    [
        ("--cells", "0", 2, "cells must be at least 1 and at most 10,000, not 0"),
        ("--max-clique", "0", 2, "max_clique must be at least 1, not 0"),
        ("--max-clique", "20", 3, "raise max_clique"),
        ("--cuts", "even", 2, "declared|quantiles"),
    ],
)
def test_a_field_that_cannot_be_made_is_refused(
    federation: Path, option: str, value: str, code: int, cause: str
) -> None:
    before = sorted(federation.parent.glob("runs/*"))
    said = run(federation, "synthesize", "--model", "field", "--epsilon", "5", option, value, code=code)
    assert cause in " ".join(said.replace("│", " ").split())
    assert sorted(federation.parent.glob("runs/*")) == before


@pytest.mark.parametrize(("option", "value"), [("--cells", "5"), ("--cuts", "quantiles"), ("--max-clique", "400")])
def test_an_option_of_the_other_model_is_refused_by_name(federation: Path, option: str, value: str) -> None:
    said = run(federation, "synthesize", "--model", "copula", "--epsilon", "1", option, value, code=2)
    name = option.strip("-").replace("-", "_")
    assert f"{name} has no meaning with model='copula'; it belongs to model='auto' or model='field'" in said
    said = run(federation, "synthesize", "--epsilon", "1", "--clip", "2", code=2)
    assert "--clip '2' is not PARTY=NORM" in said


def test_a_plan_forecasts_the_noise_of_each_pair_of_parties(federation: Path) -> None:
    asked = ("synthesize", "--epsilon", "5", "--plan", "--expected", "credit=0.5", "--expected")
    said = run(federation, *asked, "credit+market=0.01")
    assert re.search(r"credit & market [0-9.]+ \(1 %\)", said)
    assert "left to maximum-determinant completion: credit & market" in said
    assert "is not PARTY=PART" in run(federation, *asked, "half", code=2)


def test_regress_prints_and_writes_the_coefficients(federation: Path) -> None:
    said = run(federation, "regress", "--response", "profit_growth", "--minimum-joint", "3")
    text, folder = report_of(said)
    result = folder.read_json("result.json")
    assert "P>|t|" in said
    for name in ("capital", "roa", "region[west]"):
        assert name in said
        assert name in text
        assert name in result["params"]
    written = pd.read_csv(folder.path / "coefficients.csv", index_col="name")
    assert written.loc["roa", "coef"] == pytest.approx(result["params"]["roa"])
    assert "Regression Results" in (folder.path / "summary.txt").read_text()


def test_select_chooses_columns(federation: Path) -> None:
    said = run(federation, "select", "--response", "profit_growth", "--penalty", "mcp", "--n-lambdas", "12")
    text, folder = report_of(said)
    result = folder.read_json("result.json")
    assert result["support"]
    assert f"of {len(result['params']) - 1} features explain profit_growth" in text
    assert len(pd.read_csv(folder.path / "path.csv")) == 12


def test_plan_shows_the_cost_and_spends_nothing(federation: Path) -> None:
    before = sorted(federation.parent.glob("runs/*"))
    said = run(federation, "synthesize", "--model", "copula", "--epsilon", "2", "--plan")
    assert "(2, 1e-06) per record, zero-out" in said
    facts = ("--constraint", "roa < 0.2", "--constraint", "capital > 3")
    said = " ".join(run(federation, "synthesize", "--epsilon", "2", "--plan", *facts).split())
    assert "Model: " in said
    assert "In every row: roa < 0.2; capital > 3." in said
    assert sorted(federation.parent.glob("runs/*")) == before


def test_an_unknown_response_is_refused(federation: Path) -> None:
    assert "fortune" in run(federation, "regress", "--response", "fortune", code=3)
