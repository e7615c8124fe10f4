"""A party's own folder: configuration, key, pinned roster and facts, alignment; later its ledger and log.

party.json      name, source, key column, policy, simulation
identity.pem    the private key (mode 0600); it never leaves
columns.toml    the declared columns of this party
pinned.json     the roster and the public facts that this party has agreed to
alignment.npy   the cohort row of each of its records; alignment.json binds it to the block's keys
aligned/        the same, as a private alignment made it; overlap.json has its exact counts
party.db        ledger, transcript, replies        log.txt   what went wrong, in full
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from colonnade.data.block import Block
from colonnade.data.cohort import Alignment
from colonnade.data.column import Columns
from colonnade.durable import json_object, private_folder, whole_file
from colonnade.errors import RosterError, SchemaError, SourceError
from colonnade.federation.config import Consortium, PartyFile
from colonnade.federation.facts import PublicFacts
from colonnade.federation.party import Party
from colonnade.federation.policy import Policy
from colonnade.federation.roster import Roster
from colonnade.federation.transports.certificates import AUTHORITY
from colonnade.secure.sealed import Identity

UNALIGNED = "unaligned"
"""The cohort that a party has until its first alignment."""


def unaligned(records: int) -> Alignment:
    """Before the first alignment the cohort is one row that nobody has."""
    return Alignment(1, np.full(records, -1))


@dataclass(frozen=True, kw_only=True)
class Home:
    """One party's folder."""

    path: Path

    def identity(self) -> Identity:
        """This party's key, made here the first time."""
        file = self.path / "identity.pem"
        if file.exists():
            return Identity.load(file)
        private_folder(self.path)
        identity = Identity.generate()
        identity.save(file)
        return identity

    def configure(
        self,
        *,
        name: str,
        key: str | Sequence[str],
        source: str | Mapping[str, Any] | None,
        columns: Columns | None,
        policy: Policy,
        simulation: bool,
        packages: Sequence[str] = (),
        authority: Path | None = None,
    ) -> None:
        """`packages` are those beyond Colonnade's own methods that this party runs, by its own choice; `authority` is
        the certificate against which it verifies who asks."""
        if columns is not None:
            self._write("columns.toml", columns.to_toml())
        settings = {
            "name": name,
            "key": key if isinstance(key, str) else list(key),
            "source": source if source is None or isinstance(source, str) else dict(source),
            "policy": policy.to_dict(),
            "simulation": simulation,
            "packages": list(packages),
            "authority": None if authority is None else str(authority.absolute()),
        }
        self._write("party.json", json.dumps(settings, indent=2))

    def pin(self, roster: Roster, facts: PublicFacts) -> None:
        self._write("pinned.json", json.dumps({"roster": roster.to_dict(), "facts": facts.to_dict()}, indent=2))

    def pinned(self) -> tuple[Roster, PublicFacts]:
        plain = self._read("pinned.json")
        return Roster.from_dict(plain["roster"]), PublicFacts.from_dict(plain["facts"])

    def align(self, alignment: Alignment, keys: Iterable[Any], *, cohort: str = "") -> None:
        """`cohort` names the alignment that the rows belong to; rows of two alignments never mix."""
        private_folder(self.path)
        alignment.save(self.path / "alignment.npy")
        self._write("alignment.json", json.dumps({"n": alignment.n, "keys": keys_digest(keys), "cohort": cohort}))

    @property
    def aligned(self) -> Home:
        """Where a private alignment puts its result (alignment.npy, alignment.json, overlap.json)."""
        return Home(path=self.path / "aligned")

    @property
    def cohort(self) -> str | None:
        """The name of the stored alignment, or None without one."""
        if not (self.path / "alignment.json").exists():
            return None
        return str(self._read("alignment.json").get("cohort", ""))

    @property
    def aligned_n(self) -> int | None:
        """The size of the cohort that a private alignment has made, as a member without data knows it."""
        if not (self.path / "aligned" / "overlap.json").is_file():
            return None
        return int(self.aligned._read("overlap.json")["n"])

    def alignment(self, keys: Iterable[Any]) -> Alignment | None:
        """The stored alignment, if it was made for these very keys in this order."""
        if self.cohort is None or not (self.path / "alignment.npy").exists():
            return None
        if self._read("alignment.json")["keys"] != keys_digest(keys):
            return None
        return Alignment.load(self.path / "alignment.npy")

    def settings(self) -> dict[str, Any]:
        return self._read("party.json")

    def _read(self, name: str) -> dict[str, Any]:
        return json_object(self.path / name, cure="set this party up again")

    def _write(self, name: str, text: str) -> None:
        """Whole or not at all, also when the process dies in between."""
        with whole_file(self.path / name) as partial:
            partial.write_text(text, encoding="utf-8")


def keys_digest(keys: Iterable[Any]) -> str:
    """Binds an alignment to a block's keys in their order. It stays in the party's folder."""
    hasher = hashlib.sha256()
    array = keys if isinstance(keys, np.ndarray) else np.asarray(keys, dtype=object)
    for start in range(0, len(array), 4096):  # objects for all keys at once would take more memory than the keys
        texts = [repr(key).encode() for key in array[start : start + 4096].astype(object)]
        hasher.update(b"".join(len(text).to_bytes(8, "big") + text for text in texts))
    return hasher.hexdigest()


def open_party(path: Path) -> Party:
    """The party whose folder this is."""
    home = Home(path=path)
    settings = home.settings()
    roster, facts = home.pinned()
    block = alignment = None
    authority = settings.get("authority")
    if settings["source"] is not None:
        columns = Columns.from_toml(path / "columns.toml")
        block = Block.open(settings["name"], settings["source"], key=settings["key"], columns=columns)
        alignment = home.alignment(block.keys)
        if alignment is None:
            raise SourceError(
                f"the keys of {settings['name']!r} have changed since the alignment; align the federation again."
            )
    return Party(
        name=settings["name"],
        home=path,
        roster=roster,
        facts=facts,
        identity=home.identity(),
        block=block,
        alignment=alignment,
        policy=Policy.from_dict(settings["policy"]),
        simulation=bool(settings["simulation"]),
        authority=None if authority is None else Path(authority),
        packages=settings.get("packages", ()),
    )


def prepare(file: PartyFile) -> Consortium:
    """Write the party's folder from its files, so that `open_party` finds it.

    A cohort that an alignment has left is adopted. Without one, the party waits for an alignment: its cohort is one
    row that nobody has.
    """
    agreed = Consortium.from_toml(file.consortium, authority=file.credentials / AUTHORITY)
    home = Home(path=file.home)
    member = agreed.roster.member(file.name)
    if home.identity().public != member.public_key:
        raise RosterError(
            f"the certificate of {file.name!r} in {file.consortium} holds another sealing key than {file.home};"
            " have the authority sign this party's own request."
        )
    if member.owns_data != (file.source is not None):
        raise RosterError(f"{file.name!r} has a source in party.toml and columns in consortium.toml, or neither.")
    n = home.aligned_n
    declared = agreed.columns.get(file.name)
    unknown = [name for name in file.policy.columns or () if name not in (declared or ())]
    if unknown:
        raise SchemaError(
            f"columns in [policy] offers {unknown[0]!r}, which consortium.toml does not declare for {file.name!r};"
            f" it declares {', '.join(declared or ())}."
        )
    if declared is not None:
        declared = declared.ignoring(file.ignore)
        block = Block.open(file.name, file.source, key=agreed.key, columns=declared)
        alignment = home.aligned.alignment(block.keys)
        if alignment is None:
            home.align(unaligned(block.n_records), block.keys, cohort=UNALIGNED)
            n = 1
        else:
            home.align(alignment, block.keys, cohort=home.aligned.cohort or "")
            n = alignment.n
    home.pin(agreed.roster, agreed.facts(n or 1))
    home.configure(
        name=file.name,
        key=agreed.key,
        source=None if file.source is None else stored_source(file.source),
        columns=declared,
        policy=file.policy,
        simulation=file.simulation,
        packages=file.packages,
        authority=file.credentials / AUTHORITY,
    )
    return agreed


def stored_source(source: Any) -> str | dict[str, Any]:
    """A source as party.json names it."""
    if isinstance(source, Mapping):
        return {name: list(value) if isinstance(value, list | tuple) else str(value) for name, value in source.items()}
    return str(Path(source).absolute())
