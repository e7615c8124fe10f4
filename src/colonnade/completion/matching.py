"""Draws of what a party lacks, by predictive mean matching given what the others know of a record.

A record's own columns are drawn one after the other: each gets the value that the record of a **donor** has, one of
those with the nearest predictions given the others' columns and the columns before it. So every drawn value is one that
occurs: zeros stay frequent, bounds hold, categories are drawn. A record with some cells empty is the same with the
filled ones known from the start.

Matching is of the first type (van Buuren 2018, section 3.4): predictions for those who lack a column have drawn
parameters, predictions for donors the estimated ones. Were both drawn, a common factor would cancel, and the
uncertainty of the model with it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy import linalg
from scipy.spatial import KDTree

Reals = NDArray[np.float64]
Places = NDArray[np.intp]

NEAREST = 5
"""Donors of which one is taken."""
FEWEST_DONORS = 50
"""Of the same pattern of presence; with fewer, all records of the party that another party has are donors."""
JITTER = 1e-5
"""Standard deviations by which predictions are moved, so that equal ones have different donors."""


@dataclass(frozen=True, eq=False)
class Conditional:
    """A party's features given the others': slopes on the known ones, intercept, and the covariance that is left."""

    slopes: Reals
    intercept: Reals
    left: Reals

    @classmethod
    def of(cls, mean: Reals, covariance: Reals, own: Places, known: Places) -> Conditional:
        """From the law of all features; `own` and `known` are places in it."""
        among = covariance[np.ix_(known, known)]
        across = covariance[np.ix_(known, own)]
        slopes = linalg.solve(among, across, assume_a="pos").T if known.size else np.zeros((own.size, 0))
        left = covariance[np.ix_(own, own)] - slopes @ across
        return cls(slopes, mean[own] - slopes @ mean[known], (left + left.T) / 2)


@dataclass(frozen=True, eq=False)
class Expected:
    """What the others say of each record: the means of its features under the drawn parameters and the estimated ones,
    and the covariances that are left, by pattern."""

    drawn: Reals
    estimated: Reals
    left: Mapping[int, Reals]
    left_estimated: Mapping[int, Reals]


@dataclass(frozen=True, eq=False)
class OwnRows:
    """A party's features over the cohort, the places of each column, and which records lack which columns.

    `pattern` is a number for who else is known of a record, -1 for none at all; `donors` are complete records.
    """

    features: Reals
    places: Sequence[Places]
    rows: Places
    lost: NDArray[np.bool_]
    pattern: NDArray[np.int64]
    donors: NDArray[np.bool_]

    def drawn(self, expected: Expected, generator: np.random.Generator) -> NDArray[np.int64]:
        """For each of `rows` and each column the donor's row; -1 where the column is not lost."""
        chosen = np.full((self.rows.size, len(self.places)), -1, dtype=np.int64)
        for pattern in np.unique(self.pattern[self.rows]):
            donors = np.flatnonzero(self.donors & (self.pattern == pattern))
            if donors.size < FEWEST_DONORS:
                donors = np.flatnonzero(self.donors & (self.pattern >= 0))
            if not donors.size:
                continue
            alike = self.pattern[self.rows] == pattern
            for lost in np.unique(self.lost[alike], axis=0):
                group = np.flatnonzero(alike & (self.lost == lost).all(axis=1))
                chosen[np.ix_(group, lost.nonzero()[0])] = self._matched(
                    self.rows[group], lost, donors, expected, int(pattern), generator
                )
        return chosen

    def _matched(
        self,
        rows: Places,
        lost: NDArray[np.bool_],
        donors: Places,
        expected: Expected,
        pattern: int,
        generator: np.random.Generator,
    ) -> NDArray[np.int64]:
        """The donors of each lost column, in order."""
        left, left_estimated = expected.left[pattern], expected.left_estimated[pattern]
        off = self.features[rows] - expected.drawn[rows]
        given = self.features[donors] - expected.estimated[donors]
        filled = [places for places, gone in zip(self.places, lost, strict=True) if not gone]
        known = np.concatenate([*filled, np.zeros(0, dtype=np.intp)])
        chosen = []
        for column in lost.nonzero()[0].tolist():
            places = self.places[column]
            wanted = expected.drawn[np.ix_(rows, places)] + off[:, known] @ _toward(left, known, places)
            slopes = _toward(left_estimated, known, places)
            offered = expected.estimated[np.ix_(donors, places)] + given[:, known] @ slopes
            rest = left_estimated[np.ix_(places, places)] - left_estimated[np.ix_(places, known)] @ slopes
            match = nearest(_whitened(rest, wanted), _whitened(rest, offered), generator)
            chosen.append(donors[match])
            off[:, places] = self.features[np.ix_(donors[match], places)] - expected.drawn[np.ix_(rows, places)]
            known = np.concatenate([known, places])
        return np.column_stack(chosen)


def _toward(left: Reals, known: Places, places: Places) -> Reals:
    """The slopes of some features on the known ones."""
    if not known.size:
        return np.zeros((0, len(places)))
    # A category that others imply makes the matrix singular: a small ridge decides.
    among = left[np.ix_(known, known)]
    ridge = 1e-6 * max(float(np.trace(among)) / len(known), 1e-12)
    return np.asarray(linalg.solve(among + ridge * np.eye(len(known)), left[np.ix_(known, places)], assume_a="pos"))


def _whitened(rest: Reals, rows: Reals) -> Reals:
    """Rows in units of what is left of them; of one feature the unit does not matter."""
    ridge = 1e-6 * max(float(np.trace(rest)) / len(rest), 1e-12)
    root = linalg.cholesky(rest + ridge * np.eye(len(rest)), lower=True)
    return np.asarray(linalg.solve_triangular(root, rows.T, lower=True).T)


def nearest(wanted: Reals, offered: Reals, generator: np.random.Generator) -> Places:
    """For each wanted row one of the NEAREST offered ones."""
    few = min(NEAREST, len(offered))
    wanted, offered = (rows + JITTER * generator.standard_normal(rows.shape) for rows in (wanted, offered))
    picked = generator.integers(few, size=len(wanted))
    if wanted.shape[1] > 1:
        _, index = KDTree(offered).query(wanted, k=few)
        return np.asarray(index, dtype=np.intp).reshape(len(wanted), few)[np.arange(len(wanted)), picked]
    order = np.argsort(offered[:, 0])
    ordered = offered[order, 0]
    width = min(2 * few, len(ordered))
    start = np.clip(np.searchsorted(ordered, wanted[:, 0]) - few, 0, len(ordered) - width)
    window = start[:, None] + np.arange(width)
    apart = np.abs(ordered[window] - wanted)
    close = np.argpartition(apart, few - 1, axis=1)[:, :few]
    return np.asarray(order[window[np.arange(len(wanted)), close[np.arange(len(wanted)), picked]]], dtype=np.intp)
