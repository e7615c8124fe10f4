"""What a synthetic table is worth to an analyst: train on it, test on real records, beside training on real records;
and coefficients with their intervals, side by side.

All of it needs real records in one place: a simulation, or one party's own columns at home.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from scipy import special, stats

from colonnade.data.column import Columns
from colonnade.data.simulated.example import design_matrix
from colonnade.errors import BadArguments
from colonnade.evaluation.fidelity import least_squares

Reals = NDArray[np.float64]
RIDGE = 1e-6
"""On standardised columns: enough for a column that does not vary in one table, too little to move a coefficient."""
NEWTON_STEPS = 50


@dataclass(frozen=True, kw_only=True)
class Efficacy:
    """One response, predicted on the same real test records by two models.

    score : "R-squared" (a numeric response) or "AUC" (a binary one).
    synthetic, real : of the model trained on the synthetic table, and on real records.
    """

    response: str
    score: Literal["R-squared", "AUC"]
    synthetic: float
    real: float
    tested: int


def train_and_test(
    synthetic: pd.DataFrame,
    train: pd.DataFrame,
    test: pd.DataFrame,
    columns: Columns,
    response: str,
) -> Efficacy:
    """Train on `synthetic` and on `train`, test both on `test`; rows with an empty cell are left out of all three.

    A numeric response takes linear regression and out-of-sample R-squared, a binary one logistic regression and AUC.

        train_and_test(table, real.iloc[:800], real.iloc[800:], columns, "roa")
    """
    kind = columns[response].kind
    if kind == "categorical":
        raise BadArguments(f"{response!r} is categorical; choose a binary or numeric column as response.")
    unseen = _arrays(test, columns, response)
    scores = []
    for table in (synthetic, train):
        x, y = _arrays(table, columns, response)
        centre, scale = x.mean(axis=0), x.std(axis=0)
        scale = np.where(scale > 0, scale, 1.0)
        fitted = (_logistic if kind == "binary" else _linear)((x - centre) / scale, y)
        index = fitted[0] + ((unseen[0] - centre) / scale) @ fitted[1:]
        scores.append(area_under_curve(index, unseen[1]) if kind == "binary" else _explained(index, unseen[1]))
    return Efficacy(
        response=response,
        score="AUC" if kind == "binary" else "R-squared",
        synthetic=scores[0],
        real=scores[1],
        tested=len(unseen[1]),
    )


def _arrays(table: pd.DataFrame, columns: Columns, response: str) -> tuple[Reals, Reals]:
    design = design_matrix(table, columns).dropna()
    y = design.pop(response).to_numpy(np.float64)
    if len(y) < 2 or y.min() == y.max():
        raise BadArguments(f"{response!r} does not vary in one of the tables; choose another response or more rows.")
    return design.to_numpy(np.float64), y


def _linear(x: Reals, y: Reals) -> Reals:
    design = np.column_stack([np.ones(len(y)), x])
    penalty = RIDGE * len(y) * np.eye(design.shape[1])
    penalty[0, 0] = 0.0
    return np.asarray(np.linalg.solve(design.T @ design + penalty, design.T @ y))


def _logistic(x: Reals, y: Reals) -> Reals:
    """Newton's method on the penalised log likelihood, halving steps that do not improve it."""
    design = np.column_stack([np.ones(len(y)), x])
    penalty = np.full(design.shape[1], RIDGE * len(y))
    penalty[0] = 0.0

    def objective(coef: Reals) -> float:
        index = design @ coef
        return float(np.logaddexp(0, index).sum() - y @ index + 0.5 * (penalty * coef**2).sum())

    coef = np.zeros(design.shape[1])
    value = objective(coef)
    for _ in range(NEWTON_STEPS):
        p = special.expit(design @ coef)
        gradient = design.T @ (p - y) + penalty * coef
        curvature = design.T @ (design * (p * (1 - p))[:, None]) + np.diag(penalty + 1e-12 * len(y))
        step = np.linalg.solve(curvature, gradient)
        size = 1.0
        while objective(coef - size * step) > value and size > 1e-8:
            size /= 2
        coef = coef - size * step
        previous, value = value, objective(coef)
        if previous - value < 1e-10 * (1 + abs(value)):
            break
    return np.asarray(coef)


def _explained(predicted: Reals, y: Reals) -> float:
    return float(1 - ((y - predicted) ** 2).sum() / ((y - y.mean()) ** 2).sum())


def area_under_curve(scores: Reals, positive: Reals) -> float:
    """The probability that a positive record has the higher score; ties count half (Mann and Whitney)."""
    ranks = stats.rankdata(scores)
    ones = positive > 0.5
    hits, misses = int(ones.sum()), int((~ones).sum())
    if not hits or not misses:
        raise BadArguments("AUC needs records of both classes; take more test records.")
    return float((ranks[ones].sum() - hits * (hits + 1) / 2) / (hits * misses))


def side_by_side(
    synthetic: pd.DataFrame,
    real: pd.DataFrame,
    columns: Columns,
    response: str,
    *,
    leave_out: Sequence[str] = (),
    level: float = 0.95,
) -> pd.DataFrame:
    """Least squares on both tables: coefficients, intervals, and how far the intervals overlap.

    `overlap` is that of Karr et al. (2006): the mean share of each interval that lies in the other; 1 is the same
    interval, below 0 they are apart. Intervals from a synthetic table know nothing of the synthesis.
    """
    reach = float(stats.norm.ppf(0.5 + level / 2))
    rows = {}
    fits = [least_squares(table.dropna(), columns, response, leave_out=leave_out) for table in (synthetic, real)]
    for name in fits[1].index:
        ends = [(fit.loc[name, "coef"], reach * fit.loc[name, "std err"]) for fit in fits]
        (mine, near), (theirs, far) = ends
        low, high = max(mine - near, theirs - far), min(mine + near, theirs + far)
        shares = [(high - low) / (2 * half) if half > 0 else float(mine == theirs) for half in (near, far)]
        rows[name] = {
            "synthetic": mine,
            "synthetic from": mine - near,
            "synthetic to": mine + near,
            "real": theirs,
            "real from": theirs - far,
            "real to": theirs + far,
            "overlap": sum(shares) / 2,
        }
    return pd.DataFrame.from_dict(rows, orient="index")
