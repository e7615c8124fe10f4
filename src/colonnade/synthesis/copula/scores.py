"""Private marginals at each party, and the scores that they turn its columns into.

Each party releases noisy counts of the public cells of its columns, once: the listed values of a stepwise column, or
all nodes of a dyadic tree over the bounds of a continuous one. Marginal and score map are functions of these released
counts alone, so the coordinator and the party compute the same ones, and the party keeps its maps for the moments.

The score of a value is a (2 F(x) - 1), with F at the middle of its jump where it jumps. The factor a gives every column
the variance of a continuous one, 1/3, as far as the score stays in [-1, 1]: noise of one size then hurts all columns
alike. The claim is in `claim.md`.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from colonnade.data.aggregation import Values
from colonnade.data.column import Column, Columns
from colonnade.errors import BadArguments
from colonnade.federation.party import Party
from colonnade.federation.step import Public, Release, step
from colonnade.privacy.cost import Cost, GaussianCell, Unbounded, compose
from colonnade.privacy.noise import discrete_gaussian
from colonnade.statistics.features import ScoreMap, keep_scores
from colonnade.statistics.marginals import Marginal, equal_bins, from_curve, from_shares
from colonnade.statistics.quantiles import consistent_leaves, dyadic_counts
from colonnade.synthesis.copula.model import bounds_of, listed_values, stepwise, values_of

Reals = NDArray[np.float64]
Integers = NDArray[np.int64]

DEEPEST = 9
"""Halvings of a continuous column's bounds: at most 511 private knots."""
SCORE_VARIANCE = 1 / 3
"""Of the score of a continuous column, uniform on [-1, 1]."""


def tree_depth(n: int, sigma: float) -> int:
    """From public facts: leaves are halved while one would still hold the noise of a node, were the column uniform."""
    depth = 2
    while depth < DEEPEST and n / 2 ** (depth + 1) > sigma * math.sqrt(depth + 1):
        depth += 1
    return depth


# --- post-processing: what released counts say -------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class PartyMarginals:
    """A party's marginals, and how many records it seems to have (`present`, with its standard deviation)."""

    marginals: dict[str, Marginal]
    present: float
    present_sd: float


def party_marginals(
    columns: Mapping[str, Column], counts: Mapping[str, Integers], *, sigma: float, depth: int
) -> PartyMarginals:
    """From one party's noisy counts. Every column counts the same records, so their totals are averaged."""
    totals, weights = [], []
    leaves: dict[str, Reals] = {}
    for name, column in columns.items():
        noisy = counts[name].astype(np.float64)
        leaves[name] = noisy if stepwise(column) else consistent_leaves(noisy, depth)
        totals.append(float(leaves[name].sum()))
        # The total of a tree is that of its two top nodes, which least squares makes only better.
        weights.append(1 / (values_of(column) if stepwise(column) else 2 * depth))
    present = float(np.average(totals, weights=weights))
    marginals = {name: _marginal(column, leaves[name], present) for name, column in columns.items()}
    return PartyMarginals(marginals, present, sigma / math.sqrt(sum(weights)))


def _marginal(column: Column, leaves: Reals, present: float) -> Marginal:
    """A column about which the noise says nothing is uniform on its domain."""
    if stepwise(column):
        shares = leaves / present if present >= 1 else np.full(leaves.size, 1 / leaves.size)
        return from_shares(listed_values(column), shares)
    points = np.linspace(*bounds_of(column), leaves.size + 1)
    running = np.concatenate([[0.0], np.cumsum(leaves)])
    if running[-1] < 1:
        return Marginal(points, np.linspace(0.0, 1.0, points.size))
    return from_curve(points, running / running[-1])


def score_factor(marginal: Marginal) -> float:
    """a = sqrt(SCORE_VARIANCE / var(2 F - 1)), or less where the largest score would pass 1; 1 if continuous.

    With probabilities p the variance is (1 - sum p^3) / 3.
    """
    if not marginal.discrete:
        return 1.0
    variance = (1 - float((marginal.probabilities**3).sum())) / 3
    largest = float(np.abs(2 * marginal.scores(marginal.points) - 1).max())
    if variance < 1e-12 or largest < 1e-9:
        return 1.0
    return min(math.sqrt(SCORE_VARIANCE / variance), 1 / largest)


def score_map(column: Column, marginal: Marginal) -> ScoreMap:
    """From encoded values to scores in [-1, 1]."""
    # A long count stands in the middle of its unit, so the map is moved by half a unit instead of the data.
    moved = 0.5 if column.kind == "count" and not marginal.discrete else 0.0
    scores = marginal.scores(marginal.points)
    return ScoreMap(marginal.points - moved, np.clip(score_factor(marginal) * (2 * scores - 1), -1.0, 1.0))


# --- the party's step --------------------------------------------------------------------------------------------


def _wanted(columns: Columns, names: Sequence[str]) -> dict[str, Column]:
    if not names or len(set(names)) != len(names):
        raise BadArguments("name the columns whose marginals are released, each once.")
    return {name: columns[name] for name in names}


def _marginals_cost(public: Public, *, label: str, columns: list[str], sigma: float, depth: int) -> Cost:
    """Nothing else of a zeroed record shows in a histogram than its one cell. A tree is one histogram a level, with
    sqrt(depth) times the noise, so that a column costs the same whatever its kind. Replacing moves two cells."""
    wanted = _wanted(public.facts.columns[public.party], columns)
    if not isinstance(depth, int) or not 1 <= depth <= DEEPEST:
        raise BadArguments(f"depth must be an integer from 1 to {DEEPEST}, not {depth!r}.")
    if sigma == 0:
        return Unbounded("exact-marginals", "exact counts of the public cells of each column")
    return MarginalReleases.of(wanted.values(), depth=depth).cost(sigma)


@dataclass(frozen=True, kw_only=True)
class MarginalReleases:
    """The marginals of some columns as one group of a `Calibration`; the level is sigma, the noise of a count.

    `steps` of them are released as one histogram and `trees` as a tree. Together they have `share` of the budget,
    equally for all columns.
    """

    steps: int
    trees: int
    depth: int
    share: float = 1.0

    @classmethod
    def of(cls, columns: Iterable[Column], *, depth: int, share: float = 1.0) -> MarginalReleases:
        jumps = [stepwise(column) for column in columns]
        return cls(steps=sum(jumps), trees=len(jumps) - sum(jumps), depth=depth, share=share)

    def level(self, scale: float) -> float:
        return scale * math.sqrt((self.steps + self.trees) / self.share)

    def cost(self, level: float, *, colluders: int | None = None) -> Cost:
        stated: dict[str, Any] = {"replace_factor": math.sqrt(2)}
        return compose(
            [
                GaussianCell(level, **stated).times(self.steps),
                GaussianCell(level * math.sqrt(self.depth), **stated).times(self.trees * self.depth),
            ]
        )


@step(cost=_marginals_cost)
def release_marginals(me: Party, *, label: str, columns: list[str], sigma: float, depth: int) -> Release:
    """Noisy counts of this party's records in the public cells; its score maps stay here, under `label`."""
    wanted = _wanted(me.block.columns, columns)
    exact = me.aggregate(list(wanted), MarginalCounts(wanted, depth))
    noisy = {}
    for name, column in wanted.items():
        counts = exact[name] if stepwise(column) else dyadic_counts(exact[name])
        if sigma:
            scale = sigma if stepwise(column) else sigma * math.sqrt(depth)
            counts = counts + discrete_gaussian(me.randomness, scale, counts.size)
        noisy[name] = counts
    marginals = party_marginals(wanted, noisy, sigma=sigma, depth=depth).marginals
    keep_scores(me, label, {name: score_map(wanted[name], marginal) for name, marginal in marginals.items()})
    return Release(noisy, "noisy counts of the public cells of each column")


@dataclass(frozen=True, eq=False)
class MarginalCounts:
    """Exact counts of all columns' cells, or leaves of their trees."""

    columns: Mapping[str, Column]
    depth: int

    def of(self, rows: Integers, values: Values) -> dict[str, Integers]:
        return {name: count(column, values[name], depth=self.depth) for name, column in self.columns.items()}

    def merge(self, left: dict[str, Integers], right: dict[str, Integers]) -> dict[str, Integers]:
        return {name: counts + right[name] for name, counts in left.items()}


def released_size(column: Column, depth: int) -> int:
    """Counts that leave the party for one column."""
    return values_of(column) if stepwise(column) else 2 ** (depth + 1) - 2


def count(column: Column, encoded: NDArray[Any], *, depth: int) -> Integers:
    """Exact counts of encoded values in the column's cells; a cell that became empty is in none of them."""
    values = encoded[encoded >= 0] if column.discrete else encoded[~np.isnan(encoded)]
    if not stepwise(column):
        return equal_bins(values, *bounds_of(column), 2**depth)
    size = values_of(column)
    cell = np.rint(values - (0.0 if column.lower is None else column.lower)).astype(np.int64)
    return np.bincount(np.clip(cell, 0, size - 1), minlength=size).astype(np.int64)
