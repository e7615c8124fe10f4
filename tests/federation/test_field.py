"""The border under VertiMRF's rounds: noise, reservations, keys. Requests go to real parties, one by one."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from colonnade.errors import BadArguments, BeyondReservation, PartyLost, UnsafeRequest
from colonnade.federation.coordinator import Federation
from colonnade.federation.plan import Plan
from colonnade.papers.vertimrf.sketches import FMSketches, share_key, sketched_columns
from colonnade.synthesis.field.procedure import SQM
from colonnade.synthesis.field.rounds import LABEL, Round, open_round, share_noise, share_rows
from colonnade.synthesis.field.schema import Schema, Wanted
from support.small import three_parties

ENCODER = SQM(units=(2, 3), mus=(50, 80), view="client")
FIRST, SECOND = f"{LABEL}: share rows", f"{LABEL}: share noise"
OPEN = f"{LABEL}: open"


@pytest.fixture
def federation(tmp_path: Path) -> Iterator[Federation]:
    with three_parties(tmp_path, seed=1, allow=("fm-sketches",)) as made:
        yield made


def rounds(federation: Federation) -> tuple[Plan, Round, Round]:
    schema = Schema.declared(federation.facts, bins=4)
    plan = Plan(method="vertimrf", options={}, phases=tuple(ENCODER.phases(schema, federation.roster)))
    first = Round(
        schema=schema,
        roster=federation.roster,
        number=0,
        wanted=(Wanted.of(("age",)), Wanted.of(("sued",))),
        mu=50,
        largest_mu=80,
    )
    second = replace(first, number=1, mu=80, wanted=(Wanted.of(("age", "sued"), units=3),))
    return plan, first, second


def asked(known: Round) -> dict[str, Any]:
    return {"layout": known.to_dict(), "view": "client"}


def test_a_round_with_less_noise_or_more_tables_is_refused(federation: Federation) -> None:
    plan, first, _ = rounds(federation)
    for greedy in (
        replace(first, mu=40),
        replace(first, wanted=(*first.wanted, Wanted.of(("rating",)))),
        replace(first, wanted=(Wanted.of(("age",), units=3),)),
    ):
        with federation.open(plan) as job, pytest.raises(BeyondReservation):
            job.ask(share_rows, phase=FIRST, **asked(greedy))


def test_a_round_opens_once_and_only_in_its_turn(federation: Federation) -> None:
    plan, first, second = rounds(federation)
    with federation.open(plan) as job:
        with pytest.raises(UnsafeRequest):
            job.ask(share_noise, phase=SECOND, **asked(replace(first, wanted=(Wanted.of(("age",)),))))
        job.ask(share_rows, phase=FIRST, **asked(first))
        job.ask(open_round, phase=OPEN, **asked(first))
        with pytest.raises(UnsafeRequest):
            job.ask(open_round, phase=OPEN, **asked(first))
    with federation.open(plan) as job:
        job.ask(share_rows, phase=FIRST, **asked(first))
        job.ask(open_round, phase=OPEN, **asked(first))
        job.ask(share_noise, phase=SECOND, **asked(second))
        shares = job.ask(open_round, phase=OPEN, **asked(second))
        assert {one.shape[1] for one in shares.values()} == {3 * 4 * 2}, "three units of a table of 8 cells"


def test_nothing_opens_if_one_member_was_asked_for_another_round(federation: Federation) -> None:
    """A member that dealt noise for another layout deals it under another tag: the others miss it."""
    plan, first, _ = rounds(federation)
    other = replace(first, wanted=(Wanted.of(("age",)), Wanted.of(("rating",))))
    with federation.open(plan) as job:
        layouts = {party: asked(other if party == "bank" else first) for party in federation.facts.parties}
        job.ask_each(share_rows, layouts, phase=FIRST)
        with pytest.raises(PartyLost):
            job.ask(open_round, phase=OPEN, **asked(first))


@pytest.mark.parametrize(
    "change",
    [
        {"number": -1},
        {"mu": 81},
        {"wanted": []},
        {"wanted": [{"columns": ["age"], "bins": [None], "units": 0}]},
        {"wanted": [{"columns": ["age", "age"], "bins": [None, None], "units": 1}]},
        {"wanted": [{"columns": ["age"], "bins": [[0, 1]], "units": 1}]},
        {"wanted": [{"columns": ["age"], "bins": [[0, 2, 2, 2]], "units": 1}]},
        {"wanted": [{"columns": ["age", "sued", "rating"], "bins": [None] * 3, "units": 1}]},
        {"wanted": [{"columns": ["nothing"], "bins": [None], "units": 1}]},
        {"schema": {"names": ["age"], "edges": {"age": [3.0, 1.0]}}},
        {"schema": {"names": ["age"], "edges": {}}},
        {"schema": None},
    ],
    ids=str,
)
def test_a_round_that_makes_no_sense_is_refused(federation: Federation, change: dict[str, Any]) -> None:
    _, first, _ = rounds(federation)
    with pytest.raises(BadArguments):
        Round.from_dict(federation.facts, federation.roster, first.to_dict() | change)
    assert Round.from_dict(federation.facts, federation.roster, first.to_dict()) == first


def test_a_record_moves_each_table_by_one_at_most(tmp_path: Path) -> None:
    """The same federation without one record, exact: each table differs by 1 in one cell, or nowhere."""
    from support.small import three_overlapping_blocks

    tables = []
    for run, dropped in enumerate((None, "K00002")):
        blocks = three_overlapping_blocks(60)
        if dropped:
            blocks = {party: frame[frame["id"] != dropped] for party, frame in blocks.items()}
        blocks["clinic"].loc[len(blocks["clinic"]) + 99] = ["K99999", 5.0, 1]  # keeps another record in place
        with three_parties(tmp_path / str(run), blocks=blocks, allow=("exact-tables",), seed=1) as federation:
            encoder = SQM(units=(20,), mus=(0,), view="client")
            schema = Schema.declared(federation.facts, bins=4)
            plan = Plan(method="vertimrf", options={}, phases=tuple(encoder.phases(schema, federation.roster)))
            wanted = [Wanted.of(("age",)), Wanted.of(("age", "sued")), Wanted.of(("age", "visits", "rating"))]
            with federation.open(plan) as job:
                tables.append(encoder.encode(job, schema).tables(wanted))
    moved = [np.abs(one.counts - other.counts).sum() for one, other in zip(*tables, strict=True)]
    assert all(one in (0, 1) for one in moved)
    assert sum(moved) > 0


def test_the_coordinator_never_sees_the_hash_key(federation: Federation) -> None:
    """The parts of the key travel sealed: no reply has them, and without them nothing is sketched."""
    encoder = FMSketches(epsilon=0.1, sketches=4, bins=3)
    schema = Schema.declared(federation.facts, bins=4)
    plan = Plan(method="vertimrf", options={}, phases=tuple(encoder.phases(schema, federation.roster)))
    with federation.open(plan) as job:
        replies = job.ask(share_key)
        assert set(replies.values()) == {None}
        levels = job.ask(sketched_columns, phase="LocEnc", **encoder._arguments(schema))
    assert {name for one in levels.values() for name in one} == set(schema.names)
    with federation.open(plan) as job, pytest.raises(PartyLost):
        job.ask(sketched_columns, phase="LocEnc", **encoder._arguments(schema))
