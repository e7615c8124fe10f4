"""Every message that crossed a border: direction, peer, step, size, hash, cost, and what it discloses.

A party and the coordinator each keep one. Rows are chained (see `colonnade.durable`). The transcript holds
hashes of messages, not the messages.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any, Literal

from colonnade.durable import Chain, Database, Head, Row
from colonnade.federation.wire import digest
from colonnade.privacy.cost import Cost


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
    """The payload's digest, if whoever made the message has it already."""
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
