"""Small federations."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from colonnade.data.column import Column, Columns
from colonnade.federation.coordinator import Federation

COLUMNS = Columns(
    [
        Column(name="age", kind="continuous", lower=0.0, upper=100.0),
        Column(name="visits", kind="count", lower=0, upper=9),
        Column(name="sector", kind="categorical", categories=("farming", "trade", "mining")),
        Column(name="sued", kind="binary", categories=("no", "yes")),
        Column(name="rating", kind="ordinal", categories=("C", "B", "A")),
    ]
)


def three_overlapping_blocks(n: int = 60, seed: int = 1) -> dict[str, pd.DataFrame]:
    """Three parties; each lacks a quarter of the records, and a quarter are complete."""
    rng = np.random.default_rng(seed)
    keys = [f"K{i:05d}" for i in range(n)]
    whole = {
        "clinic": pd.DataFrame({"id": keys, "age": rng.uniform(0, 100, n), "visits": rng.integers(0, 10, n)}),
        "court": pd.DataFrame({"id": keys, "sued": rng.choice(["no", "yes"], n)}),
        "bank": pd.DataFrame(
            {"id": keys, "sector": rng.choice(["farming", "trade", "mining"], n), "rating": rng.choice(list("CBA"), n)}
        ),
    }
    return {
        party: frame[np.arange(n) % 4 != skip].sample(frac=1, random_state=seed).reset_index(drop=True)
        for skip, (party, frame) in enumerate(whole.items())
    }


def three_parties(tmp_path: Path, **options: Any) -> Federation:
    """A local federation of three parties in `tmp_path`, which run the steps of the tests too if they are in this
    process."""
    if options.get("transport", "embedded") == "embedded":
        options.setdefault("packages", ("colonnade.papers", "support.steps"))
    return Federation.local(
        options.pop("blocks", None) or three_overlapping_blocks(),
        key="id",
        columns=options.pop("columns", COLUMNS),
        home=tmp_path / "home",
        runs=tmp_path / "runs",
        **options,
    )


ENGINES = ("holders", "pair")


def computing_by(engine: str, blocks: dict[str, pd.DataFrame]) -> dict[str, Any]:
    """The parties as share holders, or in pairs without any."""
    return {"blocks": blocks, **committee_of(engine)}


def committee_of(engine: str) -> dict[str, Any]:
    return {"committee": "pair"} if engine == "pair" else {}
