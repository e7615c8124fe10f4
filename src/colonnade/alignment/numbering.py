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

    def found(self) -> dict[bytes, int]:
        """The place of each record's tag."""
        rows = self.tags.view(np.uint8).reshape(len(self.tags), -1)
        places = {rows[at].tobytes(): int(at) for at in np.flatnonzero(self.real)}
        if len(places) < int(self.real.sum()):
            raise KeyProblem("a party's list has a key twice; check the keys of every party, then align again.")
        return places


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
        places = own[party].found()
        rows[party] = np.full(len(listed.real), -1, dtype=np.int64)
        for tag, at in listed.found().items():
            if tag in places:
                rows[party][at] = mine[places[tag]]
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
    numbers: dict[bytes, int] = {}
    drafts = {party: np.full(len(listed.real), -1, dtype=np.int64) for party, listed in lists.items()}
    for party, listed in lists.items():
        for tag, at in listed.found().items():
            drafts[party][at] = numbers.setdefault(tag, len(numbers))
    order = permutation(len(numbers), randomness)
    rows = {party: np.where(draft >= 0, order[draft], -1) for party, draft in drafts.items()}
    presence = np.zeros((len(numbers), len(lists)), dtype=np.bool_)
    for column, found in enumerate(rows.values()):
        presence[found[found >= 0], column] = True
    return Numbered(Cohort(tuple(lists), presence), rows)


def permutation(n: int, randomness: UniformWords) -> NDArray[np.int64]:
    """A uniformly random permutation: the ranks of n uniform words, all drawn again in case of a tie."""
    while True:
        words = randomness.words(n)
        order = np.argsort(words, kind="stable")
        if n < 2 or not np.any(words[order[1:]] == words[order[:-1]]):
            return order.astype(np.int64)
