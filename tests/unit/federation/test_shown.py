"""What a notebook shows of plans, ledgers and federations, and what they say of themselves in a line."""

from __future__ import annotations

import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from colonnade.durable import Database
from colonnade.federation import coordinator
from colonnade.federation.job import Progress
from colonnade.federation.notebook import notebook_line
from colonnade.privacy.cost import Gaussian
from colonnade.privacy.ledger import Budget, Ledger, Reservation
from colonnade.statistics.describe import Describe
from colonnade.statistics.moments import Moments
from support.small import three_parties


def test_a_federation_and_its_plan_show_public_facts_and_costs(tmp_path: Path) -> None:
    with three_parties(tmp_path) as federation:
        plan = federation.plan(Describe(epsilon=1.0, columns=("age", "sued")))
        assert repr(federation).startswith("<Federation of 3 parties, 60 records; columns: clinic (2), court (1)")
        assert len(repr(plan)) < 200
        assert str(plan.total()) in repr(plan)
        shown = plan._repr_html_()
        assert all(party in shown for party in ("clinic", "court", "bank"))
        assert "Noisy counts of one column" in shown
        assert plan.figures == ("guesses", "belief")
        assert plan.plot("belief").ax_.get_xlabel() == "belief about one person before"
        exact = federation.plan(Moments(epsilon=None, columns=("age", "sued")))
        assert exact.figures == (), "what has no bound means nothing in numbers"
        assert federation.figures == ("columns",)
        assert [bar.get_width() for bar in federation.plot().ax_.patches] == [2, 1, 2]  # type: ignore[attr-defined]


def test_a_ledger_draws_what_was_spent_under_its_budget(tmp_path: Path) -> None:
    """Oracle: the ledger's own total, and the stair's last value."""
    now = [1_000_000.0]
    ledger = Ledger(Database(tmp_path / "ledger.db"), budget=Budget(epsilon=5.0, delta=1e-6), clock=lambda: now[0])
    assert ledger.figures == (), "nothing was spent yet"
    for job in ("one", "two"):
        ledger.reserve(job, [Reservation(stage="s", step="t", count=1, cost=Gaussian(5.0))])
        now[0] += 86_400
    data = ledger.view().figures()["spending"].data
    assert data["times"] == [1_000_000.0, 1_086_400.0]
    assert data["budget"] == 5.0
    assert data["values"][0] < data["values"][1] == ledger.spent(delta=1e-6).epsilon
    assert ledger.plot("spending").ax_.get_ylim()[1] > 5.0
    assert "budget of epsilon 5" in repr(ledger)
    assert "two" in ledger._repr_html_()


class Handle:
    def __init__(self, shown: list[str]) -> None:
        self.shown = shown

    def update(self, bundle: dict[str, str], *, raw: bool) -> None:
        assert raw
        self.shown.append(bundle["text/plain"])


def test_a_notebook_shows_one_line_with_the_time_left(monkeypatch: pytest.MonkeyPatch) -> None:
    """Jupyter is a stand-in here; docs/notebooks run in the real one."""
    shown: list[str] = []

    def display(bundle: dict[str, str], *, raw: bool, display_id: bool) -> Handle:
        assert raw
        assert display_id
        assert "<progress" in bundle["text/html"]
        shown.append(bundle["text/plain"])
        return Handle(shown)

    assert notebook_line("regress") is None
    monkeypatch.setitem(sys.modules, "IPython", SimpleNamespace(get_ipython=lambda: SimpleNamespace(kernel=object())))
    monkeypatch.setitem(sys.modules, "IPython.display", SimpleNamespace(display=display))
    line = notebook_line("regress")
    assert line is not None
    line(Progress(stage="a", rounds=1, of=10, bytes=5, seconds=0.5))
    assert shown == [], "a moment is not worth a line"
    line(Progress(stage="a", rounds=2, of=10, bytes=5, seconds=30.0))
    line(Progress(stage="b", rounds=5, of=10, bytes=5, seconds=50.0))
    line.end()
    assert shown == [
        "regress: round 2 of 10, a, about 2 min left",
        "regress: round 5 of 10, b, about 50 s left",
        "regress: 5 rounds in 50 s",
    ]


def test_a_run_in_a_notebook_shows_its_progress(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[str] = []

    class Line:
        def __call__(self, now: Progress) -> None:
            calls.append(now.stage)

        def end(self) -> None:
            calls.append("end")

    monkeypatch.setattr(coordinator, "notebook_line", lambda method: Line())
    with three_parties(tmp_path) as federation:
        federation.run(Describe(epsilon=1.0, columns=("age",)))
        assert calls[-1] == "end"
        assert len(calls) > 1
        calls.clear()
        federation.run(Describe(epsilon=1.0, columns=("age",)), progress=lambda now: None)
        assert calls == []
