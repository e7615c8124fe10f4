"""Guarantees in words, also where they guarantee next to nothing."""

from __future__ import annotations

import math

import pytest

from colonnade.privacy.accounting import Guarantee
from colonnade.privacy.wording import in_plain_words


@pytest.mark.parametrize(
    ("epsilon", "says"), [(1.0, "2.72 times"), (4000.0, "e^4e+03 times"), (math.inf, "no finite bound")]
)
def test_a_bound_in_plain_words(epsilon: float, says: str) -> None:
    bound = Guarantee(epsilon=epsilon, delta=1e-6, unit="record", relation="zero-out", accountant="x")
    assert says in in_plain_words(bound)
