"""Moments and influences of groups of pooled records, as studies of standard errors and their tests compute them. The
product computes the same on secret shares (`colonnade.models.linear.weighted`)."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from colonnade.statistics.gaussian_em import Matrix, Vector


def patterns_of(rows: Matrix) -> list[tuple[NDArray[np.intp], NDArray[np.intp]]]:
    """(the coordinates that a pattern shows, its records), in the order of `PatternStatistics.of_rows`."""
    mask = ~np.isnan(rows)
    packed = np.ascontiguousarray(np.packbits(mask, axis=1))
    _, first, index = np.unique(
        packed.view(np.dtype((np.void, packed.shape[1])))[:, 0], return_index=True, return_inverse=True
    )
    return [(np.flatnonzero(mask[example]), np.flatnonzero(index == number)) for number, example in enumerate(first)]


def group_moments(rows: Matrix, weights: Vector, groups: NDArray[np.intp], count: int) -> list[NDArray[np.float64]]:
    """For each pattern the moments of (1, z_O) in each group: (group, 1 + |O|, 1 + |O|)."""
    out = []
    for observed, places in patterns_of(rows):
        order = places[np.argsort(groups[places], kind="stable")]
        part = np.column_stack([np.ones(len(order)), rows[np.ix_(order, observed)]])
        heavy = part * weights[order, None]
        cuts = np.searchsorted(groups[order], np.arange(count + 1))
        moments = np.zeros((count, part.shape[1], part.shape[1]))
        for group, (start, stop) in enumerate(itertools.pairwise(cuts)):
            moments[group] = heavy[start:stop].T @ part[start:stop]
        out.append(moments)
    return out


def group_influences(
    forms: Sequence[NDArray[np.float64]], moments: Sequence[NDArray[np.float64]]
) -> NDArray[np.float64]:
    """(group, coefficient), by the public map."""
    return np.asarray(sum(np.einsum("cij,gij->gc", form, own) for form, own in zip(forms, moments, strict=True)))


def group_covariance(influences: Matrix) -> Matrix:
    """V of `models/linear/robust.py`; the influences of all groups add up to zero but for rounding."""
    count = len(influences)
    centred = influences - influences.mean(axis=0)
    return np.asarray(count / (count - 1) * centred.T @ centred)
