"""A proof, on shares, that an inner product is what its owner says: a fully linear proof in zero knowledge.

After Boneh, Boyle, Corrigan-Gibbs, Gilboa and Ishai, "Zero-knowledge proofs on secret-shared data via fully linear
PCPs" (2019), for Shamir sharings of degree t among m >= 2t + 1 holders. Everything is over K = GF(p^3).

**The claim.** There are sharings a(x), b(x), d(x) of degree t: vectors of N elements, and one element. The prover is
holder j, whose own shares are to satisfy <a(j), b(j)> = d(j) + e (place j), or a dealer, whose secrets are to satisfy
it (place 0). d is shared by others (noise and its blinds); e is shared by the prover, with its secret at 0 (products
that it dealt again; all of the right side, if it is a dealer).

**The proof.** Cut a and b into L rows of M values (`Layout`). f_i is the polynomial with row i of a at the nodes
1, ..., M and a random mask at node 0, g_i that of b; l has a mask at 0, d + e at 1 and zeros at 2, ..., M. Then

    P = sum_i f_i g_i - l   has degree 2M,   and   P(1) + ... + P(M) = <a, b> - d - e,   which must be 0.

The prover deals P(0), P(2), ..., P(2M) (`prove`); P(1) is what makes the sum 0. Then a challenge r in K is drawn. All
holders open f_i(r), g_i(r), the part of l(r) with d, and P(r) plus the part of l(r) with e (`answer`): linear in the
shares they have, so shares of degree t, of which up to t lies show. At the prover's place it must hold that (`verdict`)

    sum_i f_i(r) g_i(r) = P(r) + l(r),

and a false P agrees in at most 2M points r of more than 2^62. The masks of f, g and d are sharings whose secrets no t
holders know: sums of what t + 1 holders dealt. Every prover uses its own share of them, so f_i(r) and g_i(r) are opened
once for all holders that prove. A dealer deals its masks itself: what is opened is of its own values. Masks serve one
challenge: with two points r, the difference would show the rows. If b is a (`Layout.square`: squares, a Gram matrix),
g_i is f_i, with the same mask, and half of that is dealt and opened.

Proofs of soundness and of zero knowledge are in `claim.md`.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import numba
import numpy as np
from numpy.typing import NDArray

from colonnade.errors import SecureError
from colonnade.secure.extension import DEGREE, Extension, extrapolation
from colonnade.secure.field import Residues
from colonnade.secure.openings import culprits
from colonnade.secure.shamir import interpolate

#: 2M / |K| < 2^-50 for M below this, and one BLAS call holds a row.
LARGEST_WIDTH = 2047
#: N M for which proving takes a few hundredths of a second.
CHEAP = 1 << 23
CHUNK = 1 << 18
"""Products that are in memory at a time."""

Vector = Residues | Iterable[Residues]
"""Elements (primes, N, 3), whole or as successive pieces (primes, n, 3)."""


@dataclass(frozen=True)
class Layout:
    """The public shape of a claim: `length` products in rows of `width`, of which the last is filled with zeros."""

    length: int
    width: int
    square: bool = False
    """Whether b is a."""

    def __post_init__(self) -> None:
        if self.length < 1 or not 1 <= self.width <= LARGEST_WIDTH:
            raise SecureError(
                f"a claim of {self.length} products in rows of {self.width}: there must be one product at least, and "
                f"rows have 1 to {LARGEST_WIDTH}."
            )

    @classmethod
    def balanced(cls, length: int, *, square: bool = False) -> Layout:
        """Rows of about sqrt(N) / 5: proving costs N M, opening 2 N / M, and products are cheaper than traffic. Where
        N M is small, longer ones: what is dealt and opened, 12 N / M + 6 M by three holders, is least at sqrt(2 N)."""
        width = max(math.isqrt(length) // 5, min(math.isqrt(2 * length), CHEAP // length), 1)
        return cls(length, min(width, LARGEST_WIDTH), square)

    @property
    def rows(self) -> int:
        return -(-self.length // self.width)

    @property
    def folds(self) -> int:
        """Elements that mask the rows of a and of b, and that are opened of them."""
        return self.rows if self.square else 2 * self.rows

    @property
    def proof(self) -> int:
        """Elements that a prover deals."""
        return 2 * self.width

    def masks(self, provers: int) -> int:
        """Elements that mask the rows, and the claim of each prover."""
        return self.folds + provers

    def answers(self, provers: int) -> int:
        """Elements that a holder opens."""
        return self.folds + 2 * provers


@dataclass(frozen=True, eq=False)
class Query:
    """The challenge r (`Extension.point`), drawn after all that is proven and every proof was dealt."""

    extension: Extension
    layout: Layout
    point: Residues

    @cached_property
    def row_weights(self) -> Residues:
        """(primes, M + 1, 3): f(r) from f(0), ..., f(M)."""
        return self.extension.lagrange_weights(self.layout.width + 1, self.point)

    @cached_property
    def proof_weights(self) -> Residues:
        """(primes, 2M, 3): P(r) from P(0), P(2), ..., P(2M), where P(1) = -P(2) - ... - P(M)."""
        weights = self.extension.lagrange_weights(2 * self.layout.width + 1, self.point)
        second = slice(2, self.layout.width + 1)
        weights[:, second] = self.extension.sub(weights[:, second], weights[:, 1:2])
        return np.delete(weights, 1, axis=1)


# --- the prover ---------------------------------------------------------------------------------------------------


def prove(extension: Extension, layout: Layout, a: Vector, b: Vector, *, masks: Residues, prover: int = 0) -> Residues:
    """What the prover deals, with its secret at 0 and degree t: P(0), P(2), ..., P(2M), (primes, 2M, 3).

    a, b and `masks` (primes, 2L + provers, 3) are the prover's values at its place; `prover` is its number among those
    that prove with these masks. The right side of the claim is that of a true one, <a, b>.
    """
    field, width = extension.field, layout.width
    _check(extension, masks, minimum=layout.folds + prover + 1)
    if layout.square and b is not a:
        raise SecureError("a claim about squares has one vector.")
    high = extrapolation(field, width + 1, width)
    sums = np.zeros((len(field.primes), 2 * DEGREE - 1, 2 * width + 1), dtype=np.int64)
    vectors = (a,) if layout.square else (a, b)
    start = 0
    for chunks in zip(*(_chunks(extension, layout, vector) for vector in vectors), strict=True):
        rows = slice(start, start + chunks[0].shape[1])
        start = rows.stop
        values: list[tuple[Residues, Residues]] = []
        for chunk, offset in zip(chunks, (0, layout.rows), strict=False):
            mask = masks[:, offset + rows.start : offset + rows.stop].transpose(0, 2, 1)
            if a is b and values:
                nodes, beyond = values[0][0].copy(), values[0][1]
                # g_i is f_i but for its mask, and (0 at all nodes but 1 at node 0) goes on as `high` says
                shift = field.sub(mask, nodes[..., 0])[..., None]
                beyond = field.add(beyond, field.mul(shift, high[:, None, None, 0]))
                nodes[..., 0] = mask
            else:
                nodes = np.empty((len(field.primes), DEGREE, chunk.shape[1], width + 1), dtype=np.int32)
                nodes[..., 0] = mask
                nodes[..., 1:] = chunk.transpose(0, 3, 1, 2)
                beyond = field.matmul(nodes.reshape(len(field.primes), -1, width + 1), high)
                beyond = beyond.reshape(*nodes.shape[:3], width)
            values.append((nodes, beyond))
        for layer, p in enumerate(field.primes):
            for part, columns in enumerate((slice(0, width + 1), slice(width + 1, None))):
                _add_products(values[0][part][layer], values[-1][part][layer], p, sums[layer, :, columns])
    return np.delete(_minus_claim(extension, layout, sums, masks[:, layout.folds + prover], high), 1, axis=1)


def _minus_claim(
    extension: Extension, layout: Layout, sums: NDArray[np.int64], mask: Residues, high: Residues
) -> Residues:
    """P = sum_i f_i g_i - l at 0, ..., 2M, from the coefficients of X^0, ..., X^4 of the sum."""
    field, width = extension.field, layout.width
    out = extension.reduced(sums.transpose(0, 2, 1))
    claim = extension.sum(out[:, 1 : width + 1])
    line = extension.zeros((2 * width + 1,))
    line[:, 0], line[:, 1] = mask, claim
    ends = np.stack([mask, claim], axis=2)  # (primes, 3, 2): l beyond M follows from its values at 0 and 1
    line[:, width + 1 :] = field.matmul(ends, high[:, :2]).transpose(0, 2, 1)
    return extension.sub(out, line)


# --- the holders --------------------------------------------------------------------------------------------------


def fold(query: Query, vector: Vector, masks: Residues) -> Residues:
    """f_i(r) for every row: (primes, L, 3), from a holder's shares of the vector and of its L masks."""
    extension, layout = query.extension, query.layout
    _check(extension, masks, minimum=layout.rows)
    weights = query.row_weights[:, 1:]
    pieces = [extension.weighted(chunk, weights) for chunk in _chunks(extension, layout, vector)]
    return extension.add(np.concatenate(pieces, axis=1), extension.mul(masks, query.row_weights[:, :1]))


def answer(
    query: Query,
    a: Vector,
    b: Vector,
    *,
    masks: Residues,
    proofs: Residues,
    others: Residues | None = None,
    own: Residues | None = None,
) -> Residues:
    """What a holder opens to all holders, (primes, 2L + 2 provers, 3), from its shares of everything.

    `proofs` (primes, provers, 2M, 3) is what the provers dealt; `others` (primes, provers, 3) the right side d of each
    claim as far as other members shared it, `own` the part e that the prover itself dealt.
    """
    extension, layout = query.extension, query.layout
    provers = proofs.shape[1]
    none = extension.zeros((provers,))
    others, own = none if others is None else others, none if own is None else own
    _check(extension, masks, minimum=layout.masks(provers))
    for elements in (others, own):
        _check(extension, elements, minimum=provers)
    if proofs.shape[2:] != (layout.proof, DEGREE):
        raise SecureError(f"a proof has {layout.proof} elements, not the shape {proofs.shape[2:]}.")
    at_mask, at_claim = query.row_weights[:, :1], query.row_weights[:, 1:2]
    rows, end = layout.rows, layout.folds
    masked = extension.add(extension.mul(others, at_claim), extension.mul(masks[:, end : end + provers], at_mask))
    dealt = extension.add(extension.weighted(proofs, query.proof_weights), extension.mul(own, at_claim))
    folds = [fold(query, a, masks[:, :rows])]
    if not layout.square:
        folds.append(fold(query, b, masks[:, rows:end]))
    return np.concatenate([*folds, masked, dealt], axis=1)


class Verdict(NamedTuple):
    """What the answers show. Holders and provers are numbers from 0.

    - `liars`: holders whose answers are wrong; None if there are some that cannot be named: then nothing is decided.
    - `disputed`: provers whose proof is not dealt with degree t, each with the holders whose shares of it are at odds
      with the others': the prover dealt it wrongly or these lied (None: they cannot be named).
    - `refuted`: provers whose claim is false. Up to t lies would show, so this is proof against them.
    """

    liars: tuple[int, ...] | None
    disputed: dict[int, tuple[int, ...] | None]
    refuted: tuple[int, ...]

    @property
    def accepted(self) -> bool:
        return self.liars == () and not self.disputed and not self.refuted


def verdict(
    extension: Extension,
    layout: Layout,
    answers: Mapping[int, Residues],
    *,
    places: Sequence[int],
    threshold: int,
) -> Verdict:
    """What every holder concludes from the answers of all; `places` are the provers' (holder i: i + 1, a dealer: 0)."""
    field, rows, provers = extension.field, layout.rows, len(places)
    wanted = (len(field.primes), layout.answers(provers), DEGREE)
    for holder, elements in answers.items():
        if elements.shape != wanted:
            raise SecureError(f"holder {holder} answered with the shape {elements.shape} in place of {wanted}.")
        field.check(elements)
    end = layout.folds
    common = {holder: elements[:, : end + provers] for holder, elements in answers.items()}
    liars = culprits(field, common, degree=threshold, threshold=threshold)
    if liars is None:
        return Verdict(None, {}, ())
    others = [holder for holder in sorted(answers) if holder not in liars]
    basis = others[: threshold + 1]
    disputed, refuted = {}, []
    for number, place in enumerate(places):
        dealt = {holder: answers[holder][:, end + provers + number] for holder in others}
        suspects = culprits(field, dealt, degree=threshold, threshold=threshold - len(liars))
        if suspects != ():
            disputed[number] = suspects
            continue
        opened = interpolate(field, {holder: common[holder] for holder in basis}, degree=threshold, point=place)
        right = extension.add(opened[:, end + number], interpolate(field, dealt, degree=threshold))
        if not np.array_equal(extension.inner(opened[:, :rows], opened[:, end - rows : end]), right):
            refuted.append(number)
    return Verdict(liars, disputed, tuple(refuted))


# --- rows ---------------------------------------------------------------------------------------------------------


def _chunks(extension: Extension, layout: Layout, vector: Vector) -> Iterator[Residues]:
    """The rows of a vector, (primes, rows, M, 3), so many at a time that copies stay small; one buffer for all."""
    primes, width = len(extension.field.primes), layout.width
    size = max(1, CHUNK // width) * width
    buffer = np.zeros((primes, min(size, layout.rows * width), DEGREE), dtype=np.int32)
    size = buffer.shape[1]
    filled = total = 0
    for piece in [vector] if isinstance(vector, np.ndarray) else vector:
        _check(extension, piece, minimum=0)
        start = 0
        while start < piece.shape[1]:
            taken = piece[:, start : start + size - filled]
            buffer[:, filled : filled + taken.shape[1]] = taken
            start += taken.shape[1]
            filled += taken.shape[1]
            total += taken.shape[1]
            if filled == size:
                yield buffer.reshape(primes, -1, width, DEGREE)
                filled = 0
    if total != layout.length:
        raise SecureError(f"the vector has {total} elements and the claim {layout.length}.")
    if filled:
        end = -(-filled // width) * width
        buffer[:, filled:end] = 0
        yield buffer[:, :end].reshape(primes, -1, width, DEGREE)


def _check(extension: Extension, elements: Residues, *, minimum: int) -> None:
    shape, primes = elements.shape, len(extension.field.primes)
    if (
        elements.ndim != 3
        or elements.dtype != np.int32
        or (shape[0], shape[2]) != (primes, DEGREE)
        or shape[1] < minimum
    ):
        raise SecureError(
            f"expected int32 elements ({primes}, at least {minimum}, {DEGREE}), not {elements.dtype} {shape}: all "
            "members must use the same primes and the same layout."
        )


@numba.njit(cache=True)
def _add_products(f: Any, g: Any, p: int, out: Any) -> None:
    """out[c, k] += sum over rows of the coefficient of X^c of f g at node k, modulo p; f, g are (3, rows, nodes).

    Products are below 2^42; a chunk has at most 2^18 rows, so the sums of three products in each stay below 2^62.
    """
    rows, nodes = f.shape[1], f.shape[2]
    for i in range(rows):
        for c in range(3):
            for e in range(3):
                for k in range(nodes):
                    out[c + e, k] += np.int64(f[c, i, k]) * np.int64(g[e, i, k])
    for c in range(5):
        for k in range(nodes):
            out[c, k] %= p
