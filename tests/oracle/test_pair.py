"""Two, three and four institutions in pairs against numpy on the pooled records, and against share holders: equal, with
the noise off.

The oracles of moments, tables, regression (least squares, EM, private), copula, field, components, classifiers and of
empty cells run under both engines in their own files, with three and more parties; polynomials of two parties' columns
too (`test_polynomial.py`). These cannot, because they multiply columns of three parties, or shares more than once:
tables of three parties (`test_tables.py`), monomials of three parties (`test_polynomial.py`), regression with
`missing="combined"` (`test_regress_combined.py`, `test_regress_missing_data.py`), its other families
(`test_regress_glm.py`, `test_select.py`), formulas with products, whose sums have columns of three parties
(`test_formula.py`), and the papers' gradients and information matrices (`test_sqm_logistic.py`, `test_vfem.py`).
What only share holders have (comparing, opening once, noise of every member at a holder) is tested with them alone.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

import colonnade as co
from colonnade.data.column import Column, Columns
from colonnade.federation.coordinator import Federation
from colonnade.statistics.pair import PairStages

ALLOW = ("presence", "exact-moments", "exact-tables", "exact-polynomial", "exact-marginals")
COLUMNS = Columns(
    [
        Column(name="age", kind="continuous", lower=-1.0, upper=1.0),
        Column(name="bmi", kind="continuous", lower=-1.0, upper=1.0, missing=True, if_empty="mask"),
        Column(name="smoker", kind="binary", categories=("no", "yes")),
        Column(name="cost", kind="continuous", lower=-1.0, upper=1.0),
        Column(name="region", kind="categorical", categories=("n", "e", "s", "w", "x")),
    ]
)
GAMMA = 16
HELD = {
    2: {"clinic": ("age", "bmi", "smoker"), "insurer": ("cost", "region")},
    3: {"clinic": ("age", "bmi"), "insurer": ("cost", "region"), "registry": ("smoker",)},
    4: {"clinic": ("age", "bmi"), "insurer": ("cost",), "registry": ("smoker",), "bank": ("region",)},
}


def blocks_of(parties: int, *, gaps: bool = False) -> dict[str, pd.DataFrame]:
    """Each party lacks records of the others. Numbers are multiples of 1/16, so that rounding has nothing to decide."""
    n = 400
    rng = np.random.default_rng(5)
    age = rng.integers(-GAMMA, GAMMA + 1, n) / GAMMA
    bmi = rng.integers(-GAMMA, GAMMA + 1, n) / GAMMA
    cost = np.rint(GAMMA * np.clip(0.5 * age - 0.25 * bmi + rng.normal(0, 0.2, n), -1, 1)) / GAMMA
    frame = pd.DataFrame(
        {
            "id": [f"P{k:04d}" for k in range(n)],
            "age": age,
            "bmi": np.where(rng.uniform(size=n) < 0.2, np.nan, bmi) if gaps else bmi,
            "smoker": rng.choice(["no", "yes"], n),
            "cost": cost,
            "region": rng.choice(list("neswx"), n),
        }
    )
    there = [np.arange(n) >= 40, np.arange(n) < n - 60, np.arange(n) % 7 > 0, np.arange(n) % 11 > 1]
    return {
        party: frame.loc[there[place], ["id", *names]].sample(frac=1, random_state=place)
        for place, (party, names) in enumerate(HELD[parties].items())
    }


def pair(tmp_path: Path, **options: Any) -> Federation:
    """A federation without share holders; with `holder` in place of `committee` it has some."""
    given: dict[str, Any] = {"committee": "pair", "allow": ALLOW, "seed": 3, **options}
    blocks = given.pop("blocks")
    return Federation.local(blocks, key="id", columns=COLUMNS, home=tmp_path / "home", runs=tmp_path / "runs", **given)


@pytest.fixture(scope="module", params=HELD)
def parties(request: pytest.FixtureRequest) -> int:
    return int(request.param)


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory, parties: int) -> Iterator[Federation]:
    with pair(tmp_path_factory.mktemp("alone"), blocks=blocks_of(parties)) as federation:
        yield federation


@pytest.fixture(scope="module")
def held(tmp_path_factory: pytest.TempPathFactory, parties: int) -> Iterator[Federation]:
    blocks = blocks_of(parties)
    with pair(tmp_path_factory.mktemp("held"), blocks=blocks, committee=None, holder="an institute") as federation:
        yield federation


def pooled(blocks: dict[str, pd.DataFrame]) -> pd.DataFrame:
    joined = functools.reduce(lambda left, right: left.merge(right, on="id", how="outer"), blocks.values())
    return joined.assign(
        smoker=(joined["smoker"] == "yes").where(joined["smoker"].notna()),
        **{f"region[{level}]": (joined["region"] == level).where(joined["region"].notna()) for level in "eswx"},
    )


def test_moments_with_presence_ignored_equal_numpy(alone: Federation, parties: int) -> None:
    result = co.Moments(epsilon=None, presence="ignore", gamma=GAMMA).fit(alone)
    frame = pooled(blocks_of(parties))
    (entries,), (gram,) = result.entries, result.grams
    values = np.column_stack([_feature(frame, name) for name in entries])
    assert np.array_equal(gram, values.T @ values)


def _feature(frame: pd.DataFrame, name: str) -> np.ndarray:
    if name == "1":
        return np.ones(len(frame))
    return frame[name].astype(float).fillna(0.0).to_numpy() if name != "smoker" else _binary(frame["smoker"])


def _binary(values: pd.Series) -> np.ndarray:
    """A binary column is -1 or 1, and 0 where its block is absent."""
    return values.map({False: -1.0, True: 1.0}).astype(float).fillna(0.0).to_numpy()


@pytest.mark.parametrize(
    ("presence", "parties", "matrices"), [("known", 2, 5), ("known", 4, 23), ("secret", 2, 1), ("secret", 3, 1)]
)
def test_moments_equal_those_of_share_holders(tmp_path: Path, presence: Any, parties: int, matrices: int) -> None:
    """Every pattern of blocks and of empty cells: 2^m - 1 of m parties, and 2^(m - 1) with empty cells at one."""
    method, blocks = co.Moments(epsilon=None, presence=presence, gamma=GAMMA), blocks_of(parties, gaps=True)
    with pair(tmp_path / "pair", blocks=blocks) as federation:
        alone = method.fit(federation)
    with pair(tmp_path / "held", blocks=blocks, committee=None, holder="an institute") as federation:
        held = method.fit(federation)
    assert alone.entries == held.entries
    assert len(alone.grams) == len(held.grams) == matrices
    for mine, theirs in zip(alone.grams, held.grams, strict=True):
        assert np.array_equal(mine, theirs)


def test_moments_of_one_partys_columns_need_no_encryption(alone: Federation, parties: int) -> None:
    method = co.Moments(epsilon=None, columns=("cost",), presence="ignore", gamma=GAMMA)
    assert "no product" in alone.plan(method).text()
    cost = blocks_of(parties)["insurer"]["cost"].to_numpy()
    assert np.array_equal(method.fit(alone).grams[0][1:, 1:], [[cost @ cost]])


def test_moments_in_several_chunks_and_openings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("colonnade.statistics.pair.MAIL", 1)  # 8192 rows at a time
    rng = np.random.default_rng(1)
    n = 8192 + 100
    rows = rng.integers(-GAMMA, GAMMA + 1, (n, 4)) / GAMMA
    blocks = {
        "clinic": pd.DataFrame({"id": np.arange(n), "age": rows[:, 0], "bmi": rows[:, 1]}),
        "insurer": pd.DataFrame({"id": np.arange(n)[::-1], "cost": rows[::-1, 2]}),
        "bank": pd.DataFrame({"id": np.arange(n), "debt": rows[:, 3]}),
    }
    names = ("age", "bmi", "cost", "debt")
    columns = Columns([Column(name=name, kind="continuous", lower=-1.0, upper=1.0) for name in names])
    options: dict[str, Any] = {
        "allow": ALLOW,
        "committee": "pair",
        "home": tmp_path / "home",
        "runs": tmp_path / "runs",
    }
    with Federation.local(blocks, key="id", columns=columns, **options) as federation:
        method = co.Moments(epsilon=None, presence="ignore", constant=False, gamma=GAMMA, tile=2)
        layout = method.layout(federation.facts, federation.roster)
        assert len(PairStages(layout, "client").exchange.requests["clinic"]) == 3
        assert np.array_equal(method.fit(federation).grams[0], rows.T @ rows)


def test_digits_hold_counts_and_noise(alone: Federation) -> None:
    """Several counts are digits of one word: with noise beyond n, every one of them comes out with its own noise."""
    exact = co.Tables(tables=(("region", "smoker"),), epsilon=None).fit(alone)["region", "smoker"]
    noisy = co.Tables(tables=(("region", "smoker"),), epsilon=0.01).fit(alone, sure=True)
    errors = (noisy["region", "smoker"] - exact) / noisy.noise_sd["region", "smoker"]
    assert np.abs(exact).max() < noisy.noise_sd["region", "smoker"] < 2**30
    assert np.abs(errors).max() < 5
    assert errors.std() > 0.4


def test_sums_of_monomials_equal_those_of_share_holders(alone: Federation, held: Federation) -> None:
    """Products within a party are computed there, so that degree 4 is one product between two parties."""
    polynomial = co.Polynomial.of(
        [(0.5, {"age": 2}), (-1, {"age": 1, "cost": 1}), (2, {"cost": 1}), (3, {})],
        [(1, {"age": 2, "cost": 2}), (-2, {"bmi": 1, "age": 1, "region[e]": 1}), (4, {"smoker": 1, "region[e]": 1})],
    )
    method = co.PolynomialSum(polynomial=polynomial, epsilon=None, gamma=GAMMA)
    assert method.fit(alone).integers == method.fit(held).integers


@pytest.mark.parametrize("parties", [4], indirect=True)
def test_regression_components_and_classifier_equal_those_of_share_holders(alone: Federation, held: Federation) -> None:
    for method in (
        co.Regress(response="cost", columns=("age", "bmi"), missing="em", gamma=2**12),
        co.Regress(response="cost", columns=("age", "bmi"), missing="complete-case", gamma=2**12),
    ):
        mine, theirs = method.fit(alone), method.fit(held)
        assert np.array_equal(mine.params, theirs.params)
        assert np.array_equal(mine.bse, theirs.bse)
    components: Any = co.PCA(n_components=2, epsilon=None, columns=("age", "bmi", "cost"), gamma=GAMMA)
    assert np.array_equal(components.fit(alone).components_, components.fit(held).components_)
    classifier: Any = co.Classify(response="smoker", columns=("age", "cost"), epsilon=None, gamma=GAMMA)
    assert np.array_equal(classifier.fit(alone).coef_, classifier.fit(held).coef_)
