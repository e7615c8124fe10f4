"""Diffusion kernels. Oracles: one-step kernels composed, Bayes' rule over all categories, conditioning of normals."""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np
import pytest

from colonnade.errors import BadArguments
from colonnade.papers.fedpsg.generators.tabddpm import Schedule, cosine_schedule, log_mixed, log_posterior


def kernel(share: float, categories: int) -> np.ndarray:
    """The matrix q(next | before): kept with `share`, else any category."""
    return share * np.eye(categories) + (1 - share) / categories


def some_schedule() -> Schedule:
    return Schedule(np.array([0.1, 0.4, 0.05, 0.8]))


@pytest.mark.parametrize("schedule", [some_schedule(), cosine_schedule(30)])
def test_the_marginal_is_the_product_of_the_steps(schedule: Schedule) -> None:
    composed, mean, variance = np.eye(5), 1.0, 0.0
    for t in range(schedule.steps):
        composed = composed @ kernel(schedule.alpha[t], 5)
        mean, variance = np.sqrt(schedule.alpha[t]) * mean, schedule.alpha[t] * variance + schedule.beta[t]
        found = np.exp(log_mixed(jnp.log(jnp.eye(5)), schedule.alpha_bar[t], 5))
        np.testing.assert_allclose(found, composed, atol=1e-6)
        assert np.isclose(np.sqrt(schedule.alpha_bar[t]), mean, atol=1e-12)
        assert np.isclose(1 - schedule.alpha_bar[t], variance, atol=1e-12)


def test_the_last_step_of_the_schedule_is_nearly_pure_noise() -> None:
    schedule = cosine_schedule(100)
    assert schedule.alpha_bar[-1] < 1e-4
    assert schedule.alpha_bar[0] > 0.999
    assert (np.diff(schedule.alpha_bar) < 0).all()
    with pytest.raises(BadArguments, match="at least 2"):
        cosine_schedule(1)


@pytest.mark.parametrize("t", range(4))
def test_the_multinomial_posterior_is_bayes_rule(t: int) -> None:
    schedule, size = some_schedule(), 4
    before = np.eye(size)
    for s in range(t):
        before = before @ kernel(schedule.alpha[s], size)
    step = kernel(schedule.alpha[t], size)
    for x0 in range(size):
        for xt in range(size):
            joint = before[x0] * step[:, xt]
            found = log_posterior(
                jnp.log(jnp.eye(size)[x0] + 1e-30),
                jnp.log(jnp.eye(size)[xt] + 1e-30),
                schedule.alpha[t],
                schedule.alpha_bar_before[t],
                size,
            )
            np.testing.assert_allclose(np.exp(found), joint / joint.sum(), atol=1e-6)


def test_the_right_guess_gives_the_right_step_back() -> None:
    """With the prior of x_0 as the guess, the step back is that of the chain: its law one step earlier is exact."""
    schedule, prior, t = some_schedule(), np.array([0.6, 0.3, 0.1]), 2
    earlier = schedule.alpha_bar_before[t] * prior + (1 - schedule.alpha_bar_before[t]) / 3
    later = schedule.alpha_bar[t] * prior + (1 - schedule.alpha_bar[t]) / 3
    back = np.exp(
        log_posterior(
            jnp.log(jnp.asarray(prior)), jnp.log(jnp.eye(3) + 1e-30), schedule.alpha[t], schedule.alpha_bar_before[t], 3
        )
    )
    np.testing.assert_allclose(later @ back, earlier, atol=1e-6)


def test_the_gaussian_posterior_is_the_conditional_normal() -> None:
    schedule = some_schedule()
    a, b, v = schedule.gaussian_posterior()
    for t in range(schedule.steps):
        # Given x_0: x_{t-1} ~ N(sqrt(alpha_bar_before) x_0, 1 - alpha_bar_before), x_t = sqrt(alpha) x_{t-1} + noise.
        variance, cross = (
            1 - schedule.alpha_bar_before[t],
            np.sqrt(schedule.alpha[t]) * (1 - schedule.alpha_bar_before[t]),
        )
        total = 1 - schedule.alpha_bar[t]
        slope = cross / total
        level = np.sqrt(schedule.alpha_bar_before[t]) - slope * np.sqrt(schedule.alpha_bar[t])
        np.testing.assert_allclose([a[t], b[t], v[t]], [level, slope, variance - cross**2 / total], atol=1e-12)
