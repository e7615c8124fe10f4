"""What anyone may know: who has which columns with which domains, and the size of the cohort.

Costs, plans and message sizes are functions of these facts and of the arguments, never of data.
"""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

from colonnade.codec import nearest
from colonnade.data.column import Column, Columns
from colonnade.durable import canonical
from colonnade.errors import ColumnConflict, SchemaError, UnknownColumn


@dataclass(frozen=True, kw_only=True)
class PublicFacts:
    """`n` records in the cohort, and each data party's columns."""

    n: int
    columns: Mapping[str, Columns]

    def __post_init__(self) -> None:
        if self.n < 1:
            raise SchemaError("the cohort has no records; check that the parties' keys overlap.")
        owners: dict[str, str] = {}
        for party, columns in self.columns.items():
            for name in columns:
                if name in owners:
                    raise ColumnConflict(
                        f"column {name!r} is claimed by {owners[name]!r} and by {party!r}; rename it at one of them or"
                        " leave it out."
                    )
                owners[name] = party

    @property
    def parties(self) -> tuple[str, ...]:
        return tuple(self.columns)

    def owner(self, column: str) -> str:
        """The party that holds `column`."""
        for party, columns in self.columns.items():
            if column in columns:
                return party
        known = [name for columns in self.columns.values() for name in columns]
        comma = " Put a name with a comma in double quotes." if any("," in name for name in known) else ""
        meant = nearest(column, known) or f" The columns are {', '.join(map(repr, known))}."
        raise UnknownColumn(f"no party has a column {column!r}.{meant}{comma}")

    def column(self, name: str) -> Column:
        return self.columns[self.owner(name)][name]

    def wanted(self, names: Collection[str] | None = None) -> dict[str, dict[str, Column]]:
        """The named columns (all by default), party by party; a party that has none of them is left out."""
        for name in names or ():
            self.owner(name)
        own = {
            party: {name: column for name, column in columns.items() if names is None or name in names}
            for party, columns in self.columns.items()
        }
        return {party: columns for party, columns in own.items() if columns}

    def confirmed(self) -> None:
        """Refuse drafts: a bound that was read off the data is not public."""
        for columns in self.columns.values():
            columns.confirmed()

    def to_dict(self) -> dict[str, Any]:
        return {"n": self.n, "columns": {party: columns.to_dict() for party, columns in self.columns.items()}}

    @classmethod
    def from_dict(cls, plain: Mapping[str, Any]) -> PublicFacts:
        columns = {party: Columns.from_dict(listed) for party, listed in plain["columns"].items()}
        return cls(n=int(plain["n"]), columns=columns)

    @functools.cached_property
    def fingerprint(self) -> str:
        return hashlib.sha256(canonical(self.to_dict()).encode()).hexdigest()
