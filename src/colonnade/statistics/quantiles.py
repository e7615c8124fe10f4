"""Quantiles from a noisy dyadic tree of counts over a column's declared bounds.

The tree halves the domain `depth` times and counts each node. One record is in one node of each level, so the
whole tree has L1 sensitivity `depth` and L2 sensitivity sqrt(depth) (zero-out). A prefix of the domain is a sum
of at most one node per level, so the error of a rank grows with the depth only and not with the number of leaves.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray


def dyadic_counts(leaves: NDArray[np.int64]) -> NDArray[np.int64]:
    """All levels below the root, coarse to fine, from the counts of 2^depth leaves."""
    levels = [leaves]
    while len(levels[0]) > 2:
        levels.insert(0, levels[0].reshape(-1, 2).sum(axis=1))
    return np.concatenate(levels)


def consistent_leaves(tree: NDArray[np.float64], depth: int) -> NDArray[np.float64]:
    """Least squares on the tree (Hay et al. 2010): the leaf counts that fit all noisy nodes best.

    Upward, z = (2^l - 2^(l-1))/(2^l - 1) own + (2^(l-1) - 1)/(2^l - 1) sum of the children's z; downward, each pair
    of children shares the difference to its parent equally. The root was not measured: the top level keeps its z.
    """
    levels = [tree[2**level - 2 : 2 ** (level + 1) - 2].astype(np.float64) for level in range(1, depth + 1)]
    z = levels[-1]
    upward = [z]
    for height, own in enumerate(reversed(levels[:-1]), start=2):
        weight = 2.0 ** (height - 1) / (2.0**height - 1)
        z = weight * own + (1 - weight) * z.reshape(-1, 2).sum(axis=1)
        upward.insert(0, z)
    fitted = upward[0]
    for below in upward[1:]:
        gap = (fitted - below.reshape(-1, 2).sum(axis=1)) / 2
        fitted = below + np.repeat(gap, 2)
    return fitted


def quantiles(
    leaves: NDArray[np.float64], edges: NDArray[np.float64], levels: NDArray[np.float64]
) -> NDArray[np.float64]:
    """Quantiles of a histogram with noisy leaves: monotone by construction, inside the bounds.

    The running sum is made monotone by averaging the running maximum from the left with the running minimum from
    the right, which moves it no further than the noise did.
    """
    running = np.concatenate([[0.0], np.cumsum(leaves)])
    total = max(running[-1], 1.0)
    running = np.clip(running, 0.0, total)
    monotone = (np.maximum.accumulate(running) + np.minimum.accumulate(running[::-1])[::-1]) / 2
    monotone[0], monotone[-1] = 0.0, total
    values: NDArray[np.float64] = np.interp(levels * total, monotone, edges)
    return values
