"""The products of a private regression, on secret shares: those of other parties' columns with the response holder's
weighted rows, and with each other's.

For every other party A, with the clipped rows h of the response holder (1, its columns, products of these), the weight
u of `selection.py` and the clipped rows x_A, both zero where a record is not at A or not at the response holder,

    X_A = sum (u h) x_A',   S_AA = sum u upper(x_A x_A'),   S_AB = sum x_A x_B'.

Each is a product of two parties' numbers: the holder shares u h, and A its rows and the products within them. So one
multiplication on shares is enough, and pairs of parties can do it without share holders. No member sees a weight, and
the share holders see no mask. The proofs are in `private.claim.md`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from colonnade.durable import canonical
from colonnade.errors import BadArguments, BadPrivacyParameter, UnsafeRequest
from colonnade.federation.job import Job
from colonnade.federation.options import View
from colonnade.federation.party import Party
from colonnade.federation.stage import Later, is_number
from colonnade.federation.step import Public
from colonnade.models.linear.selection import CAPS, Pair, Weighing, extended, extended_norm, product_pairs
from colonnade.models.private_scales import Clipping
from colonnade.privacy.cost import Cost
from colonnade.privacy.randomness import Randomness
from colonnade.privacy.skellam import LARGEST_MU, delta_1_bound
from colonnade.secure.claims import cross_weights
from colonnade.secure.extension import Extension
from colonnade.secure.field import Field, Residues
from colonnade.statistics.circuit import Circuit, CircuitStages, CircuitStatistic, Factor, PairedCircuit, node_size
from colonnade.statistics.features import Feature, WithResponse, design, features, integer_bounds, quantize
from colonnade.statistics.gaussian_em import Matrix
from colonnade.statistics.joint import colluders, field_for
from colonnade.statistics.moments import later_ranges
from colonnade.statistics.pair import Words, bits_for
from colonnade.statistics.shares import noise_part, received_from
from colonnade.statistics.verified import NORMS_NOT_PROVEN

MOST_WIDTH = 120
LOCAL = ("own", "chances", "weighted")
"""What the response holder releases alone: its moments by pattern, log-odds of presence, weighted moments."""


@dataclass(frozen=True, kw_only=True)
class WeighedLayout(WithResponse, CircuitStatistic):
    """The public shape: `names` are the covariates, then the response; `clip` the norm of each party's rows, `mu` the
    noise of each entry; 0 is exact.

    `ranges`, `logits`, `shares` and `caps` (one for each other party) follow from earlier releases of the job; no
    sensitivity depends on them.
    """

    kind: ClassVar[str] = "weighed moments"
    exact: ClassVar[tuple[str, str]] = ("exact-moments", "exact sums and products of the columns")
    rows: ClassVar[str] = "quantised rows, their products and weighted rows"
    results: ClassVar[str] = "noisy weighted sums and products"
    adaptive: ClassVar[tuple[str, ...]] = ("ranges", "logits", "shares", "caps")

    names: tuple[str, ...]
    gamma: int
    clip: Mapping[str, float]
    levels: Mapping[str, float]
    """The noise multipliers of what the response holder releases alone. Masks are told under a tag that has them: the
    holder finds only those of parties that paid for this noise."""
    mu: int = 0
    label: str = "moments"
    ranges: Mapping[str, tuple[float, float]] = field(default_factory=dict)
    logits: tuple[tuple[float, ...], ...] = ()
    shares: tuple[float, ...] = ()
    caps: tuple[float, ...] = ()

    def check(self) -> None:
        if not 1 <= self.gamma <= 2**14 or not 0 <= self.mu <= LARGEST_MU or self.records < 0:
            raise BadArguments("gamma must be from 1 to 2^14, mu from 0 to 2^90, records at least 0.")
        wanted = LOCAL if self.others else LOCAL[:1]
        if set(self.levels) != set(wanted) or not all(0 < level < math.inf for level in self.levels.values()):
            raise BadPrivacyParameter(f"levels must be positive numbers for {', '.join(wanted)}.")
        if max(map(self.width, self.others), default=0) > MOST_WIDTH:
            raise BadArguments(
                f"a private regression takes at most {MOST_WIDTH} features of another party, since it shares all"
                " products of two of them; choose fewer with columns=."
            )
        if set(self.clip) != set(self.parties) or not all(0 < bound < math.inf for bound in self.clip.values()):
            raise BadPrivacyParameter(f"clip must give a positive norm for each party, not {self.clip!r}.")
        if self.ranges and not all(-math.inf < low < high < math.inf for low, high in self.ranges.values()):
            raise BadArguments("ranges must give finite bounds, in order.")
        chosen = (self.logits, self.shares, self.caps)
        if any(chosen) and not (
            all(len(part) == len(self.others) for part in chosen)
            and all(len(own) == self.head and np.isfinite(own).all() for own in self.logits)
            and all(0 < share <= 1 for share in self.shares)
            and set(self.caps) <= {1.0, *CAPS}
        ):
            raise BadArguments("every other party has finite log-odds for each entry of a row, a share and a cap.")

    # --- shape --------------------------------------------------------------------------------------------

    @cached_property
    def features(self) -> list[Feature]:
        return features(self.facts, self.names, ranges=self.ranges)

    def width(self, party: str) -> int:
        return len(self.own_features(party))

    @cached_property
    def pairs(self) -> tuple[Pair, ...]:
        """Whose products extend the response holder's rows; none without another party."""
        columns = [self.facts.column(name) for name in self.names]
        mine = self.own_features(self.response_party)
        return product_pairs(mine, columns, self.names[-1]) if self.others else ()

    @cached_property
    def product_names(self) -> tuple[str, ...]:
        mine = self.own_features(self.response_party)
        return tuple(f"{mine[i].name} * {mine[j].name}" for i, j in self.pairs)

    @property
    def head(self) -> int:
        """The size of an extended row."""
        return 1 + self.width(self.response_party) + len(self.pairs)

    @property
    def head_norm(self) -> float:
        return extended_norm(self.clip[self.response_party], self.pairs)

    def inner_norm(self, party: str) -> float:
        """Of upper(x x'): (|x|^4 + sum x_i^4) / 2 <= (c^4 + c^2) / 2 with |x| <= c and entries at most 1."""
        square = self.clip[party] ** 2
        return math.sqrt((square**2 + square) / 2)

    @cached_property
    def weighing(self) -> Weighing:
        return Weighing(
            self.pairs,
            self.product_names,
            np.array(self.logits, dtype=np.float64).reshape(len(self.others), self.head),
            np.array(self.shares),
            np.array(self.caps),
        )

    # --- noise and cost -----------------------------------------------------------------------------------

    def _square(self, norm: float) -> int:
        return integer_bounds(self.gamma, norm, norm)[0]

    @cached_property
    def delta_2(self) -> float:
        """L2 sensitivity, in integers, when one record becomes nothing: each part is an outer product of two rows whose
        norms are certain, and u is at most 1."""
        rows = [self._square(self.clip[party]) for party in self.others]
        inner = [self.gamma**2 * self._square(self.inner_norm(party)) for party in self.others]
        across = (sum(rows) ** 2 - sum(row * row for row in rows)) // 2
        return math.sqrt(self._square(self.head_norm) * sum(rows) + sum(inner) + across) * (1 + 2**-50)

    @property
    def sensitivity(self) -> dict[str, Any]:
        return {
            "delta_1": delta_1_bound(self.delta_2, self.size),
            "delta_2": self.delta_2,
            "replace_factor": 2.0,
            "dimension": self.size,
        }

    def cost(self, public: Public, view: View) -> Cost:
        return self.release(self.mu, colluders=colluders(self.roster, view), joint=f"{public.job} {self.label}")

    def releases(self, colluders: int) -> list[Cost]:
        return [self.release(self.mu, colluders=colluders)]

    @property
    def noise_sd(self) -> float:
        """Of one entry of the result."""
        return math.sqrt(2 * self.mu) / self.gamma**2

    @cached_property
    def field(self) -> Field:
        """Holds every entry, a product of two integers up to gamma for each record, with all noise."""
        return field_for(self.facts.n * self.gamma**2, self.mu, self.roster)

    # --- products -----------------------------------------------------------------------------------------

    @cached_property
    def terms(self) -> tuple[tuple[Factor, Factor], ...]:
        """For each other party X and S, then for each two of them S."""
        rows, inner, terms = {}, {}, []
        for place, party in enumerate(self.others):
            width, start = self.width(party), place * self.head
            rows[party] = Factor(party, 0, width)
            inner[party] = Factor(party, width, width + width * (width + 1) // 2)
            terms.append((Factor(self.response_party, start, start + self.head), rows[party]))
            terms.append((Factor(self.response_party, start, start + 1), inner[party]))
        for place, party in enumerate(self.others):
            terms += [(rows[party], rows[other]) for other in self.others[place + 1 :]]
        return tuple(terms)

    @cached_property
    def circuit(self) -> Circuit:
        return Circuit(terms=self.terms, n=self.facts.n, field=self.field, records=self.records)

    @property
    def size(self) -> int:
        return sum(map(node_size, self.terms))

    @property
    def local(self) -> dict[str, object]:
        return {}

    def gram(self, opened: NDArray[Any]) -> Matrix:
        """The sums as one matrix over (extended row, the others' columns), zero where only the holder's are."""
        widths = [self.width(party) for party in self.others]
        ends = np.cumsum([self.head, *widths])
        blocks = [slice(end - width, end) for end, width in zip(ends[1:], widths, strict=True)]
        out, start = np.zeros((ends[-1], ends[-1])), 0
        values = opened.astype(np.float64) / self.gamma**2

        def place(rows: slice, columns: slice, size: int) -> None:
            nonlocal start
            out[rows, columns] = values[start : start + size].reshape(rows.stop - rows.start, -1)
            out[columns, rows] = out[rows, columns].T
            start += size

        for block, width in zip(blocks, widths, strict=True):
            place(slice(0, self.head), block, self.head * width)
            upper = np.triu_indices(width)
            square, size = np.zeros((width, width)), width * (width + 1) // 2
            square[upper] = square.T[upper] = values[start : start + size]
            out[block, block] = square
            start += size
        for number, block in enumerate(blocks):
            for other, second in enumerate(blocks[number + 1 :], start=number + 1):
                place(block, second, widths[number] * widths[other])
        return out

    # --- what members do ----------------------------------------------------------------------------------

    def counted(self, me: Party) -> NDArray[np.bool_]:
        """The records that this party and the response holder have, or the latter's own."""
        mine = self.present(me)
        return mine if me.name == self.response_party else mine & self.told(me, [self.response_party])[:, 0]

    @property
    def masks_tag(self) -> str:
        return f"presence {canonical(self.levels)}"

    def told(self, me: Party, parties: Sequence[str]) -> NDArray[np.bool_]:
        """Which records of the cohort these parties have told to have (record, party)."""
        n, masks = me.facts.n, np.zeros((me.facts.n, len(parties)), dtype=bool)
        if parties and not me.kept(self.masks_tag):  # they came with this request
            me.keep(self.masks_tag, received_from(me, self.masks_tag, list(parties)))
        for place, party in enumerate(parties):
            packed = np.asarray(me.recall(self.masks_tag)[party], dtype=np.uint8)
            if packed.shape != (-(-n // 8),):
                raise UnsafeRequest(f"{party!r} sent a mask of another length than the cohort's.")
            masks[:, place] = np.unpackbits(packed, count=n).astype(bool)
        return masks

    def head_rows(self, me: Party) -> tuple[NDArray[np.intp], Matrix]:
        """The response holder's records, and their extended rows."""
        records = np.flatnonzero(self.present(me))
        rows = clipped(design(me, self.features, filled=self.filled)[records], self.clip[me.name])
        return records, extended(rows, self.pairs)

    def begin(self, me: Party) -> None:
        """A party rounds its values once, before the first chunk."""
        if me.name == self.response_party:
            records, rows = self.head_rows(me)
            present = self.told(me, self.others)[records]
            parts = weighted_rows(rows, self.weighing.weights(rows) * present)
            mine = [self.integers(part, self.head_norm, me.randomness) for part in parts]
        else:
            records = np.flatnonzero(self.counted(me))
            rows = clipped(design(me, self.features, filled=self.filled)[records], self.clip[me.name])
            mine = [
                self.integers(rows, self.clip[me.name], me.randomness),
                self.integers(inner_products(rows), self.inner_norm(me.name), me.randomness),
            ]
        quantised = np.zeros((self.facts.n, self.circuit.widths[me.name]), dtype=np.int32)
        quantised[records] = np.column_stack(mine)
        for chunk, (start, stop) in enumerate(self.chunks):
            me.keep(f"{self.tag}: quantised {chunk}", quantised[start:stop])

    def integers(self, rows: Matrix, norm: float, randomness: Randomness) -> NDArray[np.int64]:
        return quantize(rows, gamma=self.gamma, clip=norm, entry=1.0, randomness=randomness)

    def shared_rows(self, me: Party, number: int) -> NDArray[Any]:
        return np.asarray(me.recall(f"{self.tag}: quantised {number}"))

    def local_sums(self, me: Party) -> NDArray[Any]:
        raise UnsafeRequest("nothing here lies within one party.")

    def noise(self, me: Party) -> NDArray[np.int64]:
        return noise_part(me, mu=self.mu, size=self.size)

    def combine(self, me: Party, number: int) -> Residues:
        """Sums of products of this holder's shares, plus every member's noise."""
        return self.with_noise(me, number, self.term_sums(me), self.held_noise(me))

    @cached_property
    def paired(self) -> PairedWeighed:
        return PairedWeighed(self)

    # --- what is verified ---------------------------------------------------------------------------------

    def term_vectors(self, extension: Extension, seed: bytes, side: int) -> list[Residues]:
        return [
            extension.uniform((term[side].stop - term[side].start,), seed=seed, label=f"term {number} {side}")
            for number, term in enumerate(self.terms)
        ]

    def opening_weights(self, extension: Extension, seed: bytes, number: int) -> Residues:
        sides = (self.term_vectors(extension, seed, side) for side in (0, 1))
        return np.concatenate([cross_weights(extension, u, v) for u, v in zip(*sides, strict=True)], axis=1)

    def sum_weights(self, extension: Extension, seed: bytes) -> dict[str, Residues]:
        return {}

    @property
    def proof_notes(self) -> tuple[str, ...]:
        return (NORMS_NOT_PROVEN,)


class PairedWeighed(PairedCircuit):
    """By parties in pairs."""

    layout: WeighedLayout

    def bound(self, party: str) -> int:
        return self.layout.gamma

    @cached_property
    def bits(self) -> int:
        layout = self.layout
        return bits_for(layout.facts.n * layout.gamma**2, layout.mu, layout.roster)

    def addends(self, me: Party, number: int, cross: Mapping[str, Words]) -> Words:
        parts = []
        for term in self.layout.terms:
            share = self.share_of(me, cross, term)
            if share is None:
                parts.append(np.zeros(node_size(term), dtype=np.uint64))
                continue
            first = self.roles(term[0].party, term[1].party)[0] == term[0].party
            parts.append(np.asarray(share if first else share.T, dtype=np.uint64).reshape(-1))
        return np.concatenate(parts)

    def noise(self, me: Party, number: int) -> Words:
        return self.layout.noise(me).view(np.uint64)


def clipped(rows: Matrix, norm: float) -> Matrix:
    return Clipping(np.ones(rows.shape[1], dtype=bool), (norm,))(rows, [slice(None)])


def inner_products(rows: Matrix) -> Matrix:
    """upper(x x') of each row."""
    i, j = np.triu_indices(rows.shape[1])
    return rows[:, i] * rows[:, j]


def weighted_rows(rows: Matrix, weights: Matrix) -> list[Matrix]:
    """u h of each block."""
    return [rows * own[:, None] for own in weights.T]


# --- the coordinator's side -------------------------------------------------------------------------------


def later_weighing(layout: WeighedLayout, *, weighed: bool = True) -> Later:
    """The rule for what follows from earlier releases of the job: ranges, and then weights."""
    many = len(layout.others)

    def logits(value: Any) -> bool:
        return len(value) == many and all(len(own) == layout.head and all(map(is_number, own)) for own in value)

    def shares(value: Any) -> bool:
        return len(value) == many and all(is_number(own) and 0 < own <= 1 for own in value)

    def caps(value: Any) -> bool:
        return len(value) == many and set(value) <= {1.0, *CAPS}

    also = {"logits": logits, "shares": shares, "caps": caps} if weighed else {}
    return later_ranges(layout.facts, layout.names, **also)


class WeighedStages(CircuitStages):
    """One computation, with what follows from earlier releases."""

    layout: WeighedLayout

    def __init__(self, layout: WeighedLayout, view: View) -> None:
        super().__init__(layout, view, later={"chosen": later_weighing(layout)})

    def run(self, job: Job, chosen: Mapping[str, Any]) -> Matrix:
        return self.layout.gram(self.compute(job, chosen=dict(chosen)))
