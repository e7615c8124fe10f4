"""The public shape of one round of tables: what is opened, with how much noise, and what it costs.

Everybody computes it alike from public facts, the pinned roster and the request; a party checks its data and its mail
against nothing else.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from colonnade.errors import BadArguments
from colonnade.federation.facts import PublicFacts
from colonnade.federation.roster import Roster
from colonnade.privacy.cost import Cost, Unbounded
from colonnade.privacy.skellam import Skellam
from colonnade.secure.field import Field
from colonnade.statistics.joint import View, binding, colluders, field_for
from colonnade.synthesis.mrf.encoders import Schema, Wanted
from colonnade.synthesis.mrf.graph import Names

LABEL = "sqm tables"
MAXIMUM_OPENED = 1 << 23
"""Cells that one round opens, each unit counted."""
EXACT_SD = 0.5
"""Weight of an exact count in a fit: far below any noise."""


@dataclass(frozen=True, kw_only=True)
class Round:
    """The public shape of one opening: its tables, and the mu of each cell (0: exact)."""

    schema: Schema
    roster: Roster
    number: int
    wanted: tuple[Wanted, ...]
    mu: int
    largest_mu: int

    @classmethod
    def from_dict(cls, facts: PublicFacts, roster: Roster, plain: Mapping[str, Any]) -> Round:
        try:
            made = cls(
                schema=Schema.from_dict(facts, plain["schema"]),
                roster=roster,
                number=plain["number"],
                wanted=tuple(
                    Wanted(
                        tuple(str(name) for name in one["columns"]),
                        tuple(None if bins is None else tuple(int(at) for at in bins) for bins in one["bins"]),
                        one["units"],
                    )
                    for one in plain["wanted"]
                ),
                mu=plain["mu"],
                largest_mu=plain["largest_mu"],
            )
        except (KeyError, TypeError, ValueError) as error:
            raise BadArguments(f"a round of tables cannot be read ({error}).") from error
        made.check()
        return made

    def to_dict(self) -> dict[str, Any]:
        return {
            "schema": self.schema.to_dict(),
            "number": self.number,
            "wanted": [
                {
                    "columns": list(one.columns),
                    "bins": [None if bins is None else list(bins) for bins in one.bins],
                    "units": one.units,
                }
                for one in self.wanted
            ],
            "mu": self.mu,
            "largest_mu": self.largest_mu,
        }

    def check(self) -> None:
        numbers = (self.number, self.mu, self.largest_mu, *(one.units for one in self.wanted))
        if any(isinstance(one, bool) or not isinstance(one, int) or one < 0 for one in numbers):
            raise BadArguments("the numbers of a round of tables must be whole and not negative.")
        if self.mu > self.largest_mu or not self.wanted or any(one.units < 1 for one in self.wanted):
            raise BadArguments("a round opens at least one table, each at least once, with mu up to the largest.")
        for one in self.wanted:
            if not 1 <= len(set(one.columns)) == len(one.columns) == len(one.bins) <= 3:
                raise BadArguments("a table has one to three columns, each once, and bins for each.")
            for name, bins in zip(one.columns, one.bins, strict=True):
                if name not in self.schema.sizes:
                    raise BadArguments(f"column {name!r} is not in the schema of this job.")
                if bins is not None and (
                    len(bins) != self.schema.sizes[name] or set(bins) != set(range(max(bins) + 1))
                ):
                    raise BadArguments(f"the bins of {name!r} must give each of its cells one of 0, 1, 2, ...")
            if len(one.columns) == 3 and (self.joint_pair(one) is None or any(bins is not None for bins in one.bins)):
                raise BadArguments("a table of three columns has two of them at one party, and no bins.")
        if sum(self.opened) > MAXIMUM_OPENED:
            raise BadArguments(f"a round opens at most {MAXIMUM_OPENED:,} counts; ask for coarser tables.")

    def shape(self, one: Wanted) -> tuple[int, ...]:
        sizes = self.schema.sizes
        return tuple(
            sizes[name] if bins is None else max(bins) + 1 for name, bins in zip(one.columns, one.bins, strict=True)
        )

    @cached_property
    def opened(self) -> list[int]:
        """Counts opened for each table, units included."""
        return [math.prod(self.shape(one)) * one.units for one in self.wanted]

    @property
    def units(self) -> int:
        return sum(one.units for one in self.wanted)

    def joint_pair(self, one: Wanted) -> Names | None:
        """Of a table of three columns: two that one party has, which it shares as one joint one-hot row."""
        return self.schema.joint_pair(one.columns)

    def axes(self, one: Wanted) -> Names:
        """The order in which a table's axes are opened: of three columns, the joint pair last."""
        pair = self.joint_pair(one) if len(one.columns) == 3 else None
        return one.columns if pair is None else (*(name for name in one.columns if name not in pair), *pair)

    @cached_property
    def joints(self) -> list[Names]:
        """The joint one-hot rows that this round needs, each once."""
        found = (self.joint_pair(one) for one in self.wanted if len(one.columns) == 3)
        return list(dict.fromkeys(pair for pair in found if pair is not None))

    @cached_property
    def field(self) -> Field:
        """One field for the rows of all rounds: it holds n and the largest noise."""
        return field_for(self.schema.facts.n, self.largest_mu, self.roster)

    @cached_property
    def rows_tag(self) -> str:
        return binding(f"{LABEL} rows", {"schema": self.schema.to_dict(), "largest_mu": self.largest_mu})

    @cached_property
    def tag(self) -> str:
        return binding(f"{LABEL} {self.number}", self.to_dict())


def unit_cost(mu: int, roster: Roster, view: View, *, joint: str | None = None, many: int | None = None) -> Cost:
    """One unit: one table opened once. A record adds 1 to one cell or to none."""
    if not mu:
        return Unbounded("exact-tables", "exact counts of all cells of the tables", joint=joint)
    silent = colluders(roster, view) if many is None else many
    return Skellam(mu, delta_1=1, delta_2=1, parties=len(roster.names), colluders=silent, shift="single", joint=joint)
