"""A private regression: its estimator against closed forms, differences, simulation; its releases against pooled ones.

Oracles: statsmodels where nothing is missing; central differences of the estimator for the noise part of the errors;
the spread over simulated samples for the sampling part; pooled columns for what a federation releases.
"""

from __future__ import annotations

import importlib
import itertools
import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import statsmodels.api as sm
from numpy.typing import NDArray
from scipy.special import expit

from colonnade.catalogue import CATALOGUE
from colonnade.data.column import Column, Columns
from colonnade.errors import BadArguments, NotEstimable
from colonnade.federation.coordinator import Federation
from colonnade.federation.method import NoEstimate
from colonnade.models.linear.factored import (
    ROUGH,
    FactoredMoments,
    check_factors,
    factors,
    influences,
    regression,
    roughness,
)
from colonnade.models.linear.gaussian import Coefficients
from colonnade.models.linear.private import PrivateFit
from colonnade.models.linear.regress import Regress
from colonnade.models.linear.simulator import CLIPPING_ERROR, Simulated, simulate
from colonnade.models.private_scales import Clipping
from colonnade.privacy.accounting import guarantee
from colonnade.statistics.marginals import Marginal
from support.small import computing_by

Array = NDArray[np.float64]
REPOSITORY = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def released() -> Iterator[Callable[..., Any]]:
    """The study's own simulation of the releases."""
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(REPOSITORY))
        yield importlib.import_module("benchmarks.vfem_private").released


NAMES = ("w1", "y", "a1", "a2", "b1")
TRUTH = np.array([0.5, 0.8, -0.6, 0.4, 0.7])  # const, w1, a1, a2, b1
MASKS = tuple(itertools.product((False, True), repeat=2))
TARGET = 1


def sample(n: int, rng: np.random.Generator, *, mechanism: str = "mar", rate: float = 0.5) -> tuple[Array, Array]:
    """Rows of (w1, y, a1, a2, b1), correlated across parties, and who has them (A, B). MAR depends on w alone."""
    common = rng.normal(size=n)
    w1, a1, a2, b1 = (0.6 * common + 0.8 * rng.normal(size=n) for _ in range(4))
    y = TRUTH[0] + TRUTH[1] * w1 + TRUTH[2] * a1 + TRUTH[3] * a2 + TRUTH[4] * b1 + rng.normal(size=n)
    score = 0.6 * y + 0.4 * w1 - 0.3 if mechanism == "mar" else np.zeros(n)
    there = np.column_stack(
        [rng.random(n) < expit(score + math.log(1 / rate - 1)), rng.random(n) < expit(-score + math.log(1 / rate - 1))]
    )
    return np.column_stack([w1, y, a1, a2, b1]), there


def statistics(rows: Array, there: Array, *, gram_sd: float = 0.0, own_sd: float = 0.0) -> FactoredMoments:
    """Exact moments; the stated deviations are those of noise that is not there."""
    shown = np.column_stack([np.ones((len(rows), 2)), there[:, [0, 0, 1]]])
    extended = np.column_stack([np.ones(len(rows)), rows * shown])
    own = [extended[(there == np.array(mask)).all(axis=1)][:, :3] for mask in MASKS]
    return FactoredMoments(
        NAMES, 2, (2, 1), extended.T @ extended, MASKS, tuple(one.T @ one for one in own), gram_sd, own_sd
    )


def test_nothing_missing_and_no_noise_is_ordinary_least_squares() -> None:
    rows, there = sample(800, np.random.default_rng(0))
    law, found, sampling = regression(statistics(rows, np.ones_like(there)), TARGET)
    covariates = [0, 2, 3, 4]
    ols = sm.OLS(rows[:, TARGET], sm.add_constant(rows[:, covariates])).fit()
    np.testing.assert_allclose(found.params, ols.params, rtol=1e-9)
    np.testing.assert_allclose(np.sqrt(np.diag(found.cov)), ols.bse, rtol=1e-9)
    np.testing.assert_allclose(sampling, found.cov)
    assert found.sigma2 == pytest.approx(ols.scale)
    assert found.rsquared == pytest.approx(ols.rsquared)
    np.testing.assert_allclose(law.mu, rows.mean(axis=0))
    np.testing.assert_allclose(law.sigma, np.cov(rows.T, ddof=0))


def test_the_noise_part_is_the_derivative_of_the_estimate() -> None:
    """Central differences of the coefficients in every entry of every upper triangle, blocks missing, means not 0."""
    rows, there = sample(600, np.random.default_rng(1))
    data = statistics(rows + 0.7, there, gram_sd=2.0, own_sd=0.5)

    def params(moved: FactoredMoments) -> Array:
        return regression(moved, TARGET)[1].params

    expected, h = np.zeros((5, 5)), 1e-3
    for i, j in itertools.combinations_with_replacement(range(6), 2):
        step = np.zeros((6, 6))
        step[i, j] = step[j, i] = h
        up, down = (params(replace(data, gram=data.gram + sign * step)) for sign in (1, -1))
        expected += np.outer(up - down, up - down) / (2 * h) ** 2 * data.gram_sd**2
    for m, (i, j) in itertools.product(range(4), itertools.combinations_with_replacement(range(3), 2)):
        step = np.zeros((3, 3))
        step[i, j] = step[j, i] = h
        up, down = (
            params(replace(data, own=tuple(one + sign * step * (k == m) for k, one in enumerate(data.own))))
            for sign in (1, -1)
        )
        expected += np.outer(up - down, up - down) / (2 * h) ** 2 * data.own_sd**2
    _, found, sampling = regression(data, TARGET)
    np.testing.assert_allclose(found.cov - sampling, expected, rtol=1e-5, atol=1e-9 * expected.max())


@pytest.mark.parametrize("mechanism", ["mcar", "mar"])
def test_the_sampling_part_is_the_spread_over_samples(mechanism: str) -> None:
    """150 samples of 2,000 from fixed seeds: a deviation is known to 6 %, its mean over 5 coefficients to about 3 %; a
    bias of a third of a standard error is 4 sd of the mean."""
    made = [
        regression(statistics(*sample(2000, np.random.default_rng([2, run]), mechanism=mechanism)), TARGET)[1]
        for run in range(150)
    ]
    params, errors = np.array([one.params for one in made]), np.array([np.sqrt(np.diag(one.cov)) for one in made])
    ratio = errors.mean(axis=0) / params.std(axis=0, ddof=1)
    assert 0.87 < ratio.mean() < 1.13
    assert np.all(np.abs(params.mean(axis=0) - TRUTH) < errors.mean(axis=0) / 3)


def test_the_influence_of_a_record_is_the_derivative_of_the_estimate() -> None:
    """Against the coefficients with a small part of one more record."""
    rows, there = sample(600, np.random.default_rng(1))
    rows = rows + 0.7
    data, h = statistics(rows, there), 1e-4
    found = influences(data, rows[:5], there[:5].astype(bool), TARGET)
    for number in range(5):
        own = statistics(rows[[number]], there[[number]])
        up, down = (
            regression(
                replace(
                    data,
                    gram=data.gram + part * own.gram,
                    own=tuple(m + part * one for m, one in zip(data.own, own.own, strict=True)),
                ),
                TARGET,
            )[1].params
            for part in (h, -h)
        )
        np.testing.assert_allclose(found[number], (up - down) / (2 * h), rtol=1e-4, atol=1e-8)


@pytest.mark.parametrize("skewed", [False, True])
def test_what_clipping_took_is_given_back(skewed: bool) -> None:
    """A tenth of the rows and more are clipped: a bias of many standard errors falls to a third and less, and within
    3 of the errors that are told, for Gaussian and for skewed covariates."""
    rows, there = sample(60_000, np.random.default_rng(3), mechanism="mcar" if skewed else "mar")
    if skewed:
        noise = rows[:, TARGET] - TRUTH[0] - rows[:, [0, 2, 3, 4]] @ TRUTH[1:]
        rows[:, [0, 2, 3, 4]] = (np.exp(rows[:, [0, 2, 3, 4]]) - math.exp(0.5)) / 2.16
        rows[:, TARGET] = TRUTH[0] + rows[:, [0, 2, 3, 4]] @ TRUTH[1:] + noise
    clipping = Clipping(np.ones(5, dtype=bool), (0.95, 0.85, 0.7))
    scaled = (rows - [0, 0.5, 0, 0, 0]) / [2.5, 4.0, 2.5, 2.5, 2.5]
    clipped = clipping(scaled, [slice(0, 2), slice(2, 4), slice(4, 5)])
    assert 0.05 < np.mean(np.any(clipped != scaled, axis=1)) < 0.5
    _, whole, _ = regression(statistics(scaled, there), TARGET)
    error = np.sqrt(np.diag(whole.cov))
    law, raw, sampling = regression(statistics(clipped, there), TARGET)
    laws = [Marginal(np.sort(column), np.linspace(0, 1, len(scaled))) for column in scaled.T]
    simulated = simulate(statistics(clipped, there), clipping, laws, TARGET)
    back = simulated.corrected(raw, sampling, np.delete(law.mu, TARGET))
    before, after = (np.abs((fit.params - whole.params) / error) for fit in (raw, back))
    assert simulated.trusted
    assert before.max() > 4
    assert after.max() < before.max() / 3
    assert np.all(np.abs(back.params - whole.params) < 3 * np.sqrt(np.diag(back.cov)))


def test_a_bias_is_believed_as_far_as_its_noise_lets_it() -> None:
    """Of a bias b with noise variance v the part (1 - v / b^2)+ is taken away; the rest is in the standard error."""
    none, eye = np.zeros(3), np.eye(3)
    simulated = Simulated(
        clipping=np.array([0.0, 2.0, 2.0]),
        missing=none,
        response=np.eye(2),
        sampling=0.01 * eye,
        mu=none,
        sigma=np.zeros((3, 3)),
        sigma2=0.0,
        unmatched=0.0,
        noise=np.diag([0.0, 1.0, 9.0]),
    )
    raw = Coefficients(("a", "b"), np.array([0.0, 5.0, 5.0]), 0.01 * eye, 1.0, 0.5)
    back = simulated.corrected(raw, 0.01 * eye, np.zeros(2))
    np.testing.assert_allclose(back.params, [0.0, 5.0 - 0.75 * 2, 5.0])
    part = (CLIPPING_ERROR * 2) ** 2
    np.testing.assert_allclose(np.diag(back.cov), [0.01, 0.01 + part + 0.75**2 + 0.5**2, 0.01 + part + 2.0**2])


def test_noise_that_drowns_the_covariance_is_refused() -> None:
    rows, there = sample(2000, np.random.default_rng(4))
    data = statistics(rows, there, gram_sd=1.0, own_sd=1.0)
    check_factors(data, factors(data))
    assert roughness(data, factors(data)) < 0.1
    rough = roughness(replace(data, gram_sd=100.0), factors(data))
    assert rough == pytest.approx(100 * roughness(data, factors(data)))
    assert rough > ROUGH
    spoiled = data.gram.copy()
    spoiled[3, 4] = spoiled[4, 3] = spoiled[3, 3] * 1.1
    with pytest.raises(NotEstimable, match="nearly determine one another"):
        regression(replace(data, gram=spoiled), TARGET)
    with pytest.raises(NotEstimable, match="hardly vary"):
        regression(replace(data, gram=data.gram - 2 * np.diag(np.diag(data.gram))), TARGET)


# --- over a federation ------------------------------------------------------------------------------------

COLUMNS = Columns(
    [Column(name=name, kind="continuous", lower=-12.0, upper=12.0) for name in ("w1", "y", "a1", "a2")]
    + [Column(name="b1", kind="continuous", lower=-30.0, upper=30.0)]
)
HELD = {"holder": ["w1", "y"], "A": ["a1", "a2"], "B": ["b1"]}


@contextmanager
def opened(path: Path, engine: str) -> Iterator[tuple[Federation, dict[str, Array]]]:
    rows, there = sample(6000, np.random.default_rng(5))
    frame = pd.DataFrame(rows, columns=list(NAMES)).assign(id=[f"P{i:05d}" for i in range(len(rows))])
    present = {"holder": np.ones(len(rows), dtype=bool), "A": there[:, 0], "B": there[:, 1]}
    blocks = {party: frame.loc[present[party], ["id", *names]] for party, names in HELD.items()}
    pooled = {name: np.where(present[party], frame[name], np.nan) for party, names in HELD.items() for name in names}
    folders, given = {"home": path / "home", "runs": path / "runs"}, computing_by(engine, blocks)
    with Federation.local(**given, key="id", columns=COLUMNS, allow=("presence",), **folders) as federation:
        yield federation, pooled


@pytest.fixture(scope="module")
def parties(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Federation, dict[str, Array]]]:
    with opened(tmp_path_factory.mktemp("private"), "holders") as federation:
        yield federation


def shape(method: Regress, federation: Federation) -> PrivateFit:
    procedure = method.procedure(federation.facts, federation.roster)
    assert isinstance(procedure, PrivateFit)
    return procedure


def test_a_federation_releases_what_the_study_simulates(
    tmp_path: Path, engine: str, released: Callable[..., Any]
) -> None:
    """With hardly any noise (epsilon 1e8) both give the same moments, ranges and estimates, up to rounding."""
    wanted = Regress(response="y", epsilon=1e8, delta=1e-6)
    with opened(tmp_path, engine) as (federation, pooled):
        result, run = federation.run(wanted)
        made = shape(wanted, federation)
    assert made.gram_sd < 0.05
    expected = made.result(*released(made, pooled, np.random.default_rng(0), noise=False))
    np.testing.assert_allclose(result.params, expected.params, atol=0.05 * expected.bse.min())
    np.testing.assert_allclose(result.bse, expected.bse, rtol=0.01)
    assert list(result.params.index) == list(expected.params.index)
    assert np.all(np.abs(result.params[["const", "w1", "a1", "a2", "b1"]] - TRUTH) < 4.5 * result.bse)
    text = " ".join(result.summary().split())
    assert "privacy noise together" in text
    assert "the presence mask held fixed" in text
    assert (run.path / "result.json").exists()


def test_a_private_estimate_is_near_and_says_how_far(
    parties: tuple[Federation, dict[str, Array]], released: Callable[..., Any]
) -> None:
    """Integer noise of the product at epsilon 40: within 5 reported standard errors (false alarm below 1e-5 for five
    coefficients), which on the whole exceed those without noise."""
    federation, pooled = parties
    wanted = Regress(response="y", epsilon=40.0, delta=1e-6)
    result = wanted.fit(federation)
    assert np.all(np.abs(result.params[["const", "w1", "a1", "a2", "b1"]] - TRUTH) < 5 * result.bse)
    calm = shape(Regress(response="y", epsilon=1e8), federation)
    without = calm.result(*released(calm, pooled, np.random.default_rng(0), noise=False))
    assert np.mean(result.bse / without.bse) > 1  # the constant's alone may come out below
    assert 0 < result.nobs <= result.cohort == 6000
    # The noise of a count: patterns are disjoint, and the count of all records is the sum over four.
    of_all, of_pattern = result.count_sd
    assert of_all == pytest.approx(2 * of_pattern)
    first = {"holder": "w1", "A": "a1", "B": "b1"}
    there = np.column_stack([~np.isnan(pooled[first[party]]) for party in result.parties])
    for mask, count in result.patterns:
        assert abs(count - (there == mask).all(axis=1).sum()) < 5 * of_pattern + 1
    assert any(remark.startswith("Complete cases are not estimated") for remark in result.remarks)


def test_the_plan_costs_what_was_asked(parties: tuple[Federation, dict[str, Array]]) -> None:
    federation, _ = parties
    wanted = Regress(response="y", epsilon=3.0, delta=1e-5)
    plan = federation.plan(wanted)
    bounded = [leaf for cost in plan.costs() for leaf in cost.leaves() if not leaf.unbounded]
    total = guarantee(bounded, delta=1e-5).epsilon
    assert 2.99 < total <= 3.0
    names = {str(leaf["name"]) for cost in plan.costs() for leaf in cost.leaves() if leaf.unbounded}
    assert names == {"presence"}
    assert CATALOGUE.make("regress", wanted.options()) == wanted
    assert "standard errors include the noise" in plan.text()


def test_too_few_records_for_the_noise_are_refused(parties: tuple[Federation, dict[str, Array]]) -> None:
    federation, _ = parties
    result, _ = federation.run(Regress(response="y", epsilon=0.05), sure=True)
    assert isinstance(result, NoEstimate)
    assert "larger epsilon" in result.reason


def test_options_that_do_not_go_together_are_refused() -> None:
    with pytest.raises(BadArguments, match=r"missing has no meaning with epsilon=1\.0"):
        Regress(response="y", epsilon=1.0, missing="mean")
    with pytest.raises(BadArguments, match="no private fit with valid intervals"):
        Regress(response="y", epsilon=1.0, family="binomial")
    with pytest.raises(BadArguments, match="clip_quantile"):
        Regress(response="y", epsilon=1.0, clip_quantile=1.5)


def test_narrow_ranges_and_pooling_change_no_sensitivity(
    parties: tuple[Federation, dict[str, Array]], tmp_path: Path
) -> None:
    federation, _ = parties
    made = shape(Regress(response="y", epsilon=1.0), federation)
    ranged = replace(made.layout, ranges={"b1": (-1.0, 1.0)})
    assert (ranged.delta_1, ranged.delta_2, ranged.mu) == (made.layout.delta_1, made.layout.delta_2, made.layout.mu)
    with pytest.raises(BadArguments, match="ranges"):
        replace(made.layout, ranges={"nobody": (0.0, 1.0)}).check()
    with pytest.raises(BadArguments, match="ranges"):
        replace(made.layout, ranges={"b1": (1.0, 1.0)}).check()
