"""Perturbed ranks: exact decisions, unbiased estimates, the variance formula, and what they cost.

Statistical tests have fixed seeds; tolerances are at least 5 standard errors (false alarm below 1e-6 each).
"""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from scipy import stats

from colonnade.errors import BadPrivacyParameter, DomainError, EmptyParty
from colonnade.papers.vcds import ranks as comparisons
from colonnade.papers.vcds.ranks import (
    BinomialProfile,
    Expanded,
    PerturbedRanks,
    binomial_profile,
    comparison_budget,
    doubled_mid_ranks,
    flips,
    perturbed_ranks,
    rank_cost,
    rank_noise_variance,
    rank_rho,
)
from colonnade.privacy.accounting import guarantee
from colonnade.privacy.cost import Cost, ZeroConcentrated
from colonnade.privacy.noise import keep_threshold
from colonnade.privacy.randomness import SimulatedRandomness, SystemRandomness

PAPER = comparison_budget(0.5, parties=5, total_columns=101)
"""The paper's nominal epsilon of 1, half of it for the ranks."""


# --- the kernel ------------------------------------------------------------------------------------------


def flips_one_by_one(tie_end: np.ndarray, threshold: int, words: list[int]) -> tuple[np.ndarray, np.ndarray]:
    """The oracle: the same random words, but every comparison on its own, as a whole number below a threshold."""
    n, lanes, levels = tie_end.size, comparisons._LANES, comparisons._LEVELS
    rows, columns, at = np.zeros(n, dtype=np.int64), np.zeros(n, dtype=np.int64), 0
    for a in range(n):
        top = [words[at + level * lanes : at + (level + 1) * lanes] for level in range(levels)]
        at += levels * lanes
        for lane in range(lanes):
            numbers = [sum((~top[v][lane] >> bit & 1) << (63 - v) for v in range(levels)) for bit in range(64)]
            going, level = set(range(64)), levels
            going = {bit for bit in going if numbers[bit] >> (64 - levels) == threshold >> (64 - levels)}
            while going and level < 64:
                for bit in going:
                    numbers[bit] |= (~words[at] >> bit & 1) << (63 - level)
                going = {b for b in going if numbers[b] >> (63 - level) == threshold >> (63 - level)}
                at, level = at + 1, level + 1
            for bit in range(64):
                b = 64 * lane + bit
                if a < b < n:
                    flipped = top[0][lane] >> bit & 1 if b < tie_end[a] else numbers[bit] < threshold
                    rows[a] += flipped
                    columns[b] += flipped
    return rows, columns


@pytest.mark.parametrize("threshold", [2**63 - 12345678901234567, 2**54 + 2**20 + 1, 2**52, 1])
def test_the_kernel_decides_as_one_comparison_after_the_other(threshold: int) -> None:
    """Same words, same flips. Runs of 1, 5 and 60 equal records; thresholds that the first eight bits cannot decide."""
    sizes = [1, 5, 60, 1, 13]
    tie_end = np.repeat(np.cumsum(sizes), sizes)
    found = flips(tie_end, threshold, Expanded(SimulatedRandomness(1)))
    words = Expanded(SimulatedRandomness(1)).words(comparisons._BUFFER).tolist()
    expected = flips_one_by_one(tie_end, threshold, words)
    assert all(np.array_equal(*pair) for pair in zip(found, expected, strict=True))


def test_several_blocks_count_every_pair_once() -> None:
    """Binomial law of the flips of 4,500 records (three blocks of columns), overall and per record.

    |z| <= 5.5 overall; per record, 4,500 standardised sums of 4,499 answers stay below 6.5 (4e-7 together), and their
    mean square is 1 within 5.5 standard errors of a chi-square of 4,500 degrees.
    """
    n, theta = 4500, 0.3
    rows, columns = flips(np.arange(1, n + 1), round(theta * 2**64), Expanded(SimulatedRandomness(2)))
    pairs = n * (n - 1) / 2
    assert rows.sum() == columns.sum()
    assert rows[-1] == 0
    assert columns[0] == 0
    assert abs(rows.sum() - pairs * theta) < 5.5 * math.sqrt(pairs * theta * (1 - theta))
    z = (rows + columns - (n - 1) * theta) / math.sqrt((n - 1) * theta * (1 - theta))
    assert np.abs(z).max() < 6.5
    assert abs((z**2).mean() - 1) < 5.5 * math.sqrt(2 / n) * 1.01


def test_a_rare_flip_has_its_chance() -> None:
    """theta = 2^-12 is decided beyond the first eight bits only: 4.5 million pairs, |z| <= 5.5."""
    n = 3000
    rows, _ = flips(np.arange(1, n + 1), 2**52, Expanded(SimulatedRandomness(3)))
    expected = n * (n - 1) / 2 / 2**12
    assert abs(rows.sum() - expected) < 5.5 * math.sqrt(expected)


# --- ranks -----------------------------------------------------------------------------------------------


def test_mid_ranks_agree_with_scipy() -> None:
    values = np.array([3.0, 1.0, 3.0, -2.0, 3.0, 1.0])
    assert np.array_equal(doubled_mid_ranks(values), 2 * stats.rankdata(values))


@pytest.mark.parametrize("noise", ["response", "skellam"])
def test_debiased_ranks_are_unbiased_with_the_stated_variance(noise: str) -> None:
    """4,000 replications of 30 records in ties of 1, 4 and 10. Oracle: the formula.

    Means within 5.5 standard errors (30 records: 1e-6). A variance of 4,000 nearly normal draws has a relative
    standard error of sqrt(2/4000) = 2.2 %; 15 % is more than 6 of them.
    """
    values = np.repeat([5.0, 1.0, 3.0, 2.0, 4.0, 9.0], [10, 4, 1, 1, 4, 10])
    n, epsilon_0, runs = values.size, 0.5, 4000
    randomness = SimulatedRandomness(4)
    drawn = np.array(
        [
            perturbed_ranks(values, epsilon_0=epsilon_0, noise=noise, randomness=randomness).debiased  # type: ignore[arg-type]
            for _ in range(runs)
        ]
    )
    assert np.allclose(drawn.sum(axis=1), n * (n + 1) / 2)
    tied = np.array([(values == value).sum() - 1 for value in values])
    variance = np.full(n, rank_noise_variance(n, epsilon_0, noise=noise))  # type: ignore[arg-type]
    if noise == "response":
        variance += tied / 4
    error = drawn - stats.rankdata(values)
    assert np.all(np.abs(error.mean(axis=0)) < 5.5 * np.sqrt(variance / runs))
    assert np.all(np.abs(error.var(axis=0) / variance - 1) < 0.15)
    # All pairs that are not tied covary by -variance / (n - 1) (without ties); their mean has a small error.
    theta = 1 / (1 + math.exp(epsilon_0))
    s2 = theta * (1 - theta) / (1 - 2 * theta) ** 2
    apart = values[:, None] != values[None, :]
    assert np.cov(error.T)[apart].mean() == pytest.approx(-s2, rel=0.15)


def test_the_variance_formula_against_all_outcomes() -> None:
    """Four records, two of them tied: all 2^6 answers with their probabilities. Oracle: enumeration."""
    values, epsilon_0 = np.array([2.0, 1.0, 2.0, 7.0]), 0.8
    theta = 1 - keep_threshold(epsilon_0) / 2**64
    pairs = list(itertools.combinations(range(4), 2))
    mean, square = np.zeros(4), np.zeros(4)
    for answers in itertools.product([0, 1], repeat=6):
        chance, wins = 1.0, np.zeros(4, dtype=np.int64)
        for (i, k), first_wins in zip(pairs, answers, strict=True):
            truth = 0.5 if values[i] == values[k] else float(values[i] > values[k])
            p = truth * (1 - theta) + (1 - truth) * theta
            chance *= p if first_wins else 1 - p
            wins[i if first_wins else k] += 1
        debiased = PerturbedRanks(wins, epsilon_0).debiased
        mean += chance * debiased
        square += chance * debiased**2
    assert np.allclose(mean, [2.5, 1, 2.5, 4])
    expected = rank_noise_variance(4, epsilon_0) + np.array([1, 0, 1, 0]) / 4
    assert np.allclose(square - mean**2, expected)


@pytest.mark.parametrize("noise", ["response", "skellam"])
def test_small_and_constant_columns(noise: str) -> None:
    """Two records have one comparison; one category is all ties. No release depends on the order of the records."""
    randomness = SystemRandomness()
    two = perturbed_ranks([1.0, 2.0], epsilon_0=1.0, noise=noise, randomness=randomness)  # type: ignore[arg-type]
    assert two.released.dtype == np.int64
    assert two.released.shape == (2,)
    assert two.debiased.sum() == pytest.approx(3)
    same = perturbed_ranks(np.zeros(50), epsilon_0=1.0, noise=noise, randomness=randomness)  # type: ignore[arg-type]
    assert same.debiased.sum() == pytest.approx(50 * 51 / 2)


@pytest.mark.parametrize(
    ("values", "error"),
    [([], EmptyParty), ([1.0], EmptyParty), ([1.0, math.nan], DomainError), ([[1.0, 2.0]], DomainError)],
)
def test_what_has_no_ranks_is_refused(values: list[float], error: type[Exception]) -> None:
    with pytest.raises(error):
        perturbed_ranks(values, epsilon_0=1.0, randomness=SystemRandomness())


# --- what they cost --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("n", "columns", "epsilon"),
    [(1000, 101, 63.6), (5000, 101, 229), (72000, 101, 2511), (1000, 20, 20.4), (5000, 20, 63.2), (72000, 20, 567)],
)
def test_the_papers_epsilon_of_one_per_record_and_per_block(n: int, columns: int, epsilon: float) -> None:
    """Oracle: the trial's exact figures, computed by other code. The accountants' bound is above, within 10 %."""
    exact = binomial_profile(n, columns, PAPER).epsilon(1e-5)
    assert exact == pytest.approx(epsilon, rel=2.5e-3)
    unit = "record" if columns == 101 else "block"
    bound = guarantee([rank_cost(n, columns, PAPER, unit=unit)], delta=1e-5, unit=unit).epsilon  # type: ignore[arg-type]
    assert exact <= bound <= 1.1 * exact
    rho = ZeroConcentrated(rank_rho(n, columns, PAPER), unit=unit)
    assert bound <= guarantee([rho], delta=1e-5, unit=unit).epsilon * (1 + 1e-9)  # type: ignore[arg-type]


def test_binomial_profile_against_enumeration() -> None:
    """Seven answers: delta as a sum over all 2^7 outcomes."""
    profile, theta = BinomialProfile(7, 0.4), 1 / (1 + math.exp(0.4))
    for epsilon in (0.0, 0.3, 1.2, 2.7):
        total = 0.0
        for answers in itertools.product([0, 1], repeat=7):
            p = math.prod(theta if one else 1 - theta for one in answers)
            q = math.prod(1 - theta if one else theta for one in answers)
            total += max(p - math.exp(epsilon) * q, 0.0)
        assert profile.delta(epsilon)[0] == pytest.approx(total, abs=1e-12)
    assert profile.delta(profile.epsilon(0.01))[0] == pytest.approx(0.01, rel=1e-6)


def test_nominal_and_pure_costs() -> None:
    """The nominal cost of one block is epsilon_1; a record's pure epsilon is (n - 1) columns eps0."""
    epsilon_0 = comparison_budget(0.5, parties=5, total_columns=100)
    nominal = guarantee([rank_cost(1000, 20, epsilon_0, unit="comparison")], delta=0, unit="comparison")
    assert nominal.epsilon == pytest.approx(0.5)
    pure = guarantee([rank_cost(1000, 20, epsilon_0)], delta=0)
    assert pure.epsilon == pytest.approx(999 * 20 * epsilon_0)
    assert comparison_budget(0.5, split="none", parties=5, total_columns=100) == 0.5
    cost = rank_cost(1000, 20, epsilon_0, noise="skellam")
    assert Cost.from_dict(cost.to_dict()) == cost


def test_skellam_costs_what_comparisons_cost_where_epsilons_are_small() -> None:
    """Equal second moments give nearly equal Renyi curves: mu^2 = (n - 1) / s^2 per column for both."""
    one, other = (rank_cost(2000, 3, 0.005, noise=noise) for noise in ("response", "skellam"))  # type: ignore[arg-type]
    assert guarantee([other], delta=1e-6).epsilon == pytest.approx(guarantee([one], delta=1e-6).epsilon, rel=0.02)


def test_the_stated_sensitivity_is_reached_and_never_exceeded() -> None:
    """Oracle: all columns of five records with values 0 ... 2, the first record replaced by -1 ... 3."""
    n, largest_1, largest_2 = 5, 0, 0
    cost = rank_cost(n, 1, 0.5, noise="skellam")
    for values in itertools.product(range(3), repeat=n):
        before = doubled_mid_ranks(np.array(values, dtype=float))
        for value in (-1, 0, 1, 2, 3):
            after = doubled_mid_ranks(np.array([value, *values[1:]], dtype=float))
            moved = np.abs(after - before)
            largest_1, largest_2 = max(largest_1, int(moved.sum())), max(largest_2, int((moved**2).sum()))
    # The extreme pair moves a record from below all others to above them.
    low, high = np.array([-1.0, 0, 1, 2, 2]), np.array([9.0, 0, 1, 2, 2])
    moved = np.abs(doubled_mid_ranks(high) - doubled_mid_ranks(low))
    assert moved.sum() == cost.number("delta_1") >= largest_1
    assert math.sqrt((moved**2).sum()) == pytest.approx(cost.number("delta_2"), rel=1e-12)
    assert math.sqrt(largest_2) <= cost.number("delta_2")


@pytest.mark.parametrize(
    "wrong",
    [
        lambda: rank_cost(1, 1, 0.5),
        lambda: rank_cost(10, 0, 0.5),
        lambda: rank_cost(10, 1, 0.0),
        lambda: rank_cost(10, 1, 0.5, noise="skellam", unit="comparison"),
        lambda: comparison_budget(0.5, parties=5, total_columns=4),
        lambda: BinomialProfile(10, 0.5).epsilon(0.0),
    ],
)
def test_wrong_parameters_are_refused(wrong) -> None:  # type: ignore[no-untyped-def]
    with pytest.raises(BadPrivacyParameter):
        wrong()
