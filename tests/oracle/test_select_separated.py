"""Selection for a binary response where a category separates the classes, or the rounds end too soon: the path that
there is, not an error after rounds that cannot be taken back."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

import colonnade as co
from colonnade.data.column import Column, Columns
from colonnade.models.sparse.result import Selection

N = 1000
SEEN = ("coefficients", "gradients", "loss", "presence", "record-count", "response-residuals", "party-predictor")


@pytest.fixture(scope="module")
def tables() -> tuple[dict[str, pd.DataFrame], Columns]:
    """Of three parties; every record of the rarest category is an event."""
    rng = np.random.default_rng(0)
    x, group = rng.normal(size=(N, 4)), rng.choice(3, N, p=[0.6, 0.35, 0.05])
    event = (rng.random(N) < 1 / (1 + np.exp(-(x[:, 0] + 0.7 * x[:, 2])))) | (group == 2)
    frame = pd.DataFrame(x, columns=["a", "b", "c", "d"]).assign(
        group=np.array(["x", "y", "z"])[group], event=np.where(event, "yes", "no"), id=np.arange(N)
    )
    columns = [Column(name=name, kind="continuous", lower=-6, upper=6) for name in "abcd"]
    columns.append(Column(name="group", kind="categorical", categories=("x", "y", "z")))
    columns.append(Column(name="event", kind="binary", categories=("no", "yes")))
    parts = {"p": ["event", "a"], "q": ["b", "c"], "r": ["d", "group"]}
    return {party: frame[["id", *names]] for party, names in parts.items()}, Columns(columns)


def selected(tables: tuple[dict[str, pd.DataFrame], Columns], folder: Path, **options: Any) -> Selection:
    blocks, columns = tables
    with co.Federation.local(blocks, key="id", columns=columns, allow=SEEN, seed=1, runs=folder) as federation:
        method = co.Select(response="event", family="binomial", masking="plain", n_lambdas=12, **options)
        return method.fit(federation)


def test_the_path_ends_where_coefficients_grow_without_bound(
    tables: tuple[dict[str, pd.DataFrame], Columns], tmp_path: Path
) -> None:
    fitted = selected(tables, tmp_path, ratio=1e-4)
    assert {"a", "c"} <= set(fitted.support)
    assert 2 <= len(fitted.lambdas) < 12
    assert any("nearly separate the classes" in note for note in fitted.notes)


def test_rounds_that_are_used_up_leave_the_path_so_far(
    tables: tuple[dict[str, pd.DataFrame], Columns], tmp_path: Path
) -> None:
    whole = selected(tables, tmp_path / "whole", penalty="lasso")
    part = selected(tables, tmp_path / "part", penalty="lasso", rounds=20)
    assert part.rounds == 20
    assert 2 < len(part.lambdas) < len(whole.lambdas)
    assert any("20 rounds of the plan are used up" in note for note in part.notes)
    same = whole.path.iloc[: len(part.lambdas)]
    np.testing.assert_allclose(part.path.to_numpy(), same.to_numpy(), atol=1e-12)
