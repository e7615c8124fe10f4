"""What people write wrongly in Python is refused in one sentence with cause and cure, before anything is spent."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

import colonnade as co
from colonnade import papers
from colonnade.errors import ColonnadeError
from colonnade.federation.coordinator import Federation

KEYS = [f"p{number:02d}" for number in range(60)]
TABLES: dict[str, pd.DataFrame] = {
    "bank": pd.DataFrame({"id": KEYS, "income": np.arange(60) * 10}),
    "clinic": pd.DataFrame({"id": KEYS, "age": np.arange(60) + 20}),
    "lab": pd.DataFrame({"id": KEYS, "bmi": np.linspace(18, 40, 60), "region": ["north", "south"] * 30}),
}
COLUMNS = co.draft(TABLES, key="id").confirmed()


def local(**options: Any) -> Federation:
    given: dict[str, Any] = {"blocks": TABLES, "key": "id", "columns": COLUMNS} | options
    return Federation.local(given.pop("blocks"), **given)


@pytest.fixture(scope="module")
def federation() -> Iterator[Federation]:
    with local() as made:
        yield made


@pytest.fixture(scope="module")
def table(federation: Federation) -> Any:
    return co.Synthesize(epsilon=50.0, model="independent").fit(federation)


def refused(act: Callable[[], object]) -> str:
    with pytest.raises(ColonnadeError) as caught:
        act()
    text = str(caught.value)
    assert text.endswith((".", "?"))
    assert "\n" not in text
    return text


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"blocks": list(TABLES.values())}, "the tables are a dict {party: data frame, path or source}"),
        ({"blocks": TABLES["bank"]}, "not DataFrame"),
        ({"blocks": TABLES | {"lab": pd.DataFrame()}}, "it has no column at all"),
        ({"blocks": {"lab": "nowhere.csv"}}, r"nowhere.csv cannot be read (there is no such file)"),
        ({"columns": co.draft(TABLES, key="id")}, "colonnade.draft(tables, key=...).confirmed()"),
        ({"columns": {"age": {"kind": "count"}}}, "not dict"),
        ({"columns": None}, "not NoneType"),
        ({"columns": co.draft(TABLES, key="id").columns}, "in Python draft.confirmed()"),
        ({"columns": "nowhere.toml"}, "(No such file or directory)"),
        ({"allow": "presence"}, "allow in Federation.local is a list; write ['presence']"),
        ({"ignore": "age"}, "write ['age']"),
        ({"budget": 3}, "budget in Federation.local must be a Budget"),
        ({"transport": "proceses"}, "must be 'embedded', 'processes' or 'network'"),
        ({"approve": True}, "must be 'auto' or 'ask'"),
        ({"organisations": {"bnk": "Bank"}}, "organisations names 'bnk'; the parties are bank, clinic, lab"),
        ({"seed": "one"}, "seed in Federation.local must be an integer"),
        ({"timeout": "3"}, "must be a number"),
        ({"key": 3}, "must be a text or a list of texts"),
    ],
)
def test_a_federation_of_tables(options: dict[str, Any], says: str) -> None:
    assert says in refused(lambda: local(**options))


@pytest.mark.parametrize(
    ("act", "says"),
    [
        (lambda: co.Regress(response="bmi", epsilom=3), "Did you mean 'epsilon'?"),  # type: ignore[call-arg]
        (lambda: co.Regress("bmi"), "write Regress(response=...)"),  # type: ignore[misc]
        (lambda: co.Select(epsilon=3), "Select needs the option 'response'"),  # type: ignore[call-arg]
        (lambda: co.Tables(tables=("age", "bmi")), "each of tables is a list; write ['age']"),  # type: ignore[arg-type]
        (lambda: co.Tables(tables="age"), "write [['age']]"),  # type: ignore[arg-type]
        (lambda: co.Describe(epsilon=1).fit(TABLES), "fit takes a federation, not dict"),  # type: ignore[arg-type]
        (lambda: co.Columns({"age": COLUMNS["age"]}), "Columns takes a list of Column values"),  # type: ignore[arg-type]
        (lambda: co.Polynomial.of([(1, "age")]), 'a monomial is (coefficient, {"age": 2})'),  # type: ignore[list-item]
        (lambda: co.draft(list(TABLES.values()), key="id"), "draft takes a dict"),  # type: ignore[arg-type]
        (lambda: co.draft({"lab": "nowhere.csv"}, key="id"), "there is no such file"),
    ],
)
def test_methods_and_declarations(act: Callable[[], object], says: str) -> None:
    assert says in refused(act)


@pytest.mark.parametrize("planned", [co.Describe, "describe", None])
def test_what_is_no_method_cannot_be_planned(federation: Federation, planned: Any) -> None:
    assert "is no method with its options" in refused(lambda: federation.plan(planned))
    assert "is no method with its options" in refused(lambda: federation.run(planned))


def test_a_response_of_another_family(federation: Federation) -> None:
    method = co.Regress(response="bmi", family="binomial")
    assert "needs a binary response, and 'bmi' is continuous: choose 'region'" in refused(
        lambda: federation.plan(method)
    )


@pytest.mark.parametrize(
    ("where", "says"),
    [
        ("age > 30", 'where is a dict such as {"region": "north", "age": (30, 40)}'),
        ({"regio": "north"}, "did you mean 'region'?"),
        ({"region": "west"}, "where['region'] must lie in the domain, 'north', 'south'; it is ['west']"),
    ],
)
def test_conditions_of_a_sample(table: Any, where: Any, says: str) -> None:
    assert says in refused(lambda: table.sample(5, where=where))


def test_a_closed_federation_says_so() -> None:
    with local() as closed:
        pass
    assert "this federation is closed; open it again" in refused(lambda: co.Describe(epsilon=1.0).fit(closed))


def test_a_budget_without_a_delta_says_what_it_lacks() -> None:
    with local(budget=co.Budget(epsilon=2.0)) as federation:
        assert "state one that is larger" in refused(lambda: co.Describe(epsilon=1.0).fit(federation))
    with local(budget=co.Budget(epsilon=2.0, delta=1e-5)) as federation:
        co.Describe(epsilon=1.0).fit(federation)
        assert "of which" in refused(lambda: co.Describe(epsilon=20.0).fit(federation))


def test_a_threshold_that_the_parties_cannot_hold() -> None:
    with local(threshold=5) as federation:
        said = refused(lambda: co.Moments(epsilon=1.0).fit(federation))
    assert "threshold = 5 needs 11 share holders" in said


@pytest.mark.parametrize(("module", "name", "meant"), [(co, "Regres", "Regress"), (papers, "VFEN", "VFEM")])
def test_a_name_that_is_nearly_one(module: Any, name: str, meant: str) -> None:
    with pytest.raises(AttributeError, match=f"Did you mean '{meant}'"):
        getattr(module, name)


def test_one_path_can_be_drafted(tmp_path: Path) -> None:
    TABLES["clinic"].to_csv(tmp_path / "clinic.csv", index=False)
    assert list(co.draft(tmp_path / "clinic.csv", key="id").columns) == ["age"]
