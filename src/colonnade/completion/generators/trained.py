"""Generators that are trained networks: checks, preparation, training and drawing in batches are the same for all."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from typing import Any, ClassVar, Self

import jax
import numpy as np
from numpy.typing import NDArray

from colonnade.completion.generators.network import Params, in_batches, new_key, train
from colonnade.completion.generators.preparation import Preparation
from colonnade.completion.generators.protocol import Progress, sampling_condition, training_rows, unfitted
from colonnade.completion.layout import Layout, Matrix

Floats = NDArray[np.float32]


@dataclass(frozen=True)
class RowShape:
    """What a network sees: numbers first, then the indicators of each categorical column; and a condition."""

    numbers: int
    categories: tuple[int, ...]
    given: int
    hidden: tuple[int, ...]

    @property
    def width(self) -> int:
        return self.numbers + sum(self.categories)

    def parts(self, rows: Any) -> list[tuple[Any, int]]:
        """The indicators of each categorical column, and how many they are."""
        found, at = [], self.numbers
        for size in self.categories:
            found.append((rows[..., at : at + size], size))
            at += size
        return found


@dataclass(kw_only=True)
class TrainedGenerator(ABC):
    """Options: the training's steps, batch and learning rate (Adam), and the hidden layers."""

    called: ClassVar[str]

    steps: int = 3000
    batch: int = 512
    learning_rate: float = 2e-3
    hidden: tuple[int, ...] = (128, 128)
    _params: Params = field(default=None, init=False, repr=False)

    # --- what a network says of itself ---------------------------------------------------------------------------

    @abstractmethod
    def _shape(self, prepared: Preparation, given: int) -> RowShape: ...

    @abstractmethod
    def _start(self, shape: Any, key: jax.Array) -> Params: ...

    @staticmethod
    @abstractmethod
    def _loss(shape: Any, params: Params, arrays: tuple[jax.Array, ...], key: jax.Array) -> jax.Array: ...

    @abstractmethod
    def _draw(self, given: Floats, key: jax.Array) -> Any:
        """A row for each row of the condition."""

    def _measured(self, params: Params, x: Floats, given: Floats, seed: int) -> Any:
        """What drawing needs besides the trained parameters."""
        return None

    # --- what all do ---------------------------------------------------------------------------------------------

    def fit(
        self,
        matrix: NDArray[Any],
        layout: Layout,
        *,
        condition: NDArray[Any] | None = None,
        seed: int,
        progress: Progress | None = None,
    ) -> Self:
        rows, known = training_rows(matrix, layout, condition)
        self._params = None
        self._prepared = Preparation.of(rows, known, layout)
        x, given = self._prepared.forward(rows, seed), self._prepared.given(known, len(rows))
        self._spec = self._shape(self._prepared, given.shape[1])
        params = train(
            self._loss,
            self._spec,
            self._start(self._spec, new_key(seed)),
            (x, given),
            steps=self.steps,
            batch=self.batch,
            rate=self.learning_rate,
            seed=seed + 1,
            progress=progress,
            name=self.called,
        )
        self._extra = self._measured(params, x, given, seed)
        self._params = params
        return self

    def sample(self, n: int, *, condition: NDArray[Any] | None = None, seed: int) -> Matrix:
        if self._params is None:
            raise unfitted()
        wanted = sampling_condition(condition, n, self._prepared.condition_width)
        given = self._prepared.given(wanted, n)
        key = new_key(seed)

        def part(number: int, start: int, stop: int) -> NDArray[Any]:
            # Powers of two: few sizes are compiled, whatever the number of rows.
            size = 1 << max(stop - start - 1, 63).bit_length()
            padded = np.zeros((size, given.shape[1]), dtype=np.float32)
            padded[: stop - start] = given[start:stop]
            return np.asarray(self._draw(padded, jax.random.fold_in(key, number)))[: stop - start]

        return self._prepared.backward(in_batches(part, n))
