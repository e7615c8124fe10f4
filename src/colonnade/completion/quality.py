"""How good completed entries are, where the truth is known: on the scale of the layout, over the given entries only."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from colonnade.completion.layout import Layout, range_of

Values = NDArray[Any]

MEAN, DONOR = "rmse of the mean", "rmse of a random record"
EXACT = 1e-3
"""A share of the declared range."""


def rmse(found: Values, truth: Values) -> float:
    """Over the entries that are known in the truth; NaN if there are none."""
    known = ~np.isnan(truth)
    if not known.any():
        return float("nan")
    gap = np.asarray(found, dtype=np.float64)[known] - np.asarray(truth, dtype=np.float64)[known]
    return float(np.sqrt(np.mean(gap**2)))


def marginal_distance(layout: Layout, found: Values, truth: Values) -> dict[str, float]:
    """For each column: the area between the distribution functions (numbers, on the scale [0, 1]), or half the summed
    difference of the frequencies (categories). 0 is the same distribution."""
    distances = {}
    for name, at in layout.slices.items():
        kept = ~np.isnan(truth[:, at.start])
        a, b = found[kept, at].astype(np.float64), truth[kept, at].astype(np.float64)
        if not len(a):
            continue
        if layout.numeric_mask[at.start]:
            distances[name] = float(np.mean(np.abs(np.sort(a[:, 0]) - np.sort(b[:, 0]))))
        else:
            distances[name] = float(np.abs(a.mean(axis=0) - b.mean(axis=0)).sum() / 2)
    return distances


def correlations(matrix: Values) -> Values:
    """Pearson, 0 where an entry does not vary."""
    filled = np.nan_to_num(np.asarray(matrix, dtype=np.float64))
    centred = filled - filled.mean(axis=0)
    spread = centred.std(axis=0)
    scaled = np.divide(centred, spread, out=np.zeros_like(centred), where=spread > 1e-9)
    return np.asarray(scaled.T @ scaled / max(len(filled), 1))


def pairwise_distance(layout: Layout, found: Values, truth: Values) -> float:
    """Mean absolute difference of the correlations of entries of two different columns. 0 is the same association;
    conditional means overstate it, since they carry no scatter of their own. NaN where there is nothing to compare: few
    whole records, or one column."""
    whole = ~np.isnan(truth).any(axis=1)
    if whole.sum() < 3:
        return float("nan")
    gap = np.abs(correlations(found[whole]) - correlations(truth[whole]))
    owner = np.concatenate([np.full(at.stop - at.start, k) for k, at in enumerate(layout.slices.values())])
    across = owner[:, None] != owner[None, :]
    return float(gap[across].mean()) if across.any() else float("nan")


def donor_rmse(means: Values, variances: Values, truth: Values) -> float:
    """What a record taken at random from those with these means and variances would have, in expectation."""
    known = ~np.isnan(truth)
    if not known.any():
        return float("nan")
    gap = (np.nan_to_num(truth).astype(np.float64) - means) ** 2 + variances
    return float(np.sqrt(np.mean(gap[known])))


def by_column(layout: Layout, found: Values, truth: Values, means: Values, variances: Values) -> dict[str, Any]:
    """For each column its RMSE beside the two floors, and in plain terms: the error of the table in the column's own
    units (positions, if it is ordinal), or the share of right categories beside that of the most frequent one."""
    told: dict[str, Any] = {}
    legal = layout.legal(found)
    for name, at in layout.slices.items():
        right, known = truth[:, at], ~np.isnan(truth[:, at.start])
        one: dict[str, float] = {
            "rmse": rmse(found[:, at], right),
            MEAN: rmse(np.broadcast_to(means[at], right.shape), right),
            DONOR: donor_rmse(means[at], variances[at], right),
        }
        if layout.numeric_mask[at.start]:
            one["error"] = range_of(layout.columns[name])[1] * rmse(legal[:, at], right)
        else:
            true = np.argmax(right[known], axis=1)
            hits = np.argmax(legal[known, at], axis=1) == true
            one["right"] = float(hits.mean()) if known.any() else float("nan")
            one["right if the most frequent"] = (
                float(np.mean(true == np.argmax(means[at]))) if known.any() else float("nan")
            )
        told[name] = one
    return told


def summary(layout: Layout, found: Values, truth: Values, means: Values, variances: Values) -> dict[str, Any]:
    """RMSE of the expected and of the legal values beside two floors (the means, which expected values should be below,
    and a random record of the party, which draws should be below), both kinds of fidelity, and each column alone."""
    legal = layout.legal(found)
    marginals = marginal_distance(layout, legal, truth)
    return {
        "records": len(truth),
        "rmse": rmse(found, truth),
        "rmse of the table": rmse(legal, truth),
        MEAN: rmse(np.broadcast_to(means, truth.shape), truth),
        DONOR: donor_rmse(means, variances, truth),
        "marginal distance": float(np.mean(list(marginals.values()))) if marginals else float("nan"),
        "marginals": marginals,
        "pairwise distance": pairwise_distance(layout, legal, truth),
        "columns": by_column(layout, found, truth, means, variances),
    }


def floor_name(*, imputer: str, n_correlated: int) -> str:
    """What a completion must be below to be of use. Drawn values have a scatter of their own, expected ones none."""
    return DONOR if imputer == "copula-draw" or n_correlated else MEAN


def fails(told: Mapping[str, Any], floor: str) -> bool:
    """Is an error no less than its floor, or not known? What is off by a thousandth of the declared range is right,
    also where the floor is 0: a column that does not vary."""
    return not (told["rmse"] < told[floor] * (1 - 1e-6) or told["rmse"] < EXACT)
