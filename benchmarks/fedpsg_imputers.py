"""Which imputer comes nearest to the truth (the paper's Table 1), beside floors and pooled oracles, in one run.

Limits: the conditional copula mean within 3 % of pooled least squares; the best federated method within 5 % of the
better oracle; draws below a random donor row; each VF-GAN variant below the mean, or reported as failing.
"""

from __future__ import annotations

import sys
from typing import Any

from benchmarks.common import Page, quick
from benchmarks.fedpsg_common import HEAD, Case, Score, completed, floors, oracles
from colonnade.completion.fedpsg import FedPSG

CELLS = [("credit", 0.5), ("letter", 0.5), ("bank", 0.5)]
ITERATIONS = {"bank": 2000, "credit": 1000, "letter": 6000}
GANS_ON = ("credit",)
METHODS: dict[str, dict[str, Any]] = {
    "copula, conditional mean": {"imputer": "copula-mean"},
    "copula, conditional draw": {"imputer": "copula-draw"},
    "VF-MICE": {"imputer": "mice"},
    "regression (default)": {},
    "VF-GAIN": {"imputer": "gain"},
    "VF-VGAIN": {"imputer": "vgain"},
    "VF-CGAIN": {"imputer": "cgain"},
}


def main() -> int:
    page = Page("fedpsg-imputers", "Completion: which imputer comes nearest to the truth")
    page.say(
        "Only B lacks records, at random; A and B have the paper's columns (Bank 8/8, Credit 9/11, Letter 8/8). RMSE on"
        " numbers scaled by their declared range and indicators of categories, over the entries of the missing records,"
        " of expected values where a method has them; the distances are of the table that a party gets. One split and"
        " one seed for each table: differences below about 1 % (Credit: 3 %) are chance. Iterations are fewer than the"
        f" paper's 10,000 ({ITERATIONS}), with early stopping, and GANs are run on Credit only, to keep the study"
        " short: `fedpsg-federated` and `fedpsg-columns` have them on Bank. The networks' constants were chosen on"
        " Letter and Credit at 50 % with another split of the records."
    )
    good, figures = True, {}
    for name, missing in CELLS[:1] if quick() else CELLS:
        case = Case(name, missing, seed=1)
        scores: dict[str, Score] = {**floors(case), **oracles(case)}
        for method, options in METHODS.items():
            gan = options.get("imputer") in ("gain", "vgain", "cgain")
            if gan and name not in GANS_ON:
                continue
            more: dict[str, Any] = {"iterations": ITERATIONS[name], "local": 25}
            if name == "credit":
                more["local"] = 5
            if options.get("imputer") == "cgain":
                more["label"] = case.label
            scores[method] = completed(case, FedPSG(complete=("B",), **options, **more))[0]
            print(name, missing, method, scores[method].cells(), flush=True)
        floor, donor = scores["mean (floor)"].rmse, scores["random donor"].rmse
        linear = scores["pooled least squares"].rmse
        oracle = min(linear, scores["pooled gradient boosting"].rmse)
        for method in METHODS:
            if "GAIN" in method and method in scores and scores[method].rmse >= floor:
                found = scores[method]
                scores[method] = Score(
                    found.rmse, found.marginal, found.pairwise, found.seconds, "fails: above the mean"
                )
        page.say(f"## {name.capitalize()}, {100 * missing:.0f} % of B's records missing")
        page.table(["method", *HEAD], [[method, *one.cells()] for method, one in scores.items()])
        best = min((one.rmse, method) for method, one in scores.items() if method in METHODS)
        copula = scores["copula, conditional mean"].rmse / linear
        drawn = scores["copula, conditional draw"].rmse / donor
        page.say(
            f"Best federated: {best[1]}, {best[0] / oracle:.3f} of the better oracle (limit 1.05). Conditional copula"
            f" mean: {copula:.3f} of pooled least squares (limit 1.03). Draw: {drawn:.3f} of a random donor (limit 1)."
        )
        good = good and best[0] <= 1.05 * oracle and copula <= 1.03 and drawn < 1
        figures[f"{name}{100 * missing:.0f}"] = f"{best[0] / oracle:.3f}/{copula:.3f}/{drawn:.3f}"
    return page.finish(good, **figures)


if __name__ == "__main__":
    sys.exit(main())
