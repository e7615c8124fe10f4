"""How many solutions of a sparse path do masked rounds withhold, and does the choice by BIC survive?

Masked rounds open no total that would show one other party's predictor (`models/sparse/rounds.py`). Solutions in
which one other party alone has coefficients cannot be had, whatever the order of work; how many more are lost depends
on that order. The solver and the rule run on pooled records, without a federation: the messages play no part in this.
QUICK=1 repeats less and writes no page.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.special import expit

from benchmarks.common import Page, quick
from colonnade.models.sparse.path import (
    Evaluation,
    Family,
    ProximalQuasiNewton,
    Traced,
    curvature_of,
    lambda_sequence,
    link,
    mean_response,
    saturated_loss,
    trace_path,
    unit_loss,
)
from colonnade.models.sparse.penalties import Penalty
from colonnade.models.sparse.result import best, scores_by_bic
from colonnade.models.sparse.rounds import Cover
from colonnade.models.sparse.select import MIDDLE

Array = NDArray[np.float64]
N, LAMBDAS, MATTER, TOLERANCE = 2000, 50, 6, 1e-6
EXCESS = 0.02
"""Most solutions that may be lost beyond those in which one party is alone, as a share of all."""


@dataclass(frozen=True, kw_only=True)
class Case:
    family: Family
    penalty: Penalty
    columns: int
    parties: int
    correlation: float


def draw(case: Case, seed: int) -> tuple[Array, Array, list[str]]:
    """Columns with correlation r^|i - j|, in equal blocks, six of which matter; and who holds them."""
    rng = np.random.default_rng(seed)
    p = case.columns
    sigma = case.correlation ** np.abs(np.subtract.outer(np.arange(p), np.arange(p)))
    x = rng.normal(size=(N, p)) @ np.linalg.cholesky(sigma).T
    x = (x - x.mean(axis=0)) / x.std(axis=0)
    b = np.zeros(p)
    b[rng.choice(p, MATTER, replace=False)] = rng.choice([-1, 1], MATTER) * rng.uniform(0.3, 0.8, MATTER)
    eta = x @ b
    y = rng.random(N) < expit(eta) if case.family == "binomial" else rng.poisson(np.exp(np.clip(0.5 * eta, -5, 3)))
    return x, y.astype(np.float64), [f"party {j * case.parties // p}" for j in range(p)]


def path(case: Case, x: Array, y: Array, cover: Cover | None, *, middle: float) -> Traced:
    def at(theta: Array) -> Evaluation:
        eta = theta[0] + x @ theta[1:]
        residual = (mean_response(case.family, eta) - y) / N
        return Evaluation(
            float(unit_loss(case.family, eta, y).mean()), np.concatenate([[residual.sum()], x.T @ residual])
        )

    def evaluate(theta: Array) -> Evaluation:
        if cover is not None:
            cover.admit(theta[1:] != 0)
        return at(theta)

    start = np.zeros(1 + x.shape[1])
    start[0] = link(case.family, float(y.mean()))
    curvature = float(curvature_of(case.family, start[:1])[0])
    solver = ProximalQuasiNewton(
        evaluate,
        start=start,
        at_start=at(start),
        curvature=np.eye(len(start)) * curvature,
        learn=True,
        saturated=saturated_loss(case.family, y, np.full(N, 1 / N)),
        tolerance=TOLERANCE,
    )
    lambdas = lambda_sequence(solver.largest, count=LAMBDAS, ratio=1e-3)
    first = int(np.searchsorted(-lambdas, -middle * solver.largest))
    return trace_path(solver, lambdas.tolist(), penalty=case.penalty, lla_steps=10, first=first)


def alone(traced: Traced, owners: list[str], holder: str) -> int:
    return sum(len({owners[j] for j in np.flatnonzero(one.coefficients)} - {holder}) == 1 for one in traced.points)


def chosen_columns(case: Case, traced: Traced) -> tuple[int, ...]:
    point = traced.points[best(scores_by_bic(case.family, traced.points, n=N, half=1.0))]
    return tuple(np.flatnonzero(point.coefficients))


def main() -> int:
    page = Page("sparse-withheld", "What masked rounds withhold of a sparse path")
    repeats = 2 if quick() else 10
    page.say(
        f"Paths of {LAMBDAS} lambdas, N = {N:,}, {MATTER} columns matter, {repeats} simulations a row. *Alone*:"
        " solutions in which one party besides the holder has coefficients, which no order of work can give. *Same"
        " columns*: the choice by BIC has the same columns as on the whole path."
    )
    rows, lost, inherent, total = [], 0, 0, 0
    for family in ("binomial", "poisson"):
        for penalty in ("lasso", "scad"):
            for columns, parties, correlation in ((20, 4, 0.2), (20, 4, 0.7), (60, 6, 0.2), (60, 6, 0.7)):
                case = Case(
                    family=family,  # type: ignore[arg-type]
                    penalty=penalty,  # type: ignore[arg-type]
                    columns=columns,
                    parties=parties,
                    correlation=correlation,
                )
                counts = np.zeros(4, dtype=int)
                for seed in range(repeats):
                    x, y, owners = draw(case, seed)
                    whole = path(case, x, y, None, middle=1.0)
                    masked = path(case, x, y, Cover(owners, response_party=owners[0]), middle=MIDDLE)
                    down = path(case, x, y, Cover(owners, response_party=owners[0]), middle=1.0)
                    same = chosen_columns(case, whole) == chosen_columns(case, masked)
                    counts += [alone(whole, owners, owners[0]), len(masked.withheld), len(down.withheld), same]
                inherent, lost, total = inherent + counts[0], lost + counts[1], total + repeats * LAMBDAS
                rows.append(
                    [
                        family,
                        penalty,
                        f"{columns} at {parties}",
                        f"{correlation}",
                        *map(str, counts[:3]),
                        f"{counts[3]}/{repeats}",
                    ]
                )
    page.table(
        [
            "family",
            "penalty",
            "columns",
            "correlation",
            "alone",
            "withheld",
            "withheld, path from the top",
            "same columns",
        ],
        rows,
    )
    return page.finish(
        lost - inherent <= EXCESS * total, solutions=total, alone=inherent, withheld=lost, limit=f"alone+{EXCESS:.0%}"
    )


if __name__ == "__main__":
    sys.exit(main())
