"""Can the response holder find a single party's linear predictor, or its columns? From everything it received.

The attack collects every message that reached the holder in all rounds (the test opens its mail as the holder can: with
its own key, and without its own pads) and asks whether the party's predictors lie in their span, by rank factorisation.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from numpy.typing import NDArray

from colonnade.errors import NotEstimable
from colonnade.federation.party import Party
from colonnade.models.sparse import rounds as steps
from colonnade.models.sparse.path import Evaluation, mean_response
from colonnade.models.sparse.rounds import Cover, QuasiNewton
from colonnade.models.sparse.select import PathOptions, Select
from colonnade.papers.vfl_glm_vs.method import VFLGLMVS
from support.selection import COVARIATES, cohort_rows, related_table, selection_federation

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
            others = {sender: np.array(value) for sender, value in got.items() if sender != "employer"}
            seen["mail"] += [
                {sender: value[row] for sender, value in others.items()} for row in range(len(others["bank"]))
            ]
        return got

    def predictor(block: Any, coefficients: Array) -> Array:
        made = predict(block, coefficients)
        if coefficients.shape[1] == 3:  # the bank has three columns
            seen["bank"] += [*made]
            seen["columns"] += [block.values] * len(made)
        return np.asarray(made)

    def added(me: Party, known: Any, rows: int = 1) -> Array:
        made = total(me, known, rows)
        seen["total"] += [*made]
        return np.asarray(made)

    monkeypatch.setattr(Party, "received", receive)
    monkeypatch.setattr(steps.StandardBlock, "predictor", predictor)
    monkeypatch.setattr(steps, "total_predictor", added)
    yield seen


def tap(patch: pytest.MonkeyPatch, note: Callable[[Array, Evaluation], None]) -> None:
    """Note the coefficients and the reply of every round that was opened."""
    start = QuasiNewton.start

    def tapped(*arguments: Any, **options: Any) -> Any:
        solver = start(*arguments, **options)
        inner = solver._evaluate

        def evaluate(theta: Array) -> Evaluation:
            reply = inner(theta)
            note(theta, reply)
            return reply

        solver._evaluate = evaluate  # type: ignore[method-assign]
        return solver

    patch.setattr(QuasiNewton, "start", tapped)


def fit(path: Path, masking: str, table: pd.DataFrame) -> Any:
    """Six lambdas of a binomial lasso: some twenty rounds."""
    with selection_federation(path, table) as parties:
        return Select(
            family="binomial",
            penalty="lasso",
            response="event",
            columns=COVARIATES,
            masking=masking,  # type: ignore[arg-type]
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
    for masking in ("masked", "plain"):
        with monkeypatch.context() as patch, watched(patch) as seen:
            fit(tmp_path / masking, masking, table)
        target = next(one for one in reversed(seen["bank"]) if np.std(one) > 0)
        messages = np.column_stack([np.asarray(one["bank"]).astype(np.float64) for one in seen["mail"]])
        found[masking] = (explained(messages, target), messages, seen)
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


# --- sparse rounds ------------------------------------------------------------------------------------------------

BANK, CLINIC = slice(2, 5), slice(5, 9)


@dataclass(frozen=True, eq=False)
class Opened:
    """The rounds whose totals were opened: coefficients and columns (for judging), and what the holder has."""

    b: Array
    x: Array
    totals: Array
    """Without the holder's own part, which it knows."""
    fit: Any


def opened(path: Path, monkeypatch: pytest.MonkeyPatch, table: pd.DataFrame) -> Opened:
    asked: list[Array] = []
    with monkeypatch.context() as patch, watched(patch) as seen, selection_federation(path, table) as parties:
        tap(patch, lambda theta, _: asked.append(theta[1:].copy()))
        fit = Select(
            family="binomial",
            penalty="lasso",
            response="event",
            columns=COVARIATES,
            tolerance=1e-4,
            n_lambdas=12,
            ratio=0.01,
        ).fit(parties)
        x = table[list(COVARIATES)].to_numpy()[cohort_rows(parties, table)]
    x = (x - x.mean(axis=0)) / x.std(axis=0)
    b, totals = np.array(asked), np.column_stack(seen["total"])
    np.testing.assert_allclose(totals, x @ b.T, atol=1e-6)
    return Opened(b, x, totals - x[:, :2] @ b[:, :2].T, fit)


def isolated(seen: Opened) -> set[str]:
    """The parties of which the totals show a combination of columns alone, by intersecting the spans of rounds.

    The attacker is told which rounds have the same columns, which it could also work out from their ranks.
    """
    spans = []
    support = seen.b[:, 2:] != 0
    for pattern in np.unique(support, axis=0):
        if pattern.any():
            left, values, _ = np.linalg.svd(seen.totals[:, (support == pattern).all(axis=1)], full_matrices=False)
            spans.append(left[:, values > 1e-5 * values[0]])
    meets = [*spans]
    for one, other in itertools.combinations(spans, 2):
        left, cosines, _ = np.linalg.svd(one.T @ other)
        shared = int(np.sum(cosines > 1 - 1e-9))
        if shared:
            meets.append(one @ left[:, :shared])
    found = set()
    for party, place in (("bank", BANK), ("clinic", CLINIC)):
        basis = np.linalg.qr(seen.x[:, place])[0]
        if any(np.linalg.norm(meet - basis @ (basis.T @ meet)) < 1e-3 for meet in meets):
            found.add(party)
    return found


@pytest.fixture
def leaning() -> pd.DataFrame:
    """An event that depends on the bank's x4 above all: at large lambdas it is selected alone."""
    table = related_table(N, seed=4)
    strong = table["x4"] + 0.4 * table["x7"] + 0.8 * np.random.default_rng(0).normal(size=N)
    return table.assign(event=np.where(strong > 0, "yes", "no"))


def test_no_round_and_no_two_rounds_isolate_a_party_and_without_the_guard_they_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, leaning: pd.DataFrame
) -> None:
    """The planted bug opens every total: those with x4 alone are the bank's column up to scale."""
    guarded = opened(tmp_path / "guarded", monkeypatch, leaning)
    active = [{"bank" if j < 5 else "clinic" for j in np.flatnonzero(row) if j > 1} for row in guarded.b]
    assert all(len(one) != 1 for one in active)
    assert sum(len(one) == 2 for one in active) > 10
    assert isolated(guarded) == set()
    assert "Withheld" in guarded.fit.summary()
    with monkeypatch.context() as patch:
        patch.setattr(Cover, "admit", lambda *_: None)
        planted = opened(tmp_path / "planted", patch, leaning)
    assert "bank" in isolated(planted)
    alone = [t for t, row in enumerate(planted.b) if set(np.flatnonzero(row[2:])) == {2}]
    assert abs(np.corrcoef(planted.totals[:, alone[-1]], planted.x[:, 4])[0, 1]) > 1 - 1e-9
    assert len(guarded.fit.lambdas) < len(planted.fit.lambdas) == 12


def test_other_predictors_of_a_party_fit_every_total_that_was_opened(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, leaning: pd.DataFrame
) -> None:
    """The argument of `Cover`, carried out: other columns and coefficients, with the same columns active
    in every round, give the same totals, and the bank's predictor is another."""
    seen = opened(tmp_path, monkeypatch, leaning)
    support = seen.b != 0
    meet = support[support[:, 4]].all(axis=0)
    cover = next(j for j in range(*CLINIC.indices(9)) if meet[j])
    x, b = seen.x.copy(), seen.b.copy()
    x[:, 4] -= 0.37 * x[:, cover]
    b[:, cover] += 0.37 * b[:, 4]
    np.testing.assert_array_equal(b != 0, support)
    np.testing.assert_allclose(x[:, 2:] @ b[:, 2:].T, seen.totals, atol=1e-9)
    at = int(np.argmax(np.abs(b[:, 4])))
    true, other = seen.x[:, BANK] @ seen.b[at, BANK], x[:, BANK] @ b[at, BANK]
    assert np.std(other - true) > 0.2 * np.std(true)


def test_where_one_party_is_always_alone_the_fit_is_refused(tmp_path: Path, leaning: pd.DataFrame) -> None:
    """Lambdas at which only x4 is selected: nothing else can be said about them, and the way out is named."""
    with selection_federation(tmp_path, leaning) as parties, pytest.raises(NotEstimable, match="'bank' alone"):
        Select(
            family="binomial", penalty="lasso", response="event", columns=("x0", "x4", "x5"), n_lambdas=2, ratio=0.8
        ).fit(parties)


@pytest.mark.parametrize(("method", "count", "tolerance"), [(Select, 12, 1e-5), (VFLGLMVS, 3, 1e-3)])
def test_given_solutions_are_those_of_the_plain_exchange(
    tmp_path: Path, method: type[PathOptions], count: int, tolerance: float, leaning: pd.DataFrame
) -> None:
    """What is not withheld is the same path, whatever way led to it."""
    asked = method(
        family="binomial",
        penalty="lasso",
        response="event",
        columns=("x0", "x4", "x7"),
        n_lambdas=count,
        ratio=0.1,
        tolerance=tolerance,
    )
    with selection_federation(tmp_path, leaning) as parties:
        plain, masked = replace(asked, masking="plain").fit(parties), asked.fit(parties)
    given = [int(np.argmin(np.abs(plain.lambdas - lam))) for lam in masked.lambdas]
    assert 1 < len(given) < count
    np.testing.assert_allclose(masked.path.to_numpy(), plain.path.to_numpy()[given], atol=20 * tolerance)


def test_the_holder_and_the_coordinator_together_recover_columns(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What the claim does not promise: b_t (coordinator) and Z b_t (holder) of enough rounds are Z by least squares."""
    table = related_table(N, seed=4)
    asked: list[Array] = []
    with monkeypatch.context() as patch, watched(patch) as seen:
        tap(patch, lambda theta, _: asked.append(theta.copy()))
        fit(tmp_path, "masked", table)
    b, eta = np.array(asked)[:, 1:], np.column_stack(seen["total"])
    recovered = np.linalg.lstsq(b, eta.T, rcond=1e-6)[0].T
    # x4 is the bank's third column; it was selected, so its coefficient moved.
    np.testing.assert_allclose(recovered[:, 4], seen["columns"][0][:, 2], atol=1e-2)
    alone = explained(eta, seen["columns"][0][:, 2])
    assert alone > 0.99  # the holder alone has the span, and does not know which combination it is


def test_gradients_show_the_coordinator_moments_and_no_more(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What the default discloses beside ADMM. Gaussian: p + 1 independent rounds of gradients are Z'Z by least squares,
    the moments that `solver="moments"` opens. They cannot tell records with the same moments from one another."""
    table = related_table(N, seed=4)
    noted: list[tuple[Array, Array]] = []
    x = table[list(COVARIATES)].to_numpy()
    standard = (x - x.mean(axis=0)) / x.std(axis=0)

    def gradients(path: Path, rows: pd.DataFrame) -> tuple[Array, Array]:
        noted.clear()
        with monkeypatch.context() as patch, selection_federation(path, rows) as parties:
            tap(patch, lambda theta, reply: noted.append((theta.copy(), reply.gradient)))
            Select(penalty="lasso", response="wage", columns=COVARIATES, solver="newton", n_lambdas=8, ratio=0.001).fit(
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
