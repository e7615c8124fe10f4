"""Cohorts and the join in the clear. Oracles: brute force over Python sets and tuples."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from colonnade.data import Alignment, Cohort, join_in_the_clear
from colonnade.errors import CorruptRecord, EmptyParty, KeyProblem, SchemaError, SourceError
from colonnade.privacy.randomness import SimulatedRandomness


def join(keys: dict, **options: object) -> tuple[Cohort, dict[str, Alignment]]:
    return join_in_the_clear(keys, **{"randomness": SimulatedRandomness(1), **options})


# --- patterns --------------------------------------------------------------------------------------------


@given(hnp.arrays(np.bool_, st.tuples(st.integers(0, 30), st.sampled_from([1, 2, 3, 8, 9, 63, 64, 65, 70]))))
@settings(max_examples=60, deadline=None)
def test_patterns_against_brute_force(presence: np.ndarray) -> None:
    presence[1:] &= presence[:1] | (np.arange(presence.shape[1]) > presence.shape[1] - 3)  # so that rows repeat
    cohort = Cohort(tuple(f"p{k}" for k in range(presence.shape[1])), presence)
    rows = [tuple(row) for row in presence.tolist()]
    expected = sorted(Counter(rows).items())
    patterns = cohort.patterns()
    assert [tuple(mask) for mask in patterns.masks.tolist()] == [mask for mask, _ in expected]
    assert patterns.counts.tolist() == [count for _, count in expected]
    assert [tuple(patterns.masks[p].tolist()) for p in patterns.index] == rows
    assert (patterns.masks.dtype, patterns.counts.dtype, patterns.index.dtype) == (np.bool_, np.int64, np.int32)
    assert patterns.masks.shape == (len(expected), presence.shape[1])
    assert cohort.n == len(rows)
    assert cohort.complete().tolist() == [all(row) for row in rows]


def test_a_cohort_is_a_value() -> None:
    presence = np.array([[True, False]])
    cohort = Cohort(("a", "b"), presence)
    presence[0, 1] = True
    assert cohort.complete().tolist() == [False]
    with pytest.raises(ValueError, match="read-only"):
        cohort.presence[0, 0] = False
    with pytest.raises(SchemaError, match="distinct"):
        Cohort(("a", "a"), presence)
    with pytest.raises(SchemaError, match="boolean matrix"):
        Cohort(("a", "b"), np.array([[1, 0]]))
    with pytest.raises(SchemaError, match="boolean matrix"):
        Cohort(("a", "b", "c"), presence)


# --- the join --------------------------------------------------------------------------------------------


@given(
    st.dictionaries(
        st.sampled_from("abcd"), st.lists(st.integers(0, 12), min_size=1, max_size=10, unique=True), min_size=1
    ),
    st.booleans(),
    st.booleans(),
    st.integers(0, 2**32),
)
@settings(max_examples=80, deadline=None)
def test_the_join_against_brute_force(sets: dict, text: bool, union: bool, seed: int) -> None:
    keys = {party: [f"k{key}" if text else key for key in listed] for party, listed in sets.items()}
    include = "union" if union else sorted(keys)[0]
    expected = set().union(*keys.values()) if union else set(keys[include])
    if any(not expected & set(listed) for listed in keys.values()):
        with pytest.raises(EmptyParty, match="no record in the cohort"):
            join(keys, include=include)
        return
    cohort, alignments = join(keys, include=include, randomness=SimulatedRandomness(seed))
    assert cohort.parties == tuple(keys)
    assert cohort.n == len(expected)
    at: dict[int, set] = {row: set() for row in range(cohort.n)}
    for k, (party, listed) in enumerate(keys.items()):
        alignment = alignments[party]
        assert alignment.n == cohort.n
        assert len(alignment.rows) == len(listed)
        for key, row in zip(listed, alignment.rows.tolist(), strict=True):
            assert (row >= 0) == (key in expected)
            if row >= 0:
                at[row].add(key)
        present = {row for row in alignment.rows.tolist() if row >= 0}
        assert set(np.flatnonzero(cohort.presence[:, k]).tolist()) == present
    # Every cohort row is one key, and every key of the cohort has a row.
    assert all(len(found) == 1 for found in at.values())
    assert set().union(*at.values()) == expected


def test_numpy_keys_join_lists_and_the_seed_repeats_the_order() -> None:
    keys = {"a": np.array([3, 1, 2]), "b": [2, 9], "c": np.array([9], dtype=np.int32)}
    one, rows = join(keys)
    two, again = join(keys)
    np.testing.assert_array_equal(one.presence, two.presence)
    assert rows["a"].rows[2] == rows["b"].rows[0]
    assert rows["b"].rows[1] == rows["c"].rows[0]
    for party in keys:
        np.testing.assert_array_equal(rows[party].rows, again[party].rows)
    objects = {party: np.array([f"é{key}" for key in listed], dtype=object) for party, listed in keys.items()}
    np.testing.assert_array_equal(join(objects)[1]["a"].rows, rows["a"].rows)


def test_the_order_of_the_cohort_is_a_uniform_permutation() -> None:
    # Oracle: 6 equally likely orders of 3 keys. 1200 joins, 200 expected each. Under uniformity the chi-square of
    # 5 degrees of freedom exceeds 40 with probability 1.5e-7; the seed is fixed besides.
    randomness = SimulatedRandomness(5)
    seen = Counter(tuple(join({"a": [10, 20, 30]}, randomness=randomness)[1]["a"].rows.tolist()) for _ in range(1200))
    assert len(seen) == 6
    assert sum((count - 200) ** 2 / 200 for count in seen.values()) < 40


class TiedWords:
    """Gives equal words first: a tie must be drawn again, or the order would follow the keys."""

    def __init__(self) -> None:
        self.draws = 0

    def words(self, count: int) -> np.ndarray:
        self.draws += 1
        words = np.arange(count, 0, -1, dtype=np.uint64)
        if self.draws == 1:
            words[:2] = 7
        return words


def test_a_tie_is_drawn_again() -> None:
    source = TiedWords()
    _, alignments = join({"a": [1, 2, 3]}, randomness=source)
    assert source.draws == 2
    assert alignments["a"].rows.tolist() == [2, 1, 0]


@pytest.mark.parametrize(
    ("keys", "error", "words"),
    [
        (
            {"a": [1, 2], "b": ["P1", "P2"]},
            KeyProblem,
            r"different types \('a' has integers, 'b' has text\), .*; convert",
        ),
        ({"a": [1, 2, 1]}, KeyProblem, r"'a': 1 record.s. repeat"),
        ({"a": ["x", None, ""]}, KeyProblem, r"'a': 2 record.s. have no key"),
        ({"a": [1, 2.5]}, KeyProblem, "neither integers nor text"),
        ({"a": [1], "b": []}, EmptyParty, "'b' has no records"),
        ({}, SchemaError, "parties"),
    ],
)
def test_keys_that_cannot_be_joined(keys: dict, error: type[Exception], words: str) -> None:
    with pytest.raises(error, match=words):
        join(keys)


def test_integers_and_texts_are_compared_as_texts() -> None:
    """A CSV file has texts alone; 7 at one party is "7" at another, and "07" is another key."""
    cohort, alignments = join({"a": [7, 8], "b": ["8", "07"]})
    assert len(cohort.presence) == 3
    assert alignments["a"].rows[1] == alignments["b"].rows[0]


def test_include_names_a_party() -> None:
    with pytest.raises(SchemaError, match="include='z' is no party; write 'union' or one of a"):
        join({"a": [1]}, include="z")
    with pytest.raises(EmptyParty, match="'b' has no record in the cohort of 'a'"):
        join({"a": [1], "b": [2]}, include="a")


# --- an alignment on disk --------------------------------------------------------------------------------


def test_alignments_survive_the_disk(tmp_path: Path) -> None:
    alignment = Alignment(5, np.array([4, -1, 0]))
    alignment.save(tmp_path / "court.alignment")
    again = Alignment.load(tmp_path / "court.alignment")
    assert again.n == 5
    assert again.rows.dtype == np.int64
    assert again.rows.tolist() == [4, -1, 0]
    assert [path.name for path in tmp_path.iterdir()] == ["court.alignment"]


def test_an_alignment_must_be_possible() -> None:
    for n, rows in [(2, [0, 2]), (2, [-2]), (3, [1, 1])]:
        with pytest.raises(SchemaError, match="distinct and below"):
            Alignment(n, np.array(rows))
    for rows in (np.array([0.5]), np.array([[0]])):
        with pytest.raises(SchemaError, match="vector of integers"):
            Alignment(3, rows)


def test_a_damaged_alignment(tmp_path: Path) -> None:
    with pytest.raises(SourceError, match="cannot be read"):
        Alignment.load(tmp_path / "absent.npy")
    path = tmp_path / "bad.npy"
    pickled = np.array([1, "a", None], dtype=object)
    for stored in (np.array([3, 5]), np.array([0.5]), np.zeros((2, 2), dtype=np.int64), np.array([], dtype=np.int64)):
        np.save(path, stored)
        with pytest.raises(CorruptRecord, match="alignment"):
            Alignment.load(path)
    np.save(path, pickled, allow_pickle=True)
    with pytest.raises(CorruptRecord, match="not an alignment"):
        Alignment.load(path)
    np.savez(tmp_path / "bad.npz", x=np.array([1]))
    for content in (b"", b"no array", (tmp_path / "bad.npz").read_bytes()):
        path.write_bytes(content)
        with pytest.raises(CorruptRecord, match="not an alignment"):
            Alignment.load(path)
