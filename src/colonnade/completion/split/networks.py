"""Dense layers, their optimiser, and noisy sums of gradients: what split networks are made of. jax, float32.

The trained state of a network is one pytree; a party keeps it between steps as one vector of float32.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
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


# --- private training ---------------------------------------------------------------------------------------------


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
