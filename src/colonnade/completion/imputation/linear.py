"""Linear predictors across parties: the coordinator's maps, and what a party computes with them.

Both the conditional copula and VF-MICE predict a party's missing columns from sums over the other parties of
(public matrix) x (their own scores or features). The matrices depend on which of the others have the record, so there
is one for each pattern of presence; a pattern is named by the list of the present parties, as JSON.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import linalg

from colonnade.completion.imputation.conditional import predictor
from colonnade.completion.layout import Layout, Matrix, is_numeric, range_of
from colonnade.data.column import Columns
from colonnade.federation.facts import PublicFacts
from colonnade.statistics.features import Feature
from colonnade.statistics.marginals import Marginal

Reals = NDArray[np.float64]

SWEEPS = 10
"""Of the chained equations."""


def pattern_name(present: Sequence[str]) -> str:
    return json.dumps(list(present))


def pattern_parties(name: str) -> list[str]:
    """The parties of a pattern's name."""
    found: list[str] = json.loads(name)
    return found


def patterns_of(others: Sequence[str]) -> list[tuple[str, ...]]:
    """Every set of other parties that is not empty."""
    return [chosen for size in range(1, len(others) + 1) for chosen in itertools.combinations(others, size)]


@dataclass(frozen=True, eq=False)
class Maps:
    """For one target: what each sender multiplies its rows with, and what the target does with the sum."""

    senders: dict[str, dict[str, Reals]]
    target: dict[str, dict[str, Reals]]


def plain_marginals(marginals: Mapping[str, Marginal]) -> dict[str, dict[str, Any]]:
    return {
        name: {"points": one.points, "cumulative": one.cumulative, "discrete": one.discrete}
        for name, one in marginals.items()
    }


def read_marginals(plain: Mapping[str, Mapping[str, Any]]) -> dict[str, Marginal]:
    return {
        name: Marginal(np.array(one["points"]), np.array(one["cumulative"]), bool(one["discrete"]))
        for name, one in plain.items()
    }


# --- the conditional copula ---------------------------------------------------------------------------------------


def copula_maps(facts: PublicFacts, marginals: Mapping[str, Marginal], correlation: Reals, target: str) -> Maps:
    """The correlation is over all columns, party by party."""
    columns = [column for party in facts.columns.values() for column in party.values()]
    owner = [party for party, held in facts.columns.items() for _ in held]
    missing = [k for k, party in enumerate(owner) if party == target]
    others = [party for party in facts.parties if party != target]
    made = Maps({party: {} for party in others}, {"left": {}})
    for present in patterns_of(others):
        known = [k for k, party in enumerate(owner) if party in present]
        found = predictor(columns, marginals, correlation, known, missing)
        for party in present:
            own = [at for at, k in enumerate(known) if owner[k] == party]
            made.senders[party][pattern_name(present)] = found.maps[:, own]
        made.target["left"][pattern_name(present)] = found.left
    return made


# --- chained equations --------------------------------------------------------------------------------------------


def chained_maps(
    features: Sequence[Feature], mean: Reals, covariance: Reals, target: str, others: Sequence[str]
) -> Maps:
    """Each of the target's features on all others, by least squares from the moments (the equations of MICE)."""
    made = Maps({party: {} for party in others}, {"own": {}, "intercept": {}})
    own = [k for k, one in enumerate(features) if one.party == target]
    for present in patterns_of(others):
        known = [k for k, one in enumerate(features) if one.party in present]
        rows: dict[str, list[Reals]] = {party: [] for party in present}
        within, intercepts = np.zeros((len(own), len(own))), np.zeros(len(own))
        for at, j in enumerate(own):
            given = [*known, *(k for k in own if k != j)]
            among = covariance[np.ix_(given, given)]
            # A category that never occurs, or that others imply, makes the matrix singular: a small ridge decides.
            ridge = 1e-6 * max(float(np.trace(among)) / len(given), 1e-12)
            slopes = linalg.solve(among + ridge * np.eye(len(given)), covariance[given, j], assume_a="pos")
            intercepts[at] = mean[j] - slopes @ mean[given]
            for party in present:
                rows[party].append(slopes[[i for i, k in enumerate(given) if features[k].party == party]])
            within[at, [i for i, k in enumerate(own) if k != j]] = slopes[len(known) :]
        for party in present:
            made.senders[party][pattern_name(present)] = np.array(rows[party])
        made.target["own"][pattern_name(present)] = within
        made.target["intercept"][pattern_name(present)] = intercepts
    return made


def chained(parts: Reals, own: Reals, intercept: Reals, start: Reals) -> Reals:
    """Sweeps of the chained equations, one column after the other, from the means on."""
    found = np.broadcast_to(start, parts.shape).copy()
    for _ in range(SWEEPS):
        for j in range(parts.shape[1]):
            found[:, j] = np.clip(intercept[j] + parts[:, j] + found @ own[j], -1.0, 1.0)
    return found


def feature_rows(columns: Columns, features: Sequence[Feature], values: Reals) -> Matrix:
    """Features in [-1, 1] as rows of the layout."""
    layout = Layout(columns)
    rows = np.zeros((len(values), layout.width), dtype=np.float32)
    for name, column in columns.items():
        at = layout.slices[name]
        here = [k for k, one in enumerate(features) if one.column == name]
        if is_numeric(column):
            (only,) = here
            lower, span = range_of(column)
            rows[:, at.start] = (features[only].centre + features[only].half * values[:, only] - lower) / span
        elif column.kind == "binary":
            (only,) = here
            code = features[only].centre + features[only].half * values[:, only]
            rows[:, at] = np.column_stack([1 - code, code])
        else:
            later = values[:, here]
            rows[:, at] = np.column_stack([1 - later.sum(axis=1), later])
    return np.clip(rows, 0.0, 1.0)
