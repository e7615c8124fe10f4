"""Error bars: the combining rule, the ready estimators, and draws that spread as a repetition of the release would."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
from scipy import stats

from colonnade.data.column import Column, Columns
from colonnade.errors import BadArguments, NotEstimable
from colonnade.statistics.cells import cells
from colonnade.statistics.marginals import Marginal
from colonnade.synthesis.copula.model import GaussianCopula
from colonnade.synthesis.copula.uncertainty import CopulaNoise
from colonnade.synthesis.field.fit import Measurement, fit
from colonnade.synthesis.field.graph import triangulate
from colonnade.synthesis.field.sample import FieldSampler
from colonnade.synthesis.field.uncertainty import FieldNoise, field_quality
from colonnade.synthesis.inference import combined, contrast, logistic, mean, ols, quantile, share
from colonnade.synthesis.table import SyntheticTable


def test_the_combining_rule() -> None:
    """Draws 1, 2, 3 around a fit of 1.5: the estimate is 3 - 2, its variance 4/3 of theirs, with 2 degrees of
    freedom."""
    table = combined(1.5, [1.0, 2.0, 3.0], level=0.9)
    error = np.sqrt(4 / 3)
    half = stats.t.ppf(0.95, 2) * error
    np.testing.assert_allclose(table.to_numpy()[0], [1.0, error, 1.0 - half, 1.0 + half])
    with pytest.raises(BadArguments, match="at least 2 draws"):
        combined(1.0, [1.0])
    with pytest.raises(NotEstimable):
        combined(1.0, [1.0, np.nan])


def test_ready_estimators_agree_with_other_code() -> None:
    import statsmodels.api as sm

    rng = np.random.default_rng(1)
    x, g = rng.normal(size=2000), rng.integers(0, 3, 2000)
    y = 1 + 2 * x - 0.5 * (g == 2) + rng.normal(size=2000)
    z = rng.random(2000) < 1 / (1 + np.exp(-(0.3 + x)))
    level = pd.Categorical.from_codes(g, ["a", "b", "c"])
    frame = pd.DataFrame({"x": x, "y": y, "g": level, "z": pd.Categorical.from_codes(z.astype(int), ["no", "yes"])})
    design = np.column_stack([np.ones(2000), x, g == 1, g == 2]).astype(float)
    np.testing.assert_allclose(ols("y", ["x", "g"])(frame), sm.OLS(y, design).fit().params)
    reference = sm.Logit(z.astype(float), design[:, :2]).fit(disp=0).params
    np.testing.assert_allclose(logistic("z", ["x"])(frame), reference, atol=1e-6)
    assert list(ols("y", ["x", "g"])(frame).index) == ["intercept", "x", "g[b]", "g[c]"]
    assert mean("y")(frame) == pytest.approx(y.mean())
    assert share("g", "b")(frame) == pytest.approx((g == 1).mean())
    assert quantile("x", 0.3)(frame) == pytest.approx(np.quantile(x, 0.3, method="inverted_cdf"))
    assert contrast("y", "g", "a", "c")(frame) == pytest.approx(y[g == 0].mean() - y[g == 2].mean())


# --- draws ------------------------------------------------------------------------------------------------------------

N = 2000
CHANCES = np.array([[0.3, 0.1, 0.05], [0.05, 0.2, 0.3]])
PAIR = Columns(
    [
        Column(name="a", kind="binary", categories=("no", "yes")),
        Column(name="b", kind="categorical", categories=("x", "y", "z")),
    ]
)
GRAPH = triangulate({"a": 2, "b": 3}, [("a", "b")])


def measured(rng: np.random.Generator, sd: float) -> tuple[Measurement, ...]:
    """A cohort's table with noise."""
    exact = rng.multinomial(N, CHANCES.ravel()).reshape(2, 3)
    return (Measurement(("a", "b"), exact + sd * rng.standard_normal((2, 3)), sd),)


def test_draws_of_a_field_spread_as_repetitions_do() -> None:
    """The sd of a share over 40 draws of one release, and over 40 releases: noise and sampling, within 40 %."""

    def fitting(graph, tables):  # type: ignore[no-untyped-def]
        return fit(graph, tables, total=float(N), iterations=100)

    rng = np.random.default_rng(2)
    repeated = [fitting(GRAPH, measured(rng, 40.0)).marginal(("a",))[1] / N for _ in range(40)]
    tables = measured(rng, 40.0)
    sampler = FieldSampler(PAIR, {name: cells(column, bins=3) for name, column in PAIR.items()}, fitting(GRAPH, tables))
    noise = FieldNoise(sampler, tables, 100, 0.0)
    drawn = [noise(rng).field.marginal(("a",))[1] / N for _ in range(40)]
    assert 0.6 < np.std(drawn) / np.std(repeated) < 1.6
    without = np.sqrt(0.55 * 0.45 / N)
    assert np.std(drawn) > 1.5 * without, "sampling alone would be much less"


def test_the_error_of_a_field_is_estimated_from_noisy_tables_alone() -> None:
    """Over 30 releases the estimated squared distance is that from the cohort, on average, though each table was fitted
    to; without the divergence it would be far below."""
    ratios = []
    for seed in range(30):
        rng = np.random.default_rng(seed)
        exact = rng.multinomial(N, CHANCES.ravel()).reshape(2, 3).astype(float)
        tables = (Measurement(("a", "b"), exact + 60 * rng.standard_normal((2, 3)), 60.0),)

        def fitting(graph, tables):  # type: ignore[no-untyped-def]
            return fit(graph, tables, total=float(N), iterations=150)

        field = fitting(GRAPH, tables)
        quality = field_quality(field, tables, (), fitting, seed=seed)
        assert quality is not None
        true = ((field.marginal(("a", "b")) - exact) ** 2).sum() * 6 / (2 * np.pi) / N**2
        ratios.append((quality.figures["2-way distance"] ** 2, true))
    estimated, true = np.mean(ratios, axis=0)
    assert 0.6 < estimated / true < 1.5


def test_draws_of_a_copula_spread_as_its_noise_says() -> None:
    """Noise of .02 in a covariance is .063 in a correlation (slope 1 / pi); sampling of 4,000 rows adds .01."""
    columns = Columns([Column(name=name, kind="continuous", lower=0, upper=1) for name in ("a", "b", "c")])
    line = Marginal(np.linspace(0, 1, 33), np.linspace(0, 1, 33))
    correlation = np.array([[1.0, 0.5, -0.3], [0.5, 1.0, 0.0], [-0.3, 0.0, 1.0]])
    copula = GaussianCopula(columns, dict.fromkeys(columns, line), correlation)
    noise = CopulaNoise(
        copula,
        np.full((3, 3), 0.02),
        np.full((3, 3), 4000.0),
        dict.fromkeys(columns, 40.0),
        np.arange(3),
        4000,
    )
    rng = np.random.default_rng(3)
    drawn = [noise(rng) for _ in range(60)]
    spread = np.std([each.correlation for each in drawn], axis=0)
    assert 0.045 < spread[0, 2] < 0.085
    assert abs(np.mean([each.correlation[0, 1] for each in drawn]) - 0.5) < 0.03
    middle = [float(each.marginals["a"].quantile(0.5)) for each in drawn]
    assert 0.7 < np.std(middle) / np.hypot(0.01, np.sqrt(0.25 / 4000)) < 1.4, "noise of a rank, and sampling"


def test_a_table_gives_intervals_and_says_what_they_are_valid_for() -> None:
    rng = np.random.default_rng(4)

    def fitting(graph, tables):  # type: ignore[no-untyped-def]
        return fit(graph, tables, total=float(N), iterations=100)

    tables = measured(rng, 20.0)
    public = {name: cells(column, bins=3) for name, column in PAIR.items()}
    sampler = FieldSampler(PAIR, public, fitting(GRAPH, tables))
    table = SyntheticTable(
        method="synthesize",
        cohort=N,
        model=sampler,
        rows=N,
        seed=1,
        cost="",
        simulated=True,
        redrawn=FieldNoise(sampler, tables, 100, 0.0),
    )
    interval = table.analyse(share("a", "yes"), draws=10).loc["estimate"]
    assert interval["lower"] < 0.55 < interval["upper"]
    assert interval["standard_error"] > np.sqrt(0.25 / N)
    assert len(next(table.draws(1))) == 4 * N
    assert "was measured" in table.valid_for(("a", "b"))
    apart = triangulate({"a": 2, "b": 3}, [("a",), ("b",)])
    field = fit(apart, [Measurement(("a",), np.array([9.0, 1.0]), 1.0)], total=10.0, iterations=20)
    lacking = FieldSampler(PAIR, public, field)
    assert "may be off" in lacking.left_out(("a", "b"))
    off = replace(table, model=lacking)
    with pytest.warns(UserWarning, match="may be off"):
        withheld = off.analyse(lambda rows: float(((rows["a"] == "yes") & (rows["b"] == "x")).mean()), draws=2)
    assert withheld[["standard_error", "lower", "upper"]].isna().all(axis=None)
    assert np.isfinite(withheld.loc["estimate", "estimate"])
    own = off.analyse(lambda rows: float((rows["a"] == "yes").mean()), draws=2, columns=("a",))
    assert np.isfinite(own.to_numpy()).all()
    rows = table.sample(500, where={"b": ["x", "z"], "a": "yes"})
    assert set(rows["a"]) == {"yes"}
    assert set(rows["b"]) == {"x", "z"}
    bare = SyntheticTable(method="vcds", cohort=N, model=sampler, rows=N, seed=1, cost="", simulated=True)
    with pytest.raises(BadArguments, match="no error bars"):
        bare.analyse(share("a", "yes"))
