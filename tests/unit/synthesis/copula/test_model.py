"""A fitted Gaussian copula: domains, dtypes, marginals, correlation. Oracles: closed forms and scipy."""

from __future__ import annotations

import math

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import special, stats

from colonnade.data.column import Column, Columns
from colonnade.errors import DomainError
from colonnade.statistics.marginals import Marginal, from_shares
from colonnade.synthesis.copula.model import GaussianCopula, as_points, decoded, shifted
from support.copulas import EVERY_KIND, mixed_copula, mixed_marginals


@settings(max_examples=30, deadline=None)
@given(
    correlation=st.floats(-0.15, 0.99),
    seed=st.integers(0, 2**32 - 1),
    rows=st.integers(1, 400),
    size=st.integers(1, 99),
)
def test_rows_are_always_in_the_declared_domains_and_dtypes(
    correlation: float, seed: int, rows: int, size: int
) -> None:
    for frame in mixed_copula(correlation).batches(rows, seed, size=size):
        assert list(frame.columns) == list(EVERY_KIND)
        for name, column in EVERY_KIND.items():
            column.encode(frame[name])  # raises outside the domain, and for an empty cell
            assert frame[name].dtype == column.decode(column.encode(frame[name])).dtype
    assert frame["age"].dtype == np.float64
    assert str(frame["visits"].dtype) == str(frame["turnover"].dtype) == "Int64"
    assert frame["rating"].cat.ordered
    assert not frame["sector"].cat.ordered


@settings(max_examples=50, deadline=None)
@given(u=st.lists(st.floats(0, 1), min_size=1, max_size=20))
def test_decoding_is_monotone_and_stays_inside(u: list[float]) -> None:
    at = np.sort(np.array([0.0, *u, 1.0]))
    for name, column in EVERY_KIND.items():
        values = column.encode(decoded(column, mixed_marginals()[name], at))
        assert np.all(np.diff(values.astype(float)) >= 0)


def test_marginals_are_kept() -> None:
    """Kolmogorov's distance of 40,000 draws passes 2.9 / sqrt(n) with probability 2 e^-16.8 = 1e-7."""
    rows = 40_000
    frame = mixed_copula().sample(rows, 5)
    for name, column in EVERY_KIND.items():
        marginal = mixed_marginals()[name]
        values = as_points(column, column.encode(frame[name]))
        if marginal.discrete:
            at = marginal.points
            found = (values[:, None] <= at).mean(axis=0)
        else:
            at = np.sort(values)
            found = np.arange(1, rows + 1) / rows
        # A long count is at the middle of its unit: F moves by less than 1e-4 over half of it.
        assert np.abs(found - marginal.cdf(at)).max() < 2.9 / math.sqrt(rows) + 1e-3


def test_correlation_is_kept_on_the_latent_scale() -> None:
    """Spearman's rho of two continuous columns is 6 asin(r / 2) / pi. Within 6 sd of n = 40,000."""
    r = 0.5
    frame = mixed_copula(r).sample(40_000, 6)
    rho = stats.spearmanr(frame["age"], frame["turnover"].astype(float)).statistic
    assert rho == pytest.approx(6 / math.pi * math.asin(r / 2), abs=6 / math.sqrt(40_000))
    both = pd.crosstab(frame["sued"], frame["sector"], normalize=True).to_numpy()
    # P(not sued, farming) is a bivariate normal probability.
    law = stats.multivariate_normal(cov=[[1, r], [r, 1]])
    expected = law.cdf([special.ndtri(0.9), special.ndtri(0.2)])
    assert both[0, 0] == pytest.approx(expected, abs=6 * math.sqrt(0.2 * 0.8 / 40_000))


@settings(max_examples=50, deadline=None)
@given(mean=st.floats(-2, 2), deviation=st.floats(0.5, 2))
def test_a_shifted_marginal_is_that_of_the_shifted_latent(mean: float, deviation: float) -> None:
    """P(X <= x) = P(mean + deviation Z <= Phi^-1(F(x)))."""
    for one in mixed_marginals().values():
        moved = shifted(one, mean, deviation)
        for x, before in zip(one.points[:-1], one.cumulative[:-1], strict=True):
            expected = stats.norm.cdf(stats.norm.ppf(before), loc=mean, scale=deviation)
            assert moved.cdf(x) == pytest.approx(expected, abs=1e-12)
        assert moved.cumulative[-1] == 1
    same = shifted(mixed_marginals()["age"], 0.0)
    assert np.allclose(same.cumulative, mixed_marginals()["age"].cumulative, atol=1e-14)


def test_independent_columns_follow_their_marginals_more_closely_than_independent_rows() -> None:
    """Each share of 1,000 rows is within two rows of the marginal's, and columns stay independent; the same rows come
    however they are cut."""
    columns = Columns([Column(name=name, kind="ordinal", categories=tuple("uvwxyz")) for name in ("a", "b")])
    shares = np.array([0.35, 0.25, 0.2, 0.1, 0.07, 0.03])
    marginal = from_shares(np.arange(6.0), shares)
    alone = GaussianCopula(columns, dict.fromkeys(columns, marginal), np.eye(2))
    rows = alone.sample(1000, 1)
    codes = {name: columns[name].encode(rows[name]) for name in columns}
    for each in codes.values():
        np.testing.assert_allclose(np.bincount(each, minlength=6), 1000 * shares, atol=2)
    assert abs(np.corrcoef(codes["a"], codes["b"])[0, 1]) < 0.1
    assert abs(np.corrcoef(codes["a"][1:], codes["a"][:-1])[0, 1]) < 0.1, "in random order"
    pd.testing.assert_frame_equal(pd.concat(alone.batches(1000, 1, size=77), ignore_index=True), rows)


def test_arrays_there_and_back() -> None:
    model = mixed_copula()
    back = GaussianCopula.from_arrays(EVERY_KIND, model.to_arrays())
    pd.testing.assert_frame_equal(back.sample(200, 1), model.sample(200, 1))


def test_what_is_not_a_copula_is_refused() -> None:
    columns = Columns(
        [Column(name="a", kind="binary", categories=(0, 1)), Column(name="b", kind="count", lower=0, upper=3)]
    )
    coin = Marginal(np.arange(2.0), np.array([0.5, 1.0]), discrete=True)
    four = Marginal(np.arange(4.0), np.array([0.1, 0.2, 0.3, 1.0]), discrete=True)
    good = {"a": coin, "b": four}
    GaussianCopula(columns, good, np.eye(2))
    for correlation in (
        np.eye(3),
        np.array([[1.0, 0.3], [0.2, 1.0]]),
        2 * np.eye(2),
        np.array([[1, np.nan], [np.nan, 1]]),
    ):
        with pytest.raises(DomainError, match="symmetric correlation"):
            GaussianCopula(columns, good, correlation)
    with pytest.raises(DomainError, match="positive definite"):
        GaussianCopula(columns, good, np.ones((2, 2)))
    with pytest.raises(DomainError, match="one marginal for each"):
        GaussianCopula(columns, {"a": coin}, np.eye(2))
    with pytest.raises(DomainError, match="leaves its declared domain"):
        GaussianCopula(columns, {"a": four, "b": four}, np.eye(2))
    with pytest.raises(DomainError, match="must jump"):
        GaussianCopula(columns, {"a": coin, "b": Marginal(np.array([0.0, 3.0]), np.array([0.0, 1.0]))}, np.eye(2))
