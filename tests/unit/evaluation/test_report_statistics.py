"""What the reports of the building blocks say, against numbers worked out by hand."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import colonnade as co
from colonnade.data.simulated import five_institutions
from colonnade.evaluation import report_statistics as told


@pytest.mark.parametrize("presence", ["known", "secret"])
def test_exact_moments_tell_the_mean_and_spread_of_the_records_that_are_there(tmp_path: Path, presence: Any) -> None:
    """Against pandas, of each party's own block; quantisation at 2^12 moves a mean by far less than 1e-3."""
    example = five_institutions(600, seed=5)
    with co.Federation.local(
        example.blocks,
        key=example.key,
        columns=example.columns,
        organisations=example.organisations,
        home=tmp_path / "home",
        runs=tmp_path / "runs",
        allow=("presence", "exact-moments"),
        seed=1,
    ) as federation:
        method = co.Moments(epsilon=None, columns=("roa", "capital"), presence=presence)
        result = federation.run(method)[1].read_json("result.json")
    rows = {row[0]: row for row in told.feature_rows(result)}
    for party, name in (("credit", "roa"), ("commerce", "capital")):
        block = example.blocks[party][name]
        assert rows[name][1] == party
        assert float(rows[name][2].split()[0].replace(",", "")) == len(block)
        assert float(rows[name][3]) == pytest.approx(block.mean(), abs=2e-3)
        assert float(rows[name][4]) == pytest.approx(block.std(ddof=0), abs=2e-3)
    assert "no noise" in told.moments_quality(result)


def moments(count: float) -> dict[str, Any]:
    feature = {"name": "<roa>", "party": "credit", "centre": 1.0, "half": 2.0, "patterns": 4, "count": count}
    return {
        "n": 900,
        "noise_sd": 5.0,
        "presence": "ignore",
        "features": [feature | {"sum": 0.5 * count, "square": 0.5 * count}],
    }


def test_the_noise_of_a_mean_is_told_and_a_drowned_one_is_not_shown() -> None:
    """Mean 1 + 2 * 0.5, sd 2 sqrt(0.5 - 0.25); noise sd 5 sqrt(4) on each sum: 2 * 2 * 10 sqrt(1.25) / 500."""
    (row,) = told.feature_rows(moments(500.0))
    assert row == ("<roa>", "credit", "500 ± 20", f"2 ± {2 * 2 * 10 * 1.25**0.5 / 500:.2g}", "1")
    (row,) = told.feature_rows(moments(19.0))
    assert row[3] == "too few for this noise"


def test_tables_lie_with_their_last_column_across_and_say_which_cells_are_noise() -> None:
    counts = np.arange(12.0).reshape(3, 2, 2)
    result = {
        "n": 66,
        "labels": {"a": ["x", "y", "z"], "b": ["0", "1"], "<c>": ["f", "m"]},
        "tables": [{"columns": ["a", "b", "<c>"], "counts": counts.tolist(), "noise_sd": 2.0}],
    }
    head, rows = told.cells(result, result["tables"][0])  # type: ignore[index]
    assert head == ["a / b, by <c>", "f", "m"]
    assert rows[3] == ("y / 1", "6", "7")
    assert "7 of 12 cells" in told.tables_quality(result)  # 5 ... 11 are above 4
    assert "&lt;c&gt;" in told.tables_answer(result)


def test_a_polynomial_is_written_as_people_do() -> None:
    made = co.Polynomial.of([(0.5, {"b": 2}), (-1, {"a": 1, "b": 1}), (3, {})], [(-2.0, {"a": 1})])
    assert [told.formula(output) for output in made.to_list()] == ["3 - a b + 0.5 b^2", "-2 a"]
    result = {"n": 5, "polynomial": made.to_list(), "values": [1.0, -9.0], "noise_sd": 2.0}
    assert told.output_rows(result)[1] == ("-2 a", "-9.0000", "± 4")
    assert "1 of 2" in told.polynomial_quality(result)


def test_coverage_is_a_share_of_all_blocks() -> None:
    result = {"n": 100, "parties": 4, "total": 300.0, "noise_sd": 2.0}
    assert told.coverage_title(result) == "75.0 % of all blocks are there"
    assert told.coverage_rows(result)[1] == ("missing", "100 ± 4", "25.0 %")
    assert "± 1 percentage" in told.coverage_quality(result)
