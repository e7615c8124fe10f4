"""Local generators. Oracles: the moments of the table that they learned, and a regression that is known.

The networks are small and trained briefly here; tolerances are several times the sampling error of 4,000 records."""

from __future__ import annotations

import sys

import jax
import numpy as np
import pytest

from colonnade.completion.layout import Layout
from colonnade.data import Column, Columns
from colonnade.errors import BadArguments, NotEstimable, RunError, TrainingDiverged
from colonnade.papers.fedpsg.generators import Generator, generator, tabddpm, tvae
from colonnade.papers.fedpsg.generators.copula import Empirical
from colonnade.papers.fedpsg.generators.trained import Preparation, new_key

SMALL = {
    "copula": {},
    "tabddpm": {"steps": 700, "batch": 256, "hidden": (64, 64), "diffusion_steps": 40},
    "tvae": {"steps": 700, "batch": 256, "hidden": (64, 64), "latent": 6},
}
TOLERANCE = {"copula": 0.05, "tabddpm": 0.07, "tvae": 0.1}
"""Of a correlation or a share. The copula's latent model is right here, but for the category."""


def small(name: str) -> Generator:
    return generator(name, **SMALL[name])  # type: ignore[arg-type]


def mixed_table(n: int, *, seed: int) -> tuple[Layout, np.ndarray]:
    """Three correlated numbers (one a skewed count with many zeros), a binary column that follows them, a category."""
    rng = np.random.default_rng(seed)
    root = np.linalg.cholesky(np.array([[1, 0.6, -0.4], [0.6, 1, 0.2], [-0.4, 0.2, 1]]))
    z = rng.standard_normal((n, 3)) @ root.T
    columns = Columns(
        [
            Column(name="a", kind="continuous", lower=-5, upper=5),
            Column(name="flag", kind="binary", categories=(0, 1)),
            Column(name="b", kind="continuous", lower=-9, upper=11),
            Column(name="visits", kind="count", lower=0, upper=200),
            Column(name="sector", kind="categorical", categories=("x", "y", "z")),
        ]
    )
    values = {
        "a": np.clip(z[:, 0], -5, 5),
        "flag": (z[:, 1] + rng.standard_normal(n) > 0.8).astype(np.int32),
        "b": np.clip(2 * z[:, 1] + 1, -9, 11),
        "visits": np.clip(np.floor(3 * np.exp(z[:, 2])) - 2, 0, 200),
        "sector": np.digitize(z[:, 0] + 0.5 * rng.standard_normal(n), [-0.5, 1.0]).astype(np.int32),
    }
    layout = Layout(columns)
    return layout, layout.encode(values)


@pytest.mark.parametrize("name", SMALL)
def test_moments_and_frequencies_of_a_mixed_table(name: str) -> None:
    layout, matrix = mixed_table(4000, seed=1)
    seen: list[tuple[int, int]] = []
    fitted = small(name).fit(matrix, layout, seed=3, progress=lambda *at: seen.append(at))
    made = np.concatenate([fitted.sample(4000, seed=4), fitted.sample(4000, seed=5)])
    assert made.dtype == np.float32
    np.testing.assert_array_equal(layout.legal(made), made)
    limit = TOLERANCE[name]
    spread = matrix.std(axis=0)
    assert np.abs((made.mean(axis=0) - matrix.mean(axis=0)) / spread).max() < limit
    assert np.abs(made.std(axis=0) / spread - 1).max() < 2 * limit
    assert np.abs(np.corrcoef(made.T) - np.corrcoef(matrix.T)).max() < limit
    zeros = layout.slices["visits"].start
    assert abs((made[:, zeros] == 0).mean() - (matrix[:, zeros] == 0).mean()) < limit
    assert seen[-1][0] == seen[-1][1]


@pytest.mark.parametrize("name", SMALL)
def test_a_seed_repeats_everything(name: str) -> None:
    layout, matrix = mixed_table(4000, seed=1)
    brief = {} if name == "copula" else {"steps": 100}
    first, again = (
        generator(name, **(SMALL[name] | brief)).fit(matrix, layout, seed=1)  # type: ignore[arg-type]
        for _ in range(2)
    )
    rows = first.sample(4000, seed=2)
    np.testing.assert_array_equal(rows, again.sample(4000, seed=2))
    assert not np.array_equal(rows, first.sample(4000, seed=3))


def test_no_bit_of_a_seed_is_lost() -> None:
    keys = [jax.random.key_data(new_key(seed)).tobytes() for seed in (5, 5 + 2**31, 5 + 2**40, 5 + 2**63, 5 + 2**100)]
    assert len(set(keys)) == 5


@pytest.mark.parametrize("name", SMALL)
def test_given_a_condition_the_regression_is_found(name: str) -> None:
    """x1 = 0.8 c1 - 0.4 c2 + N(0, 0.3^2), x2 = noise alone, and a coin whose chance is Phi(c2)."""
    rng = np.random.default_rng(5)
    c = rng.standard_normal((4000, 2))
    numbers = [Column(name=one, kind="continuous", lower=-6, upper=6) for one in ("x1", "x2")]
    layout = Layout(Columns([*numbers, Column(name="coin", kind="binary", categories=("no", "yes"))]))
    values = {
        "x1": c @ [0.8, -0.4] + 0.3 * rng.standard_normal(4000),
        "x2": rng.standard_normal(4000),
        "coin": (c[:, 1] + rng.standard_normal(4000) > 0).astype(np.int32),
    }
    fitted = small(name).fit(layout.encode(values), layout, condition=c, seed=6)
    fresh = rng.standard_normal((4000, 2))
    back = layout.decode(fitted.sample(4000, condition=fresh, seed=7))
    design = np.column_stack([np.ones(4000), fresh])
    slopes, left, *_ = np.linalg.lstsq(design, back["x1"], rcond=None)
    np.testing.assert_allclose(slopes, [0, 0.8, -0.4], atol=0.06)
    assert abs(np.sqrt(left[0] / 4000) - 0.3) < 0.06
    np.testing.assert_allclose(np.linalg.lstsq(design, back["x2"], rcond=None)[0], 0, atol=0.1)
    # P(Z < c | c > 1) = 0.926 for two normal variables, by quadrature
    assert abs(back["coin"][fresh[:, 1] < -1].mean() - 0.074) < 0.06
    assert abs(back["coin"][fresh[:, 1] > 1].mean() - 0.926) < 0.06
    fresh[:50] = np.nan  # a missing entry counts as the mean
    assert np.isfinite(fitted.sample(4000, condition=fresh, seed=7)).all()


@pytest.mark.parametrize("kept", [["a", "b"], ["flag", "sector"]])
def test_tables_of_one_kind(kept: list[str]) -> None:
    """Traced, not compiled: shapes fit where there are no numbers, or no categories; and rows come back."""
    layout, matrix = mixed_table(40, seed=1)
    part = Layout(layout.columns.select(kept))
    rows = matrix[:, layout.places(kept)]
    made = Preparation.of(rows, None, part)
    x, c, key = made.forward(rows, 1), made.standardised(None, 40), new_key(1)
    np.testing.assert_allclose(made.backward(x), part.legal(rows), atol=1e-6)
    shape = {"numbers": made.numbers, "categories": made.categories, "condition_width": 0, "hidden": (4,)}
    error = np.zeros((3, made.numbers), np.float32)
    for network in (tabddpm.Diffusion(**shape, diffusion_steps=3), tvae.Autoencoder(**shape, latent=2, beta=1.0)):
        params = network.start(key)
        assert jax.eval_shape(network.loss, params, (x, c), key).shape == ()
        assert jax.eval_shape(network.draw, params, error, c, key).shape == x.shape


@pytest.mark.parametrize("name", ["tabddpm", "tvae"])
def test_divergence_is_an_error_that_says_what_to_do(name: str) -> None:
    layout, matrix = mixed_table(4000, seed=1)
    wild = generator(name, **{**SMALL[name], "learning_rate": 1e4})  # type: ignore[arg-type]
    with pytest.raises(TrainingDiverged, match=r"lower its learning_rate \(now 10000\)"):
        wild.fit(matrix, layout, seed=1)
    with pytest.raises(NotEstimable, match="call fit first"):
        wild.sample(3, seed=1)


def test_rows_with_missing_cells_are_left_out() -> None:
    layout, matrix = mixed_table(2000, seed=1)
    holes = matrix.copy()
    holes[::2, layout.slices["sector"]] = np.nan
    without = generator("copula").fit(matrix[1::2], layout, seed=1)
    np.testing.assert_array_equal(
        generator("copula").fit(holes, layout, seed=1).sample(50, seed=2), without.sample(50, seed=2)
    )
    with pytest.raises(NotEstimable, match="at least 20 records"):
        generator("copula").fit(matrix[:10], layout, seed=1)


def test_a_condition_that_nobody_has_says_nothing() -> None:
    layout, matrix = mixed_table(500, seed=1)
    condition = np.column_stack([matrix[:, 0], np.full(500, np.nan), np.ones(500)])
    condition[:100, 0] = np.nan
    fitted = generator("copula").fit(matrix, layout, condition=condition, seed=1)
    assert np.isfinite(fitted.sample(500, condition=condition, seed=1)).all()
    scaled = Preparation.of(matrix, condition, layout).standardised(condition, 500)
    np.testing.assert_array_equal(scaled[:, 1:], 0.0)
    np.testing.assert_array_equal(scaled[:100, 0], 0.0)
    assert scaled[100:, 0].std() == pytest.approx(1, abs=1e-3)


def test_wrong_input_is_refused_with_the_cure() -> None:
    layout, matrix = mixed_table(100, seed=1)
    with pytest.raises(BadArguments, match="copula, tabddpm, tvae"):
        generator("gan")  # type: ignore[arg-type]
    fitted = generator("copula").fit(matrix, layout, seed=1)
    with pytest.raises(BadArguments, match="without a condition"):
        fitted.sample(5, condition=matrix[:5], seed=1)
    with pytest.raises(BadArguments, match="at least 0"):
        fitted.sample(-1, seed=1)
    given = generator("copula").fit(matrix, layout, condition=matrix[:, :2], seed=1)
    with pytest.raises(BadArguments, match="5 rows x 2"):
        given.sample(5, seed=1)
    with pytest.raises(BadArguments, match="each of the 100 records"):
        generator("copula").fit(matrix, layout, condition=matrix[:50], seed=1)


def test_without_jax_the_error_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "colonnade.papers.fedpsg.generators.tvae")
    monkeypatch.setitem(sys.modules, "jax", None)
    with pytest.raises(RunError, match=r"install colonnade\[completion\]"):
        generator("tvae")
    assert generator("copula")


def test_an_empirical_marginal_keeps_its_steps() -> None:
    few = Empirical.of(np.array([0.0] * 6 + [1.0] * 3 + [5.0]))
    np.testing.assert_allclose(few.scores([0.0, 1.0, 5.0]), [0.3, 0.75, 0.95])
    np.testing.assert_array_equal(few.quantile([0.0, 0.3, 0.6, 0.7, 0.95, 1.0]), [0, 0, 0, 1, 5, 5])
    values = np.concatenate([np.zeros(500), np.linspace(1, 2, 500)])
    many = Empirical.of(values)
    assert many.scores([0.0])[0] == pytest.approx(0.25, abs=2e-3)
    assert (many.quantile(np.linspace(0, 0.498, 50)) == 0).all()
    assert many.quantile(0.75) == pytest.approx(1.5, abs=0.01)
