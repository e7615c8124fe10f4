"""Tries to refute the claim of `synthesis/copula/claim.md`, and shows that it would notice a broken mechanism.

Worst-case neighbours under zero-out: a record at the upper bound of its column, or nothing. Its score is 1 whatever
noise the marginal has, so its row is at the corner that the sensitivity allows, and it is in one cell of every
level of the tree. The mechanism is the product's own: counts and discrete Gaussian noise, score map, quantisation,
each member's Skellam share. The statistic is the log likelihood ratio of normal noise with these variances, over
**both** releases: an attacker sees them together.
"""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import replace
from fractions import Fraction

import numpy as np
import pytest
from numpy.typing import NDArray

from colonnade.data.column import Column
from colonnade.evaluation.audit import Audit, membership_attack, sensitivity_search
from colonnade.evaluation.bounds import PrivacyProfile, power, profile_from_pld, profile_from_point
from colonnade.privacy.accounting import composed_pld
from colonnade.privacy.noise import discrete_gaussian
from colonnade.privacy.randomness import Randomness, SimulatedRandomness
from colonnade.privacy.skellam_sampler import skellam
from colonnade.statistics.quantiles import dyadic_counts
from colonnade.statistics.quantize import quantize
from colonnade.synthesis.copula.scores import count, party_marginals, score_map
from colonnade.synthesis.copula.sqm import CopulaSQM
from colonnade.synthesis.copula.sqm_noise import Noise
from support.small import COLUMNS, three_parties

RUNS = 60_000
DELTA = 1e-5
EPSILON = 4.0
CONFIDENCE = 1 - 1e-6
MEMBERS = 3
AGE = COLUMNS["age"]


@pytest.fixture(scope="module")
def noise(tmp_path_factory: pytest.TempPathFactory) -> Noise:
    """One continuous column: a tree, and three products of (presence, score). Server view, three members, half of the
    budget for each release, so that a forgotten split shows."""
    with three_parties(tmp_path_factory.mktemp("audit")) as federation:
        method = CopulaSQM(epsilon=EPSILON, delta=DELTA, columns=("age",), marginal_share=0.5, view="server")
        return method.noise(federation.facts, federation.roster)


@pytest.fixture(scope="module")
def claim(noise: Noise) -> PrivacyProfile:
    """What the plan claims, as a whole curve: the composed privacy loss of both releases."""
    leaves: Counter[object] = Counter()
    for cost in noise.releases(0):
        for leaf in cost.leaves():
            leaves[replace(leaf, count=1)] += leaf.count
    return profile_from_pld(composed_pld(leaves), name="CopulaSQM, server view")  # type: ignore[arg-type]


def exact(noise: Noise, present: bool, randomness: Randomness) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """(counts of the tree, upper triangle of the Gram matrix) of the one record or of nobody, before their noise."""
    values = np.array([AGE.upper] if present else [], dtype=np.float64)
    counts = dyadic_counts(count(AGE, values, depth=noise.depth))
    noisy = counts + discrete_gaussian(randomness, noise.sigma * math.sqrt(noise.depth), counts.size)
    made = party_marginals({"age": AGE}, {"age": noisy}, sigma=noise.sigma, depth=noise.depth)
    scores = score_map(AGE, made.marginals["age"])(values, discrete=False)
    layout = noise.layout
    rows = quantize(
        scores.reshape(-1, 1), gamma=layout.gamma, clip=layout.bound("clinic"), entry=1.0, randomness=randomness
    )
    row = np.array([layout.gamma, rows[0, 0]]) if present else np.zeros(2, dtype=np.int64)
    return counts, np.outer(row, row)[np.triu_indices(2)]


def audit(noise: Noise, claim: PrivacyProfile, *, sigma: float, mu: Fraction, members: int = MEMBERS) -> Audit[bool]:
    """The mechanism with this noise, against the claim of `noise`."""
    node = sigma * math.sqrt(noise.depth)
    truth = {present: exact(noise, present, SimulatedRandomness(1)) for present in (True, False)}
    moved = truth[True][0] > truth[False][0]
    direction = truth[True][1].astype(float) / float(2 * mu * members / MEMBERS)

    def run_many(present: bool, runs: int, randomness: Randomness) -> NDArray[np.float64]:
        cells = truth[present][0][moved] + discrete_gaussian(randomness, node, runs * moved.sum()).reshape(runs, -1)
        opened = truth[present][1] + sum(skellam(randomness, mu / MEMBERS, (runs, 3)) for _ in range(members))
        return np.asarray(cells.sum(axis=1) / node**2 + opened @ direction)

    right = math.sqrt(_parameter(noise.sigma, Fraction(noise.layout.mu), noise))
    factor = math.sqrt(_parameter(sigma, mu * members / MEMBERS, noise)) / right
    stated = power(claim, shift=right, sd=1.0, factor=factor, runs=RUNS, confidence=CONFIDENCE)
    return Audit(
        neighbours=(True, False),
        run_many=run_many,
        claim=claim,
        delta=DELTA,
        runs=RUNS,
        confidence=CONFIDENCE,
        stated_power=stated,
    )


def _parameter(sigma: float, mu: Fraction, noise: Noise) -> float:
    """The squared Gaussian parameter of both releases: 1 / sigma^2 for the tree, delta_2^2 / (2 mu) for the moments."""
    return 1 / sigma**2 + noise.layout.delta_2**2 / float(2 * mu)


def test_the_corner_record_reaches_both_sensitivities(noise: Noise) -> None:
    """Its score is 1 in every one of 50 runs of the marginal; it is in one node of each level."""
    for seed in range(50):
        counts, triangle = exact(noise, True, SimulatedRandomness(seed))
        assert counts.sum() == noise.depth
        assert np.linalg.norm(triangle) == pytest.approx(noise.layout.delta_2)


def test_the_claim_is_not_refuted(noise: Noise, claim: PrivacyProfile) -> None:
    """A false alarm has probability at most 1e-6. The claim is that of the plan, and it is nearly tight."""
    result = audit(noise, claim, sigma=noise.sigma, mu=Fraction(noise.layout.mu)).run(SimulatedRandomness(11))
    assert not result.refuted, str(result)
    assert 0.97 * EPSILON < result.claimed_epsilon <= EPSILON * (1 + 1e-6)


@pytest.mark.parametrize(
    ("bug", "sigma", "mu", "members"),
    [
        ("noise / 1.4", Fraction(10, 14), Fraction(100, 196), 3),
        ("a forgotten budget split", math.sqrt(0.5), Fraction(1, 2), 3),
        ("a forgotten split of the marginals and a member's missing noise", math.sqrt(0.5), Fraction(1), 1),
    ],
)
def test_planted_bugs_are_refuted(
    noise: Noise, claim: PrivacyProfile, bug: str, sigma: float, mu: Fraction, members: int
) -> None:
    made = audit(noise, claim, sigma=noise.sigma * float(sigma), mu=noise.layout.mu * mu, members=members)
    assert made.stated_power is not None
    assert made.stated_power.probability > 0.99, bug
    assert made.run(SimulatedRandomness(12)).refuted, bug


def test_bounds_from_the_data_are_refuted_and_declared_ones_are_not(noise: Noise) -> None:
    """39 records near 1 and one at 100, or nothing in its place. With the largest value as the upper bound, the record
    that goes lets all others spread over the leaves."""
    others = np.linspace(0.5, 1.0, 39)
    node = noise.sigma * math.sqrt(noise.depth)

    def released(present: bool, *, derived: bool) -> NDArray[np.int64]:
        values = np.append(others, 100.0) if present else others
        column = replace_bounds(float(values.max())) if derived else AGE
        return dyadic_counts(count(column, values, depth=noise.depth))

    for derived in (False, True):
        direction = (released(True, derived=derived) - released(False, derived=derived)) / node**2

        def scores(present: bool, seed: int, derived: bool = derived, direction: NDArray[np.float64] = direction):  # type: ignore[no-untyped-def]
            truth = released(present, derived=derived)
            drawn = discrete_gaussian(SimulatedRandomness(seed), node, RUNS * truth.size).reshape(RUNS, -1)
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
