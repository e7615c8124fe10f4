"""What every synthesizer returns: a fitted model of the columns, and the fresh rows that it writes.

Rows are drawn from the model alone: their number is free. Drawing is post-processing of what was released, so it costs
nothing and may be repeated. Values lie in the declared domains and have the dtypes of `Column.decode`; no cell is
empty.
"""

from __future__ import annotations

import json
import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, ClassVar, Literal, Protocol

import numpy as np
import pandas as pd

from colonnade.codec import convert, plain
from colonnade.data.aggregation import is_empty
from colonnade.data.column import Column, Columns
from colonnade.data.spreadsheet import restored, write_csv
from colonnade.durable import whole_file
from colonnade.errors import BadArguments
from colonnade.federation.method import Result
from colonnade.federation.run_folder import RunFolder
from colonnade.formatting import number
from colonnade.statistics.cells import cells
from colonnade.synthesis.calibration import DOUBT, Released, calibrated
from colonnade.synthesis.figures import PICTURED, agreement, association_figure, column_figure, score_figure
from colonnade.synthesis.inference import Estimator, Quantile, Ready, combined
from colonnade.synthesis.restrictions import conditioned, conditions
from colonnade.view.blocks import Figure, Figures, Items, Section, Table, Text, View

Format = Literal["parquet", "csv"]
Source = int | np.random.Generator

TALLY_BINS = 20
BATCH = 65_536
"""Rows that are drawn and written at once, so that a table larger than memory can be written."""
MOSTLY_NOISE = "columns that are mostly noise"
"""Of the details: these columns are named before anything else is said of the table."""
TOO_FEW = "Too few records are shared"
"""What the note begins with that says which correlations were not measured."""
HEAPED = 0.1
"""A value of a continuous column is named that at least so many rows have."""
MOST_CHARTS = 60
"""Columns that the report draws."""
ROWS_ALONE = "Standard errors that are computed from rows alone are too small"
FIELD_INTERVALS = (
    f"{ROWS_ALONE}; `table.analyse` adds the noise and the sampling of the cohort. Shares, quantiles, and what is"
    " estimated from categories and listed numbers have intervals; means and coefficients of other numbers have them"
    " with `moment_share` (0.25, say). Where released numbers say that an interval could not be relied on it is"
    " withheld; `table.valid_for` says what it rests on. How often intervals cover was studied for shares, means, least"
    " squares and logistic regression where every party has every record; not for contrasts, quantiles and functions of"
    " your own, nor where blocks are missing."
)
COPULA_INTERVALS = (
    f"{ROWS_ALONE}; `table.analyse` adds the noise and the sampling of the cohort, from other copulas that the released"
    " numbers support as well. Its intervals hold if the copula does, and how often they cover was not studied; a field"
    " with `moment_share` has intervals that were."
)
INDEPENDENT_INTERVALS = (
    f"{ROWS_ALONE}; `table.analyse` adds the noise and the sampling of the cohort. Intervals of one column alone are"
    " valid, though how often they cover was not studied; nothing about two columns together is."
)
NO_INTERVALS = f"{ROWS_ALONE}, and this table has no error bars: its noise is not modelled."
NOT_STUDIED = "How often such intervals cover was not studied."
DRAWS = 20
ROWS_A_RECORD, MOST_ROWS, MOST_WEIGHED = 4, 400_000, 40_000
"""Rows of a table that is drawn for error bars, for each record of the cohort, and at most; and at most of those that
are weighed."""


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


class Redrawn(Protocol):
    """Draws models that the released numbers support as well as the fitted one."""

    def __call__(self, source: np.random.Generator) -> Sampler: ...

    def to_arrays(self) -> Mapping[str, np.ndarray[Any, Any]]:
        """What it needs besides the model, for evidence.npz."""
        ...


class SavedEvidence(Released, Protocol):
    """What a job released of some columns, and can be written."""

    def to_arrays(self) -> Mapping[str, np.ndarray[Any, Any]]:
        """For evidence.npz."""
        ...


def text_array(stated: Any) -> np.ndarray[Any, Any]:
    """Plain data among arrays; `of_text_array` is its inverse."""
    return np.frombuffer(json.dumps(stated).encode(), dtype=np.uint8)


def of_text_array(array: np.ndarray[Any, Any]) -> Any:
    return json.loads(array.tobytes())


@dataclass(frozen=True)
class Quality:
    """How far the model is from the records, from the released numbers alone: no data is touched for it.

    sentence : for people. figures : the same, as plain values.
    """

    sentence: str
    figures: Mapping[str, Any]

    @property
    def pairs(self) -> float | None:
        """1 - the estimated distance of a table of two columns, or of a correlation, as a share of its range."""
        if "2-way distance" in self.figures:
            return max(1.0 - float(self.figures["2-way distance"]), 0.0)
        error = self.figures.get("error of a correlation")
        return None if error is None else max(1.0 - float(error) / 2, 0.0)


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
    because : which model was chosen and why, if the method chose it. warnings : what comes before anything else.
    quality : how far the model is from the records, estimated from the released numbers alone.
    redrawn : another model that the released numbers support as well, for error bars.
    evidence : what was released of some columns, for intervals of ready estimators.
    measured : of columns, the released marginal (`figures.released_shares`), to draw the rows over it.
    hidden : pairs of columns whose association was not measured, or not seen for the noise.
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
    because: str = ""
    warnings: tuple[str, ...] = ()
    quality: Quality | None = None
    redrawn: Redrawn | None = None
    evidence: SavedEvidence | None = None
    measured: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    hidden: frozenset[frozenset[str]] = frozenset()
    _marginals: dict[str, dict[str, Any]] = field(default_factory=dict, init=False, repr=False)
    _drawn: dict[int, pd.DataFrame] = field(default_factory=dict, init=False, repr=False)

    def __post_init__(self) -> None:
        check_rows(self.rows)
        convert(self.file_format, Format, "file_format")

    @property
    def columns(self) -> Columns:
        """The declared columns of the rows."""
        return self.model.columns

    @property
    def file(self) -> str:
        """The name of the file with the rows, in the run folder."""
        return f"synthetic.{self.file_format}"

    def sample(
        self, rows: int | None = None, *, seed: Source | None = None, where: Mapping[str, Any] | None = None
    ) -> pd.DataFrame:
        """Fresh rows: by default those of the run folder; another number or another seed as you like.

        Parameters
        ----------
        rows : how many; as many as in the run folder by default.
        seed : an integer or a generator; that of the run folder by default, so that the same rows come again.
        where : {column: value, list of values, or (lowest, highest)}, which every row has: `{"sex": "male", "region":
            ["north", "east"], "age": (30, 40)}`.

        Returns
        -------
        The rows, each column with the dtype of its kind.
        """
        source = self.seed if seed is None else seed
        model = self.model if where is None else conditioned(self.model, conditions(self.columns, where))
        return frame_of(model, self.rows if rows is None else rows, source)

    # --- error bars ------------------------------------------------------------------------------------------------

    def draws(self, m: int = DRAWS, *, rows: int | None = None, seed: int | None = None) -> Iterator[pd.DataFrame]:
        """`m` tables, each of another model that the released numbers support as well: noise and sampling of the cohort
        would have given any of them. Each is fitted when it is asked for.

        Parameters
        ----------
        m : how many tables.
        rows : of each; four for each record of the cohort by default, at most 400,000.
        seed : makes them repeatable; the run's own by default.

        Returns
        -------
        An iterator over data frames.
        """
        if self.redrawn is None:
            raise BadArguments(
                f"this table has no error bars: the noise of {self.method} is not modelled, or the run folder has no"
                " evidence.npz, which older versions did not write."
            )
        source = np.random.default_rng(self.seed + 1 if seed is None else seed)
        for _ in range(m):
            yield frame_of(self.redrawn(source), self._many(rows), source)

    def analyse(
        self,
        function: Estimator,
        *,
        draws: int = DRAWS,
        rows: int | None = None,
        level: float = 0.95,
        seed: int | None = None,
        columns: Sequence[str] | None = None,
        unproven: bool = False,
    ) -> pd.DataFrame:
        """Estimate, standard error and interval of what `function` computes from a table, for the population.

        The standard error includes the noise, the sampling of the cohort and that of the rows. Ready functions
        (`inference`) know the columns that they read, and of a field they rest on the released numbers themselves
        (`calibration`). Any other function is evaluated on `draws` of the model, a weaker promise: name its columns in
        `columns`, or all are taken. Where an interval could not be relied on by what was released, errors and
        intervals are withheld (nan) with a warning that says why; `unproven=True` gives them all the same.

        Parameters
        ----------
        function : a ready estimator of `synthesis.inference`, or any function of a data frame that returns named
            numbers.
        draws, rows, seed : as in `draws`.
        level : the coverage of the intervals.
        columns : what a function of your own reads; all by default.
        unproven : give intervals also where they could not be relied on.

        Returns
        -------
        A frame with `estimate`, `standard_error`, `lower`, `upper`; its `attrs` say what the intervals rest on.
        """
        if isinstance(function, Ready) and self.evidence is not None:
            intervals, lacking = self._calibrated(function, self.evidence, rows, level, seed)
        else:
            fitted = function(frame_of(self.model, self._many(rows), self.seed))
            others = [function(table) for table in self.draws(draws, rows=rows, seed=seed)]
            intervals = combined(fitted, others, level=level)
            read: Sequence[str] = getattr(function, "columns", ()) if columns is None else columns
            intervals.attrs["valid for"] = self.valid_for(read)
            lacking = pd.Series(self._left_out(read), index=intervals.index)
        if self.evidence is None or not getattr(function, "studied", False):
            intervals.attrs["valid for"] += f" {NOT_STUDIED}"
        intervals.attrs["withheld"] = {name: why for name, why in lacking.items() if why}
        if not unproven and (lacking != "").any():
            intervals.loc[lacking != "", ["standard_error", "lower", "upper"]] = np.nan
            partly = "" if (lacking != "").all() else f" of {', '.join(map(str, intervals.index[lacking != '']))}"
            why = next(reason for reason in lacking if reason)
            warnings.warn(f"no interval{partly}: {why} unproven=True gives intervals all the same.", stacklevel=2)
        return intervals

    def _calibrated(
        self, function: Ready, evidence: Released, rows: int | None, level: float, seed: int | None
    ) -> tuple[pd.DataFrame, pd.Series[Any]]:
        """From released numbers; and for each estimate, why it has no interval."""
        count = min(self._many(rows), MOST_WEIGHED)
        if count not in self._drawn:
            self._drawn.clear()
            self._drawn[count] = frame_of(self.model, count, self.seed)
        table = self._drawn[count]
        source = self.seed + 1 if seed is None else seed
        intervals = calibrated(function, table, evidence, level=level, seed=source)
        lacking = "" if isinstance(function, Quantile) else evidence.lacking(function.columns)
        intervals.attrs["valid for"] = self.valid_for(function.columns)
        doubts = intervals.pop(DOUBT)
        return intervals, doubts.where(doubts == "", doubts + ".") if not lacking else doubts.map(lambda _: lacking)

    @property
    def intervals(self) -> str:
        """For which estimates `analyse` has valid intervals, in a few sentences."""
        if self.redrawn is None and self.evidence is None:
            return NO_INTERVALS
        if self.evidence is not None:
            return FIELD_INTERVALS
        return INDEPENDENT_INTERVALS if self.details.get("model") == "independent" else COPULA_INTERVALS

    def _many(self, rows: int | None) -> int:
        return min(ROWS_A_RECORD * self.cohort, MOST_ROWS) if rows is None else rows

    def valid_for(self, columns: Sequence[str]) -> str:
        """What intervals of these columns rest on, in a sentence or two; for none, of all of them.

        Parameters
        ----------
        columns : names of columns.

        Returns
        -------
        A text.
        """
        asked = tuple(columns) or tuple(self.columns)
        model = self._left_out(asked) or f"The model has the dependence of {', '.join(asked)} that was measured."
        if self.evidence is None:
            return model
        ready = self.evidence.lacking(asked) or (
            f"Ready estimators of {', '.join(asked)} have intervals from the released numbers, where these suffice."
        )
        return f"{ready} For other functions: {model}"

    def _left_out(self, columns: Sequence[str]) -> str:
        left_out = getattr(getattr(self.model, "model", self.model), "left_out", lambda columns: "")
        return str(left_out(tuple(columns) or tuple(self.columns)))

    # --- the run folder --------------------------------------------------------------------------------------------

    def write(self, run: RunFolder) -> None:
        """synthetic.parquet (or .csv), model.npz, evidence.npz (what error bars rest on), result.json and view.json."""
        write_rows(run.path / self.file, self._counted(), file_format=self.file_format)
        write_arrays(run.path / "model.npz", self.model.to_arrays())
        known = [part.to_arrays() for part in (self.redrawn, self.evidence) if part is not None]
        if known:
            write_arrays(run.path / "evidence.npz", {name: array for part in known for name, array in part.items()})
        super().write(run)

    def _counted(self) -> Iterator[pd.DataFrame]:
        """The rows of the run folder, counted as they pass; after the last one `_marginals` holds the counts."""
        public = {name: cells(column, bins=TALLY_BINS) for name, column in self.columns.items()}
        counts = {name: np.zeros(len(own), dtype=np.int64) for name, own in public.items()}
        for batch in self.model.batches(self.rows, self.seed):
            for name, own in public.items():
                counts[name] += own.count(self.columns[name].encode(batch[name]))
            yield batch
        for name, own in public.items():
            edges = None if own.edges is None else own.edges.tolist()
            self._marginals[name] = {"labels": list(own.labels), "edges": edges, "counts": counts[name].tolist()}
            if self.columns[name].kind == "date":
                self._marginals[name]["ticks"] = [self.columns[name].label(edge) for edge in edges or ()]

    @property
    def marginals(self) -> dict[str, dict[str, Any]]:
        """Counts of the run folder's rows in the public cells of each column; they are drawn again if need be."""
        if not self._marginals:
            for _ in self._counted():
                pass
        return self._marginals

    def to_dict(self) -> dict[str, Any]:
        stated = ["method", "cohort", "rows", "fresh", "file", "seed", "marginals", "cost", "released", "notes"]
        stated += ["details", "because", "simulated"]
        return {name: plain(getattr(self, name)) for name in stated} | {
            "columns": self.columns.to_dict()["columns"],
            "quality": {} if self.quality is None else dict(self.quality.figures),
        }

    @classmethod
    def about_rows(cls, stated: Mapping[str, Any]) -> str:
        if not stated["fresh"]:
            return "Each row imitates a record of the cohort, in random order: check the rows as records of persons."
        return (
            "The rows are drawn from a model of what was measured, and none belongs to a record, so there are no"
            " records behind a row: the rules below are about the cohort, and the bound on epsilon is what protects a"
            " person."
        )

    # --- what people see -------------------------------------------------------------------------------------------

    def _warnings(self) -> tuple[str, ...]:
        """What is mostly noise, or was not measured at all, before anything else is said."""
        names = list(self.details.get(MOSTLY_NOISE, ()))
        rest = f" and {len(names) - 5} more" if len(names) > 5 else ""
        noisy = (f"Mostly noise: the released distribution of {', '.join(names[:5])}{rest}.",) if names else ()
        return (*self.warnings, *noisy, *(note for note in self.notes if note.startswith(TOO_FEW)))

    def view(self) -> View:
        marginals = self.marginals
        title = f"A synthetic table of {number(self.rows)} rows and {len(self.columns)} columns"
        whose = "No row belongs to a record" if self.fresh else "Each row imitates a record, in random order"
        lead = Text(
            text=f"{self.file} in this folder has {number(self.rows)} rows drawn from {self.drawn_from} of the"
            f" {number(self.cohort)} records of the cohort ({self.method}). {whose}; every value lies in its declared"
            " domain. Use it like any table; more rows cost nothing.",
            style="lead",
        )
        notes = (*((Text(text=self.because),) if self.because else ()), Text(text=self.intervals, style="soft"))
        charts = tuple(
            column_figure(name, marginal, self.measured.get(name), unit=self.columns[name].unit)
            for name, marginal in list(marginals.items())[:MOST_CHARTS]
        )
        drawn = self.sample(min(self.rows, PICTURED))
        together: tuple[Figure, ...] = ()
        if len(self.columns) > 1:
            together = (association_figure(drawn, self.columns, self.hidden),)
        agreed = {
            name: agreement(self.columns[name].encode(drawn[name]), own)
            for name, own in self.measured.items()
            if name in drawn
        }
        score: tuple[Figure, ...] = ()
        if agreed:
            score = (score_figure(agreed, None if self.quality is None else self.quality.pairs),)
        rest = len(marginals) - MOST_CHARTS
        more = (Text(text=f"The other {rest} columns are in the table."),) if rest > 0 else ()
        typical = tuple((name, column.kind, _typical(column, drawn[name])) for name, column in self.columns.items())
        noted = tuple(note for note in self.notes if not note.startswith(TOO_FEW))  # that is a warning already
        return View(
            title=title,
            warnings=self._warnings(),
            quality=self._quality(),
            answer=(lead, *score, *notes, *together, *((Items(items=noted),) if noted else ())),
            sections=(Section(title="The synthetic columns", blocks=(Figures(figures=charts), *more)),),
            terminal=(Table(title=title, head=("column", "kind", "most common, or the middle half"), rows=typical),),
        )

    def _quality(self) -> str:
        at_home = "Each party can compare its own columns at home, with `colonnade compare`."
        if self.quality is None:
            return f"Not measured here: across parties that would be one more release. {at_home}"
        return f"{self.quality.sentence} {at_home}"


def _typical(column: Column, cells: pd.Series[Any]) -> str:
    """The three most common values; of numbers the middle half, and a value that many rows have."""
    codes = replace(column, missing=True).clipped(cells)
    codes = codes[~is_empty(codes)]
    if not codes.size:
        return "empty"
    values, counts = np.unique(codes, return_counts=True)
    labels = column.categories or {value: column.label(value) for value in values}
    common = np.argsort(-counts, kind="stable")[:3]
    frequent = [f"{labels[values[place]]} {100 * counts[place] / codes.size:.0f} %" for place in common]
    if column.discrete:
        return ", ".join(frequent)
    low, high = np.quantile(codes, [0.25, 0.75], method="inverted_cdf")
    heaped = counts.max() >= HEAPED * codes.size and not column.whole
    return f"{column.label(low)} to {column.label(high)}" + (f"; {frequent[0]}" if heaped else "")


def check_rows(rows: int) -> int:
    """The number of rows to draw, if it can be one."""
    if isinstance(rows, bool) or not isinstance(rows, int) or rows < 1:
        raise BadArguments(f"rows must be an integer of at least 1, not {rows!r}.")
    return rows


def generator(source: Source) -> np.random.Generator:
    """Of a seed, or the generator itself. It draws rows from released numbers and protects nobody."""
    return source if isinstance(source, np.random.Generator) else np.random.default_rng(source)


def recut(blocks: Iterator[pd.DataFrame], size: int) -> Iterator[pd.DataFrame]:
    """The same rows, `size` at a time."""
    waiting = pd.DataFrame()
    for block in blocks:
        waiting = block if waiting.empty else pd.concat([waiting, block], ignore_index=True)
        while len(waiting) >= size:
            yield waiting.iloc[:size].reset_index(drop=True)
            waiting = waiting.iloc[size:].reset_index(drop=True)
    if len(waiting):
        yield waiting


def frame_of(model: Sampler, rows: int, source: Source) -> pd.DataFrame:
    """All rows in memory."""
    return pd.concat(list(model.batches(check_rows(rows), source)), ignore_index=True)


# --- files -------------------------------------------------------------------------------------------------------


def write_rows(path: Path, batches: Iterator[pd.DataFrame], *, file_format: Format) -> None:
    """Stream rows into a file, whole or not at all."""
    with whole_file(path) as partial:
        if file_format == "parquet":
            _parquet(partial, batches)
        else:
            with partial.open("w", encoding="utf-8", newline="") as file:
                for number, batch in enumerate(batches):
                    write_csv(batch, file, index=False, header=number == 0)


def write_arrays(path: Path, arrays: Mapping[str, np.ndarray[Any, Any]]) -> None:
    with whole_file(path) as partial, partial.open("wb") as file:
        np.savez_compressed(file, allow_pickle=False, **dict(arrays))


def _parquet(path: Path, batches: Iterator[pd.DataFrame]) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    first = pa.Table.from_pandas(next(batches), preserve_index=False)
    with pq.ParquetWriter(path, first.schema) as writer:
        writer.write_table(first)
        for batch in batches:
            writer.write_table(pa.Table.from_pandas(batch, preserve_index=False))


def read_table(run: RunFolder) -> pd.DataFrame:
    """The rows that a run wrote, with the dtypes that they were drawn with."""
    described = run.read_json("result.json")
    path = run.path / described["file"]
    parquet = described["file"].endswith(".parquet")
    stored = pd.read_parquet(path) if parquet else pd.read_csv(path, dtype=str, keep_default_na=False)
    if not parquet:
        stored = stored.map(restored).rename(columns=restored)
    columns = Columns.from_dict({"columns": described["columns"]})
    return pd.DataFrame({name: column.decode(column.domain.encode(stored[name])) for name, column in columns.items()})
