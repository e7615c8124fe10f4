"""The chaos study in short: each kind of fault once, at a request in the middle of a job with sealed messages."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from colonnade.durable import Database
from colonnade.federation.run_folder import RunFolder
from colonnade.privacy.ledger import Ledger

sys.path.insert(0, str(Path(__file__).parents[2]))  # `benchmarks` is beside the package and not installed

from benchmarks.chaos_common import FAULTS, TIMEOUT, Fault, Stage


@pytest.fixture(scope="module")
def stage(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    made = Stage(tmp_path_factory.mktemp("stage"))
    yield made
    made.close()


@pytest.mark.slow
@pytest.mark.parametrize("kind", FAULTS)
def test_a_fault_in_the_middle_of_a_job(stage: Stage, kind: str) -> None:
    """`Stage.run` compares with the undisturbed result and looks into every ledger and transcript."""
    fault = Fault(kind=kind, job="moments", target="credit", at=3, late=0.004, lasts=1.0)
    outcome = stage.run(kind.replace(" ", "-"), fault)
    assert outcome.struck
    assert not outcome.wrong, outcome
    if kind == "kill coordinator":
        assert outcome.attempts > 1, "a killed coordinator must be resumed"


@pytest.mark.slow
def test_a_party_that_stays_away_is_named(stage: Stage) -> None:
    """Paused for longer than a request may take: the error says who, in time, and the run resumes."""
    fault = Fault(kind="pause", job="describe", target="market", at=2, late=0.0, lasts=1.5 * TIMEOUT)
    outcome = stage.run("away", fault)
    assert not outcome.wrong, outcome
    assert outcome.attempts > 1
    assert "PartyLost: party 'market'" in outcome.errors[0]


def test_a_wrong_result_would_be_seen(stage: Stage) -> None:
    """The checks of the study, shown a planted error of each kind."""
    fault = Fault(kind="cut", job="describe", target="market", at=99, late=0.0, lasts=0.0)
    outcome = stage.run("planted", fault)
    assert (outcome.struck, outcome.wrong) == (False, [])
    run = stage.root / "runs" / "planted" / "result.json"
    good = run.read_text()
    run.write_text(good.replace('"n": ', '"n": 1'))
    assert any("another result" in one for one in stage._check("planted", "describe"))
    run.write_text(good)
    assert not stage._check("planted", "describe")
    with contextlib.closing(Database(stage.root / "home" / "market" / "party.db")) as database:
        ledger, job = Ledger(database), RunFolder.open(run.parent).job["job"]
        ledger.chain.append(ledger.chain.rows(job=job, kind="debit")[0].body)
    found = stage._check("planted", "describe")
    assert any("market: a request was debited or released twice" in one for one in found)
    assert any("debits more than was reserved" in one for one in found)
