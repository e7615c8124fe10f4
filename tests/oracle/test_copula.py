"""The copula of Synthesize: with the noise switched off against the pooled table, and with difficult data."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from scipy import optimize, special, stats

from colonnade.data.column import Column, Columns
from colonnade.errors import BadArguments, BadPrivacyParameter, UnknownColumn
from colonnade.federation.catalogue import CATALOGUE
from colonnade.federation.coordinator import Federation
from colonnade.federation.method import NoEstimate
from colonnade.privacy.accounting import guarantee
from colonnade.synthesis.copula.procedure import CopulaReleases, default_clip
from colonnade.synthesis.method import Synthesize
from support.small import COLUMNS, committee_of, computing_by, three_parties

EXACT = ("presence", "exact-marginals", "exact-moments")
NAMES = ("height", "weight", "income", "visits", "sued", "rating", "sector")
DECLARED = Columns(
    [
        Column(name="height", kind="continuous", lower=-6.0, upper=6.0),
        Column(name="weight", kind="continuous", lower=0.0, upper=60.0),
        Column(name="income", kind="count", lower=0, upper=5000),
        Column(name="visits", kind="count", lower=0, upper=9),
        Column(name="sued", kind="binary", categories=("no", "yes")),
        Column(name="rating", kind="ordinal", categories=("C", "B", "A")),
        Column(name="sector", kind="categorical", categories=("farming", "trade")),
    ]
)
OWNERS = {"first": ["height", "sued", "sector"], "second": ["weight", "rating"], "third": ["income", "visits"]}
UNCLIPPED = {party: math.sqrt(len(names)) for party, names in OWNERS.items()}


def latent_correlation() -> np.ndarray:
    return np.array(
        [[1 - 0.08 * abs(i - j) if i == j else 0.6 - 0.08 * abs(i - j) for i in range(7)] for j in range(7)]
    )


def pooled_table(n: int = 6000, seed: int = 3) -> pd.DataFrame:
    """Every kind of column from one latent normal law; a lognormal one, and a rare yes."""
    rng = np.random.default_rng(seed)
    z = rng.standard_normal((n, 7)) @ np.linalg.cholesky(latent_correlation()).T
    return pd.DataFrame(
        {
            "id": [f"K{i:05d}" for i in range(n)],
            "height": np.clip(z[:, 0], -6, 6),
            "weight": np.clip(np.exp(z[:, 1]), 0, 60),
            "income": np.clip(np.rint(900 + 300 * z[:, 2]), 0, 5000).astype(int),
            "visits": np.clip(np.floor(3 + 1.5 * z[:, 3]), 0, 9).astype(int),
            "sued": np.where(z[:, 4] > special.ndtri(0.85), "yes", "no"),
            "rating": np.array(["C", "B", "A"])[(z[:, 5] > -0.5).astype(int) + (z[:, 5] > 0.8)],
            "sector": np.where(z[:, 6] > 0.2, "trade", "farming"),
        }
    )


def federation(tmp_path: Path, table: pd.DataFrame, **options: Any) -> Federation:
    blocks = {party: table[["id", *names]] for party, names in OWNERS.items()}
    options.setdefault("columns", DECLARED)
    return three_parties(tmp_path, blocks=blocks, **options)


def in_order(result: Any, names: list[str]) -> list[int]:
    """Places of the columns in a result, which goes party by party."""
    order = list(result.model.columns)
    return [order.index(name) for name in names]


def tetrachoric(first: np.ndarray, second: np.ndarray) -> float:
    """r at which two normal variables fall below both thresholds as often as the table shows (scipy's own integral)."""
    low = special.ndtri([np.mean(~first), np.mean(~second)])
    both = float(np.mean(~first & ~second))
    return float(
        optimize.brentq(lambda r: stats.multivariate_normal(cov=[[1, r], [r, 1]]).cdf(low) - both, -0.99, 0.99)
    )


@pytest.fixture(scope="module")
def exact(tmp_path_factory: pytest.TempPathFactory, engine: str) -> Any:
    """One exact run over all kinds of columns."""
    table = pooled_table()
    given = computing_by(engine, {party: table[["id", *names]] for party, names in OWNERS.items()})
    clip = {party: math.sqrt(len(block.columns) - 1) for party, block in given["blocks"].items()}
    with three_parties(tmp_path_factory.mktemp("exact"), columns=DECLARED, allow=EXACT, seed=1, **given) as parties:
        return table, Synthesize(model="copula", epsilon=None, clip=clip, gamma=2**14).fit(parties)


def test_continuous_columns_have_the_pooled_correlation(exact: Any) -> None:
    """Against pooled Spearman correlations, r = 2 sin(pi rho / 6): the same estimator, so what is left is 511 knots,
    repair and rounding: 0.003. Against pooled normal scores: another estimator of r, whose sampling error differs by
    less than 0.03 at n = 6,000 (6 standard deviations of about 0.005)."""
    table, result = exact
    names = ["height", "weight", "income"]
    found = result.model.correlation[np.ix_(in_order(result, names), in_order(result, names))]
    spearman = 2 * np.sin(np.pi / 6 * table[names].corr("spearman").to_numpy())
    assert np.abs(found - spearman).max() < 0.003
    normal = np.corrcoef(special.ndtri(table[names].rank().to_numpy() / (len(table) + 1)).T)
    assert np.abs(found - normal).max() < 0.03


def test_two_binary_columns_have_the_pooled_tetrachoric_correlation(exact: Any) -> None:
    """The covariance of two binary scores is a function of P(0, 0) alone, so the bridge must give the tetrachoric
    correlation, but for its 256 terms."""
    table, result = exact
    a, b = in_order(result, ["sued", "sector"])
    expected = tetrachoric((table["sued"] == "yes").to_numpy(), (table["sector"] == "trade").to_numpy())
    assert result.model.correlation[a, b] == pytest.approx(expected, abs=0.003)


def test_all_kinds_come_near_the_latent_truth(exact: Any) -> None:
    """6 standard errors of a latent correlation: for two binary columns 0.02 at n = 6,000, otherwise less."""
    _, result = exact
    places = in_order(result, list(NAMES))
    assert np.abs(result.model.correlation[np.ix_(places, places)] - latent_correlation()).max() < 0.12


def test_fresh_rows_have_the_pooled_marginals(exact: Any) -> None:
    """Kolmogorov's distance between 6,000 pooled and 40,000 fresh rows: below 0.04 with probability 1 - 1e-6; the
    knots of the lognormal column add less than 0.02."""
    table, result = exact
    fresh = result.sample(40_000)
    for name, column in DECLARED.items():
        ours, theirs = column.encode(fresh[name]).astype(float), column.encode(table[name]).astype(float)
        assert stats.ks_2samp(ours, theirs).statistic < 0.06, name
    joined = fresh.merge(table, on=list(NAMES), how="inner")
    continuous = fresh.merge(table, on=["height"], how="inner")
    assert continuous.empty
    assert joined.empty, "no row of the cohort is released"


def test_clipping_leaves_the_correlations_alone(exact: Any, tmp_path: Path, engine: str) -> None:
    """The default clip shortens some rows; what it takes from the variances is put back."""
    table, result = exact
    with federation(tmp_path, table, allow=EXACT, seed=1, **committee_of(engine)) as parties:
        clipped = Synthesize(model="copula", epsilon=None, gamma=2**14).fit(parties)
    places = [np.ix_(in_order(fit, list(NAMES)), in_order(fit, list(NAMES))) for fit in (clipped, result)]
    assert np.abs(clipped.model.correlation[places[0]] - result.model.correlation[places[1]]).max() < 0.03
    assert [default_clip(p) ** 2 / p for p in (1, 3)] == pytest.approx([1.0, 0.652], abs=1e-3)


# --- missing blocks ----------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def missing_at_random(tmp_path_factory: pytest.TempPathFactory, engine: str) -> Any:
    """`second` lacks the records with a small height."""
    table = pooled_table(8000, seed=5)
    seen = np.random.default_rng(1).random(8000) < special.expit(0.5 + 1.5 * table["height"])
    blocks = {party: table[["id", *names]] for party, names in OWNERS.items()}
    blocks["second"] = blocks["second"][seen.to_numpy()]
    given = computing_by(engine, blocks)
    with three_parties(tmp_path_factory.mktemp("mar"), columns=DECLARED, allow=EXACT, seed=1, **given) as parties:
        yield parties, int(seen.sum())


AT_RANDOM, COMPLETELY = "missing at random", "missing completely at random"


@pytest.mark.parametrize(
    ("engine", "options", "mode", "right_if"),
    [
        ("holders", {"presence": "secret"}, "pairs", [COMPLETELY]),
        ("holders", {"presence": "secret", "correlation": "pairs"}, "pairs", [COMPLETELY]),
        ("holders", {"presence": "known", "correlation": "pairs"}, "pairs", [COMPLETELY]),
        ("holders", {"presence": "known", "correlation": "em"}, "em", [AT_RANDOM]),
        ("holders", {"presence": "known"}, "em", [AT_RANDOM, COMPLETELY]),
        ("holders", {"presence": "known", "epsilon": 0.1, "delta": 1e-5}, "pairs", [AT_RANDOM, COMPLETELY]),
        ("pair", {"presence": "secret"}, "pairs", [COMPLETELY]),
        ("pair", {"presence": "known", "correlation": "em"}, "em", [AT_RANDOM]),
    ],
    indirect=["engine"],
    ids=["secret", "secret-pairs", "known-pairs", "known-em", "auto-exact", "auto-noisy", "in-pairs", "in-pairs-em"],
)
def test_what_is_said_about_missing_data_is_what_happens(
    missing_at_random: Any, options: dict[str, Any], mode: str, right_if: list[str]
) -> None:
    """Under missing at random EM finds the median of log weight in the cohort (0, with standard error 0.013), and pairs
    keep that of the records that `second` has. What the method says it is right for must be what it is right for; what
    depends on the noise must be said to."""
    parties, seen = missing_at_random
    exact = {"epsilon": None, "clip": UNCLIPPED, "gamma": 2**14}
    method = Synthesize(model="copula", **{**exact, **options})
    said = method.missing_data()
    assert [words for words in (AT_RANDOM, COMPLETELY) if words in said] == right_if
    assert parties.plan(method).missing_data == said
    result = method.fit(parties)
    assert result.details["correlation"] == mode
    if method.epsilon is not None:
        assert "noise is small enough" in said
        return
    assert result.details["records present"]["second"] == seen
    median = float(np.log(np.maximum(result.sample(60_000)["weight"], 1e-3)).median())
    if mode == "em":
        assert abs(median) < 0.06
        assert AT_RANDOM in said
    else:
        assert median > 0.15
        assert AT_RANDOM not in said


def test_records_of_a_pattern_that_is_not_declared_are_left_out(tmp_path: Path, engine: str) -> None:
    """The method says so; and values that only such records have change nothing."""
    table = pooled_table(600, seed=5)
    results = []
    for number, moved in enumerate((False, True)):
        blocks = {party: table[["id", *names]].copy() for party, names in OWNERS.items()}
        blocks["third"] = blocks["third"].iloc[:400]
        if moved:  # of records that third lacks: heights and weights change places with each other
            order = np.random.default_rng(2).permutation(200) + 400
            blocks["second"].loc[400:, ["weight", "rating"]] = blocks["second"][["weight", "rating"]].to_numpy()[order]
        method = Synthesize(
            model="copula", epsilon=None, presence="known", correlation="em", patterns=((True, True, True),)
        )
        assert "Records of a pattern that is not declared are left out." in method.missing_data()
        given = computing_by(engine, blocks)
        with three_parties(tmp_path / str(number), columns=DECLARED, allow=EXACT, seed=1, **given) as parties:
            results.append(method.fit(parties).model.correlation)
    assert np.abs(results[0] - results[1]).max() < 1e-3, "but for the rounding of scores, which the seed's plan decides"


# --- privacy, as planned -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("relation", ["zero-out", "replace"])
def test_the_plan_costs_what_was_asked_for(tmp_path: Path, relation: Any, engine: str) -> None:
    with three_parties(tmp_path, **committee_of(engine)) as parties:
        method = Synthesize(model="copula", epsilon=2.0, delta=1e-5, relation=relation)
        plan = parties.plan(method)
        total = plan.total(relation=relation).epsilon
        assert 1.9 < total <= 2.0
        known = parties.plan(Synthesize(model="copula", epsilon=2.0, delta=1e-5, relation=relation, presence="known"))
        assert math.isinf(known.total().epsilon), "the mask that others see has no bound"
        marginals, moments = CopulaReleases(method, parties.facts, parties.roster).costs(1)
        alone = guarantee([marginals], delta=1e-5, relation=relation).epsilon
        assert 0.2 < alone < 0.8, "a tenth of 1 / noise^2 is about a third of epsilon"
        assert guarantee([moments], delta=1e-5, relation=relation).epsilon < total
        text = plan.text()
        for words in (
            "Forecast",
            "shares less than all records",
            "WARNING",
            "Client view (accounted)",
            "Server view",
            "declared order: sector",
        ):
            assert words in text


def test_more_for_the_marginals_is_less_for_the_moments(tmp_path: Path, engine: str) -> None:
    with three_parties(tmp_path, **committee_of(engine)) as parties:
        few, many = (
            CopulaReleases(Synthesize(model="copula", epsilon=1.0, marginal_share=share), parties.facts, parties.roster)
            for share in (0.1, 0.5)
        )
    assert many.sigma < few.sigma
    assert many.layout.mu > few.layout.mu
    # 1 / noise^2 is shared: 0.9 to 0.5 for the moments.
    assert math.sqrt(many.layout.mu / few.layout.mu) == pytest.approx(math.sqrt(0.9 / 0.5), rel=0.02)


# --- difficult data ----------------------------------------------------------------------------------------------


def test_a_column_with_one_category_is_constant_and_correlated_with_nothing(tmp_path: Path, engine: str) -> None:
    table = pooled_table(600).assign(sector="farming")
    with federation(tmp_path, table, allow=EXACT, seed=1, **committee_of(engine)) as parties:
        result = Synthesize(model="copula", epsilon=None).fit(parties)
    (place,) = in_order(result, ["sector"])
    assert np.delete(result.model.correlation[place], place) == pytest.approx(0.0, abs=1e-9)
    assert set(result.sample(500)["sector"]) == {"farming"}


def test_a_declared_single_category_is_legal(tmp_path: Path, engine: str) -> None:
    columns = Columns(
        [
            *(one for one in DECLARED.values() if one.name != "sector"),
            Column(name="sector", kind="categorical", categories=("farming",)),
        ]
    )
    table = pooled_table(400).assign(sector="farming")
    with federation(tmp_path, table, columns=columns, seed=1, **committee_of(engine)) as parties:
        result = Synthesize(model="copula", epsilon=50.0, delta=1e-5).fit(parties)
    assert set(result.sample(50)["sector"]) == {"farming"}


def test_two_records_are_too_few_to_say_anything(tmp_path: Path, engine: str) -> None:
    with federation(tmp_path, pooled_table(2), seed=1, **committee_of(engine)) as parties:
        result = Synthesize(model="copula", epsilon=1.0).fit(parties, sure=True)
    assert isinstance(result, NoEstimate)
    assert "leave them out" in result.reason


def test_two_records_without_noise_are_a_table(tmp_path: Path, engine: str) -> None:
    with federation(tmp_path, pooled_table(2), seed=1, allow=EXACT, **committee_of(engine)) as parties:
        fresh = Synthesize(model="copula", epsilon=None, presence="known", rows=20).fit(parties).sample()
    for name, column in DECLARED.items():
        column.encode(fresh[name])
    assert len(fresh) == 20


def test_a_party_with_few_records_is_named(tmp_path: Path, engine: str) -> None:
    """At epsilon 1 the noise of a presence count is about 10, and `third` has one record."""
    table = pooled_table(3000)
    blocks = {party: table[["id", *names]] for party, names in OWNERS.items()}
    blocks["third"] = blocks["third"].iloc[:1]
    with three_parties(tmp_path, columns=DECLARED, seed=1, **computing_by(engine, blocks)) as parties:
        result = Synthesize(model="copula", epsilon=1.0).fit(parties)
    assert isinstance(result, NoEstimate)
    assert "'third' seems to have" in result.reason


def test_noise_never_leaves_the_domains(tmp_path: Path, engine: str) -> None:
    """Three parties of 45 records each, with noise far larger than any count would be at epsilon 1."""
    with three_parties(tmp_path, seed=4, allow=("presence",), **committee_of(engine)) as parties:
        for presence in ("secret", "known"):
            result = Synthesize(model="copula", epsilon=30.0, delta=1e-3, rows=300, presence=presence).fit(parties)
            for name, column in COLUMNS.items():
                column.encode(result.sample()[name])
            assert len(result.sample()) == 300


# --- options and errors ------------------------------------------------------------------------------------------


def test_options_there_and_back() -> None:
    method = Synthesize(
        model="copula",
        epsilon=0.5,
        delta=1e-7,
        rows=10,
        columns=("age", "sued"),
        marginal_share=0.2,
        clip={"clinic": 0.9},
        presence="known",
        correlation="em",
        patterns=((True, True), (True, False)),
        file_format="csv",
        view="server",
        relation="replace",
    )
    assert CATALOGUE.make("synthesize", method.options()) == method
    assert Synthesize.from_options(Synthesize().options()) == Synthesize()


@pytest.mark.parametrize(
    ("options", "error", "says"),
    [
        ({"epsilon": 0.0}, BadPrivacyParameter, "epsilon must be positive"),
        ({"delta": 0.0}, BadPrivacyParameter, "delta above 0"),
        ({"marginal_share": 1.0}, BadArguments, "marginal_share"),
        ({"rows": 0}, BadArguments, "rows must be"),
        ({"presence": "ignore"}, BadArguments, "presence must be"),
        ({"correlation": "magic"}, BadArguments, "correlation must be"),
        ({"correlation": "em"}, BadArguments, 'choose presence="known"'),
        ({"columns": "age"}, BadArguments, "columns is a list"),
        ({"file_format": "xlsx"}, BadArguments, "format must be"),
        ({"view": "all"}, BadArguments, "view must be"),
        ({"patterns": ((True, True),)}, BadArguments, 'choose presence="known"'),
        ({"model": "copula", "cells": 8}, BadArguments, "cells has no meaning with model='copula'"),
        ({"presence": "known", "cells": 8}, BadArguments, "presence belongs to the copula and cells to the field"),
        ({"model": "field", "presence": "known"}, BadArguments, "presence has no meaning with model='field'"),
    ],
)
def test_wrong_options_are_refused_at_once(options: Any, error: Any, says: str) -> None:
    with pytest.raises(error, match=says):
        Synthesize(**options)


def test_what_the_facts_do_not_allow_is_refused_in_the_plan(tmp_path: Path, engine: str) -> None:
    with three_parties(tmp_path, **committee_of(engine)) as parties:
        with pytest.raises(UnknownColumn):
            parties.plan(Synthesize(model="copula", columns=("nobody",)))
        with pytest.raises(BadPrivacyParameter, match="none of the columns"):
            parties.plan(Synthesize(model="copula", clip={"stranger": 1.0}))
        with pytest.raises(BadPrivacyParameter, match="positive norm"):
            parties.plan(Synthesize(model="copula", clip={"clinic": -1.0}))


def test_point_masses_and_a_wide_range_come_back(tmp_path: Path, engine: str) -> None:
    """60 % zeros at a correlation of 0.6 with a lognormal column on nine declared decades, epsilon 3. Oracle: the
    shares, the median and the correlation that the rows were drawn with."""
    rng = np.random.default_rng(8)
    n = 8000
    z = rng.standard_normal((n, 2)) @ np.linalg.cholesky(np.array([[1.0, 0.6], [0.6, 1.0]])).T
    hours = np.where(z[:, 0] < special.ndtri(0.6), 0.0, np.clip(10 * np.exp(z[:, 0] / 2), 0, 168))
    income = np.clip(np.exp(10 + 0.8 * z[:, 1]), 0, 1e9)
    keys = np.arange(n)
    blocks = {
        "work": pd.DataFrame({"id": keys, "hours": hours}),
        "tax": pd.DataFrame({"id": keys, "income": income}),
        "court": pd.DataFrame({"id": keys, "sued": rng.choice(["no", "yes"], n)}),
    }
    columns = Columns(
        [
            Column(name="hours", kind="continuous", lower=0.0, upper=168.0),
            Column(name="income", kind="continuous", lower=0.0, upper=1e9),
            Column(name="sued", kind="binary", categories=("no", "yes")),
        ]
    )
    with three_parties(tmp_path, columns=columns, seed=5, **computing_by(engine, blocks)) as federation:
        table = Synthesize(model="copula", epsilon=3.0, delta=1e-6).fit(federation)
    rows = table.sample(20_000)
    assert (rows["hours"] == 0).mean() == pytest.approx(0.6, abs=0.03)
    assert rows["income"].median() == pytest.approx(np.median(income), rel=0.1)
    assert table.model.correlation[0, 1] == pytest.approx(0.6, abs=0.05)  # type: ignore[attr-defined]
    assert "point masses at 0" in table.details["columns"]["hours"]
