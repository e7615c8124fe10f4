"""The `fm` encoder: Flajolet-Martin sketches with phantoms and a floor (the paper's 4.3, Algorithms 1, 3 and 4).

The parties agree on a key that the coordinator never sees. For each of t keyed hashes, each value of a column has the
maximum of the geometric hashes of its records' ids, of k_p phantoms, and of a floor. A union is a maximum of sketches;
an intersection is n less the union of the complements.

**This is a reproduction, and its privacy is not what the paper claims.** One record's hash is common to all its
sketches under one key: ties across columns have an unbounded likelihood ratio (`claim.md`). The cost to the ledger is
`Unbounded("fm-sketches")`; the paper's epsilon is printed as claimed.

The maximum of geometric hashes is the geometric of the minimum of uniform ones, so a hash is one 64-bit word of AES,
and logarithms are taken once for each sketch. Minima are mergeable: a block larger than memory is sketched a chunk at a
time. On a party's own cluster the workers get the job's hash key, which the other data parties know too; phantoms are
drawn in the party's process.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import Annotated, Any

import numba
import numpy as np
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from numpy.typing import NDArray

from colonnade.data.aggregation import Values
from colonnade.data.sources import ROWS
from colonnade.federation.job import Job
from colonnade.federation.party import Party
from colonnade.federation.roster import Roster
from colonnade.federation.stage import Later, stage
from colonnade.federation.step import Public, Release, Size, step
from colonnade.papers.vertimrf.frequency_oracle import check_bins, column_bins
from colonnade.privacy.cost import Cost, Free, Unbounded
from colonnade.privacy.randomness import Randomness
from colonnade.statistics.cells import Cells
from colonnade.statistics.shares import received_from
from colonnade.synthesis.field.fit import Measurement
from colonnade.synthesis.field.schema import Integers, Schema, TableQuery, given_schema

KEY_BYTES = 32
MOST_SKETCHES = 100_000
GAMMA = 1.0
"""The paper does not state gamma; 1 makes the hashes powers of two."""
_NONE = np.uint64(2**64 - 1)


def sketch_epsilon(epsilon: float, delta: float, columns: int, sketches: int) -> float:
    """Algorithm 3, line 2: the eps' of one sketch. Claimed by the paper, not by us."""
    return epsilon / (4 * math.sqrt(sketches * columns * math.log(1 / delta)))


def phantoms(epsilon: float) -> int:
    """Algorithm 1: k_p = ceil(1 / (e^eps' - 1)); none without a budget."""
    return 0 if math.isinf(epsilon) else math.ceil(1 / math.expm1(epsilon))


def floor_level(epsilon: float) -> int:
    """Algorithm 1: alpha_min = ceil(log_(1+gamma) 1 / (1 - e^-eps')); none without a budget."""
    return 0 if math.isinf(epsilon) else math.ceil(-math.log(-math.expm1(-epsilon)) / math.log1p(GAMMA))


class FMSketches:
    """`epsilon` of one sketch (None: no phantoms and no floor), t = `sketches`, `bins` of equal width; `complete`:
    every party has every record (public); `claimed` is what the paper says about its privacy."""

    def __init__(
        self,
        schema: Schema,
        roster: Roster,
        *,
        epsilon: float | None,
        sketches: int,
        bins: int,
        complete: bool = False,
        claimed: str = "",
        later: Mapping[str, Later] | None = None,
    ) -> None:
        self.bins, self.hashes, self.epsilon = bins, sketches, math.inf if epsilon is None else epsilon
        arguments = {"schema": schema.to_dict(), "epsilon": epsilon, "sketches": sketches, "bins": bins}
        values = max(sum(min(schema.sizes[name], bins) for name in schema.of(party)) for party in schema.parties)
        planned = partial(stage, facts=schema.facts, roster=roster)
        self.keys = planned(
            "LocEnc: agree on keys",
            share_key,
            {party: [{}] for party in roster.data_parties},
            audience="the other data parties (sealed)",
            recipients=roster.data_parties,
            discloses="a part of the hash key, to the other data parties only",
            reply_bytes=KEY_BYTES * len(roster.data_parties),
        )
        self.sketches = planned(
            "LocEnc",
            sketched_columns,
            {party: [{**arguments, "complete": complete}] for party in schema.parties},
            discloses="Flajolet-Martin sketches of the records of each binned value",
            reply_bytes=sketches * values,
            later=later,
        )
        self.stages = (self.keys, self.sketches)
        self.notes = (
            "The sketches have no proven bound: one record's hash is common to its columns, and ties give it away."
            + (f" Claimed by the paper: {claimed}." if claimed else ""),
        )

    def cell_sd(self, records: int) -> float:
        """About the error of a count: that of a union of nearly all records, in the mean over the hashes."""
        return records / math.sqrt(self.hashes)

    def encode(self, job: Job, schema: Schema) -> Sketches:
        job.ask(self.keys)
        answers = job.ask(self.sketches, **given_schema(self.sketches, schema))
        levels = {name: np.asarray(answers[party][name]) for party in schema.parties for name in schema.of(party)}
        return Sketches(levels, column_bins(schema, self.bins), self.epsilon)


# --- CarEst (Algorithm 4) --------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Sketches:
    """Levels (t x values) of every column; the last value is "absent" where records may be."""

    levels: Mapping[str, NDArray[np.uint8]]
    bins: Mapping[str, Integers]
    epsilon: float

    def tables(self, queries: Sequence[TableQuery], *, records: int) -> list[Measurement]:
        """The estimated counts of so many `records`."""
        return [self._table(query, records) for query in queries]

    def _table(self, query: TableQuery, records: int) -> Measurement:
        """n less the cardinality of the union of the complements, for each cell."""
        check_bins(query, self.bins)
        values = [int(self.bins[name].max()) + 1 for name in query.columns]
        union = np.zeros((len(next(iter(self.levels.values()))), *([1] * len(values))), dtype=np.uint8)
        added = 0
        for axis, (name, size) in enumerate(zip(query.columns, values, strict=True)):
            shape = [union.shape[0], *([1] * len(values))]
            shape[axis + 1] = size
            union = np.maximum(union, complements(self.levels[name])[:, :size].reshape(shape))
            added += self.levels[name].shape[1] - 1
        size_of_union = cardinality(union, floor=floor_level(self.epsilon))
        counts = np.clip(records - (size_of_union - added * phantoms(self.epsilon)), 0.0, None)
        sd = max(float(size_of_union.mean()) / math.sqrt(len(union)), 0.5)
        return Measurement(query.columns, counts, sd, query.maps())


def complements(levels: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """For each value, the sketch of the records with any other value: the maximum of the others' sketches."""
    if levels.shape[1] == 1:
        return np.zeros_like(levels)
    largest = np.argmax(levels, axis=1)
    rest = levels.copy()
    rest[np.arange(len(levels)), largest] = 0
    second = rest.max(axis=1)
    best = levels.max(axis=1)
    own = np.arange(levels.shape[1])[None] == largest[:, None]
    return np.asarray(np.where(own, second[:, None], best[:, None]), dtype=np.uint8)


def cardinality(levels: NDArray[np.uint8], *, floor: int) -> NDArray[np.float64]:
    """The number of distinct elements behind sketches, over the first axis (the t hashes).

    The harmonic mean of the paper is biased. The mean of (1 + gamma)^-level has a known expectation for K elements,
    strictly falling in K; it is inverted instead.
    """
    mean = np.power(1 + GAMMA, -levels.astype(np.float64)).mean(axis=0)
    counts, expected = _expectations(floor)
    return np.asarray(np.interp(mean, expected[::-1], counts[::-1]))


@lru_cache(maxsize=8)
def _expectations(floor: int) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """K on a fine grid, and E (1 + gamma)^-max(floor, H_1 ... H_K) for geometric H: P(H <= m) = 1 - (1 + gamma)^-m."""
    counts = np.concatenate([np.arange(0, 64, 0.25), np.geomspace(64, 2.0**40, 6000)])
    top = floor + int(60 * math.log(2) / math.log1p(GAMMA)) + 2
    levels = np.arange(floor, top + 1, dtype=np.float64)
    with np.errstate(divide="ignore", invalid="ignore"):
        log_below = np.log1p(-np.power(1 + GAMMA, -levels))
        reached = np.exp(counts[:, None] * log_below[None])
    reached[counts == 0] = 1.0
    chances = np.diff(reached, axis=1, prepend=0.0)
    return counts, chances @ np.power(1 + GAMMA, -levels)


# --- the parties' steps ------------------------------------------------------------------------------------------


@step(cost=Free("random bytes, sealed to the other data parties"))
def share_key(me: Party) -> Release:
    """This party's part of the common key, to every other data party."""
    part = me.randomness.bytes(KEY_BYTES)
    for other in me.roster.data_parties:
        me.send(other, "fm key", part)
    return Release(None, "nothing: the parts travel sealed")


def _sketch_cost(public: Public, **arguments: Any) -> Cost:
    return Unbounded("fm-sketches", "ties of one record's hash across attributes", joint=f"{public.job} fm sketches")


@step(cost=_sketch_cost)
def sketched_columns(
    me: Party,
    *,
    schema: dict[str, Any],
    epsilon: float | None,
    sketches: Annotated[int, Size(MOST_SKETCHES, least=1)],
    bins: Annotated[int, Size(10_000, least=1)],
    complete: bool,
) -> Release:
    """Sketch-based LocEnc: for each column, t x values levels."""
    layout = Schema.from_dict(me.facts, schema)
    parts = received_from(me, "fm key", me.roster.data_parties)
    key = hashlib.sha256(b"".join(parts.values())).digest()
    maps, names = column_bins(layout, bins), layout.of(me.name)
    minimum = Smallest(tuple((layout.cells[name], maps[name]) for name in names), names, key, sketches)
    complete_cells = [name for name in names if name in layout.filled]
    smallest = me.aggregate(names, minimum, filled=complete_cells)
    present = me.present_with(complete_cells)
    for start in range(0, 0 if complete else len(present), ROWS):
        absent = start + np.flatnonzero(~present[start : start + ROWS])
        smallest = minimum.merge(smallest, minimum.nothing(absent))
    private = math.inf if epsilon is None else epsilon
    levels = {}
    for row, (name, size) in enumerate(zip(names, minimum.values, strict=True)):
        own = smallest[:, row, : size if complete else size + 1]
        levels[name] = private_levels(own, epsilon=private, randomness=me.randomness)
    return Release(levels, "sketches of the records of each binned value")


@dataclass(frozen=True, eq=False)
class Smallest:
    """The smallest hash of each binned value's records, a minimum and so mergeable; `columns` are cells and bins.

    A column has one value more than bins: the records that the party lacks, or whose cell is empty.
    """

    columns: tuple[tuple[Cells, Integers], ...]
    names: tuple[str, ...]
    key: bytes
    sketches: int

    @property
    def values(self) -> list[int]:
        return [int(bins.max()) + 1 for _, bins in self.columns]

    def of(self, rows: NDArray[np.int64], values: Values) -> NDArray[np.uint64]:
        binned = np.empty((len(self.names), len(rows)), dtype=np.int16)
        for row, name, (cells, bins), size in zip(binned, self.names, self.columns, self.values, strict=True):
            row[:] = np.append(bins, size)[cells.codes(values[name])]  # code -1 picks the one that is appended
        return self._smallest(binned, rows)

    def nothing(self, rows: NDArray[np.int64]) -> NDArray[np.uint64]:
        """Of records that the party lacks."""
        return self._smallest(np.repeat(np.array(self.values, dtype=np.int16)[:, None], len(rows), axis=1), rows)

    def _smallest(self, binned: NDArray[np.int16], rows: NDArray[np.int64]) -> NDArray[np.uint64]:
        return smallest_hashes(binned, max(self.values) + 1, key=self.key, sketches=self.sketches, ids=rows)

    def merge(self, first: NDArray[np.uint64], second: NDArray[np.uint64]) -> NDArray[np.uint64]:
        return np.minimum(first, second)


def hash_pairs(key: bytes, pair: int, blocks: bytes) -> NDArray[np.uint64]:
    """The keyed hashes 2 `pair` and 2 `pair` + 1 of some ids: the halves of AES-256 under a key of the pair's own, so
    that each id has its hashes wherever it stands."""
    pair_key = hashlib.sha256(key + pair.to_bytes(8, "big")).digest()
    hashed = Cipher(algorithms.AES(pair_key), modes.ECB()).encryptor().update(blocks)
    return np.frombuffer(hashed, dtype="<u8").reshape(-1, 2)


def smallest_hashes(
    codes: NDArray[np.integer[Any]], values: int, *, key: bytes, sketches: int, ids: NDArray[np.int64] | None = None
) -> NDArray[np.uint64]:
    """The smallest hash of each value's records: (t, columns, values), all ones where a value has none.

    `codes` are (columns, records); `ids` are the records' own, 0, 1, ... by default.
    """
    out = np.full((2 * -(-sketches // 2), len(codes), values), _NONE, dtype=np.uint64)
    narrow = np.ascontiguousarray(codes.T.astype(np.int16))
    numbers = np.zeros((codes.shape[1], 2), dtype="<u8")
    numbers[:, 0] = np.arange(codes.shape[1]) if ids is None else ids
    blocks = numbers.tobytes()
    for pair in range(len(out) // 2):
        _minima(hash_pairs(key, pair, blocks), narrow, out[2 * pair : 2 * pair + 2])
    return out[:sketches]


@numba.njit(cache=True)
def _minima(words: Any, codes: Any, out: Any) -> None:
    for record in range(codes.shape[0]):
        first, second = words[record, 0], words[record, 1]
        for column in range(codes.shape[1]):
            value = codes[record, column]
            if first < out[0, column, value]:
                out[0, column, value] = first
            if second < out[1, column, value]:
                out[1, column, value] = second


def private_levels(smallest: NDArray[np.uint64], *, epsilon: float, randomness: Randomness) -> NDArray[np.uint8]:
    """Levels from the smallest hashes: the geometric hash, the maximum of k_p phantoms, the floor.

    The geometric variable of a uniform word u: P(level > m) = P(u < (1 + gamma)^-m).
    """
    uniform = (smallest.astype(np.float64) + 1) / 2.0**64
    levels = np.where(smallest == _NONE, 0, np.floor(-np.log(uniform) / math.log1p(GAMMA)) + 1)
    count = phantoms(epsilon)
    if count:
        words = randomness.words(smallest.size).reshape(smallest.shape)
        # The smallest of k uniform numbers is 1 - U^(1/k) for one uniform U.
        share = -np.expm1(np.log((words.astype(np.float64) + 1) / 2.0**64) / count)
        with np.errstate(divide="ignore"):
            drawn = np.floor(-np.log(share) / math.log1p(GAMMA)) + 1
        levels = np.maximum(levels, np.minimum(drawn, 255))
    return np.clip(np.maximum(levels, floor_level(epsilon)), 0, 255).astype(np.uint8)
