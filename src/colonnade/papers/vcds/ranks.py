"""Perturbed ranks of one column: the copula paper's debiased randomized response, exactly, and a fast equivalent.

- `noise="response"` is the paper's mechanism (its equations 2.2 and 2.3). Each of the N (N - 1) / 2 comparisons of two
  records is flipped with chance theta = 1 / (1 + e^eps0). A tie is answered by a fair coin first. The release is
  each record's number of wins; debiased, its mean is the mid-rank.
- `noise="skellam"` adds Skellam noise to doubled mid-ranks, which are integers. It has the same mean, variance
  and covariance as flipped comparisons without ties, and it has its own Renyi guarantee.

One record is in N - 1 comparisons of every column, so the budget of one comparison is **not** what a record spends.
`rank_cost` states all three units; `ranks.claim.md` proves them and says what the paper's epsilon does not mean.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal

import numba
import numpy as np
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from numpy.typing import ArrayLike, NDArray
from scipy import optimize, stats

from colonnade.errors import BadPrivacyParameter, DomainError, EmptyParty
from colonnade.privacy.cost import Cost, RandomizedResponse, Unit
from colonnade.privacy.noise import WORDS as ALL_WORDS
from colonnade.privacy.noise import keep_threshold
from colonnade.privacy.randomness import Randomness, _Words
from colonnade.privacy.skellam import Skellam
from colonnade.privacy.skellam_sampler import skellam

Split = Literal["theorem", "none"]
Noise = Literal["response", "skellam"]
Reals = NDArray[np.float64]
Integers = NDArray[np.int64]


# --- budgets and costs -----------------------------------------------------------------------------------


def comparison_budget(epsilon_1: float, *, split: Split = "theorem", parties: int, total_columns: int) -> float:
    """eps0, the budget of one comparison.

    `split="theorem"`: Theorem 1 spreads it over the (p + 1) / K columns of a party, eps0 = epsilon_1 K / (p + 1).
    `split="none"`: every comparison gets epsilon_1, which is what the paper's tables need to be reproduced.
    """
    if not 1 <= parties <= total_columns:
        raise BadPrivacyParameter(f"{parties} parties cannot hold {total_columns} columns; each holds at least one.")
    return float(epsilon_1) * parties / total_columns if split == "theorem" else float(epsilon_1)


def rank_cost(n: int, columns: int, epsilon_0: float, *, noise: Noise = "response", unit: Unit = "record") -> Cost:
    """What the perturbed ranks of `columns` columns of `n` present records cost.

    - `comparison` is the paper's nominal epsilon: one pair of records, `columns` answers. It protects no record.
    - `record` and `block` count every answer about the record: (n - 1) columns of them. (Count a party's own columns;
      the total of a record composes over the parties.) The cost is that many randomized responses, so the pure
      epsilon is (n - 1) columns eps0 and the Renyi curve lies below that of `rank_rho`.

    Who is present is held fixed, so the relation is `replace`, which bounds `zero-out` too.
    """
    _check_shape(n, columns)
    if noise == "response":
        keep_threshold(float(epsilon_0))  # refuses what the mechanism itself would refuse
        count = columns if unit == "comparison" else (n - 1) * columns
        return RandomizedResponse(epsilon_0, relation="replace", unit=unit, count=count)
    if unit == "comparison":
        raise BadPrivacyParameter("Skellam noise answers no single comparison; ask for its cost per record or block.")
    # A replaced record moves each other doubled mid-rank by at most 2 and its own by at most their sum.
    return Skellam(
        _skellam_mu(n, epsilon_0),
        delta_1=4 * (n - 1),
        delta_2=math.nextafter(2 * math.sqrt(n * (n - 1)), math.inf),
        parties=1,
        relation="replace",
        unit=unit,
        count=columns,
    )


def rank_rho(n: int, columns: int, epsilon_0: float) -> float:
    """The zCDP bound of all answers about a record, (n - 1) columns eps0^2 / 2 (Bun and Steinke 2016)."""
    _check_shape(n, columns)
    return (n - 1) * columns * epsilon_0 * epsilon_0 / 2


@dataclass(frozen=True)
class BinomialProfile:
    """The exact delta(epsilon) of `answers` randomized responses that a neighbour flips all together.

    With b of them flipped, b ~ Binomial(answers, theta), the loss is eps0 (answers - 2 b). Both directions are alike.
    """

    answers: int
    epsilon_0: float

    @cached_property
    def _losses(self) -> tuple[Reals, Reals, float]:
        theta = 1 / (1 + math.exp(self.epsilon_0))
        mean, sd = self.answers * theta, math.sqrt(self.answers * theta * (1 - theta))
        first, last = max(0, math.floor(mean - 14 * sd)), min(self.answers, math.ceil(mean + 14 * sd))
        flipped = np.arange(first, last + 1)
        # Losses beyond 14 sd count as infinite.
        beyond = float(stats.binom.cdf(first - 1, self.answers, theta)) if first else 0.0
        return (
            np.asarray(self.epsilon_0 * (self.answers - 2.0 * flipped), dtype=np.float64),
            stats.binom.pmf(flipped, self.answers, theta),
            beyond,
        )

    def delta(self, epsilon: ArrayLike) -> Reals:
        """The least delta at each epsilon."""
        losses, chances, beyond = self._losses
        wanted = np.atleast_1d(np.asarray(epsilon, dtype=np.float64))
        return np.array([float(-np.expm1(np.minimum(e - losses, 0.0)) @ chances) + beyond for e in wanted])

    def epsilon(self, delta: float) -> float:
        """The least epsilon at `delta`."""
        if not 0 < delta < 1:
            raise BadPrivacyParameter(f"delta must lie in (0, 1), not {delta!r}; choose it well below 1/n, say 1e-6.")
        if self.delta(0.0)[0] <= delta:
            return 0.0
        return float(optimize.brentq(lambda e: self.delta(e)[0] - delta, 0.0, self._losses[0][0], xtol=1e-10))


def binomial_profile(n: int, columns: int, epsilon_0: float) -> BinomialProfile:
    """The exact privacy of a record's `columns` columns of ranks: (n - 1) columns flipped answers at worst."""
    _check_shape(n, columns)
    return BinomialProfile((n - 1) * columns, float(epsilon_0))


# --- ranks -----------------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class PerturbedRanks:
    """The release: integers, one for each present record, in the order of the records.

    `response`: the record's noisy number of wins. `skellam`: its noisy doubled mid-rank.
    """

    released: Integers
    epsilon_0: float
    noise: Noise = "response"

    @property
    def debiased(self) -> Reals:
        """Unbiased for the mid-ranks 1 ... n; they sum to n (n + 1) / 2 exactly, as true ranks do."""
        n = self.released.size
        if self.noise == "response":
            keep, gap = _chances(self.epsilon_0)
            return np.asarray(1 + (self.released - (1 - keep) * (n - 1)) / gap)
        # The true sum is public; centring on it makes the covariance that of comparisons.
        return np.asarray(self.released / 2 + ((n + 1) / 2 - self.released.mean() / 2))


def rank_noise_variance(n: int, epsilon_0: float, *, noise: Noise = "response", cohort: int | None = None) -> float:
    """(n - 1) s^2 with s^2 = theta (1 - theta) / (1 - 2 theta)^2; two records covary by -s^2, if not tied.

    Each other record of the same value adds 1/4 under flipped comparisons: a fair coin has variance 1/4 / (1 - 2
    theta)^2 once debiased, and that is s^2 + 1/4. For Skellam noise n s^2 (or `cohort` s^2) is rounded up to the next
    half before centring.
    """
    if noise == "skellam":
        return _skellam_mu(n if cohort is None else cohort, epsilon_0) / 2 * (1 - 1 / n)
    return (n - 1) * _pair_variance(epsilon_0)


def doubled_mid_ranks(values: ArrayLike) -> Integers:
    """2 (number below) + (number equal, itself included) + 1: twice the mid-rank, an integer."""
    order, start, end = _runs(_checked(values))
    doubled = np.empty(order.size, dtype=np.int64)
    doubled[order] = start + end + 1
    return doubled


def perturbed_ranks(
    values: ArrayLike,
    *,
    epsilon_0: float,
    noise: Noise = "response",
    cohort: int | None = None,
    randomness: Randomness,
) -> PerturbedRanks:
    """The ranks of the present records' values, perturbed; `rank_cost` states what they cost.

    Where the number of present records is not public, state the public size of the `cohort`: Skellam noise is then
    made for that many, and `rank_cost(cohort, ...)` bounds the release, because fewer records move less. (Flipped
    comparisons need nothing: fewer records are fewer answers.)

    A 32-byte key from `randomness` is expanded by AES-256 in counter mode, as all comparisons of 72,000 records
    need two gigabytes of random bits.
    """
    given = _checked(values)
    stream = Expanded(randomness)
    if cohort is not None and cohort < given.size:
        raise BadPrivacyParameter(f"a cohort of {cohort} records cannot have {given.size} of them present.")
    if noise == "skellam":
        mu = _skellam_mu(given.size if cohort is None else cohort, epsilon_0)
        return PerturbedRanks(doubled_mid_ranks(given) + skellam(stream, mu, given.size), float(epsilon_0), noise)
    order, _, end = _runs(given)
    won_from_above, lost_to_below = flips(end, ALL_WORDS - keep_threshold(float(epsilon_0)), stream)
    wins = np.empty(order.size, dtype=np.int64)
    # In sorted order a record wins against all before it and loses to all after it, but for the flips.
    wins[order] = np.arange(order.size) - lost_to_below + won_from_above
    return PerturbedRanks(wins, float(epsilon_0), noise)


def _checked(values: ArrayLike) -> Reals:
    given = np.asarray(values, dtype=np.float64)
    if given.ndim != 1:
        raise DomainError(f"ranks are of one column at a time, not of an array of shape {given.shape}.")
    if given.size < 2:
        raise EmptyParty(f"ranks compare two records, and {given.size} are present; leave this column out.")
    if np.isnan(given).any():
        raise DomainError("a missing value has no rank; give the values of the present records only.")
    return given


def _runs(values: Reals) -> tuple[NDArray[np.intp], Integers, Integers]:
    """The sorting order, and for each sorted position the start and the end of its run of equal values."""
    order = np.argsort(values)
    placed = values[order]
    first = np.flatnonzero(np.concatenate([[True], placed[1:] != placed[:-1]]))
    last = np.append(first[1:], placed.size)
    return order, np.repeat(first, last - first), np.repeat(last, last - first)


def _chances(epsilon_0: float) -> tuple[float, float]:
    """1 - theta and 1 - 2 theta of the mechanism that really runs, without cancellation."""
    threshold = keep_threshold(float(epsilon_0))
    return threshold / ALL_WORDS, (2 * threshold - ALL_WORDS) / ALL_WORDS


def _pair_variance(epsilon_0: float) -> float:
    keep, gap = _chances(epsilon_0)
    return keep * (1 - keep) / gap**2


def _skellam_mu(n: int, epsilon_0: float) -> int:
    """Doubled ranks need the variance 2 mu = 4 n s^2 before they are centred."""
    return max(1, math.ceil(2 * n * _pair_variance(epsilon_0)))


def _check_shape(n: int, columns: int) -> None:
    if n < 2 or columns < 1:
        raise BadPrivacyParameter(f"ranks need at least 2 records and 1 column, not {n} and {columns}.")


# --- all pairwise comparisons of one column, randomized: exact, bit-packed ---------------------------------
#
# 64 comparisons share a machine word. A flip of chance theta is the event that a uniform 64-bit number lies below an
# integer threshold; its bits are compared from the most significant one on, for all 64 comparisons at once. Sums over
# rows count bits; sums over columns are bit-sliced binary counters. The flips do not depend on the data but for ties.

# One row of a block: 32 words are 2048 comparisons at a time; eight bits of each decide all but 1 in 256 of them.
_LANES, _LEVELS = 32, 8
_BUFFER = 1 << 17  # random words drawn at once, at most: a megabyte


class Expanded(_Words):
    """A stream keyed by 32 bytes of a source: AES-256 in counter mode."""

    def __init__(self, source: Randomness) -> None:
        self.simulated = source.simulated
        self._stream = Cipher(algorithms.AES(source.bytes(32)), modes.CTR(bytes(16))).encryptor()

    def bytes(self, count: int) -> bytes:
        return self._stream.update(bytes(count))

    def fill(self, zeros: bytearray, out: bytearray) -> None:
        self._stream.update_into(zeros, out)


def flips(tie_end: Integers, threshold: int, stream: Expanded) -> tuple[Integers, Integers]:
    """The row and column sums of the flips above the diagonal, for records in sorted order.

    Pair (a, b), a < b, is flipped if a uniform 64-bit number lies below `threshold`, or, within a tie (b < tie_end[a]),
    by a fair coin. Nothing quadratic is stored: a block of columns keeps bit-sliced counters.
    """
    n = tie_end.size
    rows, columns = np.zeros(n, dtype=np.int64), np.zeros(n, dtype=np.int64)
    size = min(_BUFFER, (64 + (_LEVELS + 4) * n) * _LANES)
    zeros, raw = bytearray(8 * size), bytearray(8 * size + 16)
    bits = np.frombuffer(raw, dtype=np.uint64, count=size)
    for base in range(0, n, 64 * _LANES):
        width = min(64 * _LANES, n - base)
        sums = np.zeros((2, n.bit_length() + 1, _LANES), dtype=np.uint64)
        row = 0
        while row < base + width:
            stream.fill(zeros, raw)
            row = _flip_rows(bits, np.uint64(threshold), tie_end, base, width, row, rows, sums)
        _add_columns(sums, base + width, columns[base : base + width])
    return rows, columns


@numba.njit(inline="always")
def _ones(x: Any) -> Any:
    """The number of set bits; the compiler knows this form."""
    x = x - ((x >> np.uint64(1)) & np.uint64(0x5555555555555555))
    x = (x & np.uint64(0x3333333333333333)) + ((x >> np.uint64(2)) & np.uint64(0x3333333333333333))
    x = (x + (x >> np.uint64(4))) & np.uint64(0x0F0F0F0F0F0F0F0F)
    return np.int64((x * np.uint64(0x0101010101010101)) >> np.uint64(56))


@numba.njit(inline="always")
def _before(limit: Any, lane: Any) -> Any:
    """The bits of a lane that stand for columns of the block before `limit`."""
    left = limit - 64 * lane
    if left <= 0:
        return np.uint64(0)
    if left >= 64:
        return ~np.uint64(0)
    return (np.uint64(1) << np.uint64(left)) - np.uint64(1)


@numba.njit(cache=True)
def _flip_rows(
    bits: Any, threshold: Any, tie_end: Any, base: int, width: int, row: int, rows: Any, sums: Any
) -> int:  # pragma: no cover - compiled
    """Rows from `row` on, until the block or the random words end; the next row.

    u < threshold is decided for 64 comparisons at once, from the most significant bit on. With r the inverted bits of
    u, from the last level to the first: less = r | less where the threshold's bit is 1, r & less where it is 0.
    The comparisons whose first bits all equal the threshold's go on with further words, one lane at a time; a row
    starts only if the words are enough for the worst case, so no decision depends on where a buffer ends.
    Column sums: sums[0] are settled bits of weight 2^k, sums[1] one addend that waits for its partner.
    """
    less, undecided = np.empty(_LANES, np.uint64), np.empty(_LANES, np.uint64)
    word = 0
    while row < base + width and word + 64 * _LANES <= bits.size:
        less[:] = np.uint64(0)
        undecided[:] = ~np.uint64(0)
        for level in range(_LEVELS - 1, -1, -1):
            drawn = bits[word + level * _LANES : word + (level + 1) * _LANES]
            if (threshold >> np.uint64(63 - level)) & np.uint64(1):
                for lane in range(_LANES):
                    less[lane] |= drawn[lane]
                    undecided[lane] &= ~drawn[lane]
            else:
                for lane in range(_LANES):
                    less[lane] &= drawn[lane]
                    undecided[lane] &= drawn[lane]
        coins = bits[word : word + _LANES]
        word += _LEVELS * _LANES
        for lane in range(_LANES):
            still = undecided[lane]
            level = _LEVELS
            while still and level < 64:
                if (threshold >> np.uint64(63 - level)) & np.uint64(1):
                    less[lane] |= still & bits[word]
                    still &= ~bits[word]
                else:
                    still &= bits[word]
                word += 1
                level += 1
        if row >= base or tie_end[row] > base or width < 64 * _LANES:
            for lane in range(_LANES):
                tied = _before(tie_end[row] - base, lane)
                pairs = _before(width, lane) & ~_before(row + 1 - base, lane)
                less[lane] = ((less[lane] & ~tied) | (coins[lane] & tied)) & pairs
        total = 0
        for lane in range(_LANES):
            total += _ones(less[lane])
        rows[row] += total
        # As in a binary counter, the addend of row r meets a waiting one at each low bit of r that is set.
        weight = 0
        while (row >> weight) & 1:
            settled, waiting = sums[0, weight], sums[1, weight]
            for lane in range(_LANES):
                x, y, z = settled[lane], waiting[lane], less[lane]
                settled[lane] = x ^ y ^ z
                less[lane] = (x & y) | (z & (x ^ y))
            weight += 1
        sums[1, weight, :] = less
        row += 1
    return row


@numba.njit(cache=True)
def _add_columns(sums: Any, count: int, columns: Any) -> None:  # pragma: no cover - compiled
    """Add the bit-sliced sums of `count` rows; an addend waits at each set bit of `count`."""
    for weight in range(sums.shape[1]):
        waits = (count >> weight) & 1
        for i in range(columns.size):
            lane, bit = i // 64, np.uint64(i % 64)
            columns[i] += np.int64((sums[0, weight, lane] >> bit) & np.uint64(1)) << weight
            if waits:
                columns[i] += np.int64((sums[1, weight, lane] >> bit) & np.uint64(1)) << weight
