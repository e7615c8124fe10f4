"""`Synthesize(model="field")`: a Markov random field from contingency tables on secret shares, at the accuracy of
central noise.

No party's table is privileged: pairs within a party and pairs across parties are measured alike, so the result does not
depend on how the columns are divided. The rounds open
  1. one-way tables of all columns;
  2. all pairs in coarse bins of about equal mass, from which R-scores and residuals are computed;
  3. the pairs (and triples) that `selection` chooses, cell by cell, and once more the columns that are in none of them;
and every table then enters one fit. With `moment_share` second moments of the columns are released too, for intervals
(`evidence`). What is claimed is in `claim.md`.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from colonnade.errors import BadArguments, BadPrivacyParameter
from colonnade.federation.facts import PublicFacts
from colonnade.federation.job import Job
from colonnade.federation.method import Procedure
from colonnade.federation.roster import Roster
from colonnade.privacy.calibration import Calibration, Releases, SkellamMus, Skellams
from colonnade.privacy.cost import Cost
from colonnade.statistics import forecast
from colonnade.statistics.adaptive import AdaptiveMarginal, histogram_words, mostly_noise
from colonnade.statistics.features import empty_notes
from colonnade.statistics.marginals import on_simplex
from colonnade.statistics.moments import MomentComputation, MomentsResult
from colonnade.synthesis.field.evidence import (
    FieldEvidence,
    moments_layout,
    moments_notes,
    moments_release,
)
from colonnade.synthesis.field.fit import MarkovField, Measurement, fit
from colonnade.synthesis.field.graph import Names, Triangulation, triangulate, within_limit
from colonnade.synthesis.field.rounds import MAXIMUM_OPENED, TableRounds, unit_cost
from colonnade.synthesis.field.sample import FieldSampler, synthetic_table
from colonnade.synthesis.field.schema import CUTS_SHARE, Cuts, PrivateCuts, Schema, TableQuery, equal_mass
from colonnade.synthesis.field.selection import (
    CoarseField,
    pair_scores,
    select_pairs,
    share_units,
    triples_that_pay,
)
from colonnade.synthesis.field.uncertainty import FieldNoise, field_quality
from colonnade.synthesis.table import MOSTLY_NOISE, SyntheticTable

if TYPE_CHECKING:
    from colonnade.synthesis.method import Synthesize

BINS, FEWEST_BINS = 8, 2
MOST_NOISE = 0.12
"""How far noise may move a table of two columns in coarse bins (in total variation distance); with more noise there are
fewer bins."""
SPLIT = (0.10, 0.25, 0.65)
"""Shares of the budget: one-way tables, all pairs in coarse bins, selected tables."""
TABLES_A_COLUMN = 3.2
MOMENTS = "second moments"
MOST_CELLS = 100
"""Of a table of several columns that intervals rest on."""
DIFFERS, QUOTIENTS = 3.0, (0.3, 3.0)
"""Standard deviations of chi-squared by which a column's sums must differ from its own table before it is weighed, and
the least and largest weights."""
LEAST_LIMIT, CELLS_A_RECORD, LARGEST_LIMIT = 524_288, 2.5, 1 << 20
"""Of the field's cells by default. With few records noise says where a field ends, and the first suffices; with many
the limit does, and more records bear more cells."""

MISSING_DATA = (
    "A table of columns counts the records that all its parties have, and is scaled to the whole cohort: right if"
    " records are missing completely at random. Where a column's own table shows that it depends on this column which"
    " records are missing, tables are weighed by it. An empty cell of a record that is there is a value of its own."
)

Reals = NDArray[np.float64]
Counting = Callable[[int, Sequence[TableQuery]], list[Measurement]]
"""The noisy tables of a round, by its number."""


def cell_limit(n: int) -> int:
    """The most cells of a field with n records, unless `max_clique` says otherwise."""
    return min(max(LEAST_LIMIT, math.ceil(CELLS_A_RECORD * n)), LARGEST_LIMIT)


def coarse_bins(n: int, sd: float) -> int:
    """The most bins of a column, up to 8, such that noise of this sd moves a table of two columns by at most 0.12: by
    half of its mean absolute value, 0.4 sd a cell."""
    fitting = (bins for bins in range(BINS, FEWEST_BINS, -1) if 0.4 * sd * bins**2 <= MOST_NOISE * n)
    return next(fitting, FEWEST_BINS)


def check_split(split: Sequence[float]) -> None:
    """Shares of a budget."""
    if len(split) != 3 or not all(0 < share < 1 for share in split) or abs(sum(split) - 1) > 1e-9:
        raise BadPrivacyParameter(f"split must be three positive shares that add up to 1, not {split!r}.")


def size_note(schema: Schema, limit: int) -> str:
    return (
        f"{len(schema.names)} columns with {sum(schema.sizes.values()):,} cells; the field's tables have at most"
        f" {limit:,} cells together."
    )


@dataclass(frozen=True, eq=False)
class Measured:
    """What the rounds brought: tables for the fit, the graph that they span, the pairs that it does not link, R-scores,
    and which tables were chosen."""

    measurements: tuple[Measurement, ...]
    graph: Triangulation
    others: tuple[Measurement, ...]
    scores: Mapping[Names, float]
    chosen: tuple[Names, ...]


class FieldSynthesis(Procedure[SyntheticTable]):
    """Private cuts and second moments if they are asked for, three rounds of tables, one fit."""

    def __init__(self, options: Synthesize, facts: PublicFacts, roster: Roster) -> None:
        self.options, self.facts = options, facts
        self.limit = options.max_clique or cell_limit(facts.n)
        self.schema = Schema.declared(facts, bins=options.cells, columns=options.columns)
        within_limit(self.schema.sizes, [], limit=self.limit)
        automatic: Cuts = "declared" if options.epsilon is None else "quantiles"
        cuts = automatic if options.cuts == "auto" else options.cuts
        self.cuts = PrivateCuts(
            self.schema,
            roster,
            cuts,
            cells=options.cells,
            epsilon=options.epsilon,
            delta=options.delta,
            share=CUTS_SHARE,
        )
        width = len(self.schema.names)
        self._check_width()
        units = [width]
        if width > 1:
            units += [width * (width - 1) // 2, options.n_tables or math.ceil(TABLES_A_COLUMN * width)]
        self.moments: MomentComputation | None = None
        mus = self._noise(roster, units)
        self.bins = options.bins or (coarse_bins(facts.n, math.sqrt(2 * mus[1])) if width > 1 else BINS)
        self.rounds = TableRounds(
            self.schema, roster, options.view, units=units, mus=mus, cuts=self.cuts, verify=options.verify
        )
        second = () if self.moments is None else self.moments.stages
        self.stages = (*self.cuts.stages, *second, *self.rounds.stages)
        self.notes = (
            *self._forecast(facts.n, mus),
            *(() if self.moments is None else moments_notes(self.moments, options.moment_share)),
            *self._columns(),
            *self.rounds.notes(options.delta, self._beside),
            size_note(self.schema, self.limit),
        )
        self.notes += empty_notes(dict.fromkeys(self.schema.filled, "drop"))

    def _check_width(self) -> None:
        """All pairs of columns are counted in one round."""
        coarse = sorted(min(self.options.bins or BINS, size) for size in self.schema.sizes.values())
        most = next((k for k in range(len(coarse), 0, -1) if sum(coarse[-k:]) ** 2 <= 2 * MAXIMUM_OPENED), 0)
        if most < len(coarse):
            raise BadArguments(
                f"the pairs of {len(coarse):,} columns have more cells than a round counts ({MAXIMUM_OPENED:,}); keep"
                f" at most {most} columns with columns=, or take fewer bins=."
            )

    def _forecast(self, n: int, mus: Sequence[int]) -> tuple[str, ...]:
        """Of the pairs in coarse bins: if noise hides these, columns come out as if they were independent."""
        if len(mus) < 2 or not mus[1]:
            return ()
        first, second, *_ = sorted(min(self.bins, size) for size in self.schema.sizes.values())
        return forecast.cells(
            noise_sd=math.sqrt(2 * mus[1]),
            n=n,
            largest=first * second,
            epsilon=self.options.epsilon,
            table=f"the smallest pair of columns, of {first} x {second} coarse cells,",
            columns=len(self.schema.names),
        )

    def _noise(self, roster: Roster, units: Sequence[int]) -> Sequence[int]:
        """The mu of each round, such that all of them and the private cuts together cost (epsilon, delta).

        A round with share f of the budget and u tables gets mu proportional to u / f: in the normal limit it spends f.
        """
        share, view = self.options.moment_share, self.options.view
        layout = moments_layout(self.schema, roster, verify=self.options.verify) if share else None
        if self.options.epsilon is None:
            if layout is not None:
                self.moments = MomentComputation(layout, view)
            return [0] * len(units)
        shares = (self.options.split or SPLIT) if len(units) > 1 else (1.0,)
        table = unit_cost(1, roster, view)
        counts = list(zip(units, shares, strict=True))
        releases: dict[str, Releases] = {
            f"round {k}": SkellamMus(table, count, count / part) for k, (count, part) in enumerate(counts)
        }
        if layout is not None:  # moments have another sensitivity than tables, so the scale is a noise multiplier
            releases = {
                f"round {k}": Skellams(table, count, part * (1 - share)) for k, (count, part) in enumerate(counts)
            }
            releases[MOMENTS] = moments_release(layout, view, share=share)
        budget = Calibration(
            releases,
            epsilon=self.options.epsilon,
            delta=self.options.delta,
            relation=self.options.relation,
            others=self.cuts.costs,
        )
        if layout is not None:
            self.moments = MomentComputation(replace(layout, mu=budget[MOMENTS]), view)
        return [budget[f"round {k}"] for k in range(len(units))]

    def _beside(self, colluding: int) -> list[Cost]:
        """What is released besides the rounds of tables."""
        return [*self.cuts.costs, *([] if self.moments is None else self.moments.layout.releases(colluding))]

    # --- the run --------------------------------------------------------------------------------------------------

    def run(self, job: Job) -> SyntheticTable:
        schema, marginals = self.cuts.run(job)
        moments = None if self.moments is None else self.moments.run(job)
        opened: list[Measurement] = []

        def tables(number: int, queries: Sequence[TableQuery]) -> list[Measurement]:
            opened.extend(found := self.rounds.tables(job, schema, number, queries))
            return found

        measured = self.measure(schema, tables)
        field = self.fitted(measured)
        table = synthetic_table(
            job,
            schema,
            field,
            method=self.options.name,
            rows=self.options.rows,
            file_format=self.options.file_format,
            cost=str(job.plan.total(relation=self.options.relation)),
            notes=what_stood_out(schema, measured.chosen),
            shapes={name: fitted.marginal for name, fitted in marginals.items()},
            details={
                "model": self.options.model,
                "columns": self._in_words(schema, marginals),
                MOSTLY_NOISE: [
                    name for name, size in schema.sizes.items() if mostly_noise(size, schema.facts.n, self._one_way_sd)
                ],
                "tables": [list(columns) for columns in measured.chosen],
                "noise_sd": [math.sqrt(2 * mu) for mu in self.rounds.mus],
                "r_scores": {" x ".join(pair): round(float(score), 6) for pair, score in measured.scores.items()},
            },
        )
        assert isinstance(table.model, FieldSampler)
        quality = None
        if self.options.epsilon is not None:
            quality = field_quality(field, measured.measurements, measured.others, self._fit, seed=table.seed)
        return replace(
            table,
            redrawn=FieldNoise(table.model, measured.measurements, self.options.iterations, self.options.discrepancy),
            quality=quality,
            measured=measured_shares(schema, measured.measurements),
            hidden=unlinked(schema.names, measured.chosen),
            evidence=released_evidence(schema, opened, moments),
        )

    @property
    def _one_way_sd(self) -> float:
        return math.sqrt(2 * self.rounds.mus[0])

    def _columns(self) -> tuple[str, ...]:
        """A line for each column: what its cells will be worth."""
        n, sd = self.facts.n, self._one_way_sd
        lines = []
        for name, size in self.schema.sizes.items():
            words = histogram_words(size, n=n, sd=sd)
            if (forecast_of_cuts := self.cuts.forecast(name)) is not None:
                words += f"; cut at private quantiles: {forecast_of_cuts}"
            lines.append(f"Column {name!r}: {words}.")
        return tuple(lines)

    def _in_words(self, schema: Schema, marginals: Mapping[str, AdaptiveMarginal]) -> dict[str, str]:
        """What came of each column."""
        sd, n = self._one_way_sd, schema.facts.n
        words = {}
        for name, size in schema.sizes.items():
            words[name] = f"{size} cells; a count is usually off by less than {200 * sd / n:.2g} % of the records"
            if name in marginals:
                words[name] += f"; {marginals[name].in_words(schema.facts.column(name).label)}"
        return words

    def fitted(self, measured: Measured) -> MarkovField:
        """The field of all that was measured."""
        return self._fit(measured.graph, measured.measurements)

    def _fit(self, graph: Triangulation, measurements: Sequence[Measurement]) -> MarkovField:
        return fit(
            graph,
            measurements,
            total=float(self.facts.n),
            iterations=self.options.iterations,
            discrepancy=self.options.discrepancy,
        )

    def measure(self, schema: Schema, tables: Counting) -> Measured:
        """All rounds; each round's tables are chosen from what the rounds before it opened."""
        sizes, n, names = schema.sizes, schema.facts.n, schema.names
        one_way = tables(0, [TableQuery.of((name,)) for name in names])
        scaled = scaled_up(one_way, schema, available(one_way, schema))
        if len(names) == 1:
            return Measured(tuple(scaled), triangulate(sizes, [names]), (), {}, ())
        chances = {table.columns[0]: on_simplex(table.counts / n) for table in scaled}
        coarse = {name: equal_mass(chances[name], self.bins) for name in names}
        counted = tables(1, [TableQuery.of(pair, coarse) for pair in itertools.combinations(names, 2)])
        present = available([*one_way, *counted], schema)
        own = {table.columns[0]: table for table in scaled}
        pairs = post_stratified(scaled_up(counted, schema, present), own)
        scores = pair_scores(pairs, chances, total=n)
        units, unit_sd = self.rounds.units[2], math.sqrt(2 * self.rounds.mus[2])
        chosen = select_pairs(
            CoarseField(scaled, pairs, total=n),
            scores,
            sizes,
            total=n,
            units=units,
            unit_sd=unit_sd,
            theta=self.options.theta,
            limit=self.limit,
        )
        graph = triangulate(sizes, chosen)
        triples: list[Names] = []
        if self.options.theta_triples is not None:
            triples = triples_that_pay(
                graph,
                chosen,
                scores,
                total=n,
                sd=unit_sd * math.sqrt(max(len(chosen), 1) / units),
                theta=self.options.theta_triples,
                joint=schema.joint_pair,
                room=sum(sizes.values()),
            )
        pairs_left = [pair for pair in chosen if not any(set(pair) <= set(triple) for triple in triples)]
        linked = [*pairs_left, *triples]
        # What has no dependence to show is measured better on its own: most of the budget is left.
        alone = [(name,) for name in names if not any(name in table for table in linked)]
        asked = share_units([*linked, *alone][:units], sizes, units=units)
        fine = tables(2, [TableQuery.of(table, units=count) for table, count in asked.items()])
        inside = [pair for pair in pairs if graph.home(pair.columns) is not None]
        others = tuple(pair for pair in pairs if graph.home(pair.columns) is None)
        measured = (
            *scaled_up(one_way, schema, present),
            *inside,
            *post_stratified(scaled_up(fine, schema, present), own),
        )
        return Measured(measured, graph, others, scores, tuple(linked))


def measured_shares(schema: Schema, tables: Sequence[Measurement]) -> dict[str, dict[str, Any]]:
    """What was released of each column, in its cells, to draw the rows over it."""
    shares: dict[str, dict[str, Any]] = {}
    for table in tables:
        name, edges = table.columns[0], schema.edges.get(table.columns[0])
        if len(table.columns) == 1 and not table.coarse:
            filled = table.counts if edges is None else table.counts[: len(edges) - 1]
            own = {} if edges is None else {"edges": list(edges)}
            shares[name] = {"shares": (filled / schema.facts.n).tolist(), "sd": table.sd / schema.facts.n, **own}
    return shares


def unlinked(names: Names, chosen: Sequence[Names]) -> frozenset[frozenset[str]]:
    """Pairs of which no table was measured cell by cell: nothing stood out of the noise."""
    linked = {frozenset(pair) for table in chosen for pair in itertools.combinations(table, 2)}
    return frozenset(frozenset(pair) for pair in itertools.combinations(names, 2)) - linked


def available(tables: Sequence[Measurement], schema: Schema) -> dict[frozenset[str], float]:
    """How many records all of some parties have, for each set of parties that has a table.

    All tables of the same parties have the same total, so the mean of their sums says it, weighted by precision. It is
    n, which is public, unless it is clearly less: by 4 standard deviations.
    """
    sums: dict[frozenset[str], list[tuple[float, float]]] = {}
    for table in tables:
        total = (float(table.counts.sum()), table.sd**2 * table.counts.size)
        sums.setdefault(schema.owners(table.columns), []).append(total)
    present = {}
    for owners, totals in sums.items():
        precision = sum(1 / variance for _, variance in totals)
        mean, sd = sum(total / variance for total, variance in totals) / precision, precision**-0.5
        present[owners] = float(schema.facts.n) if mean >= schema.facts.n - 4 * sd else max(mean, sd, 1.0)
    return present


def scaled_up(
    tables: Sequence[Measurement], schema: Schema, present: Mapping[frozenset[str], float]
) -> list[Measurement]:
    """Counts of the records that have the columns, as if all n had them: right if blocks are missing at random."""
    factors = [schema.facts.n / present[schema.owners(table.columns)] for table in tables]
    return [
        Measurement(table.columns, table.counts * factor, table.sd * factor, table.bins, factor)
        for table, factor in zip(tables, factors, strict=True)
    ]


def post_stratified(tables: Sequence[Measurement], own: Mapping[str, Measurement]) -> list[Measurement]:
    """Tables that some records lack, weighed to agree with the tables of single columns, which fewer records lack.

    If it depends on a column which records have the others, the column's sums in a joint table differ from its own
    table. Where they do so by more than noise and sampling explain, the slices of the joint table are multiplied by the
    quotients: right if blocks are missing at random given that column. Sums that hardly stand out of their noise stay.
    """
    return [table if table.factor <= 1 else _post_stratified(table, own) for table in tables]


def _post_stratified(table: Measurement, own: Mapping[str, Measurement]) -> Measurement:
    targets: dict[int, tuple[Reals, Reals]] = {}
    for axis, name in enumerate(table.columns if len(table.columns) > 1 else ()):
        bins, alone = None if table.bins is None else table.bins[axis], own[name]
        target = alone.counts if bins is None else np.bincount(bins, alone.counts).astype(np.float64)
        merged = np.ones(target.size) if bins is None else np.bincount(bins)
        sums = _sums(table.counts, axis)
        variance = table.counts.size / target.size * table.sd**2 + merged * alone.sd**2
        variance += (table.factor - 1) * np.maximum(sums, 0.0) + (alone.factor - 1) * np.maximum(target, 0.0)
        if ((sums - target) ** 2 / variance).sum() > target.size + DIFFERS * math.sqrt(2 * target.size):
            targets[axis] = (target, variance)
    counts = table.counts
    for _ in range(len(targets)):  # proportional fitting: a turn for another axis undoes a little of the one before
        for axis, (target, variance) in targets.items():
            sums = _sums(counts, axis)
            known = (sums > 2 * np.sqrt(variance)) & (target > 0)
            quotients = np.where(known, np.clip(target / np.where(known, sums, 1.0), *QUOTIENTS), 1.0)
            counts = counts * np.expand_dims(quotients, [other for other in range(counts.ndim) if other != axis])
    return replace(table, counts=counts)


def _sums(counts: Reals, axis: int) -> Reals:
    return np.asarray(counts.sum(axis=tuple(other for other in range(counts.ndim) if other != axis)))


def released_evidence(schema: Schema, opened: Sequence[Measurement], moments: MomentsResult | None) -> FieldEvidence:
    """All that the job opened, for intervals; large tables say little about a mean that small ones do not."""
    present = available(opened, schema)
    small = [table for table in opened if table.counts.size <= MOST_CELLS or len(table.columns) == 1]
    return FieldEvidence(schema, tuple(scaled_up(small, schema, present)), moments, present)


def what_stood_out(schema: Schema, chosen: Sequence[Names]) -> list[str]:
    """What the reader should know about dependence that noise hides."""
    notes = [
        f"No dependence of {name} on another column stood out of the noise; it is drawn independently."
        for name in schema.names
        if len(schema.names) > 1 and not any(name in columns for columns in chosen)
    ]
    if len(schema.parties) > 1 and not any(len(schema.owners(columns)) > 1 for columns in chosen):
        notes.append(
            "No dependence between parties stood out of the noise: the rows are no better than what the parties would"
            " make alone. Raise epsilon, or take fewer columns."
        )
    return notes
