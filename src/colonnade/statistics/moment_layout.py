"""The public shape of a computation of moments: features, patterns, bounds, noise, and the tiles that are opened.

Everybody computes it alike from public facts, the pinned roster and the options; a party checks its data and its
mail against nothing else.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from colonnade.data.sources import chunk_rows
from colonnade.errors import BadArguments, BadPrivacyParameter
from colonnade.federation.facts import PublicFacts
from colonnade.federation.roster import Roster
from colonnade.federation.step import Public
from colonnade.privacy.cost import Cost, Unbounded, compose
from colonnade.privacy.skellam import Skellam, delta_1_bound
from colonnade.secure.bgw import Product, lift
from colonnade.secure.field import BLOCK_ROWS, Field
from colonnade.secure.seeded import Shape
from colonnade.statistics.dealing import whole_holders
from colonnade.statistics.features import Feature, features
from colonnade.statistics.joint import View, binding, colluders, field_for, reading, whole_numbers
from colonnade.statistics.quantize import check_row, integer_bounds

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
class Layout:
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
    block: int = 2048
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
    def from_dict(cls, facts: PublicFacts, roster: Roster, plain: Mapping[str, Any]) -> Layout:
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
                block=plain["block"],
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
            "block": self.block,
            "opening": self.opening,
            "records": self.records,
            "label": self.label,
            "scores": self.scores,
            "ranges": {name: list(one) for name, one in self.ranges.items()},
            "pooled": self.pooled,
        }

    def check(self) -> None:
        whole = whole_numbers(self.gamma, self.mu, self.block, self.opening, self.records)
        if not whole or not 1 <= self.gamma <= 2**26 or not 0 <= self.mu <= 2**90 or min(self.block, self.opening) < 1:
            raise BadArguments(
                "gamma must be a whole number from 1 to 2^26, mu from 0 to 2^90, block and opening at least 1."
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
            cuts = [(low, min(low + self.block, width)) for low in range(0, width, self.block)]
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


def within_memory(layout: Layout, megabytes: int) -> Layout:
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
    block = min(layout.block, max(1, math.isqrt(opening)))
    return replace(layout, opening=opening, block=block, records=records)


def _resident(layout: Layout, records: int) -> int:
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
