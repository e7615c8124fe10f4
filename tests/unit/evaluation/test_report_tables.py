"""The pages of synthetic tables, selections and alignments, and the comparison with a simulation's truth."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from colonnade.data.simulated import five_institutions
from colonnade.evaluation import report_alignment, report_selection, report_synthetic
from colonnade.evaluation.charts import WIDTH, line
from colonnade.evaluation.comparison import compare_with_truth


def synthetic() -> dict[str, Any]:
    return {
        "rows": 400,
        "cohort": 1000,
        "method": "copula-sqm",
        "file": "synthetic.parquet",
        "columns": [{"name": "age", "kind": "count"}, {"name": "<sex>", "kind": "binary"}],
        "marginals": {
            "age": {"labels": ["0 to 49", "50 to 99"], "edges": [0.0, 50.0, 100.0], "counts": [100, 300]},
            "<sex>": {"labels": ["f", "m"], "edges": None, "counts": [150, 250]},
        },
        "notes": ["A note."],
    }


def test_a_synthetic_table_is_told_with_its_file_and_columns() -> None:
    page = report_synthetic.answer(synthetic()) + report_synthetic.details(synthetic())
    for part in ("synthetic.parquet", "400 rows", "1,000 records", "A note.", "&lt;sex&gt;"):
        assert part in page
    assert "<sex>" not in page


def test_the_middle_half_is_linear_within_cells() -> None:
    """100 values in [0, 50), 300 in [50, 100): the quartiles are 50 and 50 + 50 * 200/300."""
    rows = report_synthetic.column_rows(synthetic())
    assert rows[0] == ("age", "count", f"50 to {50 + 50 * 200 / 300:.4g}")
    assert rows[1] == ("<sex>", "binary", "m 62 %, f 38 %")


def test_the_truth_compared_with_itself_is_at_no_distance() -> None:
    example = five_institutions(1200, seed=2)
    complete = example.truth.complete.drop(columns=[example.key])
    owners = {name: party for party, block in example.blocks.items() for name in block.columns if name != example.key}
    found = compare_with_truth(complete, example, "profit_growth", owners=owners)
    assert found["marginal"] == found["pairwise"] == found["rank_correlation"] == 0.0
    assert all(one["synthetic"] == one["complete"] for one in found["coefficients"])
    assert found["agreement"] > 0.9
    page = report_synthetic.beside_truth(found)
    assert "Beside the truth" in page
    shuffled = complete.apply(lambda column: np.random.default_rng(len(column.name)).permutation(column))
    worse = compare_with_truth(shuffled, example, "profit_growth", owners=owners)
    assert worse["marginal"] == 0.0
    assert worse["rank_correlation_within"] > 0.02
    assert abs(worse["agreement"]) < 0.8


def test_a_selection_is_told_with_its_path() -> None:
    result = {
        "response": "y",
        "penalty": "scad",
        "family": "gaussian",
        "criterion": "bic",
        "nobs": 500,
        "lambda": 0.1,
        "params": {"const": 1.0, "a": 2.5, "b": 0.0},
        "support": ["a"],
        "lambdas": [1.0, 0.1, 0.01],
        "df": [0, 1, 2],
        "explained": [0.0, 0.5, 0.51],
        "scores": [10.0, 1.0, None],
        "residual": 1e-7,
        "notes": [],
    }
    assert report_selection.title(result) == "1 of 2 features explain y"
    assert report_selection.coefficient_rows(result) == [("const", "1"), ("a", "2.5")]
    page = report_selection.answer(result) + report_selection.details(result)
    assert "SCAD penalty" in page
    assert "50.0 %" in page


@pytest.mark.parametrize("mark", [0, 2])
def test_the_stair_stays_inside_the_chart(mark: int) -> None:
    svg = line([0, 3, 7], mark=mark, label="l")
    assert f'viewBox="0 0 {WIDTH:g}' in svg
    places = [float(one.split('"')[1]) for one in svg.split("x1=")[1:]]
    assert all(0 <= place <= WIDTH for place in places)


def test_an_alignment_is_told_with_noisy_counts() -> None:
    result = {
        "n": 1500,
        "include": "union",
        "matcher": "holder",
        "parties": ["a", "b"],
        "patterns": [{"parties": ["a", "b"], "count": 812.4}],
        "noise_sd": 1.2,
    }
    page = report_alignment.answer(result) + report_alignment.details(result)
    assert "every record that anybody has" in page
    assert "a + b" in page
    assert "812" in page
    assert "holder compared blinded tags" in page
    assert "not asked for" in report_alignment.answer(result | {"patterns": []})
