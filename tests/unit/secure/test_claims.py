"""What is to be proven, as inner products: both sides agree for true values, and differ for any other."""

from __future__ import annotations

import numpy as np
import pytest

from colonnade.secure import claims
from colonnade.secure.extension import Extension
from colonnade.secure.field import PRIMES, Field, Residues, transpose

FIELD = Field(PRIMES[:2])
K = Extension(FIELD)
GENERATOR = np.random.default_rng(6)
N, W = 11, 4


def draw(label: str, *shape: int) -> Residues:
    return K.uniform(shape, seed=bytes(32), label=label)


def rows(width: int = W) -> Residues:
    return FIELD.encode(GENERATOR.integers(-(2**19), 2**19, size=(N, width)))


def inner(factors: claims.Factors) -> Residues:
    return K.inner(factors.left, factors.right)


def test_a_gram_matrix_and_its_opened_triangle() -> None:
    x, u = rows(), draw("u", W)
    triangle = FIELD.gram(x)[:, *np.triu_indices(W)]
    weights = claims.gram_weights(K, u)
    left = inner(claims.gram_factors(K, x, u))
    assert (K.combine(triangle, weights) == left).all()
    for entry in range(triangle.shape[1]):
        wrong = triangle.copy()
        wrong[1, entry] ^= 1
        assert (K.combine(wrong, weights)[1] != left[1]).any()


def test_a_cross_product() -> None:
    a, b, u, v = rows(), rows(3), draw("u", W), draw("v", 3)
    table = FIELD.matmul(transpose(a), b).reshape(2, -1)
    left = inner(claims.cross_factors(K, a, b, u, v))
    assert (K.combine(table, claims.cross_weights(K, u, v)) == left).all()
    table[0, 5] ^= 1
    assert (K.combine(table, claims.cross_weights(K, u, v))[0] != left[0]).any()


def test_products_dealt_again() -> None:
    x, y, chi = rows(1)[..., 0], rows(1)[..., 0], draw("chi", N)
    product = FIELD.mul(x, y)
    left = inner(claims.product_factors(K, x, y, chi))
    assert (K.combine(product, chi) == left).all()
    product[0, 3] ^= 1
    assert (K.combine(product, chi)[0] != left[0]).any()


@pytest.mark.parametrize(
    ("row", "valid"),
    [
        ([0, 0, 0, 0], True),
        ([0, 0, 1, 0], True),
        ([1, 0, 0, 0], True),
        ([0, 2, 0, 0], False),
        ([-1, 0, 0, 0], False),
        ([1, 0, 1, 0], False),
        ([1, -1, 1, 0], False),
        ([2, -1, 0, 0], False),
        ([1, 1, 1, 1], False),
    ],
)
def test_one_hot_rows_are_told_from_all_others(row: list[int], valid: bool) -> None:
    values = np.eye(W, dtype=np.int64)[GENERATOR.integers(W, size=N)]
    values[4] = row
    x, u, psi = FIELD.encode(values), draw("u", W), draw("psi", N)
    left = inner(claims.one_hot_factors(K, x, u, psi))
    right = claims.one_hot_value(K, x, u, psi)
    for layer in range(2):
        assert np.array_equal(left[layer], right[layer]) == valid


def test_one_hot_groups_of_one_row_are_claimed_together() -> None:
    """Each group has its own 1; a second one within a group is found, whatever another group lacks."""
    groups = [slice(0, 3), slice(3, 5)]
    values = np.zeros((N, 5), dtype=np.int64)
    values[:, 1] = values[:, 3] = 1
    u, psi = draw("u", 5), draw("psi", N)
    for valid in (True, False):
        x = FIELD.encode(values)
        left, right = inner(claims.one_hot_factors(K, x, u, psi, groups)), claims.one_hot_value(K, x, u, psi)
        assert (left == right).all() == valid
        values[2], values[2, :2] = 0, 1


@pytest.mark.parametrize(("value", "valid"), [(0, True), (1, True), (2, False), (-1, False)])
def test_presence_is_a_bit(value: int, valid: bool) -> None:
    bits = GENERATOR.integers(2, size=N)
    bits[7] = value
    m, chi = FIELD.encode(bits), draw("chi", N)
    equal = inner(claims.product_factors(K, m, m, chi)) == K.combine(m, chi)
    assert equal.all() == valid


def test_several_claims_become_one_and_a_false_one_spoils_it() -> None:
    factors = [
        claims.gram_factors(K, rows(), draw("u", W)),
        claims.product_factors(K, rows(1)[..., 0], rows(1)[..., 0], draw("chi", N)),
    ]
    values = [inner(pair) for pair in factors]
    coefficients = draw("coefficients", 2)
    left, right = claims.combined(K, factors, coefficients)
    total = K.inner(np.concatenate(left, axis=1), np.concatenate(right, axis=1))
    assert (total == claims.combined_value(K, values, coefficients)).all()
    values[1] = K.add(values[1], K.embed(FIELD.encode(1)))
    assert (total != claims.combined_value(K, values, coefficients)).any(axis=-1).all()
