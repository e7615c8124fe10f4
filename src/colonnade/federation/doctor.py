"""`colonnade doctor`: what is wrong with one end of a federation, each finding one sentence with its cure.

A check never changes anything and never stops the next one. A `fault` keeps work from being done or a record from being
trusted; a `warning` will become one, or may be as it should.
"""

from __future__ import annotations

import os
import platform
import shutil
import tomllib
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Literal

import colonnade
from colonnade.data.block import Block
from colonnade.data.composite import key_name, with_key
from colonnade.data.sources import open_source
from colonnade.durable import Database
from colonnade.errors import ColonnadeError, SchemaError
from colonnade.federation import doctor_network as network
from colonnade.federation.consortium import Consortium, CoordinatorFile, PartyFile
from colonnade.federation.doctor_network import Finding, fault, fine, warning
from colonnade.federation.home import Home
from colonnade.federation.transcript import Transcript
from colonnade.federation.transports.certificates import AUTHORITY, KEY
from colonnade.privacy.ledger import Ledger

SPARE, TIGHT = 200e6, 2e9
"""Bytes free: below the first nothing durable can be promised, below the second a large job may fail."""
CLOCK_STEP = 5.0
"""Seconds that a clock may go back between two messages before it is worth a word."""
NEWEST_RUNS = 20
Side = Literal["party", "coordinator"]


@dataclass(frozen=True, kw_only=True)
class Examination:
    side: Side
    name: str
    findings: tuple[Finding, ...]

    @property
    def faults(self) -> int:
        return sum(one.level == "fault" for one in self.findings)

    @property
    def warnings(self) -> int:
        return sum(one.level == "warning" for one in self.findings)


def examine(path: Path, *, quick: bool = False) -> Examination:
    """Every check of the party or the coordinator that a TOML file describes. `quick` reads no rows of the source."""
    try:
        plain = tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, tomllib.TOMLDecodeError) as error:
        raise SchemaError(f"{path} cannot be read ({error}); see docs/network.md for an example.") from error
    if "name" in plain:
        return _party(PartyFile.from_toml(path), quick)
    return _coordinator(CoordinatorFile.from_toml(path))


def _party(party: PartyFile, quick: bool) -> Examination:
    credentials, home = party.credentials, Home(path=party.home)
    agreed, readable = _consortium(party.consortium, credentials)
    findings = [
        *_run("versions", versions),
        *_run("certificates", lambda: network.certificates(credentials, role="party", name=party.name)),
        *_run("keys", lambda: network.secret_file(credentials / KEY)),
        *_run("keys", lambda: network.secret_file(party.home / "identity.pem")),
        *_run("certificates", lambda: _sealing(party, home)),
        *readable,
        *_run("members", lambda: network.members(party.consortium, credentials / AUTHORITY)),
    ]
    if agreed is not None:
        findings += _run("columns", lambda: _columns(party, agreed, quick))
        findings += _run("network", lambda: network.reachable(agreed.coordinator, credentials))
    findings += [*_run("disk", lambda: disk(party.home)), *_run("records", lambda: _records(party.home))]
    return Examination(side="party", name=party.name, findings=tuple(findings))


def _coordinator(file: CoordinatorFile) -> Examination:
    agreed, readable = _consortium(file.consortium, file.credentials)
    dialled = None if agreed is None else agreed.coordinator
    findings = [
        *_run("versions", versions),
        *_run(
            "certificates",
            lambda: network.certificates(file.credentials, role="coordinator", name="coordinator", dialled=dialled),
        ),
        *_run("keys", lambda: network.secret_file(file.credentials / KEY)),
        *readable,
        *_run("members", lambda: network.members(file.consortium, file.credentials / AUTHORITY, revoked=file.revoked)),
        *_run("network", lambda: network.port(file.address)),
        *_run("disk", lambda: disk(file.runs)),
        *_run("records", lambda: _runs(file.runs)),
    ]
    return Examination(side="coordinator", name="coordinator", findings=tuple(findings))


def _run(about: str, check: Callable[[], Iterator[Finding]]) -> Iterator[Finding]:
    """A check that cannot even be made is a fault, with the sentence of the error."""
    try:
        yield from check()
    except (ColonnadeError, OSError) as error:
        yield fault(about, str(error))


def _consortium(path: Path, credentials: Path) -> tuple[Consortium | None, list[Finding]]:
    try:
        agreed = Consortium.from_toml(path, authority=credentials / AUTHORITY)
    except (ColonnadeError, OSError) as error:
        return None, [fault("consortium", str(error))]
    members = ", ".join(agreed.roster.names)
    return agreed, [fine("consortium", f"{path.name} is sound; its members are {members}.")]


# --- this installation ------------------------------------------------------------------------------------


def versions() -> Iterator[Finding]:
    """This program and the libraries that the network rests on."""
    told = [f"Colonnade {colonnade.__version__}", f"Python {platform.python_version()}"]
    for name in ("grpcio", "protobuf", "cryptography"):
        try:
            told.append(f"{name} {metadata.version(name)}")
        except metadata.PackageNotFoundError:
            yield fault("versions", f"{name} is not installed; install colonnade[network].")
    yield fine("versions", ", ".join(told) + ".")


def disk(folder: Path) -> Iterator[Finding]:
    """Room and permission to write."""
    there = folder
    while not there.exists():
        there = there.parent
    if not os.access(there, os.W_OK):
        yield fault("disk", f"{there} cannot be written by this account; change its owner or choose another folder.")
    free = float(shutil.disk_usage(there).free)
    room = f"{free / 1e9:.1f} GB are free where {folder} is"
    if free < SPARE:
        yield fault("disk", f"{room}: too little for a ledger that must not fail; free some space.")
    elif free < TIGHT:
        yield warning("disk", f"{room}: a large job spools its messages there; free some space.")
    else:
        yield fine("disk", f"{room}.")


# --- a party's data and records ---------------------------------------------------------------------------


def _sealing(party: PartyFile, home: Home) -> Iterator[Finding]:
    """The key to which peers seal is the one that the certificate vouches for."""
    if not (party.home / "identity.pem").is_file():
        return  # `secret_file` has said so
    owner = network.owner(party.credentials)
    if owner.name != party.name:
        yield fault(
            "certificates",
            f"the certificate is for {owner.name!r}, and party.toml says {party.name!r}; have the authority sign this"
            " party's own request.",
        )
    if owner.sealing_key != home.identity().public:
        yield fault(
            "certificates",
            f"the certificate vouches for another sealing key than {party.home / 'identity.pem'}; make a new request"
            " with `colonnade party init` and have it signed.",
        )
    else:
        yield fine("certificates", "the certificate vouches for this party's sealing key.")


def _columns(party: PartyFile, agreed: Consortium, quick: bool) -> Iterator[Finding]:
    if party.name not in agreed.roster.names:
        yield fault("columns", f"consortium.toml has no member {party.name!r}; check the name in party.toml.")
        return
    owns = agreed.roster.member(party.name).owns_data
    if party.source is None:
        if owns:
            yield fault("columns", "consortium.toml declares columns for this party, and party.toml has no source.")
        else:
            yield fine("columns", "this member holds shares and no data.")
        return
    if not owns:
        yield fault("columns", "party.toml has a source, and consortium.toml declares no columns for this party.")
        return
    declared = agreed.columns[party.name]
    unknown = [name for name in party.policy.columns or () if name not in declared]
    if unknown:
        yield fault("columns", f"columns in [policy] offers {unknown[0]!r}, which consortium.toml does not declare.")
    try:
        source = with_key(open_source(party.source), agreed.key)
        key = key_name(agreed.key)
        there = set(source.names())
        missing = [name for name in (key, *declared) if name not in there]
        if missing:
            yield fault(
                "columns",
                f"{source.description} has no column {missing[0]!r}, which consortium.toml declares; correct the source"
                " or the declaration.",
            )
        elif quick:
            yield fine("columns", f"{source.description} has the key and all {len(declared)} declared columns.")
        else:
            block = Block.load(party.name, source, key=key, columns=declared)
            yield fine("columns", f"{source.description}: {block.n_records:,} records agree with their declaration.")
            yield from _alignment(Home(path=party.home), block)
    except ColonnadeError as error:
        yield fault("columns", str(error))


def _alignment(home: Home, block: Block) -> Iterator[Finding]:
    if home.aligned.cohort is None:
        yield warning("alignment", "no alignment has been made yet; run `colonnade align` at the coordinator.")
    elif home.aligned.alignment(block.keys) is None:
        yield fault("alignment", "the records have changed since the alignment; run `colonnade align` again.")
    else:
        yield fine("alignment", "the records are those that were aligned.")


def _records(home: Path) -> Iterator[Finding]:
    mode = home.stat().st_mode if home.is_dir() else 0
    if mode & 0o007:
        yield warning("files", f"every account of this machine can look into {home}; `chmod 700 {home}`.")
    if not (home / "party.db").is_file():
        yield warning("records", "there is no ledger yet: this party has not served.")
        return
    with closing(Database(home / "party.db", read_only=True)) as database:
        for kind in ("ledger", "transcript"):
            chain = Ledger(database, create=False) if kind == "ledger" else Transcript(database, create=False)
            try:
                if not chain.chain.guarded():
                    yield fault(
                        "records",
                        f"what keeps the {kind} append-only is gone: the file was changed; restore a back-up.",
                    )
                head = chain.verify()
                yield fine("records", f"the {kind} is intact: {head.rows:,} rows, ending in {head.hash[:16]}.")
            except ColonnadeError as error:
                yield fault("records", str(error))
        yield from network.clock_of_records(database, step=CLOCK_STEP)


def _runs(runs: Path) -> Iterator[Finding]:
    """The newest runs' transcripts, and runs that stopped."""
    if not runs.is_dir():
        yield fine("records", f"{runs} has no runs yet.")
        return
    folders = sorted((one for one in runs.iterdir() if (one / "transcript.db").is_file()), key=_age)[-NEWEST_RUNS:]
    broken = 0
    for folder in folders:
        with closing(Database(folder / "transcript.db", read_only=True)) as database:
            try:
                Transcript(database, create=False).verify()
            except ColonnadeError as error:
                broken += 1
                yield fault("records", str(error))
    if not broken:
        yield fine("records", f"the transcripts of the newest {len(folders)} runs are intact.")


def _age(folder: Path) -> float:
    return folder.stat().st_mtime
