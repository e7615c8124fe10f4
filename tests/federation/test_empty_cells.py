"""Every method takes tables with 5 % empty cells in each column, whatever the columns say about them.

What comes out is compared in tests/oracle/test_empty_cells.py, and for all imputers in test_complete_shapes.py.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import colonnade.catalogue  # noqa: F401
from colonnade.errors import VerificationFailed
from colonnade.federation.catalogue import CATALOGUE
from colonnade.federation.party import Party
from colonnade.statistics.moments import Moments, MomentsLayout
from support.gaps import COLUMNS, blocks_with_gaps, gaps_federation, with_rule

FIELD: dict[str, Any] = {"iterations": 50, "cells": 4, "columns": ("debt", "rating", "sector", "sued")}
PLAIN: dict[str, Any] = {"masking": "plain", "n_lambdas": 5}
RUNS: dict[str, tuple[str, dict[str, Any]]] = {
    "describe": ("describe", {"epsilon": 8.0}),
    "copula": ("synthesize", {"model": "copula", "epsilon": 20.0}),
    "field": ("synthesize", {"epsilon": 20.0, "model": "field", **FIELD}),
    "regress": ("regress", {"response": "claims"}),
    "regress, private": ("regress", {"response": "claims", "epsilon": 60.0, "columns": ("size", "debt")}),
    "select": ("select", {"response": "claims"}),
    "select, private": ("select", {"response": "claims", "epsilon": 60.0}),
    "select, by rounds": ("select", {"response": "sued", "family": "binomial", **PLAIN}),
    "complete": ("complete", {"imputer": "mean"}),
    "pca": ("pca", {"epsilon": 8.0, "n_components": 2}),
    "pca, secret": ("pca", {"epsilon": 8.0, "n_components": 2, "presence": "secret", "centre": True}),
    "classify": ("classify", {"response": "sued", "epsilon": 8.0}),
    "moments": ("moments", {"epsilon": 8.0}),
    "tables": ("tables", {"epsilon": 8.0, "tables": (("sector", "rating"), ("debt", "sued"))}),
    "polynomial": ("polynomial-sum", {"epsilon": 8.0, "polynomial": {"outputs": [[[1.0, {"debt": 1, "size": 1}]]]}}),
    "presence": ("presence-total", {"epsilon": 8.0}),
    "vfem": ("vfem", {"response": "claims", "columns": ("size", "debt", "sued"), "solver": "exact"}),
    "sqm-logistic": ("sqm-logistic", {"response": "sued", "epsilon": 8.0, "rounds": 2, "sampling": 0.2}),
}
EVERY = (
    *(
        "block-moments",
        "predictor-sums",
        "residuals",
        "presence",
        "exact-moments",
        "exact-marginals",
        "exact-tables",
        "record-count",
        "completion-quality",
    ),
    *(
        "linear-predictors",
        "split-training",
        "party-predictor",
        "response-residuals",
        "gradients",
        "coefficients",
        "loss",
    ),
)


RULED = ("moments", "regress", "field")
"""Methods that are tried with each rule too; the others take the same code."""
CASES = [*((which, None) for which in RUNS), *((which, rule) for which in RULED for rule in ("drop", "mask", "level"))]


@pytest.mark.parametrize(("which", "rule"), CASES)
def test_every_method_takes_tables_with_empty_cells(tmp_path: Path, which: str, rule: Any) -> None:
    name, options = RUNS[which]
    quicker = {"verify": False} if "verify" in CATALOGUE.load(name).declared() else {}
    method = CATALOGUE.make(name, {**options, **quicker})
    with gaps_federation(tmp_path, blocks_with_gaps(500), with_rule(rule), allow=EVERY, seed=5) as federation:
        result = method.fit(federation)
    assert result.view().title


def test_a_private_regression_says_how_many_cells_are_empty_and_what_dropping_does(tmp_path: Path) -> None:
    blocks = blocks_with_gaps(500)
    method = CATALOGUE.make(*RUNS["regress, private"])
    with gaps_federation(tmp_path, blocks, with_rule(None), allow=EVERY, seed=5) as federation:
        notes = " ".join(federation.plan(method).notes)
        result = method.fit(federation)
    assert "Empty cells of" in notes
    assert "with a tenth of them dropped" in notes
    (said,) = (remark for remark in result.remarks if remark.startswith("Empty cells"))
    noise = float(said.partition("at most ")[2].partition(")")[0])
    told = float(said.partition("debt ")[2].partition(",")[0].rstrip("."))
    assert told == pytest.approx(blocks["bank"]["debt"].isna().sum(), abs=4 * noise + 0.5)
    assert "Empty cells" in result.summary()


def test_the_plan_of_a_completion_says_what_becomes_of_empty_cells(tmp_path: Path) -> None:
    with gaps_federation(tmp_path, blocks_with_gaps(200), with_rule(None), allow=EVERY) as federation:
        notes = federation.plan(CATALOGUE.make("complete", {"imputer": "copula-mean"})).notes
    assert any(note.startswith("Empty cells of ") and "filled in" in note for note in notes)


def test_owners_are_told_how_many_cells_are_empty(tmp_path: Path) -> None:
    blocks = blocks_with_gaps(200)
    with gaps_federation(tmp_path, blocks, with_rule(None)) as federation:
        log = (Path(federation.transport["bank"].home) / "log.txt").read_text()  # type: ignore[index]
    assert f"column 'debt': {blocks['bank']['debt'].isna().sum()} cells are empty." in log


def test_the_result_says_how_many_cells_are_empty(tmp_path: Path) -> None:
    """With noise where masks are computed with, like data; the table is then without empty cells."""
    blocks = blocks_with_gaps(600, share=0.2)
    method = CATALOGUE.make("synthesize", {"model": "copula", "epsilon": 50.0, "verify": False})
    with gaps_federation(tmp_path, blocks, with_rule(None), seed=5) as federation:
        plan, table = federation.plan(method), method.fit(federation)
    assert any("masks" in note and "completely at random" in note for note in plan.notes)
    assert any("make the noise" in note for note in plan.notes)
    told = table.details["empty cells"]
    assert set(told) == set(COLUMNS)
    for party, block in blocks.items():
        for name in block.columns[1:]:
            assert abs(told[name] - block[name].isna().sum()) < 40, (party, name)
    assert table.sample(200).notna().all(axis=None)
    assert np.isfinite(table.model.correlation).all()


def test_masks_are_verified(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An honest run passes; a dealer whose mask is neither 0 nor 1 for one record is found."""
    method = Moments(epsilon=8.0, presence="secret", columns=("debt", "rating", "claims", "size"))
    with gaps_federation(tmp_path, blocks_with_gaps(120), with_rule(None), seed=5) as federation:
        assert method.fit(federation).empty_cells
        dealt = MomentsLayout.quantised

        def cheating(self: MomentsLayout, me: Party, number: int) -> Any:
            rows = dealt(self, me, number)
            if me.name == "bank":
                rows[3, 2] += self.gamma  # the presence, the mask of debt, the mask of rating
            return rows

        monkeypatch.setattr(MomentsLayout, "quantised", cheating)
        with pytest.raises(VerificationFailed, match="rows by 'bank'"):
            method.fit(federation)


def test_noisy_masked_moments_are_unbiased(tmp_path: Path) -> None:
    """The mean of 20 noisy matrices is the exact one: every entry within 5 of its standard errors, and their mean
    square is that of the stated noise within 25 %."""
    blocks = blocks_with_gaps(150)
    columns = ("debt", "claims", "size")
    with gaps_federation(tmp_path, blocks, with_rule(None)) as federation:
        exact = Moments(epsilon=None, presence="secret", columns=columns).fit(federation)
        noisy = [
            Moments(epsilon=20.0, presence="secret", columns=columns, verify=False).fit(federation) for _ in range(20)
        ]
    upper = np.triu_indices(len(exact.entries[0]))
    errors = np.array([(result.grams[0] - exact.grams[0])[upper] for result in noisy]) / noisy[0].noise_sd
    assert np.abs(errors.mean(axis=0)).max() < 5 / np.sqrt(len(noisy))
    assert abs(np.mean(errors**2) - 1) < 0.25
