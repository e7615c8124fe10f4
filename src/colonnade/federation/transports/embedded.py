"""All parties in this process: same bytes, same ledger, same transcript, no isolation between them."""

from __future__ import annotations

from collections.abc import Mapping

from colonnade.errors import PartyLost
from colonnade.federation.party import Party


class Embedded:
    """Hands the bytes to `Party.handle` directly."""

    def __init__(self, parties: Mapping[str, Party]) -> None:
        self._parties = dict(parties)
        self.parties = tuple(parties)

    def __getitem__(self, party: str) -> Party:
        return self._parties[party]

    def exchange(self, party: str, data: bytes, *, timeout: float) -> bytes:
        if party not in self._parties:
            raise PartyLost(f"party {party!r} is not part of this federation; check its name.")
        return self._parties[party].handle(data)

    def where(self, party: str) -> str:
        return str(self._parties[party].home / "log.txt")

    def close(self) -> None:
        for party in self._parties.values():
            party.close()
