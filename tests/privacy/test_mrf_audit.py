"""The auditor on VertiMRF's encoders: `sqm` and `fo` keep their claims, planted bugs are found, and `fm` is refuted.

Neighbours under zero-out: a record that is there with rare values, or nothing.
"""

from __future__ import annotations

import math
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy import stats

from colonnade.evaluation.audit import Audit
from colonnade.evaluation.bounds import PrivacyProfile, profile_from_pld, profile_from_point
from colonnade.privacy.accounting import guarantee
from colonnade.privacy.mechanisms import mechanism_of
from colonnade.privacy.randomized import generalized_randomized_response
from colonnade.privacy.randomness import Randomness, SimulatedRandomness
from colonnade.privacy.skellam_sampler import skellam
from colonnade.synthesis.mrf.fm import floor_level, phantoms, private_levels, sketch_epsilon
from colonnade.synthesis.mrf.fo import proved_epsilon
from colonnade.synthesis.mrf.sqm import SQM
from colonnade.synthesis.mrf.sqm_round import unit_cost
from colonnade.synthesis.mrf.vertimrf import VertiMRF
from support.small import three_parties

CONFIDENCE = 1 - 1e-6
DELTA = 1e-4


# --- sqm: three rounds ------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def sqm(tmp_path_factory: pytest.TempPathFactory) -> tuple[SQM, PrivacyProfile]:
    with three_parties(tmp_path_factory.mktemp("audit")) as federation:
        encoder = VertiMRF(epsilon=2.0, delta=DELTA, view="server", tables=8).sqm(federation.facts, federation.roster)
        whole = None
        for mu, units in zip(encoder.mus, encoder.units, strict=True):
            leaf = unit_cost(mu, federation.roster, "server")
            pld = mechanism_of(leaf).pld(leaf)
            assert pld is not None
            many = pld.self_compose(units)
            whole = many if whole is None else whole.compose(many)
    return encoder, profile_from_pld(whole, name="three rounds of tables, server view")


def rounds_audit(sqm: tuple[SQM, PrivacyProfile], *, members: int = 3, factor: int = 1) -> Audit[bool]:
    """The record's count in every opening of every round; the exact log likelihood ratio of the noise claimed."""
    encoder, claim = sqm

    def run_many(present: bool, runs: int, randomness: Randomness) -> NDArray[np.float64]:
        score = np.zeros(runs)
        for mu, units in zip(encoder.mus, encoder.units, strict=True):
            for _ in range(units):
                share = Fraction(mu, 3 * factor)
                cell = int(present) + sum(skellam(randomness, share, runs) for _ in range(members))
                values, where = np.unique(cell, return_inverse=True)
                ratio = stats.skellam.logpmf(values - 1, mu, mu) - stats.skellam.logpmf(values, mu, mu)
                score += ratio[where]
        return score

    return Audit(
        neighbours=(True, False), run_many=run_many, claim=claim, delta=DELTA, runs=40_000, confidence=CONFIDENCE
    )


def test_the_rounds_of_sqm_keep_their_claim(sqm: tuple[SQM, PrivacyProfile]) -> None:
    """A false alarm has probability at most 1e-6."""
    result = rounds_audit(sqm).run(SimulatedRandomness(31))
    assert not result.refuted, str(result)
    assert 1.9 < result.claimed_epsilon <= 2.0


@pytest.mark.parametrize(("members", "factor"), [(2, 1), (3, 2)], ids=["a member's noise missing", "half the variance"])
def test_planted_bugs_in_the_rounds_are_found(sqm: tuple[SQM, PrivacyProfile], members: int, factor: int) -> None:
    assert rounds_audit(sqm, members=members, factor=factor).run(SimulatedRandomness(32)).refuted


def test_the_plan_states_the_cost_that_is_audited(tmp_path: Path, sqm: tuple[SQM, PrivacyProfile]) -> None:
    with three_parties(tmp_path) as federation:
        plan = federation.plan(VertiMRF(epsilon=2.0, delta=DELTA, view="server", tables=8))
        encoder = sqm[0]
        costs = [
            unit_cost(mu, federation.roster, "server").times(units)
            for mu, units in zip(encoder.mus, encoder.units, strict=True)
        ]
        assert plan.total().epsilon == pytest.approx(guarantee(costs, delta=DELTA).epsilon, rel=1e-9)


# --- fo ------------------------------------------------------------------------------------------------------------


SIZES = (5, 4, 3)


def reports_audit(epsilon: float) -> Audit[tuple[int, ...]]:
    """All reports of one record, against those of a record that differs in every column: the exact likelihood ratio."""
    claimed = proved_epsilon(1.0, DELTA, SIZES)

    def run_many(record: tuple[int, ...], runs: int, randomness: Randomness) -> NDArray[np.float64]:
        score = np.zeros(runs)
        for value, size in zip(record, SIZES, strict=True):
            said = generalized_randomized_response(
                np.full(runs, value), categories=size, epsilon=epsilon, randomness=randomness
            )
            score += claimed * ((said == 0).astype(float) - (said == 1))
        return score

    return Audit(
        neighbours=((0, 0, 0), (1, 1, 1)),
        run_many=run_many,
        claim=profile_from_point(1.0, DELTA),
        delta=DELTA,
        runs=200_000,
        confidence=CONFIDENCE,
    )


def test_the_reports_of_the_oracle_keep_their_claim() -> None:
    result = reports_audit(proved_epsilon(1.0, DELTA, SIZES)).run(SimulatedRandomness(33))
    assert not result.refuted, str(result)
    assert result.epsilon_lower_bound > 0.6, "and the audit is sharp"


def test_theorem_3_as_printed_is_refuted() -> None:
    """eps' = 2 epsilon / d, claimed as epsilon for all d reports: they cost d eps' = 2 epsilon."""
    assert reports_audit(2 * 1.0 / len(SIZES)).run(SimulatedRandomness(34)).refuted


# --- fm ------------------------------------------------------------------------------------------------------------


COLUMNS, SKETCHES, CLAIMED = 15, 200, 0.288


def tie_scores(levels: NDArray[np.uint8], epsilon: float) -> NDArray[np.float64]:
    """For each run the largest log likelihood ratio among its t hashes (levels: runs x t x columns).

    With the record, all columns' levels are at least its hash. The ratio at minimum m, attained s times, is
    P(H < m) + P(H = m) (F(m) / f(m))^s, with F and f of the maximum of k_p phantoms and the floor.
    """
    count, floor = phantoms(epsilon), floor_level(epsilon, 1.0)
    m = levels.min(axis=2).astype(np.float64)
    s = (levels == levels.min(axis=2, keepdims=True)).sum(axis=2)
    above = np.exp(count * np.log1p(-(2.0**-m)))
    below = np.where(m > floor, np.exp(count * np.log1p(-(2.0 ** -(m - 1)))), 0.0)
    log_ratio = np.logaddexp(
        np.log1p(-(2.0 ** -(m - 1)), where=m > 1, out=np.full_like(m, -np.inf)),
        -m * math.log(2) + s * (np.log(above) - np.log(above - below)),
    )
    return np.asarray(log_ratio.max(axis=1))


def test_theorem_4_is_refuted_by_ties() -> None:
    """Fifteen columns in which the record's values are its own: the sketches of one record tie, and give it away."""
    epsilon = sketch_epsilon(CLAIMED, DELTA, COLUMNS, SKETCHES)

    def run_many(present: bool, runs: int, randomness: Randomness) -> NDArray[np.float64]:
        scores = []
        for start in range(0, runs, 500):
            batch = min(500, runs - start)
            smallest = np.full((batch, SKETCHES, COLUMNS), 2**64 - 1, dtype=np.uint64)
            if present:  # one hash of the record under each key, in every column
                smallest[:] = randomness.words(batch * SKETCHES).reshape(batch, SKETCHES, 1)
            levels = private_levels(smallest, epsilon=epsilon, gamma=1.0, randomness=randomness)
            scores.append(tie_scores(levels, epsilon))
        return np.concatenate(scores)

    audit = Audit(
        neighbours=(True, False),
        run_many=run_many,
        claim=profile_from_point(CLAIMED, DELTA),
        delta=DELTA,
        runs=5000,
        confidence=1 - 1e-4,
    )
    result = audit.run(SimulatedRandomness(35))
    assert result.refuted, str(result)
    assert result.delta_lower_bound > 10 * DELTA
