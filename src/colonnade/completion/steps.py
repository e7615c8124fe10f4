"""What a party does for a completion besides training: it fills its table in, and says how near to the truth it is.

The completed table never leaves its party. It is written to `completed/JOB.parquet` in the party's folder, with a
column of truth values beside each column that says which entries were generated; and to `completed/JOB.own.parquet` as
a source: the party's own records under their keys, empty cells filled in.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from colonnade.completion import quality
from colonnade.completion.layout import COHORT_ROW, DRAW, GENERATED, Layout, Matrix
from colonnade.completion.moment_imputers import linear_values
from colonnade.completion.split.session import (
    COMPLETED,
    RegressionSession,
    column_means,
    own_matrix,
    predictions,
    presence_of,
)
from colonnade.completion.split.training import Regression, validation_rows
from colonnade.data.column import Columns
from colonnade.data.spreadsheet import write_csv
from colonnade.durable import whole_file
from colonnade.errors import BadArguments, UnsafeRequest
from colonnade.federation.party import Party
from colonnade.federation.step import Release, step
from colonnade.privacy.cost import Unbounded

QUALITY = "completion-quality"
COMPLETED_COST = Unbounded(
    QUALITY, "how near completed entries are to the truth, on records that were hidden to find out"
)

FileFormat = Literal["parquet", "csv"]


def missing_rows(me: Party) -> NDArray[np.int64]:
    """Records of the cohort that this party lacks and another has."""
    presence = presence_of(me)
    others = np.logical_or.reduce([present for party, present in presence.items() if party != me.name])
    return np.flatnonzero(~presence[me.name] & others)


def gappy_columns(columns: Columns) -> list[str]:
    """The columns that may have empty cells."""
    return [name for name, column in columns.items() if column.missing]


@step(cost=Unbounded("presence", "how many records this party lacks or has with empty cells"))
def count_missing(me: Party) -> Release:
    """How many records of others this party lacks, or has with empty cells."""
    gaps = me.present & ~me.present_with(gappy_columns(me.facts.columns[me.name]))
    count = int(missing_rows(me).size + gaps.sum())
    return Release(count, "the number of records that this party lacks or has with empty cells")


# --- the completed table ------------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class OwnTable:
    """A party's table over the cohort, before it is completed.

    `lacking` are the records that are to be completed; `watched` those that are hidden everywhere, so that completed
    entries can be compared with the truth; `seen` is the table without them, and `means` are its columns' means.
    `present` are the records that the party has, and `gaps` those of them with an empty cell.
    """

    layout: Layout
    truth: Matrix
    seen: Matrix
    means: NDArray[np.float64]
    lacking: NDArray[np.int64]
    watched: NDArray[np.int64]
    present: NDArray[np.int64]
    gaps: NDArray[np.int64]

    @classmethod
    def of(cls, me: Party, *, validation: float, seed: int) -> OwnTable:
        layout = Layout(me.facts.columns[me.name])
        truth = own_matrix(me, layout)
        watched = validation_rows(presence_of(me), party=me.name, share=validation, seed=seed)
        seen = truth.copy()
        seen[watched] = np.nan
        present = np.flatnonzero(presence_of(me)[me.name])
        gaps = present[np.isnan(truth[present]).any(axis=1)]
        return cls(layout, truth, seen, column_means(seen), missing_rows(me), watched, present, gaps)

    @property
    def wanted(self) -> NDArray[np.int64]:
        """The records to fill in, the lacking ones first."""
        return np.concatenate([self.lacking, self.watched])


def imputed(
    me: Party,
    table: OwnTable,
    imputer: str,
    training: dict[str, Any] | None,
    linear: dict[str, Any],
    seed: int,
    *,
    rows: NDArray[np.int64] | None = None,
) -> Matrix:
    """The wanted rows, or these; a record about which no other party knows anything gets the means."""
    wanted = table.wanted if rows is None else rows
    if imputer == "mean":
        return np.broadcast_to(table.means, (wanted.size, table.layout.width)).astype(np.float32).copy()
    if imputer != "regression":
        return linear_values(me, table.layout, wanted, table.means, imputer, linear, seed)
    if training is None:
        raise BadArguments("imputer 'regression' needs a training; install the same version at every party.")
    predicted = predictions(me, Regression.from_dict(training))[wanted]
    return np.where(np.isnan(predicted), table.means, predicted).astype(np.float32)


FEWEST_RESIDUALS = 3
"""Complete records for each entry of a row, at least, to learn how entries go together."""


def filled_cells(table: OwnTable, predicted: Matrix, draw: np.random.Generator | None = None) -> Matrix:
    """The rows with an empty cell, these filled in; `predicted` is what the imputer says of all present records.

    With p the prediction from the other parties and S the covariance of x - p over this party's complete records, a
    cell is expected at p_m + S_mo S_oo^-1 (x_o - p_o), given the record's own cells o too. With `draw` it is drawn: a
    number about its expectation, as far off as that of a random complete record, and a category by its frequency.
    """
    layout, width = table.layout, table.layout.width
    complete = table.present[~np.isnan(table.seen[table.present]).any(axis=1)]
    residuals = table.seen[complete] - predicted[np.searchsorted(table.present, complete)]
    covariance = np.zeros((width, width))
    if len(complete) >= FEWEST_RESIDUALS * width:
        covariance = residuals.T.astype(np.float64) @ residuals / len(complete)
    ridge = 1e-6 * max(float(np.trace(covariance)) / max(width, 1), 1e-9)
    filled = table.truth[table.gaps].astype(np.float64)
    centre = predicted[np.searchsorted(table.present, table.gaps)].astype(np.float64)
    empty = np.isnan(filled)
    for pattern in np.unique(empty, axis=0):
        rows, lost, known = (
            np.flatnonzero((empty == pattern).all(axis=1)),
            pattern.nonzero()[0],
            (~pattern).nonzero()[0],
        )
        among = covariance[np.ix_(known, known)] + ridge * np.eye(len(known))
        slopes = np.linalg.solve(among, covariance[np.ix_(known, lost)])
        expected = centre[np.ix_(rows, lost)] + (filled - centre)[np.ix_(rows, known)] @ slopes
        if draw is not None and len(complete):
            donors = residuals[draw.integers(len(complete), size=len(rows))]
            numeric = layout.numeric_mask[lost]
            expected[:, numeric] += (donors[:, lost] - donors[:, known] @ slopes)[:, numeric]
        filled[np.ix_(rows, lost)] = expected
    values = layout.expectable(filled)
    return values if draw is None else _drawn_categories(layout, values, draw)


def _drawn_categories(layout: Layout, values: Matrix, draw: np.random.Generator) -> Matrix:
    """One category for each row by its frequencies; where it is known its frequency is 1."""
    out = values.copy()
    for name in layout.one_hot:
        place = layout.slices[name]
        upto = np.cumsum(values[:, place], axis=1)
        chosen = (draw.uniform(size=(len(values), 1)) * upto[:, -1:] >= upto).sum(axis=1)
        out[:, place] = chosen[:, None] == np.arange(place.stop - place.start)
    return out


@step(cost=COMPLETED_COST)
def complete(
    me: Party,
    *,
    imputer: Literal["regression", "copula-mean", "copula-draw", "mice", "mean"],
    training: dict[str, Any] | None,
    linear: dict[str, Any],
    validation: float,
    seed: int,
    file_format: FileFormat,
) -> Release:
    """Fill in what this party lacks, write the table here, and tell how good it is on the hidden records."""
    table = OwnTable.of(me, validation=validation, seed=seed)
    values = imputed(me, table, imputer, training, linear, seed)
    cells = cells_of(me, table, imputer, training, linear, seed)
    return write_completion(me, table, values, cells, file_format)


def cells_of(
    me: Party, table: OwnTable, imputer: str, training: dict[str, Any] | None, linear: dict[str, Any], seed: int
) -> Matrix:
    """The rows with an empty cell, filled in by an imputer of this module; means, where another one made the rest."""
    if not table.gaps.size:
        return table.truth[table.gaps]
    used = imputer if linear or (imputer == "regression" and training is not None) else "mean"
    centre = "copula-mean" if used == "copula-draw" else used
    predicted = imputed(me, table, centre, training, linear, seed, rows=table.present)
    return filled_cells(table, predicted, np.random.default_rng((seed, 7)) if used == "copula-draw" else None)


def write_completion(me: Party, table: OwnTable, values: Matrix, cells: Matrix, file_format: FileFormat) -> Release:
    """Keep and write the table with these values of the wanted rows and of those with gaps, and compare those that were
    hidden."""
    layout, lacking = table.layout, table.lacking
    values = layout.expectable(values)  # a network's outputs are any numbers
    variances = column_means(np.square(table.seen - table.means.astype(np.float32)))
    summary = quality.summary(
        layout, values[lacking.size :], table.truth[table.watched], means=table.means, variances=variances
    )
    completed = table.truth.copy()
    completed[lacking] = values[: lacking.size]
    completed[table.gaps] = cells
    me.keep(COMPLETED, completed)
    written = _completed(me, table, completed)
    value = {
        "file": write_table(me, written, f"{me.job}.{file_format}"),
        "own": write_table(me, _as_source(me, written), f"{me.job}.own.{file_format}"),
        "expected": _write_expected(me, layout, completed, lacking),
        "completed": int(lacking.size),
        "cells": int(sum(np.isnan(table.truth[table.gaps, place.start]).sum() for place in layout.slices.values())),
        "quality": summary,
    }
    return Release(value, "how many records and empty cells were completed, and how near to the truth on hidden ones")


def _completed(me: Party, table: OwnTable, completed: Matrix) -> pd.DataFrame:
    """The table of this party, one row for each record of the cohort that it has or that was completed. Its own records
    have their keys, so that the table can be joined with the one it came from."""
    layout = table.layout
    rows = np.union1d(table.present, table.lacking)
    codes = layout.decode(completed[rows])
    written = pd.DataFrame({COHORT_ROW: rows})
    written[key_name(me)] = keys_of(me).iloc[rows].array
    for name, column in layout.columns.items():
        # Real entries as the block has them; a count or a number is not passed through the scale of a network.
        generated = np.isnan(table.truth[rows, layout.slices[name].start])
        entries = np.where(generated, codes[name], me.column(name)[rows])
        written[name] = column.decode(entries.astype(np.int32) if column.discrete else entries).to_numpy()
        written[f"{name}{GENERATED}"] = generated
    return written


def _as_source(me: Party, completed: pd.DataFrame) -> pd.DataFrame:
    """The party's own records alone, under their keys, with its columns: a table that it can load as its block. A
    record that it lacks has no key here, and could not be aligned."""
    records = completed[completed[key_name(me)].notna()]
    return records[[key_name(me), *me.facts.columns[me.name]]].rename(columns={key_name(me): me.block.key})


def key_name(me: Party) -> str:
    return me.block.key if me.block.key not in (COHORT_ROW, DRAW) else "key"


def keys_of(me: Party) -> pd.Series[Any]:
    """This party's own key of each record of the cohort; empty where it lacks the record."""
    keys = me.block.keys
    every = pd.Series(pd.NA, index=range(me.facts.n), dtype="Int64" if keys.dtype.kind == "i" else "string")
    used = me.rows >= 0
    every.iloc[me.rows[used]] = keys[used]
    return every


def _write_expected(me: Party, layout: Layout, completed: Matrix, lacking: NDArray[np.int64]) -> str:
    """The completed records as they were before one value was chosen: scaled numbers, and a frequency for each
    category."""
    names: list[str] = []
    for name, column in layout.columns.items():
        numeric = layout.numeric_mask[layout.slices[name].start]
        names += [name] if numeric else [f"{name}[{label}]" for label in column.categories or ()]
    table = pd.DataFrame(completed[lacking], columns=pd.Index(names))
    table.insert(0, COHORT_ROW, lacking)
    return write_table(me, table, f"{me.job}.expected.parquet")


def write_table(me: Party, table: pd.DataFrame, name: str) -> str:
    """As a complete file or not at all, in the party's own folder."""
    with whole_file(me.home / "completed" / name, cure="free disk space, or let this party write there.") as partial:
        if name.endswith(".csv"):
            write_csv(table, partial, index=False)
        else:
            table.to_parquet(partial, index=False)
    return f"completed/{name}"


# --- downstream ---------------------------------------------------------------------------------------------------


@step(cost=Unbounded(QUALITY, "how many labels of hidden records a classifier finds"))
def score_label(me: Party, *, training: dict[str, Any]) -> Release:
    """Share of the hidden records, among those that all parties have, whose label the classifier finds."""
    described = Regression.from_dict(training)
    if me.name != described.active:
        raise UnsafeRequest(f"{me.name!r} does not have the label.")
    session = RegressionSession.resume(me, described)
    predicted, truth = predictions(me, described)[session.watched], session.truth[session.watched]
    scored = ~np.isnan(truth).any(axis=1) & ~np.isnan(predicted).any(axis=1)
    labels = np.argmax(truth[scored], axis=1)
    hits = np.argmax(predicted[scored], axis=1) == labels
    value = {
        "records": int(scored.sum()),
        "accuracy": float(hits.mean()) if scored.any() else None,
        "largest class": float(np.bincount(labels).max() / labels.size) if scored.any() else 0.0,
    }
    return Release(value, "the classifier's accuracy on hidden records")
