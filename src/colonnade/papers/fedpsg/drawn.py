"""Which columns are generated first: the greedy choice of the FedPSG paper, section 3.1, on |Spearman|.

The pairs of a party's columns are gone through from the strongest association down. If neither column of a pair is
chosen yet, the one that is more strongly associated with the others is taken; if one is, the other is added; until
`count` columns are chosen. Ties go to the earlier declared column, so that the choice can be repeated.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import stats

from colonnade.errors import BadArguments

Reals = NDArray[np.float64]


def spearman(values: Mapping[str, NDArray[Any]]) -> Reals:
    """|Spearman| of each pair of encoded columns over the records that have both; 0 where a column does not vary.

    A categorical column is taken in its declared order, as the paper's ranks of codes do.
    """
    columns = [np.asarray(one, dtype=np.float64) for one in values.values()]
    known = [
        one >= 0 if np.asarray(raw).dtype.kind == "i" else ~np.isnan(one)
        for one, raw in zip(columns, values.values(), strict=True)
    ]
    size = len(columns)
    found = np.zeros((size, size))
    for i in range(size):
        for j in range(i):
            both = known[i] & known[j]
            if both.sum() < 3:
                continue
            a, b = stats.rankdata(columns[i][both]), stats.rankdata(columns[j][both])
            if a.std() > 0 and b.std() > 0:
                found[i, j] = found[j, i] = abs(float(np.corrcoef(a, b)[0, 1]))
    return found


def choose_correlated(names: list[str], strength: Reals, count: int) -> list[str]:
    """`count` of the names (all, if there are fewer), in the order in which they were chosen."""
    if strength.shape != (len(names), len(names)):
        raise BadArguments("the strengths are a square matrix over the names; give one row for each name.")
    wanted = min(count, len(names))
    total = np.asarray(strength, dtype=np.float64).sum(axis=1)
    pairs = sorted(
        ((i, j) for i in range(len(names)) for j in range(i + 1, len(names))),
        key=lambda pair: (-float(strength[pair]), pair),
    )
    chosen: list[int] = []
    while len(chosen) < wanted:
        # The strongest pair that still adds a column: the paper resets a pair to 0 once it has served.
        found = next(((i, j) for i, j in pairs if i not in chosen or j not in chosen), None)
        if found is None:
            chosen.append(next(at for at in range(len(names)) if at not in chosen))
            continue
        i, j = found
        if i in chosen or j in chosen:
            chosen.append(j if i in chosen else i)
        else:
            chosen.append(j if total[j] > total[i] else i)
    return [names[at] for at in chosen]
