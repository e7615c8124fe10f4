"""The group of the alignment: P-256, points up to sign, written as their x coordinate in 32 bytes.

P-256 has **prime order** q: no cofactor, so no small subgroup, and every x that is accepted is checked to lie on the
curve, so the twist is never entered. A secret exponent k in [1, q) takes {P, -P} to {kP, -kP}; that is a well-defined,
commutative action on x coordinates, (x^a)^b = (x^b)^a = x^(ab), and it never reaches the point at infinity. It is what
ECDH computes, so the multiplication is OpenSSL's, which takes the same time for every exponent. (P-256 rather than
ristretto255: no maintained package with a ristretto255 binding is among our dependencies or in PyNaCl.)

Hashing: the first x = SHA-256(domain, counter, key), counter = 0, 1, ..., that is on the curve. With SHA-256 as a
random oracle it is a random oracle onto the accepted x, each equally likely. About half of all x are on the curve, so
the number of tries depends on the key; it shows in the time that a party takes for its **own** keys, by some
microseconds in a list of thousands, and in nothing else.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence

import numpy as np
from cryptography.hazmat.primitives.asymmetric import ec
from numpy.typing import NDArray

from colonnade.alignment.square_root import lift
from colonnade.errors import SecureError
from colonnade.privacy.randomness import Randomness

ORDER = 0xFFFFFFFF00000000FFFFFFFFFFFFFFFFBCE6FAADA7179E84F3B9CAC2FC632551
ELEMENT_BYTES = 32
BATCH = 4096
"""Elements in work at once: what is needed besides the lists themselves does not grow with them."""

Elements = NDArray[np.uint8]
"""Rows of 32 bytes, each the x coordinate of a point of the curve."""

_CURVE = ec.SECP256R1()
_ECDH = ec.ECDH()
_LABEL = b"colonnade alignment v1"


def draw_exponent(randomness: Randomness) -> int:
    """Uniform in [1, q), by rejection."""
    while True:
        drawn = int.from_bytes(randomness.bytes(ELEMENT_BYTES), "big")
        if 1 <= drawn < ORDER:
            return drawn


def hash_to_group(keys: Sequence[bytes], *, domain: str) -> Elements:
    """An element for each key; equal keys have equal elements. `domain` separates one job from every other."""
    parts = [xs for xs, _ in _hashed(keys, domain)]
    return np.concatenate(parts) if parts else np.empty((0, ELEMENT_BYTES), dtype=np.uint8)


def hash_and_raise(keys: Sequence[bytes], exponent: int, *, domain: str) -> Elements:
    """`hash_to_group`, then `raise_to`, without finding each y again."""
    secret = ec.derive_private_key(exponent, _CURVE)
    parts = [_multiplied(secret, xs, ys) for xs, ys in _hashed(keys, domain)]
    return np.concatenate(parts) if parts else np.empty((0, ELEMENT_BYTES), dtype=np.uint8)


def _hashed(keys: Sequence[bytes], domain: str) -> Iterator[tuple[Elements, Elements]]:
    """(x, y) of each key's point, a batch at a time."""
    salt = hashlib.sha256(_LABEL + domain.encode()).digest()
    for start in range(0, len(keys), BATCH):
        part = keys[start : start + BATCH]
        xs, ys = (np.empty((len(part), ELEMENT_BYTES), dtype=np.uint8) for _ in range(2))
        waiting = np.arange(len(part))
        counter = 0
        while waiting.size:
            prefix = salt + counter.to_bytes(4, "big")
            digests = b"".join(hashlib.sha256(prefix + part[at]).digest() for at in waiting.tolist())
            candidates = np.frombuffer(digests, dtype=np.uint8).reshape(-1, ELEMENT_BYTES)
            lifted, good = lift(candidates)
            xs[waiting[good]], ys[waiting[good]] = candidates[good], lifted[good]
            waiting, counter = waiting[~good], counter + 1
        yield xs, ys


def random_elements(count: int, randomness: Randomness) -> Elements:
    """Uniform elements: what a raised element looks like to whoever does not know the exponent."""
    out = np.empty((count, ELEMENT_BYTES), dtype=np.uint8)
    filled = 0
    while filled < count:
        many = min(BATCH, 2 * (count - filled) + 16)
        drawn = np.frombuffer(randomness.bytes(ELEMENT_BYTES * many), dtype=np.uint8).reshape(-1, ELEMENT_BYTES)
        good = drawn[lift(drawn)[1]][: count - filled]
        out[filled : filled + len(good)] = good
        filled += len(good)
    return out


def check_elements(elements: object) -> Elements:
    """What another party sent, if it has the form of a list of elements; `raise_to` checks each against the curve."""
    if not isinstance(elements, np.ndarray) or elements.dtype != np.uint8 or elements.ndim != 2:
        raise SecureError("a list of group elements is a matrix of bytes; align with the same version at every party.")
    if elements.shape[1] != ELEMENT_BYTES:
        raise SecureError(f"a group element has {ELEMENT_BYTES} bytes; align with the same version at every party.")
    return elements


def raise_to(elements: Elements, exponent: int) -> Elements:
    """Each element to the power of `exponent`; an x that is not on the curve is refused."""
    secret = ec.derive_private_key(exponent, _CURVE)
    out = np.empty_like(elements)
    for start in range(0, len(elements), BATCH):
        part = elements[start : start + BATCH]
        ys, good = lift(part)
        if not good.all():
            raise SecureError("a group element is not on the curve; align with the same version at every party.")
        out[start : start + len(part)] = _multiplied(secret, part, ys)
    return out


def _multiplied(secret: ec.EllipticCurvePrivateKey, xs: Elements, ys: Elements) -> Elements:
    """The x coordinates of points times the secret; OpenSSL checks again that each point is on the curve."""
    points = np.empty((len(xs), 1 + 2 * ELEMENT_BYTES), dtype=np.uint8)
    points[:, 0], points[:, 1:33], points[:, 33:] = 4, xs, ys  # 4: an uncompressed point follows (SEC 1)
    encoded, exchange = points.tobytes(), secret.exchange
    decode = ec.EllipticCurvePublicKey.from_encoded_point
    raised = [exchange(_ECDH, decode(_CURVE, encoded[at : at + 65])) for at in range(0, len(encoded), 65)]
    return np.frombuffer(b"".join(raised), dtype=np.uint8).reshape(-1, ELEMENT_BYTES)
