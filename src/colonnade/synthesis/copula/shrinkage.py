"""Numbers measured with known noise, drawn towards their mean as far as the noise asks (empirical Bayes)."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Reals = NDArray[np.float64]


def shrink(raw: Reals, noise: Reals, owner: NDArray[np.intp]) -> tuple[Reals, float]:
    """Empirical Bayes for each block of two parties' columns: drawn towards the block's mean as the noise asks.

    Also the mean weight that entries keep: 1 without noise.
    """
    found, weights = raw.copy(), np.ones_like(raw)
    for a in range(owner.max(initial=0) + 1):
        for b in range(a, owner.max(initial=0) + 1):
            rows, columns = np.flatnonzero(owner == a), np.flatnonzero(owner == b)
            i, j = (one.ravel() for one in np.meshgrid(rows, columns, indexing="ij"))
            if a == b:
                i, j = i[i < j], j[i < j]
            if not i.size:
                continue
            values, kept = drawn_together(raw[i, j], noise[i, j])
            found[i, j] = found[j, i] = values
            weights[i, j] = weights[j, i] = kept
    off = ~np.eye(len(raw), dtype=bool)
    return found, float(weights[off].mean()) if off.any() else 1.0


def drawn_together(values: Reals, error: Reals) -> tuple[Reals, Reals]:
    """(posterior means, weights of the values) under values ~ N(truth, error^2), truth ~ N(t, tau^2)."""
    if not np.any(error > 0):
        return values, np.ones_like(values)
    precision = 1 / np.maximum(error, 1e-9) ** 2
    centre = float(np.average(values, weights=precision))
    tau = max(float(np.average((values - centre) ** 2 - error**2, weights=precision**2)), 0.0)
    if values.size < 2:
        return values, np.ones_like(values)
    weight = tau / (tau + error**2)
    return np.asarray(weight * values + (1 - weight) * centre), np.asarray(weight)
