"""Error bars of synthetic tables: do intervals from one private table cover what is true of the population?

Criterion, written on 2026-11-17 before the run: intervals of means, shares, OLS and logistic coefficients cover the
population's value in 93 to 97 % (all parameters of a kind together), over at least 200 simulations, at epsilon 1 and 3,
with 10 columns of mixed kinds at three parties and n = 20,000. Queries for which `valid_for` says that the model lacks
something are counted apart: there the software has said so, and the page shows how far off they are.

QUICK=1 or SIMULATIONS=k runs fewer simulations; the page says how many there were.
"""

from __future__ import annotations

import math
import os
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Mapping

import numpy as np
import pandas as pd

from benchmarks.common import Page, quick
from colonnade.data.column import Column, Columns
from colonnade.federation.coordinator import Federation
from colonnade.synthesis.inference import Estimator, logistic, mean, ols, share
from colonnade.synthesis.method import Synthesize

N, EPSILONS, DELTA = 20_000, (3.0, 1.0), 1e-6
DRAWS = 20
WANTED = (0.93, 0.97)
REGIONS, GRADES, SECTORS = ("north", "east", "south", "west"), ("low", "middle", "high"), ("farm", "plant", "office")
COLUMNS = Columns(
    [
        Column(name="age", kind="count", lower=18, upper=90),
        Column(name="sex", kind="binary", categories=("f", "m")),
        Column(name="region", kind="categorical", categories=REGIONS),
        Column(name="pressure", kind="continuous", lower=60, upper=220),
        Column(name="grade", kind="ordinal", categories=GRADES),
        Column(name="treated", kind="binary", categories=("no", "yes")),
        Column(name="visits", kind="count", lower=0, upper=60),
        Column(name="income", kind="continuous", lower=0, upper=400_000),
        Column(name="sector", kind="categorical", categories=SECTORS),
        Column(name="event", kind="binary", categories=("no", "yes")),
    ]
)
PARTIES = {"clinic": ("age", "sex", "region", "pressure"), "care": ("grade", "treated", "visits")}
PARTIES["tax"] = ("income", "sector", "event")


def population(rng: np.random.Generator, n: int) -> pd.DataFrame:
    """Ten columns that depend on each other along curves, by categories and with an interaction."""
    age = np.clip(np.rint(rng.gamma(9, 5.2, n)), 18, 90)
    sex, region = rng.integers(0, 2, n), rng.choice(4, n, p=[0.4, 0.3, 0.2, 0.1])
    pressure = np.clip(105 + 0.5 * age + 6 * sex + rng.normal(0, 13, n), 60, 220)
    grade = np.digitize(0.02 * (age - 45) + 0.3 * (region == 1) + rng.normal(0, 1, n), [-0.4, 0.8])
    treated = rng.random(n) < 1 / (1 + np.exp(-(-3.2 + 0.02 * pressure + 0.3 * grade)))
    visits = np.minimum(rng.poisson(np.exp(0.2 + 0.4 * grade + 0.5 * treated)), 60)
    sector = np.array([rng.choice(3, n, p=p) for p in ([0.2, 0.4, 0.4], [0.4, 0.3, 0.3])])[sex, np.arange(n)]
    income = np.clip(np.exp(9.6 + 0.25 * (sector == 2) + 0.2 * sex + rng.normal(0, 0.5, n)), 0, 400_000)
    event = rng.random(n) < 1 / (1 + np.exp(-(-4.5 + 0.03 * age + 0.5 * treated + 0.4 * sex)))
    codes = [age, sex, region, pressure, grade, treated, visits, income, sector, event]
    encoded = zip(COLUMNS.items(), codes, strict=True)
    return pd.DataFrame(
        {
            name: column.decode(values.astype(np.int32 if column.discrete else np.float64))
            for (name, column), values in encoded
        }
    )


ESTIMATORS: Mapping[str, Mapping[str, Estimator]] = {
    "means": {name: mean(name) for name in ("age", "pressure", "visits", "income")},
    "shares": {
        f"{name} {value}": share(name, value)
        for name, value in (("sex", "m"), ("region", "west"), ("treated", "yes"), ("sector", "farm"), ("event", "yes"))
    },
    "OLS": {
        "pressure": ols("pressure", ["age", "sex"]),
        "visits": ols("visits", ["grade", "treated"]),
    },
    "logistic": {
        "event": logistic("event", ["age", "treated", "sex"]),
        "treated": logistic("treated", ["pressure", "grade"]),
    },
}


def parts(estimator: Estimator, rows: pd.DataFrame) -> dict[str, float]:
    """The parameters by name."""
    return {str(part): float(value) for part, value in pd.Series(estimator(rows)).items()}


def simulated(
    epsilon: float, seed: int, truth: Mapping[tuple[str, str], Mapping[str, float]]
) -> list[tuple[str, str, bool, float, float]]:
    """(kind, parameter, was it said to be valid, error over its standard error, standard error) of one table."""
    frame = population(np.random.default_rng([seed, 7]), N).assign(record=np.arange(N))
    blocks = {party: frame[["record", *names]] for party, names in PARTIES.items()}
    lines = []
    with tempfile.TemporaryDirectory() as folder:
        where = {"home": f"{folder}/home", "runs": f"{folder}/runs", "seed": seed}
        with Federation.local(blocks, key="record", columns=COLUMNS, **where) as federation:
            table = Synthesize(epsilon=epsilon, delta=DELTA, verify=False).fit(federation, sure=True)
    wanted = {(kind, name): each for kind, listed in ESTIMATORS.items() for name, each in listed.items()}

    def everything(rows: pd.DataFrame) -> dict[tuple[str, str, str], float]:
        return {
            (kind, name, part): value
            for (kind, name), each in wanted.items()
            for part, value in parts(each, rows).items()
        }

    for (kind, name, part), row in table.analyse(everything, draws=DRAWS, unproven=True).iterrows():  # type: ignore[misc]
        columns = wanted[kind, name].columns  # type: ignore[attr-defined]
        said = table.valid_for(columns).startswith("The model has")
        error = (row["estimate"] - truth[kind, name][part]) / row["standard_error"]
        half = (row["upper"] - row["estimate"]) / row["standard_error"]
        lines.append((kind, f"{name}: {part}", said, float(error / half), float(row["standard_error"])))
    return lines


def main() -> int:
    page = Page("tables-intervals", "Error bars of synthetic tables")
    rng = np.random.default_rng(20_261_117)
    large = population(rng, 2_000_000)
    truth = {(kind, name): parts(each, large) for kind, listed in ESTIMATORS.items() for name, each in listed.items()}
    count = int(os.environ.get("SIMULATIONS", "2" if quick() else "200"))
    limit = float(os.environ.get("MINUTES", "inf"))
    page.say(__doc__.partition("\n\n")[2].strip())
    started, good, least = time.monotonic(), count >= 200, 1.0
    for epsilon in EPSILONS:
        lines, runs = [], 0
        for seed in range(count):
            if (time.monotonic() - started) / 60 > limit * (1 + EPSILONS.index(epsilon)) / len(EPSILONS):
                break
            lines += simulated(epsilon, seed, truth)
            runs += 1
        groups: dict[tuple[str, bool], list[float]] = defaultdict(list)
        parameters: dict[tuple[str, str], list[float]] = defaultdict(list)
        for kind, name, said, ratio, _ in lines:
            groups[kind, said].append(ratio)
            parameters[kind, name].append(ratio)
        page.say(f"Epsilon {epsilon:g}: {runs} simulations.")
        rows = []
        for (kind, said), ratios in groups.items():
            covered = float(np.mean(np.abs(ratios) <= 1))
            error = math.sqrt(covered * (1 - covered) / max(len(ratios), 1))
            rows.append((kind, "yes" if said else "no", str(len(ratios)), f"{covered:.3f} ± {error:.3f}"))
            if said:
                good &= WANTED[0] <= covered <= WANTED[1]
                least = min(least, covered)
        page.table(("what", "model has these columns' dependence", "intervals", "cover"), rows)
        page.table(
            ("parameter", "intervals", "cover", "mean error over half of the interval"),
            [
                (f"{kind}, {name}", str(len(r)), f"{np.mean(np.abs(r) <= 1):.2f}", f"{np.mean(r):+.2f}")
                for (kind, name), r in parameters.items()
            ],
        )
    return page.finish(good, least_coverage=f"{least:.3f}", simulations=runs)


if __name__ == "__main__":
    sys.exit(main())
