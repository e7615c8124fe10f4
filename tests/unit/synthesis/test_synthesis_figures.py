"""Associations are what they are called, and a released marginal is drawn on the scale of the rows."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
from scipy import stats

from colonnade.data.column import Column, Columns
from colonnade.statistics.cells import cells
from colonnade.statistics.marginals import from_shares
from colonnade.synthesis.figures import (
    agreement,
    association_figure,
    associations,
    column_figure,
    cramers_v,
    released_shares,
    score_figure,
)

COLUMNS = Columns(
    [
        Column(name="x", kind="continuous", lower=-9.0, upper=9.0),
        Column(name="y", kind="continuous", lower=-9.0, upper=9.0),
        Column(name="group", kind="categorical", categories=("a", "b", "c")),
    ]
)


def rows(n: int = 4000) -> pd.DataFrame:
    rng = np.random.default_rng(3)
    x = rng.normal(size=n)
    y = -0.8 * x + 0.6 * rng.normal(size=n)
    return pd.DataFrame({"x": x, "y": y, "group": np.array(["a", "b", "c"])[rng.integers(0, 3, n)]})


def test_ordered_pairs_have_rank_correlations_and_keep_their_sign() -> None:
    """Oracle: scipy's."""
    frame = rows()
    matrix = associations(frame, COLUMNS)
    assert matrix[0, 1] == pytest.approx(stats.spearmanr(frame["x"], frame["y"]).statistic, abs=1e-9)
    assert matrix[0, 1] < -0.7
    assert np.allclose(matrix, matrix.T)


def test_cramers_v_is_near_0_for_independent_columns_and_1_for_the_same() -> None:
    rng = np.random.default_rng(4)
    one, other = rng.integers(0, 9, 3000), rng.integers(0, 9, 3000)
    table = pd.crosstab(one, other)
    plain = np.sqrt(stats.chi2_contingency(table).statistic / 3000 / 8)
    assert cramers_v(one, other) < plain, "the correction takes out what chance gives"
    assert cramers_v(one, other) < 0.05
    assert cramers_v(one, one) == pytest.approx(1.0, abs=1e-6)
    assert cramers_v(one, np.zeros(3000, dtype=int)) == 0.0


def test_pairs_that_noise_hides_are_marked_both_ways() -> None:
    figure = association_figure(rows(), COLUMNS, frozenset({frozenset(("x", "group"))}))
    assert figure.data["unknown"] == [[False, False, True], [False, False, False], [True, False, False]]
    assert "unknown" not in association_figure(rows(), COLUMNS, frozenset()).data


def test_a_released_marginal_is_scaled_to_the_rows() -> None:
    """Oracle: half of 200 rows are 100, and noise of 1 % of the records is 2 rows."""
    column = COLUMNS["group"]
    own = released_shares(column, from_shares(np.arange(3.0), np.array([0.5, 0.3, 0.2])), cells(column, bins=4), 0.01)
    drawn = {"labels": ["a", "b", "c"], "edges": None, "counts": [90, 70, 40]}
    released = column_figure("group", drawn, own).data["released"]
    assert released["counts"] == pytest.approx([100.0, 60.0, 40.0])
    assert released["sd"] == pytest.approx([2.0] * 3)
    assert "released" not in column_figure("group", drawn, None).data


def test_a_released_point_mass_is_drawn_in_the_cell_that_it_lies_in() -> None:
    """By hand: 60 % are 2 exactly; the rest is even between 2 and 12, and noise of independent cells adds up."""
    drawn = {"labels": ["", ""], "edges": [0.0, 4.0, 12.0], "counts": [680, 320]}
    own = {"edges": [0.0, 2.0, np.nextafter(2.0, 3.0), 12.0], "shares": [0.0, 0.6, 0.4], "sd": 0.01}
    released = column_figure("amount", drawn, own).data["released"]
    assert released["counts"] == pytest.approx([680.0, 320.0])
    assert released["sd"] == pytest.approx([10 * np.sqrt(1 + 1 + 0.2**2), 8.0])
    zeros = {"edges": [0.0, 5e-324, 1e8], "shares": [0.6, 0.4], "sd": 0.01}
    wide = column_figure("amount", {**drawn, "edges": [0.0, 1e7, 1e8]}, zeros).data["released"]
    assert wide["counts"] == pytest.approx([640.0, 360.0])


def test_agreement_is_1_less_the_total_variation_in_the_released_cells_and_that_of_the_noise() -> None:
    """By hand: categories of 50, 30 and 20 % against 40, 40 and 20 %; half of the rows below 5 against 40 %."""
    groups = np.repeat([0, 1, 2], [50, 30, 20])
    assert agreement(groups, {"shares": [0.4, 0.4, 0.2], "sd": 0.0}) == pytest.approx(0.9)
    numbers = np.append(np.repeat([0.0, 4.9, 5.0, 10.0], [30, 20, 10, 40]), np.nan)
    assert agreement(numbers, {"shares": [0.4, 0.6], "edges": [0.0, 5.0, 10.0], "sd": 0.0}) == pytest.approx(0.9)
    point = {"shares": [0.3, 0.2, 0.5], "edges": [0.0, 1e-9, 4.95, 10.0], "sd": 0.0}  # a cell that holds one value
    assert agreement(numbers, point) == pytest.approx(1.0)
    noise = np.random.default_rng(1).normal(0.0, 0.01, size=(20_000, 3))
    expected = 0.5 * np.abs(noise).sum(axis=1).mean()
    assert agreement(groups, {"shares": [0.5, 0.3, 0.2], "sd": 0.01}) == pytest.approx(1 - expected, abs=2e-4)


def test_the_score_is_the_mean_of_its_parts() -> None:
    figure = score_figure({"x": 0.9, "group": 0.7}, 0.48)
    assert figure.data["labels"] == ["score", "columns (2)", "pairs"]
    assert figure.data["values"] == pytest.approx([64.0, 80.0, 48.0])
    assert "the worst is group (70 %)" in figure.caption
    alone = score_figure({"x": 0.9}, None)
    assert alone.data["values"] == pytest.approx([90.0, 90.0])
    assert "Not all pairs were measured" in alone.caption
