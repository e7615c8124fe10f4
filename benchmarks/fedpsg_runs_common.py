"""Runs of completion studies over several splits, two side by side, and their tables.

A row of a table is a mean over splits; each split has its own missing records, first weights and batches. Ratios of two
methods are of runs on the same split, so that what is easy or hard about a split drops out of them.
"""

from __future__ import annotations

import math
import os
import time
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass
from functools import partial
from multiprocessing import get_context
from typing import Any

import numpy as np

from benchmarks.fedpsg_common import BOOSTED, LINEAR, MEAN, Case, Score, completed, completion, scored_beside
from colonnade.completion.method import CompletionMethod

ITERATIONS = {"bank": 2000, "credit": 1000, "letter": 6000}
"""Of all networks that are trained in these studies; the paper has 10,000. With early stopping."""
LOCAL = {"bank": 25, "credit": 5, "letter": 25}
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


@dataclass(frozen=True)
class Estimate:
    """A mean over splits, and its standard error (0 of a single split: then nothing is known about it)."""

    mean: float
    error: float

    @classmethod
    def of(cls, values: Iterable[float]) -> Estimate:
        each = np.array(list(values))
        spread = float(np.std(each, ddof=1)) if len(each) > 1 else 0.0
        return cls(float(each.mean()), spread / math.sqrt(len(each)))

    def __str__(self) -> str:
        return f"{self.mean:.3f}" + (f" ± {self.error:.3f}" if self.error else "")


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


def tables(
    cases: Mapping[str, list[Case]], methods: Callable[[Case], Mapping[str, Callable[[Case], Score]]]
) -> dict[str, Table]:
    """{heading: table} with what stands beside every table first. `methods` are picklable functions of a case."""
    work: dict[tuple[str, str, int], Callable[[], Any]] = {}
    for heading, splits in cases.items():
        for at, case in enumerate(splits):
            work[heading, "", at] = partial(scored_beside, case)
            for method, make in methods(case).items():
                work[heading, method, at] = partial(make, case)
    found = side_by_side(work)
    made = {}
    for heading, splits in cases.items():
        besides = [found[heading, "", at] for at in range(len(splits))]
        rows = {name: [one[name] for one in besides] for name in besides[0]}
        for method in methods(splits[0]):
            rows[method] = [found[heading, method, at] for at in range(len(splits))]
        made[heading] = Table(rows)
    return made


def side_by_side(work: Mapping[Any, Callable[[], Any]]) -> dict[Any, Any]:
    """Every result, from two processes; progress is printed."""
    os.environ["OMP_NUM_THREADS"] = "1"
    started, found = time.monotonic(), {}
    with ProcessPoolExecutor(2, mp_context=get_context("spawn")) as pool:
        waiting = {pool.submit(one): key for key, one in work.items()}
        for done in as_completed(waiting):
            key = waiting[done]
            found[key] = done.result()
            told = f"{found[key].rmse:.4f}" if isinstance(found[key], Score) else ""
            print(f"{len(found)}/{len(work)} {time.monotonic() - started:.0f} s", *key, told, flush=True)
    return found
