"""What is drawn of a synthetic table: how near it is to what was released, each column over its released marginal, and
the associations of all pairs.

All are post-processing: of rows that were drawn, and of what was released before.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Collection, Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from colonnade.data.column import Column, Columns
from colonnade.formatting import with_unit
from colonnade.statistics.cells import Cells
from colonnade.statistics.marginals import Marginal
from colonnade.view.blocks import ChartName, Figure

Reals = NDArray[np.float64]
Pairs = Collection[frozenset[str]]
PICTURED = 20_000
"""Rows that associations and shares are computed from: the error of a correlation is then 0.007."""


def released_shares(column: Column, marginal: Marginal, cells: Cells, sd: float) -> dict[str, Any]:
    """A released marginal as shares of the public cells, with the noise of one of them."""
    if cells.edges is None:
        return {"shares": marginal.probabilities.tolist(), "sd": sd}
    below = np.append(marginal.below(cells.edges[:-1]), 1.0)
    return {"shares": np.diff(below).tolist(), "edges": cells.edges.tolist(), "sd": sd}


def column_figure(
    name: str, drawn: Mapping[str, Any], released: Mapping[str, Any] | None = None, *, unit: str | None = None
) -> Figure:
    """The synthetic rows of a column in its public cells, over what was released of it (`released_shares`)."""
    counts, edges = drawn["counts"], drawn["edges"]
    data = {"labels": drawn["labels"], "values": counts} if edges is None else {"counts": counts, "edges": edges}
    if "ticks" in drawn:
        data["ticks"] = drawn["ticks"]
    if released is not None:
        shares, sd = np.asarray(released["shares"], dtype=np.float64), float(released["sd"])
        parts = np.eye(len(counts), len(shares)) if edges is None else overlaps(edges, released["edges"])
        rows = sum(counts)
        noise = rows * sd * np.sqrt((parts**2).sum(axis=1))
        data["released"] = {"counts": (rows * parts @ shares).tolist(), "sd": noise.tolist()}
    chart: ChartName = "bars" if edges is None else "histogram"
    x, y = ("synthetic rows", "") if edges is None else (with_unit(name, unit), "synthetic rows")
    beside = "" if released is None else ", and the marginal that was released"
    return Figure(name=name, chart=chart, data=data, label=f"Synthetic rows of {name}{beside}", title=name, x=x, y=y)


def overlaps(edges: Sequence[float], others: Sequence[float]) -> Reals:
    """The part of each of the `others`' cells (columns) in each cell between `edges` (rows). A point mass is a cell of
    hardly any width, and lies in one."""
    ends, own = np.asarray(edges, dtype=np.float64), np.asarray(others, dtype=np.float64)
    upper, lower = np.minimum(ends[1:, None], own[None, 1:]), np.maximum(ends[:-1, None], own[None, :-1])
    return np.asarray(np.maximum(upper - lower, 0.0) / np.diff(own), dtype=np.float64)


def agreement(encoded: NDArray[Any], released: Mapping[str, Any]) -> float:
    """1 - a bound on the distance of a column's rows (see `Column.encode`) from the records, in total variation over
    the released cells.

    By the triangle inequality: the distance of the rows from the released marginal, and that of the marginal from the
    records, of which noise with deviation sd in each of m shares makes m sd sqrt(2 / pi) / 2 on average.
    """
    shares = np.asarray(released["shares"], dtype=np.float64)
    noise = 0.5 * len(shares) * float(released["sd"]) * math.sqrt(2 / math.pi)
    if "edges" in released:
        codes = np.searchsorted(released["edges"][1:-1], encoded[~np.isnan(encoded)], side="right")
    else:
        codes = encoded[encoded >= 0].astype(np.int64)
    shown = np.bincount(codes, minlength=len(shares)) / max(len(codes), 1)
    distance = 0.5 * float(np.abs(shown - shares / max(shares.sum(), 1e-12)).sum())
    return max(1.0 - distance - noise, 0.0)


def score_figure(columns: Mapping[str, float], pairs: float | None) -> Figure:
    """One score and its parts: the mean `agreement` of columns, and that of pairs, all of which were measured."""
    parts = {f"columns ({len(columns)})": sum(columns.values()) / len(columns)}
    if pairs is not None:
        parts["pairs"] = pairs
    shown = {"score": sum(parts.values()) / len(parts), **parts}
    worst = min(columns, key=lambda name: columns[name])
    caption = (
        "Pairs: 100 % less the estimated error of a pair." if pairs is not None else "Not all pairs were measured."
    )
    return Figure(
        name="score",
        chart="bars",
        data={"labels": list(shown), "values": [100 * value for value in shown.values()], "whole": 100.0},
        label="The score and its parts; the caption says how they are computed",
        title="How near the rows are to the records, as estimated",
        x="agreement, in %",
        caption="The mean of its parts, from released numbers alone. Columns: 100 % less the distance (total variation)"
        f" of the rows from the released marginals and that of its noise; the worst is {worst}"
        f" ({100 * columns[worst]:.0f} %). {caption} What the model leaves out is not in it.",
    )


def association_figure(rows: pd.DataFrame, columns: Columns, hidden: Pairs) -> Figure:
    """All pairs of columns; `hidden` are those whose association the noise hides."""
    names = list(columns)
    matrix = associations(rows, columns)
    unknown = [[frozenset((first, second)) in hidden for second in names] for first in names]
    return Figure(
        name="associations",
        chart="heatmap",
        data={"labels": names, "matrix": matrix.round(3).tolist(), **({"unknown": unknown} if hidden else {})},
        label="How strongly each pair of columns goes together in the synthetic table",
        title="Associations of the columns",
        x="column",
        y="column",
        caption="Rank correlations; where one of two columns has unordered categories, Cramér's V, which has no sign."
        + (" Crossed pairs were not measured, or the noise hides them." if hidden else ""),
    )


def associations(rows: pd.DataFrame, columns: Columns) -> Reals:
    """Rank correlations of ordered columns, Cramér's V of pairs with a categorical one."""
    encoded = {name: np.asarray(column.encode(rows[name]), dtype=np.float64) for name, column in columns.items()}
    matrix = pd.DataFrame(encoded).corr(method="spearman").to_numpy(np.float64, copy=True)
    codes = {name: _coarse(columns[name], values) for name, values in encoded.items()}
    for (i, first), (j, second) in itertools.combinations(enumerate(columns), 2):
        if "categorical" in (columns[first].kind, columns[second].kind):
            matrix[i, j] = matrix[j, i] = cramers_v(codes[first], codes[second])
    return np.asarray(np.nan_to_num(matrix), dtype=np.float64)


def _coarse(column: Column, values: Reals, bins: int = 8) -> NDArray[np.int64]:
    """Categories as they are, numbers in cells of about equal mass."""
    if column.discrete:
        return np.maximum(values, 0).astype(np.int64)
    cuts = np.unique(np.quantile(values, np.linspace(0, 1, bins + 1)[1:-1]))
    return np.searchsorted(cuts, values, side="right")


def cramers_v(one: Sequence[int] | NDArray[np.int64], other: Sequence[int] | NDArray[np.int64]) -> float:
    """With Bergsma's correction: without it independent columns of many categories would seem associated."""
    table = pd.crosstab(np.asarray(one), np.asarray(other)).to_numpy(np.float64)
    n, (r, k) = table.sum(), table.shape
    if min(r, k) < 2:
        return 0.0
    expected = table.sum(axis=1, keepdims=True) @ table.sum(axis=0, keepdims=True) / n
    phi = max(float(((table - expected) ** 2 / expected).sum() / n) - (r - 1) * (k - 1) / (n - 1), 0.0)
    rows, columns = r - (r - 1) ** 2 / (n - 1), k - (k - 1) ** 2 / (n - 1)
    return float(np.sqrt(phi / max(min(rows, columns) - 1, 1e-9)).clip(0, 1))
