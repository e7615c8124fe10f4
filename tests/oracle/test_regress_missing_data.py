"""What `missing_data()` says about records that lack a block is what the fits do, for every set of options.

The statement is not read for its own sake: blocks are changed or taken away, and from what moves the result follows
which records and columns a fit uses, and so the words in which it must be told. Whether a fit is *right* under a way
of going missing is told by its error against the truth, in its own standard errors.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from numpy.typing import NDArray
from scipy.special import expit

from colonnade.data.column import Column, Columns
from colonnade.federation.coordinator import Federation
from colonnade.federation.method import Method
from colonnade.models.linear import private
from colonnade.models.linear.regress import Regress
from colonnade.models.linear.result import Regression
from colonnade.papers.vfem.method import VFEM
from support.vfem_blocks import ALLOW, Simulated, simulated

Array = NDArray[np.float64]
Blocks = dict[str, pd.DataFrame]
GAMMA = 2**26
METHODS: dict[str, Method[Regression]] = {
    "em": Regress(response="y", missing="em", gamma=GAMMA),
    "complete-case": Regress(response="y", missing="complete-case", gamma=GAMMA),
    "mean": Regress(response="y", missing="mean", gamma=GAMMA),
    "single": Regress(response="y", missing="single", gamma=GAMMA),
    "private": Regress(response="y", epsilon=1e9),
    "vfem exact": VFEM(response="y", solver="exact", gamma=GAMMA),
    "vfem plain": VFEM(response="y", masking="plain", tolerance=1e-9),
    "vfem masked": VFEM(response="y", tolerance=1e-9),
}
MOVED = {"private": 1e-2}
"""The relative change of a coefficient from which a result is another one; noise and rounding move it by less."""


@pytest.fixture(scope="module")
def data() -> Simulated:
    return simulated(900, (2, 2, 1), (1.0, 0.7, 0.6), seed=9)


def fitted(method: Method[Regression], blocks: Blocks, columns: Columns, path: Path) -> Array:
    covariates = tuple(name for frame in blocks.values() for name in frame.columns if name not in ("id", "y"))
    chosen = type(method)(**{**method.get_params(), "columns": covariates})
    with Federation.local(
        blocks, key="id", columns=columns, allow=ALLOW, home=path / "home", runs=path / "runs", seed=5
    ) as federation:
        return np.asarray(chosen.fit(federation).params, dtype=np.float64)


def incomplete_records_change(blocks: Blocks) -> Blocks:
    """What b says about the records that c lacks is another."""
    b = blocks["b"].copy()
    lone = ~b["id"].isin(blocks["c"]["id"])
    b.loc[lone, ["b2", "b3"]] = b.loc[lone, ["b2", "b3"]].to_numpy()[::-1] * [[1.0, -1.0]]
    return {**blocks, "b": b}


def incomplete_records_go(blocks: Blocks) -> Blocks:
    kept = set(blocks["a"]["id"]) & set(blocks["b"]["id"]) & set(blocks["c"]["id"])
    return {party: frame[frame["id"].isin(kept)] for party, frame in blocks.items()}


def other_parties_change(blocks: Blocks) -> Blocks:
    c = blocks["c"].copy()
    c["c4"] = c["c4"].to_numpy()[::-1]
    return {**incomplete_records_change(blocks), "c": c}


def told(*, incomplete: bool, others: bool, without: bool) -> str:
    """The words for a fit: does it change with an incomplete record's block, with the other parties' columns at all,
    and without the incomplete records?"""
    if not others:
        return "Only the response holder's own columns are used, of all its records"
    if not incomplete and not without:
        return "Only records that every party has are used"
    if not incomplete:
        return "a block only where all parties of its group have the record"
    return "Every record with the response is used"


@pytest.mark.parametrize("name", METHODS)
def test_the_records_and_columns_that_are_used(
    name: str, data: Simulated, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    method, limit = METHODS[name], MOVED.get(name, 1e-5)
    monkeypatch.setattr(private, "REDRAWN", 1)  # standard errors are not looked at
    before = fitted(method, data.blocks, data.columns, tmp_path / "before")

    def changed(change: Callable[[Blocks], Blocks]) -> bool:
        after = fitted(method, change(data.blocks), data.columns, tmp_path / change.__name__)
        return bool(np.abs(after / before - 1).max() > limit)

    words = told(
        incomplete=changed(incomplete_records_change),
        others=changed(other_parties_change),
        without=changed(incomplete_records_go),
    )
    assert words in method.missing_data()


def test_a_filled_in_block_is_told_as_such() -> None:
    """Which values it is filled in with: `test_vfem.py::test_baselines_are_least_squares_on_their_tables`."""
    assert "filled in with their means" in METHODS["mean"].missing_data()
    assert not any("filled in" in method.missing_data() for name, method in METHODS.items() if name != "mean")


# --- when it is right -------------------------------------------------------------------------------------

NAMES = ("w", "y", "b", "c")
TRUTH = pd.Series({"const": 0.5, "w": 0.8, "b": 0.6, "c": 0.7})


def gone(mechanism: str, rows: pd.DataFrame, rng: np.random.Generator) -> NDArray[np.bool_]:
    """For which records c is missing: by chance, as the response holder's columns say, or as b's column says, which
    every record has."""
    score = {"completely": 0 * rows["w"], "holder": 1.5 * rows["y"] - 1, "other": 2.5 * rows["b"]}[mechanism]
    return np.asarray(rng.random(len(rows)) < expit(score))


def apart(method: Method[Regression], mechanism: str, path: Path, *, correlation: float = 0.7) -> float:
    """The largest distance of an estimate from the truth, in standard errors; parties correlated by `correlation`."""
    rng = np.random.default_rng(3)
    n = 6000
    common = rng.normal(size=n)
    w, b, c = (np.sqrt(correlation) * common + np.sqrt(1 - correlation) * rng.normal(size=n) for _ in range(3))
    y = TRUTH["const"] + TRUTH["w"] * w + TRUTH["b"] * b + TRUTH["c"] * c + rng.normal(size=n)
    rows = pd.DataFrame({"id": [f"K{place:05d}" for place in range(n)], "w": w, "y": y, "b": b, "c": c})
    blocks = {"holder": rows[["id", "w", "y"]], "b": rows[["id", "b"]]}
    blocks["c"] = rows.loc[~gone(mechanism, rows, rng), ["id", "c"]]
    columns = Columns([Column(name=name, kind="continuous", lower=-12.0, upper=12.0) for name in NAMES])
    with Federation.local(
        blocks, key="id", columns=columns, allow=ALLOW, home=path / "home", runs=path / "runs", seed=5
    ) as federation:
        fit = method.fit(federation)
    return float(((fit.params[TRUTH.index] - TRUTH) / fit.bse[TRUTH.index]).abs().max())


RIGHT, WRONG = 3.5, 6.0
"""In standard errors. The seed is fixed; four estimates are all within 3.5 with probability 0.998."""


@pytest.mark.parametrize(
    ("name", "words", "holder", "other"),
    [
        ("em", "right if records are missing at random and the columns are jointly Gaussian.", True, True),
        ("private", "right if whether a block is missing depends on the response holder's columns only", True, False),
        ("complete-case", "right if records are missing completely at random", False, None),
        ("mean", "a baseline, biased", False, None),
    ],
)
def test_the_ways_of_going_missing_under_which_it_is_right(
    name: str, words: str, holder: bool, other: bool | None, tmp_path: Path
) -> None:
    """`holder`: c is missing as the response holder's columns say; `other`: as a column says that another party has."""
    method = METHODS[name]
    assert words in method.missing_data()
    if name != "mean":
        assert apart(method, "completely", tmp_path / "completely") < RIGHT
    for mechanism, right in (("holder", holder), ("other", other)):
        if right is not None:
            distance = apart(method, mechanism, tmp_path / mechanism)
            assert distance < RIGHT if right else distance > WRONG, mechanism


def test_the_papers_model_is_right_at_random_where_parties_are_uncorrelated(tmp_path: Path) -> None:
    method = METHODS["vfem exact"]
    assert "missing at random and columns of different parties are uncorrelated" in method.missing_data()
    for mechanism in ("completely", "holder", "other"):
        assert apart(method, mechanism, tmp_path / mechanism, correlation=0.0) < RIGHT
    assert apart(method, "holder", tmp_path / "correlated") > WRONG
