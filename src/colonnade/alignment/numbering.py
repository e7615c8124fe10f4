"""From tags to rows: the matcher's part of an alignment, and the presence mask that it learns.

Equal keys have equal tags. A dummy, which fills a list up to its declared capacity, has a uniform tag that nothing
equals. So that a dummy does not become a record, each list says (sealed, to the matcher) which of its places are real.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from colonnade.data.cohort import Cohort, UniformWords
from colonnade.errors import EmptyParty, KeyProblem


@dataclass(frozen=True, eq=False)
class Listed:
    """A list as the matcher sees it: the tag of each place, and whether a record stands there."""

    tags: NDArray[Any]
    real: NDArray[np.bool_]

    def found(self) -> tuple[NDArray[np.bytes_], NDArray[np.int64]]:
        """The tags of the records in rising order, and the place of each.

        All tags have one length, so numpy compares them exactly, although it ends a text at its last byte above 0.
        """
        rows = np.ascontiguousarray(self.tags).view(np.uint8).reshape(len(self.tags), -1)
        places = np.flatnonzero(self.real)
        tags, first = np.unique(rows[places].view(f"S{rows.shape[1]}")[:, 0], return_index=True)
        if len(tags) < len(places):
            raise KeyProblem("a party's list has a key twice; check the keys of every party, then align again.")
        return tags, places[first]


@dataclass(frozen=True, eq=False)
class Numbered:
    """The cohort as the matcher knows it, and for each party the cohort row of each place of its list (or -1)."""

    cohort: Cohort
    rows: dict[str, NDArray[np.int64]]


def number_fixed(
    include: str, own: Mapping[str, Listed], others: Mapping[str, Listed], *, randomness: UniformWords
) -> Numbered:
    """The records of `include`. `own[P]` is its own list as raised with P, `others[P]` is P's."""
    first = next(iter(own.values()))
    n = int(first.real.sum())
    mine = np.full(len(first.real), -1, dtype=np.int64)
    mine[first.real] = permutation(n, randomness)
    parties = (include, *others)
    presence = np.zeros((n, len(parties)), dtype=np.bool_)
    presence[:, 0] = True
    rows = {include: mine}
    for column, (party, listed) in enumerate(others.items(), start=1):
        (here, at_home), (there, away) = own[party].found(), listed.found()
        _, left, right = np.intersect1d(here, there, assume_unique=True, return_indices=True)
        rows[party] = np.full(len(listed.real), -1, dtype=np.int64)
        rows[party][away[right]] = mine[at_home[left]]
        inside = rows[party][rows[party] >= 0]
        if not inside.size:
            raise EmptyParty(
                f"party {party!r} has no record in the cohort of {include!r}; check that keys are written the same way "
                "(normalise), or leave it out."
            )
        presence[inside, column] = True
    return Numbered(Cohort(parties, presence), rows)


def number_union(lists: Mapping[str, Listed], *, randomness: UniformWords) -> Numbered:
    """Every record that anybody has."""
    found = {party: listed.found() for party, listed in lists.items()}
    everybody = np.unique(np.concatenate([tags for tags, _ in found.values()]))
    order = permutation(len(everybody), randomness)
    rows = {}
    for party, (tags, places) in found.items():
        rows[party] = np.full(len(lists[party].real), -1, dtype=np.int64)
        rows[party][places] = order[np.searchsorted(everybody, tags)]
    presence = np.zeros((len(everybody), len(lists)), dtype=np.bool_)
    for column, one in enumerate(rows.values()):
        presence[one[one >= 0], column] = True
    return Numbered(Cohort(tuple(lists), presence), rows)


def permutation(n: int, randomness: UniformWords) -> NDArray[np.int64]:
    """A uniformly random permutation: the ranks of n uniform words, all drawn again in case of a tie."""
    while True:
        words = randomness.words(n)
        order = np.argsort(words, kind="stable")
        if n < 2 or not np.any(words[order[1:]] == words[order[:-1]]):
            return order.astype(np.int64)
