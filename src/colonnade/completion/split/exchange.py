"""How hidden vectors travel: the coordinator adds what it cannot read, and one party opens the sum.

`masks`: each sender adds the pads that it shares with the other members of the exchange, the opener among them (see
`secure.pads`). The coordinator adds the senders' arrays modulo 2^64; the opener's pads are still in the sum, so that it
is uniform to everybody else. `ckks`: senders encrypt under the opener's public key, the coordinator adds ciphertexts.

Gradients go back from the opener sealed to each sender; with `ckks` they are also encrypted under the sender's own key.
A value that ends each vector shows a wrong key, or a missing summand, to the opener. The coordinator's addition is not
verified: it can spoil a sum, unnoticed if it adds a plain vector of its own (masks) or an encrypted one (ckks).
"""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from colonnade.errors import PartyLost, SecureError
from colonnade.federation.party import Party
from colonnade.secure import ckks
from colonnade.secure.pads import fixed_point, masked, pad_label

Protect = Literal["masks", "ckks"]
Floats = NDArray[np.float32]
Sealed = NDArray[np.uint64] | list[bytes]
"""A vector that its bearer cannot read."""

BOUND = ckks.BOUND
"""Entries of hidden vectors are clipped to it. One that reaches it means that training has diverged."""

OWN_KEY = "ckks: secret key"


def public_key_of(member: str) -> str:
    return f"ckks: public key of {member}"


# --- keys ---------------------------------------------------------------------------------------------------------


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
    got = me.received("ckks: public key")
    for member in members:
        if member == me.name:
            continue
        if not isinstance(got.get(member), bytes):
            raise PartyLost(f"no CKKS key came from {member!r}; start the job again.")
        ckks.PublicKey.from_bytes(got[member])
        me.keep(public_key_of(member), got[member])


@functools.lru_cache(maxsize=64)
def _secret_of(data: bytes) -> ckks.SecretKey:
    return ckks.SecretKey.from_bytes(data)


def _secret(me: Party) -> ckks.SecretKey:
    return _secret_of(me.recall(OWN_KEY))


@functools.lru_cache(maxsize=64)
def _public(data: bytes) -> ckks.PublicKey:
    return ckks.PublicKey.from_bytes(data)


# --- to the opener ------------------------------------------------------------------------------------------------


def hide(
    me: Party, values: Floats, *, protect: Protect, opener: str, senders: Sequence[str], label: str, number: int
) -> Sealed:
    """This sender's vector under protection. (label, number) serves once: the step that calls this sees to it."""
    flat = values.reshape(-1)
    if protect == "ckks":
        return _public(me.recall(public_key_of(opener))).encrypt(flat)
    members = (*senders, opener)
    values = np.append(flat, np.float32(1.0)).astype(np.float64)
    np.clip(values, -BOUND, BOUND, out=values)
    values[np.isnan(values)] = BOUND
    whole = fixed_point(bound=BOUND, parties=len(members)).encode(values)
    return _padded(me, whole, members, label, number)


def _padded(me: Party, whole: NDArray[np.int64], members: Sequence[str], label: str, number: int) -> NDArray[np.uint64]:
    peers = [member for member in members if member != me.name]
    keys = {peer: me.pair_key(peer, label) for peer in peers}
    return masked(whole, me=me.name, peers=peers, pair_keys=keys, label=pad_label(me.job, number))


def add(parts: Mapping[str, Sealed], *, protect: Protect, senders: Sequence[str], key: bytes | None) -> Sealed:
    """The coordinator's part. `key` is the opener's public CKKS key."""
    missing = [sender for sender in senders if sender not in parts]
    if missing:
        raise PartyLost(f"no hidden vector came from {', '.join(missing)}; resume when they are back.")
    if protect == "ckks":
        assert key is not None
        return _public(key).add([_ciphertexts(parts[sender]) for sender in senders])
    arrays = [parts[sender] for sender in senders]
    if not all(
        isinstance(one, np.ndarray) and one.dtype == np.uint64 and one.shape == _shape(arrays) for one in arrays
    ):
        raise SecureError("masked vectors must be uint64 and of one size; check the parties' installations.")
    total = np.zeros(_shape(arrays), dtype=np.uint64)
    for one in arrays:
        assert isinstance(one, np.ndarray)
        total += one
    return total


def _shape(arrays: Sequence[Sealed]) -> tuple[int, ...]:
    return np.shape(arrays[0])


def _ciphertexts(value: Any) -> list[bytes]:
    if not isinstance(value, list) or not all(isinstance(one, bytes) for one in value):
        raise SecureError("encrypted vectors are lists of ciphertexts; check the parties' installations.")
    return value


def reveal(
    me: Party, total: Sealed, *, size: int, protect: Protect, senders: Sequence[str], label: str, number: int
) -> Floats:
    """The opener's part: the sum over the senders."""
    if protect == "ckks":
        found = _secret(me).decrypt(_ciphertexts(total), size=size, summands=len(senders))
        return found.astype(np.float32)
    if not isinstance(total, np.ndarray) or total.dtype != np.uint64 or total.shape != (size + 1,):
        raise SecureError("the sum of masked vectors has another size than this round; check the coordinator.")
    members = (*senders, me.name)
    pads = _padded(me, np.zeros(size + 1, dtype=np.int64), members, label, number)
    plain = fixed_point(bound=BOUND, parties=len(members)).decode((total + pads).view(np.int64))
    if abs(plain[-1] - len(senders)) > 1e-6:
        raise SecureError(
            f"the pads of {', '.join(senders)} do not cancel: a party used another key or another round, or a summand"
            " is missing; start the job again."
        )
    return plain[:-1].astype(np.float32)


# --- back to the senders ------------------------------------------------------------------------------------------


def send_back(me: Party, values: Floats, *, protect: Protect, senders: Sequence[str], tag: str) -> None:
    """Gradients, sealed to each sender."""
    for sender in senders:
        body: Any = values
        if protect == "ckks":
            body = _public(me.recall(public_key_of(sender))).encrypt(values)
        me.send(sender, tag, body)


def take_back(me: Party, *, opener: str, size: int, protect: Protect, tag: str) -> Floats | None:
    """The opener's gradients, or None if none came with this request."""
    got = me.received(tag).get(opener)
    if got is None:
        return None
    if protect == "ckks":
        return _secret(me).decrypt(_ciphertexts(got), size=size, summands=1).astype(np.float32)
    if not isinstance(got, np.ndarray) or got.size != size:
        raise SecureError(f"the gradients of {opener!r} have another size than this round; check its installation.")
    return np.asarray(got, dtype=np.float32).reshape(-1)
