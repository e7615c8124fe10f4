"""What private training of a completion costs: Bank, half of B's records missing, with some epsilons.

Epsilon is a person's total over both parties' weights. Nothing is tuned for it: ten epochs, clip 1, a smaller network
than the default, since noise grows with the number of weights. No limit: the page shows the price.
"""

from __future__ import annotations

import math
import sys
from typing import Any

from benchmarks.common import Page, quick
from benchmarks.fedpsg_common import HEAD, MEAN, Case, completed, floors
from colonnade.completion.fedpsg import FedPSG

CELLS: tuple[tuple[Any, float | None], ...] = (
    ("regression", None),
    ("regression", 8.0),
    ("regression", 1.0),
    ("gain", None),
    ("gain", 8.0),
)
SMALL: dict[str, Any] = {"hidden": 32, "cut": 8, "iterations": 1500, "complete": ("B",)}


def main() -> int:
    page = Page("fedpsg-private", "Completion: the price of private training")
    page.say(
        "Bank, 50 % of B's records missing; networks with 32 hidden units and vectors of 8, at most 1,500"
        " iterations of 128 records in ten epochs, clip 1, delta 1e-6. Epsilon bounds what the weights of both parties,"
        " and so the completed entries, say about a person; it does not bound the vectors that travel. `gain` is"
        " VF-GAIN conditioned on the regression, so that both share one epsilon."
    )
    case = Case("bank", 0.5, seed=1)
    below = floors(case)
    rows = [[method, *one.cells()] for method, one in below.items()]
    found = {}
    for imputer, epsilon in CELLS[:2] if quick() else CELLS:
        name = "no noise" if epsilon is None else f"epsilon {epsilon:g}"
        scored = completed(case, FedPSG(imputer=imputer, epsilon=epsilon, **SMALL))[0]
        found[f"{imputer}_{name.replace(' ', '_')}"] = f"{scored.rmse:.4f}"
        rows.append([f"{imputer}, {name}", *scored.against(below[MEAN]).cells()])
        print(rows[-1], flush=True)
    page.table(["method", *HEAD], rows)
    return page.finish(
        all(math.isfinite(float(one)) for one in found.values()), mean=f"{below[MEAN].rmse:.4f}", **found
    )


if __name__ == "__main__":
    sys.exit(main())
