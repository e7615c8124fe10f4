"""`pool`: Rubin's rules against closed forms, statsmodels, and what must hold with nothing missing."""

from __future__ import annotations

import math
from types import SimpleNamespace
from typing import Any

import numpy as np
import pandas as pd
import pytest
import statsmodels.api as sm
from scipy.stats import t as student
from statsmodels.imputation.mice import MICE, MICEData

import colonnade as co
from colonnade.errors import BadArguments


def gappy_table(n: int = 120) -> pd.DataFrame:
    """y on two columns, of which one lacks a third of its cells."""
    rng = np.random.default_rng(3)
    x, z = rng.normal(size=(2, n))
    table = pd.DataFrame({"y": 1 + x - 0.5 * z + rng.normal(size=n), "x": x, "z": z})
    table.loc[rng.random(n) < 0.33, "z"] = np.nan
    return table


def test_the_rules_are_rubins_and_the_degrees_of_freedom_barnard_and_rubins() -> None:
    """Two coefficients and three tables, computed by hand."""
    values = np.array([[1.0, 2.0], [1.2, 1.8], [0.8, 2.5]])
    fits = [
        SimpleNamespace(
            params=pd.Series(own, index=["const", "x"]),
            cov_params=np.diag([0.04, 0.09]),
            nobs=50,
            df_resid=48,
            use_t=True,
        )
        for own in values
    ]
    pooled = co.pool(fits)
    between = np.array([0.04, 0.13])  # variances of 1, 1.2, .8 and of 2, 1.8, 2.5
    total = np.array([0.04, 0.09]) + 4 / 3 * between
    share = 4 / 3 * between / total
    first, second = 2 / share**2, 48 * 49 / 51 * (1 - share)
    degrees = first * second / (first + second)
    assert pooled.params.tolist() == pytest.approx([1.0, 2.1])
    assert np.diag(pooled.cov) == pytest.approx(total)
    assert pooled.lambda_.to_numpy() == pytest.approx(share)
    assert pooled.df.to_numpy() == pytest.approx(degrees)
    increase = share / (1 - share)
    assert pooled.fmi.to_numpy() == pytest.approx((increase + 2 / (degrees + 3)) / (increase + 1))
    reach = student.isf(0.025, degrees) * np.sqrt(total)
    assert (pooled.conf_int()[1] - pooled.params).to_numpy() == pytest.approx(reach)
    assert (pooled.params - pooled.conf_int()[0]).to_numpy() == pytest.approx(reach)
    assert co.pool(fits, df_complete=math.inf).df.to_numpy() == pytest.approx(first)
    assert list(pooled.tidy().columns[:3]) == ["term", "estimate", "std.error"]
    assert "Completed tables:" in pooled.summary()
    assert "3 completed tables" in pooled.view().title


def test_statsmodels_combines_the_same_fits_to_the_same_estimates() -> None:
    chain = MICE("y ~ x + z", sm.OLS, MICEData(gappy_table(), rng=np.random.default_rng(1)), n_skip=0)
    theirs = chain.fit(n_burnin=2, n_imputations=6)
    ours = co.pool(chain.results_list)
    assert list(ours.params.index) == ["Intercept", "x", "z"]
    assert ours.params.to_numpy() == pytest.approx(theirs.params)
    assert ours.bse.to_numpy() == pytest.approx(theirs.bse)
    assert ours.lambda_.to_numpy() == pytest.approx(theirs.frac_miss_info)
    assert ours.response == "y"


def test_with_nothing_missing_the_single_fit_comes_back() -> None:
    table = gappy_table().dropna()
    fit = sm.OLS(table["y"], sm.add_constant(table[["x", "z"]])).fit()
    pooled = co.pool([fit] * 4)
    assert pooled.params.to_numpy() == pytest.approx(fit.params.to_numpy())
    assert pooled.bse.to_numpy() == pytest.approx(fit.bse.to_numpy())
    assert pooled.pvalues.to_numpy() == pytest.approx(fit.pvalues.to_numpy())
    assert pooled.conf_int().to_numpy() == pytest.approx(fit.conf_int().to_numpy())
    assert pooled.fmi.tolist() == [0.0, 0.0, 0.0]
    both = pooled.wald_test("x = 0, z = 0")
    assert both.statistic == pytest.approx(float(fit.f_test("x = 0, z = 0").fvalue))
    assert both.pvalue == pytest.approx(float(fit.f_test("x = 0, z = 0").pvalue))


def test_a_test_of_one_coefficient_is_its_t_squared() -> None:
    chain = MICE("y ~ x + z", sm.OLS, MICEData(gappy_table(), rng=np.random.default_rng(1)), n_skip=0)
    chain.fit(n_burnin=1, n_imputations=5)
    pooled = co.pool(chain.results_list)
    assert pooled.wald_test("z = 0").statistic == pytest.approx(float(pooled.tvalues["z"]) ** 2)


@pytest.mark.parametrize(
    ("fits", "message"),
    [
        ([], "at least two"),
        ([object(), object()], "params and cov_params"),
        (
            [
                SimpleNamespace(params=pd.Series([1.0], index=[name]), cov_params=np.eye(1), nobs=9)
                for name in ("a", "b")
            ],
            "other coefficients",
        ),
        ([SimpleNamespace(params=pd.Series([1.0]), cov_params=np.full((1, 1), np.nan))] * 2, "no covariance"),
    ],
)
def test_what_cannot_be_pooled_is_refused(fits: list[Any], message: str) -> None:
    with pytest.raises(BadArguments, match=message):
        co.pool(fits)
