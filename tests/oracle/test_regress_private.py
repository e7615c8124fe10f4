"""A private regression: its estimator against closed forms, differences, simulation; its releases against pooled ones.

Oracles: statsmodels where nothing is missing; central differences of the estimator for the noise part of the errors;
the spread over simulated samples for the sampling part; pooled columns for what a federation releases.
"""

from __future__ import annotations

import importlib
import itertools
import math
import re
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
    FLOOR,
    ROUGH,
    FactoredMoments,
    factors,
    influences,
    regression,
    roughness,
    sound,
)
from colonnade.models.linear.gaussian import Coefficients
from colonnade.models.linear.private import PrivateFit
from colonnade.models.linear.propensity import fitted_logit
from colonnade.models.linear.regress import Regress
from colonnade.models.linear.result import NOT_VALID, Regression
from colonnade.models.linear.selection import AS_NOISY, CAPS, NEGLIGIBLE, Weighing, caps, near_normal
from colonnade.models.linear.simulator import CLIPPING_ERROR, Simulated, simulate
from colonnade.models.private_scales import Clipping
from colonnade.privacy.accounting import guarantee
from colonnade.statistics.gaussian_em import correlation_of
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


def statistics(
    rows: Array,
    there: Array,
    weights: Array | None = None,
    *,
    products: int = 0,
    gram_sd: float = 0.0,
    own_sd: float = 0.0,
    weighted_sd: float = 0.0,
) -> FactoredMoments:
    """Exact moments of rows (w1, y, products, a1, a2, b1); the stated deviations are those of noise that is not
    there."""
    counted = there if weights is None else there * weights
    joined = np.column_stack([np.ones(len(rows)), rows])
    head, places = 3 + products, (slice(3 + products, 5 + products), slice(5 + products, 6 + products))
    own = joined[:, :head]
    gram = np.zeros((joined.shape[1], joined.shape[1]))
    for heavy, place in zip(counted.T, places, strict=True):
        gram[:head, place] = (own * heavy[:, None]).T @ joined[:, place]
        gram[place, place] = (joined[:, place] * heavy[:, None]).T @ joined[:, place]
    gram[places[0], places[1]] = (joined[:, places[0]] * there.prod(axis=1)[:, None]).T @ joined[:, places[1]]
    gram = np.triu(gram) + np.triu(gram, 1).T
    patterns = [own[(there == np.array(mask)).all(axis=1)] for mask in MASKS]
    return FactoredMoments(
        (*NAMES[:2], *(f"p{number}" for number in range(products)), *NAMES[2:]),
        head - 1,
        (2, 1),
        gram,
        MASKS,
        tuple(one.T @ one for one in patterns),
        tuple((own * heavy[:, None]).T @ own for heavy in counted.T),
        gram_sd,
        own_sd,
        weighted_sd,
        products,
    )


def some_weights(rows: Array) -> Array:
    """Functions of the holder's columns alone, between 0 and 1."""
    return np.column_stack([expit(0.5 - rows[:, 0]), expit(0.3 * rows[:, 1])])


def sampling(data: FactoredMoments, rows: Array, there: Array, weights: Array) -> Array:
    values = influences(data, rows, there.astype(bool), weights, TARGET)
    return np.asarray(np.cov(values.T) * len(rows))


def test_nothing_missing_and_no_noise_is_ordinary_least_squares() -> None:
    """Also with weights, and with a product among the holder's columns. Errors from influences are robust ones."""
    rows, there = sample(800, np.random.default_rng(0))
    there = np.ones_like(there)
    covariates = [0, 2, 3, 4]
    ols = sm.OLS(rows[:, TARGET], sm.add_constant(rows[:, covariates])).fit()
    law, found = regression(statistics(rows, there), TARGET)
    np.testing.assert_allclose(found.params, ols.params, rtol=1e-9)
    assert found.sigma2 == pytest.approx(ols.scale)
    assert found.rsquared == pytest.approx(ols.rsquared)
    np.testing.assert_allclose(law.mu, rows.mean(axis=0))
    np.testing.assert_allclose(law.sigma, np.cov(rows.T, ddof=0))
    extended = np.insert(rows, 2, rows[:, 0] * rows[:, 1], axis=1)
    np.testing.assert_allclose(regression(statistics(extended, there, products=1), TARGET)[1].params, ols.params)
    errors = np.sqrt(np.diag(sampling(statistics(rows, there), rows, there, np.ones_like(there))))
    np.testing.assert_allclose(errors, ols.get_robustcov_results("HC0").bse, rtol=2e-3)


def test_right_weights_give_the_moments_of_all_records_whatever_their_law() -> None:
    """A curved x given w with a changing variance, missing by y, and the inverse of its chance as weight: the moments
    of (w, x) are those of all records. Without weights they are many of their errors away."""
    rng = np.random.default_rng(8)
    w = rng.normal(size=(200_000, 2))
    x = (w[:, 1] ** 2 + np.exp(w[:, 1] / 2) * rng.normal(size=len(w)))[:, None]
    rows = np.column_stack([w, x, rng.normal(size=len(w)), rng.normal(size=len(w))])
    chance = expit(0.8 * np.clip(w[:, 1], -2, 2))
    there = np.column_stack([rng.random(len(w)) < chance, np.ones(len(w), dtype=bool)])
    inverse = np.column_stack([0.1 / chance, np.ones(len(w))])
    whole = np.cov(rows.T, ddof=0)
    weighted, plain = (factors(statistics(rows, there, own)).sigma for own in (inverse, None))
    assert abs(weighted[2, 2] / whole[2, 2] - 1) < 0.02
    assert abs(weighted[1, 2] - whole[1, 2]) < 0.04
    assert abs(plain[2, 2] / whole[2, 2] - 1) > 0.05
    assert abs(plain[1, 2] - whole[1, 2]) > 0.2


def test_the_noise_part_is_the_derivative_of_the_estimate() -> None:
    """Central differences of the coefficients in every entry that carries noise: blocks missing, weights, a product
    among the holder's columns, means not 0."""
    rows, there = sample(600, np.random.default_rng(1))
    rows = np.insert(rows + 0.7, 2, rows[:, 0] * rows[:, 1], axis=1)
    data = statistics(rows, there, some_weights(rows), products=1, gram_sd=2.0, own_sd=0.5, weighted_sd=0.8)
    h, head = 1e-3, 4

    def moved(change: Callable[[float], FactoredMoments]) -> Array:
        up, down = (regression(change(step), TARGET)[1].params for step in (h, -h))
        return np.outer(up - down, up - down) / (2 * h) ** 2

    def at(size: int, i: int, j: int) -> Array:
        unit = np.zeros((size, size))
        unit[i, j] = unit[j, i] = 1.0
        return unit

    def one_of(parts: tuple[Array, ...], number: int, change: Array) -> tuple[Array, ...]:
        return tuple(part + change * (place == number) for place, part in enumerate(parts))

    expected = np.zeros((5, 5))
    for i, j in itertools.combinations_with_replacement(range(7), 2):
        if j >= head:
            entry = at(7, i, j)
            expected += moved(lambda step, e=entry: replace(data, gram=data.gram + step * e)) * data.gram_sd**2
    for i, j in itertools.combinations_with_replacement(range(head), 2):
        entry = at(head, i, j)
        for m in range(4):
            expected += (
                moved(lambda step, e=entry, m=m: replace(data, own=one_of(data.own, m, step * e))) * data.own_sd**2
            )
        for a in range(2):
            expected += (
                moved(lambda step, e=entry, a=a: replace(data, weighted=one_of(data.weighted, a, step * e)))
                * data.weighted_sd**2
            )
    np.testing.assert_allclose(regression(data, TARGET)[1].cov, expected, rtol=1e-5, atol=1e-9 * expected.max())


@pytest.mark.parametrize("mechanism", ["mcar", "mar"])
def test_the_sampling_part_is_the_spread_over_samples(mechanism: str) -> None:
    """150 samples of 2,000 from fixed seeds: a deviation is known to 6 %, its mean over 5 coefficients to about 3 %; a
    bias of a third of a standard error is 4 sd of the mean."""
    params, errors = [], []
    for run in range(150):
        rows, there = sample(2000, np.random.default_rng([2, run]), mechanism=mechanism)
        weights = some_weights(rows)
        data = statistics(rows, there, weights)
        params.append(regression(data, TARGET)[1].params)
        errors.append(np.sqrt(np.diag(sampling(data, rows, there, weights))))
    ratio = np.mean(errors, axis=0) / np.std(params, axis=0, ddof=1)
    assert 0.87 < ratio.mean() < 1.13
    assert np.all(np.abs(np.mean(params, axis=0) - TRUTH) < np.mean(errors, axis=0) / 3)


def test_the_influence_of_a_record_is_the_derivative_of_the_estimate() -> None:
    """Against the coefficients with a small part of one more record."""
    rows, there = sample(600, np.random.default_rng(1))
    rows = rows + 0.7
    weights = some_weights(rows)
    data, h = statistics(rows, there, weights), 1e-4
    found = influences(data, rows[:5], there[:5].astype(bool), weights[:5], TARGET)
    for number in range(5):
        own = statistics(rows[[number]], there[[number]], weights[[number]])
        up, down = (
            regression(
                replace(
                    data,
                    gram=data.gram + part * own.gram,
                    own=tuple(m + part * one for m, one in zip(data.own, own.own, strict=True)),
                    weighted=tuple(m + part * one for m, one in zip(data.weighted, own.weighted, strict=True)),
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
    everywhere = np.ones((len(rows), 2))
    uncut = statistics(scaled, there)
    whole = regression(uncut, TARGET)[1]
    error = np.sqrt(np.diag(sampling(uncut, scaled, there, everywhere)))
    data = statistics(clipped, there)
    law, raw = regression(data, TARGET)
    laws = [Marginal(np.sort(column), np.linspace(0, 1, len(scaled))) for column in scaled.T]
    head = np.column_stack([np.ones(len(rows)), clipped[:, :2]])
    logits = np.array([fitted_logit(head, mask.astype(bool), None) for mask in there.T])
    weighing = Weighing((), (), logits, there.mean(axis=0), np.ones(2))
    simulated = simulate(data, clipping, weighing, laws, TARGET)
    back = simulated.corrected(raw, np.delete(law.mu, TARGET))
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
        sampling=np.zeros((3, 3)),
        mu=none,
        sigma=np.zeros((3, 3)),
        sigma2=0.0,
        unmatched=0.0,
        noise=np.diag([0.0, 1.0, 9.0]),
    )
    raw = Coefficients(("a", "b"), np.array([0.0, 5.0, 5.0]), 0.01 * eye, 1.0, 0.5)
    back = simulated.corrected(raw, np.zeros(2))
    np.testing.assert_allclose(back.params, [0.0, 5.0 - 0.75 * 2, 5.0])
    part = (CLIPPING_ERROR * 2) ** 2
    np.testing.assert_allclose(np.diag(back.cov), [0.01, 0.01 + part + 0.75**2 + 0.5**2, 0.01 + part + 2.0**2])


def test_moments_of_no_table_are_repaired_by_no_more_than_it_takes() -> None:
    """Correlations beyond 1 between a1 and a2: all are multiplied by the same number, at which the smallest eigenvalue
    is the floor; means and variances stay. Moments that are sound come back as they are."""
    rows, there = sample(2000, np.random.default_rng(4))
    data = replace(statistics(rows, there, gram_sd=1.0, own_sd=1.0), response="y")
    assert roughness(data, factors(data)) < 0.1
    rough = roughness(replace(data, gram_sd=100.0), factors(data))
    assert rough == pytest.approx(100 * roughness(data, factors(data)))
    assert rough > ROUGH
    same, none = sound(data)
    assert same is data
    assert not none
    spoiled = data.gram.copy()
    spoiled[3, 4] = spoiled[4, 3] = spoiled[3, 3] * 1.1
    planted = replace(data, gram=spoiled)
    repaired, repair = sound(planted)
    before, after = factors(planted), factors(repaired)
    assert np.linalg.eigvalsh(before.sigma)[0] < 0
    assert set(repair.close) <= {"a1", "a2"}
    assert len(repair.close) == 1
    np.testing.assert_allclose(after.mu, before.mu)
    np.testing.assert_allclose(np.diag(after.sigma), np.diag(before.sigma))
    correlations = [correlation_of(law.sigma) for law in (before, after)]
    apart = ~np.eye(5, dtype=bool)
    np.testing.assert_allclose(correlations[1][apart], (1 - repair.shrunk) * correlations[0][apart])
    assert np.linalg.eigvalsh(correlations[1])[0] == pytest.approx(FLOOR)
    found = regression(repaired, TARGET)[1]
    expected = np.linalg.solve(np.delete(np.delete(after.sigma, 1, 0), 1, 1), np.delete(after.sigma[:, 1], 1))
    np.testing.assert_allclose(found.params[1:], expected)
    assert np.all(np.linalg.eigvalsh(found.cov) > 0)


def test_what_noise_hides_is_named_and_a_hidden_response_has_no_estimate() -> None:
    rows, there = sample(2000, np.random.default_rng(4))
    data = replace(statistics(rows, there, gram_sd=1.0, own_sd=1.0), response="y")
    negative = replace(data, gram=data.gram - 2 * np.diag(np.diag(data.gram)))
    repaired, repair = sound(negative)
    assert repair.hidden == ("a1", "a2", "b1")
    assert np.isfinite(regression(repaired, TARGET)[1].params).all()
    repaired, repair = sound(replace(data, weighted=tuple(-own for own in data.weighted)))
    assert repair.holder
    assert np.isfinite(regression(repaired, TARGET)[1].params).all()
    own = data.own[0].copy()
    own[1, 2] = own[2, 1] = 3 * data.total()[1, 1]
    repaired, repair = sound(replace(data, own=(own, *data.own[1:])))
    assert repair.holder
    assert np.linalg.eigvalsh(correlation_of(factors(repaired).sigma))[0] == pytest.approx(FLOOR)
    with pytest.raises(NotEstimable, match="the response 'y' hardly varies"):
        sound(replace(data, gram_sd=5000.0))


def test_parties_apart_count_as_unrelated() -> None:
    """One from the response: the others' coefficients are those without it. Two from each other: unrelated given w."""
    rows, there = sample(4000, np.random.default_rng(6))
    data = replace(statistics(rows, there), response="y")
    repaired, repair = sound(data, [(0, 0), (0, 1)])
    assert repair.apart == ((0, 0), (0, 1))
    assert repair.shrunk == 0
    found = regression(repaired, TARGET)[1]
    assert found.names == ("w1", "a1", "a2", "b1")
    kept = np.array([0, 1, 2, 5])
    without = replace(
        data,
        names=("w1", "y", "b1"),
        widths=(1,),
        gram=data.gram[np.ix_(kept, kept)],
        masks=((False,), (True,)),
        own=(data.own[0] + data.own[2], data.own[1] + data.own[3]),
        weighted=data.weighted[1:],
    )
    np.testing.assert_allclose(found.params[[0, 1, 4]], regression(without, TARGET)[1].params)
    np.testing.assert_allclose(found.params[[2, 3]], 0.0, atol=1e-9)
    apart, plain = (factors(sound(data, pairs)[0]) for pairs in ([(0, 1)], []))
    np.testing.assert_allclose(apart.residual[:2, 2], 0.0, atol=1e-9)
    np.testing.assert_allclose(apart.residual[:2, :2], plain.residual[:2, :2])
    np.testing.assert_allclose(apart.slopes, plain.slopes)


# --- how far records are weighted -------------------------------------------------------------------------


def chosen_cap(noise: float, *, straight: bool = False, slope: float = 1.2) -> float:
    """Of one block that half of 20,000 records have by a standard normal column."""
    total = 20_000 * np.eye(2)
    return caps(total, [10_000.0], np.array([[0.0, slope]]), logit_sd=1.0, noise=[noise * 0.01], straight=[straight])[0]


def test_weights_are_a_trade_of_selection_and_noise() -> None:
    """`noise` in sampling errors. Without any, the cap is the smallest that cuts a fiftieth of the weights; with more
    it falls to the least; with very much, with columns that are normal, and without selection nothing is weighted."""
    free = chosen_cap(0.0)
    z = np.random.default_rng(0).normal(size=200_000)
    weight = 0.5 / expit(1.2 * z)

    def cut(cap: float) -> float:
        return 1 - float(np.minimum(weight, cap) @ expit(1.2 * z)) / float(weight @ expit(1.2 * z))

    assert cut(free) < NEGLIGIBLE < cut(CAPS[CAPS.index(free) - 1])
    found = [chosen_cap(noise) for noise in (0.0, 0.1, 0.2, 0.3, 1.0, 3.0, 5.0)]
    assert found[:-1] == sorted(found[:-1], reverse=True)
    assert found[-3:] == [CAPS[0], CAPS[0], 1.0]
    kept = float(np.minimum(weight, found[2]) @ expit(1.2 * z)) / float(expit(1.2 * z).sum()) / found[2]
    assert 0.2 / kept <= AS_NOISY
    assert chosen_cap(0.0, straight=True) == chosen_cap(0.0, slope=0.1) == 1.0


def test_normal_columns_are_known_by_their_distribution() -> None:
    rng = np.random.default_rng(0)
    normal = rng.normal(size=4000)
    shapes = {"normal": normal, "skewed": np.exp(normal), "binary": np.sign(normal), "constant": 0 * normal}
    found = {
        name: near_normal(Marginal(np.sort(values), np.linspace(0, 1, len(values)))) for name, values in shapes.items()
    }
    assert found == {"normal": True, "skewed": False, "binary": False, "constant": False}


# --- over a federation ------------------------------------------------------------------------------------

COLUMNS = Columns(
    [Column(name=name, kind="continuous", lower=-12.0, upper=12.0) for name in ("w1", "y", "a1", "a2")]
    + [Column(name="b1", kind="continuous", lower=-30.0, upper=30.0)]
)
HELD = {"holder": ["w1", "y"], "A": ["a1", "a2"], "B": ["b1"]}


@contextmanager
def opened(path: Path, engine: str, *, strangers: int = 0) -> Iterator[tuple[Federation, dict[str, Array]]]:
    """6,000 records of the response holder; `strangers` are others, which A and B have, and of another kind."""
    rows, there = sample(6000, np.random.default_rng(5))
    apart = np.tile([0.0, 0.0, 3.0, -3.0, -3.0], (strangers, 1))
    rows, there = np.vstack([rows, apart]), np.vstack([there, np.ones((strangers, 2), dtype=bool)])
    frame = pd.DataFrame(rows, columns=list(NAMES)).assign(id=[f"P{i:05d}" for i in range(len(rows))])
    present = {"holder": np.arange(len(rows)) < 6000, "A": there[:, 0], "B": there[:, 1]}
    blocks = {party: frame.loc[present[party], ["id", *names]] for party, names in HELD.items()}
    pooled = {name: np.where(present[party], frame[name], np.nan) for party, names in HELD.items() for name in names}
    folders, given = {"home": path / "home", "runs": path / "runs"}, computing_by(engine, blocks)
    with Federation.local(**given, key="id", columns=COLUMNS, allow=("presence",), **folders) as federation:
        yield federation, pooled


@pytest.fixture(scope="module")
def parties(tmp_path_factory: pytest.TempPathFactory, engine: str) -> Iterator[tuple[Federation, dict[str, Array]]]:
    with opened(tmp_path_factory.mktemp("private"), engine) as federation:
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
    expected = made.result(released(made, pooled, np.random.default_rng(0), noise=False))
    np.testing.assert_allclose(result.params, expected.params, atol=0.1 * expected.bse.min())
    np.testing.assert_allclose(result.bse, expected.bse, rtol=0.01)
    assert list(result.params.index) == list(expected.params.index)
    assert np.all(np.abs(result.params[["const", "w1", "a1", "a2", "b1"]] - TRUTH) < 4.5 * result.bse)
    text = " ".join(result.summary().split())
    assert "privacy noise together" in text
    assert "the presence mask held fixed" in text
    assert (run.path / "result.json").exists()


def test_records_that_the_response_holder_lacks_do_not_count(tmp_path: Path, engine: str) -> None:
    """A tenth more records at A and B alone, far from the others: within the errors of the truth all the same. Counted
    in the products of A and B they would leave no estimate."""
    with opened(tmp_path, engine, strangers=600) as (federation, _):
        result = Regress(response="y", epsilon=1e8, delta=1e-6).fit(federation)
    assert np.all(np.abs(result.params[["const", "w1", "a1", "a2", "b1"]] - TRUTH) < 4.5 * result.bse)
    assert result.nobs == 6000


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
    without = calm.result(released(calm, pooled, np.random.default_rng(0), noise=False))
    assert np.mean(result.bse / without.bse) > 1  # the constant's alone may come out below
    assert 0 < result.nobs <= result.cohort == 6000
    assert "Complete cases are not drawn: what was released" in result.view().figures()["coefficients"].caption
    # The noise of a count: patterns are disjoint, and the count of all records is the sum over four.
    of_all, of_pattern = result.count_sd
    assert of_all == pytest.approx(2 * of_pattern)
    first = {"holder": "w1", "A": "a1", "B": "b1"}
    there = np.column_stack([~np.isnan(pooled[first[party]]) for party in result.parties])
    for mask, count in result.patterns:
        assert abs(count - (there == mask).all(axis=1).sum()) < 5 * of_pattern + 1
    assert any(remark.startswith("Complete cases are not estimated") for remark in result.remarks)


def test_normal_columns_cost_no_noise_for_weights(
    parties: tuple[Federation, dict[str, Array]], released: Callable[..., Any]
) -> None:
    """Blocks missing by the response, but jointly normal columns: standard errors at epsilon 40 are well below three
    times those without noise, where caps that grow with the noise had them."""
    federation, pooled = parties
    made, calm = (shape(Regress(response="y", epsilon=epsilon), federation) for epsilon in (40.0, 1e8))
    without = calm.result(released(calm, pooled, np.random.default_rng(0), noise=False), draws=8000)
    for seed in range(3):
        told = released(made, pooled, np.random.default_rng(seed))
        assert list(told.weighing.caps) == [1.0, 1.0]
        result = made.result(told, draws=8000)
        assert not result.verdict
        assert np.mean(result.bse / without.bse) < 2


def test_moments_that_noise_spoiled_give_an_estimate_that_says_so(
    parties: tuple[Federation, dict[str, Array]], released: Callable[..., Any]
) -> None:
    """Planted: a correlation beyond 1, a variance below 0, a party with hardly a record, and moments of the response
    holder's that no table has. Each is named, with what would work."""
    federation, pooled = parties
    made = shape(Regress(response="y", epsilon=40.0), federation)
    told = released(made, pooled, np.random.default_rng(1))
    data = told.data
    a1, a2, b1 = (1 + data.names.index(name) for name in ("a1", "a2", "b1"))

    def spoiled(*entries: tuple[int, int, float], **others: Any) -> Regression:
        gram = data.gram.copy()
        for i, j, value in entries:
            gram[i, j] = gram[j, i] = value
        result = made.result(replace(told, data=replace(data, gram=gram, **others)), draws=4000)
        assert result.verdict.startswith(f"{NOT_VALID}: these are estimates without valid intervals")
        assert np.isfinite(result.params).all()
        assert np.all(result.bse > 0)
        assert "without valid intervals" in result.summary().splitlines()[0]
        return result

    close = spoiled((a1, a2, 1.2 * data.gram[a1, a1])).verdict
    assert re.search(
        r"columns 'a[12]' are nearly determined by others beside the noise; all correlations were made", close
    )
    assert re.search(r"smaller\. Leave out 'a[12]' with columns=\.$", close), "noise did not do that"
    noisy = spoiled((a1, a2, 1.2 * data.gram[a1, a1]), gram_sd=5 * data.gram_sd).verdict
    assert re.search(r"Leave out 'a[12]' with columns= or allow epsilon = \d+\.$", noisy)
    assert "columns 'b1' hardly vary" in spoiled((b1, b1, -data.gram[b1, b1])).verdict
    few = tuple(own * (0.001 if mask[1] else 1.0) for mask, own in zip(data.masks, data.own, strict=True))
    result = spoiled(own=few, weighted=(data.weighted[0], 0.001 * data.weighted[1]))
    assert "records with the response are at 'B', and" in result.verdict
    assert "leave a party out with columns=" in result.verdict
    assert abs(result.params["b1"]) < 0.1  # what the correction for clipping moves
    assert (
        "moments of the response holder's columns are those of no table"
        in spoiled(weighted=tuple(own - 0.9 * np.diag(np.diag(own)) for own in data.weighted)).verdict
    )
    with pytest.raises(NotEstimable, match=r"records have the response.*larger epsilon"):
        made.result(replace(told, data=replace(data, own=tuple(0.001 * own for own in data.own))))


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
    with pytest.raises(BadArguments, match="clip_quantile"):
        Regress(response="y", epsilon=1.0, clip_quantile=1.5)


def test_narrow_ranges_and_weights_change_no_sensitivity(
    parties: tuple[Federation, dict[str, Array]], tmp_path: Path
) -> None:
    federation, _ = parties
    made = shape(Regress(response="y", epsilon=1.0), federation)
    logits = ((0.0, 1.0, -1.0, 0.5, 0.0, 0.2),) * 2
    ranged = replace(made.layout, ranges={"b1": (-1.0, 1.0)}, logits=logits, shares=(0.5, 0.4), caps=(2.0, 12.0))
    ranged.check()
    assert (ranged.sensitivity, ranged.mu, ranged.size) == (made.layout.sensitivity, made.layout.mu, made.layout.size)
    with pytest.raises(BadArguments, match="cap"):
        replace(ranged, caps=(2.0, 40.0)).check()
    with pytest.raises(BadArguments, match="ranges"):
        replace(made.layout, ranges={"b1": (1.0, 1.0)}).check()
