"""Histogram recovery and consistency. Oracles: closed forms and direct sums."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from colonnade.errors import BadArguments
from colonnade.papers.vertimrf.recovery import consistent, normalised, recover
from colonnade.synthesis.field.schema import equal_width


def test_recovery_is_exact_for_independent_cells() -> None:
    """If cells are independent within bins, HisRec returns the table that was summed."""
    rng = np.random.default_rng(1)
    a, b = rng.uniform(1, 5, 7), rng.uniform(1, 5, 6)
    table = np.outer(a, b)
    bins = [equal_width(7, 3), equal_width(6, 2)]
    rows, columns = (np.eye(int(bin_of.max()) + 1)[bin_of] for bin_of in bins)
    coarse = rows.T @ table @ columns
    assert coarse.shape == (3, 2)
    assert coarse.sum() == pytest.approx(table.sum())
    np.testing.assert_allclose(recover(coarse, bins, [a, b]), table)
    even = recover(coarse, bins, [a, b], by="uniform")
    np.testing.assert_allclose(rows.T @ even @ columns, coarse)
    assert len(np.unique(np.round(even[:2, :3], 9))) == 1, "spread evenly inside a bin"


def test_a_bin_without_mass_is_spread_evenly() -> None:
    made = recover(np.array([6.0, 4.0]), [np.array([0, 0, 1])], [np.array([0.0, 0.0, 9.0])])
    assert made.tolist() == [3.0, 3.0, 4.0]


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 10_000))
def test_consistency_reaches_agreement(seed) -> None:
    """The fixed point of Algorithm 6: the two sides differ by less than the tolerance, nothing is negative."""
    rng = np.random.default_rng(seed)
    truth = rng.uniform(0.5, 2, (4, 5))
    noisy = truth + rng.normal(0, 0.3, truth.shape)
    margins = [truth.sum(axis=1), truth.sum(axis=0)]
    made = consistent(noisy, margins, total=100.0, tolerance=1e-6, most=2000)
    assert made.sum() == pytest.approx(100.0)
    assert made.min() >= 0
    before = np.abs(normalised(noisy).sum(axis=1) - normalised(margins[0])).sum()
    after = np.abs(made.sum(axis=1) / 100 - normalised(margins[0])).sum()
    assert after <= before + 1e-9, "half-way is never further away"


def test_consistency_moves_towards_the_marginals_not_away() -> None:
    """The sign: the text of 6.2 has it the wrong way round. One step by hand from a uniform 2 x 2 table."""
    made = consistent(np.full((2, 2), 0.25), [np.array([0.8, 0.2]), np.array([0.5, 0.5])], total=1.0, most=1)
    np.testing.assert_allclose(made, [[0.325, 0.325], [0.175, 0.175]])


def test_consistency_needs_a_marginal_for_each_axis() -> None:
    for marginals in ([np.ones(2)], [np.ones(2), np.ones(3)]):
        with pytest.raises(BadArguments, match="one marginal"):
            consistent(np.ones((2, 2)), marginals, total=1.0)
