"""Bad input: its own exception, one sentence with the cure, and nothing on disk changes but the log."""

from __future__ import annotations

import hashlib
import sqlite3
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

import colonnade
from colonnade.data.column import Column, Columns
from colonnade.errors import (
    BadPrivacyParameter,
    ColonnadeError,
    ColumnConflict,
    CorruptRecord,
    DomainError,
    DuplicateColumn,
    EmptyParty,
    KeyProblem,
    PartyLost,
    RosterError,
    RunError,
    SchemaError,
    SourceError,
    TooFewHolders,
    UnknownColumn,
    _family,
    codes,
    from_code,
)
from colonnade.federation.config import Spec
from colonnade.federation.coordinator import Federation
from colonnade.federation.roster import Member, Roster
from colonnade.privacy.ledger import Budget
from colonnade.statistics.describe import Describe
from colonnade.statistics.joint import colluders
from support.small import COLUMNS, three_overlapping_blocks, three_parties

Blocks = dict[str, pd.DataFrame]


def on_disk(folder: Path) -> dict[str, str]:
    """Every file but the logs, with its hash. The database's transcript of refused messages counts as a log."""
    return {
        str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(folder.rglob("*"))
        if path.is_file() and path.name not in ("log.txt", "process.txt", "party.db", "party.db-wal", "party.db-shm")
    }


def spoiled(change: Callable[[Blocks], None]) -> Blocks:
    blocks = three_overlapping_blocks()
    change(blocks)
    return blocks


def duplicate_key(blocks: Blocks) -> None:
    blocks["clinic"].loc[1, "id"] = blocks["clinic"].loc[0, "id"]


def missing_key(blocks: Blocks) -> None:
    blocks["clinic"].loc[1, "id"] = None


def keys_of_another_type(blocks: Blocks) -> None:
    blocks["court"]["id"] = np.arange(len(blocks["court"]))


def keys_written_in_other_ways(blocks: Blocks) -> None:
    for place, party in enumerate(blocks):
        blocks[party]["id"] = [f"{place * ' x'}{key}" for key in blocks[party]["id"]]


def outside_domain(blocks: Blocks) -> None:
    blocks["clinic"].loc[3, "age"] = 1000.0


def unknown_category(blocks: Blocks) -> None:
    blocks["bank"].loc[3, "rating"] = "Z"


def empty_cell(blocks: Blocks) -> None:
    blocks["clinic"].loc[3, "age"] = np.nan


def undeclared_column(blocks: Blocks) -> None:
    blocks["clinic"]["weigth"] = 1.0


def column_twice(blocks: Blocks) -> None:
    blocks["clinic"] = pd.concat([blocks["clinic"], blocks["clinic"][["age"]]], axis=1)


def two_parties_claim_one_column(blocks: Blocks) -> None:
    blocks["court"]["age"] = 1.0


def empty_party(blocks: Blocks) -> None:
    blocks["court"] = blocks["court"].iloc[:0]


def no_key_column(blocks: Blocks) -> None:
    blocks["court"] = blocks["court"].rename(columns={"id": "key"})


@pytest.mark.parametrize(
    ("change", "kind", "cure"),
    [
        (duplicate_key, KeyProblem, "clinic"),
        (missing_key, KeyProblem, "clinic"),
        (keys_of_another_type, KeyProblem, "convert|type"),
        (keys_written_in_other_ways, KeyProblem, "written alike"),
        (outside_domain, DomainError, "age"),
        (unknown_category, DomainError, "rating"),
        (empty_cell, DomainError, "missing"),
        (undeclared_column, UnknownColumn, "weigth"),
        (column_twice, DuplicateColumn, "age"),
        (two_parties_claim_one_column, ColumnConflict, "rename"),
        (empty_party, EmptyParty, "court"),
        (no_key_column, SchemaError, "id"),
    ],
)
def test_a_spoiled_block_is_refused_before_anything_is_written(
    tmp_path: Path, change: Callable[[Blocks], None], kind: type[ColonnadeError], cure: str
) -> None:
    with pytest.raises(kind, match=cure) as caught:
        three_parties(tmp_path, blocks=spoiled(change))
    assert "\n" not in str(caught.value)
    assert not list(tmp_path.iterdir())


def test_a_message_never_quotes_keys(tmp_path: Path) -> None:
    for change in (duplicate_key, missing_key):
        with pytest.raises(KeyProblem) as caught:
            three_parties(tmp_path, blocks=spoiled(change))
        assert "K0" not in str(caught.value)


def test_an_unreadable_source(tmp_path: Path) -> None:
    with pytest.raises(SourceError, match=r"nowhere.csv cannot be read \(there is no such file\)"):
        Federation.local({"a": tmp_path / "nowhere.csv"}, key="id", columns=COLUMNS, home=tmp_path / "home")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("epsilon", [0.0, -1.0, float("nan")])
def test_a_budget_out_of_range(epsilon: float) -> None:
    with pytest.raises(BadPrivacyParameter, match="epsilon"):
        Budget(epsilon=epsilon)
    with pytest.raises(BadPrivacyParameter, match="period"):
        Budget(epsilon=1.0, period_days=0)


def test_a_party_that_disappears(tmp_path: Path) -> None:
    with three_parties(tmp_path, transport="processes") as federation:
        federation.handshake()
        before = on_disk(tmp_path)
        federation.transport._command = ("false",)  # type: ignore[attr-defined]
        federation.transport._end("court")  # type: ignore[attr-defined]
        with pytest.raises(PartyLost, match=r"court.*resume"):
            federation.run(Describe())
        assert on_disk(tmp_path) == before, "no run folder is made for a job that could not be proposed"


def test_corrupted_records_are_refused(tmp_path: Path) -> None:
    with three_parties(tmp_path) as federation:
        run = federation.run(Describe())[1]
    for path, table in (
        (tmp_path / "home" / "clinic" / "party.db", "ledger"),
        (run.path / "transcript.db", "transcript"),
    ):
        raw = sqlite3.connect(path)
        raw.execute(f"DROP TRIGGER {table}_no_update")
        raw.execute(f"UPDATE {table} SET body = replace(body, '\"seq\":1', '\"seq\":7')")
        raw.commit()
        raw.close()
    from colonnade.durable import Database
    from colonnade.federation.messages import Transcript
    from colonnade.privacy.ledger import Ledger

    with pytest.raises(CorruptRecord, match="restore"):
        Ledger(Database(tmp_path / "home" / "clinic" / "party.db")).verify()
    with pytest.raises(CorruptRecord, match="restore"):
        Transcript(Database(run.path / "transcript.db")).verify()


def test_keys_that_changed_since_the_alignment(tmp_path: Path) -> None:
    """A party's process refuses to serve a block whose keys are not the aligned ones."""
    from colonnade.federation.home import open_party

    with three_parties(tmp_path, transport="processes"):
        pass
    block = tmp_path / "home" / "clinic" / "block.parquet"
    pd.read_parquet(block).iloc[::-1].to_parquet(block, index=False)
    with pytest.raises(SourceError, match="align the federation again"):
        open_party(tmp_path / "home" / "clinic")


def test_a_federation_toml_with_mistakes(tmp_path: Path) -> None:
    path = tmp_path / "federation.toml"
    for text, cure in [
        ("key = ", "cannot be read"),
        ("key = 'id'", "lacks columns, parties. `colonnade docs federation-toml`"),
        ("key = 'id'\ncolumns = 'c.toml'\n[parties]\n", "at least one"),
        ("key = 'id'\ncolumns = 'c.toml'\n[parties.a]\n", "'a' in parties .* lacks source"),
        ("key = 'id'\ncolumns = 'c.toml'\n[parties.a]\nsorce = 'a.csv'", "Did you mean 'source'"),
        ("key = 'id'\ncolumns = 'c.toml'\ncolour = 1\n[parties.a]\nsource = 'a.csv'", "'colour'.*it has key, holder"),
        ("key = 'id'\ncolums = 'c.toml'\n[parties.a]\nsource = 'a.csv'", "'colums'.*Did you mean 'columns'"),
        ("key = 'id'\ncolumns = 'c.toml'\nthreshold = true\n[parties.a]\nsource = 'a.csv'", "must be an integer"),
        ("key = 'id'\ncolumns = 'c.toml'\nallow = 'x'\n[parties.a]\nsource = 'a.csv'", "allow in .* is a list"),
        ("key = 'id'\ncolumns = 'c.toml'\n[parties.a]\nsource = 'a.csv'\n[budget]\nepsilonn = 1.0", "'epsilon'"),
    ]:
        path.write_text(text)
        with pytest.raises(SchemaError, match=cure):
            Spec.from_toml(path)


def members(*organisations: str) -> tuple[Member, ...]:
    return tuple(
        Member(name=f"p{number}", organisation=organisation, public_key=bytes([number]) * 32)
        for number, organisation in enumerate(organisations)
    )


def test_unsound_rosters() -> None:
    three = members("a", "b", "c")
    committee = ("p0", "p1", "p2")
    assert Roster(members=three, committee=committee).data_parties == committee
    with pytest.raises(RosterError, match="same name"):
        Roster(members=(three[0], three[0]))
    with pytest.raises(RosterError, match="same key"):
        Roster(members=(three[0], Member(name="x", organisation="x", public_key=three[0].public_key)))
    with pytest.raises(RosterError, match="pool their shares"):
        Roster(members=members("a", "b", "a"), committee=committee)
    with pytest.raises(TooFewHolders, match="at least 3"):
        Roster(members=three, committee=("p0", "p1"))
    with pytest.raises(TooFewHolders, match="at least 5"):
        Roster(members=three, committee=committee, threshold=2)
    with pytest.raises(RosterError, match="honest noise"):
        Roster(members=three, colluders=3)
    with pytest.raises(RosterError, match="each of its members once"):
        Roster(members=three, committee=("p0", "p1", "nobody"))
    with pytest.raises(RosterError, match="owns data"):
        Roster(
            members=tuple(
                Member(name=m.name, organisation=m.organisation, public_key=m.public_key, owns_data=False)
                for m in three
            )
        )
    assert Roster.from_dict(Roster(members=three, committee=committee).to_dict()) == Roster(
        members=three, committee=committee
    )


def test_an_organisation_knows_the_noise_of_all_its_members() -> None:
    """One colluder is one organisation: if it runs two of five members, three members' noise is left to count."""
    committee = ("p0", "p1", "p2")
    apart = Roster(members=members(*"abcde"), committee=committee)
    twice = Roster(members=members(*"abcdc"), committee=committee)
    assert [colluders(one, "client") for one in (apart, twice)] == [1, 2]
    assert [colluders(one, "server") for one in (apart, twice)] == [0, 0]
    assert colluders(Roster(members=members(*"abcdc"), committee=committee, colluders=2), "client") == 3
    with pytest.raises(RosterError, match="run all 2 members"):
        colluders(Roster(members=members("a", "a")), "client")


def test_a_holder_of_one_of_the_parties_organisations_is_refused(tmp_path: Path) -> None:
    """Two data parties and a holder that belongs to one of them: no committee of three organisations exists."""
    blocks = three_overlapping_blocks()
    del blocks["bank"]
    with three_parties(
        tmp_path / "a", blocks=blocks, organisations={"clinic": "Clinic"}, holder="Clinic"
    ) as federation:
        assert federation.roster.committee == ()
    with pytest.raises(RosterError, match="pool their shares"):
        three_parties(
            tmp_path / "b",
            blocks=blocks,
            organisations={"clinic": "Clinic"},
            holder="Clinic",
            committee=("clinic", "court", "holder"),
        )
    assert not (tmp_path / "b").exists()


def test_every_error_has_its_own_code_and_comes_back_as_its_class() -> None:
    family = codes()
    assert len(family) == len(_family(ColonnadeError)), "no two classes share a code"
    for code, kind in family.items():
        if kind is not ColonnadeError:
            error = from_code(code, "court", "its log")
            assert type(error) is kind
            assert "court" in str(error)
            assert "its log" in str(error)


def test_resuming_another_versions_run(tmp_path: Path) -> None:
    from colonnade.errors import VersionMismatch

    with three_parties(tmp_path) as federation:
        run = federation.run(Describe())[1]
        run.update(state="failed", version="0.0.1", closing=False)
        with pytest.raises(VersionMismatch, match=r"0\.0\.1"):
            federation.resume(run.path)
        run.update(version=colonnade.__version__, options={**run.job["options"], "bins": 7})
        with pytest.raises(RunError, match="changed"):
            federation.resume(run.path)


def test_a_draft_of_one_party_does_not_pass(tmp_path: Path) -> None:
    from colonnade.errors import DraftDomain

    drafted = Columns(
        [
            Column(name=c.name, kind=c.kind, lower=c.lower, upper=c.upper, categories=c.categories, draft=True)
            for c in COLUMNS.values()
        ]
    )
    with pytest.raises(DraftDomain, match="draft = true"):
        three_parties(tmp_path, columns=drafted)


def test_every_error_says_what_it_is() -> None:
    for kind in codes().values():
        assert kind.__doc__, kind
        assert (kind.__doc__ or "").strip().splitlines()[0].endswith("."), kind
