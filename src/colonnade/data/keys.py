"""Record keys: whole numbers or text, compared as exact values.

None, NaN, NA and the empty text are missing keys. A CSV file has no types, so its keys are text: "007" stays
"007". A message about keys says how many, never which: a key is a person.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from colonnade.errors import KeyProblem

_CURE = "convert the keys to whole numbers (int64) or to text, the same way at every party"


def read_keys(values: pd.Series[Any], *, where: str) -> tuple[NDArray[Any], int]:
    """The keys that are there, as int64 or as an object array of str, and the number that are missing."""
    if isinstance(values.dtype, pd.CategoricalDtype):
        values = values.astype(object)
    there = values.dropna()
    missing = len(values) - len(there)
    if pd.api.types.is_integer_dtype(values.dtype):
        return _whole(there.to_numpy(), where), missing
    cells = there.to_numpy(dtype=object)
    found = pd.api.types.infer_dtype(cells, skipna=False)
    if found in ("string", "empty"):
        filled = cells[cells != ""]
        return filled, missing + len(cells) - len(filled)
    if found == "integer":
        return _whole(cells, where), missing
    fault = "mix several types" if found.startswith("mixed") else "are neither whole numbers nor text"
    raise KeyProblem(f"{where}: the keys {fault}; {_CURE}.")


def join_keys(parts: Sequence[NDArray[Any]], *, where: str) -> NDArray[Any]:
    """The keys of consecutive chunks as one array that cannot be written to."""
    filled = [part for part in parts if part.size]
    if len({key_type(part) for part in filled}) > 1:
        raise KeyProblem(f"{where}: some keys are whole numbers and some are text; {_CURE}.")
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
            f"{where}: {repeated} record(s) repeat the key of an earlier one; keep one record for each key."
        )


def key_type(keys: NDArray[Any]) -> str:
    return "whole numbers" if keys.dtype.kind == "i" else "text"


def _whole(cells: NDArray[Any], where: str) -> NDArray[np.int64]:
    if cells.size and not -(2**63) <= int(cells.min()) <= int(cells.max()) < 2**63:
        raise KeyProblem(f"{where}: a key does not fit into 64 bits; convert the keys to text at every party.")
    return cells.astype(np.int64)
