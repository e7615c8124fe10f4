"""The `sqm` encoder, our default: cross-party contingency tables under SQM, at the accuracy of central noise.

No party's table is privileged: pairs within a party and pairs across parties are measured alike, so the result does not
depend on how the columns are divided. The procedure is
  1. one-way tables of all columns;
  2. all pairs in coarse bins of about equal mass, from which R-scores are computed;
  3. the pairs (and triples) that `selection` chooses, cell by cell;
and every table then enters one fit.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from colonnade.errors import BadArguments
from colonnade.federation.job import Job
from colonnade.federation.plan import Phase
from colonnade.federation.roster import Roster
from colonnade.privacy.accounting import calibrate, guarantee
from colonnade.privacy.cost import Cost, Relation
from colonnade.privacy.skellam import LARGEST_MU, Skellam
from colonnade.statistics.joint import View, account_notes
from colonnade.statistics.marginals import on_simplex
from colonnade.synthesis.mrf.binning import equal_mass
from colonnade.synthesis.mrf.encoders import Encoded, Schema, Wanted
from colonnade.synthesis.mrf.fit import Measurement
from colonnade.synthesis.mrf.graph import Names, Triangulation, triangulate
from colonnade.synthesis.mrf.selection import pair_scores, select_pairs, share_units, triples_that_pay
from colonnade.synthesis.mrf.sqm_round import Round, unit_cost
from colonnade.synthesis.mrf.sqm_tables import compute_round, round_phases

Reals = NDArray[np.float64]


@dataclass(frozen=True, kw_only=True)
class SQM:
    """How many tables each round opens, and with how much noise. `mus` of 0 count exactly.

    Round 0 are the one-way tables, round 1 all pairs in bins, round 2 the selected tables; `units[k]` tables each.
    """

    name: ClassVar[str] = "sqm"

    units: tuple[int, ...]
    mus: tuple[int, ...]
    view: View

    def phases(self, schema: Schema, roster: Roster) -> list[Phase]:
        roster.require_committee()
        sizes = sorted(schema.sizes.values(), reverse=True)
        largest = max(sizes) if len(sizes) < 2 else sizes[0] * sizes[1]
        cells = [min(units * largest, sum(sizes) ** 2) for units in self.units]
        return round_phases(schema, roster, self.view, units=self.units, mus=self.mus, cells=cells)

    def notes(self, schema: Schema, roster: Roster) -> tuple[str, ...]:
        if not any(self.mus):
            return ("Exact: no noise is added, and no privacy is claimed for the result.",)
        words = ("one-way tables", "coarse pairs", "selected tables")
        return tuple(
            f"A count of the {what} carries noise with standard deviation {math.sqrt(2 * mu):.4g} ({units} tables)."
            for what, mu, units in zip(words, self.mus, self.units, strict=False)
        )

    def account(self, roster: Roster, *, delta: float) -> tuple[str, ...]:
        """A person's total under both views and both relations."""
        if not any(self.mus):
            return ()

        def releases(many: int) -> list[Cost]:
            pairs = zip(self.mus, self.units, strict=True)
            return [unit_cost(mu, roster, self.view, many=many).times(units) for mu, units in pairs]

        return account_notes(roster, view=self.view, delta=delta, releases=releases)

    def encode(self, job: Job, schema: Schema) -> SharedRows:
        return SharedRows(self, job, schema)


class SharedRows:
    """One-hot rows on shares: each call of `tables` is the next round, and spends what the plan reserved for it."""

    def __init__(self, encoder: SQM, job: Job, schema: Schema) -> None:
        self._encoder, self._job, self._schema = encoder, job, schema
        self._number = 0

    def tables(self, wanted: Sequence[Wanted]) -> list[Measurement]:
        number = self._number
        if number >= len(self._encoder.mus):
            raise BadArguments(f"the plan has {number} rounds of tables, and all are opened; ask for all at once.")
        self._number += 1
        known = Round(
            schema=self._schema,
            roster=self._job.roster,
            number=number,
            wanted=tuple(wanted),
            mu=self._encoder.mus[number],
            largest_mu=max(self._encoder.mus),
        )
        return compute_round(self._job, known, self._encoder.view)


@lru_cache(maxsize=32)
def round_noise(
    units: tuple[int, ...],
    split: tuple[float, ...],
    *,
    epsilon: float,
    delta: float,
    parties: int,
    colluding: int,
    relation: Relation,
    others: tuple[Cost, ...] = (),
) -> tuple[int, ...]:
    """The mu of each round, such that all of them and `others` together cost (epsilon, delta).

    A round with share f of the budget and u tables gets mu proportional to u / f: in the normal limit it spends f.
    """

    def releases(mus: Sequence[float]) -> list[Cost]:
        stated = {"delta_1": 1, "delta_2": 1, "parties": parties, "colluders": colluding}
        made = [Skellam(mu, shift="single", **stated).times(one) for mu, one in zip(mus, units, strict=True)]
        return [*made, *others]

    ratios = [one / share for one, share in zip(units, split, strict=True)]
    scale = calibrate(
        lambda scale: releases([max(1.0, scale * ratio) for ratio in ratios]),
        epsilon=epsilon,
        delta=delta,
        relation=relation,
        bracket=(1.0 / max(ratios), LARGEST_MU / max(ratios)),
    )
    while True:
        mus = tuple(max(1, math.ceil(scale * ratio)) for ratio in ratios)
        # A grid of losses is monotone but for its step, so whole numbers are accounted again.
        if guarantee(releases(mus), delta=delta, relation=relation).epsilon <= epsilon:
            return mus
        scale *= 1 + 2**-12


# --- the procedure of the coordinator ------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Measured:
    """What the rounds brought: tables for the fit, the graph that they span, the total, and what was chosen."""

    measurements: tuple[Measurement, ...]
    graph: Triangulation
    total: float
    scores: dict[Names, float]
    chosen: tuple[Names, ...]


def measure(
    encoded: Encoded,
    schema: Schema,
    *,
    bins: int,
    units: int,
    unit_sd: float,
    theta: float,
    theta_triples: float,
    limit: int,
) -> Measured:
    """All rounds. `limit` bounds the cells of the triangulated graph."""
    sizes, n = schema.sizes, schema.facts.n
    one_way = encoded.tables([Wanted.of((name,)) for name in schema.names])
    present = available(one_way, schema)
    scaled = scaled_up(one_way, schema, present)
    chances = {one.columns[0]: on_simplex(one.counts / n) for one in scaled}
    if len(schema.names) == 1:
        return Measured(tuple(scaled), triangulate(sizes, [schema.names]), float(n), {}, ())
    coarse = {name: equal_mass(chances[name], bins) for name in schema.names}
    counted = encoded.tables([Wanted.of(pair, coarse) for pair in itertools.combinations(schema.names, 2)])
    present = available([*one_way, *counted], schema)
    pairs = scaled_up(counted, schema, present)
    scores = pair_scores(pairs, chances, total=n)
    chosen = select_pairs(scores, sizes, total=n, units=units, unit_sd=unit_sd, theta=theta, limit=limit)
    graph = triangulate(sizes, chosen)
    triples: list[Names] = []
    if theta_triples < math.inf:
        sd = unit_sd * math.sqrt(max(len(chosen), 1) / units)
        triples = triples_that_pay(
            graph,
            chosen,
            scores,
            total=n,
            sd=sd,
            theta=theta_triples,
            joint=schema.joint_pair,
            room=sum(sizes.values()),
        )
    pairs_left = [pair for pair in chosen if not any(set(pair) <= set(triple) for triple in triples)]
    asked = share_units([*pairs_left, *triples], sizes, units=units)
    fine = encoded.tables([Wanted.of(table, units=count) for table, count in asked.items()]) if asked else []
    inside = [one for one in pairs if graph.home(one.columns) is not None]
    measured = [*scaled_up(one_way, schema, present), *inside, *scaled_up(fine, schema, present)]
    return Measured(tuple(measured), graph, float(n), scores, tuple(asked))


def available(tables: Sequence[Measurement], schema: Schema) -> dict[frozenset[str], float]:
    """How many records all of some parties have, for each set of parties that has a table.

    All tables of the same parties have the same total, so the mean of their sums says it, weighted by precision. It is
    n, which is public, unless it is clearly less: by 4 standard deviations.
    """
    sums: dict[frozenset[str], list[tuple[float, float]]] = {}
    for one in tables:
        owners = frozenset(schema.facts.owner(name) for name in one.columns)
        sums.setdefault(owners, []).append((float(one.counts.sum()), one.sd**2 * one.counts.size))
    found = {}
    for owners, seen in sums.items():
        precision = sum(1 / variance for _, variance in seen)
        mean, sd = sum(total / variance for total, variance in seen) / precision, precision**-0.5
        found[owners] = float(schema.facts.n) if mean >= schema.facts.n - 4 * sd else max(mean, sd, 1.0)
    return found


def scaled_up(
    tables: Sequence[Measurement], schema: Schema, present: Mapping[frozenset[str], float]
) -> list[Measurement]:
    """Counts of the records that have the columns, as if all n had them: right if blocks are missing at random."""
    made = []
    for one in tables:
        factor = schema.facts.n / present[frozenset(schema.facts.owner(name) for name in one.columns)]
        made.append(Measurement(one.columns, one.counts * factor, one.sd * factor, one.bins))
    return made
