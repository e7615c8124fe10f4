"""A regression network split between parties: bottoms on each party's columns, a top at the active party.

    a = sum_k b_k(x_k),     y_hat = T(LeakyReLU(a))

Each bottom ends in the slice of the top's first layer that belongs to it, so only the sum a is needed to go on. The
loss is squared error over the known entries of y. Since a one-hot column's squared error is proper, y_hat are
frequencies.

All functions are compiled once for a shape and run many iterations in one call.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from numpy.typing import NDArray

from colonnade.completion.split.networks import (
    Array,
    Layers,
    adam,
    apply,
    dense,
    falling,
    leaky,
    noisy_sum,
    random_bytes,
)
from colonnade.completion.split.training import drawing


class Drawn(NamedTuple):
    """Random bytes for the dropout of the bottom and of the top, of Q batches or of one; None without dropout."""

    bottom: Array | None
    top: Array | None


class State(NamedTuple):
    """What training moves. A party without inputs has no bottom; only the active party has a top."""

    bottom: Layers
    top: Layers
    optimiser: Any
    schedule: Array
    """The first rate, and the iterations along which it falls."""


class Data(NamedTuple):
    """One party's side: `x` (n x inputs) with `present` (n), whether it has the record; `y`, `observed` at the active
    party."""

    x: Array
    present: Array
    y: Array
    observed: Array

    @classmethod
    def of(cls, *arrays: NDArray[Any]) -> Data:
        return cls(*map(jnp.asarray, arrays))


@dataclass(frozen=True)
class Regressor:
    """The shape of one party's part. `inputs` or `outputs` may be 0."""

    inputs: int
    outputs: int
    hidden: int
    cut: int
    decay: float = 1e-2
    dropout: float = 0.0

    def init(
        self,
        words: NDArray[np.uint32],
        rate: float,
        iterations: int,
        means: NDArray[np.floating[Any]] | None = None,
    ) -> State:
        """`means` of the outputs are where the top starts."""
        bottom = dense(drawing(words, 0), (self.inputs, self.hidden, self.cut)) if self.inputs else []
        top: Layers = []
        if self.outputs:
            top = dense(drawing(words, 1), (self.cut, self.hidden, self.outputs), last=0.1)
            if means is not None:
                top[-1] = (top[-1][0], np.asarray(means, np.float32))
        return State(bottom, top, self._rested((bottom, top)), np.array([rate, max(iterations, 1)], dtype=np.float32))

    @partial(jax.jit, static_argnums=0)
    def _rested(self, layers: tuple[Layers, Layers]) -> Any:
        return self._optimiser.init(layers)

    def draws(self, draw: np.random.Generator, count: int, batch: int) -> Drawn:
        """For `count` iterations."""
        if not self.dropout:
            return Drawn(None, None)
        return Drawn(
            random_bytes(draw, count, batch, self.hidden) if self.inputs else None,
            random_bytes(draw, count, batch, self.hidden) if self.outputs else None,
        )

    @property
    def _optimiser(self) -> optax.GradientTransformation:
        return adam(self.decay)

    # --- forward -------------------------------------------------------------------------------------------------

    def _bottom(self, layers: Layers, data: Data, rows: Array, drawn: Array | None) -> Array:
        """This party's part of the sum for some rows; zeros where it lacks the record."""
        if not self.inputs:
            return jnp.zeros((*rows.shape, self.cut), jnp.float32)
        out = apply(layers, data.x[rows], dropout=None if drawn is None else (drawn, self.dropout))
        return jnp.where(data.present[rows][..., None], out, 0.0)

    def _top(self, layers: Layers, total: Array, drawn: Array | None) -> Array:
        return apply(layers, leaky(total), dropout=None if drawn is None else (drawn, self.dropout))

    @partial(jax.jit, static_argnums=0)
    def partials(self, state: State, data: Data, rows: Array, drawn: Drawn) -> Array:
        """This party's part of the sum for Q batches of rows (Q x B). Weights stand still: all batches are one."""
        flat = rows.reshape(-1)
        dropped = None if drawn.bottom is None else drawn.bottom.reshape(flat.size, -1)
        return self._bottom(state.bottom, data, flat, dropped).reshape(*rows.shape, self.cut)

    @partial(jax.jit, static_argnums=0)
    def outputs_of(self, state: State, data: Data, rows: Array) -> Array:
        """This party's part of the sum for some rows, without dropout."""
        return self._bottom(state.bottom, data, rows, None)

    @partial(jax.jit, static_argnums=0)
    def predict(self, state: State, data: Data, rows: Array, others: Array) -> Array:
        """What the top says about some rows, from the sum of the others' parts and this party's own."""
        return self._top(state.top, self._bottom(state.bottom, data, rows, None) + others, None)

    # --- backward ------------------------------------------------------------------------------------------------

    def _loss(self, layers: Any, data: Data, rows: Array, others: Array, drawn: Drawn) -> Array:
        """Squared errors summed over entries, averaged over records; a record's loss depends on that record alone."""
        total = self._bottom(layers[0], data, rows, drawn.bottom) + others
        predicted = self._top(layers[1], total, drawn.top)
        return jnp.sum(jnp.where(data.observed[rows], predicted - data.y[rows], 0.0) ** 2) / rows.shape[0]

    @partial(jax.jit, static_argnums=0)
    def lead(self, state: State, data: Data, rows: Array, others: Array, drawn: Drawn) -> tuple[State, Array, Array]:
        """Q iterations at the active party: (state, gradients for the others (Q x 1 x B x cut), losses).

        `others` (Q x B x cut) is the sum of the other parties' parts as it was when the round began.
        """

        def iteration(state: State, given: tuple[Array, Array, Drawn]) -> tuple[State, tuple[Array, Array]]:
            batch, rest, drawn = given

            def loss(layers: tuple[Layers, Layers], probe: Array) -> Array:
                return self._loss(layers, data, batch, rest + probe, drawn)

            value, (moves, slopes) = jax.value_and_grad(loss, argnums=(0, 1))(
                (state.bottom, state.top), jnp.zeros_like(rest)
            )
            return self._moved(state, moves), (slopes[None], value)

        state, (slopes, losses) = jax.lax.scan(iteration, state, (rows, others, drawn))
        return state, slopes, losses

    @partial(jax.jit, static_argnums=0)
    def follow(self, state: State, data: Data, rows: Array, slopes: Array, drawn: Drawn) -> State:
        """Q iterations at another party, along the gradients that the active party sent."""

        def iteration(state: State, given: tuple[Array, Array, Drawn]) -> tuple[State, None]:
            batch, slope, drawn = given

            def along(bottom: Layers) -> Array:
                return jnp.sum(self._bottom(bottom, data, batch, drawn.bottom) * slope[0])

            return self._moved(state, (jax.grad(along)(state.bottom), state.top)), None

        return jax.lax.scan(iteration, state, (rows, slopes, drawn))[0]

    def _moved(self, state: State, gradient: tuple[Layers, Layers]) -> State:
        layers = (state.bottom, state.top)
        change, optimiser = self._optimiser.update(gradient, state.optimiser, layers)
        rate = falling(state.schedule, state.optimiser[0].count)
        bottom, top = jax.tree_util.tree_map(lambda weights, move: weights - rate * move, layers, change)
        return State(bottom, top, optimiser, state.schedule)

    # --- with noise (`training.py` has the claim); there is no dropout then ----------------------------------------

    @partial(jax.jit, static_argnums=(0, 1, 2))
    def private_lead(
        self, clip: float, gamma: int, state: State, data: Data, *given: Any
    ) -> tuple[State, Array, Array]:
        """`lead` with noise (Q x weights), which is the last of `given`."""

        def iteration(state: State, given: tuple[Array, Array, Drawn, Array]) -> tuple[State, tuple[Array, Array]]:
            batch, rest, _, noise = given
            layers = (state.bottom, state.top)

            def loss(layers: Any, probe: Array, row: Array) -> Array:
                return self._loss(layers, data, batch[row][None], rest[row][None] + probe[None], Drawn(None, None))

            nothing = jnp.zeros(rest.shape[1])
            (move,) = noisy_sum(
                lambda row: (jax.grad(loss)(layers, nothing, row),), batch.shape[0], (layers,), clip, gamma, noise
            )
            each = jnp.arange(batch.shape[0])
            values, slopes = jax.vmap(jax.value_and_grad(loss, argnums=1), (None, None, 0))(layers, nothing, each)
            return self._moved(state, move), (slopes[None] / batch.shape[0], jnp.mean(values))

        state, (slopes, losses) = jax.lax.scan(iteration, state, given)
        return state, slopes, losses

    @partial(jax.jit, static_argnums=(0, 1, 2))
    def private_follow(self, clip: float, gamma: int, state: State, data: Data, *given: Any) -> State:
        """`follow` with noise (Q x weights), which is the last of `given`."""

        def iteration(state: State, given: tuple[Array, Array, Drawn, Array]) -> tuple[State, None]:
            batch, slope, _, noise = given

            def along(bottom: Any, row: Array) -> Array:
                own = self._bottom(bottom, data, batch[row][None], None)
                return jnp.sum(own[0] * slope[0, row]) * batch.shape[0]

            (move,) = noisy_sum(
                lambda row: (jax.grad(along)(state.bottom, row),), batch.shape[0], (state.bottom,), clip, gamma, noise
            )
            return self._moved(state, (move, state.top)), None

        return jax.lax.scan(iteration, state, given)[0]
