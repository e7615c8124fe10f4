"""What the coordinator computes from ranks: a correlation, latent rows.

Oracles: scipy, the definition of the event D(X), scipy's truncated normal, closed forms.

Seeds are fixed; each tolerance is at least 5 standard errors, a false alarm of 6e-7 on a fresh seed.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from scipy import special, stats

from colonnade.errors import DomainError
from colonnade.papers.vcds.budget import forecast_noise
from colonnade.papers.vcds.latent import (
    MINIMUM_SHARED,
    adjusted_latent,
    adjusted_marginal,
    hermite_coefficients,
    in_categories,
    latent_correlation,
    latent_from_spearman,
    rank_covariance,
    sampling_error,
    truncated_normal,
)
from colonnade.papers.vcds.ranks import perturbed_ranks, rank_noise_variance
from colonnade.privacy.randomness import SimulatedRandomness, simulated_generator
from colonnade.statistics.latent_correlation import category_coefficients, invert_bridge
from colonnade.statistics.marginals import Marginal

OMEGA = np.array([[1.0, 0.6, -0.3], [0.6, 1.0, 0.2], [-0.3, 0.2, 1.0]])


def latent_cohort(n: int, seed: int) -> np.ndarray:
    return np.random.default_rng(seed).multivariate_normal(np.zeros(3), OMEGA, size=n)


def flat(points: int = 11) -> Marginal:
    return Marginal(np.linspace(0.0, 1.0, points), np.linspace(0.0, 1.0, points))


@pytest.mark.parametrize("sweeps", [1, 3])
def test_the_order_of_every_column_is_that_of_its_ranks(sweeps: int) -> None:
    """The event D(X): sorting the present records by rank sorts their latent values."""
    ranks = np.column_stack([stats.rankdata(column) for column in latent_cohort(300, 1).T])
    ranks[::4, 1] = np.nan
    found = adjusted_latent(OMEGA, ranks, np.random.default_rng(2), sweeps=sweeps)
    assert np.isfinite(found).all()
    for j in range(3):
        here = np.flatnonzero(~np.isnan(ranks[:, j]))
        assert np.all(np.diff(found[here[np.argsort(ranks[here, j])], j]) >= 0)


def test_the_dependence_survives() -> None:
    """Ranks of a Gaussian cohort: the adjusted rows have its correlation (standard error 0.01 at n = 8,000)."""
    ranks = np.column_stack([stats.rankdata(column) for column in latent_cohort(8000, 3).T])
    found = adjusted_latent(OMEGA, ranks, np.random.default_rng(4))
    assert np.allclose(np.corrcoef(found.T), OMEGA, atol=0.055)
    assert np.allclose(found.std(axis=0), 1.0, atol=0.05)


def test_absent_entries_follow_what_the_record_has() -> None:
    """Oracle: the regression of the absent column on the present ones, solved here."""
    z = latent_cohort(20_000, 5)
    ranks = np.column_stack([stats.rankdata(column) for column in z.T])
    absent = np.arange(len(z)) % 2 == 0
    ranks[absent, 1] = np.nan
    found = adjusted_latent(OMEGA, ranks, np.random.default_rng(6))
    others = found[absent][:, [0, 2]]
    fitted = np.linalg.lstsq(others, found[absent, 1], rcond=None)[0]
    wanted = np.linalg.solve(OMEGA[np.ix_([0, 2], [0, 2])], OMEGA[[0, 2], 1])
    assert np.allclose(fitted, wanted, atol=0.05)
    rest = 1.0 - OMEGA[1, [0, 2]] @ wanted
    assert np.var(found[absent, 1] - others @ fitted) == pytest.approx(rest, abs=0.05)


def test_entries_that_are_not_present_are_redrawn_though_they_have_a_rank() -> None:
    """Later rounds of IEVCDS rank imputed values; their latent values are drawn given the record's others again."""
    z = latent_cohort(6000, 15)
    ranks = np.column_stack([stats.rankdata(column) for column in z.T])
    ranks[:, 1] = ranks[::-1, 1]  # imputed nonsense
    present = np.ones(z.shape, dtype=bool)
    present[:, 1] = False
    found = adjusted_latent(OMEGA, ranks, np.random.default_rng(16), present=present)
    assert np.allclose(np.corrcoef(found.T), OMEGA, atol=0.065)


def test_ties_do_not_constrain_each_other_so_coins_keep_their_latent_correlation() -> None:
    """Two coins of one Gaussian pair, r = 0.6. The sequential pass alone places a record of the first coin at random in
    its category; passes given all columns place it where the second coin says (standard error 0.012, slow mixing)."""
    z = np.random.default_rng(17).multivariate_normal([0, 0], [[1, 0.6], [0.6, 1]], size=4000)
    ranks = np.column_stack([stats.rankdata(column) for column in (z > [0.2, -0.5]).astype(float).T])
    omega = np.array([[1.0, 0.6], [0.6, 1.0]])
    found = adjusted_latent(omega, ranks, np.random.default_rng(18), sweeps=15)
    assert np.corrcoef(found.T)[0, 1] == pytest.approx(0.6, abs=0.08)
    for j in range(2):
        low, high = np.unique(ranks[:, j])
        assert found[ranks[:, j] == low, j].max() < found[ranks[:, j] == high, j].min()


def test_categories_are_found_again_in_noisy_mid_ranks() -> None:
    """Oracle: the codes themselves. A category that nobody has is skipped; noise below half a gap changes nothing."""
    draw = np.random.default_rng(19)
    codes = draw.choice([0.0, 1.0, 3.0], 500, p=[0.5, 0.2, 0.3])
    shares = np.array([(codes == c).mean() for c in range(4)])
    marginal = Marginal(np.arange(4.0), np.append(np.cumsum(shares)[:-1], 1.0), discrete=True)
    ranks = stats.rankdata(codes) + draw.uniform(-50, 50, 500)
    ranks[0] = np.nan
    found = in_categories(ranks, marginal)
    assert np.isnan(found[0])
    assert np.array_equal(found[1:], np.searchsorted([0.0, 1.0, 3.0], codes[1:]))


def test_truncated_normal_is_scipy_s() -> None:
    """Kolmogorov-Smirnov at 1e-6 in the middle and in a far tail; never outside, however far out."""
    draw = np.random.default_rng(7)
    for low, high in ((-0.5, 1.0), (6.0, 6.5), (-9.0, -8.0)):
        got = truncated_normal(np.full(4000, 0.3), 0.8, np.full(4000, low), np.full(4000, high), draw)
        a, b = (low - 0.3) / 0.8, (high - 0.3) / 0.8
        assert stats.kstest(got, stats.truncnorm(a, b, loc=0.3, scale=0.8).cdf).pvalue > 1e-6
    far = truncated_normal(np.zeros(50), 0.01, np.full(50, 7.0), np.full(50, 7.1), draw)
    assert np.all((far >= 7.0) & (far <= 7.1))
    open_end = truncated_normal(np.zeros(50), 0.01, np.full(50, 7.0), np.full(50, np.inf), draw)
    assert np.all(np.isfinite(open_end) & (open_end >= 7.0))


def test_adjusting_a_marginal_composes_it_with_the_latent_heights() -> None:
    """Equation (2.6) by brute force: F~(x_(r)) = Phi(max of the first r latent values), F the ECDF of the present."""
    draw = np.random.default_rng(8)
    values, z = np.sort(draw.random(40)), np.sort(draw.standard_normal(40))
    points = np.concatenate([[0.0], values, [1.0]])
    ecdf = Marginal(points, np.concatenate([[0.0], np.arange(1, 41) / 40, [1.0]]))
    found = adjusted_marginal(ecdf, draw.permutation(z))
    brute = [stats.norm.cdf(max(z[: r + 1])) for r in range(39)]
    assert np.allclose(found.cumulative[1:40], brute)
    assert found.cumulative[0] == 0.0
    assert found.cumulative[-1] == 1.0
    categories = Marginal(np.arange(3.0), np.array([0.2, 1.0, 1.0]), discrete=True)
    assert adjusted_marginal(categories, z).probabilities[2] == 0.0


def test_present_records_that_lie_low_move_the_marginal_down() -> None:
    low = np.random.default_rng(9).normal(-1.0, 1.0, 2000)
    assert adjusted_marginal(flat(), low).cdf(0.5) == pytest.approx(stats.norm.cdf(-1.0), abs=0.04)


def test_correlation_without_noise_is_that_of_the_cohort() -> None:
    """Continuous columns: the true one within 5 standard errors. A coin made from the latent column: by the bridge."""
    z = latent_cohort(40_000, 10)
    shown = np.column_stack([z[:, 0], (z[:, 1] > 0.4).astype(float), z[:, 2]])
    ranks = np.column_stack([stats.rankdata(column) for column in shown.T])
    below = float(stats.norm.cdf(0.4))
    coin = Marginal(np.arange(2.0), np.array([below, 1.0]), discrete=True)
    found = latent_correlation(ranks, {"a": flat(), "coin": coin, "b": flat()})
    assert np.allclose(found.matrix, OMEGA, atol=0.04)
    assert found.unmeasured == ()


def test_columns_that_share_too_few_records_are_completed_and_named() -> None:
    """The entry of the largest determinant makes the two independent given the third: r_02 = r_01 r_12."""
    z = latent_cohort(6000, 11)
    ranks = np.full_like(z, np.nan)
    first, second = slice(0, 3000), slice(3000 - MINIMUM_SHARED + 1, 6000)
    ranks[first, 0] = stats.rankdata(z[first, 0])
    ranks[:, 1] = stats.rankdata(z[:, 1])
    ranks[second, 2] = stats.rankdata(z[second, 2])
    found = latent_correlation(ranks, dict.fromkeys(("a", "b", "c"), flat()))
    assert found.unmeasured == ((0, 2),)
    assert found.matrix[0, 2] == pytest.approx(found.matrix[0, 1] * found.matrix[1, 2], abs=1e-6)


@pytest.mark.parametrize(("shared", "left"), [(200, ((0, 2),)), (900, ())])
def test_a_pair_that_few_records_show_is_completed_where_its_error_is_large(shared: int, left: tuple[Any, ...]) -> None:
    """Of 6,000 records 200 leave an error of 0.07 and 900 one of 0.03. In a cohort of 200, where all share, the same
    200 are believed: there is nothing better."""
    z = latent_cohort(6000, 14)
    ranks = np.full_like(z, np.nan)
    first, second = slice(0, 3000), slice(3000 - shared, 6000)
    for place, here in enumerate((first, slice(None), second)):
        ranks[here, place] = stats.rankdata(z[here, place])
    assert latent_correlation(ranks, dict.fromkeys("abc", flat())).unmeasured == left
    few = np.column_stack([stats.rankdata(column) for column in z[:200].T])
    assert latent_correlation(few, dict.fromkeys("abc", flat())).unmeasured == ()


def test_the_sampling_error_is_the_spread_over_samples() -> None:
    """Of a continuous column with a rare event (10 %), independent, 400 records: 80 samples tell its sd to 8 %."""
    rng = np.random.default_rng(15)
    rare = Marginal(np.arange(2.0), np.array([0.9, 1.0]), discrete=True)
    marginals = {"a": flat(), "rare": rare}
    found = []
    for _ in range(80):
        shown = rng.normal(size=400), (rng.random(400) < 0.1).astype(float)
        ranks = np.column_stack([stats.rankdata(column) for column in shown])
        found.append(latent_correlation(ranks, marginals).matrix[0, 1])
    stated = sampling_error(hermite_coefficients(marginals), np.full((2, 2), 400))[0, 1]
    assert stated > 0.06
    assert float(np.std(found)) == pytest.approx(stated, rel=0.35)


def test_a_column_with_one_category_is_correlated_with_nothing() -> None:
    z = latent_cohort(500, 12)
    ranks = np.column_stack([stats.rankdata(z[:, 0]), stats.rankdata(np.zeros(500))])
    one = Marginal(np.zeros(1), np.ones(1), discrete=True)
    assert np.array_equal(latent_correlation(ranks, {"a": flat(), "one": one}).matrix, np.eye(2))


def test_identical_columns_stay_within_the_largest_correlation() -> None:
    ranks = np.column_stack([stats.rankdata(latent_cohort(400, 13)[:, 0])] * 3)
    found = latent_correlation(ranks, dict.fromkeys("abc", flat())).matrix
    assert 0.99 < found[0, 1] <= 0.999
    assert np.linalg.eigvalsh(found)[0] > 0


# --- covariances of ranks --------------------------------------------------------------------------------


def rank_variance(n: int, probabilities: Any = ()) -> float:
    """The variance of the true mid-ranks: (n^2 - 1) / 12, less sum (m^3 - m) / (12 n) for ties of m = n p records."""
    sizes = n * np.asarray(probabilities, dtype=np.float64)
    return (n * n - 1) / 12 - float((sizes**3 - sizes).sum()) / (12 * n)


def spearman(covariance: np.ndarray, variances: Any) -> np.ndarray:
    """Correlations from score covariances, with the noise-free variance of each column's scores."""
    scale = 1 / np.sqrt(np.asarray(variances, dtype=np.float64))
    found = np.clip(covariance * np.outer(scale, scale), -1.0, 1.0)
    np.fill_diagonal(found, 1.0)
    return np.asarray(found)


def test_without_noise_it_is_spearmans_rho() -> None:
    """Oracle: scipy, on continuous and tied columns and on the records that two columns share."""
    generator = simulated_generator(SimulatedRandomness(1))
    data = generator.standard_normal((200, 3)) @ np.array([[1, 0.6, 0.2], [0, 1, 0.5], [0, 0, 1]])
    data[:, 2] = np.round(data[:, 2])
    ranks = np.column_stack([stats.rankdata(column) for column in data.T])
    found, _ = rank_covariance(ranks)
    chances = np.unique(data[:, 2], return_counts=True)[1] / 200
    variances = np.array([rank_variance(200), rank_variance(200), rank_variance(200, chances)]) / 200**2
    assert np.allclose(np.diag(found), variances)
    assert np.allclose(spearman(found, variances), stats.spearmanr(data).statistic)
    ranks[:150, 0] = np.nan
    ranks[150:, 0] = stats.rankdata(data[150:, 0])
    found, shared = rank_covariance(ranks)
    assert shared.tolist() == [[50, 50, 50], [50, 200, 200], [50, 200, 200]]
    expected = np.cov(ranks[150:, 0] / 50, ranks[150:, 1] / 200, ddof=0)[0, 1]
    assert found[0, 1] == pytest.approx(expected)


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
    noise = rank_noise_variance(n, epsilon_0) + np.array([0.0, tied / 4])
    known = np.array([rank_variance(n), rank_variance(n, chances)]) / n**2
    found, diagonal, plain = [], [], []
    for _ in range(400):
        ranks = [perturbed_ranks(one, epsilon_0=epsilon_0, randomness=randomness).debiased for one in data.T]
        covariance, _ = rank_covariance(np.column_stack(ranks))
        found.append(spearman(covariance, known)[0, 1])
        diagonal.append(np.diag(covariance) - noise / n**2)
        plain.append(np.corrcoef(*ranks)[0, 1])
    error = np.std(found) / 20
    assert abs(np.mean(found) - truth) < 5.5 * error
    assert np.mean(plain) < truth - 10 * np.std(plain) / 20
    assert np.all(np.abs(np.mean(diagonal, axis=0) - known) < 5.5 * np.std(diagonal, axis=0) / 20)
    ratios = noise / (known * n**2)
    # Near r = 0 the forecast is exact; the formula has no term in r, and a sd of 400 draws is good to 3.5 %.
    assert np.std(found) == pytest.approx(forecast_noise(n, ratios[0], ratios[1]), rel=0.25)


def test_columns_that_share_nobody() -> None:
    """One record or none in common: no covariance, and no error; all missing too."""
    ranks = np.array([[1.0, np.nan, np.nan], [2.0, 1.0, np.nan], [np.nan, 2.0, np.nan]])
    found, shared = rank_covariance(ranks)
    assert found[0, 1] == 0
    assert shared[0, 1] == 1
    assert np.all(found[2] == 0)
    assert forecast_noise(0, 1.0, 1.0) == math.inf
    with pytest.raises(DomainError):
        rank_covariance(np.zeros(3))


def test_the_bridge_recovers_a_simulated_copula() -> None:
    """200,000 rows, three-valued against binary: r = 0.5 within 0.02 (se about 0.003)."""
    generator = simulated_generator(SimulatedRandomness(5))
    z = generator.multivariate_normal([0, 0], [[1, 0.5], [0.5, 1]], size=200_000)
    data = np.column_stack([np.digitize(z[:, 0], special.ndtri([0.2, 0.7])), z[:, 1] > 0])
    found, _ = rank_covariance(np.column_stack([stats.rankdata(column) for column in data.T]))
    coefficients = np.stack([category_coefficients([0.2, 0.5, 0.3]), category_coefficients([0.5, 0.5])])
    assert invert_bridge(found, coefficients)[0, 1] == pytest.approx(0.5, abs=0.02)
    # Treated as continuous, the same columns attenuate.
    assert latent_from_spearman(spearman(found, [1 / 12, 1 / 12]))[0, 1] < 0.42
