from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

import colonnade as co
from colonnade.errors import BadArguments, RunError
from colonnade.evaluation.saved import SavedResult
from colonnade.statistics.describe import Describe
from colonnade.synthesis.inference import mean, ols, quantile, share
from colonnade.synthesis.method import Synthesize
from colonnade.synthesis.table import SyntheticTable
from support.small import three_overlapping_blocks, three_parties


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


@pytest.mark.parametrize(
    "options",
    [
        {"model": "field", "iterations": 50, "moment_share": 0.25},
        {"model": "field", "iterations": 50, "discrepancy": 1000.0, "constraints": ("visits <= 5",)},
        {"model": "copula"},
        {"model": "independent"},
    ],
)
def test_a_saved_table_has_the_error_bars_that_it_had(tmp_path: Path, options: dict[str, Any]) -> None:
    """The released numbers are in the folder as data: intervals of ready estimators and of any other function, and the
    tables that `draws` gives, are the same to the last digit."""
    columns = ("age", "visits", "sector", "sued")
    with three_parties(tmp_path, blocks=three_overlapping_blocks(400)) as federation:
        table, run = federation.run(Synthesize(epsilon=50.0, columns=columns, verify=False, **options))
    saved = co.load(run.path)
    assert isinstance(saved, SyntheticTable)
    for one, other in zip(saved.draws(2, rows=50), table.draws(2, rows=50), strict=True):
        pd.testing.assert_frame_equal(one, other)
    assert not next(saved.draws(1, rows=50)).equals(saved.sample(50)), "another model"
    ready = [mean("age"), share("sued", "yes"), quantile("visits", 0.5), ols("age", ["visits", "sector"])]
    for function in (*ready, lambda rows: float((rows["visits"] > 2).mean())):
        asked: dict[str, Any] = {"draws": 2, "rows": 300, "unproven": True}
        before, after = table.analyse(function, **asked), saved.analyse(function, **asked)
        pd.testing.assert_frame_equal(after, before, check_exact=True)
        assert np.isfinite(after["standard_error"]).all()
        assert after.attrs == before.attrs
    assert saved.valid_for(("age",)) == table.valid_for(("age",))
    (run.path / "evidence.npz").unlink()
    with pytest.raises(BadArguments, match=r"no evidence\.npz"):
        next(co.load(run.path).draws(1))


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
