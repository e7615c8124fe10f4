"""The six things that a coordinator may say to a party, and the two that a party may answer.

hello    -> who are you, which version, which roster and facts have you pinned
check    -> would you accept this plan; nothing is reserved
propose  -> a job with its plan; answered with approved or waiting
ask      -> run a step
close    -> the job is over; forget its payloads, and sign the head of your ledger
heads    -> what all members of the closed job have signed; keep it, and sign the list
Each is answered by a value, or by an error code from a fixed list.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal

from colonnade.durable import Chain, Database, Head, Row, check_name
from colonnade.errors import WireError
from colonnade.federation import wire
from colonnade.federation.plan import of_first_format
from colonnade.federation.wire import digest
from colonnade.privacy.cost import Cost

LONGEST_JOB = 200
"""Characters of a job's id, from which a party makes names of files."""


@dataclass(frozen=True, kw_only=True)
class Mail:
    """A sealed message from one party to another. The coordinator relays it and cannot read it."""

    sender: str
    recipient: str
    tag: str
    seq: int
    sealed: bytes

    def to_dict(self) -> dict[str, Any]:
        return {
            "sender": self.sender,
            "recipient": self.recipient,
            "tag": self.tag,
            "seq": self.seq,
            "sealed": self.sealed,
        }

    def context(self, job: str) -> bytes:
        """What the seal is bound to: a message cannot be moved to another job, step, sender or recipient."""
        return wire.encode([job, self.sender, self.recipient, self.tag, self.seq])

    @cached_property
    def hashed(self) -> str:
        """Of the sealed bytes. Two seals of the same message differ, so it says nothing about what is inside."""
        return digest(self.sealed)

    def outline(self) -> dict[str, Any]:
        """`to_dict` with the digest of the sealed bytes in their place."""
        return {**self.to_dict(), "sealed": self.hashed}


def digest_of(letters: Iterable[Mail]) -> bytes:
    """Of several messages: their tags and sealed bytes."""
    return hashlib.sha256(wire.encode([[mail.tag, mail.hashed] for mail in letters])).digest()


@dataclass(frozen=True, kw_only=True)
class Request:
    kind: str
    job: str = ""
    seq: int = 0
    stage: str = ""
    step: str = ""
    arguments: Mapping[str, Any]
    mail: Sequence[Mail] = ()

    def encode(self) -> bytes:
        return self._encoded([mail.to_dict() for mail in self.mail]) if self.mail else self._without_mail

    @cached_property
    def _without_mail(self) -> bytes:
        """All parties may be told the same (a proposal with its plan, say): it is written once."""
        return _noted(self, self._encoded([]))

    @cached_property
    def hashed(self) -> str:
        """The digest of this message with the digest of each letter in the place of its sealed bytes, so that these are
        hashed once, wherever they go. A digest is text and sealed bytes are not: no other message is written alike."""
        return digest(self._encoded([mail.outline() for mail in self.mail]))

    def _encoded(self, mail: list[dict[str, Any]]) -> bytes:
        return wire.encode(
            {
                "kind": self.kind,
                "job": self.job,
                "seq": self.seq,
                "stage": self.stage,
                "step": self.step,
                "arguments": dict(self.arguments),
                "mail": mail,
            }
        )

    @classmethod
    def decode(cls, data: bytes) -> Request:
        plain = _fields(
            wire.decode(data),
            {"kind": str, "job": str, "seq": int, "stage": str, "step": str, "arguments": dict, "mail": list},
        )
        if plain["kind"] not in ("hello", "check", "propose", "ask", "close", "heads"):
            raise WireError(f"a request of kind {plain['kind']!r} is not part of the protocol.")
        if plain["seq"] < 0:
            raise WireError("a request has a negative sequence number.")
        if plain["job"]:
            check_name(plain["job"], "a job", error=WireError, longest=LONGEST_JOB)
        request = cls(**{**plain, "mail": tuple(_mail(mail) for mail in plain["mail"])})
        _noted(request, data)
        return request


@dataclass(frozen=True, kw_only=True)
class Reply:
    """A value with peer messages, or the code of an error."""

    value: Any = None
    mail: Sequence[Mail] = ()
    error: str = ""

    def encode(self) -> bytes:
        return _noted(self, self._encoded([mail.to_dict() for mail in self.mail]))

    @cached_property
    def hashed(self) -> str:
        """As that of a request."""
        return digest(self._encoded([mail.outline() for mail in self.mail]))

    def _encoded(self, mail: list[dict[str, Any]]) -> bytes:
        return wire.encode({"value": self.value, "mail": mail, "error": self.error})

    @classmethod
    def decode(cls, data: bytes) -> Reply:
        plain = _fields(wire.decode(data), {"value": object, "mail": list, "error": str})
        reply = cls(**{**plain, "mail": tuple(_mail(mail) for mail in plain["mail"])})
        _noted(reply, data)
        return reply


def _noted(message: Request | Reply, data: bytes) -> bytes:
    """The bytes of a message. Without mail its `hashed` is their digest: it need not be written again for that."""
    if not message.mail:
        message.__dict__["hashed"] = digest(data)
    return data


def stored_proposal(content: bytes) -> Mapping[str, Any]:
    """The arguments of a proposal as a party's records have it. One that the first version stored is read too, so that
    an operator still sees what was decided; it can no longer be asked anything."""
    if not of_first_protocol(content):
        return Request.decode(content).arguments
    arguments = wire.decode(content, stored=1)["arguments"]
    named = {"requester" if name == "asker" else name: value for name, value in arguments.items()}
    return {**named, "plan": of_first_format(arguments["plan"])}


def of_first_protocol(content: bytes) -> bool:
    return content[: len(wire.MAGIC) + 1] == wire.MAGIC + b"\x01"


def _mail(plain: Any) -> Mail:
    return Mail(**_fields(plain, {"sender": str, "recipient": str, "tag": str, "seq": int, "sealed": bytes}))


def _fields(plain: Any, wanted: Mapping[str, type]) -> dict[str, Any]:
    if not isinstance(plain, dict) or set(plain) != set(wanted):
        raise WireError(f"a message must have exactly the fields {', '.join(wanted)}.")
    for name, kind in wanted.items():
        if not isinstance(plain[name], kind) or (kind is int and isinstance(plain[name], bool)):
            raise WireError(f"field {name!r} of a message must be {kind.__name__}.")
    return plain


# --- the transcript: every message that crossed a border, with its cost and what it discloses ---------------
#
# A party and the coordinator each keep one. Rows are chained (see `colonnade.durable`). The transcript holds
# hashes of messages, not the messages.


@dataclass(frozen=True, kw_only=True)
class Message:
    """One message as the transcript describes it."""

    direction: Literal["in", "out"]
    kind: str
    job: str
    seq: int
    peer: str
    payload: bytes
    hashed: str = ""
    """The payload's digest, if it is known already."""
    step: str = ""
    tag: str = ""
    cost: Cost | None = None
    discloses: str = ""

    def body(self) -> dict[str, Any]:
        return {
            "time": time.time(),
            "direction": self.direction,
            "kind": self.kind,
            "job": self.job,
            "seq": self.seq,
            "peer": self.peer,
            "step": self.step,
            "tag": self.tag,
            "bytes": len(self.payload),
            "payload": self.hashed or digest(self.payload),
            "cost": None if self.cost is None else self.cost.to_dict(),
            "discloses": self.discloses,
        }


class Transcript:
    """An append-only record of messages in a database."""

    def __init__(self, database: Database, *, create: bool = True) -> None:
        self.chain = Chain(database, "transcript", indexed=("job", "direction"), create=create)

    def record(self, *messages: Message) -> None:
        self.chain.append(*(message.body() for message in messages))

    def rows(self, **where: Any) -> list[Row]:
        return self.chain.rows(**where)

    def structure(self, job: str) -> list[tuple[str, str, str, str, str, int]]:
        """What a plan foresees of a job: direction, kind, peer, step, tag and size of each message, without times."""
        return [
            (b["direction"], b["kind"], b["peer"], b["step"], b["tag"], b["bytes"])
            for b in (row.body for row in self.rows(job=job))
        ]

    def verify(self, *, expect: Head | None = None) -> Head:
        return self.chain.verify(expect=expect)
