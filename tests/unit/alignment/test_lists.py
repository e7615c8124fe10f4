"""Numbering, against sets of keys; the tags here are the keys themselves."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from colonnade.alignment.align import Aligned, pattern_counts
from colonnade.alignment.lists import TaggedList, number_fixed, number_union
from colonnade.errors import EmptyParty, KeyProblem
from colonnade.privacy.randomness import SimulatedRandomness

KEYS = st.lists(st.integers(0, 30), unique=True, min_size=1, max_size=20)


def listed(keys: list[int], dummies: int = 0) -> TaggedList:
    """Keys as tags of 32 bytes, then dummies with tags of their own."""
    tags = np.zeros((len(keys) + dummies, 32), dtype=np.uint8)
    tags[: len(keys), 0] = keys
    tags[len(keys) :, 1:] = np.random.default_rng(len(keys)).integers(0, 256, (dummies, 31))
    return TaggedList(tags, np.arange(len(tags)) < len(keys))


@settings(max_examples=50, deadline=None)
@given(st.lists(KEYS, min_size=2, max_size=4), st.integers(0, 3))
def test_union(keys: list[list[int]], dummies: int) -> None:
    lists = {f"p{i}": listed(one, dummies) for i, one in enumerate(keys)}
    made = number_union(lists, randomness=SimulatedRandomness(1))
    everybody = sorted(set().union(*keys))
    assert made.cohort.n == len(everybody)
    row_of: dict[int, int] = {}
    for one, rows in zip(keys, made.rows.values(), strict=True):
        assert (rows[len(one) :] == -1).all()
        for key, row in zip(one, rows.tolist(), strict=False):
            assert row_of.setdefault(key, row) == row
    assert sorted(row_of.values()) == list(range(len(everybody)))
    for key, row in row_of.items():
        assert made.cohort.presence[row].tolist() == [key in one for one in keys]
    counts = pattern_counts(made.cohort, tuple(lists))
    for index, count in enumerate(counts.tolist()):
        assert count == sum(sum((key in one) << bit for bit, one in enumerate(keys)) == index for key in everybody)


@settings(max_examples=50, deadline=None)
@given(KEYS, st.lists(KEYS, min_size=1, max_size=3))
def test_fixed(mine: list[int], others: list[list[int]]) -> None:
    own = {f"q{i}": listed(mine, 2) for i in range(len(others))}
    theirs = {f"q{i}": listed(one, 1) for i, one in enumerate(others)}
    if any(not set(one) & set(mine) for one in others):
        with pytest.raises(EmptyParty):
            number_fixed("r", own, theirs, randomness=SimulatedRandomness(2))
        return
    made = number_fixed("r", own, theirs, randomness=SimulatedRandomness(2))
    row_of = dict(zip(mine, made.rows["r"].tolist(), strict=False))
    assert sorted(row_of.values()) == list(range(len(mine)))
    for party, one in zip(theirs, others, strict=True):
        assert made.rows[party].tolist() == [row_of.get(key, -1) for key in one] + [-1]
    for key, row in row_of.items():
        assert made.cohort.presence[row].tolist() == [True, *(key in one for one in others)]


def test_the_order_of_the_cohort_is_random() -> None:
    """30 records keep the order of their list with probability 1 / 30! < 1e-32."""
    rows = number_union({"a": listed(list(range(30)))}, randomness=SimulatedRandomness(3)).rows["a"]
    assert rows.tolist() != sorted(rows.tolist())


def test_a_key_twice_in_a_list() -> None:
    with pytest.raises(KeyProblem, match="twice"):
        number_union({"a": listed([1, 2, 1])}, randomness=SimulatedRandomness(4))


def test_overlaps_of_a_result() -> None:
    patterns = np.array([0, 5, 7, 11])  # nobody, a alone, b alone, both
    made = Aligned(
        n=23, include="union", matcher="a", parties=("a", "b"), patterns=patterns, noise_sd=0.0, simulated=True
    )
    assert made.overlap(["a"]) == 16
    assert made.overlap(["a", "b"]) == 11
    assert made.rows() == [(("a",), 5), (("b",), 7), (("a", "b"), 11)]
