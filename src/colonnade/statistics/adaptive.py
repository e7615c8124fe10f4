"""The private marginal of an ordered column: cells that refine where the mass is, and point masses beside them.

Equal cells lose what real columns are made of: on nine declared decades all records are in the first cell, and 60 %
zeros are smeared over a cell. Here the declared range is a fine public grid, and a few **rounds** of noisy counts find
the cells. The cells of a round are a partition of the grid, chosen from the noisy counts of the rounds before:

- a cell that holds far more records than the noise of a count is cut into parts;
- a part that holds clearly more than its share of the cell is cut again, as far as the grid goes: a *point mass* ends
  as one step of the grid, or as a cell that kept its mass while it became 128 times narrower;
- neighbours whose counts are noise become one cell again.

So a wide range costs rounds, not the distribution. One record is in one cell of each round, whatever the rounds
before have chosen, so R rounds with noise of sd s cost what R histograms cost (`marginals.claim.md`). All else is
post-processing: the least-squares fit of all rounds (`fitted_counts`), the distribution (`AdaptiveMarginal`).
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from functools import cached_property
from typing import Any, Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from colonnade.codec import plain, record
from colonnade.data.column import Column
from colonnade.errors import BadArguments, DomainError
from colonnade.privacy.noise import discrete_gaussian, discrete_laplace
from colonnade.privacy.randomness import Randomness
from colonnade.statistics.marginals import Marginal

Reals = NDArray[np.float64]
Integers = NDArray[np.int64]
Booleans = NDArray[np.bool_]
Noise = Literal["gaussian", "laplace"]
Counter = Callable[[Integers], Integers]
"""Exact counts of the records between neighbouring edges, which are positions on the grid."""

BITS = 40
"""The grid of a continuous column has 2^BITS steps; that of a count has a step for each integer."""
CELLS = 512
"""Cells of one round, at most, where the last round tells most; half as many where all tell alike."""
FIRST = 64
"""Cells of the first round, at most."""
SMOOTH = 384
"""Cells that a smooth column is cut into, at most, in the same sense."""
HELD = 4.0
"""A smooth part holds at least this many standard deviations of the noise of a count."""
NARROWED = 128.0
"""A cell that became so much narrower and kept most of its mass is a point mass; half of it where rounds are few."""
EMPTIED = 4.0
"""Beside one that became as many times narrower as that, and more, what is not clear is merged."""
NEVER: Mapping[Noise, float] = {"gaussian": 6.0, "laplace": 10.0}
"""Standard deviations that noise exceeds with a chance below a millionth: what stands out so far holds records."""
NOISY = 0.1
"""The share of the records by which ranks may be off (two standard deviations) before a column is mostly noise."""
POINT_SHARE = 0.005
"""Of the records: smaller point masses are in the distribution, and not listed."""


LONGEST_LIST = 64
"""Integers in a column's domain up to which each has a count of its own."""


def listed(column: Column) -> bool:
    """Has the column listed values: categories, or few integers? A histogram of these needs no rounds."""
    if column.discrete:
        return True
    assert column.lower is not None
    assert column.upper is not None
    return column.whole and column.upper - column.lower < LONGEST_LIST


def mostly_noise(cells: int, records: float, sd: float) -> bool:
    """Does noise alone move a histogram by more than a tenth of its records (in total variation distance)?"""
    # Half the mean absolute deviation of the noise, 0.8 sd, of all cells.
    return 0.4 * sd * cells > NOISY * max(records, 1.0)


def histogram_words(cells: int, *, n: int, sd: float) -> str:
    """What a histogram will be worth, from public facts alone, if all `n` records have the column."""
    if mostly_noise(cells, n, sd):
        return f"{cells} cells, mostly noise: a count is usually off by less than {2 * sd:,.0f} of {n:,} records"
    return f"{cells} cells; a count is usually off by less than {200 * sd / n:.2g} % of the records"


# --- the public grid ------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Axis:
    """`steps` public cells between two bounds, the smallest that are told apart; equal, or equal in the logarithm.

    A count a is the step [a, a + 1). On a logarithmic scale the steps are equal in log(1 + (x - lower) / unit).
    """

    lower: float
    upper: float
    steps: int
    whole: bool = False
    unit: float | None = None

    @classmethod
    def of(cls, column: Column) -> Axis:
        """Of a column with bounds."""
        if column.lower is None or column.upper is None:
            raise DomainError(f"column {column.name!r} has no bounds; declare lower and upper in columns.toml.")
        lower, upper, whole = column.lower, column.upper, column.whole
        steps = int(upper - lower) + 1 if whole else 1 << BITS
        unit = None
        if column.scale == "log":
            # log(x / lower) where there is a positive lower bound; otherwise from a millionth of the range on.
            unit = lower if lower > 0 else (upper - lower) * 2.0**-20
        return cls(lower, upper + 1 if whole else upper, steps, whole, unit)

    def values(self, positions: ArrayLike) -> Reals:
        """The value at each position, 0 to `steps`."""
        share = np.asarray(positions, dtype=np.float64) / self.steps
        if self.whole:
            return np.asarray(self.lower + np.asarray(positions, dtype=np.float64))
        if self.unit is None:
            inner = self.lower + (self.upper - self.lower) * share
        else:
            inner = self.lower + self.unit * np.expm1(share * math.log1p((self.upper - self.lower) / self.unit))
        return np.where(share >= 1, self.upper, np.minimum(inner, self.upper))

    def count(self, ordered: Reals, edges: Integers) -> Integers:
        """How many of these sorted values lie between neighbouring edges; the last cell is closed."""
        below = np.searchsorted(ordered, self.values(edges), side="left")
        below[0], below[-1] = 0, ordered.size
        return np.diff(below).astype(np.int64)

    def roundest(self, low: int, high: int) -> float:
        """The number with the fewest digits between two positions: that is where people's point masses are."""
        left, right = map(float, self.values([low, high]))
        if self.whole:
            return _fewest_digits(left, right - 0.5) + 0.5 if high - low > 1 else left + 0.5
        return _fewest_digits(left, right if high == self.steps else math.nextafter(right, -math.inf))


def _fewest_digits(low: float, high: float) -> float:
    """The number with the fewest decimal digits in [low, high]."""
    if low <= 0 <= high:
        return 0.0
    start = math.floor(math.log10(max(abs(low), abs(high))))
    for digits in range(-start, -start + 18):
        candidate = math.ceil(low * 10.0**digits) / 10.0**digits
        if low <= candidate <= high:
            return candidate
    return low


# --- what is released -----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Rounds:
    """The noise of a release: `number` rounds of noisy counts of scale `scale` each; the last one of scale `last`, if
    it is another. A scale of 0 is no noise.

    A scale is the discrete Gaussian's sigma, or the discrete Laplace's scale.
    """

    number: int
    noise: Noise
    scale: float
    last: float | None = None

    def scale_of(self, turn: int) -> float:
        """Of a round, from 0 on."""
        return self.scale if self.last is None or turn + 1 < self.number else self.last

    def sd_of(self, turn: int) -> float:
        """The standard deviation of one count of a round."""
        scale = self.scale_of(turn)
        if self.noise == "gaussian" or scale == 0:
            return scale
        # The discrete Laplace with ratio q = e^(-1 / scale) has variance 2 q / (1 - q)^2.
        q = math.exp(-1 / scale)
        return math.sqrt(2 * q) / (1 - q)

    @property
    def sd(self) -> float:
        """The standard deviation of one count of a round that cuts."""
        return self.sd_of(0)

    @property
    def last_tells(self) -> bool:
        """Does the last round tell most, and the others little more than where its cells should be?"""
        return self.last is not None

    @property
    def cells(self) -> int:
        """Of one round, at most. More make the fit of rounds that tell alike slower, and not better."""
        return CELLS if self.last_tells else CELLS // 2

    @property
    def smooth(self) -> int:
        """Cells that a smooth column is cut into, at most."""
        return SMOOTH if self.last_tells else SMOOTH // 2

    @property
    def narrowed(self) -> float:
        """How much narrower a cell became that is a point mass."""
        return NARROWED / 2 if self.last_tells else NARROWED

    @property
    def believed(self) -> float:
        """The noise that decisions and weights take: at least a fraction of a record."""
        return max(self.sd, 0.25)

    @property
    def last_believed(self) -> float:
        """That of the last round."""
        return math.sqrt(self.variance(self.number - 1))

    def variance(self, turn: int) -> float:
        """The weight of a round in the fit is its inverse."""
        return max(self.sd_of(turn), 0.25) ** 2

    def clear(self) -> float:
        """Standard deviations that the noise of a round's counts hardly ever exceeds: about once in two rounds."""
        cells = self.cells
        if self.noise == "gaussian":
            return math.sqrt(2 * math.log(2 * cells))
        return math.log(2 * cells) / math.sqrt(2)

    def draw(self, randomness: Randomness, turn: int, size: int) -> Integers:
        scale = self.scale_of(turn)
        if scale == 0:
            return np.zeros(size, dtype=np.int64)
        sampler = discrete_gaussian if self.noise == "gaussian" else discrete_laplace
        return sampler(randomness, scale, size)


@dataclass(frozen=True, eq=False)
class Counts:
    """One round: positions of the edges, and the noisy counts between them; `empty` counts records without a value."""

    edges: Integers
    counts: Integers
    empty: int = 0


def release(
    counter: Counter, axis: Axis, *, n: int, rounds: Rounds, randomness: Randomness, empty: int | None = None
) -> list[Counts]:
    """All rounds. The edges of a round are a function of the noisy counts of those before, and of public facts.

    `counter` gives exact counts, `n` is the public size of the cohort, `empty` the exact number of records without a
    value, if there may be any.
    """
    released: list[Counts] = []
    cells = first_cells(axis, n=n, rounds=rounds)
    for turn in range(rounds.number):
        exact = counter(cells.asked)
        noise = rounds.draw(randomness, turn, exact.size + (empty is not None))
        noisy = exact + noise[: exact.size]
        released.append(Counts(cells.asked, noisy, 0 if empty is None else int(empty + noise[-1])))
        if turn + 1 < rounds.number:
            cells = next_cells(cells, noisy, left=rounds.number - turn - 2, n=n, rounds=rounds)
    return released


@dataclass(frozen=True)
class SortedValues:
    """(a column's values in order, how many records have none): what all rounds are counted from."""

    column: str

    def of(self, rows: Integers, values: Mapping[str, NDArray[Any]]) -> tuple[Reals, int]:
        encoded = np.asarray(values[self.column], dtype=np.float64)
        present = encoded[~np.isnan(encoded)]
        return np.sort(present), int(encoded.size - present.size)

    def merge(self, left: tuple[Reals, int], right: tuple[Reals, int]) -> tuple[Reals, int]:
        return np.sort(np.concatenate([left[0], right[0]]), kind="stable"), left[1] + right[1]


def most_counts(rounds: int) -> int:
    """Numbers that leave a party for one column, in rounds that tell alike."""
    return rounds * (CELLS // 2 + 2)


def to_arrays(released: Sequence[Counts], rounds: Rounds) -> dict[str, Integers]:
    """The counts of all rounds, for the wire; `from_arrays` is its inverse. Their number depends on no data: a round
    with fewer cells ends with zeros. The edges follow from the counts."""
    counts = np.zeros((len(released), rounds.cells), dtype=np.int64)
    for row, turn in zip(counts, released, strict=True):
        row[: turn.counts.size] = turn.counts
    sizes = np.array([turn.counts.size for turn in released], dtype=np.int64)
    return {"sizes": sizes, "counts": counts, "empty": np.array([turn.empty for turn in released], dtype=np.int64)}


def from_arrays(arrays: Mapping[str, ArrayLike], axis: Axis, *, n: int, rounds: Rounds) -> list[Counts]:
    sizes, counts, empty = (np.asarray(arrays[name], dtype=np.int64) for name in ("sizes", "counts", "empty"))
    if sizes.shape != (rounds.number,) or counts.shape != (rounds.number, rounds.cells) or empty.shape != sizes.shape:
        raise BadArguments(f"an adaptive marginal has {rounds.number} rounds of at most {rounds.cells} counts.")
    released: list[Counts] = []
    cells = first_cells(axis, n=n, rounds=rounds)
    for turn, size in enumerate(sizes.tolist()):
        if size != cells.asked.size - 1:
            raise BadArguments("the cells of a round do not follow from the counts before it.")
        noisy = counts[turn, :size]
        released.append(Counts(cells.asked, noisy, int(empty[turn])))
        cells = next_cells(cells, noisy, left=rounds.number - turn - 2, n=n, rounds=rounds)
    return released


@dataclass(frozen=True)
class Forecast:
    """What a release will be worth, from public facts alone: if all `n` records of the cohort have the column.

    cells : that a smooth column is cut into. error : how far F may be off, in 95 of 100 cases. point : the share of
    the records from which on a point mass is found.
    """

    cells: int
    error: float
    point: float

    @classmethod
    def of(cls, axis: Axis, *, n: int, rounds: Rounds) -> Forecast:
        # Of rounds that differ: the one that cuts decides where cells are, the last one what they hold.
        s = (rounds.variance(0) * rounds.variance(rounds.number - 1)) ** 0.25
        cells = int(min(max(n / _goal(n, rounds), 1), rounds.smooth, axis.steps))
        error = ERROR_SCALE[rounds.noise] * (max(n, 1) / s) ** -ERROR_POWER + (
            0.0 if cells == axis.steps else 0.5 / cells
        )
        return cls(cells, error=min(error, 1.0), point=_worth(n, rounds) / max(n, 1))

    def in_words(self) -> str:
        if self.error > NOISY:
            return f"mostly noise: ranks may be off by {100 * self.error:.0f} % of the records"
        return (
            f"about {self.cells} cells; ranks are usually off by less than {100 * self.error:.2g} % of the records;"
            f" point masses of {100 * min(self.point, 1.0):.2g} % and more are found"
        )


ERROR_SCALE: Mapping[Noise, float] = {"gaussian": 1.6, "laplace": 2.6}
ERROR_POWER = 0.8
"""Of the forecast: the 95th percentile of the largest error of F over simulated columns is about scale (n / s)^-power
plus half a cell."""


# --- the choice of cells: post-processing of the noisy counts -------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Cells:
    """The cells of the next round. `asked` are its edges: each of the cells `edges` is cut into `parts`.

    counts, variances : what the rounds before say of each cell, roughly.
    unclear : may the cell hide something narrower? A cell whose parts were looked at and were alike does not.
    narrowed : how much narrower it became while it kept most of the mass.
    """

    edges: Integers
    counts: Reals
    variances: Reals
    unclear: Booleans
    narrowed: Reals
    parts: Integers

    @cached_property
    def asked(self) -> Integers:
        pairs = zip(itertools.pairwise(self.edges.tolist()), self.parts.tolist(), strict=True)
        inner = [low + (high - low) * part // parts for (low, high), parts in pairs for part in range(parts)]
        return np.array([*inner, int(self.edges[-1])], dtype=np.int64)


def first_cells(axis: Axis, *, n: int, rounds: Rounds) -> Cells:
    """Equal cells, as many as would hold enough records each if the column were uniform."""
    held = n / (HELD * rounds.believed)
    size = int(min(axis.steps, FIRST, max(16, 2 ** math.floor(math.log2(max(held, 1))))))
    edges = np.array([axis.steps * place // size for place in range(size + 1)], dtype=np.int64)
    return Cells(
        edges,
        counts=np.zeros(size),
        variances=np.full(size, math.inf),
        unclear=np.ones(size, dtype=bool),
        narrowed=np.ones(size),
        parts=np.ones(size, dtype=np.int64),
    )


def next_cells(cells: Cells, noisy: Integers, *, left: int, n: int, rounds: Rounds) -> Cells:
    """What the counts of a round make of its cells; `left` more rounds follow the next one."""
    parts, low = _looked_at(cells, noisy, n=n, rounds=rounds)
    # Cells that are only counted once more need no room for parts: neighbours stay apart if that count tells them.
    ends = left <= 0 and rounds.last_tells
    merged = _merged(parts, low, goal=HELD * rounds.last_believed if ends else _goal(n, rounds), rounds=rounds)
    return replace(merged, parts=_cuts(merged, left=left, n=n, rounds=rounds))


def _looked_at(cells: Cells, noisy: Integers, *, n: int, rounds: Rounds) -> tuple[Cells, Booleans]:
    """The parts as cells of their own, with what is now known of them, and which of them may hold nothing.

    With y the parts' counts (variance s^2 each) and P what was known of the cell before (variance v), least squares
    moves each part by s^2 / (v + k s^2) of P - sum y.
    """
    s = rounds.believed
    clear = rounds.clear() * s
    parent = np.repeat(np.arange(cells.parts.size), cells.parts)
    cut = cells.parts[parent] > 1
    k = cells.parts[parent].astype(np.float64)
    y = noisy.astype(np.float64)
    known = np.isfinite(cells.variances)
    gain = np.where(known, s**2 / (np.where(known, cells.variances, 0.0) + cells.parts * s**2), 0.0)
    gap = np.where(known, cells.counts - np.bincount(parent, y), 0.0)
    counts = y + (gain * gap)[parent]
    variances = s**2 * (1 - gain)[parent]
    total = np.maximum(np.bincount(parent, counts), 0.0)[parent]
    stands_out = cut & (counts - total / k > clear) & (counts > clear)
    most = stands_out & (counts > np.where(k >= 4, 0.5, 0.8) * total)
    # Beside a part that is likely a point mass there is little: what is there must be clear to stay apart.
    emptied = np.bincount(parent, most & (cells.narrowed[parent] * k >= EMPTIED * rounds.narrowed))[parent] > 0
    low = np.where(emptied, ~stands_out, counts < 1.5 * np.sqrt(variances))
    looked_at = Cells(
        cells.asked,
        counts,
        variances,
        unclear=np.where(cut, stands_out, cells.unclear[parent]) & (counts >= _worth(n, rounds)),
        narrowed=np.where(cut, np.where(most, cells.narrowed[parent] * k, 1.0), cells.narrowed[parent]),
        parts=np.ones(counts.size, dtype=np.int64),
    )
    return looked_at, low & ~(looked_at.unclear & (looked_at.narrowed > 1))


def _merged(parts: Cells, low: Booleans, *, goal: float, rounds: Rounds) -> Cells:
    """Neighbours whose counts are noise become one cell; if they hold something together, a few cells of `goal`."""
    s = rounds.believed
    # One step of the grid that holds enough for itself stays apart: an integer is a value of its own.
    single = (np.diff(parts.edges) == 1) & (parts.counts > HELD * s)
    starts: list[int] = []
    place, size = 0, parts.counts.size
    while place < size:
        starts.append(place)
        end = place + 1
        if low[place]:
            while end < size and low[end]:
                end += 1
            held = float(parts.counts[place:end].sum())
            if held > 2.5 * s * math.sqrt(end - place):
                groups = max(1, min(end - place, int(held / goal)))
                starts += [place + (end - place) * group // groups for group in range(1, groups)]
        elif not parts.unclear[place]:
            # Clear neighbours of little mass each: together they hold what a smooth part should.
            held = float(parts.counts[place])
            alone = low | parts.unclear | single
            while end < size and not (alone[end - 1] or alone[end]) and held + parts.counts[end] <= goal:
                held += float(parts.counts[end])
                end += 1
        place = end
    first = np.array(starts)
    several = np.diff(np.append(first, size)) > 1
    return Cells(
        np.append(parts.edges[first], parts.edges[-1]),
        np.add.reduceat(parts.counts, first),
        np.add.reduceat(parts.variances, first),
        unclear=parts.unclear[first] & ~(several & ~np.logical_and.reduceat(parts.unclear, first)),
        narrowed=np.where(several, 1.0, parts.narrowed[first]),
        parts=np.ones(first.size, dtype=np.int64),
    )


def _worth(n: int, rounds: Rounds) -> float:
    """Records from which on it is worth looking what a cell hides."""
    return max((rounds.clear() + 1) * rounds.believed, n / (8 * rounds.smooth))


def _goal(n: int, rounds: Rounds) -> float:
    """Records that a smooth part should hold: more where the last round tells most, since a rank then carries the noise
    of all its counts."""
    held = 1.5 * HELD if rounds.last_tells else HELD
    return max(held * rounds.last_believed, n / rounds.smooth)


def _cuts(cells: Cells, *, left: int, n: int, rounds: Rounds) -> Integers:
    """Into how many parts each cell is cut. The last round cuts nothing: it counts what was chosen.

    What is unclear comes first: all room goes to cells that may hide something narrower. Smooth cells are cut where no
    cell is unclear, or in the last two rounds that cut; in the last one if there are few.
    """
    one = np.ones(cells.counts.size, dtype=np.int64)
    if left <= 0:
        return one
    width = np.diff(cells.edges)
    hides = cells.unclear & (width > 1)
    smooth = np.where(
        (left <= (1 if rounds.last_tells else 2)) | ~hides.any(), np.floor(cells.counts / _goal(n, rounds)), 1.0
    )
    parts = np.maximum(smooth, 1.0)
    room = rounds.cells - int(parts.sum())
    if hides.any() and room > 0:
        # At least four parts each: the cells with the most records first.
        largest = np.argsort(-np.where(hides, cells.counts, -math.inf), kind="stable")
        served = largest[: min(int(hides.sum()), max(room // 3, 1))]
        parts[served] = np.maximum(parts[served], min(64, 1 + room // served.size))
    if parts.sum() > rounds.cells:
        parts = 1 + np.floor((parts - 1) * (rounds.cells - parts.size) / (parts.sum() - parts.size))
    return np.minimum(np.maximum(parts, 1), width).astype(np.int64)


# --- the fit of all rounds ------------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Fit:
    """Least squares of all rounds on the cells of the last one.

    The rounds before had other edges. Cells of a round that lie between two edges that are also edges of the last one
    are added up: a sum over an interval, with as many times the variance of a count. So precision and right-hand side
    are sums over intervals I of 1 / variance: H = sum 1_I 1_I' / v_I, g = sum 1_I y_I / v_I.
    """

    precision: Reals
    right: Reals

    @classmethod
    def of(cls, released: Sequence[Counts], rounds: Rounds) -> Fit:
        edges = released[-1].edges
        corners, steps = np.zeros((edges.size, edges.size)), np.zeros(edges.size)
        for number, turn in enumerate(released):
            _, where, leaf = np.intersect1d(turn.edges, edges, assume_unique=True, return_indices=True)
            running = np.concatenate([[0.0], np.cumsum(turn.counts, dtype=np.float64)])
            weight = 1 / (rounds.variance(number) * np.diff(where))
            value = np.diff(running[where]) * weight
            left, right = leaf[:-1], leaf[1:]
            # A block of the matrix by its four corners: running sums in both directions fill it.
            for rows, columns, sign in ((left, left, 1), (left, right, -1), (right, left, -1), (right, right, 1)):
                np.add.at(corners, (rows, columns), sign * weight)
            np.add.at(steps, left, value)
            np.add.at(steps, right, -value)
        precision = corners.cumsum(axis=0).cumsum(axis=1)[:-1, :-1]
        return cls(precision, steps.cumsum()[:-1])

    def solved(self, live: Booleans) -> tuple[Reals, Reals]:
        """(counts, covariance) with the other cells at 0."""
        place = np.flatnonzero(live)
        counts, covariance = np.zeros(live.size), np.zeros((live.size, live.size))
        inverse = np.linalg.inv(self.precision[np.ix_(place, place)])
        counts[place] = inverse @ self.right[place]
        covariance[np.ix_(place, place)] = inverse
        return counts, covariance


def _supported(fit: Fit, counts: Reals, covariance: Reals, widths: Reals, is_point: Booleans, noise: Noise) -> Reals:
    """Counts that are at least 0, with cells at 0 whose mass may be noise.

    A cell must stand out the more, the wider it is against the cells that hold three quarters of the records outside
    point masses: a few records' worth of noise far out on a wide range would move every mean. Cells leave a few at a
    time, the least credible first, and the others are solved again.
    """
    sd = np.sqrt(np.diag(covariance))
    clear = np.where(counts < 2 * sd, 0.0, counts)
    smooth = np.where(is_point, 0.0, clear)
    if smooth.sum() < 0.03 * clear.sum():  # nothing but point masses
        smooth = clear
    dense = np.argsort(-smooth / widths, kind="stable")
    running = np.cumsum(smooth[dense])
    core = float(widths[dense[: int(np.searchsorted(running, 0.75 * running[-1])) + 1]].sum())
    wide = np.log(np.maximum(widths / core, 1.0))
    asked = np.sqrt(1 + 4 * wide) if noise == "gaussian" else 1 + math.sqrt(2) * wide
    asked = np.minimum(asked, NEVER[noise])
    live, fitted = np.ones(counts.size, dtype=bool), counts
    for _ in range(counts.size):
        credible = fitted / np.maximum(sd, 1e-12) - asked
        weak = live & (credible < 0)
        if not weak.any() or weak.sum() == live.sum():
            break
        live &= ~(weak & (credible <= np.median(credible[weak])))
        fitted, covariance = fit.solved(live)
        sd = np.sqrt(np.diag(covariance))
    return np.maximum(fitted, 0.0)


def _alone(counts: Reals, sds: Reals, edges: Reals) -> Booleans:
    """Do the stretches beside a cell, as wide as itself, hold less than half of what it holds? The mass of a long tail
    is at the near end of each of its cells, however narrow: such a cell has most of the records beside it, and is no
    point mass."""
    width = np.diff(edges)
    running = np.append(0.0, np.cumsum(np.where(counts > 2 * sds, counts, 0.0)))
    below, own, above = (
        np.interp(edges[1:] + step * width, edges, running) - np.interp(edges[:-1] + step * width, edges, running)
        for step in (-1, 0, 1)
    )
    return np.asarray(np.maximum(below, above) < 0.5 * own)


# --- the marginal ---------------------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class AdaptiveMarginal:
    """What a release says of a column.

    edges : positions of the cells on `axis`.
    counts, sds : records in each cell by least squares, and the noise of that; a count may be below 0.
    fitted : the same, at least 0, and 0 where noise explains it: what the distribution is made of.
    points : the values of the cells that are point masses; NaN for the others.
    narrow : cells that would have been cut again when the rounds ended: point masses or peaks may hide there.
    total, total_sd : records with a value. empty : records without, as far as they were counted.
    noise_sd : of one count of one round.
    rank_sd : the largest noise of a rank (records below a value), from the covariance of the fit.
    """

    axis: Axis
    edges: Integers
    counts: Reals
    sds: Reals
    fitted: Reals
    points: Reals
    narrow: Booleans
    total: float
    total_sd: float
    empty: float
    noise_sd: float
    rank_sd: float

    @classmethod
    def of(cls, released: Sequence[Counts], axis: Axis, *, n: int, rounds: Rounds) -> AdaptiveMarginal:
        """Post-processing of a release; `n` is the public size of the cohort."""
        cells = first_cells(axis, n=n, rounds=rounds)
        for turn, counts in enumerate(released[:-1]):
            cells = next_cells(cells, counts.counts, left=rounds.number - turn - 2, n=n, rounds=rounds)
        fit = Fit.of(released, rounds)
        solved, covariance = fit.solved(np.ones(cells.counts.size, dtype=bool))
        ends, sds = axis.values(cells.edges), np.sqrt(np.diag(covariance))
        widths = np.diff(ends)
        single = np.diff(cells.edges) == 1
        narrowed = (cells.narrowed >= rounds.narrowed) & _alone(solved, sds, ends)
        is_point = (single & (axis.whole | (cells.narrowed > 1))) | narrowed
        fitted = _supported(fit, solved, covariance, widths, is_point, rounds.noise)
        ranks = np.cumsum(np.cumsum(covariance, axis=0), axis=1)
        # Of F: the rank less its share of the total.
        share = np.cumsum(fitted) / max(float(fitted.sum()), 1e-300)
        spread = np.diag(ranks) - 2 * share * ranks[:, -1] + share**2 * ranks[-1, -1]
        where = [
            axis.roundest(low, high) if point else math.nan
            for (low, high), point in zip(itertools.pairwise(cells.edges.tolist()), is_point, strict=True)
        ]
        return cls(
            axis=axis,
            edges=cells.edges,
            counts=solved,
            sds=sds if rounds.scale else np.zeros(solved.size),
            fitted=fitted,
            points=np.array(where),
            narrow=~is_point & ~single & (((cells.narrowed > 1) & cells.unclear) | (fitted > 4 * _goal(n, rounds))),
            total=float(solved.sum()),
            total_sd=math.sqrt(max(float(ranks[-1, -1]), 0.0)) if rounds.scale else 0.0,
            empty=float(np.mean([turn.empty for turn in released])),
            noise_sd=rounds.sd,
            rank_sd=math.sqrt(max(float(spread.max()), 0.0)) if rounds.scale else 0.0,
        )

    # --- what it is worth -------------------------------------------------------------------------------------------

    @property
    def error(self) -> float:
        """How far F may be off, in 95 of 100 cases: noise of ranks, and half of what lies in a cell that was still
        becoming narrower when the rounds ended."""
        records = max(self.total, 1.0)
        unsure = float(self.fitted[self.narrow].max(initial=0.0)) / 2
        return min((2.5 * self.rank_sd + unsure) / records, 1.0)

    @property
    def mostly_noise(self) -> bool:
        """Are ranks uncertain by more than a tenth of the records (two standard deviations)? Such a column says where
        about its middle is, and little else."""
        return bool(self.total < 3 * self.total_sd or 2 * self.rank_sd > NOISY * max(self.total, 1e-300))

    @property
    def resolution(self) -> int:
        """Cells that hold something."""
        return int(np.count_nonzero(self.fitted))

    def point_masses(self) -> list[tuple[float, float, float]]:
        """(value, records, noise) of each point mass that stands out of its noise; integers for a count."""
        moved = 0.5 if self.axis.whole else 0.0
        clear = self.counts > np.maximum(POINT_SHARE * self.total, 3 * self.sds)
        return [
            (float(self.points[place] - moved), float(self.counts[place]), float(self.sds[place]))
            for place in np.flatnonzero((self.fitted > 0) & clear & self._stands_out)
        ]

    @property
    def _stands_out(self) -> Booleans:
        """Every integer is a point; one that holds no more than its neighbours is no point mass."""
        if not self.axis.whole:
            return ~np.isnan(self.points)
        density = self.fitted / np.diff(self.edges)
        beside = np.maximum(np.append(density[1:], 0.0), np.append(0.0, density[:-1]))
        return ~np.isnan(self.points) & (density > 2 * beside)  # type: ignore[no-any-return]

    def unclear(self) -> list[tuple[float, float, float]]:
        """(low, high, records) of the cells that the rounds did not tell apart, those with the most records first."""
        ends = self.axis.values(self.edges)
        places = np.flatnonzero(self.narrow & (self.fitted > POINT_SHARE * self.total))
        return [
            (float(ends[place]), float(ends[place + 1]), float(self.fitted[place]))
            for place in places[np.argsort(-self.fitted[places], kind="stable")]
        ]

    def in_words(self, label: Callable[[float], str] = "{:.6g}".format) -> str:
        """One line for a report; `label` writes a value."""
        points = [
            f"{label(value)} ({100 * held / max(self.total, 1.0):.1f} %)" for value, held, _ in self._largest_points()
        ]
        hidden = [
            f"{100 * held / max(self.total, 1.0):.0f} % in {label(low)} to {label(high)}"
            for low, high, held in self.unclear()[:3]
        ]
        parts = [f"{self.resolution} cells hold records, a rank is usually off by less than {2 * self.rank_sd:,.0f}"]
        if points:
            parts.append(f"point masses at {', '.join(points)}")
        if hidden:
            parts.append(f"not told apart: {', '.join(hidden)}")
        return "; ".join(parts)

    def _largest_points(self) -> list[tuple[float, float, float]]:
        return sorted(self.point_masses(), key=lambda point: -point[1])[:5]

    # --- as data ----------------------------------------------------------------------------------------------------

    def to_dict(self) -> dict[str, Any]:
        """Plain values for result.json; `from_dict` is its inverse."""
        stated: dict[str, Any] = {field.name: getattr(self, field.name) for field in fields(self)}
        arrays: dict[str, Any] = {
            name: value.tolist() for name, value in stated.items() if isinstance(value, np.ndarray)
        }
        arrays["points"] = [None if math.isnan(value) else value for value in arrays["points"]]
        return {**stated, **arrays, "axis": plain(self.axis)}

    @classmethod
    def from_dict(cls, stated: Mapping[str, Any]) -> AdaptiveMarginal:
        kinds = {"edges": np.int64, "narrow": np.bool_, "counts": np.float64, "sds": np.float64, "fitted": np.float64}
        arrays: dict[str, Any] = {name: np.array(stated[name], dtype=kind) for name, kind in kinds.items()}
        points = np.array([math.nan if value is None else value for value in stated["points"]], dtype=np.float64)
        return cls(**{**stated, **arrays, "points": points, "axis": record(Axis, stated["axis"], "an axis")})

    # --- as a distribution ------------------------------------------------------------------------------------------

    @cached_property
    def marginal(self) -> Marginal:
        """The distribution function, with jumps at the point masses; uniform on the domain if nothing stands out."""
        bounds = self.axis.values([0, self.axis.steps])
        if self.fitted.sum() <= 0:
            return Marginal(bounds, np.array([0.0, 1.0]))
        edges, running = self.axis.values(self.edges), 0.0
        density = self._densities(edges)
        points, cumulative = [edges[:1]], [np.zeros(1)]
        for place in np.flatnonzero(self.fitted > 0):
            mass = float(self.fitted[place])
            if not math.isnan(self.points[place]):
                knots, shares = np.full(2, self.points[place]), np.array([0.0, 1.0])
            else:
                knots, shares = _within(edges[place], edges[place + 1], mass, *density[place])
            points.append(knots)
            cumulative.append(running + mass * shares)
            running += mass
        points.append(edges[-1:])
        cumulative.append(np.array([running]))
        knots = np.maximum.accumulate(np.concatenate(points))
        shares = np.clip(np.maximum.accumulate(np.concatenate(cumulative) / running), 0.0, 1.0)
        shares[-1] = 1.0
        return Marginal(knots, shares)

    def redrawn(self, generator: np.random.Generator) -> AdaptiveMarginal:
        """As it might be with other noise: each cell that stood out moves by its own noise."""
        moved = self.fitted + np.where(self.fitted > 0, self.sds * generator.standard_normal(self.fitted.size), 0.0)
        return replace(self, fitted=np.maximum(moved, 0.0))

    def quantile(self, levels: ArrayLike) -> Reals:
        """Values of the column, integers for a count."""
        values = self.marginal.quantile(levels)
        return np.asarray(
            np.clip(np.floor(values), self.axis.lower, self.axis.upper - 1) if self.axis.whole else values
        )

    def sample(self, rows: int, generator: np.random.Generator) -> Reals:
        return self.quantile(generator.random(rows))

    def cuts(self, most: int) -> tuple[float, ...]:
        """Rising edges of at most `most` cells: a cell for each large point mass, the others of about equal mass.

        A point mass v of a continuous column has the cell [v, the next double), or at the upper bound [the double
        before, v].
        """
        lower, upper = (float(end) for end in self.axis.values([0, self.axis.steps]))
        marginal = self.marginal
        held = np.where(np.isnan(self.points), 0.0, self.fitted) / max(float(self.fitted.sum()), 1e-300)
        room = max((most - 1) // 2, 0)
        large = sorted(place for place in np.argsort(-held)[: room // 2 + 1] if held[place] > 1 / most)[:room]
        inner: set[float] = set()
        for value in (float(self.points[place]) for place in large):
            after = math.floor(value) + 1.0 if self.axis.whole else math.nextafter(value, math.inf)
            start = math.floor(value) if self.axis.whole else value
            inner |= {float(start), after} if start < upper else {math.nextafter(upper, -math.inf)}
        left = most - 1 - len(inner - {lower, upper})
        smooth = 1 - float(held[large].sum()) if large else 1.0
        if left > 0 and smooth > 0:
            levels = np.arange(1, left + 1) / (left + 1)
            inner |= set(self._smooth_quantiles(marginal, large, levels))
        least = 1.0 if self.axis.whole else 0.0
        edges = [lower]
        for edge in sorted(inner):
            if edge > edges[-1] and edge - edges[-1] >= least and edge < upper:
                edges.append(edge)
        return (*edges, upper)

    def equal_cells(self, number: int) -> Reals:
        """Edges of equal cells about the middle 99 % of the records, with a cell on each side for the others."""
        lower, upper = self.axis.values([0, self.axis.steps])
        low, high = self.marginal.quantile([0.005, 0.995])
        if low == high:
            low, high = lower, upper
        inner = np.linspace(low, high, max(number - 1, 2))
        if self.axis.whole:
            inner = np.floor(inner)
        return np.unique(np.clip(np.concatenate([[lower], inner, [upper]]), lower, upper))

    def _smooth_quantiles(self, marginal: Marginal, large: Sequence[int], levels: Reals) -> list[float]:
        """Quantiles of the column without its large point masses."""
        jumps = [
            (float(marginal.below(self.points[place])), float(marginal.cdf(self.points[place]))) for place in large
        ]
        smooth = 1 - sum(after - before for before, after in jumps)
        # From ranks without the jumps to ranks with them: each jump below is added.
        ranks = levels * smooth
        for before, after in sorted(jumps):
            ranks = np.where(ranks >= before, ranks + after - before, ranks)
        values = marginal.quantile(ranks)
        if self.axis.whole:
            values = np.floor(values) + 1
        return [float(value) for value in values]

    def _densities(self, edges: Reals) -> Reals:
        """For each cell the densities of the nearest cells with mass to its left and right; 0 for point masses."""
        smooth = ~self._stands_out & ~self.narrow
        own = np.where(smooth, self.fitted / np.diff(edges), 0.0)
        sides = np.zeros((own.size, 2))
        for side, order in ((0, range(own.size)), (1, range(own.size - 1, -1, -1))):
            nearest = 0.0
            for place in order:
                sides[place, side] = nearest
                if self.fitted[place] > 0:
                    nearest = own[place]
        return sides


def _within(low: float, high: float, mass: float, left: float, right: float) -> tuple[Reals, Reals]:
    """Knots of the distribution function inside one cell, and its share there: straight, or as a tail.

    A cell with much less density than its neighbour is the tail of it, as a rule: the neighbour's density f falls
    off as exp(-x / l), and l = mass / f makes the mass right.
    """
    width = high - low
    dense = max(left, right)
    if dense * width <= 4 * mass:
        return np.array([low, high]), np.array([0.0, 1.0])
    length = mass / dense
    away = np.append(_TAIL[_TAIL * length < width] * length, width)
    shares = np.expm1(-away / length) / math.expm1(-width / length)
    if left >= right:
        return np.concatenate([[low], low + away]), np.concatenate([[0.0], shares])
    return np.concatenate([high - away[::-1], [high]]), np.concatenate([1 - shares[::-1], [1.0]])


_TAIL = np.array([0.25, 0.5, 0.75, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0])
"""Knots of an exponential tail, in its lengths."""
