"""Rows of a latent normal vector inside boxes: what a condition on a copula leaves open, and a field's cells do.

z ~ N(0, R) given low <= z <= high, row by row. Each coordinate given the others is a truncated normal, so a few sweeps
of Gibbs sampling suffice: a box that is narrow hardly needs any, and one without ends is drawn exactly at its turn.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from scipy import special

Reals = NDArray[np.float64]

SWEEPS = 4
"""Where boxes are a field's cells: on 4 cells of each of two columns with correlation .9, more changed nothing."""
MANY_SWEEPS = 40
"""Where a condition leaves one end open, and coordinates depend on each other more."""


def rows_in_boxes(
    correlation: Reals, low: Reals, high: Reals, source: np.random.Generator, *, sweeps: int = SWEEPS
) -> Reals:
    """One row for each row of `low` and `high` (rows x coordinates); an end may be infinite, and both may be equal."""
    size = correlation.shape[0]
    precision = np.linalg.inv(correlation)
    latent = np.zeros(low.shape)
    for place in range(size):
        latent[:, place] = truncated(low[:, place], high[:, place], source)
    if np.array_equal(correlation, np.eye(size)):
        return latent
    for _ in range(sweeps):
        for place in range(size):
            # z_j given the others has mean -sum_k P_jk z_k / P_jj and variance 1 / P_jj, with P the inverse of R.
            deviation = precision[place, place] ** -0.5
            mean = latent[:, place] - (latent @ precision[:, place]) * deviation**2
            ends = ((low[:, place] - mean) / deviation, (high[:, place] - mean) / deviation)
            latent[:, place] = np.clip(mean + deviation * truncated(*ends, source), low[:, place], high[:, place])
    return latent


def truncated(low: Reals, high: Reals, source: np.random.Generator) -> Reals:
    """Standard normals between two ends, by the inverse of the distribution function, in the tail where it is small."""
    upper = low > 0  # there 1 - Phi would lose its digits: the interval is mirrored
    left, right = np.where(upper, -high, low), np.where(upper, -low, high)
    before, after = special.ndtr(left), special.ndtr(right)
    drawn = special.ndtri(before + source.random(low.shape) * (after - before))
    inside = np.clip(drawn, left, right)
    return np.asarray(np.where(upper, -inside, inside))
