"""Noisy scores of counts: the bounded mean and its series, what bounds residuals, slopes and variation, and the cap."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
from scipy.special import gammaln, loggamma
from scipy.stats import nbinom, poisson

from colonnade.data.column import Column, Columns
from colonnade.errors import BadArguments, UnsafeRequest
from colonnade.federation.facts import PublicFacts
from colonnade.models.glm.attacks import plain_score, plain_terms
from colonnade.models.glm.bounded import (
    COUNT_TOLERANCE,
    HALF_PERIOD,
    LARGEST_CAP,
    CountMean,
    bounded_mean,
    density,
    distribution,
    edges,
)
from colonnade.models.glm.counts import EXCESS, Counts
from colonnade.models.glm.private import NoisyScores, UnitSums
from colonnade.models.glm.private_fit import COUNTED, NoisyInformation, PrivateGeneralizedFit, steadied
from colonnade.privacy.accounting import guarantee
from colonnade.privacy.randomness import SimulatedRandomness
from support.shapes import shape


def counted(parties: int = 3, n: int = 400, largest: int = 30, epsilon: float = 1.0) -> PrivateGeneralizedFit:
    """The response of `shape` as a count."""
    facts, roster = shape(parties, n)
    own = [column for column in facts.columns["p0"].values() if column.name != "y"]
    columns = {"p0": Columns([*own, Column(name="y", kind="count", lower=0, upper=largest)])}
    facts = PublicFacts(n=n, columns={**facts.columns, **columns})
    names = [name for own in facts.columns.values() for name in own if name != "y"]
    return PrivateGeneralizedFit(facts, roster, family="poisson", names=(*names, "y"), epsilon=epsilon, delta=1e-6)


def series(mean: CountMean, terms: np.ndarray, points: np.ndarray) -> np.ndarray:
    return (np.exp(1j * points[:, None] * mean.frequencies) @ terms).real


@pytest.mark.parametrize("cap", [1, 2, 5, 20, LARGEST_CAP])
def test_the_mean_of_a_cut_count_and_its_slope(cap: int) -> None:
    """Against sums over the Poisson law, and the derivative against differences."""
    for eta in (-4.0, 0.0, math.log(cap), math.log(cap) + 1):
        values = np.arange(2000)
        exact = float(poisson.pmf(values, math.exp(eta)) @ np.minimum(values, cap))
        point = np.array([eta - math.log(cap)])
        assert cap * distribution(point, cap)[0] == pytest.approx(exact, rel=1e-9)
        difference = (distribution(point + 1e-5, cap) - distribution(point - 1e-5, cap)) / 2e-5
        assert density(point, cap) == pytest.approx(difference, rel=1e-6, abs=1e-9)


@pytest.mark.parametrize("largest", [1, 3, 20, LARGEST_CAP])
def test_the_series_of_a_count_is_bounded_everywhere(largest: int) -> None:
    """Within the tolerance where it should be; nowhere beyond its bounds, also where it is another function. The closed
    form of its coefficients is that of logarithms of Gamma variables."""
    mean = CountMean(largest)
    inside, everywhere = np.linspace(-14.5, 5.5, 2001), np.linspace(-60, 60, 20_001)
    responses = np.linspace(0, 1, 11)[:, None]
    for cap in mean.caps:
        first, square, slope = mean.mean(cap), mean.square(cap), mean.slope(cap)
        assert np.abs(series(mean, first, inside) + 0.5 - distribution(inside, cap)).max() <= 2 * COUNT_TOLERANCE
        assert np.abs(series(mean, square, inside) + 0.5 - distribution(inside, cap) ** 2).max() <= 1e-4
        assert np.abs(series(mean, slope, inside) - density(inside, cap)).max() <= 1e-3
        assert np.abs(series(mean, first, everywhere)).max() <= 0.5 + COUNT_TOLERANCE
        assert np.abs(series(mean, slope, everywhere)).max() <= mean.largest_slope(1.0, 0.0)
        wave = 0.5 + series(mean, first, everywhere)
        variation = responses**2 - 2 * responses * wave + 0.5 + series(mean, square, everywhere)
        assert np.abs(variation).max() <= mean.largest_variation(1.0, 0.0, 0.0)
        arrivals = np.arange(1, cap + 1)[:, None]
        transform = np.exp(loggamma(arrivals - 1j * mean.frequencies) - gammaln(arrivals)).mean(axis=0)
        closed = transform * np.exp(1j * mean.frequencies * math.log(cap)) * (2 / HALF_PERIOD)
        assert slope == pytest.approx(closed, abs=1e-12)
        assert np.abs(first).sum() <= mean.amplitudes


def chosen(layout: NoisyScores, rng: np.random.Generator, size: float, cap: int) -> NoisyScores:
    width, parties = layout.width - 1, len(layout.parties)
    return layout.with_chosen(
        coefficients=tuple((size * rng.normal(size=width + 1)).tolist()),
        centres=(0.0,) * width,
        units=(100.0,) * width,
        norms=(math.sqrt(1 / (1 + parties)) * (1 - 1e-9),) * (1 + parties),
        cap=cap,
    )


def shared(layout: NoisyScores, rng: np.random.Generator) -> tuple[dict[str, np.ndarray], np.ndarray]:
    """What the parties share of records drawn at random, counts at both ends among them; and the rows."""
    n = layout.facts.n
    counts = np.minimum(rng.choice([0, 1, layout.cap, 1000], n), layout.cap)
    parts, rows = {}, []
    for party in layout.parties:
        values = rng.uniform(-1, 1, (n, sum(feature.party == party for feature in layout.features)))
        made = layout.quantised(
            party, values, np.ones(n, dtype=bool), counts * (2 / layout.cap) - 1, SimulatedRandomness(1)
        )
        parts[party] = made
        rows.append(made[:, : len(layout.place(party))])
    return parts, np.concatenate(rows, axis=1).astype(float)


@pytest.mark.parametrize("parties", [2, 3, 5])
def test_no_record_adds_more_than_the_sensitivity(parties: int) -> None:
    """Among caps, and coefficients up to those whose predictors leave the series, and so small that rounding is all
    there is: residuals, slopes, and variation, times rows that fill their norms."""
    made, rng = counted(parties), np.random.default_rng(parties)
    assert made.variation is not None
    largest = {"residual": 0.0, "slope": 0.0, "variation": 0.0}
    for size in (0.0, 0.3, 2.0, 30.0):
        for cap in (1, 4, 30):
            layout = chosen(made.first.layout, rng, size, cap)
            parts, rows = shared(layout, rng)
            residual = plain_terms(layout, parts).sum(axis=1)
            largest["residual"] = max(largest["residual"], np.abs(residual).max() / layout.scale)
            assert (np.linalg.norm(rows, axis=1) * np.abs(residual)).max() <= layout.delta_2
            for matrix in (made.information.layout, made.variation.layout):
                layout = chosen(matrix, rng, size, cap)
                parts, rows = shared(layout, rng)
                terms = plain_terms(layout, parts)
                upper, beside = np.triu(np.einsum("ri,rj->rij", rows, rows)), 0.0
                weight = terms.sum(axis=1)
                kind = "variation"
                if type(layout) is NoisyInformation:
                    assert np.all(terms[:, 0] == layout.scale), "presence is exact"
                    weight, beside, kind = (
                        terms[:, 1:].sum(axis=1),
                        (layout.gamma**2 // COUNTED) * layout.scale,
                        "slope",
                    )
                largest[kind] = max(largest[kind], np.abs(weight).max() / layout.scale)
                added = np.sqrt((upper**2).sum(axis=(1, 2)) * weight.astype(float) ** 2 + beside**2)
                assert added.max() <= layout.delta_2
    assert 0.99 < largest["residual"] <= made.first.layout.largest_residual
    assert 0.6 < largest["slope"] <= made.information.layout.largest_slope
    assert 0.98 < largest["variation"] <= made.variation.layout.largest_variation


def test_a_count_in_a_round_is_the_cut_one_less_its_mean() -> None:
    """Rounding at random has no bias: over many records of the same kind, the mean residual is y - m(eta)."""
    layout = chosen(counted(n=4000).first.layout, np.random.default_rng(0), 0.0, 6)
    for intercept, count in ((-3.0, 0), (0.5, 4), (2.5, 6)):
        layout = replace(layout, coefficients=(intercept, *layout.coefficients[1:]))
        n, everyone = layout.facts.n, np.ones(layout.facts.n, dtype=bool)
        parts = {
            party: layout.quantised(
                party,
                np.zeros((n, sum(feature.party == party for feature in layout.features))),
                everyone,
                np.full(n, count / 3 - 1),
                SimulatedRandomness(2),
            )
            for party in layout.parties
        }
        unit = {party: np.zeros((n, len(layout.place(party))), dtype=np.int64) for party in layout.parties}
        unit[layout.response_party][:, 0] = 1
        mean = 6 * distribution(np.array([intercept - math.log(6)]), 6)[0]
        assert 6 * plain_score(layout, parts, unit)[0] / layout.scale / n == pytest.approx(count - mean, abs=2e-3)


def test_a_cap_that_is_none_of_the_plans_is_refused() -> None:
    layout = counted(largest=20).first.layout
    for cap in (0, 9, 21, 64):
        with pytest.raises(UnsafeRequest, match="the cap of a round"):
            layout.with_chosen(cap=cap)
    logistic = PrivateGeneralizedFit(*shape(), names=("x0", "x1", "k", "x2", "y"), epsilon=1.0, delta=1e-6)
    with pytest.raises(UnsafeRequest, match="the cap of a round"):
        logistic.first.layout.with_chosen(cap=2)
    own = {name: getattr(logistic.information.layout, name) for name in ("facts", "roster", "response", "columns")}
    variation = counted().variation
    assert variation is not None
    with pytest.raises(BadArguments, match="that of a count"):
        replace(variation.layout, **own, family="binomial").check()


def test_the_sensitivity_of_the_counts_is_reached_and_not_exceeded() -> None:
    layout = counted(n=1).first.layout
    there = np.array([True])
    for count in (0, 1, 7, 9, 30):
        told = UnitSums(layout, "p0").exact(np.ones((1, 1)), there, np.array([count]), SimulatedRandomness(4))
        assert np.linalg.norm(told) == pytest.approx(UnitSums(layout, "p0").delta_2)
    away = UnitSums(layout, "p0").exact(np.ones((1, 1)), ~there, np.array([3]), SimulatedRandomness(4))
    assert not away.any()


def test_the_whole_fit_costs_what_was_asked() -> None:
    made = counted()
    assert made.variation is not None
    assert 0.99 < guarantee(made.releases(1), delta=1e-6, relation="zero-out").epsilon <= 1.0
    assert made.variation.layout.mu < 2**90


def of_law(weights: np.ndarray, noise: float = 0.0, seed: int = 0) -> Counts:
    """20,000 records with these probabilities of 0, 1, ..."""
    starts = edges(len(weights) - 1)
    records = 20_000 * np.add.reduceat(weights, starts)
    return Counts(
        starts, len(weights) - 1, records + noise * np.random.default_rng(seed).normal(size=len(starts)), noise
    )


def test_the_cap_leaves_next_to_nothing_beyond_it() -> None:
    """Of Poisson and negative binomial counts with noise; heavier tails are cut later, and none beyond its domain."""
    values, caps = np.arange(101), bounded_mean("poisson", 100).caps
    laws = {"light": poisson.pmf(values, 2.0), "heavy": nbinom.pmf(values, 1, 1 / 3), "rare": poisson.pmf(values, 0.05)}
    found = {}
    for name, weights in laws.items():
        told = of_law(weights, noise=20.0)
        found[name] = told.cap(caps, lambda cap: 10.0 * cap)
        beyond = 20_000 * float(weights @ np.maximum(values - found[name], 0))
        assert beyond <= EXCESS * told.deviation(10.0 * found[name])
        assert told.mean == pytest.approx(float(weights @ values), rel=0.1)
    assert found["rare"] < found["light"] < found["heavy"] < 40
    narrow = of_law(laws["heavy"][:7] / laws["heavy"][:7].sum())
    assert narrow.cap(bounded_mean("poisson", 6).caps, lambda cap: 0.1 * cap) == 6


def test_variation_is_what_was_opened_where_that_is_certain_and_information_where_it_is_not() -> None:
    rng = np.random.default_rng(0)
    information = np.cov(rng.normal(size=(5, 50)))
    apart = np.cov(rng.normal(size=(5, 50)) * 3)
    assert steadied(apart, information, 0.0) == pytest.approx(apart, rel=0.3)
    unsure = steadied(2 * information + rng.normal(size=(5, 5)), information, 10.0)
    ratio = unsure / information
    assert ratio == pytest.approx(np.full((5, 5), ratio[0, 0]))
    assert ratio[0, 0] >= 1
    assert steadied(-information, information, 0.0) == pytest.approx(information / 2), "never below, and not negative"
