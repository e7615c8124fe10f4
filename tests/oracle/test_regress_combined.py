"""`Regress` by default, over a federation, against pooled records: weighted moments, group errors, Hausman's test.

Oracles: a record-level estimate written here with matrices of weighted residuals; statsmodels' cluster-robust errors
where nothing is missing; the Gaussian fit refitted without each group; the test from the records' own influences.
"""

from __future__ import annotations

import tempfile
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import statsmodels.api as sm
from benchmarks.influences_common import group_influences, group_moments
from numpy.typing import NDArray
from scipy.stats import f as f_distribution

from colonnade.data.column import Column, Columns
from colonnade.models.linear.augmented import augmented_regression, pair_coordinates
from colonnade.models.linear.combined import CombinedFit
from colonnade.models.linear.gaussian import regression
from colonnade.models.linear.propensity import presence_weights
from colonnade.models.linear.regress import Regress
from colonnade.models.linear.result import Regression
from colonnade.models.linear.robust import influence_forms
from colonnade.models.linear.weighted import WEIGHT
from colonnade.statistics.gaussian_em import Pattern, PatternStatistics, fit_gaussian
from support.wages import blocks_missing_at_random, complete_blocks, federation, pooled, whole_table

Array = NDArray[np.float64]
SIZE = 1200
OTHERS = {"bank": ["debt", "grade"], "clinic": ["sector[trade]", "sector[mining]", "visits"]}


def fit_over_federation(blocks: dict[str, pd.DataFrame]) -> tuple[Regression, Array, int]:
    """The result, the place of each of the employer's records in the cohort, and the number of groups."""
    with tempfile.TemporaryDirectory() as folder, federation(Path(folder), blocks) as parties:
        method = Regress(response="wage")
        procedure = method.procedure(parties.facts, parties.roster)
        assert isinstance(procedure, CombinedFit)
        result = method.fit(parties)
        places = np.asarray(parties.transport["employer"].rows)
        return result, places * procedure.layout.groups // parties.facts.n, procedure.layout.groups


@pytest.fixture(scope="module")
def missing() -> tuple[Regression, pd.DataFrame, Array, int]:
    blocks = blocks_missing_at_random(whole_table(SIZE))
    result, groups, count = fit_over_federation(blocks)
    return result, pooled(blocks), groups, count


class Augmented:
    """The weighted estimate of pooled records, and each group's influence on it, from residuals record by record."""

    def __init__(self, table: pd.DataFrame) -> None:
        names = list(table.columns)
        rows, n = table.to_numpy(float), len(table)
        own = [names.index("age"), names.index("wage")]
        data = PatternStatistics.of_rows(rows, names)
        law = fit_gaussian(data)
        w = np.column_stack([np.ones(n), rows[:, own]])
        others = [names.index(column) for columns in OTHERS.values() for column in columns]
        block = np.repeat([0, 1], [len(columns) for columns in OTHERS.values()])
        slopes = np.linalg.solve(law.sigma[np.ix_(own, own)], law.sigma[np.ix_(own, others)]).T
        mean = np.column_stack([law.mu[others] - slopes @ law.mu[own], slopes])
        e = np.nan_to_num(rows[:, others] - w @ mean.T)
        present = np.column_stack([table[columns[0]].notna() for columns in OTHERS.values()])
        features = (rows[:, own] - [60.0, 50.0]) / [60.0, 50.0]  # declared ranges, as the holder has them
        fitted = presence_weights(features, 1, present)
        v = dict(zip(fitted.pairs, fitted.weights.T, strict=True))
        products = np.zeros((n, 3 + len(others), 3 + len(others)))
        """Each record's part of the moments of (1, age, wage, others)."""
        lift = np.vstack([np.eye(3), mean])
        products += np.einsum("ai,ri,rj,bj->rab", lift, w, w, lift)
        for place, own_block in enumerate(block):
            row = 3 + place
            d = (v[own_block, own_block] * e[:, place])[:, None] * (w @ lift.T)
            products[:, row] += d
            products[:, :, row] += d
            for other, other_block in enumerate(block):
                pair = (min(own_block, other_block), max(own_block, other_block))
                products[:, row, 3 + other] += v[pair] * e[:, place] * e[:, other]
        total = products.sum(axis=0)
        covariates = [0, 1, *range(3, 3 + len(others))]
        self.names = ["const", "age", *(names[place] for place in others)]
        inverse = np.linalg.inv(total[np.ix_(covariates, covariates)])
        self.params = inverse @ total[covariates, 2]
        # Normalised weights: without their own mean, a record's part is about its share of the estimate.
        residual = np.zeros(3 + len(others))
        residual[covariates], residual[2] = -self.params, 1.0
        self.influence = products[:, covariates] @ residual
        for pair, weights in v.items():
            mine = np.zeros((3 + len(others), 3 + len(others)))
            for place, own_block in enumerate(block):
                if (own_block, own_block) == pair:
                    d = (weights * e[:, place]) @ (w @ lift.T) / n
                    mine[3 + place] += d
                    mine[:, 3 + place] += d
                for other, other_block in enumerate(block):
                    if (min(own_block, other_block), max(own_block, other_block)) == pair:
                        mine[3 + place, 3 + other] += np.mean(weights * e[:, place] * e[:, other])
            self.influence -= np.outer(weights - 1.0, mine[covariates] @ residual)
        self.influence = self.influence @ inverse


def in_groups(values: Array, groups: Array, count: int) -> Array:
    sums = np.zeros((count, values.shape[1]))
    np.add.at(sums, groups, values)
    return sums


def test_the_weighted_estimate_and_its_errors_are_those_of_pooled_records(
    missing: tuple[Regression, pd.DataFrame, Array, int],
) -> None:
    result, table, groups, count = missing
    oracle = Augmented(table)
    assert result.beside is not None
    beside = result.beside.loc[oracle.names]
    # Rows are rounded to 2^-14 of their range, weights to 2^-10.
    np.testing.assert_allclose(beside["weighted"], oracle.params, rtol=3e-3, atol=2e-3)
    sums = in_groups(oracle.influence, groups, count)
    n, p = len(table), len(oracle.names)
    errors = np.sqrt((sums**2).sum(axis=0) * count / (count - 1) * n / (n - p))
    np.testing.assert_allclose(beside["weighted std err"], errors, rtol=5e-3)


def test_group_errors_are_those_of_refitting_without_each_group(
    missing: tuple[Regression, pd.DataFrame, Array, int],
) -> None:
    """The infinitesimal jackknife against the delete-a-group one: they agree to first order in the groups' size."""
    result, table, groups, count = missing
    assert result.beside is not None
    rows, names = table.to_numpy(float), list(table.columns)
    law = fit_gaussian(PatternStatistics.of_rows(rows, names))
    left_out = []
    for group in np.unique(groups):
        data = PatternStatistics.of_rows(rows[groups != group], names)
        left_out.append(regression(data, fit_gaussian(data, start=(law.mu, law.sigma)), len(names) - 1).params)
    refitted = np.array(left_out)
    deviations = refitted - refitted.mean(axis=0)
    errors = np.sqrt((deviations**2).sum(axis=0) * (count - 1) / count)
    np.testing.assert_allclose(result.beside["Gaussian std err"], errors, rtol=0.05)


def test_where_nothing_is_missing_errors_are_cluster_robust_least_squares() -> None:
    blocks = complete_blocks(whole_table(SIZE))
    result, groups, count = fit_over_federation(blocks)
    table = pooled(blocks)
    design = sm.add_constant(table.drop(columns="wage"))
    oracle = sm.OLS(table["wage"], design).fit(cov_type="cluster", cov_kwds={"groups": groups})
    n, p = len(table), design.shape[1]
    # Columns are rounded at random to 1/gamma: a hundredth of a standard error is far more than that moves.
    assert np.max(np.abs(result.params - oracle.params) / oracle.bse) < 0.01
    # statsmodels has G / (G - 1) (n - 1) / (n - p).
    robust = oracle.bse * np.sqrt(n / (n - 1))
    assert result.beside is not None
    np.testing.assert_allclose(result.beside["weighted std err"], robust, rtol=1e-3)
    # Fewer than 200 groups: no smaller than those of least squares.
    plain = sm.OLS(table["wage"], design).fit().bse
    np.testing.assert_allclose(result.bse, np.maximum(robust, plain), rtol=1e-3)
    # The check of normality compares these two; the data are homoscedastic, so its 95 % intervals have most zeros.
    checked = result.normality()
    assert checked is not None
    np.testing.assert_allclose(checked["difference"], 100 * (robust / plain - 1)[checked.index], atol=0.2)
    assert ((checked[0] < 0) & (checked[1] > 0)).sum() >= len(checked) - 1
    assert "normality" in result.figures
    assert result.df_groups == count - 1
    assert result.verdict.startswith("Valid")
    assert p == len(result.params)


def test_hausmans_test_is_that_of_the_records(missing: tuple[Regression, pd.DataFrame, Array, int]) -> None:
    result, table, groups, count = missing
    oracle = Augmented(table)
    rows, names = table.to_numpy(float), list(table.columns)
    data = PatternStatistics.of_rows(rows, names)
    law = fit_gaussian(data)
    gaussian = pd.Series(regression(data, law, len(names) - 1).params, ["const", *names[:-1]])[oracle.names]
    # A record's influence on the Gaussian coefficients, by moving its weight.
    step, influence = 1e-3, np.zeros((count, len(names)))
    for group in np.unique(groups):
        moved = []
        for sign in (-1, 1):
            heavier = [(1.0 + sign * step if own == group else 1.0) for own in groups]
            other = weighted_patterns(rows, np.array(heavier), names)
            moved.append(regression(other, fit_gaussian(other, start=(law.mu, law.sigma)), len(names) - 1).params)
        derivative = pd.Series((moved[1] - moved[0]) / (2 * step), ["const", *names[:-1]])
        influence[group] = derivative[oracle.names]
    apart = in_groups(oracle.influence, groups, count) - influence
    n, p = len(table), len(names)
    covariance = apart.T @ apart * count / (count - 1) * n / (n - p)
    difference = (oracle.params - gaussian.to_numpy())[1:]
    statistic = difference @ np.linalg.solve(covariance[1:, 1:], difference)
    size = len(difference)
    pvalue = f_distribution.sf(statistic * (count - size) / (size * (count - 1)), size, count - size)
    (said,) = [note for note in result.notes if "Hausman" in note]
    assert float(said.partition("p = ")[2].partition(";")[0]) == pytest.approx(pvalue, abs=0.01)


def weighted_patterns(rows: Array, weights: Array, names: list[str]) -> PatternStatistics:
    """Pattern moments of weighted records, one record at a time."""
    sums: dict[bytes, list[Array]] = {}
    for row, weight in zip(rows, weights, strict=True):
        seen = ~np.isnan(row)
        part = sums.setdefault(
            seen.tobytes(), [np.flatnonzero(seen), np.zeros(1), np.zeros(seen.sum()), np.zeros((seen.sum(),) * 2)]
        )
        part[1] += weight
        part[2] += weight * row[seen]
        part[3] += weight * np.outer(row[seen], row[seen])
    return PatternStatistics(tuple(names), tuple(Pattern(s[0], float(s[1][0]), s[2], s[3]) for s in sums.values()))


def test_on_a_grid_the_federation_computes_what_pooled_records_give(tmp_path: Path) -> None:
    """Values that need no rounding: weighted estimate and both kinds of group errors agree to nine digits."""
    rng = np.random.default_rng(8)
    n, grid = 500, 256
    z = rng.normal(size=(n, 1)) + rng.normal(size=(n, 5))
    table = np.clip(np.rint(z * grid / 8), -grid, grid) / grid
    table[:, 4] = np.clip(np.rint((table[:, :4].sum(axis=1) / 8 + 0.1 * rng.normal(size=n)) * grid), -grid, grid) / grid
    present = rng.random((n, 2)) < 1 / (1 + np.exp(-0.5 - 3 * table[:, [4]] * [1, -1]))
    names, held = ["own", "b1", "b2", "c", "y"], {"employer": [0, 4], "bank": [1, 2], "clinic": [3]}
    frame = pd.DataFrame(table, columns=names).assign(id=[f"P{i:05d}" for i in range(n)])
    there = {"employer": np.ones(n, dtype=bool), "bank": present[:, 0], "clinic": present[:, 1]}
    blocks = {party: frame.loc[there[party], ["id", *(names[i] for i in own)]] for party, own in held.items()}
    columns = Columns(Column(name=name, kind="continuous", lower=-1.0, upper=1.0) for name in names)
    with federation(tmp_path, blocks, columns) as parties:
        method = Regress(response="y", minimum_joint=2)
        procedure = method.procedure(parties.facts, parties.roster)
        result = method.fit(parties)
        assert isinstance(procedure, CombinedFit)
        count = procedure.layout.groups
        groups = np.asarray(parties.transport["employer"].rows) * count // n
    assert result.beside is not None

    rows = table.copy()
    rows[np.ix_(~present[:, 0], [1, 2])] = np.nan
    rows[~present[:, 1], 3] = np.nan
    data = PatternStatistics.of_rows(rows, names)
    law = fit_gaussian(data)
    fitted = presence_weights(table[:, [0, 4]], 1, present)
    moments = group_moments(rows, np.ones(n), groups, count)
    own, coordinates = np.array([0, 4]), [np.array([1, 2]), np.array([3])]
    in_groups = {}
    for (a, b), weights in zip(fitted.pairs, fitted.weights.T, strict=True):
        integers = np.rint(weights * (present[:, a] & present[:, b]).mean() * WEIGHT)
        part = np.nan_to_num(rows)[:, pair_coordinates(own, coordinates, (a, b))]
        (in_groups[a, b],) = group_moments(part, integers * n / integers.sum(), groups, count)
    pairs = {pair: sums.sum(axis=0) for pair, sums in in_groups.items()}
    augmented = augmented_regression(data, law, 4, coordinates, pairs)
    second = group_influences(augmented.patterns, moments)
    second += group_influences([augmented.pairs[pair] for pair in in_groups], list(in_groups.values()))
    first = group_influences(influence_forms(data, law, 4), moments)
    errors = np.sqrt(count / (count - 1) * n / (n - 5) * (np.column_stack([first, second]) ** 2).sum(axis=0))
    order = ["const", *names[:4]]
    np.testing.assert_allclose(result.beside.loc[order, "weighted"], augmented.params, rtol=1e-9)
    np.testing.assert_allclose(result.beside.loc[order, "Gaussian std err"], errors[:5], rtol=1e-9)
    np.testing.assert_allclose(result.beside.loc[order, "weighted std err"], errors[5:], rtol=1e-9)
