"""The five things that a coordinator may say to a party, and the two that a party may answer.

hello    -> who are you, which version, which roster and facts have you pinned
check    -> would you accept this plan; nothing is reserved
propose  -> a job with its plan; answered with approved or waiting
ask      -> run a step
close    -> the job is over; forget its payloads
Each is answered by a value, or by an error code from a fixed list.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from colonnade.errors import WireError
from colonnade.federation import wire


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


@dataclass(frozen=True, kw_only=True)
class Request:
    kind: str
    job: str = ""
    seq: int = 0
    phase: str = ""
    step: str = ""
    arguments: Mapping[str, Any]
    mail: Sequence[Mail] = ()

    def encode(self) -> bytes:
        return wire.encode(
            {
                "kind": self.kind,
                "job": self.job,
                "seq": self.seq,
                "phase": self.phase,
                "step": self.step,
                "arguments": dict(self.arguments),
                "mail": [one.to_dict() for one in self.mail],
            }
        )

    @classmethod
    def decode(cls, data: bytes) -> Request:
        plain = _fields(
            wire.decode(data),
            {"kind": str, "job": str, "seq": int, "phase": str, "step": str, "arguments": dict, "mail": list},
        )
        if plain["kind"] not in ("hello", "check", "propose", "ask", "close"):
            raise WireError(f"a request of kind {plain['kind']!r} is not part of the protocol.")
        if plain["seq"] < 0 or len(plain["job"]) > 200:
            raise WireError("a request has a negative sequence number or too long a job id.")
        return cls(**{**plain, "mail": tuple(_mail(one) for one in plain["mail"])})


@dataclass(frozen=True, kw_only=True)
class Reply:
    """A value with peer messages, or the code of an error."""

    value: Any = None
    mail: Sequence[Mail] = ()
    error: str = ""

    def encode(self) -> bytes:
        return wire.encode({"value": self.value, "mail": [one.to_dict() for one in self.mail], "error": self.error})

    @classmethod
    def decode(cls, data: bytes) -> Reply:
        plain = _fields(wire.decode(data), {"value": object, "mail": list, "error": str})
        return cls(**{**plain, "mail": tuple(_mail(one) for one in plain["mail"])})


def _mail(plain: Any) -> Mail:
    return Mail(**_fields(plain, {"sender": str, "recipient": str, "tag": str, "seq": int, "sealed": bytes}))


def _fields(plain: Any, wanted: Mapping[str, type]) -> dict[str, Any]:
    if not isinstance(plain, dict) or set(plain) != set(wanted):
        raise WireError(f"a message must have exactly the fields {', '.join(wanted)}.")
    for name, kind in wanted.items():
        if not isinstance(plain[name], kind) or (kind is int and isinstance(plain[name], bool)):
            raise WireError(f"field {name!r} of a message must be {kind.__name__}.")
    return plain
