"""A Gaussian copula on one table, if wished given a condition: the generator to beat, without any training.

Each column has one latent normal coordinate (a categorical one in its declared order, as everywhere in the product's
copulas) and its own empirical marginal. Covariances of uniform scores are carried to the latent scale by the Hermite
bridge. A condition enters by its columns' normal scores W, scaled to unit variance: their only Hermite coefficient is
the first, so cov(F_j(Z_j), W_k) = c_j1 r_jk, and the bridge inverts it like any other pair. A row is then

    Z | W = w  ~  N(R_zw R_ww^-1 w,  R_zz - R_zw R_ww^-1 R_wz),   x_j = F_j^-1(Phi(Z_j)).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import linalg

from colonnade.completion.generators.empirical import Empirical
from colonnade.completion.generators.protocol import (
    Progress,
    sampling_condition,
    training_rows,
    unfitted,
)
from colonnade.completion.layout import Layout, Matrix, is_numeric
from colonnade.statistics.rank_correlation import TERMS, invert_bridge, repair

Reals = NDArray[np.float64]


@dataclass
class GaussianCopula:
    """`fit`, then `sample`. Nothing to choose."""

    _layout: Layout | None = field(default=None, init=False, repr=False)

    def fit(
        self,
        matrix: NDArray[Any],
        layout: Layout,
        *,
        condition: NDArray[Any] | None = None,
        seed: int,
        progress: Progress | None = None,
    ) -> GaussianCopula:
        """The seed is not used: nothing here is random."""
        rows, given = training_rows(matrix, layout, condition)
        self._layout = layout
        cells = _cells(rows, layout)
        self._marginals = [Empirical.of(column) for column in cells.T]
        scores = np.column_stack([one.scores(x) for one, x in zip(self._marginals, cells.T, strict=True)])
        coefficients = np.array([one.coefficients() for one in self._marginals])
        self._given: list[tuple[Empirical, float]] | None = None
        if given is not None:
            marginals = [Empirical.of(column[~np.isnan(column)]) for column in _or_nothing(given).T]
            normal = np.column_stack([one.normal_scores(x) for one, x in zip(marginals, given.T, strict=True)])
            spread = np.sqrt(np.nanmean(normal**2, axis=0))
            self._given = list(zip(marginals, np.where(spread > 1e-9, 1 / np.maximum(spread, 1e-9), 0.0), strict=True))
            scores = np.column_stack([self._normal(given), scores])
            first = np.zeros((given.shape[1], TERMS))
            first[:, 0] = 1.0
            coefficients = np.concatenate([first, coefficients])
        covariance = np.cov(scores, rowvar=False, ddof=0).reshape(scores.shape[1], scores.shape[1])
        correlation = repair(invert_bridge(covariance, coefficients))
        width = 0 if given is None else given.shape[1]
        weights = linalg.solve(correlation[:width, :width], correlation[:width, width:], assume_a="pos")
        rest = correlation[width:, width:] - correlation[width:, :width] @ weights
        self._weights = weights
        self._root = linalg.cholesky((rest + rest.T) / 2, lower=True)
        if progress is not None:
            progress(1, 1)
        return self

    def sample(self, n: int, *, condition: NDArray[Any] | None = None, seed: int) -> Matrix:
        if self._layout is None:
            raise unfitted()
        given = sampling_condition(condition, n, None if self._given is None else len(self._given))
        draw = np.random.default_rng(seed)
        latent = draw.standard_normal((n, len(self._marginals))) @ self._root.T
        if given is not None:
            latent += self._normal(given) @ self._weights
        cells = np.column_stack([one.at_normal(z) for one, z in zip(self._marginals, latent.T, strict=True)])
        return _from_cells(cells, self._layout)

    def _normal(self, condition: NDArray[Any]) -> Reals:
        """Normal scores of unit variance; where a condition is missing, their mean."""
        assert self._given is not None
        parts = [scale * one.normal_scores(x) for (one, scale), x in zip(self._given, condition.T, strict=True)]
        return np.nan_to_num(np.column_stack(parts), nan=0.0)


def _or_nothing(condition: NDArray[Any]) -> Reals:
    """A column of the condition that nobody has says nothing: it becomes a constant."""
    given = np.asarray(condition, dtype=np.float64)
    return np.where(np.isnan(given).all(axis=0), 0.0, given)


def _cells(rows: Reals, layout: Layout) -> Reals:
    """One number a column: the scaled number, or the code of the category."""
    return np.column_stack(
        [
            rows[:, at.start] if is_numeric(layout.columns[name]) else np.argmax(rows[:, at], axis=1)
            for name, at in layout.slices.items()
        ]
    )


def _from_cells(cells: Reals, layout: Layout) -> Matrix:
    rows = np.zeros((len(cells), layout.width))
    for place, (name, at) in enumerate(layout.slices.items()):
        if is_numeric(layout.columns[name]):
            rows[:, at.start] = cells[:, place]
        else:
            rows[:, at] = cells[:, [place]] == np.arange(at.stop - at.start)
    return layout.legal(rows)
