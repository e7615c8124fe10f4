"""Attacks on noisy moments: the Gram matrix of `Moments`.

Worst-case neighbours under zero-out: one record at the corner of its domain, or nothing. Quantisation, clipping and
noise are the product's own; the statistic projects the release on the direction in which the neighbours differ.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from colonnade.audit.bounds import PrivacyProfile, power
from colonnade.audit.mechanism import Audit
from colonnade.audit.planted import MEMBERS, NOTHING, SELECTIONS, Planted
from colonnade.privacy.randomness import Randomness, SimulatedRandomness
from colonnade.privacy.skellam_sampler import skellam
from colonnade.statistics.features import quantize
from colonnade.statistics.moments import MomentsLayout

Reals = NDArray[np.float64]
Integers = NDArray[np.int64]


def upper_triangle(row: Integers) -> Integers:
    return np.asarray(np.outer(row, row)[np.triu_indices(len(row))])


# --- pattern moments ----------------------------------------------------------------------------------------


def corner_moments(layout: MomentsLayout, present: bool, randomness: Randomness) -> Integers:
    """The upper triangle of the one record's Gram matrix, as the parties quantise and clip it."""
    rows = np.ones((1, 1)) if present else np.zeros((1, 1))
    blocks = [
        quantize(rows, gamma=layout.gamma, clip=layout.bound(party), entry=1.0, randomness=randomness)
        for party in layout.parties
    ]
    return upper_triangle(np.concatenate(blocks, axis=1)[0])


def moments_audit(
    layout: MomentsLayout, claim: PrivacyProfile, *, delta: float, runs: int, planted: Planted = NOTHING
) -> Audit[bool]:
    """One column of one bit at each party; three members share the Skellam noise."""
    direction = corner_moments(layout, True, SimulatedRandomness(0)).astype(float)
    direction /= np.linalg.norm(direction)
    share = planted.variance(layout.mu) / MEMBERS

    def run_many(present: bool, runs: int, randomness: Randomness) -> Reals:
        noise = sum(skellam(randomness, share, (runs, direction.size)) for _ in range(planted.members))
        return np.asarray((corner_moments(layout, present, randomness) + noise) @ direction)

    stated = power(
        claim,
        shift=layout.delta_2,
        sd=math.sqrt(2 * layout.mu),
        factor=1.4 if planted.nothing else planted.effective,
        runs=runs,
        selections=SELECTIONS,
    )
    return Audit(neighbours=(True, False), run_many=run_many, claim=claim, delta=delta, runs=runs, stated_power=stated)
