"""What the parties do in a private VFEM besides computing moments on shares: see `models/vfem_private.py`."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from colonnade.errors import PartyLost, UnsafeRequest
from colonnade.federation.party import Party
from colonnade.federation.step import Public, Release, step
from colonnade.privacy.cost import Cost, Gaussian, Unbounded
from colonnade.privacy.noise import discrete_gaussian
from colonnade.statistics.features import design_chunks
from colonnade.statistics.moment_layout import Layout
from colonnade.statistics.quantize import integer_bounds, quantize

NORM_BINS, NORM_REACH = 64, 4.0
"""Cells of the lengths of standardised rows, up to so many deviations in each column."""
MAXIMUM_OTHERS = 8
"""Parties besides the response holder: the noise of a pair's count grows with the root of the number of patterns."""


def own_sensitivity(gamma: int, norm: float) -> float:
    """||upper(z z')|| with z = (gamma, row), |row| <= gamma norm: sqrt((s^2 + gamma^2 s) / 2), s = |z|^2."""
    square = integer_bounds(gamma, norm, 1.0)[0] + gamma**2
    return math.sqrt((square**2 + gamma**2 * square) / 2)


def _local_cost(public: Public, *, layout: dict[str, Any], level: float) -> Cost:
    """A record is in one cell: zero-out moves one count by 1, replace two."""
    return Gaussian(level, replace_factor=math.sqrt(2))


@step(cost=_local_cost)
def block_norms(me: Party, *, layout: dict[str, Any], level: float) -> Release:
    """Noisy counts of the lengths of this party's standardised rows."""
    known = Layout.from_dict(me.facts, me.roster, layout)
    wide = [replace(one, half=one.half * NORM_REACH) for one in known.features]
    counts = np.zeros(NORM_BINS, dtype=np.int64)
    for _, rows in design_chunks(me, wide):
        counts += cells_of_lengths(rows)
    noisy = counts + discrete_gaussian(me.randomness, level, NORM_BINS)
    return Release(noisy, "noisy counts of the lengths of this party's standardised rows")


def cells_of_lengths(rows: NDArray[np.float64]) -> NDArray[np.int64]:
    """How many rows in [-1, 1] have a root mean square in each of equal cells of [0, 1]."""
    share = np.sqrt(np.einsum("ij,ij->i", rows, rows) / rows.shape[1])
    return np.bincount(np.minimum((share * NORM_BINS).astype(np.int64), NORM_BINS - 1), minlength=NORM_BINS).astype(
        np.int64
    )


def _presence_cost(public: Public, *, to: str) -> Cost:
    return Unbounded("presence", "which pseudonymous records a party has, to the response holder", audience=to)


@step(cost=_presence_cost)
def tell_presence(me: Party, *, to: str) -> Release:
    me.send(to, "vfem presence", np.packbits(me.present))
    return Release(None, "nothing: the mask travels sealed")


def _own_cost(public: Public, *, layout: dict[str, Any], others: list[Any], level: float) -> Cost:
    """The triangle of a pattern moves by at most `own_sensitivity`; patterns are disjoint. Two triangles have a
    non-negative inner product, so replacing a record costs sqrt(2)."""
    return Gaussian(level, replace_factor=math.sqrt(2))


@step(cost=_own_cost)
def own_moments(me: Party, *, layout: dict[str, Any], others: list[Any], level: float) -> Release:
    """Noisy Gram matrices of (1, this party's columns), one for each pattern of the others; in integers."""
    known = Layout.from_dict(me.facts, me.roster, layout)
    if len(others) > MAXIMUM_OTHERS or not set(others) <= set(known.parties) - {me.name}:
        raise UnsafeRequest("the other parties of a private VFEM must be distinct data parties of its layout.")
    pattern = _patterns(me, others)
    width = known.width(me.name) + 1
    grams = np.zeros((2 ** len(others), width, width), dtype=np.int64)
    norm = known.bound(me.name)
    for at, rows in design_chunks(me, known.features):
        whole = quantize(rows, gamma=known.gamma, clip=norm, entry=1.0, randomness=me.randomness)
        extended = np.column_stack([np.full(len(whole), known.gamma, dtype=np.int64), whole])
        for number in np.unique(pattern[at]):
            here = extended[pattern[at] == number]
            grams[number] += here.T @ here
    sigma = math.nextafter(level * own_sensitivity(known.gamma, norm), math.inf)
    upper = np.triu_indices(width)
    noise = discrete_gaussian(me.randomness, sigma, len(grams) * len(upper[0])).reshape(len(grams), -1)
    grams[:, upper[0], upper[1]] += noise
    grams[:, upper[1], upper[0]] = grams[:, upper[0], upper[1]]
    return Release(grams, "noisy moments of the response holder's columns in each pattern")


def _patterns(me: Party, others: Sequence[str]) -> NDArray[np.int64]:
    """For each record of the cohort, its pattern among the others, counted as `itertools.product` does."""
    got = me.received("vfem presence") if others else {}
    missing = [party for party in others if party not in got]
    if missing:
        raise PartyLost(f"{', '.join(missing)} did not say which records it has; resume when it is back.")
    number = np.zeros(me.facts.n, dtype=np.int64)
    for party in others:
        bits = np.unpackbits(np.asarray(got[party], dtype=np.uint8), count=me.facts.n)
        number = 2 * number + bits
    return number
