"""Formulas against formulaic and statsmodels on the pooled table."""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from formulaic import Formula

from colonnade.data.column import Column, Columns
from colonnade.errors import BadArguments, ColonnadeError, SchemaError, TooFewHolders, UnknownColumn
from colonnade.federation.coordinator import Federation
from colonnade.federation.facts import PublicFacts
from colonnade.models.linear.formula import FormulaDesign, FormulaFit, parsed
from colonnade.models.linear.regress import Regress
from support.small import computing_by

COLUMNS = Columns(
    [
        Column(name="age", kind="continuous", lower=0.0, upper=128.0),
        Column(name="sbp", kind="continuous", lower=0.0, upper=256.0),
        Column(name="smoker", kind="binary", categories=("no", "yes")),
        Column(name="bmi", kind="continuous", lower=0.0, upper=64.0, missing=True),
        Column(name="region", kind="categorical", categories=("north", "south", "west")),
        Column(name="grade", kind="ordinal", categories=("low", "mid", "high")),
    ]
)
HELD = {"clinic": ["age", "sbp"], "registry": ["smoker", "bmi"], "bank": ["region", "grade"]}
FACTS = PublicFacts(n=400, columns={party: Columns(COLUMNS[name] for name in names) for party, names in HELD.items()})
FULL = "sbp ~ age * region + bmi * smoker + C(region):smoker + I(age * bmi - bmi**2) + grade"


def people(n: int = 400) -> pd.DataFrame:
    """One table with all columns on a grid that quantisation keeps, and some empty cells."""
    rng = np.random.default_rng(5)
    table = pd.DataFrame(
        {
            "id": [f"P{number:04d}" for number in range(n)],
            "age": rng.integers(20, 90, n).astype(float),
            "smoker": rng.choice(["no", "yes"], n),
            "bmi": rng.integers(30, 80, n) / 2.0,
            "region": rng.choice(["north", "south", "west"], n),
            "grade": rng.choice(["low", "mid", "high"], n),
        }
    )
    noise = rng.integers(-10, 11, n)
    effect = 0.5 * table["age"] + 2 * (table["smoker"] == "yes") * table["bmi"] - 3 * (table["region"] == "west")
    table["sbp"] = np.round(90 + effect + noise)
    table.loc[rng.random(n) < 0.05, "bmi"] = np.nan
    return table


def coded(table: pd.DataFrame) -> pd.DataFrame:
    """The pooled table as formulaic gets it: binary and ordinal columns as their codes."""
    return table.assign(
        smoker=(table["smoker"] == "yes").astype(float),
        grade=table["grade"].map({"low": 0.0, "mid": 1.0, "high": 2.0}),
        region=pd.Categorical(table["region"], ["north", "south", "west"]),
    )


def split(table: pd.DataFrame) -> dict[str, pd.DataFrame]:
    """Three parties, of which each lacks some records."""
    rng = np.random.default_rng(6)
    return {
        party: table.loc[rng.random(len(table)) < 0.85, ["id", *names]].reset_index(drop=True)
        for party, names in HELD.items()
    }


@pytest.fixture(scope="module")
def federation(tmp_path_factory: pytest.TempPathFactory, engine: str) -> Iterator[Federation]:
    folder: Path = tmp_path_factory.mktemp("formula")
    allow = ["exact-polynomial", "exact-moments", "presence"]
    given = computing_by(engine, split(people()))
    with Federation.local(key="id", columns=COLUMNS, home=folder, allow=allow, **given) as opened:
        yield opened


def complete(table: pd.DataFrame, others: Sequence[str] = ("registry", "bank")) -> pd.DataFrame:
    """The records that the clinic and these others have, with no empty cell there."""
    blocks = split(table)
    joined = blocks["clinic"]
    for party in others:
        joined = joined.merge(blocks[party], on="id")
    return table[table["id"].isin(joined.dropna()["id"])].reset_index(drop=True)


@pytest.mark.parametrize(
    "formula",
    [
        FULL,
        "sbp ~ age + bmi",
        "sbp ~ age:region",
        "sbp ~ region:smoker + age",
        "sbp ~ I(age**2) + region * smoker * bmi",
        "sbp ~ {2 * age - bmi} + C(region)",
    ],
)
def test_the_design_is_formulaics(formula: str) -> None:
    table = people().dropna()
    design = FormulaDesign.of(parsed(formula), FACTS)
    expected = Formula(formula).get_model_matrix(coded(table)).rhs
    ours = design.evaluated(table)
    names = [name.replace("C(region)", "region").replace("[T.", "[") for name in expected.columns]
    assert ["Intercept", *list(design.design)[1:]] == names
    np.testing.assert_allclose(ours[:, :-1], expected.to_numpy(), rtol=0, atol=1e-9)
    np.testing.assert_array_equal(ours[:, -1], table["sbp"])


def finest(engine: str) -> int:
    """The words of pairs hold gamma^k n of a product of k factors up to 2^58. The table is on the grid of both."""
    return 2**12 if engine == "holders" else 2**7


TWO = "sbp ~ age * bmi + bmi * smoker + I(age * bmi - bmi**2)"
"""Of two parties' columns: what pairs compute."""


def test_sums_of_products_across_parties_are_the_pooled_ones(federation: Federation, engine: str) -> None:
    formula, others = (FULL, ("registry", "bank")) if engine == "holders" else (TWO, ("registry",))
    method = Regress.from_formula(formula, gamma=finest(engine))
    procedure = method.procedure(federation.facts, federation.roster)
    assert isinstance(procedure, FormulaFit)
    result, _ = federation.run(method)
    records = complete(people(), others)
    values = FormulaDesign.of(parsed(formula), federation.facts).evaluated(records)
    assert result.nobs == len(records)
    keep = values[:, 1:]
    np.testing.assert_allclose(result.mu, keep.mean(axis=0), rtol=1e-12)
    np.testing.assert_allclose(result.sigma, np.cov(keep.T, bias=True), rtol=1e-8, atol=1e-8)


def test_the_fit_is_least_squares_on_complete_records(federation: Federation, engine: str) -> None:
    import statsmodels.api as sm

    covariates, others = "age + bmi * smoker + C(region)", ["registry", "bank"]
    if engine == "pair":
        with pytest.raises(TooFewHolders, match="products of columns of at most two parties"):
            federation.plan(Regress.from_formula(f"sbp ~ {covariates}"))
        covariates, others = "age + bmi * smoker", ["registry"]
    fit = Regress.from_formula(f"sbp ~ {covariates}", gamma=finest(engine)).fit(federation)
    records = complete(people(), others)
    design = Formula(covariates).get_model_matrix(coded(records))
    expected = sm.OLS(records["sbp"].to_numpy(), design.to_numpy()).fit()
    np.testing.assert_allclose(fit.params, expected.params, rtol=1e-6)
    np.testing.assert_allclose(fit.bse, expected.bse, rtol=1e-6)
    assert fit.rsquared == pytest.approx(expected.rsquared)
    assert fit.loglik == pytest.approx(expected.llf, rel=1e-6)
    np.testing.assert_allclose(fit.predict(records), expected.fittedvalues, rtol=1e-6)
    assert "bmi:smoker" in fit.params.index
    assert "registry" in fit.summary()


def test_a_formula_without_products_is_the_regression_of_its_columns(federation: Federation) -> None:
    named = Regress(response="sbp", columns=("age", "bmi", "region"), missing="em").fit(federation)
    formula = Regress.from_formula("sbp ~ age + bmi + C(region)", missing="em").fit(federation)
    # The response's rounding draws anew, by 1/gamma.
    np.testing.assert_allclose(named.params, formula.params, rtol=1e-3, atol=1e-3)


def test_every_option_can_go_with_a_formula() -> None:
    own = inspect.signature(Regress.from_formula).parameters
    assert set(own) == {*Regress.declared()} - {"response", "columns"}
    for name, declared in Regress.declared().items():
        assert name in ("response", "columns", "formula") or own[name].default == declared.default, name


def test_a_logistic_formula_is_the_regression_of_its_columns(federation: Federation, engine: str) -> None:
    if engine == "pair":
        with pytest.raises(TooFewHolders, match="multiplies shares more than once"):
            federation.plan(Regress.from_formula("smoker ~ age", family="binomial"))
        return
    method = Regress.from_formula("smoker ~ age + C(region)", family="binomial")
    named = Regress(response="smoker", columns=("age", "region"), family="binomial")
    ours, theirs = federation.plan(method), federation.plan(named)
    assert [stage.to_dict() for stage in ours.stages] == [stage.to_dict() for stage in theirs.stages]
    with pytest.raises(BadArguments, match="fitted by least squares, not with family='binomial'"):
        Regress.from_formula("smoker ~ age:bmi", family="binomial")


def test_noise_is_counted_in_cost_and_errors(federation: Federation, engine: str) -> None:
    gamma = finest(engine)
    method = Regress.from_formula("sbp ~ age + age:smoker", epsilon=1000.0, gamma=gamma)
    plan = federation.plan(method)
    assert "1e+03" in str(plan.total()) or "1000" in str(plan.total())
    exact = federation.plan(Regress.from_formula("sbp ~ age + age:smoker", gamma=gamma))
    assert any("exact" in name for name in exact.unbounded())
    noisy = method.fit(federation)
    clean = Regress.from_formula("sbp ~ age + age:smoker", gamma=gamma).fit(federation)
    distance = (noisy.params - clean.params) / noisy.bse
    assert np.abs(distance).max() < 5
    assert (noisy.bse > clean.bse * 0.9).all()
    more = federation.plan(Regress.from_formula("sbp ~ age * smoker * bmi", epsilon=1000.0, gamma=gamma))
    few, many = (next(note for note in each.notes if "sums over the records" in note) for each in (plan, more))
    assert few != many


@pytest.mark.parametrize(
    ("formula", "says"),
    [
        ("sbp ~ I(__import__('os').getcwd())", "no polynomial"),
        ("sbp ~ log(age)", "column of its own"),
        ("sbp ~ (age + bmi)**3", "write the products out"),
        ("sbp ~ C(region, contr.sum)", "no polynomial"),
        ("sbp + age ~ bmi", "one column"),
        ("sbp ~ sbp + age", "explain itself"),
        ("age + bmi", "needs one '~'"),
        ("sbp ~ 1", "no covariate"),
        ("sbp ~ I(age**9)", "up to 4"),
        ("sbp ~ a*b*c*d*e*f", "at most 5 factors"),
        ("sbp ~ 3:age", "no column"),
        ("sbp ~ {age.__class__}", "no polynomial"),
        ("sbp ~ " + "+".join(["age"] * 400), "characters"),
    ],
)
def test_what_is_no_formula_of_columns_is_refused(formula: str, says: str) -> None:
    with pytest.raises(BadArguments, match=says.replace("(", r"\(").replace("*", r"\*")):
        Regress.from_formula(formula)


@pytest.mark.parametrize(
    ("formula", "error"),
    [
        ("sbp ~ age * height", UnknownColumn),
        ("sbp ~ C(grade):age", SchemaError),
        ("region ~ age:bmi", SchemaError),
        ("sbp ~ I(region * age)", SchemaError),
        ("sbp ~ 0 + age:bmi", BadArguments),
    ],
)
def test_what_the_columns_do_not_allow_is_refused(
    formula: str, error: type[ColonnadeError], federation: Federation
) -> None:
    with pytest.raises(error):
        federation.plan(Regress.from_formula(formula))


def test_options_with_a_formula() -> None:
    method = Regress.from_formula("sbp ~ age * bmi", gamma=2**16)
    assert method.response == "sbp"
    assert method.reads() == ("age", "bmi", "sbp")
    assert Regress.from_options(method.options()) == method
    for given in ({"columns": ("age",)}, {"response": "bmi"}, {"missing": "mean"}):
        with pytest.raises(BadArguments):
            Regress(formula="sbp ~ age * bmi", **given)  # type: ignore[arg-type]
    with pytest.raises(BadArguments, match="needs a response"):
        Regress()
