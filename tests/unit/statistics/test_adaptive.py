"""The adaptive marginal. Oracles: numpy and pandas without noise, replications with it."""

from __future__ import annotations

import itertools
import json
import math
from functools import partial

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from colonnade.data.column import Column
from colonnade.errors import BadArguments
from colonnade.privacy.randomness import SimulatedRandomness
from colonnade.statistics.adaptive import (
    AdaptiveMarginal,
    Axis,
    Counts,
    Forecast,
    Noise,
    Rounds,
    from_arrays,
    listed,
    release,
    to_arrays,
)

N = 5000
Values = NDArray[np.float64]


def number(lower: float, upper: float, *, kind: str = "continuous") -> Column:
    return Column(name="x", kind=kind, lower=lower, upper=upper)  # type: ignore[arg-type]


def real_columns(n: int, seed: int) -> dict[str, tuple[Column, Values]]:
    """What real columns are made of."""
    rng = np.random.default_rng(seed)
    amounts = rng.lognormal(7.5, 0.6, n)
    return {
        "zero-inflated": (number(0, 168), np.where(rng.random(n) < 0.6, 0.0, np.clip(rng.gamma(3, 8, n), 0, 168))),
        "heaped": (number(0, 50_000), np.where(rng.random(n) < 0.7, np.rint(amounts / 500) * 500, amounts)),
        "nine decades": (number(0, 1e9), np.clip(rng.lognormal(10, 0.8, n), 0, 1e9)),
        "bimodal": (number(0, 1000), np.where(rng.random(n) < 0.5, rng.normal(200, 20, n), rng.normal(800, 5, n))),
        "detection limit": (number(0, 1000), np.clip(np.maximum(rng.lognormal(0, 1, n), 0.35), 0, 1000)),
        "dates": (number(0, 36_500, kind="count"), np.rint(rng.normal(25_000, 3000, n))),
        "constant": (number(0, 1000), np.full(n, 42.0)),
        "nearly unique": (number(0, 10**9, kind="count"), rng.choice(10**6, n).astype(float)),
        "bounds": (number(0, 100), np.clip(rng.normal(60, 40, n), 0, 100)),
        "rare counts": (
            number(0, 9000, kind="count"),
            np.where(rng.random(n) < 0.9, 0, rng.poisson(7, n)).astype(float),
        ),
    }


SHAPES = tuple(real_columns(10, 1))


def released(column: Column, values: Values, rounds: Rounds, seed: int = 1) -> list[Counts]:
    axis = Axis.of(column)
    counter = partial(axis.count, np.sort(values))
    return release(counter, axis, n=len(values), rounds=rounds, randomness=SimulatedRandomness(seed))


def fitted(column: Column, values: Values, rounds: Rounds, seed: int = 1) -> AdaptiveMarginal:
    return AdaptiveMarginal.of(released(column, values, rounds, seed), Axis.of(column), n=len(values), rounds=rounds)


@pytest.mark.parametrize("sd", [10.0, 55.0])
def test_a_long_tail_has_no_point_masses(sd: float) -> None:
    """The mass of a power law is at the near end of every cell, at any scale; records at one value are still found."""
    rounds, column = Rounds(7, "gaussian", sd), number(0, 5e6)
    for seed in range(8):
        rng = np.random.default_rng(seed)
        tail = np.exp(1.5 * rng.normal(size=3000) + rng.standard_t(3, 3000)).clip(0, 5e6)
        assert fitted(column, tail, rounds, seed).point_masses() == []
        chance = rng.random(3000)
        for value, share in ((0.0, 0.4), (100.0, 0.3)):
            found = fitted(column, np.where(chance < share, value, tail), rounds, seed).point_masses()
            assert [point for point, _, _ in found] == [value]


def distance(marginal: AdaptiveMarginal, values: Values) -> float:
    """Kolmogorov's, between the records and many draws."""
    drawn = np.sort(marginal.quantile((np.arange(20_000) + 0.5) / 20_000))
    ordered, everywhere = np.sort(values), np.union1d(values, drawn)
    below = [np.searchsorted(side, everywhere, side="right") / side.size for side in (ordered, drawn)]
    return float(np.abs(below[0] - below[1]).max())


# --- without noise ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("shape", SHAPES)
def test_without_noise_the_distribution_is_that_of_the_records(shape: str) -> None:
    column, values = real_columns(N, 2)[shape]
    marginal = fitted(column, values, Rounds(9, "gaussian", 0.0))
    assert marginal.total == pytest.approx(N)
    assert distance(marginal, values) < 0.012
    assert not marginal.mostly_noise


@pytest.mark.parametrize("shape", ["zero-inflated", "heaped", "detection limit", "constant", "bounds", "rare counts"])
def test_without_noise_point_masses_are_found_with_their_records(shape: str) -> None:
    """Oracle: pandas. Every value that 2 % of the records have, with exactly as many records."""
    column, values = real_columns(N, 3)[shape]
    common = pd.Series(values).value_counts()
    marginal = fitted(column, values, Rounds(9, "gaussian", 0.0))
    moved = 0.5 if column.whole else 0.0
    found = dict(zip(marginal.points - moved, marginal.counts, strict=True))
    for value, records in common[common > 0.02 * N].items():
        assert found[float(value)] == pytest.approx(records, abs=0.03 * records), value  # type: ignore[arg-type]
    drawn = pd.Series(marginal.sample(20_000, np.random.default_rng(1)))
    most = common.index[0]
    assert (drawn == most).mean() == pytest.approx(common.iloc[0] / N, abs=0.02)


def test_a_wide_range_costs_rounds_and_not_the_distribution() -> None:
    """The same records on ranges from three to twelve decades."""
    values = np.random.default_rng(4).lognormal(3, 0.5, N)
    for upper in (1e3, 1e6, 1e9, 1e12):
        assert distance(fitted(number(0, upper), values, Rounds(8, "gaussian", 12.0)), values) < 0.03, upper


def test_a_declared_logarithmic_scale_has_equal_cells_in_the_logarithm() -> None:
    axis = Axis.of(Column(name="x", kind="continuous", lower=1.0, upper=1e6, scale="log"))
    assert axis.values([0, axis.steps // 2, axis.steps]) == pytest.approx([1.0, 1e3, 1e6])
    from_zero = Column(name="x", kind="continuous", lower=0.0, upper=1e9, scale="log")
    assert np.all(np.diff(Axis.of(from_zero).values(np.arange(0, (1 << 40) + 1, 1 << 34))) > 0)
    values = np.clip(np.random.default_rng(4).lognormal(10, 3, N), 0, 1e9)
    assert distance(fitted(from_zero, values, Rounds(8, "gaussian", 12.0)), values) < 0.03


# --- with noise ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("noise", "scale"), [("gaussian", 12.0), ("laplace", 5.0)])
def test_counts_carry_the_stated_noise_and_are_unbiased(noise: Noise, scale: float) -> None:
    """30 releases. Noise of a count: its mean and variance within 6 standard errors. Of the fit: the error over its
    stated deviation has mean 0 and, but for what the choice of cells adds, mean square 1."""
    column, values = real_columns(N, 5)["zero-inflated"]
    axis, ordered, rounds = Axis.of(column), np.sort(values), Rounds(8, noise, scale)
    single, scaled = [], []
    for seed in range(30):
        turns = released(column, values, rounds, seed)
        single += [turn.counts - axis.count(ordered, turn.edges) for turn in turns]
        marginal = AdaptiveMarginal.of(turns, axis, n=N, rounds=rounds)
        scaled.append((marginal.counts - axis.count(ordered, marginal.edges)) / marginal.sds)
    drawn, errors = np.concatenate(single), np.concatenate(scaled)
    kurtosis = 3 if noise == "gaussian" else 6
    assert abs(drawn.mean()) < 6 * rounds.sd / math.sqrt(drawn.size)
    assert abs((drawn**2).mean() / rounds.sd**2 - 1) < 6 * math.sqrt((kurtosis - 1) / drawn.size)
    assert abs(errors.mean()) < 0.15
    assert 0.8 < (errors**2).mean() < 1.25


@pytest.mark.parametrize("shape", SHAPES)
def test_errors_stay_within_twice_the_forecast(shape: str) -> None:
    for noise, scale, number_of_rounds in (("gaussian", 12.0, 8), ("laplace", 5.0, 5)):
        rounds = Rounds(number_of_rounds, noise, scale)  # type: ignore[arg-type]
        column, values = real_columns(N, 10)[shape]
        marginal = fitted(column, values, rounds)
        expected = Forecast.of(Axis.of(column), n=N, rounds=rounds)
        assert distance(marginal, values) < 2 * max(expected.error, marginal.error)


def test_a_column_that_noise_hides_says_so() -> None:
    column, values = real_columns(N, 6)["bimodal"]
    hidden, seen = Rounds(8, "gaussian", 2000.0), Rounds(8, "gaussian", 12.0)
    assert fitted(column, values, hidden).mostly_noise
    assert Forecast.of(Axis.of(column), n=N, rounds=hidden).in_words().startswith("mostly noise")
    assert not fitted(column, values, seen).mostly_noise
    nobody = fitted(column, values[:0], seen)
    assert nobody.mostly_noise
    assert nobody.marginal.quantile(0.5) <= 1000


def test_far_out_on_a_wide_range_noise_adds_no_records() -> None:
    """The mean of a lognormal column on nine decades, 20 releases: noise far out would move it by thousands of sd."""
    column, values = real_columns(N, 7)["nine decades"]
    levels = (np.arange(4000) + 0.5) / 4000
    for seed in range(20):
        marginal = fitted(column, values, Rounds(8, "gaussian", 12.0), seed)
        assert marginal.quantile(levels).mean() == pytest.approx(values.mean(), rel=0.25), seed


def test_a_wide_cell_that_clearly_holds_records_keeps_them() -> None:
    """Beside records at a few narrow places most cells are far wider than those that hold most: no reason to doubt ten
    standard deviations."""
    column, rounds = number(0, 5000), Rounds(5, "laplace", 3.4, last=0.56)
    for seed in range(3):
        rng = np.random.default_rng(seed)
        places, weights = rng.choice(np.arange(1500, 2500), 40, replace=False), rng.exponential(1, 40) ** 2
        amounts = rng.choice(places, 20_000, p=weights / weights.sum())
        marginal = fitted(column, np.where(rng.random(20_000) < 0.95, 0.0, amounts), rounds, seed)
        assert np.all(marginal.fitted[marginal.counts > 10.5 * marginal.sds] > 0), seed


def test_the_tail_of_integers_that_have_cells_of_their_own_falls_off() -> None:
    """Geometric counts with a bound of 10^6: what is beyond the last integer with a cell of its own lies near it."""
    column, rounds, errors = number(0, 10**6, kind="count"), Rounds(5, "laplace", 33.0, last=5.6), []
    for seed in range(6):
        counts = np.random.default_rng(seed).geometric(0.2, 2000) - 1.0
        drawn = fitted(column, counts, rounds, seed).quantile((np.arange(4000) + 0.5) / 4000)
        places = np.unique(counts)
        below = [np.searchsorted(np.sort(side), places, side="right") / side.size for side in (counts, drawn)]
        errors.append(np.abs(below[0] - below[1]).max())
    assert np.mean(errors) < 0.045


# --- for those who use it -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("most", [2, 5, 16])
def test_cuts_are_few_rising_and_keep_point_masses_apart(shape: str, most: int) -> None:
    column, values = real_columns(N, 8)[shape]
    marginal = fitted(column, values, Rounds(8, "gaussian", 8.0))
    edges = marginal.cuts(most)
    assert 2 <= len(edges) <= most + 1
    assert (edges[0], edges[-1]) == (column.lower, column.upper + (1 if column.whole else 0))  # type: ignore[operator]
    assert all(low < high for low, high in itertools.pairwise(edges))
    if shape == "zero-inflated" and most > 2:
        assert edges[:2] == (0.0, math.nextafter(0, 1))
    if shape == "rare counts" and most > 2:
        assert edges[:2] == (0.0, 1.0)


def test_it_survives_plain_data_and_the_wire() -> None:
    column, values = real_columns(N, 9)["heaped"]
    rounds = Rounds(5, "laplace", 5.0)
    turns = released(column, values, rounds)
    arrays = to_arrays(turns, rounds)
    assert arrays["counts"].shape == (5, rounds.cells), "how many numbers leave does not depend on the data"
    axis = Axis.of(column)
    again = from_arrays(arrays, axis, n=N, rounds=rounds)
    assert all(np.array_equal(mine.edges, other.edges) for mine, other in zip(turns, again, strict=True))
    marginal = AdaptiveMarginal.of(again, axis, n=N, rounds=rounds)
    back = AdaptiveMarginal.from_dict(json.loads(json.dumps(marginal.to_dict())))
    assert back.to_dict() == marginal.to_dict()
    assert np.array_equal(back.marginal.cumulative, marginal.marginal.cumulative)
    with pytest.raises(BadArguments, match="do not follow"):
        from_arrays({**arrays, "counts": arrays["counts"][::-1].copy()}, axis, n=N, rounds=rounds)
    with pytest.raises(BadArguments, match="5 rounds"):
        from_arrays({**arrays, "sizes": arrays["sizes"][:2]}, axis, n=N, rounds=rounds)


@settings(max_examples=30, deadline=None)
@given(
    st.lists(st.integers(0, 2000), min_size=0, max_size=60),
    st.integers(1, 9),
    st.floats(0.3, 300),
    st.integers(0, 2**31),
)
def test_any_records_and_any_noise_give_a_proper_distribution(
    records: list[int], number_of_rounds: int, scale: float, seed: int
) -> None:
    column = number(0, 2000, kind="count")
    rounds = Rounds(number_of_rounds, "gaussian", scale)
    axis = Axis.of(column)
    turns = release(
        partial(axis.count, np.sort(np.array(records, dtype=float))),
        axis,
        n=60,
        rounds=rounds,
        randomness=SimulatedRandomness(seed),
    )
    assert all(turn.counts.size <= rounds.cells for turn in turns)
    assert all(turn.edges[0] == 0 and turn.edges[-1] == axis.steps for turn in turns)
    marginal = AdaptiveMarginal.of(turns, axis, n=60, rounds=rounds)
    drawn = marginal.quantile(np.linspace(0, 1, 101))
    assert np.all(np.diff(drawn) >= 0)
    assert drawn[0] >= 0
    assert drawn[-1] <= 2000
    assert np.all(marginal.fitted >= 0)


def test_short_lists_of_values_need_no_rounds() -> None:
    assert listed(number(0, 63, kind="count"))
    assert not listed(number(0, 64, kind="count"))
    assert not listed(number(0, 1))
    assert listed(Column(name="x", kind="binary", categories=("no", "yes")))


def test_a_distribution_with_other_noise_moves_by_its_noise_and_has_no_new_cells() -> None:
    column = Column(name="x", kind="continuous", lower=0.0, upper=200.0)
    marginal = fitted(column, np.random.default_rng(8).lognormal(0, 1, 20_000), Rounds(4, "gaussian", 40.0))
    generator = np.random.default_rng(2)
    again = np.array([marginal.redrawn(generator).fitted for _ in range(400)])
    large = marginal.fitted > 4 * marginal.sds
    assert large.sum() > 5
    np.testing.assert_allclose(again.std(axis=0)[large], marginal.sds[large], rtol=0.15)
    assert not again[:, marginal.fitted == 0].any()
