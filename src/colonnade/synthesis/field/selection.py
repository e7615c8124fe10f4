"""Which tables to measure, when measuring is cheap: the rule of the rounds on secret shares.

All pairs were measured once in coarse bins. Their R-scores say how far a pair is from independence. First a spanning
tree of the largest scores, so that no column stands alone; then pair after pair in falling order, as long as what a
table is expected to show exceeds what its noise hides, and the triangulated graph stays within its limit. A table of
three columns takes the place of its pairs where they lie in one clique of the graph and its cells hold many times their
noise.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from colonnade.synthesis.field.fit import Measurement
from colonnade.synthesis.field.graph import Names, Triangulation, falling, spanning_tree, triangulate, within_limit

Reals = NDArray[np.float64]

MEAN_OF_NOISE = math.sqrt(2 / math.pi)
"""Mean absolute value of normal noise of sd 1."""


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


def select_pairs(
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
    tree = spanning_tree(list(sizes), scores)
    chosen: list[Names] = []
    for pair in dict.fromkeys([*tree, *falling(scores)]):
        if len(chosen) >= units:
            break
        cells = math.prod(sizes[name] for name in pair)
        sd = unit_sd * math.sqrt(max(len(chosen) + 1, min(10, units)) / units)
        if scores[pair] <= theta * MEAN_OF_NOISE * sd * cells / (2 * total):
            continue
        if triangulate(sizes, [*chosen, pair]).cells <= limit:
            chosen.append(pair)
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
