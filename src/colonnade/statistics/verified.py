"""Catching cheats: before anything is opened, the share holders of a joint statistic check each other and the data
parties.

A holder that opens a wrong share changes the result, and no one would see it. A dealer whose shares are of no
polynomial of degree t, or a row that is no indicator, also reads other parties' records out of the opening. So when all
shares of the result are computed (`compare_shares`), and each holder is bound to its own by a commitment,

1. every holder shows the first of its two coins, to which it bound itself when it compared, and deals masks. The coins
   together are a challenge that no one could foresee;
2. every holder proves that what it will open is the product of its shares, plus the noise that it was dealt; every data
   party with indicators proves that each row has at most one entry other than 0, and that it is 1. Each deals a short
   proof (`secure.proof`) for one inner product, to which the challenge has compressed everything; a holder also deals
   the combination of its share of the result that it has proven;
3. every holder, once it has all proofs, shows its second coin: the point at which the proofs are checked;
4. every holder tells the others what its shares say at this point;
5. every holder draws its own conclusion, and tells it to the coordinator. It opens nothing if it has found a lie.

Where the claim would be long after one challenge (`SharedStatistic.sums_length`), every holder deals sums of products
between the first two of these, and a challenge that follows compresses them once more.

With its share of the result a holder then opens its shares of the proven combinations, and the coordinator checks that
the shares which it joins are those that were bound and proven. All that is opened before is masked, so the holders
learn nothing of the result. The claim is in `joint.claim.md`.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cached_property, partial, reduce
from typing import Any

import numpy as np
from numpy.typing import NDArray

from colonnade.errors import SecureError, UnsafeRequest, VerificationFailed
from colonnade.federation.job import Job
from colonnade.federation.options import View
from colonnade.federation.party import Party
from colonnade.federation.roster import Roster
from colonnade.federation.stage import SEALED, Later, Stage, checked_by_step, stage
from colonnade.federation.step import Release, Step, step
from colonnade.privacy.cost import Free
from colonnade.secure.bgw import reshare
from colonnade.secure.claims import Factors, one_hot_factors, one_hot_value, square_factors
from colonnade.secure.extension import DEGREE, Extension
from colonnade.secure.field import Field, Residues
from colonnade.secure.openings import check_opening
from colonnade.secure.proof import CHUNK, Layout, Query, Vector, answer, prove, verdict
from colonnade.secure.seeded import materialize
from colonnade.secure.shamir import lagrange_weights, share_residues
from colonnade.secure.sizes import Sizes
from colonnade.statistics.joint import Chosen, JointStages, SharedStatistic, commitment, joined, read_statistic
from colonnade.statistics.shares import (
    dealt_large,
    join,
    own_coin,
    received_from,
    require_agreement,
    require_holder,
    true_coins,
)

NOT_VERIFIED = "Not verified: a holder or a party that deviates from the protocol can change the result unseen."
"""The note of a plan with verify=False."""
NORMS_NOT_PROVEN = (
    "Not proven: that rows of numbers are within their norm. A party that lies about its own can lift a record of"
    " others above the noise."
)
"""The beginning of the note of a plan where numbers are shared and only the rest is verified."""
SMALL_WEIGHTS = 1 << 22
"""Bytes of the weights of an opening that a holder remembers from its proof to its answer."""


def challenge(tag: str, number: int, coins: Mapping[str, bytes], committee: Sequence[str]) -> bytes:
    """The seed of the challenge with this number, from the coins of all holders."""
    joined = b"".join(coins[holder] for holder in committee)
    return hashlib.sha256(f"colonnade challenge {number} {tag} ".encode() + joined).digest()


class Product:
    """The claim of every holder: what it will open are the products of its shares, plus what it was dealt."""

    def __init__(self, me: Party, statistic: SharedStatistic, seed: bytes) -> None:
        self.statistic, self.seed = statistic, seed
        self.extension = Extension(statistic.field)
        self.layout = claimed_layout(me, statistic)

    def weights(self, me: Party) -> Iterator[tuple[int, Residues]]:
        """Of each opening in turn: those of a large matrix together would be several times as large as its entries.
        They are needed twice, and remembered if they are few."""
        statistic = self.statistic
        for number in statistic.proven_openings:
            weights_of = partial(statistic.opening_weights, self.extension, self.seed, number)
            size = 4 * DEGREE * len(statistic.field.primes) * statistic.openings[number]
            small = size <= SMALL_WEIGHTS and statistic.remembers(size)
            name = f"{statistic.tag}: weights {number} {self.seed.hex()}"
            yield number, me.remembered(name, size, weights_of) if small else weights_of()

    def factors(self, me: Party) -> tuple[Vector, Vector]:
        """This holder's shares of the two vectors. They are needed twice: remembered if they are small, otherwise in
        pieces, which are made again."""
        statistic = self.statistic
        size = vectors_bytes(statistic, self.layout)
        if not statistic.remembers(size):
            return _streams(lambda: statistic.claim_factors(me, self.extension, self.seed), self.layout.square)
        name = f"{statistic.tag}: factors {self.seed.hex()}"
        return me.remembered(name, size, lambda: _whole(statistic.claim_factors(me, self.extension, self.seed)))

    def stated(self, me: Party) -> Residues:
        """The combination of this holder's shares of the result, (primes, 3)."""
        total = self.extension.zeros()
        for number, weights in self.weights(me):
            result: Residues = me.recall(self.statistic.result_name(number))
            total = self.extension.add(total, self.extension.combine(result, weights))
        return total

    def dealt(self, me: Party) -> Residues:
        """Less the sums and the noise that others dealt, as each prover has them in its shares: (primes, m, 3).

        For holder j the noise is h(x) + j k_1(x) + ... + j^t k_t(x), a sharing of degree t (`statistics.shares`).
        """
        extension, field = self.extension, self.statistic.field
        total = self.statistic.claim_sums(me, extension, self.seed)
        blinds = [extension.zeros() for _ in range(me.roster.threshold)]
        for number, weights in self.weights(me):
            noise, own_blinds = self.statistic.noise_parts(me, number)
            total = extension.add(total, extension.combine(noise, weights))
            for degree, blind in enumerate(own_blinds):
                blinds[degree] = extension.add(blinds[degree], extension.combine(blind, weights))
        by_prover = []
        for point in range(1, len(me.roster.committee) + 1):
            shifted = total
            for degree, blind in enumerate(blinds):
                shifted = extension.add(shifted, field.scale(blind, point ** (degree + 1)))
            by_prover.append(shifted)
        return extension.neg(np.stack(by_prover, axis=1))


class Inputs:
    """The claim of a data party: its rows are indicators, and these are integers (`secure.sizes`). Of its `own` values,
    or of a holder's shares of them."""

    def __init__(self, me: Party, statistic: SharedStatistic, dealer: str, seed: bytes, *, own: bool) -> None:
        self.me, self.statistic, self.dealer, self.seed, self.own = me, statistic, dealer, seed, own
        self.extension = Extension(statistic.field)
        self.layout = input_layout(statistic, dealer)
        self.sizes = statistic.entry_sizes(dealer)
        self._label: dict[str, Any] = {"seed": seed, "label": f"rows of {dealer}"}

    def claims(self) -> tuple[Vector, Vector, Residues]:
        """The two vectors and the right side."""
        value = self.extension.zeros()
        small = self.statistic.remembers(vectors_bytes(self.statistic, self.layout))
        pieces: list[Factors] = []
        for factors, part in self._pieces():
            pieces += [factors] if small else []
            value = self.extension.add(value, part)
        if small:
            return *_whole(pieces), value
        return *_streams(lambda: (factors for factors, _ in self._pieces()), square=True), value

    def _pieces(self) -> Iterator[tuple[Factors, Residues]]:
        yield from self.statistic.input_claims(self.me, self.dealer, self.extension, self.seed, own=self.own)
        if self.sizes is not None:
            bits = self._beside[:, : self.sizes.bits]
            psi = self.extension.uniform(bits.shape[1:], seed=self.seed, label=f"bits of {self.dealer}")
            value = self.extension.combine(bits, self.extension.mul(psi, psi))
            yield square_factors(self.extension, bits, psi), value

    @cached_property
    def _beside(self) -> Residues:
        """What the dealer dealt beside its rows."""
        shape, tag, field = self.sizes, self.statistic.sizes_tag, self.statistic.field
        assert shape is not None
        if self.own:
            return field.encode(self.me.recall(tag))
        return materialize(dealt_large(self.me, tag, [self.dealer], field, lengths=(shape.dealt,))[self.dealer])

    def _sums(self, shape: Sizes) -> Residues:
        return shape.sums(self.statistic.sized_blocks(self.me, self.dealer, own=self.own), **self._label)

    def letter(self, shape: Sizes) -> list[Any]:
        """What the dealer tells every holder of the sums of its rows."""
        return list(shape.letter(self._sums(shape), self.me.recall(self.statistic.sizes_tag), **self._label))

    def small(self, shape: Sizes, letter: list[Any]) -> Residues:
        """A holder's answer to it."""
        return shape.answer(self._sums(shape), self._beside, letter, **self._label)


def input_layout(statistic: SharedStatistic, dealer: str, length: int | None = None) -> Layout:
    """The shape of a data party's claim; `length` bounds the products of its rows, if it is not that of the layout."""
    sizes = statistic.entry_sizes(dealer)
    products = statistic.input_length(dealer) if length is None else length
    return Layout.balanced(products + (0 if sizes is None else sizes.bits), square=True)


def product_layout(statistic: SharedStatistic, length: int | None = None) -> Layout:
    """The shape of the holders' claim; `length` bounds its products, if it is not that of the layout."""
    length = statistic.claim_length if length is None else length
    if statistic.proof_width is not None:
        return Layout(length, min(statistic.proof_width, length), statistic.squares)
    return Layout.balanced(length, square=statistic.squares)


def claimed_layout(me: Party, statistic: SharedStatistic) -> Layout:
    """The same as a holder knows it."""
    return product_layout(statistic, statistic.claimed_products(me))


def one_hot_claim(
    extension: Extension, rows: Residues, groups: Sequence[slice], *, seed: bytes, label: str, start: int
) -> tuple[Factors, Residues]:
    """sum_r psi_r^2 sum_g (x_rg u_g)^2 = sum_r psi_r^2 x_r (u^2), for some records, of which the first has the number
    `start`, and the `groups` of their columns. For random u, psi it holds for indicators, and groups of zeros, only."""
    u = extension.uniform(rows.shape[2:], seed=seed, label=f"{label}: cells")
    psi = extension.uniform(rows.shape[1:2], seed=seed, label=f"{label}, records from {start}")
    return one_hot_factors(extension, rows, u, psi, groups), one_hot_value(extension, rows, u, psi)


def vectors_bytes(statistic: SharedStatistic, layout: Layout) -> int:
    """Of the two vectors of a claim."""
    return 8 * DEGREE * len(statistic.field.primes) * layout.length


def _whole(pieces: Iterable[Factors]) -> tuple[Vector, Vector]:
    left, right = zip(*pieces, strict=True)
    joined = np.concatenate(left, axis=1)
    square = all(first is second for first, second in zip(left, right, strict=True))
    return joined, joined if square else np.concatenate(right, axis=1)


def _streams(pieces: Callable[[], Iterator[Factors]], square: bool) -> tuple[Vector, Vector]:
    """Each of the two by a pass of its own: no more than a piece of it is in memory at a time."""
    left: Vector = (factors.left for factors in pieces())
    return left, left if square else (factors.right for factors in pieces())


# --- the coordinator's side -------------------------------------------------------------------------------


class VerifiedStages(JointStages):
    """A joint statistic with its verification, if its layout asks for it."""

    @property
    def verification_notes(self) -> tuple[str, ...]:
        """What a plan says of what is verified, and what is not."""
        if self.layout.roster.pair:
            return (self.layout.paired.trust,)
        return self.layout.proof_notes if self.layout.verify else (NOT_VERIFIED,)

    def verification(self) -> tuple[Stage, ...]:
        """The five stages between comparing and opening; none if nothing is verified."""
        layout = self.layout
        provers = proving_dealers(layout)
        self._proofs = verification_stages(layout, [self._arguments], provers, self._later) if layout.verify else ()
        return self._proofs

    def all_opened(
        self, job: Job, layout: SharedStatistic, add_noise: Stage | None = None, **later: Any
    ) -> Iterator[NDArray[Any]]:
        """Every opening: exact integers plus noise. With verification all of them are compared and proven before the
        first, and a lie raises; it must be run to its end.

        `layout` has what was chosen later; `add_noise` deals the noise of each opening but the first."""
        bound = []
        for number in range(len(layout.openings)):
            if number and add_noise is not None:
                job.ask(add_noise, **later)
            if layout.verify:
                bound.append(job.ask(self.compare, **later))
            else:
                yield self.opened(job, **later)
        if layout.verify:
            coins = prove_all(job, self._proofs, layout, **later)
            yield from opened_shares(job, self.open, layout, bound, coins, **later)


def verification_stages(
    layout: SharedStatistic,
    requests: Sequence[Mapping[str, Any]],
    dealers: Sequence[str],
    later: Mapping[str, Later],
    *,
    label: str = "",
    products: int | None = None,
    inputs: Mapping[str, int] | None = None,
) -> tuple[Stage, ...]:
    """First coins, proofs, second coins, answers, conclusions: each is asked once for each of the `requests`, which
    state a layout of their own each. `products` and `inputs` bound the lengths of the claims, if they are not those of
    the layout: sizes are forecast from them."""
    committee = layout.roster.committee
    provers = tuple(dict.fromkeys((*committee, *dealers)))
    coins = checked_by_step("the holders' coins, to which they are bound since they compared")
    claim = product_layout(layout, products)
    lengths = {dealer: layout.input_length(dealer) for dealer in dealers} if inputs is None else inputs
    rows = [input_layout(layout, dealer, length) for dealer, length in lengths.items() if length]
    sizes = [size for dealer in lengths if (size := layout.entry_sizes(dealer)) is not None]
    element = 4 * DEGREE * len(layout.field.primes) * len(committee)  # an element, to each holder
    masks = element * claim.masks(len(committee))
    proof = element * (claim.proof + 1 + max((own.masks(1) + own.proof for own in rows), default=0))
    proof += len(committee) * max((own.letter_bytes for own in sizes), default=0)
    answers = element * (claim.answers(len(committee)) + sum(own.answers(1) for own in rows))
    answers += element // DEGREE * sum(own.answers for own in sizes)

    def planned(
        what: str, asked: Step, members: Sequence[str], size: int = 0, number: int = 0, **known: Later
    ) -> Stage:
        arguments = [{**request, "number": number, **{name: {} for name in known}} for request in requests]
        return stage(
            f"{label or layout.label}: {what}",
            asked,
            dict.fromkeys(members, arguments),
            facts=layout.facts,
            roster=layout.roster,
            audience=SEALED,
            discloses="coins and masked proofs, to the share holders",
            reply_bytes=1024 + size,
            later={**later, **known},
        )

    between: tuple[Stage, ...] = ()
    if layout.sums_length:
        between = (
            planned("share sums", share_sums, committee, element * layout.sums_length, coins=coins),
            planned("coins for sums", show_coin, committee, number=1),
        )
    return (
        planned("first coins", show_coin, committee, masks),
        *between,
        planned("prove", prove_shares, provers, proof, coins=coins),
        planned("second coins", show_coin, committee, number=_last_coin(layout)),
        planned("answer", answer_proofs, committee, answers, coins=coins),
        planned("conclude", conclude, committee),
    )


def prove_all(job: Job, stages: Sequence[Stage], layout: SharedStatistic, **later: Any) -> dict[str, bytes]:
    """Ask for the verification of what was dealt and computed; raises if a holder has found a lie. Gives the coins of
    the first challenge."""
    first, *between, proofs, second, answers, conclusion = stages
    coins = latest = job.ask(first, **later)
    if between:
        sums, after = between
        job.ask(sums, coins=coins, **later)
        latest = job.ask(after, **later)
    job.ask(proofs, coins=latest, **later)
    job.ask(answers, coins=job.ask(second, **later), **later)
    verdicts = job.ask(conclusion, **later)
    lies = dict.fromkeys(lie for sentences in verdicts.values() for lie in sentences)
    if lies:
        raise VerificationFailed(f"the share holders have found a lie, and open nothing: {'; '.join(lies)}.")
    return coins


def opened_once(
    job: Job, compare: Stage, proofs: Sequence[Stage], opening: Stage, layout: SharedStatistic, **later: Any
) -> NDArray[Any]:
    """The one opening of a layout: compared, proven if it is verified, and joined."""
    bound = job.ask(compare, **later)
    if layout.verify:
        coins = prove_all(job, proofs, layout, **later)
        (integers,) = opened_shares(job, opening, layout, [bound], coins, **later)
        return integers
    return joined(job, opening, layout, **later)


def opened_shares(
    job: Job,
    opening: Stage,
    layout: SharedStatistic,
    bound: Sequence[Mapping[str, bytes]],
    coins: Mapping[str, bytes],
    **later: Any,
) -> Iterator[NDArray[Any]]:
    """What the holders open of a layout that was proven, if it is what each was bound to (`bound`, for each opening)
    and has proven: the combination of what is joined is that of the proven combinations."""
    field, committee = layout.field, layout.roster.committee
    extension = Extension(field)
    seed = challenge(layout.tag, 0, coins, committee)
    total = extension.zeros()
    for number, commitments in zip(layout.proven_openings, bound, strict=True):
        replies = {holder: _opened(holder, value) for holder, value in job.ask(opening, **later).items()}
        for holder, (share, salt, _) in replies.items():
            if commitment(salt, share) != commitments[holder]:
                raise VerificationFailed(f"{holder!r} has opened something else than what it was bound to.")
        integers = join({holder: share for holder, (share, _, _) in replies.items()}, field, layout.roster)
        weights = layout.opening_weights(extension, seed, number)
        total = extension.add(total, extension.combine(field.encode(integers), weights))
        job.released[f"{layout.label}, opening {len(job.released)}"] = integers
        yield integers
    proven = {place: replies[holder][2] for place, holder in enumerate(committee)}
    if any(shares.shape != (len(field.primes), len(committee), DEGREE) for shares in proven.values()):
        raise VerificationFailed("a share holder has opened something other than shares of what was proven.")
    threshold = layout.roster.threshold
    values = check_opening(field, proven, degree=threshold, threshold=threshold).values
    if values is None:
        raise VerificationFailed("the shares of what was proven, which the holders have opened, do not fit together.")
    points = list(range(1, 2 * threshold + 2))
    by_prime = np.array([lagrange_weights(p, points) for p in field.primes], dtype=np.int32)
    proven_total = field.sum(field.mul(values[:, : len(points)], by_prime[:, :, None]))
    if not np.array_equal(proven_total, total):
        raise VerificationFailed("a share holder has opened something else than what it has proven.")


def _opened(holder: str, value: Any) -> tuple[Residues, bytes, Residues]:
    match value:
        case {"share": np.ndarray() as share, "salt": bytes(salt), "proven": np.ndarray() as proven, **rest} if (
            not rest
        ):
            return share, salt, proven
    raise SecureError(f"{holder!r} opened something other than a share; nothing is joined.")


def proof_bytes(roster: Roster, primes: int, claim: Layout) -> int:
    """What one prover's masks, proof and answers take: dealt to each holder, and answered by each to each."""
    holders = len(roster.committee)
    elements = holders * (claim.masks(1) + claim.proof) + holders**2 * claim.answers(1)
    return 4 * DEGREE * primes * elements


def proving_bytes(layout: SharedStatistic) -> int:
    """What a holder or a dealer has in memory while it proves and answers in pieces: some ten copies of a piece."""
    if not layout.verify:
        return 0
    longest = max(layout.claim_length, *(layout.input_length(party) for party in layout.parties))
    return 40 * DEGREE * len(layout.field.primes) * min(longest, CHUNK)


def proving_dealers(layout: SharedStatistic) -> tuple[str, ...]:
    """The data parties whose rows are proven to be indicators."""
    return tuple(party for party in layout.parties if layout.input_length(party))


# --- the members' steps -----------------------------------------------------------------------------------


def _last(statistic: SharedStatistic) -> str:
    """Names the last comparison, with which the coins were drawn that verify all openings."""
    return statistic.compared_name(statistic.proven_openings[-1])


def _last_coin(statistic: SharedStatistic) -> int:
    """The number of the coin that is shown when all proofs have come."""
    return 2 if statistic.sums_length else 1


def _read(me: Party, layout: dict[str, Any], chosen: Chosen) -> SharedStatistic:
    statistic = read_statistic(me, layout, chosen)
    if not statistic.verify:
        raise UnsafeRequest("this computation is not verified.")
    return statistic


def _shared(me: Party, field: Field, secrets: Residues) -> list[Residues]:
    """Shares of elements of K, of degree t, one for each holder."""
    holders, threshold = len(me.roster.committee), me.roster.threshold
    return share_residues(field, secrets, holders=holders, threshold=threshold, randomness=me.randomness)


def _deal(me: Party, tag: str, field: Field, secrets: Residues) -> None:
    for holder, elements in zip(me.roster.committee, _shared(me, field, secrets), strict=True):
        me.send(holder, tag, elements)


def _elements(
    me: Party, tag: str, senders: Sequence[str], field: Field, lengths: tuple[int, ...]
) -> dict[str, Residues]:
    """What each sender dealt to this holder: residues of this shape."""
    received = received_from(me, tag, senders)
    for sender, elements in received.items():
        _check_elements(sender, elements, field, lengths)
    return received


def _check_elements(sender: str, elements: Any, field: Field, lengths: tuple[int, ...]) -> None:
    if not isinstance(elements, np.ndarray) or elements.shape != (len(field.primes), *lengths):
        raise SecureError(f"{sender!r} dealt elements of another shape than the layout says.")
    field.check(elements)


COIN = Free("a random number")


@step(cost=COIN)
def show_coin(me: Party, *, layout: dict[str, Any], view: View, number: int, chosen: Chosen = None) -> Release:
    """The first coin, when all holders agree and are bound to their shares, and masks for the proofs; where sums are
    dealt for the proof, another one when all came; the last, when all proofs came."""
    statistic = _read(me, layout, chosen)
    require_holder(me)
    tag, committee, field = statistic.tag, me.roster.committee, statistic.field
    claim = claimed_layout(me, statistic)
    if number == 0:
        require_agreement(me, _last(statistic))
        _deal(me, f"{tag}: masks", field, field.uniform((claim.masks(len(committee)), DEGREE), me.randomness))
    elif number == 1 and statistic.sums_length:
        sums = _elements(me, _sums(tag), committee, field, (DEGREE, statistic.sums_length))
        stacked = np.stack([sums[holder] for holder in committee], axis=1)
        me.keep(f"{tag}: sums of each holder", np.ascontiguousarray(np.swapaxes(stacked, 2, 3)))
    elif number == _last_coin(statistic):
        proofs = _elements(me, f"{tag}: proof", committee, field, (claim.proof + 1, DEGREE))
        me.keep(f"{tag}: proofs", np.stack([proofs[holder] for holder in committee], axis=1))
        seed = me.recall(f"{tag}: challenge")
        for dealer, letter in received_from(me, _letter(tag), proving_dealers(statistic)).items():
            me.keep(f"{_letter(tag)} of {dealer}", _read_letter(statistic, dealer, letter, seed))
    else:
        raise UnsafeRequest(f"there is no coin {number}.")
    return Release(own_coin(me, _last(statistic), number), "a random number")


def _take_masks(me: Party, statistic: SharedStatistic, seed: bytes) -> None:
    """Keep the sum of the masks that came from all holders, and the first challenge, to which their coins belong."""
    tag, field, committee = statistic.tag, statistic.field, me.roster.committee
    lengths = (claimed_layout(me, statistic).masks(len(committee)), DEGREE)
    dealt = _elements(me, f"{tag}: masks", committee, field, lengths)
    me.keep(_masks(tag), reduce(field.add, dealt.values()))
    me.keep(f"{tag}: challenge", seed)


def _masks(tag: str) -> str:
    return f"{tag}: masks of all"


def _sums(tag: str) -> str:
    """The tag of the sums that a holder deals for its proof."""
    return f"{tag}: sums for proofs"


@step(cost=Free("shares of sums of products, for proofs"))
def share_sums(
    me: Party, *, layout: dict[str, Any], view: View, number: int, coins: dict[str, Any], chosen: Chosen = None
) -> Release:
    """A holder's sums of products, weighted by the first challenge; the next one is drawn when all were dealt."""
    statistic = _read(me, layout, chosen)
    require_holder(me)
    tag, committee = statistic.tag, me.roster.committee
    true_coins(me, _last(statistic), 0, coins)
    seed = challenge(tag, 0, _bytes(coins, committee), committee)
    _take_masks(me, statistic, seed)
    sums = statistic.claim_matrices(me, Extension(statistic.field), seed)
    dealt = reshare(sums, holders=len(committee), threshold=me.roster.threshold, randomness=me.randomness)
    for holder, elements in zip(committee, dealt, strict=True):
        me.send(holder, _sums(tag), elements)
    return Release(None, "nothing: the sums travel sealed")


@step(cost=Free("shares of proofs"))
def prove_shares(
    me: Party, *, layout: dict[str, Any], view: View, number: int, coins: dict[str, Any], chosen: Chosen = None
) -> Release:
    """A holder's proof of what it will open, and a data party's of its rows."""
    statistic = _read(me, layout, chosen)
    tag, field, committee = statistic.tag, statistic.field, me.roster.committee
    shown = _last_coin(statistic) - 1
    if me.name in committee:
        true_coins(me, _last(statistic), shown, coins)
    seed = challenge(tag, shown, _bytes(coins, committee), committee)
    if shown:
        me.keep(f"{tag}: second challenge", seed)
        seed = me.recall(f"{tag}: challenge")
    if me.name in proving_dealers(statistic):
        inputs = Inputs(me, statistic, me.name, seed, own=True)
        masks = field.uniform((inputs.layout.masks(1), DEGREE), me.randomness)
        left, right, _ = inputs.claims()
        proof = prove(inputs.extension, inputs.layout, left, right, masks=masks)
        letter = {"challenge": seed, "sums": None if inputs.sizes is None else inputs.letter(inputs.sizes)}
        shares = _shared(me, field, np.concatenate([masks, proof], axis=1))
        for holder, elements in zip(committee, shares, strict=True):
            me.send(holder, _letter(tag), {**letter, "proof": elements})
    if me.name in committee:
        product = Product(me, statistic, seed)
        if not shown:
            _take_masks(me, statistic, seed)
        masks = me.recall(_masks(tag))
        left, right = product.factors(me)
        place = committee.index(me.name)
        proof = prove(product.extension, product.layout, left, right, masks=masks, prover=place)
        _deal(me, f"{tag}: proof", field, np.concatenate([proof, product.stated(me)[:, None]], axis=1))
    return Release(None, "nothing: the proofs travel sealed")


def _letter(tag: str) -> str:
    """The tag of what a dealer tells each holder: for which challenge it proves, what of the sums of its rows, and the
    holder's shares of its masks and its proof."""
    return f"{tag}: letter"


def _read_letter(statistic: SharedStatistic, dealer: str, letter: Any, seed: bytes) -> dict[str, Any]:
    match letter:
        case {"challenge": bytes(proven_for), "sums": sums, "proof": proof, **rest} if not rest:
            if proven_for != seed:
                # Not a lie of the dealer: it cannot check coins if it is no holder.
                raise SecureError(f"{dealer!r} was given other coins than the holders; nothing is answered.")
            layout, shape = input_layout(statistic, dealer), statistic.entry_sizes(dealer)
            if shape is not None:
                shape.read(sums)
            _check_elements(dealer, proof, statistic.field, (layout.masks(1) + layout.proof, DEGREE))
            return {"sums": sums, "proof": proof}
    raise SecureError(f"{dealer!r} sent no proof of its rows; check its installation.")


def _about_sizes(dealer: str) -> str:
    """The name of the answers to it; no member's name begins with a space."""
    return f" sizes of {dealer}"


def _bytes(coins: Mapping[str, Any], committee: Sequence[str]) -> dict[str, bytes]:
    if set(coins) != set(committee) or not all(isinstance(coin, bytes) and len(coin) == 32 for coin in coins.values()):
        raise UnsafeRequest("a challenge is made of one coin of 32 bytes from each holder.")
    return dict(coins)


@step(cost=Free("masked shares, sealed to the other holders"))
def answer_proofs(
    me: Party, *, layout: dict[str, Any], view: View, number: int, coins: dict[str, Any], chosen: Chosen = None
) -> Release:
    """What this holder's shares say at the point of the second challenge, to the other holders."""
    statistic = _read(me, layout, chosen)
    require_holder(me)
    tag, field, committee = statistic.tag, statistic.field, me.roster.committee
    shown = _last_coin(statistic)
    true_coins(me, _last(statistic), shown, coins)
    seed, second = me.recall(f"{tag}: challenge"), challenge(tag, shown, _bytes(coins, committee), committee)
    product = Product(me, statistic, seed)
    proofs: Residues = me.recall(f"{tag}: proofs")
    answers = {
        "": answer(
            Query(product.extension, product.layout, product.extension.point(seed=second, label="products")),
            *product.factors(me),
            masks=me.recall(_masks(tag)),
            proofs=proofs[:, :, :-1],
            others=product.dealt(me),
            own=field.add(proofs[:, :, -1], statistic.claim_products(me, product.extension, seed)),
        )
    }
    for dealer in proving_dealers(statistic):
        inputs = Inputs(me, statistic, dealer, seed, own=False)
        letter = me.recall(f"{_letter(tag)} of {dealer}")
        dealt = letter["proof"]
        cut = inputs.layout.masks(1)
        left, right, value = inputs.claims()
        answers[dealer] = answer(
            Query(inputs.extension, inputs.layout, inputs.extension.point(seed=second, label=f"rows of {dealer}")),
            left,
            right,
            masks=dealt[:, :cut],
            proofs=dealt[:, None, cut:],
            own=value[:, None],
        )
        if inputs.sizes is not None:
            answers[_about_sizes(dealer)] = inputs.small(inputs.sizes, letter["sums"])
    for holder in committee:
        me.send(holder, f"{tag}: answers", answers)
    return Release(None, "nothing: the answers travel sealed")


@step(cost=Free("whether the holders' answers fit together"))
def conclude(me: Party, *, layout: dict[str, Any], view: View, number: int, chosen: Chosen = None) -> Release:
    """Who lied, by the answers of all holders: a list of sentences, empty if nothing is wrong."""
    statistic = _read(me, layout, chosen)
    require_holder(me)
    committee, threshold = me.roster.committee, me.roster.threshold
    received = received_from(me, f"{statistic.tag}: answers", committee)
    extension = Extension(statistic.field)

    def answers_about(what: str) -> dict[int, Residues]:
        return {place: received[holder][what] for place, holder in enumerate(committee)}

    def liars(numbers: Sequence[int] | None, claim: str) -> list[str]:
        if numbers is None:
            return [f"the answers about {claim} do not fit together"]
        return [f"{committee[number]!r} answered falsely about {claim}" for number in numbers]

    def proven(what: str, shape: Layout, places: Sequence[int], provers: Sequence[str], claim: str) -> list[str]:
        decided = verdict(extension, shape, answers_about(what), places=places, threshold=threshold)
        disputed = [
            f"the shares of the proof of {provers[number]!r} are of no polynomial" for number in decided.disputed
        ]
        refuted = [f"{claim} by {provers[number]!r} is false" for number in decided.refuted]
        return liars(decided.liars, claim) + disputed + refuted

    def small(dealer: str, shape: Sizes) -> list[str]:
        claim = "the size of the rows"
        numbers, false = shape.false(answers_about(_about_sizes(dealer)), threshold=threshold)
        return liars(numbers, claim) + ([f"{claim} by {dealer!r} is false"] if false else [])

    dealers = proving_dealers(statistic)
    sizes = {dealer: shape for dealer in dealers if (shape := statistic.entry_sizes(dealer)) is not None}
    wanted = ["", *dealers, *map(_about_sizes, sizes)]
    lies = [f"{holder!r} did not answer" for holder in committee if not _answers(received[holder], wanted)]
    if not lies:
        places = range(1, len(committee) + 1)
        lies = proven("", claimed_layout(me, statistic), places, committee, "what was computed")
        for dealer in dealers:
            lies += proven(dealer, input_layout(statistic, dealer), [0], [dealer], "the shape of the rows")
        lies += [lie for dealer, shape in sizes.items() for lie in small(dealer, shape)]
    me.forget(me.job)
    if not lies:
        me.keep(statistic.proven_name, me.recall(f"{statistic.tag}: proofs")[:, :, -1])
    for lie in lies:
        me.note(f"verification of {statistic.label}: {lie}; nothing is opened")
    return Release(lies, "whether the holders' answers fit together, and who lied if they do not")


def _answers(received: Any, wanted: Sequence[str]) -> bool:
    """Whether a holder has answered all that was asked."""
    return isinstance(received, dict) and all(isinstance(received.get(what), np.ndarray) for what in wanted)
