"""A Gaussian copula on one table, if wished given a condition: the generator to beat, without any training.

Each column has one latent normal coordinate (a categorical one in its declared order, as everywhere in the product's
copulas) and its own empirical marginal. Covariances of uniform scores are carried to the latent scale by the Hermite
bridge. A condition enters by its columns' normal scores W, scaled to unit variance: their only Hermite coefficient is
the first, so cov(F_j(Z_j), W_k) = c_j1 r_jk, and the bridge inverts it like any other pair. A row is then

    Z | W = w  ~  N(R_zw R_ww^-1 w,  R_zz - R_zw R_ww^-1 R_wz),   x_j = F_j^-1(Phi(Z_j)).

A marginal is read off the records: exact, hence **not private**. Uniform scores and quantiles are those of
`statistics.marginals.Marginal`, on empirical knots. Equal values are one step of the distribution function: their score
is the middle of the step, and every quantile inside it is that value exactly, so that a value which half of the records
share (a balance of 0) is drawn for half of the rows.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy import linalg, special

from colonnade.completion.layout import Layout, Matrix, is_numeric
from colonnade.papers.fedpsg.generators import Generator, Progress
from colonnade.statistics.latent_correlation import (
    TERMS,
    category_coefficients,
    invert_bridge,
    repair,
    uniform_coefficients,
)

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
        x = np.asarray(values, dtype=np.float64)
        # Levels of equal knots: the lowest from one side, the highest from the other.
        first = np.interp(x, *_lowest(self.knots, self.levels))
        last = 1 - np.interp(-x, *_lowest(-self.knots[::-1], 1 - self.levels[::-1]))
        return np.asarray(first, dtype=np.float64), np.asarray(last, dtype=np.float64)

    def quantile(self, u: ArrayLike) -> Reals:
        """The inverse, inside the range that was seen."""
        inside = np.clip(np.asarray(u, dtype=np.float64), 0.0, 1.0)
        if self.steps is None:
            return np.asarray(np.interp(inside, self.levels, self.knots), dtype=np.float64)
        values, shares = self.steps
        upper = np.cumsum(shares)
        return values[np.minimum(np.searchsorted(upper, inside, side="left"), values.size - 1)]

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


# --- the generator --------------------------------------------------------------------------------------------------


class GaussianCopula(Generator):
    """`fit`, then `sample`. Nothing to choose, and only `sample` is random."""

    def _learn(
        self, rows: Reals, known: NDArray[Any] | None, layout: Layout, *, seed: int, progress: Progress | None
    ) -> None:
        self._layout = layout
        cells = _cells(rows, layout)
        self._marginals = [Empirical.of(column) for column in cells.T]
        scores = np.column_stack([marginal.scores(x) for marginal, x in zip(self._marginals, cells.T, strict=True)])
        coefficients = np.array([marginal.coefficients() for marginal in self._marginals])
        self._given: list[tuple[Empirical, float]] | None = None
        if known is not None:
            marginals = [Empirical.of(column[~np.isnan(column)]) for column in _or_nothing(known).T]
            normal = np.column_stack(
                [marginal.normal_scores(x) for marginal, x in zip(marginals, known.T, strict=True)]
            )
            scale = np.sqrt(np.nanmean(normal**2, axis=0))
            self._given = list(zip(marginals, np.where(scale > 1e-9, 1 / np.maximum(scale, 1e-9), 0.0), strict=True))
            scores = np.column_stack([self._normal(known), scores])
            first = np.zeros((known.shape[1], TERMS))
            first[:, 0] = 1.0
            coefficients = np.concatenate([first, coefficients])
        covariance = np.cov(scores, rowvar=False, ddof=0).reshape(scores.shape[1], scores.shape[1])
        correlation = repair(invert_bridge(covariance, coefficients))
        width = 0 if known is None else known.shape[1]
        weights = linalg.solve(correlation[:width, :width], correlation[:width, width:], assume_a="pos")
        left = correlation[width:, width:] - correlation[width:, :width] @ weights
        self._weights = weights
        self._root = linalg.cholesky((left + left.T) / 2, lower=True)
        if progress is not None:
            progress(1, 1)

    def _draw(self, n: int, known: NDArray[Any] | None, *, seed: int) -> Matrix:
        draw = np.random.default_rng(seed)
        latent = draw.standard_normal((n, len(self._marginals))) @ self._root.T
        if known is not None:
            latent += self._normal(known) @ self._weights
        cells = np.column_stack([marginal.at_normal(z) for marginal, z in zip(self._marginals, latent.T, strict=True)])
        return _from_cells(cells, self._layout)

    def _normal(self, condition: NDArray[Any]) -> Reals:
        """Normal scores of unit variance; where a condition is missing, their mean."""
        assert self._given is not None
        parts = [
            scale * marginal.normal_scores(x) for (marginal, scale), x in zip(self._given, condition.T, strict=True)
        ]
        return np.nan_to_num(np.column_stack(parts), nan=0.0)


def _or_nothing(condition: NDArray[Any]) -> Reals:
    """A column of the condition that no record has says nothing: it becomes a constant."""
    given = np.asarray(condition, dtype=np.float64)
    return np.where(np.isnan(given).all(axis=0), 0.0, given)


def _cells(rows: Reals, layout: Layout) -> Reals:
    """One number a column: the scaled number, or the code of the category."""
    return np.column_stack(
        [
            rows[:, place.start] if is_numeric(layout.columns[name]) else np.argmax(rows[:, place], axis=1)
            for name, place in layout.slices.items()
        ]
    )


def _from_cells(cells: Reals, layout: Layout) -> Matrix:
    rows = np.zeros((len(cells), layout.width))
    for column, (name, place) in enumerate(layout.slices.items()):
        if is_numeric(layout.columns[name]):
            rows[:, place.start] = cells[:, column]
        else:
            rows[:, place] = cells[:, [column]] == np.arange(place.stop - place.start)
    return layout.legal(rows)
