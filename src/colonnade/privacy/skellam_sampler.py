"""Exact Skellam noise at any scale, from whole random words.

Sk(mu) is the difference of two independent Poisson(mu) variables: variance 2 mu, and closed under sums, so m
parties that each draw Sk(mu / m) add Sk(mu) together. With x = 2 mu its probabilities are p(k) = e^-x I_k(x).

Two ways, one guarantee. Up to mu = 2^16 a draw inverts a 127-bit cumulative table. Above it a draw is a rejection
from a staircase whose steps are whole counts out of 2^16; a double decides almost every proposal, with an error
bound, and the few that fall inside the bound are decided again with 400 bits. The law of a draw is within total
variation 2^-100 of Sk(mu), for every mu from 0 to 2^90; the comments below add that up. `skellam.claim.md` says
what this does not claim (constant time, for one).

Throughout G(n) = n asinh(n/x) - sqrt(n^2 + x^2) + x, the Legendre transform of log E e^(hX) = x (cosh h - 1). So
P(X >= n) <= e^-G(n) (Chernoff). It is also the integral of asinh(t/x) from 0 to n; since I_(k+1)/I_k <=
exp(-asinh((k + 1/2)/x)) (Amos 1974) and asinh is concave, I_b/I_a <= e^(G(a) - G(b)) for b >= a >= 0.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache
from typing import Any

import mpmath
import numba
import numpy as np
from numpy.typing import NDArray

from colonnade.errors import BadPrivacyParameter
from colonnade.privacy.randomness import Randomness

LARGEST_MU = 2**90
TABLE_UP_TO = 2**16

# Draws end where 2 e^-G <= 2^-120: about 13 standard deviations.
_TAIL = 121 * math.log(2)
_BATCH = 2**16

_COLUMN_BITS = 16
_GUIDE_BITS = 12


def skellam(randomness: Randomness, mu: float | Fraction, size: int | tuple[int, ...]) -> NDArray[np.int64]:
    """Independent draws of Sk(mu), variance 2 mu. `mu` is taken exactly: an int, a Fraction, or a float as it is."""
    exact = _checked(mu)
    out = np.zeros(size, dtype=np.int64)
    flat = out.reshape(-1)
    if exact == 0:
        return out
    if exact <= TABLE_UP_TO:
        table = _table(exact)
        for start in range(0, flat.size, _BATCH):
            part = flat[start : start + _BATCH]
            _invert(part, randomness.words(2 * part.size), table.high, table.low, table.guide)
    else:
        _reject(randomness, _staircase(exact), flat)
    return out


def largest_draw(mu: float | Fraction) -> int:
    """No draw of `skellam` is larger than this in magnitude (about 13 standard deviations): for the modulus."""
    exact = _checked(mu)
    if exact == 0:
        return 0
    if exact <= TABLE_UP_TO:
        return int(_table(exact).high.size)
    stairs = _staircase(exact)
    return (int(stairs.weights.size) << stairs.shift) - 1


def _checked(mu: float | Fraction) -> Fraction:
    try:
        exact = Fraction(mu)
    except (ValueError, OverflowError, TypeError) as error:
        raise BadPrivacyParameter(f"mu must be a finite number, not {mu!r}.") from error
    if not 0 <= exact <= LARGEST_MU:
        raise BadPrivacyParameter(f"mu must lie in [0, 2^90], not {mu!r}; choose a smaller scale gamma.")
    return exact


def _exponent(n: int, x: float) -> float:
    """G(n), in a form without cancellation for n << x."""
    return n * (math.asinh(n / x) - n / (math.hypot(n, x) + x))


def reach(mu: Fraction, nats: float) -> int:
    """The smallest n with G(n) >= nats, so that P(|Sk(mu)| >= n) <= 2 e^-nats."""
    # A larger x lowers G, so lifting x is safe: it keeps n / x finite. The 1e-9 is far above the rounding of G.
    x = max(float(2 * mu), 1e-300)
    low, high = 0, 1
    while _exponent(high, x) < nats * (1 + 1e-9):
        low, high = high, 2 * high
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if _exponent(middle, x) < nats * (1 + 1e-9) else (low, middle)
    return high


# --- mu <= 2^16: inversion of a cumulative table -----------------------------------------------------------------


def weights(mu: Fraction, largest: int) -> tuple[list[int], int]:
    """Integers w_0 ... w_largest and a total W with p(k) = w_k / W, relative error below 2^-170 (mu up to 2^26).

    Miller's backward recurrence I_(k-1) = I_(k+1) + (k / mu) I_k from y_(K+1) = 0, with the law's own sum as the
    norm. Starting from 0 adds a multiple of the second solution, (-1)^k K_k. Since K_k grows with k, the relative
    error at k <= largest is at most I_(K+1) / I_largest <= e^(G(largest) - G(K+1)) <= 2^-200, and the error of the
    sum at most 2 K p(K+1) <= 2^-178. All terms are positive and the integers stay above 2^240, so K <= 2^20 roundings
    add less than 2^-219.
    """
    last = reach(mu, _exponent(largest, max(float(2 * mu), 1e-300)) + 200 * math.log(2))
    above, current = 0, 1 << 256
    integers = [0] * (largest + 1)
    total = 0
    for k in range(last, 0, -1):
        total += 2 * current
        if k <= largest:
            integers[k] = current
        above, current = current, above + k * mu.denominator * current // mu.numerator
    integers[0] = current
    return integers, total + current


@dataclass(frozen=True, eq=False)
class _Table:
    """floor(2^127 P(|X| <= m)) for m = 0, 1, ...: the upper 64 and the lower 63 bits; `guide` starts the search."""

    high: NDArray[np.uint64]
    low: NDArray[np.uint64]
    guide: NDArray[np.int64]


@lru_cache(maxsize=32)
def _table(mu: Fraction) -> _Table:
    """Total variation: at most 2^14 thresholds, each off by 2^-127 + 2^-170, and a tail of 2^-120: below 2^-111."""
    largest = reach(mu, _TAIL)
    mass, total = weights(mu, largest)
    cumulative, thresholds = 0, []
    for m in range(largest):
        cumulative += mass[m] if m == 0 else 2 * mass[m]
        thresholds.append(min((cumulative << 127) // total, (1 << 127) - 1))
    high = np.array([t >> 63 for t in thresholds], dtype=np.uint64)
    low = np.array([t & (2**63 - 1) for t in thresholds], dtype=np.uint64)
    starts = np.arange(2**_GUIDE_BITS, dtype=np.uint64) << np.uint64(64 - _GUIDE_BITS)
    return _Table(high, low, np.searchsorted(high, starts, side="left").astype(np.int64))


@numba.njit(nogil=True, cache=True)
def _invert(
    out: NDArray[np.int64],
    words: NDArray[np.uint64],
    high: NDArray[np.uint64],
    low: NDArray[np.uint64],
    guide: NDArray[np.int64],
) -> None:
    """Each pair of words is a 127-bit uniform number and a sign."""
    for i in range(out.size):
        upper = words[2 * i]
        lower = words[2 * i + 1] >> np.uint64(1)
        m = guide[upper >> np.uint64(64 - _GUIDE_BITS)]
        while m < high.size and (high[m] < upper or (high[m] == upper and low[m] <= lower)):
            m += 1
        out[i] = -m if words[2 * i + 1] & np.uint64(1) else m


# --- mu > 2^16: rejection from a staircase ------------------------------------------------------------------------
#
# Moving the contour of p(k) = (1/2 pi) int e^(x (cos z - 1) - i k z) dz through the saddle point gives, exactly,
#     p(n) = e^-G(n) J(s, n),  J(s, n) = (1/2 pi) int_(-pi)^(pi) e^(-s (1 - cos t)) cos(n (t - sin t)) dt,
# with s = sqrt(n^2 + x^2). So with h(s) = sqrt(2 pi s) e^-s I_0(s) = sqrt(2 pi s) J(s, 0) and a = n / x,
#     log p(n)/p(0) = -G(n) - log(1 + a^2)/4 + log h(s)/h(x) + log(1 - e).
# The doubles drop the last two terms. For n^2 <= 171 x, x >= 2^17 (n stays below 13.05 standard deviations):
#   * 0 <= e <= (n^2/72) <t^6>, by cos v >= 1 - v^2/2 and t - sin t <= t^3/6, where <.> averages with the weight
#     e^(-s (1 - cos t)). By 2 t^2/pi^2 <= 1 - cos t <= t^2/2 it is <t^6> <= 15 (pi^2/4)^3.5 / s^3 < 355 / s^3;
#     so -log(1 - e) < 844 / x^2.
#   * (log h)' = 1/(2s) + I_1/I_0 - 1, and Amos' s/(1/2 + sqrt(s^2 + 9/4)) <= I_1/I_0 <= s/(1/2 + sqrt(s^2 + 1/4))
#     bounds it by 9/(8 s^2); s - x <= n^2/(2x); so |log h(s)/h(x)| <= (9/16) n^2/x^3 < 97 / x^2.
# Together below 1024 / x^2. Rounding: G < 86 through a dozen operations, and logarithms below 45 from libm (2 ulp),
# make less than 2^-41; 2^-38 is allowed for it.


@dataclass(frozen=True, eq=False)
class _Staircase:
    """An envelope of p(n)/p(0) over magnitudes n: as high as `unit * weights[q]` from q 2^shift to (q+1) 2^shift.

    `block[column]` holds q in `weights[q]` of the 2^16 columns, so a uniform column and uniform low bits are a draw
    from the envelope with no rounding at all. `sure[q] / 2^64` is below p(n) / (p(0) height) on the whole block.
    """

    mu: Fraction
    x: float
    shift: int
    margin: float
    unit: float
    weights: NDArray[np.int64]
    block: NDArray[np.uint16]
    log_height: NDArray[np.float64]
    sure: NDArray[np.uint64]


@lru_cache(maxsize=32)
def _staircase(mu: Fraction) -> _Staircase:
    x = float(2 * mu)
    shift = math.frexp(math.sqrt(x))[1] - 7  # 64 to 128 blocks a standard deviation
    count = -(-reach(mu, _TAIL) // 2**shift)
    margin = 2.0**-38 + 1024 / (x * x)
    edges = np.array([_log_ratio(float(q << shift), x) for q in range(count + 1)])
    # p falls with n (I_n does), so its largest value on a block is at the left edge, and the next edge is below all.
    top = np.exp(edges[:-1] + 2 * margin)
    columns = 2**_COLUMN_BITS
    heights = np.ceil(top * ((columns - count) / top.sum())).astype(np.int64)
    heights[0] += columns - heights.sum()  # never negative: rounding up adds less than `count` columns
    unit = float(np.max(top / heights)) * (1 + 2.0**-50)
    log_height = np.log(heights) + math.log(unit)
    sure = np.exp(edges[1:] - log_height - 2 * margin) * 2.0**64  # below 2^64 by far more than a rounding
    return _Staircase(
        mu=mu,
        x=x,
        shift=shift,
        margin=margin,
        unit=unit,
        weights=heights,
        block=np.repeat(np.arange(count, dtype=np.uint16), heights),
        log_height=log_height,
        sure=sure.astype(np.uint64),
    )


@numba.njit(nogil=True, cache=True)
def _log_ratio(n: float, x: float) -> float:
    """log p(n)/p(0) to within 1024 / x^2 + 2^-38: the alternating series of -G(n) and of -log(1 + a^2)/4."""
    a2 = (n / x) * (n / x)
    series = 0.5 + a2 * (-1.0 / 24 + a2 * (1.0 / 80 + a2 * (-5.0 / 896 + a2 * (7.0 / 2304))))
    logarithm = a2 * (0.25 + a2 * (-0.125 + a2 * (1.0 / 12 - a2 * (1.0 / 16))))
    return -(n * (n / x)) * series - logarithm


@numba.njit(nogil=True, cache=True)
def _decide(n: int, u: int, x: float, log_height: float, margin: float) -> int:
    """1 to accept, 0 to reject, 2 if the doubles cannot tell, for a uniform number in [u, u + 1) / 2^64."""
    gap = _log_ratio(float(n), x) - log_height + 64 * math.log(2.0)
    if math.log(float(u) + 1.0) < gap - margin:
        return 1
    if u > 0 and math.log(float(u)) > gap + margin:
        return 0
    return 2


@numba.njit(nogil=True, cache=True)
def _propose(
    out: NDArray[np.int64],
    start: int,
    words: NDArray[np.uint64],
    used: int,
    x: float,
    shift: int,
    margin: float,
    block: NDArray[np.uint16],
    log_height: NDArray[np.float64],
    sure: NDArray[np.uint64],
) -> tuple[int, int, bool]:
    """Fill `out` from `start`, until it is full, the words are spent, or the last proposal read is undecided."""
    low_bits = (np.uint64(1) << np.uint64(shift)) - np.uint64(1)
    filled = start
    while filled < out.size and used + 1 < words.size:
        # Disjoint bits of one word: 16 for the column, 1 for the sign, `shift` <= 40 for the place in the block.
        word, u = words[used], words[used + 1]
        used += 2
        q = block[word >> np.uint64(64 - _COLUMN_BITS)]
        n = int((np.int64(q) << shift) + np.int64(word & low_bits))
        negative = (word >> np.uint64(63 - _COLUMN_BITS)) & np.uint64(1)
        if n == 0 and negative:
            continue
        if u >= sure[q]:
            decision = _decide(n, u, x, log_height[q], margin)
            if decision == 0:
                continue
            if decision == 2:
                return filled, used, True
        out[filled] = -n if negative else n
        filled += 1
    return filled, used, False


def _reject(randomness: Randomness, stairs: _Staircase, out: NDArray[np.int64]) -> None:
    filled = 0
    while filled < out.size:
        wanted = min(out.size - filled, _BATCH)
        words = randomness.words(2 * (wanted + wanted // 16 + 16))
        used = 0
        while filled < out.size and used < words.size:
            filled, used, undecided = _propose(
                out,
                filled,
                words,
                used,
                stairs.x,
                stairs.shift,
                stairs.margin,
                stairs.block,
                stairs.log_height,
                stairs.sure,
            )
            if undecided:
                word, u = int(words[used - 2]), int(words[used - 1])
                q = int(stairs.block[word >> (64 - _COLUMN_BITS)])
                n = (q << stairs.shift) + (word & (2**stairs.shift - 1))
                if _accept(stairs, n, q, u, randomness):
                    out[filled] = -n if word >> (63 - _COLUMN_BITS) & 1 else n
                    filled += 1


def _accept(stairs: _Staircase, n: int, q: int, u: int, randomness: Randomness) -> bool:
    """The decision again, with 192 bits of the uniform number and a ratio whose relative error is below 2^-150."""
    uniform = (u << 128) | int.from_bytes(randomness.bytes(16), "little")
    height = Fraction(stairs.unit) * int(stairs.weights[q])
    return Fraction(uniform, 2**192) < exact_ratio(stairs.mu, n) / height


def exact_ratio(mu: Fraction, n: int) -> Fraction:
    """p(n) / p(0) for mu >= 2^16 and |n| within 13.05 standard deviations, relative error below 2^-150.

    J(s, n) is the probability that a tilted Skellam variable (Poisson(mu e^y) - Poisson(mu e^-y), sinh y = n/x) is
    equal to its mean n; its variance is s. The trapezoid rule with N nodes adds exactly the probabilities of n + jN,
    j != 0. For N = 24 sqrt(s) and h = N / s Chernoff's exponent is N h - s (cosh h - 1) - n (sinh h - h) > 200 nats,
    so they are below 2^-280, and J > 2^-48. The nodes left out have 1 - cos t >= 2 t^2/pi^2 with 2 s t^2/pi^2 >= 153
    nats: together below 2^-219.
    """
    context = mpmath.MPContext()  # its own, because the precision of the shared one belongs to all threads
    context.prec = 400
    x = 2 * context.mpf(mu.numerator) / mu.denominator

    def at_the_mean(k: int) -> Any:
        s = context.sqrt(x * x + k * k)
        nodes = int(context.ceil(24 * context.sqrt(s)))
        inside = int(context.ceil(nodes * context.sqrt(context.mpf(153) / (8 * s))))  # 2 s (2 pi j/N)^2/pi^2 < 153
        total = context.mpf(1)
        for j in range(1, inside + 1):
            t = 2 * context.pi * j / nodes
            half = context.sin(t / 2)
            total += 2 * context.exp(-2 * s * half * half) * context.cos(k * (t - context.sin(t)))
        return total / nodes

    exponent = n * context.asinh(n / x) - context.sqrt(x * x + n * n) + x
    ratio = context.exp(-exponent) * at_the_mean(n) / at_the_mean(0)
    return Fraction(int(context.ldexp(ratio, 400)), 2**400)
