"""A federation of three parties whose tables have empty cells, and the same without the records that have one."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from colonnade.data.column import Column, Columns, EmptyRule
from colonnade.federation.coordinator import Federation

HELD = {"registry": ("size", "sector"), "bank": ("debt", "rating"), "court": ("claims", "sued")}
COLUMNS = Columns(
    [
        Column(name="size", kind="continuous", lower=-4.0, upper=4.0),
        Column(name="sector", kind="categorical", categories=("farming", "trade", "mining")),
        Column(name="debt", kind="continuous", lower=-4.0, upper=4.0),
        Column(name="rating", kind="ordinal", categories=("C", "B", "A")),
        Column(name="claims", kind="count", lower=0, upper=16),
        Column(name="sued", kind="binary", categories=("no", "yes")),
    ]
)


def gapless_table(n: int, seed: int = 3) -> pd.DataFrame:
    """All columns of n records; numbers are multiples of 1/64, so that a gamma of 2^12 rounds nothing."""
    rng = np.random.default_rng(seed)
    latent = rng.normal(size=(n, 5)) @ np.linalg.cholesky(0.5 * np.eye(5) + 0.5).T
    grid = np.clip(np.rint(64 * latent) / 64, -4, 4)
    return pd.DataFrame(
        {
            "id": [f"K{i:05d}" for i in range(n)],
            "size": grid[:, 0],
            "sector": np.array(["farming", "trade", "mining"])[np.digitize(latent[:, 1], [-0.5, 0.6])],
            "debt": grid[:, 2],
            "rating": np.array(["C", "B", "A"])[np.digitize(latent[:, 3], [-0.4, 0.5])],
            "claims": np.clip(np.rint(8 + 2 * latent[:, 4]), 0, 16).astype(int),
            "sued": np.where(latent[:, 2] + latent[:, 4] + rng.normal(size=n) > 0, "yes", "no"),
        }
    )


def blocks_with_gaps(
    n: int = 400, *, share: float = 0.05, names: tuple[str, ...] = tuple(COLUMNS), absent: float = 0.1, seed: int = 3
) -> dict[str, pd.DataFrame]:
    """`share` of the cells of these columns are empty, and every party but the first lacks `absent` of the records."""
    table, rng = gapless_table(n, seed), np.random.default_rng(seed + 1)
    blocks = {}
    for party, held in HELD.items():
        block = table[["id", *held]].copy()
        for name in held:
            if name in names:
                block[name] = block[name].astype(object)
                block.loc[rng.uniform(size=n) < share, name] = None
        blocks[party] = block if party == "registry" else block[rng.uniform(size=n) > absent].reset_index(drop=True)
    return blocks


def without_gaps(blocks: dict[str, pd.DataFrame], names: tuple[str, ...]) -> dict[str, pd.DataFrame]:
    """The same blocks without the records that have an empty cell in one of these columns."""
    return {
        party: block.dropna(subset=[name for name in names if name in block]).reset_index(drop=True)
        for party, block in blocks.items()
    }


def with_rule(rule: EmptyRule | None, names: tuple[str, ...] = tuple(COLUMNS)) -> Columns:
    """The columns, of which these may have empty cells, with a rule for these."""
    return Columns(
        replace(column, missing=True, if_empty=rule) if name in names else column for name, column in COLUMNS.items()
    )


def gaps_federation(tmp_path: Path, blocks: dict[str, pd.DataFrame], columns: Columns, **options: Any) -> Federation:
    allow = ("presence", "exact-moments", "exact-marginals", "exact-polynomial", "exact-tables", "record-count")
    return Federation.local(
        blocks,
        key="id",
        columns=columns,
        home=tmp_path / "home",
        runs=tmp_path / "runs",
        **{"allow": allow, **options},
    )


def pairwise_covariance(table: pd.DataFrame) -> pd.DataFrame:
    """Over the records that have both; pandas divides by one less."""
    both = table.notna().astype(float).T @ table.notna().astype(float)
    return table.cov() * (both - 1) / both
