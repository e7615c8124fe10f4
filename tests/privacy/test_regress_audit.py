"""Tries to refute `models/linear/private.claim.md` for the two releases that a private regression adds.

Oracle: a numerical search over rows for the sensitivities; and the audit of worst-case neighbours (one record at its
bound, or nothing) with the product's own discrete Gaussian noise, which also must catch noise divided by 1.4.
"""

from __future__ import annotations

import math

import numpy as np
import pytest
from numpy.typing import NDArray

from colonnade.audit.claims import claimed_curve
from colonnade.audit.mechanism import Audit
from colonnade.audit.planted import NOTHING, Planted
from colonnade.models.linear.attacks import own_moments_audit
from colonnade.models.linear.private import own_sensitivity
from colonnade.models.private_scales import NORM_BINS, cells_of_lengths
from colonnade.privacy.cost import Gaussian
from colonnade.privacy.randomness import SimulatedRandomness
from colonnade.statistics.attacks import upper_triangle
from colonnade.statistics.features import quantize

GAMMA, NORM, LEVEL = 64, 1.2, 0.4
RUNS, DELTA = 60_000, 1e-5


def triangle(row: NDArray[np.int64]) -> NDArray[np.int64]:
    return upper_triangle(np.concatenate([[GAMMA], row]))


def test_no_row_moves_the_own_moments_by_more_than_the_sensitivity() -> None:
    """Random rows and the corners, quantised as the response holder does; the worst comes within 3 %. A replaced record
    moves two triangles by at most sqrt(2) of it, in one pattern or in two."""
    rng = np.random.default_rng(0)
    bound = own_sensitivity(GAMMA, NORM)
    rows = rng.uniform(-1.5, 1.5, (3000, 2)) * rng.choice([0.3, 1.0, 5.0], (3000, 1))
    rows[:5] = [[1, 1], [1, -1], [1, 0], [1, math.sqrt(NORM**2 - 1)], [-1, -1]]
    whole = quantize(rows, gamma=GAMMA, clip=NORM, entry=1.0, randomness=SimulatedRandomness(1))
    moved = np.array([triangle(row) for row in whole]).astype(float)
    worst = np.linalg.norm(moved, axis=1).max()
    assert 0.97 * bound < worst <= bound
    other = moved[rng.permutation(len(moved))]
    assert np.linalg.norm(moved - other, axis=1).max() <= math.sqrt(2) * bound
    assert np.sqrt((moved**2).sum(axis=1) + (other**2).sum(axis=1)).max() <= math.sqrt(2) * bound


def audit(planted: Planted = NOTHING) -> Audit[bool]:
    claim = claimed_curve([Gaussian(LEVEL)], name="own moments")
    return own_moments_audit(claim, level=LEVEL, delta=DELTA, runs=RUNS, gamma=GAMMA, norm=NORM, planted=planted)


def test_the_claim_is_not_refuted() -> None:
    """A false alarm has probability at most 1e-6."""
    result = audit().run(SimulatedRandomness(3))
    assert not result.refuted, str(result)


def test_noise_divided_by_one_point_four_is_refuted() -> None:
    made = audit(Planted(factor=1.4))
    assert made.stated_power is not None
    assert made.stated_power.probability > 0.99
    assert made.run(SimulatedRandomness(4)).refuted


@pytest.mark.parametrize("columns", [1, 3])
def test_a_row_is_in_one_cell_of_the_lengths(columns: int) -> None:
    """The counts of lengths: one row adds 1 to one cell, whatever it is."""
    rows = np.random.default_rng(5).uniform(-1, 1, (500, columns))
    rows[0], rows[1] = 1.0, 0.0
    for row in rows:
        counts = cells_of_lengths(row[None])
        assert counts.sum() == 1
        assert counts.min() == 0
        assert counts.size == NORM_BINS
