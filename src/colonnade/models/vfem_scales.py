"""Where a column lies and how far it spreads, from the noisy counts of its public cells."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from colonnade.data.column import Column
from colonnade.statistics.cells import cells
from colonnade.statistics.describe import DEPTH
from colonnade.statistics.features import Feature
from colonnade.statistics.quantiles import consistent_leaves, quantiles


def centre_and_deviation(column: Column, feature: Feature, counts: NDArray[np.float64]) -> tuple[float, float]:
    """Where a feature lies and how far it spreads, from noisy counts; in its own units, never a spread of 0.

    Numeric columns: the median, and half the way from the 16th to the 84th percentile (or a quarter of that from 2.5 to
    97.5 where many values are equal). Listed values: mean and deviation of the codes, or of the indicator.
    """
    least = feature.half / 500
    if column.discrete:
        weights = np.maximum(counts, 0.0)
        weights /= max(weights.sum(), 1e-300)
        codes = np.arange(len(weights), dtype=np.float64)
        values = codes if feature.category is None else (codes == feature.category).astype(np.float64)
        mean = float(weights @ values)
        return mean, max(math.sqrt(max(float(weights @ (values - mean) ** 2), 0.0)), 0.05 * feature.half)
    leafy = Column(name=column.name, kind="continuous", lower=column.lower, upper=column.upper)
    edges = cells(leafy, bins=2**DEPTH).edges
    assert edges is not None
    leaves = consistent_leaves(counts[: 2 ** (DEPTH + 1) - 2], DEPTH)
    at = quantiles(leaves, edges, np.array([0.025, 0.16, 0.5, 0.84, 0.975]))
    return float(at[2]), max(float(at[3] - at[1]) / 2, float(at[4] - at[0]) / 4, least)
