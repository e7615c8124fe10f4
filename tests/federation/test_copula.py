"""The copula of Synthesize across the border: what leaves, what is debited, what a resumed run gives."""

from __future__ import annotations

import json
import math
import struct
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from colonnade.errors import BadArguments, ColonnadeError, UnboundedNotAllowed
from colonnade.federation.facts import PublicFacts
from colonnade.federation.step import Public, registered
from colonnade.privacy.accounting import guarantee
from colonnade.statistics.moments import MomentsLayout
from colonnade.synthesis.copula import procedure
from colonnade.synthesis.copula.procedure import SCORES, CopulaReleases
from colonnade.synthesis.method import Synthesize
from colonnade.synthesis.table import read_table
from support.small import COLUMNS, three_overlapping_blocks, three_parties

METHOD = Synthesize(model="copula", epsilon=20.0, delta=1e-3, rows=250)


def test_a_run_leaves_a_table_a_model_and_an_account(tmp_path: Path) -> None:
    with three_parties(tmp_path, seed=3) as parties:
        result, run = parties.run(METHOD)
        for party in parties.facts.parties:
            ledger = parties.transport[party].ledger  # type: ignore[index]
            assert ledger.debited(run.job["job"]) is not None
            moments = CopulaReleases(METHOD, parties.facts, parties.roster).costs(1)[1]
            spent = guarantee([ledger.debited(run.job["job"])], delta=1e-3).epsilon
            assert guarantee([moments], delta=1e-3).epsilon < spent < 20.0, "marginals and moments"
    pd.testing.assert_frame_equal(read_table(run), result.sample())
    described = run.read_json("result.json")
    assert described["kind"] == "synthetic-table"
    assert described["rows"] == 250
    assert described["released"] == []
    assert described["simulated"] is True
    assert "zero-out" in described["cost"]
    assert described["details"]["correlation"] == "pairs"
    total = json.loads((run.path / "costs.json").read_text())["person_total"]["zero-out"]
    assert total == described["cost"] == described["details"]["guarantee"]
    assert {one["parties"][0] for one in described["details"]["pairs of parties"]} == {"clinic", "court", "bank"}


def test_only_noisy_counts_and_sealed_shares_leave_a_party(tmp_path: Path) -> None:
    """Four stages, and five that verify before the opening; the score maps stay where they were made."""
    with three_parties(tmp_path, seed=3) as parties:
        plan = parties.plan(METHOD)
        steps = [one.step for one in plan.stages]
        assert [*steps[:3], steps[-1]] == [
            "synthesis.copula.scores.release_marginals",
            "statistics.joint.share_rows",
            "statistics.joint.compare_shares",
            "statistics.joint.open_shares",
        ]
        assert all(step.startswith("statistics.verified.") for step in steps[3:-1])
        assert plan.rounds() == 9


def test_no_raw_value_and_no_score_appears_on_the_wire(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Real noise (no seed). Ages as doubles of either byte order, in anything that reaches or leaves a party."""
    wire: list[bytes] = []
    with three_parties(tmp_path) as parties:
        original = parties.transport.exchange

        def tapped(party: str, data: bytes, *, timeout: float) -> bytes:
            answer = original(party, data, timeout=timeout)
            wire.extend([data, answer])
            return answer

        monkeypatch.setattr(parties.transport, "exchange", tapped)
        METHOD.fit(parties)
    seen = b"".join(wire)
    assert len(seen) > 1000
    ages = three_overlapping_blocks()["clinic"]["age"]
    assert not any(struct.pack(order, age) in seen for age in ages for order in ("<d", ">d"))


def test_a_resumed_run_gives_the_table_of_an_unbroken_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Broken after the last opening: answers are replayed, post-processing runs again, nothing is debited twice."""
    with three_parties(tmp_path / "whole", seed=3) as parties:
        whole = METHOD.fit(parties)
    with three_parties(tmp_path / "broken", seed=3) as parties:
        with monkeypatch.context() as patched:

            def broken(*_: Any, **__: Any) -> None:
                raise RuntimeError("power cut")

            patched.setattr(procedure, "estimate", broken)
            with pytest.raises(RuntimeError):
                parties.run(METHOD, name="run")
        ledger = parties.transport["clinic"].ledger  # type: ignore[index]
        job = json.loads((parties.runs / "run" / "job.json").read_text())["job"]
        before = ledger.debited(job)
        resumed, run = parties.resume(parties.runs / "run")
        assert ledger.debited(job) == before
    pd.testing.assert_frame_equal(resumed.sample(), whole.sample())
    pd.testing.assert_frame_equal(read_table(run), whole.sample())


def test_the_mask_must_be_allowed_by_name(tmp_path: Path) -> None:
    with three_parties(tmp_path / "a", seed=3) as parties, pytest.raises(UnboundedNotAllowed):
        Synthesize(model="copula", epsilon=20.0, delta=1e-3, presence="known").fit(parties)
    with three_parties(tmp_path / "b", seed=3, allow=("presence",)) as parties:
        result = Synthesize(model="copula", epsilon=20.0, delta=1e-3, presence="known").fit(parties)
    assert [one.split(":")[0] for one in result.released] == ["presence"]
    assert "fixed presence mask" in result.details["guarantee"]


def test_without_noise_both_exact_releases_must_be_allowed(tmp_path: Path) -> None:
    method = Synthesize(model="copula", epsilon=None)
    with three_parties(tmp_path / "a", seed=3, allow=("exact-moments",)) as parties, pytest.raises(UnboundedNotAllowed):
        method.fit(parties)
    with three_parties(tmp_path / "b", seed=3, allow=("exact-moments", "exact-marginals")) as parties:
        assert method.fit(parties).details["guarantee"].startswith("none")


def test_the_same_seed_gives_the_same_table_and_another_one_another(tmp_path: Path) -> None:
    tables = []
    for folder, seed in (("a", 3), ("b", 3), ("c", 4)):
        with three_parties(tmp_path / folder, seed=seed) as parties:
            tables.append(METHOD.fit(parties).sample())
    assert tables[0].equals(tables[1])
    assert not tables[0].equals(tables[2])


def test_rows_are_in_the_declared_domains_for_a_choice_of_columns(tmp_path: Path) -> None:
    with three_parties(tmp_path, seed=5) as parties:
        method = Synthesize(
            model="copula", epsilon=20.0, delta=1e-3, columns=("rating", "age"), rows=40, file_format="csv"
        )
        result = method.fit(parties)
    frame = result.sample()
    assert list(frame.columns) == ["age", "rating"]
    for name in frame:
        COLUMNS[name].encode(frame[name])


# --- scores in the layout of the moments -----------------------------------------------------------------------------


def layout(parties: Any, **options: Any) -> MomentsLayout:
    return MomentsLayout(facts=parties.facts, roster=parties.roster, names=None, presence="secret", gamma=64, **options)


def test_scores_are_a_public_part_of_the_layout(tmp_path: Path) -> None:
    """One score a column, whatever its kind, and another tag: a member that was told otherwise deals elsewhere."""
    with three_parties(tmp_path) as parties:
        plain, scored = layout(parties), layout(parties, scores=SCORES)
        assert [one.name for one in scored.features] == ["age", "visits", "sued", "sector", "rating"]
        assert "sector[trade]" in [one.name for one in plain.features]
        assert scored.tag != plain.tag
        assert MomentsLayout.from_dict(parties.facts, parties.roster, scored.to_dict()) == scored
        assert scored.delta_2 == pytest.approx(math.sqrt((8**2 + 8) / 2) * 64**2)


def test_rows_as_scores_need_the_scores_first(tmp_path: Path) -> None:
    """Nothing was kept under the label, so nothing is shared: the job fails instead of falling back to raw features."""
    from colonnade.statistics.moments import Moments

    class Unscored(Moments):
        def layout(self, facts: PublicFacts, roster: Any) -> MomentsLayout:
            from dataclasses import replace

            return replace(super().layout(facts, roster), scores="nobody kept this")

    with three_parties(tmp_path, seed=1) as parties, pytest.raises(ColonnadeError):
        Unscored(epsilon=20.0, delta=1e-3, presence="secret").fit(parties)


def test_the_marginals_price_is_checked_from_the_request(tmp_path: Path) -> None:
    """Less noise costs more, no noise is unbounded, and a strange request has no price at all."""
    step = registered("synthesis.copula.scores.release_marginals")
    with three_parties(tmp_path) as parties:
        public = Public(job="j", party="clinic", facts=parties.facts, roster=parties.roster)
    good = {"label": "x", "columns": ["age", "visits"], "sigma": 10.0, "rounds": 4}
    assert not step.price(public, good).unbounded
    assert step.price(public, {**good, "sigma": 0.0}).unbounded
    for bad in ({"rounds": 0}, {"rounds": 30}, {"columns": []}, {"columns": ["age", "age"]}):
        with pytest.raises(BadArguments):
            step.price(public, {**good, **bad})
    with pytest.raises(ColonnadeError):
        step.price(public, {**good, "columns": ["sued"]})
    with pytest.raises(ColonnadeError):
        step.price(public, {**good, "sigma": -1.0})
    assert np.isfinite(step.price(public, good).leaves()[0].number("noise_multiplier"))
