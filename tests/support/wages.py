"""Wages that depend on columns of three parties, with blocks missing at random: the data of the regression oracles."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
from scipy.special import expit

from colonnade.data.column import Column, Columns
from colonnade.federation.coordinator import Federation

ALLOW = ("presence", "exact-moments")
COLUMNS = Columns(
    [
        Column(name="wage", kind="continuous", lower=0.0, upper=100.0),
        Column(name="age", kind="continuous", lower=0.0, upper=120.0),
        Column(name="debt", kind="continuous", lower=-40.0, upper=40.0),
        Column(name="grade", kind="ordinal", categories=("C", "B", "A")),
        Column(name="sector", kind="categorical", categories=("farming", "trade", "mining")),
        Column(name="visits", kind="count", lower=0, upper=30),
    ]
)
HELD = {"employer": ["wage", "age"], "bank": ["debt", "grade"], "clinic": ["sector", "visits"]}


def whole_table(n: int, seed: int = 0) -> pd.DataFrame:
    """Correlated columns of three parties; `wage` depends on all of them."""
    rng = np.random.default_rng(seed)
    common = rng.normal(size=n)
    age = np.clip(45 + 10 * (0.6 * common + 0.8 * rng.normal(size=n)), 0, 120)
    debt = np.clip(6 * (0.5 * common + rng.normal(size=n)), -40, 40)
    grade = np.digitize(-0.4 * common + rng.normal(size=n), [-0.5, 0.6])
    sector = rng.choice(3, size=n, p=[0.5, 0.3, 0.2])
    visits = np.clip(np.rint(8 + 2 * common + 2 * rng.normal(size=n)), 0, 30).astype(int)
    mean = 20 + 0.3 * age - 0.4 * debt + 2 * grade + 3 * (sector == 1) - 1.0 * visits
    return pd.DataFrame(
        {
            "id": [f"P{i:05d}" for i in range(n)],
            "wage": np.clip(mean + 4 * rng.normal(size=n), 0, 100),
            "age": age,
            "debt": debt,
            "grade": np.array(["C", "B", "A"])[grade],
            "sector": np.array(["farming", "trade", "mining"])[sector],
            "visits": visits,
        }
    )


def blocks_missing_at_random(table: pd.DataFrame, seed: int = 1) -> dict[str, pd.DataFrame]:
    """Wage drives who is at the bank and at the clinic; the employer lacks the first tenth."""
    rng = np.random.default_rng(seed)
    score = ((table["wage"] - table["wage"].mean()) / table["wage"].std()).to_numpy()
    there = {
        "employer": np.arange(len(table)) >= len(table) // 10,
        "bank": rng.random(len(table)) < expit(0.5 + score),
        "clinic": rng.random(len(table)) < expit(-0.2 - score),
    }
    return {party: table.loc[there[party], ["id", *names]] for party, names in HELD.items()}


def complete_blocks(table: pd.DataFrame) -> dict[str, pd.DataFrame]:
    return {party: table[["id", *names]] for party, names in HELD.items()}


def federation(
    path: Path, blocks: dict[str, pd.DataFrame], columns: Columns = COLUMNS, **options: object
) -> Federation:
    chosen = {"allow": ALLOW, "home": path / "home", "runs": path / "runs", **options}
    return Federation.local(blocks, key="id", columns=columns, **chosen)


def pooled(blocks: dict[str, pd.DataFrame]) -> pd.DataFrame:
    """Numbers with NaN, one row for each of the employer's records; the response last."""
    joined = blocks["employer"]
    for party in blocks.keys() - {"employer"}:
        joined = joined.merge(blocks[party], on="id", how="left")
    return pd.DataFrame(
        {
            "age": joined["age"],
            "debt": joined["debt"],
            "grade": joined["grade"].map({"C": 0.0, "B": 1.0, "A": 2.0}),
            "sector[trade]": (joined["sector"] == "trade").astype(float).where(joined["sector"].notna()),
            "sector[mining]": (joined["sector"] == "mining").astype(float).where(joined["sector"].notna()),
            "visits": joined["visits"],
            "wage": joined["wage"],
        }
    )
