"""Curve25519 by plain integers, as RFC 7748 prints it: slow, and nothing like the library's."""

from __future__ import annotations

PRIME = 2**255 - 19
ORDER = 2**252 + 27742317777372353535851937790883648493
A = 486662


def on_curve(x: int) -> bool:
    """Euler's criterion; (0, 0) is left out."""
    return x < PRIME and pow(x**3 + A * x**2 + x, (PRIME - 1) // 2, PRIME) == 1


def multiple(x: int, k: int) -> int | None:
    """The x coordinate of k times a point with this x, by the ladder; None is the point at infinity."""
    x2, z2, x3, z3 = 1, 0, x, 1
    for bit in bin(k)[2:]:
        if bit == "1":
            x2, z2, x3, z3 = x3, z3, x2, z2
        a, b, c, d = x2 + z2, x2 - z2, x3 + z3, x3 - z3
        da, cb, aa, bb = d * a % PRIME, c * b % PRIME, a * a % PRIME, b * b % PRIME
        e = aa - bb
        x3, z3 = (da + cb) ** 2 % PRIME, x * (da - cb) ** 2 % PRIME
        x2, z2 = aa * bb % PRIME, e * (aa + (A - 2) // 4 * e) % PRIME
        if bit == "1":
            x2, z2, x3, z3 = x3, z3, x2, z2
    return x2 * pow(z2, -1, PRIME) % PRIME if z2 else None


def in_group(element: bytes) -> bool:
    """Whether a point of the curve, of prime order, is written here."""
    x = int.from_bytes(element, "little")
    return on_curve(x) and multiple(x, ORDER) is None
