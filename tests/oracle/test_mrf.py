"""VertiMRF's encoders against counting the pooled records one by one: one contract for all; and the whole method."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from colonnade.data.column import Column, Columns
from colonnade.errors import BadArguments, BadPrivacyParameter, NotEstimable, UnboundedNotAllowed
from colonnade.federation.coordinator import Federation
from colonnade.federation.plan import Plan
from colonnade.synthesis.field.schema import Encoded, Encoder, Schema, Wanted
from colonnade.synthesis.field.fit import Measurement
from colonnade.papers.vertimrf.sketches import FMSketches
from colonnade.papers.vertimrf.frequency_oracle import FrequencyOracle, column_bins
from colonnade.papers.vertimrf.method import against_the_floor
from colonnade.synthesis.field.procedure import SQM, available
from colonnade.papers.vertimrf.method import VertiMRF, what_stood_out
from colonnade.synthesis.table import read_table
from support.small import COLUMNS, three_overlapping_blocks, three_parties

ALLOW = ("exact-tables", "fm-sketches")
N, SKETCHES, BINS = 600, 3000, 3
CUTS = {"age": [0, 20, 40, 60, 80, 100.001], "visits": [0, 2, 4, 6, 8, 10]}
CATEGORIES = {"sector": ["farming", "trade", "mining"], "sued": ["no", "yes"], "rating": ["C", "B", "A"]}
# How far an estimate may be from the truth with the noise off: exact, exact (the reports are kept with odds e^30), and
# 6 standard deviations n / sqrt(t) of a union of sketches (144 cells in all: false alarm below 1e-6).
ENCODERS: dict[str, tuple[Encoder, float]] = {
    "sqm": (SQM(units=(40, 40), mus=(0, 0), view="client"), 0.0),
    "fo": (FrequencyOracle(epsilon=30.0, bins=BINS), 1e-6),
    "fm": (FMSketches(epsilon=None, sketches=SKETCHES, bins=BINS), 6 * N / math.sqrt(SKETCHES)),
}


def counted(blocks: dict[str, pd.DataFrame], wanted: Wanted) -> np.ndarray:
    """The table by brute force, key by key: a record counts if every party of the table has it."""
    values: list[dict[str, int]] = []
    sizes = []
    for name, bins in zip(wanted.columns, wanted.bins, strict=True):
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
        if all(key in one for one in values):
            table[tuple(one[key] for one in values)] += 1
    return table


@contextmanager
def encoding(federation: Federation, encoder: Encoder) -> Iterator[tuple[Encoded, Schema]]:
    schema = Schema.declared(federation.facts, bins=5)
    phases = tuple(encoder.phases(schema, federation.roster))
    with federation.open(Plan(method="vertimrf", options={}, phases=phases)) as job:
        yield encoder.encode(job, schema), schema


@pytest.fixture(scope="module")
def blocks() -> dict[str, pd.DataFrame]:
    return three_overlapping_blocks(N)


@pytest.fixture(scope="module")
def federation(tmp_path_factory: pytest.TempPathFactory, blocks: dict[str, pd.DataFrame]) -> Iterator[Federation]:
    with three_parties(tmp_path_factory.mktemp("mrf"), blocks=blocks, allow=ALLOW, seed=1) as made:
        yield made


# --- one contract for every encoder ---------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ENCODERS)
def test_tables_are_those_of_the_pooled_records(name: str, federation: Federation, blocks: Any) -> None:
    """One column, two of one party, two of two parties, either order, in the bins that every encoder has. Records that
    one of the parties lacks are counted nowhere."""
    encoder, tolerance = ENCODERS[name]
    with encoding(federation, encoder) as (encoded, schema):
        bins = column_bins(schema, BINS)
        sets = [("age",), ("sector",), ("age", "visits"), ("sector", "rating"), ("age", "sued"), ("rating", "visits")]
        wanted = [Wanted.of(columns, bins) for columns in [*sets, ("visits", "rating")]]
        found = encoded.tables(wanted)
    for one, table in zip(wanted, found, strict=True):
        assert table.columns == one.columns
        assert table.sd > 0
        truth = counted(blocks, one)
        assert table.counts.shape == truth.shape
        assert np.abs(table.counts - truth).max() <= tolerance, one.columns
    np.testing.assert_allclose(found[-2].counts, found[-1].counts.T, atol=1e-9)


@pytest.mark.parametrize("name", ENCODERS)
def test_what_it_costs_is_stated_for_every_data_party(name: str, federation: Federation) -> None:
    encoder, _ = ENCODERS[name]
    schema = Schema.declared(federation.facts, bins=5)
    phases = encoder.phases(schema, federation.roster)
    for party in federation.facts.parties:
        spent = [phase.costs[party] for phase in phases if party in phase.costs]
        assert any(leaf.mechanism != "free" for cost in spent for leaf in cost.leaves())
    assert encoder.notes(schema, federation.roster)


# --- sqm --------------------------------------------------------------------------------------------------------------


def test_sqm_rounds_share_one_product(federation: Federation, blocks: Any) -> None:
    """Coarse, then fine, then of three columns, from rows that were shared once: every table exact."""
    encoder = SQM(units=(5, 10, 4), mus=(0, 0, 0), view="client")
    coarse = {name: np.minimum(np.arange(size) // 2, 1) for name, size in {"age": 5, "visits": 5}.items()}
    coarse |= {"sector": np.arange(3), "sued": np.arange(2), "rating": np.array([0, 0, 1])}
    with encoding(federation, encoder) as (encoded, schema):
        rounds = [
            [Wanted.of((name,)) for name in schema.names],
            [Wanted.of(pair, coarse) for pair in itertools.combinations(schema.names, 2)],
            [
                Wanted.of(("sued", "age", "visits")),
                Wanted.of(("sector", "sued", "rating")),
                Wanted.of(("age", "rating"), units=2),
            ],
        ]
        for wanted in rounds:
            for one, table in zip(wanted, encoded.tables(wanted), strict=True):
                np.testing.assert_array_equal(table.counts, counted(blocks, one), err_msg=str(one.columns))
        with pytest.raises(BadArguments, match="3 rounds"):
            encoded.tables(rounds[0])


def test_sqm_noise_has_the_stated_size_and_units_average_it(federation: Federation, blocks: Any) -> None:
    """mu = 5000: variance 10,000 a count, a quarter of it with 4 units; 5.2 standard deviations of a variance."""
    encoder = SQM(units=(200,), mus=(5000,), view="server")
    wanted = [Wanted.of(("age", "visits"), units=4), *[Wanted.of(("visits", "age"))]]
    more = [Wanted.of(("age", "sued"), units=4), Wanted.of(("age", "sector"), units=4)]
    with encoding(federation, encoder) as (encoded, _):
        found = encoded.tables([*wanted, *more])
    noises = [table.counts - counted(blocks, one) for one, table in zip([*wanted, *more], found, strict=True)]
    scaled = np.concatenate(
        [noise.ravel() * math.sqrt(one.units) / 100 for one, noise in zip([*wanted, *more], noises, strict=True)]
    )
    assert [table.sd for table in found] == [50.0, 100.0, 50.0, 50.0]
    assert abs(np.mean(scaled**2) - 1) < 5.2 * math.sqrt(2 / scaled.size)


def test_records_that_parties_have_in_common_are_counted(federation: Federation, blocks: Any) -> None:
    """Each party lacks a quarter of the records, two parties together half: estimated from exact tables."""
    encoder = SQM(units=(40, 40), mus=(0, 0), view="client")
    with encoding(federation, encoder) as (encoded, schema):
        tables = encoded.tables([Wanted.of(("age",)), Wanted.of(("age", "sued")), Wanted.of(("sector", "rating"))])
        present = available(tables, schema)
    assert present[frozenset({"clinic"})] == len(blocks["clinic"])
    both = set(blocks["clinic"]["id"]) & set(blocks["court"]["id"])
    assert present[frozenset({"clinic", "court"})] == len(both)


# --- the whole method ----------------------------------------------------------------------------------------------


def dependent_blocks(n: int = 3000) -> dict[str, pd.DataFrame]:
    """Columns of three parties that follow one another closely."""
    rng = np.random.default_rng(4)
    level = rng.integers(0, 3, n)
    keys = [f"K{i:05d}" for i in range(n)]
    near = np.where(rng.random(n) < 0.9, level, rng.integers(0, 3, n))
    return {
        "clinic": pd.DataFrame({"id": keys, "age": 30.0 * level + rng.uniform(0, 10, n), "visits": 3 * near}),
        "court": pd.DataFrame({"id": keys, "sued": np.where(level == 2, "yes", "no")}),
        "bank": pd.DataFrame(
            {"id": keys, "sector": np.array(CATEGORIES["sector"])[near], "rating": np.array(list("CBA"))[level]}
        ),
    }


@pytest.fixture(scope="module")
def fitted(tmp_path_factory: pytest.TempPathFactory) -> tuple[pd.DataFrame, Any, pd.DataFrame]:
    blocks = dependent_blocks()
    with three_parties(tmp_path_factory.mktemp("whole"), blocks=blocks, seed=2) as federation:
        method = VertiMRF(epsilon=2.0, delta=1e-4, cells=5, iterations=600, rows=4000)
        result, run = federation.run(method)
        written = read_table(run)
    real = blocks["clinic"].merge(blocks["court"]).merge(blocks["bank"])
    return real, result, written


def test_dependence_across_parties_survives(fitted: Any) -> None:
    """Cross-party pairs of the synthetic rows against the pooled ones: noise of sd ~20 on 3,000 records."""
    real, _, made = fitted
    for pair in (["sued", "rating"], ["sector", "rating"], ["sector", "sued"]):
        p = real.groupby(pair).size() / len(real)
        q = made.groupby(pair, observed=True).size() / len(made)
        assert p.sub(q, fill_value=0.0).abs().sum() / 2 < 0.06, pair
        margins = [real[name].value_counts(normalize=True).sort_index() for name in pair]
        apart = p.unstack(fill_value=0).to_numpy() - np.outer(*margins)
        assert np.abs(apart).sum() / 2 > 0.15, "and there was something to lose"


def test_rows_are_written_in_the_declared_domains(fitted: Any) -> None:
    _, result, made = fitted
    assert len(made) == 4000
    for name, column in COLUMNS.items():
        column.encode(made[name])
    assert not made.isna().any(axis=None)
    pd.testing.assert_frame_equal(result.sample(), made)
    assert result.cost.startswith("(2, 0.0001)")


PAPERS: dict[str, dict[str, Any]] = {
    "fo": {"encoder": "fo", "epsilon": 400.0, "complete": True, "records": "noisy"},
    "fm without LocMRF": {
        "encoder": "fm",
        "epsilon": 4000.0,
        "sketches": 1500,
        "cuts": "quantiles",
        "local_mrf": False,
        "recover": "uniform",
        "consistency": False,
    },
}


@pytest.mark.parametrize("name", PAPERS)
def test_the_six_phases_from_end_to_end(name: str, tmp_path: Path) -> None:
    """With a budget that leaves little noise the paper's procedure carries dependence across parties, whatever its
    options; and the report says that the tables are above the floor."""
    blocks = dependent_blocks(2000)
    with three_parties(tmp_path, blocks=blocks, seed=3, allow=("fm-sketches",)) as federation:
        method = VertiMRF(delta=1e-4, cells=5, iterations=300, rows=4000, **PAPERS[name])
        result, run = federation.run(method)
        made = read_table(run)
    for column in COLUMNS.values():
        column.encode(made[column.name])
    real = blocks["court"].merge(blocks["bank"])
    p = real.groupby(["sued", "rating"]).size() / len(real)
    q = made.groupby(["sued", "rating"], observed=True).size() / len(made)
    assert p.sub(q, fill_value=0.0).abs().sum() / 2 < 0.1
    assert any(note.startswith("Noise moves a coarse cross-party table") for note in result.notes)
    if method.records == "noisy":
        assert abs(result.details["records"] - 2000) < 20


def test_the_report_says_when_a_run_is_worse_than_the_floor() -> None:
    """A dependence of 1/4 in 2 x 2 cells of 1,000 records, measured with little noise, with much, and not at all."""
    table = np.array([[375.0, 125.0], [125.0, 375.0]])
    (clear,) = against_the_floor([Measurement(("a", "b"), table, 10.0)], 1000)
    assert clear.startswith("Noise moves a coarse cross-party table by 0.016"), "sqrt(2/pi) x 10 x 4 / 2000"
    assert "is 0.23" in clear, "0.25 less 0.016"
    (hidden,) = against_the_floor([Measurement(("a", "b"), table, 200.0)], 1000)
    assert hidden.startswith("Worse than the floor")
    (none,) = against_the_floor([], 1000)
    assert "alone" in none


def test_sqm_says_when_no_cross_party_dependence_was_found(federation: Federation) -> None:
    schema = Schema.declared(federation.facts, bins=5)
    local = what_stood_out(schema, [("age", "visits"), ("sector", "rating")])
    assert [note.split()[3] for note in local[:-1]] == ["sued"]
    assert "alone" in local[-1]
    assert what_stood_out(schema, [("age", "visits"), ("sector", "rating"), ("rating", "sued")]) == []


def test_triples_take_the_place_of_their_pairs(tmp_path: Path) -> None:
    """Small domains and a large budget: tables of three columns are measured in the last round, none of three
    parties; all budget is spent, and a table's columns lie in one clique of the field."""
    with three_parties(tmp_path, blocks=dependent_blocks(), seed=2) as federation:
        method = VertiMRF(epsilon=8.0, delta=1e-4, cells=3, iterations=100, theta_triples=2.0, tables=8)
        result, _ = federation.run(method)
        owner = federation.facts.owner
    triples = [table for table in result.details["tables"] if len(table) == 3]
    assert triples
    assert all(len({owner(name) for name in table}) <= 2 for table in triples)
    pairs = [table for table in result.details["tables"] if len(table) == 2]
    assert not any(set(pair) <= set(triple) for pair in pairs for triple in triples)


def test_the_plan_spends_what_was_asked_for_in_both_views(tmp_path: Path) -> None:
    with three_parties(tmp_path) as federation:
        for view, relation in itertools.product(("client", "server"), ("zero-out", "replace")):
            method = VertiMRF(epsilon=0.7, delta=1e-5, view=view, relation=relation)
            total = federation.plan(method).total(relation=relation).epsilon
            assert 0.69 < total <= 0.7
        cut = VertiMRF(epsilon=0.7, delta=1e-5, cuts="quantiles")
        plan = federation.plan(cut)
        assert plan.phase("private cuts").counts == {"clinic": 2}
        assert 0.6 < plan.total().epsilon <= 0.7
        for cuts in ("declared", "quantiles"):
            oracle = VertiMRF(encoder="fo", epsilon=0.7, delta=1e-5, cuts=cuts)
            assert 0.3 < federation.plan(oracle).total().epsilon <= 0.7, "basic composition is a safe budget"


def test_options_are_data() -> None:
    for made in (
        VertiMRF(),
        VertiMRF(
            encoder="fm", columns=("age", "sued"), split=(0.3, 0.3, 0.4), theta_triples=math.inf, bins=3, tables=7
        ),
    ):
        assert VertiMRF.from_options(made.options()) == made


def test_a_field_may_have_more_cells_with_more_records() -> None:
    """By default; what is stated is kept."""
    assert [VertiMRF().limit(n) for n in (10, 48_842, 213_414, 10**9)] == [131_072, 131_072, 533_535, 1_048_576]
    assert VertiMRF(max_clique=700).limit(10**9) == 700
    assert VertiMRF(encoder="fm").limit(10**9) == 131_072


@pytest.mark.parametrize(
    ("options", "error"),
    [
        ({"encoder": "hash"}, BadArguments),
        ({"encoder": "fo", "epsilon": None}, BadPrivacyParameter),
        ({"delta": 0.0}, BadPrivacyParameter),
        ({"split": (0.5, 0.6, 0.1)}, BadPrivacyParameter),
        ({"bins": 0}, BadArguments),
        ({"rows": 0}, BadArguments),
        ({"max_clique": 0}, BadArguments),
        ({"theta": -1.0}, BadArguments),
        ({"records": "noisy"}, BadArguments),
        ({"encoder": "fo", "records": "noisy"}, BadArguments),
    ],
)
def test_impossible_options_are_refused(options: dict[str, Any], error: type[Exception]) -> None:
    with pytest.raises(error):
        VertiMRF(**options)


def test_a_clique_limit_that_cannot_be_met_names_the_columns(tmp_path: Path) -> None:
    columns = Columns([*COLUMNS.values()])
    with (
        three_parties(tmp_path, columns=columns) as federation,
        pytest.raises(NotEstimable, match=r"age \(40\).*raise max_clique"),
    ):
        federation.plan(VertiMRF(cells=40, max_clique=50))


def test_an_unbounded_encoder_must_be_allowed(tmp_path: Path) -> None:
    with three_parties(tmp_path) as federation:
        for method in (VertiMRF(encoder="fm"), VertiMRF(epsilon=None)):
            assert "unbounded" in str(federation.plan(method).total())
            with pytest.raises(UnboundedNotAllowed):
                method.fit(federation)


def test_column_of_one_party_alone(tmp_path: Path) -> None:
    """One column: a noisy histogram, without pairs."""
    columns = Columns([Column(name="sued", kind="binary", categories=("no", "yes"))])
    blocks = {name: three_overlapping_blocks(400)["court"] for name in ("court",)}
    with Federation.local(
        {"court": blocks["court"], "b": _keys("x"), "c": _keys("y")},
        key="id",
        columns=Columns([*columns.values(), *(Column(name=n, kind="binary", categories=(0, 1)) for n in "xy")]),
        home=tmp_path / "home",
        seed=1,
    ) as federation:
        plan = federation.plan(VertiMRF(columns=("sued",)))
        assert [phase.name for phase in plan.phases] == ["sqm tables: share rows", "sqm tables: open"]


def _keys(name: str) -> pd.DataFrame:
    return pd.DataFrame({"id": [f"K{i:05d}" for i in range(400)], name: [i % 2 for i in range(400)]})
