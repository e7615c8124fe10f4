"""Between a layout's matrix and what a network learns: normal scores for numbers, indicators for categories.

Numbers come first, then the indicators, column by column. A number's normal score is read off the training records
(`Empirical`), as the TabDDPM paper does with its quantile transformation; the way back rounds to what a column can be.
A condition is standardised; a missing entry of it is its mean.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from colonnade.completion.generators.empirical import Empirical
from colonnade.completion.layout import Layout, Matrix

Reals = NDArray[np.float64]
Floats = NDArray[np.float32]

FARTHEST = 5.0
"""A standardised condition is clipped there."""


@dataclass(frozen=True, eq=False)
class Preparation:
    """The marginals of the numeric columns, and the mean and spread of each column of the condition."""

    layout: Layout
    marginals: tuple[Empirical, ...]
    centre: Reals | None
    spread: Reals | None

    @classmethod
    def of(cls, rows: Reals, condition: NDArray[Any] | None, layout: Layout) -> Preparation:
        marginals = tuple(Empirical.of(rows[:, at]) for at in np.flatnonzero(layout.numeric_mask))
        if condition is None:
            return cls(layout, marginals, None, None)
        given = np.asarray(condition, dtype=np.float64)
        known = ~np.isnan(given)
        count = np.maximum(known.sum(axis=0), 1)
        centre = np.where(known, given, 0.0).sum(axis=0) / count
        spread = np.sqrt(np.where(known, (given - centre) ** 2, 0.0).sum(axis=0) / count)
        return cls(layout, marginals, centre, np.where(spread > 1e-9, spread, 1.0))

    @property
    def numbers(self) -> int:
        return len(self.marginals)

    @property
    def categories(self) -> tuple[int, ...]:
        """How many each one-hot column has."""
        return tuple(self.layout.slices[name].stop - self.layout.slices[name].start for name in self.layout.one_hot)

    @property
    def condition_width(self) -> int | None:
        return None if self.centre is None else len(self.centre)

    def forward(self, rows: Reals, seed: int) -> Floats:
        """A value that many records share is spread over its step, so that every number is standard normal."""
        mask, draw = self.layout.numeric_mask, np.random.default_rng(seed)
        numeric = [one.normal_scores(x, draw) for one, x in zip(self.marginals, rows[:, mask].T, strict=True)]
        return np.concatenate([*(x[:, None] for x in numeric), rows[:, ~mask]], axis=1).astype(np.float32)

    def backward(self, made: NDArray[Any]) -> Matrix:
        mask = self.layout.numeric_mask
        rows = np.zeros((len(made), self.layout.width))
        for at, one, z in zip(np.flatnonzero(mask), self.marginals, made.T[: self.numbers], strict=True):
            rows[:, at] = one.at_normal(z)
        rows[:, ~mask] = made[:, self.numbers :]
        return self.layout.legal(rows)

    def given(self, condition: NDArray[Any] | None, n: int) -> Floats:
        """records x width; without a condition, of width 0."""
        if self.centre is None or self.spread is None or condition is None:
            return np.zeros((n, 0), dtype=np.float32)
        scaled = (np.asarray(condition, dtype=np.float64) - self.centre) / self.spread
        return np.clip(np.nan_to_num(scaled, nan=0.0), -FARTHEST, FARTHEST).astype(np.float32)
