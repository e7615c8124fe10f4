"""What is confirmed is what runs: a verb makes one plan, shows it, and hands that very object to the federation."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import colonnade as co
from colonnade.cli import running
from colonnade.cli.output import Output
from colonnade.errors import NotApproved
from colonnade.federation.coordinator import Federation
from colonnade.federation.plan import Plan
from support.small import three_parties


def test_the_plan_that_was_shown_is_the_object_that_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    made: list[Plan] = []
    ran: list[Any] = []
    plan, run = Federation.plan, Federation.run

    def planned(self: Federation, method: Any) -> Plan:
        made.append(plan(self, method))
        return made[-1]

    def running_it(self: Federation, planned: Any, **options: Any) -> Any:
        ran.append(planned)
        return run(self, planned, **options)

    monkeypatch.setattr(Federation, "plan", planned)
    monkeypatch.setattr(Federation, "run", running_it)
    with three_parties(tmp_path) as federation:
        running.run(federation, co.Describe(epsilon=1.0), Output(), name="first", wanted=running.Wanted(yes=True))
        assert len(made) == 1, "nothing is planned twice"
        assert ran == [made[0]]
        assert ran[0] is made[0]
        said = capsys.readouterr().out
        assert str(made[0].total()) in said
        for note in running.together(made[0].notes):
            assert note in said


def test_a_no_on_the_terminal_runs_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdin.isatty", lambda: True, raising=False)
    monkeypatch.setattr("typer.confirm", lambda question: False)
    out = Output()
    out.terminal = True
    with three_parties(tmp_path) as federation, pytest.raises(NotApproved, match="nothing was spent"):
        running.run(federation, co.Describe(epsilon=1.0), out, name="no", wanted=running.Wanted())
    assert not (tmp_path / "runs").exists()


def test_columns_of_which_the_same_is_expected_share_a_line() -> None:
    notes = ("First.", "Column 'a': 3 cells.", "Column 'b: c': 3 cells.", "Column 'd': 9 cells.", "Last.", "Last.")
    assert list(running.together(notes)) == [
        "First.",
        "Columns 'a', 'b: c': 3 cells.",
        "Column 'd': 9 cells.",
        "Last.",
        "Last.",
    ]
