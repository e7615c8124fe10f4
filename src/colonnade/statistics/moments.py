"""Counts, sums and Gram matrices over all parties' columns: one secure computation, noise once, no trusted party.

With `presence="known"` there is one Gram matrix per presence pattern. Patterns are disjoint, so a record is in one
of them and the whole set costs what one Gram matrix costs. Together they are the sufficient statistics of a
Gaussian when data are missing at random. With `presence="secret"` the mask itself is shared like data and one Gram
matrix of (mask, values) gives all available-case moments. With `presence="ignore"` an absent block is zeros.
A column that may have empty cells brings a mask of its own, m, beside the product x m: an absent block is the case in
which all its masks are 0. Or a record with such a cell counts as absent (`statistics.features` has the rules).
The proofs are in `moments.claim.md`. `paired_moments` has the same by parties in pairs, `moments_result` the result.
"""

from __future__ import annotations

import functools
import itertools
import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, Annotated, Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from colonnade.codec import plain
from colonnade.data.column import EmptyRule
from colonnade.data.sources import CELLS, ROOMY_CELLS, chunk_rows
from colonnade.errors import BadArguments, BadPrivacyParameter, UnsafeRequest
from colonnade.federation.facts import PublicFacts
from colonnade.federation.job import Job
from colonnade.federation.method import Method, Procedure, method_class
from colonnade.federation.options import (
    ColumnNames,
    Delta,
    Gamma,
    Memory,
    Option,
    OptionalEpsilon,
    Presence,
    RelationOption,
    Verify,
    View,
    ViewOption,
)
from colonnade.federation.options import Tile as TileOption
from colonnade.federation.party import Party
from colonnade.federation.roster import Roster
from colonnade.federation.stage import Later, fields_of, is_number
from colonnade.federation.step import Public
from colonnade.privacy.cost import Cost, Unbounded, compose
from colonnade.privacy.skellam import delta_1_bound
from colonnade.secure.bgw import Product, cross, gram, gram_of, lift, open_product
from colonnade.secure.claims import Factors, cross_weights, gram_weights, square_factors
from colonnade.secure.extension import Extension
from colonnade.secure.field import BATCH_ROWS, PRIMES, Field, Residues, primes_for
from colonnade.secure.proof import Layout
from colonnade.secure.seeded import Shape, Share, Term, materialize, terms
from colonnade.secure.sizes import Sizes, smallest_mixture, sum_bound
from colonnade.statistics import forecast
from colonnade.statistics.features import (
    EMPTY_AS_ZERO,
    EMPTY_WORDS,
    CohortRows,
    Feature,
    IntegerRows,
    by_rule,
    check_row,
    empty_notes,
    empty_rules,
    features,
    integer_bounds,
    integer_chunks,
)
from colonnade.statistics.joint import (
    EXACT,
    PYTHON,
    SharedStatistic,
    check_budget,
    colluders,
    field_for,
    opened_bytes,
    share_noise,
    share_rows,
    too_little_memory,
)
from colonnade.statistics.moments_result import AvailableCases, MomentsResult, available_cases
from colonnade.statistics.norms import ROOTS, Norm
from colonnade.statistics.pair import PairStages, others, pair_within_memory
from colonnade.statistics.paired_moments import PairedMoments
from colonnade.statistics.shares import (
    blinds_of,
    deal_large,
    deal_large_noise,
    dealt_large,
    joined_noise,
    messages,
    packed_holders,
    shares_of,
    unblinded,
)
from colonnade.statistics.verified import NORMS_NOT_PROVEN, VerifiedStages, proof_bytes, proving_bytes

if TYPE_CHECKING:
    from colonnade.audit.attack import Attack

__all__ = ["AvailableCases", "Moments", "MomentComputation", "MomentsLayout", "MomentsResult", "available_cases"]

MAXIMUM_ENTRIES = 1 << 22
"""Entries opened in one round, unless `memory` asks for fewer; a larger job runs in several rounds."""
MAXIMUM_MAIL = 1 << 24
"""Bytes of one party's share that travel at a time, unless `memory` asks for fewer. Messages of this size are copied in
memory that the process has already; a byte of a message of 61 MB took 1.4 to 1.7 times as long (measured)."""
MOST_NORM_TRAFFIC = 3.0
"""Norms are proven if no more than so many times the traffic is needed for it, ..."""
SMALL_NORM_BYTES = 8 << 20
"""... or if no more bytes are sent for it in all; ..."""
MOST_NORM_ENTRIES = 1_000_000
"""... and if there are no more residues of rows and roots, for which it takes about half a CPU second."""
NORM_SECONDS = 0.4e-6
"""CPU time of all members for each of these (0.33 and 0.41 measured, `secure/claim.md`)."""
MOST_CELL_PATTERNS = 256
"""Patterns of presence and of empty cells together, where both are known; with more, "mask" becomes "drop"."""
MOST_FOLDS = 100


@method_class
class Moments(Method["MomentsResult"]):
    """Compute counts, sums and products of columns across parties, with noise unless epsilon is none.

    Returns
    -------
    `fit(federation)` gives `MomentsResult`: moments by pattern, with `noise_sd`, the noise of one entry.

    Example
    -------
    >>> moments = co.Moments(epsilon=2.0, columns=("capital", "roa"), presence="secret").fit(federation)
    >>> moments.noise_sd > 0
    True
    """

    name: ClassVar[str] = "moments"

    epsilon: OptionalEpsilon = 1.0
    delta: Delta = 1e-6
    columns: ColumnNames = None
    presence: Annotated[
        Presence,
        Option(
            "Who has which record: a matrix for each pattern, and the share holders see the mask (known), shared like"
            " data (secret), or taken as all, an absent block being zeros (ignore)."
        ),
    ] = "known"
    gamma: Gamma = 2**12
    clip: Annotated[
        Mapping[str, float],
        Option(
            "The norm to which a party's rows are clipped, instead of the square root of the number of its features:"
            " less noise, some bias.",
            form="PARTY=NORM",
        ),
    ] = field(default_factory=dict)
    constant: Annotated[bool, Option("Compute counts and sums too, as products with 1.")] = True
    patterns: Annotated[
        tuple[tuple[bool, ...], ...] | None,
        Option(
            "Candidate patterns, true or false for each party, if fewer than all; a record of another is left out.",
            only={"presence": ("known",)},
        ),
    ] = None
    view: ViewOption = "client"
    relation: RelationOption = "zero-out"
    tile: TileOption = 2048
    memory: Memory = None
    verify: Verify = True

    def check(self) -> None:
        check_budget(self.epsilon, self.delta)

    def missing_data(self) -> str:
        if self.presence == "secret":
            return "A product of two columns uses the records that have both."
        if self.presence == "ignore":
            return "A block that a record lacks counts as zeros."
        left_out = " A record of a pattern that is not named is left out." if self.patterns is not None else ""
        return f"Each pattern of presence has a matrix of its own, of the columns that its records have.{left_out}"

    def procedure(self, facts: PublicFacts, roster: Roster) -> MomentComputation:
        computation = MomentComputation(self.layout(facts, roster), self.view)
        if computation.layout.mu:
            expected = forecast.sums(noise_sd=computation.layout.noise_sd, n=facts.n, epsilon=self.epsilon)
            computation.notes = (*expected, *computation.notes)
        return computation

    def layout(self, facts: PublicFacts, roster: Roster) -> MomentsLayout:
        """The public shape, with the noise that (epsilon, delta) needs."""
        roster.require_committee()
        layout = MomentsLayout(
            facts=facts,
            roster=roster,
            names=self.columns,
            presence=self.presence,
            gamma=self.gamma,
            clip=self.clip,
            constant=self.constant,
            patterns=self.patterns,
            tile=self.tile,
            opening=MAXIMUM_ENTRIES,
            verify=self.verify,
        )
        layout.check()
        if self.epsilon is not None:
            mu = layout.calibrated(epsilon=self.epsilon, delta=self.delta, view=self.view, relation=self.relation)
            layout = replace(layout, mu=mu)
        return layout if self.memory is None else within_memory(layout, self.memory)

    @classmethod
    def attacks(cls) -> tuple[Attack, ...]:
        from colonnade.statistics.attacks import moments_attacks

        return moments_attacks()


# --- the public shape -------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Tile:
    """Rows `rows` x columns `columns` of one pattern's Gram matrix; on the diagonal only the upper triangle."""

    pattern: int
    rows: tuple[int, int]
    columns: tuple[int, int]

    @property
    def diagonal(self) -> bool:
        return self.rows == self.columns

    @property
    def size(self) -> int:
        height, width = self.rows[1] - self.rows[0], self.columns[1] - self.columns[0]
        return height * (height + 1) // 2 if self.diagonal else height * width


@dataclass(frozen=True, kw_only=True)
class MomentsLayout(SharedStatistic):
    """The public shape of moments: features, patterns, bounds, noise, and the tiles that are opened.

    `mu` is the noise of each entry; 0 is exact.
    """

    kind: ClassVar[str] = "moments"
    exact: ClassVar[tuple[str, str]] = ("exact-moments", "exact counts, sums and products of the columns")
    squares: ClassVar[bool] = True
    rows: ClassVar[str] = "quantised rows"
    adaptive: ClassVar[tuple[str, ...]] = ("ranges",)

    names: tuple[str, ...] | None
    presence: Presence
    gamma: int
    clip: Mapping[str, float] = field(default_factory=dict)
    constant: bool = True
    patterns: tuple[tuple[bool, ...], ...] | None = None
    mu: int = 0
    tile: int = 2048
    """The width of a tile."""
    opening: int = MAXIMUM_ENTRIES
    """The most entries that one round opens, if a tile is not larger."""
    records: int = 0
    """Cohort rows whose shares travel at a time; 0: as many as `MAXIMUM_MAIL` holds."""
    label: str = "moments"
    scores: str | None = None
    """Rows are scores, through the maps that each party kept under this label (see `statistics.features`)."""
    ranges: Mapping[str, tuple[float, float]] = field(default_factory=dict)
    """{feature: (lower, upper)}: what is mapped to [-1, 1] instead of its declared range; values beyond are clipped. A
    request may choose it from earlier releases: the sensitivity does not depend on it."""
    pooled: bool = False
    """One Gram matrix for all candidate patterns together, in which an absent block is zeros."""
    folds: int = 0
    """Every pattern has a Gram matrix for each of so many folds of the cohort (`fold_of`), unless 0."""

    @property
    def results(self) -> str:
        return f"{'noisy' if self.mu else 'exact'} counts, sums and products"

    def check(self) -> None:
        if not 1 <= self.gamma <= 2**26 or not 0 <= self.mu <= 2**90 or min(self.tile, self.opening) < 1:
            raise BadArguments(
                "gamma must be an integer from 1 to 2^26, mu from 0 to 2^90, tile and opening at least 1."
            )
        if self.records < 0 or (self.records < self.facts.n and self.records % BATCH_ROWS):
            raise BadArguments(f"records must be a multiple of {BATCH_ROWS}, at least n, or 0.")
        if not self.features:
            raise BadArguments("moments need at least one column; name some with columns=.")
        for party in self.parties:
            check_row(self.width(party), self.gamma)
        for party, bound in self.clip.items():
            if party not in self.parties or not 0 < bound < math.inf:
                raise BadPrivacyParameter(
                    f"clip must give a positive norm for parties that take part, not {self.clip!r}."
                )
        if self.patterns is not None and (
            self.presence != "known"
            or len(set(self.patterns)) != len(self.patterns)
            or any(len(pattern) != len(self.parties) or not any(pattern) for pattern in self.patterns)
        ):
            raise BadArguments("patterns must be distinct, non-empty rows of one bool a party, with presence='known'.")
        if self.ranges and (
            self.scores is not None
            or not self.ranges.keys() <= {feature.name for feature in features(self.facts, self.names)}
            or not all(-math.inf < low < high < math.inf for low, high in self.ranges.values())
        ):
            raise BadArguments("ranges must give finite bounds, in order, for features that take part, without scores.")
        if self.pooled and self.presence != "known":
            raise BadArguments("pooled joins patterns where presence is 'known'.")
        if not 0 <= self.folds <= MOST_FOLDS or (self.folds and (self.pooled or self.presence != "known")):
            raise BadArguments(f"folds are from 0 to {MOST_FOLDS}, and divide patterns where presence is 'known'.")

    @cached_property
    def features(self) -> list[Feature]:
        declared = features(self.facts, self.names, scores=self.scores is not None)
        return [
            feature.within(*self.ranges[feature.name]) if feature.name in self.ranges else feature
            for feature in declared
        ]

    @cached_property
    def parties(self) -> tuple[str, ...]:
        return tuple(self._features_of)

    @cached_property
    def _features_of(self) -> Counter[str]:
        """How many features each party has; the parties stand in their order."""
        return Counter(feature.party for feature in self.features)

    # --- empty cells --------------------------------------------------------------------------------------

    @cached_property
    def rules(self) -> dict[str, EmptyRule]:
        """What becomes of empty cells, for each column that may have some. Where presence is known a mask shows the
        holders which cells are empty, so that it must be asked for, and each set of them is a pattern of its own."""
        if self.presence != "known":
            return empty_rules(self.features, self.facts, "mask", "drop")
        rules = empty_rules(self.features, self.facts, "drop", "mask")
        places = self._owners(by_rule(rules, "mask"))
        patterns = sum(2 ** sum(mask[place] for place in places) for mask in self._blocks_patterns)
        if not self.pooled and patterns <= MOST_CELL_PATTERNS:
            return rules
        return {name: "level" if rule == "level" else "drop" for name, rule in rules.items()}

    @cached_property
    def filled(self) -> tuple[str, ...]:
        """The columns in which an empty cell makes its party's record count as absent."""
        return by_rule(self.rules, "drop")

    @cached_property
    def masked(self) -> tuple[str, ...]:
        """The columns with a mask of their own; where presence is ignored, an empty cell is 0 and no mask is needed."""
        return () if self.presence == "ignore" else by_rule(self.rules, "mask")

    def own_masked(self, party: str) -> list[str]:
        return [name for name in self.masked if self.facts.owner(name) == party]

    def empty_notes(self) -> tuple[str, ...]:
        """What the plan says about empty cells."""
        words = dict(EMPTY_AS_ZERO if self.presence == "ignore" else EMPTY_WORDS)
        if self.presence == "known":
            words["mask"] = (
                "the cells that a record lacks are part of its pattern, which the share holders see: right if cells are"
                " empty at random, given what is observed"
            )
        notes = empty_notes(self.rules, words)
        if self.masked and self.presence == "secret" and self.mu:
            growth = self.delta_2 / self._triangle(len(self.parties))
            notes += (f"Masks of {len(self.masked)} columns make the noise {growth:.3g} times as large.",)
        return notes

    # --- patterns -----------------------------------------------------------------------------------------

    @cached_property
    def masks(self) -> list[tuple[bool, ...]]:
        """The patterns that have a Gram matrix each, over parties and then masked columns: the candidates, or one with
        everything for all of them pooled."""
        return [self._everything] if self.pooled else self.candidates

    @property
    def _everything(self) -> tuple[bool, ...]:
        return (True,) * (len(self.parties) + len(self.masked) + self.folds)

    @cached_property
    def candidates(self) -> list[tuple[bool, ...]]:
        """The candidate patterns: declared, or every non-empty one; a single one unless presence is known. Each with
        every set of masked columns that the present parties may have filled, in each fold, of which one is true."""
        if self.presence != "known":
            return [self._everything]
        places = self._owners(self.masked)
        return [
            (*mask, *cells, *fold)
            for fold in np.eye(self.folds, dtype=bool).tolist() or [[]]
            for mask in self._blocks_patterns
            for cells in itertools.product(*((False, True) if mask[place] else (False,) for place in places))
        ]

    @cached_property
    def _blocks_patterns(self) -> Sequence[tuple[bool, ...]]:
        """The candidate patterns of presence, over parties."""
        if self.patterns is not None:
            return self.patterns
        return [mask for mask in itertools.product((False, True), repeat=len(self.parties)) if any(mask)]

    def _owners(self, names: Sequence[str]) -> list[int]:
        """The places of the columns' parties."""
        return [self.parties.index(self.facts.owner(name)) for name in names]

    def width(self, party: str) -> int:
        """Columns that a party shares: its features, and its masks where presence is secret."""
        return self._features_of[party] + (1 + len(self.own_masked(party)) if self.presence == "secret" else 0)

    def entries(self, mask: tuple[bool, ...]) -> list[str]:
        """The names of a pattern's rows and columns, in order."""
        units = (*self.parties, *(f"filled {name}" for name in self.masked))
        present = dict(zip(units, mask[: len(units)], strict=True))
        names = ["1"] if self.constant and self.presence != "secret" else []
        for party in self.parties:
            own = [f"filled {name}" for name in self.own_masked(party)]
            if self.presence == "secret":
                names += [f"present at {party}", *own]
            if present[party]:
                lacking = {name for name in own if not present[name]}
                names += [
                    feature.name
                    for feature in self.features
                    if feature.party == party and f"filled {feature.column}" not in lacking
                ]
        return names

    def shown(self, mask: tuple[bool, ...]) -> NDArray[np.intp]:
        """Where a pattern's entries are among the columns of the pattern with everything."""
        return self._shown[mask]

    @cached_property
    def _shown(self) -> dict[tuple[bool, ...], NDArray[np.intp]]:
        everything = self.entries(self._everything)
        place = {name: index for index, name in enumerate(everything)}
        return {mask: np.array([place[name] for name in self.entries(mask)], dtype=np.intp) for mask in self.masks}

    def bound(self, party: str) -> float:
        """The declared norm of a party's features: no clipping unless `clip` asks for it."""
        return self.clip.get(party, math.sqrt(self._features_of[party]))

    # --- noise and cost -----------------------------------------------------------------------------------

    @cached_property
    def delta_2(self) -> float:
        """L2 sensitivity, in integers, of all upper triangles together when one record becomes nothing.

        z is the record's extended row. ||upper(z z')||^2 = (|z|^4 + sum z_i^4) / 2 <= (c^4 + B^2 c^2) / 2 with
        c^2 >= |z|^2 and B >= |z_i|. Where the constant is public (presence ignored) its square does not change and
        its products add A^2 |x|^2.
        """
        if self.presence == "ignore":
            unit, rows = self.gamma, self._rows_square
            return math.sqrt((rows**2 + unit**2 * rows) / 2 + (unit**2 * rows if self.constant else 0))
        return self._triangle(len(self.parties) + len(self.masked) if self.presence == "secret" else 1)

    @property
    def _rows_square(self) -> int:
        """The largest squared norm of all parties' features together, in integers."""
        return sum(integer_bounds(self.gamma, self.bound(party), 1.0)[0] for party in self.parties)

    def _triangle(self, units: int) -> float:
        """The bound with so many entries of size gamma besides the features: masks, or the constant."""
        square = self._rows_square + units * self.gamma**2
        return math.sqrt((square**2 + self.gamma**2 * square) / 2)

    @property
    def replace_factor(self) -> float:
        """<upper(zz'), upper(ww')> = ((z.w)^2 + sum z_i^2 w_i^2) / 2 >= 0, so replacing costs sqrt(2). Products with a
        public constant are linear in the row: there the triangle inequality is all there is."""
        return 2.0 if self.presence == "ignore" and self.constant else math.sqrt(2)

    @cached_property
    def dimension(self) -> int:
        """Entries that one record can move: those of the largest pattern."""
        largest = max(len(self.entries(mask)) for mask in self.masks)
        return largest * (largest + 1) // 2

    @cached_property
    def delta_1(self) -> float:
        return delta_1_bound(self.delta_2, self.dimension)

    @property
    def sensitivity(self) -> dict[str, Any]:
        return {
            "delta_1": self.delta_1,
            "delta_2": self.delta_2,
            "replace_factor": self.replace_factor,
            "dimension": self.dimension,
        }

    def cost(self, public: Public, view: View) -> Cost:
        """The one joint release of this job, at a data party; and its mask, where the share holders see it."""
        release = self.release(self.mu, colluders=colluders(self.roster, view), joint=f"{public.job} {self.label}")
        if self.presence != "known":
            return release
        holders = others(self.roster) if self.roster.pair else "share holders"
        shown = f"which pseudonymous records a party has{self._which_cells}, to the {holders.removeprefix('the ')}"
        return compose([release, Unbounded("presence", shown, audience=holders)])

    @property
    def _which_cells(self) -> str:
        """What else the mask of presence says."""
        complete = " without empty cells" if self.filled else ""
        return f"{complete}, and which cells of {', '.join(self.masked)} are empty" if self.masked else complete

    def releases(self, colluders: int) -> list[Cost]:
        """Without the mask, which has no bound in any view."""
        return [self.release(self.mu, colluders=colluders)]

    @property
    def noise_sd(self) -> float:
        """Of one entry of the result."""
        return math.sqrt(2 * self.mu) / self.gamma**2

    # --- what travels -------------------------------------------------------------------------------------

    @cached_property
    def field(self) -> Field:
        """Holds every entry, and where norms are proven all that is in the proof."""
        return self._proving_field if self.norms else self._result_field

    @cached_property
    def _result_field(self) -> Field:
        """Holds every entry: at most n gamma^2 (all entries of a row are at most gamma), with all noise."""
        return self._with_masks(field_for(self.facts.n * self.gamma**2, self.mu, self.roster))

    def _with_masks(self, smallest: Field) -> Field:
        """With so many primes that a mask which is proven to be gamma or 0 modulo each of them, and small, is one of
        these two."""
        if not self.verify or self.presence != "secret" or len(smallest.primes) == 1:
            return smallest
        reach, count = 2 * sum_bound(self.facts.n, self.gamma), len(smallest.primes)
        while smallest_mixture(PRIMES[:count], self.gamma) <= reach and count < len(PRIMES):
            count += 1
        return Field(PRIMES[:count])

    # --- norms (`statistics.norms`) -----------------------------------------------------------------------

    @cached_property
    def norms(self) -> bool:
        """Whether each party proves that its rows are within their norm: where that is cheap, or asked for."""
        if self.verify == "full":
            return True
        if not self.verify or self._norm_entries > MOST_NORM_ENTRIES:
            return False
        without, proven = self._norm_bytes
        return proven <= max(MOST_NORM_TRAFFIC * without, without + SMALL_NORM_BYTES)

    def norm(self, party: str) -> Norm:
        masks = self._mask_columns(party)
        square = integer_bounds(self.gamma, self.bound(party), 1.0)[0]
        return Norm(self.facts.n, masks, self.width(party) - masks, self.gamma, square)

    def _mask_columns(self, party: str) -> int:
        return 1 + len(self.own_masked(party)) if self.presence == "secret" else 0

    @cached_property
    def _proving_field(self) -> Field:
        primes = (primes_for(self.norm(party).modulus_bits) for party in self.parties)
        return self._with_masks(Field(max(self._result_field.primes, *primes, key=len)))

    @property
    def _norm_entries(self) -> int:
        """Residues of rows and roots."""
        widths = sum(self.width(party) + ROOTS for party in self.parties)
        return len(self._proving_field.primes) * self.facts.n * widths

    @cached_property
    def norm_traffic(self) -> float:
        """How many times as many bytes are sent for rows and proofs if norms are proven."""
        return self._norm_bytes[1] / self._norm_bytes[0]

    @cached_property
    def _norm_bytes(self) -> tuple[int, int]:
        """What is sent for rows and proofs: without roots, and with roots and what shows sizes."""
        totals = [0, 0]
        for proven, layers in enumerate((self._result_field, self._proving_field)):
            primes = len(layers.primes)
            totals[proven] = proof_bytes(self.roster, primes, Layout.balanced(self.claim_length, square=True))
            for party in self.parties:
                norm, numbers = self.norm(party), self.facts.n * self.width(party)
                if proven:
                    sizes = Sizes(layers, self.facts.n, norm.largest)
                    numbers += self.facts.n * ROOTS + sizes.dealt
                    claim = Layout.balanced(self.facts.n * (norm.width + 1) + sizes.bits, square=True)
                    totals[proven] += proof_bytes(self.roster, primes, claim)
                holders = len(packed_holders(self.roster, party, self.roster.threshold))
                totals[proven] += holders * primes * numbers * 8 // 3
        return totals[0], totals[1]

    @property
    def proof_notes(self) -> tuple[str, ...]:
        if not self.verify:
            return ()
        seconds = NORM_SECONDS * self._norm_entries
        times = f"{self.norm_traffic:.2g} times the traffic"
        if seconds >= 0.1:
            times += f", and about {seconds:.2g} CPU seconds"
        if self.norms:
            slack = max(self.norm(party).slack for party in self.parties)
            return (f"Rows of numbers are proven to be within {slack:.3g} times their norm: {times}.",)
        return (f'{NORMS_NOT_PROVEN} It would take {times}; verify="full" asks for it.',)

    @cached_property
    def rounds(self) -> list[list[Tile]]:
        """Tiles grouped into openings of bounded size."""
        groups: list[list[Tile]] = [[]]
        size = 0
        for tile in self._tiles():
            if groups[-1] and size + tile.size > self.opening:
                groups.append([])
                size = 0
            groups[-1].append(tile)
            size += tile.size
        return groups

    def _tiles(self) -> Iterator[Tile]:
        for pattern, mask in enumerate(self.masks):
            width = len(self.entries(mask))
            cuts = [(low, min(low + self.tile, width)) for low in range(0, width, self.tile)]
            for first, rows in enumerate(cuts):
                for columns in cuts[first:]:
                    yield Tile(pattern, rows, columns)

    @cached_property
    def openings(self) -> list[int]:
        return [sum(tile.size for tile in tiles) for tiles in self.rounds]

    @cached_property
    def chunks(self) -> list[tuple[int, int]]:
        """The cohort's rows in ranges whose shares travel together; blocks of records never straddle two of them."""
        widest = max(self.width(party) for party in self.parties)
        fitting = MAXIMUM_MAIL // self.packed_bytes(BATCH_ROWS, widest) * BATCH_ROWS
        rows = self.records or max(BATCH_ROWS, fitting)
        return [(start, min(start + rows, self.facts.n)) for start in range(0, self.facts.n, rows)]

    def packed_bytes(self, records: int, width: int) -> int:
        """A whole share of an array as it travels."""
        return 8 * len(self.field.primes) * Shape((records, width)).total_words

    def beside_bytes(self, party: str) -> int:
        """What is dealt for proofs beside a party's rows."""
        sizes = self.entry_sizes(party)
        roots = self.packed_bytes(self.facts.n, ROOTS) if self.norms else 0
        return roots + (0 if sizes is None else self.packed_bytes(sizes.dealt, 1))

    # --- what members do ----------------------------------------------------------------------------------

    def paired(self) -> PairedMoments:
        return self._paired

    @cached_property
    def _paired(self) -> PairedMoments:
        return PairedMoments(self)

    def share(self, me: Party, number: int) -> None:
        """Quantise, clip in integers, deal; with the first chunk also the mask, where the holders see it."""
        rows = self.quantised(me, number)
        deal_large(me, self.rows_tag(number), self.field, rows)
        if self.norms:
            me.keep(self._own_rows(number), rows)
        if number == 0 and self.presence == "known":
            for holder in me.roster.committee:
                me.send(holder, f"{self.tag}: mask", np.packbits(self.own_masks(me), axis=1))

    def rows_tag(self, number: int) -> str:
        """The tag of the shares of one chunk of rows."""
        return f"{self.tag}: rows {number}"

    def _own_rows(self, number: int) -> str:
        """Under which a party that proves norms keeps the rows that it has dealt."""
        return f"{self.tag}: own rows, chunk {number}"

    def share_sizes(self, me: Party) -> None:
        super().share_sizes(me)
        if self.norms:
            rows = [self.norm(me.name).roots(me.recall(self._own_rows(number))) for number in range(len(self.chunks))]
            me.keep(self._roots_tag, np.concatenate(rows))
            deal_large(me, self._roots_tag, self.field, me.recall(self._roots_tag))

    @property
    def _roots_tag(self) -> str:
        return f"{self.tag}: roots"

    def take_mail(self, me: Party) -> None:
        super().take_mail(me)
        if me.name in me.roster.committee and any(mail.tag.startswith(self._roots_tag) for mail in me.mail):
            messages(me, self._roots_tag, self.parties, layers=len(self.field.primes), keep=True)

    def share_noise(self, me: Party, number: int) -> None:
        size = self.openings[number]
        deal_large_noise(me, self.noise_tag(number), self.field, mu=self.mu, size=size, parts=bool(self.verify))

    @property
    def in_little_memory(self) -> bool:
        return self.records > 0

    def noise_tag(self, number: int) -> str:
        return f"{self.tag}: noise {number}"

    def quantised(
        self, me: Party, number: int, ranges: Sequence[tuple[int, int]] | None = None
    ) -> NDArray[np.integer[Any]]:
        """This party's rows of one chunk of the cohort, in integers; a record that it lacks is a row of zeros."""
        dtype: type[np.integer[Any]] = np.int16 if self.gamma < 2**15 else np.int32
        masked = self.own_masked(me.name) if self.presence == "secret" else []
        options: dict[str, Any] = {"dtype": dtype, "scores": self.scores, "filled": self.filled, "masks": masked}
        options["cells"] = CELLS if self.in_little_memory else ROOMY_CELLS
        wanted = CohortRows(
            label=f"{self.tag}: quantised",
            ranges=ranges or self.chunks,
            width=self.width(me.name),
            dtype=dtype,
            in_files=self.in_little_memory,
        )
        integers = self.integer_rows(me.name)
        return wanted.range(me, number, lambda: integer_chunks(me, self.features, integers, **options))

    def integer_rows(self, party: str) -> IntegerRows:
        """What makes a party's rows (masks, where presence is secret, then features) integers of certain size."""
        masks = len(self.own_masked(party)) if self.presence == "secret" else None
        return IntegerRows(gamma=self.gamma, clip=self.bound(party), masks=masks)

    def own_masks(self, me: Party) -> NDArray[np.bool_]:
        """This party's presence, and under it the masks of its columns that have one (mask, record)."""
        present = me.present_with([name for name in self.filled if name in me.block.columns])
        return np.array([present, *(present & me.present_with([name]) for name in self.own_masked(me.name))])

    def put_away(self, me: Party, number: int) -> None:
        tag, layers = self.rows_tag(number), len(self.field.primes)
        messages(me, tag, self.parties, layers=layers, keep=True, remember=self.remembers(0))
        if number == 0:
            self._masks(me, keep=True)
            self._keep_noise(me, 0)

    def hold(self, me: Party, number: int) -> None:
        super().hold(me, number)
        self._keep_noise(me, number)

    def _keep_noise(self, me: Party, number: int) -> None:
        tag = self.noise_tag(number)
        for part in (tag, *(blinds_of(me.roster, tag) if self.verify else [])):
            messages(me, part, me.roster.names, layers=len(self.field.primes), keep=True)

    def alike(self, me: Party) -> Mapping[str, bytes]:
        """The masks, where the holders see them."""
        return {party: masks.tobytes() for party, masks in self._packed_masks(me, keep=False).items()}

    def combine(self, me: Party, number: int) -> Residues:
        """Products of this holder's shares plus every member's noise, tile by tile."""
        products = self._products(me, number, keep=len(self.rounds) > 1)
        size = self.openings[number]
        noise = self._noise(me, number)
        opened = np.empty((len(self.field.primes), size), dtype=np.int32)
        start = 0
        for tile in self.rounds[number]:
            product = products.pop(tile)
            product = product.upper() if tile.diagonal else product
            part = slice(start, start + tile.size)
            shaped = {member: added[:, part].reshape(-1, *product.shape) for member, added in noise.items()}
            opened[:, part] = open_product(product, noise=shaped, parties=me.roster.names).reshape(len(opened), -1)
            start += tile.size
        return opened

    def _noise(self, me: Party, number: int) -> dict[str, Residues]:
        """This holder's shares, of degree 2t, of each member's noise for one opening."""
        noise = self._dealt_noise(me, self.noise_tag(number), number)
        if not self.verify:
            return noise
        blinds = [self._dealt_noise(me, tag, number) for tag in blinds_of(me.roster, self.noise_tag(number))]
        return {
            member: joined_noise(me, self.field, noise[member], [blind[member] for blind in blinds]) for member in noise
        }

    def _dealt_noise(self, me: Party, tag: str, number: int) -> dict[str, Residues]:
        """Each member's, needed for the opening and again for its proof: remembered if there is room."""

        def materialized() -> dict[str, Residues]:
            dealt = dealt_large(me, tag, me.roster.names, self.field, lengths=(self.openings[number],))
            return {member: materialize(share) for member, share in dealt.items()}

        size = 4 * len(self.field.primes) * self.openings[number] * len(me.roster.names)
        if not self.remembers(size):
            return materialized()
        return me.remembered(f"{tag}: shares", size, materialized)

    # --- what is verified ---------------------------------------------------------------------------------

    @property
    def claim_length(self) -> int:
        """Each record is in one pattern, and brings one product: sum_r (x_r u)^2, with u of its pattern."""
        return self.facts.n

    def _vectors(self, extension: Extension, seed: bytes) -> list[Residues]:
        return [
            extension.uniform((len(self.entries(mask)),), seed=seed, label=f"columns {pattern}")
            for pattern, mask in enumerate(self.masks)
        ]

    def opening_weights(self, extension: Extension, seed: bytes, number: int) -> Residues:
        """u' G u for each pattern: entry (i, j) above the diagonal has 2 u_i u_j, on it u_i u_i."""
        vectors = self._vectors(extension, seed)

        def weights(tile: Tile) -> Residues:
            rows, columns = (vectors[tile.pattern][:, slice(*part)] for part in (tile.rows, tile.columns))
            if tile.diagonal:
                return gram_weights(extension, rows)
            return cross_weights(extension, extension.add(rows, rows), columns)

        return np.concatenate([weights(tile) for tile in self.rounds[number]], axis=1)

    def claim_factors(self, me: Party, extension: Extension, seed: bytes) -> Iterator[Factors]:
        width = len(self.entries(self._everything))
        by_pattern = extension.zeros((len(self.masks), width))
        for pattern, (mask, u) in enumerate(zip(self.masks, self._vectors(extension, seed), strict=True)):
            by_pattern[:, pattern, self.shown(mask)] = u
        for records, parts, present in self._projectable(me):
            which = np.zeros(records, dtype=np.intp)
            if present is not None:
                which[:] = -1
                for pattern in range(len(self.masks)):
                    which[self.matching(present, pattern)] = pattern
            projected = extension.project_each(parts, by_pattern, which)
            yield Factors(projected, projected)

    def _projectable(self, me: Party) -> Iterator[tuple[int, Iterable[tuple[Term, slice]], NDArray[np.bool_] | None]]:
        """Each block: how many records, terms of its columns, and which party has which record. Unless all columns are
        remembered, party by party: no array of all of them is made."""
        factors = [1] * len(self.field.primes)
        if self.remembers(self._all_bytes):
            for columns, present in self._all_blocks(me, keep=True):
                edges = itertools.accumulate((part.shape[2] for part in columns), initial=0)
                places = itertools.starmap(slice, itertools.pairwise(edges))
                yield columns[0].shape[1], zip((Term(factors, part) for part in columns), places, strict=True), present
            return
        first = 1 if self.constant and self.presence != "secret" else 0
        ends = list(itertools.accumulate(map(self.width, self.parties), initial=first))

        def parts(shares: Mapping[str, Share], block: int, records: int) -> Iterator[tuple[Term, slice]]:
            if first:
                yield Term(factors, self._constant(records)), slice(0, 1)
            for party, columns in zip(self.parties, itertools.starmap(slice, itertools.pairwise(ends)), strict=True):
                yield from ((term, columns) for term in terms(shares[party], block))

        for shares, block, records, present in self._share_blocks(me, keep=True):
            yield records, parts(shares, block, records), present

    def noise_parts(self, me: Party, number: int) -> tuple[Residues, list[Residues]]:
        tag = self.noise_tag(number)
        noise, *blinds = (
            functools.reduce(self.field.add, self._dealt_noise(me, part, number).values())
            for part in (tag, *blinds_of(me.roster, tag))
        )
        return noise, [unblinded(me, self.field, blind) for blind in blinds]

    def input_length(self, dealer: str) -> int:
        """Where masks are shared like data, that each is 0 or 1 (in units of gamma) for each record; and the squares of
        each entry and of the root, where norms are proven."""
        squares = self.width(dealer) - self._mask_columns(dealer) + 1 if self.norms else 0
        return self.facts.n * (self._mask_columns(dealer) + squares)

    def sized_columns(self, dealer: str) -> tuple[int, ...]:
        return self.norm(dealer).largest if self.norms else (self.gamma,) * self._mask_columns(dealer)

    def sized_blocks(self, me: Party, dealer: str, *, own: bool) -> Iterator[Residues]:
        return (columns for _, columns in self._proven(me, dealer, own=own))

    def _proven(self, me: Party, dealer: str, *, own: bool) -> Iterator[tuple[int, Residues]]:
        """The columns of which something is proven: masks and, where norms are, features, roots and rests. The dealer's
        own, or a holder's shares of them, (primes, records, columns) for each block of records, with the number of its
        first one."""
        if own:
            integers = self._own_proven(me)
            for first in range(0, self.facts.n, BATCH_ROWS):
                yield first, self.field.encode(integers[first : first + BATCH_ROWS])
            return
        masks, lengths = self._mask_columns(dealer), (self.facts.n, ROOTS)
        if self.norms:
            roots = dealt_large(me, self._roots_tag, [dealer], self.field, lengths=lengths)[dealer]
        for block, rows in enumerate(self._dealt_blocks(me, dealer)):
            columns = np.concatenate([rows, roots.block(block)], axis=2) if self.norms else rows[:, :, :masks]
            yield block * BATCH_ROWS, columns

    def _own_proven(self, me: Party) -> NDArray[np.integer[Any]]:
        if not self.norms:
            return self.gamma * self.own_masks(me).T.astype(np.int64)
        rows = [me.recall(self._own_rows(chunk)) for chunk in range(len(self.chunks))]
        return np.column_stack([np.concatenate(rows), me.recall(self._roots_tag)])

    def _dealt_blocks(self, me: Party, dealer: str) -> Iterator[Residues]:
        """A holder's shares of one party's rows; out of those of all, if these are remembered."""
        if self.remembers(self._all_bytes):
            for columns, _ in self._all_blocks(me, keep=True):
                yield columns[self.parties.index(dealer) - len(self.parties)]  # perhaps a constant stands before them
            return
        for shares, block, _, _ in self._share_blocks(me, keep=True):
            yield shares[dealer].block(block)

    def input_claims(
        self, me: Party, dealer: str, extension: Extension, seed: bytes, *, own: bool
    ) -> Iterator[tuple[Factors, Residues]]:
        """sum_r psi_r^2 x_r^2 = gamma sum_r psi_r^2 x_r for masks, and that rows are within their norm."""
        masks = self._mask_columns(dealer)
        for first, columns in self._proven(me, dealer, own=own):
            if masks:
                bits = columns[:, :, :masks].reshape(len(columns), -1)
                psi = extension.uniform(bits.shape[1:], seed=seed, label=f"presence at {dealer}, records from {first}")
                value = self.field.scale(extension.combine(bits, extension.mul(psi, psi)), self.gamma)
                yield square_factors(extension, bits, psi), value
            if self.norms:
                psi = extension.uniform(columns.shape[1:2], seed=seed, label=f"norms at {dealer}, records from {first}")
                yield self.norm(dealer).claim(extension, columns, psi)

    # --- shares of rows, a block at a time ----------------------------------------------------------------

    def _masks(self, me: Party, *, keep: bool) -> NDArray[np.uint8] | None:
        """Which party has which record, and below which cells are filled, where that is known: (unit, record) in the
        order of `masks`, eight records in a byte."""
        packed = list(self._packed_masks(me, keep=keep).values())
        return np.concatenate([*(bits[:1] for bits in packed), *(bits[1:] for bits in packed)]) if packed else None

    def _packed_masks(self, me: Party, *, keep: bool) -> dict[str, NDArray[np.uint8]]:
        """{party: its masks as it sent them}; empty unless presence is known."""
        if self.presence != "known":
            return {}
        sent = messages(me, f"{self.tag}: mask", self.parties, keep=keep)
        packed = {party: np.asarray(sent[party], dtype=np.uint8) for party in self.parties}
        for party, bits in packed.items():
            if bits.shape != (1 + len(self.own_masked(party)), -(-self.facts.n // 8)):
                raise UnsafeRequest("a member sent a mask of another length than the layout says; nothing is opened.")
        return packed

    def _products(self, me: Party, number: int, *, keep: bool) -> dict[Tile, Product]:
        """This holder's share of every tile of one opening, summed over chunks and blocks of records.

        Shares come in chunks of the cohort, kept at the holder until the opening; one chunk is in memory at a time.
        """
        products = {tile: self._zero(tile) for tile in self.rounds[number]}
        for columns, present in self._all_blocks(me, keep=keep):
            self._add_block(products, columns, present)
        return products

    def _all_blocks(self, me: Party, *, keep: bool) -> Iterable[tuple[list[Residues], NDArray[np.bool_] | None]]:
        """All blocks; for a verification they are remembered, if there is room, since it needs them again."""
        if not self.remembers(self._all_bytes):
            return self._blocks(me, keep=keep)
        return me.remembered(f"{self.tag}: blocks", self._all_bytes, lambda: list(self._blocks(me, keep=keep)))

    @property
    def _all_bytes(self) -> int:
        """A holder's shares of all columns, as residues."""
        return 4 * len(self.field.primes) * self.facts.n * sum(map(self.width, self.parties))

    def _chunk_shares(self, me: Party, *, keep: bool) -> Iterator[dict[str, Share]]:
        """This holder's shares of one chunk of all parties' rows after the other."""
        for chunk, (start, stop) in enumerate(self.chunks):
            tag, layers = self.rows_tag(chunk), len(self.field.primes)
            rows = messages(me, tag, self.parties, layers=layers, keep=keep, remember=self.remembers(0))
            lengths = {party: (stop - start, self.width(party)) for party in self.parties}
            yield shares_of(me, rows, self.field, lengths)

    def _blocks(self, me: Party, *, keep: bool) -> Iterator[tuple[list[Residues], NDArray[np.bool_] | None]]:
        """Shares of all columns for a block of records, party by party, and which party has which of these, where that
        is known."""
        for shares, block, records, present in self._share_blocks(me, keep=keep):
            yield self._columns(shares, block, records), present

    def _share_blocks(
        self, me: Party, *, keep: bool
    ) -> Iterator[tuple[dict[str, Share], int, int, NDArray[np.bool_] | None]]:
        """The same as shares, with the number of a block in them and of its records."""
        masks = self._masks(me, keep=keep)
        for (start, stop), shares in zip(self.chunks, self._chunk_shares(me, keep=keep), strict=True):
            for block in range(Shape((stop - start,)).blocks):
                rows, present = Shape((stop - start,)).rows(block), None
                if masks is not None:
                    first, last = start + rows.start, start + rows.stop
                    bits = np.unpackbits(masks[:, first // 8 : -(-last // 8)], axis=1, count=last - first)
                    present = np.concatenate([bits.astype(bool), self.in_folds[:, first:last]])
                yield shares, block, rows.stop - rows.start, present

    @cached_property
    def in_folds(self) -> NDArray[np.bool_]:
        """Which fold each record of the cohort is in: (fold, record)."""
        if not self.folds:
            return np.zeros((0, self.facts.n), dtype=bool)
        return np.asarray(np.arange(self.folds)[:, None] == fold_of(self.facts.n, self.folds))

    def matching(self, present: NDArray[np.bool_], pattern: int) -> NDArray[np.bool_]:
        """Which records have a pattern, or any candidate where all are pooled; `present` is (unit, record)."""
        match = np.zeros(present.shape[1], dtype=bool)
        for mask in self.candidates if self.pooled else [self.masks[pattern]]:
            match |= np.all(present == np.array(mask)[:, None], axis=0)
        return match

    def _zero(self, tile: Tile) -> Product:
        """A share of nothing yet."""
        height, width = tile.rows[1] - tile.rows[0], tile.columns[1] - tile.columns[0]
        return lift(self.field, self.field.zeros((height, width)))

    def _add_block(
        self, products: dict[Tile, Product], parts: list[Residues], present: NDArray[np.bool_] | None
    ) -> None:
        """Add one block of records to every tile."""
        everything = (0, sum(part.shape[2] for part in parts))
        if present is None and [(tile.rows, tile.columns) for tile in products] == [(everything, everything)]:
            products[next(iter(products))] += gram_of(self.field, parts)
            return
        columns = np.concatenate(parts, axis=2)
        for pattern, mask in enumerate(self.masks):
            tiles = [tile for tile in products if tile.pattern == pattern]
            if not tiles:
                continue
            used = columns
            if present is not None:
                match = self.matching(present, pattern)
                if not match.any():
                    continue
                used = columns[:, match][:, :, self.shown(mask)]
            for tile in tiles:
                left = used[:, :, slice(*tile.rows)]
                right = used[:, :, slice(*tile.columns)]
                products[tile] += gram(self.field, left) if tile.diagonal else cross(self.field, left, right)

    def _columns(self, shares: Mapping[str, Share], block: int, records: int) -> list[Residues]:
        """The holder's shares of one block of records: the constant, which is its own share, and all columns."""
        parts = [shares[party].block(block) for party in self.parties]
        if self.constant and self.presence != "secret":
            parts.insert(0, self._constant(records))
        return parts

    def _constant(self, records: int) -> Residues:
        constant = self.field.encode(np.array([[self.gamma]]))
        return np.broadcast_to(constant, (len(constant), records, 1))


def fold_of(size: int, folds: int) -> NDArray[np.int64]:
    """The fold of each of so many records: as even as can be, in an order that is public and independent of data."""
    order = np.random.default_rng(20_100_131).permutation(size)  # public: hides nothing, protects nobody
    return np.asarray(np.argsort(order) % folds)


# --- within the memory that the user allows ---------------------------------------------------------------


def within_memory(layout: MomentsLayout, megabytes: float) -> MomentsLayout:
    """The same computation in tiles and rounds so small that coordinator and holders stay within so many MB.

    An upper bound, from the sizes of what is alive at the worst moment: arriving mail in four forms (the frame, the
    message, the sealed and the plain bytes) and one block of all columns at a holder; relayed mail and the result
    at the coordinator; and for both a few arrays of residues for each entry that is opened.
    """
    largest = max(len(layout.entries(mask)) for mask in layout.masks)
    if layout.roster.pair:
        return pair_within_memory(layout, megabytes, 32 * sum(len(layout.entries(mask)) ** 2 for mask in layout.masks))
    each = opened_bytes(layout)
    least = min(layout.opening, largest * largest, 1 << 14)
    start, stop = layout.chunks[0]
    records = stop - start
    while True:
        left = int(megabytes * (1 << 20)) - PYTHON - _resident(layout, records)
        if left >= each * least or records <= BATCH_ROWS:
            break
        records = max(BATCH_ROWS, records // 2 // BATCH_ROWS * BATCH_ROWS)
    if left < each * least:
        raise too_little_memory(PYTHON + _resident(layout, records) + each * least)
    opening = min(layout.opening, left // each)
    tile = min(layout.tile, max(1, math.isqrt(opening)))
    return replace(layout, opening=opening, tile=tile, records=records)


def _resident(layout: MomentsLayout, records: int) -> int:
    """Bytes at the busiest process while shares of so many cohort rows travel, besides the entries that are opened."""
    primes, n = len(layout.field.primes), layout.facts.n
    widths = {party: layout.width(party) for party in layout.parties}
    mail = [0] * len(layout.roster.committee)
    for party, width in widths.items():
        for place in packed_holders(layout.roster, party, layout.roster.threshold):
            mail[place] += layout.packed_bytes(records, width)
    widest = max(widths.values())
    own = 16 * records * widest  # the dealer's numbers, and the share that it packs
    block = 4 * primes * min(n, BATCH_ROWS) * (2 * sum(widths.values()) + widest)
    # Where rows are sorted on disk: a chunk of the block in some ten copies. Keys, positions and masks have length n.
    sorting = 0 if records >= n else 80 * min(n, chunk_rows(widest)) * widest
    holder = own + 4 * max(mail) + block + sorting + 32 * n + proving_bytes(layout)
    coordinator = 3 * sum(mail) + 8 * sum(len(layout.entries(mask)) ** 2 for mask in layout.masks)
    return max(holder, coordinator)


# --- the coordinator's procedure --------------------------------------------------------------------------


RANGES = (
    "but for its ranges it is the layout of the plan; what is mapped to [-1, 1] has its middle within the declared"
    " range of the column, and is a millionth to a hundred times as wide; no noise and no sensitivity depends on it"
)
NARROWEST, WIDEST = 1e-6, 100.0


def later_ranges(facts: PublicFacts, names: Sequence[str] | None, **also: Callable[[Any], bool]) -> Later:
    """The rule for ranges that follow from earlier releases of the job, one for each feature; and for `also` others."""
    declared = {feature.name: feature for feature in features(facts, names)}

    def accepted(ranges: Any) -> bool:
        return set(ranges) == set(declared) and all(_usable(declared[name], *ends) for name, ends in ranges.items())

    return fields_of(RANGES, ranges=accepted, **also)


def _usable(feature: Feature, lower: Any, upper: Any) -> bool:
    if not (is_number(lower) and is_number(upper)):
        return False
    inside = abs((lower + upper) / 2 - feature.centre) <= feature.half * (1 + 1e-6)
    return bool(inside and NARROWEST * feature.half <= (upper - lower) / 2 <= WIDEST * feature.half)


class MomentComputation(VerifiedStages, Procedure["MomentsResult"]):
    """One computation of moments: share rows, open, join. Other methods put its stages into their own plans.

    `adaptive`: its ranges come from earlier releases of the job, and are given to `run`. Neither cost nor shape depends
    on them.
    """

    layout: MomentsLayout

    def __init__(self, layout: MomentsLayout, view: View, *, adaptive: bool = False) -> None:
        super().__init__(layout, view, later={"chosen": later_ranges(layout.facts, layout.names)} if adaptive else {})
        if layout.roster.pair:
            self.pair = PairStages(layout, view, later=self._later)
            self.stages, self.notes = self.pair.stages, (*moment_notes(layout, view), *self.verification_notes)
            return
        roster, degree = layout.roster, layout.roster.threshold
        start, stop = layout.chunks[0]
        shares = max(
            len(packed_holders(roster, party, degree))
            * (layout.packed_bytes(stop - start, layout.width(party)) + layout.beside_bytes(party))
            for party in layout.parties
        )
        noise = max(len(packed_holders(roster, member, 2 * degree)) for member in roster.names)
        noise *= layout.packed_bytes(max(layout.openings), 1)
        mask = "; the presence mask to the holders" if layout.presence == "known" else ""
        self.share = self.stage(
            "share rows",
            share_rows,
            roster.names,
            [{"number": 0}],
            discloses=f"secret shares of {layout.rows} and of noise{mask}",
            reply_bytes=shares + noise,
        )
        self.share_more = self.stage(
            "share more rows",
            share_rows,
            roster.names,
            [{"number": number} for number in range(1, len(layout.chunks))],
            discloses=f"secret shares of {layout.rows}",
            reply_bytes=shares,
        )
        compare, opening = self.opening()
        proofs = self.verification()
        self.add_noise = self.stage(
            "share noise",
            share_noise,
            roster.names,
            [{"number": number} for number in range(1, len(layout.openings))],
            audience="share holders (sealed)",
            recipients=roster.committee,
            discloses="secret shares of noise",
            reply_bytes=noise,
        )
        last = (self.add_noise, *proofs, opening) if layout.verify else (opening, self.add_noise)
        stages = (self.share, self.share_more, compare, *last)
        self.stages = tuple(stage for stage in stages if stage.costs)
        self.notes = (*moment_notes(layout, view), *self.verification_notes)

    def run(self, job: Job, *, ranges: Mapping[str, tuple[float, float]] | None = None) -> MomentsResult:
        """The result is exact integers plus noise, rescaled."""
        layout, later = self.layout, dict[str, Any]()
        if ranges is not None:
            layout = replace(layout, ranges=ranges)
            later = {"chosen": {"ranges": plain(ranges)}}
        openings: Iterable[NDArray[Any]]
        if layout.roster.pair:
            self.pair.ask_rows(job, **later)
            openings = self.pair.all_opened(job, layout, **later)
        else:
            job.ask(self.share, **later)
            for _ in layout.chunks[1:]:
                job.ask(self.share_more, **later)
            openings = self.all_opened(job, layout, self.add_noise, **later)
        grams = [np.zeros((width, width)) for width in (len(layout.entries(mask)) for mask in layout.masks)]
        for tiles, integers in zip(layout.rounds, openings, strict=True):
            opened, start = integers.astype(np.float64) / layout.gamma**2, 0
            for tile in tiles:
                _place(grams[tile.pattern], tile, opened[start : start + tile.size])
                start += tile.size
        return MomentsResult(
            n=layout.facts.n,
            parties=layout.parties,
            presence=layout.presence,
            features=tuple(layout.features),
            patterns=tuple(mask[: len(layout.parties)] for mask in layout.masks),
            entries=tuple(tuple(layout.entries(mask)) for mask in layout.masks),
            grams=tuple(grams),
            noise_sd=layout.noise_sd,
            simulated=job.simulated,
        )


def moment_notes(layout: MomentsLayout, view: View) -> tuple[str, ...]:
    if layout.mu == 0:
        return (EXACT, *layout.empty_notes())
    sd, primes = layout.noise_sd, f"{len(layout.field.primes)} primes of 21 bits"
    modulus = f"modulus 2^{layout.paired().bits}" if layout.roster.pair else primes
    return (
        f"Each entry of a Gram matrix carries noise with standard deviation {sd:.4g}"
        f" ({sd / layout.facts.n:.2g} of n = {layout.facts.n}).",
        f"Account: {view} view, {colluders(layout.roster, view)} of {len(layout.roster.names)} members collude;"
        f" {modulus}.",
        *layout.empty_notes(),
    )


def _place(matrix: NDArray[np.float64], tile: Tile, values: NDArray[np.float64]) -> None:
    rows, columns = slice(*tile.rows), slice(*tile.columns)
    if not tile.diagonal:
        square = values.reshape(tile.rows[1] - tile.rows[0], -1)
        matrix[rows, columns], matrix[columns, rows] = square, square.T
        return
    upper = np.triu_indices(tile.rows[1] - tile.rows[0])
    matrix[rows, columns][upper] = values
    matrix[rows, columns].T[upper] = values
