"""Dense layers and their optimiser: what the networks of completion are made of. jax, float32.

The trained state of a network is one pytree; a party keeps it between steps as one vector of float32.
"""

from __future__ import annotations

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

Array = jax.Array
Layers = list[tuple[Array, Array]]

SLOPE = 0.2
"""Of LeakyReLU on the negative side, as in the FedPSG paper."""


def dense(key: Array, sizes: Sequence[int], *, last: float = 1.0) -> Layers:
    """Weights of variance 2 / inputs and no bias; `last` scales the last layer."""
    keys = jax.random.split(key, max(len(sizes) - 1, 1))
    layers = []
    for at, (one, wide, high) in enumerate(zip(keys, sizes[:-1], sizes[1:], strict=False)):
        scale = math.sqrt(2.0 / max(wide, 1)) * (last if at == len(sizes) - 2 else 1.0)
        layers.append((scale * jax.random.normal(one, (wide, high), jnp.float32), jnp.zeros(high, jnp.float32)))
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
    """An activation between layers, nothing after the last. `dropout` is (uniform numbers, rate) for the first one."""
    for at, (weights, bias) in enumerate(layers):
        x = x @ weights + bias
        if at == len(layers) - 1:
            break
        x = activation(x)
        if at == 0 and dropout is not None and dropout[1] > 0:
            x = jnp.where(dropout[0] >= dropout[1], x / (1.0 - dropout[1]), 0.0)
    return x


def key_of(seed: int | Array) -> Array:
    """A key of the generator that compiles and draws fastest; nothing here protects anybody."""
    return jax.random.key(seed, impl="rbg")


def words_of(key: Array) -> NDArray[np.uint32]:
    """The four words of a key, to be kept; `key_from` is the inverse."""
    return np.asarray(jax.random.key_data(key), dtype=np.uint32)


def key_from(words: Any) -> Array:
    found: Array = jax.random.wrap_key_data(jnp.asarray(words), impl="rbg")
    return found


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
