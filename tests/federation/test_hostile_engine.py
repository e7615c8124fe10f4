"""The hostile study in short: some deviations of three methods teach nothing, and with planted bugs they do."""

from __future__ import annotations

import random
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from colonnade.federation.job import Job
from colonnade.federation.messages import Reply
from colonnade.federation.plan import Plan
from colonnade.federation.stage import Stage, stage
from colonnade.statistics.describe import Describe
from support.hostile import disarm
from support.plans import own_methods, plan_of_stages
from support.small import three_parties
from support.steps import read_greetings, send_greeting, send_note

sys.path.insert(0, str(Path(__file__).parents[2]))  # `benchmarks` is beside the package and not installed

from benchmarks.hostile import CASES, scene_method
from benchmarks.hostile_common import NOT_TOLD, Case, Engine, Scene, Verdicts, lies_of, run_with_lie, scene_of


@pytest.fixture(scope="module")
def tables() -> Iterator[Scene]:
    with scene_of(CASES["tables, one"]) as scene:
        yield scene


def deviated(scene: Scene, *, most: int, runs: int, only: tuple[str, ...] = ("",)) -> Verdicts:
    engine = Engine(scene, random.Random(5))
    engine.probe_all(most=most, only=lambda what: what.startswith(only))
    engine.runs(runs)
    return engine.verdicts


def test_the_study_has_every_method() -> None:
    assert {scene_method(case) for case in CASES.values()} == own_methods()


@pytest.mark.parametrize("name", ["describe, laplace", "presence-total"])
def test_deviations_teach_nothing(name: str) -> None:
    with scene_of(CASES[name]) as scene:
        verdicts = deviated(scene, most=2, runs=5)
    assert not verdicts.learned
    assert verdicts.deviations > 40
    assert verdicts.refused.total() > 30


def test_deviations_of_shares_teach_nothing(tables: Scene) -> None:
    verdicts = deviated(tables, most=2, runs=5)
    assert not verdicts.learned
    assert verdicts.deviations > 40


@pytest.mark.parametrize("where", ["rows", "noise", "open", "compared"])
def test_a_lie_is_noticed(tables: Scene, where: str) -> None:
    """In a share that is dealt, of rows or noise; in one that is opened; in a comparison."""
    lie = next(lie for lie in lies_of(tables) if where in lie.where and "dealt" not in lie.where)
    assert run_with_lie(tables, lie, random.Random(2)).startswith("noticed")


def test_a_range_of_a_predictor_is_told_once() -> None:
    """A request for ranges with the next number, at the coefficients of an earlier round, is refused; at others it is a
    round that the plan has."""
    case = CASES["regress, poisson"]
    with scene_of(replace(case, method=lambda: replace(case.method(), verify=False))) as scene:
        ranges = [place for place, each in enumerate(scene.honest) if each.request.stage == "scores: ranges"]
        at = next(place for place in range(ranges[-1] + 1, len(scene.honest)) if scene.honest[place].party == "bank")
        for exchange in scene.honest[:at]:
            scene.cast.say(exchange.party, exchange.request.encode())
        earlier = next(scene.honest[place].request for place in ranges if scene.honest[place].party == "bank")
        again = replace(earlier, seq=scene.honest[at].request.seq)
        assert Reply.decode(scene.cast.say("bank", again.encode())).error == "unsafe-request"
        chosen = {**again.arguments["chosen"], "coefficients": [0.25, 0.0, 0.0]}
        other = replace(again, seq=again.seq + 1, arguments={**again.arguments, "chosen": chosen})
        assert not Reply.decode(scene.cast.say("bank", other.encode())).error


# --- planted bugs -------------------------------------------------------------------------------------------


class Notes(Describe):
    """A method of two stages: greetings under two tags, and a note to one member."""

    def plan(self, facts: Any, roster: Any) -> Plan:
        public: dict[str, Any] = {"facts": facts, "roster": roster}
        tags = [{"tag": "first"}, {"tag": "second"}]
        greet = stage(
            "greet",
            send_greeting,
            dict.fromkeys(roster.names, tags),
            discloses="greetings",
            recipients=roster.names,
            **public,
        )
        read = stage("read", read_greetings, dict.fromkeys(roster.names, tags), discloses="sums", **public)
        note = stage(
            "note", send_note, {"clinic": [{"to": "court"}]}, discloses="a note", recipients=["court"], **public
        )
        made = plan_of_stages("describe", [greet, read, note])
        return replace(made, run=lambda job: Nothing(job, [greet, read, greet, read, note]))


class Nothing:
    """What comes of it."""

    def __init__(self, job: Job, stages: list[Stage]) -> None:
        for each in stages:
            job.ask(each)

    def to_dict(self) -> dict[str, Any]:
        return {}

    def write(self, run: Any) -> None:
        pass


NOTES = Case(name="notes", method=Notes, federation=three_parties)


@pytest.mark.parametrize(
    ("off", "finding"),
    [
        ((), ""),
        (("bound arguments",), "which the honest run does not contain"),
        (("bound arguments", "one message under a tag"), "more often than in the honest run"),
        (("bound arguments", "recipients"), "'bank', 'note'"),
    ],
)
def test_planted_bugs_are_found(monkeypatch: pytest.MonkeyPatch, off: tuple[str, ...], finding: str) -> None:
    with scene_of(NOTES) as scene:
        disarm(monkeypatch, *off)
        verdicts = deviated(scene, most=200, runs=0, only=("arguments", "earlier"))
    assert bool(verdicts.learned) == bool(off)
    assert not off or any(finding in found.what for found in verdicts.learned)


def test_each_check_alone_hides_its_bug(monkeypatch: pytest.MonkeyPatch) -> None:
    """A tag is not used twice, and no one else gets a note, although arguments are no longer bound."""
    with scene_of(NOTES) as scene:
        disarm(monkeypatch, "bound arguments")
        verdicts = deviated(scene, most=200, runs=0, only=("arguments", "earlier"))
    words = [found.what for found in verdicts.learned]
    assert words
    assert not [found for found in words if "more often" in found or "'bank', 'note'" in found]


# --- the list, by strata --------------------------------------------------------------------------------------------


ALREADY_OVER = 0.0
"""An end of the time for repetitions: kinds alone are covered."""


def test_kinds_are_covered_before_repetitions() -> None:
    """Each kind of change, however little time there is; repetitions of the same messages only in what is left."""
    with scene_of(NOTES) as scene:
        short, long = Engine(scene, random.Random(5)), Engine(scene, random.Random(5))
        short.cover(ALREADY_OVER)
        long.cover()
    assert short.verdicts.kinds == short.verdicts.kinds_covered == long.verdicts.kinds_covered > 300
    assert short.verdicts.listed == long.verdicts.listed
    assert short.verdicts.covered < long.verdicts.covered <= long.verdicts.listed
    assert not long.verdicts.learned


def test_kinds_that_time_did_not_allow_for_are_missing() -> None:
    with scene_of(NOTES) as scene:
        engine = Engine(scene, random.Random(5))
        engine.cover(ALREADY_OVER, kinds_end=ALREADY_OVER)
    assert engine.verdicts.kinds > engine.verdicts.kinds_covered == 0


def test_a_hole_in_the_last_kind_of_message_is_found_by_kinds_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """The note is asked for once, after twelve requests of other kinds."""
    with scene_of(NOTES) as scene:
        disarm(monkeypatch, "bound arguments", "recipients")
        engine = Engine(scene, random.Random(5))
        engine.cover(ALREADY_OVER, only=lambda what: what.startswith("arguments"))
    assert any("'bank', 'note'" in found.what for found in engine.verdicts.learned)


def test_kinds_of_lies_name_the_part_of_a_letter(tables: Scene) -> None:
    """A comparison has two parts, each a lie of its own; one that the run has no place for counts as not told."""
    kinds = {lie.part for lie in lies_of(tables) if lie.member == "clinic" and lie.where.startswith("compared")}
    assert kinds == {"coins", "dealings"}
    absent = replace(lies_of(tables)[0], part="no such part")
    assert run_with_lie(tables, absent, random.Random(2)) == NOT_TOLD
