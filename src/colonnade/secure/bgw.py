"""The BGW protocol on Shamir shares: what each holder computes, without the network.

Sums and public factors act on shares directly. A product of two shares lies on a polynomial of degree 2t that
is **not** uniform: it factors into the inputs' polynomials. So a `Product` does not show its residues, and
leaves a holder in one of two ways only:

- `reshare`, and `recombine` at the receivers: a fresh sharing of degree t, ready for the next product;
- `open_product`: after the fresh degree-2t sharings of **every** party's noise were added. A party that adds no
  noise sends a fresh degree-2t sharing of zero; it is required all the same.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from colonnade.errors import PartyLost, SecureError
from colonnade.privacy.randomness import Randomness
from colonnade.secure.field import Field, Residues, transpose
from colonnade.secure.seeded import ResidueDealing, deal_residues
from colonnade.secure.shamir import interpolate, share, share_residues


@dataclass(frozen=True, eq=False, repr=False)
class Product:
    """One holder's share of a sum of products, of degree 2t. See the module: it is not for opening as it is."""

    field: Field
    _residues: Residues

    @property
    def shape(self) -> tuple[int, ...]:
        return self._residues.shape[1:]

    def __add__(self, other: Product) -> Product:
        return Product(self.field, self.field.add(self._residues, other._residues))

    def scale(self, factor: int) -> Product:
        """Times a public integer."""
        return Product(self.field, self.field.scale(self._residues, factor))

    def sum(self, *, axis: int = 0) -> Product:
        """The sum over an axis (0: records)."""
        return Product(self.field, self.field.sum(self._residues, axis=axis))

    @staticmethod
    def stack(products: Sequence[Product]) -> Product:
        """Products of one shape as one, along a new first axis."""
        return Product(products[0].field, np.stack([product._residues for product in products], axis=1))

    @staticmethod
    def in_rows(products: Sequence[Product], width: int) -> Product:
        """The entries of several products one after the other, in rows of this width; zeros fill the last one."""
        entries = [product._residues.reshape(len(product._residues), -1) for product in products]
        rest = -sum(part.shape[1] for part in entries) % width
        field = products[0].field
        return Product(
            field, np.concatenate([*entries, field.zeros((rest,))], axis=1).reshape(len(field.primes), -1, width)
        )

    @staticmethod
    def beside(products: Sequence[Product]) -> Product:
        """Products of one shape as one, along their last axis."""
        return Product(products[0].field, np.concatenate([product._residues for product in products], axis=-1))

    def part(self, rows: slice, columns: slice) -> Product:
        """Some rows and columns of a matrix of products, or of each of several."""
        return Product(self.field, self._residues[..., rows, columns])

    def flat(self) -> Product:
        """The entries of a matrix, or of each of several, in one row."""
        return Product(self.field, self._residues.reshape(*self._residues.shape[:-2], -1))

    def mapped(self, matrix: NDArray[np.integer[Any]]) -> Product:
        """Each row of entries times the transpose of a public integer matrix."""
        return Product(self.field, self.field.matmul(self._residues, transpose(self.field.encode(matrix))))

    def symmetric(self) -> Product:
        """(A + A^T) / 2 of a matrix. If what it opens to is symmetric, that is the same, and now each share is."""
        field, halves = self.field, np.array([(p + 1) // 2 for p in self.field.primes], dtype=np.int32)
        doubled = field.add(self._residues, np.swapaxes(self._residues, 1, 2))
        return Product(field, field.mul(doubled, halves[:, None, None]))

    def combined(self, weights: Residues) -> Product:
        """The sums of all rows of entries with public weights, (primes, sums, rows)."""
        return Product(self.field, self.field.matmul(np.ascontiguousarray(weights), self._residues))

    def upper(self) -> Product:
        """The upper triangle of a Gram matrix (or of each), row by row: its entries are released once."""
        rows, columns = np.triu_indices(self.shape[-1])
        return Product(self.field, self._residues[..., rows, columns])


class GroupSums:
    """Products summed by group, as they come: (group, entry)."""

    def __init__(self, field: Field, groups: int, entries: int) -> None:
        self.field, self._totals = field, field.zeros((groups, entries))

    def add(self, groups: NDArray[np.intp], products: Product) -> None:
        """`products` has a row for each of these groups, which are distinct."""
        self._totals[:, groups] = self.field.add(self._totals[:, groups], products._residues)

    @property
    def product(self) -> Product:
        return Product(self.field, self._totals)


# --- what a holder computes alone ----------------------------------------------------------------------------


def multiply(field: Field, a: Residues, b: Residues) -> Product:
    """Element by element."""
    return Product(field, field.mul(a, b))


def gram(field: Field, a: Residues, *, tile: int = 1024) -> Product:
    """A^T A: sums of products over the records, in one level."""
    return Product(field, field.gram(a, tile=tile))


def gram_of(field: Field, parts: Sequence[Residues]) -> Product:
    """The same of a block of records whose columns come in parts."""
    return Product(field, field.gram_of(parts))


def segments(field: Field, a: Residues, b: Residues, cuts: NDArray[np.intp]) -> Product:
    """A^T B within each run of records between `cuts`."""
    return Product(field, field.segments(a, b, cuts))


def cross(field: Field, a: Residues, b: Residues) -> Product:
    """A^T B."""
    return Product(field, field.matmul(transpose(a), b))


def lift(field: Field, a: Residues) -> Product:
    """A share of degree t as one of degree 2t, so that it can be added to products and opened with noise."""
    return Product(field, a)


# --- degree reduction ----------------------------------------------------------------------------------------


def reshare(product: Product, *, holders: int, threshold: int, randomness: Randomness) -> list[Residues]:
    """What this holder sends to each holder: a fresh sharing, of degree t, of its own product share."""
    return share_residues(product.field, product._residues, holders=holders, threshold=threshold, randomness=randomness)


def reshare_seeded(
    product: Product, *, holders: int, threshold: int, randomness: Randomness, first: int
) -> ResidueDealing:
    """`reshare` of (records, width) products, of which t holders from `first` on get no more than a seed."""
    sharing: dict[str, Any] = {"holders": holders, "threshold": threshold, "randomness": randomness, "first": first}
    return deal_residues(product.field, product._residues, **sharing)


def recombine(field: Field, received: Mapping[int, Residues], *, threshold: int) -> Residues:
    """This holder's share, of degree t, of the product; `received[i]` came from holder i.

    The product at 0 is a fixed linear combination of 2t + 1 product shares, and the same combination of their
    sharings is a sharing of it. Every holder must combine the same holders' messages.
    """
    # Not a consistency check: the messages are values of unrelated polynomials, so all of them are combined.
    return interpolate(field, received, degree=max(len(received) - 1, 2 * threshold))


# --- opening -------------------------------------------------------------------------------------------------


def noise_sharing(
    field: Field, noise: ArrayLike, *, holders: int, threshold: int, randomness: Randomness
) -> list[Residues]:
    """A party's fresh degree-2t sharing of its noise (zeros where the noise is off), for one opening only."""
    return share(field, noise, holders=holders, threshold=threshold, randomness=randomness, degree=2 * threshold)


def blinded_noise(
    field: Field, noise: ArrayLike, *, holders: int, threshold: int, randomness: Randomness
) -> list[Residues]:
    """A party's noise e and t uniform blinds s_1, ..., s_t, shared with degree t: (primes, t + 1, *shape) each.

    `noise_term` makes of them a share of degree 2t, for one opening only. Unlike a sharing dealt with degree 2t,
    t + 1 honest holders determine every holder's term.
    """
    values = field.encode(noise)
    blinds = field.uniform((threshold, *values.shape[1:]), randomness)
    secrets = np.concatenate([values[:, None], blinds], axis=1)
    return share_residues(field, secrets, holders=holders, threshold=threshold, randomness=randomness)


def noise_term(field: Field, shares: Residues, *, holder: int) -> Residues:
    """e + sum_i j^i s_i at the point j = holder + 1, from shares (primes, t + 1, ...) of the noise and its blinds.

    With the holder's own shares it is what this holder adds to its product: the value at j of the polynomial
    e(x) + sum_i x^i s_i(x), uniform of degree 2t with the noise at 0. With another holder's shares it is that holder's
    share, of degree t, of the same number: j is then a constant.
    """
    total = field.zeros(shares.shape[2:])
    for power in range(shares.shape[1] - 1, -1, -1):
        total = field.add(field.scale(total, holder + 1), shares[:, power])
    return total


def open_product(product: Product, *, noise: Mapping[str, Residues], parties: Sequence[str]) -> Residues:
    """What this holder may send to the member that opens: its product share plus every roster party's noise share.

    The opener takes `shamir.reconstruct(field, {holder: sent}, degree=2 * threshold)`.
    """
    missing = [party for party in parties if party not in noise]
    if missing or not parties:
        raise PartyLost(
            f"no noise sharing came from {', '.join(map(repr, missing)) or 'any party'}: a product is opened only with "
            "the noise of every party of the roster; wait for it, or start again with the others."
        )
    strangers = sorted(set(noise) - set(parties))
    if strangers or len(set(parties)) != len(parties):
        raise SecureError(
            f"noise from {strangers} for the roster {list(parties)}: each roster party gives one sharing."
        )
    total = product._residues
    for party in parties:
        if noise[party].shape != total.shape:
            raise SecureError(
                f"the noise of {party!r} has shape {noise[party].shape} and the product {total.shape}: each entry "
                "needs noise of its own."
            )
        product.field.check(noise[party])
        total = product.field.add(total, noise[party])
    return total
