"""The rival that VCDS is compared with. Oracles: ordinary least squares, scikit-learn, and the noise that it states."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sklearn.linear_model import LogisticRegression

BLOCKS = [slice(0, 3), slice(3, 5), slice(5, 8)]


@pytest.fixture
def vfl_admm_dp(monkeypatch: pytest.MonkeyPatch) -> Callable[..., Any]:
    """The benchmarks lie beside the package."""
    monkeypatch.syspath_prepend(str(Path(__file__).parents[3]))
    found: Callable[..., Any] = importlib.import_module("benchmarks.rivals.vfl_admm_dp").vfl_admm_dp
    return found


def rows_and_predictor(n: int) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(1)
    rows = rng.standard_normal((n, 8)) @ (np.eye(8) + 0.2) * np.arange(1, 9)
    return rows, 1.0 + rows @ np.linspace(-0.4, 0.4, 8)


def test_without_noise_and_penalty_it_is_least_squares(vfl_admm_dp: Callable[..., Any]) -> None:
    rows, predictor = rows_and_predictor(300)
    y = predictor + np.random.default_rng(2).standard_normal(300)
    found = vfl_admm_dp(rows, y, BLOCKS, epsilon=None, penalty=0.0, rounds=400, rng=np.random.default_rng(3))
    exact = np.linalg.lstsq(np.column_stack([np.ones(300), rows]), y, rcond=None)[0]
    assert np.allclose([found.intercept, *found.coefficients], exact, atol=1e-5)
    assert found.sigma == 0.0


def test_without_noise_and_penalty_it_is_logistic_regression(vfl_admm_dp: Callable[..., Any]) -> None:
    rows, predictor = rows_and_predictor(400)
    rows, predictor = rows / 5, predictor / 5
    y = (np.random.default_rng(4).random(400) < 1 / (1 + np.exp(-predictor))).astype(float)
    found = vfl_admm_dp(
        rows, y, BLOCKS, epsilon=None, penalty=0.0, rounds=600, family="binomial", rng=np.random.default_rng(5)
    )
    theirs = LogisticRegression(C=1e9, tol=1e-10, max_iter=2000).fit(rows, y)
    assert np.allclose(found.coefficients, theirs.coef_[0], atol=2e-3)
    assert found.intercept == pytest.approx(theirs.intercept_[0], abs=2e-3)


def test_noise_grows_with_the_root_of_the_rounds_and_hides_the_zeros(vfl_admm_dp: Callable[..., Any]) -> None:
    rows, predictor = rows_and_predictor(300)
    made = [
        vfl_admm_dp(rows, predictor, BLOCKS, epsilon=1.0, rounds=k, per_round=each, rng=np.random.default_rng(6))
        for k, each in ((4, False), (16, False), (16, True))
    ]
    assert made[1].sigma == pytest.approx(2 * made[0].sigma)
    assert made[1].sigma == pytest.approx(4 * made[2].sigma)
    assert np.count_nonzero(made[1].coefficients) == 8
