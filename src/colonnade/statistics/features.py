"""How columns become numbers: a public map from declared domains to features in [-1, 1].

A numeric or ordinal column gives one feature, its declared range mapped to [-1, 1]; a binary column -1 or 1; a
categorical column one 0/1 indicator for each category but the first. Nothing is learned from the data, so a
feature's scale is a public fact and so is the sensitivity of what is computed from it.

Or **scores**: one feature a column, x -> s(x) in [-1, 1], with a monotone map s that the party made of its own private
marginal in an earlier step of the job and kept under a label. That the score lies in [-1, 1] is enforced here, so it is
as public a fact as a declared range.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from colonnade.data.aggregation import Values
from colonnade.data.column import Column
from colonnade.errors import SchemaError
from colonnade.federation.facts import PublicFacts
from colonnade.federation.party import Party


@dataclass(frozen=True)
class Feature:
    """value = centre + half * feature, in the column's own units (codes for discrete columns)."""

    name: str
    party: str
    column: str
    category: int | None
    centre: float
    half: float

    def within(self, lower: float, upper: float) -> Feature:
        """The same column with another range mapped to [-1, 1]."""
        return replace(self, centre=(upper + lower) / 2, half=(upper - lower) / 2)


def column_features(party: str, column: Column) -> list[Feature]:
    if column.missing:
        raise SchemaError(
            f"column {column.name!r} may have empty cells, which joint moments cannot use; leave it out with columns=,"
            " or complete it first."
        )
    if column.kind == "categorical":
        assert column.categories is not None
        return [
            Feature(f"{column.name}[{label}]", party, column.name, code, 0.0, 1.0)
            for code, label in enumerate(column.categories)
            if code > 0
        ]
    if column.discrete:
        assert column.categories is not None
        half = max((len(column.categories) - 1) / 2, 0.5)
        return [Feature(column.name, party, column.name, None, half, half)]
    assert column.lower is not None
    assert column.upper is not None
    return [
        Feature(
            column.name,
            party,
            column.name,
            None,
            (column.upper + column.lower) / 2,
            (column.upper - column.lower) / 2,
        )
    ]


def score_features(party: str, column: Column) -> list[Feature]:
    """One score for any kind of column; it has no units to return to."""
    column_features(party, column)  # the same columns are refused
    return [Feature(column.name, party, column.name, None, 0.0, 1.0)]


def features(facts: PublicFacts, names: Sequence[str] | None = None, *, scores: bool = False) -> list[Feature]:
    """The features of the named columns (all by default), party by party in the order of the facts."""
    make = score_features if scores else column_features
    for name in names or ():
        facts.owner(name)
    return [
        feature
        for party, columns in facts.columns.items()
        for column in columns.values()
        if names is None or column.name in names
        for feature in make(party, column)
    ]


@dataclass(frozen=True, eq=False)
class ScoreMap:
    """A monotone map from a column's encoded values to [-1, 1]: linear between `points`, constant beyond them."""

    points: NDArray[np.float64]
    levels: NDArray[np.float64]

    def __call__(self, encoded: NDArray[Any], *, discrete: bool) -> NDArray[np.float64]:
        """Scores, clipped whatever the map says; a cell that became empty after the check counts as nothing."""
        empty = encoded < 0 if discrete else np.isnan(encoded)
        found = np.interp(encoded, self.points, self.levels)
        return np.asarray(np.where(empty, 0.0, np.clip(np.nan_to_num(found), -1.0, 1.0)), dtype=np.float64)


def keep_scores(me: Party, label: str, maps: Mapping[str, ScoreMap]) -> None:
    """Remember this party's score maps for the later steps of the job that name the label."""
    me.keep(_kept(label), {name: {"points": one.points, "levels": one.levels} for name, one in maps.items()})


def kept_scores(me: Party, label: str) -> dict[str, ScoreMap]:
    plain: Mapping[str, Mapping[str, NDArray[np.float64]]] = me.recall(_kept(label))
    return {name: ScoreMap(one["points"], one["levels"]) for name, one in plain.items()}


def _kept(label: str) -> str:
    return f"scores: {label}"


def design_chunks(
    me: Party, wanted: Sequence[Feature], *, scores: str | None = None
) -> Iterator[tuple[NDArray[np.int64], NDArray[np.float64]]]:
    """(cohort rows, features) of the records that this party has, a chunk at a time.

    With `scores`, through the maps that this party kept under that label.
    """
    mine = tuple(feature for feature in wanted if feature.party == me.name)
    names = list(dict.fromkeys(feature.column for feature in mine))
    if names:
        maps = None if scores is None else kept_scores(me, scores)
        yield from me.mapped(names, Design(mine, {name: me.block.columns[name].discrete for name in names}, maps))


@dataclass(frozen=True, eq=False)
class Design:
    """Features of a chunk of records; `discrete` says which columns are codes, `maps` are scores if there are any."""

    features: tuple[Feature, ...]
    discrete: Mapping[str, bool]
    maps: Mapping[str, ScoreMap] | None

    def __call__(self, at: NDArray[np.int64], values: Values) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
        out = np.empty((len(at), len(self.features)))
        for position, feature in enumerate(self.features):
            encoded = values[feature.column]
            if self.maps is not None:
                out[:, position] = self.maps[feature.column](encoded, discrete=self.discrete[feature.column])
            elif feature.category is None:
                # A cell that became empty after the block was checked counts as nothing; NaN has no integer.
                scaled = np.nan_to_num((encoded - feature.centre) / feature.half, nan=0.0)
                out[:, position] = np.clip(scaled, -1.0, 1.0)
            else:
                indicator = (encoded == feature.category).astype(np.float64)
                out[:, position] = np.clip((indicator - feature.centre) / feature.half, -1.0, 1.0)
        return at, out


def design(me: Party, wanted: Sequence[Feature]) -> NDArray[np.float64]:
    """This party's features over the whole cohort; a record that it lacks is a row of zeros."""
    whole = np.zeros((me.facts.n, sum(feature.party == me.name for feature in wanted)))
    for at, part in design_chunks(me, wanted):
        whole[at] = part
    return whole
