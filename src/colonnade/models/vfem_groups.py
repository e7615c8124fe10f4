"""Which parties hide behind one another when the response holder sees sums of linear predictors.

A sum over whoever has a record hides nobody for long. A party that has a record by itself is its own sum. And over many
rounds the sums of the records of one pattern span, as vectors over rounds, the space of its parties' coefficients; the
spaces of {b, c} and of {b, d} meet in that of b, so that linear algebra splits the sums again (`told_apart` in
`tests/privacy/test_vfem_exchange.py`). What cannot be told apart are parties that are always summed together.

So the parties other than the response holder form groups of two or more. A group is summed at the records that all of
it has; elsewhere its blocks are left out, as if they were missing. Of all ways to form groups the one is taken that
keeps the most cells. Every data party works it out from the presence mask, which all of them know.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

Mask = NDArray[np.bool_]
Groups = tuple[tuple[int, ...], ...]
"""Places of parties; each party other than the response holder is in one group."""

MOST = 9
"""Other parties up to which all ways to form groups are compared (3,425 for nine); more of them form one group."""


def alone(places: Sequence[int]) -> Groups:
    """Every party by itself: of the plain exchange."""
    return tuple((place,) for place in places)


def chosen_groups(masks: Mask, others: Sequence[int], widths: Sequence[int]) -> Groups:
    """The groups that keep the most cells of the records in `masks` (record x party); the coarsest of equals."""
    if len(others) > MOST:
        return (tuple(others),)
    patterns, counts = np.unique(masks, axis=0, return_counts=True)

    def kept(groups: Groups) -> int:
        return sum(
            int(counts[patterns[:, list(group)].all(axis=1)].sum()) * sum(widths[place] for place in group)
            for group in groups
        )

    return max(sorted(_partitions(tuple(others)), key=len), key=kept)


def _partitions(places: tuple[int, ...]) -> Iterator[Groups]:
    """All ways to form groups of two or more."""
    if not places:
        yield ()
        return
    first, rest = places[0], places[1:]
    for chosen in range(1, 1 << len(rest)):
        group = (first, *(place for at, place in enumerate(rest) if chosen >> at & 1))
        left = tuple(place for place in rest if place not in group)
        if len(left) != 1:
            for others in _partitions(left):
                yield (group, *others)


def kept_blocks(masks: Mask, groups: Groups) -> Mask:
    """The mask of the blocks that are used: of a group all or none."""
    used = masks.copy()
    for group in groups:
        used[:, list(group)] = np.all(masks[:, list(group)], axis=1, keepdims=True)
    return used
