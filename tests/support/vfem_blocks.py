"""Small blocks for the tests of VFEM under independence: three or more parties, and the pooled records beside them."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from colonnade.data.column import Column, Columns
from colonnade.federation.coordinator import Federation

ALLOW = (
    *("presence", "exact-moments", "exact-scores", "predictor-sums", "predictors", "residuals"),
    *("block-moments", "sketched-columns"),
)


@dataclass(frozen=True, eq=False)
class Simulated:
    """`x` has NaN where a block is missing; `owner` is the place of each covariate's party; the first has y."""

    blocks: dict[str, pd.DataFrame]
    columns: Columns
    x: NDArray[np.float64]
    y: NDArray[np.float64]
    owner: NDArray[np.intp]

    def federation(self, path: Path, **options: Any) -> Federation:
        chosen = {"allow": ALLOW, "home": path / "home", "runs": path / "runs", **options}
        return Federation.local(self.blocks, key="id", columns=self.columns, **chosen)

    @property
    def names(self) -> list[str]:
        return [name for frame in self.blocks.values() for name in frame.columns if name not in ("id", "y")]


def simulated(
    n: int, widths: tuple[int, ...], present: tuple[float, ...], *, seed: int, correlation: float = 0.0
) -> Simulated:
    """Blocks correlated inside, across parties only if `correlation` is not 0. `x` and `y` have the records with y."""
    rng = np.random.default_rng(seed)
    owner = np.repeat(np.arange(len(widths)), widths)
    common = rng.normal(size=(n, 1))
    x = rng.normal(size=(n, len(owner))) + np.sqrt(correlation) * common
    for place in range(len(widths)):
        inside = np.flatnonzero(owner == place)
        x[:, inside] += 0.5 * x[:, inside[:1]] + 0.3 * place
    x = np.clip(x, -9, 9)
    y = np.clip(1 + x @ rng.uniform(-1, 1, size=len(owner)) + rng.normal(size=n), -40, 40)
    there = np.column_stack([rng.random(n) < rate for rate in present])
    names = [f"{'abcdefgh'[place]}{at}" for at, place in enumerate(owner)]
    whole = pd.DataFrame(x, columns=names).assign(id=[f"K{at:06d}" for at in range(n)], y=y)
    blocks = {}
    for place in range(len(widths)):
        own = [name for name, one in zip(names, owner, strict=True) if one == place] + (["y"] if place == 0 else [])
        blocks["abcdefgh"[place]] = whole.loc[there[:, place], ["id", *own]]
    columns = Columns(
        [Column(name=name, kind="continuous", lower=-9.0, upper=9.0) for name in names]
        + [Column(name="y", kind="continuous", lower=-40.0, upper=40.0)]
    )
    used = there[:, 0]
    seen = np.where(there[:, owner], x, np.nan)
    return Simulated(blocks, columns, seen[used], y[used], owner)
