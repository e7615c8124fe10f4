"""The FedPSG paper's completion from end to end: drawn columns, GANs, what they are conditioned on."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

import colonnade as co
from colonnade.errors import BadArguments, NotApproved
from colonnade.papers.fedpsg.drawn import choose_correlated, spearman
from colonnade.papers.fedpsg.method import FedPSG
from support.split import ALLOW, QUICK, completed, curved_pair

GAN: dict[str, Any] = {"n_correlated": 0, "iterations": 60, "local": 20, "batch": 32, "hidden": 8, "cut": 4}


def test_correlated_columns_are_drawn_first(tmp_path: Path) -> None:
    """Drawn values have a scatter that expected ones lack."""
    expected, _, _ = completed(tmp_path / "a", co.Complete(**QUICK))
    drawn, _, _ = completed(tmp_path / "b", FedPSG(imputer="regression", n_correlated=3, generator="copula", **QUICK))
    assert len(drawn.chosen["right"]) == 3
    assert drawn.quality("right")["rmse"] > expected.quality("right")["rmse"]


@pytest.mark.parametrize("imputer", ["vgain", "cgain"])
def test_a_vertical_gan_completes_reports_and_repeats(tmp_path: Path, imputer: Any) -> None:
    """Under one seed a simulation gives the same table twice; a completion above its floor is told as failing."""
    label = "kind" if imputer == "cgain" else None
    method = FedPSG(imputer=imputer, label=label, condition="none", parties=("right",), **GAN)
    allow = (*ALLOW, "labels")
    (result, table, _), (again, repeated, _) = (completed(tmp_path / at, method, n=200, allow=allow) for at in "ab")
    assert table["high"].notna().all()
    pd.testing.assert_frame_equal(table, repeated)
    assert result.histories[imputer] == again.histories[imputer]
    told = result.quality("right")
    assert result.failing == (() if told["rmse"] < told["rmse of the mean"] else ("right",))
    assert ("accuracy" in result.downstream.get("classifier with completed records", {})) == (imputer == "cgain")


def test_the_greedy_choice_follows_the_strongest_pairs() -> None:
    strength = np.array([[0, 0.9, 0.1, 0.2], [0.9, 0, 0.3, 0.4], [0.1, 0.3, 0, 0.8], [0.2, 0.4, 0.8, 0]])
    assert choose_correlated(list("abcd"), strength, 2) == ["b", "a"]
    assert choose_correlated(list("abcd"), strength, 3) == ["b", "a", "d"]
    assert sorted(choose_correlated(list("abcd"), strength, 9)) == list("abcd")
    values = {"x": np.arange(50.0), "y": -(np.arange(50.0) ** 3), "z": np.zeros(50)}
    assert np.allclose(spearman(values)[0], [0, 1, 0])


def test_a_party_that_does_not_name_the_papers_has_none_of_their_steps(tmp_path: Path) -> None:
    """It is refused before any data is touched; what every party has still runs there."""
    blocks, columns = curved_pair(60)
    known: dict[str, Any] = {"seed": 3, "allow": ALLOW, "home": tmp_path / "home", "packages": ()}
    with co.Federation.local(blocks, key="id", columns=columns, **known) as opened:
        with pytest.raises(NotApproved):
            FedPSG(parties=("right",), **GAN).fit(opened)
        assert co.Complete(imputer="mean").fit(opened).parties["right"]["completed"] > 0


def test_refusals() -> None:
    for wrong in (
        {"n_correlated": -1},
        {"n_correlated": 1.0},
        {"imputer": "cgain"},
        {"hide": 1.0},
        {"generator": "gan"},
        {"epsilon": 1.0, "imputer": "mice", "n_correlated": 0},
    ):
        with pytest.raises(BadArguments):
            FedPSG(**wrong)


def test_as_printed_sets_what_the_paper_prints_and_takes_changes() -> None:
    printed = FedPSG.as_printed()
    assert (printed.n_correlated, printed.generator, printed.iterations) == (5, "tabddpm", 10_000)
    assert (printed.condition, printed.masking, printed.hide, printed.local) == ("none", "ckks", 0.0, 1)
    assert FedPSG.as_printed(imputer="vgain", masking="pads") == FedPSG(
        **{**printed.get_params(), "imputer": "vgain", "masking": "pads"}
    )


@pytest.mark.parametrize("condition", ["none", "aligned"])
def test_a_gan_knows_about_a_missing_record_what_it_says(tmp_path: Path, condition: Any) -> None:
    """Without a condition the values of missing records have nothing to do with the others' columns."""
    blocks, columns = curved_pair(400)
    method = FedPSG(imputer="gain", n_correlated=0, condition=condition, parties=("right",), **QUICK)
    known: dict[str, Any] = {"seed": 3, "allow": ALLOW, "home": tmp_path / "home"}
    with co.Federation.local(blocks, key="id", columns=columns, **known) as opened:
        expected = method.fit(opened).expected("right").set_index("cohort row")["high[yes]"]
        parties: Any = opened.transport
        u = pd.Series(blocks["left"]["u"].to_numpy(), index=parties["left"].rows)
    strength = abs(float(np.corrcoef(u.loc[expected.index], expected)[0, 1]))
    assert strength > 0.7 if condition == "aligned" else strength < 0.3
    assert ("generated with nothing of what the other parties know" in method.missing_data()) == (condition == "none")
