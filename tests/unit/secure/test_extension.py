"""GF(p^3) against Python's integers, at the extremes where a sum would overflow."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from colonnade.errors import SecureError
from colonnade.secure.extension import (
    _EXACT,
    CONSTANTS,
    Extension,
    barycentric,
    cubic_constant,
    extrapolation,
    residue_inverse,
)
from colonnade.secure.field import PRIMES, Field, Residues
from colonnade.secure.seeded import Term
from support.cubic import Cubic, Element, roots

K = Extension(Field(PRIMES[:3]))
TINY = Extension(Field((5, 7, 11)))
SEED = bytes(range(32))


def oracles(extension: Extension) -> list[Cubic]:
    return [Cubic(p, c) for p, c in zip(extension.field.primes, extension.constants, strict=True)]


def elements(layer: Residues) -> list[Element]:
    return [(int(a), int(b), int(c)) for a, b, c in layer.reshape(-1, 3)]


def extreme(extension: Extension, count: int) -> Residues:
    """Uniform elements, and the largest residues in half of the places."""
    out = extension.uniform((count,), seed=SEED, label=f"extreme {count}")
    largest = np.array(extension.field.primes, dtype=np.int32)[:, None, None] - 1
    return np.where(np.arange(count)[None, :, None] % 2, out, largest).astype(np.int32)


# --- the cubics ------------------------------------------------------------------------------------------------


def test_each_public_cubic_is_the_first_without_a_root() -> None:
    assert tuple(CONSTANTS) == PRIMES
    for p, c in CONSTANTS.items():
        assert roots(p, c) == 0, p
        assert all(roots(p, smaller) for smaller in range(1, c)), p


def test_other_primes_find_theirs_by_the_same_rule() -> None:
    assert cubic_constant(PRIMES[1]) == CONSTANTS[PRIMES[1]]
    for p in (3, 5, 7, 11, 13):
        cube_less = {(x**3 - x) % p for x in range(p)}
        assert cubic_constant(p) == min(c for c in range(1, p) if c not in cube_less)


# --- arithmetic ------------------------------------------------------------------------------------------------


@settings(max_examples=60, deadline=None)
@given(data=st.data(), extension=st.sampled_from([K, TINY]))
def test_sums_products_and_powers_are_those_of_polynomials(data: st.DataObject, extension: Extension) -> None:
    layers = []
    for p in extension.field.primes:
        residue = st.integers(0, p - 1) | st.sampled_from([0, 1, p - 1])
        layers.append(data.draw(st.lists(st.tuples(residue, residue, residue), min_size=2, max_size=2)))
    exponent = data.draw(st.integers(0, 2**70))
    both = np.array(layers, dtype=np.int32)
    a, b = both[:, :1], both[:, 1:]
    for layer, (oracle, (x, y)) in enumerate(zip(oracles(extension), layers, strict=True)):
        assert elements(extension.add(a, b)[layer]) == [oracle.add(x, y)]
        assert elements(extension.sub(a, b)[layer]) == [oracle.sub(x, y)]
        assert elements(extension.neg(a)[layer]) == [oracle.neg(x)]
        assert elements(extension.mul(a, b)[layer]) == [oracle.mul(x, y)]
        assert elements(extension.sum(both)[layer]) == [oracle.add(x, y)]
        assert elements(extension.product(both)[layer]) == [oracle.mul(x, y)]
        assert elements(extension.power(a, exponent)[layer]) == [oracle.power(x, exponent)]
        if both[:, :1].any(axis=-1).all():
            assert elements(extension.inverse(a)[layer]) == [oracle.inverse(x)]


def test_products_broadcast_and_zero_has_no_inverse() -> None:
    a = extreme(K, 12).reshape(3, 4, 3, 3)
    column = a[:, :, :1]
    table = K.mul(column, a[:, :1])
    assert (table[:, 2, 1] == K.mul(a[:, 2, 0], a[:, 0, 1])).all()
    assert (K.scale(a, a[:, 1, 1]) == K.mul(a, np.broadcast_to(a[:, 1:2, 1:2], a.shape))).all()
    with pytest.raises(SecureError, match="no inverse"):
        K.inverse(K.zeros((2,)))
    with pytest.raises(SecureError, match="line up"):
        K.mul(a, column[:, :, 0])


@pytest.mark.parametrize("extension", [K, TINY])
def test_elements_are_multiplied_and_added_by_their_places(extension: Extension) -> None:
    a, table = extreme(extension, 9), extreme(extension, 4)
    which = np.array([3, 0, 0, 1, 2, 3, 1, 0, 2])
    assert np.array_equal(extension.mul_each(a, table, which), extension.mul(a, table[:, which]))
    total, places = extreme(extension, 12), np.array([11, 0, 5, 2, 7, 3, 9, 1, 4])
    expected = total.copy()
    expected[:, places] = extension.add(total[:, places], a)
    extension.add_at(total, places, a)
    assert np.array_equal(total, expected)
    for wrong in (which + 1, which - 1, which[:-1]):
        with pytest.raises(SecureError):
            extension.mul_each(a, table, wrong)
    for wrong in (places + 1, places - 1, places[:-1]):
        with pytest.raises(SecureError):
            extension.add_at(total, wrong, a)


@pytest.mark.parametrize("extension", [K, TINY])
def test_long_products_are_exact(extension: Extension) -> None:
    n, w = 9001, 3
    a, b = extreme(extension, n), extreme(extension, n)[:, ::-1]
    rows = np.repeat(np.array(extension.field.primes, dtype=np.int32) - 1, n * w).reshape(-1, n, w)
    rows[:, ::7] = 1
    vectors = extreme(extension, 2 * w).reshape(-1, w, 2, 3)
    projected = extension.project(rows, vectors)
    inner, combined = extension.inner(a, b), extension.combine(rows[..., 0], a)
    assert (extension.project(rows, vectors[:, :, 0]) == projected[:, :, 0]).all()
    which = np.arange(rows.shape[1]) % (vectors.shape[2] + 1) - 1
    once = [1] * len(rows)
    parts = [(Term(once, rows[:, :, :1]), slice(0, 1)), (Term(once, rows[:, :, 1:]), slice(1, w))]
    each = extension.project_each(parts, np.ascontiguousarray(vectors.swapaxes(1, 2)), which)
    assert all((each[:, i] == (projected[:, i, k] if k >= 0 else 0)).all() for i, k in enumerate(which))
    for layer, oracle in enumerate(oracles(extension)):
        left, right = elements(a[layer]), elements(b[layer])
        assert elements(inner[layer]) == [oracle.inner(left, right)]
        constants = [(int(v), 0, 0) for v in rows[layer, :, 0]]
        assert elements(combined[layer]) == [oracle.inner(constants, left)]
        for record in (0, 1, n - 1):
            row = [(int(v), 0, 0) for v in rows[layer, record]]
            for k in range(2):
                assert elements(projected[layer, record, k]) == [oracle.inner(row, elements(vectors[layer, :, k]))]


def test_wide_rows_are_projected_exactly() -> None:
    """The largest residues, and more columns than float64 can add up at a time."""
    width, generator = 3 * _EXACT + 5, np.random.default_rng(0)
    primes = np.array(K.field.primes, dtype=np.int32)[:, None]
    rows = (primes - generator.integers(1, 99, (len(primes), 2 * width))).astype(np.int32).reshape(-1, 2, width)
    vector = (primes - generator.integers(1, 99, (len(primes), 3 * width))).astype(np.int32).reshape(-1, 1, width, 3)
    each = K.project_each([(Term([1] * len(rows), rows), slice(None))], vector, np.zeros(2, dtype=np.intp))
    for layer, p in enumerate(K.field.primes):
        assert (each[layer] == rows[layer].astype(object) @ vector[layer, 0].astype(object) % p).all()


@pytest.mark.parametrize("extension", [K, TINY])
def test_groups_of_columns_are_projected_each_by_itself(extension: Extension) -> None:
    """The largest residues, and more columns than are added up at a time."""
    groups = [slice(0, 700), slice(700, 701), slice(703, 719)]
    vector = extreme(extension, 720)
    rows = np.repeat(np.array(extension.field.primes, dtype=np.int32) - 1, 3 * 720).reshape(-1, 3, 720)
    rows[:, 1, ::3] = 1
    projected = extension.project_groups(rows, vector, groups)
    for place, group in enumerate(groups):
        wanted = extension.project(np.ascontiguousarray(rows[:, :, group]), vector[:, group])
        assert (projected[:, :, place] == wanted).all()
    with pytest.raises(SecureError, match="groups"):
        extension.project_groups(rows, vector, [slice(0, 721)])


# --- interpolation ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("extension", "nodes"), [(K, 1), (K, 2), (K, 9), (TINY, 3), (TINY, 5)])
def test_lagrange_weights_evaluate_any_polynomial_at_a_point_of_the_extension(extension: Extension, nodes: int) -> None:
    point = extension.point(seed=SEED, label="point")
    values = extreme(extension, nodes)
    result = extension.inner(extension.lagrange_weights(nodes, point), values)
    for layer, oracle in enumerate(oracles(extension)):
        polynomial = oracle.interpolate(range(nodes), elements(values[layer]))
        assert elements(result[layer]) == [oracle.evaluate(polynomial, elements(point[layer])[0])]


@pytest.mark.parametrize(
    ("extension", "nodes", "points"), [(K, 1, 3), (K, 8, 7), (TINY, 3, 2), (Extension(Field((11,))), 6, 5)]
)
def test_extrapolation_continues_a_polynomial(extension: Extension, nodes: int, points: int) -> None:
    field = extension.field
    values = extreme(extension, nodes)[..., 0]
    beyond = field.matmul(values[:, None, :], extrapolation(field, nodes, points))[:, 0]
    for layer, oracle in enumerate(oracles(extension)):
        polynomial = oracle.interpolate(range(nodes), [(int(v), 0, 0) for v in values[layer]])
        for k in range(points):
            assert oracle.evaluate(polynomial, (nodes + k, 0, 0)) == (int(beyond[layer, k]), 0, 0)
    with pytest.raises(SecureError, match="nodes"):
        barycentric(field, min(field.primes) + 1)


def test_every_residue_but_zero_has_its_inverse() -> None:
    field = Field((5, 11))
    a = np.array([[1, 2, 3, 4], [1, 2, 9, 10]], dtype=np.int32)
    assert (field.mul(a, residue_inverse(field, a)) == 1).all()


# --- challenges ------------------------------------------------------------------------------------------------


def test_a_challenge_is_the_same_for_everyone_and_new_for_each_seed_and_label() -> None:
    drawn = K.uniform((40,), seed=SEED, label="r")
    assert (drawn == K.uniform((40,), seed=SEED, label="r")).all()
    assert (drawn != K.uniform((40,), seed=SEED, label="s")).any()
    assert (drawn != K.uniform((40,), seed=bytes(32), label="r")).any()
    assert (drawn[0] != drawn[1]).any()
    K.field.check(drawn)
    for bad in (b"", bytes(31), "0" * 32):
        with pytest.raises(SecureError, match="32 bytes"):
            K.uniform((1,), seed=bad, label="r")  # type: ignore[arg-type]


def test_challenges_are_uniform_and_points_lie_outside_the_prime_field() -> None:
    cells = TINY.uniform((20 * 5**3,), seed=SEED, label="cells")[0].astype(np.int64) @ (1, 5, 25)
    assert stats.chisquare(np.bincount(cells, minlength=125)).pvalue > 1e-6
    points = np.stack([TINY.point(seed=bytes(31) + bytes([k]), label="point") for k in range(200)])
    assert points[..., 1:].any(axis=-1).all()
    assert len({tuple(point) for point in points[:, 0]}) > 50
