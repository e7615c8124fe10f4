"""Moments by parties in pairs: products of two parties' columns by lattice encryption, all others at home."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from colonnade.errors import UnsafeRequest
from colonnade.federation.party import Party
from colonnade.statistics.pair import Paired, Words, bits_for, drawn, masks_name

if TYPE_CHECKING:
    from colonnade.statistics.moments import MomentsLayout


class PairedMoments(Paired):
    """Each party computes the products of its own columns, with the constant, alone; those between two parties are
    computed for every pattern in which both are present."""

    layout: MomentsLayout

    @cached_property
    def _crossings(self) -> dict[frozenset[str], list[int]]:
        """For every two parties the patterns with columns of both."""
        crossings: dict[frozenset[str], list[int]] = {}
        for pattern in range(len(self.layout.masks)):
            present = [party for party in self.layout.parties if self._own(pattern, party)[0].size]
            for two in itertools.combinations(present, 2):
                crossings.setdefault(frozenset(two), []).append(pattern)
        return crossings

    def _crossing(self, party: str, other: str) -> list[int]:
        return self._crossings.get(frozenset((party, other)), [])

    def width(self, party: str, other: str) -> int:
        return self.layout.width(party) if self._crossing(party, other) else 0

    def multiplied(self, encrypter: str, multiplier: str) -> int:
        return self.layout.width(multiplier) * len(self._crossing(encrypter, multiplier))

    def bound(self, party: str) -> int:
        return self.layout.gamma

    @cached_property
    def bits(self) -> int:
        return bits_for(self.layout.facts.n * self.layout.gamma**2, self.layout.mu, self.layout.roster)

    @property
    def _constant(self) -> bool:
        return self.layout.constant and self.layout.presence != "secret"

    def _own(self, pattern: int, party: str) -> tuple[NDArray[np.intp], NDArray[np.intp]]:
        """Which entries of a pattern are columns of a party, and which of its columns these are."""
        layout = self.layout
        start = sum(map(layout.width, layout.parties[: layout.parties.index(party)])) + int(self._constant)
        shown = layout.shown(layout.masks[pattern])
        places = np.flatnonzero((shown >= start) & (shown < start + layout.width(party)))
        return places, shown[places] - start

    # --- rows and masks -----------------------------------------------------------------------------------

    @cached_property
    def _ranges(self) -> list[tuple[int, int]]:
        return self.chunks if self.products else self.layout.chunks

    def _quantised(self, me: Party, number: int) -> NDArray[np.integer[Any]]:
        """Rounded once: what lies within a party and what it brings to products are of the same integers, or a record
        could move the result by more than its sensitivity."""
        name = f"{self.layout.tag}: own rows {number}"
        if not me.kept(name):
            me.keep(name, self.layout.quantised(me, number, self._ranges))
        rows: NDArray[np.integer[Any]] = me.recall(name)
        return rows

    def rows(self, me: Party, number: int, other: str) -> NDArray[np.integer[Any]]:
        rows = self._quantised(me, number)
        if me.name == self.roles(me.name, other)[0] or self.layout.presence != "known":
            return rows
        present = self._present(me)[:, slice(*self._ranges[number])]
        patterns = self._crossing(me.name, other)
        return np.concatenate([rows * self.layout.matching(present, pattern)[:, None] for pattern in patterns], axis=1)

    @property
    def shows_masks(self) -> bool:
        return self.layout.presence == "known" and len(self.layout.parties) > 1

    def masks(self, me: Party) -> NDArray[np.uint8]:
        return np.packbits(self.layout.own_masks(me), axis=1)

    def _present(self, me: Party) -> NDArray[np.bool_]:
        """Which party has which record, and below which cells are filled: (unit, record), in the order of `masks`."""
        layout, masks = self.layout, dict[str, NDArray[np.bool_]]()
        for party in layout.parties:
            if party == me.name:
                masks[party] = layout.own_masks(me)
                continue
            bits = me.recall(masks_name(layout, party))
            expected = (1 + len(layout.own_masked(party)), -(-layout.facts.n // 8))
            if not isinstance(bits, np.ndarray) or bits.dtype != np.uint8 or bits.shape != expected:
                raise UnsafeRequest(f"{party!r} sent a mask of another length than the layout says; nothing is opened.")
            masks[party] = np.unpackbits(bits, axis=1, count=layout.facts.n).astype(bool)
        return np.concatenate(
            [*(mask[:1] for mask in masks.values()), *(mask[1:] for mask in masks.values()), layout.in_folds]
        )

    # --- what a party adds to an opening ------------------------------------------------------------------

    def settle(self, me: Party) -> None:
        self._within(me)

    def _within(self, me: Party) -> list[Words]:
        """For each pattern the Gram matrix of a party's own columns and the constant, zero elsewhere."""
        layout, name = self.layout, f"{self.layout.tag}: within"
        if me.kept(name):
            matrices: list[Words] = me.recall(name)
            return matrices
        totals = [np.zeros((len(layout.entries(mask)),) * 2, dtype=np.uint64) for mask in layout.masks]
        takes_part = me.name in layout.parties
        present = self._present(me) if takes_part and layout.presence == "known" else None
        for chunk, (start, stop) in enumerate(self._ranges) if takes_part else ():
            rows = self._quantised(me, chunk)
            for pattern, total in enumerate(totals):
                places, columns = self._own(pattern, me.name)
                used = rows if present is None else rows[self.layout.matching(present[:, start:stop], pattern)]
                own = used[:, columns]
                total[np.ix_(places, places)] += _integer_gram(own, layout.gamma)
                if self._constant:
                    sums = (layout.gamma * own.sum(axis=0, dtype=np.int64)).view(np.uint64)
                    total[0, places] += sums
                    total[places, 0] += sums
                    if me.name == layout.parties[0]:
                        total[0, 0] += np.uint64(layout.gamma**2 * len(own))
        me.keep(name, totals)
        return totals

    def addends(self, me: Party, number: int, cross: Mapping[str, Words]) -> Words:
        layout, matrices = self.layout, [matrix.copy() for matrix in self._within(me)]
        for other, share in cross.items():
            encrypter, multiplier = self.roles(me.name, other)
            for copy, pattern in enumerate(self._crossing(me.name, other)):
                (left, rows), (right, columns) = self._own(pattern, encrypter), self._own(pattern, multiplier)
                block = share[np.ix_(rows, copy * layout.width(multiplier) + columns)]
                matrices[pattern][np.ix_(left, right)] += block
                matrices[pattern][np.ix_(right, left)] += block.T
        parts = []
        for tile in layout.rounds[number]:
            block = matrices[tile.pattern][slice(*tile.rows), slice(*tile.columns)]
            parts.append(block[np.triu_indices(len(block))] if tile.diagonal else block.reshape(-1))
        return np.concatenate(parts)

    def noise(self, me: Party, number: int) -> Words:
        return drawn(me, mu=self.layout.mu, size=self.layout.openings[number])

    def opened_size(self, number: int) -> int:
        return self.layout.openings[number]


def _integer_gram(rows: NDArray[np.integer[Any]], largest: int) -> Words:
    """X'X modulo 2^64: through float64, in blocks whose sums are at most 2^53."""
    total = np.zeros((rows.shape[1],) * 2, dtype=np.int64)
    block = max(1, 2**53 // largest**2)
    for start in range(0, len(rows), block):
        exact = rows[start : start + block].astype(np.float64)
        total += (exact.T @ exact).astype(np.int64)
    return total.view(np.uint64)
