"""A federation on one machine: folders, keys, roster and alignment for all parties, from blocks or a TOML file."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pandas as pd

from colonnade.data.block import Block
from colonnade.data.cohort import Alignment, join_in_the_clear
from colonnade.data.column import Columns
from colonnade.data.composite import key_name, with_key
from colonnade.data.sources import open_source
from colonnade.errors import RosterError, SchemaError, SourceError
from colonnade.federation.catalogue import CATALOGUE
from colonnade.federation.facts import PublicFacts
from colonnade.federation.home import Home, open_party
from colonnade.federation.party import Party
from colonnade.federation.policy import Policy
from colonnade.federation.roster import Member, Roster
from colonnade.federation.transports import Transport
from colonnade.federation.transports.embedded import Embedded
from colonnade.federation.transports.processes import Processes
from colonnade.privacy.budget import Budget
from colonnade.privacy.randomness import SimulatedRandomness, SystemRandomness

UNALIGNED = "unaligned"
"""The cohort that a federation has until its first alignment."""


@dataclass(frozen=True, kw_only=True)
class Spec:
    """What a local federation is made of.

    blocks: {party: DataFrame, path, or source mapping}; key: the record key's column, or several that identify a
    record together; columns: `Columns` or a columns.toml; organisations: {party: name} (each party its own by default);
    holder: the organisation of an independent share holder without data (needed with two parties); committee,
    threshold, colluders: see `Roster`; allow: unbounded releases that all parties allow by name; budget: of each
    party; seed: makes this a simulation; include: the union of all records, or one party's.
    """

    blocks: Mapping[str, Any]
    key: str | Sequence[str]
    columns: Columns | str | Path
    organisations: Mapping[str, str] = field(default_factory=dict)
    holder: str | None = None
    committee: tuple[str, ...] | None = None
    threshold: int = 1
    colluders: int = 1
    allow: tuple[str, ...] = ()
    budget: Budget | None = None
    approve: Literal["auto", "ask"] = "auto"
    seed: int | None = None
    include: str = "union"
    home: Path | str | None = None
    transport: Literal["embedded", "processes", "network"] = "embedded"
    packages: tuple[str, ...] = field(default_factory=lambda: CATALOGUE.optional)
    timeout: float = 600.0

    @classmethod
    def from_toml(cls, path: Path) -> tuple[Spec, Path]:
        """A federation.toml, with paths relative to it, and its folder for runs."""
        try:
            plain = tomllib.loads(path.read_text(encoding="utf-8"))
        except (OSError, tomllib.TOMLDecodeError) as error:
            raise SchemaError(
                f"{path} cannot be read ({error}); see docs/federation-toml.md for an example."
            ) from error
        parties = plain.pop("parties", None)
        if not isinstance(parties, dict) or not parties or "key" not in plain or "columns" not in plain:
            raise SchemaError(f"{path} needs key, columns and at least one [parties.NAME] with a source.")
        beside = path.parent
        blocks: dict[str, Any] = {}
        organisations: dict[str, str] = {}
        for name, one in parties.items():
            if not isinstance(one, dict) or "source" not in one:
                raise SchemaError(f'[parties.{name}] in {path} needs a source; add source = "file.csv".')
            blocks[name] = located(one["source"], beside)
            organisations[name] = str(one.get("organisation", name))
        if "budget" in plain:
            try:
                plain["budget"] = Budget(**plain["budget"])
            except TypeError as error:
                raise SchemaError(f"[budget] in {path} has a field that a budget does not know ({error}).") from error
        for listed in ("committee", "allow", "packages"):
            if listed in plain:
                plain[listed] = tuple(plain[listed])
        runs = beside / plain.pop("runs", "runs")
        plain["home"] = beside / plain.get("home", "home")
        plain["columns"] = beside / plain["columns"]
        try:
            return cls(blocks=blocks, organisations=organisations, **plain), runs
        except TypeError as error:
            raise SchemaError(f"{path} has a field that a federation does not know ({error}).") from error


def located(source: Any, beside: Path) -> Any:
    """A source whose files are named relative to `beside`."""
    if isinstance(source, str):
        return str(beside / source)
    if isinstance(source, dict):
        files = ("csv", "parquet", "duckdb", "dask_ca", "dask_certificate", "dask_key")
        paths = [kind for kind in files if source.get(kind, ":memory:") != ":memory:"]
        return source | {kind: str(beside / source[kind]) for kind in paths}
    raise SchemaError('a source is a file name or a table such as { duckdb = "file", query = "select ..." }.')


def set_up(spec: Spec, home: Path, *, aligned: bool = True) -> tuple[Transport, PublicFacts, Roster]:
    """Load and check everything first; write the parties' folders only when nothing is wrong.

    With `aligned=False` no keys are compared: until an alignment has run, the cohort is one row that nobody has.
    """
    columns = spec.columns if isinstance(spec.columns, Columns) else Columns.from_toml(spec.columns)
    if not spec.blocks:
        raise SchemaError("a federation needs at least one party; give its block.")
    blocks = {
        party: Block.load(party, with_key(open_source(source), spec.key), key=key_name(spec.key), columns=columns)
        for party, source in spec.blocks.items()
    }
    homes = {party: Home(path=home / party) for party in blocks}
    alignments = _alignments(spec, blocks, homes) if aligned else _nobody(blocks)
    facts = PublicFacts(
        n=next(iter(alignments.values())).n, columns={party: block.columns for party, block in blocks.items()}
    )
    if spec.holder is not None:
        homes["holder"] = Home(path=home / "holder")
    _roster(spec, blocks, {party: bytes([number]) * 32 for number, party in enumerate(homes)})

    roster = _roster(spec, blocks, {party: folder.identity().public for party, folder in homes.items()})
    policy = Policy(approve=spec.approve, allow=spec.allow, budget=spec.budget)
    for party, folder in homes.items():
        folder.pin(roster, facts)
        block = blocks.get(party)
        if block is not None:
            folder.align(alignments[party], block.keys, cohort="" if aligned else UNALIGNED)
        folder.configure(
            name=party,
            key=spec.key,
            source=_persistent(spec, party, folder) if block is not None else None,
            columns=None if block is None else block.columns,
            policy=policy,
            simulation=spec.seed is not None,
            packages=spec.packages,
        )
    if spec.transport == "processes":
        transport = Processes({party: folder.path for party, folder in homes.items()})
        transport.start()
        return transport, facts, roster
    if spec.transport == "network":
        from colonnade.federation.transports.loopback import Loopback

        members = {
            party: (folder.path, roster.member(party).organisation, roster.member(party).public_key)
            for party, folder in homes.items()
        }
        network = Loopback(members, folder=home / "network")
        network.start()
        return network, facts, roster
    return (
        Embedded({party: _embedded(party, homes[party], blocks, alignments, spec, policy) for party in homes}),
        facts,
        roster,
    )


def _embedded(
    party: str,
    folder: Home,
    blocks: Mapping[str, Block],
    alignments: Mapping[str, Alignment],
    spec: Spec,
    policy: Policy,
) -> Party:
    if party not in blocks:
        return open_party(folder.path)
    roster, facts = folder.pinned()
    return Party(
        name=party,
        home=folder.path,
        roster=roster,
        facts=facts,
        identity=folder.identity(),
        block=blocks[party],
        alignment=alignments[party],
        policy=policy,
        simulation=spec.seed is not None,
        packages=spec.packages,
        lasting=spec.home is not None,
    )


def _alignments(spec: Spec, blocks: Mapping[str, Block], homes: Mapping[str, Home]) -> dict[str, Alignment]:
    """The private alignment if there is one. Otherwise the stored one, if every party still has the same keys, or a
    new one in a new random order, made in the clear."""
    private = {party: homes[party].aligned for party in blocks}
    if any(folder.cohort is not None for folder in private.values()):
        return _privately(blocks, private)
    if any(homes[party].cohort == UNALIGNED for party in blocks):
        raise SourceError(
            "an alignment was started and did not finish; run `colonnade align` again, or delete alignment.json in the"
            " folders of all parties to join the keys in the clear."
        )
    stored = {party: homes[party].alignment(blocks[party].keys) for party in blocks}
    kept = {party: alignment for party, alignment in stored.items() if alignment is not None}
    if len(kept) == len(blocks) and len({alignment.n for alignment in kept.values()}) == 1:
        return kept
    randomness = SystemRandomness() if spec.seed is None else SimulatedRandomness(spec.seed, "cohort order")
    _, made = join_in_the_clear(
        {party: block.keys for party, block in blocks.items()}, include=spec.include, randomness=randomness
    )
    return made


def _privately(blocks: Mapping[str, Block], folders: Mapping[str, Home]) -> dict[str, Alignment]:
    """What a private alignment left at each party. Keys that were kept apart are never joined in the clear unasked."""
    found = {party: folder.alignment(blocks[party].keys) for party, folder in folders.items()}
    made = {party: alignment for party, alignment in found.items() if alignment is not None}
    if len(made) < len(found) or len({folder.cohort for folder in folders.values()}) > 1:
        raise SourceError(
            "the keys have changed since the private alignment, or it did not finish; run `colonnade align` again, or"
            " delete the folders 'aligned' of all parties to join the keys in the clear."
        )
    return made


def _nobody(blocks: Mapping[str, Block]) -> dict[str, Alignment]:
    return {party: unaligned(block.n_records) for party, block in blocks.items()}


def unaligned(records: int) -> Alignment:
    """Before the first alignment the cohort is one row that nobody has."""
    return Alignment(1, np.full(records, -1))


def aligned_privately(spec: Spec, home: Path) -> bool:
    """Whether a private alignment is stored at the parties."""
    return all(Home(path=home / party).aligned.cohort is not None for party in spec.blocks)


def _roster(spec: Spec, blocks: Mapping[str, Block], keys: Mapping[str, bytes]) -> Roster:
    """Everybody, and by default the first three members of different organisations as the committee."""
    members = [
        Member(name=party, organisation=spec.organisations.get(party, party), public_key=keys[party])
        for party in blocks
    ]
    if spec.holder is not None:
        if "holder" in blocks:
            raise RosterError("a data party is named 'holder', as the independent share holder is; rename the party.")
        members.append(Member(name="holder", organisation=spec.holder, public_key=keys["holder"], owns_data=False))
    committee = spec.committee
    if committee is None:
        chosen: dict[str, str] = {}
        for member in members:
            chosen.setdefault(member.organisation, member.name)
        enough = len(chosen) >= 2 * spec.threshold + 1
        committee = tuple(list(chosen.values())[: 2 * spec.threshold + 1]) if enough else ()
    colluders = min(spec.colluders, len(members) - 1)
    return Roster(members=tuple(members), committee=committee, threshold=spec.threshold, colluders=colluders)


def _persistent(spec: Spec, party: str, folder: Home) -> str | dict[str, str]:
    """Where the party's own process finds its block; a frame is written into the party's folder."""
    source = spec.blocks[party]
    if isinstance(source, pd.DataFrame):
        if spec.transport == "embedded":
            return "in memory"
        folder.path.mkdir(parents=True, exist_ok=True)
        source.to_parquet(folder.path / "block.parquet", index=False)
        return str(folder.path / "block.parquet")
    return {k: str(v) for k, v in source.items()} if isinstance(source, Mapping) else str(Path(source).absolute())
