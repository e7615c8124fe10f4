"""Classify against numpy on the pooled rows: the ridge problem in one Gram matrix."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from sklearn.metrics import roc_auc_score

from colonnade.errors import BadArguments, SchemaError
from colonnade.federation.catalogue import CATALOGUE
from colonnade.models.classify import Classify, moment_auc, noise_ridge, separation, solve_moments
from colonnade.models.matrix import SecondMoments
from support.buyers import NAMES, buyers, buyers_federation, pooled
from support.gaps import pairwise_covariance
from support.small import committee_of


def test_the_exact_fit_is_the_least_squares_fit_of_the_taylor_gradient(tmp_path: Path, engine: str) -> None:
    """x (w.x / 4 - s / 2) summed is zero exactly where w solves least squares on 2 s: numpy's lstsq is the oracle."""
    frame = buyers()
    rows, sign = pooled(frame)
    with buyers_federation(tmp_path, frame, allow=("exact-moments",), **committee_of(engine)) as parties:
        model = Classify(response="bought", epsilon=None, gamma=1024).fit(parties)
    order = [model.feature_names_.index(name) for name in NAMES]
    expected = np.linalg.lstsq(np.column_stack([np.ones(len(frame)), rows]), 2 * sign, rcond=None)[0]
    assert model.intercept_[0] == pytest.approx(expected[0], rel=1e-9)
    assert model.coef_[0, order] == pytest.approx(expected[1:], rel=1e-9)
    scores = expected[0] + rows @ expected[1:]
    assert model.predict_proba(frame)[:, 1] == pytest.approx(1 / (1 + np.exp(-scores)), rel=1e-9)
    assert np.array_equal(model.predict(frame), np.where(scores > 0, "yes", "no"))
    assert model.score(frame, frame["bought"]) == pytest.approx(np.mean((scores > 0) == (sign > 0)))
    assert list(model.classes_) == ["no", "yes"]


def test_noise_is_answered_by_the_stated_ridge() -> None:
    """The normal equations of the penalised problem, by an independent solve; an indefinite matrix is lifted first."""
    rng = np.random.default_rng(0)
    rows = rng.normal(size=(50, 4))
    matrix = rows.T @ rows / 50
    second = SecondMoments(names=("1", "a", "b", "y"), matrix=matrix, noise_sd=0.3)
    ridge = noise_ridge(0.3, 3)
    assert ridge == pytest.approx(0.5 * 0.3 * math.sqrt(3))
    intercept, weights = solve_moments(second, names=("a", "b"), response="y", intercept=True)
    expected = np.linalg.solve(matrix[:3, :3] + ridge * np.eye(3), 2 * matrix[:3, 3])
    assert [intercept, *weights] == pytest.approx(expected, rel=1e-9)
    indefinite = matrix - 0.8 * np.eye(4)
    values, vectors = np.linalg.eigh(indefinite[1:3, 1:3])
    assert values.min() < 0
    lifted = vectors @ np.diag(np.maximum(values, 0)) @ vectors.T + 0.1 * np.eye(2)
    lower = SecondMoments(names=second.names, matrix=indefinite, noise_sd=0.3)
    nothing, weights = solve_moments(lower, names=("a", "b"), response="y", intercept=False, ridge=0.1)
    assert nothing == 0
    assert weights == pytest.approx(np.linalg.solve(lifted, 2 * indefinite[1:3, 3]), rel=1e-9)


@pytest.mark.parametrize("presence", ["secret", "known"])
def test_incomplete_records_give_the_fit_of_available_cases(tmp_path: Path, presence: Any) -> None:
    """Oracle: pairwise covariances by pandas. Where the mask is ignored the fit is another one."""
    frame = buyers()
    rows, sign = pooled(frame)
    rows[frame["id"] % 5 == 0, 4] = np.nan
    table = pd.DataFrame(np.column_stack([np.ones(len(frame)), rows, sign]))
    second = (pairwise_covariance(table) + np.outer(table.mean(), table.mean())).to_numpy()
    expected = np.linalg.solve(second[:-1, :-1], 2 * second[:-1, -1])
    with buyers_federation(tmp_path, frame, absent="bank", allow=("exact-moments", "presence")) as parties:
        model = Classify(response="bought", epsilon=None, gamma=1024, presence=presence).fit(parties)
    assert model.coef_[0, [model.feature_names_.index(name) for name in NAMES]] == pytest.approx(expected[1:], rel=1e-8)


def test_a_private_fit_beats_the_majority(tmp_path: Path) -> None:
    """n = 300 and noise sd about 9: the fit keeps most of the exact one's accuracy (seeded)."""
    frame = buyers()
    with buyers_federation(tmp_path, frame, seed=8) as parties:
        model = Classify(response="bought", epsilon=4.0, view="server").fit(parties)
    assert model.noise_sd_ > 0
    assert model.score(frame, frame["bought"]) > 0.7 > (frame["bought"] == "yes").mean()


def test_the_area_under_the_roc_curve_follows_from_the_moments(tmp_path: Path) -> None:
    """Oracle: scikit-learn's AUC of the scores on the pooled rows; the moments alone know it to 0.03."""
    frame = buyers()
    with buyers_federation(tmp_path, frame, allow=("exact-moments",)) as parties:
        model = Classify(response="bought", epsilon=None, gamma=1024).fit(parties)
    assert model.separation is not None
    true = roc_auc_score(frame["bought"] == "yes", model.decision_function(frame))
    assert model.separation.auc == pytest.approx(true, abs=0.03)
    assert model.separation.noise == 0
    across, up = model.separation.curve(model.separation.auc)
    assert np.trapezoid(up, across) == pytest.approx(model.separation.auc, abs=0.01)
    assert list(model.view().figures()) == ["roc", "coefficients"]


def test_the_area_is_not_that_of_the_noise_that_was_fitted() -> None:
    """Forty features of which one explains: the apparent AUC of noisy moments is too high, the stated one is not."""
    rng = np.random.default_rng(3)
    sign = np.where(rng.random(20_000) < 0.4, 1.0, -1.0)
    rows = 0.3 * rng.normal(size=(20_000, 40))
    rows[:, 0] += 0.15 * sign
    table = np.column_stack([np.ones(len(sign)), rows, sign])
    names = tuple(f"x{place}" for place in range(40))
    noise = np.triu(rng.normal(scale=0.01, size=(42, 42)))
    noise += np.triu(noise, 1).T
    noise[0, 0] = 0.0
    second = SecondMoments(names=("1", *names, "y"), matrix=table.T @ table / len(table) + noise, noise_sd=0.01)
    _, weights = solve_moments(second, names=names, response="y", intercept=True)
    apparent = moment_auc(second, weights, names=names, response="y")
    stated = separation(second, weights, names=names, response="y", intercept=True, ridge=None)
    true = roc_auc_score(sign > 0, rows @ weights)
    assert apparent is not None
    assert stated is not None
    assert apparent > true + 0.04
    assert stated.auc == pytest.approx(true, abs=0.03)
    assert stated.least < true


def test_options_return_the_same_method_and_bad_ones_are_refused(tmp_path: Path) -> None:
    frame = buyers(60)
    model = Classify(response="bought", columns=("x0", "place"), clip={"shop": 0.5}, epsilon=0.5)
    with buyers_federation(tmp_path, frame) as parties:
        assert parties.plan(Classify.from_options(model.options())).fingerprint == parties.plan(model).fingerprint
        run = parties.run(model)[1]
        assert isinstance(CATALOGUE.make("classify", run.job["options"]), Classify)
        assert run.read_json("result.json")["feature_names"] == ["x0", "place[south]", "place[west]"]
        with pytest.raises(SchemaError, match="binary"):
            Classify(response="x0").fit(parties)
    for wrong in ({"solver": "minibatch"}, {"ridge": -1.0}, {"columns": ("bought",)}):
        with pytest.raises(BadArguments):
            Classify.from_options({"response": "bought", **wrong})
