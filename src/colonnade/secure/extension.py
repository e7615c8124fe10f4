"""GF(p^3) over each prime of a `Field` at once: a field so large that a random element of it catches a lie.

A random challenge from GF(p) misses a lie with a chance of about 2^-21; one from K = GF(p^3) with 2^-63. An element
of K is a polynomial c_0 + c_1 X + c_2 X^2 over GF(p) modulo a fixed, public cubic X^3 - X - c: an array of elements has
the layers of its primes first and the three coefficients last, (primes, ..., 3), int32.

K is a vector space of dimension 3 over GF(p). So sharing, adding and opening elements of K is done on the coefficients
as on any residues; only products of two elements need this module. Long ones run through `Field.matmul`.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cache, cached_property, lru_cache
from typing import Any

import numba
import numpy as np
from numpy.typing import NDArray

from colonnade.errors import SecureError
from colonnade.secure.field import Field, Residues, keyed_uniform, transpose
from colonnade.secure.seeded import SEED_BYTES, Term

DEGREE = 3
PIECE = 1024
"""Records that are projected at a time: what is between rows and result stays in the cache."""
LARGEST_SUM = 1 << 20
"""Products of two residues are below 2^42, so that int64 holds the sum of so many."""

_EXACT = 1 << 10
"""Products of two residues of which float64 holds the sum: below 2^52."""

#: The smallest c >= 1 for which X^3 - X - c has no root modulo p, for each public prime: then the cubic is irreducible.
CONSTANTS: dict[int, int] = {
    **{2097143: 1, 2097133: 4, 2097131: 2, 2097097: 9, 2097091: 2, 2097083: 1, 2097047: 3, 2097041: 1},
    **{2097031: 1, 2097023: 2, 2097013: 3, 2096993: 10, 2096987: 2, 2096971: 4, 2096959: 1, 2096957: 2},
}


@cache
def cubic_constant(p: int) -> int:
    """The smallest c >= 1 such that x^3 - x never equals c modulo p, by trying every x."""
    x = np.arange(p, dtype=np.int64)
    taken = np.zeros(p, dtype=np.bool_)
    taken[(x * x % p * x - x) % p] = True
    return int(np.argmin(taken))  # 0 is taken, by x = 0


@dataclass(frozen=True)
class Extension:
    """K = GF(p^3) for each prime of `field`. Arrays of elements are (primes, ..., 3)."""

    field: Field

    @cached_property
    def constants(self) -> tuple[int, ...]:
        """c of the cubic X^3 - X - c, for each prime."""
        return tuple(CONSTANTS.get(p) or cubic_constant(p) for p in self.field.primes)

    # --- elements -----------------------------------------------------------------------------------------

    def zeros(self, shape: tuple[int, ...] = ()) -> Residues:
        return self.field.zeros((*shape, DEGREE))

    def embed(self, a: Residues) -> Residues:
        """Residues as elements of K: constant polynomials."""
        out = self.zeros(a.shape[1:])
        out[..., 0] = a
        return out

    def uniform(self, shape: tuple[int, ...], *, seed: bytes, label: str) -> Residues:
        """Elements that everyone with the 32-byte seed derives alike, and that are uniform to anyone without it."""
        if not isinstance(seed, bytes) or len(seed) != SEED_BYTES:
            raise SecureError(f"the seed of a challenge has {SEED_BYTES} bytes; draw it again.")
        key = hashlib.sha256(b"colonnade challenge v1\0" + seed + label.encode()).digest()
        out = self.zeros(shape)
        for layer, (p, target) in enumerate(zip(self.field.primes, out, strict=True)):
            keyed_uniform(target.reshape(-1), p, key=key, start=layer.to_bytes(4, "big") + bytes(12))
        return out

    def point(self, *, seed: bytes, label: str) -> Residues:
        """A uniform element outside GF(p), for each prime, so that it is no node of an interpolation: (primes, 3)."""
        tries = self.uniform((64,), seed=seed, label=label)
        outside = np.any(tries[..., 1:] != 0, axis=-1)
        if not outside.any(axis=1).all():  # a chance of p^-128
            raise SecureError("the seed of a challenge gives no point outside the prime field; draw it again.")
        return np.asarray(tries[np.arange(len(tries)), outside.argmax(axis=1)])

    # --- arithmetic ---------------------------------------------------------------------------------------

    def add(self, a: Residues, b: Residues) -> Residues:
        return self.field.add(a, b)

    def sub(self, a: Residues, b: Residues) -> Residues:
        return self.field.sub(a, b)

    def neg(self, a: Residues) -> Residues:
        return self.field.neg(a)

    def sum(self, a: Residues, *, axis: int = 0) -> Residues:
        """The sum along an axis of the values (0: over records)."""
        return self.field.sum(a, axis=axis)

    def mul(self, a: Residues, b: Residues) -> Residues:
        """Element by element; lengths broadcast where the number of axes agrees."""
        if a.ndim != b.ndim or a.shape[-1] != DEGREE or b.shape[-1] != DEGREE:
            raise SecureError(f"{a.shape} and {b.shape} are not arrays of elements that line up.")
        a, b = np.broadcast_arrays(a, b)
        # A compiled function rather than a ufunc: those of numba crash when they come from its cache.
        left, right = (np.ascontiguousarray(part).reshape(len(part), -1, DEGREE) for part in (a, b))
        product = np.empty(left.shape, dtype=np.int32)
        primes, constants = (np.array(layer, dtype=np.int64) for layer in (self.field.primes, self.constants))
        _multiply_elements(left, right, primes, constants, product)
        return product.reshape(a.shape)

    def mul_each(self, a: Residues, table: Residues, which: NDArray[np.intp]) -> Residues:
        """Each of n elements (primes, n, 3) times that element of a table (primes, k, 3) which `which` (n,) names."""
        if which.shape != a.shape[1:2] or (which.size and not 0 <= which.min() <= which.max() < table.shape[1]):
            raise SecureError(f"cannot multiply {a.shape} by elements of {table.shape}.")
        product = np.empty(a.shape, dtype=np.int32)
        primes, constants = (np.array(layer, dtype=np.int64) for layer in (self.field.primes, self.constants))
        _multiply_each(a, table, which, primes, constants, product)
        return product

    def add_at(self, total: Residues, places: NDArray[np.intp], more: Residues) -> None:
        """Add elements (primes, n, 3) to those of a total at these places."""
        if places.shape != more.shape[1:2] or (places.size and not 0 <= places.min() <= places.max() < total.shape[1]):
            raise SecureError(f"cannot add {more.shape} to some of {total.shape}.")
        _add_elements_at(total, places, more, np.array(self.field.primes, dtype=np.int64))

    def scale(self, a: Residues, factor: Residues) -> Residues:
        """Times one element of K, (primes, 3)."""
        return self.mul(a, factor.reshape(len(factor), *[1] * (a.ndim - 2), DEGREE))

    def product(self, a: Residues) -> Residues:
        """The product of n elements (primes, n, 3), by halves."""
        while a.shape[1] > 1:
            half = a.shape[1] // 2
            a = np.concatenate([self.mul(a[:, :half], a[:, half : 2 * half]), a[:, 2 * half :]], axis=1)
        return a[:, 0]

    def power(self, a: Residues, exponent: int) -> Residues:
        """a^exponent for an exponent of at least 0."""
        out = self.embed(np.ones_like(a[..., 0]))
        for bit in bin(exponent)[2:]:
            out = self.mul(out, out)
            if bit == "1":
                out = self.mul(out, a)
        return out

    def inverse(self, a: Residues) -> Residues:
        """1 / a for every element; 0 has none.

        b with b a = 1 solves (b_0, b_1, b_2) T = (1, 0, 0), where the rows of T are a, X a and X^2 a (`times`): by
        Cramer's rule b_i is the cofactor of T_i0 over det T, which is in GF(p), and whose inverse is its power p - 2.
        """
        flat = np.ascontiguousarray(a).reshape(len(a), -1, DEGREE)
        out = np.empty(flat.shape, dtype=np.int32)
        primes, constants = (np.array(layer, dtype=np.int64) for layer in (self.field.primes, self.constants))
        if not _invert_elements(flat, primes, constants, out):
            raise SecureError("0 has no inverse.")
        return out.reshape(a.shape)

    def times(self, a: Residues) -> Residues:
        """(primes, ..., 3, 3), with rows a, X a and X^2 a: the coefficients of b times this matrix are those of a b."""
        x = self.zeros((1,) * (a.ndim - 2))
        x[..., 1] = 1
        shifted = self.mul(a, x)
        return np.stack([a, shifted, self.mul(shifted, x)], axis=-2)

    # --- long products ------------------------------------------------------------------------------------

    def project(self, rows: Residues, vectors: Residues) -> Residues:
        """Residues (primes, n, w) times vectors over K (primes, w, 3) or (primes, w, k, 3): (primes, n, [k,] 3)."""
        if rows.shape[2] != vectors.shape[1] or rows.shape[2] >= LARGEST_SUM:
            raise SecureError(f"cannot project rows {rows.shape} on vectors {vectors.shape}.")
        columns = vectors.reshape(*vectors.shape[:2], -1)
        out = np.empty((*rows.shape[:2], columns.shape[2]), dtype=np.int32)
        for start in range(0, rows.shape[1], PIECE):
            out[:, start : start + PIECE] = self.field.matmul(rows[:, start : start + PIECE], columns)
        return out.reshape(*rows.shape[:2], *vectors.shape[2:])

    def project_groups(self, rows: Residues, vector: Residues, groups: Sequence[slice]) -> Residues:
        """Each group of columns of rows (primes, n, w) times its part of a vector over K (primes, w, 3):
        (primes, n, groups, 3)."""
        ends = [group.stop for group in groups]
        if rows.shape[2] != vector.shape[1] or max(ends, default=0) > rows.shape[2]:
            raise SecureError(f"cannot project groups of rows {rows.shape} on a vector {vector.shape}.")
        out = np.empty((*rows.shape[:2], len(groups), DEGREE), dtype=np.int32)
        starts, stops = np.array([group.start for group in groups]), np.array(ends)
        columns, primes = vector.astype(np.float64), np.array(self.field.primes, dtype=np.int64)
        _project_groups(np.ascontiguousarray(rows), columns, starts, stops, primes, out)
        return out

    def project_each(self, parts: Iterable[tuple[Term, slice]], vectors: Residues, which: NDArray[np.intp]) -> Residues:
        """Each row times the vector over K of these, (primes, k, w, 3), that `which` (n,) names; 0 for -1:
        (primes, n, 3). `parts` are terms of the rows, each with its columns."""
        primes = np.array(self.field.primes, dtype=np.int64)
        sums = np.zeros((len(primes), len(which), DEGREE), dtype=np.int64)
        if which.max(initial=-1) >= vectors.shape[1] or vectors.shape[2] >= LARGEST_SUM:
            raise SecureError(f"cannot project {len(which)} rows on vectors {vectors.shape}.")
        for (factors, rows), columns in parts:
            own = vectors[:, :, columns]
            if rows.shape[1:] != (len(which), own.shape[2]) or (len(rows) != len(primes) and rows.itemsize > 2):
                raise SecureError(f"cannot project rows {rows.shape} on vectors {own.shape}.")
            scaled = self.field.mul(own, np.array(factors, dtype=np.int32).reshape(-1, 1, 1, 1))
            weights = np.swapaxes(scaled, 2, 3).astype(np.float64, order="C")
            for start in range(0, rows.shape[2], _EXACT):
                part = slice(start, start + _EXACT)
                _add_projections(rows[:, :, part], weights[..., part], which, sums)
        return np.asarray(sums % primes[:, None, None]).astype(np.int32)

    def inner(self, a: Residues, b: Residues) -> Residues:
        """The inner product of two vectors over K, (primes, n, 3) each: (primes, 3)."""
        table = self.field.matmul(transpose(a), b)
        sums = np.zeros((len(table), 2 * DEGREE - 1), dtype=np.int64)
        for i in range(DEGREE):
            sums[:, i : i + DEGREE] += table[:, i]  # coefficient i of a and j of b go with X^(i + j)
        return self.reduced(sums)

    def reduced(self, coefficients: NDArray[np.int64]) -> Residues:
        """Polynomials of degree 4 as elements: (primes, ..., 5), below 2^42, to (primes, ..., 3)."""
        layers = (-1, *[1] * (coefficients.ndim - 2))
        primes, constants = (np.array(v, dtype=np.int64).reshape(layers) for v in (self.field.primes, self.constants))
        c0, c1, c2, c3, c4 = (coefficients[..., k] for k in range(2 * DEGREE - 1))
        # X^3 = X + c and X^4 = X^2 + c X
        folded = np.stack([c0 + constants * c3, c1 + c3 + constants * c4, c2 + c4], axis=-1)
        return np.asarray(folded % primes[..., None]).astype(np.int32)

    def weighted(self, rows: Residues, weights: Residues) -> Residues:
        """The inner product of each row over K, (primes, r, n, 3), with weights (primes, n, 3): (primes, r, 3)."""
        layers, count = rows.shape[:2]
        return self.field.matmul(rows.reshape(layers, count, -1), self.times(weights).reshape(layers, -1, DEGREE))

    def combine(self, values: Residues, weights: Residues) -> Residues:
        """The sum of residues (primes, n) times weights over K (primes, n, 3): (primes, 3)."""
        return self.field.matmul(values[:, None, :], weights)[:, 0]

    def lagrange_weights(self, nodes: int, point: Residues) -> Residues:
        """w_k with f(point) = sum_k w_k f(k) for every polynomial of degree below `nodes`, k = 0, ..., nodes - 1.

        w_k = v_k / (r - k) times prod_j (r - j), where v_k = 1 / prod_{j != k} (k - j) is in GF(p).
        """
        differences = self.sub(
            np.broadcast_to(point[:, None], (len(point), nodes, DEGREE)), self.embed(node_residues(self.field, nodes))
        )
        weights = self.mul(self.inverse(differences), self.product(differences)[:, None])
        return self.field.mul(weights, barycentric(self.field, nodes)[..., None])


# --- interpolation at the nodes 0, 1, 2, ... of the prime fields -------------------------------------------------


def node_residues(field: Field, nodes: int) -> Residues:
    """0, 1, ..., nodes - 1 for each prime: (primes, nodes)."""
    if nodes > min(field.primes):
        raise SecureError(f"{nodes} nodes are more than the smallest prime {min(field.primes)} has: take shorter rows.")
    return np.broadcast_to(np.arange(nodes, dtype=np.int32), (len(field.primes), nodes))


def residue_inverse(field: Field, a: Residues) -> Residues:
    """1 / a for every residue other than 0, as a^(p - 2), each prime by its own exponent."""
    flat = np.ascontiguousarray(a).reshape(len(a), -1)
    out = np.empty(flat.shape, dtype=np.int32)
    _invert_residues(flat, np.array(field.primes, dtype=np.int64), out)
    return out.reshape(a.shape)


@lru_cache(maxsize=64)
def barycentric(field: Field, nodes: int) -> Residues:
    """v_k = 1 / prod_{j != k} (k - j) = (-1)^(n - 1 - k) / (k! (n - 1 - k)!), for n nodes: (primes, n)."""
    node_residues(field, nodes)
    factorial = _factorials(field, nodes)
    out = residue_inverse(field, field.mul(factorial, factorial[:, ::-1]))
    negative = (nodes - 1 - np.arange(nodes)) % 2 == 1
    out[:, negative] = field.neg(out[:, negative])
    return out


@lru_cache(maxsize=16)
def extrapolation(field: Field, nodes: int, points: int) -> Residues:
    """(primes, nodes, points): values at 0, ..., nodes - 1, times this, are those at the next `points` nodes."""
    inverses = residue_inverse(field, node_residues(field, nodes + points)[:, 1:])  # of 1, 2, ...
    x, k = np.arange(nodes, nodes + points), np.arange(nodes)
    factorial = _factorials(field, nodes + points)
    # the weight of node k at x is v_k / (x - k) times prod_j (x - j) = x! / (x - nodes)!
    numerators = field.mul(factorial[:, x], residue_inverse(field, factorial[:, x - nodes]))
    weights = field.mul(barycentric(field, nodes)[:, :, None], numerators[:, None, :])
    return field.mul(weights, inverses[:, x[None, :] - k[:, None] - 1])


def _factorials(field: Field, count: int) -> Residues:
    """0!, 1!, ..., (count - 1)! for each prime."""
    out = np.ones((len(field.primes), count), dtype=np.int32)
    for p, layer in zip(field.primes, out, strict=True):
        for k in range(1, count):
            layer[k] = int(layer[k - 1]) * k % p
    return out


# --- kernels: products of residues are below 2^42, so that int64 holds sums of 2^20 of them -----------------------


@numba.njit(cache=True, inline="always")
def _modulo(total: Any, p: Any, inverse: Any) -> Any:
    """total modulo p for 0 <= total < 2^62, several times faster than a division: the quotient, below 2^42, by the
    rounded 1 / p is off by 1 at most."""
    rest = total - np.int64(np.float64(total) * inverse) * p
    if rest < 0:
        rest += p
    elif rest >= p:
        rest -= p
    return rest


@numba.njit(cache=True)
def _multiply_elements(a: Any, b: Any, primes: Any, constants: Any, out: Any) -> None:
    """Products modulo X^3 - X - c, all arrays (primes, n, 3): X^3 = X + c and X^4 = X^2 + c X."""
    for k in range(len(primes)):
        p, c = primes[k], constants[k]
        inverse = 1.0 / p
        for i in range(a.shape[1]):
            a0, a1, a2 = np.int64(a[k, i, 0]), np.int64(a[k, i, 1]), np.int64(a[k, i, 2])
            b0, b1, b2 = np.int64(b[k, i, 0]), np.int64(b[k, i, 1]), np.int64(b[k, i, 2])
            cubic, quartic = _modulo(a1 * b2 + a2 * b1, p, inverse), _modulo(a2 * b2, p, inverse)
            out[k, i, 0] = _modulo(a0 * b0 + c * cubic, p, inverse)
            out[k, i, 1] = _modulo(a0 * b1 + a1 * b0 + cubic + c * quartic, p, inverse)
            out[k, i, 2] = _modulo(a0 * b2 + a1 * b1 + a2 * b0 + quartic, p, inverse)


@numba.njit(cache=True)
def _multiply_each(a: Any, table: Any, which: Any, primes: Any, constants: Any, out: Any) -> None:
    """`_multiply_elements` of a (primes, n, 3) with table (primes, k, 3) at `which` (n,)."""
    for k in range(len(primes)):
        p, c = primes[k], constants[k]
        inverse = 1.0 / p
        for i in range(a.shape[1]):
            j = which[i]
            a0, a1, a2 = np.int64(a[k, i, 0]), np.int64(a[k, i, 1]), np.int64(a[k, i, 2])
            b0, b1, b2 = np.int64(table[k, j, 0]), np.int64(table[k, j, 1]), np.int64(table[k, j, 2])
            cubic, quartic = _modulo(a1 * b2 + a2 * b1, p, inverse), _modulo(a2 * b2, p, inverse)
            out[k, i, 0] = _modulo(a0 * b0 + c * cubic, p, inverse)
            out[k, i, 1] = _modulo(a0 * b1 + a1 * b0 + cubic + c * quartic, p, inverse)
            out[k, i, 2] = _modulo(a0 * b2 + a1 * b1 + a2 * b0 + quartic, p, inverse)


@numba.njit(cache=True)
def _add_elements_at(total: Any, places: Any, more: Any, primes: Any) -> None:
    for k in range(len(primes)):
        p = primes[k]
        for i in range(len(places)):
            for c in range(3):
                value = np.int64(total[k, places[i], c]) + more[k, i, c]
                total[k, places[i], c] = value - p if value >= p else value


@numba.njit(cache=True)
def _inverse_of(a: Any, p: Any, inverse: Any) -> Any:
    """a^(p - 2), by squaring."""
    out, exponent = np.int64(1), p - 2
    while exponent > 0:
        if exponent & 1:
            out = _modulo(out * a, p, inverse)
        a = _modulo(a * a, p, inverse)
        exponent >>= 1
    return out


@numba.njit(cache=True)
def _invert_residues(a: Any, primes: Any, out: Any) -> None:
    for k in range(len(primes)):
        for i in range(a.shape[1]):
            out[k, i] = _inverse_of(np.int64(a[k, i]), primes[k], 1.0 / primes[k])


@numba.njit(cache=True)
def _invert_elements(a: Any, primes: Any, constants: Any, out: Any) -> bool:
    """Inverses modulo X^3 - X - c, both arrays (primes, n, 3): cofactors of the rows a, X a and X^2 a, over their
    determinant (`Extension.inverse`). False if one is 0."""
    rows, cofactors = np.empty((3, 3), dtype=np.int64), np.empty(3, dtype=np.int64)
    for k in range(len(primes)):
        p, c = primes[k], constants[k]
        inverse = 1.0 / p
        for n in range(a.shape[1]):
            for j in range(3):
                rows[0, j] = a[k, n, j]
            for i in range(1, 3):  # X^3 = X + c
                rows[i, 0] = _modulo(c * rows[i - 1, 2], p, inverse)
                rows[i, 1] = _modulo(rows[i - 1, 0] + rows[i - 1, 2], p, inverse)
                rows[i, 2] = rows[i - 1, 1]
            norm = np.int64(0)
            for i in range(3):
                first, second = rows[(i + 1) % 3], rows[(i + 2) % 3]
                cofactors[i] = _modulo(first[1] * second[2] + (p - first[2]) * second[1], p, inverse)
                norm += rows[i, 0] * cofactors[i]
            norm = _modulo(norm, p, inverse)
            if norm == 0:
                return False
            scale = _inverse_of(norm, p, inverse)
            for i in range(3):
                out[k, n, i] = _modulo(cofactors[i] * scale, p, inverse)
    return True


@numba.njit(cache=True)
def _project_groups(rows: Any, columns: Any, starts: Any, stops: Any, primes: Any, out: Any) -> None:
    """Residues (primes, n, w) times columns (primes, w, 3) within each group, in float64: 256 products are below 2^50,
    and their sum is exact. A sum s is an integer, so that (s + 1/2) / p has the right floor (`seeded`)."""
    for k in range(len(primes)):
        p, inverse = float(primes[k]), 1.0 / primes[k]
        for i in range(rows.shape[1]):
            for g in range(len(starts)):
                a, b, c = 0.0, 0.0, 0.0
                for start in range(starts[g], stops[g], 256):
                    for j in range(start, min(start + 256, stops[g])):
                        entry = float(rows[k, i, j])
                        a += entry * columns[k, j, 0]
                        b += entry * columns[k, j, 1]
                        c += entry * columns[k, j, 2]
                    a -= math.floor((a + 0.5) * inverse) * p
                    b -= math.floor((b + 0.5) * inverse) * p
                    c -= math.floor((c + 0.5) * inverse) * p
                out[k, i, g, 0], out[k, i, g, 1], out[k, i, g, 2] = np.int32(a), np.int32(b), np.int32(c)


@numba.njit(cache=True, fastmath={"reassoc", "contract"})
def _add_projections(rows: Any, columns: Any, which: Any, sums: Any) -> None:
    """sums += rows (primes or 1, n, w) times columns (primes, k, 3, w) in float64, of which each row has its own.

    Products are below 2^42 and w at most `_EXACT`, so that float64 holds every sum, in whatever order it is added up:
    the compiler may choose one for vector instructions."""
    for k in range(columns.shape[0]):
        layer = k % rows.shape[0]
        for i in range(rows.shape[1]):
            own = which[i]
            if own >= 0:
                a, b, c = 0.0, 0.0, 0.0
                for j in range(rows.shape[2]):
                    entry = np.float64(rows[layer, i, j])
                    a += entry * columns[k, own, 0, j]
                    b += entry * columns[k, own, 1, j]
                    c += entry * columns[k, own, 2, j]
                sums[k, i, 0] += np.int64(a)
                sums[k, i, 1] += np.int64(b)
                sums[k, i, 2] += np.int64(c)
