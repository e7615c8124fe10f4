"""Error bars of synthetic tables: do intervals from one private table cover what is true of the population?

Criterion, written on 2026-11-17 before the run: intervals of means, shares, OLS and logistic coefficients cover the
population's value in 93 to 97 % (all parameters of a kind together), over at least 200 simulations, at epsilon 1 and 3,
with 10 columns of mixed kinds at three parties and n = 20,000. Intervals that are withheld, with a sentence that says
why, are counted apart, and the page shows how far off they would have been.

On the same day, before any run of it, a second population was added that is harder (two thirds zeros with a long tail,
heaped numbers, a top code, levels of 1 and 3 %), judged by the same limits. The constants of
`synthesis/calibration.py` were chosen on bootstraps of Adult; neither population was used for that.

A simulation goes without messages: exact tables and moments of the pooled records plus Skellam noise of the total mu,
then the product's own fit, rows and intervals. One federation is run with the noise off and must release the same
tables, count by count, and the same moments but for rounding. Cells of numbers and graph are those that the releases
of a first cohort chose, at the same epsilon; all else is each simulation's own. (A fit on another graph is compiled
anew, which would take three times as long as the rest.) `OWN=k` lets k simulations of each cell choose their own.

QUICK=1 or SIMULATIONS=k runs fewer simulations; MINUTES=m stops after m minutes. The page says how many there were.
"""

from __future__ import annotations

import math
import os
import sys
import tempfile
import time
import warnings
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import lru_cache, partial

import numpy as np
import pandas as pd

from benchmarks.common import Page, quick
from benchmarks.draws_common import Values
from benchmarks.mrf_common import Pooled, released_cuts
from colonnade.data.column import Column, Columns
from colonnade.federation.coordinator import Federation
from colonnade.federation.facts import PublicFacts
from colonnade.federation.roster import Member, Roster
from colonnade.privacy.randomness import SimulatedRandomness
from colonnade.privacy.skellam_sampler import skellam
from colonnade.statistics.adaptive import AdaptiveMarginal
from colonnade.statistics.features import Design
from colonnade.statistics.moments import MomentsLayout, MomentsResult
from colonnade.synthesis.field.evidence import FieldEvidence
from colonnade.synthesis.field.fit import Measurement
from colonnade.synthesis.field.procedure import FieldSynthesis, Measured, available, released_evidence, scaled_up
from colonnade.synthesis.field.sample import FieldSampler
from colonnade.synthesis.field.schema import Schema, TableQuery
from colonnade.synthesis.inference import Ready, logistic, mean, ols, share
from colonnade.synthesis.method import Synthesize
from colonnade.synthesis.table import SyntheticTable

N, EPSILONS, DELTA, SHARE = 20_000, (3.0, 1.0), 1e-6, 0.25
LARGE = 1_000_000
"""Records from which the population's values are computed."""
LIMIT = 20_000
"""Cells of a field, less than by default, so that a fit takes less than a second."""
WANTED = (0.93, 0.97)
ENOUGH = 200


@dataclass(frozen=True)
class Population:
    """Columns, who has them, how records come about (codes and numbers, in the order of the columns), and what is
    estimated."""

    name: str
    columns: Columns
    parties: Mapping[str, tuple[str, ...]]
    values: Callable[[np.random.Generator, int], Sequence[np.ndarray]]
    estimators: Mapping[str, Mapping[str, Ready]]

    def drawn(self, rng: np.random.Generator, n: int) -> pd.DataFrame:
        encoded = zip(self.columns.items(), self.values(rng, n), strict=True)
        return pd.DataFrame(
            {
                name: column.decode(np.asarray(values).astype(np.int32 if column.discrete else np.float64))
                for (name, column), values in encoded
            }
        )

    @property
    def wanted(self) -> dict[tuple[str, str], Ready]:
        return {(kind, name): each for kind, listed in self.estimators.items() for name, each in listed.items()}

    @property
    def facts(self) -> PublicFacts:
        return PublicFacts(n=N, columns={party: self.columns.select(own) for party, own in self.parties.items()})

    @property
    def roster(self) -> Roster:
        names = tuple(self.parties)
        members = tuple(
            Member(name=name, organisation=name, public_key=bytes([at + 1]) * 32, owns_data=True)
            for at, name in enumerate(names)
        )
        return Roster(members=members, committee=names, threshold=1, colluders=1)


def logit(line: np.ndarray) -> np.ndarray:
    return np.asarray(1 / (1 + np.exp(-line)))


def _clinic(rng: np.random.Generator, n: int) -> Sequence[np.ndarray]:
    """Ten columns that depend on each other along curves, by categories and with an interaction."""
    age = np.clip(np.rint(rng.gamma(9, 5.2, n)), 18, 90)
    sex, region = rng.integers(0, 2, n), rng.choice(4, n, p=[0.4, 0.3, 0.2, 0.1])
    pressure = np.clip(105 + 0.5 * age + 6 * sex + rng.normal(0, 13, n), 60, 220)
    grade = np.digitize(0.02 * (age - 45) + 0.3 * (region == 1) + rng.normal(0, 1, n), [-0.4, 0.8])
    treated = rng.random(n) < logit(-3.2 + 0.02 * pressure + 0.3 * grade)
    visits = np.minimum(rng.poisson(np.exp(0.2 + 0.4 * grade + 0.5 * treated)), 60)
    sector = np.array([rng.choice(3, n, p=p) for p in ([0.2, 0.4, 0.4], [0.4, 0.3, 0.3])])[sex, np.arange(n)]
    income = np.clip(np.exp(9.6 + 0.25 * (sector == 2) + 0.2 * sex + rng.normal(0, 0.5, n)), 0, 400_000)
    event = rng.random(n) < logit(-4.5 + 0.03 * age + 0.5 * treated + 0.4 * sex)
    return age, sex, region, pressure, grade, treated, visits, income, sector, event


def _spending(rng: np.random.Generator, n: int) -> Sequence[np.ndarray]:
    """Amounts, two thirds of them zero and the others with a long tail and a top code; heaped hours, rare levels."""
    age = np.clip(np.rint(rng.normal(45, 16, n)), 18, 95)
    plan = rng.choice(4, n, p=[0.62, 0.34, 0.03, 0.01])
    member = rng.random(n) < logit(-1.0 + 0.03 * (age - 45) + 0.8 * (plan == 1))
    usual = rng.random(n) < 0.45
    hours = np.where(usual, 40, np.clip(np.rint(rng.normal(36 - 0.08 * (age - 45), 12, n)), 0, 80))
    spends = rng.random(n) < logit(-1.0 + 0.9 * member)
    spent = np.minimum(np.exp(5.0 + 0.012 * (age - 45) + 0.5 * member + rng.normal(0, 1.1, n)), 20_000)
    spent = np.where(spends, np.where(rng.random(n) < 0.4, np.rint(spent / 50) * 50, spent), 0)
    claims = np.minimum(rng.negative_binomial(0.7, 0.35, n) + rng.poisson(0.4 * member), 40)
    band = np.digitize(0.6 * np.log1p(spent) / 5 + rng.normal(0, 1, n), [-0.3, 0.6, 1.6])
    channel = rng.choice(3, n, p=[0.6, 0.3, 0.1])
    late = rng.random(n) < logit(-2.6 + 0.25 * np.minimum(claims, 8) - 0.6 * member)
    leaves = rng.random(n) < logit(-2.2 + 0.9 * late - 0.02 * (age - 45) + 0.5 * (plan == 0))
    return age, member, plan, hours, spent, claims, band, channel, late, leaves


def binary(name: str) -> Column:
    return Column(name=name, kind="binary", categories=("no", "yes"))


REGIONS, GRADES, SECTORS = ("north", "east", "south", "west"), ("low", "middle", "high"), ("farm", "plant", "office")
POPULATIONS = (
    Population(
        "clinic",
        Columns(
            [
                Column(name="age", kind="count", lower=18, upper=90),
                Column(name="sex", kind="binary", categories=("f", "m")),
                Column(name="region", kind="categorical", categories=REGIONS),
                Column(name="pressure", kind="continuous", lower=60, upper=220),
                Column(name="grade", kind="ordinal", categories=GRADES),
                binary("treated"),
                Column(name="visits", kind="count", lower=0, upper=60),
                Column(name="income", kind="continuous", lower=0, upper=400_000),
                Column(name="sector", kind="categorical", categories=SECTORS),
                binary("event"),
            ]
        ),
        {
            "clinic": ("age", "sex", "region", "pressure"),
            "care": ("grade", "treated", "visits"),
            "tax": ("income", "sector", "event"),
        },
        _clinic,
        {
            "means": {name: mean(name) for name in ("age", "pressure", "visits", "income")},
            "shares": {
                f"{name} {value}": share(name, value)
                for name, value in (
                    ("sex", "m"),
                    ("region", "west"),
                    ("treated", "yes"),
                    ("sector", "farm"),
                    ("event", "yes"),
                )
            },
            "OLS": {
                "pressure": ols("pressure", ["age", "sex"]),
                "visits": ols("visits", ["grade", "treated"]),
            },
            "logistic": {
                "event": logistic("event", ["age", "treated", "sex"]),
                "treated": logistic("treated", ["pressure", "grade"]),
            },
        },
    ),
    Population(
        "spending",
        Columns(
            [
                Column(name="age", kind="count", lower=18, upper=95),
                binary("member"),
                Column(name="plan", kind="categorical", categories=("basic", "plus", "family", "staff")),
                Column(name="hours", kind="count", lower=0, upper=80),
                Column(name="spent", kind="continuous", lower=0, upper=20_000),
                Column(name="claims", kind="count", lower=0, upper=40),
                Column(name="band", kind="ordinal", categories=("a", "b", "c", "d")),
                Column(name="channel", kind="categorical", categories=("web", "shop", "post")),
                binary("late"),
                binary("leaves"),
            ]
        ),
        {
            "club": ("age", "member", "plan"),
            "shop": ("hours", "spent", "claims", "band"),
            "bank": ("channel", "late", "leaves"),
        },
        _spending,
        {
            "means": {name: mean(name) for name in ("age", "hours", "spent", "claims")},
            "shares": {
                f"{name} {value}": share(name, value)
                for name, value in (
                    ("member", "yes"),
                    ("plan", "family"),
                    ("plan", "staff"),
                    ("channel", "post"),
                    ("leaves", "yes"),
                )
            },
            "OLS": {
                "spent": ols("spent", ["age", "member"]),
                "hours": ols("hours", ["age", "channel"]),
                "claims": ols("claims", ["member", "late"]),
            },
            "logistic": {
                "leaves": logistic("leaves", ["age", "late", "member"]),
                "late": logistic("late", ["claims", "member"]),
            },
        },
    ),
)


# --- one simulation ---------------------------------------------------------------------------------------------------


class Cohort:
    """What a job releases of pooled records: the same numbers as the protocol's, without the messages."""

    def __init__(self, people: Population, procedure: FieldSynthesis, frame: pd.DataFrame, seed: int) -> None:
        self.people, self.procedure, self.seed = people, procedure, seed
        self.encoded = {name: column.encode(frame[name]) for name, column in people.columns.items()}

    def cuts(self) -> tuple[Schema, dict[str, AdaptiveMarginal]]:
        return released_cuts(self.procedure, self.encoded, seed=self.seed)

    def pooled(self, schema: Schema) -> Pooled:
        codes = {name: schema.cells[name].codes(self.encoded[name]).astype(np.int64) for name in schema.names}
        return Pooled(codes, schema, self.procedure.rounds.mus, SimulatedRandomness(self.seed, "tables"))

    def moments(self, layout: MomentsLayout) -> MomentsResult:
        rows = Design(tuple(layout.features))(np.arange(N), self.encoded)[1]
        gram = np.column_stack([np.ones(N), rows])
        gram = gram.T @ gram
        upper = np.triu_indices(len(gram))
        if layout.mu:
            drawn = skellam(SimulatedRandomness(self.seed, "moments"), Fraction(layout.mu), len(upper[0]))
            gram[upper] += drawn / layout.gamma**2
            gram.T[upper] = gram[upper]
        return MomentsResult(
            n=N,
            parties=layout.parties,
            presence=layout.presence,
            features=tuple(layout.features),
            patterns=(),
            entries=(tuple(layout.entries(layout.masks[0])),),
            grams=(gram,),
            noise_sd=layout.noise_sd,
            simulated=True,
        )


@dataclass(frozen=True)
class First:
    """What the releases of a first cohort chose: cells, and the tables of each round, and with them the graph."""

    procedure: FieldSynthesis
    schema: Schema
    asked: tuple[tuple[int, tuple[TableQuery, ...]], ...]
    measured: Measured


def chosen(people: Population, epsilon: float, frame: pd.DataFrame, seed: int) -> tuple[First, list[Measurement]]:
    method = Synthesize(
        model="field", epsilon=epsilon, delta=DELTA, moment_share=SHARE, max_clique=LIMIT, theta_triples=None
    )
    procedure = FieldSynthesis(replace(method, verify=False), people.facts, people.roster)
    cohort = Cohort(people, procedure, frame, seed)
    schema, _ = cohort.cuts()
    pooled, asked, opened = cohort.pooled(schema), list[tuple[int, tuple[TableQuery, ...]]](), list[Measurement]()

    def tables(number: int, queries: Sequence[TableQuery]) -> list[Measurement]:
        asked.append((number, tuple(queries)))
        opened.extend(found := pooled.tables(number, queries))
        return found

    measured = procedure.measure(schema, tables)
    return First(procedure, schema, tuple(asked), measured), opened


@lru_cache(maxsize=4)
def first_of(place: int, epsilon: float) -> First:
    people = POPULATIONS[place]
    return chosen(people, epsilon, people.drawn(np.random.default_rng([1, place, 7]), N), 10_000_019)[0]


def private_table(place: int, epsilon: float, seed: int, *, own: bool) -> SyntheticTable:
    """The table of one cohort. `own`: its cells and graph are from its own releases."""
    people = POPULATIONS[place]
    frame = people.drawn(np.random.default_rng([seed, place, 11]), N)
    first, opened = chosen(people, epsilon, frame, seed) if own else (first_of(place, epsilon), list[Measurement]())
    procedure, schema, measured = first.procedure, first.schema, first.measured
    cohort = Cohort(people, procedure, frame, seed)
    marginals = cohort.cuts()[1]
    if not own:
        pooled = cohort.pooled(schema)
        opened = [table for number, queries in first.asked for table in pooled.tables(number, queries)]
        scaled = scaled_up(opened, schema, available(opened, schema))
        inside = tuple(table for table in scaled if measured.graph.home(table.columns) is not None)
        measured = replace(measured, measurements=inside)
    assert procedure.moments is not None
    moments = cohort.moments(procedure.moments.layout)
    shapes = {name: each.marginal for name, each in marginals.items()}
    return SyntheticTable(
        method="synthesize",
        cohort=N,
        model=FieldSampler(schema.columns, schema.cells, procedure.fitted(measured), shapes),
        rows=N,
        seed=seed,
        cost="",
        simulated=True,
        evidence=released_evidence(schema, opened, moments),
    )


def simulated(
    place: int, epsilon: float, seed: int, truth: Mapping[tuple[str, str], pd.Series], *, own: bool
) -> dict[str, list[float]]:
    """{parameter: (error over half of its interval, whether it was given, standard error)} of one table."""
    table, found = private_table(place, epsilon, seed, own=own), dict[str, list[float]]()
    for (kind, name), each in POPULATIONS[place].wanted.items():
        intervals = table.analyse(each, unproven=True)
        withheld = intervals.attrs["withheld"]
        for part, row in intervals.iterrows():
            error = (row["estimate"] - truth[kind, name][part]) / ((row["upper"] - row["lower"]) / 2)
            far = float(error) if math.isfinite(error) else 99.0
            found[f"{kind}|{name}: {part}"] = [
                far,
                float(part not in withheld),
                float(np.nan_to_num(row["standard_error"])),
            ]
    return found


def same_as_a_federation() -> float:
    """One federation with the noise off: its tables are those of the pooled records, and so are its moments, but for
    rounding; returned is the largest difference of these as a share of n."""
    people = POPULATIONS[0]
    frame = people.drawn(np.random.default_rng(3), N)
    blocks = {party: frame[list(own)].assign(record=np.arange(N)) for party, own in people.parties.items()}
    method = Synthesize(model="field", epsilon=None, moment_share=SHARE, max_clique=LIMIT, iterations=1, verify=False)
    with tempfile.TemporaryDirectory() as folder:
        where = {
            "home": f"{folder}/home",
            "runs": f"{folder}/runs",
            "seed": 1,
            "allow": ("exact-tables", "exact-moments"),
        }
        with Federation.local(blocks, key="record", columns=people.columns, **where) as federation:
            evidence = method.fit(federation, sure=True).evidence
    assert isinstance(evidence, FieldEvidence)
    assert evidence.moments is not None
    procedure = FieldSynthesis(method, people.facts, people.roster)
    assert procedure.moments is not None
    cohort = Cohort(people, procedure, frame, 0)
    pooled = cohort.pooled(evidence.schema)
    for table in evidence.tables:
        bins = tuple(
            None if each is None else tuple(each.tolist()) for each in table.bins or (None,) * table.counts.ndim
        )
        assert np.array_equal(table.counts, pooled.exact(TableQuery(table.columns, bins))), table.columns
    exact = cohort.moments(procedure.moments.layout)
    assert exact.entries == evidence.moments.entries
    return float(np.abs(exact.grams[0] - evidence.moments.grams[0]).max() / N)


# --- the page ---------------------------------------------------------------------------------------------------------


def rate(hits: Sequence[bool]) -> str:
    if not hits:
        return "none"
    mean = float(np.mean(hits))
    return f"{mean:.3f} ± {math.sqrt(mean * (1 - mean) / len(hits)):.3f}"


def shown(page: Page, title: str, lines: Sequence[Values]) -> tuple[bool, float]:
    """The tables of one cell; whether it is within the limits, and its least coverage of a kind."""
    kinds, parameters = defaultdict[str, list[list[float]]](list), defaultdict[str, list[list[float]]](list)
    for line in lines:
        for name, figures in line.items():
            kinds[name.partition("|")[0]].append(figures)
            parameters[name].append(figures)
    page.say(f"{title}: {len(lines)} simulations.")
    rows, good, least = [], bool(lines), 1.0
    for kind, every in kinds.items():
        given = [abs(far) <= 1 for far, was, _ in every if was]
        held = [abs(far) <= 1 for far, was, _ in every if not was]
        own = {name: each for name, each in parameters.items() if name.startswith(f"{kind}|")}
        worst = min(
            (np.mean([abs(far) <= 1 for far, was, _ in each if was] or [1.0]), name) for name, each in own.items()
        )
        rows.append((kind, str(len(given)), rate(given), f"{worst[0]:.2f} ({worst[1].partition('|')[2]})", rate(held)))
        rows[-1] = (*rows[-1], f"{len(held) / len(every):.0%}")
        if given:
            good &= WANTED[0] <= np.mean(given) <= WANTED[1]
            least = min(least, float(np.mean(given)))
    page.table(("what", "intervals", "cover", "worst parameter", "withheld: would cover", "withheld"), rows)
    page.table(
        ("parameter", "given", "cover", "mean error over half of the interval", "standard error"),
        [
            (
                name.replace("|", ", "),
                f"{np.mean([was for _, was, _ in each]):.0%}",
                f"{np.mean([abs(far) <= 1 for far, _, _ in each]):.2f}",
                f"{np.median([far for far, _, _ in each]):+.2f}",
                f"{np.median([error for _, _, error in each]):.3g}",
            )
            for name, each in parameters.items()
        ],
    )
    return good, least


def main() -> int:
    warnings.simplefilter("ignore", UserWarning)
    page = Page("tables-intervals", "Error bars of synthetic tables")
    count = int(os.environ.get("SIMULATIONS", "2" if quick() else str(ENOUGH)))
    own = int(os.environ.get("OWN", "0"))
    limit, started = float(os.environ.get("MINUTES", "inf")), time.monotonic()
    page.say(__doc__.partition("\n\n")[2].strip())
    rounding = same_as_a_federation()
    page.say(
        f"The federation's tables are those of the pooled records; its moments differ by {rounding:.1e} n at most."
    )
    cells = [(place, epsilon) for place in range(len(POPULATIONS)) for epsilon in EPSILONS]
    truths = []
    for place, people in enumerate(POPULATIONS):
        large = people.drawn(np.random.default_rng([20_261_117, place]), LARGE)
        truths.append({key: each.fitted(large, np.ones(LARGE))[0] for key, each in people.wanted.items()})
    lines = defaultdict[tuple[int, float, bool], list[Values]](list)
    for place, epsilon in cells:  # a cell at a time: its fits are compiled once
        done = cells.index((place, epsilon)) + 1
        for seed in range(count):
            if (time.monotonic() - started) / 60 > limit * done / len(cells):
                break
            for alone in (False, True)[: 1 + (seed < own)]:
                work = partial(simulated, place, epsilon, seed, truths[place], own=alone)
                key = (POPULATIONS[place].name, epsilon, "own" if alone else "first")
                lines[place, epsilon, alone].append(page.draws.get(key, seed, work))
    good, least = True, 1.0
    for (place, epsilon, alone), found in lines.items():
        graph = ", cells and graph of their own" if alone else ""
        fine, lowest = shown(page, f"Population {POPULATIONS[place].name}, epsilon {epsilon:g}{graph}", found)
        good, least = good and (fine or alone), min(least, lowest if not alone else 1.0)
    fewest = min(len(lines[place, epsilon, False]) for place, epsilon in cells)
    page.say(
        f"{fewest} simulations of each cell at least; the criterion asks for {ENOUGH}."
        + ("" if fewest >= ENOUGH else " So it is **short** of that, whatever the figures are.")
    )
    return page.finish(good and fewest >= ENOUGH, least_coverage=f"{least:.3f}", simulations=fewest)


if __name__ == "__main__":
    sys.exit(main())
