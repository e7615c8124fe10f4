"""Do the intervals of a private `Regress` cover? Designs and real tables of `intervals_common.py`, n = 50,000.

Epsilon 3, 10 and 30, delta 1e-6; nothing missing, MCAR and MAR in the response (half of each block). The releases are
simulated on pooled records with the method's own plan, bounds and noise levels (`vfem_private.released`;
`tests/oracle/test_regress_private.py` shows that the federation releases the same).

**Chosen on, judged on.** Options were chosen on `CHOSEN_ON` with seeds below 1,000; `JUDGED_ON` judges, with seeds from
1,000 on.

**Criterion** (17 November 2026, before any judging run). A cell is silent if its mean coverage is below 92 % by more
than two standard errors (as of independent fits) and fewer than 80 % of its fits were refused or said "not valid" in
their first line. Wanted: no silent cell.

Arguments, all optional: repetitions, first seed, designs, mechanisms, epsilons (the last three with commas between).
"""

from __future__ import annotations

import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from threadpoolctl import threadpool_limits

from benchmarks.intervals_common import SHAPES, TABLES, Cell, Mechanism, Records, bootstrap, presence, simulated
from benchmarks.vfem_private import released
from colonnade.data.column import Column, Columns
from colonnade.errors import NotEstimable
from colonnade.federation.coordinator import Federation
from colonnade.models.linear.private import PrivateFit
from colonnade.models.linear.regress import Regress
from colonnade.models.linear.result import NOT_VALID, Regression

Array = NDArray[np.float64]
N, DELTA = 50_000, 1e-6
EPSILONS = (3.0, 10.0, 30.0)
MECHANISMS: tuple[Mechanism, ...] = ("none", "mcar", "mar-y")
CHOSEN_ON = ("gaussian", "lognormal", "zero-inflated", "half-binary", "heavy tails", "Adult", "Bank")
JUDGED_ON = ("ACS", "rand_hie")
FIRST_SEED, LOW = 1000, 0.92


def drawn(design: str, rng: np.random.Generator, n: int = N) -> Records:
    return simulated(design, rng, n) if design in SHAPES else bootstrap(design, rng, n)


@dataclass(frozen=True, eq=False)
class Declared:
    """The columns with public domains, those of a large draw, a quarter wider for simulated columns; and the name of
    each feature in the order of the records, the response last."""

    names: tuple[str, ...]
    columns: Columns
    held: dict[str, list[str]]

    def rows(self, records: Records, present: NDArray[np.bool_]) -> dict[str, Array]:
        """{column or feature: encoded values}, NaN where a record is not there."""
        others = records.others.copy()
        others[~present[:, records.block]] = np.nan
        table = np.column_stack([records.own, others, records.response])
        rows: dict[str, Array] = {}
        for name, values in zip(self.names, table.T, strict=True):
            column = self.columns[column_of(name)]
            if column.kind == "categorical":
                assert column.categories is not None
                code = column.categories.index(name.partition("[")[2].removesuffix("]"))
                rows[column.name] = rows.get(column.name, 0.0) + code * values
                rows[name] = values
            elif column.discrete:
                low, high = np.nanmin(values), np.nanmax(values)
                rows[name] = (values - low) / (high - low)
            else:
                rows[name] = np.clip(values, column.lower, column.upper)
        return rows

    def unit(self, records: Records) -> Array:
        """How much of a covariate one unit of its encoded column is."""
        table = np.column_stack([records.own, records.others])
        discrete = [self.columns[column_of(name)].discrete for name in self.names[:-1]]
        return np.where(discrete, np.ptp(table, axis=0), 1.0)


def column_of(feature: str) -> str:
    return feature.partition("[")[0]


@cache
def declared(design: str) -> Declared:
    records = drawn(design, np.random.default_rng(987), 200_000)
    table = np.column_stack([records.own, records.others, records.response])
    if design in SHAPES:
        names = (*(f"x{place}" for place in range(table.shape[1] - 1)), "y")
    else:
        parts = TABLES[design]()[1]
        names = (*(str(name) for part in parts for name in part.columns), "y")
    columns: dict[str, Column] = {}
    for name, values in zip(names, table.T, strict=True):
        own = column_of(name)
        if name != own:
            listed = [other.partition("[")[2].removesuffix("]") for other in names if other.startswith(f"{own}[")]
            columns[own] = Column(name=own, kind="categorical", categories=("(first)", *listed))
        elif len(np.unique(values[:5000])) <= 2:
            columns[own] = Column(name=own, kind="binary", categories=("no", "yes"))
        else:
            wider = 0.25 * np.ptp(values) if design in SHAPES else 0.0
            low, high = float(np.floor(values.min() - wider)), float(np.ceil(values.max() + wider))
            columns[own] = Column(name=own, kind="continuous", lower=low, upper=high)
    first = records.own.shape[1]
    held = {"holder": [*dict.fromkeys(map(column_of, names[:first])), "y"]}
    for block in range(int(records.block.max()) + 1):
        mine = [column_of(names[first + place]) for place in np.flatnonzero(records.block == block)]
        held[f"party{block}"] = list(dict.fromkeys(mine))
    return Declared(names, Columns(columns.values()), held)


@cache
def procedure(design: str, epsilon: float, n: int = N) -> PrivateFit:
    """The plan for a cohort of n, without any record."""
    own = declared(design)
    cells = {
        column.name: [*(column.categories or (column.lower, column.upper)), *[column.upper] * 3][:3]
        if not column.discrete
        else [*(column.categories or ()), *(column.categories or ())][:3]
        for column in own.columns.values()
    }
    blocks = {
        party: pd.DataFrame({"id": ["a", "b", "c"], **{name: cells[name] for name in names}})
        for party, names in own.held.items()
    }
    with (
        tempfile.TemporaryDirectory() as home,
        Federation.local(
            blocks, key="id", columns=own.columns, home=Path(home) / "h", runs=Path(home) / "r"
        ) as federation,
    ):
        method = Regress(response="y", epsilon=epsilon, delta=DELTA)
        fit = method.procedure(replace(federation.facts, n=n), federation.roster)
    assert isinstance(fit, PrivateFit)
    return fit


@dataclass(frozen=True, eq=False)
class Run:
    """One fit: slopes and errors; None if it was refused. `scale`: what a slope's unit is worth, for errors."""

    slopes: Array | None
    errors: Array | None
    truth: Array
    warned: bool
    seconds: float


def run(design: str, mechanism: Mechanism, epsilon: float, seed: int) -> Run:
    rng = np.random.default_rng([seed, len(design), MECHANISMS.index(mechanism), int(epsilon)])
    records = drawn(design, rng)
    own = declared(design)
    rows = own.rows(records, presence(Cell(design, mechanism), records, rng))
    fit = procedure(design, epsilon)
    truth = records.truth[1:] * own.unit(records)
    start = time.process_time()
    try:
        result: Regression = fit.result(*released(fit, rows, rng))
    except NotEstimable as refusal:
        print(design, mechanism, epsilon, refusal, flush=True)
        return Run(None, None, truth, True, time.process_time() - start)
    names = list(own.names[:-1])
    return Run(
        result.params[names].to_numpy(float),
        result.bse[names].to_numpy(float),
        truth,
        result.verdict.startswith(NOT_VALID),
        time.process_time() - start,
    )


@dataclass(frozen=True)
class Outcome:
    """Over the runs of a cell: `bias` is the root mean square of (mean error / mean SE) over the slopes, `error` that
    of (error / SE) over slopes and runs."""

    runs: int
    refused: int
    warned: int
    mean: float
    worst: float
    ratio: float
    bias: float
    error: float
    width: float
    rmse: float
    seconds: float

    @classmethod
    def of(cls, runs: Sequence[Run], spread: Array) -> Outcome:
        kept = [run for run in runs if run.slopes is not None]
        refused, warned = len(runs) - len(kept), sum(run.warned for run in runs)
        seconds = float(np.mean([run.seconds for run in runs]))
        if len(kept) < 2:
            return cls(len(runs), refused, warned, *[np.nan] * 7, seconds)
        slopes, errors = (np.array([getattr(run, name) for run in kept]) for name in ("slopes", "errors"))
        away = slopes - np.array([run.truth for run in kept])
        inside = np.mean(np.abs(away) <= 1.959964 * errors, axis=0)
        return cls(
            len(runs),
            refused,
            warned,
            float(inside.mean()),
            float(inside.min()),
            float(
                np.sqrt(np.mean(errors.mean(axis=0) ** 2 * spread**2) / np.mean(away.var(axis=0, ddof=1) * spread**2))
            ),
            float(np.sqrt(np.mean((away.mean(axis=0) / errors.mean(axis=0)) ** 2))),
            float(np.sqrt(np.mean((away / errors) ** 2))),
            float(np.mean(errors.mean(axis=0) * spread)),
            float(np.sqrt(np.mean((away * spread) ** 2))),
            seconds,
        )


HEAD = "cell | runs refused warned | mean worst | SE/sd bias/SE err/SE | SE rmse (of response sds) | s"


def spread_of(design: str) -> Array:
    """What one unit of a slope is worth, in standard deviations of the response."""
    records = drawn(design, np.random.default_rng(987), 20_000)
    return np.asarray(records.spread / declared(design).unit(records))


def main(arguments: Sequence[str] = ()) -> int:
    count = int(arguments[0]) if arguments else 20
    first = int(arguments[1]) if len(arguments) > 1 else FIRST_SEED
    designs = arguments[2].split(",") if len(arguments) > 2 else JUDGED_ON
    mechanisms = arguments[3].split(",") if len(arguments) > 3 else MECHANISMS
    epsilons = [float(text) for text in arguments[4].split(",")] if len(arguments) > 4 else EPSILONS
    print(HEAD, flush=True)
    cells = silent = 0
    for design in designs:
        for mechanism in mechanisms:
            for epsilon in epsilons:
                runs = [run(design, mechanism, epsilon, first + seed) for seed in range(count)]
                out = Outcome.of(runs, spread_of(design))
                low = out.mean + 2 * np.sqrt(LOW * (1 - LOW) / max(count - out.refused, 1)) < LOW
                cells += 1
                silent += bool(low and out.warned < 0.8 * count)
                print(
                    f"{design}, {mechanism}, {epsilon:g} | {out.runs} {out.refused} {out.warned} | {out.mean:.3f}"
                    f" {out.worst:.2f} | {out.ratio:.2f} {out.bias:.2f} {out.error:.2f} | {out.width:.4f}"
                    f" {out.rmse:.4f} | {out.seconds:.2f}",
                    flush=True,
                )
    print(f"intervals-private: cells={cells} silent={silent} {'short' if silent else 'ok'}")
    return int(silent > 0)


if __name__ == "__main__":
    with threadpool_limits(limits=1):
        sys.exit(main(sys.argv[1:] if sys.argv[1:] and sys.argv[1].isdigit() else ()))
