"""What a holder or a dealer has to prove, as one inner product over K = GF(p^3).

Each function takes one member's values or shares (primes, n, w) and public random elements of K that were drawn after
the values were fixed. It gives `Factors`, whose inner product is the left side of a claim, or the weights with which
the opened or dealt values are added up to its right side (`Extension.combine`). All are linear in the shares, so
that every holder computes its shares of the factors and of the right side by itself.

- A cross product: u' (A' B) v = sum_r (a_r u) (b_r v). If two matrices differ, u' . v differs for random u, v but for a
  chance of 2 / |K|. A Gram matrix is symmetric and opened as a triangle: u' (A' A) u will do, a polynomial of degree 2.
- Products that were dealt again, z_r = x_r y_r: sum_r chi_r x_r y_r = sum_r chi_r z_r (1 / |K|).
- One-hot rows: (x u)^2 equals x (u^2) for random u exactly if x_i x_j = 0 for i != j and x_i^2 = x_i, that is, if x has
  at most one entry other than 0 and that entry is 1. Groups of columns with a u of their own are added: no term of one
  is in another. With the weights psi_r^2 of the records it is a polynomial of degree 4 (4 / |K|).
- Several claims: the sum of the claims times random coefficients, in which the factors are concatenated (1 / |K|).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from colonnade.secure.extension import DEGREE, Extension
from colonnade.secure.field import Residues


class Factors(NamedTuple):
    """Two vectors over K, (primes, n, 3) each."""

    left: Residues
    right: Residues


# --- Gram matrices and cross products ---------------------------------------------------------------------------


def gram_factors(extension: Extension, rows: Residues, u: Residues) -> Factors:
    """Of u' (X' X) u, for a block of records (primes, n, w)."""
    projected = extension.project(rows, u)
    return Factors(projected, projected)


def gram_weights(extension: Extension, u: Residues) -> Residues:
    """Of the upper triangle, row by row: 2 u_i u_j, on the diagonal u_i u_i; (primes, w (w + 1) / 2, 3)."""
    i, j = np.triu_indices(u.shape[1])
    weights = extension.mul(u[:, i], u[:, j])
    return extension.add(weights, np.where((i == j)[:, None], 0, weights).astype(np.int32))


def cross_factors(extension: Extension, left: Residues, right: Residues, u: Residues, v: Residues) -> Factors:
    """Of u' (A' B) v, for the same records in both."""
    return Factors(extension.project(left, u), extension.project(right, v))


def cross_weights(extension: Extension, u: Residues, v: Residues) -> Residues:
    """Of the entries of A' B, row by row: u_i v_j; (primes, w_A w_B, 3)."""
    table = extension.mul(u[:, :, None], v[:, None, :])
    return table.reshape(len(table), -1, DEGREE)


# --- element by element -----------------------------------------------------------------------------------------


def product_factors(extension: Extension, x: Residues, y: Residues, chi: Residues) -> Factors:
    """Of sum_r chi_r x_r y_r, for (primes, n); the right side is `combine(z, chi)`. With y = x = z: bits, x^2 = x."""
    return Factors(extension.field.mul(chi, x[..., None]), extension.embed(y))


def square_factors(extension: Extension, x: Residues, psi: Residues) -> Factors:
    """Of sum_r psi_r^2 x_r^2, for (primes, n); the right side is `combine(z, psi^2)`. It is a polynomial of degree 2 in
    psi, so that a false claim holds with a chance of 2 / |K|."""
    scaled = extension.field.mul(psi, x[..., None])
    return Factors(scaled, scaled)


def one_hot_factors(
    extension: Extension, rows: Residues, u: Residues, psi: Residues, groups: Sequence[slice] | None = None
) -> Factors:
    """Of sum_r psi_r^2 sum_g (x_rg u_g)^2, for the indicators (primes, n, k) of one column or of `groups`."""
    projected = extension.project_groups(rows, u, groups or [slice(0, rows.shape[2])])
    scaled = extension.mul(projected, psi[:, :, None]).reshape(len(rows), -1, DEGREE)
    return Factors(scaled, scaled)


def one_hot_value(extension: Extension, rows: Residues, u: Residues, psi: Residues) -> Residues:
    """The right side: sum_r psi_r^2 x_r (u^2), (primes, 3); for the indicators of several columns, of their sum."""
    return extension.inner(extension.project(rows, extension.mul(u, u)), extension.mul(psi, psi))


# --- several claims in one --------------------------------------------------------------------------------------


def combined(
    extension: Extension, factors: Sequence[Factors], coefficients: Residues
) -> tuple[list[Residues], list[Residues]]:
    """The pieces of the two factors of sum_s coefficients_s claim_s; (primes, s, 3) coefficients."""
    left = [extension.scale(claim.left, coefficients[:, s]) for s, claim in enumerate(factors)]
    return left, [claim.right for claim in factors]


def combined_value(extension: Extension, values: Sequence[Residues], coefficients: Residues) -> Residues:
    """The right side of the same sum, from the right sides (primes, 3)."""
    return extension.inner(np.stack(values, axis=1), coefficients)
