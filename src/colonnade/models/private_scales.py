"""The two local releases with which private fits (`Regress`, `Select`) standardise columns that were never seen.

*Spread*: noisy counts of the public cells of each column, which say where it lies and how far it spreads. *Norms*:
noisy counts of the lengths of a party's rows in these units. The bounds of the fit itself are declared in the plan;
only the units that fill them come from here.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Generic, Protocol, TypeVar, runtime_checkable

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtri

from colonnade.data.column import Column
from colonnade.errors import UnsafeRequest
from colonnade.federation.facts import PublicFacts
from colonnade.federation.job import Job
from colonnade.federation.options import View
from colonnade.federation.party import Party
from colonnade.federation.stage import stage
from colonnade.federation.step import Public, Release, step
from colonnade.privacy.calibration import Calibration, Gaussians, Releases, Skellams
from colonnade.privacy.cost import Cost, Gaussian, Relation
from colonnade.privacy.noise import discrete_gaussian
from colonnade.statistics.adaptive import AdaptiveMarginal, most_counts
from colonnade.statistics.describe import DEPTH, ROUNDS, adaptive_marginal, marginal, tree_leaves
from colonnade.statistics.features import EMPTY, Feature, design_chunks, has_level
from colonnade.statistics.gaussian_em import Matrix
from colonnade.statistics.joint import SharedStatistic, colluders
from colonnade.statistics.marginals import Marginal, from_shares
from colonnade.statistics.moments import later_ranges
from colonnade.statistics.quantiles import quantiles

Counts = NDArray[np.float64]
Spread = Counts | AdaptiveMarginal
"""What is known of a column: noisy counts of its values, of a tree of its range, or of cells that were refined."""
Ranges = dict[str, tuple[float, float]]
"""{feature: the ends of what is mapped to [-1, 1]}"""


@runtime_checkable
class Standardised(Protocol):
    """A layout whose rows are features in ranges that follow from earlier releases."""

    @property
    def features(self) -> list[Feature]: ...

    @property
    def filled(self) -> tuple[str, ...]: ...


Layout = TypeVar("Layout", bound=SharedStatistic)

NORM_BINS, NORM_REACH = 64, 16.0
"""Cells of the lengths of standardised rows, equal in their roots, up to so many deviations in each column."""


class Scales(Generic[Layout]):
    """Both releases of a job as stages of its plan; all noise is calibrated together, also that of the joint statistic
    that follows them.

    `columns` are the columns of each party, `noiseless` is the layout of the joint statistic without noise and ranges.
    `shares` of the budget (as 1 / noise multiplier squared) are those of "spread", "norms", other local releases, which
    happen once, and "moments", if there is a joint statistic at all. With `adaptive` the spread of a numeric column is
    its distribution, tails and point masses included, instead of a tree.
    """

    def __init__(
        self,
        columns: Mapping[str, Sequence[Column]],
        noiseless: Layout,
        shares: Mapping[str, float],
        *,
        epsilon: float,
        delta: float,
        view: View = "client",
        relation: Relation = "zero-out",
        adaptive: bool = False,
    ) -> None:
        noiseless.check()
        counts = {"spread": sum(map(len, columns.values())), "norms": len(columns)}
        releases: dict[str, Releases] = {
            name: Gaussians(count=counts.get(name, 1), share=share, replace_factor=math.sqrt(2))
            for name, share in shares.items()
        }
        if "moments" in shares:
            gram = noiseless.release(1, colluders=colluders(noiseless.roster, view))
            releases["moments"] = Skellams(gram, share=shares["moments"])
        self.levels = Calibration(releases, epsilon=epsilon, delta=delta, relation=relation, bracket=(1e-3, 1e6))
        """Noise multipliers of the local releases, and mu of the moments."""
        self.columns = columns
        noisy: dict[str, Any] = {"mu": self.levels.get("moments", 0)}
        self.layout = layout = replace(noiseless, **noisy)
        """Of the joint statistic, with its noise; the ranges come from the other releases."""
        self.shared = ", ".join(f"{name} {share:.0%}" for name, share in shares.items())
        norms = {"layout": layout.to_dict(), "level": self.levels["norms"]}
        planned = partial(stage, facts=layout.facts, roster=layout.roster)
        self.spread = planned(
            "spread",
            marginal,
            {
                party: [_marginal(column, self.levels["spread"], adaptive=adaptive) for column in own]
                for party, own in columns.items()
            },
            discloses="noisy counts of a column's public cells",
            reply_bytes=8 * most_counts(ROUNDS["gaussian"]) if adaptive else 8 << (DEPTH + 1),
        )
        self.norms = planned(
            "norms",
            block_norms,
            {party: [norms] for party in columns},
            discloses="noisy counts of the lengths of a party's standardised rows",
            reply_bytes=8 * NORM_BINS,
            later={"layout": later_ranges(layout.facts, [column.name for own in columns.values() for column in own])},
        )
        self.stages = (self.spread, self.norms)
        self.adaptive = adaptive

    def ask_spread(self, job: Job) -> dict[str, Spread]:
        """{column: what its noisy counts say}; a column of every party at a time."""
        spread: dict[str, Spread] = {}
        for turn in range(self.spread.rounds):
            for party, noisy in job.ask(self.spread).items():
                column = self.columns[party][turn]
                if self.adaptive and not column.discrete:
                    spread[column.name] = adaptive_marginal(
                        column, noisy, n=job.facts.n, noise="gaussian", level=self.levels["spread"]
                    )
                else:
                    spread[column.name] = np.asarray(noisy, dtype=np.float64)
        return spread

    def empty_text(self, spread: Mapping[str, Spread]) -> str:
        """How many cells of each column are empty: the last count of a column that may have some."""
        listed = [column for own in self.columns.values() for column in own if column.missing]
        if not listed:
            return ""
        counts = ", ".join(f"{column.name} {max(round(_empty(spread[column.name])), 0):,}" for column in listed)
        exact = [column.discrete or self.adaptive for column in listed]
        most = (1.0 if all(exact) else math.sqrt(DEPTH)) * self.levels["spread"]
        return (
            f"Empty cells of records that a party has (noise with standard deviation of at most {most:.3g}): {counts}."
        )

    def ask_norms(self, job: Job, standard: Ranges) -> dict[str, Counts]:
        """{party: noisy counts of the lengths of its rows in these units}."""
        ranged: dict[str, Any] = {"ranges": standard}
        lengths = job.ask(self.norms, layout=replace(self.layout, **ranged).to_dict())
        return {party: np.asarray(noisy, dtype=np.float64) for party, noisy in lengths.items()}


def _empty(spread: Spread) -> float:
    return spread.empty if isinstance(spread, AdaptiveMarginal) else float(spread[-1])


def _marginal(column: Column, level: float, *, adaptive: bool) -> dict[str, Any]:
    shape = "histogram" if column.discrete else "adaptive" if adaptive else "tree"
    return {"column": column.name, "shape": shape, "bins": 2, "noise": "gaussian", "level": level}


# --- what follows from the counts -------------------------------------------------------------------------


def centre_and_deviation(
    column: Column, feature: Feature, spread: Spread, *, level: float = 0.0
) -> tuple[float, float]:
    """Where a feature lies and how far it spreads, from noisy counts; in its own units, never a deviation of 0.

    Numeric columns: the median, and half the way from the 16th to the 84th percentile (or a quarter of that from 2.5 to
    97.5 where many values are equal). Of a tree whose noise has this `level`, percentiles that the noise of a rank
    would take to the bounds give way to nearer ones, at the distance that a normal law has there. Listed values: mean
    and deviation of the codes, or of the indicator.
    """
    if column.discrete:
        law = listed_values(column, feature, spread)
        mean = float(law.probabilities @ law.points)
        return mean, max(math.sqrt(float(law.probabilities @ (law.points - mean) ** 2)), 0.05 * feature.half)
    tails, deviations = np.array([0.025, 0.16]), np.array([4.0, 2.0])
    if isinstance(spread, AdaptiveMarginal):
        low, left, middle, right, high = numeric_law(spread).quantile(np.array([*tails, 0.5, *(1 - tails[::-1])]))
    else:
        leaves, edges = tree_leaves(column, spread)
        unsure = 2 * rank_noise(level) / max(float(leaves.sum()), 1.0)
        nearer = np.clip(unsure, tails, WIDEST_TAIL)
        deviations, tails = np.where(nearer > tails, -2 * ndtri(nearer), deviations), nearer
        low, left, middle, right, high = quantiles(leaves, edges, np.array([*tails, 0.5, *(1 - tails[::-1])]))
    outer, inner = deviations
    return float(middle), max(float(right - left) / inner, float(high - low) / outer, feature.half / 500)


WIDEST_TAIL = 0.35
"""Beyond it, percentiles are too near to each other to show a spread."""


def rank_noise(level: float) -> float:
    """The standard deviation of a rank from a tree, at most. A node has DEPTH times the variance of one count; a prefix
    is a sum of one node in half of the levels, and the fit to all nodes takes at least half of its variance away (0.55
    of this was measured in the variance)."""
    return level * DEPTH / 2


def listed_values(column: Column, feature: Feature, spread: Spread) -> Marginal:
    """The distribution of a discrete column's codes, or of one of its indicators."""
    assert not isinstance(spread, AdaptiveMarginal)
    codes = np.arange(len(spread), dtype=np.float64)
    if column.missing:  # the last count is that of empty cells: a level of its own, or no value
        codes[-1] = EMPTY
    valued = codes != EMPTY if not has_level(column) else np.ones(len(codes), dtype=bool)
    weights = np.maximum(spread[valued], 0.0)
    weights /= max(weights.sum(), 1e-300)
    if feature.category is None:
        return from_shares(codes[valued], weights)
    share = float(weights @ (codes[valued] == feature.category))
    return from_shares(np.array([0.0, 1.0]), np.array([1 - share, share]))


def numeric_law(spread: AdaptiveMarginal) -> Marginal:
    """The distribution of a numeric column. A count a is the step [a, a + 1) of its axis, with its middle at a."""
    law = spread.marginal
    return replace(law, points=law.points - 0.5) if spread.axis.whole else law


def feature_law(column: Column, feature: Feature, spread: Spread) -> Marginal:
    """The distribution of a feature in its own units: value = centre + half * feature."""
    law = numeric_law(spread) if isinstance(spread, AdaptiveMarginal) else listed_values(column, feature, spread)
    return replace(law, points=(law.points - feature.centre) / feature.half)


def redrawn(spread: Mapping[str, Spread], times: int) -> list[dict[str, Spread]]:
    """What is known of the columns as it might be with other noise. Counts of listed values are taken as they are."""
    generator = np.random.default_rng(1)  # post-processing: it protects nobody
    return [
        {
            name: known.redrawn(generator) if isinstance(known, AdaptiveMarginal) else known
            for name, known in spread.items()
        }
        for _ in range(times)
    ]


def length_quantile(lengths: Counts, width: int, share: float) -> float:
    """The length that this share of a party's rows of `width` features do not exceed."""
    edges = np.linspace(0.0, 1.0, NORM_BINS + 1) ** 2 * NORM_REACH * math.sqrt(width)
    return float(quantiles(lengths, edges, np.array([share]))[0])


def domain_of(feature: Feature) -> tuple[float, float]:
    """What a feature can be at all."""
    if feature.category is not None:
        return 0.0, 1.0
    return feature.centre - feature.half, feature.centre + feature.half


def stretched(
    facts: PublicFacts, declared: Sequence[Feature], standard: Ranges, stretch: Mapping[str, float]
) -> Ranges:
    """Ranges made wider about their centres, `stretch[party]` times. A numeric one never exceeds its domain; a listed
    value is never clipped."""
    ranges = {}
    for feature in declared:
        low, high = standard[feature.name]
        centre, half = (low + high) / 2, (high - low) / 2 * stretch[feature.party]
        least, most = domain_of(feature)
        farthest = max(most - centre, centre - least)
        half = max(half, farthest) if facts.column(feature.column).discrete else min(half, farthest)
        ranges[feature.name] = (float(centre - half), float(centre + half))
    return ranges


@dataclass(frozen=True, eq=False)
class Clipping:
    """`entries`: the columns that are clipped at 1; `norms`: the bound of each party's row, in the order of the
    blocks."""

    entries: NDArray[np.bool_]
    norms: tuple[float, ...]

    def __call__(self, rows: Matrix, blocks: Sequence[slice]) -> Matrix:
        """Rows as the parties clip them; `blocks` are the columns of each party."""
        out = np.where(self.entries, np.clip(rows, -1.0, 1.0), rows)
        for block, norm in zip(blocks, self.norms, strict=True):
            lengths = np.sqrt(np.einsum("ij,ij->i", out[:, block], out[:, block]))
            out[:, block] *= np.minimum(1.0, norm / np.maximum(lengths, 1e-300))[:, None]
        return out


# --- the party's step -------------------------------------------------------------------------------------


def _norms_cost(public: Public, *, layout: dict[str, Any], level: float) -> Cost:
    """A record is in one cell: zero-out moves one count by 1, replace two."""
    return Gaussian(level, replace_factor=math.sqrt(2))


@step(cost=_norms_cost)
def block_norms(me: Party, *, layout: dict[str, Any], level: float) -> Release:
    """Noisy counts of the lengths of this party's standardised rows."""
    standard = SharedStatistic.from_dict(me.facts, me.roster, layout)
    if not isinstance(standard, Standardised):
        raise UnsafeRequest(f"a {standard.kind} layout has no features whose rows have a length.")
    wide = [replace(feature, half=feature.half * NORM_REACH) for feature in standard.features]
    counts = np.zeros(NORM_BINS, dtype=np.int64)
    for _, rows in design_chunks(me, wide, filled=standard.filled):
        counts += cells_of_lengths(rows)
    noisy = counts + discrete_gaussian(me.randomness, level, NORM_BINS)
    return Release(noisy, "noisy counts of the lengths of this party's standardised rows")


def cells_of_lengths(rows: NDArray[np.float64]) -> NDArray[np.int64]:
    """How many rows in [-1, 1] have a root mean square in each cell of [0, 1]; the cells are equal in its root."""
    share = (np.einsum("ij,ij->i", rows, rows) / rows.shape[1]) ** 0.25
    cell = np.minimum((share * NORM_BINS).astype(np.int64), NORM_BINS - 1)
    return np.bincount(cell, minlength=NORM_BINS).astype(np.int64)
