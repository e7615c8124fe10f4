"""The loss over a fold from its moments, against the same record by record."""

from __future__ import annotations

import numpy as np
import pytest

from colonnade.models.sparse.moments import Law, held_out_loss, joined
from colonnade.statistics.features import Feature
from colonnade.statistics.moments import MomentsResult, fold_of

NAMES = ("y", "u", "v", "w")
PARTY = dict(zip(NAMES, "aabc", strict=True))
MEAN = np.array([0.2, -0.1, 0.3, 0.0])
SIGMA = 0.04 * (np.eye(4) + 0.5)


def moments(rows: np.ndarray, patterns: list[tuple[bool, ...]], which: np.ndarray) -> MomentsResult:
    """`which` pattern of (a, b, c) each row has."""
    entries, grams = [], []
    for number, pattern in enumerate(patterns):
        seen = [place for place, name in enumerate(NAMES) if pattern["abc".index(PARTY[name])]]
        extended = np.column_stack([np.ones((which == number).sum()), rows[which == number][:, seen]])
        entries.append(("1", *(NAMES[place] for place in seen)))
        grams.append(extended.T @ extended)
    return MomentsResult(
        n=len(rows),
        parties=("a", "b", "c"),
        presence="known",
        features=tuple(Feature(name, PARTY[name], name, None, 0.0, 1.0) for name in NAMES),
        patterns=tuple(patterns),
        entries=tuple(entries),
        grams=tuple(grams),
        noise_sd=0.0,
        simulated=False,
    )


def test_the_loss_over_a_fold_is_the_expected_one_of_its_records() -> None:
    """What a record lacks is drawn many times given what it shows."""
    rng = np.random.default_rng(1)
    rows = rng.multivariate_normal(MEAN, SIGMA, size=12)
    patterns = [(True, True, True), (True, False, True), (True, False, False)]
    which = np.arange(12) % 3
    direction, intercept = np.array([1.0, -0.7, 0.9, -0.4]), 0.15
    losses = []
    for row, number in zip(rows, which, strict=True):
        lost = [place for place, name in enumerate(NAMES) if not patterns[number]["abc".index(PARTY[name])]]
        seen = [place for place in range(4) if place not in lost]
        drawn = np.tile(row, (200_000, 1))
        if lost:
            toward = np.linalg.solve(SIGMA[np.ix_(seen, seen)], SIGMA[np.ix_(seen, lost)])
            left = SIGMA[np.ix_(lost, lost)] - SIGMA[np.ix_(lost, seen)] @ toward
            given = MEAN[lost] + (row[seen] - MEAN[seen]) @ toward
            drawn[:, lost] = rng.multivariate_normal(given, left, size=len(drawn))
        losses.append(np.mean((drawn @ direction - intercept) ** 2) / 2)
    loss = held_out_loss(moments(rows, patterns, which), Law(MEAN, SIGMA, 12.0), direction, intercept)
    assert loss == pytest.approx(np.mean(losses), rel=0.01)


def test_folds_are_even_and_add_up() -> None:
    rng = np.random.default_rng(2)
    rows, fold = rng.uniform(-1, 1, size=(17, 4)), fold_of(17, 5)
    assert sorted(np.bincount(fold)) == [3, 3, 3, 4, 4]
    everywhere = [(True, True, True)]
    parts = [moments(rows[fold == number], everywhere, np.zeros((fold == number).sum())) for number in range(5)]
    together = moments(rows, everywhere, np.zeros(17))
    np.testing.assert_allclose(joined(parts).grams[0], together.grams[0])
