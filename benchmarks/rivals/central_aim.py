"""A trusted curator's AIM and MST on the pooled table, after McKenna, Miklau and Sheldon (2021) and McKenna, Mullins,
Sheldon and Miklau (2022).

opendp has both, on mbi and polars, which is not among this project's packages; its AIM compiles the field anew in each
of its rounds. These are the same steps with this project's fit (`colonnade.synthesis.field.fit`), which stops where
noise begins. Noise is Gaussian, the budget is zCDP, neighbours differ in one record.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from colonnade.synthesis.field.fit import DISCREPANCY, MarkovField, Measurement, fit
from colonnade.synthesis.field.graph import Names, Triangulation, triangulate
from colonnade.synthesis.field.sample import sample_cells
from colonnade.synthesis.field.selection import MEAN_OF_NOISE

Codes = dict[str, NDArray[np.int64]]
Reals = NDArray[np.float64]

SELECTING = 0.1
"""Share of a round's budget for the choice of its table."""
ROUNDS_A_COLUMN = 16
ROWS = 100_000
"""Drawn from the field to score tables that lie in no clique of it."""
BETWEEN, LAST = 100, 1500
"""Iterations of a fit, which starts from the one before, and of the last."""


def table_of(codes: Codes, columns: Names, sizes: Mapping[str, int]) -> Reals:
    shape = tuple(sizes[name] for name in columns)
    flat = np.ravel_multi_index([codes[name] for name in columns], shape)
    return np.bincount(flat, minlength=math.prod(shape)).reshape(shape).astype(np.float64)


class Curator:
    """The pooled records; what is asked of them is noisy."""

    def __init__(self, codes: Codes, sizes: Mapping[str, int], seed: int) -> None:
        self.codes, self.sizes, self.random = codes, sizes, np.random.default_rng([seed, 20])
        self.n = len(next(iter(codes.values())))

    def noisy(self, columns: Names, sd: float) -> Measurement:
        exact = table_of(self.codes, columns, self.sizes)
        return Measurement(columns, exact + self.random.normal(0.0, sd, exact.shape), sd)

    def chosen(self, scores: Mapping[Names, float], epsilon: float) -> Names:
        """The exponential mechanism by Gumbel noise; one record moves a score by 1 at most."""
        return max(scores, key=lambda columns: 0.5 * epsilon * scores[columns] + self.random.gumbel())

    def rows(self, field: MarkovField) -> Codes:
        return sample_cells(field, self.n, self.random)


def fitted(
    graph: Triangulation, measured: Sequence[Measurement], *, steps: int, start: MarkovField | None = None
) -> MarkovField:
    """n is not public here: the mean of the tables' sums, weighted by precision."""
    sums, weights = zip(*((table.counts.sum(), table.sd**-2 / table.counts.size) for table in measured), strict=True)
    total = max(float(np.average(sums, weights=weights)), 1.0)
    return fit(graph, measured, total=total, iterations=steps, discrepancy=DISCREPANCY, start=start)


def independent(codes: Codes, sizes: Mapping[str, int], *, rho: float, seed: int) -> Codes:
    """Every column on its own, with all of the budget."""
    curator = Curator(codes, sizes, seed)
    sd = math.sqrt(len(sizes) / (2 * rho))
    one_way = [curator.noisy((name,), sd) for name in sizes]
    return curator.rows(fitted(triangulate(sizes, []), one_way, steps=LAST))


def mst(codes: Codes, sizes: Mapping[str, int], *, rho: float, seed: int) -> Codes:
    """A maximum spanning tree of pairs, chosen by the exponential mechanism: a third of the budget each for the
    columns, the choice, and the pairs of the tree."""
    curator, names = Curator(codes, sizes, seed), list(sizes)
    one_way = [curator.noisy((name,), math.sqrt(3 * len(names) / (2 * rho))) for name in names]
    field = fitted(triangulate(sizes, []), one_way, steps=LAST)
    apart = {
        pair: float(np.abs(table_of(codes, pair, sizes) - field.marginal(pair)).sum())
        for pair in itertools.combinations(names, 2)
    }
    epsilon = math.sqrt(8 * rho / (3 * (len(names) - 1)))
    part, tree = {name: name for name in names}, list[Names]()
    for _ in names[1:]:
        pair = curator.chosen({pair: far for pair, far in apart.items() if part[pair[0]] != part[pair[1]]}, epsilon)
        tree.append(pair)
        old, new = part[pair[1]], part[pair[0]]
        part = {name: new if each == old else each for name, each in part.items()}
    sd = math.sqrt(3 * (len(names) - 1) / (2 * rho))
    measured = [*one_way, *(curator.noisy(pair, sd) for pair in tree)]
    return curator.rows(fitted(triangulate(sizes, tree), measured, steps=LAST))


def aim(codes: Codes, sizes: Mapping[str, int], *, rho: float, seed: int, limit: int, ways: int = 3) -> Codes:
    """Rows of AIM's field."""
    curator = Curator(codes, sizes, seed)
    return curator.rows(aim_field(curator, rho=rho, limit=limit, ways=ways))


def aim_field(curator: Curator, *, rho: float, limit: int, ways: int = 3) -> MarkovField:
    """AIM for the workload of all tables of `ways` columns.

    In each round the table that the field gets most wrong for its noise, weighed by how much of the workload it shares,
    is measured (by symmetry each column lies in equally many of the workload's tables, so that a table's weight is its
    number of columns); where that changed the field by less than noise would, the next rounds get four times the
    budget. The field may have the part of `limit` cells that has been spent of the budget.
    """
    codes, sizes, names = curator.codes, curator.sizes, list(curator.sizes)
    candidates = [columns for k in range(1, ways + 1) for columns in itertools.combinations(names, k)]
    candidates = [columns for columns in candidates if math.prod(sizes[name] for name in columns) <= limit]
    exact = {columns: table_of(codes, columns, sizes) for columns in candidates}
    each = rho / (ROUNDS_A_COLUMN * len(names))
    sd, epsilon = math.sqrt(1 / (2 * (1 - SELECTING) * each)), math.sqrt(8 * SELECTING * each)
    measured = [curator.noisy((name,), sd) for name in names]
    spent = len(names) * 0.5 / sd**2
    graph = triangulate(sizes, [])
    field = fitted(graph, measured, steps=BETWEEN)
    last = False
    while not last:
        if rho - spent < 2 * (0.5 / sd**2 + epsilon**2 / 8):
            left, last = rho - spent, True
            sd, epsilon = math.sqrt(1 / (2 * (1 - SELECTING) * left)), math.sqrt(8 * SELECTING * left)
        spent += 0.5 / sd**2 + epsilon**2 / 8
        drawn, scores, says = sample_cells(field, ROWS, curator.random), {}, {}
        for columns in candidates:
            if graph.home(columns) is not None:
                says[columns] = field.marginal(columns)
            elif triangulate(sizes, [*graph.cliques, columns]).cells <= limit * min(spent / rho, 1.0):
                says[columns] = table_of(drawn, columns, sizes) * (field.total / ROWS)
            else:
                continue
            far = float(np.abs(exact[columns] - says[columns]).sum()) - MEAN_OF_NOISE * sd * exact[columns].size
            scores[columns] = len(columns) / ways * far
        columns = curator.chosen(scores, epsilon)
        measured.append(curator.noisy(columns, sd))
        if graph.home(columns) is None:
            graph = triangulate(sizes, [*graph.cliques, columns])
        field = fitted(graph, measured, steps=BETWEEN, start=field)
        moved = float(np.abs(field.marginal(columns) - says[columns]).sum())
        if moved <= MEAN_OF_NOISE * sd * exact[columns].size:
            sd, epsilon = sd / 2, 2 * epsilon
    return fitted(graph, measured, steps=LAST, start=field)
