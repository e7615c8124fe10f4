"""Intervals from released numbers: what was measured is met whatever the model says, and what was not is said."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd
import pytest
from numpy.typing import NDArray
from scipy import sparse

from colonnade.synthesis.calibration import DOUBT, NOT_MEASURED, Evidence, calibrated
from colonnade.synthesis.inference import contrast, logistic, mean, ols, quantile, share

N, ROWS = 4000, 6000
EDGES = np.linspace(-1, 1, 9)


def people(rng: np.random.Generator, n: int, *, slope: float = 0.5) -> pd.DataFrame:
    """A number that depends on another and on a category, and a bit that depends on all."""
    x, g = np.clip(rng.normal(0, 0.3, n), -1, 1), rng.integers(0, 2, n)
    y = np.clip(slope * x + 0.2 * g + rng.normal(0, 0.2, n), -1, 1)
    z = rng.random(n) < 1 / (1 + np.exp(-(2 * x - 0.5 + g)))
    return pd.DataFrame({"x": x, "y": y, "g": pd.Categorical.from_codes(g, ["a", "b"]), "z": pd.Categorical(z)})


def independent(frame: pd.DataFrame, rng: np.random.Generator) -> pd.DataFrame:
    """The wrong model: every column by itself, and numbers even within their cells."""
    rows = {name: frame[name].sample(ROWS, replace=True, random_state=rng).to_numpy() for name in frame}
    for name in ("x", "y"):
        cell = np.clip(np.searchsorted(EDGES, rows[name], side="right") - 1, 0, 7)
        rows[name] = rng.uniform(EDGES[cell], EDGES[cell + 1])
    kept = {name: pd.Categorical(rows[name], categories=frame[name].cat.categories) for name in ("g", "z")}
    return pd.DataFrame({**rows, **kept})


@dataclass
class Products:
    """Released second moments of (1, x, y, g, z), and cells of x and y if asked for, with noise of sd `sd`."""

    cohort: pd.DataFrame
    sd: float
    rng: np.random.Generator
    moments: bool = True

    def functions(self, table: pd.DataFrame) -> NDArray[np.float64]:
        bits = [table["g"].cat.codes, table["z"].cat.codes]
        each = np.column_stack([np.ones(len(table)), table["x"], table["y"], *bits]).astype(float)
        upper = [each[:, i] * each[:, j] for i in range(5) for j in range(max(i, 1), 5)] if self.moments else []
        cells = [np.clip(np.searchsorted(EDGES, table[name], side="right") - 1, 0, 7) for name in ("x", "y")]
        return np.column_stack([*upper, *(cell == k for cell in cells for k in range(8))]).astype(float)

    def __post_init__(self) -> None:
        exact = self.functions(self.cohort).mean(axis=0)
        self.values = exact + self.sd * self.rng.standard_normal(exact.size)

    def __call__(self, columns: Sequence[str], table: pd.DataFrame) -> Evidence:
        functions = sparse.csr_array(self.functions(table))
        return Evidence(self.values, np.full(self.values.size, self.sd), functions, len(self.cohort))

    def within(self, columns: Sequence[str], table: pd.DataFrame) -> list[tuple[pd.DataFrame, NDArray[np.int64]]]:
        moved = []
        for name in {"x", "y"} & set(columns):
            cell = np.clip(np.searchsorted(EDGES, table[name], side="right") - 1, 0, 7)
            moved += [(table.assign(**{name: EDGES[cell]}), cell)]
            moved += [(table.assign(**{name: np.nextafter(EDGES[cell + 1], -2)}), cell)]
        return moved

    def edges(self, column: str) -> NDArray[np.float64]:
        return EDGES

    def lacking(self, columns: Sequence[str]) -> str:
        return ""


LINEAR = (mean("x"), share("g", "b"), contrast("y", "g", "b", "a"), ols("y", ["x", "g"]))


def test_what_was_measured_is_met_although_the_model_has_no_dependence() -> None:
    rng = np.random.default_rng(1)
    cohort = people(rng, N)
    rows, released = independent(cohort, rng), Products(cohort, 1e-9, rng)
    for each in LINEAR:
        there, found = each.fitted(cohort, np.ones(N))[0], calibrated(each, rows, released)
        np.testing.assert_allclose(found["estimate"], there, atol=2e-4)
        assert (found[DOUBT] == "").all()
        assert abs(each.fitted(rows, np.ones(ROWS))[0] - there).max() > 5e-4, "the rows alone are off"
    slopes = calibrated(logistic("z", ["x", "g"]), rows, released)
    there = logistic("z", ["x", "g"]).fitted(cohort, np.ones(N))[0]
    np.testing.assert_allclose(slopes["estimate"], there, atol=0.1)  # third moments are the model's
    assert abs(logistic("z", ["x", "g"]).fitted(rows, np.ones(ROWS))[0]["x"] - there["x"]) > 1.5


def test_without_noise_the_standard_error_is_that_of_the_records() -> None:
    import statsmodels.api as sm

    rng = np.random.default_rng(2)
    cohort = people(rng, N)
    found = calibrated(ols("y", ["x", "g"]), people(rng, ROWS, slope=0.35), Products(cohort, 1e-9, rng))
    design = sm.add_constant(np.column_stack([cohort["x"], cohort["g"].cat.codes]))
    robust = sm.OLS(cohort["y"].to_numpy(), design).fit(cov_type="HC0").bse
    np.testing.assert_allclose(found["standard_error"], robust, rtol=0.2)


@pytest.mark.parametrize("sd", [0.002, 0.008])
def test_intervals_cover_the_population_with_noise(sd: float) -> None:
    """Over 100 cohorts the errors are 0.8 to 1.2 standard errors, for each parameter, though the model is far off;
    noise counted at half its size would make them 1.3 and more."""
    large = people(np.random.default_rng(0), 400_000)
    truth = [each.fitted(large, np.ones(len(large)))[0].to_numpy() for each in LINEAR]
    errors = []
    for seed in range(100):
        rng = np.random.default_rng(100 + seed)
        cohort = people(rng, N)
        rows, released = people(rng, ROWS, slope=0.35), Products(cohort, sd, rng)
        found = [calibrated(each, rows, released) for each in LINEAR]
        errors.append(
            np.concatenate([(f["estimate"] - t) / f["standard_error"] for f, t in zip(found, truth, strict=True)])
        )
    spread = np.sqrt((np.array(errors) ** 2).mean(axis=0))
    assert spread.min() > 0.8, spread
    assert spread.max() < 1.2, spread


def test_what_was_not_measured_is_said() -> None:
    rng = np.random.default_rng(3)
    cohort = people(rng, N)
    rows, cells_only = independent(cohort, rng), Products(cohort, 0.001, rng, moments=False)
    assert calibrated(ols("y", ["x"]), rows, cells_only)[DOUBT]["x"] == NOT_MEASURED
    below = calibrated(quantile("x", 0.3), rows, cells_only).iloc[0]
    assert below[DOUBT] == ""
    assert below["lower"] <= np.quantile(cohort["x"], 0.3) <= below["upper"]
    assert {below["lower"], below["upper"]} <= set(EDGES), "a place within a cell was not measured"


def test_noise_that_hides_the_covariates_is_said() -> None:
    rng = np.random.default_rng(4)
    cohort = people(rng, N)
    found = calibrated(ols("y", ["x", "g"]), independent(cohort, rng), Products(cohort, 0.2, rng))
    assert (found[DOUBT] != "").all()
    assert np.isfinite(found["estimate"]).all()
