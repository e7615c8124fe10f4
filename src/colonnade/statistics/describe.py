"""`describe`: how many records each party has, and the marginal of each column, with differential privacy.

The first thing a consortium wants to know. Each party counts at home and adds integer noise; nothing joint is
computed. All releases are priced together: (epsilon, delta) is a person's total over **all** parties.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal

import numpy as np
from numpy.typing import NDArray

from colonnade.codec import plain
from colonnade.data.aggregation import Values
from colonnade.data.column import Column
from colonnade.federation.facts import PublicFacts
from colonnade.federation.job import Job
from colonnade.federation.method import Method, Procedure, Result, method_class
from colonnade.federation.options import ColumnNames, Delta, Epsilon, Option
from colonnade.federation.party import Party
from colonnade.federation.roster import Roster
from colonnade.federation.stage import stage
from colonnade.federation.step import Public, Release, step
from colonnade.formatting import noise_width, number, share, with_noise
from colonnade.privacy.calibration import Calibration, Gaussians
from colonnade.privacy.cost import Cost, Gaussian, Laplace
from colonnade.privacy.noise import discrete_gaussian, discrete_laplace
from colonnade.privacy.randomness import Randomness
from colonnade.statistics.cells import Cells, cells
from colonnade.statistics.quantiles import consistent_leaves, dyadic_counts, quantiles
from colonnade.view.blocks import Figure, Figures, Section, Table, Text, View

if TYPE_CHECKING:
    from colonnade.audit.attack import Attack

Noise = Literal["gaussian", "laplace"]
DEPTH = 10
QUANTILES = (0.05, 0.25, 0.5, 0.75, 0.95)


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
        Literal["histogram", "quantiles"],
        Option("Counts in cells, or quantiles of numeric columns from a dyadic tree (better if skewed)."),
    ] = "histogram"
    bins: Annotated[int, Option("Cells of a continuous or long count column.", least=1, most=10_000)] = 20
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
        self.notes = (f"Each count of a histogram carries integer noise with standard deviation {self.sd:.1f}.",)

    def _noise(self) -> tuple[Noise, float]:
        releases = len(self.facts.parties) + sum(len(names) for names in self.wanted.values())
        if self.method.delta == 0:
            return "laplace", self.method.epsilon / releases
        counts = Gaussians(count=releases, share=releases)
        budget = Calibration({"counts": counts}, epsilon=self.method.epsilon, delta=self.method.delta)
        return "gaussian", budget["counts"]

    def _shape(self, column: Column) -> dict[str, Any]:
        tree = self.method.marginals == "quantiles" and not column.discrete
        return {"column": column.name, "shape": "tree" if tree else "histogram", "bins": self.method.bins}

    def run(self, job: Job) -> Description:
        presence = job.ask(self.presence)
        described: dict[str, dict[str, Any]] = {}
        for turn in range(self.marginals.rounds):
            for party, counts in job.ask(self.marginals).items():
                column = self.facts.column(self.wanted[party][turn])
                described[column.name] = self._marginal(column, party, np.asarray(counts, dtype=np.float64))
        return Description(
            n=self.facts.n,
            presence={party: int(value) for party, value in presence.items()},
            presence_sd=self.sd,
            marginals={name: described[name] for names in self.wanted.values() for name in names},
            epsilon=self.method.epsilon,
            delta=self.method.delta,
            simulated=job.simulated,
        )

    def _marginal(self, column: Column, party: str, counts: NDArray[np.float64]) -> dict[str, Any]:
        """Post-processing of one column's noisy counts; it costs nothing."""
        described: dict[str, Any] = {"party": party, "kind": column.kind}
        if self._shape(column)["shape"] == "tree":
            described["quantiles"] = _quantiles(column, *tree_leaves(column, counts))
            if column.missing:
                described["missing"] = float(counts[-1])
            described["sd"] = self.sd * (DEPTH if self.noise == "laplace" else math.sqrt(DEPTH))
            return described
        public = cells(column, bins=self.method.bins)
        described |= {"labels": list(public.labels), "counts": counts.tolist(), "sd": self.sd}
        if public.edges is not None:
            inside = counts[: len(public.edges) - 1]
            described["edges"] = public.edges.tolist()
            described["quantiles"] = _quantiles(column, inside, public.edges)
        return described


def tree_leaves(column: Column, counts: NDArray[np.float64]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """The counts of the leaves that fit a column's noisy tree best, and the leaves' edges between its bounds."""
    edges = cells(_leafy(column), bins=2**DEPTH).edges
    assert edges is not None
    return consistent_leaves(counts[: 2 ** (DEPTH + 1) - 2], DEPTH), edges


def _quantiles(column: Column, counts: NDArray[np.float64], edges: NDArray[np.float64]) -> dict[str, float]:
    """Integers for a count: the cell [a, a + 1) holds the value a."""
    values = quantiles(counts, edges, np.array(QUANTILES))
    if column.kind == "count":
        values = np.clip(np.floor(values), column.lower, column.upper)
    return dict(zip(map(str, QUANTILES), values.tolist(), strict=True))


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
            quality=f"A party's records are {width} in 95 of 100 cases. Each column's figure says its own noise.",
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
                            text="Every count carries noise. A bar that does not reach the dashed line (two standard"
                            " deviations of the noise) may be noise alone. Counts below zero are drawn as zero; the"
                            " tables show them as they are."
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

    def _in_short(self, marginal: Mapping[str, Any]) -> str:
        """The middle of a numeric column, or the most frequent category; neither where the noise hides both."""
        if self._below_noise(marginal):
            return "too few records for this noise"
        if "quantiles" in marginal:
            value = marginal["quantiles"]
            return f"median {value['0.5']:.4g}; 90 % between {value['0.05']:.4g} and {value['0.95']:.4g}"
        counts = dict(zip(marginal["labels"], marginal["counts"], strict=True))
        if len(counts) > 1:
            counts.pop("missing", None)
        top = max(counts, key=counts.__getitem__)
        return f"most often {top} ({share(counts[top], sum(max(count, 0.0) for count in counts.values()))})"

    def _below_noise(self, marginal: Mapping[str, Any]) -> bool:
        """Is the number of counted records within two standard deviations of its own noise?"""
        if "counts" in marginal:
            return bool(sum(marginal["counts"]) < 2 * marginal["sd"] * math.sqrt(len(marginal["counts"])))
        return bool(self.presence[marginal["party"]] < 2 * marginal["sd"])

    def _figure(self, name: str, marginal: Mapping[str, Any]) -> Figure:
        counts, edges = marginal.get("counts", ()), marginal.get("edges", ())
        empty = counts[-1] if len(counts) == len(edges) > 0 else marginal.get("missing")
        cells_empty = "" if empty is None else f"; {number(empty)} cells empty"
        caption = (
            f"{marginal['kind']}; {self._in_short(marginal)}{cells_empty}. Noise: standard deviation"
            f" {marginal['sd']:,.1f} a count."
        )
        if "counts" not in marginal:
            rows = [(f"{100 * float(level):g} %", f"{value:.6g}") for level, value in marginal["quantiles"].items()]
            if "missing" in marginal:
                rows.append(("missing", number(marginal["missing"])))
            return Figure(
                chart="quantiles",
                data={"quantiles": marginal["quantiles"]},
                label=f"Quantiles of {name}; the numbers are in the table below",
                title=name,
                caption=caption,
                numbers=Table(title=f"Quantiles of {name}", head=("quantile", "value"), rows=tuple(rows), numeric=(1,)),
            )
        labels = marginal["labels"]
        data: dict[str, Any] = {"labels": labels, "noise": marginal["sd"]}
        long = len(edges) > 8
        data |= {"counts": counts, "edges": edges} if long else {"values": counts}
        if not long and labels[-1] == "missing" and len(labels) > 1:
            data["empty_last"] = True
        rest = len(labels) - MOST_CELLS
        return Figure(
            chart="histogram" if long else "bars",
            data=data,
            label=f"Bar chart of {name}; the numbers are in the table below",
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


def marginal_cost(public: Public, *, column: str, shape: str, bins: int, noise: Noise, level: float) -> Cost:
    """Zeroing a record out takes it from one cell (of each level): L1 = L2 = 1 a level. Replacing it also puts it
    into another: L1 = 2, L2 = sqrt(2). The tree's noise is scaled by its levels, so its cost is the same."""
    public.facts.columns[public.party][column]
    return _cost(noise, level, replace_factor=2.0)


@step(cost=presence_cost)
def presence_count(me: Party, *, noise: Noise, level: float) -> Release:
    exact = int(np.count_nonzero(me.rows >= 0))
    value = exact + int(integer_noise(me.randomness, noise, level, 1, levels=1)[0])
    return Release(value, "a noisy count of this party's records in the cohort")


@step(cost=marginal_cost)
def marginal(
    me: Party, *, column: str, shape: Literal["histogram", "tree"], bins: int, noise: Noise, level: float
) -> Release:
    declared = me.block.columns[column]
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


@dataclass(frozen=True, eq=False)
class CellCounts:
    """How many records are in each of a column's public cells."""

    column: str
    cells: Cells

    def of(self, at: NDArray[np.int64], values: Values) -> NDArray[np.int64]:
        return self.cells.count(values[self.column])

    def merge(self, one: NDArray[np.int64], other: NDArray[np.int64]) -> NDArray[np.int64]:
        return one + other


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
