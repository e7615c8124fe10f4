"""The doctor's checks of certificates, keys, clocks and the way to the coordinator."""

from __future__ import annotations

import datetime
import ipaddress
import os
import socket
import ssl
import time
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import serialization
from cryptography.x509.oid import ExtendedKeyUsageOID

import colonnade
from colonnade.durable import Database
from colonnade.errors import ColonnadeError, PartyLost, RosterError
from colonnade.federation.transports.certificates import (
    AUTHORITY,
    CERTIFICATE,
    KEY,
    Card,
    Revoked,
    Role,
    card,
    read_certificate,
)

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


def owner(credentials: Path) -> Card:
    return card(read_certificate(credentials / CERTIFICATE))


def certificates(credentials: Path, *, role: Role, name: str, dialled: str | None = None) -> Iterator[Finding]:
    """The own certificate: chain, time, key, role; for a coordinator also the name that parties dial."""
    authority = read_certificate(credentials / AUTHORITY)
    yield from _lasting(authority, "the authority's certificate", "have the authority made again and pass it on")
    mine = read_certificate(credentials / CERTIFICATE)
    what = f"the certificate of {name}"
    try:
        mine.verify_directly_issued_by(authority)
        yield fine("certificates", f"{what} was signed by the authority in {AUTHORITY}.")
    except (InvalidSignature, ValueError, TypeError):
        yield fault(
            "certificates",
            f"{what} was not signed by the authority in {credentials / AUTHORITY}; get both files from the authority"
            " again.",
        )
    yield from _lasting(mine, what, "have the authority sign the request again")
    yield from _key_fits(credentials, mine, what)
    wanted = ExtendedKeyUsageOID.CLIENT_AUTH if role == "party" else ExtendedKeyUsageOID.SERVER_AUTH
    try:
        usage = list(mine.extensions.get_extension_for_class(x509.ExtendedKeyUsage).value)
    except x509.ExtensionNotFound:
        usage = []
    if wanted not in usage:
        yield fault("certificates", f"{what} is not a {role}'s; have it signed with --role {role}.")
    if dialled is not None:
        yield from _names_host(mine, dialled)


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
    known = {str(one) for one in names.get_values_for_type(x509.DNSName)}
    known |= {str(one) for one in names.get_values_for_type(x509.IPAddress)}
    if host not in known:
        yield fault(
            "certificates",
            f"parties dial {host!r}, and the coordinator's certificate names {', '.join(sorted(known)) or 'nobody'};"
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
        listed = tomllib.loads(consortium.read_text(encoding="utf-8")).get("members", {})
    except (OSError, tomllib.TOMLDecodeError):
        return  # said already
    out = Revoked(revoked)
    if revoked is not None and not revoked.exists():
        yield warning(
            "revoked",
            f"{revoked} is not there, so nobody counts as revoked; copy the authority's list, or an empty file.",
        )
    ill = 0
    for name, one in listed.items():
        try:
            certificate = read_certificate(consortium.parent / str(one["certificate"]))
            certificate.verify_directly_issued_by(issuer)
        except (ColonnadeError, KeyError, TypeError) as error:
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
        if certificate.serial_number in out:
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
            f"whoever serves at {coordinator} is not the coordinator that your authority certified"
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
            f"nobody serves at {coordinator} now; a coordinator serves while a job runs, so ask it to start one and try"
            " again.",
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
    from colonnade.federation.transports.clock import ask_clock

    try:
        told = ask_clock(coordinator, credentials, timeout=timeout)
    except PartyLost as error:
        yield warning("clocks", f"the coordinator does not tell its time ({error}); it may run an older version.")
        return
    apart = abs(told.ahead) - told.within
    words = f"this clock and the coordinator's differ by {abs(told.ahead):.1f} s"
    if apart > LIMIT:
        yield fault("clocks", f"{words}; certificates will be refused: set this clock by NTP.")
    elif apart > SLACK:
        yield warning("clocks", f"{words}; set both by NTP.")
    else:
        yield fine("clocks", f"{words}.")
    if told.version != colonnade.__version__:
        yield fault(
            "versions",
            f"the coordinator runs Colonnade {told.version}, this party {colonnade.__version__}; install the same"
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
    back, at, previous, newest = 0.0, 0, 0.0, 0.0
    for number, when in database.execute("SELECT number, json_extract(body, '$.time') FROM transcript ORDER BY number"):
        if previous - when > max(back, step):
            back, at = previous - when, number
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
        yield warning("clocks", f"this clock went back by {back:.0f} s at row {at} of the transcript; set it by NTP.")
    else:
        yield fine("clocks", "the times of the records never go back.")
