"""Alignment by a linkage unit: keyed hashes, compared by one member that has no data (`Align(trust_matcher=True)`).

The data parties draw a secret key together: each sends 32 random bytes to every other data party, sealed, and the key
is a hash of all of them. Each party then sends the matcher, under seal, a keyed BLAKE2b hash of every record key, among
uniform dummies, in a random order. Equal keys have equal hashes, so the matcher numbers the cohort as in `align`.

The matcher, who lacks the key, sees pseudonyms and presence only. **Together with any one data party it could hash
names of its choice and look them up**, which the group protocol of `align` rules out; that is the trust that is asked
for. A hash takes about a microsecond, an exponentiation a hundred.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from colonnade.alignment.align import Aligning, announce, with_counts
from colonnade.alignment.lists import (
    UNION,
    Route,
    Routes,
    TaggedList,
    Terms,
    collect_places,
    listed_keys,
    number_fixed,
    number_union,
    stated_places,
)
from colonnade.errors import BadArguments, SealBroken
from colonnade.federation.job import Job
from colonnade.federation.party import Party
from colonnade.federation.roster import Roster
from colonnade.federation.stage import Stage, stage
from colonnade.federation.step import Public, Release, Step, step
from colonnade.privacy.cost import Cost, Free, Unbounded

HASH_BYTES = 16
"""10^8 records of two parties collide by chance with probability below 2^-74."""
KEY_BYTES = 32
CHUNK = 1 << 21
"""Hashes in one message: 32 MB."""


class Linking(Aligning):
    """Agree on a key, send hashes, number them at the matcher, settle."""

    trusted = True

    def number_step(self) -> Step:
        return number_pseudonyms

    def chosen_routes(self) -> Routes:
        return linkage_routes(self.roster, include=self.method.include, matcher=self.method.matcher)

    def exchange_stages(self) -> tuple[Stage, ...]:
        everyone = {party: [self.arguments] for party in self.routes.parties}
        public: dict[str, Any] = {"facts": self.facts, "roster": self.roster}
        return (
            stage(
                "agree on a key",
                share_part,
                everyone,
                audience="the other data parties",
                discloses="sealed random bytes",
                recipients=self.routes.parties,
                reply_bytes=KEY_BYTES * len(self.routes.parties),
                **public,
            ),
            stage(
                "pseudonyms",
                send_pseudonyms,
                everyone,
                audience=self.routes.matcher,
                discloses="sealed keyed hashes of this party's keys",
                recipients=(self.routes.matcher,),
                reply_bytes=HASH_BYTES * max(self.method.capacity.values()),
                **public,
            ),
        )

    def run_exchange(self, job: Job) -> None:
        for exchanged in self.exchange:
            job.ask(exchanged)

    def _notes(self) -> tuple[str, ...]:
        matcher = self.routes.matcher
        return (
            f"Trusted by name: {matcher}. It sees a pseudonym of every record of every party, and who has it; together"
            " with any one data party, which has the key of the hashes, it could try names on all of them. Without"
            " trust_matcher no two members can.",
            *super()._notes(),
        )


def linkage_routes(roster: Roster, *, include: str, matcher: str | None) -> Routes:
    """Every list goes straight to the matcher, who must be a member without data."""
    parties = roster.data_parties
    if include != UNION and include not in parties:
        raise BadArguments(f"include={include!r} is no party; write 'union' or one of {', '.join(parties)}.")
    without = [name for name in roster.names if name not in parties]
    chosen = matcher or (without[0] if without else None)
    if chosen is None or chosen not in without:
        raise BadArguments(
            "trust_matcher=True needs a member without data that matches: add one to the roster (a holder), or leave"
            " trust_matcher out, and no member is trusted."
        )
    if len(parties) < 2:
        raise BadArguments("an alignment needs at least two parties with records; add a party.")
    return Routes(include, chosen, parties, tuple(Route(number, party, ()) for number, party in enumerate(parties)))


# --- the members' steps -------------------------------------------------------------------------------------------


def _pseudonym_cost(public: Public, *, terms: Terms) -> Cost:
    matcher = terms.matcher
    shown = (
        f"to {matcher}: a keyed hash of each of its keys, and which records of the cohort it has; {matcher} together"
        " with any one data party could try names"
    )
    return with_counts(public, Unbounded("linkage-unit", shown, audience=matcher), terms)


@step(cost=Free("random bytes, made for this job"))
def share_part(me: Party, *, terms: Terms) -> Release:
    """Send this party's part of the key to every other data party."""
    part = me.randomness.bytes(KEY_BYTES)
    me.keep("part of the key", part)
    for party in linkage_routes(me.roster, include=terms.include, matcher=terms.matcher).parties:
        if party != me.name:
            me.send(party, f"part of the key {terms.digest}", part)
    return Release(None, "sealed: a part of the key of the hashes")


@step(cost=_pseudonym_cost)
def send_pseudonyms(me: Party, *, terms: Terms) -> Release:
    """Hash this party's keys, hide them among dummies in a random order, and send them to the matcher."""
    chosen = linkage_routes(me.roster, include=terms.include, matcher=terms.matcher)
    parts = me.received(f"part of the key {terms.digest}")
    if set(parts) != set(chosen.parties) - {me.name}:
        raise SealBroken("a data party sent no part of the key; run the alignment again from the start.")
    key = joined_key({**parts, me.name: me.recall("part of the key")}, job=me.job)
    forms, places = listed_keys(me, terms, tell=terms.matcher)
    size = terms.capacity[me.name]
    hashes = np.frombuffer(me.randomness.bytes(HASH_BYTES * size), dtype=np.uint8).reshape(size, HASH_BYTES).copy()
    hashes[places] = keyed_hashes(forms, key)
    for number, begin in enumerate(range(0, size, CHUNK)):
        me.send(terms.matcher, f"pseudonyms {number} {terms.digest}", hashes[begin : begin + CHUNK])
    return Release(None, "sealed: keyed hashes of this party's keys, among dummies")


def joined_key(parts: dict[str, Any], *, job: str) -> bytes:
    """Uniform to a member that lacks one part."""
    joined = hashlib.sha256(b"colonnade linkage unit v1" + job.encode())
    for party in sorted(parts):
        if not isinstance(parts[party], bytes) or len(parts[party]) != KEY_BYTES:
            raise SealBroken(f"the part of the key of {party!r} has another form than agreed; align again.")
        joined.update(hashlib.sha256(party.encode()).digest() + parts[party])
    return joined.digest()


def keyed_hashes(forms: Sequence[bytes], key: bytes) -> NDArray[np.uint8]:
    """BLAKE2b with a key is a pseudorandom function: without the key, hashes of different names are uniform."""
    blake2b = hashlib.blake2b
    joined = b"".join([blake2b(form, key=key, digest_size=HASH_BYTES).digest() for form in forms])
    return np.frombuffer(joined, dtype=np.uint8).reshape(len(forms), HASH_BYTES)


@step(cost=Free("n is public; row numbers are uniformly random; the data parties pay for noisy counts"))
def number_pseudonyms(me: Party, *, terms: Terms) -> Release:
    """At the matcher: compare the hashes, draw the order of the cohort, tell each party the rows of its list."""
    chosen = linkage_routes(me.roster, include=terms.include, matcher=terms.matcher)
    collect_places(me)
    arrived: dict[str, list[NDArray[np.uint8]]] = {party: [] for party in chosen.parties}
    for number in range(-(-max(terms.capacity.values()) // CHUNK)):
        received = me.received(f"pseudonyms {number} {terms.digest}")
        for party in chosen.parties:
            rows = min(terms.capacity[party] - number * CHUNK, CHUNK)
            if rows > 0:
                arrived[party].append(_checked(received.get(party), rows, party))
    lists = {party: TaggedList(np.concatenate(parts), stated_places(me, party)) for party, parts in arrived.items()}
    if terms.include == UNION:
        numbered = number_union(lists, randomness=me.randomness)
    else:
        others = {party: listed for party, listed in lists.items() if party != terms.include}
        fixed = dict.fromkeys(others, lists[terms.include])
        numbered = number_fixed(terms.include, fixed, others, randomness=me.randomness)
    return announce(me, numbered, chosen.parties, terms)


def _checked(hashes: object, rows: int, party: str) -> NDArray[np.uint8]:
    if not isinstance(hashes, np.ndarray) or hashes.dtype != np.uint8 or hashes.shape != (rows, HASH_BYTES):
        raise SealBroken(f"the list of {party!r} has another form than agreed; align again.")
    return hashes
