"""Typed values from plain data: what fits comes back, everything else is refused in one sentence."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from colonnade.codec import convert, nearest, plain, record, tagged
from colonnade.errors import BadArguments


@dataclass(frozen=True, kw_only=True)
class Cut:
    size: float
    names: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Fill:
    colour: Literal["red", "green"] = "red"


@dataclass(frozen=True, kw_only=True)
class Cake:
    parts: tuple[Cut | Fill, ...]
    pairs: Mapping[str, int] | None = None


@pytest.mark.parametrize(
    ("value", "hint", "expected"),
    [
        (3, float, 3.0),
        (np.float64(0.5), float, 0.5),
        (np.int64(4), int, 4),
        (["a", "b"], tuple[str, ...], ("a", "b")),
        (("a",), list[str], ["a"]),
        (np.array([1, 2]), tuple[int, ...], (1, 2)),
        ([[1, 2], [3]], tuple[tuple[int, ...], ...], ((1, 2), (3,))),
        ((1, "x"), tuple[int, str], (1, "x")),
        ({"a": 1}, Mapping[str, float], {"a": 1.0}),
        (None, int | None, None),
        ("a", Literal["a", "b"], "a"),
        ({"size": 1}, Cut, Cut(size=1.0)),
        ({"is": "Fill", "colour": "green"}, Cut | Fill, Fill(colour="green")),
    ],
)
def test_what_fits_becomes_the_type(value: Any, hint: Any, expected: Any) -> None:
    converted = convert(value, hint, "here")
    assert converted == expected
    assert type(converted) is type(expected)


@pytest.mark.parametrize(
    ("value", "hint", "told"),
    [
        (True, int, "here must be an integer, not True."),
        (False, float, "here must be a number, not False."),
        (1.0, int, "an integer"),
        ("1", float, "a number"),
        (1, bool, "true or false"),
        (1, Literal[True], "must be True"),
        ("abc", tuple[str, ...], r"here is a list; write \['abc'\]\."),
        (b"abc", tuple[int, ...], "is a list, not bytes"),
        ({1, 2}, tuple[int, ...], "is a list, not set"),
        ({"a": 1}, tuple[str, ...], "is a list, not dict"),
        ((1, 2, 3), tuple[int, str], "has 2 entries, not 3"),
        ([1, "x"], list[int], "an integer, not 'x'"),
        ({"a": "b"}, dict[str, int], "'a' in here must be an integer"),
        ([1], dict[str, int], "a table"),
        ("c", Literal["a", "b"], "'a' or 'b', not 'c'"),
        ("x", int | None, "an integer, not 'x'"),
        ("x" * 500, int, "x{76}\\.\\.\\."),
        ({"sise": 1}, Cut, "no field 'sise'.*Did you mean 'size'"),
        ({}, Cut, "lacks size"),
        (np.array(3), tuple[int, ...], "is a list, not int"),
    ],
)
def test_everything_else_is_refused_with_its_place(value: Any, hint: Any, told: str) -> None:
    with pytest.raises(BadArguments, match=told):
        convert(value, hint, "here")


@pytest.mark.parametrize("value", [(1, 2), np.array([1, 2]), np.int64(3), np.array([1.0])])
def test_exact_takes_only_what_json_and_the_wire_give(value: Any) -> None:
    with pytest.raises(BadArguments):
        convert(value, list[int] if np.ndim(value) else int, "here", exact=True)
    assert convert([1, 2], list[float], "here", exact=True) == [1.0, 2.0]
    assert convert(np.zeros(2), NDArray[np.float64], "here", exact=True).shape == (2,)


def test_a_value_that_has_the_type_is_the_same_object() -> None:
    for value, hint in (
        ((1.5, 2.5), tuple[float, ...]),
        ({"a": (1,)}, dict[str, tuple[int, ...]]),
        (Cut(size=1.0), Cut),
    ):
        assert convert(value, hint, "here") is value


@given(
    st.builds(
        Cake,
        parts=st.lists(
            st.builds(Cut, size=st.floats(allow_nan=False), names=st.lists(st.text()).map(tuple))
            | st.builds(Fill, colour=st.sampled_from(["red", "green"]))
        ).map(tuple),
        pairs=st.none() | st.dictionaries(st.text(), st.integers()),
    )
)
def test_plain_data_and_back(cake: Cake) -> None:
    stored = {**plain(cake), "parts": [tagged(part) for part in cake.parts]}
    assert record(Cake, stored, "cake") == cake


def test_the_nearest_name_is_proposed_only_if_there_is_one() -> None:
    assert nearest("epsilonn", ["delta", "epsilon"]) == " Did you mean 'epsilon'?"
    assert nearest("zzz", ["delta", "epsilon"]) == ""
