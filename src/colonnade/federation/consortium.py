"""Three files that put a federation on several machines.

consortium.toml   public, the same for everybody: key, coordinator's address, members, certificates, columns
party.toml        one institution's own: its source, its folder, its policy and budget
coordinator.toml  the coordinator's own: where it serves, its credentials, its folder of runs

A member's certificate holds its name, organisation and sealing key under the authority's signature, so the roster
follows from certificates, and nothing that somebody merely says is believed.
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from colonnade.data.block import Block
from colonnade.data.column import Columns
from colonnade.data.composite import key_name, with_key
from colonnade.data.sources import open_source
from colonnade.errors import RosterError, SchemaError
from colonnade.federation.facts import PublicFacts
from colonnade.federation.home import Home
from colonnade.federation.local import UNALIGNED, located, unaligned
from colonnade.federation.policy import Policy
from colonnade.federation.roster import Member, Roster
from colonnade.federation.transports.certificates import AUTHORITY, signed_by
from colonnade.privacy.budget import Budget


def _toml(path: Path, wanted: Mapping[str, bool]) -> dict[str, Any]:
    """The file's fields; `wanted` maps each field that it may have to whether it must."""
    try:
        plain = tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, tomllib.TOMLDecodeError) as error:
        raise SchemaError(f"{path} cannot be read ({error}); see docs/network.md for an example.") from error
    missing = [name for name, needed in wanted.items() if needed and name not in plain]
    unknown = [name for name in plain if name not in wanted]
    if missing or unknown:
        wrong = f"lacks {', '.join(missing)}" if missing else f"has a field {unknown[0]!r} that it does not know"
        raise SchemaError(f"{path} {wrong}; see docs/network.md for an example.")
    return plain


@dataclass(frozen=True, kw_only=True)
class Consortium:
    """consortium.toml, with every certificate checked against the authority."""

    key: str | tuple[str, ...]
    coordinator: str
    roster: Roster
    columns: Mapping[str, Columns]
    capacity: Mapping[str, int]

    @classmethod
    def from_toml(cls, path: Path, *, authority: Path) -> Consortium:
        """`authority` is the reader's own copy of the authority's certificate: the file cannot bring its own."""
        needed = {"key": True, "coordinator": True, "members": True}
        plain = _toml(path, needed | {"committee": False, "threshold": False, "colluders": False})
        listed = plain["members"]
        if not isinstance(listed, dict) or not listed:
            raise SchemaError(f"{path} needs at least one [members.NAME] with a certificate.")
        members, columns, capacity = [], {}, {}
        for name, one in listed.items():
            if (
                not isinstance(one, dict)
                or "certificate" not in one
                or set(one) - {"certificate", "columns", "capacity"}
            ):
                raise SchemaError(f"[members.{name}] in {path} takes certificate, columns and capacity.")
            owner = signed_by(authority, path.parent / one["certificate"])
            if owner.name != name or owner.sealing_key is None:
                raise RosterError(f"the certificate of [members.{name}] in {path} is that of {owner.name!r}.")
            owns = "columns" in one
            members.append(
                Member(name=name, organisation=owner.organisation, public_key=owner.sealing_key, owns_data=owns)
            )
            if owns:
                columns[name] = Columns.from_toml(path.parent / one["columns"])
                capacity[name] = int(one.get("capacity", 0))
        committee = tuple(plain.get("committee", ()))
        threshold = int(plain.get("threshold", 1))
        roster = Roster(
            members=tuple(members),
            committee=committee,
            threshold=threshold,
            colluders=int(plain.get("colluders", min(1, len(members) - 1))),
        )
        key = plain["key"]
        return cls(
            key=key if isinstance(key, str) else tuple(key),
            coordinator=str(plain["coordinator"]),
            roster=roster,
            columns=columns,
            capacity=capacity,
        )

    def facts(self, n: int) -> PublicFacts:
        return PublicFacts(n=n, columns=dict(self.columns))


@dataclass(frozen=True, kw_only=True)
class PartyFile:
    """party.toml."""

    consortium: Path
    name: str
    home: Path
    source: Any = None
    credentials: Path = Path("credentials")
    policy: Policy = field(default_factory=Policy)
    packages: tuple[str, ...] = ()
    """Packages beyond Colonnade's own methods that this party runs: "colonnade.papers", or another's plug-in."""
    simulation: bool = False
    """Whether this party accepts a seed, which protects nobody: for trying things out on data that are not real."""

    @classmethod
    def from_toml(cls, path: Path) -> PartyFile:
        may = dict.fromkeys(("source", "home", "credentials", "policy", "budget", "simulation", "packages"), False)
        plain = _toml(path, {"consortium": True, "name": True} | may)
        beside = path.parent
        rules = dict(plain.get("policy", {}))
        try:
            budget = None if "budget" not in plain else Budget(**plain["budget"])
            policy = Policy.stated({**rules, "budget": budget})
        except TypeError as error:
            raise SchemaError(f"[policy] or [budget] in {path} has a field that is not known ({error}).") from error
        return cls(
            consortium=beside / plain["consortium"],
            name=str(plain["name"]),
            home=beside / plain.get("home", "home"),
            source=None if "source" not in plain else located(plain["source"], beside),
            credentials=beside / plain.get("credentials", "credentials"),
            policy=policy,
            packages=tuple(plain.get("packages", ())),
            simulation=plain.get("simulation", False) is True,
        )

    def prepare(self) -> Consortium:
        """Write the party's folder from its files, so that `open_party` finds it.

        A cohort that an alignment has left is adopted. Without one, the party waits for an alignment: its cohort is one
        row that nobody has.
        """
        agreed = Consortium.from_toml(self.consortium, authority=self.credentials / AUTHORITY)
        home = Home(path=self.home)
        mine = agreed.roster.member(self.name)
        if home.identity().public != mine.public_key:
            raise RosterError(
                f"the certificate of {self.name!r} in {self.consortium} holds another sealing key than {self.home};"
                " have the authority sign this party's own request."
            )
        if mine.owns_data != (self.source is not None):
            raise RosterError(f"{self.name!r} has a source in party.toml and columns in consortium.toml, or neither.")
        n = home.aligned_n
        declared = agreed.columns.get(self.name, ())
        unknown = [name for name in self.policy.columns or () if name not in declared]
        if unknown:
            raise SchemaError(
                f"columns in [policy] offers {unknown[0]!r}, which consortium.toml does not declare for {self.name!r};"
                f" it declares {', '.join(declared)}."
            )
        if self.source is not None:
            columns = agreed.columns[self.name]
            source = with_key(open_source(self.source), agreed.key)
            block = Block.load(self.name, source, key=key_name(agreed.key), columns=columns)
            made = home.aligned.alignment(block.keys)
            if made is None:
                home.align(unaligned(block.n_records), block.keys, cohort=UNALIGNED)
                n = 1
            else:
                home.align(made, block.keys, cohort=home.aligned.cohort or "")
                n = made.n
        home.pin(agreed.roster, agreed.facts(n or 1))
        source_text = None if self.source is None else _plain(self.source)
        home.configure(
            name=self.name,
            key=agreed.key if isinstance(agreed.key, str) else list(agreed.key),
            source=source_text,
            columns=None if self.source is None else agreed.columns[self.name],
            policy=self.policy,
            simulation=self.simulation,
            packages=self.packages,
            authority=self.credentials / AUTHORITY,
        )
        return agreed


def _plain(source: Any) -> str | dict[str, str]:
    return {k: str(v) for k, v in source.items()} if isinstance(source, Mapping) else str(source)


@dataclass(frozen=True, kw_only=True)
class CoordinatorFile:
    """coordinator.toml."""

    consortium: Path
    address: str
    credentials: Path
    runs: Path
    revoked: Path | None = None
    timeout: float = 600.0
    seed: int | None = None
    """Makes every job a simulation; parties refuse it unless their own party.toml says `simulation = true`."""

    @classmethod
    def from_toml(cls, path: Path) -> CoordinatorFile:
        may = dict.fromkeys(("address", "credentials", "runs", "revoked", "timeout", "seed"), False)
        plain = _toml(path, {"consortium": True} | may)
        beside = path.parent
        if type(plain.get("seed", 0)) is not int:
            raise SchemaError(f"seed in {path} is a whole number, for simulations; leave it out for real data.")
        return cls(
            consortium=beside / plain["consortium"],
            address=str(plain.get("address", "0.0.0.0:7443")),
            credentials=beside / plain.get("credentials", "credentials"),
            runs=beside / plain.get("runs", "runs"),
            revoked=beside / plain["revoked"] if "revoked" in plain else None,
            timeout=float(plain.get("timeout", 600.0)),
            seed=plain.get("seed"),
        )

    @staticmethod
    def is_one(path: Path) -> bool:
        """Whether a TOML file is a coordinator.toml rather than a federation.toml."""
        try:
            return "consortium" in tomllib.loads(path.read_text(encoding="utf-8"))
        except (OSError, tomllib.TOMLDecodeError):
            return False
