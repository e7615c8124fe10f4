"""What the trained generators share: plain networks as lists of arrays, and one compiled training loop.

A batch is drawn, its loss and gradients are computed and Adam steps, all inside one `lax.scan`: Python sees the loss
once every `CHUNK` steps, to report progress and to notice divergence. A loss is a function of a hashable `spec` and
arrays, so that a second fit with the same shapes compiles nothing. Numbers are float32, whatever the rest of the
process has switched on.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Hashable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from numpy.typing import NDArray

from colonnade.completion.generators.protocol import Progress
from colonnade.errors import TrainingDiverged

Layers = list[dict[str, jax.Array]]
Params = Any
"""A tree of arrays."""
Loss = Callable[[Any, Params, tuple[jax.Array, ...], jax.Array], jax.Array]
"""(spec, parameters, arrays of one batch, key) -> mean loss."""

CHUNK = 100
EXPLODED = 20.0
"""A loss so many times its first value (or 1, if that is more) has diverged."""
OPTIMIZER = optax.chain(optax.clip_by_global_norm(5.0), optax.scale_by_adam())
SLOWEST = 0.02
"""The last step's learning rate, as a share of the first's."""
AVERAGE = 0.998
"""Of the moving average of the parameters, which is what is kept."""


def new_key(seed: int) -> jax.Array:
    """A key of the generator that is quickest to compile and to run; jax takes 31 bits of a seed at a time."""
    key = jax.random.key(seed % 2**31, impl="rbg")
    rest = seed % 2**256 // 2**31
    while rest:
        key, rest = jax.random.fold_in(key, rest % 2**31), rest // 2**31
    return key


def drawn(log_chance: jax.Array, gumbel: jax.Array) -> jax.Array:
    """One category for each row, as indicators: the largest log chance plus Gumbel noise."""
    return jax.nn.one_hot(jnp.argmax(log_chance + gumbel, axis=-1), log_chance.shape[-1], dtype=jnp.float32)


def dense(key: jax.Array, sizes: tuple[int, ...], *, last: float = 1.0) -> Layers:
    """Layers with He's initial weights; those of the last layer times `last`."""
    layers = []
    for at, (rows, columns) in enumerate(itertools.pairwise(sizes)):
        key, one = jax.random.split(key)
        scale = math.sqrt(2 / max(rows, 1)) * (last if at == len(sizes) - 2 else 1.0)
        weight = scale * jax.random.normal(one, (rows, columns), dtype=jnp.float32)
        layers.append({"w": weight, "b": jnp.zeros(columns, dtype=jnp.float32)})
    return layers


def apply(layers: Layers, x: jax.Array) -> jax.Array:
    """SiLU between layers, nothing after the last."""
    for layer in layers[:-1]:
        x = jax.nn.silu(x @ layer["w"] + layer["b"])
    return x @ layers[-1]["w"] + layers[-1]["b"]


def train(
    loss: Loss,
    spec: Hashable,
    params: Params,
    data: tuple[NDArray[Any], ...],
    *,
    steps: int,
    batch: int,
    rate: float,
    seed: int,
    progress: Progress | None = None,
    name: str,
) -> Params:
    """Adam with a linearly falling rate and clipped gradients; the moving average of the parameters.

    A loss that is not finite or explodes is a `TrainingDiverged`, and nothing is returned.
    """
    arrays = tuple(jnp.asarray(one, dtype=jnp.float32) for one in data)
    state = (params, params, OPTIMIZER.init(params), jnp.asarray(0, jnp.int32))
    pace = jnp.asarray([rate, steps], dtype=jnp.float32)
    key = new_key(seed)
    size = min(batch, len(arrays[0]))
    first: float | None = None
    for start in range(0, steps, CHUNK):
        many = min(CHUNK, steps - start)
        state, losses = _chunk(loss, spec, size, many, state, arrays, key, pace)
        reached = float(np.mean(losses))
        first = float(losses[0]) if first is None else first
        if not math.isfinite(reached) or reached > EXPLODED * max(first, 1.0):
            raise TrainingDiverged(
                f"the training of {name} diverged after {start + many} of {steps} steps (loss {reached:.3g}, at first"
                f" {first:.3g}); lower its learning_rate (now {rate:g}), or look for columns whose declared bounds are"
                " far wider than their values."
            )
        if progress is not None:
            progress(start + many, steps)
    return jax.device_get(state[1])


@partial(jax.jit, static_argnums=(0, 1, 2, 3))
def _chunk(
    loss: Loss,
    spec: Hashable,
    size: int,
    many: int,
    state: Any,
    arrays: tuple[jax.Array, ...],
    key: jax.Array,
    pace: jax.Array,
) -> tuple[Any, jax.Array]:
    """`many` steps; `pace` is (first rate, steps in all)."""

    def step(state: Any, _: None) -> tuple[Any, jax.Array]:
        params, average, memory, number = state
        pick, noise = jax.random.split(jax.random.fold_in(key, number))
        rows = jax.random.randint(pick, (size,), 0, len(arrays[0]))
        value, slope = jax.value_and_grad(loss, argnums=1)(spec, params, tuple(one[rows] for one in arrays), noise)
        moves, memory = OPTIMIZER.update(slope, memory, params)
        rate = pace[0] * (1 - (1 - SLOWEST) * number / pace[1])
        params = jax.tree.map(lambda old, move: old - rate * move, params, moves)
        # Young averages forget faster, so that the start has no weight at the end of a short training.
        keep = jnp.minimum(AVERAGE, (1.0 + number) / (10.0 + number)).astype(jnp.float32)
        average = jax.tree.map(lambda old, new: keep * old + (1 - keep) * new, average, params)
        return (params, average, memory, number + 1), value

    return jax.lax.scan(step, state, None, length=many)


def in_batches(draw: Callable[[int, int, int], NDArray[Any]], n: int, size: int = 16_384) -> NDArray[Any]:
    """`draw(number, start, stop)` for parts of the rows, joined; every part has one size, so one is compiled."""
    parts = [draw(number, start, min(start + size, n)) for number, start in enumerate(range(0, max(n, 1), size))]
    return np.concatenate(parts) if len(parts) > 1 else parts[0]
