"""When a total over some columns may be opened: by hand, and against the definition over random histories."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from colonnade.models.sparse.path import Withheld
from colonnade.models.sparse.rounds import Cover

OWNERS = ["holder", "bank", "bank", "clinic", "clinic", "shop"]


def columns(*chosen: int) -> np.ndarray:
    made = np.zeros(len(OWNERS), dtype=bool)
    made[list(chosen)] = True
    return made


def test_a_total_of_one_other_party_is_withheld_and_the_holders_own_columns_cover_nothing() -> None:
    cover = Cover(OWNERS, response_party="holder")
    for chosen in ((1,), (1, 2), (0, 1)):
        with pytest.raises(Withheld) as refused:
            cover.admit(columns(*chosen))
        assert refused.value.party == "bank"
    cover.admit(columns())
    cover.admit(columns(0))
    cover.admit(columns(1, 3))


def test_two_totals_whose_spans_meet_in_one_party_are_not_both_opened() -> None:
    """span(1, 3) and span(1, 5) meet in column 1, the bank's; span(1, 3, 5) and span(3, 5) meet in two parties."""
    cover = Cover(OWNERS, response_party="holder")
    cover.admit(columns(1, 3))
    with pytest.raises(Withheld) as refused:
        cover.admit(columns(1, 5))
    assert refused.value.party == "bank"
    cover.admit(columns(1, 3, 5))
    with pytest.raises(Withheld):
        cover.admit(columns(3, 5))  # with span(1, 3) this gives column 3
    other = Cover(OWNERS, response_party="holder")
    other.admit(columns(1, 3, 5))
    other.admit(columns(3, 5))


def test_a_total_that_was_withheld_leaves_no_mark() -> None:
    cover = Cover(OWNERS, response_party="holder")
    cover.admit(columns(1, 3))
    with pytest.raises(Withheld):
        cover.admit(columns(1, 4))
    cover.admit(columns(1, 3, 4))


@given(st.lists(st.sets(st.integers(0, 5)), max_size=8))
def test_against_the_definition(history: list[set[int]]) -> None:
    """All intersections of opened sets, by brute force: none that is not empty lies within one other party."""
    cover, shown = Cover(OWNERS, response_party="holder"), []
    for one in history:
        others = frozenset(one - {0})
        closure = {others}
        for old in shown:
            closure |= {old & new for new in closure} | {old}
        for a in list(closure):
            closure |= {a & b for b in closure}
        safe = all(len({OWNERS[j] for j in meet}) != 1 for meet in closure)
        try:
            cover.admit(columns(*one))
            assert safe
            shown.append(others)
        except Withheld:
            assert not safe
