"""`VCDS`: the copula paper's Algorithm 1, for records that are missing completely at random.

1. Each party perturbs the ranks of its present records, column by column, and sends them to the coordinator.
2. Each party estimates the distribution of each column and adds noise to its Bernstein polynomial.
3. The coordinator estimates the latent correlation from the debiased ranks of the records that two columns share.
4. Fresh latent rows from N(0, R), through the inverse marginals, are the synthetic rows. None belongs to a record.

(The paper sends latent rows to the parties, who invert their marginals; the marginals that left are the same, so here
the coordinator does it.) What this costs, and what the paper's epsilon does not mean, is in `vcds.claim.md`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from colonnade.federation.job import Job
from colonnade.synthesis.copula.model import GaussianCopula
from colonnade.synthesis.copula.rank_method import RankSynthesizer
from colonnade.synthesis.copula.rank_steps import latent_correlation
from colonnade.synthesis.table import SyntheticTable


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
