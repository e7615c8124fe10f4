"""Completion against local generation (the paper's Tables 3 and 4), on Bank, Credit, Letter and News.

A generator that draws B's columns without knowing the record is no better than a random donor. Limits: every completion
with the default condition is below local generation, and conditioned draws are below a random donor. The limits are of
before 2026-11-17; 20 and 80 %, News, five splits and the paper's own completion as printed (at 50 %, not asked) came
then. CTGAN, TableGAN and CTAB-GAN are not there: the first's licence forbids competing use, of the others there is no
package that is kept up.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import numpy as np

from benchmarks.common import Page, quick
from benchmarks.fedpsg_common import DONOR, Case, Score, score
from benchmarks.fedpsg_runs_common import (
    ITERATIONS,
    STEPS,
    Table,
    cases,
    cells_of_the_tables,
    run_as_printed,
    run_completion,
    tables,
)
from colonnade.papers.fedpsg.generators import generator

SPLITS = (1, 2, 3, 4, 5)
GENERATORS = ("tabddpm", "tvae", "copula")
DRAWN = "TabDDPM, conditioned"


def drawn_locally(case: Case, *, name: str) -> Score:
    """All of B's columns from B's records alone."""
    started = time.process_time()
    options: dict[str, Any] = {} if name == "copula" else {"steps": STEPS}
    known = case.matrix(1)[~case.lacking]
    fitted = generator(name, **options).fit(known, case.layout, seed=case.seed)  # type: ignore[arg-type]
    found = fitted.sample(int(case.lacking.sum()), seed=case.seed + 1)
    return score(case, np.asarray(found), time.process_time() - started)


def methods(case: Case) -> Mapping[str, Callable[[Case], Score]]:
    made: dict[str, Callable[[Case], Score]] = {
        **{f"{name}, local": partial(drawn_locally, name=name) for name in GENERATORS},
        "FedPSG-0, regression": run_completion,
        "FedPSG-5, regression, TabDDPM": partial(run_completion, n_correlated=5),
        DRAWN: partial(run_completion, n_correlated=len(case.sides[1])),
    }
    return made if quick() or case.missing != 0.5 else {**made, "FedPSG-5, VF-GAIN, as printed": run_as_printed}


def main() -> int:
    splits = SPLITS[:1] if quick() else SPLITS
    page = Page("fedpsg-generators", "Completion against local generation")
    page.say(
        f"Generators train {STEPS:,} steps, the regression"
        f" {', '.join(f'{many} iterations on {name.capitalize()}' for name, many in ITERATIONS.items())}. `{DRAWN}`"
        " draws all of B's columns given what A knows about the record, through the regression. Means of"
        f" {len(splits)} splits with their own first weights, and the standard error of the mean."
    )
    cells = cells_of_the_tables()
    good, figures = True, {}
    found = tables(
        cases(cells, splits),
        methods,
        page.draws,
    )
    for (name, missing), (heading, table) in zip(cells, found.items(), strict=True):
        page.say(f"## {name.capitalize()}, {100 * missing:.0f} % of B's records missing")
        page.table(Table.HEAD, table.rows())
        local = min((f"{one}, local" for one in GENERATORS), key=lambda one: table.rmse(one).mean)
        ours = [one for one in table.scores if one.startswith("FedPSG") and "as printed" not in one] + [DRAWN]
        against, donor = max(table.ratio(one, local).mean for one in ours), table.ratio(DRAWN, DONOR)
        page.say(
            f"Completions have at most {against:.3f} of the RMSE of the best local generation (limit 1), conditioned"
            f" draws {donor} of a random donor's (limit 1)."
        )
        good = good and against < 1 and donor.mean < 1
        figures[heading] = f"{against:.3f}/{donor.mean:.3f}"
    return page.finish(good, **figures)


if __name__ == "__main__":
    sys.exit(main())
