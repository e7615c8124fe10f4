"""Central private distribution functions of one column, for comparison: OpenDP's tree and quantiles, and PrivTree.

Each takes a pure epsilon, or Gaussian noise of a multiplier, and returns values at given levels. All work on the public
bounds alone. The relation is add or remove one record, as zero-out is here.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

Reals = NDArray[np.float64]

LEAVES = 1024
"""Equal cells of the tree, and candidates of the quantiles."""
QUANTILES = 15
"""Quantiles that share the budget."""
BETA = 2
"""Children of a node of PrivTree."""


@dataclass(frozen=True)
class Budget:
    """A pure `epsilon`; or, for what Gaussian noise can do, its `multiplier` at the same (epsilon, delta)."""

    epsilon: float
    multiplier: float | None = None


def _inverse(edges: Reals, running: Reals, levels: Reals) -> Reals:
    """Values at levels of a noisy running sum, made monotone by averaging both running extremes."""
    total = max(float(running[-1]), 1.0)
    bounded = np.clip(running, 0.0, total)
    monotone = (np.maximum.accumulate(bounded) + np.minimum.accumulate(bounded[::-1])[::-1]) / 2
    monotone[0], monotone[-1] = 0.0, total
    return np.asarray(np.interp(levels * total, monotone, edges))


# --- OpenDP -------------------------------------------------------------------------------------------------------


@lru_cache(maxsize=256)
def _tree(leaves: int, epsilon: float, multiplier: float | None) -> tuple[Any, Any]:
    import opendp.prelude as dp

    dp.enable_features("contrib")
    branching = 16 if leaves >= 256 else 4
    metric = dp.l1_distance(T="i64") if multiplier is None else dp.l2_distance(T="i64")
    space = dp.vector_domain(dp.atom_domain(T="i64")), dp.l1_distance(T="i64")
    tree = dp.t.make_b_ary_tree(*space, leaf_count=leaves, branching_factor=branching)
    levels = int(tree.map(1))
    scale = levels / epsilon if multiplier is None else multiplier * math.sqrt(levels)
    make = dp.m.make_laplace if multiplier is None else dp.m.make_gaussian
    noise = make(dp.vector_domain(dp.atom_domain(T="i64")), metric, scale=scale)
    return (lambda counts: noise(tree(counts))), dp.t.make_consistent_b_ary_tree(branching_factor=branching)


def opendp_tree(ordered: Reals, lower: float, upper: float, budget: Budget, levels: Reals, *, whole: bool) -> Reals:
    """Counts of equal cells in OpenDP's b-ary tree, made consistent."""
    leaves = int(min(LEAVES, upper - lower)) if whole else LEAVES
    edges = np.floor(np.linspace(lower, upper, leaves + 1)) if whole else np.linspace(lower, upper, leaves + 1)
    below = np.searchsorted(ordered, edges, side="left")
    below[-1] = ordered.size
    release, consistent = _tree(leaves, budget.epsilon, budget.multiplier)
    counts = np.array(consistent(release(np.diff(below).tolist())), dtype=np.float64)[:leaves]
    return _inverse(edges, np.concatenate([[0.0], np.cumsum(counts)]), levels)


@lru_cache(maxsize=1024)
def _quantile(candidates: tuple[float, ...], alpha: float, epsilon: float) -> Any:
    import opendp.prelude as dp

    dp.enable_features("contrib")
    space = dp.vector_domain(dp.atom_domain(T=float, nan=False)), dp.symmetric_distance()
    asked = (*space, dp.max_divergence(), list(candidates), alpha)
    scale = float(dp.m.make_private_quantile(*asked, 1.0).map(1)) / epsilon
    return dp.m.make_private_quantile(*asked, scale)


def opendp_quantiles(
    ordered: Reals, lower: float, upper: float, budget: Budget, levels: Reals, *, whole: bool
) -> Reals:
    """OpenDP's private quantiles on equal candidates, the budget divided equally; straight lines between them."""
    candidates = tuple(np.unique(np.linspace(lower, upper, LEAVES + 1)).tolist())
    asked = np.arange(1, QUANTILES + 1) / (QUANTILES + 1)
    values = [float(_quantile(candidates, float(alpha), budget.epsilon / QUANTILES)(ordered)) for alpha in asked]
    knots = np.concatenate([[lower], np.sort(values), [upper]])
    return np.asarray(np.interp(levels, np.concatenate([[0.0], asked, [1.0]]), knots))


# --- PrivTree (Zhang, Xiao and Xie 2016, Algorithm 2) -------------------------------------------------------------


def privtree(
    ordered: Reals,
    lower: float,
    upper: float,
    budget: Budget,
    levels: Reals,
    *,
    whole: bool,
    rng: np.random.Generator,
) -> Reals:
    """Half of epsilon for the tree, half for the counts of its leaves.

    A node of count c at depth d is cut if max(theta - delta, c - d delta) + Lap(lambda) > theta, with theta = 0,
    lambda = (2 beta - 1) / (beta - 1) / epsilon and delta = lambda ln(beta).
    """
    scale = (2 * BETA - 1) / (BETA - 1) / (budget.epsilon / 2)
    decay = scale * math.log(BETA)
    least = 1.0 if whole else (upper - lower) * 2.0**-40
    waiting, leaves = [(lower, upper, 0)], list[tuple[float, float]]()
    while waiting:
        low, high, depth = waiting.pop()
        count = _between(ordered, low, high, upper)
        biased = max(-decay, count - depth * decay)
        if high - low >= 2 * least and biased + rng.laplace(0.0, scale) > 0:
            middle = math.floor((low + high) / 2) if whole else (low + high) / 2
            waiting += [(low, middle, depth + 1), (middle, high, depth + 1)]
        else:
            leaves.append((low, high))
    leaves.sort()
    edges = np.array([lower, *(high for _, high in leaves)])
    noisy = [_between(ordered, low, high, upper) + rng.laplace(0.0, 2 / budget.epsilon) for low, high in leaves]
    return _inverse(edges, np.concatenate([[0.0], np.cumsum(noisy)]), levels)


def _between(ordered: Reals, low: float, high: float, upper: float) -> int:
    last = ordered.size if high >= upper else int(np.searchsorted(ordered, high, side="left"))
    return last - int(np.searchsorted(ordered, low, side="left"))
