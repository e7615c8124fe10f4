"""What a selection shows: the chosen columns first, then its path."""

from __future__ import annotations

import numpy as np
import pandas as pd

from colonnade.data.column import Column, Columns
from colonnade.models.sparse.result import Selection
from colonnade.statistics.features import Feature
from colonnade.view.blocks import Table, View
from colonnade.view.render import render_blocks, render_section


def selection() -> Selection:
    lambdas = np.array([1.0, 0.1, 0.01])
    return Selection(
        response="y",
        family="gaussian",
        penalty="scad",
        solver="moments",
        criterion="bic",
        path=pd.DataFrame(
            {"const": [3.0, 1.0, 0.5], "a": [0.0, 2.5, 2.6], "b": [0.0, 0.0, 0.1]}, index=pd.Index(lambdas)
        ),
        lambdas=lambdas,
        scores=np.array([10.0, 1.0, np.nan]),
        chosen=1,
        objective=np.array([3.0, 2.0, 1.0]),
        explained=np.array([0.0, 0.5, 0.51]),
        residuals=np.array([0.0, 1e-7, 0.0]),
        lla_steps=np.array([1, 1, 1]),
        nobs=500,
        cohort=1000,
        rounds=1,
        features=tuple(Feature(name, "bank", name, None, 0.0, 1.0) for name in ("a", "b")),
        columns=Columns(Column(name=name, kind="continuous", lower=-1.0, upper=1.0) for name in ("a", "b")),
        classes=(),
        notes=("A note <with> brackets.",),
        released=(),
        cost="none",
        simulated=False,
    )


def test_a_selection_shows_what_was_chosen_and_its_path() -> None:
    view = selection().view()
    assert view.title == "1 of 2 features explain y"
    assert view.quality.startswith("The chosen columns explain 50.0 % of the deviance")
    (table,) = (block for block in view.answer if isinstance(block, Table))
    assert table.rows == (("const", "1"), ("a", "2.5"))
    assert view.tables()[0].rows == table.rows
    html = render_blocks(view.answer) + render_section(view.sections[0])
    assert "SCAD penalty, gaussian response, from 500 records; lambda 0.1 by BIC." in html
    assert "51.0 %" in html
    assert "A note &lt;with&gt; brackets." in html


def test_a_view_and_a_result_are_plain_data() -> None:
    result = selection()
    assert View.from_dict(result.view().to_dict()) == result.view()
    plain = result.to_dict()
    assert plain["support"] == ["a"]
    assert plain["scores"] == [10.0, 1.0, None]
