"""Marginals of real columns: adaptive rounds beside OpenDP's tree and quantiles and PrivTree, at the same budget.

Criterion, written on 2026-11-17 before the run:

- For each setting (a column alone at a pure epsilon; a column of a table of 15 at (epsilon, 1e-6)), each epsilon of .3,
  1, 3 and each n of 2,000, 20,000, the mean over shapes of (our error / the error of the best of the three others for
  that shape) is at most 1.0, for the largest error of F (Kolmogorov's distance) and for Wasserstein's distance over the
  interquartile range. Errors below .001 count as .001. `worst_ratio` is the largest of these means. Shifts of a
  thousandth of the interquartile range are no error of F: without this none of the others could have a point mass.
- Point masses of at least twice the share that the forecast says is found, and 2 %, are found, and are within 3
  standard deviations of their noise, in 95 of 100 cases.
- No draw is silently worse than twice its forecast: `silent` counts draws whose distance is larger while the result
  neither calls the column mostly noise nor names a cell that was not told apart.

Options (rounds, cells, thresholds) were chosen on other simulations: other draws, and of the first twelve shapes other
parameters; the last five were not among them; since 2026-11-18 also on the numeric columns of Adult and Bank. They are
not blind all the same: short runs of this study came first, and led to a repair (columns that are mostly one point mass
lost the rest) and to the larger last round of Laplace noise, whose size was then chosen on the other simulations. The
allowance for shifts was added after a look at the others. A short run with two draws was short on 2026-11-18
(worst_ratio 1.278, columns alone); the rounds of Laplace noise and their forecast were then changed on the other
simulations. A run in full was stopped after the tables of 2,000 records (alone 1.25, 1.14, 0.89): Zipf's law was 4.36
times the best. Wide cells beside single integers are drawn as tails since, tried on other heavy tails of integers.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from benchmarks.common import Page, quick
from benchmarks.rivals.private_quantiles import Budget, opendp_quantiles, opendp_tree, privtree
from colonnade.privacy.accounting import calibrate
from colonnade.privacy.calibration import Calibration, Gaussians
from colonnade.privacy.cost import Laplace
from colonnade.privacy.randomness import SimulatedRandomness
from colonnade.statistics.adaptive import AdaptiveMarginal, Axis, Forecast, Rounds, release
from colonnade.statistics.describe import adaptive_rounds

Reals = NDArray[np.float64]
Generator = np.random.Generator

EPSILONS = (0.3, 1.0, 3.0)
SIZES = (2_000, 20_000)
DELTA, COLUMNS = 1e-6, 15
LEVELS = (np.arange(4096) + 0.5) / 4096
SHIFT = 0.001
"""Interquartile ranges by which a value may be off at no cost in Kolmogorov's distance."""
LEAST = 0.001
"""Errors below this count as this: nobody would see the difference."""


@dataclass(frozen=True)
class Shape:
    """A column as people have them: public bounds, and how values are drawn."""

    lower: float
    upper: float
    draw: Callable[[Generator, int], Reals]
    whole: bool = False

    @property
    def axis(self) -> Axis:
        top = self.upper + 1 if self.whole else self.upper
        return Axis(self.lower, top, int(top - self.lower) if self.whole else 1 << 40, self.whole)

    def values(self, rng: Generator, n: int) -> Reals:
        return np.sort(np.clip(self.draw(rng, n).astype(np.float64), self.lower, self.upper))


def _mixed(rng: Generator, n: int, share: float, point: float, others: Reals) -> Reals:
    return np.where(rng.random(n) < share, point, others)


def _rounded(values: Reals, unit: float) -> Reals:
    return np.asarray(np.rint(values / unit) * unit)


SHAPES: dict[str, Shape] = {
    "normal": Shape(-200, 200, lambda rng, n: rng.normal(10, 12, n)),
    "55 % zeros": Shape(0, 80, lambda rng, n: _mixed(rng, n, 0.55, 0.0, rng.gamma(4, 5, n))),
    "90 % zeros, amounts": Shape(0, 1e5, lambda rng, n: _mixed(rng, n, 0.9, 0.0, rng.lognormal(6, 1, n))),
    "nine decades": Shape(0, 1e9, lambda rng, n: rng.lognormal(9, 1, n)),
    "nine decades, integers": Shape(0, 10**9, lambda rng, n: np.rint(rng.lognormal(8, 0.7, n)), whole=True),
    "heaped amounts": Shape(
        0, 2e4, lambda rng, n: np.where(rng.random(n) < 0.6, _rounded(rng.gamma(3, 900, n), 250), rng.gamma(3, 900, n))
    ),
    "two humps": Shape(
        0, 500, lambda rng, n: np.where(rng.random(n) < 0.3, rng.normal(90, 4, n), rng.normal(300, 30, n))
    ),
    "limit of detection": Shape(0, 5000, lambda rng, n: np.maximum(rng.lognormal(1, 1.3, n), 1.5)),
    "constant": Shape(0, 1000, lambda rng, n: np.full(n, 7.25)),
    "nearly unique integers": Shape(0, 10**8, lambda rng, n: rng.choice(5 * 10**6, n), whole=True),
    "both bounds": Shape(0, 10, lambda rng, n: rng.normal(6, 4.5, n)),
    "rare counts": Shape(0, 5000, lambda rng, n: np.where(rng.random(n) < 0.88, 0, rng.poisson(4, n)), whole=True),
    "dates, weekdays and one day": Shape(
        0,
        40_000,
        lambda rng, n: _mixed(rng, n, 0.12, 21_915.0, _rounded(rng.normal(28_000, 2500, n), 7) + rng.integers(0, 5, n)),
        whole=True,
    ),
    "blood pressure, ends in 0": Shape(
        40,
        300,
        lambda rng, n: np.where(
            rng.random(n) < 0.5, _rounded(rng.normal(130, 18, n), 10), rng.normal(130, 18, n).round()
        ),
        whole=True,
    ),
    "heavy tails": Shape(-1e6, 1e6, lambda rng, n: 5 + 3 * rng.standard_t(2.5, n)),
    "capped salary": Shape(0, 1e6, lambda rng, n: np.minimum(rng.lognormal(10.4, 0.5, n), 60_000.0)),
    "Zipf": Shape(1, 10**6, lambda rng, n: np.minimum(rng.zipf(1.8, n), 10**6), whole=True),
}


# --- errors -------------------------------------------------------------------------------------------------------


def errors(ordered: Reals, drawn: Reals, *, whole: bool) -> tuple[float, float]:
    """(Kolmogorov's distance, Wasserstein's over the interquartile range) of values at LEVELS from the records."""
    found = np.sort(np.floor(drawn) if whole else drawn)
    low, high = np.quantile(ordered, [0.25, 0.75])
    spread = float(high - low) or float(ordered.std()) or 1.0
    exact = np.quantile(ordered, LEVELS, method="inverted_cdf")
    distance = max(_excess(ordered, found, SHIFT * spread), _excess(found, ordered, SHIFT * spread))
    return distance, float(np.abs(exact - found).mean()) / spread


def _excess(left: Reals, right: Reals, shift: float) -> float:
    """The most by which F of the left exceeds that of the right a little further on."""
    places = np.unique(left)
    here = np.searchsorted(left, places, side="right") / left.size
    return float((here - np.searchsorted(right, places + shift, side="right") / right.size).max())


@dataclass(frozen=True)
class Setting:
    """One budget: the rounds that it buys, and what the others get."""

    name: str
    rounds: Rounds
    budget: Budget


def settings(epsilon: float) -> tuple[Setting, Setting]:
    alone = Setting("alone", adaptive_rounds("laplace", epsilon), Budget(epsilon))
    counts = Gaussians(count=COLUMNS, share=COLUMNS)
    level = Calibration({"counts": counts}, epsilon=epsilon, delta=DELTA)["counts"]
    pure = 1 / calibrate(lambda scale: [Laplace(1 / scale).times(COLUMNS)], epsilon=epsilon, delta=DELTA)
    return alone, Setting("of 15", adaptive_rounds("gaussian", level), Budget(pure, level))


@dataclass
class Cell:
    """All draws of one shape in one setting: errors of each way, point masses looked for and right, silent draws."""

    ours: list[tuple[float, float]]
    others: dict[str, list[tuple[float, float]]]
    points: int = 0
    right: int = 0
    silent: int = 0

    def ratio(self, metric: int) -> float:
        best = min(float(np.mean([pair[metric] for pair in draws])) for draws in self.others.values())
        return max(self.mean(metric), LEAST) / max(best, LEAST)

    def mean(self, metric: int) -> float:
        return float(np.mean([pair[metric] for pair in self.ours]))

    def error(self, metric: int) -> float:
        return float(np.std([pair[metric] for pair in self.ours], ddof=1) / math.sqrt(len(self.ours)))


def measured(shape: Shape, setting: Setting, *, n: int, draws: int, seed: int) -> Cell:
    others = {"tree": opendp_tree, "quantiles": opendp_quantiles, "PrivTree": privtree}
    cell = Cell([], {name: [] for name in others})
    axis = shape.axis
    forecast = Forecast.of(axis, n=n, rounds=setting.rounds)
    for draw in range(draws):
        rng = np.random.default_rng((seed, n, draw))
        ordered = shape.values(rng, n)
        turns = release(
            partial(axis.count, ordered),
            axis,
            n=n,
            rounds=setting.rounds,
            randomness=SimulatedRandomness(int(rng.integers(2**62))),
        )
        ours = AdaptiveMarginal.of(turns, axis, n=n, rounds=setting.rounds)
        distance, moved = errors(ordered, ours.marginal.quantile(LEVELS), whole=shape.whole)
        cell.ours.append((distance, moved))
        flagged = ours.mostly_noise or bool(ours.unclear())
        cell.silent += int(distance > 2 * max(forecast.error, LEAST) and not flagged)
        _count_points(cell, ours, ordered, forecast)
        for name, way in others.items():
            more = {"rng": rng} if way is privtree else {}
            bounds = (axis.lower, axis.upper)
            drawn = way(ordered, *bounds, setting.budget, LEVELS, whole=shape.whole, **more)  # type: ignore[operator]
            cell.others[name].append(errors(ordered, drawn, whole=shape.whole))
    return cell


def _count_points(cell: Cell, ours: AdaptiveMarginal, ordered: Reals, forecast: Forecast) -> None:
    """Point masses of the records that the forecast says are found, and those that were, within 3 sd."""
    common = pd.Series(ordered).value_counts()
    moved = 0.5 if ours.axis.whole else 0.0
    found = {value - moved: place for place, value in enumerate(ours.points) if not math.isnan(value)}
    for value, records in common[common > max(2 * forecast.point, 0.02) * ordered.size].items():
        cell.points += 1
        place = found.get(float(value))  # type: ignore[arg-type]
        if place is not None:
            cell.right += int(abs(ours.counts[place] - records) <= 3 * ours.sds[place])


# --- the page -----------------------------------------------------------------------------------------------------


def main() -> int:
    page = Page("real-columns", "Marginals of real columns")
    draws = 2 if quick() else 10
    assert __doc__ is not None
    page.say(__doc__.partition("\n\n")[2])
    page.say(
        f"{draws} draws a cell, {len(SHAPES)} shapes. The others are central: OpenDP's b-ary tree (1,024 equal leaves,"
        " made consistent) and quantiles (15, on 1,024 candidates), and PrivTree. In a table of 15 columns the tree has"
        " Gaussian noise as we have; quantiles and PrivTree have the pure epsilon that composes to the same (epsilon,"
        " delta). Ours is the party's own code, with simulated noise of the same law."
    )
    worst, silent, points, right = 0.0, 0, 0, 0
    summary, details = [], []
    for n in SIZES:
        for epsilon in EPSILONS:
            for setting in settings(epsilon):
                cells = {
                    name: measured(shape, setting, n=n, draws=draws, seed=place)
                    for place, (name, shape) in enumerate(SHAPES.items())
                }
                ratios = [[cell.ratio(metric) for cell in cells.values()] for metric in (0, 1)]
                means = [float(np.mean(values)) for values in ratios]
                worst = max(worst, *means)
                silent += sum(cell.silent for cell in cells.values())
                points += sum(cell.points for cell in cells.values())
                right += sum(cell.right for cell in cells.values())
                largest = [max(cells, key=lambda name, metric=metric: cells[name].ratio(metric)) for metric in (0, 1)]  # type: ignore[misc]
                forecast = Forecast.of(SHAPES["normal"].axis, n=n, rounds=setting.rounds).error
                summary.append(
                    (
                        setting.name,
                        f"{n:,}",
                        f"{epsilon:g}",
                        f"{np.mean([cell.mean(0) for cell in cells.values()]):.4f}",
                        f"{forecast:.4f}",
                        f"{means[0]:.2f}",
                        f"{max(ratios[0]):.2f} ({largest[0]})",
                        f"{means[1]:.2f}",
                        f"{max(ratios[1]):.2f} ({largest[1]})",
                    )
                )
                print(" | ".join(summary[-1]), flush=True)
                details += [
                    (
                        name,
                        setting.name,
                        f"{n:,}",
                        f"{epsilon:g}",
                        *(
                            f"{cell.mean(metric):.4f} ± {cell.error(metric):.4f}; "
                            + ", ".join(
                                f"{np.mean([pair[metric] for pair in draws_]):.4f}" for draws_ in cell.others.values()
                            )
                            for metric in (0, 1)
                        ),
                        f"{cell.right} of {cell.points}" if cell.points else "",
                    )
                    for name, cell in cells.items()
                ]
    page.table(
        ("setting", "n", "epsilon", "our distance", "forecast", "mean ratio", "worst", "mean ratio, W / IQR", "worst"),
        summary,
    )
    share = right / max(points, 1)
    page.say(
        f"Point masses within 3 standard deviations of their noise: {right:,} of {points:,} ({100 * share:.1f} %)."
        f" Draws that are silently worse than twice their forecast: {silent}."
    )
    page.say("All cells: ours ± its standard error; tree, quantiles, PrivTree.")
    page.table(("shape", "setting", "n", "epsilon", "largest error of F", "Wasserstein / IQR", "point masses"), details)
    good = worst <= 1.0 and silent == 0 and share >= 0.95
    return page.finish(good, worst_ratio=f"{worst:.3f}", points=f"{share:.3f}", silent=silent)


if __name__ == "__main__":
    sys.exit(main())
