"""What the models on noisy moments share: the bound of a row, second moments per record, and new rows as features."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from colonnade.data.column import Column, Columns
from colonnade.errors import BadArguments, BadPrivacyParameter, UnknownColumn
from colonnade.federation.facts import PublicFacts
from colonnade.federation.options import Option, Presence, View
from colonnade.formatting import number
from colonnade.statistics import forecast
from colonnade.statistics.features import Design, Feature, features
from colonnade.statistics.joint import account_notes
from colonnade.statistics.moments import MomentsLayout, MomentsResult, available_cases

Clip = Mapping[str, float] | float
"""{party: norm of its part of a row}, or one share of the norm that each party's columns can reach."""
ClipOption = Annotated[
    Clip | None,
    Option(
        "The norm of a party's part of a row, or one share, up to 1, of what every party's columns can reach (the root"
        " of their number). Less noise, some bias.",
        form="PARTY=NORM",
    ),
]
PresenceOption = Annotated[
    Presence,
    Option(
        "ignore takes an absent block as zeros; secret and known take each covariance from the records that have both"
        " blocks, and known shows the share holders who has which record."
    ),
]


def norm_bounds(facts: PublicFacts, names: Sequence[str] | None, clip: Clip | None = None) -> dict[str, float]:
    """{party: largest norm of its part of a row}: the declared clip, but never more than its columns can reach.

    A column's features together have norm at most 1 (one number in [-1, 1], or indicators of which one is 1), so a
    party's row has norm at most the root of the number of its columns. That bound clips nothing.
    """
    owned: dict[str, set[str]] = {}
    for feature in features(facts, names):
        owned.setdefault(feature.party, set()).add(feature.column)
    reach = {party: math.sqrt(len(columns)) for party, columns in owned.items()}
    if clip is None:
        return reach
    if not isinstance(clip, Mapping):
        if isinstance(clip, bool) or not isinstance(clip, (int, float)) or not 0 < clip <= 1:
            raise BadPrivacyParameter(f"a clip for all parties is a share from 0 to 1 of their norms, not {clip!r}.")
        return {party: clip * bound for party, bound in reach.items()}
    for party, bound in clip.items():
        if party not in reach or not (isinstance(bound, (int, float)) and 0 < bound < math.inf):
            raise BadPrivacyParameter(f"clip must give a positive norm for parties that take part, not {clip!r}.")
    return {party: min(bound, clip.get(party, bound)) for party, bound in reach.items()}


def missing_blocks(presence: Presence) -> str:
    """What `second_moments` assumes about records that lack a block, for people."""
    if presence == "ignore":
        return "A block that a record lacks counts as zeros, where a column's own values lie between -1 and 1."
    return (
        "The covariance of two columns is that of the records that have both: right if records are missing completely"
        " at random."
    )


# --- second moments ----------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class SecondMoments:
    """Estimates of E[z z'] for z = (1, features) or the features alone; `noise_sd` is the root mean square over the
    entries of the standard deviation that the noise gives them."""

    names: tuple[str, ...]
    matrix: NDArray[np.float64]
    noise_sd: float


def second_moments(moments: MomentsResult, *, overwrite: bool = False) -> SecondMoments:
    """Average products per record. `overwrite` lets the result take the place of a Gram matrix too large to be there
    twice; the moments are of no use after that.

    With presence ignored an absent block counts as zeros. Otherwise an entry is the product of both means over all
    records that have them, plus the covariance over the records that have both cells (available cases): right if
    records are missing completely at random. The mean of the products alone would be as right, but off by as much as a
    mean differs between all records and those with both, times the other mean: for a column that is near one end of its
    range, many times its deviation. The noisy count of those records is kept above twice its noise, so that a pair of
    blocks that hardly ever meet is shrunk to nothing.
    """
    if moments.presence == "ignore":
        (gram,), (entries,) = moments.grams, moments.entries
        matrix = np.divide(gram, moments.n, out=gram if overwrite else None)
        second = SecondMoments(names=entries, matrix=matrix, noise_sd=moments.noise_sd / moments.n)
        return without_impossible(second, moments.features)
    cases = available_cases(moments)
    deviation = moments.noise_sd * np.sqrt(cases.terms)
    divisor = np.maximum(cases.counts, np.maximum(2 * deviation, 1.0))
    matrix, noise = np.zeros((2, len(divisor) + 1, len(divisor) + 1))
    means = cases.sums / divisor  # means[j, k]: of feature j over the records that have both
    # The constant is everywhere: its product with a feature is averaged over the records that have the feature.
    matrix[0, 1:] = matrix[1:, 0] = mean = np.diag(means)
    matrix[1:, 1:] = cases.products / divisor - means * means.T + np.outer(mean, mean)
    noise[1:, 1:] = deviation / divisor
    noise[0, 1:] = noise[1:, 0] = np.diag(noise)[1:]
    matrix[0, 0], noise[0, 0] = 1.0, 0.0
    names = ("1", *(feature.name for feature in moments.features))
    second = SecondMoments(names=names, matrix=matrix, noise_sd=float(np.sqrt(np.mean(noise**2))))
    return without_impossible(second, moments.features)


def without_impossible(second: SecondMoments, declared: Sequence[Feature]) -> SecondMoments:
    """Products of two categories of one column are 0 in every record, whatever the noise says: a public fact.

    A column of many categories makes most of a matrix, so most of its noise goes. The constant's square is 1, as n
    is public."""
    matrix = second.matrix
    place = {name: index for index, name in enumerate(second.names)}
    indicators: dict[str, list[int]] = {}
    for feature in declared:
        if feature.category is not None and feature.name in place:
            indicators.setdefault(feature.column, []).append(place[feature.name])
    impossible = 0
    for indicator in indicators.values():
        diagonal = matrix[indicator, indicator]
        matrix[np.ix_(indicator, indicator)] = 0.0
        matrix[indicator, indicator] = diagonal
        impossible += len(indicator) * (len(indicator) - 1)
    if second.names[0] == "1":
        matrix[0, 0] = 1.0
    return SecondMoments(
        names=second.names, matrix=matrix, noise_sd=second.noise_sd * math.sqrt(1 - impossible / matrix.size)
    )


# --- what it costs -----------------------------------------------------------------------------------------


def moment_views(layout: MomentsLayout, *, view: View, delta: float) -> tuple[str, ...]:
    """Both views of one release of moments; nothing to say where it is exact."""
    return account_notes(layout.roster, view=view, delta=delta, releases=layout.releases) if layout.mu else ()


def forecast_moments(layout: MomentsLayout, epsilon: float | None) -> tuple[str, ...]:
    """What noise will do to correlations of columns as they were declared, in [-1, 1]."""
    if not layout.mu:
        return ()
    return forecast.correlations(
        noise_sd=layout.noise_sd,
        n=layout.facts.n,
        deviation=0.5,
        spread="a column's standard deviation is a quarter of its declared range",
        features=[feature.column for feature in layout.features],
        epsilon=epsilon,
    )


def noise_text(n: int, noise_sd: float) -> str:
    if not noise_sd:
        return f"Every sum over the {number(n)} records is exact."
    return f"Every sum over the {number(n)} records carries noise with standard deviation {noise_sd:.4g}."


def empty_text(empty: Mapping[str, float], noise_sd: float) -> str:
    """How many cells of each column are empty: differences of two noisy counts. Nothing where none were counted."""
    if not empty:
        return ""
    counts = ", ".join(f"{name} {number(round(max(count, 0.0)))}" for name, count in empty.items())
    noise = f" (noise with standard deviation {math.sqrt(2) * noise_sd:.3g})" if noise_sd else ""
    return f"Empty cells of records that a party has{noise}: {counts}."


# --- new rows ----------------------------------------------------------------------------------------------


def feature_matrix(
    rows: pd.DataFrame | NDArray[Any], wanted: Sequence[Feature], columns: Mapping[str, Column]
) -> NDArray[np.float64]:
    """Rows as the features that a model was fitted on: from a frame of the columns, or an array of the features."""
    if not isinstance(rows, pd.DataFrame):
        array = np.asarray(rows, dtype=np.float64)
        if array.ndim != 2 or array.shape[1] != len(wanted):
            raise BadArguments(
                f"an array must have one column for each of the {len(wanted)} features, not shape {array.shape}; or"
                " give a frame of the columns."
            )
        return array
    encoded: dict[str, NDArray[Any]] = {}
    for name in dict.fromkeys(feature.column for feature in wanted):
        if name not in rows.columns:
            raise UnknownColumn(f"the frame has no column {name!r}, on which the model was fitted.")
        encoded[name] = columns[name].encode(rows[name])
    return Design(tuple(wanted))(np.arange(len(rows)), encoded)[1]


def consecutive(widths: Sequence[int]) -> list[slice]:
    """Places of these widths, one after another."""
    return [slice(first, last) for first, last in itertools.pairwise(itertools.accumulate(widths, initial=0))]


def columns_of(facts: PublicFacts, wanted: Sequence[Feature]) -> Columns:
    return Columns(facts.column(name) for name in dict.fromkeys(feature.column for feature in wanted))
