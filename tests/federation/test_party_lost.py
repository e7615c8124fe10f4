"""A party vanishes after the shares were dealt and before anything is opened.

The job fails with `PartyLost`, nothing was revealed, no result is written; when the party is back the run resumes and
the total debited is exactly the plan's. Everything happens in the processes transport.
"""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from colonnade.durable import Database
from colonnade.errors import PartyLost
from colonnade.federation.coordinator import Federation
from colonnade.federation.job import Progress
from colonnade.federation.messages import Transcript
from colonnade.federation.stage import JOB
from colonnade.federation.transports.processes import Processes
from colonnade.privacy.cost import compose
from colonnade.privacy.ledger import Ledger
from colonnade.statistics.moments import Moments
from support.small import three_parties

PARTIES = ("clinic", "court", "bank")


def database(tmp_path: Path, party: str) -> Database:
    return Database(tmp_path / "home" / party / "party.db", read_only=True)


def openings(tmp_path: Path) -> list[Any]:
    """Every release of an opening in any party's transcript."""
    return [
        row.body
        for party in PARTIES
        for row in Transcript(database(tmp_path, party), create=False).rows(direction="out")
        if row.body["step"].endswith("open_shares") and row.body["kind"] in ("release", "replay")
    ]


def gone(federation: Federation, party: str) -> None:
    """Kill a party's process, and keep it from starting again."""
    transport = federation.transport
    assert isinstance(transport, Processes)
    os.kill(transport.pid(party), signal.SIGKILL)
    transport._running[party].wait()
    transport._homes[party].joinpath("party.json").rename(transport._homes[party] / "party.json.away")


def back(tmp_path: Path, party: str) -> None:
    home = tmp_path / "home" / party
    (home / "party.json.away").rename(home / "party.json")


def lose_before_opening(federation: Federation, lost: str, method: Moments) -> None:
    """The party vanishes when the shares have been dealt: after the first round, before the second is asked."""

    def after_sharing(progress: Progress) -> None:
        if progress.rounds == 1:
            gone(federation, lost)

    with pytest.raises(PartyLost):
        federation.run(method, name="run", progress=after_sharing, sure=True)


def assert_nothing_was_revealed(tmp_path: Path) -> None:
    run = tmp_path / "runs" / "run"
    assert not (run / "result.json").exists()
    assert not (run / "grams.npz").exists()
    assert not (run / "costs.json").exists()
    # Not even the holders that are there let their shares go (two of three would show nothing, see secure/claim.md).
    assert not openings(tmp_path)
    sent = Transcript(Database(run / "transcript.db", read_only=True), create=False).rows(direction="out")
    assert not [row for row in sent if row.body["step"].endswith("open_shares")], "nobody was asked to open"


@pytest.mark.slow
def test_a_party_that_vanishes_before_opening(tmp_path: Path) -> None:
    method = Moments(epsilon=1.0, presence="secret")
    with three_parties(tmp_path, transport="processes") as federation:
        lose_before_opening(federation, "court", method)
        assert_nothing_was_revealed(tmp_path)
        with pytest.raises(PartyLost):
            federation.resume(tmp_path / "runs" / "run")
        assert_nothing_was_revealed(tmp_path)
        back(tmp_path, "court")
        result, run = federation.resume(tmp_path / "runs" / "run")
    job = run.job["job"]
    assert run.job["state"] == "done"
    assert (run.path / "result.json").exists()
    assert np.isfinite(result.grams[0]).all()
    assert len({body["seq"] for body in openings(tmp_path)}) == 1
    for party in PARTIES:
        ledger = Ledger(Database(tmp_path / "home" / party / "party.db"))
        ledger.verify()
        planned = compose(run.plan().costs(party))
        assert ledger.debited(job) == planned.with_joint(lambda joint: joint.replace(JOB, job))
