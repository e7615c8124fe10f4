"""Do the intervals of logistic and Poisson regression cover? Simulated columns; nothing missing, MCAR and MAR
in the response, in a covariate of its holder, and in both, not linearly.

10,000 records, 20 covariates at five parties; blocks of four of them go missing, half of the records each, so that a
sixteenth is complete. Pooled code with the functions of the parties and of the coordinator
(`tests/oracle/test_regress_glm.py` shows that the federation computes the same). Beside the weighted estimate stands
that of complete cases (unweighted, HC1).

**Chosen on, judged on.** The weights, the projection on scores of presence and the inflation of residuals were chosen
on "gaussian", "lognormal" and "half-binary" with seeds below 1,000; seeds from 4,000 on judge, and "zero-inflated" and
"three levels" were not looked at before.

**Criterion**, written before the run, that of `intervals.py`: a cell is *covered* if its mean coverage is from 93 to
97 % (two standard errors of Monte Carlo included), *silent* if its mean is below 92 % or a coefficient's below 85 %,
both beyond Monte Carlo error, and fewer than 80 % of its runs said "not valid" in their first line. Wanted: no silent
cell, and at least 80 % of the cells covered without a warning in 80 % of their runs.

Changed on 18 November 2026, after a page with three silent cells (binomial, nonlinear, of "lognormal", "zero-inflated"
and "three levels": one slope, that of the covariate on which presence depends, had a bias of 1.3 to 1.7 standard
deviations, with the true chances of presence nearly as much): weights of a binary response are calibrated to what the
holder's columns tell of the score, and the inflation of a count's residual follows the count. The cause was looked for
in these three cells with other seeds. The terms were chosen on "lognormal", "gaussian", "half-binary" and bootstraps of
Adult with a binary response, where the model does not hold, with seeds from 20,000 on. The judging seeds are the same.

DESIGNS="lognormal;three levels" runs some designs, MECHANISMS="mcar" and FAMILIES="poisson" some of these, QUICK=1 a
tenth of the repetitions; a page is written of all cells only.
"""

from __future__ import annotations

import os
import sys
from dataclasses import asdict, fields
from functools import cache, partial
from typing import get_args

import numpy as np
from scipy.special import expit
from scipy.stats import binom
from threadpoolctl import threadpool_limits

from benchmarks.common import Page, quick
from benchmarks.draws_common import Values
from benchmarks.intervals import FIRST_SEED, HIGH, LOW, SILENT_MEAN, SILENT_WORST, Array, Outcome, outcome
from benchmarks.intervals_common import MECHANISMS, Cell, Records, presence, simulated
from colonnade.errors import NotEstimable
from colonnade.models.glm.expansion import LARGEST_LOG_ODDS
from colonnade.models.glm.fit import verdict
from colonnade.models.glm.newton import Evaluation, Family, robust_covariance, solve
from colonnade.models.glm.scores import Remarks
from colonnade.models.glm.weights import CompleteWeights, complete_weights, equal_weights

DESIGNS = ("gaussian", "lognormal", "half-binary", "zero-inflated", "three levels")
RECORDS = 10_000
SPREAD = {"binomial": 1.2, "poisson": 0.5}
"""The standard deviation of the linear predictor; its mean is 0."""


@cache
def slopes_of(family: Family, design: str) -> tuple[float, Array]:
    """(intercept, slopes), from a large table of the design."""
    records = simulated(design, np.random.default_rng(0), 200_000)
    predictor = np.column_stack([records.own, records.others]) @ records.truth[1:]
    scale = SPREAD[family] / predictor.std()
    return -scale * float(predictor.mean()), scale * records.truth[1:]


def responding(family: Family, design: str, rng: np.random.Generator) -> Records:
    records = simulated(design, rng, RECORDS)
    intercept, slopes = slopes_of(family, design)
    predictor = intercept + np.column_stack([records.own, records.others]) @ slopes
    if family == "binomial":
        response = (rng.random(RECORDS) < expit(predictor)).astype(float)
    else:
        response = rng.poisson(np.exp(predictor)).astype(float)
    return Records(records.own, response, records.others, records.block, np.concatenate([[intercept], slopes]))


def estimate(family: Family, records: Records, fitted: CompleteWeights) -> tuple[Array, Array]:
    """Coefficients and errors from complete records."""
    used = fitted.weights > 0
    design = np.column_stack([np.ones(used.sum()), records.own[used], records.others[used]])
    weights, response = fitted.weights[used], records.response[used]

    def means(point: Array) -> tuple[Array, Array]:
        predictor = design @ point
        if family == "poisson":
            return np.exp(predictor), np.exp(predictor)
        return expit(predictor), expit(predictor) * expit(-predictor)

    def evaluate(point: Array, limit: float) -> Evaluation | None:
        predictor = design @ point
        if np.abs(predictor).max() > LARGEST_LOG_ODDS or predictor.max() > limit:
            return None
        mean, slope = means(point)
        score, bread = design.T @ (weights * (response - mean)), (design * (weights * slope)[:, None]).T @ design
        return Evaluation(score, bread, float(predictor.max()))

    solution = solve(family, evaluate, design.shape[1])
    score = design * (weights * (response - means(solution.params)[0]))[:, None]
    heavy = score * fitted.inflation(design.shape[1])[used, None]
    covariance = robust_covariance(solution.bread, heavy.T @ heavy, score.T @ fitted.scores[used])
    return solution.params, np.sqrt(np.diag(covariance))


def warned(family: Family, records: Records, fitted: CompleteWeights, present: Array) -> bool:
    response = records.response[fitted.weights > 0] > 0
    fewest = int(response.sum()) if family == "poisson" else int(min(response.sum(), (~response).sum()))
    remarks = Remarks(
        counts=(len(present) - fitted.complete, fitted.complete),
        effective=fitted.effective,
        capped=fitted.capped,
        unlikely=fitted.unlikely,
        rare=fitted.rare,
        fewest=fewest,
    )
    return verdict(remarks, len(records.truth), weighed=True).startswith("Not valid")


def study(family: Family, cell: Cell, repetitions: int) -> tuple[Outcome, Outcome, float, int]:
    """The weighted estimate, complete cases, how often the first line warned, how many were refused."""
    weighted, complete, truth, spread, warnings, refused = [], [], [], [], [], 0
    for repetition in range(repetitions):
        rng = np.random.default_rng([FIRST_SEED + repetition, *map(ord, family + cell.name)])
        records = responding(family, cell.design, rng)
        present = presence(cell, records, rng)
        own = np.column_stack([records.own, records.response])
        fitted = complete_weights(own, records.own.shape[1], present, family=family)
        try:
            own_estimate = estimate(family, records, fitted)
            other = estimate(family, records, equal_weights(present))
        except NotEstimable:
            refused += 1
            continue
        weighted.append((*own_estimate, 1.959964))
        complete.append((*other, 1.959964))
        truth.append(records.truth)
        spread.append(records.spread * records.response.std())
        warnings.append(warned(family, records, fitted, present))
    return outcome(weighted, truth, spread), outcome(complete, truth, spread), float(np.mean(warnings)), refused


def values_of(family: Family, cell: Cell, repetitions: int) -> Values:
    """{"estimate: figure": value} of `study`."""
    own, complete, share, refused = study(family, cell, repetitions)
    pairs = (("weighted", own), ("complete", complete))
    figures = {f"{name}: {key}": value for name, one in pairs for key, value in asdict(one).items()}
    return {**figures, "warned": share, "refused": refused}


HEAD = (
    "cell",
    "simulations",
    "mean coverage",
    "± (Monte Carlo)",
    "worst coefficient",
    "SE : sd",
    "warned",
    "complete cases: mean, worst",
    "RMSE : complete cases'",
    "says",
)


def main() -> int:
    page = Page("intervals-families", "Logistic and Poisson regression: do intervals cover?")
    page.say((__doc__ or "").split("\n\n", 1)[0].replace("\n", " "))
    families = [family for family in get_args(Family) if family in os.environ.get("FAMILIES", family)]
    designs = [design for design in DESIGNS if design in os.environ.get("DESIGNS", design).split(";")]
    mechanisms = [name for name in MECHANISMS if name in os.environ.get("MECHANISMS", name).split(";")]
    repetitions = 20 if quick() else int(os.environ.get("REPETITIONS", "200"))
    rows, covered, silent, worst = list[list[str]](), 0, list[str](), 1.0
    for family in families:
        for cell in (Cell(design, mechanism) for design in designs for mechanism in mechanisms):
            values = page.draws.get(
                (family, cell.name, repetitions), FIRST_SEED, partial(values_of, family, cell, repetitions)
            )
            own, complete = (
                Outcome(**{field.name: values[f"{name}: {field.name}"] for field in fields(Outcome)})
                for name in ("weighted", "complete")
            )
            share, refused = values["warned"], values["refused"]
            simulations, slopes = own.simulations, own.slopes
            # The lowest of p coverages, each binomial, is below this in 1 % of studies if all are 85 %.
            lowest = binom.ppf(1 - 0.99 ** (1 / slopes), simulations, SILENT_WORST) / simulations
            fails = (own.mean + 2 * own.error < SILENT_MEAN or own.worst < lowest) and share < 0.8
            good = LOW - 2 * own.error <= own.mean <= HIGH + 2 * own.error
            says = [word for word, true in (("silent", fails), (f"{refused} refused", refused)) if true]
            silent += [f"{family} {cell.name}"] if fails else []
            covered += good and share < 0.2
            worst = min(worst, own.mean)
            rows.append(
                [
                    f"{family}, {cell.name}",
                    f"{simulations}",
                    f"{own.mean:.3f}",
                    f"{own.error:.3f}",
                    f"{own.worst:.2f}",
                    f"{own.ratio:.2f}",
                    f"{share:.0%}",
                    f"{complete.mean:.3f}, {complete.worst:.2f}",
                    f"{own.rmse / complete.rmse:.2f}",
                    "; ".join(says),
                ]
            )
            print(" | ".join(rows[-1]), flush=True)
    page.table(HEAD, rows)
    if len(rows) < len(DESIGNS) * len(MECHANISMS) * len(get_args(Family)):
        os.environ["QUICK"] = "1"  # a page is of all cells
    ok = not silent and covered >= 0.8 * len(rows)
    return page.finish(ok, cells=len(rows), covered=covered, silent=len(silent), worst=f"{worst:.3f}")


if __name__ == "__main__":
    with threadpool_limits(limits=1):
        sys.exit(main())
