"""The public shape of a computation of contingency tables: cells, one-hot parts, products, noise.

Everybody computes it alike from public facts, the pinned roster and the options; a party checks its data and its
mail against nothing else.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from typing import Any

from colonnade.errors import BadArguments
from colonnade.federation.facts import PublicFacts
from colonnade.federation.roster import Roster
from colonnade.federation.step import Public
from colonnade.privacy.accounting import calibrate, guarantee
from colonnade.privacy.cost import Cost, Relation, Unbounded, compose
from colonnade.privacy.skellam import LARGEST_MU, Skellam, calibrate_mu
from colonnade.secure.field import Field
from colonnade.statistics.cells import Cells, cells
from colonnade.statistics.circuit import Circuit, Factor
from colonnade.statistics.joint import View, binding, colluders, field_for, reading, whole_numbers

Names = tuple[str, ...]
MAXIMUM_CELLS = 1 << 22
"""Cells of all tables of one job together."""


@dataclass(frozen=True)
class Part:
    """The columns of a table that one party holds, as one joint one-hot row of `shape`."""

    party: str
    columns: Names
    shape: tuple[int, ...]

    @property
    def size(self) -> int:
        return math.prod(self.shape)


@dataclass(frozen=True, kw_only=True)
class Layout:
    """The public shape of a job: tables, cells, noise. `mus` has one entry a table; all zeros means exact counts.

    `bins` gives the number of cells of each numeric column, `memory` the bytes of one share in one round, and `label`
    names the computation within its job: its phases, its mail and its joint releases.
    """

    facts: PublicFacts
    roster: Roster
    tables: tuple[Names, ...]
    bins: Mapping[str, int]
    mus: tuple[int, ...]
    memory: int = 1 << 23
    label: str = "tables"

    @classmethod
    def from_dict(cls, facts: PublicFacts, roster: Roster, plain: Mapping[str, Any]) -> Layout:
        """The layout that a request describes, checked before anything depends on it."""
        with reading("tables"):
            made = cls(
                facts=facts,
                roster=roster,
                tables=tuple(tuple(str(name) for name in names) for names in plain["tables"]),
                bins=dict(plain["bins"]),
                mus=tuple(plain["mus"]),
                memory=plain["memory"],
                label=str(plain["label"]),
            )
        made.check()
        return made

    def to_dict(self) -> dict[str, Any]:
        return {
            "tables": [list(names) for names in self.tables],
            "bins": dict(self.bins),
            "mus": list(self.mus),
            "memory": self.memory,
            "label": self.label,
        }

    def check(self) -> None:
        if not self.tables or len({frozenset(names) for names in self.tables}) != len(self.tables):
            raise BadArguments("name at least one table, and each set of columns once.")
        for names in self.tables:
            if not names or len(set(names)) != len(names):
                raise BadArguments(f"a table names each of its columns once, not {names!r}.")
            if len({self.facts.owner(name) for name in names}) > 3:
                raise BadArguments(f"table {names!r} has columns of more than three parties; leave some out.")
        numbers = (*self.bins.values(), self.memory, *self.mus)
        if not whole_numbers(*numbers):
            raise BadArguments("bins, memory and mus must be whole numbers.")
        if any(not 1 <= one <= MAXIMUM_CELLS for one in self.bins.values()) or not set(self.bins) >= self._numeric:
            raise BadArguments(f"every numeric column needs a number of bins from 1 to {MAXIMUM_CELLS}.")
        if self.memory < 1:
            raise BadArguments(f"memory must be at least 1 byte, not {self.memory!r}.")
        if len(self.mus) != len(self.tables) or not (all(0 < mu <= LARGEST_MU for mu in self.mus) or not any(self.mus)):
            raise BadArguments("mus must give every table noise from 1 to 2^90, or every table 0.")
        if self.size > MAXIMUM_CELLS:
            raise BadArguments(f"the tables have {self.size} cells, above {MAXIMUM_CELLS}; use fewer bins or tables.")

    @property
    def _numeric(self) -> set[str]:
        return {name for names in self.tables for name in names if not self.facts.column(name).discrete}

    @cached_property
    def cells(self) -> dict[str, Cells]:
        """The public cells of each column; an empty cell of a record has none."""
        wanted = dict.fromkeys(name for names in self.tables for name in names)
        return {
            name: cells(replace(self.facts.column(name), missing=False), bins=self.bins.get(name, 1)) for name in wanted
        }

    @cached_property
    def parts(self) -> list[list[Part]]:
        """Each table's parts, the smallest first: the first two of three are the pair that is multiplied first."""
        found = []
        for names in self.tables:
            own: dict[str, list[str]] = {}
            for name in names:
                own.setdefault(self.facts.owner(name), []).append(name)
            made = [
                Part(party, tuple(sorted(mine)), tuple(len(self.cells[name]) for name in sorted(mine)))
                for party, mine in own.items()
            ]
            found.append(sorted(made, key=lambda part: (part.size, part.party)))
        return found

    @cached_property
    def factors(self) -> dict[Part, Factor]:
        """Where each part stands in the rows that its party shares: once, for all tables of several parties."""
        placed: dict[Part, Factor] = {}
        ends: dict[str, int] = {}
        for part in (part for parts in self.parts if len(parts) > 1 for part in parts):
            if part not in placed:
                start = ends.get(part.party, 0)
                ends[part.party] = start + part.size
                placed[part] = Factor(part.party, start, start + part.size)
        return placed

    @cached_property
    def local(self) -> dict[str, list[Part]]:
        """For each party, the tables that lie within it, in their order: it shares their counts, not its rows."""
        found: dict[str, list[Part]] = {}
        for parts in self.parts:
            if len(parts) == 1:
                found.setdefault(parts[0].party, []).append(parts[0])
        return found

    @cached_property
    def circuit(self) -> Circuit:
        """The products that make the tables of several parties, in their order."""
        terms = [tuple(self.factors[part] for part in parts) for parts in self.parts if len(parts) > 1]
        return Circuit(
            terms=tuple(terms),
            local=tuple(self.local),
            n=self.facts.n,
            field=self.field,
            tag=self.tag,
            memory=self.memory,
        )

    @cached_property
    def parties(self) -> tuple[str, ...]:
        """The data parties whose columns take part."""
        owners = {part.party for parts in self.parts for part in parts}
        return tuple(party for party in self.facts.parties if party in owners)

    @cached_property
    def sizes(self) -> list[int]:
        return [math.prod(part.size for part in parts) for parts in self.parts]

    @property
    def size(self) -> int:
        return sum(self.sizes)

    @cached_property
    def field(self) -> Field:
        """Holds every count with all noise: a cell has at most n records."""
        return field_for(self.facts.n, max(self.mus), self.roster)

    @cached_property
    def tag(self) -> str:
        return binding(self.label, self.to_dict())

    def cost(self, public: Public, view: View) -> Cost:
        """All tables that involve a party. Those of the same parties with the same noise are one joint release."""
        groups: dict[tuple[tuple[str, ...], int], int] = {}
        for parts, mu in zip(self.parts, self.mus, strict=True):
            owners = tuple(sorted(part.party for part in parts))
            if public.party in owners:
                groups[owners, mu] = groups.get((owners, mu), 0) + 1
        return compose(
            self._release(mu, colluders(self.roster, view), joint=f"{public.job} {self.label} {owners} {mu}").times(
                count
            )
            for (owners, mu), count in groups.items()
        )

    def releases(self, many: int) -> list[Cost]:
        """Every table against `many` colluders."""
        return [self._release(mu, many) for mu in self.mus]

    def _release(self, mu: int, many: int, joint: str | None = None) -> Cost:
        """One table. A record adds 1 to one cell or to none: a single shift of 1."""
        if not mu:
            return Unbounded("exact-tables", "exact counts of all cells of the tables", joint=joint)
        parties = len(self.roster.names)
        return Skellam(mu, delta_1=1, delta_2=1, parties=parties, colluders=many, shift="single", joint=joint)


@lru_cache(maxsize=64)
def table_noise(
    shares: tuple[float, ...], *, epsilon: float, delta: float, parties: int, colluders: int, relation: Relation
) -> tuple[int, ...]:
    """The mu of each table: inversely as its share of the budget, and all together at most epsilon."""
    if len(set(shares)) == 1:
        stated: dict[str, Any] = {"delta_1": 1, "delta_2": 1, "parties": parties, "colluders": colluders}
        mu = calibrate_mu(epsilon=epsilon, delta=delta, steps=len(shares), relation=relation, shift="single", **stated)
        return (mu,) * len(shares)

    def releases(mus: Sequence[float]) -> list[Cost]:
        return [Skellam(mu, delta_1=1, delta_2=1, parties=parties, colluders=colluders, shift="single") for mu in mus]

    scale = calibrate(
        lambda scale: releases([scale * max(shares) / share for share in shares]),
        epsilon=epsilon,
        delta=delta,
        relation=relation,
        bracket=(1.0, LARGEST_MU * min(shares) / max(shares)),
    )
    while True:
        mus = tuple(math.ceil(scale * max(shares) / share) for share in shares)
        # A grid of losses is monotone but for its step, so whole numbers are accounted again.
        if guarantee(releases(mus), delta=delta, relation=relation).epsilon <= epsilon:
            return mus
        scale += max(1.0, scale / 2**14)
