"""Three parties with nine covariates and a response of each family, all at the first party."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from scipy.special import expit

from colonnade.data.column import Column, Columns
from colonnade.federation.coordinator import Federation

COVARIATES = tuple(f"x{j}" for j in range(9))
RESPONSES = {"gaussian": "wage", "binomial": "event", "poisson": "visits"}
BETA = np.array([0.5, -0.4, 0.0, 0.0, 0.35, 0.0, 0.0, -0.3, 0.0])
HELD = {
    "employer": ["x0", "x1", *RESPONSES.values()],
    "bank": ["x2", "x3", "x4"],
    "clinic": ["x5", "x6", "x7", "x8"],
}
COLUMNS = Columns(
    [
        *(Column(name=name, kind="continuous", lower=-6.0, upper=6.0) for name in COVARIATES),
        Column(name="wage", kind="continuous", lower=-10.0, upper=30.0),
        Column(name="event", kind="binary", categories=("no", "yes")),
        Column(name="visits", kind="count", lower=0, upper=80),
    ]
)
ROUNDS = ("presence", "record-count", "total-predictor", "response-residuals", "loss", "gradients", "coefficients")
ALLOW = (*ROUNDS, "exact-moments", "party-predictor")


def related_table(n: int, seed: int = 0) -> pd.DataFrame:
    """All covariates are correlated by 0.2; four of nine matter."""
    rng = np.random.default_rng(seed)
    x = np.clip(np.sqrt(0.8) * rng.normal(size=(n, 9)) + np.sqrt(0.2) * rng.normal(size=(n, 1)), -6, 6)
    eta = x @ BETA
    return pd.DataFrame(
        {
            "id": [f"P{i:05d}" for i in range(n)],
            **{name: x[:, j] for j, name in enumerate(COVARIATES)},
            "wage": np.clip(5 + 3 * eta + 2 * rng.normal(size=n), -10, 30),
            "event": np.where(rng.random(n) < expit(0.3 + 1.5 * eta), "yes", "no"),
            "visits": np.minimum(rng.poisson(np.exp(0.4 + eta)), 80),
        }
    )


def numbers(table: pd.DataFrame, family: str) -> np.ndarray:
    """The response as the likelihood sees it."""
    response = table[RESPONSES[family]]
    return np.asarray((response == "yes") if family == "binomial" else response, dtype=np.float64)


def blocks(table: pd.DataFrame) -> dict[str, pd.DataFrame]:
    return {party: table[["id", *names]] for party, names in HELD.items()}


def selection_federation(path: Path, table: pd.DataFrame, **options: Any) -> Federation:
    chosen = {"columns": COLUMNS, "allow": ALLOW, "home": path / "home", "runs": path / "runs", **options}
    return Federation.local(chosen.pop("blocks", None) or blocks(table), key="id", **chosen)


def cohort_rows(parties: Federation, table: pd.DataFrame) -> NDArray[np.int64]:
    """Which row of the table each row of the cohort is, from the holder's own alignment (the test may look)."""
    holder = parties.transport["employer"]  # type: ignore[index]
    rows = np.empty(len(table), dtype=np.int64)
    rows[holder.rows] = np.arange(len(table))
    return rows
