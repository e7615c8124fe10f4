"""Completion against local generation (the paper's Tables 3 and 4), on Bank, Credit and Letter.

A generator that draws B's columns without knowing the record is no better than a random donor. Limits: every completion
with the default condition is below local generation, and conditioned draws are below a random donor.
"""

from __future__ import annotations

import sys
import time
from typing import Any

import numpy as np

from benchmarks.common import Page, quick
from benchmarks.fedpsg_common import DONOR, HEAD, Case, Score, completed, floors, score
from colonnade.completion.fedpsg import FedPSG
from colonnade.completion.generators import generator

STEPS = 1000


def drawn_locally(case: Case, name: str) -> Score:
    """All of B's columns from B's records alone."""
    started = time.process_time()
    options: dict[str, Any] = {} if name == "copula" else {"steps": STEPS}
    known = case.matrix(1)[~case.lacking]
    fitted = generator(name, **options).fit(known, case.layout, seed=1)  # type: ignore[arg-type]
    found = fitted.sample(int(case.lacking.sum()), seed=2)
    return score(case, np.asarray(found), time.process_time() - started)


def main() -> int:
    page = Page("fedpsg-generators", "Completion against local generation")
    page.say(
        f"50 % of B's records missing. Generators train {STEPS} steps, the regression 1,000 (Credit) to 3,000"
        " iterations. `TabDDPM, conditioned` draws all of B's columns given what A knows about the record, through the"
        " regression."
    )
    good, figures = True, {}
    for name in ("credit",) if quick() else ("credit", "letter", "bank"):
        case = Case(name, 0.5, seed=1)
        scores = floors(case)
        donor = scores[DONOR].rmse
        local = {f"{one}, local": drawn_locally(case, one) for one in ("tabddpm", "tvae", "copula")}
        scores |= local
        more: dict[str, Any] = {"iterations": 1000, "local": 5} if name == "credit" else {"iterations": 3000}
        every = len(case.sides[1])
        ours = {
            "FedPSG-0, regression": FedPSG(complete=("B",), **more),
            "FedPSG-5, regression, TabDDPM": FedPSG(n_correlated=5, generator_steps=STEPS, complete=("B",), **more),
            "TabDDPM, conditioned": FedPSG(n_correlated=every, generator_steps=STEPS, complete=("B",), **more),
        }
        for method, one in ours.items():
            scores[method] = completed(case, one)[0]
            print(name, method, scores[method].cells(), flush=True)
        page.say(f"## {name.capitalize()}")
        page.table(["method", *HEAD], [[method, *one.cells()] for method, one in scores.items()])
        least = min(one.rmse for one in local.values())
        good = good and all(scores[method].rmse < least for method in ours)
        good = good and scores["TabDDPM, conditioned"].rmse < donor
        figures[name] = f"{scores['TabDDPM, conditioned'].rmse:.3f}<{least:.3f}"
    return page.finish(good, **figures)


if __name__ == "__main__":
    sys.exit(main())
