"""What private training of a completion costs: Bank, half of B's records missing, with some epsilons.

Epsilon is a person's total over both parties' weights. Nothing is tuned for it: ten epochs, clip 1, a smaller network
than the default, since noise grows with the number of weights. No limit: the page shows the price.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from benchmarks.common import Page, quick
from benchmarks.fedpsg_common import MEAN, Case, Score, completed, completion
from benchmarks.fedpsg_runs_common import Table, tables

CELLS: tuple[tuple[Any, float | None], ...] = (
    ("regression", None),
    ("regression", 8.0),
    ("regression", 1.0),
    ("gain", None),
    ("gain", 8.0),
)
SMALL: dict[str, Any] = {"hidden": 32, "cut": 8, "iterations": 1500, "parties": ("B",)}


SPLITS = (1, 2)


def told(imputer: str, epsilon: float | None) -> str:
    return f"{imputer}, " + ("no noise" if epsilon is None else f"epsilon {epsilon:g}")


def run_small(case: Case, *, imputer: Any, epsilon: float | None) -> Score:
    return completed(case, completion(imputer, epsilon=epsilon, **SMALL))


def methods(case: Case) -> Mapping[str, Callable[[Case], Score]]:
    return {
        told(imputer, epsilon): partial(run_small, imputer=imputer, epsilon=epsilon)
        for imputer, epsilon in (CELLS[:2] if quick() else CELLS)
    }


def main() -> int:
    splits = SPLITS[:1] if quick() else SPLITS
    page = Page("fedpsg-private", "Completion: the price of private training")
    page.say(
        "Bank, 50 % of B's records missing; networks with 32 hidden units and vectors of 8, at most 1,500"
        " iterations of 128 records in ten epochs, clip 1, delta 1e-6. Epsilon bounds what the weights of both parties,"
        " and so the completed entries, say about a person; it does not bound the vectors that travel. `gain` is"
        " VF-GAIN conditioned on the regression, so that both share one epsilon. Means of"
        f" {len(splits)} splits with their own first weights, and the standard error of the mean."
    )
    table = tables({"bank": [Case("bank", 0.5, seed=seed) for seed in splits]}, methods, page.draws)["bank"]
    ours = [told(*cell) for cell in CELLS if told(*cell) in table.scores]
    page.table(Table.HEAD, table.rows(judged=lambda method: method in ours))
    found = {"mean": table.rmse(MEAN).mean}
    found |= {name.replace(", ", "_").replace(" ", "_"): table.rmse(name).mean for name in ours}
    return page.finish(
        all(math.isfinite(one) for one in found.values()), **{name: f"{one:.4f}" for name, one in found.items()}
    )


if __name__ == "__main__":
    sys.exit(main())
