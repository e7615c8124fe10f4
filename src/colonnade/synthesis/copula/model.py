"""A fitted Gaussian copula: one marginal for each column, and the latent correlation that ties them together.

A row is z ~ N(0, R), u = Phi(z), x_j = F_j^-1(u_j). Each column has **one** latent coordinate, whatever its kind:
- continuous: F is continuous on the declared bounds;
- count: F jumps at integers, or, where these are many, is continuous on [lower, upper + 1) and x = floor;
- ordinal, binary and categorical: F jumps at the codes 0, 1, ... of the declared categories.

A categorical column is taken in its declared order. Indicators of its categories would be k - 1 coordinates that must
not be 1 together: a row could show two categories or none, their marginals would be lost in the repair, and the
sensitivity of the moments would grow with k. With one coordinate the marginal is kept exactly and every row is legal;
the price is that only association along the declared order is carried.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import ArrayLike, NDArray
from scipy import linalg, special

from colonnade.data.column import Column, Columns
from colonnade.errors import DomainError, NotEstimable
from colonnade.statistics.marginals import Marginal
from colonnade.synthesis.latent import MANY_SWEEPS, rows_in_boxes
from colonnade.synthesis.restrictions import Condition
from colonnade.synthesis.table import BATCH, Source, frame_of, generator, recut

Reals = NDArray[np.float64]

LONGEST_COUNT = 64
"""Integers in a count column's domain up to which each is a category of its own."""


# --- how a column is modelled ------------------------------------------------------------------------------------


def stepwise(column: Column) -> bool:
    """Does the column's distribution function jump at listed values (rather than being continuous)?"""
    return column.discrete or (column.whole and values_of(column) <= LONGEST_COUNT)


def values_of(column: Column) -> int:
    """How many values a column with categories, or a count, can take."""
    if column.categories is not None:
        return len(column.categories)
    assert column.lower is not None
    assert column.upper is not None
    return int(column.upper - column.lower) + 1


def listed_values(column: Column) -> Reals:
    """The encoded values at which a stepwise column's distribution function jumps."""
    first = 0.0 if column.lower is None else column.lower
    return first + np.arange(values_of(column), dtype=np.float64)


def bounds_of(column: Column) -> tuple[float, float]:
    """The bounds of a continuous distribution function; a long count a is anywhere in [a, a + 1)."""
    if column.lower is None or column.upper is None:
        raise DomainError(f"column {column.name!r} has no bounds; declare lower and upper in columns.toml.")
    return column.lower, column.upper + (1.0 if column.whole else 0.0)


def as_points(column: Column, encoded: ArrayLike) -> Reals:
    """Encoded values where the marginal expects them: a long count in the middle of its unit."""
    values = np.asarray(encoded, dtype=np.float64)
    return values + 0.5 if column.whole and not stepwise(column) else values


def decoded(column: Column, marginal: Marginal, u: ArrayLike) -> pd.Series[Any]:
    """The column's values at these quantiles, in its declared domain and dtype."""
    values = marginal.quantile(u)
    if column.discrete:
        return column.decode(np.rint(values).astype(np.int32))
    if column.whole:
        values = np.rint(values) if stepwise(column) else np.floor(values)
    return column.decode(np.clip(values, column.lower, column.upper))


def shifted(marginal: Marginal, mean: float, deviation: float = 1.0) -> Marginal:
    """The law of F^-1(Phi(mean + deviation Z)): the same column in a population whose latent law is N(mean, dev^2).

    F*(x) = Phi((Phi^-1(F(x)) - mean) / deviation), which keeps 0 at 0 and 1 at 1.
    """
    latent = special.ndtri(marginal.cumulative)
    moved = special.ndtr((latent - mean) / deviation)
    moved[-1] = 1.0
    if not marginal.discrete:
        moved[0] = 0.0
    return Marginal(marginal.points, np.maximum.accumulate(moved), marginal.discrete)


# --- the model ---------------------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class GaussianCopula:
    """`columns` in the order of `correlation`, with a marginal for each."""

    columns: Columns
    marginals: Mapping[str, Marginal]
    correlation: Reals

    def __post_init__(self) -> None:
        size = len(self.columns)
        if list(self.marginals) != list(self.columns):
            raise DomainError("a copula needs one marginal for each of its columns, in their order.")
        for name, column in self.columns.items():
            _check_marginal(column, self.marginals[name])
        given = self.correlation
        sound = given.shape == (size, size) and bool(np.isfinite(given).all())
        if not sound or np.abs(given - given.T).max() > 1e-9 or np.abs(np.diag(given) - 1).max() > 1e-9:
            raise DomainError("a copula needs a symmetric correlation matrix with ones on its diagonal; repair it.")
        _ = self.root

    @property
    def independent(self) -> bool:
        return bool(np.array_equal(self.correlation, np.eye(len(self.columns))))

    @cached_property
    def root(self) -> Reals:
        """The lower Cholesky factor of the correlation."""
        try:
            return np.asarray(linalg.cholesky(self.correlation, lower=True))
        except linalg.LinAlgError:
            raise DomainError("the correlation matrix is not positive definite; repair it first.") from None

    def batches(self, rows: int, source: Source, *, size: int = BATCH) -> Iterator[pd.DataFrame]:
        """`rows` fresh rows, at most `size` at a time; the same source gives the same rows, whatever the size."""
        draw = generator(source)
        if self.independent:
            yield from recut((self._even(min(BATCH, rows - start), draw) for start in range(0, rows, BATCH)), size)
            return
        for start in range(0, rows, size):
            latent = draw.standard_normal((min(size, rows - start), len(self.columns))) @ self.root.T
            yield self.at_latent(latent)

    def _even(self, rows: int, draw: np.random.Generator) -> pd.DataFrame:
        """Independent columns by systematic sampling: u one row apart, in random order. A block follows the marginals
        more closely than independent rows would, and each row is still a draw."""
        order = np.argsort(draw.random((rows, len(self.columns))), axis=0)
        return self._at_levels((order + draw.random(order.shape)) / rows)

    def at_latent(self, latent: ArrayLike) -> pd.DataFrame:
        """The rows that belong to latent rows (records x columns)."""
        return self._at_levels(special.ndtr(np.asarray(latent, dtype=np.float64)))

    def _at_levels(self, u: Reals) -> pd.DataFrame:
        return pd.DataFrame(
            {
                name: decoded(column, self.marginals[name], u[:, place])
                for place, (name, column) in enumerate(self.columns.items())
            }
        )

    def sample(self, rows: int, source: Source) -> pd.DataFrame:
        """All rows in memory."""
        return frame_of(self, rows, source)

    def given(self, where: Mapping[str, Condition]) -> ConditionedCopula:
        """The copula given that these columns have these values."""
        return ConditionedCopula(self, where)

    def left_out(self, columns: Sequence[str]) -> str:
        """What the model lacks of the dependence of these columns, in a sentence."""
        if len(columns) < 2:
            return ""
        if self.independent:
            return "Columns are independent in this table: nothing about two of them together is valid."
        nominal = [name for name in columns if self.columns[name].kind == "categorical"]
        if nominal:
            return f"Of {', '.join(nominal)} the copula has the association along the declared order only."
        return "The copula has correlations (of normal scores) only: curves and interactions are not in the table."

    # --- as data -------------------------------------------------------------------------------------------------

    def to_arrays(self) -> dict[str, np.ndarray[Any, Any]]:
        """Correlation, and all marginals end to end; `sizes` says where each ends. `from_arrays` is its inverse."""
        marginals = list(self.marginals.values())
        return {
            "correlation": self.correlation,
            "points": np.concatenate([marginal.points for marginal in marginals]),
            "cumulative": np.concatenate([marginal.cumulative for marginal in marginals]),
            "sizes": np.array([marginal.points.size for marginal in marginals], dtype=np.int64),
            "discrete": np.array([marginal.discrete for marginal in marginals], dtype=np.bool_),
        }

    @classmethod
    def from_arrays(cls, columns: Columns, arrays: Mapping[str, np.ndarray[Any, Any]]) -> GaussianCopula:
        cuts = np.cumsum(arrays["sizes"])[:-1]
        parts = zip(
            np.split(arrays["points"], cuts), np.split(arrays["cumulative"], cuts), arrays["discrete"], strict=True
        )
        marginals = [Marginal(points, cumulative, bool(discrete)) for points, cumulative, discrete in parts]
        return cls(columns, dict(zip(columns, marginals, strict=True)), np.asarray(arrays["correlation"]))


@dataclass(frozen=True, eq=False)
class ConditionedCopula:
    """Rows of a copula in which some columns have given values: their latent coordinates lie in a box (exact for one
    column, by Gibbs sampling for several), and the others are normal given these. Of listed categories with others
    between them, rows with these others are drawn anew."""

    copula: GaussianCopula
    where: Mapping[str, Condition]

    @property
    def columns(self) -> Columns:
        return self.copula.columns

    def given(self, where: Mapping[str, Condition]) -> ConditionedCopula:
        return ConditionedCopula(self.copula, {**self.where, **where})

    def batches(self, rows: int, source: Source, *, size: int = BATCH) -> Iterator[pd.DataFrame]:
        draw = generator(source)
        r, names = self.copula.correlation, list(self.columns)
        known = [names.index(name) for name in self.where]
        others = [place for place in range(len(names)) if place not in known]
        inner = r[np.ix_(known, known)]
        slopes = np.linalg.solve(inner, r[np.ix_(known, others)])
        root = np.linalg.cholesky(r[np.ix_(others, others)] - r[np.ix_(others, known)] @ slopes)
        low, high = np.array([self._box(name) for name in self.where]).T
        for start in range(0, rows, size):
            count, drawn = min(size, rows - start), pd.DataFrame()
            while len(drawn) < count:
                latent = np.zeros((count, len(names)))
                ends = np.tile(low, (count, 1)), np.tile(high, (count, 1))
                latent[:, known] = rows_in_boxes(inner, *ends, draw, sweeps=MANY_SWEEPS)
                latent[:, others] = latent[:, known] @ slopes + draw.standard_normal((count, len(others))) @ root.T
                fitting = self._fitting(self.copula.at_latent(latent))
                drawn = fitting if drawn.empty else pd.concat([drawn, fitting], ignore_index=True)
            yield drawn.iloc[:count]

    def _box(self, name: str) -> tuple[float, float]:
        """The ends of the latent coordinate."""
        marginal, column, condition = self.copula.marginals[name], self.columns[name], self.where[name]
        low, high = condition.low, condition.high
        if condition.codes is not None:
            if not float(marginal.probabilities[condition.codes].sum()) > 0:
                raise NotEstimable(f"the model has no rows with these values of {name!r}; widen the condition.")
            low, high = float(condition.codes.min()), float(condition.codes.max())
        rounded = column.whole and not marginal.discrete
        upto = marginal.below(np.floor(high) + 1) if rounded else marginal.cdf(high)
        return float(special.ndtri(marginal.below(low))), float(special.ndtri(upto))

    def _fitting(self, frame: pd.DataFrame) -> pd.DataFrame:
        """Numbers are brought within the condition's bounds, from which rounding may have moved them."""
        fits = np.ones(len(frame), dtype=np.bool_)
        numbers = {}
        for name, condition in self.where.items():
            codes = self.columns[name].encode(frame[name])
            if condition.codes is not None:
                fits &= condition.fulfilled(codes)
            else:
                numbers[name] = self.columns[name].decode(np.clip(codes, condition.low, condition.high))
        return frame.assign(**numbers)[fits].reset_index(drop=True)

    def to_arrays(self) -> dict[str, np.ndarray[Any, Any]]:
        return self.copula.to_arrays()


def _check_marginal(column: Column, marginal: Marginal) -> None:
    """Of the declared domain, so that no row can leave it."""
    if marginal.discrete != stepwise(column):
        raise DomainError(f"the marginal of {column.name!r} must {'jump' if stepwise(column) else 'be continuous'}.")
    if marginal.discrete:
        inside = np.isin(marginal.points, listed_values(column)).all()
    else:
        lower, upper = bounds_of(column)
        inside = marginal.points[0] >= lower and marginal.points[-1] <= upper
    if not inside:
        raise DomainError(f"the marginal of {column.name!r} leaves its declared domain; build it on the domain.")
