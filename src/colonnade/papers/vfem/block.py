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
from dataclasses import dataclass
from functools import cached_property
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np
from numpy.typing import NDArray

from colonnade.errors import BadArguments, NotEstimable
from colonnade.federation.facts import PublicFacts
from colonnade.federation.party import Party
from colonnade.papers.vfem.model import Block, about, own_likelihood
from colonnade.statistics.features import Feature, design_chunks, features
from colonnade.statistics.gaussian_em import Matrix, Vector

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


# --- What a party does by itself in the rounds of VFEM: its block in standard units, and its part of the E and M steps.
#
# Columns are centred and scaled by the party's own records (and so is the response), as the paper's are; the party turns
# nothing back, the coordinator does with the units that come with the estimates. What is derived from the block is made
# again whenever it is not in memory, so that a party that was restarted goes on; only small states are kept on disk.


SINGULAR = 1e-9
"""Smallest eigenvalue of a block's correlation matrix; below it columns determine one another."""
FLAT = 1e-8
"""Smallest standard deviation of a feature in [-1, 1]."""


@dataclass(frozen=True)
class Design:
    """The public shape of a job: covariates, response, who has what. `names` end with the response."""

    facts: PublicFacts
    names: tuple[str, ...]

    @classmethod
    def of(cls, facts: PublicFacts, names: Sequence[str]) -> Design:
        made = cls(facts, tuple(names))
        if len(made.names) < 2 or facts.column(made.names[-1]).kind == "categorical":
            raise BadArguments("the names must be at least one covariate and then a response that is a number.")
        return made

    @cached_property
    def features(self) -> list[Feature]:
        """Of covariates and response, party by party."""
        return features(self.facts, self.names)

    @property
    def covariates(self) -> list[Feature]:
        return [feature for feature in self.features if feature.name != self.names[-1]]

    @property
    def parties(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(feature.party for feature in self.features))

    @property
    def holder(self) -> str:
        return self.facts.owner(self.names[-1])

    @property
    def others(self) -> tuple[str, ...]:
        return tuple(party for party in self.parties if party != self.holder)


@dataclass(frozen=True, eq=False)
class OwnBlock:
    """A party's covariates in standard units, for the records used that it has; `at` are their cohort rows.

    `index` is the number of each cohort row's pattern (-1: not used), `masks` the patterns that occur, of the blocks
    that are used. `groups` are the parties whose predictors are summed (`vfem_groups.py`). `response` is the response
    in standard units over the cohort, at its holder, 0 where it is not used.
    """

    place: int
    groups: Groups
    at: NDArray[np.intp]
    x: Matrix
    centre: Vector
    scale: Vector
    products: Matrix
    masks: NDArray[np.bool_]
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

    @property
    def group(self) -> tuple[int, ...]:
        """The places of those in whose sum this party's predictor is, its own included."""
        return next(group for group in self.groups if self.place in group)

    def start(self) -> Block:
        """Coefficients 0, available-case mean 0 and covariance."""
        width = self.x.shape[1]
        return Block(np.zeros(width), np.zeros(width), self.products / len(self.at))

    def likelihood(self, block: Block) -> float:
        count = float(len(self.at))
        return own_likelihood(block, *about(count, np.zeros(len(block.mu)), self.products, block.mu))

    def predictor(self, block: Block) -> Vector:
        """x'beta of the records here."""
        return np.asarray(self.x @ block.beta)

    def maximised(self, block: Block, e: Vector, lacking: Lacking) -> tuple[Vector, Vector, Matrix]:
        """The gradient (7), and mean and covariance by equation (6), from the residuals e = s2 r/tau of
        the records here.

        Records that lack the block have conditional mean mu + g r/tau, g = Sigma beta, and conditional covariance
        Sigma - g g'/tau, so three numbers stand for all of them.
        """
        n = self.n
        gain, s2, count = block.gain, lacking.sigma2, n - len(self.at)
        gradient = (self.x.T @ e + s2 * (lacking.pull * block.mu + lacking.excess * gain)) / n
        mean = (count * block.mu + gain * lacking.pull) / n  # the records here have sum 0
        shift = block.mu - mean
        products = about(float(len(self.at)), np.zeros(len(mean)), self.products, mean)[2]
        products += count * (np.outer(shift, shift) + block.sigma) + lacking.excess * np.outer(gain, gain)
        cross = lacking.pull * np.outer(shift, gain)
        return gradient, mean, (products + cross + cross.T) / n

    def sums(self, block: Block, pulled: Vector, pulls: Vector, weights: Vector) -> dict[str, Any]:
        """This block's columns of `Terms`: `pulled` = r/tau of the records here, `pulls` its sums and `weights` = 1/tau
        per pattern."""
        width, patterns = self.x.shape[1], len(self.masks)
        plain, dragged = np.zeros((patterns, width)), np.zeros((patterns, width))
        here = self.index[self.at]
        for number in range(patterns):
            rows = here == number
            if self.masks[number, self.place]:
                plain[number] = self.x[rows].sum(axis=0)
                dragged[number] = pulled[rows] @ self.x[rows]
            else:
                plain[number] = self.counts[number] * block.mu
                dragged[number] = pulls[number] * block.mu
        lacks = (~self.masks).astype(float).T
        first = lacks @ (weights[:, None] * plain)
        second = np.vstack([lacks, np.ones(patterns)]) @ (weights[:, None] * dragged)
        return {"first": first, "second": second, "pull": dragged.sum(axis=0)}


@dataclass(frozen=True)
class Lacking:
    """Of the records that lack a block: sum of r/tau, sum of (r/tau)^2 - 1/tau; and s2."""

    pull: float
    excess: float
    sigma2: float


_blocks: WeakKeyDictionary[Party, tuple[str, tuple[str, ...], OwnBlock]] = WeakKeyDictionary()


def own_block(me: Party, design: Design) -> OwnBlock:
    """This party's block in standard units; made once for a job in each process."""
    known = _blocks.get(me)
    if known is None or known[:2] != (me.job, design.names):
        known = (me.job, design.names, _made(me, design))
        _blocks[me] = known
    return known[2]


def forget(me: Party) -> None:
    _blocks.pop(me, None)


def keep_masks(me: Party, design: Design, masks: Mask, groups: Groups) -> None:
    """(record, party): whose block of which record is used; and the groups."""
    packed = {party: np.packbits(masks[:, place]) for place, party in enumerate(design.parties)}
    me.keep("vfem masks", {"masks": packed, "groups": [list(group) for group in groups]})


def _made(me: Party, design: Design) -> OwnBlock:
    formed = me.recall("vfem masks")
    packed = [np.asarray(formed["masks"][party], dtype=np.uint8) for party in design.parties]
    masks = np.column_stack([np.unpackbits(one, count=me.facts.n) for one in packed]).astype(bool)
    used = masks[:, design.parties.index(design.holder)]
    place = design.parties.index(me.name)
    code = masks @ (1 << np.arange(len(design.parties), dtype=np.int64))
    patterns, index = np.unique(np.where(used, code, -1), return_inverse=True)
    index = index.reshape(-1).astype(np.intp)
    if patterns[0] < 0:
        patterns, index = patterns[1:], index - 1
    shown = (patterns[:, None] >> np.arange(len(design.parties))) & 1 > 0
    mine = [feature for feature in design.features if feature.party == me.name]
    values = np.zeros((me.facts.n, len(mine)))
    for rows, part in design_chunks(me, design.features):
        values[rows] = part
    at = np.flatnonzero(used & masks[:, place])
    whole = values[at]
    if len(at) < 2 + len(mine):
        raise NotEstimable(
            f"only {len(at)} of the records used are here, for {len(mine)} features; leave this party out."
        )
    centre, scale = whole.mean(axis=0), whole.std(axis=0)
    flat = [feature.name for feature, one in zip(mine, scale, strict=True) if one < FLAT]
    if flat:
        raise NotEstimable(
            f"{', '.join(map(repr, flat))} does not vary in the records used; leave it out with columns=."
        )
    whole = (whole - centre) / scale
    target = [feature.name == design.names[-1] for feature in mine]
    response, units = None, (0.0, 1.0)
    if any(target):
        which = target.index(True)
        response = np.zeros(me.facts.n)
        response[at] = whole[:, which]
        units = (float(centre[which]), float(scale[which]))
    kept = ~np.array(target, dtype=bool)
    x = np.ascontiguousarray(whole[:, kept])
    return OwnBlock(
        place=place,
        groups=tuple(tuple(group) for group in formed["groups"]),
        at=at,
        x=x,
        centre=centre[kept],
        scale=scale[kept],
        products=x.T @ x,
        masks=shown,
        index=index,
        response=response,
        response_units=units,
    )


def spread(block: OwnBlock) -> tuple[float, float]:
    """Largest and smallest eigenvalue of the correlation matrix; refused where columns determine one another."""
    if not block.x.shape[1]:
        return 1.0, 1.0
    values = np.linalg.eigvalsh(block.products / len(block.at))
    if values[0] < SINGULAR:
        raise NotEstimable("columns of this party determine one another in the records used; leave one out.")
    return float(values[-1]), float(values[0])
