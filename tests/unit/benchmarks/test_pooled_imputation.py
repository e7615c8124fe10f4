"""The study's chained equations are those of statsmodels."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
from benchmarks.pooled_imputation import chained_tables
from statsmodels.imputation.mice import MICEData


def test_chained_equations_draw_as_statsmodels_does() -> None:
    """The same mean, spread and covariance of what is drawn, up to the error of twelve tables."""
    rng = np.random.default_rng(1)
    x = rng.normal(size=300)
    rows = np.column_stack([x, x + rng.normal(size=300), x - rng.normal(size=300)])
    rows[(rng.random(300) < 0.4) & (x > -0.5), 1] = np.nan
    rows[rng.random(300) < 0.3, 2] = np.nan
    ours = chained_tables(rows, 12, np.random.default_rng(2))
    data = MICEData(pd.DataFrame(rows, columns=["a", "b", "c"]), rng=np.random.default_rng(3))
    theirs = []
    for _ in range(12):
        data.update_all(2)
        theirs.append(data.data.to_numpy())
    moments = [
        np.array([[*np.mean(table, axis=0), *np.cov(table.T)[np.triu_indices(3)]] for table in tables])
        for tables in (ours, theirs)
    ]
    error = np.sqrt(sum(each.var(axis=0) / len(each) for each in moments))
    apart = moments[0].mean(axis=0) - moments[1].mean(axis=0)
    varies = error > 1e-12
    assert np.abs(apart[varies] / error[varies]).max() < 4
    assert apart[~varies] == pytest.approx(0.0)
