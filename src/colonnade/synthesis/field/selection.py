"""Which tables to measure, when measuring is cheap: the rule of the rounds on secret shares.

All pairs were measured once in coarse bins, so that every choice here is made from what was opened, and costs nothing.
First a spanning tree of the largest R-scores (how far a pair is from independence), so that no column stands alone.
Then a field of the coarse columns is fitted to the pairs that the chosen ones link, and the others are scored by their
*residual*: how far their noisy table is from what this field says. A pair that depends through a third column has none
left. Those with the largest residual for the cells that they would add to the field are taken, a few at a time, as long
as what a table is expected to show exceeds what its noise hides and the triangulated graph stays within its limit; and
the field is fitted anew. A table of three columns takes the place of its pairs where they lie in one clique of the
graph and its cells hold many times their noise.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from colonnade.synthesis.field.fit import MarkovField, Measurement, fit
from colonnade.synthesis.field.graph import Names, Triangulation, falling, spanning_tree, triangulate, within_limit

Reals = NDArray[np.float64]

MEAN_OF_NOISE = math.sqrt(2 / math.pi)
"""Mean absolute value of normal noise of sd 1."""
COST = 0.25
"""A residual counts divided by the cells that its pair adds to the field, to this power: cells are what a field with
little noise runs out of, and residuals are not known well enough to divide by the cells themselves."""
TURNS, AT_A_TIME = 12, 4
"""At most so many fits of the coarse field; after each, one pair for so many columns is taken."""
COARSE_STEPS, COARSE_DISCREPANCY = 100, 0.9


def r_score(table: Reals, first: Reals, second: Reals, *, sd: float = 0.0) -> float:
    """Half the L1 distance of a pair's table from independence, as a share of all records, less what noise adds to it.

    `first` and `second` are the columns' chances. PrivMRF's R-score is this times n. Noise of standard deviation sd
    lengthens the L1 distance by at most sqrt(2/pi) sd a cell; that much is taken off, so a score may be negative.
    """
    total = float(table.sum()) if sd == 0 else 1.0
    shares = table / total if total > 0 else np.full(table.shape, 1 / table.size)
    distance = float(np.abs(shares - np.outer(first, second)).sum())
    return (distance - MEAN_OF_NOISE * sd * table.size) / 2


def pair_scores(pairs: Sequence[Measurement], chances: Mapping[str, Reals], *, total: float) -> dict[Names, float]:
    """The debiased R-score of each measured pair, in the bins that it was measured in."""
    scores = {}
    for pair in pairs:
        first, second = (
            chances[name] if bins is None else np.bincount(bins, chances[name]).astype(np.float64)
            for name, bins in zip(pair.columns, pair.bins or (None, None), strict=True)
        )
        scores[pair.columns] = r_score(pair.counts / total, first, second, sd=pair.sd / total)
    return scores


class CoarseField:
    """The field of the columns in the bins that their pairs were measured in."""

    def __init__(self, one_way: Sequence[Measurement], pairs: Sequence[Measurement], *, total: float) -> None:
        self._total = total
        bins = {
            name: each
            for pair in pairs
            for name, each in zip(pair.columns, pair.bins or (None, None), strict=True)
            if each is not None
        }
        self._alone = [_coarse(table, bins.get(table.columns[0])) for table in one_way]
        self._pairs = {pair.columns: Measurement(pair.columns, pair.counts, pair.sd) for pair in pairs}
        self._sizes = {table.columns[0]: table.counts.size for table in self._alone}

    def fitted(self, chosen: Sequence[Names]) -> MarkovField:
        graph = triangulate(self._sizes, chosen)
        inside = [table for columns, table in self._pairs.items() if graph.home(columns) is not None]
        return fit(
            graph,
            [*self._alone, *inside],
            total=self._total,
            iterations=COARSE_STEPS,
            discrepancy=COARSE_DISCREPANCY,
        )

    def residual(self, field: MarkovField, pair: Names) -> float:
        """Half the L1 distance of a pair's table from what the field says, as a share of all records, less what noise
        adds to it."""
        table = self._pairs[pair]
        distance = float(np.abs(table.counts - field.marginal(pair)).sum())
        return (distance - MEAN_OF_NOISE * table.sd * table.counts.size) / (2 * self._total)


def _coarse(table: Measurement, bins: NDArray[np.int64] | None) -> Measurement:
    """A column's own table in bins: sums of k cells have sqrt(k) times the noise, k taken as its mean."""
    if bins is None:
        return Measurement(table.columns, table.counts, table.sd)
    counts = np.bincount(bins, table.counts).astype(np.float64)
    return Measurement(table.columns, counts, table.sd * math.sqrt(table.counts.size / counts.size))


def select_pairs(
    coarse: CoarseField,
    scores: Mapping[Names, float],
    sizes: Mapping[str, int],
    *,
    total: float,
    units: int,
    unit_sd: float,
    theta: float,
    limit: int,
) -> list[Names]:
    """Pairs, the spanning tree first. With k tables each has units / k of the budget: noise unit_sd sqrt(k / units)."""
    within_limit(sizes, [(name,) for name in sizes], limit=limit)
    chosen: list[Names] = []

    def shows(pair: Names, score: float) -> bool:
        sd = unit_sd * math.sqrt(max(len(chosen) + 1, min(10, units)) / units)
        return score > theta * MEAN_OF_NOISE * sd * math.prod(sizes[name] for name in pair) / (2 * total)

    def cells_with(pair: Names) -> int:
        return triangulate(sizes, [*chosen, pair]).cells

    def take(ordered: Sequence[Names], expected: Mapping[Names, float], most: int) -> int:
        before = len(chosen)
        for pair in ordered:
            if len(chosen) >= min(units, before + most):
                break
            if shows(pair, expected[pair]):
                if cells_with(pair) <= limit:
                    chosen.append(pair)
                else:
                    rest.discard(pair)
        return len(chosen) - before

    rest = {pair for pair, score in scores.items() if shows(pair, score)}
    take(spanning_tree(list(sizes), scores), scores, len(sizes))
    for _ in range(TURNS):
        rest -= set(chosen)
        field, present = coarse.fitted(chosen), triangulate(sizes, chosen).cells
        residuals = {pair: coarse.residual(field, pair) for pair in sorted(rest)}
        worth = {
            pair: residual / max(cells_with(pair) - present, 1) ** COST
            for pair, residual in residuals.items()
            if shows(pair, residual)
        }
        if not take(falling(worth), residuals, max(2, len(sizes) // AT_A_TIME)):
            break
    return chosen


def triples_that_pay(
    graph: Triangulation,
    chosen: Sequence[Names],
    scores: Mapping[Names, float],
    *,
    total: float,
    sd: float,
    theta: float,
    joint: Callable[[Names], Names | None],
    room: int,
) -> list[Names]:
    """Triples inside one clique whose cells hold on average `theta` times the noise or more, most dependent first.

    A triple says all that its pairs say, so it is measured in their place: it is worth its noise only if at least two
    chosen pairs lie inside it that no triple before it has. Two of its columns are shared once more, as one joint
    one-hot row; `joint` says which, and all joint rows together have at most `room` cells. A triple of three parties
    has no such pair (its table would be a product of degree 3) and is left out.
    """
    sizes = graph.sizes
    triples: set[Names] = {triple for clique in graph.cliques for triple in itertools.combinations(clique, 3)}
    inside = {
        triple: {pair for pair in chosen if set(pair) <= set(triple)}
        for triple in triples
        if total / math.prod(sizes[name] for name in triple) >= theta * sd
    }
    worth = {triple: math.fsum(max(scores[pair], 0.0) for pair in pairs) for triple, pairs in inside.items()}
    taken: list[Names] = []
    covered: set[Names] = set()
    shared: set[Names] = set()
    for triple in falling(worth):
        pair = joint(triple)
        if pair is None or len(inside[triple] - covered) < 2:
            continue
        if sum(math.prod(sizes[name] for name in columns) for columns in shared | {pair}) > room:
            continue
        taken.append(triple)
        covered |= inside[triple]
        shared.add(pair)
    return taken


def share_units(tables: Sequence[Names], sizes: Mapping[str, int], *, units: int) -> dict[Names, int]:
    """Units of the budget for each table: as equal as can be, what is left over to the tables with most cells."""
    if not tables:
        return {}
    each, left = divmod(units, len(tables))
    largest = sorted(tables, key=lambda table: (-math.prod(sizes[name] for name in table), table))
    return {table: each + (table in largest[:left]) for table in tables}
