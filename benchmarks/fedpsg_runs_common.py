"""Runs of completion studies over several splits, two side by side, and their tables.

A row of a table is a mean over splits; each split has its own missing records, first weights and batches. Ratios of two
methods are of runs on the same split, so that what is easy or hard about a split drops out of them.
"""

from __future__ import annotations

import itertools
import os
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import asdict
from functools import partial
from multiprocessing import get_context
from typing import Any

import numpy as np

from benchmarks.common import quick
from benchmarks.draws_common import Draws, Estimate, Key, Values
from benchmarks.fedpsg_common import BOOSTED, LINEAR, MEAN, Case, Score, completed, completion, scored_beside
from colonnade.completion.method import CompletionMethod
from colonnade.papers.fedpsg.method import FedPSG

ITERATIONS = {"bank": 2000, "credit": 1000, "letter": 6000, "news": 2000}
"""Of all networks that are trained in these studies; the paper has 10,000. With early stopping."""
LOCAL = {"bank": 25, "credit": 5, "letter": 25, "news": 25}
STEPS = 1000
"""Of a generator's training."""

Scores = Mapping[str, Score]


def method_for(case: Case, **options: Any) -> CompletionMethod:
    """A completion of B with the iterations of its table; `cgain` is given the label."""
    if options.get("imputer") == "cgain":
        options["label"] = case.label
    return completion(
        parties=("B",),
        iterations=ITERATIONS[case.name],
        local=LOCAL[case.name],
        generator_steps=STEPS,
        **options,
    )


def run_completion(case: Case, **options: Any) -> Score:
    return completed(case, method_for(case, **options))


def run_as_printed(case: Case) -> Score:
    """The paper's VF-GAIN behind five drawn columns; pads in place of CKKS, which changes no figure."""
    return completed(case, FedPSG.as_printed(parties=("B",), masking="pads"))


class Table:
    """{method: its scores, one for each split}, with floors and oracles among the methods."""

    HEAD = ("method", "RMSE", "± se", "marginal distance", "pairwise distance", "CPU s", "")

    def __init__(self, scores: Mapping[str, list[Score]]) -> None:
        self.scores = scores

    def rmse(self, method: str) -> Estimate:
        return Estimate.of(one.rmse for one in self.scores[method])

    def ratio(self, method: str, other: str) -> Estimate:
        """Of the RMSE on the same splits."""
        both = zip(self.scores[method], self.scores[other], strict=True)
        return Estimate.of(one.rmse / base.rmse for one, base in both)

    @property
    def oracle(self) -> str:
        """The better one."""
        return min((LINEAR, BOOSTED), key=lambda name: self.rmse(name).mean)

    def fails(self, method: str) -> bool:
        """A completion that is no nearer to the truth than the means is told as failing."""
        return self.rmse(method).mean >= self.rmse(MEAN).mean

    def rows(self, *, judged: Callable[[str], bool] = lambda method: False) -> list[list[str]]:
        """`judged` names the methods that are told as failing if they are above the mean."""
        found = []
        for method, each in self.scores.items():
            rmse = self.rmse(method)
            others = [
                float(np.mean([getattr(one, name) for one in each])) for name in ("marginal", "pairwise", "seconds")
            ]
            note = "fails: above the mean" if judged(method) and self.fails(method) else ""
            found.append(
                [
                    method,
                    f"{rmse.mean:.4f}",
                    f"{rmse.error:.4f}" if len(each) > 1 else "",
                    f"{others[0]:.3f}",
                    f"{others[1]:.3f}",
                    f"{others[2]:.0f}",
                    note,
                ]
            )
        return found


def cells_of_the_tables() -> list[tuple[str, float]]:
    """(data set, share of B's records that are missing); one of them in a quick run."""
    every = itertools.product(("credit", "letter", "bank", "news"), (0.5, 0.2, 0.8))
    return [("credit", 0.5)] if quick() else list(every)


def cases(cells: Iterable[tuple[str, float]], splits: Sequence[int]) -> dict[str, list[Case]]:
    """{name of a cell: its case for each split}."""
    return {
        f"{name}{100 * missing:.0f}": [Case(name, missing, seed=seed) for seed in splits] for name, missing in cells
    }


def tables(
    cases: Mapping[str, list[Case]], methods: Callable[[Case], Mapping[str, Callable[[Case], Score]]], draws: Draws
) -> dict[str, Table]:
    """{heading: table} with what stands beside every table first. `methods` are picklable functions of a case."""
    work: dict[Key, Callable[[], Values]] = {}
    for heading, splits in cases.items():
        for case in splits:
            work[(heading, ""), case.seed] = partial(beside_values, case)
            for method, make in methods(case).items():
                work[(heading, method), case.seed] = partial(score_values, make, case)
    found = draws.all(work, side_by_side)
    made = {}
    for heading, splits in cases.items():
        besides = [scores_of(found[(heading, ""), case.seed]) for case in splits]
        rows = {name: [one[name] for one in besides] for name in besides[0]}
        for method in methods(splits[0]):
            rows[method] = [Score(**found[(heading, method), case.seed]) for case in splits]
        made[heading] = Table(rows)
    return made


def score_values(make: Callable[[Case], Score], case: Case) -> Values:
    return asdict(make(case))


def beside_values(case: Case) -> Values:
    """{"name: figure": value} of what stands beside; `scores_of` puts them together again."""
    return {f"{name}: {key}": value for name, one in scored_beside(case).items() for key, value in asdict(one).items()}


def scores_of(values: Mapping[str, float]) -> dict[str, Score]:
    names = dict.fromkeys(name.rpartition(": ")[0] for name in values)
    return {
        name: Score(**{key: values[f"{name}: {key}"] for key in ("rmse", "marginal", "pairwise", "seconds")})
        for name in names
    }


def timed(compute: Callable[[], Values]) -> tuple[Values, float]:
    started = time.perf_counter()
    values = compute()
    return values, time.perf_counter() - started


def side_by_side(work: Mapping[Key, Callable[[], Values]]) -> Iterator[tuple[Key, Values, float]]:
    """Every draw, from two processes, as they end."""
    if not work:
        return
    os.environ["OMP_NUM_THREADS"] = "1"
    with ProcessPoolExecutor(2, mp_context=get_context("spawn")) as pool:
        waiting = {pool.submit(timed, compute): key for key, compute in work.items()}
        for done in as_completed(waiting):
            yield waiting[done], *done.result()
