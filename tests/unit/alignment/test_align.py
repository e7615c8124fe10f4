"""The options of an alignment, and what its result shows."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from colonnade.alignment.align import Aligned
from colonnade.alignment.method import Align
from colonnade.errors import BadArguments, BadPrivacyParameter
from colonnade.papers.blind_rsa import BlindRSA
from colonnade.view.blocks import Table, Text

CAPACITY = {"a": 5, "b": 7}


def test_rules_are_taken_in_their_order_and_once() -> None:
    made = Align(capacity=CAPACITY, normalise=("accents", "case", "case"))
    assert made.normalise == ("case", "accents")
    assert Align.from_options(made.options()) == made


@pytest.mark.parametrize("kind", [Align, BlindRSA])
@pytest.mark.parametrize(
    ("options", "error", "told"),
    [
        ({"capacity": {"a": 0}}, BadArguments, "capacity must be at least 1 and at most 100,000,000, not 0"),
        ({"capacity": {"a": 2.5}}, BadArguments, "must be an integer"),
        ({"capacity": {"a": True}}, BadArguments, "must be an integer"),
        ({"capacity": CAPACITY, "normalise": ("colour",)}, BadArguments, "'case', 'spaces', 'accents' or 'dates'"),
        ({"capacity": CAPACITY, "normalise": "case"}, BadArguments, "is a list"),
        ({"capacity": CAPACITY, "epsilon": 0.0}, BadPrivacyParameter, "epsilon"),
        ({}, BadArguments, "needs the option 'capacity'"),
    ],
)
def test_what_is_wrong_is_said(kind: type[Align], options: dict[str, Any], error: type[Exception], told: str) -> None:
    with pytest.raises(error, match=told):
        kind.from_options(options)


def test_the_view_has_noisy_counts() -> None:
    result = Aligned(
        n=1500,
        include="union",
        matcher="holder",
        parties=("a", "b"),
        patterns=np.array([0, 400, 288, 812]),
        noise_sd=1.2,
        simulated=False,
    )
    view = result.view()
    lead, _, table, noise = view.answer
    assert isinstance(lead, Text)
    assert isinstance(table, Table)
    assert isinstance(noise, Text)
    assert "every record that any party has" in lead.text
    assert table.rows == (("a + b", "812"), ("a", "400"), ("b", "288"))
    assert "two standard deviations" in noise.text
    assert "holder compared blinded tags" in str(view.sections)
    assert result.overlap(["a"]) == 1212
