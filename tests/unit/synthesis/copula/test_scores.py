"""Private marginals and score maps. Oracles: exact counts, closed forms, brute force over neighbours."""

from __future__ import annotations

import math
from functools import partial
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from colonnade.data.column import Column
from colonnade.privacy.accounting import guarantee
from colonnade.privacy.cost import GaussianCell
from colonnade.privacy.noise import discrete_gaussian
from colonnade.privacy.randomness import SimulatedRandomness
from colonnade.statistics.adaptive import Axis, release, to_arrays
from colonnade.statistics.marginals import Marginal
from colonnade.synthesis.copula.model import as_points, stepwise
from colonnade.synthesis.copula.scores import (
    MarginalReleases,
    column_rounds,
    count,
    party_marginals,
    released_size,
    round_number,
    score_factor,
    score_map,
)
from support.copulas import EVERY_KIND, mixed_copula, mixed_marginals

ROUNDS = 5
Encoded = dict[str, np.ndarray]


def encoded_rows(rows: int) -> Encoded:
    frame = mixed_copula().sample(rows, 2)
    return {name: column.encode(frame[name]) for name, column in EVERY_KIND.items()}


def released(encoded: Encoded, *, n: int, sigma: float, seed: int = 1) -> dict[str, Any]:
    """What a party with these values would release."""
    randomness, answers = SimulatedRandomness(seed), dict[str, Any]()
    for name, column in EVERY_KIND.items():
        if stepwise(column):
            exact = count(column, encoded[name])
            noise = discrete_gaussian(randomness, sigma, exact.size) if sigma else 0
            answers[name] = exact + noise
            continue
        axis, ordered = Axis.of(column), np.sort(encoded[name])
        rounds = column_rounds(sigma, ROUNDS)
        turns = release(partial(axis.count, ordered), axis, n=n, rounds=rounds, randomness=randomness)
        answers[name] = to_arrays(turns, rounds)
    return answers


def test_without_noise_a_marginal_is_the_ecdf_at_its_edges() -> None:
    encoded = encoded_rows(3000)
    made = party_marginals(EVERY_KIND, released(encoded, n=3000, sigma=0.0), n=3000, sigma=0.0, rounds=ROUNDS)
    assert made.present == pytest.approx(3000)
    assert not made.mostly_noise
    for name, column in EVERY_KIND.items():
        marginal = made.marginals[name]
        values = np.sort(as_points(column, encoded[name]))
        found = np.searchsorted(values, values, side="right") / 3000
        assert np.abs(marginal.cdf(values) - found).max() < (1e-9 if marginal.discrete else 0.01), name


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
            drawn = scores(marginal.quantile(u) - moved)
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
    assert scores(np.array([np.nan, -1e9, 1e9])).tolist() == [0.0, -1.0, 1.0]
    assert score_map(EVERY_KIND["sued"], mixed_marginals()["sued"])(np.array([-1]))[0] == 0
    wild = type(scores)(np.array([0.0, 1.0]), np.array([-50.0, np.nan]))
    assert np.abs(wild(np.array([0.0, 0.5, 1.0]))).max() <= 1


def test_a_zeroed_record_moves_one_cell_of_each_round_by_one() -> None:
    """Brute force over the records of a small block: the sensitivity that `marginals_cost` rests on. The cells of a
    round are the same with and without the record, because they follow from the noisy counts before it."""
    encoded = encoded_rows(40)
    for name, column in EVERY_KIND.items():
        if stepwise(column):
            counted = [partial(count, column)]
        else:
            axis, rounds = Axis.of(column), column_rounds(2.0, ROUNDS)
            turns = release(
                partial(axis.count, np.sort(encoded[name])),
                axis,
                n=40,
                rounds=rounds,
                randomness=SimulatedRandomness(3),
            )
            counted = [lambda values, edges=turn.edges, axis=axis: axis.count(np.sort(values), edges) for turn in turns]
        for exact in counted:
            all_records = exact(encoded[name])
            for record in range(40):
                moved = all_records - exact(np.delete(encoded[name], record))
                assert moved.sum() == np.abs(moved).sum() == moved.max() == 1


def test_a_column_costs_nearly_the_same_whatever_its_kind() -> None:
    """zCDP: R rounds with noise sqrt(R) sigma cost 1 / (2 sigma^2), like a histogram with noise sigma."""
    kinds = (MarginalReleases(steps=30, refined=0, rounds=7), MarginalReleases(steps=0, refined=30, rounds=7))
    each = [guarantee([releases.cost(20.0)], delta=1e-5).epsilon for releases in kinds]
    assert each[0] == pytest.approx(each[1], rel=0.02)
    alone = guarantee([GaussianCell(20.0).times(30)], delta=1e-5).epsilon
    assert each[0] == pytest.approx(alone)


def test_noise_that_hides_everything_leaves_a_proper_marginal() -> None:
    nobody = {name: values[:0] for name, values in encoded_rows(10).items()}
    for sigma in (1.0, 100.0, 1e6):
        answers = released(nobody, n=60, sigma=sigma)
        made = party_marginals(EVERY_KIND, answers, n=60, sigma=sigma, rounds=ROUNDS)
        assert set(made.mostly_noise) >= {name for name, column in EVERY_KIND.items() if not stepwise(column)}
        for name, column in EVERY_KIND.items():
            levels = score_map(column, made.marginals[name]).levels
            assert np.isfinite(levels).all()
            assert np.abs(levels).max() <= 1


def test_the_number_of_records_is_estimated_within_its_stated_error() -> None:
    """150 replications: the mean square of (estimate - truth) / sd is at most 1 + 6 sqrt(2 / 150)."""
    encoded, sigma = encoded_rows(500), 10.0
    off = []
    for seed in range(150):
        answers = released(encoded, n=500, sigma=sigma, seed=seed)
        made = party_marginals(EVERY_KIND, answers, n=500, sigma=sigma, rounds=ROUNDS)
        off.append((made.present - 500) / made.present_sd)
    assert abs(np.mean(off)) < 6 / math.sqrt(150)
    assert 0.5 < np.mean(np.square(off)) < 1 + 6 * math.sqrt(2 / 150)


def test_rounds_grow_with_the_records_and_shrink_with_the_noise() -> None:
    assert [round_number(n, 100.0) for n in (10, 5_000, 70_000, 10**7)] == [2, 4, 7, 9]
    assert round_number(70_000, 1e6) == 2
    assert released_size(EVERY_KIND["sued"], 4) == 2


def test_a_point_mass_has_one_score_in_the_middle_of_its_jump() -> None:
    """60 % zeros: their score is a (2 * 0.3 - 1), that of a value just above is a (2 * 0.6 - 1)."""
    column = Column(name="hours", kind="continuous", lower=0.0, upper=10.0)
    marginal = Marginal(np.array([0.0, 0.0, 10.0]), np.array([0.0, 0.6, 1.0]))
    scores = score_map(column, marginal)
    factor = score_factor(marginal)
    found = scores(np.array([0.0, 1e-9, 5.0, 10.0]))
    assert found == pytest.approx(factor * (2 * np.array([0.3, 0.6, 0.8, 1.0]) - 1), abs=1e-6)
    u = (np.arange(100_000) + 0.5) / 100_000
    drawn = scores(marginal.quantile(u))
    assert drawn.mean() == pytest.approx(0, abs=1e-4)
    assert drawn.var() == pytest.approx(factor**2 * (1 - 0.6**3) / 3, rel=1e-3)
