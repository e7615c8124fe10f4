"""Numbers, sizes and shares as people read them."""

from __future__ import annotations

import pytest

from colonnade import formatting
from colonnade.formatting import digits


def test_numbers_as_people_read_them() -> None:
    assert formatting.with_noise(12345, 19.6) == "12,345 ± 40"
    assert formatting.number(-0.4) == "0"
    assert [formatting.size(count) for count in (999, 1000, 2_500_000)] == ["999 B", "1.0 kB", "2.5 MB"]
    assert formatting.share(110, 100) == "100.0 %"
    assert [formatting.duration(seconds) for seconds in (0.1, 4.4, 100, 7500)] == ["1 s", "4 s", "2 min", "2 h 5 min"]
    assert [formatting.rough(value) for value in (0.0367, 3.66, 99.7, 216.0)] == ["0.037", "3.7", "100", "220"]


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        (26.634, "26.63"),
        (4241.3, "4,241"),
        (27_334.0, "27,330"),
        (-96_751.2, "-96,750"),
        (0.0, "0"),
        (2.1e-6, "2.1e-06"),
    ],
)
def test_digits_write_whole_thousands_in_full(value: float, shown: str) -> None:
    assert digits(value) == shown
