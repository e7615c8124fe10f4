"""Who requests a job: a coordinator signs each proposal with the key of its certificate.

The connection already proves that a certified coordinator is on the other end. The signature goes with the job, so
that a party can decide by organisation and show its operator who asks, long after the connection is gone.
"""

from __future__ import annotations

import datetime
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID

from colonnade.durable import canonical
from colonnade.errors import RosterError, UnsafeRequest
from colonnade.federation.transports.certificates import CERTIFICATE, KEY, Subject, read_certificate, subject_of

SIGNED = ("plan", "roster", "facts", "seed")


def statement(job: str, arguments: Mapping[str, Any]) -> bytes:
    """What is signed: the proposal and the job that it is for, so that no other job can use the signature."""
    return b"colonnade proposal 1\n" + canonical({"job": job, **{name: arguments[name] for name in SIGNED}}).encode()


@dataclass(frozen=True)
class Signer:
    """The coordinator's credentials."""

    folder: Path

    def sign(self, job: str, arguments: Mapping[str, Any]) -> dict[str, str]:
        key = serialization.load_pem_private_key((self.folder / KEY).read_bytes(), password=None)
        if not isinstance(key, ec.EllipticCurvePrivateKey):
            raise RosterError(f"{self.folder / KEY} is not a P-256 key; make it with `colonnade coordinator init`.")
        return {
            "certificate": (self.folder / CERTIFICATE).read_text(encoding="ascii"),
            "signature": key.sign(statement(job, arguments), ec.ECDSA(hashes.SHA256())).hex(),
        }


def named(requester: Mapping[str, Any]) -> Subject:
    """Whom a signature names. Believe it only where `verified` has seen it."""
    return subject_of(x509.load_pem_x509_certificate(str(requester["certificate"]).encode()))


def verified(requester: object, job: str, arguments: Mapping[str, Any], *, authority: Path) -> Subject:
    """The coordinator that signed this proposal, certified by this party's own authority and valid now."""
    try:
        if not isinstance(requester, dict) or set(requester) != {"certificate", "signature"}:
            raise ValueError("it has no certificate and signature")
        certificate = x509.load_pem_x509_certificate(str(requester["certificate"]).encode())
        certificate.verify_directly_issued_by(read_certificate(authority))
        key = certificate.public_key()
        if not isinstance(key, ec.EllipticCurvePublicKey):
            raise ValueError("its key is not P-256")
        key.verify(bytes.fromhex(requester["signature"]), statement(job, arguments), ec.ECDSA(hashes.SHA256()))
        usage = certificate.extensions.get_extension_for_class(x509.ExtendedKeyUsage).value
        if ExtendedKeyUsageOID.SERVER_AUTH not in usage:
            raise ValueError("its certificate is not a coordinator's")
        now = datetime.datetime.now(datetime.UTC)
        if not certificate.not_valid_before_utc <= now <= certificate.not_valid_after_utc:
            raise ValueError(f"its certificate ended {certificate.not_valid_after_utc:%Y-%m-%d %H:%M} UTC")
    except (ValueError, TypeError, InvalidSignature, x509.ExtensionNotFound) as error:
        raise UnsafeRequest(
            f"the signature of this proposal does not verify ({error}); the job was refused."
        ) from error
    return subject_of(certificate)
