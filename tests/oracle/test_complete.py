"""`complete` from end to end: against floors and oracles, with flags, for two and three parties."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

import colonnade as co
from colonnade import papers
from colonnade.errors import BadArguments, NotEstimable, UnboundedNotAllowed
from support.split import ALLOW, QUICK, completed, curved_pair


@pytest.mark.parametrize("imputer", ["mean", "mice", "copula-mean", "copula-draw"])
def test_moments_complete_a_party(tmp_path: Path, imputer: Any) -> None:
    result, table, (blocks, _) = completed(tmp_path, co.Complete(imputer=imputer))
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
    _, table, (blocks, _) = completed(tmp_path, co.Complete(imputer="copula-draw"))
    real = table[~table["bump (generated)"]]
    assert sorted(real["bump"]) == pytest.approx(sorted(blocks["right"]["bump"]))
    made = table[table["bump (generated)"]]
    assert made["bump"].between(-1, 2).all()
    assert set(made["high"]) <= {"no", "yes"}
    assert made["steps"].between(0, 12).all()
    assert (made["steps"] == made["steps"].round()).all()
    assert (table["bump (generated)"] == table["steps (generated)"]).all()


def test_the_regression_beats_means(tmp_path: Path) -> None:
    result, _, _ = completed(tmp_path, co.Complete(**QUICK))
    quality = result.quality("right")
    assert quality["rmse"] < 0.85 * quality["rmse of the mean"]


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
        result = co.Complete(imputer="copula-mean").fit(opened)
        tables = {party: result.table(party) for party in parts}
        trained = co.Complete(iterations=20, local=10, batch=32, hidden=8, cut=4, parties=("third",)).fit(opened)
    assert {party: one["completed"] for party, one in result.parties.items()} == dict.fromkeys(parts, 100)
    assert all(len(table) == 400 for table in tables.values())
    assert set(trained.parties) == {"third"}


def test_private_training_has_a_finite_cost(tmp_path: Path) -> None:
    blocks, columns = curved_pair(300)
    with co.Federation.local(blocks, key="id", columns=columns, allow=ALLOW, home=tmp_path / "home") as opened:
        method = co.Complete(
            epsilon=4.0, epochs=2, iterations=20, local=2, batch=32, hidden=8, cut=4, parties=("right",)
        )
        starts = [one for one in opened.plan(method).stages if one.name.endswith(": start")]
        leaves = [leaf for one in starts for cost in one.costs.values() for leaf in cost.leaves()]
        result = method.fit(opened, sure=True)
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
            co.Complete().fit(opened)
        assert not list(opened.runs.glob("*"))
        with pytest.raises(BadArguments, match="the parties are"):
            opened.plan(co.Complete(parties=("nobody",)))
    with (
        co.Federation.local(blocks, key="id", columns=columns, seed=1, allow=ALLOW, home=tmp_path / "b") as opened,
        pytest.raises(NotEstimable, match="nothing is to be completed"),
    ):
        co.Complete(imputer="mean").fit(opened)
    for wrong in (
        {"imputer": "magic"},
        {"imputer": "gain"},
        {"epsilon": 1.0, "imputer": "mice"},
        {"epsilon": 1.0, "label": "kind"},
        {"learning_rate": 2.0},
        {"validation": 1.0},
    ):
        with pytest.raises(BadArguments):
            co.Complete(**wrong)  # type: ignore[arg-type]


# --- what is assumed about missing records ------------------------------------------------------------------------


def filled_in(path: Path, method: Any, *, alone: bool = False, others: bool = False) -> pd.DataFrame:
    """What is expected of the records that `right` lacks: as they are, or with other values in the records that only
    `right` has (`alone`), or in all records of `left` (`others`)."""
    blocks, columns = curved_pair(160, missing=0.0)
    left, right = blocks["left"][:120].copy(), blocks["right"][40:].copy()
    if alone:
        right.loc[right["id"] >= 120, ["bump", "high", "steps"]] = [1.5, "yes", 11]
    if others:
        left[["u", "v"]] = 1 - left[["u", "v"]]
    parts = {"left": left, "right": right}
    known: dict[str, Any] = {"seed": 3, "allow": ALLOW, "holder": "notary", "home": path / "home"}
    with co.Federation.local(parts, key="id", columns=columns, **known) as opened:
        return method.fit(opened).expected("right")


@pytest.mark.parametrize(
    ("method", "uses_alone", "uses_others"),
    [
        (co.Complete(imputer="mean", parties=("right",)), True, False),
        (co.Complete(imputer="regression", parties=("right",), **{**QUICK, "iterations": 40}), False, True),
        (co.Complete(imputer="copula-mean", parties=("right",)), True, True),
        (co.Complete(imputer="mice", parties=("right",)), True, True),
        (
            papers.FedPSG(imputer="mean", n_correlated=3, generator="copula", condition="none", parties=("right",)),
            True,
            False,
        ),
    ],
    ids=lambda given: getattr(given, "imputer", ""),
)
def test_what_is_said_about_missing_records_is_what_is_done(
    tmp_path: Path, method: Any, uses_alone: bool, uses_others: bool
) -> None:
    """Whether records that no other party has are learned from, and whether the others' columns matter at all."""
    usual = filled_in(tmp_path / "usual", method)
    assert len(usual) == 40
    changed = {
        "alone": not usual.equals(filled_in(tmp_path / "alone", method, alone=True)),
        "others": not usual.equals(filled_in(tmp_path / "others", method, others=True)),
    }
    said = method.missing_data()
    assert changed == {"alone": uses_alone, "others": uses_others}
    assert ("that it shares with another party" in said) == (not uses_alone)
    assert ("whatever the other parties know" in said) == (not uses_others)
    assert ("missing completely at random" in said) == (not uses_others)
    assert ("missing at random" in said) == uses_others
