"""Local DP: every party adds Gaussian noise to its own columns and publishes them (the SQM paper's Algorithm 4)."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from sklearn.linear_model import LogisticRegression

from benchmarks.rivals.central_dp import analytic_gaussian


def perturbed_rows(
    rows: NDArray[np.float64], *, norm: float, epsilon: float, delta: float, rng: np.random.Generator
) -> NDArray[np.float64]:
    """X + N(0, sigma^2): a record that becomes nothing moves the table by at most its norm."""
    return rows + rng.normal(scale=norm * analytic_gaussian(epsilon, delta), size=rows.shape)


def logistic_on_perturbed_rows(
    rows: NDArray[np.float64],
    sign: NDArray[np.float64],
    *,
    norm: float,
    epsilon: float,
    delta: float,
    rng: np.random.Generator,
) -> tuple[float, NDArray[np.float64]]:
    """(intercept, coefficients) of a logistic regression on perturbed rows and responses. The response is scaled to the
    norm of the rows, so that neither drowns in the other's noise."""
    table = np.column_stack([rows, norm * sign])
    noisy = perturbed_rows(table, norm=norm * 2**0.5, epsilon=epsilon, delta=delta, rng=rng)
    fitted = LogisticRegression(max_iter=300).fit(noisy[:, :-1], noisy[:, -1] > 0)
    return float(fitted.intercept_[0]), fitted.coef_[0]
