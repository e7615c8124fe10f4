"""How many correlated columns should be drawn first (the paper's Figure 4), with and without a condition.

The paper finds four to six columns better than none. Drawn columns carry their own scatter, so by RMSE they can only
win where what fills in the rest is worse than a draw; beside RMSE stand marginal and pairwise fidelity. Limit:
conditioned generation is better than unconditioned.
"""

from __future__ import annotations

import sys
from typing import Any

from benchmarks.common import Page, quick
from benchmarks.fedpsg_common import HEAD, MEAN, Case, completed, floors
from colonnade.completion.fedpsg import FedPSG

CELLS = [("credit", (0, 5)), ("letter", (0, 2, 5))]
TRAINING: dict[str, dict[str, Any]] = {
    "credit": {"iterations": 1000, "local": 5},
    "letter": {"iterations": 3000},
}
CHANCE = {"credit": 0.03, "letter": 0.01}
"""Relative differences that another seed makes."""


def main() -> int:
    page = Page("fedpsg-columns", "Completion: how many columns are drawn first")
    page.say(
        "50 % of B's records missing; TabDDPM (1,000 steps) draws the correlated columns, VF-GAIN fills in the rest"
        " (1,000 iterations on Credit, 3,000 on Letter; the paper has 10,000). `aligned`: generator and"
        " GAN know what the other party knows about a record; `none`: the paper. Without a condition nothing that B is"
        " given depends on the record, so that such a row can be better than the mean by chance only. One split and one"
        " seed: differences below 1 % (Credit: 3 %) are chance, and the limit on them is wider by as much."
        " `fedpsg-generators` has the regression with five columns, `fedpsg-federated` VF-GAIN on Bank."
    )
    good, figures = True, {}
    for name, counts in CELLS[:1] if quick() else CELLS:
        case = Case(name, 0.5, seed=1)
        below = floors(case)
        rows = [[method, "", *one.cells()] for method, one in below.items()]
        found: dict[tuple[int, str], float] = {}
        for count in counts[:2] if quick() else counts:
            for condition in ("aligned", "none"):
                method = FedPSG(
                    imputer="gain",
                    n_correlated=count,
                    condition=condition,  # type: ignore[arg-type]
                    generator_steps=1000,
                    complete=("B",),
                    **TRAINING[name],
                )
                scored, _ = completed(case, method)
                found[count, condition] = scored.rmse
                rows.append([f"{count} columns", condition, *scored.against(below[MEAN]).cells()])
                print(rows[-1], flush=True)
        page.say(f"## {name.capitalize()}")
        page.table(["method", "condition", *HEAD], rows)
        ratios = [found[count, "aligned"] / found[count, "none"] for count in counts if (count, "none") in found]
        wins = [ratio < 1 + CHANCE[name] for ratio in ratios]
        five = found[5, "none"] / found[0, "none"]
        page.say(
            f"Conditioned has {', '.join(f'{ratio:.3f}' for ratio in ratios)} of the RMSE without a condition. As in"
            f" the paper, without one, five columns give {five:.3f} of the RMSE of none; with it"
            f" {found[5, 'aligned'] / found[0, 'aligned']:.3f}."
        )
        good = good and all(wins)
        figures[name] = f"aligned:{sum(wins)}/{len(wins)},five-of-none:{five:.3f}"
    return page.finish(good, **figures)


if __name__ == "__main__":
    sys.exit(main())
