"""The rival VertiGAN. Oracles: dp-accounting, gradients record by record, and what a table is known to hold."""

from __future__ import annotations

import dp_accounting
import jax
import jax.numpy as jnp
import numpy as np
import pandas as pd
import pytest
from benchmarks.rivals.vertigan import (
    Options,
    accounted,
    clipped_sum,
    noise_multiplier,
    poisson_batches,
    steps_counted,
    synthesize,
)
from dp_accounting.pld import PLDAccountant

from colonnade.data import Column, Columns

COLUMNS = Columns(
    [
        Column(name="x", kind="continuous", lower=-4, upper=4),
        Column(name="y", kind="continuous", lower=-4, upper=4),
        Column(name="flag", kind="binary", categories=("no", "yes")),
        Column(name="other", kind="continuous", lower=0, upper=1),
    ]
)


def two_blocks(n: int, *, seed: int) -> dict[str, pd.DataFrame]:
    """At one party y follows x (correlation 0.9) and the flag its sign; the other has half the records."""
    rng = np.random.default_rng(seed)
    x = np.clip(rng.standard_normal(n), -4, 4)
    y = np.clip(0.9 * x + np.sqrt(1 - 0.81) * rng.standard_normal(n), -4, 4)
    one = pd.DataFrame({"id": np.arange(n), "x": x, "y": y, "flag": np.where(x > 0.5, "yes", "no")})
    return {"one": one, "two": pd.DataFrame({"id": np.arange(n // 2), "other": rng.beta(2, 6, n // 2)})}


def test_it_learns_what_goes_together_within_a_party() -> None:
    options = Options(rounds=300, hidden=32, noise=8)
    for epsilon, least in ((None, 0.7), (1e4, 0.5)):
        made = synthesize(
            two_blocks(2000, seed=1), COLUMNS, epsilon=epsilon, delta=1e-5, n=3000, seed=2, options=options
        )
        assert list(made) == ["x", "y", "flag", "other"]
        assert len(made) == 3000
        assert made["x"].corr(made["y"]) > least
        flag = (made["flag"] == "yes").to_numpy()
        assert made["x"][flag].mean() > made["x"][~flag].mean() + 0.5
        assert abs(flag.mean() - 0.31) < 0.1
        assert abs(made["other"].mean() - 0.25) < 0.06
    again = synthesize(two_blocks(2000, seed=1), COLUMNS, epsilon=1e4, delta=1e-5, n=3000, seed=2, options=options)
    pd.testing.assert_frame_equal(again, made)


def test_epsilon_is_that_of_the_subsampled_gaussian() -> None:
    """Renyi accounting in dp-accounting's default orders, and privacy loss distributions, which are never above it."""
    sampling, steps, delta = 0.02, 1500, 1e-5
    event = dp_accounting.SelfComposedDpEvent(
        dp_accounting.PoissonSampledDpEvent(sampling, dp_accounting.GaussianDpEvent(1.3)), steps
    )
    renyi = dp_accounting.rdp.RdpAccountant()
    exact = PLDAccountant(value_discretization_interval=1e-3)
    found = accounted(1.3, sampling, steps, delta)
    assert found == pytest.approx(renyi.compose(event).get_epsilon(delta), rel=0.02)
    tight = exact.compose(event).get_epsilon(delta)
    assert tight <= found <= 1.3 * tight
    multiplier = noise_multiplier(2.0, delta, sampling, steps)
    assert 1.99 < accounted(multiplier, sampling, steps, delta) <= 2.0


def test_a_person_is_counted_at_every_party() -> None:
    options = Options(rounds=10, critic_steps=3)
    assert steps_counted(options, 5) == 150
    assert steps_counted(options, 5, "block") == 30


def test_batches_are_poisson_samples() -> None:
    batches = poisson_batches(np.array([2000, 500]), 0.05, 400, np.random.default_rng(1))
    for party, size in enumerate((2000, 500)):
        sizes = (batches[:, party] >= 0).sum(axis=1)
        assert abs(sizes.mean() - 0.05 * size) < 5 * np.sqrt(0.05 * size / 400)
        assert abs(sizes.var() / (0.05 * 0.95 * size) - 1) < 0.35
        picked = np.bincount(batches[:, party][batches[:, party] >= 0], minlength=size)
        assert picked.size == size
        assert abs(picked[: size // 2].mean() - picked[size // 2 :].mean()) < 1
        assert all(np.unique(row[row >= 0]).size == (row >= 0).sum() for row in batches[:20, party])


@pytest.mark.parametrize("bound", [0.3, 1e9])
def test_clipped_gradients_are_those_of_single_records(bound: float) -> None:
    rng = np.random.default_rng(2)
    critics = {
        name: jnp.asarray(rng.normal(size=shape)) for name, shape in {"w": (2, 3, 4), "b": (2, 4), "v": (2, 4)}.items()
    }
    rows, present = jnp.asarray(rng.normal(size=(2, 5, 3))), np.array([[1, 1, 0, 1, 1], [1, 0, 1, 1, 1]], bool)
    found = clipped_sum(critics, rows, jnp.asarray(present), bound)

    def score(one: dict[str, jax.Array], row: jax.Array) -> jax.Array:
        return jax.nn.leaky_relu(row @ one["w"] + one["b"], 0.2) @ one["v"]

    for party in range(2):
        own = {name: value[party] for name, value in critics.items()}
        total = {name: np.zeros(value.shape) for name, value in own.items()}
        for row, here in zip(rows[party], present[party], strict=True):
            slope = jax.grad(score)(own, row)
            norm = np.sqrt(sum(float((one**2).sum()) for one in slope.values()))
            for name, one in slope.items():
                total[name] += here * np.asarray(one) * min(1.0, bound / norm)
        for name, one in total.items():
            np.testing.assert_allclose(found[name][party], one, rtol=1e-4, atol=1e-5)
