"""VertiMRF against central synthesis and against no cross-party information: total variation distance of 3-, 4- and
5-way marginals on Adult, Bank and ACS (the paper's Figures 3 and 5).

The repetitions of `sqm` draw *the same integers as the protocol* without the messages: exact tables of the pooled
records plus Skellam noise of the total mu, then the product's own selection, fit and sampling. One real federation is
run with the noise off and must give the same tables, count by count. `fm` and `fo` run in real federations.
"""

from __future__ import annotations

import itertools
import math
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property, partial
from typing import get_args

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from benchmarks.common import Page, load, quick
from benchmarks.rivals.central_mrf import central_field, independent_fields, rho_of
from colonnade.data.column import Column, Columns
from colonnade.federation.coordinator import Federation
from colonnade.federation.facts import PublicFacts
from colonnade.federation.roster import Member, Roster
from colonnade.privacy.randomness import Randomness, SimulatedRandomness
from colonnade.privacy.skellam_sampler import skellam
from colonnade.statistics.joint import View
from colonnade.synthesis.mrf.binning import summed
from colonnade.synthesis.mrf.encoders import Schema, Wanted
from colonnade.synthesis.mrf.fit import Measurement, fit
from colonnade.synthesis.mrf.sample import sample_cells
from colonnade.synthesis.mrf.sqm import SQM, measure
from colonnade.synthesis.mrf.sqm_round import EXACT_SD
from colonnade.synthesis.mrf.vertimrf import VertiMRF

Codes = dict[str, NDArray[np.int64]]
MARGINALS = 300
LIMITS = {0.2: 0.085, 0.8: 0.052, 3.2: 0.042}
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
        values, where = np.unique(np.concatenate([first, second]), return_inverse=True)
        p = np.bincount(where[: len(first)], minlength=len(values)) / len(first)
        q = np.bincount(where[len(first) :], minlength=len(values)) / len(second)
        distances.append(float(np.abs(p - q).sum()) / 2)
    return float(np.mean(distances))


# --- the encoder without messages -----------------------------------------------------------------------------------


class Pooled:
    """What the rounds of `sqm` open, from the pooled records: exact counts plus Skellam noise of the total mu."""

    def __init__(self, codes: Codes, schema: Schema, mus: Sequence[int], randomness: Randomness) -> None:
        self._codes, self._schema, self._randomness = codes, schema, randomness
        self._mus = iter(mus)

    def tables(self, wanted: Sequence[Wanted]) -> list[Measurement]:
        mu = next(self._mus)
        found = []
        for one in wanted:
            exact = self.exact(one)
            noise = np.zeros(exact.shape)
            if mu:
                noise = skellam(self._randomness, Fraction(mu), exact.size * one.units).reshape(one.units, *exact.shape)
                noise = noise.mean(axis=0)
            sd = math.sqrt(2 * mu / one.units) if mu else EXACT_SD
            found.append(Measurement(one.columns, exact + noise, sd, one.maps()))
        return found

    def exact(self, one: Wanted) -> NDArray[np.float64]:
        shape = tuple(self._schema.sizes[name] for name in one.columns)
        flat = np.ravel_multi_index([self._codes[name] for name in one.columns], shape)
        table = np.bincount(flat, minlength=math.prod(shape)).reshape(shape)
        maps = [np.arange(size) if bins is None else np.array(bins) for size, bins in zip(shape, one.bins, strict=True)]
        return np.asarray(summed(table, maps), dtype=np.float64)


def sqm_rows(data: Data, method: VertiMRF, parties: int, *, seed: int, codes: Codes | None = None) -> Codes:
    """One run of `sqm`: measure, fit, sample, as `VertiMRF.execute` does."""
    facts, roster = data.facts(parties), data.roster(parties)
    encoder: SQM = method.sqm(facts, roster)
    schema = Schema.declared(facts, bins=CELLS)
    found = measure(
        Pooled(data.codes if codes is None else codes, schema, encoder.mus, SimulatedRandomness(seed, data.name)),
        schema,
        bins=method.coarse,
        units=encoder.units[-1],
        unit_sd=math.sqrt(2 * encoder.mus[-1]),
        theta=method.theta,
        theta_triples=method.theta_triples,
        limit=method.max_clique,
    )
    field = fit(found.graph, found.measurements, total=found.total, iterations=method.iterations)
    return sample_cells(field, data.n, np.random.default_rng(seed))


def federated_rows(data: Data, method: VertiMRF, parties: int, *, seed: int) -> Codes:
    """One run in a real federation, simulated randomness."""
    with tempfile.TemporaryDirectory() as folder:
        allow = ("fm-sketches",)
        with data.federation(parties, folder, seed=seed, allow=allow, timeout=3600.0) as federation:
            table = method.fit(federation)
            return cells_of(table.sample(), Schema.declared(federation.facts, bins=CELLS))


# --- the study ------------------------------------------------------------------------------------------------------


def check_protocol(page: Page, data: Data) -> bool:
    """The federation with the noise off against the pooled tables: one-way tables, count by count."""
    small = Data(data.name, data.frame.head(3000), data.columns)
    method = VertiMRF(epsilon=None, iterations=50, cells=CELLS, max_clique=20_000)
    with (
        tempfile.TemporaryDirectory() as folder,
        small.federation(2, folder, seed=1, allow=("exact-tables",)) as federation,
        federation.open(federation.plan(method)) as job,
    ):
        schema = method.schema(job.facts)
        rows = method.sqm(job.facts, job.roster).encode(job, schema)
        wanted = [Wanted.of((name,)) for name in schema.names]
        pairs = [Wanted.of(pair) for pair in itertools.combinations(schema.names, 2)]
        got = [*rows.tables(wanted), *rows.tables(pairs)]
    pooled = Pooled(small.codes, schema, (0, 0), SimulatedRandomness(0))
    same = all(np.array_equal(one.counts, pooled.exact(w)) for one, w in zip(got, [*wanted, *pairs], strict=True))
    page.say(f"The federation's tables with the noise off equal the pooled ones: {same} ({len(got)} tables).")
    return same


class Lines:
    """The lines of one data set's table; a line is a method at an epsilon, over several runs."""

    def __init__(self, data: Data, runs: int) -> None:
        self.data, self.runs = data, runs
        self.rows: list[list[str]] = []

    def add(self, name: str, epsilon: float, make: Callable[[int], Codes]) -> float:
        """Run it, and return its mean 3-way distance."""
        started = time.monotonic()
        made = [make(seed) for seed in range(self.runs)]
        seconds = (time.monotonic() - started) / self.runs
        real, sizes = self.data.codes, self.data.schema.sizes
        means = [float(np.mean([tvd(real, one, sizes, ways=ways) for one in made])) for ways in (3, 4, 5)]
        self.rows.append([name, f"{epsilon:g}", *(f"{mean:.4f}" for mean in means), f"{seconds:.0f}"])
        print(" | ".join(self.rows[-1]), flush=True)
        return means[0]


def sqm_lines(lines: Lines, epsilon: float) -> dict[tuple[int, str], float]:
    """Every number of parties and both views; the server view does not depend on the parties, and says so."""
    data = lines.data
    found = {}
    for parties in (2,) if quick() else (2, 4, len(data.columns)):
        for view in get_args(View):
            method = VertiMRF(view=view, epsilon=epsilon, delta=1 / data.n, cells=CELLS)
            make = partial(_sqm_seed, data, method, parties)
            found[parties, view] = lines.add(f"sqm, {view} view, {parties} parties", epsilon, make)
    return found


def _sqm_seed(data: Data, method: VertiMRF, parties: int, seed: int) -> Codes:
    return sqm_rows(data, method, parties, seed=seed)


def _federated_seed(data: Data, method: VertiMRF, seed: int) -> Codes:
    return federated_rows(data, method, 2, seed=seed)


def _central_seed(data: Data, rho: float, seed: int) -> Codes:
    return central_field(data.codes, data.schema.sizes, rho=rho, seed=seed)


def _floor_seed(data: Data, rho: float, seed: int) -> Codes:
    return independent_fields(data.codes, data.schema.sizes, data.parties(2), rho=rho, seed=seed)


def main() -> int:
    page = Page("mrf-tvd", "VertiMRF: total variation distance of marginals")
    good, told = True, {}
    for data in [adult()] if quick() else [adult(), bank(), acs()]:
        lines = Lines(data, 1 if quick() else 5)
        page.say(f"## {data.name}: {data.n:,} x {len(data.columns)}, delta = 1/n, {lines.runs} runs; mean TVD")
        good &= check_protocol(page, data)
        for epsilon in (0.8,) if quick() else (0.2, 0.8, 3.2):
            found = sqm_lines(lines, epsilon)
            rho = rho_of(epsilon, 1 / data.n)
            central = lines.add("central", epsilon, partial(_central_seed, data, rho))
            floor = lines.add("floor: 2 parties alone", epsilon, partial(_floor_seed, data, rho))
            for encoder in ("fm", "fo"):
                method = VertiMRF(
                    encoder=encoder, complete=True, accounting="paper", epsilon=epsilon, delta=1 / data.n, cells=CELLS
                )
                name = f"{encoder}, 2 parties, the paper's settings"
                if lines.add(name, epsilon, partial(_federated_seed, data, method)) > floor:
                    page.say(f"At epsilon {epsilon:g} the encoder {encoder} is worse than the parties alone.")
            if data.name == "adult":
                server = found[2, "server"]
                told[f"adult_{epsilon:g}"] = f"{server:.4f}"
                good &= server <= LIMITS[epsilon] and (epsilon < 0.8 or server <= 1.10 * central)
                good &= all(abs(one / server - 1) <= 0.05 for (_, view), one in found.items() if view == "server")
        page.table(["method", "epsilon", "3-way", "4-way", "5-way", "s/run"], lines.rows)
    return page.finish(good, **told)


if __name__ == "__main__":
    raise SystemExit(main())
