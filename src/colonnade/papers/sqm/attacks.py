"""Attacks on minibatch gradients: worst-case neighbours, in both views.

One record at the corner of its domain, or nothing (zero-out), and weights that point against it. All rounds of a
descent are one run. The mechanism is the product's own: `poisson_batch`, `quantized_part` of each party, the integer
gradient, and each member's own Skellam share. The statistic adds up what the opened gradients are along the record's
own; a declared threshold makes the power exact, for near-normal noise of this size.

*Server view*: the batch is unknown, each round amplified by sampling. *Client view*, which is what the ledgers debit:
the batch is known, the record is in every batch, and one colluder's noise is known.
"""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass
from fractions import Fraction

import numpy as np
from numpy.typing import NDArray
from scipy.stats import binom, norm

from colonnade.audit.attack import DELTA, NEIGHBOURS, Attack, Setting
from colonnade.audit.bounds import Power, PrivacyProfile, refutation_probability
from colonnade.audit.claims import claimed_curve, small_consortium
from colonnade.audit.mechanism import Audit, AuditResult
from colonnade.audit.planted import MEMBERS, Planted
from colonnade.federation.options import View
from colonnade.papers.sqm.gradient_layout import GradientLayout, poisson_batch
from colonnade.papers.sqm.logistic import SQMLogistic, quantized_weights
from colonnade.privacy.randomness import Randomness, SimulatedRandomness
from colonnade.privacy.skellam_sampler import skellam

CONFIDENCE = 1 - 1e-6
ROUNDS, SAMPLING, EPSILON = 3, 0.5, 8.0


def gradient_attacks() -> tuple[Attack, ...]:
    return (
        Attack(
            NEIGHBOURS, "gradients of batches that the coordinator does not know", functools.partial(_run, "server")
        ),
        # In the server view one of three members' noise may be missing unnoticed: the Renyi bound of sampled rounds is
        # too loose for that.
        Attack(NEIGHBOURS, "gradients, as the ledgers debit them", functools.partial(_run, "client"), joint=True),
    )


def _run(view: View, setting: Setting) -> AuditResult:
    """At the threshold that is best against the planted bug, or against noise / 1.4 where none is planted."""
    layout = gradient_layout_for(view)
    mechanism = GradientRounds.planted(layout, view, setting.planted)
    aimed = GradientRounds.planted(layout, view, Planted(factor=1.4)) if setting.planted.nothing else mechanism
    return gradient_audit(mechanism, aimed, view, runs=setting.runs(200_000)).run(setting.randomness)


@functools.cache
def gradient_layout_for(view: View) -> GradientLayout:
    """Intercept and two features; three members; the noise calibrated for a view."""
    method = SQMLogistic(
        response="sued",
        columns=("age", "rating"),
        epsilon=EPSILON,
        delta=DELTA,
        gamma=256,
        sampling=SAMPLING,
        rounds=ROUNDS,
        view=view,
    )
    with small_consortium() as federation:
        return method.procedure(federation.facts, federation.roster).layout


def gradient_claim(layout: GradientLayout, view: View) -> PrivacyProfile:
    """As the accountants state it: Renyi divergences with sampling, the comparison with normal noise without."""
    return claimed_curve([layout.round_cost(view).times(ROUNDS)], name=f"{ROUNDS} gradients, {view} view")


def corner_gradient(layout: GradientLayout) -> NDArray[np.int64]:
    """What the corner record adds to an opened gradient, in integers, under the worst weights."""
    parts = []
    for party in layout.parties:
        values = np.ones((1, len(layout.own_features(party))))
        parts.append(layout.quantized_part(party, values, np.ones(1, dtype=np.int64), SimulatedRandomness(0)))
    row = np.concatenate(parts, axis=1)[0]
    z, response = row[:-1], row[-1]
    weights = quantized_weights(layout, -layout.radius * z / np.linalg.norm(z))
    return np.asarray(z * (z @ weights - 2 * layout.gamma * response))


@dataclass(frozen=True)
class GradientRounds:
    """The rounds as they are run: perhaps with less noise, fewer members' noise, or the record in every batch."""

    layout: GradientLayout
    mu: Fraction
    members: int
    sampling: float

    @classmethod
    def planted(cls, layout: GradientLayout, view: View, bug: Planted) -> GradientRounds:
        """Server view: all noise, a hidden batch. Client view: one member's noise and every batch are known."""
        members, sampling = (MEMBERS, SAMPLING) if view == "server" else (MEMBERS - 1, 1.0)
        return cls(layout, bug.variance(layout.mu), members - bug.silent, sampling)

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


def gradient_audit(mechanism: GradientRounds, aimed: GradientRounds, view: View, *, runs: int) -> Audit[bool]:
    """With the threshold of the largest power against the `aimed` mechanism, fixed before anything is run."""
    claim = gradient_claim(aimed.layout, view)

    def probability(threshold: float) -> float:
        tpr, fpr = aimed.rates(threshold)
        return refutation_probability(claim, tpr=tpr, fpr=fpr, trials=runs, alpha=(1 - CONFIDENCE) / 2)

    candidates = aimed.sd * np.linspace(2.0, 4.0, 9)
    powers = [probability(candidate) for candidate in candidates]
    threshold = float(candidates[int(np.argmax(powers))])
    return Audit(
        neighbours=(True, False),
        run_many=mechanism.run_many,
        claim=claim,
        delta=DELTA,
        runs=runs,
        confidence=CONFIDENCE,
        threshold=threshold,
        stated_power=Power(
            probability=max(powers),
            claim=claim.name,
            factor=math.sqrt(2 * aimed.layout.mu * ROUNDS) / aimed.sd,
            runs=runs,
            confidence=CONFIDENCE,
            threshold=threshold,
        ),
    )
