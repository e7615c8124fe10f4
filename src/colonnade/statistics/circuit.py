"""Sums over records of products of several parties' columns, on shares: what tables and polynomials have in common.

A product that enters another product first returns to degree t: every holder deals a fresh sharing of its share to
the whole committee (`CircuitStatistic.multiply`), which recombines them. Rows travel in chunks and wait at the holders
until the opening, so memory does not grow with n. A data party pays for all of it with its first chunk, which carries
its noise: nothing opens without it.
"""

from __future__ import annotations

import itertools
import math
from abc import abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from colonnade.errors import TooFewHolders, UnsafeRequest
from colonnade.federation.job import Job
from colonnade.federation.options import View
from colonnade.federation.party import Party
from colonnade.federation.stage import Later, Stage
from colonnade.secure.bgw import Product, cross, multiply, recombine, reshare
from colonnade.secure.claims import Factors, cross_factors, product_factors
from colonnade.secure.extension import Extension
from colonnade.secure.field import Field, Residues
from colonnade.statistics.joint import (
    PYTHON,
    HeldNoise,
    multiply_shares,
    opened_bytes,
    share_rows,
    too_little_memory,
)
from colonnade.statistics.pair import Paired, PairStages, Words, pair_within_memory
from colonnade.statistics.shares import blinds_of, deal, deal_noise, dealt
from colonnade.statistics.verified import VerifiedStages, proving_bytes

SHARE_BYTES = 1 << 23
"""One share of a chunk of rows, unless `memory` asks for less."""


@dataclass(frozen=True)
class Factor:
    """Columns `start` to `stop` of the rows that one party shares."""

    party: str
    start: int
    stop: int


Node = tuple[Factor, ...]


def node_size(node: Node) -> int:
    return math.prod(factor.stop - factor.start for factor in node)


@dataclass(frozen=True, kw_only=True)
class Circuit:
    """A public list of terms. A term is the sum over records of every product of one column of each of its factors (at
    least two), the last factor's columns counting fastest.

    Factors are multiplied in neighbouring pairs, so the depth is the logarithm of their number; products of the last
    pair are summed at degree 2t and need no reduction. `records` rows travel at a time (0: as many as `SHARE_BYTES`
    hold).
    """

    terms: tuple[Node, ...]
    n: int
    field: Field
    records: int

    @cached_property
    def widths(self) -> dict[str, int]:
        """Columns of the rows that each party shares."""
        widths: dict[str, int] = {}
        for factor in (factor for term in self.terms for factor in term):
            widths[factor.party] = max(factor.stop, widths.get(factor.party, 0))
        return widths

    @cached_property
    def levels(self) -> list[list[tuple[Node, Node]]]:
        """The pairs whose products return to degree t, level by level."""
        levels: list[dict[tuple[Node, Node], None]] = []
        for term in self.terms:
            for depth, pairs in enumerate(pairings(term)[0]):
                if depth == len(levels):
                    levels.append({})
                levels[depth].update(dict.fromkeys(pairs))
        return [list(level) for level in levels]

    @cached_property
    def level_widths(self) -> list[int]:
        """Columns of the products of each level."""
        return [sum(node_size(a + b) for a, b in level) for level in self.levels]

    @property
    def row_bytes(self) -> int:
        """One record in the largest message that a holder receives."""
        return 4 * len(self.field.primes) * max([1, *self.level_widths, *self.widths.values()])

    @cached_property
    def chunks(self) -> list[tuple[int, int]]:
        """The cohort's rows in chunks; one empty chunk if there is no term."""
        if not self.terms:
            return [(0, 0)]
        rows = self.records or max(1, SHARE_BYTES // self.row_bytes)
        return [(start, min(start + rows, self.n)) for start in range(0, self.n, rows)]


def pairings(term: Node) -> tuple[list[list[tuple[Node, Node]]], list[Node]]:
    """The products of each level, and the two nodes that are left for the last product."""
    nodes: list[Node] = [(factor,) for factor in term]
    levels = []
    while len(nodes) > 2:
        pairs = list(zip(nodes[::2], nodes[1::2], strict=False))
        levels.append(pairs)
        nodes = [a + b for a, b in pairs] + nodes[2 * len(pairs) :]
    return levels, nodes


@dataclass(frozen=True, kw_only=True)
class CircuitStatistic(HeldNoise):
    """A joint statistic whose terms are a circuit; everything is opened once.

    Mail has the tags "rows NUMBER", "products NUMBER LEVEL", and with the rows of chunk 0 "noise" (of every member) and
    "sums" (of the parties in `local`, which deal sums that lie within them).
    """

    records: int = 0
    """Cohort rows whose shares travel at a time; 0: as many as one share of `SHARE_BYTES` holds."""

    @property
    @abstractmethod
    def circuit(self) -> Circuit: ...

    @property
    @abstractmethod
    def local(self) -> Mapping[str, object]:
        """The parties that deal sums of their own, and which."""

    @property
    @abstractmethod
    def size(self) -> int:
        """Entries that are opened."""

    @property
    def cohort_bytes(self) -> int:
        """What a process holds for each record of the cohort, however small the chunks: keys, positions, masks."""
        return 32 * self.facts.n

    @abstractmethod
    def noise(self, me: Party) -> NDArray[np.int64]:
        """A member's part of the noise of all entries."""

    @abstractmethod
    def local_sums(self, me: Party) -> NDArray[Any]:
        """The sums that lie within a party; called once, with the first chunk."""

    @abstractmethod
    def shared_rows(self, me: Party, number: int) -> NDArray[Any]:
        """A party's columns that enter products, for one chunk of the cohort."""

    @property
    def chunks(self) -> list[tuple[int, int]]:
        return self.paired().chunks if self.roster.pair else self.circuit.chunks

    @property
    def openings(self) -> list[int]:
        return [self.size]

    @property
    def in_little_memory(self) -> bool:
        return self.records > 0

    # --- what members do ----------------------------------------------------------------------------------

    def begin(self, me: Party) -> None:
        """What a data party does before it shares any rows."""

    def share(self, me: Party, number: int) -> None:
        """Deal one chunk of one's own factors; with the first also the sums that lie within."""
        if number == 0:
            self.begin(me)
        if number == 0 and me.name in self.local:
            deal(me, f"{self.tag}: sums", self.field, self.local_sums(me))
        if me.name in self.circuit.widths:
            deal(me, f"{self.tag}: rows {number}", self.field, self.shared_rows(me, number))

    def share_noise(self, me: Party, number: int) -> None:
        deal_noise(me, f"{self.tag}: noise", self.field, self.noise(me), parts=bool(self.verify))

    def put_away(self, me: Party, number: int) -> None:
        self._put_away(me, number, len(self.circuit.levels))

    def _put_away(self, me: Party, number: int, level: int) -> None:
        """Keep what this request's mail brought of a chunk: its rows (level 0), or the products of a level."""
        if number == level == 0:
            blinds = blinds_of(me.roster, "noise") if self.verify else []
            for what in ("noise", "sums", *blinds):
                me.keep(f"{self.tag}: held {what}", self.held(me, what))
        me.keep(f"{self.tag}: chunk {number} level {level}", self._arrived(me, number, level))

    def multiply(self, me: Party, number: int, level: int) -> None:
        """Multiply the pairs of a level (from 1) in one chunk, and deal the products again."""
        if not 1 <= level <= len(self.circuit.levels):
            raise UnsafeRequest(f"this computation has no level {level} of products.")
        self._put_away(me, number, level - 1)
        nodes = self._nodes(me, number, level - 1)
        left, right = self._multiplied(nodes, level)
        # Fresh sharings, of degree t, of this holder's share of each product.
        shares = reshare(
            multiply(self.field, left, right),
            holders=len(me.roster.committee),
            threshold=me.roster.threshold,
            randomness=me.randomness,
        )
        for holder, residues in zip(me.roster.committee, shares, strict=True):
            me.send(holder, f"{self.tag}: products {number} {level}", residues)

    def _multiplied(self, nodes: Mapping[Node, Residues], level: int) -> tuple[Residues, Residues]:
        """What is multiplied in a level, element by element."""
        pairs = self.circuit.levels[level - 1]
        left = np.concatenate([np.repeat(nodes[a], node_size(b), axis=2) for a, b in pairs], axis=2)
        right = np.concatenate([np.tile(nodes[b], (1, 1, node_size(a))) for a, b in pairs], axis=2)
        return left, right

    def term_sums(self, me: Party) -> list[Product]:
        """This holder's share of every term, of degree 2t, summed over all chunks."""
        totals: list[Product] = []
        for number in range(len(self.chunks)) if self.circuit.terms else ():
            nodes = self._nodes(me, number, len(self.circuit.levels))
            for position, term in enumerate(self.circuit.terms):
                first, second = pairings(term)[1]
                product = cross(self.field, nodes[first], nodes[second])
                if number:
                    totals[position] = totals[position] + product
                else:
                    totals.append(product)
        return totals

    def held(self, me: Party, what: str) -> dict[str, Residues]:
        """What came with the first chunk: the noise of every member of the roster, or the sums of the local parties."""
        name = f"{self.tag}: held {what}"
        if me.kept(name):
            shares: dict[str, Residues] = me.recall(name)
            return shares
        return dealt(me, f"{self.tag}: {what}", list(self.local) if what == "sums" else me.roster.names, self.field)

    # --- what is verified ---------------------------------------------------------------------------------

    @property
    def claim_length(self) -> int:
        """A product for each record and term, and for each product that was dealt again; one of nothing if there is no
        term."""
        return max(1, self.circuit.n * (len(self.circuit.terms) + sum(self.circuit.level_widths)))

    @abstractmethod
    def term_vectors(self, extension: Extension, seed: bytes, side: int) -> list[Residues]:
        """For each term, the vector on which the left or the right node of its last product is projected."""

    @abstractmethod
    def sum_weights(self, extension: Extension, seed: bytes) -> dict[str, Residues]:
        """For each party in `local`, the weights of its sums in the combination of all openings."""

    def claim_factors(self, me: Party, extension: Extension, seed: bytes) -> Iterator[Factors]:
        if not self.circuit.terms:
            yield Factors(extension.zeros((1,)), extension.zeros((1,)))
            return
        vectors = list(zip(*(self.term_vectors(extension, seed, side) for side in (0, 1)), strict=True))
        for number in range(len(self.chunks)):
            nodes = self._nodes(me, number, len(self.circuit.levels))
            for term, (u, v) in zip(self.circuit.terms, vectors, strict=True):
                first, second = pairings(term)[1]
                yield cross_factors(extension, nodes[first], nodes[second], u, v)
            for level in range(1, len(self.circuit.levels) + 1):
                x, y = (factor.reshape(len(factor), -1) for factor in self._multiplied(nodes, level))
                yield product_factors(extension, x, y, self._product_weights(extension, seed, number, level))

    def _product_weights(self, extension: Extension, seed: bytes, number: int, level: int) -> Residues:
        """chi in sum chi x y = sum chi z, over the products z that were dealt again in one chunk."""
        start, stop = self.chunks[number]
        count = (stop - start) * self.circuit.level_widths[level - 1]
        return extension.uniform((count,), seed=seed, label=f"products {number} {level}")

    def claim_products(self, me: Party, extension: Extension, seed: bytes) -> Residues:
        totals = super().claim_products(me, extension, seed)
        for number in range(len(self.chunks)):
            for level in range(1, len(self.circuit.levels) + 1):
                weights = self._product_weights(extension, seed, number, level)
                dealt_again = me.recall(self._dealt_again(number, level))
                for place, holder in enumerate(me.roster.committee):
                    flat = dealt_again[holder].reshape(len(self.field.primes), -1)
                    totals[:, place] = extension.add(totals[:, place], extension.combine(flat, weights))
        return totals

    def _dealt_again(self, number: int, level: int) -> str:
        return f"{self.tag}: products {number} {level} of each holder"

    def claim_sums(self, me: Party, extension: Extension, seed: bytes) -> Residues:
        total, weights = extension.zeros(), self.sum_weights(extension, seed)
        for party, sums in self.held(me, "sums").items():
            total = extension.add(total, extension.combine(sums, weights[party]))
        return total

    def _nodes(self, me: Party, number: int, level: int) -> dict[Node, Residues]:
        """This holder's shares of all factors and of the products up to a level, for one chunk."""
        rows = dict(zip(self.circuit.widths, self._held_chunk(me, number, 0), strict=True))
        nodes: dict[Node, Residues] = {}
        for factor in {factor for term in self.circuit.terms for factor in term}:
            nodes[(factor,)] = rows[factor.party][:, :, factor.start : factor.stop]
        for depth in range(level):
            (products,) = self._held_chunk(me, number, depth + 1)
            start = 0
            for a, b in self.circuit.levels[depth]:
                nodes[a + b] = products[:, :, start : start + node_size(a + b)]
                start += node_size(a + b)
        return nodes

    def _held_chunk(self, me: Party, number: int, level: int) -> list[Residues]:
        """`_arrived`; for a verification, which needs it again, it is remembered if there is room."""
        start, stop = self.chunks[number]
        widths = self.circuit.level_widths[level - 1 : level] if level else self.circuit.widths.values()
        size = 4 * len(self.field.primes) * (stop - start) * sum(widths)
        if not self.remembers(size):
            return self._arrived(me, number, level)
        return me.remembered(
            f"{self.tag}: chunk {number} level {level}", size, lambda: self._arrived(me, number, level)
        )

    def _arrived(self, me: Party, number: int, level: int) -> list[Residues]:
        """One level of a chunk, as it was put away or from this request's mail."""
        name = f"{self.tag}: chunk {number} level {level}"
        if me.kept(name):
            shares: list[Residues] = me.recall(name)
            return shares
        if level == 0:
            rows = dealt(me, f"{self.tag}: rows {number}", list(self.circuit.widths), self.field)
            arrays, widths = list(rows.values()), list(self.circuit.widths.values())
        else:
            # Every holder has dealt its share of a product again; together they make a share of degree t.
            dealt_again = dealt(me, f"{self.tag}: products {number} {level}", me.roster.committee, self.field)
            if self.verify:
                me.keep(self._dealt_again(number, level), dealt_again)
            sharings = {position: dealt_again[holder] for position, holder in enumerate(me.roster.committee)}
            arrays = [recombine(self.field, sharings, threshold=me.roster.threshold)]
            widths = [self.circuit.level_widths[level - 1]]
        start, stop = self.chunks[number]
        if any(array.shape[1:] != (stop - start, width) for array, width in zip(arrays, widths, strict=True)):
            raise UnsafeRequest("a member shared an array of another shape than the layout says; nothing is opened.")
        return arrays


class PairedCircuit(Paired):
    """Terms of two factors, by parties in pairs: one factor is a party's own product already."""

    layout: CircuitStatistic

    @cached_property
    def places(self) -> dict[tuple[str, str], dict[Factor, slice]]:
        """{(party, other): where its factors of common terms stand among the columns that it brings to the other's}."""
        factors: dict[tuple[str, str], set[Factor]] = {}
        for term in self.layout.circuit.terms:
            if len(term) > 2:
                raise TooFewHolders(
                    f"a product of columns of {len(term)} parties multiplies shares more than once, which parties in"
                    " pairs cannot; take tables and products of columns of at most two parties each, or leave out"
                    ' committee = "pair", so that three parties hold shares.'
                )
            for factor, other in itertools.permutations(term):
                factors.setdefault((factor.party, other.party), set()).add(factor)
        return {
            two: consecutive({factor: factor.stop - factor.start for factor in sorted(own, key=lambda own: own.start)})
            for two, own in factors.items()
        }

    def encrypted_places(self, encrypter: str, multiplier: str) -> dict[Factor, slice]:
        """Where the encrypter's factors stand among what it encrypts."""
        return self.places[encrypter, multiplier]

    @cached_property
    def _widths(self) -> dict[tuple[str, str], int]:
        return {two: sum(factor.stop - factor.start for factor in own) for two, own in self.places.items()}

    def width(self, party: str, other: str) -> int:
        return self._widths.get((party, other), 0)

    def begin(self, me: Party) -> None:
        self.layout.begin(me)

    def rows(self, me: Party, number: int, other: str) -> NDArray[Any]:
        columns = [np.arange(factor.start, factor.stop) for factor in self.places[me.name, other]]
        return self.layout.shared_rows(me, number)[:, np.concatenate(columns)]

    def opened_size(self, number: int) -> int:
        return self.layout.size

    def own_sums(self, me: Party) -> NDArray[Any]:
        """The sums that lie within this party."""
        return self.layout.local_sums(me) if me.name in self.layout.local else np.zeros(0, dtype=np.int64)

    def share_of(self, me: Party, cross: Mapping[str, Words], term: Node) -> Words | None:
        """This party's share of a term, (columns of the encrypter, of the multiplier); None if it is of others."""
        own = {factor.party: factor for factor in term}
        if me.name not in own:
            return None
        encrypter, multiplier = self.roles(*own)
        left = self.encrypted_places(encrypter, multiplier)[own[encrypter]]
        right = self.places[multiplier, encrypter][own[multiplier]]
        return cross[multiplier if me.name == encrypter else encrypter][left, right]


def consecutive(sizes: Mapping[Factor, int]) -> dict[Factor, slice]:
    """Where factors of these sizes stand, one after the other."""
    ends = itertools.accumulate(sizes.values())
    return {factor: slice(end - size, end) for (factor, size), end in zip(sizes.items(), ends, strict=True)}


# --- the coordinator's side -------------------------------------------------------------------------------


class CircuitStages(VerifiedStages):
    """Share chunk by chunk, multiply level by level after each chunk, open once."""

    layout: CircuitStatistic
    stages: Sequence[Stage]

    def __init__(self, layout: CircuitStatistic, view: View, *, later: Mapping[str, Later] | None = None) -> None:
        super().__init__(layout, view, later=later)
        if layout.roster.pair:
            self.pair = PairStages(layout, view, later=self._later)
            self.stages = self.pair.stages
            return
        roster, circuit = layout.roster, layout.circuit
        chunks = range(len(circuit.chunks))
        self._levels = range(1, len(circuit.levels) + 1)
        row_bytes = circuit.row_bytes * max(stop - start for start, stop in circuit.chunks)
        opened = 4 * len(layout.field.primes) * layout.size
        self.share = self.stage(
            "share rows",
            share_rows,
            roster.names,
            [{"number": number} for number in chunks],
            discloses=f"secret shares of {layout.rows}, of sums and of noise",
            reply_bytes=len(roster.committee) * (row_bytes + 2 * opened),
        )
        self.multiply = self.stage(
            "multiply",
            multiply_shares,
            roster.committee,
            [{"number": number, "level": level} for number in chunks for level in self._levels],
            discloses=f"secret shares of products of the parties' {layout.rows}",
            reply_bytes=len(roster.committee) * row_bytes,
        )
        compare, opening = self.opening()
        stages = (self.share, self.multiply, compare, *self.verification(), opening)
        self.stages = tuple(stage for stage in stages if stage.costs)

    def compute(self, job: Job, **later: Any) -> NDArray[Any]:
        """Exact integers plus noise."""
        layout = self.layout.with_chosen(**later["chosen"]) if "chosen" in later else self.layout
        if layout.roster.pair:
            self.pair.ask_rows(job, **later)
            (opened,) = self.pair.all_opened(job, layout, **later)
            return opened
        for _ in layout.chunks:
            job.ask(self.share, **later)
            for _ in self._levels:
                job.ask(self.multiply, **later)
        if not layout.verify:
            return self.opened(job, **later)
        (opened,) = self.all_opened(job, layout, **later)
        return opened


# --- within the memory that the user allows ---------------------------------------------------------------

Layout = TypeVar("Layout", bound=CircuitStatistic)


def within_memory(layout: Layout, megabytes: float) -> Layout:
    """The same computation in chunks so small that coordinator and holders stay within so many MB.

    An upper bound, from the sizes of what is alive at the worst moment: arriving mail in four forms (the frame, the
    message, the sealed and the plain bytes), what is multiplied, and what is dealt to each holder at a holder; relayed
    mail in three forms at the coordinator; and for both a few arrays of residues for each entry that is opened.
    """
    if layout.roster.pair:
        return pair_within_memory(layout, megabytes, layout.cohort_bytes + 64 * layout.size)
    circuit, holders = layout.circuit, len(layout.roster.committee)
    width, widest = sum(circuit.widths.values()), max(circuit.widths.values(), default=0)
    level = max(circuit.level_widths, default=0)
    holder = 4 * width + (4 * holders + 3) * widest + (8 * holders + 4) * level
    relayed = 3 * holders * (width + holders * level)
    record = 4 * len(layout.field.primes) * max(holder, relayed)
    fixed = PYTHON + layout.cohort_bytes + proving_bytes(layout) + (opened_bytes(layout) + 16 * holders) * layout.size
    records = int(megabytes * (1 << 20) - fixed) // max(record, 1)
    if records < 1:
        raise too_little_memory(fixed + record)
    start, stop = layout.chunks[0]
    return replace(layout, records=records) if records < stop - start else layout
