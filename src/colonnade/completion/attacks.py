"""The attack on private training of split networks: the noisy sums of gradients of all parties, over all epochs.

Worst-case neighbours under zero-out: a record whose gradient is far longer than `clip`, or nothing. It is in one batch
of each epoch at every party. Clipping, rounding and noise are the product's own. The gradient lies in as few weights as
possible, one for each part that is clipped by itself, so that the noise of all other weights says nothing; the
statistic adds up the releases along it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial
from typing import Any

import jax.numpy as jnp
import numpy as np
from numpy.typing import NDArray

from colonnade.audit.attack import DELTA, NEIGHBOURS, Attack, Setting
from colonnade.audit.bounds import PrivacyProfile
from colonnade.audit.claims import claimed_curve, small_consortium
from colonnade.audit.mechanism import Audit, AuditResult, presence_audit
from colonnade.audit.planted import NOTHING, Planted
from colonnade.completion.method import Completing, CompletionMethod
from colonnade.completion.split.networks import noisy_sum
from colonnade.completion.split.training import Training
from colonnade.federation.facts import PublicFacts
from colonnade.privacy.randomness import Randomness
from colonnade.privacy.skellam_sampler import skellam

Reals = NDArray[np.float64]

LONG = 100.0
"""How often `clip` goes into the record's gradient."""
SMALL: dict[str, Any] = {"epochs": 2, "batch": 16, "hidden": 2, "cut": 2, "local": 2, "iterations": 40}


def weights_attacks(method: type[CompletionMethod], **options: Any) -> tuple[Attack, ...]:
    """On a private completion of a small consortium, with these options."""
    trained = method(epsilon=4.0, delta=DELTA, parties=("bank",), **SMALL, **options)
    return (Attack(NEIGHBOURS, "all weights of all parties, composed", partial(audit_weights, trained)),)


def audit_weights(method: CompletionMethod, setting: Setting) -> AuditResult:
    """All weights that a private completion trains, against what its plan says that they cost."""
    with small_consortium(allow=("presence", "split-training", "completion-quality")) as federation:
        facts = federation.facts
        leaves = [leaf for cost in federation.plan(method).costs() for leaf in cost.leaves() if not leaf.unbounded]
        procedure = method.procedure(facts, federation.roster)
    assert isinstance(procedure, Completing)
    claim = claimed_curve(leaves, name="all weights of all parties")
    runs = setting.runs(60_000)
    audit = training_audit(procedure.networks, facts, claim, delta=DELTA, runs=runs, planted=setting.planted)
    return audit.run(setting.randomness)


def moved_by(training: Training, weights: int) -> Reals:
    """By how many integers the record moves the sums of the weights that its gradient lies in."""
    parts = training.losses
    sizes = [weights // parts, weights - weights // parts][:parts]
    gradients = [np.zeros((2, size), dtype=np.float32) for size in sizes]
    for gradient in gradients:
        gradient[0, 0] = LONG * training.clip
    given = [jnp.asarray(gradient) for gradient in gradients]
    total = noisy_sum(
        lambda row: tuple(gradient[row] for gradient in given),
        2,
        jnp.zeros(sum(sizes)),
        training.clip,
        training.gamma,
        jnp.zeros(sum(sizes), dtype=jnp.int32),
    )
    integers = np.rint(np.asarray(total, dtype=np.float64) * 2 * training.gamma / training.clip)
    return np.asarray(integers[integers != 0])


def training_audit(
    trainings: Sequence[Training],
    facts: PublicFacts,
    claim: PrivacyProfile,
    *,
    delta: float,
    runs: int,
    planted: Planted = NOTHING,
) -> Audit[bool]:
    """All trainings at all parties, as they look to an attacker who has all weights after every iteration."""
    (mu,) = {training.mu for training in trainings}
    shifts = [
        moved_by(training, weights)
        for training in trainings
        for party in training.parties
        if (weights := training.weights(facts, party))
        for _ in range(training.epochs)
    ]
    length = math.sqrt(sum(float(shift @ shift) for shift in shifts))
    noise = planted.variance(mu)

    def run_many(present: bool, runs: int, randomness: Randomness) -> Reals:
        scores = np.zeros(runs)
        for shift in shifts:
            scores += (skellam(randomness, noise, (runs, shift.size)) + present * shift) @ shift / length
        return scores

    return presence_audit(run_many, claim, shift=length, sd=math.sqrt(2 * mu), delta=delta, runs=runs, planted=planted)
