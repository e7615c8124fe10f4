"""Linear predictors across parties: the conditional Gaussian copula, and chained equations (VF-MICE).

Both predict a party's missing columns from sums over the other parties of (public matrix) x (their own scores or
features). The matrices depend on which of the others have the record, so there is one for each pattern of presence; a
pattern is named by the list of the present parties, as JSON.

Under the copula a column's latent score s is z itself where it is continuous, and E[z | value] where it jumps. With
h_m the Hermite coefficients of s as a function of z (h_1 = E[s z] = var s for such scores),

    Cov(s_k, s_l) = sum_m R_kl^m h_m(k) h_m(l),        Cov(z_j, s_k) = R_jk var(s_k)

so the best linear predictor of the latent z of the missing columns is a public matrix times the scores of the known
ones: mu = L s with L = Cov(z, s) Cov(s)^-1, and what is left has covariance R - L Cov(s, z).
"""

from __future__ import annotations

import itertools
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import linalg, special

from colonnade.completion.layout import Layout, Matrix, is_numeric, range_of, width_of
from colonnade.data.column import Column, Columns
from colonnade.federation.facts import PublicFacts
from colonnade.statistics.features import EMPTY, Feature
from colonnade.statistics.marginals import Marginal
from colonnade.synthesis.copula.model import as_points, stepwise

Reals = NDArray[np.float64]

TERMS = 12
"""Hermite terms; correlations to that power are below 1e-4 for |R| < 0.46, and coefficients fall too."""
NODES = 24
"""Of Gauss-Hermite quadrature for the mean of a continuous column."""
FLOOR = 1e-4
"""Least residual variance of a latent coordinate."""
SWEEPS = 10
"""Of the chained equations."""


# --- patterns of presence -----------------------------------------------------------------------------------------


def pattern_name(present: Sequence[str]) -> str:
    return json.dumps(list(present))


def pattern_parties(name: str) -> list[str]:
    """The parties of a pattern's name."""
    present: list[str] = json.loads(name)
    return present


def patterns_of(others: Sequence[str]) -> list[tuple[str, ...]]:
    """Every set of other parties that is not empty."""
    return [chosen for size in range(1, len(others) + 1) for chosen in itertools.combinations(others, size)]


@dataclass(frozen=True, eq=False)
class Maps:
    """For one target: what each sender multiplies its rows with, and what the target does with the sum."""

    senders: dict[str, dict[str, Reals]]
    target: dict[str, dict[str, Reals]]


# --- latent scores ------------------------------------------------------------------------------------------------


def _edges(marginal: Marginal) -> Reals:
    return special.ndtri(np.concatenate([[0.0], marginal.cumulative]))


def _density(z: Reals) -> Reals:
    finite = np.nan_to_num(z, posinf=0, neginf=0)
    return np.where(np.isfinite(z), np.exp(-0.5 * finite**2), 0.0) / math.sqrt(2 * math.pi)


def between(below: Reals, upto: Reals) -> Reals:
    """E[z | below < Phi(z) <= upto]."""
    return np.asarray((_density(special.ndtri(below)) - _density(special.ndtri(upto))) / (upto - below))


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
        scores = levels(marginal)[place]
    else:
        points = as_points(column, np.nan_to_num(values))
        below, upto = marginal.below(points), marginal.cdf(points)
        scores = special.ndtri(np.clip((below + upto) / 2, 1e-4, 1 - 1e-4))
        jump = upto - below > 1e-12
        scores[jump] = between(below[jump], upto[jump])
    return np.asarray(np.where(missing, np.nan, scores), dtype=np.float64)


def hermite(column: Column, marginal: Marginal) -> Reals:
    """h_1 ... h_TERMS of the score, for the normalised polynomials."""
    coefficients = np.zeros(TERMS)
    if not stepwise(column):
        coefficients[0] = 1.0
        return coefficients - _flattened(marginal)
    edges, density = _edges(marginal), _density(_edges(marginal))
    finite = np.nan_to_num(edges, posinf=0.0, neginf=0.0)
    level = levels(marginal)
    for m in range(1, TERMS + 1):
        # The integral of He_m phi between two edges is He_{m-1} phi at the first less that at the second.
        at_edges = special.eval_hermitenorm(m - 1, finite) * density
        coefficients[m - 1] = float(level @ (at_edges[:-1] - at_edges[1:])) / math.sqrt(math.factorial(m))
    return coefficients


def _flattened(marginal: Marginal) -> Reals:
    """What point masses take from the coefficients of z: the integrals of (z - E[z | point]) h_m phi between the edges
    of each, where z h_m = sqrt(m + 1) h_(m+1) + sqrt(m) h_(m-1)."""
    below, upto = marginal.jumps
    if not below.size:
        return np.zeros(TERMS)
    edges = special.ndtri(np.stack([below, upto]))
    density, finite = _density(edges), np.nan_to_num(edges, posinf=0.0, neginf=0.0)
    integrals = [upto - below]
    for m in range(1, TERMS + 2):
        at_edges = special.eval_hermitenorm(m - 1, finite) * density
        integrals.append((at_edges[0] - at_edges[1]) / math.sqrt(math.factorial(m)))
    level = between(below, upto)
    return np.array(
        [
            (math.sqrt(m + 1) * integrals[m + 1] + math.sqrt(m) * integrals[m - 1] - level * integrals[m]).sum()
            for m in range(1, TERMS + 1)
        ]
    )


# --- the conditional copula ---------------------------------------------------------------------------------------


def predictor(
    columns: Sequence[Column],
    marginals: Mapping[str, Marginal],
    correlation: Reals,
    known: Sequence[int],
    missing: Sequence[int],
) -> tuple[Reals, Reals]:
    """(L, the covariance that is left) of the missing columns given the known ones, which are places in `columns`."""
    if not known:
        return np.zeros((len(missing), 0)), correlation[np.ix_(missing, missing)]
    coefficients = np.array([hermite(columns[k], marginals[columns[k].name]) for k in known])
    among = correlation[np.ix_(known, known)]
    powers = among[:, :, None] ** np.arange(1, TERMS + 1)
    covariance = np.einsum("klm,km,lm->kl", powers, coefficients, coefficients)
    own = np.maximum((coefficients**2).sum(axis=1), 1e-9)
    covariance[np.diag_indices_from(covariance)] = own
    across = correlation[np.ix_(missing, known)] * own
    ridge = covariance + 1e-8 * np.eye(len(known))
    maps = np.asarray(linalg.solve(ridge, across.T, assume_a="pos").T)
    left = correlation[np.ix_(missing, missing)] - maps @ across.T
    return maps, (left + left.T) / 2


def copula_maps(facts: PublicFacts, marginals: Mapping[str, Marginal], correlation: Reals, target: str) -> Maps:
    """The correlation is over all columns, party by party."""
    columns = [column for party in facts.columns.values() for column in party.values()]
    owner = [party for party, held in facts.columns.items() for _ in held]
    missing = [k for k, party in enumerate(owner) if party == target]
    others = [party for party in facts.parties if party != target]
    maps = Maps({party: {} for party in others}, {"left": {}})
    for present in patterns_of(others):
        known = [k for k, party in enumerate(owner) if party in present]
        matrix, left = predictor(columns, marginals, correlation, known, missing)
        for party in present:
            own = [place for place, k in enumerate(known) if owner[k] == party]
            maps.senders[party][pattern_name(present)] = matrix[:, own]
        maps.target["left"][pattern_name(present)] = left
    return maps


def conditional_mean(layout: Layout, marginals: Mapping[str, Marginal], centre: Reals, variance: Reals) -> Matrix:
    """E[row of the layout] where column j's latent is N(centre[:, j], variance[:, j])."""
    rows = np.empty((len(centre), layout.width), dtype=np.float32)
    nodes, weights = special.roots_hermitenorm(NODES)
    weights = weights / weights.sum()
    for j, (name, column) in enumerate(layout.columns.items()):
        place, marginal = layout.slices[name], marginals[name]
        scale = np.sqrt(np.maximum(variance[:, j], FLOOR))
        if marginal.discrete:
            edges = special.ndtri(np.concatenate([[0.0], marginal.cumulative]))
            chances = np.diff(special.ndtr((edges[None, :] - centre[:, j, None]) / scale[:, None]), axis=1)
            if is_numeric(column):
                lower, span = range_of(column)
                rows[:, place.start] = chances @ ((marginal.points - lower) / span)
            else:
                frequencies = np.zeros((len(centre), width_of(column)))
                frequencies[:, np.rint(marginal.points).astype(int)] = chances
                rows[:, place] = frequencies
            continue
        latent = centre[:, j, None] + scale[:, None] * nodes[None, :]
        values = marginal.quantile(special.ndtr(latent))
        lower, span = range_of(column)
        if column.whole:
            values = np.floor(values)
        rows[:, place.start] = np.clip((values - lower) / span, 0.0, 1.0) @ weights
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
    codes = {}
    for j, (name, column) in enumerate(layout.columns.items()):
        drawn = marginals[name].quantile(special.ndtr(latent[:, j]))
        if column.whole and not stepwise(column):
            drawn = np.floor(drawn)
        codes[name] = np.rint(drawn).astype(np.int32) if column.discrete else drawn
    return layout.encode(codes)


# --- chained equations --------------------------------------------------------------------------------------------


def chained_maps(
    features: Sequence[Feature], mean: Reals, covariance: Reals, target: str, others: Sequence[str]
) -> Maps:
    """Each of the target's features on all others, by least squares from the moments (the equations of MICE)."""
    maps = Maps({party: {} for party in others}, {"own": {}, "intercept": {}})
    own = [k for k, feature in enumerate(features) if feature.party == target]
    for present in patterns_of(others):
        known = [k for k, feature in enumerate(features) if feature.party in present]
        rows: dict[str, list[Reals]] = {party: [] for party in present}
        within, intercepts = np.zeros((len(own), len(own))), np.zeros(len(own))
        for row, j in enumerate(own):
            given = [*known, *(k for k in own if k != j)]
            among = covariance[np.ix_(given, given)]
            # A category that never occurs, or that others imply, makes the matrix singular: a small ridge decides.
            ridge = 1e-6 * max(float(np.trace(among)) / len(given), 1e-12)
            slopes = linalg.solve(among + ridge * np.eye(len(given)), covariance[given, j], assume_a="pos")
            intercepts[row] = mean[j] - slopes @ mean[given]
            for party in present:
                rows[party].append(slopes[[i for i, k in enumerate(given) if features[k].party == party]])
            within[row, [i for i, k in enumerate(own) if k != j]] = slopes[len(known) :]
        for party in present:
            maps.senders[party][pattern_name(present)] = np.array(rows[party])
        maps.target["own"][pattern_name(present)] = within
        maps.target["intercept"][pattern_name(present)] = intercepts
    return maps


def chained(parts: Reals, own: Reals, intercept: Reals, start: Reals) -> Reals:
    """Sweeps of the chained equations, one column after the other, from the means on."""
    values = np.broadcast_to(start, parts.shape).copy()
    for _ in range(SWEEPS):
        for j in range(parts.shape[1]):
            values[:, j] = np.clip(intercept[j] + parts[:, j] + values @ own[j], -1.0, 1.0)
    return values


def feature_rows(columns: Columns, features: Sequence[Feature], values: Reals) -> Matrix:
    """Features in [-1, 1] as rows of the layout."""
    layout = Layout(columns)
    rows = np.zeros((len(values), layout.width), dtype=np.float32)
    for name, column in columns.items():
        place = layout.slices[name]
        own = [k for k, feature in enumerate(features) if feature.column == name and feature.category != EMPTY]
        if is_numeric(column):
            (only,) = own
            lower, span = range_of(column)
            rows[:, place.start] = (features[only].centre + features[only].half * values[:, only] - lower) / span
        elif column.kind == "binary":
            (only,) = own
            code = features[only].centre + features[only].half * values[:, only]
            rows[:, place] = np.column_stack([1 - code, code])
        else:
            later = values[:, own]
            rows[:, place] = np.column_stack([1 - later.sum(axis=1), later])
    return np.clip(rows, 0.0, 1.0)
