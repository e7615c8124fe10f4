"""The attack on private training of split networks: the noisy sums of gradients of all parties, over all epochs.

Worst-case neighbours under zero-out: a record whose gradient is far longer than `clip`, or nothing. It is in one batch
of each epoch at every party. Clipping, rounding and noise are the product's own. The gradient lies in as few weights as
possible, one for each part that is clipped by itself, so that the noise of all other weights says nothing; the
statistic adds up the releases along it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import jax.numpy as jnp
import numpy as np
from numpy.typing import NDArray

from colonnade.audit.bounds import PrivacyProfile, power
from colonnade.audit.mechanism import Audit
from colonnade.audit.planted import NOTHING, SELECTIONS, Planted
from colonnade.completion.split import private
from colonnade.completion.split.training import Training
from colonnade.federation.facts import PublicFacts
from colonnade.privacy.randomness import Randomness
from colonnade.privacy.skellam_sampler import skellam

Reals = NDArray[np.float64]

LONG = 100.0
"""How often `clip` goes into the record's gradient."""


def moved_by(training: Training, weights: int) -> Reals:
    """By how many whole numbers the record moves the sums of the weights that its gradient lies in."""
    parts = 2 if training.gan else 1
    sizes = [weights // parts, weights - weights // parts][:parts]
    gradients = [np.zeros((2, size), dtype=np.float32) for size in sizes]
    for one in gradients:
        one[0, 0] = LONG * training.clip
    given = [jnp.asarray(one) for one in gradients]
    total = private.noisy_sum(
        lambda row: tuple(one[row] for one in given),
        2,
        jnp.zeros(sum(sizes)),
        training.clip,
        training.gamma,
        jnp.zeros(sum(sizes), dtype=jnp.int32),
    )
    whole = np.rint(np.asarray(total, dtype=np.float64) * 2 * training.gamma / training.clip)
    return np.asarray(whole[whole != 0])


def training_audit(
    trainings: Sequence[Training],
    facts: PublicFacts,
    claim: PrivacyProfile,
    *,
    delta: float,
    runs: int,
    planted: Planted = NOTHING,
) -> Audit[bool]:
    """All trainings at all parties, as somebody sees them who has all weights after every iteration."""
    (mu,) = {one.mu for one in trainings}
    shifts = [
        moved_by(one, weights)
        for one in trainings
        for party in one.parties
        if (weights := private.parameters(one, facts, party))
        for _ in range(one.epochs)
    ]
    length = math.sqrt(sum(float(one @ one) for one in shifts))
    noise = planted.variance(mu)

    def run_many(present: bool, runs: int, randomness: Randomness) -> Reals:
        found = np.zeros(runs)
        for shift in shifts:
            found += (skellam(randomness, noise, (runs, shift.size)) + present * shift) @ shift / length
        return found

    stated = power(
        claim,
        shift=length,
        sd=math.sqrt(2 * mu),
        factor=1.4 if planted.nothing else planted.factor,
        runs=runs,
        selections=SELECTIONS,
    )
    return Audit(neighbours=(True, False), run_many=run_many, claim=claim, delta=delta, runs=runs, stated_power=stated)
