"""The whole protocol of `secure.bgw` in one process, for a polynomial of the columns: tests compare it with oracles."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from colonnade.privacy.randomness import Randomness
from colonnade.secure.bgw import Product, lift, multiply, noise_sharing, open_product, recombine, reshare
from colonnade.secure.field import Field, Residues
from colonnade.secure.shamir import check_holders, reconstruct, share

Polynomial = Sequence[tuple[int, Sequence[int]]]
"""As data: (coefficient, exponent of each column) for each monomial."""


def polynomial_bits(polynomial: Polynomial, *, bounds: Sequence[int], records: int, noise: int = 0) -> int:
    """Bits of the largest |sum over records of f| + |noise|, each column within its bound: for `primes_for`."""
    worst = sum(
        abs(coefficient) * int(np.prod([b**e for b, e in zip(bounds, exponents, strict=True)], dtype=object))
        for coefficient, exponents in polynomial
    )
    return (records * worst + noise).bit_length()


def evaluate(
    field: Field,
    polynomial: Polynomial,
    columns: Sequence[NDArray[np.int64]],
    *,
    holders: int,
    threshold: int,
    noise: Mapping[str, int],
    randomness: Randomness,
) -> int:
    """The sum over records of a polynomial of the columns, plus all noise, by the whole protocol in one process.

    It plays every holder with the functions of `secure.bgw`; the federation moves the same messages over a network.
    """
    check_holders(holders, threshold)
    sharing = {"holders": holders, "threshold": threshold}
    shared = [share(field, column, randomness=randomness, **sharing) for column in columns]
    ones = field.encode(np.ones(len(columns[0]), dtype=np.int64))

    def times(a: Sequence[Residues], b: Sequence[Residues]) -> list[Product]:
        return [multiply(field, mine, other) for mine, other in zip(a, b, strict=True)]

    def reduce_degree(products: Sequence[Product]) -> list[Residues]:
        sent = [reshare(product, randomness=randomness, **sharing) for product in products]
        received = [dict(enumerate(messages)) for messages in zip(*sent, strict=True)]
        return [recombine(field, messages, threshold=threshold) for messages in received]

    totals = [lift(field, field.zeros(())) for _ in range(holders)]
    for coefficient, exponents in polynomial:
        factors = [shares for shares, e in zip(shared, exponents, strict=True) for _ in range(e)]
        while len(factors) > 2:  # in pairs: the depth is the logarithm of the degree
            pairs = [reduce_degree(times(a, b)) for a, b in zip(factors[::2], factors[1::2], strict=False)]
            factors = pairs + factors[len(factors) - len(factors) % 2 :]
        if len(factors) == 2:
            monomial = times(factors[0], factors[1])
        else:
            monomial = [lift(field, mine) for mine in (factors[0] if factors else [ones] * holders)]
        totals = [total + mine.sum().scale(coefficient) for total, mine in zip(totals, monomial, strict=True)]

    sharings = {party: noise_sharing(field, drawn, randomness=randomness, **sharing) for party, drawn in noise.items()}
    opened = {
        holder: open_product(total, noise={party: s[holder] for party, s in sharings.items()}, parties=list(noise))
        for holder, total in enumerate(totals)
    }
    return int(reconstruct(field, opened, degree=2 * threshold))
