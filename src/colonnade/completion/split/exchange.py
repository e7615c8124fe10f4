"""How hidden vectors travel: the coordinator adds what it cannot read, and one party opens the sum.

`pads`: each sender adds the pads that it shares with the other members of the exchange, the opener among them (see
`secure.pads`). The coordinator adds the senders' arrays modulo 2^64; the opener's pads are still in the sum, so that it
is uniform to anyone else. `ckks`: senders encrypt under the opener's public key, the coordinator adds ciphertexts.

Gradients go back from the opener sealed to each sender; with `ckks` they are also encrypted under the sender's own key.
A value that ends each vector shows a wrong key, or a missing summand, to the opener. The coordinator's addition is not
verified: it can spoil a sum, unnoticed if it adds a plain vector of its own (pads) or an encrypted one (ckks).
"""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from colonnade.errors import PartyLost, SecureError
from colonnade.federation.party import Party
from colonnade.secure import ckks
from colonnade.secure.pads import FixedPoint, fixed_point, masked, pad_label

Masking = Literal["pads", "ckks"]
Floats = NDArray[np.float32]
Sealed = NDArray[np.uint64] | list[bytes]
"""A vector that its bearer cannot read."""
Keys = Mapping[str, bytes | None]
"""{party: its public CKKS key}; None with pads."""

BOUND = ckks.BOUND
"""Entries of hidden vectors are clipped to it. One that reaches it means that training has diverged."""

OWN_KEY = "ckks: secret key"
PUBLIC_KEY_BYTES = 260_000
CIPHERTEXT_BYTES = 131_300


# --- keys ---------------------------------------------------------------------------------------------------------


def _public_key_of(member: str) -> str:
    return f"ckks: public key of {member}"


def make_key(me: Party, others: Sequence[str]) -> bytes:
    """A fresh CKKS key: the secret stays here, the public part goes to the others, sealed. Returns the public part."""
    secret = ckks.SecretKey.generate()
    public = secret.public.to_bytes()
    me.keep(OWN_KEY, secret.to_bytes())
    for other in others:
        me.send(other, "ckks: public key", public)
    return public


def keep_keys(me: Party, members: Sequence[str]) -> None:
    """The others' public keys, as they came by sealed mail."""
    received = me.received("ckks: public key")
    for member in members:
        if member == me.name:
            continue
        if not isinstance(received.get(member), bytes):
            raise PartyLost(f"no CKKS key came from {member!r}; start the job again.")
        ckks.PublicKey.from_bytes(received[member])
        me.keep(_public_key_of(member), received[member])


@functools.lru_cache(maxsize=64)
def _secret_of(data: bytes) -> ckks.SecretKey:
    return ckks.SecretKey.from_bytes(data)


@functools.lru_cache(maxsize=64)
def _public_of(data: bytes) -> ckks.PublicKey:
    return ckks.PublicKey.from_bytes(data)


def _secret(me: Party) -> ckks.SecretKey:
    return _secret_of(me.recall(OWN_KEY))


def _public(me: Party, member: str) -> ckks.PublicKey:
    return _public_of(me.recall(_public_key_of(member)))


# --- vectors ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Exchange:
    """Who sends, who opens, and how. `label` binds the pads to one purpose; a number serves once under it, which the
    step that hides a vector sees to."""

    masking: Masking
    opener: str
    senders: tuple[str, ...]
    label: str

    def size(self, numbers: int) -> int:
        """Forecast bytes of a vector under way."""
        return ckks.pieces(numbers) * CIPHERTEXT_BYTES if self.masking == "ckks" else 8 * numbers

    # --- to the opener -------------------------------------------------------------------------------------------

    def hide(self, me: Party, values: Floats, number: int) -> Sealed:
        """This sender's vector."""
        flat = values.reshape(-1)
        if self.masking == "ckks":
            return _public(me, self.opener).encrypt(flat)
        clipped = np.append(flat, np.float32(1.0)).astype(np.float64)
        np.clip(clipped, -BOUND, BOUND, out=clipped)
        clipped[np.isnan(clipped)] = BOUND
        return self._padded(me, self._fixed_point.encode(clipped), number)

    @property
    def _fixed_point(self) -> FixedPoint:
        return fixed_point(bound=BOUND, parties=len(self.senders) + 1)

    def _padded(self, me: Party, integers: NDArray[np.int64], number: int) -> NDArray[np.uint64]:
        peers = [member for member in (*self.senders, self.opener) if member != me.name]
        keys = {peer: me.pair_key(peer, self.label) for peer in peers}
        return masked(integers, me=me.name, peers=peers, pair_keys=keys, label=pad_label(me.job, number))

    def add(self, parts: Mapping[str, Sealed], keys: Keys) -> Sealed:
        """The coordinator's part."""
        missing = [sender for sender in self.senders if sender not in parts]
        if missing:
            raise PartyLost(f"no hidden vector came from {', '.join(missing)}; resume when they are back.")
        if self.masking == "ckks":
            key = keys.get(self.opener)
            assert key is not None
            return _public_of(key).add([_ciphertexts(parts[sender]) for sender in self.senders])
        arrays = [parts[sender] for sender in self.senders]
        shape = np.shape(arrays[0])
        total = np.zeros(shape, dtype=np.uint64)
        for array in arrays:
            if not isinstance(array, np.ndarray) or array.dtype != np.uint64 or array.shape != shape:
                raise SecureError("masked vectors must be uint64 and of one size; check the parties' installations.")
            total += array
        return total

    def reveal(self, me: Party, total: Sealed, *, size: int, number: int) -> Floats:
        """The opener's part: the sum over the senders."""
        if self.masking == "ckks":
            decrypted = _secret(me).decrypt(_ciphertexts(total), size=size, summands=len(self.senders))
            return decrypted.astype(np.float32)
        if not isinstance(total, np.ndarray) or total.dtype != np.uint64 or total.shape != (size + 1,):
            raise SecureError("the sum of masked vectors has another size than this round; check the coordinator.")
        pads = self._padded(me, np.zeros(size + 1, dtype=np.int64), number)
        plain = self._fixed_point.decode((total + pads).view(np.int64))
        if abs(plain[-1] - len(self.senders)) > 1e-6:
            raise SecureError(
                f"the pads of {', '.join(self.senders)} do not cancel: a party used another key or another round, or a"
                " summand is missing; start the job again."
            )
        return np.asarray(plain[:-1], dtype=np.float32)

    # --- back to the senders -------------------------------------------------------------------------------------

    def send_back(self, me: Party, values: Floats, tag: str) -> None:
        """Gradients, sealed to each sender."""
        for sender in self.senders:
            me.send(sender, tag, _public(me, sender).encrypt(values) if self.masking == "ckks" else values)

    def take_back(self, me: Party, *, size: int, tag: str) -> Floats | None:
        """The opener's gradients, or None if none came with this request."""
        received = me.received(tag).get(self.opener)
        if received is None:
            return None
        if self.masking == "ckks":
            return _secret(me).decrypt(_ciphertexts(received), size=size, summands=1).astype(np.float32)
        if not isinstance(received, np.ndarray) or received.size != size:
            raise SecureError(
                f"the gradients of {self.opener!r} have another size than this round; check its installation."
            )
        return np.asarray(received, dtype=np.float32).reshape(-1)


def _ciphertexts(value: Any) -> list[bytes]:
    if not isinstance(value, list) or not all(isinstance(piece, bytes) for piece in value):
        raise SecureError("encrypted vectors are lists of ciphertexts; check the parties' installations.")
    return value
