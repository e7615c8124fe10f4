"""Two institutions without a third: the same joint statistics, from additive shares under lattice encryption.

Where the roster is a pair there are no share holders. The party with fewer columns encrypts its rows chunk by chunk;
the other multiplies them with its own (`secure.bfv`), and both hold shares, modulo 2^bits, of all products between
them. What lies within a party it computes alone. Each adds its part of the noise to its own share, and the coordinator
gets the two shares under a common pad, so that it reads their sum and nothing else. Every statistic whose parties bring
one factor each can be computed so: Gram matrices, tables, sums of monomials. `pair.claim.md` says what is claimed, and
what a party that deviates can do.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from fractions import Fraction
from functools import cached_property
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

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
AUDIENCE = "the other party (encrypted and sealed)"

Words = NDArray[np.uint64]
"""Integers modulo 2^64."""


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


# --- a statistic as a pair computes it --------------------------------------------------------------------


class Paired(ABC):
    """A joint statistic of one product between two parties: `SharedStatistic.paired` makes it."""

    def __init__(self, layout: SharedStatistic) -> None:
        self.layout = layout

    @property
    @abstractmethod
    def widths(self) -> Mapping[str, int]:
        """Columns that each party brings to products with the other's."""

    @property
    def copies(self) -> int:
        """Patterns of records for each of which the multiplying party brings its columns, with zeros elsewhere."""
        return 1

    @property
    def encrypted(self) -> int:
        """Columns of the encrypter as they are encrypted: fewer, if several are digits of one."""
        assert self.roles is not None
        return self.widths[self.roles[0]]

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
    def rows(self, me: Party, number: int) -> NDArray[np.integer[Any]]:
        """This party's columns for one of the `chunks` of the cohort."""

    @property
    def shows_masks(self) -> bool:
        """Whether the parties show each other who has which record, where presence is known."""
        return False

    def masks(self, me: Party) -> NDArray[np.uint8]:
        """The masks that this party shows the other, eight records in a byte."""
        raise UnsafeRequest("this computation shows no masks.")

    def settle(self, me: Party) -> None:  # noqa: B027
        """Compute what lies within this party, while the other multiplies."""

    @abstractmethod
    def addends(self, me: Party, number: int, cross: Words) -> Words:
        """This party's part of one opening without noise: what lies within it, and its shares `cross` of all products
        (columns of the encrypter, columns of the multiplier)."""

    @abstractmethod
    def noise(self, me: Party, number: int) -> Words:
        """This party's part of the noise of one opening, as it is added to its part."""

    @property
    def share_name(self) -> str:
        """Under which a party keeps its share of all products."""
        return f"{self.layout.tag}: share"

    @abstractmethod
    def opened_size(self, number: int) -> int:
        """Words of one opening."""

    def results(self, number: int, words: NDArray[np.int64]) -> NDArray[np.int64]:
        """The entries of an opening, from the total of both parties' words."""
        return words

    # --- who does what ------------------------------------------------------------------------------------

    @cached_property
    def roles(self) -> tuple[str, str] | None:
        """(Who encrypts, who multiplies): the party with fewer columns encrypts. None if one of them has none."""
        names = sorted(self.layout.roster.names, key=lambda name: self.widths.get(name, 0))
        return None if not self.widths.get(names[0]) else (names[0], names[1])

    @cached_property
    def product(self) -> CrossProduct | None:
        if self.roles is None:
            return None
        _, multiplier = self.roles
        return CrossProduct(
            records=self.layout.facts.n,
            left=self.encrypted,
            right=self.widths[multiplier] * self.copies,
            bound=self.bound(multiplier),
            bits=self.bits,
        )

    @cached_property
    def chunks(self) -> list[tuple[int, int]]:
        """The cohort's rows in ranges that fill whole ciphertexts; one empty range if there is no product."""
        if self.product is None:
            return [(0, 0)]
        packed = sum(group.packed for group in self.product.groups)
        rows, n = DEGREE * max(1, MAIL // (CIPHERTEXT_BYTES * packed)), self.layout.facts.n
        return [(start, min(start + rows, n)) for start in range(0, n, rows)]

    @property
    def trust(self) -> str:
        """What a plan says that this rests on."""
        within = (
            "Computed by two institutions alone, with no third: each learns what is opened and nothing else of the"
            " other's records, if both follow the protocol"
        )
        if self.roles is None:
            return f"{within}; there is no product between them. Not verified: either could change the result unseen."
        encrypter, multiplier = self.roles
        return (
            f"{within} and ring learning with errors is hard (BFV at 128 bits; {encrypter!r} encrypts, {multiplier!r}"
            " multiplies, within 2^-40 of revealing nothing). Not verified: either could change the result unseen, and"
            f" {encrypter!r} could read columns of {multiplier!r} by a malformed key or ciphertext."
        )


Layout = TypeVar("Layout", bound=SharedStatistic)


def pair_within_memory(layout: Layout, megabytes: float, opened: int) -> Layout:
    """The same computation, if it fits: ciphertexts of one chunk in some copies, the sums of all, what is opened."""
    product = layout.paired().product
    sums = 0 if product is None else 3 * 8 * len(product.groups) * len(product.primes) * DEGREE * product.right
    needed = PYTHON + 12 * MAIL + 32 * layout.facts.n + sums + opened
    if needed > megabytes * (1 << 20):
        raise too_little_memory(needed)
    return layout


# --- the coordinator's side -------------------------------------------------------------------------------


class PairStages(JointStages):
    """Exchange rows, then open: two stages, of as many requests as there are chunks and one more, and openings."""

    def __init__(self, layout: SharedStatistic, view: View, *, later: Mapping[str, Later] | None = None) -> None:
        super().__init__(layout, view, later=later)
        paired = layout.paired()
        rows = max(stop - start for start, stop in paired.chunks)
        ciphertexts = paired.product.ciphertexts(rows) if paired.product is not None else 0
        returned = paired.product.returned_bytes if paired.product is not None else 0
        if paired.product is not None:
            ready()
        names = layout.roster.names
        self.exchange = self.stage(
            "exchange rows",
            exchange_rows,
            names,
            [{"number": number} for number in range(len(paired.chunks) + 1)],
            audience=AUDIENCE,
            recipients=names,
            discloses=f"encrypted {layout.rows}, and masked products of them"
            + ("; which records a party has" if paired.shows_masks else ""),
            reply_bytes=max(CIPHERTEXT_BYTES * ciphertexts, returned),
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
    """One opening, from the two masked parts."""
    paired = layout.paired()
    total = unmask_sum(job.ask(opening, **later).items(), parties=layout.roster.names)
    integers = paired.results(number, total >> (64 - paired.bits))
    job.released[f"{layout.label}, opening {len(job.released)}"] = integers
    return integers


# --- the members' steps -----------------------------------------------------------------------------------


def _read(me: Party, layout: Mapping[str, Any], chosen: Chosen) -> tuple[SharedStatistic, Paired]:
    statistic = read_statistic(me, layout, chosen)
    if not me.roster.pair:
        raise UnsafeRequest("the roster has share holders, and no pair computes alone.")
    return statistic, statistic.paired()


def _other(me: Party) -> str:
    (other,) = (name for name in me.roster.names if name != me.name)
    return other


def masks_name(statistic: SharedStatistic) -> str:
    """Under which a party keeps the masks of the other."""
    return f"{statistic.tag}: masks"


@step(cost=share_cost)
def exchange_rows(me: Party, *, layout: dict[str, Any], view: View, number: int, chosen: Chosen = None) -> Release:
    """Encrypt one chunk of rows, or multiply the chunk before it; with the last, mask and return all products."""
    statistic, paired = _read(me, layout, chosen)
    if not 0 <= number <= len(paired.chunks):
        raise UnsafeRequest(f"this computation has no chunk of rows {number}.")
    other, last = _other(me), number == len(paired.chunks)
    if number == 0 and me.name in statistic.parties:
        paired.begin(me)
    if number == 0 and paired.shows_masks:
        me.send(other, f"{statistic.tag}: masks", paired.masks(me))
    if number == 1 and paired.shows_masks:
        me.keep(masks_name(statistic), received_from(me, f"{statistic.tag}: masks", [other])[other])
    if paired.product is not None and paired.roles is not None:
        if me.name == paired.roles[0] and not last:
            _encrypt(me, statistic, paired, paired.product, number)
        elif me.name == paired.roles[1] and number:
            _multiply(me, statistic, paired, paired.product, number - 1, last=last)
        elif last:
            paired.settle(me)
    return Release(None, "nothing: ciphertexts travel sealed")


def _encrypt(me: Party, statistic: SharedStatistic, paired: Paired, product: CrossProduct, number: int) -> None:
    secret = f"{statistic.tag}: secret key"
    encrypter = Encrypter(product, me.recall(secret) if number else None)
    if number == 0:
        me.keep(secret, encrypter.to_bytes())
        me.send(_other(me), f"{statistic.tag}: key", encrypter.public())
    me.send(_other(me), f"{statistic.tag}: rows {number}", encrypter.encrypt(paired.rows(me, number)))


def _multiply(
    me: Party, statistic: SharedStatistic, paired: Paired, product: CrossProduct, number: int, *, last: bool
) -> None:
    tag, other = statistic.tag, _other(me)
    if number == 0:
        me.keep(f"{tag}: key of the other", received_from(me, f"{tag}: key", [other])[other])
    ciphertexts = received_from(me, f"{tag}: rows {number}", [other])[other]
    if not isinstance(ciphertexts, list):
        raise UnsafeRequest(f"{other!r} sent something other than ciphertexts; nothing is computed from it.")
    multiplier = Multiplier(product, me.recall(f"{tag}: products") if number else None)
    multiplier.add(paired.rows(me, number), ciphertexts)
    if not last:
        me.keep(f"{tag}: products", multiplier.state)
        return
    returned, share = multiplier.finish(me.recall(f"{tag}: key of the other"), me.randomness)
    me.send(other, f"{tag}: masked products", returned)
    me.keep(paired.share_name, share)


def own_share(me: Party, statistic: SharedStatistic, paired: Paired) -> Words:
    """This party's share of all products: its masks, or what it decrypts."""
    name, product = paired.share_name, paired.product
    if product is None or paired.roles is None:
        return np.zeros((0, 0), dtype=np.uint64)
    if not me.kept(name):
        if me.name != paired.roles[0]:
            raise UnsafeRequest("the products are not computed yet; nothing is opened.")
        (returned,) = received_from(me, f"{statistic.tag}: masked products", [_other(me)]).values()
        if not isinstance(returned, dict):
            raise UnsafeRequest("products came back in another form than the protocol's; nothing is opened.")
        secret = me.recall(f"{statistic.tag}: secret key")
        me.keep(name, Encrypter(product, secret).decrypt(returned))
    share: Words = me.recall(name)
    return share


@step(cost=Free("a masked part of a joint release that the data parties have debited"))
def open_sum(me: Party, *, layout: dict[str, Any], view: View, number: int, chosen: Chosen = None) -> Release:
    """This party's part of one opening with its noise, under the pad of the pair: uniform but for the sum of both."""
    statistic, paired = _read(me, layout, chosen)
    if not 0 <= number < len(statistic.openings):
        raise UnsafeRequest(f"this computation has no opening {number}.")
    once(me, f"{statistic.label} {number}")
    words = paired.addends(me, number, own_share(me, statistic, paired)) + paired.noise(me, number)
    # Modulo 2^64 the multiples of 2^(64 - bits) are the integers modulo 2^bits: nothing else shows in a sum.
    shifted = (words << np.uint64(64 - paired.bits)).view(np.int64)
    other = _other(me)
    keys = {other: me.pair_key(other, f"pair {statistic.tag}")}
    value = masked(shifted, me=me.name, peers=[other], pair_keys=keys, label=pad_label(me.job, number), wraps=True)
    return Release(value, f"a masked part of {statistic.results}: only the sum of both can be read")


def drawn(me: Party, *, mu: int, size: int) -> Words:
    """This party's part of the noise of so many entries."""
    return noise_part(me, mu=mu, size=size).view(np.uint64)
