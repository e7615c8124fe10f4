"""Masked sums: the coordinator learns the total of the parties' arrays and nothing else.

Each pair of parties shares a 32-byte key (`sealed.pair_key`). For each round it expands the key to a pad; the
first of the two (by name) adds the pad, the other subtracts it, modulo 2^64. One masked array is uniform; in the
sum over **all** parties every pad cancels. The sum over some of them is noise, so a lost party ends the round.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from cryptography.hazmat.primitives.kdf.hkdf import HKDF
from numpy.typing import ArrayLike, NDArray

from colonnade.errors import ModulusTooSmall, PartyLost, SecureError

_LABEL = b"colonnade pad v1"
_PIECE = 1 << 20


def pad_label(job: str, round_: int) -> bytes:
    """The label of one masked sum. Never use one twice: two arrays under one pad show their difference."""
    name = job.encode()
    return len(name).to_bytes(4, "big") + name + round_.to_bytes(8, "big")


def masked(
    values: NDArray[np.int64],
    *,
    me: str,
    peers: Sequence[str],
    pair_keys: Mapping[str, bytes],
    label: bytes,
    wraps: bool = False,
) -> NDArray[np.uint64]:
    """My array with the pads of all my pairs. Sizes are checked, so that no total of such arrays can wrap, unless they
    are shares modulo 2^64, of which the total is meant to."""
    parties = sorted({me, *peers})
    if not peers or len(parties) != len(peers) + 1:
        raise SecureError(f"{me!r} cannot mask towards {list(peers)}: name every other party of the roster once.")
    if values.dtype != np.int64:
        raise SecureError(f"a masked sum takes int64, not {values.dtype}: encode floats with fixed_point.")
    limit = largest_summand(len(parties))
    if not wraps and values.size and max(int(values.max()), -int(values.min())) > limit:
        raise ModulusTooSmall(
            f"a value is larger than {limit}, so the total of {len(parties)} parties could wrap: clip it or scale down."
        )
    total = np.ascontiguousarray(values).reshape(-1).view(np.uint64).copy()
    roster = _digest(parties)
    for peer in peers:
        first, second = sorted((me, peer))
        _apply_pad(total, _pad_key(pair_keys, peer, roster + _digest((first, second)) + label), add=me == first)
    return total.reshape(values.shape)


def unmask_sum(contributions: Iterable[tuple[str, NDArray[np.uint64]]], *, parties: Sequence[str]) -> NDArray[np.int64]:
    """The total, from one (party, masked array) of every roster party; anything else is refused by name."""
    arrays: dict[str, NDArray[np.uint64]] = {}
    for party, array in contributions:
        if party in arrays or party not in parties:
            reason = "came twice" if party in arrays else "is not of the roster"
            raise PartyLost(f"the masked array of {party!r} {reason}: the total would be noise; start the round again.")
        arrays[party] = array
    if missing := [party for party in parties if party not in arrays]:
        raise PartyLost(
            f"no masked array came from {', '.join(map(repr, missing))}: the sum over the others is noise; wait, or "
            "start a new round, under a new label, without them."
        )
    sound = all(isinstance(array, np.ndarray) and array.dtype == np.uint64 for array in arrays.values())
    if not sound or len({array.shape for array in arrays.values()}) != 1:
        shapes = {party: getattr(array, "shape", None) for party, array in arrays.items()}
        raise SecureError(
            f"masked arrays must all be uint64 and of one shape, not {shapes}: check the step's arguments."
        )
    total = np.zeros(next(iter(arrays.values())).shape, dtype=np.uint64)
    for array in arrays.values():
        total += array
    return total.view(np.int64)


def largest_summand(parties: int) -> int:
    """The largest size of a value for which `parties` of them cannot leave the range of int64."""
    return (2**63 - 1) // parties


# --- numbers with a fraction -----------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class FixedPoint:
    """Floats of size at most `bound` as whole multiples of 2^-fraction_bits."""

    bound: float
    parties: int
    fraction_bits: int

    def __post_init__(self) -> None:
        # A scaled value, rounded, is at most 2^(62 - k), and 2^k of those at most 2^62.
        if self.fraction_bits > 62 - _bits(self.bound, self.parties):
            raise ModulusTooSmall(
                f"{self.fraction_bits} bits of fraction for {self.parties} parties within {self.bound} could wrap: "
                "take fixed_point(bound=..., parties=...)."
            )

    def encode(self, values: ArrayLike) -> NDArray[np.int64]:
        """Rounded to the nearest multiple: at most 2^-(fraction_bits + 1) off, or float64's own precision."""
        array = np.asarray(values, dtype=np.float64)
        if array.size and not bool((np.abs(array) <= self.bound).all()):
            raise ModulusTooSmall(
                f"a value is not a number of size at most {self.bound}, so the total could wrap: clip to the declared "
                "bound, or declare a larger one."
            )
        return np.rint(np.ldexp(array, self.fraction_bits)).astype(np.int64)

    def decode(self, total: NDArray[np.int64]) -> NDArray[np.float64]:
        """The total as floats."""
        return np.ldexp(total.astype(np.float64), -self.fraction_bits)


def fixed_point(*, bound: float, parties: int) -> FixedPoint:
    """The finest safe scale. It depends on the declared bound, never on the values: a scale is public."""
    if not 0 < bound < math.inf or parties < 1:
        raise ModulusTooSmall(f"bound {bound} and {parties} parties give no scale: declare a finite bound above 0.")
    return FixedPoint(bound=bound, parties=parties, fraction_bits=62 - _bits(bound, parties))


def _bits(bound: float, parties: int) -> int:
    """e + k, for bound < 2^e and parties <= 2^k."""
    return math.frexp(bound)[1] + (parties - 1).bit_length()


# --- pads ------------------------------------------------------------------------------------------------


def _digest(names: Sequence[str]) -> bytes:
    """A digest of a list of names; the roster's is part of each pad, so another set of parties has other pads."""
    digest = hashlib.sha256()
    for name in names:
        digest.update(hashlib.sha256(name.encode()).digest())
    return digest.digest()


def _pad_key(pair_keys: Mapping[str, bytes], peer: str, info: bytes) -> bytes:
    key = pair_keys.get(peer)
    if key is None or len(key) != 32:
        raise SecureError(f"no 32-byte pair key for {peer!r}: agree on one with sealed.pair_key.")
    return HKDF(algorithm=hashes.SHA256(), length=32, salt=None, info=_LABEL + info).derive(key)


def _apply_pad(total: NDArray[np.uint64], key: bytes, *, add: bool) -> None:
    """Add or subtract, in place, the AES-256 counter stream under `key`, as little-endian 64-bit words."""
    stream = Cipher(algorithms.AES(key), modes.CTR(bytes(16))).encryptor()
    for start in range(0, total.size, _PIECE):
        piece = total[start : start + _PIECE]
        pad = np.frombuffer(stream.update(bytes(8 * piece.size)), dtype="<u8")
        (np.add if add else np.subtract)(piece, pad, out=piece)
