"""Two and three parties that train a split network, without the method around it."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from colonnade.completion.method import CompletionMethod
from colonnade.completion.result import Completion
from colonnade.completion.split.rounds import History, Meeting, Planner, RegressionRounds
from colonnade.completion.split.training import Regression
from colonnade.data.column import Column, Columns
from colonnade.federation.coordinator import Federation
from support.plans import plan_of_stages

ALLOWED = ("presence", "split-training")
ALLOW = (
    "presence",
    "split-training",
    "correlated-columns",
    "completion-quality",
    "linear-predictors",
    "exact-moments",
    "exact-marginals",
)

QUICK: dict[str, Any] = {"iterations": 300, "local": 10, "batch": 64, "hidden": 32, "cut": 8, "learning_rate": 3e-3}


def curved_pair(n: int = 400, *, missing: float = 0.3, seed: int = 1) -> tuple[dict[str, pd.DataFrame], Columns]:
    """`left` has two numbers and a category for everybody, `right` three columns that bend with them, for some."""
    rng = np.random.default_rng(seed)
    u, v = rng.random(n), rng.random(n)
    kind = rng.choice(["a", "b", "c"], n)
    bump = np.sin(3 * u) * (kind == "a") + v * (kind == "b")
    left = pd.DataFrame({"id": np.arange(n), "u": u, "v": v, "kind": kind})
    right = pd.DataFrame(
        {
            "id": np.arange(n),
            "bump": np.clip(bump + 0.1 * rng.normal(size=n), -1, 2),
            "high": np.where(u + 0.2 * rng.normal(size=n) > 0.5, "yes", "no"),
            "steps": np.clip(np.rint(10 * u * v + rng.normal(size=n)), 0, 12).astype(int),
        }
    )
    columns = Columns(
        [
            Column(name="u", kind="continuous", lower=0, upper=1),
            Column(name="v", kind="continuous", lower=0, upper=1),
            Column(name="kind", kind="categorical", categories=("a", "b", "c")),
            Column(name="bump", kind="continuous", lower=-1, upper=2),
            Column(name="high", kind="binary", categories=("no", "yes")),
            Column(name="steps", kind="count", lower=0, upper=12),
        ]
    )
    there = rng.random(n) >= missing
    return {"left": left, "right": right[there].reset_index(drop=True)}, columns


def regression_of(**more: Any) -> Regression:
    """`right`'s columns from `left`'s."""
    options: dict[str, Any] = {
        "label": "regression",
        "active": "right",
        "parties": ("left", "right"),
        "inputs": {"left": ("u", "v", "kind")},
        "outputs": ("bump", "high", "steps"),
        "iterations": 60,
        "local": 5,
        "batch": 32,
        "hidden": 8,
        "cut": 4,
        "seed": 3,
    }
    return Regression(**{**options, **more})


def run_training(
    federation: Federation, training: Regression, *, first: Mapping[str, int] | None = None
) -> tuple[History, Any]:
    """Meet and train as a job of its own: (history, job)."""
    planner = Planner(federation.facts, federation.roster)
    meeting = Meeting(training.parties, training.masking, planner)
    rounds = RegressionRounds(training, planner)
    with federation.open(plan_of_stages("complete", (*meeting.stages, *rounds.stages))) as job:
        history = rounds.run(job, meeting.run(job), first=first)
    return history, job


def completed(
    tmp_path: Path, method: CompletionMethod, n: int = 600, **more: Any
) -> tuple[Completion, pd.DataFrame, Any]:
    """The result of completing `right`, its table, and the data."""
    blocks, columns = curved_pair(n)
    options: dict[str, Any] = {"seed": 3, "allow": ALLOW, "holder": "notary", **more}
    with Federation.local(blocks, key="id", columns=columns, home=tmp_path / "home", **options) as opened:
        result = method.fit(opened)
        return result, result.table("right"), (blocks, columns)
