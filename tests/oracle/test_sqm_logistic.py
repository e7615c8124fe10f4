"""The paper's minibatches against numpy on the pooled rows: every gradient, and the descent."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy.stats import binom

from colonnade.errors import BadArguments, BadPrivacyParameter, PartyLost, UnsafeRequest
from colonnade.federation.catalogue import CATALOGUE
from colonnade.federation.coordinator import Federation
from colonnade.federation.stage import checked_by_step
from colonnade.papers.sqm import gradient_layout as module
from colonnade.papers.sqm.gradient_layout import GradientLayout
from colonnade.papers.sqm.logistic import SQMLogistic, descent
from support.buyers import NAMES, OWNERS, buyers, buyers_federation, pooled


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
    monkeypatch.setattr(module, "noise_part", lambda me, *, mu, size: np.zeros(size, dtype=np.int64))
    frame = buyers()
    rows, sign = pooled(frame)
    gamma, rounds = 2**10, 3
    model = SQMLogistic(
        response="bought",
        epsilon=1.0,
        gamma=gamma,
        sampling=0.2,
        rounds=rounds,
        intercept=intercept,
    )
    rng = np.random.default_rng(1)
    with buyers_federation(tmp_path, frame, absent="bank") as parties:
        procedure = model.procedure(parties.facts, parties.roster)
        layout = procedure.layout
        order = [parties.transport["census"].rows[at] for at in range(len(frame))]  # type: ignore[index]
        names = [feature.name for feature in layout.features]
        z = rows[:, [NAMES.index(name) for name in names]].copy()
        z[frame["id"] % 5 == 0, names.index("x2")] = 0
        integers = np.trunc(z / layout.norm * gamma).astype(np.int64)
        if intercept:
            integers = np.column_stack([np.full(len(frame), math.floor(gamma / layout.norm)), integers])
        cohort, response = np.zeros_like(integers), np.zeros(len(frame), dtype=np.int64)
        cohort[order], response[order] = integers, gamma * sign.astype(np.int64)
        with parties.open(parties.plan(model)) as job:
            job.ask(procedure.agree)
            for number in range(rounds):
                weights = rng.integers(-gamma, gamma, layout.width) // 4
                later = {"chosen": {"weights": weights.tolist()}}
                job.ask(procedure.share, **later)
                got = np.empty(layout.width, dtype=np.int64)
                got[layout.order] = procedure.joint.opened(job, **later)
                key = parties.transport["bank"].store.recall(job.id, f"{layout.key_tag}: joint")  # type: ignore[index]
                chosen = module.poisson_batch(bytes(key), number, len(frame), 0.2)
                batch = cohort[chosen]
                assert 20 < len(chosen) < 110
                assert np.array_equal(got, batch.T @ (batch @ weights - 2 * gamma * response[chosen]))


def test_descent_reaches_the_fit_when_the_noise_is_negligible(tmp_path: Path) -> None:
    """Whole batches, gradients of the pooled integers without noise, room for the weights: the moments solution."""
    frame = buyers(120)
    rows, sign = pooled(frame)
    with buyers_federation(tmp_path, frame) as parties:
        model = SQMLogistic(response="bought", epsilon=4.0, gamma=2**10, sampling=1.0, rounds=400, radius=20.0)
        layout = model.procedure(parties.facts, parties.roster).layout
    names = [feature.name for feature in layout.features]
    z = np.rint(rows[:, [NAMES.index(name) for name in names]] / layout.norm * layout.gamma)
    z = np.column_stack([np.full(len(frame), layout.intercept_entry), z])

    def gradient(number: int, weights: np.ndarray) -> np.ndarray:
        return z.T @ (z @ weights - 2 * layout.gamma**2 * sign) / (4 * layout.gamma**3)

    intercept, coef = descent(layout, gradient, learning_rate=6.0)
    expected = np.linalg.lstsq(np.column_stack([np.ones(len(frame)), rows]), 2 * sign, rcond=None)[0]
    assert [intercept, *coef[[names.index(name) for name in NAMES]]] == pytest.approx(expected, rel=0.01, abs=0.01)
    intercept, coef = descent(replace(layout, radius=0.5), gradient, learning_rate=6.0)
    assert np.linalg.norm([intercept, *coef]) * layout.norm == pytest.approx(0.5, rel=1e-3), "clipped to the radius"


def test_the_gradients_sensitivity_bound_holds_and_is_nearly_reached(tmp_path: Path) -> None:
    """Search over quantised rows and weights within their norms; z parallel to w with the opposite sign is extreme."""
    with buyers_federation(tmp_path, buyers(30)) as parties:
        layout = SQMLogistic(response="bought", gamma=512).procedure(parties.facts, parties.roster).layout
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
    with buyers_federation(tmp_path, buyers()) as parties:
        options: dict[str, Any] = {"response": "bought", "sampling": 0.05, "rounds": 6}
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
    """One round by a coordinator that changes what it asks of the share holders, against its own plan."""
    procedure = model.procedure(parties.facts, parties.roster)
    layout = procedure.layout
    honest = {"chosen": {"weights": [0] * layout.width}}
    hostile = replace(procedure.compare, later=dict.fromkeys(("layout", "number", "chosen"), checked_by_step("")))
    with parties.open(parties.plan(model)) as job:
        job.ask(procedure.agree)
        job.ask(procedure.share, **honest)
        job.ask(hostile, **{"number": 0, **honest, **change(layout)})


def test_a_coordinator_cannot_ask_for_more(tmp_path: Path) -> None:
    model = SQMLogistic(response="bought", sampling=0.1, rounds=3)
    with buyers_federation(tmp_path, buyers()) as parties:
        opened_round(parties, model, lambda layout: {})
        with pytest.raises(UnsafeRequest):  # weights beyond the radius
            opened_round(
                parties,
                model,
                lambda layout: {"chosen": {"weights": [layout.gamma + 1] + [0] * (layout.width - 1)}},
            )
        with pytest.raises(PartyLost):  # other weights than those for which the batch was dealt
            opened_round(parties, model, lambda layout: {"chosen": {"weights": [1] + [0] * (layout.width - 1)}})
        with pytest.raises(UnsafeRequest):  # another layout than the one under which the rows were shared
            opened_round(parties, model, lambda layout: {"layout": {**layout.to_dict(), "radius": 2.0}})
        with pytest.raises(UnsafeRequest):
            opened_round(parties, model, lambda layout: {"number": 3})
        procedure = model.procedure(parties.facts, parties.roster)
        with pytest.raises(UnsafeRequest), parties.open(parties.plan(model)) as job:  # the same batch again
            job.ask(procedure.agree)
            honest = {"chosen": {"weights": [0] * procedure.layout.width}}
            job.ask(procedure.share, **honest)
            again = replace(procedure.share, later=dict.fromkeys(("number", "chosen"), checked_by_step("")))
            job.ask(again, number=0, **honest)


def test_options_return_the_same_method_and_bad_ones_are_refused(tmp_path: Path) -> None:
    model = SQMLogistic(response="bought", columns=("x0", "place"), clip={"shop": 0.5}, sampling=0.2, rounds=2)
    with buyers_federation(tmp_path, buyers(60)) as parties:
        assert parties.plan(SQMLogistic.from_options(model.options())).fingerprint == parties.plan(model).fingerprint
        run = parties.run(model)[1]
        assert isinstance(CATALOGUE.make("sqm-logistic", run.job["options"]), SQMLogistic)
        assert run.read_json("result.json")["solver"] == "minibatch"
        with pytest.raises(BadPrivacyParameter, match="smaller gamma"):
            SQMLogistic(response="bought", gamma=2**20).fit(parties)
        with pytest.raises(BadPrivacyParameter, match="probability"):
            SQMLogistic(response="bought", sampling=1.5).fit(parties)
    with pytest.raises(BadArguments, match="epsilon"):  # exact gradients are not offered
        SQMLogistic(response="bought", epsilon=None)  # type: ignore[arg-type]


def test_as_printed_has_the_papers_epochs() -> None:
    """Section 6.2: batches of 0.1 %, and 2, 5, 8, 10, 10 epochs for its epsilons."""
    rounds = [
        SQMLogistic.as_printed(response="bought", epsilon=epsilon).rounds for epsilon in (0.5, 1.0, 2.0, 4.0, 8.0)
    ]
    assert rounds == [2000, 5000, 8000, 10_000, 10_000]
    printed = SQMLogistic.as_printed(response="bought", sampling=0.01)
    assert (printed.rounds, printed.gamma, printed.delta, printed.view) == (500, 2**13, 1e-5, "server")
    assert not printed.intercept
