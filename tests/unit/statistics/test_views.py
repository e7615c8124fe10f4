"""What the building blocks show of themselves, against numbers worked out by hand."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import colonnade as co
from colonnade.data.simulated import five_institutions
from colonnade.statistics.features import Feature
from colonnade.statistics.moments import MomentsResult
from colonnade.statistics.polynomial import PolynomialResult
from colonnade.statistics.secure_sum import Coverage
from colonnade.statistics.tables import TablesResult
from colonnade.view.render import render_blocks


@pytest.mark.parametrize("presence", ["known", "secret"])
def test_exact_moments_show_the_mean_and_deviation_of_the_records_that_are_there(tmp_path: Path, presence: Any) -> None:
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
        view = co.Moments(epsilon=None, columns=("roa", "capital"), presence=presence).fit(federation).view()
    (table,) = view.tables()
    rows = {row[0]: row for row in table.rows}
    for party, name in (("credit", "roa"), ("commerce", "capital")):
        block = example.blocks[party][name]
        assert rows[name][1] == party
        assert float(rows[name][2].split()[0].replace(",", "")) == len(block)
        assert float(rows[name][3]) == pytest.approx(block.mean(), abs=2e-3)
        assert float(rows[name][4]) == pytest.approx(block.std(ddof=0), abs=2e-3)
    assert "no noise" in view.quality


def moments(count: float) -> MomentsResult:
    """Four patterns of which each has a quarter: the feature's noisy count is `count`, its mean 0.5, its square 0.5."""
    gram = np.array([[1.0, 0.5], [0.5, 0.5]]) * count / 4
    return MomentsResult(
        n=900,
        parties=("credit", "court"),
        presence="ignore",
        features=(Feature("<roa>", "credit", "<roa>", None, 1.0, 2.0),),
        patterns=((True, True),) * 4,
        entries=(("1", "<roa>"),) * 4,
        grams=(gram,) * 4,
        noise_sd=5.0,
        simulated=False,
    )


def test_the_noise_of_a_mean_is_shown_and_one_below_the_noise_is_not() -> None:
    """Mean 1 + 2 * 0.5, sd 2 sqrt(0.5 - 0.25); noise sd 5 sqrt(4) on each sum: 2 * 2 * 10 sqrt(1.25) / 500, and on the
    variance 10 sqrt(2) / count, here for an interval of two such."""
    ((row,),) = (table.rows for table in moments(500.0).view().tables())
    assert row == ("<roa>", "credit", "500 ± 20", f"2 ± {2 * 2 * 10 * 1.25**0.5 / 500:.2g}", "1 ± 0.11")
    ((row,),) = (table.rows for table in moments(100.0).view().tables())
    assert row[4] == "below 1.5", "a variance of 0.25, known to 0.28 only"
    ((row,),) = (table.rows for table in moments(19.0).view().tables())
    assert row[3] == "too few for this noise"


def test_tables_lie_with_their_last_column_across_and_say_which_cells_are_noise() -> None:
    names = ("a", "b", "<c>")
    view = TablesResult(
        n=66,
        counts={names: np.arange(12.0).reshape(3, 2, 2)},
        labels={"a": ("x", "y", "z"), "b": ("0", "1"), "<c>": ("f", "m")},
        noise_sd={names: 2.0},
        simulated=False,
    ).view()
    (table,) = view.tables()
    assert table.head == ("a / b, by <c>", "f", "m")
    assert table.rows[3] == ("y / 1", "6", "7")
    assert "7 of 12 cells" in view.quality  # 5 ... 11 are above 4
    assert "&lt;c&gt;" in render_blocks(view.answer)


def test_a_polynomial_is_written_as_people_do() -> None:
    polynomial = co.Polynomial.of([(0.5, {"b": 2}), (-1, {"a": 1, "b": 1}), (3, {})], [(-2.0, {"a": 1})])
    assert list(polynomial.formulas()) == ["3 - a b + 0.5 b^2", "-2 a"]
    view = PolynomialResult(n=5, polynomial=polynomial, integers=(1, -9), scale=1, noise_sd=2.0, simulated=False).view()
    (table,) = view.tables()
    assert table.rows[1] == ("-2 a", "-9.0000", "± 4")
    assert "1 of 2" in view.quality


def test_coverage_is_a_share_of_all_blocks() -> None:
    view = Coverage(n=100, parties=4, total=300.0, noise_sd=2.0, simulated=False).view()
    assert view.title == "75.0 % of all blocks are there"
    (table,) = view.tables()
    assert table.rows[1] == ("missing", "100 ± 4", "25.0 %")
    assert "± 1 percentage" in view.quality
