"""`EVCDS`: the copula paper's Algorithm 2, whose marginals use what the other columns say about absent records.

1. Perturbed ranks, private marginals and the latent correlation, as in VCDS.
2. Latent rows of the cohort that agree with the perturbed ranks (`latent.adjusted_latent`).
3. Each marginal is moved to where the latent values of the present records lie among all of them: F~ = A(F).
4. Synthetic rows. The paper adjusts new latent rows to the ranks of the cohort, which makes row i a copy of record i
   with noise; such rows are **never released in the cohort's order**. By default rows are fresh, as in VCDS. With
   `draws="adjusted"` they are the adjusted rows, shuffled and drawn with replacement: their order says nothing, but
   whoever knows a record may still find its row. `vcds.claim.md` says what remains.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, get_args

import numpy as np
import pandas as pd

from colonnade.data.column import Columns
from colonnade.errors import BadArguments
from colonnade.federation.job import Job
from colonnade.privacy.randomness import SimulatedRandomness, SystemRandomness
from colonnade.statistics.marginals import Marginal
from colonnade.synthesis.copula.latent import adjusted_latent, adjusted_marginal, in_categories
from colonnade.synthesis.copula.model import GaussianCopula
from colonnade.synthesis.copula.rank_method import RankSynthesizer
from colonnade.synthesis.copula.rank_steps import LatentCorrelation, Mask, Reals, latent_correlation
from colonnade.synthesis.table import BATCH, Sampler, Source, SyntheticTable, generator

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
