"""Contingency tables on secret shares against counting the pooled records one by one: equal, with the noise off."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import pandas as pd
import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from colonnade.data.column import Column, Columns
from colonnade.errors import (
    BadArguments,
    BadPrivacyParameter,
    BeyondReservation,
    SecureError,
    TooFewHolders,
    UnboundedNotAllowed,
    UnknownColumn,
    UnsafeRequest,
)
from colonnade.federation.coordinator import Federation
from colonnade.federation.plan import Plan
from colonnade.privacy.accounting import guarantee
from colonnade.privacy.skellam import Skellam
from colonnade.statistics import circuit
from colonnade.statistics import tables as module
from colonnade.statistics.tables import TableComputation, Tables
from support.asking import asking
from support.patterns import FIVE_COLUMNS, blocks_of_every_pattern
from support.small import COLUMNS, committee_of, computing_by, three_overlapping_blocks, three_parties

ALLOW = ("exact-tables",)
# Cut points written out by hand: age in 4 cells, visits (whole numbers from 0 to 9) in 4 cells.
CUTS = {"age": [0, 25, 50, 75, 100.001], "visits": [0, 2, 5, 7, 10]}
CATEGORIES = {
    "sector": ["farming", "trade", "mining"],
    "sued": ["no", "yes"],
    "rating": ["C", "B", "A"],
    "x0": [0, 1],
    "x1": [0, 1],
}


def counted(blocks: dict[str, pd.DataFrame], names: tuple[str, ...]) -> np.ndarray:
    """The table by brute force: every key of any party, one cell if all of its values are there."""
    values: dict[str, dict[Any, int]] = {}
    for name in names:
        (frame,) = (frame for frame in blocks.values() if name in frame)
        known = frame[["id", name]].dropna()
        if name in CUTS:
            cells = pd.cut(known[name], CUTS[name], right=False, labels=False)
        else:
            cells = known[name].map(CATEGORIES[name].index)
        values[name] = dict(zip(known["id"], cells.astype(int), strict=True))
    sizes = [len(CUTS[name]) - 1 if name in CUTS else len(CATEGORIES[name]) for name in names]
    table = np.zeros(sizes, dtype=np.int64)
    for key in set.union(*(set(frame["id"]) for frame in blocks.values())):
        if all(key in values[name] for name in names):
            table[tuple(values[name][key] for name in names)] += 1
    return table


Names = tuple[str, ...]
MANY: tuple[Names, ...] = (
    ("age",),
    ("sector", "rating"),
    ("rating", "age"),
    ("sued", "sector"),
    ("visits", "sued", "age"),
    ("sector", "visits", "rating", "age"),
    ("age", "sued", "rating"),
    ("sector", "sued", "visits"),
)


def computed_by(engine: str, blocks: dict[str, pd.DataFrame], tables: tuple[Names, ...]) -> tuple[Names, ...]:
    """All of these tables by share holders; in pairs those that have columns of at most two parties."""
    owners = {name: party for party, block in blocks.items() for name in block.columns}
    return tuple(names for names in tables if engine == "holders" or len({owners[name] for name in names}) < 3)


@pytest.mark.parametrize(
    ("engine", "members", "share_bytes"),
    [
        ("pair", 3, 1 << 25),
        ("pair", 5, 1 << 25),
        ("holders", 3, 1 << 25),
        ("holders", 3, 700),
        ("holders", 5, 1 << 25),
        ("holders", 5, 700),
    ],
)
def test_tables_equal_counting(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, engine: str, members: int, share_bytes: int
) -> None:
    """Within a party, over two and over three parties; in one chunk of rows and in several."""
    monkeypatch.setattr(circuit, "SHARE_BYTES", share_bytes)
    tables, blocks, columns = MANY, blocks_of_every_pattern(), COLUMNS
    if members == 5:
        blocks, columns = blocks_of_every_pattern(93, parties=5), FIVE_COLUMNS
        tables = (*MANY, ("x1", "sued", "x0"), ("x0", "x1"))
    tables = computed_by(engine, blocks, tables)
    options = computing_by(engine, blocks) | ({"threshold": 2} if (engine, members) == ("holders", 5) else {})
    with three_parties(tmp_path, columns=columns, allow=ALLOW, **options) as federation:
        assert len(federation.roster.committee) == (0 if engine == "pair" else members)
        method = Tables(tables=tables, bins=4, epsilon=None)
        assert (len(method.layout(federation.facts, federation.roster).chunks) > 1) == (share_bytes == 700)
        result = method.fit(federation)
    for names in tables:
        assert np.array_equal(result[names], counted(blocks, names)), names
        assert 0 < result[names].sum() < federation.facts.n, "some records have all columns, some do not"
        assert result[names].shape == tuple(len(result.labels[name]) for name in names)
        assert result.noise_sd[names] == 0


@pytest.fixture(scope="module")
def shared(
    tmp_path_factory: pytest.TempPathFactory, engine: str
) -> Iterator[tuple[Federation, dict[str, pd.DataFrame]]]:
    given = computing_by(engine, blocks_of_every_pattern(42, seed=5))
    with three_parties(tmp_path_factory.mktemp("tables"), allow=ALLOW, **given) as federation:
        yield federation, given["blocks"]


@settings(max_examples=10, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    tables=st.lists(
        st.permutations(list(COLUMNS)).flatmap(lambda names: st.integers(1, 4).map(lambda k: tuple(names[:k]))),
        min_size=1,
        max_size=4,
        unique_by=frozenset,
    ),
    share_bytes=st.sampled_from([900, 1 << 20]),
)
def test_any_set_of_tables(
    shared: tuple[Federation, dict[str, pd.DataFrame]], engine: str, tables: list[tuple[str, ...]], share_bytes: int
) -> None:
    federation, blocks = shared
    wanted = computed_by(engine, blocks, tuple(tables))
    assume(wanted)
    with mock.patch.object(circuit, "SHARE_BYTES", share_bytes):
        result = Tables(tables=wanted, bins=4, epsilon=None).fit(federation)
    for names in wanted:
        assert np.array_equal(result[names], counted(blocks, names)), names


def test_an_empty_cell_counts_in_no_table_that_involves_it(tmp_path: Path, engine: str) -> None:
    blocks = blocks_of_every_pattern()
    blocks["clinic"].loc[::4, "age"] = np.nan
    blocks["bank"]["rating"] = blocks["bank"]["rating"].astype(object)
    blocks["bank"].loc[::3, "rating"] = None
    changed = {
        "age": Column(name="age", kind="continuous", lower=0.0, upper=100.0, missing=True),
        "rating": Column(name="rating", kind="ordinal", categories=("C", "B", "A"), missing=True),
    }
    columns = Columns([changed.get(name, column) for name, column in COLUMNS.items()])
    tables: tuple[Names, ...] = (("age",), ("visits",), ("age", "visits"), ("age", "rating"), ("age", "rating", "sued"))
    tables = computed_by(engine, blocks, (*tables, ("sector", "rating"), ("sector",)))
    given = computing_by(engine, blocks)
    with three_parties(tmp_path, columns=columns, allow=ALLOW, **given) as federation:
        result = Tables(tables=tables, bins=4, epsilon=None).fit(federation)
    for names in tables:
        assert np.array_equal(result[names], counted(given["blocks"], names)), names
    assert result[("age",)].sum() < result[("visits",)].sum()
    assert "missing" not in result.labels["age"]


def test_columns_that_share_no_record_have_an_empty_table(tmp_path: Path, engine: str) -> None:
    blocks = blocks_of_every_pattern(30)
    whole = {party: frame.sort_values("id").reset_index(drop=True) for party, frame in blocks.items()}
    bank = pd.concat([whole["bank"].query("id == 'K00004'"), whole["bank"][-3:]])  # the first is at clinic too
    apart = {"clinic": whole["clinic"][:6], "court": whole["court"][8:14], "bank": bank.reset_index(drop=True)}
    tables = computed_by(engine, apart, (("age", "sued"), ("age", "sued", "sector"), ("sector",)))
    with three_parties(tmp_path, allow=ALLOW, **computing_by(engine, apart)) as federation:
        result = Tables(tables=tables, bins=4, epsilon=None).fit(federation)
    assert not any(result[names].any() for names in tables[:-1])
    assert result[("sector",)].sum() == 4


def test_one_record_moves_one_cell_of_each_table_by_one(tmp_path: Path, engine: str) -> None:
    """The sensitivity of the claim: a block of one record is taken away."""
    given = computing_by(engine, blocks_of_every_pattern())
    tables = computed_by(engine, given["blocks"], MANY)
    *_, last = given["blocks"]
    less = {**given["blocks"], last: given["blocks"][last].drop(index=3)}
    results = []
    for number, blocks in enumerate((given["blocks"], less)):
        with three_parties(tmp_path / str(number), allow=ALLOW, **(given | {"blocks": blocks})) as federation:
            results.append(Tables(tables=tables, bins=4, epsilon=None).fit(federation))
    moved = [np.abs(results[0][names] - results[1][names]) for names in tables]
    assert all(change.sum() <= 1 for change in moved)
    assert sum(change.sum() for change in moved) >= 2


def test_two_data_parties_and_an_independent_holder(tmp_path: Path) -> None:
    blocks = blocks_of_every_pattern()
    del blocks["bank"]
    method = Tables(tables=(("age", "sued"), ("sued",)), bins=4, epsilon=None)
    with three_parties(tmp_path / "two", blocks=blocks, allow=ALLOW) as federation, pytest.raises(TooFewHolders):
        method.fit(federation)
    with three_parties(tmp_path / "three", blocks=blocks, allow=ALLOW, holder="Notary") as federation:
        assert np.array_equal(method.fit(federation)[("age", "sued")], counted(blocks, ("age", "sued")))


def test_noise_has_the_stated_size_and_the_split_is_kept(tmp_path: Path, engine: str) -> None:
    """Mean square of noisy - exact over the variance: 600 cells a table, so a sd of 6 %, and 5 of them are allowed.
    Parties in pairs encrypt each cell, and have 150."""
    tables = (("age", "sector", "visits"), ("age", "rating", "visits"))
    bins, cells = ({"age": 20, "visits": 10}, 600) if engine == "holders" else ({"age": 10, "visits": 5}, 150)
    with three_parties(tmp_path, allow=ALLOW, **committee_of(engine)) as federation:
        exact = Tables(tables=tables, bins=bins, epsilon=None).fit(federation)
        method = Tables(tables=tables, bins=bins, epsilon=1.0, split=(4, 1))
        noisy, plan = method.fit(federation, sure=True), federation.plan(method)
    assert exact[tables[0]].size == cells
    for names in tables:
        ratio = np.mean(np.square(noisy[names] - exact[names])) / noisy.noise_sd[names] ** 2
        assert abs(ratio - 1) < 5 * np.sqrt(2 / cells)
        assert np.array_equal(noisy[names], np.rint(noisy[names]))
    # mu = s and 4 s, each rounded up to a whole number: the second is between 4 (mu - 1) and 4 mu + 1.
    small, large = (noisy.noise_sd[names] ** 2 / 2 for names in tables)
    assert 4 * (small - 1) < large < 4 * small + 1
    assert 0.95 < plan.total().epsilon <= 1.0


def test_the_plan_counts_each_table_once_for_a_person(tmp_path: Path, engine: str) -> None:
    tables = (("age", "sector"), ("age", "sued"), ("sector",), ("age", "sued", "rating"))
    tables = computed_by(engine, three_overlapping_blocks(), tables)
    with three_parties(tmp_path, allow=ALLOW, **committee_of(engine)) as federation:
        plan = federation.plan(Tables(tables=tables, epsilon=1.0))
        assert 0.98 < plan.total().epsilon <= 1.0
        parts = {party: plan.total(party=party).epsilon for party in federation.facts.parties}
        assert parts["court"] < parts["clinic"] == pytest.approx(parts["bank"])
        assert parts["bank"] < plan.total().epsilon, "a table between two others costs the bank nothing"
        strict = federation.plan(Tables(tables=tables, epsilon=1.0, relation="replace"))
        assert 0.98 < strict.total(relation="replace").epsilon <= 1.0
        text = strict.text()
        assert "standard deviation" in text
        assert "Server view" in text
        assert federation.plan(Tables(tables=tables, epsilon=None)).total().unbounded == ("exact-tables",)


def test_more_tables_need_more_noise_and_the_server_view_less(tmp_path: Path, engine: str) -> None:
    """T tables need about T times the variance (Renyi composition); c = 1 of m = 3 colluders need 3/2 of it."""
    with three_parties(tmp_path, **committee_of(engine)) as federation:
        facts, roster = federation.facts, federation.roster
        one = Tables(tables=(("age",),), epsilon=0.5).layout(facts, roster).mus[0]
        four = Tables(tables=(("age",), ("visits",), ("sued",), ("sector",)), epsilon=0.5)
        server = Tables(tables=(("age",),), epsilon=0.5, view="server").layout(facts, roster).mus[0]
        assert four.layout(facts, roster).mus[0] / one == pytest.approx(4, rel=0.15)
        assert one / server == pytest.approx(1.5, rel=0.05)


def test_an_opening_happens_once(tmp_path: Path) -> None:
    with three_parties(tmp_path, allow=ALLOW) as federation:
        plan, stages = planned(federation, Tables(tables=(("age", "sued"),), epsilon=1.0))
        with pytest.raises(BeyondReservation), federation.open(plan) as job:
            job.ask(stages.share)
            assert len(list(stages.all_opened(job, stages.layout))) == 1
            for party in job._seq:  # even if the ledger did not mind
                federation.transport[party].ledger.debit = lambda **_: True  # type: ignore[index]
            job.ask(asking(stages.open, again=True))


def planned(federation: Federation, method: Tables) -> tuple[Plan, TableComputation]:
    """A plan, and the stages that it has."""
    stages = method.procedure(federation.facts, federation.roster)
    return method.plan(federation.facts, federation.roster), stages


def openers(federation: Federation) -> set[str]:
    """Who let a share of the result go."""
    return {
        party
        for party in federation.roster.committee
        for row in federation.transport[party].transcript.rows()  # type: ignore[index]
        if row.body["kind"] == "release" and row.body["step"].endswith("open_shares")
    }


@pytest.mark.parametrize("tables", [(("age", "sued"),), (("age", "sued", "sector"),)])
def test_nothing_opens_without_everybodys_noise(tmp_path: Path, tables: Any) -> None:
    with three_parties(tmp_path, allow=ALLOW) as federation:
        plan, stages = planned(federation, Tables(tables=tables, epsilon=1.0))
        with pytest.raises(SecureError), federation.open(plan) as job:
            job.ask(stages.share)
            for mail in job._pending.values():
                mail[:] = [letter for letter in mail if not (letter.sender == "bank" and "noise" in letter.tag)]
            if len(tables[0]) == 3:
                job.ask(stages.multiply)
            job.ask(stages.compare)
            job.ask(stages.open)
        # The bank has its own noise and may answer: one share of a polynomial of degree 2 says nothing.
        assert openers(federation) <= {"bank"}


def test_nothing_opens_if_a_member_was_asked_for_less_noise(tmp_path: Path) -> None:
    """The independent holder pays nothing, so no ledger keeps a coordinator from asking it for mu = 1: the plan that it
    makes itself does."""
    blocks = blocks_of_every_pattern()
    del blocks["bank"]
    with three_parties(tmp_path, blocks=blocks, allow=ALLOW, holder="Notary") as federation:
        plan, stages = planned(federation, Tables(tables=(("age", "sued"),), epsilon=1.0))
        weaker = {**stages.layout.to_dict(), "mus": [1]}
        with pytest.raises(UnsafeRequest), federation.open(plan) as job:
            job.ask(asking(stages.share, holder={"layout": weaker}))
        assert not openers(federation)


def test_exact_tables_must_be_allowed_by_name(tmp_path: Path, engine: str) -> None:
    with three_parties(tmp_path, **committee_of(engine)) as federation, pytest.raises(UnboundedNotAllowed):
        Tables(tables=(("age",),), epsilon=None).fit(federation)


def test_a_run_writes_its_tables_and_options_survive(tmp_path: Path, engine: str) -> None:
    method = Tables(tables=[("age", "sued")], bins={"age": 3}, epsilon=2.0, split=(1,))  # type: ignore[arg-type]
    assert Tables.from_options(method.options()) == method
    with three_parties(tmp_path, seed=3, **committee_of(engine)) as federation:
        result, run = federation.run(method)
    plain = run.read_json("result.json")
    assert plain["tables"][0]["counts"] == result[("age", "sued")].tolist()
    assert plain["simulated"]
    assert len(plain["labels"]["age"]) == 3


def test_bad_options(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(BadArguments, match="tables is a list"):
        Tables(tables=("age",))  # type: ignore[arg-type]
    with pytest.raises(BadPrivacyParameter, match="delta above 0"):
        Tables(tables=(("age",),), delta=0.0)
    with pytest.raises(BadPrivacyParameter, match="positive share"):
        Tables(tables=(("age",),), split=(1, 1))
    blocks, columns = blocks_of_every_pattern(93, parties=5), FIVE_COLUMNS
    with three_parties(tmp_path, blocks=blocks, columns=columns) as federation:

        def refused(kind: type[Exception], match: str, **options: Any) -> None:
            with pytest.raises(kind, match=match):
                federation.plan(Tables(**{"tables": (("age",),), **options}))

        refused(UnknownColumn, "height", tables=(("height",),))
        refused(BadArguments, "each set of columns once", tables=(("age", "sued"), ("sued", "age")))
        refused(BadArguments, "each set of columns once", tables=())
        refused(BadArguments, "each of its columns once", tables=(("age", "age"),))
        refused(BadArguments, "more than three parties", tables=(("age", "sued", "rating", "x0"),))
        refused(BadArguments, "number of bins", bins=0)
        refused(BadArguments, "bins does not say", bins={})
        monkeypatch.setattr(module, "MAXIMUM_CELLS", 11)
        refused(BadArguments, "fewer bins or tables", tables=(("sector", "rating", "sued"),))


@pytest.mark.parametrize(("options", "members"), [({"holder": "Notary"}, 4), ({"committee": "pair"}, 3)])
def test_the_noise_of_unequal_shares_is_accounted(tmp_path: Path, options: Any, members: int) -> None:
    """Oracle: the accountant itself, asked again for the integers that came out."""
    tables = (("age",), ("sued",), ("rating",))
    with three_parties(tmp_path, **options) as federation:
        method = Tables(tables=tables, split=(1.0, 2.0, 0.5), epsilon=0.7)
        mus = method.layout(federation.facts, federation.roster).mus
        assert len(federation.roster.names) == members
    costs = [Skellam(mu, delta_1=1, delta_2=1, parties=members, colluders=1, shift="single") for mu in mus]
    total = guarantee(costs, delta=1e-6)
    assert 0.69 < total.epsilon <= 0.7
    # A share twice as large has half the mu, but for rounding up to integers.
    first, double, half = mus
    assert 2 * (double - 1) < first < 2 * double + 1
    assert 2 * (first - 1) < half < 2 * first + 1


def test_less_memory_takes_more_rounds_and_too_little_is_refused(tmp_path: Path) -> None:
    """In MB of a process, as in every method: 401 MB leave room for some rows, 400 MB for none."""
    blocks = blocks_of_every_pattern(2000)
    tables = (("age", "sued", "sector"), ("visits", "rating"))
    with three_parties(tmp_path, blocks=blocks, allow=ALLOW) as federation:

        def rounds(memory: float | None) -> int:
            return federation.plan(Tables(tables=tables, bins=8, epsilon=None, memory=memory, verify=False)).rounds()

        assert rounds(None) == rounds(1000) < rounds(402) < rounds(401)
        with pytest.raises(BadArguments, match="needs about 401 MB"):
            rounds(400)
        with pytest.raises(BadArguments, match=r"needs about 40[2-9] MB"):  # proofs take some too
            federation.plan(Tables(tables=tables, bins=8, epsilon=None, memory=401))
        result = Tables(tables=tables, bins=4, epsilon=None, memory=401, verify=False).fit(federation)
        assert np.array_equal(result[tables[0]], counted(blocks, tables[0]))
