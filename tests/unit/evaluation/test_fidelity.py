"""Distances between tables, against definitions written out, scipy and statsmodels."""

from __future__ import annotations

import itertools

import numpy as np
import pandas as pd
import pytest
import statsmodels.api as sm
from scipy.stats import spearmanr

from colonnade.data.column import Column, Columns
from colonnade.errors import BadArguments
from colonnade.evaluation import fidelity

COLUMNS = Columns(
    [
        Column(name="sex", kind="binary", categories=("f", "m")),
        Column(name="region", kind="categorical", categories=("n", "e", "s")),
        Column(name="age", kind="count", lower=0, upper=99),
        Column(name="income", kind="continuous", lower=0.0, upper=10.0, missing=True),
    ]
)


def table(n: int, seed: int, shift: float = 0.0) -> pd.DataFrame:
    rng = np.random.default_rng(seed)
    income = np.clip(rng.normal(4 + shift, 1, n), 0, 10)
    income[:5] = np.nan
    return pd.DataFrame(
        {
            "sex": rng.choice(["f", "m"], n),
            "region": rng.choice(["n", "e"], n),
            "age": rng.integers(0, 100, n),
            "income": income,
        }
    )


def test_a_table_is_at_no_distance_from_itself() -> None:
    one = fidelity.cut(table(500, 0), COLUMNS)
    assert set(fidelity.marginal_distances(one, one).values()) == {0.0}
    assert fidelity.average_distance(one, one, ways=2, tables=100, seed=0) == 0.0
    assert set(fidelity.coverage(one, one).values()) == {1.0}


@pytest.mark.parametrize("ways", [1, 2, 3])
def test_total_variation_is_its_definition(ways: int) -> None:
    """Oracle: relative frequencies of the tuples of cells, counted with dictionaries."""
    a, b = fidelity.cut(table(300, 1), COLUMNS, bins=5), fidelity.cut(table(400, 2, shift=1.0), COLUMNS, bins=5)
    for names in itertools.combinations(a.names, ways):
        places = [a.names.index(name) for name in names]
        seen: dict[tuple[int, ...], list[float]] = {}
        for which, one in enumerate((a, b)):
            for row in one.index[:, places]:
                seen.setdefault(tuple(row), [0.0, 0.0])[which] += 1 / len(one.index)
        assert fidelity.total_variation(a, b, names) == pytest.approx(
            0.5 * sum(abs(p - q) for p, q in seen.values()), abs=1e-12
        )


def test_empty_cells_are_a_cell_of_their_own() -> None:
    one = fidelity.cut(table(100, 3), COLUMNS, bins=4)
    assert one.counts(["income"])[-1] == 5
    assert one.counts(["income"]).sum() == 100


def test_the_average_is_over_all_sets_where_they_are_few() -> None:
    a, b = fidelity.cut(table(300, 1), COLUMNS), fidelity.cut(table(300, 2), COLUMNS)
    pairs = [fidelity.total_variation(a, b, pair) for pair in itertools.combinations(a.names, 2)]
    assert fidelity.average_distance(a, b, ways=2, tables=100, seed=0) == pytest.approx(np.mean(pairs))
    assert fidelity.average_distance(a, b, ways=2, tables=1, seed=0) in [pytest.approx(one) for one in pairs]
    with pytest.raises(BadArguments, match="choose fewer"):
        fidelity.average_distance(a, b, ways=5, tables=1, seed=0)


def test_too_large_a_table_is_refused() -> None:
    wide = Columns([Column(name=f"x{i}", kind="count", lower=0, upper=9999) for i in range(2)])
    one = fidelity.cut(pd.DataFrame({"x0": [1], "x1": [2]}), wide, bins=10_000)
    with pytest.raises(BadArguments, match="fewer bins"):
        one.counts(["x0", "x1"])


def test_rank_correlation_is_spearmans() -> None:
    full = table(400, 4).dropna()
    made = fidelity.rank_correlation(full, COLUMNS)
    assert made.loc["age", "income"] == pytest.approx(spearmanr(full["age"], full["income"]).statistic, abs=1e-12)
    assert np.isnan(made.loc["region[s]", "age"])


def test_least_squares_is_that_of_statsmodels() -> None:
    full = table(400, 5).dropna()
    two = Columns([column for column in COLUMNS.values() if column.name != "region"])
    mine = fidelity.least_squares(full, two, "income")
    x = sm.add_constant(pd.DataFrame({"sex": (full["sex"] == "m").astype(float), "age": full["age"].astype(float)}))
    fit = sm.OLS(full["income"].to_numpy(), x).fit()
    np.testing.assert_allclose(mine["coef"], fit.params, rtol=1e-9)
    np.testing.assert_allclose(mine["std err"], fit.bse, rtol=1e-9)
    with pytest.raises(BadArguments, match="determine one another"):
        fidelity.least_squares(full, COLUMNS, "income")
