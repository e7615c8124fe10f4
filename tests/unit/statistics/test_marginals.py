"""Marginals: closed forms, monotone inverses inside the domain, sensitivities by search, and the measured default.

Statistical assertions have fixed seeds, so they repeat.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial

import numpy as np
import pytest
from scipy import stats

from colonnade.errors import BadPrivacyParameter, DomainError, EmptyParty
from colonnade.privacy.randomness import Randomness, SimulatedRandomness, SystemRandomness, simulated_generator
from colonnade.statistics import marginals
from colonnade.statistics.marginals import (
    Marginal,
    bernstein_basis,
    bernstein_degree,
    bernstein_marginal,
    binned_marginal,
    category_marginal,
    from_curve,
    histogram_bins,
    iterated_basis,
    noisy_counts,
    on_simplex,
    smooth_density,
)

X = np.linspace(0, 1, 41)
METHODS: dict[str, Callable[..., Marginal]] = {
    "smooth": binned_marginal,
    "histogram": partial(binned_marginal, smooth=False),
    "bernstein": bernstein_marginal,
}


# --- Bernstein operators ---------------------------------------------------------------------------------


@pytest.mark.parametrize("degree", [1, 7, 60])
def test_bernsteins_operator_has_its_closed_forms(degree: int) -> None:
    """B 1 = 1, B x = x, B x^2 = x^2 + x (1 - x) / l; the basis is the binomial law (scipy)."""
    nodes = np.arange(degree + 1) / degree
    basis = bernstein_basis(degree, X)
    assert np.allclose(basis, stats.binom.pmf(np.arange(degree + 1), degree, X[:, None]), atol=1e-12)
    assert np.allclose(basis @ nodes, X)
    assert np.allclose(basis @ nodes**2, X**2 + X * (1 - X) / degree)


@pytest.mark.parametrize("order", [1, 2, 3])
@pytest.mark.parametrize("degree", [5, 40])
def test_the_iterated_operator_has_its_closed_form(order: int, degree: int) -> None:
    """B^(h) = I - (I - B)^h, and (I - B) x^2 = -x(1-x)/l is an eigenfunction: B x(1-x) = (1 - 1/l) x(1-x).

    So B^(h) x^2 = x^2 + x (1 - x) l^-h.
    """
    nodes = np.arange(degree + 1) / degree
    basis = iterated_basis(degree, order, X)
    assert np.allclose(basis @ np.ones(degree + 1), 1)
    assert np.allclose(basis @ nodes, X)
    assert np.allclose(basis @ nodes**2, X**2 + X * (1 - X) / degree**order)


def test_bernstein_parameters() -> None:
    assert bernstein_degree(1000, 1.0, 2) == 10
    assert bernstein_degree(10, 1e-6, 2) == 1
    assert bernstein_degree(10**9, 1.0, 1) == 200
    with pytest.raises(BadPrivacyParameter):
        iterated_basis(0, 1, X)


# --- inversion -------------------------------------------------------------------------------------------


def noisy_marginals(randomness: Randomness) -> list[Marginal]:
    """All methods at budgets at which noise dominates, on normal, constant, two and out-of-bounds records."""
    generator = simulated_generator(SimulatedRandomness(3))
    columns = [generator.normal(size=300), np.full(200, 0.25), np.array([0.1, 0.9]), generator.normal(size=50) * 100]
    made = []
    for values in columns:
        for epsilon in (0.01, 0.1, 5.0):
            for private in METHODS.values():
                made.append(private(values, lower=-1.0, upper=3.0, epsilon=epsilon, randomness=randomness))
    return made


@pytest.mark.parametrize("randomness", [SystemRandomness(), SimulatedRandomness(4)])
def test_inversion_is_monotone_and_stays_in_the_domain(randomness: Randomness) -> None:
    u = np.concatenate([[-0.5, 0.0], np.linspace(0, 1, 1001), [1.0, 1.5]])
    for marginal in noisy_marginals(randomness):
        values = marginal.quantile(u)
        assert values.min() >= -1.0
        assert values.max() <= 3.0
        assert np.all(np.diff(values) >= 0)
        inner = u[1:-1]
        assert np.allclose(marginal.cdf(values[1:-1]), inner, atol=1e-9)


def test_quantiles_skip_where_nobody_is() -> None:
    """F rises on [0, 1] and [3, 4] only; the inverse is exact there and never inside the gap."""
    marginal = Marginal(np.array([0.0, 1, 3, 4]), np.array([0.0, 0.5, 0.5, 1.0]))
    assert marginal.quantile([0, 0.25, 0.5, 0.75, 1]).tolist() == [0, 0.5, 1, 3.5, 4]
    assert marginal.probabilities.tolist() == [0.5, 0, 0.5]


def test_categories() -> None:
    """Scores are mid-distribution scores; the inverse gives declared categories of positive chance only."""
    marginal = Marginal(np.arange(4.0), np.array([0.0, 0.25, 0.25, 1.0]), discrete=True)
    assert marginal.quantile([0, 0.2, 0.25, 0.3, 1]).tolist() == [1, 1, 1, 3, 3]
    assert marginal.scores([1, 3]).tolist() == [0.125, 0.625]
    assert marginal.cdf([-1, 0, 1.5, 7]).tolist() == [0, 0, 0.25, 1]
    assert marginal.probabilities.tolist() == [0, 0.25, 0, 0.75]
    drawn = category_marginal([0] * 400 + [2] * 600, categories=3, epsilon=50, randomness=SystemRandomness())
    assert np.allclose(drawn.probabilities, [0.4, 0, 0.6], atol=0.01)  # noise of scale 0.04: beyond 10 below e^-250
    one = category_marginal([0, 0], categories=1, epsilon=1, randomness=SystemRandomness())
    assert one.quantile([0, 0.5, 1]).tolist() == [0, 0, 0]
    assert on_simplex([0.5, 0.9, -0.2]).tolist() == pytest.approx([0.3, 0.7, 0.0])


def test_little_noise_gives_the_empirical_distribution_at_the_edges() -> None:
    """At epsilon 1e5 no count is off, but for a chance below e^-5000: F at bin edges is the ECDF's left limit."""
    generator = simulated_generator(SimulatedRandomness(5))
    values = generator.random(500)
    binned = binned_marginal(values, lower=0, upper=1, epsilon=1e5, smooth=False, randomness=SystemRandomness())
    edges = np.linspace(0, 1, histogram_bins(500, 1e5) + 1)
    assert np.allclose(binned.cdf(edges), [(values < edge).mean() for edge in edges])
    smooth = bernstein_marginal(
        values, lower=0, upper=1, epsilon=1e6, order=2, degree=12, randomness=SystemRandomness()
    )
    nodes = stats.ecdf(values).cdf.evaluate(np.arange(13) / 12)
    curve = from_curve(smooth.points, iterated_basis(12, 2, smooth.points) @ nodes)
    assert np.allclose(smooth.cumulative, curve.cumulative)


# --- scales, sensitivities, errors -------------------------------------------------------------------------------


def test_noise_has_the_scale_of_its_sensitivity() -> None:
    """L1 of 6 at epsilon 0.5: Laplace of scale 12. 20,000 draws; 8 % is 5 errors."""
    drawn = noisy_counts(np.zeros(20_000, dtype=np.int64), l1=6, epsilon=0.5, randomness=SimulatedRandomness(6))
    assert drawn.dtype == np.int64
    assert drawn.var() == pytest.approx(2 * 12**2, rel=0.08)


def test_counts_move_as_claimed(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is noised, read off without noise: bins and categories move by 2, Bernstein's l + 1 counts by l (the last
    one holds everybody)."""
    generator, source = simulated_generator(SimulatedRandomness(7)), SimulatedRandomness(8)
    seen: list[tuple[np.ndarray, int]] = []

    class Noised(Exception):
        """What follows is post-processing."""

    def probe(counts: np.ndarray, *, l1: int, epsilon: float, randomness: Randomness) -> np.ndarray:
        seen.append((np.array(counts), l1))
        raise Noised

    monkeypatch.setattr(marginals, "noisy_counts", probe)
    bounds = {"lower": 0, "upper": 1, "epsilon": 1.0, "randomness": source}
    private = {name: partial(method, **bounds) for name, method in METHODS.items()}
    private["categories"] = lambda values: category_marginal(
        np.floor(4 * values), categories=4, epsilon=1.0, randomness=source
    )
    worst = dict.fromkeys(private, 0)
    for _ in range(300):
        values = generator.random(8) * 1.4 - 0.2
        other = np.append(generator.random(1) * 1.4 - 0.2, values[1:])
        for name, method in private.items():
            seen.clear()
            for records in (values, other):
                with pytest.raises(Noised):
                    method(records)
            (before, l1), (after, _) = seen
            worst[name] = max(worst[name], int(np.abs(before - after).sum()))
            assert worst[name] <= l1
    assert worst == {"smooth": 2, "histogram": 2, "bernstein": bernstein_degree(8, 1.0, 2), "categories": 2}
    seen.clear()
    for name in ("histogram", "smooth"):  # the same counts under the same noise
        with pytest.raises(Noised):
            private[name](values)
    assert seen[0][0].tolist() == seen[1][0].tolist()
    assert seen[0][1] == seen[1][1]


@pytest.mark.parametrize(
    ("values", "bounds", "error"),
    [
        ([], (0.0, 1.0), EmptyParty),
        ([0.5, math.nan], (0.0, 1.0), DomainError),
        ([0.5], (1.0, 1.0), DomainError),
        ([0.5], (0.0, math.inf), DomainError),
    ],
)
def test_what_has_no_marginal_is_refused(
    values: list[float], bounds: tuple[float, float], error: type[Exception]
) -> None:
    for private in METHODS.values():
        with pytest.raises(error):
            private(values, lower=bounds[0], upper=bounds[1], epsilon=1.0, randomness=SystemRandomness())


def test_wrong_options_are_refused() -> None:
    source = SystemRandomness()
    for epsilon in (0.0, math.inf):
        with pytest.raises(BadPrivacyParameter):
            noisy_counts(np.zeros(1, dtype=np.int64), l1=1, epsilon=epsilon, randomness=source)
    with pytest.raises(DomainError):
        category_marginal([0], categories=0, epsilon=1.0, randomness=source)
    with pytest.raises(DomainError):
        Marginal(np.array([0.0, 1.0]), np.array([0.0, 0.9]))


def test_smoothing_keeps_noise_out_of_the_empty_tails() -> None:
    """A normal column of deviation 3 on [-27, 27]: noise in the empty bins makes the histogram's deviation too large by
    15 % in the mean of 10 runs, the smooth density's by 1 %. The bins of a column with heaps stay as they are."""
    generator, source = simulated_generator(SimulatedRandomness(12)), SimulatedRandomness(13)
    u, wide = (np.arange(2000) + 0.5) / 2000, {"smooth": 0.0, "histogram": 0.0}
    for _ in range(10):
        values = generator.normal(1.0, 3.0, size=1000)
        for method in wide:
            found = METHODS[method](values, lower=-27, upper=27, epsilon=0.5, randomness=source)
            wide[method] += float(found.quantile(u).std() / values.std() - 1) / 10
    assert abs(wide["smooth"]) < 0.04
    assert wide["histogram"] > 0.08
    counts = np.bincount(generator.integers(64, size=5000), minlength=64).astype(np.float64)
    counts[[7, 30]] += 20_000
    assert smooth_density(counts, n=int(counts.sum()), variance=30.0) is None
    counts = 5000 * np.diff(stats.norm.cdf(np.linspace(-6, 6, 65)))
    fitted = smooth_density(counts, n=5000, variance=30.0)
    assert fitted is not None
    assert np.allclose(fitted.reshape(64, -1).sum(axis=1), counts / 5000, atol=1e-3)


# --- which one is best -----------------------------------------------------------------------------------


def mean_error(method: str, epsilon: float, n: int) -> float:
    """Geometric mean over a normal, a skewed, a two-humped and a flat column of the mean |F - truth|, six runs each."""
    generator, randomness = simulated_generator(SimulatedRandomness(9)), SimulatedRandomness(10)
    humps = stats.norm(-2, 0.3), stats.norm(1.5, 1)
    columns = [
        (-6.0, 6.0, generator.normal(size=(6, n)), stats.norm.cdf),
        (0.0, 50.0, generator.lognormal(size=(6, n)), lambda x: stats.lognorm.cdf(x, 1)),
        (
            -6.0,
            6.0,
            np.where(
                generator.random((6, n)) < 0.3, generator.normal(-2, 0.3, (6, n)), generator.normal(1.5, 1, (6, n))
            ),
            lambda x: 0.3 * humps[0].cdf(x) + 0.7 * humps[1].cdf(x),
        ),
        (0.0, 1.0, generator.random((6, n)), lambda x: x),
    ]
    logs = []
    for lower, upper, runs, truth in columns:
        grid = np.linspace(lower, upper, 1001)
        errors = [
            np.abs(
                METHODS[method](values, lower=lower, upper=upper, epsilon=epsilon, randomness=randomness).cdf(grid)
                - truth(grid)
            ).mean()
            for values in runs
        ]
        logs.append(math.log(float(np.mean(errors))))
    return math.exp(float(np.mean(logs)))


def test_the_default_is_the_one_that_measures_best() -> None:
    smooth, histogram, bernstein = (mean_error(method, 0.1, 20_000) for method in METHODS)
    assert smooth < 0.95 * histogram
    assert histogram < bernstein / 2
    bins = histogram_bins(1000, 0.1)
    assert bins < histogram_bins(100_000, 0.1)
    source = SimulatedRandomness(11)
    values = simulated_generator(source).random(1000)
    found = binned_marginal(values, lower=0, upper=1, epsilon=0.1, randomness=source)
    assert (found.points.size - 1) % bins == 0
    assert found.points.size - 1 > bins
