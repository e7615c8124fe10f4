"""Contingency tables over the columns of several parties: one secure computation, noise once, no trusted party.

A record is a one-hot row at each party, and a table is a sum over records of products of such rows. What lies within
one party is combined there: a table within a party is a sum, a table of two parties has degree 2 however many columns
it has, and a table of three parties has degree 3. The last kind costs one more round and, for each record, the
product of its two smaller sides in shares. Rows travel in chunks, so memory does not grow with n.

One-hot rows are whole numbers already: gamma is 1, nothing is rounded. A record whose block or cell is missing is a
row of zeros: it counts in no table that involves it, and nobody learns that it is missing. The proofs are in
`contingency.claim.md`.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from typing import TYPE_CHECKING, Any, ClassVar, Self

import numpy as np
from numpy.typing import NDArray

from colonnade.errors import BadArguments, BadPrivacyParameter, UnsafeRequest
from colonnade.federation.facts import PublicFacts
from colonnade.federation.job import Job
from colonnade.federation.party import Party
from colonnade.federation.plan import Phase, Plan, phase
from colonnade.federation.roster import Roster
from colonnade.federation.run_folder import RunFolder
from colonnade.federation.step import Public, Release, step
from colonnade.privacy.accounting import calibrate, check_delta, check_epsilon, guarantee
from colonnade.privacy.cost import Cost, Free, Relation, Unbounded, compose
from colonnade.privacy.skellam import LARGEST_MU, Skellam, calibrate_mu
from colonnade.secure.bgw import Product, cross, lift, multiply, open_product
from colonnade.secure.field import Field, Residues
from colonnade.statistics.cells import Cells, cells
from colonnade.statistics.joint import (
    View,
    account_notes,
    binding,
    colluders,
    deal,
    deal_drawn,
    dealt,
    field_for,
    join,
    noise_part,
    once,
    reduce_degree,
    reduced,
)

if TYPE_CHECKING:
    from colonnade.federation.coordinator import Federation

Names = tuple[str, ...]
MAXIMUM_CELLS = 1 << 22
"""Cells of all tables of one job together."""


# --- what everybody computes alike from public facts ------------------------------------------------------


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
    memory: int = 1 << 25
    label: str = "tables"

    @classmethod
    def from_dict(cls, facts: PublicFacts, roster: Roster, plain: Mapping[str, Any]) -> Layout:
        """The layout that a request describes, checked before anything depends on it."""
        try:
            made = cls(
                facts=facts,
                roster=roster,
                tables=tuple(tuple(str(name) for name in names) for names in plain["tables"]),
                bins=dict(plain["bins"]),
                mus=tuple(plain["mus"]),
                memory=plain["memory"],
                label=str(plain["label"]),
            )
        except (KeyError, TypeError, ValueError) as error:
            raise BadArguments(f"the layout of a tables request cannot be read ({error}).") from error
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
        if any(isinstance(one, bool) or not isinstance(one, int) for one in numbers):
            raise BadArguments("bins, memory and mus must be whole numbers.")
        if self.memory < 1 or any(one < 1 for one in self.bins.values()) or not set(self.bins) >= self._numeric:
            raise BadArguments("every numeric column needs a number of bins of at least 1, and memory at least 1 byte.")
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
    def shared(self) -> dict[str, dict[Part, slice]]:
        """For each party, where each of its one-hot parts stands in the rows that it shares: once, for all tables."""
        placed: dict[str, dict[Part, slice]] = {}
        for parts in self.parts:
            for part in parts if len(parts) > 1 else ():
                mine = placed.setdefault(part.party, {})
                start = max((where.stop for where in mine.values()), default=0)
                mine.setdefault(part, slice(start, start + part.size))
        return placed

    @cached_property
    def local(self) -> dict[str, list[Part]]:
        """For each party, the tables that lie within it, in their order: of these it shares the counts, not the rows."""
        found: dict[str, list[Part]] = {}
        for parts in self.parts:
            if len(parts) == 1:
                found.setdefault(parts[0].party, []).append(parts[0])
        return found

    @cached_property
    def pairs(self) -> list[tuple[Part, Part]]:
        """The products that tables of three parties need first, each once."""
        return list(dict.fromkeys((parts[0], parts[1]) for parts in self.parts if len(parts) == 3))

    @property
    def parties(self) -> tuple[str, ...]:
        """The data parties whose columns take part."""
        return tuple(party for party in self.facts.parties if party in self.shared or party in self.local)

    def width(self, party: str) -> int:
        """Columns of the rows that a party shares."""
        return max((where.stop for where in self.shared.get(party, {}).values()), default=0)

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

    @property
    def row_bytes(self) -> int:
        """Bytes of one record in the largest message: one party's rows, or all pairs."""
        pairs = sum(first.size * second.size for first, second in self.pairs)
        return 4 * len(self.field.primes) * max(pairs, 1, *(self.width(party) for party in self.parties))

    @cached_property
    def chunks(self) -> list[tuple[int, int]]:
        """The cohort's rows in chunks whose shares fit `memory`; one empty chunk if only counts are shared."""
        if not self.shared:
            return [(0, 0)]
        rows = max(1, self.memory // self.row_bytes)
        return [(start, min(start + rows, self.facts.n)) for start in range(0, self.facts.n, rows)]

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


# --- the coordinator's procedure --------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Contingency:
    """Noisy contingency tables.

    Parameters
    ----------
    tables : tuples of column names, for example [("age",), ("age", "sector")]: of any number of columns, and of at
        most three parties each.
    bins : cells of a numeric column, for all or as {column: number}; discrete columns have one for each category.
    epsilon, delta : a person's total over all tables. `epsilon=None` counts exactly, which is an unbounded release
        that every party must allow by name ("exact-tables").
    split : each table's share of the budget, in proportion: a table with twice the share has half the noise variance.
        Equal by default.
    view, relation : what the noise is calibrated for; see `docs/threat-model.md`.
    memory : bytes of one share in one round; less memory, more rounds.
    """

    name: ClassVar[str] = "contingency"

    tables: tuple[Names, ...]
    bins: int | Mapping[str, int] = 10
    epsilon: float | None = 1.0
    delta: float = 1e-6
    split: tuple[float, ...] | None = None
    view: View = "client"
    relation: Relation = "zero-out"
    memory: int = 1 << 25

    def __post_init__(self) -> None:
        if any(isinstance(names, str) for names in self.tables):
            raise BadArguments("each table is a tuple of column names; write ('age',) for a table of one column.")
        object.__setattr__(self, "tables", tuple(tuple(names) for names in self.tables))
        if self.epsilon is not None:
            check_epsilon(self.epsilon)
            if check_delta(self.delta) == 0:
                raise BadPrivacyParameter("Skellam noise has no pure bound; choose a delta above 0, below 1/n.")
        if self.view not in ("client", "server"):
            raise BadArguments(f"view must be 'client' or 'server', not {self.view!r}.")
        if self.split is not None:
            object.__setattr__(self, "split", tuple(float(one) for one in self.split))
            if len(self.split) != len(self.tables) or not all(0 < one < math.inf for one in self.split):
                raise BadPrivacyParameter(f"split must give each table a positive share, not {self.split!r}.")

    def options(self) -> dict[str, Any]:
        return {
            "tables": [list(names) for names in self.tables],
            "bins": dict(self.bins) if isinstance(self.bins, Mapping) else self.bins,
            "epsilon": self.epsilon,
            "delta": self.delta,
            "split": None if self.split is None else list(self.split),
            "view": self.view,
            "relation": self.relation,
            "memory": self.memory,
        }

    @classmethod
    def from_options(cls, options: Mapping[str, Any]) -> Self:
        return cls(**options)

    def fit(self, federation: Federation) -> Tables:
        return federation.run(self)[0]  # type: ignore[no-any-return]

    def layout(self, facts: PublicFacts, roster: Roster) -> Layout:
        """The public shape, with the noise that (epsilon, delta) needs."""
        roster.require_committee()
        numeric = dict.fromkeys(name for names in self.tables for name in names if not facts.column(name).discrete)
        absent = [name for name in numeric if isinstance(self.bins, Mapping) and name not in self.bins]
        if absent:
            raise BadArguments(f"bins does not say how many cells {', '.join(absent)} should have.")
        bins = {name: self.bins[name] if isinstance(self.bins, Mapping) else self.bins for name in numeric}
        mus: tuple[int, ...] = (0,) * len(self.tables)
        silent = Layout(facts=facts, roster=roster, tables=self.tables, bins=bins, mus=mus, memory=self.memory)
        silent.check()
        if self.epsilon is None:
            return silent
        mus = table_noise(
            self.split or (1.0,) * len(self.tables),
            epsilon=self.epsilon,
            delta=self.delta,
            parties=len(roster.names),
            colluders=colluders(roster, self.view),
            relation=self.relation,
        )
        return replace(silent, mus=mus)

    def plan(self, facts: PublicFacts, roster: Roster) -> Plan:
        layout = self.layout(facts, roster)
        return Plan(
            method=self.name,
            options=self.options(),
            phases=tuple(table_phases(layout, self.view)),
            notes=table_notes(layout, self.view, self.delta),
            delta=self.delta,
        )

    def execute(self, job: Job) -> Tables:
        return compute_tables(job, self.layout(job.facts, job.roster), self.view)


def table_phases(layout: Layout, view: View) -> list[Phase]:
    """The phases of one computation of tables; other methods put them into their own plans."""
    here: dict[str, Any] = {"facts": layout.facts, "roster": layout.roster}
    arguments = {"layout": layout.to_dict(), "view": view}
    numbered = [{**arguments, "number": number} for number in range(len(layout.chunks))]
    holders, primes = len(layout.roster.committee), len(layout.field.primes)
    rows = max(stop - start for start, stop in layout.chunks)
    opened = 4 * primes * layout.size
    phases = [
        phase(
            f"{layout.label}: share rows",
            share_rows,
            dict.fromkeys(layout.roster.names, numbered),
            audience="share holders (sealed; any t of them learn nothing)",
            discloses="secret shares of one-hot rows, of counts and of noise",
            reply_bytes=holders * (rows * layout.row_bytes + 2 * opened),
            **here,
        )
    ]
    if layout.pairs:
        phases.append(
            phase(
                f"{layout.label}: reduce",
                reshare_pairs,
                dict.fromkeys(layout.roster.committee, numbered),
                audience="share holders (sealed; any t of them learn nothing)",
                discloses="secret shares of products of two parties' one-hot rows",
                reply_bytes=holders * rows * layout.row_bytes,
                **here,
            )
        )
    phases.append(
        phase(
            f"{layout.label}: open",
            open_tables,
            dict.fromkeys(layout.roster.committee, [arguments]),
            discloses="shares of the noisy counts, which the coordinator joins",
            reply_bytes=opened,
            **here,
        )
    )
    return phases


def table_notes(layout: Layout, view: View, delta: float) -> tuple[str, ...]:
    """The forecast of a plan: noise, account, bytes."""
    shares = 4 * len(layout.field.primes) * layout.facts.n
    sent = ", ".join(f"{party} {shares * layout.width(party):,}" for party in layout.shared)
    size = [f"Bytes of one-hot rows that each holder receives: {sent}."] if sent else []
    if layout.pairs:
        pairs = sum(first.size * second.size for first, second in layout.pairs)
        size.append(f"Tables of three parties: each holder sends {shares * pairs:,} bytes to each other one.")
    if not any(layout.mus):
        return ("Exact: no noise is added, and no privacy is claimed for the result.", *size)
    noise = [
        f"A cell of the table of {' x '.join(names)} carries noise with standard deviation {math.sqrt(2 * mu):.4g}."
        for names, mu in zip(layout.tables, layout.mus, strict=True)
    ]
    if len(set(layout.mus)) == 1:
        noise = [f"Each cell carries integer noise with standard deviation {math.sqrt(2 * layout.mus[0]):.4g}."]
    return (*noise, *account_notes(layout.roster, view=view, delta=delta, releases=layout.releases), *size)


def compute_tables(job: Job, layout: Layout, view: View) -> Tables:
    """Share the rows chunk by chunk, multiply, open everything once, join."""
    arguments: dict[str, Any] = {"layout": layout.to_dict(), "view": view}
    for number in range(len(layout.chunks)):
        job.ask(share_rows, phase=f"{layout.label}: share rows", number=number, **arguments)
        if layout.pairs:
            job.ask(reshare_pairs, phase=f"{layout.label}: reduce", number=number, **arguments)
    shares = job.ask(open_tables, phase=f"{layout.label}: open", **arguments)
    joined = join(shares, layout.field, layout.roster).astype(np.float64)
    ends = list(itertools.accumulate(layout.sizes))
    counts = {}
    for names, parts, end, size in zip(layout.tables, layout.parts, ends, layout.sizes, strict=True):
        order = [name for part in parts for name in part.columns]
        shape = [length for part in parts for length in part.shape]
        counts[names] = joined[end - size : end].reshape(shape).transpose([order.index(name) for name in names])
    return Tables(
        n=layout.facts.n,
        counts=counts,
        labels={name: one.labels for name, one in layout.cells.items()},
        noise_sd={names: math.sqrt(2 * mu) for names, mu in zip(layout.tables, layout.mus, strict=True)},
        simulated=job.simulated,
    )


@dataclass(frozen=True, kw_only=True)
class Tables:
    """Counts by table, axes in the order in which its columns were named, cells as in `labels`.

    `noise_sd` is the standard deviation of the noise on one cell (0 if exact); all noises are independent, so tables
    that share columns do not agree exactly, and a count may be negative.
    """

    n: int
    counts: Mapping[Names, NDArray[np.float64]]
    labels: Mapping[str, tuple[str, ...]]
    noise_sd: Mapping[Names, float]
    simulated: bool

    def __getitem__(self, names: Names) -> NDArray[np.float64]:
        return self.counts[names]

    def write(self, run: RunFolder) -> None:
        run.write_json(
            "result.json",
            {
                "kind": "tables",
                "n": self.n,
                "labels": {name: list(labels) for name, labels in self.labels.items()},
                "tables": [
                    {"columns": list(names), "counts": counts.tolist(), "noise_sd": self.noise_sd[names]}
                    for names, counts in self.counts.items()
                ],
                "simulated": self.simulated,
            },
        )


# --- the members' steps -----------------------------------------------------------------------------------


def _layout(public: Public | Party, plain: Mapping[str, Any]) -> Layout:
    return Layout.from_dict(public.facts, public.roster, plain)


def _share_cost(public: Public, *, layout: dict[str, Any], view: View, number: int) -> Cost:
    """The first chunk pays for everything: a holder opens nothing unless it has all chunks of every party."""
    known = _layout(public, layout)
    if public.party not in known.parties:
        return Free("this member shares noise, and no data")
    if number:
        return Free("more secret shares for a joint release that the first chunk has debited")
    return known.cost(public, view)


@step(cost=_share_cost)
def share_rows(me: Party, *, layout: dict[str, Any], view: View, number: int) -> Release:
    """Share one chunk of one-hot rows; with the first also the counts of tables of one's own, and the noise.

    A holder puts what it was dealt for the chunk before away.
    """
    known = _layout(me, layout)
    start, stop = _chunk(known, number)
    if number == 0:
        if me.name in known.parties:
            codes = {
                part: _codes(me, known, part)
                for part in {*known.local.get(me.name, ()), *known.shared.get(me.name, ())}
            }
            me.keep(f"{known.tag}: codes", [codes[part] for part in known.shared.get(me.name, ())])
            if me.name in known.local:
                counts = [_counts(codes[part], part.size) for part in known.local[me.name]]
                deal(me, f"{known.tag}: counts", known.field, np.concatenate(counts))
        mus = zip(known.mus, known.sizes, strict=True)
        groups = [(mu, sum(size for _, size in same)) for mu, same in itertools.groupby(mus, key=lambda one: one[0])]
        noise = np.concatenate([noise_part(me, mu=mu, size=size) for mu, size in groups])
        deal_drawn(me, f"{known.tag}: noise", known.field, noise)
    elif me.name in me.roster.committee:
        _put_away(me, known, number - 1)
    if me.name in known.shared:
        one_hot = np.zeros((stop - start, known.width(me.name)), dtype=np.int8)
        kept = me.recall(f"{known.tag}: codes")
        for where, whole in zip(known.shared[me.name].values(), kept, strict=True):
            code = whole[start:stop]
            rows = np.flatnonzero(code >= 0)
            one_hot[rows, where.start + code[rows]] = 1
        deal(me, f"{known.tag}: rows {number}", known.field, one_hot.astype(np.int64))
    return Release(None, "nothing: the shares travel sealed")


def _codes(me: Party, known: Layout, part: Part) -> NDArray[np.int32]:
    """Each record's cell in a part, over the whole cohort; -1 where the block or one of the cells is missing."""
    found = np.full(me.facts.n, -1, dtype=np.int32)
    for at, values in me.chunks(part.columns):
        each = [_cell(known.cells[name], values[name]) for name in part.columns]
        joint = np.ravel_multi_index([np.maximum(one, 0) for one in each], part.shape)
        found[at] = np.where(np.all([one >= 0 for one in each], axis=0), joint, -1)
    return found


def _cell(public: Cells, encoded: NDArray[Any]) -> NDArray[np.int64]:
    if public.edges is None:
        return encoded.astype(np.int64)
    index = np.searchsorted(public.edges[1:-1], encoded, side="right")
    return np.where(np.isnan(encoded), -1, index).astype(np.int64)


def _counts(codes: NDArray[np.int32], size: int) -> NDArray[np.int64]:
    return np.bincount(codes[codes >= 0], minlength=size).astype(np.int64)


def _reduce_cost(public: Public, *, layout: dict[str, Any], view: View, number: int) -> Cost:
    return Free("secret shares of products; any t holders learn nothing")


@step(cost=_reduce_cost)
def reshare_pairs(me: Party, *, layout: dict[str, Any], view: View, number: int) -> Release:
    """Products of two parties' one-hot rows, dealt again to return to degree t."""
    known = _layout(me, layout)
    _chunk(known, number)
    rows = _rows(me, known, number)
    me.keep(f"{known.tag}: dealt {number}", rows)
    for position, (first, second) in enumerate(known.pairs):
        left, right = _columns(known, rows, first), _columns(known, rows, second)
        product = multiply(known.field, left[:, :, :, None], right[:, :, None, :])
        reduce_degree(me, f"{known.tag}: pair {position} {number}", product)
    return Release(None, "nothing: the shares travel sealed")


def _open_cost(public: Public, *, layout: dict[str, Any], view: View) -> Cost:
    return Free("a share of a joint release that the data parties have debited")


@step(cost=_open_cost)
def open_tables(me: Party, *, layout: dict[str, Any], view: View) -> Release:
    """This holder's share of all tables: products of its shares, summed over the chunks, plus every member's noise."""
    known = _layout(me, layout)
    once(me, known.label)
    noise = dealt(me, f"{known.tag}: noise", me.roster.names, known.field)
    totals = _local_tables(me, known)
    for number in range(len(known.chunks)):
        rows, pairs = _rows(me, known, number), _pairs(me, known, number)
        for position, parts in enumerate(known.parts):
            if len(parts) == 1:
                continue
            left = _columns(known, rows, parts[0]) if len(parts) == 2 else pairs[parts[0], parts[1]]
            product = cross(known.field, left, _columns(known, rows, parts[-1]))
            totals[position] = totals[position] + product if position in totals else product
    out = np.empty((len(known.field.primes), known.size), dtype=np.int32)
    start = 0
    for position, size in enumerate(known.sizes):
        here = slice(start, start + size)
        shaped = {member: one[:, here].reshape(-1, *totals[position].shape) for member, one in noise.items()}
        opened = open_product(totals[position], noise=shaped, parties=me.roster.names)
        out[:, here] = opened.reshape(len(out), -1)
        start += size
    return Release(out, "a share of noisy counts")


def _chunk(known: Layout, number: int) -> tuple[int, int]:
    if not 0 <= number < len(known.chunks):
        raise UnsafeRequest(f"this job has no chunk {number}.")
    return known.chunks[number]


def _put_away(me: Party, known: Layout, number: int) -> None:
    """Keep what came by mail for a chunk until the opening."""
    name = f"{known.tag}: dealt {number}"
    if not me.kept(name):
        me.keep(name, _rows(me, known, number))
    me.keep(f"{known.tag}: pairs {number}", list(_pairs(me, known, number).values()))


def _rows(me: Party, known: Layout, number: int) -> dict[str, Residues]:
    name = f"{known.tag}: dealt {number}"
    if me.kept(name):
        kept: dict[str, Residues] = me.recall(name)
        return kept
    rows = dealt(me, f"{known.tag}: rows {number}", list(known.shared), known.field)
    start, stop = known.chunks[number]
    for party, one in rows.items():
        if one.shape[1:] != (stop - start, known.width(party)):
            raise UnsafeRequest(f"{party!r} shared rows of another shape than the layout says.")
    return rows


def _pairs(me: Party, known: Layout, number: int) -> dict[tuple[Part, Part], Residues]:
    """This holder's shares of the products of two parties' rows, one column for each pair of cells."""
    name = f"{known.tag}: pairs {number}"
    if me.kept(name):
        return dict(zip(known.pairs, me.recall(name), strict=True))
    start, stop = known.chunks[number]
    found = {}
    for position, (first, second) in enumerate(known.pairs):
        share = reduced(me, f"{known.tag}: pair {position} {number}", known.field)
        if share.shape[1:] != (stop - start, first.size, second.size):
            raise UnsafeRequest("the holders dealt products of another shape than the layout says.")
        found[first, second] = share.reshape(len(share), stop - start, first.size * second.size)
    return found


def _columns(known: Layout, rows: Mapping[str, Residues], part: Part) -> Residues:
    return rows[part.party][:, :, known.shared[part.party][part]]


def _local_tables(me: Party, known: Layout) -> dict[int, Product]:
    """Tables within one party: its shared counts, as shares of degree 2t."""
    counts = dealt(me, f"{known.tag}: counts", list(known.local), known.field) if known.local else {}
    start = dict.fromkeys(known.local, 0)
    totals = {}
    for position, parts in enumerate(known.parts):
        if len(parts) == 1:
            party, size = parts[0].party, parts[0].size
            totals[position] = lift(known.field, counts[party][:, start[party] : start[party] + size])
            start[party] += size
    return totals
