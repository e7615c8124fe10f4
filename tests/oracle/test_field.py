"""Tables for a Markov random field against counting the pooled records one by one: one contract for the rounds on
secret shares and for the paper's encoders; and the whole of `Synthesize(model="field")`."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from colonnade.data.column import Column, Columns
from colonnade.errors import BadArguments, BadPrivacyParameter, NotEstimable, RunError, UnboundedNotAllowed
from colonnade.federation.coordinator import Federation
from colonnade.federation.job import Job
from colonnade.federation.roster import Roster
from colonnade.papers.vertimrf.frequency_oracle import FrequencyOracle, column_bins
from colonnade.papers.vertimrf.method import Encoder
from colonnade.papers.vertimrf.sketches import FMSketches
from colonnade.synthesis.field.fit import Measurement
from colonnade.synthesis.field.procedure import FieldSynthesis, available, cell_limit, what_stood_out
from colonnade.synthesis.field.rounds import TableRounds
from colonnade.synthesis.field.schema import Schema, TableQuery
from colonnade.synthesis.inference import mean, ols, quantile, share
from colonnade.synthesis.method import Synthesize
from colonnade.synthesis.table import read_table
from support.fields import CATEGORIES, dependent_blocks
from support.plans import plan_of_stages
from support.small import COLUMNS, committee_of, computing_by, three_overlapping_blocks, three_parties

ALLOW = ("exact-tables", "fm-sketches")
N, SKETCHES, BINS = 600, 3000, 3
CUTS = {"age": [0, 20, 40, 60, 80, 100.001], "visits": [0, 2, 4, 6, 8, 10]}

Tables = Callable[[Sequence[TableQuery]], list[Measurement]]


def rounds(
    schema: Schema,
    roster: Roster,
    *,
    units: tuple[int, ...] = (40, 40),
    mus: tuple[int, ...] = (0, 0),
    view: Any = "client",
) -> TableRounds:
    return TableRounds(schema, roster, view, units=units, mus=mus)


# How far an estimate may be from the truth with the noise off: exact, exact (the reports are kept with odds e^30), and
# 6 standard deviations n / sqrt(t) of a union of sketches (144 cells in all: false alarm below 1e-6).
ENCODERS: dict[str, tuple[Callable[[Schema, Roster], TableRounds | Encoder], float]] = {
    "rounds": (rounds, 0.0),
    "fo": (partial(FrequencyOracle, epsilon=30.0, bins=BINS), 1e-6),
    "fm": (partial(FMSketches, epsilon=None, sketches=SKETCHES, bins=BINS), 6 * N / math.sqrt(SKETCHES)),
}


def counted(blocks: dict[str, pd.DataFrame], query: TableQuery) -> np.ndarray:
    """The table by brute force, key by key: a record counts if every party of the table has it."""
    values: list[dict[str, int]] = []
    sizes = []
    for name, bins in zip(query.columns, query.bins, strict=True):
        (frame,) = (frame for frame in blocks.values() if name in frame)
        if name in CUTS:
            cells = pd.cut(frame[name], CUTS[name], right=False, labels=False)
        else:
            cells = frame[name].map(CATEGORIES[name].index)
        codes = [int(cell) if bins is None else bins[int(cell)] for cell in cells]
        values.append(dict(zip(frame["id"], codes, strict=True)))
        cells_of = len(CUTS[name]) - 1 if name in CUTS else len(CATEGORIES[name])
        sizes.append(cells_of if bins is None else max(bins) + 1)
    table = np.zeros(sizes)
    for key in set.union(*(set(frame["id"]) for frame in blocks.values())):
        if all(key in column for column in values):
            table[tuple(column[key] for column in values)] += 1
    return table


@contextmanager
def opened(federation: Federation, make: Any, **options: Any) -> Iterator[tuple[Job, Schema, Any]]:
    """A job of these stages alone."""
    schema = Schema.declared(federation.facts, bins=5)
    encoder = make(schema, federation.roster, **options)
    with federation.open(plan_of_stages("vertimrf", encoder.stages)) as job:
        yield job, schema, encoder


@contextmanager
def counting(federation: Federation, make: Any) -> Iterator[tuple[Tables, Schema]]:
    """The tables that an encoder estimates, or that the first round opens."""
    with opened(federation, make) as (job, schema, encoder):
        if isinstance(encoder, TableRounds):
            yield partial(encoder.tables, job, schema, 0), schema
        else:
            yield partial(encoder.encode(job, schema).tables, records=N), schema


@pytest.fixture(scope="module")
def blocks() -> dict[str, pd.DataFrame]:
    return three_overlapping_blocks(N)


@pytest.fixture(scope="module")
def federation(tmp_path_factory: pytest.TempPathFactory, blocks: dict[str, pd.DataFrame]) -> Iterator[Federation]:
    with three_parties(tmp_path_factory.mktemp("field"), blocks=blocks, allow=ALLOW, seed=1) as consortium:
        yield consortium


Computing = tuple[Federation, dict[str, pd.DataFrame]]


@pytest.fixture(scope="module")
def computing(
    tmp_path_factory: pytest.TempPathFactory, blocks: dict[str, pd.DataFrame], engine: str
) -> Iterator[Computing]:
    """Share holders, and parties in pairs, with their blocks."""
    given = computing_by(engine, blocks)
    with three_parties(tmp_path_factory.mktemp("rounds"), allow=ALLOW, seed=1, **given) as consortium:
        yield consortium, given["blocks"]


# --- one contract ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ENCODERS)
def test_tables_are_those_of_the_pooled_records(name: str, computing: Computing) -> None:
    """One column, two of one party, two of two parties, either order, in the bins that every encoder has. Records that
    one of the parties lacks are counted nowhere."""
    (federation, blocks), (make, tolerance) = computing, ENCODERS[name]
    with counting(federation, make) as (tables, schema):
        bins = column_bins(schema, BINS)
        sets = [("age",), ("sector",), ("age", "visits"), ("sector", "rating"), ("age", "sued"), ("rating", "visits")]
        queries = [TableQuery.of(columns, bins) for columns in [*sets, ("visits", "rating")]]
        measured = tables(queries)
    for query, table in zip(queries, measured, strict=True):
        assert table.columns == query.columns
        assert table.sd > 0
        truth = counted(blocks, query)
        assert table.counts.shape == truth.shape
        assert np.abs(table.counts - truth).max() <= tolerance, query.columns
    np.testing.assert_allclose(measured[-2].counts, measured[-1].counts.T, atol=1e-9)


@pytest.mark.parametrize("name", ENCODERS)
def test_what_it_costs_is_stated_for_every_data_party(name: str, computing: Computing) -> None:
    federation, _ = computing
    encoder = ENCODERS[name][0](Schema.declared(federation.facts, bins=5), federation.roster)
    for party in federation.facts.parties:
        spent = [stage.costs[party] for stage in encoder.stages if party in stage.costs]
        assert any(leaf.mechanism != "free" for cost in spent for leaf in cost.leaves())
    assert encoder.notes(1e-6) if isinstance(encoder, TableRounds) else encoder.notes


# --- the rounds ---------------------------------------------------------------------------------------------------


def test_rounds_share_one_product(computing: Computing) -> None:
    """Coarse, then fine, then of three columns, from rows that were shared once: every table exact."""
    federation, blocks = computing
    coarse = {name: np.minimum(np.arange(size) // 2, 1) for name, size in {"age": 5, "visits": 5}.items()}
    coarse |= {"sector": np.arange(3), "sued": np.arange(2), "rating": np.array([0, 0, 1])}
    with opened(federation, rounds, units=(5, 10, 4), mus=(0, 0, 0)) as (job, schema, encoder):
        asked = [
            [TableQuery.of((name,)) for name in schema.names],
            [TableQuery.of(pair, coarse) for pair in itertools.combinations(schema.names, 2)],
            [
                TableQuery.of(("sued", "age", "visits")),
                TableQuery.of(("sector", "sued", "rating")),
                TableQuery.of(("age", "rating"), units=2),
            ],
        ]
        for number, queries in enumerate(asked):
            for query, table in zip(queries, encoder.tables(job, schema, number, queries), strict=True):
                np.testing.assert_array_equal(table.counts, counted(blocks, query), err_msg=str(query.columns))
        with pytest.raises(RunError, match="no request left"):
            encoder.tables(job, schema, 0, asked[0])


def test_noise_has_the_stated_size_and_units_average_it(computing: Computing) -> None:
    """mu = 5000: variance 10,000 a count, a quarter of it with 4 units; 5.2 standard deviations of a variance."""
    federation, blocks = computing
    queries = [TableQuery.of(("age", "visits"), units=4), TableQuery.of(("visits", "age"))]
    queries += [TableQuery.of(("age", "sued"), units=4), TableQuery.of(("age", "sector"), units=4)]
    with counting(federation, partial(rounds, units=(200,), mus=(5000,), view="server")) as (tables, _):
        measured = tables(queries)
    noises = [table.counts - counted(blocks, query) for query, table in zip(queries, measured, strict=True)]
    scaled = np.concatenate(
        [noise.ravel() * math.sqrt(query.units) / 100 for query, noise in zip(queries, noises, strict=True)]
    )
    assert [table.sd for table in measured] == [50.0, 100.0, 50.0, 50.0]
    assert abs(np.mean(scaled**2) - 1) < 5.2 * math.sqrt(2 / scaled.size)


def test_records_that_parties_have_in_common_are_counted(computing: Computing) -> None:
    """Each party lacks a quarter of the records, two parties together half: estimated from exact tables."""
    federation, blocks = computing
    with counting(federation, rounds) as (tables, schema):
        columns = [("age",), ("age", "sued"), ("sector", "rating")]
        present = available(tables([TableQuery.of(names) for names in columns]), schema)
    assert present[frozenset({"clinic"})] == len(blocks["clinic"])
    both = set(blocks["clinic"]["id"]) & set(blocks["court"]["id"])
    assert present[frozenset({"clinic", "court"})] == len(both)


# --- the whole method ----------------------------------------------------------------------------------------------


def field(**options: Any) -> Synthesize:
    return Synthesize(model="field", **options)


@pytest.fixture(scope="module")
def fitted(tmp_path_factory: pytest.TempPathFactory, engine: str) -> tuple[pd.DataFrame, Any, pd.DataFrame]:
    blocks = dependent_blocks()
    with three_parties(tmp_path_factory.mktemp("method"), seed=2, **computing_by(engine, blocks)) as federation:
        result, run = federation.run(field(epsilon=2.0, delta=1e-4, cells=5, iterations=600, rows=4000))
        written = read_table(run)
    real = blocks["clinic"].merge(blocks["court"]).merge(blocks["bank"])
    return real, result, written


def test_dependence_across_parties_survives(fitted: Any) -> None:
    """Cross-party pairs of the synthetic rows against the pooled ones: noise of sd ~20 on 3,000 records."""
    real, _, synthetic = fitted
    for pair in (["sued", "rating"], ["sector", "rating"], ["sector", "sued"]):
        p = real.groupby(pair).size() / len(real)
        q = synthetic.groupby(pair, observed=True).size() / len(synthetic)
        assert p.sub(q, fill_value=0.0).abs().sum() / 2 < 0.06, pair
        margins = [real[name].value_counts(normalize=True).sort_index() for name in pair]
        apart = p.unstack(fill_value=0).to_numpy() - np.outer(*margins)
        assert np.abs(apart).sum() / 2 > 0.15, "and there was something to lose"


def test_rows_are_written_in_the_declared_domains(fitted: Any) -> None:
    _, result, synthetic = fitted
    assert len(synthetic) == 4000
    for name, column in COLUMNS.items():
        column.encode(synthetic[name])
    assert not synthetic.isna().any(axis=None)
    pd.testing.assert_frame_equal(result.sample(), synthetic)
    assert 1.99 <= float(result.cost[1:].split(",")[0]) <= 2.0, result.cost


def test_it_says_when_no_cross_party_dependence_stood_out(federation: Federation) -> None:
    schema = Schema.declared(federation.facts, bins=5)
    local = what_stood_out(schema, [("age", "visits"), ("sector", "rating")])
    assert [note.split()[3] for note in local[:-1]] == ["sued"]
    assert "alone" in local[-1]
    assert what_stood_out(schema, [("age", "visits"), ("sector", "rating"), ("rating", "sued")]) == []


def test_triples_take_the_place_of_their_pairs(tmp_path: Path, engine: str) -> None:
    """Small domains and a large budget: tables of three columns are measured in the last round, none of three
    parties; all budget is spent, and a table's columns lie in one clique of the field. None if none are asked for."""
    with three_parties(tmp_path, seed=2, **computing_by(engine, dependent_blocks())) as federation:
        options: dict[str, Any] = {"epsilon": 8.0, "delta": 1e-4, "cells": 3, "iterations": 100, "n_tables": 8}
        result = field(theta_triples=2.0, **options).fit(federation)
        without = field(theta_triples=None, **options).fit(federation)
        owner = federation.facts.owner
    triples = [table for table in result.details["tables"] if len(table) == 3]
    assert triples
    assert all(len({owner(name) for name in table}) <= 2 for table in triples)
    pairs = [table for table in result.details["tables"] if len(table) == 2]
    assert not any(set(pair) <= set(triple) for pair in pairs for triple in triples)
    assert {len(table) for table in without.details["tables"]} == {2}


def test_the_plan_spends_what_was_asked_for_in_both_views(tmp_path: Path, engine: str) -> None:
    with three_parties(tmp_path, **committee_of(engine)) as federation:
        for view, relation in itertools.product(("client", "server"), ("zero-out", "replace")):
            method = field(epsilon=0.7, delta=1e-5, view=view, relation=relation, cuts="declared")
            total = federation.plan(method).total(relation=relation).epsilon
            assert 0.69 < total <= 0.7
        plan = federation.plan(field(epsilon=0.7, delta=1e-5, cells=5))
        assert plan.stage("private cuts").counts == {"clinic": 2}
        plan = federation.plan(field(epsilon=0.7, delta=1e-5))
        assert plan.stage("private cuts").counts == {"clinic": 1}, "each of ten integers has a cell"
        assert 0.6 < plan.total().epsilon <= 0.7


# --- second moments -----------------------------------------------------------------------------------------------

EXACT = ("exact-tables", "exact-moments")
SMALL: dict[str, Any] = {"cells": 5, "iterations": 50, "max_clique": 2000, "theta_triples": None, "moment_share": 0.3}


def features_of(real: pd.DataFrame) -> pd.DataFrame:
    """By hand: declared ranges and codes on [-1, 1], an indicator for each category but the first."""
    return pd.DataFrame(
        {
            "1": np.ones(len(real)),
            "age": real["age"] / 50 - 1,
            "visits": real["visits"] / 4.5 - 1,
            "sued": np.where(real["sued"] == "yes", 1.0, -1.0),
            "sector[trade]": (real["sector"] == "trade").astype(float),
            "sector[mining]": (real["sector"] == "mining").astype(float),
            "rating": real["rating"].map({"C": -1.0, "B": 0.0, "A": 1.0}),
        }
    )


def test_second_moments_and_what_rests_on_them_are_those_of_the_pooled_records(tmp_path: Path, engine: str) -> None:
    """With the noise off. The field has two tables only, so its own rows give other coefficients."""
    blocks = dependent_blocks(900)
    rng = np.random.default_rng(1)
    blocks["clinic"]["age"] = np.clip(blocks["clinic"]["age"] + rng.normal(0, 8, 900), 0, 100)
    real = blocks["clinic"].merge(blocks["court"]).merge(blocks["bank"])
    with three_parties(tmp_path, allow=EXACT, seed=1, **computing_by(engine, blocks)) as federation:
        table = field(epsilon=None, n_tables=2, **SMALL).fit(federation, sure=True)
    assert table.evidence is not None
    moments = table.evidence.moments  # type: ignore[attr-defined]
    design = features_of(real)[list(moments.entries[0])]
    np.testing.assert_allclose(moments.grams[0], design.T @ design, atol=1e-3 * 900)
    indicator = {"no": 0.0, "yes": 1.0}
    x = np.column_stack([np.ones(900), real["sued"].map(indicator), real["rating"].map({"C": 0, "B": 1, "A": 2})])
    there = np.linalg.lstsq(x, real["age"].to_numpy(), rcond=None)[0]
    estimator = ols("age", ["sued", "rating"])
    found = table.analyse(estimator, unproven=True)
    np.testing.assert_allclose(found["estimate"], there, atol=0.6)
    assert np.abs(np.asarray(estimator(table.sample(20_000))) - there).max() > 2, "rows alone are off"
    assert table.analyse(mean("age"))["estimate"].iloc[0] == pytest.approx(real["age"].mean(), abs=0.05)
    assert "released numbers" in table.valid_for(("age", "sued"))


def test_second_moments_of_records_that_parties_lack_stand_for_all(tmp_path: Path, engine: str) -> None:
    blocks = three_overlapping_blocks(N)
    with three_parties(tmp_path, allow=EXACT, seed=1, **computing_by(engine, blocks)) as federation:
        table = field(epsilon=None, n_tables=2, **SMALL).fit(federation, sure=True)
    found = table.analyse(mean("age")).iloc[0]
    own = blocks["clinic"]["age"]
    assert found["estimate"] == pytest.approx(own.mean(), abs=0.1)
    assert found["standard_error"] == pytest.approx(own.std() / math.sqrt(len(own)), rel=0.1), "fewer records, not n"


def test_second_moments_have_their_noise_and_their_cost(tmp_path: Path, engine: str) -> None:
    """The sum of squared noise of 27 entries in units of its sd: chi squared, within 1e-4 on each side."""
    blocks = dependent_blocks(900)
    real = blocks["clinic"].merge(blocks["court"]).merge(blocks["bank"])
    method = field(epsilon=3.0, delta=1e-5, cuts="declared", verify=False, **SMALL)
    with three_parties(tmp_path, seed=3, **computing_by(engine, blocks)) as federation:
        plan = federation.plan(method)
        procedure = FieldSynthesis(method, federation.facts, federation.roster)
        assert 2.9 < plan.total().epsilon <= 3.0
        cost = plan.stage(f"second moments: {'share' if engine == 'holders' else 'exchange'} rows").costs
        assert {party for party in federation.facts.parties if cost[party].mechanism == "free"} == set()
        table = method.fit(federation, sure=True)
    assert procedure.moments is not None
    moments = table.evidence.moments  # type: ignore[union-attr]
    assert moments.noise_sd == procedure.moments.layout.noise_sd
    design = features_of(real)[list(moments.entries[0])]
    upper = np.triu_indices(7)
    noise = (moments.grams[0] - (design.T @ design).to_numpy())[upper] / moments.noise_sd
    assert 7.0 < float((noise[1:] ** 2).sum()) < 64.0
    without = FieldSynthesis(replace(method, moment_share=0.0), federation.facts, federation.roster)
    ratio = np.sqrt(np.array(procedure.rounds.mus) / np.array(without.rounds.mus))
    np.testing.assert_allclose(ratio, 1 / math.sqrt(0.7), rtol=0.05)


def test_a_number_in_cells_has_no_interval_without_moments(fitted: Any) -> None:
    """Shares and quantiles have; what is withheld says how to get it."""
    real, result, _ = fitted
    bit = result.analyse(share("sued", "yes")).iloc[0]
    assert bit["lower"] < (real["sued"] == "yes").mean() < bit["upper"]
    middle = result.analyse(quantile("age", 0.5)).iloc[0]
    assert middle["lower"] <= real["age"].median() <= middle["upper"]
    with pytest.warns(UserWarning, match="moment_share"):
        withheld = result.analyse(mean("age"))
    assert np.isnan(withheld["lower"].iloc[0])
    assert list(withheld.attrs["withheld"]) == ["estimate"]
    assert np.isfinite(result.analyse(mean("age"), unproven=True).to_numpy()).all()


def test_a_table_counts_what_all_its_parties_have_and_is_scaled_to_the_cohort(tmp_path: Path, engine: str) -> None:
    """What `missing_data` says. Of records that the court lacks, the bank's ratings change its own table, and what a
    rating's records at both are weighed by in a table that it has with the court; all stand for all n records."""
    tables = []
    for run, other in enumerate("CA"):
        blocks = three_overlapping_blocks(N)
        lacking = ~blocks["bank"]["id"].isin(blocks["court"]["id"])
        blocks["bank"].loc[lacking, "rating"] = other
        given = computing_by(engine, blocks)
        with three_parties(tmp_path / str(run), allow=ALLOW, seed=1, **given) as federation:
            method = field(epsilon=None, cells=3, columns=("sued", "rating"))
            procedure = FieldSynthesis(method, federation.facts, federation.roster)
            with federation.open(federation.plan(method)) as job:
                ask = partial(procedure.rounds.tables, job, procedure.schema)
                measured = procedure.measure(procedure.schema, ask).measurements
        assert "all its parties have, and is scaled to the whole cohort" in method.missing_data()
        assert "tables are weighed by it" in method.missing_data()
        tables.append({table.columns: table.counts for table in measured})
        both = blocks["bank"].merge(blocks["court"], on="id")
        exact = pd.crosstab(both["sued"], both["rating"]).loc[["no", "yes"], list("CBA")].to_numpy()
        own = blocks["bank"]["rating"].value_counts()[list("CBA")].to_numpy() * N / len(blocks["bank"])
        np.testing.assert_allclose(tables[run]["sued", "rating"], exact * own / exact.sum(axis=0))
        np.testing.assert_allclose(tables[run][("rating",)], own)
    shares = [each["sued", "rating"] / each["sued", "rating"].sum(axis=0) for each in tables]
    np.testing.assert_allclose(shares[0], shares[1])
    assert not np.array_equal(tables[0][("rating",)], tables[1][("rating",)])


def test_an_empty_cell_is_a_value_of_its_own(tmp_path: Path, engine: str) -> None:
    """What `missing_data` says about a record that is there: a third of the ratings are empty, and so are the rows'."""
    n = 900
    keys = [f"K{i:05d}" for i in range(n)]
    rating = pd.Series(np.array(["C", "A", None], dtype=object)[np.arange(n) % 3])
    blocks = {
        "clinic": pd.DataFrame({"id": keys, "age": 50.0, "visits": 1}),
        "court": pd.DataFrame({"id": keys, "sued": np.where(rating.isna(), "yes", "no")}),
        "bank": pd.DataFrame({"id": keys, "sector": "trade", "rating": rating}),
    }
    empty = Column(name="rating", kind="ordinal", categories=("C", "B", "A"), missing=True)
    columns = Columns([empty if column.name == "rating" else column for column in COLUMNS.values()])
    given = computing_by(engine, blocks)
    with three_parties(tmp_path, columns=columns, allow=ALLOW, seed=1, **given) as federation:
        method = field(epsilon=None, cells=3, iterations=600, rows=3000, columns=("sued", "rating"))
        synthetic = method.fit(federation).sample()
    assert "value of its own" in method.missing_data()
    assert synthetic["rating"].isna().mean() == pytest.approx(1 / 3, abs=0.02)
    assert (synthetic.loc[synthetic["rating"].isna(), "sued"] == "yes").mean() > 0.95


def test_columns_without_dependence_get_the_budget_of_the_last_round(tmp_path: Path, engine: str) -> None:
    """Three independent columns at three parties, verified, the noise off: no pair stands out, so that the last round
    opens the columns alone, with all of its units. They are the exact counts."""
    n = 600
    keys = [f"K{i:05d}" for i in range(n)]
    blocks = {
        "clinic": pd.DataFrame({"id": keys, "age": 50.0, "visits": np.arange(n) % 5}),
        "court": pd.DataFrame({"id": keys, "sued": np.where(np.arange(n) // 5 % 2, "yes", "no")}),
        "bank": pd.DataFrame({"id": keys, "sector": "trade", "rating": np.array(list("CBA"))[np.arange(n) // 10 % 3]}),
    }
    method = field(epsilon=None, cells=5, columns=("visits", "sued", "rating"), n_tables=7)
    asked: dict[int, Sequence[TableQuery]] = {}
    with three_parties(tmp_path, allow=ALLOW, seed=1, **computing_by(engine, blocks)) as federation:
        procedure = FieldSynthesis(method, federation.facts, federation.roster)
        with federation.open(federation.plan(method)) as job:

            def ask(number: int, queries: Sequence[TableQuery]) -> list[Measurement]:
                asked[number] = queries
                return procedure.rounds.tables(job, procedure.schema, number, queries)

            measured = procedure.measure(procedure.schema, ask)
    assert measured.chosen == ()
    assert {query.columns: query.units for query in asked[2]} == {("visits",): 3, ("sued",): 2, ("rating",): 2}
    twice = [table.counts for table in measured.measurements if table.columns == ("visits",)]
    np.testing.assert_array_equal(twice, [np.bincount(np.arange(n) % 5 // 2, minlength=5)] * 2)


def test_a_field_may_have_more_cells_with_more_records(federation: Federation) -> None:
    """By default; what is stated is kept."""
    assert [cell_limit(n) for n in (10, 48_842, 213_414, 10**9)] == [524_288, 524_288, 533_535, 1_048_576]
    assert FieldSynthesis(field(max_clique=700), federation.facts, federation.roster).limit == 700
    assert FieldSynthesis(field(), federation.facts, federation.roster).limit == 524_288


@pytest.mark.parametrize(
    ("options", "error"),
    [
        ({"delta": 0.0}, BadPrivacyParameter),
        ({"split": (0.5, 0.6, 0.1)}, BadPrivacyParameter),
        ({"bins": 0}, BadArguments),
        ({"rows": 0}, BadArguments),
        ({"max_clique": 0}, BadArguments),
        ({"theta": -1.0}, BadArguments),
        ({"theta_triples": 0.0}, BadArguments),
        ({"discrepancy": -0.1}, BadArguments),
        ({"n_tables": 0}, BadArguments),
    ],
)
def test_impossible_options_are_refused(options: dict[str, Any], error: type[Exception]) -> None:
    with pytest.raises(error):
        field(**options)


def test_a_clique_limit_that_cannot_be_met_names_the_columns(tmp_path: Path, engine: str) -> None:
    refused = pytest.raises(NotEstimable, match=r"age \(40\).*raise max_clique")
    with three_parties(tmp_path, **committee_of(engine)) as federation, refused:
        federation.plan(field(cells=40, max_clique=50))


def test_exact_tables_must_be_allowed(tmp_path: Path, engine: str) -> None:
    with three_parties(tmp_path, **committee_of(engine)) as federation:
        assert "unbounded" in str(federation.plan(field(epsilon=None)).total())
        with pytest.raises(UnboundedNotAllowed):
            field(epsilon=None).fit(federation)


def test_column_of_one_party_alone(tmp_path: Path) -> None:
    """One column: a noisy histogram, without pairs."""
    columns = Columns([Column(name="sued", kind="binary", categories=("no", "yes"))])
    with Federation.local(
        {"court": three_overlapping_blocks(400)["court"], "b": _keys("x"), "c": _keys("y")},
        key="id",
        columns=Columns([*columns.values(), *(Column(name=n, kind="binary", categories=(0, 1)) for n in "xy")]),
        home=tmp_path / "home",
        seed=1,
    ) as federation:
        plan = federation.plan(field(columns=("sued",)))
        names = [stage.name.removeprefix("sqm tables: ") for stage in plan.stages]
        assert names[:2] == ["share rows", "compare"]
        assert "open" in names
        assert not [stage for stage in plan.stages if "share noise" in stage.name]


def _keys(name: str) -> pd.DataFrame:
    return pd.DataFrame({"id": [f"K{i:05d}" for i in range(400)], name: [i % 2 for i in range(400)]})
