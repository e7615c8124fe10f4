"""SQMLogistic against numpy on the pooled rows: the ridge problem, and every gradient of the minibatch rounds."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from scipy.stats import binom

from colonnade.data.column import Column, Columns
from colonnade.errors import BadArguments, BadPrivacyParameter, PartyLost, SchemaError, UnsafeRequest
from colonnade.federation import method as methods
from colonnade.federation.coordinator import Federation
from colonnade.models.classify import SQMLogistic, noise_ridge, solve_moments
from colonnade.models.matrix import SecondMoments
from colonnade.papers.sqm import logistic as module
from colonnade.papers.sqm.gradient_layout import GradientLayout
from colonnade.statistics.shares import join
from support.small import three_parties

COLUMNS = Columns(
    [
        Column(name="x0", kind="continuous", lower=-1.0, upper=1.0),
        Column(name="x1", kind="continuous", lower=-1.0, upper=1.0),
        Column(name="place", kind="categorical", categories=("north", "south", "west")),
        Column(name="x2", kind="continuous", lower=-1.0, upper=1.0),
        Column(name="bought", kind="binary", categories=("no", "yes")),
    ]
)
OWNERS = {"shop": ["x0", "bought"], "census": ["place", "x1"], "bank": ["x2"]}


def buyers(n: int = 300) -> pd.DataFrame:
    """A response that follows two of the numbers and one category; numbers on a grid of 1/1024."""
    rng = np.random.default_rng(4)
    numbers = np.rint(rng.uniform(-1, 1, (n, 3)) * 1024) / 1024
    frame = pd.DataFrame(numbers, columns=["x0", "x1", "x2"]).assign(
        id=np.arange(n), place=rng.choice(["north", "south", "west"], n)
    )
    odds = 3 * frame["x0"] - 2 * frame["x2"] + 1.5 * (frame["place"] == "west") - 0.3
    return frame.assign(bought=np.where(rng.uniform(size=n) < 1 / (1 + np.exp(-odds)), "yes", "no"))


def federation(tmp_path: Path, frame: pd.DataFrame, *, absent: str | None = None, **options: Any) -> Federation:
    """`absent` lacks every fifth record."""
    blocks = {
        party: frame.loc[(frame["id"] % 5 != 0) | (party != absent), ["id", *names]] for party, names in OWNERS.items()
    }
    return three_parties(tmp_path, blocks=blocks, columns=COLUMNS, **options)


def pooled(frame: pd.DataFrame) -> tuple[np.ndarray, np.ndarray]:
    """(features in the order of the parties, response in {-1, 1})."""
    place = np.column_stack([frame["place"] == "south", frame["place"] == "west"]).astype(float)
    rows = np.column_stack([frame["x0"], frame["x1"], place, frame["x2"]])
    return rows, np.where(frame["bought"] == "yes", 1.0, -1.0)


NAMES = ("x0", "x1", "place[south]", "place[west]", "x2")


# --- solver="moments" ------------------------------------------------------------------------------------------


def test_the_exact_fit_is_the_least_squares_fit_of_the_taylor_gradient(tmp_path: Path) -> None:
    """x (w.x / 4 - s / 2) summed is zero exactly where w solves least squares on 2 s: numpy's lstsq is the oracle."""
    frame = buyers()
    rows, sign = pooled(frame)
    with federation(tmp_path, frame, allow=("exact-moments",)) as parties:
        model = SQMLogistic(response="bought", epsilon=None, gamma=1024).fit(parties)
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
    """Oracle: pairwise averages by numpy. Where the mask is ignored the fit is another one."""
    frame = buyers()
    rows, sign = pooled(frame)
    rows[frame["id"] % 5 == 0, 4] = np.nan
    table = np.column_stack([np.ones(len(frame)), rows, sign])
    second = np.array([[np.nanmean(a * b) for b in table.T] for a in table.T])
    expected = np.linalg.solve(second[:-1, :-1], 2 * second[:-1, -1])
    with federation(tmp_path, frame, absent="bank", allow=("exact-moments", "presence")) as parties:
        model = SQMLogistic(response="bought", epsilon=None, gamma=1024, presence=presence).fit(parties)
    assert model.coef_[0, [model.feature_names_.index(name) for name in NAMES]] == pytest.approx(expected[1:], rel=1e-8)


def test_a_private_fit_beats_the_majority(tmp_path: Path) -> None:
    """n = 300 and noise sd about 9: the fit keeps most of the exact one's accuracy (seeded)."""
    frame = buyers()
    with federation(tmp_path, frame, seed=8) as parties:
        model = SQMLogistic(response="bought", epsilon=4.0, view="server").fit(parties)
    assert model.noise_sd_ > 0
    assert model.score(frame, frame["bought"]) > 0.7 > (frame["bought"] == "yes").mean()


# --- solver="minibatch" ----------------------------------------------------------------------------------------


def rounded_toward_zero(
    rows: np.ndarray, *, gamma: int, clip: float, entry: float, randomness: object
) -> np.ndarray[Any, np.dtype[np.int64]]:
    return np.trunc(rows * gamma).astype(np.int64)


@pytest.mark.parametrize("intercept", [True, False])
def test_gradients_equal_numpy_exactly_with_the_noise_off(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, intercept: bool
) -> None:
    """Rounding is made deterministic and the noise zero; the shares, the batch and the product are the real ones."""
    monkeypatch.setattr(module, "quantize", rounded_toward_zero)
    real = module.deal_noise
    monkeypatch.setattr(module, "deal_noise", lambda me, tag, field, *, mu, size: real(me, tag, field, mu=0, size=size))
    frame = buyers()
    rows, sign = pooled(frame)
    gamma, rounds = 2**10, 3
    model = SQMLogistic(
        response="bought",
        solver="minibatch",
        epsilon=1.0,
        gamma=gamma,
        sampling=0.2,
        rounds=rounds,
        intercept=intercept,
    )
    rng = np.random.default_rng(1)
    with federation(tmp_path, frame, absent="bank") as parties:
        layout = model.gradient_layout(parties.facts, parties.roster)
        order = [parties.transport["census"].rows[at] for at in range(len(frame))]  # type: ignore[index]
        names = [feature.name for feature in layout.features]
        z = rows[:, [NAMES.index(name) for name in names]].copy()
        z[frame["id"] % 5 == 0, names.index("x2")] = 0
        integers = np.trunc(z / layout.norm * gamma).astype(np.int64)
        if intercept:
            integers = np.column_stack([np.full(len(frame), math.floor(gamma / layout.norm)), integers])
        cohort, response = np.zeros_like(integers), np.zeros(len(frame), dtype=np.int64)
        cohort[order], response[order] = integers, gamma * sign.astype(np.int64)
        arguments = {"layout": layout.to_dict()}
        with parties.open(parties.plan(model)) as job:
            job.ask(module.agree_batches, **arguments)
            for number in range(rounds):
                weights = rng.integers(-gamma, gamma, layout.width) // 4
                job.ask(module.share_batch, number=number, **arguments)
                shares = job.ask(module.open_gradient, number=number, weights=weights.tolist(), **arguments)
                got = np.empty(layout.width, dtype=np.int64)
                got[layout.order] = join(shares, layout.field, layout.roster)
                key = parties.transport["bank"].store.recall(job.id, f"{layout.label}: joint key")  # type: ignore[index]
                chosen = module.poisson_batch(bytes(key), number, len(frame), 0.2)
                batch = cohort[chosen]
                assert 20 < len(chosen) < 110
                assert np.array_equal(got, batch.T @ (batch @ weights - 2 * gamma * response[chosen]))


def test_descent_reaches_the_fit_when_the_noise_is_negligible(tmp_path: Path) -> None:
    """Whole batches, gradients of the pooled integers without noise, room for the weights: the moments solution."""
    frame = buyers(120)
    rows, sign = pooled(frame)
    with federation(tmp_path, frame) as parties:
        layout = SQMLogistic(
            response="bought", solver="minibatch", epsilon=4.0, gamma=2**10, sampling=1.0, rounds=400, radius=20.0
        ).gradient_layout(parties.facts, parties.roster)
    names = [feature.name for feature in layout.features]
    z = np.rint(rows[:, [NAMES.index(name) for name in names]] / layout.norm * layout.gamma)
    z = np.column_stack([np.full(len(frame), layout.one), z])

    def gradient(number: int, weights: np.ndarray) -> np.ndarray:
        return z.T @ (z @ weights - 2 * layout.gamma**2 * sign) / (4 * layout.gamma**3)

    intercept, coef = module.descent(layout, gradient, learning_rate=6.0)
    expected = np.linalg.lstsq(np.column_stack([np.ones(len(frame)), rows]), 2 * sign, rcond=None)[0]
    assert [intercept, *coef[[names.index(name) for name in NAMES]]] == pytest.approx(expected, rel=0.01, abs=0.01)
    intercept, coef = module.descent(replace(layout, radius=0.5), gradient, learning_rate=6.0)
    assert np.linalg.norm([intercept, *coef]) * layout.norm == pytest.approx(0.5, rel=1e-3), "clipped to the radius"


def test_the_gradients_sensitivity_bound_holds_and_is_nearly_reached(tmp_path: Path) -> None:
    """Search over quantised rows and weights within their norms; z parallel to w with the opposite sign is extreme."""
    with federation(tmp_path, buyers(30)) as parties:
        layout = SQMLogistic(response="bought", solver="minibatch", gamma=512).gradient_layout(
            parties.facts, parties.roster
        )
    rng = np.random.default_rng(0)
    best = 0.0
    for _ in range(2000):
        z = rng.normal(size=layout.width)
        z = np.trunc(z * math.sqrt(layout.row_square) / np.linalg.norm(z))
        w = z if rng.uniform() < 0.5 else rng.normal(size=layout.width)
        w = np.trunc(w * math.sqrt(layout.weight_square) / np.linalg.norm(w))
        change = z * (z @ w - 2 * 512 * 512 * rng.choice([-1, 1]))
        best = max(best, float(np.linalg.norm(change)))
        assert np.abs(change).sum() <= layout.delta_1
    assert 0.98 * layout.delta_2 < best <= layout.delta_2
    assert layout.delta_2 / (4 * 512**3) == pytest.approx(0.75, rel=0.01), "the paper's constant, nothing for rounding"


def test_batches_are_poisson_and_agree_between_parties() -> None:
    """Binomial law of sizes and of one record's count over 2000 batches: two-sided tests at 1e-9 each."""
    sizes, seen = [], np.zeros(200)
    for number in range(2000):
        chosen = module.poisson_batch(b"k" * 32, number, 200, 0.1)
        assert np.array_equal(chosen, module.poisson_batch(b"k" * 32, number, 200, 0.1))
        sizes.append(len(chosen))
        seen[chosen] += 1
    assert binom.ppf(1e-9, 400_000, 0.1) < sum(sizes) < binom.isf(1e-9, 400_000, 0.1)
    assert binom.ppf(1e-9 / 200, 2000, 0.1) < seen.min()
    assert seen.max() < binom.isf(1e-9 / 200, 2000, 0.1)
    # sum of squared deviations over the variance: mean 2000, sd 63
    assert 1500 < np.sum((np.array(sizes) - 20) ** 2) / 18 < 2500
    assert len(module.poisson_batch(b"k" * 32, 0, 200, 1.0)) == 200
    assert not np.array_equal(
        module.poisson_batch(b"x" * 32, 0, 200, 0.1), module.poisson_batch(b"k" * 32, 0, 200, 0.1)
    )


def test_the_client_view_is_debited_and_both_are_printed(tmp_path: Path) -> None:
    with federation(tmp_path, buyers()) as parties:
        options: dict[str, Any] = {"response": "bought", "solver": "minibatch", "sampling": 0.05, "rounds": 6}
        client = parties.plan(SQMLogistic(**options, epsilon=2.0))
        server = parties.plan(SQMLogistic(**options, epsilon=2.0, view="server"))
        assert 1.95 < client.total().epsilon <= 2.0
        assert server.total().epsilon > 6.0, "the same noise costs far more against who knows the batches"
        assert any("amplified by sampling; the noise is calibrated for it): (2, " in note for note in server.notes)
        assert all("Client view (debited, no amplification" in plan.text() for plan in (client, server))
        model = SQMLogistic(**options, epsilon=2.0).fit(parties)
        assert model.n_iter_ == 6
        for party in OWNERS:
            ledger = parties.transport[party].ledger  # type: ignore[index]
            assert ledger.spent(delta=1e-6).epsilon == pytest.approx(client.total().epsilon, rel=1e-6)
            assert len(ledger.chain.rows(kind="debit")) >= 7


def opened_round(parties: Federation, model: SQMLogistic, change: Callable[[GradientLayout], Any]) -> None:
    layout = model.gradient_layout(parties.facts, parties.roster)
    arguments = {"layout": layout.to_dict()}
    with parties.open(parties.plan(model)) as job:
        job.ask(module.agree_batches, **arguments)
        job.ask(module.share_batch, number=0, **arguments)
        job.ask(module.open_gradient, **{**arguments, "number": 0, "weights": [0] * layout.width, **change(layout)})


def test_a_coordinator_cannot_ask_for_more(tmp_path: Path) -> None:
    model = SQMLogistic(response="bought", solver="minibatch", sampling=0.1, rounds=3)
    with federation(tmp_path, buyers()) as parties:
        opened_round(parties, model, lambda layout: {})
        with pytest.raises(UnsafeRequest):  # weights beyond the radius
            opened_round(parties, model, lambda layout: {"weights": [layout.gamma + 1] + [0] * (layout.width - 1)})
        with pytest.raises(PartyLost):  # another layout than the one under which the rows were shared
            opened_round(parties, model, lambda layout: {"layout": {**layout.to_dict(), "radius": 2.0}})
        with pytest.raises(UnsafeRequest):
            opened_round(parties, model, lambda layout: {"number": 3})
        layout = model.gradient_layout(parties.facts, parties.roster)
        arguments = {"layout": layout.to_dict()}
        with pytest.raises(UnsafeRequest), parties.open(parties.plan(model)) as job:  # the same batch again
            job.ask(module.agree_batches, **arguments)
            job.ask(module.share_batch, number=0, **arguments)
            job.ask(module.share_batch, number=0, **arguments)


def test_options_return_the_same_method_and_bad_ones_are_refused(tmp_path: Path) -> None:
    frame = buyers(60)
    model = SQMLogistic(response="bought", columns=("x0", "place"), clip={"shop": 0.5}, epsilon=0.5)
    with federation(tmp_path, frame) as parties:
        assert parties.plan(SQMLogistic.from_options(model.options())).fingerprint == parties.plan(model).fingerprint
        run = parties.run(model)[1]
        methods.METHODS.setdefault("classify", ("colonnade.models.classify", "SQMLogistic"))
        assert isinstance(methods.method("classify", run.job["options"]), SQMLogistic)
        assert run.read_json("result.json")["feature_names"] == ["x0", "place[south]", "place[west]"]
        with pytest.raises(SchemaError, match="binary"):
            SQMLogistic(response="x0").fit(parties)
        with pytest.raises(UnsafeRequest, match="without noise"):
            SQMLogistic(response="bought", solver="minibatch", epsilon=None).fit(parties)
        with pytest.raises(BadPrivacyParameter, match="smaller gamma"):
            SQMLogistic(response="bought", solver="minibatch", gamma=2**20).fit(parties)
        with pytest.raises(BadPrivacyParameter, match="probability"):
            SQMLogistic(response="bought", solver="minibatch", sampling=1.5).fit(parties)
    for wrong in ({"solver": "newton"}, {"ridge": -1.0}, {"columns": ("bought",)}):
        with pytest.raises(BadArguments):
            SQMLogistic(response="bought", **wrong)
    with pytest.raises(BadArguments, match="not fitted"):
        SQMLogistic(response="bought").predict(frame)
