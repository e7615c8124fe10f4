"""Tries to refute `models/linear/private.claim.md` for the two releases that a private regression adds.

Oracle: a numerical search over rows for the sensitivities; and the audit of worst-case neighbours (one record at its
bound, or nothing) with the product's own discrete Gaussian noise, which also must catch noise divided by 1.4.
"""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy.special import expit

from colonnade.audit.claims import claimed_curve
from colonnade.audit.mechanism import Audit
from colonnade.audit.planted import NOTHING, Planted
from colonnade.models.linear.attacks import own_moments_audit
from colonnade.models.linear.private import own_sensitivity
from colonnade.models.linear.propensity import fitted_logit
from colonnade.models.linear.selection import extended, extended_norm, noisy_logits, score_sensitivity
from colonnade.models.linear.weighed import LOCAL, WeighedLayout, clipped, inner_products, weighted_rows
from colonnade.models.private_scales import NORM_BINS, cells_of_lengths
from colonnade.privacy.cost import Gaussian
from colonnade.privacy.randomness import SimulatedRandomness
from colonnade.statistics.attacks import upper_triangle
from colonnade.statistics.features import quantize
from support.small import three_parties

GAMMA, NORM, LEVEL = 64, 1.5, 0.4
RUNS, DELTA = 60_000, 1e-5
RANDOM = SimulatedRandomness(9)


def triangle(row: NDArray[np.int64]) -> NDArray[np.int64]:
    return upper_triangle(row)


def test_no_row_moves_the_own_moments_by_more_than_the_sensitivity() -> None:
    """Random rows and the corners, quantised as the response holder does; the worst comes within 3 %. A replaced record
    moves two triangles by at most sqrt(2) of it, in one pattern or in two."""
    rng = np.random.default_rng(0)
    bound = own_sensitivity(GAMMA, NORM)
    rows = rng.uniform(-1.5, 1.5, (3000, 3)) * rng.choice([0.3, 1.0, 5.0], (3000, 1))
    rows[:3] = [[1, 1, 1], [1, -1, 0], [1, 1, math.sqrt(NORM**2 - 2)]]
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


def test_no_record_moves_weighted_products_by_more_than_the_sensitivity(tmp_path: Path) -> None:
    """Random and corner rows of three parties, quantised as they are shared, with weights that a hostile coordinator
    may choose: the worst of them comes within a quarter of the bound (not all norms are reached together), and none
    passes it. Twice it bounds what a replaced record moves. A layout that forgot the products within a party is caught.
    """
    with three_parties(tmp_path) as federation:
        layout = WeighedLayout(
            facts=federation.facts,
            roster=federation.roster,
            names=("sued", "rating", "age", "visits"),
            gamma=GAMMA,
            clip={"clinic": 1.1, "court": 0.9, "bank": 0.7},
            levels=dict.fromkeys(LOCAL, 1.0),
        )
    assert layout.response_party == "clinic"
    rng, randomness = np.random.default_rng(0), SimulatedRandomness(1)
    many = 2000
    own = clipped(rng.choice([-1.0, 0.0, 1.0], (many, layout.width("clinic"))) * rng.uniform(0, 3, (many, 1)), 1.1)
    own[0] = clipped(np.array([[0.8, 0.8]]), 1.1)
    weights = rng.choice([0.0, 0.5, 1.0], (many, 2))
    weights[0] = 1.0
    heads = [
        layout.integers(part, layout.head_norm, randomness)
        for part in weighted_rows(extended(own, layout.pairs), weights)
    ]
    moved, without = [], []
    for place, party in enumerate(layout.others):
        bound = layout.clip[party]
        x = clipped(rng.choice([-1.0, 1.0], (many, layout.width(party))) * rng.uniform(0.5, 3, (many, 1)), bound)
        x[0] = bound / math.sqrt(x.shape[1])
        whole = layout.integers(x, bound, randomness)
        inner = layout.integers(inner_products(x), layout.inner_norm(party), randomness)
        moved += [np.einsum("ni,nj->nij", heads[place], whole), heads[place][:, :1, None] * inner[:, None]]
        without.append(whole)
    moved.append(np.einsum("ni,nj->nij", *without))
    contributions = np.concatenate([part.reshape(many, -1) for part in moved], axis=1).astype(float)
    assert contributions.shape[1] == layout.size
    lengths = np.linalg.norm(contributions, axis=1)
    assert 0.75 * layout.delta_2 < lengths.max() <= layout.delta_2
    other = contributions[rng.permutation(many)]
    assert np.linalg.norm(contributions - other, axis=1).max() <= 2 * layout.delta_2
    forgotten = math.sqrt(
        layout.delta_2**2 - sum((GAMMA**2 * layout.inner_norm(party)) ** 2 for party in layout.others)
    )
    assert lengths.max() > forgotten


def test_no_record_moves_the_scores_by_more_than_the_sensitivity() -> None:
    """What `noisy_logits` sums, caught on its way, for a record with any presence and any chances: blocks together."""
    norm, blocks = 1.5, 3
    rng = np.random.default_rng(3)
    rows = clipped(rng.normal(size=(500, 4)) * 3, norm)
    bound = score_sensitivity(GAMMA, norm, blocks)
    present, chances = rng.integers(2, size=(500, blocks)), rng.choice([0.0, 0.3, 1.0], (500, blocks))
    parts = [
        quantize(rows * (present - chances)[:, [block]], gamma=GAMMA, clip=norm, entry=norm, randomness=RANDOM)
        for block in range(blocks)
    ]
    lengths = np.linalg.norm(np.concatenate(parts, axis=1).astype(float), axis=1)
    assert 0.95 * bound < lengths.max() <= bound
    assert lengths.max() > score_sensitivity(GAMMA, norm, blocks - 1)  # a bound for too few blocks is caught


def test_the_log_odds_of_presence_are_near_and_carry_the_stated_noise() -> None:
    """Against penalised maximum likelihood without noise; and the spread over repetitions is that of the last score."""
    rng = np.random.default_rng(4)
    own = clipped(rng.normal(size=(20_000, 2)) / 3, 1.2)
    rows = extended(own, ((0, 1),))
    chance = expit(0.3 + 3.0 * own[:, 0])
    present = (rng.random(len(rows)) < chance)[:, None]
    total = rows.T @ rows
    options = {"gamma": 2**10, "norm": extended_norm(1.2, ((0, 1),))}
    calm = noisy_logits(rows, present, total, sigma=1.0, rand=SimulatedRandomness(5), **options)
    np.testing.assert_allclose(calm[0], fitted_logit(rows, present[:, 0], None), atol=0.12)
    sigma = 40.0 * 2**10
    found = np.array(
        [
            noisy_logits(rows, present, total, sigma=sigma, rand=SimulatedRandomness(seed), **options)
            for seed in range(30)
        ]
    )[:, 0]
    last = 4 * np.linalg.inv(total) * 40.0
    expected = np.sqrt(np.diag(last @ last.T))
    ratio = found.std(axis=0, ddof=1) / expected
    assert np.all((ratio > 0.5) & (ratio < 2.0))  # faint directions have less, and earlier steps leave a part


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
