"""Rows in whole numbers are never longer than the bound that the noise rests on."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from colonnade.data.column import Column, Columns
from colonnade.errors import ModulusTooSmall, SchemaError, SourceError
from colonnade.federation.facts import PublicFacts
from colonnade.federation.roster import Member, Roster
from colonnade.papers.vfem.block import Design
from colonnade.papers.vfem.information import information_layout
from colonnade.privacy.randomness import SimulatedRandomness
from colonnade.statistics import features
from colonnade.statistics.features import _PIECE, IntegerRows, integer_bounds, quantize
from colonnade.statistics.moments import Moments

WIDE = 2100
ROSTER = Roster(
    members=tuple(Member(name=name, organisation=name, public_key=name.encode() * 32) for name in "abc"),
    committee=("a", "b", "c"),
)


def wide_facts() -> PublicFacts:
    """Three parties; the first has more columns than a tile is wide."""
    names = {"a": [f"x{j}" for j in range(WIDE)], "b": ["y"], "c": ["z"]}
    return PublicFacts(
        n=10,
        columns={
            party: Columns(Column(name=name, kind="continuous", lower=-1.0, upper=1.0) for name in own)
            for party, own in names.items()
        },
    )


def test_two_columns_with_one_feature_are_refused() -> None:
    own = [
        Column(name="kind[b]", kind="count", lower=0, upper=9),
        Column(name="kind", kind="categorical", categories=("a", "b")),
    ]
    with pytest.raises(SchemaError, match=r"'kind\[b\]' and 'kind' would both give"):
        features.features(PublicFacts(n=10, columns={"a": Columns(own)}))


@settings(max_examples=40, deadline=None)
@given(
    width=st.integers(1, 40),
    gamma=st.sampled_from([1, 3, 2**12, 2**26]),
    clip=st.floats(0.01, 8.0),
    scale=st.floats(0.0, 1.0),
    seed=st.integers(0, 2**16),
)
def test_no_row_passes_its_bound(width: int, gamma: int, clip: float, scale: float, seed: int) -> None:
    rows = np.random.default_rng(seed).uniform(-1, 1, size=(5, width)) * scale + (1 - scale)
    made = quantize(rows, gamma=gamma, clip=clip, entry=1.0, randomness=SimulatedRandomness(seed))
    square, largest = integer_bounds(gamma, clip, 1.0)
    for row in made.tolist():
        assert sum(v * v for v in row) <= square, "in Python's integers, which do not wrap"
        assert max(map(abs, row)) <= largest


def test_rounding_is_to_the_next_integers_and_right_on_average() -> None:
    """More entries than are rounded at a time; each has the fraction 1/4."""
    whole = np.random.default_rng(0).integers(-100, 100, size=(1000, 50))
    rows = (whole + 0.25) / 2**10
    up = quantize(rows, gamma=2**10, clip=50.0, entry=1.0, randomness=SimulatedRandomness(1)) - whole
    assert set(np.unique(up)) == {0, 1}
    means = np.array([up.mean(), *up.mean(axis=0), *(part.mean() for part in np.array_split(up, 50))])
    counts = np.array([up.size, *[1000] * 50, *[1000] * 50])
    assert (np.abs(means - 0.25) < 5 * np.sqrt(0.25 * 0.75 / counts)).all()
    piece = _PIECE // 50
    assert not np.array_equal(up[:piece], up[piece : 2 * piece]), "no draw serves twice"


def test_a_norm_that_would_wrap_is_refused() -> None:
    """4,096 entries of 2^26 have a squared norm of 2^64, which int64 takes for 0: the row would not be clipped."""
    rows = np.ones((1, 4096))
    with pytest.raises(ModulusTooSmall, match="smaller gamma"):
        quantize(rows, gamma=2**26, clip=1.0, entry=1.0, randomness=SimulatedRandomness(1))
    with pytest.raises(ModulusTooSmall, match="smaller gamma"):
        Moments(epsilon=1.0, presence="ignore", gamma=2**26).layout(wide_facts(), ROSTER)


def test_the_weighted_matrix_of_vfem_is_opened_as_one_triangle() -> None:
    """Its reader expects one; in tiles of 2,048 columns the entries would come in another order, unnoticed."""
    facts = wide_facts()
    layout = information_layout(Design.of(facts, [*facts.columns["a"], "y", "z"]), ROSTER, 2**10)
    (tiles,) = layout.rounds
    assert [tile.diagonal for tile in tiles] == [True]
    assert layout.openings[0] == (WIDE + 2) * (WIDE + 3) // 2


@pytest.mark.parametrize("masks", [None, 1])
def test_rows_that_another_process_made_are_checked_against_every_bound(masks: int | None) -> None:
    """Planted: an entry beyond gamma, a row beyond its norm, a mask between 0 and gamma, a record that counts twice."""
    integers = IntegerRows(gamma=100, clip=1.2, masks=masks)
    values = np.random.default_rng(1).uniform(-1, 1, (50, 3 + (masks or 0)))
    rows = integers(values, SimulatedRandomness(1)).astype(np.int16)
    integers.check(rows)
    integers.check(rows[:0])
    first = 0 if masks is None else 2
    for entries in ([101, 0, 0], [80, 80, 60]):
        changed = rows.copy()
        changed[7, first:] = entries
        with pytest.raises(SourceError, match="beyond their bounds"):
            integers.check(changed)
    for column, value in ((0, 200), (1, 50)) if first else ():
        changed = rows.copy()
        changed[7, column] = value
        with pytest.raises(SourceError, match="beyond their bounds"):
            integers.check(changed)
