"""How often do the 95 % intervals of `Regress` cover the truth? 30, 60 and 90 % of the blocks missing, MCAR and MAR.

20 covariates in five blocks of 4, all pairs correlated by 0.3; the first block is at the response holder and so is
always there, the other four go missing for a record independently of one another. MAR: the log-odds depend on the
response and on the holder's first column. Everything is done on the pattern moments of simulated records, without a
federation: `tests/oracle/test_regress.py` shows that the federation computes the same moments. On the same records
stand the paper's model of independent parties (`colonnade.papers.VFEM`) and complete-case regression. Where parties are
uncorrelated the independent model is judged as well. Cases in which normality or missing at random fails, or in which
more data make the independent model worse, are shown and not judged. QUICK=1 repeats less and writes no page.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
from numpy.typing import NDArray
from scipy.special import expit
from scipy.stats import binom
from threadpoolctl import threadpool_limits

from benchmarks.common import Page, quick
from benchmarks.draws_common import Draws
from colonnade.errors import BadArguments, NotEstimable
from colonnade.models.linear.gaussian import Coefficients, regression
from colonnade.papers.vfem.model import Units, as_regression, block_moments, climb, starting_model
from colonnade.statistics.gaussian_em import PatternStatistics, fit_gaussian

Array = NDArray[np.float64]
BLOCKS, EACH, CORRELATION = 5, 4, 0.3
COVARIATES = BLOCKS * EACH
BETA = np.linspace(-1.0, 1.0, COVARIATES)
NOISE = 2.0
NAMES = (*(f"x{j}" for j in range(COVARIATES)), "y")
PARTIES = tuple(f"p{block}" for block in range(BLOCKS))
OWNERS = (*(PARTIES[j // EACH] for j in range(COVARIATES)), PARTIES[0])
LOW, HIGH = 0.93, 0.97


def gaussian(z: Array) -> Array:
    return z


def lognormal(z: Array) -> Array:
    """Skewed: exp(z) with mean 0 and variance 1."""
    return np.asarray((np.exp(z) - np.exp(0.5)) / np.sqrt((np.e - 1) * np.e))


def half_binary(z: Array) -> Array:
    """Every other covariate is a sign."""
    out = z.copy()
    out[:, ::2] = np.sign(z[:, ::2])
    return out


@dataclass(frozen=True, kw_only=True)
class Case:
    """One setting of the study; `judged` if the theory promises 95 % to `Regress`, and where columns of different
    parties are uncorrelated (not `across`) to `VFEM`."""

    rate: float
    mechanism: str
    n: int
    shape: Callable[[Array], Array] = gaussian
    across: bool = True
    judged: bool = True

    @property
    def name(self) -> str:
        apart = "" if self.across else ", parties uncorrelated"
        return f"{self.shape.__name__.replace('_', ' ')}{apart}, {self.rate:.0%} missing, {self.mechanism.upper()}"


CASES = [
    *(Case(rate=r, mechanism=m, n=n) for r, n in ((0.3, 5000), (0.6, 5000), (0.9, 20_000)) for m in ("mcar", "mar")),
    *(Case(rate=0.6, mechanism=m, n=5000, across=False) for m in ("mcar", "mar")),
    Case(rate=0.6, mechanism="mcar", n=20_000, judged=False),
    Case(rate=0.6, mechanism="mnar", n=5000, judged=False),
    Case(rate=0.6, mechanism="mar", n=5000, shape=lognormal, judged=False),
    Case(rate=0.6, mechanism="mar", n=5000, shape=half_binary, judged=False),
]


def draw(case: Case, rng: np.random.Generator) -> Array:
    """Records with NaN where a party has none."""
    common = rng.normal(size=(case.n, 1 if case.across else BLOCKS)).repeat(COVARIATES if case.across else EACH, axis=1)
    x = case.shape(np.sqrt(CORRELATION) * common + np.sqrt(1 - CORRELATION) * rng.normal(size=(case.n, COVARIATES)))
    y = x @ BETA + NOISE * rng.normal(size=case.n)
    score = 0.7 * y / NOISE / 2 + 0.5 * x[:, 0] if case.mechanism == "mar" else np.zeros(case.n)
    rows = np.column_stack([x, y])
    for block in range(1, BLOCKS):
        # Signs alternate: some parties know the successful ones, some the others. The intercept meets the rate.
        if case.mechanism == "mnar":  # a record is missing for what the missing block would have said, and the response
            score = 0.7 * y / NOISE / 2 + x[:, EACH * block]
        signed = score if block % 2 else -score
        gone = rng.random(case.n) < expit(signed + intercept(signed, case.rate))
        rows[gone, EACH * block : EACH * (block + 1)] = np.nan
    return rows


def intercept(score: Array, rate: float) -> float:
    """By bisection, so that the mean probability of missing is the rate; a smooth function of many records."""
    low, high = -30.0, 30.0
    for _ in range(40):
        middle = (low + high) / 2
        low, high = (middle, high) if expit(score + middle).mean() < rate else (low, middle)
    return (low + high) / 2


def estimate(data: PatternStatistics) -> Coefficients | None:
    try:
        return regression(data, fit_gaussian(data), COVARIATES)
    except BadArguments:
        return None


def independent(data: PatternStatistics) -> Coefficients | None:
    """`VFEM(solver="exact")`, from the same moments."""
    centre, variance = data.available()
    scale = np.sqrt(variance)
    moments = block_moments(data.standardised(centre, scale), OWNERS, COVARIATES, PARTIES)
    try:
        model, trace, steps = climb(moments, starting_model(moments, "mean"))
    except NotEstimable:
        return None
    units = Units(centre[:-1], scale[:-1], (float(centre[-1]), float(scale[-1])))
    terms = moments.terms(model)
    return as_regression(model, terms, units, names=NAMES[:-1], target=COVARIATES, trace=trace, steps=steps)[1]


@dataclass(frozen=True)
class Outcome:
    """Coverage of each slope, mean standard error over empirical sd, root mean square error; NaN if never estimated."""

    coverage: Array
    error_ratio: float
    rmse: float
    refused: int


CHUNK = 20
"""Simulations that are kept together as one draw."""
SUMS = ("fits", "covered", "error", "square", "stated")
NEVER = np.full(COVARIATES, np.nan)


def sums(found: list[Coefficients | None]) -> dict[str, Array]:
    """Of the fits that were made: how many, and for each slope how often it is covered, the sum of its errors, of their
    squares, and of its stated standard errors."""
    made = [one for one in found if one is not None]
    slopes = np.array([one.params[1:] for one in made]).reshape(-1, COVARIATES) - BETA
    errors = np.array([np.sqrt(np.diag(one.cov))[1:] for one in made]).reshape(-1, COVARIATES)
    inside = np.abs(slopes) <= 1.959964 * errors
    each = (np.full(1, float(len(made))), *(part.sum(axis=0) for part in (inside, slopes, slopes**2, errors)))
    return dict(zip(SUMS, each, strict=True))


def outcome(chunks: Sequence[Mapping[str, Sequence[float]]], method: str, repetitions: int) -> Outcome:
    totals = [np.sum([np.asarray(chunk[f"{method} {name}"]) for chunk in chunks], axis=0) for name in SUMS]
    fits, (covered, error, square, stated) = float(totals[0][0]), totals[1:]
    if fits < 2:
        return Outcome(NEVER, float("nan"), float("nan"), repetitions - round(fits))
    sd = np.sqrt((square - error**2 / fits) / (fits - 1))
    return Outcome(
        coverage=covered / fits,
        error_ratio=float(np.mean(stated / fits / sd)),
        rmse=float(np.sqrt(np.mean(square / fits))),
        refused=repetitions - round(fits),
    )


def chunk_of(case: Case, repetitions: Sequence[int], number: int) -> dict[str, list[float]]:
    """Sums over some simulations, for `Regress`, the independent model and complete cases."""
    found: dict[str, list[Coefficients | None]] = {"full": [], "apart": [], "complete": []}
    for repetition in repetitions:
        data = PatternStatistics.of_rows(draw(case, np.random.default_rng([number, repetition])), NAMES)
        whole = tuple(one for one in data.patterns if len(one.observed) == len(NAMES))
        found["full"].append(estimate(data))
        found["apart"].append(independent(data))
        enough = bool(whole) and whole[0].count > 2 * len(NAMES)
        found["complete"].append(estimate(PatternStatistics(NAMES, whole)) if enough else None)
    return {
        f"{method} {name}": [float(f"{value:.9g}") for value in values]
        for method, each in found.items()
        for name, values in sums(each).items()
    }


def study(case: Case, repetitions: int, number: int, draws: Draws) -> tuple[Outcome, Outcome, Outcome]:
    """(`Regress`, the independent model, complete cases)."""
    chunks = [
        draws.get(
            (case.name, case.n),
            start,
            partial(chunk_of, case, range(start, min(start + CHUNK, repetitions)), number),
        )
        for start in range(0, repetitions, CHUNK)
    ]
    full, apart, complete = (outcome(chunks, method, repetitions) for method in ("full", "apart", "complete"))
    return full, apart, complete


HEAD = (
    "setting",
    "n",
    "simulations",
    "judged",
    "mean coverage",
    "over the coefficients",
    "99.9 % band",
    "error ratio",
    "RMSE",
    "independent: coverage",
    "independent: over the coefficients",
    "independent: RMSE",
    "complete cases: coverage",
    "complete cases: RMSE",
)


def main() -> int:
    page = Page("vfem-coverage", "Regression: coverage of 95 % intervals")
    page.say(
        f"20 covariates in five blocks of 4, pairwise correlation {CORRELATION} (between blocks too, but where parties"
        f" are uncorrelated), error sd {NOISE}. The first block is"
        " at the response holder and is always there; each of the other four is missing for a record with the stated"
        " probability. MAR: the log-odds depend on the response and on one column of the holder, with alternating"
        " signs. MNAR: on the response and on a column of the block that is missing. `Regress` on"
        " pattern moments computed directly. The band is where a coefficient's"
        " coverage falls with probability 99.9 % if its true coverage is 95 %. The error ratio is the mean standard"
        ' error over the empirical standard deviation. "independent": `VFEM` on the same moments.'
        " It is judged where its assumption holds, and shown elsewhere."
    )
    repetitions = 40 if quick() else 500
    rows, means, outside, refused = [], [], 0, 0
    for number, case in enumerate(CASES):
        count = repetitions if case.judged else max(repetitions // 5, 20)
        full, apart, complete = study(case, count, number, page.draws)
        low, high = (edge / count for edge in binom.interval(0.999, count, 0.95))
        for one in (full, *(() if case.across else (apart,))) if case.judged else ():
            means.append(float(one.coverage.mean()))
            outside += int(np.sum((one.coverage < low) | (one.coverage > high)))
            refused += one.refused
        rows.append(
            [
                case.name,
                f"{case.n:,}",
                f"{count}",
                "yes" if case.judged else "no",
                f"{full.coverage.mean():.1%}",
                f"{full.coverage.min():.1%} to {full.coverage.max():.1%}",
                f"{low:.1%} to {high:.1%}",
                f"{full.error_ratio:.3f}",
                f"{full.rmse:.4f}",
                f"{apart.coverage.mean():.1%}",
                f"{apart.coverage.min():.1%} to {apart.coverage.max():.1%}",
                f"{apart.rmse:.4f}",
                "too few" if np.isnan(complete.rmse) else f"{complete.coverage.mean():.1%}",
                "" if np.isnan(complete.rmse) else f"{complete.rmse:.4f}",
            ]
        )
        print(" | ".join(rows[-1]), flush=True)
    page.table(HEAD, rows)
    page.say(
        "The rows that are not judged show where the theory does not hold: standard errors are those of jointly"
        " Gaussian columns. 90 % missing with n = 5,000 is not in the table: about 50 records for each pair of parties"
        " are fewer than `minimum_joint` asks for, and `Regress` refuses. Complete cases are biased where missingness"
        " depends on the response, and few where much is missing. The independent model is biased where columns of"
        " different parties are correlated, and more records make its intervals narrower about the wrong values; where"
        " they are not, it is right and has the smaller error. Nothing here is right where what decides that a block is"
        " missing is in that block (MNAR)."
    )
    good = min(means) >= LOW and max(means) <= HIGH and outside == 0 and refused == 0
    return page.finish(
        good,
        lowest=f"{min(means):.3f}",
        highest=f"{max(means):.3f}",
        limits=f"{LOW}-{HIGH}",
        outside_band=f"{outside}/{COVARIATES * len(means)}",
        refused=refused,
    )


if __name__ == "__main__":
    with threadpool_limits(limits=1):
        sys.exit(main())
