"""Large arrays dealt to the committee: most holders get a seed, the others packed shares, all sealed.

The next t holders after the dealer get seeds for data (the next 2t for noise), so everybody receives alike. A dealer
that is a holder keeps its whole numbers and the seeds, and computes its own share again when it opens: with 2t + 1
holders, its noise costs no more than 32 bytes for each of the others. See `colonnade.secure.seeded`.
"""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from typing import Any

import numpy as np
from numpy.typing import NDArray

from colonnade.errors import PartyLost, SecureError, UnsafeRequest
from colonnade.federation.party import Party
from colonnade.federation.roster import Roster
from colonnade.privacy.skellam_sampler import skellam
from colonnade.secure.field import Field
from colonnade.secure.seeded import Dealing, PackedShare, SeedShare, Shape, Share, deal_seeded


def seed_holders(roster: Roster, dealer: str, degree: int) -> list[int]:
    """Places in the committee that get seeds from this dealer: the `degree` next ones after its own."""
    committee = roster.committee
    place = committee.index(dealer) if dealer in committee else roster.names.index(dealer) % len(committee)
    return [(place + 1 + one) % len(committee) for one in range(degree)]


def whole_holders(roster: Roster, dealer: str, degree: int) -> list[int]:
    """Places in the committee to which this dealer sends whole shares."""
    seeds = seed_holders(roster, dealer, degree)
    return [at for at, name in enumerate(roster.committee) if at not in seeds and name != dealer]


def deal_rows(me: Party, tag: str, field: Field, rows: NDArray[np.integer[Any]]) -> None:
    """Share whole numbers, one row for each record, to the committee: a sharing of degree t."""
    _deal(me, tag, field, rows, degree=me.roster.threshold)


def deal_noise(me: Party, tag: str, field: Field, *, mu: int, size: int) -> None:
    """Share this member's part Sk(mu / m) of the noise for `size` entries (zeros if mu is 0): of degree 2t."""
    part = Fraction(mu, len(me.roster.names))
    noise = skellam(me.randomness, part, size) if mu else np.zeros(size, dtype=np.int64)
    _deal(me, tag, field, noise, degree=2 * me.roster.threshold)


def _deal(me: Party, tag: str, field: Field, values: NDArray[np.integer[Any]], *, degree: int) -> None:
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
    others = whole_holders(me.roster, me.name, degree)
    for holder, packed in zip(others, dealing.packed(others), strict=True):
        for layer, words in enumerate(packed.words):  # one message for each prime: less memory than one for all
            me.send(committee[holder], f"{tag}, prime {layer}", words)
    if me.name in committee:
        seeds = {str(holder): seed for holder, seed in dealing.seeds.items()}
        me.send(me.name, tag, {"values": _compact(values), "seeds": seeds})


def _compact(values: NDArray[np.integer[Any]]) -> NDArray[np.integer[Any]]:
    """The same numbers in the narrowest type; it stays here, so its size may depend on them."""
    largest = max(-int(values.min()), int(values.max())) if values.size else 0
    for narrow in (np.int16, np.int32):
        if largest <= np.iinfo(narrow).max:
            return values.astype(narrow, copy=False)
    return values


def held(
    me: Party, tag: str, senders: Sequence[str], field: Field, *, lengths: tuple[int, ...], keep: bool = False
) -> dict[str, Share]:
    """This holder's shares of what each of the senders dealt, all of them or an error; `lengths` is the public shape.

    With `keep` they are there for later requests of the job too.
    """
    got = messages(me, tag, senders, layers=len(field.primes), keep=keep)
    return shares_of(me, got, field, dict.fromkeys(senders, lengths))


def messages(me: Party, tag: str, senders: Sequence[str], *, layers: int = 0, keep: bool = False) -> dict[str, Any]:
    """What each of the senders dealt to this holder: a seed, a list of so many packed layers, or its own numbers."""
    if me.name not in me.roster.committee:
        raise UnsafeRequest(f"{me.name!r} is not in the committee of the roster and holds no shares.")
    got, stored = me.received(tag), f"{tag}: from the others"
    arrived = [me.received(f"{tag}, prime {layer}") for layer in range(layers)]
    for sender in senders:
        if sender not in got and all(sender in one for one in arrived) and arrived:
            got[sender] = [one[sender] for one in arrived]
    if me.kept(stored):
        got |= me.recall(stored)
    elif keep:
        me.keep(stored, {sender: one for sender, one in got.items() if sender != me.name})
    missing = [sender for sender in senders if sender not in got]
    if missing:
        raise PartyLost(f"{', '.join(missing)} did not send {tag!r}; nothing is opened. Resume when they are back.")
    return {sender: got[sender] for sender in senders}


def shares_of(me: Party, got: dict[str, Any], field: Field, lengths: dict[str, tuple[int, ...]]) -> dict[str, Share]:
    """Messages as shares of the stated shapes."""
    place = me.roster.committee.index(me.name)
    return {sender: _share(sender, one, field, Shape(lengths[sender]), place) for sender, one in got.items()}


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
