"""Sharings by seeds: exact against the integers, uniform to any `degree` holders, small on the wire."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from colonnade.errors import ModulusTooSmall, SecureError, TooFewHolders
from colonnade.privacy.randomness import SimulatedRandomness
from colonnade.secure.field import BATCH_ROWS, Field, primes_for
from colonnade.secure.seeded import (
    SEED_BYTES,
    Dealing,
    PackedShare,
    SeedShare,
    Shape,
    deal_residues,
    deal_seeded,
    materialize,
    terms,
)
from colonnade.secure.shamir import interpolate, reconstruct

ALARM = 1e-7


def dealing(values: np.ndarray, *, holders: int = 3, threshold: int = 1, seed: int = 1, **more: int) -> Dealing:
    field = Field(primes_for(61)) if "prime" not in more else Field((more.pop("prime"),))
    return deal_seeded(
        field, values, holders=holders, threshold=threshold, randomness=SimulatedRandomness(seed), **more
    )


@settings(deadline=None, max_examples=40)
@given(st.data())
def test_all_shares_together_give_the_numbers(data: st.DataObject) -> None:
    """Oracle: the numbers themselves. Every choice of enough holders agrees, for data (t) and noise (2t)."""
    threshold = data.draw(st.integers(1, 2))
    holders = data.draw(st.integers(2 * threshold + 1, 6))
    degree = data.draw(st.sampled_from([threshold, 2 * threshold]))
    first = data.draw(st.integers(0, 6))
    records, width = data.draw(st.sampled_from([(1, 1), (7, 3), (BATCH_ROWS + 5, 2), (0, 4), (2 * BATCH_ROWS, 1)]))
    rng = np.random.default_rng(data.draw(st.integers(0, 99)))
    largest = data.draw(st.sampled_from([3, 2**14, 2**40]))
    values = rng.integers(-largest, largest + 1, size=(records, width))
    made = dealing(values, holders=holders, threshold=threshold, degree=degree, first=first)
    assert len(made.seeds) == degree
    without = [holder for holder in range(holders) if holder not in made.seeds]
    shares = {holder: materialize(made.share(holder)) for holder in range(holders)}
    for holder, packed in zip(without, made.packed(without), strict=True):
        assert np.array_equal(materialize(packed), shares[holder]), (
            "what travels is what the dealer computes for itself"
        )
    assert np.array_equal(reconstruct(made.field, shares, degree=degree), values)
    for chosen in itertools.islice(itertools.combinations(range(holders), degree + 1), 4):
        assert np.array_equal(reconstruct(made.field, {h: shares[h] for h in chosen}, degree=degree), values)


@pytest.mark.parametrize(("holders", "threshold", "kind"), [(3, 1, np.int16), (5, 2, np.int16), (5, 2, np.int64)])
def test_the_terms_of_a_share_add_up_to_it(holders: int, threshold: int, kind: type[np.integer]) -> None:
    values = np.random.default_rng(1).integers(-(2**15), 2**15, size=(BATCH_ROWS + 3, 2)).astype(kind)
    made = dealing(values, holders=holders, threshold=threshold)
    primes = np.array(made.field.primes).reshape(-1, 1, 1)
    for holder in range(holders):
        share = made.share(holder)
        of_block = terms(share, 1)
        assert len(of_block) == (1 if holder in made.seeds or kind is np.int64 else 1 + threshold)
        total = sum(np.array(factors).reshape(-1, 1, 1) * rows.astype(np.int64) for factors, rows in of_block)
        assert np.array_equal(total % primes, share.block(1))


@pytest.mark.parametrize(("holders", "threshold", "degree"), [(3, 1, 1), (3, 1, 2), (5, 2, 2)])
def test_any_degree_of_the_shares_are_uniform(holders: int, threshold: int, degree: int) -> None:
    """Chi-square over all p^degree cells of the joint law, at a small prime, for two different secrets."""
    prime, trials = 7, 80_000
    for secret in (0, 3):
        made = dealing(np.full(trials, secret), holders=holders, threshold=threshold, degree=degree, prime=prime)
        shares = [materialize(made.share(holder))[0] for holder in range(holders)]
        for chosen in itertools.combinations(range(holders), degree):
            cells = np.ravel_multi_index([shares[h] for h in chosen], (prime,) * degree)
            counts = np.bincount(cells, minlength=prime**degree)
            assert stats.chisquare(counts).pvalue > ALARM
        one_more = np.ravel_multi_index([shares[h] for h in range(degree + 1)], (prime,) * (degree + 1))
        counts = np.bincount(one_more, minlength=prime ** (degree + 1))
        assert stats.chisquare(counts).pvalue < ALARM, "the test would notice shares that depend on the secret"


def test_streams_of_blocks_primes_and_seeds_differ() -> None:
    shape = Shape((2 * BATCH_ROWS, 1))
    field = Field(primes_for(61))
    one = SeedShare(field, shape, bytes(SEED_BYTES))
    other = SeedShare(field, shape, b"\1" + bytes(SEED_BYTES - 1))
    parts = [one.block(0)[0], one.block(0)[1], one.block(1)[0], other.block(0)[0]]
    # Equal residues by chance: about 4096 / 2^21 for each pair.
    assert all((a == b).mean() < 0.01 for a, b in itertools.combinations(parts, 2))
    assert np.array_equal(one.block(1), one.block(1)), "a block is the same whenever it is asked for"


def test_what_travels_is_small_and_depends_on_the_shape_only() -> None:
    """Three residues in 8 bytes: a whole share of three primes takes 8 bytes an entry, a seed 32 in all."""
    small, large = (dealing(np.full((900, 10), value)) for value in (0, 2**40))
    sizes = [sum(layer.nbytes for layer in one.packed([0])[0].words) for one in (small, large)]
    assert sizes[0] == sizes[1] == 8 * 900 * 10


def test_refusals() -> None:
    values = np.zeros((4, 2), dtype=np.int64)
    with pytest.raises(TooFewHolders):
        dealing(values, holders=3, threshold=1, degree=3)
    with pytest.raises(TooFewHolders):
        dealing(values, holders=3, threshold=2)
    with pytest.raises(ModulusTooSmall):
        dealing(np.array([4]), prime=7)
    made = dealing(values)
    with pytest.raises(SecureError, match="32 bytes"):
        SeedShare(made.field, made.shape, b"short")
    words = made.packed([0])[0].words
    with pytest.raises(SecureError, match="words of its shape"):
        PackedShare(made.field, Shape((5, 2)), words)
    for bad in (np.uint64(2**21 - 1), np.uint64(1) << np.uint64(63)):
        damaged = [layer.copy() for layer in words]
        damaged[0][0] = bad
        with pytest.raises(SecureError, match="out of range"):
            PackedShare(made.field, made.shape, damaged).block(0)
    with pytest.raises(SecureError, match="shape"):
        Shape((-1, 2))


def test_residues_are_shared_again_as_integers_are() -> None:
    """A holder's own share: all shares together give the residues, and every seed's share is its stream."""
    field = Field(primes_for(61))
    rng = np.random.default_rng(2)
    residues = np.stack([rng.integers(p, size=(BATCH_ROWS + 3, 2)) for p in field.primes]).astype(np.int32)
    made = deal_residues(field, residues, holders=5, threshold=2, randomness=SimulatedRandomness(4), first=3)
    assert sorted(made.seeds) == [3, 4]
    shares = {holder: materialize(packed) for holder, packed in enumerate(made.packed([0, 1, 2]))}
    shares |= {holder: materialize(SeedShare(field, made.shape, seed)) for holder, seed in made.seeds.items()}
    assert np.array_equal(interpolate(field, shares, degree=2), residues)
