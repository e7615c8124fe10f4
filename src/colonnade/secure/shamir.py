"""Shamir's secret sharing: m holders, any t of them learn nothing, any t + 1 together know the secret.

The secret is the value at 0 of a polynomial that is uniform among those of degree at most t; holder j (from 0)
gets its value at x = j + 1. Each prime has its own polynomial.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from colonnade.errors import SecureError, TooFewHolders
from colonnade.privacy.randomness import Randomness
from colonnade.secure.field import Field, Residues, fill_uniform

_CHUNK = 1 << 15


def share(
    field: Field,
    values: ArrayLike,
    *,
    holders: int,
    threshold: int,
    randomness: Randomness,
    degree: int | None = None,
) -> list[Residues]:
    """Shares of integers, one array for each holder. `degree` is `threshold` unless stated (noise: 2t)."""
    return share_residues(
        field, field.encode(values), holders=holders, threshold=threshold, randomness=randomness, degree=degree
    )


def share_residues(
    field: Field,
    secret: Residues,
    *,
    holders: int,
    threshold: int,
    randomness: Randomness,
    degree: int | None = None,
) -> list[Residues]:
    """`share` for field elements that are already residues (a holder's own share, when it is shared again).

    The polynomial is drawn in Newton's form f(x) = s + sum_i D_i C(x, i). From (D_1, ..., D_t) to the usual
    coefficients is a triangular map with diagonal 1 / i!, invertible modulo p > t, so uniform D_i make f
    uniform; and f(1), f(2), ... follow from the D_i by additions alone.
    """
    degree = threshold if degree is None else degree
    check_holders(holders, threshold)
    if not threshold <= degree < holders < min(field.primes):
        raise TooFewHolders(
            f"a sharing of degree {degree} among {holders} holders is impossible or unsafe: the degree must be at "
            f"least the threshold {threshold} and below the number of holders."
        )
    flat = np.ascontiguousarray(secret).reshape(len(field.primes), -1).view(np.uint32)
    size = flat.shape[1]
    out = [np.empty_like(flat) for _ in range(holders)]
    for k, p in enumerate(field.primes):
        prime = np.uint32(p)
        for start in range(0, size, _CHUNK):
            piece = slice(start, min(start + _CHUNK, size))
            differences = np.empty((degree + 1, piece.stop - piece.start), dtype=np.uint32)
            differences[0] = flat[k, piece]
            fill_uniform(differences[1:].reshape(-1).view(np.int32), p, randomness)
            for target in out:
                step = differences[:-1] + differences[1:]  # f(x + 1) = f(x) + D f(x), and so for each difference
                np.minimum(step, step - prime, out=differences[:-1])
                target[k, piece] = differences[0]
    return [array.view(np.int32).reshape(secret.shape) for array in out]


def reconstruct(field: Field, shares: Mapping[int, Residues], *, degree: int) -> NDArray[Any]:
    """The shared integers, from at least degree + 1 holders' shares.

    Every further share must lie on the same polynomials; otherwise one of the shares is wrong and nothing is
    returned. With exactly degree + 1 shares a wrong one cannot be noticed.
    """
    return field.decode(interpolate(field, shares, degree=degree))


def interpolate(field: Field, shares: Mapping[int, Residues], *, degree: int, point: int = 0) -> Residues:
    """The value at x = `point` of the polynomials on which the shares lie, as residues; a surplus is verified."""
    if degree < 0 or len(shares) < degree + 1:
        raise TooFewHolders(f"degree {degree} needs {degree + 1} shares and {len(shares)} came: wait for more holders.")
    _check_shares(field, shares)
    order = sorted(shares)
    used = order[: degree + 1]
    for surplus in order[degree + 1 :]:
        if not np.array_equal(_combine(field, shares, used, point=surplus + 1), shares[surplus]):
            raise SecureError(
                f"the shares of holders {order} do not lie on one polynomial of degree {degree}: one of them is wrong "
                "or belongs to another sharing; ask the holders to start the job again."
            )
    return _combine(field, shares, used, point=point)


def lagrange_weights(p: int, points: Sequence[int], *, point: int = 0) -> list[int]:
    """w_i with f(point) = sum_i w_i f(x_i) modulo p, for every polynomial of degree below the number of points."""
    weights = []
    for i, x in enumerate(points):
        numerator = denominator = 1
        for j, other in enumerate(points):
            if i != j:
                numerator = numerator * (point - other) % p
                denominator = denominator * (x - other) % p
        weights.append(numerator * pow(denominator, -1, p) % p)
    return weights


def check_holders(holders: int, threshold: int) -> None:
    """m >= 2t + 1 (a product has degree 2t), m >= 3 and t >= 1."""
    if threshold < 1 or holders < max(3, 2 * threshold + 1):
        raise TooFewHolders(
            f"{holders} share holders cannot have threshold {threshold}: take at least {max(3, 2 * threshold + 1)} "
            "holders of different organisations and a threshold of at least 1."
        )


def _combine(field: Field, shares: Mapping[int, Residues], used: Sequence[int], *, point: int) -> Residues:
    points = [holder + 1 for holder in used]
    by_prime = np.array([lagrange_weights(p, points, point=point) for p in field.primes], dtype=np.int32)
    total = np.zeros_like(shares[used[0]])
    for i, holder in enumerate(used):
        weight = by_prime[:, i].reshape(-1, *[1] * (total.ndim - 1))
        total = field.add(total, field.mul(shares[holder], weight))
    return total


def _check_shares(field: Field, shares: Mapping[int, Residues]) -> None:
    shapes = {array.shape for array in shares.values()}
    if len(shapes) != 1 or min(shares) < 0 or max(shares) + 1 >= min(field.primes):
        raise SecureError(
            f"shares of holders {sorted(shares)} have shapes {sorted(shapes)}: they must be of one sharing."
        )
    for array in shares.values():
        field.check(array)
