"""The public primes of the field arithmetic, and how many of them a job needs.

A whole number v with |v| <= (M - 1) / 2 is represented by its residues modulo several primes whose product
is M (a residue number system). All primes lie just below 2^21: a centred residue is at most 2^20 in size,
so float64 adds 4096 products of two of them without rounding (`field`).
"""

from __future__ import annotations

import math

from colonnade.errors import ModulusTooSmall, SecureError

PRIME_BITS = 21

#: The 16 largest primes below 2^21, largest first. Public and fixed: every holder uses the same prefix.
PRIMES: tuple[int, ...] = (
    *(2097143, 2097133, 2097131, 2097097, 2097091, 2097083, 2097047, 2097041),
    *(2097031, 2097023, 2097013, 2096993, 2096987, 2096971, 2096959, 2096957),
)


def primes_for(bits: int) -> tuple[int, ...]:
    """The fewest primes that represent every whole number of size at most 2^bits, of either sign.

    M is odd, so M > 2^(bits + 1) gives (M - 1) / 2 >= 2^bits.
    """
    if bits < 0:
        raise SecureError(f"bits must be at least 0, not {bits}; give the bit length of the largest result.")
    for count in range(1, len(PRIMES) + 1):
        if math.prod(PRIMES[:count]) > 2 ** (bits + 1):
            return PRIMES[:count]
    raise ModulusTooSmall(
        f"the result needs {bits} bits and a sign, and the {len(PRIMES)} public primes hold "
        f"{math.prod(PRIMES).bit_length() - 2}: use a coarser quantisation or a polynomial of lower degree."
    )


def is_prime(number: int) -> bool:
    """Trial division: enough for numbers below 2^21."""
    return number >= 2 and all(number % divisor for divisor in range(2, math.isqrt(number) + 1))


def mixed_radix_inverses(primes: tuple[int, ...]) -> tuple[tuple[int, ...], ...]:
    """Row k: the inverses of p_0, ..., p_(k-1) modulo p_k, for Garner's form of the Chinese remainder theorem."""
    return tuple(tuple(pow(primes[j], -1, p) for j in range(k)) for k, p in enumerate(primes))
