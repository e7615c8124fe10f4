"""Is what a private sparse GLM shares really within the bounds that its noise was calibrated for?

The check reads the integers that parties deal to the share holders, and the sensitivity that the plan was priced
with. It must pass on the code as it is, with data that lies far outside its scaled ranges, and fail on planted bugs: no
clipping, and clipping to a wider bound.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import numpy as np
import pandas as pd
import pytest
from numpy.typing import NDArray

from colonnade.errors import NotEstimable, VerificationFailed
from colonnade.models.sparse.private import SLACK, SPAN
from colonnade.models.sparse.select import PathFromMoments, Select
from colonnade.statistics import features as computed
from colonnade.statistics.features import quantize
from support.selection import COVARIATES, HELD, related_table, selection_federation

Rows = NDArray[np.int64]
ASKED = Select(response="wage", columns=COVARIATES, epsilon=3.0, n_lambdas=3)


def far_out(n: int) -> pd.DataFrame:
    """Most records in the middle, so that the scales are small; every twentieth at the ends of all its domains."""
    table = related_table(n)
    ends = np.arange(n) % 20 == 0
    for name in COVARIATES:
        table.loc[ends, name] = 6.0
        table.loc[~ends, name] *= 0.2
    table.loc[ends, "wage"] = 30.0
    return table


def dealt(
    path: Path, monkeypatch: pytest.MonkeyPatch, make: Callable[..., Rows] = quantize
) -> tuple[list[tuple[Rows, float]], Any]:
    """Every (rows in integers, norm of the layout) that a party dealt, and the public shape of the job."""
    seen: list[tuple[Rows, float]] = []

    def noting(rows: NDArray[np.float64], *, clip: float, **options: Any) -> Rows:
        made = make(rows, clip=clip, **options)
        seen.append((made, clip))
        return made

    monkeypatch.setattr(computed, "quantize", noting)
    with selection_federation(path, far_out(400), allow=(), seed=1) as parties:
        shape = cast(PathFromMoments, ASKED.procedure(parties.facts, parties.roster)).source
        try:
            ASKED.fit(parties, sure=True)
        except (NotEstimable, VerificationFailed):  # what was dealt is what counts, not what comes of it
            assert seen
    return seen, shape


def largest_change(seen: list[tuple[Rows, float]], shape: Any) -> float:
    """The largest L2 change of the opened triangle that a record of these rows can make, as a share of delta_2.

    The record with the longest row at every party, and a presence of gamma for each.
    """
    gamma, total, fourth = shape.gamma, 0, 0
    for party in shape.columns:
        width = shape.width(party)
        longest = max((made for made, _ in seen if made.shape[1] == width), key=lambda made: (made**2).sum(1).max())
        row = longest[(longest**2).sum(axis=1).argmax()].astype(object)
        total += int((row**2).sum()) + gamma**2
        fourth += int((row**4).sum()) + gamma**4
    return math.sqrt((total**2 + fourth) / 2) / shape.layout.delta_2


def test_dealt_rows_are_within_the_declared_bounds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen, shape = dealt(tmp_path, monkeypatch)
    assert len(seen) == len(HELD)
    for made, norm in seen:
        assert norm == pytest.approx(shape.bounds[next(p for p in HELD if shape.width(p) == made.shape[1])])
        assert norm**2 <= (made.shape[1] + SLACK) / SPAN**2 * (1 + 1e-12)
        assert (made**2).sum(axis=1).max() <= math.floor(shape.gamma**2 * norm**2 + 1e-9)
        assert np.abs(made).max() <= shape.gamma
    # The outliers do reach the bounds: the test would see a looser one.
    assert 0.7 < largest_change(seen, shape) <= 1


def test_planted_bugs_break_the_bound(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def unclipped(rows: NDArray[np.float64], *, gamma: int, clip: float, entry: float, randomness: Any) -> Rows:
        return np.rint(rows * gamma).astype(np.int64)

    def scaled(rows: NDArray[np.float64], *, clip: float, **options: Any) -> Rows:
        return quantize(rows, clip=clip * 1.4, **options)

    for number, bug in enumerate((unclipped, scaled)):
        seen, shape = dealt(tmp_path / str(number), monkeypatch, bug)
        assert largest_change(seen, shape) > 1.2


def test_the_plan_costs_what_was_asked_for_and_does_not_depend_on_the_data(tmp_path: Path) -> None:
    """Scales are released and used; costs are known before, and the ledger's total is the plan's."""
    with selection_federation(tmp_path, related_table(60), allow=()) as parties:
        for relation in ("zero-out", "replace"):
            plan = parties.plan(Select(response="wage", columns=COVARIATES, epsilon=2.0, relation=relation))  # type: ignore[arg-type]
            total = plan.total(relation=relation)  # type: ignore[arg-type]
            assert total.unbounded == ()
            assert 1.99 < total.epsilon <= 2.0
            # One release of each column, one of each party's lengths, one of the moments by all members.
            assert plan.stage("spread").counts == {
                party: len(set(HELD[party]) & {*COVARIATES, "wage"}) for party in HELD
            }
            assert set(plan.stage("norms").counts.values()) == {1}
