"""Tries to refute the claim of `completion/claim.md` on private training, and shows that it would notice a broken one.

The mechanism is the product's own: `noisy_sum` (clipping record by record, rounding) and the exact Skellam sampler, at
the noise that the product calibrates. Worst-case neighbours under zero-out: a record whose gradient has the length
`clip` in both of a GAN's parts, or nothing; it is in one batch of each epoch, and all epochs are one run. The statistic
adds up what the noisy sums are along the record's gradient.
"""

from __future__ import annotations

import math
from fractions import Fraction
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest
from numpy.typing import NDArray

import colonnade as co
from colonnade.completion.fedpsg import FedPSG
from colonnade.completion.split import private
from colonnade.completion.split.training import Training
from colonnade.completion.trainings import gan
from colonnade.errors import BadArguments, NotEstimable, UnsafeRequest
from colonnade.evaluation.attacks.claims import claimed_curve
from colonnade.evaluation.audit import Audit
from colonnade.evaluation.bounds import power
from colonnade.federation.facts import PublicFacts
from colonnade.federation.step import Public
from colonnade.privacy.accounting import guarantee
from colonnade.privacy.randomness import Randomness, SimulatedRandomness
from colonnade.privacy.skellam_sampler import skellam
from support.split import curved_pair, regression_of

ALLOW = ("presence", "split-training", "completion-quality", "labels")
RUNS, DELTA, EPOCHS = 8_000, 1e-6, 2
SMALL: dict[str, Any] = {"epochs": EPOCHS, "batch": 16, "hidden": 2, "cut": 2, "local": 2, "iterations": 40}


@pytest.fixture(scope="module")
def consortium(tmp_path_factory: pytest.TempPathFactory) -> Any:
    blocks, columns = curved_pair(120)
    with co.Federation.local(
        blocks, key="id", columns=columns, seed=1, allow=ALLOW, home=tmp_path_factory.mktemp("h")
    ) as opened:
        yield opened


@pytest.mark.parametrize(
    ("imputer", "more"),
    [
        ("regression", {}),
        ("gain", {"condition": "none"}),
        ("vgain", {"condition": "aligned"}),
        ("cgain", {"condition": "none", "label": "kind"}),
    ],
)
def test_all_weights_of_all_parties_together_cost_epsilon(consortium: Any, imputer: Any, more: Any) -> None:
    """Every release of the plan with a bound, composed over parties, trainings and epochs; in both relations."""
    method = FedPSG(imputer=imputer, epsilon=4.0, delta=DELTA, **SMALL, **more)
    bounded = [
        leaf
        for phase in consortium.plan(method).phases
        for cost in phase.costs.values()
        for leaf in cost.leaves()
        if not leaf.unbounded and leaf.mechanism == "skellam"
    ]
    total = guarantee(bounded, delta=DELTA)
    assert 3.5 < total.epsilon <= 4.0
    assert 4.0 < guarantee(bounded, delta=DELTA, relation="replace").epsilon < 20.0


def test_nothing_else_is_trained_privately() -> None:
    for wrong in ({"imputer": "mice"}, {"n_correlated": 2}, {"label": "kind"}):
        with pytest.raises(BadArguments, match="epsilon is for"):
            FedPSG(epsilon=1.0, **wrong)  # type: ignore[arg-type]


@pytest.mark.parametrize(("rows", "local"), [(100, 1), (103, 4), (333, 5), (32, 3)])
def test_a_record_is_in_at_most_one_batch_of_an_epoch(rows: int, local: int) -> None:
    """Over all rounds that are made, no record is drawn more often than there are epochs; one round more is refused."""
    training = regression_of(mu=1, gamma=private.GAMMA, clip=1.0, epochs=3, batch=32, local=local, iterations=1000)
    here = np.arange(1000, 1000 + rows)
    rounds = training.rounds_for(rows)
    drawn = np.concatenate([training.batches(here, number).reshape(-1) for number in range(rounds)])
    assert np.bincount(drawn - 1000).max() <= 3
    assert len(drawn) > 2 * (rows // 32) * 32 - 32 * local
    with pytest.raises(UnsafeRequest, match="epochs"):
        training.batches(here, rounds + 1)
    with pytest.raises(NotEstimable, match="fewer records than a batch"):
        training.batches(here[:20], 0)


# --- the audit ----------------------------------------------------------------------------------------------------


def gan_training(facts: PublicFacts) -> Training:
    method = FedPSG(imputer="gain", condition="none", epsilon=3.0, delta=DELTA, complete=("right",), **SMALL)
    return gan(method, facts, {}, ("right",))


def audit(training: Training, public: Public, *, divided: float = 1.0) -> Audit[bool]:
    """One party's noisy sums of all epochs; `divided` is the planted bug."""
    count = private.parameters(training, public.facts, public.party)
    gradient = np.zeros((2, count), dtype=np.float32)
    half = count // 2
    gradient[0, :half], gradient[0, half:] = 100 / math.sqrt(half), 100 / math.sqrt(count - half)
    quiet = jnp.zeros(count, dtype=jnp.int32)
    unit = training.clip / training.gamma / 2

    def whole(rows: Any) -> NDArray[np.float64]:
        """What the two records of a batch add up to, in whole numbers."""
        parts = jnp.asarray(rows)
        found = private.noisy_sum(
            lambda at: (parts[at, :half], parts[at, half:]), 2, jnp.zeros(count), training.clip, training.gamma, quiet
        )
        return np.rint(np.asarray(found, dtype=np.float64) / unit)

    shift = {True: whole(gradient), False: whole(0 * gradient)}
    length = float(np.linalg.norm(shift[True]))
    assert 0.98 * training.gamma < length <= private.sensitivity(training, count)
    direction = shift[True] / length
    mu = Fraction(training.mu) / Fraction(divided).limit_denominator() ** 2

    def run_many(present: bool, runs: int, randomness: Randomness) -> NDArray[np.float64]:
        noise = sum(skellam(randomness, mu, (runs, count)) @ direction for _ in range(EPOCHS))
        return np.asarray(noise + EPOCHS * (shift[present] @ direction), dtype=np.float64)

    claim = claimed_curve([private.cost(training, public)], name=f"{EPOCHS} epochs of one party")
    stated = power(
        claim,
        shift=length * math.sqrt(EPOCHS),
        sd=math.sqrt(2 * training.mu),
        factor=2.0 if divided == 1 else divided,
        runs=RUNS,
        selections=20,
    )
    return Audit(neighbours=(True, False), run_many=run_many, claim=claim, delta=1e-5, runs=RUNS, stated_power=stated)


def test_private_sums_are_not_refuted_and_half_the_noise_is(consortium: Any) -> None:
    """A false alarm has probability at most 1e-6; half of the noise is caught with more than 99 %."""
    training = gan_training(consortium.facts)
    public = Public(job="job", party="left", facts=consortium.facts, roster=consortium.roster)
    honest, broken = audit(training, public), audit(training, public, divided=2.0)
    assert broken.stated_power is not None
    assert broken.stated_power.probability > 0.99
    assert not honest.run(SimulatedRandomness(3)).refuted
    assert broken.run(SimulatedRandomness(4)).refuted
