"""What a synthesizer of perturbed ranks spends, in all three units, and how its budget is divided.

The copula paper states one epsilon, the budget of **comparisons** of two records. One record is in n - 1 comparisons
of every column, so what a record loses is another number, by orders of magnitude (`ranks.claim.md`). Both are always
stated, and the ledgers are debited with the record's. `accounting` says which of them `epsilon` is:

- "record": a person's total over all parties at `delta`, as everywhere else in Colonnade; the noise follows from it.
- "nominal": the paper's epsilon, half for ranks and half for marginals; the record's total follows from it. It is the
  way to repeat the paper's tables, and it is never called private.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from colonnade.errors import BadArguments, NotEstimable
from colonnade.papers.vcds.ranks import (
    Noise,
    Split,
    binomial_profile,
    comparison_budget,
    rank_cost,
    rank_noise_variance,
    rank_rho,
)
from colonnade.privacy.accounting import Guarantee, check_epsilon, guarantee
from colonnade.privacy.calibration import Calibration
from colonnade.privacy.cost import Cost, Laplace, Unit, ZeroConcentrated
from colonnade.synthesis.copula.overlap import Overlap

Accounting = Literal["record", "nominal"]
RankNoise = Literal["exact", "skellam"]

MARGINAL_SHARE = 0.1
"""Of a record-level epsilon, to the marginals: correlations need the rest (the reading's measurements)."""
FORECAST_WARNING = 0.01
"""Noise of a correlation above which the plan warns."""


@dataclass(frozen=True, kw_only=True)
class RankBudget:
    """What each release may spend: `epsilon_0` a comparison, in each of `rounds` rounds, and `marginal` (pure) for the
    marginal of one column. `widths` are the columns of each party, `n` the size of the cohort."""

    n: int
    widths: Mapping[str, int]
    epsilon_0: float
    marginal: float
    rounds: int
    noise: Noise

    @property
    def columns(self) -> int:
        return sum(self.widths.values())

    def costs(self, columns: int, *, unit: Unit = "record") -> list[Cost]:
        """Everything about one record that `columns` columns release. Presence is not public, so all n records
        count."""
        ranks = rank_cost(self.n, columns, self.epsilon_0, noise=self.noise, unit=unit)
        return [ranks.times(self.rounds), Laplace(self.marginal, relation="replace", unit=unit, count=columns)]


def rank_budget(
    *,
    n: int,
    widths: Mapping[str, int],
    epsilon: float,
    delta: float,
    accounting: Accounting,
    split: Split,
    noise: RankNoise,
    rounds: int = 1,
    each_round: bool = False,
) -> RankBudget:
    """Divide `epsilon`. `each_round` gives every round of ranks what one round would get (nominal accounting only)."""
    check_epsilon(epsilon)
    if n < 2:
        raise NotEstimable("the cohort has one record, and ranks compare two; join more records.")
    mechanism: Noise = "response" if noise == "exact" else "skellam"
    columns = sum(widths.values())
    if accounting == "nominal":
        half = epsilon / 2
        shares = {"split": split, "parties": len(widths), "total_columns": columns}
        epsilon_0 = comparison_budget(half if each_round else half / rounds, **shares)  # type: ignore[arg-type]
        marginal = comparison_budget(half, **shares)  # type: ignore[arg-type]
    else:
        if delta == 0:
            raise BadArguments("a record's total is accounted at a delta above 0; choose one below 1/n, say 1e-6.")
        marginal = MARGINAL_SHARE * epsilon / columns
        calibration = Calibration(
            {"ranks": RankReleases(n=n, columns=columns, rounds=rounds, noise=mechanism)},
            epsilon=epsilon,
            delta=delta,
            others=[Laplace(marginal, relation="replace", count=columns)],
            bracket=(0.1, 1e9),
        )
        epsilon_0 = calibration["ranks"]
    return RankBudget(n=n, widths=dict(widths), epsilon_0=epsilon_0, marginal=marginal, rounds=rounds, noise=mechanism)


@dataclass(frozen=True, kw_only=True)
class RankReleases:
    """All rounds of ranks as one group of a `Calibration`; the level is the budget of a comparison."""

    n: int
    columns: int
    rounds: int
    noise: Noise

    def level(self, scale: float) -> float:
        return 1 / scale

    def cost(self, level: float, *, colluders: int | None = None) -> Cost:
        if self.noise == "skellam":
            return rank_cost(self.n, self.columns, level, noise=self.noise).times(self.rounds)
        # The zCDP bound of the answers: for such small budgets it is their Renyi curve, and it is accounted quickly.
        return ZeroConcentrated(rank_rho(self.n, self.columns, level), relation="replace", count=self.rounds)


# --- in words --------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Units:
    """One budget in three units.

    nominal : {"comparison": one comparison in one column, "pair": all that the party with most columns answers and
        releases about one pair of records}: the paper's reading. It protects no record.
    record, blocks : what a record loses over all parties, and through each party's columns; who is present is fixed.
    exact : the exact epsilon of a record's flipped comparisons alone, at the same delta (None for Skellam noise).
    """

    nominal: Mapping[str, float]
    record: Guarantee
    blocks: Mapping[str, Guarantee]
    exact: float | None

    def to_dict(self) -> dict[str, Any]:
        return {
            "nominal": dict(self.nominal),
            "record": str(self.record),
            "blocks": {party: str(block) for party, block in self.blocks.items()},
            "ranks_of_a_record_exactly": self.exact,
        }


def units(budget: RankBudget, delta: float) -> Units:
    widest = max(budget.widths.values())
    exact = None
    if budget.noise == "response" and delta > 0:
        exact = binomial_profile(budget.n, budget.columns * budget.rounds, budget.epsilon_0).epsilon(delta)
    of_width = {
        width: guarantee(budget.costs(width, unit="block"), delta=delta, unit="block", relation="replace")
        for width in set(budget.widths.values())
    }
    return Units(
        nominal={
            "comparison": budget.epsilon_0,
            "pair": widest * (budget.rounds * budget.epsilon_0 + budget.marginal),
        },
        record=guarantee(budget.costs(budget.columns), delta=delta, relation="replace"),
        blocks={party: of_width[width] for party, width in budget.widths.items()},
        exact=exact,
    )


def forecast_noise(shared: int, first: float, second: float) -> float:
    """The sd that rank noise adds to one Spearman correlation near 0.

    `first` and `second` are the noise variances over the true variances of the two columns: the mean of `shared`
    products (x + e)(y + f) has the extra variance (first + second + first second) / shared.
    """
    return math.sqrt((first + second + first * second) / shared) if shared else math.inf


def correlation_noise(
    budget: RankBudget, *, present: tuple[int, int] | None = None, shared: int | None = None
) -> float:
    """The sd that rank noise adds to one correlation of two continuous columns with `present` records, `shared` of
    them in common (all n by default)."""
    sizes = (budget.n, budget.n) if present is None else present
    first, second = (
        rank_noise_variance(size, budget.epsilon_0, noise=budget.noise, cohort=budget.n) * 12 / (size**2 - 1)
        for size in sizes
    )
    return forecast_noise(min(sizes) if shared is None else shared, first, second)


def budget_notes(
    budget: RankBudget,
    spent: Units,
    *,
    epsilon: float,
    delta: float,
    accounting: Accounting,
    presence: str,
    overlap: Overlap,
) -> tuple[str, ...]:
    """For the plan: all three units, what `epsilon` was taken for, the forecast, and what the parties must agree to."""
    notes = []
    if accounting == "nominal":
        notes.append(
            f"accounting='nominal': epsilon {epsilon:g} is a budget of comparisons, as in the paper; it is not what a"
            " record loses, so it is not called private here: read the next two lines."
        )
    else:
        notes.append(f"accounting='record': epsilon {epsilon:g} is a person's total over all parties.")
    notes += [
        f"Nominal epsilon (unit comparison): {spent.nominal['comparison']:.3g} for one comparison in one column,"
        f" {spent.nominal['pair']:.3g} for a pair of records at the party with most columns. One record is in"
        f" {budget.n - 1:,} comparisons of each column, in each of {budget.rounds} round"
        f"{'s' if budget.rounds > 1 else ''}.",
        f"What a record loses, who is present held fixed: {spent.record}; through one party's columns: "
        + "; ".join(f"{party} {block}" for party, block in spent.blocks.items())
        + ". The ledgers are debited per record.",
    ]
    if accounting == "nominal":
        # One party's part of a record is its block: the same releases, counted in the other unit.
        least = "; ".join(f"{party} {_up(block.epsilon)}" for party, block in spent.blocks.items())
        notes.append(
            f"A party with a budget must cover its part at delta {delta:g} ({least}) or it refuses; ask for"
            " accounting='record', or take Synthesize, to stay within an ordinary budget."
        )
    sd = correlation_noise(budget)
    if budget.n >= 8:
        fewer = correlation_noise(budget, present=(budget.n // 2, budget.n // 2), shared=budget.n // 4)
        notes.append(
            f"Rank noise moves a correlation by {sd:.2g} (standard deviation) for two parties that have all"
            f" {budget.n:,} records, by {fewer:.2g} if each has half of them and both a quarter."
        )

    def of_pair(a: str, b: str, shared: float) -> float:
        first, second = (max(2, round(overlap.part(party) * budget.n)) for party in (a, b))
        return correlation_noise(budget, present=(first, second), shared=round(shared * budget.n))

    # Ranks leave out pairs by their sampling error, not by their noise: the result says which.
    notes += overlap.notes(of_pair, warn=FORECAST_WARNING, left=lambda _noise, _shared: False)
    if sd > FORECAST_WARNING:
        notes.append(f"Warning: noise above {FORECAST_WARNING:g} blurs the correlations of the table.")
    notes.append(
        f"The coordinator sees a perturbed rank of each record in each column, and who is present: every party must"
        f" allow {presence!r}."
    )
    return tuple(notes)


def _up(epsilon: float) -> str:
    """Three digits, rounded up: a budget of this size suffices."""
    digits = 2 - math.floor(math.log10(epsilon))
    return f"{math.ceil(epsilon * 10**digits) / 10**digits:g}"
