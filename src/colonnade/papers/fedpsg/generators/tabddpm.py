"""TabDDPM (Kotelnikov et al. 2023): diffusion of a mixed table, Gaussian for numbers, multinomial for categories.

Forward, with alpha_t = 1 - beta_t and abar_t = alpha_1 ... alpha_t:

    numbers      q(x_t | x_{t-1}) = N(sqrt(alpha_t) x_{t-1}, beta_t)      q(x_t | x_0) = N(sqrt(abar_t) x_0, 1 - abar_t)
    categories   q(x_t | x_{t-1}) = alpha_t x_{t-1} + beta_t / K          q(x_t | x_0) = abar_t x_0 + (1 - abar_t) / K

Backward, Bayes' rule gives q(x_{t-1} | x_t, x_0): a normal law for numbers (`gaussian_posterior`), and for categories
the normalised product (alpha_t x_t + beta_t / K) (abar_{t-1} x_0 + (1 - abar_{t-1}) / K) (`log_posterior`), where a
network's guess of x_0 may stand for it (Hoogeboom et al. 2021). Steps are numbered from 0: index t is the paper's
t + 1, and before index 0 stands the data.

One network sees the noisy row, the step and, if there is one, the condition. It predicts the noise of the numbers (mean
squared error) and the categories before noise (the Kullback-Leibler terms of the bound, over the number of categorical
columns). Numbers are diffused as normal scores.

Three things are not the paper's. Steps are 100 (it tunes 100 or 1,000) on a cosine schedule. The variance of a backward
step is the one that keeps the first two moments (Bao et al. 2022): that of q(x_{t-1} | x_t, x_0), plus what is not
known of x_0, which the network's own error measures, for each step and column; with few steps either of the usual
choices (beta, or the first term alone) gets variances wrong. And a condition is a vector of numbers, not a label.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np
from numpy.typing import NDArray

from colonnade.errors import BadArguments
from colonnade.papers.fedpsg.generators.trained import (
    Floats,
    Network,
    Params,
    Preparation,
    TrainedGenerator,
    apply,
    dense,
    drawn,
    new_key,
)

Reals = NDArray[np.float64]
TINY = 1e-30
CLOCK = 32
"""Frequencies of the step's embedding."""
MEASURED = 2048
"""Records on which the network's error is measured, for each step."""
BOUND = 4.0
"""Normal scores are held within it."""


# --- kernels --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Schedule:
    """beta_t for each step; the rest follows."""

    beta: Reals

    @property
    def steps(self) -> int:
        return self.beta.size

    @property
    def alpha(self) -> Reals:
        return 1 - self.beta

    @property
    def alpha_bar(self) -> Reals:
        """abar_t: the share of the data's variance that is left."""
        return np.asarray(np.cumprod(self.alpha))

    @property
    def alpha_bar_before(self) -> Reals:
        """abar_{t-1}; 1 before the first step."""
        return np.concatenate([[1.0], self.alpha_bar[:-1]])

    def gaussian_posterior(self) -> tuple[Reals, Reals, Reals]:
        """(a, b, v) with q(x_{t-1} | x_t, x_0) = N(a x_0 + b x_t, v), for each t."""
        a = np.sqrt(self.alpha_bar_before) * self.beta / (1 - self.alpha_bar)
        b = np.sqrt(self.alpha) * (1 - self.alpha_bar_before) / (1 - self.alpha_bar)
        return a, b, self.beta * (1 - self.alpha_bar_before) / (1 - self.alpha_bar)


def cosine_schedule(steps: int) -> Schedule:
    """abar_t proportional to cos^2 (Nichol and Dhariwal 2021, with their offset), beta at most 0.999."""
    offset = 0.008
    if steps < 2:
        raise BadArguments(f"a diffusion needs at least 2 steps, not {steps}.")
    time = np.arange(steps + 1) / steps
    wanted = np.cos((time + offset) / (1 + offset) * math.pi / 2) ** 2
    return Schedule(np.minimum(1 - wanted[1:] / wanted[:-1], 0.999))


def log_mixed(log_x: Any, share: Any, categories: int) -> Any:
    """log(share x + (1 - share) / K): one step with share alpha_t, or all up to t with abar_t."""
    return jnp.log(share * jnp.exp(log_x) + (1 - share) / categories + TINY)


def log_posterior(log_x0: Any, log_xt: Any, alpha: Any, alpha_bar_before: Any, categories: int) -> Any:
    """log q(x_{t-1} | x_t, x_0), normalised over the last axis.

    At the first step alpha_bar_before is 1, so that the answer is x_0 itself, weighted by what it makes of x_t.
    """
    product = log_mixed(log_xt, alpha, categories) + log_mixed(log_x0, alpha_bar_before, categories)
    return product - jax.scipy.special.logsumexp(product, axis=-1, keepdims=True)


# --- the network --------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Diffusion(Network):
    """The network, and the steps of the diffusion."""

    diffusion_steps: int

    @property
    def schedule(self) -> Schedule:
        return cosine_schedule(self.diffusion_steps)

    def start(self, key: jax.Array) -> Params:
        first, body, clock, condition = jax.random.split(key, 4)
        size = self.hidden[0]
        return {
            "row": dense(first, (self.width, size)),
            "clock": dense(clock, (2 * CLOCK, size, size)),
            "condition": dense(condition, (self.condition_width, size)),
            "body": dense(body, (*self.hidden, self.width), last=0.1),
        }

    def _predict(self, params: Params, noisy: Any, step: Any, condition: Any) -> Any:
        """(the noise of the numbers, logits of the categories) as one row."""
        rates = jnp.exp(-math.log(10_000.0) * jnp.arange(CLOCK, dtype=jnp.float32) / CLOCK)
        angle = step[:, None].astype(jnp.float32) * (1000.0 / self.diffusion_steps) * rates
        time = apply(params["clock"], jnp.concatenate([jnp.sin(angle), jnp.cos(angle)], axis=1))
        start = apply(params["row"], noisy) + time + apply(params["condition"], condition)
        return apply(params["body"], jax.nn.silu(start))

    def _random(self, n: int, key: jax.Array) -> tuple[Any, list[Any]]:
        """Normal noise for the numbers, and Gumbel noise for each category."""
        normal, gumbel = jax.random.split(key)
        other = jax.random.gumbel(gumbel, (n, self.width), dtype=jnp.float32)
        return jax.random.normal(normal, (n, self.numbers), dtype=jnp.float32), [part for part, _ in self.parts(other)]

    def _noisy(self, rows: Any, step: Any, key: jax.Array) -> tuple[Any, Any]:
        """(x_t, the numbers' noise) from q(x_t | x_0)."""
        alpha_bar = jnp.asarray(self.schedule.alpha_bar, dtype=jnp.float32)[step][:, None]
        noise, gumbel = self._random(len(rows), key)
        parts = [jnp.sqrt(alpha_bar) * rows[:, : self.numbers] + jnp.sqrt(1 - alpha_bar) * noise]
        for (indicators, size), each in zip(self.parts(rows), gumbel, strict=True):
            parts.append(drawn(jnp.log(alpha_bar * indicators + (1 - alpha_bar) / size), each))
        return jnp.concatenate(parts, axis=1), noise

    def loss(self, params: Params, arrays: tuple[jax.Array, ...], key: jax.Array) -> jax.Array:
        rows, condition = arrays
        when, noising = jax.random.split(key)
        step = jax.random.randint(when, (len(rows),), 0, self.diffusion_steps)
        noisy, noise = self._noisy(rows, step, noising)
        predicted = self._predict(params, noisy, step, condition)
        total = jnp.mean((predicted[:, : self.numbers] - noise) ** 2) if self.numbers else jnp.zeros(())
        alpha = jnp.asarray(self.schedule.alpha, dtype=jnp.float32)[step][:, None]
        before = jnp.asarray(self.schedule.alpha_bar_before, dtype=jnp.float32)[step][:, None]
        parts = zip(self.parts(rows), self.parts(noisy), self.parts(predicted), strict=True)
        for (truth, size), (seen, _), (logits, _) in parts:
            log_seen = jnp.log(seen + 1e-30)
            right = log_posterior(jnp.log(truth + 1e-30), log_seen, alpha, before, size)
            ours = log_posterior(jax.nn.log_softmax(logits), log_seen, alpha, before, size)
            # The bound is a sum over steps and one step was drawn, hence the factor.
            gap = self.diffusion_steps * jnp.sum(jnp.exp(right) * (right - ours), axis=1)
            total = total + jnp.mean(gap) / len(self.categories)
        return total

    @partial(jax.jit, static_argnums=0)
    def _noise_error(self, params: Params, rows: Any, condition: Any, key: jax.Array) -> Any:
        """The mean squared error of the predicted noise: steps x numbers."""

        def error(step: Any) -> Any:
            when = jnp.full(len(rows), step)
            noisy, noise = self._noisy(rows, when, jax.random.fold_in(key, step))
            predicted = self._predict(params, noisy, when, condition)
            return jnp.mean((predicted[:, : self.numbers] - noise) ** 2, axis=0)

        return jax.lax.map(error, jnp.arange(self.diffusion_steps))

    @partial(jax.jit, static_argnums=0)
    def draw(self, params: Params, measured: Any, condition: Any, key: jax.Array) -> Any:
        """Rows from noise, step by step."""
        schedule = self.schedule
        from_start, from_now, variance = schedule.gaussian_posterior()
        table = np.column_stack(
            [schedule.alpha, schedule.alpha_bar, schedule.alpha_bar_before, from_start, from_now, variance]
        )
        constants = jnp.asarray(table, dtype=jnp.float32)
        n = len(condition)

        def back(rows: Any, step: Any) -> tuple[Any, None]:
            alpha, alpha_bar, before, a, b, v = constants[step]
            noise, gumbel = self._random(n, jax.random.fold_in(key, step))
            predicted = self._predict(params, rows, jnp.full(n, step), condition)
            now = rows[:, : self.numbers]
            start = (now - jnp.sqrt(1 - alpha_bar) * predicted[:, : self.numbers]) / jnp.sqrt(alpha_bar)
            unknown = jnp.minimum((1 - alpha_bar) / alpha_bar * measured[step], 1.0)
            parts = [a * jnp.clip(start, -BOUND, BOUND) + b * now + jnp.sqrt(v + a**2 * unknown) * noise]
            for (seen, size), (logits, _), each in zip(self.parts(rows), self.parts(predicted), gumbel, strict=True):
                chance = log_posterior(jax.nn.log_softmax(logits), jnp.log(seen + 1e-30), alpha, before, size)
                parts.append(drawn(chance, each))
            return jnp.concatenate(parts, axis=1), None

        noise, gumbel = self._random(n, jax.random.fold_in(key, self.diffusion_steps))
        pure = jnp.concatenate([noise, *(drawn(jnp.zeros(each.shape), each) for each in gumbel)], axis=1)
        rows, _ = jax.lax.scan(back, pure, jnp.arange(self.diffusion_steps)[::-1])
        return rows

    def measured(self, params: Params, x: Floats, condition: Floats, seed: int) -> Any:
        """The network's own error, for each step and number, on some records."""
        sample = np.random.default_rng(seed).permutation(len(x))[:MEASURED]
        key = jax.random.fold_in(new_key(seed), 1)
        return np.asarray(self._noise_error(params, x[sample], condition[sample], key))


@dataclass(kw_only=True)
class TabDDPM(TrainedGenerator):
    """Options: the diffusion's steps, and those of the training."""

    called: ClassVar[str] = "TabDDPM"

    diffusion_steps: int = 100
    hidden: tuple[int, ...] = (256, 256)

    def _network(self, prepared: Preparation, condition_width: int) -> Diffusion:
        return Diffusion(
            prepared.numbers, prepared.categories, condition_width, tuple(self.hidden), self.diffusion_steps
        )
