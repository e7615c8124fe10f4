"""VertiGAN (Jiang et al. 2023, PETS), as the copula and VertiMRF papers compare with it.

A generator with a trunk that all parties share and one head for each party's columns; at each party a local critic that
sees the party's own columns alone. A round: every critic takes some steps of DP-SGD on its own records (Wasserstein
loss, each record's gradient clipped, Gaussian noise on their sum, then the weights clipped, as WGAN does); then each
party differentiates its critic's loss by its head and by the trunk, and the server adds the trunk's gradients.

How it is read, since we have the two papers' descriptions and no code:
- numbers are scaled by their declared bounds and come out of a sigmoid; categories come out of a softmax, are shown to
  the critic as probabilities, and are drawn by them at the end;
- a record is in a batch with probability `batch / n` (Poisson), drawn by each party for itself. Only the critics see
  data, so the whole costs parties x rounds x critic steps Gaussian mechanisms on Poisson samples, composed by Renyi
  divergences (as the VertiMRF paper does). With `unit="block"` one party's share alone is counted: the papers' claim,
  which says nothing about a person who is in all blocks. Default: the whole record. How many records a party has is
  taken as public;
- a party trains on the records that it has: nothing in the method needs aligned records;
- the moving average of the generator is kept, which is ours and helps.

**No term of the loss sees columns of two parties**, so what goes together across parties is not learned: it is whatever
the shared trunk happens to give. Within a party it learns.

Simulated: all parties in one process, float noise from a seeded generator. It is only compared with.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import Any, Literal

import dp_accounting
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pandas as pd
from dp_accounting.rdp import RdpAccountant
from numpy.typing import NDArray

from colonnade.completion.layout import Layout
from colonnade.data.column import Columns

Unit = Literal["record", "block"]
Floats = NDArray[np.float32]


@dataclass(frozen=True)
class Options:
    """The shape and the training. `clip` bounds a record's gradient, `weights` each weight of a critic."""

    rounds: int = 1000
    critic_steps: int = 3
    batch: int = 128
    noise: int = 32
    hidden: int = 64
    rate: float = 2e-3
    clip: float = 0.5
    weights: float = 0.2


ORDERS = (*range(2, 65), 96, 128, 256, 512)
"""Of the Renyi divergences: whole ones, since others do not converge for large samples."""


def steps_counted(options: Options, parties: int, unit: Unit = "record") -> int:
    """Gaussian mechanisms that see a person: those of one party, or of all parties where the person is."""
    return options.rounds * options.critic_steps * (parties if unit == "record" else 1)


def message_bytes(options: Options, parties: int) -> int:
    """In every round each party sends the trunk's gradient and gets the trunk, in 32-bit numbers; heads stay there."""
    trunk = options.noise * options.hidden + options.hidden + options.hidden**2 + options.hidden
    return options.rounds * parties * 2 * 4 * trunk


def accounted(multiplier: float, sampling: float, steps: int, delta: float) -> float:
    """The epsilon of so many Poisson-sampled Gaussian mechanisms, a record added or removed."""
    one = dp_accounting.PoissonSampledDpEvent(sampling, dp_accounting.GaussianDpEvent(multiplier))
    accountant = RdpAccountant(orders=ORDERS)
    accountant.compose(dp_accounting.SelfComposedDpEvent(one, steps))
    return float(accountant.get_epsilon(delta))


@lru_cache(maxsize=256)
def noise_multiplier(epsilon: float, delta: float, sampling: float, steps: int) -> float:
    """The smallest noise, in units of the clipping bound, that costs at most epsilon; found to 1e-3 of itself."""
    low, high = 0.1, 1.0
    while accounted(high, sampling, steps, delta) > epsilon:
        low, high = high, 2 * high
    while high / low > 1.001:
        middle = math.sqrt(low * high)
        low, high = (middle, high) if accounted(middle, sampling, steps, delta) > epsilon else (low, middle)
    return high


def synthesize(
    blocks: Mapping[str, pd.DataFrame],
    columns: Columns,
    *,
    epsilon: float | None,
    delta: float,
    n: int,
    seed: int,
    unit: Unit = "record",
    options: Options | None = None,
) -> pd.DataFrame:
    """`n` rows of all columns that the blocks have, in their order.

    blocks : {party: its records}; a column that is not declared (the key) is left out. `epsilon=None` adds no noise and
    clips no gradient.
    """
    chosen = Options() if options is None else options
    layout, places, real, sizes = _prepared(blocks, columns)
    most = int(sizes.max())
    sampling = min(chosen.batch / most, 1.0)
    multiplier = 0.0
    if epsilon is not None:
        multiplier = noise_multiplier(epsilon, delta, sampling, steps_counted(chosen, len(blocks), unit))
    shape = _Shape(
        parties=len(blocks),
        width=layout.width,
        slots=places.shape[1],
        categories=tuple(
            (layout.slices[name].start, layout.slices[name].stop - layout.slices[name].start) for name in layout.one_hot
        ),
    )
    params = _trained(shape, chosen, real, sizes, places, sampling, multiplier, seed)
    parts = [
        np.asarray(_outputs(shape, chosen, params, jax.random.fold_in(jax.random.key(seed + 1), number)))
        for number in range(math.ceil(n / _ROWS))
    ]
    return _drawn(np.concatenate(parts)[:n], layout, np.random.default_rng(seed))


AVERAGE = 0.99
"""Of the moving average of the generator, which is what is kept: adversaries circle around their equilibrium."""
_ROWS = 4096
"""Rows that are drawn at once."""


def _prepared(
    blocks: Mapping[str, pd.DataFrame], columns: Columns
) -> tuple[Layout, NDArray[np.int64], Floats, NDArray[np.int64]]:
    """(layout of all columns, places of each party's in a row, records of each party, how many).

    Parties are padded to one width and one length, so that their critics train side by side.
    """
    held = {party: [name for name in block.columns if name in columns] for party, block in blocks.items()}
    layout = Layout(columns.select([name for names in held.values() for name in names]))
    matrices = []
    for party, names in held.items():
        own = Layout(columns.select(names))
        rows = own.encode({name: columns[name].clipped(blocks[party][name]) for name in names})
        matrices.append(rows[~np.isnan(rows).any(axis=1)])
    slots = max(one.shape[1] for one in matrices)
    sizes = np.array([len(one) for one in matrices])
    real = np.zeros((len(matrices), int(sizes.max()), slots), dtype=np.float32)
    places = np.full((len(matrices), slots), layout.width, dtype=np.int64)
    for at, (names, one) in enumerate(zip(held.values(), matrices, strict=True)):
        real[at, : len(one), : one.shape[1]] = one
        places[at, : one.shape[1]] = layout.places(names)
    return layout, places, real, sizes


def _drawn(rows: Floats, layout: Layout, draw: np.random.Generator) -> pd.DataFrame:
    for name in layout.one_hot:
        at = layout.slices[name]
        chances = np.cumsum(rows[:, at].astype(np.float64), axis=1)
        codes = (draw.random((len(rows), 1)) * chances[:, -1:] > chances).sum(axis=1)
        rows[:, at] = codes[:, None] == np.arange(at.stop - at.start)
    return pd.DataFrame({name: layout.columns[name].decode(codes) for name, codes in layout.decode(rows).items()})


# --- networks --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Shape:
    parties: int
    width: int
    slots: int
    categories: tuple[tuple[int, int], ...]


def _start(shape: _Shape, options: Options, key: jax.Array) -> tuple[Any, Any]:
    """(trunk and heads, critics); heads write all columns side by side, so each party's is a part of one matrix."""
    keys = jax.random.split(key, 4)
    size, draw = options.hidden, partial(jax.random.normal, dtype=jnp.float32)
    generator = {
        "trunk": draw(keys[0], (options.noise, size)) * math.sqrt(2 / options.noise),
        "trunk_b": jnp.zeros(size),
        "body": draw(keys[1], (size, size)) * math.sqrt(2 / size),
        "body_b": jnp.zeros(size),
        "heads": draw(keys[2], (size, shape.width)) * math.sqrt(1 / size),
        "heads_b": jnp.zeros(shape.width),
    }
    limit = options.weights
    first, last = jax.random.split(keys[3])
    critics = {
        "w": jax.random.uniform(first, (shape.parties, shape.slots, size), minval=-limit, maxval=limit),
        "b": jnp.zeros((shape.parties, size)),
        "v": jax.random.uniform(last, (shape.parties, size), minval=-limit, maxval=limit),
    }
    return generator, critics


def _generated(shape: _Shape, params: Any, noise: Any) -> Any:
    """Rows of all parties: sigmoids, and a softmax for each categorical column."""
    hidden = jax.nn.leaky_relu(noise @ params["trunk"] + params["trunk_b"], 0.2)
    hidden = jax.nn.leaky_relu(hidden @ params["body"] + params["body_b"], 0.2)
    raw = hidden @ params["heads"] + params["heads_b"]
    rows = jax.nn.sigmoid(raw)
    for at, size in shape.categories:
        rows = rows.at[:, at : at + size].set(jax.nn.softmax(raw[:, at : at + size], axis=1))
    return rows


def _at_parties(rows: Any, places: Any) -> Any:
    """parties x rows x slots; a slot that a party does not need is 0."""
    padded = jnp.concatenate([rows, jnp.zeros((len(rows), 1))], axis=1)
    return jnp.moveaxis(padded[:, places], 1, 0)


def _critic(one: Any, row: Any) -> Any:
    return jax.nn.leaky_relu(row @ one["w"] + one["b"], 0.2) @ one["v"]


def clipped_sum(critics: Any, rows: Any, present: Any, bound: Any) -> Any:
    """For each party, the sum over its rows (parties x rows x slots) of the gradient of D(row), each of norm at most
    `bound`.

    With D(x) = v'a(h), h = W'x + b, one record's gradient is a(h) for v, g = v a'(h) for b and x g' for W. So its
    squared norm is |a|^2 + |g|^2 (1 + |x|^2), and no gradient of a single record has to be written down.
    """
    h = jnp.einsum("kbs,ksh->kbh", rows, critics["w"]) + critics["b"][:, None, :]
    a = jax.nn.leaky_relu(h, 0.2)
    g = critics["v"][:, None, :] * jnp.where(h >= 0, 1.0, 0.2)
    squared = jnp.sum(a**2, axis=2) + jnp.sum(g**2, axis=2) * (1 + jnp.sum(rows**2, axis=2))
    weight = present * jnp.minimum(1.0, bound / jnp.sqrt(jnp.maximum(squared, 1e-24)))
    weighted = g * weight[:, :, None]
    return {
        "w": jnp.einsum("kbs,kbh->ksh", rows, weighted),
        "b": weighted.sum(axis=1),
        "v": jnp.einsum("kbh,kb->kh", a, weight),
    }


def _outputs(shape: _Shape, options: Options, params: Any, key: jax.Array) -> Any:
    return _generated(shape, params, jax.random.normal(key, (_ROWS, options.noise), dtype=jnp.float32))


# --- training --------------------------------------------------------------------------------------------------------


def poisson_batches(
    sizes: NDArray[np.int64], sampling: float, steps: int, draw: np.random.Generator
) -> NDArray[np.int64]:
    """Which records are in each batch: steps x parties x slots, -1 for an empty slot.

    Gaps between the records of a Poisson sample are geometric. Slots suffice but for a chance below 1e-12.
    """
    expected = sampling * int(sizes.max())
    slots = int(expected + 8 * math.sqrt(expected) + 12)
    if sampling >= 1:
        slots = int(sizes.max())
    gaps = draw.geometric(sampling, size=(steps, len(sizes), slots))
    at = np.cumsum(gaps, axis=2) - 1
    return np.where(at < sizes[None, :, None], at, -1)


def _trained(
    shape: _Shape,
    options: Options,
    real: Floats,
    sizes: NDArray[np.int64],
    places: NDArray[np.int64],
    sampling: float,
    multiplier: float,
    seed: int,
    chunk: int = 50,
) -> Any:
    key = jax.random.key(seed, impl="rbg")
    generator, critics = _start(shape, options, key)
    optimizer = optax.rmsprop(options.rate)
    state = (generator, critics, optimizer.init(generator), optimizer.init(critics), generator)
    draw = np.random.default_rng(seed)
    data, where = jnp.asarray(real), jnp.asarray(places)
    bound, deviation = (options.clip, multiplier * options.clip) if multiplier else (math.inf, 0.0)
    pace = (jnp.float32(sampling), jnp.asarray(sizes, jnp.float32), jnp.float32(bound), jnp.float32(deviation))
    for start in range(0, options.rounds, chunk):
        many = min(chunk, options.rounds - start)
        picked = poisson_batches(sizes, sampling, many * options.critic_steps, draw)
        batches = jnp.asarray(picked.reshape(many, options.critic_steps, *picked.shape[1:]))
        keys = jax.random.split(jax.random.fold_in(key, start), many)
        state = _rounds(shape, options, state, data, where, batches, keys, pace)
    found = jax.device_get(state[-1])
    if not all(np.isfinite(one).all() for one in found.values()):
        raise ArithmeticError("VertiGAN diverged; lower its rate.")
    return found


@partial(jax.jit, static_argnums=(0, 1))
def _rounds(
    shape: _Shape, options: Options, state: Any, real: Any, places: Any, batches: Any, keys: Any, pace: Any
) -> Any:
    optimizer = optax.rmsprop(options.rate)
    sampling, sizes, bound, deviation = pace
    fake_rows = options.batch

    def fakes(generator: Any, key: jax.Array) -> Any:
        noise = jax.random.normal(key, (fake_rows, options.noise), dtype=jnp.float32)
        return _at_parties(_generated(shape, generator, noise), places)

    def slope(critics: Any, rows: Any, present: Any, fake: Any, key: jax.Array) -> Any:
        """Of mean D(fake) - mean D(real). Only the real part sees data; both are clipped, or else they would differ
        even where fake rows are as good as real ones."""
        total = clipped_sum(critics, rows, present, bound)
        noisy = jax.random.split(key, len(total))
        total = {
            name: one + deviation * jax.random.normal(noisy[at], one.shape, dtype=jnp.float32)
            for at, (name, one) in enumerate(total.items())
        }
        against = clipped_sum(critics, fake, jnp.ones(fake.shape[:2], dtype=bool), bound)
        # The mean over the batch that is expected at each party: the size of the one that was drawn is not public.
        each = sampling * sizes
        return {name: against[name] / fake_rows - (total[name].T / each).T for name in total}

    def one_round(state: Any, given: Any) -> tuple[Any, None]:
        generator, critics, memory, critic_memory, average = state
        picked, key = given
        keys = jax.random.split(key, options.critic_steps + 1)

        def critic_step(carried: Any, given: Any) -> tuple[Any, None]:
            critics, memory = carried
            at, key = given
            fresh, noise = jax.random.split(key)
            rows = jnp.take_along_axis(real, jnp.maximum(at, 0)[:, :, None], axis=1)
            found = slope(critics, rows, at >= 0, fakes(generator, fresh), noise)
            moves, memory = optimizer.update(found, memory)
            critics = optax.apply_updates(critics, moves)
            critics = jax.tree.map(lambda one: jnp.clip(one, -options.weights, options.weights), critics)
            return (critics, memory), None

        (critics, critic_memory), _ = jax.lax.scan(critic_step, (critics, critic_memory), (picked, keys[:-1]))

        def loss(generator: Any) -> Any:
            scores = jax.vmap(jax.vmap(_critic, in_axes=(None, 0)))(critics, fakes(generator, keys[-1]))
            return -scores.mean(axis=1).sum()

        moves, memory = optimizer.update(jax.grad(loss)(generator), memory)
        generator = optax.apply_updates(generator, moves)
        average = jax.tree.map(lambda old, new: AVERAGE * old + (1 - AVERAGE) * new, average, generator)
        return (generator, critics, memory, critic_memory, average), None

    return jax.lax.scan(one_round, state, (batches, keys))[0]
