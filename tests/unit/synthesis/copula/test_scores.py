"""Private marginals and score maps. Oracles: exact counts, closed forms, brute force over neighbours."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from colonnade.privacy.accounting import guarantee
from colonnade.privacy.cost import GaussianCell
from colonnade.statistics.marginals import Marginal
from colonnade.statistics.quantiles import dyadic_counts
from colonnade.synthesis.copula.model import as_points, stepwise
from colonnade.synthesis.copula.scores import (
    MarginalReleases,
    count,
    party_marginals,
    released_size,
    score_factor,
    score_map,
    tree_depth,
)
from support.copulas import EVERY_KIND, mixed_copula, mixed_marginals

DEPTH = 5


def exact_counts(rows: int = 3000) -> tuple[dict[str, np.ndarray], dict[str, np.ndarray]]:
    """Encoded values of 3,000 rows of every kind, and what a party would release without noise."""
    frame = mixed_copula().sample(rows, 2)
    encoded = {name: column.encode(frame[name]) for name, column in EVERY_KIND.items()}
    counts = {name: count(column, encoded[name], depth=DEPTH) for name, column in EVERY_KIND.items()}
    return encoded, {name: one if stepwise(EVERY_KIND[name]) else dyadic_counts(one) for name, one in counts.items()}


def test_without_noise_a_marginal_is_the_ecdf_at_its_knots() -> None:
    encoded, counts = exact_counts()
    made = party_marginals(EVERY_KIND, counts, sigma=0.0, depth=DEPTH)
    assert made.present == pytest.approx(3000)
    for name, column in EVERY_KIND.items():
        one = made.marginals[name]
        values = as_points(column, encoded[name])
        at = one.points
        # Cells are half open, [a, b): a value on an edge belongs to the cell above it.
        below = (values[:, None] <= at).mean(axis=0) if one.discrete else (values[:, None] < at).mean(axis=0)
        below[-1] = 1.0
        assert np.allclose(one.cumulative, below, atol=1e-12), name
        assert counts[name].size == released_size(column, DEPTH)


def test_scores_lie_in_the_unit_interval_with_mean_0_and_variance_a_third() -> None:
    """Under its own marginal a score has mean 0, and variance 1/3 unless it would pass 1."""
    for name, column in EVERY_KIND.items():
        marginal = mixed_marginals()[name]
        scores = score_map(column, marginal)
        levels = scores.levels
        assert np.all(np.diff(levels) >= 0)
        assert np.abs(levels).max() <= 1
        if not marginal.discrete:
            u = (np.arange(200_000) + 0.5) / 200_000
            moved = 0.5 if column.kind == "count" else 0.0
            drawn = scores(marginal.quantile(u) - moved, discrete=False)
            assert drawn.mean() == pytest.approx(0, abs=1e-6)
            assert drawn.var() == pytest.approx(1 / 3, abs=1e-5)
            continue
        chances = marginal.probabilities
        assert chances @ levels == pytest.approx(0, abs=1e-12)
        variance = float(chances @ levels**2)
        if variance > 1e-12:
            assert variance == pytest.approx(1 / 3) or np.abs(levels).max() == pytest.approx(1)
            assert variance <= 1 / 3 + 1e-12


@settings(max_examples=100, deadline=None)
@given(st.lists(st.floats(0, 1), min_size=1, max_size=9).filter(lambda p: sum(p) > 0.01))
def test_the_score_factor_is_sound_for_any_probabilities(weights: list[float]) -> None:
    chances = np.array(weights) / sum(weights)
    cumulative = np.minimum(np.cumsum(chances), 1.0)
    cumulative[-1] = 1.0
    marginal = Marginal(np.arange(chances.size, dtype=float), cumulative, discrete=True)
    levels = score_factor(marginal) * (2 * marginal.scores(marginal.points) - 1)
    assert np.abs(levels).max() <= 1 + 1e-12
    assert float(marginal.probabilities @ levels**2) <= 1 / 3 + 1e-9


def test_scores_of_an_empty_cell_and_of_wild_maps_are_bounded() -> None:
    scores = score_map(EVERY_KIND["age"], mixed_marginals()["age"])
    assert scores(np.array([np.nan, -1e9, 1e9]), discrete=False).tolist() == [0.0, -1.0, 1.0]
    assert score_map(EVERY_KIND["sued"], mixed_marginals()["sued"])(np.array([-1]), discrete=True)[0] == 0
    wild = type(scores)(np.array([0.0, 1.0]), np.array([-50.0, np.nan]))
    assert np.abs(wild(np.array([0.0, 0.5, 1.0]), discrete=False)).max() <= 1


def test_a_zeroed_record_moves_one_cell_of_each_level_by_one() -> None:
    """Brute force over the records of a small block: the sensitivity that `marginals_cost` rests on."""
    frame = mixed_copula().sample(40, 3)
    for name, column in EVERY_KIND.items():
        encoded = column.encode(frame[name])
        levels = 1 if stepwise(column) else DEPTH

        def released(values: np.ndarray, column: object = column) -> np.ndarray:
            counts = count(column, values, depth=DEPTH)  # type: ignore[arg-type]
            return counts if stepwise(column) else dyadic_counts(counts)  # type: ignore[arg-type]

        whole = released(encoded)
        for record in range(40):
            moved = whole - released(np.delete(encoded, record))
            assert moved.sum() == np.abs(moved).sum() == levels
            assert moved.max() == 1


def test_a_column_costs_nearly_the_same_whatever_its_kind() -> None:
    """zCDP: a tree of depth d with noise sqrt(d) sigma costs 1 / (2 sigma^2), like a histogram with noise sigma."""
    kinds = (MarginalReleases(steps=30, trees=0, depth=7), MarginalReleases(steps=0, trees=30, depth=7))
    each = [guarantee([releases.cost(20.0)], delta=1e-5).epsilon for releases in kinds]
    assert each[0] == pytest.approx(each[1], rel=0.02)
    alone = guarantee([GaussianCell(20.0).times(30)], delta=1e-5).epsilon
    assert each[0] == pytest.approx(alone)


def test_noise_that_hides_everything_leaves_a_proper_marginal() -> None:
    rng = np.random.default_rng(1)
    for scale in (1.0, 100.0, 1e6):
        noisy = {
            name: np.rint(rng.normal(0, scale, released_size(column, DEPTH))).astype(np.int64)
            for name, column in EVERY_KIND.items()
        }
        made = party_marginals(EVERY_KIND, noisy, sigma=scale, depth=DEPTH)
        for name, column in EVERY_KIND.items():
            levels = score_map(column, made.marginals[name]).levels
            assert np.isfinite(levels).all()
            assert np.abs(levels).max() <= 1


def test_the_number_of_records_is_estimated_within_its_stated_error() -> None:
    """1,000 replications with normal noise: the mean square of (estimate - truth) / sd is at most 1 + 6 sqrt(2/1000).

    It may be less than 1: the stated error ignores what least squares gains on a tree.
    """
    _, counts = exact_counts(500)
    rng = np.random.default_rng(3)
    sigma = 30.0
    off = []
    for _ in range(1000):
        noisy = {
            name: np.rint(
                one + rng.normal(0, sigma * (1 if stepwise(EVERY_KIND[name]) else math.sqrt(DEPTH)), one.size)
            )
            for name, one in counts.items()
        }
        made = party_marginals(
            EVERY_KIND, {name: one.astype(np.int64) for name, one in noisy.items()}, sigma=sigma, depth=DEPTH
        )
        off.append((made.present - 500) / made.present_sd)
    assert abs(np.mean(off)) < 6 / math.sqrt(1000)
    assert 0.5 < np.mean(np.square(off)) < 1 + 6 * math.sqrt(2 / 1000)


def test_trees_grow_with_the_records_and_shrink_with_the_noise() -> None:
    assert [tree_depth(n, 100.0) for n in (10, 5_000, 70_000, 10**7)] == [2, 4, 7, 9]
    assert tree_depth(70_000, 1e6) == 2
