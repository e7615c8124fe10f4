"""A synthetic table beside a simulation's truth."""

from __future__ import annotations

import numpy as np

from colonnade.data.simulated import five_institutions
from colonnade.evaluation.comparison import compare_with_truth
from colonnade.evaluation.report import _truth_section
from colonnade.view.render import render_section


def test_the_truth_compared_with_itself_is_at_no_distance() -> None:
    example = five_institutions(1200, seed=2)
    complete = example.truth.complete.drop(columns=[example.key])
    owners = {name: party for party, block in example.blocks.items() for name in block.columns if name != example.key}
    same = compare_with_truth(complete, example, "profit_growth", owners=owners)
    assert same["marginal"] == same["pairwise"] == same["rank_correlation"] == 0.0
    assert all(row["synthetic"] == row["complete"] for row in same["coefficients"])
    assert same["agreement"] > 0.9
    section = _truth_section(same)
    assert "Beside the truth" in render_section(section)
    shuffled = complete.apply(lambda column: np.random.default_rng(len(column.name)).permutation(column))
    worse = compare_with_truth(shuffled, example, "profit_growth", owners=owners)
    assert worse["marginal"] == 0.0
    assert worse["rank_correlation_within"] > 0.02
    assert abs(worse["agreement"]) < 0.8
