"""Sums over records of products of several parties' columns, on shares: what tables and polynomials have in common.

A product that enters another product first returns to degree t: every holder deals a fresh sharing of its share to
the whole committee (`multiply_level`), which recombines them. Rows travel in chunks and wait at the holders until the
opening, so memory does not grow with n.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

import numpy as np

from colonnade.errors import UnsafeRequest
from colonnade.federation.party import Party
from colonnade.secure.bgw import Product, cross, multiply, recombine, reshare
from colonnade.secure.field import Field, Residues
from colonnade.statistics.joint import dealt


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
    pair are summed at degree 2t and need no reduction. `local` names the parties that also deal sums of their own, and
    `memory` is the size in bytes of one share in one round.

    Mail has the tags "rows NUMBER", and with the rows of chunk 0 "noise" (of every member) and "sums" (of `local`).
    """

    terms: tuple[Node, ...]
    local: tuple[str, ...]
    n: int
    field: Field
    tag: str
    memory: int

    @cached_property
    def widths(self) -> dict[str, int]:
        """Columns of the rows that each party shares."""
        found: dict[str, int] = {}
        for factor in (factor for term in self.terms for factor in term):
            found[factor.party] = max(factor.stop, found.get(factor.party, 0))
        return found

    @cached_property
    def levels(self) -> list[list[tuple[Node, Node]]]:
        """The pairs whose products return to degree t, level by level."""
        found: list[dict[tuple[Node, Node], None]] = []
        for term in self.terms:
            for depth, pairs in enumerate(_pairings(term)[0]):
                if depth == len(found):
                    found.append({})
                found[depth].update(dict.fromkeys(pairs))
        return [list(level) for level in found]

    @cached_property
    def level_width(self) -> int:
        """Columns of the widest level."""
        return max((sum(node_size(a + b) for a, b in level) for level in self.levels), default=0)

    @property
    def row_bytes(self) -> int:
        """One record in the largest message that a holder receives."""
        return 4 * len(self.field.primes) * max(1, self.level_width, *self.widths.values())

    @cached_property
    def chunks(self) -> list[tuple[int, int]]:
        """The cohort's rows in chunks whose shares fit `memory`; one empty chunk if there is no term."""
        if not self.terms:
            return [(0, 0)]
        rows = max(1, self.memory // self.row_bytes)
        return [(start, min(start + rows, self.n)) for start in range(0, self.n, rows)]

    def chunk(self, number: int) -> tuple[int, int]:
        if not 0 <= number < len(self.chunks):
            raise UnsafeRequest(f"this computation has no chunk {number} of rows.")
        return self.chunks[number]


def _pairings(term: Node) -> tuple[list[list[tuple[Node, Node]]], list[Node]]:
    """The products of each level, and the two nodes that are left for the last product."""
    nodes: list[Node] = [(factor,) for factor in term]
    levels = []
    while len(nodes) > 2:
        pairs = list(zip(nodes[::2], nodes[1::2], strict=False))
        levels.append(pairs)
        nodes = [a + b for a, b in pairs] + nodes[2 * len(pairs) :]
    return levels, nodes


def put_away(me: Party, circuit: Circuit, number: int, level: int) -> None:
    """Keep what this request's mail brought of a chunk: its rows (level 0), or the products of a level."""
    if number == level == 0:
        for what in ("noise", "sums"):
            me.keep(f"{circuit.tag}: held {what}", held(me, circuit, what))
    me.keep(f"{circuit.tag}: chunk {number} level {level}", _arrived(me, circuit, number, level))


def multiply_level(me: Party, circuit: Circuit, number: int, level: int) -> None:
    """Multiply the pairs of a level (from 1) in one chunk, and deal the products again."""
    circuit.chunk(number)
    if not 1 <= level <= len(circuit.levels):
        raise UnsafeRequest(f"this computation has no level {level} of products.")
    put_away(me, circuit, number, level - 1)
    nodes = _nodes(me, circuit, number, level - 1)
    pairs = circuit.levels[level - 1]
    left = np.concatenate([np.repeat(nodes[a], node_size(b), axis=2) for a, b in pairs], axis=2)
    right = np.concatenate([np.tile(nodes[b], (1, 1, node_size(a))) for a, b in pairs], axis=2)
    _reduce_degree(me, f"{circuit.tag}: products {number} {level}", multiply(circuit.field, left, right))


def term_sums(me: Party, circuit: Circuit) -> list[Product]:
    """This holder's share of every term, of degree 2t, summed over all chunks."""
    totals: list[Product] = []
    for number in range(len(circuit.chunks)) if circuit.terms else ():
        nodes = _nodes(me, circuit, number, len(circuit.levels))
        for position, term in enumerate(circuit.terms):
            first, second = _pairings(term)[1]
            product = cross(circuit.field, nodes[first], nodes[second])
            if number:
                totals[position] = totals[position] + product
            else:
                totals.append(product)
    return totals


def held(me: Party, circuit: Circuit, what: Literal["noise", "sums"]) -> dict[str, Residues]:
    """What came with the first chunk: the noise of every member of the roster, or the sums of the local parties."""
    name = f"{circuit.tag}: held {what}"
    if me.kept(name):
        kept: dict[str, Residues] = me.recall(name)
        return kept
    return dealt(me, f"{circuit.tag}: {what}", me.roster.names if what == "noise" else circuit.local, circuit.field)


def _nodes(me: Party, circuit: Circuit, number: int, level: int) -> dict[Node, Residues]:
    """This holder's shares of all factors and of the products up to a level, for one chunk."""
    rows = dict(zip(circuit.widths, _arrived(me, circuit, number, 0), strict=True))
    nodes: dict[Node, Residues] = {}
    for factor in {factor for term in circuit.terms for factor in term}:
        nodes[(factor,)] = rows[factor.party][:, :, factor.start : factor.stop]
    for depth in range(level):
        (products,) = _arrived(me, circuit, number, depth + 1)
        start = 0
        for a, b in circuit.levels[depth]:
            nodes[a + b] = products[:, :, start : start + node_size(a + b)]
            start += node_size(a + b)
    return nodes


def _arrived(me: Party, circuit: Circuit, number: int, level: int) -> list[Residues]:
    """One level of a chunk, as it was put away or from this request's mail."""
    name = f"{circuit.tag}: chunk {number} level {level}"
    if me.kept(name):
        kept: list[Residues] = me.recall(name)
        return kept
    if level == 0:
        rows = dealt(me, f"{circuit.tag}: rows {number}", list(circuit.widths), circuit.field)
        got, widths = list(rows.values()), list(circuit.widths.values())
    else:
        got = [_reduced(me, f"{circuit.tag}: products {number} {level}", circuit.field)]
        widths = [sum(node_size(a + b) for a, b in circuit.levels[level - 1])]
    start, stop = circuit.chunk(number)
    if any(one.shape[1:] != (stop - start, width) for one, width in zip(got, widths, strict=True)):
        raise UnsafeRequest("a member shared an array of another shape than the layout says; nothing is opened.")
    return got


def _reduce_degree(me: Party, tag: str, product: Product) -> None:
    """Deal this holder's share of a product to the committee again, as a fresh sharing of degree t."""
    committee = me.roster.committee
    if me.name not in committee:
        raise UnsafeRequest(f"{me.name!r} is not in the committee of the roster and holds no shares.")
    shares = reshare(product, holders=len(committee), threshold=me.roster.threshold, randomness=me.randomness)
    for holder, one in zip(committee, shares, strict=True):
        me.send(holder, tag, one)


def _reduced(me: Party, tag: str, field: Field) -> Residues:
    """This holder's share, of degree t, of a product that every holder has dealt again."""
    got = dealt(me, tag, me.roster.committee, field)
    messages = {position: got[holder] for position, holder in enumerate(me.roster.committee)}
    return recombine(field, messages, threshold=me.roster.threshold)
