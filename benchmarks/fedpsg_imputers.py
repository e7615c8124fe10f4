"""Which imputer comes nearest to the truth (the paper's Table 1), beside floors and pooled oracles, in one run.

Limits: the conditional copula mean within 3 % of pooled least squares; the best federated method within 5 % of the
better oracle; draws below a random donor row; each VF-GAN variant below the mean, or reported as failing.
"""

from __future__ import annotations

import sys
from typing import Any

from benchmarks.common import Page, quick
from benchmarks.fedpsg_common import DONOR, HEAD, MEAN, Case, Score, completed, floors, oracles
from colonnade.completion.fedpsg import FedPSG

CELLS = [(name, missing) for name in ("credit", "letter", "bank") for missing in (0.5, 0.2, 0.8)]
ITERATIONS = {"bank": 2000, "credit": 1000, "letter": 6000}
GANS = {"VF-GAIN": "gain", "VF-VGAIN": "vgain", "VF-CGAIN": "cgain"}
METHODS: dict[str, dict[str, Any]] = {
    "copula, conditional mean": {"imputer": "copula-mean"},
    "copula, conditional draw": {"imputer": "copula-draw"},
    "VF-MICE": {"imputer": "mice"},
    "regression (default)": {},
    "VF-GAIN, unconditioned": {"imputer": "gain", "condition": "none"},
    **{name: {"imputer": imputer} for name, imputer in GANS.items()},
}
AT_HALF = ("VF-GAIN, unconditioned", *GANS)
"""Run at 50 % only (VF-GAIN on Credit at all), to keep the study short."""


def main() -> int:
    page = Page("fedpsg-imputers", "Completion: which imputer comes nearest to the truth")
    page.say(
        "Only B lacks records, at random; A and B have the paper's columns (Bank 8/8, Credit 9/11, Letter 8/8). RMSE on"
        " numbers scaled by their declared range and indicators of categories, over the entries of the missing records,"
        " of expected values where a method has them; the distances are of the table that a party gets. One split and"
        " one seed for each table: differences below about 1 % (Credit: 3 %) are chance. Iterations are fewer than the"
        f" paper's 10,000 ({', '.join(f'{name} {many}' for name, many in ITERATIONS.items())}), with early stopping; no"
        " columns are drawn first. The networks' constants were chosen on Letter and Credit at 50 % with another split"
        " of the records. `unconditioned` is the paper's generator: where a record is missing it sees noise and nothing"
        " of what A knows, so that it can at best be as near as the mean. VF-CGAIN is given the label, which no other"
        " row and no oracle has, so it is not among the best."
    )
    good, figures, failing = True, {}, list[str]()
    for name, missing in CELLS[:1] if quick() else CELLS:
        case = Case(name, missing, seed=1)
        scores: dict[str, Score] = {**floors(case), **oracles(case)}
        for method, options in METHODS.items():
            if method in AT_HALF and missing != 0.5 and (name, method) != ("credit", "VF-GAIN"):
                continue
            more: dict[str, Any] = {"iterations": ITERATIONS[name], "local": 25}
            if name == "credit":
                more["local"] = 5
            if options.get("imputer") == "cgain":
                more["label"] = case.label
            found = completed(case, FedPSG(complete=("B",), **options, **more))[0]
            scores[method] = found if "draw" in method else found.against(scores[MEAN])
            print(name, missing, method, scores[method].cells(), flush=True)
        donor = scores[DONOR].rmse
        linear = scores["pooled least squares"].rmse
        oracle = min(linear, scores["pooled gradient boosting"].rmse)
        page.say(f"## {name.capitalize()}, {100 * missing:.0f} % of B's records missing")
        page.table(["method", *HEAD], [[method, *one.cells()] for method, one in scores.items()])
        known = [method for method in scores if method in METHODS and method != "VF-CGAIN"]  # that one has the label
        best = min((scores[method].rmse, method) for method in known)
        copula = scores["copula, conditional mean"].rmse / linear
        drawn = scores["copula, conditional draw"].rmse / donor
        page.say(
            f"Best federated: {best[1]}, {best[0] / oracle:.3f} of the better oracle (limit 1.05). Conditional copula"
            f" mean: {copula:.3f} of pooled least squares (limit 1.03). Draw: {drawn:.3f} of a random donor (limit 1)."
        )
        good = good and best[0] <= 1.05 * oracle and copula <= 1.03 and drawn < 1
        failing += [f"{method} on {name} at {100 * missing:.0f} %" for method, one in scores.items() if one.note]
        figures[f"{name}{100 * missing:.0f}"] = f"{best[0] / oracle:.3f}/{copula:.3f}/{drawn:.3f}"
    page.say("Failing, no nearer to the truth than the mean: " + (", ".join(failing) or "none") + ".")
    return page.finish(good, **figures, failing=len(failing))


if __name__ == "__main__":
    sys.exit(main())
