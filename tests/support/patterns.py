"""Blocks in which every presence pattern occurs, the one with all parties among them."""

from __future__ import annotations

import numpy as np
import pandas as pd

from colonnade.data.column import Column, Columns
from support.small import COLUMNS

FIVE_COLUMNS = Columns([*COLUMNS.values(), *(Column(name=f"x{i}", kind="binary", categories=(0, 1)) for i in range(2))])


def blocks_of_every_pattern(n: int = 63, *, parties: int = 3, seed: int = 1) -> dict[str, pd.DataFrame]:
    """Three parties with the columns of `support.small`, or five with two binary columns more; rows in random order.

    Ages are such that 900 times their scaled values are integers, with both extremes among them.
    """
    rng = np.random.default_rng(seed)
    whole = {
        "clinic": {"age": rng.choice([0.0, 100.0, 50.0, 12.5, 99.0], n), "visits": rng.integers(0, 10, n)},
        "court": {"sued": rng.choice(["no", "yes"], n)},
        "bank": {"sector": rng.choice(["farming", "trade", "mining"], n), "rating": rng.choice(list("CBA"), n)},
        "extra0": {"x0": rng.integers(0, 2, n)},
        "extra1": {"x1": rng.integers(0, 2, n)},
    }
    keys = np.array([f"K{i:05d}" for i in range(n)])
    pattern = 1 + np.arange(n) % (2**parties - 1)
    blocks = {}
    for k, (party, columns) in enumerate(list(whole.items())[:parties]):
        frame = pd.DataFrame({"id": keys, **columns})[(pattern >> k) % 2 == 1]
        blocks[party] = frame.sample(frac=1, random_state=seed).reset_index(drop=True)
    return blocks
