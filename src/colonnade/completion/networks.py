"""Dense layers and their optimiser: what the networks of completion are made of. jax, float32.

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
except ImportError as error:
    raise RunError("completion needs jax and optax; install colonnade[completion].") from error

Array = jax.Array | NDArray[Any]
Layers = list[tuple[Array, Array]]

SLOPE = 0.2
"""Of LeakyReLU on the negative side, as in the FedPSG paper."""


def words_of(seed: int) -> NDArray[np.uint32]:
    """Four words that everything random in one party's part of a network follows from."""
    return np.asarray(np.random.SeedSequence(seed).generate_state(4), dtype=np.uint32)


def drawing(words: NDArray[np.uint32], *path: int) -> np.random.Generator:
    """A quick generator for one purpose. It is numpy's, outside the compiled steps: in there random numbers take more
    time than the products, and as long to compile. Nothing here protects anybody."""
    return np.random.Generator(np.random.SFC64(np.random.SeedSequence([*map(int, words), *path])))


def random_bytes(draw: np.random.Generator, *shape: int) -> NDArray[np.uint8]:
    count = math.prod(shape)
    raw: NDArray[np.uint64] = draw.bit_generator.random_raw(-(-count // 8))
    return raw.view(np.uint8)[:count].reshape(shape)


def dense(draw: np.random.Generator, sizes: Sequence[int], *, last: float = 1.0) -> Layers:
    """Weights of variance 2 / inputs and no bias; `last` scales the last layer."""
    layers: Layers = []
    for at, (wide, high) in enumerate(itertools.pairwise(sizes)):
        scale = np.float32(math.sqrt(2.0 / max(wide, 1)) * (last if at == len(sizes) - 2 else 1.0))
        layers.append((scale * draw.standard_normal((wide, high), dtype=np.float32), np.zeros(high, dtype=np.float32)))
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
    for at, (weights, bias) in enumerate(layers):
        x = x @ weights + bias
        if at == len(layers) - 1:
            break
        x = activation(x)
        if at == 0 and dropout is not None:
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


def constant_adam(rate: float) -> optax.GradientTransformation:
    """Adam at one rate, as the GAIN papers use it."""
    return optax.adam(rate)


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
        made = [
            jnp.asarray(part.reshape(shape).astype(kind)) for part, (shape, kind) in zip(parts, shapes, strict=True)
        ]
        return jax.tree_util.tree_unflatten(tree, made)

    return restore
