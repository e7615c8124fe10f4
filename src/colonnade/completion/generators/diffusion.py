"""The mathematics of diffusion: a schedule, Gaussian kernels for numbers and multinomial kernels for categories.

Forward, with alpha_t = 1 - beta_t and abar_t = alpha_1 ... alpha_t:

    numbers      q(x_t | x_{t-1}) = N(sqrt(alpha_t) x_{t-1}, beta_t)      q(x_t | x_0) = N(sqrt(abar_t) x_0, 1 - abar_t)
    categories   q(x_t | x_{t-1}) = alpha_t x_{t-1} + beta_t / K          q(x_t | x_0) = abar_t x_0 + (1 - abar_t) / K

Backward, Bayes' rule gives q(x_{t-1} | x_t, x_0): a normal law for numbers (`gaussian_posterior`), and for categories
the normalised product (alpha_t x_t + beta_t / K) (abar_{t-1} x_0 + (1 - abar_{t-1}) / K) (`log_posterior`), where a
network's guess of x_0 may stand for it (Hoogeboom et al. 2021; Kotelnikov et al. 2023).

Steps are numbered from 0: index t is the paper's t + 1, and before index 0 stands the data.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from numpy.typing import NDArray

from colonnade.errors import BadArguments

Reals = NDArray[np.float64]
TINY = 1e-30


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
    def kept(self) -> Reals:
        """abar_t: the share of the data's variance that is left."""
        return np.asarray(np.cumprod(self.alpha))

    @property
    def kept_before(self) -> Reals:
        """abar_{t-1}; 1 before the first step."""
        return np.concatenate([[1.0], self.kept[:-1]])

    def gaussian_posterior(self) -> tuple[Reals, Reals, Reals]:
        """(a, b, v) with q(x_{t-1} | x_t, x_0) = N(a x_0 + b x_t, v), for each t."""
        a = np.sqrt(self.kept_before) * self.beta / (1 - self.kept)
        b = np.sqrt(self.alpha) * (1 - self.kept_before) / (1 - self.kept)
        return a, b, self.beta * (1 - self.kept_before) / (1 - self.kept)


def cosine_schedule(steps: int, *, offset: float = 0.008) -> Schedule:
    """abar_t proportional to cos^2 (Nichol and Dhariwal 2021), beta at most 0.999."""
    if steps < 2:
        raise BadArguments(f"a diffusion needs at least 2 steps, not {steps}.")
    at = np.arange(steps + 1) / steps
    wanted = np.cos((at + offset) / (1 + offset) * math.pi / 2) ** 2
    return Schedule(np.minimum(1 - wanted[1:] / wanted[:-1], 0.999))


def log_mixed(log_x: Any, share: Any, categories: int) -> Any:
    """log(share x + (1 - share) / K): one step with share alpha_t, or all up to t with abar_t."""
    return jnp.log(share * jnp.exp(log_x) + (1 - share) / categories + TINY)


def log_posterior(log_x0: Any, log_xt: Any, alpha: Any, kept_before: Any, categories: int) -> Any:
    """log q(x_{t-1} | x_t, x_0), normalised over the last axis.

    At the first step kept_before is 1, so that the answer is x_0 itself, weighted by what it makes of x_t.
    """
    product = log_mixed(log_xt, alpha, categories) + log_mixed(log_x0, kept_before, categories)
    return product - jax.scipy.special.logsumexp(product, axis=-1, keepdims=True)
