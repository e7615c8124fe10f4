"""What VCDS, EVCDS and IEVCDS have in common: their options, their plan, and the table that they return."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Self, get_args

import numpy as np
import pandas as pd
from scipy import special

from colonnade.data.column import Column, Columns
from colonnade.errors import BadArguments
from colonnade.federation.facts import PublicFacts
from colonnade.federation.job import Job
from colonnade.federation.plan import Plan, phase
from colonnade.federation.roster import Roster
from colonnade.papers.vcds.budget import (
    Accounting,
    RankBudget,
    RankNoise,
    budget_notes,
    check_options,
    rank_budget,
    units,
)
from colonnade.papers.vcds.latent import adjusted_latent, adjusted_marginal, in_categories
from colonnade.papers.vcds.ranks import Split
from colonnade.papers.vcds.releases import (
    PRESENCE,
    LatentCorrelation,
    MarginalMethod,
    Mask,
    Reals,
    ask_marginals,
    ask_presence,
    ask_ranks,
    check_marginals,
    latent_correlation,
    release_marginals,
    release_presence,
    release_ranks,
)
from colonnade.privacy.accounting import check_delta, check_epsilon
from colonnade.privacy.randomness import SimulatedRandomness, SystemRandomness
from colonnade.statistics.marginals import Marginal
from colonnade.synthesis.copula.model import GaussianCopula, stepwise
from colonnade.synthesis.copula.overlap import Overlap, check_expected
from colonnade.synthesis.table import (
    BATCH,
    Format,
    Sampler,
    Source,
    SyntheticTable,
    check_format,
    check_rows,
    generator,
)

if TYPE_CHECKING:
    from colonnade.federation.coordinator import Federation

PRESENT, RANKS, MARGINALS = "presence", "perturbed ranks", "private marginals"


@dataclass(frozen=True, kw_only=True)
class RankSynthesizer(ABC):
    """Options of all three.

    epsilon, delta, accounting : with accounting="record", a person's total over all parties. With "nominal", the
        paper's epsilon, a budget of comparisons: the plan, the result and the ledgers state what a record loses.
    split : how a nominal epsilon is divided: "theorem" over a party's columns (Theorem 1), "none" not at all, which is
        what the paper's tables need.
    noise : "exact" flips every comparison of two records; "skellam" adds noise of the same moments to the ranks.
    columns : which columns; all by default.
    marginals, order, degree : "smooth" by default: the smooth density behind noisy counts of bins; "histogram" is those
        counts as they are. "bernstein" is the paper's, with the iterated operator of this order (h) and degree (l; from
        n and epsilon by default). On public bounds, which are wider than the data, it is much worse: it triples the
        error of a regression (`vcds.claim.md`).
    expected : the parts of the cohort that parties are expected to have and to share, for the plan's forecast of the
        noise by pair of parties (`expected.py`); it changes nothing else.
    rows, format : of the table in the run folder; by default as many rows as the cohort has.

    Every party must allow "presence-to-coordinator". A categorical column is taken in its declared order.
    """

    name: ClassVar[str]

    epsilon: float = 1.0
    delta: float = 1e-6
    accounting: Accounting = "record"
    split: Split = "theorem"
    noise: RankNoise = "exact"
    columns: tuple[str, ...] | None = None
    marginals: MarginalMethod = "smooth"
    order: int = 2
    degree: int | None = None
    rows: int | None = None
    expected: Mapping[str, float] | None = None
    format: Format = "parquet"

    def __post_init__(self) -> None:
        check_epsilon(self.epsilon)
        check_delta(self.delta)
        check_options(self.accounting, self.noise)
        check_marginals(self.marginals, self.order, self.degree)
        check_format(self.format)
        check_expected(self.expected)
        if self.split not in get_args(Split):
            raise BadArguments(f"split must be 'theorem' or 'none', not {self.split!r}.")
        if self.rows is not None:
            check_rows(self.rows)
        if isinstance(self.columns, str):
            raise BadArguments(f"columns is a list of names; write columns=({self.columns!r},).")
        if self.columns is not None:
            object.__setattr__(self, "columns", tuple(dict.fromkeys(self.columns)))
            if not self.columns:
                raise BadArguments("columns names no column; leave it out to take all of them.")

    @property
    def rounds(self) -> int:
        """How often ranks are released."""
        return 1

    @property
    def each_round(self) -> bool:
        """Does every round get the nominal budget of one?"""
        return False

    def fit(self, federation: Federation) -> SyntheticTable:
        """Run it; the run folder is in `federation.runs`."""
        return federation.run(self)[0]  # type: ignore[no-any-return]

    @abstractmethod
    def execute(self, job: Job) -> SyntheticTable:
        """The coordinator's procedure: the algorithm."""

    # --- before any data is touched -------------------------------------------------------------------------

    def held(self, facts: PublicFacts) -> dict[str, list[str]]:
        """The wanted columns of each party that has some."""
        for name in self.columns or ():
            facts.owner(name)
        wanted = {
            party: [name for name in columns if self.columns is None or name in self.columns]
            for party, columns in facts.columns.items()
        }
        return {party: names for party, names in wanted.items() if names}

    def declared(self, facts: PublicFacts) -> Columns:
        """The columns of the table, party by party."""
        return Columns(facts.column(name) for names in self.held(facts).values() for name in names)

    def budget(self, facts: PublicFacts) -> RankBudget:
        """What the releases get of epsilon, in all three units."""
        return rank_budget(
            n=facts.n,
            widths={party: len(names) for party, names in self.held(facts).items()},
            epsilon=self.epsilon,
            delta=self.delta,
            accounting=self.accounting,
            split=self.split,
            noise=self.noise,
            rounds=self.rounds,
            each_round=self.each_round,
        )

    def plan(self, facts: PublicFacts, roster: Roster) -> Plan:
        budget, held = self.budget(facts), self.held(facts)
        here: dict[str, Any] = {"facts": facts, "roster": roster}
        spend = {"epsilon_0": budget.epsilon_0, "noise": budget.noise}
        phases = (
            phase(
                PRESENT,
                release_presence,
                {party: [{"columns": names}] for party, names in held.items()},
                discloses="which pseudonymous records a party has, and their empty cells",
                reply_bytes=facts.n * max(len(names) for names in held.values()) // 8,
                **here,
            ),
            phase(
                RANKS,
                release_ranks,
                {party: [{"columns": names, **spend}] * self.rounds for party, names in held.items()},
                discloses="a perturbed rank of each present record in each column",
                reply_bytes=8 * facts.n * max(len(names) for names in held.values()),
                **here,
            ),
            phase(
                MARGINALS,
                release_marginals,
                {party: [{"columns": names, **self._marginal_options(budget)}] for party, names in held.items()},
                discloses="the noisy distribution function of each column",
                **here,
            ),
        )
        notes = budget_notes(
            budget,
            epsilon=self.epsilon,
            delta=self.delta,
            accounting=self.accounting,
            presence=PRESENCE,
            overlap=Overlap(self.expected, tuple(held)),
        )
        return Plan(method=self.name, options=self.options(), stages=phases, notes=notes, delta=self.delta)

    def _marginal_options(self, budget: RankBudget) -> dict[str, Any]:
        return {"epsilon": budget.marginal, "method": self.marginals, "order": self.order, "degree": self.degree}

    # --- with the parties -----------------------------------------------------------------------------------

    def ask_presence(self, job: Job) -> Mask:
        """Which record has which column."""
        return ask_presence(job, self.held(job.facts), phase=PRESENT)

    def ask_ranks(self, job: Job, present: Mask, *, imputed: Mapping[str, Reals] | None = None) -> Reals:
        """Debiased ranks, records x columns, NaN where absent."""
        budget = self.budget(job.facts)
        spend: dict[str, Any] = {"epsilon_0": budget.epsilon_0, "noise": budget.noise}
        return ask_ranks(job, self.held(job.facts), present, phase=RANKS, imputed=imputed, **spend)

    def ask_marginals(self, job: Job) -> dict[str, Marginal]:
        """The private marginal of the present records, for each column."""
        options = self._marginal_options(self.budget(job.facts))
        return ask_marginals(job, self.held(job.facts), self.declared(job.facts), phase=MARGINALS, **options)

    def table(
        self, job: Job, model: Sampler, correlation: LatentCorrelation, *, notes: tuple[str, ...] = ()
    ) -> SyntheticTable:
        """The result, with its cost in all three units."""
        budget = self.budget(job.facts)
        found = units(budget, self.delta)
        names = list(model.columns)
        pairs = [[names[a], names[b]] for a, b in correlation.unmeasured]
        if pairs:
            notes = (
                *notes,
                f"{len(pairs)} pairs of columns share too few records to be measured (details: unmeasured_pairs); they"
                " are independent given the other columns.",
            )
        if self.accounting == "nominal":
            notes = (
                f"Epsilon {self.epsilon:g} is nominal and protects no record: a record loses {found.record}.",
                *notes,
            )
        return SyntheticTable(
            method=self.name,
            cohort=job.facts.n,
            model=model,
            rows=self.rows or job.facts.n,
            seed=int(job.generator(f"{self.name}: rows").integers(2**62)),
            cost=f"{found.record}, who is present held fixed; unbounded: {PRESENCE}",
            simulated=job.simulated,
            format=self.format,
            released=(f"{PRESENCE}: which pseudonymous records a party has; seen by: coordinator",),
            notes=notes,
            details={
                "accounting": self.accounting,
                "epsilon_asked": self.epsilon,
                "units": found.to_dict(),
                "epsilon_of_a_marginal": budget.marginal,
                "rounds": budget.rounds,
                "unmeasured_pairs": pairs,
            },
        )

    # --- as data --------------------------------------------------------------------------------------------

    def options(self) -> dict[str, Any]:
        stated = {field.name: getattr(self, field.name) for field in fields(self)}
        return {**stated, "columns": None if self.columns is None else list(self.columns)}

    @classmethod
    def from_options(cls, options: Mapping[str, Any]) -> Self:
        columns = options["columns"]
        return cls(**{**options, "columns": None if columns is None else tuple(columns)})


# --- `VCDS`: the copula paper's Algorithm 1, for records that are missing completely at random ------------
#
# 1. Each party perturbs the ranks of its present records, column by column, and sends them to the coordinator.
# 2. Each party estimates the distribution of each column and adds noise to its Bernstein polynomial.
# 3. The coordinator estimates the latent correlation from the debiased ranks of the records that two columns share.
# 4. Fresh latent rows from N(0, R), through the inverse marginals, are the synthetic rows. None belongs to a record.
#
# (The paper sends latent rows to the parties, who invert their marginals; the marginals that left are the same, so here
# the coordinator does it.) What this costs, and what the paper's epsilon does not mean, is in `vcds.claim.md`.


@dataclass(frozen=True, kw_only=True)
class VCDS(RankSynthesizer):
    """Synthetic rows from perturbed ranks and private marginals.

    Parameters
    ----------
    epsilon, delta : a person's total, or with accounting="nominal" the paper's number (not what a person loses).
    columns, rows, format : which columns; of the table in the run folder, as many rows as the cohort has by default.
    accounting, split, noise : "record" or "nominal"; how a nominal epsilon is divided; "exact" flips or "skellam".
    marginals, order, degree : "smooth" (the density behind noisy counts), "histogram", or the paper's "bernstein" with
        this order and degree.
    expected : {party: part of the cohort}, for the plan's forecast of the noise; it changes nothing else.

    Returns
    -------
    `fit(federation)` gives a `SyntheticTable`.

    Example
    -------
    >>> method = co.VCDS(epsilon=1.0, accounting="nominal", noise="skellam", columns=("capital", "roa"))
    >>> list(method.fit(federation).sample(10).columns)
    ['roa', 'capital']
    """

    name: ClassVar[str] = "vcds"

    def execute(self, job: Job) -> SyntheticTable:
        ranks = self.ask_ranks(job, self.ask_presence(job))
        marginals = self.ask_marginals(job)
        correlation = latent_correlation(ranks, marginals)
        model = GaussianCopula(self.declared(job.facts), marginals, correlation.matrix)
        return self.table(job, model, correlation)


# --- `EVCDS`: the copula paper's Algorithm 2, whose marginals use what the other columns say about absent records.
#
# 1. Perturbed ranks, private marginals and the latent correlation, as in VCDS.
# 2. Latent rows of the cohort that agree with the perturbed ranks (`latent.adjusted_latent`).
# 3. Each marginal is moved to where the latent values of the present records lie among all of them: F~ = A(F).
# 4. Synthetic rows. The paper adjusts new latent rows to the ranks of the cohort, which makes row i a copy of record i
#    with noise; such rows are **never released in the cohort's order**. By default rows are fresh, as in VCDS. With
#    `draws="adjusted"` they are the adjusted rows, shuffled and drawn with replacement: their order says nothing, but
#    whoever knows a record may still find its row. `vcds.claim.md` says what remains.


Draws = Literal["fresh", "adjusted"]


@dataclass(frozen=True, kw_only=True)
class AdjustedSynthesizer(RankSynthesizer):
    """What EVCDS and IEVCDS add to the options.

    draws : "fresh" rows of the fitted copula, or rows "adjusted" to the cohort's ranks, shuffled and resampled.
    sweeps : passes of the adjustment's Gibbs sampler after the paper's sequential one (0 is as printed).
    """

    draws: Draws = "fresh"
    sweeps: int = 5

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.draws not in get_args(Draws):
            raise BadArguments(f"draws must be 'fresh' or 'adjusted', not {self.draws!r}.")
        if isinstance(self.sweeps, bool) or not isinstance(self.sweeps, int) or self.sweeps < 0:
            raise BadArguments(f"sweeps must be a whole number of at least 0, not {self.sweeps!r}.")

    def adjusted_table(
        self, job: Job, order: Reals, marginals: Mapping[str, Marginal], correlation: LatentCorrelation
    ) -> SyntheticTable:
        """The table of a fitted copula, by `draws`; `order` are the ranks that adjusted rows follow."""
        copula = GaussianCopula(self.declared(job.facts), marginals, correlation.matrix)
        if self.draws == "fresh":
            return self.table(job, copula, correlation)
        draw = job.generator(f"{self.name}: adjusted rows")
        pool = adjusted_latent(correlation.matrix, order, draw, sweeps=self.sweeps)
        note = (
            "draws='adjusted': each row imitates one record of the cohort. Their order is random, but whoever knows a"
            " record may recognise its row; fresh rows belong to nobody."
        )
        # The order is what protects here, so it does not come from a generator of post-processing.
        shuffle = SystemRandomness() if job.seed is None else SimulatedRandomness(job.seed, f"{self.name}: shuffle")
        shuffled = pool[np.argsort(shuffle.words(len(pool)))]
        return self.table(job, AdjustedRows(copula, shuffled), correlation, notes=(note,))


@dataclass(frozen=True, kw_only=True)
class EVCDS(AdjustedSynthesizer):
    """Synthetic rows whose marginals are adjusted for absent records.

    Parameters
    ----------
    epsilon, delta, columns, accounting, split, noise : as in `VCDS`.
    marginals, order, degree, expected, rows, format : as in `VCDS`.
    draws : "fresh" rows of the fitted copula, or rows "adjusted" to the cohort's ranks, shuffled and resampled.
    sweeps : passes of the adjustment's Gibbs sampler after the paper's sequential one (0 is as printed).

    Returns
    -------
    `fit(federation)` gives a `SyntheticTable`.

    Example
    -------
    >>> federation.plan(co.EVCDS(epsilon=1.0, accounting="nominal", columns=("capital", "roa"))).method
    'evcds'
    """

    name: ClassVar[str] = "evcds"

    def execute(self, job: Job) -> SyntheticTable:
        present = self.ask_presence(job)
        ranks = self.ask_ranks(job, present)
        observed = self.ask_marginals(job)
        correlation = latent_correlation(ranks, observed)
        order = latent_order(ranks, observed)
        latent = adjusted_latent(correlation.matrix, order, job.generator("evcds: latent"), sweeps=self.sweeps)
        marginals = moved_marginals(observed, latent, present)
        return self.adjusted_table(job, order, marginals, correlation)


def latent_order(ranks: Reals, marginals: Mapping[str, Marginal]) -> Reals:
    """The ranks that latent rows follow: of a column with categories, the category."""
    each = zip(ranks.T, marginals.values(), strict=True)
    return np.column_stack([in_categories(column, one) if one.discrete else column for column, one in each])


def moved_marginals(observed: Mapping[str, Marginal], latent: Reals, present: Mask) -> dict[str, Marginal]:
    """A(F) of each column, from the latent values of the records that have it."""
    return {
        name: adjusted_marginal(one, latent[present[:, place], place])
        for place, (name, one) in enumerate(observed.items())
    }


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


# --- `IEVCDS`: the copula paper's Algorithm 3, which completes the columns and ranks them again, T times.
#
# Round 1 is EVCDS. In each later round
# 1. the coordinator reads imputed values off the latent rows: x = F~^-1(Phi(z')) for each record that a party lacks;
# 2. each party ranks its present values together with these, over all n records, and perturbs the ranks anew;
# 3. correlation, latent rows and marginals are estimated again, now from ranks of the whole cohort: the place of the
#    present records among all of them shows in their ranks, which is what corrects marginals under MAR.
#
# The paper imputes at the parties from exact marginals, because imputed values are not sent. They enter the ranks that
# *are* sent, though: a replaced record would move other records' imputed values, and so comparisons that are not its
# own. Here they come from the private marginals, which were paid for once, so a record spends its own n - 1 comparisons
# in each round and nothing else (`vcds.claim.md`).


Imputation = Literal["conditional", "ranked"]


@dataclass(frozen=True, kw_only=True)
class IEVCDS(AdjustedSynthesizer):
    """Synthetic rows from columns that are completed and ranked again.

    Parameters
    ----------
    epsilon, delta, columns, accounting, split, noise : as in `VCDS`.
    marginals, order, degree, expected, rows, format : as in `VCDS`.
    draws, sweeps : as in `EVCDS`.
    iterations : T, how often ranks are released; each time costs.
    per_iteration : with accounting="nominal", does each round get the rank budget of one (the paper's tables: the
        nominal total is then T epsilon_1 + epsilon_2) or its share of it?
    imputation : how the latent values of absent records are drawn from round 2 on: "conditional" on what the record
        has, as in round 1; or "ranked", as printed: between their neighbours in rank, where they hardly move, so that
        the noise of each round's ranks adds up in them.

    Returns
    -------
    `fit(federation)` gives a `SyntheticTable`.

    Example
    -------
    >>> federation.plan(co.IEVCDS(epsilon=1.0, accounting="nominal", columns=("capital", "roa"))).method
    'ievcds'
    """

    name: ClassVar[str] = "ievcds"

    iterations: int = 10
    per_iteration: bool = False
    imputation: Imputation = "conditional"

    def __post_init__(self) -> None:
        super().__post_init__()
        if isinstance(self.iterations, bool) or not isinstance(self.iterations, int) or self.iterations < 1:
            raise BadArguments(f"iterations must be a whole number of at least 1, not {self.iterations!r}.")
        if self.per_iteration and self.accounting != "nominal":
            raise BadArguments(
                "per_iteration multiplies a nominal epsilon; a record's total is divided over all rounds."
            )

        if self.imputation not in get_args(Imputation):
            raise BadArguments(f"imputation must be 'conditional' or 'ranked', not {self.imputation!r}.")

    @property
    def rounds(self) -> int:
        return self.iterations

    @property
    def each_round(self) -> bool:
        return self.per_iteration

    def execute(self, job: Job) -> SyntheticTable:
        columns = self.declared(job.facts)
        present = self.ask_presence(job)
        ranks = self.ask_ranks(job, present)
        observed = self.ask_marginals(job)
        correlation = latent_correlation(ranks, observed)
        order = latent_order(ranks, observed)
        latent = self._adjusted(job, 1, correlation, order, present)
        marginals = moved_marginals(observed, latent, present)
        for number in range(2, self.iterations + 1):
            imputed = imputed_values(columns, marginals, latent, present)
            ranks = self.ask_ranks(job, present, imputed=imputed)
            correlation = latent_correlation(ranks, marginals)
            order = latent_order(ranks, marginals)
            latent = self._adjusted(job, number, correlation, order, present)
            marginals = moved_marginals(observed, latent, present)
        return self.adjusted_table(job, order, marginals, correlation)

    def _adjusted(self, job: Job, number: int, correlation: LatentCorrelation, order: Reals, present: Mask) -> Reals:
        draw = job.generator(f"ievcds: latent rows of round {number}")
        kept = present if self.imputation == "conditional" else None
        return adjusted_latent(correlation.matrix, order, draw, present=kept, sweeps=self.sweeps)


def imputed_values(
    columns: Columns,
    marginals: Mapping[str, Marginal],
    latent: Reals,
    present: Mask,
) -> dict[str, Reals]:
    """{column: encoded values of the absent records, NaN for the present ones}, where some are absent."""
    found = {}
    for place, (name, column) in enumerate(columns.items()):
        absent = ~present[:, place]
        if absent.any():
            values = np.full(absent.size, np.nan)
            values[absent] = _encoded_quantile(column, marginals[name], special.ndtr(latent[absent, place]))
            found[name] = values
    return found


def _encoded_quantile(column: Column, marginal: Marginal, u: Reals) -> Reals:
    """As parties encode the column: a category's code, a whole number of a count."""
    values = marginal.quantile(u)
    return np.floor(values) if column.kind == "count" and not stepwise(column) else values
