"""`Select(solver="wald")`: the path on the Wald distance from a fit, against an independent minimiser."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.optimize import minimize

from colonnade.data.column import Column, Columns
from colonnade.errors import BadArguments
from colonnade.federation.facts import PublicFacts
from colonnade.federation.roster import Member, Roster
from colonnade.models.glm.newton import Evaluation, Solution
from colonnade.models.glm.scores import Remarks
from colonnade.models.sparse.select import PathFromFit, Select

ROSTER = Roster(
    members=tuple(Member(name=name, organisation=name, public_key=name.encode() * 32) for name in "abc"),
    committee=("a", "b", "c"),
)


def test_the_path_minimises_the_penalised_distance() -> None:
    rng = np.random.default_rng(1)
    columns = {
        "a": [Column(name="y", kind="binary", categories=("no", "yes"))],
        "b": [Column(name=name, kind="continuous", lower=-2.0, upper=2.0) for name in ("u", "v")],
        "c": [Column(name=name, kind="continuous", lower=-2.0, upper=2.0) for name in ("w", "z")],
    }
    facts = PublicFacts(n=1000, columns={party: Columns(own) for party, own in columns.items()})
    lambdas = (0.08, 0.03, 0.005, 1e-9)
    method = Select(response="y", family="binomial", solver="wald", penalty="lasso", lambdas=lambdas)
    path = PathFromFit(method, facts, ROSTER)
    x = rng.normal(size=(300, 4)) * [0.5, 0.3, 0.4, 0.2] @ (np.eye(4) + 0.3)
    design = np.column_stack([np.ones(300), x])
    bread = design.T @ design / 4
    params = np.array([0.2, 1.0, -0.7, 0.0, 0.4])
    half = rng.normal(size=(5, 5))
    cov = np.linalg.inv(bread) + 0.002 * half @ half.T
    remarks = Remarks(counts=(0, 0, 0, 300), effective=250.0, capped=0, unlikely=0, rare=0, fewest=120)
    fitted = path.fitted(remarks, Solution(params, bread, Evaluation(bread[0] * 0.1, bread, 0.0), 6), cov)
    precision = np.linalg.inv(cov)
    deviation = x.std(axis=0)
    for point, slopes, intercept in zip(fitted.points, fitted.slopes, fitted.intercepts, strict=True):

        def objective(split: np.ndarray, lam: float = point.lam) -> float:
            """Over (intercept, positive parts, negative parts), smooth; the slopes' own distance with it."""
            slope = split[1:5] - split[5:]
            apart = np.concatenate([[split[0]], slope]) - params
            return float(apart @ precision @ apart / (2 * 250.0) + lam * (deviation * (split[1:5] + split[5:])).sum())

        bounds = [(None, None)] + [(0.0, None)] * 8
        least = minimize(objective, np.full(9, 0.1), bounds=bounds, options={"ftol": 1e-15, "gtol": 1e-10}).x
        np.testing.assert_allclose(slopes, least[1:5] - least[5:], atol=2e-4)
        np.testing.assert_allclose(intercept, least[0], atol=2e-4)
    assert [np.count_nonzero(each) for each in fitted.slopes] == sorted(np.count_nonzero(e) for e in fitted.slopes)


def test_where_it_has_no_meaning() -> None:
    for options in ({}, {"family": "binomial", "epsilon": 1.0}, {"family": "poisson", "criterion": "cv"}):
        with pytest.raises(BadArguments, match="solver='wald' is for"):
            Select(response="y", solver="wald", **options)  # type: ignore[arg-type]
