"""What a request may say about a joint statistic: its layout as data, what is refused, and what is remembered of it."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any, ClassVar

import pytest

import colonnade as co
from colonnade.errors import (
    BadArguments,
    BadPrivacyParameter,
    ColonnadeError,
    PackageNotNamed,
    UnknownColumn,
    UnsafeRequest,
)
from colonnade.federation.coordinator import Federation
from colonnade.federation.facts import PublicFacts
from colonnade.federation.roster import Roster
from colonnade.federation.step import Public
from colonnade.privacy.accounting import guarantee
from colonnade.statistics import joint
from colonnade.statistics.joint import JointStatistic, field_for, open_shares, share_rows
from colonnade.statistics.moments import MomentComputation, MomentsLayout
from colonnade.statistics.polynomial import PolynomialLayout
from colonnade.statistics.tables import TablesLayout
from support.asking import asking
from support.small import three_parties

ALLOW = ("presence", "exact-moments", "exact-tables", "exact-polynomial")
METHODS = {
    "moments": co.Moments(epsilon=1.0, clip={"bank": 0.5}, patterns=((True, True, False), (True, True, True))),
    "scaled moments": co.Moments(epsilon=None, presence="secret", memory=500),
    "tables": co.Tables(tables=(("age", "sued", "rating"), ("sector",)), bins={"age": 5}, split=(2, 1)),
    "polynomial": co.PolynomialSum(
        polynomial=co.Polynomial.of([(0.3, {"age": 2, "sued": 1}), (1, {})], [(2, {"rating": 1})]), bounds={"age": 0.5}
    ),
}


@pytest.fixture(scope="module")
def federation(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Federation]:
    with three_parties(tmp_path_factory.mktemp("joint"), allow=ALLOW) as opened:
        yield opened


@pytest.mark.parametrize("name", METHODS)
def test_a_layout_survives_json(federation: Federation, name: str) -> None:
    """With everything that is derived from it: what travels is all that counts."""
    layout: Any = METHODS[name].layout(federation.facts, federation.roster)  # type: ignore[attr-defined]
    stated = json.loads(json.dumps(layout.to_dict()))
    parsed = JointStatistic.from_dict(federation.facts, federation.roster, stated)
    assert parsed == layout
    assert type(parsed) is type(layout)
    assert parsed.to_dict() == stated
    for attribute in ("tag", "parties", "chunks", "openings", "sensitivity"):
        assert getattr(parsed, attribute) == getattr(layout, attribute)
    assert parsed.field.primes == layout.field.primes


@pytest.mark.parametrize("name", METHODS)
def test_every_field_binds(federation: Federation, name: str) -> None:
    """Two layouts that differ in one field have different tags, so that mail of one never serves the other."""
    layout: Any = METHODS[name].layout(federation.facts, federation.roster)  # type: ignore[attr-defined]
    stated = layout.to_dict()
    assert set(stated) == {"kind", *(field.name for field in fields(layout))} - {"facts", "roster"}
    tags = {layout.tag}
    for field in stated.keys() - {"kind"}:
        other = joint.binding(layout.label, {**stated, field: "another value"})
        assert other not in tags
        tags.add(other)


def _refused(federation: Federation, layout: Any, words: str, kind: type[ColonnadeError] = BadArguments) -> None:
    with pytest.raises(kind, match=words):
        JointStatistic.from_dict(federation.facts, federation.roster, layout)


def test_what_a_request_must_not_say(federation: Federation) -> None:
    stated = METHODS["moments"].layout(federation.facts, federation.roster).to_dict()  # type: ignore[attr-defined]
    _refused(federation, {**stated, "kind": "secrets"}, "no joint statistic 'secrets'")
    _refused(federation, {**stated, "kind": ["moments"]}, "no joint statistic")
    _refused(federation, {**stated, "kind": "tables"}, "unknown field|lacks")
    _refused(federation, {name: value for name, value in stated.items() if name != "kind"}, "no joint statistic None")
    _refused(federation, {name: value for name, value in stated.items() if name != "mu"}, "lacks 'mu'")
    _refused(federation, {**stated, "facts": federation.facts.to_dict()}, "unknown field 'facts'")
    _refused(federation, {**stated, "roster": federation.roster.to_dict()}, "unknown field 'roster'")
    _refused(federation, {**stated, "gamma": True}, "gamma .* must be an integer")
    _refused(federation, {**stated, "gamma": 2.0}, "gamma .* must be an integer")
    _refused(federation, {**stated, "mu": "1"}, "mu .* must be an integer")
    _refused(federation, {**stated, "mu": -1}, "mu from 0")
    _refused(federation, {**stated, "presence": "maybe"}, "presence .* must be 'known'")
    _refused(federation, {**stated, "clip": {"bank": math.nan}}, "cannot be read")
    _refused(federation, {**stated, "clip": {"bank": -1.0}}, "positive norm", BadPrivacyParameter)
    _refused(federation, {**stated, "clip": {"stranger": 1.0}}, "positive norm", BadPrivacyParameter)
    _refused(federation, {**stated, "names": ["height"]}, "height", UnknownColumn)
    _refused(federation, {**stated, "names": "age"}, "names .* is a list")
    _refused(federation, {**stated, "label": b"moments"}, "cannot be read")
    _refused(federation, [stated], "no joint statistic None")


def test_a_step_takes_the_kind_that_it_names(federation: Federation) -> None:
    stated = METHODS["moments"].layout(federation.facts, federation.roster).to_dict()  # type: ignore[attr-defined]
    assert MomentsLayout.from_dict(federation.facts, federation.roster, stated)
    for other in (TablesLayout, PolynomialLayout):
        with pytest.raises(BadArguments, match="another kind"):
            other.from_dict(federation.facts, federation.roster, stated)


# --- parsed once ------------------------------------------------------------------------------------------


def test_a_layout_is_parsed_once_for_facts_and_roster(federation: Federation) -> None:
    facts, roster = federation.facts, federation.roster
    stated = METHODS["tables"].layout(facts, roster).to_dict()  # type: ignore[attr-defined]
    first = JointStatistic.from_dict(facts, roster, stated)
    again = JointStatistic.from_dict(facts, roster, json.loads(json.dumps(stated)))
    assert again is first, "the same text for the same objects"
    others = PublicFacts.from_dict(facts.to_dict()), Roster.from_dict(roster.to_dict())
    assert JointStatistic.from_dict(others[0], roster, stated).facts is others[0]
    assert JointStatistic.from_dict(facts, others[1], stated).roster is others[1]
    assert JointStatistic.from_dict(facts, replace(roster, colluders=2), stated).roster.colluders == 2
    weaker = JointStatistic.from_dict(facts, roster, {**stated, "mus": [1, 1]})
    assert weaker.tag != first.tag
    assert JointStatistic.from_dict(facts, roster, stated) is first


def test_a_refused_layout_is_refused_again(federation: Federation) -> None:
    stated = METHODS["tables"].layout(federation.facts, federation.roster).to_dict()  # type: ignore[attr-defined]
    for _ in range(2):
        _refused(federation, {**stated, "mus": [0, 5]}, "mus must give every table noise")


def test_changing_a_request_afterwards_changes_nothing(federation: Federation) -> None:
    stated = METHODS["moments"].layout(federation.facts, federation.roster).to_dict()  # type: ignore[attr-defined]
    parsed = MomentsLayout.from_dict(federation.facts, federation.roster, stated)
    before = parsed.to_dict()
    stated["clip"]["bank"] = 100.0
    assert parsed.to_dict() == before


def test_a_job_parses_its_layout_once_a_party(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    checked: list[int] = []
    check = TablesLayout.check
    monkeypatch.setattr(TablesLayout, "check", lambda self: (checked.append(id(self)), check(self))[1])
    with three_parties(tmp_path, allow=ALLOW) as federation:
        co.Tables(tables=(("age", "sued", "sector"),), bins=3, epsilon=1.0).fit(federation, sure=True)
    # The coordinator's plan and the three parties: each makes the layout of the plan, and each parses it once.
    assert len(checked) <= 8


# --- who may be asked, and what it costs ------------------------------------------------------------------


def test_a_kind_of_another_package_is_not_run_by_the_steps_here(
    federation: Federation, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A party permits packages by the module of a step: these steps must not run the code of one that it does not
    name."""

    @dataclass(frozen=True, kw_only=True)
    class Foreign(MomentsLayout):
        kind: ClassVar[str] = "foreign moments"

        def check(self) -> None:
            raise AssertionError("it was run")

    stated = METHODS["moments"].layout(federation.facts, federation.roster).to_dict()  # type: ignore[attr-defined]
    asked: dict[str, Any] = {"layout": {**stated, "kind": "foreign moments"}, "view": "client", "number": 0}
    public = Public(job="j", party="bank", facts=federation.facts, roster=federation.roster, packages=())
    package = Foreign.__module__.partition(".")[0]
    with pytest.raises(PackageNotNamed, match=f"comes from {package}, which this party's configuration does not name"):
        share_rows.price(public, asked)
    with pytest.raises(AssertionError, match="it was run"):
        share_rows.price(replace(public, packages=(package,)), asked)
    monkeypatch.delitem(joint._kinds, "foreign moments")


def test_two_classes_cannot_share_a_kind() -> None:
    with pytest.raises(BadArguments, match="both have a joint statistic 'tables'"):

        @dataclass(frozen=True, kw_only=True)
        class Tables(TablesLayout):
            kind: ClassVar[str] = "tables"

    assert joint._kinds["tables"] is TablesLayout


def test_the_first_chunk_pays_and_a_member_without_data_does_not(tmp_path: Path) -> None:
    method = co.Tables(tables=(("age", "sued"),), epsilon=1.0)
    with three_parties(tmp_path, holder="Notary") as federation:
        stated = method.layout(federation.facts, federation.roster).to_dict()

        def price(party: str, number: int, view: str = "client") -> str:
            public = Public(job="j", party=party, facts=federation.facts, roster=federation.roster)
            return share_rows.price(public, {"layout": stated, "view": view, "number": number}).mechanism

        assert [price(party, 0) for party in ("clinic", "court", "bank", "holder")] == ["skellam"] * 2 + ["free"] * 2
        assert {price(party, 1) for party in federation.roster.names} == {"free"}
        public = Public(job="j", party="clinic", facts=federation.facts, roster=federation.roster)
        costs = [
            share_rows.price(public, {"layout": stated, "view": view, "number": 0}) for view in ("client", "server")
        ]
        client, server = (guarantee([cost], delta=1e-6).epsilon for cost in costs)
        assert server < client <= 1.0


@pytest.mark.parametrize(
    ("step", "numbers"),
    [
        ("share", {"number": 1}),
        ("share", {"number": -1}),
        ("open", {"number": 1}),
        ("open", {"number": -1}),
    ],
)
def test_numbers_beyond_the_layout_are_refused(federation: Federation, step: str, numbers: dict[str, int]) -> None:
    method = co.Moments(epsilon=1.0, presence="ignore")
    stages = MomentComputation(method.layout(federation.facts, federation.roster), "client")
    asked = getattr(stages, step)
    with pytest.raises(UnsafeRequest), federation.open(method.plan(federation.facts, federation.roster)) as job:
        job.ask(asking(asked, **dict.fromkeys(asked.parties, numbers)))


def test_only_the_committee_opens(tmp_path: Path) -> None:
    """A member without a seat in the committee is asked to open: it holds nothing, and says so."""
    method = co.Moments(epsilon=1.0, presence="ignore", columns=("age", "sued"))
    with three_parties(tmp_path, holder="Notary", committee=("clinic", "court", "bank")) as federation:
        stages = method.procedure(federation.facts, federation.roster)
        assert "holder" not in stages.open.parties
        arguments = stages.open.requests["bank"][0]
        with pytest.raises(UnsafeRequest):
            federation.ask(open_shares, parties=["holder"], **arguments)


# --- one calibration --------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["moments", "tables", "polynomial"])
@pytest.mark.parametrize("relation", ["zero-out", "replace"])
def test_the_calibrated_noise_is_enough_for_what_is_debited(federation: Federation, name: str, relation: Any) -> None:
    """Oracle: the accountant, asked for the very costs of the layout."""
    method: Any = METHODS[name]
    options = {**method.get_params(), "epsilon": 0.8, "relation": relation}
    layout = type(method)(**options).layout(federation.facts, federation.roster)
    pooled = joint.colluders(federation.roster, "client")
    assert 0.75 < guarantee(layout.releases(pooled), delta=1e-6, relation=relation).epsilon <= 0.8


def test_no_noise_wraps(federation: Federation) -> None:
    roster = federation.roster
    for largest, mu in ((1, 0), (10**6, 1), (10**6, 2**80)):
        field = field_for(largest, mu, roster)
        assert field.bound > largest
    assert field_for(10**6, 2**80, roster).bound > field_for(10**6, 1, roster).bound
