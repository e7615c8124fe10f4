"""Sealed messages: they open for the recipient in the stated context, and for nobody else in no other way."""

from __future__ import annotations

import stat
from pathlib import Path

import pytest
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.kdf.hkdf import HKDF
from hypothesis import given, settings
from hypothesis import strategies as st

from colonnade.errors import SealBroken, SecureError, StorageError
from colonnade.secure import sealed as sealed_module
from colonnade.secure.sealed import OVERHEAD, Identity, PublicKey, pair_key, seal, unseal

ALICE, BOB, EVE = (Identity(X25519PrivateKey.from_private_bytes(bytes([i]) * 32)) for i in (1, 2, 3))

#: Points of small order on Curve25519 and their non-canonical forms (RFC 7748, section 7; the list of cr.yp.to/ecdh).
LOW_ORDER = [
    bytes(32),
    (1).to_bytes(32, "little"),
    bytes.fromhex("e0eb7a7c3b41b8ae1656e3faf19fc46ada098deb9c32b1fd866205165f49b800"),
    bytes.fromhex("5f9c95bca3508c24b1d0b1559c83ef5b04445cc4581c8e86d8224eddd09f1157"),
    (2**255 - 20).to_bytes(32, "little"),
    (2**255 - 19).to_bytes(32, "little"),
    (2**255 - 18).to_bytes(32, "little"),
]


@settings(max_examples=40, deadline=None)
@given(plaintext=st.binary(max_size=300), context=st.binary(max_size=40))
def test_a_message_opens_for_its_recipient(plaintext: bytes, context: bytes) -> None:
    message = seal(ALICE, BOB.public, plaintext, context=context)
    assert len(message) == len(plaintext) + OVERHEAD
    assert unseal(BOB, ALICE.public, message, context=context) == plaintext
    assert len(plaintext) < 8 or plaintext not in message


def test_the_construction_is_the_documented_one() -> None:
    # oracle: the formula of the module's docstring, written out with the library's primitives
    message = seal(ALICE, BOB.public, b"hello", context=b"job 7")
    ephemeral = X25519PublicKey.from_public_bytes(message[:32])
    secret = BOB.private.exchange(ephemeral) + BOB.private.exchange(ALICE.private.public_key())
    info = b"colonnade seal v2" + message[:32] + ALICE.public + BOB.public + b"job 7"
    key = HKDF(algorithm=hashes.SHA256(), length=32, salt=None, info=info).derive(secret)
    assert AESGCM(key).decrypt(bytes(12), message[32:], b"job 7") == b"hello"


def test_every_message_has_a_fresh_key() -> None:
    messages = {seal(ALICE, BOB.public, b"same", context=b"") for _ in range(20)}
    assert len({m[:32] for m in messages}) == 20
    assert len({m[32:] for m in messages}) == 20


def test_every_flipped_bit_breaks_the_seal() -> None:
    message = seal(ALICE, BOB.public, b"13 records", context=b"c")
    for position in range(8 * len(message)):
        changed = bytearray(message)
        changed[position // 8] ^= 1 << position % 8
        with pytest.raises(SealBroken):
            unseal(BOB, ALICE.public, bytes(changed), context=b"c")


def test_every_truncation_and_extension_breaks_the_seal() -> None:
    message = seal(ALICE, BOB.public, b"13 records", context=b"c")
    for length in range(len(message)):
        with pytest.raises(SealBroken):
            unseal(BOB, ALICE.public, message[:length], context=b"c")
    with pytest.raises(SealBroken):
        unseal(BOB, ALICE.public, message + b"\0", context=b"c")


def test_wrong_recipient_sender_or_context_breaks_the_seal() -> None:
    message = seal(ALICE, BOB.public, b"x", context=b"c")
    attempts = [(EVE, ALICE, b"c"), (BOB, EVE, b"c"), (BOB, BOB, b"c"), (ALICE, BOB, b"c"), (BOB, ALICE, b"d")]
    for recipient, sender, context in attempts:
        with pytest.raises(SealBroken):
            unseal(recipient, sender.public, message, context=context)


def test_nobody_can_seal_in_anothers_name() -> None:
    """Eve knows all public keys and her own private one: with DH(E, B) alone, or with her own DH, the key differs."""
    forged = seal(EVE, BOB.public, b"x", context=b"c")
    with pytest.raises(SealBroken):
        unseal(BOB, ALICE.public, forged, context=b"c")


@pytest.mark.parametrize("point", LOW_ORDER)
def test_points_of_low_order_are_refused_everywhere(point: bytes) -> None:
    with pytest.raises(SealBroken):
        seal(ALICE, point, b"x", context=b"")
    with pytest.raises(SealBroken):
        pair_key(ALICE, point, b"")
    message = seal(ALICE, BOB.public, b"x", context=b"")
    with pytest.raises(SealBroken):
        unseal(BOB, point, message, context=b"")
    with pytest.raises(SealBroken):
        unseal(BOB, ALICE.public, point + message[32:], context=b"")


def test_keys_of_a_wrong_length_and_messages_too_long_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(SealBroken):
        seal(ALICE, BOB.public[:31], b"x", context=b"")
    with pytest.raises(SecureError, match="32 bytes"):
        PublicKey(b"short")
    monkeypatch.setattr(sealed_module, "LARGEST_PLAINTEXT", 10)
    with pytest.raises(SecureError, match="chunks"):
        seal(ALICE, BOB.public, bytes(11), context=b"")


def test_fingerprints_tell_keys_apart() -> None:
    assert ALICE.public.fingerprint == PublicKey(bytes(ALICE.public)).fingerprint
    assert ALICE.public.fingerprint != BOB.public.fingerprint
    assert len(ALICE.public.fingerprint.replace(":", "")) == 40


def test_both_sides_derive_the_same_pair_key_and_others_another() -> None:
    key = pair_key(ALICE, BOB.public, b"pads")
    assert len(key) == 32
    assert key == pair_key(BOB, ALICE.public, b"pads")
    assert key not in (pair_key(ALICE, EVE.public, b"pads"), pair_key(BOB, EVE.public, b"pads"))
    assert key != pair_key(ALICE, BOB.public, b"other")


# --- the file --------------------------------------------------------------------------------------------


def test_a_saved_identity_is_private_and_loads_again(tmp_path: Path) -> None:
    path = tmp_path / "key.pem"
    made = Identity.generate()
    made.save(path)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert Identity.load(path).public == made.public
    with pytest.raises(StorageError, match="not overwritten"):
        Identity.generate().save(path)
    assert Identity.load(path).public == made.public
    path.chmod(0o640)
    with pytest.raises(SecureError, match="chmod 600"):
        Identity.load(path)


def test_unreadable_files_and_other_keys_are_refused(tmp_path: Path) -> None:
    with pytest.raises(StorageError):
        Identity.load(tmp_path / "absent.pem")
    with pytest.raises(StorageError):
        Identity.generate().save(tmp_path / "absent" / "key.pem")
    other = Ed25519PrivateKey.generate().private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    for name, content in (("rubbish.pem", b"not a key"), ("ed25519.pem", other)):
        path = tmp_path / name
        path.write_bytes(content)
        path.chmod(0o600)
        with pytest.raises(SecureError):
            Identity.load(path)


def test_the_private_key_is_not_printed() -> None:
    assert "private" not in repr(ALICE).lower()
    assert ALICE.private.private_bytes_raw().hex() not in repr(ALICE)
