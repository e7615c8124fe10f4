"""What a party does for an imputer from moments: its linear parts by record, the opened sums, and values from these.

`linear.py` has the maps; `moments.py` the coordinator's side.
"""

from __future__ import annotations

from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from colonnade.completion.imputation.conditional import conditional_draw, conditional_mean, latent_scores
from colonnade.completion.imputation.linear import chained, feature_rows, pattern_parties, read_marginals
from colonnade.completion.layout import Layout, Matrix
from colonnade.completion.split import exchange
from colonnade.completion.split.exchange import Protect
from colonnade.completion.split.session import presence_of
from colonnade.completion.split.training import row_chunks
from colonnade.federation.party import Party
from colonnade.federation.step import Public, Release, step
from colonnade.privacy.cost import Cost, Free, Unbounded
from colonnade.statistics.features import column_features, design
from colonnade.statistics.joint import binding, once


def _linear_cost(
    public: Public,
    *,
    label: str,
    target: str,
    kind: str,
    maps: dict[str, Any],
    marginals: dict[str, Any],
    members: list[str],
    protect: Protect,
    part: int,
) -> Cost:
    return Unbounded(
        "linear-predictors", f"sums of linear predictors of its columns by record, to {target!r}", audience=target
    )


@step(cost=_linear_cost)
def linear_part(
    me: Party,
    *,
    label: str,
    target: str,
    kind: Literal["latent", "features"],
    maps: dict[str, Any],
    marginals: dict[str, Any],
    members: list[str],
    protect: Protect,
    part: int,
) -> Release:
    """This party's scores or features of one chunk of records times the matrix of each record's pattern."""
    presence = presence_of(me)
    others = [member for member in members if member != target]
    begin, end = row_chunks(me.facts.n)[part]
    here = presence[me.name][begin:end]
    wide = next(iter(maps.values())).shape[0]
    found = np.zeros((end - begin, wide), dtype=np.float32)
    own = _own_scores(me, kind, marginals)[begin:end]
    for name, matrix in maps.items():
        present = pattern_parties(name)
        rows = here.copy()
        for other in others:
            rows &= presence[other][begin:end] == (other in present)
        found[rows] = own[rows] @ np.asarray(matrix, dtype=np.float64).T
    tag = binding(label, {"target": target, "kind": kind, "members": members})
    once(me, f"{tag}: chunk {part}")
    value = exchange.hide(me, found, protect=protect, opener=target, senders=others, label=tag, number=part)
    return Release({"parts": value}, f"linear predictors that only {target!r} can open, summed over the senders")


def _own_scores(me: Party, kind: str, marginals: dict[str, Any]) -> NDArray[np.float64]:
    columns = me.facts.columns[me.name]
    if kind == "features":
        return design(me, [one for column in columns.values() for one in column_features(me.name, column)])
    known = read_marginals(marginals)
    each = [latent_scores(column, known[name], me.column(name)) for name, column in columns.items()]
    return np.nan_to_num(np.column_stack(each))


def _collect_cost(
    public: Public, *, label: str, members: list[str], kind: str, protect: Protect, part: int, wide: int, total: Any
) -> Cost:
    return Free("nothing leaves: the sum stays here")


@step(cost=_collect_cost)
def collect_linear(
    me: Party,
    *,
    label: str,
    members: list[str],
    kind: Literal["latent", "features"],
    protect: Protect,
    part: int,
    wide: int,
    total: Any,
) -> Release:
    """Open the sum of one chunk and keep it."""
    begin, end = row_chunks(me.facts.n)[part]
    tag = binding(label, {"target": me.name, "kind": kind, "members": members})
    senders = [member for member in members if member != me.name]
    opened = exchange.reveal(
        me, total, size=(end - begin) * wide, protect=protect, senders=senders, label=tag, number=part
    )
    me.keep(f"linear {part}", opened.reshape(-1, wide))
    return Release(None, "nothing")


def linear_values(
    me: Party,
    layout: Layout,
    wanted: NDArray[np.int64],
    means: NDArray[np.float64],
    imputer: str,
    linear: dict[str, Any],
    seed: int,
) -> Matrix:
    """The wanted rows from the sums that `collect_linear` kept; the means where no other party has the record."""
    presence = presence_of(me)
    others = [party for party in presence if party != me.name]
    sums = np.concatenate([me.recall(f"linear {part}") for part in range(len(row_chunks(me.facts.n)))])
    found = np.broadcast_to(means, (wanted.size, layout.width)).astype(np.float32).copy()
    marginals = read_marginals(linear["marginals"])
    draw = np.random.default_rng((seed, 6))
    for name in sorted(linear["target"]["left" if imputer != "mice" else "own"]):
        present = pattern_parties(name)
        here = np.ones(wanted.size, dtype=bool)
        for other in others:
            here &= presence[other][wanted] == (other in present)
        centre = sums[wanted[here]].astype(np.float64)
        if imputer == "mice":
            own, intercept = (np.asarray(linear["target"][one][name]) for one in ("own", "intercept"))
            each = [one for column in layout.columns.values() for one in column_features(me.name, column)]
            start = np.asarray(linear["start"])
            found[here] = feature_rows(layout.columns, each, chained(centre, own, intercept, start))
            continue
        left = np.asarray(linear["target"]["left"][name])
        if imputer == "copula-mean":
            variance = np.broadcast_to(np.diag(left), centre.shape)
            found[here] = conditional_mean(layout, marginals, centre, variance)
        else:
            found[here] = conditional_draw(layout, marginals, centre, left, draw)
    return found
