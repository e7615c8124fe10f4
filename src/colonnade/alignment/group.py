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
from typing import Any

import numpy as np
from cryptography.hazmat.primitives.asymmetric import ec
from numba import njit
from numpy.typing import NDArray

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
            digests = b"".join(hashlib.sha256(prefix + part[index]).digest() for index in waiting.tolist())
            candidates = np.frombuffer(digests, dtype=np.uint8).reshape(-1, ELEMENT_BYTES)
            lifted, good = lift(candidates)
            xs[waiting[good]], ys[waiting[good]] = candidates[good], lifted[good]
            waiting, counter = waiting[~good], counter + 1
        yield xs, ys


def random_elements(count: int, randomness: Randomness) -> Elements:
    """Uniform elements: what a raised element looks like to anyone without the exponent."""
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
    raised = [exchange(_ECDH, decode(_CURVE, encoded[start : start + 65])) for start in range(0, len(encoded), 65)]
    return np.frombuffer(b"".join(raised), dtype=np.uint8).reshape(-1, ELEMENT_BYTES)


# --- The curve's y for many x at once: batched square roots modulo the prime of P-256 ---------------------
#
# p = 2^256 - 2^224 + 2^192 + 2^96 - 1 is 3 modulo 4, so a square w has the root w^((p + 1) / 4), and squaring the
# candidate says whether there was one. (p + 1) / 4 = 2^254 - 2^222 + 2^190 + 2^94: about 260 products.
#
# Numbers are ten limbs of 26 bits in Montgomery form (R = 2^260), `LANES` numbers side by side so that the compiler can
# use vector instructions. p = -1 modulo 2^26, hence the Montgomery digit is the lowest limb itself, and adding m p is
# four shifted additions. The exponent is public and the sequence of operations fixed: time does not depend on x.
# A product of values below 2^258 is below (2^258)^2 / R + p < 2^257, and a constant added keeps it below 2^258.


PRIME = 2**256 - 2**224 + 2**192 + 2**96 - 1
B = 0x5AC635D8AA3A93E7B3EBBD55769886BC651D06B0CC53B0F63BCE3C3E27D2604B
"""The curve is y^2 = x^3 - 3 x + B (SEC 2, NIST SP 800-186)."""

LANES = 64
_LIMBS, _BITS = 10, 26
_MASK = np.int64(2**_BITS - 1)


def _limbs(value: int) -> NDArray[np.int64]:
    return np.array([value >> _BITS * i & int(_MASK) for i in range(_LIMBS)], dtype=np.int64)


_X, _W, _Y, _U, _TO_MONTGOMERY, _ONE, _B, _MINUS_THREE = range(8)


def _constants() -> NDArray[np.int64]:
    """The registers' first values: the constants in Montgomery form, in every lane."""
    r = 1 << _LIMBS * _BITS
    values = [0, 0, 0, 0, r * r % PRIME, 1, B * r % PRIME, -3 * r % PRIME]
    limbs = np.stack([_limbs(value) for value in values])
    return np.ascontiguousarray(np.repeat(limbs[:, :, None], LANES, axis=2))


def _program() -> NDArray[np.int64]:
    """Rows (left, right, out, squarings, plus): out = left right, squared so often, plus a register unless it is -1."""
    rows = [(_X, _TO_MONTGOMERY, _X, 0, -1), (_X, _X, _W, 0, _MINUS_THREE), (_W, _X, _W, 0, _B)]
    # w^(2^32 - 1): a run of ones in the exponent is doubled by squaring it up and multiplying by itself.
    rows += [(_W, _W, _U, 0, -1), (_U, _W, _Y, 0, -1)]
    for run in (2, 4, 8, 16):
        rows += [(_Y, _Y, _U, run - 1, -1), (_U, _Y, _Y, 0, -1)]
    # (p + 1) / 4 = (((2^32 - 1) 2^32 + 1) 2^96 + 1) 2^94
    rows += [(_Y, _Y, _Y, 31, -1), (_Y, _W, _Y, 0, -1)]
    rows += [(_Y, _Y, _Y, 95, -1), (_Y, _W, _Y, 0, -1)]
    rows += [(_Y, _Y, _Y, 93, -1), (_Y, _Y, _U, 0, -1)]
    # Leaving Montgomery form gives a number of at most p, so that equality can be read off the limbs.
    rows += [(register, _ONE, register, 0, -1) for register in (_U, _W, _Y)]
    return np.array(rows, dtype=np.int64)


@njit(cache=True, error_model="numpy")
def _multiply(a: Any, b: Any, out: Any, t: Any, lanes: int, square: bool) -> None:
    """out = a b / R modulo p, lane by lane; `t` is scratch of 21 limbs."""
    for i in range(2 * _LIMBS + 1):
        for lane in range(lanes):
            t[i, lane] = 0
    if square:  # a_i a_j and a_j a_i are one product
        for i in range(_LIMBS):
            for lane in range(lanes):
                t[2 * i, lane] += np.int64(np.uint32(a[i, lane])) * np.int64(np.uint32(a[i, lane]))
            for j in range(i + 1, _LIMBS):
                for lane in range(lanes):
                    t[i + j, lane] += np.int64(np.uint32(2 * a[i, lane])) * np.int64(np.uint32(a[j, lane]))
    else:
        for i in range(_LIMBS):
            for j in range(_LIMBS):
                for lane in range(lanes):
                    t[i + j, lane] += np.int64(np.uint32(a[i, lane])) * np.int64(np.uint32(b[j, lane]))
    for i in range(_LIMBS):
        for lane in range(lanes):
            m = t[i, lane] & _MASK
            # + m p: -m at limb i (which becomes a multiple of 2^26), 2^96, 2^192, -2^224 and 2^256 above it.
            t[i + 1, lane] += t[i, lane] >> _BITS
            t[i + 3, lane] += m << 18
            t[i + 7, lane] += m << 10
            t[i + 8, lane] -= m << 16
            t[i + 9, lane] += m << 22
    for i in range(_LIMBS, 2 * _LIMBS - 1):
        for lane in range(lanes):
            out[i - _LIMBS, lane] = t[i, lane] & _MASK
            t[i + 1, lane] += t[i, lane] >> _BITS
    for lane in range(lanes):  # the top limb keeps what exceeds 2^260; t[20] is 0, for products end at limb 19
        out[_LIMBS - 1, lane] = t[2 * _LIMBS - 1, lane]


@njit(cache=True, error_model="numpy")
def _run(xs: Any, ys: Any, ws: Any, squares: Any, registers: Any, program: Any) -> None:
    """For each group of lanes: y, the curve's right side w, and y^2, as numbers from 0 to p."""
    lanes = xs.shape[2]
    t = np.zeros((2 * _LIMBS + 1, lanes), dtype=np.int64)
    for group in range(xs.shape[0]):
        registers[_X] = xs[group]
        for row in range(program.shape[0]):
            out = registers[program[row, 2]]
            left, right = registers[program[row, 0]], registers[program[row, 1]]
            square = program[row, 0] == program[row, 1]
            for _ in range(program[row, 3] + 1):
                _multiply(left, right, out, t, lanes, square)
                left, right, square = out, out, True
            if program[row, 4] >= 0:
                plus = registers[program[row, 4]]
                for lane in range(lanes):
                    carry = np.int64(0)
                    for i in range(_LIMBS - 1):
                        value = out[i, lane] + plus[i, lane] + carry
                        out[i, lane] = value & _MASK
                        carry = value >> _BITS
                    out[_LIMBS - 1, lane] += plus[_LIMBS - 1, lane] + carry
        ys[group], ws[group], squares[group] = registers[_Y], registers[_W], registers[_U]


def lift(xs: NDArray[np.uint8]) -> tuple[NDArray[np.uint8], NDArray[np.bool_]]:
    """For rows of 32 bytes, x big-endian: one of the two y with (x, y) on P-256, and whether there is one.

    An x of p or above is none: each point has one encoding.
    """
    count = len(xs)
    groups = -(-count // LANES)
    padded = np.zeros((groups * LANES, 32), dtype=np.uint8)
    padded[:count] = xs
    bits = np.zeros((groups * LANES, _LIMBS * _BITS), dtype=np.uint8)
    bits[:, :256] = np.unpackbits(padded[:, ::-1], axis=1, bitorder="little")
    weights = np.int64(1) << np.arange(_BITS, dtype=np.int64)
    limbs = bits.reshape(-1, _LIMBS, _BITS) @ weights
    below = _below_prime(padded)
    inside = np.ascontiguousarray(np.where(below[:, None], limbs, 0).reshape(groups, LANES, _LIMBS).transpose(0, 2, 1))
    ys, ws, squares = np.zeros_like(inside), np.zeros_like(inside), np.zeros_like(inside)
    _run(inside, ys, ws, squares, _constants(), _program())
    flat, right, square = (_canonical(part) for part in (ys, ws, squares))
    back = (flat[:, :, None] >> np.arange(_BITS) & 1).astype(np.uint8).reshape(-1, _LIMBS * _BITS)[:, :256]
    encoded = np.packbits(back, axis=1, bitorder="little")[:, ::-1]
    good = below & (right == square).all(axis=1)
    return np.ascontiguousarray(encoded[:count]), good[:count]


def _canonical(groups: NDArray[np.int64]) -> NDArray[np.int64]:
    """One row of limbs a number, with p itself written as 0."""
    flat = groups.transpose(0, 2, 1).reshape(-1, _LIMBS)
    return np.where((flat == _limbs(PRIME)).all(axis=1)[:, None], 0, flat)


def _below_prime(rows: NDArray[np.uint8]) -> NDArray[np.bool_]:
    """Rows, read as big-endian numbers, that are below p: the first word that differs from p's decides."""
    words = np.ascontiguousarray(rows).view(">u8").astype(np.uint64)
    below = np.zeros(len(rows), dtype=np.bool_)
    equal = np.ones(len(rows), dtype=np.bool_)
    for column, word in enumerate(np.frombuffer(PRIME.to_bytes(32, "big"), dtype=">u8").astype(np.uint64)):
        below |= equal & (words[:, column] < word)
        equal &= words[:, column] == word
    return below
