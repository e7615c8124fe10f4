"""Buyers of a shop, with columns at three parties: a binary response that follows two numbers and a category."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from colonnade.data.column import Column, Columns
from colonnade.federation.coordinator import Federation
from support.small import three_parties

COLUMNS = Columns(
    [
        Column(name="x0", kind="continuous", lower=-1.0, upper=1.0),
        Column(name="x1", kind="continuous", lower=-1.0, upper=1.0),
        Column(name="place", kind="categorical", categories=("north", "south", "west")),
        Column(name="x2", kind="continuous", lower=-1.0, upper=1.0),
        Column(name="bought", kind="binary", categories=("no", "yes")),
    ]
)
OWNERS = {"shop": ["x0", "bought"], "census": ["place", "x1"], "bank": ["x2"]}


def buyers(n: int = 300) -> pd.DataFrame:
    """A response that follows two of the numbers and one category; numbers on a grid of 1/1024."""
    rng = np.random.default_rng(4)
    numbers = np.rint(rng.uniform(-1, 1, (n, 3)) * 1024) / 1024
    frame = pd.DataFrame(numbers, columns=["x0", "x1", "x2"]).assign(
        id=np.arange(n), place=rng.choice(["north", "south", "west"], n)
    )
    odds = 3 * frame["x0"] - 2 * frame["x2"] + 1.5 * (frame["place"] == "west") - 0.3
    return frame.assign(bought=np.where(rng.uniform(size=n) < 1 / (1 + np.exp(-odds)), "yes", "no"))


def buyers_federation(tmp_path: Path, frame: pd.DataFrame, *, absent: str | None = None, **options: Any) -> Federation:
    """`absent` lacks every fifth record."""
    blocks = {
        party: frame.loc[(frame["id"] % 5 != 0) | (party != absent), ["id", *names]] for party, names in OWNERS.items()
    }
    return three_parties(tmp_path, blocks=blocks, columns=COLUMNS, **options)


def pooled(frame: pd.DataFrame) -> tuple[np.ndarray, np.ndarray]:
    """(features in the order of the parties, response in {-1, 1})."""
    place = np.column_stack([frame["place"] == "south", frame["place"] == "west"]).astype(float)
    rows = np.column_stack([frame["x0"], frame["x1"], place, frame["x2"]])
    return rows, np.where(frame["bought"] == "yes", 1.0, -1.0)


NAMES = ("x0", "x1", "place[south]", "place[west]", "x2")
