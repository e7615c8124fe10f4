"""Tries to refute the claim of `models/claim.md` on minibatch gradients, and shows that it would notice a broken one.

Worst-case neighbours under zero-out: one record at the corner of its domain, or nothing, and weights that point
against it. All rounds of a descent are one run. The mechanism is the product's own: `poisson_batch`, `quantized_part`
of each party, the integer gradient, and each member's own Skellam share. (That the protocol on shares computes
exactly this is `tests/oracle/test_logistic.py`.) The statistic adds up what the opened gradients are along the
record's own; a declared threshold makes the power exact, for near-normal noise of this size.

Two claims are tried. *Server view*: the batch is unknown, each round amplified by sampling. *Client view*, which is
what the ledgers debit: the batch is known, the record is in every batch, and one colluder's noise is known.
"""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass
from fractions import Fraction

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy.stats import binom, norm

from colonnade.audit.bounds import (
    Power,
    PrivacyProfile,
    profile_from_pld,
    profile_from_rdp,
    refutation_probability,
)
from colonnade.audit.mechanism import Audit
from colonnade.federation.options import View
from colonnade.models.classify import SQMLogistic
from colonnade.papers.sqm.gradient_layout import GradientLayout
from colonnade.papers.sqm.logistic import poisson_batch, quantized_part, quantized_weights
from colonnade.privacy.accounting import ORDERS, composed_pld
from colonnade.privacy.mechanisms import mechanism_of
from colonnade.privacy.randomness import Randomness, SimulatedRandomness
from colonnade.privacy.skellam_sampler import skellam
from support.small import three_parties

RUNS = 200_000
CONFIDENCE = 1 - 1e-6
DELTA = 1e-5
ROUNDS, SAMPLING, EPSILON = 3, 0.5, 8.0
MEMBERS = 3


@pytest.fixture(scope="module")
def layouts(tmp_path_factory: pytest.TempPathFactory) -> dict[View, GradientLayout]:
    """Intercept and two features; three members; the noise calibrated for either view."""
    views: tuple[View, View] = ("server", "client")
    with three_parties(tmp_path_factory.mktemp("audit")) as federation:
        return {
            view: SQMLogistic(
                response="sued",
                solver="minibatch",
                columns=("age", "rating"),
                epsilon=EPSILON,
                delta=DELTA,
                gamma=256,
                sampling=SAMPLING,
                rounds=ROUNDS,
                view=view,
            ).gradient_layout(federation.facts, federation.roster)
            for view in views
        }


def claim(layout: GradientLayout, view: View) -> PrivacyProfile:
    """As the accountants state it: Renyi divergences with sampling, the comparison with normal noise without."""
    cost, name = layout.cost(view=view), f"{ROUNDS} gradients, {view} view"
    if view == "client":
        return profile_from_pld(composed_pld(Counter({cost: ROUNDS})), name=name)
    return profile_from_rdp(ORDERS, ROUNDS * mechanism_of(cost).rdp(cost, ORDERS), name=name)


def corner_gradient(layout: GradientLayout) -> NDArray[np.int64]:
    """What the corner record adds to an opened gradient, in integers, under the worst weights."""
    parts = []
    for party in layout.parties:
        values = np.ones((1, len(layout.own_features(party))))
        parts.append(quantized_part(layout, party, values, np.ones(1, dtype=np.int64), SimulatedRandomness(0)))
    row = np.concatenate(parts, axis=1)[0]
    z, response = row[:-1], row[-1]
    weights = quantized_weights(layout, -layout.radius * z / np.linalg.norm(z))
    return z * (z @ weights - 2 * layout.gamma * response)


@dataclass(frozen=True)
class Mechanism:
    """The rounds as they are run: perhaps with less noise, fewer members' noise, or the record in every batch."""

    layout: GradientLayout
    mu: Fraction
    members: int
    sampling: float

    @property
    def sd(self) -> float:
        """Of the statistic: ROUNDS draws along a unit vector."""
        return math.sqrt(ROUNDS * 2 * float(self.mu) * self.members / MEMBERS)

    def run_many(self, present: bool, runs: int, randomness: Randomness) -> NDArray[np.float64]:
        """The batches of a cohort of `runs` records are as many independent batches of one record."""
        gradient = corner_gradient(self.layout)
        direction = gradient / np.linalg.norm(gradient)
        key = randomness.bytes(32)
        total = np.zeros(runs)
        for number in range(ROUNDS):
            noise = sum(skellam(randomness, self.mu / MEMBERS, (runs, len(gradient))) for _ in range(self.members))
            opened = np.asarray(noise, dtype=np.int64)
            if present:
                opened[poisson_batch(key, number, runs, self.sampling)] += gradient
            total += opened @ direction
        return total

    def rates(self, threshold: float) -> tuple[float, float]:
        """P(statistic >= threshold) with the record and without it, for normal noise: a binomial mixture of shifts."""
        shift = float(np.linalg.norm(corner_gradient(self.layout)))
        times = np.arange(ROUNDS + 1)
        weights = binom.pmf(times, ROUNDS, self.sampling)
        return float(weights @ norm.sf((threshold - times * shift) / self.sd)), float(norm.sf(threshold / self.sd))


def audit(made: Mechanism, view: View) -> Audit[bool]:
    """The threshold with the largest power against this very mechanism, fixed before anything is run."""
    stated = claim(made.layout, view)

    def probability(threshold: float) -> float:
        tpr, fpr = made.rates(threshold)
        return refutation_probability(stated, tpr=tpr, fpr=fpr, trials=RUNS, alpha=(1 - CONFIDENCE) / 2)

    candidates = made.sd * np.linspace(2.0, 4.0, 9)
    found = [probability(one) for one in candidates]
    threshold = float(candidates[int(np.argmax(found))])
    return Audit(
        neighbours=(True, False),
        run_many=made.run_many,
        claim=stated,
        delta=DELTA,
        runs=RUNS,
        confidence=CONFIDENCE,
        threshold=threshold,
        stated_power=Power(
            probability=max(found),
            claim=stated.name,
            factor=math.sqrt(2 * made.layout.mu * ROUNDS) / made.sd,
            runs=RUNS,
            confidence=CONFIDENCE,
            family="gaussian",
            threshold=threshold,
        ),
    )


def honest(layouts: dict[View, GradientLayout], view: View) -> Mechanism:
    """Server view: all noise, a hidden batch. Client view: one member's noise and every batch are known."""
    layout = layouts[view]
    members, sampling = (MEMBERS, SAMPLING) if view == "server" else (MEMBERS - 1, 1.0)
    return Mechanism(layout, Fraction(layout.mu), members, sampling)


def refuted(broken: Mechanism, view: View, seed: int) -> bool:
    """The audit's verdict; its power against this fault was at least 99 %."""
    made = audit(broken, view)
    assert made.stated_power is not None
    assert made.stated_power.probability > 0.99
    return made.run(SimulatedRandomness(seed)).refuted


@pytest.mark.parametrize("view", ["server", "client"])
def test_the_corner_record_reaches_the_sensitivity(layouts: dict[View, GradientLayout], view: View) -> None:
    """So the audit looks at the worst record: |gradient| is within 2 % of delta_2 and not above it."""
    layout = layouts[view]
    assert 0.98 * layout.delta_2 < np.linalg.norm(corner_gradient(layout)) <= layout.delta_2


@pytest.mark.parametrize("view", ["server", "client"])
def test_the_claim_is_not_refuted(layouts: dict[View, GradientLayout], view: View) -> None:
    """At the threshold that is best against noise / 1.4. A false alarm has probability at most 1e-6."""
    made = honest(layouts, view)
    less = Mechanism(made.layout, made.mu / Fraction(196, 100), made.members, made.sampling)
    aimed = audit(less, view)
    result = Audit(
        neighbours=(True, False),
        run_many=made.run_many,
        claim=aimed.claim,
        delta=DELTA,
        runs=RUNS,
        confidence=CONFIDENCE,
        threshold=aimed.threshold,
        stated_power=aimed.stated_power,
    ).run(SimulatedRandomness(21))
    assert not result.refuted, str(result)
    assert 0.3 * EPSILON < result.claimed_epsilon <= EPSILON * (1 + 1e-6)


@pytest.mark.parametrize("view", ["server", "client"])
def test_noise_divided_by_one_point_four_is_refuted(layouts: dict[View, GradientLayout], view: View) -> None:
    made = honest(layouts, view)
    assert refuted(Mechanism(made.layout, made.mu / Fraction(196, 100), made.members, made.sampling), view, 22)


def test_a_members_missing_noise_is_refuted(layouts: dict[View, GradientLayout]) -> None:
    """Client view, where it halves the noise variance that is left. (In the server view a third is missing; the Renyi
    bound of a sampled batch leaves more room than that, and the audit would have no power.)"""
    made = honest(layouts, "client")
    assert refuted(Mechanism(made.layout, made.mu, made.members - 1, made.sampling), "client", 23)


def test_amplification_without_sampling_is_refuted(layouts: dict[View, GradientLayout]) -> None:
    """The server view's noise, and the record in every batch: that is how a party that knows the batches sees it."""
    made = honest(layouts, "server")
    assert refuted(Mechanism(made.layout, made.mu, made.members, 1.0), "server", 24)
