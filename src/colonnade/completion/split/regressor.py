"""A regression network split between parties: bottoms on each party's columns, a top at the active party.

    a = sum_k b_k(x_k),     y_hat = T(LeakyReLU(a))

Each bottom ends in the slice of the top's first layer that belongs to it, so only the sum a is needed to go on. The
loss is squared error over the known entries of y. Since a one-hot column's squared error is proper, y_hat are
frequencies.
"""

from __future__ import annotations

from collections.abc import Sequence
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
    SplitNetwork,
    adam,
    apply,
    dense,
    falling,
    leaky,
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
class Regressor(SplitNetwork):
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
        learning_rate: float,
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
        return State(
            bottom, top, self._rested((bottom, top)), np.array([learning_rate, max(iterations, 1)], dtype=np.float32)
        )

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
    def outputs_of(self, state: State, data: Data, rows: Array) -> Array:
        """This party's part of the sum for some rows, without dropout."""
        return self._bottom(state.bottom, data, rows, None)

    @partial(jax.jit, static_argnums=0)
    def predict(self, state: State, data: Data, rows: Array, others: Array) -> Array:
        """What the top says about some rows, from the sum of the others' parts and this party's own."""
        return self._top(state.top, self._bottom(state.bottom, data, rows, None) + others, None)

    # --- backward ------------------------------------------------------------------------------------------------

    def weights_of(self, state: State) -> tuple[Any, ...]:
        return ((state.bottom, state.top),)

    def part(self, weights: tuple[Any, ...], data: Data, rows: Array, draws: tuple[Drawn]) -> tuple[Array, float]:
        return self._bottom(weights[0][0], data, rows, draws[0].bottom), 0.0

    def losses(
        self, weights: tuple[Any, ...], data: Data, rows: Array, others: Array, draws: tuple[Drawn]
    ) -> tuple[Array]:
        """Squared errors summed over entries; a record's loss depends on that record alone."""
        total = self.part(weights, data, rows, draws)[0] + others
        predicted = self._top(weights[0][1], total, draws[0].top)
        return (jnp.sum(jnp.where(data.observed[rows], predicted - data.y[rows], 0.0) ** 2) / rows.shape[0],)

    def moved(self, state: State, moves: Sequence[Any]) -> State:
        layers = (state.bottom, state.top)
        change, optimiser = self._optimiser.update(moves[0], state.optimiser, layers)
        rate = falling(state.schedule, state.optimiser[0].count)
        bottom, top = jax.tree_util.tree_map(lambda weights, move: weights - rate * move, layers, change)
        return State(bottom, top, optimiser, state.schedule)
