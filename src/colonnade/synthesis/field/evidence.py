"""What a field's job released about some columns, as means of functions of a row: the evidence of `calibration`.

Tables of one column, cell by cell, and of two columns in coarse bins are means of indicators. With `moment_share` there
is also a Gram matrix of the columns themselves, between their declared bounds: numbers and codes in [-1, 1], an
indicator for each category but the first. It is what means, least squares and logistic regression of numbers rest on:
cells lose what varies within them, and a field the dependence that it has no table for.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from scipy import sparse

from colonnade.codec import plain, record
from colonnade.federation.facts import PublicFacts
from colonnade.federation.options import Verification, View
from colonnade.federation.roster import Roster
from colonnade.privacy.calibration import Skellams
from colonnade.statistics.features import Design
from colonnade.statistics.joint import colluders
from colonnade.statistics.moments import MomentComputation, MomentsLayout, MomentsResult
from colonnade.synthesis.calibration import Evidence
from colonnade.synthesis.field.fit import Measurement, packed, unpacked
from colonnade.synthesis.field.graph import Names
from colonnade.synthesis.field.schema import Schema, cut_into_cells
from colonnade.synthesis.table import of_text_array, text_array

Reals = NDArray[np.float64]

LABEL = "second moments"
GAMMA = 2**12


def moments_layout(schema: Schema, roster: Roster, *, verify: Verification) -> MomentsLayout:
    """The Gram matrix of all columns, without noise yet.

    A column adds at most 1 to the squared norm of a row, however many categories it has: of its indicators one is 1.
    So the bound clips nobody. Presence is ignored, as an absent record is zeros in every table too.
    """
    # A hair above the root, whose square is a hair below the number of columns.
    norms = {party: math.sqrt(len(schema.of(party))) * (1 + 1e-12) for party in schema.parties}
    layout = MomentsLayout(
        facts=schema.facts,
        roster=roster,
        names=schema.names,
        presence="ignore",
        gamma=GAMMA,
        clip=norms,
        label=LABEL,
        verify=verify,
    )
    layout.check()
    return layout


def moments_release(layout: MomentsLayout, view: View, *, share: float) -> Skellams:
    """What it costs, for a calibration of the whole job."""
    return Skellams(layout.release(1, colluders=colluders(layout.roster, view)), share=share)


def moments_notes(computation: MomentComputation, share: float) -> tuple[str, ...]:
    """What the plan says of it: the noise of each number's mean in its own units, and what is not proven."""
    layout = computation.layout
    noise = layout.noise_sd / layout.facts.n
    means = [
        f"{feature.column} {noise * feature.half:.2g}"
        for feature in layout.features
        if not layout.facts.column(feature.column).discrete
    ]
    told = f" Noise moves the mean of {', '.join(means)}; declare narrower bounds for less." if means else ""
    return (
        f"Second moments of all columns take {share:.0%} of the budget: `table.analyse` has intervals of means, least"
        f" squares and logistic regression.{told}",
        *computation.verification_notes,
    )


@dataclass(frozen=True, eq=False)
class FieldEvidence:
    """Released tables (counts as if all n records had their columns) and moments; `present` says how many records all
    of some parties have."""

    schema: Schema
    tables: tuple[Measurement, ...]
    moments: MomentsResult | None
    present: Mapping[frozenset[str], float]

    def lacking(self, columns: Sequence[str]) -> str:
        """Why means and coefficients of these columns have no intervals, if they have none."""
        cut = cut_into_cells(self.schema.columns, self.schema.cells, columns)
        if self.moments is not None or not cut:
            return ""
        return (
            f"{', '.join(cut)} {'was' if len(cut) == 1 else 'were'} measured in cells, and no interval knows what is"
            " lost within these; moment_share=0.25 measures second moments too."
        )

    def __call__(self, columns: Sequence[str], table: pd.DataFrame) -> Evidence:
        """All that was released of these columns alone, at the rows of a table."""
        read, n = tuple(dict.fromkeys(columns)), self.schema.facts.n
        encoded = {name: self.schema.columns[name].encode(table[name]) for name in read}
        codes = {name: self.schema.cells[name].codes(encoded[name]).astype(np.int64) for name in read}
        values, sds, parts, factor = list[Reals](), list[Reals](), list[sparse.csc_array](), 1.0
        for measured in self.tables:
            if set(measured.columns) <= set(read):
                values.append(measured.counts.ravel() / n)
                sds.append(np.full(measured.counts.size, measured.sd / n))
                parts.append(_indicators(measured, codes))
                factor = max(factor, measured.factor)
        if self.moments is not None:
            released, noise, products = self._products(self.moments, read, encoded)
            values.append(released)
            sds.append(noise)
            parts.append(products)
        functions = sparse.hstack(parts, format="csc")
        return Evidence(np.concatenate(values), np.concatenate(sds), functions, n / factor)

    def within(self, columns: Sequence[str], table: pd.DataFrame) -> list[tuple[pd.DataFrame, NDArray[np.int64]]]:
        """The same rows with one column's numbers moved to the lower or upper ends of their cells, and these cells."""
        moved = []
        for name in cut_into_cells(self.schema.columns, self.schema.cells, tuple(dict.fromkeys(columns))):
            column, edges = self.schema.columns[name], self.edges(name)
            assert edges is not None
            cells = self.schema.cells[name].codes(column.encode(table[name])).astype(np.int64)
            filled = cells < edges.size - 1
            inside = np.where(filled, cells, 0)
            # Cells are half-open: the upper end is the last number before the next one.
            above = edges[1:] - 1 if column.whole else np.nextafter(edges[1:], edges[:-1])
            for end in (edges[:-1], above):
                ends = column.decode(end[inside])
                moved.append((table.assign(**{name: ends.where(pd.Series(filled), table[name].array)}), cells))
        return moved

    def edges(self, column: str) -> Reals | None:
        """Of the cells of a numeric column."""
        return self.schema.cells[column].edges

    def to_arrays(self) -> dict[str, NDArray[Any]]:
        """Tables, moments, and how to read them; `from_arrays` is its inverse."""
        counts, tables = packed(self.tables)
        arrays: dict[str, NDArray[Any]] = {"evidence": counts}
        moments = None
        if self.moments is not None:
            moments = {name: value for name, value in plain(replace(self.moments, grams=())).items() if name != "grams"}
            arrays |= {f"evidence_gram_{place}": gram for place, gram in enumerate(self.moments.grams)}
        stated = {
            "facts": self.schema.facts.to_dict(),
            "schema": self.schema.to_dict(),
            "tables": tables,
            "moments": moments,
            "present": [[sorted(owners), float(count)] for owners, count in self.present.items()],
        }
        return {**arrays, "evidence_stated": text_array(stated)}

    @classmethod
    def from_arrays(cls, arrays: Mapping[str, NDArray[Any]]) -> FieldEvidence:
        stated = of_text_array(arrays["evidence_stated"])
        moments = None
        if stated["moments"] is not None:
            grams = tuple(arrays[f"evidence_gram_{place}"] for place in range(len(stated["moments"]["patterns"])))
            moments = record(MomentsResult, {**stated["moments"], "grams": grams}, "the moments in evidence.npz")
        return cls(
            Schema.from_dict(PublicFacts.from_dict(stated["facts"]), stated["schema"]),
            unpacked(arrays["evidence"], stated["tables"]),
            moments,
            {frozenset(owners): count for owners, count in stated["present"]},
        )

    def _products(
        self, moments: MomentsResult, read: Names, encoded: Mapping[str, NDArray[np.generic]]
    ) -> tuple[Reals, Reals, sparse.csc_array]:
        """The entries of the Gram matrix that these columns have: means, squares and products."""
        n, features = self.schema.facts.n, tuple(each for each in moments.features if each.column in read)
        (gram,), (entries,) = moments.grams, moments.entries
        place = {name: index for index, name in enumerate(entries)}
        rows = len(next(iter(encoded.values())))
        design = sparse.csc_array(np.column_stack([np.ones(rows), Design(features)(np.arange(rows), dict(encoded))[1]]))
        at = [place["1"], *(place[each.name] for each in features)]
        owners = [frozenset[str](), *(self.schema.owners((each.column,)) for each in features)]
        listed, parts = list[tuple[int, int]](), list[sparse.csc_array]()
        for j in range(1, len(at)):  # of two categories of one column no row has both
            others = [i for i in range(j + 1) if i in (0, j) or features[i - 1].column != features[j - 1].column]
            listed += [(i, j) for i in others]
            parts.append(sparse.csc_array(design[:, others].multiply(design[:, [j]])))
        factors = np.array([n / self.present.get(owners[i] | owners[j], float(n)) for i, j in listed])
        released = np.array([gram[at[i], at[j]] for i, j in listed]) / n * factors
        return released, factors * moments.noise_sd / n, sparse.hstack(parts, format="csc")


def _indicators(measured: Measurement, codes: Mapping[str, NDArray[np.int64]]) -> sparse.csc_array:
    """Which cell of a table each row is in."""
    maps = measured.bins or (None,) * len(measured.columns)
    own = [
        codes[name] if bins is None else bins[codes[name]] for name, bins in zip(measured.columns, maps, strict=True)
    ]
    cell = np.ravel_multi_index(own, measured.counts.shape)
    rows = cell.size
    return sparse.csc_array((np.ones(rows), (np.arange(rows), cell)), shape=(rows, measured.counts.size))
