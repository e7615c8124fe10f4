"""What a party does for a completion besides training: it fills its table in, and says how near to the truth it is.

The completed table never leaves its party. It is written to `completed/JOB.parquet` in the party's folder, with a
column of truth values beside each column that says which entries were generated.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from colonnade.completion import quality
from colonnade.completion.layout import COHORT_ROW, GENERATED, Layout, Matrix
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
from colonnade.durable import private_folder, whole_file
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


@step(cost=Unbounded("presence", "how many records this party lacks"))
def count_missing(me: Party) -> Release:
    """How many records of others this party lacks."""
    return Release(int(missing_rows(me).size), "the number of records that this party lacks")


# --- the completed table ------------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class OwnTable:
    """A party's table over the cohort, before it is completed.

    `lacking` are the records that are to be completed; `watched` those that are hidden everywhere, so that completed
    entries can be compared with the truth; `seen` is the table without them, and `means` are its columns' means.
    """

    layout: Layout
    truth: Matrix
    seen: Matrix
    means: NDArray[np.float64]
    lacking: NDArray[np.int64]
    watched: NDArray[np.int64]

    @classmethod
    def of(cls, me: Party, *, validation: float, seed: int) -> OwnTable:
        layout = Layout(me.facts.columns[me.name])
        truth = own_matrix(me, layout)
        watched = validation_rows(presence_of(me), party=me.name, share=validation, seed=seed)
        seen = truth.copy()
        seen[watched] = np.nan
        return cls(layout, truth, seen, column_means(seen), missing_rows(me), watched)

    @property
    def wanted(self) -> NDArray[np.int64]:
        """The records to fill in, the lacking ones first."""
        return np.concatenate([self.lacking, self.watched])


def imputed(
    me: Party, table: OwnTable, imputer: str, training: dict[str, Any] | None, linear: dict[str, Any], seed: int
) -> Matrix:
    """The wanted rows; a record about which no other party knows anything gets the means."""
    if imputer == "mean":
        return np.broadcast_to(table.means, (table.wanted.size, table.layout.width)).astype(np.float32).copy()
    if imputer != "regression":
        return linear_values(me, table.layout, table.wanted, table.means, imputer, linear, seed)
    if training is None:
        raise BadArguments("imputer 'regression' needs a training; install the same version at every party.")
    predicted = predictions(me, Regression.from_dict(training))[table.wanted]
    return np.where(np.isnan(predicted), table.means, predicted).astype(np.float32)


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
    return write_completion(me, table, imputed(me, table, imputer, training, linear, seed), file_format)


def write_completion(me: Party, table: OwnTable, values: Matrix, file_format: FileFormat) -> Release:
    """Keep and write the table with these values of the wanted rows, and compare those that were hidden."""
    layout, lacking = table.layout, table.lacking
    values = layout.expectable(values)  # a network's outputs are any numbers
    variances = column_means(np.square(table.seen - table.means.astype(np.float32)))
    summary = quality.summary(
        layout, values[lacking.size :], table.truth[table.watched], means=table.means, variances=variances
    )
    completed = table.truth.copy()
    completed[lacking] = values[: lacking.size]
    me.keep(COMPLETED, completed)
    value = {
        "file": _write_completed(me, layout, completed, lacking, file_format),
        "expected": _write_expected(me, layout, completed, lacking),
        "completed": int(lacking.size),
        "quality": summary,
    }
    return Release(value, "how many records were completed, and how near to the truth on hidden ones")


def _write_completed(
    me: Party, layout: Layout, completed: Matrix, lacking: NDArray[np.int64], file_format: FileFormat
) -> str:
    """The table of this party, one row for each record of the cohort that it has or that was completed. Its own records
    have their keys, so that the table can be joined with the one it came from."""
    generated = np.zeros(me.facts.n, dtype=bool)
    generated[lacking] = True
    rows = np.flatnonzero(presence_of(me)[me.name] | generated)
    codes = layout.decode(completed[rows])
    table = pd.DataFrame({COHORT_ROW: rows})
    table[me.block.key if me.block.key != COHORT_ROW else "key"] = _keys(me).iloc[rows].array
    for name, column in layout.columns.items():
        # Real entries as the block has them; a count or a number is not passed through the scale of a network.
        both = np.where(generated[rows], codes[name], me.column(name)[rows])
        table[name] = column.decode(both.astype(np.int32) if column.discrete else both).to_numpy()
        table[f"{name}{GENERATED}"] = generated[rows]
    return _write(me, table, f"{me.job}.{file_format}")


def _keys(me: Party) -> pd.Series[Any]:
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
    return _write(me, table, f"{me.job}.expected.parquet")


def _write(me: Party, table: pd.DataFrame, name: str) -> str:
    """As a complete file or not at all, in the party's own folder."""
    folder = private_folder(me.home / "completed")
    with whole_file(folder / name, cure="free disk space, or let this party write there.") as partial:
        if name.endswith(".csv"):
            table.to_csv(partial, index=False)
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
