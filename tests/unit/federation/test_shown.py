"""What a notebook shows of plans, ledgers and federations, and what they say of themselves in a line."""

from __future__ import annotations

from pathlib import Path

from colonnade.durable import Database
from colonnade.privacy.cost import Gaussian
from colonnade.privacy.ledger import Budget, Ledger, Reservation
from colonnade.statistics.describe import Describe
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
