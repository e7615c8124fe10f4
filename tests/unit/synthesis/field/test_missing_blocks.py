"""Tables of records that lack blocks: weighed by what the columns' own tables show."""

from __future__ import annotations

import numpy as np
import pytest

from colonnade.synthesis.field.fit import Measurement
from colonnade.synthesis.field.procedure import post_stratified

N, SD = 40_000, 5.0


def tables(
    chance: np.ndarray, bins: np.ndarray | None = None
) -> tuple[np.ndarray, Measurement, dict[str, Measurement]]:
    """Column b depends on a; records have b with `chance` by their cell of a: the table of all records, that of the
    records with both scaled up, and the columns' own tables, as `scaled_up` gives them."""
    rng = np.random.default_rng(5)
    a = rng.choice(4, N, p=[0.4, 0.3, 0.2, 0.1])
    b = np.minimum(rng.poisson(0.4 * (a + 1)), 2)
    here = rng.random(N) < chance[a]
    factor = N / here.sum()

    def counted(*codes: np.ndarray, rows: np.ndarray) -> np.ndarray:
        table = np.zeros([int(code.max()) + 1 for code in codes])
        np.add.at(table, tuple(code[rows] for code in codes), 1)
        return table + rng.normal(0, SD, table.shape)

    everybody, coarse = np.ones(N, dtype=bool), a if bins is None else bins[a]
    maps = None if bins is None else (bins, None)
    joint = Measurement(("a", "b"), counted(coarse, b, rows=here) * factor, SD * factor, maps, factor)
    own = {
        "a": Measurement(("a",), counted(a, rows=everybody), SD),
        "b": Measurement(("b",), counted(b, rows=here) * factor, SD * factor, None, factor),
    }
    return counted(coarse, b, rows=everybody), joint, own


@pytest.mark.parametrize("bins", [None, np.array([0, 0, 1, 1])])
def test_blocks_missing_by_a_column_are_weighed_by_it(bins: np.ndarray | None) -> None:
    """With a cell by cell the table is right but for noise and sampling; in bins a part of the selection is left."""
    truth, joint, own = tables(np.array([0.9, 0.7, 0.4, 0.2]), bins)
    (weighed,) = post_stratified([joint], own)
    far = [np.abs(table.counts - truth).sum() / N for table in (joint, weighed)]
    assert far[0] > 0.15
    assert far[1] < (0.02 if bins is None else far[0] / 2)
    aside = [np.abs(table.counts.sum(axis=0) - truth.sum(axis=0)).sum() / N for table in (joint, weighed)]
    assert aside[1] < aside[0] / 3, "b, whose own table has the same selection"


def test_blocks_missing_completely_at_random_are_left_as_they_were() -> None:
    _, joint, own = tables(np.full(4, 0.6))
    assert post_stratified([joint], own)[0].counts is joint.counts


def test_a_table_that_no_record_lacks_is_left_as_it_was() -> None:
    _, joint, own = tables(np.ones(4))
    assert joint.factor == 1
    assert post_stratified([joint, own["b"]], own) == [joint, own["b"]]
