"""A party as its steps see it: its rows in the cohort, randomness, sealed mail, and what it keeps during a job.

Nothing here leaves by itself. What a running step sends, keeps and has read is collected in its `Work`; the border
(`federation.party`) commits that together with the release, or drops all of it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from colonnade.data import aggregation
from colonnade.data.block import Block
from colonnade.data.cohort import Alignment
from colonnade.data.sources import CELLS
from colonnade.errors import ColumnNotOffered, SealBroken, StepFailed, UnsafeRequest
from colonnade.federation import wire
from colonnade.federation.facts import PublicFacts
from colonnade.federation.messages import Mail, digest_of
from colonnade.federation.roster import Roster
from colonnade.federation.store import Store
from colonnade.privacy.randomness import Randomness
from colonnade.secure.sealed import Identity, pair_key, seal, unseal

T = TypeVar("T")


@dataclass
class Work:
    """What one running step may use and has produced so far; nothing of it is durable before the step returns."""

    job: str
    seq: int
    mail: Sequence[Mail]
    randomness: Randomness
    offered: tuple[str, ...] | None = None
    """The columns that it may read; None: all declared ones."""
    recipients: tuple[str, ...] = ()
    """The members to which it may send mail, as the approved plan says."""
    outbox: list[Mail] = field(default_factory=list)
    sent: set[tuple[str, str]] = field(default_factory=set)
    """Recipient and tag of what is sent once in a job."""
    kept: dict[str, Any] = field(default_factory=dict)
    letters: dict[str, int] = field(default_factory=dict)
    """{sender: the request in which it wrote the newest of its letters that this step has read}."""


MOST_REMEMBERED = 1 << 27
"""Bytes of arrays that a party remembers beyond what it keeps."""


class Workplace:
    """What a step may use of the party that runs it."""

    store: Store

    def __init__(
        self,
        *,
        name: str,
        home: Path,
        roster: Roster,
        facts: PublicFacts,
        identity: Identity,
        block: Block | None,
        alignment: Alignment | None,
    ) -> None:
        self.name = name
        self.home = home
        self.roster = roster
        self.facts = facts
        self._identity = identity
        self._block = block
        self._alignment = alignment
        self._work: Work | None = None
        self._remembered: dict[tuple[str, str], tuple[int, Any]] = {}

    # --- its records ----------------------------------------------------------------------------------------

    @property
    def block(self) -> Block:
        if self._block is None:
            raise UnsafeRequest(f"{self.name!r} owns no data; ask this step of a data party.")
        return self._block

    @property
    def rows(self) -> NDArray[np.int64]:
        """For each row of the block, its row in the cohort, or -1."""
        if self._alignment is None:
            raise UnsafeRequest(f"{self.name!r} owns no data; ask this step of a data party.")
        return self._alignment.rows

    @property
    def present(self) -> NDArray[np.bool_]:
        """For each row of the cohort, whether this party has the record."""
        mask = np.zeros(self.facts.n, dtype=bool)
        mask[self.rows[self.rows >= 0]] = True
        return mask

    def present_with(self, filled: Sequence[str]) -> NDArray[np.bool_]:
        """For each row of the cohort, whether this party has the record, and with it all cells of these columns.

        The mask of the records that `mapped` and `aggregate` give for the same `filled`.
        """
        if not filled:
            return self.present
        mask = np.zeros(self.facts.n, dtype=bool)
        for rows in self.mapped((), aggregation.cohort_rows, filled=filled):
            mask[rows] = True
        return mask

    def chunks(
        self, names: Sequence[str] | None = None, *, rows: int | None = None
    ) -> Iterator[tuple[NDArray[np.int64], dict[str, NDArray[Any]]]]:
        """Encoded values of the records in the cohort, with their cohort rows, a chunk at a time."""
        return aggregation.inside(self._offered(names), self.rows, names, rows=rows)

    def mapped(
        self, names: Sequence[str], work: aggregation.Work[T], *, filled: Sequence[str] = (), cells: int = CELLS
    ) -> Iterator[T]:
        """A pure function of each chunk, in order, computed here or on this party's own cluster.

        Records with an empty cell in one of the `filled` columns count as absent.
        """
        block = self._offered([*names, *filled])
        return aggregation.mapped(block, self.rows, names, work, filled=filled, cells=cells)

    def aggregate(
        self, names: Sequence[str], statistic: aggregation.Aggregation[T], *, filled: Sequence[str] = ()
    ) -> T:
        """A mergeable statistic of the records in the cohort, here or on this party's own cluster."""
        block = self._offered([*names, *filled])
        return aggregation.aggregate(block, self.rows, names, statistic, filled=filled)

    def _offered(self, names: Sequence[str] | None) -> Block:
        """The block, if the policy offers these columns to this job."""
        wanted: Iterable[str] = self.block.columns if names is None else names
        offered = None if self._work is None else self._work.offered
        beyond = [] if offered is None else [name for name in wanted if name not in offered]
        if beyond:
            raise ColumnNotOffered(
                f"job {self.job} reads {beyond[0]!r}, which the policy offers only to jobs that the operator approves;"
                " add it to columns in [policy], or have the coordinator name the columns of the job."
            )
        return self.block

    def column(self, name: str) -> NDArray[Any]:
        """One column over the whole cohort, encoded; NaN or -1 where the record or the cell is missing."""
        discrete = self.block.columns[name].discrete
        cohort = np.full(self.facts.n, -1 if discrete else np.nan, dtype=np.int32 if discrete else np.float64)
        for rows, values in self.chunks([name]):
            cohort[rows] = values[name]
        return cohort

    # --- the job --------------------------------------------------------------------------------------------

    @property
    def job(self) -> str:
        return self._working().job

    @property
    def scratch(self) -> Path:
        """A folder for what a step can make again; deleted when the job closes."""
        return self.store.scratch(self.job)

    @property
    def randomness(self) -> Randomness:
        """The source for this request's noise, rounding and shares."""
        return self._working().randomness

    def send(self, recipient: str, tag: str, value: Any, *, each_round: bool = False) -> None:
        """Seal a value to another member; it leaves together with this step's reply.

        A member gets one message under a tag in a job. A second one could be of other secrets, of other noise, or of
        fresh shares of the same, and be given to some members only. `each_round`: one with each request, for what a
        procedure tells again round after round; its recipient reads none that is older than the newest that it read.
        """
        work = self._working()
        if not each_round:
            if (recipient, tag) in work.sent or self.store.sent(work.job, recipient, tag):
                raise UnsafeRequest(f"{recipient!r} was sent {tag!r} before in job {work.job}; it is sent once.")
            work.sent.add((recipient, tag))
        if recipient == self.name:
            self.keep(f"mail to myself: {tag}", value)
            return
        if recipient not in work.recipients:
            raise UnsafeRequest(f"the approved plan does not name {recipient!r} as a recipient of this step's mail.")
        member = self.roster.member(recipient)
        envelope = Mail(sender=self.name, recipient=recipient, tag=tag, seq=work.seq, sealed=b"")
        sealed = seal(self._identity, member.public_key, wire.encode(value), context=envelope.context(work.job))
        work.outbox.append(Mail(**{**envelope.to_dict(), "sealed": sealed}))

    def sent_to(self, member: str) -> bytes:
        """A digest of all that this request has sent to a member so far (of nothing, for what stays here)."""
        return digest_of(mail for mail in self._working().outbox if mail.recipient == member)

    @property
    def mail(self) -> Sequence[Mail]:
        """What came with this request, still sealed."""
        return self._working().mail

    def received(self, tag: str) -> dict[str, Any]:
        """{sender: value} of the peer messages with this tag that came with the request, and one's own.

        A sender's requests are numbered upwards, so a message of a request no newer than one that was read with an
        earlier request of this job was read already: it is refused, and cannot be passed off as a later round's.
        """
        work = self._working()
        values: dict[str, Any] = {}
        letters = [mail for mail in work.mail if mail.tag == tag]
        newest = self.store.letters(work.job) if letters else {}
        for mail in letters:
            if mail.recipient != self.name or mail.sender in values:
                raise SealBroken(f"a message from {mail.sender!r} came twice or is for {mail.recipient!r}.")
            public_key = self.roster.member(mail.sender).public_key
            plain = unseal(self._identity, public_key, mail.sealed, context=mail.context(work.job))
            if mail.seq <= newest.get(mail.sender, -1):
                raise SealBroken(f"a message from {mail.sender!r} was read before; the coordinator has replayed it.")
            work.letters[mail.sender] = max(mail.seq, work.letters.get(mail.sender, -1))
            values[mail.sender] = wire.decode(plain)
        return values | self.own_mail(tag)

    def own_mail(self, tag: str) -> dict[str, Any]:
        """{this member: what it sent to itself under this tag in an earlier request}; empty if nothing."""
        name = f"mail to myself: {tag}"
        return {self.name: self.store.recall(self.job, name)} if self.store.keeps(self.job, name) else {}

    def keep(self, name: str, value: Any) -> None:
        """Remember a value for later steps of this job; it never leaves, and is deleted when the job closes."""
        self._working().kept[name] = value

    def recall(self, name: str) -> Any:
        work = self._working()
        if name in work.kept:
            return work.kept[name]
        try:
            return self.store.recall(work.job, name)
        except KeyError:
            raise StepFailed(f"an earlier step of job {work.job} has not kept {name!r}; ask that step first.") from None

    def kept(self, name: str) -> bool:
        """Whether an earlier step of this job has kept a value under this name."""
        return name in self._working().kept or self.store.keeps(self.job, name)

    def remembered(self, name: str, size: int, compute: Callable[[], T]) -> T:
        """What `compute` gives, from the memory of this process if it was computed in this job before and there is room
        for its `size` in bytes. What is large or not there is computed again, so nothing may depend on it."""
        known = self._remembered.get((self.job, name))
        if known is not None:
            return known[1]  # type: ignore[no-any-return]
        value = compute()
        if size + sum(taken for taken, _ in self._remembered.values()) <= MOST_REMEMBERED:
            self._remembered[self.job, name] = (size, value)
        return value

    def remembers(self, job: str, name: str) -> bool:
        """Whether it is in the memory of this process."""
        return (job, name) in self._remembered

    def forget(self, job: str) -> None:
        """Drop what was remembered of a job, and let its cluster go."""
        self._remembered = {key: value for key, value in self._remembered.items() if key[0] != job}
        if self._block is not None:
            self._block.release()

    def pair_key(self, other: str, label: str) -> bytes:
        """A key that only this party and one other member can compute, for pads."""
        return pair_key(self._identity, self.roster.member(other).public_key, f"{self.job} {label}".encode())

    def _working(self) -> Work:
        if self._work is None:
            raise UnsafeRequest("this is available only while a step runs.")
        return self._work
