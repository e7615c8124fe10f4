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

from collections.abc import Callable, Sequence
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


def mean(column: str) -> Estimator:
    """Of a numeric column."""
    return _named(lambda table: float(_numbers(table[column]).mean()), column)


def share(column: str, value: Any) -> Estimator:
    """Of the rows in which a column has this value."""
    return _named(lambda table: float((table[column] == value).mean()), column)


def quantile(column: str, level: float) -> Estimator:
    """Of a numeric column."""
    return _named(lambda table: float(np.nanquantile(_numbers(table[column]), level)), column)


def contrast(column: str, by: str, first: Any, second: Any) -> Estimator:
    """The mean of a column where `by` is `first`, less that where it is `second`."""

    def difference(table: pd.DataFrame) -> float:
        values = _numbers(table[column])
        return float(values[(table[by] == first).to_numpy()].mean() - values[(table[by] == second).to_numpy()].mean())

    return _named(difference, column, by)


def ols(response: str, covariates: Sequence[str]) -> Estimator:
    """Coefficients of a linear regression with an intercept; categories count against their first one."""

    def coefficients(table: pd.DataFrame) -> pd.Series[Any]:
        design, y = _design(table, covariates), _numbers(table[response])
        solved = np.linalg.lstsq(design.to_numpy(), y, rcond=None)[0]
        return pd.Series(solved, index=design.columns)

    return _named(coefficients, response, *covariates)


def logistic(response: str, covariates: Sequence[str], *, event: Any = None) -> Estimator:
    """Coefficients of a logistic regression with an intercept, by Newton's method. `event` is the value of the response
    that is explained; by default the second category."""

    def coefficients(table: pd.DataFrame) -> pd.Series[Any]:
        design = _design(table, covariates)
        series: Any = table[response]
        explained = event if event is not None else series.cat.categories[1]
        x, y = design.to_numpy(), (series == explained).to_numpy(dtype=np.float64)
        beta = np.zeros(x.shape[1])
        for _ in range(STEPS):
            chance = 1 / (1 + np.exp(-np.clip(x @ beta, -30, 30)))
            weighted = x * (chance * (1 - chance))[:, None]
            step = np.linalg.lstsq(x.T @ weighted, x.T @ (y - chance), rcond=None)[0]
            beta = beta + step
            if float(np.abs(step).max()) < SETTLED:
                break
        return pd.Series(beta, index=design.columns)

    return _named(coefficients, response, *covariates)


def _named(function: Estimator, *columns: str) -> Estimator:
    """The columns that it reads, for the statement on what the interval is valid for."""
    function.columns = columns  # type: ignore[attr-defined]
    return function


def _numbers(values: pd.Series[Any]) -> Reals:
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
            parts[name] = _numbers(values)
    return pd.DataFrame(parts)
