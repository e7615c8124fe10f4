from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

import colonnade as co
from colonnade.errors import RunError
from colonnade.evaluation.saved import SavedResult
from colonnade.statistics.describe import Describe
from colonnade.synthesis.method import Synthesize
from colonnade.synthesis.table import SyntheticTable
from support.small import three_parties


@pytest.mark.parametrize(
    "options",
    [
        {"model": "copula", "columns": ("age", "visits", "sued")},
        {"model": "field", "columns": ("age", "sector", "sued")},
    ],
)
def test_a_saved_synthesizer_draws_the_same_rows(tmp_path: Path, options: dict[str, Any]) -> None:
    with three_parties(tmp_path) as federation:
        table, run = federation.run(Synthesize(epsilon=50.0, **options))
    saved = co.load(run.path)
    assert isinstance(saved, SyntheticTable)
    pd.testing.assert_frame_equal(saved.sample(200), table.sample(200))
    pd.testing.assert_frame_equal(saved.sample(50, seed=3), table.sample(50, seed=3))
    assert set(saved.sample(30, where={"sued": "yes"})["sued"]) == {"yes"}
    assert saved.cost == table.cost


def test_a_saved_result_has_its_numbers_by_name(tmp_path: Path) -> None:
    with three_parties(tmp_path) as federation:
        described, run = federation.run(Describe(epsilon=2.0))
    saved = co.load(str(run.path))
    assert isinstance(saved, SavedResult)
    assert saved.kind == "description"
    np.testing.assert_allclose(saved.presence["clinic"], described.to_dict()["presence"]["clinic"])
    assert saved.view().title == described.view().title
    assert "presence" in dir(saved)
    with pytest.raises(AttributeError, match="it has n, "):
        saved.params  # noqa: B018
    run.update(state="failed")
    with pytest.raises(RunError, match="not finished"):
        co.load(run.path)
