"""Predictive mean matching: the nearest donors, ties, and which values come out."""

from __future__ import annotations

import numpy as np

from colonnade.completion.matching import NEAREST, Expected, OwnRows, nearest


def test_one_of_the_nearest_is_taken_in_one_dimension_and_in_two() -> None:
    rng = np.random.default_rng(1)
    for width in (1, 2):
        wanted, offered = rng.normal(size=(300, width)), rng.normal(size=(80, width))
        apart = np.linalg.norm(wanted[:, None] - offered[None], axis=2)
        ranks = np.argsort(np.argsort(apart, axis=1), axis=1)
        chosen = nearest(wanted, offered, rng)
        taken = ranks[np.arange(300), chosen]
        assert (taken < NEAREST).mean() > 0.99  # but for what the jitter moves
        assert set(taken[taken < NEAREST]) == set(range(NEAREST))


def test_equal_predictions_share_all_donors() -> None:
    chosen = nearest(np.zeros((2000, 1)), np.zeros((50, 1)), np.random.default_rng(1))
    assert np.bincount(chosen, minlength=50).min() > 0


def test_few_donors_are_all_used() -> None:
    assert set(nearest(np.zeros((50, 1)), np.array([[0.0], [1.0]]), np.random.default_rng(1))) == {0, 1}


def rows_with_a_zero_inflated_column(n: int = 600) -> tuple[OwnRows, Expected, np.ndarray]:
    """Two columns given a third; a third of the records lacks both, another tenth the second alone."""
    rng = np.random.default_rng(4)
    known = rng.normal(size=n)
    first = known + 0.5 * rng.normal(size=n)
    second = np.maximum(first + 0.5 * rng.normal(size=n), 0.0)
    features = np.column_stack([first, second])
    lost = np.zeros((n, 2), dtype=bool)
    lost[: n // 3] = True
    lost[n // 3 : n // 3 + n // 10, 1] = True
    rows = np.flatnonzero(lost.any(axis=1))
    shown = features.copy()
    shown[lost] = np.nan
    donors = ~lost.any(axis=1)
    block = OwnRows(shown, [np.array([0]), np.array([1])], rows, lost[rows], np.zeros(n, dtype=np.int64), donors)
    design = np.column_stack([np.ones(n), known])
    slopes = np.linalg.lstsq(design[donors], features[donors], rcond=None)[0]
    expected = design @ slopes
    left = np.cov((features - expected)[donors].T)
    return block, Expected(expected, expected, {0: left}, {0: left}), features


def test_drawn_values_occur_and_hang_together() -> None:
    block, expected, features = rows_with_a_zero_inflated_column()
    chosen = block.drawn(expected, np.random.default_rng(2))
    both = block.lost.all(axis=1)
    assert (chosen[both] >= 0).all()
    assert (chosen[~both, 0] == -1).all()
    assert block.donors[chosen[both]].all()
    drawn = np.column_stack([features[chosen[both, column], column] for column in (0, 1)])
    truth = features[block.rows[both]]
    assert abs((drawn[:, 1] == 0).mean() - (truth[:, 1] == 0).mean()) < 0.08
    assert abs(np.corrcoef(drawn.T)[0, 1] - np.corrcoef(truth.T)[0, 1]) < 0.1
    # The second column alone is drawn given the first, which these records have.
    own = features[block.rows[~both], 0]
    assert np.corrcoef(own, features[chosen[~both, 1], 1])[0, 1] > 0.6
