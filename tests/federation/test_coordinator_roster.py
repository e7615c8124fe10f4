"""The coordinator is in the roster with its organisation: where it runs members too, they and it are one."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

import colonnade as co
from colonnade.errors import RosterError
from colonnade.federation.roster import Member, Roster
from colonnade.papers.sqm.gradient_layout import GradientLayout
from colonnade.statistics.joint import colluders
from support.small import three_parties

MEMBERS = tuple(
    Member(name=name, organisation=f"{name} Ltd", public_key=bytes([k]) * 32) for k, name in enumerate("abcd")
)
ROSTER = Roster(members=MEMBERS, committee=("a", "b", "c"))


def test_a_coordinator_of_a_members_organisation_counts_as_that_member() -> None:
    beside = replace(ROSTER, coordinator="b Ltd")
    assert (ROSTER.beside_coordinator, beside.beside_coordinator) == ((), ("b",))
    assert [colluders(roster, "server") for roster in (ROSTER, beside)] == [0, 1], "it sees results, and b's noise"
    assert [colluders(roster, "client") for roster in (ROSTER, beside)] == [1, 1], "it is one of those that pool"
    alone = replace(beside, colluders=0)
    assert (alone.pooled, replace(ROSTER, colluders=0).pooled) == (1, 0), "also where no others are assumed to collude"


def test_it_is_pinned() -> None:
    beside = replace(ROSTER, coordinator="b Ltd")
    assert Roster.from_dict(beside.to_dict()) == beside
    assert beside.fingerprint != ROSTER.fingerprint


def test_noise_grows_where_the_coordinator_knows_a_part_of_it(tmp_path: Path) -> None:
    plans = {}
    for coordinator in ("a university", "clinic"):
        with three_parties(tmp_path / coordinator, coordinator=coordinator) as federation:
            method = co.Moments(epsilon=1.0, view="server", presence="secret")
            plans[coordinator] = method.layout(federation.facts, federation.roster)
    apart, beside = plans.values()
    assert beside.mu == pytest.approx(apart.mu * 3 / 2, rel=0.01), "two of three parts must do what three did"


def test_batches_are_no_secret_from_a_coordinator_that_runs_a_data_party(tmp_path: Path) -> None:
    for coordinator, sampling in (("a university", 0.1), ("clinic", 1.0)):
        with three_parties(tmp_path / coordinator, coordinator=coordinator) as federation:
            layout = GradientLayout(
                facts=federation.facts,
                roster=federation.roster,
                names=("age",),
                response="sued",
                clip={"clinic": 1.0},
                gamma=16,
                intercept=True,
                radius=1.0,
                sampling=0.1,
                rounds=1,
            )
            assert layout.amplified("server") == sampling


def test_ckks_is_refused_where_the_coordinator_could_decrypt(tmp_path: Path) -> None:
    pytest.importorskip("tenseal")
    with three_parties(tmp_path, coordinator="clinic") as federation:
        with pytest.raises(RosterError, match='choose masking="pads"'):
            federation.plan(co.Complete(masking="ckks"))
        assert federation.plan(co.Complete(masking="pads")).stages
