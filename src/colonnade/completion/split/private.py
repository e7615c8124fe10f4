"""Private training of a split network: DP-SGD with Skellam noise (reading of the paper, point 6).

Each party clips the gradient of its own weights record by record to the norm `clip`, adds up the batch, multiplies by
gamma / clip, rounds to whole numbers and adds Sk(mu). A record is in at most one batch of an epoch, so each party's
weights cost `epochs` such releases, and a person's total composes over the parties and trainings.

A GAN has two losses. The gradient of the generator and that of the discriminator are clipped to clip / sqrt(2) each, so
that neither takes the other's share, and both together move by at most `clip`.

Sensitivity: a record moves the sum by at most clip in L2, so the rounded sum by at most gamma + sqrt(p), since rounding
moves each of the p coordinates by less than one unit more. Sums are in float32: 1e-4 of gamma covers their error.

The noise is drawn outside the compiled step, by the exact sampler, from the operating system's generator, and added in
whole numbers modulo 2^32. All that follows, back to float32 too, is post-processing. The records that are watched take
no part in this: the weights are those of the last round, whatever the error on them.

This bounds what the **weights**, and with them predictions and generated records, say about a person. It bounds nothing
of the hidden vectors that the active party opens while training, nor of the gradients: those stay `split-training`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import lru_cache, partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree

from colonnade.completion.layout import Layout
from colonnade.completion.split.networks import Array
from colonnade.papers.fedpsg import gain
from colonnade.completion.split.session import Live, gain_of
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
    if training.gan:
        return gain_of(training, facts, party).weights
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


def noise_for(trainings: Sequence[Training], facts: PublicFacts, *, epsilon: float, delta: float) -> int:
    """The mu at which all parties' weights, in all of these trainings together, cost (epsilon, delta).

    Every release is taken to be as large as the largest; they differ by the square root of their numbers of weights.
    """
    counts = [count for one in trainings for party in one.parties if (count := parameters(one, facts, party))]
    steps = sum(one.epochs * sum(parameters(one, facts, party) > 0 for party in one.parties) for one in trainings)
    if min(one.epochs for one in trainings) < 1:
        raise BadPrivacyParameter("private training needs a number of epochs; choose epochs=10, say.")
    most, largest = max(counts), max(sensitivity(one, max(counts)) for one in trainings)
    found = _calibrated(
        epsilon=epsilon,
        delta=delta,
        delta_1=delta_1_bound(largest, most),
        delta_2=largest,
        parties=1,
        steps=steps,
        dimension=most,
    )
    if largest_draw(found) + max(one.batch * one.gamma for one in trainings) >= 2**31:
        raise BadPrivacyParameter(
            f"epsilon = {epsilon:g} over {steps} releases takes noise beyond 32 bits; choose a larger epsilon or fewer"
            " epochs."
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


def lead(me: Party, one: Live, rows: Array, others: Array, *draws: Any) -> tuple[Any, Array, Array]:
    """`lead` of a network, with noise. `draws` are a GAN's; a regressor has no dropout here."""
    known = one.training
    noise = _drawn(me, known, parameters(known, me.facts, me.name))
    more = draws if known.gan else ()
    step: Any = _gan_lead if known.gan else _lead
    found: tuple[Any, Array, Array] = step(
        one.model, known.clip, known.gamma, one.state, one.data, rows, others, *more, noise
    )
    return found


def follow(me: Party, one: Live, rows: Array, slopes: Array, *draws: Any) -> Any:
    """`follow` of a network, with noise."""
    known = one.training
    noise = _drawn(me, known, parameters(known, me.facts, me.name))
    more = draws if known.gan else ()
    step: Any = _gan_follow if known.gan else _follow
    return step(one.model, known.clip, known.gamma, one.state, one.data, rows, slopes, *more, noise)


def noisy_sum(
    gradient: Callable[[Array], tuple[Any, ...]], batch: int, like: Any, clip: float, gamma: int, noise: Array
) -> Any:
    """Clip each record's gradients, add up, round, add noise, and return the means as a pytree like `like`.

    `gradient(record)` has one part or several; each of k is clipped to clip / sqrt(k).
    """
    unravel = ravel_pytree(like)[1]

    def clipped(at: Array) -> Array:
        parts = [ravel_pytree(part)[0] for part in gradient(at)]
        most = clip / math.sqrt(len(parts))
        made = []
        for vector in parts:
            norm = jnp.linalg.norm(vector)
            # What is not a number counts as nothing; a record must not spoil the sum.
            scale = jnp.where(jnp.isfinite(norm), 1.0 / jnp.maximum(1.0, norm / most), 0.0)
            made.append(jnp.where(jnp.isfinite(norm), vector, 0.0) * scale)
        return jnp.concatenate(made)

    total = jnp.sum(jax.vmap(clipped)(jnp.arange(batch)), axis=0)
    whole = jnp.rint(total * (gamma / clip)).astype(jnp.int32) + noise
    return unravel(whole * (clip / gamma) / batch)


# --- a regressor --------------------------------------------------------------------------------------------------


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
        (move,) = noisy_sum(
            lambda row: (jax.grad(loss)(layers, nothing, row),), batch.shape[0], (layers,), clip, gamma, drawn
        )
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

        (move,) = noisy_sum(
            lambda row: (jax.grad(along)(state.bottom, row),), batch.shape[0], (state.bottom,), clip, gamma, drawn
        )
        return model._moved(state, (move, state.top)), None

    return jax.lax.scan(one, state, (rows, slopes, noise))[0]


# --- a GAN --------------------------------------------------------------------------------------------------------


@partial(jax.jit, static_argnums=(0, 1, 2))
def _gan_lead(
    model: gain.Gain,
    clip: float,
    gamma: int,
    state: gain.State,
    data: gain.Data,
    rows: Array,
    others: Array,
    common: Array,
    drawn: gain.Drawn,
    noise: Array,
) -> tuple[gain.State, Array, Array]:
    def one(state: gain.State, at: tuple[Array, Array, Array, gain.Drawn, Array]) -> tuple[gain.State, Any]:
        batch, rest, bits, draws, skellam_noise = at
        nothing = jnp.zeros(rest.shape[1])

        def record(row: Array) -> tuple[Any, Any]:
            """(value, (moves, slope)) of the discriminator's and of the generator's loss."""
            alone, single = batch[row][None], gain.Drawn(*(one[row][None] for one in draws))

            def both(generator: Any, judges: Any, probe: Array) -> tuple[Array, Array]:
                bottom, top = judges
                return model.losses(generator, bottom, top, data, alone, rest[row] + probe, bits[row][None], single)

            def judge(judges: Any, probe: Array) -> Array:
                return both(state.generator, judges, probe)[0]

            def fool(generator: Any, probe: Array) -> Array:
                return both(generator, (state.bottom, state.top), probe)[1]

            return (
                jax.value_and_grad(judge, argnums=(0, 1))((state.bottom, state.top), nothing),
                jax.value_and_grad(fool, argnums=(0, 1))(state.generator, nothing),
            )

        def moves(row: Array) -> tuple[Any, Any]:
            (_, (judge_move, _)), (_, (move, _)) = record(row)
            return move, judge_move

        like = (state.generator, (state.bottom, state.top))
        move, judge_move = noisy_sum(moves, batch.shape[0], like, clip, gamma, skellam_noise)
        (judged, (_, judge_slope)), (fooled, (_, slope)) = jax.vmap(record)(jnp.arange(batch.shape[0]))
        told = jnp.stack([judge_slope, slope]) / batch.shape[0], jnp.stack([judged.mean(), fooled.mean()])
        return model.moved(state, move, judge_move), told

    state, (slopes, losses) = jax.lax.scan(one, state, (rows, others, common, drawn, noise))
    return state, slopes, losses


@partial(jax.jit, static_argnums=(0, 1, 2))
def _gan_follow(
    model: gain.Gain,
    clip: float,
    gamma: int,
    state: gain.State,
    data: gain.Data,
    rows: Array,
    slopes: Array,
    common: Array,
    drawn: gain.Drawn,
    noise: Array,
) -> gain.State:
    def one(state: gain.State, at: tuple[Array, Array, Array, gain.Drawn, Array]) -> tuple[gain.State, None]:
        batch, slope, bits, draws, skellam_noise = at

        def moves(row: Array) -> tuple[Any, Any]:
            alone, single = batch[row][None], gain.Drawn(*(one[row][None] for one in draws))

            def along(generator: Any, bottom: Any, at: int) -> Array:
                part, local = model.part(generator, bottom, data, alone, bits[row][None], single)
                return jnp.sum(part[0] * slope[-at, row]) * batch.shape[0] + at * local

            return (
                jax.grad(lambda generator: along(generator, state.bottom, 1))(state.generator),
                (jax.grad(lambda bottom: along(state.generator, bottom, 0))(state.bottom), state.top),
            )

        like = (state.generator, (state.bottom, state.top))
        return model.moved(state, *noisy_sum(moves, batch.shape[0], like, clip, gamma, skellam_noise)), None

    return jax.lax.scan(one, state, (rows, slopes, common, drawn, noise))[0]
