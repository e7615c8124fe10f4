"""Generators that are trained networks: what they learn from a table, one compiled training loop, drawing in batches.

A network learns normal scores of numbers, which come first, then the indicators of categories, column by column. A
number's normal score is read off the training records (`Empirical`), as the TabDDPM paper does with its quantile
transformation; the way back rounds to what a column can be. A condition is standardised; a missing entry of it is its
mean.

In training a batch is drawn, its loss and gradients are computed and Adam steps, all inside one `lax.scan`: Python sees
the loss once every `CHUNK` steps, to report progress and to notice divergence. A loss is a method of a hashable
network, so that a second fit with the same shapes compiles nothing. Numbers are float32, whatever the rest of
the process has switched on.
"""

from __future__ import annotations

import itertools
import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np
import optax
from numpy.typing import NDArray

from colonnade.completion.layout import Layout, Matrix
from colonnade.errors import TrainingDiverged
from colonnade.papers.fedpsg.generators import Generator, Progress
from colonnade.papers.fedpsg.generators.copula import Empirical

Reals = NDArray[np.float64]
Floats = NDArray[np.float32]

FARTHEST = 5.0
"""A standardised condition is clipped there."""


@dataclass(frozen=True, eq=False)
class Preparation:
    """The marginals of the numeric columns, and the mean and scale of each column of the condition."""

    layout: Layout
    marginals: tuple[Empirical, ...]
    centre: Reals | None
    scale: Reals | None

    @classmethod
    def of(cls, rows: Reals, condition: NDArray[Any] | None, layout: Layout) -> Preparation:
        marginals = tuple(Empirical.of(rows[:, place]) for place in np.flatnonzero(layout.numeric_mask))
        if condition is None:
            return cls(layout, marginals, None, None)
        given = np.asarray(condition, dtype=np.float64)
        known = ~np.isnan(given)
        count = np.maximum(known.sum(axis=0), 1)
        centre = np.where(known, given, 0.0).sum(axis=0) / count
        scale = np.sqrt(np.where(known, (given - centre) ** 2, 0.0).sum(axis=0) / count)
        return cls(layout, marginals, centre, np.where(scale > 1e-9, scale, 1.0))

    @property
    def numbers(self) -> int:
        return len(self.marginals)

    @property
    def categories(self) -> tuple[int, ...]:
        """How many each one-hot column has."""
        return tuple(self.layout.slices[name].stop - self.layout.slices[name].start for name in self.layout.one_hot)

    def forward(self, rows: Reals, seed: int) -> Floats:
        """A value that many records share is spread over its step, so that every number is standard normal."""
        mask, draw = self.layout.numeric_mask, np.random.default_rng(seed)
        marginals = zip(self.marginals, rows[:, mask].T, strict=True)
        numeric = [marginal.normal_scores(x, draw) for marginal, x in marginals]
        return np.concatenate([*(x[:, None] for x in numeric), rows[:, ~mask]], axis=1).astype(np.float32)

    def backward(self, drawn: NDArray[Any]) -> Matrix:
        mask = self.layout.numeric_mask
        rows = np.zeros((len(drawn), self.layout.width))
        for place, marginal, z in zip(np.flatnonzero(mask), self.marginals, drawn.T[: self.numbers], strict=True):
            rows[:, place] = marginal.at_normal(z)
        rows[:, ~mask] = drawn[:, self.numbers :]
        return self.layout.legal(rows)

    def standardised(self, condition: NDArray[Any] | None, n: int) -> Floats:
        """records x width; without a condition, of width 0."""
        if self.centre is None or self.scale is None or condition is None:
            return np.zeros((n, 0), dtype=np.float32)
        scaled = (np.asarray(condition, dtype=np.float64) - self.centre) / self.scale
        return np.clip(np.nan_to_num(scaled, nan=0.0), -FARTHEST, FARTHEST).astype(np.float32)


# --- networks -------------------------------------------------------------------------------------------------------

Layers = list[dict[str, jax.Array]]
Params = Any
"""A tree of arrays."""

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
    for index, (rows, columns) in enumerate(itertools.pairwise(sizes)):
        key, own = jax.random.split(key)
        scale = math.sqrt(2 / max(rows, 1)) * (last if index == len(sizes) - 2 else 1.0)
        weight = scale * jax.random.normal(own, (rows, columns), dtype=jnp.float32)
        layers.append({"w": weight, "b": jnp.zeros(columns, dtype=jnp.float32)})
    return layers


def apply(layers: Layers, x: jax.Array) -> jax.Array:
    """SiLU between layers, nothing after the last."""
    for layer in layers[:-1]:
        x = jax.nn.silu(x @ layer["w"] + layer["b"])
    return x @ layers[-1]["w"] + layers[-1]["b"]


@dataclass(frozen=True)
class Network(ABC):
    """Sees numbers first, then the indicators of each categorical column; and a condition. Hashable: its methods are
    compiled once for each shape."""

    numbers: int
    categories: tuple[int, ...]
    condition_width: int
    hidden: tuple[int, ...]

    @property
    def width(self) -> int:
        return self.numbers + sum(self.categories)

    def parts(self, rows: Any) -> list[tuple[Any, int]]:
        """The indicators of each categorical column, and how many they are."""
        parts, start = [], self.numbers
        for size in self.categories:
            parts.append((rows[..., start : start + size], size))
            start += size
        return parts

    @abstractmethod
    def start(self, key: jax.Array) -> Params:
        """First parameters."""

    @abstractmethod
    def loss(self, params: Params, arrays: tuple[jax.Array, ...], key: jax.Array) -> jax.Array:
        """The mean of one batch."""

    def measured(self, params: Params, x: Floats, condition: Floats, seed: int) -> Any:
        """What drawing needs besides the trained parameters."""
        return None

    @abstractmethod
    def draw(self, params: Params, measured: Any, condition: Any, key: jax.Array) -> Any:
        """A row for each row of the condition."""


def train(
    network: Network,
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
    arrays = tuple(jnp.asarray(array, dtype=jnp.float32) for array in data)
    state = (params, params, OPTIMIZER.init(params), jnp.asarray(0, jnp.int32))
    pace = jnp.asarray([rate, steps], dtype=jnp.float32)
    key = new_key(seed)
    size = min(batch, len(arrays[0]))
    first: float | None = None
    for start in range(0, steps, CHUNK):
        many = min(CHUNK, steps - start)
        state, losses = _chunk(network, size, many, state, arrays, key, pace)
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


@partial(jax.jit, static_argnums=(0, 1, 2))
def _chunk(
    network: Network,
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
        batch = tuple(array[rows] for array in arrays)
        value, slope = jax.value_and_grad(network.loss)(params, batch, noise)
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


# --- generators -----------------------------------------------------------------------------------------------------


@dataclass(kw_only=True)
class TrainedGenerator(Generator):
    """Options: the training's steps, batch and learning rate (Adam), and the hidden layers."""

    called: ClassVar[str]

    steps: int = 3000
    batch: int = 512
    learning_rate: float = 2e-3
    hidden: tuple[int, ...] = (128, 128)

    @abstractmethod
    def _network(self, prepared: Preparation, condition_width: int) -> Network: ...

    def _learn(
        self, rows: Reals, known: NDArray[Any] | None, layout: Layout, *, seed: int, progress: Progress | None
    ) -> None:
        self._prepared = Preparation.of(rows, known, layout)
        x, condition = self._prepared.forward(rows, seed), self._prepared.standardised(known, len(rows))
        self._trained = self._network(self._prepared, condition.shape[1])
        self._params = train(
            self._trained,
            self._trained.start(new_key(seed)),
            (x, condition),
            steps=self.steps,
            batch=self.batch,
            rate=self.learning_rate,
            seed=seed + 1,
            progress=progress,
            name=self.called,
        )
        self._measured = self._trained.measured(self._params, x, condition, seed)

    def _draw(self, n: int, known: NDArray[Any] | None, *, seed: int) -> Matrix:
        condition = self._prepared.standardised(known, n)
        key = new_key(seed)

        def part(number: int, start: int, stop: int) -> NDArray[Any]:
            # Powers of two: few sizes are compiled, whatever the number of rows.
            size = 1 << max(stop - start - 1, 63).bit_length()
            padded = np.zeros((size, condition.shape[1]), dtype=np.float32)
            padded[: stop - start] = condition[start:stop]
            own = jax.random.fold_in(key, number)
            return np.asarray(self._trained.draw(self._params, self._measured, padded, own))[: stop - start]

        return self._prepared.backward(in_batches(part, n))
