"""Intervals from the released numbers themselves: rows of a model, weighed until they agree with what was released.

A model leaves dependence out, its fit stops early and noise shrinks it, so that an estimate from its rows is off by
more than sampling. What was measured is not: each released number is a mean over the cohort of a known function g of a
row (a product of two columns, the indicator of a cell), plus noise of known variance N. So the model's rows get weights

    w = 1 + (g(row) - mean of g)' P^-1 (released - mean of g),    P = S + N / k^2,    S = covariance of g in the rows

which is the calibration of survey statistics (Deville and Sarndal, 1992); its ridge is the noise. With f the influence
function of an estimate on the weighted rows, the estimate moves with what was released by c = V^-1 cov(g, f), where V
and the covariance are those of how far the model may be off, plus the noise:

    V = k^2 S + W + N      k: a mean may be off by so many standard deviations of a row, 0.05 or as far as the estimate
                              moves, in deviations of f, when the released numbers are met as they are;
                           W: a number's mean within a cell may be off by a part of the way to either end of the cell,
                              and depend on the other columns as much

    estimate = that on the weighted rows + c' (released - weighted mean of g)
    variance = var(f) / n                   sampling of the cohort
             + c' N c                       noise
             + half of the variance of the model's error in what c leaves of f: what was not measured

An estimate in the span of g (means, shares, contrasts, least squares from products; shares from tables) could be taken
from g alone, and c does so where the rest would matter. The last term is small then (half of it, since most models are
better than that). Where the model's error is larger than sampling and noise no interval is given. Estimates that are
not linear in the released numbers are computed with noise drawn anew; where they bend or spread otherwise than the
formula says, noise is too large for an interval.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from scipy import linalg, sparse, stats

from colonnade.errors import NotEstimable
from colonnade.synthesis.inference import ESTIMATE, Quantile, Ready, numbers

Reals = NDArray[np.float64]

MODEL_ERROR = 0.05
"""The least k."""
WITHIN_CELL = 0.3
"""The part of the way to the end of a cell that the mean of a number within it may be off."""
MOST_UNMEASURED = 1.0
"""The model's error, against the standard error from sampling and noise."""
TIMES, BENT, SPREAD = 6, 0.5, 1.8
"""Noise is drawn anew so many times, with both signs; what comes of it may move an estimate by so many standard errors,
and spread so many times as much as the formula says."""
MOVED = 4_000
"""Rows whose numbers are moved to the ends of their cells."""
DOUBT = "doubt"
NOT_MEASURED = "what it rests on was not measured closely enough"
TOO_NOISY = "noise is too large for it"


@dataclass(frozen=True, eq=False)
class Evidence:
    """Released means of functions of a row: their values, the sd of their noise, and the functions at the rows of a
    table (a sparse matrix, one column each). `records` stand behind each of them."""

    values: Reals
    sds: Reals
    functions: Any
    records: float


class Released(Protocol):
    """What a job released of some columns."""

    def __call__(self, columns: Sequence[str], table: pd.DataFrame) -> Evidence:
        """As means of functions of a row."""
        ...

    def within(self, columns: Sequence[str], table: pd.DataFrame) -> list[tuple[pd.DataFrame, NDArray[np.int64]]]:
        """The same rows with one column's numbers moved to the lower or upper ends of their cells, and these cells."""
        ...

    def edges(self, column: str) -> Reals | None:
        """Of the cells of a numeric column."""
        ...

    def lacking(self, columns: Sequence[str]) -> str:
        """Why means and coefficients of these columns have no intervals, if they have none."""
        ...


def calibrated(
    estimator: Ready, table: pd.DataFrame, released: Released, *, level: float = 0.95, seed: int = 0
) -> pd.DataFrame:
    """Estimate, standard error and interval, and in "doubt" why an interval is not to be relied on, if so."""
    evidence, rows = released(estimator.columns, table), len(table)
    functions, noise = sparse.csr_array(evidence.functions), evidence.sds**2
    means = np.asarray(functions.mean(axis=0)).ravel()
    spread = (functions.T @ functions).toarray() / rows - np.outer(means, means)
    plain, first = estimator.fitted(table, np.ones(rows))
    k = MODEL_ERROR
    if not isinstance(estimator, Quantile):
        try:
            unshrunk = estimator.fitted(table, _weights(functions, means, spread, noise, 1.0)(evidence.values))[0]
            k = float(np.clip((np.abs(unshrunk - plain) / np.maximum(first.std(axis=0), TINY)).max(), k, 1.0))
        except NotEstimable:
            pass
    weights = _weights(functions, means, spread, noise, k)
    weighed = weights(evidence.values)
    sample = table.iloc[:MOVED]
    moved = released.within(estimator.columns, sample)
    try:  # the moved rows have no weight, and show what their influence would be
        everything = pd.concat([table, *(redrawn for redrawn, _ in moved)], ignore_index=True)
        scale = len(everything) / rows
        padded = np.concatenate([weighed * scale, np.zeros(len(everything) - rows)])
        estimate, influence = estimator.fitted(everything, padded)
    except NotEstimable:
        nothing = dict.fromkeys(("standard_error", "lower", "upper"), math.nan)
        return pd.DataFrame({ESTIMATE: plain, **nothing, DOUBT: TOO_NOISY})
    influences = influence[:rows]
    centred = influences - influences.mean(axis=0)
    # How far the model may be off, in g and in f; within a cell also by what other columns say.
    scores = [np.ones(len(sample)), *(standardised(sample[name]) for name in dict.fromkeys(estimator.columns))]
    shifts, felt = [np.zeros((0, noise.size))], [np.zeros((0, influences.shape[1]))]
    for turn, (redrawn, cells) in enumerate(moved):
        start = rows + turn * len(sample)
        changed = sparse.csr_array(released(estimator.columns, redrawn).functions - functions[: len(sample)])
        moves_it = influence[start : start + len(sample)] - influences[: len(sample)]
        for score in scores:
            part = (WITHIN_CELL / len(sample) * score, (cells, np.arange(len(sample))))
            by_cell = sparse.csr_array(part, shape=(int(cells.max()) + 1, len(sample)))
            shifts.append((by_cell @ changed).toarray())
            felt.append(np.asarray(by_cell @ moves_it))
    shift, feels = np.concatenate(shifts), np.concatenate(felt)
    model = k**2 * spread + shift.T @ shift
    together = k**2 * np.asarray(functions.T @ centred) / rows + shift.T @ feels
    moves = linalg.cho_solve(linalg.cho_factor(model + np.diag(noise + TINY)), together)
    alone = k**2 * centred.var(axis=0) + (feels**2).sum(axis=0)
    unmeasured = np.maximum(alone - 2 * (moves * together).sum(axis=0) + (moves * (model @ moves)).sum(axis=0), 0.0)
    by_noise = np.sqrt((moves**2 * noise[:, None]).sum(axis=0))
    raked = np.exp(np.clip(weighed - 1, -LARGEST, LARGEST))  # above 0, and the same for small weights
    sampling = raked @ centred**2 / raked.sum() / evidence.records
    error = np.sqrt(sampling + by_noise**2)
    reached = np.asarray(functions.T @ weighed) / rows
    doubts = np.where(unmeasured > (MOST_UNMEASURED * error) ** 2, NOT_MEASURED, "")
    total = np.sqrt(error**2 + unmeasured / 2)
    half = float(stats.norm.ppf((1 + level) / 2)) * total
    if isinstance(estimator, Quantile):
        intervals = estimator.interval(table, weighed, estimate, half, released.edges(estimator.columns[0]))
        doubts[:] = ""
    else:
        estimate = estimate + moves.T @ (evidence.values - reached)
        intervals = pd.DataFrame({ESTIMATE: estimate, "lower": estimate - half, "upper": estimate + half})
    intervals.insert(1, "standard_error", total)
    if not estimator.linear:
        drawn = evidence.sds * np.random.default_rng(seed).standard_normal((TIMES, noise.size))
        bent = _bent(estimator, table, [weights(evidence.values + redrawn) for redrawn in (0 * noise, *drawn, *-drawn)])
        doubts = np.where(bent is None or (bent[0] > BENT * error) | (bent[1] > SPREAD * error), TOO_NOISY, doubts)
    return intervals.assign(**{DOUBT: doubts})


TINY, LARGEST = 1e-12, 5.0


def _weights(functions: Any, means: Reals, spread: Reals, noise: Reals, k: float) -> Callable[[Reals], Reals]:
    """From released means to the weights of rows whose own means, in the model, may be off by k deviations."""
    ridge = linalg.cho_factor(spread + np.diag(noise / k**2 + TINY))

    def weights(values: Reals) -> Reals:
        direction = linalg.cho_solve(ridge, values - means)
        return 1 + np.asarray(functions @ direction) - float(means @ direction)

    return weights


def standardised(values: pd.Series[Any]) -> Reals:
    """With mean 0 and deviation 1; a category counts as its place."""
    column = np.nan_to_num(numbers(values))
    return np.asarray((column - column.mean()) / max(float(column.std()), TINY))


def _bent(estimator: Ready, table: pd.DataFrame, weights: Sequence[Reals]) -> tuple[Reals, Reals] | None:
    """How an estimate moves when noise is drawn anew, each time with both signs: what does not cancel, and the spread
    of what does. None where it cannot be computed any more. The first weights are those without."""
    try:
        centre, *again = (estimator.fitted(table, weighted)[0].to_numpy() for weighted in weights)
    except NotEstimable:
        return None
    up, down = np.array(again[: len(again) // 2]), np.array(again[len(again) // 2 :])
    return np.abs(((up + down) / 2).mean(axis=0) - centre), np.sqrt((((up - down) / 2) ** 2).mean(axis=0))
