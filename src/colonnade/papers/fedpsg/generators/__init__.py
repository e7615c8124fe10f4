"""Local generators: one party's table, or columns of it, learned and drawn again, if wished given known columns.

`generator(name)` makes one: "copula" (quick, no training), "tabddpm" (diffusion) or "tvae" (variational
autoencoder). All work on the matrix of a `Layout`. **None is private**: what is drawn from a generator that was fitted
without noise may show records of its training table, and so does the fitted model.
"""

from __future__ import annotations

import importlib
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any, Literal, Self, get_args

import numpy as np
from numpy.typing import NDArray

from colonnade.completion.layout import Layout, Matrix
from colonnade.errors import BadArguments, NotEstimable, RunError

Name = Literal["copula", "tabddpm", "tvae"]
Reals = NDArray[np.float64]
Progress = Callable[[int, int], None]
"""Called with (steps done, steps in all)."""

FEWEST = 20
"""Complete records below which nothing is fitted."""


class Generator(ABC):
    """Learns the rows of a matrix in a `Layout`, and draws fresh ones; both repeat exactly under a seed."""

    _condition_width: int | None
    _fitted: bool = False

    def fit(
        self,
        matrix: NDArray[Any],
        layout: Layout,
        *,
        condition: NDArray[Any] | None = None,
        seed: int,
        progress: Progress | None = None,
    ) -> Self:
        """Learn from the rows without a missing entry, and return self.

        `condition` has one row of numbers for each record (known columns of it, in any encoding): then what is
        learned is the law of the row given them.
        """
        rows, known = training_rows(matrix, layout, condition)
        self._fitted = False
        self._learn(rows, known, layout, seed=seed, progress=progress)
        self._condition_width = None if known is None else known.shape[1]
        self._fitted = True
        return self

    def sample(self, n: int, *, condition: NDArray[Any] | None = None, seed: int) -> Matrix:
        """`n` legal rows in the layout's encoding; with `condition`, row i is drawn given its row i."""
        if not self._fitted:
            raise NotEstimable("this generator is not fitted; call fit first.")
        return self._draw(n, sampling_condition(condition, n, self._condition_width), seed=seed)

    @abstractmethod
    def _learn(
        self, rows: Reals, known: NDArray[Any] | None, layout: Layout, *, seed: int, progress: Progress | None
    ) -> None:
        """From complete rows, and their condition if there is one."""

    @abstractmethod
    def _draw(self, n: int, known: NDArray[Any] | None, *, seed: int) -> Matrix: ...


def training_rows(
    matrix: NDArray[Any], layout: Layout, condition: NDArray[Any] | None
) -> tuple[Reals, NDArray[Any] | None]:
    """The rows without a missing entry, and their condition."""
    rows = layout.checked(matrix)
    if layout.width == 0:
        raise BadArguments("a generator needs at least one column; choose some.")
    complete = ~np.isnan(rows).any(axis=1)
    if np.count_nonzero(complete) < FEWEST:
        raise NotEstimable(
            f"a generator needs at least {FEWEST} records that have every column, not {np.count_nonzero(complete)};"
            " choose columns with fewer missing cells."
        )
    if condition is None:
        return rows[complete].astype(np.float64), None
    given = np.asarray(condition)
    if given.ndim != 2 or len(given) != len(rows) or given.shape[1] == 0:
        raise BadArguments(f"a condition has a row for each of the {len(rows)} records, not the shape {given.shape}.")
    return rows[complete].astype(np.float64), given[complete]


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


_CLASSES = {"copula": "GaussianCopula", "tabddpm": "TabDDPM", "tvae": "TVAE"}


def generator(name: Name, **options: Any) -> Generator:
    """A generator by name, not yet fitted; `options` are its own (`steps`, say)."""
    if name not in _CLASSES:
        raise BadArguments(f"generator must be one of {', '.join(get_args(Name))}, not {name!r}.")
    try:
        module = importlib.import_module(f"{__name__}.{name}")
    except ModuleNotFoundError as error:
        raise RunError(f"the generator {name!r} needs jax and optax; install colonnade[completion].") from error
    unfitted_generator: Generator = getattr(module, _CLASSES[name])(**options)
    return unfitted_generator
