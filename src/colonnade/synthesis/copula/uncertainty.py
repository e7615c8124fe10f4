"""How far a fitted copula may be off, from what was released alone: other copulas that fit as well.

A cohort of n rows is drawn from the copula. Its scores have covariances, which get the noise of the released products;
they are brought to the latent scale, shrunk and repaired as the released ones were. Its marginals are the cohort's,
with the noise of a count (listed values) or of a rank (all others).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import special

from colonnade.statistics.latent_correlation import invert_bridge, repair
from colonnade.statistics.marginals import Marginal, from_curve, from_shares
from colonnade.synthesis.copula.estimate import LatentScore, shrink
from colonnade.synthesis.copula.model import GaussianCopula
from colonnade.synthesis.copula.scores import SCORE_VARIANCE, score_factor

Reals = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class CopulaNoise:
    """Draws copulas that the releases support as well as the fitted one.

    noise : sd of each covariance of two scores; infinite where it was not measured. shared : records that have both
    columns. ranks : noise sd of a rank, or of a count, of each column. owner : the party of each column.
    """

    model: GaussianCopula
    noise: Reals
    shared: Reals
    ranks: Mapping[str, float]
    owner: NDArray[np.intp]
    records: int

    def __call__(self, source: np.random.Generator) -> GaussianCopula:
        model, size = self.model, len(self.model.columns)
        u = special.ndtr(source.standard_normal((self.records, size)) @ model.root.T)
        laws = [LatentScore(marginal, score_factor(marginal), 0.0, 1.0) for marginal in model.marginals.values()]
        values = [law.marginal.quantile(u[:, place]) for place, law in enumerate(laws)]
        drawn = zip(laws, values, strict=True)
        scores = np.array([law.factor * (2 * law.marginal.scores(value) - 1) for law, value in drawn])
        return GaussianCopula(
            model.columns, self._marginals(values, source), self._correlation(np.cov(scores, ddof=0), laws, source)
        )

    def to_arrays(self) -> dict[str, NDArray[Any]]:
        """Noise, overlap and owners; `from_arrays` is its inverse."""
        return {
            "draws_noise": self.noise,
            "draws_shared": self.shared,
            "draws_ranks": np.array([self.ranks[name] for name in self.model.columns]),
            "draws_owner": np.asarray(self.owner, dtype=np.int64),
            "draws_records": np.array(self.records),
        }

    @classmethod
    def from_arrays(cls, model: GaussianCopula, arrays: Mapping[str, NDArray[Any]]) -> CopulaNoise:
        ranks = dict(zip(model.columns, arrays["draws_ranks"].tolist(), strict=True))
        owner, records = arrays["draws_owner"].astype(np.intp), int(arrays["draws_records"])
        return cls(model, arrays["draws_noise"], arrays["draws_shared"], ranks, owner, records)

    def _correlation(self, covariance: Reals, laws: Sequence[LatentScore], source: np.random.Generator) -> Reals:
        if self.model.independent:
            return self.model.correlation
        coefficients = np.array([law.coefficients for law in laws])
        measured = np.isfinite(self.noise)
        # Of fewer records the covariance has more sampling noise; a product of two scores has a variance near 1/9.
        fewer = SCORE_VARIANCE**2 * np.maximum(1 / np.maximum(self.shared, 1.0) - 1 / self.records, 0.0)
        spread = np.sqrt(np.where(measured, self.noise, 0.0) ** 2 + fewer)
        upper = np.triu(source.standard_normal(covariance.shape), 1) * spread
        raw = invert_bridge(covariance.reshape(spread.shape) + upper + upper.T, coefficients)
        slope = np.abs(coefficients[:, 0])
        entry = np.where(measured, self.noise, 0.0) / np.maximum(np.outer(slope, slope), 1e-6)
        shrunk, _ = shrink(raw, entry, self.owner)
        return repair(np.where(measured, shrunk, self.model.correlation))

    def _marginals(self, values: Sequence[Reals], source: np.random.Generator) -> dict[str, Marginal]:
        drawn = {}
        for (name, marginal), value in zip(self.model.marginals.items(), values, strict=True):
            sd, size = self.ranks[name] / self.records, marginal.points.size
            if marginal.discrete:
                counts = np.bincount(np.searchsorted(marginal.points, value), minlength=size) / self.records
                drawn[name] = from_shares(marginal.points, counts + sd * source.standard_normal(size))
                continue
            # Two knots at a point mass: F before it and after it.
            ordered, second = np.sort(value), np.append(False, np.diff(marginal.points) == 0)
            before, upto = (np.searchsorted(ordered, marginal.points, side=side) for side in ("left", "right"))
            cumulative = np.where(second | (np.arange(size) == size - 1), upto, before) / self.records
            # A bridge of independent steps has its largest sd, half of a step's times the root of their number, in the
            # middle: that of a rank.
            walk = np.cumsum(source.standard_normal(size)) * (2 * sd / np.sqrt(size))
            drawn[name] = from_curve(marginal.points, cumulative + walk - np.linspace(0, 1, size) * walk[-1])
        return drawn
