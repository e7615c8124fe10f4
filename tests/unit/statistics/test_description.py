"""What a description shows of a column where noise hides it."""

from __future__ import annotations

from pathlib import Path

import pandas as pd
import pytest

import colonnade as co
from colonnade.federation.coordinator import Federation
from colonnade.statistics.describe import Description


@pytest.mark.parametrize(
    ("count", "says"), [(39.0, "too few records for this noise"), (41.0, "most often a (100.0 %)")]
)
def test_a_column_that_noise_hides_is_not_summed_up(count: float, says: str) -> None:
    """Four cells with noise sd 10 sum to noise of sd 20: 39 counted records are within two of them, 41 are not."""
    counted = {"labels": list("abcd"), "counts": [count, 0.0, 0.0, 0.0], "sd": 10.0}
    description = Description(
        n=200,
        presence={"court": 100},
        presence_sd=10.0,
        marginals={"sued": {"party": "court", "kind": "binary", **counted}},
        epsilon=1.0,
        delta=1e-6,
        simulated=False,
    )
    (_, columns) = description.view().tables()
    assert columns.rows == (("sued", "court", "binary", says),)


def test_a_column_s_unit_is_at_the_axis_of_its_values(tmp_path: Path) -> None:
    """Of bars at their rows, and of a histogram below it; a category has none."""
    table = pd.DataFrame(
        {"id": range(300), "age": [20, 30, 70] * 100, "rooms": [1, 2, 2] * 100, "sex": ["f", "m", "m"] * 100}
    )
    columns = co.Columns(
        [
            co.Column(name="age", kind="count", lower=0, upper=120, unit="years"),
            co.Column(name="rooms", kind="count", lower=1, upper=3, unit="rooms"),
            co.Column(name="sex", kind="categorical", categories=("f", "m")),
        ]
    )
    with Federation.local({"town": table}, key="id", columns=columns, home=tmp_path, seed=1) as federation:
        figures = co.Describe(epsilon=5.0).fit(federation).view().figures()
    assert (figures["age"].x, figures["age"].y) == ("age (years)", "records")
    assert (figures["rooms"].x, figures["rooms"].y) == ("noisy count of records", "rooms (rooms)")
    assert (figures["sex"].x, figures["sex"].y) == ("noisy count of records", "")
