"""Error bars: what an analyst may conclude about the population from a synthetic table.

Rows of one table do not show how far the model itself is off: noise and sampling moved what was released. `draws` are
tables of *other models that the released numbers support as well*: a cohort is simulated from the fitted model,
measured with the stated noise, and the model is fitted again. This parametric bootstrap stands in for the noise-aware
posterior of NAPSU-MQ (Raisa et al. 2023), with which it agrees where estimates are linear in what was released. With q
the estimate on a large table of the fitted model and q_1 ... q_m those on the draws,

    estimate  2 q - mean(q_i)       what a fit to noise moves (shrinkage, early stops) is taken back
    variance  (1 + 1/m) var(q_i)    measurement noise, sampling of the cohort, and that of the rows
    interval  estimate +- t_(m-1) sqrt(variance)

This is the rule for fully synthetic data (Raghunathan, Reiter and Rubin 2003) without its last term: a table has
several times the cohort's rows, so that their own sampling widens an interval by a few per cent instead of being
subtracted.

What no draw can show is what the model leaves out: a dependence that it does not have (pairs of a field that lie in no
clique, anything but correlations in a copula). `SyntheticTable.valid_for` says for which columns that is not so.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from scipy import stats

from colonnade.errors import BadArguments, NotEstimable

Reals = NDArray[np.float64]
Estimator = Callable[[pd.DataFrame], Any]
"""From a table to a number, or to several with names (a Series or a dict)."""

STEPS, SETTLED = 50, 1e-8
"""Of Newton's method."""
SINGULAR = 1e-9
"""The least eigenvalue of a matrix of least squares with ones on its diagonal, for it to be inverted."""


def combined(fitted: Any, draws: Sequence[Any], *, level: float = 0.95) -> pd.DataFrame:
    """Estimate, standard error and interval from one estimate on the fitted model and one on each draw."""
    if len(draws) < 2:
        raise BadArguments(f"an interval needs at least 2 draws, not {len(draws)}.")
    if not 0 < level < 1:
        raise BadArguments(f"level must be between 0 and 1, not {level!r}.")
    first, others = _series(fitted), [_series(draw) for draw in draws]
    table = pd.DataFrame(others).reindex(columns=first.index).to_numpy(dtype=np.float64)
    if not np.isfinite(table).all() or not np.isfinite(first.to_numpy()).all():
        raise NotEstimable("the estimate is not a number on one of the tables; the noise is too large for it.")
    m = len(draws)
    estimate = 2 * first.to_numpy() - table.mean(axis=0)
    error = np.sqrt((1 + 1 / m) * table.var(axis=0, ddof=1))
    half = stats.t.ppf((1 + level) / 2, m - 1) * error
    columns = {"estimate": estimate, "standard_error": error, "lower": estimate - half, "upper": estimate + half}
    return pd.DataFrame(columns, index=first.index)


def _series(value: Any) -> pd.Series[Any]:
    if np.ndim(value) == 0 and not isinstance(value, dict):
        return pd.Series({"estimate": float(value)})
    return pd.Series(value, dtype=np.float64)


# --- ready estimators -------------------------------------------------------------------------------------------------


Fitted = tuple["pd.Series[Any]", Reals]
"""Estimates by name, and the influence of each row on each of them: a row of weight 1 + h moves them by h / rows of
that."""


@dataclass(frozen=True, eq=False)
class Ready:
    """An estimator that knows the columns that it reads, takes weighted rows, and says how each row moves it.

    linear : its influence does not depend on the estimate but for a constant. studied : how often its intervals on a
    field cover is known, from simulations.
    """

    columns: tuple[str, ...]
    solved: Callable[[pd.DataFrame, Reals], Fitted]
    linear: bool = False
    studied: bool = True

    def __call__(self, table: pd.DataFrame) -> Any:
        estimate = self.solved(table, np.ones(len(table)))[0]
        return float(estimate.iloc[0]) if list(estimate.index) == [ESTIMATE] else estimate

    def fitted(self, table: pd.DataFrame, weights: Reals) -> Fitted:
        """Weights may be below 0; where they leave no variance the noise was too large."""
        estimate, influence = self.solved(table, weights)
        if not np.isfinite(estimate.to_numpy()).all():
            raise NotEstimable("the estimate is not a number on the weighted rows; the noise is too large for it.")
        return estimate, influence


def mean(column: str) -> Ready:
    """Of a numeric column."""

    def solved(table: pd.DataFrame, weights: Reals) -> Fitted:
        return _one(*_mean(numbers(table[column]), weights))

    return Ready((column,), solved, linear=True)


def share(column: str, value: Any) -> Ready:
    """Of the rows in which a column has this value."""

    def solved(table: pd.DataFrame, weights: Reals) -> Fitted:
        return _one(*_mean((table[column] == value).to_numpy(dtype=np.float64), weights))

    return Ready((column,), solved, linear=True)


def contrast(column: str, by: str, first: Any, second: Any) -> Ready:
    """The mean of a column where `by` is `first`, less that where it is `second`."""

    def solved(table: pd.DataFrame, weights: Reals) -> Fitted:
        values = numbers(table[column])
        left, right = (
            _mean(np.where((table[by] == group).to_numpy(), values, np.nan), weights) for group in (first, second)
        )
        return _one(left[0] - right[0], left[1] - right[1])

    return Ready((column, by), solved, studied=False)


@dataclass(frozen=True, eq=False)
class Quantile(Ready):
    """Its influence is that of the share of rows below it."""

    level: float = 0.5

    def interval(
        self, table: pd.DataFrame, weights: Reals, estimate: pd.Series[Any], half: Reals, edges: Reals | None
    ) -> pd.DataFrame:
        """The quantiles at the ends of that share's interval (Woodruff, 1952), out to the edges of the cells that they
        are in: where a number lies within a cell was not measured."""
        values = numbers(table[self.columns[0]])
        low, high = _quantiles(values, weights, np.array([self.level - half[0], self.level + half[0]]))
        if edges is not None:
            low, high = edges[edges <= low].max(initial=edges[0]), edges[edges >= high].min(initial=edges[-1])
        return pd.DataFrame({"estimate": estimate, "lower": low, "upper": high})


def quantile(column: str, level: float) -> Ready:
    """Of a numeric column. Its standard error is that of the share of rows below it."""

    def solved(table: pd.DataFrame, weights: Reals) -> Fitted:
        values = numbers(table[column])
        estimate = float(_quantiles(values, weights, np.array([level]))[0])
        return _one(estimate, _mean(np.where(np.isnan(values), np.nan, values <= estimate), weights)[1])

    return Quantile((column,), solved, linear=True, studied=False, level=level)


def ols(response: str, covariates: Sequence[str]) -> Ready:
    """Coefficients of a linear regression with an intercept; categories count against their first one."""

    def solved(table: pd.DataFrame, weights: Reals) -> Fitted:
        design, y = _design(table, covariates), numbers(table[response])
        x = design.to_numpy()
        inverse = _inverse(x.T @ (weights[:, None] * x) / len(x), weights)
        beta = inverse @ (x.T @ (weights * y)) / len(x)
        return pd.Series(beta, index=design.columns), (x * (y - x @ beta)[:, None]) @ inverse

    return Ready((response, *covariates), solved)


def logistic(response: str, covariates: Sequence[str], *, event: Any = None) -> Ready:
    """Coefficients of a logistic regression with an intercept, by Newton's method. `event` is the value of the response
    that is explained; by default the second category."""

    def solved(table: pd.DataFrame, weights: Reals) -> Fitted:
        design = _design(table, covariates)
        series: Any = table[response]
        explained = event if event is not None else series.cat.categories[1]
        x, y = design.to_numpy(), (series == explained).to_numpy(dtype=np.float64)
        beta = np.zeros(x.shape[1])
        for _ in range(STEPS):
            chance = 1 / (1 + np.exp(-np.clip(x @ beta, -30, 30)))
            inverse = _inverse(x.T @ (x * (weights * chance * (1 - chance))[:, None]) / len(x), weights)
            step = inverse @ (x.T @ (weights * (y - chance))) / len(x)
            beta = beta + step
            if float(np.abs(step).max()) < SETTLED:
                break
        return pd.Series(beta, index=design.columns), (x * (y - chance)[:, None]) @ inverse

    return Ready((response, *covariates), solved)


ESTIMATE = "estimate"


def _one(estimate: float, influence: Reals) -> Fitted:
    return pd.Series({ESTIMATE: estimate}), influence[:, None]


def _mean(values: Reals, weights: Reals) -> tuple[float, Reals]:
    """Of the rows with a value, and the influence of each."""
    held = ~np.isnan(values)
    mass = float(weights[held].sum())
    if not mass > 0:
        return math.nan, np.zeros(values.size)
    centre = float(weights[held] @ values[held]) / mass
    return centre, np.where(held, values - centre, 0.0) * (values.size / mass)


def _quantiles(values: Reals, weights: Reals, levels: Reals) -> Reals:
    """Of weighted rows; where weights are below 0 the distribution function is made to rise."""
    held = ~np.isnan(values)
    order = np.argsort(values[held], kind="stable")
    ordered, mass = values[held][order], np.maximum.accumulate(np.cumsum(weights[held][order]))
    if not (mass.size and mass[-1] > 0):
        return np.full(levels.size, math.nan)
    index = np.searchsorted(mass, np.clip(levels, 0.0, 1.0) * mass[-1], side="left")
    return np.asarray(ordered[np.minimum(index, ordered.size - 1)])


def _inverse(matrix: Reals, weights: Reals) -> Reals:
    """Of the matrix of least squares. Weighted by released numbers it may have lost a direction to the noise; that of
    plain rows with columns that determine one another has the pseudo-inverse."""
    scale = np.sqrt(np.maximum(np.diag(matrix), 1e-300))
    values, vectors = np.linalg.eigh(matrix / np.outer(scale, scale))
    if values[0] > SINGULAR:
        return np.asarray(((vectors / values) @ vectors.T) / np.outer(scale, scale))
    if float(weights.std()) > 0:
        raise NotEstimable("the covariates are not told apart; the noise is too large for it.")
    return np.asarray(np.linalg.pinv(matrix))


def numbers(values: pd.Series[Any]) -> Reals:
    """A category counts as its place in the declared order."""
    if isinstance(values.dtype, pd.CategoricalDtype):
        return np.asarray(values.cat.codes, dtype=np.float64)
    return np.asarray(values.to_numpy(dtype=np.float64, na_value=np.nan))


def _design(table: pd.DataFrame, covariates: Sequence[str]) -> pd.DataFrame:
    parts: dict[str, Reals] = {"intercept": np.ones(len(table))}
    for name in covariates:
        values = table[name]
        if isinstance(values.dtype, pd.CategoricalDtype) and not values.cat.ordered:
            for category in values.cat.categories[1:]:
                parts[f"{name}[{category}]"] = (values == category).to_numpy(dtype=np.float64)
        else:
            parts[name] = numbers(values)
    return pd.DataFrame(parts)
