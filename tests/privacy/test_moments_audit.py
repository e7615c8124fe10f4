"""Tries to refute the claim of `statistics/moments.claim.md`, and shows that it would notice a broken mechanism.

Worst-case neighbours under zero-out: one record at the corner of its domain, or nothing. The mechanism is the
product's own: `quantize`, the integer Gram matrix, and each member's own Skellam share. (That the protocol on shares
computes exactly this is `tests/oracle/test_moments.py`.) The statistic projects the opened upper triangle on the
direction in which the two neighbours differ, which for nearly normal noise is the likelihood ratio.
"""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from colonnade.audit.claims import claimed_curve
from colonnade.audit.mechanism import Audit
from colonnade.audit.planted import NOTHING, Planted
from colonnade.data.column import Columns
from colonnade.privacy.randomness import Randomness, SimulatedRandomness
from colonnade.statistics.attacks import corner_moments, moments_audit
from colonnade.statistics.features import IntegerRows, integer_bounds, quantize, stochastic_round
from colonnade.statistics.moments import Moments, MomentsLayout
from support.small import COLUMNS, three_parties

RUNS = 1_000_000
DELTA = 1e-5
EPSILON = 8.0


@pytest.fixture(scope="module")
def layout(tmp_path_factory: pytest.TempPathFactory) -> MomentsLayout:
    """Two columns of one bit each: three entries in the upper triangle. Server view, three members."""
    with three_parties(tmp_path_factory.mktemp("audit")) as federation:
        method = Moments(
            epsilon=EPSILON,
            delta=DELTA,
            columns=("sued", "rating"),
            presence="ignore",
            constant=False,
            view="server",
            gamma=64,
        )
        return method.layout(federation.facts, federation.roster)


def audit(layout: MomentsLayout, planted: Planted = NOTHING) -> Audit[bool]:
    claim = claimed_curve(layout.releases(0), name="Gram matrix, server view")
    return moments_audit(layout, claim, delta=DELTA, runs=RUNS, planted=planted)


def test_the_corner_record_reaches_the_sensitivity(layout: MomentsLayout) -> None:
    assert np.linalg.norm(corner_moments(layout, True, SimulatedRandomness(0))) == pytest.approx(layout.delta_2)


def test_the_claim_is_not_refuted(layout: MomentsLayout) -> None:
    """A false alarm has probability at most 1e-6."""
    result = audit(layout).run(SimulatedRandomness(11))
    assert not result.refuted, str(result)
    assert 0.3 * EPSILON < result.claimed_epsilon <= EPSILON * (1 + 1e-6)


def test_noise_divided_by_one_point_four_is_refuted(layout: MomentsLayout) -> None:
    made = audit(layout, Planted(factor=1.4))
    assert made.stated_power is not None
    assert made.stated_power.probability > 0.99
    assert made.run(SimulatedRandomness(12)).refuted


def test_a_members_missing_noise_is_refuted(layout: MomentsLayout) -> None:
    made = audit(layout, Planted(silent=1))
    assert made.stated_power is not None
    assert made.stated_power.probability > 0.99
    assert made.run(SimulatedRandomness(13)).refuted


def test_the_papers_sensitivity_is_false_and_ours_holds() -> None:
    """Stochastic rounding alone overshoots gamma^2 c^2 + n, the SQM paper's bound; clipping in integers does not."""
    gamma, columns = 2**12, 117
    rng = np.random.default_rng(3)
    unit = rng.standard_normal((20, columns))
    unit /= np.linalg.norm(unit, axis=1, keepdims=True)
    randomness = SimulatedRandomness(4)
    paper = gamma**2 + columns
    worst = 0.0
    for _ in range(50):
        rounded = stochastic_round(unit * gamma, randomness)
        worst = max(worst, float(np.max(np.sum(rounded.astype(float) ** 2, axis=1))))
        clipped = quantize(unit, gamma=gamma, clip=1.0, entry=1.0, randomness=randomness)
        square, largest = integer_bounds(gamma, 1.0, 1.0)
        assert np.max(np.sum(clipped**2, axis=1)) <= square == gamma**2
        assert np.abs(clipped).max() <= largest
    assert worst > paper, "the planted bug: the paper's bound must be refuted"


def test_quantisation_is_unbiased_and_never_above_its_bounds(tmp_path: Path) -> None:
    """Mean of 4000 roundings of one row inside the bounds: within 6 sd of the value (false alarm 1e-7)."""
    row = np.array([[0.3, -0.123456, 0.71]])
    draws = quantize(np.repeat(row, 4000, axis=0), gamma=16, clip=2.0, entry=1.0, randomness=SimulatedRandomness(5))
    assert np.allclose(draws.mean(axis=0), 16 * row[0], atol=6 * 0.5 / math.sqrt(4000))
    long = quantize(np.full((10, 5), 5.0), gamma=100, clip=1.0, entry=1.0, randomness=SimulatedRandomness(6))
    assert np.max(np.sum(long**2, axis=1)) <= 100**2
    assert np.all(long >= 40), "shortened, not thrown away"


# --- masks of columns ---------------------------------------------------------------------------------------------

MASKED_RUNS = 400_000


@pytest.fixture(scope="module")
def masked(tmp_path_factory: pytest.TempPathFactory) -> tuple[MomentsLayout, MomentsLayout]:
    """One column of one bit with its mask and its party's presence: six entries. And the same without the mask."""
    layouts = []
    for missing in (True, False):
        columns = Columns(replace(column, missing=missing and name == "sued") for name, column in COLUMNS.items())
        with three_parties(tmp_path_factory.mktemp("masked"), columns=columns) as federation:
            method = Moments(
                epsilon=EPSILON, delta=DELTA, columns=("sued",), presence="secret", view="server", gamma=64
            )
            layouts.append(method.layout(federation.facts, federation.roster))
    return layouts[0], layouts[1]


def masked_audit(layout: MomentsLayout, planted: Planted = NOTHING) -> Audit[bool]:
    claim = claimed_curve(layout.releases(0), name="Gram matrix with a mask, server view")
    return moments_audit(layout, claim, delta=DELTA, runs=MASKED_RUNS, planted=planted)


def test_the_claim_with_a_mask_is_not_refuted(masked: tuple[MomentsLayout, MomentsLayout]) -> None:
    layout, _ = masked
    assert layout.masked == ("sued",)
    assert layout.entries(layout.masks[0]) == ["present at court", "filled sued", "sued"]
    assert np.linalg.norm(corner_moments(layout, True, SimulatedRandomness(0))) == pytest.approx(layout.delta_2)
    result = masked_audit(layout).run(SimulatedRandomness(14))
    assert not result.refuted, str(result)


def test_noise_calibrated_without_the_mask_is_refuted(masked: tuple[MomentsLayout, MomentsLayout]) -> None:
    layout, without = masked
    forgotten = Planted(factor=math.sqrt(layout.mu / without.mu))
    assert forgotten.factor == pytest.approx(layout.delta_2 / without.delta_2, rel=0.05)
    made = masked_audit(layout, forgotten)
    assert made.stated_power is not None
    assert made.stated_power.probability > 0.99
    assert made.run(SimulatedRandomness(15)).refuted


def test_a_mask_that_is_not_clipped_is_refuted(
    masked: tuple[MomentsLayout, MomentsLayout], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A mask is gamma or 0 whatever the values say. One that takes them as they are shows a record beyond the claim."""
    layout, _ = masked
    for wild in (7.0, -3.0, math.nan):
        rows = layout.integer_rows("court")(np.array([[wild, 1.0]]), SimulatedRandomness(1))
        assert rows.tolist() == [[64, 0, 64]]
    clipped = IntegerRows.__call__

    def unclipped(self: IntegerRows, values: np.ndarray, randomness: Randomness) -> np.ndarray:
        rows = clipped(self, values, randomness)
        rows[:, 1] = np.rint(self.gamma * 1.5 * values[:, 0])
        return rows

    monkeypatch.setattr(IntegerRows, "__call__", unclipped)
    assert masked_audit(layout).run(SimulatedRandomness(16)).refuted
