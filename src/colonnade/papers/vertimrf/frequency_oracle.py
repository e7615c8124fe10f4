"""The `fo` encoder: a frequency oracle, generalised randomised response on every value of a record (the paper's 4.2).

Each party reports its binned columns record by record, each value kept with odds e^eps' against each other one.
CarEst counts the reports and inverts the transition axis by axis: P^-1 = (I - q 11') / (p - q), so no matrix of the
whole table is ever built. The estimate is unbiased. A record that a party lacks reports a category of its own.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Annotated, Any

import numpy as np
from numpy.typing import NDArray

from colonnade.errors import BadArguments
from colonnade.federation.job import Job
from colonnade.federation.party import Party
from colonnade.federation.roster import Roster
from colonnade.federation.stage import Later, stage
from colonnade.federation.step import Public, Release, Size, step
from colonnade.privacy.accounting import calibrate
from colonnade.privacy.cost import Cost, RandomizedResponse, compose
from colonnade.privacy.noise import WORDS, generalized_randomized_response, keep_threshold
from colonnade.synthesis.field.fit import Measurement
from colonnade.synthesis.field.schema import Integers, Schema, TableQuery, cell_codes, equal_width, given_schema


def column_bins(schema: Schema, bins: int) -> dict[str, Integers]:
    """Equal-width bins of every column: a function of the domains alone."""
    return {name: equal_width(size, bins) for name, size in schema.sizes.items()}


def check_bins(query: TableQuery, bins: Mapping[str, Integers]) -> None:
    """A table can be estimated in the bins that were encoded, and in no others."""
    if query != TableQuery.of(query.columns, bins, units=query.units):
        raise BadArguments("these columns were encoded in bins; ask for tables in the same bins.")


def transition(epsilon: float, categories: int) -> tuple[float, float]:
    """The chances p of the true value and q of each other one, of the mechanism that really runs."""
    words = keep_threshold(float(epsilon), int(categories))
    return words / WORDS, (WORDS - words) / (WORDS * (categories - 1))


def paper_claim(epsilon: float, delta: float, columns: int) -> float:
    """Theorem 3 as printed, for eps' = `epsilon`: min(d eps' / 2, 2 eps' sqrt(2 d log(1 / delta))).

    Its half is proved for binary columns only, and for add/remove, where the number of reports is not hidden.
    """
    return epsilon * min(columns / 2, 2 * math.sqrt(2 * columns * math.log(1 / delta)))


def paper_epsilon(epsilon: float, delta: float, columns: int) -> float:
    """The eps' for which Theorem 3 as printed claims `epsilon`."""
    return epsilon / paper_claim(1.0, delta, columns)


@lru_cache(maxsize=32)
def proved_epsilon(epsilon: float, delta: float, categories: tuple[int, ...]) -> float:
    """The eps' at which all reports of a record together cost (epsilon, delta), replace-one, by our accountant."""

    def costs(scale: float) -> list[Cost]:
        return [RandomizedResponse(1 / scale, size, relation="replace") for size in categories]

    return 1 / calibrate(costs, epsilon=epsilon, delta=delta, relation="replace", bracket=(1 / 500, 1e9))


def categories(values: int, complete: bool) -> int:
    """What a column can report; one more if a record may be absent. Randomised response needs two."""
    return max(values if complete else values + 1, 2)


def column_categories(schema: Schema, names: Sequence[str], bins: int, complete: bool) -> tuple[int, ...]:
    """What each of these columns can report."""
    maps = column_bins(schema, bins)
    return tuple(categories(int(maps[name].max()) + 1, complete) for name in names)


class FrequencyOracle:
    """eps' for each value; `bins` of equal width; `complete`: every party has every record (public)."""

    def __init__(
        self,
        schema: Schema,
        roster: Roster,
        *,
        epsilon: float,
        bins: int,
        complete: bool = False,
        later: Mapping[str, Later] | None = None,
    ) -> None:
        self.epsilon, self.bins, self.complete = float(epsilon), bins, complete
        self.largest = sorted(column_categories(schema, schema.names, bins, complete))[-2:]
        arguments = {"schema": schema.to_dict(), "epsilon": self.epsilon, "bins": bins, "complete": complete}
        self.reports = stage(
            "LocEnc",
            perturbed_values,
            {party: [arguments] for party in schema.parties},
            facts=schema.facts,
            roster=roster,
            discloses="each record's binned values after randomised response",
            reply_bytes=2 * schema.facts.n * max(len(schema.of(party)) for party in schema.parties),
            later=later,
        )
        self.stages = (self.reports,)
        self.notes: tuple[str, ...] = (
            f"Each value is reported with randomised response at epsilon {self.epsilon:.4g}.",
        )

    def cell_sd(self, records: int) -> float:
        """The standard deviation of a count of the largest pair of columns, as `Reports` states it."""
        chances = [transition(self.epsilon, size) for size in self.largest]
        return math.sqrt(records * variance_of_cell(chances, self.largest))

    def encode(self, job: Job, schema: Schema) -> Reports:
        answers = job.ask(self.reports, **given_schema(self.reports, schema))
        codes = {name: answers[party][row] for party in schema.parties for row, name in enumerate(schema.of(party))}
        return Reports(codes, column_bins(schema, self.bins), self.epsilon, self.complete)


@dataclass(frozen=True, eq=False)
class Reports:
    """Reports of every record; estimates any table for free (CarEst)."""

    codes: Mapping[str, NDArray[np.integer[Any]]]
    bins: Mapping[str, Integers]
    epsilon: float
    complete: bool

    def tables(self, queries: Sequence[TableQuery], *, records: int) -> list[Measurement]:
        """The estimated counts; how many `records` there are, the reports say themselves."""
        return [self._table(query) for query in queries]

    def _table(self, query: TableQuery) -> Measurement:
        check_bins(query, self.bins)
        values = [int(self.bins[name].max()) + 1 for name in query.columns]
        shape = tuple(categories(size, self.complete) for size in values)
        codes = [self.codes[name].astype(np.int64) for name in query.columns]
        counts = np.bincount(np.ravel_multi_index(codes, shape), minlength=math.prod(shape)).reshape(shape)
        chances = [transition(self.epsilon, size) for size in shape]
        inside = tuple(slice(0, size) for size in values)
        sd = max(math.sqrt(len(codes[0]) * variance_of_cell(chances, values)), 0.5)
        return Measurement(query.columns, inverted(counts, chances)[inside], sd, query.maps())


def inverted(counts: NDArray[Any], chances: Sequence[tuple[float, float]]) -> NDArray[np.float64]:
    """The unbiased estimate of the true counts: along each axis, (T - q sum(T)) / (p - q)."""
    table = counts.astype(np.float64)
    for axis, (p, q) in enumerate(chances):
        table = (table - q * table.sum(axis=axis, keepdims=True)) / (p - q)
    return table


def variance_of_cell(chances: Sequence[tuple[float, float]], values: Sequence[int]) -> float:
    """Of the estimate of one cell, for each record, averaged over the cells: as if records were spread evenly.

    A report adds the product over the axes of (1[it says the value] - q) / (p - q). Its second moment on one axis is
    (p (1 - 2q) + q^2) / (p - q)^2 if the value is true, and q (1 - q) / (p - q)^2 if it is not.
    """
    second = 1.0
    for (p, q), size in zip(chances, values, strict=True):
        true, other = (p * (1 - 2 * q) + q * q) / (p - q) ** 2, q * (1 - q) / (p - q) ** 2
        second *= (true + (size - 1) * other) / size
    return max(second - 1 / math.prod(values), 0.0)


# --- the parties' step ------------------------------------------------------------------------------------------


def _report_cost(public: Public, *, schema: dict[str, Any], epsilon: float, bins: int, complete: bool) -> Cost:
    """One answer a column; all of them compose. Replacing a record (by an absent one, too) changes each of them."""
    layout = Schema.from_dict(public.facts, schema)
    sizes = column_categories(layout, layout.of(public.party), bins, complete)
    return compose(RandomizedResponse(epsilon, size, relation="replace") for size in sizes)


@step(cost=_report_cost)
def perturbed_values(
    me: Party, *, schema: dict[str, Any], epsilon: float, bins: Annotated[int, Size(10_000, least=1)], complete: bool
) -> Release:
    """FO-based LocEnc: every record of the cohort answers for every column, whether the party has it or not."""
    layout = Schema.from_dict(me.facts, schema)
    maps, names = column_bins(layout, bins), layout.of(me.name)
    codes = cell_codes(me, layout, names)
    reports = []
    for name, size in zip(names, column_categories(layout, names, bins, complete), strict=True):
        values = int(maps[name].max()) + 1
        # Absent: the category of its own; where none is declared, the last value (clipped, never refused).
        binned = np.where(codes[name] >= 0, maps[name][np.maximum(codes[name], 0)], min(values, size - 1))
        reports.append(
            generalized_randomized_response(binned, categories=size, epsilon=epsilon, randomness=me.randomness)
        )
    return Release(np.stack(reports).astype(np.uint16), "binned values of each record after randomised response")
