"""The group G of the alignment: the points of prime order of Curve25519, up to sign, as x coordinates in 32 bytes.

Curve25519 is y^2 = x^3 + 486662 x^2 + x modulo p = 2^255 - 19 (RFC 7748). It has 8 q points, q prime. X25519 multiplies
a point, known by its x alone, by a number that is a **multiple of 8** and lies in [2^254, 2^255). The multiplication is
OpenSSL's, which takes the same time for every number; P-256, where a point must be found and checked with its y, takes
twice as long.

*No cofactor.* An exponent e modulo q stands for the number k with k = e modulo q, k = 0 modulo 8 (`_scalar`). It takes
every point of the curve into G, and on G it is {P, -P} -> {eP, -eP}: a commutative action, (x^a)^b = (x^b)^a = x^(ab),
that never reaches the point at infinity. x^1 is the part of a point that is in G, so hashes and dummies, which are
points of the whole curve, enter G with the exponent that blinds them, and what is sent is in G.

*No twist.* Every x is on the curve or on its twist, and X25519 stays where it is: whether x^3 + 486662 x^2 + x is a
square would be a bit of H(key) that no exponent hides. So hashes and dummies are points of the curve only, and what
another party sent is refused unless it is one (`on_curve`). Points of order 1, 2, 4 and 8, which every k takes to
infinity, are refused too.

Hashing: the first x = SHA-256(domain, counter, key) modulo 2^255, counter = 0, 1, ..., that is on the curve. With
SHA-256 as a random oracle it is a random oracle onto the points of the curve up to sign, each equally likely, and x^1
one onto G. About half of all x are on the curve, so the number of tries depends on the key; it shows in the time that a
party takes for its **own** keys, by some microseconds in a list of thousands, and in nothing else.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Any

import numpy as np
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from numba import njit
from numpy.typing import NDArray

from colonnade.errors import SecureError
from colonnade.privacy.randomness import Randomness

ORDER = 2**252 + 27742317777372353535851937790883648493
ELEMENT_BYTES = 32
BATCH = 4096
"""Elements in work at once: what is needed besides the lists themselves does not grow with them."""

Elements = NDArray[np.uint8]
"""Rows of 32 bytes, each the x coordinate of a point, little-endian as in RFC 7748."""

_LABEL = b"colonnade alignment v2"


def draw_exponent(randomness: Randomness) -> int:
    """That of a uniform number k of X25519; {e, -e} is uniform but for a statistical distance of 2^-125.

    k / 8 is uniform in [2^251, 2^252). Of m and q - m one is in there, but for fewer than 2^125 pairs near q / 2 of
    which both are, and fewer than 2^125 near 0 of which neither is, since q - 2^252 < 2^125.
    """
    drawn = int.from_bytes(randomness.bytes(ELEMENT_BYTES), "little") % 2**251
    return 8 * (2**251 + drawn) % ORDER


def _scalar(exponent: int) -> X25519PrivateKey:
    """The number of X25519 that acts on G as `exponent` does, or as its negative: up to sign that is the same."""
    eighth = exponent * pow(8, -1, ORDER) % ORDER
    eighth = max(eighth, ORDER - eighth)
    if eighth >= 2**252:
        raise SecureError("X25519 has no number for this exponent, one of 2^125 in 2^252; draw another.")
    return X25519PrivateKey.from_private_bytes((8 * eighth).to_bytes(ELEMENT_BYTES, "little"))


def hash_to_group(keys: Sequence[bytes], *, domain: str) -> Elements:
    """An element for each key; equal keys have equal elements. `domain` separates one job from every other."""
    return hash_and_raise(keys, 1, domain=domain)


def hash_and_raise(keys: Sequence[bytes], exponent: int, *, domain: str) -> Elements:
    """`hash_to_group`, then `raise_to`, in one multiplication."""
    scalar, salt = _scalar(exponent), hashlib.sha256(_LABEL + domain.encode()).digest()
    out = np.empty((len(keys), ELEMENT_BYTES), dtype=np.uint8)
    for start in range(0, len(keys), BATCH):
        part = keys[start : start + BATCH]
        out[start : start + len(part)] = _multiplied(scalar, _hashed(part, salt))
    return out


def _hashed(keys: Sequence[bytes], salt: bytes) -> Elements:
    """A point of the curve for each key."""
    xs = np.empty((len(keys), ELEMENT_BYTES), dtype=np.uint8)
    waiting = np.arange(len(keys))
    counter = 0
    while waiting.size:
        start = hashlib.sha256(salt + counter.to_bytes(4, "big"))
        digests = []
        for index in waiting.tolist():
            state = start.copy()
            state.update(keys[index])
            digests.append(state.digest())
        candidates = _below_2_255(b"".join(digests))
        good = on_curve(candidates)
        xs[waiting[good]] = candidates[good]
        waiting, counter = waiting[~good], counter + 1
    return xs


def random_points(count: int, randomness: Randomness) -> Elements:
    """Uniform points of the curve: raised, they look like raised hashes to anyone without the exponent."""
    out = np.empty((count, ELEMENT_BYTES), dtype=np.uint8)
    filled = 0
    while filled < count:
        many = min(BATCH, 2 * (count - filled) + 16)
        drawn = _below_2_255(randomness.bytes(ELEMENT_BYTES * many))
        good = drawn[on_curve(drawn)][: count - filled]
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
    """Each element to the power of `exponent`; an x that is not on the curve, or of small order, is refused."""
    scalar = _scalar(exponent)
    out = np.empty_like(elements)
    for start in range(0, len(elements), BATCH):
        part = elements[start : start + BATCH]
        if not on_curve(part).all():
            raise SecureError("a group element is not on the curve; align with the same version at every party.")
        out[start : start + len(part)] = _multiplied(scalar, part)
    return out


def _multiplied(scalar: X25519PrivateKey, xs: Elements) -> Elements:
    """The x coordinates of points times the scalar; infinity, which OpenSSL refuses, comes of small orders only."""
    encoded, exchange, decode = xs.tobytes(), scalar.exchange, X25519PublicKey.from_public_bytes
    try:
        raised = [exchange(decode(encoded[start : start + 32])) for start in range(0, len(encoded), 32)]
    except ValueError:
        raise SecureError("a group element has a small order; align with the same version at every party.") from None
    return np.frombuffer(b"".join(raised), dtype=np.uint8).reshape(-1, ELEMENT_BYTES)


def _below_2_255(data: bytes) -> Elements:
    """Rows of 32 bytes without their highest bit."""
    rows = np.frombuffer(data, dtype=np.uint8).reshape(-1, ELEMENT_BYTES).copy()
    rows[:, -1] &= 127
    return rows


# --- Which x are on the curve: Euler's criterion for many x at once ----------------------------------------------
#
# x is on the curve if w = x^3 + 486662 x^2 + x is 0 or a square, that is, w^((p - 1) / 2) = 1 modulo p. The exponent is
# public and the sequence of operations fixed: time does not depend on x.
#
# A number is ten limbs of 26, 25, 26, ... bits (limb i has the weight 2^ceil(25.5 i)), and `LANES` numbers stand side
# by side in a flat array, limb by limb, so that the compiler can use vector instructions. The product of limbs i and j
# belongs to limb i + j, twice if both are odd, and 2^255 = 19 modulo p brings limb i + j >= 10 back to i + j - 10.
# Limbs are below 1.1 2^26 (even i) and 1.1 2^25 (odd): times 19, and 38 if odd, they fit into 32 bits, and a sum of ten
# products into 64.

PRIME = 2**255 - 19
A = 486662

LANES = 64
_LIMBS = 10
_OFFSETS = tuple((51 * limb + 1) // 2 for limb in range(_LIMBS))
_TOP = np.uint64(2**63 - 1)
_FULL = np.uint64(2**64 - 1)


@njit(inline="always", error_model="numpy")
def _carry(t0: Any, t1: Any, t2: Any, t3: Any, t4: Any, t5: Any, t6: Any, t7: Any, t8: Any, t9: Any, a: Any, lane: Any):  # type: ignore[no-untyped-def]
    """a = the number with these limbs, below 2^255 + 2^52; its lowest limb is exactly the number modulo 2^26."""
    even, odd = np.uint64(26), np.uint64(25)
    low, lower = np.uint64(2**26 - 1), np.uint64(2**25 - 1)
    t1 += t0 >> even
    t2 += t1 >> odd
    t3 += t2 >> even
    t4 += t3 >> odd
    t5 += t4 >> even
    t6 += t5 >> odd
    t7 += t6 >> even
    t8 += t7 >> odd
    t9 += t8 >> even
    t0 = (t0 & low) + np.uint64(19) * (t9 >> odd)
    t1 = (t1 & lower) + (t0 >> even)
    a[lane] = t0 & low
    a[LANES + lane] = t1 & lower
    a[2 * LANES + lane] = (t2 & low) + (t1 >> odd)
    a[3 * LANES + lane] = t3 & lower
    a[4 * LANES + lane] = t4 & low
    a[5 * LANES + lane] = t5 & lower
    a[6 * LANES + lane] = t6 & low
    a[7 * LANES + lane] = t7 & lower
    a[8 * LANES + lane] = t8 & low
    a[9 * LANES + lane] = t9 & lower


@njit(inline="always", error_model="numpy")
def _times(limb: Any, factor: int) -> Any:
    """For the compiler: a product that fits into 32 bits."""
    return np.uint64(np.uint32(limb * np.uint32(factor)))


@njit(cache=True, error_model="numpy")
def _square(a: Any, times: int) -> None:
    """a = a^(2^times), lane by lane."""
    for _ in range(times):
        for lane in range(LANES):
            f0, f1, f2 = np.uint64(a[lane]), np.uint64(a[LANES + lane]), np.uint64(a[2 * LANES + lane])
            f3, f4, f5 = np.uint64(a[3 * LANES + lane]), np.uint64(a[4 * LANES + lane]), np.uint64(a[5 * LANES + lane])
            f6, f7, f8 = np.uint64(a[6 * LANES + lane]), np.uint64(a[7 * LANES + lane]), np.uint64(a[8 * LANES + lane])
            f9 = np.uint64(a[9 * LANES + lane])
            d0, d1, d2, d3 = _times(f0, 2), _times(f1, 2), _times(f2, 2), _times(f3, 2)
            d4, d5, d6, d7 = _times(f4, 2), _times(f5, 2), _times(f6, 2), _times(f7, 2)
            g5, g6, g7, g8, g9 = _times(f5, 38), _times(f6, 19), _times(f7, 38), _times(f8, 19), _times(f9, 38)
            _carry(
                f0 * f0 + d1 * g9 + d2 * g8 + d3 * g7 + d4 * g6 + f5 * g5,
                d0 * f1 + f2 * g9 + d3 * g8 + f4 * g7 + d5 * g6,
                d0 * f2 + d1 * f1 + d3 * g9 + d4 * g8 + d5 * g7 + f6 * g6,
                d0 * f3 + d1 * f2 + f4 * g9 + d5 * g8 + f6 * g7,
                d0 * f4 + d1 * d3 + f2 * f2 + d5 * g9 + d6 * g8 + f7 * g7,
                d0 * f5 + d1 * f4 + d2 * f3 + f6 * g9 + d7 * g8,
                d0 * f6 + d1 * d5 + d2 * f4 + d3 * f3 + d7 * g9 + f8 * g8,
                d0 * f7 + d1 * f6 + d2 * f5 + d3 * f4 + f8 * g9,
                d0 * f8 + d1 * d7 + d2 * f6 + d3 * d5 + f4 * f4 + f9 * g9,
                d0 * f9 + d1 * f8 + d2 * f7 + d3 * f6 + d4 * f5,
                a,
                lane,
            )


@njit(cache=True, error_model="numpy")
def _multiply(a: Any, b: Any, out: Any) -> None:
    """out = a b, lane by lane."""
    t = np.zeros((_LIMBS, LANES), dtype=np.uint64)
    for i in range(_LIMBS):
        for j in range(_LIMBS):
            factor = (2 if i & j & 1 else 1) * (19 if i + j >= _LIMBS else 1)
            for lane in range(LANES):
                t[(i + j) % _LIMBS, lane] += _times(a[i * LANES + lane], factor) * np.uint64(b[j * LANES + lane])
    for lane in range(LANES):
        _carry(
            t[0, lane], t[1, lane], t[2, lane], t[3, lane], t[4, lane], t[5, lane], t[6, lane], t[7, lane], t[8, lane],
            t[9, lane], out, lane,
        )  # fmt: skip


@njit(cache=True, error_model="numpy")
def _euler(words: Any, squares: Any) -> None:
    """For each x (four words, the lowest first): whether its w is a square, and not 0."""
    x = np.zeros(_LIMBS * LANES, dtype=np.uint32)
    w, y, z = x.copy(), x.copy(), x.copy()
    for start in range(0, len(words), LANES):
        inside = min(LANES, len(words) - start)
        for lane in range(inside):
            for limb in range(_LIMBS):
                word, shift = _OFFSETS[limb] // 64, _OFFSETS[limb] % 64
                value = words[start + lane, word] >> np.uint64(shift)
                if shift > 64 - 26 and word < 3:
                    value |= words[start + lane, word + 1] << np.uint64(64 - shift)
                x[limb * LANES + lane] = value & np.uint64(2 ** (26 - limb % 2) - 1)
        w[:] = x
        w[:LANES] += np.uint32(A)
        _multiply(w, x, w)
        w[:LANES] += np.uint32(1)
        _multiply(w, x, w)
        # y = w^(2^run - 1): squaring it `run` times and multiplying by itself doubles the run. (p - 1) / 2 is
        # 2^254 - 10 = (2^250 - 1) 2^4 + 6.
        y[:] = w
        run = 1
        for bit in (1, 1, 1, 1, 0, 1, 0):  # of 250, after the first
            z[:] = y
            _square(z, run)
            _multiply(z, y, y)
            run *= 2
            if bit:
                _square(y, 1)
                _multiply(y, w, y)
                run += 1
        _square(y, 4)
        _square(w, 1)
        _multiply(y, w, y)
        _square(w, 1)
        _multiply(y, w, y)
        # y is 0, 1 or -1 modulo p and below 2 p - 1, so it is one of 0, 1, p - 1, p, p + 1: the lowest limb says which.
        for lane in range(inside):
            squares[start + lane] = y[lane] == 1 or y[lane] == 2**26 - 18


def on_curve(xs: NDArray[np.uint8]) -> NDArray[np.bool_]:
    """For rows of 32 bytes, x little-endian: whether x is that of a point of Curve25519 other than (0, 0).

    An x of p or above is none: each point has one encoding.
    """
    words = np.ascontiguousarray(xs).view("<u8").astype(np.uint64).reshape(-1, 4)
    squares = np.zeros(len(words), dtype=np.bool_)
    _euler(words, squares)
    lowest, *others, highest = words.T
    full = (highest == _TOP) & (others[0] == _FULL) & (others[1] == _FULL)
    canonical: NDArray[np.bool_] = (highest <= _TOP) & ~(full & (lowest >= np.uint64(2**64 - 19)))
    return squares & canonical
