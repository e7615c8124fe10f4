"""What the share holders prove of presence-weighted moments, and of group influences: each as one inner product.

With y_b = x_b v_b for the columns x_b of each party (v random vectors over K), every claim about a record is bilinear
in the y_b and in other shares, so that the claims of all pairs come down to one product for each record and party:

- *Weighted moments*, opened as z_a' x_b for z = w x, the products by a weight that were dealt again: u' (z_a' x_b) v is
  the sum over records of (z_a u) y_b. Every pair of parties has u of its own.
- *Products dealt again*: sum psi_r d_p v_k z = sum over records of psi_r (sum over pairs p of d_p w_p) y_a.
- *Sums of products by group* (influences are public linear forms of these): a holder deals G = sum_g psi_g S_g, the
  sums of all groups combined by a first challenge, and proves e v' G v = sum over records of psi_g e (y_0 + y_1 +
  ...)^2 for each pattern, and the same as above for each pair. That the influences are the forms of such sums is then
  linear in what was dealt.

The monomials of these claims differ, so that their sum is 0 for random values only if each is.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from colonnade.federation.party import Party
from colonnade.models.linear.propensity import Pair
from colonnade.secure.claims import Factors, cross_weights, gram_weights
from colonnade.secure.extension import Extension
from colonnade.secure.field import BATCH_ROWS, Residues

if TYPE_CHECKING:
    from colonnade.models.linear.weighted import WeightedLayout


class PairProof:
    """The random values of one challenge, and what a holder makes of them and its shares."""

    def __init__(self, layout: WeightedLayout, extension: Extension, seed: bytes) -> None:
        self.layout, self.extension, self.seed = layout, extension, seed

    def _uniform(self, label: str, *shape: int) -> Residues:
        return self.extension.uniform(shape, seed=self.seed, label=label)

    @cached_property
    def columns(self) -> dict[str, Residues]:
        """v, of each party; the response holder's begin with that of the constant."""
        layout = self.layout
        widths = {party: layout.width(party) for party in layout.others} | {layout.response_party: layout.own_width}
        return {party: self._uniform(f"columns of {party}", widths[party]) for party in layout.parties}

    @cached_property
    def products(self) -> dict[tuple[Pair, str], Residues]:
        """u, of the products of each pair with each of its parties."""
        layout = self.layout
        return {
            (pair, party): self._uniform(f"products {pair} of {party}", layout.width(party))
            for pair in layout.pairs
            for party in layout.pair_parties(pair)
        }

    @cached_property
    def pairs(self) -> Residues:
        """d, of each pair."""
        return self._uniform("pairs", len(self.layout.pairs))

    def records(self, block: int) -> Residues:
        """psi, of the records of a block."""
        return self._uniform(f"records of block {block}", BATCH_ROWS)

    def term_weights(self) -> list[Residues]:
        """u_i v_j for the entries of each term."""
        return [
            cross_weights(self.extension, self.products[pair, first], self.columns[second])
            for pair, (first, second) in self.layout.terms
        ]

    def pattern_weights(self, mask: tuple[bool, ...]) -> Residues:
        """v_i v_j for the triangle of (1, the columns of a pattern)."""
        layout, response = self.layout, self.layout.response_party
        parts = [self.columns[response][:, :1]]
        for has, party in zip(mask, layout.parties, strict=True):
            if has:
                parts.append(self.columns[party][:, 1:] if party == response else self.columns[party])
        return gram_weights(self.extension, np.concatenate(parts, axis=1))

    # --- products of records ------------------------------------------------------------------------------

    def factors(
        self,
        me: Party,
        *,
        groups: tuple[NDArray[np.intp], Residues] | None = None,
        patterns: Mapping[tuple[bool, ...], Residues] | None = None,
    ) -> Iterator[Factors]:
        """For each block of records and each party, what y_b is multiplied by, and y_b; of the records that the party
        and the response holder have.

        `groups` are the group of each record and the weight of each group; `patterns` have the weights e."""
        layout, extension, field = self.layout, self.extension, self.extension.field
        multiplied, has, response = layout.multiplied_pairs(me), layout.with_response(me), layout.response_party
        for first, rows, weighted in layout.weighted_blocks(me):
            count = rows[response].shape[1]
            present = {party: np.flatnonzero(own[first : first + count]) for party, own in has.items()}
            places = {party: _places(own, count) for party, own in present.items()}
            right = {
                party: self._projected(rows[party][:, present[party], : vector.shape[1]], vector)
                for party, vector in self.columns.items()
            }
            left = {party: extension.zeros((len(own),)) for party, own in present.items()}
            weights = {party: field.zeros((len(present[party]), len(layout.pairs))) for party in layout.others}
            for place, pair in enumerate(layout.pairs):
                if pair not in weighted:
                    continue
                records, products = weighted[pair]
                own, *other = self._pair_projections(pair, products)
                second = layout.others[pair[1]]
                extension.add_at(left[second], places[second][records], own)
                for part in (own, *other):
                    extension.add_at(left[response], places[response][records], part)
                if pair in multiplied:
                    column = rows[response][:, records, layout.own_width + place]
                    for party in layout.pair_parties(pair):
                        weights[party][:, places[party][records], place] = column
            if patterns is not None:
                shown = np.array([own[first : first + count] for own in has.values()])
                self._add_patterns(left, right, present, places, shown, patterns)
            if groups is not None:
                group = groups[0][first : first + count]
                left = {party: extension.mul_each(own, groups[1], group[present[party]]) for party, own in left.items()}
            psi = self.records(first // BATCH_ROWS)
            for party, held in weights.items():
                by_pair = self._projected(held, self.pairs)
                every = np.arange(len(present[party]))
                extension.add_at(left[party], every, extension.mul_each(by_pair, psi, present[party]))
            for party in layout.parties:
                yield Factors(left[party], right[party])

    def _projected(self, rows: Residues, vector: Residues) -> Residues:
        return self.extension.project_groups(rows, vector, [slice(0, rows.shape[2])])[:, :, 0]

    def _pair_projections(self, pair: Pair, products: Residues) -> list[Residues]:
        """z u, of each party of a pair."""
        vectors = [self.products[pair, party] for party in self.layout.pair_parties(pair)]
        ends = np.cumsum([vector.shape[1] for vector in vectors])
        groups = [slice(int(end) - vector.shape[1], int(end)) for end, vector in zip(ends, vectors, strict=True)]
        projected = self.extension.project_groups(products, np.concatenate(vectors, axis=1), groups)
        return [projected[:, :, place] for place in range(len(vectors))]

    def _add_patterns(
        self,
        left: dict[str, Residues],
        right: Mapping[str, Residues],
        present: Mapping[str, NDArray[np.intp]],
        places: Mapping[str, NDArray[np.intp]],
        shown: NDArray[np.bool_],
        patterns: Mapping[tuple[bool, ...], Residues],
    ) -> None:
        """e (y_0 + y_1 + ...) of the parties that a record has (`shown`), for each of these parties."""
        extension, response = self.extension, self.layout.response_party
        bits = 1 << np.arange(len(shown))
        scales = extension.zeros((1 << len(shown),))  # 0 for a pattern whose sums are not used
        for mask, weight in patterns.items():
            scales[:, int(bits @ np.array(mask))] = weight
        total = right[response].copy()
        for party in self.layout.others:
            extension.add_at(total, places[response][present[party]], right[party])
        total = extension.mul_each(total, scales, (bits @ shown)[present[response]])
        for party, own in present.items():
            extension.add_at(left[party], np.arange(len(own)), total[:, places[response][own]])

    # --- products that were dealt again ---------------------------------------------------------------------

    def dealt_again(self, me: Party) -> Residues:
        """sum psi_r d_p v_k z, over the products z that each holder has dealt again: (primes, holders, 3)."""
        layout, extension = self.layout, self.extension
        records = layout.multiplied_pairs(me)
        total = extension.zeros((len(me.roster.committee),))
        vectors = {pair: self._dealt_vector(pair) for pair in records}
        for part in range(layout.parts):
            inside = {pair: own[layout.in_part(own, part)] for pair, own in records.items()}
            inside = {pair: own for pair, own in inside.items() if own.size}
            if not inside:
                continue
            weights = self._record_weights(list(inside.values()))
            for holder, products in enumerate(layout.dealt_products(me, part)):
                projected = [self._projected(products[pair], vectors[pair]) for pair in inside]
                summed = extension.inner(np.concatenate(projected, axis=1), weights)
                total[:, holder] = extension.add(total[:, holder], summed)
        return total

    def _dealt_vector(self, pair: Pair) -> Residues:
        """d_p v_k."""
        columns = np.concatenate([self.columns[party] for party in self.layout.pair_parties(pair)], axis=1)
        return self.extension.scale(columns, self.pairs[:, self.layout.pairs.index(pair)])

    def _record_weights(self, records: Sequence[NDArray[np.intp]]) -> Residues:
        """psi_r of several lists of records, one after the other."""
        first, last = min(int(own[0]) for own in records), max(int(own[-1]) for own in records)
        psi = {block: self.records(block) for block in range(first // BATCH_ROWS, last // BATCH_ROWS + 1)}
        return np.concatenate([psi[block][:, _in_block(own, block)] for own in records for block in psi], axis=1)


def _in_block(records: NDArray[np.intp], block: int) -> NDArray[np.intp]:
    """Those of increasing records that are in a block, as places in it."""
    first = block * BATCH_ROWS
    start, stop = np.searchsorted(records, [first, first + BATCH_ROWS])
    return np.asarray(records[start:stop] - first)


def _places(records: NDArray[np.intp], count: int) -> NDArray[np.intp]:
    """Where each of these records is among them, by its place in the block."""
    places = np.full(count, -1, dtype=np.intp)
    places[records] = np.arange(len(records))
    return places


class InfluenceProof:
    """That the groups' influences are the forms of their sums, and these sums are those of the records."""

    def __init__(self, layout: WeightedLayout, extension: Extension, first: bytes) -> None:
        self.layout, self.extension = layout, extension
        self.groups = extension.uniform((layout.groups,), seed=first, label="groups")
        self._outputs = extension.uniform((layout.outputs,), seed=first, label="outputs of forms")

    def forms(self, forms: list[NDArray[np.int64]]) -> list[Residues]:
        """The forms of all outputs, combined: (primes, entries, 3) each."""
        field = self.extension.field
        return [
            self.extension.project(np.ascontiguousarray(np.swapaxes(field.encode(form), 1, 2)), self._outputs)
            for form in forms
        ]

    def of_dealt(self, influences: Residues) -> Residues:
        """sum psi_g c_o of a sharing of influences (primes, groups, outputs): (primes, 3)."""
        return self.extension.inner(self.extension.project(influences, self._outputs), self.groups)

    def of_sums(self, sums: Residues, forms: Residues) -> Residues:
        """The same of sums that lie within the response holder (primes, groups, entries), by their forms."""
        return self.extension.inner(self.extension.project(sums, forms), self.groups)
