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
from dataclasses import dataclass, fields
from functools import cached_property
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from colonnade.errors import BadArguments, SchemaError, UnsafeRequest
from colonnade.federation import wire
from colonnade.federation.facts import PublicFacts
from colonnade.federation.job import Job
from colonnade.federation.options import Verification, View
from colonnade.federation.party import Party
from colonnade.federation.roster import Roster
from colonnade.federation.stage import Later, Stage, fields_of, stage
from colonnade.federation.step import Public, Release, step
from colonnade.models.linear.propensity import CAP, Pair, block_pairs, presence_weights
from colonnade.models.linear.weighted_proof import InfluenceProof, PairProof
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
from colonnade.secure.claims import Factors, gram_factors, gram_weights
from colonnade.secure.extension import Extension
from colonnade.secure.field import BATCH_ROWS, Field, Residues, primes_for
from colonnade.secure.seeded import Shape, materialize
from colonnade.statistics.features import WithResponse, design, stochastic_round
from colonnade.statistics.gaussian_em import Matrix
from colonnade.statistics.joint import (
    COMPARING,
    HeldNoise,
    colluders,
    compare_shares,
    multiply_shares,
    open_shares,
    share_rows,
)
from colonnade.statistics.shares import (
    blinds_of,
    deal,
    deal_large,
    deal_noise,
    deal_product,
    dealt,
    messages,
    noise_part,
    received_from,
    received_masks,
    recombined,
    require_holder,
    shares_of,
    state_dealing,
    take_dealings,
)
from colonnade.statistics.verified import VerifiedStages, opened_once, verification_stages

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
class WeightedLayout(WithResponse, HeldNoise):
    """`names` are the covariates, then the response; `groups` of records, runs of them or of whole `clusters`.

    The response holder shares (1, its columns, one weight for each pair of the others), the others their columns.
    `weights` is a column of the response holder by which every record counts. Rows are shared modulo the primes that
    influences need; the weighted moments are opened, and proven, modulo the first few of these.
    """

    kind: ClassVar[str] = "weighted moments"
    exact: ClassVar[tuple[str, str]] = ("exact-moments", "exact counts, sums and products of the columns")
    rows: ClassVar[str] = "quantised rows and weights"
    results: ClassVar[str] = "weighted products and products of group influences"
    """Of this opening, and of the one that follows it."""

    proof_width: ClassVar[int] = 32

    names: tuple[str, ...]
    gamma: int
    groups: int
    clusters: str | None = None
    weights: str | None = None
    label: str = "weighted"

    def check(self) -> None:
        if not 1 <= self.gamma <= LARGEST_GAMMA or not 2 <= self.groups <= self.facts.n:
            raise BadArguments("gamma must be from 1 to 2^14, groups from 2 to n.")
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

    @property
    def cluster_party(self) -> str | None:
        return None if self.clusters is None else self.facts.owner(self.clusters)

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
        return [self.size]

    @property
    def size(self) -> int:
        """All weighted products."""
        return sum(self.pieces[len(self.masks) :])

    @cached_property
    def field(self) -> Field:
        """Holds the weighted products of all records."""
        return Field(primes_for((self.facts.n * self.gamma**2 * LARGEST_WEIGHT).bit_length() + 1))

    @cached_property
    def rows_field(self) -> Field:
        """Holds products of two influences, summed over the groups, and the weighted products of all records."""
        record = (self.gamma**2 * LARGEST_WEIGHT) << FORM_BITS
        group = -(-self.facts.n // self.groups)
        largest = self.groups * (group * record) ** 2 if self.clusters is None else (self.facts.n * record) ** 2
        return Field(primes_for(max(largest, self.facts.n * self.gamma**2 * LARGEST_WEIGHT).bit_length() + 1))

    @cached_property
    def chunks(self) -> list[tuple[int, int]]:
        """The cohort's rows in ranges whose shares travel together."""
        record = 8 * len(self.rows_field.primes) * max(map(self.width, self.parties)) / 3
        rows = max(1, int(MAIL_BYTES / record) // BATCH_ROWS) * BATCH_ROWS
        return [(start, min(start + rows, self.facts.n)) for start in range(0, self.facts.n, rows)]

    @cached_property
    def parts(self) -> int:
        """In so many parts the products are dealt again, each with as many records of every pair as the others."""
        record = 4 * len(self.rows_field.primes) * sum(map(self.product_width, self.pairs))
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

    @property
    def dealt_tag(self) -> str:
        """Begins the tags of what the parties deal, of the products, and of what is kept of these."""
        return self.tag

    def rows_tag(self, number: int) -> str:
        return f"{self.dealt_tag}: rows {number}"

    def share(self, me: Party, number: int) -> None:
        """A party rounds its values once, with the first chunk: sums and products are of the same integers."""
        if number == 0:
            rows = self._quantised(me)
            for chunk, (start, stop) in enumerate(self.chunks):
                me.keep(f"{self.dealt_tag}: quantised {chunk}", rows[start:stop])
            for holder in me.roster.committee:
                me.send(holder, f"{self.dealt_tag}: mask", np.packbits(self.present(me)))
                if me.name == self.cluster_party:
                    me.send(holder, f"{self.dealt_tag}: groups", me.recall(f"{self.dealt_tag}: own groups"))
            if me.name == self.response_party:
                deal(me, f"{self.dealt_tag}: sums", self.rows_field, self._own_sums(me, rows))
        deal_large(me, self.rows_tag(number), self.rows_field, me.recall(f"{self.dealt_tag}: quantised {number}"))

    def share_noise(self, me: Party, number: int) -> None:
        """Of both openings; there is none, so zeros."""
        for name, field, size in self._noises:
            drawn = noise_part(me, mu=0, size=size)
            deal_noise(me, f"{self.dealt_tag}: {name}", field, drawn, parts=bool(self.verify))

    @property
    def _noises(self) -> list[tuple[str, Field, int]]:
        triangle = self.outputs * (self.outputs + 1) // 2
        return [
            (WeightedLayout.noise_name, self.field, self.size),
            (InfluenceLayout.noise_name, self.rows_field, triangle),
        ]

    def _quantised(self, me: Party) -> NDArray[np.int64]:
        mine = self.own_features(me.name)
        scaled = stochastic_round(design(me, mine, filled=self.filled) * self.gamma, me.randomness)
        rows = np.clip(scaled, -self.gamma, self.gamma)
        if me.name != self.response_party:
            return rows
        weights = np.asarray(me.recall(f"{self.dealt_tag}: weights"), dtype=np.int64)
        constant = np.where(self.present(me), self.gamma, 0)
        return np.column_stack([constant, rows, weights])

    def _own_sums(self, me: Party, rows: NDArray[np.int64]) -> NDArray[np.int64]:
        """For each group the weighted products within the response holder."""
        upper = np.triu_indices(self.own_width)
        sums = np.zeros((self.groups, self.own_sums, self._own_triangle), dtype=np.int64)
        own, weights = rows[:, : self.own_width], rows[:, self.own_width :]
        if self.weights is not None:
            weights = np.column_stack([weights, me.recall(f"{self.dealt_tag}: record weights")])
        groups = me.recall(f"{self.dealt_tag}: own groups") if self.clusters is not None else self._runs
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

    def masks_of(self, me: Party) -> NDArray[np.bool_]:
        """Which party has which record (party, record)."""
        packed = messages(me, f"{self.dealt_tag}: mask", self.parties, keep=True)
        bits = np.array([np.asarray(packed[party], dtype=np.uint8) for party in self.parties])
        if bits.shape != (len(self.parties), -(-self.facts.n // 8)):
            raise UnsafeRequest("a member sent a mask of another length than the layout says; nothing is opened.")
        return np.unpackbits(bits, axis=1, count=self.facts.n).astype(bool)

    def with_response(self, me: Party) -> dict[str, NDArray[np.bool_]]:
        """Which records each party has of those with the response."""
        has = dict(zip(self.parties, self.masks_of(me), strict=True))
        return {party: own & has[self.response_party] for party, own in has.items()}

    def _group_of(self, me: Party) -> NDArray[np.intp]:
        """The group of each record."""
        if self.cluster_party is None:
            return self._runs
        told = messages(me, f"{self.dealt_tag}: groups", [self.cluster_party], keep=True)[self.cluster_party]
        return checked_groups(told, self)

    def alike(self, me: Party) -> Mapping[str, bytes]:
        sent = {party: mask.tobytes() for party, mask in zip(self.parties, self.masks_of(me), strict=True)}
        if self.cluster_party is not None:
            sent[self.cluster_party] += self._group_of(me).tobytes()
        return sent

    def _pair_records(self, me: Party) -> dict[Pair, NDArray[np.intp]]:
        """The records with the response that both parties of a pair have."""
        has = dict(zip(self.parties, self.masks_of(me), strict=True))
        return {
            pair: np.flatnonzero(np.all([has[self.response_party], *(has[p] for p in self.pair_parties(pair))], axis=0))
            for pair in self.pairs
        }

    def _multiplied(self, records: Mapping[Pair, NDArray[np.intp]], me: Party) -> dict[Pair, NDArray[np.intp]]:
        """The same of the pairs whose weights differ. Where all records have both blocks each weighs 1, as all know."""
        used = self.masks_of(me)[self.parties.index(self.response_party)].sum()
        return {pair: own[:0] if len(own) == used and self.weights is None else own for pair, own in records.items()}

    def multiplied_pairs(self, me: Party) -> dict[Pair, NDArray[np.intp]]:
        """The records of each pair whose products are dealt again, as far as there are some."""
        multiplied = self._multiplied(self._pair_records(me), me)
        return {pair: own for pair, own in multiplied.items() if own.size}

    def in_part(self, records: NDArray[np.intp], part: int) -> slice:
        return slice(part * len(records) // self.parts, (part + 1) * len(records) // self.parts)

    def held(self, me: Party, what: str, number: int = 0) -> dict[str, Residues]:
        """This holder's shares of every member's noise or its blinds, or of the sums within the response holder."""
        name = f"{self.dealt_tag}: held {what}"
        if not me.kept(name):
            senders = [self.response_party] if what == "sums" else me.roster.names
            of_sums = what == "sums" or what.startswith(InfluenceLayout.noise_name)
            me.keep(name, dealt(me, f"{self.dealt_tag}: {what}", senders, self.rows_field if of_sums else self.field))
        shares: dict[str, Residues] = me.recall(name)
        return {sender: self._opened_layers(residues) for sender, residues in shares.items()}

    def _opened_layers(self, residues: Residues) -> Residues:
        """Modulo the primes of the opening; there are no fewer of those of the rows."""
        return residues[: len(self.field.primes)]

    def put_away(self, me: Party, number: int) -> None:
        if number == 0:
            self.masks_of(me)
            self._group_of(me)
            self.held(me, "sums")
            for name, _, _ in self._noises:
                for part in (name, *(blinds_of(me.roster, name) if self.verify else [])):
                    self.held(me, part)
        messages(me, self.rows_tag(number), self.parties, layers=len(self.rows_field.primes), keep=True)

    def _blocks(self, me: Party, field: Field, low: int, high: int) -> Iterator[tuple[int, dict[str, Residues]]]:
        """(the first record, shares of each party's rows, modulo the primes of `field`) of blocks of records, as far as
        they are from low to high."""
        for number, (start, stop) in enumerate(self.chunks):
            if stop <= low or start >= high:
                continue
            rows = messages(me, self.rows_tag(number), self.parties, layers=len(self.rows_field.primes), keep=True)
            layers = len(field.primes)
            rows = {party: own[:layers] if isinstance(own, list) else own for party, own in rows.items()}
            lengths = {party: (stop - start, self.width(party)) for party in self.parties}
            shares = shares_of(me, rows, field, lengths)
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
        records = {pair: own[self.in_part(own, part)] for pair, own in multiplied.items()}
        filled = [own for own in records.values() if own.size]
        low, high = (
            min((int(own[0]) for own in filled), default=0),
            max((int(own[-1]) + 1 for own in filled), default=0),
        )
        products: dict[Pair, list[Product]] = {pair: [] for pair in self.pairs}
        for first, rows in self._blocks(me, self.rows_field, low, high):
            size = rows[self.response_party].shape[1]
            for place, (pair, own) in enumerate(records.items()):
                inside = own[slice(*np.searchsorted(own, [first, first + size]))] - first
                if inside.size:
                    column = self.own_width + place
                    weight = rows[self.response_party][:, inside, column : column + 1]
                    values = np.concatenate([rows[party][:, inside] for party in self.pair_parties(pair)], axis=2)
                    products[pair].append(multiply(self.rows_field, weight, values))
        nothing = lift(self.rows_field, self.rows_field.zeros((1, LANE)))
        together = [product for pair in self.pairs for product in products[pair]] or [nothing]
        deal_product(me, f"{self.dealt_tag}: products {part}", Product.in_rows(together, LANE))

    def _put_products_away(self, me: Party, part: int) -> None:
        """All holders have dealt their shares of a part again: together they make a share of degree t."""
        name = f"{self.dealt_tag}: products {part}"
        if not me.kept(f"{name}, joined"):
            lengths = self._product_shape(self._multiplied(self._pair_records(me), me), part)
            if self.verify:
                messages(me, name, me.roster.committee, layers=len(self.rows_field.primes), keep=True)
            me.keep(f"{name}, joined", recombined(me, name, self.rows_field, lengths))

    def _products(self, me: Party, records: Mapping[Pair, NDArray[np.intp]], part: int) -> dict[Pair, Residues]:
        """{pair: v x of the records of one part}."""
        joined = me.recall(f"{self.dealt_tag}: products {part}, joined")
        return self._by_pair(self._opened_layers(joined), records, part)

    def dealt_products(self, me: Party, part: int) -> Iterator[dict[Pair, Residues]]:
        """The same of what each holder has dealt to this one."""
        records = self._multiplied(self._pair_records(me), me)
        name, layers = f"{self.dealt_tag}: products {part}", len(self.field.primes)
        received = messages(me, name, me.roster.committee, layers=len(self.rows_field.primes), keep=True)
        for holder in me.roster.committee:
            own = received[holder]
            first = {holder: own[:layers] if isinstance(own, list) else own}
            share = shares_of(me, first, self.field, {holder: self._product_shape(records, part)})[holder]
            yield self._by_pair(materialize(share), records, part)

    def _product_shape(self, records: Mapping[Pair, NDArray[np.intp]], part: int) -> tuple[int, int]:
        """In which the products of a part travel."""
        entries = sum(len(own[self.in_part(own, part)]) * self.product_width(pair) for pair, own in records.items())
        return max(1, -(-entries // LANE)), LANE

    def _by_pair(self, lanes: Residues, records: Mapping[Pair, NDArray[np.intp]], part: int) -> dict[Pair, Residues]:
        flat = lanes.reshape(len(lanes), -1)
        out, start = {}, 0
        for pair, own in records.items():
            count, width = len(own[self.in_part(own, part)]), self.product_width(pair)
            out[pair] = flat[:, start : start + count * width].reshape(len(flat), count, width)
            start += count * width
        return out

    def weighted_blocks(
        self, me: Party
    ) -> Iterator[tuple[int, dict[str, Residues], dict[Pair, tuple[NDArray[np.intp], Residues]]]]:
        """(the first record, all rows, {pair: (its records in this block, v x of these)}), block by block."""
        records = self._pair_records(me)
        multiplied = self._multiplied(records, me)
        loaded: dict[int, dict[Pair, Residues]] = {}
        for first, rows in self._blocks(me, self.field, 0, self.facts.n):
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
                    inside = self.in_part(own, part)
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

    def hold(self, me: Party, number: int) -> None:
        """All of it was kept when it came."""

    def combine(self, me: Party, number: int) -> Residues:
        noise = self.held_noise(me)
        self._put_products_away(me, self.parts - 1)
        totals = {
            pair: lift(
                self.field,
                self.field.zeros((self.product_width(pair), self.own_width + self.width(self.others[pair[1]]))),
            )
            for pair in self.pairs
        }
        for _, rows, weighted in self.weighted_blocks(me):
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

    # --- what is verified (`weighted_proof.py`) -------------------------------------------------------------

    @property
    def claim_length(self) -> int:
        return self.facts.n * len(self.parties)

    def claimed_products(self, me: Party) -> int:
        """A product for each record with the response and party that has it."""
        return max(1, sum(int(own.sum()) for own in self.with_response(me).values()))

    def opening_weights(self, extension: Extension, seed: bytes, number: int) -> Residues:
        return np.concatenate(
            [*PairProof(self, extension, seed).term_weights(), self._sum_weights(extension, seed)], axis=1
        )

    def _sum_weights(self, extension: Extension, seed: bytes) -> Residues:
        """Of the sums that lie within the response holder."""
        return extension.uniform((self.own_sums * self._own_triangle,), seed=seed, label="sums")

    def claim_factors(self, me: Party, extension: Extension, seed: bytes) -> Iterator[Factors]:
        yield from PairProof(self, extension, seed).factors(me)

    def claim_products(self, me: Party, extension: Extension, seed: bytes) -> Residues:
        return PairProof(self, extension, seed).dealt_again(me)

    def claim_sums(self, me: Party, extension: Extension, seed: bytes) -> Residues:
        own = self.field.sum(self.held(me, "sums")[self.response_party])
        return extension.combine(own.reshape(len(own), -1), self._sum_weights(extension, seed))


@dataclass(frozen=True, kw_only=True)
class InfluenceLayout(WeightedLayout):
    """The second opening: products of the groups' influences, which are public forms of what was shared for the first.

    `forms` is the digest of these forms, which follow from the moments that were opened.
    """

    kind: ClassVar[str] = "group influences"
    results: ClassVar[str] = "products of group influences"
    adaptive: ClassVar[tuple[str, ...]] = ("forms",)
    noise_name: ClassVar[str] = "noise of influences"

    forms: str = ""
    label: str = "influences"

    @cached_property
    def dealt_tag(self) -> str:
        stated = {name: value for name, value in self.to_dict().items() if name not in ("kind", "forms", "label")}
        return WeightedLayout.from_dict(
            self.facts, self.roster, {**stated, "kind": WeightedLayout.kind, "label": WeightedLayout.label}
        ).tag

    @property
    def mail_tags(self) -> tuple[str, ...]:
        return (self.tag, self.dealt_tag)

    @property
    def openings(self) -> list[int]:
        return [self.outputs * (self.outputs + 1) // 2]

    @property
    def field(self) -> Field:
        return self.rows_field

    def share(self, me: Party, number: int) -> None:
        raise UnsafeRequest("influences are of rows that were shared for the weighted moments.")

    def share_noise(self, me: Party, number: int) -> None:
        raise UnsafeRequest("the noise of influences is shared with the rows.")

    def multiply(self, me: Party, number: int, level: int) -> None:
        raise UnsafeRequest("influences are of products that were dealt for the weighted moments.")

    def share_influences(self, me: Party, forms: Sequence[NDArray[np.int64]]) -> None:
        """Deal this holder's share of every group's influences again, at degree t."""
        me.keep(f"{self.tag}: forms", list(forms))
        shares = reshare(
            self._influences(me, forms),
            holders=len(me.roster.committee),
            threshold=me.roster.threshold,
            randomness=me.randomness,
        )
        for holder, residues in zip(me.roster.committee, shares, strict=True):
            me.send(holder, f"{self.tag}: influences", residues)

    def combine(self, me: Party, number: int) -> Residues:
        sharings = dealt(me, f"{self.tag}: influences", me.roster.committee, self.field)
        if any(own.shape[1:] != (self.groups, self.outputs) for own in sharings.values()):
            raise UnsafeRequest("a holder dealt influences of another shape than the layout says.")
        if self.verify:
            me.keep(f"{self.tag}: influences of each holder", [sharings[holder] for holder in me.roster.committee])
        shares = self._recombined(list(map(sharings.__getitem__, me.roster.committee)))
        return open_product(gram(self.field, shares).upper(), noise=self.held_noise(me), parties=me.roster.names)

    def _recombined(self, sharings: Sequence[Residues]) -> Residues:
        return recombine(self.field, dict(enumerate(sharings)), threshold=self.roster.threshold)

    def _influences(self, me: Party, forms: Sequence[NDArray[np.int64]]) -> Product:
        """This holder's share, of degree 2t, of every group's influences (group, output)."""
        within = self.held(me, "sums")[self.response_party]
        pieces = [own.product for own in self._group_sums(me, forms)]
        pieces += [lift(self.field, np.ascontiguousarray(within[:, :, place])) for place in range(self.own_sums)]
        total = pieces[0].mapped(forms[0])
        for piece, form in zip(pieces[1:], forms[1:], strict=True):
            total = total + piece.mapped(form)
        return total

    def _group_sums(self, me: Party, forms: Sequence[NDArray[np.int64]]) -> list[GroupSums]:
        """The products of each pattern whose form is not 0, and of each term, summed by group. A verification needs
        them again: remembered if there is room."""
        size = 4 * len(self.field.primes) * self.groups * sum(self.pieces[: -self.own_sums])
        if not self.verify:
            return self._summed_by_group(me, forms)
        return me.remembered(f"{self.tag}: group sums", size, lambda: self._summed_by_group(me, forms))

    def _summed_by_group(self, me: Party, forms: Sequence[NDArray[np.int64]]) -> list[GroupSums]:
        masks, groups = self.masks_of(me), self._group_of(me)
        sums = [GroupSums(self.field, self.groups, size) for size in self.pieces[: -self.own_sums]]
        terms = list(enumerate(self.terms, start=len(self.masks)))
        for first, rows, weighted in self.weighted_blocks(me):
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
        return sums

    def _columns(self, rows: Mapping[str, Residues], mask: Sequence[bool], match: NDArray[np.intp]) -> Residues:
        """(1, the columns of the pattern's parties), in the order of the layout."""
        parts = [rows[self.response_party][:, match, :1]]
        for has, party in zip(mask, self.parties, strict=True):
            if has:
                first = 1 if party == self.response_party else 0
                width = len(self.own_features(party))
                parts.append(rows[party][:, match, first : first + width])
        return np.concatenate(parts, axis=2)

    # --- what is verified (`weighted_proof.py`) -------------------------------------------------------------

    @property
    def claim_length(self) -> int:
        """A product for each record and party, and for each group in the products of influences."""
        return super().claim_length + self.groups

    def claimed_products(self, me: Party) -> int:
        return super().claimed_products(me) + self.groups

    @property
    def sums_length(self) -> int:
        return sum(self.pieces[: -self.own_sums]) if self.verify else 0

    def claim_matrices(self, me: Party, extension: Extension, seed: bytes) -> Product:
        """The sums of products of all groups, combined."""
        weights = np.swapaxes(InfluenceProof(self, extension, seed).groups, 1, 2)
        sums = self._group_sums(me, me.recall(f"{self.tag}: forms"))
        combined = Product.beside([own.product.combined(weights) for own in sums])
        me.forget(me.job)
        return combined

    def opening_weights(self, extension: Extension, seed: bytes, number: int) -> Residues:
        return gram_weights(extension, self._output_vector(extension, seed))

    def _output_vector(self, extension: Extension, seed: bytes) -> Residues:
        return extension.uniform((self.outputs,), seed=seed, label="outputs")

    def _pattern_scales(self, me: Party, extension: Extension, seed: bytes) -> dict[tuple[bool, ...], Residues]:
        """e, of the patterns whose sums are used."""
        drawn = extension.uniform((len(self.masks),), seed=seed, label="patterns")
        forms = me.recall(f"{self.tag}: forms")
        return {mask: drawn[:, place] for place, mask in enumerate(self.masks) if forms[place].any()}

    def claim_factors(self, me: Party, extension: Extension, seed: bytes) -> Iterator[Factors]:
        second = self.second_challenge(me)
        groups = self._group_of(me), InfluenceProof(self, extension, seed).groups
        patterns = self._pattern_scales(me, extension, second)
        yield from PairProof(self, extension, second).factors(me, groups=groups, patterns=patterns)
        shares = self._recombined(me.recall(f"{self.tag}: influences of each holder"))
        yield gram_factors(extension, shares, self._output_vector(extension, seed))

    def _link(self, extension: Extension, seed: bytes) -> Residues:
        """rho, of the claim that influences are the forms of the sums."""
        return extension.uniform((1,), seed=seed, label="forms")[:, 0]

    def claim_products(self, me: Party, extension: Extension, seed: bytes) -> Residues:
        second = self.second_challenge(me)
        pairs, proof = PairProof(self, extension, second), InfluenceProof(self, extension, seed)
        rho = self._link(extension, second)
        scales = self._pattern_scales(me, extension, second)
        weights = []
        for mask, size in zip(self.masks, self.pieces, strict=False):
            none = extension.zeros((size,))
            weights.append(extension.scale(pairs.pattern_weights(mask), scales[mask]) if mask in scales else none)
        every = np.concatenate([*weights, *pairs.term_weights()], axis=1)
        combined = np.concatenate(proof.forms(me.recall(f"{self.tag}: forms")[: -self.own_sums]), axis=1)
        every = extension.sub(every, extension.scale(combined, rho))
        total = pairs.dealt_again(me)
        dealt_sums = self.dealt_matrices(me)
        for place, influences in enumerate(me.recall(f"{self.tag}: influences of each holder")):
            linked = extension.mul(proof.of_dealt(influences), rho)
            own = extension.add(extension.inner(dealt_sums[:, place], every), linked)
            total[:, place] = extension.add(total[:, place], own)
        return total

    def claim_sums(self, me: Party, extension: Extension, seed: bytes) -> Residues:
        proof = InfluenceProof(self, extension, seed)
        forms = np.concatenate(proof.forms(me.recall(f"{self.tag}: forms")[-self.own_sums :]), axis=1)
        own = self.held(me, "sums")[self.response_party]
        sums = own.reshape(len(own), self.groups, -1)
        return extension.mul(proof.of_sums(sums, forms), self._link(extension, self.second_challenge(me)))


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


def _is_digest(value: Any) -> bool:
    return isinstance(value, str) and len(value) == 32


def influence_layout(layout: WeightedLayout) -> InfluenceLayout:
    """The second opening of the same rows."""
    stated = {field.name: getattr(layout, field.name) for field in fields(layout) if field.name != "label"}
    return InfluenceLayout(**stated)


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
        primes, holders = len(layout.rows_field.primes), len(roster.committee)
        start, stop = layout.chunks[0]
        rows = 8 * primes * (stop - start) * max(map(layout.width, layout.parties)) // 3
        self.share = self.stage(
            "share rows",
            share_rows,
            roster.names,
            [{"number": number} for number in range(len(layout.chunks))],
            discloses=f"secret shares of {layout.rows}, of sums and of noise; the presence mask to the holders",
            reply_bytes=holders * (rows + 8 * primes * (layout.size + layout.outputs * (layout.outputs + 1) // 2)),
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
        self.second = influence_layout(layout)
        self.influence = stage(
            f"{layout.label}: influences",
            share_influences,
            {holder_name: [{"layout": self.second.to_dict(), "forms": []}] for holder_name in roster.committee},
            facts=facts,
            roster=roster,
            audience=self.multiply.audience,
            discloses="secret shares of the influences of groups of records",
            reply_bytes=holders * influence_bytes,
            later={"forms": later_forms(layout)},
        )
        compare, opening = self._both_openings()
        self.stages = (
            *(self.presence, self.weigh, self.share, self.multiply),
            *(compare, *self._verification[0], opening),
            *(self.influence, *self._verification[1]),
        )

    def _both_openings(self) -> tuple[Stage, Stage]:
        """Compare and open, the weighted moments first and then the products of influences; and the verification of
        each."""
        layout, second = self.layout, self.second
        chosen = {
            "chosen": fields_of("the digest of the forms of influences that all holders were given", forms=_is_digest)
        }
        last = {**self._arguments, "layout": second.to_dict(), "chosen": {"forms": ""}}
        both = [{**own, "number": 0} for own in (self._arguments, last)]
        requests = dict.fromkeys(layout.roster.committee, both)
        public: dict[str, Any] = {"facts": layout.facts, "roster": layout.roster, "later": chosen}
        self.compare = stage(f"{layout.label}: compare", compare_shares, requests, **COMPARING, **public)
        self.open = stage(
            f"{layout.label}: open",
            open_shares,
            requests,
            discloses=f"shares of the {layout.results}, which the coordinator joins",
            reply_bytes=max(4 * len(each.field.primes) * max(each.openings) for each in (layout, second)),
            **public,
        )
        self._verification: tuple[tuple[Stage, ...], ...] = ((), ())
        if layout.verify:
            self._verification = (
                verification_stages(layout, [self._arguments], (), {}),
                verification_stages(second, [last], (), chosen),
            )
        return self.compare, self.open

    def weighted(self, job: Job) -> WeightedMoments:
        """The first opening."""
        layout = self.layout
        job.ask(self.presence)
        remarks = job.ask(self.weigh)[layout.response_party]
        for _ in layout.chunks:
            job.ask(self.share)
        for _ in range(layout.parts):
            job.ask(self.multiply)
        integers = opened_once(job, self.compare, self._verification[0], self.open, layout)
        opened = integers.astype(np.float64) / (layout.gamma**2 * WEIGHT)
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
        digest = digest_of_forms(forms)
        second, chosen = self.second.with_chosen(forms=digest), {"forms": digest}
        opened = opened_once(job, self.compare, self._verification[1], self.open, second, chosen=chosen)
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
    present = received_masks(me, _presence_tag(statistic), statistic.others)
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
    integers = np.zeros((me.facts.n, real.shape[1]), dtype=np.int64)
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
    statistic = InfluenceLayout.from_dict(me.facts, me.roster, layout)
    require_holder(me)
    take_dealings(me, statistic.mail_tags)
    statistic = statistic.with_chosen(forms=digest_of_forms(forms))
    statistic.share_influences(me, forms)
    state_dealing(me, statistic.tag, "influences")
    return Release(None, "nothing: the shares travel sealed")


def digest_of_forms(forms: Sequence[NDArray[Any]]) -> str:
    return hashlib.sha256(wire.encode(list(forms))).hexdigest()[:32]


def weighted_layout(
    facts: PublicFacts,
    roster: Roster,
    names: tuple[str, ...],
    gamma: int,
    groups: int,
    *,
    clusters: str | None = None,
    weights: str | None = None,
    verify: Verification = False,
) -> WeightedLayout:
    layout = WeightedLayout(
        facts=facts,
        roster=roster,
        names=names,
        gamma=min(gamma, LARGEST_GAMMA),
        groups=min(groups, facts.n),
        clusters=clusters,
        weights=weights,
        verify=verify,
    )
    layout.check()
    return layout
