"""How near one table is to another: marginals, pairs, l-way tables, correlations, and a regression fitted to both.

All of it needs both tables in one place: a simulation, or one party's own columns at home. Across parties a comparison
would be a release with a cost, and nothing here makes one.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from scipy.stats import rankdata

from colonnade.data.column import Columns
from colonnade.data.simulated.example import design_matrix
from colonnade.errors import BadArguments
from colonnade.statistics.cells import cells

BINS = 20
MOST_CELLS = 1 << 24


@dataclass(frozen=True, eq=False)
class Cut:
    """A table with every column as the index of its public cell; an empty cell is a cell of its own."""

    names: tuple[str, ...]
    index: NDArray[np.int32]
    sizes: tuple[int, ...]

    def counts(self, columns: Sequence[str]) -> NDArray[np.int64]:
        """The contingency table of these columns, flat."""
        places = [self.names.index(name) for name in columns]
        sizes = [self.sizes[place] for place in places]
        if np.prod(np.array(sizes, dtype=np.float64)) > MOST_CELLS:
            raise BadArguments(
                f"the table of {', '.join(columns)} has more than {MOST_CELLS:,} cells; take fewer bins."
            )
        flat = np.zeros(len(self.index), dtype=np.int64)
        for place, size in zip(places, sizes, strict=True):
            flat = flat * size + self.index[:, place]
        return np.bincount(flat, minlength=int(np.prod(sizes)))


def cut(table: pd.DataFrame, columns: Columns, *, bins: int = BINS) -> Cut:
    """Cells from the declared domains, so that both tables are cut alike."""
    names = tuple(name for name in columns if name in table.columns)
    index = np.empty((len(table), len(names)), dtype=np.int32)
    sizes = []
    for place, name in enumerate(names):
        public = cells(columns[name], bins=bins)
        index[:, place] = public.codes(columns[name].encode(table[name]))
        sizes.append(len(public))
    return Cut(names, index, tuple(sizes))


def total_variation(real: Cut, synthetic: Cut, columns: Sequence[str]) -> float:
    """Half the sum of |p - q| over the cells of one table."""
    p, q = real.counts(columns), synthetic.counts(columns)
    return float(0.5 * np.abs(p / p.sum() - q / q.sum()).sum())


def marginal_distances(real: Cut, synthetic: Cut) -> dict[str, float]:
    return {name: total_variation(real, synthetic, [name]) for name in real.names}


def average_distance(real: Cut, synthetic: Cut, *, ways: int, tables: int, seed: int) -> float:
    """Mean total variation distance of `tables` random sets of `ways` columns (all sets, if there are fewer)."""
    if not 1 <= ways <= len(real.names):
        raise BadArguments(f"a table of {ways} columns cannot be made of {len(real.names)}; choose fewer.")
    rng = np.random.default_rng(seed)
    every = list(itertools.combinations(real.names, ways)) if len(real.names) <= 20 else None
    if every is not None and len(every) <= tables:
        chosen = every
    elif every is not None:
        chosen = [every[index] for index in rng.choice(len(every), tables, replace=False)]
    else:
        chosen = [tuple(rng.choice(real.names, ways, replace=False)) for _ in range(tables)]
    return float(np.mean([total_variation(real, synthetic, names) for names in chosen]))


def coverage(real: Cut, synthetic: Cut) -> dict[str, float]:
    """For each column, the share of its cells with a record in `real` that also have one in `synthetic`."""
    shares = {}
    for name in real.names:
        filled, drawn = real.counts([name]) > 0, synthetic.counts([name]) > 0
        shares[name] = float((filled & drawn).sum() / filled.sum()) if filled.any() else 1.0
    return shares


def correlation_differences(real: pd.DataFrame, synthetic: pd.DataFrame, columns: Columns) -> pd.DataFrame:
    """One row a pair of design columns of different columns: both rank correlations and their absolute difference."""
    first = rank_correlation(real, columns)
    names = [str(name) for name in first.columns]
    a, b = first.to_numpy(), rank_correlation(synthetic, columns).to_numpy()
    rows = [
        (names[x], names[y], a[x, y], b[x, y], abs(a[x, y] - b[x, y]))
        for x, y in itertools.combinations(range(len(names)), 2)
        if names[x].split("[")[0] != names[y].split("[")[0]
    ]
    return pd.DataFrame(rows, columns=["one", "two", "first", "second", "difference"])


def rank_correlation(table: pd.DataFrame, columns: Columns) -> pd.DataFrame:
    """Spearman's, of the design columns; complete rows only. A column that does not vary has none (NaN)."""
    design = design_matrix(table, columns).dropna()
    ranks = np.apply_along_axis(rankdata, 0, design.to_numpy(np.float64))
    ranks -= ranks.mean(axis=0)
    norms = np.sqrt((ranks**2).sum(axis=0))
    with np.errstate(invalid="ignore", divide="ignore"):
        matrix = ranks.T @ ranks / np.outer(norms, norms)
    return pd.DataFrame(matrix, index=design.columns, columns=design.columns)


def least_squares(
    table: pd.DataFrame, columns: Columns, response: str, *, leave_out: Sequence[str] = ()
) -> pd.DataFrame:
    """Ordinary least squares of one column on all others: `coef` and `std err`, the constant first."""
    design = design_matrix(table, columns, leave_out=leave_out)
    y = design.pop(response).to_numpy(np.float64)
    x = np.column_stack([np.ones(len(design)), design.to_numpy(np.float64)])
    coef, _, rank, _ = np.linalg.lstsq(x, y, rcond=None)
    if rank < x.shape[1]:
        raise BadArguments("the columns determine one another in this table, so a regression has no single answer.")
    residual = y - x @ coef
    sigma2 = float(residual @ residual) / (len(y) - x.shape[1])
    errors = np.sqrt(sigma2 * np.diag(np.linalg.inv(x.T @ x)))
    return pd.DataFrame({"coef": coef, "std err": errors}, index=["const", *design.columns])
