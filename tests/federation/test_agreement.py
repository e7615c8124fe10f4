"""One dealing, one noise, one opening: a member tells one thing under a tag, and share holders open nothing before all
of them have said that they hold parts of the same dealings."""

from __future__ import annotations

import copy
import sqlite3
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from colonnade.data.column import Column, Columns
from colonnade.durable import Database
from colonnade.errors import BeyondReservation, SecureError, UnsafeRequest
from colonnade.federation.coordinator import Federation
from colonnade.federation.job import Job
from colonnade.federation.messages import Mail, Reply, Transcript
from colonnade.federation.party import Party
from colonnade.federation.policy import plan_of_steps
from colonnade.federation.stage import Stage, stage
from colonnade.federation.store import Store
from colonnade.privacy.ledger import Ledger
from colonnade.statistics import joint
from colonnade.statistics.circuit import CircuitStages
from colonnade.statistics.moments import MomentComputation, Moments
from colonnade.statistics.tables import Tables
from support.asking import asking
from support.small import three_parties
from support.steps import send_greeting

METHOD = Tables(tables=(("sector", "sued"),), epsilon=1.0)
MOMENTS = Moments(epsilon=1.0, columns=("sector", "sued"))
HOLDERS = ("clinic", "court", "bank")


@pytest.fixture
def federation(tmp_path: Path) -> Iterator[Federation]:
    with three_parties(tmp_path, allow=("presence",)) as parties:
        yield parties


def party(federation: Federation, name: str) -> Party:
    return federation.transport[name]  # type: ignore[index, no-any-return]


def older_copy(dealer: Party, folder: Path) -> Party:
    """The same member with its records as they are now: what a restored back-up makes of it later."""
    folder.mkdir()
    with sqlite3.connect(dealer.home / "party.db") as now, sqlite3.connect(folder / "party.db") as copied:
        now.backup(copied)
    twin = copy.copy(dealer)
    twin.database = Database(folder / "party.db", flushed=False)
    twin.ledger = Ledger(twin.database, budget=dealer.policy.budget)
    twin.transcript = Transcript(twin.database)
    twin.store = Store(twin.database, folder / "spool")
    return twin


def deal_twice(
    federation: Federation,
    job: Job,
    stages: CircuitStages | MomentComputation,
    folder: Path,
    dealer: str = "bank",
) -> list[Mail]:
    """The honest dealing of all, and the mail of a second one by a dealer whose records were restored in between."""
    before = older_copy(party(federation, dealer), folder)
    dealt: list[bytes] = []
    exchange = federation.transport.exchange

    def tapped(name: str, data: bytes, *, timeout: float) -> bytes:
        dealt.extend([data] if name == dealer else [])
        return exchange(name, data, timeout=timeout)

    federation.transport.exchange = tapped  # type: ignore[method-assign]
    job.ask(stages.share)
    federation.transport.exchange = exchange  # type: ignore[method-assign]
    again = Reply.decode(before.handle(dealt[-1]))
    assert not again.error
    return list(again.mail)


def give(job: Job, holder: str, letters: list[Mail], dealer: str = "bank") -> None:
    """To one holder the second dealing, instead of the first."""
    job._pending[holder] = [mail for mail in job._pending[holder] if mail.sender != dealer]
    job._pending[holder] += [mail for mail in letters if mail.recipient == holder]


def after_comparing(stages: CircuitStages | MomentComputation) -> Stage:
    """The first request that needs the comparisons of all holders: proofs come before the opening."""
    return stages._proofs[0] if stages.layout.verify else stages.open


# --- one message under a tag ------------------------------------------------------------------------------


def test_a_second_message_under_a_tag_is_refused(federation: Federation) -> None:
    """In a later request of the job; what the first request sent stays sent. Another job begins anew."""
    greet = stage(
        "greet",
        send_greeting,
        {holder: [{}, {}] for holder in HOLDERS},
        facts=federation.facts,
        roster=federation.roster,
        discloses="a greeting",
        recipients=HOLDERS,
    )
    for _ in range(2):
        with federation.open(plan_of_steps([greet])) as job:
            job.ask(greet)
            sent = sum(map(len, job._pending.values()))
            with pytest.raises(UnsafeRequest):
                job.ask(greet)
            assert sum(map(len, job._pending.values())) <= sent


def test_what_was_sent_is_remembered_until_the_job_closes(tmp_path: Path) -> None:
    path = tmp_path / "party.db"
    store = Store(Database(path, flushed=False), tmp_path / "spool")
    assert not store.sent("job", "bank", "rows")
    store.add_sent("job", [("bank", "rows"), ("bank", "noise")])
    again = Store(Database(path, flushed=False), tmp_path / "spool")
    assert again.sent("job", "bank", "rows")
    assert not again.sent("job", "court", "rows")
    assert not again.sent("other job", "bank", "rows")
    again.add_job("job", "", b"", "approved")
    again.forget("job")
    again.clear("job")
    assert not again.sent("job", "bank", "rows")


# --- holders compare --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "method", [METHOD, Moments(epsilon=1.0, columns=("sector", "sued"))], ids=["tables", "moments"]
)
def test_holders_with_parts_of_two_dealings_open_nothing(
    federation: Federation, tmp_path: Path, method: Tables | Moments
) -> None:
    stages = method.procedure(federation.facts, federation.roster)
    with federation.open(method.plan(federation.facts, federation.roster)) as job:
        second = deal_twice(federation, job, stages, tmp_path / "older")
        give(job, "court", second)
        job.ask(stages.compare)
        with pytest.raises(SecureError):
            job.ask(after_comparing(stages))
    log = (tmp_path / "home" / "clinic" / "log.txt").read_text(encoding="utf-8")
    assert "'court' was dealt something else than this holder by 'bank'; nothing is opened" in log
    for holder in HOLDERS:
        sent = party(federation, holder).transcript.rows(direction="out")
        assert not [row for row in sent if row.body["kind"] == "release" and row.body["step"].endswith("open_shares")]


def test_without_the_comparison_the_same_opens(
    federation: Federation, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The planted bug: what is opened then is of no dealing, and a passive holder could subtract what it knows."""
    monkeypatch.setattr(joint, "require_agreement", lambda me, tag: None)
    method = Tables(tables=METHOD.tables, epsilon=1.0, verify=False)
    stages = method.procedure(federation.facts, federation.roster)
    with federation.open(method.plan(federation.facts, federation.roster)) as job:
        give(job, "court", deal_twice(federation, job, stages, tmp_path / "older"))
        job.ask(stages.compare)
        opened = joint.join(job.ask(stages.open), stages.layout.field, federation.roster)
    assert np.abs(opened).max() > 1000, "far from any count of these few records"


def test_all_holders_may_take_the_second_dealing(federation: Federation, tmp_path: Path) -> None:
    """One dealing is opened, whichever: the bank's own part is that of its restored records, so it stands alone."""
    stages = METHOD.procedure(federation.facts, federation.roster)
    with federation.open(METHOD.plan(federation.facts, federation.roster)) as job:
        second = deal_twice(federation, job, stages, tmp_path / "older")
        for holder in ("clinic", "court"):
            give(job, holder, second)
        job.ask(stages.compare)
        with pytest.raises(SecureError):
            job.ask(after_comparing(stages))


Change = Callable[[list[Mail], list[Mail]], list[Mail]]


@pytest.mark.parametrize(
    "change",
    [
        pytest.param(lambda first, second: [mail for mail in first if "rows" not in mail.tag], id="rows kept back"),
        pytest.param(lambda first, second: [mail for mail in first if ": dealt" not in mail.tag], id="no list"),
        pytest.param(
            lambda first, second: (
                [mail for mail in first if "noise" not in mail.tag] + [mail for mail in second if "noise" in mail.tag]
            ),
            id="other noise",
        ),
        pytest.param(
            lambda first, second: (
                [mail for mail in first if ": dealt" not in mail.tag]
                + [mail for mail in second if ": dealt" in mail.tag]
            ),
            id="other list",
        ),
    ],
)
def test_mail_that_is_not_what_its_dealer_listed_is_not_used(
    federation: Federation, tmp_path: Path, change: Change
) -> None:
    stages = METHOD.procedure(federation.facts, federation.roster)
    with federation.open(METHOD.plan(federation.facts, federation.roster)) as job:
        second = deal_twice(federation, job, stages, tmp_path / "older")
        first = [mail for mail in job._pending["court"] if mail.sender == "bank"]
        others = [mail for mail in job._pending["court"] if mail.sender != "bank"]
        job._pending["court"] = others + change(first, [mail for mail in second if mail.recipient == "court"])
        with pytest.raises(SecureError):
            job.ask(stages.compare)


def test_nothing_opens_without_a_comparison_or_with_one_for_another_holder(federation: Federation) -> None:
    stages = METHOD.procedure(federation.facts, federation.roster)
    plan = METHOD.plan(federation.facts, federation.roster)
    with federation.open(plan) as job:
        job.ask(stages.share)
        job.ask(stages.compare)
        job._pending["court"] = [mail for mail in job._pending["court"] if mail.sender != "bank"]
        with pytest.raises(Exception, match="court") as refused:
            job.ask(after_comparing(stages))
        assert refused.type.__name__ == "PartyLost"
    with federation.open(plan) as job, pytest.raises(BeyondReservation):
        job.ask(stages.share)
        job.ask(stages.compare)
        job.ask(asking(stages.compare, again=True))


def test_presence_that_holders_see_must_be_the_same_at_all(
    federation: Federation, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A data party that lies about its mask to one holder: its own list is right, and the masks differ."""
    method = Moments(epsilon=1.0, columns=("age", "sued"))
    stages = method.procedure(federation.facts, federation.roster)
    send = Party.send

    def lying(me: Party, recipient: str, tag: str, value: object, *, each_round: bool = False) -> None:
        if me.name == "clinic" and recipient == "court" and tag.endswith(": mask"):
            value = np.zeros_like(value)
        send(me, recipient, tag, value, each_round=each_round)

    monkeypatch.setattr(Party, "send", lying)
    with federation.open(method.plan(federation.facts, federation.roster)) as job:
        job.ask(stages.share)
        job.ask(stages.compare)
        with pytest.raises(SecureError):
            job.ask(after_comparing(stages))


def test_surplus_holders_cannot_open_a_second_time(tmp_path: Path) -> None:
    """Five holders with threshold 1: three are enough for an opening, so that two openings with different noise would
    need no one but the coordinator."""
    names = [f"party{number}" for number in range(5)]
    rng = np.random.default_rng(0)
    blocks = {name: pd.DataFrame({"id": range(30), f"{name}_x": rng.integers(0, 2, 30)}) for name in names}
    columns = Columns([Column(name=f"{name}_x", kind="binary", categories=(0, 1)) for name in names])
    method = Moments(epsilon=1.0, presence="ignore")
    with Federation.local(
        blocks, key="id", columns=columns, home=tmp_path / "home", runs=tmp_path / "runs", committee=names, threshold=1
    ) as federation:
        stages = method.procedure(federation.facts, federation.roster)
        with federation.open(method.plan(federation.facts, federation.roster)) as job:
            second = deal_twice(federation, job, stages, tmp_path / "older", dealer="party0")
            for holder in ("party1", "party2"):
                give(job, holder, second, dealer="party0")
            job.ask(stages.compare)
            replies: set[str] = set()
            for holder in names:
                try:
                    replies |= set(job.ask(after_comparing(stages), parties=[holder]))
                except SecureError:
                    continue
            assert not replies
