"""Blind-RSA alignment: the protocol that the FedPSG paper names (De Cristofaro and Tsudik, 2010), for two roles.

The *signer* P makes an RSA key (N, e, d) for this job. With H a hash onto the numbers modulo N:

    matcher -> signer   H(x) r^e        for each of its keys x, r uniform and invertible: uniform to the signer
    signer -> matcher   H(x) r^(ed) ... = H(x)^d r, and in a random order H'(H(y)^d) for each of its own keys y
    matcher             divides by r and compares H'(H(x)^d) with the signer's tags

A tag cannot be computed without d, so the matcher cannot try keys offline; it can sign no further key once the job is
over (one-more-RSA assumption). It costs the signer an RSA signature for each of both sides' keys: some hundred times
the time of the elliptic curve. It is here for comparison with the paper.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from cryptography.hazmat.primitives.asymmetric import rsa
from numpy.typing import NDArray

from colonnade.errors import SecureError
from colonnade.privacy.randomness import Randomness

BITS = 3072
"""About the strength of P-256 (NIST SP 800-57)."""
EXPONENT = 65537
TAG_BYTES = 32

Numbers = NDArray[np.uint8]
"""Rows of bytes, each a big-endian number below the modulus."""


@dataclass(frozen=True)
class Signer:
    """An RSA private key, with what the Chinese remainder theorem needs."""

    p: int
    q: int

    @classmethod
    def generate(cls, bits: int = BITS) -> Signer:
        numbers = rsa.generate_private_key(public_exponent=EXPONENT, key_size=bits).private_numbers()
        return cls(numbers.p, numbers.q)

    @property
    def modulus(self) -> int:
        return self.p * self.q

    def sign(self, number: int) -> int:
        """number^d modulo p q: a power modulo each prime, joined by Garner's formula."""
        d_p, d_q, inverse = self._exponents
        mod_p, mod_q = pow(number, d_p, self.p), pow(number, d_q, self.q)
        return mod_q + self.q * ((mod_p - mod_q) * inverse % self.p)

    @cached_property
    def _exponents(self) -> tuple[int, int, int]:
        return pow(EXPONENT, -1, self.p - 1), pow(EXPONENT, -1, self.q - 1), pow(self.q, -1, self.p)

    def to_list(self) -> list[bytes]:
        return [
            self.p.to_bytes(-(-self.p.bit_length() // 8), "big"),
            self.q.to_bytes(-(-self.q.bit_length() // 8), "big"),
        ]

    @classmethod
    def from_list(cls, primes: Sequence[bytes]) -> Signer:
        return cls(*(int.from_bytes(prime, "big") for prime in primes))


def check_modulus(raw: object, *, least_bits: int = BITS) -> int:
    """A signer's modulus as it arrived."""
    modulus = int.from_bytes(raw, "big") if isinstance(raw, bytes) else 0
    if modulus % 2 == 0 or modulus.bit_length() < least_bits:
        raise SecureError(f"an RSA modulus must be odd and have {least_bits} bits; align with the same version.")
    return modulus


def full_domain_hash(key: bytes, modulus: int, *, domain: str) -> int:
    """Uniform modulo N up to 2^-128: SHAKE-256 with 128 bits more than N has."""
    wide = hashlib.shake_256(_bound(domain, b"number", key)).digest((modulus.bit_length() + 7) // 8 + 16)
    return int.from_bytes(wide, "big") % modulus


def tag(signature: int, modulus: int, *, domain: str) -> bytes:
    return hashlib.sha256(_bound(domain, b"tag", signature.to_bytes(width(modulus), "big"))).digest()


def _bound(domain: str, kind: bytes, rest: bytes) -> bytes:
    return hashlib.sha256(b"colonnade blind rsa v1" + domain.encode()).digest() + kind + b":" + rest


def width(modulus: int) -> int:
    return (modulus.bit_length() + 7) // 8


def blind(keys: Sequence[bytes], modulus: int, *, domain: str, randomness: Randomness) -> tuple[list[int], list[int]]:
    """H(x) r^e and r for each key."""
    factors = [draw_unit(modulus, randomness) for _ in keys]
    blinded = [
        full_domain_hash(key, modulus, domain=domain) * pow(factor, EXPONENT, modulus) % modulus
        for key, factor in zip(keys, factors, strict=True)
    ]
    return blinded, factors


def draw_unit(modulus: int, randomness: Randomness) -> int:
    """Uniform among the invertible numbers modulo N, by rejection."""
    size = width(modulus)
    excess = 8 * size - modulus.bit_length()
    while True:
        drawn = int.from_bytes(randomness.bytes(size), "big") >> excess
        if 0 < drawn < modulus and math.gcd(drawn, modulus) == 1:
            return drawn


def unblind(
    signed: Sequence[int], blinded: Sequence[int], factors: Sequence[int], modulus: int, *, domain: str
) -> list[bytes]:
    """The tags of one's own keys. A signature that does not verify is refused."""
    if any(pow(one, EXPONENT, modulus) != sent for one, sent in zip(signed, blinded, strict=True)):
        raise SecureError("a blind signature does not verify; align with the same version at every party.")
    return [
        tag(one * pow(factor, -1, modulus) % modulus, modulus, domain=domain)
        for one, factor in zip(signed, factors, strict=True)
    ]


def own_tags(keys: Sequence[bytes], signer: Signer, *, domain: str) -> list[bytes]:
    """The signer's tags of its own keys."""
    modulus = signer.modulus
    return [tag(signer.sign(full_domain_hash(key, modulus, domain=domain)), modulus, domain=domain) for key in keys]


def to_rows(numbers: Sequence[int], modulus: int) -> Numbers:
    size = width(modulus)
    raw = b"".join(number.to_bytes(size, "big") for number in numbers)
    return np.frombuffer(raw, dtype=np.uint8).reshape(len(numbers), size)


def from_rows(rows: object, modulus: int, *, count: int) -> list[int]:
    """Numbers as they arrived, each below the modulus."""
    if not isinstance(rows, np.ndarray) or rows.dtype != np.uint8 or rows.shape != (count, width(modulus)):
        raise SecureError("a list of numbers has another form than agreed; align with the same version.")
    numbers = [int.from_bytes(row.tobytes(), "big") for row in rows]
    if any(number >= modulus for number in numbers):
        raise SecureError("a number is not below its modulus; align with the same version at every party.")
    return numbers
