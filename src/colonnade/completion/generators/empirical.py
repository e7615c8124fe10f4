"""The marginal of one column, read off the records: exact, hence **not private**.

Uniform scores and quantiles are those of `statistics.marginals.Marginal`, on empirical knots. Equal values are one
step of the distribution function: their score is the middle of the step, and every quantile inside it is that value
exactly, so that a value which half of the records share (a balance of 0) is drawn for half of the rows.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy import special

from colonnade.statistics.rank_correlation import category_coefficients, uniform_coefficients

Reals = NDArray[np.float64]

KNOTS = 1024
"""Quantiles that are kept: a distribution function has an error of at most 1 / KNOTS between them."""
FEW = 64
"""Distinct values up to which a column is one with steps."""


@dataclass(frozen=True, eq=False)
class Empirical:
    """`knots` is the quantile function at `levels`, 0 to 1; `steps` the distinct values and their shares, if few."""

    knots: Reals
    levels: Reals
    steps: tuple[Reals, Reals] | None

    @classmethod
    def of(cls, values: ArrayLike) -> Empirical:
        known = np.sort(np.asarray(values, dtype=np.float64))
        distinct, counts = np.unique(known, return_counts=True)
        if distinct.size <= FEW:
            # A jump from one value to the next at exactly the cumulative share: both ends of every step are knots.
            edges = np.concatenate([[0.0], np.cumsum(counts) / known.size])
            edges[-1] = 1.0
            levels = np.column_stack([edges[:-1], edges[1:]]).ravel()
            return cls(np.repeat(distinct, 2), levels, (distinct, counts / known.size))
        levels = np.linspace(0.0, 1.0, min(KNOTS, known.size))
        return cls(np.quantile(known, levels), levels, None)

    def scores(self, values: ArrayLike) -> Reals:
        """F in (0, 1), at the middle of a step."""
        first, last = self._step(values)
        return _inside((first + last) / 2)

    def normal_scores(self, values: ArrayLike, draw: np.random.Generator | None = None) -> Reals:
        """Phi^-1(F). With `draw`, anywhere in a step: then they are standard normal, whatever the steps, and
        `at_normal` still gives the values back."""
        if draw is None:
            return np.asarray(special.ndtri(self.scores(values)), dtype=np.float64)
        first, last = self._step(values)
        return np.asarray(special.ndtri(_inside(first + (last - first) * draw.random(first.shape))), dtype=np.float64)

    def _step(self, values: ArrayLike) -> tuple[Reals, Reals]:
        """F just below and at each value; the same where there is no step."""
        at = np.asarray(values, dtype=np.float64)
        # Levels of equal knots: the lowest from one side, the highest from the other.
        first = np.interp(at, *_lowest(self.knots, self.levels))
        last = 1 - np.interp(-at, *_lowest(-self.knots[::-1], 1 - self.levels[::-1]))
        return np.asarray(first, dtype=np.float64), np.asarray(last, dtype=np.float64)

    def quantile(self, u: ArrayLike) -> Reals:
        """The inverse, inside the range that was seen."""
        at = np.clip(np.asarray(u, dtype=np.float64), 0.0, 1.0)
        if self.steps is None:
            return np.asarray(np.interp(at, self.levels, self.knots), dtype=np.float64)
        values, shares = self.steps
        upper = np.cumsum(shares)
        return values[np.minimum(np.searchsorted(upper, at, side="left"), values.size - 1)]

    def at_normal(self, z: ArrayLike) -> Reals:
        """The values whose normal scores these are."""
        return self.quantile(special.ndtr(np.asarray(z, dtype=np.float64)))

    def coefficients(self) -> Reals:
        """Of the score in Hermite polynomials, for the bridge from scores to latent correlations."""
        return uniform_coefficients() if self.steps is None else category_coefficients(self.steps[1])


def _inside(u: Reals) -> Reals:
    margin = 0.5 / KNOTS
    return np.clip(u, margin, 1 - margin)


def _lowest(knots: Reals, levels: Reals) -> tuple[Reals, Reals]:
    """Each knot once, with the first of its levels."""
    distinct, first = np.unique(knots, return_index=True)
    return distinct, levels[first]
