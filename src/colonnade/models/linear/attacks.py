"""The attack on the release that a private regression adds to those of `describe` and `moments`: its own moments.

Worst-case neighbours under zero-out: one record at the corner of its domain, or nothing. Quantisation, clipping and
noise are the product's own; the statistic projects the release on the direction in which the neighbours differ.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from colonnade.audit.attack import DELTA, NEIGHBOURS, Attack, Setting
from colonnade.audit.bounds import PrivacyProfile
from colonnade.audit.claims import claimed_curve
from colonnade.audit.mechanism import Audit, AuditResult, presence_audit
from colonnade.audit.planted import NOTHING, Planted
from colonnade.models.linear.private import own_sensitivity
from colonnade.privacy.cost import Gaussian
from colonnade.privacy.noise import discrete_gaussian
from colonnade.privacy.randomness import Randomness, SimulatedRandomness
from colonnade.statistics.attacks import upper_triangle
from colonnade.statistics.features import quantize


def regress_attacks() -> tuple[Attack, ...]:
    return (Attack(NEIGHBOURS, "the private fit's own moments", _own_moments),)


def _own_moments(setting: Setting) -> AuditResult:
    level = 0.4
    claim = claimed_curve([Gaussian(level)], name="the response holder's own moments")
    audit = own_moments_audit(claim, level=level, delta=DELTA, runs=setting.runs(60_000), planted=setting.planted)
    return audit.run(setting.randomness)


def own_moments_audit(
    claim: PrivacyProfile,
    *,
    level: float,
    delta: float,
    runs: int,
    gamma: int = 64,
    norm: float = 1.5,
    planted: Planted = NOTHING,
) -> Audit[bool]:
    """A record of the response holder at its bound, or nothing, in a pattern of its own."""
    corner = np.array([[1.0, 1.0, math.sqrt(norm**2 - 2)]])
    row = quantize(corner, gamma=gamma, clip=norm, entry=1.0, randomness=SimulatedRandomness(2))[0]
    shift = upper_triangle(row)
    direction = shift / np.linalg.norm(shift)
    sigma = level * own_sensitivity(gamma, norm) / planted.factor

    def run_many(present: bool, runs: int, randomness: Randomness) -> NDArray[np.float64]:
        noise = discrete_gaussian(randomness, sigma, runs * shift.size).reshape(runs, -1)
        return np.asarray((noise + shift * present) @ direction)

    return presence_audit(run_many, claim, shift=1.0, sd=level, delta=delta, runs=runs, planted=planted)
