"""`colonnade doctor`: what is wrong with one end of a federation, each finding one sentence with its cure.

A check never changes anything and never stops the next one. A `fault` keeps work from being done or a record from being
trusted; a `warning` will become one, or may be as it should.
"""

from __future__ import annotations

import datetime
import ipaddress
import os
import platform
import shutil
import socket
import ssl
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Literal

from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import serialization
from cryptography.x509.oid import ExtendedKeyUsageOID

import colonnade
from colonnade.data.block import Block
from colonnade.data.keys import key_name, with_key
from colonnade.data.sources import open_source
from colonnade.durable import Database
from colonnade.errors import ColonnadeError, PartyLost, RosterError
from colonnade.federation.config import Consortium, ConsortiumFile, CoordinatorFile, PartyFile, read_toml
from colonnade.federation.home import Home
from colonnade.federation.messages import Transcript
from colonnade.federation.provision import kit_manifest
from colonnade.federation.service import Queue
from colonnade.federation.transports.certificates import (
    AUTHORITY,
    CERTIFICATE,
    KEY,
    REQUEST,
    Revoked,
    Role,
    Subject,
    read_certificate,
    subject_of,
)
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
        return sum(finding.level == "fault" for finding in self.findings)

    @property
    def warnings(self) -> int:
        return sum(finding.level == "warning" for finding in self.findings)


def examine(path: Path, *, quick: bool = False) -> Examination:
    """Every check of the party or the coordinator that a TOML file describes. `quick` reads no rows of the source."""
    if "name" in read_toml(path):
        return _party(PartyFile.from_toml(path), quick, folder=path.parent)
    return _coordinator(CoordinatorFile.from_toml(path))


def _party(party: PartyFile, quick: bool, *, folder: Path) -> Examination:
    credentials, home = party.credentials, Home(path=party.home)
    if not (credentials / CERTIFICATE).is_file():
        before = [*_run("versions", versions), *_run("kit", lambda: _kit(folder, credentials))]
        findings = [*before, _unsigned(party, folder), *_run("disk", lambda: disk(party.home))]
        return Examination(side="party", name=party.name, findings=tuple(findings))
    agreed, readable = _consortium(party.consortium, credentials)
    findings = [
        *_run("versions", versions),
        *_run("kit", lambda: _kit(folder, credentials)),
        *_run("certificates", lambda: certificates(credentials, role="party", name=party.name)),
        *_run("keys", lambda: secret_file(credentials / KEY)),
        *_run("keys", lambda: secret_file(party.home / "identity.pem")),
        *_run("certificates", lambda: _sealing(party, home)),
        *readable,
        *_run("members", lambda: members(party.consortium, credentials / AUTHORITY)),
    ]
    if agreed is not None:
        findings += _run("columns", lambda: _columns(party, agreed, quick))
        findings += _run("network", lambda: reachable(agreed.coordinator, credentials))
    findings += [*_run("disk", lambda: disk(party.home)), *_run("records", lambda: _records(party.home))]
    return Examination(side="party", name=party.name, findings=tuple(findings))


def _coordinator(file: CoordinatorFile) -> Examination:
    agreed, readable = _consortium(file.consortium, file.credentials)
    dialled = None if agreed is None else agreed.coordinator
    findings = [
        *_run("versions", versions),
        *_run(
            "certificates",
            lambda: certificates(file.credentials, role="coordinator", name="coordinator", dialled=dialled),
        ),
        *_run("keys", lambda: secret_file(file.credentials / KEY)),
        *readable,
        *_run("members", lambda: members(file.consortium, file.credentials / AUTHORITY, revoked=file.revoked)),
        *_run("network", lambda: _served(file)),
        *_run("disk", lambda: disk(file.runs)),
        *_run("records", lambda: _runs(file.runs)),
    ]
    return Examination(side="coordinator", name="coordinator", findings=tuple(findings))


def _kit(folder: Path, credentials: Path) -> Iterator[Finding]:
    manifest = kit_manifest(folder, authority=credentials / AUTHORITY)
    if manifest is not None and "dealer" in manifest["keys"]:
        yield warning("kit", "a trusted dealer made this party's keys: use it for trials, with data that are not real.")
    elif manifest is not None:
        yield fine("kit", "every file of the start-up kit is as the authority signed it.")


def _unsigned(party: PartyFile, folder: Path) -> Finding:
    """What a party without a certificate waits for; until then nothing else of it can be checked."""
    if not (party.credentials / KEY).is_file():
        return fault("certificates", "this party has no keys yet; run `colonnade party init party.toml` here.")
    reply = f"{party.name}.reply.json"
    asked = reply if (folder / reply).is_file() else REQUEST
    return fault(
        "certificates",
        f"the authority has not signed this party's keys yet; send it {asked}, and put what it sends back into this"
        " folder.",
    )


def _served(file: CoordinatorFile) -> Iterator[Finding]:
    if Queue(file.queue).served:
        yield fine("network", f"a coordinator serves at {file.address}.")
    else:
        yield from port(file.address)


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
    installed = [f"Colonnade {colonnade.__version__}", f"Python {platform.python_version()}"]
    for name in ("grpcio", "protobuf", "cryptography"):
        try:
            installed.append(f"{name} {metadata.version(name)}")
        except metadata.PackageNotFoundError:
            yield fault("versions", f"{name} is not installed; install colonnade[network].")
    yield fine("versions", ", ".join(installed) + ".")


def disk(folder: Path) -> Iterator[Finding]:
    """Room and permission to write."""
    existing = folder
    while not existing.exists():
        existing = existing.parent
    if not os.access(existing, os.W_OK):
        yield fault("disk", f"{existing} cannot be written by this account; change its owner or choose another folder.")
    free = float(shutil.disk_usage(existing).free)
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
    owner = certified(party.credentials)
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
    elif owner.signing_key is None:
        yield warning(
            "certificates",
            "the certificate has no signing key, so that this party's ledger heads stay unsigned; make a new request"
            " with `colonnade party init` (the sealing key stays) and have it signed.",
        )
    elif owner.signing_key != home.identity().signing_key:
        yield fault(
            "certificates",
            f"the certificate vouches for another signing key than {party.home / 'identity.pem'} has; make a new"
            " request with `colonnade party init` and have it signed.",
        )
    else:
        yield fine("certificates", "the certificate vouches for this party's sealing key and signing key.")


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
        available = set(source.names())
        missing = [name for name in (key, *declared) if name not in available]
        if missing:
            yield fault(
                "columns",
                f"{source.description} has no column {missing[0]!r}, which consortium.toml declares; correct the source"
                " or the declaration.",
            )
        elif quick:
            yield fine("columns", f"{source.description} has the key and all {len(declared)} declared columns.")
        else:
            block = Block.load(party.name, source, key=key, columns=declared, ignore=party.ignore)
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
        yield from clock_of_records(database, step=CLOCK_STEP)


def _runs(runs: Path) -> Iterator[Finding]:
    """The newest runs' transcripts, and runs that stopped."""
    if not runs.is_dir():
        yield fine("records", f"{runs} has no runs yet.")
        return
    folders = sorted((path for path in runs.iterdir() if (path / "transcript.db").is_file()), key=_age)[-NEWEST_RUNS:]
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


# --- findings ---------------------------------------------------------------------------------------------


Level = Literal["ok", "warning", "fault"]
SOON = 7.0
"""Days before its end from which a certificate is worth a word."""
SLACK, LIMIT = 5.0, 240.0
"""Seconds: clocks that differ by more than the first deserve a word; certificates forgive five minutes."""


@dataclass(frozen=True)
class Finding:
    level: Level
    about: str
    sentence: str


def fine(about: str, sentence: str) -> Finding:
    return Finding("ok", about, _capital(sentence))


def warning(about: str, sentence: str) -> Finding:
    return Finding("warning", about, _capital(sentence))


def fault(about: str, sentence: str) -> Finding:
    return Finding("fault", about, _capital(sentence))


def _capital(sentence: str) -> str:
    first, _, rest = sentence.partition(" ")
    # A path or a name keeps its own spelling.
    return sentence if not first.isalpha() else f"{first[:1].upper()}{first[1:]}{' ' if rest else ''}{rest}"


# --- certificates and keys --------------------------------------------------------------------------------


def certified(credentials: Path) -> Subject:
    """Whom the own certificate names."""
    return subject_of(read_certificate(credentials / CERTIFICATE))


def certificates(credentials: Path, *, role: Role, name: str, dialled: str | None = None) -> Iterator[Finding]:
    """The own certificate: chain, time, key, role; for a coordinator also the name that parties dial."""
    authority = read_certificate(credentials / AUTHORITY)
    yield from _lasting(authority, "the authority's certificate", "have the authority made again and pass it on")
    certificate = read_certificate(credentials / CERTIFICATE)
    what = f"the certificate of {name}"
    try:
        certificate.verify_directly_issued_by(authority)
        yield fine("certificates", f"{what} was signed by the authority in {AUTHORITY}.")
    except (InvalidSignature, ValueError, TypeError):
        yield fault(
            "certificates",
            f"{what} was not signed by the authority in {credentials / AUTHORITY}; get both files from the authority"
            " again.",
        )
    yield from _lasting(certificate, what, "have the authority sign the request again")
    yield from _key_fits(credentials, certificate, what)
    wanted = ExtendedKeyUsageOID.CLIENT_AUTH if role == "party" else ExtendedKeyUsageOID.SERVER_AUTH
    try:
        usage = list(certificate.extensions.get_extension_for_class(x509.ExtendedKeyUsage).value)
    except x509.ExtensionNotFound:
        usage = []
    if wanted not in usage:
        yield fault("certificates", f"{what} is not a {role}'s; have it signed with --role {role}.")
    if dialled is not None:
        yield from _names_host(certificate, dialled)


def _lasting(certificate: x509.Certificate, what: str, cure: str) -> Iterator[Finding]:
    now = datetime.datetime.now(datetime.UTC)
    begins, ends = certificate.not_valid_before_utc, certificate.not_valid_after_utc
    days = (ends - now).total_seconds() / 86_400
    if now < begins:
        yield fault(
            "certificates", f"{what} begins at {begins:%Y-%m-%d %H:%M} UTC, which is not yet; set this machine's clock."
        )
    elif now > ends:
        yield fault("certificates", f"{what} ended at {ends:%Y-%m-%d %H:%M} UTC; {cure}.")
    elif days < SOON:
        yield warning("certificates", f"{what} ends in {days:.1f} days; {cure} before.")
    else:
        yield fine("certificates", f"{what} is valid until {ends:%Y-%m-%d}, {days:.0f} days.")


def _key_fits(credentials: Path, certificate: x509.Certificate, what: str) -> Iterator[Finding]:
    path = credentials / KEY
    if not path.is_file():
        return  # `secret_file` says so
    form = serialization.Encoding.DER, serialization.PublicFormat.SubjectPublicKeyInfo
    try:
        key = serialization.load_pem_private_key(path.read_bytes(), password=None).public_key()
    except ValueError:
        yield fault("certificates", f"{path} is not a private key in PEM form; restore it, or make a new request.")
        return
    if key.public_bytes(*form) != certificate.public_key().public_bytes(*form):
        yield fault(
            "certificates",
            f"{path} is not the key of {what}; put the certificate for this key there, or make a new request.",
        )
    else:
        yield fine("certificates", f"{path.name} is the key of {what}.")


def _names_host(certificate: x509.Certificate, dialled: str) -> Iterator[Finding]:
    host = dialled.rpartition(":")[0].strip("[]")
    try:
        names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except x509.ExtensionNotFound:
        names = x509.SubjectAlternativeName([])
    hosts = {str(name) for kind in (x509.DNSName, x509.IPAddress) for name in names.get_values_for_type(kind)}
    if host not in hosts:
        yield fault(
            "certificates",
            f"parties dial {host!r}, and the coordinator's certificate names {', '.join(sorted(hosts)) or 'no host'};"
            f" make a new request with --host {host}.",
        )


def secret_file(path: Path) -> Iterator[Finding]:
    """A private key that only its owner can read."""
    if not path.is_file():
        yield fault("keys", f"{path} is not there; make it with `init`, or restore it from a back-up.")
        return
    state = path.stat()
    if state.st_mode & 0o077:
        yield fault("keys", f"other accounts can read {path} (mode {state.st_mode & 0o777:o}); `chmod 600 {path}`.")
    elif not os.access(path, os.R_OK):
        yield fault("keys", f"this account cannot read {path}; run as its owner.")
    else:
        yield fine("keys", f"{path.name} is readable by its owner alone.")


def members(consortium: Path, authority: Path, *, revoked: Path | None = None) -> Iterator[Finding]:
    """Every member's certificate in the public folder; at the coordinator also against the list of revoked ones."""
    issuer = read_certificate(authority)
    try:
        listed = ConsortiumFile.from_toml(consortium).members
    except ColonnadeError:
        return  # said already
    listed_as_revoked = Revoked(revoked)
    if revoked is not None and not revoked.exists():
        yield warning(
            "revoked",
            f"{revoked} is not there, so none counts as revoked; copy the authority's list, or an empty file.",
        )
    ill = 0
    for name, table in listed.items():
        try:
            certificate = read_certificate(table.certificate)
            certificate.verify_directly_issued_by(issuer)
        except (ColonnadeError, TypeError) as error:
            ill += 1
            yield fault("members", f"the certificate of {name!r} cannot be used ({error}); ask that member for it.")
            continue
        except (InvalidSignature, ValueError):
            ill += 1
            yield fault("members", f"the certificate of {name!r} was not signed by your authority; ask the authority.")
            continue
        what = f"the certificate of member {name!r}"
        for finding in _lasting(
            certificate, what, f"ask {name!r} for its renewed one and put it into {consortium.parent}"
        ):
            if finding.level != "ok":
                ill += 1
                yield Finding(finding.level, "members", finding.sentence)
        if listed_as_revoked.has(subject_of(certificate)):
            ill += 1
            yield fault("members", f"{what} is revoked; ask the authority for a new one, or take the member out.")
    if listed and not ill:
        yield fine("members", f"the certificates of all {len(listed)} members are valid.")


# --- the way to the coordinator ---------------------------------------------------------------------------


def reachable(coordinator: str, credentials: Path, *, timeout: float = 5.0) -> Iterator[Finding]:
    """Name, port, handshake, clock and version of the coordinator, as far as it can be reached."""
    host, _, port_text = coordinator.rpartition(":")
    if not host or not port_text.isdecimal():
        yield fault("network", f"coordinator = {coordinator!r} in consortium.toml is not HOST:PORT.")
        return
    address = (host.strip("[]"), int(port_text))
    try:
        socket.getaddrinfo(*address, type=socket.SOCK_STREAM)
    except socket.gaierror as error:
        yield fault("network", f"the name {host!r} leads nowhere ({error.strerror}); check consortium.toml and DNS.")
        return
    try:
        with socket.create_connection(address, timeout=timeout) as plain:
            welcome = _handshake(plain, address[0], credentials)
    except ssl.SSLCertVerificationError as error:
        yield fault(
            "network",
            f"the server at {coordinator} is not the coordinator that your authority certified"
            f" ({error.verify_message}); do not serve until that is cleared up.",
        )
        return
    except ssl.SSLError as error:
        yield fault(
            "network",
            f"the handshake with {coordinator} failed ({error.reason}); check this party's certificate and that TLS 1.3"
            " passes the firewall.",
        )
        return
    except ConnectionRefusedError:
        yield warning(
            "network",
            f"no server answers at {coordinator} now; ask the coordinator whether `colonnade coordinator serve` runs."
            " This party may serve already: it goes on dialling.",
        )
        return
    except (TimeoutError, OSError) as error:
        yield fault(
            "network",
            f"{coordinator} cannot be reached ({error}); check the network, and the firewall for outgoing"
            f" connections to port {address[1]}.",
        )
        return
    if not welcome:
        yield fault(
            "network",
            f"{coordinator} hung up when it saw this party's certificate; have the authority sign a new one, and check"
            " that both ends have the same authority.pem.",
        )
        return
    yield fine("network", f"{coordinator} is reachable, and the coordinator's certificate is good.")
    yield from _compare(coordinator, credentials, timeout)


def _handshake(plain: socket.socket, host: str, credentials: Path) -> bool:
    """Whether the coordinator goes on after it has seen this party's certificate."""
    context = ssl.create_default_context(cafile=str(credentials / AUTHORITY))
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.load_cert_chain(credentials / CERTIFICATE, credentials / KEY)
    context.set_alpn_protocols(["h2"])
    with context.wrap_socket(plain, server_hostname=host) as secured:
        # In TLS 1.3 the client believes that it is done before the server has looked at its certificate. A server that
        # accepts it speaks first (HTTP/2 settings); one that does not hangs up.
        secured.settimeout(3.0)
        try:
            return bool(secured.recv(1))
        except (ssl.SSLError, ConnectionError):
            return False


def _compare(coordinator: str, credentials: Path, timeout: float) -> Iterator[Finding]:
    from colonnade.federation.transports.channel import ask_clock

    try:
        clock = ask_clock(coordinator, credentials, timeout=timeout)
    except PartyLost as error:
        yield warning("clocks", f"the coordinator does not tell its time ({error}); it may run an older version.")
        return
    apart = abs(clock.ahead) - clock.within
    words = f"this clock and the coordinator's differ by {abs(clock.ahead):.1f} s"
    if apart > LIMIT:
        yield fault("clocks", f"{words}; certificates will be refused: set this clock by NTP.")
    elif apart > SLACK:
        yield warning("clocks", f"{words}; set both by NTP.")
    else:
        yield fine("clocks", f"{words}.")
    if clock.version != colonnade.__version__:
        yield fault(
            "versions",
            f"the coordinator runs Colonnade {clock.version}, this party {colonnade.__version__}; install the same"
            " version.",
        )


def port(address: str) -> Iterator[Finding]:
    """Whether the coordinator could serve where coordinator.toml says."""
    host, _, text = address.rpartition(":")
    if not text.isdecimal():
        raise RosterError(f"address = {address!r} in coordinator.toml is not HOST:PORT.")
    try:
        family = socket.AF_INET6 if ipaddress.ip_address(host.strip("[]") or "0.0.0.0").version == 6 else socket.AF_INET
    except ValueError:
        family = socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host.strip("[]"), int(text)))
            yield fine("network", f"{address} is free to serve at.")
        except PermissionError:
            yield fault("network", f"this account may not serve at {address}; choose a port above 1023.")
        except OSError as error:
            yield warning(
                "network",
                f"{address} cannot be served at now ({error.strerror}); if no job of yours runs, find out who does, or"
                " choose another port.",
            )


# --- clocks -----------------------------------------------------------------------------------------------


def clock_of_records(database: Database, *, step: float) -> Iterator[Finding]:
    """Times of the transcript never go back, and nothing was written in the future."""
    back, row, previous, newest = 0.0, 0, 0.0, 0.0
    for number, when in database.execute("SELECT number, json_extract(body, '$.time') FROM transcript ORDER BY number"):
        if previous - when > max(back, step):
            back, row = previous - when, number
        previous = when
        newest = max(newest, when)
    for (when,) in database.execute("SELECT MAX(json_extract(body, '$.time')) FROM ledger"):
        newest = max(newest, when or 0.0)
    ahead = newest - time.time()
    if ahead > step:
        yield fault(
            "clocks",
            f"the records end {ahead:.0f} s in the future: this clock was set back, and a budget per period waits until"
            " it has caught up; set it by NTP.",
        )
    elif back:
        yield warning("clocks", f"this clock went back by {back:.0f} s at row {row} of the transcript; set it by NTP.")
    else:
        yield fine("clocks", "the times of the records never go back.")
