"""VF-GAIN, VF-VGAIN and VF-CGAIN: imputation GANs split between parties (FedPSG paper, section 3.2; GAIN, ICML 2018).

Each party k has a bottom generator G_k and a bottom discriminator D_k; the active party has the top discriminator T:

    x_hat_k = m_k x_k + (1 - m_k) G_k(x_k, m_k, z_k)          z: small noise where a value is missing
    a       = sum_k D_k(x_hat_k, h_k)                         h: the mask where hinted, 1/2 elsewhere
    logits  = T(LeakyReLU(a)), one for each entry of all parties: was it observed?

D and T minimise the cross-entropy of the mask on unhinted entries; G_k minimises -log T on missing entries plus alpha
times the reconstruction error of observed ones (squared, or softmax cross-entropy of a one-hot column). Both move at
the same time along gradients at the same point, so that one exchange serves both.

`hide` hides that share of a party's blocks from its generator in each batch, although they are observed: a record that
a party lacks is missing as a whole, and a generator that never saw an empty block has nothing to say about one. Hidden
entries count as missing for D, and for the reconstruction as observed. GAIN itself has hide = 0.

The hints, hidden blocks and batches follow from a public key; they are no secrets.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax

from colonnade.completion.networks import Array, Layers, apply, constant_adam, dense, key_from, leaky

Kind = Literal["gain", "vgain", "cgain"]

NOISE = 0.01
"""Size of the noise in the place of missing values, as in GAIN's own code."""


class State(NamedTuple):
    generator: Any
    bottom: Layers
    top: Layers
    generator_optimiser: Any
    judge_optimiser: Any


class Data(NamedTuple):
    """One party's side over the cohort: values (0 where missing), mask, context (condition and label), all masks.

    `masks` (n x all parties' widths) is used at the active party only.
    """

    x: Array
    mask: Array
    context: Array
    masks: Array


@dataclass(frozen=True)
class Gain:
    """One party's part. `widths` and `hide` are those of all parties; `place` is this party's; `groups` its one-hot
    columns."""

    kind: Kind
    widths: tuple[int, ...]
    place: int
    active: bool
    groups: tuple[tuple[int, int], ...]
    context: int
    hidden: int
    cut: int
    rate: float
    alpha: float = 100.0
    hint: float = 0.9
    hide: tuple[float, ...] = ()
    dropout: float = 0.5
    kl: float = 1e-2

    @property
    def width(self) -> int:
        return self.widths[self.place]

    @property
    def latent(self) -> int:
        return max(self.hidden // 4, 2)

    @partial(jax.jit, static_argnums=0)
    def init(self, key: Array) -> State:
        seen = 2 * self.width + self.context
        keys = jax.random.split(key, 4)
        if self.kind == "vgain":
            generator = {
                "encoder": dense(keys[0], (seen, self.hidden, 2 * self.latent), last=0.1),
                "decoder": dense(keys[1], (self.latent + self.context, self.hidden, self.width), last=0.1),
            }
        else:
            generator = {"layers": dense(keys[0], (seen, self.hidden, self.hidden, self.width), last=0.1)}
        judged = 2 * self.width + (self.context if self.kind == "cgain" else 0)
        bottom = dense(keys[2], (judged, self.hidden, self.cut))
        top = dense(keys[3], (self.cut, self.hidden, sum(self.widths)), last=0.1) if self.active else []
        return State(
            generator,
            bottom,
            top,
            self._optimiser.init(generator),
            self._optimiser.init((bottom, top)),
        )

    @property
    def _optimiser(self) -> optax.GradientTransformation:
        return constant_adam(self.rate)

    # --- one batch -----------------------------------------------------------------------------------------------

    def _bits(self, rows: int, public: Array) -> tuple[Array, Array]:
        """(hinted, shown) of all parties' entries of a batch, which everybody can work out."""
        total = sum(self.widths)
        drawn = jax.random.uniform(public, (rows, total + len(self.widths)))
        hide = jnp.asarray(self.hide or (0.0,) * len(self.widths))
        shown = jnp.repeat(drawn[:, total:] >= hide, np.array(self.widths), axis=1, total_repeat_length=total)
        return drawn[:, :total] < self.hint, shown

    @property
    def _mine(self) -> slice:
        start = sum(self.widths[: self.place])
        return slice(start, start + self.width)

    def _drawn(self, rows: int, key: Array) -> Array:
        """Uniform numbers for the noise of missing values, two dropouts, and a variational generator."""
        return jax.random.uniform(key, (rows, self.width + 2 * self.hidden + self.latent))

    def _own(self, data: Data, batch: Array, public: Array) -> tuple[Array, Array, Array, Array, Array]:
        """(values, observed, shown to the generator, hint, context) of this party's part of a batch."""
        hinted, shown = self._bits(batch.shape[0], public)
        observed = data.mask[batch]
        mask = observed & shown[:, self._mine]
        hint = jnp.where(hinted[:, self._mine], mask.astype(jnp.float32), 0.5)
        return data.x[batch], observed, mask, hint, data.context[batch]

    def _spread(self, raw: Array) -> Array:
        """Outputs in [0, 1]: a sigmoid for numbers, a softmax over each one-hot column."""
        parts, at = [], 0
        for start, stop in self.groups:
            parts += [jax.nn.sigmoid(raw[:, at:start]), jax.nn.softmax(raw[:, start:stop], axis=1)]
            at = stop
        return jnp.concatenate([*parts, jax.nn.sigmoid(raw[:, at:])], axis=1)

    def _generate(
        self, generator: Any, x: Array, mask: Array, context: Array, drawn: Array
    ) -> tuple[Array, Array, Array]:
        """(outputs, raw outputs, KL divergence)."""
        filled = jnp.where(mask, x, NOISE * drawn[:, : self.width])
        seen = jnp.concatenate([filled, mask.astype(jnp.float32), context], axis=1)
        kl = jnp.zeros(())
        if self.kind == "vgain":
            both = apply(generator["encoder"], seen, activation=jax.nn.relu)
            mean, spread = both[:, : self.latent], jnp.clip(both[:, self.latent :], -8.0, 8.0)
            kl = 0.5 * jnp.mean(jnp.sum(mean**2 + jnp.exp(spread) - 1.0 - spread, axis=1))
            normal = jax.scipy.special.ndtri(jnp.clip(drawn[:, -self.latent :], 1e-6, 1 - 1e-6))
            latent = mean + jnp.exp(0.5 * spread) * normal
            raw = apply(generator["decoder"], jnp.concatenate([latent, context], axis=1), activation=jax.nn.relu)
        else:
            raw = apply(generator["layers"], seen, activation=jax.nn.relu)
        return self._spread(raw), raw, kl

    def _judged(self, bottom: Layers, filled: Array, hint: Array, context: Array, drawn: Array) -> Array:
        parts = [filled, hint] + ([context] if self.kind == "cgain" else [])
        uniform = drawn[:, self.width : self.width + self.hidden]
        return apply(bottom, jnp.concatenate(parts, axis=1), dropout=(uniform, self.dropout))

    def _reconstruction(self, raw: Array, made: Array, x: Array, observed: Array) -> Array:
        """Mean over the observed entries: squared error of numbers, cross-entropy of one-hot columns."""
        numeric = np.ones(self.width, dtype=bool)
        total = jnp.zeros(())
        for start, stop in self.groups:
            numeric[start:stop] = False
            cross = -jnp.sum(x[:, start:stop] * jax.nn.log_softmax(raw[:, start:stop], axis=1), axis=1)
            total += jnp.sum(jnp.where(observed[:, start], cross, 0.0)) / 4.0
        total += jnp.sum(jnp.where(observed & jnp.asarray(numeric), made - x, 0.0) ** 2)
        return total / jnp.maximum(jnp.sum(observed), 1.0)

    def _part(self, generator: Any, bottom: Layers, own: tuple[Array, ...], drawn: Array) -> tuple[Array, Array]:
        """(this party's part of the sum, alpha x reconstruction + KL) of one batch."""
        x, observed, mask, hint, context = own
        made, raw, kl = self._generate(generator, x, mask, context, drawn)
        filled = jnp.where(mask, x, made)
        local = self.alpha * (self._reconstruction(raw, made, x, observed) + self.kl * kl)
        return self._judged(bottom, filled, hint, context, drawn), local

    # --- what parties do -----------------------------------------------------------------------------------------

    @partial(jax.jit, static_argnums=0)
    def partials(self, state: State, data: Data, rows: Array, public: Array, keys: Array) -> Array:
        """This party's part of the sum for Q batches (Q x B)."""

        def one(at: tuple[Array, Array, Array]) -> Array:
            batch, common, key = at
            drawn = self._drawn(batch.shape[0], key)
            return self._part(state.generator, state.bottom, self._own(data, batch, common), drawn)[0]

        found: Array = jax.lax.map(one, (rows, public, keys))
        return found

    @partial(jax.jit, static_argnums=0)
    def lead(
        self, state: State, data: Data, rows: Array, others: Array, public: Array, keys: Array
    ) -> tuple[State, Array, Array]:
        """Q iterations at the active party: (state, gradients of both losses (Q x 2 x B x cut), losses (Q x 2))."""

        def one(state: State, at: tuple[Array, Array, Array, Array]) -> tuple[State, tuple[Array, Array]]:
            batch, rest, common, key = at
            own, drawn = self._own(data, batch, common), self._drawn(batch.shape[0], key)
            hinted, shown = self._bits(batch.shape[0], common)
            mask = data.masks[batch] & shown
            truth = mask.astype(jnp.float32)

            def logits(generator: Any, bottom: Layers, top: Layers, probe: Array) -> tuple[Array, Array]:
                part, local = self._part(generator, bottom, own, drawn)
                uniform = drawn[:, self.width + self.hidden : self.width + 2 * self.hidden]
                return apply(top, leaky(part + rest + probe), dropout=(uniform, self.dropout)), local

            def judge(layers: tuple[Layers, Layers], probe: Array) -> Array:
                found, _ = logits(jax.lax.stop_gradient(state.generator), layers[0], layers[1], probe)
                cross = optax.sigmoid_binary_cross_entropy(found, truth)
                return jnp.sum(jnp.where(hinted, 0.0, cross)) / jnp.maximum(jnp.sum(~hinted), 1.0)

            def fool(generator: Any, probe: Array) -> Array:
                found, local = logits(generator, state.bottom, state.top, probe)
                seen = jnp.sum(jnp.where(mask, 0.0, -jax.nn.log_sigmoid(found))) / mask.size
                return seen + local

            nothing = jnp.zeros_like(rest)
            judged, (judge_move, judge_slope) = jax.value_and_grad(judge, argnums=(0, 1))(
                (state.bottom, state.top), nothing
            )
            fooled, (move, slope) = jax.value_and_grad(fool, argnums=(0, 1))(state.generator, nothing)
            moved = self._moved(state, move, judge_move)
            return moved, (jnp.stack([judge_slope, slope]), jnp.stack([judged, fooled]))

        state, (slopes, losses) = jax.lax.scan(one, state, (rows, others, public, keys))
        return state, slopes, losses

    @partial(jax.jit, static_argnums=0)
    def follow(self, state: State, data: Data, rows: Array, slopes: Array, public: Array, keys: Array) -> State:
        """Q iterations at another party, along both gradients."""

        def one(state: State, at: tuple[Array, Array, Array, Array]) -> tuple[State, None]:
            batch, slope, common, key = at
            own, drawn = self._own(data, batch, common), self._drawn(batch.shape[0], key)

            def judge(bottom: Layers) -> Array:
                part, _ = self._part(jax.lax.stop_gradient(state.generator), bottom, own, drawn)
                return jnp.sum(part * slope[0])

            def fool(generator: Any) -> Array:
                part, local = self._part(generator, state.bottom, own, drawn)
                return jnp.sum(part * slope[1]) + local

            moved = self._moved(state, jax.grad(fool)(state.generator), (jax.grad(judge)(state.bottom), state.top))
            return moved, None

        return jax.lax.scan(one, state, (rows, slopes, public, keys))[0]

    @partial(jax.jit, static_argnums=0)
    def impute(self, state: State, data: Data, rows: Array, words: Array) -> Array:
        """What the generator says about every entry of some rows."""
        drawn = self._drawn(rows.shape[0], key_from(words))
        return self._generate(state.generator, data.x[rows], data.mask[rows], data.context[rows], drawn)[0]

    def _moved(self, state: State, move: Any, judge_move: tuple[Layers, Layers]) -> State:
        judges = (state.bottom, state.top)
        change, generator_optimiser = self._optimiser.update(move, state.generator_optimiser, state.generator)
        judge_change, judge_optimiser = self._optimiser.update(judge_move, state.judge_optimiser, judges)
        bottom, top = optax.apply_updates(judges, judge_change)
        return State(optax.apply_updates(state.generator, change), bottom, top, generator_optimiser, judge_optimiser)
