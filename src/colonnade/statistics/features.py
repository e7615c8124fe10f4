"""How columns become numbers: a public map from declared domains to features in [-1, 1].

A numeric or ordinal column gives one feature, its declared range mapped to [-1, 1]; a binary column -1 or 1; a
categorical column one 0/1 indicator for each category but the first. Nothing is learned from the data, so a
feature's scale is a public fact and so is the sensitivity of what is computed from it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

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


def features(facts: PublicFacts, names: Sequence[str] | None = None) -> list[Feature]:
    """The features of the named columns (all by default), party by party in the order of the facts."""
    for name in names or ():
        facts.owner(name)
    return [
        feature
        for party, columns in facts.columns.items()
        for column in columns.values()
        if names is None or column.name in names
        for feature in column_features(party, column)
    ]


def design_chunks(me: Party, wanted: Sequence[Feature]) -> Iterator[tuple[NDArray[np.int64], NDArray[np.float64]]]:
    """(cohort rows, features) of the records that this party has, a chunk at a time."""
    mine = [feature for feature in wanted if feature.party == me.name]
    names = list(dict.fromkeys(feature.column for feature in mine))
    if not names:
        return
    for at, values in me.chunks(names):
        out = np.empty((len(at), len(mine)))
        for position, feature in enumerate(mine):
            encoded = values[feature.column]
            if feature.category is None:
                # A cell that became empty after the block was checked counts as nothing; NaN has no integer.
                scaled = np.nan_to_num((encoded - feature.centre) / feature.half, nan=0.0)
                out[:, position] = np.clip(scaled, -1.0, 1.0)
            else:
                out[:, position] = encoded == feature.category
        yield at, out


def design(me: Party, wanted: Sequence[Feature]) -> NDArray[np.float64]:
    """This party's features over the whole cohort; a record that it lacks is a row of zeros."""
    whole = np.zeros((me.facts.n, sum(feature.party == me.name for feature in wanted)))
    for at, part in design_chunks(me, wanted):
        whole[at] = part
    return whole
