"""Who raises whose list: the routes of an alignment, a function of the roster and the declared kind of cohort alone.

A list starts at its owner, who raises it to its own secret exponent and sends it to the first hop; each hop raises it
to its own exponent and sends it on; after the last hop it is at the **matcher**. All lists that are compared have been
raised by the same members, so equal keys have equal tags there, and nowhere else:

- *fixed cohort* (`include` is a party, which is also the matcher R): for every other party P, the list of R goes
  through P and comes back, and the list of P goes through R. Every P has an exponent of its own, so R compares its own
  records with P's, and cannot compare P's with another's.
- *union*: the list of each party goes round a ring of all data parties and ends at the matcher M. M raises the others'
  lists last, if it owns data. At a member of the ring two lists have never been raised by the same set of members,
  and its own list does not come back to it, so that it cannot compare anything.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from colonnade.errors import BadArguments, TooFewHolders
from colonnade.federation.roster import Roster

UNION = "union"


@dataclass(frozen=True)
class Route:
    """`hops` raise the list of `owner`, in this order. `number` names the route in messages."""

    number: int
    owner: str
    hops: tuple[str, ...]

    def after(self, hop: int) -> str | None:
        """Who raises the list after hop `hop` (0 is the owner); None: it goes to the matcher."""
        return self.hops[hop] if hop < len(self.hops) else None


@dataclass(frozen=True)
class Routes:
    """All routes of an alignment, and who compares the tags."""

    include: str
    matcher: str
    parties: tuple[str, ...]
    routes: tuple[Route, ...]

    @property
    def rounds(self) -> int:
        return max(len(route.hops) for route in self.routes)

    def of(self, owner: str) -> list[Route]:
        return [route for route in self.routes if route.owner == owner]

    def at(self, member: str, hop: int) -> list[Route]:
        """The routes on which `member` is hop number `hop` (from 1)."""
        return [route for route in self.routes if len(route.hops) >= hop and route.hops[hop - 1] == member]

    def turns(self, member: str) -> list[int]:
        """In which rounds `member` raises others' lists."""
        return [hop for hop in range(1, self.rounds + 1) if self.at(member, hop)]


def routes(roster: Roster, *, include: str, matcher: str | None = None) -> Routes:
    """The routes for a roster. By default a union is matched by a member without data, or by the first party."""
    parties = roster.data_parties
    if len(parties) < 2:
        raise TooFewHolders("an alignment needs at least two parties with records; add a party.")
    if include != UNION:
        if include not in parties:
            raise BadArguments(f"include={include!r} is no party; write 'union' or one of {', '.join(parties)}.")
        if matcher not in (None, include):
            raise BadArguments(f"the records of {include!r} are matched by {include!r} itself; leave the matcher out.")
        others = [party for party in parties if party != include]
        star = [one for other in others for one in ((include, (other,)), (other, (include,)))]
        return Routes(include, include, parties, _numbered(star))
    without = [name for name in roster.names if name not in parties]
    chosen = matcher or (without[0] if without else parties[0])
    roster.member(chosen)
    ring = [party for party in parties if party != chosen]
    last = (chosen,) if chosen in parties else ()
    pairs: list[tuple[str, tuple[str, ...]]] = [
        (owner, (*ring[at + 1 :], *ring[:at], *last)) for at, owner in enumerate(ring)
    ]
    if chosen in parties:
        pairs.append((chosen, tuple(ring)))
    return Routes(UNION, chosen, parties, _numbered(pairs))


def _numbered(pairs: Sequence[tuple[str, tuple[str, ...]]]) -> tuple[Route, ...]:
    return tuple(Route(number, owner, hops) for number, (owner, hops) in enumerate(pairs))
