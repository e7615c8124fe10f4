"""TVAE (Xu et al. 2019): a variational autoencoder of a mixed table.

The encoder gives q(z | x) = N(mu(x), s(x)^2), the decoder p(x | z): a normal law for each number, with a standard
deviation that is learned for the column, and probabilities for the categories. Maximised is

    E_q log p(x | z) - beta KL(q(z | x) || N(0, 1)).

Numbers are normal scores, where the paper takes the modes of a mixture; beta is 1 (the paper's loss factor of 2 is
beta = 1/2). Rows are **drawn** from the decoder: numbers with their noise, categories by their probabilities. The means
alone, as they are often taken, would have too little variance. A condition enters both networks.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar

import jax
import jax.numpy as jnp

from colonnade.papers.fedpsg.generators.trained import (
    Network,
    Params,
    Preparation,
    TrainedGenerator,
    apply,
    dense,
    drawn,
)

SHARPEST = 0.03
"""The least standard deviation of a number: the loss stays bounded where a number is a function of the others."""


@dataclass(frozen=True)
class Autoencoder(Network):
    """Encoder and decoder; beta weighs the divergence."""

    latent: int
    beta: float

    def start(self, key: jax.Array) -> Params:
        encoder, decoder = jax.random.split(key)
        return {
            "encoder": dense(encoder, (self.width + self.condition_width, *self.hidden, 2 * self.latent), last=0.1),
            "decoder": dense(decoder, (self.latent + self.condition_width, *self.hidden, self.width)),
            "log_sd": jnp.zeros(self.numbers, dtype=jnp.float32),
        }

    def loss(self, params: Params, arrays: tuple[jax.Array, ...], key: jax.Array) -> jax.Array:
        """The negative bound, in nats a record over the number of columns."""
        rows, condition = arrays
        code = apply(params["encoder"], jnp.concatenate([rows, condition], axis=1))
        mean, log_sd = code[:, : self.latent], jnp.clip(code[:, self.latent :], -6.0, 3.0)
        z = mean + jnp.exp(log_sd) * jax.random.normal(key, mean.shape, dtype=jnp.float32)
        decoded = apply(params["decoder"], jnp.concatenate([z, condition], axis=1))
        noise = _log_sd(params)
        away = (rows[:, : self.numbers] - decoded[:, : self.numbers]) * jnp.exp(-noise)
        loss = jnp.sum(0.5 * away**2 + noise, axis=1)
        for (truth, _), (logits, _) in zip(self.parts(rows), self.parts(decoded), strict=True):
            loss = loss - jnp.sum(truth * jax.nn.log_softmax(logits), axis=1)
        divergence = jnp.sum(0.5 * (mean**2 + jnp.exp(2 * log_sd) - 1) - log_sd, axis=1)
        return jnp.asarray(jnp.mean(loss + self.beta * divergence) / (self.numbers + len(self.categories)))

    @partial(jax.jit, static_argnums=0)
    def draw(self, params: Params, measured: Any, condition: Any, key: jax.Array) -> Any:
        latent, normal, other = jax.random.split(key, 3)
        gumbel = jax.random.gumbel(other, (len(condition), self.width), dtype=jnp.float32)
        z = jax.random.normal(latent, (len(condition), self.latent), dtype=jnp.float32)
        decoded = apply(params["decoder"], jnp.concatenate([z, condition], axis=1))
        noise = jnp.exp(_log_sd(params)) * jax.random.normal(normal, (len(condition), self.numbers), dtype=jnp.float32)
        parts = [decoded[:, : self.numbers] + noise]
        pairs = zip(self.parts(decoded), self.parts(gumbel), strict=True)
        parts += [drawn(logits, each) for (logits, _), (each, _) in pairs]
        return jnp.concatenate(parts, axis=1)


def _log_sd(params: Params) -> Any:
    """Adam moves every parameter alike; a logarithm has farther to go than a weight."""
    return jnp.maximum(10 * params["log_sd"], math.log(SHARPEST))


@dataclass(kw_only=True)
class TVAE(TrainedGenerator):
    """Options: the latent dimension, the weight of the divergence, and those of the training."""

    called: ClassVar[str] = "TVAE"

    latent: int = 16
    beta: float = 1.0

    def _network(self, prepared: Preparation, condition_width: int) -> Autoencoder:
        return Autoencoder(
            prepared.numbers, prepared.categories, condition_width, tuple(self.hidden), self.latent, self.beta
        )
