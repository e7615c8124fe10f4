"""Completion from end to end: against floors and oracles, with flags, for two and three parties."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

import colonnade as co
from colonnade.papers.fedpsg.drawn import choose_correlated, spearman
from colonnade.completion.method import FedPSG
from colonnade.completion.result import FedPSGResult
from colonnade.errors import BadArguments, NotEstimable, UnboundedNotAllowed
from support.split import curved_pair

ALLOW = (
    "presence",
    "split-training",
    "correlated-columns",
    "completion-quality",
    "linear-predictors",
    "exact-moments",
    "exact-marginals",
)


def completed(tmp_path: Path, method: FedPSG, n: int = 600, **more: Any) -> tuple[FedPSGResult, pd.DataFrame, Any]:
    blocks, columns = curved_pair(n)
    options: dict[str, Any] = {"seed": 3, "allow": ALLOW, "holder": "notary", **more}
    with co.Federation.local(blocks, key="id", columns=columns, home=tmp_path / "home", **options) as opened:
        result = method.fit(opened)
        return result, result.table("right"), (blocks, columns)


@pytest.mark.parametrize("imputer", ["mean", "mice", "copula-mean", "copula-draw"])
def test_moments_complete_a_party(tmp_path: Path, imputer: Any) -> None:
    result, table, (blocks, _) = completed(tmp_path, FedPSG(imputer=imputer))
    told = result.quality("right")
    lacking = len(blocks["left"]) - len(blocks["right"])
    assert result.parties["right"]["completed"] == lacking == table["bump (generated)"].sum()
    assert not table[["bump", "high", "steps"]].isna().any().any()
    assert result.failing == ()
    assert told["rmse of the mean"] < told["rmse of a random record"]
    if imputer == "mean":
        assert told["rmse"] == pytest.approx(told["rmse of the mean"])
    elif imputer == "copula-draw":
        assert told["marginal distance"] < 0.1
    else:
        assert told["rmse"] < 0.85 * told["rmse of the mean"]


def test_real_entries_are_untouched_and_generated_ones_are_legal(tmp_path: Path) -> None:
    _, table, (blocks, _) = completed(tmp_path, FedPSG(imputer="copula-draw"))
    real = table[~table["bump (generated)"]]
    assert sorted(real["bump"]) == pytest.approx(sorted(blocks["right"]["bump"]))
    made = table[table["bump (generated)"]]
    assert made["bump"].between(-1, 2).all()
    assert set(made["high"]) <= {"no", "yes"}
    assert made["steps"].between(0, 12).all()
    assert (made["steps"] == made["steps"].round()).all()
    assert (table["bump (generated)"] == table["steps (generated)"]).all()


def test_the_regression_beats_means_and_correlated_columns_are_drawn_first(tmp_path: Path) -> None:
    quick = {"iterations": 300, "local": 10, "batch": 64, "hidden": 32, "cut": 8, "rate": 3e-3}
    result, _, _ = completed(tmp_path / "a", FedPSG(**quick))
    told = result.quality("right")
    assert told["rmse"] < 0.85 * told["rmse of the mean"]
    drawn, _, _ = completed(tmp_path / "b", FedPSG(**quick, n_correlated=3, generator="copula"))
    assert len(drawn.chosen["right"]) == 3
    assert drawn.quality("right")["rmse"] > told["rmse"]


def test_three_parties_and_missing_records_on_every_side(tmp_path: Path) -> None:
    blocks, columns = curved_pair(400, missing=0.0)
    third = blocks["right"][["id", "steps"]]
    keep = {name: np.arange(400) % 4 != skip for skip, name in enumerate(("left", "right", "third"))}
    parts = {
        "left": blocks["left"][keep["left"]],
        "right": blocks["right"][["id", "bump", "high"]][keep["right"]],
        "third": third[keep["third"]],
    }
    with co.Federation.local(parts, key="id", columns=columns, seed=3, allow=ALLOW, home=tmp_path / "home") as opened:
        result = FedPSG(imputer="copula-mean").fit(opened)
        tables = {party: result.table(party) for party in parts}
        trained = FedPSG(iterations=20, local=10, batch=32, hidden=8, cut=4, complete=("third",)).fit(opened)
    assert {party: one["completed"] for party, one in result.parties.items()} == dict.fromkeys(parts, 100)
    assert all(len(table) == 400 for table in tables.values())
    assert set(trained.parties) == {"third"}


@pytest.mark.parametrize("imputer", ["vgain", "cgain"])
def test_a_vertical_gan_completes_reports_and_repeats(tmp_path: Path, imputer: Any) -> None:
    """Under one seed a simulation gives the same table twice; a completion above its floor is told as failing."""
    method = FedPSG(
        imputer=imputer,
        label="kind" if imputer == "cgain" else None,
        condition="none",
        complete=("right",),
        iterations=60,
        local=20,
        batch=32,
        hidden=8,
        cut=4,
    )
    allow = (*ALLOW, "labels")
    (result, table, _), (again, repeated, _) = (completed(tmp_path / at, method, n=200, allow=allow) for at in "ab")
    assert table["high"].notna().all()
    pd.testing.assert_frame_equal(table, repeated)
    assert result.histories[imputer] == again.histories[imputer]
    told = result.quality("right")
    assert result.failing == (() if told["rmse"] < told["rmse of the mean"] else ("right",))
    assert ("accuracy" in result.downstream.get("classifier with completed records", {})) == (imputer == "cgain")


def test_private_training_has_a_finite_cost(tmp_path: Path) -> None:
    blocks, columns = curved_pair(300)
    with co.Federation.local(blocks, key="id", columns=columns, allow=ALLOW, home=tmp_path / "home") as opened:
        method = FedPSG(epsilon=4.0, epochs=2, iterations=20, local=2, batch=32, hidden=8, cut=4, complete=("right",))
        starts = [one for one in opened.plan(method).phases if one.name.endswith(": start")]
        leaves = [leaf for one in starts for cost in one.costs.values() for leaf in cost.leaves()]
        result = method.fit(opened)
    from colonnade.privacy.accounting import guarantee

    # How many records are used is told too, without a bound: the account holds presence fixed.
    assert {leaf["name"] for leaf in leaves if leaf.unbounded} == {"presence"}
    total = guarantee([leaf for leaf in leaves if not leaf.unbounded], delta=1e-6)
    assert 3.5 < total.epsilon <= 4.0
    assert result.parties["right"]["completed"] > 0


def test_refusals(tmp_path: Path) -> None:
    blocks, columns = curved_pair(60, missing=0.0)
    with co.Federation.local(blocks, key="id", columns=columns, seed=1, home=tmp_path / "a") as opened:
        with pytest.raises(UnboundedNotAllowed):
            FedPSG().fit(opened)
        assert not list(opened.runs.glob("*"))
        with pytest.raises(BadArguments, match="the parties are"):
            opened.plan(FedPSG(complete=("nobody",)))
    with (
        co.Federation.local(blocks, key="id", columns=columns, seed=1, allow=ALLOW, home=tmp_path / "b") as opened,
        pytest.raises(NotEstimable, match="nothing is to be completed"),
    ):
        FedPSG(imputer="mean").fit(opened)
    for wrong in (
        {"imputer": "magic"},
        {"n_correlated": -1},
        {"imputer": "cgain"},
        {"epsilon": 1.0, "imputer": "mice"},
        {"rate": 2.0},
        {"validation": 1.0},
    ):
        with pytest.raises(BadArguments):
            FedPSG(**wrong)  # type: ignore[arg-type]


def test_the_greedy_choice_follows_the_strongest_pairs() -> None:
    strength = np.array([[0, 0.9, 0.1, 0.2], [0.9, 0, 0.3, 0.4], [0.1, 0.3, 0, 0.8], [0.2, 0.4, 0.8, 0]])
    assert choose_correlated(list("abcd"), strength, 2) == ["b", "a"]
    assert choose_correlated(list("abcd"), strength, 3) == ["b", "a", "d"]
    assert sorted(choose_correlated(list("abcd"), strength, 9)) == list("abcd")
    values = {"x": np.arange(50.0), "y": -(np.arange(50.0) ** 3), "z": np.zeros(50)}
    assert np.allclose(spearman(values)[0], [0, 1, 0])
