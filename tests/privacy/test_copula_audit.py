"""Tries to refute the claim of `synthesis/copula/claim.md`, and shows that it would notice a broken mechanism.

Worst-case neighbours under zero-out: a record at the upper bound of its column, or nothing. Its score is 1 whatever
noise the marginal has, so its row is at the corner that the sensitivity allows, and it is in one cell of every
round of the marginal. The mechanism is the product's own: counts and discrete Gaussian noise, score map, quantisation,
each member's Skellam share. The statistic is the log likelihood ratio of normal noise with these variances, over
**both** releases: an attacker sees them together.
"""

from __future__ import annotations

import math

import numpy as np
import pytest
from numpy.typing import NDArray

from colonnade.audit.bounds import PrivacyProfile, profile_from_point
from colonnade.audit.claims import claimed_curve
from colonnade.audit.mechanism import Audit
from colonnade.audit.planted import NOTHING, Planted
from colonnade.data.column import Column
from colonnade.privacy.noise import discrete_gaussian
from colonnade.privacy.randomness import SimulatedRandomness
from colonnade.statistics.adaptive import Axis, first_cells
from colonnade.statistics.features import quantize
from colonnade.synthesis.copula.attacks import copula_audit, corner_scores
from colonnade.synthesis.copula.procedure import CopulaReleases
from colonnade.synthesis.copula.scores import column_rounds
from colonnade.synthesis.method import Synthesize
from support.adversaries import membership_attack, sensitivity_search
from support.small import COLUMNS, three_parties

RUNS = 60_000
DELTA = 1e-5
EPSILON = 4.0
CONFIDENCE = 1 - 1e-6
AGE = COLUMNS["age"]


@pytest.fixture(scope="module")
def releases(tmp_path_factory: pytest.TempPathFactory) -> CopulaReleases:
    """One continuous column: its rounds, and three products of (presence, score). Server view, three members, half of
    the budget for each release, so that a forgotten split shows."""
    with three_parties(tmp_path_factory.mktemp("audit")) as federation:
        method = Synthesize(
            model="copula", epsilon=EPSILON, delta=DELTA, columns=("age",), marginal_share=0.5, view="server"
        )
        return CopulaReleases(method, federation.facts, federation.roster)


@pytest.fixture(scope="module")
def claim(releases: CopulaReleases) -> PrivacyProfile:
    """What the plan claims, as a whole curve: the composed privacy loss of both releases."""
    return claimed_curve(releases.costs(0), name="the copula, server view")


def audit(releases: CopulaReleases, claim: PrivacyProfile, planted: Planted = NOTHING) -> Audit[bool]:
    """The mechanism with this bug, against the claim of `releases`."""
    return copula_audit(releases, claim, delta=DELTA, runs=RUNS, planted=planted)


def test_the_corner_record_reaches_both_sensitivities(releases: CopulaReleases) -> None:
    """Its score is 1 in every one of 50 runs of the marginal; it is in one cell of each round."""
    for seed in range(50):
        counts, triangle = corner_scores(releases, True, SimulatedRandomness(seed))
        assert counts.sum() == releases.rounds
        assert np.linalg.norm(triangle) == pytest.approx(releases.layout.delta_2)


def test_the_claim_is_not_refuted(releases: CopulaReleases, claim: PrivacyProfile) -> None:
    """A false alarm has probability at most 1e-6. The claim is that of the plan, and it is nearly tight."""
    result = audit(releases, claim).run(SimulatedRandomness(11))
    assert not result.refuted, str(result)
    assert 0.97 * EPSILON < result.claimed_epsilon <= EPSILON * (1 + 1e-6)


@pytest.mark.parametrize(
    "bug", [Planted.parse("noise/1.4"), Planted.parse("forgotten-split"), Planted(silent=2)], ids=str
)
def test_planted_bugs_are_refuted(releases: CopulaReleases, claim: PrivacyProfile, bug: Planted) -> None:
    made = audit(releases, claim, bug)
    assert made.stated_power is not None
    assert made.stated_power.probability > 0.99, bug
    assert made.run(SimulatedRandomness(12)).refuted, bug


def test_bounds_from_the_data_are_refuted_and_declared_ones_are_not(releases: CopulaReleases) -> None:
    """39 records near 1 and one at 100, or nothing in its place. With the largest value as the upper bound, the record
    that goes lets all others spread over the cells of the first round."""
    others = np.linspace(0.5, 1.0, 39)
    rounds = column_rounds(releases.sigma, releases.rounds)

    def released(present: bool, *, derived: bool) -> NDArray[np.int64]:
        values = np.append(others, 100.0) if present else others
        column = replace_bounds(float(values.max())) if derived else AGE
        axis = Axis.of(column)
        return axis.count(values, first_cells(axis, n=60, rounds=rounds).asked)

    for derived in (False, True):
        direction = (released(True, derived=derived) - released(False, derived=derived)) / rounds.sd**2

        def scores(present: bool, seed: int, derived: bool = derived, direction: NDArray[np.float64] = direction):  # type: ignore[no-untyped-def]
            truth = released(present, derived=derived)
            drawn = discrete_gaussian(SimulatedRandomness(seed), rounds.sd, RUNS * truth.size).reshape(RUNS, -1)
            return (truth + drawn) @ direction

        found = membership_attack(
            scores(True, 21),
            scores(False, 22),
            fpr=0.01,
            claim=profile_from_point(EPSILON, DELTA),
            confidence=CONFIDENCE,
        )
        assert found.refuted == derived, found


def replace_bounds(upper: float) -> Column:
    return Column(name="age", kind="continuous", lower=0.0, upper=upper)


def test_no_neighbours_move_the_triangle_by_more_than_the_replace_bound() -> None:
    """Numerical adversary for sqrt(c^4 + B^2 c^2): two rows of presence and scores, both within their bounds."""
    gamma, clip, columns = 16, 1.3, 3
    square = math.floor(gamma**2 * clip**2)
    c2 = square + gamma**2

    def row(coins: NDArray[np.float64]) -> NDArray[np.int64]:
        scores = quantize(
            (2 * coins[None] - 1) * 1.2, gamma=gamma, clip=clip, entry=1.0, randomness=SimulatedRandomness(1)
        )
        return np.append(gamma, scores[0])

    def triangle(z: NDArray[np.int64]) -> NDArray[np.int64]:
        return np.outer(z, z)[np.triu_indices(columns + 1)]

    found = sensitivity_search(
        triangle,
        lambda coins: (row(coins[:columns]), row(coins[columns:])),
        coins=2 * columns,
        claimed=math.sqrt(c2**2 + gamma**2 * c2),
        randomness=SimulatedRandomness(3),
        runs=4000,
    )
    assert not found.refuted
    assert found.best > 0.5 * found.claimed, "the search must find something to be of use"
