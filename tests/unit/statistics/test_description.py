"""What a description shows of a column where noise hides it."""

from __future__ import annotations

import pytest

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
