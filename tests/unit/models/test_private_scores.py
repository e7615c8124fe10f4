"""Noisy scores: what bounds a residual and a row, what a round may ask, and what follows from the units."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
from scipy.special import expit
from sklearn.linear_model import LogisticRegression

from colonnade.errors import BadArguments, UnsafeRequest
from colonnade.models.glm.attacks import plain_score
from colonnade.models.glm.bounded import TOLERANCE
from colonnade.models.glm.expansion import LARGEST_LOG_ODDS, Expansion
from colonnade.models.glm.private import (
    STEPS,
    NoisyScores,
    PrivateScores,
    Units,
    UnitSums,
    descent,
    noiseless_scores,
    units_of,
)
from colonnade.privacy.accounting import guarantee
from colonnade.privacy.randomness import SimulatedRandomness
from support.shapes import shape


def layout_for(parties: int = 3, n: int = 400) -> NoisyScores:
    facts, roster = shape(parties, n)
    names = [name for own in facts.columns.values() for name in own if name != "y"]
    return noiseless_scores(facts, roster, response="y", columns=names, rounds=8)


def at(layout: NoisyScores, coefficients: np.ndarray, **changes: object) -> NoisyScores:
    width = layout.width - 1
    equal = (math.sqrt(1 / (1 + len(layout.parties))) * (1 - 1e-9),) * (1 + len(layout.parties))
    chosen = {"centres": (0.0,) * width, "units": (1.0,) * width, "norms": equal} | changes
    return layout.with_chosen(coefficients=tuple(map(float, coefficients)), **chosen)


def records(layout: NoisyScores, rng: np.random.Generator) -> dict[str, np.ndarray]:
    values = {}
    for party in layout.parties:
        own = [feature for feature in layout.features if feature.party == party]
        rows = rng.uniform(-1, 1, (layout.facts.n, len(own)))
        indicators = [place for place, feature in enumerate(own) if feature.category is not None]
        if indicators:
            codes = rng.integers(0, len(indicators) + 1, layout.facts.n)
            rows[:, indicators] = codes[:, None] == 1 + np.arange(len(indicators))
        values[party] = rows
    return values


def test_the_series_is_bounded_everywhere() -> None:
    """It is half a square wave, smoothed by the logistic density, less what is cut off: so it never exceeds 1/2 by more
    than half the tolerance, also where it is no logistic function any more."""
    for reach in (1.0, 12.0, LARGEST_LOG_ODDS):
        series = Expansion("binomial", -reach, reach, TOLERANCE)
        points = np.linspace(-3 * series.half_period, 3 * series.half_period, 20_001)
        values = np.sin(points[:, None] * series.frequencies) @ series.amplitudes
        assert np.abs(values).max() <= 0.5 + TOLERANCE / 2
        inside = np.abs(points) <= reach
        assert np.abs(values - (expit(points) - 0.5))[inside].max() <= TOLERANCE
        assert np.all(series.amplitudes <= 2 / (math.pi * np.round(series.frequencies * series.half_period / math.pi)))


@pytest.mark.parametrize("parties", [2, 3, 5, 6])
def test_no_residual_exceeds_the_bound(parties: int) -> None:
    """Among coefficients up to those whose predictors leave the series, and so small that rounding is all there is. The
    row (1, 0, ...) of the constant shows r itself."""
    layout, rng = layout_for(parties), np.random.default_rng(parties)
    largest = 0.0
    for size in (0.01, 1.0, 30.0, 300.0):
        chosen = at(layout, size * rng.normal(size=layout.width))
        event = np.where(rng.random(layout.facts.n) < 0.5, 1, -1)
        everyone = np.ones(layout.facts.n, dtype=bool)
        parts = {
            party: chosen.quantised(party, rows, everyone, event, SimulatedRandomness(1))
            for party, rows in records(layout, rng).items()
        }
        for place in range(layout.facts.n):
            one = {party: part[place : place + 1] for party, part in parts.items()}
            unit = {p: np.zeros((1, len(layout.place(p))), dtype=np.int64) for p in layout.parties}
            unit[layout.response_party][0, 0] = 1
            largest = max(largest, abs(int(plain_score(chosen, one, unit)[0])) / layout.scale)
    assert 1.0 < largest <= layout.largest_residual, "rounding exceeds 1, and the bound counts it"


def test_rows_are_never_longer_than_gamma() -> None:
    layout, rng = layout_for(), np.random.default_rng(0)
    values = records(layout, rng)
    for unit in (1e-3, 1.0, 1e3):
        chosen = at(layout, np.zeros(layout.width), units=(unit,) * (layout.width - 1))
        parts = [
            chosen.quantised(
                p,
                values[p],
                np.ones(layout.facts.n, dtype=bool),
                np.ones(layout.facts.n, dtype=np.int64),
                SimulatedRandomness(2),
            )[:, : len(layout.place(p))]
            for p in layout.parties
        ]
        assert np.square(np.concatenate(parts, axis=1)).sum(axis=1).max() <= layout.gamma**2


def test_the_size_of_what_is_dealt_does_not_depend_on_coefficients() -> None:
    """These come from the coordinator; they are no public facts."""
    layout, rng = layout_for(), np.random.default_rng(0)
    everyone, event = np.ones(layout.facts.n, dtype=bool), np.ones(layout.facts.n, dtype=np.int64)
    for party, rows in records(layout, rng).items():
        sizes = {
            chosen.quantised(party, rows, everyone, event, SimulatedRandomness(1)).shape
            for size in (0.0, 0.1, 10.0, 2.0**20)
            for chosen in [at(layout, np.full(layout.width, size))]
        }
        assert len(sizes) == 1


def test_beyond_the_reach_of_the_series_a_part_is_clipped_to_it() -> None:
    """One party's log-odds of 10^6 are certainty, and no other value of the periodic series."""
    layout = layout_for()
    other, *_ = layout.others
    values = {
        p: np.zeros((layout.facts.n, len(layout.place(p)) - (p == layout.response_party))) for p in layout.parties
    }
    values[other][:, 0] = 1.0
    everyone, event = np.ones(layout.facts.n, dtype=bool), np.ones(layout.facts.n, dtype=np.int64)
    for sign in (1, -1):
        coefficients = np.zeros(layout.width)
        coefficients[layout.place(other)[0]] = sign * 1e6
        chosen = at(layout, coefficients)
        parts = {p: chosen.quantised(p, rows, everyone, event, SimulatedRandomness(1)) for p, rows in values.items()}
        unit = {p: np.zeros((layout.facts.n, len(layout.place(p))), dtype=np.int64) for p in layout.parties}
        unit[layout.response_party][0, 0] = 1
        residual = plain_score(chosen, parts, unit)[0] / layout.scale
        assert residual == pytest.approx(0.0 if sign > 0 else 1.0, abs=0.02)  # of an event


def test_a_record_without_the_response_counts_for_nothing() -> None:
    layout, rng = layout_for(), np.random.default_rng(0)
    chosen = at(layout, rng.normal(size=layout.width))
    nobody, event = np.zeros(layout.facts.n, dtype=bool), np.ones(layout.facts.n, dtype=np.int64)
    everyone = ~nobody
    parts = {
        party: chosen.quantised(
            party, rows, nobody if party == layout.response_party else everyone, event, SimulatedRandomness(3)
        )
        for party, rows in records(layout, rng).items()
    }
    rows = {party: part[:, : len(layout.place(party))] for party, part in parts.items()}
    assert not plain_score(chosen, parts, rows).any()


def test_a_round_with_longer_rows_or_other_shapes_is_refused() -> None:
    layout = layout_for()
    with pytest.raises(UnsafeRequest, match="longer than the noise"):
        at(layout, np.zeros(layout.width), norms=(0.8, 0.5, 0.3, 0.2))
    with pytest.raises(UnsafeRequest, match="out of range"):
        at(layout, np.full(layout.width, 2.0**21))
    with pytest.raises(UnsafeRequest, match="needs a coefficient"):
        at(layout, np.zeros(layout.width - 1))
    with pytest.raises(BadArguments, match="turn is one of them"):
        layout.with_chosen(turn=8)


def test_the_sensitivity_of_the_units_is_reached_and_not_exceeded() -> None:
    """A record at the corner: every number at an end of its range, one category, the event."""
    layout = layout_for(n=1)
    for party in layout.parties:
        shape = UnitSums(layout, party)
        own = [feature for feature in layout.features if feature.party == party]
        corner = np.array([[1.0 if feature.category in (None, 2) else 0.0 for feature in own]])
        told = shape.exact(corner, np.array([True]), np.array([True]), SimulatedRandomness(4))
        assert np.linalg.norm(told) == pytest.approx(shape.delta_2)
        for seed in range(20):
            rng = np.random.default_rng(seed)
            inside = records(layout, rng)[party]
            assert (
                np.linalg.norm(shape.exact(inside, np.array([True]), np.array([True]), SimulatedRandomness(seed)))
                <= shape.delta_2
            )


def units_for(layout: NoisyScores, values: dict[str, np.ndarray], event: np.ndarray, mu: int = 0) -> Units:
    told = {
        p: UnitSums(layout, p).exact(values[p], event != 0, event > 0, SimulatedRandomness(5)) for p in layout.parties
    }
    return units_of(layout, told, dict.fromkeys(told, mu))


def test_units_are_means_and_deviations_and_rare_categories_are_left_out() -> None:
    layout, rng = layout_for(n=4000), np.random.default_rng(1)
    values = records(layout, rng)
    event = np.where(rng.random(4000) < 0.3, 1, -1)
    table = np.zeros((4000, layout.width - 1))
    for party in layout.parties:
        table[:, [place - 1 for place in layout.place(party) if place]] = values[party]
    units = units_for(layout, values, event)
    assert units.centres == pytest.approx(table.mean(axis=0), abs=1e-3)
    assert units.variances == pytest.approx(table.var(axis=0), abs=2e-3)
    assert units.balance == pytest.approx(np.mean(event > 0), abs=1e-3)
    assert np.sum(units.norms**2) == pytest.approx(1.0)
    noisy = units_for(layout, values, event, mu=int((0.1 * STEPS * 4000) ** 2 / 2))
    category = np.array([feature.category is not None for feature in layout.features])
    assert not noisy.variances[category].any(), "a sixth of the records is less than two deviations, of 0.2"
    assert not noisy.scales[category].any()
    assert noisy.variances[~category].all()


def test_the_descent_ends_at_maximum_likelihood() -> None:
    """Without noise and with many rounds: scikit-learn's fit without a penalty, although rows are clipped."""
    layout, rng = replace(layout_for(n=3000), rounds=64), np.random.default_rng(2)
    values = records(layout, rng)
    table = np.zeros((3000, layout.width - 1))
    for party in layout.parties:
        table[:, [place - 1 for place in layout.place(party) if place]] = values[party]
    true = np.array([1.5, -1.0, 0.8, -0.5, 0.3, 0.2, -0.7, 0.4])[: layout.width - 1]
    event = np.where(rng.random(3000) < expit(table @ true - 0.4), 1, -1)
    units = units_for(layout, values, event)
    shown = (table - units.centres) * units.scales
    for party, norm in zip(layout.parties, units.norms[1:] * units.length, strict=True):
        mine = [place - 1 for place in layout.place(party) if place]
        shown[:, mine] *= np.minimum(1, norm / np.maximum(np.linalg.norm(shown[:, mine], axis=1, keepdims=True), 1e-9))
    rows = np.column_stack([np.ones(3000), shown])
    assert (
        np.mean(np.linalg.norm(shown, axis=1) < np.linalg.norm((table - units.centres) * units.scales, axis=1) - 1e-9)
        > 0.5
    )

    def score(point: np.ndarray) -> np.ndarray:
        return rows.T @ ((event > 0) - expit(point[0] + table @ point[1:]))

    intercept, coef = descent(layout, units, score)
    fitted = LogisticRegression(C=1e9, max_iter=10_000, tol=1e-9).fit(table, event)
    # Both solve an equation that is right on average, with other weights: they differ by sampling error.
    errors = 2 / np.sqrt(3000 * 0.2 * table.var(axis=0))
    assert np.all(np.abs(coef - fitted.coef_[0]) < errors)
    assert np.abs(score(np.append(intercept, coef))).max() < 1e-3 * 3000
    assert abs(intercept - fitted.intercept_[0]) < 0.3


def test_all_releases_together_cost_what_was_asked() -> None:
    facts, roster = shape()
    made = PrivateScores(
        facts,
        roster,
        response="y",
        columns=("x0", "x1", "k", "x2"),
        epsilon=1.0,
        delta=1e-6,
        view="client",
        relation="zero-out",
    )
    assert 0.99 < guarantee(made.releases(1), delta=1e-6, relation="zero-out").epsilon <= 1.0
    assert guarantee(made.releases(0), delta=1e-6, relation="zero-out").epsilon < 0.9
    assert made.layout.mu < 2**90
