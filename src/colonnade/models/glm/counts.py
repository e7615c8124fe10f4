"""What noisy numbers of records with a count say: its mean, and where it may be cut at little loss."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from colonnade.statistics.gaussian_em import Vector

SEEN = 4.0
"""Deviations of the noise above which an interval has records: the last such one and the next are all that is seen."""
TAIL = 0.05
"""The share of the records from whose counts the tail is extrapolated."""
HEAVIEST = 0.98
"""The largest ratio of a tail."""
EXCESS = 0.1
"""What counts beyond the cap may have in all, in standard deviations of the sum of residuals."""


@dataclass(frozen=True, eq=False)
class Counts:
    """`records`: about how many are in each interval that begins at one of `edges`, of which the last ends at
    `largest`; `noise` is the deviation of each."""

    edges: Sequence[int]
    largest: int
    records: Vector
    noise: float

    @cached_property
    def middle(self) -> Vector:
        ends = np.append(np.array(self.edges[1:]) - 1, self.largest)
        return np.asarray((np.array(self.edges) + ends) / 2)

    @cached_property
    def _kept(self) -> NDArray[np.bool_]:
        seen = np.flatnonzero(self.records > SEEN * self.noise)
        return np.arange(len(self.records)) <= (seen[-1] + 1 if len(seen) else 0)

    @property
    def told(self) -> Vector:
        """Without the noise beyond what is seen."""
        return np.where(self._kept, self.records, 0.0)

    @property
    def total(self) -> float:
        return max(float(self.told.sum()), 1.0)

    @property
    def mean(self) -> float:
        return max(float(self.told @ self.middle) / self.total, 1 / self.total)

    @property
    def variance(self) -> float:
        return max(float(self.told @ (self.middle - self.mean) ** 2) / self.total, self.mean)

    @cached_property
    def _tail(self) -> tuple[int, float, float]:
        """(u, records above it, q): counts less u are taken as geometric with this ratio. u is the largest that enough
        records are above, and q follows from their mean within what is seen, one deviation of its noise added."""
        above = np.array([float(self.told[index + 1 :].sum()) for index in range(len(self.edges))])
        enough = np.flatnonzero(above > max(TAIL * self.total, 10 * self.noise))
        index = int(enough[-1]) if len(enough) else 0
        start, records = self.edges[index], max(above[index], self.noise, 1.0)
        window = np.flatnonzero(self._kept & (np.arange(len(self.edges)) > index))
        beyond = self.middle[window] - start
        length = max(2, int(2 * self.middle[window[-1]] - self.edges[window[-1]]) - start) if len(window) else 2
        mean = (float(self.told[window] @ beyond) + self.noise * float(np.linalg.norm(beyond))) / records
        low, high = 0.0, HEAVIEST
        for _ in range(50):
            ratio = (low + high) / 2
            cut = ratio**length
            low, high = (ratio, high) if 1 / (1 - ratio) - length * cut / (1 - cut) < mean else (low, ratio)
        return start, records / (1 - high**length), high

    def excess(self, cap: int) -> float:
        """About sum (y - cap)+: what is seen there, or what a geometric tail has, whichever is more."""
        if cap >= self.largest:
            return 0.0
        seen = float(self.told @ np.maximum(self.middle - cap, 0.0))
        start, records, ratio = self._tail
        return max(seen, records / (1 - ratio) * ratio ** max(cap - start, 0))

    def cap(self, caps: Sequence[int], noise: Callable[[int], float]) -> int:
        """The smallest beyond which there is next to nothing, in terms of the sampling error and the noise of a sum of
        residuals; the largest if there is none."""
        for cap in caps:
            if self.excess(cap) <= EXCESS * self.deviation(noise(cap)):
                return cap
        return caps[-1]

    def deviation(self, noise: float) -> float:
        return math.hypot(math.sqrt(self.total * self.variance), noise)
