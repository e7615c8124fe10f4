"""How linear predictors reach the response holder: one by one, or as sums of groups under pads that cancel."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from colonnade.errors import PartyLost, SecureError
from colonnade.federation.party import Party
from colonnade.models.vfem_block import Design, OwnBlock
from colonnade.secure.pads import FixedPoint, fixed_point, masked, pad_label
from colonnade.statistics.gaussian_em import Vector
from colonnade.statistics.joint import binding

Exchange = Literal["masked", "plain"]
PREDICTOR = "vfem predictor"
BOUND = 2.0**13
"""Largest linear predictor, in standard deviations of the response; a larger one is an error, not a wrapped sum."""


def _scale(design: Design) -> FixedPoint:
    return fixed_point(bound=BOUND, parties=max(2, len(design.others)))


def masked_predictor(
    me: Party, design: Design, block: OwnBlock, vector: Vector, asked: tuple[int, float, bool]
) -> NDArray[np.uint64]:
    """Fixed point, under a pad with each party of the group over all entries, with the others over the last one.

    `vector` is x'beta of the records here, then mu'beta, beta'Sigma beta and the likelihood of the own columns / n.
    All of a group have the same records, so their sum, and nothing finer, is what the response holder sees. The
    likelihoods are summed over all groups. The pad depends on all that was asked and on the groups: if one party were
    asked for a much longer step than the others, so that its predictor drowned theirs in the sum, nothing would cancel.
    """
    round, eta, retreat = asked
    total = _scale(design).encode(vector).view(np.uint64)
    stated = {"eta": float(eta), "retreat": retreat, "groups": [list(group) for group in block.groups]}
    agreed = binding("vfem predictors", {"names": list(design.names), **stated})
    for peer in design.others:
        if peer == me.name:
            continue
        begin = 0 if design.parties.index(peer) in block.group else len(total) - 1
        keys, label = {peer: me.pair_key(peer, agreed)}, pad_label(me.job, round)
        nothing = np.zeros(len(total) - begin, dtype=np.int64)
        total[begin:] += masked(nothing, me=me.name, peers=[peer], pair_keys=keys, label=label)
    return total


@dataclass(frozen=True, eq=False)
class Totals:
    """Of the other parties, over the cohort: the sum of their predictors where they are used; by party (a group's at
    its first one) the means and variances that stand for them where they are not; the likelihood of their columns / n.
    """

    predictor: Vector
    means: Vector
    variances: Vector
    likelihood: float


def totals(me: Party, design: Design, block: OwnBlock, exchange: Exchange) -> Totals:
    """What the response holder adds up, group by group."""
    came = me.received(PREDICTOR)
    if missing := [party for party in design.others if party not in came]:
        raise PartyLost(f"no predictor came from {', '.join(missing)}; resume when they are back.")
    kind = np.dtype(np.float64 if exchange == "plain" else np.uint64)
    predictor, likelihood = np.zeros(me.facts.n), np.zeros(1, dtype=kind)
    means, variances = np.zeros(len(design.parties)), np.zeros(len(design.parties))
    for group in block.groups:
        rows = block.rows[group[0]]
        added: NDArray[Any] = np.zeros(len(rows) + 2, dtype=kind)
        for place in group:
            array = came[design.parties[place]]
            if not isinstance(array, np.ndarray) or (array.shape, array.dtype) != ((len(rows) + 3,), kind):
                raise SecureError(
                    f"{design.parties[place]!r} sent something other than a predictor; check its installation."
                )
            added += array[:-1]  # modulo 2^64
            likelihood += array[-1:]
        values = _numbers(design, added, exchange)
        predictor[rows] += values[:-2]
        means[group[0]], variances[group[0]] = values[-2:]
    return Totals(predictor, means, variances, float(_numbers(design, likelihood, exchange)[0]))


def _numbers(design: Design, added: NDArray[Any], exchange: Exchange) -> Vector:
    return added if exchange == "plain" else _scale(design).decode(added.view(np.int64))
