"""Composite keys: a record that several columns identify together, such as surname, given name and date of birth.

The parts become one text column, joined by the control character U+001F, which no part may contain: so different
parts never give the same key. Whole numbers are written in decimal. A record that lacks a part has no key.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from colonnade.data.cluster import OnCluster
from colonnade.data.keys import read_keys
from colonnade.data.sources import ROWS, Divisible, Source, Typed
from colonnade.errors import KeyProblem

SEPARATOR = "\x1f"


def key_name(key: str | Sequence[str]) -> str:
    """The name of a key column, or of several together."""
    return key if isinstance(key, str) else " + ".join(key)


class CompositeKey:
    """A source with one more column, made of several: the composite key. The parts are no columns of the block."""

    def __init__(self, source: Source, parts: Sequence[str]) -> None:
        if len(parts) < 2 or len(set(parts)) < len(parts):
            raise KeyProblem("a composite key names at least two different columns; write one name otherwise.")
        self._source, self._parts = source, tuple(parts)
        self._name = key_name(parts)

    @property
    def description(self) -> str:
        return self._source.description

    def names(self) -> list[str]:
        there = self._source.names()
        absent = [part for part in self._parts if part not in there]
        if absent:
            raise KeyProblem(f"{self.description} has no key column {absent[0]!r}; it has {', '.join(there)}.")
        return [self._name, *(name for name in there if name not in self._parts)]

    def unfit(self) -> dict[str, str]:
        return self._source.unfit() if isinstance(self._source, Typed) else {}

    def chunks(self, names: Sequence[str], *, rows: int = ROWS) -> Iterator[pd.DataFrame]:
        others = [name for name in names if name != self._name]
        for frame in self._source.chunks([*self._parts, *others], rows=rows):
            whole = frame[others].copy(deep=False)
            whole[self._name] = self._joined(frame)
            yield whole[list(names)]

    def _joined(self, frame: pd.DataFrame) -> NDArray[Any]:
        """The parts as one text; missing (None) if one of them is."""
        texts: list[NDArray[Any]] = []
        complete = np.ones(len(frame), dtype=np.bool_)
        for part in self._parts:
            cells = frame[part].astype(object)
            there = (cells.notna() & (cells != "")).to_numpy(dtype=np.bool_)
            filled = np.full(len(frame), "", dtype=object)
            values, _ = read_keys(frame[part], where=f"key column {part!r}")
            filled[there] = [str(value) for value in values.tolist()]
            if any(SEPARATOR in text for text in filled[there]):
                raise KeyProblem(f"key column {part!r} contains the control character U+001F; remove it.")
            texts.append(filled)
            complete &= there
        joined = np.array([SEPARATOR.join(row) for row in zip(*texts, strict=True)], dtype=object)
        joined[~complete] = None
        return joined


class DivisibleCompositeKey(CompositeKey):
    """The same on a source that can be read in pieces."""

    def pieces(self, rows: int) -> Iterator[tuple[int, Source]]:
        assert isinstance(self._source, Divisible)
        for count, piece in self._source.pieces(rows):
            yield count, CompositeKey(piece, self._parts)


def with_key(source: Source, key: str | Sequence[str]) -> Source:
    """The source as a block reads it: a composite key becomes one column named `key_name(key)`."""
    if isinstance(key, str):
        return source
    if isinstance(source, OnCluster):
        return OnCluster(with_key(source.source, key), source.cluster)
    return DivisibleCompositeKey(source, key) if isinstance(source, Divisible) else CompositeKey(source, key)
