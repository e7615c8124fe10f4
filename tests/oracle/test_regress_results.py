"""What a regression's result says, by statsmodels' names, over a federation: clusters, weights, tests, predictions.

Oracles: statsmodels' OLS and WLS with cluster-robust errors on the pooled table; records filled in one by one.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import statsmodels.api as sm

import colonnade as co
from colonnade.data.column import Column, Columns
from colonnade.errors import BadArguments, NotEstimable, SchemaError
from colonnade.evaluation.saved import SavedRegression
from colonnade.models.linear.regress import Regress
from colonnade.models.linear.result import Regression
from colonnade.statistics.gaussian_em import PatternStatistics, fit_gaussian
from support.small import computing_by
from support.wages import ALLOW, COLUMNS, blocks_missing_at_random, complete_blocks, federation, pooled, whole_table

SIZE, HOUSEHOLDS = 900, 60
EXTRA = Columns(
    [
        *COLUMNS.values(),
        Column(name="household", kind="count", lower=0, upper=1000),
        Column(name="weight", kind="continuous", lower=0.0, upper=10.0),
    ]
)
COVARIATES = ("age", "debt", "grade", "sector", "visits")


def survey(size: int = SIZE) -> pd.DataFrame:
    """Wages with a household effect and survey weights; the clinic knows households, the employer weights."""
    rng = np.random.default_rng(5)
    table = whole_table(size)
    household = rng.integers(HOUSEHOLDS, size=size)
    shock = rng.normal(size=HOUSEHOLDS)[household]
    table["wage"] = np.clip(table["wage"] + 3 * shock, 0, 100)
    table["visits"] = np.clip(table["visits"] + np.rint(shock).astype(int), 0, 30)
    return table.assign(household=household, weight=np.round(rng.uniform(0.5, 8.0, size=size), 3))


def survey_blocks(blocks: dict[str, pd.DataFrame], table: pd.DataFrame) -> dict[str, pd.DataFrame]:
    own = {"clinic": "household", "employer": "weight"}
    return {
        party: block.merge(table[["id", own[party]]], on="id") if party in own else block
        for party, block in blocks.items()
    }


def fitted(path: Path, blocks: dict[str, pd.DataFrame], *, seed: int | None = None, **options: object) -> Regression:
    """A `seed` fixes the order of the records, and with it which of them are a group."""
    allow = (*ALLOW, "cluster-groups")
    with federation(path, blocks, EXTRA, allow=allow, seed=seed) as parties:
        return Regress(response="wage", columns=COVARIATES, **options).fit(parties)  # type: ignore[arg-type]


@pytest.fixture(scope="module")
def clustered(tmp_path_factory: pytest.TempPathFactory) -> tuple[Regression, pd.DataFrame]:
    table = survey()
    blocks = survey_blocks(complete_blocks(table), table)
    result = fitted(tmp_path_factory.mktemp("clustered"), blocks, clusters="household", weights="weight")
    return result, table


def design_of(table: pd.DataFrame) -> pd.DataFrame:
    return sm.add_constant(pooled(complete_blocks(table)).drop(columns="wage"))


def test_clusters_and_weights_are_weighted_least_squares_with_cluster_robust_errors(
    clustered: tuple[Regression, pd.DataFrame],
) -> None:
    result, table = clustered
    design = design_of(table)
    oracle = sm.WLS(table["wage"].to_numpy(), design, weights=table["weight"].to_numpy()).fit(
        cov_type="cluster", cov_kwds={"groups": table["household"].to_numpy()}
    )
    n = len(design)
    np.testing.assert_allclose(result.params, oracle.params, rtol=1e-3, atol=1e-3)
    np.testing.assert_allclose(result.bse, oracle.bse * np.sqrt(n / (n - 1)), rtol=2e-3)
    assert result.df_groups == HOUSEHOLDS - 1
    # statsmodels' scale is of weights as they are, ours of weights with mean 1.
    scale = oracle.scale / table["weight"].mean()
    assert result.sigma2 == pytest.approx(scale, rel=1e-3)
    assert result.rsquared == pytest.approx(oracle.rsquared, rel=1e-3)
    assert "60 groups of whole clusters by 'household'" in result.summary()
    with pytest.raises(AttributeError, match="no likelihood"):
        _ = result.aic


def test_wald_tests_are_those_of_statsmodels(clustered: tuple[Regression, pd.DataFrame]) -> None:
    result, table = clustered
    oracle = sm.WLS(table["wage"].to_numpy(), design_of(table), weights=table["weight"].to_numpy()).fit(
        cov_type="cluster", cov_kwds={"groups": table["household"].to_numpy()}
    )
    matrix = np.zeros((2, len(result.params)))
    matrix[0, 1], matrix[1, 4], matrix[1, 5] = 1.0, 1.0, -1.0
    n = len(table)
    ours = result.wald_test("age = 0.3, sector[trade] = sector[mining]", use_f=False)
    theirs = oracle.wald_test((matrix, [0.3, 0.0]), use_f=False, scalar=True)
    assert ours.statistic == pytest.approx(float(theirs.statistic) * (n - 1) / n, rel=1e-2)
    assert ours.pvalue == pytest.approx(float(theirs.pvalue), abs=2e-3)
    assert result.wald_test((matrix, np.array([0.3, 0.0])), use_f=False) == ours
    hotelling = result.wald_test(["age = 0.3", "sector[trade] = sector[mining]"])
    assert (hotelling.df_num, hotelling.df_denom) == (2, HOUSEHOLDS - 2)
    assert hotelling.statistic == pytest.approx(ours.statistic / 2 * (HOUSEHOLDS - 2) / (HOUSEHOLDS - 1))
    single = result.wald_test("visits = 0")
    assert single.pvalue == pytest.approx(result.pvalues["visits"])
    for wrong in ("nothing = 0", np.ones((1, 2)), "age = 0, 2 * age = 0"):
        with pytest.raises(BadArguments):
            result.wald_test(wrong)


def test_frames_have_the_names_that_others_know(clustered: tuple[Regression, pd.DataFrame]) -> None:
    result, _ = clustered
    tidy = result.tidy(alpha=0.1)
    assert list(tidy.columns) == ["term", "estimate", "std.error", "statistic", "p.value", "conf.low", "conf.high"]
    assert tidy["conf.high"].to_numpy() == pytest.approx(result.conf_int(0.1)[1].to_numpy())
    glance = result.glance().iloc[0]
    assert glance["nobs"] == SIZE
    assert np.isnan(glance["AIC"])
    assert result.coef_ == pytest.approx(result.params.iloc[1:].to_numpy())
    assert result.intercept_ == result.params["const"]
    assert list(result.summary_frame().columns[:4]) == ["coef", "std err", "t", "P>|t|"]
    assert result.fmi is not None
    assert result.fmi.to_numpy() == pytest.approx(0.0, abs=1e-6)
    for absent in ("fittedvalues", "resid"):
        with pytest.raises(AttributeError, match="rows stay"):
            getattr(result, absent)


def test_criteria_and_predictions_are_those_of_least_squares(tmp_path: Path, engine: str) -> None:
    table = whole_table(600)
    with federation(tmp_path, **computing_by(engine, complete_blocks(table))) as parties:
        result = Regress(response="wage", missing="em").fit(parties)
    numbers = pooled(complete_blocks(table))
    oracle = sm.OLS(numbers["wage"], sm.add_constant(numbers.drop(columns="wage"))).fit()
    assert result.aic == pytest.approx(oracle.aic, rel=1e-6)
    assert result.bic == pytest.approx(oracle.bic, rel=1e-6)
    rows = table.drop(columns=["id", "wage"]).head(7)
    theirs = oracle.get_prediction(sm.add_constant(numbers.drop(columns="wage").head(7), has_constant="add"))
    ours = result.get_prediction(rows).summary_frame(alpha=0.1)
    expected = theirs.summary_frame(alpha=0.1)
    np.testing.assert_allclose(ours["mean"], expected["mean"], rtol=1e-4)
    np.testing.assert_allclose(ours["mean_se"], expected["mean_se"], rtol=1e-3)
    # Normal intervals here, Student's with 593 degrees of freedom there.
    np.testing.assert_allclose(ours["obs_ci_upper"], expected["obs_ci_upper"], rtol=2e-3)
    assert result.predict(rows).to_numpy() == pytest.approx(ours["mean"].to_numpy())
    assert repr(result.get_prediction(rows)) == "<Prediction of 7 rows; summary_frame() has their intervals>"


# --- with missing blocks, from moments that are pooled here -------------------------------------------------


@pytest.fixture(scope="module")
def missing(tmp_path_factory: pytest.TempPathFactory, engine: str) -> tuple[Regression, pd.DataFrame]:
    blocks = blocks_missing_at_random(whole_table(SIZE))
    with federation(tmp_path_factory.mktemp("missing"), **computing_by(engine, blocks)) as parties:
        return Regress(response="wage", missing="em").fit(parties), pooled(blocks)


def filled(table: pd.DataFrame) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Each record with the values that it lacks filled in, the covariance of these, and the fitted law."""
    rows = table.to_numpy(float)
    law = fit_gaussian(PatternStatistics.of_rows(rows, list(table.columns)))
    spread = np.zeros((rows.shape[1],) * 2)
    out = rows.copy()
    for row in out:
        seen, lost = ~np.isnan(row), np.isnan(row)
        toward = np.linalg.solve(law.sigma[np.ix_(seen, seen)], law.sigma[np.ix_(seen, lost)])
        spread[np.ix_(lost, lost)] += law.sigma[np.ix_(lost, lost)] - law.sigma[np.ix_(lost, seen)] @ toward
        row[lost] = law.mu[lost] + (row[seen] - law.mu[seen]) @ toward
    return out, spread, law.mu, law.sigma


def test_sensitivity_is_that_of_records_filled_in_with_a_shift(missing: tuple[Regression, pd.DataFrame]) -> None:
    result, table = missing
    names = list(table.columns)
    rows, spread, _, sigma = filled(table)
    place = names.index("visits")
    rows[table["visits"].isna(), place] += 0.5 * np.sqrt(sigma[place, place])
    centred = rows - rows.mean(axis=0)
    second = centred.T @ centred + spread
    slopes = np.linalg.solve(second[:-1, :-1], second[:-1, -1])
    shown = result.sensitivity((0.5,)).set_index("column")
    assert shown.loc["visits", "coef"] == pytest.approx(slopes[place], rel=1e-3)
    change = pd.Series(slopes, names[:-1]) - result.params[names[:-1]]
    assert shown.loc["visits", "most changed"] == (change / result.bse[names[:-1]]).abs().idxmax()
    assert "age" not in shown.index  # its party lacks no record used
    assert result.sensitivity((0.0,))["change in std err"].abs().max() < 1e-6


def test_independence_is_bartletts_test_of_the_fitted_law(missing: tuple[Regression, pd.DataFrame]) -> None:
    result, table = missing
    _, _, _, sigma = filled(table)
    names = list(table.columns)
    left, right = (
        [names.index(n) for n in ("debt", "grade")],
        [names.index(n) for n in ("sector[trade]", "sector[mining]", "visits")],
    )
    together = int((table["debt"].notna() & table["visits"].notna()).sum())
    inside = np.linalg.inv(sigma[np.ix_(left, left)]) @ sigma[np.ix_(left, right)]
    squared = np.linalg.eigvals(inside @ np.linalg.inv(sigma[np.ix_(right, right)]) @ sigma[np.ix_(right, left)]).real
    shown = result.independence().set_index("parties").loc["bank, clinic"]
    assert shown["records"] == together
    assert shown["canonical"] == pytest.approx(np.sqrt(squared.max()), rel=1e-3)
    assert shown["statistic"] == pytest.approx(-(together - 1 - 3) * np.log(1 - squared).sum(), rel=1e-2)
    assert shown["pvalue"] < 1e-3


def test_the_fraction_of_missing_information_is_one_minus_the_ratio_of_variances(
    missing: tuple[Regression, pd.DataFrame],
) -> None:
    result, _ = missing
    assert result.fmi is not None
    assert result.fmi["age"] < result.fmi["visits"]  # the employer has all records
    others = [place for place in range(len(result.features)) if place != result.target]
    inverse = np.linalg.inv(result.nobs * result.sigma[np.ix_(others, others)])
    ratio = result.sigma2 * np.diag(inverse) / np.diag(result.cov)[1:]
    np.testing.assert_allclose(result.fmi.iloc[1:], 1 - ratio, rtol=1e-6)


def test_a_prediction_of_a_row_with_missing_blocks_covers(missing: tuple[Regression, pd.DataFrame]) -> None:
    result, _ = missing
    fresh = whole_table(2000, seed=9)
    rows = fresh[["age", "debt", "grade"]]
    frame = result.get_prediction(rows).summary_frame()
    inside = (fresh["wage"] >= frame["obs_ci_lower"]) & (fresh["wage"] <= frame["obs_ci_upper"])
    assert 0.93 < inside.mean() < 0.97


def test_clusters_with_missing_blocks_are_larger_than_without(tmp_path: Path) -> None:
    """Households move wages and visits together: errors by runs of records are too small."""
    table = survey()
    blocks = survey_blocks(blocks_missing_at_random(table), table)
    clustered = fitted(tmp_path / "a", blocks, seed=1, clusters="household")
    runs = fitted(tmp_path / "b", blocks, seed=1)
    assert clustered.bse["visits"] > 1.15 * runs.bse["visits"]
    assert clustered.params["visits"] == pytest.approx(runs.params["visits"], abs=0.5 * runs.bse["visits"])


def test_columns_that_cannot_be_weights_or_clusters_are_refused(tmp_path: Path) -> None:
    table = survey(300)
    blocks = survey_blocks(complete_blocks(table), table)
    with federation(tmp_path, blocks, EXTRA) as parties:
        with pytest.raises(SchemaError, match="weights= needs a column of 'employer'"):
            parties.plan(Regress(response="wage", columns=COVARIATES, weights="visits"))
        with pytest.raises(SchemaError, match="takes no part"):
            parties.plan(Regress(response="wage", columns=("age", "debt"), clusters="household"))
        with pytest.raises(BadArguments):
            Regress(response="wage", clusters="household", epsilon=1.0)
        plan = parties.plan(Regress(response="wage", columns=COVARIATES, clusters="household"))
        assert "cluster-groups" in plan.text()


def test_nothing_is_sensitive_where_nothing_is_missing(clustered: tuple[Regression, pd.DataFrame]) -> None:
    with pytest.raises(NotEstimable, match="no record used lacks a block"):
        clustered[0].sensitivity()


def test_a_saved_regression_has_the_tests_and_frames_that_it_had(tmp_path: Path) -> None:
    with federation(tmp_path, blocks_missing_at_random(whole_table(600))) as parties:
        for method in (Regress(response="wage"), Regress(response="wage", missing="complete-case")):
            fit, run = parties.run(method)
            saved = co.load(run.path)
            assert isinstance(saved, SavedRegression)
            pd.testing.assert_series_equal(saved.tvalues, fit.tvalues)
            pd.testing.assert_frame_equal(saved.conf_int(alpha=0.1), fit.conf_int(alpha=0.1))
            pd.testing.assert_frame_equal(saved.tidy(), fit.tidy())
            pd.testing.assert_frame_equal(saved.glance(), fit.glance(), check_dtype=False)
            hypothesis = f"{fit.params.index[1]} = 0"
            assert saved.wald_test(hypothesis) == fit.wald_test(hypothesis)
            assert saved.summary() == fit.summary()
            with pytest.raises(AttributeError, match="no 'predict'"):
                saved.predict  # noqa: B018
