"""What these methods say about records that lack a block, compared with what they do: exact results, before and after
such records are dropped or filled in."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

import colonnade as co
from support.small import COLUMNS, three_overlapping_blocks, three_parties

ALLOW = ("exact-moments", "exact-tables", "exact-polynomial", "exact-presence-total", "presence")
Blocks = dict[str, pd.DataFrame]


def fitted(folder: Path, blocks: Blocks, method: Any) -> Any:
    with three_parties(folder, blocks=blocks, allow=ALLOW) as federation:
        return method.fit(federation)


def among(blocks: Blocks, *parties: str) -> Blocks:
    """Only the records that all of these parties have."""
    keys = set.intersection(*(set(blocks[party]["id"]) for party in parties))
    return {party: frame[frame["id"].isin(keys)].reset_index(drop=True) for party, frame in blocks.items()}


def filled(blocks: Blocks) -> Blocks:
    """Every record everywhere: what a party lacks is the middle of its columns' ranges, or their first category."""
    keys = sorted(set.union(*(set(frame["id"]) for frame in blocks.values())))
    middle: dict[str, Any] = {"age": 50.0, "rating": "B", "sector": "farming"}
    complete = {}
    for party, frame in blocks.items():
        names = [name for name in frame if name in middle]
        complete[party] = frame[["id", *names]].set_index("id").reindex(keys).fillna(middle).reset_index()
    return complete


@pytest.fixture
def blocks() -> Blocks:
    return three_overlapping_blocks(40, seed=4)


def test_moments_by_pattern_are_of_the_records_of_that_pattern(tmp_path: Path, blocks: Blocks) -> None:
    method = co.Moments(epsilon=None, columns=("age", "sued"), gamma=900)
    assert "Each pattern of presence has a matrix of its own" in method.missing_data()
    every = fitted(tmp_path / "every", blocks, method)
    both = fitted(tmp_path / "both", among(blocks, "clinic", "court"), method)
    position = every.patterns.index((True, True))
    counts = dict(zip(every.patterns, np.rint(every.counts), strict=True))
    assert counts[True, True] == len(set(blocks["clinic"]["id"]) & set(blocks["court"]["id"]))
    assert counts[True, False] == len(set(blocks["clinic"]["id"]) - set(blocks["court"]["id"])) > 0
    assert np.allclose(every.grams[position], both.grams[both.patterns.index((True, True))], atol=0.05)
    named = co.Moments(epsilon=None, columns=("age", "sued"), gamma=900, patterns=((True, True),))
    assert "left out" in named.missing_data()
    assert "left out" not in method.missing_data()
    only = fitted(tmp_path / "only", blocks, named)
    assert np.allclose(only.grams[0], every.grams[position], atol=0.05)


def test_secret_moments_use_the_records_that_have_both(tmp_path: Path, blocks: Blocks) -> None:
    method = co.Moments(epsilon=None, columns=("age", "sued"), presence="secret", gamma=900)
    assert method.missing_data() == "A product of two columns uses the records that have both."
    every = fitted(tmp_path / "every", blocks, method)
    both = fitted(tmp_path / "both", among(blocks, "clinic", "court"), method)
    age, sued = (every.entries[0].index(name) for name in ("age", "sued"))
    assert every.grams[0][age, sued] == pytest.approx(both.grams[0][age, sued], abs=0.05)
    assert every.grams[0][age, age] > both.grams[0][age, age] + 0.5, "a square uses all records that have the column"


@pytest.mark.parametrize("polynomial", [False, True])
def test_ignored_presence_counts_zeros(tmp_path: Path, blocks: Blocks, polynomial: bool) -> None:
    """The same result as if every record had the middle of the ranges where a block is missing."""
    method: Any = co.Moments(epsilon=None, columns=("age", "rating", "sector"), presence="ignore", gamma=900)
    if polynomial:
        squares = co.Polynomial.of([(1, {"age": 1, "rating": 1})], [(1, {"age": 2}), (2, {"sector[trade]": 1})])
        method = co.PolynomialSum(polynomial=squares, epsilon=None, gamma=900)
    assert method.missing_data() == "A block that a record lacks counts as zeros."
    some = {party: frame.drop(columns=["visits"], errors="ignore") for party, frame in blocks.items()}
    columns = co.Columns([COLUMNS[name] for name in ("age", "rating", "sector", "sued")])
    results = []
    for number, held in enumerate((some, filled(some) | {"court": some["court"]})):
        with three_parties(tmp_path / str(number), blocks=held, columns=columns, allow=ALLOW) as federation:
            results.append(method.fit(federation))
    before, after = ((result.values if polynomial else result.grams[0]) for result in results)
    assert np.allclose(before, after, atol=0.1)
    assert results[0].n == results[1].n


def test_a_table_counts_the_records_of_all_its_parties(tmp_path: Path, blocks: Blocks) -> None:
    tables = (("age", "sued"), ("rating",))
    method = co.Tables(tables=tables, bins=4, epsilon=None)
    assert "A table counts the records that all its parties have, without empty cells" in method.missing_data()
    every = fitted(tmp_path / "every", blocks, method)
    both = fitted(tmp_path / "both", among(blocks, "clinic", "court"), method)
    assert np.array_equal(every[tables[0]], both[tables[0]])
    assert every[tables[0]].sum() == len(set(blocks["clinic"]["id"]) & set(blocks["court"]["id"]))
    assert every[tables[1]].sum() == len(blocks["bank"])


def test_the_presence_total_is_a_sum_over_parties_and_no_intersection(tmp_path: Path, blocks: Blocks) -> None:
    """What an operator approves must be what is asked: the sentence, against sets of keys."""
    method = co.PresenceTotal(epsilon=None)
    assert method.purpose() == "Add up how many records each party has, without any party's own number."
    assert method.missing_data() == "It counts what is there: a record adds one for each party that has it."
    total = fitted(tmp_path, blocks, method).total
    keys = [set(frame["id"]) for frame in blocks.values()]
    assert total == sum(map(len, keys))
    assert total not in (len(set.intersection(*keys)), len(set.union(*keys)))
