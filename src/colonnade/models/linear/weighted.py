"""Moments weighted by presence, and the covariance of group influences, on secret shares: what `robust.py` and
`augmented.py` need of the records.

1. Parties with records to lack tell the response holder which they have; it fits their presence (`propensity.py`).
2. All share their rows, the holder its weights too. A product v x returns to degree t, and its products with the other
   columns, summed over all records, are opened: one weighted Gram matrix for each pair of parties.
3. The estimates are public then, and so are the quadratic forms of a record's influence. A group's influence u_g is a
   public linear map of its shared moments: holders compute it on their shares, deal it again at degree t, multiply, and
   open sum_g u_g u_g'. No moment of a group is opened.

A group is a run of consecutive records of the cohort. The order of a cohort that was lined up by keyed pseudonyms is
random; where it is not, records that are alike are in one group, and the errors are too large rather than too small.
The claim is in `regress.claim.md`.
"""

from __future__ import annotations

import hashlib
import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from colonnade.errors import BadArguments, UnsafeRequest
from colonnade.federation import wire
from colonnade.federation.facts import PublicFacts
from colonnade.federation.job import Job
from colonnade.federation.options import View
from colonnade.federation.party import Party
from colonnade.federation.roster import Roster
from colonnade.federation.stage import Later, stage
from colonnade.federation.step import Public, Release, step
from colonnade.models.linear.propensity import CAP, Pair, block_pairs, presence_weights
from colonnade.privacy.cost import Cost, Free, Unbounded, compose
from colonnade.secure.bgw import Product, cross, gram, lift, open_product, recombine, reshare
from colonnade.secure.extension import Extension
from colonnade.secure.field import Field, Residues, primes_for
from colonnade.statistics.circuit import Circuit, CircuitStages, CircuitStatistic, Factor, Node, node_size, pairings
from colonnade.statistics.features import Feature, by_rule, design, empty_rules, features, stochastic_round
from colonnade.statistics.gaussian_em import Matrix
from colonnade.statistics.joint import colluders
from colonnade.statistics.shares import (
    dealt,
    messages,
    noise_part,
    received_from,
    require_holder,
    state_dealing,
    take_dealings,
)

LARGEST_GAMMA = 2**14
"""Finer steps than this cost primes: a product of two influences has four of its factors."""
WEIGHT = 2**10
"""Integer steps of a weight of 1."""
LARGEST_WEIGHT = 2 * WEIGHT * int(CAP)
"""Normalising moves a capped weight by less than a factor of 2, or it is cut here."""
FORM_BITS = 40
"""The sum of a form's integer coefficients, in units of the largest weight."""
MAXIMUM_OTHERS = 8


@dataclass(frozen=True, kw_only=True)
class WeightedLayout(CircuitStatistic):
    """`names` are the covariates, then the response; `groups` runs of consecutive records.

    The response holder shares (1, its columns, one weight for each pair of the others), the others their columns.
    """

    kind: ClassVar[str] = "weighted moments"
    exact: ClassVar[tuple[str, str]] = ("exact-moments", "exact counts, sums and products of the columns")
    rows: ClassVar[str] = "quantised rows and weights"
    results: ClassVar[str] = "weighted products and products of group influences"

    names: tuple[str, ...]
    gamma: int
    groups: int
    label: str = "weighted"

    def check(self) -> None:
        if not 1 <= self.gamma <= LARGEST_GAMMA or not 2 <= self.groups <= self.facts.n or self.records < 0:
            raise BadArguments("gamma must be from 1 to 2^14, groups from 2 to n, records at least 0.")
        if self.verify:
            raise BadArguments("weighted moments are not verified: their second opening depends on the first.")
        if not 1 <= len(self.others) <= MAXIMUM_OTHERS:
            raise BadArguments(f"weights need 1 to {MAXIMUM_OTHERS} parties besides the response holder.")

    # --- shape --------------------------------------------------------------------------------------------

    @cached_property
    def features(self) -> list[Feature]:
        return features(self.facts, self.names)

    def own_features(self, party: str) -> list[Feature]:
        return [feature for feature in self.features if feature.party == party]

    @cached_property
    def filled(self) -> tuple[str, ...]:
        """The columns in which an empty cell makes a record count as absent at its party: weights are of blocks."""
        return by_rule(empty_rules(self.features, self.facts, "drop"), "drop")

    def present(self, me: Party) -> NDArray[np.bool_]:
        """For each row of the cohort, whether this party has the record with all cells that must be filled."""
        return me.present_with([name for name in self.filled if name in me.block.columns])

    @cached_property
    def parties(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(feature.party for feature in self.features))

    @property
    def response_party(self) -> str:
        return self.facts.owner(self.names[-1])

    @cached_property
    def others(self) -> tuple[str, ...]:
        return tuple(party for party in self.parties if party != self.response_party)

    @property
    def pairs(self) -> tuple[Pair, ...]:
        return block_pairs(len(self.others))

    @cached_property
    def masks(self) -> list[tuple[bool, ...]]:
        """The candidate patterns: those with the response holder, in the order of `response_patterns`."""
        place = self.parties.index(self.response_party)
        return [mask for mask in itertools.product((False, True), repeat=len(self.parties)) if mask[place]]

    @property
    def own_width(self) -> int:
        """The constant and the response holder's columns."""
        return 1 + len(self.own_features(self.response_party))

    @cached_property
    def terms(self) -> list[tuple[Pair, tuple[str, ...], Node]]:
        """(pair, the sides of the last product, its factors): v x_a with (1, w), v x_b with (1, w), v x_a with x_b."""
        holder = Factor(self.response_party, 0, self.own_width)
        blocks = {party: Factor(party, 0, len(self.own_features(party))) for party in self.others}
        terms: list[tuple[Pair, tuple[str, ...], Node]] = []
        for position, (a, b) in enumerate(self.pairs):
            start = self.own_width + position
            weight = Factor(self.response_party, start, start + 1)
            first, second = self.others[a], self.others[b]
            for party in dict.fromkeys((first, second)):
                terms.append(((a, b), (party, self.response_party), (weight, blocks[party], holder)))
            terms.append(((a, b), (first, second), (weight, blocks[first], blocks[second])))
        return terms

    @cached_property
    def circuit(self) -> Circuit:
        return Circuit(
            terms=tuple(node for _, _, node in self.terms), n=self.facts.n, field=self.field, records=self.records
        )

    @property
    def outputs(self) -> int:
        """Influences of a record: on the coefficients of the Gaussian fit, and on those of the weighted moments."""
        return 2 * len(self.features)

    @cached_property
    def pieces(self) -> list[int]:
        """How many products of each kind a form has: of each pattern, of each term, of each pair within the holder."""
        patterns = []
        for mask in self.masks:
            shown = zip(mask, self.parties, strict=True)
            width = 1 + sum(len(self.own_features(party)) for present, party in shown if present)
            patterns.append(width * (width + 1) // 2)
        terms = [
            (self.own_width if second == self.response_party else len(self.own_features(second)))
            * len(self.own_features(first))
            for _, (first, second), _ in self.terms
        ]
        return [*patterns, *terms, *([self._own_triangle] * len(self.pairs))]

    @property
    def _own_triangle(self) -> int:
        return self.own_width * (self.own_width + 1) // 2

    @property
    def openings(self) -> list[int]:
        return [self.size, self.outputs * (self.outputs + 1) // 2]

    @property
    def size(self) -> int:
        """Of the first opening: all weighted products."""
        return sum(self.pieces[len(self.masks) :])

    @cached_property
    def field(self) -> Field:
        """Holds products of two influences, summed over the groups, and the weighted products of all records."""
        group = -(-self.facts.n // self.groups)
        influence = (group * self.gamma**2 * LARGEST_WEIGHT) << FORM_BITS
        largest = max(self.groups * influence**2, self.facts.n * self.gamma**2 * LARGEST_WEIGHT)
        return Field(primes_for(largest.bit_length() + 1))

    def segments(self, number: int) -> Iterator[tuple[int, slice]]:
        """(group, its records within a chunk)."""
        start, stop = self.chunks[number]
        for group in range(start * self.groups // self.facts.n, self.groups):
            low, high = (-(-edge * self.facts.n // self.groups) for edge in (group, group + 1))
            if low >= stop:
                return
            if max(low, start) < min(high, stop):
                yield group, slice(max(low, start) - start, min(high, stop) - start)

    # --- cost ---------------------------------------------------------------------------------------------

    @property
    def sensitivity(self) -> Mapping[str, Any]:
        """There is none to state: nothing here carries noise."""
        return {}

    def cost(self, public: Public, view: View) -> Cost:
        release = self.release(0, colluders=colluders(self.roster, view), joint=f"{public.job} {self.label}")
        shown = "which pseudonymous records a party has, to the share holders"
        return compose([release, Unbounded("presence", shown, audience="share holders")])

    def releases(self, colluders: int) -> list[Cost]:
        return [self.release(0, colluders=colluders)]

    # --- what data parties share --------------------------------------------------------------------------

    @property
    def local(self) -> Mapping[str, object]:
        return {self.response_party: self.pairs}

    def noise(self, me: Party) -> NDArray[np.int64]:
        return noise_part(me, mu=0, size=sum(self.openings))

    def share(self, me: Party, number: int) -> None:
        """A party rounds its values once, with the first chunk: sums and products are of the same integers."""
        if number == 0:
            rows = self._quantised(me)
            for chunk, (start, stop) in enumerate(self.chunks):
                me.keep(f"{self.tag}: quantised {chunk}", rows[start:stop])
            for holder in me.roster.committee:
                me.send(holder, f"{self.tag}: mask", np.packbits(self.present(me)))
        super().share(me, number)

    def _quantised(self, me: Party) -> NDArray[np.int64]:
        mine = self.own_features(me.name)
        scaled = stochastic_round(design(me, mine, filled=self.filled) * self.gamma, me.randomness)
        rows = np.clip(scaled, -self.gamma, self.gamma)
        if me.name != self.response_party:
            return rows
        weights = np.asarray(me.recall(f"{self.tag}: weights"), dtype=np.int64)
        constant = np.where(self.present(me), self.gamma, 0)
        return np.column_stack([constant, rows, weights])

    def shared_rows(self, me: Party, number: int) -> NDArray[Any]:
        return np.asarray(me.recall(f"{self.tag}: quantised {number}"))

    def local_sums(self, me: Party) -> NDArray[Any]:
        """For each group and pair the weighted products within the response holder."""
        upper = np.triu_indices(self.own_width)
        sums = np.zeros((self.groups, len(self.pairs), self._own_triangle), dtype=np.int64)
        for chunk in range(len(self.chunks)):
            rows = self.shared_rows(me, chunk).astype(np.int64)
            own, weights = rows[:, : self.own_width], rows[:, self.own_width :]
            for group, records in self.segments(chunk):
                for pair in range(len(self.pairs)):
                    products = (own[records] * weights[records, pair, None]).T @ own[records]
                    sums[group, pair] += products[upper]
        return sums

    def term_vectors(self, extension: Extension, seed: bytes, side: int) -> list[Residues]:
        raise UnsafeRequest(f"{self.kind} is not verified.")

    def sum_weights(self, extension: Extension, seed: bytes) -> dict[str, Residues]:
        raise UnsafeRequest(f"{self.kind} is not verified.")

    # --- what holders compute -----------------------------------------------------------------------------

    def _masks(self, me: Party) -> NDArray[np.bool_]:
        """Which party has which record (party, record)."""
        packed = messages(me, f"{self.tag}: mask", self.parties, keep=True)
        bits = np.array([np.asarray(packed[party], dtype=np.uint8) for party in self.parties])
        if bits.shape != (len(self.parties), -(-self.facts.n // 8)):
            raise UnsafeRequest("a member sent a mask of another length than the layout says; nothing is opened.")
        return np.unpackbits(bits, axis=1, count=self.facts.n).astype(bool)

    def alike(self, me: Party) -> Mapping[str, bytes]:
        return {party: mask.tobytes() for party, mask in zip(self.parties, self._masks(me), strict=True)}

    def _put_away(self, me: Party, number: int, level: int) -> None:
        if number == level == 0:
            self._masks(me)
        super()._put_away(me, number, level)

    def combine(self, me: Party, number: int) -> Residues:
        noise = {
            member: shares[:, : self.size] if number == 0 else shares[:, self.size :]
            for member, shares in self.held(me, "noise").items()
        }
        if number:
            influences = me.recall(f"{self.tag}: influences")
            sharings = dealt(me, f"{self.tag}: influences {influences}", me.roster.committee, self.field)
            placed = {place: sharings[holder] for place, holder in enumerate(me.roster.committee)}
            shares = recombine(self.field, placed, threshold=me.roster.threshold)
            if shares.shape[1:] != (self.groups, self.outputs):
                raise UnsafeRequest("a holder dealt influences of another shape than the layout says.")
            return open_product(gram(self.field, shares).upper(), noise=noise, parties=me.roster.names)
        self._put_away(me, len(self.chunks) - 1, len(self.circuit.levels))
        own = self.held(me, "sums")[self.response_party]
        parts = [product.flat() for product in self.term_sums(me)]
        parts += [lift(self.field, self.field.sum(own[:, :, pair], axis=0)) for pair in range(len(self.pairs))]
        opened, start = [], 0
        for part in parts:
            (width,) = part.shape
            drawn = {member: shares[:, start : start + width] for member, shares in noise.items()}
            opened.append(open_product(part, noise=drawn, parties=me.roster.names))
            start += width
        return np.concatenate(opened, axis=1)

    def influences(self, me: Party, forms: Sequence[NDArray[np.int64]]) -> Product:
        """This holder's share, of degree 2t, of every group's influences (group, output)."""
        masks = self._masks(me)
        zero = [lift(self.field, self.field.zeros((size,))) for size in self.pieces[: -len(self.pairs)]]
        sums = [list(zero) for _ in range(self.groups)]
        parts = self._parts()
        for number, (start, stop) in enumerate(self.chunks):
            rows = dict(zip(self.circuit.widths, self._arrived(me, number, 0), strict=True))
            (products,) = self._arrived(me, number, 1)
            # All products with all columns at once: more than the terms are, and far fewer small matrices.
            own = rows[self.response_party][:, :, : self.own_width]
            columns = np.concatenate([own, *(rows[party] for party in self.others)], axis=2)
            present = masks[:, start:stop]
            for group, records in self.segments(number):
                for place, mask in enumerate(self.masks):
                    differs = np.any(present[:, records] ^ np.array(mask)[:, None], axis=0)
                    match = records.start + np.flatnonzero(~differs)
                    if match.size:
                        shown = self._columns(rows, mask, match)
                        sums[group][place] = sums[group][place] + gram(self.field, shown).upper()
                every = cross(self.field, products[:, records], columns[:, records])
                for place, part in enumerate(parts, start=len(self.masks)):
                    sums[group][place] = sums[group][place] + every.part(*part).flat()
        pieces = [Product.stack(each) for each in zip(*sums, strict=True)]
        within = self.held(me, "sums")[self.response_party]
        pieces += [lift(self.field, np.ascontiguousarray(within[:, :, pair])) for pair in range(len(self.pairs))]
        total = pieces[0].mapped(forms[0])
        for piece, form in zip(pieces[1:], forms[1:], strict=True):
            total = total + piece.mapped(form)
        return total

    def _parts(self) -> list[tuple[slice, slice]]:
        """Where each term is in the products (v x, for each pair) times (the holder's columns, the others')."""
        left, right, end = dict[Node, slice](), {self.response_party: slice(0, self.own_width)}, 0
        for a, b in self.circuit.levels[0]:
            left[a + b] = slice(end, end + node_size(a + b))
            end = left[a + b].stop
        end = self.own_width
        for party in self.others:
            right[party] = slice(end, end + len(self.own_features(party)))
            end = right[party].stop
        return [(left[pairings(node)[1][0]], right[second]) for _, (_, second), node in self.terms]

    def _columns(self, rows: Mapping[str, Residues], mask: Sequence[bool], match: NDArray[np.intp]) -> Residues:
        """(1, the columns of the pattern's parties), in the order of the layout."""
        parts = [rows[self.response_party][:, match, :1]]
        for has, party in zip(mask, self.parties, strict=True):
            if has:
                first = 1 if party == self.response_party else 0
                width = len(self.own_features(party))
                parts.append(rows[party][:, match, first : first + width])
        return np.concatenate(parts, axis=2)


def later_forms(layout: WeightedLayout) -> Later:
    """The rule for the quadratic forms of an influence."""
    shapes = [(layout.outputs, size) for size in layout.pieces]
    rule = (
        "integer coefficients of the products of a group, which follow from the moments that were opened; their sizes"
        f" add up to at most 2^{FORM_BITS} largest weights, and nothing but products of two such sums is opened"
    )

    def accepted(forms: Any, planned: Any) -> bool:
        return (
            len(forms) == len(shapes)
            and all(form.dtype == np.int64 and form.shape == shape for form, shape in zip(forms, shapes, strict=True))
            and bool((_reach(layout, forms) <= LARGEST_WEIGHT << FORM_BITS).all())
        )

    return Later(rule, accepted)


def _reach(layout: WeightedLayout, forms: Sequence[NDArray[Any]]) -> NDArray[np.float64]:
    """How large an output can be for one record of entries 1: it is in one pattern, and has a weight in every pair."""
    sizes = [np.abs(form.astype(np.float64)).sum(axis=1) for form in forms]
    patterns = np.max(sizes[: len(layout.masks)], axis=0)
    return np.asarray(patterns + LARGEST_WEIGHT * np.sum(sizes[len(layout.masks) :], axis=0))


# --- the coordinator's side -------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class WeightedMoments:
    """What was opened: the holder's remarks on presence, and for each pair the weighted products of (1, own columns,
    x_a, x_b), weights adding up to the records that have both."""

    capped: int
    unlikely: int
    rare: int
    grams: dict[Pair, Matrix]


class WeightedComputation(CircuitStages):
    """Presence to the response holder, weights, rows, products, weighted moments; then influences, their products."""

    layout: WeightedLayout

    def __init__(self, layout: WeightedLayout, view: View) -> None:
        super().__init__(layout, view)
        facts, roster, holder = layout.facts, layout.roster, layout.response_party
        arguments = {"layout": layout.to_dict()}
        self.presence = stage(
            f"{layout.label}: presence",
            tell_presence,
            {party: [arguments] for party in layout.others},
            facts=facts,
            roster=roster,
            audience=holder,
            recipients=(holder,),
            discloses="which pseudonymous records a party has, to the response holder",
            reply_bytes=facts.n // 8,
        )
        self.weigh = stage(
            f"{layout.label}: weights",
            weigh_presence,
            {holder: [arguments]},
            facts=facts,
            roster=roster,
            discloses="how many records have a capped weight or an unlikely block, and how many levels are rare",
            reply_bytes=64,
        )
        influence_bytes = 4 * len(layout.field.primes) * layout.groups * layout.outputs
        self.influence = stage(
            f"{layout.label}: influences",
            share_influences,
            {holder_name: [{**arguments, "forms": []}] for holder_name in roster.committee},
            facts=facts,
            roster=roster,
            audience=self.multiply.audience,
            discloses="secret shares of the influences of groups of records",
            reply_bytes=len(roster.committee) * influence_bytes,
            later={"forms": later_forms(layout)},
        )
        self.stages = (self.presence, self.weigh, *self.stages, self.influence)

    def weighted(self, job: Job) -> WeightedMoments:
        """The first opening."""
        layout = self.layout
        job.ask(self.presence)
        remarks = job.ask(self.weigh)[layout.response_party]
        opened = self.compute(job).astype(np.float64) / (layout.gamma**2 * WEIGHT)
        capped, unlikely, rare = (int(count) for count in remarks)
        return WeightedMoments(capped, unlikely, rare, self._grams(opened))

    def _grams(self, opened: NDArray[np.float64]) -> dict[Pair, Matrix]:
        layout, start = self.layout, 0
        own = layout.own_width
        widths = [len(layout.own_features(party)) for party in layout.others]
        grams = {
            pair: np.zeros((own + sum(widths[block] for block in dict.fromkeys(pair)),) * 2) for pair in layout.pairs
        }
        sizes = layout.pieces[len(layout.masks) :]
        for (pair, (first, second), _), size in zip(layout.terms, sizes[: len(layout.terms)], strict=True):
            rows, columns = self._places(pair, first), self._places(pair, second)
            block = opened[start : start + size].reshape(rows.stop - rows.start, -1)
            grams[pair][rows, columns] = block
            grams[pair][columns, rows] = block.T
            start += size
        upper = np.triu_indices(own)
        for pair in layout.pairs:
            triangle = opened[start : start + len(upper[0])]
            grams[pair][upper], grams[pair].T[upper] = triangle, triangle
            start += len(upper[0])
        return grams

    def _places(self, pair: Pair, party: str) -> slice:
        """Where a party's columns are in a pair's Gram matrix."""
        layout = self.layout
        if party == layout.response_party:
            return slice(0, layout.own_width)
        start = layout.own_width
        for block in dict.fromkeys(pair):
            width = len(layout.own_features(layout.others[block]))
            if layout.others[block] == party:
                return slice(start, start + width)
            start += width
        raise BadArguments(f"{party!r} is not of the pair {pair}.")

    def covariance(
        self,
        job: Job,
        patterns: Mapping[tuple[bool, ...], NDArray[np.float64]],
        pairs: Mapping[Pair, NDArray[np.float64]],
    ) -> Matrix:
        """sum_g u_g u_g' (output, output), the second opening.

        The forms are (output, entry, entry): of (1, columns) for each pattern that occurs, and of a pair's Gram matrix.
        """
        layout = self.layout
        real = [*self._pattern_pieces(patterns), *self._pair_pieces(pairs)]
        reach = _reach(layout, real)
        largest = (LARGEST_WEIGHT << FORM_BITS) * (1 - 1e-6)
        scale = np.divide(largest, reach, out=np.zeros_like(reach), where=reach > largest * 1e-200)
        forms = [np.rint(scale[:, None] * part).astype(np.int64) for part in real]
        job.ask(self.influence, forms=forms)
        opened = self.opened(job)
        upper = np.triu_indices(layout.outputs)
        out = np.zeros((layout.outputs, layout.outputs))
        units = np.where(scale > 0, scale, 1.0)
        out[upper] = opened.astype(np.float64) / (units[upper[0]] * units[upper[1]])
        return np.asarray(np.triu(out) + np.triu(out, 1).T)

    def _pattern_pieces(self, patterns: Mapping[tuple[bool, ...], NDArray[np.float64]]) -> Iterator[Matrix]:
        """In units of integer moments: products of a pattern are gamma^2 times those of features."""
        layout = self.layout
        for mask, size in zip(layout.masks, layout.pieces, strict=False):
            if mask not in patterns:
                yield np.zeros((layout.outputs, size))
                continue
            form = patterns[mask]
            i, j = np.triu_indices(form.shape[1])
            yield np.where(i == j, 1.0, 2.0) * form[:, i, j] / layout.gamma**2

    def _pair_pieces(self, pairs: Mapping[Pair, NDArray[np.float64]]) -> Iterator[Matrix]:
        layout = self.layout
        unit = layout.gamma**2 * WEIGHT
        for pair, (first, second), _ in layout.terms:
            part = pairs[pair][:, self._places(pair, first), self._places(pair, second)]
            yield (1.0 if first == second else 2.0) * part.reshape(layout.outputs, -1) / unit
        i, j = np.triu_indices(layout.own_width)
        for pair in layout.pairs:
            yield np.where(i == j, 1.0, 2.0) * pairs[pair][:, i, j] / unit


# --- the parties' steps -----------------------------------------------------------------------------------


def _layout(public: Public | Party, layout: Mapping[str, Any]) -> WeightedLayout:
    return WeightedLayout.from_dict(public.facts, public.roster, layout)


def _presence_tag(layout: WeightedLayout) -> str:
    return f"presence for {layout.tag}"


def _presence_cost(public: Public, *, layout: dict[str, Any]) -> Cost:
    shown = "which pseudonymous records a party has, to the response holder"
    return Unbounded("presence", shown, audience=_layout(public, layout).response_party)


@step(cost=_presence_cost)
def tell_presence(me: Party, *, layout: dict[str, Any]) -> Release:
    """Tell the response holder which records of the cohort this party has."""
    statistic = _layout(me, layout)
    if me.name not in statistic.others:
        raise UnsafeRequest(f"{me.name!r} is not one of the parties whose presence is weighed.")
    me.send(statistic.response_party, _presence_tag(statistic), np.packbits(statistic.present(me)))
    return Release(None, "nothing: the mask travels sealed")


def _weigh_cost(public: Public, *, layout: dict[str, Any]) -> Cost:
    """Counts over the response holder's records: parts of the release that the weighted moments are."""
    statistic = _layout(public, layout)
    return statistic.release(0, colluders=0, joint=f"{public.job} {statistic.label}")


@step(cost=_weigh_cost)
def weigh_presence(me: Party, *, layout: dict[str, Any]) -> Release:
    """Fit the others' presence on one's own columns, and keep the weights; they leave as secret shares only."""
    statistic = _layout(me, layout)
    if me.name != statistic.response_party:
        raise UnsafeRequest(f"{me.name!r} does not hold the response.")
    n = me.facts.n
    received = received_from(me, _presence_tag(statistic), statistic.others)
    present = np.zeros((n, len(statistic.others)), dtype=bool)
    for place, party in enumerate(statistic.others):
        packed = np.asarray(received[party], dtype=np.uint8)
        if packed.shape != (-(-n // 8),):
            raise UnsafeRequest(f"{party!r} sent a mask of another length than the cohort's.")
        present[:, place] = np.unpackbits(packed, count=n).astype(bool)
    mine = statistic.own_features(me.name)
    response = [feature.column for feature in mine].index(statistic.names[-1])
    records = np.flatnonzero(statistic.present(me))
    fitted = presence_weights(design(me, mine)[records], response, present[records])
    integers = np.zeros((n, len(fitted.pairs)), dtype=np.int64)
    for column, (a, b) in enumerate(fitted.pairs):
        share = (present[records, a] & present[records, b]).mean()
        scaled = np.rint(fitted.weights[:, column] * share * WEIGHT)
        integers[records, column] = np.clip(scaled, 0, LARGEST_WEIGHT)
    me.keep(f"{statistic.tag}: weights", integers)
    return Release([fitted.capped, fitted.unlikely, fitted.rare], "three counts over the response holder's records")


@step(cost=Free("secret shares of group influences; any t holders learn nothing"))
def share_influences(me: Party, *, layout: dict[str, Any], forms: list[Any]) -> Release:
    """The groups' influences on one's shares, dealt again at degree t. Holders that were given other forms deal under
    another tag, and nothing opens."""
    statistic = _layout(me, layout)
    require_holder(me)
    take_dealings(me, statistic.mail_tags)
    digest = hashlib.sha256(wire.encode(list(forms))).hexdigest()[:32]
    me.keep(f"{statistic.tag}: influences", digest)
    shares = reshare(
        statistic.influences(me, forms),
        holders=len(me.roster.committee),
        threshold=me.roster.threshold,
        randomness=me.randomness,
    )
    for holder, residues in zip(me.roster.committee, shares, strict=True):
        me.send(holder, f"{statistic.tag}: influences {digest}", residues)
    state_dealing(me, statistic.tag, "influences")
    return Release(None, "nothing: the shares travel sealed")


def weighted_layout(
    facts: PublicFacts, roster: Roster, names: tuple[str, ...], gamma: int, groups: int
) -> WeightedLayout:
    layout = WeightedLayout(
        facts=facts, roster=roster, names=names, gamma=min(gamma, LARGEST_GAMMA), groups=min(groups, facts.n)
    )
    layout.check()
    return layout
