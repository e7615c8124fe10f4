"""Blocks with dependence across parties, for synthesizers of categories."""

from __future__ import annotations

import numpy as np
import pandas as pd

CATEGORIES = {"sector": ["farming", "trade", "mining"], "sued": ["no", "yes"], "rating": ["C", "B", "A"]}


def dependent_blocks(n: int = 3000) -> dict[str, pd.DataFrame]:
    """Columns of three parties that follow one another closely."""
    rng = np.random.default_rng(4)
    level = rng.integers(0, 3, n)
    keys = [f"K{i:05d}" for i in range(n)]
    near = np.where(rng.random(n) < 0.9, level, rng.integers(0, 3, n))
    return {
        "clinic": pd.DataFrame({"id": keys, "age": 30.0 * level + rng.uniform(0, 10, n), "visits": 3 * near}),
        "court": pd.DataFrame({"id": keys, "sued": np.where(level == 2, "yes", "no")}),
        "bank": pd.DataFrame(
            {"id": keys, "sector": np.array(CATEGORIES["sector"])[near], "rating": np.array(list("CBA"))[level]}
        ),
    }
