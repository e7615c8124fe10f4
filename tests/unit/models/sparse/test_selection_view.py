"""What a selection shows: the chosen coefficients, the path, how much is explained."""

from __future__ import annotations

from dataclasses import replace
from typing import get_args

import numpy as np
import pandas as pd

from colonnade.models.sparse.path import Family
from colonnade.models.sparse.result import Selection
from colonnade.statistics.features import Feature
from colonnade.view.page import join
from colonnade.view.render import render_blocks, render_section


def test_a_selection_is_shown_with_its_path() -> None:
    selection = Selection(
        response="y",
        family="gaussian",
        penalty="scad",
        solver="moments",
        criterion="bic",
        path=pd.DataFrame({"const": [1.0, 1.0, 1.0], "a": [0.0, 2.5, 2.6], "b": [0.0, 0.0, 0.1]}),
        lambdas=np.array([1.0, 0.1, 0.01]),
        scores=np.array([10.0, 1.0, np.nan]),
        chosen=1,
        objective=np.zeros(3),
        explained=np.array([0.0, 0.5, 0.51]),
        residuals=np.full(3, 1e-7),
        lla_steps=np.ones(3, dtype=np.int64),
        nobs=500,
        cohort=600,
        rounds=1,
        features=tuple(Feature(name, "bank", name, None, 0.0, 1.0) for name in "ab"),
        columns={},
        classes=(),
        notes=(),
        released=(),
        cost="",
        simulated=False,
    )
    view = selection.view()
    effects = {name: replace(selection, unit="USD", family=name).plot().ax_.get_ylabel() for name in get_args(Family)}
    assert {name: label.replace("\n", " ") for name, label in effects.items()} == {
        "gaussian": "effect on y (USD) across the column's range",
        "binomial": "effect on log-odds of y across the column's range",
        "poisson": "effect on the logarithm of mean y across the column's range",
    }
    assert view.title == "1 of 2 features explain y"
    (table,) = view.tables()
    assert table.rows == (("const", "1"), ("a", "2.5"))
    assert "50.0 %" in view.quality
    page = join([render_blocks(view.answer), *map(render_section, view.sections)])
    assert "SCAD penalty" in page
    assert "51.0 %" in page  # of the last lambda, in the path's numbers
    assert "<ul></ul>" not in page
