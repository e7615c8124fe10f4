"""How good completed entries are, where the truth is known: on the scale of the layout, over the given entries only."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from colonnade.completion.layout import Layout, range_of
from colonnade.data.column import Column

Values = NDArray[Any]

MEAN, DONOR = "rmse of the mean", "rmse of a random record"
"""Two floors: expected values should be below the first, draws below the second."""
EXACT = 1e-3
"""A share of the declared range."""


def rmse(values: Values, truth: Values) -> float:
    """Over the entries that are known in the truth; NaN if there are none."""
    known = ~np.isnan(truth)
    if not known.any():
        return float("nan")
    gap = np.asarray(values, dtype=np.float64)[known] - np.asarray(truth, dtype=np.float64)[known]
    return float(np.sqrt(np.mean(gap**2)))


def marginal_distance(layout: Layout, values: Values, truth: Values) -> dict[str, float]:
    """For each column: the area between the distribution functions (numbers, on the scale [0, 1]), or half the summed
    difference of the frequencies (categories). 0 is the same distribution."""
    distances = {}
    for name, place in layout.slices.items():
        known = ~np.isnan(truth[:, place.start])
        a, b = values[known, place].astype(np.float64), truth[known, place].astype(np.float64)
        if not len(a):
            continue
        if layout.numeric_mask[place.start]:
            distances[name] = float(np.mean(np.abs(np.sort(a[:, 0]) - np.sort(b[:, 0]))))
        else:
            distances[name] = float(np.abs(a.mean(axis=0) - b.mean(axis=0)).sum() / 2)
    return distances


def correlations(matrix: Values) -> Values:
    """Pearson, 0 where an entry does not vary."""
    filled = np.nan_to_num(np.asarray(matrix, dtype=np.float64))
    centred = filled - filled.mean(axis=0)
    scale = centred.std(axis=0)
    scaled = np.divide(centred, scale, out=np.zeros_like(centred), where=scale > 1e-9)
    return np.asarray(scaled.T @ scaled / max(len(filled), 1))


def pairwise_distance(layout: Layout, values: Values, truth: Values) -> float:
    """Mean absolute difference of the correlations of entries of two different columns. 0 is the same association;
    conditional means overstate it, since they carry no scatter of their own. NaN where there is nothing to compare: few
    complete records, or one column."""
    complete = ~np.isnan(truth).any(axis=1)
    if complete.sum() < 3:
        return float("nan")
    gap = np.abs(correlations(values[complete]) - correlations(truth[complete]))
    owner = np.concatenate([np.full(place.stop - place.start, k) for k, place in enumerate(layout.slices.values())])
    across = owner[:, None] != owner[None, :]
    return float(gap[across].mean()) if across.any() else float("nan")


def donor_rmse(means: Values, variances: Values, truth: Values) -> float:
    """What a record taken at random from those with these means and variances would have, in expectation."""
    known = ~np.isnan(truth)
    if not known.any():
        return float("nan")
    gap = (np.nan_to_num(truth).astype(np.float64) - means) ** 2 + variances
    return float(np.sqrt(np.mean(gap[known])))


def _with_floors(values: Values, truth: Values, means: Values, variances: Values) -> dict[str, Any]:
    return {
        "rmse": rmse(values, truth),
        MEAN: rmse(np.broadcast_to(means, truth.shape), truth),
        DONOR: donor_rmse(means, variances, truth),
    }


def by_column(layout: Layout, values: Values, truth: Values, means: Values, variances: Values) -> dict[str, Any]:
    """For each column its RMSE beside the two floors, and in plain terms: the error of the table in the column's own
    units (positions, if it is ordinal), or the share of right categories beside that of the most frequent one."""
    columns: dict[str, Any] = {}
    legal = layout.legal(values)
    for name, place in layout.slices.items():
        right, known = truth[:, place], ~np.isnan(truth[:, place.start])
        column = columns[name] = _with_floors(values[:, place], right, means[place], variances[place])
        if layout.numeric_mask[place.start]:
            column["error"] = range_of(layout.columns[name])[1] * rmse(legal[:, place], right)
            if unit := _unit(layout.columns[name]):
                column["unit"] = unit
            continue
        true = np.argmax(right[known], axis=1)
        hits = np.argmax(legal[known, place], axis=1) == true
        column["right"] = float(hits.mean()) if known.any() else float("nan")
        frequent = true == np.argmax(means[place])
        column["right if the most frequent"] = float(frequent.mean()) if known.any() else float("nan")
    return columns


def _unit(column: Column) -> str:
    """Of its numbers, where it is declared; a date counts steps."""
    return f"{column.step or 'day'}s" if column.kind == "date" else column.unit or ""


def summary(layout: Layout, values: Values, truth: Values, *, means: Values, variances: Values) -> dict[str, Any]:
    """RMSE of the expected and of the legal values beside both floors, both kinds of fidelity, and each column."""
    legal = layout.legal(values)
    marginals = marginal_distance(layout, legal, truth)
    return {
        "records": len(truth),
        **_with_floors(values, truth, means, variances),
        "rmse of the table": rmse(legal, truth),
        "marginal distance": float(np.mean(list(marginals.values()))) if marginals else float("nan"),
        "marginals": marginals,
        "pairwise distance": pairwise_distance(layout, legal, truth),
        "columns": by_column(layout, values, truth, means, variances),
    }


def fails(errors: Mapping[str, Any], *, drawn: bool) -> bool:
    """Is an error no less than its floor, or not known? Drawn values have a scatter of their own, expected ones none.

    What is off by a thousandth of the declared range is right, also where the floor is 0: a column that does not vary.
    """
    floor = errors[DONOR if drawn else MEAN]
    return not (errors["rmse"] < floor * (1 - 1e-6) or errors["rmse"] < EXACT)
