"""Guarantees in words, also where they guarantee next to nothing."""

from __future__ import annotations

import json
import math

import pytest

from colonnade.privacy.accounting import Guarantee, guarantee
from colonnade.privacy.cost import Gaussian, Laplace, Unbounded, compose
from colonnade.privacy.wording import cost_text, guarantee_dict, in_plain_words


@pytest.mark.parametrize(
    ("epsilon", "says"), [(1.0, "2.72 times"), (4000.0, "e^4e+03 times"), (math.inf, "no finite bound")]
)
def test_a_bound_in_plain_words(epsilon: float, says: str) -> None:
    bound = Guarantee(epsilon=epsilon, delta=1e-6, unit="record", relation="zero-out", accountant="x")
    assert says in in_plain_words(bound)


def test_costs_and_guarantees_in_words() -> None:
    assert cost_text(compose([Laplace(0.5).times(2), Gaussian(3.0)])) == (
        "2 x laplace (epsilon 0.5) per record; gaussian (noise multiplier 3) per record"
    )
    unbounded = guarantee_dict(guarantee([Unbounded("raw", "all")], delta=1e-6))
    assert unbounded["epsilon"] is None
    assert unbounded["unbounded"] == ["raw"]
    json.dumps(unbounded, allow_nan=False)
    # Oracle: e^0.5 = 1.649; a pure bound adds no delta.
    assert in_plain_words(guarantee([Laplace(0.5)], delta=0.0)).endswith(
        "at most 1.65 times what it would be if one record held nothing."
    )
