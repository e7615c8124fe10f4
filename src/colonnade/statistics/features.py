"""How a party's columns become integers whose size is certain: features in [-1, 1], rounded, in the cohort's order.

A numeric or ordinal column gives one feature, its declared range mapped to [-1, 1]; a binary column -1 or 1; a
categorical column one 0/1 indicator for each category but the first. Nothing is learned from the data, so a
feature's scale is a public fact and so is the sensitivity of what is computed from it.

Or **scores**: one feature a column, x -> s(x) in [-1, 1], with a monotone map s that the party made of its own private
marginal in an earlier step of the job and kept under a label. That the score lies in [-1, 1] is enforced here, so it is
as public a fact as a declared range.

**Empty cells.** A feature of an empty cell is 0, whatever its range. A record with an empty cell in a column whose rule
is "drop" counts as absent; the columns of that rule are `filled` throughout. A categorical column whose rule is "level"
has one more indicator, that of the empty cell. A column's mask, 1 where its cell is filled, is a number in [-1, 1] too.

`quantize` makes integers of such rows, and `CohortRows` puts them into the order of the cohort.
"""

from __future__ import annotations

import hashlib
import math
import shutil
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numba
import numpy as np
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from numpy.typing import NDArray

from colonnade.data.aggregation import Values, is_empty
from colonnade.data.cluster import OnCluster
from colonnade.data.column import Column, EmptyRule
from colonnade.data.sources import CELLS
from colonnade.durable import private_file, private_folder
from colonnade.errors import ModulusTooSmall, SchemaError, SourceError, StorageError
from colonnade.federation.facts import PublicFacts
from colonnade.federation.party import Party
from colonnade.privacy.randomness import Randomness, SystemRandomness

EMPTY = -1
"""The code of an empty cell, and the category of its indicator."""
PRESENT = -2
"""The category of the indicator of a record that a party has, with no empty cell in the columns that it brings."""


@dataclass(frozen=True)
class Feature:
    """value = centre + half * feature, in the column's own units (codes for discrete columns)."""

    name: str
    party: str
    column: str
    category: int | None
    centre: float
    half: float

    def within(self, lower: float, upper: float) -> Feature:
        """The same column with another range mapped to [-1, 1]."""
        return replace(self, centre=(upper + lower) / 2, half=(upper - lower) / 2)


def column_features(party: str, column: Column) -> list[Feature]:
    if column.kind == "categorical":
        assert column.categories is not None
        indicators = {code: str(label) for code, label in enumerate(column.categories) if code > 0}
        if has_level(column):
            indicators[EMPTY] = "missing" if "missing" not in map(str, column.categories) else "is missing"
        return [
            Feature(f"{column.name}[{label}]", party, column.name, code, 0.0, 1.0) for code, label in indicators.items()
        ]
    if column.discrete:
        assert column.categories is not None
        half = max((len(column.categories) - 1) / 2, 0.5)
        return [Feature(column.name, party, column.name, None, half, half)]
    assert column.lower is not None
    assert column.upper is not None
    return [
        Feature(
            column.name,
            party,
            column.name,
            None,
            (column.upper + column.lower) / 2,
            (column.upper - column.lower) / 2,
        )
    ]


def has_level(column: Column) -> bool:
    """Is an empty cell a category of its own among the features?"""
    return column.kind == "categorical" and column.rule_for_empty("drop", "mask", "level") == "level"


def score_features(party: str, column: Column) -> list[Feature]:
    """One score for any kind of column; it has no units to return to."""
    return [Feature(column.name, party, column.name, None, 0.0, 1.0)]


def presence_name(party: str) -> str:
    return f"present at {party}"


def presence_feature(party: str, column: str) -> Feature:
    """1 for a record that a party has; `column` is one of those that it brings."""
    return Feature(presence_name(party), party, column, PRESENT, 0.0, 1.0)


def features(
    facts: PublicFacts,
    names: Sequence[str] | None = None,
    *,
    scores: bool = False,
    ranges: Mapping[str, tuple[float, float]] | None = None,
) -> list[Feature]:
    """The features of the named columns (all by default), party by party in the order of the facts. `ranges` are what
    is mapped to [-1, 1] instead of declared ones."""
    if ranges:
        declared = features(facts, names, scores=scores)
        return [feature.within(*ranges[feature.name]) if feature.name in ranges else feature for feature in declared]
    make = score_features if scores else column_features
    wanted = facts.wanted(names).items()
    listed = [feature for party, columns in wanted for column in columns.values() for feature in make(party, column)]
    owner: dict[str, str] = {}
    for feature in listed:
        if owner.setdefault(feature.name, feature.column) != feature.column:
            both = f"{owner[feature.name]!r} and {feature.column!r}"
            raise SchemaError(f"the columns {both} would both give a feature {feature.name!r}; rename one of them.")
    return listed


def empty_rules(wanted: Iterable[Feature], facts: PublicFacts, *offered: EmptyRule) -> dict[str, EmptyRule]:
    """What becomes of empty cells, for each column of these features that may have some, by the rules that a method
    offers besides "level", its default first."""
    levels = {feature.column for feature in wanted if feature.category == EMPTY}
    rules: dict[str, EmptyRule] = {}
    for name in dict.fromkeys(feature.column for feature in wanted):
        rule = "level" if name in levels else facts.column(name).rule_for_empty(*offered)
        if rule is not None:
            rules[name] = rule
    return rules


EMPTY_WORDS: Mapping[EmptyRule, str] = {
    "drop": "a record with an empty cell there counts as one that its party lacks: right if whether a cell is empty"
    " depends, like a missing record, only on what is observed of that record",
    "mask": "a product of two columns uses the records in which both cells are filled, and the masks are computed with"
    " like data: right if cells are empty completely at random",
    "level": "an empty cell is a category of its own; nothing is assumed",
}
"""What each rule does and assumes, for people."""
EMPTY_AS_ZERO: Mapping[EmptyRule, str] = {
    **EMPTY_WORDS,
    "mask": "such a cell counts as 0, the middle of its declared range, as an absent block does",
}
"""The same where presence is ignored."""


def empty_notes(rules: Mapping[str, EmptyRule], words: Mapping[EmptyRule, str] = EMPTY_WORDS) -> tuple[str, ...]:
    """A sentence of a plan for each rule that is used."""
    notes = []
    for rule, meaning in words.items():
        names = [name for name, used in rules.items() if used == rule]
        if names:
            notes.append(f"Empty cells of {', '.join(names)} ({rule}): {meaning}.")
    return tuple(notes)


def constant_response(response: str, gaps: Sequence[str]) -> str:
    """Why nothing explains a response, where records with an empty cell in `gaps` may have been left out."""
    if gaps:
        return (
            f"the response {response!r} does not vary in the records whose cells are filled; leave out with columns="
            f" what may be empty: {', '.join(map(repr, gaps))}."
        )
    return (
        f"the response {response!r} does not vary in the records used; check that the parties' records overlap, and"
        " that its declared range is not far too wide."
    )


def by_rule(rules: Mapping[str, EmptyRule], rule: EmptyRule) -> tuple[str, ...]:
    """The columns of one rule."""
    return tuple(name for name, used in rules.items() if used == rule)


class FilledRecords(ABC):
    """A layout without masks of cells: an empty cell makes its record count as absent at its party."""

    facts: PublicFacts

    @property
    @abstractmethod
    def used(self) -> Sequence[Feature]:
        """All that is read."""

    @cached_property
    def filled(self) -> tuple[str, ...]:
        """The columns in which an empty cell makes a record count as absent."""
        return by_rule(empty_rules(self.used, self.facts, "drop"), "drop")

    def present(self, me: Party) -> NDArray[np.bool_]:
        """For each row of the cohort, whether this party has the record with all cells that must be filled."""
        return me.present_with([name for name in self.filled if name in me.block.columns])


class WithResponse(FilledRecords):
    """A layout of covariates and a response: `names` end with the response."""

    names: tuple[str, ...]

    @cached_property
    def features(self) -> list[Feature]:
        """Of covariates and response, party by party."""
        return features(self.facts, self.names)

    @property
    def used(self) -> list[Feature]:
        return self.features

    def own_features(self, party: str) -> list[Feature]:
        return [feature for feature in self.features if feature.party == party]

    @cached_property
    def parties(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(feature.party for feature in self.features))

    @property
    def response(self) -> str:
        return self.names[-1]

    @property
    def response_party(self) -> str:
        return self.facts.owner(self.response)

    @cached_property
    def others(self) -> tuple[str, ...]:
        return tuple(party for party in self.parties if party != self.response_party)


@dataclass(frozen=True, eq=False)
class ScoreMap:
    """A monotone map from a column's encoded values to [-1, 1]: linear between `points`, constant beyond them."""

    points: NDArray[np.float64]
    levels: NDArray[np.float64]

    def __call__(self, encoded: NDArray[Any]) -> NDArray[np.float64]:
        """Scores, clipped whatever the map says; an empty cell counts as nothing."""
        scores = np.clip(np.nan_to_num(np.interp(encoded, self.points, self.levels)), -1.0, 1.0)
        return np.asarray(np.where(is_empty(encoded), 0.0, scores), dtype=np.float64)


def keep_scores(me: Party, label: str, maps: Mapping[str, ScoreMap]) -> None:
    """Remember this party's score maps for the later steps of the job that name the label."""
    me.keep(_kept(label), {name: {"points": score.points, "levels": score.levels} for name, score in maps.items()})


def kept_scores(me: Party, label: str) -> dict[str, ScoreMap]:
    plain: Mapping[str, Mapping[str, NDArray[np.float64]]] = me.recall(_kept(label))
    return {name: ScoreMap(score["points"], score["levels"]) for name, score in plain.items()}


def _kept(label: str) -> str:
    return f"scores: {label}"


def design_chunks(
    me: Party, wanted: Sequence[Feature], *, filled: Sequence[str] = ()
) -> Iterator[tuple[NDArray[np.int64], NDArray[np.float64]]]:
    """(cohort rows, features) of the records that this party has, a chunk at a time. Records with an empty cell in this
    party's `filled` columns count as absent."""
    names, work, own = _own_design(me, wanted, None, filled, ())
    if names:
        yield from me.mapped(names, work, filled=own)


def _own_design(
    me: Party, wanted: Sequence[Feature], scores: str | None, filled: Sequence[str], masks: Sequence[str]
) -> tuple[list[str], Design, list[str]]:
    """The columns of this party's features, what is computed of them, and which of them must be filled."""
    own_features = tuple(feature for feature in wanted if feature.party == me.name)
    names = list(dict.fromkeys(feature.column for feature in own_features))
    maps = None if scores is None or not names else kept_scores(me, scores)
    complete = [name for name in filled if name in me.block.columns]
    return names, Design(own_features, maps, tuple(name for name in masks if name in names)), complete


@dataclass(frozen=True, eq=False)
class Design:
    """Masks and features of a chunk of records; `maps` are scores if there are any."""

    features: tuple[Feature, ...]
    maps: Mapping[str, ScoreMap] | None = None
    masks: tuple[str, ...] = ()

    def __call__(self, rows: NDArray[np.int64], values: Values) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
        levels = {feature.column for feature in self.features if feature.category == EMPTY}
        out = np.empty((len(rows), len(self.masks) + len(self.features)))
        for position, name in enumerate(self.masks):
            out[:, position] = ~is_empty(values[name])
        for position, feature in enumerate(self.features, len(self.masks)):
            if feature.category == PRESENT:
                out[:, position] = 1.0
                continue
            encoded = values[feature.column]
            if encoded.dtype == np.float64 and self.maps is None and feature.category is None:
                _scale(encoded, feature.centre, feature.half, out[:, position])
                continue
            if self.maps is not None:
                out[:, position] = self.maps[feature.column](encoded)
                continue
            value = encoded if feature.category is None else encoded == feature.category
            scaled = np.clip((value - feature.centre) / feature.half, -1.0, 1.0)
            # NaN has no integer, and an empty cell counts as nothing unless it is a level.
            out[:, position] = scaled if feature.column in levels else np.where(is_empty(encoded), 0.0, scaled)
        return rows, out


@numba.njit(cache=True)
def _scale(values: Any, centre: float, half: float, out: Any) -> None:
    """(value - centre) / half within [-1, 1], and 0 for an empty cell, which is NaN."""
    for i in range(values.size):
        scaled = min(max((values[i] - centre) / half, -1.0), 1.0)
        out[i] = 0.0 if math.isnan(values[i]) else scaled


def design(me: Party, wanted: Sequence[Feature], *, filled: Sequence[str] = ()) -> NDArray[np.float64]:
    """This party's features over the whole cohort; a record that it lacks is a row of zeros."""
    cohort = np.zeros((me.facts.n, sum(feature.party == me.name for feature in wanted)))
    for rows, values in design_chunks(me, wanted, filled=filled):
        cohort[rows] = values
    return cohort


# --- real rows as integers whose size is certain: round at random, then clip **in integers** --------------
#
# Stochastic rounding alone breaks the SQM paper's sensitivity: a row of norm c, scaled by gamma and rounded, can
# reach gamma c + sqrt(columns). So the bound is enforced after rounding, on the integers themselves.


_PIECE = 1 << 14


def stochastic_round(values: NDArray[np.float64], randomness: Randomness) -> NDArray[np.int64]:
    """An integer next to each value, its expectation the value (up to 2^-53).

    Rounding protects no one: the bounds that the noise rests on are enforced after it. So a stream under one fresh
    key decides, which is faster than the operating system's generator.
    """
    out = np.empty(values.shape, dtype=np.int64)
    flat, target = np.ascontiguousarray(values).reshape(-1), out.reshape(-1)
    for part, words in _rounding(flat.size, 1, randomness):
        _round(flat[part], words, 1.0, target[part])
    return out


def _rounding(rows: int, width: int, randomness: Randomness) -> Iterator[tuple[slice, NDArray[np.uint64]]]:
    """Ranges of rows, and a random word for each of their entries; the next ones take the place of the last."""
    stream = Cipher(algorithms.AES(randomness.bytes(32)), modes.CTR(bytes(16))).encryptor()
    most = max(1, _PIECE // max(width, 1))
    zeros, buffer = memoryview(bytes(8 * most * width)), bytearray(8 * most * width + 15)
    for start in range(0, rows, most):
        part = slice(start, min(start + most, rows))
        count = (part.stop - start) * width
        stream.update_into(zeros[: 8 * count], buffer)
        yield part, np.frombuffer(buffer, dtype=np.uint64, count=count)


@numba.njit(cache=True)
def _round(values: Any, words: Any, scale: float, out: Any) -> None:
    """Up with probability value - floor(value): a uniform number of 53 bits is below it."""
    for i in range(values.size):
        value = values[i] * scale
        low = math.floor(value)
        drawn = np.float64(words[i] >> np.uint64(11)) * 2.0**-53
        out[i] = np.int64(low) + (drawn < value - low)


@numba.njit(cache=True)
def _clip(rows: Any, largest: int, norms: Any) -> None:
    """Every entry within `largest`, and the squared norm of each row."""
    for i in range(rows.shape[0]):
        total = np.int64(0)
        for j in range(rows.shape[1]):
            entry = min(max(rows[i, j], -largest), largest)
            rows[i, j] = entry
            total += entry * entry
        norms[i] = total


def integer_bounds(gamma: int, clip: float, entry: float) -> tuple[int, int]:
    """(largest squared norm of a row, largest entry) in integers; never above the declared bounds."""
    return math.floor(gamma * gamma * clip * clip + 1e-9), math.floor(gamma * entry + 1e-9)


def check_row(width: int, largest: int) -> None:
    """Refuse rows whose squared norm may pass 63 bits: it would wrap, and too long a row would not be clipped."""
    if width * largest**2 >= 2**63:
        raise ModulusTooSmall(
            f"{width} features of size {largest} have a squared norm beyond 63 bits; take a smaller gamma."
        )


def quantize(
    rows: NDArray[np.float64], *, gamma: int, clip: float, entry: float, randomness: Randomness
) -> NDArray[np.int64]:
    """gamma * rows, rounded at random and clipped: every entry within gamma * entry, every row within gamma * clip."""
    square, largest = integer_bounds(gamma, clip, entry)
    check_row(rows.shape[1], largest)
    out, norms = np.empty(rows.shape, dtype=np.int64), np.empty(len(rows), dtype=np.int64)
    rows = np.ascontiguousarray(rows, dtype=np.float64)
    for part, words in _rounding(len(rows), rows.shape[1], randomness):
        _round(rows[part].reshape(-1), words, float(gamma), out[part].reshape(-1))
        _clip(out[part], largest, norms[part])
    for _ in range(3):
        long = np.flatnonzero(norms > square)
        if not long.size:
            return out
        # Toward zero: each pass shortens a row; floating point may leave it one unit too long, the next pass does not.
        shrink = np.sqrt(square / norms[long])[:, None] * (1 - 1e-12)
        out[long] = np.trunc(out[long] * shrink).astype(np.int64)
        norms = np.einsum("ij,ij->i", out, out)
    out[np.einsum("ij,ij->i", out, out) > square] = 0
    return out


@dataclass(frozen=True, kw_only=True)
class IntegerRows:
    """A party's rows as integers whose size is certain: features clipped to the norm `clip` and, where presence is
    secret, a column of gamma and `masks` columns of gamma or 0 before them, whatever the values say."""

    gamma: int
    clip: float
    masks: int | None

    def __call__(self, values: NDArray[np.float64], randomness: Randomness) -> NDArray[np.int64]:
        masks = self.masks or 0
        rows = quantize(values[:, masks:], gamma=self.gamma, clip=self.clip, entry=1.0, randomness=randomness)
        if self.masks is None:
            return rows
        filled = np.where(values[:, :masks] == 1.0, self.gamma, 0)
        return np.column_stack([np.full(len(rows), self.gamma), filled, rows])

    def check(self, rows: NDArray[np.integer[Any]]) -> None:
        """Refuse rows that another process has made and that are beyond these sizes: the noise rests on them."""
        square, largest = integer_bounds(self.gamma, self.clip, 1.0)
        first = 0 if self.masks is None else 1 + self.masks
        features = rows[:, first:]
        fits = np.abs(features, dtype=np.int64).max(initial=0) <= largest
        fits = fits and np.einsum("ij,ij->i", features, features, dtype=np.int64).max(initial=0) <= square
        if first:
            masks = rows[:, 1:first]
            fits = fits and bool(((masks == 0) | (masks == self.gamma)).all() and (rows[:, 0] == self.gamma).all())
        if not fits:
            raise SourceError("a worker of this party's cluster sent rows beyond their bounds; check its installation.")


@dataclass(frozen=True, eq=False)
class IntegerDesign:
    """At a worker: integer rows of a chunk, rounded by its own operating system's generator; `dtype` is as narrow as
    they allow, since they travel to the party."""

    design: Design
    integers: IntegerRows
    dtype: type[np.integer[Any]]

    def __call__(self, rows: NDArray[np.int64], values: Values) -> tuple[NDArray[np.int64], NDArray[np.integer[Any]]]:
        places, scaled = self.design(rows, values)
        return places, self.integers(scaled, SystemRandomness()).astype(self.dtype)


def integer_chunks(
    me: Party,
    wanted: Sequence[Feature],
    integers: IntegerRows,
    *,
    dtype: type[np.integer[Any]],
    scores: str | None = None,
    filled: Sequence[str] = (),
    masks: Sequence[str] = (),
    cells: int = CELLS,
) -> Iterator[tuple[NDArray[np.int64], NDArray[np.integer[Any]]]]:
    """`design_chunks` in integers. On its own cluster the workers round and clip, and the party's process checks."""
    names, work, own = _own_design(me, wanted, scores, filled, masks)
    if not names:
        return
    if not isinstance(me.block.source, OnCluster):
        for places, values in me.mapped(names, work, filled=own, cells=cells):
            yield places, integers(values, me.randomness)
        return
    for places, rows in me.mapped(names, IntegerDesign(work, integers, dtype), filled=own):
        integers.check(rows)
        yield places, rows


# --- rows in the order of the cohort, a range of it at a time, from a block in any order and of any size ---
#
# Shares travel by ranges of the cohort; the block has an order of its own. One range alone, or several small ones, are
# put together in memory. Otherwise an external bucket sort: the block is streamed **once**, each row is appended to the
# scratch file of its range, and every range is read from one file. The files are in the party's own folder until the
# job closes; they are a cache that is made again if it is lost.


MOST_FILES = 256
MOST_IN_MEMORY = 1 << 26
"""Bytes of all ranges that are put together in memory, and remembered there, instead of in files."""

Rows = Callable[[], Iterable[tuple[NDArray[np.int64], NDArray[Any]]]]
"""Streams (cohort rows, one row of values for each) of the whole block, in any order."""


@dataclass(frozen=True, kw_only=True)
class CohortRows:
    """`ranges` are consecutive (start, stop) of one length, but the last; `label` names the rows within the job.

    `width` and `dtype` are those of a row; a record that the party lacks is `fill` throughout.
    """

    label: str
    ranges: Sequence[tuple[int, int]]
    width: int
    dtype: type[np.integer[Any]]
    fill: int = 0
    in_files: bool = False
    """However few they are."""

    def range(self, me: Party, number: int, rows: Rows) -> NDArray[np.integer[Any]]:
        """The rows of one range; `rows` is asked for only if they are not in a file already."""
        start, stop = self.ranges[number]
        if len(self.ranges) == 1:
            return self._all(rows)
        if not self.in_files and self._bytes <= MOST_IN_MEMORY:
            return np.array(me.remembered(self.label, self._bytes, lambda: self._all(rows))[start:stop])
        folder = me.scratch / hashlib.sha256(self.label.encode()).hexdigest()[:32]
        try:
            if not folder.is_dir():
                self._sort(folder, rows)
            file = self._file(folder, start)
            out = np.full((stop - start, self.width), self.fill, dtype=self.dtype)
            if file.exists():
                for stored in _read(file, self._record):
                    inside = (stored["at"] >= start) & (stored["at"] < stop)
                    out[stored["at"][inside] - start] = stored["row"][inside]
        except OSError as error:
            raise StorageError(f"sorting rows in {me.scratch} failed ({error}); free disk space.") from error
        return out

    @property
    def _bytes(self) -> int:
        return self.ranges[-1][1] * self.width * np.dtype(self.dtype).itemsize

    def _all(self, rows: Rows) -> NDArray[np.integer[Any]]:
        out = np.full((self.ranges[-1][1], self.width), self.fill, dtype=self.dtype)
        for places, values in rows():
            # One range, unless the block has another order than the cohort: copied several times as fast.
            first = int(places[0]) if len(places) else 0
            in_order = np.array_equal(places, np.arange(first, first + len(places)))
            out[slice(first, first + len(places)) if in_order else places] = values
        return out

    @property
    def _record(self) -> np.dtype[Any]:
        return np.dtype([("at", np.int64), ("row", self.dtype, (self.width,))])

    @property
    def _rows(self) -> int:
        """Cohort rows of one file: a range, or several if there are very many."""
        start, stop = self.ranges[0]
        return (stop - start) * -(-len(self.ranges) // MOST_FILES)

    def _file(self, folder: Path, row: int) -> Path:
        return folder / f"{row // self._rows}.rows"

    def _sort(self, folder: Path, rows: Rows) -> None:
        partial = folder.with_suffix(".partial")
        shutil.rmtree(partial, ignore_errors=True)
        private_folder(partial)
        for places, values in rows():
            stored = np.empty(len(places), dtype=self._record)
            stored["at"], stored["row"] = places, values
            bucket = places // self._rows
            stored = stored[np.argsort(bucket, kind="stable")]
            buckets, first = np.unique(np.sort(bucket), return_index=True)
            for number, part in zip(buckets.tolist(), np.split(stored, first[1:]), strict=True):
                with private_file(self._file(partial, number * self._rows)).open("ab") as file:
                    part.tofile(file)
        partial.rename(folder)


def _read(path: Path, record: np.dtype[Any], rows: int = 1 << 16) -> Iterable[NDArray[Any]]:
    with path.open("rb") as file:
        while len(part := np.fromfile(file, dtype=record, count=rows)):
            yield part
