"""`describe`: how many records each party has, and the marginal of each column, with differential privacy.

The first thing a consortium wants to know. Each party counts at home and adds integer noise; nothing joint is
computed. All releases are priced together: (epsilon, delta) is a person's total over **all** parties.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal

import numpy as np
from numpy.typing import NDArray

from colonnade.codec import plain
from colonnade.data.aggregation import Values
from colonnade.data.column import Column
from colonnade.federation.facts import PublicFacts
from colonnade.federation.job import Job
from colonnade.federation.method import Counted, Method, Procedure, Result, method_class
from colonnade.federation.options import ColumnNames, Delta, Epsilon, Option
from colonnade.federation.party import Party
from colonnade.federation.plan import HOPELESS
from colonnade.federation.roster import Roster
from colonnade.federation.stage import stage
from colonnade.federation.step import Public, Release, Size, step
from colonnade.formatting import digits, noise_width, number, share, with_noise, with_unit
from colonnade.privacy.calibration import Calibration, Gaussians
from colonnade.privacy.cost import Cost, Gaussian, Laplace
from colonnade.privacy.noise import discrete_gaussian, discrete_laplace
from colonnade.privacy.randomness import Randomness
from colonnade.statistics import adaptive
from colonnade.statistics.adaptive import AdaptiveMarginal, Axis, Forecast, Rounds, SortedValues, listed
from colonnade.statistics.cells import Cells, cells
from colonnade.statistics.forecast import enough
from colonnade.statistics.quantiles import consistent_leaves, dyadic_counts, quantiles
from colonnade.view.blocks import Figure, Figures, Section, Table, Text, View

if TYPE_CHECKING:
    from colonnade.audit.attack import Attack

Noise = Literal["gaussian", "laplace"]
Shape = Literal["histogram", "tree", "adaptive"]
MOST_BINS = Size(10_000, least=1)
DEPTH = 10
"""Levels of a dyadic tree."""
ROUNDS: Mapping[Noise, int] = {"gaussian": 8, "laplace": 5}
"""Of an adaptive marginal. Gaussian noise grows with their root only, and all rounds count alike; Laplace noise grows
with their number."""
LAST_SHARE = 0.6
"""Of the budget with Laplace noise: that of the last round, which counts what the others have chosen."""
QUANTILES = (0.05, 0.25, 0.5, 0.75, 0.95)
FEW = 10
"""Columns that are described whatever the noise."""


@method_class
class Describe(Method["Description"]):
    """Count each party's records, and each column's values, with noise.

    Returns
    -------
    `fit(federation)` gives a `Description`: `presence` and `marginals`, with their noise.

    Example
    -------
    >>> sorted(co.Describe(epsilon=1.0, columns=("roa",)).fit(federation).presence)
    ['commerce', 'court', 'credit', 'enforcement', 'market']
    """

    name: ClassVar[str] = "describe"

    epsilon: Epsilon = 1.0
    delta: Annotated[Delta, Option("The delta that goes with epsilon; 0 takes Laplace noise, otherwise Gaussian.")] = (
        1e-6
    )
    marginals: Annotated[
        Literal["adaptive", "histogram"],
        Option("Numeric columns in cells that refine where the records are, with point masses; or in equal cells."),
    ] = "adaptive"
    bins: Annotated[
        int,
        Option(
            "Cells of a continuous or long count column: of the histogram, or as shown.", least=1, most=MOST_BINS.most
        ),
    ] = 20
    columns: ColumnNames = None

    def missing_data(self) -> str:
        return "Each party counts the records that it has; a record that it lacks is in none of its counts."

    def procedure(self, facts: PublicFacts, roster: Roster) -> Describing:
        return Describing(self, facts, roster)

    @classmethod
    def attacks(cls) -> tuple[Attack, ...]:
        from colonnade.statistics.attacks import describe_attacks

        return describe_attacks()


# --- the coordinator's procedure --------------------------------------------------------------------------


class Describing(Procedure["Description"]):
    """One noise level for all releases, so that together they cost exactly (epsilon, delta)."""

    def __init__(self, method: Describe, facts: PublicFacts, roster: Roster) -> None:
        self.method, self.facts = method, facts
        self.wanted = {party: list(columns) for party, columns in facts.wanted(method.columns).items()}
        self.noise, self.level = self._noise()
        self.sd = noise_sd(self.noise, self.level)
        level: dict[str, Any] = {"noise": self.noise, "level": self.level}
        self.presence = stage(
            "presence",
            presence_count,
            {party: [level] for party in facts.parties},
            facts=facts,
            roster=roster,
            discloses="a noisy count of the party's records in the cohort",
        )
        self.marginals = stage(
            "marginals",
            marginal,
            {
                party: [{**self._shape(facts.column(name)), **level} for name in names]
                for party, names in self.wanted.items()
            },
            facts=facts,
            roster=roster,
            discloses="noisy counts of one column's public cells",
        )
        self.stages = (self.presence, self.marginals)
        self.notes = (
            f"Each count of a histogram carries integer noise with standard deviation {self.sd:.1f}.",
            *self._hopeless(),
            *(self._forecast(facts.column(name)) for names in self.wanted.values() for name in names),
        )

    @property
    def _described(self) -> int:
        return sum(map(len, self.wanted.values()))

    def _hopeless(self) -> tuple[str, ...]:
        """The noise of a count grows as the root of the number of counts if it is Gaussian, else as their number."""
        off, parties = 2 * self.sd / self.facts.n, len(self.facts.parties)
        if self._described <= FEW or not adaptive.mostly_noise(2, self.facts.n, self.sd):
            return ()
        power = 2 if self.noise == "gaussian" else 1
        releases = parties + self._described
        most = int(releases * (adaptive.NOISY / off) ** power) - parties
        factor = off / adaptive.NOISY * ((parties + FEW) / releases) ** (1 / power)
        advice = (
            f"keep at most {most} columns with columns="
            if most >= FEW
            else f"epsilon = {enough(self.method.epsilon, factor):g} would be enough for {FEW} columns"
        )
        return (
            f"{HOPELESS}: with {self._described:,} columns each count is off by up to {100 * off:.0f} % of the"
            f" {self.facts.n:,} records, and every column is mostly noise; {advice}.",
        )

    def _noise(self) -> tuple[Noise, float]:
        releases = len(self.facts.parties) + self._described
        if self.method.delta == 0:
            return "laplace", self.method.epsilon / releases
        counts = Gaussians(count=releases, share=releases)
        budget = Calibration({"counts": counts}, epsilon=self.method.epsilon, delta=self.method.delta)
        return "gaussian", budget["counts"]

    def _shape(self, column: Column) -> dict[str, Any]:
        refined = self.method.marginals == "adaptive" and not listed(column) and column.cuts is None
        return {"column": column.name, "shape": "adaptive" if refined else "histogram", "bins": self._bins(column)}

    def _bins(self, column: Column) -> int:
        """A short count has a cell for each value, unless equal cells are asked for."""
        short = self.method.marginals == "adaptive" and listed(column) and column.cuts is None
        return max(self.method.bins, adaptive.LONGEST_LIST) if short else self.method.bins

    def _forecast(self, column: Column) -> str:
        """The plan's line for a column."""
        if self._shape(column)["shape"] == "adaptive":
            rounds = adaptive_rounds(self.noise, self.level)
            expected = Forecast.of(Axis.of(column), n=self.facts.n, rounds=rounds).in_words()
        else:
            expected = adaptive.histogram_words(len(cells(column, bins=self._bins(column))), n=self.facts.n, sd=self.sd)
        return f"Column {column.name!r}: {expected}."

    def run(self, job: Job) -> Description:
        presence = job.ask(self.presence)
        described: dict[str, dict[str, Any]] = {}
        for turn in range(self.marginals.rounds):
            for party, counts in job.ask(self.marginals).items():
                column = self.facts.column(self.wanted[party][turn])
                stated = {"party": party, "kind": column.kind, **({"unit": column.unit} if column.unit else {})}
                described[column.name] = {**stated, **self._marginal(column, counts)}
        return Description(
            n=self.facts.n,
            presence={party: int(value) for party, value in presence.items()},
            presence_sd=self.sd,
            marginals={name: described[name] for names in self.wanted.values() for name in names},
            epsilon=self.method.epsilon,
            delta=self.method.delta,
            simulated=job.simulated,
        )

    def _marginal(self, column: Column, counts: Any) -> dict[str, Any]:
        """Post-processing of one column's noisy counts; it costs nothing."""
        if self._shape(column)["shape"] == "adaptive":
            fitted = adaptive_marginal(column, counts, n=self.facts.n, noise=self.noise, level=self.level)
            return _shown(column, fitted, bins=self.method.bins)
        noisy = np.asarray(counts, dtype=np.float64)
        public = cells(column, bins=self._bins(column))
        described: dict[str, Any] = {"labels": list(public.labels), "counts": noisy.tolist(), "sd": self.sd}
        if public.edges is not None:
            described["edges"] = public.edges.tolist()
            if column.kind == "date":
                described["ticks"] = [column.label(edge) for edge in public.edges]
            described |= _named(column, quantiles(noisy[: len(public.edges) - 1], public.edges, np.array(QUANTILES)))
        return described


def adaptive_rounds(noise: Noise, level: float) -> Rounds:
    """The rounds of an adaptive marginal that together cost `level`: a noise multiplier, or an epsilon."""
    number = ROUNDS[noise]
    if noise == "laplace":
        choosing, last = (math.nextafter(share * level, 0.0) for share in (1 - LAST_SHARE, LAST_SHARE))
        return Rounds(number, noise, _up((number - 1) / choosing), last=_up(1 / last))
    return Rounds(number, noise, _up(level * _up(math.sqrt(number))))


def adaptive_marginal(column: Column, counts: Any, *, n: int, noise: Noise, level: float) -> AdaptiveMarginal:
    """What a party's answer to `marginal` with the shape "adaptive" says."""
    axis, rounds = Axis.of(column), adaptive_rounds(noise, level)
    return AdaptiveMarginal.of(adaptive.from_arrays(counts, axis, n=n, rounds=rounds), axis, n=n, rounds=rounds)


def _shown(column: Column, fitted: AdaptiveMarginal, *, bins: int) -> dict[str, Any]:
    """An adaptive marginal in equal cells about where its records are, for people, and as it is."""
    edges = fitted.equal_cells(bins)
    shares = np.append(fitted.marginal.below(edges[:-1]), 1.0)
    counts = fitted.total * np.diff(shares)
    labels = _interval_labels(column, edges)
    described: dict[str, Any] = {"labels": labels, "counts": counts.tolist(), "edges": edges.tolist()}
    if column.kind == "date":
        described["ticks"] = [column.label(edge) for edge in edges]
    if column.missing:
        described["labels"].append("missing")
        described["counts"].append(fitted.empty)
    return {
        **described,
        **_named(column, fitted.quantile(QUANTILES)),
        "sd": float(np.median(fitted.sds)),
        "in words": fitted.in_words(column.label),
        "mostly noise": fitted.mostly_noise,
        "point masses": [
            {"value": column.label(value), "records": held, "sd": sd} for value, held, sd in fitted.point_masses()
        ],
        "cells": fitted.to_dict(),
    }


def _interval_labels(column: Column, edges: NDArray[np.float64]) -> list[str]:
    last = 1.0 if column.whole else 0.0
    return [
        column.label(low) if high - low <= last else f"{column.label(low)} to {column.label(high - last)}"
        for low, high in itertools.pairwise(edges)
    ]


def tree_leaves(column: Column, counts: NDArray[np.float64]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """The counts of the leaves that fit a column's noisy tree best, and the leaves' edges between its bounds."""
    edges = cells(_leafy(column), bins=2**DEPTH).edges
    assert edges is not None
    return consistent_leaves(counts[: 2 ** (DEPTH + 1) - 2], DEPTH), edges


def _named(column: Column, values: NDArray[np.float64]) -> dict[str, Any]:
    """Quantiles by their levels, integers for a count: the cell [a, a + 1) holds the value a. Dates also as dates."""
    if column.whole:
        values = np.clip(np.floor(values), column.lower, column.upper)
    named = dict(zip(map(str, QUANTILES), values.tolist(), strict=True))
    if column.kind != "date":
        return {"quantiles": named}
    return {"quantiles": named, "dates": {level: column.label(value) for level, value in named.items()}}


# --- the result -------------------------------------------------------------------------------------------


MOST_CELLS = 500
"""A column's table in the report shows no more cells than this."""


@dataclass(frozen=True, kw_only=True)
class Description(Result):
    """Noisy counts. `presence` is out of `n`; `marginals` has one entry a column; `sd` is the noise of one count."""

    kind: ClassVar[str] = "description"

    n: int
    presence: Mapping[str, int]
    presence_sd: float
    marginals: Mapping[str, Mapping[str, Any]]
    epsilon: float
    delta: float
    simulated: bool

    def to_dict(self) -> dict[str, Any]:
        described: dict[str, Any] = plain(self)
        return described

    @classmethod
    def records_behind(cls, stated: Mapping[str, Any]) -> Iterator[Counted]:
        for party, count in stated["presence"].items():
            yield f"records of {party}", count, stated["presence_sd"]
        for name, marginal in stated["marginals"].items():
            for label, count in zip(marginal["labels"], marginal["counts"], strict=False):
                yield f"{name}: {label}", count, marginal["sd"]

    def view(self) -> View:
        width = noise_width(self.presence_sd)
        parties, columns = len(self.presence), len(self.marginals)
        held = [marginal["party"] for marginal in self.marginals.values()]
        records = tuple(
            (party, with_noise(count, self.presence_sd), share(count, self.n), str(held.count(party)))
            for party, count in self.presence.items()
        )
        head, numeric = ("party", "records", "share of cohort", "columns"), (1, 2, 3)
        in_short = tuple(
            (name, marginal["party"], marginal["kind"], self._in_short(marginal))
            for name, marginal in self.marginals.items()
        )
        cohort = f"{self.n:,} records in the cohort; ± is two standard deviations of the noise"
        return View(
            title=f"{number(self.n)} records, described by {parties} part{'y' if parties == 1 else 'ies'}"
            f" in {columns} column{'' if columns == 1 else 's'}",
            quality=f"{self._warning()}A party's records are {width} in 95 of 100 cases. Each column's figure says its"
            " own noise.",
            answer=(
                Table(title="Records of each party", head=head, rows=records, numeric=numeric),
                Figure(
                    chart="bars",
                    data={
                        "labels": list(self.presence),
                        "values": list(self.presence.values()),
                        "noise": self.presence_sd,
                        "whole": self.n,
                    },
                    label="Bar chart: records of each party in the cohort",
                    name="records",
                    title="Records of each party",
                    x=f"records, of {number(self.n)} in the cohort",
                ),
                Text(
                    text=f"The cohort has {number(self.n)} records, which is public. Each party's count carries noise:"
                    f" {width} is two standard deviations.",
                    style="soft",
                ),
            ),
            sections=(
                Section(
                    title="The columns",
                    blocks=(
                        Text(
                            text="Every count carries noise. The band about a count is two standard deviations of the"
                            " noise: a count whose band reaches zero may be noise alone. Counts below zero are drawn as"
                            " zero, and a cell wider than the others as high as what it holds in their width; the"
                            " tables show the counts as they are."
                        ),
                        *(
                            Figures(
                                title=party,
                                figures=tuple(
                                    self._figure(name, marginal)
                                    for name, marginal in self.marginals.items()
                                    if marginal["party"] == party
                                ),
                            )
                            for party in self.presence
                            if party in held
                        ),
                    ),
                ),
            ),
            terminal=(
                Table(title=cohort, head=head, rows=records, numeric=numeric),
                Table(title="Columns", head=("column", "party", "kind", "in short"), rows=in_short),
            ),
        )

    def _warning(self) -> str:
        """The columns that are mostly noise, before anything else is said."""
        names = self.mostly_noise
        rest = f" and {len(names) - 5} more" if len(names) > 5 else ""
        return f"Mostly noise: {', '.join(names[:5])}{rest}. " if names else ""

    def _in_short(self, marginal: Mapping[str, Any]) -> str:
        """The middle of a numeric column, or the most frequent category; neither where the noise hides both."""
        if self._below_noise(marginal):
            return "too few records for this noise"
        if "quantiles" in marginal:
            written = marginal.get("dates") or {level: digits(value) for level, value in marginal["quantiles"].items()}
            heap = max(marginal.get("point masses", ()), key=lambda point: point["records"], default=None)
            most = "" if heap is None else f"; {share(heap['records'], sum(marginal['counts']))} at {heap['value']}"
            return f"median {written['0.5']}; 90 % between {written['0.05']} and {written['0.95']}{most}"
        counts = dict(zip(marginal["labels"], marginal["counts"], strict=True))
        if len(counts) > 1:
            counts.pop("missing", None)
        top = max(counts, key=counts.__getitem__)
        return f"most often {top} ({share(counts[top], sum(max(count, 0.0) for count in counts.values()))})"

    def _below_noise(self, marginal: Mapping[str, Any]) -> bool:
        """Is the number of counted records within two standard deviations of its own noise?"""
        return bool(sum(marginal["counts"]) < 2 * marginal["sd"] * math.sqrt(len(marginal["counts"])))

    @property
    def mostly_noise(self) -> list[str]:
        """Columns of which little more than noise is seen."""
        return [
            name
            for name, marginal in self.marginals.items()
            if marginal.get("mostly noise") or self._below_noise(marginal)
        ]

    def _figure(self, name: str, marginal: Mapping[str, Any]) -> Figure:
        counts, edges = marginal["counts"], marginal.get("edges", ())
        empty = counts[-1] if len(counts) == len(edges) > 0 else None
        cells_empty = "" if empty is None else f"; {number(empty)} cells empty"
        caption = (
            f"{marginal['kind']}; {self._in_short(marginal)}{cells_empty}. Noise: standard deviation"
            f" {marginal['sd']:,.1f} a count."
        )
        if "in words" in marginal:
            caption += f" {marginal['in words'].capitalize()}."
        labels = marginal["labels"]
        long = len(edges) > 8
        data: dict[str, Any] = {"noise": marginal["sd"]}
        data |= {"counts": counts, "edges": edges} if long else {"labels": labels, "values": counts}
        if long and "ticks" in marginal:
            data["ticks"] = marginal["ticks"]
        if not long and labels[-1] == "missing" and len(labels) > 1:
            data["empty_last"] = True
        rest, axis = len(labels) - MOST_CELLS, with_unit(name, marginal.get("unit"))
        x, y = (axis, "records") if long else ("noisy count of records", axis if edges else "")
        return Figure(
            chart="histogram" if long else "bars",
            data=data,
            label=f"Distribution of {name}, with its noise; the numbers are in the table below",
            name=name,
            x=x,
            y=y,
            title=name,
            caption=caption,
            numbers=Table(
                title=f"Counts of {name}",
                head=("cell", f"noisy count {noise_width(marginal['sd'])}"),
                rows=tuple(
                    (label, number(count))
                    for label, count in zip(labels[:MOST_CELLS], counts[:MOST_CELLS], strict=True)
                ),
                numeric=(1,),
            ),
            note=f"The other {rest:,} cells are in result.json." if rest > 0 else "",
        )


# --- the parties' steps -----------------------------------------------------------------------------------


def _cost(noise: Noise, level: float, *, replace_factor: float) -> Cost:
    if noise == "laplace":
        return Laplace(level, replace_factor=replace_factor)
    return Gaussian(level, replace_factor=replace_factor if replace_factor == 1 else math.sqrt(replace_factor))


def presence_cost(public: Public, *, noise: Noise, level: float) -> Cost:
    """A count of records has sensitivity 1 under both relations."""
    return _cost(noise, level, replace_factor=1.0)


def marginal_cost(public: Public, *, column: str, shape: Shape, bins: int, noise: Noise, level: float) -> Cost:
    """Zeroing a record out takes it from one cell (of each level or round): L1 = L2 = 1 for each. Replacing it also
    puts it into another: L1 = 2, L2 = sqrt(2). The noise is scaled by the number of levels or rounds, so the cost is
    the same."""
    public.facts.columns[public.party][column]
    return _cost(noise, level, replace_factor=2.0)


@step(cost=presence_cost)
def presence_count(me: Party, *, noise: Noise, level: float) -> Release:
    exact = int(np.count_nonzero(me.rows >= 0))
    value = exact + int(integer_noise(me.randomness, noise, level, 1, levels=1)[0])
    return Release(value, "a noisy count of this party's records in the cohort")


@step(cost=marginal_cost)
def marginal(
    me: Party, *, column: str, shape: Shape, bins: Annotated[int, MOST_BINS], noise: Noise, level: float
) -> Release:
    declared = me.block.columns[column]
    if shape == "adaptive":
        rounds = adaptive_rounds(noise, level)
        counted = release_adaptive(me, declared, rounds)
        return Release(adaptive.to_arrays(counted, rounds), f"noisy counts of the cells of {column}, round by round")
    public = cells(
        declared if shape == "histogram" else _leafy(declared), bins=bins if shape == "histogram" else 2**DEPTH
    )
    exact = me.aggregate([column], CellCounts(column, public))
    if shape == "tree":
        tree = dyadic_counts(exact[: 2**DEPTH])
        exact = np.concatenate([tree, exact[2**DEPTH :]])
    levels = DEPTH if shape == "tree" else 1
    noisy = exact + integer_noise(me.randomness, noise, level, len(exact), levels=levels)
    return Release(noisy, f"noisy counts of the public cells of {column}")


def release_adaptive(me: Party, column: Column, rounds: Rounds, *, filled: Sequence[str] = ()) -> list[adaptive.Counts]:
    """All rounds of one column, from this party's records in the cohort that have all cells of the `filled` columns."""
    axis = Axis.of(column)
    ordered, empty = me.aggregate([column.name], SortedValues(column.name), filled=filled)
    return adaptive.release(
        lambda edges: axis.count(ordered, edges),
        axis,
        n=me.facts.n,
        rounds=rounds,
        randomness=me.randomness,
        empty=empty if column.missing else None,
    )


@dataclass(frozen=True, eq=False)
class CellCounts:
    """How many records are in each of a column's public cells."""

    column: str
    cells: Cells

    def of(self, rows: NDArray[np.int64], values: Values) -> NDArray[np.int64]:
        return self.cells.count(values[self.column])

    def merge(self, left: NDArray[np.int64], right: NDArray[np.int64]) -> NDArray[np.int64]:
        return left + right


def _leafy(column: Column) -> Column:
    """The same bounds as a continuous column: the tree cuts them into 2^DEPTH equal leaves."""
    return Column(name=column.name, kind="continuous", lower=column.lower, upper=column.upper, missing=column.missing)


def integer_noise(
    randomness: Randomness, noise: Noise, level: float, size: int, *, levels: int
) -> np.ndarray[Any, np.dtype[np.int64]]:
    """Integer noise for counts of which one record changes at most one on each of `levels` levels."""
    if noise == "laplace":
        return discrete_laplace(randomness, _up(levels / level), size)
    return discrete_gaussian(randomness, level if levels == 1 else _up(level * _up(math.sqrt(levels))), size)


def _up(scale: float) -> float:
    """A computed scale is rounded; noise is made for no less than what the cost says."""
    return math.nextafter(scale, math.inf)


def noise_sd(noise: Noise, level: float) -> float:
    """Standard deviation of the noise on one count of a histogram."""
    if noise == "gaussian":
        return level
    # The discrete Laplace with ratio q = e^-level has variance 2 q / (1 - q)^2.
    q = math.exp(-level)
    return math.sqrt(2 * q) / (1 - q)
