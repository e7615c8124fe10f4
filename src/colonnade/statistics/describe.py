"""`describe`: how many records each party has, and the marginal of each column, with differential privacy.

The first thing a consortium wants to know. Each party counts at home and adds integer noise; nothing joint is
computed. All releases are priced together: (epsilon, delta) is a person's total over **all** parties.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Self

import numpy as np
from numpy.typing import NDArray

from colonnade.data.aggregation import Values
from colonnade.data.column import Column
from colonnade.errors import BadArguments
from colonnade.federation.facts import PublicFacts
from colonnade.federation.job import Job
from colonnade.federation.party import Party
from colonnade.federation.plan import Plan, phase
from colonnade.federation.roster import Roster
from colonnade.federation.run_folder import RunFolder
from colonnade.federation.step import Public, Release, step
from colonnade.privacy.accounting import calibrate, check_delta, check_epsilon
from colonnade.privacy.cost import Cost, Gaussian, Laplace
from colonnade.privacy.noise import discrete_gaussian, discrete_laplace
from colonnade.privacy.randomness import Randomness
from colonnade.statistics.cells import Cells, cells
from colonnade.statistics.quantiles import consistent_leaves, dyadic_counts, quantiles

if TYPE_CHECKING:
    from colonnade.federation.coordinator import Federation

Noise = Literal["gaussian", "laplace"]
DEPTH = 10
QUANTILES = (0.05, 0.25, 0.5, 0.75, 0.95)


# --- the coordinator's procedure --------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Describe:
    """Noisy presence counts and marginals.

    Parameters
    ----------
    epsilon, delta : a person's total over all parties; delta = 0 takes Laplace noise, otherwise discrete Gaussian.
    marginals : "histogram" (counts in `bins` public cells) or "quantiles" (continuous and count columns get a dyadic
        tree instead, which answers quantiles of skewed columns better).
    bins : cells of a continuous or long count column.
    columns : which columns; all by default.

    Returns
    -------
    `fit(federation)` gives a `Description`: `presence` and `marginals`, with their noise.

    Example
    -------
    >>> sorted(co.Describe(epsilon=1.0, columns=("roa",)).fit(federation).presence)
    ['commerce', 'court', 'credit', 'enforcement', 'market']
    """

    name: ClassVar[str] = "describe"

    epsilon: float = 1.0
    delta: float = 1e-6
    marginals: Literal["histogram", "quantiles"] = "histogram"
    bins: int = 20
    columns: tuple[str, ...] | None = None

    def __post_init__(self) -> None:
        check_epsilon(self.epsilon)
        check_delta(self.delta)
        if self.marginals not in ("histogram", "quantiles"):
            raise BadArguments(f"marginals must be 'histogram' or 'quantiles', not {self.marginals!r}.")
        if not 1 <= self.bins <= 10_000:
            raise BadArguments(f"bins must lie between 1 and 10,000, not {self.bins!r}.")

    def options(self) -> dict[str, Any]:
        columns = None if self.columns is None else list(self.columns)
        return {
            "epsilon": self.epsilon,
            "delta": self.delta,
            "marginals": self.marginals,
            "bins": self.bins,
            "columns": columns,
        }

    @classmethod
    def from_options(cls, options: Mapping[str, Any]) -> Self:
        columns = options["columns"]
        return cls(**{**options, "columns": None if columns is None else tuple(columns)})

    def fit(self, federation: Federation) -> Description:
        """Run it; the run folder is in `federation.runs`."""
        return federation.run(self)[0]  # type: ignore[no-any-return]

    def _wanted(self, facts: PublicFacts) -> dict[str, list[str]]:
        if self.columns is None:
            return {party: list(columns) for party, columns in facts.columns.items()}
        for name in self.columns:
            facts.owner(name)
        return {party: [c for c in columns if c in self.columns] for party, columns in facts.columns.items()}

    def _noise(self, facts: PublicFacts) -> dict[str, Any]:
        """One noise level for all releases, so that together they cost exactly (epsilon, delta)."""
        releases = len(facts.parties) + sum(len(names) for names in self._wanted(facts).values())
        if self.delta == 0:
            return {"noise": "laplace", "level": self.epsilon / releases}
        level = calibrate(
            lambda multiplier: [Gaussian(multiplier).times(releases)], epsilon=self.epsilon, delta=self.delta
        )
        return {"noise": "gaussian", "level": level}

    def _shape(self, column: Column) -> dict[str, Any]:
        tree = self.marginals == "quantiles" and not column.discrete
        return {"column": column.name, "shape": "tree" if tree else "histogram", "bins": self.bins}

    def plan(self, facts: PublicFacts, roster: Roster) -> Plan:
        noise = self._noise(facts)
        marginals = {
            party: [{**self._shape(facts.column(name)), **noise} for name in names]
            for party, names in self._wanted(facts).items()
        }
        here: dict[str, Any] = {"facts": facts, "roster": roster}
        phases = [
            phase(
                "presence",
                presence_count,
                {party: [noise] for party in facts.parties},
                discloses="a noisy count of the party's records in the cohort",
                **here,
            ),
            phase("marginals", marginal, marginals, discloses="noisy counts of one column's public cells", **here),
        ]
        sd = noise_sd(noise["noise"], noise["level"])
        return Plan(
            method=self.name,
            options=self.options(),
            phases=tuple(one for one in phases if one.costs),
            notes=(f"Each count of a histogram carries integer noise with standard deviation {sd:.1f}.",),
            delta=self.delta,
        )

    def execute(self, job: Job) -> Description:
        noise = self._noise(job.facts)
        sd = noise_sd(noise["noise"], noise["level"])
        presence = job.ask(presence_count, **noise)
        described: dict[str, dict[str, Any]] = {}
        wanted = self._wanted(job.facts)
        for turn in range(max(len(names) for names in wanted.values())):
            asked = {party: names[turn] for party, names in wanted.items() if turn < len(names)}
            arguments = {party: {**self._shape(job.facts.column(name)), **noise} for party, name in asked.items()}
            for party, counts in job.ask_each(marginal, arguments).items():
                column = job.facts.column(asked[party])
                described[column.name] = self._read(column, party, np.asarray(counts, dtype=np.float64), noise)
        return Description(
            n=job.facts.n,
            presence={party: int(value) for party, value in presence.items()},
            presence_sd=sd,
            marginals={name: described[name] for names in wanted.values() for name in names},
            epsilon=self.epsilon,
            delta=self.delta,
            simulated=job.simulated,
        )

    def _read(self, column: Column, party: str, counts: Any, noise: Mapping[str, Any]) -> dict[str, Any]:
        """Post-processing of one column's noisy counts; it costs nothing."""
        plain: dict[str, Any] = {"party": party, "kind": column.kind}
        sd = noise_sd(noise["noise"], noise["level"])
        if self._shape(column)["shape"] == "tree":
            leaves = consistent_leaves(counts[: 2 ** (DEPTH + 1) - 2], DEPTH)
            fine = cells(_leafy(column), bins=2**DEPTH)
            assert fine.edges is not None
            plain["quantiles"] = _quantiles(column, leaves, fine.edges)
            if column.missing:
                plain["missing"] = float(counts[-1])
            plain["sd"] = sd * (DEPTH if noise["noise"] == "laplace" else math.sqrt(DEPTH))
            return plain
        public = cells(column, bins=self.bins)
        plain |= {"labels": list(public.labels), "counts": counts.tolist(), "sd": sd}
        if public.edges is not None:
            inside = counts[: len(public.edges) - 1]
            plain["edges"] = public.edges.tolist()
            plain["quantiles"] = _quantiles(column, inside, public.edges)
        return plain


def _quantiles(column: Column, counts: Any, edges: Any) -> dict[str, float]:
    """Whole numbers for a count: the cell [a, a + 1) holds the value a."""
    found = quantiles(counts, edges, np.array(QUANTILES))
    if column.kind == "count":
        found = np.clip(np.floor(found), column.lower, column.upper)
    return dict(zip(map(str, QUANTILES), found.tolist(), strict=True))


@dataclass(frozen=True, kw_only=True)
class Description:
    """Noisy counts. `presence` is out of `n`; `marginals` has one entry a column; `sd` is the noise of one count."""

    n: int
    presence: Mapping[str, int]
    presence_sd: float
    marginals: Mapping[str, Mapping[str, Any]]
    epsilon: float
    delta: float
    simulated: bool

    def write(self, run: RunFolder) -> None:
        run.write_json(
            "result.json",
            {
                "kind": "description",
                "n": self.n,
                "presence": dict(self.presence),
                "presence_sd": self.presence_sd,
                "marginals": {name: dict(one) for name, one in self.marginals.items()},
                "epsilon": self.epsilon,
                "delta": self.delta,
                "simulated": self.simulated,
            },
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
