"""Complete data at the copula paper's nominal epsilon: its Tables 1 to 3 (RMSE, G-means, FDR), as far as they can be.

Pooled fit (Original-C), the same in the federation (Original-VFL), VCDS and EVCDS of ours (smooth marginals) and as
printed (`as_printed`: Bernstein marginals, adjusted rows, N rows), with split="none" (what its tables need) and
split="theorem" (what its Theorem 1 says), Synthesize at the record-level epsilon that VCDS's theorem split costs,
VFL-ADMM-DP and VertiGAN. All tables are fitted alike. The simulation is under-specified, so ratios to the pooled fit
are compared, not RMSE: VCDS / pooled, linear, epsilon 1, split="none", with as many rows as records, within 20 % of the
paper's 2.3, 2.5 and 2.7 at N = 1,000, 3,000, 5,000. Also asked: error falls with N and epsilon; VCDS and EVCDS are far
better (half the RMSE or less) than VFL-ADMM-DP and, linear, than VertiGAN; logistic, better than it. These criteria are
of before 2026-11-17, on variants of ours; the columns as printed came then, are shown and not asked, and every cell has
20 draws (10 of VertiGAN, 5 of Original-VFL, logistic, which takes minutes each). QUICK=1 draws once and leaves out
epsilon 3, N = 3,000, VertiGAN and these 5.
"""

from __future__ import annotations

import itertools
import sys
from collections.abc import Callable
from dataclasses import replace
from functools import lru_cache, partial

import numpy as np
import pandas as pd
from threadpoolctl import threadpool_limits

from benchmarks.common import Page, quick
from benchmarks.copula_common import (
    FAMILY,
    ROWS,
    Records,
    federated,
    fitted_quality,
    measured,
    numbers,
    pooled_copula,
    record_epsilon,
    vertigan_rows,
)
from benchmarks.draws_common import Cell
from benchmarks.rivals.vfl_admm_dp import vfl_admm_dp
from benchmarks.sparse_glm import ALLOW as SELECTION
from benchmarks.sparse_selection import Quality, null_rmse, quality
from colonnade.data.simulated import Example, copula_paper
from colonnade.data.simulated.copula_paper import Response
from colonnade.models.sparse.select import Select
from colonnade.papers.vcds.method import EVCDS, VCDS
from colonnade.synthesis.method import Synthesize
from colonnade.synthesis.table import SyntheticTable

FIRST_SEED = 82_000
SIZES = (1000, 3000, 5000)
DELTA = 1e-5
NOMINAL = VCDS(delta=DELTA, accounting="nominal", split="none")
ENHANCED = EVCDS(delta=DELTA, accounting="nominal", split="none")
RATIO = {1000: 0.1490 / 0.0651, 3000: 0.0871 / 0.0355, 5000: 0.0674 / 0.0247}
"""VCDS over Original-C in the paper's Table 1: linear, epsilon 1."""
WITHIN, FAR = 0.2, 0.5
PAPER = {
    ("linear", 1.0): {
        1000: (0.065, 0.149, 0.149, 0.438, 0.324),
        3000: (0.036, 0.087, 0.080, 0.279, 0.328),
        5000: (0.025, 0.067, 0.063, 0.252, 0.321),
    },
    ("logistic", 1.0): {
        1000: (0.113, 0.189, 0.164, 0.964, 0.350),
        3000: (0.041, 0.147, 0.132, 0.492, 0.328),
        5000: (0.031, 0.141, 0.110, 0.377, 0.280),
    },
}
"""RMSE of Original-C, VCDS, EVCDS, VFL-ADMM-DP and VertiGAN."""
COMPARED = ("pooled", "VCDS", "EVCDS", "ADMM", "VertiGAN")

DRAWS, FEWER, FEWEST = 20, 10, 5
"""Of a cell, of VertiGAN's, and of Original-VFL's with a logistic model."""
EXACT = ("pooled", "Original-VFL")
"""Without an epsilon."""
PRINTED = ("VCDS, as printed, theorem", "VCDS, as printed", "EVCDS, as printed")
METHODS = (
    *EXACT,
    "VCDS",
    "VCDS, N rows",
    "EVCDS",
    *PRINTED,
    "theorem",
    "Synthesize",
    "ADMM",
    "ADMM each",
    "VertiGAN",
)
HEADS = {
    "VCDS": 'VCDS, split="none"',
    "VCDS, N rows": 'VCDS, split="none", N rows',
    "EVCDS": 'EVCDS, split="none"',
    "VCDS, as printed, theorem": "VCDS as printed, theorem's split, N rows",
    "VCDS, as printed": 'VCDS as printed, split="none", N rows',
    "EVCDS, as printed": 'EVCDS as printed, split="none", N rows',
    "theorem": 'VCDS, split="theorem"',
    "Synthesize": "Synthesize at the record-level epsilon of that split",
    "ADMM": "VFL-ADMM-DP",
    "ADMM each": "VFL-ADMM-DP, each round",
}


@lru_cache(maxsize=1)
def example_of(response: Response, n: int, seed: int) -> Example:
    return copula_paper(n, seed=seed, response=response)


@lru_cache(maxsize=1)
def vcds_table(response: Response, n: int, epsilon: float, seed: int) -> SyntheticTable:
    return federated(replace(NOMINAL, epsilon=epsilon), example_of(response, n, seed), seed=seed)


def theorem_epsilon(response: Response, n: int, epsilon: float, seed: int) -> float:
    """What a record loses to VCDS with the theorem's split."""
    return record_epsilon(replace(NOMINAL, epsilon=epsilon, split="theorem"), Records.of(example_of(response, n, seed)))


def drawn(response: Response, n: int, epsilon: float, method: str, seed: int) -> Quality:
    """One method on one draw of the records."""
    example = example_of(response, n, seed)

    def of(table: pd.DataFrame) -> Quality:
        return fitted_quality(table, example)

    def printed(kind: type[VCDS | EVCDS], split: str) -> Quality:
        made = kind.as_printed(epsilon=epsilon, delta=DELTA, split=split)
        return of(federated(made, example, seed=seed).sample(n))

    match method:
        case "pooled":
            return of(example.truth.complete)
        case "Original-VFL":
            fit = federated(Select(family=FAMILY[response], response="y"), example, seed=seed, allow=SELECTION)
            truth = example.truth.coefficients
            return quality(fit.params.reindex(truth.index).to_numpy(np.float64), truth.to_numpy(np.float64))
        case "VCDS":
            return of(vcds_table(response, n, epsilon, seed).sample(ROWS))
        case "VCDS, N rows":
            return of(vcds_table(response, n, epsilon, seed).sample(n))
        case "EVCDS":
            return of(federated(replace(ENHANCED, epsilon=epsilon), example, seed=seed).sample(ROWS))
        case "VCDS, as printed, theorem":
            return printed(VCDS, "theorem")
        case "VCDS, as printed":
            return printed(VCDS, "none")
        case "EVCDS, as printed":
            return printed(EVCDS, "none")
        case "theorem":
            theorem = replace(NOMINAL, epsilon=epsilon, split="theorem")
            return of(federated(theorem, example, seed=seed).sample(ROWS))
        case "Synthesize":
            loss = theorem_epsilon(response, n, epsilon, seed)
            synthesis = Synthesize(model="copula", epsilon=loss, delta=DELTA)
            return of(pooled_copula(synthesis, Records.of(example), seed=seed)[0].sample(ROWS, seed))
        case "ADMM" | "ADMM each":
            return admm(example, response, epsilon, seed, per_round=method == "ADMM each")
    return of(vertigan_rows(example, epsilon=epsilon, delta=DELTA, seed=seed))


def admm(example: Example, response: Response, epsilon: float, seed: int, *, per_round: bool) -> Quality:
    x, y, _ = numbers(example.truth.complete, example.columns, "y")
    width = x.shape[1] // 5
    fit = vfl_admm_dp(
        x,
        y,
        [slice(width * k, width * (k + 1)) for k in range(5)],
        epsilon=epsilon,
        delta=DELTA,
        family="gaussian" if FAMILY[response] == "gaussian" else "binomial",
        per_round=per_round,
        rng=np.random.default_rng(seed),
    )
    return quality(fit.coefficients, np.asarray(example.truth.coefficients, np.float64))


def main() -> int:
    page = Page("copula-complete", "Complete data at a nominal epsilon (the copula paper's Tables 1 to 3)")
    many, fewer, fewest = (1, 0, 0) if quick() else (DRAWS, FEWER, FEWEST)
    budgets = (1.0, 5.0) if quick() else (1.0, 3.0, 5.0)
    sizes = SIZES[::2] if quick() else SIZES
    models: tuple[Response, ...] = ("linear", "logistic")
    page.say(
        f"p = 100, five parties. Cells are RMSE ± its standard error / G-means / FDR, means of {many} draws ({fewer} of"
        f" VertiGAN, {fewest} of Original-VFL, logistic); a model without columns has RMSE {null_rmse():.3f}."
        f" Synthetic tables have {ROWS:,} rows but where N is said; every table gets the same fit (SCAD, BIC with its"
        " number of rows). *As printed* is every option of the paper (`as_printed`: Bernstein marginals, and for EVCDS"
        " rows adjusted to the ranks); the other columns of VCDS and EVCDS are ours, with smooth marginals and fresh"
        " rows. Original-VFL is `Select` in the federation."
    )
    page.say(
        f"**Epsilon is nominal, a budget of comparisons, and protects no record.** Synthesize stands at the"
        f" record-level epsilon (delta {DELTA:g}) that VCDS with the theorem's split costs: the column before it. With"
        f' split="none" a record loses tens of thousands. VFL-ADMM-DP spends epsilon over all its rounds; "each round"'
        " spends it in every one of 40. VertiGAN: epsilon for the block of one party, as its authors count, 1,000"
        " rounds."
    )
    cells: dict[Cell, Callable[[int], Quality]] = {}
    for response, n, epsilon, method in itertools.product(models, sizes, budgets, METHODS):
        budget = None if method in EXACT else epsilon
        cells[response, n, budget, method] = partial(drawn, response, n, epsilon, method)
    counts = {cell: fewer if cell[3] == "VertiGAN" else many for cell in cells}
    counts |= {("logistic", n, None, "Original-VFL"): fewest for n in sizes}
    seeds = {cell: range(FIRST_SEED, FIRST_SEED + counts[cell]) for cell in cells}
    found = measured(page.draws, cells, seeds)
    mean = {
        (response, n, epsilon, method): found[response, n, None if method in EXACT else epsilon, method].mean
        for response, n, epsilon, method in itertools.product(models, sizes, budgets, METHODS)
        if found[response, n, None if method in EXACT else epsilon, method].each
    }
    for response in models:
        page.say(f"{response.capitalize()} model:")
        rows = []
        for n, epsilon in itertools.product(sizes, budgets):
            own = [str(found[response, n, None if method in EXACT else epsilon, method]) for method in METHODS]
            loss = page.draws.get(
                (response, n, epsilon, "record-level epsilon"),
                FIRST_SEED,
                lambda: {"epsilon": theorem_epsilon(response, n, epsilon, FIRST_SEED)},  # noqa: B023
            )
            place = METHODS.index("Synthesize")
            rows.append([f"{n:,}", f"{epsilon:g}", *own[:place], f"{loss['epsilon']:.0f}", *own[place:]])
        heads = [HEADS.get(method, method) for method in METHODS]
        heads.insert(METHODS.index("Synthesize"), "record-level epsilon of the theorem's split")
        page.table(["N", "nominal epsilon", *heads], rows)
    page.say("RMSE at epsilon 1 in the paper (Original-C, VCDS, EVCDS, VFL-ADMM-DP, VertiGAN) beside ours:")
    page.table(
        ["model", "N", "paper", "ours"],
        [
            [
                response,
                f"{n:,}",
                ", ".join(f"{one:.3f}" for one in paper),
                ", ".join(
                    f"{mean[response, n, epsilon, one].rmse:.3f}" if (response, n, epsilon, one) in mean else "none"
                    for one in COMPARED
                ),
            ]
            for (response, epsilon), sizes in PAPER.items()
            for n, paper in sizes.items()
            if (response, n, epsilon, "EVCDS") in mean
        ],
    )
    ratio = {
        rows: {n: mean["linear", n, 1.0, rows].rmse / mean["linear", n, 1.0, "pooled"].rmse for n in sizes}
        for rows in ("VCDS", "VCDS, N rows")
    }
    page.say('VCDS / pooled, linear, epsilon 1, split="none":')
    page.table(
        ["N", "paper", f"ours, {ROWS:,} rows", "ours, N rows"],
        [[f"{n:,}", f"{RATIO[n]:.2f}", *(f"{each[n]:.2f}" for each in ratio.values())] for n in sizes],
    )
    spread = {
        n: found["linear", n, 1.0, "VCDS, N rows"].rmse.error / mean["linear", n, 1.0, "pooled"].rmse for n in sizes
    }
    page.say(
        "Standard errors of the ratios with N rows, from the draws of VCDS: "
        + ", ".join(f"{spread[n]:.2f} (N = {n:,})" for n in sizes)
        + "."
    )
    slack = 2 if quick() else 0
    checks = {
        "ratio": all(abs(ratio["VCDS, N rows"][n] - RATIO[n]) <= WITHIN * RATIO[n] + slack * spread[n] for n in sizes),
        "falls_with_n": all(
            mean[response, a, 1.0, one].rmse > mean[response, b, 1.0, one].rmse
            for response, one in itertools.product(models, ("VCDS", "EVCDS"))
            for a, b in ((1000, 5000),)
        ),
        "falls_with_epsilon": all(
            mean["linear", n, 1.0, one].rmse > mean["linear", n, 5.0, one].rmse
            for n, one in itertools.product(sizes, ("VCDS", "EVCDS"))
        ),
        "beats_admm": all(
            mean[response, n, epsilon, one].rmse <= FAR * mean[response, n, epsilon, "ADMM"].rmse
            for response, n, epsilon, one in mean
            if one in ("VCDS", "EVCDS") and epsilon == 1
        ),
        "beats_vertigan": all(
            mean[response, n, epsilon, one].rmse
            <= (FAR if response == "linear" else 1.0) * mean[response, n, epsilon, "VertiGAN"].rmse
            for response, n, epsilon, one in mean
            if one in ("VCDS", "EVCDS") and epsilon == 1 and (response, n, epsilon, "VertiGAN") in mean
        ),
    }
    for name, good in checks.items():
        page.say(f"{name.replace('_', ' ')}: {'as asked' if good else 'not as asked'}.")
    return page.finish(
        all(checks.values()),
        ratios="/".join(f"{ratio['VCDS, N rows'][n]:.2f}" for n in sizes),
        ratios_20k="/".join(f"{ratio['VCDS'][n]:.2f}" for n in sizes),
        **{name: "yes" if good else "no" for name, good in checks.items()},
    )


if __name__ == "__main__":
    with threadpool_limits(1):
        sys.exit(main())
