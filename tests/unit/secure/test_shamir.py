"""Shamir's sharing: exact against the shared integers, and any t shares against the uniform distribution.

Statistical tests use fixed seeds, so they do not vary; the threshold 1e-6 is the false alarm probability that
each would have with a fresh seed.
"""

from __future__ import annotations

from itertools import combinations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from colonnade.errors import SecureError, TooFewHolders
from colonnade.privacy.randomness import SimulatedRandomness, SystemRandomness
from colonnade.secure.field import PRIMES, Field, primes_for
from colonnade.secure.shamir import interpolate, lagrange_weights, reconstruct, share, share_residues

COMMITTEES = [(3, 1), (4, 1), (5, 1), (5, 2), (7, 3)]


def uniformity(cells: np.ndarray, size: int) -> float:
    """The chi-square p-value of equal cells 0, ..., size - 1."""
    return float(stats.chisquare(np.bincount(cells, minlength=size)).pvalue)


@settings(max_examples=40, deadline=None)
@given(
    data=st.data(),
    committee=st.sampled_from(COMMITTEES),
    bits=st.sampled_from([20, 61, 100, 300]),
    doubled=st.booleans(),
)
def test_any_degree_plus_one_shares_give_the_secret(
    data: st.DataObject, committee: tuple[int, int], bits: int, doubled: bool
) -> None:
    holders, threshold = committee
    degree = 2 * threshold if doubled else threshold
    field = Field(primes_for(bits))
    whole = st.integers(-field.bound, field.bound) | st.sampled_from([field.bound, -field.bound, 0, -1])
    values = np.array(data.draw(st.lists(whole, min_size=1, max_size=4)), dtype=object)
    shares = share(field, values, holders=holders, threshold=threshold, randomness=SystemRandomness(), degree=degree)
    assert len(shares) == holders
    for chosen in combinations(range(holders), degree + 1):
        opened = reconstruct(field, {j: shares[j] for j in chosen}, degree=degree)
        assert [int(v) for v in opened] == values.tolist()
    assert [int(v) for v in reconstruct(field, dict(enumerate(shares)), degree=degree)] == values.tolist()


@pytest.mark.parametrize("shape", [(), (0,), (0, 3), (2, 3), (40000,)])
def test_any_shape_is_shared(shape: tuple[int, ...]) -> None:
    field = Field(primes_for(61))
    values = np.random.default_rng(0).integers(-(2**60), 2**60, size=shape)
    shares = share(field, values, holders=3, threshold=1, randomness=SystemRandomness())
    assert all(s.shape == (3, *shape) and s.dtype == np.int32 for s in shares)
    opened = reconstruct(field, {0: shares[0], 2: shares[2]}, degree=1)
    assert opened.shape == shape
    assert (opened == values).all()


def test_shares_are_values_of_one_polynomial_of_the_degree_and_no_lower() -> None:
    # oracle: Lagrange interpolation in Python integers at all other holders' points
    field = Field(primes_for(41))
    values = np.arange(-50, 50)
    for holders, threshold in COMMITTEES:
        for degree in (threshold, 2 * threshold):
            shares = share(
                field, values, holders=holders, threshold=threshold, randomness=SimulatedRandomness(1), degree=degree
            )
            for k, p in enumerate(field.primes):
                points = list(range(1, degree + 2))
                for at in range(degree + 2, holders + 1):
                    weights = lagrange_weights(p, points, point=at)
                    exact = sum(w * shares[x - 1][k].astype(object) for w, x in zip(weights, points, strict=True)) % p
                    assert (exact == shares[at - 1][k]).all()
                lower = lagrange_weights(p, points[:-1], point=degree + 1)
                guess = sum(w * shares[x][k].astype(object) for x, w in enumerate(lower)) % p
                assert (guess != shares[degree][k]).mean() > 0.9


def test_lagrange_weights_reproduce_polynomials() -> None:
    # oracle: x^d itself, for every d below the number of points
    for p in (31, PRIMES[0]):
        points = [1, 2, 5, 7]
        for at in (0, 3, 11):
            weights = lagrange_weights(p, points, point=at)
            for d in range(4):
                assert sum(w * x**d for w, x in zip(weights, points, strict=True)) % p == at**d % p


# --- what t holders learn ----------------------------------------------------------------------------------


@pytest.mark.parametrize("secret", [0, 1, -1, 7])
@pytest.mark.parametrize(("holders", "threshold", "degree"), [(3, 1, 1), (3, 1, 2), (5, 2, 2), (5, 1, 2)])
def test_any_t_shares_of_a_secret_are_uniform(secret: int, holders: int, threshold: int, degree: int) -> None:
    """A small prime, so that every cell of the joint distribution of `degree` shares is counted."""
    p = 17
    field = Field((p,))
    values = np.full(100 * p**degree, secret)
    shares = share(
        field, values, holders=holders, threshold=threshold, randomness=SimulatedRandomness(2), degree=degree
    )
    for chosen in combinations(range(holders), degree):
        cells = sum(shares[j][0].astype(np.int64) * p**i for i, j in enumerate(chosen))
        assert uniformity(cells, p**degree) > 1e-6


def test_shares_modulo_the_public_primes_are_uniform_and_independent_across_primes() -> None:
    field = Field(primes_for(61))
    secret = np.full(120_000, -123_456_789_012)
    first = share(field, secret, holders=3, threshold=1, randomness=SimulatedRandomness(3))[1].astype(np.int64)
    coarse = [layer * 16 // p for layer, p in zip(first, field.primes, strict=True)]
    for a, b in combinations(range(3), 2):
        assert uniformity(coarse[a] * 16 + coarse[b], 256) > 1e-6


def test_a_sharing_of_too_low_a_degree_would_be_caught() -> None:
    # planted bug: degree 1 where t = 2; two shares then determine the secret, so their joint cells are few
    p = 17
    values = np.full(100 * p**2, 7)
    shares = share(Field((p,)), values, holders=5, threshold=1, randomness=SimulatedRandomness(4))
    assert uniformity(shares[0][0].astype(np.int64) + p * shares[1][0], p**2) < 1e-12


def test_fresh_coefficients_for_every_entry_and_every_call() -> None:
    field = Field(primes_for(20))
    zeros = np.zeros(70_000, dtype=np.int64)  # more than one chunk of the sharing
    a, b = (share(field, zeros, holders=3, threshold=1, randomness=SystemRandomness())[0][0] for _ in range(2))
    assert (a == b).mean() < 0.001
    assert np.unique(a).size > 60_000


# --- refusals ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("holders", "threshold", "degree"), [(2, 1, None), (3, 0, None), (4, 2, None), (3, 1, 0), (3, 1, 3), (5, 2, 1)]
)
def test_unsafe_committees_are_refused(holders: int, threshold: int, degree: int | None) -> None:
    with pytest.raises(TooFewHolders):
        share(
            Field(primes_for(20)),
            [1],
            holders=holders,
            threshold=threshold,
            randomness=SystemRandomness(),
            degree=degree,
        )


def test_more_holders_than_field_points_are_refused() -> None:
    with pytest.raises(TooFewHolders):
        share(Field((5,)), [1], holders=5, threshold=1, randomness=SystemRandomness())


def test_too_few_or_foreign_shares_are_refused() -> None:
    field = Field(primes_for(40))
    shares = share(field, [1, 2], holders=5, threshold=2, randomness=SystemRandomness())
    with pytest.raises(TooFewHolders, match="needs 3 shares and 2 came"):
        reconstruct(field, {0: shares[0], 4: shares[4]}, degree=2)
    with pytest.raises(TooFewHolders):
        reconstruct(field, {}, degree=0)
    with pytest.raises(SecureError):
        reconstruct(field, {0: shares[0], 1: shares[1], 2: shares[2][:, :1]}, degree=2)
    with pytest.raises(SecureError):
        reconstruct(field, {-1: shares[0], 1: shares[1], 2: shares[2]}, degree=2)
    with pytest.raises(SecureError):
        reconstruct(field, {0: shares[0], 1: shares[1], 2: shares[2].astype(np.int64)}, degree=2)


@settings(max_examples=30, deadline=None)
@given(liar=st.integers(0, 4), entry=st.integers(0, 2), layer=st.integers(0, 1), by=st.integers(1, 2**20))
def test_a_wrong_share_is_detected_when_there_is_a_surplus(liar: int, entry: int, layer: int, by: int) -> None:
    field = Field(primes_for(40))
    shares = share(field, [1, -2, 3], holders=5, threshold=1, randomness=SystemRandomness())
    shares[liar][layer, entry] = (shares[liar][layer, entry] + by) % field.primes[layer]
    with pytest.raises(SecureError, match="do not lie on one polynomial"):
        reconstruct(field, dict(enumerate(shares)), degree=1)


def test_interpolation_at_a_holders_point_is_its_share() -> None:
    field = Field(primes_for(61))
    residues = field.uniform((4,), SystemRandomness())
    shares = share_residues(field, residues, holders=5, threshold=2, randomness=SystemRandomness())
    known = {j: shares[j] for j in (0, 2, 4)}
    assert (interpolate(field, known, degree=2, point=4) == shares[3]).all()
    assert (interpolate(field, known, degree=2) == residues).all()
