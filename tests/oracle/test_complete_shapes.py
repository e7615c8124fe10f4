"""Completion of awkward federations: empty cells, constant columns, few records, records that nobody else has."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

import colonnade as co
from colonnade.completion.method import CompletionMethod
from colonnade.completion.result import Completion
from colonnade.completion.split.training import validation_rows
from colonnade.errors import NotEstimable, RunError
from colonnade.federation.method import NoEstimate
from colonnade.papers.fedpsg.method import FedPSG
from colonnade.view.blocks import Table
from support.gaps import COLUMNS, blocks_with_gaps, gapless_table, gaps_federation, with_rule
from support.split import curved_pair

ALLOW = ("presence", "split-training", "completion-quality", "linear-predictors", "exact-moments", "exact-marginals")
SMALL: dict[str, Any] = {"iterations": 20, "local": 5, "batch": 16, "hidden": 8, "cut": 4}


def completed(
    path: Path, blocks: dict[str, pd.DataFrame], columns: co.Columns, method: CompletionMethod, **options: Any
) -> tuple[Completion, dict[str, Any]]:
    """The result, and what is written of it."""
    known = {"seed": 3, "allow": ALLOW, "holder": "notary", "home": path / "home", "runs": path / "runs", **options}
    with co.Federation.local(blocks, key="id", columns=columns, **known) as opened:
        result = method.fit(opened, sure=True)
    (written,) = (path / "runs").glob("*/result.json")
    return result, json.loads(written.read_text())


@pytest.mark.parametrize("imputer", ["mean", "regression"])
def test_many_empty_cells_are_filled_and_no_figure_breaks_the_result(tmp_path: Path, imputer: Any) -> None:
    """With gaps few hidden records are whole, and associations cannot be compared: that is told as null."""
    blocks, columns = curved_pair(60)
    gaps = np.random.default_rng(4).random((len(blocks["right"]), 3)) < 0.4
    blocks["right"][["bump", "high", "steps"]] = blocks["right"][["bump", "high", "steps"]].astype(object).mask(gaps)
    open_ = co.Columns([co.Column.from_dict({**one.to_dict(), "missing": True}) for one in columns.values()])
    result, written = completed(tmp_path, blocks, open_, co.Complete(imputer=imputer, **SMALL))
    assert written["parties"]["right"]["quality"]["pairwise distance"] is None
    assert "-" in result.view().tables()[0].rows[0]
    table = result.table("right")
    assert table[["bump", "high", "steps"]].notna().all(axis=None)
    assert table.loc[table["id"].notna(), "bump (generated)"].sum() == gaps[:, 0].sum()
    assert result.own("right")["bump"].notna().sum() == len(blocks["right"])


def test_real_records_have_their_keys(tmp_path: Path) -> None:
    """So that the completed table can be joined with the party's own; a text stays a text."""
    blocks, columns = curved_pair(60)
    for party, frame in blocks.items():
        blocks[party] = frame.assign(id=[f"0{one}" for one in frame["id"]])
    result, _ = completed(tmp_path, blocks, columns, co.Complete(imputer="mean", **SMALL))
    table = result.table("right")
    assert table["id"].isna().equals(table["bump (generated)"])
    joined = blocks["right"].merge(table, on="id", suffixes=("", " completed"))
    assert len(joined) == len(blocks["right"])
    assert (joined["bump"] == joined["bump completed"]).all()
    assert (joined["steps"] == joined["steps completed"]).all()


def test_a_category_may_be_called_none(tmp_path: Path) -> None:
    blocks, _ = curved_pair(60)
    blocks["right"] = blocks["right"][["id"]].assign(
        word=["NA", "None"] * (len(blocks["right"]) // 2) + ["NA"] * (len(blocks["right"]) % 2)
    )
    blocks["left"] = blocks["left"][["id", "u"]]
    columns = co.Columns(
        [
            co.Column(name="u", kind="continuous", lower=0, upper=1),
            co.Column(name="word", kind="binary", categories=("NA", "None")),
        ]
    )
    blocks = {party: frame.assign(id=frame["id"] + 2**53 + 1) for party, frame in blocks.items()}
    result, _ = completed(tmp_path, blocks, columns, co.Complete(imputer="mean", file_format="csv", **SMALL))
    table = result.table("right")
    assert set(table["word"]) == {"NA", "None"}
    assert sorted(table["id"].dropna()) == sorted(blocks["right"]["id"])  # no key went through a float


def test_any_name_of_a_party(tmp_path: Path) -> None:
    """Patterns of presence are told apart whatever the parties are called."""
    blocks, columns = curved_pair(80, missing=0.0)
    parts = {
        "a+b": blocks["left"][["id", "u", "v"]],
        "a": blocks["right"][["id", "bump"]][20:],
        "b": blocks["right"][["id", "high"]][:60],
    }
    declared = columns.select(["u", "v", "bump", "high"])
    result, _ = completed(tmp_path, parts, declared, co.Complete(imputer="mice", **SMALL))
    assert result.quality("b")["rmse"] < 0.95 * result.quality("b")["rmse of the mean"]


def test_a_column_that_does_not_vary_does_not_fail(tmp_path: Path) -> None:
    """Its mean is exact, so nothing is nearer to the truth: that is no reason not to use it."""
    blocks, columns = curved_pair(80)
    blocks["right"]["steps"] = 4
    result, _ = completed(tmp_path, blocks, columns, co.Complete(imputer="mice", **SMALL))
    assert result.quality("right")["columns"]["steps"]["rmse of the mean"] == pytest.approx(0, abs=1e-6)
    assert "steps" not in result.failing_columns.get("right", ())
    assert result.failing == ()
    assert set(result.table("right")["steps"]) == {4}
    assert "too good" in str(result.view().answer)


def test_each_column_is_told_in_plain_terms(tmp_path: Path) -> None:
    """In its own units, or as a share of right categories; the means themselves are the yardstick."""
    blocks, columns = curved_pair(400)
    result, _ = completed(tmp_path, blocks, columns, co.Complete(imputer="mice", **SMALL))
    told = result.quality("right")["columns"]
    assert set(told) == {"bump", "high", "steps"}
    assert told["steps"]["error"] == pytest.approx(12 * told["steps"]["rmse"], rel=0.1)  # counts are rounded
    assert told["high"]["right"] > 0.7 > told["high"]["right if the most frequent"]
    (table,) = [block for block in result.view().sections[0].blocks if isinstance(block, Table)]
    rows = {row[1]: row for row in table.rows}
    assert rows["steps"][5].startswith("off by ")
    assert "% right" in rows["high"][5]
    assert all(row[7] == "" for row in rows.values())
    told["bump"]["rmse"] = 2 * told["bump"]["rmse of the mean"]
    assert "these columns are no nearer than their means: bump at right." in result.view().quality


def test_a_drawn_column_is_held_against_a_random_record_and_another_against_its_mean() -> None:
    def one(rmse: float) -> dict[str, float]:
        return {"rmse": rmse, "rmse of the mean": 0.3, "rmse of a random record": 0.4}

    told = {**one(0.35), "columns": {"drawn": one(0.35), "filled": one(0.35), "good": one(0.2), "bad": one(0.5)}}
    common: dict[str, Any] = {"n": 9, "missing": {}, "histories": {}, "downstream": {}, "cost": "", "simulated": True}
    parties = {"right": {"quality": told, "completed": 1, "cells": 0}}

    def failing(imputer: str, *chosen: str) -> dict[str, tuple[str, ...]]:
        options = {"imputer": imputer, "n_correlated": len(chosen)}
        drawn = {"right": chosen} if chosen else {}
        return Completion(options=options, parties=parties, chosen=drawn, **common).failing_columns

    assert failing("regression", "drawn") == {"right": ("filled", "bad")}
    assert failing("regression") == {"right": ("drawn", "filled", "bad")}
    assert failing("copula-draw") == {"right": ("bad",)}
    assert failing("mean") == {}
    assert failing("mean", "bad") == {"right": ("bad",)}


def test_hidden_records_are_shared_ones() -> None:
    """A record that nobody else has is none that could be missing; where nothing is shared, they have to do."""
    n = 100
    rows = np.arange(n)
    presence = {"a": rows < 80, "b": rows >= 60, "c": (rows >= 20) & (rows < 30)}
    found = validation_rows(presence, party="a", share=0.5, seed=0)
    assert len(found) == 15
    assert (((found >= 60) & (found < 80)) | ((found >= 20) & (found < 30))).all()
    alone = validation_rows({"a": rows < 50, "b": rows >= 50}, party="a", share=0.1, seed=0)
    assert len(alone) == 5


@pytest.mark.parametrize("records", [1, 3])
def test_a_party_that_has_hardly_a_record(tmp_path: Path, records: int) -> None:
    """Too few to learn from, or to hide one, is said; nothing breaks."""
    blocks, columns = curved_pair(40)
    blocks["right"] = blocks["right"][:records]
    result, written = completed(tmp_path / "mean", blocks, columns, co.Complete(imputer="mean", **SMALL))
    assert result.parties["right"]["completed"] == 40 - records
    assert (written["parties"]["right"]["quality"]["rmse"] is None) == (records == 1)
    copula, _ = completed(tmp_path / "copula", blocks, columns, co.Complete(imputer="copula-mean", **SMALL))
    if records == 1:
        assert copula.failing == ("right",)
        assert "it is not known how good" in copula.view().quality
        with pytest.raises(NotEstimable, match="nothing can be learned"):
            completed(tmp_path / "regression", blocks, columns, co.Complete(**SMALL))


def test_a_batch_is_no_larger_than_the_cohort_and_expected_values_could_be_expected(tmp_path: Path) -> None:
    """A network's outputs are any numbers; what is written are numbers in range, and frequencies."""
    blocks, columns = curved_pair(40)
    result, _ = completed(tmp_path, blocks, columns, co.Complete(**{**SMALL, "batch": 16_384, "learning_rate": 0.5}))
    expected = result.expected("right")
    assert len(expected) == result.parties["right"]["completed"] > 0
    assert expected[["bump", "steps", "high[no]", "high[yes]"]].stack().between(0, 1).all()
    assert np.allclose(expected[["high[no]", "high[yes]"]].sum(axis=1), 1, atol=1e-5)


def test_private_training_without_a_whole_round_is_an_error(tmp_path: Path) -> None:
    """The cohort would have enough records, the party that is completed has not."""
    blocks, columns = curved_pair(64, missing=0.7)
    method = co.Complete(epsilon=8.0, epochs=2, parties=("right",), **{**SMALL, "local": 7})
    result, _ = completed(tmp_path, blocks, columns, method)
    assert isinstance(result, NoEstimate)
    assert "smaller batch" in result.reason


def test_a_party_that_was_not_completed_is_named(tmp_path: Path) -> None:
    blocks, columns = curved_pair(40)
    result, _ = completed(tmp_path, blocks, columns, co.Complete(imputer="mean", **SMALL))
    for ask in (result.table, result.expected, result.quality):
        with pytest.raises(RunError, match="'left' was not completed; completed are right"):
            ask("left")


def overlapping(n: int = 900) -> tuple[dict[str, pd.DataFrame], co.Columns]:
    """Two parties that share a third of their records; what `right` has follows from what `left` has."""
    rng = np.random.default_rng(7)
    u = rng.random(n)
    left = pd.DataFrame({"id": np.arange(n), "u": u})[: n // 2]
    right = pd.DataFrame(
        {
            "id": np.arange(n),
            "p": np.clip(u + 0.05 * rng.normal(size=n), 0, 1),
            "q": np.clip(1 - u + 0.05 * rng.normal(size=n), 0, 1),
        }
    )[n // 4 :]
    columns = [co.Column(name=name, kind="continuous", lower=0, upper=1, missing=name == "q") for name in "upq"]
    return {"left": left, "right": right}, co.Columns(columns)


CONDITIONED: dict[str, Any] = {
    "parties": ("right",),
    "generator": "copula",
    "iterations": 400,
    "local": 20,
    "batch": 32,
    "hidden": 16,
    "cut": 8,
    "learning_rate": 5e-3,
    "validation": 0.3,
}


def test_records_that_nobody_else_has_do_not_spoil_a_condition(tmp_path: Path) -> None:
    """About these there is no prediction: a generator that takes some number for one learns that predictions say
    little. A perfect draw is here off by 0.07, one that knows nothing by 0.41."""
    blocks, columns = overlapping()
    method = FedPSG(imputer="regression", n_correlated=2, **CONDITIONED)
    result, _ = completed(tmp_path, blocks, columns, method, allow=(*ALLOW, "correlated-columns"))
    assert result.quality("right")["rmse"] < 0.13


def test_a_rest_that_is_empty_is_left_to_the_predictions(tmp_path: Path) -> None:
    blocks, columns = overlapping(200)
    blocks["right"]["q"] = None
    method = FedPSG(imputer="regression", n_correlated=1, **{**CONDITIONED, "iterations": 20})
    result, _ = completed(tmp_path, blocks, columns, method, allow=(*ALLOW, "correlated-columns"))
    table = result.table("right")
    assert result.chosen == {"right": ("p",)}
    assert table["q (generated)"].all()
    assert table["q"].notna().all()


# --- single cells -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("imputer", ["mean", "mice", "copula-mean", "copula-draw"])
def test_empty_cells_are_filled_and_the_table_is_a_source(tmp_path: Path, imputer: Any) -> None:
    """Nearer to the truth than means, since the record's own cells count too; then a regression takes the table."""
    blocks = blocks_with_gaps(400, names=("debt", "rating", "claims"), share=0.1)
    whole = gapless_table(400).set_index("id")
    columns = with_rule(None, ("debt", "rating", "claims"))
    allow = ("presence", "exact-moments", "exact-marginals", "linear-predictors", "completion-quality")
    with gaps_federation(tmp_path / "first", blocks, columns, allow=allow) as federation:
        result = co.Complete(imputer=imputer).fit(federation)
        own = {party: result.own(party) for party in result.parties}
        table = result.table("bank").dropna(subset=["id"])
    assert set(own) == {"bank", "court"}
    for party, completed in own.items():
        before = blocks[party].set_index("id")
        after = completed.set_index("id").loc[before.index]
        assert list(completed) == list(blocks[party]), "the key and the columns of the block, and nothing else"
        assert after.notna().all(axis=None)
        for name in before:
            known = before[name].notna()
            assert (after.loc[known, name].astype(str) == before.loc[known, name].astype(str)).all()
    assert result.parties["bank"]["cells"] == blocks["bank"][["debt", "rating"]].isna().sum().sum()
    empty = blocks["bank"].set_index("id")["debt"].isna()
    assert (table.set_index("id")["debt (generated)"].loc[empty.index] == empty).all()
    keys, debt = empty.index[empty], own["bank"].set_index("id")["debt"].astype(float)
    errors = debt[keys] - whole.loc[keys, "debt"]
    spread = whole["debt"].std() * (np.sqrt(2) if imputer == "copula-draw" else 1)
    assert np.sqrt((errors**2).mean()) < 0.95 * spread
    with gaps_federation(tmp_path / "second", {**blocks, **own}, COLUMNS) as federation:
        fit = co.Regress(response="claims", columns=("debt", "size")).fit(federation)
    assert fit.nobs == len(blocks["court"])
