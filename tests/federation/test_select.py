"""What crosses the border in a sparse GLM by rounds, and what happens when a party fails in the middle."""

from __future__ import annotations

import sqlite3
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from colonnade.errors import ColonnadeError, UnboundedNotAllowed
from colonnade.federation.party import Party
from colonnade.models.sparse import rounds as steps
from colonnade.models.sparse.select import Select
from colonnade.papers.vfl_glm_vs.method import VFLGLMVS
from support import plans
from support.selection import COVARIATES, ROUNDS, related_table, selection_federation

ASKED = Select(
    family="binomial", penalty="lasso", response="event", columns=COVARIATES, n_lambdas=2, ratio=0.3, tolerance=1e-3
)


def test_every_unbounded_release_must_be_allowed_by_name(tmp_path: Path) -> None:
    table = related_table(60)
    for missing in ROUNDS:
        allow = tuple(name for name in ROUNDS if name != missing)
        with (
            selection_federation(tmp_path / missing, table, allow=allow) as parties,
            pytest.raises(UnboundedNotAllowed),
        ):
            parties.check(parties.plan(ASKED))
    with selection_federation(tmp_path / "all", table, allow=ROUNDS) as parties:
        plan = parties.plan(ASKED)
        parties.check(plan)
    assert set(plan.total().unbounded) == set(ROUNDS)
    assert "work out the response" in plan.text()
    plain = Select(**{**ASKED.options(), "masking": "plain"})
    with selection_federation(tmp_path / "plain", table, allow=ROUNDS) as parties, pytest.raises(UnboundedNotAllowed):
        parties.check(parties.plan(plain))


def test_no_vector_over_records_reaches_the_coordinator(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every value that a step releases is small; vectors travel sealed. Sizes depend on n and the columns alone."""
    released: list[tuple[str, int]] = []
    commit = Party._commit

    def note(me: Party, request: Any, data: bytes, hashed: str, release: Any, cost: Any, work: Any) -> bytes:
        released.append((request.step, _numbers(release.value)))
        return commit(me, request, data, hashed, release, cost, work)

    monkeypatch.setattr(Party, "_commit", note)
    n = 60
    with selection_federation(tmp_path, related_table(n)) as parties:
        ASKED.fit(parties)
        VFLGLMVS(
            family="binomial",
            penalty="lasso",
            response="event",
            columns=COVARIATES,
            n_lambdas=2,
            ratio=0.3,
            tolerance=0.05,
        ).fit(parties)
    assert {name.rpartition(".")[2] for name, _ in released} >= {"predict_block", "admm_block", "admm_settle"}
    assert max(size for _, size in released) < n / 2


def _numbers(value: Any) -> int:
    if isinstance(value, dict):
        return sum(_numbers(one) for one in value.values())
    return int(np.size(value)) if value is not None else 0


def test_a_run_that_was_interrupted_resumes_to_the_same_result(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The holder fails once in the middle. Resuming replays what was answered, and nothing is debited twice."""
    table = related_table(60)
    with selection_federation(tmp_path / "whole", table) as parties:
        expected = ASKED.fit(parties)
    fails = iter([False, False, False, True] + [False] * 1000)
    original = steps.send_residuals

    def sometimes(*arguments: Any) -> Any:
        if next(fails):
            raise RuntimeError("the machine went away")
        return original(*arguments)

    monkeypatch.setattr(steps, "send_residuals", sometimes)
    with selection_federation(tmp_path / "broken", table) as parties:
        with pytest.raises(ColonnadeError):
            ASKED.fit(parties)
        (run,) = parties.runs.iterdir()
        result, _ = parties.resume(run)
        ledger = sqlite3.connect(next((tmp_path / "broken" / "home").rglob("employer/**/party.db")))
        seqs = [row[0] for row in ledger.execute("SELECT seq FROM ledger WHERE kind = 'debit'")]
    assert len(seqs) == len(set(seqs))
    # The two federations agreed on different orders of records: sums differ in their last bits.
    np.testing.assert_allclose(result.path.to_numpy(), expected.path.to_numpy(), atol=1e-10)


def test_folds_that_go_in_step_give_what_they_give_one_after_another(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Three folds at once, two, and one: the same scores, in fewer rounds, of which the plan reserves fewer too."""
    n = 60
    asked = replace(ASKED, criterion="cv", folds=3, masking="plain", tolerance=1e-5)
    scores, rounds, reserved = [], [], []
    with selection_federation(tmp_path, related_table(n), allow=(*ROUNDS, "party-predictor")) as parties:
        for together in (3, 2, 1):
            monkeypatch.setattr(steps, "MOST_TOGETHER", 8 * n * together)
            plans._own_plan.cache_clear()  # parties remember what they plan for these options
            fit = asked.fit(parties)
            scores.append(fit.scores)
            rounds.append(fit.rounds)
            reserved.append(parties.plan(asked).stage("predictors").rounds)
    np.testing.assert_allclose(scores[1:], [scores[0]] * 2, rtol=1e-9)
    assert rounds[0] < rounds[1] < rounds[2]
    assert reserved == [2 * 40 * 2, 3 * 40 * 2, 4 * 40 * 2]


def test_a_member_without_data_masks_zeros(tmp_path: Path) -> None:
    """An independent share holder takes part in the pads and changes nothing."""
    table = related_table(60)
    with selection_federation(tmp_path / "three", table) as parties:
        expected = ASKED.fit(parties)
    with selection_federation(tmp_path / "four", table, holder="notary") as parties:
        assert len(parties.roster.names) == 4
        found = ASKED.fit(parties)
    np.testing.assert_allclose(found.path.to_numpy(), expected.path.to_numpy(), atol=1e-9)


def test_a_private_fit_releases_counts_lengths_and_one_noisy_gram_matrix(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing else crosses the border, as often as the plan says, and no party has to allow anything by name."""
    steps_asked: list[str] = []
    commit = Party._commit

    def note(me: Party, request: Any, data: bytes, hashed: str, release: Any, cost: Any, work: Any) -> bytes:
        steps_asked.append(request.step.rpartition(".")[2])
        return commit(me, request, data, hashed, release, cost, work)

    monkeypatch.setattr(Party, "_commit", note)
    asked = Select(response="wage", columns=COVARIATES, epsilon=3.0, n_lambdas=5)
    with selection_federation(tmp_path, related_table(3000), allow=(), seed=2) as parties:
        plan = parties.plan(asked)
        fit = asked.fit(parties)
    expected: Counter[str] = Counter()
    for stage in plan.stages:
        expected[stage.step.rpartition(".")[2]] += sum(stage.counts.values())
    verification = {"show_coin", "prove_shares", "answer_proofs", "conclude"}
    joint = {"share_rows", "compare_shares", "open_shares"}
    assert set(expected) == {"marginal", "block_norms"} | joint | verification
    assert {name: steps_asked.count(name) for name in expected} == expected
    assert set(steps_asked) == set(expected)
    assert fit.released == ()
    assert fit.cost.startswith("(3, ")
