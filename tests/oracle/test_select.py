"""Select, and the paper's ADMM, against a pooled solver that shares nothing with them.

Oracle: the weighted lasso b = b+ - b- with both parts at least 0 is a smooth problem with bounds, which scipy's
L-BFGS-B minimises on the pooled, standardised records; SCAD and MCP by the same local linear approximation, written out
here.
"""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from numpy.typing import NDArray
from scipy.integrate import quad
from scipy.optimize import brentq, minimize
from scipy.special import expit, gammaln
from scipy.stats import norm
from sklearn.linear_model import LinearRegression, LogisticRegression

from colonnade.data.column import Column, Columns
from colonnade.errors import BadArguments, NotEstimable, SchemaError, UnsafeRequest
from colonnade.federation.catalogue import CATALOGUE
from colonnade.federation.coordinator import Federation
from colonnade.federation.run_folder import RunFolder
from colonnade.models.private_scales import NORM_REACH, cells_of_lengths
from colonnade.models.sparse.moments import log_odds
from colonnade.models.sparse.private import ScaledMoments
from colonnade.models.sparse.select import PathFromMoments, Select
from colonnade.papers.vfl_glm_vs.method import VFLGLMVS
from colonnade.papers.vfl_glm_vs.updates import block_update, holder_update
from colonnade.statistics.gaussian_em import PatternStatistics, fit_gaussian
from colonnade.statistics.moments import MomentsResult
from colonnade.statistics.quantiles import dyadic_counts
from support.selection import ALLOW, COVARIATES, RESPONSES, cohort_rows, numbers, related_table, selection_federation

Array = NDArray[np.float64]
FAMILIES = ("gaussian", "binomial", "poisson")
PENALTIES = ("lasso", "scad", "mcp")
N = 240
LLA = 3


# --- the oracle -----------------------------------------------------------------------------------------------


def mean_loss(family: str, eta: Array, y: Array) -> tuple[float, Array]:
    """The mean loss and its derivative in eta."""
    if family == "gaussian":
        return float(np.mean((y - eta) ** 2) / 2), (eta - y) / len(y)
    if family == "binomial":
        return float(np.mean(np.logaddexp(0, eta) - y * eta)), (expit(eta) - y) / len(y)
    return float(np.mean(np.exp(eta) - y * eta)), (np.exp(eta) - y) / len(y)


def slope(penalty: str, t: Array, lam: float) -> Array:
    if penalty == "scad":
        return np.where(t <= lam, lam, np.clip(3.7 * lam - t, 0, None) / 2.7)
    return np.clip(lam - t / 3, 0, None) if penalty == "mcp" else np.full_like(t, lam)


def value(penalty: str, t: Array, lam: float) -> float:
    """The penalty as the integral of its slope, by a fine trapezoid."""
    grid = [np.linspace(0, one, 20_001) for one in t]
    return float(sum(np.trapezoid(slope(penalty, g, lam), g) for g in grid))


def pooled_lasso(family: str, x: Array, y: Array, weights: Array) -> Array:
    """(intercept, coefficients) in standard units."""
    p = x.shape[1]

    def objective(z: Array) -> tuple[float, Array]:
        b = z[1 : p + 1] - z[p + 1 :]
        loss, by_eta = mean_loss(family, z[0] + x @ b, y)
        gradient = x.T @ by_eta
        whole = np.concatenate([[by_eta.sum()], gradient + weights, weights - gradient])
        return loss + float(weights @ (z[1 : p + 1] + z[p + 1 :])), whole

    bounds = [(None, None)] + [(0, None)] * (2 * p)
    tight = {"ftol": 1e-17, "gtol": 1e-11, "maxiter": 20_000, "maxfun": 40_000, "maxcor": 40}
    z = np.zeros(2 * p + 1)
    for _ in range(4):  # again from where it stopped
        z = minimize(objective, z, jac=True, method="L-BFGS-B", bounds=bounds, options=tight).x
    return np.concatenate([z[:1], z[1 : p + 1] - z[p + 1 :]])


def pooled(family: str, penalty: str, x: Array, y: Array, lam: float, steps: int = LLA) -> tuple[float, Array]:
    """Objective and solution; SCAD and MCP as LLA from the lasso."""
    found = pooled_lasso(family, x, y, np.full(x.shape[1], lam))
    for _ in range(steps if penalty != "lasso" else 0):
        found = pooled_lasso(family, x, y, slope(penalty, np.abs(found[1:]), lam))
    return mean_loss(family, found[0] + x @ found[1:], y)[0] + value(penalty, np.abs(found[1:]), lam), found


def standardised(table: pd.DataFrame) -> Array:
    x = table[list(COVARIATES)].to_numpy(float)
    return np.asarray((x - x.mean(axis=0)) / x.std(axis=0))


def two_lambdas(table: pd.DataFrame, family: str) -> tuple[float, float]:
    y = numbers(table, family)
    largest = np.abs(standardised(table).T @ (y - y.mean()) / len(y)).max()
    return 0.4 * largest, 0.12 * largest


@pytest.fixture(scope="module")
def table() -> pd.DataFrame:
    return related_table(N)


@pytest.fixture(scope="module")
def parties(table: pd.DataFrame, tmp_path_factory: pytest.TempPathFactory):  # type: ignore[no-untyped-def]
    with selection_federation(tmp_path_factory.mktemp("sparse"), table) as made:
        yield made


# --- the same optimum -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("penalty", PENALTIES)
@pytest.mark.parametrize("family", FAMILIES)
def test_nine_pairs_equal_the_pooled_solver(
    family: str, penalty: str, table: pd.DataFrame, parties: Federation
) -> None:
    """Objective to 1e-6 relative, support and coefficients the same; gaussian through the rounds and the moments."""
    lams = two_lambdas(table, family)
    x, y = standardised(table), numbers(table, family)
    spread = table[list(COVARIATES)].std(ddof=0).to_numpy()
    for solver in ("newton", "moments") if family == "gaussian" else ("newton",):
        fit = Select(
            family=family,  # type: ignore[arg-type]
            penalty=penalty,  # type: ignore[arg-type]
            response=RESPONSES[family],
            columns=COVARIATES,
            solver=solver,  # type: ignore[arg-type]
            lambdas=lams,
            lla_steps=LLA,
        ).fit(parties)
        for at, lam in enumerate(lams):
            objective, solution = pooled(family, penalty, x, y, lam)
            got = fit.path.iloc[at]
            # value() integrates numerically: 1e-8 of the penalty, below the tolerance.
            assert fit.objective[at] == pytest.approx(objective, rel=1e-6), solver
            np.testing.assert_array_equal(got.iloc[1:].to_numpy() != 0, np.abs(solution[1:]) > 1e-6)
            np.testing.assert_allclose(got.iloc[1:].to_numpy() * spread, solution[1:], atol=2e-5)
        if penalty == "lasso":
            assert max(fit.residuals) <= 1.01e-6


def admm_in_one_process(
    family: str,
    x: Array,
    y: Array,
    weights: Array,
    *,
    cuts: tuple[int, ...],
    damping: int,
    rounds: int,
    tolerance: float,
) -> tuple[Array, int, float]:
    """The parties' and the holder's updates of a round, without a federation; the intercept is in the first block."""
    blocks = [
        np.column_stack([np.ones(len(y)), part]) if k == 0 else part for k, part in enumerate(np.split(x, cuts, 1))
    ]
    limits = [np.concatenate([[0.0], part]) if k == 0 else part for k, part in enumerate(np.split(weights, cuts))]
    b = [np.zeros(block.shape[1]) for block in blocks]
    eta = u = push = np.zeros(len(y))
    rho, everybody = 1.0, np.ones(len(y), dtype=bool)
    for number in range(rounds):
        b = [
            block_update(block, block.T @ block, one, push, w, rho=rho, many=damping, tolerance=1e-12)
            for block, one, w in zip(blocks, b, limits, strict=True)
        ]
        total = sum(block @ one for block, one in zip(blocks, b, strict=True))
        turn = holder_update(
            family,  # type: ignore[arg-type]
            total,
            y,
            everybody,
            eta,
            u,
            rho=rho,
            width=x.shape[1],
            adapt=number < 150,
            tolerance=tolerance,
        )
        eta, u, push, rho = turn.eta, turn.u, turn.push, turn.rho
        if turn.done and number:
            break
    return np.concatenate(b), number + 1, turn.primal


@pytest.mark.parametrize("penalty", PENALTIES)
@pytest.mark.parametrize("family", FAMILIES)
def test_the_papers_admm_reaches_the_same_optimum(family: str, penalty: str, table: pd.DataFrame) -> None:
    """All nine pairs, by the very functions that the parties run, and with three LLA steps."""
    x, y = standardised(table), numbers(table, family)
    y = (y - 10) / 20 if family == "gaussian" else y
    lam = two_lambdas(table, family)[1] / (20 if family == "gaussian" else 1)

    def solve(weights: Array) -> Array:
        found, _, _ = admm_in_one_process(family, x, y, weights, cuts=(2, 5), damping=3, rounds=5000, tolerance=1e-8)
        return found

    found = solve(np.full(9, lam))
    for _ in range(LLA if penalty != "lasso" else 0):
        found = solve(slope(penalty, np.abs(found[1:]), lam))
    objective, solution = pooled(family, penalty, x, y, lam)
    reached = mean_loss(family, found[0] + x @ found[1:], y)[0] + value(penalty, np.abs(found[1:]), lam)
    assert reached == pytest.approx(objective, rel=1e-6)
    np.testing.assert_array_equal(found[1:] != 0, np.abs(solution[1:]) > 1e-6)


def test_the_printed_admm_diverges_on_correlated_blocks_and_the_sharing_one_converges() -> None:
    """Three parties with nearly the same column: each corrects the whole residual, and together they overshoot."""
    rng = np.random.default_rng(3)
    common = rng.normal(size=(200, 1))
    x = common + 0.1 * rng.normal(size=(200, 3))
    x = (x - x.mean(axis=0)) / x.std(axis=0)
    y = x.sum(axis=1) + rng.normal(size=200)
    weights = np.full(3, 0.05)
    how = {"cuts": (1, 2), "rounds": 60, "tolerance": 1e-6}
    *_, printed = admm_in_one_process("gaussian", x, y, weights, damping=1, **how)  # type: ignore[arg-type]
    *_, sharing = admm_in_one_process("gaussian", x, y, weights, damping=3, **how)  # type: ignore[arg-type]
    assert printed > 1e3 * np.linalg.norm(y)
    assert sharing < 1e-2 * np.linalg.norm(y)


def test_admm_over_a_federation_is_admm_in_one_process(table: pd.DataFrame, parties: Federation) -> None:
    """Round for round: the same number of rounds, the same coefficients; then one LLA step without starting again."""
    lam = two_lambdas(table, "binomial")[0]
    x, y = standardised(table), numbers(table, "binomial")
    how = {"cuts": (2, 5), "damping": 3, "rounds": 500, "tolerance": 0.02}
    found, rounds, _ = admm_in_one_process("binomial", x, y, np.full(9, lam), **how)  # type: ignore[arg-type]
    asked = VFLGLMVS(
        family="binomial",
        penalty="lasso",
        response="event",
        columns=COVARIATES,
        lambdas=(lam,),
        lla_steps=1,
        tolerance=0.02,
    )
    fit = asked.fit(parties)
    spread = table[list(COVARIATES)].std(ddof=0).to_numpy()
    assert fit.rounds == rounds > 5
    np.testing.assert_allclose(fit.path.iloc[0, 1:].to_numpy() * spread, found[1:], atol=1e-4)
    # The reported residual is the violation at these very coefficients, pooled.
    b = fit.path.iloc[0, 1:].to_numpy() * spread
    raw = table[list(COVARIATES)].to_numpy() @ fit.path.iloc[0, 1:].to_numpy() + fit.path.iloc[0, 0]
    gradient = x.T @ mean_loss("binomial", raw, y)[1]
    violated = np.where(b != 0, np.abs(gradient + lam * np.sign(b)), np.abs(gradient) - lam).max()
    intercept = abs(mean_loss("binomial", raw, y)[1].sum())
    assert fit.residual == pytest.approx(max(violated, intercept, 0) / (lam / 0.4), rel=1e-6)
    again = replace(asked, penalty="scad").fit(parties)
    assert rounds < again.rounds < 2 * rounds + 20
    assert again.lla_steps[0] == 1


@pytest.fixture(scope="module")
def few(tmp_path_factory: pytest.TempPathFactory):  # type: ignore[no-untyped-def]
    """Sixty records and a federation for them: hundreds of rounds of ADMM go quickly."""
    table = related_table(60, seed=1)
    with selection_federation(tmp_path_factory.mktemp("few"), table) as made:
        yield table, made


@pytest.mark.parametrize(("family", "penalty"), list(zip(FAMILIES, PENALTIES, strict=True)))
def test_the_papers_admm_over_a_federation(family: str, penalty: str, few: tuple[pd.DataFrame, Federation]) -> None:
    """Objective to 1e-6 relative and support as the pooled solver's, with masked sums; a column of each party. All nine
    pairs: `test_the_papers_admm_reaches_the_same_optimum`, in one process."""
    table, opened = few
    columns = ["x0", "x4", "x7"]
    x, y = table[columns].to_numpy(), numbers(table, family)
    x = (x - x.mean(axis=0)) / x.std(axis=0)
    lam = 0.3 * float(np.abs(x.T @ (y - y.mean()) / len(y)).max())
    fit = VFLGLMVS(
        family=family,  # type: ignore[arg-type]
        penalty=penalty,  # type: ignore[arg-type]
        response=RESPONSES[family],
        columns=tuple(columns),
        lambdas=(lam,),
        lla_steps=1,
        tolerance=1e-6,
    ).fit(opened)
    objective, solution = pooled(family, penalty, x, y, lam, steps=1)
    assert fit.objective[0] == pytest.approx(objective, rel=1e-6)
    np.testing.assert_array_equal(fit.path.iloc[0, 1:].to_numpy() != 0, np.abs(solution[1:]) > 1e-6)
    if penalty == "lasso":
        assert fit.residual < 1e-4


# --- choosing lambda ------------------------------------------------------------------------------------------


def test_bic_is_minus_twice_the_log_likelihood_plus_df_log_n(table: pd.DataFrame, parties: Federation) -> None:
    """Poisson: up to one constant for all lambdas; the likelihood from scipy's gammaln, the intercept counts as one."""
    lams = two_lambdas(table, "poisson")
    fit = Select(response="visits", family="poisson", penalty="lasso", columns=COVARIATES, lambdas=lams).fit(parties)
    y = numbers(table, "poisson")
    expected = []
    for at in range(2):
        one = fit.path.iloc[at]
        eta = one.iloc[0] + table[list(COVARIATES)].to_numpy() @ one.iloc[1:].to_numpy()
        loglik = np.sum(y * eta - np.exp(eta) - gammaln(y + 1))
        expected.append(-2 * loglik + np.log(N) * (1 + np.count_nonzero(one.iloc[1:])))
    assert fit.scores[1] - fit.scores[0] == pytest.approx(expected[1] - expected[0], rel=1e-6)
    frame = table[list(COVARIATES)].head(7)
    chosen = fit.params
    link = chosen.iloc[0] + frame.to_numpy() @ chosen.iloc[1:].to_numpy()
    np.testing.assert_allclose(fit.predict(frame), np.exp(link), rtol=1e-10)
    np.testing.assert_allclose(fit.predict(frame, kind="link"), link, atol=1e-10)


@pytest.mark.parametrize("family", ["gaussian", "binomial"])
def test_cross_validation_equals_pooled_folds(family: str, table: pd.DataFrame, parties: Federation) -> None:
    """Two folds that everybody can compute; the held-out loss of pooled fits with the same standardisation. A gaussian
    response takes the folds' moments.

    Plain: cohorts are in random order, and in some a fold's solution is one that masked rounds withhold."""
    lams = two_lambdas(table, family)
    fit = Select(
        family=family,  # type: ignore[arg-type]
        penalty="lasso",
        response=RESPONSES[family],
        columns=COVARIATES,
        lambdas=lams,
        criterion="cv",
        folds=2,
        masking="plain",
    ).fit(parties)
    # Cohort order is what the parties share; the federation's alignment sorts keys for all alike.
    assert fit.solver == {"gaussian": "moments", "binomial": "newton"}[family]
    x, y = standardised(table), numbers(table, family)
    order = np.random.default_rng(20_100_131).permutation(N)
    fold = np.argsort(order) % 2
    rows = cohort_rows(parties, table)
    for at, lam in enumerate(lams):
        losses = []
        for k in range(2):
            train, test = rows[fold != k], rows[fold == k]
            found = pooled_lasso(family, x[train], y[train], np.full(9, lam))
            losses.append(mean_loss(family, found[0] + x[test] @ found[1:], y[test])[0])
        # Folds are solved coarsely: in 28 runs, with cohorts in random order, the deviation was 4e-6, the largest 1e-5.
        assert fit.scores[at] == pytest.approx(np.mean(losses), rel=3e-5)


# --- odd data -------------------------------------------------------------------------------------------------


def test_separable_data_end_the_path_with_a_message(tmp_path: Path) -> None:
    table = related_table(60, seed=2)
    table["event"] = np.where(table["x0"] > 0, "yes", "no")
    asked = Select(
        family="binomial",
        penalty="lasso",
        response="event",
        columns=("x0", "x2", "x5"),
        n_lambdas=3,
        ratio=1e-5,
        masking="plain",
    )
    with selection_federation(tmp_path, table) as parties:
        fit = asked.fit(parties)
        bent = replace(asked, penalty="mcp", n_lambdas=3, ratio=0.1, lla_steps=2).fit(parties)
    assert len(fit.lambdas) == 2
    assert "x0" in fit.support
    for one in (fit, bent):
        assert "without bound" in one.summary().replace("\n    ", " ")
        assert np.isfinite(one.path.to_numpy()).all()


def test_constant_and_zero_columns_more_columns_than_records_and_a_missing_category(tmp_path: Path) -> None:
    """n = 8, p = 9 with a constant and a zero column: those stay out, everything else is the pooled lasso."""
    table = related_table(8, seed=5).assign(x3=1.25, x6=0.0)
    x = table[list(COVARIATES)].to_numpy(float)
    spread = x.std(axis=0)
    x = np.where(spread > 0, (x - x.mean(axis=0)) / np.where(spread > 0, spread, 1), 0.0)
    y = numbers(table, "gaussian")
    lam = 0.3 * np.abs(x.T @ (y - y.mean()) / 8).max()
    objective, _ = pooled("gaussian", "lasso", x, y, lam)
    with selection_federation(tmp_path, table) as parties:
        for solver in ("newton", "moments"):
            asked = Select(
                penalty="lasso",
                response="wage",
                columns=COVARIATES,
                solver=solver,  # type: ignore[arg-type]
                lambdas=(lam,),
                masking="plain",  # masked totals are withheld where one other party is left with coefficients
            )
            fit = asked.fit(parties)
            assert fit.objective[0] == pytest.approx(objective, rel=1e-5)
            assert fit.params["x3"] == 0
            assert fit.params["x6"] == 0


def test_a_response_that_does_not_vary_is_not_estimable(tmp_path: Path) -> None:
    table = related_table(40).assign(wage=3.0)
    with selection_federation(tmp_path, table) as parties, pytest.raises(NotEstimable):
        Select(response="wage", columns=COVARIATES).fit(parties)


def test_missing_blocks_from_pattern_moments_and_complete_records_by_rounds(tmp_path: Path) -> None:
    """MCAR. Rounds use the complete records: the pooled lasso on those. Moments use all of them."""
    table = related_table(900, seed=8)
    rng = np.random.default_rng(1)
    there = {"employer": np.ones(900, bool), "bank": rng.random(900) < 0.6, "clinic": rng.random(900) < 0.6}
    blocks = {p: table.loc[there[p], ["id", *names]] for p, names in _held().items()}
    complete = table[there["bank"] & there["clinic"]]
    x, y = standardised(complete), numbers(complete, "gaussian")
    lam = 0.15 * np.abs(x.T @ (y - y.mean()) / len(y)).max()
    with selection_federation(tmp_path, table, blocks=blocks) as parties:
        asked = Select(penalty="lasso", response="wage", columns=COVARIATES, lambdas=(lam,))
        rounds = replace(asked, solver="newton", missing="complete-case").fit(parties)
        every = asked.fit(parties)
    assert rounds.nobs == len(complete)
    assert rounds.objective[0] == pytest.approx(pooled("gaussian", "lasso", x, y, lam)[0], rel=1e-6)
    assert every.nobs == 900
    assert "missing at random" in every.summary().replace("\n    ", " ")
    # Records with exactly the maximum likelihood covariance of the pooled, incomplete ones (test_vfem checks that one).
    holes = table[[*COVARIATES, "wage"]].copy()
    for party, names in _held().items():
        holes.loc[~there[party], [name for name in names if name in COVARIATES]] = np.nan
    sigma = fit_gaussian(
        PatternStatistics.of_rows(np.ascontiguousarray(holes.to_numpy(float)), list(holes.columns))
    ).sigma
    half = np.sqrt(10) * np.linalg.cholesky(sigma).T
    rows = np.vstack([half, -half])
    spread = np.sqrt(np.diag(sigma))[:9]
    objective, solution = pooled("gaussian", "lasso", rows[:, :9] / spread, rows[:, 9], lam)
    assert every.objective[0] == pytest.approx(objective, rel=1e-6)
    np.testing.assert_allclose(every.params.iloc[1:].to_numpy() * spread, solution[1:], atol=1e-5)


def path_from_moments(asked: Select, parties: Federation) -> PathFromMoments:
    procedure = asked.procedure(parties.facts, parties.roster)
    assert isinstance(procedure, PathFromMoments)
    return procedure


def _held() -> dict[str, list[str]]:
    return {
        "employer": ["x0", "x1", *RESPONSES.values()],
        "bank": ["x2", "x3", "x4"],
        "clinic": ["x5", "x6", "x7", "x8"],
    }


# --- with noise -----------------------------------------------------------------------------------------------


def test_epsilon_selects_the_right_columns_where_noise_is_small(tmp_path: Path) -> None:
    """20,000 records, 9 columns, epsilon 3, fixed seed: noise far below the signals. Budget finite, noise told."""
    table = related_table(20_000, seed=3)
    with selection_federation(tmp_path, table, allow=(), seed=7) as parties:
        linear = Select(response="wage", columns=COVARIATES, epsilon=3.0)
        assert parties.plan(linear).total().unbounded == ()
        fit = linear.fit(parties)
        logistic = Select(family="binomial", response="event", columns=COVARIATES, epsilon=3.0).fit(parties)
    for one in (fit, logistic):
        assert {"x0", "x1", "x4", "x7"} <= set(one.support)
        assert len(one.support) <= 6
        assert "exact ones" in one.summary().replace("\n    ", " ")
    # The noise on a correlation is 0.0036 here; a coefficient carries a few times that, times sd(wage) = 2.9.
    exact = LinearRegression().fit(table[list(COVARIATES)], table["wage"]).coef_
    assert np.abs(fit.params.iloc[1:].to_numpy() - exact).max() < 0.1
    # Log-odds within a few times the same noise, divided by the slope of the surrogate, of unpenalised pooled ones.
    odds = LogisticRegression(C=np.inf).fit(table[list(COVARIATES)], table["event"])
    assert np.abs(logistic.params.iloc[1:].to_numpy() - odds.coef_[0]).max() < 0.08
    assert logistic.params["const"] == pytest.approx(float(odds.intercept_[0]), abs=0.05)
    # Predictions are not limited to the ranges that the noise was spent on.
    far = pd.DataFrame({name: [6.0 * (name == "x0")] for name in COVARIATES})
    assert fit.predict(far)[0] == pytest.approx(fit.params["const"] + 6.0 * fit.params["x0"], rel=1e-9)


def test_rare_events_are_explained_through_moments_too(tmp_path: Path) -> None:
    """3 % events: least squares knows how little they vary, so that chance and signal are weighed on one scale."""
    table, rng = related_table(6000, seed=4), np.random.default_rng(4)
    eta = -3.8 + 0.45 * table["x0"] + 0.45 * table["x4"]
    table["event"] = np.where(rng.random(len(table)) < expit(eta), "yes", "no")
    assert 0.02 < (table["event"] == "yes").mean() < 0.05
    with selection_federation(tmp_path, table, seed=7) as parties:
        asked = Select(family="binomial", response="event", columns=COVARIATES, solver="moments")
        assert set(asked.fit(parties).support) == {"x0", "x4"}


def test_standardised_and_clipped_moments_give_back_the_coefficients(parties: Federation) -> None:
    """Without noise, on pooled records: scales from exact counts, rows clipped here, least squares from sklearn.

    60,000 Gaussian records. The correction for clipping leaves 0.4 % of the largest coefficient (its simulation has
    40,000 draws); without it 1.1 to 1.7 % are missing.
    """
    table = related_table(60_000, seed=1)
    for family, response in (("gaussian", "wage"), ("binomial", "event")):
        asked = Select(
            family=family,  # type: ignore[arg-type]
            response=response,
            columns=COVARIATES,
            epsilon=1.0,
            penalty="lasso",
            lambdas=(1e-5,),
        )
        declared = path_from_moments(asked, parties).source
        assert isinstance(declared, ScaledMoments)
        closer = {party: 0.85 * bound for party, bound in declared.bounds.items()}
        procedure = path_from_moments(replace(asked, clip=closer), parties)
        shape = procedure.source
        assert isinstance(shape, ScaledMoments)
        own = {one.column: shape.facts.column(one.column) for one in shape.features}
        encoded = {name: one.encode(table[name]) for name, one in own.items()}
        counts = {}
        for name, one in own.items():
            if one.discrete:
                counts[name] = np.bincount(encoded[name], minlength=2).astype(float)
            else:
                leaves = np.histogram(encoded[name], bins=1024, range=(one.lower, one.upper))[0]
                counts[name] = dyadic_counts(leaves).astype(float)
        standard = shape.standard(counts)
        lengths = {}
        for party in shape.columns:
            mine = [one.within(*standard[one.name]) for one in shape.features if one.party == party]
            scaled = np.column_stack([(encoded[one.column] - one.centre) / one.half / NORM_REACH for one in mine])
            lengths[party] = cells_of_lengths(np.clip(scaled, -1, 1)).astype(float)
        final = shape.final(standard, lengths)
        known = [one.within(*final[one.name]) for one in shape.features]
        rows = np.clip(np.column_stack([(encoded[one.column] - one.centre) / one.half for one in known]), -1, 1)
        places = {party: [one.party == party for one in known] for party in shape.columns}
        for party, mine in places.items():
            length = np.sqrt((rows[:, mine] ** 2).sum(axis=1))
            assert 0.7 < (length <= shape.bounds[party]).mean() < 1  # some rows are clipped, most are not
            rows[:, mine] *= np.minimum(1, shape.bounds[party] / length)[:, None]
        whole = np.column_stack([np.ones(len(rows)), rows])
        moments = MomentsResult(
            n=len(rows),
            parties=tuple(shape.columns),
            presence="ignore",
            features=tuple(known),
            patterns=((True,) * 3,),
            entries=(("1", *(one.name for one in known)),),
            grams=(whole.T @ whole,),
            noise_sd=1e-9,
            simulated=True,
        )
        found = {}
        for name, clipped in (("corrected", shape.clipped(final)), ("not", None)):
            fitted = procedure.fitted(moments, clipped)
            scale = fitted.scale[1] / np.array([one.half for one in fitted.features])
            at = [[one.name for one in fitted.features].index(name) for name in COVARIATES]
            found[name] = (fitted.slopes[0] * scale)[at]
        if family == "gaussian":
            exact = LinearRegression().fit(table[list(COVARIATES)], table["wage"]).coef_
        else:
            exact = LogisticRegression(C=np.inf).fit(table[list(COVARIATES)], table["event"]).coef_[0]
        size = np.abs(exact).max()
        assert np.abs(found["corrected"] - exact).max() < 0.008 * size
        assert np.abs(found["not"] - exact).max() > 2 * np.abs(found["corrected"] - exact).max()


@pytest.mark.parametrize(("s", "mean"), [(0.3, 0.5), (1.0, 0.2), (3.0, 0.6), (6.0, 0.9)])
def test_log_odds_of_a_gaussian_predictor(s: float, mean: float) -> None:
    """Oracle: adaptive quadrature of both equations at the solution."""
    centre = brentq(lambda a: quad(lambda z: expit(a + s * z) * norm.pdf(z), -9, 9)[0] - mean, -60, 60)
    bend = quad(lambda z: expit(centre + s * z) * expit(-centre - s * z) * norm.pdf(z), -9, 9, limit=200)[0]
    factor, found = log_odds(4 * s * bend, mean)
    assert factor * 4 * bend == pytest.approx(1.0, rel=1e-6)
    assert found == pytest.approx(centre, abs=1e-6)


def test_moments_without_noise_give_the_taylor_surrogate_for_a_binary_response(
    table: pd.DataFrame, parties: Federation
) -> None:
    """Least squares of 2 (2y - 1) with weight 1/4, on pooled records, then scaled to log-odds."""
    x, s = standardised(table), 2 * (2 * numbers(table, "binomial") - 1)
    lam = 0.05
    fit = Select(
        family="binomial", penalty="lasso", response="event", columns=COVARIATES, solver="moments", lambdas=(lam,)
    ).fit(parties)
    solution = pooled_lasso("gaussian", x, s, np.full(9, 4 * lam))
    spread = table[list(COVARIATES)].std(ddof=0).to_numpy()
    factor, centre = log_odds(float(np.std(x @ solution[1:])), float(numbers(table, "binomial").mean()))
    np.testing.assert_allclose(fit.path.iloc[0, 1:].to_numpy() * spread, factor * solution[1:], atol=2e-5)
    middle = fit.path.iloc[0, 0] + table[list(COVARIATES)].mean().to_numpy() @ fit.path.iloc[0, 1:].to_numpy()
    assert middle == pytest.approx(centre, abs=1e-5)


# --- what is refused ------------------------------------------------------------------------------------------


def test_refusals_name_the_cure(parties: Federation) -> None:
    for bad, error, reason in [
        (Select(family="binomial", response="wage"), SchemaError, "binary"),
        (Select(response="wage", columns=("wage",)), BadArguments, "no covariate"),
        (Select(response="wage", columns=("x0", "x2"), solver="newton"), UnsafeRequest, "masking='plain'"),
    ]:
        with pytest.raises(error, match=reason):
            parties.plan(bad)
    for options, reason in [
        ({"family": "poisson", "epsilon": 1.0}, "Synthesize"),
        ({"epsilon": 1.0, "solver": "newton"}, "cannot be private"),
        ({"criterion": "cv", "solver": "moments", "family": "binomial"}, "cross-validation from moments"),
        ({"criterion": "cv", "epsilon": 1.0}, "cross-validation from moments"),
        ({"missing": "complete-case", "presence": "secret"}, "presence='known'"),
        ({"lambdas": (0.1, 0.2)}, "fall"),
        ({"clip": {"bank": 1.0}}, "without epsilon"),
        ({"penalty": "ridge"}, "penalty"),
        ({"family": "gamma"}, "family"),
        ({"tolerance": 0.0}, "tolerance"),
        ({"folds": 1}, "folds"),
        ({"solver": "magic"}, "solver"),
        ({"solver": "admm"}, "solver"),
        ({"folds": 3}, "criterion"),
        ({"response": 7}, "response"),
    ]:
        with pytest.raises(BadArguments, match=reason):
            Select(**{"response": "wage", **options})  # type: ignore[arg-type]


def test_run_folder_and_options(table: pd.DataFrame, parties: Federation) -> None:
    asked = Select(response="wage", columns=COVARIATES, penalty="mcp", n_lambdas=12)
    fit, run = parties.run(asked)
    plain = json.loads((run.path / "result.json").read_text())
    assert plain["params"] == pytest.approx(fit.params.to_dict())
    assert set(plain["support"]) == set(fit.support) == {"x0", "x1", "x4", "x7"}
    assert (run.path / "summary.txt").read_text() == fit.summary() + "\n"
    assert all(len(line) <= 94 for line in fit.summary().splitlines())
    assert len(pd.read_csv(run.path / "path.csv")) == len(fit.lambdas)
    described = RunFolder.open(run.path).job
    assert CATALOGUE.make(described["method"], described["options"]) == asked
    assert fit.at(fit.lambda_).to_dict() == fit.params.to_dict()


def test_categories_become_indicators(tmp_path: Path) -> None:
    """A categorical covariate at one party; the selected indicator is the pooled one's sign and size."""
    table = related_table(300, seed=6)
    rng = np.random.default_rng(0)
    table["sector"] = rng.choice(["farming", "trade", "mining"], 300)
    table["wage"] = np.clip(table["wage"] + 6 * (table["sector"] == "mining"), -10, 30)
    columns = Columns(
        [
            *(Column(name=name, kind="continuous", lower=-6.0, upper=6.0) for name in ("x0", "x4")),
            Column(name="sector", kind="categorical", categories=("farming", "trade", "mining")),
            Column(name="wage", kind="continuous", lower=-10.0, upper=30.0),
        ]
    )
    held = {"employer": ["wage"], "a": ["x0"], "b": ["x4"], "c": ["sector"]}
    with Federation.local(
        {p: table[["id", *names]] for p, names in held.items()},
        key="id",
        columns=columns,
        allow=ALLOW,
        home=tmp_path / "home",
        runs=tmp_path / "runs",
    ) as parties:
        fit = Select(response="wage", penalty="mcp").fit(parties)
    assert "sector[mining]" in fit.support
    assert fit.params["sector[mining]"] == pytest.approx(6, abs=1.5)
