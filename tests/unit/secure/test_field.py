"""The field against Python's integers (exact oracle), at the extremes where a rounding would show."""

from __future__ import annotations

import itertools
import math
import tracemalloc

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from colonnade.errors import ModulusTooSmall, SecureError
from colonnade.privacy.randomness import SimulatedRandomness, SystemRandomness
from colonnade.secure import field as field_module
from colonnade.secure.field import BATCH_ROWS, PRIMES, TILE, Field, is_prime, primes_for, transpose

BITS = st.sampled_from([0, 19, 20, 40, 61, 62, 83, 150, 330])


def python_gram(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    return a.astype(object).T @ b.astype(object)


# --- primes ----------------------------------------------------------------------------------------------


def test_the_public_list_is_the_largest_primes_below_2_21() -> None:
    # oracle: sieve by trial division, from above
    found = [n for n in range(2**21 - 1, PRIMES[-1] - 1, -1) if is_prime(n)]
    assert tuple(found) == PRIMES
    assert not is_prime(1)
    assert not is_prime(1447**2)


@settings(deadline=None)
@given(bits=st.integers(0, 334))
def test_primes_for_holds_both_signs_and_is_the_fewest(bits: int) -> None:
    chosen = primes_for(bits)
    assert math.prod(chosen) > 2 ** (bits + 1)
    assert len(chosen) == 1 or math.prod(chosen[:-1]) <= 2 ** (bits + 1)
    field = Field(chosen)
    extremes = np.array([2**bits, -(2**bits)], dtype=object)
    assert (field.decode(field.encode(extremes)).astype(object) == extremes).all()


def test_too_many_bits_are_refused() -> None:
    with pytest.raises(ModulusTooSmall, match="335 bits"):
        primes_for(335)
    with pytest.raises(SecureError):
        primes_for(-1)


@pytest.mark.parametrize("primes", [(), (2097143, 2097143), (2097151,), (2**31 - 1,), (2,)])
def test_only_distinct_odd_primes_below_2_21_make_a_field(primes: tuple[int, ...]) -> None:
    with pytest.raises(SecureError, match="primes"):
        Field(primes)


# --- in and out ------------------------------------------------------------------------------------------


@settings(max_examples=60, deadline=None)
@given(data=st.data(), bits=BITS)
def test_decode_inverts_encode(data: st.DataObject, bits: int) -> None:
    field = Field(primes_for(bits))
    near = st.sampled_from([0, 1, -1, field.bound, -field.bound, field.bound - 1])
    values = data.draw(st.lists(st.integers(-field.bound, field.bound) | near, max_size=8))
    array = np.array(values, dtype=object).reshape(len(values), 1)
    residues = field.encode(array)
    assert residues.shape == (len(field.primes), len(values), 1)
    assert residues.dtype == np.int32
    decoded = field.decode(residues)
    assert decoded.dtype == (np.int64 if field.modulus < 2**63 else object)
    assert [int(v) for v in decoded.ravel()] == values


@pytest.mark.parametrize("dtype", [np.int8, np.int16, np.int32, np.int64, np.uint8, np.uint64])
def test_every_integer_type_is_encoded_in_any_memory_order(dtype: type) -> None:
    info = np.iinfo(dtype)
    array = np.array([[info.min, info.max, 0], [1, info.max - 1, info.min + 1]], dtype=dtype)
    for given_array in (array, np.asfortranarray(array), array[:, ::-1]):
        field = Field(primes_for(64))
        assert (field.decode(field.encode(given_array)) == given_array.astype(object)).all()


def test_values_that_do_not_fit_and_fractions_are_refused() -> None:
    field = Field(primes_for(20))
    for value in (field.bound + 1, -field.bound - 1, 2**63 - 1, -(2**63), 10**40):
        with pytest.raises(ModulusTooSmall):
            field.encode([value])
    for wrong in ([0.5], [True], np.array([1, 0.5], dtype=object), ["1"]):
        with pytest.raises(SecureError, match="integers"):
            field.encode(wrong)


def test_arrays_that_are_not_residues_are_refused() -> None:
    field = Field(primes_for(40))
    good = field.encode([[1, 2], [3, 4]])
    for bad in (good[:1], good.astype(np.int64), np.int32(1) * np.ones((), dtype=np.int32)):
        with pytest.raises(SecureError):
            field.check(bad)
    for wrong in (-1, field.primes[1], 2**31 - 1, -(2**31)):
        bad = good.copy()
        bad[1, 0, 0] = wrong
        for use in (field.check, field.decode, field.gram, lambda r: field.matmul(r, good)):
            with pytest.raises(SecureError, match="out of range"):
                use(bad)
    with pytest.raises(SecureError, match="line up"):
        field.add(good, good[:, 0])
    with pytest.raises(SecureError, match="inner sizes"):
        field.matmul(good, field.zeros((3, 1)))


# --- element by element ----------------------------------------------------------------------------------


@settings(max_examples=60, deadline=None)
@given(data=st.data(), bits=BITS, factor=st.integers(-(10**60), 10**60))
def test_ring_operations_agree_with_python(data: st.DataObject, bits: int, factor: int) -> None:
    field = Field(primes_for(bits))
    values = st.integers(-field.bound, field.bound) | st.sampled_from([field.bound, -field.bound, 0])
    a = np.array(data.draw(st.lists(values, min_size=3, max_size=3)), dtype=object)
    b = np.array(data.draw(st.lists(values, min_size=3, max_size=3)), dtype=object)

    def centred(exact: np.ndarray) -> list[int]:
        return [(int(v) + field.bound) % field.modulus - field.bound for v in exact]

    x, y = field.encode(a), field.encode(b)
    pairs = [(field.add(x, y), a + b), (field.sub(x, y), a - b), (field.mul(x, y), a * b), (field.neg(x), -a)]
    pairs += [(field.scale(x, factor), a * factor), (field.sum(x[:, None], axis=1), np.array([a.sum()]))]
    for residues, exact in pairs:
        field.check(residues)
        assert [int(v) for v in field.decode(residues)] == centred(exact)


def test_multiplication_is_right_for_every_pair_near_the_edges() -> None:
    # oracle: int64 remainder; all pairs among the 300 smallest and the 300 largest residues of each prime
    for p in PRIMES:
        edge = np.concatenate([np.arange(300), np.arange(p - 300, p)]).astype(np.int32)
        field = Field((p,))
        ours = field.mul(edge[None, :, None], edge[None, None, :])[0]
        assert (ours == np.multiply.outer(edge.astype(np.int64), edge.astype(np.int64)) % p).all()


# --- matrices --------------------------------------------------------------------------------------------


def test_gram_is_exact_where_every_product_is_extreme() -> None:
    """All residues +-(p - 1) / 2, two full blocks and a rest: sums reach 4096 (p - 1)^2 / 4, just below 2^52."""
    rows = 2 * BATCH_ROWS + 5
    field = Field(PRIMES[:3])
    for signs in ([1, 1], [1, -1], [-1, -1]):
        residues = field.zeros((rows, 2))
        expected = []
        for k, p in enumerate(field.primes):
            half = (p - 1) // 2
            residues[k] = np.array(signs) * half % p
            column = [s * half for s in signs]
            expected.append([[rows * x * y % p for y in column] for x in column])
        assert field.gram(residues).tolist() == expected
        assert field.matmul(transpose(residues), residues.copy()).tolist() == expected


@pytest.mark.parametrize(("block", "exact"), [(BATCH_ROWS, True), (1 << 17, False)])
def test_the_block_size_is_what_makes_it_exact(block: int, exact: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Large residues with random low bits. Planted bug: blocks of 2^17 rows, whose sums of 2^57 float64 rounds."""
    monkeypatch.setattr(field_module, "BATCH_ROWS", block)
    field, p = Field(PRIMES[:1]), PRIMES[0]
    low_bits = SimulatedRandomness(10).below(1000, 2 << 17).reshape(-1, 2)
    values = (p - 1) // 2 - low_bits
    # oracle: int64, where 2^17 products of 2^40 fit
    assert (field.gram(field.encode(values)) == values.T @ values % p).all() == exact


@settings(max_examples=25, deadline=None)
@given(
    rows=st.integers(0, 40),
    left=st.integers(1, 9),
    right=st.integers(1, 9),
    bits=BITS,
    tile=st.integers(1, 10),
    seed=st.integers(0, 2**32),
)
def test_matrix_products_agree_with_python(rows: int, left: int, right: int, bits: int, tile: int, seed: int) -> None:
    field = Field(primes_for(bits))
    randomness = SimulatedRandomness(seed)
    a, b = field.uniform((rows, left), randomness), field.uniform((rows, right), randomness)
    gram, product, plain = field.gram(a, tile=tile), field.matmul(transpose(a), b), field.matmul(b, transpose(b))
    vector = field.matmul(transpose(b), a[:, :, 0])
    for k, p in enumerate(field.primes):
        assert (gram[k] == python_gram(a[k], a[k]) % p).all()
        assert (product[k] == python_gram(a[k], b[k]) % p).all()
        assert (plain[k] == python_gram(b[k].T, b[k].T) % p).all()
        assert (vector[k] == python_gram(b[k], a[k][:, 0]) % p).all()


def test_columns_in_parts_have_the_gram_matrix_of_all_columns() -> None:
    field, rng = Field(PRIMES[:3]), np.random.default_rng(3)
    for records, widths in ((BATCH_ROWS, (5, 1, 7)), (300, (1, 4)), (1, (2,)), (20, (TILE, 1))):
        parts = [field.encode(rng.integers(-(2**40), 2**40, size=(records, width))) for width in widths]
        assert np.array_equal(field.gram_of(parts), field.gram(np.concatenate(parts, axis=2)))
    constant = np.broadcast_to(field.encode(np.array([[7]])), (3, 20, 1))
    assert np.array_equal(field.gram_of([constant, parts[1]])[:, 0, 0], field.encode(np.array(20 * 49)))
    damaged = parts[1].copy()
    damaged[2, 3, 0] = PRIMES[2]
    with pytest.raises(SecureError, match="out of range"):
        field.gram_of([constant, damaged])
    for wrong in (parts[1][:2], parts[1][:, :19]):
        with pytest.raises(SecureError, match="side by side"):
            field.gram_of([constant, wrong])


def test_any_number_of_blocks_stays_exact(monkeypatch: pytest.MonkeyPatch) -> None:
    # oracle: int64 arithmetic in slices; 1500 blocks of one row each
    monkeypatch.setattr(field_module, "BATCH_ROWS", 1)
    field = Field(PRIMES[:1])
    a = field.uniform((1500, 3), SimulatedRandomness(1))
    exact = sum(np.multiply.outer(row, row) % PRIMES[0] for row in a[0].astype(np.int64))
    assert (field.gram(a)[0] == exact % PRIMES[0]).all()


def test_tiles_cover_the_upper_triangle_within_the_memory_limit() -> None:
    field = Field(primes_for(61))
    columns_in_all, limit = 200, 5 << 20
    a = field.uniform((BATCH_ROWS, columns_in_all), SimulatedRandomness(2))  # a full block, the largest there is
    whole = field.gram(a)
    tile = 75  # w^2: a product and a sum in float64, two tiles of residues; w: two blocks of rows in float64
    assert (field.gram(a, tile=tile) == whole).all()
    tiles = field.gram_tiles(a, tile=tile)
    seen = np.zeros((columns_in_all, columns_in_all), dtype=int)
    peaks = []
    tracemalloc.start()
    while (found := next(tiles, None)) is not None:
        peaks.append(tracemalloc.get_traced_memory()[1])
        seen[found.rows, found.columns] += 1
        assert (found.residues == whole[:, found.rows, found.columns]).all()
        tracemalloc.reset_peak()
    tracemalloc.stop()
    assert limit / 2 < max(peaks) <= limit
    assert (seen[np.triu_indices(columns_in_all)] == 1).all()


def test_the_gram_of_quantised_data_equals_numpy() -> None:
    values = np.random.default_rng(0).integers(-(2**14), 2**14 + 1, size=(9000, 7))
    field = Field(primes_for((9000 * 2**28).bit_length()))
    assert (field.decode(field.gram(field.encode(values))) == values.T @ values).all()


# --- uniform elements ------------------------------------------------------------------------------------


@pytest.mark.parametrize("p", [3, 5, 31, 127, 1009])
def test_uniform_residues_of_a_small_prime_fill_every_cell_alike(p: int) -> None:
    # oracle: chi-square against equal cells; the seed is fixed, the threshold would raise 1 false alarm in 10^6
    drawn = Field((p,)).uniform((200 * p,), SimulatedRandomness(3))[0]
    assert stats.chisquare(np.bincount(drawn, minlength=p)).pvalue > 1e-6


@pytest.mark.parametrize("p", [PRIMES[0], PRIMES[-1]])
def test_uniform_residues_of_a_public_prime(p: int) -> None:
    # oracle: chi-square of 251 nearly equal cells with exact expectations, of the low bits, and of neighbours
    drawn = Field((p,)).uniform((400_000,), SimulatedRandomness(4))[0].astype(np.int64)
    assert drawn.max() < p
    cells = np.bincount(np.arange(p) * 251 // p)
    assert stats.chisquare(np.bincount(drawn * 251 // p), cells / p * drawn.size).pvalue > 1e-6
    low = np.bincount(np.arange(p) % 64)
    assert stats.chisquare(np.bincount(drawn % 64), low / p * drawn.size).pvalue > 1e-6
    pairs = (drawn[::2] * 16 // p) * 16 + drawn[1::2] * 16 // p
    assert stats.chisquare(np.bincount(pairs, minlength=256)).pvalue > 1e-6


def test_modulo_without_rejection_would_be_caught() -> None:
    # planted bug: 2^10 values taken modulo 1009 make the first 15 cells twice as likely
    biased = SimulatedRandomness(5).below(2**10, 200 * 1009) % 1009
    assert stats.chisquare(np.bincount(biased, minlength=1009)).pvalue < 1e-12


def test_layers_differ_and_every_call_is_fresh() -> None:
    field = Field(primes_for(61))
    a, b = field.uniform((50, 2), SystemRandomness()), field.uniform((50, 2), SystemRandomness())
    assert (a != b).mean() > 0.9
    assert (a[0] != a[1]).mean() > 0.9
    repeated = [field.uniform((5,), SimulatedRandomness(6)).tolist() for _ in range(2)]
    assert repeated[0] == repeated[1]


def test_products_within_runs_of_records_are_exact() -> None:
    """Extreme residues in runs of 0 to 4096 records, against Python's integers."""
    field = Field(primes_for(100))
    rng = np.random.default_rng(7)
    cuts = np.array([0, 1, 1, 60, 4156, 4200])
    a, b = (
        np.stack([rng.choice([0, p // 2, p // 2 + 1, p - 1], size=(4200, width)) for p in field.primes]).astype(
            np.int32
        )
        for width in (3, 2)
    )
    for right in (b, a):
        products = field.segments(a, right, cuts)
        for layer, p in enumerate(field.primes):
            for number, (start, stop) in enumerate(itertools.pairwise(cuts)):
                expected = python_gram(a[layer, start:stop], right[layer, start:stop]) % p if stop > start else 0
                assert (products[layer, number] == expected).all()
    with pytest.raises(SecureError):
        field.segments(a, b, np.array([0, 4097]))
