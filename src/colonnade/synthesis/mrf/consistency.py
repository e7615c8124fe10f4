"""Consistency enforcement (the paper's 6.2, Algorithm 6): an estimated table made to agree with known marginals.

The text of 6.2 has the sign of the correction wrong; this follows Algorithm 6. The agreed marginals stay local to the
table: the same column may be corrected differently in another pair.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from colonnade.errors import BadArguments

Reals = NDArray[np.float64]


def normalised(table: Reals) -> Reals:
    """Negative entries to zero, then to a sum of 1; uniform if nothing is left."""
    kept = np.maximum(table, 0.0)
    total = float(kept.sum())
    return kept / total if total > 0 else np.full(table.shape, 1 / table.size)


def consistent(
    table: Reals, marginals: Sequence[Reals], *, total: float, tolerance: float = 1e-4, most: int = 200
) -> Reals:
    """The table, as counts of `total` records, after both sides have met half-way again and again.

    In each step a column's marginal and the table's own are replaced by their mean, the difference being spread
    evenly over the cells that share the value; negative entries go to zero and the table is normalised.
    """
    if table.ndim != len(marginals) or any(
        one.shape != (size,) for one, size in zip(marginals, table.shape, strict=True)
    ):
        raise BadArguments("a table needs one marginal for each of its axes, of the same length.")
    joint = normalised(table)
    known = [normalised(one) for one in marginals]
    for _ in range(most):
        apart = 0.0
        for axis in range(joint.ndim):
            others = tuple(one for one in range(joint.ndim) if one != axis)
            own = joint.sum(axis=others)
            apart = max(apart, float(np.abs(own - known[axis]).sum()))
            known[axis] = (known[axis] + own) / 2
            shape = [1] * joint.ndim
            shape[axis] = -1
            cells = joint.size / joint.shape[axis]
            joint = normalised(joint + ((known[axis] - own) / cells).reshape(shape))
        if apart < tolerance:
            break
    return joint * total
