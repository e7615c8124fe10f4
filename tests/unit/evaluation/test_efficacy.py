"""Efficacy, missingness and the local comparison, against scikit-learn, statsmodels and definitions."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
import statsmodels.api as sm
from sklearn.linear_model import LinearRegression, LogisticRegression
from sklearn.metrics import r2_score, roc_auc_score

from colonnade.data.cohort import Cohort
from colonnade.data.column import Column, Columns
from colonnade.errors import BadArguments, SchemaError, UnknownColumn
from colonnade.evaluation import fidelity, missingness
from colonnade.evaluation.comparison import compare_locally, joint_distances
from colonnade.evaluation.efficacy import area_under_curve, side_by_side, train_and_test
from colonnade.statistics.tables import TablesResult

COLUMNS = Columns(
    [
        Column(name="age", kind="continuous", lower=-10.0, upper=10.0),
        Column(name="visits", kind="count", lower=0, upper=9),
        Column(name="sued", kind="binary", categories=("no", "yes")),
        Column(name="sector", kind="categorical", categories=("farming", "trade", "mining")),
    ]
)


def correlated(n: int, seed: int, noise: float = 1.0) -> pd.DataFrame:
    """`sued` and `visits` depend on age; more noise, less so."""
    rng = np.random.default_rng(seed)
    age = np.clip(rng.normal(0, 2, n), -10, 10)
    return pd.DataFrame(
        {
            "age": age,
            "visits": np.clip(np.round(4 + age / 2 + noise * rng.normal(size=n)), 0, 9).astype(int),
            "sued": np.where(age + noise * rng.normal(size=n) > 0, "yes", "no"),
            "sector": rng.choice(["farming", "trade"], n),
        }
    )


def features(table: pd.DataFrame, response: str) -> tuple[np.ndarray, np.ndarray]:
    """The design by hand: categories as indicators of all but the first."""
    made = pd.DataFrame(
        {"age": table["age"], "visits": table["visits"], "sued": (table["sued"] == "yes").astype(float)}
    )
    for one in ("trade", "mining"):
        made[one] = (table["sector"] == one).astype(float)
    y = made.pop(response)
    return made.to_numpy(np.float64), y.to_numpy(np.float64)


@pytest.mark.parametrize("response", ["visits", "sued"])
def test_efficacy_is_that_of_scikit_learn(response: str) -> None:
    synthetic, train, test = correlated(800, 1, noise=2.0), correlated(700, 2), correlated(500, 3)
    found = train_and_test(synthetic, train, test, COLUMNS, response)
    unseen, truth = features(test, response)
    for table, mine in ((synthetic, found.synthetic), (train, found.real)):
        x, y = features(table, response)
        if response == "visits":
            expected = r2_score(truth, LinearRegression().fit(x, y).predict(unseen))
        else:
            model = LogisticRegression(C=1e8, max_iter=10_000, tol=1e-10).fit(x, y)
            expected = roc_auc_score(truth, model.decision_function(unseen))
        assert mine == pytest.approx(expected, abs=2e-4)
    assert found.synthetic < found.real + 0.02
    assert found.tested == 500


def test_auc_counts_ties_as_half() -> None:
    scores, positive = np.array([1.0, 1.0, 2.0, 0.0, 1.0]), np.array([1.0, 0.0, 1.0, 0.0, 0.0])
    assert area_under_curve(scores, positive) == pytest.approx(roc_auc_score(positive, scores))


def test_a_response_without_variation_or_order_is_refused() -> None:
    table = correlated(50, 1)
    with pytest.raises(BadArguments, match="does not vary"):
        train_and_test(table.assign(sued="no"), table, table, COLUMNS, "sued")
    with pytest.raises(BadArguments, match="categorical"):
        train_and_test(table, table, table, COLUMNS, "sector")


def test_a_separated_class_ends_with_a_finite_model() -> None:
    # Separation: the likelihood has no maximum; the ridge keeps one, and the ranking is perfect.
    table = correlated(300, 4, noise=0.0).assign(sector="trade")
    assert train_and_test(table, table, table, COLUMNS, "sued").synthetic > 0.999


def test_intervals_side_by_side_are_those_of_statsmodels() -> None:
    one, two = correlated(600, 5), correlated(900, 6)
    one["sector"], two["sector"] = "farming", "farming"
    columns = COLUMNS.select(["age", "visits", "sued"])
    found = side_by_side(one, two, columns, "visits")
    for table, which in ((one, "synthetic"), (two, "real")):
        design = sm.add_constant(np.column_stack([table["age"], table["sued"] == "yes"]).astype(float))
        fit = sm.OLS(table["visits"].to_numpy(float), design).fit()
        assert found[which].to_numpy() == pytest.approx(fit.params)
        # Normal quantiles here, Student's there: 600 records differ by less than a thousandth.
        assert found[f"{which} from"].to_numpy() == pytest.approx(fit.conf_int()[:, 0], abs=2e-3)
    assert side_by_side(one, one, columns, "visits")["overlap"].to_numpy() == pytest.approx(1.0)
    assert (side_by_side(one, one.assign(visits=9 - one["visits"]), columns, "visits").loc["age", "overlap"]) < 0


# --- missingness --------------------------------------------------------------------------------------------


def test_rates_and_patterns_are_counts_of_the_mask() -> None:
    mask = np.random.default_rng(7).random((200, 3)) < [0.9, 0.5, 0.2]
    mask[~mask.any(axis=1), 0] = True
    cohort = Cohort(("a", "b", "c"), mask)
    assert missingness.rates(cohort).to_dict() == pytest.approx(dict(zip("abc", 1 - mask.mean(axis=0), strict=True)))
    found = missingness.patterns(cohort)
    rows = [tuple(row) for row in mask]
    for one in found.itertuples(index=False):
        assert one.records == rows.count((one.a, one.b, one.c))
    assert found["records"].is_monotonic_decreasing
    assert found["share"].sum() == pytest.approx(1.0)


# --- locally ------------------------------------------------------------------------------------------------


def test_a_block_is_at_no_distance_from_itself_and_noise_is_seen() -> None:
    block, blurred = correlated(1500, 8), correlated(1500, 9, noise=6.0)
    same, other = compare_locally(block, block, COLUMNS), compare_locally(block, blurred, COLUMNS)
    assert set(same["average"].values()) == {0.0}
    assert all(one["coverage"] == 1.0 and one["distance"] == 0.0 for one in same["columns"])
    assert all(one["difference"] == 0.0 for one in same["correlations"])
    assert other["average"]["2"] > 0.1
    assert other["correlations"][0]["difference"] > 0.2
    # Oracle: the definitions in `fidelity`, which its own tests check against brute force.
    one, two = fidelity.cut(block, COLUMNS), fidelity.cut(blurred, COLUMNS)
    assert other["average"]["1"] == pytest.approx(np.mean(list(fidelity.marginal_distances(one, two).values())))
    assert {one["response"] for one in other["efficacy"]} == {"age", "visits", "sued"}
    with pytest.raises(SchemaError, match="no declared column in common"):
        compare_locally(block[["age"]], block[["visits"]], COLUMNS)


def test_coverage_is_the_share_of_categories_that_are_still_there() -> None:
    block = correlated(200, 1)
    block.loc[0, "sector"] = "mining"
    one, two = fidelity.cut(block, COLUMNS), fidelity.cut(block.iloc[1:], COLUMNS)
    assert fidelity.coverage(one, two)["sector"] == pytest.approx(2 / 3)
    assert fidelity.coverage(two, one)["sector"] == 1.0


def test_correlation_differences_are_pandas_own() -> None:
    columns = COLUMNS.select(["age", "visits"])
    one, two = correlated(300, 1)[["age", "visits"]], correlated(300, 2, noise=4.0)[["age", "visits"]]
    (row,) = fidelity.correlation_differences(one, two, columns).itertuples(index=False)
    expected = [table.corr(method="spearman").iloc[0, 1] for table in (one, two)]
    assert (row.first, row.second) == pytest.approx(expected)
    assert row.difference == pytest.approx(abs(expected[0] - expected[1]))


def test_a_joint_distance_is_that_of_the_counts_and_names_its_noise() -> None:
    # Oracle: with exact counts of the block itself, `fidelity`'s distance between block and synthetic table.
    block, synthetic = correlated(2000, 8), correlated(1500, 9, noise=6.0)
    columns = COLUMNS.select(["visits", "sued"])
    one, two = fidelity.cut(block, columns, bins=5), fidelity.cut(synthetic, columns, bins=5)
    shape = one.sizes
    released = TablesResult(
        n=2000,
        counts={("visits", "sued"): one.counts(["visits", "sued"]).reshape(shape).astype(float)},
        labels={},
        noise_sd={("visits", "sued"): 0.0},
        simulated=True,
    )
    (found,) = joint_distances(released, synthetic, columns)
    assert found["distance"] == pytest.approx(fidelity.total_variation(one, two, ["visits", "sued"]))
    assert found["noise"] == 0.0
    # Noise alone: the mean distance of noisy counts from the table that they were made of, by simulation, within 10 %.
    rng, sd = np.random.default_rng(0), 30.0
    gaps = []
    for _ in range(200):
        noisy = replace(
            released,
            counts={("visits", "sued"): released["visits", "sued"] + sd * rng.normal(size=shape)},
            noise_sd={("visits", "sued"): sd},
        )
        (again,) = joint_distances(noisy, block, columns)
        gaps.append((again["distance"], again["noise"]))
    shown, said = np.mean(gaps, axis=0)
    assert shown == pytest.approx(said, rel=0.1)
    with pytest.raises(UnknownColumn):
        joint_distances(released, synthetic[["visits"]], columns)
