"""How far a fitted field may be off, from what was released alone: other fields that fit as well, and the field's own
error.

**Other fields** (`FieldNoise`): a cohort is drawn from the field, its tables get the noise of the measured ones, and a
field is fitted to them in the same way.

**Its own error** (`field_quality`): let y be a measured table of N cells with noise of sd s, t the truth and m what
the field says. Where y was not used in the fit, E |y - m|^2 = |t - m|^2 + N s^2. Where it was, m follows the noise a
little; Stein's identity says how much: E |t - m|^2 = E |y - m|^2 - N s^2 + 2 s^2 div m, and the divergence is estimated
by one more fit, to tables with noise h s added in a random direction g, as g'(m(y + h s g) - m(y)) / (h s) (Ramani, Blu
and Unser 2008). A squared error e^2 over N cells becomes a total variation distance as for normal errors of all cells:
sqrt(N / (2 pi)) e. Where a few cells have most of the error that is too much, by 1.1 to 1.6 times on Adult.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from colonnade.synthesis.field.fit import MarkovField, Measurement, fit, packed, unpacked
from colonnade.synthesis.field.graph import Triangulation
from colonnade.synthesis.field.sample import FieldSampler, sample_cells
from colonnade.synthesis.table import Quality, of_text_array, text_array

Reals = NDArray[np.float64]
Integers = NDArray[np.int64]
Fitting = Callable[[Triangulation, Sequence[Measurement]], MarkovField]

STEP = 0.3
"""The noise that is added for the divergence, as a part of the tables' own."""
ROWS = 200_000
"""Drawn to see what a field says of tables that lie in no clique."""


def in_bins(table: Measurement, fine: Reals) -> Reals:
    """A table cell by cell, summed into the bins of a measurement."""
    for axis, bins in enumerate(table.bins or ()):
        if bins is not None:
            fine = np.moveaxis(np.tensordot(fine, np.eye(int(bins.max()) + 1)[bins], axes=(axis, 0)), -1, axis)
    return fine


def counted(table: Measurement, cells: dict[str, Integers]) -> Reals:
    """The table of rows of cells."""
    maps = table.bins or (None,) * len(table.columns)
    codes = [cells[name] if bins is None else bins[cells[name]] for name, bins in zip(table.columns, maps, strict=True)]
    flat = np.ravel_multi_index(codes, table.counts.shape)
    return np.bincount(flat, minlength=table.counts.size).reshape(table.counts.shape).astype(np.float64)


@dataclass(frozen=True, eq=False)
class FieldNoise:
    """Draws fields that the released tables support as well as the fitted one."""

    sampler: FieldSampler
    measurements: tuple[Measurement, ...]
    iterations: int
    discrepancy: float

    def __call__(self, source: np.random.Generator) -> FieldSampler:
        field = self.sampler.field
        cohort = sample_cells(field, round(field.total), source, independent=True)
        simulated = [self._measured(table, counted(table, cohort), source) for table in self.measurements]
        again = fit(field.graph, simulated, total=field.total, iterations=self.iterations, discrepancy=self.discrepancy)
        return replace(self.sampler, field=again)

    def _measured(self, table: Measurement, exact: Reals, source: np.random.Generator) -> Measurement:
        """With the table's noise; of a part 1 / f of the records, scaled up by f, also with f times the variance of
        sampling."""
        spread = np.sqrt(table.sd**2 + (table.factor - 1) * exact)
        return replace(table, counts=exact + spread * source.standard_normal(exact.shape))

    def to_arrays(self) -> dict[str, NDArray[Any]]:
        """The measured tables; `from_arrays` is its inverse."""
        counts, stated = packed(self.measurements)
        limits = {"iterations": self.iterations, "discrepancy": self.discrepancy}
        return {"draws": counts, "draws_stated": text_array({"tables": stated, **limits})}

    @classmethod
    def from_arrays(cls, sampler: FieldSampler, arrays: Mapping[str, NDArray[Any]]) -> FieldNoise:
        stated = of_text_array(arrays["draws_stated"])
        tables = unpacked(arrays["draws"], stated["tables"])
        return cls(sampler, tables, int(stated["iterations"]), float(stated["discrepancy"]))


def field_quality(
    field: MarkovField, used: Sequence[Measurement], others: Sequence[Measurement], fitting: Fitting, *, seed: int
) -> Quality | None:
    """From the tables that the field was fitted to and those of pairs that it does not link."""
    if not any(len(table.columns) > 1 for table in used) and not others:
        return None
    source = np.random.default_rng(seed)
    directions = [source.standard_normal(table.counts.shape) for table in used]
    moved = fitting(
        field.graph,
        [
            # Noise that is larger is stated: the fit then stops where the first one did.
            replace(table, counts=table.counts + STEP * table.sd * direction, sd=table.sd * math.hypot(1.0, STEP))
            for table, direction in zip(used, directions, strict=True)
        ],
    )
    squares: dict[int, list[tuple[float, int]]] = {2: [], 3: []}
    for table, direction in zip(used, directions, strict=True):
        if len(table.columns) == 1:
            continue
        says, after = (in_bins(table, each.marginal(table.columns)) for each in (field, moved))
        error = float(((table.counts - says) ** 2).sum()) - _noise(table)
        error += 2 * table.sd / STEP * float((direction * (after - says)).sum())
        squares[len(table.columns)].append((error, table.counts.size))
    if others:
        cells = sample_cells(field, ROWS, source)
        for table in others:
            says = counted(table, cells) * (field.total / ROWS)
            error = float(((table.counts - says) ** 2).sum()) - _noise(table)
            squares[2].append((error, table.counts.size))
    distances = {ways: _distance(listed, field.total) for ways, listed in squares.items() if listed}
    sentence = (
        f"Estimated from the noisy tables alone: over the {len(squares[2])} tables of two columns that were measured,"
        f" the rows' distance from the records is about {distances[2]:.2g} (total variation)."
        if 2 in distances
        else "No table of two columns was measured."
    )
    if 3 in distances:
        sentence += f" Over {len(squares[3])} tables of three columns it is about {distances[3]:.2g}."
    figures = {f"{ways}-way distance": distance for ways, distance in distances.items()}
    figures |= {f"{ways}-way tables": len(listed) for ways, listed in squares.items()}
    return Quality(sentence, figures)


def _noise(table: Measurement) -> float:
    """The expected squared noise of all cells; counts that were scaled up by f have f - 1 times their sampling too."""
    return float(table.counts.size * table.sd**2 + (table.factor - 1) * table.counts.sum())


def _distance(squares: Sequence[tuple[float, int]], total: float) -> float:
    """The root mean square over tables of the distance that a squared error means; the mean takes the noise out."""
    mean = float(np.mean([error * size for error, size in squares]))
    return math.sqrt(max(mean, 0.0) / (2 * math.pi)) / total
