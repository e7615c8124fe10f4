"""What VCDS, EVCDS and IEVCDS have in common: their options, their plan, and the table that they return."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any, ClassVar, Self, get_args

from colonnade.data.column import Columns
from colonnade.errors import BadArguments
from colonnade.federation.facts import PublicFacts
from colonnade.federation.job import Job
from colonnade.federation.plan import Plan, phase
from colonnade.federation.roster import Roster
from colonnade.privacy.accounting import check_delta, check_epsilon
from colonnade.statistics.marginals import Marginal
from colonnade.statistics.ranks import Split
from colonnade.synthesis.copula.costs import (
    Accounting,
    RankBudget,
    RankNoise,
    budget_notes,
    check_options,
    rank_budget,
    units,
)
from colonnade.synthesis.copula.expected import Overlap, check_expected
from colonnade.synthesis.copula.rank_steps import (
    PRESENCE,
    LatentCorrelation,
    MarginalMethod,
    Mask,
    Reals,
    ask_marginals,
    ask_presence,
    ask_ranks,
    check_marginals,
    release_marginals,
    release_presence,
    release_ranks,
)
from colonnade.synthesis.table import Format, Sampler, SyntheticTable, check_format, check_rows

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
