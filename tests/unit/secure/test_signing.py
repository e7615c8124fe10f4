"""The signatures of members: with a key that follows from their identity, and is none of its public bytes."""

from __future__ import annotations

from pathlib import Path

import pytest

from colonnade.errors import SealBroken
from colonnade.secure.sealed import Identity, check_signature


def test_a_signature_is_of_one_member_and_one_message(tmp_path: Path) -> None:
    one, other = Identity.generate(), Identity.generate()
    signature = one.sign(b"message").hex()
    check_signature(one.signing_key, signature, b"message", of="one")
    wrong = [(other.signing_key, signature, b"message"), (one.signing_key, signature, b"Message")]
    wrong += [(one.signing_key, "", b"message"), (one.signing_key, "zz", b"message"), (b"", signature, b"message")]
    for key, stated, message in wrong:
        with pytest.raises(SealBroken, match="'one'"):
            check_signature(key, stated, message, of="one")


def test_the_signing_key_stays_with_the_identity(tmp_path: Path) -> None:
    identity = Identity.generate()
    identity.save(tmp_path / "identity.pem")
    assert Identity.load(tmp_path / "identity.pem").signing_key == identity.signing_key
    assert identity.signing_key != bytes(identity.public)
    assert len(identity.signing_key) == 32
