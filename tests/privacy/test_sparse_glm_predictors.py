"""Can the response holder find a single party's linear predictor, or its columns? From everything it received.

The attack collects every message that reached the holder in all rounds (the test opens its mail as the holder can: with
its own key, and without its own pads) and asks whether the party's predictors lie in their span, by rank factorisation.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from numpy.typing import NDArray

from colonnade.federation.party import Party
from colonnade.models import sparse_glm
from colonnade.models import sparse_glm_steps as steps
from colonnade.models.sparse_glm import SparseGLM
from colonnade.models.sparse_glm_rounds import quasi_newton
from colonnade.models.sparse_path import mean_response
from support.selection import COVARIATES, related_table, selection_federation

Array = NDArray[np.float64]
N = 150


@contextmanager
def watched(monkeypatch: pytest.MonkeyPatch) -> Iterator[dict[str, list[Any]]]:
    """What the holder receives, and (for judging the attack) what the bank really computed."""
    seen: dict[str, list[Any]] = {"mail": [], "bank": [], "columns": [], "total": []}
    received, predict = Party.received, steps.StandardBlock.predictor
    total = steps.total_predictor

    def receive(me: Party, tag: str) -> dict[str, Any]:
        got = received(me, tag)
        if me.name == "employer" and tag == "predictor":
            seen["mail"].append({sender: np.array(value) for sender, value in got.items() if sender != "employer"})
        return got

    def predictor(block: Any, coefficients: Array) -> Array:
        made = predict(block, coefficients)
        if len(coefficients) == 3:  # the bank has three columns
            seen["bank"].append(made)
            seen["columns"].append(block.values)
        return np.asarray(made)

    def added(me: Party, known: Any) -> Array:
        made = total(me, known)
        seen["total"].append(made)
        return np.asarray(made)

    monkeypatch.setattr(Party, "received", receive)
    monkeypatch.setattr(steps.StandardBlock, "predictor", predictor)
    monkeypatch.setattr(steps, "total_predictor", added)
    yield seen


def fit(path: Path, exchange: str, table: pd.DataFrame) -> Any:
    """Six lambdas of a binomial lasso: some twenty rounds."""
    with selection_federation(path, table) as parties:
        return SparseGLM(
            family="binomial",
            penalty="lasso",
            response="event",
            columns=COVARIATES,
            exchange=exchange,  # type: ignore[arg-type]
            n_lambdas=6,
            ratio=0.02,
        ).fit(parties)


def explained(span: Array, target: Array) -> float:
    """The share of `target` that lies in the span of the columns (after their means); 1 if the attack succeeds."""
    centred = span - span.mean(axis=0)
    left, values, _ = np.linalg.svd(centred / np.maximum(np.linalg.norm(centred, axis=0), 1e-300), full_matrices=False)
    basis = left[:, values > 1e-9]
    y = target - target.mean()
    return float(np.sum((basis.T @ y) ** 2) / np.sum(y**2))


def test_masked_messages_hide_each_predictor_and_plain_ones_show_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = related_table(N, seed=4)
    found = {}
    for exchange in ("masked", "plain"):
        with monkeypatch.context() as patch, watched(patch) as seen:
            fit(tmp_path / exchange, exchange, table)
        target = seen["bank"][-1]
        assert np.std(target) > 0
        messages = np.column_stack([np.asarray(one["bank"]).astype(np.float64) for one in seen["mail"]])
        found[exchange] = (explained(messages, target), messages, seen)
    # Plain: the message is the predictor, and all rounds lie in the span of the bank's three columns.
    score, messages, _ = found["plain"]
    assert score > 1 - 1e-9
    assert np.linalg.matrix_rank(messages - messages.mean(axis=0), tol=1e-6) <= 3 < messages.shape[1]
    # Masked: m uniform vectors in N - 1 dimensions explain about m / (N - 1) of anything, and so they do here.
    score, messages, seen = found["masked"]
    rounds = messages.shape[1]
    chance = rounds / (N - 1)
    # The share is Beta(m / 2, (N - 1 - m) / 2); six standard deviations above its mean has probability below 1e-6.
    assert score < chance + 6 * np.sqrt(2 * chance * (1 - chance) / (N + 1))
    assert np.linalg.matrix_rank(messages / 2.0**64) == rounds
    # The totals are what was meant to be seen: their span is not the bank's predictor either.
    totals = np.column_stack(seen["total"])
    others = [one for one in seen["bank"] if np.std(one) > 0]
    assert len(others) > 3
    assert np.linalg.matrix_rank(totals - totals.mean(axis=0), tol=1e-6) <= len(COVARIATES)


def test_while_one_party_has_coefficients_the_total_is_its_predictor(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What a sparse path shows, masked or not: an event that depends on the bank's x4 alone, at lambdas that select it
    alone. The totals then have rank one, and are the bank's column up to scale."""
    table = related_table(N, seed=4)
    strong = table["x4"] + 0.3 * np.random.default_rng(0).normal(size=N)
    table["event"] = np.where(strong > 0, "yes", "no")
    with monkeypatch.context() as patch, watched(patch) as seen, selection_federation(tmp_path, table) as parties:
        fit = SparseGLM(
            family="binomial", penalty="lasso", response="event", columns=COVARIATES, n_lambdas=2, ratio=0.7
        ).fit(parties)
    assert tuple(fit.path.columns[1:][fit.path.iloc[-1, 1:] != 0]) == ("x4",)
    last = seen["total"][-1]
    assert abs(np.corrcoef(last, seen["columns"][0][:, 2])[0, 1]) > 1 - 1e-9


def test_the_holder_and_the_coordinator_together_recover_columns(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What the claim does not promise: b_t (coordinator) and Z b_t (holder) of enough rounds are Z by least squares."""
    table = related_table(N, seed=4)
    asked: list[Array] = []

    def tapped(*arguments: Any, **options: Any) -> Any:
        solver = quasi_newton(*arguments, **options)
        inner = solver._evaluate

        def noted(theta: Array) -> Any:
            asked.append(theta.copy())
            return inner(theta)

        solver._evaluate = noted  # type: ignore[method-assign]
        return solver

    with monkeypatch.context() as patch, watched(patch) as seen:
        patch.setattr(sparse_glm, "quasi_newton", tapped)
        fit(tmp_path, "masked", table)
    b, eta = np.array(asked)[:, 1:], np.column_stack(seen["total"])
    recovered = np.linalg.lstsq(b, eta.T, rcond=1e-6)[0].T
    # x4 is the bank's third column; it was selected, so its coefficient moved.
    np.testing.assert_allclose(recovered[:, 4], seen["columns"][0][:, 2], atol=1e-2)
    alone = explained(eta, seen["columns"][0][:, 2])
    assert alone > 0.99  # the holder alone has the span, and does not know which combination it is


def test_gradients_show_the_coordinator_moments_and_no_more(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What the default discloses beside ADMM. Gaussian: p + 1 independent rounds of gradients are Z'Z by least squares,
    the moments that `via="moments"` opens. They cannot tell records with the same moments from one another."""
    table = related_table(N, seed=4)
    noted: list[tuple[Array, Array]] = []

    def tapped(*arguments: Any, **options: Any) -> Any:
        solver = quasi_newton(*arguments, **options)
        inner = solver._evaluate

        def evaluate(theta: Array) -> Any:
            made = inner(theta)
            noted.append((theta.copy(), made.gradient))
            return made

        solver._evaluate = evaluate  # type: ignore[method-assign]
        return solver

    x = table[list(COVARIATES)].to_numpy()
    standard = (x - x.mean(axis=0)) / x.std(axis=0)

    def gradients(path: Path, rows: pd.DataFrame) -> tuple[Array, Array]:
        noted.clear()
        with monkeypatch.context() as patch, selection_federation(path, rows) as parties:
            patch.setattr(sparse_glm, "quasi_newton", tapped)
            SparseGLM(penalty="lasso", response="wage", columns=COVARIATES, via="newton", n_lambdas=8, ratio=0.001).fit(
                parties
            )
        return np.array([one for one, _ in noted]), np.array([one for _, one in noted])

    theta, seen = gradients(tmp_path / "one", table)
    recovered = np.linalg.lstsq(np.diff(theta, axis=0)[:, 1:], np.diff(seen, axis=0)[:, 1:], rcond=1e-9)[0]
    np.testing.assert_allclose(recovered, standard.T @ standard / N, atol=1e-3)
    # Other people with the same moments: rotate the centred records within the space that keeps their mean.
    rng = np.random.default_rng(0)
    basis = np.linalg.qr(np.column_stack([np.ones(N), rng.normal(size=(N, N - 1))]))[0][:, 1:]
    turn = basis @ np.linalg.qr(rng.normal(size=(N - 1, N - 1)))[0] @ basis.T
    names = [*COVARIATES, "wage"]
    values = table[names].to_numpy()
    other = table.copy()
    other[names] = values.mean(axis=0) + turn @ (values - values.mean(axis=0))
    assert np.abs(other[list(COVARIATES)].to_numpy()).max() < 6
    assert np.abs(other[names].to_numpy() - values).mean() > 0.5
    same = gradients(tmp_path / "two", other)
    np.testing.assert_allclose(same[0], theta, atol=1e-7)
    np.testing.assert_allclose(same[1], seen, atol=1e-7)


def test_a_residual_shows_the_response() -> None:
    """Why `response-residuals` is unbounded: the sign of psi'(eta) - y is the class."""
    y = np.array([0.0, 1.0, 1.0, 0.0])
    eta = np.array([3.0, -2.0, 0.1, -4.0])
    np.testing.assert_array_equal((mean_response("binomial", eta) - y) < 0, y == 1)
