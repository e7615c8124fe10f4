"""From coarse bins back to cells: histogram recovery (the paper's Algorithm 5) and consistency (Algorithm 6).

`recover` spreads a coarse table over the cells of its bins: by the columns' own histograms, or evenly (the baseline).
`consistent` makes an estimated table agree with known marginals. The text of 6.2 has the sign of the correction wrong;
this follows Algorithm 6. The agreed marginals stay local to the table: the same column may be corrected differently in
another pair.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import numpy as np

from colonnade.errors import BadArguments
from colonnade.synthesis.field.schema import Integers, Reals

Recover = Literal["histogram", "uniform"]


def recover(
    coarse: Reals, bins: Sequence[Integers], histograms: Sequence[Reals], *, by: Recover = "histogram"
) -> Reals:
    """HisRec: each bin's count spread over its cells, independently along the axes.

    `histograms` are noisy counts of each column's cells. A bin in which they are all zero is spread evenly.
    """
    table = coarse
    for axis, (bin_of, histogram) in enumerate(zip(bins, histograms, strict=True)):
        weights = np.maximum(histogram, 0.0) if by == "histogram" else np.ones(bin_of.size)
        mass = np.bincount(bin_of, weights)[bin_of]
        width = np.bincount(bin_of)[bin_of]
        share = np.where(mass > 0, weights / np.where(mass > 0, mass, 1.0), 1 / width)
        table = np.take(table, bin_of, axis=axis) * _along(share, table.ndim, axis)
    return np.asarray(table, dtype=np.float64)


def normalised(table: Reals) -> Reals:
    """Negative entries to zero, then to a sum of 1; uniform if nothing is left."""
    positive = np.maximum(table, 0.0)
    total = float(positive.sum())
    return positive / total if total > 0 else np.full(table.shape, 1 / table.size)


def marginal_of(table: Reals, axis: int) -> Reals:
    """A table summed over all other axes."""
    return np.asarray(table.sum(axis=tuple(other for other in range(table.ndim) if other != axis)))


def consistent(
    table: Reals, marginals: Sequence[Reals], *, total: float, tolerance: float = 1e-4, most: int = 200
) -> Reals:
    """The table, as counts of `total` records, after both sides have met half-way again and again.

    In each step a column's marginal and the table's own are replaced by their mean, the difference being spread
    evenly over the cells that share the value; negative entries go to zero and the table is normalised.
    """
    if [marginal.shape for marginal in marginals] != [(size,) for size in table.shape]:
        raise BadArguments("a table needs one marginal for each of its axes, of the same length.")
    joint = normalised(table)
    agreed = [normalised(marginal) for marginal in marginals]
    for _ in range(most):
        apart = 0.0
        for axis, size in enumerate(joint.shape):
            own = marginal_of(joint, axis)
            apart = max(apart, float(np.abs(own - agreed[axis]).sum()))
            agreed[axis] = (agreed[axis] + own) / 2
            spread = (agreed[axis] - own) / (joint.size / size)
            joint = normalised(joint + _along(spread, joint.ndim, axis))
        if apart < tolerance:
            break
    return joint * total


def _along(values: Reals, dimensions: int, axis: int) -> Reals:
    """Shaped so that it meets one axis of a table."""
    return values.reshape([-1 if other == axis else 1 for other in range(dimensions)])
