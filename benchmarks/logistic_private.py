"""Coverage of `Regress(family="binomial", epsilon=...)`: do its intervals hold what they say, and does it say when not?

Scores and information are computed from whole records and get normal noise of the plan's size (`tests/oracle` has the
protocol); the units, their noise, clipping, steps and errors are the product's own. Three parties, client view.

The criterion (2026-11-17, written before the run): in every cell whose runs are not marked "not valid" (at least 80 %
of them), intervals cover 93 % or more on average and no coefficient less than 85 %, both less three Monte Carlo
standard errors: silent=0. Rounds, shares of the budget and clipping were chosen on "mild", "strong" and Adult;
"skewed", "rare" and ACS judge. On ACS the truth is the fit to all records of a state, and records are drawn with
replacement.

Changed after a first run on the same day, in which one of ten cells was short ("rare", 3,000 records: 91.2 % covered,
worst coefficient 77 %, marked in 79 % of the runs): a fit is marked where the smallest eigenvalue of the information is
below 0.75 of the norm of its noise, 0.5 before; the cells of 30,000 records were added, since ACS was marked in both
others; the seeds are others. Changed again after the second run, in which ACS with 30,000 records at epsilon 3 was
covered in 68.6 %, a coefficient never, and marked in 18 % of the runs: the model does not hold there, and clipped rows
weigh records otherwise than maximum likelihood does. Rows are clipped later (at 6 deviations of their square, before at
twice their expected square), which was chosen on Adult, added as a design.

Changed on 18 November 2026, after the page had one silent cell (ACS, 30,000 records: 88.8 % covered, worst coefficient
51 %, no run marked): one more round opens the score of rows that are clipped to .6 of their expected square, for 5 % of
the budget, and a fit is marked where it is not 0 (`private_fit.misfit`). Chosen, before ACS, "skewed" and "rare" were
run again, on bootstraps of Adult (four sets of columns) and Bank (two), 20 runs each at 30,000 records and epsilon 3:
85 to 100 % were marked where clipping moves a coefficient by half a standard error and more, none where it does not,
and none of 120 with responses drawn from the fitted model, nor of 40 of "mild" and "strong". The criterion is the same;
seeds are others. (A run then had no silent cell; after it eigenvalues of the information were raised to the norm of
their noise in Newton's steps, in place of half of it, for `poisson-private`, and this was run again with other seeds.)
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import partial

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from scipy.special import expit
from sklearn.linear_model import LogisticRegression
from threadpoolctl import threadpool_limits

from benchmarks.common import Page, load, quick
from colonnade.data.column import Column, Columns
from colonnade.federation.facts import PublicFacts
from colonnade.federation.roster import Member, Roster
from colonnade.models.glm.private import NoisyScores, Units
from colonnade.models.glm.private_fit import Estimate, PrivateGeneralizedFit, verdict
from colonnade.models.linear.result import NOT_VALID
from colonnade.privacy.randomness import SimulatedRandomness
from colonnade.privacy.skellam_sampler import skellam

DELTA = 1e-6
CELLS = ((3_000, 3.0), (10_000, 1.0), (30_000, 3.0))
RUNS, BATCH = 100, 20
LEAST_MEAN, LEAST_WORST, MARKED = 0.93, 0.85, 0.2
Table = NDArray[np.float64]
Rng = np.random.Generator


@dataclass(frozen=True, eq=False)
class Design:
    """`draw` gives (features, event, whether a record is complete); `columns` of each party, the response apart."""

    name: str
    columns: dict[str, list[Column]]
    draw: Callable[[int, Rng], tuple[Table, NDArray[np.bool_], NDArray[np.bool_]]]
    truth: Table

    def plan(self, n: int, epsilon: float) -> PrivateGeneralizedFit:
        parties = tuple(self.columns)
        response = Column(name="y", kind="binary", categories=("no", "yes"))
        owned = {
            party: Columns([*own, *([response] if party == parties[0] else [])]) for party, own in self.columns.items()
        }
        members = tuple(
            Member(name=party, organisation=party, public_key=bytes([at]) * 32) for at, party in enumerate(parties)
        )
        names = [column.name for own in self.columns.values() for column in own]
        return PrivateGeneralizedFit(
            PublicFacts(n=n, columns=owned),
            Roster(members=members, committee=parties),
            names=(*names, "y"),
            epsilon=epsilon,
            delta=DELTA,
        )


def number(name: str) -> Column:
    return Column(name=name, kind="continuous", lower=-1.0, upper=1.0)


def responses(table: Table, truth: Table, rng: Rng) -> NDArray[np.bool_]:
    return rng.random(len(table)) < expit(truth[0] + table @ truth[1:])


def everyone(n: int) -> NDArray[np.bool_]:
    return np.ones(n, dtype=bool)


def mild() -> Design:
    """Correlated numbers, a skewed one, a binary column and three categories."""
    truth = np.array([-0.5, 1.0, -0.8, 0.3, 0.5, 0.8, 0.6, 0.5, -0.5])

    def draw(n: int, rng: Rng) -> tuple[Table, NDArray[np.bool_], NDArray[np.bool_]]:
        common, two = rng.normal(size=n), np.clip(rng.normal(0, 0.3, (n, 2)), -1, 1)
        first, second = (np.clip(size * common + 0.2 * rng.normal(size=n), -1, 1) for size in (0.3, 0.25))
        skewed = np.clip(2 * np.exp(rng.normal(-2.5, 0.8, n)) - 1, -1, 1)
        code = rng.integers(0, 3, n)
        binary = np.where(rng.random(n) < 0.3, 1.0, -1.0)
        table = np.column_stack([two[:, 0], first, binary, two[:, 1], second, skewed, code == 1, code == 2])
        return table, responses(table, truth, rng), rng.random(n) < np.where(first > 0, 0.7, 0.95)

    columns = {
        "a": [number("a1"), number("a2"), Column(name="a3", kind="binary", categories=("no", "yes"))],
        "b": [number("b1"), number("b2"), number("b3")],
        "c": [Column(name="c1", kind="categorical", categories=("p", "q", "r"))],
    }
    return Design("mild, complete by a covariate", columns, draw, truth)


def strong() -> Design:
    truth = np.array([-0.3, 3.0, 0.0, -2.0, 1.5, 0.0])

    def draw(n: int, rng: Rng) -> tuple[Table, NDArray[np.bool_], NDArray[np.bool_]]:
        numbers, code = rng.uniform(-1, 1, (n, 3)), rng.integers(0, 3, n)
        table = np.column_stack([numbers, code == 1, code == 2])
        return table, responses(table, truth, rng), everyone(n)

    columns = {
        "a": [number("a1")],
        "b": [number("b1"), number("b2")],
        "c": [Column(name="c1", kind="categorical", categories=("p", "q", "r"))],
    }
    return Design("strong", columns, draw, truth)


def skewed() -> Design:
    """Lognormal amounts, two thirds of one of them zero; half of the records complete, at random."""
    truth = np.array([0.4, 0.8, 1.0, -0.5, 0.6])

    def draw(n: int, rng: Rng) -> tuple[Table, NDArray[np.bool_], NDArray[np.bool_]]:
        amounts = np.clip(2 * np.exp(rng.normal(-2.0, 1.0, (n, 3))) - 1, -1, 1)
        amounts[rng.random(n) < 2 / 3, 1] = -1.0
        table = np.column_stack([amounts, np.where(rng.random(n) < 0.5, 1.0, -1.0)])
        return table, responses(table, truth, rng), rng.random(n) < 0.5

    columns = {
        "a": [number("a1")],
        "b": [number("b1"), number("b2")],
        "c": [Column(name="c1", kind="binary", categories=("no", "yes"))],
    }
    return Design("skewed, half complete", columns, draw, truth)


def rare() -> Design:
    """An event of 5 %, and a category of 4 %."""
    truth = np.array([-3.2, 0.8, -0.6, 0.5, 0.7, -0.4])

    def draw(n: int, rng: Rng) -> tuple[Table, NDArray[np.bool_], NDArray[np.bool_]]:
        numbers = np.clip(rng.normal(0, 0.4, (n, 3)), -1, 1)
        code = rng.choice(3, n, p=[0.6, 0.36, 0.04])
        table = np.column_stack([numbers, code == 1, code == 2])
        return table, responses(table, truth, rng), everyone(n)

    columns = {
        "a": [number("a1")],
        "b": [number("b1"), number("b2")],
        "c": [Column(name="c1", kind="categorical", categories=("p", "q", "r"))],
    }
    return Design("rare", columns, draw, truth)


def census(name: str, whole: pd.DataFrame, school: str, sex: object, event: object, marital: Sequence[int]) -> Design:
    """Income by hours, sex, age and its square, marital status (or not) and schooling. The truth is the fit to all
    records."""

    def scaled(column: str) -> Table:
        values = whole[column].to_numpy(float)
        return np.asarray(2 * (values - values.min()) / (values.max() - values.min()) - 1)

    years = scaled("age")
    status = [(whole["marital_status"] == code).to_numpy(float) for code in marital[1:]]
    binary = np.where(whole["sex"] == sex, 1.0, -1.0)
    table = np.column_stack([scaled("hours_per_week"), binary, years, years**2, *status, scaled(school)])
    happened = (whole.iloc[:, -1] == event).to_numpy()
    fitted = LogisticRegression(C=1e9, max_iter=5000, tol=1e-8).fit(table, happened)

    def draw(n: int, rng: Rng) -> tuple[Table, NDArray[np.bool_], NDArray[np.bool_]]:
        rows = rng.integers(0, len(table), n)
        return table[rows], happened[rows], everyone(n)

    columns = {
        "a": [number("hours"), Column(name="sex", kind="binary", categories=("m", "f"))],
        "b": [
            number("age"),
            number("age2"),
            *([Column(name="marital", kind="categorical", categories=tuple(marital))] if marital else []),
        ],
        "c": [number("schooling")],
    }
    return Design(name, columns, draw, np.append(fitted.intercept_, fitted.coef_[0]))


def adult() -> Design:
    whole = load("adult")
    whole = whole[[name for name in whole if name != "income"] + ["income"]]
    return census("Adult", whole, "education_num", "Female", ">50K", ())


def acs() -> Design:
    whole = load("acs_income_ca_tx_ny_fl").query("state == 'CA'")
    whole = whole[[name for name in whole if name != "income_gt_50k"] + ["income_gt_50k"]]
    return census("ACS, CA", whole, "schooling", 2, 1, range(1, 6))


def clipped(layout: NoisyScores, whole: Table, own: Units) -> Table:
    """Rows of standardised features as parties clip them."""
    short = whole.copy()
    for party, norm in zip(layout.parties, own.norms[1:] * own.length, strict=True):
        mine = [place for place in layout.place(party).tolist() if place]
        lengths = np.linalg.norm(short[:, mine], axis=1, keepdims=True)
        short[:, mine] *= np.minimum(1.0, norm / np.maximum(lengths, 1e-300))
    return short


def one_fit(design: Design, made: PrivateGeneralizedFit, run: int) -> tuple[Units, Estimate]:
    layout, n = made.first.layout, made.first.layout.facts.n
    rng, randomness = np.random.default_rng(run), SimulatedRandomness(run, design.name)
    table, event, complete = design.draw(n, rng)
    told = {}
    for party, shape in made.sums.items():
        own = [at for at, feature in enumerate(layout.features) if feature.party == party]
        exact = shape.exact(table[:, own] * complete[:, None], complete, event, randomness)
        told[party] = exact + skellam(randomness, Fraction(made.mus[party]), shape.size)
    units = made.units(told)
    rows, answers = table[complete], event[complete]
    whole = np.column_stack([np.ones(len(rows)), (rows - units.centres) * units.scales])

    short = made.shorter(units)
    shown, harder = (clipped(layout, whole, own) for own in (units, short))

    def score(shown: Table, noise_sd: float, _: int, point: Table) -> Table:
        exact = shown.T @ (answers - expit(point[0] + rows @ point[1:]))
        return np.asarray(exact + rng.normal(scale=noise_sd, size=len(exact)))

    def information(point: Table) -> tuple[Table, float]:
        mean = expit(point[0] + rows @ point[1:])
        exact = (shown * (mean * (1 - mean))[:, None]).T @ shown
        sd = made.information.layout.noise_sd
        noise = np.triu(rng.normal(scale=sd * units.length**2, size=exact.shape))
        return exact + noise + np.triu(noise, 1).T, float(complete.sum() + rng.normal(scale=8 * sd))

    first, last = (partial(score, shown, stages.layout.noise_sd * units.length) for stages in (made.first, made.last))
    check = partial(score, harder, made.check.layout.noise_sd * short.length, 0)
    return units, made.estimate(units, first, information, last, check)


def drawn(design: Design, made: PrivateGeneralizedFit, batch: int) -> dict[str, object]:
    """Of a batch of simulations: how often intervals cover, means of errors, of their squares and of standard errors of
    each coefficient, and how often the fit was marked."""
    each = [simulated(design, made, 40_000 + BATCH * batch + run) for run in range(BATCH)]
    covered, off, error = (np.array([one[place] for one in each]) for place in range(3))
    return {
        "covered": covered.mean(axis=0).tolist(),
        "off": off.mean(axis=0).tolist(),
        "square": np.mean(off**2, axis=0).tolist(),
        "error": error.mean(axis=0).tolist(),
        "marked": float(np.mean([one[3] for one in each])),
        "noise": float(np.mean([one[4] for one in each])),
    }


def simulated(design: Design, made: PrivateGeneralizedFit, run: int) -> tuple[Table, Table, Table, bool, float]:
    units, estimate = one_fit(design, made, run)
    scales = np.append(1.0, units.scales)
    change = np.diag(scales)
    change[0, 1:] = -units.scales * units.centres
    cov = np.zeros((len(scales), len(scales)))
    cov[np.ix_(estimate.used, estimate.used)] = estimate.cov
    error = np.sqrt(np.diag(change @ cov @ change.T))
    off = change @ estimate.point - design.truth
    marked = verdict(estimate, made.first.layout.facts.n).startswith(NOT_VALID)
    return np.abs(off) <= 1.96 * error, off, error, marked, estimate.noise_share / (1 + estimate.noise_share)


def main() -> int:
    page = Page("logistic-private", "Intervals of private logistic regression")
    runs = BATCH if quick() else RUNS
    page.say(
        f"`Regress(family='binomial', epsilon=..., delta={DELTA:g})`, {runs} simulations a cell, three parties, client"
        " view. Scores and information have normal noise of the plan's size; units, clipping, steps and errors are the"
        " product's own. marked: how often the first line says that intervals are not valid. noise: its share of the"
        " variances. SE / sd: mean standard error over the deviation of the estimates."
    )
    silent, worst, lines = 0, 1.0, []
    for make in (mild, strong, adult, skewed, rare, acs):
        design = make()
        for n, epsilon in CELLS:
            made = design.plan(n, epsilon)
            found = [
                page.draws.get((design.name, n, epsilon), batch, partial(drawn, design, made, batch))
                for batch in range(runs // BATCH)
            ]
            covered, off, square, error = (
                np.mean([each[name] for each in found], axis=0) for name in ("covered", "off", "square", "error")
            )
            marked = float(np.mean([each["marked"] for each in found]))
            deviation = np.sqrt(square - off**2)
            mean, least = float(covered.mean()), float(covered.min())
            slack = 3 * math.sqrt(0.05 * 0.95 / runs)
            fails = mean < LEAST_MEAN - slack / 2 or least < LEAST_WORST - slack
            silent += fails and marked < 1 - MARKED
            if marked < MARKED:
                worst = min(worst, mean)
            lines.append(
                (
                    design.name,
                    f"{n:,}",
                    f"{epsilon:g}",
                    f"{100 * mean:.1f} %",
                    f"{100 * least:.1f} %",
                    f"{np.mean(error / deviation):.2f}",
                    f"{np.abs(off / deviation).max():.2f}",
                    f"{100 * float(np.mean([each['noise'] for each in found])):.0f} %",
                    f"{100 * marked:.0f} %",
                )
            )
    head = (
        "design",
        "records",
        "epsilon",
        "coverage",
        "worst coefficient",
        "SE / sd",
        "largest bias / sd",
        "noise",
        "marked",
    )
    page.table(head, lines)
    page.say(
        f"The criterion: no cell that is marked in less than {100 * (1 - MARKED):.0f} % of its runs covers less than"
        f" {100 * LEAST_MEAN:.0f} % on average or {100 * LEAST_WORST:.0f} % in a coefficient, less three Monte Carlo"
        " errors."
    )
    return page.finish(silent == 0, silent=silent, lowest=f"{100 * worst:.1f}%")


if __name__ == "__main__":
    with threadpool_limits(limits=1):
        sys.exit(main())
