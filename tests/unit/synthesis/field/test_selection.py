"""Coarse bins, and which tables are measured. Oracles: closed forms and direct sums."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from colonnade.errors import BadArguments, NotEstimable
from colonnade.synthesis.field.fit import Measurement
from colonnade.synthesis.field.graph import spanning_tree, triangulate
from colonnade.synthesis.field.procedure import coarse_bins
from colonnade.synthesis.field.schema import equal_mass, equal_width
from colonnade.synthesis.field.selection import (
    CoarseField,
    pair_scores,
    r_score,
    select_pairs,
    share_units,
    triples_that_pay,
)


def test_equal_width_is_the_papers() -> None:
    """floor(10 / 4) = 2 values a bin, and the last bin takes the rest."""
    assert equal_width(10, 4).tolist() == [0, 0, 1, 1, 2, 2, 3, 3, 3, 3]
    assert equal_width(3, 4).tolist() == [0, 1, 2], "fewer values than bins: as it is"
    with pytest.raises(BadArguments):
        equal_width(3, 0)
    with pytest.raises(BadArguments):
        equal_mass(np.ones(3), 0)


@given(st.lists(st.floats(-5, 100), min_size=1, max_size=60), st.integers(1, 12))
def test_bins_of_equal_mass_are_runs_of_neighbours(counts, bins) -> None:
    made = equal_mass(np.array(counts), bins)
    assert made[0] == 0
    assert set(np.diff(made)) <= {0, 1}, "neighbouring cells, no number left out"
    assert made[-1] < max(bins, 1) or len(counts) <= bins


def test_bins_of_equal_mass_hold_about_the_same() -> None:
    counts = np.ones(80)
    assert np.bincount(equal_mass(counts, 8)).tolist() == [10] * 8


def test_the_r_score_of_perfect_dependence() -> None:
    """Half of sum |p - q|: for a 2 x 2 diagonal, 4 cells that are each off by 1/4."""
    half = np.array([0.5, 0.5])
    assert r_score(np.diag([50.0, 50.0]), half, half) == pytest.approx(0.5)
    assert r_score(np.outer(half, half), half, half) == pytest.approx(0.0)


def test_noise_is_taken_off_the_score() -> None:
    """Independent columns under noise: the debiased score is near 0, the raw one is sqrt(2/pi) sd cells / (2 n)."""
    rng = np.random.default_rng(2)
    n, sd, cells = 10_000.0, 40.0, 8
    chances = np.full(cells, 1 / cells)
    noisy = n * np.outer(chances, chances) + rng.normal(0, sd, (cells, cells))
    one = Measurement(("a", "b"), noisy, sd)
    score = pair_scores([one], {"a": chances, "b": chances}, total=n)[("a", "b")]
    raw = math.sqrt(2 / math.pi) * sd * cells**2 / (2 * n)
    # The sum of 64 absolute normals has sd 0.603 sd sqrt(64) = 4.8 sd: 5 of these, false alarm below 1e-6.
    assert abs(score) < 5 * 4.8 * sd / (2 * n)
    assert raw > 0.1


def coarse_tables(joint: np.ndarray, names: str, sd: float) -> tuple[list[Measurement], list[Measurement]]:
    """One-way tables and pairs of a joint table, exact, with the noise that is stated for them."""

    def table(columns: tuple[str, ...]) -> Measurement:
        return Measurement(columns, joint.sum(axis=tuple(names.index(one) for one in names if one not in columns)), sd)

    return [table((name,)) for name in names], [table(pair) for pair in itertools.combinations(names, 2)]


def chances_of(one_way: list[Measurement], total: float) -> dict[str, np.ndarray]:
    return {table.columns[0]: table.counts / total for table in one_way}


def test_a_pair_that_depends_through_a_third_column_is_left_out() -> None:
    """A chain a - b - c with strong links: a and c depend clearly, but b explains it. d and e depend a little, and on
    nothing else. By R-scores alone the pair of a and c would come before that of d and e."""
    link, weak = np.array([[0.45, 0.05], [0.05, 0.45]]), np.array([[0.28, 0.22], [0.22, 0.28]])
    joint = 10_000 * np.einsum("ab,bc,de->abcde", link, link / link.sum(axis=1)[:, None], weak)
    one_way, pairs = coarse_tables(joint, "abcde", 1.0)
    scores = pair_scores(pairs, chances_of(one_way, 10_000.0), total=10_000.0)
    assert scores["a", "c"] > 4 * scores["d", "e"] > 0.2
    coarse = CoarseField(one_way, pairs, total=10_000.0)
    sizes = dict.fromkeys("abcde", 2)
    options = {"total": 10_000.0, "unit_sd": 1.0, "theta": 0.25, "units": 12, "limit": 1000}
    assert set(select_pairs(coarse, scores, sizes, **options)) == {("a", "b"), ("b", "c"), ("d", "e")}
    field = coarse.fitted([("a", "b"), ("b", "c")])
    assert coarse.residual(field, ("a", "c")) < 0.005
    assert coarse.residual(field, ("d", "e")) == pytest.approx(scores["d", "e"], abs=0.005)


def test_residuals_are_against_the_field_in_the_bins_of_the_pairs() -> None:
    """A column of four cells in two bins: with no link the residual is the R-score of the coarse table."""
    rng = np.random.default_rng(6)
    fine = 9000 * rng.dirichlet(np.ones(12)).reshape(4, 3)
    bins = np.array([0, 0, 1, 1])
    pair = Measurement(("a", "b"), np.eye(2)[bins].T @ fine, 3.0, (bins, None))
    one_way = [Measurement(("a",), fine.sum(axis=1), 3.0), Measurement(("b",), fine.sum(axis=0), 3.0)]
    coarse = CoarseField(one_way, [pair], total=9000.0)
    score = pair_scores([pair], chances_of(one_way, 9000.0), total=9000.0)["a", "b"]
    assert coarse.residual(coarse.fitted([]), ("a", "b")) == pytest.approx(score, abs=0.002)


def test_selection_takes_a_tree_first_and_leaves_what_noise_hides() -> None:
    """Of a, b and c each pair depends in its own way; d, of 40 cells, depends on a a little."""
    rng = np.random.default_rng(3)
    abc = rng.dirichlet(np.full(64, 0.3)).reshape(4, 4, 4)
    d_a = np.full((4, 40), 1 / 40) * (1 + 0.1 * rng.choice([-1, 1], (4, 40)))
    joint = 10_000 * np.einsum("abc,ad->abcd", abc, d_a / d_a.sum(axis=1)[:, None])
    one_way, pairs = coarse_tables(joint, "abcd", 1.0)
    scores = pair_scores(pairs, chances_of(one_way, 10_000.0), total=10_000.0)
    coarse = CoarseField(one_way, pairs, total=10_000.0)
    sizes = {"a": 4, "b": 4, "c": 4, "d": 40}
    options = {"total": 10_000.0, "units": 6, "limit": 10_000, "theta": 0.25}
    chosen = select_pairs(coarse, scores, sizes, unit_sd=1.0, **options)
    assert set(chosen[:3]) == set(spanning_tree(list(sizes), scores)), "so that no column stands alone"
    assert {("a", "b"), ("a", "c"), ("b", "c"), ("a", "d")} == set(chosen)
    # A pair of 160 cells at noise 100 hides 0.25 sqrt(2/pi) 100 160 / 20,000 = 0.16 of the score.
    noisy = select_pairs(coarse, scores, sizes, unit_sd=100.0, **options)
    assert set(noisy) == {("a", "b"), ("a", "c"), ("b", "c")}
    with pytest.raises(NotEstimable, match="d"):
        select_pairs(coarse, scores, sizes, unit_sd=1.0, **{**options, "limit": 20})
    few = select_pairs(coarse, scores, sizes, unit_sd=1.0, **{**options, "limit": 250})
    assert triangulate(sizes, few).cells <= 250


def test_fewer_bins_where_noise_is_large() -> None:
    """0.4 sd b^2 / n is at most 0.12: with n = 10,000, 8 bins up to an sd of 46.9, 4 up to 187.5, 2 at the worst."""
    assert [coarse_bins(10_000, sd) for sd in (1.0, 46.0, 48.0, 187.0, 188.0, 1e6)] == [8, 8, 7, 4, 3, 2]


def test_triples_lie_in_a_clique_and_hold_enough_records() -> None:
    graph = triangulate({"a": 2, "b": 3, "c": 4, "d": 50}, [("a", "b"), ("b", "c"), ("a", "c"), ("c", "d"), ("b", "d")])
    scores = {("a", "b"): 0.1, ("a", "c"): 0.1, ("b", "c"): 0.1, ("b", "d"): 0.3, ("c", "d"): 0.3}

    def found(pair, chosen=tuple(scores), room=100):
        return triples_that_pay(
            graph, chosen, scores, total=1000.0, sd=5.0, theta=4.0, joint=lambda triple: pair, room=room
        )

    assert found(("a", "b")) == [("a", "b", "c")], "1000 / 24 >= 20, but 1000 / 600 is not"
    assert found(None) == [], "three parties: a product of degree 3"
    assert found(("a", "b"), [("a", "b"), ("c", "d")]) == [], "it would take the place of one pair only"
    assert found(("a", "b"), room=5) == [], "its joint row has 6 cells"


@given(st.integers(1, 12), st.integers(0, 40))
def test_units_are_shared_out_whole(count, extra) -> None:
    tables = [(f"x{at}", "y") for at in range(count)]
    sizes = {"y": 2} | {f"x{at}": at + 1 for at in range(count)}
    made = share_units(tables, sizes, units=count + extra)
    assert sum(made.values()) == count + extra
    assert max(made.values()) - min(made.values()) <= 1
    assert made[tables[-1]] == max(made.values()), "what is left over goes to the largest"
