"""Marginals: closed forms, monotone inverses inside the domain, sensitivities by search, and the measured default.

Statistical assertions have fixed seeds, so they repeat.
"""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy import stats

from colonnade.errors import BadPrivacyParameter, DomainError, EmptyParty
from colonnade.privacy.accounting import guarantee
from colonnade.privacy.randomness import Randomness, SimulatedRandomness, SystemRandomness, simulated_generator
from colonnade.statistics.marginals import (
    Budget,
    Marginal,
    bernstein_basis,
    bernstein_degree,
    bernstein_marginal,
    category_marginal,
    ecdf,
    from_curve,
    histogram_bins,
    histogram_marginal,
    iterated_basis,
    monotone_spline,
    on_simplex,
    private_marginal,
    smooth_density,
    tree_depth,
    tree_marginal,
)

X = np.linspace(0, 1, 41)


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


# --- exact estimates -------------------------------------------------------------------------------------


def test_ecdf_and_spline() -> None:
    """The ECDF at every value (scipy); the spline goes through it, is monotone, and lies within 1/n above it."""
    generator = simulated_generator(SimulatedRandomness(1))
    values = generator.normal(size=60)
    grid = np.linspace(-5, 5, 3001)
    assert np.allclose(ecdf(values, grid), stats.ecdf(values).cdf.evaluate(grid))
    smooth = monotone_spline(values, lower=-5, upper=5)
    assert np.allclose(smooth(values), ecdf(values, values))
    assert np.all(np.diff(smooth(grid)) >= 0)
    above = smooth(grid) - ecdf(values, grid)
    assert above.min() >= 0
    assert above.max() <= 1 / 60 + 1e-12


def test_a_replaced_record_moves_the_spline_by_at_most_two_records() -> None:
    """2,000 random neighbours of six records, with ties and values at the bounds."""
    generator = simulated_generator(SimulatedRandomness(2))
    grid, worst = np.linspace(0, 1, 201), 0.0
    for _ in range(2000):
        values = np.round(generator.random(6) * 1.4 - 0.2, generator.integers(1, 4))
        other = np.append(np.round(generator.random(1) * 1.4 - 0.2, 2), values[1:])
        one, two = (monotone_spline(v, lower=0.0, upper=1.0)(grid) for v in (values, other))
        worst = max(worst, 6 * float(np.abs(one - two).max()))
    assert 1 <= worst <= 2 + 1e-9


# --- inversion -------------------------------------------------------------------------------------------


def noisy_marginals(randomness: Randomness) -> list[Marginal]:
    """All methods at budgets at which noise dominates, on normal, constant, two and out-of-bounds records."""
    generator = simulated_generator(SimulatedRandomness(3))
    columns = [generator.normal(size=300), np.full(200, 0.25), np.array([0.1, 0.9]), generator.normal(size=50) * 100]
    made = []
    for values in columns:
        for budget in (Budget(epsilon=0.01), Budget(epsilon=5.0), Budget(rho=1e-5), Budget(rho=2.0)):
            for method in ("tree", "histogram", "smooth", "bernstein"):
                if budget.epsilon is None and method == "bernstein":
                    continue
                made.append(
                    private_marginal(
                        values,
                        lower=-1.0,
                        upper=3.0,
                        budget=budget,
                        method=method,  # type: ignore[arg-type]
                        randomness=randomness,
                    )
                )
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
    drawn = category_marginal(
        [0] * 400 + [2] * 600, categories=3, budget=Budget(epsilon=50), randomness=SystemRandomness()
    )
    assert np.allclose(drawn.probabilities, [0.4, 0, 0.6], atol=0.01)  # noise of scale 0.04: beyond 10 below e^-250
    one = category_marginal([0, 0], categories=1, budget=Budget(epsilon=1), randomness=SystemRandomness())
    assert one.quantile([0, 0.5, 1]).tolist() == [0, 0, 0]
    assert on_simplex([0.5, 0.9, -0.2]).tolist() == pytest.approx([0.3, 0.7, 0.0])


def test_little_noise_gives_the_empirical_distribution_at_the_edges() -> None:
    """At epsilon 1e5 no count is off, but for a chance below e^-5000: F at bin edges is the ECDF's left limit."""
    generator = simulated_generator(SimulatedRandomness(5))
    values = generator.random(500)
    edges = np.linspace(0, 1, 9)
    below = np.array([(values < edge).mean() for edge in edges])
    generous = Budget(epsilon=1e5)
    for marginal in (
        tree_marginal(values, lower=0, upper=1, budget=generous, depth=3, randomness=SystemRandomness()),
        histogram_marginal(values, lower=0, upper=1, budget=generous, bins=8, randomness=SystemRandomness()),
    ):
        assert np.allclose(marginal.cdf(edges), below)
    smooth = bernstein_marginal(
        values, lower=0, upper=1, epsilon=1e6, order=2, degree=12, randomness=SystemRandomness()
    )
    nodes = ecdf(values, np.arange(13) / 12)
    curve = from_curve(smooth.points, iterated_basis(12, 2, smooth.points) @ nodes)
    assert np.allclose(smooth.cumulative, curve.cumulative)
    spline = monotone_spline(values, lower=0, upper=1)
    through = bernstein_marginal(
        values, lower=0, upper=1, epsilon=1e6, degree=12, cdf=spline, sensitivity=2, randomness=SystemRandomness()
    )
    assert np.abs(through.cumulative - smooth.cumulative).max() < 0.02


# --- costs, scales, errors -------------------------------------------------------------------------------


def test_budgets_state_their_cost() -> None:
    assert guarantee([Budget(epsilon=0.3).cost()], delta=0, relation="replace").epsilon == pytest.approx(0.3)
    assert Budget(rho=0.1).cost().number("rho") == 0.1
    for wrong in ({}, {"epsilon": 1.0, "rho": 1.0}, {"epsilon": 0.0}, {"rho": math.inf}):
        with pytest.raises(BadPrivacyParameter):
            Budget(**wrong)


@pytest.mark.parametrize(("budget", "variance"), [(Budget(epsilon=0.5), 2 * 12**2), (Budget(rho=0.02), 150.0)])
def test_noise_has_the_scale_of_its_sensitivity(budget: Budget, variance: float) -> None:
    """L1 and squared L2 of 6: Laplace of scale 12, Gaussian of variance 6 / 0.04. 20,000 draws; 8 % is 5 errors."""
    drawn = budget.noisy(np.zeros(20_000, dtype=np.int64), l1=6, l2_squared=6, randomness=SimulatedRandomness(6))
    assert drawn.dtype == np.int64
    assert drawn.var() == pytest.approx(variance, rel=0.08)


def test_counts_move_as_claimed() -> None:
    """What is noised, read off at a budget that leaves no noise: tree 2 depth, histogram 2, Bernstein l + 1 at most."""
    generator = simulated_generator(SimulatedRandomness(7))
    seen: list[np.ndarray] = []

    class Probe(Budget):
        def noisy(self, counts, *, l1, l2_squared, randomness):  # type: ignore[no-untyped-def]
            seen.append(np.array(counts))
            seen.append(np.array([l1, l2_squared]))
            return counts

    worst = {"tree": 0, "histogram": 0}
    for _ in range(300):
        values = generator.random(8)
        other = np.append(generator.random(1), values[1:])
        for method in worst:
            seen.clear()
            for one in (values, other):
                private_marginal(
                    one,
                    lower=0,
                    upper=1,
                    budget=Probe(rho=1.0),
                    method=method,  # type: ignore[arg-type]
                    randomness=SimulatedRandomness(8),
                )
            moved = np.abs(seen[0] - seen[2])
            assert moved.sum() <= seen[1][0]
            assert (moved**2).sum() <= seen[1][1]
            worst[method] = max(worst[method], int(moved.sum()))
    assert worst == {"tree": int(2 * tree_depth(8, Budget(rho=1.0))), "histogram": 2}
    seen.clear()
    for method in ("histogram", "smooth"):  # the same counts under the same noise; what follows is post-processing
        budget, source = Probe(rho=1.0), SimulatedRandomness(8)
        private_marginal(values, lower=0, upper=1, budget=budget, method=method, randomness=source)  # type: ignore[arg-type]
    assert [one.tolist() for one in seen[:2]] == [one.tolist() for one in seen[2:]]


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
    for method in ("tree", "histogram", "smooth", "bernstein"):
        with pytest.raises(error):
            private_marginal(
                values,
                lower=bounds[0],
                upper=bounds[1],
                budget=Budget(epsilon=1.0),
                method=method,  # type: ignore[arg-type]
                randomness=SystemRandomness(),
            )


def test_wrong_options_are_refused() -> None:
    source = SystemRandomness()
    with pytest.raises(BadPrivacyParameter):
        private_marginal([0.5], lower=0, upper=1, budget=Budget(rho=1.0), method="bernstein", randomness=source)
    with pytest.raises(BadPrivacyParameter):
        private_marginal([0.5], lower=0, upper=1, budget=Budget(rho=1.0), method="kernel", randomness=source)  # type: ignore[arg-type]
    with pytest.raises(BadPrivacyParameter):
        bernstein_marginal([0.5], lower=0, upper=1, epsilon=1.0, cdf=lambda x: x, sensitivity=0.5, randomness=source)
    with pytest.raises(DomainError):
        category_marginal([0], categories=0, budget=Budget(epsilon=1.0), randomness=source)
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
            found = private_marginal(
                values,
                lower=-27,
                upper=27,
                budget=Budget(epsilon=0.5),
                method=method,  # type: ignore[arg-type]
                randomness=source,
            )
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


def mean_error(method: str, budget: Budget, n: int) -> float:
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
                private_marginal(
                    values,
                    lower=lower,
                    upper=upper,
                    budget=budget,
                    method=method,  # type: ignore[arg-type]
                    randomness=randomness,
                ).cdf(grid)
                - truth(grid)
            ).mean()
            for values in runs
        ]
        logs.append(math.log(float(np.mean(errors))))
    return math.exp(float(np.mean(logs)))


def test_the_default_is_the_one_that_measures_best() -> None:
    pure, concentrated = Budget(epsilon=0.1), Budget(rho=3.6e-5)
    methods = ("smooth", "histogram", "tree", "bernstein")
    smooth, histogram, tree, bernstein = (mean_error(method, pure, 20_000) for method in methods)
    assert smooth < 0.95 * histogram
    assert histogram < tree < bernstein / 2
    assert mean_error("tree", concentrated, 100_000) < mean_error("histogram", concentrated, 100_000)
    assert histogram_bins(1000, pure) < histogram_bins(100_000, pure)
    assert tree_depth(1000, pure) < tree_depth(100_000, pure)
    source = SimulatedRandomness(11)
    values = simulated_generator(source).random(1000)
    found = private_marginal(values, lower=0, upper=1, budget=pure, randomness=source)
    bins = histogram_bins(1000, pure)
    assert (found.points.size - 1) % bins == 0
    assert found.points.size - 1 > bins
    found = private_marginal(values, lower=0, upper=1, budget=concentrated, randomness=source)
    assert found.points.size == 1 + 2 ** tree_depth(1000, concentrated)
