"""Who may dial in: the consortium's authority, certificate requests, short-lived certificates, and their revocation.

Every key is made where it stays. A party sends a request, which holds its name, its organisation and the public key to
which peers seal their messages; the authority signs it, so one signature vouches for all three. P-256 throughout.
A certificate is renewed for the same owner and key, so that nothing that others have pinned changes. What is revoked
is a line in a text file that the coordinator reads again whenever it changes.
"""

from __future__ import annotations

import datetime
import hashlib
import ipaddress
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from colonnade.durable import private_folder, whole_file
from colonnade.errors import RosterError, StorageError

Role = Literal["party", "coordinator"]

KEY, REQUEST, CERTIFICATE, AUTHORITY = "tls.key", "request.pem", "certificate.pem", "authority.pem"
AUTHORITY_KEY = "authority.key"
REVOKED = "revoked.txt"
_SEALING = "colonnade:sealing-key:"
_SIGNING = "colonnade:signing-key:"
_BACKDATED = datetime.timedelta(minutes=5)
"""Clocks differ a little between institutions."""
_AUTHORITY_DAYS = 3650
_PURPOSE = {
    "party": x509.ExtendedKeyUsage([ExtendedKeyUsageOID.CLIENT_AUTH]),
    "coordinator": x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]),
}


@dataclass(frozen=True, kw_only=True)
class Subject:
    """What a certificate, or a request for one, says about its owner."""

    name: str
    organisation: str
    sealing_key: bytes | None
    signing_key: bytes | None = None
    serial: int | None = None
    expires: datetime.datetime | None = None
    tls_key: int | None = None
    """The SHA-256 digest of a certificate's public key, as a number like `serial`."""


def _now() -> datetime.datetime:
    return datetime.datetime.now(datetime.UTC)


def _x509_name(name: str, organisation: str) -> x509.Name:
    try:
        return x509.Name(
            [
                x509.NameAttribute(NameOID.ORGANIZATION_NAME, organisation),
                x509.NameAttribute(NameOID.COMMON_NAME, name),
            ]
        )
    except ValueError as error:
        raise RosterError(
            f"a certificate takes names of 1 to 64 characters ({error}); choose a shorter one."
        ) from error


def _write(path: Path, data: bytes, *, secret: bool = False) -> Path:
    """A new file; an existing key or certificate is never overwritten."""
    private_folder(path.parent)
    try:
        handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600 if secret else 0o644)
    except FileExistsError:
        raise StorageError(f"{path} exists already and is not overwritten; move it away first.") from None
    with os.fdopen(handle, "wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    return path


def _new_key(path: Path) -> ec.EllipticCurvePrivateKey:
    key = ec.generate_private_key(ec.SECP256R1())
    plain = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    _write(path, plain, secret=True)
    return key


def _pem(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise StorageError(f"{path} cannot be read ({error.strerror}); name the folder that holds it.") from error


def read_certificate(path: Path) -> x509.Certificate:
    try:
        return x509.load_pem_x509_certificate(_pem(path))
    except ValueError as error:
        raise RosterError(f"{path} is not a certificate in PEM form; ask the authority for it again.") from error


def read_request(path: Path) -> x509.CertificateSigningRequest:
    try:
        asked = x509.load_pem_x509_csr(_pem(path))
    except ValueError as error:
        raise RosterError(f"{path} is not a certificate request in PEM form; ask its sender again.") from error
    if not asked.is_signature_valid:
        raise RosterError(f"{path} was changed after it was made; ask its sender again.")
    return asked


# --- requests ---------------------------------------------------------------------------------------------


def make_request(
    folder: Path,
    *,
    name: str,
    organisation: str,
    sealing_key: bytes | None = None,
    signing_key: bytes | None = None,
    hosts: tuple[str, ...] = (),
) -> Path:
    """A new private key and a request for its certificate, in `folder`. Only the request leaves.

    `hosts` are the names and addresses by which parties dial this member: the coordinator's.
    """
    subject = _x509_name(name, organisation)
    names: list[x509.GeneralName] = [_host(host) for host in hosts]
    if sealing_key is not None:
        names.append(x509.UniformResourceIdentifier(_SEALING + sealing_key.hex()))
    if signing_key is not None:
        names.append(x509.UniformResourceIdentifier(_SIGNING + signing_key.hex()))
    if not names:
        raise RosterError("a request needs a sealing key (a party) or a host name (the coordinator).")
    key = _new_key(folder / KEY)
    builder = x509.CertificateSigningRequestBuilder().subject_name(subject)
    builder = builder.add_extension(x509.SubjectAlternativeName(names), critical=False)
    return _write(folder / REQUEST, builder.sign(key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM))


def _host(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        return x509.DNSName(host)


def subject_of(signed: x509.Certificate | x509.CertificateSigningRequest) -> Subject:
    """The owner that a certificate or a request names."""

    def attribute(oid: x509.ObjectIdentifier) -> str:
        values = signed.subject.get_attributes_for_oid(oid)
        if len(values) != 1:
            raise RosterError("a certificate must name one member and one organisation; make the request again.")
        return str(values[0].value)

    try:
        names = signed.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
        uris = names.get_values_for_type(x509.UniformResourceIdentifier)
    except x509.ExtensionNotFound:
        uris = []

    def key(prefix: str) -> bytes | None:
        keys = [uri.removeprefix(prefix) for uri in uris if uri.startswith(prefix)]
        if len(keys) > 1:
            raise RosterError("a certificate must hold one sealing key and one signing key; make the request again.")
        return bytes.fromhex(keys[0]) if keys else None

    certificate = signed if isinstance(signed, x509.Certificate) else None
    return Subject(
        name=attribute(NameOID.COMMON_NAME),
        organisation=attribute(NameOID.ORGANIZATION_NAME),
        sealing_key=key(_SEALING),
        signing_key=key(_SIGNING),
        serial=None if certificate is None else certificate.serial_number,
        expires=None if certificate is None else certificate.not_valid_after_utc,
        tls_key=None if certificate is None else _key_digest(certificate),
    )


def _key_digest(certificate: x509.Certificate) -> int:
    form = (serialization.Encoding.DER, serialization.PublicFormat.SubjectPublicKeyInfo)
    return int.from_bytes(hashlib.sha256(certificate.public_key().public_bytes(*form)).digest())


# --- the authority ----------------------------------------------------------------------------------------


def make_authority(folder: Path, *, name: str) -> Path:
    """The consortium's own authority: a key that stays in `folder`, and its certificate for everyone."""
    subject = _x509_name(name, name)
    key = _new_key(folder / AUTHORITY_KEY)
    now = _now()
    usage = x509.KeyUsage(
        digital_signature=False, content_commitment=False, key_encipherment=False, data_encipherment=False,
        key_agreement=False, key_cert_sign=True, crl_sign=True, encipher_only=False, decipher_only=False,
    )  # fmt: skip
    certificate = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(subject)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - _BACKDATED)
        .not_valid_after(now + datetime.timedelta(days=_AUTHORITY_DAYS))
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(usage, critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        .sign(key, hashes.SHA256())
    )
    return _write(folder / AUTHORITY, certificate.public_bytes(serialization.Encoding.PEM))


def sign(authority: Path, request: Path, out: Path, *, role: Role, days: float = 30.0) -> Subject:
    """A certificate for a request whose subject the operator has compared with its sender, at `out`.

    A party's certificate cannot serve, and the coordinator's cannot dial in.
    """
    asked = read_request(request)
    owner = subject_of(asked)
    names = asked.extensions.get_extension_for_class(x509.SubjectAlternativeName)
    hosts = [name for name in names.value if isinstance(name, x509.DNSName | x509.IPAddress)]
    if role == "party" and (owner.sealing_key is None or hosts):
        raise RosterError(f"{request} is not a party's request: it needs a sealing key and no host names.")
    if role == "coordinator" and (owner.sealing_key is not None or not hosts):
        raise RosterError(f"{request} is not a coordinator's request: it needs a host name and no sealing key.")
    if days <= 0:
        raise RosterError(f"a certificate that is valid for {days:g} days protects nobody; choose 1 or more.")
    certificate = _issued(authority, asked, _PURPOSE[role], life=datetime.timedelta(days=days))
    _write(out, certificate.public_bytes(serialization.Encoding.PEM))
    return subject_of(certificate)


def _issued(
    authority: Path,
    asked: x509.CertificateSigningRequest | x509.Certificate,
    purpose: x509.ExtendedKeyUsage,
    *,
    life: datetime.timedelta,
) -> x509.Certificate:
    issuer, key = read_certificate(authority / AUTHORITY), load_key(authority / AUTHORITY_KEY)
    signer = x509.AuthorityKeyIdentifier.from_issuer_public_key(key.public_key())  # Python 3.13 refuses without it
    now = _now()
    return (
        x509.CertificateBuilder()
        .subject_name(asked.subject)
        .issuer_name(issuer.subject)
        .public_key(asked.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - _BACKDATED)
        .not_valid_after(min(now + life, issuer.not_valid_after_utc))
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(purpose, critical=True)
        .add_extension(asked.extensions.get_extension_for_class(x509.SubjectAlternativeName).value, critical=False)
        .add_extension(signer, critical=False)
        .sign(key, hashes.SHA256())
    )


# --- renewal ------------------------------------------------------------------------------------------------


def renew(authority: Path, certificate: Path, revoked: Revoked) -> Subject | None:
    """Sign a certificate again when a third of its life is left: same owner, key, purpose and length of life. None: it
    lasts longer, or as long as the authority, or it is revoked."""
    signed = _of_authority(authority / AUTHORITY, certificate)
    owner = subject_of(signed)
    ends, life = signed.not_valid_after_utc, signed.not_valid_after_utc - signed.not_valid_before_utc - _BACKDATED
    last = read_certificate(authority / AUTHORITY).not_valid_after_utc
    if revoked.has(owner) or ends - _now() > life / 3 or ends >= last:
        return None
    purpose = signed.extensions.get_extension_for_class(x509.ExtendedKeyUsage).value
    fresh = _issued(authority, signed, purpose, life=life)
    with whole_file(certificate) as partial:
        partial.write_bytes(fresh.public_bytes(serialization.Encoding.PEM))
    return subject_of(fresh)


def take_renewed(authority: Path, certificate: Path, pem: bytes) -> Subject | None:
    """Put a renewed certificate, which may come from anyone, in the place of an earlier one: only if this authority has
    signed it for the same owner, key and purpose, and it ends later. None: nothing has changed."""
    earlier, issuer = read_certificate(certificate), read_certificate(authority)
    try:
        fresh = x509.load_pem_x509_certificate(pem)
        fresh.verify_directly_issued_by(issuer)
        same = (
            fresh.subject == earlier.subject
            and fresh.public_key() == earlier.public_key()
            and all(
                fresh.extensions.get_extension_for_class(kind) == earlier.extensions.get_extension_for_class(kind)
                for kind in (x509.SubjectAlternativeName, x509.ExtendedKeyUsage, x509.BasicConstraints)
            )
        )
    except (InvalidSignature, ValueError, TypeError, x509.ExtensionNotFound):
        return None
    if not same or not fresh.not_valid_before_utc <= _now() < fresh.not_valid_after_utc:
        return None
    if fresh.not_valid_after_utc <= earlier.not_valid_after_utc:
        return None
    with whole_file(certificate) as partial:
        partial.write_bytes(pem)
    return subject_of(fresh)


def load_key(path: Path) -> ec.EllipticCurvePrivateKey:
    try:
        key = serialization.load_pem_private_key(_pem(path), password=None)
    except ValueError as error:
        raise RosterError(f"{path} is not a private key in PEM form.") from error
    if not isinstance(key, ec.EllipticCurvePrivateKey):
        raise RosterError(f"{path} is not a P-256 key; make it with this program.")
    return key


def revoke(authority: Path, certificate: Path) -> Subject:
    """Write a certificate's serial number and its key, which its earlier and renewed ones have too, into the list; copy
    the list to the coordinator."""
    owner = subject_of(read_certificate(certificate))
    with (authority / REVOKED).open("a", encoding="utf-8") as file:
        file.write(f"{owner.serial:x} {owner.name}\n{owner.tls_key:x} key of {owner.name}\n")
    return owner


# --- checks -----------------------------------------------------------------------------------------------


def _of_authority(authority: Path, certificate: Path) -> x509.Certificate:
    issuer, signed = read_certificate(authority), read_certificate(certificate)
    try:
        signed.verify_directly_issued_by(issuer)
    except (InvalidSignature, ValueError, TypeError) as error:
        raise RosterError(f"{certificate} was not signed by the authority in {authority}.") from error
    return signed


def signed_by(authority: Path, certificate: Path) -> Subject:
    """The subject of a certificate that this authority signed and that is valid now."""
    signed = _of_authority(authority, certificate)
    if not signed.not_valid_before_utc <= _now() <= signed.not_valid_after_utc:
        raise RosterError(
            f"{certificate} is valid from {signed.not_valid_before_utc:%Y-%m-%d %H:%M} to"
            f" {signed.not_valid_after_utc:%Y-%m-%d %H:%M} UTC; renew it, or set the clock."
        )
    return subject_of(signed)


class Revoked:
    """The serial numbers and keys in a file, read again whenever it changes. No file: none is revoked."""

    def __init__(self, path: Path | None) -> None:
        self._path = path
        self._stamp: tuple[int, int] | None = None
        self._listed: frozenset[int] = frozenset()

    def has(self, owner: Subject) -> bool:
        if self._path is not None and self._path.exists():
            state = self._path.stat()
            stamp = (state.st_mtime_ns, state.st_size)
            if stamp != self._stamp:
                lines = self._path.read_text(encoding="utf-8").splitlines()
                try:
                    self._listed = frozenset(int(line.split()[0], 16) for line in lines if line.strip())
                except ValueError as error:
                    raise RosterError(f"{self._path} has a line that is no serial number ({error}).") from error
                self._stamp = stamp
        return owner.serial in self._listed or owner.tls_key in self._listed
