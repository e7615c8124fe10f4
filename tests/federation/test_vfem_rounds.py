"""The rounds of VFEM over a federation: plans, permissions, sizes of messages, resuming, what a party refuses."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from colonnade.catalogue import CATALOGUE
from colonnade.durable import Database
from colonnade.errors import (
    BadArguments,
    NotEstimable,
    PartyLost,
    RunError,
    UnboundedNotAllowed,
    UnsafeRequest,
)
from colonnade.federation.job import Job, Progress
from colonnade.federation.messages import Transcript
from colonnade.federation.stage import Stage, checked_by_step
from colonnade.models.linear.result import Regression
from colonnade.papers.vfem.method import VFEM
from support.vfem_blocks import ALLOW, Simulated, simulated

FIT = VFEM(response="y", tolerance=1e-5)


@pytest.fixture(scope="module")
def data() -> Simulated:
    return simulated(300, (1, 2, 1), (1.0, 0.8, 0.7), seed=11)


@pytest.fixture(scope="module")
def whole(data: Simulated, tmp_path_factory: pytest.TempPathFactory) -> tuple[Regression, Path, Path]:
    """An uninterrupted fit, its run folder, and the parties' home."""
    path = tmp_path_factory.mktemp("whole")
    with data.federation(path) as opened:
        result, run = opened.run(FIT, name="run")
    return result, run.path, path / "home"


def test_options_survive_a_run_folder() -> None:
    chosen = replace(FIT, masking="plain", information="sketch", init="mean", coordinator="university")
    for method in (FIT, chosen, VFEM(response="y", solver="exact", init="mean", minimum_joint=5)):
        assert CATALOGUE.make("vfem", method.options()) == method


def test_as_printed_shows_predictors_and_sketches() -> None:
    printed = VFEM.as_printed(response="y", coordinator="university")
    assert (printed.solver, printed.masking, printed.information) == ("rounds", "plain", "sketch")
    assert printed.init == "complete-case"
    assert VFEM.as_printed(response="y", coordinator="university", init="mean").init == "mean"


@pytest.mark.parametrize("name", ["predictor-sums", "residuals", "block-moments", "presence", "exact-moments"])
def test_each_disclosure_must_be_allowed_by_name(data: Simulated, tmp_path: Path, name: str) -> None:
    allowed = tuple(one for one in ALLOW if one != name)
    with data.federation(tmp_path, allow=allowed) as opened, pytest.raises(UnboundedNotAllowed):
        opened.check(opened.plan(FIT))


def test_the_plan_says_who_sees_what(data: Simulated, tmp_path: Path) -> None:
    with data.federation(tmp_path) as opened:
        masked, plain = opened.plan(FIT), opened.plan(replace(FIT, masking="plain"))
        assert "unbounded: block-moments, exact-moments, predictor-sums, presence, residuals" in masked.text()
        assert "predictor-sums" not in plain.text()
        assert "sees every party's linear predictor" in plain.text()
        assert "sums over groups of two or more other parties: here all 2" in masked.text().replace("\n  ", " ")
        with pytest.raises(UnsafeRequest, match="coordinator="):
            opened.plan(replace(FIT, information="sketch"))
        with pytest.raises(UnsafeRequest, match="none of the parties"):
            opened.plan(replace(FIT, information="sketch", coordinator="b"))
        with pytest.raises(BadArguments, match="sketch_size"):
            opened.plan(replace(FIT, information="sketch", coordinator="university", sketch_size=200))
        sketched = opened.plan(replace(FIT, information="sketch", coordinator="university", sketch_size=30)).text()
        assert "linear equation in the raw" in sketched
        assert "exact-moments" not in sketched


def test_with_two_parties_nothing_hides(tmp_path: Path) -> None:
    two = simulated(200, (1, 2), (1.0, 0.7), seed=3)
    with two.federation(tmp_path, holder="archive") as opened:
        with pytest.raises(UnsafeRequest, match="no other party to hide behind"):
            opened.plan(FIT)
        plain = replace(FIT, masking="plain")
        assert "unbounded: block-moments, exact-moments, predictors, presence, residuals" in opened.plan(plain).text()
        found = plain.fit(opened)
    assert np.isfinite(found.bse).all()
    assert "left out" not in found.summary()


def test_too_few_shared_records_are_refused_with_a_way_out(tmp_path: Path) -> None:
    apart = simulated(300, (1, 2, 2), (1.0, 0.5, 0.5), seed=6)
    shared = apart.blocks["b"]["id"]
    apart.blocks["c"] = apart.blocks["c"][~apart.blocks["c"]["id"].isin(shared[15:])]
    with apart.federation(tmp_path) as opened, pytest.raises(NotEstimable, match="take solver='exact'"):
        replace(FIT, init="mean").fit(opened)


def test_messages_have_a_number_a_record_and_party(whole: tuple[Regression, Path, Path]) -> None:
    """Per iteration and party: one number for each record that it has, up and down, plus a frame, the patterns and one
    entry for the likelihood."""
    result, _, home = whole
    sizes: dict[str, set[int]] = {}
    for party in "abc":
        rows = Transcript(Database(home / party / "party.db", read_only=True), create=False).rows(direction="out")
        for row in rows:
            if row.body["kind"] == "mail" and row.body["tag"] in ("vfem predictor", "vfem residuals"):
                sizes.setdefault(f"{party} to {row.body['peer']}", set()).add(row.body["bytes"])
    assert set(sizes) == {"b to a", "c to a", "a to b", "a to c"}
    for way, found in sizes.items():
        party = way.replace("a", "").replace(" to ", "").strip()
        assert 8 * result.present(party) < min(found)
        assert max(found) < 8 * result.present(party) + 700
    assert len(sizes["b to a"]) == 1, "a predictor has one size in all rounds"


def test_the_ledger_holds_what_the_plan_reserved(whole: tuple[Regression, Path, Path]) -> None:
    result, run, home = whole
    assert (run / "costs.json").is_file()
    assert "predictor-sums" in (run / "summary.txt").read_text()
    rows = Transcript(Database(home / "b" / "party.db", read_only=True), create=False).rows(direction="out")
    releases = [row.body for row in rows if row.body["kind"] == "release" and row.body["step"].endswith("predictors")]
    assert len(releases) == result.steps[0] + 1, "one for each iteration, and one before the standard errors"
    assert all(one["cost"] is not None for one in releases)


def test_an_interrupted_fit_resumes_from_disk(
    data: Simulated, whole: tuple[Regression, Path, Path], tmp_path: Path
) -> None:
    """Every object is new when it resumes, so that nothing but the parties' disks can have carried the state over.
    Estimates involve no randomness, except the rounding of the shared columns: 1e-6 of the standard errors."""

    def stop(progress: Progress) -> None:
        if progress.stage == "vfem: residuals" and progress.rounds > 16:
            raise PartyLost("the test ends the coordinator here")

    with data.federation(tmp_path) as opened, pytest.raises(PartyLost, match="the test"):
        opened.run(FIT, name="run", progress=stop)
    with data.federation(tmp_path) as opened:
        resumed, _ = opened.resume(tmp_path / "runs" / "run")
    expected = whole[0]
    assert resumed.steps == expected.steps
    np.testing.assert_allclose(resumed.params, expected.params, rtol=1e-12, atol=1e-12)
    np.testing.assert_allclose(resumed.bse, expected.bse, rtol=1e-4)


class Hostile:
    """A coordinator that asks the stages of an approved plan with arguments of its own choice."""

    def __init__(self, job: Job) -> None:
        self.job = job

    def stage(self, name: str) -> Stage:
        stage = self.job.plan.stage(f"vfem: {name}")
        every = {argument for requests in stage.requests.values() for argument in requests[0]}
        return replace(stage, later=dict.fromkeys(every, checked_by_step("as the coordinator likes")))

    def ask(self, name: str, **arguments: Any) -> dict[str, Any]:
        return self.job.ask(self.stage(name), **arguments)


def test_a_round_is_answered_once(data: Simulated, tmp_path: Path) -> None:
    """A second request for a round, under another sequence number, would put two arrays under one pad."""
    with data.federation(tmp_path) as opened, opened.open(opened.plan(FIT)) as job:
        hostile = Hostile(job)
        hostile.ask("presence")
        hostile.ask("prepare")
        hostile.ask("predictors", round_number=0, eta=0.5, retreat=False)
        with pytest.raises(UnsafeRequest):
            hostile.ask("predictors", round_number=0, eta=0.25, retreat=False)


def test_the_coordinator_refuses_to_ask_what_the_plan_fixes(data: Simulated, tmp_path: Path) -> None:
    """What may differ is named in the plan with its rule; the rest is what was approved."""
    with data.federation(tmp_path) as opened, opened.open(opened.plan(FIT)) as job:
        stage = job.plan.stage("vfem: predictors")
        assert set(stage.later) == {"round_number", "eta", "retreat"}
        with pytest.raises(RunError, match="masking"):
            job.ask(stage, masking="plain")


def test_a_hostile_coordinator_gets_noise_or_a_refusal(data: Simulated, tmp_path: Path) -> None:
    """A step length of its own for one party would make its predictor drown the others' in the sum: the pads then do
    not cancel, and the likelihood that comes back is that of 64-bit noise. The paper's exchange is
    refused in a job that was approved as masked."""
    with data.federation(tmp_path) as opened, opened.open(opened.plan(FIT)) as job:
        hostile = Hostile(job)
        hostile.ask("presence")
        hostile.ask("prepare")
        first: dict[str, Any] = {"round_number": 0, "eta": 0.5, "retreat": False}
        second = {**first, "round_number": 1}
        hostile.ask("predictors", **first)
        honest = hostile.ask("residuals", mode="mean", **first)["a"]["value"]
        job.ask_each(hostile.stage("predictors"), {"b": {**second, "eta": 2.0}, "c": second})
        drowned = hostile.ask("residuals", mode="mean", **second)["a"]["value"]
        assert abs(honest) < 1e4
        # 200 records that both have, each a uniform number of up to 2^63 / 2^47 = 2^16 standard deviations.
        assert abs(drowned) > 1e9
        with pytest.raises(UnsafeRequest):
            hostile.ask("predictors", round_number=2, eta=0.5, retreat=False, masking="plain")


def test_a_party_whose_residuals_were_held_back_sends_nothing(data: Simulated, tmp_path: Path) -> None:
    """Its coefficients would stay at zero, and the sum of a group be the predictor of the other party."""
    with data.federation(tmp_path) as opened, opened.open(opened.plan(FIT)) as job:
        hostile = Hostile(job)
        hostile.ask("presence")
        hostile.ask("prepare")
        first: dict[str, Any] = {"round_number": 0, "eta": 0.5, "retreat": False}
        hostile.ask("predictors", **first)
        hostile.ask("residuals", mode="mean", **first)
        job._pending["c"].clear()
        with pytest.raises(UnsafeRequest):
            hostile.ask("predictors", round_number=1, eta=0.5, retreat=False)


def test_groups_are_formed_for_the_exchange_that_was_approved(data: Simulated, tmp_path: Path) -> None:
    """In the plain exchange every party is by itself; preparing for it is refused."""
    with data.federation(tmp_path) as opened, opened.open(opened.plan(FIT)) as job:
        hostile = Hostile(job)
        hostile.ask("presence")
        with pytest.raises(UnsafeRequest):
            hostile.ask("prepare", masking="plain")


@pytest.mark.slow
def test_in_processes(data: Simulated, whole: tuple[Regression, Path, Path], tmp_path: Path) -> None:
    with data.federation(tmp_path, transport="processes") as opened:
        found = FIT.fit(opened)
    np.testing.assert_allclose(found.params, whole[0].params, rtol=1e-12, atol=1e-12)
