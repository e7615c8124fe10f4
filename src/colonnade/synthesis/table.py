"""What every synthesizer returns: a fitted model of the columns, and the fresh rows that it writes.

Rows are drawn from the model alone: their number is free. Drawing is post-processing of what was released, so it costs
nothing and may be repeated. Values lie in the declared domains and have the dtypes of `Column.decode`; no cell is
empty.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, Literal, Protocol

import numpy as np
import pandas as pd

from colonnade.codec import convert
from colonnade.data.column import Columns
from colonnade.errors import BadArguments, StorageError
from colonnade.federation.method import Result
from colonnade.federation.run_folder import RunFolder
from colonnade.federation.view import Figure, Figures, Items, Section, Table, Text, View
from colonnade.formatting import number
from colonnade.statistics.cells import cells

Format = Literal["parquet", "csv"]
Source = int | np.random.Generator

TALLY_BINS = 20
BATCH = 65_536
"""Rows that are drawn and written at once, so that a table larger than memory can be written."""
MOST_CHARTS = 60
"""Columns that the report draws."""


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
class SyntheticTable(Result):
    """The result of a synthesizer.

    method, cohort : its name, and the number of records behind it.
    model : draws the rows; `rows` of them are written into the run folder, as `file_format`, drawn from `seed`.
    drawn_from, fresh : the model in words; False if each row imitates a record of the cohort.
    cost, released : a person's total over all parties, and the releases without a bound, in words.
    notes : what the reader should know (warnings, what was left to completion), one sentence each.
    details : what else the method has to say, as plain values for result.json.
    simulated : a seed made the noise predictable, so the table protects nobody.
    """

    kind: ClassVar[str] = "synthetic-table"

    method: str
    cohort: int
    model: Sampler
    rows: int
    seed: int
    cost: str
    simulated: bool
    file_format: Format = "parquet"
    drawn_from: str = "a model"
    fresh: bool = True
    released: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    details: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        check_rows(self.rows)
        convert(self.file_format, Format, "file_format")

    @property
    def columns(self) -> Columns:
        return self.model.columns

    @property
    def file(self) -> str:
        """The name of the file with the rows, in the run folder."""
        return f"synthetic.{self.file_format}"

    def sample(self, rows: int | None = None, *, seed: Source | None = None) -> pd.DataFrame:
        """Fresh rows: by default those of the run folder; another number or another seed as you like."""
        source = self.seed if seed is None else seed
        return frame_of(self.model, self.rows if rows is None else rows, source)

    # --- the run folder --------------------------------------------------------------------------------------------

    def write(self, run: RunFolder) -> None:
        """synthetic.parquet (or .csv), model.npz, result.json and view.json."""
        tally = Tally(self.columns)
        write_rows(run.path / self.file, self.model, self.rows, self.seed, file_format=self.file_format, tally=tally)
        _all_or_nothing(run.path / "model.npz", lambda path: _save_arrays(path, self.model.to_arrays()))
        run.write_json("result.json", {"kind": self.kind, **self._described(tally.to_dict())})
        run.write_json("view.json", self._view(tally.to_dict()).to_dict())

    def to_dict(self) -> dict[str, Any]:
        return self._described(self._counted())

    def view(self) -> View:
        return self._view(self._counted())

    def _counted(self) -> dict[str, Any]:
        """The marginals of the rows that the run folder has, drawn once more."""
        tally = Tally(self.columns)
        for _ in tally.of(self.model.batches(self.rows, self.seed)):
            pass
        return tally.to_dict()

    def _described(self, marginals: Mapping[str, Any]) -> dict[str, Any]:
        return {
            "method": self.method,
            "cohort": self.cohort,
            "rows": self.rows,
            "file": self.file,
            "seed": self.seed,
            "columns": self.columns.to_dict()["columns"],
            "marginals": dict(marginals),
            "cost": self.cost,
            "released": list(self.released),
            "notes": list(self.notes),
            "details": dict(self.details),
            "simulated": self.simulated,
        }

    # --- what people see -------------------------------------------------------------------------------------------

    def _view(self, marginals: Mapping[str, Mapping[str, Any]]) -> View:
        title = f"A synthetic table of {number(self.rows)} rows and {len(self.columns)} columns"
        whose = "No row belongs to a record" if self.fresh else "Each row imitates a record, in random order"
        lead = Text(
            text=f"{self.file} in this folder has {number(self.rows)} rows drawn from {self.drawn_from} of the"
            f" {number(self.cohort)} records of the cohort ({self.method}). {whose}; every value lies in its declared"
            " domain. Use it like any table; more rows cost nothing.",
            style="lead",
        )
        charts = tuple(_chart(name, marginal) for name, marginal in list(marginals.items())[:MOST_CHARTS])
        rest = len(marginals) - MOST_CHARTS
        more = (Text(text=f"The other {rest} columns are in the table."),) if rest > 0 else ()
        typical = tuple((name, self.columns[name].kind, _typical(marginal)) for name, marginal in marginals.items())
        return View(
            title=title,
            quality="Not measured here: across parties that would be one more release. Each party can compare its own"
            " columns at home, with `colonnade compare`. Notes on noise stand below.",
            answer=(lead, Items(items=self.notes)) if self.notes else (lead,),
            sections=(Section(title="The synthetic columns", blocks=(Figures(figures=charts), *more)),),
            terminal=(Table(title=title, head=("column", "kind", "most common, or the middle half"), rows=typical),),
        )


def _chart(name: str, marginal: Mapping[str, Any]) -> Figure:
    data = {"labels": marginal["labels"], "noise": 0.0}
    if marginal["edges"] is None:
        data["values"] = marginal["counts"]
    else:
        data |= {"counts": marginal["counts"], "edges": marginal["edges"]}
    chart: Literal["bars", "histogram"] = "bars" if marginal["edges"] is None else "histogram"
    return Figure(chart=chart, data=data, label=f"Synthetic counts of {name}", title=name)


def _typical(marginal: Mapping[str, Any]) -> str:
    """The three most common values, or the middle half."""
    counts, edges = marginal["counts"], marginal["edges"]
    total = sum(counts) or 1
    if edges is None:
        ordered = sorted(zip(marginal["labels"], counts, strict=True), key=lambda pair: -pair[1])[:3]
        return ", ".join(f"{label} {100 * count / total:.0f} %" for label, count in ordered)
    low, high = (_quantile(edges, counts, level) for level in (0.25, 0.75))
    return f"{low:.4g} to {high:.4g}"


def _quantile(edges: Sequence[float], counts: Sequence[float], level: float) -> float:
    """Linear within a cell."""
    left = level * sum(counts)
    for index, count in enumerate(counts):
        if count > 0 and left <= count:
            return edges[index] + (edges[index + 1] - edges[index]) * left / count
        left -= count
    return edges[-1]


def check_rows(rows: int) -> int:
    """The number of rows to draw, if it can be one."""
    if isinstance(rows, bool) or not isinstance(rows, int) or rows < 1:
        raise BadArguments(f"rows must be an integer of at least 1, not {rows!r}.")
    return rows


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
        self._counts = {name: np.zeros(len(public), dtype=np.int64) for name, public in self._cells.items()}

    def of(self, batches: Iterator[pd.DataFrame]) -> Iterator[pd.DataFrame]:
        """The same batches, counted as they pass."""
        for batch in batches:
            for name, public in self._cells.items():
                self._counts[name] += public.count(self._columns[name].encode(batch[name]))
            yield batch

    def to_dict(self) -> dict[str, Any]:
        return {
            name: {
                "labels": list(public.labels),
                "edges": None if public.edges is None else public.edges.tolist(),
                "counts": self._counts[name].tolist(),
            }
            for name, public in self._cells.items()
        }


def write_rows(
    path: Path,
    model: Sampler,
    rows: int,
    source: Source,
    *,
    file_format: Format = "parquet",
    tally: Tally | None = None,
) -> None:
    """Stream rows into a file, whole or not at all."""
    batches = model.batches(check_rows(rows), source)
    if tally is not None:
        batches = tally.of(batches)
    write = _parquet if file_format == "parquet" else _csv
    _all_or_nothing(path, lambda partial: write(partial, batches))


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


def _all_or_nothing(path: Path, write: Callable[[Path], None]) -> None:
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
    stored = pd.read_parquet(path) if parquet else pd.read_csv(path, dtype=str, keep_default_na=False)
    columns = Columns.from_dict({"columns": described["columns"]})
    return pd.DataFrame({name: column.decode(column.encode(stored[name])) for name, column in columns.items()})
