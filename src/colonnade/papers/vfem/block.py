"""What a party does by itself in the rounds: its block in standard units, and its part of the E and M steps.

Columns are centred and scaled by the party's own records (and so is the response), as the paper's are; the party turns
nothing back, the coordinator does with the units that come with the estimates. What is derived from the block is made
again whenever it is not in memory, so that a party that was restarted goes on; only small states are kept on disk.

**Groups.** With masking the response holder sees sums of linear predictors. A sum over whichever parties have a record
hides none of them for long. A party that has a record by itself is its own sum. And over many rounds the sums of the
records of one pattern span, as vectors over rounds, the space of its parties' coefficients; the spaces of {b, c} and of
{b, d} meet in that of b, so that linear algebra splits the sums again (`told_apart` in
`tests/privacy/test_vfem_exchange.py`). What cannot be told apart are parties that are always summed together.

So the parties other than the response holder form groups of two or more. A group is summed at the records that all of
it has; elsewhere its blocks are left out, as if they were missing. Of all ways to form groups the one is taken that
keeps the most cells. Every data party works it out from the presence mask, which all of them know.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np
from numpy.typing import NDArray

from colonnade.errors import BadArguments, NotEstimable
from colonnade.federation.facts import PublicFacts
from colonnade.federation.party import Party
from colonnade.papers.vfem.model import BlockParameters, own_moments
from colonnade.statistics.features import Feature, WithResponse
from colonnade.statistics.features import design as cohort_features
from colonnade.statistics.gaussian_em import Matrix, PatternStatistics, Vector

Mask = NDArray[np.bool_]
Groups = tuple[tuple[int, ...], ...]
"""Places of parties; each party other than the response holder is in one group."""

MOST = 9
"""Other parties up to which all ways to form groups are compared (3,425 for nine); more of them form one group."""
SINGULAR = 1e-9
"""Smallest eigenvalue of a block's correlation matrix; below it columns determine one another."""
FLAT = 1e-8
"""Smallest standard deviation of a feature in [-1, 1]."""


@dataclass(frozen=True)
class Design(WithResponse):
    """The public shape of a job: covariates, response, who has what. `names` end with the response."""

    facts: PublicFacts
    names: tuple[str, ...]

    @classmethod
    def of(cls, facts: PublicFacts, names: Sequence[str]) -> Design:
        design = cls(facts, tuple(names))
        if len(design.names) < 2 or facts.column(design.names[-1]).kind == "categorical":
            raise BadArguments("the names must be at least one covariate and then a response that is a number.")
        return design

    @property
    def covariates(self) -> list[Feature]:
        return [feature for feature in self.features if feature.name != self.response]

    def width(self, party: str) -> int:
        """How many covariates a party has."""
        return sum(feature.party == party for feature in self.covariates)


# --- groups -----------------------------------------------------------------------------------------------


def chosen_groups(masks: Mask, others: Sequence[int], widths: Sequence[int]) -> Groups:
    """The groups that keep the most cells of the records in `masks` (record x party); the coarsest of equals."""
    if len(others) > MOST:
        return (tuple(others),)
    patterns, counts = np.unique(masks, axis=0, return_counts=True)

    def cells(groups: Groups) -> int:
        return sum(
            int(counts[patterns[:, list(group)].all(axis=1)].sum()) * sum(widths[place] for place in group)
            for group in groups
        )

    return max(sorted(_partitions(tuple(others)), key=len), key=cells)


def _partitions(places: tuple[int, ...]) -> Iterator[Groups]:
    """All ways to form groups of two or more."""
    if not places:
        yield ()
        return
    first, rest = places[0], places[1:]
    for chosen in range(1, 1 << len(rest)):
        group = (first, *(place for bit, place in enumerate(rest) if chosen >> bit & 1))
        left = tuple(place for place in rest if place not in group)
        if len(left) != 1:
            for others in _partitions(left):
                yield (group, *others)


def used_blocks(masks: Mask, groups: Groups) -> Mask:
    """The mask of the blocks that are used: of a group all or none."""
    used = masks.copy()
    for group in groups:
        used[:, list(group)] = np.all(masks[:, list(group)], axis=1, keepdims=True)
    return used


# --- a party's block --------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class OwnBlock:
    """A party's covariates in standard units, for the records used that it has; `own_rows` are their cohort rows.

    `index` is the number of each cohort row's pattern (-1: not used), `masks` the patterns that occur, of the blocks
    that are used. `groups` are the parties whose predictors are summed. `response` is the response in standard units
    over the cohort, at its holder, 0 where it is not used.
    """

    place: int
    groups: Groups
    own_rows: NDArray[np.intp]
    x: Matrix
    centre: Vector
    scale: Vector
    products: Matrix
    masks: Mask
    index: NDArray[np.intp]
    response: Vector | None
    response_units: tuple[float, float]

    @cached_property
    def counts(self) -> Vector:
        """Records of each pattern."""
        return np.bincount(self.index[self.index >= 0], minlength=len(self.masks)).astype(float)

    @cached_property
    def n(self) -> int:
        return int(np.count_nonzero(self.index >= 0))

    @cached_property
    def rows(self) -> tuple[NDArray[np.intp], ...]:
        """The cohort rows, of those used, that each party has."""
        used = np.flatnonzero(self.index >= 0)
        return tuple(used[self.masks[self.index[used], place]] for place in range(self.masks.shape[1]))

    @cached_property
    def lacks(self) -> Matrix:
        """1.0 where a pattern lacks a party's block (pattern x party)."""
        return (~self.masks).astype(np.float64)

    @cached_property
    def own(self) -> PatternStatistics:
        """The moments of the covariates, which have sum 0."""
        return own_moments(float(len(self.own_rows)), np.zeros(len(self.centre)), self.products)

    def maximised(
        self, block: BlockParameters, e: Vector, *, score_sum: float, variance_excess: float, sigma2: float
    ) -> tuple[Vector, Vector, Matrix]:
        """The gradient (7), and mean and covariance by equation (6), from the residuals e = s2 r/tau of the party's
        records, and of those that lack the block the sum of r/tau and the sum of (r/tau)^2 - 1/tau.

        Records that lack the block have conditional mean mu + g r/tau, g = Sigma beta, and conditional covariance
        Sigma - g g'/tau, so these numbers and s2 stand for all of them.
        """
        n = self.n
        gain, count = block.gain, n - len(self.own_rows)
        gradient = (self.x.T @ e + sigma2 * (score_sum * block.mu + variance_excess * gain)) / n
        mean = (count * block.mu + gain * score_sum) / n  # the party's own records have sum 0
        shift = block.mu - mean
        products = self.own.patterns[0].about(mean)[1]
        products += count * (np.outer(shift, shift) + block.sigma) + variance_excess * np.outer(gain, gain)
        cross = score_sum * np.outer(shift, gain)
        return gradient, mean, (products + cross + cross.T) / n

    def sums(self, block: BlockParameters, scores: Vector, score_sums: Vector, weights: Vector) -> dict[str, Any]:
        """This block's columns of `Terms`: `scores` = r/tau of the party's records, `score_sums` its sums and
        `weights` = 1/tau per pattern."""
        width, patterns = self.x.shape[1], len(self.masks)
        plain, weighted = np.zeros((patterns, width)), np.zeros((patterns, width))
        index = self.index[self.own_rows]
        for pattern in range(patterns):
            rows = index == pattern
            if self.masks[pattern, self.place]:
                plain[pattern] = self.x[rows].sum(axis=0)
                weighted[pattern] = scores[rows] @ self.x[rows]
            else:
                plain[pattern] = self.counts[pattern] * block.mu
                weighted[pattern] = score_sums[pattern] * block.mu
        first = self.lacks.T @ (weights[:, None] * plain)
        second = np.vstack([self.lacks.T, np.ones(patterns)]) @ (weights[:, None] * weighted)
        return {"first": first, "second": second, "score_sum": weighted.sum(axis=0)}

    def eigenvalue_range(self) -> tuple[float, float]:
        """Largest and smallest eigenvalue of the correlation matrix; refused where columns determine one another."""
        if not self.x.shape[1]:
            return 1.0, 1.0
        values = np.linalg.eigvalsh(self.products / len(self.own_rows))
        if values[0] < SINGULAR:
            raise NotEstimable("columns of this party determine one another in the records used; leave one out.")
        return float(values[-1]), float(values[0])


_blocks: WeakKeyDictionary[Party, tuple[str, tuple[str, ...], OwnBlock]] = WeakKeyDictionary()


def own_block(me: Party, design: Design) -> OwnBlock:
    """This party's block in standard units; made once for a job in each process."""
    stored = _blocks.get(me)
    if stored is None or stored[:2] != (me.job, design.names):
        stored = (me.job, design.names, _standardised(me, design))
        _blocks[me] = stored
    return stored[2]


def forget(me: Party) -> None:
    _blocks.pop(me, None)


def unpacked_masks(design: Design, packed: Any) -> Mask:
    """(record, party) from the packed mask of each party."""
    columns = [
        np.unpackbits(np.asarray(packed[party], dtype=np.uint8), count=design.facts.n) for party in design.parties
    ]
    return np.column_stack(columns).astype(bool)


def _standardised(me: Party, design: Design) -> OwnBlock:
    agreed = me.recall("vfem masks")
    masks = unpacked_masks(design, agreed["masks"])
    used = masks[:, design.parties.index(design.response_party)]
    place = design.parties.index(me.name)
    code = masks @ (1 << np.arange(len(design.parties), dtype=np.int64))
    patterns, index = np.unique(np.where(used, code, -1), return_inverse=True)
    index = index.reshape(-1).astype(np.intp)
    if patterns[0] < 0:
        patterns, index = patterns[1:], index - 1
    mine = [feature for feature in design.features if feature.party == me.name]
    own_rows = np.flatnonzero(used & masks[:, place])
    own = cohort_features(me, mine)[own_rows]
    if len(own_rows) < 2 + len(mine):
        raise NotEstimable(
            f"only {len(own_rows)} of the records used are here, for {len(mine)} features; leave this party out."
        )
    centre, scale = own.mean(axis=0), own.std(axis=0)
    flat = [feature.name for feature, deviation in zip(mine, scale, strict=True) if deviation < FLAT]
    if flat:
        raise NotEstimable(
            f"{', '.join(map(repr, flat))} does not vary in the records used; leave it out with columns=."
        )
    own = (own - centre) / scale
    target = np.array([feature.name == design.response for feature in mine])
    response, units = None, (0.0, 1.0)
    if target.any():
        which = int(np.flatnonzero(target)[0])
        response = np.zeros(me.facts.n)
        response[own_rows] = own[:, which]
        units = (float(centre[which]), float(scale[which]))
    x = np.ascontiguousarray(own[:, ~target])
    return OwnBlock(
        place=place,
        groups=tuple(tuple(group) for group in agreed["groups"]),
        own_rows=own_rows,
        x=x,
        centre=centre[~target],
        scale=scale[~target],
        products=x.T @ x,
        masks=(patterns[:, None] >> np.arange(len(design.parties))) & 1 > 0,
        index=index,
        response=response,
        response_units=units,
    )
