"""The bundle for an output checker: counts, rules, hashes, and nothing that should stay."""

from __future__ import annotations

import csv
import hashlib
import json
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from typer.testing import CliRunner

import colonnade as co
from colonnade.cli.main import app
from colonnade.data.column import Column, Columns
from colonnade.errors import BadArguments, RunError
from colonnade.evaluation.release import Rules, checked, figures_of, write_release
from colonnade.evaluation.report import write_report
from colonnade.federation.run_folder import RunFolder
from colonnade.models.linear.regress import Regress
from colonnade.statistics.describe import Describe
from colonnade.statistics.tables import Tables
from colonnade.synthesis.table import read_table
from support.small import three_parties


def test_rules_are_judged_with_the_noise() -> None:
    rules = Rules(threshold=10, dominance=0.5)
    assert checked("a", 30, 5, rules).threshold == "passed"
    assert checked("a", 15, 5, rules).threshold == "cannot be told"
    assert checked("a", 9, 0, rules).threshold == "not passed"
    assert checked("a", -20, 5, rules).threshold == "not passed"
    assert checked("a", 1, 0, rules).dominance == "not passed"
    assert checked("a", 2, 0, rules).dominance == "passed"
    assert checked("a", 100, 0, rules).largest_share == pytest.approx(0.01)
    with pytest.raises(BadArguments):
        Rules(threshold=0)


def test_every_cell_of_a_table_is_a_figure() -> None:
    result = {
        "kind": "tables",
        "labels": {"a": ["x", "y"], "b": ["1", "2", "3"]},
        "tables": [{"columns": ["a", "b"], "counts": [[1, 20, 30], [4, 50, 60]], "noise_sd": 2.0}],
    }
    figures = figures_of("tables", result, Rules())
    assert [figure.figure for figure in figures][:2] == ["a = x, b = 1", "a = x, b = 2"]
    assert [figure.records for figure in figures] == [1, 20, 30, 4, 50, 60]


@pytest.mark.parametrize(
    ("method", "result", "figures"),
    [
        (
            "regress",
            {
                "kind": "regression",
                "nobs": 40,
                "params": {"const": 1.0, "age": 2.0},
                "loglik": None,  # exact logistic regression has none, and no noise either
                "count_sd": [0.0, 0.0],
                "parties": ["clinic", "bank"],
                "patterns": [{"present": [True, True], "count": 36}, {"present": [True, False], "count": 4}],
            },
            {
                "the regression (records used)": (40, 0, "passed"),
                "its degrees of freedom": (38, 0, "passed"),
                "records of exactly clinic + bank": (36, 0, "passed"),
                "records of exactly clinic": (4, 0, "not passed"),
            },
        ),
        (
            "select",
            {"kind": "selection", "nobs": 30, "support": ["age"], "count_sd": 12.0},
            {
                "the selection (records used)": (30, 12, "cannot be told"),
                "its degrees of freedom": (28, 12, "cannot be told"),
            },
        ),
        (
            "presence-total",
            {"kind": "coverage", "n": 500, "total": 12, "noise_sd": 3.0},
            {"blocks of records that are there": (12, 3, "cannot be told")},
        ),
        (
            "complete",
            {"kind": "completion", "n": 500, "missing": {"bank": 3}},
            {"records completed at bank": (3, 0, "not passed")},
        ),
        (
            "synthesize",
            {"kind": "synthetic-table", "cohort": 500},
            {"the synthetic table (the cohort, a public number)": (500, 0, "passed")},
        ),
        (
            "of a package that is not installed here",
            {"kind": "horoscope", "n": 9},
            {"the horoscope (the cohort, a public number)": (9, 0, "not passed")},
        ),
    ],
)
def test_a_figure_has_its_own_records_and_their_noise(
    method: str, result: dict[str, Any], figures: dict[str, tuple[float, float, str]]
) -> None:
    listed = figures_of(method, result, Rules())
    assert {own.figure: (own.records, own.noise_sd, own.threshold) for own in listed} == figures


def test_a_bundle_has_all_that_a_checker_needs(tmp_path: Path) -> None:
    with three_parties(tmp_path, allow=("exact-moments", "presence")) as federation:
        _, described = federation.run(Describe(epsilon=2.0), name="described")
        write_report(described)
        _, tables = federation.run(Tables(tables=(("sector", "rating"),), epsilon=5.0), name="tables")
        fit, fitted = federation.run(
            Regress(response="visits", columns=("age",), missing="single", minimum_joint=2), name="fitted"
        )
    out = tmp_path / "bundle"
    said = CliRunner().invoke(app, ["release", str(described.path), "--out", str(out)])
    assert said.exit_code == 0, said.output
    stated = json.loads((out / "release.json").read_text())
    assert stated["privacy"]["bounds"]["zero-out"].startswith("(2, ")
    assert {"records of clinic", "records of court"} <= {figure["figure"] for figure in stated["figures"]}
    assert stated["transcript"]["rows"] > 0
    assert len(stated["code"]) == 64
    for line in (out / "SHA256SUMS").read_text().splitlines():
        digest, name = line.split("  ")
        assert hashlib.sha256((out / name).read_bytes()).hexdigest() == digest
    assert {"outputs/report.html", "outputs/result.json", "outputs/plan.txt"} <= set(stated["outputs"])
    content = b"".join(path.read_bytes() for path in out.rglob("*") if path.is_file())
    assert described.job["entropy"].encode() not in content
    page = (out / "release.html").read_text()
    assert "<details" not in page
    assert "<script" not in page
    assert stated["plan"] in page
    assert "(epsilon, delta) = (2, " in page
    with pytest.raises(BadArguments, match="not empty"):
        write_release(described, out)

    write_release(tables, tmp_path / "second")
    counted = json.loads((tmp_path / "second" / "release.json").read_text())["figures"]
    assert len(counted) == 9
    write_release(fitted, tmp_path / "third", rules=Rules(threshold=1000))
    exact = json.loads((tmp_path / "third" / "release.json").read_text())
    page = (tmp_path / "third" / "release.html").read_text()
    said = page.partition("What it says")[2].partition("What it costs a person")[0]
    assert f"{fit.params['age']:.4g}" in said, "the checker reads the figures beside the rules"
    assert {figure["threshold"] for figure in exact["figures"]} == {"not passed"}
    assert "exact-moments" in " ".join(exact["privacy"]["shown without a bound"])
    assert len(exact["privacy"]["statement"]) == 1, "the same for both relations"
    assert not [what for what in exact["released"] if "noisy" in what]

    described.update(state="failed")
    with pytest.raises(RunError, match="not finished"):
        write_release(RunFolder.open(described.path), tmp_path / "fourth")


HOSTILE = ("=1+1", "+cmd|' /C calc'!A0", "-2+3", "@x", "\tq", "\rq", "a;=1+1", "  =1+1", "\uff1d1+1")


def test_no_csv_of_a_run_carries_a_formula(tmp_path: Path) -> None:
    """Names of columns, of categories and of keys that a spreadsheet program would compute."""
    rng = np.random.default_rng(1)
    keys = [f"-{number}+1" for number in range(400)]
    numbers = Column(name="=SUM(A1)", kind="continuous", lower=0.0, upper=1.0)
    words = Column(name="@level", kind="categorical", categories=HOSTILE)
    other = Column(name="+x", kind="binary", categories=("-no+1", "=yes"))
    blocks = {
        "clinic": pd.DataFrame({"=key": keys, numbers.name: rng.random(400)}),
        "court": pd.DataFrame({"=key": keys, words.name: rng.choice(HOSTILE, 400)}),
        "bank": pd.DataFrame({"=key": keys[:360], other.name: rng.choice(["-no+1", "=yes"], 360)}),
    }
    with co.Federation.local(
        blocks,
        key="=key",
        columns=Columns([numbers, words, other]),
        home=tmp_path / "home",
        runs=tmp_path / "runs",
        allow=("exact-moments", "presence", "split-training", "completion-quality"),
    ) as federation:
        table, synthetic = federation.run(co.Synthesize(model="field", epsilon=50.0, file_format="csv"), name="table")
        federation.run(Regress(response=numbers.name, missing="em"), name="fitted")
        federation.run(co.Select(response=numbers.name), name="chosen")
        federation.run(co.Complete(imputer="mean", parties=("bank",), file_format="csv"), name="filled")
    files = sorted(tmp_path.rglob("*.csv"))
    assert {path.name.rpartition(".")[0].partition("-")[0] for path in files} >= {
        "synthetic",
        "coefficients",
        "path",
        "complete",
    }
    for path in files:
        for separator in ",;\t":  # what ends a cell depends on the country
            with path.open(encoding="utf-8", newline="") as file:
                cells = [cell for row in csv.reader(file, delimiter=separator) for cell in row]
            formulas = [
                cell for cell in cells if cell.lstrip(" ").startswith(("=", "+", "-", "@", "\t", "\r", "\uff1d"))
            ]
            for cell in formulas:
                float(cell.partition(",")[0])
    pd.testing.assert_frame_equal(read_table(synthetic), table.sample(), check_dtype=False)
