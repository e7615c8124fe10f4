"""How bytes reach a party and come back. `exchange` is the whole seam; every transport passes one contract suite."""

from __future__ import annotations

from typing import Protocol


class Transport(Protocol):
    """Carries one request to one party and its answer back."""

    parties: tuple[str, ...]

    def exchange(self, party: str, data: bytes, *, timeout: float) -> bytes:
        """The party's answer, or `PartyLost` when it is gone or does not answer in time."""

    def where(self, party: str) -> str:
        """Where the party's operator finds its log, in words."""

    def close(self) -> None: ...
