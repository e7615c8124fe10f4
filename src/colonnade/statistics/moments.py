"""The public shape of a computation of moments: features, patterns, bounds, noise, and the tiles that are opened.

Everybody computes it alike from public facts, the pinned roster and the options; a party checks its data and its
mail against nothing else.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, lru_cache
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Self

import numpy as np
from numpy.typing import NDArray

from colonnade.data.sources import chunk_rows
from colonnade.errors import BadArguments, BadPrivacyParameter, UnsafeRequest
from colonnade.federation.facts import PublicFacts
from colonnade.federation.job import Job
from colonnade.federation.method import Procedure
from colonnade.federation.party import Party
from colonnade.federation.plan import Plan
from colonnade.federation.roster import Roster
from colonnade.federation.run_folder import RunFolder
from colonnade.federation.stage import SEALED, Stage, stage
from colonnade.federation.step import Public, Release, step
from colonnade.privacy.cost import Cost, Free, Relation, Unbounded, compose
from colonnade.privacy.skellam import Skellam, calibrate_mu, delta_1_bound
from colonnade.secure.bgw import Product, cross, gram, lift, open_product
from colonnade.secure.field import BLOCK_ROWS, Field, Residues
from colonnade.secure.seeded import Shape, Share, whole
from colonnade.statistics.cohort_rows import CohortRows
from colonnade.statistics.dealing import deal_noise, deal_rows, held, messages, shares_of, whole_holders
from colonnade.statistics.features import Feature, design_chunks, features
from colonnade.statistics.joint import (
    View,
    binding,
    check_budget,
    check_view,
    colluders,
    field_for,
    join,
    once,
    reading,
    whole_numbers,
)
from colonnade.statistics.quantize import check_row, integer_bounds, quantize

if TYPE_CHECKING:
    from colonnade.federation.coordinator import Federation

Presence = Literal["known", "secret", "ignore"]
MAXIMUM_ENTRIES = 1 << 22
"""Entries opened in one round, unless `memory` asks for fewer; a larger job runs in several rounds."""
MAXIMUM_MAIL = 1 << 28
"""Bytes of one party's share that travel at a time, unless `memory` asks for fewer."""


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
class MomentsLayout:
    """The public shape of a job: features, patterns, bounds, noise. A party checks its data against nothing else."""

    facts: PublicFacts
    roster: Roster
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
    """Names the computation within its job: its phases, its mail and its joint release."""
    scores: str | None = None
    """Rows are scores, through the maps that each party kept under this label (see `statistics.features`)."""
    ranges: Mapping[str, tuple[float, float]] = field(default_factory=dict)
    """{feature: (lower, upper)}: what is mapped to [-1, 1] instead of its declared range; values beyond are clipped. A
    request may state it from earlier releases: the sensitivity does not depend on it."""
    pooled: bool = False
    """One Gram matrix for all candidate patterns together, in which an absent block is zeros."""

    @classmethod
    def from_dict(cls, facts: PublicFacts, roster: Roster, plain: Mapping[str, Any]) -> MomentsLayout:
        """The layout that a request describes, checked before anything depends on it."""
        with reading("moments"):
            made = cls(
                facts=facts,
                roster=roster,
                names=None if plain["names"] is None else tuple(plain["names"]),
                presence=plain["presence"],
                gamma=plain["gamma"],
                clip=dict(plain["clip"]),
                constant=plain["constant"],
                patterns=None
                if plain["patterns"] is None
                else tuple(tuple(bool(one) for one in pattern) for pattern in plain["patterns"]),
                mu=plain["mu"],
                tile=plain["tile"],
                opening=plain["opening"],
                records=plain["records"],
                label=str(plain["label"]),
                scores=None if plain["scores"] is None else str(plain["scores"]),
                ranges={str(name): (float(low), float(high)) for name, (low, high) in plain["ranges"].items()},
                pooled=plain["pooled"],
            )
        made.check()
        return made

    def to_dict(self) -> dict[str, Any]:
        return {
            "names": None if self.names is None else list(self.names),
            "presence": self.presence,
            "gamma": self.gamma,
            "clip": dict(self.clip),
            "constant": self.constant,
            "patterns": None if self.patterns is None else [list(one) for one in self.patterns],
            "mu": self.mu,
            "tile": self.tile,
            "opening": self.opening,
            "records": self.records,
            "label": self.label,
            "scores": self.scores,
            "ranges": {name: list(one) for name, one in self.ranges.items()},
            "pooled": self.pooled,
        }

    def check(self) -> None:
        whole = whole_numbers(self.gamma, self.mu, self.tile, self.opening, self.records)
        if not whole or not 1 <= self.gamma <= 2**26 or not 0 <= self.mu <= 2**90 or min(self.tile, self.opening) < 1:
            raise BadArguments(
                "gamma must be a whole number from 1 to 2^26, mu from 0 to 2^90, tile and opening at least 1."
            )
        if self.records < 0 or (self.records < self.facts.n and self.records % BLOCK_ROWS):
            raise BadArguments(f"records must be a multiple of {BLOCK_ROWS}, at least n, or 0.")
        if self.presence not in ("known", "secret", "ignore"):
            raise BadArguments(f"presence must be 'known', 'secret' or 'ignore', not {self.presence!r}.")
        if not self.features:
            raise BadArguments("moments need at least one column; name some with columns=.")
        for party in self.parties:
            check_row(self.width(party), self.gamma)
        for party, bound in self.clip.items():
            if party not in self.parties or not (isinstance(bound, (int, float)) and 0 < bound < math.inf):
                raise BadPrivacyParameter(
                    f"clip must give a positive norm for parties that take part, not {self.clip!r}."
                )
        if self.patterns is not None and (
            self.presence != "known"
            or len(set(self.patterns)) != len(self.patterns)
            or any(len(one) != len(self.parties) or not any(one) for one in self.patterns)
        ):
            raise BadArguments("patterns must be distinct, non-empty rows of one bool a party, with presence='known'.")

        if self.ranges and (
            self.scores is not None
            or not self.ranges.keys() <= {feature.name for feature in features(self.facts, self.names)}
            or not all(-math.inf < low < high < math.inf for low, high in self.ranges.values())
        ):
            raise BadArguments("ranges must give finite bounds, in order, for features that take part, without scores.")
        if not isinstance(self.pooled, bool) or (self.pooled and self.presence != "known"):
            raise BadArguments("pooled is a bool, and joins patterns where presence is 'known'.")

    @cached_property
    def features(self) -> list[Feature]:
        made = features(self.facts, self.names, scores=self.scores is not None)
        return [one.within(*self.ranges[one.name]) if one.name in self.ranges else one for one in made]

    @cached_property
    def parties(self) -> tuple[str, ...]:
        """The data parties whose columns take part."""
        return tuple(dict.fromkeys(feature.party for feature in self.features))

    @cached_property
    def masks(self) -> list[tuple[bool, ...]]:
        """The patterns that have a Gram matrix each: the candidates, or one with all parties for all of them pooled."""
        return [(True,) * len(self.parties)] if self.pooled else self.candidates

    @cached_property
    def candidates(self) -> list[tuple[bool, ...]]:
        """The candidate patterns: declared, or every non-empty one; a single one unless presence is known."""
        if self.presence != "known":
            return [(True,) * len(self.parties)]
        if self.patterns is not None:
            return list(self.patterns)
        return [one for one in itertools.product((False, True), repeat=len(self.parties)) if any(one)]

    def width(self, party: str) -> int:
        """Columns that a party shares: its features, and its mask where presence is secret."""
        own = sum(feature.party == party for feature in self.features)
        return own + (1 if self.presence == "secret" else 0)

    def entries(self, mask: tuple[bool, ...]) -> list[str]:
        """The names of a pattern's rows and columns, in order."""
        shown = ["1"] if self.constant and self.presence != "secret" else []
        for here, party in zip(mask, self.parties, strict=True):
            if here:
                shown += [f"present at {party}"] if self.presence == "secret" else []
                shown += [feature.name for feature in self.features if feature.party == party]
        return shown

    def shown(self, mask: tuple[bool, ...]) -> NDArray[np.intp]:
        """Where a pattern's entries are among the columns of the pattern with all parties."""
        here = [np.ones(1, dtype=bool)] if self.constant and self.presence != "secret" else []
        here += [np.full(self.width(party), one) for one, party in zip(mask, self.parties, strict=True)]
        return np.flatnonzero(np.concatenate(here))

    def bound(self, party: str) -> float:
        """The declared norm of a party's features: no clipping unless `clip` asks for it."""
        return self.clip.get(party, math.sqrt(sum(feature.party == party for feature in self.features)))

    @cached_property
    def delta_2(self) -> float:
        """L2 sensitivity, in integers, of all upper triangles together when one record becomes nothing.

        z is the record's extended row. ||upper(z z')||^2 = (|z|^4 + sum z_i^4) / 2 <= (c^4 + B^2 c^2) / 2 with
        c^2 >= |z|^2 and B >= |z_i|. Where the constant is public (presence ignored) its square does not change and
        its products add A^2 |x|^2.
        """
        one = self.gamma
        rows = sum(integer_bounds(self.gamma, self.bound(party), 1.0)[0] for party in self.parties)
        if self.presence == "ignore":
            return math.sqrt((rows**2 + one**2 * rows) / 2 + (one**2 * rows if self.constant else 0))
        masks = len(self.parties) if self.presence == "secret" else 1
        square = rows + masks * one**2
        return math.sqrt((square**2 + one**2 * square) / 2)

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

    @cached_property
    def field(self) -> Field:
        """Holds every entry: at most n gamma^2 (all entries of a row are at most gamma), with all noise."""
        return field_for(self.facts.n * self.gamma**2, self.mu, self.roster)

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
        for number, mask in enumerate(self.masks):
            width = len(self.entries(mask))
            cuts = [(low, min(low + self.tile, width)) for low in range(0, width, self.tile)]
            for first, rows in enumerate(cuts):
                for columns in cuts[first:]:
                    yield Tile(number, rows, columns)

    @cached_property
    def chunks(self) -> list[tuple[int, int]]:
        """The cohort's rows in ranges whose shares travel together; blocks of records never straddle two of them."""
        widest = max(self.width(party) for party in self.parties)
        fitting = MAXIMUM_MAIL // self.packed_bytes(BLOCK_ROWS, widest) * BLOCK_ROWS
        rows = self.records or max(BLOCK_ROWS, fitting)
        return [(start, min(start + rows, self.facts.n)) for start in range(0, self.facts.n, rows)]

    @cached_property
    def tag(self) -> str:
        """Begins the tags of this computation's mail."""
        return binding(self.label, self.to_dict())

    def rows_tag(self, number: int) -> str:
        """The tag of the shares of one chunk of rows."""
        return f"{self.tag}: rows {number}" if number else f"{self.tag}: rows"

    def zero(self, tile: Tile) -> Product:
        """A share of nothing yet."""
        height, width = tile.rows[1] - tile.rows[0], tile.columns[1] - tile.columns[0]
        return lift(self.field, self.field.zeros((height, width)))

    def packed_bytes(self, records: int, width: int) -> int:
        """A whole share of an array as it travels."""
        return 8 * len(self.field.primes) * Shape((records, width)).total_words

    def size(self, number: int) -> int:
        return sum(tile.size for tile in self.rounds[number])

    def cost(self, public: Public, view: View) -> Cost:
        """The one joint release of this job, at a data party."""
        joint = f"{public.job} {self.label}"
        release = Unbounded("exact-moments", "exact counts, sums and products of the columns", joint=joint)
        if self.mu:
            release = self._noisy(joint, view)
        if self.presence != "known":
            return release
        mask = Unbounded(
            "presence", "which pseudonymous records a party has, to the share holders", audience="share holders"
        )
        return compose([release, mask])

    def _noisy(self, joint: str, view: View) -> Cost:
        return Skellam(
            self.mu,
            delta_1=self.delta_1,
            delta_2=self.delta_2,
            parties=len(self.roster.names),
            colluders=colluders(self.roster, view),
            replace_factor=self.replace_factor,
            dimension=self.dimension,
            joint=joint,
        )


# --- within the memory that the user allows --------------------------------------------------------------------

PYTHON = 400 << 20
"""What a process takes before any job: the interpreter, the libraries and the accountant (340 MB measured), and room to
breathe."""


def within_memory(layout: MomentsLayout, megabytes: int) -> MomentsLayout:
    """The same computation in tiles and rounds so small that coordinator and holders stay within so many MB.

    An upper bound, from the sizes of what is alive at the worst moment: arriving mail in four forms (the frame, the
    message, the sealed and the plain bytes) and one block of all columns at a holder; relayed mail and the result
    at the coordinator; and for both a few arrays of residues for each entry that is opened.
    """
    if isinstance(megabytes, bool) or not isinstance(megabytes, int) or megabytes < 1:
        raise BadArguments(f"memory must be a whole number of MB, not {megabytes!r}.")
    primes, members, committee = len(layout.field.primes), len(layout.roster.names), len(layout.roster.committee)
    largest = max(len(layout.entries(mask)) for mask in layout.masks)
    # For each entry that is opened: at a holder all members' noise, products and the reply; at the coordinator every
    # holder's reply as bytes and as residues, and what joining them takes (240 bytes measured, 3 primes and holders).
    each = max(4 * primes * (members + 7) + 16, 4 * primes * (2 * committee + 12) + 8 * primes + 32)
    least = min(layout.opening, largest * largest, 1 << 14)
    start, stop = layout.chunks[0]
    records = stop - start
    while True:
        left = (megabytes << 20) - PYTHON - _resident(layout, records)
        if left >= each * least or records <= BLOCK_ROWS:
            break
        records = max(BLOCK_ROWS, records // 2 // BLOCK_ROWS * BLOCK_ROWS)
    if left < each * least:
        needed = -(-(PYTHON + _resident(layout, records) + each * least) // (1 << 20))
        raise BadArguments(
            f"this job needs about {needed} MB at its busiest process; allow memory={needed}, or choose fewer columns."
        )
    opening = min(layout.opening, left // each)
    tile = min(layout.tile, max(1, math.isqrt(opening)))
    return replace(layout, opening=opening, tile=tile, records=records)


def _resident(layout: MomentsLayout, records: int) -> int:
    """Bytes at the busiest process while shares of so many cohort rows travel, besides the entries that are opened."""
    primes, n = len(layout.field.primes), layout.facts.n
    widths = {party: layout.width(party) for party in layout.parties}
    mail = [0] * len(layout.roster.committee)
    for party, width in widths.items():
        for place in whole_holders(layout.roster, party, layout.roster.threshold):
            mail[place] += layout.packed_bytes(records, width)
    widest = max(widths.values())
    own = 16 * records * widest  # the dealer's numbers, and the share that it packs
    block = 4 * primes * min(n, BLOCK_ROWS) * (2 * sum(widths.values()) + widest)
    # Where rows are sorted on disk: a chunk of the block in some ten copies. Keys, positions and masks have length n.
    sorting = 0 if records >= n else 80 * min(n, chunk_rows(widest)) * widest
    holder = own + 4 * max(mail) + block + sorting + 32 * n
    coordinator = 3 * sum(mail) + 8 * sum(len(layout.entries(mask)) ** 2 for mask in layout.masks)
    return max(holder, coordinator)


# --- Moments by pattern, as the coordinator gets them and as a run folder keeps them ----------------------


MAXIMUM_TEXT = 1 << 13
"""Entries that a result has as text; more are written as arrays."""


@dataclass(frozen=True, kw_only=True)
class MomentsResult:
    """One Gram matrix per pattern, over `entries[pattern]`; "1" is the constant, so its row has count and sums.

    Features are in [-1, 1]; `features` says how to return to a column's own units. `noise_sd` is the standard
    deviation of the noise on one entry (0 if exact), independent between entries of the upper triangles.
    """

    n: int
    parties: tuple[str, ...]
    presence: Presence
    features: tuple[Feature, ...]
    patterns: tuple[tuple[bool, ...], ...]
    entries: tuple[tuple[str, ...], ...]
    grams: tuple[NDArray[np.float64], ...]
    noise_sd: float
    simulated: bool

    @property
    def counts(self) -> NDArray[np.float64]:
        """Noisy number of records in each pattern (where a constant was computed)."""
        return np.array([gram[0, 0] for gram in self.grams])

    def _available(self, feature: Feature) -> dict[str, Any]:
        """Count, sum and sum of squares of one feature over the records that have it, in [-1, 1]; and how to return."""
        total, patterns = np.zeros(3), 0
        for names, gram in zip(self.entries, self.grams, strict=True):
            mask = f"present at {feature.party}" if self.presence == "secret" else "1"
            if feature.name in names and mask in names:
                own, at = names.index(feature.name), names.index(mask)
                total += gram[at, at], gram[at, own], gram[own, own]
                patterns += 1
        count, once, square = total.tolist() if patterns else (None, None, None)
        return {
            "name": feature.name,
            "party": feature.party,
            "centre": feature.centre,
            "half": feature.half,
            "patterns": patterns,
            "count": count,
            "sum": once,
            "square": square,
        }

    def write(self, run: RunFolder) -> None:
        """result.json; matrices with too many entries to read as text go to grams.npz, one array for each pattern."""
        many = sum(one.size for one in self.grams) > MAXIMUM_TEXT
        if many:
            np.savez(run.path / "grams.npz", allow_pickle=False, **{f"{k}": one for k, one in enumerate(self.grams)})
        run.write_json(
            "result.json",
            {
                "kind": "moments",
                "n": self.n,
                "parties": list(self.parties),
                "presence": self.presence,
                "patterns": [list(one) for one in self.patterns],
                "entries": [list(one) for one in self.entries],
                "counts": self.counts.tolist() if self.entries[0][0] == "1" else None,
                "features": [self._available(one) for one in self.features],
                "grams": "grams.npz" if many else [one.tolist() for one in self.grams],
                "noise_sd": self.noise_sd,
                "simulated": self.simulated,
            },
        )


# --- A holder's share of all Gram matrices: products of its shares, summed over the records of each pattern.
#
# Shares come in chunks of the cohort, kept at the holder until the opening; one chunk is in memory at a time.


def masks_of(me: Party, known: MomentsLayout, *, keep: bool) -> NDArray[np.uint8] | None:
    """Which party has which record (party, record), where that is known; eight records in a byte."""
    if known.presence != "known":
        return None
    packed = messages(me, f"{known.tag}: mask", known.parties, keep=keep)
    bits = np.array([np.asarray(packed[party], dtype=np.uint8) for party in known.parties])
    if bits.shape != (len(known.parties), -(-known.facts.n // 8)):
        raise UnsafeRequest("a member sent a mask of another length than the layout says; nothing is opened.")
    return bits


def products_of(me: Party, known: MomentsLayout, number: int, *, keep: bool) -> dict[Tile, Product]:
    """This holder's share of every tile of one opening, summed over chunks and blocks of records."""
    products = {tile: known.zero(tile) for tile in known.rounds[number]}
    masks, layers = masks_of(me, known, keep=keep), len(known.field.primes)
    for chunk, (start, stop) in enumerate(known.chunks):
        rows = messages(me, known.rows_tag(chunk), known.parties, layers=layers, keep=keep)
        shapes: dict[str, tuple[int, ...]] = {party: (stop - start, known.width(party)) for party in known.parties}
        shares = shares_of(me, rows, known.field, shapes)
        for block in range(Shape((stop - start,)).blocks):
            _add_block(known, products, shares, block, None if masks is None else masks[:, start // 8 :])
    return products


def _add_block(
    known: MomentsLayout,
    products: dict[Tile, Product],
    shares: Mapping[str, Share],
    block: int,
    masks: NDArray[np.uint8] | None,
) -> None:
    """Add one block of records to every tile; `masks` begin with the records of the shares."""
    columns = _columns(known, shares, block)
    rows = next(iter(shares.values())).shape.rows(block)
    present = None
    if masks is not None:
        bits = np.unpackbits(masks[:, rows.start // 8 : -(-rows.stop // 8)], axis=1, count=rows.stop - rows.start)
        present = bits.astype(bool)
    for pattern, mask in enumerate(known.masks):
        tiles = [tile for tile in products if tile.pattern == pattern]
        if not tiles:
            continue
        here = columns
        if present is not None:
            match = _matches(present, known.candidates if known.pooled else [mask])
            if not match.any():
                continue
            here = columns[:, match][:, :, known.shown(mask)]
        for tile in tiles:
            products[tile] += _tile_product(known, here, tile)


def _matches(masks: NDArray[np.bool_], wanted: Sequence[tuple[bool, ...]]) -> NDArray[np.bool_]:
    """Which records have one of these patterns."""
    match = np.zeros(masks.shape[1], dtype=bool)
    for mask in wanted:
        match |= np.all(masks == np.array(mask)[:, None], axis=0)
    return match


def _tile_product(known: MomentsLayout, columns: Residues, tile: Tile) -> Product:
    left = columns[:, :, slice(*tile.rows)]
    if tile.diagonal:
        return gram(known.field, left)
    return cross(known.field, left, columns[:, :, slice(*tile.columns)])


def _columns(known: MomentsLayout, shares: Mapping[str, Share], block: int) -> Residues:
    """The holder's shares of one block of records: the constant (public, so its own share) and all parties' columns."""
    parts = [shares[party].block(block) for party in known.parties]
    if known.constant and known.presence != "secret":
        one = known.field.encode(np.array([[known.gamma]]))
        parts.insert(0, np.broadcast_to(one, (len(one), parts[0].shape[1], 1)))
    return np.concatenate(parts, axis=2)


# --- Counts, sums and Gram matrices over all parties' columns: one secure computation, noise once, no trusted party.
#
# With `presence="known"` there is one Gram matrix per presence pattern. Patterns are disjoint, so a record is in one
# of them and the whole set costs what one Gram matrix costs. Together they are the sufficient statistics of a
# Gaussian when data are missing at random. With `presence="secret"` the mask itself is shared like data and one Gram
# matrix of (mask, values) gives all available-case moments. With `presence="ignore"` an absent block is zeros.
# The proofs are in `moments.claim.md`.


_calibrated = lru_cache(maxsize=16)(calibrate_mu)  # once for the plan, and again when it is executed

# --- the coordinator's procedure --------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Moments:
    """Noisy counts, sums and Gram matrices.

    Parameters
    ----------
    epsilon, delta : a person's total. `epsilon=None` computes exactly, which is an unbounded release that every party
        must allow by name ("exact-moments").
    columns : which columns; all by default. Features are scaled to [-1, 1] (see `statistics.features`).
    presence : "known", "secret" or "ignore" (see the module). "known" shows the mask over pseudonymous rows to the
        share holders: allow "presence".
    gamma : the scale of quantisation; rounding adds less error than the noise from about 2^10.
    clip : {party: norm} below the default sqrt(number of its features): less noise, some bias.
    constant : whether counts and sums are computed too (as products with 1).
    patterns : candidate patterns, if fewer than all; a record of another pattern is left out.
    view, relation : what the noise is calibrated for; see `docs/threat-model.md`.
    tile : the width of the tiles in which the matrix is computed.
    memory : the most memory, in MB, that the coordinator or a party may use; it decides the tiles and how many entries
        one round opens. Less memory takes more rounds. Refused in the plan if the job cannot be done with it.

    Returns
    -------
    `fit(federation)` gives moments by pattern, with `noise_sd`, the noise of one entry.

    Example
    -------
    >>> moments = co.Moments(epsilon=2.0, columns=("capital", "roa"), presence="secret").fit(federation)
    >>> moments.noise_sd > 0
    True
    """

    name: ClassVar[str] = "moments"

    epsilon: float | None = 1.0
    delta: float = 1e-6
    columns: tuple[str, ...] | None = None
    presence: Presence = "known"
    gamma: int = 2**12
    clip: Mapping[str, float] = field(default_factory=dict)
    constant: bool = True
    patterns: tuple[tuple[bool, ...], ...] | None = None
    view: View = "client"
    relation: Relation = "zero-out"
    tile: int = 2048
    memory: int | None = None

    def __post_init__(self) -> None:
        check_budget(self.epsilon, self.delta)
        check_view(self.view)

    def options(self) -> dict[str, Any]:
        return {
            "epsilon": self.epsilon,
            "delta": self.delta,
            "columns": None if self.columns is None else list(self.columns),
            "presence": self.presence,
            "gamma": self.gamma,
            "clip": dict(self.clip),
            "constant": self.constant,
            "patterns": None if self.patterns is None else [list(one) for one in self.patterns],
            "view": self.view,
            "relation": self.relation,
            "tile": self.tile,
            "memory": self.memory,
        }

    @classmethod
    def from_options(cls, options: Mapping[str, Any]) -> Self:
        columns, patterns = options["columns"], options["patterns"]
        return cls(
            **{
                **options,
                "columns": None if columns is None else tuple(columns),
                "patterns": None if patterns is None else tuple(tuple(one) for one in patterns),
            }
        )

    def fit(self, federation: Federation) -> MomentsResult:
        """Run it; the run folder is in `federation.runs`."""
        return federation.run(self)[0]  # type: ignore[no-any-return]

    def layout(self, facts: PublicFacts, roster: Roster) -> MomentsLayout:
        """The public shape, with the noise that (epsilon, delta) needs."""
        roster.require_committee()
        silent = MomentsLayout(
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
        )
        silent.check()
        if self.epsilon is None:
            return self._sized(silent)
        mu = _calibrated(
            epsilon=self.epsilon,
            delta=self.delta,
            delta_1=silent.delta_1,
            delta_2=silent.delta_2,
            parties=len(roster.names),
            colluders=colluders(roster, self.view),
            relation=self.relation,
            replace_factor=silent.replace_factor,
            dimension=silent.dimension,
        )
        return self._sized(replace(silent, mu=mu))

    def _sized(self, layout: MomentsLayout) -> MomentsLayout:
        return layout if self.memory is None else within_memory(layout, self.memory)

    def plan(self, facts: PublicFacts, roster: Roster) -> Plan:
        layout = self.layout(facts, roster)
        return Plan(
            method=self.name,
            options=self.options(),
            stages=tuple(moment_phases(layout, self.view)),
            notes=moment_notes(layout, self.view),
            delta=self.delta,
        )

    def execute(self, job: Job) -> MomentsResult:
        return compute_moments(job, self.layout(job.facts, job.roster), self.view)


class MomentComputation(Procedure[MomentsResult]):
    """One computation of moments: share rows, open, join. Other methods put its stages into their own plans.

    `ranges` is the rule that bounds the layout's ranges where these come from earlier releases of the job; they are
    given to `run`. Neither cost nor shape depends on them.
    """

    def __init__(self, layout: MomentsLayout, view: View, *, ranges: str = "") -> None:
        self.layout, self.view = layout, view
        later = {"layout": ranges} if ranges else None
        facts, roster = layout.facts, layout.roster
        arguments: dict[str, Any] = {"layout": layout.to_dict(), "view": view}
        largest = max(layout.size(number) for number in range(len(layout.rounds)))
        degree = roster.threshold
        start, stop = layout.chunks[0]
        shares = max(
            len(whole_holders(roster, party, degree)) * layout.packed_bytes(stop - start, layout.width(party))
            for party in layout.parties
        )
        noise = max(len(whole_holders(roster, member, 2 * degree)) for member in roster.names)
        noise *= layout.packed_bytes(largest, 1)

        def numbered(first: int, last: int) -> list[dict[str, Any]]:
            return [{**arguments, "number": number} for number in range(first, last)]

        self.share = stage(
            f"{layout.label}: share rows",
            share_rows,
            dict.fromkeys(roster.names, [arguments]),
            facts=facts,
            roster=roster,
            audience=SEALED,
            discloses="secret shares of quantised rows and of noise"
            + ("; the presence mask to the holders" if layout.presence == "known" else ""),
            reply_bytes=shares + noise,
            later=later,
        )
        self.share_more = stage(
            f"{layout.label}: share more rows",
            share_more_rows,
            dict.fromkeys(roster.names, numbered(1, len(layout.chunks))),
            facts=facts,
            roster=roster,
            audience=SEALED,
            discloses="secret shares of quantised rows",
            reply_bytes=shares,
            later=later,
        )
        self.open = stage(
            f"{layout.label}: open",
            open_moments,
            dict.fromkeys(roster.committee, numbered(0, len(layout.rounds))),
            facts=facts,
            roster=roster,
            discloses="shares of the noisy counts, sums and products, which the coordinator joins",
            reply_bytes=4 * len(layout.field.primes) * largest,
            later=later,
        )
        self.add_noise = stage(
            f"{layout.label}: share noise",
            share_noise,
            dict.fromkeys(roster.names, numbered(1, len(layout.rounds))),
            facts=facts,
            roster=roster,
            audience="share holders (sealed)",
            discloses="secret shares of noise",
            reply_bytes=noise,
            later=later,
        )
        self.stages = tuple(one for one in (self.share, self.share_more, self.open, self.add_noise) if one.costs)
        self.notes = moment_notes(layout, view)

    def run(self, job: Job, *, ranges: Mapping[str, tuple[float, float]] | None = None) -> MomentsResult:
        """The result is exact integers plus noise, rescaled."""
        layout, later = self.layout, dict[str, Any]()
        if ranges is not None:
            layout = replace(layout, ranges=ranges)
            later = {"layout": layout.to_dict()}
        job.ask(self.share, **later)
        for _ in range(1, len(layout.chunks)):
            job.ask(self.share_more, **later)
        grams = [np.zeros((width, width)) for width in (len(layout.entries(mask)) for mask in layout.masks)]
        for number, tiles in enumerate(layout.rounds):
            if number:
                job.ask(self.add_noise, **later)
            job.roll_call(layout.roster.committee)
            joined = join(job.ask(self.open, **later), layout.field, layout.roster).astype(np.float64) / layout.gamma**2
            start = 0
            for tile in tiles:
                _place(grams[tile.pattern], tile, joined[start : start + tile.size])
                start += tile.size
        return MomentsResult(
            n=layout.facts.n,
            parties=layout.parties,
            presence=layout.presence,
            features=tuple(layout.features),
            patterns=tuple(layout.masks),
            entries=tuple(tuple(layout.entries(mask)) for mask in layout.masks),
            grams=tuple(grams),
            noise_sd=math.sqrt(2 * layout.mu) / layout.gamma**2,
            simulated=job.simulated,
        )


def moment_phases(layout: MomentsLayout, view: View) -> list[Stage]:  # TRANSITION
    return list(MomentComputation(layout, view).stages)


def moment_notes(layout: MomentsLayout, view: View) -> tuple[str, ...]:
    if layout.mu == 0:
        return ("Exact: no noise is added, and no privacy is claimed for the result.",)
    sd = math.sqrt(2 * layout.mu) / layout.gamma**2
    return (
        f"Each entry of a Gram matrix carries noise with standard deviation {sd:.4g}"
        f" ({sd / layout.facts.n:.2g} of n = {layout.facts.n}).",
        f"Account: {view} view, {colluders(layout.roster, view)} of {len(layout.roster.names)} members collude;"
        f" {len(layout.field.primes)} primes of 21 bits.",
    )


def compute_moments(job: Job, layout: MomentsLayout, view: View) -> MomentsResult:  # TRANSITION
    return MomentComputation(layout, view).run(job)


def _place(whole: NDArray[np.float64], tile: Tile, values: NDArray[np.float64]) -> None:
    rows, columns = slice(*tile.rows), slice(*tile.columns)
    if not tile.diagonal:
        square = values.reshape(tile.rows[1] - tile.rows[0], -1)
        whole[rows, columns], whole[columns, rows] = square, square.T
        return
    size = tile.rows[1] - tile.rows[0]
    upper = np.triu_indices(size)
    whole[rows, columns][upper] = values
    whole[rows, columns].T[upper] = values


# --- the members' steps -----------------------------------------------------------------------------------


def _layout(public: Public | Party, plain: Mapping[str, Any]) -> MomentsLayout:
    return MomentsLayout.from_dict(public.facts, public.roster, plain)


def _share_cost(public: Public, *, layout: dict[str, Any], view: View) -> Cost:
    known = _layout(public, layout)
    if public.party not in known.parties:
        return Free("this member shares noise, and no data")
    return known.cost(public, view)


@step(cost=_share_cost)
def share_rows(me: Party, *, layout: dict[str, Any], view: View) -> Release:
    """Quantise, clip in integers, share. Every member also shares its noise for the first opening."""
    known = _layout(me, layout)
    if me.name in known.parties:
        deal_rows(me, known.rows_tag(0), known.field, _quantised(me, known, 0))
        if known.presence == "known":
            for holder in me.roster.committee:
                me.send(holder, f"{known.tag}: mask", np.packbits(me.present))
    deal_noise(me, f"{known.tag}: noise 0", known.field, mu=known.mu, size=known.size(0))
    return Release(None, "nothing: the shares travel sealed")


def _more_cost(public: Public, *, layout: dict[str, Any], view: View, number: int) -> Cost:
    """A holder opens nothing unless it has all chunks of every party."""
    return Free("more secret shares for a joint release that the first chunk has debited")


@step(cost=_more_cost)
def share_more_rows(me: Party, *, layout: dict[str, Any], view: View, number: int) -> Release:
    """Share a later chunk of rows; a holder puts the one before away."""
    known = _layout(me, layout)
    if not 1 <= number < len(known.chunks):
        raise UnsafeRequest(f"this job has no chunk {number} of rows.")
    if me.name in me.roster.committee:
        messages(me, known.rows_tag(number - 1), known.parties, layers=len(known.field.primes), keep=True)
        if number == 1:
            masks_of(me, known, keep=True)
            messages(me, f"{known.tag}: noise 0", me.roster.names, layers=len(known.field.primes), keep=True)
    if me.name in known.parties:
        deal_rows(me, known.rows_tag(number), known.field, _quantised(me, known, number))
    return Release(None, "nothing: the shares travel sealed")


def _quantised(me: Party, known: MomentsLayout, number: int) -> NDArray[np.integer[Any]]:
    """This party's rows of one chunk of the cohort, in integers; a record that it lacks is a row of zeros."""
    secret = known.presence == "secret"

    def stream() -> Iterator[tuple[NDArray[np.int64], NDArray[np.int64]]]:
        for at, features in design_chunks(me, known.features, scores=known.scores):
            rows = quantize(features, gamma=known.gamma, clip=known.bound(me.name), entry=1.0, randomness=me.randomness)
            yield at, np.insert(rows, 0, known.gamma, axis=1) if secret else rows

    wanted = CohortRows(
        label=f"{known.tag}: quantised",
        ranges=known.chunks,
        width=known.width(me.name),
        dtype=np.int16 if known.gamma < 2**15 else np.int32,
    )
    return wanted.range(me, number, stream)


def _noise_cost(public: Public, *, layout: dict[str, Any], view: View, number: int) -> Cost:
    return Free("secret shares of noise; no data")


@step(cost=_noise_cost)
def share_noise(me: Party, *, layout: dict[str, Any], view: View, number: int) -> Release:
    known = _layout(me, layout)
    if not 1 <= number < len(known.rounds):
        raise UnsafeRequest(f"this job has no opening {number}.")
    deal_noise(me, f"{known.tag}: noise {number}", known.field, mu=known.mu, size=known.size(number))
    return Release(None, "nothing: the shares travel sealed")


def _open_cost(public: Public, *, layout: dict[str, Any], view: View, number: int) -> Cost:
    return Free("a share of a joint release that the data parties have debited")


@step(cost=_open_cost)
def open_moments(me: Party, *, layout: dict[str, Any], view: View, number: int) -> Release:
    """This holder's share of one opening: products of its shares plus every member's noise."""
    known = _layout(me, layout)
    if not 0 <= number < len(known.rounds):
        raise UnsafeRequest(f"this job has no opening {number}.")
    once(me, f"{known.label} {number}")
    later = len(known.rounds) > 1
    products = products_of(me, known, number, keep=later)
    noise = held(me, f"{known.tag}: noise {number}", me.roster.names, known.field, lengths=(known.size(number),))
    added = {member: whole(one) for member, one in noise.items()}
    out = np.empty((len(known.field.primes), known.size(number)), dtype=np.int32)
    start = 0
    for tile in known.rounds[number]:
        product = products.pop(tile)
        product = product.upper() if tile.diagonal else product
        part = slice(start, start + tile.size)
        shaped = {member: one[:, part].reshape(-1, *product.shape) for member, one in added.items()}
        out[:, part] = open_product(product, noise=shaped, parties=me.roster.names).reshape(len(out), -1)
        start += tile.size
    return Release(out, "a share of noisy counts, sums and products")
