"""What the pooled rows would give without any privacy, and what no data at all would give."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from sklearn.linear_model import LogisticRegression


def captured(gram: NDArray[np.float64], vectors: NDArray[np.float64]) -> float:
    """|X V|^2 / |X|^2 from X'X, for orthonormal columns V."""
    return float(np.sum(vectors * (gram @ vectors)) / np.trace(gram))


def random_subspace(width: int, count: int) -> float:
    """The expected share that `count` random directions capture."""
    return count / width


def logistic(rows: NDArray[np.float64], sign: NDArray[np.float64]) -> tuple[float, NDArray[np.float64]]:
    """(intercept, coefficients) of scikit-learn's logistic regression."""
    fitted = LogisticRegression(max_iter=1000).fit(rows, sign > 0)
    return float(fitted.intercept_[0]), fitted.coef_[0]


def accuracy(
    rows: NDArray[np.float64], sign: NDArray[np.float64], intercept: float, coef: NDArray[np.float64]
) -> float:
    return float(np.mean((rows @ coef + intercept > 0) == (sign > 0)))
