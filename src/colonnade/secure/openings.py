"""Values at the holders' points that must lie on polynomials of a known degree: whether they do, and who lied.

Two polynomials of degree d that agree at d + 1 points are equal. So of m opened values, m - d - 1 are redundant, and
liars that are at most that many cannot shift the values unseen. They are named where the honest values outvote
every other explanation (`culprits`). Degree t among m >= 2t + 1 holders always shows up to t liars; degree 2t shows
them from m >= 3t + 1 on. A holder that is named has lied or was dealt a wrong share, so dealings are checked first.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import combinations
from typing import NamedTuple

import numpy as np

from colonnade.errors import TooFewHolders
from colonnade.secure.field import Field, Residues
from colonnade.secure.shamir import interpolate


class Opening(NamedTuple):
    """What was opened: `values` at the point, or None if someone lied and cannot be named; and who is named."""

    values: Residues | None
    liars: tuple[int, ...]


def consistent(field: Field, shares: Mapping[int, Residues], *, degree: int) -> bool:
    """Whether every entry lies on a polynomial of this degree; `shares[i]` are the values at x = i + 1."""
    order = sorted(shares)
    if len(order) < degree + 1:
        raise TooFewHolders(f"degree {degree} needs {degree + 1} values and {len(order)} came: wait for more holders.")
    basis = {holder: shares[holder] for holder in order[: degree + 1]}
    return all(
        np.array_equal(interpolate(field, basis, degree=degree, point=holder + 1), shares[holder])
        for holder in order[degree + 1 :]
    )


def culprits(field: Field, shares: Mapping[int, Residues], *, degree: int, threshold: int) -> tuple[int, ...] | None:
    """The holders that lied: () if no one did, None if someone did and cannot be named.

    At most t of the m holders lie. If the values without those of a set S of s holders are consistent, the polynomial
    through them agrees with the true one at m - s - t points at least; from degree + 1 on they are equal, so every
    member of the smallest such S differs from the truth.
    """
    if len(shares) < degree + 1 + threshold:
        raise TooFewHolders(
            f"{len(shares)} values of degree {degree} do not show {threshold} lies: {degree + 1 + threshold} do."
        )
    most = min(threshold, len(shares) - threshold - degree - 1)
    for size in range(most + 1):
        for suspects in combinations(sorted(shares), size):
            others = {holder: values for holder, values in shares.items() if holder not in suspects}
            if consistent(field, others, degree=degree):
                return suspects
    return None


def check_opening(field: Field, shares: Mapping[int, Residues], *, degree: int, threshold: int) -> Opening:
    """The value at 0 of what the holders opened, without the lies of those that are named."""
    liars = culprits(field, shares, degree=degree, threshold=threshold)
    if liars is None:
        return Opening(None, ())
    others = {holder: values for holder, values in shares.items() if holder not in liars}
    return Opening(interpolate(field, others, degree=degree), liars)
