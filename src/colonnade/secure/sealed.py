"""Sealed messages from party to party: the coordinator relays them and cannot read, change or forge them.

The construction is that of HPKE's authenticated mode (RFC 9180) and Noise's one-way pattern K. With the sender's
identity S, the recipient's R and a fresh ephemeral key E:

    secret = DH(E, R) || DH(S, R)
    key    = HKDF-SHA256(secret, info = label || E || S || R || context)
    sealed = E || AES-256-GCM(key, nonce 0, plaintext, associated data = context)

E is fresh, so the key seals one message and a fixed nonce is safe. `context` says what the message is for (job,
step, sequence number, ...); both sides must state the same. See `claim.md` for what is not promised.
"""

from __future__ import annotations

import hashlib
import hmac
import os
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from cryptography.exceptions import InvalidSignature, InvalidTag
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from colonnade.errors import SealBroken, SecureError, StorageError

KEY_BYTES = 32
#: How much longer a sealed message is than its plaintext: the ephemeral key and the tag.
OVERHEAD = KEY_BYTES + 16
#: The longest plaintext; the cipher library takes less than 2^31 bytes at once.
LARGEST_PLAINTEXT = 2**31 - 1 - 16

_SEAL_LABEL = b"colonnade seal v2"
_PAIR_LABEL = b"colonnade pair key v1"
_SIGN_LABEL = b"colonnade signing key v1"
_NONCE = bytes(12)


class PublicKey(bytes):
    """A party's X25519 public key: its 32 bytes."""

    def __new__(cls, raw: bytes) -> PublicKey:
        if len(raw) != KEY_BYTES:
            raise SecureError(f"a public key has {KEY_BYTES} bytes, not {len(raw)}: ask the party for its key again.")
        return super().__new__(cls, raw)

    @property
    def fingerprint(self) -> str:
        """160 bits of SHA-256 in groups of four digits, for people to compare."""
        digest = hashlib.sha256(b"colonnade public key" + self).hexdigest()[:40]
        return ":".join(digest[i : i + 4] for i in range(0, 40, 4))


@dataclass(frozen=True, eq=False, repr=False)
class Identity:
    """A party's private key. It is made where it is used and never moves."""

    private: X25519PrivateKey

    @classmethod
    def generate(cls) -> Identity:
        return cls(X25519PrivateKey.generate())

    def sign(self, message: bytes) -> bytes:
        """An Ed25519 signature."""
        return self._signing.sign(message)

    @property
    def signing_key(self) -> bytes:
        """The public key of `sign`: 32 bytes."""
        return self._signing.public_key().public_bytes_raw()

    @cached_property
    def _signing(self) -> Ed25519PrivateKey:
        """Derived from the private key, under a label of its own, so that a member has one secret to keep."""
        return Ed25519PrivateKey.from_private_bytes(_derive(self.private.private_bytes_raw(), _SIGN_LABEL))

    @cached_property
    def public(self) -> PublicKey:
        return PublicKey(self.private.public_key().public_bytes_raw())

    def agreed(self, other: bytes) -> bytes:
        """Diffie-Hellman with another member's key, computed once: it is in all messages between the two."""
        if other not in self._agreed:
            self._agreed[other] = _exchange(self, other)
        return self._agreed[other]

    @cached_property
    def _agreed(self) -> dict[bytes, bytes]:
        return {}

    def save(self, path: Path) -> None:
        """Write a PEM file that only its owner may read (mode 0600). An existing file is never overwritten."""
        pem = self.private.private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        )
        try:
            descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
            with os.fdopen(descriptor, "wb") as file:
                os.fchmod(descriptor, 0o600)  # whatever the umask
                file.write(pem)
                file.flush()
                os.fsync(descriptor)
        except FileExistsError:
            raise StorageError(f"{path} exists: a key is not overwritten; move the old one away first.") from None
        except OSError as problem:
            raise StorageError(f"the key could not be written to {path} ({problem.strerror}).") from problem

    @classmethod
    def load(cls, path: Path) -> Identity:
        """Read what `save` wrote; a file that others may read is refused."""
        try:
            with path.open("rb") as file:
                mode = os.fstat(file.fileno()).st_mode & 0o777
                pem = file.read()
        except OSError as problem:
            raise StorageError(f"the key {path} could not be read ({problem.strerror}).") from problem
        if mode & 0o077:
            raise SecureError(f"others may read the private key {path} (mode {mode:o}): make a new one, or chmod 600.")
        try:
            private = serialization.load_pem_private_key(pem, password=None)
        except (ValueError, TypeError) as problem:
            raise SecureError(f"{path} is not a private key in PEM form: generate a new identity.") from problem
        if not isinstance(private, X25519PrivateKey):
            raise SecureError(f"{path} holds another kind of key than X25519: generate a new identity.")
        return cls(private)


def seal(sender: Identity, recipient: bytes, plaintext: bytes, *, context: bytes) -> bytes:
    """`plaintext` that only the owner of the public key `recipient` can read, and know to be from `sender`."""
    if len(plaintext) > LARGEST_PLAINTEXT:
        raise SecureError(f"{len(plaintext)} bytes are too many for one seal: send chunks of {LARGEST_PLAINTEXT}.")
    ephemeral = Identity.generate()
    secret = _exchange(ephemeral, recipient) + sender.agreed(recipient)
    key = _derive(secret, _SEAL_LABEL + ephemeral.public + sender.public + recipient + context)
    return ephemeral.public + AESGCM(key).encrypt(_NONCE, plaintext, context)


def unseal(recipient: Identity, sender_public: bytes, sealed: bytes, *, context: bytes) -> bytes:
    """The plaintext, or `SealBroken`: changed, cut short, for or by another member, or out of context."""
    if len(sealed) < OVERHEAD:
        raise SealBroken(f"a sealed message has at least {OVERHEAD} bytes, not {len(sealed)}: ask the sender again.")
    ephemeral, body = sealed[:KEY_BYTES], memoryview(sealed)[KEY_BYTES:]
    secret = _exchange(recipient, ephemeral) + recipient.agreed(sender_public)
    key = _derive(secret, _SEAL_LABEL + ephemeral + sender_public + recipient.public + context)
    try:
        return AESGCM(key).decrypt(_NONCE, body, context)
    except InvalidTag:
        raise SealBroken(
            "the message does not open: it was changed, or sealed by, for or about something else; check both public "
            "keys against the roster and ask the sender again."
        ) from None


def check_signature(key: bytes, signature: str, message: bytes, *, of: str) -> None:
    """Refuse a signature (hexadecimal) that is not of this member."""
    try:
        Ed25519PublicKey.from_public_bytes(key).verify(bytes.fromhex(signature), message)
    except (InvalidSignature, ValueError):
        raise SealBroken(
            f"a signature of {of!r} does not verify: what it signed was changed, or another signed it; compare its"
            " certificate with the roster."
        ) from None


def pair_key(me: Identity, other_public: bytes, label: bytes) -> bytes:
    """32 bytes that only the two parties know, the same on both sides: the key of their pads."""
    first, second = sorted((bytes(me.public), bytes(other_public)))
    return _derive(me.agreed(other_public), _PAIR_LABEL + first + second + label)


def _derive(secret: bytes, info: bytes) -> bytes:
    """HKDF-SHA256 (RFC 5869) without a salt: 32 bytes are the first block of its output."""
    extracted = hmac.digest(bytes(hashlib.sha256().digest_size), secret, "sha256")
    return hmac.digest(extracted, info + b"\x01", "sha256")


def _exchange(own: Identity, other: bytes) -> bytes:
    """Diffie-Hellman. A point of low order would make the secret known to anyone: refused."""
    try:
        return own.private.exchange(X25519PublicKey.from_public_bytes(bytes(other)))
    except ValueError:
        raise SealBroken("a public key is not a valid X25519 key: compare its fingerprint with the roster.") from None
