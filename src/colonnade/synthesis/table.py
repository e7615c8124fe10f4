"""What every synthesizer returns: a fitted model of the columns, and the fresh rows that it writes.

Rows are drawn from the model alone: no row belongs to a record of the cohort, and their number is free. Drawing is
post-processing of what was released, so it costs nothing and may be repeated. Values lie in the declared domains
and have the dtypes of `Column.decode`; no cell is empty.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, Protocol, get_args

import numpy as np
import pandas as pd

from colonnade.data.column import Columns
from colonnade.errors import BadArguments, StorageError
from colonnade.federation.run_folder import RunFolder
from colonnade.statistics.cells import cells

Format = Literal["parquet", "csv"]
Source = int | np.random.Generator

TALLY_BINS = 20
BATCH = 65_536
"""Rows that are drawn and written at once, so that a table larger than memory can be written."""


class Sampler(Protocol):
    """A model from which rows of `columns` can be drawn."""

    @property
    def columns(self) -> Columns: ...

    def batches(self, rows: int, source: Source, *, size: int = BATCH) -> Iterator[pd.DataFrame]:
        """`rows` fresh rows, at most `size` at a time. The same source gives the same rows, whatever the size."""
        ...

    def to_arrays(self) -> Mapping[str, np.ndarray[Any, Any]]:
        """The model's parameters, for model.npz."""
        ...


@dataclass(frozen=True, kw_only=True, eq=False)
class SyntheticTable:
    """The result of a synthesizer.

    method, cohort : its name, and the number of records behind it.
    model : draws the rows; `rows` of them are written into the run folder, as `format`, drawn from `seed`.
    cost, released : a person's total over all parties, and the releases without a bound, in words.
    notes : what the reader should know (warnings, what was left to completion), one sentence each.
    details : what else the method has to say, as plain values for result.json.
    simulated : a seed made the noise predictable, so the table protects nobody.
    """

    method: str
    cohort: int
    model: Sampler
    rows: int
    seed: int
    cost: str
    simulated: bool
    format: Format = "parquet"
    released: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    details: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        check_rows(self.rows)
        check_format(self.format)

    @property
    def columns(self) -> Columns:
        return self.model.columns

    def sample(self, rows: int | None = None, *, seed: Source | None = None) -> pd.DataFrame:
        """Fresh rows: by default those of the run folder; another number or another seed as you like."""
        source = self.seed if seed is None else seed
        return frame_of(self.model, self.rows if rows is None else rows, source)

    def write(self, run: RunFolder) -> None:
        """synthetic.parquet (or .csv), model.npz and result.json."""
        name = f"synthetic.{self.format}"
        tally = Tally(self.columns)
        write_rows(run.path / name, self.model, self.rows, self.seed, format=self.format, tally=tally)
        _whole_file(run.path / "model.npz", lambda path: _save_arrays(path, self.model.to_arrays()))
        run.write_json(
            "result.json",
            {
                "kind": "synthetic-table",
                "method": self.method,
                "cohort": self.cohort,
                "rows": self.rows,
                "file": name,
                "seed": self.seed,
                "columns": self.columns.to_dict()["columns"],
                "marginals": tally.to_dict(),
                "cost": self.cost,
                "released": list(self.released),
                "notes": list(self.notes),
                "details": dict(self.details),
                "simulated": self.simulated,
            },
        )


def check_rows(rows: int) -> int:
    """The number of rows to write, if it can be one."""
    if isinstance(rows, bool) or not isinstance(rows, int) or rows < 1:
        raise BadArguments(f"rows must be a whole number of at least 1, not {rows!r}.")
    return rows


def check_format(format: str) -> None:
    if format not in get_args(Format):
        raise BadArguments(f"format must be one of {', '.join(get_args(Format))}, not {format!r}.")


def generator(source: Source) -> np.random.Generator:
    """Of a seed, or the generator itself. It draws rows from released numbers and protects nobody."""
    return source if isinstance(source, np.random.Generator) else np.random.default_rng(source)


def frame_of(model: Sampler, rows: int, source: Source) -> pd.DataFrame:
    """All rows in memory."""
    return pd.concat(list(model.batches(check_rows(rows), source)), ignore_index=True)


# --- files -------------------------------------------------------------------------------------------------------


class Tally:
    """Counts of drawn rows in the public cells of each column, taken while they are written."""

    def __init__(self, columns: Columns) -> None:
        self._columns = columns
        self._cells = {name: cells(column, bins=TALLY_BINS) for name, column in columns.items()}
        self._counts = {name: np.zeros(len(one), dtype=np.int64) for name, one in self._cells.items()}

    def of(self, batches: Iterator[pd.DataFrame]) -> Iterator[pd.DataFrame]:
        """The same batches, counted as they pass."""
        for batch in batches:
            for name, one in self._cells.items():
                self._counts[name] += one.count(self._columns[name].encode(batch[name]))
            yield batch

    def to_dict(self) -> dict[str, Any]:
        return {
            name: {
                "labels": list(one.labels),
                "edges": None if one.edges is None else one.edges.tolist(),
                "counts": self._counts[name].tolist(),
            }
            for name, one in self._cells.items()
        }


def write_rows(
    path: Path, model: Sampler, rows: int, source: Source, *, format: Format = "parquet", tally: Tally | None = None
) -> None:
    """Stream rows into a file, whole or not at all."""
    check_format(format)
    batches = model.batches(check_rows(rows), source)
    if tally is not None:
        batches = tally.of(batches)
    write = _parquet if format == "parquet" else _csv
    _whole_file(path, lambda partial: write(partial, batches))


def _parquet(path: Path, batches: Iterator[pd.DataFrame]) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    writer = None
    try:
        for batch in batches:
            table = pa.Table.from_pandas(batch, preserve_index=False)
            writer = writer or pq.ParquetWriter(path, table.schema)
            writer.write_table(table)
    finally:
        if writer is not None:
            writer.close()


def _csv(path: Path, batches: Iterator[pd.DataFrame]) -> None:
    with path.open("w", encoding="utf-8", newline="") as file:
        for number, batch in enumerate(batches):
            batch.to_csv(file, index=False, header=number == 0)


def _save_arrays(path: Path, arrays: Mapping[str, np.ndarray[Any, Any]]) -> None:
    with path.open("wb") as file:
        np.savez_compressed(file, allow_pickle=False, **dict(arrays))


def _whole_file(path: Path, write: Callable[[Path], None]) -> None:
    partial = path.with_name(path.name + ".partial")
    try:
        write(partial)
        with partial.open("rb+") as file:
            os.fsync(file.fileno())
        partial.rename(path)
    except OSError as error:
        raise StorageError(f"writing {path} failed ({error}); free disk space.") from error


def read_table(run: RunFolder) -> pd.DataFrame:
    """The rows that a run wrote, with the dtypes that they were drawn with."""
    described = run.read_json("result.json")
    path = run.path / described["file"]
    parquet = described["file"].endswith(".parquet")
    cells = pd.read_parquet(path) if parquet else pd.read_csv(path, dtype=str, keep_default_na=False)
    columns = Columns.from_dict({"columns": described["columns"]})
    return pd.DataFrame({name: column.decode(column.encode(cells[name])) for name, column in columns.items()})
