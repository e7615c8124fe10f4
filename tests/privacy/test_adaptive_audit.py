"""Tries to refute that the rounds of an adaptive marginal cost what their histograms cost (`marginals.claim.md`), and
shows that it would notice a broken mechanism.

The mechanism is the product's own `adaptive.release`. That the claim stands, and falls with too little noise, is tested
with all other claims (`test_attacks.py`); here are the bugs that adaptivity makes possible.
"""

from __future__ import annotations

import math

import numpy as np
import pytest
from numpy.typing import NDArray

from colonnade.audit.mechanism import AuditResult
from colonnade.privacy.cost import GaussianCell
from colonnade.privacy.randomness import Randomness, SimulatedRandomness
from colonnade.statistics import attacks
from colonnade.statistics.adaptive import Axis, Counter, Counts, Rounds, first_cells, next_cells, release
from colonnade.statistics.attacks import choice_audit, rounds_audit, rounds_claim

DELTA = 1e-5


def audited(*, runs: int) -> AuditResult:
    return rounds_audit(rounds_claim(), delta=DELTA, runs=runs).run(SimulatedRandomness(5))


def choice_audited() -> AuditResult:
    return choice_audit(rounds_claim(), delta=DELTA, runs=400).run(SimulatedRandomness(6))


def test_a_round_without_noise_is_refuted(monkeypatch: pytest.MonkeyPatch) -> None:
    """The last of three rounds shows exact counts."""
    drawn = Rounds.draw

    def forgetful(self: Rounds, randomness: Randomness, turn: int, size: int) -> NDArray[np.int64]:
        return np.zeros(size, dtype=np.int64) if turn == 2 else drawn(self, randomness, turn, size)

    def last_round(others: int, present: bool, rounds: Rounds, randomness: Randomness) -> list[Counts]:
        return all_rounds(others, present, rounds, randomness)[-1:]

    all_rounds = attacks.released_around
    monkeypatch.setattr(attacks, "released_around", last_round)
    assert not audited(runs=400).refuted
    monkeypatch.setattr(Rounds, "draw", forgetful)
    assert audited(runs=400).refuted


def test_cells_that_are_chosen_by_exact_counts_are_refuted(monkeypatch: pytest.MonkeyPatch) -> None:
    def by_exact_counts(
        counter: Counter, axis: Axis, *, n: int, rounds: Rounds, randomness: Randomness
    ) -> list[Counts]:
        released, cells = [], first_cells(axis, n=n, rounds=rounds)
        for turn in range(rounds.number):
            exact = counter(cells.asked)
            released.append(Counts(cells.asked, exact + rounds.draw(randomness, turn, exact.size)))
            cells = next_cells(cells, exact, left=rounds.number - turn - 2, n=n, rounds=rounds)
        return released

    assert not choice_audited().refuted
    monkeypatch.setattr(attacks, "release", by_exact_counts)
    assert choice_audited().refuted


def test_a_round_that_is_not_paid_for_is_refuted(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two rounds, each with the noise of the only one."""
    level = attacks.ROUND_LEVEL
    monkeypatch.setattr(attacks, "ROUND_NUMBER", 2)
    paid = attacks.claimed_curve([GaussianCell(level * math.sqrt(2)).times(2)], name="two rounds")
    assert not rounds_audit(paid, delta=DELTA, runs=1000).run(SimulatedRandomness(7)).refuted
    monkeypatch.setattr(attacks, "audited_rounds", lambda planted=None: Rounds(2, "gaussian", level))
    assert rounds_audit(paid, delta=DELTA, runs=2500).run(SimulatedRandomness(7)).refuted


def test_the_cells_of_a_round_follow_from_the_counts_that_were_released() -> None:
    """Two blocks of records that differ in all of them, made to show the same noisy counts: the same cells."""
    axis, rounds = Axis(0.0, 100.0, 1 << 30), Rounds(4, "gaussian", 3.0)
    first = release(
        lambda edges: axis.count(np.full(500, 12.5), edges),
        axis,
        n=500,
        rounds=rounds,
        randomness=SimulatedRandomness(1),
    )
    cells = first_cells(axis, n=500, rounds=rounds)
    for turn, counts in enumerate(first):
        assert np.array_equal(cells.asked, counts.edges)
        cells = next_cells(cells, counts.counts, left=rounds.number - turn - 2, n=500, rounds=rounds)
