"""How far a column spreads, from counts whose noise reaches into its tails."""

from __future__ import annotations

import math

import numpy as np
import pytest

from colonnade.data.column import Column, Columns
from colonnade.federation.facts import PublicFacts
from colonnade.models.private_scales import centre_and_deviation, rank_noise
from colonnade.statistics.describe import DEPTH
from colonnade.statistics.features import features
from colonnade.statistics.quantiles import consistent_leaves, dyadic_counts

N = 7000
COLUMN = Column(name="x", kind="continuous", lower=-6.0, upper=6.0)


def noisy_tree(values: np.ndarray, level: float, rng: np.random.Generator) -> np.ndarray:
    tree = dyadic_counts(np.histogram(values, 2**DEPTH, (-6.0, 6.0))[0])
    return tree + rng.normal(0.0, level * math.sqrt(DEPTH), len(tree))


@pytest.mark.parametrize(("level", "off"), [(0.0, 0.03), (57.0, 0.2), (140.0, 0.5)])
def test_noise_in_the_tails_does_not_widen_a_column(level: float, off: float) -> None:
    """Level 57 is what 64 columns have at epsilon 3: there the 2.5th percentile of one of 7,000 records is a bound."""
    rng = np.random.default_rng(1)
    (feature,) = features(PublicFacts(n=N, columns={"a": Columns([COLUMN])}), ("x",))
    found = [
        centre_and_deviation(COLUMN, feature, noisy_tree(0.5 + 0.8 * rng.normal(size=N), level, rng), level=level)
        for _ in range(20)
    ]
    centre, deviation = np.median(found, axis=0)
    assert centre == pytest.approx(0.5, abs=0.8 * off)
    assert deviation == pytest.approx(0.8, rel=off)
    assert max(spread for _, spread in found) < 0.8 * (1 + 2 * off)


def test_the_noise_of_a_rank_is_at_most_what_is_said() -> None:
    rng, level = np.random.default_rng(2), 10.0
    nothing = np.zeros(2 ** (DEPTH + 1) - 2)
    leaves = [
        consistent_leaves(nothing + rng.normal(0, level * math.sqrt(DEPTH), len(nothing)), DEPTH) for _ in range(200)
    ]
    ranks = np.cumsum(leaves, axis=1).std(axis=0)
    assert rank_noise(level) / 2 < np.median(ranks) < rank_noise(level)
