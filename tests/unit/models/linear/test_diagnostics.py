"""Residuals by pattern, from moments alone: what the rows themselves give, and what a law that differs looks like."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

from colonnade.models.linear.diagnostics import residuals_by_pattern
from colonnade.statistics.gaussian_em import GaussianFit, PatternStatistics, fit_gaussian

OWNER = np.array([0, 0, 1, 2])
PARTIES = ("bank", "clinic", "shop")


def checked(rows: np.ndarray) -> tuple[pd.DataFrame, GaussianFit]:
    data = PatternStatistics.of_rows(rows, ("y", "a", "b", "c"))
    fit = fit_gaussian(data)
    return residuals_by_pattern(data, fit, OWNER, PARTIES, 0), fit


def table(shift: float = 0.0) -> np.ndarray:
    """y on a, b, c: a third lacks b, some c, one row all of them. `shift`: of y where b is missing."""
    rng = np.random.default_rng(1)
    covariates = rng.multivariate_normal([1.0, 0.0, -1.0], np.eye(3) + 0.3, size=900)
    rows = np.column_stack([covariates @ [1.0, -0.5, 0.25] + rng.normal(size=900), covariates])
    rows[:300, 2], rows[300:500, 3] = np.nan, np.nan
    rows[:300, 0] += shift
    rows[-1, 1:] = np.nan
    return rows


def test_residuals_from_moments_are_those_of_the_rows() -> None:
    rows = table()
    checks, fit = checked(rows)
    assert checks["records at"].tolist() == ["bank + clinic + shop", "bank + shop", "bank + clinic"]
    assert checks["records"].tolist() == [399, 300, 200]
    for part, columns, check in zip(
        (rows[500:-1], rows[:300], rows[300:500]), ([1, 2, 3], [1, 3], [1, 2]), checks.to_dict("records"), strict=True
    ):
        slopes = np.linalg.solve(fit.sigma[np.ix_(columns, columns)], fit.sigma[columns, 0])
        law = fit.sigma[0, 0] - slopes @ fit.sigma[columns, 0]
        fitted = (part[:, columns] - fit.mu[columns]) @ slopes
        residuals = (part[:, 0] - fit.mu[0] - fitted) / np.sqrt(law)
        assert check["mean"] == pytest.approx(residuals.mean(), abs=1e-9)
        assert check["sd"] == pytest.approx(residuals.std(), rel=1e-9)
        assert check["std err"] == pytest.approx(residuals.std() / np.sqrt(len(part)), rel=1e-9)
        assert check["slope"] == pytest.approx(np.polyfit(fitted, residuals * np.sqrt(law), 1)[0], abs=1e-9)
        assert abs(check["mean"]) < 3 * check["std err"]


def test_a_pattern_with_another_mean_stands_out() -> None:
    """Where b is missing, y is more than half a standard deviation higher."""
    checks = checked(table(shift=0.8))[0].set_index("records at")
    assert checks.loc["bank + shop", "mean"] > 5 * checks.loc["bank + shop", "std err"]


def test_a_block_of_which_cells_are_empty_is_there_in_part() -> None:
    rows = table()
    rows[:50, 1] = np.nan
    data = PatternStatistics.of_rows(rows, ("y", "a", "b", "c"))
    checks = residuals_by_pattern(data, fit_gaussian(data), OWNER, PARTIES, 0)
    assert "bank in part + shop" in checks["records at"].tolist()
