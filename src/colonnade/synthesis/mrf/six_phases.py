"""The six phases of Algorithm 2 in the VertiMRF paper, with the encoders `fm` and `fo`.

  1. LocMRF    each party fits a field of its own columns (`local_mrf.py`);
  2. LocEnc    each party encodes its binned columns (`fm.py`, `fo.py`);
  3. GraphCom  local graphs are joined by cross-party pairs of high R-score (`graph.py`);
  4. InitMRF   the global field is fitted to the local ones;
  5. OptMRF    and then to cross-party tables too, recovered from bins and made consistent;
  6. sampling  (`sample.py`).

n is public here, so nothing need be spent on a noisy record count, and LocEnc gets that tenth of its share too;
`records="noisy"` spends it as the paper does.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from colonnade.federation.job import Job
from colonnade.federation.party import Party
from colonnade.federation.plan import Phase, phase
from colonnade.federation.roster import Roster
from colonnade.federation.step import Public, Release, step
from colonnade.privacy.accounting import calibrate
from colonnade.privacy.cost import Cost, Gaussian, Laplace
from colonnade.privacy.noise import discrete_laplace
from colonnade.statistics.describe import presence_count
from colonnade.synthesis.mrf.binning import Recover, recover
from colonnade.synthesis.mrf.consistency import consistent, normalised
from colonnade.synthesis.mrf.encoders import Encoded, Encoder, Schema, Wanted, cell_codes
from colonnade.synthesis.mrf.fit import MarkovField, Measurement, fit
from colonnade.synthesis.mrf.fm import FMSketches, Sketches, sketch_epsilon
from colonnade.synthesis.mrf.fo import (
    FrequencyOracle,
    categories,
    column_bins,
    paper_claim,
    paper_epsilon,
    proved_epsilon,
)
from colonnade.synthesis.mrf.graph import Names, Triangulation, graph_com, triangulate
from colonnade.synthesis.mrf.local_mrf import local_mrf
from colonnade.synthesis.mrf.selection import MEAN_OF_NOISE, r_score

Reals = NDArray[np.float64]
Accounting = Literal["proved", "paper"]
Records = Literal["public", "noisy"]

LOCAL, VALUES, COUNT = "LocMRF", "value distributions", "record count"
COUNT_SHARE = 0.1
"""Of LocEnc's share, where the record count is noisy (the paper's section 7)."""
LOCAL_ITERATIONS = 300
USEFUL = 4.0
"""theta of PrivMRF: cells hold on average this many times the noise."""
AVERAGE_COUNT = 20.0
"""d_c of phase 5: a coarse cross-party table has at least this many records a cell."""


@lru_cache(maxsize=32)
def _rho(epsilon: float, delta: float) -> float:
    """The rho of Gaussian noise that costs (epsilon, delta)."""
    return 0.5 / calibrate(lambda multiplier: [Gaussian(multiplier)], epsilon=epsilon, delta=delta) ** 2


@dataclass(frozen=True, kw_only=True)
class SixPhases:
    """The paper's procedure and its budget: `split` is for LocMRF, LocEnc and the value distributions within bins."""

    encoder: Literal["fm", "fo"]
    epsilon: float
    delta: float
    split: tuple[float, ...]
    bins: int
    limit: int
    iterations: int
    recover: Recover
    consistency: bool
    local_mrf: bool
    sketches: int
    accounting: Accounting
    complete: bool
    records: Records

    # --- the plan -----------------------------------------------------------------------------------------------

    @property
    def _shares(self) -> tuple[float, float, float]:
        """Without local fields LocEnc gets their share."""
        local, encoding, values = self.split
        return (local, encoding, values) if self.local_mrf else (0.0, local + encoding, values)

    @property
    def _encoding(self) -> tuple[float, float]:
        """The epsilon of LocEnc, and that of the record count."""
        counted = COUNT_SHARE if self.records == "noisy" else 0.0
        whole = self._shares[1] * self.epsilon
        return (1 - counted) * whole, counted * whole

    def local_encoder(self, schema: Schema) -> Encoder:
        epsilon, delta = self._encoding[0], self.delta / 2
        width = len(schema.names)
        if self.encoder == "fm":
            return FMSketches(
                epsilon=sketch_epsilon(epsilon, delta, width, self.sketches),
                sketches=self.sketches,
                bins=self.bins,
                complete=self.complete,
                claimed=f"({epsilon:.4g}, {delta:.3g}) for the sketches, ({self.epsilon:g}, {self.delta:.3g}) in all",
            )
        if self.accounting == "paper":
            return FrequencyOracle(epsilon=paper_epsilon(epsilon, delta, width), bins=self.bins, complete=self.complete)
        maps = column_bins(schema, self.bins)
        sizes = tuple(categories(int(maps[name].max()) + 1, self.complete) for name in schema.names)
        return FrequencyOracle(epsilon=proved_epsilon(epsilon, delta, sizes), bins=self.bins, complete=self.complete)

    def _local_arguments(self, schema: Schema) -> dict[str, Any]:
        parties = len(schema.parties)
        return {
            "schema": schema.to_dict(),
            "rho": _rho(self._shares[0] * self.epsilon / parties, self.delta / (2 * parties)),
            "limit": max(self.limit // (2 * parties), max(schema.sizes.values())),
            "theta": USEFUL,
            "iterations": LOCAL_ITERATIONS,
        }

    def _count_arguments(self) -> dict[str, Any]:
        return {"noise": "laplace", "level": self._encoding[1]}

    def _value_arguments(self, schema: Schema) -> dict[str, Any]:
        return {"schema": schema.to_dict(), "epsilon": self._shares[2] * self.epsilon / len(schema.names)}

    def phases(self, schema: Schema, roster: Roster) -> list[Phase]:
        here: dict[str, Any] = {"facts": schema.facts, "roster": roster}
        encoding = self.local_encoder(schema).phases(schema, roster)
        values = phase(
            VALUES,
            value_distributions,
            {party: [self._value_arguments(schema)] for party in schema.parties},
            discloses="noisy counts of every cell of the party's columns",
            reply_bytes=8 * sum(schema.sizes.values()),
            **here,
        )
        if self.records == "noisy":
            counted = phase(
                COUNT,
                presence_count,
                {schema.parties[0]: [self._count_arguments()]},
                discloses="a noisy count of the records",
                reply_bytes=8,
                **here,
            )
            encoding = [*encoding, counted]
        if not self.local_mrf:
            return [*encoding, values]
        local = phase(
            LOCAL,
            local_mrf,
            {party: [self._local_arguments(schema)] for party in schema.parties},
            discloses="noisy tables of the party's own columns, fitted by a local field",
            reply_bytes=8 * self.limit,
            **here,
        )
        return [local, *encoding, values]

    def notes(self, schema: Schema, roster: Roster) -> tuple[str, ...]:
        made = self.local_encoder(schema)
        notes = [*made.notes(schema, roster)]
        if isinstance(made, FrequencyOracle):
            claimed = paper_claim(made.epsilon, self.delta / 2, len(schema.names))
            notes.append(
                f"The paper's Theorem 3 claims epsilon {claimed:.4g} for all reports of a record; the costs above are"
                " what we prove."
            )
        notes.append(
            "In our studies this encoder was worse than fields of the parties alone at epsilon 0.8 and below"
            " (docs/results/mrf-tvd.md). A run's report says what to expect of it."
        )
        return tuple(notes)

    # --- the coordinator's procedure ----------------------------------------------------------------------------

    def execute(self, job: Job, schema: Schema) -> tuple[MarkovField, dict[str, Any], list[str]]:
        local = self._loc_mrf(job, schema) if self.local_mrf else []
        encoded = self.local_encoder(schema).encode(job, schema)
        total = self._record_count(job, schema)
        if isinstance(encoded, Sketches):
            encoded = replace(encoded, n=total)
        local = [one.scaled(total) for one in local]
        histograms = self._value_distributions(job, schema)
        pairs = self._cross_tables(encoded, schema)
        linked = self._graph_com(schema, local, pairs, total)
        graph = triangulate(schema.sizes, [*(c for one in local for c in one.cliques), *linked])
        chances = local_chances(schema, local, histograms)
        cross = [self._recovered(pairs[pair], schema, histograms, chances, total) for pair in linked]
        known = _local_measurements(local, schema, histograms, total)
        field = init_mrf(graph, known, cross, total=total, iterations=self.iterations)
        field = opt_mrf(graph, known, cross, total=total, start=field, iterations=self.iterations)
        details = {
            "local_tables": [list(columns) for one in local for columns in one.tables],
            "cross_tables": [list(pair) for pair in linked],
            "records": total,
        }
        notes = [*self.notes(schema, job.roster), *against_the_floor([pairs[pair] for pair in linked], total)]
        return field, details, notes

    def _loc_mrf(self, job: Job, schema: Schema) -> list[LocalAnswer]:
        """Phase 1."""
        answers = job.ask(local_mrf, phase=LOCAL, **self._local_arguments(schema))
        return [LocalAnswer.read(answers[party]) for party in schema.parties]

    def _record_count(self, job: Job, schema: Schema) -> int:
        """n, or what the first party says: every party has every record where the count is noisy."""
        if self.records == "public":
            return schema.facts.n
        party = schema.parties[0]
        return max(int(job.ask_each(presence_count, {party: self._count_arguments()}, phase=COUNT)[party]), 1)

    def _value_distributions(self, job: Job, schema: Schema) -> dict[str, Reals]:
        answers = job.ask(value_distributions, phase=VALUES, **self._value_arguments(schema))
        return {
            name: np.maximum(np.asarray(answers[party][name], dtype=np.float64), 0.0)
            for party in schema.parties
            for name in schema.of(party)
        }

    def _cross_tables(self, encoded: Encoded, schema: Schema) -> dict[Names, Measurement]:
        """CarEst of every pair of different parties; without local fields, of every pair."""
        maps = column_bins(schema, self.bins)
        owner = schema.facts.owner
        pairs = [
            pair
            for pair in itertools.combinations(schema.names, 2)
            if not self.local_mrf or owner(pair[0]) != owner(pair[1])
        ]
        found = encoded.tables([Wanted.of(pair, maps) for pair in pairs])
        return dict(zip(pairs, found, strict=True))

    def _graph_com(
        self, schema: Schema, local: Sequence[LocalAnswer], pairs: Mapping[Names, Measurement], total: int
    ) -> list[Names]:
        """Phase 3, over the pairs whose coarse tables hold enough records a cell (d_c)."""
        scores = {}
        for pair, one in pairs.items():
            joint = normalised(one.counts)
            if total / joint.size >= AVERAGE_COUNT:
                scores[pair] = r_score(joint, joint.sum(axis=1), joint.sum(axis=0))
        return graph_com(schema.sizes, [one.cliques for one in local], scores, limit=self.limit)

    def _recovered(
        self,
        coarse: Measurement,
        schema: Schema,
        histograms: Mapping[str, Reals],
        chances: Mapping[str, Reals],
        total: int,
    ) -> Measurement:
        """HisRec and consistency: a cross-party table cell by cell.

        The errors of a bin's cells move together; dividing the variance by the cells of a bin gives the bin its weight.
        """
        maps = [column_bins(schema, self.bins)[name] for name in coarse.columns]
        full = recover(
            np.maximum(coarse.counts, 0.0), maps, [histograms[name] for name in coarse.columns], by=self.recover
        )
        if self.consistency:
            full = consistent(full, [chances[name] for name in coarse.columns], total=total)
        else:
            full = normalised(full) * total
        return Measurement(coarse.columns, full, coarse.sd * math.sqrt(coarse.counts.size / full.size))


@dataclass(frozen=True, eq=False)
class LocalAnswer:
    """A party's answer to LocMRF: its graph, its tables, the noise of a count."""

    cliques: tuple[Names, ...]
    tables: Mapping[Names, Reals]
    sd: float

    @classmethod
    def read(cls, plain: Mapping[str, Any]) -> LocalAnswer:
        tables = {tuple(one["columns"]): np.asarray(one["counts"], dtype=np.float64) for one in plain["tables"]}
        return cls(tuple(tuple(clique) for clique in plain["cliques"]), tables, float(plain["sd"]))

    def scaled(self, total: float) -> LocalAnswer:
        """As if the party had all `total` records."""
        own = next(iter(self.tables.values())).sum()
        factor = total / own if own > 0 else 1.0
        tables = {columns: table * factor for columns, table in self.tables.items()}
        return LocalAnswer(self.cliques, tables, self.sd * factor)


def against_the_floor(linked: Sequence[Measurement], total: float) -> list[str]:
    """Whether the cross-party tables are expected to be worse than none: their noise, as a total variation distance,
    against the dependence that they show once the noise is taken off (both averaged over the tables)."""
    if not linked:
        return ["No cross-party table was used: the table is what the parties would make alone."]
    noise = [MEAN_OF_NOISE * one.sd * one.counts.size / (2 * total) for one in linked]
    shown = []
    for one, added in zip(linked, noise, strict=True):
        joint = one.counts / total
        shown.append(max(r_score(joint, joint.sum(axis=1), joint.sum(axis=0)) - added, 0.0))
    told = (
        f"Noise moves a coarse cross-party table by {np.mean(noise):.2g} (total variation, mean of {len(linked)}); the"
        f" dependence that stands out of it is {np.mean(shown):.2g}."
    )
    if np.mean(noise) > np.mean(shown):
        return [f"Worse than the floor, by expectation: fields of the parties alone would be nearer the truth. {told}"]
    return [told]


def local_chances(schema: Schema, local: Sequence[LocalAnswer], histograms: Mapping[str, Reals]) -> dict[str, Reals]:
    """Each column's chances from its party's field, or from its value distribution."""
    found = {name: normalised(histograms[name]) for name in schema.names}
    for one in local:
        for columns, table in one.tables.items():
            for axis, name in enumerate(columns):
                found[name] = normalised(table.sum(axis=tuple(at for at in range(table.ndim) if at != axis)))
    return found


def _local_measurements(
    local: Sequence[LocalAnswer], schema: Schema, histograms: Mapping[str, Reals], total: float
) -> list[Measurement]:
    if local:
        return [Measurement(columns, table, one.sd) for one in local for columns, table in one.tables.items()]
    return [Measurement((name,), normalised(histograms[name]) * total, math.sqrt(total)) for name in schema.names]


def init_mrf(
    graph: Triangulation, known: Sequence[Measurement], cross: Sequence[Measurement], *, total: float, iterations: int
) -> MarkovField:
    """Phase 4, InitMRF: the union of the local marginal sets; cross-party tables keep their place without weight."""
    silent = [Measurement(one.columns, one.counts, math.inf) for one in cross]
    return fit(graph, [*known, *silent], total=total, iterations=iterations)


def opt_mrf(
    graph: Triangulation,
    known: Sequence[Measurement],
    cross: Sequence[Measurement],
    *,
    total: float,
    start: MarkovField,
    iterations: int,
) -> MarkovField:
    """Phase 5, OptMRF: from the initial field on, cross-party tables have their weight too."""
    return fit(graph, [*known, *cross], total=total, iterations=iterations, start=start)


# --- the parties' step -------------------------------------------------------------------------------------------


def _value_cost(public: Public, *, schema: dict[str, Any], epsilon: float) -> Cost:
    """A record is in one cell of each column: L1 sensitivity 1 (zero-out), 2 if it is replaced."""
    known = Schema.from_dict(public.facts, schema)
    return Laplace(epsilon).times(len(known.of(public.party)))


@step(cost=_value_cost)
def value_distributions(me: Party, *, schema: dict[str, Any], epsilon: float) -> Release:
    """Algorithm 5, lines 4 to 8: noisy counts of every cell, for the recovery of coarse tables."""
    known = Schema.from_dict(me.facts, schema)
    names = known.of(me.name)
    codes = cell_codes(me, known, names)
    scale = math.nextafter(1 / epsilon, math.inf)
    value = {}
    for name in names:
        size = known.sizes[name]
        exact = np.bincount(codes[name][codes[name] >= 0], minlength=size).astype(np.int64)
        value[name] = exact + discrete_laplace(me.randomness, scale, size)
    return Release(value, "noisy counts of every cell of this party's columns")
