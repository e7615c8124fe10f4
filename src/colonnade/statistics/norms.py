"""Rows of numbers that are proven to be within their norm, record by record.

For a row x of integers with |x|^2 <= B^2, its owner deals two numbers more: a, the integer next to the square root of
B^2 - |x|^2, and what is left, d = B^2 - |x|^2 - a^2, at most B in size. One inner product for all records proves
|x|^2 + a^2 + d = B^2 modulo each prime. Entries, roots and rests are shown to be small (`secure.sizes`), so that it
holds for integers, and a^2 >= 0 and |d| <= 2S give

    |x|^2 <= B^2 + 2S,    S about 6.7 sqrt(n) B:

the norm up to the factor `slack`, which is near 1 unless there are very many records or gamma is small.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from colonnade.secure.claims import Factors, square_factors
from colonnade.secure.extension import Extension
from colonnade.secure.field import Residues
from colonnade.secure.sizes import sum_bound

ROOTS = 2
"""Columns that a party deals beside its rows."""


@dataclass(frozen=True)
class Norm:
    """Of one party's rows: `masks` columns that are gamma or 0, then `width` features, whose squared norm is at most
    `square`."""

    records: int
    masks: int
    width: int
    gamma: int
    square: int

    @cached_property
    def largest(self) -> tuple[int, ...]:
        """The largest honest entry of each column: of masks, features, the root and the rest."""
        root = math.isqrt(self.square) + 1
        return (*[self.gamma] * self.masks, *[min(self.gamma, root)] * self.width, root, root)

    @cached_property
    def _bounds(self) -> list[int]:
        """What each entry is shown to be within."""
        return [2 * sum_bound(self.records, largest) for largest in self.largest]

    @property
    def modulus_bits(self) -> int:
        """So that the claim cannot wrap around."""
        *entries, rest = self._bounds[self.masks :]
        return (sum(bound**2 for bound in entries) + rest + self.square).bit_length()

    @property
    def slack(self) -> float:
        """By how much a row may exceed its norm."""
        return math.sqrt(1 + self._bounds[-1] / max(1, self.square))

    def roots(self, rows: NDArray[np.integer[Any]]) -> NDArray[np.int64]:
        """The root and the rest of each record, (records, 2). A row that is too long has a rest that is too large."""
        features = rows[:, self.masks :].astype(np.int64)
        below = self.square - np.einsum("ij,ij->i", features, features)
        root = np.rint(np.sqrt(np.maximum(below, 0))).astype(np.int64)
        return np.column_stack([root, below - root**2])

    def claim(self, extension: Extension, columns: Residues, psi: Residues) -> tuple[Factors, Residues]:
        """sum_r psi_r^2 (|x_r|^2 + a_r^2) = sum_r psi_r^2 (B^2 - d_r), for a block (primes, records, all columns)."""
        squared, chi = columns[:, :, self.masks : -1], extension.mul(psi, psi)
        repeated, flat = np.repeat(psi, squared.shape[2], axis=1), squared.reshape(len(squared), -1)
        all_of_it = extension.field.scale(extension.sum(chi), self.square)
        value = extension.sub(all_of_it, extension.combine(columns[:, :, -1], chi))
        return square_factors(extension, flat, repeated), value
