"""Record keys: integers or text, compared as exact values.

None, NaN, NA and the empty text are missing keys. A CSV file has no types, so its keys are text: "007" stays
"007". Blanks at a text's ends do not count: nobody sees them, and with them one person would be two. A message about
keys says how many, never which: a key is a person.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from colonnade.data.cluster import OnCluster
from colonnade.data.sources import ROWS, DerivedSource, Divisible, Source
from colonnade.errors import KeyProblem

_CURE = "convert the keys to integers (int64) or to text, the same way at every party"


def read_keys(values: pd.Series[Any], *, where: str) -> tuple[NDArray[Any], int]:
    """The keys that are there, as int64 or as an object array of str, and the number that are missing."""
    if isinstance(values.dtype, pd.CategoricalDtype):
        values = values.astype(object)
    filled_in = values.dropna()
    missing = len(values) - len(filled_in)
    if pd.api.types.is_integer_dtype(values.dtype):
        return _whole(filled_in.to_numpy(), where), missing
    if pd.api.types.is_float_dtype(values.dtype) and missing:  # pandas stores integers with gaps as floats
        numbers = filled_in.to_numpy(dtype=np.float64)
        if np.all((numbers == np.rint(numbers)) & (np.abs(numbers) < 2**53)):
            return _whole(numbers.astype(np.int64), where), missing
    cells = filled_in.to_numpy(dtype=object)
    kind = pd.api.types.infer_dtype(cells, skipna=False)
    if kind in ("string", "empty"):
        trimmed = np.array([text.strip() for text in cells], dtype=object)
        filled = trimmed[trimmed != ""]
        return filled, missing + len(cells) - len(filled)
    if kind == "integer":
        return _whole(cells, where), missing
    fault = "mix several types" if kind.startswith("mixed") else "are neither integers nor text"
    raise KeyProblem(f"{where}: the keys {fault}; {_CURE}.")


def join_keys(parts: Sequence[NDArray[Any]], *, where: str) -> NDArray[Any]:
    """The keys of consecutive chunks as one array that cannot be written to."""
    filled = [part for part in parts if part.size]
    if len({key_type(part) for part in filled}) > 1:
        raise KeyProblem(f"{where}: some keys are integers and some are text; {_CURE}.")
    keys = np.concatenate(filled) if filled else np.array([], dtype=object)
    keys.setflags(write=False)
    return keys


def check_keys(keys: NDArray[Any], missing: int, *, where: str) -> None:
    """No record without a key, no key twice."""
    if missing:
        raise KeyProblem(f"{where}: {missing} record(s) have no key; fill the keys in, or drop these records.")
    repeated = int(pd.Index(keys, dtype=keys.dtype).duplicated().sum())
    if repeated:
        raise KeyProblem(
            f"{where}: {repeated} record(s) repeat the key of an earlier one; keep one record for each key, or say for"
            ' every column how a person\'s rows become one, such as `one_row = "mean"` in columns.toml.'
        )


def no_key(where: str, key: str, names: Sequence[str]) -> KeyProblem:
    """Names in quotes, since blanks at the end of a name are seen in no other way."""
    return KeyProblem(f"{where} has no key column {key!r}; it has {', '.join(map(repr, names)) or 'no column at all'}.")


def key_type(keys: NDArray[Any]) -> str:
    return "integers" if keys.dtype.kind == "i" else "text"


def _whole(cells: NDArray[Any], where: str) -> NDArray[np.int64]:
    if cells.size and not -(2**63) <= int(cells.min()) <= int(cells.max()) < 2**63:
        raise KeyProblem(f"{where}: a key does not fit into 64 bits; convert the keys to text at every party.")
    return cells.astype(np.int64)


# --- composite keys: a record that several columns identify together, such as surname, given name and birthday
#
# The parts become one text column, joined by the control character U+001F, which no part may contain: so different
# parts never give the same key. Integers are written in decimal. A record that lacks a part has no key.


SEPARATOR = "\x1f"


def key_name(key: str | Sequence[str]) -> str:
    """The name of a key column, or of several together."""
    return key if isinstance(key, str) else " + ".join(key)


class CompositeKey(DerivedSource):
    """A source with one more column, made of several: the composite key. The parts are no columns of the block."""

    def __init__(self, source: Source, parts: Sequence[str]) -> None:
        if len(parts) < 2 or len(set(parts)) < len(parts):
            raise KeyProblem("a composite key names at least two different columns; write one name otherwise.")
        super().__init__(source)
        self._parts = tuple(parts)
        self._name = key_name(parts)

    def names(self) -> list[str]:
        available = self.source.names()
        absent = [part for part in self._parts if part not in available]
        if absent:
            raise no_key(self.description, absent[0], available)
        return [self._name, *(name for name in available if name not in self._parts)]

    def chunks(self, names: Sequence[str], *, rows: int = ROWS) -> Iterator[pd.DataFrame]:
        others = [name for name in names if name != self._name]
        for frame in self.source.chunks([*self._parts, *others], rows=rows):
            keyed = frame[others].copy(deep=False)
            keyed[self._name] = self._joined(frame)
            yield keyed[list(names)]

    def _joined(self, frame: pd.DataFrame) -> NDArray[Any]:
        """The parts as one text; missing (None) if one of them is."""
        texts: list[NDArray[Any]] = []
        complete = np.ones(len(frame), dtype=np.bool_)
        for part in self._parts:
            cells = frame[part].astype(object)
            blank = np.array([isinstance(cell, str) and not cell.strip() for cell in cells], dtype=np.bool_)
            filled_in = cells.notna().to_numpy(dtype=np.bool_) & ~blank
            filled = np.full(len(frame), "", dtype=object)
            values, _ = read_keys(frame[part], where=f"key column {part!r}")
            filled[filled_in] = [str(value) for value in values.tolist()]
            if any(SEPARATOR in text for text in filled[filled_in]):
                raise KeyProblem(f"key column {part!r} contains the control character U+001F; remove it.")
            texts.append(filled)
            complete &= filled_in
        joined = np.array([SEPARATOR.join(row) for row in zip(*texts, strict=True)], dtype=object)
        joined[~complete] = None
        return joined


class DivisibleCompositeKey(CompositeKey):
    """The same on a source that can be read in pieces."""

    def pieces(self, rows: int) -> Iterator[tuple[int, Source]]:
        assert isinstance(self.source, Divisible)
        for count, piece in self.source.pieces(rows):
            yield count, CompositeKey(piece, self._parts)


def with_key(source: Source, key: str | Sequence[str]) -> Source:
    """The source as a block reads it: a composite key becomes one column named `key_name(key)`."""
    if isinstance(key, str):
        return source
    if isinstance(source, OnCluster):
        return OnCluster(with_key(source.source, key), source.cluster)
    return DivisibleCompositeKey(source, key) if isinstance(source, Divisible) else CompositeKey(source, key)
