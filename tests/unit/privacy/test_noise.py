"""The samplers against the exact probabilities of the distributions that they claim to draw."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from scipy import stats

from colonnade.errors import BadPrivacyParameter
from colonnade.privacy.noise import LARGEST_SCALE, discrete_gaussian, discrete_laplace
from colonnade.privacy.randomness import Randomness, SimulatedRandomness, SystemRandomness

Sampler = Callable[[Randomness, float, int], np.ndarray]

# Each chi-square test raises a false alarm with probability 1e-7; all of this file together stay below 1e-6.
FALSE_ALARM = 1e-7


def laplace_pmf(x: np.ndarray, scale: float) -> np.ndarray:
    return np.tanh(0.5 / scale) * np.exp(-np.abs(x) / scale)


def gaussian_pmf(x: np.ndarray, sigma: float) -> np.ndarray:
    reach = np.arange(-int(40 * sigma + 40), int(40 * sigma + 40) + 1, dtype=float)
    return np.exp(-(x.astype(float) ** 2) / (2 * sigma**2)) / np.exp(-(reach**2) / (2 * sigma**2)).sum()


def fit(drawn: np.ndarray, pmf: Callable[[np.ndarray, float], np.ndarray], scale: float) -> float:
    """The p-value of Pearson's chi-square over the values that are expected at least 40 times, and both tails."""
    x = np.arange(-int(60 * scale + 60), int(60 * scale + 60) + 1)
    expected = drawn.size * pmf(x, scale)
    middle = x[expected >= 40]
    low, high = middle[0], middle[-1]
    counts = [np.sum(drawn < low), *(np.sum(drawn == value) for value in middle), np.sum(drawn > high)]
    wanted = [expected[x < low].sum(), *expected[expected >= 40], expected[x > high].sum()]
    if wanted[0] < 20:  # a light tail joins its neighbour
        counts = [counts[0] + counts[1], *counts[2:-2], counts[-2] + counts[-1]]
        wanted = [wanted[0] + wanted[1], *wanted[2:-2], wanted[-2] + wanted[-1]]
    return float(stats.chisquare(counts, np.array(wanted) * (drawn.size / np.sum(wanted))).pvalue)


CASES = [
    (discrete_laplace, laplace_pmf, 0.7),
    (discrete_laplace, laplace_pmf, 6.3),
    (discrete_gaussian, gaussian_pmf, 0.8),
    (discrete_gaussian, gaussian_pmf, 5.5),
]


@pytest.mark.parametrize(("sample", "pmf", "scale"), CASES)
def test_system_noise_has_the_exact_distribution(sample: Sampler, pmf: Callable, scale: float) -> None:
    drawn = sample(SystemRandomness(), scale, 20_000)
    assert drawn.dtype == np.int64
    assert fit(drawn, pmf, scale) > FALSE_ALARM
    # The test can fail: a scale that is 20 % off is refused (missed with probability below 1e-9).
    assert fit(drawn, pmf, 1.2 * scale) < FALSE_ALARM


@pytest.mark.parametrize(("sample", "pmf", "scale"), CASES)
def test_simulated_noise_has_the_same_distribution(sample: Sampler, pmf: Callable, scale: float) -> None:
    # A fixed seed: no false alarms.
    drawn = sample(SimulatedRandomness(7, "noise"), scale, 200_000)
    assert fit(drawn, pmf, scale) > 1e-3
    assert fit(drawn, pmf, 1.05 * scale) < FALSE_ALARM


@pytest.mark.parametrize("randomness", [SystemRandomness(), SimulatedRandomness(3)])
def test_large_scales_approach_the_continuous_distributions(randomness: Randomness) -> None:
    # Oracle: the continuous limit, by Kolmogorov-Smirnov at a false alarm of 1e-7.
    drawn = discrete_laplace(randomness, LARGEST_SCALE, 2000) / LARGEST_SCALE
    assert stats.kstest(drawn, stats.laplace.cdf).pvalue > FALSE_ALARM
    drawn = discrete_gaussian(randomness, 2.0**50, 2000) / 2.0**50
    assert stats.kstest(drawn, stats.norm.cdf).pvalue > FALSE_ALARM


@pytest.mark.parametrize("sample", [discrete_laplace, discrete_gaussian])
def test_a_seed_repeats_and_the_system_does_not(sample: Sampler) -> None:
    first, second = (sample(SimulatedRandomness(11), 1e6, 20) for _ in range(2))
    np.testing.assert_array_equal(first, second)
    first, second = (sample(SystemRandomness(), 1e6, 20) for _ in range(2))
    assert not np.array_equal(first, second)  # equal with probability below 1e-100


@pytest.mark.parametrize("randomness", [SystemRandomness(), SimulatedRandomness(3)])
@pytest.mark.parametrize("sample", [discrete_laplace, discrete_gaussian])
def test_ranges(sample: Sampler, randomness: Randomness) -> None:
    assert sample(randomness, 1.0, 0).shape == (0,)
    assert not sample(randomness, 2.0**-20, 50).any()
    for scale in (0.0, -1.0, 1e-9, 2.0**56, float("inf"), float("nan")):
        with pytest.raises(BadPrivacyParameter, match="scale"):
            sample(randomness, scale, 1)
    with pytest.raises(BadPrivacyParameter, match="draws"):
        sample(randomness, 1.0, -1)
