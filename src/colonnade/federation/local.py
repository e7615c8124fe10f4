"""A federation on one machine: folders, keys, roster and alignment for all parties, from blocks or a TOML file."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pandas as pd

from colonnade.data.block import Block
from colonnade.data.cohort import Alignment, join_in_the_clear
from colonnade.data.column import Columns
from colonnade.durable import private_file, private_folder
from colonnade.errors import KeyProblem, RosterError, SchemaError, SourceError
from colonnade.federation.config import Spec
from colonnade.federation.facts import PublicFacts
from colonnade.federation.home import UNALIGNED, Home, open_party, stored_source, unaligned
from colonnade.federation.party import Party
from colonnade.federation.policy import Policy
from colonnade.federation.roster import Member, Roster
from colonnade.federation.transports import Transport
from colonnade.federation.transports.embedded import Embedded
from colonnade.federation.transports.processes import Processes
from colonnade.privacy.randomness import SimulatedRandomness, SystemRandomness


def set_up(spec: Spec, home: Path, *, aligned: bool = True) -> tuple[Transport, PublicFacts, Roster]:
    """Load and check everything first; write the parties' folders only when nothing is wrong.

    With `aligned=False` no keys are compared: until an alignment has run, the cohort is one row that nobody has.
    """
    columns = spec.columns if isinstance(spec.columns, Columns) else Columns.from_toml(spec.columns)
    if not spec.blocks:
        raise SchemaError("a federation needs at least one party; give its block.")
    for party in spec.organisations:
        if party not in spec.blocks:
            raise RosterError(f"organisations names {party!r}; the parties are {', '.join(spec.blocks)}.")
    blocks = {
        party: Block.open(party, source, key=spec.key, columns=columns, ignore=spec.ignore)
        for party, source in spec.blocks.items()
    }
    homes = {party: Home(path=home / party) for party in blocks}
    if spec.holder is not None:
        homes["holder"] = Home(path=home / "holder")
    _roster(spec, blocks, {party: bytes([number]) * 32 for number, party in enumerate(homes)})
    alignments = _alignments(spec, blocks, homes) if aligned else _before_alignment(blocks)
    facts = PublicFacts(
        n=next(iter(alignments.values())).n, columns={party: block.columns for party, block in blocks.items()}
    )
    roster = _roster(
        spec,
        blocks,
        {party: folder.identity().public for party, folder in homes.items()},
        {party: folder.identity().signing_key for party, folder in homes.items()},
    )
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
    valid = {party: alignment for party, alignment in stored.items() if alignment is not None}
    if len(valid) == len(blocks) and len({alignment.n for alignment in valid.values()}) == 1:
        return valid
    randomness = SystemRandomness() if spec.seed is None else SimulatedRandomness(spec.seed, "cohort order")
    cohort, joined = join_in_the_clear(
        {party: block.keys for party, block in blocks.items()}, include=spec.include, randomness=randomness
    )
    if len(blocks) > 1 and cohort.presence.sum(axis=1).max() < 2:
        raise KeyProblem(
            "no record is at two parties: see that their keys are the same, and written alike (00123, 123 and 123.0 are"
            " three different keys, and so are capitals)."
        )
    return joined


def _privately(blocks: Mapping[str, Block], folders: Mapping[str, Home]) -> dict[str, Alignment]:
    """What a private alignment left at each party. Keys that were kept apart are never joined in the clear unasked."""
    stored = {party: folder.alignment(blocks[party].keys) for party, folder in folders.items()}
    valid = {party: alignment for party, alignment in stored.items() if alignment is not None}
    if len(valid) < len(stored) or len({folder.cohort for folder in folders.values()}) > 1:
        raise SourceError(
            "the keys have changed since the private alignment, or it did not finish; run `colonnade align` again, or"
            " delete the folders 'aligned' of all parties to join the keys in the clear."
        )
    return valid


def _before_alignment(blocks: Mapping[str, Block]) -> dict[str, Alignment]:
    return {party: unaligned(block.n_records) for party, block in blocks.items()}


def aligned_privately(spec: Spec, home: Path) -> bool:
    """Whether a private alignment is stored at the parties."""
    return all(Home(path=home / party).aligned.cohort is not None for party in spec.blocks)


def _roster(
    spec: Spec, blocks: Mapping[str, Block], keys: Mapping[str, bytes], signing: Mapping[str, bytes] | None = None
) -> Roster:
    """All members, and by default the first three members of different organisations as the committee."""
    organisations = {party: spec.organisations.get(party, party) for party in blocks}
    if spec.holder is not None:
        if "holder" in blocks:
            raise RosterError("a data party is named 'holder', as the independent share holder is; rename the party.")
        organisations["holder"] = spec.holder
    members = [
        Member(
            name=name,
            organisation=organisation,
            public_key=keys[name],
            owns_data=name in blocks,
            signing_key=(signing or {}).get(name, b""),
        )
        for name, organisation in organisations.items()
    ]
    committee = () if spec.committee == "pair" else spec.committee
    if committee is None:
        chosen: dict[str, str] = {}
        for member in members:
            chosen.setdefault(member.organisation, member.name)
        enough = len(chosen) >= 2 * spec.threshold + 1
        committee = tuple(list(chosen.values())[: 2 * spec.threshold + 1]) if enough else ()
    colluders = min(spec.colluders, len(members) - 1)
    return Roster(
        members=tuple(members),
        committee=committee,
        threshold=spec.threshold,
        colluders=colluders,
        coordinator=spec.coordinator,
        pair=spec.committee == "pair",
    )


def _persistent(spec: Spec, party: str, folder: Home) -> str | dict[str, Any]:
    """Where the party's own process finds its block; a frame is written into the party's folder."""
    source = spec.blocks[party]
    if isinstance(source, pd.DataFrame):
        if spec.transport == "embedded":
            return "in memory"
        private_folder(folder.path)
        source.to_parquet(private_file(folder.path / "block.parquet"), index=False)
        return str(folder.path / "block.parquet")
    return stored_source(source)
