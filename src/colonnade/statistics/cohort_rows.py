"""A party's rows in the order of the cohort, a range of it at a time, from a block in any order and of any size.

Shares travel by ranges of the cohort; the block has an order of its own. If everything is one range, it is put together
in memory. Otherwise an external bucket sort: the block is streamed **once**, each row is appended to the scratch file
of its range, and every range is read from one file. The files are in the party's own folder until the job closes; they
are a cache that is made again if it is lost.
"""

from __future__ import annotations

import hashlib
import shutil
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from colonnade.errors import StorageError
from colonnade.federation.party import Party

MOST_FILES = 256

Rows = Callable[[], Iterable[tuple[NDArray[np.int64], NDArray[Any]]]]
"""Streams (cohort rows, one row of values for each) of the whole block, in any order."""


@dataclass(frozen=True, kw_only=True)
class CohortRows:
    """`ranges` are consecutive (start, stop) of one length, but the last; `label` names the rows within the job.

    `width` and `dtype` are those of a row; a record that the party lacks is `fill` throughout.
    """

    label: str
    ranges: Sequence[tuple[int, int]]
    width: int
    dtype: type[np.integer[Any]]
    fill: int = 0

    def range(self, me: Party, number: int, rows: Rows) -> NDArray[np.integer[Any]]:
        """The rows of one range; `rows` is asked for only if they are not in a file already."""
        start, stop = self.ranges[number]
        out = np.full((stop - start, self.width), self.fill, dtype=self.dtype)
        if len(self.ranges) == 1:
            for at, values in rows():
                out[at] = values
            return out
        folder = me.scratch / hashlib.sha256(self.label.encode()).hexdigest()[:32]
        try:
            if not folder.is_dir():
                self._sort(folder, rows)
            file = self._file(folder, start)
            if file.exists():
                for stored in _read(file, self._record):
                    here = (stored["at"] >= start) & (stored["at"] < stop)
                    out[stored["at"][here] - start] = stored["row"][here]
        except OSError as error:
            raise StorageError(f"sorting rows in {me.scratch} failed ({error}); free disk space.") from error
        return out

    @property
    def _record(self) -> np.dtype[Any]:
        return np.dtype([("at", np.int64), ("row", self.dtype, (self.width,))])

    @property
    def _rows(self) -> int:
        """Cohort rows of one file: a range, or several if there are very many."""
        start, stop = self.ranges[0]
        return (stop - start) * -(-len(self.ranges) // MOST_FILES)

    def _file(self, folder: Path, at: int) -> Path:
        return folder / f"{at // self._rows}.rows"

    def _sort(self, folder: Path, rows: Rows) -> None:
        partial = folder.with_suffix(".partial")
        shutil.rmtree(partial, ignore_errors=True)
        partial.mkdir(parents=True, mode=0o700)
        for at, values in rows():
            stored = np.empty(len(at), dtype=self._record)
            stored["at"], stored["row"] = at, values
            bucket = at // self._rows
            stored = stored[np.argsort(bucket, kind="stable")]
            found, first = np.unique(np.sort(bucket), return_index=True)
            for number, part in zip(found.tolist(), np.split(stored, first[1:]), strict=True):
                with self._file(partial, number * self._rows).open("ab") as file:
                    part.tofile(file)
        partial.rename(folder)


def _read(path: Path, record: np.dtype[Any], rows: int = 1 << 16) -> Iterable[NDArray[Any]]:
    with path.open("rb") as file:
        while len(part := np.fromfile(file, dtype=record, count=rows)):
            yield part
