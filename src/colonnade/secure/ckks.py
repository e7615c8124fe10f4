"""CKKS for sums: encrypt vectors of floats under one member's public key, add ciphertexts, decrypt with its secret key.

The adder needs the public part only and can read nothing. The arithmetic is TenSEAL's (Microsoft SEAL). We add and
never multiply, so one prime of 60 bits carries the data and a second is the special prime that SEAL always keeps.

Security: with ternary secrets, the Homomorphic Encryption Standard (2018) bounds the bits of the whole modulus for each
ring degree at 128-bit security; `check_parameters` refuses anything above. Here: degree 8192, 120 of at most 218 bits.

Precision: at scale 2^40 a decrypted sum of a few vectors is off by less than `PRECISION` for values up to `BOUND`
(measured 2e-8). CKKS is not exact, and its decryptions carry the noise of the key: they must not be shown to someone
who lacks the secret key and has the ciphertext (Li and Micciancio, Eurocrypt 2021). What we build on it never does.

Every ciphertext ends in a check value, so that a wrong key is an error and not a number.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from colonnade.errors import SecureError

DEGREE = 8192
MODULUS_BITS = (60, 60)
SCALE_BITS = 40
BOUND = 2.0**15
PRECISION = 1e-6

MOST_BITS = {1024: 27, 2048: 54, 4096: 109, 8192: 218, 16384: 438, 32768: 881}
"""Largest modulus, in bits, of each ring degree at 128-bit classical security (Homomorphic Encryption Standard)."""

_CHECK = 1.0
SLOTS = DEGREE // 2
VALUES = SLOTS - 1
"""Values in one ciphertext, beside its check value."""


def check_parameters(degree: int, modulus_bits: Sequence[int]) -> None:
    """Refuse parameters below 128 bits of security."""
    if degree not in MOST_BITS:
        raise SecureError(f"the ring degree must be one of {', '.join(map(str, MOST_BITS))}, not {degree}.")
    if sum(modulus_bits) > MOST_BITS[degree]:
        raise SecureError(
            f"a modulus of {sum(modulus_bits)} bits at degree {degree} has less than 128 bits of security; at most"
            f" {MOST_BITS[degree]} bits are allowed: use a larger degree or fewer primes."
        )


@functools.cache
def _tenseal() -> Any:
    try:
        import tenseal
    except ImportError as error:
        raise SecureError("masking='ckks' needs tenseal; install colonnade[completion].") from error
    return tenseal


def ready() -> None:
    """Raise, if what encrypts is not installed here. Better asked before a job than in it."""
    _tenseal()


class SecretKey:
    """A key pair and what belongs to it. `to_bytes` is for the owner's own store: it contains the secret."""

    def __init__(self, context: Any) -> None:
        self._context = context

    @classmethod
    def generate(cls) -> SecretKey:
        """From the operating system's generator, by SEAL."""
        check_parameters(DEGREE, MODULUS_BITS)
        ts = _tenseal()
        context = ts.context(
            ts.SCHEME_TYPE.CKKS, poly_modulus_degree=DEGREE, coeff_mod_bit_sizes=list(MODULUS_BITS), n_threads=1
        )
        context.global_scale = 2.0**SCALE_BITS
        return cls(context)

    def to_bytes(self) -> bytes:
        return bytes(
            self._context.serialize(
                save_public_key=True, save_secret_key=True, save_galois_keys=False, save_relin_keys=False
            )
        )

    @classmethod
    def from_bytes(cls, data: bytes) -> SecretKey:
        context = _loaded(data)
        if not context.is_private():
            raise SecureError("this is a public key; decrypting needs the secret key, which stays with its owner.")
        return cls(context)

    @property
    def public(self) -> PublicKey:
        return PublicKey.from_bytes(
            bytes(
                self._context.serialize(
                    save_public_key=True, save_secret_key=False, save_galois_keys=False, save_relin_keys=False
                )
            )
        )

    def decrypt(self, ciphertexts: Sequence[bytes], *, size: int, summands: int) -> NDArray[np.float64]:
        """The sum of `summands` encrypted vectors of `size` values; another key's ciphertexts are an error."""
        if len(ciphertexts) != pieces(size):
            raise SecureError(f"{size} values come in {pieces(size)} ciphertexts, not {len(ciphertexts)}.")
        sums = []
        for number, data in enumerate(ciphertexts):
            plain = np.array(_vector(self._context, data).decrypt())
            wanted = min(VALUES, size - number * VALUES)
            if plain.size != wanted + 1 or not abs(plain[-1] - summands * _CHECK) < 1e-3:
                raise SecureError(
                    f"a ciphertext does not open to a sum of {summands} vectors under this key: it was made for another"
                    " key, or a summand is missing; exchange the public keys again."
                )
            sums.append(plain[:-1])
        return np.concatenate(sums) if sums else np.zeros(0)


class PublicKey:
    """Encrypts, and adds what was encrypted. It cannot decrypt."""

    def __init__(self, context: Any, data: bytes) -> None:
        self._context = context
        self._data = data

    @classmethod
    def from_bytes(cls, data: bytes) -> PublicKey:
        context = _loaded(data)
        if context.is_private():
            raise SecureError("this key contains its secret; never hand it out: send SecretKey.public instead.")
        return cls(context, data)

    def to_bytes(self) -> bytes:
        return self._data

    def encrypt(self, values: NDArray[np.floating[Any]]) -> list[bytes]:
        """Ciphertexts of `VALUES` values each; values are clipped to `BOUND`, and what is not finite becomes it."""
        ts = _tenseal()
        flat = np.clip(np.nan_to_num(values.reshape(-1).astype(np.float64), nan=BOUND), -BOUND, BOUND)
        return [
            bytes(ts.ckks_vector(self._context, [*flat[start : start + VALUES].tolist(), _CHECK]).serialize())
            for start in range(0, flat.size, VALUES)
        ]

    def add(self, summands: Sequence[Sequence[bytes]]) -> list[bytes]:
        """Piece by piece. It cannot be verified that it was done right, and the adder cannot read it."""
        if not summands or len({len(vector) for vector in summands}) != 1:
            raise SecureError("encrypted vectors to be added must have one size; check the step's arguments.")
        if len(summands) == 1:
            return list(summands[0])
        totals = []
        for each in zip(*summands, strict=True):
            total = _vector(self._context, each[0])
            for data in each[1:]:
                total += _vector(self._context, data)
            totals.append(bytes(total.serialize()))
        return totals


def pieces(size: int) -> int:
    """Ciphertexts that `size` values take."""
    return -(-size // VALUES)


def _loaded(data: bytes) -> Any:
    try:
        context = _tenseal().context_from(data, n_threads=1)
        scale = context.global_scale
    except (ValueError, RuntimeError, TypeError) as error:
        raise SecureError(f"these bytes are no CKKS key ({error}); exchange the keys again.") from None
    key = context.seal_context().data.key_context_data()
    degree, bits = int(key.parms().poly_modulus_degree()), int(key.total_coeff_modulus_bit_count())
    check_parameters(degree, [bits])
    if (degree, scale) != (DEGREE, 2.0**SCALE_BITS) or abs(bits - sum(MODULUS_BITS)) > len(MODULUS_BITS):
        raise SecureError("this CKKS key has other parameters than ours; install the same version at every party.")
    return context


def _vector(context: Any, data: bytes) -> Any:
    try:
        return _tenseal().ckks_vector_from(context, data)
    except (ValueError, RuntimeError, TypeError) as error:
        raise SecureError(f"these bytes are no CKKS ciphertext ({error}); send what `encrypt` returned.") from None
