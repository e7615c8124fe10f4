"""Edges of numeric columns at private quantiles, for columns without declared cuts.

Each party counts a dyadic tree over the declared bounds, with discrete Gaussian noise (the step of `describe`); equal
mass between the edges then comes from the tree's quantiles.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from colonnade.data.column import Column
from colonnade.federation.job import Job
from colonnade.federation.plan import Phase, phase
from colonnade.federation.roster import Roster
from colonnade.privacy.accounting import calibrate
from colonnade.privacy.cost import Cost, Gaussian
from colonnade.statistics.describe import DEPTH, marginal
from colonnade.statistics.quantiles import consistent_leaves, quantiles
from colonnade.synthesis.mrf.encoders import Schema

PHASE = "private cuts"


def cut_costs(columns: int, *, epsilon: float, delta: float, share: float) -> tuple[Cost, ...]:
    """What the trees of so many columns spend: `share` of (epsilon, delta) in zCDP."""
    whole = calibrate(lambda multiplier: [Gaussian(multiplier)], epsilon=epsilon, delta=delta)
    multiplier = whole * (columns / share) ** 0.5
    return (Gaussian(multiplier, replace_factor=2**0.5).times(columns),)


def _arguments(name: str, costs: Sequence[Cost]) -> dict[str, Any]:
    level = costs[0].number("noise_multiplier")
    return {"column": name, "shape": "tree", "bins": 2**DEPTH, "noise": "gaussian", "level": level}


def cut_phases(schema: Schema, roster: Roster, names: Sequence[str], costs: Sequence[Cost]) -> list[Phase]:
    """One request a column."""
    requests: Mapping[str, list[dict[str, Any]]] = {
        party: [_arguments(name, costs) for name in schema.of(party) if name in names] for party in schema.parties
    }
    return [
        phase(
            PHASE,
            marginal,
            {party: each for party, each in requests.items() if each},
            facts=schema.facts,
            roster=roster,
            discloses="noisy counts of a dyadic tree over one column's bounds",
            reply_bytes=8 * 2 ** (DEPTH + 1),
        )
    ]


def private_edges(job: Job, schema: Schema, names: Sequence[str], costs: Sequence[Cost], *, cells: int) -> Schema:
    """The schema with the edges of these columns at noisy quantiles, so that cells hold about equal mass."""
    edges = dict(schema.edges)
    own = {party: [name for name in schema.of(party) if name in names] for party in schema.parties}
    for turn in range(max(len(each) for each in own.values())):
        asked = {party: each[turn] for party, each in own.items() if turn < len(each)}
        arguments = {party: _arguments(name, costs) for party, name in asked.items()}
        for party, counts in job.ask_each(marginal, arguments, phase=PHASE).items():
            column = job.facts.column(asked[party])
            edges[column.name] = _edges(column, np.asarray(counts, dtype=np.float64), cells)
    return replace(schema, edges=edges).checked()


def _edges(column: Column, tree: np.ndarray[Any, np.dtype[np.float64]], cells: int) -> tuple[float, ...]:
    """Rising edges between the bounds; where many records share a value, fewer cells than asked for."""
    assert column.lower is not None
    assert column.upper is not None
    leaves = consistent_leaves(tree[: 2 ** (DEPTH + 1) - 2], DEPTH)
    grid = np.linspace(column.lower, column.upper, 2**DEPTH + 1)
    inner = quantiles(leaves, grid, np.arange(1, cells) / cells)
    top = column.upper
    if column.kind == "count":
        inner, top = np.floor(inner) + 1, column.upper + 1  # whole numbers: cells [a, b)
    # A step of the grid apart, or a cell could hold nothing but rounding.
    least = 1.0 if column.kind == "count" else (column.upper - column.lower) / 2**DEPTH
    kept = [column.lower]
    for edge in inner:
        if edge >= kept[-1] + least and edge <= top - least:
            kept.append(float(edge))
    return (*kept, float(top))
