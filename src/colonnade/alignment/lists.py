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

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from colonnade.alignment.keys import check_rules, normal_forms
from colonnade.codec import plain
from colonnade.data.cohort import Cohort, UniformWords, permutation
from colonnade.durable import canonical
from colonnade.errors import BadArguments, EmptyParty, KeyProblem, SchemaError, SealBroken, TooFewHolders
from colonnade.federation.party import Party
from colonnade.federation.roster import Roster
from colonnade.federation.step import Size

UNION = "union"
MOST_RECORDS = 100_000_000
"""Of one party: its list is in memory, 32 bytes for each."""


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

    @property
    def tell(self) -> str | None:
        """Who must know which places of a list hold records: in a fixed cohort dummies match nothing."""
        return self.matcher if self.include == UNION else None

    def of(self, owner: str) -> list[Route]:
        return [route for route in self.routes if route.owner == owner]

    def through(self, member: str, hop: int) -> list[Route]:
        """The routes on which `member` is hop number `hop` (from 1)."""
        return [route for route in self.routes if len(route.hops) >= hop and route.hops[hop - 1] == member]

    def turns(self, member: str) -> list[int]:
        """In which rounds `member` raises others' lists."""
        return [hop for hop in range(1, self.rounds + 1) if self.through(member, hop)]


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
        star = [pair for other in others for pair in ((include, (other,)), (other, (include,)))]
        return Routes(include, include, parties, _numbered(star))
    without = [name for name in roster.names if name not in parties]
    chosen = matcher or (without[0] if without else parties[0])
    roster.member(chosen)
    ring = [party for party in parties if party != chosen]
    last = (chosen,) if chosen in parties else ()
    pairs: list[tuple[str, tuple[str, ...]]] = [
        (owner, (*ring[place + 1 :], *ring[:place], *last)) for place, owner in enumerate(ring)
    ]
    if chosen in parties:
        pairs.append((chosen, tuple(ring)))
    return Routes(UNION, chosen, parties, _numbered(pairs))


def _numbered(pairs: Sequence[tuple[str, tuple[str, ...]]]) -> tuple[Route, ...]:
    return tuple(Route(number, owner, hops) for number, (owner, hops) in enumerate(pairs))


# --- a party's list with its random places, and the messages that belong to it ------------------------------


@dataclass(frozen=True, kw_only=True)
class Terms:
    """What an alignment was asked with: every step of it takes them."""

    include: str
    matcher: str
    capacity: dict[str, int]
    normalise: tuple[str, ...]
    epsilon: float | None

    def __post_init__(self) -> None:
        Size(MOST_RECORDS, least=1).check(self.capacity, "capacity")

    def routes(self, roster: Roster) -> Routes:
        return routes(roster, include=self.include, matcher=self.matcher)

    @cached_property
    def digest(self) -> str:
        """It is part of every tag: members that were asked for different things do not find each other's messages, and
        nothing is compared or counted."""
        return hashlib.sha256(canonical(plain(self)).encode()).hexdigest()[:32]


def listed_keys(me: Party, terms: Terms, *, tell: str | None) -> tuple[list[bytes], NDArray[np.int64]]:
    """The normal forms of this party's keys, and a random place for each in its list; the member `tell`, who must not
    take dummies for records, is told which places hold one."""
    where, size = f"party {me.name!r}", terms.capacity[me.name]
    forms = normal_forms(me.block.keys, check_rules(terms.normalise), where=where)
    if len(forms) > size:
        raise SchemaError(f"{where} has {len(forms)} records, and a declared capacity of {size}; declare a larger one.")
    places = permutation(size, me.randomness)[: len(forms)]
    me.keep("places", places)
    changed = sum(form != str(key).encode() for form, key in zip(forms, me.block.keys.tolist(), strict=True))
    me.keep("normalised", changed)
    if tell is not None and me.name != tell:
        real = np.zeros(size, dtype=np.bool_)
        real[places] = True
        me.send(tell, "real places", real)
    return forms, places


def collect_places(me: Party) -> None:
    """Keep what the parties of a union told the matcher: which places of their lists hold records."""
    for sender, real in me.received("real places").items():
        me.keep(f"real places of {sender}", real)


def only(me: Party, tag: str, sender: str) -> Any:
    """The one message with this tag, from the one member that sends it."""
    arrived = me.received(tag)
    if set(arrived) != {sender}:
        raise SealBroken(f"expected {tag!r} from {sender!r} alone; run the alignment again from the start.")
    return arrived[sender]


def real_places(me: Party, owner: str, terms: Terms) -> NDArray[np.bool_]:
    """Which places of a list hold records. In a fixed cohort only its own matter: another's dummies match nothing."""
    if owner == me.name:
        real = np.zeros(terms.capacity[owner], dtype=np.bool_)
        real[me.recall("places")] = True
        return real
    if terms.include != UNION:
        return np.ones(terms.capacity[owner], dtype=np.bool_)
    return stated_places(me, owner)


def stated_places(me: Party, owner: str) -> NDArray[np.bool_]:
    """Which places hold records, as their owner told the matcher."""
    stated: NDArray[np.bool_] = np.asarray(me.recall(f"real places of {owner}"), dtype=np.bool_)
    return stated


# --- from tags to rows: the matcher's part of an alignment, and the presence mask that it learns ----------
#
# Equal keys have equal tags. A dummy, which fills a list up to its declared capacity, has a uniform tag that nothing
# equals. So that a dummy does not become a record, each list says (sealed, to the matcher) which of its places are
# real.


@dataclass(frozen=True, eq=False)
class TaggedList:
    """A list as the matcher sees it: the tag of each place, and whether a record stands there."""

    tags: NDArray[Any]
    real: NDArray[np.bool_]

    def sorted_records(self) -> tuple[NDArray[np.bytes_], NDArray[np.int64]]:
        """The tags of the records in rising order, and the place of each.

        All tags have one length, so numpy compares them exactly, although it ends a text at its last byte above 0.
        """
        rows = np.ascontiguousarray(self.tags).view(np.uint8).reshape(len(self.tags), -1)
        places = np.flatnonzero(self.real)
        tags, first = np.unique(rows[places].view(f"S{rows.shape[1]}")[:, 0], return_index=True)
        if len(tags) < len(places):
            raise KeyProblem("a party's list has a key twice; check the keys of every party, then align again.")
        return tags, places[first]


@dataclass(frozen=True, eq=False)
class Numbered:
    """The cohort as the matcher knows it, and for each party the cohort row of each place of its list (or -1)."""

    cohort: Cohort
    rows: dict[str, NDArray[np.int64]]


def number_fixed(
    include: str, own: Mapping[str, TaggedList], others: Mapping[str, TaggedList], *, randomness: UniformWords
) -> Numbered:
    """The records of `include`. `own[P]` is its own list as raised with P, `others[P]` is P's."""
    first = next(iter(own.values()))
    n = int(first.real.sum())
    own_rows = np.full(len(first.real), -1, dtype=np.int64)
    own_rows[first.real] = permutation(n, randomness)
    parties = (include, *others)
    presence = np.zeros((n, len(parties)), dtype=np.bool_)
    presence[:, 0] = True
    rows = {include: own_rows}
    for column, (party, listed) in enumerate(others.items(), start=1):
        (own_tags, own_places), (tags, places) = own[party].sorted_records(), listed.sorted_records()
        _, left, right = np.intersect1d(own_tags, tags, assume_unique=True, return_indices=True)
        rows[party] = np.full(len(listed.real), -1, dtype=np.int64)
        rows[party][places[right]] = own_rows[own_places[left]]
        inside = rows[party][rows[party] >= 0]
        if not inside.size:
            raise EmptyParty(
                f"party {party!r} has no record in the cohort of {include!r}; check that keys are written the same way "
                "(normalise), or leave it out."
            )
        presence[inside, column] = True
    return Numbered(Cohort(parties, presence), rows)


def number_union(lists: Mapping[str, TaggedList], *, randomness: UniformWords) -> Numbered:
    """Every record that any party has."""
    records = {party: listed.sorted_records() for party, listed in lists.items()}
    union = np.unique(np.concatenate([tags for tags, _ in records.values()]))
    order = permutation(len(union), randomness)
    rows = {}
    for party, (tags, places) in records.items():
        rows[party] = np.full(len(lists[party].real), -1, dtype=np.int64)
        rows[party][places] = order[np.searchsorted(union, tags)]
    presence = np.zeros((len(union), len(lists)), dtype=np.bool_)
    for column, own_rows in enumerate(rows.values()):
        presence[own_rows[own_rows >= 0], column] = True
    return Numbered(Cohort(tuple(lists), presence), rows)
