"""Rounds of noisy scores through a federation: the integers that are opened, their noise, and the fit."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from scipy.special import expit
from sklearn.metrics import roc_auc_score

from colonnade.data.column import Column, Columns
from colonnade.errors import BadArguments
from colonnade.federation.coordinator import Federation
from colonnade.models.classify import Classify
from colonnade.models.glm.attacks import plain_score
from colonnade.models.glm.private import NoisyScores, NoisyScoreStages
from support.buyers import NAMES, OWNERS, buyers, buyers_federation, pooled


class Watch:
    """What the parties share and what is opened, of every round; all parties are in this process."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.layouts: dict[int, NoisyScores] = {}
        self.parts: dict[int, dict[str, np.ndarray]] = {}
        self.points: list[np.ndarray] = []
        self.scores: list[np.ndarray] = []
        quantised, score = NoisyScores.quantised, NoisyScoreStages.score

        def shared(layout: NoisyScores, party: str, *rest: Any) -> np.ndarray:
            self.layouts[layout.turn] = layout
            made = self.parts.setdefault(layout.turn, {})[party] = quantised(layout, party, *rest)
            return made

        def opened(stages: NoisyScoreStages, job: Any, turn: int, point: np.ndarray, units: Any) -> np.ndarray:
            found = score(stages, job, turn, point, units)
            self.points.append(point)
            exact = found * stages.layout.gamma * stages.layout.scale / units.length
            exact[0] /= stages.layout.constant_scale(units)
            self.scores.append(exact)
            return found

        monkeypatch.setattr(NoisyScores, "quantised", shared)
        monkeypatch.setattr(NoisyScoreStages, "score", opened)

    def plain(self, turn: int) -> np.ndarray:
        """What holders must compute from what was shared."""
        layout = self.layouts[turn]
        rows = {party: part[:, : len(layout.place(party))] for party, part in self.parts[0].items()}
        return plain_score(layout, self.parts[turn], rows)


def test_what_is_opened_is_the_exact_score_of_what_was_shared(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Integer by integer, in every round; and within the rounding of rows it is the score of the records."""
    frame = buyers()
    watch = Watch(monkeypatch)
    with buyers_federation(tmp_path, frame, absent="shop", allow=("exact-moments", "exact-scores")) as parties:
        model = Classify(response="bought", epsilon=None, solver="rounds").fit(parties, sure=True)
    assert len(watch.scores) == model.n_iter_ == 8
    for turn, found in enumerate(watch.scores):
        assert np.array_equal(np.rint(found), watch.plain(turn))
    layout = watch.layouts[3]
    rows, sign = pooled(frame)
    order = [NAMES.index(feature.name) for feature in layout.features]
    table, answered = rows[:, order], frame["id"].to_numpy() % 5 != 0  # the shop lacks every fifth record
    own = [feature.party == "shop" for feature in layout.features]
    table[np.ix_(~answered, own)] = 0.0
    residual = np.where(answered, (sign > 0) - expit(watch.points[3][0] + table @ watch.points[3][1:]), 0.0)
    assert watch.scores[3][0] / (layout.gamma * layout.scale) == pytest.approx(
        residual.sum() * np.floor(layout.gamma * layout.norms[0]) / layout.gamma, abs=0.01 * len(frame)
    )
    scores = table @ model.coef_[0] + model.intercept_[0]
    assert model.decision_function(frame) == pytest.approx(rows[:, order] @ model.coef_[0] + model.intercept_[0])
    assert roc_auc_score(sign[answered] > 0, scores[answered]) > 0.87


def test_the_noise_is_that_of_the_plan(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Opened less exact, over 8 rounds of 6 entries: the variance is 2 mu up to four standard errors (seeded)."""
    watch = Watch(monkeypatch)
    with buyers_federation(tmp_path, buyers(2000), seed=3) as parties:
        model = Classify(response="bought", epsilon=1.0).fit(parties, sure=True)
    assert model.solver == "rounds"
    mu = watch.layouts[0].mu
    noise = np.concatenate([found - watch.plain(turn) for turn, found in enumerate(watch.scores)])
    assert mu > 0
    assert np.mean(noise**2) / (2 * mu) == pytest.approx(1.0, abs=4 * np.sqrt(2 / len(noise)))
    assert model.score(buyers(2000), buyers(2000)["bought"]) > 0.75


def test_five_parties_multiply_in_a_tree(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(0)
    numbers = rng.uniform(-1, 1, (200, 5))
    event = rng.uniform(size=200) < expit(numbers @ np.array([2.0, -2.0, 1.0, 1.0, -1.0]))
    blocks = {f"p{at}": pd.DataFrame({"id": np.arange(200), f"x{at}": numbers[:, at]}) for at in range(5)}
    blocks["p2"]["y"] = np.where(event, "yes", "no")
    columns = Columns(
        [
            *(Column(name=f"x{at}", kind="continuous", lower=-1.0, upper=1.0) for at in range(5)),
            Column(name="y", kind="binary", categories=("no", "yes")),
        ]
    )
    watch = Watch(monkeypatch)
    with Federation.local(
        blocks,
        key="id",
        columns=columns,
        home=tmp_path / "home",
        runs=tmp_path / "runs",
        allow=("exact-moments", "exact-scores"),
    ) as parties:
        model = Classify(response="y", epsilon=None, solver="rounds").fit(parties, sure=True)
    for turn, found in enumerate(watch.scores):
        assert np.array_equal(np.rint(found), watch.plain(turn))
    assert (
        roc_auc_score(event, model.decision_function(pd.DataFrame(numbers, columns=[f"x{at}" for at in range(5)])))
        > 0.8
    )


def test_the_default_takes_rounds_where_their_units_are_known_and_says_why(tmp_path: Path) -> None:
    with buyers_federation(tmp_path, buyers(2000)) as parties:

        def told(**options: Any) -> str:
            return " ".join(parties.plan(Classify(response="bought", **options)).notes)

        assert "Solver: rounds" in told(epsilon=1.0)
        assert "too much for the units of rounds" in told(epsilon=0.1)
        assert "presence='secret' is an option of moments" in told(presence="secret")
        assert "ridge is an option of moments" in told(ridge=0.1)
        assert "Solver: moments" not in told(solver="moments")
        assert "without epsilon the moments are exact" in told(epsilon=None)
        assert "Forecast" in told(epsilon=1.0)
        with pytest.raises(BadArguments, match="are at 1"):
            told(solver="rounds", columns=tuple(name for name in OWNERS["shop"] if name != "bought"))
    with pytest.raises(BadArguments, match="does not go with clip"):
        Classify(response="bought", solver="rounds", clip=0.5)
