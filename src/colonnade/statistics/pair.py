"""Institutions in pairs, without share holders: joint statistics from additive shares under lattice encryption.

Where the roster is a pair (`committee = "pair"`) there are no share holders. Of every two parties with columns in a
common product the one with fewer columns encrypts its rows chunk by chunk; the other multiplies them with its own
(`secure.bfv`), and both hold shares, modulo 2^bits, of all products between them. What lies within a party it computes
alone. Each adds its part of the noise to its own shares, and the coordinator gets all parts under pads of every two
parties, so that it reads their sum and nothing else. Two parties are enough, and there may be more: every statistic of
products of two parties can be computed so (Gram matrices, tables, sums of monomials). `pair.claim.md` says what is
claimed, and what a party that deviates can do.
"""

from __future__ import annotations

import itertools
from abc import ABC, abstractmethod
from collections.abc import Mapping
from fractions import Fraction
from functools import cached_property
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from colonnade.data.block import MOST_HELD
from colonnade.errors import ModulusTooSmall, UnsafeRequest
from colonnade.federation.job import Job
from colonnade.federation.options import View
from colonnade.federation.party import Party
from colonnade.federation.roster import Roster
from colonnade.federation.stage import Later, Stage
from colonnade.federation.step import Release, step
from colonnade.privacy.cost import Free
from colonnade.privacy.skellam_sampler import largest_draw
from colonnade.secure.bfv import CIPHERTEXT_BYTES, DEGREE, MOST_BITS, CrossProduct, Encrypter, Multiplier, ready
from colonnade.secure.pads import masked, pad_label, unmask_sum
from colonnade.statistics.joint import (
    PYTHON,
    Chosen,
    JointStages,
    SharedStatistic,
    once,
    read_statistic,
    share_cost,
    too_little_memory,
)
from colonnade.statistics.shares import noise_part, received_from

MAIL = 24 << 20
"""Bytes of ciphertexts that travel at a time, if they are not of fewer than 8192 rows."""

Words = NDArray[np.uint64]
"""Integers modulo 2^64."""


def others(roster: Roster) -> str:
    """Who sees what a party shows the rest, in words."""
    return "the other party" if len(roster.names) == 2 else "the other parties"


def audience(roster: Roster) -> str:
    return f"{others(roster)} (encrypted and sealed)"


def bits_for(largest: int, mu: int, roster: Roster) -> int:
    """Of the modulus that holds every result of size `largest` with all noise, and its sign."""
    members = len(roster.names)
    noise = members * largest_draw(Fraction(mu, members)) if mu else 0
    bits = (largest + noise).bit_length() + 1
    if bits > MOST_BITS:
        raise ModulusTooSmall(
            f"a pair computes modulo at most 2^{MOST_BITS}, and this job needs {bits} bits: take a smaller gamma, or"
            " share holders."
        )
    return bits


# --- a statistic as parties compute it in pairs -----------------------------------------------------------


class Paired(ABC):
    """A joint statistic of products between two parties each: `SharedStatistic.paired` makes it."""

    def __init__(self, layout: SharedStatistic) -> None:
        self.layout = layout

    @abstractmethod
    def width(self, party: str, other: str) -> int:
        """Columns that a party brings to products with another's; 0 if there are none between them."""

    def encrypted(self, encrypter: str, multiplier: str) -> int:
        """Columns of the encrypter as they are encrypted: fewer, if several are digits of one."""
        return self.width(encrypter, multiplier)

    def multiplied(self, encrypter: str, multiplier: str) -> int:
        """Columns of the multiplier as they multiply: more, if it brings them for each of several patterns of records,
        with zeros elsewhere."""
        return self.width(multiplier, encrypter)

    @abstractmethod
    def bound(self, party: str) -> int:
        """The largest size of an entry of its rows."""

    @property
    @abstractmethod
    def bits(self) -> int:
        """Results are computed modulo 2^bits."""

    def begin(self, me: Party) -> None:  # noqa: B027
        """What a party does before it brings any rows."""

    @abstractmethod
    def rows(self, me: Party, number: int, other: str) -> NDArray[np.integer[Any]]:
        """This party's columns for products with another's, in one of the `chunks` of the cohort."""

    @property
    def shows_masks(self) -> bool:
        """Whether the parties show each other who has which record, where presence is known."""
        return False

    def masks(self, me: Party) -> NDArray[np.uint8]:
        """The masks that this party shows the others, eight records in a byte."""
        raise UnsafeRequest("this computation shows no masks.")

    def settle(self, me: Party) -> None:  # noqa: B027
        """Compute what lies within this party, while others multiply."""

    @abstractmethod
    def addends(self, me: Party, number: int, cross: Mapping[str, Words]) -> Words:
        """This party's part of one opening without noise: what lies within it, and its shares of all products with
        each other party, `cross[other]` being (columns of the encrypter, columns of the multiplier)."""

    @abstractmethod
    def noise(self, me: Party, number: int) -> Words:
        """This party's part of the noise of one opening, as it is added to its part."""

    def share_name(self, other: str) -> str:
        """Under which a party keeps its share of all products with another."""
        return f"{self.layout.tag}: share with {other}"

    @abstractmethod
    def opened_size(self, number: int) -> int:
        """Words of one opening."""

    def results(self, number: int, words: NDArray[np.int64]) -> NDArray[np.int64]:
        """The entries of an opening, from the total of all parties' words."""
        return words

    # --- who does what ------------------------------------------------------------------------------------

    def roles(self, party: str, other: str) -> tuple[str, str]:
        """(Who encrypts, who multiplies): the party with fewer columns encrypts."""
        return self.fewer_first({party: self.width(party, other), other: self.width(other, party)})

    def fewer_first(self, widths: Mapping[str, int]) -> tuple[str, str]:
        """Two parties by their columns; of equals the first in the roster."""
        first, second = sorted(widths, key=lambda name: (widths[name], self.layout.roster.names.index(name)))
        return first, second

    @cached_property
    def products(self) -> dict[tuple[str, str], CrossProduct]:
        """{(who encrypts, who multiplies): their product}, for every two parties that have one."""
        pairs = [self.roles(party, other) for party, other in itertools.combinations(self.layout.roster.names, 2)]
        return {
            (encrypter, multiplier): CrossProduct(
                records=self.layout.facts.n,
                left=self.encrypted(encrypter, multiplier),
                right=self.multiplied(encrypter, multiplier),
                bound=self.bound(multiplier),
                bits=self.bits,
            )
            for encrypter, multiplier in pairs
            if self.width(encrypter, multiplier) and self.width(multiplier, encrypter)
        }

    def encrypting(self, name: str) -> dict[str, CrossProduct]:
        """The products for which a party encrypts, by who multiplies."""
        return {multiplier: product for (encrypter, multiplier), product in self.products.items() if encrypter == name}

    def multiplying(self, name: str) -> dict[str, CrossProduct]:
        """The products for which a party multiplies, by who encrypts."""
        return {encrypter: product for (encrypter, multiplier), product in self.products.items() if multiplier == name}

    @cached_property
    def chunks(self) -> list[tuple[int, int]]:
        """The cohort's rows in ranges that fill whole ciphertexts, of which no party sends or receives more than `MAIL`
        at a time; one empty range if there is no product."""
        if not self.products:
            return [(0, 0)]
        packed = max(
            sum(group.packed for product in products.values() for group in product.groups)
            for name in self.layout.roster.names
            for products in (self.encrypting(name), self.multiplying(name))
        )
        rows, n = DEGREE * max(1, MAIL // (CIPHERTEXT_BYTES * packed)), self.layout.facts.n
        return [(start, min(start + rows, n)) for start in range(0, n, rows)]

    def encrypted_bytes(self, rows: int) -> int:
        """The most that a party sends of so many rows."""
        return max(
            CIPHERTEXT_BYTES * sum(product.ciphertexts(rows) for product in self.encrypting(name).values())
            for name in self.layout.roster.names
        )

    @property
    def returned_bytes(self) -> int:
        """The most that a party sends of masked products."""
        return max(
            sum(product.returned_bytes for product in self.multiplying(name).values())
            for name in self.layout.roster.names
        )

    @property
    def trust(self) -> str:
        """What a plan says that this rests on."""
        parties = len(self.layout.roster.names)
        if parties == 2:
            within = (
                "Computed by two institutions alone, with no third: each learns what is opened and nothing else of the"
                " other's records, if both follow the protocol"
            )
            changed = "Not verified: either could change the result unseen"
        else:
            within = (
                f"Computed by {parties} institutions in pairs, without share holders. However many of them pool what"
                " they know with the coordinator, of the others' records they learn what is opened, with no noise in it"
                " but the others', and nothing else, if all follow the protocol"
            )
            changed = "Not verified: each of them could change the result unseen"
        if not self.products:
            return f"{within}; there is no product between them. {changed}."
        who = "; ".join(f"{encrypter!r} encrypts, {multiplier!r} multiplies" for encrypter, multiplier in self.products)
        if len(self.products) > 1:
            readable = "who encrypts could read columns of who multiplies"
        else:
            ((encrypter, multiplier),) = self.products
            readable = f"{encrypter!r} could read columns of {multiplier!r}"
        hidden = "2^-40 of revealing nothing" + (" for each pair" if len(self.products) > 1 else "")
        return (
            f"{within} and ring learning with errors is hard (BFV at 128 bits; {who}, within {hidden}). {changed}, and"
            f" {readable} by a malformed key or ciphertext."
        )


Layout = TypeVar("Layout", bound=SharedStatistic)


def pair_within_memory(layout: Layout, megabytes: float, opened: int) -> Layout:
    """The same computation, if it fits: ciphertexts of one chunk in some copies, the sums of all, what is opened."""
    paired = layout.paired
    sums = max(
        sum(3 * 8 * len(product.groups) * len(product.primes) * DEGREE * product.right for product in products.values())
        for products in map(paired.multiplying, layout.roster.names)
    )
    blocks = (8 * layout.facts.n * len(columns) for columns in layout.facts.columns.values())
    held = max((size for size in blocks if size <= MOST_HELD), default=0)
    needed = PYTHON + held + 12 * MAIL + 32 * layout.facts.n + sums + opened
    if needed > megabytes * (1 << 20):
        raise too_little_memory(needed)
    return layout


# --- the coordinator's side -------------------------------------------------------------------------------


class PairStages(JointStages):
    """Exchange rows, then open: two stages, of as many requests as there are chunks and one more, and openings."""

    def __init__(self, layout: SharedStatistic, view: View, *, later: Mapping[str, Later] | None = None) -> None:
        super().__init__(layout, view, later=later)
        paired = layout.paired
        rows = max(stop - start for start, stop in paired.chunks)
        if paired.products:
            ready()
        names = layout.roster.names
        self.exchange = self.stage(
            "exchange rows",
            exchange_rows,
            names,
            [{"number": number} for number in range(len(paired.chunks) + 1)],
            audience=audience(layout.roster),
            recipients=names,
            discloses=f"encrypted {layout.rows}, and masked products of them"
            + ("; which records a party has" if paired.shows_masks else ""),
            reply_bytes=max(paired.encrypted_bytes(rows), paired.returned_bytes),
        )
        self.open = self.stage(
            "open",
            open_sum,
            names,
            [{"number": number} for number in range(len(layout.openings))],
            audience="coordinator",
            discloses=f"masked parts of the {layout.results}, of which the coordinator reads the sum",
            reply_bytes=8 * max(paired.opened_size(number) for number in range(len(layout.openings))),
        )
        self.stages: tuple[Stage, ...] = (self.exchange, self.open)

    def ask_rows(self, job: Job, **later: Any) -> None:
        """All chunks: while one is encrypted, the one before it is multiplied."""
        for _ in range(self.exchange.counts[self.layout.roster.names[0]]):
            job.ask(self.exchange, **later)

    def all_opened(self, job: Job, layout: SharedStatistic, **later: Any) -> list[NDArray[np.int64]]:
        """Every opening: exact integers plus noise. `layout` has what was chosen later."""
        return [opened_pair(job, self.open, layout, number, **later) for number in range(len(layout.openings))]


def opened_pair(job: Job, opening: Stage, layout: SharedStatistic, number: int, **later: Any) -> NDArray[np.int64]:
    """One opening, from the masked parts of all parties."""
    paired = layout.paired
    total = unmask_sum(job.ask(opening, **later).items(), parties=layout.roster.names)
    integers = paired.results(number, total >> (64 - paired.bits))
    job.released[f"{layout.label}, opening {len(job.released)}"] = integers
    return integers


# --- the members' steps -----------------------------------------------------------------------------------


def _read(me: Party, layout: Mapping[str, Any], chosen: Chosen) -> tuple[SharedStatistic, Paired]:
    statistic = read_statistic(me, layout, chosen)
    if not me.roster.pair:
        raise UnsafeRequest("the roster has share holders, and no pair computes alone.")
    return statistic, statistic.paired


def masks_name(statistic: SharedStatistic, party: str) -> str:
    """Under which a party keeps the masks of another."""
    return f"{statistic.tag}: masks of {party}"


@step(cost=share_cost)
def exchange_rows(me: Party, *, layout: dict[str, Any], view: View, number: int, chosen: Chosen = None) -> Release:
    """Encrypt one chunk of rows, and multiply the chunk before it; with the last, mask and return all products."""
    statistic, paired = _read(me, layout, chosen)
    if not 0 <= number <= len(paired.chunks):
        raise UnsafeRequest(f"this computation has no chunk of rows {number}.")
    last = number == len(paired.chunks)
    if number == 0 and me.name in statistic.parties:
        paired.begin(me)
    if paired.shows_masks and me.name in statistic.parties:
        _show_masks(me, statistic, paired, number)
    if not last:
        _encrypt(me, statistic, paired, number)
    if number:
        _multiply(me, statistic, paired, number - 1, last=last)
    if last and not paired.multiplying(me.name):
        paired.settle(me)
    return Release(None, "nothing: ciphertexts travel sealed")


def _show_masks(me: Party, statistic: SharedStatistic, paired: Paired, number: int) -> None:
    """To the parties that take part, which need them for their own columns; and keep theirs."""
    tag, others = f"{statistic.tag}: masks", [party for party in statistic.parties if party != me.name]
    if number == 0:
        masks = paired.masks(me)
        for other in others:
            me.send(other, tag, masks)
    if number == 1:
        for other, shown in received_from(me, tag, others).items():
            me.keep(masks_name(statistic, other), shown)


def _encrypt(me: Party, statistic: SharedStatistic, paired: Paired, number: int) -> None:
    """One chunk, under a key of its own for each party that multiplies it."""
    for other, product in paired.encrypting(me.name).items():
        secret = f"{statistic.tag}: secret key for {other}"
        encrypter = Encrypter(product, me.recall(secret) if number else None)
        if number == 0:
            me.keep(secret, encrypter.to_bytes())
            me.send(other, f"{statistic.tag}: key", encrypter.public())
        me.send(other, f"{statistic.tag}: rows {number}", encrypter.encrypt(paired.rows(me, number, other)))


def _multiply(me: Party, statistic: SharedStatistic, paired: Paired, number: int, *, last: bool) -> None:
    tag, products = statistic.tag, paired.multiplying(me.name)
    arrived = received_from(me, f"{tag}: rows {number}", list(products)) if products else {}
    keys = received_from(me, f"{tag}: key", list(products)) if products and number == 0 else {}
    for other, product in products.items():
        key, sums = f"{tag}: key of {other}", f"{tag}: products with {other}"
        if number == 0:
            me.keep(key, keys[other])
        ciphertexts = arrived.pop(other)
        if not isinstance(ciphertexts, list):
            raise UnsafeRequest(f"{other!r} sent something other than ciphertexts; nothing is computed from it.")
        multiplier = Multiplier(product, me.recall(sums) if number else None)
        multiplier.add(paired.rows(me, number, other), ciphertexts)
        if not last:
            me.keep(sums, multiplier.state)
            continue
        returned, share = multiplier.finish(me.recall(key), me.randomness)
        me.send(other, f"{tag}: masked products", returned)
        me.keep(paired.share_name(other), share)


def own_shares(me: Party, statistic: SharedStatistic, paired: Paired) -> dict[str, Words]:
    """This party's shares of all products with each other party: its masks, or what it decrypts."""
    encrypting, multiplying = paired.encrypting(me.name), paired.multiplying(me.name)
    if not all(me.kept(paired.share_name(other)) for other in multiplying):
        raise UnsafeRequest("the products are not computed yet; nothing is opened.")
    missing = [other for other in encrypting if not me.kept(paired.share_name(other))]
    for other, returned in received_from(me, f"{statistic.tag}: masked products", missing).items() if missing else ():
        if not isinstance(returned, dict):
            raise UnsafeRequest("products came back in another form than the protocol's; nothing is opened.")
        secret = me.recall(f"{statistic.tag}: secret key for {other}")
        me.keep(paired.share_name(other), Encrypter(encrypting[other], secret).decrypt(returned))
    return {other: me.recall(paired.share_name(other)) for other in (*encrypting, *multiplying)}


@step(cost=Free("a masked part of a joint release that the data parties have debited"))
def open_sum(me: Party, *, layout: dict[str, Any], view: View, number: int, chosen: Chosen = None) -> Release:
    """This party's part of one opening with its noise, under pads with all others: uniform but for the sum of all."""
    statistic, paired = _read(me, layout, chosen)
    if not 0 <= number < len(statistic.openings):
        raise UnsafeRequest(f"this computation has no opening {number}.")
    once(me, f"{statistic.label} {number}")
    words = paired.addends(me, number, own_shares(me, statistic, paired)) + paired.noise(me, number)
    # Modulo 2^64 the multiples of 2^(64 - bits) are the integers modulo 2^bits: nothing else shows in a sum.
    shifted = (words << np.uint64(64 - paired.bits)).view(np.int64)
    peers = [name for name in me.roster.names if name != me.name]
    keys = {peer: me.pair_key(peer, f"pair {statistic.tag}") for peer in peers}
    value = masked(shifted, me=me.name, peers=peers, pair_keys=keys, label=pad_label(me.job, number), wraps=True)
    return Release(value, f"a masked part of {statistic.results}: only the sum of all can be read")


def drawn(me: Party, *, mu: int, size: int) -> Words:
    """This party's part of the noise of so many entries."""
    return noise_part(me, mu=mu, size=size).view(np.uint64)
