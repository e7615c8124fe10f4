"""Randomized response: a true answer is kept with a known chance, or another one is given instead.

All decisions are made with integers. An answer of k possible ones is kept if a uniform 64-bit word lies below
T = floor(2^64 e^epsilon / (e^epsilon + k - 1)), and is otherwise one of the k - 1 others, exactly uniformly. T is
rounded down, so the odds T (k - 1) / (2^64 - T) of the mechanism that really runs are never above e^epsilon.
The words that are drawn do not depend on the answers, nor does the order of the operations.
"""

from __future__ import annotations

from collections.abc import Sequence
from decimal import ROUND_FLOOR, Context, Decimal
from functools import lru_cache

import numpy as np
from numpy.typing import ArrayLike, NDArray

from colonnade.errors import BadPrivacyParameter, DomainError
from colonnade.privacy.randomness import Randomness

WORDS = 2**64
# Within these limits the kept answer stays the most likely one after rounding: e^epsilon / (e^epsilon + k - 1) is above
# 1 / k by about epsilon / k > 2^-64. Above 700 the exponent would be of no use to anybody.
SMALLEST_EPSILON, LARGEST_EPSILON = 1e-9, 700.0
MOST_CATEGORIES = 2**20


@lru_cache(maxsize=1024)
def keep_threshold(epsilon: float, categories: int = 2) -> int:
    """T: of the 2^64 words, how many keep the answer."""
    if not SMALLEST_EPSILON <= epsilon <= LARGEST_EPSILON:
        raise BadPrivacyParameter(f"epsilon must lie in [1e-9, 700] for randomized response, not {epsilon!r}.")
    if not 2 <= categories <= MOST_CATEGORIES:
        raise BadPrivacyParameter(f"categories must lie in [2, 2^20], not {categories!r}; group the rare ones.")
    context = Context(prec=400)
    odds = context.exp(Decimal(epsilon))
    kept = context.divide(context.multiply(odds, Decimal(WORDS)), context.add(odds, Decimal(categories - 1)))
    # 400 digits leave an error far below 1e-300; subtracting that much makes the floor safe.
    below = context.subtract(kept, Decimal("1e-300"))
    return int(below.to_integral_value(rounding=ROUND_FLOOR, context=context))


def randomized_response(bits: ArrayLike, *, epsilon: float, randomness: Randomness) -> NDArray[np.uint8]:
    """Each bit, kept with chance e^epsilon / (e^epsilon + 1), else flipped: epsilon-DP for each bit, `replace`."""
    return generalized_randomized_response(bits, categories=2, epsilon=epsilon, randomness=randomness).astype(np.uint8)


def generalized_randomized_response(
    codes: ArrayLike, *, categories: int, epsilon: float, randomness: Randomness
) -> NDArray[np.int64]:
    """Each code in 0 ... categories - 1, kept or else another one: epsilon-DP for each code, `replace`.

    Codes outside are clipped, never refused: an error would tell about the data.
    """
    given = np.asarray(codes)
    if given.dtype.kind not in "biu":
        raise DomainError(f"randomized response needs whole-number codes, not {given.dtype}; encode the column first.")
    threshold = keep_threshold(float(epsilon), int(categories))
    true = np.clip(given.astype(np.int64), 0, categories - 1)
    keep = randomness.words(true.size).reshape(true.shape) < np.uint64(threshold)
    # The others in order, the true one left out: uniform in 0 ... k - 2, moved up by one from the true code on.
    other = randomness.below(categories - 1, true.size).reshape(true.shape)
    other += other >= true
    return np.where(keep, true, other)


# --- estimators ------------------------------------------------------------------------------------------


def _chances(epsilon: float, categories: int) -> tuple[float, float]:
    """The chances p of the true answer and q of each other one, of the mechanism that really runs."""
    threshold = keep_threshold(float(epsilon), int(categories))
    return threshold / WORDS, (WORDS - threshold) / (WORDS * (categories - 1))


def debias_bits(ones: ArrayLike, *, total: int, epsilon: float) -> NDArray[np.float64]:
    """The number of true ones from the number of reported ones: (ones - total q) / (p - q), unbiased."""
    p, q = _chances(epsilon, 2)
    return np.asarray((np.asarray(ones, dtype=np.float64) - total * q) / (p - q))


def debias_bits_variance(*, total: int, epsilon: float) -> float:
    """The variance of `debias_bits`, total p q / (p - q)^2: the same for every truth."""
    p, q = _chances(epsilon, 2)
    return total * p * q / (p - q) ** 2


def debias_codes(counts: Sequence[int] | NDArray[np.int64], *, epsilon: float) -> NDArray[np.float64]:
    """The number of records in each category from the number of reports of each: unbiased, and the total is kept."""
    reported = np.asarray(counts, dtype=np.float64)
    p, q = _chances(epsilon, reported.size)
    return np.asarray((reported - reported.sum() * q) / (p - q))


def debias_codes_variance(counts: Sequence[int] | NDArray[np.float64], *, epsilon: float) -> NDArray[np.float64]:
    """The variance of `debias_codes` when the true counts are `counts`.

    A category of c records among n: (c p (1 - p) + (n - c) q (1 - q)) / (p - q)^2.
    """
    true = np.asarray(counts, dtype=np.float64)
    p, q = _chances(epsilon, true.size)
    return np.asarray((true * p * (1 - p) + (true.sum() - true) * q * (1 - q)) / (p - q) ** 2)
