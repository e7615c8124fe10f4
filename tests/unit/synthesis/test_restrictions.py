"""Facts that hold in every row, and conditions on a sample."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import pandas as pd
import pytest

from colonnade.data.column import Column, Columns
from colonnade.errors import BadArguments, DomainError, NotEstimable
from colonnade.statistics.marginals import Marginal, from_shares
from colonnade.synthesis.copula.model import GaussianCopula
from colonnade.synthesis.restrictions import Constraints, Restricted, conditions

COLUMNS = Columns(
    [
        Column(name="age", kind="count", lower=0, upper=99),
        Column(name="since", kind="count", lower=0, upper=99),
        Column(name="sex", kind="binary", categories=("f", "m")),
        Column(name="births", kind="count", lower=0, upper=12),
        Column(name="paid", kind="continuous", lower=0, upper=100),
        Column(name="owed", kind="continuous", lower=0, upper=100),
        Column(name="total", kind="continuous", lower=0, upper=200),
        Column(name="region", kind="categorical", categories=("n", "e", "s", "w")),
        Column(name="seen on", kind="date", from_="2020-01-01", to="2024-12-31"),
    ]
)
FACTS = (
    "since <= age",
    "births == 0 if sex == 'm' or age < 15",
    "total == paid + owed",
    "not (region in ['n', 'e'] and births > 8)",
    "`seen on` >= '2021-06-01' if region == 'w'",
    "2 * paid - owed < 150",
)


def uniform_rows(rows: int, seed: int = 1) -> pd.DataFrame:
    rng = np.random.default_rng(seed)
    frame = {}
    for name, column in COLUMNS.items():
        if column.categories is not None:
            frame[name] = column.decode(rng.integers(0, len(column.categories), rows).astype(np.int32))
        else:
            values = rng.uniform(column.lower, column.upper, rows)
            frame[name] = column.decode(np.rint(values) if column.whole else values)
    return pd.DataFrame(frame)


class Uniform:
    """Independent uniform columns."""

    columns = COLUMNS

    def batches(self, rows: int, source: Any, *, size: int = 65_536) -> Iterator[pd.DataFrame]:
        yield uniform_rows(rows, int(np.random.default_rng(source).integers(2**31)))

    def to_arrays(self) -> Mapping[str, np.ndarray[Any, Any]]:
        return {}


def test_facts_hold_in_every_row() -> None:
    """Checked by hand on the values, not by the code that imposes them."""
    sampler = Restricted(Uniform(), Constraints.of(FACTS, COLUMNS))
    rows = pd.concat(list(sampler.batches(3000, 1, size=700)), ignore_index=True)
    assert len(rows) == 3000
    assert (rows["since"] <= rows["age"]).all()
    assert (rows["births"][(rows["sex"] == "m") | (rows["age"] < 15)] == 0).all()
    np.testing.assert_allclose(rows["total"], rows["paid"] + rows["owed"])
    assert not (rows["region"].isin(["n", "e"]) & (rows["births"] > 8)).any()
    assert (rows["seen on"][rows["region"] == "w"] >= pd.Timestamp("2021-06-01")).all()
    assert (2 * rows["paid"] - rows["owed"] < 150).all()
    for name, column in COLUMNS.items():
        column.encode(rows[name])
    assert (rows["births"] > 0).any()


def test_rows_are_the_models_given_the_facts() -> None:
    """Uniform age and since, given since <= age: P(age <= a) grows as the square."""
    sampler = Restricted(Uniform(), Constraints.of(["since <= age"], COLUMNS))
    (rows,) = sampler.batches(20_000, 2)
    assert abs((rows["age"] < 50).mean() - 0.255) < 0.015


def test_conditions_hold_after_columns_were_computed() -> None:
    """x is 0 in group a, so rows with an x above 0 are of the others."""
    copula = gaussian_pair()
    facts = Constraints.of(["x == 0 if g == 'a'"], copula.columns)
    where = conditions(copula.columns, {"x": (0.2, 0.9)})
    (rows,) = Restricted(copula, facts).given(where).batches(500, 1)
    assert rows["x"].between(0.2, 0.9).all()
    assert set(rows["g"]) == {"b", "c"}


def test_the_size_of_the_batches_changes_no_row() -> None:
    sampler = Restricted(Uniform(), Constraints.of(["since <= age"], COLUMNS))
    (at_once,) = sampler.batches(500, 3)
    in_parts = pd.concat(list(sampler.batches(500, 3, size=64)), ignore_index=True)
    pd.testing.assert_frame_equal(at_once, in_parts)


@pytest.mark.parametrize(
    "facts",
    [
        ["age < 0"],
        ["since > age", "since <= age"],
        ["since > age", "age > births", "births > since"],
        ["paid + owed == total", "total > 150", "paid < 20", "owed < 30"],
        ["sex == 'm'", "sex == 'f'"],
        ["births == 3 if sex == 'm'", "births == 4 if sex == 'f'", "births < 3"],
        ["2 * births == 7"],
        ["age > 98 and age < 99"],
        ["`seen on` < '2020-01-01'"],
    ],
)
def test_contradictions_are_found_before_anything_is_spent(facts: list[str]) -> None:
    with pytest.raises(BadArguments, match="no row can satisfy") as refusal:
        Constraints.of(facts, COLUMNS)
    assert str(facts) in str(refusal.value)


def test_facts_that_can_hold_together_are_no_contradiction() -> None:
    Constraints.of(["age > 98", "since >= age", "paid < owed", "sex != 'm' if births > 0"], COLUMNS)


@pytest.mark.parametrize(
    "fact", ["age", "age <", "__import__('os')", "age * since == 3", "sex < 'm'", "sex + 1 == 2", "age in [1, 2]"]
)
def test_what_is_no_fact_is_refused(fact: str) -> None:
    with pytest.raises(BadArguments, match="constraint"):
        Constraints.of([fact], COLUMNS)


def test_unknown_columns_and_categories_are_refused() -> None:
    with pytest.raises(Exception, match="height"):
        Constraints.of(["height < 3"], COLUMNS)
    with pytest.raises(DomainError, match="sex"):
        Constraints.of(["sex == 'x'"], COLUMNS)


def test_a_model_that_never_satisfies_them_says_so() -> None:
    """One row in 10^7: the domains allow it, the model does not."""
    rare = ["age == since", "age == births", "paid < 0.5", "owed < 0.5", "total < 0.5", "2 * age - since >= 12"]
    facts = [fact.replace("==", "<=") for fact in rare[:2]] + [fact.replace("==", ">=") for fact in rare[:2]] + rare[2:]
    with pytest.raises(NotEstimable, match="satisfy"):
        list(Restricted(Uniform(), Constraints.of(facts, COLUMNS)).batches(10, 4))


# --- conditions -------------------------------------------------------------------------------------------------------


def gaussian_pair() -> GaussianCopula:
    columns = Columns(
        [
            Column(name="x", kind="continuous", lower=0, upper=1),
            Column(name="y", kind="continuous", lower=0, upper=1),
            Column(name="g", kind="categorical", categories=("a", "b", "c")),
        ]
    )
    line = Marginal(np.array([0.0, 1.0]), np.array([0.0, 1.0]))
    shares = from_shares(np.arange(3.0), np.array([0.5, 0.3, 0.2]))
    correlation = np.array([[1.0, 0.8, 0.5], [0.8, 1.0, 0.4], [0.5, 0.4, 1.0]])
    return GaussianCopula(columns, {"x": line, "y": line, "g": shares}, correlation)


@pytest.mark.parametrize(
    "where", [{"x": (0.7, 0.9)}, {"x": (0.2, 0.6), "g": "b"}, {"g": ["a", "c"], "y": (0.5, None)}, {"g": "c"}]
)
def test_a_conditioned_copula_is_the_copula_kept_where_the_condition_holds(where: dict[str, Any]) -> None:
    copula = gaussian_pair()
    (rows,) = copula.given(conditions(copula.columns, where)).batches(20_000, 1)
    every = copula.sample(200_000, 2)
    kept = np.ones(len(every), dtype=bool)
    for name, stated in where.items():
        if name == "g":
            kept &= every[name].isin([stated] if isinstance(stated, str) else stated).to_numpy()
            assert rows[name].isin([stated] if isinstance(stated, str) else stated).all()
        else:
            high = 1.0 if stated[1] is None else stated[1]
            kept &= every[name].between(stated[0], high).to_numpy()
            assert rows[name].between(stated[0], high).all()
    reference = every[kept]
    for name in ("x", "y"):
        assert abs(rows[name].mean() - reference[name].mean()) < 0.012
        assert abs(rows[name].std() - reference[name].std()) < 0.01
    shares = rows["g"].value_counts(normalize=True) - reference["g"].value_counts(normalize=True)
    assert shares.abs().max() < 0.02


def test_conditions_that_cannot_be_are_refused() -> None:
    columns = gaussian_pair().columns
    for where in ({"x": (0.9, 0.1)}, {"x": [0.1, 0.2, 0.3]}):
        with pytest.raises(BadArguments, match="x"):
            conditions(columns, where)
    with pytest.raises(DomainError, match="g"):
        conditions(columns, {"g": "z"})
