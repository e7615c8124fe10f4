"""How many correlated columns should be drawn first (the paper's Figure 4), with and without a condition.

The paper finds four to six columns better than none. Drawn columns carry their own scatter, so by RMSE they can only
win where what fills in the rest is worse than a draw; beside RMSE stand marginal and pairwise fidelity. Limit:
conditioned generation is better than unconditioned, in every cell, on the mean over splits; a quick run has one split,
and allows 3 % for chance. The limit is of before 2026-11-17; 4, 6 and 8 columns and five splits came then.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from functools import partial

from benchmarks.common import Page, quick
from benchmarks.fedpsg_common import Case, Score
from benchmarks.fedpsg_runs_common import ITERATIONS, STEPS, Table, run_completion, tables

COUNTS = {"credit": (0, 2, 4, 5, 6, 8), "letter": (0, 2, 4, 5, 6, 8), "bank": (0, 2, 4, 5, 6, 8)}
SPLITS = (1, 2, 3, 4, 5)
CONDITIONS = ("aligned", "none")


def row(count: int, condition: str) -> str:
    return f"{count} columns, {condition}"


def methods(case: Case) -> Mapping[str, Callable[[Case], Score]]:
    counts = (0, 5) if quick() else COUNTS[case.name]
    return {
        row(count, condition): partial(run_completion, imputer="gain", n_correlated=count, condition=condition)
        for count in counts
        for condition in CONDITIONS
    }


def main() -> int:
    splits = SPLITS[:1] if quick() else SPLITS
    page = Page("fedpsg-columns", "Completion: how many columns are drawn first")
    page.say(
        f"50 % of B's records missing; TabDDPM ({STEPS:,} steps) draws the correlated columns, VF-GAIN fills in the"
        f" rest ({', '.join(f'{name} {many}' for name, many in ITERATIONS.items())} iterations; the paper has 10,000)."
        " `aligned`: generator and GAN know what the other party knows about a record; `none`: the paper. Without a"
        " condition nothing that B is given depends on the record, so that such a row can be better than the mean by"
        f" chance only. Means of {len(splits)} splits with their own first weights, and the standard error of the mean."
    )
    names = ("credit",) if quick() else tuple(COUNTS)
    found = tables({name: [Case(name, 0.5, seed=seed) for seed in splits] for name in names}, methods, page.draws)
    good, figures = True, {}
    for name, table in found.items():
        counts = (0, 5) if quick() else COUNTS[name]
        page.say(f"## {name.capitalize()}")
        page.table(Table.HEAD, table.rows(judged=lambda method: "columns" in method))
        ratios = {count: table.ratio(row(count, "aligned"), row(count, "none")) for count in counts}
        told = ", ".join(f"{ratio} with {count} columns" for count, ratio in ratios.items())
        paper, ours = (table.ratio(row(5, condition), row(0, condition)) for condition in ("none", "aligned"))
        page.say(
            f"Conditioned has {told} of the RMSE without a condition (limit 1). Five columns have {paper} of the RMSE"
            f" of none without a condition, and {ours} with it; the paper has them better."
        )
        wins = [ratio.mean < (1.03 if quick() else 1) for ratio in ratios.values()]
        good = good and all(wins)
        figures[name] = (
            f"aligned:{'/'.join(f'{one.mean:.3f}' for one in ratios.values())},five-of-none:{paper.mean:.3f}"
        )
    return page.finish(good, **figures)


if __name__ == "__main__":
    sys.exit(main())
