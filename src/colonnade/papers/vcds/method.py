"""`VCDS`, `EVCDS` and `IEVCDS`: the copula paper's Algorithms 1, 2 and 3, synthetic rows from perturbed ranks.

**VCDS**, for records that are missing completely at random:
1. Each party perturbs the ranks of its present records, column by column, and sends them to the coordinator.
2. Each party estimates the distribution of each column and adds noise to its Bernstein polynomial.
3. The coordinator estimates the latent correlation from the debiased ranks of the records that two columns share.
4. Fresh latent rows from N(0, R), through the inverse marginals, are the synthetic rows. None belongs to a record.
(The paper sends latent rows to the parties, who invert their marginals; the marginals that left are the same, so here
the coordinator does it.)

**EVCDS**, whose marginals use what the other columns say about absent records:
1. Perturbed ranks, private marginals and the latent correlation, as in VCDS.
2. Latent rows of the cohort that agree with the perturbed ranks (`latent.adjusted_latent`).
3. Each marginal is moved to where the latent values of the present records lie among all of them: F~ = A(F).
4. Synthetic rows. The paper adjusts new latent rows to the ranks of the cohort, which makes row i a copy of record i
   with noise; such rows are **never released in the cohort's order**. By default rows are fresh, as in VCDS. With
   `sampler="adjusted"` they are the adjusted rows, shuffled and drawn with replacement: their order says nothing, but
   anyone who knows a record may still find its row. `claim.md` says what remains.

**IEVCDS**, which completes the columns and ranks them again, T times. Round 1 is EVCDS. In each later round
1. the coordinator reads imputed values off the latent rows: x = F~^-1(Phi(z')) for each record that a party lacks;
2. each party ranks its present values together with these, over all n records, and perturbs the ranks anew;
3. correlation, latent rows and marginals are estimated again, now from ranks of the whole cohort: the place of the
   present records among all of them shows in their ranks, which is what corrects marginals under MAR.
The paper imputes at the parties from exact marginals, because imputed values are not sent. They enter the ranks that
*are* sent, though: a replaced record would move other records' imputed values, and so comparisons that are not its
own. Here they come from the private marginals, which were paid for once, so a record spends its own n - 1 comparisons
in each round and nothing else.

What this costs, and what the paper's epsilon does not mean, is in `claim.md`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal, Self

import numpy as np
import pandas as pd

from colonnade.data.column import Columns
from colonnade.errors import BadArguments, NotEstimable
from colonnade.federation.facts import PublicFacts
from colonnade.federation.job import Job
from colonnade.federation.method import Method, Procedure, method_class
from colonnade.federation.options import ColumnNames, Delta, Epsilon, FileFormat, Option, Rows
from colonnade.federation.roster import Roster
from colonnade.federation.stage import Later, stage
from colonnade.papers.vcds.budget import RankBudget
from colonnade.papers.vcds.latent import (
    LatentCorrelation,
    Mask,
    Reals,
    adjusted_latent,
    imputed_values,
    latent_correlation,
    latent_order,
    moved_marginals,
)
from colonnade.papers.vcds.ranks import PerturbedRanks, Split
from colonnade.papers.vcds.releases import (
    LARGEST_ORDER,
    PRESENCE,
    MarginalMethod,
    public_points,
    release_marginals,
    release_presence,
    release_ranks,
)
from colonnade.privacy.randomness import SimulatedRandomness, SystemRandomness
from colonnade.statistics.marginals import LARGEST_DEGREE, Marginal
from colonnade.synthesis.copula.model import GaussianCopula, stepwise
from colonnade.synthesis.copula.overlap import EXPECTED, Expected, Overlap
from colonnade.synthesis.table import BATCH, Sampler, Source, SyntheticTable, generator

if TYPE_CHECKING:
    from colonnade.audit.attack import Attack

IMPUTED = "a number or nothing for each record and column, which the coordinator imputes from earlier releases"
SHARED = (
    "Ranks are compared among the records that have a column, and two columns go together as in the records that have"
    " both: right if records are missing completely at random."
)


# --- the methods ---------------------------------------------------------------------------------------------------


@method_class
class RankSynthesizer(Method[SyntheticTable]):
    """The options of all three. Every party must allow "presence-to-coordinator"; a categorical column is taken in its
    declared order."""

    printed: ClassVar[Mapping[str, Any]] = {
        "epsilon": 1.0,
        "accounting": "nominal",
        "split": "theorem",
        "noise": "exact",
        "marginals": "bernstein",
    }
    iterations = 1
    """How often ranks are released; IEVCDS makes it an option, and the next one."""
    per_iteration = False

    epsilon: Annotated[
        Epsilon,
        Option(
            "Total privacy loss (epsilon) per record, over all parties' releases; with nominal accounting the paper's"
            " epsilon, which is not what a record loses."
        ),
    ] = 1.0
    delta: Delta = 1e-6
    accounting: Annotated[
        Literal["record", "nominal"],
        Option(
            "What epsilon means: a record's total, or nominal, the paper's budget of comparisons. Plan, result and"
            " ledgers state what a record loses either way."
        ),
    ] = "record"
    split: Annotated[
        Split,
        Option(
            "How a nominal epsilon is divided: over a party's columns (theorem: Theorem 1), or not at all (none, which"
            " the paper's tables need).",
            only={"accounting": ("nominal",)},
        ),
    ] = "theorem"
    noise: Annotated[
        Literal["exact", "skellam"],
        Option("Flip every comparison of two records (exact), or add noise of the same moments to the ranks."),
    ] = "exact"
    columns: ColumnNames = None
    marginals: Annotated[
        MarginalMethod,
        Option(
            "The smooth density behind noisy counts of bins, these counts as they are (histogram), or the paper's"
            " Bernstein polynomials, which are much worse on public bounds."
        ),
    ] = "smooth"
    order: Annotated[
        int,
        Option(
            "Of the iterated Bernstein operator (h).",
            least=1,
            most=LARGEST_ORDER,
            only={"marginals": ("bernstein",)},
        ),
    ] = 2
    degree: Annotated[
        int | None,
        Option(
            "Of the Bernstein polynomial (l); from n and epsilon by default.",
            least=1,
            most=LARGEST_DEGREE,
            only={"marginals": ("bernstein",)},
        ),
    ] = None
    rows: Rows = None
    expected: Annotated[Expected, EXPECTED] = None
    file_format: FileFormat = "parquet"

    def check(self) -> None:
        if self.columns is not None:
            if not self.columns:
                raise BadArguments("columns names no column; leave it out to take all of them.")
            self.columns = tuple(dict.fromkeys(self.columns))

    @classmethod
    def as_printed(cls, **changes: Any) -> Self:
        """Every option as the paper prints it: an epsilon of 1 (it also has 3 and 5), half for ranks and half for
        marginals, divided as in Theorem 1; all comparisons flipped; Bernstein marginals. EVCDS and IEVCDS: rows
        adjusted to the ranks by the sequential pass alone. IEVCDS: ten rounds that share the budget of the ranks, as in
        Theorem 7, and imputed values between their neighbours in rank.

        The paper is silent about the order h of the Bernstein operator (2 here) and gives its degree only as a rate
        (Corollary 1, taken without its log term). Its tables are matched with split="none" and, for IEVCDS,
        per_iteration=True (the budget of Corollary 4), so that is what to change to repeat them. Not as printed,
        whatever the options: bounds are declared and not those of the data, the correlation comes from Spearman's rho
        (Kendall's tau of noisy ranks attenuates), adjusted rows are shuffled, and values are imputed from private
        marginals.
        """
        return cls(**{**cls.printed, **changes})

    def missing_data(self) -> str:
        return SHARED


@method_class
class VCDS(RankSynthesizer):
    """Draw a synthetic table from perturbed ranks of all records and private marginals.

    Returns
    -------
    `fit(federation)` gives a `SyntheticTable`.

    Example
    -------
    >>> from colonnade.papers import VCDS
    >>> method = VCDS(epsilon=1.0, accounting="nominal", noise="skellam", columns=("capital", "roa"))
    >>> list(method.fit(federation).sample(10).columns)
    ['roa', 'capital']
    """

    name: ClassVar[str] = "vcds"

    def procedure(self, facts: PublicFacts, roster: Roster) -> VCDSProcedure:
        return VCDSProcedure(self, facts, roster)

    @classmethod
    def attacks(cls) -> tuple[Attack, ...]:
        from colonnade.papers.vcds.attacks import vcds_attacks

        return vcds_attacks()


@method_class
class AdjustedSynthesizer(RankSynthesizer):
    """What EVCDS and IEVCDS add to the options."""

    rests_on: ClassVar[tuple[str, ...]] = ("vcds",)
    printed: ClassVar[Mapping[str, Any]] = {**RankSynthesizer.printed, "sampler": "adjusted", "sweeps": 0}
    imputation = "conditional"

    sampler: Annotated[
        Literal["fresh", "adjusted"],
        Option("Fresh rows of the fitted copula, or rows adjusted to the cohort's ranks, shuffled and resampled."),
    ] = "fresh"
    sweeps: Annotated[
        int, Option("Passes of the adjustment's Gibbs sampler after the paper's sequential one.", least=0)
    ] = 5

    def procedure(self, facts: PublicFacts, roster: Roster) -> AdjustedProcedure:
        return AdjustedProcedure(self, facts, roster)


@method_class
class EVCDS(AdjustedSynthesizer):
    """Draw a synthetic table from perturbed ranks of all records and private marginals that are adjusted for absences.

    Returns
    -------
    `fit(federation)` gives a `SyntheticTable`.

    Example
    -------
    >>> from colonnade.papers import EVCDS
    >>> federation.plan(EVCDS(epsilon=1.0, accounting="nominal", columns=("capital", "roa"))).method
    'evcds'
    """

    name: ClassVar[str] = "evcds"

    def missing_data(self) -> str:
        return (
            f"{SHARED} Marginals are moved to what the other columns say about absent records, which hardly corrects"
            " them where records are missing at random."
        )


@method_class
class IEVCDS(AdjustedSynthesizer):
    """Draw a synthetic table from perturbed ranks of columns that are completed and ranked again.

    Returns
    -------
    `fit(federation)` gives a `SyntheticTable`.

    Example
    -------
    >>> from colonnade.papers import IEVCDS
    >>> federation.plan(IEVCDS(epsilon=1.0, accounting="nominal", columns=("capital", "roa"))).method
    'ievcds'
    """

    name: ClassVar[str] = "ievcds"
    printed: ClassVar[Mapping[str, Any]] = {
        **AdjustedSynthesizer.printed,
        "iterations": 10,
        "per_iteration": False,
        "imputation": "ranked",
    }

    iterations: Annotated[int, Option("How often ranks are released (T); each time costs.", least=1, most=10_000)] = 10
    per_iteration: Annotated[
        bool,
        Option(
            "Give each round the rank budget of one, so that the nominal total is T epsilon_1 + epsilon_2; otherwise"
            " its share of it.",
            only={"accounting": ("nominal",)},
        ),
    ] = False
    imputation: Annotated[
        Literal["conditional", "ranked"],
        Option(
            "How the latent values of absent records are drawn from round 2 on: given what the record has, as in round"
            " 1; or, as printed, between their neighbours in rank, where they hardly move, so that the noise of each"
            " round's ranks adds up in them."
        ),
    ] = "conditional"

    def missing_data(self) -> str:
        if self.iterations == 1:
            return f"{SHARED} With one round nothing is imputed."
        return (
            "Records that lack a column are ranked in it by values imputed from their other columns, from the second"
            " round on: nearly right if records are missing at random, the better the more the other columns say."
        )


# --- the coordinator's procedures ----------------------------------------------------------------------------------


class RankProcedure(Procedure[SyntheticTable]):
    """Presence, ranks and marginals, as all three ask for them. `held` are the wanted columns of each party that has
    some, `columns` all of them, party by party."""

    def __init__(self, method: RankSynthesizer, facts: PublicFacts, roster: Roster) -> None:
        self.method, self.facts = method, facts
        wanted = facts.wanted(method.columns)
        self.held = {party: list(columns) for party, columns in wanted.items()}
        self.columns = Columns(column for columns in wanted.values() for column in columns.values())
        widths = {party: len(names) for party, names in self.held.items()}
        widest = max(widths.values())
        self.budget = budget = RankBudget(method, facts.n, widths)
        public: dict[str, Any] = {"facts": facts, "roster": roster}
        noise = {"epsilon_0": budget.epsilon_0, "noise": budget.noise}
        marginal = {
            "epsilon": budget.marginal,
            "method": method.marginals,
            "order": method.order,
            "degree": method.degree,
        }
        self.presence = stage(
            "presence",
            release_presence,
            {party: [{"columns": names}] for party, names in self.held.items()},
            discloses="which pseudonymous records a party has, and their empty cells",
            reply_bytes=facts.n * widest // 8,
            **public,
        )
        self.ranks = stage(
            "perturbed ranks",
            release_ranks,
            {party: [{"columns": names, **noise}] * method.iterations for party, names in self.held.items()},
            later={"imputed": Later(IMPUTED, self._imputed)} if method.iterations > 1 else None,
            discloses="a perturbed rank of each present record in each column",
            reply_bytes=8 * facts.n * widest,
            **public,
        )
        self.marginals = stage(
            "private marginals",
            release_marginals,
            {party: [{"columns": names, **marginal}] for party, names in self.held.items()},
            discloses="the noisy distribution function of each column",
            **public,
        )
        self.stages = (self.presence, self.ranks, self.marginals)
        self.notes = budget.notes(Overlap(method.expected, tuple(self.held)))

    def _imputed(self, value: Any, _: Any) -> bool:
        """Only their order matters, so that any numbers will do."""
        return value is None or all(
            name in self.columns
            and isinstance(column, np.ndarray)
            and (column.dtype, column.shape) == (np.float64, (self.facts.n,))
            and not np.isinf(column).any()
            for name, column in value.items()
        )

    def ask_presence(self, job: Job) -> Mask:
        """Which record has which column; a column that cannot be ranked is refused before anything is spent on it."""
        replies = job.ask(self.presence)
        packed = np.concatenate([np.asarray(replies[party], dtype=np.uint8) for party in self.held])
        present = np.unpackbits(packed, axis=1, count=self.facts.n).astype(bool).T
        for name, count in zip(self.columns, present.sum(axis=0), strict=True):
            if count < 2:
                raise NotEstimable(
                    f"fewer than two records have the column {name!r}, so it has no ranks; leave it out with columns=."
                )
        return present

    def ask_ranks(self, job: Job, present: Mask, imputed: Mapping[str, Reals] | None = None) -> Reals:
        """Debiased ranks, records x columns, NaN where a record has neither a value nor an imputed one."""
        if imputed is None:
            imputed, replies = {}, job.ask(self.ranks)
        else:
            own = {
                party: {"imputed": {name: imputed[name] for name in names if name in imputed}}
                for party, names in self.held.items()
            }
            replies = job.ask_each(self.ranks, own)
        released = np.concatenate([np.asarray(replies[party], dtype=np.int64) for party in self.held], axis=1)
        ranks = np.full(released.shape, np.nan)
        for place, name in enumerate(self.columns):
            ranked = present[:, place]
            if name in imputed:
                ranked = ranked | ~np.isnan(imputed[name])
            perturbed = PerturbedRanks(released[ranked, place], self.budget.epsilon_0, self.budget.noise)
            ranks[ranked, place] = perturbed.debiased
        return ranks

    def ask_marginals(self, job: Job) -> dict[str, Marginal]:
        """The private marginal of the present records, for each column."""
        replies = job.ask(self.marginals)
        curves = {name: curve for party in self.held for name, curve in replies[party].items()}
        return {
            name: Marginal(public_points(column), np.asarray(curves[name], dtype=np.float64), stepwise(column))
            for name, column in self.columns.items()
        }

    def table(
        self,
        job: Job,
        model: Sampler,
        correlation: LatentCorrelation,
        *,
        notes: tuple[str, ...] = (),
        fresh: bool = True,
    ) -> SyntheticTable:
        """The result, with its cost in all three units."""
        method, budget = self.method, self.budget
        names = list(model.columns)
        pairs = [[names[a], names[b]] for a, b in correlation.unmeasured]
        if pairs:
            notes = (
                *notes,
                f"{len(pairs)} pairs of columns share too few records to be measured (details: unmeasured_pairs); they"
                " are independent given the other columns.",
            )
        if method.accounting == "nominal":
            notes = (
                f"Epsilon {method.epsilon:g} is nominal and protects no record: a record loses {budget.record}.",
                *notes,
            )
        return SyntheticTable(
            method=method.name,
            cohort=self.facts.n,
            model=model,
            drawn_from="a Gaussian copula",
            fresh=fresh,
            rows=method.rows or self.facts.n,
            seed=int(job.generator(f"{method.name}: rows").integers(2**62)),
            cost=f"{budget.record}, who is present held fixed; unbounded: {PRESENCE}",
            simulated=job.simulated,
            file_format=method.file_format,
            released=(f"{PRESENCE}: which pseudonymous records a party has; seen by: coordinator",),
            notes=notes,
            details={
                "accounting": method.accounting,
                "epsilon_asked": method.epsilon,
                "units": budget.units(),
                "epsilon_of_a_marginal": budget.marginal,
                "rounds": budget.rounds,
                "unmeasured_pairs": pairs,
            },
        )


class VCDSProcedure(RankProcedure):
    """Algorithm 1."""

    def run(self, job: Job) -> SyntheticTable:
        ranks = self.ask_ranks(job, self.ask_presence(job))
        marginals = self.ask_marginals(job)
        correlation = latent_correlation(ranks, marginals)
        return self.table(job, GaussianCopula(self.columns, marginals, correlation.matrix), correlation)


class AdjustedProcedure(RankProcedure):
    """Algorithm 2, which is one round, and Algorithm 3."""

    method: AdjustedSynthesizer

    def run(self, job: Job) -> SyntheticTable:
        method = self.method
        present = self.ask_presence(job)
        ranks = self.ask_ranks(job, present)
        marginals = observed = self.ask_marginals(job)
        for number in range(1, method.iterations + 1):
            correlation = latent_correlation(ranks, marginals)
            order = latent_order(ranks, marginals)
            label = "latent" if method.name == "evcds" else f"latent rows of round {number}"
            draw = job.generator(f"{method.name}: {label}")
            fixed = present if method.imputation == "conditional" else None
            latent = adjusted_latent(correlation.matrix, order, draw, present=fixed, sweeps=method.sweeps)
            marginals = moved_marginals(observed, latent, present)
            if number < method.iterations:
                ranks = self.ask_ranks(job, present, imputed_values(self.columns, marginals, latent, present))
        copula = GaussianCopula(self.columns, marginals, correlation.matrix)
        if method.sampler == "fresh":
            return self.table(job, copula, correlation)
        draw = job.generator(f"{method.name}: adjusted rows")
        pool = adjusted_latent(correlation.matrix, order, draw, sweeps=method.sweeps)
        note = (
            "sampler='adjusted': each row imitates one record of the cohort. Their order is random, but anyone who"
            " knows a record may recognise its row; fresh rows belong to nobody."
        )
        # The order is what protects here, so it does not come from a generator of post-processing.
        shuffle = SystemRandomness() if job.seed is None else SimulatedRandomness(job.seed, f"{method.name}: shuffle")
        shuffled = pool[np.argsort(shuffle.words(len(pool)))]
        return self.table(job, AdjustedRows(copula, shuffled), correlation, notes=(note,), fresh=False)


@dataclass(frozen=True, eq=False)
class AdjustedRows(Sampler):
    """Rows drawn with replacement from shuffled latent rows, through the copula's marginals."""

    copula: GaussianCopula
    pool: Reals

    @property
    def columns(self) -> Columns:
        return self.copula.columns

    def batches(self, rows: int, source: Source, *, size: int = BATCH) -> Iterator[pd.DataFrame]:
        draw = generator(source)
        for start in range(0, rows, size):
            yield self.copula.at_latent(self.pool[draw.integers(len(self.pool), size=min(size, rows - start))])

    def to_arrays(self) -> dict[str, np.ndarray[Any, Any]]:
        """The copula; the rows themselves are in the table only."""
        return self.copula.to_arrays()
