"""How the parties' linear predictors reach the response holder: one by one, or as their sum under pads that cancel."""

from __future__ import annotations

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
    me: Party, design: Design, block: OwnBlock, values: Vector, asked: tuple[int, float, bool]
) -> NDArray[np.uint64]:
    """Fixed point, under a pad with each other party that sends, over the records that both have and the last entry.

    Of a record that no other party has besides the response holder there is nothing to add up, and nothing hides it.
    The pad depends on all that was asked: if one party were asked for a much longer step than the others, so that its
    predictor drowned theirs in the sum, nothing would cancel.
    """
    round, eta, retreat = asked
    total = _scale(design).encode(values).view(np.uint64)
    agreed = binding("vfem predictors", {"names": list(design.names), "eta": float(eta), "retreat": retreat})
    for peer in design.others:
        if peer == me.name:
            continue
        at = np.append(block.shared[design.parties.index(peer)], len(block.at))
        keys, label = {peer: me.pair_key(peer, agreed)}, pad_label(me.job, round)
        nothing = np.zeros(len(at), dtype=np.int64)
        total[at] += masked(nothing, me=me.name, peers=[peer], pair_keys=keys, label=label)
    return total


def total_predictor(me: Party, design: Design, block: OwnBlock, exchange: Exchange) -> tuple[Vector, Vector, Vector]:
    """Sums of the others' predictors over the cohort, at their means where they lack a record (last: the sum of their
    likelihoods / n); and each party's mean predictor and variance."""
    came = me.received(PREDICTOR)
    if missing := [party for party in design.others if party not in came]:
        raise PartyLost(f"no predictor came from {', '.join(missing)}; resume when they are back.")
    kind = np.dtype(np.float64 if exchange == "plain" else np.uint64)
    total: NDArray[Any] = np.zeros(me.facts.n + 1, dtype=kind)
    means, variances = np.zeros(len(design.parties)), np.zeros(len(design.parties))
    for place, party in enumerate(design.parties):
        if party == design.holder:
            continue
        array, rows = came[party]["predictor"], block.rows[place]
        if not isinstance(array, np.ndarray) or (array.shape, array.dtype) != ((len(rows) + 1,), kind):
            raise SecureError(f"{party!r} sent something other than a predictor; check its installation.")
        total[rows] += array[:-1]
        total[-1:] += array[-1:]  # modulo 2^64
        means[place], variances[place] = float(came[party]["mean"]), float(came[party]["variance"])
    values: Vector = total if exchange == "plain" else _scale(design).decode(total.view(np.int64))
    return values, means, variances
