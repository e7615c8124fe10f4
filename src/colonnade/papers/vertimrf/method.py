"""`VertiMRF`: a synthetic table from a Markov random field over the columns of all parties.

encoder="sqm" (ours, the default) measures noisy contingency tables on secret shares: see `sqm.py`. encoder="fm" and
"fo" are the paper's, in its six phases: see `six_phases.py`. Either way one field is fitted and sampled.
What each encoder may claim is in `claim.md`.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from functools import lru_cache
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Self, get_args

import numpy as np
from numpy.typing import NDArray

from colonnade.errors import BadArguments, BadPrivacyParameter
from colonnade.federation.facts import PublicFacts
from colonnade.federation.job import Job
from colonnade.federation.party import Party
from colonnade.federation.plan import Phase, Plan, phase
from colonnade.federation.roster import Roster
from colonnade.federation.step import Public, Release, step
from colonnade.papers.vertimrf.frequency_oracle import (
    FrequencyOracle,
    categories,
    column_bins,
    paper_claim,
    paper_epsilon,
    proved_epsilon,
)
from colonnade.papers.vertimrf.local_fields import local_mrf
from colonnade.papers.vertimrf.recovery import consistent, normalised
from colonnade.papers.vertimrf.sketches import FMSketches, Sketches, sketch_epsilon
from colonnade.privacy.accounting import calibrate, check_delta, check_epsilon
from colonnade.privacy.cost import Cost, Gaussian, Laplace, Relation
from colonnade.privacy.noise import discrete_laplace
from colonnade.statistics.describe import presence_count
from colonnade.statistics.joint import View, colluders
from colonnade.synthesis.field.fit import DISCREPANCY, MarkovField, Measurement, fit
from colonnade.synthesis.field.graph import Names, Triangulation, graph_com, triangulate, within_limit
from colonnade.synthesis.field.procedure import SQM, Measured, measure, round_noise
from colonnade.synthesis.field.sample import FieldSampler
from colonnade.synthesis.field.schema import (
    Encoded,
    Encoder,
    Recover,
    Schema,
    Wanted,
    cell_codes,
    cut_costs,
    cut_phases,
    private_edges,
    recover,
)
from colonnade.synthesis.field.selection import MEAN_OF_NOISE, r_score
from colonnade.synthesis.table import Format, SyntheticTable, check_format, check_rows

if TYPE_CHECKING:
    from colonnade.federation.coordinator import Federation

EncoderName = Literal["sqm", "fm", "fo"]
Cuts = Literal["declared", "quantiles"]

OURS = (0.10, 0.25, 0.65)
"""Shares of the budget with `sqm`: one-way tables, all pairs in coarse bins, selected tables."""
PAPER = (0.40, 0.40, 0.20)
"""Shares with `fm` and `fo` (the paper's section 7): LocMRF, LocEnc (a tenth of it for the record count), value
distributions within bins."""
LEAST_LIMIT, CELLS_A_RECORD, LARGEST_LIMIT = 131_072, 2.5, 1 << 20
"""Of `max_clique` by default. With few records noise says where a field ends, and the first suffices; with many the
limit does, and more records bear more cells. `fm` and `fo` have far more noise: their fields stay small."""
QUANTILES = 0.05
"""Share of the budget that private cuts take first, if there is a column that needs them."""


@dataclass(frozen=True, kw_only=True)
class VertiMRF:
    """Synthetic rows from a Markov random field.

    Parameters
    ----------
    encoder : "sqm", "fm" or "fo".
    epsilon, delta : a person's total over all parties. With `fm` they are what the paper claims, and no more: the cost
        is unbounded, and every party must allow "fm-sketches". `epsilon=None` counts exactly (`sqm` only, allow
        "exact-tables").
    columns : which columns; all by default.
    cells : cells of a numeric column without declared cuts.
    cuts : "declared" takes these cells of equal width; "quantiles" puts their edges at private quantiles.
    bins : coarse bins of a column: 8 of equal mass for `sqm`, 4 of equal width for `fm` and `fo` unless stated.
    max_clique : the most cells of the triangulated graph's tables together: time and memory of the fit. By default
        131,072; with `sqm` 2.5 for each record if that is more, up to 1,048,576.
    split : shares of the budget; see `OURS` and `PAPER`.
    tables : `sqm`: how many tables the last round measures (a table may get several of these units);
        3.2 for each column by default.
    theta, theta_triples : a pair is measured if its R-score exceeds `theta` times what its noise adds to it, a triple
        (of at most two parties) in place of its pairs if its cells hold `theta_triples` times the noise; math.inf for
        no triples.
    iterations : of mirror descent, at most.
    discrepancy : `sqm`: the descent stops when its loss is this share of what noise makes it at the truth; 0 never.
    recover, consistency, local_mrf : `fm` and `fo`: how a coarse table is spread over cells, whether it is made to
        agree with the local fields, and whether parties fit local fields at all (without, LocEnc gets their budget).
    sketches : `fm`: the paper's t.
    accounting : `fo`: "proved" spends what our accountant proves; "paper" takes the paper's Theorem 3 as printed.
    complete : `fm` and `fo`: states publicly that every party has every record, as the paper assumes.
    records : `fm` and `fo`: "public" takes the public n; "noisy" spends a tenth of LocEnc's share on a noisy record
        count, as the paper does (needs `complete`).
    rows, format : what the run folder gets; as many rows as the cohort by default.
    view, relation : what the noise of `sqm` is calibrated for.

    Returns
    -------
    `fit(federation)` gives a `SyntheticTable`.

    Example
    -------
    >>> method = co.VertiMRF(epsilon=4.0, columns=("scale", "removed", "penalty_1"))
    >>> federation.plan(method).total().epsilon <= 4.0
    True
    """

    name: ClassVar[str] = "vertimrf"

    encoder: EncoderName = "sqm"
    epsilon: float | None = 1.0
    delta: float = 1e-6
    columns: tuple[str, ...] | None = None
    cells: int = 16
    cuts: Cuts = "declared"
    bins: int | None = None
    max_clique: int | None = None
    split: tuple[float, ...] | None = None
    tables: int | None = None
    theta: float = 0.25
    theta_triples: float = 4.0
    iterations: int = 1500
    discrepancy: float = DISCREPANCY
    recover: Recover = "histogram"
    consistency: bool = True
    local_mrf: bool = True
    sketches: int = 2000
    accounting: six_phases.Accounting = "proved"
    complete: bool = False
    records: six_phases.Records = "public"
    rows: int | None = None
    format: Format = "parquet"
    view: View = "client"
    relation: Relation = "zero-out"

    def __post_init__(self) -> None:
        for field, allowed in (
            ("encoder", get_args(EncoderName)),
            ("cuts", get_args(Cuts)),
            ("recover", get_args(Recover)),
            ("accounting", get_args(six_phases.Accounting)),
            ("records", get_args(six_phases.Records)),
            ("view", get_args(View)),
            ("relation", get_args(Relation)),
        ):
            if getattr(self, field) not in allowed:
                raise BadArguments(f"{field} must be one of {', '.join(allowed)}, not {getattr(self, field)!r}.")
        if self.records == "noisy" and (self.encoder == "sqm" or not self.complete):
            raise BadArguments(
                "records='noisy' is the paper's: it goes with encoder='fm' or 'fo' and complete=True; else n is public."
            )
        if self.epsilon is None and self.encoder != "sqm":
            raise BadPrivacyParameter(f"the encoder {self.encoder!r} needs an epsilon; only sqm can count exactly.")
        if self.epsilon is not None:
            check_epsilon(self.epsilon)
            if check_delta(self.delta) == 0:
                raise BadPrivacyParameter("VertiMRF has no pure guarantee; choose a delta above 0, below 1/n.")
        whole = {"cells": self.cells, "max_clique": self.limit(0), "iterations": self.iterations}
        whole |= {"sketches": self.sketches, "bins": self.coarse, "tables": 1 if self.tables is None else self.tables}
        for field, value in whole.items():
            if isinstance(value, bool) or not isinstance(value, int) or value < 1:
                raise BadArguments(f"{field} must be a whole number of at least 1, not {value!r}.")
        shares = self.shares
        if len(shares) != 3 or not all(0 < one < 1 for one in shares) or abs(sum(shares) - 1) > 1e-9:
            raise BadPrivacyParameter(f"split must be three positive shares that add up to 1, not {self.split!r}.")
        if not self.theta >= 0 or not self.theta_triples > 0 or not self.discrepancy >= 0:
            raise BadArguments("theta and discrepancy must be at least 0 and theta_triples positive.")
        if self.rows is not None:
            check_rows(self.rows)
        check_format(self.format)

    @property
    def coarse(self) -> int:
        """Cells of a numeric column in joint tables."""
        return (8 if self.encoder == "sqm" else 4) if self.bins is None else self.bins

    @property
    def shares(self) -> tuple[float, ...]:
        """How the budget is divided over the rounds."""
        return tuple(self.split) if self.split is not None else (OURS if self.encoder == "sqm" else PAPER)

    # --- as data ------------------------------------------------------------------------------------------------

    def options(self) -> dict[str, Any]:
        plain = {one.name: getattr(self, one.name) for one in fields(self)}
        plain["columns"] = None if self.columns is None else list(self.columns)
        plain["split"] = None if self.split is None else list(self.split)
        plain["theta_triples"] = None if math.isinf(self.theta_triples) else self.theta_triples
        return plain

    @classmethod
    def from_options(cls, options: Mapping[str, Any]) -> Self:
        plain = dict(options)
        for listed in ("columns", "split"):
            plain[listed] = None if plain[listed] is None else tuple(plain[listed])
        plain["theta_triples"] = math.inf if plain["theta_triples"] is None else plain["theta_triples"]
        return cls(**plain)

    def fit(self, federation: Federation) -> SyntheticTable:
        """Run it; the run folder is in `federation.runs`."""
        return federation.run(self)[0]  # type: ignore[no-any-return]

    def limit(self, n: int) -> int:
        """The most cells of the field with n records."""
        if self.max_clique is not None:
            return self.max_clique
        if self.encoder != "sqm":
            return LEAST_LIMIT
        return min(max(LEAST_LIMIT, math.ceil(CELLS_A_RECORD * n)), LARGEST_LIMIT)

    # --- the plan -----------------------------------------------------------------------------------------------

    def schema(self, facts: PublicFacts) -> Schema:
        """The cells as they are declared; with private quantiles the edges of some columns will move."""
        made = Schema.declared(facts, bins=self.cells, columns=self.columns)
        within_limit(made.sizes, [], limit=self.limit(facts.n))
        return made

    def _cut_columns(self, schema: Schema) -> list[str]:
        """Columns whose edges come from private quantiles."""
        if self.cuts == "declared":
            return []
        return [name for name in schema.edges if schema.facts.column(name).cuts is None]

    def _cut_costs(self, schema: Schema) -> tuple[Cost, ...]:
        """Of the private cuts, in the cost's own terms."""
        names = self._cut_columns(schema)
        if not names or self.epsilon is None:
            return ()
        if self.encoder == "sqm":  # accounted together with the rounds
            return cut_costs(len(names), epsilon=self.epsilon, delta=self.delta, share=QUANTILES)
        return cut_costs(len(names), epsilon=QUANTILES * self.epsilon, delta=QUANTILES * self.delta, share=1.0)

    def sqm(self, facts: PublicFacts, roster: Roster) -> SQM:
        """The rounds of the `sqm` encoder, with the noise that (epsilon, delta) leaves them."""
        schema = self.schema(facts)
        width = len(schema.names)
        units = [width]
        if width > 1:
            units += [width * (width - 1) // 2, self.tables or math.ceil(3.2 * width)]
        mus: tuple[int, ...] = (0,) * len(units)
        if self.epsilon is not None:
            shares = self.shares if width > 1 else (1.0,)
            mus = round_noise(
                tuple(units),
                shares,
                epsilon=self.epsilon,
                delta=self.delta,
                parties=len(roster.names),
                colluding=colluders(roster, self.view),
                relation=self.relation,
                others=self._cut_costs(schema),
            )
        return SQM(units=tuple(units), mus=mus, view=self.view)

    def plan(self, facts: PublicFacts, roster: Roster) -> Plan:
        schema = self.schema(facts)
        phases: list[Phase] = []
        if names := self._cut_columns(schema):
            if self.epsilon is None:
                raise BadPrivacyParameter("private quantiles need an epsilon; take cuts='declared'.")
            phases += cut_phases(schema, roster, names, self._cut_costs(schema))
        if self.encoder == "sqm":
            encoder = self.sqm(facts, roster)
            phases += encoder.phases(schema, roster)
            notes = (*encoder.notes(schema, roster), *encoder.account(roster, delta=self.delta))
        else:
            paper = self._six_phases(schema)
            phases += paper.phases(schema, roster)
            notes = paper.notes(schema, roster)
        notes += (
            f"{len(schema.names)} columns with {sum(schema.sizes.values()):,} cells; the field's tables have at most"
            f" {self.limit(facts.n):,} cells together.",
        )
        return Plan(method=self.name, options=self.options(), stages=tuple(phases), notes=notes, delta=self.delta)

    def _six_phases(self, schema: Schema) -> six_phases.SixPhases:
        assert self.encoder != "sqm"
        assert self.epsilon is not None
        left = 1 - QUANTILES if self._cut_columns(schema) else 1.0
        return six_phases.SixPhases(
            encoder=self.encoder,
            epsilon=left * self.epsilon,
            delta=left * self.delta,
            split=self.shares,
            bins=self.coarse,
            limit=self.limit(schema.facts.n),
            iterations=self.iterations,
            recover=self.recover,
            consistency=self.consistency,
            local_mrf=self.local_mrf,
            sketches=self.sketches,
            accounting=self.accounting,
            complete=self.complete,
            records=self.records,
        )

    # --- the coordinator's procedure ------------------------------------------------------------------------------

    def execute(self, job: Job) -> SyntheticTable:
        schema = self.schema(job.facts)
        if names := self._cut_columns(schema):
            schema = private_edges(job, schema, names, self._cut_costs(schema), cells=self.cells)
        if self.encoder == "sqm":
            field, details, notes = self._from_tables(job, schema)
        else:
            field, details, notes = self._six_phases(schema).execute(job, schema)
        seed = int(job.generator("vertimrf: rows").integers(2**62))
        unbounded = [leaf for cost in job.plan.costs() for leaf in cost.leaves() if leaf.unbounded]
        released = dict.fromkeys(f"{leaf['name']}: {leaf['discloses']}" for leaf in unbounded)
        return SyntheticTable(
            method=self.name,
            cohort=job.facts.n,
            model=FieldSampler(schema.columns, schema.cells, field),
            rows=job.facts.n if self.rows is None else self.rows,
            seed=seed,
            cost=str(job.plan.total(relation=self.relation)),
            simulated=job.simulated,
            format=self.format,
            released=tuple(released),
            notes=tuple(notes),
            details={"encoder": self.encoder, **details, "cells": field.graph.cells, "loss": field.loss},
        )

    def fitted(self, found: Measured) -> MarkovField:
        """The field of what `sqm` measured."""
        return fit(
            found.graph,
            found.measurements,
            total=found.total,
            iterations=self.iterations,
            discrepancy=self.discrepancy,
        )

    def _from_tables(self, job: Job, schema: Schema) -> tuple[MarkovField, dict[str, Any], list[str]]:
        """Measure, then fit everything at once."""
        encoder = self.sqm(job.facts, job.roster)
        found = measure(
            encoder.encode(job, schema),
            schema,
            bins=self.coarse,
            units=encoder.units[-1],
            unit_sd=math.sqrt(2 * encoder.mus[-1]),
            theta=self.theta,
            theta_triples=self.theta_triples,
            limit=self.limit(job.facts.n),
        )
        field = self.fitted(found)
        notes = what_stood_out(schema, found.chosen)
        details = {
            "tables": [list(one) for one in found.chosen],
            "noise_sd": [math.sqrt(2 * mu) for mu in encoder.mus],
            "r_scores": {" x ".join(pair): round(float(np.float64(score)), 6) for pair, score in found.scores.items()},
        }
        return field, details, notes


def what_stood_out(schema: Schema, chosen: Sequence[Names]) -> list[str]:
    """What the reader should know about dependence that noise hides."""
    owner = schema.facts.owner
    notes = [
        f"No dependence of {name} on another column stood out of the noise; it is drawn independently."
        for name in schema.names
        if len(schema.names) > 1 and not any(name in one for one in chosen)
    ]
    if len(schema.parties) > 1 and not any(len({owner(name) for name in one}) > 1 for one in chosen):
        notes.append(
            "No dependence between parties stood out of the noise: the rows are no better than what the parties would"
            " make alone. Raise epsilon, or take fewer columns."
        )
    return notes


# --- The six phases of Algorithm 2 in the VertiMRF paper, with the encoders `fm` and `fo` -----------------
#
#   1. LocMRF    each party fits a field of its own columns (`local_mrf.py`);
#   2. LocEnc    each party encodes its binned columns (`fm.py`, `fo.py`);
#   3. GraphCom  local graphs are joined by cross-party pairs of high R-score (`graph.py`);
#   4. InitMRF   the global field is fitted to the local ones;
#   5. OptMRF    and then to cross-party tables too, recovered from bins and made consistent;
#   6. sampling  (`sample.py`).
#
# n is public here, so nothing need be spent on a noisy record count, and LocEnc gets that tenth of its share too;
# `records="noisy"` spends it as the paper does.


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
