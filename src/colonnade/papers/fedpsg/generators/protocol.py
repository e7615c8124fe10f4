"""What every generator can do, and what all of them check before they start."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from colonnade.completion.layout import Layout, Matrix
from colonnade.errors import BadArguments, NotEstimable

Reals = NDArray[np.float64]
Progress = Callable[[int, int], None]
"""Called with (steps done, steps in all)."""

FEWEST = 20
"""Complete records below which nothing is fitted."""


class Generator(Protocol):
    """Learns the rows of a matrix in a `Layout`, and draws fresh ones; both repeat exactly under a seed."""

    def fit(
        self,
        matrix: NDArray[Any],
        layout: Layout,
        *,
        condition: NDArray[Any] | None = None,
        seed: int,
        progress: Progress | None = None,
    ) -> Generator:
        """Learn from the rows without a missing entry, and return self.

        `condition` has one row of numbers for each record (known columns of it, in any encoding): then what is
        learned is the law of the row given them.
        """
        ...

    def sample(self, n: int, *, condition: NDArray[Any] | None = None, seed: int) -> Matrix:
        """`n` legal rows in the layout's encoding; with `condition`, row i is drawn given its row i."""
        ...


def training_rows(
    matrix: NDArray[Any], layout: Layout, condition: NDArray[Any] | None
) -> tuple[Reals, NDArray[Any] | None]:
    """The rows without a missing entry, and their condition."""
    rows = layout.checked(matrix)
    if layout.width == 0:
        raise BadArguments("a generator needs at least one column; choose some.")
    whole = ~np.isnan(rows).any(axis=1)
    if np.count_nonzero(whole) < FEWEST:
        raise NotEstimable(
            f"a generator needs at least {FEWEST} records that have every column, not {np.count_nonzero(whole)};"
            " choose columns with fewer missing cells."
        )
    if condition is None:
        return rows[whole].astype(np.float64), None
    given = np.asarray(condition)
    if given.ndim != 2 or len(given) != len(rows) or given.shape[1] == 0:
        raise BadArguments(f"a condition has a row for each of the {len(rows)} records, not the shape {given.shape}.")
    return rows[whole].astype(np.float64), given[whole]


def sampling_condition(condition: NDArray[Any] | None, n: int, width: int | None) -> NDArray[Any] | None:
    """The condition of the rows to draw, if it is what the generator was fitted with."""
    if n < 0:
        raise BadArguments(f"the number of rows to draw must be at least 0, not {n}.")
    if width is None:
        if condition is not None:
            raise BadArguments("this generator was fitted without a condition; fit it with one, or leave it out here.")
        return None
    shape = None if condition is None else np.shape(condition)
    if shape != (n, width):
        raise BadArguments(f"this generator draws given a condition of {n} rows x {width}, not {shape}; give that.")
    return np.asarray(condition)


def unfitted() -> NotEstimable:
    return NotEstimable("this generator is not fitted; call fit first.")
