"""The simulated data against closed forms, the papers' printed numbers, and independent fits (statsmodels).

Seeds are fixed. Tolerances of 5.5 standard errors (6 where many columns are compared) keep the chance that a correct
simulation would fail, over all comparisons of a test and a fresh seed, below 1e-6 unless a comment says otherwise.
"""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
import statsmodels.api as sm
from pandas.testing import assert_frame_equal
from scipy import stats
from scipy.special import expit

from colonnade.data.simulated import Example, copula_paper, design_matrix, five_institutions
from colonnade.data.simulated.copula_paper import covariances
from colonnade.data.simulated.five_institutions import DRIVERS, MISSING_RATES, PRESENCE_LOG_ODDS
from colonnade.data.simulated.missingness import mar_presence, presence_at_exact_rates
from colonnade.errors import BadArguments

# VFEM paper, Table 1: variables and missing share of each institution.
TABLE_1 = {
    "credit": (12, 0.5365),
    "market": (3, 0.8761),
    "court": (6, 0.9305),
    "commerce": (9, 0.0091),
    "enforcement": (5, 0.9328),
}


@pytest.fixture(scope="module")
def firms() -> Example:
    return five_institutions(20_000, seed=0)


@pytest.fixture(scope="module")
def mixed() -> Example:
    return copula_paper(6_000, seed=3, shuffle="kinds")


EXAMPLES = {
    "firms": lambda: five_institutions(600, seed=5),
    "firms-credit": lambda: five_institutions(600, seed=5, response_holder="credit"),
    "copula-mar": lambda: copula_paper(400, seed=5, missing="mar-complicated"),
    "copula-mcar": lambda: copula_paper(400, seed=5, response="logistic", missing="mcar", rates="table"),
}


@pytest.fixture(scope="module", params=list(EXAMPLES))
def example(request: pytest.FixtureRequest) -> Example:
    return EXAMPLES[request.param]()


def z_of_mean_difference(x: np.ndarray, group: np.ndarray) -> float:
    a, b = x[group], x[~group]
    return float((a.mean() - b.mean()) / np.sqrt(a.var() / a.size + b.var() / b.size))


# --- every example ------------------------------------------------------------------------------------------


def test_blocks_are_the_complete_table_cut_by_presence(example: Example) -> None:
    complete = example.truth.complete.set_index(example.key)
    assert complete.index.is_unique
    names = [name for block in example.blocks.values() for name in block.columns if name != example.key]
    assert sorted(names) == sorted(example.columns)
    for party, block in example.blocks.items():
        found = block.set_index(example.key)
        assert found.index.is_unique
        present = example.truth.presence[party]
        whole = party == example.response_holder == "credit"  # the paper's reading: a row for each firm
        assert set(found.index) == set(present.index if whole else present.index[present])
        common_order = complete.index[complete.index.isin(found.index)]
        assert list(found.index) != list(common_order)
        assert not found.index.is_monotonic_increasing
        filled = found[present[found.index].to_numpy()]
        assert_frame_equal(filled, complete.loc[filled.index, filled.columns], check_dtype=False)


def test_every_value_lies_in_its_declared_domain(example: Example) -> None:
    example.columns.confirmed()
    for block in example.blocks.values():
        for name in block.columns.drop(example.key):
            example.columns[name].encode(block[name])
    assert example.responses == {name: example.columns[name].kind for name in example.responses}
    assert set(example.responses) <= set(example.blocks[example.response_holder].columns)
    assert set(example.organisations) == set(example.blocks)
    assert example.n == len(example.truth.complete)


@pytest.mark.parametrize(
    "draw", [lambda seed: five_institutions(400, seed=seed), lambda seed: copula_paper(300, seed=seed)]
)
def test_a_seed_repeats_everything_and_another_changes_data_but_not_domains(draw) -> None:
    one, again, other = draw(7), draw(7), draw(8)
    for party in one.blocks:
        assert_frame_equal(one.blocks[party], again.blocks[party])
    assert_frame_equal(one.truth.presence, again.truth.presence)
    assert not one.truth.complete.equals(other.truth.complete)
    if one.name == "five_institutions":  # in copula_paper the seed also deals the kinds
        assert one.columns.fingerprint == other.columns.fingerprint


def test_the_complete_table_does_not_depend_on_what_is_missing(firms: Example) -> None:
    for options in ({"missing": "mcar"}, {"missing": None}, {"response_holder": "credit"}):
        assert_frame_equal(five_institutions(20_000, seed=0, **options).truth.complete, firms.truth.complete)
    plain = copula_paper(300, seed=1).truth.complete
    for missing in ("mcar", "mar-simple", "mar-complicated"):
        assert_frame_equal(copula_paper(300, seed=1, missing=missing).truth.complete, plain)


@pytest.mark.parametrize(
    "call",
    [
        lambda: five_institutions(50),
        lambda: five_institutions(1_000, missing="mnar"),
        lambda: five_institutions(1_000, response_holder="court"),
        lambda: copula_paper(100, seed=0, p=101),
        lambda: copula_paper(100, seed=0, p=40, parties=20),
        lambda: copula_paper(100, seed=0, sparsity=1.5),
        lambda: copula_paper(100, seed=0, response="poisson"),
        lambda: copula_paper(100, seed=0, rates="both"),
        lambda: copula_paper(100, seed=0, missing="mar-simple", parties=1),
        lambda: copula_paper(100, seed=0, missing="mar-simple", may_miss=["party9"]),
    ],
)
def test_an_option_out_of_range_is_refused(call) -> None:
    with pytest.raises(BadArguments):
        call()


# --- five institutions --------------------------------------------------------------------------------------


def test_institutions_have_the_columns_of_table_1(firms: Example) -> None:
    assert {party: len(block.columns) - 1 - 2 * (party == "commerce") for party, block in firms.blocks.items()} == {
        party: columns for party, (columns, _) in TABLE_1.items()
    }
    assert {column.kind for column in firms.columns.values()} == {
        "continuous",
        "count",
        "ordinal",
        "binary",
        "categorical",
    }
    assert firms.truth.complete["firm"].str.fullmatch(r"F\d{6}").all()


@pytest.mark.parametrize("missing", ["mar", "mcar"])
@pytest.mark.parametrize("n", [200, 3_333, 20_000])
def test_missing_rates_are_exact_and_somebody_knows_each_firm(missing, n) -> None:
    presence = five_institutions(n, seed=2, missing=missing).truth.presence
    for party, (_, rate) in TABLE_1.items():
        assert abs((~presence[party]).sum() - n * rate) <= 0.5
    assert presence.any(axis=1).all()


def test_complete_cases_are_as_rare_as_in_the_paper() -> None:
    """The paper has 96 of 166,207; independent blocks would give 44. The bounds are +- 5 Poisson deviations of 94."""
    assert 46 <= five_institutions(166_207, seed=0).truth.presence.all(axis=1).sum() <= 142


def test_nothing_is_missing_on_request() -> None:
    example = five_institutions(300, missing=None)
    assert example.truth.presence.to_numpy().all()
    assert all(len(block) == 300 for block in example.blocks.values())


def test_the_papers_response_holder_has_a_row_for_each_firm_and_empty_covariates(firms: Example) -> None:
    example = five_institutions(20_000, seed=0, response_holder="credit")
    credit = example.blocks["credit"]
    assert len(credit) == 20_000
    assert not credit[["profit_growth", "failed"]].isna().to_numpy().any()
    covariates = credit.drop(columns=["firm", "profit_growth", "failed"])
    assert covariates.shape[1] == 12
    assert covariates.isna().any(axis=1).equals(covariates.isna().all(axis=1))
    assert covariates.isna().all(axis=1).sum() == 10_730
    assert not {"profit_growth", "failed"} & set(example.blocks["commerce"].columns)
    assert {name for name, column in example.columns.items() if column.missing} == set(covariates.columns)
    assert_frame_equal(example.truth.presence, firms.truth.presence)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("employees", "inspections"),
        ("capital", "shareholder_contribution"),
        ("liability_ratio", "reports_missed"),
        ("liability_ratio", "penalties"),
        ("findings_open", "penalties"),
        ("reports_missed", "findings_open"),
        ("capital", "fines"),
        ("changes", "reports_missed"),
    ],
)
def test_institutions_are_correlated(firms: Example, one: str, other: str) -> None:
    complete = firms.truth.complete
    assert not any({one, other} <= set(block.columns) for block in firms.blocks.values()), "not a cross-party pair"
    assert 0.1 < complete[one].corr(complete[other]) < 0.5


def test_the_true_equations_are_those_of_the_complete_table(firms: Example) -> None:
    """Oracle: statsmodels' OLS and Logit; the Wald distance to the truth is chi-square under the truth."""
    design = sm.add_constant(firms.truth.design())
    for name, fit in {
        "profit_growth": sm.OLS(firms.truth.complete["profit_growth"], design).fit(),
        "failed": sm.Logit(firms.truth.complete["failed"], design).fit(disp=0),
    }.items():
        equation = firms.truth.equations[name]
        truth = pd.concat([pd.Series({"const": equation.intercept}), equation.coefficients])
        gap = (fit.params - truth).to_numpy()
        distance = gap @ np.linalg.solve(fit.cov_params().to_numpy(), gap)
        assert distance < stats.chi2.ppf(1 - 1e-6, gap.size)
        if name == "profit_growth":
            assert fit.mse_resid == pytest.approx(equation.noise**2, rel=5.5 * np.sqrt(2 / 20_000))
            assert 0.6 < fit.rsquared < 0.7


def test_standardised_coefficients_are_per_standard_deviation(firms: Example) -> None:
    raw = firms.truth.coefficients
    assert len(raw) == 33 + 4 + 4  # 33 numbers, two nominal columns of five categories
    roa = firms.truth.complete["roa"].std(ddof=0)
    assert firms.truth.standardised["roa"] == pytest.approx(raw["roa"] * roa)
    share = (firms.truth.complete["region"] == "west").mean()
    assert firms.truth.standardised["region[west]"] == pytest.approx(raw["region[west]"] * np.sqrt(share * (1 - share)))


def drivers_of(example: Example) -> np.ndarray:
    table = example.truth.complete
    values = {
        "capital": (table["capital"] - 6.2) / 0.7,
        "changes": (table["changes"] - 3.0) / 1.7,
        "east": table["region"] == "east",
        "west": table["region"] == "west",
        "profit_growth": table["profit_growth"] / 0.35,
    }
    return np.column_stack([values[name] for name in DRIVERS]).astype(float)


def test_mar_presence_follows_the_declared_log_odds(firms: Example) -> None:
    """Oracle: statsmodels' Logit of presence on the drivers, among the firms whose drivers are observed."""
    drivers, presence = drivers_of(firms), firms.truth.presence
    known = presence["commerce"].to_numpy()
    for party in ("credit", "market", "court", "enforcement"):
        fit = sm.Logit(presence[party].to_numpy()[known], sm.add_constant(drivers[known])).fit(disp=0)
        assert (np.abs(fit.params[1:] - PRESENCE_LOG_ODDS[party]) < 5.5 * fit.bse[1:]).all()
    assert z_of_mean_difference(drivers[known, 0], presence["credit"].to_numpy()[known]) > 30
    assert z_of_mean_difference(drivers[known, 1], presence["court"].to_numpy()[known]) > 8


def test_mcar_presence_is_unrelated_to_the_drivers() -> None:
    example = five_institutions(20_000, seed=0, missing="mcar")
    for party in example.parties:
        for driver in drivers_of(example).T:
            assert abs(z_of_mean_difference(driver, example.truth.presence[party].to_numpy())) < 5.5


def test_where_the_drivers_are_unobserved_presence_ignores_them() -> None:
    """MAR proper: with a driver this strong, presence among the anchor's lost records would show it."""
    rng = np.random.default_rng(0)
    driver = rng.standard_normal(20_000)
    presence = presence_at_exact_rates(np.column_stack([np.zeros(20_000), 3 * driver]), [0.4, 0.5], rng, anchor=0)
    lost = ~presence[:, 0]
    assert presence[lost, 1].all(), "with two parties, a record that the anchor lacks must be at the other"
    three = presence_at_exact_rates(
        np.column_stack([np.zeros(20_000), 3 * driver, 3 * driver]), [0.4, 0.5, 0.5], rng, anchor=0
    )
    assert np.array_equal((~three).sum(axis=0), [8_000, 10_000, 10_000])
    lost = ~three[:, 0]
    assert abs(z_of_mean_difference(driver, lost)) < 5.5
    assert abs(z_of_mean_difference(driver[lost], three[lost, 1])) < 5.5
    assert z_of_mean_difference(driver[~lost], three[~lost, 1]) < -50


def test_commerce_is_missing_completely_at_random(firms: Example) -> None:
    for driver in drivers_of(firms).T:
        assert abs(z_of_mean_difference(driver, firms.truth.presence["commerce"].to_numpy())) < 5.5
    assert {party: rate for party, (_, rate) in TABLE_1.items()} == MISSING_RATES


# --- the copula paper ---------------------------------------------------------------------------------------


def test_copula_paper_has_the_papers_shape_and_sparsity(mixed: Example) -> None:
    parties = [f"party{k}" for k in range(1, 6)]
    assert mixed.parties == (*parties, "holder")
    assert list(mixed.blocks["holder"].columns) == ["record", "y"]
    local = np.array([(-1) ** j / 3 if j <= 12 else 0.0 for j in range(1, 21)])
    for party in parties:
        names = list(mixed.blocks[party].columns.drop("record"))
        assert len(names) == 20
        assert np.array_equal(mixed.truth.coefficients[names].to_numpy(), local)
    kinds = pd.Series({name: column.kind for name, column in mixed.columns.items() if name != "y"})
    assert kinds.value_counts().to_dict() == {"continuous": 25, "ordinal": 25, "count": 25, "binary": 25}
    assert kinds.groupby(np.arange(100) // 20).nunique().eq(4).all(), "kinds are spread over the parties"


@pytest.mark.parametrize("shuffle", ["columns", "kinds"])
def test_copula_paper_marginals(shuffle) -> None:
    """Oracle: integrals over the marginal mixture 0.4 N(0,1) + 0.3 N(-1,1) + 0.3 N(1,1) on a fine grid."""
    example = copula_paper(5_000, seed=1, shuffle=shuffle)
    u = np.linspace(-12, 12, 24_001)
    density = 0.4 * stats.norm.pdf(u) + 0.3 * stats.norm.pdf(u + 1) + 0.3 * stats.norm.pdf(u - 1)
    density /= density.sum()
    softmax = np.exp(u[:, None] * [-1.0, 0.0, 1.0])
    softmax /= softmax.sum(axis=1, keepdims=True)
    rate = np.maximum(2 + 0.3 * u, 0)
    expected = {
        "ordinal": {c: density @ softmax[:, c - 1] for c in (1, 2, 3)},
        "count": {c: density @ stats.poisson.pmf(c, rate) for c in range(8)},
        "binary": {1: density @ expit(0.5 * u)},
    }
    for name, column in example.columns.items():
        if name == "y":
            continue
        x = example.truth.complete[name].to_numpy()
        if column.kind == "continuous":
            assert abs(x.mean()) < 6 * np.sqrt(1.6 / x.size)
            fourth = density @ u**4
            assert abs(x.var() - 1.6) < 6 * np.sqrt((fourth - 1.6**2) / x.size)
            continue
        for value, chance in expected[column.kind].items():
            assert abs((x == value).mean() - chance) < 6 * np.sqrt(chance * (1 - chance) / x.size)


def test_copula_paper_latent_dependence(mixed: Example) -> None:
    """Oracle: the mixture's covariance sum pi_c (Sigma_c + mu_c mu_c'), seen through the continuous columns."""
    first, second, third = covariances(100, 5)
    assert (first[0, 19], first[0, 20], second[3, 5], third[3, 4], third[3, 5], third[3, 6]) == (
        0.3,
        0.1,
        0.25,
        0.5,
        0.25,
        0,
    )
    expected = 0.4 * first + 0.3 * second + 0.3 * third + 0.6
    at = [j for j in range(100) if mixed.columns[f"x{j + 1:03d}"].kind == "continuous"]
    x = mixed.truth.complete[[f"x{j + 1:03d}" for j in at]].to_numpy()
    products = (x[:, :, None] - x.mean(axis=0)[None, :, None]) * (x - x.mean(axis=0))[:, None, :]
    error = products.mean(axis=0) - expected[np.ix_(at, at)]
    assert (np.abs(error) < 6 * products.std(axis=0) / np.sqrt(len(x))).all()


def test_shuffled_columns_keep_the_covariance_of_the_first_latent_variables() -> None:
    """With shuffle="columns" the continuous columns are the first 25 latent variables in some order.

    Oracle: eigenvalues do not see the order. Largest relative gap over six seeds: 0.03; of the other reading 0.5.
    """
    example = copula_paper(20_000, seed=4)
    names = [name for name, column in example.columns.items() if column.kind == "continuous" and name != "y"]
    found = np.linalg.eigvalsh(example.truth.complete[names].cov().to_numpy())
    first, second, third = covariances(100, 5)
    expected = np.linalg.eigvalsh((0.4 * first + 0.3 * second + 0.3 * third + 0.6)[:25, :25])
    assert np.abs(found / expected - 1).max() < 0.08


@pytest.mark.parametrize("response", ["linear", "logistic"])
def test_copula_paper_responses(response) -> None:
    """Oracle: residuals at the true equation have the declared mean and variance."""
    truth = copula_paper(6_000, seed=2, response=response).truth
    predictor = truth.equations["y"].predictor(truth.design())
    y = truth.complete["y"].to_numpy()
    mean, variance = (
        (predictor, np.ones(6_000))
        if response == "linear"
        else (expit(predictor), expit(predictor) * expit(-predictor))
    )
    standard = (y - mean) / np.sqrt(variance)
    assert abs((y - mean).sum()) < 5.5 * np.sqrt(variance.sum())
    assert abs((standard * predictor).sum()) < 5.5 * np.sqrt((predictor**2).sum())
    assert truth.complete["y"].nunique() == (2 if response == "logistic" else 6_000)
    if response == "linear":
        assert abs(standard.var() - 1) < 5.5 * np.sqrt(2 / 6_000)


@pytest.mark.parametrize(
    ("rates", "complete"),
    [("observed", 0.95 * 0.90 * 0.85 * 0.80 * 0.75), ("missing", 0.05 * 0.10 * 0.15 * 0.20 * 0.25), ("table", 0.95**5)],
)
def test_each_reading_of_the_mcar_rates_gives_its_share_of_complete_cases(rates, complete) -> None:
    example = copula_paper(20_000, seed=6, p=20, missing="mcar", rates=rates)
    found = example.truth.presence.all(axis=1).sum()
    # Exact binomial interval; 0.75 expected cases for "missing" make a normal bound too tight.
    lowest, highest = stats.binom.interval(1 - 1e-6, 20_000, complete)
    assert lowest <= found <= highest
    assert {"observed": 0.436, "missing": 0.0000375, "table": 0.774}[rates] == pytest.approx(complete, rel=2e-3)
    for party in example.parties:
        x = example.truth.complete["y"].to_numpy()
        seen = example.truth.presence[party].to_numpy()
        assert seen.all() or abs(z_of_mean_difference(x, seen)) < 5.5


@pytest.mark.parametrize("complicated", [False, True])
def test_mar_presence_is_the_papers_formula(complicated: bool) -> None:
    """Oracle: the printed formula, record by record, with the same uniform numbers."""
    data = np.random.default_rng(1)
    n, sizes = 300, (3, 2, 4, 2)
    blocks = [data.standard_normal((n, size)) for size in sizes]
    y = data.standard_normal(n)
    may_miss = np.array([True, False, True, True])
    found = mar_presence(blocks, may_miss, np.random.default_rng(9), response=y if complicated else None)
    uniforms = np.random.default_rng(9)
    drawn = {k: uniforms.random(n) for k in (1, 3, 4)}
    for i in range(n):
        missing: dict[int, int] = {}
        for k in (1, 3, 4):
            logit = 1.0 + (-1) ** 2 * sum(blocks[1][i, a - 1] / (2 * a) for a in (1, 2))
            if complicated:
                logit += -y[i] + sum((-1) ** j * missing[j] for j in missing if j < k)
            missing[k] = int(drawn[k][i] < 1 / (1 + np.exp(-logit)))
        assert [not missing.get(k, 0) for k in (1, 2, 3, 4)] == found[i].tolist()


@pytest.mark.parametrize("missing", ["mar-simple", "mar-complicated"])
def test_copula_paper_mar_depends_on_what_is_observed(missing) -> None:
    example = copula_paper(2_000, seed=1, missing=missing, may_miss=["party2", "party4"])
    presence, table = example.truth.presence, example.truth.complete
    assert presence[["party1", "party3", "party5", "holder"]].to_numpy().all()
    block = table[list(example.blocks["party1"].columns.drop("record"))].to_numpy(dtype=float)
    score = block @ (1 / np.arange(1, 21))  # enters the log-odds of missingness with sign (-1)^1
    for party in ("party2", "party4"):
        assert 0 < presence[party].sum() < 2_000
        assert z_of_mean_difference(score, presence[party].to_numpy()) > 5.5
    drawn = copula_paper(200, seed=1, missing=missing).truth.presence[[f"party{k}" for k in range(1, 6)]]
    assert 0 < drawn.all().sum() < 5, "some parties may lack records and some may not"


def test_design_matrix_codes_each_kind(firms: Example) -> None:
    table = firms.truth.complete.head(50)
    design = design_matrix(table, firms.columns, leave_out=["failed"])
    assert "failed" not in design
    assert (design["scale"] == table["scale"].map({"micro": 0, "small": 1, "medium": 2})).all()
    assert (design["region[south]"] == (table["region"] == "south")).all()
    assert not {"region", "region[east]"} & set(design.columns)
    assert (design["employees"] == table["employees"]).all()
