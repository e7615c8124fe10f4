"""The cohort: the agreed, pseudonymous order of records, who has which of them, and the few patterns that occur.

`join_in_the_clear` lines records up where all keys may be seen in one place: a simulation, or a consortium that has
agreed to it. `statistics/` has the private alignment; both give the same values.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from colonnade.data.keys import check_keys, key_type, read_keys
from colonnade.durable import private_file
from colonnade.errors import CorruptRecord, EmptyParty, KeyProblem, SchemaError, SourceError


class UniformWords(Protocol):
    """What the join needs of a `Randomness`; spelled out here because `privacy` is a later layer."""

    def words(self, count: int) -> NDArray[np.uint64]: ...


@dataclass(frozen=True, eq=False)
class Patterns:
    """The distinct rows of a presence mask.

    `masks` (P x K) are those that occur, in lexicographic order with absent before present; `counts` (P) says how
    many records have each; `index` (n) is the pattern of each record.
    """

    masks: NDArray[np.bool_]
    counts: NDArray[np.int64]
    index: NDArray[np.int32]

    def __len__(self) -> int:
        return len(self.masks)


@dataclass(frozen=True, eq=False)
class Cohort:
    """`presence[i, k]`: has party k a record of cohort row i?"""

    parties: tuple[str, ...]
    presence: NDArray[np.bool_]

    def __post_init__(self) -> None:
        if not self.parties or len(set(self.parties)) < len(self.parties):
            raise SchemaError(f"a cohort needs parties with distinct names, not {self.parties}; rename them.")
        presence = np.array(self.presence)
        if presence.dtype != np.bool_ or presence.ndim != 2 or presence.shape[1] != len(self.parties):
            raise SchemaError(
                f"presence must be a boolean matrix with a column for each of {len(self.parties)} parties, "
                f"not {presence.dtype} of shape {presence.shape}; build it from the alignments."
            )
        object.__setattr__(self, "parties", tuple(self.parties))
        object.__setattr__(self, "presence", _frozen(presence))

    @property
    def n(self) -> int:
        return len(self.presence)

    def complete(self) -> NDArray[np.bool_]:
        """Which records every party has."""
        return np.asarray(self.presence.all(axis=1))

    def patterns(self) -> Patterns:
        return self._patterns

    @cached_property
    def _patterns(self) -> Patterns:
        # Party 0 is the most significant bit, so the order of the bytes is the lexicographic order of the masks.
        packed = np.packbits(self.presence, axis=1)
        if packed.shape[1] <= 8:
            padded = np.zeros((self.n, 8), dtype=np.uint8)
            padded[:, : packed.shape[1]] = packed
            rows: NDArray[Any] = padded.view(">u8")[:, 0].astype(np.uint64)
        else:
            rows = np.ascontiguousarray(packed).view(np.dtype((np.void, packed.shape[1])))[:, 0]
        _, first, index, counts = np.unique(rows, return_index=True, return_inverse=True, return_counts=True)
        return Patterns(
            _frozen(self.presence[first]), _frozen(counts.astype(np.int64)), _frozen(index.astype(np.int32).reshape(-1))
        )


@dataclass(frozen=True, eq=False)
class Alignment:
    """One party's view of the cohort: `rows[i]` is the cohort row of block row i, or -1 if it is not in the cohort."""

    n: int
    rows: NDArray[np.int64]

    def __post_init__(self) -> None:
        rows = np.array(self.rows)
        if rows.ndim != 1 or rows.dtype.kind != "i":
            raise SchemaError("the rows of an alignment are a vector of integers; build it by a join.")
        inside = rows[rows != -1]
        if inside.size and (inside.min() < 0 or inside.max() >= self.n or np.bincount(inside).max() > 1):
            raise SchemaError(f"alignment rows must be distinct and below n = {self.n}, or -1; build it by a join.")
        object.__setattr__(self, "n", int(self.n))
        object.__setattr__(self, "rows", _frozen(rows.astype(np.int64)))

    def save(self, path: str | Path) -> None:
        """One int64 .npy file: n, then the rows. It replaces an older file in one step."""
        target = Path(path)
        draft = target.with_name(f"{target.name}.part")
        with private_file(draft).open("wb") as file:
            np.save(file, np.concatenate([[self.n], self.rows]).astype(np.int64), allow_pickle=False)
            file.flush()
            os.fsync(file.fileno())
        draft.replace(target)

    @classmethod
    def load(cls, path: str | Path) -> Alignment:
        try:
            with Path(path).open("rb") as file:
                stored = np.load(file, allow_pickle=False)
        except OSError as error:
            raise SourceError(f"the alignment {path} cannot be read ({error}); run the alignment again.") from error
        except (ValueError, EOFError) as error:
            raise CorruptRecord(f"{path} is not an alignment ({error}); run the alignment again.") from None
        if not isinstance(stored, np.ndarray) or stored.dtype != np.int64 or stored.ndim != 1 or stored.size == 0:
            raise CorruptRecord(f"{path} is not an alignment; run the alignment again.")
        try:
            return cls(int(stored[0]), stored[1:])
        except SchemaError as error:
            raise CorruptRecord(f"{path} does not hold a valid alignment; run the alignment again.") from error


def join_in_the_clear(
    keys: Mapping[str, Sequence[Any] | NDArray[Any]], *, include: str = "union", randomness: UniformWords
) -> tuple[Cohort, dict[str, Alignment]]:
    """Line up the parties' keys, seen in one place.

    `include="union"` keeps every record; `include="<party>"` keeps that party's. The order of the cohort is a
    uniformly random permutation, so that it says nothing about the keys. Integers and texts are compared as texts.
    """
    parties = tuple(keys)
    if not parties:
        raise SchemaError("a join needs the keys of at least one of the parties; give a mapping from party to keys.")
    if include != "union" and include not in parties:
        raise SchemaError(f"include={include!r} is no party; write 'union' or one of {', '.join(parties)}.")
    checked = {party: _checked(party, values) for party, values in keys.items()}
    if len({key_type(values) for values in checked.values()}) > 1:
        checked = _as_texts(checked)
    # Records get their numbers from the party that decides (all in turn for a union); -1 is not in the cohort.
    deciding = list(checked.values()) if include == "union" else [checked[include]]
    distinct = pd.unique(np.concatenate(deciding))
    records = pd.Index(distinct, dtype=distinct.dtype)
    order = permutation(len(records), randomness)
    presence = np.zeros((len(records), len(parties)), dtype=np.bool_)
    alignments: dict[str, Alignment] = {}
    for column, (party, values) in enumerate(checked.items()):
        places = records.get_indexer(pd.Index(values, dtype=values.dtype))
        rows = np.where(places >= 0, order[places], -1)
        if not np.any(rows >= 0):
            raise EmptyParty(
                f"party {party!r} has no record in the cohort of {include!r}; leave it out, or include more."
            )
        presence[rows[rows >= 0], column] = True
        alignments[party] = Alignment(len(records), rows)
    return Cohort(parties, presence), alignments


def _as_texts(keys: Mapping[str, NDArray[Any]]) -> dict[str, NDArray[Any]]:
    """Integers by their decimal text, as in a private alignment: a CSV file has texts alone."""
    texts = {
        party: np.array([str(key) for key in party_keys.tolist()], dtype=object) for party, party_keys in keys.items()
    }
    integers = {key for party in keys if key_type(keys[party]) == "integers" for key in texts[party]}
    if not any(key in integers for party in keys if key_type(keys[party]) == "text" for key in texts[party]):
        listed = ", ".join(f"{party!r} has {key_type(party_keys)}" for party, party_keys in keys.items())
        raise KeyProblem(
            f"the parties' keys are of different types ({listed}), and no integer is the text of another party's key; "
            "convert them to one, the same way at every party."
        )
    return texts


def _checked(party: str, values: Sequence[Any] | NDArray[Any]) -> NDArray[Any]:
    where = f"party {party!r}"
    if len(values) == 0:
        raise EmptyParty(f"{where} has no records; leave it out of the join, or load its block.")
    keys, missing = read_keys(pd.Series(values), where=where)
    check_keys(keys, missing, where=where)
    return keys


def permutation(n: int, randomness: UniformWords) -> NDArray[np.int64]:
    """A uniformly random permutation: the ranks of n uniform words, all drawn again in case of a tie.

    Given that the words differ, every order of them is equally likely, so the permutation is exactly uniform. A tie
    has probability below n^2 / 2^65.
    """
    while True:
        words = randomness.words(n)
        order = np.argsort(words, kind="stable")
        if n < 2 or not np.any(words[order[1:]] == words[order[:-1]]):
            return order.astype(np.int64)


def _frozen(array: NDArray[Any]) -> NDArray[Any]:
    array = np.array(array)
    array.setflags(write=False)
    return array
