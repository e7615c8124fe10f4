"""What clipping took from noisy second moments, by simulation from the fitted law, and given back.

The law is Gaussian, and binary columns are its coordinates cut at a threshold: where a column is long, its part of a
binary response is not, so taking the response for Gaussian as well would give back too much. What was lost is simulated
with fixed draws and added to the released moments, and the law is fitted again. All of it is post-processing.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray
from scipy.stats import norm

from colonnade.models.matrix import SecondMoments
from colonnade.models.vfem_clipping import Clipping

Vector = NDArray[np.float64]
Matrix = NDArray[np.float64]

DRAWS, ROUNDS = 40_000, 3
"""The simulation's own error is then a fifth of the noise where that is 0.003 a correlation."""
ENTRIES = 8_000_000
"""Numbers drawn at once, at most, for memory: with more than 200 features there are fewer draws."""
RAREST = 1e-3
"""Share of the rarer value of a binary column, at least, in the simulated law."""


@dataclass(frozen=True, eq=False)
class Clipped:
    """What the parties did to their rows. `blocks` are the features of each party; `values` the two values of a binary
    column, as a feature, or None."""

    clipping: Clipping
    blocks: tuple[slice, ...]
    values: tuple[tuple[float, float] | None, ...]


def unclipped(second: SecondMoments, clipped: Clipped) -> SecondMoments:
    """Second moments of (1, features) as they would be, in expectation, had no row been clipped."""
    width = len(clipped.values)
    draws = min(DRAWS, max(ENTRIES // width, 4 * width))
    normal = np.random.default_rng(0).standard_normal((draws, width))  # it protects nobody
    made = second.matrix
    for _ in range(ROUNDS):
        rows = _law(made, clipped.values, normal)
        made = second.matrix + _products(rows) - _products(clipped.clipping(rows, clipped.blocks))
    return replace(second, matrix=made)


def _law(second: Matrix, values: tuple[tuple[float, float] | None, ...], normal: Matrix) -> Matrix:
    """Rows with these second moments, nearly. A Gaussian cut at the quantile of 1 - q keeps
    phi(quantile) / sqrt(q (1 - q)) of its correlations, which are raised by that before the cut."""
    mean = second[0, 1:]
    covariance = second[1:, 1:] - np.outer(mean, mean)
    kept, cuts = np.ones(len(mean)), np.zeros(len(mean))
    for place, two in enumerate(values):
        if two is not None:
            q = float(np.clip((mean[place] - two[0]) / (two[1] - two[0]), RAREST, 1.0 - RAREST))
            cuts[place] = norm.isf(q)
            kept[place] = norm.pdf(cuts[place]) / np.sqrt(q * (1.0 - q))
    spread = np.sqrt(np.maximum(np.diag(covariance), 1e-12))
    correlation = covariance / np.outer(spread * kept, spread * kept)
    np.fill_diagonal(correlation, 1.0)
    roots, vectors = np.linalg.eigh(correlation)
    half = vectors * np.sqrt(np.maximum(roots, 0.0))
    rows = normal @ (half / np.sqrt(np.maximum((half**2).sum(axis=1), 1e-12))[:, None]).T
    for place, two in enumerate(values):
        if two is None:
            rows[:, place] = mean[place] + spread[place] * rows[:, place]
        else:
            rows[:, place] = np.where(rows[:, place] > cuts[place], two[1], two[0])
    return np.asarray(rows)


def _products(rows: Matrix) -> Matrix:
    with_one = np.column_stack([np.ones(len(rows)), rows])
    return np.asarray(with_one.T @ with_one / len(rows))
