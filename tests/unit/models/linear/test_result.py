"""The page of a regression: every number of the result, drawn where it belongs."""

from __future__ import annotations

import re
from typing import Any

import pytest

from colonnade.evaluation.charts import WIDTH, intervals
from colonnade.evaluation.report_regression import answer, coefficient_rows, complete, details


def result(names: tuple[str, ...] = ("age", "region[<b>]")) -> dict[str, Any]:
    params = {"const": 1.0} | {name: 0.5 - at for at, name in enumerate(names)}
    return {
        "response": "income",
        "nobs": 900,
        "cohort": 1000,
        "params": params,
        "bse": dict.fromkeys(params, 0.25),
        "pvalues": dict.fromkeys(params, 0.04),
        "conf_int": {name: [value - 0.49, value + 0.49] for name, value in params.items()},
        "rsquared": 0.61234,
        "rsquared_adj": 0.6,
        "features": [*names, "income"],
        "covariance": [[4.0 if i == j else 0.0 for j in range(len(names) + 1)] for i in range(len(names) + 1)],
        "parties": ["bank", "tax"],
        "patterns": [{"present": [True, True], "count": 300}, {"present": [False, True], "count": 600}],
        "notes": ["Valid if missing at random."],
    }


def test_the_answer_has_the_numbers_and_escapes_names() -> None:
    page = answer(result())
    assert "R-squared 0.6123" in page
    assert "900 records of 1,000; 300 of them are complete" in page
    assert "region[<b>]" not in page
    assert "region[&lt;b&gt;]" in page
    assert coefficient_rows(result())[1] == ("age", "0.5", "0.25", "2.00", "0.040", "0.01", "0.99")


def test_an_exact_coefficient_has_no_z() -> None:
    flat = result() | {"bse": {"const": 0.25, "age": 0.0, "region[<b>]": 0.25}}
    assert coefficient_rows(flat)[1][3] == "nan"


def test_missing_blocks_are_counted_from_the_patterns() -> None:
    page = details(result())
    assert complete(result()) == 300
    assert "66.7 %" in page  # the bank lacks 600 of 900
    assert "0.0 %" in page
    assert "Valid if missing at random." in page


@pytest.mark.parametrize("signs", [(1.0, 1.0), (-1.0, -1.0), (1.0, -1.0)])
def test_intervals_are_drawn_to_scale_inside_the_chart(signs: tuple[float, float]) -> None:
    """Oracle: places are affine in the values, so ratios of distances equal ratios of values."""
    centres = [2.0 * signs[0], 1.0 * signs[1]]
    svg = intervals(["a", "b"], centres, [c - 0.5 for c in centres], [c + 0.5 for c in centres], label="l")
    zero = float(re.search(r'class="noise" x1="([\d.]+)"', svg)[1])  # type: ignore[index]
    dots = [float(one) for one in re.findall(r'cx="([\d.]+)"', svg)]
    ends = [float(one) for pair in re.findall(r'class="spine" x1="([\d.]+)" x2="([\d.]+)"', svg) for one in pair]
    assert all(0 <= place <= WIDTH for place in [*dots, *ends, zero])
    assert (dots[0] - zero) / (dots[1] - zero) == pytest.approx(centres[0] / centres[1], rel=1e-3)
    assert (ends[1] - ends[0]) / abs(dots[1] - zero) == pytest.approx(1.0, rel=1e-3)


def test_many_coefficients_leave_the_rest_to_the_table() -> None:
    many = tuple(f"x{at}" for at in range(40))
    page = answer(result(many))
    assert "and 16 more in the table" in page
    assert "All coefficients" in page
