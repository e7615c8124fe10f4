"""Integers as shares at the committee, and back: how members deal, what a holder collects, how results are joined.

Data parties share integers to the committee by sharings of degree t. **Every** member of the roster deals a fresh
sharing, of degree 2t, of its part Sk(mu / m) of the noise (of zeros where a statistic is declared exact). A holder
computes on its shares, adds all noise shares, and only then lets its share of the result go.

Large arrays travel seeded (`deal_large`): the next t holders after the dealer get a 32-byte seed for data (the next 2t
for noise), so that all receive alike, and the others get packed shares. A dealer that is a holder keeps its integers
and the seeds, and computes its own share again when it opens: with 2t + 1 holders, its noise costs no more than 32
bytes for each of the others. See `colonnade.secure.seeded`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from fractions import Fraction
from typing import Any

import numpy as np
from numpy.typing import NDArray

from colonnade.errors import PartyLost, SecureError, UnsafeRequest
from colonnade.federation.party import Party
from colonnade.federation.roster import Roster
from colonnade.privacy.skellam_sampler import skellam
from colonnade.secure.bgw import noise_sharing
from colonnade.secure.field import Field, Residues
from colonnade.secure.seeded import Dealing, PackedShare, SeedShare, Shape, Share, deal_seeded
from colonnade.secure.shamir import reconstruct, share


def noise_part(me: Party, *, mu: int, size: int) -> NDArray[np.int64]:
    """This member's draws of Sk(mu / m); zeros where a statistic is declared exact."""
    members = len(me.roster.names)
    return skellam(me.randomness, Fraction(mu, members), size) if mu else np.zeros(size, dtype=np.int64)


def join(replies: Mapping[str, Residues], field: Field, roster: Roster) -> NDArray[Any]:
    """The opened integers from the holders' shares, of degree 2t. Surplus shares must agree."""
    shares = {position: replies[holder] for position, holder in enumerate(roster.committee)}
    for position, residues in shares.items():
        if not isinstance(residues, np.ndarray):
            raise SecureError(f"{roster.committee[position]!r} opened something other than a share; nothing is joined.")
    return reconstruct(field, shares, degree=2 * roster.threshold)


def _holder(me: Party) -> None:
    if me.name not in me.roster.committee:
        raise UnsafeRequest(f"{me.name!r} is not in the committee of the roster and holds no shares.")


def _complete(tag: str, senders: Sequence[str], received: Mapping[str, Any]) -> dict[str, Any]:
    missing = [sender for sender in senders if sender not in received]
    if missing:
        raise PartyLost(f"{', '.join(missing)} did not send {tag!r}; nothing is opened. Resume when they are back.")
    return {sender: received[sender] for sender in senders}


def received_from(me: Party, tag: str, senders: Sequence[str]) -> dict[str, Any]:
    """What each of these members sent under a tag; all of it, or an error."""
    return _complete(tag, senders, me.received(tag))


# --- small arrays: every holder gets its whole share -------------------------------------------------------


def deal(me: Party, tag: str, field: Field, values: NDArray[np.integer[Any]]) -> None:
    """Share integers to the committee by a sharing of degree t; each holder's share is sealed to it."""
    threshold = me.roster.threshold
    _send(
        me, tag, share(field, values, threshold=threshold, holders=len(me.roster.committee), randomness=me.randomness)
    )


def deal_noise(me: Party, tag: str, field: Field, noise: NDArray[np.int64]) -> None:
    """Share noise that this member has drawn, by a fresh sharing of degree 2t."""
    threshold = me.roster.threshold
    _send(
        me,
        tag,
        noise_sharing(field, noise, threshold=threshold, holders=len(me.roster.committee), randomness=me.randomness),
    )


def _send(me: Party, tag: str, shares: Sequence[Residues]) -> None:
    for holder, residues in zip(me.roster.committee, shares, strict=True):
        me.send(holder, tag, residues)


def dealt(me: Party, tag: str, senders: Sequence[str], field: Field) -> dict[str, Residues]:
    """What the named members dealt to this holder; all of it, or an error."""
    _holder(me)
    received = received_from(me, tag, senders)
    for sender, residues in received.items():
        if not isinstance(residues, np.ndarray):
            raise SecureError(f"{sender!r} sent something other than shares; check its installation.")
        field.check(residues)
    return received


# --- large arrays: seeds, and packed shares ----------------------------------------------------------------


def seed_holders(roster: Roster, dealer: str, degree: int) -> list[int]:
    """Places in the committee that get seeds from this dealer: the `degree` next ones after its own."""
    committee = roster.committee
    place = committee.index(dealer) if dealer in committee else roster.names.index(dealer) % len(committee)
    return [(place + 1 + step) % len(committee) for step in range(degree)]


def packed_holders(roster: Roster, dealer: str, degree: int) -> list[int]:
    """Places in the committee to which this dealer sends whole shares, packed."""
    seeds = seed_holders(roster, dealer, degree)
    return [place for place, name in enumerate(roster.committee) if place not in seeds and name != dealer]


def deal_large(me: Party, tag: str, field: Field, rows: NDArray[np.integer[Any]]) -> None:
    """Share integers, one row for each record, to the committee: a sharing of degree t."""
    _deal_large(me, tag, field, rows, degree=me.roster.threshold)


def deal_large_noise(me: Party, tag: str, field: Field, *, mu: int, size: int) -> None:
    """Share this member's part Sk(mu / m) of the noise for `size` entries (zeros if mu is 0): of degree 2t."""
    _deal_large(me, tag, field, noise_part(me, mu=mu, size=size), degree=2 * me.roster.threshold)


def _deal_large(me: Party, tag: str, field: Field, values: NDArray[np.integer[Any]], *, degree: int) -> None:
    committee = me.roster.committee
    dealing = deal_seeded(
        field,
        values,
        holders=len(committee),
        threshold=me.roster.threshold,
        randomness=me.randomness,
        degree=degree,
        first=seed_holders(me.roster, me.name, degree)[0],
    )
    for holder, seed in dealing.seeds.items():
        me.send(committee[holder], tag, {"seed": seed})
    others = packed_holders(me.roster, me.name, degree)
    for holder, packed in zip(others, dealing.packed(others), strict=True):
        for layer, words in enumerate(packed.words):  # one message for each prime: less memory than one for all
            me.send(committee[holder], f"{tag}, prime {layer}", words)
    if me.name in committee:
        seeds = {str(holder): seed for holder, seed in dealing.seeds.items()}
        me.send(me.name, tag, {"values": _compact(values), "seeds": seeds})


def _compact(values: NDArray[np.integer[Any]]) -> NDArray[np.integer[Any]]:
    """The same integers in the narrowest type; it stays here, so its size may depend on them."""
    largest = max(-int(values.min()), int(values.max())) if values.size else 0
    for narrow in (np.int16, np.int32):
        if largest <= np.iinfo(narrow).max:
            return values.astype(narrow, copy=False)
    return values


def dealt_large(
    me: Party, tag: str, senders: Sequence[str], field: Field, *, lengths: tuple[int, ...], keep: bool = False
) -> dict[str, Share]:
    """This holder's shares of what each of the senders dealt, all of them or an error; `lengths` is the public shape.

    With `keep` they are there for later requests of the job too.
    """
    received = messages(me, tag, senders, layers=len(field.primes), keep=keep)
    return shares_of(me, received, field, dict.fromkeys(senders, lengths))


def messages(me: Party, tag: str, senders: Sequence[str], *, layers: int = 0, keep: bool = False) -> dict[str, Any]:
    """What each of the senders dealt to this holder: a seed, a list of so many packed layers, or its own numbers."""
    _holder(me)
    received, stored = me.received(tag), f"{tag}: from the others"
    packed = [me.received(f"{tag}, prime {layer}") for layer in range(layers)]
    for sender in senders:
        if sender not in received and packed and all(sender in layer for layer in packed):
            received[sender] = [layer[sender] for layer in packed]
    if me.kept(stored):
        received |= me.recall(stored)
    elif keep:
        me.keep(stored, {sender: message for sender, message in received.items() if sender != me.name})
    return _complete(tag, senders, received)


def shares_of(
    me: Party, received: Mapping[str, Any], field: Field, lengths: Mapping[str, tuple[int, ...]]
) -> dict[str, Share]:
    """Messages as shares of the stated shapes."""
    place = me.roster.committee.index(me.name)
    return {
        sender: _share(sender, message, field, Shape(lengths[sender]), place) for sender, message in received.items()
    }


def _share(sender: str, message: Any, field: Field, shape: Shape, place: int) -> Share:
    match message:
        case {"seed": bytes(seed), **rest} if not rest:
            return SeedShare(field, shape, seed)
        case [*words]:
            return PackedShare(field, shape, words)
        case {"values": np.ndarray() as values, "seeds": dict(seeds), **rest} if not rest:
            if values.shape != shape.lengths:
                raise UnsafeRequest(f"{sender!r} shared an array of another shape than the layout says.")
            return Dealing(field, values, {int(holder): seed for holder, seed in seeds.items()}).share(place)
    raise SecureError(f"{sender!r} sent something other than shares; check its installation.")
