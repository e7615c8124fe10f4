"""The border under the rounds of tables, and under VertiMRF's keys: noise, reservations. Requests go to real parties,
one by one."""

from __future__ import annotations

import tracemalloc
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from colonnade.errors import BadArguments, PartyLost, RunError, SecureError, UnsafeRequest
from colonnade.federation.coordinator import Federation
from colonnade.federation.plan import Plan
from colonnade.papers.vertimrf.sketches import FMSketches
from colonnade.synthesis.field.rounds import Round, TableRounds, chosen_for
from colonnade.synthesis.field.schema import Schema, TableQuery
from support.asking import asking
from support.plans import plan_of_stages
from support.small import three_overlapping_blocks, three_parties


@pytest.fixture
def federation(tmp_path: Path) -> Iterator[Federation]:
    with three_parties(tmp_path, seed=1, allow=("fm-sketches",)) as consortium:
        yield consortium


def two_rounds(federation: Federation) -> tuple[Plan, TableRounds, Round, Round]:
    schema = Schema.declared(federation.facts, bins=4)
    rounds = TableRounds(schema, federation.roster, "client", units=(2, 3), mus=(50, 80))
    plan = plan_of_stages("synthesize", rounds.stages)
    first = rounds.layout(schema, 0, [TableQuery.of(("age",)), TableQuery.of(("sued",))])
    second = rounds.layout(schema, 1, [TableQuery.of(("age", "sued"), units=3)])
    return plan, rounds, first, second


def test_a_round_with_less_noise_or_more_tables_is_refused(federation: Federation) -> None:
    plan, rounds, first, _ = two_rounds(federation)
    for greedy in (
        replace(first, tables=(*first.tables, TableQuery.of(("rating",)))),
        replace(first, tables=(TableQuery.of(("age",), units=3),)),
        replace(first, edges={**first.edges, "age": (0.0, 50.0, 100.0)}),
    ):
        with federation.open(plan) as job, pytest.raises(UnsafeRequest):
            job.ask(rounds.share_rows, chosen=chosen_for(greedy))
    less_noise = replace(first, mu=40).to_dict()
    with federation.open(plan) as job, pytest.raises(UnsafeRequest):
        job.ask(asking(rounds.share_rows, **{party: {"layout": less_noise} for party in federation.roster.names}))


def test_what_the_plan_fixes_cannot_be_asked_in_another_way(federation: Federation) -> None:
    """The tables are named later; noise and view are not."""
    plan, rounds, first, _ = two_rounds(federation)
    with federation.open(plan) as job, pytest.raises(RunError, match="fixes view"):
        job.ask(rounds.share_rows, chosen=chosen_for(first), view="server")
    with federation.open(plan) as job, pytest.raises(RunError, match="fixes layout"):
        job.ask(rounds.share_rows, layout=replace(first, mu=60).to_dict())
    assert "at most 2 tables, each count with mu 50" in rounds.share_rows.later["chosen"].rule


def test_a_round_opens_once_and_only_in_its_turn(federation: Federation) -> None:
    plan, rounds, first, second = two_rounds(federation)
    with federation.open(plan) as job:
        job.ask(rounds.share_rows, chosen=chosen_for(first))
        job.ask(rounds.compare, chosen=chosen_for(first))
        job.ask(rounds.open, chosen=chosen_for(first))
        with pytest.raises(UnsafeRequest):
            job.ask(asking(rounds.open, **dict.fromkeys(federation.roster.committee, rounds.open.requests["bank"][0])))
    with federation.open(plan) as job:
        job.ask(rounds.share_rows, chosen=chosen_for(first))
        job.ask(rounds.compare, chosen=chosen_for(first))
        job.ask(rounds.open, chosen=chosen_for(first))
        job.ask(rounds.share_noise, chosen=chosen_for(second))
        job.ask(rounds.compare, chosen=chosen_for(second))
        shares = job.ask(rounds.open, chosen=chosen_for(second))
        assert {share.shape[1] for share in shares.values()} == {3 * 4 * 2}, "three units of a table of 8 cells"


def test_nothing_opens_if_one_member_was_asked_for_another_round(federation: Federation) -> None:
    """A member that dealt noise for another layout deals it under another tag: the others miss it."""
    plan, rounds, first, _ = two_rounds(federation)
    other = replace(first, tables=(TableQuery.of(("age",)), TableQuery.of(("rating",))))
    with federation.open(plan) as job:
        layouts = {
            party: {"chosen": chosen_for(other if party == "bank" else first)} for party in federation.facts.parties
        }
        job.ask_each(rounds.share_rows, layouts)
        with pytest.raises(SecureError):
            job.ask(rounds.compare, chosen=chosen_for(first))


@pytest.mark.parametrize(
    "change",
    [
        {"number": -1},
        {"mu": 81},
        {"tables": []},
        {"tables": [{"columns": ["age"], "bins": [None], "units": 0}]},
        {"tables": [{"columns": ["age", "age"], "bins": [None, None], "units": 1}]},
        {"tables": [{"columns": ["age"], "bins": [[0, 1]], "units": 1}]},
        {"tables": [{"columns": ["age"], "bins": [[0, 2, 2, 2]], "units": 1}]},
        {"tables": [{"columns": ["age", "sued", "rating"], "bins": [None] * 3, "units": 1}]},
        {"tables": [{"columns": ["nothing"], "bins": [None], "units": 1}]},
        {"names": ["age"], "edges": {"age": [3.0, 1.0]}},
        {"names": ["age"], "edges": {}},
        {"names": None},
        {"label": "sqm tables 1"},
    ],
    ids=str,
)
def test_a_round_that_makes_no_sense_is_refused(federation: Federation, change: dict[str, Any]) -> None:
    _, _, first, _ = two_rounds(federation)
    with pytest.raises(BadArguments):
        Round.from_dict(federation.facts, federation.roster, first.to_dict() | change)
    assert Round.from_dict(federation.facts, federation.roster, first.to_dict()) == first


def test_a_huge_bin_takes_no_memory(federation: Federation) -> None:
    """All numbers up to the largest bin were counted to compare with; the hostile study found it, with 10^9."""
    _, _, first, _ = two_rounds(federation)
    change = {"tables": [{"columns": ["age"], "bins": [[0, 1, 2, 10**7]], "units": 1}]}
    tracemalloc.start()
    with pytest.raises(BadArguments, match="bins of 'age'"):
        Round.from_dict(federation.facts, federation.roster, first.to_dict() | change)
    assert tracemalloc.get_traced_memory()[1] < 20 * 2**20
    tracemalloc.stop()


def test_a_record_moves_each_table_by_one_at_most(tmp_path: Path) -> None:
    """The same federation without one record, exact: each table differs by 1 in one cell, or nowhere."""
    tables = []
    for run, dropped in enumerate((None, "K00002")):
        blocks = three_overlapping_blocks(60)
        if dropped:
            blocks = {party: frame[frame["id"] != dropped] for party, frame in blocks.items()}
        blocks["clinic"].loc[len(blocks["clinic"]) + 99] = ["K99999", 5.0, 1]  # keeps another record in place
        with three_parties(tmp_path / str(run), blocks=blocks, allow=("exact-tables",), seed=1) as federation:
            schema = Schema.declared(federation.facts, bins=4)
            rounds = TableRounds(schema, federation.roster, "client", units=(20,), mus=(0,))
            columns = [("age",), ("age", "sued"), ("age", "visits", "rating")]
            with federation.open(plan_of_stages("synthesize", rounds.stages)) as job:
                tables.append(rounds.tables(job, schema, 0, [TableQuery.of(names) for names in columns]))
    moved = [np.abs(before.counts - after.counts).sum() for before, after in zip(*tables, strict=True)]
    assert all(change in (0, 1) for change in moved)
    assert sum(moved) > 0


def test_the_coordinator_never_sees_the_hash_key(federation: Federation) -> None:
    """The parts of the key travel sealed: no reply has them, and without them nothing is sketched."""
    schema = Schema.declared(federation.facts, bins=4)
    encoder = FMSketches(schema, federation.roster, epsilon=0.1, sketches=4, bins=3)
    plan = plan_of_stages("vertimrf", encoder.stages)
    with federation.open(plan) as job:
        replies = job.ask(encoder.keys)
        assert set(replies.values()) == {None}
        levels = job.ask(encoder.sketches)
    assert {name for answer in levels.values() for name in answer} == set(schema.names)
    with federation.open(plan) as job, pytest.raises(PartyLost):
        job.ask(encoder.sketches)
