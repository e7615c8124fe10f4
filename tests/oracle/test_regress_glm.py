"""Logistic and Poisson regression over a federation against pooled records.

Oracles: statsmodels' GLM with robust errors where nothing is missing and for complete cases; where blocks are missing,
a weighted fit written here with scipy's optimiser and numerical derivatives.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import statsmodels.api as sm
from numpy.typing import NDArray
from scipy.optimize import root
from scipy.special import expit

from colonnade.data.column import Column, Columns
from colonnade.errors import BadArguments, NotEstimable, SchemaError
from colonnade.federation.coordinator import Federation
from colonnade.models.glm.fit import GeneralizedFit
from colonnade.models.glm.result import GeneralizedRegression
from colonnade.models.glm.weights import complete_weights
from colonnade.models.linear.regress import Regress
from colonnade.models.sparse.select import Select

Array = NDArray[np.float64]
NAMES = ["u", "v", "w", "grade"]
COLUMNS = Columns(
    [
        *(Column(name=name, kind="continuous", lower=-9.0, upper=9.0) for name in ("u", "v", "w")),
        Column(name="grade", kind="ordinal", categories=("C", "B", "A")),
        Column(name="exposure", kind="continuous", lower=-2.0, upper=2.0),
        Column(name="sued", kind="binary", categories=("no", "yes")),
        Column(name="claims", kind="count", lower=0, upper=60),
    ]
)
HELD = {"court": ["u", "sued", "claims"], "bank": ["v", "exposure"], "tax": ["w", "grade"]}
ALLOW = ("presence", "exact-scores")


def table(n: int, seed: int = 0) -> pd.DataFrame:
    """Skewed and discrete covariates of three parties, correlated."""
    rng = np.random.default_rng(seed)
    common = rng.normal(size=n)
    u = np.clip(0.5 * common + rng.normal(size=n), -9, 9)
    v = np.clip(np.exp(0.6 * common + 0.5 * rng.normal(size=n)) - 1, -9, 9)
    w = np.clip(rng.normal(size=n) - 0.3 * common, -9, 9)
    grade = np.digitize(0.5 * common + rng.normal(size=n), [-0.4, 0.7])
    exposure = np.clip(0.4 * rng.normal(size=n), -2, 2)
    predictor = -0.4 + 0.6 * u + 0.5 * v - 0.7 * w + 0.4 * grade
    claims = np.minimum(rng.poisson(np.exp(np.minimum(0.5 * predictor + exposure, 3.5))), 60)
    return pd.DataFrame(
        {
            "id": [f"K{number}" for number in range(n)],
            **{"u": u, "v": v, "w": w, "exposure": exposure, "claims": claims},
            "grade": np.array(["C", "B", "A"])[grade],
            "sued": np.where(rng.random(n) < expit(predictor), "yes", "no"),
        }
    )


def numbers(frame: pd.DataFrame) -> pd.DataFrame:
    """The columns as the regression sees them."""
    grade = frame["grade"].map({"C": 0.0, "B": 1.0, "A": 2.0})
    return frame.assign(grade=grade, sued=(frame["sued"] == "yes").astype(float))


def fit(path: Path, frame: pd.DataFrame, there: dict[str, Any] | None = None, **options: Any) -> GeneralizedRegression:
    blocks = {party: frame[["id", *names]] for party, names in HELD.items()}
    for party, mask in (there or {}).items():
        blocks[party] = blocks[party][mask]
    with Federation.local(blocks, key="id", columns=COLUMNS, allow=ALLOW, home=path / "h", runs=path / "r") as opened:
        result = Regress(columns=tuple(NAMES), **options).fit(opened)
    assert isinstance(result, GeneralizedRegression)
    return result


def glm(frame: pd.DataFrame, response: str, offset: str | None = None) -> Any:
    pooled = numbers(frame)
    family = sm.families.Binomial() if response == "sued" else sm.families.Poisson()
    given = None if offset is None else pooled[offset]
    model = sm.GLM(pooled[response].astype(float), sm.add_constant(pooled[NAMES]), family=family, offset=given)
    return model.fit(cov_type="HC0", tol=1e-12)


@pytest.mark.parametrize(
    ("response", "family", "offset"), [("sued", "binomial", None), ("claims", "poisson", "exposure")]
)
def test_with_nothing_missing_it_is_the_maximum_likelihood_fit(
    tmp_path: Path, response: str, family: str, offset: str | None
) -> None:
    frame = table(500, seed=1)
    found = fit(tmp_path, frame, response=response, family=family, offset=offset)
    wanted = glm(frame, response, offset)
    np.testing.assert_allclose(found.params, wanted.params, atol=1e-6)
    # statsmodels' HC0 times n / (n - p); factors of the errors are rounded to 2^-13.
    np.testing.assert_allclose(found.bse, wanted.bse * np.sqrt(500 / 495), rtol=1e-3)
    given = {} if offset is None else {"offset": frame["exposure"]}
    pooled = sm.add_constant(numbers(frame)[NAMES])
    np.testing.assert_allclose(found.predict(frame), wanted.predict(pooled, **given), rtol=1e-4)
    assert found.verdict == "Valid: every record with the response is complete."
    assert found.summary().startswith("Valid")
    assert family in found.summary()


@pytest.fixture(scope="module")
def gaps() -> tuple[pd.DataFrame, dict[str, NDArray[np.bool_]]]:
    """Who is at the bank depends on the response and on u; the court lacks the first tenth."""
    frame = table(900, seed=2)
    rng = np.random.default_rng(3)
    y = (frame["sued"] == "yes").to_numpy(float)
    there = {
        "court": np.arange(900) >= 90,
        "bank": rng.random(900) < expit(1.5 - 1.2 * y * (frame["u"] > 0)),
        "tax": rng.random(900) < expit(0.8 + 0.6 * y - 0.5 * frame["u"]),
    }
    return frame, there


def test_with_missing_blocks_it_is_the_weighted_fit_of_pooled_records(
    tmp_path: Path, gaps: tuple[pd.DataFrame, dict[str, NDArray[np.bool_]]]
) -> None:
    frame, there = gaps
    found = fit(tmp_path, frame, there, response="sued", family="binomial")
    held = numbers(frame)[there["court"]]
    present = np.column_stack([there["bank"], there["tax"]])[there["court"]]
    own = np.column_stack([held["u"] / 9, 2 * held["sued"] - 1])  # as features
    fitted = complete_weights(own, 1, present, family="binomial")
    used = present.all(axis=1)
    design, y = sm.add_constant(held[NAMES]).to_numpy()[used], held["sued"].to_numpy()[used]
    weights = fitted.weights[used]

    def score(point: Array) -> Array:
        return design * (weights * (y - expit(design @ point)))[:, None]

    solution = root(lambda point: score(point).sum(axis=0), np.zeros(5), tol=1e-12).x
    # Weights are whole multiples of 2^-14.
    np.testing.assert_allclose(found.params, solution, atol=1e-4)
    step = 1e-5 * np.eye(5)
    bread = -np.column_stack([(score(solution + e) - score(solution - e)).sum(axis=0) / 2e-5 for e in step])
    s, g = score(solution), fitted.scores[used]
    # What the scores of presence explain of the influence, by least squares over all records of the court.
    projection = fitted.scores @ (g.T @ s)
    influence = np.zeros((len(held), 5))
    influence[used] = s
    plain = (influence - projection).T @ (influence - projection)
    heavy = (s * fitted.inflation(5)[used, None]).T @ (s * fitted.inflation(5)[used, None])
    inverse = np.linalg.inv(bread)
    errors = np.sqrt(np.diag(inverse @ (heavy - (g.T @ s).T @ (g.T @ s)) @ inverse))
    np.testing.assert_allclose(found.bse, errors, rtol=5e-3)
    np.testing.assert_allclose(found.bse, np.sqrt(np.diag(inverse @ plain @ inverse)), rtol=0.1)
    assert "every party of the model has are used, weighed" in Regress(response="y", family="poisson").missing_data()
    assert found.complete == used.sum()
    assert found.nobs == len(held)
    assert found.effective == pytest.approx(fitted.effective)
    assert f"{used.sum():,} complete records, weighed" in found.verdict
    text = str(found.view()) + repr(found)
    assert "nan" not in text.lower().replace("nano", "")
    assert "as many rounds again, with missing='complete-case'" in found.view().figures()["coefficients"].caption
    shown = found.predict(pd.DataFrame({"u": [0.5, np.nan], "w": [np.nan, 1.0]}))
    assert ((shown > 0) & (shown < 1)).all()


def test_complete_cases_are_statsmodels_on_complete_records(
    tmp_path: Path, gaps: tuple[pd.DataFrame, dict[str, NDArray[np.bool_]]]
) -> None:
    frame, there = gaps
    found = fit(tmp_path, frame, there, response="claims", family="poisson", missing="complete-case")
    complete = frame[there["court"] & there["bank"] & there["tax"]]
    np.testing.assert_allclose(found.params, glm(complete, "claims").params, atol=1e-6)
    assert found.nobs == len(complete)
    assert "missing completely at random" in found.verdict
    assert "All records used are complete cases" in found.view().figures()["coefficients"].caption


def test_two_parties_with_a_holder_of_shares_and_what_the_plan_says(tmp_path: Path) -> None:
    """No total predictor is shown to anyone, so one other party is enough."""
    frame = table(300, seed=4)
    blocks = {"court": frame[["id", "u", "sued"]], "bank": frame[["id", "v", "w"]], "notary": frame[["id"]]}
    with Federation.local(
        blocks, key="id", columns=COLUMNS, allow=ALLOW, home=tmp_path / "h", runs=tmp_path / "r"
    ) as opened:
        method = Regress(response="sued", family="binomial", columns=("u", "v", "w"))
        plan = opened.plan(method)
        found = method.fit(opened)
    pooled = numbers(frame)
    wanted = sm.GLM(pooled["sued"], sm.add_constant(pooled[["u", "v", "w"]]), family=sm.families.Binomial()).fit(
        tol=1e-12
    )
    np.testing.assert_allclose(found.params, wanted.params, atol=1e-6)
    assert {str(leaf["name"]) for cost in plan.costs() for leaf in cost.leaves() if leaf.unbounded} == set(ALLOW)
    procedure = method.procedure(opened.facts, opened.roster)
    assert isinstance(procedure, GeneralizedFit)
    sealed = [stage for stage in procedure.stages if stage.name.endswith(("share rows", "multiply"))]
    assert sealed
    assert all("share holders (sealed" in stage.audience for stage in sealed)


def test_a_choice_from_the_fit_begins_at_nothing_and_ends_at_the_fit(tmp_path: Path) -> None:
    """`Select(solver="wald")`; the path between is in tests/unit/models/sparse/test_wald.py."""
    frame = table(300, seed=6)
    blocks = {"court": frame[["id", "u", "sued"]], "bank": frame[["id", "v"]], "tax": frame[["id", "w"]]}
    with Federation.local(
        blocks, key="id", columns=COLUMNS, allow=ALLOW, home=tmp_path / "h", runs=tmp_path / "r"
    ) as opened:
        method = Select(
            response="sued",
            family="binomial",
            columns=("u", "v", "w"),
            solver="wald",
            penalty="lasso",
            lambdas=(9.0, 1e-9),
        )
        found = method.fit(opened)
    pooled = numbers(frame)
    wanted = sm.GLM(pooled["sued"], sm.add_constant(pooled[["u", "v", "w"]]), family=sm.families.Binomial()).fit()
    np.testing.assert_allclose(found.path.iloc[0, 1:], 0.0)
    np.testing.assert_allclose(found.path.iloc[1], wanted.params, atol=1e-4)
    assert set(found.support) == {"u", "v", "w"}
    assert "weighed so that they stand for all" in method.missing_data()


def test_what_is_refused(tmp_path: Path) -> None:
    with pytest.raises(BadArguments, match="no missing='mean'"):
        Regress(response="sued", family="binomial", missing="mean")
    with pytest.raises(BadArguments, match="offset has no meaning with family='gaussian'"):
        Regress(response="u", offset="exposure")
    frame = table(60, seed=5)
    for response, family, offset in (("u", "binomial", None), ("sued", "poisson", None), ("claims", "poisson", "sued")):
        with pytest.raises(SchemaError, match=r"family=|offset"):
            fit(tmp_path / response, frame, response=response, family=family, offset=offset)


def with_a_rare_kind(without_bank: slice, without_tax: slice) -> tuple[pd.DataFrame, dict[str, pd.DataFrame], Columns]:
    """'b' is with the first 10 records, 'c' with none."""
    frame = table(400, seed=3)
    frame["kind"] = np.where(np.arange(400) < 10, "b", np.random.default_rng(1).choice(["a", "d"], 400))
    kind = Column(name="kind", kind="categorical", categories=("a", "b", "c", "d"))
    blocks = {"court": frame[["id", "u", "kind", "sued", "claims"]]}
    blocks["bank"] = frame[["id", "v"]].drop(frame.index[without_bank])
    blocks["tax"] = frame[["id", "w"]].drop(frame.index[without_tax])
    return frame, blocks, Columns([*(COLUMNS[name] for name in ("u", "v", "w", "sued", "claims")), kind])


@pytest.mark.parametrize(("response", "family"), [("claims", "gaussian"), ("sued", "binomial")])
def test_a_category_that_no_complete_record_has_is_no_refusal(tmp_path: Path, response: str, family: str) -> None:
    frame, blocks, columns = with_a_rare_kind(slice(0, 5), slice(5, 10))
    allow = ("presence", "exact-scores", "exact-moments")
    with Federation.local(blocks, key="id", columns=columns, allow=allow, runs=tmp_path) as opened:
        result = Regress(response=response, family=family, columns=("u", "kind", "v", "w")).fit(opened)
    if family == "binomial":
        complete = numbers(frame[10:]).assign(d=(frame["kind"] == "d").astype(float))
        design = sm.add_constant(complete[["u", "d", "v", "w"]])
        pooled = sm.GLM(complete["sued"], design, family=sm.families.Binomial()).fit(tol=1e-12)
        np.testing.assert_allclose(result.params, pooled.params, atol=0.1)  # weighed for 10 of 400
        assert result.dropped == ("kind[b]", "kind[c]")
        assert list(result.params.index) == ["const", "u", "kind[d]", "v", "w"]
    else:
        assert result.dropped == ("kind[c]",)
        assert result.beside is not None
        assert np.isnan(result.beside.loc["kind[b]", "complete cases"])
        assert np.isfinite(result.beside["complete cases"].drop("kind[b]")).all()
    assert "Left out, since they do not vary in the records used" in result.summary()


def test_a_category_that_is_never_with_a_block_is_named(tmp_path: Path) -> None:
    _, blocks, columns = with_a_rare_kind(slice(0, 10), slice(0, 3))
    allow = ("presence", "exact-moments")
    with Federation.local(blocks, key="id", columns=columns, allow=allow, runs=tmp_path) as opened:
        with pytest.raises(BadArguments, match=r"'kind' \(or a category\) does not vary in the records that another"):
            Regress(response="claims", columns=("u", "kind", "v", "w")).fit(opened)
        alone = Regress(response="claims", columns=("u", "kind", "v"), missing="single").fit(opened)
    assert "kind[b]" in alone.params


def test_a_response_with_fewer_events_than_coefficients_is_refused_at_once(tmp_path: Path) -> None:
    frame = table(120, seed=4)
    frame["sued"] = np.where(np.arange(120) < 4, "yes", "no")
    blocks = {party: frame[["id", *names]] for party, names in HELD.items()}
    method = Regress(response="sued", columns=tuple(NAMES), family="binomial")
    local = Federation.local(blocks, key="id", columns=COLUMNS, allow=ALLOW, runs=tmp_path)
    with local as opened, pytest.raises(NotEstimable) as refused:
        method.fit(opened)
    assert str(refused.value) == (
        "'sued' is of its rarer class in 4 of 120 records that are used, fewer than the 5 coefficients; keep at most 3"
        " columns with columns=, or choose another response."
    )
