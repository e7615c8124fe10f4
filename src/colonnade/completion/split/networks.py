"""What split networks are made of: dense layers, their optimiser, and iterations with or without noise. jax, float32.

The trained state of a network is one pytree; a party keeps it between steps as one vector of float32.
"""

from __future__ import annotations

import itertools
import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from colonnade.errors import RunError

try:
    import jax
    import jax.numpy as jnp
    import optax
    from jax.flatten_util import ravel_pytree
except ImportError as error:
    raise RunError("completion needs jax and optax; install colonnade[completion].") from error

Array = jax.Array | NDArray[Any]
Layers = list[tuple[Array, Array]]

SLOPE = 0.2
"""Of LeakyReLU on the negative side, as in the FedPSG paper."""


# --- layers -------------------------------------------------------------------------------------------------------


def random_bytes(draw: np.random.Generator, *shape: int) -> NDArray[np.uint8]:
    count = math.prod(shape)
    raw: NDArray[np.uint64] = draw.bit_generator.random_raw(-(-count // 8))
    return raw.view(np.uint8)[:count].reshape(shape)


def dense(draw: np.random.Generator, sizes: Sequence[int], *, last: float = 1.0) -> Layers:
    """Weights of variance 2 / inputs and no bias; `last` scales the last layer."""
    layers: Layers = []
    for index, (inputs, outputs) in enumerate(itertools.pairwise(sizes)):
        scale = np.float32(math.sqrt(2.0 / max(inputs, 1)) * (last if index == len(sizes) - 2 else 1.0))
        weights = scale * draw.standard_normal((inputs, outputs), dtype=np.float32)
        layers.append((weights, np.zeros(outputs, dtype=np.float32)))
    return layers


def leaky(x: Array) -> Array:
    return jax.nn.leaky_relu(x, SLOPE)


def apply(
    layers: Layers,
    x: Array,
    *,
    dropout: tuple[Array, float] | None = None,
    activation: Callable[[Array], Array] = leaky,
) -> Array:
    """An activation between layers, nothing after the last. `dropout` is (random bytes, rate) for the first one."""
    for index, (weights, bias) in enumerate(layers):
        x = x @ weights + bias
        if index == len(layers) - 1:
            break
        x = activation(x)
        if index == 0 and dropout is not None:
            below = round(256 * dropout[1])
            x = jnp.where(dropout[0] >= below, x * (256 / (256 - below)), 0.0)
    return x


def adam(decay: float) -> optax.GradientTransformation:
    """The direction of Adam with `decay` of weights apart from it; `falling` says how far to go."""
    return optax.chain(optax.scale_by_adam(), optax.add_decayed_weights(decay))


def falling(schedule: Array, done: Array) -> Array:
    """The rate after so many iterations: along a cosine from schedule[0] to nothing at schedule[1]. As data, so that
    another rate needs no other program."""
    return schedule[0] * 0.5 * (1.0 + jnp.cos(jnp.pi * jnp.minimum(done / schedule[1], 1.0)))


# --- as one vector ------------------------------------------------------------------------------------------------


def flat(tree: Any) -> NDArray[np.float32]:
    """A pytree as one vector. Counts of iterations are below 2^24, so float32 holds them exactly."""
    leaves = [np.asarray(leaf, dtype=np.float32).reshape(-1) for leaf in jax.tree_util.tree_leaves(tree)]
    return np.concatenate(leaves) if leaves else np.zeros(0, dtype=np.float32)


def shaped(like: Any) -> Callable[[NDArray[np.float32]], Any]:
    """The inverse of `flat` for pytrees of this shape."""
    leaves, tree = jax.tree_util.tree_flatten(like)
    shapes = [(np.shape(leaf), np.asarray(leaf).dtype) for leaf in leaves]
    cuts = np.cumsum([math.prod(shape) for shape, _ in shapes])[:-1]

    def restore(vector: NDArray[np.float32]) -> Any:
        parts = np.split(np.asarray(vector), cuts)
        restored = [
            jnp.asarray(part.reshape(shape).astype(kind)) for part, (shape, kind) in zip(parts, shapes, strict=True)
        ]
        return jax.tree_util.tree_unflatten(tree, restored)

    return restore


# --- iterations ---------------------------------------------------------------------------------------------------


def noisy_sum(
    gradient: Callable[[Array], tuple[Any, ...]], batch: int, like: Any, clip: float, gamma: int, noise: Array
) -> Any:
    """Clip each record's gradients, add up, round, add noise, and return the means as a pytree like `like`.

    `gradient(record)` has one part or several; each of k is clipped to clip / sqrt(k).
    """
    unravel = ravel_pytree(like)[1]

    def clipped(record: Array) -> Array:
        parts = [ravel_pytree(part)[0] for part in gradient(record)]
        most = clip / math.sqrt(len(parts))
        short = []
        for vector in parts:
            norm = jnp.linalg.norm(vector)
            # What is not a number counts as nothing; a record must not spoil the sum.
            scale = jnp.where(jnp.isfinite(norm), 1.0 / jnp.maximum(1.0, norm / most), 0.0)
            short.append(jnp.where(jnp.isfinite(norm), vector, 0.0) * scale)
        return jnp.concatenate(short)

    total = jnp.sum(jax.vmap(clipped)(jnp.arange(batch)), axis=0)
    integers = jnp.rint(total * (gamma / clip)).astype(jnp.int32) + noise
    return unravel(integers * (clip / gamma) / batch)


class SplitNetwork(ABC):
    """One party's part of a network that is split between parties: a frozen dataclass, compiled once for each shape.

    Q iterations run in one call, on Q batches of B rows; `draws` are what is random in them. The sum of the parties'
    parts of a batch goes into one loss or two (a GAN's: the discriminator's, then the generator's), and all move at the
    same time, along gradients at the same point.
    """

    @abstractmethod
    def weights_of(self, state: Any) -> tuple[Any, ...]:
        """What each loss moves."""

    @abstractmethod
    def part(self, weights: tuple[Any, ...], data: Any, rows: Array, draws: Any) -> tuple[Array, Array | float]:
        """(this party's part of the sum, what it adds to the last loss) for some rows."""

    @abstractmethod
    def losses(self, weights: tuple[Any, ...], data: Any, rows: Array, others: Array, draws: Any) -> tuple[Array, ...]:
        """At the active party, averaged over records; `others` is the sum of the other parties' parts."""

    @abstractmethod
    def moved(self, state: Any, moves: Sequence[Any]) -> Any:
        """The state after one step along the gradients of the losses."""

    @partial(jax.jit, static_argnums=0)
    def partials(self, state: Any, data: Any, rows: Array, *draws: Any) -> Array:
        """This party's part of the sum for Q batches (Q x B). Weights stand still: all batches are one."""
        flat = jax.tree.map(lambda draw: draw.reshape(rows.size, draw.shape[-1]), draws)
        part, _ = self.part(self.weights_of(state), data, rows.reshape(-1), flat)
        return part.reshape(*rows.shape, part.shape[-1])

    @partial(jax.jit, static_argnums=0)
    def lead(self, state: Any, data: Any, rows: Array, others: Array, *draws: Any) -> tuple[Any, Array, Array]:
        """Q iterations at the active party: (state, gradients for the others (Q x losses x B x cut), losses).

        `others` (Q x B x cut) is the sum of the other parties' parts as it was when the round began.
        """

        def iteration(state: Any, inputs: Any) -> tuple[Any, tuple[Array, Array]]:
            values, moves, slopes = self._leading(state, data, *inputs)
            return self.moved(state, moves), (jnp.stack(slopes), jnp.stack(values))

        state, (slopes, losses) = jax.lax.scan(iteration, state, (rows, others, draws))
        return state, slopes, losses

    @partial(jax.jit, static_argnums=0)
    def follow(self, state: Any, data: Any, rows: Array, slopes: Array, *draws: Any) -> Any:
        """Q iterations at another party, along the gradients that the active party sent."""

        def iteration(state: Any, inputs: Any) -> tuple[Any, None]:
            return self.moved(state, self._following(state, data, *inputs)), None

        return jax.lax.scan(iteration, state, (rows, slopes, draws))[0]

    def _leading(self, state: Any, data: Any, rows: Array, others: Array, draws: Any) -> tuple[Any, Any, Any]:
        """(value, gradient of the weights, gradient of the others' sum) of each loss."""
        weights = self.weights_of(state)

        def loss(k: int, weight: Any, probe: Array) -> Array:
            return self.losses((*weights[:k], weight, *weights[k + 1 :]), data, rows, others + probe, draws)[k]

        slope = jax.value_and_grad(loss, argnums=(1, 2))
        slopes = [slope(k, weight, jnp.zeros_like(others)) for k, weight in enumerate(weights)]
        return [value for value, _ in slopes], [move for _, (move, _) in slopes], [probe for _, (_, probe) in slopes]

    def _following(self, state: Any, data: Any, rows: Array, slopes: Array, draws: Any, scale: int = 1) -> list[Any]:
        """The gradient of the weights, of each loss; `slopes` has the first loss alone if no sender needs more."""
        weights = self.weights_of(state)

        def along(k: int, weight: Any) -> Array:
            part, added = self.part((*weights[:k], weight, *weights[k + 1 :]), data, rows, draws)
            return jnp.sum(part * slopes[-k]) * scale + k * added

        return [jax.grad(along, argnums=1)(k, weight) for k, weight in enumerate(weights)]

    # --- with noise (Q x weights); `training.py` has the claim ------------------------------------------------------

    @partial(jax.jit, static_argnums=(0, 1, 2))
    def private_lead(
        self, clip: float, gamma: int, noise: Array, state: Any, data: Any, rows: Array, others: Array, *draws: Any
    ) -> tuple[Any, Array, Array]:
        def iteration(state: Any, inputs: Any) -> tuple[Any, tuple[Array, Array]]:
            *batch, noise = inputs

            def record(row: Array) -> tuple[Any, Any, Any]:
                return self._leading(state, data, *jax.tree.map(lambda array: array[row][None], batch))

            size = len(batch[0])
            moves = self._noisy(lambda row: record(row)[1], size, state, clip, gamma, noise)
            values, _, slopes = jax.vmap(record)(jnp.arange(size))
            means = jnp.stack([value.mean() for value in values])
            return self.moved(state, moves), (jnp.stack([slope[:, 0] for slope in slopes]) / size, means)

        state, (slopes, losses) = jax.lax.scan(iteration, state, (rows, others, draws, noise))
        return state, slopes, losses

    @partial(jax.jit, static_argnums=(0, 1, 2))
    def private_follow(
        self, clip: float, gamma: int, noise: Array, state: Any, data: Any, rows: Array, slopes: Array, *draws: Any
    ) -> Any:
        def iteration(state: Any, inputs: Any) -> tuple[Any, None]:
            batch, slopes, draws, noise = inputs
            size = len(batch)

            def moves(row: Array) -> list[Any]:
                alone, own = jax.tree.map(lambda array: array[row][None], (batch, draws))
                return self._following(state, data, alone, slopes[:, row][:, None], own, size)

            return self.moved(state, self._noisy(moves, size, state, clip, gamma, noise)), None

        return jax.lax.scan(iteration, state, (rows, slopes, draws, noise))[0]

    def _noisy(
        self, moves: Callable[[Array], list[Any]], size: int, state: Any, clip: float, gamma: int, noise: Array
    ) -> list[Any]:
        """The noisy mean of the records' gradients. The last loss has the first of the noise."""
        like = self.weights_of(state)[::-1]
        return list(noisy_sum(lambda row: tuple(moves(row)[::-1]), size, like, clip, gamma, noise)[::-1])
