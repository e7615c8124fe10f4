"""VF-GAIN, VF-VGAIN and VF-CGAIN: imputation GANs split between parties (FedPSG paper, section 3.2; GAIN, ICML 2018).

Each party k has a bottom generator G_k and a bottom discriminator D_k; the active party has the top discriminator T:

    x_hat_k = m_k x_k + (1 - m_k) G_k(x_k, m_k, z_k)          z: small noise where a value is missing, and in the
                                                              place of G_k at a party that is not completed
    a       = sum_k D_k(x_hat_k, h_k)                         h: the mask where hinted, 1/2 elsewhere
    logits  = T(LeakyReLU(a)), one for each entry of all parties: was it observed?

D and T minimise the cross-entropy of the mask on unhinted entries; G_k minimises -log T on missing entries plus alpha
times the reconstruction error of observed ones (squared, or softmax cross-entropy of a one-hot column). Both move at
the same time along gradients at the same point, so that one exchange serves both.

`hide` hides that share of a party's blocks from its generator in each batch, although they are observed: a record that
a party lacks is missing as a whole, and a generator that never saw an empty block has nothing to say about one. Hidden
entries count as missing for D, and for the reconstruction as observed. Columns that were generated before (`given`)
are never hidden: they are known where a record is filled in. GAIN itself has hide = 0.

With `predicted`, the first numbers of a record's context are what a regression across the parties expects of this
party's entries, and G_k corrects them: it adds to their logits, and begins as the regression. Without it G_k has to
learn first to repeat its context, and on few records that is all it learns.

The hints, hidden blocks and batches follow from a public key; they are no secrets.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from numpy.typing import NDArray

from colonnade.completion.split.networks import Array, Layers, SplitNetwork, apply, dense, leaky, random_bytes
from colonnade.completion.split.training import drawing

Kind = Literal["gain", "vgain", "cgain"]

NOISE = 0.01
"""Size of the noise in the place of missing values, as in GAIN's own code."""
LEAST_EXPECTED = 1e-3
"""An expected value nearer to 0 or 1 counts as this: it may be wrong, and its logit is added to."""
LEAST_LOGIT = -60.0
"""Of a category, below the row's largest: what is less likely counts as e^-60."""


class State(NamedTuple):
    generator: Any
    bottom: Layers
    top: Layers
    generator_optimiser: Any
    judge_optimiser: Any


class Drawn(NamedTuple):
    """What is random in Q batches, or in one: bytes for the noise of missing values and for two dropouts, and the
    latent of VF-VGAIN."""

    noise: Array
    bottom: Array
    top: Array
    normal: Array


class Data(NamedTuple):
    """One party's side over the cohort: values (0 where missing), mask, context (condition and label), all masks.

    `masks` (n x all parties' widths) is used at the active party only.
    """

    x: Array
    mask: Array
    context: Array
    masks: Array

    @classmethod
    def of(cls, *arrays: NDArray[Any]) -> Data:
        return cls(*map(jnp.asarray, arrays))


@dataclass(frozen=True)
class Gain(SplitNetwork):
    """One party's part. `widths`, `hide` and `given` (places among all entries) are those of all parties; `place` is
    this party's; `groups` its one-hot columns. A party that is not completed has no generator (`fills`)."""

    kind: Kind
    widths: tuple[int, ...]
    place: int
    active: bool
    groups: tuple[tuple[int, int], ...]
    context: int
    hidden: int
    cut: int
    learning_rate: float
    alpha: float = 100.0
    hint: float = 0.9
    hide: tuple[float, ...] = ()
    given: tuple[int, ...] = ()
    fills: bool = True
    predicted: bool = False
    dropout: float = 0.5
    kl: float = 1e-2

    @property
    def width(self) -> int:
        return self.widths[self.place]

    @property
    def latent(self) -> int:
        return max(self.hidden // 4, 2)

    @property
    def _sizes(self) -> tuple[dict[str, tuple[int, ...]], tuple[int, ...], tuple[int, ...]]:
        """Of the layers of the generator, of the bottom discriminator, and of the top where this party has it."""
        seen = 2 * self.width + self.context
        generator: dict[str, tuple[int, ...]] = {}
        if self.fills and self.kind == "vgain":
            generator = {
                "encoder": (seen, self.hidden, 2 * self.latent),
                "decoder": (self.latent + self.context, self.hidden, self.width),
            }
        elif self.fills:
            generator = {"layers": (seen, self.hidden, self.hidden, self.width)}
        judged = 2 * self.width + (self.context if self.kind == "cgain" else 0)
        top = (self.cut, self.hidden, sum(self.widths)) if self.active else ()
        return generator, (judged, self.hidden, self.cut), top

    @property
    def weights(self) -> int:
        """How many this party trains."""
        generator, bottom, top = self._sizes
        networks = (*generator.values(), bottom, top)
        return sum((a + 1) * b for sizes in networks for a, b in itertools.pairwise(sizes))

    def init(self, words: NDArray[np.uint32]) -> State:
        sizes, bottom_sizes, top_sizes = self._sizes
        generator = {
            name: dense(drawing(words, place), layers, last=0.1) for place, (name, layers) in enumerate(sizes.items())
        }
        bottom, top = dense(drawing(words, 2), bottom_sizes), dense(drawing(words, 3), top_sizes, last=0.1)
        return State(generator, bottom, top, *self._rested(generator, (bottom, top)))

    @partial(jax.jit, static_argnums=0)
    def _rested(self, generator: Any, judges: tuple[Layers, Layers]) -> tuple[Any, Any]:
        return self._optimiser.init(generator), self._optimiser.init(judges)

    def common(self, draw: np.random.Generator, count: int, batch: int) -> NDArray[np.uint16]:
        """What decides on hints and hidden blocks, for all parties' entries: all draw the same."""
        wide = sum(self.widths) + len(self.widths)
        return random_bytes(draw, count, batch, 2 * wide).view(np.uint16)

    def draws(self, draw: np.random.Generator, count: int, batch: int) -> Drawn:
        """This party's own, for `count` iterations."""
        noise, normal = self.fresh(draw, count, batch)
        return Drawn(
            noise,
            random_bytes(draw, count, batch, self.hidden),
            random_bytes(draw, count, batch, self.hidden if self.active else 0),
            normal,
        )

    def fresh(self, draw: np.random.Generator, *shape: int) -> tuple[NDArray[np.uint8], NDArray[np.float32]]:
        """What a generator needs: noise for missing values, and a latent."""
        latent = self.latent if self.kind == "vgain" else 0
        return random_bytes(draw, *shape, self.width), draw.standard_normal((*shape, latent), dtype=np.float32)

    @property
    def _optimiser(self) -> optax.GradientTransformation:
        return optax.adam(self.learning_rate)

    # --- one batch -----------------------------------------------------------------------------------------------

    def _bits(self, common: Array) -> tuple[Array, Array]:
        """(hinted, shown) of all parties' entries of a batch."""
        total = sum(self.widths)
        drawn = common.astype(jnp.int32)
        hide = self.hide or (0.0,) * len(self.widths)
        shown = [
            jnp.broadcast_to(drawn[:, total + k : total + k + 1] >= round(65536 * share), (len(drawn), width))
            for k, (share, width) in enumerate(zip(hide, self.widths, strict=True))
        ]
        always = np.isin(np.arange(total), self.given)
        return drawn[:, :total] < round(65536 * self.hint), jnp.concatenate(shown, axis=1) | always

    @property
    def _mine(self) -> slice:
        start = sum(self.widths[: self.place])
        return slice(start, start + self.width)

    def _own(self, data: Data, batch: Array, hinted: Array, shown: Array) -> tuple[Array, Array, Array, Array, Array]:
        """(values, observed, shown to the generator, hint, context) of this party's part of a batch."""
        observed = data.mask[batch]
        mask = observed & shown[:, self._mine]
        hint = jnp.where(hinted[:, self._mine], mask.astype(jnp.float32), 0.5)
        return data.x[batch], observed, mask, hint, data.context[batch]

    @cached_property
    def _groups(self) -> tuple[NDArray[np.bool_], NDArray[np.float32]]:
        """(which entries are of one-hot columns, one-hot columns x entries: which entries belong to which)."""
        belongs = np.zeros((len(self.groups), self.width), dtype=np.float32)
        for k, (start, stop) in enumerate(self.groups):
            belongs[k, start:stop] = 1.0
        return np.asarray(belongs.any(axis=0)), belongs

    def _activated(self, raw: Array) -> tuple[Array, Array]:
        """Outputs in [0, 1], a sigmoid for numbers and a softmax over each one-hot column; and the softmax's logarithm.

        Sums over the columns are products with a fixed matrix: a slice for each column takes far more operations.
        """
        one_hot, belongs = self._groups
        if not self.groups:
            return jax.nn.sigmoid(raw), raw
        shift = jax.lax.stop_gradient(jnp.max(jnp.where(one_hot, raw, -jnp.inf), axis=1, keepdims=True))
        logits = jnp.where(one_hot, jnp.maximum(raw - shift, LEAST_LOGIT), 0.0)
        logs = logits - jnp.log(jnp.exp(logits) @ belongs.T) @ belongs
        return jnp.where(one_hot, jnp.exp(logs), jax.nn.sigmoid(raw)), logs

    def _generate(
        self, generator: Any, x: Array, mask: Array, context: Array, noise: Array, normal: Array
    ) -> tuple[Array, Array, Array]:
        """(outputs, logarithms of the frequencies, KL divergence)."""
        filled = jnp.where(mask, x, NOISE / 256 * (noise.astype(jnp.float32) + 0.5))
        seen = jnp.concatenate([filled, mask.astype(jnp.float32), context], axis=1)
        kl = jnp.zeros(())
        if self.kind == "vgain":
            both = apply(generator["encoder"], seen, activation=jax.nn.relu)
            mean, log_variance = both[:, : self.latent], jnp.clip(both[:, self.latent :], -8.0, 8.0)
            kl = 0.5 * jnp.mean(jnp.sum(mean**2 + jnp.exp(log_variance) - 1.0 - log_variance, axis=1))
            latent = mean + jnp.exp(0.5 * log_variance) * normal
            raw = apply(generator["decoder"], jnp.concatenate([latent, context], axis=1), activation=jax.nn.relu)
        else:
            raw = apply(generator["layers"], seen, activation=jax.nn.relu)
        return *self._activated(raw + self._expected(context)), kl

    def _expected(self, context: Array) -> Array | float:
        """The logits of what the context says about this party's entries; nothing if it says nothing."""
        if not self.predicted:
            return 0.0
        expected = jnp.clip(context[:, : self.width], LEAST_EXPECTED, 1 - LEAST_EXPECTED)
        return jnp.log(expected) - jnp.where(self._groups[0], 0.0, jnp.log1p(-expected))

    def _judged(self, bottom: Layers, filled: Array, hint: Array, context: Array, drawn: Drawn) -> Array:
        parts = [filled, hint] + ([context] if self.kind == "cgain" else [])
        return apply(bottom, jnp.concatenate(parts, axis=1), dropout=(drawn.bottom, self.dropout))

    def _reconstruction(self, logs: Array, outputs: Array, x: Array, observed: Array) -> Array:
        """Mean over the observed entries: squared error of numbers, cross-entropy of one-hot columns."""
        lost = jnp.where(self._groups[0], -0.25 * x * logs, (outputs - x) ** 2)
        return jnp.sum(jnp.where(observed, lost, 0.0)) / jnp.maximum(jnp.sum(observed), 1.0)

    def weights_of(self, state: State) -> tuple[Any, ...]:
        return (state.bottom, state.top), state.generator

    def part(
        self, weights: tuple[Any, ...], data: Data, rows: Array, draws: tuple[Array, Drawn]
    ) -> tuple[Array, Array]:
        """(this party's part of the sum, alpha x reconstruction + KL)."""
        common, drawn = draws
        return self._part(weights, self._own(data, rows, *self._bits(common)), drawn)

    def _part(self, weights: tuple[Any, ...], own: tuple[Array, ...], drawn: Drawn) -> tuple[Array, Array]:
        ((bottom, _), generator), (x, observed, mask, hint, context) = weights, own
        if not self.fills:
            filled = jnp.where(mask, x, NOISE / 256 * (drawn.noise.astype(jnp.float32) + 0.5))
            return self._judged(bottom, filled, hint, context, drawn), jnp.zeros(())
        outputs, logs, kl = self._generate(generator, x, mask, context, drawn.noise, drawn.normal)
        filled = jnp.where(mask, x, outputs)
        local = self.alpha * (self._reconstruction(logs, outputs, x, observed) + self.kl * kl)
        return self._judged(bottom, filled, hint, context, drawn), local

    def losses(
        self, weights: tuple[Any, ...], data: Data, rows: Array, others: Array, draws: tuple[Array, Drawn]
    ) -> tuple[Array, Array]:
        """(the discriminator's, the generator's)."""
        common, drawn = draws
        hinted, shown = self._bits(common)
        mask = data.masks[rows] & shown
        part, local = self._part(weights, self._own(data, rows, hinted, shown), drawn)
        logits = apply(weights[0][1], leaky(part + others), dropout=(drawn.top, self.dropout))
        cross = optax.sigmoid_binary_cross_entropy(logits, mask.astype(jnp.float32))
        judged = jnp.sum(jnp.where(hinted, 0.0, cross)) / jnp.maximum(jnp.sum(~hinted), 1.0)
        return judged, jnp.sum(jnp.where(mask, 0.0, -jax.nn.log_sigmoid(logits))) / mask.size + local

    def moved(self, state: State, moves: Sequence[Any]) -> State:
        judge_move, move = moves
        judges = (state.bottom, state.top)
        change, generator_optimiser = self._optimiser.update(move, state.generator_optimiser, state.generator)
        judge_change, judge_optimiser = self._optimiser.update(judge_move, state.judge_optimiser, judges)
        bottom, top = optax.apply_updates(judges, judge_change)
        return State(optax.apply_updates(state.generator, change), bottom, top, generator_optimiser, judge_optimiser)

    @partial(jax.jit, static_argnums=0)
    def _impute(self, state: State, data: Data, rows: Array, noise: Array, normal: Array) -> Array:
        return self._generate(state.generator, data.x[rows], data.mask[rows], data.context[rows], noise, normal)[0]

    def impute(self, state: State, data: Data, rows: Array, draw: np.random.Generator) -> NDArray[np.float32]:
        """What the generator says about every entry of some rows."""
        return np.asarray(self._impute(state, data, rows, *self.fresh(draw, len(rows))))
