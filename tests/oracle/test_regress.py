"""`Regress` over a federation against pooled, record-level computation: an optimiser, numerical Hessians, statsmodels.

Oracles: (b) the observed-data likelihood of pooled records, maximised by scipy without EM; ordinary least squares where
nothing is missing; (c) standard errors from a numerical Hessian of that likelihood; (d) a smoke test of coverage. The
full study is `benchmarks/vfem_coverage.py`.
"""

from __future__ import annotations

import json
import math
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import statsmodels.api as sm
from numpy.typing import NDArray
from scipy.optimize import minimize
from scipy.special import expit

from colonnade.catalogue import CATALOGUE
from colonnade.data.simulated import five_institutions
from colonnade.errors import BadArguments, SchemaError, UnboundedNotAllowed, UnknownColumn
from colonnade.federation.coordinator import Federation
from colonnade.federation.run_folder import RunFolder
from colonnade.models.linear.combined import CombinedFit
from colonnade.models.linear.gaussian import regression
from colonnade.models.linear.regress import Regress
from colonnade.models.linear.result import Regression
from colonnade.statistics.gaussian_em import PatternStatistics, fit_gaussian
from support.small import computing_by
from support.wages import (
    ALLOW,
    HELD,
    blocks_missing_at_random,
    complete_blocks,
    federation,
    pooled,
    whole_table,
)

Array = NDArray[np.float64]


class RecordLikelihood:
    """Minus the mean observed-data log-likelihood, from the records, as a function of (mu, Cholesky factor of Sigma).

    Columns are standardised by the given centre and scale. The gradient follows from each record's residual; nothing
    of the product's moments or EM is used.
    """

    def __init__(self, rows: Array) -> None:
        self.centre, self.scale = np.nanmean(rows, axis=0), np.nanstd(rows, axis=0)
        self.rows = (rows - self.centre) / self.scale
        self.width = rows.shape[1]
        self.lower = np.tril_indices(self.width)
        masks, index = np.unique(~np.isnan(rows), axis=0, return_inverse=True)
        self.groups = [
            (np.flatnonzero(mask), self.rows[index.reshape(-1) == number][:, mask]) for number, mask in enumerate(masks)
        ]

    def split(self, theta: Array) -> tuple[Array, Array]:
        root = np.zeros((self.width, self.width))
        root[self.lower] = theta[self.width :]
        return theta[: self.width], root

    def value(self, mu: Array, sigma: Array) -> float:
        total = 0.0
        for seen, rows in self.groups:
            centred = rows - mu[seen]
            part = sigma[np.ix_(seen, seen)]
            total += np.einsum("ij,ij->", centred @ np.linalg.inv(part), centred)
            total += len(rows) * (np.linalg.slogdet(part)[1] + len(seen) * math.log(2 * math.pi))
        return 0.5 * total / len(self.rows)

    def objective(self, theta: Array) -> tuple[float, Array]:
        mu, root = self.split(theta)
        sigma = root @ root.T
        by_mu, by_sigma = np.zeros(self.width), np.zeros_like(sigma)
        for seen, rows in self.groups:
            inverse = np.linalg.inv(sigma[np.ix_(seen, seen)])
            weighted = (rows - mu[seen]) @ inverse
            by_mu[seen] -= weighted.sum(axis=0)
            by_sigma[np.ix_(seen, seen)] += 0.5 * (len(rows) * inverse - weighted.T @ weighted)
        gradient = np.concatenate([by_mu, (2 * by_sigma @ root)[self.lower]]) / len(self.rows)
        return self.value(mu, sigma), gradient

    def maximise(self) -> tuple[Array, Array]:
        start = np.concatenate([np.zeros(self.width), np.eye(self.width)[self.lower]])
        found = minimize(
            self.objective, start, jac=True, method="BFGS", options={"gtol": 1e-9, "maxiter": 2000, "xrtol": 0}
        )
        assert np.abs(found.jac).max() < 1e-7
        mu, root = self.split(found.x)
        return mu, root @ root.T

    def coefficients(self, mu: Array, sigma: Array) -> Array:
        """Intercept and slopes of the last column, in the records' own units."""
        mu, sigma = self.centre + self.scale * mu, sigma * np.outer(self.scale, self.scale)
        slopes = np.linalg.solve(sigma[:-1, :-1], sigma[:-1, -1])
        return np.concatenate([[mu[-1] - slopes @ mu[:-1]], slopes])

    def standard_errors(self, mu: Array, sigma: Array) -> Array:
        """Central differences only: a Hessian in (mu, lower triangle of Sigma), and a Jacobian of the coefficients."""
        theta = np.concatenate([mu, sigma[self.lower]])

        def at(point: Array) -> tuple[Array, Array]:
            half = np.zeros_like(sigma)
            half[self.lower] = point[self.width :]
            return point[: self.width], half + np.tril(half, -1).T

        size, h = len(theta), 1e-3
        steps = h * np.eye(size)
        hessian = np.zeros((size, size))
        for a in range(size):
            for b in range(a + 1):
                corners = [
                    sign_a * sign_b * self.value(*at(theta + sign_a * steps[a] + sign_b * steps[b]))
                    for sign_a in (-1, 1)
                    for sign_b in (-1, 1)
                ]
                hessian[a, b] = hessian[b, a] = sum(corners) / (4 * h * h)
        jacobian = np.column_stack(
            [
                (self.coefficients(*at(theta + 0.01 * step)) - self.coefficients(*at(theta - 0.01 * step))) / (0.02 * h)
                for step in steps
            ]
        )
        n, p = len(self.rows), self.width - 1
        covariance = jacobian @ np.linalg.inv(n * hessian) @ jacobian.T
        return np.sqrt(np.diag(covariance) * n / (n - p - 1))


Fitted = tuple[Regression, dict[str, pd.DataFrame], Path]


def fit_of(path: Path, given: dict[str, Any], gamma: int) -> Fitted:
    with federation(path, **given) as parties:
        result, run = parties.run(Regress(response="wage", missing="em", gamma=gamma))
    return result, given["blocks"], run.path


@pytest.fixture(scope="module")
def fitted(tmp_path_factory: pytest.TempPathFactory) -> Fitted:
    blocks = blocks_missing_at_random(whole_table(1500))
    return fit_of(tmp_path_factory.mktemp("regress"), {"blocks": blocks}, 2**26)


@pytest.fixture(scope="module")
def fitted_by(tmp_path_factory: pytest.TempPathFactory, engine: str, fitted: Fitted) -> tuple[Fitted, int]:
    """By share holders, and in pairs, whose words hold less."""
    if engine == "holders":
        return fitted, 2**26
    given = computing_by(engine, fitted[1])
    return fit_of(tmp_path_factory.mktemp("pair"), given, 2**20), 2**20


def test_estimates_equal_the_pooled_maximum_likelihood(fitted_by: tuple[Fitted, int]) -> None:
    (result, blocks, _), gamma = fitted_by
    rows = pooled(blocks)
    oracle = RecordLikelihood(rows.to_numpy(float))
    mu, sigma = oracle.maximise()
    expected = oracle.coefficients(mu, sigma)
    assert list(result.params.index) == ["const", *rows.columns[:-1]]
    # Quantisation at 2^26 moves values by 1e-8 of their range, and the optimiser stops at a gradient of 1e-9.
    np.testing.assert_allclose(result.params, expected, rtol=64 / gamma, atol=64 / gamma)
    own = -len(rows) * oracle.value(mu, sigma) - rows.notna().to_numpy().sum(axis=0) @ np.log(oracle.scale)
    assert result.loglik == pytest.approx(own, rel=1 / gamma)
    assert min(np.diff(result.trace)) >= 0
    assert result.trace[-1] == pytest.approx(result.loglik)
    everybody = set().union(*(frame["id"] for frame in blocks.values()))
    assert result.nobs == len(blocks["employer"]) < result.cohort == len(everybody)


def test_standard_errors_equal_numerical_hessians(fitted_by: tuple[Fitted, int]) -> None:
    (result, blocks, _), _ = fitted_by
    oracle = RecordLikelihood(pooled(blocks).to_numpy(float))
    np.testing.assert_allclose(result.bse, oracle.standard_errors(*oracle.maximise()), rtol=1e-2)


def test_derived_quantities_are_consistent(fitted_by: tuple[Fitted, int]) -> None:
    (result, _, _), _ = fitted_by
    interval = result.conf_int()
    np.testing.assert_allclose((interval[1] - interval[0]) / result.bse, 2 * 1.959963985, rtol=1e-8)
    assert ((result.pvalues < 0.05) == ((interval[0] > 0) | (interval[1] < 0))).all()
    np.testing.assert_allclose(np.diag(result.cov_params()), result.bse**2)
    assert 0 < result.rsquared_adj < result.rsquared < 1
    with pytest.raises(BadArguments, match="alpha"):
        result.conf_int(alpha=5)


def test_predictions_are_conditional_means(fitted_by: tuple[Fitted, int]) -> None:
    """Complete rows: the linear predictor. Incomplete: integrate the missing columns out, by brute force."""
    (result, _, _), _ = fitted_by
    table = whole_table(6, seed=9).set_index("id")
    design = pooled({**complete_blocks(table.reset_index())}).drop(columns="wage")
    linear = result.params["const"] + design.to_numpy(float) @ result.params.iloc[1:].to_numpy()
    np.testing.assert_allclose(result.predict(table), linear, rtol=1e-8)
    assert list(result.predict(table).index) == list(table.index)

    holed = table.drop(columns=["debt", "wage"]).astype({"sector": object})
    holed.loc[holed.index[2:], "sector"] = None
    got = result.predict(holed)
    names = [feature.name for feature in result.features]
    for row, seen_names in [
        (0, ["age", "grade", "sector[trade]", "sector[mining]", "visits"]),
        (4, ["age", "grade", "visits"]),
    ]:
        seen = [names.index(name) for name in seen_names]
        x = design.iloc[row][seen_names].to_numpy(float)
        y = names.index("wage")
        gain = result.sigma[y, seen] @ np.linalg.inv(result.sigma[np.ix_(seen, seen)])
        assert got.iloc[row] == pytest.approx(result.mu[y] + gain @ (x - result.mu[seen]))
    with pytest.raises(UnknownColumn):
        result.predict(pd.DataFrame({"height": [1.0]}))


def test_summary_and_run_folder(fitted_by: tuple[Fitted, int], engine: str) -> None:
    (result, blocks, path), gamma = fitted_by
    text = result.summary()
    assert all(len(line) <= 94 for line in text.splitlines())
    for phrase in ("Dep. Variable:", "std err", "P>|z|", "[0.025", "sector[mining]", "4 patterns", "bank + clinic"):
        assert phrase in text.replace("employer + ", ""), phrase
    flowing = " ".join(text.split())
    assert "exact-moments: exact counts, sums and products of the columns; seen by: coordinator" in flowing
    assert f"seen by: {'share holders' if engine == 'holders' else 'the other parties'}" in flowing
    assert f"{result.cohort - 1350} of the cohort's {result.cohort:,} records lack the response" in flowing
    plain = json.loads((path / "result.json").read_text())
    assert plain["params"] == pytest.approx(result.params.to_dict())
    assert sum(one["count"] for one in plain["patterns"]) == len(blocks["employer"])
    assert pd.read_csv(path / "coefficients.csv", index_col="name")["std err"].to_dict() == pytest.approx(
        result.bse.to_dict()
    )
    assert (path / "summary.txt").read_text() == text + "\n"
    described = RunFolder.open(path).job
    assert CATALOGUE.make(described["method"], described["options"]) == Regress(
        response="wage", missing="em", gamma=gamma
    )


def test_nothing_missing_gives_ordinary_least_squares(tmp_path: Path, engine: str) -> None:
    """Coefficients differ from statsmodels by the rounding at 1/gamma and no more; both use n - p - 1. The words of
    pairs hold gamma^2 n up to 2^58."""
    table = whole_table(800)
    blocks = complete_blocks(table)
    rows = pooled(blocks)
    ols = sm.OLS(rows["wage"], sm.add_constant(rows.drop(columns="wage"))).fit()
    errors = {}
    finest, close = (2**26, 1e-6) if engine == "holders" else (2**22, 2e-5)
    with federation(tmp_path, **computing_by(engine, blocks)) as parties:
        for gamma in (2**10, 2**20, finest):
            fit = Regress(response="wage", missing="em", gamma=gamma).fit(parties)
            errors[gamma] = float(np.abs((fit.params - ols.params) / ols.bse).max())
    # Rounding at random adds an error of sd about range / (4 gamma) to each value, here 1/10 of it per sd of a column.
    assert errors[finest] < close < errors[2**10] < 0.1
    assert errors[2**20] < 1e-4
    np.testing.assert_allclose(fit.params, ols.params, rtol=close)
    np.testing.assert_allclose(fit.bse, ols.bse, rtol=close)
    assert fit.sigma2 == pytest.approx(ols.scale, rel=close)
    assert fit.rsquared == pytest.approx(ols.rsquared, rel=close)
    assert fit.rsquared_adj == pytest.approx(ols.rsquared_adj, rel=close)
    assert fit.df_resid == ols.df_resid


def test_only_records_with_the_response_are_asked_for(tmp_path: Path) -> None:
    with federation(tmp_path, blocks_missing_at_random(whole_table(300))) as parties:
        procedure = Regress(response="wage").procedure(parties.facts, parties.roster)
        assert isinstance(procedure, CombinedFit)
        assert procedure.layout.masks == procedure.first.layout.masks
        asked = procedure.first.layout
        plan = parties.plan(Regress(response="wage"))
    assert len(asked.masks) == 4
    assert all(mask[asked.parties.index("employer")] for mask in asked.masks)
    assert set(plan.total().unbounded) == {"exact-moments", "presence"}
    assert "Only records of 'employer'" in plan.text()


def missing_by(engine: str) -> Any:
    """The default rests on products of three parties' columns, which pairs have not."""
    return "combined" if engine == "holders" else "em"


def test_a_pair_that_never_meets_is_refused_by_name(tmp_path: Path, engine: str) -> None:
    table, method = whole_table(600), Regress(response="wage", missing=missing_by(engine))
    blocks = complete_blocks(table)
    blocks["bank"], blocks["clinic"] = blocks["bank"].iloc[:300], blocks["clinic"].iloc[300:]
    with federation(tmp_path / "never", **computing_by(engine, blocks)) as parties:
        with pytest.raises(BadArguments, match="no record with the response is at 'bank' and 'clinic' together"):
            method.fit(parties)
        assert replace(method, columns=("age", "debt")).fit(parties).nobs == 600
    blocks["clinic"] = table[["id", *HELD["clinic"]]].iloc[270:]
    reason = r"only 30 records .* 'bank' and 'clinic' together, and 50 are needed"
    given = computing_by(engine, blocks)
    with federation(tmp_path / "rarely", **given) as parties, pytest.raises(BadArguments, match=reason):
        method.fit(parties)


def test_what_cannot_work_is_refused_before_any_data(tmp_path: Path) -> None:
    table = whole_table(200)
    with federation(tmp_path / "one", complete_blocks(table)) as parties:
        for bad, error, reason in [
            (Regress(response="sector"), SchemaError, "categorical"),
            (Regress(response="height"), UnknownColumn, "height"),
            (Regress(response="wage", columns=("wage",)), BadArguments, "no column is left to explain"),
        ]:
            with pytest.raises(error, match=reason):
                parties.plan(bad)
    with (
        federation(tmp_path / "two", complete_blocks(table), allow=("presence",)) as parties,
        pytest.raises(UnboundedNotAllowed),
    ):
        Regress(response="wage").fit(parties)
    with pytest.raises(BadArguments, match="missing must be 'combined', 'em', 'complete-case'"):
        Regress(response="wage", missing="none")  # type: ignore[arg-type]
    with pytest.raises(BadArguments, match="needs a response, or a formula"):
        CATALOGUE.make("regress", {})


def test_what_does_not_vary_is_left_out_and_a_column_is_named_first(tmp_path: Path, engine: str) -> None:
    """The sums are open by then: a fit without the column is worth more than a refusal. It is the fit of the others."""
    table = whole_table(400)
    method = Regress(response="wage", missing=missing_by(engine))
    blocks = complete_blocks(table.replace({"sector": {"mining": "farming"}}))
    with federation(tmp_path / "category", **computing_by(engine, blocks)) as parties:
        fit = method.fit(parties)
    assert "sector[mining]" not in fit.params
    assert "sector[mining]" in fit.summary()
    assert fit.first_line == fit.verdict
    with federation(tmp_path / "one", **computing_by(engine, complete_blocks(table.assign(debt=3.3)))) as parties:
        fit = method.fit(parties)
        others = replace(method, columns=("!debt",)).fit(parties)
    assert fit.dropped == ("debt",)
    assert fit.first_line.startswith("Without 'debt', which does not vary in the records used")
    assert repr(fit).split("records. ")[1].startswith("Without 'debt'")
    assert fit.summary().startswith(fit.first_line)
    assert fit.view().warnings == (fit.first_line,)
    # Rows are rounded at random, in other steps for each fit.
    assert np.all(np.abs(fit.params - others.params[fit.params.index]) < 0.02 * others.bse[fit.params.index])
    with (
        federation(tmp_path / "none", **computing_by(engine, complete_blocks(table.assign(wage=3.3)))) as parties,
        pytest.raises(BadArguments, match="the response 'wage' does not vary"),
    ):
        method.fit(parties)


def test_coverage_smoke() -> None:
    """MAR, 60 % of three blocks missing, n = 3000, 60 simulations: mean coverage of 95 % intervals within 4 sd.

    Coefficients of one simulation are dependent; the sd is that of 60 independent simulations, each counted once, which
    is an upper bound for the mean over coefficients. The seed is fixed, so the test cannot fail by chance.
    """
    rng = np.random.default_rng(5)
    names = [f"x{j}" for j in range(8)] + ["y"]
    root = np.linalg.cholesky(0.3 + 0.7 * np.eye(8))
    beta = np.linspace(-1, 1, 8)
    covered = []
    for _ in range(60):
        x = rng.normal(size=(3000, 8)) @ root.T
        y = 1 + x @ beta + 1.5 * rng.normal(size=3000)
        rows = np.column_stack([x, y])
        for block, sign in ((slice(2, 4), 1), (slice(4, 6), -1), (slice(6, 8), 1)):
            rows[rng.random(3000) < expit(0.5 + sign * 0.7 * (y - 1) / y.std() + 0.4 * x[:, 0]), block] = np.nan
        data = PatternStatistics.of_rows(rows, names)
        got = regression(data, fit_gaussian(data), 8)
        error = np.abs(got.params - np.concatenate([[1.0], beta]))
        covered.append(error <= 1.959964 * np.sqrt(np.diag(got.cov)))
    missing = np.isnan(rows[:, 2:8]).mean()
    assert 0.55 < missing < 0.65
    assert abs(np.mean(covered) - 0.95) < 4 * math.sqrt(0.95 * 0.05 / 60)
    assert np.mean(covered) > 0.90


def test_five_institutions_from_end_to_end(tmp_path: Path) -> None:
    """20,000 firms, 41 features, 93 % missing at two parties: in 20 CPU seconds it finds what one party cannot."""
    example = five_institutions(20_000)
    covariates = tuple(name for name in example.columns if name not in example.responses)
    start = time.process_time()
    with Federation.local(
        example.blocks,
        key=example.key,
        columns=example.columns,
        organisations=example.organisations,
        include="commerce",
        allow=ALLOW,
        home=tmp_path / "home",
        runs=tmp_path / "runs",
    ) as parties:
        fit = Regress(response="profit_growth", columns=covariates, missing="em").fit(parties)
        own = tuple(name for name in covariates if parties.facts.owner(name) == "commerce")
        alone = Regress(response="profit_growth", columns=own).fit(parties)
    assert time.process_time() - start < 20
    assert fit.nobs == len(example.blocks["commerce"])
    assert fit.rsquared > alone.rsquared + 0.1
    truth = example.truth.coefficients
    z = (fit.params[truth.index] - truth) / fit.bse[truth.index]
    # The columns are far from Gaussian, so this is no coverage test: errors are of the size of the standard errors.
    assert np.mean(np.abs(z) < 3) > 0.9
    assert (
        float(np.corrcoef(fit.params[truth.index] * example.truth.design().std(), example.truth.standardised)[0, 1])
        > 0.9
    )
