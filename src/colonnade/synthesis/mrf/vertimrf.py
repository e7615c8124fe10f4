"""`VertiMRF`: a synthetic table from a Markov random field over the columns of all parties.

encoder="sqm" (ours, the default) measures noisy contingency tables on secret shares: see `sqm.py`. encoder="fm" and
"fo" are the paper's, in its six phases: see `six_phases.py`. Either way one field is fitted and sampled.
What each encoder may claim is in `claim.md`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Self, get_args

import numpy as np

from colonnade.errors import BadArguments, BadPrivacyParameter
from colonnade.federation.facts import PublicFacts
from colonnade.federation.job import Job
from colonnade.federation.plan import Phase, Plan
from colonnade.federation.roster import Roster
from colonnade.privacy.accounting import check_delta, check_epsilon
from colonnade.privacy.cost import Cost, Relation
from colonnade.statistics.joint import View, colluders
from colonnade.synthesis.mrf import six_phases
from colonnade.synthesis.mrf.binning import Recover
from colonnade.synthesis.mrf.encoders import Schema
from colonnade.synthesis.mrf.fit import DISCREPANCY, MarkovField, fit
from colonnade.synthesis.mrf.graph import Names, within_limit
from colonnade.synthesis.mrf.private_cuts import cut_costs, cut_phases, private_edges
from colonnade.synthesis.mrf.sample import FieldSampler
from colonnade.synthesis.mrf.sqm import SQM, Measured, measure, round_noise
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
