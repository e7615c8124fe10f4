"""`IEVCDS`: the copula paper's Algorithm 3, which completes the columns and ranks them again, T times.

Round 1 is EVCDS. In each later round
1. the coordinator reads imputed values off the latent rows: x = F~^-1(Phi(z')) for each record that a party lacks;
2. each party ranks its present values together with these, over all n records, and perturbs the ranks anew;
3. correlation, latent rows and marginals are estimated again, now from ranks of the whole cohort: the place of the
   present records among all of them shows in their ranks, which is what corrects marginals under MAR.

The paper imputes at the parties from exact marginals, because imputed values are not sent. They enter the ranks that
*are* sent, though: a replaced record would move other records' imputed values, and so comparisons that are not its
own. Here they come from the private marginals, which were paid for once, so a record spends its own n - 1 comparisons
in each round and nothing else (`vcds.claim.md`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar, Literal, get_args

import numpy as np
from scipy import special

from colonnade.data.column import Column, Columns
from colonnade.errors import BadArguments
from colonnade.federation.job import Job
from colonnade.statistics.marginals import Marginal
from colonnade.synthesis.copula.evcds import AdjustedSynthesizer, latent_order, moved_marginals
from colonnade.synthesis.copula.latent import adjusted_latent
from colonnade.synthesis.copula.model import stepwise
from colonnade.synthesis.copula.rank_steps import LatentCorrelation, Mask, Reals, latent_correlation
from colonnade.synthesis.table import SyntheticTable

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
