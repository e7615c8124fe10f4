"""VF-MissForest: MissForest (Stekhoven and Buehlmann 2012) across parties, as the FedPSG paper compares with it.

MissForest fills each missing cell by its column's mean or commonest category, then, column after column from the one
with fewest holes, fits a random forest of the column on all others where it is known and predicts it where it is not,
over and over, until two rounds differ more than the two before them; the last round but one is kept.

How the vertical version is read, since the paper names it in one line of a table: the party that lacks records fits the
forests at home, on its own columns and on **what the other parties show of theirs**. With `hidden=None` they show the
columns themselves; with `hidden=d` each shows d principal components of its scaled columns, as the FedPSG paper's
parties show hidden vectors and never columns. Principal components are its best linear hidden layer. Trees need
thresholds on single coordinates, so nothing is encrypted or masked here: it is only compared with.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.ensemble import RandomForestClassifier, RandomForestRegressor

from colonnade.completion.layout import Layout, Matrix, is_numeric

Reals = NDArray[np.float64]


def shown(matrix: NDArray[Any], hidden: int | None) -> Reals:
    """What a party shows of its matrix: all of it, or the scores of its first principal components."""
    given = np.asarray(matrix, dtype=np.float64)
    filled = np.where(np.isnan(given), np.nan_to_num(np.nanmean(given, axis=0)), given)
    if hidden is None or hidden >= given.shape[1]:
        return filled
    centred = filled - filled.mean(axis=0)
    _, _, directions = np.linalg.svd(centred, full_matrices=False)
    return np.asarray(centred @ directions[:hidden].T)


def vf_missforest(
    own: NDArray[Any],
    layout: Layout,
    others: Sequence[NDArray[Any]],
    *,
    hidden: int | None = None,
    rounds: int = 5,
    trees: int = 50,
    most: int = 10_000,
    leaf: int = 3,
    expected: bool = False,
    seed: int,
) -> Matrix:
    """The party's matrix without holes. `others` are the other parties' matrices for the same records.

    With `expected` a category that was filled in is given by the last forest's probabilities, as other methods give
    it; the rounds work with the likeliest one all the same. A forest is grown from at most `most` records a tree, with
    leaves of at least `leaf`.
    """
    matrix = layout.checked(own).astype(np.float64)
    holes = {name: np.isnan(matrix[:, at]).any(axis=1) for name, at in layout.slices.items()}
    foreign = [shown(one, hidden) for one in others]
    order = sorted((name for name in holes if holes[name].any()), key=lambda name: int(holes[name].sum()))
    found = matrix.copy()
    for name in order:
        at, lost = layout.slices[name], holes[name]
        start = matrix[~lost, at].mean(axis=0)
        found[lost, at] = start if is_numeric(layout.columns[name]) else _one_hot(np.argmax(start), start.size)
    chances = found.copy()
    before, last = (found, chances), np.array([np.inf, np.inf])
    for number in range(rounds):
        for place, name in enumerate(order):
            lost, at = holes[name], layout.slices[name]
            rest = np.delete(found, np.arange(at.start, at.stop), axis=1)
            predictors = np.concatenate([rest, *foreign], axis=1)
            options = {
                "n_estimators": trees,
                "min_samples_leaf": leaf,
                "max_features": "sqrt",
                "max_samples": min(most, int((~lost).sum())),
                "random_state": seed + 1000 * number + place,
            }
            if is_numeric(layout.columns[name]):
                fitted = RandomForestRegressor(**options).fit(predictors[~lost], found[~lost, at.start])
                found[lost, at.start] = fitted.predict(predictors[lost])
            else:
                codes = np.argmax(found[~lost, at], axis=1)
                fitted = RandomForestClassifier(**options).fit(predictors[~lost], codes)
                told = np.zeros((int(lost.sum()), at.stop - at.start))
                told[:, fitted.classes_] = fitted.predict_proba(predictors[lost])
                found[lost, at] = _one_hot(told.argmax(axis=1), told.shape[1])
                chances[lost, at] = told
        for name in layout.numeric:
            chances[:, layout.slices[name]] = found[:, layout.slices[name]]
        moved = _moved(before[0], found, layout, holes)
        if (moved > last)[~np.isnan(moved)].all() and number:
            return before[expected].astype(np.float32)
        before, last = (found.copy(), chances.copy()), moved
    return before[expected].astype(np.float32)


def _one_hot(code: Any, size: int) -> Reals:
    return np.eye(size)[code]


def _moved(before: Reals, now: Reals, layout: Layout, holes: dict[str, NDArray[np.bool_]]) -> Reals:
    """How far two rounds are apart: numbers by squares over squares, categories by the share that changed; NaN where
    there are none."""
    numbers = [(layout.slices[name].start, holes[name]) for name in layout.numeric if holes[name].any()]
    kinds = [(layout.slices[name], holes[name]) for name in layout.one_hot if holes[name].any()]
    apart = sum(float(((now[lost, at] - before[lost, at]) ** 2).sum()) for at, lost in numbers)
    size = sum(float((now[lost, at] ** 2).sum()) for at, lost in numbers)
    changed = [(np.argmax(now[lost, at], axis=1) != np.argmax(before[lost, at], axis=1)).mean() for at, lost in kinds]
    return np.array([apart / max(size, 1e-12) if numbers else np.nan, float(np.mean(changed)) if changed else np.nan])
