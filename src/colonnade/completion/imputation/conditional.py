"""Conditional means and draws under a Gaussian copula, from a linear map of what is known about a record.

A column's latent score s is z itself where it is continuous, and E[z | value] where it jumps. With h_m the Hermite
coefficients of s as a function of z (h_1 = E[s z] = var s for such scores),

    Cov(s_k, s_l) = sum_m R_kl^m h_m(k) h_m(l),        Cov(z_j, s_k) = R_jk var(s_k)

so the best linear predictor of the latent z of the missing columns is a public matrix times the scores of the known
ones: mu = L s with L = Cov(z, s) Cov(s)^-1, and what is left has covariance R - L Cov(s, z).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import linalg, special

from colonnade.completion.layout import Layout, Matrix, is_numeric, range_of, width_of
from colonnade.data.column import Column
from colonnade.statistics.marginals import Marginal
from colonnade.synthesis.copula.model import as_points, stepwise

Reals = NDArray[np.float64]

TERMS = 12
"""Hermite terms; correlations to that power are below 1e-4 for |R| < 0.46, and coefficients fall too."""
NODES = 24
"""Of Gauss-Hermite quadrature for the mean of a continuous column."""
FLOOR = 1e-4
"""Least residual variance of a latent coordinate."""


# --- scores -------------------------------------------------------------------------------------------------------


def _edges(marginal: Marginal) -> Reals:
    return special.ndtri(np.concatenate([[0.0], marginal.cumulative]))


def _density(at: Reals) -> Reals:
    return np.where(np.isfinite(at), np.exp(-0.5 * np.nan_to_num(at, posinf=0, neginf=0) ** 2), 0.0) / math.sqrt(
        2 * math.pi
    )


def levels(marginal: Marginal) -> Reals:
    """E[z | value] of each value at which a distribution function jumps; 0 for a value of no chance."""
    density = _density(_edges(marginal))
    chance = marginal.probabilities
    return np.divide(density[:-1] - density[1:], chance, out=np.zeros_like(chance), where=chance > 1e-12)


def latent_scores(column: Column, marginal: Marginal, encoded: NDArray[Any]) -> Reals:
    """The scores of encoded values; NaN where a cell is missing."""
    values = np.asarray(encoded, dtype=np.float64)
    missing = values < 0 if column.discrete else np.isnan(values)
    if stepwise(column):
        place = np.clip(np.searchsorted(marginal.points, np.nan_to_num(values)), 0, marginal.points.size - 1)
        found = levels(marginal)[place]
    else:
        u = marginal.scores(as_points(column, np.nan_to_num(values)))
        found = special.ndtri(np.clip(u, 1e-4, 1 - 1e-4))
    return np.asarray(np.where(missing, np.nan, found), dtype=np.float64)


def hermite(column: Column, marginal: Marginal) -> Reals:
    """h_1 ... h_TERMS of the score, for the normalised polynomials."""
    coefficients = np.zeros(TERMS)
    if not stepwise(column):
        coefficients[0] = 1.0
        return coefficients
    edges, density = _edges(marginal), _density(_edges(marginal))
    finite = np.nan_to_num(edges, posinf=0.0, neginf=0.0)
    level = levels(marginal)
    for m in range(1, TERMS + 1):
        # The integral of He_m phi between two edges is He_{m-1} phi at the first less that at the second.
        at_edges = special.eval_hermitenorm(m - 1, finite) * density
        coefficients[m - 1] = float(level @ (at_edges[:-1] - at_edges[1:])) / math.sqrt(math.factorial(m))
    return coefficients


# --- the linear map -----------------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Predictor:
    """z = maps s + noise of covariance `left`, of the missing columns given the known ones."""

    maps: Reals
    left: Reals


def predictor(
    columns: Sequence[Column],
    marginals: Mapping[str, Marginal],
    correlation: Reals,
    known: Sequence[int],
    missing: Sequence[int],
) -> Predictor:
    """For one pattern of presence; `known` and `missing` are places in `columns`."""
    if not known:
        return Predictor(np.zeros((len(missing), 0)), correlation[np.ix_(missing, missing)])
    each = np.array([hermite(columns[k], marginals[columns[k].name]) for k in known])
    among = correlation[np.ix_(known, known)]
    powers = among[:, :, None] ** np.arange(1, TERMS + 1)
    covariance = np.einsum("klm,km,lm->kl", powers, each, each)
    own = np.maximum((each**2).sum(axis=1), 1e-9)
    covariance[np.diag_indices_from(covariance)] = own
    across = correlation[np.ix_(missing, known)] * own
    ridge = covariance + 1e-8 * np.eye(len(known))
    maps = linalg.solve(ridge, across.T, assume_a="pos").T
    left = correlation[np.ix_(missing, missing)] - maps @ across.T
    return Predictor(np.asarray(maps), (left + left.T) / 2)


# --- back to columns ----------------------------------------------------------------------------------------------


def conditional_mean(layout: Layout, marginals: Mapping[str, Marginal], centre: Reals, variance: Reals) -> Matrix:
    """E[row of the layout] where column j's latent is N(centre[:, j], variance[:, j])."""
    rows = np.empty((len(centre), layout.width), dtype=np.float32)
    nodes, weights = special.roots_hermitenorm(NODES)
    weights = weights / weights.sum()
    for j, (name, column) in enumerate(layout.columns.items()):
        at, marginal = layout.slices[name], marginals[name]
        spread = np.sqrt(np.maximum(variance[:, j], FLOOR))
        if marginal.discrete:
            edges = special.ndtri(np.concatenate([[0.0], marginal.cumulative]))
            chances = np.diff(special.ndtr((edges[None, :] - centre[:, j, None]) / spread[:, None]), axis=1)
            if is_numeric(column):
                lower, span = range_of(column)
                rows[:, at.start] = chances @ ((marginal.points - lower) / span)
            else:
                whole = np.zeros((len(centre), width_of(column)))
                whole[:, np.rint(marginal.points).astype(int)] = chances
                rows[:, at] = whole
            continue
        latent = centre[:, j, None] + spread[:, None] * nodes[None, :]
        values = marginal.quantile(special.ndtr(latent))
        lower, span = range_of(column)
        if column.kind == "count":
            values = np.floor(values)
        rows[:, at.start] = np.clip((values - lower) / span, 0.0, 1.0) @ weights
    return rows


def conditional_draw(
    layout: Layout,
    marginals: Mapping[str, Marginal],
    centre: Reals,
    left: Reals,
    generator: np.random.Generator,
) -> Matrix:
    """Rows drawn with the residual covariance `left`, so that a record's columns hang together; all legal."""
    values, vectors = linalg.eigh(left)
    root = vectors * np.sqrt(np.maximum(values, 0.0))
    latent = centre + generator.standard_normal(centre.shape) @ root.T
    found = {}
    for j, (name, column) in enumerate(layout.columns.items()):
        drawn = marginals[name].quantile(special.ndtr(latent[:, j]))
        if column.kind == "count" and not stepwise(column):
            drawn = np.floor(drawn)
        found[name] = np.rint(drawn).astype(np.int32) if column.discrete else drawn
    return layout.encode(found)
