"""Routes: equal keys end as equal tags at the matcher, and nobody else can compare two lists."""

from __future__ import annotations

import pytest

from colonnade.alignment.lists import Routes, routes
from colonnade.errors import BadArguments, RosterError, TooFewHolders
from colonnade.federation.roster import Member, Roster


def roster(parties: int, *, holder: bool = False) -> Roster:
    members = [Member(name=f"p{i}", organisation=f"o{i}", public_key=bytes([i]) * 32) for i in range(parties)]
    if holder:
        members.append(Member(name="holder", organisation="h", public_key=b"h" * 32, owns_data=False))
    return Roster(members=tuple(members), committee=(), colluders=0)


def seen(chosen: Routes, member: str) -> list[tuple[str, frozenset[str]]]:
    """(owner, who has raised it) of each list that a member holds at some time, without its own exponent, which it can
    put on and take off."""
    views = []
    for route in chosen.routes:
        for hop in range(len(route.hops) + 1):
            raised = frozenset((route.owner, *route.hops[:hop]))
            holds = (route.owner, *route.hops)[hop] == member
            arrives = (*route.hops, chosen.matcher)[hop] == member
            if holds or arrives:
                views.append((route.owner, raised - {member}))
    return views


CASES = [(k, include, holder) for k in (2, 3, 4, 6) for include in ("union", "p1") for holder in (False, True)]


@pytest.mark.parametrize(("parties", "include", "holder"), CASES)
def test_only_the_matcher_can_compare(parties: int, include: str, holder: bool) -> None:
    chosen = routes(roster(parties, holder=holder), include=include)
    for member in chosen.parties:
        if member == chosen.matcher:
            continue
        views = set(seen(chosen, member))
        by_set: dict[frozenset[str], set[str]] = {}
        for owner, raised in views:
            by_set.setdefault(raised, set()).add(owner)
        assert all(len(owners) == 1 for owners in by_set.values()), (member, by_set)
        # Its own keys are the one list that it has without any exponent: no other list may be that bare.
        assert by_set[frozenset()] == {member}


@pytest.mark.parametrize(("parties", "include", "holder"), CASES)
def test_the_matcher_can_compare_what_it_should(parties: int, include: str, holder: bool) -> None:
    chosen = routes(roster(parties, holder=holder), include=include)
    final = {route: frozenset((route.owner, *route.hops)) for route in chosen.routes}
    if include == "union":
        assert {route.owner for route in final} == set(chosen.parties)
        assert set(final.values()) == {frozenset(chosen.parties)}
        return
    for other in chosen.parties:
        if other != include:
            pair = [route for route, raised in final.items() if raised == {include, other}]
            assert {route.owner for route in pair} == {include, other}


@pytest.mark.parametrize(("parties", "include", "holder"), CASES)
def test_every_hop_has_its_turn(parties: int, include: str, holder: bool) -> None:
    chosen = routes(roster(parties, holder=holder), include=include)
    asked = {(member, hop) for member in chosen.parties for hop in chosen.turns(member)}
    assert asked == {(member, at + 1) for route in chosen.routes for at, member in enumerate(route.hops)}
    assert all(len(route.hops) == chosen.rounds for route in chosen.routes)


def test_who_matches() -> None:
    assert routes(roster(3), include="union").matcher == "p0"
    assert routes(roster(3), include="union", matcher="p2").matcher == "p2"
    assert routes(roster(3, holder=True), include="union").matcher == "holder"
    assert routes(roster(3, holder=True), include="p1").matcher == "p1"


def test_routes_that_cannot_be() -> None:
    with pytest.raises(TooFewHolders):
        routes(roster(1), include="union")
    with pytest.raises(BadArguments, match="no party"):
        routes(roster(3, holder=True), include="holder")
    with pytest.raises(BadArguments, match="itself"):
        routes(roster(3), include="p1", matcher="p2")
    with pytest.raises(RosterError):
        routes(roster(3), include="union", matcher="nobody")
