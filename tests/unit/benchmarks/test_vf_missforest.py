"""The rival VF-MissForest, on a table whose hidden cells are known."""

from __future__ import annotations

import numpy as np
import pytest
from benchmarks.rivals.vf_missforest import shown, vf_missforest

from colonnade.completion.layout import Layout
from colonnade.data import Column, Columns

NUMBER = Column(name="x", kind="continuous", lower=-5, upper=5)
KIND = Column(name="k", kind="categorical", categories=("a", "b", "c"))


def two_parties(n: int) -> tuple[Layout, np.ndarray, np.ndarray, np.ndarray]:
    """(layout, true matrix, the same with holes, the other party's): a curve and a category that follow the other's."""
    rng = np.random.default_rng(4)
    other = rng.standard_normal((n, 3))
    x = np.clip(np.abs(other[:, 0]) + 0.1 * rng.standard_normal(n), -5, 5)
    codes = np.digitize(other[:, 1], [-0.5, 0.5]).astype(np.int32)
    layout = Layout(Columns([NUMBER, KIND]))
    truth = layout.encode({"x": x, "k": codes})
    holes = truth.copy()
    holes[: n // 2] = np.nan
    return layout, truth, holes, other * [1.0, 0.8, 0.2]


@pytest.mark.parametrize(("hidden", "error", "right"), [(None, 0.025, 0.9), (2, 0.04, 0.8)])
def test_it_finds_a_curve_and_a_category(hidden: int | None, error: float, right: float) -> None:
    layout, truth, holes, other = two_parties(1000)
    found = vf_missforest(holes, layout, [other], hidden=hidden, trees=20, rounds=2, seed=1)
    lost = np.isnan(holes[:, 0])
    np.testing.assert_array_equal(found[~lost], truth[~lost])
    np.testing.assert_array_equal(layout.legal(found)[:, 1:], found[:, 1:])
    assert np.sqrt(np.mean((found[lost, 0] - truth[lost, 0]) ** 2)) < error
    mean = np.sqrt(np.mean((truth[~lost, 0].mean() - truth[lost, 0]) ** 2))
    assert mean > 0.058, "the column's mean is worse"
    assert (np.argmax(found[lost, 1:], axis=1) == np.argmax(truth[lost, 1:], axis=1)).mean() > right
    again = vf_missforest(holes, layout, [other], hidden=hidden, trees=20, rounds=2, seed=1)
    np.testing.assert_array_equal(found, again)


def test_expected_values_are_the_probabilities_of_the_same_categories() -> None:
    layout, truth, holes, other = two_parties(400)
    options = {"trees": 20, "rounds": 2, "seed": 1}
    hard, soft = (vf_missforest(holes, layout, [other], expected=expected, **options) for expected in (False, True))
    lost = np.isnan(holes[:, 0])
    np.testing.assert_array_equal(soft[:, 0], hard[:, 0])
    np.testing.assert_array_equal(soft[~lost], truth[~lost])
    np.testing.assert_allclose(soft[lost, 1:].sum(axis=1), 1.0, atol=1e-6)
    np.testing.assert_array_equal(soft[:, 1:].argmax(axis=1), hard[:, 1:].argmax(axis=1))
    assert ((soft[lost, 1:] > 0) & (soft[lost, 1:] < 1)).any()


def test_a_party_shows_components_rather_than_columns() -> None:
    rng = np.random.default_rng(1)
    matrix = rng.standard_normal((200, 5)) @ np.diag([3, 2, 1, 0.1, 0.1])
    matrix[0, 0] = np.nan
    assert shown(matrix, None).shape == (200, 5)
    scores = shown(matrix, 2)
    assert scores.shape == (200, 2)
    assert abs(np.corrcoef(scores.T)[0, 1]) < 1e-8
    assert np.isfinite(scores).all()
