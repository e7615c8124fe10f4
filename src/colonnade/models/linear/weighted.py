"""Moments weighted by presence, and the covariance of group influences, on secret shares: what `robust.py` and
`augmented.py` need of the records.

1. Parties with records to lack tell the response holder which they have; it fits their presence (`propensity.py`).
2. All share their rows, the holder its weights too. A product v x returns to degree t, for the records that have both
   blocks of its pair, and its products with the other columns, summed over all records, are opened: one weighted Gram
   matrix for each pair of parties.
3. The estimates are public then, and so are the quadratic forms of a record's influence. A group's influence u_g is a
   public linear map of its shared moments: holders compute it on their shares, deal it again at degree t, multiply, and
   open sum_g u_g u_g'. No moment of a group is opened.

A group is a run of consecutive records of the cohort. The order of a cohort that was lined up by keyed pseudonyms is
random; where it is not, records that are alike are in one group, and the errors are too large rather than too small.
With `clusters` a group is a number of whole clusters, which the holder of that column draws and tells share holders.
Message sizes follow from n and from how many records each pair of parties has with the response: pattern counts, which
the job opens anyway. The claim is in `regress.claim.md`.
"""

from __future__ import annotations

import hashlib
import heapq
import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from colonnade.errors import BadArguments, SchemaError, UnsafeRequest
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
from colonnade.privacy.randomness import Randomness
from colonnade.secure.bgw import (
    GroupSums,
    Product,
    cross,
    gram,
    lift,
    multiply,
    open_product,
    recombine,
    reshare,
    segments,
)
from colonnade.secure.field import BATCH_ROWS, Field, Residues, primes_for
from colonnade.secure.seeded import Shape
from colonnade.statistics.features import Feature, FilledRecords, design, features, stochastic_round
from colonnade.statistics.gaussian_em import Matrix
from colonnade.statistics.joint import SharedStatistic, colluders, multiply_shares, share_rows
from colonnade.statistics.shares import (
    deal,
    deal_large,
    deal_noise,
    deal_product,
    dealt,
    messages,
    noise_part,
    received_from,
    recombined,
    require_holder,
    shares_of,
    state_dealing,
    take_dealings,
)
from colonnade.statistics.verified import VerifiedStages

LARGEST_GAMMA = 2**14
"""Finer steps than this cost primes: a product of two influences has four of its factors."""
WEIGHT = 2**10
"""Integer steps of a weight of 1."""
LARGEST_WEIGHT = 2 * WEIGHT * int(CAP)
"""Normalising moves a capped weight by less than a factor of 2, or it is cut here."""
FORM_BITS = 40
"""The sum of a form's integer coefficients, in units of the largest weight."""
MAXIMUM_OTHERS = 8
MAIL_BYTES, PRODUCT_BYTES = 1 << 26, 1 << 27
"""One party's share of a chunk of rows, as it travels; and a holder's share of one part of the products, in memory."""
LANE = 64
"""Products travel in rows of so many entries: the pairs have different widths, and different records."""


@dataclass(frozen=True, kw_only=True)
class WeightedLayout(FilledRecords, SharedStatistic):
    """`names` are the covariates, then the response; `groups` of records, runs of them or of whole `clusters`.

    The response holder shares (1, its columns, one weight for each pair of the others), the others their columns.
    `weights` is a column of the response holder by which every record counts.
    """

    kind: ClassVar[str] = "weighted moments"
    exact: ClassVar[tuple[str, str]] = ("exact-moments", "exact counts, sums and products of the columns")
    rows: ClassVar[str] = "quantised rows and weights"
    results: ClassVar[str] = "weighted products and products of group influences"

    names: tuple[str, ...]
    gamma: int
    groups: int
    clusters: str | None = None
    weights: str | None = None
    label: str = "weighted"

    def check(self) -> None:
        if not 1 <= self.gamma <= LARGEST_GAMMA or not 2 <= self.groups <= self.facts.n:
            raise BadArguments("gamma must be from 1 to 2^14, groups from 2 to n.")
        if self.verify:
            raise BadArguments("weighted moments are not verified: their second opening depends on the first.")
        if not 1 <= len(self.others) <= MAXIMUM_OTHERS:
            raise BadArguments(f"weights need 1 to {MAXIMUM_OTHERS} parties besides the response holder.")
        if self.clusters is not None and self.cluster_party not in self.parties:
            raise SchemaError(
                f"{self.clusters!r} is a column of {self.cluster_party!r}, which takes no part; clusters= needs a"
                " column of a party that holds the response or a covariate."
            )
        if self.weights is not None and self.facts.owner(self.weights) != self.response_party:
            raise SchemaError(
                f"weights= needs a column of {self.response_party!r}, which holds the response, and {self.weights!r} is"
                f" one of {self.facts.owner(self.weights)!r}."
            )
        if self.weights is not None:
            declared = self.facts.column(self.weights)
            if declared.kind not in ("continuous", "count") or declared.lower is None or declared.lower < 0:
                raise SchemaError(f"the weights {self.weights!r} must be numbers of at least 0; declare them so.")

    # --- shape --------------------------------------------------------------------------------------------

    @cached_property
    def features(self) -> list[Feature]:
        return features(self.facts, self.names)

    def own_features(self, party: str) -> list[Feature]:
        return [feature for feature in self.features if feature.party == party]

    @property
    def used(self) -> list[Feature]:
        return self.features

    @cached_property
    def parties(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(feature.party for feature in self.features))

    @property
    def response_party(self) -> str:
        return self.facts.owner(self.names[-1])

    @property
    def cluster_party(self) -> str | None:
        return None if self.clusters is None else self.facts.owner(self.clusters)

    @cached_property
    def others(self) -> tuple[str, ...]:
        return tuple(party for party in self.parties if party != self.response_party)

    @property
    def pairs(self) -> tuple[Pair, ...]:
        return block_pairs(len(self.others))

    def pair_parties(self, pair: Pair) -> list[str]:
        return [self.others[block] for block in dict.fromkeys(pair)]

    @cached_property
    def masks(self) -> list[tuple[bool, ...]]:
        """The candidate patterns: those with the response holder, in the order of `response_patterns`."""
        place = self.parties.index(self.response_party)
        return [mask for mask in itertools.product((False, True), repeat=len(self.parties)) if mask[place]]

    @property
    def own_width(self) -> int:
        """The constant and the response holder's columns."""
        return 1 + len(self.own_features(self.response_party))

    def width(self, party: str) -> int:
        """The columns of the rows that a party shares."""
        own = len(self.own_features(party))
        return own if party != self.response_party else 1 + own + len(self.pairs)

    def product_width(self, pair: Pair) -> int:
        """The products of one record: v x_a, and v x_b of another party."""
        return sum(map(self.width, self.pair_parties(pair)))

    @cached_property
    def terms(self) -> list[tuple[Pair, tuple[str, str]]]:
        """(pair, the sides of the last product): v x_a with (1, w), v x_b with (1, w), v x_a with x_b."""
        terms = []
        for pair in self.pairs:
            terms += [(pair, (party, self.response_party)) for party in self.pair_parties(pair)]
            terms.append((pair, (self.others[pair[0]], self.others[pair[1]])))
        return terms

    @property
    def outputs(self) -> int:
        """Influences of a record: on the coefficients of the Gaussian fit, and on those of the weighted moments."""
        return 2 * len(self.features)

    @property
    def own_sums(self) -> int:
        """Products within the response holder: weighted for each pair, and by the records' own weights."""
        return len(self.pairs) + (self.weights is not None)

    @cached_property
    def pieces(self) -> list[int]:
        """How many products of each kind a form has: of each pattern, of each term, of each sum within the holder."""
        patterns = []
        for mask in self.masks:
            shown = zip(mask, self.parties, strict=True)
            width = 1 + sum(len(self.own_features(party)) for present, party in shown if present)
            patterns.append(width * (width + 1) // 2)
        terms = [
            (self.own_width if second == self.response_party else len(self.own_features(second)))
            * len(self.own_features(first))
            for _, (first, second) in self.terms
        ]
        return [*patterns, *terms, *([self._own_triangle] * self.own_sums)]

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
        record = (self.gamma**2 * LARGEST_WEIGHT) << FORM_BITS
        group = -(-self.facts.n // self.groups)
        largest = self.groups * (group * record) ** 2 if self.clusters is None else (self.facts.n * record) ** 2
        return Field(primes_for(max(largest, self.facts.n * self.gamma**2 * LARGEST_WEIGHT).bit_length() + 1))

    @cached_property
    def chunks(self) -> list[tuple[int, int]]:
        """The cohort's rows in ranges whose shares travel together."""
        record = 8 * len(self.field.primes) * max(map(self.width, self.parties)) / 3
        rows = max(1, int(MAIL_BYTES / record) // BATCH_ROWS) * BATCH_ROWS
        return [(start, min(start + rows, self.facts.n)) for start in range(0, self.facts.n, rows)]

    @cached_property
    def parts(self) -> int:
        """In so many parts the products are dealt again, each with as many records of every pair as the others."""
        record = 4 * len(self.field.primes) * sum(map(self.product_width, self.pairs))
        return max(1, -(-self.facts.n * record // PRODUCT_BYTES))

    # --- cost ---------------------------------------------------------------------------------------------

    @property
    def sensitivity(self) -> Mapping[str, Any]:
        """There is none to state: nothing here carries noise."""
        return {}

    def cost(self, public: Public, view: View) -> Cost:
        release = self.release(0, colluders=colluders(self.roster, view), joint=f"{public.job} {self.label}")
        shown = "which pseudonymous records a party has, to the share holders"
        costs: list[Cost] = [release, Unbounded("presence", shown, audience="share holders")]
        if public.party == self.cluster_party:
            costs.append(_cluster_cost(self))
        return compose(costs)

    def releases(self, colluders: int) -> list[Cost]:
        return [self.release(0, colluders=colluders)]

    # --- what data parties share --------------------------------------------------------------------------

    def rows_tag(self, number: int) -> str:
        return f"{self.tag}: rows {number}"

    def share(self, me: Party, number: int) -> None:
        """A party rounds its values once, with the first chunk: sums and products are of the same integers."""
        if number == 0:
            rows = self._quantised(me)
            for chunk, (start, stop) in enumerate(self.chunks):
                me.keep(f"{self.tag}: quantised {chunk}", rows[start:stop])
            for holder in me.roster.committee:
                me.send(holder, f"{self.tag}: mask", np.packbits(self.present(me)))
                if me.name == self.cluster_party:
                    me.send(holder, f"{self.tag}: groups", me.recall(f"{self.tag}: own groups"))
            if me.name == self.response_party:
                deal(me, f"{self.tag}: sums", self.field, self._own_sums(me, rows))
        deal_large(me, self.rows_tag(number), self.field, me.recall(f"{self.tag}: quantised {number}"))

    def share_noise(self, me: Party, number: int) -> None:
        deal_noise(me, f"{self.tag}: noise", self.field, noise_part(me, mu=0, size=sum(self.openings)))

    def _quantised(self, me: Party) -> NDArray[np.int64]:
        mine = self.own_features(me.name)
        scaled = stochastic_round(design(me, mine, filled=self.filled) * self.gamma, me.randomness)
        rows = np.clip(scaled, -self.gamma, self.gamma)
        if me.name != self.response_party:
            return rows
        weights = np.asarray(me.recall(f"{self.tag}: weights"), dtype=np.int64)
        constant = np.where(self.present(me), self.gamma, 0)
        return np.column_stack([constant, rows, weights])

    def _own_sums(self, me: Party, rows: NDArray[np.int64]) -> NDArray[np.int64]:
        """For each group the weighted products within the response holder."""
        upper = np.triu_indices(self.own_width)
        sums = np.zeros((self.groups, self.own_sums, self._own_triangle), dtype=np.int64)
        own, weights = rows[:, : self.own_width], rows[:, self.own_width :]
        if self.weights is not None:
            weights = np.column_stack([weights, me.recall(f"{self.tag}: record weights")])
        groups = me.recall(f"{self.tag}: own groups") if self.clusters is not None else self._runs
        order = np.argsort(groups, kind="stable")
        cuts = np.searchsorted(groups[order], np.arange(self.groups + 1))
        for group, (start, stop) in enumerate(itertools.pairwise(cuts)):
            records = order[start:stop]
            for place, heavy in enumerate(weights[records].T):
                sums[group, place] = ((own[records] * heavy[:, None]).T @ own[records])[upper]
        return sums

    @cached_property
    def _runs(self) -> NDArray[np.intp]:
        """The group of each record where groups are runs of records."""
        return np.arange(self.facts.n) * self.groups // self.facts.n

    # --- what holders keep --------------------------------------------------------------------------------

    def _masks(self, me: Party) -> NDArray[np.bool_]:
        """Which party has which record (party, record)."""
        packed = messages(me, f"{self.tag}: mask", self.parties, keep=True)
        bits = np.array([np.asarray(packed[party], dtype=np.uint8) for party in self.parties])
        if bits.shape != (len(self.parties), -(-self.facts.n // 8)):
            raise UnsafeRequest("a member sent a mask of another length than the layout says; nothing is opened.")
        return np.unpackbits(bits, axis=1, count=self.facts.n).astype(bool)

    def _group_of(self, me: Party) -> NDArray[np.intp]:
        """The group of each record."""
        if self.cluster_party is None:
            return self._runs
        told = messages(me, f"{self.tag}: groups", [self.cluster_party], keep=True)[self.cluster_party]
        return checked_groups(told, self)

    def alike(self, me: Party) -> Mapping[str, bytes]:
        sent = {party: mask.tobytes() for party, mask in zip(self.parties, self._masks(me), strict=True)}
        if self.cluster_party is not None:
            sent[self.cluster_party] += self._group_of(me).tobytes()
        return sent

    def _pair_records(self, me: Party) -> dict[Pair, NDArray[np.intp]]:
        """The records with the response that both parties of a pair have."""
        has = dict(zip(self.parties, self._masks(me), strict=True))
        return {
            pair: np.flatnonzero(np.all([has[self.response_party], *(has[p] for p in self.pair_parties(pair))], axis=0))
            for pair in self.pairs
        }

    def _multiplied(self, records: Mapping[Pair, NDArray[np.intp]], me: Party) -> dict[Pair, NDArray[np.intp]]:
        """The same of the pairs whose weights differ. Where all records have both blocks each weighs 1, as all know."""
        used = self._masks(me)[self.parties.index(self.response_party)].sum()
        return {pair: own[:0] if len(own) == used and self.weights is None else own for pair, own in records.items()}

    def _in_part(self, records: NDArray[np.intp], part: int) -> slice:
        return slice(part * len(records) // self.parts, (part + 1) * len(records) // self.parts)

    def held(self, me: Party, what: str) -> dict[str, Residues]:
        """This holder's shares of every member's noise, or of the sums within the response holder."""
        name = f"{self.tag}: held {what}"
        if not me.kept(name):
            senders = [self.response_party] if what == "sums" else me.roster.names
            me.keep(name, dealt(me, f"{self.tag}: {what}", senders, self.field))
        shares: dict[str, Residues] = me.recall(name)
        return shares

    def put_away(self, me: Party, number: int) -> None:
        if number == 0:
            self._masks(me)
            self._group_of(me)
            self.held(me, "noise")
            self.held(me, "sums")
        messages(me, self.rows_tag(number), self.parties, layers=len(self.field.primes), keep=True)

    def _blocks(self, me: Party, low: int, high: int) -> Iterator[tuple[int, dict[str, Residues]]]:
        """(the first record, shares of each party's rows) of blocks of records, as far as they are from low to high."""
        for number, (start, stop) in enumerate(self.chunks):
            if stop <= low or start >= high:
                continue
            rows = messages(me, self.rows_tag(number), self.parties, layers=len(self.field.primes), keep=True)
            lengths = {party: (stop - start, self.width(party)) for party in self.parties}
            shares = shares_of(me, rows, self.field, lengths)
            shape = Shape((stop - start,))
            for block in range(shape.blocks):
                inside = shape.rows(block)
                if start + inside.start < high and start + inside.stop > low:
                    yield start + inside.start, {party: shares[party].block(block) for party in self.parties}

    # --- what holders compute -----------------------------------------------------------------------------

    def multiply(self, me: Party, number: int, level: int) -> None:
        """Multiply one part of the records by their weights, and deal the products again; `level` counts the parts."""
        if number != 0 or not 1 <= level <= self.parts:
            raise UnsafeRequest(f"this computation has no part {number}, {level} of products.")
        part = level - 1
        if part == 0:
            self.put_away(me, len(self.chunks) - 1)
        else:
            self._put_products_away(me, part - 1)
        multiplied = self._multiplied(self._pair_records(me), me)
        records = {pair: own[self._in_part(own, part)] for pair, own in multiplied.items()}
        filled = [own for own in records.values() if own.size]
        low, high = (
            min((int(own[0]) for own in filled), default=0),
            max((int(own[-1]) + 1 for own in filled), default=0),
        )
        products: dict[Pair, list[Product]] = {pair: [] for pair in self.pairs}
        for first, rows in self._blocks(me, low, high):
            size = rows[self.response_party].shape[1]
            for place, (pair, own) in enumerate(records.items()):
                inside = own[slice(*np.searchsorted(own, [first, first + size]))] - first
                if inside.size:
                    column = self.own_width + place
                    weight = rows[self.response_party][:, inside, column : column + 1]
                    values = np.concatenate([rows[party][:, inside] for party in self.pair_parties(pair)], axis=2)
                    products[pair].append(multiply(self.field, weight, values))
        nothing = lift(self.field, self.field.zeros((1, LANE)))
        together = [product for pair in self.pairs for product in products[pair]] or [nothing]
        deal_product(me, f"{self.tag}: products {part}", Product.in_rows(together, LANE))

    def _put_products_away(self, me: Party, part: int) -> None:
        """All holders have dealt their shares of a part again: together they make a share of degree t."""
        name = f"{self.tag}: products {part}"
        if not me.kept(f"{name}, joined"):
            entries = sum(
                len(own[self._in_part(own, part)]) * self.product_width(pair)
                for pair, own in self._multiplied(self._pair_records(me), me).items()
            )
            lengths = (max(1, -(-entries // LANE)), LANE)
            me.keep(f"{name}, joined", recombined(me, name, self.field, lengths))

    def _products(self, me: Party, records: Mapping[Pair, NDArray[np.intp]], part: int) -> dict[Pair, Residues]:
        """{pair: v x of the records of one part}."""
        flat = me.recall(f"{self.tag}: products {part}, joined").reshape(len(self.field.primes), -1)
        out, start = {}, 0
        for pair, own in records.items():
            count, width = len(own[self._in_part(own, part)]), self.product_width(pair)
            out[pair] = flat[:, start : start + count * width].reshape(len(flat), count, width)
            start += count * width
        return out

    def _weighted_blocks(
        self, me: Party
    ) -> Iterator[tuple[int, dict[str, Residues], dict[Pair, tuple[NDArray[np.intp], Residues]]]]:
        """(the first record, all rows, {pair: (its records in this block, v x of these)}), block by block."""
        records = self._pair_records(me)
        multiplied = self._multiplied(records, me)
        loaded: dict[int, dict[Pair, Residues]] = {}
        for first, rows in self._blocks(me, 0, self.facts.n):
            last = first + rows[self.response_party].shape[1]
            weighted, needed = {}, set()
            for pair, own in records.items():
                start, stop = np.searchsorted(own, [first, last])
                inside_block = own[start:stop] - first
                if not inside_block.size:
                    continue
                if not multiplied[pair].size:
                    values = [rows[party][:, inside_block] for party in self.pair_parties(pair)]
                    weighted[pair] = (inside_block, self.field.scale(np.concatenate(values, axis=2), WEIGHT))
                    continue
                pieces = []
                for part in range(self.parts):
                    inside = self._in_part(own, part)
                    low, high = max(start, inside.start), min(stop, inside.stop)
                    if low < high:
                        needed.add(part)
                        if part not in loaded:
                            loaded[part] = self._products(me, multiplied, part)
                        pieces.append(loaded[part][pair][:, low - inside.start : high - inside.start])
                weighted[pair] = (inside_block, np.concatenate(pieces, axis=1))
            loaded = {part: products for part, products in loaded.items() if part in needed}
            yield first, rows, weighted

    def _right(self, rows: Mapping[str, Residues], pair: Pair, records: NDArray[np.intp]) -> Residues:
        """What v x is multiplied by: the response holder's columns, and those of the pair's second party."""
        own = rows[self.response_party][:, records, : self.own_width]
        return np.concatenate([own, rows[self.others[pair[1]]][:, records]], axis=2)

    def _sides(self, pair: Pair, first: str, second: str) -> tuple[slice, slice]:
        """Where a term is in the products of a pair: rows v x, columns `_right`."""
        parties = self.pair_parties(pair)
        start = sum(self.width(party) for party in parties[: parties.index(first)])
        if second == self.response_party:
            right = slice(0, self.own_width)
        else:
            right = slice(self.own_width, self.own_width + self.width(second))
        return slice(start, start + self.width(first)), right

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
        self._put_products_away(me, self.parts - 1)
        totals = {
            pair: lift(
                self.field,
                self.field.zeros((self.product_width(pair), self.own_width + self.width(self.others[pair[1]]))),
            )
            for pair in self.pairs
        }
        for _, rows, weighted in self._weighted_blocks(me):
            for pair, (records, products) in weighted.items():
                totals[pair] = totals[pair] + cross(self.field, products, self._right(rows, pair, records))
        own = self.held(me, "sums")[self.response_party]
        opened = [totals[pair].part(*self._sides(pair, first, second)).flat() for pair, (first, second) in self.terms]
        opened += [lift(self.field, self.field.sum(own[:, :, place], axis=0)) for place in range(self.own_sums)]
        released, start = [], 0
        for part in opened:
            (width,) = part.shape
            drawn = {member: shares[:, start : start + width] for member, shares in noise.items()}
            released.append(open_product(part, noise=drawn, parties=me.roster.names))
            start += width
        return np.concatenate(released, axis=1)

    def influences(self, me: Party, forms: Sequence[NDArray[np.int64]]) -> Product:
        """This holder's share, of degree 2t, of every group's influences (group, output)."""
        masks, groups = self._masks(me), self._group_of(me)
        sums = [GroupSums(self.field, self.groups, size) for size in self.pieces[: -self.own_sums]]
        terms = list(enumerate(self.terms, start=len(self.masks)))
        for first, rows, weighted in self._weighted_blocks(me):
            last = first + rows[self.response_party].shape[1]
            present, group = masks[:, first:last], groups[first:last]
            for place, mask in enumerate(self.masks):
                match = np.flatnonzero(np.all(present == np.array(mask)[:, None], axis=0))
                if match.size and forms[place].any():
                    order, labels, cuts = _in_groups(match, group)
                    shown = self._columns(rows, mask, order)
                    sums[place].add(labels, segments(self.field, shown, shown, cuts).upper())
            for pair, (records, products) in weighted.items():
                order, labels, cuts = _in_groups(np.arange(len(records)), group[records])
                right = self._right(rows, pair, records[order])
                every = segments(self.field, np.ascontiguousarray(products[:, order]), right, cuts)
                for place, (own, (left_party, right_party)) in terms:
                    if own == pair:
                        sums[place].add(labels, every.part(*self._sides(pair, left_party, right_party)).flat())
        within = self.held(me, "sums")[self.response_party]
        pieces = [own.product for own in sums]
        pieces += [lift(self.field, np.ascontiguousarray(within[:, :, place])) for place in range(self.own_sums)]
        total = pieces[0].mapped(forms[0])
        for piece, form in zip(pieces[1:], forms[1:], strict=True):
            total = total + piece.mapped(form)
        return total

    def _columns(self, rows: Mapping[str, Residues], mask: Sequence[bool], match: NDArray[np.intp]) -> Residues:
        """(1, the columns of the pattern's parties), in the order of the layout."""
        parts = [rows[self.response_party][:, match, :1]]
        for has, party in zip(mask, self.parties, strict=True):
            if has:
                first = 1 if party == self.response_party else 0
                width = len(self.own_features(party))
                parts.append(rows[party][:, match, first : first + width])
        return np.concatenate(parts, axis=2)


def _in_groups(
    records: NDArray[np.intp], groups: NDArray[np.intp]
) -> tuple[NDArray[np.intp], NDArray[np.intp], NDArray[np.intp]]:
    """These records ordered by group, the groups that they have, and where each begins (and the last ends)."""
    order = records[np.argsort(groups[records], kind="stable")]
    labels, starts = np.unique(groups[order], return_index=True)
    return order, labels, np.append(starts, len(order))


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
    x_a, x_b), weights adding up to the records that have both. `own` are the products of (1, own columns) by the
    records' own weights, None where they have none; `groups` how many groups have records."""

    capped: int
    unlikely: int
    rare: int
    groups: int
    grams: dict[Pair, Matrix]
    own: Matrix | None


class WeightedComputation(VerifiedStages):
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
            discloses="which pseudonymous records a party has, to the response holder"
            + (", and which group each is in" if layout.cluster_party in layout.others else ""),
            reply_bytes=facts.n // 8 + (2 * facts.n if layout.cluster_party in layout.others else 0),
        )
        self.weigh = stage(
            f"{layout.label}: weights",
            weigh_presence,
            {holder: [arguments]},
            facts=facts,
            roster=roster,
            discloses="how many records have a capped weight or an unlikely block, how many levels are rare, and how"
            " many groups have records",
            reply_bytes=64,
        )
        primes, holders = len(layout.field.primes), len(roster.committee)
        start, stop = layout.chunks[0]
        rows = 8 * primes * (stop - start) * max(map(layout.width, layout.parties)) // 3
        self.share = self.stage(
            "share rows",
            share_rows,
            roster.names,
            [{"number": number} for number in range(len(layout.chunks))],
            discloses=f"secret shares of {layout.rows}, of sums and of noise; the presence mask to the holders",
            reply_bytes=holders * (rows + 8 * primes * sum(layout.openings)),
        )
        self.multiply = self.stage(
            "multiply",
            multiply_shares,
            roster.committee,
            [{"number": 0, "level": part + 1} for part in range(layout.parts)],
            discloses=f"secret shares of products of the parties' {layout.rows}",
            reply_bytes=holders
            * min(PRODUCT_BYTES, facts.n * sum(map(layout.product_width, layout.pairs)) * 4 * primes),
        )
        influence_bytes = 4 * primes * layout.groups * layout.outputs
        self.influence = stage(
            f"{layout.label}: influences",
            share_influences,
            {holder_name: [{**arguments, "forms": []}] for holder_name in roster.committee},
            facts=facts,
            roster=roster,
            audience=self.multiply.audience,
            discloses="secret shares of the influences of groups of records",
            reply_bytes=holders * influence_bytes,
            later={"forms": later_forms(layout)},
        )
        self.stages = (self.presence, self.weigh, self.share, self.multiply, *self.opening(), self.influence)

    def weighted(self, job: Job) -> WeightedMoments:
        """The first opening."""
        layout = self.layout
        job.ask(self.presence)
        remarks = job.ask(self.weigh)[layout.response_party]
        for _ in layout.chunks:
            job.ask(self.share)
        for _ in range(layout.parts):
            job.ask(self.multiply)
        opened = self.opened(job).astype(np.float64) / (layout.gamma**2 * WEIGHT)
        capped, unlikely, rare, groups = (int(count) for count in remarks)
        return WeightedMoments(capped, unlikely, rare, groups, *self._grams(opened))

    def _grams(self, opened: NDArray[np.float64]) -> tuple[dict[Pair, Matrix], Matrix | None]:
        layout, start = self.layout, 0
        own = layout.own_width
        grams = {pair: np.zeros((own + layout.product_width(pair),) * 2) for pair in layout.pairs}
        sizes = layout.pieces[len(layout.masks) :]
        for (pair, (first, second)), size in zip(layout.terms, sizes[: len(layout.terms)], strict=True):
            rows, columns = self._places(pair, first), self._places(pair, second)
            block = opened[start : start + size].reshape(rows.stop - rows.start, -1)
            grams[pair][rows, columns] = block
            grams[pair][columns, rows] = block.T
            start += size
        upper = np.triu_indices(own)
        triangles = opened[start:].reshape(layout.own_sums, -1)
        for pair, triangle in zip(layout.pairs, triangles, strict=False):
            grams[pair][upper], grams[pair].T[upper] = triangle, triangle
        if layout.weights is None:
            return grams, None
        by_records = np.zeros((own, own))
        by_records[upper], by_records.T[upper] = triangles[-1], triangles[-1]
        return grams, by_records

    def _places(self, pair: Pair, party: str) -> slice:
        """Where a party's columns are in a pair's Gram matrix."""
        layout = self.layout
        if party == layout.response_party:
            return slice(0, layout.own_width)
        before = itertools.takewhile(lambda own: own != party, layout.pair_parties(pair))
        start = layout.own_width + sum(map(layout.width, before))
        return slice(start, start + layout.width(party))

    def covariance(
        self,
        job: Job,
        patterns: Mapping[tuple[bool, ...], NDArray[np.float64]],
        pairs: Mapping[Pair, NDArray[np.float64]],
        own: NDArray[np.float64],
    ) -> Matrix:
        """sum_g u_g u_g' (output, output), the second opening.

        The forms are (output, entry, entry): of (1, columns) for each pattern that occurs, of a pair's Gram matrix, and
        of the products within the response holder by the records' own weights.
        """
        layout = self.layout
        real = [*self._pattern_pieces(patterns), *self._pair_pieces(pairs, own)]
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

    def _pair_pieces(self, pairs: Mapping[Pair, NDArray[np.float64]], own: NDArray[np.float64]) -> Iterator[Matrix]:
        layout = self.layout
        unit = layout.gamma**2 * WEIGHT
        for pair, (first, second) in layout.terms:
            part = pairs[pair][:, self._places(pair, first), self._places(pair, second)]
            yield (1.0 if first == second else 2.0) * part.reshape(layout.outputs, -1) / unit
        i, j = np.triu_indices(layout.own_width)
        sums = [pairs[pair] for pair in layout.pairs] + ([] if layout.weights is None else [own])
        for form in sums:
            yield np.where(i == j, 1.0, 2.0) * form[:, i, j] / unit


# --- the parties' steps -----------------------------------------------------------------------------------


def _layout(public: Public | Party, layout: Mapping[str, Any]) -> WeightedLayout:
    return WeightedLayout.from_dict(public.facts, public.roster, layout)


def _presence_tag(layout: WeightedLayout) -> str:
    return f"presence for {layout.tag}"


def _groups_tag(layout: WeightedLayout) -> str:
    return f"groups for {layout.tag}"


def _cluster_cost(layout: WeightedLayout) -> Cost:
    shown = f"which of {layout.groups} groups of whole clusters each pseudonymous record is in"
    return Unbounded("cluster-groups", shown, audience=f"share holders, {layout.response_party}")


def _presence_cost(public: Public, *, layout: dict[str, Any]) -> Cost:
    statistic = _layout(public, layout)
    shown = "which pseudonymous records a party has, to the response holder"
    presence = Unbounded("presence", shown, audience=statistic.response_party)
    return compose([presence, _cluster_cost(statistic)]) if public.party == statistic.cluster_party else presence


@step(cost=_presence_cost)
def tell_presence(me: Party, *, layout: dict[str, Any]) -> Release:
    """Tell the response holder which records of the cohort this party has, and their groups where it has clusters."""
    statistic = _layout(me, layout)
    if me.name not in statistic.others:
        raise UnsafeRequest(f"{me.name!r} is not one of the parties whose presence is weighed.")
    me.send(statistic.response_party, _presence_tag(statistic), np.packbits(statistic.present(me)))
    if me.name == statistic.cluster_party:
        me.send(statistic.response_party, _groups_tag(statistic), own_groups(me, statistic))
    return Release(None, "nothing: the mask travels sealed")


def own_groups(me: Party, statistic: WeightedLayout) -> NDArray[np.uint16]:
    """The group of each record, drawn by the holder of the clusters and kept for the share holders."""
    assert statistic.clusters is not None
    values = np.asarray(me.column(statistic.clusters), dtype=np.float64)
    known = statistic.present(me) & ~np.isnan(values) & (values >= 0)
    groups = cluster_groups(values, known, statistic.groups, me.randomness)
    me.keep(f"{statistic.tag}: own groups", groups)
    return groups


def cluster_groups(
    values: NDArray[np.float64], known: NDArray[np.bool_], groups: int, randomness: Randomness
) -> NDArray[np.uint16]:
    """Whole clusters to groups: each its own if there are enough groups, otherwise the largest clusters first, each to
    the group that is smallest so far. Which group is which is random, and so is that of a record without a cluster."""
    out = randomness.below(groups, len(values)).astype(np.uint16)
    _, member, sizes = np.unique(values[known], return_inverse=True, return_counts=True)
    names = np.argsort(randomness.words(groups))
    heap = [(0, place) for place in range(groups)]
    group_of = np.zeros(len(sizes), dtype=np.uint16)
    for cluster in np.argsort(-sizes, kind="stable"):
        size, place = heapq.heappop(heap)
        group_of[cluster] = names[place]
        heapq.heappush(heap, (size + int(sizes[cluster]), place))
    out[known] = group_of[member.reshape(-1)]
    return out


def checked_groups(told: Any, layout: WeightedLayout) -> NDArray[np.intp]:
    groups = np.asarray(told)
    if groups.dtype != np.uint16 or groups.shape != (layout.facts.n,) or (groups >= layout.groups).any():
        raise UnsafeRequest(f"{layout.cluster_party!r} sent groups of another shape than the layout says.")
    return groups.astype(np.intp)


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
    shares = np.array([(present[records, a] & present[records, b]).mean() for a, b in fitted.pairs])
    real = fitted.weights * shares * WEIGHT
    if statistic.weights is not None:
        # Scales cancel where weights are normalised, so the largest one decides: none is cut.
        by_record = np.asarray(me.column(statistic.weights), dtype=np.float64)[records]
        real = np.column_stack([real, np.full(len(records), WEIGHT)]) * by_record[:, None]
        real *= LARGEST_WEIGHT / max(real.max(), 1e-300)
    integers = np.zeros((n, real.shape[1]), dtype=np.int64)
    integers[records] = np.clip(np.rint(real), 0, LARGEST_WEIGHT)
    me.keep(f"{statistic.tag}: weights", integers[:, : len(fitted.pairs)])
    if statistic.weights is not None:
        me.keep(f"{statistic.tag}: record weights", integers[:, -1])
    used = statistic.groups
    if statistic.cluster_party is not None:
        if statistic.cluster_party == me.name:
            groups = own_groups(me, statistic)
        else:
            told = received_from(me, _groups_tag(statistic), [statistic.cluster_party])[statistic.cluster_party]
            groups = np.asarray(told)
            me.keep(f"{statistic.tag}: own groups", groups)
        used = len(np.unique(checked_groups(groups, statistic)[records]))
    counts = [fitted.capped, fitted.unlikely, fitted.rare, used]
    return Release(counts, "four counts over the response holder's records")


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
    facts: PublicFacts,
    roster: Roster,
    names: tuple[str, ...],
    gamma: int,
    groups: int,
    *,
    clusters: str | None = None,
    weights: str | None = None,
) -> WeightedLayout:
    layout = WeightedLayout(
        facts=facts,
        roster=roster,
        names=names,
        gamma=min(gamma, LARGEST_GAMMA),
        groups=min(groups, facts.n),
        clusters=clusters,
        weights=weights,
    )
    layout.check()
    return layout
