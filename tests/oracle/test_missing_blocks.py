"""What selection, components and classifiers say about records that lack a block, against what they do with them.

Each statement is held against behaviour: the fit is the same when what the statement leaves out is changed or taken
away, equals an independent fit of what it says is used, and another statement's fit is a different one.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from numpy.typing import NDArray
from scipy.optimize import minimize
from scipy.special import expit

from colonnade.federation.coordinator import Federation
from colonnade.models.classify import Classify
from colonnade.models.glm.weights import complete_weights
from colonnade.models.pca import PCA
from colonnade.models.sparse.select import PathOptions, Select
from colonnade.papers.sqm.logistic import SQMLogistic
from colonnade.papers.vfl_glm_vs.method import VFLGLMVS
from support.gaps import pairwise_covariance
from support.selection import COLUMNS, HELD, related_table, selection_federation
from support.small import committee_of

Array = NDArray[np.float64]
COVARIATES = ("x0", "x4", "x7")
COMPLETE = "records that every party of the model has are used"
EM = "by EM"
PAIRS = "that of the records that have both"
ZEROS = "counts as zeros"
LAMBDA = 0.05
N = 300


def incomplete(n: int = N, seed: int = 3) -> tuple[pd.DataFrame, dict[str, NDArray[np.bool_]]]:
    """The bank lacks records of high wages, so complete records are no sample of all. The clinic lacks every fifth; the
    employer, which has the response, lacks every seventh that the clinic has."""
    table = related_table(n, seed=seed)
    rng = np.random.default_rng(seed)
    high = table["wage"].to_numpy() > table["wage"].median()
    clinic = np.arange(n) % 5 != 0
    there = {
        "employer": (np.arange(n) % 7 != 0) | ~clinic,
        "bank": ~(high & (rng.random(n) < 0.7)),
        "clinic": clinic,
    }
    return table, there


def federation(path: Path, table: pd.DataFrame, there: dict[str, NDArray[np.bool_]], **options: Any) -> Federation:
    blocks = {party: table.loc[there[party], ["id", *names]] for party, names in HELD.items()}
    return selection_federation(path, table, blocks=blocks, **options)


def fitted(path: Path, asked: PathOptions, table: pd.DataFrame, there: dict[str, Any], **options: Any) -> Array:
    with federation(path, table, there, **options) as parties:
        return asked.fit(parties).path.to_numpy()


def changed(table: pd.DataFrame, rows: NDArray[np.bool_], names: list[str]) -> pd.DataFrame:
    """Other values of these columns in these rows, within their domains."""
    other = table.copy()
    other.loc[rows, names] = other.loc[rows, names] * 0.3 + 1.0
    return other


def asked(**options: Any) -> Select:
    return Select(response="wage", columns=COVARIATES, penalty="lasso", lambdas=(LAMBDA,), **options)


BY_WAGE: dict[str, Any] = {
    "response": "wage",
    "columns": COVARIATES,
    "penalty": "lasso",
    "lambdas": (LAMBDA,),
    "solver": "newton",
}
BY_EVENT = {**BY_WAGE, "response": "event", "family": "binomial", "lambdas": (0.02,), "tolerance": 1e-4}
ROUNDS: dict[str, PathOptions] = {
    "newton": Select(**BY_WAGE, missing="complete-case"),
    "cv": Select(**BY_WAGE, missing="complete-case", criterion="cv", folds=2, tolerance=1e-4),
    "binomial": Select(**BY_EVENT, missing="complete-case"),
    "admm": VFLGLMVS(response="wage", columns=COVARIATES, penalty="lasso", lambdas=(LAMBDA,), tolerance=1e-2),
}


def test_by_default_rounds_weigh_complete_records(tmp_path: Path) -> None:
    """The bank has records in which x1 and the event go together, so that complete cases choose x1, which explains
    nothing. The weighted lasso is scipy's."""
    n, rng = 2500, np.random.default_rng(5)
    table = related_table(n, seed=5)
    eta = 0.3 + 0.9 * table["x0"] + 0.7 * table["x4"] - 0.6 * table["x7"]
    event = rng.random(n) < expit(eta)
    table["event"] = np.where(event, "yes", "no")
    there = {party: np.ones(n, dtype=bool) for party in HELD}
    there["bank"] = rng.random(n) < expit(0.8 + 1.2 * np.where(event, 1, -1) * table["x1"])
    there["clinic"] = rng.random(n) < 0.8
    names = ("x0", "x1", "x3", "x4", "x6", "x7")
    options: dict[str, Any] = {"response": "event", "family": "binomial", "columns": names, "tolerance": 1e-4}
    with federation(tmp_path, table, there) as parties:
        path = {"n_lambdas": 6, "ratio": 0.05}
        chosen = Select(**options, **path).fit(parties)
        alone = Select(**options, **path, missing="complete-case").fit(parties)
        lasso = Select(**{**options, "tolerance": 1e-6}, penalty="lasso", lambdas=(0.02,)).fit(parties)
        plan = parties.plan(Select(**options, **path))
    assert set(chosen.support) == {"x0", "x4", "x7"}
    assert "x1" in alone.support
    complete = there["bank"] & there["clinic"]
    own, present = table[["x0", "x1"]].assign(y=event), np.column_stack([there["bank"], there["clinic"]])
    fitted = complete_weights(own.to_numpy(float), 2, present, family="binomial", conditional=True)
    v = fitted.weights[complete] / fitted.weights.sum()
    x, y = table.loc[complete, list(names)].to_numpy(), event[complete]
    scale = x.std(axis=0)

    def objective(z: Array) -> float:
        predictor = z[0] + x @ (z[1:7] - z[7:])
        return float(v @ (np.logaddexp(0, predictor) - y * predictor) + 0.02 * scale @ (z[1:7] + z[7:]))

    bounds = [(None, None)] + [(0.0, None)] * 12
    least = minimize(objective, np.full(13, 0.1), bounds=bounds, options={"ftol": 1e-15, "maxfun": 100_000}).x
    np.testing.assert_allclose(lasso.params, [least[0], *(least[1:7] - least[7:])], atol=2e-4)
    assert f"{complete.sum():,} complete records, weighed to stand for 2,500" in chosen.summary()
    assert "weighed so that they stand for those that lack a block" in plan.missing_data
    assert "can work these weights out" in str(plan)
    assert "times the weight of a record" in str(plan.to_dict())


@pytest.mark.parametrize("name", ROUNDS)
def test_rounds_use_complete_records_only(name: str, tmp_path: Path) -> None:
    """Incomplete records change nothing: not their values, and not their absence."""
    method = ROUNDS[name]
    assert COMPLETE in method.missing_data()
    table, there = incomplete()
    complete = there["employer"] & there["bank"] & there["clinic"]
    found = fitted(tmp_path / "all", method, table, there)
    other = changed(table, ~complete, ["x0", "x4", "x7", "wage"])
    np.testing.assert_allclose(fitted(tmp_path / "changed", method, other, there), found, atol=1e-9)
    alone = dict.fromkeys(HELD, np.ones(int(complete.sum()), dtype=bool))
    np.testing.assert_allclose(fitted(tmp_path / "alone", method, table[complete], alone), found, atol=1e-6)
    worse = changed(table, complete & (np.arange(N) % 3 == 0), ["x4"])
    assert np.abs(fitted(tmp_path / "worse", method, worse, there) - found).max() > 1e-3


def test_exact_moments_use_every_record_that_has_the_response(tmp_path: Path) -> None:
    """By EM: incomplete records with the response count, those without it do not. And where what is missing depends on
    the response alone, the slopes are near those of all records, while those of complete records are not."""
    method = asked()
    assert EM in method.missing_data()
    table, there = incomplete()
    found = fitted(tmp_path / "all", method, table, there)
    without = changed(table, ~there["employer"], ["x4", "x7"])
    np.testing.assert_allclose(fitted(tmp_path / "without", method, without, there), found, atol=1e-5)
    lacking = changed(table, there["employer"] & ~there["bank"], ["x7"])
    assert np.abs(fitted(tmp_path / "lacking", method, lacking, there) - found).max() > 1e-2
    table, there = incomplete(6000)
    there = {**there, "employer": np.ones(6000, dtype=bool), "clinic": np.ones(6000, dtype=bool)}
    every = dict.fromkeys(HELD, np.ones(6000, dtype=bool))
    truth = fitted(tmp_path / "truth", method, table, every)
    em = fitted(tmp_path / "em", method, table, there)
    complete = fitted(tmp_path / "complete", asked(missing="complete-case"), table, there)
    by_rounds = fitted(tmp_path / "rounds", asked(solver="newton", missing="complete-case"), table, there)
    np.testing.assert_allclose(complete, by_rounds, atol=1e-5)
    assert np.abs(em - truth).max() < 0.4 * np.abs(complete - truth).max()


def test_cross_validation_from_moments_uses_records_that_lack_a_block(tmp_path: Path) -> None:
    method = asked(criterion="cv", folds=2)
    assert EM in method.missing_data()
    table, there = incomplete()

    def scores(name: str, own: pd.DataFrame) -> Array:
        with federation(tmp_path / name, own, there, seed=4) as parties:
            return method.fit(parties).scores

    found = scores("all", table)
    without = changed(table, ~there["employer"], ["x4", "x7"])
    np.testing.assert_allclose(scores("without", without), found, rtol=1e-4)
    lacking = changed(table, there["employer"] & ~there["bank"], ["x7"])
    assert np.abs(scores("lacking", lacking) / found - 1).max() > 1e-2


Centres = dict[str, float]
OWNERS = dict(zip((*COVARIATES, "wage"), ("employer", "bank", "clinic", "employer"), strict=True))
MIDDLES: Centres = {name: (COLUMNS[name].lower + COLUMNS[name].upper) / 2 for name in OWNERS}
"""What exact moments are computed about: the middle of the declared range."""


def with_holes(
    table: pd.DataFrame, there: dict[str, NDArray[np.bool_]], centres: Centres, hole: float = np.nan
) -> Array:
    """Columns about their centres, in units of half their declared ranges; `hole` where a party lacks the record."""
    columns = []
    for name, party in OWNERS.items():
        half = (COLUMNS[name].upper - COLUMNS[name].lower) / 2
        columns.append(np.where(there[party], (table[name] - centres[name]) / half, hole))
    return np.column_stack(columns)


def pairwise(table: pd.DataFrame, there: dict[str, NDArray[np.bool_]], centres: Centres = MIDDLES) -> Array:
    """The covariance of available cases: over the records that have both columns."""
    values = with_holes(table, there, centres)
    mean = np.nanmean(values, axis=0)
    return np.asarray(averages(values) - np.outer(mean, mean))


def zeroed(table: pd.DataFrame, there: dict[str, NDArray[np.bool_]], centres: Centres = MIDDLES) -> Array:
    return np.cov(with_holes(table, there, centres, hole=0.0).T, bias=True)


def averages(values: Array) -> Array:
    """Second moments: covariances over the records that have both, and means over those that have each."""
    table = pd.DataFrame(values)
    return np.asarray(pairwise_covariance(table) + np.outer(table.mean(), table.mean()))


def least_squares(covariance: Array) -> Array:
    """Slopes in units of the columns, from a covariance of features."""
    slopes = np.linalg.solve(covariance[:3, :3], covariance[:3, 3])
    half = np.array([(COLUMNS[name].upper - COLUMNS[name].lower) / 2 for name in OWNERS])
    return np.asarray(slopes * half[3] / half[:3])


UNPENALISED: dict[str, Any] = {"response": "wage", "columns": COVARIATES, "penalty": "lasso", "lambdas": (1e-6,)}


@pytest.mark.parametrize(("presence", "statement"), [("secret", PAIRS), ("ignore", ZEROS)])
def test_other_exact_moments_are_those_of_pairs_or_of_zeros(
    presence: Any, statement: str, tmp_path: Path, engine: str
) -> None:
    """Oracle: the covariance by numpy, least squares from it."""
    method = Select(presence=presence, **UNPENALISED)
    assert statement in method.missing_data()
    table, there = incomplete()
    found = fitted(tmp_path, method, table, there, **committee_of(engine))[0, 1:]
    expected = {"secret": pairwise, "ignore": zeroed}
    np.testing.assert_allclose(found, least_squares(expected[presence](table, there)), atol=1e-4)
    other = expected["ignore" if presence == "secret" else "secret"]
    # The two differ by 0.039 here: 390 times what is tolerated above.
    assert np.abs(found - least_squares(other(table, there))).max() > 0.02


@pytest.mark.parametrize(
    ("engine", "presence"),
    [*(("holders", presence) for presence in (None, "secret", "known", "ignore")), ("pair", None), ("pair", "ignore")],
)
def test_private_moments_are_those_of_pairs_or_of_zeros(presence: Any, tmp_path: Path, engine: str) -> None:
    """With epsilon far above any use the noise is small: the fit is near that of its statement, and far from the other.
    The default is the mask as a secret, and not EM."""
    method = Select(presence=presence, epsilon=1e5, **UNPENALISED)
    statement, own, other = (ZEROS, zeroed, pairwise) if presence == "ignore" else (PAIRS, pairwise, zeroed)
    assert statement in method.missing_data()
    table, there = incomplete(3000)
    found = fitted(tmp_path, method, table, there, seed=5, **committee_of(engine))[0, 1:]
    # The releases of step 1 put the zero of each feature at the median of the records that its party has.
    medians = {name: float(table.loc[there[party], name].median()) for name, party in OWNERS.items()}
    distance = np.abs(found - least_squares(own(table, there, medians))).max()
    assert distance < 0.25 * np.abs(found - least_squares(other(table, there, medians))).max()


def test_a_private_binomial_has_no_rounds(tmp_path: Path) -> None:
    """Its statement is that of its moments, and an incomplete record counts."""
    method = Select(
        response="event", family="binomial", columns=COVARIATES, penalty="lasso", lambdas=(1e-6,), epsilon=1e5
    )
    assert PAIRS in method.missing_data()
    table, there = incomplete(1500)
    found = fitted(tmp_path / "all", method, table, there, seed=5)
    other = changed(table, there["employer"] & ~there["bank"], ["x7"])
    assert np.abs(fitted(tmp_path / "changed", method, other, there, seed=5) - found).max() > 0.05


@pytest.mark.parametrize(("presence", "statement"), [("secret", PAIRS), ("known", PAIRS), ("ignore", ZEROS)])
def test_components_and_classifiers(presence: Any, statement: str, tmp_path: Path, engine: str) -> None:
    """Changing an absent value changes nothing; the second moments are those of pairs, or with zeros."""
    table, there = incomplete()
    components = PCA(n_components=2, epsilon=None, columns=COVARIATES, presence=presence, gamma=2**20, centre=False)
    classifier = Classify(response="event", columns=COVARIATES, epsilon=None, presence=presence, gamma=2**20)
    assert statement in components.missing_data()
    assert components.missing_data() == classifier.missing_data()
    with federation(tmp_path, table, there, **committee_of(engine)) as parties:
        found = components.fit(parties)
        model = classifier.fit(parties)
    hole = 0.0 if presence == "ignore" else np.nan
    event = np.where(there["employer"], np.where(table["event"] == "yes", 1.0, -1.0), hole)
    values = np.column_stack([np.ones(N), with_holes(table, there, MIDDLES, hole)[:, :3], event])
    second = averages(values)
    variances = np.linalg.eigvalsh(second[1:4, 1:4])[::-1][:2]
    np.testing.assert_allclose(found.explained_variance_, variances, rtol=1e-4)
    slopes = np.linalg.solve(second[:4, :4], 2 * second[:4, 4])[1:]
    order = [model.feature_names_.index(name) for name in COVARIATES]
    np.testing.assert_allclose(model.coef_[0, order], slopes, atol=1e-3)


def test_minibatches_take_an_absent_block_as_zeros() -> None:
    """`test_sqm_logistic` checks the gradients of a party that lacks records; the statement is the same as that of
    presence ignored."""
    said = SQMLogistic(response="event").missing_data()
    assert said == Classify(response="event", presence="ignore").missing_data()
    assert ZEROS in said
