"""Public facts and a roster without data: for layouts that are computed with alone."""

from __future__ import annotations

from colonnade.data.column import Column, Columns
from colonnade.federation.facts import PublicFacts
from colonnade.federation.roster import Member, Roster

CATEGORIES = tuple("abcdef")


def shape(parties: int = 3, n: int = 400) -> tuple[PublicFacts, Roster]:
    """The first party has the response and a number, the others a number each and the second a category."""
    columns = {}
    for at in range(parties):
        own = [Column(name=f"x{at}", kind="continuous", lower=-1.0, upper=1.0)]
        if at == 0:
            own.append(Column(name="y", kind="binary", categories=("no", "yes")))
        if at == 1:
            own.append(Column(name="k", kind="categorical", categories=CATEGORIES))
        columns[f"p{at}"] = Columns(own)
    members = tuple(
        Member(name=f"p{at}", organisation=f"p{at}", public_key=bytes([at]) * 32) for at in range(max(parties, 3))
    )
    return PublicFacts(n=n, columns=columns), Roster(members=members, committee=tuple(f"p{at}" for at in range(3)))
