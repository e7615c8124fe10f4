"""The exact Skellam sampler against its law. Seeds are fixed; each statistical bound would fail a fresh seed with
probability below 1e-6 (p-values above 1e-6, z-scores below 5)."""

from __future__ import annotations

import dataclasses
import math
from fractions import Fraction

import mpmath
import numpy as np
import pytest
from scipy import special, stats

from colonnade.errors import BadPrivacyParameter
from colonnade.privacy import skellam_sampler as sampler
from colonnade.privacy.randomness import SimulatedRandomness, SystemRandomness
from colonnade.privacy.skellam_sampler import exact_ratio, largest_draw, skellam, weights


def probability(k: np.ndarray, mu: float) -> np.ndarray:
    """e^-2mu I_k(2mu), by scipy."""
    return special.ive(np.abs(k), 2 * mu)


def chi_square(draws: np.ndarray, mu: float, cells: int) -> float:
    """The p-value of the draws in `cells` cells of about equal probability (single values where mu is small)."""
    largest = int(14 * math.sqrt(2 * mu) + 30)
    support = np.arange(-largest, largest + 1)
    cumulative = np.cumsum(probability(support, mu))
    assert cumulative[-1] == pytest.approx(1, abs=1e-9)
    cell_of = np.minimum((cumulative * cells).astype(int), cells - 1)
    _, cell_of = np.unique(cell_of, return_inverse=True)
    expected = np.bincount(cell_of, probability(support, mu)) * draws.size
    observed = np.bincount(cell_of[draws + largest], minlength=expected.size)
    assert expected.min() > 5
    return float(stats.chisquare(observed, expected * draws.size / expected.sum()).pvalue)


@pytest.mark.parametrize("mu", [Fraction(1, 1000), 0.1, 1, Fraction(22, 7), 100, 2**12, 2**16])
def test_the_weights_are_bessel_functions(mu):
    exact = Fraction(mu)
    largest = sampler.reach(exact, 40.0)
    found, total = weights(exact, largest)
    with mpmath.workprec(260):
        x = 2 * mpmath.mpf(exact.numerator) / exact.denominator
        for k in sorted({0, 1, largest // 2, largest}):
            truth = mpmath.besseli(k, x, maxterms=10**6) * mpmath.exp(-x)
            assert abs(mpmath.mpf(found[k]) / total / truth - 1) < mpmath.mpf(2) ** -170


@pytest.mark.parametrize("mu", [0.1, 1, 5, 100, 2**12, 2**16, 2**16 + 1, Fraction(2**18 + 1, 3), 2**20])
def test_draws_follow_the_law(mu):
    draws = skellam(SimulatedRandomness(7, f"law {mu}"), mu, 400_000)
    for cells in (20, 300):
        assert chi_square(draws, float(mu), cells) > 1e-6


@pytest.mark.parametrize("exponent", [20, 48, 63, 90])
def test_moments_shape_and_low_bits_at_large_scales(exponent):
    mu, count = 2**exponent, 400_000
    draws = skellam(SimulatedRandomness(11, f"large {exponent}"), mu, count)
    scaled = draws / math.sqrt(2 * mu)
    # mean 0, variance 1, kurtosis 3 + 1/(2 mu), of a nearly normal sample: standard errors 1, sqrt 2, sqrt 24 / sqrt n
    assert abs(scaled.mean()) * math.sqrt(count) < 5
    assert abs((scaled**2).mean() - 1) * math.sqrt(count / 2) < 5
    assert abs((scaled**4).mean() - 3) * math.sqrt(count / 96) < 5
    # the lattice has steps of 1/sd; the law at k covers k - 1/2 to k + 1/2, filled up uniformly
    filled = scaled + (np.random.default_rng(0).random(count) - 0.5) / math.sqrt(2 * mu)
    assert stats.kstest(filled, "norm").pvalue > 1e-6
    for bits in (draws & 1, draws & 15, (draws >> 4) & 15):
        assert stats.chisquare(np.bincount(bits)).pvalue > 1e-6


def test_the_middle_bits_are_uniform_too():
    """At mu = 2^90 the standard deviation is 2^45.5: every bit up to 2^40 is uniform to within e^-1000."""
    draws = skellam(SimulatedRandomness(13), 2**90, 200_000)
    for place in range(0, 40, 4):
        assert stats.chisquare(np.bincount((draws >> place) & 15)).pvalue > 1e-6


def test_shares_add_up_to_the_whole():
    """Three parties draw Sk(5/3); the sum is Sk(5)."""
    shares = [skellam(SimulatedRandomness(17, f"party {k}"), Fraction(5, 3), 200_000) for k in range(3)]
    assert chi_square(sum(shares[1:], shares[0]), 5.0, 40) > 1e-6


# --- the decisions of the rejection ------------------------------------------------------------------------------


@pytest.mark.parametrize("mu", [2**16 + 1, 2**20])
def test_the_exact_ratio_is_the_recurrence(mu):
    """Two independent ways to p(n)/p(0): the shifted contour, and Miller's recurrence."""
    largest = largest_draw(mu)
    mass, _ = weights(Fraction(mu), largest)
    for n in (0, 1, 777, largest):
        assert abs(exact_ratio(Fraction(mu), n) * Fraction(mass[0], mass[n]) - 1) < Fraction(1, 2**150)


def debye(mu: int, n: int) -> mpmath.mpf:
    """log p(n)/p(0) by Debye's expansion to the third order (DLMF 10.41.3); the next term is below 1e3 / x^4."""
    x = mpmath.mpf(2 * mu)
    s = mpmath.sqrt(x * x + n * n)

    def tail(order: mpmath.mpf, root: mpmath.mpf) -> mpmath.mpf:
        p2 = (order / root) ** 2
        u1 = (3 - 5 * p2) / 24 / root
        u2 = (81 - 462 * p2 + 385 * p2**2) / 1152 / root**2
        u3 = (30375 - 369603 * p2 + 765765 * p2**2 - 425425 * p2**3) / 414720 / root**3
        return mpmath.log(1 + u1 + u2 + u3) - mpmath.log(root) / 2

    return s - x - n * mpmath.asinh(n / x) + tail(mpmath.mpf(n), s) - tail(mpmath.mpf(0), x)


@pytest.mark.parametrize("exponent", [30, 63, 90])
def test_the_ratios_agree_with_debye(exponent):
    """The double, within its margin; and the 400 bits, within the next term of the expansion."""
    mu = 2**exponent
    stairs = sampler._staircase(Fraction(mu))
    with mpmath.workprec(400):
        for deviations in (0.01, 1.0, 5.0, 12.9):
            n = int(deviations * math.sqrt(2 * mu))
            truth = debye(mu, n)
            ratio = exact_ratio(Fraction(mu), n)
            exact = mpmath.log(mpmath.mpf(ratio.numerator) / ratio.denominator)
            assert abs(exact - truth) < 1e3 / mpmath.mpf(2 * mu) ** 4 + mpmath.mpf(2) ** -140
            assert abs(sampler._log_ratio(float(n), stairs.x) - truth) < stairs.margin / 4


@pytest.mark.parametrize("mu", [2**16 + 1, 2**20, 2**90])
def test_the_doubles_never_decide_wrongly(mu):
    """Uniform numbers close to the boundary, on both sides: right, or undecided; and decided once they are far."""
    stairs = sampler._staircase(Fraction(mu))
    for deviations in (0.3, 2.0, 6.0):
        n = int(deviations * math.sqrt(2 * mu))
        q = n >> stairs.shift
        boundary = exact_ratio(Fraction(mu), n) / (Fraction(stairs.unit) * int(stairs.weights[q]))
        assert boundary <= 1
        for nearness in (20, 26, 30, 36, 40, 45, 52):
            for side in (-1, 1):
                u = int(boundary * (2**64 + side * 2 ** (64 - nearness)))
                decision = sampler._decide(n, np.uint64(u), stairs.x, stairs.log_height[q], stairs.margin)
                assert decision in ({-1: 1, 1: 0}[side], 2)
                if 2.0**-nearness > 3 * stairs.margin and u > 2**40:
                    assert decision != 2


@pytest.mark.parametrize("mu", [2**16 + 1, 2**63])
def test_the_staircase_is_an_envelope(mu):
    stairs = sampler._staircase(Fraction(mu))
    assert stairs.block.size == 2**16
    assert np.array_equal(np.bincount(stairs.block), stairs.weights)
    blocks = stairs.weights.size
    for q in (0, 1, blocks // 5, blocks // 2, blocks - 1):
        height = Fraction(stairs.unit) * int(stairs.weights[q])
        assert exact_ratio(Fraction(mu), q << stairs.shift) <= height
        assert Fraction(int(stairs.sure[q]), 2**64) <= exact_ratio(Fraction(mu), ((q + 1) << stairs.shift) - 1) / height
    # 2 e^-G beyond the last block, by Chernoff's bound computed with mpmath
    with mpmath.workprec(300):
        x, n = mpmath.mpf(2 * mu), mpmath.mpf(largest_draw(mu) + 1)
        assert 2 * mpmath.exp(-(n * mpmath.asinh(n / x) - mpmath.sqrt(n * n + x * x) + x)) < mpmath.mpf(2) ** -120


def test_the_second_decision_changes_nothing():
    """With nothing left to the doubles, the same words give the same draws."""
    stairs = sampler._staircase(Fraction(2**40))
    careful = dataclasses.replace(stairs, margin=1e9, sure=np.zeros_like(stairs.sure))
    quick, slow = np.zeros(10, dtype=np.int64), np.zeros(10, dtype=np.int64)
    sampler._reject(SimulatedRandomness(19), stairs, quick)
    sampler._reject(SimulatedRandomness(19), careful, slow)
    assert np.array_equal(quick, slow)


# --- the interface ------------------------------------------------------------------------------------------------


def test_edges():
    assert not skellam(SystemRandomness(), 0, 5).any()
    assert not skellam(SystemRandomness(), 1e-300, 5).any()
    assert skellam(SystemRandomness(), 5e-324, (2, 3)).shape == (2, 3)
    assert skellam(SystemRandomness(), 2**90, (2, 3)).dtype == np.int64
    assert skellam(SystemRandomness(), 3, 0).size == 0
    assert not np.array_equal(skellam(SystemRandomness(), 2**40, 50), skellam(SystemRandomness(), 2**40, 50))


def test_a_seed_repeats_itself():
    for mu in (3, 2**70):
        first, second = (skellam(SimulatedRandomness(23), mu, 70_000) for _ in range(2))
        assert np.array_equal(first, second)


@pytest.mark.parametrize("mu", [0.01, 1, 2**10, 2**16, 2**17, 2**90])
def test_the_largest_draw_is_known(mu):
    largest = largest_draw(mu)
    assert 12 * math.sqrt(2 * mu) < largest < min(2**52, 14 * math.sqrt(2 * mu) + 30)
    assert np.abs(skellam(SimulatedRandomness(29), mu, 50_000)).max() <= largest


def test_the_last_word_ends_the_table():
    """All bits set is the largest uniform number: the largest draw, not a step beyond the table."""

    class Ones(SimulatedRandomness):
        def bytes(self, count: int) -> bytes:
            return b"\xff" * count

    assert skellam(Ones(0), 100, 3).tolist() == [-largest_draw(100)] * 3


@pytest.mark.parametrize("mu", [-1, math.nan, math.inf, 2**90 + 1, "1e400x", None])
def test_what_is_no_mean_is_refused(mu):
    with pytest.raises(BadPrivacyParameter):
        skellam(SystemRandomness(), mu, 1)
