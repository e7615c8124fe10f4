"""`VertiMRF`: the six phases of Algorithm 2 in the VertiMRF paper, with its encoders `fm` and `fo`.

  1. LocMRF    each party fits a field of its own columns (`local_fields.py`);
  2. LocEnc    each party encodes its binned columns (`sketches.py`, `frequency_oracle.py`);
  3. GraphCom  local graphs are joined by cross-party pairs of high R-score;
  4. InitMRF   the global field is fitted to the local ones;
  5. OptMRF    and then to cross-party tables too, recovered from bins and made consistent (`recovery.py`);
  6. sampling.

Graph, fit and sampling are those of `synthesis/field`. What each encoder may claim is in `claim.md`. For a better table
at the same epsilon take `Synthesize(model="field")`.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal, Self

import numpy as np

from colonnade.codec import ListOf
from colonnade.errors import BadArguments, BadPrivacyParameter
from colonnade.federation.facts import PublicFacts
from colonnade.federation.job import Job
from colonnade.federation.method import Method, Procedure, method_class
from colonnade.federation.options import ColumnNames, Delta, Epsilon, FileFormat, Option, Rows
from colonnade.federation.party import Party
from colonnade.federation.roster import Roster
from colonnade.federation.stage import Stage, stage
from colonnade.federation.step import Public, Release, step
from colonnade.papers.vertimrf.frequency_oracle import (
    FrequencyOracle,
    Reports,
    column_bins,
    column_categories,
    paper_claim,
    paper_epsilon,
    proved_epsilon,
)
from colonnade.papers.vertimrf.local_fields import MOST_CELLS, local_mrf, local_tables
from colonnade.papers.vertimrf.recovery import Recover, consistent, marginal_of, normalised, recover
from colonnade.papers.vertimrf.sketches import MOST_SKETCHES, FMSketches, Sketches, sketch_epsilon
from colonnade.privacy.calibration import Calibration, Gaussians
from colonnade.privacy.cost import Cost, Laplace
from colonnade.privacy.noise import discrete_laplace
from colonnade.statistics.describe import presence_count
from colonnade.statistics.forecast import FORECAST
from colonnade.synthesis.field.fit import Measurement, fit
from colonnade.synthesis.field.graph import Names, falling, greedy_graph, triangulate, within_limit
from colonnade.synthesis.field.procedure import MISSING_DATA, check_split, size_note
from colonnade.synthesis.field.sample import synthetic_table
from colonnade.synthesis.field.schema import (
    CUTS_SHARE,
    Cuts,
    PrivateCuts,
    Reals,
    Schema,
    TableQuery,
    cell_codes,
    given_schema,
)
from colonnade.synthesis.field.selection import MEAN_OF_NOISE, r_score
from colonnade.synthesis.table import SyntheticTable

if TYPE_CHECKING:
    from colonnade.audit.attack import Attack

SPLIT = (0.40, 0.40, 0.20)
"""Shares of the budget (the paper's section 7): LocMRF, LocEnc, value distributions within bins."""
COUNT_SHARE = 0.1
"""Of LocEnc's share, where the record count is noisy (the paper's section 7)."""
LOCAL_ITERATIONS = 300
USEFUL = 4.0
"""theta of PrivMRF: cells hold on average this many times the noise."""
AVERAGE_COUNT = 20.0
"""d_c of phase 5: a coarse cross-party table has at least this many records a cell."""


@method_class
class VertiMRF(Method[SyntheticTable]):
    """Draw a synthetic table from each party's own model and from sketches or perturbed values of every record.

    With encoder="fm" the epsilon is what the paper claims and no more: the cost of the sketches has no bound, and every
    party must allow "fm-sketches".

    Returns
    -------
    `fit(federation)` gives a `SyntheticTable`: `sample(rows)` draws a DataFrame, `cost` and `notes` say the rest.

    Example
    -------
    >>> from colonnade.papers import VertiMRF
    >>> method = VertiMRF(encoder="fo", epsilon=4.0, columns=("scale", "removed", "penalty_1"))
    >>> federation.plan(method).total().epsilon <= 4.0
    True
    """

    name: ClassVar[str] = "vertimrf"

    epsilon: Annotated[
        Epsilon,
        Option(
            "Total privacy loss (epsilon) per record, over all parties' releases; with fm it is what the paper claims,"
            " and the cost has no bound."
        ),
    ] = 1.0
    delta: Delta = 1e-6
    encoder: Annotated[
        Literal["fm", "fo"],
        Option("Flajolet-Martin sketches of the records of each value (fm), or randomised response (fo)."),
    ] = "fm"
    columns: ColumnNames = None
    cells: Annotated[int, Option("Cells of a numeric column without declared cuts.", least=1, most=10_000)] = 16
    cuts: Annotated[Cuts, Option("These cells have equal width, or their edges are at private quantiles.")] = "declared"
    bins: Annotated[int, Option("Coarse bins of equal width in which a column is encoded.", least=1, most=10_000)] = 4
    max_clique: Annotated[
        int,
        Option(
            "The most cells of the triangulated graph's tables together: time and memory of the fit.",
            least=1,
            most=MOST_CELLS,
        ),
    ] = 131_072
    split: Annotated[
        ListOf[float],
        Option("Shares of the budget: local fields, encoding, value distributions within bins."),
    ] = SPLIT
    iterations: Annotated[int, Option("Of mirror descent, at most.", least=1, most=1_000_000)] = 1500
    local_mrf: Annotated[bool, Option("Whether parties fit local fields; without, their budget goes to encoding.")] = (
        True
    )
    recover: Annotated[
        Recover, Option("How a coarse table is spread over cells: by the columns' own histograms, or evenly.")
    ] = "histogram"
    consistency: Annotated[bool, Option("Whether recovered tables are made to agree with the local fields.")] = True
    sketches: Annotated[
        int,
        Option(
            "How many sketches of each value: the paper's t.", least=1, most=MOST_SKETCHES, only={"encoder": ("fm",)}
        ),
    ] = 2000
    accounting: Annotated[
        Literal["proved", "paper"],
        Option(
            "Spend what our accountant proves, or take the paper's Theorem 3 as printed (the ledger then debits more"
            " than epsilon).",
            only={"encoder": ("fo",)},
        ),
    ] = "proved"
    complete: Annotated[bool, Option("States publicly that every party has every record, as the paper assumes.")] = (
        False
    )
    records: Annotated[
        Literal["public", "noisy"],
        Option(
            "Take the public number of records, or spend a tenth of the encoding's share on a noisy count, as the paper"
            " does (needs complete)."
        ),
    ] = "public"
    rows: Rows = None
    file_format: FileFormat = "parquet"

    def check(self) -> None:
        if self.delta == 0:
            raise BadPrivacyParameter("VertiMRF has no pure guarantee; choose a delta above 0, below 1/n.")
        check_split(self.split)
        if self.records == "noisy" and not self.complete:
            raise BadArguments("records='noisy' counts the records of one party; it goes with complete=True.")

    @classmethod
    def as_printed(cls, **changes: Any) -> Self:
        """As the paper's section 7 has it: 2,000 sketches, 4 bins, 40 % of the budget for LocMRF, 40 % for LocEnc (a
        tenth of it for the record count), 20 % for value distributions; Theorem 3 with encoder="fo".

        delta = 1/n there: pass it. The paper is silent about gamma of the geometric hashes (1 here), the iterations of
        the fit and d_c, and gives a range for tau (10^5 to 5 * 10^6; 131,072 cells here). Three things differ whatever
        the options: a mean of (1 + gamma)^-level is inverted where the paper's harmonic mean is biased; theta-useful
        is read as n / cells >= theta x noise, which the paper has the wrong way round; and noise is integer noise.
        """
        encoder = changes.get("encoder", "fm")
        printed: dict[str, Any] = {
            "encoder": encoder,
            "bins": 4,
            "cuts": "declared",
            "max_clique": 131_072,
            "split": SPLIT,
            "local_mrf": True,
            "recover": "histogram",
            "consistency": True,
            "complete": True,
            "records": "noisy",
        }
        printed |= {"sketches": 2000} if encoder == "fm" else {"accounting": "paper"}
        return cls(**{**printed, **changes})

    def missing_data(self) -> str:
        if not self.complete:
            return MISSING_DATA
        counted = "with every value" if self.encoder == "fm" else "with the last value"
        return (
            "All parties are stated to have all records. A record that a party lacks all the same counts in the encoded"
            f" tables {counted} of that party's columns, which is wrong."
        )

    def procedure(self, facts: PublicFacts, roster: Roster) -> SixPhases:
        return SixPhases(self, facts, roster)

    @classmethod
    def attacks(cls) -> tuple[Attack, ...]:
        from colonnade.papers.vertimrf.attacks import vertimrf_attacks

        return vertimrf_attacks()


# --- the coordinator's procedure --------------------------------------------------------------------------------


Encoder = FMSketches | FrequencyOracle
"""LocEnc, as the coordinator sees it: `encode` has the parties encode their columns, and of what they send `tables`
(CarEst) estimates the counts of any table, with the standard deviation of one count."""


class SixPhases(Procedure[SyntheticTable]):
    """The paper's procedure; private cuts, which are ours, come first and take their share of the budget."""

    def __init__(self, method: VertiMRF, facts: PublicFacts, roster: Roster) -> None:
        self.method, self.facts = method, facts
        self.schema = schema = Schema.declared(facts, bins=method.cells, columns=method.columns)
        within_limit(schema.sizes, [], limit=method.max_clique)
        self.cuts = PrivateCuts(
            schema,
            roster,
            method.cuts,
            cells=method.cells,
            epsilon=CUTS_SHARE * method.epsilon,
            delta=CUTS_SHARE * method.delta,
            share=1.0,
        )
        left = 1 - CUTS_SHARE if self.cuts.stages else 1.0
        epsilon, delta = left * method.epsilon, left * method.delta
        local, encoding, values = method.split
        if not method.local_mrf:
            local, encoding = 0.0, local + encoding
        counted = COUNT_SHARE if method.records == "noisy" else 0.0
        public: dict[str, Any] = {"facts": facts, "roster": roster}
        parties, plain = len(schema.parties), schema.to_dict()
        self.encoder = self._encoder(roster, (1 - counted) * (encoding * epsilon), delta / 2, (epsilon, delta))
        self.values = stage(
            "value distributions",
            value_distributions,
            {party: [{"schema": plain, "epsilon": values * epsilon / len(schema.names)}] for party in schema.parties},
            discloses="noisy counts of every cell of the party's columns",
            reply_bytes=8 * sum(schema.sizes.values()),
            later=self.cuts.later,
            **public,
        )
        stages: list[Stage] = [*self.encoder.stages, self.values]
        if counted:
            self.count = stage(
                "record count",
                presence_count,
                {schema.parties[0]: [{"noise": "laplace", "level": counted * (encoding * epsilon)}]},
                discloses="a noisy count of the records",
                reply_bytes=8,
                **public,
            )
            stages.insert(-1, self.count)
        if method.local_mrf:
            (multiplier,) = Calibration(
                {"local fields": Gaussians()}, epsilon=local * epsilon / parties, delta=delta / (2 * parties)
            ).values()
            fields = {
                "schema": plain,
                "rho": 0.5 / multiplier**2,
                "limit": max(method.max_clique // (2 * parties), max(schema.sizes.values())),
                "theta": USEFUL,
                "iterations": LOCAL_ITERATIONS,
            }
            self.local = stage(
                "LocMRF",
                local_mrf,
                {party: [fields] for party in schema.parties},
                discloses="noisy tables of the party's own columns, fitted by a local field",
                reply_bytes=8 * method.max_clique,
                later=self.cuts.later,
                **public,
            )
            stages.insert(0, self.local)
        self.stages = (*self.cuts.stages, *stages)
        self.caveats = (
            *self.encoder.notes,
            "In our studies this encoder was worse than fields of the parties alone at epsilon 0.8 and below."
            " A run's report says what to expect of it.",
        )
        self.notes = (*self.caveats, *self._forecast(), size_note(schema, method.max_clique))

    def _forecast(self) -> tuple[str, ...]:
        """Of the tables of pairs alone; a paper's method runs also where this says that nothing comes of it."""
        n, sizes = self.schema.facts.n, sorted(self.schema.sizes[name] for name in self.schema.names)[-2:]
        if self.method.epsilon is None or len(sizes) < 2:
            return ()
        cells = math.prod(min(size, self.method.bins) for size in sizes)
        sd, mean = self.encoder.cell_sd(n), n / cells
        return (
            f"{FORECAST}: the largest pair of columns has {mean:.3g} records in a cell on average, and an estimate of"
            f" one is off by about {sd:.3g}{'; the tables of pairs are mostly noise' if sd > mean else ''}.",
        )

    def _encoder(self, roster: Roster, epsilon: float, delta: float, total: tuple[float, float]) -> Encoder:
        """LocEnc with this budget of `total`."""
        method, schema = self.method, self.schema
        width = len(schema.names)
        common: dict[str, Any] = {"bins": method.bins, "complete": method.complete, "later": self.cuts.later}
        if method.encoder == "fm":
            return FMSketches(
                schema,
                roster,
                epsilon=sketch_epsilon(epsilon, delta, width, method.sketches),
                sketches=method.sketches,
                claimed=f"({epsilon:.4g}, {delta:.3g}) for the sketches, ({total[0]:g}, {total[1]:.3g}) in all",
                **common,
            )
        if method.accounting == "paper":
            spent = paper_epsilon(epsilon, delta, width)
        else:
            spent = proved_epsilon(
                epsilon, delta, column_categories(schema, schema.names, method.bins, method.complete)
            )
        oracle = FrequencyOracle(schema, roster, epsilon=spent, **common)
        oracle.notes += (
            f"The paper's Theorem 3 claims epsilon {paper_claim(spent, delta, width):.4g} for all reports of a record;"
            " the costs above are what we prove.",
        )
        return oracle

    # --- the run --------------------------------------------------------------------------------------------------

    def run(self, job: Job) -> SyntheticTable:
        method, (schema, _) = self.method, self.cuts.run(job)
        local = job.ask(self.local, **given_schema(self.local, schema)) if method.local_mrf else {}
        encoded = self.encoder.encode(job, schema)
        total = self.facts.n
        if method.records == "noisy":  # then every party has every record, and the first one counts them
            total = max(int(job.ask(self.count)[schema.parties[0]]), 1)
        tables = [table for answer in local.values() for table in local_tables(answer, total)]
        values = job.ask(self.values, **given_schema(self.values, schema))
        histograms = {
            name: np.maximum(np.asarray(values[party][name], dtype=np.float64), 0.0)
            for party in schema.parties
            for name in schema.of(party)
        }
        pairs = self._cross_tables(encoded, schema, total)
        # Phase 3, GraphCom: the local graphs, joined by cross-party pairs in falling order of R-score (CSTR1), as long
        # as the triangulated graph stays within the limit (CSTR2).
        cliques = [tuple(clique) for answer in local.values() for clique in answer["cliques"]]
        linked = greedy_graph(schema.sizes, cliques, falling(pair_scores(pairs, total)), limit=method.max_clique)
        graph = triangulate(schema.sizes, [*cliques, *linked])
        # Each column's chances from its party's field, or from its value distribution.
        chances = {name: normalised(histograms[name]) for name in schema.names}
        measured = [table.columns for table in tables]
        for table in tables:
            marginals = (normalised(marginal_of(table.counts, axis)) for axis in range(len(table.columns)))
            chances |= dict(zip(table.columns, marginals, strict=True))
        cross = [self._recovered(pairs[pair], schema, histograms, chances, total) for pair in linked]
        tables = tables or [Measurement((name,), chances[name] * total, math.sqrt(total)) for name in schema.names]
        # Phase 4, InitMRF: the union of the local marginal sets; cross-party tables keep their place without weight.
        unweighted = [replace(table, sd=math.inf) for table in cross]
        field = fit(graph, [*tables, *unweighted], total=total, iterations=method.iterations)
        # Phase 5, OptMRF: from the initial field on, cross-party tables have their weight too.
        field = fit(graph, [*tables, *cross], total=total, iterations=method.iterations, start=field)
        return synthetic_table(
            job,
            schema,
            field,
            method=method.name,
            rows=method.rows,
            file_format=method.file_format,
            cost=str(job.plan.total()),
            notes=[*self.caveats, *against_the_floor([pairs[pair] for pair in linked], total)],
            details={
                "encoder": method.encoder,
                "local_tables": [list(columns) for columns in measured],
                "cross_tables": [list(pair) for pair in linked],
                "records": total,
            },
        )

    def _cross_tables(self, encoded: Sketches | Reports, schema: Schema, total: int) -> dict[Names, Measurement]:
        """CarEst of every pair of different parties; without local fields, of every pair."""
        maps = column_bins(schema, self.method.bins)
        pairs = [
            pair
            for pair in itertools.combinations(schema.names, 2)
            if not self.method.local_mrf or len(schema.owners(pair)) == 2
        ]
        tables = encoded.tables([TableQuery.of(pair, maps) for pair in pairs], records=total)
        return dict(zip(pairs, tables, strict=True))

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
        maps, names = column_bins(schema, self.method.bins), coarse.columns
        full = recover(
            np.maximum(coarse.counts, 0.0),
            [maps[name] for name in names],
            [histograms[name] for name in names],
            by=self.method.recover,
        )
        if self.method.consistency:
            full = consistent(full, [chances[name] for name in names], total=total)
        else:
            full = normalised(full) * total
        return Measurement(names, full, coarse.sd * math.sqrt(coarse.counts.size / full.size))


def pair_scores(pairs: Mapping[Names, Measurement], total: int) -> dict[Names, float]:
    """R-scores of the pairs whose coarse tables hold enough records a cell (d_c)."""
    scores = {}
    for pair, table in pairs.items():
        joint = normalised(table.counts)
        if total / joint.size >= AVERAGE_COUNT:
            scores[pair] = r_score(joint, joint.sum(axis=1), joint.sum(axis=0))
    return scores


def against_the_floor(linked: Sequence[Measurement], total: float) -> list[str]:
    """Whether the cross-party tables are expected to be worse than none: their noise, as a total variation distance,
    against the dependence that they show once the noise is taken off (both averaged over the tables)."""
    if not linked:
        return ["No cross-party table was used: the table is what the parties would make alone."]
    noise = [MEAN_OF_NOISE * table.sd * table.counts.size / (2 * total) for table in linked]
    shown = []
    for table, added in zip(linked, noise, strict=True):
        joint = table.counts / total
        shown.append(max(r_score(joint, joint.sum(axis=1), joint.sum(axis=0)) - added, 0.0))
    sentence = (
        f"Noise moves a coarse cross-party table by {np.mean(noise):.2g} (total variation, mean of {len(linked)}); the"
        f" dependence that stands out of it is {np.mean(shown):.2g}."
    )
    if np.mean(noise) > np.mean(shown):
        return [
            f"Worse than the floor, by expectation: fields of the parties alone would be nearer the truth. {sentence}"
        ]
    return [sentence]


# --- the parties' step ------------------------------------------------------------------------------------------


def _value_cost(public: Public, *, schema: dict[str, Any], epsilon: float) -> Cost:
    """A record is in one cell of each column: L1 sensitivity 1 (zero-out), 2 if it is replaced."""
    return Laplace(epsilon).times(len(Schema.from_dict(public.facts, schema).of(public.party)))


@step(cost=_value_cost)
def value_distributions(me: Party, *, schema: dict[str, Any], epsilon: float) -> Release:
    """Algorithm 5, lines 4 to 8: noisy counts of every cell, for the recovery of coarse tables."""
    layout = Schema.from_dict(me.facts, schema)
    names = layout.of(me.name)
    codes = cell_codes(me, layout, names)
    scale = math.nextafter(1 / epsilon, math.inf)
    value = {}
    for name in names:
        size = layout.sizes[name]
        exact = np.bincount(codes[name][codes[name] >= 0], minlength=size).astype(np.int64)
        value[name] = exact + discrete_laplace(me.randomness, scale, size)
    return Release(value, "noisy counts of every cell of this party's columns")
