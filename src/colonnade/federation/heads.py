"""Heads of ledgers that members sign for each other.

When a job closes, each member signs the head of its own ledger, bound to the job and its plan. The coordinator relays
all of them to all members; each checks the signatures, keeps them for ever and signs the whole list. So a party that
goes back to an older ledger, or writes a new one, is shown by the record of **any** other member, also if the
coordinator helps it: its ledger no longer contains a head that it has signed (`compared`).
"""

from __future__ import annotations

import json
import time
from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from colonnade.codec import record
from colonnade.durable import Chain, Database, Head, canonical, linked, private_file
from colonnade.errors import CorruptRecord, ReplayMismatch, SealBroken, StorageError, UnsafeRequest
from colonnade.federation.messages import stored_proposal
from colonnade.federation.roster import Roster
from colonnade.secure.sealed import Identity, check_signature

FILE = "heads.json"
"""In a run folder: what all members have signed."""


@dataclass(frozen=True, kw_only=True)
class SignedHead:
    """What a member says about its ledger: rows and hash, when the job closed at it. The signature is empty if the
    roster pins no signing key for the member."""

    party: str
    rows: int
    hash: str
    signature: str = ""

    @property
    def head(self) -> Head:
        return Head(self.rows, self.hash)

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


def sign_head(identity: Identity, roster: Roster, job: str, plan: str, party: str, head: Head) -> SignedHead:
    signed = identity.sign(_statement(job, plan, party, head)).hex() if roster.member(party).signing_key else ""
    return SignedHead(party=party, rows=head.rows, hash=head.hash, signature=signed)


def _statement(job: str, plan: str, party: str, head: Head) -> bytes:
    stated = {"job": job, "plan": plan, "party": party, "rows": head.rows, "hash": head.hash}
    return b"colonnade ledger head 1\n" + canonical(stated).encode()


def list_statement(job: str, plan: str, heads: Sequence[SignedHead]) -> bytes:
    """What each member signs once it has all heads of a job."""
    listed = {signed.party: [signed.rows, signed.hash] for signed in heads}
    return b"colonnade ledger heads 1\n" + canonical({"job": job, "plan": plan, "heads": listed}).encode()


def read_heads(stated: Any, roster: Roster, *, job: str, plan: str, parties: Sequence[str]) -> tuple[SignedHead, ...]:
    """The heads of a job as the coordinator relays them: one of each of its parties, each with its own signature."""
    if not isinstance(stated, list):
        raise UnsafeRequest("the heads of a job are a list.")
    heads = tuple(record(SignedHead, entry, "a signed head") for entry in stated)
    if sorted(signed.party for signed in heads) != sorted(parties):
        raise UnsafeRequest(f"the heads of job {job} must be those of {', '.join(parties)}, each once.")
    for signed in heads:
        key = roster.member(signed.party).signing_key
        if key:
            statement = _statement(job, plan, signed.party, signed.head)
            check_signature(key, signed.signature, statement, of=signed.party)
    return heads


def longest_told(stated: Any, roster: Roster) -> dict[str, Head]:
    """{party: the longest head that it has signed}, as another member tells it (`Heads.longest`); what has no signature
    proves nothing and is left out."""
    heads: dict[str, Head] = {}
    for entry in stated if isinstance(stated, list) else ():
        told = record(_Told, entry, "a signed head")
        key = roster.member(told.party).signing_key
        if key:
            head = Head(told.rows, told.hash)
            check_signature(key, told.signature, _statement(told.job, told.plan, told.party, head), of=told.party)
            heads[told.party] = head
    return heads


@dataclass(frozen=True, kw_only=True)
class _Told(SignedHead):
    job: str
    plan: str


# --- what a member keeps ------------------------------------------------------------------------------------


class Heads:
    """The signed heads of all members, own and others', in an append-only table."""

    def __init__(self, database: Database, *, create: bool = True) -> None:
        self.chain = Chain(database, "heads", indexed=("job", "party"), create=create)

    def of(self, job: str) -> dict[str, SignedHead]:
        return {row.body["party"]: _signed(row.body) for row in self.chain.rows(job=job)}

    def add(self, job: str, plan: str, heads: Sequence[SignedHead]) -> None:
        """Keep those of a job that are new; one that differs from what was kept is refused."""
        with self.chain.database.transaction():
            earlier = self.of(job)
            for signed in heads:
                if earlier.setdefault(signed.party, signed).head != signed.head:
                    raise ReplayMismatch(f"{signed.party!r} has signed two heads for job {job}; keep both, and ask it.")
            new = [signed for signed in heads if signed.party not in self.of(job)]
            stated = {"time": time.time(), "job": job, "plan": plan}
            self.chain.append(*({**stated, **signed.to_dict()} for signed in new))

    def doubts(self, heads: Sequence[SignedHead], *, begun: float) -> tuple[str, ...]:
        """Parties of which an earlier head contradicts this one: of the same length with another hash, or no shorter
        although it was known here before the job began, for which its owner has since reserved something."""
        contradicts = (
            "SELECT 1 FROM heads WHERE party = ?"
            " AND (json_extract(body, '$.rows') = ? AND json_extract(body, '$.hash') != ?"
            " OR json_extract(body, '$.time') < ? AND json_extract(body, '$.rows') > ?) LIMIT 1"
        )
        values = {signed.party: (signed.party, signed.rows, signed.hash, begun, signed.rows) for signed in heads}
        return tuple(party for party, own in values.items() if self.chain.database.execute(contradicts, own))

    def longest(self) -> list[dict[str, Any]]:
        """The longest head that each party has signed, with the job and the plan for which it did."""
        rows = self.chain.database.execute(
            "SELECT body, MAX(CAST(json_extract(body, '$.rows') AS INTEGER)) FROM heads GROUP BY party"
        )
        return [{name: part for name, part in json.loads(body).items() if name != "time"} for body, _ in rows]

    def by_party(self) -> dict[str, list[tuple[str, str, SignedHead]]]:
        """{party: [(job, plan, head)]}, in the order in which they were kept."""
        parties: dict[str, list[tuple[str, str, SignedHead]]] = {}
        for row in self.chain.rows():
            signed = _signed(row.body)
            parties.setdefault(signed.party, []).append((row.body["job"], row.body["plan"], signed))
        return parties


def _signed(body: Mapping[str, Any]) -> SignedHead:
    return SignedHead(party=body["party"], rows=body["rows"], hash=body["hash"], signature=body["signature"])


# --- comparing them with a ledger ---------------------------------------------------------------------------


@dataclass(frozen=True)
class PresentLedger:
    """A member's ledger as it is now: the hash of each row, and the heads that it answers for having lost (a copy was
    restored, and what was spent since was counted again)."""

    hashes: Mapping[int, str]
    lost: frozenset[Head]

    @classmethod
    def read(cls, path: Path) -> PresentLedger:
        """From a file that `ledger export` wrote, or a party's records. The chain must be intact."""
        file = path / "party.db" if path.is_dir() else path
        if not file.is_file():
            raise StorageError(f"{path} is no ledger; name a file that `colonnade ledger export` wrote.")
        if file.suffix == ".json":
            rows = _exported(file)
        else:
            with closing(Database(file, read_only=True)) as database:
                rows = Chain(database, "ledger", create=False).texts()
        bodies = [json.loads(text) for _, text, _, _ in rows]
        lost = frozenset(Head(**body["lost"]) for body in bodies if body.get("lost"))
        return cls(linked(rows, str(file)), lost)

    def contains(self, head: Head) -> bool:
        return head.rows == 0 or self.hashes.get(head.rows) == head.hash or head in self.lost


def export(home: Path, out: Path) -> Head:
    """The rows of a ledger, without any other record, for other members to compare with what they keep."""
    with closing(Database(home / "party.db", read_only=True)) as database:
        rows = Chain(database, "ledger", create=False).texts()
    hashes = linked(rows, str(home))
    if out.exists() or out.suffix != ".json":
        raise StorageError(f"{out} exists already or does not end in .json; name a new file.")
    private_file(out).write_text(json.dumps({"ledger": rows}), encoding="utf-8")
    return Head(len(hashes), hashes.get(len(hashes), ""))


def _exported(file: Path) -> list[tuple[int, str, str, str]]:
    try:
        return [(int(number), *map(str, rest)) for number, *rest in json.loads(file.read_text())["ledger"]]  # type: ignore[misc]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise StorageError(f"{file} cannot be read ({error}); export the ledger again.") from error


@dataclass(frozen=True, kw_only=True)
class Compared:
    """One member's ledger against what it has signed. `missing` are jobs whose head its ledger no longer contains,
    `forked` those of which two signed heads contradict each other; `ledger` says whether its ledger was at hand."""

    party: str
    heads: int
    newest: Head
    signed: bool
    ledger: bool
    missing: tuple[str, ...] = ()
    forked: tuple[str, ...] = ()

    @property
    def well(self) -> bool:
        return not self.missing and not self.forked


def compared(
    kept: Mapping[str, Sequence[tuple[str, str, SignedHead]]],
    keys: Mapping[str, bytes],
    ledgers: Mapping[str, PresentLedger],
) -> list[Compared]:
    """Each member's signed heads against each other, and against its present ledger where that is at hand."""
    verdicts = []
    for party, entries in kept.items():
        key = keys.get(party, b"")
        for job, plan, signed in entries:
            if key:
                check_signature(key, signed.signature, _statement(job, plan, party, signed.head), of=party)
        present = ledgers.get(party)
        missing = [job for job, _, signed in entries if present is not None and not present.contains(signed.head)]
        hashes: dict[int, str] = {}
        forked = [job for job, _, signed in entries if hashes.setdefault(signed.rows, signed.hash) != signed.hash]
        verdicts.append(
            Compared(
                party=party,
                heads=len(entries),
                newest=max((signed.head for _, _, signed in entries), key=lambda head: head.rows),
                signed=bool(key),
                ledger=present is not None,
                missing=tuple(missing),
                forked=tuple(forked),
            )
        )
    return verdicts


def without_others(database: Database, book: Heads) -> list[str]:
    """Jobs that were closed here and whose other heads never came: a coordinator may have kept them back."""
    closed = [job for (job,) in database.execute("SELECT job FROM jobs WHERE state = 'closed' ORDER BY job")]
    return [job for job in closed if len(kept := book.of(job)) == 1 and _concerns_others(database, job, set(kept))]


def _concerns_others(database: Database, job: str, own: set[str]) -> bool:
    [(content,)] = database.execute("SELECT content FROM jobs WHERE job = ?", (job,))
    stages = stored_proposal(content)["plan"]["stages"]
    return bool({party for stage in stages for party in stage["costs"]} - own)


def of_run(path: Path) -> tuple[dict[str, list[tuple[str, str, SignedHead]]], dict[str, bytes]]:
    """The signed heads that a run folder has, and the keys of their owners."""
    try:
        stored = json.loads((path / FILE).read_text(encoding="utf-8"))
        heads = [SignedHead(**entry) for entry in stored["heads"]]
        keys = {party: bytes.fromhex(key) for party, key in stored["keys"].items()}
        kept = {signed.party: [(str(stored["job"]), str(stored["plan"]), signed)] for signed in heads}
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise CorruptRecord(f"{path / FILE} cannot be read ({error}); name a run that was closed.") from error
    return kept, keys


def check_countersignature(roster: Roster, party: str, signature: object, statement: bytes) -> None:
    """Of a member that has kept all heads of a job."""
    key = roster.member(party).signing_key
    if not key:
        return
    if not isinstance(signature, str):
        raise SealBroken(f"{party!r} did not sign the heads of the job; check its installation.")
    check_signature(key, signature, statement, of=party)
