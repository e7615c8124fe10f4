"""Private training of a split regressor: DP-SGD with Skellam noise (reading of the paper, point 6).

Each party clips the gradient of its own weights record by record to the norm `clip`, adds up the batch, multiplies by
gamma / clip, rounds to whole numbers and adds Sk(mu). A record is in at most one batch of an epoch, so each party's
weights cost `epochs` such releases, and a person's total composes over the parties.

Sensitivity: a record moves the sum by at most clip in L2, so the rounded sum by at most gamma + sqrt(p), since rounding
moves each of the p coordinates by less than one unit more. Sums are in float32: 1e-4 of gamma covers their error.

The noise is drawn outside the compiled step, by the exact sampler, from the operating system's generator, and added in
whole numbers modulo 2^32. All that follows, back to float32 too, is post-processing. The records that are watched take
no part in this: the weights are those of the last round, whatever the error on them.

This bounds what the **weights**, and with them predictions and generated records, say about a person. It bounds nothing
of the hidden vectors that the active party opens while training, nor of the gradients: those stay `split-training`.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache, partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree

from colonnade.completion.layout import Layout
from colonnade.completion.networks import Array
from colonnade.completion.split.live import Live
from colonnade.completion.split.regressor import Data, Regressor, State
from colonnade.completion.split.training import Training
from colonnade.errors import BadPrivacyParameter
from colonnade.federation.facts import PublicFacts
from colonnade.federation.party import Party
from colonnade.federation.step import Public
from colonnade.privacy.cost import Cost
from colonnade.privacy.skellam import Skellam, calibrate_mu, delta_1_bound
from colonnade.privacy.skellam_sampler import largest_draw, skellam

_calibrated = lru_cache(maxsize=64)(calibrate_mu)  # for the plan at every party, and again when it is executed

GAMMA = 2**15
"""Units in one clipped gradient: rounding 10,000 weights then adds 0.3 % to the sensitivity."""


def parameters(training: Training, facts: PublicFacts, party: str) -> int:
    """Weights that a party trains: a public number."""
    layout = training.layout(facts, party)
    inputs = layout.width + sum(column.missing for column in layout.columns.values())
    count = 0
    if inputs:
        count += (inputs + 1) * training.hidden + (training.hidden + 1) * training.cut
    if party == training.active:
        outputs = Layout(facts.columns[party].select(training.outputs)).width
        count += (training.cut + 1) * training.hidden + (training.hidden + 1) * outputs
    return count


def sensitivity(training: Training, count: int) -> float:
    """In L2, of the rounded sum of one batch."""
    return training.gamma * (1 + 1e-4) + float(np.sqrt(count))


def noise_for(training: Training, facts: PublicFacts, *, epsilon: float, delta: float, trainings: int = 1) -> int:
    """The mu at which all parties' weights, in so many trainings like this one, together cost (epsilon, delta)."""
    if training.epochs < 1:
        raise BadPrivacyParameter("private training needs a number of epochs; choose epochs=10, say.")
    counts = [parameters(training, facts, party) for party in training.parties]
    trained = [count for count in counts if count]
    most = max(trained)
    found = _calibrated(
        epsilon=epsilon,
        delta=delta,
        delta_1=delta_1_bound(sensitivity(training, most), most),
        delta_2=sensitivity(training, most),
        parties=1,
        steps=training.epochs * len(trained) * trainings,
        dimension=most,
    )
    if largest_draw(found) + training.batch * training.gamma >= 2**31:
        raise BadPrivacyParameter(
            f"epsilon = {epsilon:g} over {training.epochs} epochs takes noise beyond 32 bits; choose a larger epsilon"
            " or fewer epochs."
        )
    return found


def cost(training: Training, public: Public) -> Cost:
    """Of one party's weights: one release in each epoch."""
    count = max(
        (parameters(training, public.facts, party) for party in training.parties),
        default=0,
    )
    most = sensitivity(training, count)
    one = Skellam(
        training.mu,
        delta_1=delta_1_bound(most, count),
        delta_2=most,
        parties=1,
        dimension=count,
        audience="whoever sees generated records",
    )
    return one.times(training.epochs)


# --- what parties do ----------------------------------------------------------------------------------------------


def _drawn(me: Party, training: Training, count: int) -> Array:
    return jnp.asarray(skellam(me.randomness, training.mu, (training.local, count)).astype(np.int32))


def lead(me: Party, one: Live, rows: Array, others: Array) -> tuple[State, Array, Array]:
    """`Regressor.lead` with noise."""
    known = one.training
    count = parameters(known, me.facts, me.name)
    noise = _drawn(me, known, count)
    found: tuple[State, Array, Array] = _lead(
        one.model, known.clip, known.gamma, one.state, one.data, rows, others, noise
    )
    return found


def follow(me: Party, one: Live, rows: Array, slopes: Array) -> State:
    """`Regressor.follow` with noise."""
    known = one.training
    count = parameters(known, me.facts, me.name)
    found: State = _follow(
        one.model, known.clip, known.gamma, one.state, one.data, rows, slopes, _drawn(me, known, count)
    )
    return found


def noisy_sum(gradient: Callable[[Array], Any], batch: int, like: Any, clip: float, gamma: int, noise: Array) -> Any:
    """Clip each record's gradient, add up, round, add noise, and return the mean as a pytree like `like`."""
    unravel = ravel_pytree(like)[1]

    def clipped(at: Array) -> Array:
        vector = ravel_pytree(gradient(at))[0]
        norm = jnp.linalg.norm(vector)
        # What is not a number counts as nothing; a record must not spoil the sum.
        scale = jnp.where(jnp.isfinite(norm), 1.0 / jnp.maximum(1.0, norm / clip), 0.0)
        return jnp.where(jnp.isfinite(norm), vector, 0.0) * scale

    total = jnp.sum(jax.vmap(clipped)(jnp.arange(batch)), axis=0)
    whole = jnp.rint(total * (gamma / clip)).astype(jnp.int32) + noise
    return unravel(whole * (clip / gamma) / batch)


@partial(jax.jit, static_argnums=(0, 1, 2))
def _lead(
    model: Regressor,
    clip: float,
    gamma: int,
    state: State,
    data: Data,
    rows: Array,
    others: Array,
    noise: Array,
) -> tuple[State, Array, Array]:
    def one(state: State, at: tuple[Array, Array, Array]) -> tuple[State, tuple[Array, Array]]:
        batch, rest, drawn = at
        layers = (state.bottom, state.top)

        def loss(layers: Any, probe: Array, row: Array) -> Array:
            own = model._bottom(layers[0], data.x[batch[row]][None], data.here[batch[row]][None], None)
            total = own + rest[row][None] + probe[None]
            return model._loss(layers[1], total, data.y[batch[row]][None], data.known[batch[row]][None], None)

        nothing = jnp.zeros(rest.shape[1])
        move = noisy_sum(lambda row: jax.grad(loss)(layers, nothing, row), batch.shape[0], layers, clip, gamma, drawn)
        each = jnp.arange(batch.shape[0])
        values, slopes = jax.vmap(jax.value_and_grad(loss, argnums=1), (None, None, 0))(layers, nothing, each)
        return model._moved(state, move), (slopes[None] / batch.shape[0], jnp.mean(values))

    state, (slopes, losses) = jax.lax.scan(one, state, (rows, others, noise))
    return state, slopes, losses


@partial(jax.jit, static_argnums=(0, 1, 2))
def _follow(
    model: Regressor,
    clip: float,
    gamma: int,
    state: State,
    data: Data,
    rows: Array,
    slopes: Array,
    noise: Array,
) -> State:
    def one(state: State, at: tuple[Array, Array, Array]) -> tuple[State, None]:
        batch, slope, drawn = at

        def along(bottom: Any, row: Array) -> Array:
            own = model._bottom(bottom, data.x[batch[row]][None], data.here[batch[row]][None], None)
            return jnp.sum(own[0] * slope[0, row]) * batch.shape[0]

        move = noisy_sum(
            lambda row: jax.grad(along)(state.bottom, row), batch.shape[0], state.bottom, clip, gamma, drawn
        )
        return model._moved(state, (move, state.top)), None

    return jax.lax.scan(one, state, (rows, slopes, noise))[0]
