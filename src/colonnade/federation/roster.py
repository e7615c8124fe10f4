"""Who takes part: members, organisations, keys, the committee of share holders, its threshold.

A party pins its roster. These things come from there and never from a request's arguments, so that no request can
talk a party into sharing with a stranger, opening with too few holders, or leaving out a member's noise.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from colonnade.durable import canonical, check_name
from colonnade.errors import RosterError, TooFewHolders

COORDINATOR = "the coordinator's own"
"""The organisation of a coordinator that belongs to none of the members."""
LONGEST_ORGANISATION = 64
"""As in a certificate."""


@dataclass(frozen=True, kw_only=True)
class Member:
    """A process with a key. A data party owns a block; a member without one only holds shares and adds noise."""

    name: str
    organisation: str
    public_key: bytes
    owns_data: bool = True
    signing_key: bytes = b""
    """With which it signs the head of its ledger; empty: a certificate of an older version, and nothing is signed."""


@dataclass(frozen=True, kw_only=True)
class Roster:
    """The consortium. `committee` holds shares with `threshold` t: any t of them learn nothing, and there are at
    least 2t + 1. `colluders` is the number of organisations that the default privacy account assumes to pool the noise
    of their members. `coordinator` is the organisation that runs the coordinator: if it runs members too, they and the
    coordinator are one in every account.
    """

    members: tuple[Member, ...]
    committee: tuple[str, ...] = ()
    threshold: int = 1
    colluders: int = 1
    coordinator: str = COORDINATOR
    pair: bool = False
    """Institutions in pairs, without share holders: of every two, one encrypts what the other multiplies."""

    def __post_init__(self) -> None:
        names = [member.name for member in self.members]
        keys = [member.public_key for member in self.members]
        if len(set(names)) != len(names):
            raise RosterError("two members of the roster have the same name; give each its own.")
        if len(set(keys)) != len(keys):
            raise RosterError("two members of the roster have the same key; each must make its own.")
        if not any(member.owns_data for member in self.members):
            raise RosterError("no member of the roster owns data; add at least one data party.")
        for member in self.members:
            check_name(member.name, "a member of the roster", error=RosterError)
            if not (0 < len(member.organisation) <= LONGEST_ORGANISATION and member.organisation.isprintable()):
                raise RosterError(
                    f"the organisation of {member.name!r} needs a name of 1 to {LONGEST_ORGANISATION} printable"
                    " characters."
                )
        if len({name.casefold() for name in names}) != len(names):
            raise RosterError("two members' names differ by capital letters only; a file system may take them for one.")
        if not 0 <= self.colluders < len(self.members):
            raise RosterError(
                f"{self.colluders} colluders among {len(self.members)} members leave no honest noise; assume fewer."
            )
        if self.pair:
            self._check_pair()
        if self.committee:
            self._check_committee(names)

    def _check_pair(self) -> None:
        organisations = {member.organisation for member in self.members}
        if not 2 <= len(self.members) == len(organisations) or not all(member.owns_data for member in self.members):
            raise RosterError(
                'committee = "pair" is for two or more data parties, each of an organisation of its own, and no other'
                " member; for others name three share holders."
            )
        if self.committee:
            raise RosterError("a pair has no share holders; leave the committee out.")

    def _check_committee(self, names: list[str]) -> None:
        unknown = [name for name in self.committee if name not in names]
        if unknown or len(set(self.committee)) != len(self.committee):
            raise RosterError(f"the committee {list(self.committee)} must name each of its members once.")
        if self.threshold < 1 or len(self.committee) < 2 * self.threshold + 1:
            raise TooFewHolders(
                f"{len(self.committee)} share holders cannot support threshold {self.threshold}: name at least"
                f" {2 * max(self.threshold, 1) + 1} of different organisations."
            )
        organisations = [self.member(name).organisation for name in self.committee]
        for organisation in organisations:
            if organisations.count(organisation) > 1:
                raise RosterError(
                    f"two share holders belong to {organisation!r}, which could then pool their shares; choose holders"
                    " of different organisations."
                )

    def member(self, name: str) -> Member:
        for member in self.members:
            if member.name == name:
                return member
        raise RosterError(f"{name!r} is not in the roster; its members are {', '.join(self.names)}.")

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(member.name for member in self.members)

    @property
    def data_parties(self) -> tuple[str, ...]:
        return tuple(member.name for member in self.members if member.owns_data)

    @property
    def pooled(self) -> int:
        """Members whose noise the colluders know: an organisation that runs several members knows the noise of all. The
        coordinator's organisation sees every result, so it is one of them, whether or not any others are assumed."""
        sizes = sorted(Counter(member.organisation for member in self.members).values(), reverse=True)
        return max(sum(sizes[: self.colluders]), len(self.beside_coordinator))

    @property
    def beside_coordinator(self) -> tuple[str, ...]:
        """The members that the coordinator's organisation runs: it knows their noise, their shares and their keys."""
        return tuple(member.name for member in self.members if member.organisation == self.coordinator)

    def require_committee(self, *, pair: bool = True, instead: str = "") -> None:
        """Refuse a roster that cannot compute a statistic. A `pair` can, where one product of two parties' columns is
        enough; otherwise an option `instead` may need no more."""
        if self.pair:
            if pair:
                return
            alone = len(self.members) == 2
            holders = (
                'add an independent holder to the roster (holder = "...") in place of committee = "pair".'
                if alone
                else 'leave out committee = "pair", so that three parties hold shares.'
            )
            raise TooFewHolders(
                "this method multiplies shares more than once, which"
                f" {'two institutions alone' if alone else 'parties in pairs'} cannot;"
                f" {instead and f'choose {instead}, or '}{holders}"
            )
        if not self.committee and self.threshold > 1:
            raise TooFewHolders(
                f"threshold = {self.threshold} needs {2 * self.threshold + 1} share holders of as many organisations;"
                " take a lower threshold or add parties."
            )
        if not self.committee:
            raise TooFewHolders(
                "this statistic needs at least three share holders of three organisations; add an independent holder to"
                ' the roster (holder = "...") or another party, or let two parties compute alone (committee = "pair").'
            )

    def to_dict(self) -> dict[str, Any]:
        return {
            "members": [
                {
                    "name": member.name,
                    "organisation": member.organisation,
                    "public_key": member.public_key.hex(),
                    "owns_data": member.owns_data,
                    "signing_key": member.signing_key.hex(),
                }
                for member in self.members
            ],
            "committee": list(self.committee),
            "threshold": self.threshold,
            "colluders": self.colluders,
            "coordinator": self.coordinator,
            **({"pair": True} if self.pair else {}),  # left out, so that older rosters keep their fingerprints
        }

    @classmethod
    def from_dict(cls, plain: Mapping[str, Any]) -> Roster:
        members = tuple(
            Member(**member | {key: bytes.fromhex(member.get(key, "")) for key in ("public_key", "signing_key")})
            for member in plain["members"]
        )
        return cls(
            members=members,
            committee=tuple(plain["committee"]),
            threshold=int(plain["threshold"]),
            colluders=int(plain["colluders"]),
            coordinator=str(plain.get("coordinator", COORDINATOR)),
            pair=bool(plain.get("pair", False)),
        )

    @property
    def fingerprint(self) -> str:
        return hashlib.sha256(canonical(self.to_dict()).encode()).hexdigest()
