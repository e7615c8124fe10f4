"""From noisy ranks to a latent correlation matrix. Oracles: closed forms, scipy, simulated copulas with fixed seeds."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy import integrate, special, stats

from colonnade.errors import DomainError
from colonnade.privacy.randomness import SimulatedRandomness, simulated_generator
from colonnade.statistics.latent_correlation import (
    LARGEST_CORRELATION,
    bridge,
    category_coefficients,
    complete,
    forecast_noise,
    invert_bridge,
    latent_from_spearman,
    rank_covariance,
    rank_variance,
    repair,
    spearman,
    step_coefficients,
    uniform_coefficients,
    without_noise,
)
from colonnade.papers.vcds.ranks import mid_ranks, perturbed_ranks, rank_noise_variance, tie_variance

COINS, THREE, ONE = [0.5, 0.5], [0.2, 0.5, 0.3], [1.0]


def test_without_noise_it_is_spearmans_rho() -> None:
    """Oracle: scipy, on continuous and tied columns and on the records that two columns share."""
    generator = simulated_generator(SimulatedRandomness(1))
    data = generator.standard_normal((200, 3)) @ np.array([[1, 0.6, 0.2], [0, 1, 0.5], [0, 0, 1]])
    data[:, 2] = np.round(data[:, 2])
    ranks = np.column_stack([mid_ranks(column) for column in data.T])
    found = rank_covariance(ranks)
    chances = np.unique(data[:, 2], return_counts=True)[1] / 200
    variances = np.array([rank_variance(200), rank_variance(200), rank_variance(200, chances)]) / 200**2
    assert np.allclose(np.diag(found.scores), variances)
    assert np.allclose(spearman(found, variances), stats.spearmanr(data).statistic)
    ranks[:150, 0] = np.nan
    ranks[150:, 0] = mid_ranks(data[150:, 0])
    shared = rank_covariance(ranks)
    assert shared.shared.tolist() == [[50, 50, 50], [50, 200, 200], [50, 200, 200]]
    expected = np.cov(ranks[150:, 0] / 50, ranks[150:, 1] / 200, ddof=0)[0, 1]
    assert shared.scores[0, 1] == pytest.approx(expected)


def test_known_noise_is_removed() -> None:
    """400 releases of one column pair, latent r = 0.6: the mean is unbiased where uncorrected ranks attenuate.

    The standard error of the mean comes from the replications; 5.5 of them.
    """
    generator, randomness = simulated_generator(SimulatedRandomness(2)), SimulatedRandomness(3)
    n, epsilon_0 = 150, 0.3
    z = generator.multivariate_normal([0, 0], [[1, 0.6], [0.6, 1]], size=n)
    data = np.column_stack([z[:, 0], np.digitize(z[:, 1], [-0.5, 0.8])])
    chances = np.bincount(data[:, 1].astype(int)) / n
    truth = stats.spearmanr(data).statistic
    tied = n * (chances**2).sum() - 1
    noise = rank_noise_variance(n, epsilon_0) + np.array([0.0, float(tie_variance(tied))])
    known = np.array([rank_variance(n), rank_variance(n, chances)]) / n**2
    found, diagonal, plain = [], [], []
    for _ in range(400):
        ranks = [perturbed_ranks(one, epsilon_0=epsilon_0, randomness=randomness).debiased for one in data.T]
        covariance = rank_covariance(np.column_stack(ranks))
        found.append(spearman(covariance, known)[0, 1])
        diagonal.append(np.diag(covariance.scores) - noise / n**2)
        plain.append(np.corrcoef(*ranks)[0, 1])
    error = np.std(found) / 20
    assert abs(np.mean(found) - truth) < 5.5 * error
    assert np.mean(plain) < truth - 10 * np.std(plain) / 20
    assert np.all(np.abs(np.mean(diagonal, axis=0) - known) < 5.5 * np.std(diagonal, axis=0) / 20)
    ratios = noise / (known * n**2)
    # Near r = 0 the forecast is exact; the formula has no term in r, and a sd of 400 draws is good to 3.5 %.
    assert np.std(found) == pytest.approx(forecast_noise(n, ratios[0], ratios[1]), rel=0.25)


def test_noise_above_the_variance_leaves_none() -> None:
    found = rank_covariance(np.column_stack([np.arange(1.0, 11), np.full(10, 5.5)]))
    free = without_noise(found, [1.0, 1.0])
    assert free[0] == pytest.approx((99 / 12 - 1) / 100)
    assert free[1] == 0
    assert spearman(found, free).tolist() == [[1, 0], [0, 1]]


def test_columns_that_share_nobody() -> None:
    """One record or none in common: no covariance, and no error; all missing too."""
    ranks = np.array([[1.0, np.nan, np.nan], [2.0, 1.0, np.nan], [np.nan, 2.0, np.nan]])
    found = rank_covariance(ranks)
    assert found.scores[0, 1] == 0
    assert found.shared[0, 1] == 1
    assert np.all(found.scores[2] == 0)
    assert np.array_equal(spearman(found, np.diag(found.scores))[2], [0, 0, 1])
    assert forecast_noise(0, 1.0, 1.0) == math.inf
    with pytest.raises(DomainError):
        rank_covariance(np.zeros(3))


# --- the bridge ------------------------------------------------------------------------------------------


def test_coefficients_against_quadrature() -> None:
    """c_m = int g h_m phi for m = 1 ... 9, by adaptive quadrature over each step."""
    edges = [-12.0, *special.ndtri([0.2, 0.7]), 12.0]
    levels = [0.1, 0.45, 0.85]
    uniform, three = uniform_coefficients(9), category_coefficients(THREE, 9)
    assert np.allclose(three, step_coefficients(edges[1:-1], levels, 9))
    for m in range(1, 10):

        def hermite(z: float, m: int = m) -> float:
            return float(special.eval_hermitenorm(m, z)) / math.sqrt(math.factorial(m)) * stats.norm.pdf(z)

        smooth = integrate.quad(lambda z: special.ndtr(z) * hermite(z), -12, 12)[0]
        steps = [
            level * integrate.quad(hermite, a, b)[0] for level, a, b in zip(levels, edges[:-1], edges[1:], strict=True)
        ]
        assert uniform[m - 1] == pytest.approx(smooth, abs=1e-9)
        assert three[m - 1] == pytest.approx(sum(steps), abs=1e-9)


@pytest.mark.parametrize("r", [-0.95, -0.4, 0.0, 0.3, 0.8, 0.95])
def test_the_bridge_has_its_closed_forms(r: float) -> None:
    """Uniform scores: arcsin(r/2) / (2 pi). Two coins with scores 1/4 and 3/4: arcsin(r) / (8 pi). Mixed: the rest."""
    found = bridge(np.stack([uniform_coefficients(), category_coefficients(COINS)]), np.full((2, 2), r))
    assert found[0, 0] == pytest.approx(math.asin(r / 2) / (2 * math.pi), abs=1e-12)
    assert found[1, 1] == pytest.approx(math.asin(r) / (8 * math.pi), abs=1e-9)
    # cov(Phi(X), 1{Y > 0}) = arcsin(r / sqrt 2) / (2 pi), and a step of 1/2 halves it.
    assert found[0, 1] == pytest.approx(math.asin(r / math.sqrt(2)) / (4 * math.pi), abs=1e-9)


def test_the_bridge_is_inverted() -> None:
    coefficients = np.stack([uniform_coefficients(), category_coefficients(COINS), category_coefficients(THREE)])
    latent = np.array([[1, 0.7, -0.9], [0.7, 1, 0.05], [-0.9, 0.05, 1]])
    assert np.allclose(invert_bridge(bridge(coefficients, latent), coefficients), latent, atol=1e-8)


def test_the_bridge_recovers_a_simulated_copula() -> None:
    """200,000 rows, three-valued against binary: r = 0.5 within 0.02 (se about 0.003)."""
    generator = simulated_generator(SimulatedRandomness(5))
    z = generator.multivariate_normal([0, 0], [[1, 0.5], [0.5, 1]], size=200_000)
    data = np.column_stack([np.digitize(z[:, 0], special.ndtri([0.2, 0.7])), z[:, 1] > 0])
    found = rank_covariance(np.column_stack([mid_ranks(column) for column in data.T]))
    coefficients = np.stack([category_coefficients(THREE), category_coefficients(COINS)])
    assert invert_bridge(found.scores, coefficients)[0, 1] == pytest.approx(0.5, abs=0.02)
    # Treated as continuous, the same columns attenuate.
    assert latent_from_spearman(spearman(found, [1 / 12, 1 / 12]))[0, 1] < 0.42


def test_one_category_and_unattainable_covariances() -> None:
    coefficients = np.stack([uniform_coefficients(), category_coefficients(ONE), category_coefficients([0.0, 1.0])])
    found = invert_bridge(np.full((3, 3), 10.0), coefficients)
    assert np.allclose(found, np.eye(3))
    pair = np.stack([uniform_coefficients(), uniform_coefficients()])
    assert invert_bridge(np.full((2, 2), -10.0), pair)[0, 1] == pytest.approx(-LARGEST_CORRELATION)
    with pytest.raises(DomainError):
        category_coefficients([0.5, 0.6])


# --- proper matrices -------------------------------------------------------------------------------------


def test_repair() -> None:
    bad = np.array([[1, 0.9, -0.9], [0.9, 1, 0.9], [-0.9, 0.9, 1]])
    found = repair(bad, floor=0.01)
    assert np.allclose(np.diag(found), 1)
    assert np.linalg.eigvalsh(found)[0] > 0.005
    good = np.array([[1, 0.3], [0.3, 1]])
    assert np.allclose(repair(good), good)


def test_completion_has_a_zero_in_the_inverse_and_keeps_what_is_known() -> None:
    """Oracle: the optimality condition; and for a chain the product r_12 r_23."""
    known = np.ones((3, 3), dtype=bool)
    known[0, 2] = known[2, 0] = False
    chain = complete([[1, 0.9, 0], [0.9, 1, 0.8], [0, 0.8, 1]], known)
    assert chain.correlation[0, 2] == pytest.approx(0.72)
    generator = simulated_generator(SimulatedRandomness(6))
    full = np.corrcoef(generator.standard_normal((12, 30)))
    known = np.ones((12, 12), dtype=bool)
    for a, b in ((slice(0, 3), slice(6, 9)), (slice(3, 6), slice(9, 12)), (slice(0, 3), slice(9, 12))):
        known[a, b] = known[b, a] = False
    found = complete(full, known)
    assert found.kept == 1
    assert np.allclose(found.correlation[known], full[known])
    assert np.abs(np.linalg.inv(found.correlation)[~known]).max() < 1e-7
    assert np.linalg.slogdet(found.correlation)[1] > np.linalg.slogdet(full)[1]


def test_known_entries_without_a_completion_shrink() -> None:
    """A cycle of four strong correlations with one sign turned has no positive completion."""
    known = np.ones((4, 4), dtype=bool)
    known[0, 2] = known[2, 0] = known[1, 3] = known[3, 1] = False
    c = 0.99
    found = complete([[1, c, 0, -c], [c, 1, c, 0], [0, c, 1, c], [-c, 0, c, 1]], known)
    assert 0.5 < found.kept < 0.75  # cos(pi / 4) = 0.707 is the largest that a frustrated 4-cycle allows
    assert np.linalg.eigvalsh(found.correlation)[0] > 0
    assert np.allclose(complete(np.ones((3, 3)), np.zeros((3, 3))).correlation, np.eye(3))
    with pytest.raises(DomainError):
        complete(np.eye(2), np.array([[True, True], [False, True]]))
