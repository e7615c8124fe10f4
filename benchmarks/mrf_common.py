"""What the studies of Markov random fields share: public tables with declared domains, the metric, runs of the method.

Repetitions of `sqm` draw *the same integers as the protocol* without the messages: exact tables of the pooled records
plus Skellam noise of the total mu, then the product's own selection, fit and sampling.
"""

from __future__ import annotations

import itertools
import math
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import cached_property, partial
from typing import Any, ClassVar

import numba
import numpy as np
import pandas as pd
from numpy.typing import NDArray

from benchmarks.common import load
from benchmarks.draws_common import Draws, Estimate, Value
from colonnade.data.column import Column, Columns
from colonnade.federation.coordinator import Federation
from colonnade.federation.facts import PublicFacts
from colonnade.federation.method import Method
from colonnade.federation.roster import Member, Roster
from colonnade.privacy.randomness import Randomness, SimulatedRandomness
from colonnade.privacy.skellam_sampler import skellam
from colonnade.statistics import adaptive
from colonnade.statistics.adaptive import AdaptiveMarginal, Axis
from colonnade.statistics.describe import adaptive_rounds
from colonnade.synthesis.field.fit import Measurement
from colonnade.synthesis.field.procedure import FieldSynthesis
from colonnade.synthesis.field.rounds import EXACT_SD
from colonnade.synthesis.field.sample import sample_cells
from colonnade.synthesis.field.schema import Schema, TableQuery
from colonnade.synthesis.method import Synthesize
from colonnade.synthesis.table import SyntheticTable

Codes = dict[str, NDArray[np.int64]]
MARGINALS = 300
CELLS = 16


@dataclass(frozen=True)
class Data:
    """A public table with declared domains. Bounds of numeric columns are round numbers around what was published."""

    name: str
    frame: pd.DataFrame
    columns: Columns

    @property
    def n(self) -> int:
        return len(self.frame)

    def parties(self, count: int) -> dict[str, tuple[str, ...]]:
        """Contiguous groups of columns, as even as can be: the paper's division."""
        groups = np.array_split(np.array(list(self.columns)), count)
        return {f"p{at:02d}": tuple(str(name) for name in group) for at, group in enumerate(groups)}

    def facts(self, count: int) -> PublicFacts:
        return PublicFacts(
            n=self.n, columns={party: self.columns.select(names) for party, names in self.parties(count).items()}
        )

    def roster(self, count: int) -> Roster:
        """Every party, and an independent holder where there are only two: as `Federation.local` makes it."""
        names = list(self.parties(count)) + (["holder"] if count < 3 else [])
        members = tuple(
            Member(name=name, organisation=name, public_key=bytes([at + 1]) * 32, owns_data=name != "holder")
            for at, name in enumerate(names)
        )
        return Roster(members=members, committee=tuple(names[:3]), threshold=1, colluders=1)

    def federation(self, count: int, folder: str, **options: object) -> Federation:
        keyed = self.frame.assign(record=np.arange(self.n))
        blocks = {party: keyed[["record", *names]] for party, names in self.parties(count).items()}
        more = {"holder": "holder"} if count < 3 else {}
        return Federation.local(
            blocks, key="record", columns=self.columns, home=f"{folder}/home", runs=f"{folder}/runs", **more, **options
        )

    @cached_property
    def schema(self) -> Schema:
        return Schema.declared(self.facts(1), bins=CELLS)

    @cached_property
    def codes(self) -> Codes:
        return cells_of(self.frame, self.schema)


def cells_of(frame: pd.DataFrame, schema: Schema) -> Codes:
    """The cell of each row in each column."""
    found = {}
    for name, public in schema.cells.items():
        encoded = schema.facts.column(name).encode(frame[name])
        if public.edges is None:
            found[name] = encoded.astype(np.int64)
        else:
            found[name] = np.searchsorted(public.edges[1:-1], encoded, side="right").astype(np.int64)
    return found


def count(name: str, lower: int, upper: int) -> Column:
    return Column(name=name, kind="count", lower=lower, upper=upper)


def _declared(frame: pd.DataFrame, numeric: Sequence[Column]) -> Columns:
    known = {column.name: column for column in numeric}
    made = []
    for name in frame:
        if name in known:
            made.append(known[name])
            continue
        values = sorted(frame[name].astype(str).unique())
        made.append(Column(name=str(name), kind="categorical", categories=tuple(values)))
    return Columns(made)


def adult() -> Data:
    """45,222 x 15. Published domains: age 17 to 90, hours 1 to 99, education 1 to 16, capital gain up to 99,999."""
    frame = load("adult")
    numeric = [
        count("age", 17, 90),
        count("fnlwgt", 0, 1_500_000),
        count("capital_gain", 0, 99_999),
        count("capital_loss", 0, 4_400),
        count("hours_per_week", 1, 99),
    ]
    return Data("adult", _texts(frame, numeric), _declared(_texts(frame, numeric), numeric))


def bank() -> Data:
    frame = load("bank_marketing")
    numeric = [
        count("age", 18, 95),
        Column(name="balance", kind="continuous", lower=-10_000, upper=110_000),
        count("day", 1, 31),
        count("duration", 0, 5_000),
        count("campaign", 1, 64),
        Column(name="pdays", kind="continuous", lower=-1, upper=900, cuts=(0.0, 90.0, 180.0, 270.0, 360.0, 450.0)),
        count("previous", 0, 300),
    ]
    return Data("bank", _texts(frame, numeric), _declared(_texts(frame, numeric), numeric))


def fire() -> Data:
    """305,119 x 15, all columns codes of categories."""
    frame = _texts(load("fire"), [])
    return Data("fire", frame, _declared(frame, []))


def acs() -> Data:
    """Occupation by the first digits of its code, birthplace by region: 529 and 223 codes are no table's columns."""
    frame = load("acs_income_ca_tx_ny_fl")
    frame = frame.assign(occupation=frame["occupation"] // 500, birthplace=frame["birthplace"] // 50)
    numeric = [count("age", 17, 95), count("hours_per_week", 1, 99)]
    return Data("acs", _texts(frame, numeric), _declared(_texts(frame, numeric), numeric))


def _texts(frame: pd.DataFrame, numeric: Sequence[Column]) -> pd.DataFrame:
    known = {column.name for column in numeric}
    return frame.assign(**{name: frame[name].astype(str) for name in frame if name not in known})


# --- the metric -----------------------------------------------------------------------------------------------------


def marginal_sets(names: Sequence[str], ways: int, *, seed: int = 1) -> list[tuple[str, ...]]:
    """300 random sets of columns, or all if there are fewer; the same for every method."""
    everything = list(itertools.combinations(names, ways))
    if len(everything) <= MARGINALS:
        return everything
    chosen = np.random.default_rng(seed).choice(len(everything), MARGINALS, replace=False)
    return [everything[at] for at in chosen]


def tvd(real: Codes, made: Codes, sizes: dict[str, int], *, ways: int) -> float:
    """Mean total variation distance over random marginals."""
    distances = []
    for names in marginal_sets(list(sizes), ways):
        shape = tuple(sizes[name] for name in names)
        first, second = (np.ravel_multi_index([one[name] for name in names], shape) for one in (real, made))
        distances.append(_distance(first, second, np.zeros(math.prod(shape))))
    return float(np.mean(distances))


@numba.njit(cache=True)  # type: ignore[untyped-decorator]
def _distance(first: Any, second: Any, cells: Any) -> float:
    """Half the L1 distance of two lists of cells; `cells` comes and leaves full of zeros."""
    for cell in first:
        cells[cell] += 1.0 / first.size
    for cell in second:
        cells[cell] -= 1.0 / second.size
    total = 0.0
    for rows in (first, second):
        for cell in rows:
            total += abs(cells[cell])
            cells[cell] = 0.0
    return total / 2


# --- the encoder without messages -----------------------------------------------------------------------------------


class Pooled:
    """What the rounds open, from the pooled records: exact counts plus Skellam noise of the total mu.

    A table counts the records that have all of its columns; a cell below 0 is that of a record without the column.
    """

    def __init__(self, codes: Codes, schema: Schema, mus: Sequence[int], randomness: Randomness) -> None:
        self._codes, self._schema, self._mus, self._randomness = codes, schema, mus, randomness

    def tables(self, number: int, queries: Sequence[TableQuery]) -> list[Measurement]:
        mu, measured = self._mus[number], []
        for query in queries:
            exact, units = self.exact(query), query.units
            noise = np.zeros(exact.shape)
            if mu:
                noise = skellam(self._randomness, Fraction(mu), exact.size * units).reshape(units, *exact.shape)
                noise = noise.mean(axis=0)
            sd = math.sqrt(2 * mu / units) if mu else EXACT_SD
            measured.append(Measurement(query.columns, exact + noise, sd, query.maps()))
        return measured

    def exact(self, query: TableQuery) -> NDArray[np.float64]:
        bins = zip(query.columns, query.maps(), strict=True)
        own = [(self._codes[name], coarse) for name, coarse in bins]
        codes = [each if coarse is None else np.where(each < 0, -1, coarse[each]) for each, coarse in own]
        sizes = zip(query.columns, query.bins, strict=True)
        shape = tuple(self._schema.sizes[name] if coarse is None else max(coarse) + 1 for name, coarse in sizes)
        present = np.logical_and.reduce([each >= 0 for each in codes])
        flat = np.ravel_multi_index([each[present] for each in codes], shape)
        return np.bincount(flat, minlength=math.prod(shape)).reshape(shape).astype(float)


def released_cuts(
    procedure: FieldSynthesis, values: Mapping[str, NDArray[Any]], *, seed: int
) -> tuple[Schema, dict[str, AdaptiveMarginal]]:
    """What `PrivateCuts.run` gives, from the pooled values that are there."""
    cuts, edges, marginals = procedure.cuts, dict(procedure.schema.edges), dict[str, AdaptiveMarginal]()
    n = procedure.facts.n
    for name in (name for names in cuts.columns.values() for name in names):
        rounds, axis = adaptive_rounds("gaussian", cuts.level), Axis.of(procedure.facts.column(name))
        numbers = np.asarray(values[name], dtype=np.float64)
        count = partial(axis.count, np.sort(numbers[~np.isnan(numbers)]))
        randomness = SimulatedRandomness(seed, f"cuts of {name}")
        released = adaptive.release(count, axis, n=n, rounds=rounds, randomness=randomness)
        marginals[name] = AdaptiveMarginal.of(released, axis, n=n, rounds=rounds)
        edges[name] = marginals[name].cuts(cuts.cells)
    return replace(procedure.schema, edges=edges), marginals


def field_method(data: Data, **options: Any) -> Synthesize:
    """The field on tables computed on secret shares, with the delta and the cells of these studies."""
    return Synthesize(model="field", delta=1 / data.n, **{"cells": CELLS, "cuts": "declared", **options})


def field_rows(data: Data, method: Synthesize, parties: int, *, seed: int, codes: Codes | None = None) -> Codes:
    """One run: measure, fit, sample, as `FieldSynthesis.run` does."""
    procedure = FieldSynthesis(method, data.facts(parties), data.roster(parties))
    randomness = SimulatedRandomness(seed, data.name)
    pooled = Pooled(data.codes if codes is None else codes, procedure.schema, procedure.rounds.mus, randomness)
    field = procedure.fitted(procedure.measure(procedure.schema, pooled.tables))
    return sample_cells(field, data.n, np.random.default_rng(seed))


def federated_rows(data: Data, method: Method[SyntheticTable], parties: int, *, seed: int) -> Codes:
    """One run in a real federation, simulated randomness."""
    with tempfile.TemporaryDirectory() as folder:
        allow = ("fm-sketches",)
        with data.federation(parties, folder, seed=seed, allow=allow, timeout=3600.0) as federation:
            table = method.fit(federation, sure=True)
            return cells_of(table.sample(), Schema.declared(federation.facts, bins=CELLS))


class Lines:
    """The lines of one data set's table; a line is a method at an epsilon, over several runs."""

    HEAD: ClassVar[list[str]] = ["method", "epsilon", "3-way", "± se", "4-way", "5-way", "runs", "CPU-s/run"]

    def __init__(self, data: Data, draws: Draws) -> None:
        self.data, self.draws = data, draws
        self.rows: list[list[str]] = []

    def add(self, name: str, epsilon: float | None, make: Callable[[int], Codes], runs: int = 1) -> float:
        """Run it, and return its mean 3-way distance."""
        cell = (self.data.name, name, epsilon)
        each = [self.draws.get(cell, seed, partial(self._distances, make, seed)) for seed in range(runs)]
        three, four, five, seconds = (
            Estimate.of(values[column] for values in each) for column in ("3-way", "4-way", "5-way", "cpu_seconds")
        )
        error = f"{three.error:.4f}" if runs > 1 else ""
        budget = "" if epsilon is None else f"{epsilon:g}"
        means = [f"{ways.mean:.4f}" for ways in (four, five)]
        self.rows.append([name, budget, f"{three.mean:.4f}", error, *means, str(runs), f"{seconds.mean:.0f}"])
        print(" | ".join(self.rows[-1]), flush=True)
        return three.mean

    def _distances(self, make: Callable[[int], Codes], seed: int) -> dict[str, Value]:
        started = time.process_time()
        rows = make(seed)
        seconds = time.process_time() - started
        real, sizes = self.data.codes, self.data.schema.sizes
        return {
            **{f"{ways}-way": tvd(real, rows, sizes, ways=ways) for ways in (3, 4, 5)},
            "cpu_seconds": seconds,
        }
