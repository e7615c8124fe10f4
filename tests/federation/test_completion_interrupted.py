"""A completion that is interrupted goes on where it was: the same tables as without the interruption."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

import colonnade as co
from colonnade.completion.split.exchange import Exchange
from colonnade.completion.split.regressor import Regressor
from colonnade.errors import RunError, StepFailed, StorageError
from support.split import curved_pair

ALLOW = ("presence", "split-training", "completion-quality")
PLAIN = co.Complete(iterations=40, local=5, batch=16, hidden=8, cut=4, parties=("right",))
PRIVATE = replace(PLAIN, epsilon=8.0, epochs=6, batch=8)
"""Its last gradients come with the hand-over: no look at hidden records comes after the last round."""


def opened(path: Path) -> co.Federation:
    blocks, columns = curved_pair(60)
    return co.Federation.local(
        blocks, key="id", columns=columns, seed=3, allow=ALLOW, home=path / "home", runs=path / "runs"
    )


@pytest.mark.parametrize(
    ("method", "where", "name", "call"),
    [
        (PLAIN, Regressor, "partials", 4),
        (PLAIN, Exchange, "hide", 4),
        (PLAIN, Exchange, "send_back", 4),
        (PRIVATE, Exchange, "hide", 7),
    ],
    ids=["sender-in-between", "sender-at-the-end", "active", "sender-hands-over"],
)
def test_a_step_that_fails_halfway_leaves_nothing_behind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, method: co.Complete, where: Any, name: str, call: int
) -> None:
    """The party lives on, with what it has in memory; its next try must begin with what it has committed. Iterations
    that are made twice would also cost twice, where training is private."""
    with opened(tmp_path / "undisturbed") as federation:
        undisturbed = method.fit(federation, sure=True).expected("right")
    right, calls = getattr(where, name), 0

    def failing(*arguments: Any, **more: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls == call:
            raise KeyError("planted")
        return right(*arguments, **more)

    with opened(tmp_path / "failing") as federation:
        monkeypatch.setattr(where, name, failing)
        with pytest.raises(StepFailed):
            federation.run(method, name="run", sure=True)
        result, run = federation.resume(tmp_path / "failing" / "runs" / "run")
        found = result.expected("right")
    assert calls > call
    assert run.job["state"] == "done"
    pd.testing.assert_frame_equal(found, undisturbed, check_exact=True)


def test_a_resumed_result_knows_where_the_tables_are(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    method = co.Complete(imputer="mean", parties=("right",))
    with opened(tmp_path) as federation:
        with monkeypatch.context() as patched:
            patched.setattr("colonnade.completion.steps.quality.summary", lambda *_, **__: 1 / 0)
            with pytest.raises(StepFailed):
                federation.run(method, name="run", sure=True)
        result, _ = federation.resume(tmp_path / "runs" / "run")
        assert result.table("right")["bump (generated)"].any()
        with pytest.raises(RunError, match="is finished"):
            federation.resume(tmp_path / "runs" / "run")


def test_a_table_that_cannot_be_written_is_a_matter_of_storage(tmp_path: Path) -> None:
    """And is written by the resumed run, once it can be."""
    method = co.Complete(imputer="mean", parties=("right",))
    with opened(tmp_path) as federation:
        blocked = tmp_path / "home" / "right" / "completed"
        blocked.write_text("in the way")
        with pytest.raises(StorageError):
            federation.run(method, name="run", sure=True)
        blocked.unlink()
        result, _ = federation.resume(tmp_path / "runs" / "run")
        assert result.table("right")["bump (generated)"].any()
