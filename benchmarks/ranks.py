"""Perturbed ranks at the size of the copula paper's data, 71,827 records x 55 columns, in CPU seconds on one thread.

- exact: every one of the 2.6 billion comparisons of a column is randomized; all 55 columns under 120 CPU seconds;
- a plain compiled double loop over the same comparisons, with the cheapest generator there is (splitmix, which protects
  nobody), takes at least 3 times as long;
- Skellam noise on doubled mid-ranks is at least 100 times faster than exact.

The columns are in turn continuous, a count with ties, and binary. QUICK=1 measures three of them and extrapolates.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import numba
import numpy as np
from numpy.typing import NDArray
from scipy import stats
from threadpoolctl import threadpool_limits

from benchmarks.common import Page
from colonnade.papers.vcds.ranks import Noise, perturbed_ranks, rank_noise_variance
from colonnade.privacy.randomness import SystemRandomness

RECORDS, COLUMNS, EPSILON_0 = 71_827, 55, 0.5 * 5 / 101
SECONDS, OVER_LOOP, OVER_EXACT = 120.0, 3.0, 100.0


@numba.njit
def plain_loop(places: Any, threshold: Any) -> Any:
    """One comparison after the other."""
    n = places.size
    wins = np.zeros(n, np.int64)
    state = np.uint64(1)
    for i in range(n):
        own = 0
        for k in range(i + 1, n):
            state += np.uint64(0x9E3779B97F4A7C15)
            z = state
            z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
            z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
            won = (places[i] > places[k]) ^ ((z ^ (z >> np.uint64(31))) < threshold)
            own += won
            wins[k] += 1 - won
        wins[i] += own
    return wins


def cpu_seconds(work: Callable[[], object]) -> float:
    start = time.process_time()
    work()
    return time.process_time() - start


NOISES: tuple[Noise, ...] = ("response", "skellam")


def noise_ratio(values: NDArray[np.float64], noise: Noise) -> dict[str, float]:
    """Of the squared errors of perturbed ranks to the stated variance."""
    ranks = perturbed_ranks(values, epsilon_0=EPSILON_0, noise=noise, randomness=SystemRandomness())
    errors = ranks.debiased - stats.rankdata(values)
    return {"ratio": float((errors**2).mean()) / rank_noise_variance(RECORDS, EPSILON_0, noise=noise)}


def main() -> int:
    quick = bool(os.environ.get("QUICK"))
    page = Page("ranks", "Pairwise randomized response, exact and by Skellam noise")
    generator, randomness = np.random.default_rng(0), SystemRandomness()
    kinds = [
        generator.standard_normal(RECORDS),
        generator.poisson(3.0, RECORDS).astype(np.float64),
        (generator.random(RECORDS) < 0.3).astype(np.float64),
    ]
    perturbed_ranks(kinds[0][:100], epsilon_0=EPSILON_0, randomness=randomness)  # compiles
    perturbed_ranks(kinds[0], epsilon_0=EPSILON_0, noise="skellam", randomness=randomness)
    plain_loop(np.arange(10.0), np.uint64(1))

    ratios = [
        page.draws.get(("noise variance over the stated one", noise), draw, partial(noise_ratio, kinds[0], noise))[
            "ratio"
        ]
        for noise in NOISES
        for draw in range(2)
    ]
    measured = 3 if quick else COLUMNS
    exact = [
        cpu_seconds(lambda: perturbed_ranks(kinds[j % 3], epsilon_0=EPSILON_0, randomness=randomness))  # noqa: B023
        for j in range(measured)
    ]
    all_columns = sum(exact) * COLUMNS / measured
    theta = np.uint64(round(2**64 / (1 + np.exp(EPSILON_0))))
    loop = min(cpu_seconds(lambda: plain_loop(stats.rankdata(kinds[0]), theta)) for _ in range(1 if quick else 2))
    fast = min(
        cpu_seconds(lambda: perturbed_ranks(kinds[0], epsilon_0=EPSILON_0, noise="skellam", randomness=randomness))
        for _ in range(15)
    )
    one = float(np.median(exact))
    # A mean of 71,827 squares: 3 % is more than 5 standard errors.
    sound = all(abs(ratio - 1) < 0.03 for ratio in ratios)

    told = "extrapolated from 3" if quick else "measured"
    page.say(f"{RECORDS} records, eps0 {EPSILON_0:.4f}, one thread, CPU seconds; noise variance as stated: {sound}.")
    page.say(f"One column: exact {one:.3f} (median), plain numba double loop {loop:.3f}, Skellam {fast:.4f}.")
    page.say(
        f"{COLUMNS} columns exact: {all_columns:.1f} ({told}, limit {SECONDS:.0f}); Skellam: {COLUMNS * fast:.2f}."
    )
    return page.finish(
        sound and all_columns <= SECONDS and loop / one >= OVER_LOOP and one / fast >= OVER_EXACT,
        columns_cpu_s=f"{all_columns:.1f}",
        loop_over_exact=f"{loop / one:.1f}",
        exact_over_skellam=f"{one / fast:.0f}",
    )


if __name__ == "__main__":
    with threadpool_limits(limits=1):
        sys.exit(main())
