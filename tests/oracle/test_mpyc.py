"""Agreement with MPyC (an independent implementation of Shamir and BGW), at small size.

MPyC's sharing and recombination run here without its network: the same holders, threshold and points 1, ..., m.
"""

from __future__ import annotations

import numpy as np
import pytest

from colonnade.privacy.randomness import SystemRandomness
from colonnade.secure import bgw
from colonnade.secure.field import Field, primes_for
from colonnade.secure.shamir import lagrange_weights, reconstruct, share
from support.whole_bgw import Polynomial, evaluate, polynomial_bits

thresha = pytest.importorskip("mpyc.thresha")
finfields = pytest.importorskip("mpyc.finfields")

COMMITTEES = [(3, 1), (5, 2)]


@pytest.mark.parametrize(("holders", "threshold"), COMMITTEES)
def test_mpyc_recombines_our_shares(holders: int, threshold: int) -> None:
    field = Field(primes_for(61))
    values = np.array([0, 1, -1, 2**60, -(2**60)])
    for degree in (threshold, 2 * threshold):
        shares = share(
            field, values, holders=holders, threshold=threshold, randomness=SystemRandomness(), degree=degree
        )
        for k, p in enumerate(field.primes):
            gf = finfields.GF(p)
            points = [(j + 1, [gf(int(v)) for v in shares[j][k]]) for j in reversed(range(holders))][: degree + 1]
            assert [int(v) % p for v in thresha.recombine(gf, points)] == [int(v) % p for v in values]


@pytest.mark.parametrize(("holders", "threshold"), COMMITTEES)
def test_we_recombine_mpycs_shares(holders: int, threshold: int) -> None:
    field = Field(primes_for(61))
    values = [0, 5, -7, 2**60, -(2**60)]
    layers = []
    for p in field.primes:
        gf = finfields.GF(p)
        layers.append(thresha.random_split(gf, [gf(v) for v in values], threshold, holders))
    shares = {j: np.array([[int(v) for v in layer[j]] for layer in layers], dtype=np.int32) for j in range(holders)}
    assert reconstruct(field, shares, degree=threshold).tolist() == values


@pytest.mark.parametrize(("holders", "threshold"), COMMITTEES)
def test_lagrange_weights_are_mpycs_recombination_vector(holders: int, threshold: int) -> None:
    for p in primes_for(61):
        points = tuple(range(1, holders + 1))
        for at in (0, holders + 3):
            expected = [int(v) for v in thresha._recombination_vector(finfields.GF(p), points, at)]
            assert lagrange_weights(p, list(points), point=at) == expected


def mpyc_polynomial_sum(polynomial: Polynomial, columns: list[list[int]], *, holders: int, threshold: int) -> int:
    """BGW over one 127-bit prime with MPyC's elements: multiply locally, split again, recombine, open."""
    gf = finfields.GF(2**127 - 1)
    points = range(1, holders + 1)

    def split(values: list[object]) -> list[list[object]]:
        return [[gf(v) for v in row] for row in thresha.random_split(gf, values, threshold, holders)]

    shared = [split([gf(v) for v in column]) for column in columns]
    total = [[gf(0)] * len(columns[0]) for _ in points]
    for coefficient, exponents in polynomial:
        current = [[gf(1)] * len(columns[0]) for _ in points]
        for shares, exponent in zip(shared, exponents, strict=True):
            for _ in range(exponent):
                local = [[a * b for a, b in zip(x, y, strict=True)] for x, y in zip(current, shares, strict=True)]
                sent = [split(mine) for mine in local]
                current = [thresha.recombine(gf, [(i, sent[i - 1][j]) for i in points]) for j in range(holders)]
        total = [[t + coefficient * c for t, c in zip(x, y, strict=True)] for x, y in zip(total, current, strict=True)]
    opened = thresha.recombine(gf, [(i, total[i - 1]) for i in points][: threshold + 1])
    return sum(int(v) for v in opened)  # MPyC's elements are integers centred on 0


@pytest.mark.parametrize(("holders", "threshold"), COMMITTEES)
def test_polynomials_agree(holders: int, threshold: int) -> None:
    generator = np.random.default_rng(holders)
    for _ in range(6):
        columns = [generator.integers(-(2**14), 2**14 + 1, size=4) for _ in range(3)]
        polynomial = [
            (int(generator.integers(-100, 100)), tuple(int(e) for e in generator.multinomial(d, [1 / 3] * 3)))
            for d in (0, 1, 2, 3, 4)
        ]
        field = Field(primes_for(polynomial_bits(polynomial, bounds=[2**14] * 3, records=4)))
        ours = evaluate(
            field,
            polynomial,
            columns,
            holders=holders,
            threshold=threshold,
            noise={"a": 0, "b": 0},
            randomness=SystemRandomness(),
        )
        theirs = mpyc_polynomial_sum(polynomial, [c.tolist() for c in columns], holders=holders, threshold=threshold)
        assert ours == theirs


def test_a_gram_matrix_agrees() -> None:
    generator = np.random.default_rng(9)
    values = generator.integers(-(2**14), 2**14 + 1, size=(6, 3))
    field = Field(primes_for((6 * 2**28).bit_length()))
    sharing = {"holders": 3, "threshold": 1, "randomness": SystemRandomness()}
    zero = bgw.noise_sharing(field, np.zeros((3, 3), dtype=np.int64), **sharing)
    sent = {
        j: bgw.open_product(bgw.gram(field, mine), noise={"a": zero[j]}, parties=["a"])
        for j, mine in enumerate(share(field, values, **sharing))
    }
    ours = reconstruct(field, sent, degree=2)
    theirs = [
        [
            mpyc_polynomial_sum([(1, (1, 1))], [values[:, i].tolist(), values[:, j].tolist()], holders=3, threshold=1)
            for j in range(3)
        ]
        for i in range(3)
    ]
    assert ours.tolist() == theirs
