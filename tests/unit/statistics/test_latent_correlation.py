"""From covariances of scores to a latent correlation matrix. Oracles: closed forms, quadrature, optimality."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy import integrate, special, stats

from colonnade.errors import DomainError
from colonnade.privacy.randomness import SimulatedRandomness, simulated_generator
from colonnade.statistics.latent_correlation import (
    LARGEST_CORRELATION,
    category_coefficients,
    complete,
    invert_bridge,
    repair,
    step_coefficients,
    uniform_coefficients,
)

COINS, THREE, ONE = [0.5, 0.5], [0.2, 0.5, 0.3], [1.0]


# --- the bridge ------------------------------------------------------------------------------------------


def bridge(coefficients: np.ndarray, correlation: np.ndarray) -> np.ndarray:
    """Score covariances of all pairs of columns at latent correlations: sum_m c_jm c_km r^m."""
    powers = correlation[..., None] ** np.arange(1, coefficients.shape[1] + 1)
    return np.asarray(np.einsum("jm,km,jkm->jk", coefficients, coefficients, powers))


def test_coefficients_against_quadrature() -> None:
    """c_m = int g h_m phi for m = 1 ... 9, by adaptive quadrature over each step."""
    edges = [-12.0, *special.ndtri([0.2, 0.7]), 12.0]
    levels = [0.1, 0.45, 0.85]
    uniform, three = uniform_coefficients(), category_coefficients(THREE)
    assert np.allclose(three, step_coefficients(edges[1:-1], levels))
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
    chain, _ = complete([[1, 0.9, 0], [0.9, 1, 0.8], [0, 0.8, 1]], known)
    assert chain[0, 2] == pytest.approx(0.72)
    generator = simulated_generator(SimulatedRandomness(6))
    full = np.corrcoef(generator.standard_normal((12, 30)))
    known = np.ones((12, 12), dtype=bool)
    for a, b in ((slice(0, 3), slice(6, 9)), (slice(3, 6), slice(9, 12)), (slice(0, 3), slice(9, 12))):
        known[a, b] = known[b, a] = False
    found, factor = complete(full, known)
    assert factor == 1
    assert np.allclose(found[known], full[known])
    assert np.abs(np.linalg.inv(found)[~known]).max() < 1e-7
    assert np.linalg.slogdet(found)[1] > np.linalg.slogdet(full)[1]


def test_known_entries_without_a_completion_shrink() -> None:
    """A cycle of four strong correlations with one sign turned has no positive completion."""
    known = np.ones((4, 4), dtype=bool)
    known[0, 2] = known[2, 0] = known[1, 3] = known[3, 1] = False
    c = 0.99
    found, factor = complete([[1, c, 0, -c], [c, 1, c, 0], [0, c, 1, c], [-c, 0, c, 1]], known)
    assert 0.5 < factor < 0.75  # cos(pi / 4) = 0.707 is the largest that a frustrated 4-cycle allows
    assert np.linalg.eigvalsh(found)[0] > 0
    assert np.allclose(complete(np.ones((3, 3)), np.zeros((3, 3)))[0], np.eye(3))
    with pytest.raises(DomainError):
        complete(np.eye(2), np.array([[True, True], [False, True]]))
