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

import hashlib
from collections.abc import Mapping, Sequence
from fractions import Fraction
from typing import Any

import numpy as np
from numpy.typing import NDArray

from colonnade.errors import PartyLost, SecureError, UnsafeRequest
from colonnade.federation import wire
from colonnade.federation.messages import Mail, digest_of
from colonnade.federation.party import Party
from colonnade.federation.roster import Roster
from colonnade.federation.workplace import MOST_REMEMBERED
from colonnade.privacy.skellam_sampler import skellam
from colonnade.secure.bgw import Product, noise_sharing, recombine, reshare_seeded
from colonnade.secure.field import Field, Residues
from colonnade.secure.seeded import Dealing, PackedShare, SeedShare, Shape, Share, deal_seeded, materialize
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


def require_holder(me: Party) -> None:
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


def received_masks(me: Party, tag: str, senders: Sequence[str]) -> NDArray[np.bool_]:
    """Which records of the cohort each of these members has, as it told in packed bits: (record, member)."""
    n, received = me.facts.n, received_from(me, tag, senders)
    masks = np.zeros((n, len(senders)), dtype=bool)
    for place, sender in enumerate(senders):
        packed = np.asarray(received[sender], dtype=np.uint8)
        if packed.shape != (-(-n // 8),):
            raise UnsafeRequest(f"{sender!r} sent a mask of another length than the cohort's.")
        masks[:, place] = np.unpackbits(packed, count=n).astype(bool)
    return masks


# --- one dealing for all holders ---------------------------------------------------------------------------

_DEALT = ": dealt "
"""In the tag of a dealer's list, after the tag of its statistic."""
_TAKEN = "dealings that were taken"
COINS = 3
"""To which a holder binds itself at a time; most verifications show two of them."""


def state_dealing(me: Party, tag: str, what: str) -> None:
    """End a request that deals: tell every holder the digests of what **all** of them were sent in it.

    A second dealing of the same has another list, so holders with equal lists have parts of one dealing.
    """
    committee = me.roster.committee
    digests = [me.sent_to(holder) for holder in committee]
    for holder in committee:
        me.send(holder, f"{tag}{_DEALT}{what}", digests)


def take_dealings(me: Party, tags: Sequence[str]) -> None:
    """Check the mail that came with this request against its dealers' lists, and remember these lists.

    `tags` begin the tags of the mail of one statistic. All of it must be what a list says that this holder was sent, no
    more and no less, or nothing is computed from it.
    """
    if me.name not in me.roster.committee:
        return
    place, taken = me.roster.committee.index(me.name), _taken(me)
    letters: dict[tuple[str, int], list[Mail]] = {}
    for mail in me.mail:
        if mail.tag.startswith(tuple(tags)):
            letters.setdefault((mail.sender, mail.seq), []).append(mail)
    lists = {mail.tag for mail in me.mail if mail.tag.startswith(tuple(f"{tag}{_DEALT}" for tag in tags))}
    for tag in sorted(lists):
        for dealer, digests in sorted(me.received(tag).items()):
            if dealer != me.name:
                seq = next(mail.seq for mail in me.mail if (mail.sender, mail.tag) == (dealer, tag))
                dealt = digest_of(
                    mail for mail in me.mail if (mail.sender, mail.seq) == (dealer, seq) and mail.tag != tag
                )
                if not isinstance(digests, list) or len(digests) <= place or digests[place] != dealt:
                    raise SecureError(
                        f"what came from {dealer!r} is not what it says that it has dealt; nothing is used."
                    )
                letters.pop((dealer, seq), None)
            before = taken.get(dealer, b"")
            taken[dealer] = hashlib.sha256(wire.encode([before, tag, digests])).digest()
    if letters:
        raise SecureError(f"{next(iter(letters))[0]!r} did not say what it has dealt to all holders; nothing is used.")
    if lists:
        me.keep(_TAKEN, taken)


def _taken(me: Party) -> dict[str, bytes]:
    """{dealer: a digest of all lists of this job that were taken from it}."""
    return dict(me.recall(_TAKEN)) if me.kept(_TAKEN) else {}


def state_taken(me: Party, tag: str, alike: Mapping[str, bytes]) -> None:
    """Tell the other holders, sealed, what was taken from each dealer, with what it sent that all must have `alike`.

    And bind oneself to coins, which are shown one by one when what they are to check can be changed no more."""
    taken = _taken(me)
    dealings = {dealer: hashlib.sha256(taken[dealer] + alike.get(dealer, b"")).digest() for dealer in taken}
    coins = [me.randomness.bytes(32) for _ in range(COINS)]
    stated = {"dealings": dealings, "coins": [hashlib.sha256(coin).digest() for coin in coins]}
    me.keep(_own_statement(tag), {**stated, "coins": coins})
    for holder in me.roster.committee:
        if holder != me.name:
            me.send(holder, _statement(tag), stated)


def _statement(tag: str) -> str:
    return f"compared: {tag}"


def _own_statement(tag: str) -> str:
    return f"compared here: {tag}"


def require_agreement(me: Party, tag: str) -> None:
    """Refuse to go on unless every other holder took the same from every dealer, and keep their coins' commitments."""
    own = me.recall(_own_statement(tag))["dealings"]
    others = [holder for holder in me.roster.committee if holder != me.name]
    coins = {}
    for holder, stated in received_from(me, _statement(tag), others).items():
        match stated:
            case {"dealings": dict(dealings), "coins": [bytes(), bytes(), bytes()] as bound, **rest} if not rest:
                coins[holder] = bound
            case _:
                raise SecureError(f"{holder!r} sent no comparison of what it holds; check its installation.")
        differing = sorted(dealer for dealer in {*own, *dealings} if own.get(dealer) != dealings.get(dealer))
        if differing:
            raise SecureError(
                f"{holder!r} was dealt something else than this holder by {', '.join(map(repr, differing))}; nothing is"
                " opened."
            )
    me.keep(_bound_coins(tag), coins)


def _bound_coins(tag: str) -> str:
    return f"compared: {tag}: coins"


def own_coin(me: Party, tag: str, number: int) -> bytes:
    """One of the coins to which this holder bound itself when it compared."""
    return bytes(me.recall(_own_statement(tag))["coins"][number])


def true_coins(me: Party, tag: str, number: int, coins: Mapping[str, Any]) -> None:
    """Refuse coins that are not those to which the holders bound themselves when they compared."""
    bound = me.recall(_bound_coins(tag))
    for holder in me.roster.committee:
        coin = coins.get(holder)
        true = (
            coin == own_coin(me, tag, number)
            if holder == me.name
            else isinstance(coin, bytes) and hashlib.sha256(coin).digest() == bound[holder][number]
        )
        if not true:
            raise SecureError(f"this is not the coin to which {holder!r} has bound itself; nothing is answered.")


# --- small arrays: every holder gets its whole share -------------------------------------------------------


def deal(me: Party, tag: str, field: Field, values: NDArray[np.integer[Any]]) -> None:
    """Share integers to the committee by a sharing of degree t; each holder's share is sealed to it."""
    threshold = me.roster.threshold
    _send(
        me, tag, share(field, values, threshold=threshold, holders=len(me.roster.committee), randomness=me.randomness)
    )


def deal_noise(me: Party, tag: str, field: Field, noise: NDArray[np.int64], *, parts: bool = False) -> None:
    """Share noise that this member has drawn, by a fresh sharing of degree 2t; in parts if it is to be verified."""
    threshold = me.roster.threshold
    if parts:
        deal(me, tag, field, noise)
        sharing: dict[str, Any] = {"threshold": threshold, "holders": len(me.roster.committee), "degree": threshold + 1}
        for blind in blinds_of(me.roster, tag):
            _send(me, blind, share(field, np.zeros_like(noise), randomness=me.randomness, **sharing))
        return
    _send(
        me,
        tag,
        noise_sharing(field, noise, threshold=threshold, holders=len(me.roster.committee), randomness=me.randomness),
    )


# Noise that is verified comes in parts: a sharing h of the noise, of degree t, and blinds q_1, ..., q_t, which are
# sharings of 0 of degree t + 1: q_i = x k_i for a uniform polynomial k_i of degree t, and no t holders know k_i at 0.
# What is opened has the noise
#
#     h(x) + x k_1(x) + ... + x^t k_t(x).
#
# t holders know h and each k_i at their points. Let L be the polynomial of degree t that is 0 there. They know h up to
# the multiple of L that its value at 0 decides, and each k_i up to a uniform multiple. So the sum is uniform among the
# polynomials of degree 2t with its values at 0 and at their points, as one fresh sharing of degree 2t would be. (A
# sharing of 0 of degree t in place of k_i would not do: t holders know all of it.) And h + j k_1 + ... + j^t k_t is a
# sharing of degree t with holder j's share of the noise at j, so that others can check what j has added.


def blinds_of(roster: Roster, tag: str) -> list[str]:
    """The tags of the blinds of noise."""
    return [f"{tag}, blind {number}" for number in range(1, roster.threshold + 1)]


def joined_noise(me: Party, field: Field, noise: Residues, blinds: Sequence[Residues]) -> Residues:
    """This holder's share, of degree 2t, of noise that came in parts: h(j) + sum_i j^(i - 1) q_i(j)."""
    point = me.roster.committee.index(me.name) + 1
    for number, blind in enumerate(blinds):
        noise = field.add(noise, field.scale(blind, point**number))
    return noise


def unblinded(me: Party, field: Field, blind: Residues) -> Residues:
    """This holder's share of k, of degree t, from its share of q = x k."""
    point = me.roster.committee.index(me.name) + 1
    inverses = np.array([pow(point, -1, p) for p in field.primes], dtype=np.int32)
    return field.mul(blind, inverses.reshape(-1, *[1] * (blind.ndim - 1)))


def _send(me: Party, tag: str, shares: Sequence[Residues]) -> None:
    for holder, residues in zip(me.roster.committee, shares, strict=True):
        me.send(holder, tag, residues)


def dealt(me: Party, tag: str, senders: Sequence[str], field: Field) -> dict[str, Residues]:
    """What the named members dealt to this holder; all of it, or an error."""
    require_holder(me)
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


def deal_large_noise(me: Party, tag: str, field: Field, *, mu: int, size: int, parts: bool = False) -> None:
    """Share this member's part Sk(mu / m) of the noise for `size` entries (zeros if mu is 0): of degree 2t, or in parts
    if it is to be verified."""
    noise = noise_part(me, mu=mu, size=size)
    if parts:
        deal_large(me, tag, field, noise)
        for blind in blinds_of(me.roster, tag):
            _deal_large(me, blind, field, np.zeros(size, dtype=np.int8), degree=me.roster.threshold + 1)
    else:
        _deal_large(me, tag, field, noise, degree=2 * me.roster.threshold)


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
        _send_packed(me, committee[holder], tag, packed)
    if me.name in committee:
        seeds = {str(holder): seed for holder, seed in dealing.seeds.items()}
        me.send(me.name, tag, {"values": _compact(values), "seeds": seeds})


def deal_product(me: Party, tag: str, product: Product) -> None:
    """Share this holder's share of (records, width) products again, of degree t; `recombined` joins what all dealt."""
    committee, threshold = me.roster.committee, me.roster.threshold
    dealing = reshare_seeded(
        product,
        holders=len(committee),
        threshold=threshold,
        randomness=me.randomness,
        first=seed_holders(me.roster, me.name, threshold)[0],
    )
    for holder, seed in dealing.seeds.items():
        me.send(committee[holder], tag, {"seed": seed})
    others = [place for place in range(len(committee)) if place not in dealing.seeds]
    for holder, packed in zip(others, dealing.packed(others), strict=True):
        _send_packed(me, committee[holder], tag, packed)


SMALL_MAIL = 1 << 16
"""Bytes of a packed share that travels in one message."""


def _send_packed(me: Party, holder: str, tag: str, packed: PackedShare) -> None:
    """In one message, or one for each prime: less memory than one for all."""
    if sum(words.nbytes for words in packed.words) <= SMALL_MAIL:
        me.send(holder, tag, list(packed.words))
        return
    for layer, words in enumerate(packed.words):
        me.send(holder, _layer_tag(tag, layer), words)


def _layer_tag(tag: str, layer: int) -> str:
    return f"{tag}, prime {layer}"


def recombined(me: Party, tag: str, field: Field, lengths: tuple[int, ...]) -> Residues:
    """This holder's share, of degree t, of products that all holders have dealt again."""
    committee = me.roster.committee
    shares = dealt_large(me, tag, committee, field, lengths=lengths)
    placed = {place: materialize(shares[holder]) for place, holder in enumerate(committee)}
    return recombine(field, placed, threshold=me.roster.threshold)


def _compact(values: NDArray[np.integer[Any]]) -> NDArray[np.integer[Any]]:
    """The same integers in the narrowest type; it stays here, so its size may depend on them."""
    largest = max(-int(values.min()), int(values.max())) if values.size else 0
    for narrow in (np.int16, np.int32):
        if largest <= np.iinfo(narrow).max:
            return values.astype(narrow, copy=False)
    return values


def dealt_large(
    me: Party, tag: str, senders: Sequence[str], field: Field, *, lengths: tuple[int, ...]
) -> dict[str, Share]:
    """A holder's shares of what each of the senders dealt, all of them or an error; `lengths` is the public shape."""
    received = messages(me, tag, senders, layers=len(field.primes))
    return shares_of(me, received, field, dict.fromkeys(senders, lengths))


def messages(
    me: Party, tag: str, senders: Sequence[str], *, layers: int = 0, keep: bool = False, remember: bool = False
) -> dict[str, Any]:
    """What each of the senders dealt to this holder: a seed, a list of so many packed layers, or its own numbers.

    What is kept for later requests may also be remembered, if there is room: reading it again takes time."""
    require_holder(me)
    stored = f"{tag}: from the others"
    if me.kept(stored):
        known: dict[str, Any] = me.remembered(stored, MOST_REMEMBERED + 1, dict) if remember else {}
        recalled = known or _remembered(me, stored, me.recall(stored), remember=remember)
        return _complete(tag, senders, recalled | me.own_mail(tag))
    received = me.received(tag)
    whole = me.name in received  # of what this holder sent to itself; in layers it is kept with the others'
    arrived = {mail.tag for mail in me.mail}
    packed = [me.received(name) for layer in range(layers) if (name := _layer_tag(tag, layer)) in arrived]
    for sender in senders:
        if sender not in received and len(packed) == layers > 0 and all(sender in layer for layer in packed):
            received[sender] = [layer[sender] for layer in packed]
    if keep:
        others = {sender: message for sender, message in received.items() if sender != me.name or not whole}
        me.keep(stored, _remembered(me, stored, others, remember=remember))
    return _complete(tag, senders, received)


def _remembered(me: Party, name: str, mail: dict[str, Any], *, remember: bool) -> dict[str, Any]:
    if remember:
        words = (layer for message in mail.values() if isinstance(message, list) for layer in message)
        me.remembered(name, sum(layer.nbytes for layer in words), lambda: mail)
    return mail


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
