"""A synthetic table beside the data of several parties: a release, with a cost, that somebody has to ask for.

The parties count contingency tables together, with noise, on secret shares (`statistics.contingency`). The distance to
the synthetic table is then computed from what was released. Nothing in a report does this by itself.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from colonnade.data.column import Columns
from colonnade.errors import UnknownColumn
from colonnade.evaluation.fidelity import Cut, cut
from colonnade.statistics.contingency import Contingency, Tables

if TYPE_CHECKING:
    from colonnade.federation.coordinator import Federation

BINS = 5


def joint_release(
    tables: Sequence[Sequence[str]], *, epsilon: float, delta: float = 1e-6, bins: int = BINS
) -> Contingency:
    """The release behind a joint comparison; `federation.plan` of it says what it costs."""
    return Contingency(tables=tuple(tuple(names) for names in tables), bins=bins, epsilon=epsilon, delta=delta)


def compare_jointly(
    federation: Federation,
    synthetic: pd.DataFrame,
    tables: Sequence[Sequence[str]],
    *,
    epsilon: float,
    delta: float = 1e-6,
    bins: int = BINS,
) -> list[dict[str, Any]]:
    """Run `joint_release` and say how far the synthetic table is from each released table.

    `distance` is the total variation distance to the noisy counts; `noise` is what noise alone would show on average
    if the two agreed. A distance near `noise` says that no difference can be seen at this cost.
    """
    method = joint_release(tables, epsilon=epsilon, delta=delta, bins=bins)
    facts = federation.facts
    columns = Columns([facts.column(name) for name in dict.fromkeys(name for names in tables for name in names)])
    return distances(method.fit(federation), synthetic, columns, bins=bins)


def distances(released: Tables, synthetic: pd.DataFrame, columns: Columns, *, bins: int = BINS) -> list[dict[str, Any]]:
    """Of each released table; sums below one record have no distance (None)."""
    absent = sorted({name for names in released.counts for name in names} - set(synthetic.columns))
    if absent:
        raise UnknownColumn(f"the synthetic table has no column {', '.join(absent)}; compare columns that it has.")
    rows = []
    for names, counts in released.counts.items():
        mine = _counts(cut(synthetic[list(names)].dropna(), columns.select(names), bins=bins), names, counts.shape)
        total, sd = float(counts.sum()), released.noise_sd[names]
        known = total >= 1 and mine.sum() > 0
        gap = 0.5 * np.abs(counts / total - mine / mine.sum()).sum() if known else math.nan
        rows.append(
            {
                "columns": list(names),
                "distance": float(min(gap, 1.0)) if known else None,
                "noise": float(min(0.5 * counts.size * sd * math.sqrt(2 / math.pi) / total, 1.0)) if known else None,
                "records": total,
            }
        )
    return rows


def _counts(made: Cut, names: Sequence[str], shape: tuple[int, ...]) -> np.ndarray[Any, Any]:
    """The synthetic counts in the released order and cells: an empty cell is no cell of a contingency table."""
    sizes = [made.sizes[made.names.index(name)] for name in names]
    whole = made.counts(names).reshape(sizes)
    return whole[tuple(slice(length) for length in shape)].astype(np.float64)
