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

from colonnade.papers.fedpsg.generators.trained import Params, apply, dense, drawn
from colonnade.papers.fedpsg.generators.trained import Preparation
from colonnade.papers.fedpsg.generators.trained import Floats, RowShape, TrainedGenerator

SHARPEST = 0.03
"""The least standard deviation of a number: the loss stays bounded where a number is a function of the others."""


@dataclass(frozen=True)
class Spec(RowShape):
    latent: int
    beta: float


@dataclass(kw_only=True)
class TVAE(TrainedGenerator):
    """Options: the latent dimension, the weight of the divergence, and those of the training."""

    called: ClassVar[str] = "TVAE"

    latent: int = 16
    beta: float = 1.0

    def _shape(self, prepared: Preparation, given: int) -> Spec:
        return Spec(prepared.numbers, prepared.categories, given, tuple(self.hidden), self.latent, self.beta)

    def _start(self, shape: Spec, key: jax.Array) -> Params:
        return _start(shape, key)

    @staticmethod
    def _loss(shape: Spec, params: Params, arrays: tuple[jax.Array, ...], key: jax.Array) -> jax.Array:
        return _loss(shape, params, arrays, key)

    def _draw(self, given: Floats, key: jax.Array) -> Any:
        return _draw(self._spec, self._params, given, key)


def _start(spec: Spec, key: jax.Array) -> Params:
    encoder, decoder = jax.random.split(key)
    return {
        "encoder": dense(encoder, (spec.width + spec.given, *spec.hidden, 2 * spec.latent), last=0.1),
        "decoder": dense(decoder, (spec.latent + spec.given, *spec.hidden, spec.width)),
        "log_sd": jnp.zeros(spec.numbers, dtype=jnp.float32),
    }


def _log_sd(params: Params) -> Any:
    """Adam moves every parameter alike; a logarithm has farther to go than a weight."""
    return jnp.maximum(10 * params["log_sd"], math.log(SHARPEST))


def _loss(spec: Any, params: Params, arrays: tuple[jax.Array, ...], key: jax.Array) -> jax.Array:
    """The negative bound, in nats a record over the number of columns."""
    rows, given = arrays
    code = apply(params["encoder"], jnp.concatenate([rows, given], axis=1))
    mean, log_sd = code[:, : spec.latent], jnp.clip(code[:, spec.latent :], -6.0, 3.0)
    z = mean + jnp.exp(log_sd) * jax.random.normal(key, mean.shape, dtype=jnp.float32)
    found = apply(params["decoder"], jnp.concatenate([z, given], axis=1))
    noise = _log_sd(params)
    away = (rows[:, : spec.numbers] - found[:, : spec.numbers]) * jnp.exp(-noise)
    loss = jnp.sum(0.5 * away**2 + noise, axis=1)
    for (truth, _), (logits, _) in zip(spec.parts(rows), spec.parts(found), strict=True):
        loss = loss - jnp.sum(truth * jax.nn.log_softmax(logits), axis=1)
    divergence = jnp.sum(0.5 * (mean**2 + jnp.exp(2 * log_sd) - 1) - log_sd, axis=1)
    return jnp.asarray(jnp.mean(loss + spec.beta * divergence) / (spec.numbers + len(spec.categories)))


@partial(jax.jit, static_argnums=0)
def _draw(spec: Spec, params: Params, given: Any, key: jax.Array) -> Any:
    latent, normal, other = jax.random.split(key, 3)
    gumbel = jax.random.gumbel(other, (len(given), spec.width), dtype=jnp.float32)
    z = jax.random.normal(latent, (len(given), spec.latent), dtype=jnp.float32)
    found = apply(params["decoder"], jnp.concatenate([z, given], axis=1))
    noise = jnp.exp(_log_sd(params)) * jax.random.normal(normal, (len(given), spec.numbers), dtype=jnp.float32)
    made = [found[:, : spec.numbers] + noise]
    made += [drawn(logits, each) for (logits, _), (each, _) in zip(spec.parts(found), spec.parts(gumbel), strict=True)]
    return jnp.concatenate(made, axis=1)
