"""The two local releases with which private fits (`VFEM`, `SparseGLM`) standardise columns that were never seen.

*Spread*: noisy counts of the public cells of each column, which say where it lies and how far it spreads. *Norms*:
noisy counts of the lengths of a party's rows in these units. The bounds of the fit itself are declared in the plan;
only the units that fill them come from here.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from colonnade.data.column import Column
from colonnade.federation.job import Job
from colonnade.federation.plan import Phase, phase
from colonnade.models.vfem_private_steps import NORM_BINS, NORM_REACH, block_norms
from colonnade.statistics.cells import cells
from colonnade.statistics.describe import DEPTH, marginal
from colonnade.statistics.features import Feature
from colonnade.statistics.moment_layout import Layout
from colonnade.statistics.quantiles import consistent_leaves, quantiles

Counts = NDArray[np.float64]
Ranges = dict[str, tuple[float, float]]
"""{feature: the ends of what is mapped to [-1, 1]}"""


@dataclass(frozen=True, eq=False)
class Scales:
    """Both releases of a job: the columns of each party, the layout of the moments, and the noise multipliers."""

    columns: Mapping[str, Sequence[Column]]
    layout: Layout
    levels: Mapping[str, float]

    def _spread(self, column: Column) -> dict[str, Any]:
        """The arguments of `marginal` for one column."""
        shape = "histogram" if column.discrete else "tree"
        level = self.levels["spread"]
        return {"column": column.name, "shape": shape, "bins": 2, "noise": "gaussian", "level": level}

    def phases(self) -> list[Phase]:
        here: dict[str, Any] = {"facts": self.layout.facts, "roster": self.layout.roster}
        lengths = {"layout": self.layout.to_dict(), "level": self.levels["norms"]}
        return [
            phase(
                "spread",
                marginal,
                {party: [self._spread(column) for column in mine] for party, mine in self.columns.items()},
                discloses="noisy counts of a column's public cells",
                reply_bytes=8 << (DEPTH + 1),
                **here,
            ),
            phase(
                "norms",
                block_norms,
                {party: [lengths] for party in self.columns},
                discloses="noisy counts of the lengths of a party's standardised rows",
                reply_bytes=8 * NORM_BINS,
                **here,
            ),
        ]

    def ask_spread(self, job: Job) -> dict[str, Counts]:
        """{column: noisy counts}; a column of every party at a time."""
        counts: dict[str, Counts] = {}
        for turn in range(max(map(len, self.columns.values()))):
            asked = {party: mine[turn] for party, mine in self.columns.items() if turn < len(mine)}
            arguments = {party: self._spread(column) for party, column in asked.items()}
            for party, noisy in job.ask_each(marginal, arguments, phase="spread").items():
                counts[asked[party].name] = np.asarray(noisy, dtype=np.float64)
        return counts

    def ask_norms(self, job: Job, standard: Ranges) -> dict[str, Counts]:
        """{party: noisy counts of the lengths of its rows in these units}."""
        layout = replace(self.layout, ranges=standard).to_dict()
        lengths = job.ask(block_norms, phase="norms", layout=layout, level=self.levels["norms"])
        return {party: np.asarray(one, dtype=np.float64) for party, one in lengths.items()}


def length_quantile(lengths: Counts, width: int, share: float) -> float:
    """The length that this share of a party's rows of `width` features do not exceed."""
    edges = np.linspace(0.0, 1.0, NORM_BINS + 1) * NORM_REACH * math.sqrt(width)
    return float(quantiles(lengths, edges, np.array([share]))[0])


def domain_of(feature: Feature) -> tuple[float, float]:
    """What a feature can be at all."""
    if feature.category is not None:
        return 0.0, 1.0
    return feature.centre - feature.half, feature.centre + feature.half


def stretched(
    feature: Feature, standard: tuple[float, float], stretch: float, *, discrete: bool
) -> tuple[float, float]:
    """A range made wider about its centre. A numeric one never exceeds its domain; a listed value is never clipped."""
    low, high = standard
    centre, half = (low + high) / 2, (high - low) / 2 * stretch
    least, most = domain_of(feature)
    farthest = max(most - centre, centre - least)
    half = max(half, farthest) if discrete else min(half, farthest)
    return float(centre - half), float(centre + half)


def centre_and_deviation(column: Column, feature: Feature, counts: Counts) -> tuple[float, float]:
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
