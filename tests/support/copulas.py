"""Copulas with columns of every kind."""

from __future__ import annotations

import numpy as np

from colonnade.data.column import Column, Columns
from colonnade.statistics.marginals import Marginal
from colonnade.synthesis.copula.model import GaussianCopula

EVERY_KIND = Columns(
    [
        Column(name="age", kind="continuous", lower=0.0, upper=100.0),
        Column(name="visits", kind="count", lower=2, upper=9),
        Column(name="turnover", kind="count", lower=-5, upper=100_000),
        Column(name="sector", kind="categorical", categories=("farming", "trade", "mining")),
        Column(name="sued", kind="binary", categories=(False, True)),
        Column(name="rating", kind="ordinal", categories=(3, 2, 1)),
        Column(name="country", kind="categorical", categories=("only",)),
    ]
)


def mixed_marginals() -> dict[str, Marginal]:
    """One marginal for each column of EVERY_KIND, none of them uniform."""
    share = np.linspace(0, 1, 65) ** 2
    return {
        "age": Marginal(np.linspace(0, 100, 65), share),
        "visits": Marginal(np.arange(2.0, 10.0), np.linspace(1 / 8, 1, 8) ** 0.5, discrete=True),
        "turnover": Marginal(np.linspace(-5, 100_001, 65), share**0.5),
        "sector": Marginal(np.arange(3.0), np.array([0.2, 0.7, 1.0]), discrete=True),
        "sued": Marginal(np.arange(2.0), np.array([0.9, 1.0]), discrete=True),
        "rating": Marginal(np.arange(3.0), np.array([0.0, 0.4, 1.0]), discrete=True),
        "country": Marginal(np.zeros(1), np.ones(1), discrete=True),
    }


def mixed_copula(correlation: float = 0.5) -> GaussianCopula:
    """All pairs of columns of EVERY_KIND equally correlated."""
    size = len(EVERY_KIND)
    return GaussianCopula(
        EVERY_KIND, mixed_marginals(), np.full((size, size), correlation) + (1 - correlation) * np.eye(size)
    )
