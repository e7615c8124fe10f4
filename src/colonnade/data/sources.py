"""Where a block's rows come from. A source streams: it never holds the whole table, unless it was given one.

A source does not interpret cells. A CSV file gives text for every column, because a type that is guessed from the
data changes with the data; the column's declaration says what the text means (`colonnade.data.encoding`).
"""

from __future__ import annotations

import codecs
import csv
import io
import re
from collections import Counter
from collections.abc import Collection, Hashable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any, Protocol, cast, runtime_checkable

import pandas as pd
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet

from colonnade.codec import nearest
from colonnade.errors import DuplicateColumn, SchemaError, SourceError, UnknownColumn

ROWS = 65536
CELLS = 1 << 18
"""Cells of a chunk of a wide table: a chunk is copied some ten times on its way, 2 MB each time."""
ROOMY_CELLS = 1 << 20
"""Where memory is not scarce: reading takes two thirds of the time (measured)."""
_CSV_BLOCK_BYTES = 1 << 20
_PARQUET_BUFFER_BYTES = 1 << 16
_PANDAS_INDEX = re.compile(r"__index_level_\d+__")  # what pandas adds to a Parquet file for an index without a name
_DUCKDB_TYPES = re.compile(
    r'U?(TINY|SMALL|BIG|HUGE)INT|U?INTEGER|FLOAT|DOUBLE|DECIMAL|BOOLEAN|VARCHAR|ENUM|"NULL"|BIGNUM'
)

# Integers and truth values with gaps: pandas would make them float64, which is not exact above 2^53, or object.
_NULLABLE: dict[Any, Any] = {
    pa.int8(): pd.Int8Dtype(),
    pa.int16(): pd.Int16Dtype(),
    pa.int32(): pd.Int32Dtype(),
    pa.int64(): pd.Int64Dtype(),
    pa.uint8(): pd.UInt8Dtype(),
    pa.uint16(): pd.UInt16Dtype(),
    pa.uint32(): pd.UInt32Dtype(),
    pa.uint64(): pd.UInt64Dtype(),
    pa.bool_(): pd.BooleanDtype(),
}


@runtime_checkable
class Source(Protocol):
    """A table that can be read again and again, in the same order."""

    @property
    def description(self) -> str:
        """What a log may say of it; no data."""
        ...

    def names(self) -> list[str]:
        """The column names; duplicates are kept, so that they can be refused."""
        ...

    def chunks(self, names: Sequence[str], *, rows: int = ROWS) -> Iterator[pd.DataFrame]:
        """The rows in order, `names` in order, at most `rows` rows at a time."""
        ...


@runtime_checkable
class Typed(Protocol):
    """A source whose columns have types of their own, known before a row is read."""

    def unfit(self) -> dict[str, str]:
        """Columns of a type that is neither number, text nor truth value, with the name of the type; dates are such."""
        ...


@runtime_checkable
class Dated(Protocol):
    """A source that can tell without being read whether it is still what it was."""

    def state(self) -> Hashable | None:
        """Another one after every change; None if it cannot be told."""
        ...


@runtime_checkable
class Divisible(Protocol):
    """A source that others can read in pieces, each by itself."""

    def pieces(self, rows: int) -> Iterator[tuple[int, Source]]:
        """(number of rows, source) of consecutive pieces of about `rows` rows, together the whole."""
        ...


def is_date_type(kind: str) -> bool:
    """Whether a type, by its name, is that of dates or of times of a day."""
    return re.match(r"date|timestamp", kind, re.IGNORECASE) is not None


def chunk_rows(columns: int, cells: int = CELLS) -> int:
    """Rows of a chunk with so many columns."""
    return max(1024, min(ROWS, cells // max(columns, 1)))


class FrameSource:
    """A pandas data frame. An index with a name counts as a column."""

    description = "a data frame"

    def __init__(self, frame: pd.DataFrame) -> None:
        columns: list[object] = list(frame.columns)
        self._parts: list[pd.Series[Any]] = [
            frame.iloc[:, position].copy(deep=False) for position in range(len(columns))
        ]
        for level, name in enumerate(frame.index.names):
            if name is not None:
                columns.append(name)
                self._parts.append(pd.Series(frame.index.get_level_values(level)))
        self._names = [str(name) for name in columns]
        self._n = len(frame)

    def names(self) -> list[str]:
        return list(self._names)

    def chunks(self, names: Sequence[str], *, rows: int = ROWS) -> Iterator[pd.DataFrame]:
        wanted = [self._parts[position] for position in positions(self.names(), names, self.description)]
        for start in range(0, self._n, rows):
            cut = {name: part.iloc[start : start + rows].array for name, part in zip(names, wanted, strict=True)}
            yield pd.DataFrame(cut, copy=False)


class CSVSource:
    """A CSV file with a header, plain or compressed (.gz, .bz2, .zst). Every cell is text; an empty one is missing."""

    def __init__(self, path: str | Path, *, separator: str = ",", encoding: str = "utf-8") -> None:
        self._path = Path(path)
        self._separator, self._encoding = separator, encoding
        self.description = f"the CSV file {self._path}"

    def state(self) -> Hashable | None:
        return _file_state(self._path)

    def _block_bytes(self) -> int:
        """Arrow reads 32 blocks ahead, and a row must fit into one: the header tells how long a row may be."""
        with pa.input_stream(str(self._path)) as file, io.BufferedReader(file) as buffered:
            return max(_CSV_BLOCK_BYTES, 64 * len(buffered.readline(_CSV_BLOCK_BYTES)))

    def _open(self, convert: pa.csv.ConvertOptions | None = None) -> Any:
        return pa.csv.open_csv(
            self._path,
            # One thread: an error then names its row.
            read_options=pa.csv.ReadOptions(
                use_threads=False, block_size=self._block_bytes(), encoding=self._encoding.replace("utf-8", "utf8")
            ),
            parse_options=pa.csv.ParseOptions(delimiter=self._separator, newlines_in_values=True),
            convert_options=convert,
        )

    def names(self) -> list[str]:
        # Only the first row: Arrow would find out the type of every column of a block.
        encoding = "utf-8-sig" if self._encoding == "utf-8" else self._encoding
        with (
            _reading(self.description),
            pa.input_stream(str(self._path)) as file,
            io.TextIOWrapper(io.BufferedReader(file), encoding=encoding, newline="") as text,
        ):
            header = next((row for row in csv.reader(text, delimiter=self._separator) if row), None)
        if header is None:
            raise _unreadable(self.description, "it is empty")
        return header

    def chunks(self, names: Sequence[str], *, rows: int = ROWS) -> Iterator[pd.DataFrame]:
        positions(self.names(), names, self.description)
        convert = pa.csv.ConvertOptions(
            column_types={name: pa.string() for name in names},
            include_columns=list(names),
            null_values=[""],
            strings_can_be_null=True,
        )
        with _reading(self.description), self._open(convert) as reader:
            yield from _frames(reader, names, rows)


class ParquetSource:
    """A Parquet file, or the Parquet files directly inside a folder in the order of their names.

    With `groups`, only these row groups of a file.
    """

    def __init__(self, path: str | Path, *, groups: Sequence[int] | None = None) -> None:
        self._path = Path(path)
        self._groups = None if groups is None else list(groups)
        self.description = f"the Parquet {'folder' if self._path.is_dir() else 'file'} {self._path}"

    def state(self) -> Hashable | None:
        return _file_state(self._path) if self._groups is None else None

    def _files(self) -> list[Path]:
        if not self._path.is_dir():
            return [self._path]
        files = sorted(path for path in self._path.iterdir() if path.suffix in (".parquet", ".pq"))
        if not files:
            raise SourceError(f"{self.description} holds no file *.parquet; give the folder that holds them.")
        return files

    def names(self) -> list[str]:
        with _reading(self.description):
            names_by_file = {file: _parquet_names(file) for file in self._files()}
        first = next(iter(names_by_file.values()))
        for file, names in names_by_file.items():
            if sorted(names) != sorted(first):
                raise SourceError(
                    f"{self.description}: {file.name} has other columns than the first file; make them agree."
                )
        return first

    def unfit(self) -> dict[str, str]:
        """Columns of a type that is neither number, text nor truth value, with the name of the type."""
        with _reading(self.description):
            schemas = [pa.parquet.read_schema(file) for file in self._files()]
        return {field.name: str(field.type) for schema in schemas for field in schema if not _fits(field.type)}

    def chunks(self, names: Sequence[str], *, rows: int = ROWS) -> Iterator[pd.DataFrame]:
        positions(self.names(), names, self.description)
        with _reading(self.description):
            for path in self._files():
                # Without a buffer of its own size, a reader takes whole row groups into memory.
                with pa.parquet.ParquetFile(path, pre_buffer=False, buffer_size=_PARQUET_BUFFER_BYTES) as file:
                    # One thread that waits for another takes twice the CPU time of one alone.
                    options = {"row_groups": self._groups, "use_threads": pa.cpu_count() > 1}
                    # Where memory is not scarce, whole frames are read at once: larger batches take less time a row.
                    frames = max(1, ROWS // rows) if rows * len(names) > CELLS else 1
                    batches = file.iter_batches(batch_size=frames * rows, columns=list(names), **options)
                    yield from _frames(batches, names, rows)

    def pieces(self, rows: int) -> Iterator[tuple[int, Source]]:
        """Row groups of one file, as many as give about so many rows."""
        with _reading(self.description):
            for path in self._files():
                sizes = _group_sizes(path)
                wanted = range(len(sizes)) if self._groups is None else self._groups
                part: list[int] = []
                for group in wanted:
                    if part and sum(sizes[member] for member in [*part, group]) > rows:
                        yield sum(sizes[member] for member in part), ParquetSource(path.absolute(), groups=part)
                        part = []
                    part.append(group)
                if part:
                    yield sum(sizes[member] for member in part), ParquetSource(path.absolute(), groups=part)


def _file_state(path: Path) -> Hashable | None:
    """Of one file: a folder may be cut into other chunks than its rows in one piece would be."""
    try:
        known = path.stat()
    except OSError:
        return None
    return None if path.is_dir() else (known.st_ino, known.st_size, known.st_mtime_ns, known.st_ctime_ns)


def _group_sizes(path: Path) -> list[int]:
    metadata = pa.parquet.read_metadata(path)
    return [metadata.row_group(group).num_rows for group in range(metadata.num_row_groups)]


def _fits(kind: Any) -> bool:
    if pa.types.is_dictionary(kind):
        return _fits(kind.value_type)
    text = pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_string_view(kind)
    number = pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_decimal(kind)
    return bool(text or number or pa.types.is_boolean(kind) or pa.types.is_null(kind))


def _parquet_names(path: Path) -> list[str]:
    return [name for name in pa.parquet.read_schema(path).names if not _PANDAS_INDEX.fullmatch(name)]


class DuckDBSource:
    """The rows of a query on a DuckDB database, which is opened for reading only.

    A block reads its source more than once and expects one order of rows: end the query with ORDER BY, unless it
    is a plain selection from one table. `memory_limit` ("1GB") is DuckDB's own: 80 % of the machine by default.
    """

    def __init__(self, database: str | Path, query: str, *, memory_limit: str | None = None) -> None:
        self._database, self._query = str(database), query.strip().rstrip(";")
        self._config: dict[str, Any] = {} if memory_limit is None else {"memory_limit": memory_limit}
        self.description = f"a query on the DuckDB database {self._database}"

    @contextmanager
    def _session(self) -> Iterator[Any]:
        try:
            import duckdb
        except ImportError:
            raise SourceError(
                f"{self.description} needs the package duckdb; install it with `pip install colonnade[duckdb]`."
            ) from None
        try:
            opened = duckdb.connect(self._database, read_only=self._database != ":memory:", config=self._config)
            with closing(opened) as connection:
                # Otherwise a table name in the query could find a variable of this program.
                connection.execute("SET python_enable_replacements = false")
                yield connection
        except duckdb.DataError as error:  # its sentence goes on to quote a value
            raise _unreadable(self.description, str(error).partition(":")[0]) from None
        except duckdb.Error as error:
            raise _unreadable(self.description, str(error)) from None

    def names(self) -> list[str]:
        with self._session() as connection:
            return [row[0] for row in connection.sql(f"DESCRIBE ({self._query}\n)").fetchall()]

    def unfit(self) -> dict[str, str]:
        """Columns of a type that is neither number, text nor truth value, with the name of the type."""
        with self._session() as connection:
            described = connection.sql(f"DESCRIBE ({self._query}\n)").fetchall()
        return {row[0]: row[1] for row in described if not _DUCKDB_TYPES.match(row[1]) or row[1].endswith("]")}

    def chunks(self, names: Sequence[str], *, rows: int = ROWS) -> Iterator[pd.DataFrame]:
        positions(self.names(), names, self.description)
        selected = ", ".join('"' + name.replace('"', '""') + '"' for name in names)
        with self._session() as connection, _reading(self.description):
            # DuckDB keeps the order of a subquery under a plain selection.
            relation = connection.sql(f"SELECT {selected} FROM ({self._query}\n)")
            # Before duckdb 1.5 the streaming reader had another name.
            open_reader = getattr(relation, "to_arrow_reader", None) or relation.fetch_arrow_reader
            yield from _frames(open_reader(rows), names, rows)


# --- sources made of others -------------------------------------------------------------------------------------


class DerivedSource:
    """Another source seen in another way; a subclass says in which."""

    def __init__(self, source: Source) -> None:
        self.source = source

    @property
    def description(self) -> str:
        return self.source.description

    def names(self) -> list[str]:
        return self.source.names()

    def unfit(self) -> dict[str, str]:
        return self.source.unfit() if isinstance(self.source, Typed) else {}

    def state(self) -> Hashable | None:
        return self.source.state() if isinstance(self.source, Dated) else None

    def chunks(self, names: Sequence[str], *, rows: int = ROWS) -> Iterator[pd.DataFrame]:
        return self.source.chunks(names, rows=rows)


class Without(DerivedSource):
    """A source some of whose columns are not offered: no block has them, and none need be declared. A rule for a
    person's several rows may still go by one of them."""

    def __init__(self, source: Source, names: Collection[str]) -> None:
        super().__init__(source)
        self._ignored = frozenset(names)

    def names(self) -> list[str]:
        return [name for name in self.source.names() if name not in self._ignored]


class DivisibleWithout(Without):
    """The same of a source that can be read in pieces."""

    def pieces(self, rows: int) -> Iterator[tuple[int, Source]]:
        assert isinstance(self.source, Divisible)
        for count, piece in self.source.pieces(rows):
            yield count, Without(piece, self._ignored)


def without(source: Source, names: Collection[str]) -> Source:
    """The source without these columns; a name that it does not have is no fault."""
    from colonnade.data.cluster import OnCluster

    if not names:
        return source
    if isinstance(source, OnCluster):
        return OnCluster(without(source.source, names), source.cluster)
    return DivisibleWithout(source, names) if isinstance(source, Divisible) else Without(source, names)


class Requiring(DerivedSource):
    """A source without the rows in which one of these columns is empty: those without a key, say."""

    def __init__(self, source: Source, names: Sequence[str]) -> None:
        super().__init__(source)
        self._required = tuple(names)

    def state(self) -> None:
        """Its chunks are shorter than those of the same rows in one piece."""

    def chunks(self, names: Sequence[str], *, rows: int = ROWS) -> Iterator[pd.DataFrame]:
        asked = list(dict.fromkeys([*names, *self._required]))
        for frame in self.source.chunks(asked, rows=rows):
            filled = (frame[list(self._required)].notna() & (frame[list(self._required)] != "")).all(axis=1)
            yield frame.loc[filled.to_numpy(dtype=bool), list(names)].reset_index(drop=True)


# --- any source -------------------------------------------------------------------------------------------------


def open_source(spec: Source | pd.DataFrame | str | Path | Mapping[str, Any]) -> Source:
    """A source by type and suffix: a frame, a path, or a mapping.

    `{"csv": path}` (also `separator`, `encoding`), `{"parquet": path}`, `{"duckdb": path, "query": sql}`,
    `{"postgresql": "env:NAME" or "service:NAME", "query": sql}`; with `dask` and its options, on a cluster; with
    `ignore`, a list of columns that are not offered; with `require`, a list of columns without which a row is left out.
    """
    if isinstance(spec, pd.DataFrame):
        return FrameSource(spec)
    if isinstance(spec, Mapping):
        return _from_mapping(spec)
    if isinstance(spec, str | Path):
        return _from_path(Path(spec))
    if isinstance(spec, Source):
        return spec
    raise SourceError(f"a source is a data frame, a path or a mapping, not {type(spec).__name__}; give one of those.")


def _from_path(path: Path) -> Source:
    return _from_mapping(named_source(path))


def named_source(path: Path) -> dict[str, str]:
    """A file or folder as a mapping that names its sort, by its suffix."""
    suffixes = [suffix.lower() for suffix in path.suffixes if suffix.lower() not in (".gz", ".bz2", ".zst")]
    suffix = suffixes[-1] if suffixes else ""
    if path.is_dir() or suffix in (".parquet", ".pq"):
        return {"parquet": str(path)}
    if suffix in (".csv", ".tsv"):
        return {"csv": str(path), **({"separator": "\t"} if suffix == ".tsv" else {})}
    cure = '{"duckdb": path, "query": sql}, {"csv": path} or {"parquet": path}'
    raise SourceError(f"{path} is not known by its suffix; name the sort of source: {cure}.")


def sniffed(path: Path) -> str | dict[str, str]:
    """A file as a configuration names it; of a CSV file the separator and the encoding, where they are not "," and
    UTF-8, as its first lines show them."""
    named = named_source(path)
    if "csv" not in named:
        return str(path)
    with _reading(f"the CSV file {path}"), pa.input_stream(str(path)) as file:
        start = file.read(1 << 16)
    wide = start[:2] in (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)
    try:
        text = start.decode("utf-16" if wide else "utf-8", errors="replace" if wide else "strict")
        named |= {"encoding": "utf-16"} if wide else {}
    except UnicodeDecodeError as error:
        # A character may be cut in two at the end of what was read.
        western = error.start < len(start) - 4
        text = start.decode("cp1252" if western else "utf-8", errors="replace")
        named |= {"encoding": "cp1252"} if western else {}
    header = text.partition("\n")[0]
    separator = max(",;\t|", key=header.count)
    if separator != named.get("separator", ",") and header.count(separator) > header.count(","):
        named["separator"] = separator
    return str(path) if named == named_source(path) else named


_FIELDS: dict[str, tuple[set[str], set[str]]] = {
    "csv": (set(), {"separator", "encoding"}),
    "parquet": (set(), set()),
    "duckdb": ({"query"}, {"memory_limit"}),
    "postgresql": ({"query"}, set()),
}
"""For each sort of source the fields that it must have and those that it may have, besides its own."""


_LISTS = ("ignore", "require")
_DASK = {"ca": "dask_ca", "certificate": "dask_certificate", "key": "dask_key", "encryption": "dask_encryption"}


def check_fields(spec: Mapping[str, Any]) -> str:
    """The sort of source that a mapping names, if it has the fields of that sort and no others."""
    sort = next((sort for sort in _FIELDS if sort in spec), None)
    if sort is None:
        meant = nearest(next(iter(spec), ""), _FIELDS)
        raise SourceError(f"a source names one of {', '.join(_FIELDS)}, not {', '.join(spec)}; correct it.{meant}")
    needed, allowed = _FIELDS[sort]
    anywhere = (*_LISTS, "dask", *_DASK.values())
    own = {field for field in spec if field != sort and field not in anywhere}
    if not needed <= own <= needed | allowed:
        may = f" and may have {', '.join(sorted(allowed))}" if allowed else ""
        fields = ", ".join([sort, *sorted(needed)])
        known = (*needed, *allowed, *anywhere)
        meant = "".join(nearest(field, known) for field in own if field not in known)
        raise SourceError(f"a {sort} source has the fields {fields}{may}, not {', '.join(spec)}; correct them.{meant}")
    for field in _LISTS:
        listed = spec.get(field, [])
        if not isinstance(listed, list | tuple) or not all(isinstance(name, str) for name in listed):
            raise SourceError(f'{field} in a source is a list of column names, such as {field} = ["note"]; correct it.')
    if not all(isinstance(value, str | Path) for field, value in spec.items() if field not in _LISTS):
        raise SourceError(f"the fields of a {sort} source are text; put quotation marks around them.")
    return sort


def _from_mapping(spec: Mapping[str, Any]) -> Source:
    sort = check_fields(spec)
    plain = {field: value for field, value in spec.items() if field not in _LISTS}
    if len(plain) < len(spec):
        source = _from_mapping(plain)
        required = spec.get("require", ())
        return without(Requiring(source, required) if required else source, spec.get("ignore", ()))
    if "dask" in spec:
        from colonnade.data.cluster import Cluster, OnCluster

        options = {option: str(spec[field]) for option, field in _DASK.items() if field in spec}
        rest = {field: value for field, value in spec.items() if field not in ("dask", *_DASK.values())}
        return OnCluster(_from_mapping(rest), Cluster(address=str(spec["dask"]), **options))
    options = {field: value for field, value in spec.items() if field != sort}
    match sort:
        case "csv":
            return CSVSource(spec[sort], **options)
        case "parquet":
            return ParquetSource(spec[sort])
        case "duckdb":
            return DuckDBSource(spec[sort], **options)
        case _:
            from colonnade.data.postgresql import PostgreSQLSource

            return PostgreSQLSource(spec[sort], options["query"])


def positions(available: Sequence[str], names: Sequence[str], description: str) -> list[int]:
    """Where the wanted columns are; each must be there exactly once."""
    if not names:
        raise SchemaError(f"no column of {description} was asked for; name at least one.")
    counts, asked = Counter(available), Counter(names)
    for name in names:
        if name not in counts:
            raise UnknownColumn(f"{description} has no column {name!r}; it has {', '.join(available)}.")
        if counts[name] > 1 or asked[name] > 1:
            raise DuplicateColumn(f"{description}: the column {name!r} appears more than once; rename or drop one.")
    position = {name: index for index, name in enumerate(available)}
    return [position[name] for name in names]


def _frames(batches: Iterable[Any], names: Sequence[str], rows: int) -> Iterator[pd.DataFrame]:
    """Arrow record batches of any size as frames of `rows` rows, and one for the rest."""
    held: list[Any] = []
    count = 0
    for batch in batches:
        held.append(batch.select(list(names)))
        count += batch.num_rows
        if count >= rows:
            table = pa.Table.from_batches(held)
            full = count - count % rows
            yield from (_frame(table.slice(start, rows)) for start in range(0, full, rows))
            held, count = table.slice(full).to_batches(), count - full
    if count:
        yield _frame(pa.Table.from_batches(held))


def _frame(table: Any) -> pd.DataFrame:
    # Each column is taken as it is: frames are read by column, and none is put beside others of its type first.
    options = {"ignore_metadata": True, "date_as_object": False, "split_blocks": True}
    converted = table.to_pandas(types_mapper=_NULLABLE.get, **options)
    return cast(pd.DataFrame, converted)


@contextmanager
def _reading(description: str) -> Iterator[None]:
    try:
        yield
    except FileNotFoundError:
        raise _unreadable(description, "there is no such file") from None
    except (OSError, pa.ArrowException, UnicodeError, LookupError, csv.Error) as error:
        missing = isinstance(error, FileNotFoundError)
        raise _unreadable(description, "there is no such file" if missing else str(error)) from None


def _unreadable(description: str, error: str) -> SourceError:
    # Arrow ends a sentence about a row with the row itself; a message may not quote it.
    cause = re.sub(r"(got \d+):.*", r"\1", error, flags=re.DOTALL).strip().partition("\n")[0].rstrip(".")
    return SourceError(f"{description} cannot be read ({cause}); check the path, the format and the permissions.")
