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
from functools import cached_property
from typing import TYPE_CHECKING, Any

from colonnade.errors import BadArguments, NotEstimable
from colonnade.papers.vcds.ranks import (
    Noise,
    binomial_profile,
    comparison_budget,
    rank_cost,
    rank_noise_variance,
    rank_rho,
)
from colonnade.papers.vcds.releases import PRESENCE
from colonnade.privacy.accounting import Guarantee, guarantee
from colonnade.privacy.calibration import Calibration
from colonnade.privacy.cost import Cost, Laplace, Unit, ZeroConcentrated
from colonnade.synthesis.copula.overlap import Overlap

if TYPE_CHECKING:
    from colonnade.papers.vcds.method import RankSynthesizer

MARGINAL_SHARE = 0.1
"""Of a record-level epsilon, to the marginals: correlations need the rest (the reading's measurements)."""
FORECAST_WARNING = 0.01
"""Noise of a correlation above which the plan warns."""


class RankBudget:
    """What each release may spend: `epsilon_0` a comparison, in each of `rounds` rounds, and `marginal` (pure) for the
    marginal of one column. `widths` are the columns of each party, `n` the size of the cohort."""

    def __init__(self, options: RankSynthesizer, n: int, widths: Mapping[str, int]) -> None:
        if n < 2:
            raise NotEstimable("the cohort has one record, and ranks compare two; join more records.")
        self.options, self.n, self.widths = options, n, widths
        self.columns, self.rounds = sum(widths.values()), options.iterations
        self.noise: Noise = "response" if options.noise == "exact" else "skellam"
        if options.accounting == "nominal":
            half = options.epsilon / 2
            own = half if options.per_iteration else half / self.rounds
            self.epsilon_0, self.marginal = (
                comparison_budget(part, split=options.split, parties=len(widths), total_columns=self.columns)
                for part in (own, half)
            )
            return
        if options.delta == 0:
            raise BadArguments("a record's total is accounted at a delta above 0; choose one below 1/n, say 1e-6.")
        self.marginal = MARGINAL_SHARE * options.epsilon / self.columns
        calibration = Calibration(
            {"ranks": RankReleases(n=n, columns=self.columns, rounds=self.rounds, noise=self.noise)},
            epsilon=options.epsilon,
            delta=options.delta,
            others=[Laplace(self.marginal, relation="replace", count=self.columns)],
            bracket=(0.1, 1e9),
        )
        self.epsilon_0 = calibration["ranks"]

    def costs(self, columns: int, *, unit: Unit = "record") -> list[Cost]:
        """Everything about one record that `columns` columns release. Presence is not public, so all n records
        count."""
        ranks = rank_cost(self.n, columns, self.epsilon_0, noise=self.noise, unit=unit)
        return [ranks.times(self.rounds), Laplace(self.marginal, relation="replace", unit=unit, count=columns)]

    # --- in three units ------------------------------------------------------------------------------------------

    @property
    def nominal(self) -> dict[str, float]:
        """One comparison in one column, and all that the party with most columns answers and releases about one pair
        of records: the paper's reading. It protects no record."""
        pair = max(self.widths.values()) * (self.rounds * self.epsilon_0 + self.marginal)
        return {"comparison": self.epsilon_0, "pair": pair}

    @cached_property
    def record(self) -> Guarantee:
        """What a record loses over all parties; who is present is held fixed."""
        return guarantee(self.costs(self.columns), delta=self.options.delta, relation="replace")

    @cached_property
    def blocks(self) -> dict[str, Guarantee]:
        """What a record loses through each party's columns."""
        of_width = {
            width: guarantee(
                self.costs(width, unit="block"), delta=self.options.delta, unit="block", relation="replace"
            )
            for width in set(self.widths.values())
        }
        return {party: of_width[width] for party, width in self.widths.items()}

    @property
    def exact(self) -> float | None:
        """The exact epsilon of a record's flipped comparisons alone, at the same delta (None for Skellam noise)."""
        if self.noise == "skellam" or self.options.delta == 0:
            return None
        return binomial_profile(self.n, self.columns * self.rounds, self.epsilon_0).epsilon(self.options.delta)

    def units(self) -> dict[str, Any]:
        """Plain values for result.json."""
        return {
            "nominal": self.nominal,
            "record": str(self.record),
            "blocks": {party: str(block) for party, block in self.blocks.items()},
            "ranks_of_a_record_exactly": self.exact,
        }

    # --- forecasts and words ---------------------------------------------------------------------------------------

    def correlation_noise(self, present: tuple[int, int] | None = None, shared: int | None = None) -> float:
        """The sd that rank noise adds to one correlation of two continuous columns with `present` records, `shared` of
        them in common (all n by default)."""
        sizes = present or (self.n, self.n)
        first, second = (
            rank_noise_variance(size, self.epsilon_0, noise=self.noise, cohort=self.n) * 12 / (size**2 - 1)
            for size in sizes
        )
        return forecast_noise(min(sizes) if shared is None else shared, first, second)

    def notes(self, overlap: Overlap) -> tuple[str, ...]:
        """For the plan: all three units, what `epsilon` was taken for, the forecast, what parties must agree to."""
        epsilon, nominal = self.options.epsilon, self.options.accounting == "nominal"
        notes = [
            f"accounting='nominal': epsilon {epsilon:g} is a budget of comparisons, as in the paper; it is not what a"
            " record loses, so it is not called private here: read the next two lines."
            if nominal
            else f"accounting='record': epsilon {epsilon:g} is a person's total over all parties.",
            f"Nominal epsilon (unit comparison): {self.nominal['comparison']:.3g} for one comparison in one column,"
            f" {self.nominal['pair']:.3g} for a pair of records at the party with most columns. One record is in"
            f" {self.n - 1:,} comparisons of each column, in each of {self.rounds} round"
            f"{'s' if self.rounds > 1 else ''}.",
            f"What a record loses, who is present held fixed: {self.record}; through one party's columns: "
            + "; ".join(f"{party} {block}" for party, block in self.blocks.items())
            + ". The ledgers are debited per record.",
        ]
        if nominal:
            # One party's part of a record is its block: the same releases, counted in the other unit.
            least = "; ".join(f"{party} {_up(block.epsilon)}" for party, block in self.blocks.items())
            notes.append(
                f"A party with a budget must cover its part at delta {self.options.delta:g} ({least}) or it refuses;"
                " ask for accounting='record', or take Synthesize, to stay within an ordinary budget."
            )
        sd = self.correlation_noise()
        if self.n >= 8:
            fewer = self.correlation_noise((self.n // 2, self.n // 2), self.n // 4)
            notes.append(
                f"Rank noise moves a correlation by {sd:.2g} (standard deviation) for two parties that have all"
                f" {self.n:,} records, by {fewer:.2g} if each has half of them and both a quarter."
            )

        def of_pair(a: str, b: str, shared: float) -> float:
            first, second = (max(2, round(overlap.part(party) * self.n)) for party in (a, b))
            return self.correlation_noise((first, second), round(shared * self.n))

        # Ranks leave out pairs by their sampling error, not by their noise: the result says which.
        notes += overlap.notes(of_pair, warn=FORECAST_WARNING, leave=math.inf)
        if sd > FORECAST_WARNING:
            notes.append(f"Warning: noise above {FORECAST_WARNING:g} blurs the correlations of the table.")
        notes.append(
            f"The coordinator sees a perturbed rank of each record in each column, and who is present: every party must"
            f" allow {PRESENCE!r}."
        )
        return tuple(notes)


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


def forecast_noise(shared: int, first: float, second: float) -> float:
    """The sd that rank noise adds to one Spearman correlation near 0.

    `first` and `second` are the noise variances over the true variances of the two columns: the mean of `shared`
    products (x + e)(y + f) has the extra variance (first + second + first second) / shared.
    """
    return math.sqrt((first + second + first * second) / shared) if shared else math.inf


def _up(epsilon: float) -> str:
    """Three digits, rounded up: a budget of this size suffices."""
    digits = 2 - math.floor(math.log10(epsilon))
    return f"{math.ceil(epsilon * 10**digits) / 10**digits:g}"
